"""Kernels of random numbers (numba): normal numbers of random bits, uniform ones of a sample and a channel.

The quantile function of the normal distribution is a polynomial in ``w = -log(4 p (1 - p))`` times ``1 - 2 p``, and far
from the middle one in the root of w (Giles 2010, "Approximating the erfinv function").  The coefficients are fits to
`scipy.special.ndtri` at Chebyshev nodes; the error is at most 2.3e-6.
"""

from __future__ import annotations

import math

import numpy as np

from skysieve.core.cpu.jit import njit


def _single(*numbers):
    return tuple(np.float32(x) for x in numbers)


LOG = _single(0.999999943, -0.500003631, 0.333351141, -0.249700717, 0.19898565, -0.172470133, 0.162341898, -0.101340568)
"""log(1 + m) / m, for 1 + m from the root of 1/2 to that of 2."""
NEAR = _single(
    2.12331309, 0.348802705, -0.00590571129, -0.00177306829, 3.07181201e-4, -6.19939125e-06, -4.4862858e-06,
    4.84403299e-07,
)  # fmt: skip
"""Coefficients of the powers of w - 2.5, for w up to 5."""
FAR = _single(
    4.75463389, 1.42486483, 0.00444828246, -0.00270127881, 0.00127872855, -9.80913116e-4, 7.52581693e-4, -2.37636114e-4
)
"""Coefficients of the powers of sqrt(w) - MIDDLE, for w up to 23.2: as far as 32 bits reach."""
MIDDLE, LN2, LEAST, STEP = _single(3.526352904508354, math.log(2), 1e-7, 2.0**-32)
HALF, ONE, TWO, FOUR, SPLIT = _single(0.5, 1, 2, 4, 5)
ROOT, FRACTION, POSITIVE = np.int32(0x3F3504F3), np.int32(0x7FFFFF), np.int32(0x7FFFFFFF)
"""The bits of the root of 1/2, those of a fraction, and those of a positive number."""


@njit(nogil=True, error_model="numpy")
def power_series(c, x):
    """A polynomial of degree 7."""
    return c[0] + x * (c[1] + x * (c[2] + x * (c[3] + x * (c[4] + x * (c[5] + x * (c[6] + x * c[7]))))))


@njit(nogil=True, error_model="numpy")
def normal(bits, out):
    """Write numbers of the normal distribution, of mean 0 and sigma 1, to ``out``: one for each int32 of ``bits``."""
    for i in range(len(out)):
        b = bits[i]
        p = (np.float32(b & POSITIVE) + HALF) * STEP  # in the lower half; the sign follows from the first bit
        q = FOUR * p * (ONE - p)
        n = np.float32(q).view(np.int32) - ROOT
        m = np.int32((n & FRACTION) + ROOT).view(np.float32) - ONE
        w = LEAST - (np.float32(n >> np.int32(23)) * LN2 + m * power_series(LOG, m))
        far = power_series(FAR, np.sqrt(w) - MIDDLE)
        near = power_series(NEAR, w - HALF * SPLIT)
        sign = np.float32(np.int32(1) + ((b >> np.int32(31)) << np.int32(1)))
        out[i] = (far if w > SPLIT else near) * (sign - sign * TWO * p)


@njit(nogil=True, error_model="numpy")
def hashed(start, channels, seed, out):
    """Uniform numbers above 0 and at most 1, which depend on the seed, the sample and the channel only."""
    n, C = out.shape
    for t in range(n):
        for i in range(C):
            z = np.uint64(start + t) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(channels[i] + 1) * np.uint64(
                0xD1B54A32D192ED03
            )
            z += np.uint64(seed) * np.uint64(0xA0761D6478BD642F)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z = z ^ (z >> np.uint64(31))
            out[t, i] = np.float32((np.float64(z >> np.uint64(40)) + 1.0) / 16777216.0)
