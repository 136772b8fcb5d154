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
TOP, BOTTOM = 1, 2
"""Marks of runs at the largest and at the smallest value."""
BYTES = 128
"""Channels that are counted in a byte."""


@njit(**JIT)
def equal_pairs(rows, top, equal, many):
    """Count equal neighbours in time by channel (``equal``), and by sample without those at ``top`` (``many``).

    ``many[t]`` compares row ``t`` with the next one.  The inner loop counts in bytes, so that it is vectorised.
    """
    n, C = len(rows) - 1, rows.shape[1]
    counts = np.zeros(C, np.uint8)
    for t in range(n):
        total = 0
        for at in range(0, C, BYTES):  # indices from 0 are known not to be negative
            a, b, count = rows[t, at : at + BYTES], rows[t + 1, at : at + BYTES], counts[at : at + BYTES]
            part = np.uint8(0)
            for c in range(len(a)):
                same = np.uint8(a[c] == b[c])
                count[c] += same
                part = np.uint8(part + (same & np.uint8(a[c] != top)))
            total += np.int64(part)
        many[t] = total
        if t % 255 == 254 or t == n - 1:
            for c in range(C):
                equal[c] += np.int64(counts[c])
                counts[c] = 0


@njit(**JIT)
def long_runs(rows, at, need, step, top, bottom, found, ends):
    """Find runs of at least ``need`` equal samples that begin after the first row and end before the last.

    One pair of neighbouring rows is compared in every ``step`` rows, so that a run of more than ``step`` samples holds
    at least one of these pairs.  Each row of ``found`` is a run: channel, first sample, last sample + 1, and mark of
    the value.  ``at`` is the number of the first sample.  Returns the number of runs.  ``ends`` gets the numbers of
    equal pairs after the first row and before the last one.
    """
    n, C = rows.shape
    until = np.zeros(C, np.int64)
    for c in range(C):
        first, last = 0, n - 1
        while first < n - 1 and rows[first + 1, c] == rows[first, c]:
            first += 1
        while last > 0 and rows[last - 1, c] == rows[last, c]:
            last -= 1
        until[c] = ends[0, c] = first
        ends[1, c] = n - 1 - last
    count = 0
    for t in range(step - 1, n - 1, step):
        for c in range(C):
            v = rows[t, c]
            if v != rows[t + 1, c] or t < until[c]:
                continue
            first, last = t, t + 2
            while rows[first - 1, c] == v:
                first -= 1
            while last < n and rows[last, c] == v:
                last += 1
            until[c] = last - 1
            if last < n and last - first >= need[c]:
                mark = TOP if v == top else BOTTOM if v == bottom else 0
                found[count, 0], found[count, 1], found[count, 2], found[count, 3] = c, at + first, at + last, mark
                count += 1
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
def histograms(rows, gone, some, place, least, counts):
    """Count the good samples of the channels ``some`` by value, from ``place`` in the flat ``counts`` on.

    ``gone`` is empty if all samples are good.
    """
    flat = counts.reshape(-1)
    for t in range(len(rows)):
        row = rows[t]
        if not len(gone):
            for j in range(len(some)):
                flat[np.uint64(place[j] + np.int64(row[np.uint64(some[j])]) - least)] += 1
            continue
        lost = gone[t]
        for j in range(len(some)):
            if not lost[some[j]]:
                flat[place[j] + np.int64(row[some[j]]) - least] += 1


@njit(**JIT)
def scatters(rows, gone, which, count, origin, total, square, low, high):
    """Add good, finite samples of some channels, relative to the first of them, to sums and to sums of squares.

    ``gone`` is empty if all samples are good.
    """
    n = len(rows)
    for c in range(low, high):
        w = which[c]
        if w < 0:
            continue
        for t in range(n):
            v = np.float64(rows[t, c])
            if (len(gone) and gone[t, c]) or not math.isfinite(v):
                continue
            if count[w] == 0:
                origin[w] = v
            total[w] += v - origin[w]
            square[w] += (v - origin[w]) ** 2
            count[w] += 1


@njit(**JIT)
def draw(rows, start, gone, which, below, least, low, high):
    """Replace samples that are ``gone`` by values drawn from a histogram.

    ``below[which[c], k]`` counts the good samples of channel ``c`` up to the value ``least + k``.  Without good
    samples, or if ``which`` is -1, the value is 0.
    """
    last = below.shape[1] - 1
    for c in range(low, high):
        w = which[c]
        total = below[w, last] if w >= 0 else 0
        for t in range(len(rows)):
            if not gone[t, c]:
                continue
            a, left = 0, last + 1 if total else 0
            u = np.int64(random_part(start + t, c) * total)
            while left > 1:  # without a branch, which would be mispredicted
                half = left // 2
                a += half * np.int64(below[w, a + half - 1] <= u)
                left -= half
            rows[t, c] = least + a if total else 0


@njit(**JIT)
def nearest_levels(means, near, level, scatter, slope):
    """Level and scatter of each channel, and difference of its halves, from its first ``near`` means that are not NaN.

    These are medians; the difference is in units of the scatter.
    """
    first, ordered, middle = np.empty(near), np.empty(near), np.empty(4)
    for c in range(means.shape[1]):
        n = 0
        for i in range(len(means)):
            if n < near and not math.isnan(means[i, c]):
                first[n] = means[i, c]
                n += 1
        half = min(n, near // 2)
        for k in range(4):  # medians of all, of their deviations, and of the halves
            size = 0
            for i in range(half if k == 3 else 0, half if k == 2 else n):
                v, at = abs(first[i] - middle[0]) if k == 1 else first[i], size
                while at > 0 and ordered[at - 1] > v:
                    ordered[at] = ordered[at - 1]
                    at -= 1
                ordered[at] = v
                size += 1
            middle[k] = (ordered[(size - 1) // 2] + ordered[size // 2]) / 2 if size else np.nan
        level[c] = middle[0]
        scatter[c] = 1.4826 * middle[1]
        slope[c] = (middle[2] - middle[3]) / scatter[c]


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
def draw_noise(rows, start, gone, which, mean, sigma, least, most, whole, low, high):
    """Replace samples that are ``gone`` by noise of their channel's mean and sigma; ``whole`` rounds and clips it."""
    for t in range(len(rows)):
        for c in range(low, high):
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
