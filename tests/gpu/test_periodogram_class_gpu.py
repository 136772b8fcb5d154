"""`skysieve.LombScargle` on a GPU gives what it gives on the CPU; nothing here needs astropy."""

from __future__ import annotations

import numpy as np
import pytest

import skysieve
from skysieve.periodogram.analysis.bootstrap import power_at

pytestmark = pytest.mark.gpu


def curve(n=300, seed=0):
    rng = np.random.default_rng(seed)
    t = 2_459_000.5 + np.sort(rng.integers(0, 90, n) + 0.3 * rng.random(n))
    dy = rng.uniform(0.2, 0.6, n)
    return t, 14 + 0.5 * np.sin(2 * np.pi * t / 0.83) + dy * rng.normal(size=n), dy


def both(*data, **options):
    return (skysieve.LombScargle(*data, device=device, **options) for device in ("cuda", "cpu"))


@pytest.mark.parametrize("normalization", ["standard", "model", "log", "psd", "scargle"])
@pytest.mark.parametrize("fit_mean", [True, False])
def test_powers(normalization, fit_mean):
    """1e-9 of the standard power; the other forms as their slopes carry it on."""
    t, y, dy = curve()
    gpu, cpu = both(t, y, dy, fit_mean=fit_mean, normalization=normalization)
    frequency, power = gpu.autopower(maximum_frequency=4.0)
    expected = cpu.power(frequency)
    assert isinstance(power, np.ndarray)
    scale = 1.0 if normalization == "standard" else max(1.0, 20 * float(expected.max()))
    np.testing.assert_allclose(power, expected, atol=2e-9 * scale)
    odd = np.array([[0.3, 2.2], [1.7, 0.9]])  # irregular: direct sums
    np.testing.assert_allclose(gpu.power(odd), cpu.power(odd), atol=1e-10 * scale)
    with_zero = gpu.power([0.0, -0.3])
    np.testing.assert_allclose(with_zero[1], cpu.power(0.3), atol=1e-10 * scale)


def test_float32():
    t, y, dy = curve()
    gpu, cpu = both(t, y, dy)
    single = skysieve.LombScargle(t, y, dy, device="cuda", dtype="float32")
    frequency, power = single.autopower(maximum_frequency=4.0)
    assert power.dtype == np.float32
    np.testing.assert_allclose(power, cpu.power(frequency), atol=2e-6)
    assert np.argmax(power) == np.argmax(gpu.power(frequency))


def test_peaks():
    t, y, dy = curve()
    gpu, cpu = (ls.peaks(5, maximum_frequency=4.0) for ls in both(t, y, dy))
    np.testing.assert_array_equal(gpu.index, cpu.index)
    np.testing.assert_allclose(gpu.frequency, cpu.frequency, rtol=1e-9)
    np.testing.assert_allclose(gpu.fap, cpu.fap, rtol=1e-6)
    np.testing.assert_array_equal(gpu.alias_text, cpu.alias_text)
    assert any("1/d" in text for text in gpu.alias_text)


@pytest.mark.parametrize("normalization", ["standard", "scargle"])
def test_bootstrap(normalization):
    """Same seed, same draws; the levels are computed anew in float64, so they are the same where the peaks are."""
    t, y, dy = curve(150)
    options = {"method": "bootstrap", "maximum_frequency": 4.0}
    keywords = {"n_bootstraps": 300, "random_seed": 5}
    p = np.array([0.9, 0.5, 0.1, 0.01])
    gpu, cpu = both(t, y, dy, normalization=normalization)
    level = gpu.false_alarm_level(p, method_kwds=keywords, **options)
    np.testing.assert_allclose(level, cpu.false_alarm_level(p, method_kwds=keywords, **options), rtol=1e-9)
    refined = keywords | {"refined": True}
    expected = cpu.false_alarm_level(p, method_kwds=refined, **options)
    np.testing.assert_allclose(gpu.false_alarm_level(p, method_kwds=refined, **options), expected, rtol=1e-6)
    probability = gpu.false_alarm_probability(level, method_kwds=keywords, **options)
    assert np.array_equal(probability, cpu.false_alarm_probability(level, method_kwds=keywords, **options))


def test_ten_thousand_resamples_are_one_batch(monkeypatch):
    t, y, dy = curve(60)
    whole, sizes = skysieve.LombScarglePlan._search, []

    def counted(plan, curves, *args, **options):
        sizes.append(curves.source.n_objects)
        return whole(plan, curves, *args, **options)

    monkeypatch.setattr(skysieve.LombScarglePlan, "_search", counted)
    ls = skysieve.LombScargle(t, y, dy, device="cuda")
    keywords = {"n_bootstraps": 10_000, "random_seed": 1}
    f = np.linspace(0.5, 2, 600)
    level = ls.false_alarm_level([0.5, 0.01], method="bootstrap", frequency=f, method_kwds=keywords)
    assert sizes == [10_000]
    assert 0.05 < level[0] < level[1] < 1


def test_prewhitening():
    t, y, dy = curve()
    y = y + 0.3 * np.sin(2 * np.pi * t / 0.29)
    gpu, cpu = (ls.prewhiten(2, maximum_frequency=5.0) for ls in both(t, y, dy))
    np.testing.assert_allclose(gpu.frequency, cpu.frequency, rtol=1e-8)
    np.testing.assert_allclose(gpu.amplitude, cpu.amplitude, rtol=1e-5)
    assert gpu.residual.device == "cuda"


def test_power_at_is_the_power_of_the_grid():
    t, y, dy = curve(80)
    rows = np.random.default_rng(2).integers(0, 80, (20, 80))
    found = skysieve.lombscargle(
        t, y[rows], dy[rows], fmin=0.2, fmax=3, nf=2000, device="cuda", method="direct", n_peaks=1
    )
    best = np.argmax(found.power, axis=1)
    exact = power_at(t, y[rows], dy[rows], np.asarray(found.frequency)[best])
    np.testing.assert_allclose(exact, found.power[np.arange(20), best], atol=1e-10)
