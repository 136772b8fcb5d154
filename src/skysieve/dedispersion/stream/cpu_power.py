"""Power of spectra, in falling order of frequency (numba)."""

from __future__ import annotations

import numpy as np
from numba import njit

JIT = {"cache": True, "nogil": True, "error_model": "numpy"}


@njit(**JIT)
def power(spectra, place, integrate, out):
    """``out[j, place[k, s]] = sum of |spectra[j integrate + i, k, p, s]|^2`` over ``i`` and polarisations ``p``."""
    n, K, P, S = spectra.shape
    for j in range(n // integrate):
        line = out[j]
        for c in range(len(line)):
            line[c] = 0
        for i in range(integrate):
            for k in range(K):
                where = place[k]
                for p in range(P):
                    y = spectra[j * integrate + i, k, p]
                    for s in range(S):
                        v = y[s]
                        line[where[s]] += v.real * v.real + v.imag * v.imag


@njit(**JIT)
def filter_power(parts, filters, real, imag, place, integrate, subbands, out):
    """The same from voltages, for few channels: filter bank, DFT by its definition and power, a spectrum at a time.

    ``parts`` (lines, channels, polarisations x subbands x 2): real and imaginary parts; ``filters`` (taps, channels);
    ``real``, ``imag`` (channels, channels) of the DFT.
    """
    taps, N = filters.shape
    width = parts.shape[2] // 2
    xr, xi = np.empty((N, width), np.float32), np.empty((N, width), np.float32)
    yr, yi = np.empty(width, np.float32), np.empty(width, np.float32)
    for j in range(len(out)):
        line = out[j]
        for c in range(len(line)):
            line[c] = 0
        for q in range(j * integrate, (j + 1) * integrate):
            for i in range(N):
                ar, ai = xr[i], xi[i]
                for t in range(taps):
                    h, src = filters[t, i], parts[q + t, i]
                    if t == 0:
                        for s in range(width):
                            ar[s] = h * src[2 * s]
                            ai[s] = h * src[2 * s + 1]
                    else:
                        for s in range(width):
                            ar[s] += h * src[2 * s]
                            ai[s] += h * src[2 * s + 1]
            for k in range(N):
                for s in range(width):
                    yr[s] = xr[0, s]
                    yi[s] = xi[0, s]
                for i in range(1, N):
                    a, b, ar, ai = real[k, i], imag[k, i], xr[i], xi[i]
                    for s in range(width):
                        yr[s] += a * ar[s] - b * ai[s]
                        yi[s] += a * ai[s] + b * ar[s]
                where = place[k]
                for s in range(width):
                    yr[s] = yr[s] * yr[s] + yi[s] * yi[s]
                for p in range(0, width, subbands):
                    for s in range(subbands):
                        line[where[s]] += yr[p + s]


@njit(**JIT)
def quantise(rows, level, scale, middle, out):
    """Rows in units of their channels' scatter, as bytes."""
    for t in range(len(rows)):
        for c in range(rows.shape[1]):
            q = np.rint((rows[t, c] - level[c]) * scale[c] + middle)
            out[t, c] = min(max(q, np.float32(0)), np.float32(255))
