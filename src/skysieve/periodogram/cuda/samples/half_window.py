"""The window that interpolates float32 sums from samples that are pairs of half-precision numbers (pure NumPy).

The points of a sum have times ``|t| <= 0.4`` of a circle; samples are the inverse of one circle apart.  Strengths are
divided by the window's shape in time beforehand.  If that shape is steep, as for the Kaiser-Bessel window (447 times
higher in the middle than at the edges), samples are far larger than the sums, and so are their rounding errors: 41
times.  This window is a Kaiser-Bessel window times a polynomial.  The polynomial is found by least squares, so that the
shape is zero beyond 0.6 and one within 0.4; the latter has 1e-8 of the weight.  Errors of samples become 1.3 times as
large, and the error of a point at the edge is 1.2e-7 (2e-8 on average over the times).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

HALVES_REACH, BETA = 19, 33.0
"""Samples that an interpolated value is made of; shape of the Kaiser-Bessel window."""
SHAPE = (-1721.58972, 5775.18235, -6434.61991, 2381.78128)
"""Coefficients of the polynomial in ``1 - d**2``, ``d`` from -1 to 1 over the window."""
SAMPLE_UNIT, TAP_UNIT, TWICE = 2.0**-6, 2.0**-2, 2.0**7
"""Units of samples and of coefficients at f: few lower halves are denormal numbers.  At 2f coefficients are larger:
half these sums are needed in units of squares of sums."""
HALVES = (1 / (float(np.i0(BETA)) * TAP_UNIT), TWICE, *SHAPE)
"""Inverse of the window's unit, its factor at 2f, and the coefficients of the polynomial."""
TERMS = 19
"""Coefficients of the shape in time: ``SHAPE`` of ``samples/form.cuh``."""


def window(d: NDArray[np.float64]) -> NDArray[np.float64]:
    """The window at ``d``, -1 to 1."""
    q = np.clip(1 - d * d, 0.0, None)
    found: NDArray[np.float64] = np.i0(BETA * np.sqrt(q)) / np.i0(BETA) * np.polynomial.polynomial.polyval(q, SHAPE)
    return found


def transform(t: NDArray[np.float64]) -> NDArray[np.float64]:
    """The window's Fourier transform at times ``t``, in circles."""
    d, weight = np.polynomial.legendre.leggauss(240)
    found: NDArray[np.float64] = np.cos(np.pi * HALVES_REACH * np.outer(t, d)) @ (weight * window(d)) * HALVES_REACH / 2
    return found


@lru_cache(maxsize=1)
def shape_in_time() -> NDArray[np.float64]:
    """Coefficients of a polynomial in ``(t / 0.4)**2``: the transform, in units of samples."""
    t = 0.4 * np.sqrt(0.5 - 0.5 * np.cos(np.pi * (np.arange(400) + 0.5) / 400))
    fit = np.polynomial.Chebyshev.fit((t / 0.4) ** 2, transform(t), TERMS - 1, domain=[0, 1])
    return np.asarray(fit.convert(kind=np.polynomial.Polynomial).coef, np.float64) * SAMPLE_UNIT
