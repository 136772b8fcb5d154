"""Demodulation on a CPU: the Dirichlet kernel of every SFT and template, in float32 or float64, with float64 phases."""

from __future__ import annotations

import math

import numba
import numpy as np
from numba.extending import overload

from skysieve.core.cpu.jit import njit

__all__ = ["DTERMS", "projections"]

DTERMS = 8
"""Number of bins that are summed on each side of a template's frequency."""
NEAR = {"float32": 2e-4, "float64": 1e-15}
"""Distance to a bin, in bins, below which only that bin is used; in float32 as in LALPulsar."""
TILE, ROWS = 128, 16
"""Size of a tile in templates and SFTs: its results are transposed in the first-level cache."""
FAST = {"nnan", "ninf", "nsz", "contract"}


def _sincos(x):
    """Sine and cosine of ``2 pi x`` for ``-0.5 <= x <= 0.5``: float32 to 2e-7, float64 to 5e-16."""
    raise NotImplementedError("only compiled functions call this")


@overload(_sincos, jit_options={"fastmath": FAST, "error_model": "numpy"})
def _(x):
    return _sincos32 if x == numba.float32 else _sincos64


def _sincos64(x):
    return math.sin(2 * math.pi * x), math.cos(2 * math.pi * x)


def _sincos32(x):
    # relative to the nearest quarter turn: y is at most an eighth of a turn
    q = np.float32(np.floor(np.float32(4) * x + np.float32(0.5)))
    y = (x - np.float32(0.25) * q) * np.float32(2 * math.pi)
    z = y * y
    s = y * (np.float32(1) + z * (np.float32(-1 / 6) + z * (np.float32(1 / 120) + z * np.float32(-1 / 5040))))
    c = np.float32(1) + z * (
        np.float32(-0.5) + z * (np.float32(1 / 24) + z * (np.float32(-1 / 720) + z * np.float32(1 / 40320)))
    )
    odd = (q == np.float32(1)) | (q == np.float32(-1))
    u = c if odd else s
    v = s if odd else c
    sine = -u if (q == np.float32(-1)) | (abs(q) == np.float32(2)) else u
    cosine = -v if (q == np.float32(1)) | (abs(q) == np.float32(2)) else v
    return sine, cosine


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def _phases(f0, f1, f2, delay, rate, lam, kappa, whole):
    """Phase at the middle of an SFT (turns, -0.5 to 0.5), and the frequency in bins: integer and fractional parts."""
    d2, d3 = 0.5 * delay * delay, delay * delay * delay / 6
    for i in range(len(f0)):
        phase = f0[i] * delay + f1[i] * d2 + f2[i] * d3
        cycles = rate * (f0[i] + f1[i] * delay + f2[i] * d2)
        below = np.floor(cycles)
        x = 0.5 * cycles - phase
        whole[i] = below
        kappa[i] = cycles - below
        lam[i] = x - np.floor(x + 0.5)


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def _sum(xr, xi, kappa, near, sr, si):
    """The sum over ``2 DTERMS`` bins for templates in one bin; there is one division for every four bins."""
    one = np.float32(1)
    high = one - near
    for i in range(len(kappa)):
        k = min(max(kappa[i], near), high)
        s, t = np.float32(0), np.float32(0)
        for m in range(0, 2 * DTERMS, 4):
            # computed from k itself: k + 3 - 3 would lose digits of a small k
            x, x1 = k + np.float32(DTERMS - 1 - m), k + np.float32(DTERMS - 2 - m)
            x2, x3 = k + np.float32(DTERMS - 3 - m), k + np.float32(DTERMS - 4 - m)
            p, q = x * x1, x2 * x3
            inverse = one / (p * q)
            s += inverse * (q * (xr[m] * x1 + xr[m + 1] * x) + p * (xr[m + 2] * x3 + xr[m + 3] * x2))
            t += inverse * (q * (xi[m] * x1 + xi[m + 1] * x) + p * (xi[m + 2] * x3 + xi[m + 3] * x2))
        sr[i], si[i] = s, t


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def _finish(xr, xi, lam, kappa, near, inverse_pi, sr, si, out_real, out_imag):
    """Multiply the sums by the factors of the Dirichlet kernel and of the phase, which gives the projections."""
    one = np.float32(1)
    near_r, near_i, next_r, next_i = xr[DTERMS - 1], xi[DTERMS - 1], xr[DTERMS], xi[DTERMS]
    for i in range(len(lam)):
        k = kappa[i]
        x = min(max(k, near), one - near)
        # sin(2 pi x) and cos(2 pi x) - 1, from half the angle: both are exact to rounding next to a bin
        half_s, half_c = _sincos(np.float32(0.5) * (x - one if x > np.float32(0.5) else x))
        s = half_s * half_c * inverse_pi
        c = -half_s * half_s * inverse_pi
        u, v = s * sr[i] - c * si[i], s * si[i] + c * sr[i]
        below, above = k < near, k > one - near
        u = near_r if below else (next_r if above else u)
        v = near_i if below else (next_i if above else v)
        ls, lc = _sincos(lam[i])
        out_real[i] = lc * u - ls * v
        out_imag[i] = lc * v + ls * u


@njit(nogil=True)
def _all(real, imag, first_bin, delay, rate, tsft, f0, f1, f2, near, inverse_pi, out):
    """Fill `out`; return the first template that needs bins outside the data, or -1."""
    n, bins = real.shape
    # separate arrays: numba does not know that rows of an unpacked array are contiguous, and would not vectorise loops
    lam, kappa, whole = np.empty(TILE, real.dtype), np.empty(TILE, real.dtype), np.empty(TILE)
    sr, si = np.empty(TILE, real.dtype), np.empty(TILE, real.dtype)
    made_real, made_imag = np.empty((ROWS, TILE), real.dtype), np.empty((ROWS, TILE), real.dtype)
    for start in range(0, len(f0), TILE):
        stop = min(start + TILE, len(f0))
        m = stop - start
        for j0 in range(0, n, ROWS):
            rows = min(ROWS, n - j0)
            for e in range(rows):
                j = j0 + e
                _phases(f0[start:stop], f1[start:stop], f2[start:stop], delay[j], tsft * rate[j], lam, kappa, whole)
                a = 0
                while a < m:
                    b = a + 1
                    while b < m and whole[b] == whole[a]:
                        b += 1
                    low = np.int64(whole[a]) - DTERMS + 1 - first_bin
                    high = low + 2 * DTERMS
                    if low < 0 or high > bins:
                        return start + a
                    xr, xi, k = real[j, low:high], imag[j, low:high], kappa[a:b]
                    _sum(xr, xi, k, near, sr, si)
                    _finish(xr, xi, lam[a:b], k, near, inverse_pi, sr, si, made_real[e, a:b], made_imag[e, a:b])
                    a = b
            for i in range(m):
                for e in range(rows):
                    out[start + i, j0 + e] = complex(made_real[e, i], made_imag[e, i])
    return -1


def projections(data, first_bin, delay, rate, tsft, f0, f1, f2):
    """Normalised SFTs projected on templates, before the antenna factors.

    Parameters
    ----------
    data : numpy.ndarray of complex64 or complex128, shape (n, bins)
        Normalised SFTs of one detector.  The sums have the same precision.
    first_bin : int
    delay, rate : numpy.ndarray of float64, shape (n,)
        At the middle of each SFT: barycentric time since the reference time, and its rate.
    tsft : float
    f0, f1, f2 : numpy.ndarray of float64, shape (m,)
        Frequency and its derivatives at the reference time.

    Returns
    -------
    projections : numpy.ndarray of the type of `data`, shape (m, n)
    failed : int
        The first template that needs bins outside the data, or -1.
    """
    real, imag = np.ascontiguousarray(data.real), np.ascontiguousarray(data.imag)
    out, kind = np.empty((len(f0), len(data)), data.dtype), real.dtype.type
    near, inverse_pi = kind(NEAR[real.dtype.name]), kind(1 / math.pi)
    return out, _all(real, imag, first_bin, delay, rate, tsft, f0, f1, f2, near, inverse_pi, out)
