"""Power of voltages, in falling order of frequency (numba), with the arithmetic of ``channelise.cu``."""

from __future__ import annotations

import numpy as np

from skysieve.core.cpu.jit import njit

from .cpu_fft import LANES, transform

JIT = {"nogil": True, "error_model": "numpy"}


@njit(**JIT)
def filter_power(parts, filters, passes, turns, place, integrate, subbands, out):
    """``out[j, place[k, s]] = sum of |Y[j integrate + i, k, p, s]|^2`` over ``i`` and, inside, ``p``.

    ``Y[q, k]`` are the Fourier transforms of ``sum over t of filters[t, i] x[q + t, i]``.

    ``parts`` (lines, channels, polarisations x subbands x 2): real and imaginary parts of ``x``; ``filters`` (taps,
    channels).  If there are few columns, several spectra are transformed together.
    """
    taps, N = filters.shape
    width = parts.shape[2] // 2
    spectra = len(out) * integrate
    together = max(1, LANES // width)
    columns = (together * width + LANES - 1) // LANES * LANES
    xr, xi = np.zeros(N * columns, np.float32), np.zeros(N * columns, np.float32)
    yr, yi = np.zeros(N * columns, np.float32), np.zeros(N * columns, np.float32)
    flat = np.empty(6, np.float32)
    for q0 in range(0, spectra, together):
        for q in range(q0, min(q0 + together, spectra)):
            for i in range(N):
                at = i * columns + (q - q0) * width
                ar, ai = xr[at : at + width], xi[at : at + width]
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
        swapped = transform(xr, xi, yr, yi, columns, passes, turns, flat)
        zr, zi = (yr, yi) if swapped else (xr, xi)
        for q in range(q0, min(q0 + together, spectra)):
            line = out[q // integrate]
            if q % integrate == 0:
                for c in range(len(line)):
                    line[c] = 0
            for k in range(N):
                where = place[k]
                for p in range(0, width, subbands):
                    at = k * columns + (q - q0) * width + p
                    br, bi = zr[at : at + subbands], zi[at : at + subbands]
                    for s in range(subbands):
                        br[s] = br[s] * br[s] + bi[s] * bi[s]
                    for s in range(subbands):
                        line[where[s]] += br[s]


@njit(**JIT)
def quantise(rows, level, scale, middle, out):
    """Convert rows to bytes, in units of the scatter of their channels."""
    for t in range(len(rows)):
        for c in range(rows.shape[1]):
            q = np.rint((rows[t, c] - level[c]) * scale[c] + middle)
            out[t, c] = min(max(q, np.float32(0)), np.float32(255))
