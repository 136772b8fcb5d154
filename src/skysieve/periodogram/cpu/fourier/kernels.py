"""numba kernels of the Fourier series fits: sums of one light curve, normal equations, power.

The columns and their sums are in :mod:`skysieve.periodogram.numerics.fourier`.  A sum at m f is the comb's transform
(:mod:`skysieve.periodogram.numerics.nufft`) with positions and phases m times as large: its cells wind round m times
as many circles and fold on one, so one band of combs gives every harmonic at the same frequencies.  Operations a
frequency for n terms: 3 n transforms of 6 x 16 x 192 / modes fused multiply-adds, folds of 4 x 256 / modes a circle,
about (2 n)^3 / 6 + 4 (2 n)^2 for the equations.  Everything is float64, whatever the powers are stored as: the normal
matrix has the square of the columns' condition.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skysieve.core.cpu.jit import njit
from skysieve.periodogram.cpu.comb_simd import (
    CELL,
    GROUP,
    LANES,
    STEP,
    dft16_cells,
    dft16_lanes,
    dft16_twice,
    fold_cell,
    outline,
    spread,
    tap_weights,
)
from skysieve.periodogram.cpu.direct import COLUMN_NOISE, SINGULAR, cos_sin, select
from skysieve.periodogram.cpu.state import ROW
from skysieve.periodogram.numerics.nufft import N_COEFFICIENTS, TAPS, M

from .simd import VECTORS, WIDE, collect, combine, factorise, sinusoid, substitute, verdict

NUFFT_LIMIT = 10.0
"""See `series.LIMIT`."""
PIVOT = 1e-8
"""A pivot of the normal matrix below this fraction of the weight of the column's rows makes a power NaN."""


class Fit(NamedTuple):
    """`fourier.Tables` for numba."""

    channel: Any
    derived: Any
    penalty: Any
    column: Any  # band, harmonic, sine of each column
    steps: Any  # of the factorisation, and their factors: see ``simd.factorise``
    factors: Any
    pairs: Any  # of the substitution
    right: int  # start of the right-hand side in ``upper`` and ``lower``
    constants: int  # leading columns that are the constants of bands
    sinusoid: bool  # whether the other columns are one term
    regularised: bool
    bands: int


class Combs(NamedTuple):
    """Constants of the comb with a fold table as long as the highest harmonic needs."""

    first: Any
    second: Any
    fold: Any
    deconvolve: Any
    taps: Any
    folds: int  # entries of a group in ``fold``


class SeriesWork(NamedTuple):
    """Scratch of one thread."""

    c: Any
    s: Any
    shifted: Any
    cell: Any
    weight: Any
    re: Any
    im: Any
    cells: Any
    scratch: Any
    x: Any
    values: Any
    upper: Any
    lower: Any
    inverse: Any
    beta: Any
    sound: Any
    small: Any
    design: Any
    block: Any


@njit(nogil=True, error_model="numpy")
def points(t, n, df, combs, coefficients, highest, work):
    """Cells and kernel weights of every point on the circles of f, 2 f, ... (``cpu.comb.comb_setup``)."""
    outline()
    per_time = M * combs * df
    origin = (TAPS / 2) / per_time
    for j in range(n):
        tt = t[j] + origin
        work.shifted[j] = tt
        for m in range(highest):
            x = tt * per_time * (1.0 + m) - TAPS / 2
            ceiling = np.ceil(x)
            cell = np.int64(ceiling)
            aligned = cell // LANES * LANES
            base = (m * n + j) * ROW
            for a in range(ROW):
                work.weight[base + a] = 0
            tap_weights(
                coefficients, 2.0 * (ceiling - x) - 1.0, N_COEFFICIENTS, TAPS, work.weight, base + cell - aligned
            )
            work.cell[m * n + j] = aligned


@njit(nogil=True, error_model="numpy")
def circles(highest_cell, m):
    """Number of circles that the cells of harmonic ``m`` cover; ``highest_cell`` is the last point's at f."""
    return np.int64(np.ceil((m * highest_cell + 8.0 * m + 9.0) / M))


@njit(nogil=True, error_model="numpy")
def turns(f, f_low, t, n, highest, work):
    """``re[m - 1, j], im[m - 1, j] = cos, sin(2 pi m (f + f_low) t[j])``."""
    cos_sin(f, f_low, t, np.int64(0), n, work.c, work.s)
    for j in range(n):
        work.re[j] = work.c[j]
        work.im[j] = work.s[j]
    for m in range(1, highest):
        to, last = m * n, (m - 1) * n
        for j in range(n):
            work.re[to + j] = work.re[last + j] * work.c[j] - work.im[last + j] * work.s[j]
            work.im[to + j] = work.re[last + j] * work.s[j] + work.im[last + j] * work.c[j]


@njit(nogil=True, error_model="numpy")
def fold_and_transform(cells, re, im, folds, group, combs, scratch, out, spare):
    """Cells of one channel onto one circle, and the first 16-point transforms (``cpu.comb.first_stage``)."""
    outline()
    u = group * 8 * CELL
    g = group * combs.folds * CELL
    if folds == 1:
        for a in range(16):
            dft16_cells(cells, re + a, im + a, 16, combs.first, u, scratch, out + a * CELL, STEP)
    elif folds == 2:
        for a in range(16):
            dft16_twice(cells, re + a, im + a, 16, M, combs.fold, g, combs.first, u, scratch, out + a * CELL, STEP)
    else:
        for i in range(M):
            fold_cell(cells, re + i, im + i, M, folds, combs.fold, g, scratch, spare + i * CELL)
        for a in range(16):
            dft16_lanes(scratch, spare + a * CELL, STEP, combs.first, u, scratch, out + a * CELL, STEP, 0)


@njit(nogil=True, error_model="numpy")
def band(f, f_low, n, w, wy, bands, last_cell, n_combs, modes, fit, combs, work, limit, block):
    """Standard powers of the band of combs round ``f + f_low`` into ``block[q * n_combs + r]``, NaN where they are not
    trusted; ``bands`` are the rows of each band of the light curve (first, and one past the last)."""
    outline()
    cells, scratch, x = work.cells, work.scratch, work.x
    channels = fit.channel.shape[0]
    highest = np.int64(0)
    for k in range(channels):
        highest = max(highest, fit.channel[k, 0])
    turns(f, f_low, work.shifted, n, highest, work)
    start = np.int64(0)
    for k in range(channels):
        m, b = fit.channel[k, 0], fit.channel[k, 1]
        lo, hi = (bands[b], bands[b + 1]) if b >= 0 else (np.int64(0), n)
        size = M * circles(last_cell, m) + ROW
        for i in range(start, start + 2 * size):
            cells[i] = 0
        strength = wy if fit.channel[k, 2] else w
        top = (m - 1) * n
        for j in range(lo, hi):
            at = start + work.cell[top + j]
            spread(
                cells, at, size + at, work.weight, (top + j) * ROW, ROW,
                strength[j] * work.re[top + j], strength[j] * work.im[top + j],
            )  # fmt: skip
        start += 2 * size
    for group in range(n_combs // LANES):
        start = np.int64(0)
        for k in range(channels):
            folds = circles(last_cell, fit.channel[k, 0])
            size = M * folds + ROW
            fold_and_transform(cells, start, start + size, folds, group, combs, scratch, k * GROUP, channels * GROUP)
            start += 2 * size
        for b in range(16):
            v = (group * 16 + b) * 8 * CELL
            for k in range(channels):
                dft16_lanes(scratch, k * GROUP + b * STEP, CELL, combs.second, v, x, k * STEP, CELL, 1)
            for d in range(0, modes // 16, VECTORS):
                at = (group * modes + b + 16 * d) * LANES
                collect(x, d * CELL, STEP, CELL, channels, combs.deconvolve, at, 16 * LANES, work.values)
                solve(fit, work, limit)
                for i in range(VECTORS):
                    to = (b + 16 * (d + i)) * n_combs + group * LANES
                    for lane in range(LANES):
                        block[to + lane] = work.small[i * LANES + lane]
    flagged = False
    for i in range(modes * n_combs):
        flagged |= np.isnan(block[i])
    return flagged


@njit(nogil=True, error_model="numpy")
def solve(fit, work, limit):
    """Powers of ``WIDE`` frequencies from ``work.values`` into ``work.small``: LDL^T of the normal matrix in its
    envelope, with the right-hand side as a last row, whose pivot is minus the power.

    A power is not trusted (NaN) where a pivot is below ``PIVOT`` of the weight of its rows, or the square sum of the
    parameters is not below ``limit``: errors e, E of the right-hand side and the matrix change it by
    2 beta . e - beta . E beta.
    """
    outline()
    if fit.sinusoid:
        sinusoid(work.values, fit.bands, work.inverse, limit, PIVOT, work.small)
        return
    columns = fit.penalty.shape[0]
    real = 2 * fit.channel.shape[0]
    for k in range(fit.derived.shape[0]):
        first, stride = fit.derived[k, 0], fit.derived[k, 1]
        for part in range(2):
            at, to = (2 * first + part) * WIDE, (real + 2 * k + part) * WIDE
            combine(work.values, at, 1.0, at + 2 * stride * WIDE, 1.0, work.values, to)
            for b in range(2, fit.bands):
                combine(work.values, to, 1.0, at + 2 * b * stride * WIDE, 1.0, work.values, to)
    for i in range(WIDE):
        work.sound[i] = 1
    factorise(work.values, fit.steps, fit.factors, work.upper, work.lower, work.inverse, work.sound, PIVOT)
    known = fit.constants * WIDE
    for i in range(known):
        work.beta[i] = 0
    for i in range(known, columns * WIDE):
        work.beta[i] = work.lower[fit.right + i]
    substitute(work.lower, fit.pairs, work.beta)
    verdict(work.upper, fit.right + columns * WIDE, work.beta, columns, work.sound, limit, work.small)


@njit(nogil=True, error_model="numpy")
def weights_of(w, bands, fit, work):
    """The last of ``work.values``: the sums of weights of each band and of all, and a zero; and the pivots of constants
    that stand first."""
    at = 2 * (fit.channel.shape[0] + fit.derived.shape[0]) * WIDE
    total = 0.0
    for b in range(fit.bands + 2):
        value = 0.0
        if b < fit.bands:
            for j in range(bands[b], bands[b + 1]):
                value += w[j]
            total += value
        elif b == fit.bands:
            value = total
        for i in range(WIDE):
            work.values[at + b * WIDE + i] = value
        if b < fit.constants:
            for i in range(WIDE):
                work.inverse[b * WIDE + i] = 1 / value if value > 0 else 0.0


@njit(nogil=True, error_model="numpy")
def underdetermined(n, bands, fit):
    """Whether an object has fewer points than nonzero columns, so that no frequency can be fitted."""
    if fit.regularised:
        return False
    columns = 0
    for i in range(fit.penalty.shape[0]):
        b = fit.column[i, 0]
        columns += b < 0 or bands[b] < bands[b + 1]
    return n < columns


@njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def weighted_sums(strength, re, im, top, lo, hi):
    """Sums of ``strength`` times cosine and sine of one harmonic (its rows begin at ``top``)."""
    x, y = 0.0, 0.0
    for j in range(lo, hi):
        x += strength[j] * re[top + j]
        y += strength[j] * im[top + j]
    return x, y


@njit(nogil=True, error_model="numpy")
def direct(f, f_low, count, t, n, w, wy, bands, highest, fit, work, limit, block, to):
    """Standard powers of up to ``WIDE`` frequencies ``f + f_low`` by sums over all rows, into ``block[to:]``."""
    outline()
    for q in range(count):
        if highest > 0:
            turns(f[q], f_low[q], t, n, highest, work)
        for k in range(fit.channel.shape[0]):
            m, b = fit.channel[k, 0], fit.channel[k, 1]
            lo, hi = (bands[b], bands[b + 1]) if b >= 0 else (np.int64(0), n)
            strength = wy if fit.channel[k, 2] else w
            x, y = weighted_sums(strength, work.re, work.im, (m - 1) * n, lo, hi)
            work.values[2 * k * WIDE + q] = x
            work.values[(2 * k + 1) * WIDE + q] = y
    for q in range(count, WIDE):
        for k in range(2 * fit.channel.shape[0]):
            work.values[k * WIDE + q] = work.values[k * WIDE]
    solve(fit, work, limit)
    flagged = False
    for q in range(count):
        block[to + q] = work.small[q]
        flagged |= np.isnan(work.small[q])
    return flagged


@njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def product(a, i, b, j, lo, hi):
    """Inner product of two rows from ``lo`` to ``hi``."""
    total = 0.0
    for k in range(lo, hi):
        total += a[i, k] * b[j, k]
    return total


@njit(nogil=True, error_model="numpy")
def subtract(q, i, part, k, lo, hi):
    """``q[i] -= part q[k]`` from ``lo`` to ``hi``."""
    for j in range(lo, hi):
        q[i, j] -= part * q[k, j]


@njit(nogil=True, error_model="numpy")
def exact(f, f_low, t, w, wy, n, bands, highest, fit, work):
    """Standard power at one frequency from the columns themselves, by Gram-Schmidt twice over; NaN where a column is a
    combination of the ones before it."""
    outline()
    columns = fit.penalty.shape[0]
    rows = n + columns if fit.regularised else n
    q = work.design
    if q.shape[0] <= columns or q.shape[1] < rows:
        q = np.empty((columns + 1, rows))
    if highest > 0:
        turns(f, f_low, t, n, highest, work)
    alone = np.int64(0)  # columns of one band: zero in rows of other bands, and in the penalties of other bands
    while alone < columns and fit.column[alone, 0] >= 0:
        alone += 1
    size = alone // fit.bands  # columns of a band, which follow one another
    trace = 0.0
    for i in range(columns):
        b, m, sine = fit.column[i, 0], fit.column[i, 1], fit.column[i, 2]
        lo, hi = (bands[b], bands[b + 1]) if b >= 0 else (np.int64(0), n)
        first, last = (n + b * size, n + (b + 1) * size) if b >= 0 else (n, rows)
        for j in range(first, min(last, rows)):
            q[i, j] = 0
        for j in range(lo, hi):
            value = 1.0
            if m > 0:
                value = work.im[(m - 1) * n + j] if sine else work.re[(m - 1) * n + j]
            q[i, j] = value * np.sqrt(w[j])
        trace += product(q, i, q, i, lo, hi)
    for j in range(rows):
        q[columns, j] = wy[j] / np.sqrt(w[j]) if j < n and w[j] > 0 else 0.0
    power = 0.0
    for i in range(columns):
        if fit.regularised:
            q[i, n + i] = np.sqrt(fit.penalty[i] * trace)
        b = fit.column[i, 0]
        if b >= 0 and bands[b] == bands[b + 1]:
            continue  # the columns of a band without rows are zero
        lo, hi = (bands[b], bands[b + 1]) if b >= 0 else (np.int64(0), n)
        # rows of the penalties follow those of the points; there are none without penalties
        first, last = (n + b * size, n + (b + 1) * size) if b >= 0 else (n, rows)
        last = min(last, rows)
        own = product(q, i, q, i, lo, hi) + product(q, i, q, i, first, last)
        for _ in range(2):
            for k in range((b * size) if b >= 0 else 0, i):
                c = fit.column[k, 0]
                start, stop, top, end = lo, hi, first, last
                if c >= 0:
                    start, stop, top, end = bands[c], bands[c + 1], n + c * size, min(n + (c + 1) * size, rows)
                    if start == stop:
                        continue
                part = product(q, i, q, k, start, stop) + product(q, i, q, k, top, end)
                subtract(q, i, part, k, start, stop)
                subtract(q, i, part, k, top, end)
        left = product(q, i, q, i, lo, hi) + product(q, i, q, i, first, last)
        scale = select(left > SINGULAR * own + COLUMN_NOISE * trace, 1 / np.sqrt(left), np.nan)
        for j in range(lo, hi):
            q[i, j] *= scale
        for j in range(first, last):
            q[i, j] *= scale
        part = product(q, i, q, columns, lo, hi) + product(q, i, q, columns, first, last)
        subtract(q, columns, part, i, lo, hi)
        subtract(q, columns, part, i, first, last)
        power += part * part
    return power
