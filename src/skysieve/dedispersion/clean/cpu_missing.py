"""Kernels for missing samples: statistics, replacements, the fraction of a window that is present (numba)."""

from __future__ import annotations

import math

import numpy as np

from skysieve.core.cpu.jit import njit

JIT = {"nogil": True, "error_model": "numpy"}
SPREAD = math.sqrt(3.0) / 65536
"""Scale of `four_numbers` to unit variance."""


def blank(rows, start, rects):
    """Set missing samples to 0; ``rects`` are (first sample, last + 1, first row, last + 1)."""
    for first, last, low, high in (rects - np.array([start, start, 0, 0])).tolist():
        rows[max(0, first) : max(0, last), low:high] = 0


@njit(**JIT)
def accumulate(rows, start, rects, count, total, square):
    """Add samples of a block to sums by channel, one after the other: the sums do not depend on how the block is cut.

    Missing samples of ``rows`` are 0 (`blank`).  A value that is not finite counts as missing.
    """
    n = len(rows)
    for t in range(n):
        row = rows[t]
        for c in range(len(row)):
            v = np.float64(row[c])
            if not math.isfinite(v):
                v = 0.0
                count[c] -= 1
            total[c] += v
            square[c] += v * v
    for c in range(rows.shape[1]):
        count[c] += n
    for k in range(len(rects)):
        gone = min(n, rects[k, 1] - start) - max(0, rects[k, 0] - start)
        for c in range(rects[k, 2], rects[k, 3]) if gone > 0 else range(0):
            count[c] -= gone


@njit(**JIT)
def random_bits(t, c):
    """64 random bits that depend only on the numbers of sample and channel."""
    z = np.uint64(t) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(c + 1) * np.uint64(0xD1B54A32D192ED03)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(**JIT)
def random_part(t, c):
    """A random number from 0 to 1, without 1, of `random_bits`."""
    return np.float64(random_bits(t, c) >> np.uint64(11)) / 9007199254740992.0


@njit(**JIT)
def four_numbers(t, c):
    """The sum of the four 16-bit numbers of `random_bits`, less its mean."""
    z = random_bits(t, c)
    s = np.uint64(0)
    for part in range(4):
        s += (z >> np.uint64(16 * part)) & np.uint64(0xFFFF)
    return np.float64(s) - 131070.0


@njit(**JIT)
def fill(rows, start, rects, mean, sigma, most, whole):
    """Replace missing samples by noise of their channel's mean and sigma, which depends only on channel and sample.

    ``whole`` rounds the noise and clips it to 0 ... ``most``, or, if ``most`` is negative, to ``most ... -most - 1``.
    """
    n = len(rows)
    low, high = (0.0, float(most)) if most >= 0 else (float(most), float(-most - 1))
    for k in range(len(rects)):
        for t in range(max(0, rects[k, 0] - start), min(n, rects[k, 1] - start)):
            for c in range(rects[k, 2], rects[k, 3]):
                v = mean[c] + sigma[c] * four_numbers(start + t, c) * SPREAD
                if whole:
                    v = min(max(np.rint(v), low), high)
                rows[t, c] = v


@njit(**JIT)
def live_parts(number, first, width, b, delays, rects, reach, out):
    """The fraction of each window's samples that is present.

    Window ``i`` has ``width[i]`` binned samples (of ``b`` samples) from ``first[i]`` on, at the delays
    ``delays[number[i]]``.  ``rects`` are missing; they are sorted by their first sample, none is longer than ``reach``.
    """
    C = delays.shape[1]
    for i in range(len(number)):
        n = delays[number[i]]
        least, largest = n[0], n[0]
        for c in range(C):
            least, largest = min(least, n[c]), max(largest, n[c])
        low, high = (first[i] + least) * b, (first[i] + width[i] + largest) * b
        gone = 0
        for k in range(np.searchsorted(rects[:, 0], low - reach), len(rects)):
            if rects[k, 0] >= high:
                break
            if rects[k, 1] <= low:
                continue
            for c in range(rects[k, 2], rects[k, 3]):
                a = (first[i] + n[c]) * b
                gone += max(0, min(rects[k, 1], a + width[i] * b) - max(rects[k, 0], a))
        out[i] = 1.0 - gone / (np.float64(width[i]) * b * C)
