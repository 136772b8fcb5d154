"""As many points as parameters, and constant values without a subtracted mean: answers are those of astropy."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from astropy.timeseries import LombScargle as Astropy

import skysieve
from skysieve.periodogram.contract import Status

F = np.linspace(0.13, 2.9, 301)


def few(n: int, seed: int):
    rng = np.random.default_rng(seed)
    return np.sort(rng.uniform(0, 9, n)), 3 + rng.normal(size=n), rng.uniform(0.1, 0.4, n)


def tolerance(t: np.ndarray, dy: np.ndarray | None, fit_mean: bool, error: float) -> np.ndarray:
    """The error of the sums (1e-15 for direct ones, 1e-10 for transforms) over the determinant of the equations."""
    w = np.ones_like(t) if dy is None else dy**-2.0
    w = w / w.sum()
    x = 2 * np.pi * F[:, None] * t
    design = np.stack([np.cos(x), np.sin(x), *([np.ones_like(x)] if fit_mean else [])], -1)
    determinant = np.linalg.det(np.einsum("fni,n,fnj->fij", design, w, design))
    return error / np.maximum(determinant, 1e-300)


@pytest.mark.parametrize("method", ["auto", "direct", "nufft"])
@pytest.mark.parametrize("with_dy", [False, True])
@pytest.mark.parametrize(
    ("n", "fit_mean", "center_data"),
    [(3, True, True), (3, True, False), (3, False, True), (3, False, False), (2, False, True), (2, False, False)],
)
def test_a_fit_of_few_points_is_astropys(n: int, fit_mean: bool, center_data: bool, with_dy: bool, method: str) -> None:
    for seed in range(4):
        t, y, dy = few(n, seed)
        error = dy if with_dy else None
        options = {"fit_mean": fit_mean, "center_data": center_data}
        theirs = Astropy(t, y, error, **options).power(F, method="slow")
        bound = tolerance(t, error, fit_mean, 1e-8 if method == "nufft" else 1e-13)
        mine = skysieve.LombScargle(t, y, error, device="cpu", **options).power(F, method=method)
        good = np.isfinite(mine) & (bound < 1e-2)
        assert good.mean() > 0.8
        assert (np.abs(mine - theirs)[good] <= bound[good]).all()
        found = skysieve.lombscargle(t, y, error, frequency=F, device="cpu", **options)
        assert (found.status, found.n_used) == (Status.OK, n)
        if method == "auto":
            np.testing.assert_array_equal(found.power, mine)
            fit = skysieve.LombScargle(t, y, error, device="cpu", **options)
            frequency, power = fit.autopower()
            assert len(frequency) == len(Astropy(t, y, error, **options).autofrequency())
            assert np.isfinite(power).any()


@pytest.mark.parametrize("normalization", ["standard", "psd"])
def test_one_point_and_two_with_a_mean_are_refused(normalization: str) -> None:
    """astropy gives NaN for one point, and rounding errors (1, 2 or infinity) for two with a mean."""
    for n in (1, 2):
        t, y, dy = few(n, n)
        options = {"device": "cpu", "normalization": normalization}
        fit = skysieve.LombScargle(t, y, dy, **options)
        for call in (fit.power, partial(fit.model, t), fit.model_parameters):
            with pytest.raises(ValueError, match=f"{n} usable row.*; at least 3"):
                call(0.5)
        for function in (fit.false_alarm_probability, fit.false_alarm_level):
            for method in ("baluev", "single", "bootstrap"):
                with pytest.raises(ValueError, match=f"{n} usable row.*; at least 3"):
                    function(0.5, method, frequency=[0.1, 0.5])
        with pytest.raises(ValueError, match=f"{n} usable row.*; at least 3"):
            skysieve.lombscargle(t, y, dy, frequency=F, **options)


def test_equal_times_and_more_parameters_than_rows_are_refused() -> None:
    fit = skysieve.LombScargle(np.full(4, 7.0), np.arange(4.0), device="cpu")
    for call in (fit.power, partial(fit.model, [7.0]), partial(fit.false_alarm_probability, frequency=[0.5])):
        with pytest.raises(ValueError, match=r"all times t are equal \(7\.0\)"):
            call(0.5)
    with pytest.raises(ValueError, match="4 usable rows; at least 5"):
        skysieve.LombScargle(*few(4, 0), nterms=2).model([1.0], 0.5)


def test_few_points_in_a_batch() -> None:
    curves = [few(n, n) for n in (3, 1, 40, 2, 3, 0)]
    t, y, dy = ([c[k] for c in curves] for k in range(3))
    grid = {"fmin": 0.3, "fmax": 2.0, "nf": 200, "device": "cpu"}
    none, some = Status.TOO_FEW_POINTS, Status.OK
    found = skysieve.lombscargle(t, y, dy, **grid)
    assert found.status.tolist() == [some, none, some, none, some, Status.EMPTY]
    without = skysieve.lombscargle(t, y, dy, fit_mean=False, **grid)
    assert without.status.tolist() == [some, none, some, some, some, Status.EMPTY]
    for i in (0, 2, 4):
        alone = skysieve.lombscargle(*curves[i], **grid)
        np.testing.assert_array_equal(found.power[i], alone.power)


def test_noise_of_few_points_always_makes_such_a_peak() -> None:
    t, y, dy = few(3, 5)
    mine, theirs = skysieve.LombScargle(t, y, dy, device="cpu"), Astropy(t, y, dy)
    for method in ("baluev", "naive", "davies", "single"):
        for z in (0.3, 0.99, 1.0):
            with np.errstate(all="ignore"):
                expected = theirs.false_alarm_probability(z, method=method, maximum_frequency=3.0)
            found = mine.false_alarm_probability(z, method=method, maximum_frequency=3.0)
            assert found == pytest.approx(float(expected), rel=1e-12)
    for shape in ("model", "log"):  # astropy's formulas have no value
        other = skysieve.LombScargle(t, y, dy, normalization=shape, device="cpu")
        for method in ("baluev", "naive", "single"):
            assert other.false_alarm_probability(3.0, method=method, maximum_frequency=3.0) == 1
    pair = skysieve.LombScargle(t[:2], y[:2], fit_mean=False, device="cpu")
    assert pair.false_alarm_probability(0.9, maximum_frequency=3.0) == 1


@pytest.mark.parametrize("value", [1.0, -2.5])
@pytest.mark.parametrize("with_dy", [False, True])
@pytest.mark.parametrize("method", ["auto", "direct", "nufft"])
def test_the_window_of_the_times(method: str, with_dy: bool, value: float) -> None:
    """The power of constant values, nothing subtracted: the window function, as astropy's documentation makes it."""
    for n, seed in ((57, 1), (400, 2)):
        rng = np.random.default_rng(seed)
        t = np.sort(rng.integers(0, 90, n) + 0.3 * rng.random(n))
        dy = rng.uniform(0.1, 0.4, n) if with_dy else None
        y = np.full(n, value)
        options = {"fit_mean": False, "center_data": False}
        theirs = Astropy(t, y, dy, **options).power(F, method="slow")
        mine = skysieve.LombScargle(t, y, dy, device="cpu", **options)
        np.testing.assert_allclose(mine.power(F, method=method), theirs, rtol=0, atol=1e-9)
        errors = None if dy is None else [dy, dy]
        found = skysieve.lombscargle([t, t], [y, 0 * y], errors, frequency=F, device="cpu", **options)
        assert found.status.tolist() == [Status.OK, Status.CONSTANT_Y]
        np.testing.assert_allclose(found.power[0], theirs, rtol=0, atol=1e-9)
    with pytest.raises(ValueError, match="y is constant"):
        skysieve.LombScargle(t, y, dy, fit_mean=False, device="cpu").power(F)
