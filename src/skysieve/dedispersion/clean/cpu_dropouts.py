"""Runs of equal samples, and values drawn from the good samples of a channel (numba)."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

JIT = {"cache": True, "nogil": True, "error_model": "numpy"}
SPREAD = math.sqrt(3.0) / 65536
"""Scale of the sum of four 16-bit numbers to unit variance."""
ROUGH = 4.0
"""Integers whose scatter is below this are rounded at random, so that rounding does not shift their mean."""


@njit(**JIT)
def count_pair(a, b, first, run, longest, equal):
    """Compare two spectra from channel ``first`` on; without branches, so that it is done by vectors."""
    runs, most, all_equal = run[first:], longest[first:], equal[first:]
    total = 0
    for c in range(len(a)):
        same = np.int32(a[c] == b[c])
        r = runs[c]
        most[c] = max(most[c], r * (1 - same))
        runs[c] = (r + 1) * same
        all_equal[c] += same
        total += same
    return total


@njit(**JIT)
def watch_time(x, times, step, first, last, run, longest, equal, many):
    """Compare sample ``times[k]`` with the next one, for elements ``first : last`` of each spectrum.

    ``x`` is flat, a spectrum lies every ``step`` elements.  ``run`` counts the pairs in a row that are equal,
    ``longest`` keeps the longest run that has ended, ``equal`` all equal pairs, ``many[k]`` the equal elements of pair
    ``k``.
    """
    for k in range(len(times)):
        at = times[k] * step
        many[k] += count_pair(
            x[at + first : at + last], x[at + step + first : at + step + last], first, run, longest, equal
        )


@njit(**JIT)
def watch_channels(x, times, step, first, last, run, longest, equal, many):
    """`watch_time` for samples whose channels lie ``step`` elements apart and whose times are neighbours."""
    for c in range(first, last):
        at = c * step
        r, most, total = np.int64(run[c]), np.int64(longest[c]), 0
        for k in range(len(times)):
            same = np.int64(x[at + times[k]] == x[at + times[k] + 1])
            most = max(most, r * (1 - same))
            r = (r + 1) * same
            total += same
            many[k] += same
        run[c], longest[c] = r, most
        equal[c] += total


@njit(**JIT)
def watch_equal(same, pairs, step, first, last, run, longest, equal, many):
    """`watch_time` of pairs that have been compared: ``same`` is 1 where they are equal."""
    ones = np.ones(last - first, same.dtype)
    for k in range(pairs):
        at = k * step
        many[k] += count_pair(same[at + first : at + last], ones, first, run, longest, equal)


@njit(**JIT)
def equal_pairs(rows, before, known, top, equal, many):
    """Count equal neighbours in time: by channel, and by sample without those at ``top``.

    ``before`` is the spectrum before the first row, where ``known``; ``many[t]`` is of row ``t`` and the one before.
    """
    n, C = rows.shape
    for t in range(n):
        total = 0
        for c in range(C):
            if t == 0 and not known:
                continue
            if rows[t, c] == (rows[t - 1, c] if t else before[c]):
                equal[c] += 1
                if rows[t, c] != top:
                    total += 1
        many[t] = total


@njit(**JIT)
def long_runs(rows, at, value, begin, need, need_top, top, bottom, found):
    """Runs of equal samples that end in these rows, of at least ``need`` samples, or ``need_top`` at the value ``top``.

    ``value`` and ``begin`` are those of the runs that are open; returns the number found: (channel, first, last + 1, is
    at the top or the bottom).
    """
    n, C = rows.shape
    count = 0
    for t in range(n):
        for c in range(C):
            if rows[t, c] != value[c]:
                length = at + t - begin[c]
                if length >= (need_top[c] if value[c] == top else need[c]):
                    found[count, 0] = c
                    found[count, 1] = begin[c]
                    found[count, 2] = at + t
                    found[count, 3] = value[c] == top or value[c] == bottom
                    count += 1
                value[c] = rows[t, c]
                begin[c] = at + t
    return count


@njit(**JIT)
def longest_run(rows, top, first, length):
    """The longest run of equal samples of each channel in some rows, not at the value ``top``."""
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
def histograms(rows, gone, which, low, counts):
    """Count the good samples of some channels by value; ``which`` is a channel's row of ``counts``, or -1."""
    n, C = rows.shape
    for t in range(n):
        for c in range(C):
            if which[c] >= 0 and not gone[t, c]:
                counts[which[c], np.int64(rows[t, c]) - low] += 1


@njit(**JIT)
def scatters(rows, gone, which, count, origin, total, square):
    """Add to the sums of the good, finite samples of some channels and of their squares, less the first of them."""
    n, C = rows.shape
    for c in range(C):
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
def random_bits(t, c):
    """64 bits that depend on sample and channel number alone."""
    z = np.uint64(t) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(c + 1) * np.uint64(0xD1B54A32D192ED03)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(**JIT)
def draw(rows, start, gone, which, below, low):
    """Put values with the frequencies of a histogram in the place of what is gone.

    ``below[which[c], k]`` counts the good samples of channel ``c`` up to the value ``low + k``; 0 is put where there
    are none, or where ``which`` is -1.
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
            u = np.float64(random_bits(start + t, c) >> np.uint64(11)) / 9007199254740992.0 * below[w, last]
            a, b = 0, last
            while a < b:
                k = (a + b) // 2
                if below[w, k] > u:
                    b = k
                else:
                    a = k + 1
            rows[t, c] = low + a


@njit(**JIT)
def draw_noise(rows, start, gone, which, mean, sigma, least, most, whole):
    """Put noise of a channel's mean and scatter in the place of what is gone; ``whole`` rounds, within the limits."""
    n, C = rows.shape
    for t in range(n):
        for c in range(C):
            if not gone[t, c]:
                continue
            w = which[c]
            if w < 0:
                rows[t, c] = 0
                continue
            z = random_bits(start + t, c)
            s = np.uint64(0)
            for part in range(4):
                s += (z >> np.uint64(16 * part)) & np.uint64(0xFFFF)
            v = mean[w] + sigma[w] * (np.float64(s) - 131070.0) * SPREAD
            if whole:
                if sigma[w] < ROUGH:
                    u = random_bits(start + t, c + 0x40000000) >> np.uint64(11)
                    v += np.float64(u) / 9007199254740992.0 - 0.5
                v = min(max(np.rint(v), least), most)
            rows[t, c] = v
