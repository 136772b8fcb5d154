"""Kernels that sum the samples of a candidate's cut-out, by channel and by sub-band, and flatten the sums (numba).

Samples are uint8 or float32 of shape (samples, channels); ``gone`` says which of them do not count, in one row if that
is the same at all times.  ``first`` is the bin of the first sample, and ``size`` the samples of a bin.  ``start`` are
the bins by which the candidate arrives later in each channel than at the top of the band; they never fall from one
channel to the next.
"""

from __future__ import annotations

import numpy as np

from skysieve.core.cpu.jit import ZERO, in_interpreter, interpreted, njit

LEAST_KNOWN = 32
"""Fewest samples of a channel beside a candidate from which level and sigma of the channel are estimated."""
ROUNDING = 1e-11
"""Variance, in units of the squared mean, up to which it is a rounding error: sums of constants gave at most 9e-13."""
EXACT = 2**15
"""Number of 8-bit samples whose sum of squares fits int32."""
JIT = {"nogil": True, "error_model": "numpy"}
ANY_ORDER = JIT | {"fastmath": {"reassoc", "nsz"}}
"""Sums over the channels of a sub-band may be taken in any order, so by vector instructions."""


@njit(**JIT)
def add_sample(x, gone, number, total, square):
    """Add one sample of each channel to the sums of `channel_sums`."""
    kind = total.dtype.type
    for c in range(len(x)):
        v = kind(0) if gone[c] else kind(x[c])
        number[c] += kind(0) if gone[c] else kind(1)
        total[c] += v
        square[c] += v * v


@njit(**JIT)
def channel_sums(rows, gone, first, size, side, start, width, guard, some, sums):
    """Sum the samples of each channel beside the candidate.

    Parameters
    ----------
    side, width, guard : int
        Bins before the candidate; bins of it; bins before and after it that do not count either.
    some : int32 (3, channels) for bytes, float64 for others
        Scratch memory.
    sums : float64 (3, channels)
        Number, sum, and sum of squares of the samples.
    """
    channels, same = rows.shape[1], len(gone) - 1
    number, total, square = some[0], some[1], some[2]
    some[:] = 0
    low = high = 0  # channels between them are near the candidate
    for i in range(len(rows)):
        at = first + i // size - side
        while low < channels and start[low] <= at - width - guard:
            low += 1
        while high < channels and start[high] <= at + guard:
            high += 1
        for part in (slice(0, low), slice(high, channels)):
            add_sample(rows[i, part], gone[min(i, same), part], number[part], total[part], square[part])
        if i % EXACT == EXACT - 1:
            sums += some
            some[:] = 0
    sums += some


@in_interpreter(channel_sums)
def _channel_sums(rows, gone, first, size, side, start, width, guard, some, sums):
    at = (first + np.arange(len(rows)) // size - side)[:, None]
    counted = ((start <= at - width - guard) | (start > at + guard)) & ~gone
    x = np.where(counted, rows.astype(np.float64), 0.0)
    sums += counted.sum(axis=0), x.sum(axis=0), np.square(x).sum(axis=0)


@njit(**JIT)
def channel_levels(sums, mean, var, left):
    """Set the mean and variance of the samples of each channel, and whether it is left out; both are 0 then.

    It is left out if it has fewer than ``LEAST_KNOWN`` samples, or no more than rounding errors of a variance.
    """
    for c in range(len(left)):
        number = max(sums[0, c], 1.0)
        level = sums[1, c] / number
        power = sums[2, c] / number - level * level
        left[c] = sums[0, c] < LEAST_KNOWN or power <= ROUNDING * (level * level)
        mean[c] = 0.0 if left[c] else level
        var[c] = 0.0 if left[c] else power


@njit(**JIT)
def add_to_bin(x, gone, number, total):
    """Add one sample of each channel to the number and sum of those of a bin."""
    kind = total.dtype.type
    for c in range(len(x)):
        total[c] += kind(0) if gone[c] else kind(x[c])
        number[c] += kind(0) if gone[c] else kind(1)


@njit(**JIT)
def without_levels(x, gone, mean, var, left, power, excess):
    """Set what `subtract_levels` makes of a bin of one sample."""
    for c in range(len(x)):
        v = np.float64(x[c]) - mean[c]
        excess[c] = 0.0 if gone[c] | left[c] else v
        power[c] = 0.0 if gone[c] else var[c]


@njit(**JIT)
def subtract_levels(number, total, mean, var, left, power, excess):
    """Set the variances of a bin, and its sums less the levels of the channels, from its numbers and sums."""
    for c in range(len(total)):
        v = total[c] - number[c] * mean[c]
        excess[c] = 0.0 if left[c] else v
        power[c] = number[c] * var[c]


@njit(**ANY_ORDER)
def band_sums(values, edges, out, at):
    """Set sums over the channels of each sub-band, in bin ``at``."""
    for b in range(len(edges) - 1):
        some, total = values[edges[b] : edges[b + 1]], 0.0
        for c in range(len(some)):
            total += some[c]
        out[b, at] = total


@njit(**JIT)
def line_up(values, edges, start, first, last, lined, at):
    """Add a bin of the channels ``first:last`` to their sub-bands in the bins after their ``start``."""
    for b in range(len(edges) - 1):
        sums = lined[b]
        for c in range(max(first, edges[b]), min(last, edges[b + 1])):
            sums[at - start[c]] += values[c]


@njit(**JIT)
def same_variances(gone, size, var, edges, power, flat, lined):
    """Set the variances of all bins, of which the same channels count."""
    for c in range(len(power)):
        power[c] = 0.0 if gone[c] else size * var[c]
    for b in range(len(edges) - 1):
        total = 0.0
        for c in range(edges[b], edges[b + 1]):
            total += power[c]
        lined[b] = total
    band_sums(power, edges, flat, ZERO)
    for b in range(len(flat)):
        for at in range(1, flat.shape[1]):  # slices would take numba two seconds to compile
            flat[b, at] = flat[b, 0]


@njit(**JIT)
def band_series(rows, gone, first, size, start, edges, some, sums, mean, var, left, flat, lined):
    """Make the series of the sub-bands from samples, as observed and de-dispersed.

    Parameters
    ----------
    edges : int64 (bands + 1,)
        First channel of each sub-band.
    some
        As for `channel_sums`.
    sums : float64 (3, channels)
        As of `channel_sums`.
    mean, var, left : (channels,)
        As of `channel_levels`; set with the first samples.
    flat : float64 (2, bands, bins)
        Sums of samples less their means, and of variances, as observed.
    lined : float64 (2, bands, bins)
        The same, de-dispersed: bin 0 of a channel is ``start``.  What is in it is added to.
    """
    if first == 0:
        channel_levels(sums, mean, var, left)
    channels, length, bins, same = rows.shape[1], lined.shape[2], len(rows) // size, len(gone) - 1
    number, total = some[0], some[1]
    power, excess = np.empty(channels), np.empty(channels)
    once = same == 0 and bins == flat.shape[2]
    if once:
        same_variances(gone[0], size, var, edges, power, flat[1], lined[1])
    low = high = 0  # channels between them have a bin of ``lined``
    for at in range(first, first + bins):
        while low < channels and start[low] <= at - length:
            low += 1
        while high < channels and start[high] <= at:
            high += 1
        i = (at - first) * size
        if size == 1:
            without_levels(rows[i], gone[min(i, same)], mean, var, left, power, excess)
        else:
            number[:], total[:] = 0, 0
            for k in range(size):
                add_to_bin(rows[i + k], gone[min(i + k, same)], number, total)
            subtract_levels(number, total, mean, var, left, power, excess)
        band_sums(excess, edges, flat[0], at)
        line_up(excess, edges, start, low, high, lined[0], at)
        if not once:
            band_sums(power, edges, flat[1], at)
            line_up(power, edges, start, low, high, lined[1], at)


@in_interpreter(band_series)
def _band_series(rows, gone, first, size, start, edges, some, sums, mean, var, left, flat, lined):
    if first == 0:
        interpreted(channel_levels)(sums, mean, var, left)
    channels, length, stop = rows.shape[1], lined.shape[2], first + len(rows) // size
    gone = np.broadcast_to(gone, rows.shape)
    total, number = (
        x.reshape(-1, size, channels).sum(axis=1) for x in (np.where(gone, 0.0, rows.astype(np.float64)), ~gone)
    )
    series = np.where(left, 0.0, total - number * mean), number * var
    band = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    for values, seen, moved in zip(series, flat, lined, strict=True):
        seen[:, first:stop] = np.add.reduceat(values, edges[:-1], axis=1).T
        for c, late in enumerate(start.tolist()):
            low, high = max(0, first - late), min(length, stop - late)
            if low < high:
                moved[band[c], low:high] += values[low + late - first : high + late - first, c]


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
    """Running sums, with 0 before them."""
    sums[0] = total = 0.0
    for i in range(len(values)):
        total += values[i]
        sums[i + 1] = total


@in_interpreter(add_up)
def _add_up(values, sums):
    sums[0] = 0.0
    np.cumsum(values, out=sums[1:])


@njit(**JIT)
def splines(bins, spaces):
    """Cubic splines whose knots divide the bins into equal spaces.

    Returns their values at the middles of bins, of shape (splines, most bins of a spline), each from its first bin on,
    and the first bin of each spline, and last + 1.  Spline k and spline k + 4 have no bin in common.
    """
    n, step, most = spaces + 3, bins / spaces, ZERO
    begin, end = np.empty(n, np.int64), np.empty(n, np.int64)
    for k in range(n):
        begin[k] = min(int(max(0.0, (k - 3) * step) + 0.5), bins)
        end[k] = min(int((k + 1) * step + 0.5), bins)
        most = max(most, end[k] - begin[k])
    values = np.zeros((n, most))
    for k in range(n):
        bspline(values[k, : end[k] - begin[k]], (k - 1) * step - begin[k] - 0.5, step)
    return values, begin, end


@njit(**JIT)
def bspline(values, knot, step):
    """Set the values of a spline, six times the usual ones, at whole numbers from 0 on."""
    for i in range(len(values)):
        u = abs(i - knot) / step
        values[i] = 4 + u * u * (3 * u - 6) if u < 1 else (2 - u) * (2 - u) * (2 - u)


@in_interpreter(bspline)
def _bspline(values, knot, step):
    u = np.abs(np.arange(len(values)) - knot) / step
    values[:] = np.where(u < 1, 4 + u * u * (3 * u - 6), (2 - u) * (2 - u) * (2 - u))


@njit(**JIT)
def flatten(flat, lined, spaces, first, last, early, late, mean, flat_sums, lined_sums):
    """Subtract the level of each sub-band, a sum of splines fitted beside the candidate, and add up what is left.

    Parameters
    ----------
    flat, lined : float64
        As of `band_series`; the level is subtracted from them.
    spaces : int
        Spaces between the knots of the splines.
    first, last : int
        Bins of the candidate at the top of the band, and last + 1.
    early, late, mean : (bands,)
        Least, largest and mean delay of each sub-band, in bins.
    flat_sums, lined_sums : float64 (2, bands, bins + 1)
        Set to running sums, from 0 on.
    """
    bins, length = flat.shape[2], lined.shape[2]
    values_of, begin, end = splines(bins, spaces)
    n, ones = len(values_of), np.ones(bins)
    for b in range(flat.shape[1]):
        values, power, trace = flat[0, b], flat[1, b], 0.0
        matrix, y, level = np.zeros((n, n)), np.zeros(n), np.zeros(bins)
        for k in range(n):
            for part in range(2):  # before and after the candidate
                low = begin[k] if part == 0 else max(begin[k], last + late[b])
                high = min(end[k], first + early[b]) if part == 0 else end[k]
                spline = values_of[k, low - begin[k] :]
                if low < high:
                    y[k] += product_sum(values[low:high], spline, ones)
                for j in range(max(0, k - 3), k + 1):
                    top = min(high, end[j])
                    if low < top:
                        matrix[k, j] += product_sum(power[low:top], spline, values_of[j, low - begin[j] :])
            trace += matrix[k, k]
        for k in range(n):
            matrix[k, k] += 1e-9 * trace if trace > 0 else 1.0
        solve_banded(matrix, y, 4)
        for k in range(n):
            some = slice(begin[k], end[k])
            add_product(level[some], y[k], values_of[k], ones)
        add_product(values, -1.0, level, power)
        middle = int(mean[b])
        add_product(lined[0, b], -1.0, level[middle : middle + length], lined[1, b])
        for i in range(2):
            add_up(flat[i, b], flat_sums[i, b])
            add_up(lined[i, b], lined_sums[i, b])
