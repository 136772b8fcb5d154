"""Kernels that find runs of equal samples in a stream (numba)."""

from __future__ import annotations

import numpy as np

from skysieve.core.cpu.jit import njit

JIT = {"nogil": True, "error_model": "numpy"}


@njit(**JIT)
def compare(a, b, run, longest):
    """Compare two spectra, with 8-bit counters: a vector holds many channels."""
    for c in range(len(a)):
        r = run[c] + np.uint8(1)
        run[c] = np.uint8(r if a[c] == b[c] else 0)
        longest[c] = max(longest[c], run[c])


@njit(**JIT)
def quiet(rows, before, run, need, counted, limit, stride, short, longest, total):
    """Whether a piece of at most 127 samples surely has no dropped data; only then the counters are updated.

    Parameters
    ----------
    rows, before : arrays
        Samples of the piece, and the spectrum before it.
    run : array of int64
        Equal pairs of the run of each channel that is open at the start of the piece; updated.
    need : array of uint8
        By channel, the number of equal pairs in a run from which the piece is examined closely.
    counted : array of bool
        Channels whose statistics are known.
    limit : int
        Number of these channels with equal neighbours at the same time, from which the piece is examined closely; it is
        counted every ``stride`` samples.
    short, longest : arrays of uint8
        Work space.
    total : array of int64
        Equal pairs of each channel, counted every ``stride`` samples; updated.
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
    """Compare all pairs of a piece: count equal ones by channel and by sample, and find the runs that are too long.

    ``gone[t]`` marks the missing samples of row ``t - 1``, and ``gone[0]`` those of ``before``, the spectrum before the
    piece, which exists if ``known``.  A missing sample forms no pairs.  ``many`` counts equal pairs of the channels
    that are ``counted``, without those at ``top``.  ``begin`` is the first sample of the run that is open, ``value``
    its value.  ``found`` gets (channel, first, last + 1, value is ``top`` or ``bottom``); open runs are included, up to
    the end of the piece.  Returns the number of runs.
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
