"""Statistics of channels in a block of samples, series of groups of channels, and replacement of samples (numba).

``clean/cuda/clean.cu`` does the same, operation for operation, with the same bits: change both.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from skysieve.core.cpu.jit import in_interpreter, njit
from skysieve.dedispersion.clean.cpu_dropouts import ROUGH
from skysieve.dedispersion.clean.cpu_missing import SPREAD, four_numbers, random_part

JIT = {"nogil": True, "error_model": "numpy"}
NEIGHBOURS = 8
"""A channel is compared with the median of this many channels on each side."""
WHOLE = 1.5 * 2.0**52
"""Float64 numbers of this size have no fraction: adding and subtracting it rounds to whole numbers."""
SAMPLED = 49
"""The signal that all channels have in common is the median of this many channels."""
LIT = 3.0
"""A cell may be part of a track if its mean deviates, or its variance is high, by more than this many standard
errors."""
TRACK, LEAST_TRACK, STEEP = 8, 8, 2
"""A track needs points for 1 / ``TRACK`` of the channels, and for at least ``LEAST_TRACK``.  From one channel to the
next it moves by up to ``STEEP`` pieces."""

CELL_STEPS, SERIES_STEPS = 6.0, 1.0
"""Steps of Python's interpreter (see `jit.STEP_SECONDS`) for a cell, and for a sample of a group."""


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


def in_turn(rows):
    """Sum of arrays, which are added one after the other: `numpy.sum` adds in another order."""
    total = np.zeros(rows.shape[1:])
    for row in rows:
        total += row
    return total


def medians(a):
    """Median of each column."""
    n, a = len(a), np.array(a.T, order="C")
    a.sort(axis=1)
    return 0.5 * (a[:, (n - 1) // 2] + a[:, n // 2])


@cache
def neighbours(n):
    """For each of ``n`` channels the ``2 * NEIGHBOURS`` around it, without itself; fewer if there are fewer."""
    count = min(2 * NEIGHBOURS, n - 1)
    i = np.arange(n)
    at = np.clip(i - NEIGHBOURS, 0, n - 1 - count) + np.arange(count)[:, None]
    return at + (at >= i)


def compiled(kernel, steps):
    """Return a kernel unchanged: the default of ``how`` in `judge_cells` (see `jit.interpreted_if_small`)."""
    return kernel


def around(values, live):
    """For each channel that is live, the median of the live ones around it, without itself; 0 for the others."""
    out = np.zeros(len(values))
    where = np.flatnonzero(live)
    out[where] = medians(values[where[neighbours(len(where))]]) if len(where) > 1 else values[where]
    return out


def ends_of(rows, counts):
    """Sum of the first and the last sample of each piece."""
    stops = np.cumsum(counts)
    return rows[stops - counts].astype(np.float64) + rows[stops - 1]


def piece_moments(total, square, lag, ends, counts):
    """Mean, variance, and estimate of the variance of each piece, and the lag-1 autocorrelation of each channel."""
    n = counts[:, None]
    mean = total * (1 / n)
    var = np.maximum(0.0, square * (1 / n) - mean * mean)
    # sums of products of neighbours less the mean of the piece, which are -var on average for white noise
    up, down = in_turn(lag - mean * mean * (n + 1.0) + mean * ends + var), in_turn(var * (n - 1.0))
    return mean, var, var * (n / (n - 1)), np.where(down > 0, up / np.where(down > 0, down, 1.0), 0.0)


def level_of(total, square, lag, ends, counts):
    """Mean and variance of each piece; level, sigma and lag-1 autocorrelation of each channel.

    Level and sigma are medians over the pieces.  The autocorrelation is 0 on average for white noise.
    """
    mean, var, fair, rho = piece_moments(total, square, lag, ends, counts)
    part = 1 - 2 / (9 * (int(counts[0]) - 1))
    return mean, var, medians(mean), np.sqrt(medians(fair) / (part * part * part)), rho


@njit(**JIT)
def find_tracks(lit, score):
    """Leave in ``lit``, shape (pieces, channels in order of falling frequency), the cells that are on a track.

    A dispersed pulse lights neighbouring channels at the same or at successive times; a narrow-band signal does not.
    A track goes from each channel to the next one, and stays in its piece or goes to one of the `STEEP` pieces after
    it.  It gains a point for each lit cell and loses one for each other cell.  It needs as many points as an eighth of
    the channels.  A track that begins in the first piece, or ends in the last, continues in another block, and needs
    points for a thirty-second of the channels.  ``score`` is scratch memory of the shape of ``lit``.
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


def score_cells(mean, var, counts, level, sigma, where):
    """Standard errors of mean and variance of each cell of the channels ``where``.

    The mean is taken relative to the signal that all channels have in common.
    """
    z = (mean[:, where] - level[where]) / sigma[where]
    n = z.shape[1]
    few = min(SAMPLED, n)
    if few:
        z -= medians(z[:, np.arange(few) * n // few].T)[:, None]
    z *= np.sqrt(counts)[:, None]
    return z, (var[:, where] / (sigma[where] * sigma[where]) - 1) * np.sqrt((counts - 1) / 2)[:, None]


def judge_cells(mean, var, counts, level, sigma, live, limit, cells, how=compiled):
    """Find cells (piece, channel) with too high a mean, or too large a variance; returns statistics of channels.

    The first statistic is the mean square of the piece means, relative to the signal that all channels have in common;
    the second is that of the piece variances.  Both are 1 for white noise.  A cell counts if it exceeds ``limit``
    standard errors, together with the pieces beside it, unless it is on a track of cells above `LIT` (`find_tracks`),
    which shows a pulse from the sky or an impulse.  The statistics leave out the cells on tracks if these are at most a
    quarter of the pieces.
    """
    where: slice | np.ndarray = slice(None) if live.all() else np.flatnonzero(live)
    z, u = score_cells(mean, var, counts, level, sigma, where)
    most = limit + 0.1 * limit * limit
    statistics = np.zeros((2, len(level)))
    if not z.size:
        return statistics
    number: int | np.ndarray = len(mean)
    squares = z * z, np.minimum(u * u, 1e6)
    if not (max(z.max(), -z.min()) <= limit and u.max() <= most):
        high = (np.abs(z) > limit) | (u > most)
        lit = (np.abs(z) > LIT) | (u > LIT)
        how(find_tracks, CELL_STEPS * z.size)(lit, np.empty(z.shape, np.int32))
        known = ~(lit & (4 * np.count_nonzero(lit, axis=0) <= len(mean)))
        squares, number = tuple(np.where(known, one, 0.0) for one in squares), np.count_nonzero(known, axis=0)
        high &= ~lit
        found = high.copy()
        found[1:] |= high[:-1]
        found[:-1] |= high[1:]
        cells[:, where] = found
    for row, one in zip(statistics, squares, strict=True):
        row[where] = in_turn(one) / number
    return statistics


def judge_channels(samples, pieces, sigma, rho, slow, burst, cells, live, most, bad):
    """Find channels whose noise differs from that of their neighbours, or that have too many bad cells.

    The noise can differ in its autocorrelation, in slow or intermittent changes, or by a larger sigma.
    """
    nearby = around(rho, live)
    off = rho - nearby
    scatter = max(1 / math.sqrt(samples), spread(off[live]))
    bad |= live & (np.abs(off) > 6 * scatter + 0.5 * np.abs(nearby))
    error = math.sqrt(2.0 / pieces)
    for values in (slow, burst):
        bad |= live & (values > (1 + 7 * error) * np.maximum(1.0, 2.0 * around(values, live)))
    size = np.zeros(len(sigma))
    size[live] = log_of(sigma[live])
    off = size - around(size, live)
    bad |= live & (off > 6 * max(0.025, spread(off[live])))
    bad |= np.count_nonzero(cells, axis=0) > most * len(cells)
    cells[:, bad] = False


def group_sizes(power, cells, edges):
    """By piece and group, the root of the sum of ``power`` over the channels of the group that are not in cells."""
    some = cells if cells.any() else cells[:1]  # without cells, all pieces have the same sums
    values = np.zeros((len(some), len(power) + 1))  # the last one is for groups of fewer channels than others
    values[:, :-1] = np.where(some, 0.0, power)
    at = edges[:-1] + np.arange(np.diff(edges).max())[:, None]
    sizes = np.sqrt(in_turn(values[:, np.where(at < edges[1:], at, len(power))].transpose(1, 0, 2)))
    return sizes if some is cells else np.repeat(sizes, len(cells), axis=0)


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
                    v = min(max(math.floor(v + random_part(start + t, c + 0x40000000)), low), high)
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
        v = level + sigma * (size * level_at(base, t, piece) + four_numbers(start + t, c) * SPREAD)
        if whole:
            if sigma < ROUGH:
                v += random_part(start + t, c + 0x40000000) - 0.5
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
    out[:] = medians(a)


@njit(**JIT)
def rescale(row, factor, offset, low, high, whole):
    """``row = row * factor - offset``, rounded to whole numbers by adding and subtracting `WHOLE`."""
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
            v = row[c] * factor[c] - offset[c] + (random_part(start + t, c + 0x20000000) - 0.5)
            found[i] = min(max(np.rint(v), low), high)
        rescale(row, factor, offset, low, high, whole)
        for i in range(len(where)):
            row[where[i]] = found[i]
