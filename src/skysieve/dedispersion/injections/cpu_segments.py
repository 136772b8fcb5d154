"""Kernels of campaigns: shapes of pulses, the addition of pulses to noise, the best window near a pulse (numba)."""

from __future__ import annotations

import math

import numpy as np

from skysieve.core.cpu.jit import njit

JIT = {"nogil": True, "error_model": "numpy"}


FEW = 0.2
"""Samples and smearing shorter than this many standard deviations of a pulse are approximated; the error of a sample is
at most 1.4e-5 of the height."""


@njit(**JIT)
def area(x, sigma):
    """The second integral, up to ``x``, of a Gaussian of area 1."""
    z = x / sigma
    return x * 0.5 * math.erfc(-z / math.sqrt(2.0)) + sigma / math.sqrt(2 * math.pi) * math.exp(-0.5 * z * z)


@njit(**JIT)
def gaussian(begin, smear, sigma, step, out):
    """Integrals over samples of a Gaussian of area 1 around 0, which is smeared: ``out[c, t]``.

    Parameters
    ----------
    begin, smear : float64 (channels,)
        The time at which sample 0 begins, and the length over which channels are smeared.
    sigma, step : float
        Standard deviation, and length of a sample.
    """
    short = step / sigma
    for c in range(out.shape[0]):
        half, spread = smear[c] / 2, smear[c] / sigma
        if max(short, spread) < FEW:  # the mean over a short time, to the second order
            curved = (short * short + spread * spread) / 24
            for t in range(out.shape[1]):
                z = (begin[c] + (t + 0.5) * step) / sigma
                out[c, t] = short / math.sqrt(2 * math.pi) * math.exp(-0.5 * z * z) * (1 + curved * (z * z - 1))
            continue
        before = area(begin[c] + half, sigma) - area(begin[c] - half, sigma)
        for t in range(out.shape[1]):
            end = begin[c] + (t + 1) * step
            after = area(end + half, sigma) - area(end - half, sigma)
            out[c, t] = (after - before) / smear[c]
            before = after


@njit(**JIT)
def shifted_sum(rows, at, out):
    """Add every row to ``out``, row ``c`` from its sample ``at[c]`` on."""
    for c in range(rows.shape[0]):
        for t in range(rows.shape[1]):
            out[at[c] + t] += rows[c, t]


@njit(**JIT)
def best_boxcar(series, lengths):
    """First sample, length, and sum over the root of the length, of the window where this is the largest."""
    n = len(series)
    total = np.zeros(n + 1)
    for t in range(n):
        total[t + 1] = total[t] + series[t]
    first, best, height = 0, 1, -np.inf
    for length in lengths:
        most, place = -np.inf, 0
        for t in range(n - length + 1):
            value = total[t + length] - total[t]
            if value > most:
                most, place = value, t
        if most / math.sqrt(length) > height:
            first, best, height = place, length, most / math.sqrt(length)
    return first, best, height


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
