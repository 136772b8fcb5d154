"""Kernels that sum the samples of a candidate's cut-out, by channel and by sub-band, and flatten the sums (numba).

Samples are uint8 or float32 of shape (samples, channels); ``known`` says which of them count.  ``first`` is the bin of
the first sample, and ``size`` the samples of a bin.  ``start`` are the bins by which the candidate arrives later in
each channel than at the top of the band; they never fall from one channel to the next.
"""

from __future__ import annotations

import math

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
def channel_sums(rows, known, first, size, side, start, width, guard, sums):
    """Sum the samples of each channel beside the candidate.

    Parameters
    ----------
    side, width, guard : int
        Bins before the candidate; bins of it; bins before and after it that do not count either.
    sums : float64 (3, channels)
        Number, sum, and sum of squares of the samples.
    """
    channels = rows.shape[1]
    number, total, square = sums[0], sums[1], sums[2]
    low = high = 0  # channels between them are near the candidate
    for i in range(len(rows)):
        at = first + i // size - side
        while low < channels and start[low] <= at - width - guard:
            low += 1
        while high < channels and start[high] <= at + guard:
            high += 1
        for part in (slice(0, low), slice(high, channels)):
            add_sample(rows[i, part], known[i, part], number[part], total[part], square[part])


@njit(**JIT)
def channel_levels(sums, least, mean, var, good):
    """Set the mean and variance of the samples of each channel, and whether it is used; both are 0 if it is not.

    A channel is used if it has ``least`` samples and more than rounding errors of a variance.
    """
    for c in range(len(good)):
        number = max(sums[0, c], 1.0)
        level = sums[1, c] / number
        power = sums[2, c] / number - level * level
        good[c] = sums[0, c] >= least and power > 1e-9 * (level * level)
        mean[c] = level if good[c] else 0.0
        var[c] = power if good[c] else 0.0


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


@njit(**ANY_ORDER)
def product_sum(a, b, c):
    """Sum of the products of three arrays, over the first ``len(a)`` elements of each."""
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i] * c[i]
    return total


@in_interpreter(product_sum)
def _product_sum(a, b, c):
    return np.sum(a * b[: len(a)] * c[: len(a)])


@njit(**JIT)
def add_product(out, factor, a, b):
    """Add the product of a number and of the first elements of two arrays to ``out``."""
    for i in range(len(out)):
        out[i] += factor * a[i] * b[i]


@in_interpreter(add_product)
def _add_product(out, factor, a, b):
    out += factor * a[: len(out)] * b[: len(out)]


@njit(**JIT)
def solve_banded(matrix, y, width):
    """Set ``y`` to the solution ``x`` of ``matrix x = y``, by Cholesky factors without square roots.

    ``matrix`` is symmetric and positive definite, with zeros where row and column differ by ``width`` or more.  Its
    lower half is read, and gets the factors.
    """
    n = len(y)
    for i in range(n):
        low = max(0, i - width + 1)
        for j in range(low, i):
            for k in range(low, j):
                matrix[i, j] -= matrix[i, k] * matrix[k, k] * matrix[j, k]
            matrix[i, j] /= matrix[j, j]
            matrix[i, i] -= matrix[i, j] * matrix[i, j] * matrix[j, j]
            y[i] -= matrix[i, j] * y[j]
    for i in range(n - 1, -1, -1):
        y[i] /= matrix[i, i]
        for k in range(i + 1, min(n, i + width)):
            y[i] -= matrix[k, i] * y[k]


@njit(**JIT)
def add_up(values, sums):
    """Running sums, from the second element of ``sums`` on."""
    total = 0.0
    for i in range(len(values)):
        total += values[i]
        sums[i + 1] = total


@in_interpreter(add_up)
def _add_up(values, sums):
    np.cumsum(values, out=sums[1:])


@njit(**JIT)
def flatten(flat, lined, splines, begin, end, first, last, middle, flat_sums, lined_sums):
    """Subtract the level of each sub-band, a sum of splines fitted beside the candidate, and add up what is left.

    Parameters
    ----------
    flat, lined : float64
        As of `band_series`; the level is subtracted from them.
    splines : float64 (n, most bins of a spline)
        Cubic splines in order, each from its first bin on; spline k and spline k + 4 have no bin in common.
    begin, end : int64 (n,)
        First bin of each spline, and last + 1.
    first, last : int64 (bands,)
        Bins of the candidate in each sub-band, and last + 1.
    middle : int64 (bands,)
        Bin of ``flat`` at which ``lined`` begins.
    flat_sums, lined_sums : float64 (2, bands, bins + 1)
        Running sums, from 0 on.
    """
    n, bins, length = len(splines), flat.shape[2], lined.shape[2]
    ones = np.ones(bins)
    for b in range(flat.shape[1]):
        values, power, trace = flat[0, b], flat[1, b], 0.0
        matrix, y, level = np.zeros((n, n)), np.zeros(n), np.zeros(bins)
        for k in range(n):
            for part in range(2):  # before and after the candidate
                low = begin[k] if part == 0 else max(begin[k], last[b])
                high = min(end[k], first[b]) if part == 0 else end[k]
                spline = splines[k, low - begin[k] :]
                if low < high:
                    y[k] += product_sum(values[low:high], spline, ones)
                for j in range(max(0, k - 3), k + 1):
                    top = min(high, end[j])
                    if low < top:
                        matrix[k, j] += product_sum(power[low:top], spline, splines[j, low - begin[j] :])
            trace += matrix[k, k]
        for k in range(n):
            matrix[k, k] += 1e-9 * (trace + 1)
        solve_banded(matrix, y, 4)
        for k in range(n):
            some = slice(begin[k], end[k])
            add_product(level[some], y[k], splines[k], ones)
        add_product(values, -1.0, level, power)
        add_product(lined[0, b], -1.0, level[middle[b] : middle[b] + length], lined[1, b])
        for i in range(2):
            add_up(flat[i, b], flat_sums[i, b])
            add_up(lined[i, b], lined_sums[i, b])


@njit(**JIT)
def undispersed(s, q, edges, power, middle, w, side, sizes, nears):
    """The largest sum, over parts of the band, of the squares of the S/N of a window at one time in all parts.

    Parts count of which the window covers half of the candidate's, or that of it; they have half of its power.

    Parameters
    ----------
    s, q : float64 (bands, bins + 1)
        Running sums of the samples and of their variances.
    edges : int64 (parts + 1,)
        First sub-band of each part.
    power, middle : float64 (parts,)
        Square of the candidate's S/N, and its first bin, which never falls, in each part.
    w, side : int
        Its width, and its first bin at the top of the band.
    sizes, nears : int64
        Widths of the windows, and of the bins on each side of them from which the level is taken.
    """
    parts, bins = len(power), s.shape[1] - 1
    below = np.zeros(parts + 1)  # power of the parts below each
    for p in range(parts):
        below[p + 1] = below[p] + power[p]
    best = 0.0
    for i in range(len(sizes)):
        size, near = sizes[i], nears[i]
        gap, need = size // 2, 0.5 * min(w, size)
        first = max(near + gap, side - size)
        last = min(bins - near - size - gap, math.ceil(middle[-1]) + w)
        low = high = 0  # the window covers enough of the parts between them
        for at in range(first, last + 1, max(1, size // 16)):
            while high < parts and middle[high] + need - size <= at:
                high += 1
            while low < high and middle[low] + w - need < at:
                low += 1
            if below[high] - below[low] < 0.5 * below[parts]:
                continue
            total = 0.0
            before, after = at - gap, at + size + gap
            for p in range(low, high):
                on = around = excess = level = 0.0
                for b in range(edges[p], edges[p + 1]):
                    on += q[b, at + size] - q[b, at]
                    around += q[b, before] - q[b, before - near] + q[b, after + near] - q[b, after]
                    excess += s[b, at + size] - s[b, at]
                    level += s[b, before] - s[b, before - near] + s[b, after + near] - s[b, after]
                if around > 0:
                    excess -= level * (on / around)
                if on > 0 and excess > 0:
                    total += excess * excess / on
            best = max(best, total)
    return best
