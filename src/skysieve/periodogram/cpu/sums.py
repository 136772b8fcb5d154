"""numba kernels: phases and exact sums of one light curve at one frequency.

Light curves come prepared (see ``cpu.prepare``): sorted times relative to the first, weights ``w``
that sum to 1 and ``wy = w (y - mean) / sqrt(YY)``, so that powers are "standard" ones.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .comb_simd import fma, outline

TWO_PI = 2 * np.pi
SINGULAR = 1e-14
"""CC SS - CS^2 below this fraction of CC SS: cosine and sine are one column at these times; the power is NaN."""
COLUMN_NOISE = 1e-30
"""The same below this fraction of CC + SS: errors of the cosines squared (a column next to constant)."""


@njit(cache=True, nogil=True, error_model="numpy")
def grid_point(f0, df, m):
    """``f0 + m df`` as an unevaluated sum of two float64: a day in ten years at 24/d is 1e5 cycles, and its
    rounding to one float64 would already turn phases by 1e-11."""
    p = m * df
    e = fma(m, df, -p)
    hi = f0 + p
    v = hi - f0
    return hi, (f0 - (hi - v)) + (p - v) + e


@njit(cache=True, nogil=True, error_model="numpy")
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


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def weighted_sums(w, wy, c, s, n):
    sc, ss, yc, ys = 0.0, 0.0, 0.0, 0.0
    for j in range(n):
        sc += w[j] * c[j]
        ss += w[j] * s[j]
        yc += wy[j] * c[j]
        ys += wy[j] * s[j]
    return sc, ss, yc, ys


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
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


@njit(cache=True, nogil=True, error_model="numpy")
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
    if not det > SINGULAR * cc * ss + COLUMN_NOISE * (cc + ss):
        return np.nan
    return (yc * (ss * yc - cs * ys) + ys * (cc * ys - cs * yc)) / det
