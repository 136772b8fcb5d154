"""Kernels that sum the samples of a candidate's cut-out: by channel, and by sub-band (numba).

Samples are float32 of shape (samples, channels); ``known`` says which of them count.  ``first`` is the bin of the first
sample, ``size`` the samples of a bin, and ``start`` the bin at which the candidate arrives in each channel, which never
falls from one channel to the next.
"""

from __future__ import annotations

import numpy as np

from skysieve.core.cpu.jit import in_interpreter, njit

JIT = {"nogil": True, "error_model": "numpy"}
ANY_ORDER = JIT | {"fastmath": {"reassoc", "nsz"}}
"""Sums over the channels of a sub-band may be taken in any order, so by vector instructions."""


@njit(**JIT)
def add_sample(x, known, number, total, square):
    """Add one sample of each channel to the sums of `channel_sums`."""
    for c in range(len(x)):
        v = np.float64(x[c])
        v = v if known[c] else 0.0
        number[c] += 1.0 if known[c] else 0.0
        total[c] += v
        square[c] += v * v


@in_interpreter(add_sample)
def _add_sample(x, known, number, total, square):
    v = np.where(known, x.astype(np.float64), 0.0)
    number += known
    total += v
    square += v * v


@njit(**JIT)
def channel_sums(rows, known, first, size, start, width, guard, sums):
    """Sum the samples of each channel beside the candidate.

    Parameters
    ----------
    width, guard : int
        Bins of the candidate; bins before and after it that do not count either.
    sums : float64 (3, channels)
        Number, sum, and sum of squares of the samples.
    """
    channels = rows.shape[1]
    number, total, square = sums[0], sums[1], sums[2]
    low = high = 0  # channels between them are near the candidate
    for i in range(len(rows)):
        at = first + i // size
        while low < channels and start[low] <= at - width - guard:
            low += 1
        while high < channels and start[high] <= at + guard:
            high += 1
        for part in (slice(0, low), slice(high, channels)):
            add_sample(rows[i, part], known[i, part], number[part], total[part], square[part])


@njit(**ANY_ORDER)
def add_bands(x, known, mean, var, edges, flat, at):
    """Add one sample of all channels to their sub-bands in bin ``at``."""
    for b in range(len(edges) - 1):
        band = slice(edges[b], edges[b + 1])
        some, counts, level, power = x[band], known[band], mean[band], var[band]  # so that the loop is vectorised
        s = q = 0.0
        for c in range(len(some)):
            v = np.float64(some[c]) - level[c]
            s += v if counts[c] else 0.0
            q += power[c] if counts[c] else 0.0
        flat[0, b, at] += s
        flat[1, b, at] += q


@in_interpreter(add_bands)
def _add_bands(x, known, mean, var, edges, flat, at):
    flat[0, :, at] += np.add.reduceat(np.where(known, x - mean, 0.0), edges[:-1])
    flat[1, :, at] += np.add.reduceat(np.where(known, var, 0.0), edges[:-1])


@njit(**JIT)
def line_up(x, known, mean, var, edges, start, first, last, lined, at):
    """Add one sample of the channels ``first:last`` to their sub-bands in the bins after their ``start``."""
    for b in range(len(edges) - 1):
        total, power = lined[0, b], lined[1, b]
        for c in range(max(first, edges[b]), min(last, edges[b + 1])):
            if known[c]:
                total[at - start[c]] += np.float64(x[c]) - mean[c]
                power[at - start[c]] += var[c]


@in_interpreter(line_up)
def _line_up(x, known, mean, var, edges, start, first, last, lined, at):
    some = first + np.flatnonzero(known[first:last])
    where = np.searchsorted(edges, some, "right") - 1, at - start[some]
    np.add.at(lined[0], where, x[some] - mean[some])
    np.add.at(lined[1], where, var[some])


@njit(**JIT)
def band_series(rows, known, first, size, start, edges, mean, var, flat, lined):
    """Add samples to the series of the sub-bands, as observed and de-dispersed.

    Parameters
    ----------
    edges : int64 (bands + 1,)
        First channel of each sub-band.
    mean, var : float64 (channels,)
        Of the samples beside the candidate.
    flat : float64 (2, bands, bins)
        Sums of samples less their means, and of variances, as observed.
    lined : float64 (2, bands, bins)
        The same, de-dispersed: bin 0 of a channel is ``start``.
    """
    channels, length = rows.shape[1], lined.shape[2]
    low = high = 0  # channels between them have a bin of ``lined``
    for i in range(len(rows)):
        at = first + i // size
        while low < channels and start[low] <= at - length:
            low += 1
        while high < channels and start[high] <= at:
            high += 1
        add_bands(rows[i], known[i], mean, var, edges, flat, at)
        line_up(rows[i], known[i], mean, var, edges, start, low, high, lined, at)
