"""numba kernel of the exponential window: a recurrence in the start time at each fixed tau.

With ``q = exp(-T / tau)`` and windows of ``L`` bins the sums from bin ``c`` on obey

    S(c) = x_c + q S(c + 1) - q^L x_(c + L),

and the same holds with ``q^2`` for the antenna factors.  A map costs O(N_t0 N_tau), where LALPulsar and the paper need
O(N_t0 N_tau N).  ``q S`` is computed as ``S - p S`` with ``p = 1 - q``, because in float32 a rounded q would shift tau.
The sums of windows without data are set to exactly zero.  In a gap, windows lose bins and gain none.  When few bins are
left, the sums are recomputed from these, since otherwise the rounding errors of the bins that left would dominate.
Templates whose weights or data would leave a residue elsewhere are computed by other methods (see ``precision.py``).

A lane is a duration; the loop over start times runs from late to early.  Starts between two bins have a factor
``exp(-(t_c - t0) / tau)``, which cancels in F and is left out.  Starts at different offsets from the bins have windows
of ``L`` or ``L + 1`` bins; the additional bin is the ``x_(c + L)`` that has just been subtracted.
"""

from __future__ import annotations

import numpy as np

from skysieve.core.cpu.jit import njit

from .lanes import add_lanes, count_equal, exp_lanes, first_equal, flush, fstat_lanes, largest, rescale
from .simd import ROWS, exp_block, plain_block, tail_block, tail_zero_block, zero_block

COLUMNS = 512
"""Durations of a tile: its sums, weights and buffers fill the first-level cache."""
STRETCH = 64
"""Rows after which sums of exponentials are added to their float64 totals."""
BLOCK_COLUMNS = 1024
"""Most durations of a tile that is computed in blocks: their sums stay in the second-level cache."""
FEWEST_COLUMNS = 720
"""Fewest durations of a tile in blocks when several threads share the columns."""
LEFT = np.array([[1, 4, 16], [16, 16, 16], [256, 256, 256]])
"""Rows (from, to, gap): sums are recomputed when `from` to `to` bins are left in a window that starts in a gap of at
least `gap` bins.  Rounding errors of 16 times as many bins are harmless, and these sums are short."""
AHEAD = 40.0
"""How far F may exceed the reference of its exponentials before the reference is raised: float32 can add exp(40)."""


@njit(nogil=True, fastmath={"contract"})
def decay(row, p, value):
    """``S <- S - p S + x`` on all lanes."""
    for j in range(row.size):
        row[j] = row[j] - p[j] * row[j] + value


@njit(nogil=True, fastmath={"contract"})
def decay_tail(row, p, value, w, tail):
    """The same as `decay`, minus the bin that leaves the window."""
    for j in range(tail.size):
        row[j] = row[j] - p[j] * row[j] + value - w[j] * tail[j]


@njit(nogil=True)
def tail_bins(x, at, length, tail):
    """The bins that leave the windows, for lengths without a common step."""
    source = x[at:]
    for j in range(tail.size):
        tail[j] = source[length[j]]


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def renew(x, pad, c, nearest, rows, length, weights, S):
    """In a gap, recompute the sums of those windows from bin ``c`` on that hold few bins, as given by `LEFT`.

    ``nearest`` is the first occupied bin after ``c``.  ``rows`` is the number of bins until the next call; windows
    that hold up to this many more bins are summed too.
    """
    gap = nearest - c
    for k in range(LEFT.shape[0]):
        if gap < LEFT[k, 2]:
            return
        lane, above = 0, length.size  # with numpy.searchsorted, loading the cached code would import SciPy
        while lane < above:
            middle = (lane + above) // 2
            if np.int64(length[middle]) < gap + LEFT[k, 0]:
                lane = middle + 1
            else:
                above = middle
        while lane < length.size and np.int64(length[lane]) < gap + LEFT[k, 1] + rows:
            many = np.int64(length[lane]) - gap
            for i in range(7):
                p = weights[2, lane] if i < 3 else weights[0, lane]
                row = x[i]
                total = row[0] - row[0]
                for j in range(pad + nearest + many - 1, pad + nearest - 1, -1):
                    value = row[j] if j < row.size else total - total
                    total = total - p * total + value
                S[i, lane] = total * np.exp(gap * np.log1p(-p))
            lane += 1


@njit(nogil=True, fastmath={"contract"})
def longer(row, w, tail, more, out):
    """Sums of windows that hold one bin more in the lanes where ``more`` is 1."""
    for j in range(row.size):
        out[j] = row[j] + more[j] * (w[j] * tail[j])


@njit(nogil=True)
def zero(row):
    """Set all values to zero."""
    for j in range(row.size):
        row[j] = 0


@njit(nogil=True)
def hide(F, count, value):
    """Write ``value`` to the first lanes, whose windows are too short."""
    for j in range(count):
        F[j] = value


@njit(nogil=True)
def add_rows(a, b, out):
    """``out = a + b``."""
    for j in range(a.size):
        out[j] = a[j] + b[j]


@njit(nogil=True)
def march(x, fine, step, pad, c, n, inside, length, weights, occupied_from, keep_tail, S, Z):
    """Advance the sums ``S`` of all lanes from bin ``c + 1`` to bin ``c``; the first ``inside`` lanes lose a bin.

    ``x`` holds the bins with ``pad`` zero bins before them.  ``fine[i, r, q] = x[i, r + step q]`` if the lengths rise
    by a constant ``step``; otherwise ``step`` is 0.  ``occupied_from[pad + c]`` is the first occupied bin from ``c``
    on.  ``Z`` receives the bins that left.
    """
    p, w, p2, w2 = weights[0], weights[1], weights[2], weights[3]
    for i in range(7):
        row = S[i]
        decays, weight = (p2, w2) if i < 3 else (p, w)
        value = x[i, pad + c]
        if inside > 0:
            if step > 0:
                b = pad + c + np.int64(length[0])
                tail = fine[i, b % step, b // step : b // step + inside]
            else:
                tail = Z[i, :inside]
                tail_bins(x[i], pad + c, length, tail)
            decay_tail(row, decays, value, weight, tail)
            if keep_tail and step > 0:
                saved = Z[i, :inside]
                for j in range(inside):
                    saved[j] = tail[j]
        decay(row[inside:], decays[inside:], value)
    nearest = occupied_from[pad + c]
    if nearest > c:
        empty = 0
        while empty < length.size and c + np.int64(length[empty]) <= nearest:
            empty += 1
        for i in range(7):
            zero(S[i, :empty])
        if nearest < n:
            renew(x, pad, c, nearest, 1, length, weights, S)


@njit(nogil=True, error_model="numpy")
def exp_tile(
    x, fine, nearest, step, pad, n, rows, firsts, groups, length, more, skip, weights,
    bound, k, poly, S, T, Z, lines, bits, scale, keep, sums, out, n0, row_log, column_log, best,
):  # fmt: skip
    """All rows of a tile of durations.

    For ``x``, ``fine`` and ``nearest`` see `march`.  Rows come in falling order of ``firsts``.  ``length`` (unsigned,
    rising) are the lengths common to all groups; ``more[g]`` is 1 where windows of group ``g`` hold one bin more, and
    its first ``skip[g]`` lanes are too short.  ``weights`` are p and w = q^L for the data, then for the antenna
    factors.  Scratch: ``S`` and ``Z`` for sums and bins that leave, ``T`` for corrected sums, ``lines`` for F, E and
    lane sums.
    """
    F, E, lanes = lines[0], lines[1], lines[2]
    width = length.size
    w, w2 = weights[1], weights[3]
    corrected = more.shape[0] > 0
    fallback, low = k[3], k[4]
    for i in range(7):
        zero(S[i])
        zero(Z[i])
    zero(lanes)
    for j in range(width):
        sums[j] = 0.0
    ref, top, top_row, top_lane, missed, total = low, low, -1, -1, 0, 0.0
    at, since, inside = 0, 0, 0
    last = firsts[-1]
    c = n - 1
    while c >= last:
        while inside < width and c + np.int64(length[inside]) < n:
            inside += 1
        march(x, fine, step, pad, c, n, inside, length, weights, nearest, corrected, S, Z)
        while at < rows.size and firsts[at] == c:
            m, g = rows[at], groups[at]
            at += 1
            if skip[g] >= width:
                continue
            if corrected:
                for i in range(7):
                    longer(S[i], w2 if i < 3 else w, Z[i], more[g], T[i])
                fstat_lanes(T, bound, k, F)
            else:
                fstat_lanes(S, bound, k, F)
            if keep:
                target = out[m, n0 : n0 + width]
                for j in range(width):
                    target[j] = F[j]
                for j in range(skip[g]):
                    target[j] = np.nan
            hide(F, skip[g], low)
            high = largest(F, E)
            if high >= top:
                lane = first_equal(F, high)
                if high > top or m < top_row:
                    top, top_row, top_lane = high, m, lane
            missed += count_equal(F, fallback)
            if high > ref:
                factor = np.exp(np.float64(ref) - np.float64(high))
                rescale(lanes, sums, factor)
                total *= factor
                ref = high
            exp_lanes(F, ref, k, poly, E, bits)
            part = np.float64(add_lanes(E, scale, lanes))
            total += part
            row_log[m] = ref + np.log(part)
            since += 1
            if since == STRETCH:
                flush(lanes, sums)
                since = 0
        c -= 1
    flush(lanes, sums)
    for j in range(width):
        column_log[j] = ref + np.log(sums[j])
    best[0], best[1], best[2], best[3], best[4] = top, top_row, top_lane, missed, ref + np.log(total)


@njit(nogil=True)
def best_of_rows(F, lines, width, top, top_row, top_lane, work):
    """Update the best cell with those rows of F that are rows of the map; also return their largest value."""
    high = work[0]
    seen = False
    for r in range(lines.size):
        if lines[r] >= 0:
            here = largest(F[r, :width], work)
            high = max(high, here) if seen else here
            seen = True
            if here > top or (here == top and lines[r] < top_row):
                top, top_row, top_lane = here, lines[r], first_equal(F[r, :width], here)
    return top, top_row, top_lane, high


@njit(nogil=True)
def gather_tails(x, at, length, inside, room, thin):
    """The bins that leave windows of any lengths, in the layout of a block: ``thin[i, r, lane]`` of bin ``at - r``."""
    for i in range(7):
        for r in range(thin.shape[1]):
            target, source, last = thin[i, r], x[i, at - r :], np.uint64(room + r)
            for j in range(inside):
                target[j] = source[length[j]] if length[j] < last else 0


@njit(nogil=True, error_model="numpy")
def exp_blocks(
    x, fine, thin, nearest, step, pad, n, rows, firsts, length, width, skip, weights, bound, k, S, F, ends, places,
    work, lanes, keep, sums, out, n0, row_log, column_log, best,
):  # fmt: skip
    """As `exp_tile`, for rows of one group, in blocks of `ROWS` bins, some of which may not be rows of the map.

    Lanes from ``width`` on fill the last vector.  ``thin`` (7, ROWS, lanes) receives the bins that leave, if
    lengths have no common step.  Scratch: ``ends`` (3, ROWS, lanes of a vector) for the largest F and the fallbacks of
    a block and for sums of its rows; ``places`` (3, ROWS) for positions of the bins that leave, numbers of empty lanes,
    and rows of the map.
    """
    high, bad, parts, tails, empty, line = ends[0, 0], ends[1, 0], ends[2], places[0], places[1], places[2]
    fallback, low = k[3], k[4]
    whole, vector = length.size, high.size
    for i in range(7):
        zero(S[i])
    zero(lanes)
    for j in range(whole):
        sums[j] = 0.0
    shortest = np.int64(length[0])
    stride, flat = fine.shape[1] * fine.shape[2], fine.ravel()
    if step == 0:
        stride, flat = ROWS * whole, thin.ravel()
    ref, top, top_row, top_lane, missed, total = low, low, -1, -1, 0, 0.0
    since, at, inside, c = 0, 0, 0, n - 1
    while at < rows.size:
        while inside < whole and c - ROWS + 1 + np.int64(length[inside]) < n:
            inside += 1
        split = min(whole, -(-inside // vector) * vector)
        if c + 1 < n and nearest[pad + c] > c + 1 and nearest[pad + c + 1] < n:
            renew(x, pad, c + 1, nearest[pad + c + 1], ROWS, length, weights, S)
        if step == 0:
            gather_tails(x, pad + c, length, split, n - c, thin)
        gaps, hits = False, 0
        for r in range(ROWS):
            if step > 0:
                leaving = pad + c - r + shortest
                tails[r] = (leaving % step) * fine.shape[2] + leaving // step
            else:
                tails[r] = r * whole
            empty[r], line[r] = 0, -1
            if nearest[pad + c - r] > c - r:
                while empty[r] < whole and c - r + np.int64(length[empty[r]]) <= nearest[pad + c - r]:
                    empty[r] += 1
                gaps = gaps or empty[r] > 0
            if at < rows.size and firsts[at] == c - r:
                line[r] = rows[at]
                at += 1
                hits += 1
        for j in range(vector):
            high[j] = low
            bad[j] = 0
        if gaps:
            tail_zero_block(S, weights, x, pad + c, flat, tails, stride, empty, bound, F, high, bad, 0, split)
            zero_block(S, weights, x, pad + c, flat, tails, stride, empty, bound, F, high, bad, split, whole)
        else:
            tail_block(S, weights, x, pad + c, flat, tails, stride, empty, bound, F, high, bad, 0, split)
            plain_block(S, weights, x, pad + c, flat, tails, stride, empty, bound, F, high, bad, split, whole)
        c -= ROWS
        if hits == 0:
            continue
        if keep:
            for r in range(ROWS):
                if line[r] >= 0:
                    target = out[line[r], n0 : n0 + width]
                    for j in range(width):
                        target[j] = F[r, j]
                    for j in range(skip):
                        target[j] = np.nan
        if skip > 0 or width < whole:
            for r in range(ROWS):
                for j in range(skip):
                    F[r, j] = low
                for j in range(width, whole):
                    F[r, j] = low
        up, wrong = high[0], bad[0]
        for j in range(vector):
            up, wrong = max(up, high[j]), wrong + bad[j]
        if wrong > 0:
            for r in range(ROWS):
                if line[r] >= 0:
                    for j in range(width):
                        missed += F[r, j] == fallback
        if up >= top or up > ref + AHEAD:
            top, top_row, top_lane, up = best_of_rows(F, line, width, top, top_row, top_lane, work)
            if up > ref + AHEAD:
                factor = np.exp(np.float64(ref) - np.float64(up))
                rescale(lanes, sums, factor)
                total *= factor
                ref = up
        if hits < ROWS:
            for r in range(ROWS):
                if line[r] < 0:
                    for j in range(whole):
                        F[r, j] = low
        exp_block(F, ref, parts, lanes, whole)
        for r in range(ROWS):
            if line[r] >= 0:
                part = 0.0
                for j in range(vector):
                    part += parts[r, j]
                total += part
                row_log[line[r]] = ref + np.log(part)
        since += ROWS
        if since >= STRETCH:
            flush(lanes, sums)
            since = 0
    flush(lanes, sums)
    for j in range(width):
        column_log[j] = ref + np.log(sums[j])
    best[0], best[1], best[2], best[3], best[4] = top, top_row, top_lane, missed, ref + np.log(total)


@njit(nogil=True, error_model="numpy")
def exp_blocks_of_all(
    x, fine, thin, nearest, step, pad, n, rows, firsts, length, width, skip, weights, bound, k, S, F, ends, places,
    work, lanes, keep, sums, out, n0, row_log, column_log, best,
):  # fmt: skip
    """`exp_blocks` of several templates: ``x``, ``fine``, ``out``, ``row_log``, ``column_log`` and ``best`` have an
    entry of each."""
    for i in range(x.shape[0]):
        exp_blocks(
            x[i], fine[i], thin, nearest, step, pad, n, rows, firsts, length, width, skip, weights, bound, k, S, F,
            ends, places, work, lanes, keep, sums, out[i], n0, row_log[i], column_log[i], best[i],
        )  # fmt: skip
