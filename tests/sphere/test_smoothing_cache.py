"""`smoothing` keeps its plans between calls: the same answers, and never those of another kernel."""

from __future__ import annotations

import numpy as np
import pytest

import skysieve
from skysieve.core.engine_cache import ENGINES
from skysieve.sphere import Gaussian, Window
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
