"""The accuracy with which taps interpolate sums between coarse samples (NumPy alone; kernels are tested elsewhere)."""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.periodogram.cuda.sinusoid.tables import WINDOWS, corrections


@pytest.mark.parametrize(("twice", "window"), list(enumerate(WINDOWS)))
def test_a_turning_point_is_interpolated(twice, window):
    """One point turns exp(2 pi i tau x) with frequency x; errors of the transforms are larger."""
    tau = np.linspace(-window.far, window.far, 401)
    u = np.arange(4) / 4
    square = (tau / window.edge) ** 2
    correction = np.polynomial.Polynomial(corrections()[twice])(square)
    np.testing.assert_allclose(correction, window.correction(tau), rtol=1e-12)
    samples = np.exp(2j * np.pi * np.outer(tau, np.arange(window.first, window.last + 1))) * correction[:, None]
    error = samples @ window.taps(u).T - np.exp(2j * np.pi * np.outer(tau, u))
    assert np.abs(error).max() < 2e-10
