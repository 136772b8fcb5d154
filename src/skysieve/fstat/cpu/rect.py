"""numba kernel of the rectangular window: running sums from each start, in the order of LALPulsar.

A lane is a row (a start time).  A tile of rows of one group moves the end of its windows through the data, so that
every bin is added once for each row and never subtracted.  A cell costs 7 additions and about 25 operations; the sums
of a tile (7 x 384) stay in the first-level cache.
"""

from __future__ import annotations

import numpy as np

from skysieve.core.cpu.jit import njit

from .lanes import (
    add_lanes,
    add_times,
    count_equal,
    exp_lanes,
    first_equal,
    flush,
    fstat_lal,
    fstat_lanes,
    largest,
    rescale,
)

ROWS = 384
"""Rows of a tile."""
COLUMNS = 16
"""Columns that are gathered before they are written to the map: one cache line."""
SPARSE = 4
"""In float32, differences of running sums in float64 are used if a grid has this many times fewer cells than bins to
add."""
FEW_ROWS = 24
"""Differences of running sums are also used with fewer rows than this for each place within a bin where rows start."""
WILD = 1e9
"""Largest amplitude in units of the median for differences of running sums, which leave a residue of 1e-7 of the
noise."""
RANGE = 1e3
"""Largest ratio of weights for differences of running sums."""
STRETCH = 64
"""Columns whose sums are added in the dtype of the map before they are added to float64 totals."""


@njit(nogil=True)
def add_bin(S, x, at):
    """Add bin ``at`` (and its neighbours, lane by lane) to the sums."""
    for i in range(7):
        row, source = S[i], x[i, at : at + S.shape[1]]
        for j in range(row.size):
            row[j] += source[j]


@njit(nogil=True)
def add_scattered_bins(S, x, at, starts):
    """The same as `add_bin` for rows whose first bins are not neighbours."""
    for i in range(7):
        row, source = S[i], x[i, at:]
        for j in range(row.size):
            row[j] += source[starts[j]]


@njit(nogil=True)
def clear(S):
    """Set all values to zero."""
    for i in range(S.shape[0]):
        row = S[i]
        for j in range(row.size):
            row[j] -= row[j]


@njit(nogil=True)
def store(out, rows, tile, n0, count):
    """Write columns ``n0 : n0 + count`` of the map from a tile of gathered columns."""
    for j in range(rows.size):
        target = out[rows[j], n0 : n0 + count]
        for i in range(count):
            target[i] = tile[i, j]


@njit(nogil=True)
def fill(out, rows, n0, F):
    """Write ``F`` to all columns from ``n0`` on."""
    for j in range(rows.size):
        target = out[rows[j], n0:]
        for i in range(target.size):
            target[i] = F[j]


@njit(nogil=True, error_model="numpy")
def rect_tile(
    x, first, ends, rows, starts, length, n0, bound, lal, k, poly, work, bits, scale, tile, keep, sums, out,
    row_log, column_log, best,
):  # fmt: skip
    """Compute the columns from ``n0`` on, for the rows of a tile.

    ``x`` has zero bins on both sides; ``first`` is the index of the first bin of the first row in it, ``starts``
    (unsigned) are the first bins of all rows relative to this one, and after ``ends`` bins every row has reached the
    end of the data.  The rows of ``work`` are the 7 sums, F, E and lane sums; ``bits`` and ``scale`` share their
    memory.  ``row_log`` and ``column_log`` receive ``ln sum exp F`` of the rows and columns of the tile, ``best``
    receives ``[F, row, column, fallbacks, ln sum exp F]``.
    """
    S, F, E, lanes = work[:7], work[7], work[8], work[9]
    scattered = starts[-1] != rows.size - 1
    columns = length.size
    clear(work)
    for j in range(sums.size):
        sums[j] = 0.0
    fallback, low = k[3], k[4]
    ref, top, top_row, top_column, missed, total = low, low, -1, -1, 0, 0.0
    done, gathered, since = 0, 0, 0
    for c in range(n0, columns):
        last = length[c] >= ends
        until = min(length[c], ends)
        while done < until:
            if scattered:
                add_scattered_bins(S, x, first + done, starts)
            else:
                add_bin(S, x, first + done)
            done += 1
        if lal:
            fstat_lal(S, F)
        else:
            fstat_lanes(S, bound, k, F)
        times = columns - c if last else 1
        high = largest(F, E)
        if high > top:
            top, top_row, top_column = high, first_equal(F, high), c
        elif high == top:
            j = first_equal(F, high)
            if j < top_row:
                top_row, top_column = j, c
        missed += times * count_equal(F, fallback)
        if high > ref:
            factor = np.exp(np.float64(ref) - np.float64(high))
            rescale(lanes, sums, factor)
            total *= factor
            for i in range(n0, c):
                column_log[i] *= factor
            ref = high
        exp_lanes(F, ref, k, poly, E, bits)
        part = np.float64(add_lanes(E, scale, lanes))
        total += times * part
        for i in range(c, c + times):
            column_log[i] = part
        if times > 1:
            add_times(E, times - 1, sums)
        since += 1
        if since == STRETCH:
            flush(lanes, sums)
            since = 0
        if keep:
            if last:
                store(out, rows, tile, c - gathered, gathered)
                fill(out, rows, c, F)
                gathered = 0
            else:
                for j in range(F.size):
                    tile[gathered, j] = F[j]
                gathered += 1
                if gathered == COLUMNS:
                    store(out, rows, tile, c + 1 - gathered, gathered)
                    gathered = 0
        if last:
            break
    if gathered > 0:
        store(out, rows, tile, columns - gathered, gathered)
    flush(lanes, sums)
    for j in range(rows.size):
        row_log[j] = ref + np.log(sums[j])
    for c in range(n0, columns):
        column_log[c] = ref + np.log(column_log[c])
    best[0], best[1], best[2], best[3], best[4] = top, top_row, top_column, missed, ref + np.log(total)


@njit(nogil=True)
def between(P, start, first, length, n, S):
    """Sums ``S`` of the bins from ``start`` to each window's end, as differences of the running sums ``P``."""
    for i in range(7):
        row, source = S[i], P[i]
        base = source[start]
        for j in range(row.size):
            end = min(max(first + length[j], start), n)
            row[j] = source[end] - base


@njit(nogil=True, error_model="numpy")
def rect_rows(
    P, occupied, n, rows, firsts, groups, length, skips, bound, k, poly, S, lines, bits, scale, keep, sums, out,
    row_log, column_log, best,
):  # fmt: skip
    """Rows of sparse grids: every cell is a difference of running sums ``P`` (7, n + 1) in float64.

    ``occupied`` (n + 1) counts the bins with data before each bin.  Scratch: ``S`` for the sums of a row, ``lines`` for
    its F, exponentials and the sums of columns.
    """
    F, E, lanes = lines[0], lines[1], lines[2]
    fallback, low = k[3], k[4]
    columns = F.size
    clear(lines)
    for j in range(columns):
        sums[j] = 0.0
    ref, top, top_row, top_lane, missed, total = low, low, -1, -1, 0, 0.0
    since = 0
    for at in range(rows.size):
        m, g, first = rows[at], groups[at], firsts[at]
        start, skip = max(first, 0), skips[groups[at]]
        if skip >= columns:
            continue
        between(P, start, first, length[g], n, S)
        for j in range(columns):
            end = min(max(first + length[g, j], start), n)
            if occupied[end] > occupied[start]:
                break
            for i in range(7):
                S[i, j] = 0
        fstat_lanes(S, bound, k, F)
        if keep:
            target = out[m]
            for j in range(skip, columns):
                target[j] = F[j]
        for j in range(skip):
            F[j] = low
        high = largest(F, E)
        if high > top:
            top, top_row, top_lane = high, m, first_equal(F, high)
        missed += count_equal(F, fallback)
        if high > ref:
            factor = np.exp(np.float64(ref) - np.float64(high))
            rescale(lanes, sums, factor)
            total *= factor
            ref = high
        exp_lanes(F, ref, k, poly, E, bits)
        part = np.float64(add_lanes(E, scale, lanes))
        total += part
        row_log[at] = ref + np.log(part)
        since += 1
        if since == STRETCH:
            flush(lanes, sums)
            since = 0
    flush(lanes, sums)
    for j in range(columns):
        column_log[j] = ref + np.log(sums[j])
    best[0], best[1], best[2], best[3], best[4] = top, top_row, top_lane, missed, ref + np.log(total)


@njit(nogil=True)
def zero_rows(work):
    """Set all values to zero, also those that are not finite."""
    for i in range(work.shape[0]):
        row = work[i]
        for j in range(row.size):
            row[j] = 0


@njit(nogil=True, error_model="numpy")
def rect_tiles(
    x, first, ends, rows, starts, length, n0, bound, lal, k, poly, work, bits, scale, tile, keep, sums, out,
    row_log, column_log, best,
):  # fmt: skip
    """`rect_tile` of several templates: ``x``, ``out``, ``row_log``, ``column_log`` and ``best`` have an entry of
    each."""
    for i in range(x.shape[0]):
        zero_rows(work)
        rect_tile(
            x[i], first, ends, rows, starts, length, n0, bound, lal, k, poly, work, bits, scale, tile, keep, sums,
            out[i], row_log[i], column_log[i], best[i],
        )  # fmt: skip


@njit(nogil=True, error_model="numpy")
def rect_rows_of_all(
    P, occupied, n, rows, firsts, groups, length, skips, bound, k, poly, S, lines, bits, scale, keep, sums, out,
    row_log, column_log, best,
):  # fmt: skip
    """`rect_rows` of several templates: ``P``, ``out``, ``row_log``, ``column_log`` and ``best`` have an entry of
    each."""
    for i in range(P.shape[0]):
        zero_rows(lines)
        rect_rows(
            P[i], occupied, n, rows, firsts, groups, length, skips, bound, k, poly, S, lines, bits, scale, keep, sums,
            out[i], row_log[i], column_log[i], best[i],
        )  # fmt: skip
