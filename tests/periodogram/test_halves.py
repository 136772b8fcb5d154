"""The interpolation window for samples stored as pairs of float16 (NumPy alone; the kernels are tested elsewhere)."""

from __future__ import annotations

import numpy as np

from skysieve.periodogram.cuda.samples.half_window import (
    HALVES_REACH,
    SAMPLE_UNIT,
    TAP_UNIT,
    TWICE,
    shape_in_time,
    transform,
    window,
)

TIMES = np.linspace(-0.4, 0.4, 401)
PLACES = np.arange(8) / 8
"""Between two samples."""


def taps() -> tuple[np.ndarray, np.ndarray]:
    """Samples around each place, and what they are multiplied by."""
    first = np.ceil(PLACES - 0.5 * HALVES_REACH)
    k = first[:, None] + np.arange(HALVES_REACH)
    return k, window(2 / HALVES_REACH * (k - PLACES[:, None]))


def test_a_turning_point_is_interpolated():
    """1.2e-7 at the edge, 2e-8 on the average, as the module says."""
    k, weight = taps()
    samples = np.exp(2j * np.pi * TIMES[:, None, None] * k) / transform(TIMES)[:, None, None]
    error = np.abs((samples * weight).sum(axis=2) - np.exp(2j * np.pi * np.outer(TIMES, PLACES)))
    assert error.max() < 1.8e-7
    assert np.sqrt((error**2).mean()) < 2.5e-8


def test_errors_of_samples_stay_small():
    """Independent errors, as large as the sampled sum's rounding is, of points all over the times: 1.3 times."""
    _, weight = taps()
    larger = np.sqrt((weight**2).sum(axis=1).mean() * (1 / transform(TIMES) ** 2).mean())
    assert larger < 1.35


def test_the_shape_in_time_is_a_polynomial():
    found = np.polynomial.polynomial.polyval((TIMES / 0.4) ** 2, shape_in_time())
    np.testing.assert_allclose(found, transform(TIMES) * SAMPLE_UNIT, rtol=2e-9)


def test_halves_hold_samples_and_taps():
    """None overflows, also where all weight is at the edge; lower halves round to 2^-25 of a unit."""
    largest = np.finfo(np.float16).max
    strength = 1 / (transform(np.array([0.4]))[0] * SAMPLE_UNIT)
    assert strength < 2**9 < largest  # and its 2^22 times an integer of 32 bits
    assert window(np.zeros(1))[0] / TAP_UNIT * TWICE < largest
    assert (1 / (SAMPLE_UNIT * TAP_UNIT)) ** 2 == 2 * TWICE / (SAMPLE_UNIT * TAP_UNIT) == 2.0**16
