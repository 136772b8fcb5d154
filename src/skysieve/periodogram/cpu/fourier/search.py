"""numba kernels: powers and peaks of series fits of whole objects, or of stretches of one.

The twin of ``cpu.search`` for the models of :mod:`skysieve.periodogram.numerics.fourier`; the same code looks for
peaks.
"""

from __future__ import annotations

import numpy as np

from skysieve.core.cpu.jit import ZERO, njit
from skysieve.periodogram.cpu.comb_simd import outline
from skysieve.periodogram.cpu.direct import grid_point
from skysieve.periodogram.cpu.peaks import FULL, HERE, LEFT, begin, choose, copy_row, finish_candidates
from skysieve.periodogram.cpu.search import (
    IRREGULAR_STRETCH,
    NUFFT,
    deliver,
    keep_best,
    least_distance,
    part_of,
    room,
    share_behind,
)
from skysieve.periodogram.numerics.nufft import M

from .climb import refine
from .kernels import band, direct, exact, points, underdetermined, weights_of
from .simd import WIDE

DIRECT_LENGTH = IRREGULAR_STRETCH


@njit(nogil=True, error_model="numpy")
def stretch(
    method, k, f0, df, nf, n_combs, modes, t, w, wy, bands, last_cell, highest, values, fit, combs, work, limit
):
    """Standard powers of stretch ``k`` into ``work.block``; True if some are NaN."""
    outline()
    n = t.shape[0]
    if method == NUFFT:
        f, f_low = grid_point(f0, df, np.float64(n_combs) * modes * (k + 0.5))
        return band(f, f_low, n, w, wy, bands, last_cell, n_combs, modes, fit, combs, work, limit, work.block)
    base = k * DIRECT_LENGTH
    length = min(DIRECT_LENGTH, nf - base)
    f, low = np.zeros(WIDE), np.zeros(WIDE)
    flagged = False
    for first in range(0, length, WIDE):
        count = min(WIDE, length - first)
        for q in range(count):
            if values.shape[0] > 0:
                f[q] = values[base + first + q]
            else:
                f[q], low[q] = grid_point(f0, df, np.float64(base + first + q))
        flagged |= direct(f, low, count, t, n, w, wy, bands, highest, fit, work, limit, work.block, first)
    return flagged


@njit(nogil=True, error_model="numpy")
def terms_of(fit):
    """Highest multiple of the frequency in the model."""
    terms = np.int64(0)
    for k in range(fit.column.shape[0]):
        terms = max(terms, fit.column[k, 1])
    return terms


@njit(nogil=True, error_model="numpy")
def conclude(which, curves, row_of_band, grid, fit, limit, work, best, taken, answers):
    """Refine the candidates of objects and write the answers; see ``cpu.search.conclude``."""
    space = room(answers)
    for k in range(which.shape[0]):
        i = which[k]
        j = 0 if grid.shared else i
        f0, df, nf = grid.f0[j], grid.df[j], grid.nf[j]
        distance, share = least_distance(curves, grid, i, df), share_behind(curves, grid, i, df, terms_of(fit))
        chosen = part_of(space, curves.n_used[i], terms_of(fit))
        found = best[k]
        number, first = choose(found, taken[k], grid.values, distance, answers.index.shape[1], share, chosen)
        refine(
            i, f0, df, nf, curves, row_of_band[i], grid, fit, limit * np.sqrt(np.float64(curves.n_used[i])), found,
            number, first, chosen, work, answers,
        )  # fmt: skip


@njit(nogil=True, error_model="numpy")
def sample(base, q, f0, df, values):
    """Frequency of sample ``base + q`` as a sum of two numbers."""
    if values.shape[0] > 0:
        return values[base + q], 0.0
    return grid_point(f0, df, np.float64(base + q))


@njit(nogil=True, error_model="numpy")
def exact_powers(f0, df, base, m, values, t, w, wy, n, bands, fit, work):
    """Powers of the samples ``base:base + m`` by `exact`, into ``work.block``."""
    terms = terms_of(fit)
    for q in range(m):
        f, low = sample(base, q, f0, df, values)
        work.block[q] = exact(f, low, t, w, wy, n, bands, terms, fit, work)


@njit(nogil=True, error_model="numpy")
def fit_again(method, m, base, f0, df, values, t, w, wy, n, bands, highest, fit, work, limit):
    """Compute powers that are NaN in ``work.block[:m]`` again: from direct sums, unless these were used before, then
    from the columns themselves, which takes several times as long."""
    outline()
    f, low, power, where = np.zeros(WIDE), np.zeros(WIDE), np.zeros(WIDE), np.zeros(WIDE, np.int64)
    count = 0
    for q in range(m if method == NUFFT else 0):
        if np.isnan(work.block[q]):
            f[count], low[count] = sample(base, q, f0, df, values)
            where[count] = q
            count += 1
        if count == WIDE or (count > 0 and q == m - 1):
            direct(f, low, count, t, n, w, wy, bands, highest, fit, work, limit, power, ZERO)
            for k in range(count):
                work.block[where[k]] = power[k]
            count = 0
    for q in range(m):
        if np.isnan(work.block[q]):
            first, second = sample(base, q, f0, df, values)
            work.block[q] = exact(first, second, t, w, wy, n, bands, highest, fit, work)


@njit(nogil=True, error_model="numpy")
def search(
    method, which, first, last, length, n_combs, modes, curves, row_of_band, grid, fit, combs, work, answers, form,
    limit, direct_limit, floating_mean, best, taken,
):  # fmt: skip
    """Search the objects ``which``, in stretches of ``length`` samples; see ``cpu.search.search``.  Samples that their
    sums hardly determine are fitted again (see `fit_again`).

    ``limit`` and ``direct_limit`` bound the parameters that are trusted from the sums of ``method`` and from direct
    sums, over the square root of the number of points (see ``series.LIMIT``).

    Without ``combs``, for a first answer, every power is that of `exact`.

    ``row_of_band[i]`` are the rows of each band of object ``i`` (first, and one past the last), from its own first one.
    """
    space = room(answers)
    found = np.empty((2 * FULL, 4))
    state = np.empty(4)
    seam = np.empty(4)
    count = np.int64(0)
    highest = np.int64(0)
    for k in range(fit.channel.shape[0]):
        highest = max(highest, fit.channel[k, 0])
    for number in range(which.shape[0]):
        i = which[number]
        j = 0 if grid.shared else i
        f0, df, nf = grid.f0[j], grid.df[j], grid.nf[j]
        distance, share = least_distance(curves, grid, i, df), share_behind(curves, grid, i, df, terms_of(fit))
        chosen = part_of(space, curves.n_used[i], terms_of(fit))
        begin(state)
        count = np.int64(0)
        stop = (nf + length - 1) // length if last < 0 else last
        lo, n = curves.start[i], curves.n_used[i]
        t, w, wy, bands = curves.t[lo : lo + n], curves.w[lo : lo + n], curves.wy[lo : lo + n], row_of_band[i]
        own = limit * np.sqrt(np.float64(n))
        lost = underdetermined(n, bands, fit)
        weights_of(w, bands, fit, work)
        last_cell = 0.0
        if combs is not None and method == NUFFT:
            points(t, n, df, n_combs, combs.taps, highest, work)
            for row in range(n):
                last_cell = max(last_cell, M * n_combs * df * t[row])
        for k in range(first, stop):
            base = k * length
            m = min(length, nf - base)
            if lost:
                for q in range(m):
                    work.block[q] = np.nan
            if combs is None:
                exact_powers(f0, df, base, 0 if lost else m, grid.values, t, w, wy, n, bands, fit, work)
            else:
                flagged = not lost and stretch(
                    method, k, f0, df, nf, n_combs, modes, t, w, wy, bands, last_cell, highest, grid.values, fit, combs,
                    work, own,
                )  # fmt: skip
                if flagged:
                    fit_again(
                        method, m, base, f0, df, grid.values, t, w, wy, n, bands, highest, fit, work,
                        direct_limit * np.sqrt(np.float64(n)),
                    )  # fmt: skip
            found, count = deliver(
                work.block, m, base, None, i, f0, df, curves, grid, form, floating_mean, distance, share, work,
                answers, state, found, count, chosen,
            )  # fmt: skip
            if last >= 0 and k == first:
                seam[0], seam[1] = work.block[0], work.block[1]
        if last < 0:
            found, count = finish_candidates(nf, state, found, count)
            taken[number] = keep_best(found, count, grid, distance, share, answers, chosen, best[number])
    if last >= 0:
        seam[2], seam[3] = state[LEFT], state[HERE]
        if first > 0 and count > 0 and found[0, 0] == first * length:
            count -= 1
            for k in range(count):
                copy_row(found, k + 1, found, k)
    return found, count, seam
