"""False-alarm probabilities against astropy's formulas and bootstrap, and against simulated noise."""

from __future__ import annotations

from dataclasses import replace

import astropy
import numpy as np
import pytest
from astropy.timeseries import LombScargle as Astropy

import skysieve
from skysieve.core.errors import SkysieveError
from skysieve.periodogram import NoFormulaWarning
from skysieve.periodogram.analysis.bootstrap import bootstrap_maxima, power_at, resamples
from skysieve.periodogram.analysis.fap import Noise, density, single, single_level

SHAPES = ("standard", "model", "log", "psd")


def noise(n=80, span=30.0, seed=3):
    rng = np.random.default_rng(seed)
    return np.sort(rng.uniform(0, span, n)), rng.normal(size=n), rng.uniform(0.8, 1.2, n)


@pytest.mark.slow
@pytest.mark.skipif(astropy.version.major < 8, reason="the fast method of astropy before 8.0 is inexact")
@pytest.mark.parametrize("normalization", SHAPES)
@pytest.mark.parametrize("errors", [True, False])
def test_bootstrap_is_astropys_on_astropys_grid(normalization, errors):
    """Same seed, same draws, same grid: the same maxima to 1e-10 (those of the grid, computed anew in float64)."""
    t, y, dy = noise()
    dy = dy if errors else None
    mine = skysieve.LombScargle(t, y, dy, normalization=normalization, device="cpu")
    theirs = Astropy(t, y, dy, normalization=normalization)
    options = {"maximum_frequency": 4.0, "method": "bootstrap"}
    keywords = {"n_bootstraps": 40, "random_seed": 11}
    p = np.array([0.99, 0.5, 0.2, 0.03])
    level = mine.false_alarm_level(p, method_kwds=keywords, **options)
    expected = theirs.false_alarm_level(p, method_kwds=keywords, **options).value
    np.testing.assert_allclose(level, expected, rtol=1e-10)
    z = level[1:3].mean()
    got = mine.false_alarm_probability([z, level[3]], method_kwds=keywords, **options)
    assert np.array_equal(got, mine.false_alarm_probability([z, level[3]], method_kwds=keywords, **options))
    np.testing.assert_allclose(got[0], theirs.false_alarm_probability(z, method_kwds=keywords, **options))


def test_draws_do_not_depend_on_the_batches(monkeypatch):
    _, y, dy = noise(50)
    whole = next(a for a, _ in resamples(y, dy, 30, 5))
    monkeypatch.setattr("skysieve.periodogram.analysis.bootstrap.BATCH_VALUES", 350)
    parts = list(resamples(y, dy, 30, 5))
    assert [len(a) for a, _ in parts] == [7, 7, 7, 7, 2]
    assert np.array_equal(np.concatenate([a for a, _ in parts]), whole)
    rng = np.random.default_rng(5)
    assert np.array_equal(whole, np.stack([y[rng.integers(0, 50, 50)] for _ in range(30)]))


@pytest.mark.slow
def test_bootstrap_on_the_users_grid():
    """Three frequencies only: the maxima are of these three."""
    t, y, dy = noise()
    mine = skysieve.LombScargle(t, y, dy, device="cpu")
    f = np.array([0.31, 1.7, 0.9])
    keywords = {"n_bootstraps": 25, "random_seed": 2}
    level = mine.false_alarm_level(np.arange(1, 26) / 25.0001, method="bootstrap", frequency=f, method_kwds=keywords)
    rng = np.random.default_rng(2)
    expected = []
    for _ in range(25):
        s = rng.integers(0, 80, 80)
        expected.append(Astropy(t, y[s], dy[s]).power(f, method="cython").max())
    np.testing.assert_allclose(np.sort(level), np.sort(expected), rtol=1e-10)
    few = mine.false_alarm_probability(0.15, method="bootstrap", frequency=f, method_kwds={"n_bootstraps": 300})
    many = mine.false_alarm_probability(
        0.15, method="bootstrap", method_kwds={"n_bootstraps": 300}, maximum_frequency=4.0
    )
    assert few < many


@pytest.mark.parametrize("fit_mean", [True, False])
@pytest.mark.parametrize("normalization", [*SHAPES, "scargle"])
def test_power_at_one_frequency_each(fit_mean, normalization):
    rng = np.random.default_rng(0)
    t, _, _ = noise(30)
    y, dy, f = rng.normal(size=(7, 30)) + 3, rng.uniform(1, 2, (7, 30)), rng.uniform(0.1, 4, 7)
    got = power_at(t, y, dy, f, fit_mean=fit_mean, normalization=normalization)
    expected = [
        skysieve.lombscargle(
            t, *row, frequency=[x], fit_mean=fit_mean, normalization=normalization, device="cpu", method="direct"
        ).power[0]
        for *row, x in zip(y, dy, f, strict=True)
    ]
    np.testing.assert_allclose(got, expected, rtol=1e-10)
    if normalization != "scargle":
        three = power_at(t, y, dy, f, nterms=3, fit_mean=fit_mean, normalization=normalization)
        judge = [
            Astropy(t, *row, nterms=3, fit_mean=fit_mean, normalization=normalization).power([x], method="chi2")[0]
            for *row, x in zip(y, dy, f, strict=True)
        ]
        np.testing.assert_allclose(three, judge, rtol=1e-9)


def test_singular_and_constant_resamples():
    assert np.isnan(power_at(np.arange(5.0), np.random.default_rng(0).normal(size=(1, 5)), None, np.array([1.0])))
    t = np.array([0.0, 0.3, 1.1, 1.7])
    calls = []

    def search(t, y, dy):
        calls.append(y.shape)
        return skysieve.lombscargle(t, y, fmin=0.1, fmax=2, nf=50, return_power=False, device="cpu")

    model = {"normalization": "standard"}
    y = np.array([1.0, 1.0, 1.0, 2.0])  # a third of the resamples are constant
    found = bootstrap_maxima(t, y, None, search, n=60, seed=1, refined=True, model=model)
    assert calls == [(60, 4)]
    assert found.size == 60
    assert (found == 0).sum() > 10
    with pytest.raises(SkysieveError, match="none of 3 resamples"):
        bootstrap_maxima(t[:2], y[:2], None, search, n=3, seed=2, refined=True, model=model)


def test_where_no_formula_holds():
    t, y, dy = noise()
    cases = [
        ({"nterms": 0}, "nterms=0"),
        ({"normalization": "scargle"}, "scargle"),
        ({"fit_mean": False, "center_data": False}, "centred"),
    ]
    for options, text in cases:
        ls = skysieve.LombScargle(t, y, dy, device="cpu", **options)
        for method in ("single", "naive", "davies", "baluev"):
            with pytest.warns(NoFormulaWarning, match=text):
                assert ls.false_alarm_probability(0.4, method=method) is None
            with pytest.warns(NoFormulaWarning, match=text):
                assert ls.false_alarm_level(0.4, method=method) is None
    with pytest.warns(NoFormulaWarning, match="'psd' without errors"):
        assert skysieve.LombScargle(t, y, normalization="psd", device="cpu").false_alarm_probability(5.0) is None
    raw = skysieve.LombScargle(t, y, dy, normalization="scargle", device="cpu")
    grid = {"maximum_frequency": 2.0, "method": "bootstrap", "method_kwds": {"n_bootstraps": 20, "random_seed": 0}}
    assert 0 <= raw.false_alarm_probability(raw.autopower(maximum_frequency=2.0)[1].max(), **grid) <= 1


@pytest.mark.parametrize("normalization", SHAPES)
def test_formulas_are_consistent(normalization):
    z = np.linspace(0.05, 0.9, 30)
    np.testing.assert_allclose(single_level(single(z, 40, normalization), 40, normalization), z, rtol=1e-12)
    step = 1e-6
    slope = (single(z - step, 40, normalization) - single(z + step, 40, normalization)) / (2 * step)
    np.testing.assert_allclose(density(z, 40, normalization), slope, rtol=1e-6)
    t, _, dy = noise(40)
    model = Noise.of(t, dy, 5.0, normalization)
    for method in ("single", "naive", "davies", "baluev"):
        for p in (0.9, 0.1, 1e-5, 1e-60):
            assert model.probability(model.level(p, method), method) == pytest.approx(p, rel=1e-9)
        assert model.level([1.0, 0.0], method).tolist() == [0, 1 if normalization == "standard" else np.inf]
    same = Noise.of(t + 2.46e6, dy, 5.0, normalization)  # Julian dates are rounded to 5e-10 d
    assert same.effective_span == pytest.approx(model.effective_span, rel=1e-9)
    with pytest.raises(ValueError, match="Unrecognized method"):
        model.probability(0.5, "guess")
    with pytest.raises(ValueError, match="normalization='scargle'"):
        single(0.5, 10, "scargle")


@pytest.mark.parametrize("normalization", SHAPES)
def test_formulas_of_several_terms_are_consistent(normalization):
    """At one frequency scipy's beta and gamma distributions are the judges."""
    from scipy import stats

    z, step = np.linspace(0.05, 0.9, 30), 1e-6
    share = {"standard": z, "model": z / (1 + z), "log": -np.expm1(-z)}
    for constant in (True, False):
        left = (40 - 6 - constant) / 2
        expected = stats.gamma(3).sf(z) if normalization == "psd" else stats.beta(3, left).sf(share[normalization])
        np.testing.assert_allclose(single(z, 40, normalization, 3, constant), expected, rtol=1e-10)
        low, high = (single(z + d, 40, normalization, 3, constant) for d in (-step, step))
        np.testing.assert_allclose(density(z, 40, normalization, 3, constant), (low - high) / (2 * step), rtol=1e-5)
    t, _, dy = noise(40)
    model = replace(Noise.of(t, dy, 5.0, normalization), nterms=3)
    for method in ("single", "naive", "davies", "baluev"):
        for p in (0.9, 0.1, 1e-5, 1e-60):
            assert model.probability(model.level(p, method), method) == pytest.approx(p, rel=1e-9)
        assert model.level([1.0, 0.0], method).tolist() == [0, 1 if normalization == "standard" else np.inf]
    assert np.isnan(model.probability(np.nan))
    assert replace(model, n=7).probability(0.5, "single") == (single(0.5, 7, "psd", 3) if normalization == "psd" else 1)


def test_several_terms_of_the_class():
    """Noise of 200 light curves passes a level as often as is stated, at one frequency and on a grid; see below."""
    rng, n = np.random.default_rng(11), 200
    t = np.sort(rng.uniform(0, 50, 60))
    y = rng.normal(size=(n, 60))
    ls = skysieve.LombScargle(t, y[0], nterms=2, device="cpu")
    f = ls.autofrequency(maximum_frequency=2.0)
    found = skysieve.lombscargle(t, y, frequency=f, nterms=2, device="cpu")
    slack = 3 * np.sqrt(0.2 * 0.8 / n)
    assert np.mean(found.best_power > ls.false_alarm_level(0.2, frequency=f)) == pytest.approx(0.17, abs=0.03 + slack)
    alone = found.power[:, len(f) // 2] > ls.false_alarm_level(0.2, "single", frequency=f)
    assert np.mean(alone) == pytest.approx(0.2, abs=slack)
    assert 1 - ls.distribution(ls.false_alarm_level(0.2, "single"), cumulative=True) == pytest.approx(0.2)
    peaks = ls.peaks(2, frequency=f)
    np.testing.assert_allclose(peaks.fap, ls.false_alarm_probability(peaks.power, frequency=f))
    assert peaks.reason == ""
    with pytest.raises(ValueError, match="nterms=0"):
        skysieve.LombScargle(t, y[0], nterms=0).distribution(0.5)


def test_a_part_of_the_band():
    t, y, dy = noise()
    ls = skysieve.LombScargle(t, y, dy, device="cpu")
    band = {"minimum_frequency": 3.0, "maximum_frequency": 4.0}
    tau = ls._noise((3.0, 4.0), "standard", False).tau(0.3)
    assert tau == pytest.approx(ls._noise((4.0, 4.0), "standard", True).tau(0.3) / 4)
    assert ls.false_alarm_probability(0.3, full_band=False, **band) < ls.false_alarm_probability(0.3, **band)


def test_white_noise_exceeds_as_often_as_stated():
    """1,000 light curves of noise at random times: Baluev's probability is an upper limit and near the truth.

    Of n trials a share p is known to sqrt(p (1 - p) / n); three of these either way, and a third of p for the
    approximation below (it counts up-crossings as independent).
    """
    rng = np.random.default_rng(8)
    n, points = 1000, 100
    t = np.sort(rng.uniform(0, 50, points))
    dy = rng.uniform(0.5, 2, points)
    y = dy * rng.normal(size=(n, points))
    f = skysieve.LombScargle(t, y[0], dy, device="cpu").autofrequency(samples_per_peak=8, maximum_frequency=4.0)
    found = skysieve.lombscargle(t, y, dy, frequency=f, return_power=False, device="cpu")
    model = Noise.of(t, dy, 4.0, "standard")
    for p in (0.5, 0.1, 0.02):
        share = np.mean(found.best_power > model.level(p))
        sigma = np.sqrt(p * (1 - p) / n)
        assert 0.67 * p - 3 * sigma < share < p + 3 * sigma, (p, share)
    davies = model.probability(found.best_power, "davies")
    assert np.all(davies >= model.probability(found.best_power) - 1e-12)


@pytest.mark.slow
def test_bootstrap_beside_baluev():
    """Random times, equal errors: the two agree to the bootstrap's own scatter and Baluev's excess (see above)."""
    t, y, _ = noise(150, 50.0)
    ls = skysieve.LombScargle(t, y, device="cpu")
    grid = {"maximum_frequency": 4.0, "samples_per_peak": 8}
    keywords = {"n_bootstraps": 2000, "random_seed": 4, "refined": True}
    for p in (0.3, 0.05):
        z = ls.false_alarm_level(p, **grid)
        drawn = ls.false_alarm_probability(z, method="bootstrap", method_kwds=keywords, **grid)
        sigma = np.sqrt(p * (1 - p) / 2000)
        assert 0.67 * p - 4 * sigma < drawn < p + 4 * sigma, (p, drawn)


def test_further_peaks_get_the_chance_of_a_maximum_that_high():
    t, y, dy = noise()
    ls = skysieve.LombScargle(t, y, dy, device="cpu")
    peaks = ls.peaks(5, maximum_frequency=4.0)
    assert np.all(np.diff(peaks.fap) >= 0)
    last = ls.autofrequency(maximum_frequency=4.0)[-1]
    for k in range(5):
        assert peaks.fap[k] == pytest.approx(Noise.of(t, dy, last, "standard").probability(peaks.power[k]))


def test_peaks_of_few_points_are_not_certain(tmp_path):
    """Powers near 1, but never above: five points of noise are no detection."""
    from astropy.table import Table
    from typer.testing import CliRunner

    from skysieve.cli import app

    rng = np.random.default_rng(3)
    t, y = np.sort(rng.uniform(0, 50, 5)), rng.normal(size=5)
    peaks = skysieve.LombScargle(t, y, 0.1, device="cpu").peaks(3, maximum_frequency=2)
    assert (np.asarray(peaks.power) <= 1).all()
    assert peaks.fap.min() > 0.5
    curve = skysieve.LombScargle(t, y, 0.1, device="cpu")
    assert len(curve.prewhiten(1, maximum_frequency=2, fap_limit=0.01).frequency) == 0
    np.savetxt(
        tmp_path / "a.csv", np.stack([t, y, np.full(5, 0.1)], axis=1), "%.6f", ",", header="t,mag,err", comments=""
    )
    asked = ["period", str(tmp_path / "a.csv"), "--fmax", "2", "-o", str(tmp_path / "b.csv"), "--device", "cpu"]
    assert CliRunner().invoke(app, asked).exit_code == 0
    assert Table.read(tmp_path / "b.csv")["fap"][0] > 0.5


@pytest.mark.slow
def test_chances_of_several_terms_and_bands():
    """With one term the formula is Baluev's of 2008, and of 1,000 noise curves a share p has a probability under p."""
    t, p = np.sort(np.random.default_rng(5).uniform(0, 100, 60)), np.array([1e-3, 0.1, 0.4, 0.9])
    for normalization in ("standard", "psd"):
        noise, z = Noise.of(t, None, 3.0, normalization), p if normalization == "standard" else 12 * p
        crossings = noise._of_series(z, single(z, 60, normalization))[1]
        np.testing.assert_allclose(crossings * noise.bandwidth * noise.effective_span, noise.tau(z), rtol=1e-10)
    band = np.arange(60) % 4
    y = np.random.default_rng(6).normal(size=(1000, 60))
    noise = {name: replace(Noise.of(t, None, 3.0, name), n=60 - 3) for name in ("standard", "model", "log")}
    for terms in (2, 3):
        power = skysieve.lombscargle_multiband(
            t, y, band, fmin=0.02, fmax=3.0, samples_per_peak=10, nterms=terms, return_power=False, device="cpu"
        ).best_power
        chance = replace(noise["standard"], nterms=terms).probability(power)
        for share in (0.02, 0.1, 0.3):
            slack = 3 * np.sqrt(share * (1 - share) / 1000)
            assert 0.7 * share - slack < np.mean(chance < share) < share + slack
        for other, height in (("model", power / (1 - power)), ("log", -np.log1p(-power))):
            np.testing.assert_allclose(replace(noise[other], nterms=terms).probability(height), chance, rtol=1e-9)
    power = (
        skysieve.lombscargle_multiband(  # the default: the second term is held small, 1 / (1 + 6 0.02) of it is left
            t, y, band, fmin=0.02, fmax=3.0, samples_per_peak=10, return_power=False, device="cpu"
        ).best_power
    )
    two = replace(noise["standard"], nterms=2)
    chance = replace(two, kept=1 / 1.12).probability(power)
    for share in (0.02, 0.1, 0.3):
        slack = 3 * np.sqrt(share * (1 - share) / 1000)
        assert 0.6 * share - slack < np.mean(chance < share) < share + slack
    free, held = (replace(two, kept=kept).probability(power) for kept in (1.0, 1 - 1e-5))
    np.testing.assert_allclose(held, free, rtol=1e-3)
    for kept in (1.0, 1 / 1.12):  # no degree of freedom is left
        assert replace(two, n=5, kept=kept).probability(0.5) == 1
