"""Runs of equal samples in a stream (numba)."""

from __future__ import annotations

import numpy as np
from numba import njit

JIT = {"cache": True, "nogil": True, "error_model": "numpy"}


@njit(**JIT)
def compare(a, b, run, longest):
    """Compare two spectra; 8-bit counters, so that many channels are compared at a time."""
    for c in range(len(a)):
        r = np.uint8(run[c] + np.uint8(1)) if a[c] == b[c] else np.uint8(0)
        run[c] = r
        longest[c] = longest[c] if longest[c] > r else r


@njit(**JIT)
def quiet(rows, before, run, need, counted, limit, stride, short, longest, total):
    """Whether a piece of at most 127 samples has no run that may be dropped data; then the counters are updated.

    Parameters
    ----------
    rows, before : arrays
        Samples of the piece, and the spectrum before it.
    run : array of int64
        Equal pairs in a row of each channel, up to the piece; updated.
    need : array of uint8
        Pairs of a run that is looked at closely, by channel.
    counted : array of bool
        Channels whose statistics are known.
    limit : int
        Of these, channels whose pair of samples may be equal at a time, looked at every ``stride`` samples.
    short, longest : arrays of uint8
        Work space.
    total : array of int64
        Equal pairs of each channel, of those that lie ``stride`` samples apart; updated.
    """
    n, C = rows.shape
    for c in range(C):
        short[c] = min(run[c], 127)
        longest[c] = 0
    compare(rows[0], before, short, longest)
    for t in range(1, n):
        compare(rows[t], rows[t - 1], short, longest)
    for c in range(C):
        if longest[c] >= need[c]:
            return False
    for t in range(0, n, stride):
        many = 0
        for c in range(C):
            many += counted[c] & (rows[t, c] == (rows[t - 1, c] if t else before[c]))
        if many >= limit:
            return False
    for t in range(0, n, stride):
        for c in range(C):
            total[c] += rows[t, c] == (rows[t - 1, c] if t else before[c])
    for c in range(C):
        run[c] = run[c] + n if short[c] >= n else np.int64(short[c])
    return True


@njit(**JIT)
def close_look(
    rows, before, known, gone, counted, at, value, begin, need, need_top, top, bottom, equal, pairs, many, found
):
    """All pairs of a piece: counts by channel and by sample, and the runs that are too long.

    ``gone[t]`` marks the missing samples of row ``t - 1``; row 0 is that of ``before``, which ``known`` says is there.
    Neighbours of missing samples are no pairs.  ``many`` has the ``counted`` channels, but for those at ``top``.
    ``begin`` is the first sample of the run that is open, ``value`` its value.  Returns the number of runs: (channel,
    first, last + 1, is at the top or the bottom); runs that are open count, up to the end.
    """
    n, C = rows.shape
    count = 0
    for t in range(n):
        for c in range(C):
            fits = (t > 0 or known) and not gone[t, c] and not gone[t + 1, c]
            same = fits and rows[t, c] == (rows[t - 1, c] if t else before[c])
            pairs[c] += fits
            if same:
                equal[c] += 1
                many[t] += counted[c] and rows[t, c] != top
                continue
            if at + t - begin[c] >= (need_top[c] if value[c] == top else need[c]):
                found[count, 0], found[count, 1], found[count, 2] = c, begin[c], at + t
                found[count, 3] = value[c] == top or value[c] == bottom
                count += 1
            value[c] = rows[t, c]
            begin[c] = at + t
    for c in range(C):
        if at + n - begin[c] >= (need_top[c] if value[c] == top else need[c]):
            found[count, 0], found[count, 1], found[count, 2] = c, begin[c], at + n
            found[count, 3] = value[c] == top or value[c] == bottom
            count += 1
    return count
