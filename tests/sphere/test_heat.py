"""Gaussians in angle: the integral, against the series that it replaces."""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.sphere import Gaussian
from skysieve.sphere.kernels.legendre import HEAT_SIGMA, heat_kernel, jacobi_series, legendre_series
from skysieve.sphere.kernels.radial import make_radial


@pytest.mark.parametrize("sigma", [HEAT_SIGMA, 0.03, 0.01])
def test_the_integral_is_the_series(sigma):
    ell = np.arange(int(9 / sigma) + 2.0)
    window = np.exp(-0.5 * ell * (ell + 1) * sigma**2)
    theta = np.linspace(0, 8 * sigma, 60)
    scalar = legendre_series(window, theta)
    assert np.abs(heat_kernel(theta, sigma) - scalar).max() <= 1e-14 * scalar.max()
    window[:2] = 0
    tensor = jacobi_series(window, theta)  # its recurrence loses digits as degrees grow
    assert np.abs(heat_kernel(theta, sigma, spin=2) - tensor).max() <= 1e-12 * tensor.max()


@pytest.mark.parametrize("spin", [0, 2])
def test_the_window_comes_back(spin):
    beam = Gaussian(sigma=0.02)
    assert np.abs(make_radial(beam, 1e-12, spin).window(300, spin) - beam.window(300, spin)).max() <= 1e-11


def test_far_away_nothing_is_left():
    assert heat_kernel(np.array([1.6, 3.1]), 0.1).tolist() == [0, 0]
