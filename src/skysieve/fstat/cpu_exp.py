"""numba kernel of the exponential window: a recurrence in the start time at each fixed tau.

With ``q = exp(-T / tau)`` and windows of ``L`` bins the sums from bin ``c`` on obey

    S(c) = x_c + q S(c + 1) - q^L x_(c + L),

and with ``q^2`` for the antenna factors: a map costs O(N_t0 N_tau) where LALPulsar and the paper pay
O(N_t0 N_tau N).  ``q S`` is taken as ``S - p S``, ``p = 1 - q``: in float32 a rounded q would shift tau itself.
Sums without data in their window are set to exact zero, and bins far above the noise are summed apart, so that what
has departed leaves no residue.

A lane is a duration; the march runs down the start times.  The factor ``exp(-(t_c - t0) / tau)`` of starts between
two bins cancels in F and is left out.  Starts that differ in their place between the bins have windows of ``L`` or
``L + 1`` bins: the one bin more is the very ``x_(c + L)`` that has just been taken off.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .cpu_lanes import add_lanes, count_equal, exp_lanes, first_equal, flush, fstat_lanes, largest, rescale

COLUMNS = 512
"""Durations of a tile: its sums, weights and buffers fill the first cache."""
STRETCH = 64


@njit(cache=True, nogil=True, fastmath={"contract"})
def decay(row, p, value):
    """``S <- S - p S + x`` on all lanes."""
    for j in range(row.size):
        row[j] = row[j] - p[j] * row[j] + value


@njit(cache=True, nogil=True, fastmath={"contract"})
def decay_tail(row, p, value, w, tail):
    """The same, less the bin that departs."""
    for j in range(tail.size):
        row[j] = row[j] - p[j] * row[j] + value - w[j] * tail[j]


@njit(cache=True, nogil=True)
def tail_bins(x, at, length, tail):
    """The bins that depart, for lengths without a common step."""
    source = x[at:]
    for j in range(tail.size):
        tail[j] = source[length[j]]


@njit(cache=True, nogil=True, fastmath={"contract"})
def longer(row, w, tail, more, out):
    """Sums of windows that hold one bin more in the lanes where ``more`` is 1."""
    for j in range(row.size):
        out[j] = row[j] + more[j] * (w[j] * tail[j])


@njit(cache=True, nogil=True)
def zero(row):
    """All zero."""
    for j in range(row.size):
        row[j] = 0


@njit(cache=True, nogil=True)
def hide(F, count, value):
    """Put ``value`` in the first lanes, whose windows are too short."""
    for j in range(count):
        F[j] = value


@njit(cache=True, nogil=True)
def add_rows(a, b, out):
    """``out = a + b``."""
    for j in range(a.size):
        out[j] = a[j] + b[j]


@njit(cache=True, nogil=True)
def march(x, fine, step, pad, c, inside, length, weights, occupied_from, keep_tail, S, Z):
    """Take the sums ``S`` of all lanes from bin ``c + 1`` to bin ``c``; the first ``inside`` lanes lose a bin.

    ``x`` holds the bins, ``pad`` zero bins before them; ``fine[i, r, q] = x[i, r + step q]`` where the lengths rise by
    a constant ``step``, else ``step`` is 0.  ``occupied_from[pad + c]`` is the first occupied bin from ``c`` on.
    ``Z`` keeps the bins that departed.
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
                kept = Z[i, :inside]
                for j in range(inside):
                    kept[j] = tail[j]
        decay(row[inside:], decays[inside:], value)
    nearest = occupied_from[pad + c]
    if nearest > c:
        empty = 0
        while empty < length.size and c + np.int64(length[empty]) <= nearest:
            empty += 1
        for i in range(7):
            zero(S[i, :empty])


@njit(cache=True, nogil=True, error_model="numpy")
def exp_tile(
    x, fine, nearest, loud, loud_fine, loud_nearest, step, pad, n, rows, firsts, groups, length, more, skip, weights,
    bound, k, poly, S, T, Z, S2, Z2, lines, bits, scale, keep, sums, out, n0, row_log, column_log, best,
):  # fmt: skip
    """All rows of a tile of durations.

    ``x``, ``fine``, ``nearest`` (see `march`) are the quiet bins, ``loud`` and its own the loud ones: their sums run
    apart and are added, for what a loud bin leaves behind in float32 when it departs is not small beside the noise.
    Rows come in falling order of ``firsts``.  ``length`` (unsigned, rising) are the lengths that all groups have,
    ``more[g]`` is 1 where group ``g`` has one bin more, the first ``skip[g]`` lanes of it are too short.  ``weights``
    are p and w = q^L for the data, then for the antenna factors.  ``S``, ``Z`` hold sums and departing bins, ``T``
    sums as corrected; ``lines`` F, E, lane sums.
    """
    F, E, lanes = lines[0], lines[1], lines[2]
    width = length.size
    w, w2 = weights[1], weights[3]
    corrected = more.shape[0] > 0
    fallback, low = k[3], k[4]
    for i in range(7):
        zero(S[i])
        zero(Z[i])
        zero(S2[i])
        zero(Z2[i])
    zero(lanes)
    for j in range(width):
        sums[j] = 0.0
    ref, top, top_row, top_lane, missed, total = low, low, -1, -1, 0, 0.0
    at, since, inside = 0, 0, 0
    longest = np.int64(length[width - 1])
    last = firsts[-1]
    c = n - 1
    while c >= last:
        while inside < width and c + np.int64(length[inside]) < n:
            inside += 1
        march(x, fine, step, pad, c, inside, length, weights, nearest, corrected, S, Z)
        noisy = loud_nearest[pad + c] <= c + longest
        if noisy:
            march(loud, loud_fine, step, pad, c, inside, length, weights, loud_nearest, corrected, S2, Z2)
        while at < rows.size and firsts[at] == c:
            m, g = rows[at], groups[at]
            at += 1
            if skip[g] >= width:
                continue
            if corrected:
                for i in range(7):
                    longer(S[i], w2 if i < 3 else w, Z[i], more[g], T[i])
                    if noisy:
                        longer(S2[i], w2 if i < 3 else w, Z2[i], more[g], E)
                        add_rows(E, T[i], T[i])
                fstat_lanes(T, bound, k, F)
            elif noisy:
                for i in range(7):
                    add_rows(S[i], S2[i], T[i])
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
