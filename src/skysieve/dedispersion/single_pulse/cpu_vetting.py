"""Kernels that sum the samples of a candidate's cut-out: by channel, and by sub-band (numba).

Samples are float32 of shape (samples, channels); ``known`` says which of them count.  ``first`` is the bin of the first
sample, ``size`` the samples of a bin, and ``start`` the bin at which the candidate arrives in each channel.
"""

from __future__ import annotations

import numpy as np

from skysieve.core.cpu.jit import in_interpreter, njit

JIT = {"nogil": True, "error_model": "numpy"}
ANY_ORDER = JIT | {"fastmath": {"reassoc", "nsz"}}
"""Sums over the channels of a sub-band may be taken in any order, so by vector instructions."""


@njit(**JIT)
def add_sample(x, known, at, start, width, guard, sums):
    """Add one sample of each channel, in bin ``at``, to the sums of `channel_sums`."""
    for c in range(len(x)):
        n = 1.0 if known[c] else 0.0
        v = np.float64(x[c]) if known[c] else 0.0
        place = at - start[c]
        beside = 1.0 if place < -guard or place >= width + guard else 0.0
        inside = 1.0 if 0 <= place < width else 0.0
        sums[0, c] += beside * n
        sums[1, c] += beside * v
        sums[2, c] += beside * v * v
        sums[3, c] += inside * n
        sums[4, c] += inside * v


@in_interpreter(add_sample)
def _add_sample(x, known, at, start, width, guard, sums):
    v, place = np.where(known, x.astype(np.float64), 0.0), at - start
    beside, inside = (place < -guard) | (place >= width + guard), (place >= 0) & (place < width)
    for row, values in zip(sums, (beside & known, beside * v, beside * v * v, inside & known, inside * v), strict=True):
        row += values


@njit(**JIT)
def channel_sums(rows, known, first, size, start, width, guard, sums):
    """Sum the samples of each channel beside the candidate and inside it.

    Parameters
    ----------
    width, guard : int
        Bins of the candidate; bins before and after it that count for neither.
    sums : float64 (5, channels)
        Number, sum, and sum of squares of the samples beside it; number and sum of those inside it.
    """
    for i in range(len(rows)):
        add_sample(rows[i], known[i], first + i // size, start, width, guard, sums)


@njit(**ANY_ORDER)
def add_bands(x, known, edges, mean, var, s, q):
    """Add one sample of each channel, less its mean, and its variance, to the sub-bands."""
    for b in range(len(edges) - 1):
        total = variance = 0.0
        for c in range(edges[b], edges[b + 1]):
            total += np.float64(x[c]) - mean[c] if known[c] else 0.0
            variance += var[c] if known[c] else 0.0
        s[b] += total
        q[b] += variance


@in_interpreter(add_bands)
def _add_bands(x, known, edges, mean, var, s, q):
    s += np.add.reduceat(np.where(known, x.astype(np.float64) - mean, 0.0), edges[:-1])
    q += np.add.reduceat(np.where(known, var, 0.0), edges[:-1])


@njit(**JIT)
def add_channel(x, known, first, size, mean, var, s, q):
    """Add samples of one channel, less its mean, and its variance, to the bins from ``first`` on."""
    for i in range(len(x)):
        if known[i]:
            s[first + i // size] += np.float64(x[i]) - mean
            q[first + i // size] += var


@in_interpreter(add_channel)
def _add_channel(x, known, first, size, mean, var, s, q):
    bins = first + np.arange(len(x)) // size
    np.add.at(s, bins, np.where(known, x.astype(np.float64) - mean, 0.0))
    np.add.at(q, bins, np.where(known, var, 0.0))


@njit(**JIT)
def band_series(rows, known, first, size, start, edges, used, mean, var, flat, lined):
    """Add samples to the series of the sub-bands, as observed and de-dispersed.

    Parameters
    ----------
    edges : int64 (bands + 1,)
        First channel of each sub-band.
    used : bool (channels,)
        Channels that count.
    mean, var : float64 (channels,)
        Of the samples beside the candidate; mean 0 and variance 0 where a channel is not used.
    flat : float64 (2, bands, bins)
        Sums of samples and of variances, as observed.
    lined : float64 (2, bands, bins)
        The same, de-dispersed: bin 0 of a channel is ``start``.
    """
    n, length = len(rows), lined.shape[2]
    for i in range(n):
        at = first + i // size
        add_bands(rows[i], known[i] & used, edges, mean, var, flat[0, :, at], flat[1, :, at])
    for b in range(len(edges) - 1):
        for c in range(edges[b], edges[b + 1]):
            low, high = max(0, (start[c] - first) * size), min(n, (start[c] + length - first) * size)
            if used[c] and low < high:
                at = first + low // size - start[c]
                add_channel(rows[low:high, c], known[low:high, c], at, size, mean[c], var[c], lined[0, b], lined[1, b])
