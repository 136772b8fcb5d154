"""`smoothing` keeps its plans between calls: the same answers, and never those of another kernel."""

from __future__ import annotations

import numpy as np
import pytest

import skysieve
from skysieve.core.engine_cache import ENGINES
from skysieve.sphere import ConvolvePlan, Gaussian, Healpix, Window
from skysieve.sphere.grids.healpix import UNSEEN
from skysieve.sphere.kernels.shapes import Function

MAP = np.random.default_rng(1).standard_normal(12 * 32**2)


@pytest.fixture(autouse=True)
def empty_cache():
    skysieve.clear_cache()
    yield
    skysieve.clear_cache()


def smoothed(kernel, **options):
    return skysieve.smoothing(MAP, kernel=kernel, device="cpu", **options)


def test_a_repeated_call_uses_its_plan_again():
    first = smoothed(Gaussian(fwhm=0.2))
    held = first.copy()
    assert len(ENGINES) == 1
    other = skysieve.smoothing(2 * MAP, kernel=Gaussian(fwhm=0.2), device="cpu")
    assert len(ENGINES) == 1
    np.testing.assert_array_equal(first, held)
    np.testing.assert_allclose(other, 2 * first, rtol=0, atol=1e-12)


@pytest.mark.parametrize("change", [{"eps": 1e-3}, {"dtype": "float32"}, {"quadrature": "none"}, {"threads": 1}])
def test_other_options_have_plans_of_their_own(change):
    smoothed(Gaussian(fwhm=0.2))
    smoothed(Gaussian(fwhm=0.2), **change)
    assert len(ENGINES) == 2


def test_kernels_are_compared_by_their_values():
    bl = np.exp(-np.arange(64.0) / 10)
    one = smoothed(Window(bl))
    np.testing.assert_array_equal(smoothed(Window(bl.copy())), one)
    assert len(ENGINES) == 1
    assert np.abs(smoothed(Window(0.5 * bl)) - 0.5 * one).max() < 1e-9
    assert len(ENGINES) == 2


def test_a_kernel_with_a_function_is_set_up_at_every_call():
    """The function may give other values at the next call."""
    scale = [1.0]
    kernel = Function(lambda theta: scale[0] * np.exp(-((theta / 0.1) ** 2)), 0.5)
    first = smoothed(kernel)
    scale[0] = 2.0
    np.testing.assert_allclose(smoothed(kernel), 2 * first, rtol=1e-9)
    assert len(ENGINES) == 0


@pytest.mark.parametrize("dtype", [">f4", "f4", "f8", "i2"])
@pytest.mark.parametrize("nest", [False, True])
def test_bad_pixels_count_as_zero_and_keep_their_values(dtype, nest):
    """The result is that of a masked array with zeros in the bad pixels, which other code handles."""
    m = (1000 * MAP).astype(dtype)
    bad = np.zeros(m.size, bool)
    if m.dtype.kind == "f":
        bad[[0, 5, 700, -1]] = True
        m[bad] = [UNSEEN, np.nan, np.inf, np.float32(UNSEEN)]
    before = m.copy()
    found = skysieve.smoothing(m, 0.2, nest=nest, device="cpu")
    truth = skysieve.smoothing(np.ma.MaskedArray(np.where(bad, 0, m), bad), 0.2, nest=nest, device="cpu")
    np.testing.assert_array_equal(m, before)
    assert found.dtype == (np.float32 if m.dtype.itemsize == 4 else np.float64)
    np.testing.assert_array_equal(found[bad], m[bad].astype(found.dtype))
    np.testing.assert_array_equal(found[~bad], np.asarray(truth)[~bad])


def test_the_maps_of_a_batch_have_bad_pixels_of_their_own():
    batch = np.stack([MAP, MAP, 3 * MAP])
    batch[1, 17] = np.nan
    found = smoothed_batch(batch)
    for one, row in zip(found, batch, strict=True):
        np.testing.assert_array_equal(one, smoothed_batch(row))
    assert np.flatnonzero(np.isnan(found).any(axis=0)).tolist() == [17]


def smoothed_batch(maps):
    return skysieve.smoothing(maps, 0.2, pol=False, device="cpu")


def test_polarised_batches_are_the_single_skies():
    skies = np.random.default_rng(2).standard_normal((2, 3, MAP.size))
    skies[1, 2, 9] = UNSEEN
    found = skysieve.smoothing(skies, 0.2, device="cpu")
    for one, sky in zip(found, skies, strict=True):
        np.testing.assert_array_equal(one, skysieve.smoothing(sky, 0.2, device="cpu"))
    assert found[1, 2, 9] == UNSEEN
    assert np.abs(found[..., 10:]).max() < 10


@pytest.mark.parametrize("method", ["direct", "ring", "harmonic"])
def test_every_value_of_the_result_is_written(method):
    if method == "harmonic":
        pytest.importorskip("ducc0")
    with ConvolvePlan(Gaussian(fwhm=0.2), Healpix(32), method=method, device="cpu") as plan:
        out = np.full(MAP.size, np.nan)
        np.testing.assert_array_equal(plan.execute(MAP, out), plan.execute(MAP))
        assert np.isfinite(out).all()


def test_the_part_of_a_kernel_in_its_central_pixel_is_computed_once(monkeypatch):
    """And the warning comes with each call."""
    asked = []
    profile = Gaussian.profile

    def noted(self, theta):
        asked.append(theta)
        return profile(self, theta)

    narrow = 0.0421  # of no other test
    with pytest.warns(UserWarning, match="hardly wider"):
        first = smoothed(Gaussian(fwhm=narrow))
    monkeypatch.setattr(Gaussian, "profile", noted)
    with pytest.warns(UserWarning, match="hardly wider"):
        again = smoothed(Gaussian(fwhm=narrow))
    assert asked == []
    np.testing.assert_array_equal(first, again)
