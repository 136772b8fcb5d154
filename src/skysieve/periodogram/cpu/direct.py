"""numba kernels of the direct sums: every point at every frequency, to rounding error.

Regular grids: ``f = fc + d`` with a coarse ``fc`` and a fine ``d``, so that
``exp(2 pi i f t) = exp(2 pi i fc t) exp(2 pi i d t)`` needs a sine and cosine only per (point, coarse) and
per (point, fine) pair.  As strengths are real, the four real products of the two tables give both
``fc + d`` and ``fc - d``: 12 fused multiply-adds for two frequencies, point and three channels.
Irregular grids: one sine and cosine per point and frequency, then centred sums.
"""

from __future__ import annotations

from numba import njit

from .comb_simd import LANES, both_signs, direct_tile, outline, power_lanes
from .sums import cos_sin, grid_point

FINE_VECTORS = 4
"""Vectors of fine frequencies; one coarse frequency serves ``2 * FINE_VECTORS * lanes`` frequencies."""
PER_COARSE = 2 * FINE_VECTORS * LANES
BLOCK = 64
"""Points whose fine table stays in the second cache while coarse frequencies go by."""
COARSE = 128
"""Coarse frequencies of one stretch: its sums (0.4 MB) stay in the second cache."""
SUPER_BLOCK = 2048
"""Points whose fine table is kept at all."""


FINE = FINE_VECTORS * LANES
ROW = 4 * LANES


@njit(cache=True, nogil=True, error_model="numpy")
def fine_table(df, t, top, m, work):
    """Lane vectors cos, sin at the fine frequencies, and at twice them, of points ``top:top + m``."""
    outline()
    c, s, right = work.c, work.s, work.right
    for k in range(FINE):
        hi, lo = grid_point(0.0, df, k + 0.5)
        cos_sin(hi, lo, t, top, m, c, s)
        base = (k // LANES) * SUPER_BLOCK * ROW + k % LANES
        for j in range(m):
            at = base + j * ROW
            right[at] = c[j]
            right[at + LANES] = s[j]
            right[at + 2 * LANES] = c[j] * c[j] - s[j] * s[j]
            right[at + 3 * LANES] = 2.0 * c[j] * s[j]


@njit(cache=True, nogil=True, error_model="numpy")
def coarse_table(hi, lo, t, w, wy, top, m, floating_mean, work):
    """Strengths times cosine and sine of one coarse phase, of points ``top:top + m``."""
    outline()
    c, s, left = work.c, work.s, work.left
    cos_sin(hi, lo, t, top, m, c, s)
    width = 6 if floating_mean else 4
    for j in range(m):
        p, at = top + j, width * j
        left[at] = wy[p] * c[j]
        left[at + 1] = wy[p] * s[j]
        left[at + 2] = w[p] * (c[j] * c[j] - s[j] * s[j])
        left[at + 3] = w[p] * (2.0 * c[j] * s[j])
        if floating_mean:
            left[at + 4] = w[p] * c[j]
            left[at + 5] = w[p] * s[j]


@njit(cache=True, nogil=True, error_model="numpy")
def direct_range(f0, df, j0, n_coarse, t, w, wy, n, work, floating_mean, guard, block):
    """Standard powers of the ``n_coarse * PER_COARSE`` grid samples from ``j0`` on into ``block``, NaN where
    CC SS - CS^2 <= guard; returns whether there are such."""
    outline()
    left, right, acc, x, small, worst = work.left, work.right, work.acc, work.x, work.small, work.worst
    channels = 3 if floating_mean else 2
    size = 4 * channels * LANES
    for i in range(n_coarse * FINE_VECTORS * size):
        acc[i] = 0
    for top in range(0, n, SUPER_BLOCK):
        m = min(SUPER_BLOCK, n - top)
        fine_table(df, t, top, m, work)
        for i in range(n_coarse):
            hi, lo = grid_point(f0, df, j0 + i * PER_COARSE + FINE - 0.5)
            for b in range(0, m, BLOCK):
                nb = min(BLOCK, m - b)
                coarse_table(hi, lo, t, w, wy, top + b, nb, floating_mean, work)
                for v in range(FINE_VECTORS):
                    at, to = (v * SUPER_BLOCK + b) * ROW, (i * FINE_VECTORS + v) * size
                    if floating_mean:
                        direct_tile(left, 0, right, at, nb, acc, to, 3)
                    else:
                        direct_tile(left, 0, right, at, nb, acc, to, 2)
    for i in range(LANES):
        worst[i] = 1
    for i in range(n_coarse):
        middle = i * PER_COARSE + FINE
        for v in range(FINE_VECTORS):
            base = (i * FINE_VECTORS + v) * size
            for h in range(channels):
                both_signs(acc, base + 4 * h * LANES, x, ROW * h)
            for side in range(2):
                at, to = 2 * LANES * side, LANES * side
                if floating_mean:
                    power_lanes(x, 2 * ROW + at, at, ROW + at, work.ones, 0, small, to, 1, worst, guard)
                else:
                    power_lanes(x, 2 * ROW + at, at, ROW + at, work.ones, 0, small, to, 0, worst, guard)
            for k in range(LANES):
                block[middle - 1 - v * LANES - k] = small[k]
                block[middle + v * LANES + k] = small[LANES + k]
    low = worst[0]
    for i in range(1, LANES):
        low = min(low, worst[i])
    return low <= guard
