"""Kernels of campaigns: pulses that are added to noise, and the best window near a pulse (numba)."""

from __future__ import annotations

import math

import numpy as np

from skysieve.core.cpu.jit import njit

JIT = {"nogil": True, "error_model": "numpy"}


@njit(**JIT)
def recorded(value, highest):
    """A value as a receiver records it: a whole number from 0 to ``highest``; any number if this is 0."""
    return min(max(np.rint(value), np.float32(0.0)), highest) if highest > 0 else value


@njit(**JIT)
def add_level(values, sigma, level, highest, out):
    """Give noise its sigma and level, in place, and record it in ``out``; both have the shape (samples, channels)."""
    for t in range(values.shape[0]):
        for c in range(values.shape[1]):
            value = values[t, c] * sigma + level
            values[t, c] = value
            out[t, c] = recorded(value, highest)


@njit(**JIT)
def add_pulse(values, start, first, shapes, highest, out):
    """Add a pulse to samples ``start`` and after, and record those that it changes in ``out``.

    ``values`` and ``out`` have the shape (samples, channels).  Row ``c`` of the pulse is ``shapes[c]``, from sample
    ``first[c]`` on.
    """
    n, channels = values.shape
    length = shapes.shape[1]
    for c in range(channels):
        low, high = max(start, first[c]), min(start + n, first[c] + length)
        for t in range(low, high):
            value = values[t - start, c] + shapes[c, t - first[c]]
            values[t - start, c] = value
            out[t - start, c] = recorded(value, highest)


@njit(**JIT)
def aligned(block, begin, step, level, out):
    """Samples less their level, added in steps: ``out[c, i]`` from sample ``begin[c] + i step`` of ``block`` on.

    ``block`` has the shape (samples, channels).  Steps that reach beyond it are 0.
    """
    n = block.shape[0]
    for c in range(out.shape[0]):
        for i in range(out.shape[1]):
            low = begin[c] + i * step
            total = 0.0
            if low >= 0 and low + step <= n:
                for t in range(low, low + step):
                    total += np.float64(block[t, c]) - level[c]
            out[c, i] = np.float32(total)


@njit(**JIT)
def highest_window(x, shifts, widths, low, high, sigma):
    """Highest S/N of the windows that are centred on samples ``low : high`` of sums of shifted rows of ``x``.

    Parameters
    ----------
    x : float32 (channels, samples)
    shifts : int64 (sums, channels)
        Each sum has ``x[c, i + shifts[k, c]]`` in sample ``i``.
    widths : int64
    sigma : float
        Standard deviation of a sample of the sums.
    """
    channels, n = x.shape
    best = -np.inf
    series, prefix = np.empty(n), np.empty(n + 1)
    for k in range(len(shifts)):
        series[:] = 0.0
        for c in range(channels):
            s = shifts[k, c]
            for i in range(max(0, -s), min(n, n - s)):
                series[i] += x[c, i + s]
        prefix[0] = 0.0
        for i in range(n):
            prefix[i + 1] = prefix[i] + series[i]
        for w in widths:
            scale = 1.0 / (sigma * math.sqrt(np.float64(w)))
            for t in range(max(low, w // 2), min(high, n - w + w // 2 + 1)):
                value = (prefix[t - w // 2 + w] - prefix[t - w // 2]) * scale
                best = max(best, value)
    return best
