"""Values at the edge of float64: only the bad object is left out, and a perfect fit stays the best period."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from tests.marks import slow

import skysieve
from skysieve.periodogram import Status

GRID = {"fmin": 0.1, "fmax": 2.0, "nf": 500}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def curve(n=50):
    rng = np.random.default_rng(0)
    t = np.sort(rng.uniform(0, 20, n))
    return t, np.sin(t) + 0.1 * rng.standard_normal(n), np.full(n, 0.1)


@pytest.mark.few
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float64", slow("float32")])
@pytest.mark.parametrize("normalization", ["model", "log"])
@pytest.mark.parametrize("seed", [1, 6, 9])
def test_a_perfect_fit_is_found_and_finite(seed, normalization, dtype, device):
    """Rounding takes the standard power to 1, where these forms have their pole."""
    t = np.sort(np.random.default_rng(seed).uniform(0, 20, 12))
    found = skysieve.lombscargle(
        t, np.sin(np.pi * t + seed), fmin=0.1, fmax=1.1, nf=1001, normalization=normalization, method="direct",
        dtype=dtype, device=device,
    )  # fmt: skip
    assert np.all(np.isfinite(found.power))
    assert found.power.argmax() == 400
    assert found.period == pytest.approx(2.0, abs=2.0 * found.period**2 * 1e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["auto", "nufft", "direct", "finufft"])
def test_extreme_values_affect_only_their_object(method, device):
    t, y, dy = curve()
    tiny, huge = dy.copy(), dy.copy()
    tiny[3], huge[3] = 1e-170, 1e200
    wide = t.copy()
    wide[[0, -1]] = -1.7e308, 1.7e308
    lonely = np.ones(50)
    lonely[3] = 2
    objects = [
        (t, y, dy, Status.OK),
        (t, y, tiny, Status.SINGULAR),  # all weight on one point
        (t, lonely, huge, Status.CONSTANT_Y),  # it differs only where there is no weight
        (wide, y, dy, Status.BAD_GRID),
        (np.repeat([0.0, 1.0], 25), y, dy, Status.SINGULAR),
        (np.arange(50) * 5e-324, y, dy, Status.EQUAL_TIMES),
        (t, 1e307 * y, dy, Status.OK),
        (t, 1e-300 * y, dy, Status.OK),
    ]
    found = skysieve.lombscargle(*([o[k] for o in objects] for k in range(3)), method=method, device=device, **GRID)
    assert list(found.status) == [o[3] for o in objects]
    good = np.array([o[3] == Status.OK for o in objects])
    alone = skysieve.lombscargle(t, y, dy, method=method, device=device, **GRID)
    np.testing.assert_allclose(found.period[good], alone.period, rtol=1e-9)
    assert np.all(np.isnan(found.period[~good]))
    assert np.all(np.isnan(np.asarray(found.power)[~good]))


@pytest.mark.parametrize("device", DEVICES)
def test_a_span_of_a_few_units_in_the_last_place(device):
    """The origin may lie one unit before the first time; the cells of the comb have room for that."""
    t, y = 2.0**53 + np.array([-1.0, 0, 2, 4, 6]), np.array([1.0, 2, 0, 1, 3])
    exact, comb = (
        skysieve.lombscargle(t, y, fmin=0.01, fmax=0.2, nf=100, method=m, device=device).power
        for m in ("direct", "nufft")
    )
    np.testing.assert_allclose(comb, exact, atol=2e-9)


@pytest.mark.parametrize("device", DEVICES)
def test_two_distinct_times_alone_are_an_error(device):
    with pytest.raises(ValueError, match="too few distinct"):
        skysieve.lombscargle(np.repeat([0.0, 1.0], 25), curve()[1], device=device, **GRID)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["direct", "nufft"])
def test_a_mean_of_1e9_deviations_loses_no_digits(method, device):
    """Multiples of 2^-20 plus an offset of 2^30 are exact; a mean rounded to 1e-7 would change powers by 2e-8."""
    t, y, dy = curve(300)
    y, band = np.round(y * 2**20) / 2**20, np.arange(300) % 3
    options = {"method": method, "device": device, **GRID}
    for errors in (dy, np.linspace(0.05, 0.2, 300)):
        near, far = (skysieve.lombscargle(t, values, errors, **options).power for values in (y, y + 2.0**30))
        np.testing.assert_allclose(far, near, rtol=0, atol=3e-11)
        near, far = (
            skysieve.lombscargle_multiband(t, values, band, errors, **options).power for values in (y, y + 2.0**30)
        )
        np.testing.assert_allclose(far, near, rtol=0, atol=3e-11)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("normalization", ["psd", "scargle"])
@pytest.mark.parametrize(("dtype", "fits", "lost"), [("float32", 1e-12, 1e-27), ("float64", 1e-27, 1e-160)])
def test_a_warning_says_that_powers_do_not_fit_into_their_numbers(normalization, dtype, fits, lost, device):
    t, y, _ = curve()
    options = {"normalization": normalization, "dtype": dtype, "device": device, **GRID}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        power = skysieve.lombscargle(t, y * fits, **options).power
    expected = skysieve.lombscargle(t, y, **options).power
    np.testing.assert_allclose(power / fits**2, expected, rtol=1e-4, atol=1e-6 * expected.max())
    text = f"normalization='{normalization}': the power is too small or too large for {dtype}; use another unit of y"
    with pytest.warns(UserWarning, match=text):
        skysieve.lombscargle(t, y * lost, **options)
    text = f"the power of 1 of 2 light curves is too small or too large for {dtype}"
    with pytest.warns(UserWarning, match=text):
        skysieve.lombscargle([t, t], [y, y * lost], **options)


@pytest.mark.filterwarnings("ignore:normalization='psd'")
@pytest.mark.parametrize("exponent", [-170, -158, -120, 120, 158, 170])
def test_chi_square_is_right_or_missing_if_values_and_errors_share_a_scale(exponent):
    """Squares of 1e-158 and 1e158 leave the range of double precision, or lose digits."""
    t, y, dy = curve()
    scale = 10.0**exponent
    options = {"normalization": "psd", "n_peaks": 2, **GRID}
    near, far = (skysieve.lombscargle(t, y * s, dy * s, **options, device="cpu") for s in (1.0, scale))
    np.testing.assert_allclose(far.period, near.period, rtol=1e-12)
    pairs = [
        (far.power, near.power),
        (far.peaks.power, near.peaks.power),
        (far.peaks.period_error, near.peaks.period_error),
    ]
    for found, expected in pairs:
        if abs(exponent) == 120:
            np.testing.assert_allclose(found, expected, rtol=1e-9)
        else:
            assert np.isnan(found).all()


def test_few_frequencies_of_a_mean_of_1e9_deviations_are_those_of_many():
    """Values of a mean of 1e9 deviations are centred as accurately at few frequencies as in a search of many."""
    t, y, dy = curve(300)
    y, few = np.round(y * 2**20) / 2**20, np.linspace(0.1, 2.0, 8)
    options = {"fit_mean": False, "device": "cpu"}
    near, far = (skysieve.LombScargle(t, values, dy, **options).power(few) for values in (y, y + 2.0**30))
    np.testing.assert_allclose(far, near, rtol=0, atol=3e-11)
