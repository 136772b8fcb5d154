"""Peaks are maxima of the exact periodogram: against brute force and astropy, with their standard errors."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from astropy import units as u
from astropy.table import Table
from astropy.timeseries import LombScargle
from tests.truth.peaks import Exact

import skysieve
from skysieve.periodogram.numerics.normalization import NORMALIZATIONS as REGISTRY
from skysieve.periodogram.numerics.normalization import normalize
from skysieve.periodogram.numerics.peaks import frequency_error

NORMALIZATIONS = tuple(REGISTRY)
FMIN, FMAX = 0.1, 2.0

pytestmark = pytest.mark.filterwarnings("ignore:.*1/T.*:UserWarning", "ignore:.*too coarse.*:UserWarning")


def standard(t, y, dy, frequency):
    """Standard power with a floating mean by centred sums in float64."""
    w = np.ones_like(t) if dy is None else dy**-2.0
    w = w / w.sum()
    value = y - w @ y
    power = np.empty(np.size(frequency))
    for first in range(0, power.size, 2048):
        turns = np.multiply.outer(np.atleast_1d(frequency)[first : first + 2048], t)
        angle = 2 * np.pi * (turns - np.rint(turns))
        c, s = np.cos(angle), np.sin(angle)
        c, s = c - (c @ w)[:, None], s - (s @ w)[:, None]
        cc, ss, cs, yc, ys = (c * c) @ w, (s * s) @ w, (c * s) @ w, c @ (w * value), s @ (w * value)
        power[first : first + 2048] = (yc * (ss * yc - cs * ys) + ys * (cc * ys - cs * yc)) / (cc * ss - cs**2)
    return power / (w @ value**2)


def brute_force(power, low, high, span):
    """Frequency and height of the highest maximum: 12 powers in 1/T, then ever finer beside the highest six."""
    grid = np.linspace(low, high, int((high - low) * span * 12) + 2)
    p = power(grid)
    maxima = np.flatnonzero((p >= np.r_[-1, p[:-1]]) & (p >= np.r_[p[1:], -1]))
    best = (-np.inf, np.nan)
    for j in maxima[np.argsort(-p[maxima])][:6]:
        a, b = grid[max(j - 1, 0)], grid[min(j + 1, len(grid) - 1)]
        for _ in range(6):
            trial = np.linspace(a, b, 31)
            q = power(trial)
            k = int(q.argmax())
            a, b = trial[max(k - 1, 0)], trial[min(k + 1, 30)]
        best = max(best, (q[k], trial[k]))
    return best[1], best[0]


def normalised(p, normalization, t, y, dy):
    """The normalisations by the textbook's formulas."""
    w = np.ones_like(t) if dy is None else dy**-2.0
    reference = w @ (y - w @ y / w.sum()) ** 2
    return {
        "standard": p,
        "model": p / (1 - p),
        "log": -np.log(1 - p),
        "psd": 0.5 * reference * p,
        "scargle": 0.5 * len(t) * reference * p / w.sum(),
    }[normalization]


def draw(i, seed):
    """A sinusoid in noise: S/N 1 to 30, 8 to 1,000 points, random or nightly times, with and without errors."""
    rng = np.random.default_rng([seed, i])
    n, snr = int(np.exp(rng.uniform(np.log(8), np.log(1000)))), np.exp(rng.uniform(0, np.log(30)))
    span = rng.uniform(20, 120)
    t = np.sort(rng.uniform(0, span, n) if i % 2 else np.floor(rng.uniform(0, span, n)) + 0.3 * rng.random(n))
    t += 55_000.0 * (i % 4 > 1)
    dy = None if i % 3 else rng.uniform(0.5, 2, n)
    f = rng.uniform(0.15, 1.95)
    noise = rng.standard_normal(n) * (1 if dy is None else dy)
    return f, t, 15 + snr * np.sin(2 * np.pi * (f * t + rng.random())) + noise, dy


def compare(draws, seed, samples_per_peak):
    """Search made light curves: errors of the periods, ours and brute force's, and how many differ."""
    ours, theirs, different = [], [], 0
    for i in range(draws):
        f, t, y, dy = draw(i, seed)
        normalization = NORMALIZATIONS[i % 5]
        found = skysieve.lombscargle(
            t, y, dy, fmin=FMIN, fmax=FMAX, samples_per_peak=samples_per_peak, normalization=normalization,
            return_power=False, device="cpu",
        )  # fmt: skip
        span, grid = np.ptp(t), found.frequency
        best, power = brute_force(partial(standard, t - t[0], y, dy), grid[0], grid[-1], span)
        ours.append(found.period - 1 / f)
        theirs.append(1 / best - 1 / f)
        if abs(found.best_frequency - best) > 1e-6 / span:
            different += 1
            power = standard(t - t[0], y, dy, found.best_frequency)[0]
        expected = normalised(power, normalization, t, y, dy)
        assert found.best_power == pytest.approx(expected, rel=1e-9), (i, len(t), normalization)
        assert normalization != "standard" or found.best_power <= 1
    near = np.abs(theirs) < 0.5 / 20
    return np.array(ours), np.array(theirs), near, different


@pytest.mark.slow
@pytest.mark.few
@pytest.mark.parametrize("samples_per_peak", [2, 5])
def test_periods_and_powers_of_draws(samples_per_peak):
    """They are those of brute force; with 2 samples a peak a maximum of few points may lie beside a higher sample."""
    ours, theirs, _, different = compare(60, 5, samples_per_peak)
    assert different <= 1
    assert np.median(np.abs(ours)) <= 1.01 * np.median(np.abs(theirs))


@pytest.mark.slow
@pytest.mark.parametrize("samples_per_peak", [2, 5])
def test_periods_and_powers_of_many_draws(samples_per_peak):
    ours, theirs, near, different = compare(1000, 6, samples_per_peak)
    assert different <= 5
    assert np.sqrt(np.mean(ours**2)) <= 1.01 * np.sqrt(np.mean(theirs**2))
    # where brute force is near the truth, so are we: an outlier would show at once
    assert np.sqrt(np.mean(ours[near] ** 2)) <= 1.01 * np.sqrt(np.mean(theirs[near] ** 2))


@pytest.mark.parametrize("normalization", NORMALIZATIONS[:4])
@pytest.mark.parametrize("options", [{}, {"fit_mean": False}, {"fit_mean": False, "center_data": False}, {"nterms": 3}])
def test_astropy_judges_the_powers(normalization, options):
    _, t, y, dy = draw(9, 2)
    y = y - 14 if options.get("center_data", True) else y - 15
    found = skysieve.lombscargle(
        t, y, dy, fmin=FMIN, fmax=FMAX, n_peaks=4, normalization=normalization, device="cpu", **options
    )
    theirs = LombScargle(t, y, dy, normalization=normalization, **options)
    method = "chi2" if "nterms" in options else "cython"
    f = found.peaks.frequency
    np.testing.assert_allclose(found.peaks.power, theirs.power(f, method=method), rtol=1e-9)
    beside = np.concatenate([f - 1e-4 / np.ptp(t), f + 1e-4 / np.ptp(t)])
    assert np.all(theirs.power(beside, method=method).reshape(2, 4) <= found.peaks.power * (1 + 1e-13))


@pytest.mark.parametrize("has_dy", [True, False])
@pytest.mark.parametrize("nterms", [1, 2])
def test_errors_are_the_scatter_of_the_periods(has_dy, nterms):
    """600 draws: the rms of (found - true) / error is 1 within 3 of its standard deviations (1 / sqrt(2 x 600))."""
    rng = np.random.default_rng(8)
    t = np.sort(rng.uniform(0, 60, 80))
    dy = rng.uniform(0.5, 1.5, 80)
    phase = rng.random((600, 1))
    y = 2.5 * np.sin(2 * np.pi * (0.7 * t + phase)) + 1.5 * (nterms > 1) * np.sin(4 * np.pi * (0.7 * t + phase))
    y = y + (dy if has_dy else 1.0) * rng.standard_normal((600, 80))
    found = skysieve.lombscargle(
        t, y, np.broadcast_to(dy, y.shape) if has_dy else None, fmin=0.5, fmax=0.9, nterms=nterms, return_power=False,
        normalization="model", device="cpu",
    )  # fmt: skip
    score = (found.best_frequency - 0.7) / found.peaks.frequency_error[:, 0]
    assert np.sqrt(np.mean(score**2)) == pytest.approx(1, abs=3 / np.sqrt(1200))
    np.testing.assert_allclose(found.period_error, found.peaks.frequency_error[:, 0] / found.best_frequency**2)


def test_error_of_one_sinusoid_is_montgomerys():
    """sqrt(6 / N) s / (pi T A), to the 10% that 400 random times differ from evenly spaced ones."""
    rng = np.random.default_rng(4)
    t = np.sort(rng.uniform(0, 50, 400))
    y = 3 * np.sin(2 * np.pi * 1.3 * t) + 0.2 * rng.standard_normal(400)
    for dy in (None, 0.2):
        found = skysieve.lombscargle(t, y, dy, fmin=1, fmax=2, device="cpu")
        expected = np.sqrt(6 / 400) * 0.2 / (np.pi * 50 * 3)
        assert found.peaks.frequency_error[0] == pytest.approx(expected, rel=0.1)


def test_errors_of_given_dy_that_cannot_be():
    """If dy is a tenth of the scatter, the period's error follows from the scatter; if dy is ten times it, from dy."""
    rng = np.random.default_rng(5)
    t = np.sort(rng.uniform(0, 50, 100))
    y = 2 * np.sin(2 * np.pi * 1.3 * t) + rng.standard_normal(100)
    error = {
        s: skysieve.lombscargle(t, y, s, fmin=1, fmax=2, device="cpu").period_error for s in (None, 0.1, 1.0, 10.0)
    }
    assert error[0.1] == pytest.approx(error[None], rel=1e-9)
    assert error[1.0] == pytest.approx(error[None], rel=0.25)
    assert error[10.0] == pytest.approx(10 * error[1.0], rel=1e-9)


def test_no_error_without_a_degree_of_freedom():
    rng = np.random.default_rng(6)
    t, y = rng.uniform(0, 30, 4), rng.standard_normal(4)
    found = skysieve.lombscargle(t, y, fmin=0.1, fmax=1, n_peaks=2, device="cpu")
    assert np.all(np.isnan(found.peaks.period_error))
    assert np.all(found.peaks.power <= 1)
    assert np.isnan(frequency_error(0.5, np.nan, 1.0, 10.0, 10, 3, True))


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("seed", range(4))
def test_noise_of_five_points_is_never_above_one(normalization, seed):
    rng = np.random.default_rng(seed)
    t, y = [np.sort(rng.uniform(0, 40, 5)) for _ in range(50)], [rng.standard_normal(5) for _ in range(50)]
    found = skysieve.lombscargle(t, y, fmin=0.05, fmax=3, n_peaks=3, normalization=normalization, device="cpu")
    power = found.peaks.power
    assert np.all(np.isfinite(power))
    top = normalize(1.0, normalization, np.var(y, axis=1)[:, None], np.full((50, 1), 5.0), 5)
    assert np.all(power <= top * (1 + 1e-15))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("samples_per_peak", [1.1, 2, 5, 40])
def test_no_peak_twice_and_none_outside(dtype, samples_per_peak):
    rng = np.random.default_rng(7)
    t, y = np.sort(rng.uniform(0, 40, (30, 25))), rng.standard_normal((30, 25))
    t = list(t)
    found = skysieve.lombscargle(
        t, list(y), fmin=0.2, fmax=1.5, samples_per_peak=samples_per_peak, n_peaks=20, dtype=dtype, device="cpu",
        return_power=False,
    )  # fmt: skip
    for i in range(30):
        f = np.sort(found.peaks.frequency[i][found.peaks.index[i] >= 0])
        grid = found.frequency[i]
        assert np.all(np.diff(f) > 0.05 / np.ptp(t[i]))
        assert f[0] >= grid[0]
        assert f[-1] <= grid[-1]
        assert np.all(np.diff(found.peaks.power[i][found.peaks.index[i] >= 0]) <= 0)
        expected = standard(t[i], y[i], None, found.peaks.frequency[i][found.peaks.index[i] >= 0])
        np.testing.assert_allclose(found.peaks.power[i][found.peaks.index[i] >= 0], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("method", ["direct", "nufft", "finufft"])
def test_one_long_series_on_several_threads(method):
    """Cut into stretches; Julian dates; the same bits on any number of threads."""
    rng = np.random.default_rng(12)
    t = 2_455_000.5 + np.sort(rng.uniform(0, 300, 30_000))
    y = 0.05 * np.sin(2 * np.pi * 3.3 * t) + rng.standard_normal(30_000)
    found = [
        skysieve.lombscargle(t, y, fmin=3, fmax=4, nf=6000, n_peaks=2, method=method, threads=k, device="cpu").peaks
        for k in (1, 2)
    ]
    for name in ("index", "frequency", "power", "period_error"):
        np.testing.assert_array_equal(getattr(found[0], name), getattr(found[1], name))
    origin = t[0]
    expected = standard(t - origin, y, None, found[0].frequency)
    np.testing.assert_allclose(found[0].power, expected, rtol=0, atol=1e-12)
    assert abs(found[0].frequency[0] - 3.3) < 5 * found[0].frequency_error[0]


def test_list_of_frequencies():
    """A peak moves no farther than to its neighbours in the list, and than 1/T."""
    _, t, y, dy = draw(21, 3)
    rng = np.random.default_rng(2)
    frequency = rng.permutation(np.concatenate([rng.uniform(0.1, 2, 200), [5.0, 9.0]]))
    found = skysieve.lombscargle(t, y, dy, frequency=frequency, n_peaks=5, device="cpu").peaks
    rising = np.sort(frequency)
    for k in range(5):
        j = int(np.searchsorted(rising, frequency[found.index[k]]))
        assert rising[max(j - 1, 0)] - 0.1 / np.ptp(t) <= found.frequency[k]
        assert found.frequency[k] <= rising[min(j + 1, 201)] + 0.1 / np.ptp(t)
        assert abs(found.frequency[k] - rising[j]) <= 1 / np.ptp(t) * (1 + 1e-12)
    np.testing.assert_allclose(found.power, standard(t - t[0], y, dy, found.frequency), rtol=0, atol=1e-11)


def test_units_tables_and_files(tmp_path):
    _, t, y, _ = draw(30, 4)
    found = skysieve.lombscargle(t * u.day, y * u.mag, fmin=0.1 / u.day, fmax=2 / u.day, n_peaks=2, device="cpu")
    assert found.peaks.period_error.unit == u.day
    assert found.peaks.frequency_error.unit == 1 / u.day
    for name in ("a.ecsv", "a.fits"):
        found.save(tmp_path / name)
        table = Table.read(tmp_path / name)
        np.testing.assert_allclose(table["period_error"], found.peaks.period_error.value)
        assert table["frequency_error"].unit == 1 / u.day
    found.save(tmp_path / "a.npz")
    again = skysieve.periodogram.LombScargleResult.load(tmp_path / "a.npz")
    np.testing.assert_array_equal(again.peaks.period_error, found.peaks.period_error)
    assert again.period_error == found.peaks.period_error[0]


def test_class_and_command_line(tmp_path):
    from typer.testing import CliRunner

    from skysieve.cli import app

    _, t, y, dy = draw(33, 4)
    peaks = skysieve.LombScargle(t, y, dy, device="cpu").peaks(2, minimum_frequency=0.1, maximum_frequency=2)
    found = skysieve.lombscargle(t, y, dy, fmin=0.1, fmax=2, n_peaks=2, device="cpu").peaks
    np.testing.assert_allclose(peaks.frequency, found.frequency, rtol=1e-10)
    np.testing.assert_allclose(peaks.period_error, found.period_error, rtol=1e-6)
    assert "period_error" in peaks.to_table().colnames
    rows = np.stack([t, y] if dy is None else [t, y, dy], axis=1)
    np.savetxt(tmp_path / "a.csv", rows, "%.17g", ",", header="t,mag" if dy is None else "t,mag,err", comments="")
    asked = ["period", str(tmp_path / "a.csv"), "--fmin", "0.1", "--fmax", "2", "--device", "cpu"]
    assert CliRunner().invoke(app, [*asked, "-o", str(tmp_path / "b.csv")]).exit_code == 0
    table = Table.read(tmp_path / "b.csv")
    assert table["period"][0] == pytest.approx(found.period[0], rel=1e-9)
    assert table["period_error"][0] == pytest.approx(found.period_error[0], rel=1e-6)
    assert table["frequency_error"][0] == pytest.approx(found.frequency_error[0], rel=1e-6)
    assert CliRunner().invoke(app, [*asked, "--hours", "-o", str(tmp_path / "c.ecsv")]).exit_code == 0
    hours = Table.read(tmp_path / "c.ecsv")
    assert hours["period_error_h"][0] == pytest.approx(24 * found.period_error[0], rel=1e-6)
    assert hours["period_error_h"].unit == u.hour


@pytest.mark.parametrize("seed", [1, 33, 35, 58])
def test_a_peak_is_exact_where_the_power_changes_fast(seed):
    """One night and one point on each side: peaks are narrower than 1e-5 of 1/T, and their columns nearly dependent."""
    rng = np.random.default_rng(seed)
    t = np.sort(np.r_[0.0, 1000.0, 500 + 1e-3 * rng.random(18)])
    y = rng.normal(size=20)
    found = skysieve.lombscargle(t, y, fmin=1e-3, fmax=0.05, nf=200, device="cpu", n_peaks=1)
    assert float(found.best_power) == pytest.approx(Exact(t, y)(1 / float(found.period)), abs=1e-6)


def test_the_highest_maximum_of_few_points_may_belong_to_a_low_sample():
    """Its sample reaches 0.76, and the one beside the second highest maximum 0.95."""
    t = np.array([0.0, 15.55203567, 17.900700058, 37.577346101, 46.174635283, 53.049537264, 61.655228567])
    y = np.array([14.821169072, 15.268821248, 15.034750984, 14.809840864, 14.729001752, 14.815461035, 14.897064867])
    dy = np.array([0.113091506, 0.196479034, 0.185485642, 0.118593322, 0.053493075, 0.187226754, 0.175825557])
    found = skysieve.lombscargle(t, y, dy, fmin=0.1, fmax=2, nf=300, device="cpu")
    f, power = Exact(t, y, dy).highest(0.1, 2, 20_001)
    assert found.best_frequency == pytest.approx(f, abs=1e-8)
    assert found.best_power == pytest.approx(power, abs=1e-9)
