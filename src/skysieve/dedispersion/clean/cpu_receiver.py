"""Statistics of channels in a block of samples, series of groups of channels, and replacement of samples (numba).

``cuda/clean.cu`` does the same, operation for operation, with the same bits: change both.
"""

from __future__ import annotations

import math

import numpy as np

from skysieve.core.cpu.jit import njit

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


@njit(**JIT)
def moments(rows, piece, narrow, total, square, lag):
    """Sums of each piece of ``piece`` samples (the last one takes the rest); ``total[p, c]`` and so on begin at 0."""
    n, P = len(rows), len(total)
    for p in range(P):
        stop = n if p == P - 1 else (p + 1) * piece
        if narrow:
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


@njit(**JIT)
def spread(values, live):
    """Robust standard deviation of the values of live channels about 0."""
    a = np.sort(np.abs(values[live]))
    n = len(a)
    return 1.4826 * (0.5 * (a[(n - 1) // 2] + a[n // 2])) if n else 0.0


@njit(**JIT)
def log_of(x):
    """Natural logarithm, by operations that give the same bits everywhere."""
    m, e = math.frexp(x)
    if m < 0.7071067811865476:
        m, e = 2.0 * m, e - 1
    y = (m - 1.0) / (m + 1.0)
    square, series = y * y, 0.0
    for k in range(10, -1, -1):
        series = series * square + 1.0 / (2 * k + 1)
    return e * 0.6931471805599453 + 2.0 * y * series


@njit(**JIT)
def medians(a, order, out):
    """Median of each column, which is sorted by the comparisons of `sorting_network`."""
    P, C = a.shape
    for k in range(len(order)):
        low, high = a[order[k, 0]], a[order[k, 1]]
        for c in range(C):
            x, y = low[c], high[c]
            low[c], high[c] = min(x, y), max(x, y)
    for c in range(C):
        out[c] = 0.5 * (a[(P - 1) // 2, c] + a[P // 2, c])


@njit(**JIT)
def around(values, live, order, out):
    """For each channel that is live, the median of the live ones around it, without itself.

    ``order`` is the `sorting_network` for ``2 * NEIGHBOURS`` values.
    """
    where = np.flatnonzero(live)
    n = len(where)
    if n <= 2 * NEIGHBOURS:
        a = np.empty(n)
        for i in range(n):
            k = 0
            for j in range(n):
                if j != i:
                    a[k] = values[where[j]]
                    k += 1
            out[where[i]] = middle(a, k) if k else values[where[i]]
        return
    v = values[where]
    a = np.empty((2 * NEIGHBOURS, n))
    for i in range(n):
        low = max(0, min(i - NEIGHBOURS, n - 1 - 2 * NEIGHBOURS))
        for k in range(2 * NEIGHBOURS):
            a[k, i] = v[low + k + (low + k >= i)]
    found = np.empty(n)
    medians(a, order, found)
    out[where] = found


@njit(**JIT)
def level_of(total, square, lag, counts, order, spare, mean, var, rho, level, sigma):
    """Mean and variance by piece; level, sigma by channel: medians over the pieces.

    ``rho`` is the lag-1 autocorrelation of a channel, 0 on average for white noise.  ``order`` is the
    `sorting_network` for the pieces, ``spare`` scratch memory of the shape of ``mean``.
    """
    P, C = mean.shape
    up, down = np.zeros(C), np.zeros(C)
    for p in range(P):
        n = counts[p]
        one, more, less = 1 / n, n / (n - 1), n - 1.0
        for c in range(C):
            m = total[p, c] * one
            mean[p, c] = m
            v = max(0.0, square[p, c] * one - m * m)
            var[p, c] = v
            # the mean of products of neighbours is below the square of the mean by var / n
            up[c] += lag[p, c] - m * m * less + v
            down[c] += v * less
        spare[p] = mean[p]
    medians(spare, order, level)
    for p in range(P):
        more = counts[p] / (counts[p] - 1)
        for c in range(C):
            spare[p, c] = var[p, c] * more
    medians(spare, order, sigma)
    fair = 1 - 2 / (9 * (counts[0] - 1))
    fair = fair * fair * fair
    for c in range(C):
        sigma[c] = math.sqrt(sigma[c] / fair)
        rho[c] = up[c] / down[c] if down[c] > 0 else 0.0


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
    row[:] = 0
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
def judge_cells(mean, var, counts, level, sigma, live, limit, cells, slow, burst):
    """Find cells (piece, channel) with too high a mean, or too large a variance, and statistics of channels.

    ``slow[c]`` is the mean square of the piece means about what all channels have in common, and ``burst[c]`` that of
    the piece variances, both 1 for white noise.  A cell counts from ``limit`` standard errors on, with the pieces
    beside it, unless it is on a track of cells above `LIT` (see `find_tracks`): these show a pulse of the sky, or an
    impulse.  Where they are a quarter of the pieces at most, the statistics do without them.
    """
    P = len(mean)
    where = np.flatnonzero(live)
    n = len(where)
    z, u = np.zeros((P, n)), np.zeros((P, n))
    high, lit = np.zeros((P, n), np.bool_), np.zeros((P, n), np.bool_)
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
    if found:
        find_tracks(lit, np.empty((P, n), np.int32))
    else:
        lit[:] = False
    for i in range(n):
        s = b = 0.0
        count = 0
        for p in range(P):
            count += lit[p, i]
        short = 4 * count <= P
        for p in range(P):
            if not (lit[p, i] and short):
                s += z[p, i] * z[p, i]
                b += min(u[p, i] * u[p, i], 1e6)
            if high[p, i] and not lit[p, i]:
                for q in range(max(0, p - 1), min(P, p + 2)):
                    cells[q, where[i]] = True
        used = P - count if short else P
        slow[where[i]], burst[where[i]] = s / used, b / used


@njit(**JIT)
def judge_channels(samples, pieces, sigma, rho, slow, burst, cells, live, most, order, bad):
    """Channels whose noise differs from that of their neighbours, or that have too many cells.

    They differ by autocorrelation, by slow or intermittent changes, or by a larger sigma.
    """
    C = len(sigma)
    nearby = np.zeros(C)
    off = np.zeros(C)
    around(rho, live, order, nearby)
    error = 1 / math.sqrt(samples)
    for c in range(C):
        off[c] = rho[c] - nearby[c]
    scatter = max(error, spread(off, live))
    for c in range(C):
        if live[c] and abs(off[c]) > 6 * scatter + 0.5 * abs(nearby[c]):
            bad[c] = True
    error = math.sqrt(2.0 / pieces)
    for values in (slow, burst):
        around(values, live, order, nearby)
        for c in range(C):
            if live[c] and values[c] > (1 + 7 * error) * max(1.0, 2.0 * nearby[c]):
                bad[c] = True
    size = np.zeros(C)
    for c in range(C):
        size[c] = log_of(sigma[c]) if live[c] else 0.0
    around(size, live, order, nearby)
    for c in range(C):
        off[c] = size[c] - nearby[c]
    scatter = max(0.025, spread(off, live))
    for c in range(C):
        if live[c] and off[c] > 6 * scatter:
            bad[c] = True
    for c in range(C):
        count = 0
        for p in range(len(cells)):
            count += cells[p, c]
        if count > most * len(cells):
            bad[c] = True
        if bad[c]:
            cells[:, c] = False


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


@njit(**JIT)
def group_series(rows, piece, narrow, weights, cells, level, edges, size, first, series):
    """Sums of the good channels of each group, in units of their sigma and without their level.

    ``weights`` are whole numbers, proportional to 1 / sigma, and 0 for channels that are bad; ``size[p, j]`` gets the
    standard deviation of the sums, ``series[j, first + t]`` the sums divided by it (0 without good channels).
    """
    out = series[:, first:]
    n, P, G = len(rows), len(cells), len(edges) - 1
    some = np.empty_like(weights)
    for p in range(P):
        stop = n if p == P - 1 else (p + 1) * piece
        for c in range(len(weights)):
            some[c] = 0 if cells[p, c] else weights[c]
        if narrow:
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
                s += series[j, t]
            means[p] = s / (stop - p * piece)
        for p in range(P):
            k = 0
            for q in range(max(0, p - reach), min(P, p + reach + 1)):
                a[k] = means[q]
                k += 1
            base[j, p] = middle(a, k)
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
def level_beside(rows, first, piece, order, a, out):
    """Median of each channel's means of the ``len(a)`` pieces from sample ``first`` on."""
    C = len(out)
    for p in range(len(a)):
        a[p] = 0.0
        for t in range(first + p * piece, first + (p + 1) * piece):
            row = rows[t]
            for c in range(C):
                a[p, c] += row[c]
        for c in range(C):
            a[p, c] /= piece
    medians(a, order, out)


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
