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


@njit(**JIT)
def centre(x, known, used, mean, var, v, w):
    """Set ``v`` to one sample of each channel less its mean, and ``w`` to its variance; 0 where it does not count."""
    for c in range(len(x)):
        counts = known[c] & used[c]
        v[c] = np.float64(x[c]) - mean[c] if counts else 0.0
        w[c] = var[c] if counts else 0.0


@in_interpreter(centre)
def _centre(x, known, used, mean, var, v, w):
    counts = known & used
    v[:] = np.where(counts, x.astype(np.float64) - mean, 0.0)
    w[:] = np.where(counts, var, 0.0)


@njit(**ANY_ORDER)
def add_bands(v, w, edges, flat, at):
    """Add the values of all channels to their sub-bands in bin ``at``."""
    for b in range(len(edges) - 1):
        s = q = 0.0
        for c in range(edges[b], edges[b + 1]):
            s += v[c]
            q += w[c]
        flat[0, b, at] += s
        flat[1, b, at] += q


@in_interpreter(add_bands)
def _add_bands(v, w, edges, flat, at):
    flat[0, :, at] += np.add.reduceat(v, edges[:-1])
    flat[1, :, at] += np.add.reduceat(w, edges[:-1])


@njit(**JIT)
def line_up(v, w, edges, start, lined, at):
    """Add the values of all channels to their sub-bands in the bins after their ``start``."""
    length = lined.shape[2]
    for b in range(len(edges) - 1):
        for c in range(edges[b], edges[b + 1]):
            place = at - start[c]
            if 0 <= place < length:
                lined[0, b, place] += v[c]
                lined[1, b, place] += w[c]


@in_interpreter(line_up)
def _line_up(v, w, edges, start, lined, at):
    place = at - start
    [some] = np.nonzero((place >= 0) & (place < lined.shape[2]))
    where = np.searchsorted(edges, some, "right") - 1, place[some]
    np.add.at(lined[0], where, v[some])
    np.add.at(lined[1], where, w[some])


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
    v, w = np.empty(rows.shape[1]), np.empty(rows.shape[1])
    for i in range(len(rows)):
        at = first + i // size
        centre(rows[i], known[i], used, mean, var, v, w)
        add_bands(v, w, edges, flat, at)
        line_up(v, w, edges, start, lined, at)
