"""numba kernels of the comb NUFFT: powers of one band of one light curve.

The mathematics and the tables are in :mod:`skysieve.periodogram.numerics.nufft`, the vector code in
:mod:`skysieve.periodogram.cpu.comb_simd`.  One call of :func:`comb_band` computes ``modes * combs`` neighbouring
frequencies.  Operations a frequency, three channels (w y and w at f, w at 2f): 3 x 2 x 16 x 192 / modes
fused multiply-adds in the transforms (96 in float64), about 40 for the power and one division, and
``3 x 4 x TAPS x N_t / (modes P)`` for spreading.  The cells of a band (10 KB) and the group's scratch
stay in the first two caches, so arithmetic limits it.
"""

from __future__ import annotations

import numpy as np

from skysieve.core.cpu.jit import njit
from skysieve.periodogram.cpu.direct import cos_sin
from skysieve.periodogram.numerics.nufft import MAX_FOLDS, N_COEFFICIENTS, TAPS, M

from .comb_simd import (
    CELL,
    GROUP,
    LANES,
    STEP,
    dft16_cells,
    dft16_lanes,
    dft16_twice,
    fold_cell,
    outline,
    power_lanes,
    spread,
    tap_weights,
)
from .state import ROW


@njit(nogil=True, error_model="numpy")
def comb_setup(t, n, df, combs, coefficients, work):
    """Cells and kernel weights of every point, on the circle of f and on that of 2f.

    A row of weights starts at a cell that is a multiple of LANES: windows of neighbouring points then meet at
    whole vectors, which store-to-load forwarding needs.
    """
    outline()
    per_time = M * combs * df
    origin = (TAPS / 2) / per_time
    for j in range(n):
        tt = t[j] + origin
        work.shifted[j] = tt
        for twice in range(2):
            x = tt * per_time * (1 + twice) - TAPS / 2
            first = np.ceil(x)
            cell = np.int64(first)
            aligned = cell // LANES * LANES
            weights = work.weight2 if twice else work.weight1
            base = j * ROW
            for a in range(ROW):
                weights[base + a] = 0
            tap_weights(coefficients, 2.0 * (first - x) - 1.0, N_COEFFICIENTS, TAPS, weights, base + cell - aligned)
            if twice:
                work.cell2[j] = aligned
            else:
                work.cell1[j] = aligned


@njit(nogil=True, error_model="numpy")
def strengths(f, f_low, shifted, w, wy, n, floating_mean, c, s, values):
    """``values[channel, re/im, point]``: w y and w turned by exp(2 pi i f t), w by twice that."""
    cos_sin(f, f_low, shifted, np.int64(0), n, c, s)
    for j in range(n):
        values[0, j] = wy[j] * c[j]
        values[1, j] = wy[j] * s[j]
        values[2, j] = w[j] * (c[j] * c[j] - s[j] * s[j])
        values[3, j] = w[j] * (2.0 * c[j] * s[j])
    if floating_mean:
        for j in range(n):
            values[4, j] = w[j] * c[j]
            values[5, j] = w[j] * s[j]


@njit(nogil=True, error_model="numpy")
def comb_band(f, f_low, n, w, wy, folds1, folds2, combs, modes, constants, work, floating_mean, guard, block):
    """Standard powers of the band round ``f + f_low`` into ``block[q * combs + r]``, NaN where
    CC SS - CS^2 <= guard; returns whether some are NaN."""
    outline()
    cells, scratch, x, worst, values = work.cells, work.scratch, work.x, work.worst, work.values
    channels = 3 if floating_mean else 2
    strengths(f, f_low, work.shifted, w, wy, n, floating_mean, work.c, work.s, values)
    size = M * folds2 + ROW
    for i in range(2 * channels * size):
        cells[i] = 0
    for j in range(n):
        a1, a2 = work.cell1[j], work.cell2[j]
        spread(cells, a1, size + a1, work.weight1, j * ROW, ROW, values[0, j], values[1, j])
        spread(cells, 2 * size + a2, 3 * size + a2, work.weight2, j * ROW, ROW, values[2, j], values[3, j])
        if floating_mean:
            spread(cells, 4 * size + a1, 5 * size + a1, work.weight1, j * ROW, ROW, values[4, j], values[5, j])
    for i in range(LANES):
        worst[i] = 1
    for group in range(combs // LANES):
        for k in range(channels):
            first_stage(cells, 2 * k * size, size, folds2 if k == 1 else folds1, group, constants, scratch, k)
        for b in range(16):
            v = (group * 16 + b) * 8 * CELL
            for k in range(channels):
                dft16_lanes(scratch, k * GROUP + b * STEP, CELL, constants.second, v, x, k * STEP, CELL, 1)
            for d in range(modes // 16):
                q, cell = b + 16 * d, d * CELL
                at, to = (group * modes + q) * LANES, q * combs + group * LANES
                if floating_mean:
                    power_lanes(
                        x, 2 * STEP + cell, cell, STEP + cell, constants.deconvolve, at, block, to, 1, worst, guard
                    )
                else:
                    power_lanes(
                        x, 2 * STEP + cell, cell, STEP + cell, constants.deconvolve, at, block, to, 0, worst, guard
                    )
    low = worst[0]
    for i in range(1, LANES):
        low = min(low, worst[i])
    return low <= guard


@njit(nogil=True, error_model="numpy")
def first_stage(cells, re, size, folds, group, constants, scratch, k):
    """Fold the cells of one channel onto the circle and do the first 16-point transforms; output ``b`` of
    transform ``a`` goes to the cell ``16 b + a`` of part ``k`` of ``scratch``."""
    outline()
    im, out = re + size, k * GROUP
    first, u = constants.first, group * 8 * CELL
    fold, g = constants.fold, group * (2 * MAX_FOLDS + 1) * CELL
    if folds == 1:
        for a in range(16):
            dft16_cells(cells, re + a, im + a, 16, first, u, scratch, out + a * CELL, STEP)
    elif folds == 2:
        for a in range(16):
            dft16_twice(cells, re + a, im + a, 16, M, fold, g, first, u, scratch, out + a * CELL, STEP)
    else:
        base = 3 * GROUP
        for i in range(M):
            fold_cell(cells, re + i, im + i, M, folds, fold, g, scratch, base + i * CELL)
        for a in range(16):
            dft16_lanes(scratch, base + a * CELL, STEP, first, u, scratch, out + a * CELL, STEP, 0)
