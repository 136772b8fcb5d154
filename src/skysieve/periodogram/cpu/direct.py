"""numba kernels of the direct sums: every point at every frequency, to rounding error.

Regular grids: ``f = fc + d`` with a coarse ``fc`` and a fine ``d``, so that
``exp(2 pi i f t) = exp(2 pi i fc t) exp(2 pi i d t)`` needs a sine and cosine only per (point, coarse) and
per (point, fine) pair.  As strengths are real, the four real products of the two tables give both
``fc + d`` and ``fc - d``: 12 fused multiply-adds for two frequencies, point and three channels.
Irregular grids: one sine and cosine per point and frequency, then centred sums.
"""

from __future__ import annotations

import numpy as np

from skysieve.core.cpu.jit import njit

from .comb_simd import LANES, both_signs, direct_tile, fma, outline, power_lanes

FINE_VECTORS = 4
"""Vectors of fine frequencies; one coarse frequency serves ``2 * FINE_VECTORS * lanes`` frequencies."""
PER_COARSE = 2 * FINE_VECTORS * LANES
BLOCK = 64
"""Points whose fine table stays in the second-level cache during the loop over coarse frequencies."""
COARSE = 128
"""Coarse frequencies of one stretch: its sums (0.4 MB) stay in the second-level cache."""
SUPER_BLOCK = 2048
"""Points up to which the fine table is stored at all."""


FINE = FINE_VECTORS * LANES
ROW = 4 * LANES


@njit(nogil=True, error_model="numpy")
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


@njit(nogil=True, error_model="numpy")
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


@njit(nogil=True, error_model="numpy")
def direct_range(f0, df, j0, n_coarse, t, w, wy, n, work, floating_mean, guard, block):
    """Standard powers of the ``n_coarse * PER_COARSE`` grid samples from ``j0`` on into ``block``, NaN where
    CC SS - CS^2 <= guard; returns whether some are NaN."""
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


TWO_PI = 2 * np.pi
SINGULAR = 1e-14
"""Below this fraction of CC SS, CC SS - CS^2 is rounding: cosine and sine are linearly dependent; the power is NaN."""
COLUMN_NOISE = 1e-30
"""The same below this fraction of CC + SS: errors of the cosines squared (a column next to constant)."""


@njit(nogil=True, error_model="numpy")
def grid_point(f0, df, m):
    """``f0 + m df`` as an unevaluated sum of two float64: a day in ten years at 24/d is 1e5 cycles, and its
    rounding to one float64 would already turn phases by 1e-11."""
    p = m * df
    e = fma(m, df, -p)
    hi = f0 + p
    v = hi - f0
    return hi, (f0 - (hi - v)) + (p - v) + e


@njit(nogil=True, error_model="numpy")
def cos_sin(f, f_low, t, first, n, c, s):
    """``c[j], s[j] = cos, sin(2 pi (f + f_low) t[first + j])`` for ``j < n``; f t is exact before it is reduced.

    Taylor series on |angle| <= pi/4 (the first neglected term is under 5e-17).
    """
    for j in range(n):
        tj = t[first + j]
        hi = f * tj
        lo = fma(f, tj, -hi) + f_low * tj
        x = (hi - np.rint(hi)) + lo
        q = np.rint(4.0 * x)
        z = TWO_PI * (x - 0.25 * q)
        z2 = z * z
        p = -1.0 / 1307674368000.0
        p = p * z2 + 1.0 / 6227020800.0
        p = p * z2 - 1.0 / 39916800.0
        p = p * z2 + 1.0 / 362880.0
        p = p * z2 - 1.0 / 5040.0
        p = p * z2 + 1.0 / 120.0
        p = p * z2 - 1.0 / 6.0
        sn = z + z * z2 * p
        p = 1.0 / 20922789888000.0
        p = p * z2 - 1.0 / 87178291200.0
        p = p * z2 + 1.0 / 479001600.0
        p = p * z2 - 1.0 / 3628800.0
        p = p * z2 + 1.0 / 40320.0
        p = p * z2 - 1.0 / 720.0
        p = p * z2 + 1.0 / 24.0
        cn = 1.0 + z2 * (p * z2 - 0.5)
        k = np.int64(q)
        odd = (k & 1) != 0
        a = cn if odd else sn
        b = sn if odd else cn
        s[j] = -a if (k & 2) != 0 else a
        c[j] = -b if ((k + 1) & 2) != 0 else b


@njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def weighted_sums(w, wy, c, s, n):
    sc, ss, yc, ys = 0.0, 0.0, 0.0, 0.0
    for j in range(n):
        sc += w[j] * c[j]
        ss += w[j] * s[j]
        yc += wy[j] * c[j]
        ys += wy[j] * s[j]
    return sc, ss, yc, ys


@njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def centred_sums(w, wy, c, s, n, mc, ms):
    cc, ss, cs, yc, ys = 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(n):
        dc, ds = c[j] - mc, s[j] - ms
        cc += w[j] * dc * dc
        ss += w[j] * ds * ds
        cs += w[j] * dc * ds
        yc += wy[j] * dc
        ys += wy[j] * ds
    return cc, ss, cs, yc, ys


@njit(nogil=True, error_model="numpy")
def select(condition, a, b):
    """``a`` where the condition holds, else ``b``."""
    return a if condition else b


@njit(nogil=True, error_model="numpy")
def exact_power(f, f_low, t, w, wy, n, fit_mean, c, s):
    """Standard power at ``f + f_low`` by two-pass centred sums in float64; ``c``, ``s`` are scratch of length n.

    Zechmeister & Kuerster (2009), eq. 5, with the sums of eq. 7-15 centred before they are squared,
    which keeps CC SS - CS^2 where subtraction afterwards would lose it (few points, f T << 1).
    """
    outline()
    cos_sin(f, f_low, t, np.int64(0), n, c, s)
    mc, ms = 0.0, 0.0
    if fit_mean:
        mc, ms, _, _ = weighted_sums(w, wy, c, s, n)
    cc, ss, cs, yc, ys = centred_sums(w, wy, c, s, n, mc, ms)
    det = cc * ss - cs * cs
    sound = det > SINGULAR * cc * ss + COLUMN_NOISE * (cc + ss)
    return select(sound, (yc * (ss * yc - cs * ys) + ys * (cc * ys - cs * yc)) / det, np.nan)
