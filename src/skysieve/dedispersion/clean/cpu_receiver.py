"""Statistics of channels in a block of samples, series of groups of channels, and replacement of samples (numba).

``cuda/clean.cu`` does the same, operation for operation, with the same bits: change both.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from skysieve.core.cpu.jit import in_interpreter, njit

from .cpu_dropouts import ROUGH, SPREAD, random_bits

JIT = {"nogil": True, "error_model": "numpy"}
NEIGHBOURS = 8
"""A channel is compared with the median of so many channels on each side."""
WHOLE = 1.5 * 2.0**52
"""A number of this size has no fraction."""
SAMPLED = 49
"""What all channels have in common is the median of so many of them."""
LIT = 3.0
"""Standard errors from which on a cell may be part of a track."""
TRACK, LEAST_TRACK, STEEP = 8, 8, 2
"""A track fills one in so many channels, and at least so many; pieces by which it moves from channel to channel."""

CELL_STEPS, MEDIAN_STEPS, SERIES_STEPS = 6.0, 8.0, 1.0
"""Steps of Python's interpreter (see `jit.STEP_SECONDS`) for a cell, a comparison of `medians`, a sample of a group."""


@njit(**JIT)
def add_piece(rows, total, square, lag):
    """Add the samples of a piece to sums by channel: values, squares, products of neighbours in time."""
    for t in range(len(rows)):
        row = rows[t]
        for c in range(len(row)):
            v = row[c] + total.dtype.type(0)
            total[c] += v
            square[c] += v * v
        if t:
            before = rows[t - 1]
            for c in range(len(row)):
                lag[c] += (row[c] + lag.dtype.type(0)) * (before[c] + lag.dtype.type(0))


@njit(**JIT)
def add_piece_8(rows, total, square, lag):
    """`add_piece` for 8-bit samples, with 32-bit sums."""
    C = rows.shape[1]
    for t in range(len(rows)):
        row = rows[t]
        before = rows[max(0, t - 1)]
        some = np.int32(t > 0)
        for c in range(C):
            v = np.int32(row[c])
            total[c] += v
            square[c] += np.int32(v * v)
            lag[c] += np.int32(v * np.int32(before[c])) * some


@in_interpreter(add_piece)
@in_interpreter(add_piece_8)
def add_piece_at_once(rows, total, square, lag):
    """`add_piece` without compiled code: all channels at once, the samples in turn."""
    x = rows.astype(total.dtype)
    for sums, terms in ((total, x), (square, x * x), (lag, x[1:] * x[:-1])):
        for row in terms:
            sums += row


@njit(**JIT)
def moments(rows, piece, wide, total, square, lag):
    """Sums of each piece of ``piece`` samples (the last one takes the rest); ``total[p, c]`` and so on begin at 0.

    ``wide`` is None for 8-bit samples, which is known when this is compiled.
    """
    n, P = len(rows), len(total)
    for p in range(P):
        stop = n if p == P - 1 else (p + 1) * piece
        if wide is None:
            add_piece_8(rows[p * piece : stop], total[p], square[p], lag[p])
        else:
            add_piece(rows[p * piece : stop], total[p], square[p], lag[p])


@njit(**JIT)
def middle(a, n):
    """Median of the first ``n`` values, which are sorted by insertion."""
    for i in range(1, n):
        v = a[i]
        k = i
        while k and a[k - 1] > v:
            a[k] = a[k - 1]
            k -= 1
        a[k] = v
    return a[n // 2] if n % 2 else 0.5 * (a[n // 2 - 1] + a[n // 2])


def spread(values):
    """Robust standard deviation of values about 0."""
    a = np.sort(np.abs(values))
    n = len(a)
    return 1.4826 * (0.5 * (a[(n - 1) // 2] + a[n // 2])) if n else 0.0


def log_of(x):
    """Natural logarithm, by operations that give the same bits everywhere."""
    m, e = np.frexp(x)
    low = m < 0.7071067811865476
    m, e = np.where(low, 2.0 * m, m), e - low
    y = (m - 1.0) / (m + 1.0)
    square, series = y * y, 0.0
    for k in range(10, -1, -1):
        series = series * square + 1.0 / (2 * k + 1)
    return e * 0.6931471805599453 + 2.0 * y * series


@cache
def sorting_network(count):
    """Pairs of places that sort ``count`` values when they are compared and swapped in turn (Batcher).

    >>> a = np.array([3, 1, 2])
    >>> for low, high in sorting_network(3):
    ...     a[[low, high]] = min(a[low], a[high]), max(a[low], a[high])
    >>> a.tolist()
    [1, 2, 3]
    """
    pairs = []
    p = 1
    while p < count:
        k = p
        while k >= 1:
            for j in range(k % p, count - k, 2 * k):
                for i in range(min(k, count - j - k)):
                    if (i + j) // (2 * p) == (i + j + k) // (2 * p):
                        pairs.append((i + j, i + j + k))
            k //= 2
        p *= 2
    return np.array(pairs, np.int64).reshape(-1, 2)


@njit(**JIT)
def sort_columns(a, order):
    """Sort each column by the comparisons of `sorting_network`."""
    for k in range(len(order)):
        low, high = a[order[k, 0]], a[order[k, 1]]
        for c in range(a.shape[1]):
            x, y = low[c], high[c]
            low[c], high[c] = min(x, y), max(x, y)


@in_interpreter(sort_columns)
def sort_columns_at_once(a, order):
    """`sort_columns` without compiled code."""
    for i, k in order.tolist():
        x, y = a[i], a[k]
        a[i], a[k] = np.where(y < x, y, x), np.where(y > x, y, x)


@njit(**JIT)
def medians(a, order, out):
    """Median of each column, which is sorted by the comparisons of `sorting_network`."""
    P, C = a.shape
    sort_columns(a, order)
    for c in range(C):
        out[c] = 0.5 * (a[(P - 1) // 2, c] + a[P // 2, c])


@cache
def neighbours(n):
    """For each of ``n`` channels the ``2 * NEIGHBOURS`` around it, without itself; fewer if there are fewer."""
    count = min(2 * NEIGHBOURS, n - 1)
    i = np.arange(n)
    at = np.clip(i - NEIGHBOURS, 0, n - 1 - count) + np.arange(count)[:, None]
    return at + (at >= i)


def compiled(kernel, steps):
    """Return a kernel as it is: what `level_of` and others take for ``how`` (see `jit.interpreted_if_small`)."""
    return kernel


def around(values, live, out, how=compiled):
    """For each channel that is live, the median of the live ones around it, without itself."""
    where = np.flatnonzero(live)
    if len(where) > 1:
        a = values[where[neighbours(len(where))]]
        found = np.empty(len(where))
        order = sorting_network(len(a))
        how(medians, MEDIAN_STEPS * len(order))(a, order, found)
        out[where] = found
    else:
        out[where] = values[where]


@njit(**JIT)
def piece_moments(total, square, lag, counts, mean, var, fair, down, rho):
    """Mean, variance, and estimate of the variance of each piece, and the lag-1 autocorrelation of each channel.

    ``rho`` and the scratch memory ``down`` begin at 0: ``numpy.zeros`` takes long to compile.
    """
    P, C = mean.shape
    for p in range(P):
        n = counts[p]
        one, more, less = 1 / n, n / (n - 1), n - 1.0
        for c in range(C):
            m = total[p, c] * one
            mean[p, c] = m
            v = max(0.0, square[p, c] * one - m * m)
            var[p, c] = v
            fair[p, c] = v * more
            # the mean of products of neighbours is below the square of the mean by var / n
            rho[c] += lag[p, c] - m * m * less + v
            down[c] += v * less
    for c in range(C):
        rho[c] = rho[c] / down[c] if down[c] > 0 else 0.0


def level_of(total, square, lag, counts, mean, var, rho, level, sigma, how=compiled):
    """Mean and variance by piece; level, sigma by channel: medians over the pieces.

    ``rho``, which begins at 0, is the lag-1 autocorrelation of a channel, 0 on average for white noise.
    """
    fair, order = np.empty_like(mean), sorting_network(len(mean))
    how(piece_moments, CELL_STEPS * mean.size)(total, square, lag, counts, mean, var, fair, np.zeros(len(rho)), rho)
    how(medians, MEDIAN_STEPS * len(order))(mean.copy(), order, level)
    how(medians, MEDIAN_STEPS * len(order))(fair, order, sigma)
    part = 1 - 2 / (9 * (int(counts[0]) - 1))
    sigma[:] = np.sqrt(sigma / (part * part * part))


@njit(**JIT)
def find_tracks(lit, score):
    """Leave in ``lit``, shape (pieces, channels in order of falling frequency), the cells that are on a track.

    A dispersed pulse lights neighbouring channels at the same or at successive times; a narrow-band signal does not.
    A track goes from each channel to the next one, and stays in its piece or goes to one of the `STEEP` pieces after
    it.  It has one point for each lit cell, less one for each other cell, and needs as many as an eighth of the
    channels.  One that begins in the first piece, or ends in the last, goes on in another block: it needs points for a
    thirty-second part.  ``score`` is scratch memory of the shape of ``lit``.
    """
    P, n = lit.shape
    need = max(LEAST_TRACK, n // TRACK)
    begun = need - max(LEAST_TRACK // 2, n // (4 * TRACK))
    row = np.zeros(P, np.int32)
    for i in range(n):
        for p in range(P - 1, -1, -1):
            s = row[p]
            for k in range(max(0, p - STEEP), p):
                s = max(s, row[k])
            if lit[p, i]:
                row[p] = (s if p else max(s, begun)) + 1
            else:
                row[p] = max(0, s - 1)
            score[p, i] = row[p]
    for p in range(P):
        row[p] = 0
    for i in range(n - 1, -1, -1):
        for p in range(P):
            s = row[p]
            for k in range(p + 1, min(P, p + 1 + STEEP)):
                s = max(s, row[k])
            if lit[p, i]:
                row[p] = (s if p < P - 1 else max(s, begun)) + 1
                lit[p, i] = score[p, i] + row[p] - 1 >= need
            else:
                row[p] = max(0, s - 1)


@njit(**JIT)
def score_cells(mean, var, counts, level, sigma, where, limit, z, u, high, lit):
    """Standard errors of mean and variance of each cell; which are above ``limit``, and above `LIT`; whether any is."""
    P, n = z.shape
    few = min(SAMPLED, n)
    a = np.empty(max(1, few))
    most = limit + 0.1 * limit * limit
    found = False
    for p in range(P):
        for i in range(n):
            c = where[i]
            z[p, i] = (mean[p, c] - level[c]) / sigma[c]
        for i in range(few):
            a[i] = z[p, i * n // few]
        common = middle(a, few) if few else 0.0
        root, half = math.sqrt(counts[p]), math.sqrt((counts[p] - 1) / 2)
        for i in range(n):
            c = where[i]
            z[p, i] = (z[p, i] - common) * root
            u[p, i] = (var[p, c] / (sigma[c] * sigma[c]) - 1) * half
            high[p, i] = abs(z[p, i]) > limit or u[p, i] > most
            lit[p, i] = abs(z[p, i]) > LIT or u[p, i] > LIT
            found |= high[p, i]
    return found


@njit(**JIT)
def sum_cells(z, u, left_out, slow, burst):
    """Mean squares of `score_cells` by channel, without some cells."""
    P, n = z.shape
    for i in range(n):
        s = b = 0.0
        count = 0
        for p in range(P):
            if not left_out[p, i]:
                s += z[p, i] * z[p, i]
                b += min(u[p, i] * u[p, i], 1e6)
                count += 1
        slow[i], burst[i] = s / count, b / count


def judge_cells(mean, var, counts, level, sigma, live, limit, cells, slow, burst, how=compiled):
    """Find cells (piece, channel) with too high a mean, or too large a variance, and statistics of channels.

    ``slow[c]`` is the mean square of the piece means about what all channels have in common, and ``burst[c]`` that of
    the piece variances, both 1 for white noise.  A cell counts from ``limit`` standard errors on, with the pieces
    beside it, unless it is on a track of cells above `LIT` (see `find_tracks`): these show a pulse of the sky, or an
    impulse.  Where they are a quarter of the pieces at most, the statistics do without them.
    """
    where = np.flatnonzero(live)
    shape = len(mean), len(where)
    z, u = np.empty(shape), np.empty(shape)
    high, lit, left_out = (np.zeros(shape, bool) for _ in range(3))
    steps = CELL_STEPS * z.size
    if how(score_cells, steps)(mean, var, counts, level, sigma, where, limit, z, u, high, lit):
        how(find_tracks, steps)(lit, np.empty(shape, np.int32))
        left_out = lit & (4 * np.count_nonzero(lit, axis=0) <= len(mean))
        high &= ~lit
        found = high.copy()
        found[1:] |= high[:-1]
        found[:-1] |= high[1:]
        cells[:, where] = found
    sums = np.empty((2, len(where)))
    how(sum_cells, steps / 3)(z, u, left_out, *sums)
    slow[where], burst[where] = sums


def judge_channels(samples, pieces, sigma, rho, slow, burst, cells, live, most, bad, how=compiled):
    """Channels whose noise differs from that of their neighbours, or that have too many cells.

    They differ by autocorrelation, by slow or intermittent changes, or by a larger sigma.
    """
    nearby = np.zeros(len(sigma))
    around(rho, live, nearby, how)
    off = rho - nearby
    scatter = max(1 / math.sqrt(samples), spread(off[live]))
    bad |= live & (np.abs(off) > 6 * scatter + 0.5 * np.abs(nearby))
    error = math.sqrt(2.0 / pieces)
    for values in (slow, burst):
        around(values, live, nearby, how)
        bad |= live & (values > (1 + 7 * error) * np.maximum(1.0, 2.0 * nearby))
    size = np.zeros(len(sigma))
    size[live] = log_of(sigma[live])
    around(size, live, nearby, how)
    off = size - nearby
    bad |= live & (off > 6 * max(0.025, spread(off[live])))
    bad |= np.count_nonzero(cells, axis=0) > most * len(cells)
    cells[:, bad] = False


@njit(**JIT)
def group_sizes(power, cells, edges, size):
    """``size[p, j]`` gets the root of the sum of ``power`` over the channels of group ``j`` that are not in cells."""
    for p in range(len(cells)):
        for j in range(len(edges) - 1):
            s = 0.0
            for c in range(edges[j], edges[j + 1]):
                s += 0.0 if cells[p, c] else power[c]
            size[p, j] = math.sqrt(s)


@njit(**JIT)
def groups_8(rows, weights, edges, out):
    """``out[j, t] = sum of weights[c] rows[t, c]`` over the channels of group ``j``, for 8-bit samples."""
    for t in range(len(rows)):
        row = rows[t]
        for j in range(len(edges) - 1):
            some, w = row[edges[j] : edges[j + 1]], weights[edges[j] : edges[j + 1]]
            s = np.int32(0)
            for c in range(len(some)):
                s += np.int32(w[c]) * np.int32(some[c])
            out[j, t] = s


@njit(**JIT)
def groups_any(rows, weights, edges, out):
    """`groups_8` for other samples."""
    for t in range(len(rows)):
        row = rows[t]
        for j in range(len(edges) - 1):
            some, w = row[edges[j] : edges[j + 1]], weights[edges[j] : edges[j + 1]]
            s = 0.0
            for c in range(len(some)):
                s += w[c] * np.float64(some[c])
            out[j, t] = s


@in_interpreter(groups_8)
def groups_8_at_once(rows, weights, edges, out):
    """`groups_8` without compiled code: all samples at once."""
    for j in range(len(edges) - 1):
        some = slice(edges[j], edges[j + 1])
        out[j] = rows[:, some].astype(np.int32) @ weights[some].astype(np.int32)


@in_interpreter(groups_any)
def groups_any_at_once(rows, weights, edges, out):
    """`groups_any` without compiled code: all samples at once, the channels in turn."""
    for j in range(len(edges) - 1):
        s = np.zeros(len(rows))
        for c in range(edges[j], edges[j + 1]):
            s += weights[c] * rows[:, c].astype(np.float64)
        out[j] = s


@njit(**JIT)
def group_series(rows, piece, wide, weights, cells, level, edges, size, first, series):
    """Sums of the good channels of each group, in units of their sigma and without their level.

    ``weights`` are whole numbers, proportional to 1 / sigma, and 0 for channels that are bad; ``size[p, j]`` gets the
    standard deviation of the sums, ``series[j, first + t]`` the sums divided by it (0 without good channels).  ``wide``
    is None for 8-bit samples, as in `moments`.
    """
    out = series[:, first:]
    n, P, G = len(rows), len(cells), len(edges) - 1
    some = np.empty_like(weights)
    for p in range(P):
        stop = n if p == P - 1 else (p + 1) * piece
        for c in range(len(weights)):
            some[c] = 0 if cells[p, c] else weights[c]
        if wide is None:
            groups_8(rows[p * piece : stop], some, edges, out[:, p * piece : stop])
        else:
            groups_any(rows[p * piece : stop], some, edges, out[:, p * piece : stop])
        for j in range(G):
            mean = 0.0
            for c in range(edges[j], edges[j + 1]):
                mean += some[c] * level[c]
            s = size[p, j]
            scale = 1 / s if s > 0 else 0.0
            for t in range(p * piece, stop):
                out[j, t] = (out[j, t] - mean) * scale


@njit(**JIT)
def baseline(series, piece, reach, base):
    """Subtract from each series the running median of its piece means, joined by straight lines.

    ``base[j, p]`` gets the median of the means of the pieces from ``p - reach`` to ``p + reach``.
    """
    G, n = series.shape
    P = base.shape[1]
    a = np.empty(2 * reach + 1)
    means = np.empty(P)
    for j in range(G):
        for p in range(P):
            stop = n if p == P - 1 else (p + 1) * piece
            s = 0.0
            for t in range(p * piece, stop):
                s += np.float64(series[j, t])
            means[p] = s / (stop - p * piece)
        for p in range(P):
            low, high = max(0, p - reach), min(P, p + reach + 1)
            for q in range(low, high):
                a[q - low] = means[q]
            base[j, p] = middle(a, high - low)
        line = series[j]
        half = piece // 2
        for p in range(-1, P):  # from the middle of a piece to that of the next
            first = max(0, p * piece + half)
            stop = n if p == P - 1 else (p + 1) * piece + half
            a0, a1 = base[j, max(0, p)], base[j, min(P - 1, p + 1)]
            slope = (a1 - a0) / piece
            shift = a0 + slope * (0.5 - p * piece - half)
            for t in range(first, min(n, stop)):
                line[t] -= np.float32(shift + slope * t)


@njit(**JIT)
def level_at(base, t, piece):
    """The baseline at a sample: straight lines between the middles of pieces."""
    at = (t + 0.5) / piece - 0.5
    p = math.floor(at)
    if p < 0:
        return base[0]
    if p >= len(base) - 1:
        return base[len(base) - 1]
    part = at - p
    return base[p] * (1 - part) + base[p + 1] * part


@njit(**JIT)
def replace(rows, start, piece, bad, cells, windows, group, level, sigma, size, base, low, high, whole):
    """Replace samples by noise of their channel, and bad channels by their level.

    Noise and rounding depend on the numbers of sample and channel only.  ``windows[k]`` are (first sample, last + 1,
    first channel, last + 1); ``base`` is the baseline of the groups in units of ``size``, ``size`` in sigma.
    """
    n, C = rows.shape
    P = len(cells)
    for c in range(C):
        if bad[c]:
            for t in range(n):
                v = level[c]
                if whole:
                    u = random_bits(start + t, c + 0x40000000) >> np.uint64(11)
                    v = min(max(math.floor(v + np.float64(u) / 9007199254740992.0), low), high)
                rows[t, c] = v
            continue
        for p in range(P):
            if cells[p, c]:
                stop = n if p == P - 1 else (p + 1) * piece
                noise(rows, start, p * piece, stop, c, piece, level[c], sigma[c], size[group[c]], base[group[c]], low,
                      high, whole)  # fmt: skip
    for k in range(len(windows)):
        for c in range(windows[k, 2], windows[k, 3]):
            if not bad[c]:
                noise(rows, start, windows[k, 0], windows[k, 1], c, piece, level[c], sigma[c], size[group[c]],
                      base[group[c]], low, high, whole)  # fmt: skip


@njit(**JIT)
def noise(rows, start, first, last, c, piece, level, sigma, size, base, low, high, whole):
    """Noise of one channel in samples ``first : last``."""
    for t in range(first, last):
        z = random_bits(start + t, c)
        s = np.uint64(0)
        for part in range(4):
            s += (z >> np.uint64(16 * part)) & np.uint64(0xFFFF)
        v = level + sigma * (size * level_at(base, t, piece) + (np.float64(s) - 131070.0) * SPREAD)
        if whole:
            if sigma < ROUGH:
                u = random_bits(start + t, c + 0x40000000) >> np.uint64(11)
                v += np.float64(u) / 9007199254740992.0 - 0.5
            v = min(max(np.rint(v), low), high)
        rows[t, c] = v


@njit(**JIT)
def piece_means(rows, first, piece, out):
    """Means of each channel in ``len(out)`` pieces from sample ``first`` on."""
    C = rows.shape[1]
    for p in range(len(out)):
        out[p] = 0.0
        for t in range(first + p * piece, first + (p + 1) * piece):
            row = rows[t]
            for c in range(C):
                out[p, c] += row[c]
        for c in range(C):
            out[p, c] /= piece


def level_beside(rows, first, piece, a, out):
    """Median of each channel's means of the ``len(a)`` pieces from sample ``first`` on; ``a`` is scratch memory."""
    piece_means(rows, first, piece, a)
    medians(a, sorting_network(len(a)), out)


@njit(**JIT)
def rescale(row, factor, offset, low, high, whole):
    """``row = row * factor - offset``, rounded to whole numbers by adding and taking off `WHOLE`."""
    if not whole:
        for c in range(len(row)):
            row[c] = row[c] * factor[c] - offset[c]
        return
    for c in range(len(row)):
        row[c] = min(max((row[c] * factor[c] - offset[c] + WHOLE) - WHOLE, low), high)


@njit(**JIT)
def regain(rows, start, first, factor, offset, rough, low, high, whole):
    """``rows = rows * factor - offset`` by channel, from row ``first`` on; ``rough`` ones are rounded at random."""
    at_random = rough & ((factor != 1.0) | (offset != 0.0))
    where = np.flatnonzero(at_random) if whole else np.empty(0, np.int64)
    found = np.empty(len(where))
    for t in range(first, len(rows)):
        row = rows[t]
        for i in range(len(where)):
            c = where[i]
            u = random_bits(start + t, c + 0x20000000) >> np.uint64(11)
            v = row[c] * factor[c] - offset[c] + (np.float64(u) / 9007199254740992.0 - 0.5)
            found[i] = min(max(np.rint(v), low), high)
        rescale(row, factor, offset, low, high, whole)
        for i in range(len(where)):
            row[where[i]] = found[i]
