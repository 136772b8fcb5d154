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
def quantise(rows, level, scale, middle, out):
    """Rows in units of their channels' scatter, as bytes."""
    for t in range(len(rows)):
        for c in range(rows.shape[1]):
            q = np.rint((rows[t, c] - level[c]) * scale[c] + middle)
            out[t, c] = min(max(q, np.float32(0)), np.float32(255))
