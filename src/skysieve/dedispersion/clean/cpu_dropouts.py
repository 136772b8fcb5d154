"""Runs of equal samples, and values drawn from the good samples of a channel (numba).

``low`` and ``high`` are the first of the channels that a function looks at, and the last + 1: several threads share the
channels.
"""

from __future__ import annotations

import math

import numpy as np

from skysieve.core.cpu.jit import njit

from .cpu_missing import SPREAD, four_numbers, random_part

JIT = {"nogil": True, "error_model": "numpy"}
ROUGH = 4.0
"""Integer samples with a standard deviation below this are rounded at random, so that rounding does not shift the
mean."""


@njit(**JIT)
def equal_pairs(rows, before, known, top, equal, many, low, high):
    """Count equal neighbours in time by channel (``equal``), and by sample without those at ``top`` (``many``).

    ``before`` is the spectrum before the first row if ``known``; ``many[t]`` compares row ``t`` with the one before.
    """
    for t in range(len(rows)):
        total = 0
        for c in range(low, high):
            if t == 0 and not known:
                continue
            if rows[t, c] == (rows[t - 1, c] if t else before[c]):
                equal[c] += 1
                if rows[t, c] != top:
                    total += 1
        many[t] = total


@njit(**JIT)
def long_runs(rows, at, value, begin, need, need_top, top, bottom, found, low, high):
    """Find runs of equal samples that end in these rows.

    A run has at least ``need`` samples, or ``need_top`` if its value is ``top``.  ``value`` and ``begin`` describe the
    runs of the channels ``low:high`` that are open; they are arrays of one thread, since writes of several threads to
    the same line of the cache are slow.  ``found`` gets (channel, first, last + 1, value is ``top`` or ``bottom``);
    returns their number.
    """
    count = 0
    for t in range(len(rows)):
        for i in range(high - low):
            v, c = rows[t, low + i], low + i
            if v != value[i]:
                length = at + t - begin[i]
                if length >= (need_top[c] if value[i] == top else need[c]):
                    found[count, 0] = c
                    found[count, 1] = begin[i]
                    found[count, 2] = at + t
                    found[count, 3] = value[i] == top or value[i] == bottom
                    count += 1
                value[i] = v
                begin[i] = at + t
    return count


@njit(**JIT)
def longest_run(rows, top, first, length):
    """The longest run of equal samples of each channel in some rows, without runs of the value ``top``."""
    n, C = rows.shape
    for c in range(C):
        begin = 0
        length[c] = 0
        for t in range(1, n + 1):
            if t == n or rows[t, c] != rows[begin, c]:
                if t - begin > length[c] and rows[begin, c] != top:
                    first[c] = begin
                    length[c] = t - begin
                begin = t


@njit(**JIT)
def histograms(rows, gone, which, least, counts, low, high):
    """Count the good samples of some channels by value; ``which`` is the row of ``counts`` for a channel, or -1."""
    for t in range(len(rows)):
        for c in range(low, high):
            if which[c] >= 0 and not gone[t, c]:
                counts[which[c], np.int64(rows[t, c]) - least] += 1


@njit(**JIT)
def scatters(rows, gone, which, count, origin, total, square, low, high):
    """Add good, finite samples of some channels, relative to the first of them, to sums and to sums of squares."""
    n = len(rows)
    for c in range(low, high):
        w = which[c]
        if w < 0:
            continue
        for t in range(n):
            v = np.float64(rows[t, c])
            if gone[t, c] or not math.isfinite(v):
                continue
            if count[w] == 0:
                origin[w] = v
            total[w] += v - origin[w]
            square[w] += (v - origin[w]) ** 2
            count[w] += 1


@njit(**JIT)
def draw(rows, start, gone, which, below, least):
    """Replace samples that are ``gone`` by values drawn from a histogram.

    ``below[which[c], k]`` counts the good samples of channel ``c`` up to the value ``least + k``.  Without good
    samples, or if ``which`` is -1, the value is 0.
    """
    n, C = rows.shape
    last = below.shape[1] - 1
    for t in range(n):
        for c in range(C):
            if not gone[t, c]:
                continue
            w = which[c]
            if w < 0 or below[w, last] == 0:
                rows[t, c] = 0
                continue
            u = random_part(start + t, c) * below[w, last]
            a, b = 0, last
            while a < b:
                k = (a + b) // 2
                if below[w, k] > u:
                    b = k
                else:
                    a = k + 1
            rows[t, c] = least + a


@njit(**JIT)
def shift(rows, start, gone, rect, mean, before, after, least, most, whole):
    """Move drawn values from the level of their block to a line between the levels before and after a rectangle.

    ``rect`` is (first sample, last + 1, first row, last + 1); ``before`` and ``after`` are the levels of its rows, and
    ``mean`` is that of the drawn values.  Whole numbers are rounded at random, so that the mean stays.
    """
    first, last, low, high = rect
    for t in range(max(first, start), min(last, start + len(rows))):
        part = (t + 0.5 - first) / (last - first)
        for c in range(low, high):
            v = before[c - low] + part * (after[c - low] - before[c - low]) - mean[c - low]
            if not gone[t - start, c] or v == 0.0:
                continue
            v += rows[t - start, c]
            if whole:
                v = min(max(np.floor(v + random_part(t, c + 0x60000000)), least), most)
            rows[t - start, c] = v


@njit(**JIT)
def draw_noise(rows, start, gone, which, mean, sigma, least, most, whole):
    """Replace samples that are ``gone`` by noise of their channel's mean and sigma; ``whole`` rounds and clips it."""
    n, C = rows.shape
    for t in range(n):
        for c in range(C):
            if not gone[t, c]:
                continue
            w = which[c]
            if w < 0:
                rows[t, c] = 0
                continue
            v = mean[w] + sigma[w] * four_numbers(start + t, c) * SPREAD
            if whole:
                if sigma[w] < ROUGH:
                    v += random_part(start + t, c + 0x40000000) - 0.5
                v = min(max(np.rint(v), least), most)
            rows[t, c] = v
