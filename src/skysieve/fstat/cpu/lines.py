"""numba kernels of the line-robust statistic: the largest ``ln B_S/GL`` of a tile of cells.

Each detector has its own sums, and these are added for all detectors.  ``ln B`` of a cell is at most
``U = F - max(log_gauss, log_line[X] + F^X)``; it is computed, in float64, only for cells whose U exceeds the best value
so far.
"""

from __future__ import annotations

import numpy as np

from skysieve.core.cpu.jit import njit

from .exp import add_rows, longer, march, zero
from .lanes import fstat_lanes, largest
from .rect import add_bin, add_scattered_bins, clear

NONE = -1e300


@njit(nogil=True)
def copy_row(a, out):
    """``out = a``."""
    for j in range(a.size):
        out[j] = a[j]


@njit(nogil=True)
def set_row(out, value):
    """``out = value``."""
    for j in range(out.size):
        out[j] = value


@njit(nogil=True)
def raise_row(M, FX, prior):
    """``M = max(M, FX + prior)``."""
    for j in range(M.size):
        y = FX[j] + prior
        M[j] = y if y > M[j] else M[j]


@njit(nogil=True)
def bound_row(F, M, slack, gauss, U):
    """``U = F - M`` plus a bound of the rounding errors of its parts."""
    for j in range(U.size):
        U[j] = F[j] - M[j] + slack * (abs(F[j]) + abs(M[j]) + gauss)


@njit(nogil=True, error_model="numpy")
def cell_lines(F, FX, priors, j):
    """``ln B`` of lane ``j``; ``priors`` holds the priors of noise and of lines in each detector."""
    high = priors[0]
    for d in range(FX.shape[0]):
        high = max(high, priors[d + 1] + FX[d, j])
    total = np.exp(priors[0] - high)
    for d in range(FX.shape[0]):
        total += np.exp(priors[d + 1] + FX[d, j] - high)
    return F[j] - high - np.log(total)


@njit(nogil=True, error_model="numpy")
def lanes_of(T, total, bound, k, priors, slack, F, FX, M, U):
    """F of all detectors, F of each detector and the bounds U, from the sums ``T`` (D, 7, lanes)."""
    for i in range(7):
        copy_row(T[0, i], total[i])
        for d in range(1, T.shape[0]):
            add_rows(total[i], T[d, i], total[i])
    fstat_lanes(total, bound, k, F)
    set_row(M, k.dtype.type(priors[0]))
    for d in range(T.shape[0]):
        fstat_lanes(T[d], bound, k, FX[d])
        raise_row(M, FX[d], k.dtype.type(priors[d + 1]))
    bound_row(F, M, slack, k.dtype.type(abs(priors[0])), U)


@njit(nogil=True, error_model="numpy")
def exp_lines(
    x, fine, nearest, step, pad, n, rows, firsts, groups, length, more, skip, weights, bound, k, priors, slack,
    S, Z, T, total, work, FX, n0, best,
):  # fmt: skip
    """Exponential windows; the arguments are those of `exp.exp_tile`.

    ``x``, ``fine``, ``nearest``, ``S``, ``Z`` have a leading axis of D detectors.  ``T`` is (D, 7, lanes).  ``best``
    becomes ``[ln B, row, lane]``.
    """
    detectors, width = T.shape[0], length.size
    F, M, U, tops = work[0], work[1], work[2], work[3]
    w, w2 = weights[1], weights[3]
    corrected = more.shape[0] > 0
    for d in range(detectors):
        for i in range(7):
            zero(S[d, i])
            zero(Z[d, i])
    top, top_row, top_lane = NONE, -1, -1
    at, inside = 0, 0
    last = firsts[-1]
    c = n - 1
    while c >= last:
        while inside < width and c + np.int64(length[inside]) < n:
            inside += 1
        for d in range(detectors):
            march(x[d], fine[d], step, pad, c, n, inside, length, weights, nearest[d], corrected, S[d], Z[d])
        while at < rows.size and firsts[at] == c:
            m, g = rows[at], groups[at]
            at += 1
            if skip[g] >= width:
                continue
            for i in range(7):
                weight = w2 if i < 3 else w
                for d in range(detectors):
                    if corrected:
                        longer(S[d, i], weight, Z[d, i], more[g], T[d, i])
                    else:
                        copy_row(S[d, i], T[d, i])
            lanes_of(T, total, bound, k, priors, slack, F, FX, M, U)
            set_row(U[: skip[g]], k[4])
            if largest(U, tops) >= top:
                for j in range(skip[g], width):
                    if U[j] >= top:
                        value = cell_lines(F, FX, priors, j)
                        if value > top or (value == top and (m < top_row or (m == top_row and j < top_lane))):
                            top, top_row, top_lane = value, m, j
        c -= 1
    best[0], best[1], best[2] = top, top_row, n0 + top_lane


@njit(nogil=True, error_model="numpy")
def rect_lines(
    x, first, ends, rows, starts, length, n0, bound, k, priors, slack, S, total, work, FX, best
):  # fmt: skip
    """Rectangular windows; the arguments are those of `rect.rect_tile`, with ``x`` and ``S`` for each detector."""
    F, M, U, tops = work[0], work[1], work[2], work[3]
    scattered = starts[-1] != rows.size - 1
    detectors = x.shape[0]
    for d in range(detectors):
        clear(S[d])
    top, top_row, top_column = NONE, -1, -1
    done = 0
    for c in range(n0, length.size):
        last = length[c] >= ends
        until = min(length[c], ends)
        while done < until:
            for d in range(detectors):
                if scattered:
                    add_scattered_bins(S[d], x[d], first + done, starts)
                else:
                    add_bin(S[d], x[d], first + done)
            done += 1
        lanes_of(S, total, bound, k, priors, slack, F, FX, M, U)
        if largest(U, tops) >= top:
            for j in range(rows.size):
                if U[j] >= top:
                    value = cell_lines(F, FX, priors, j)
                    m = rows[j]
                    if value > top or (value == top and (m < top_row or (m == top_row and c < top_column))):
                        top, top_row, top_column = value, m, c
        if last:
            break
    best[0], best[1], best[2] = top, top_row, top_column
