"""numba kernels: powers and peaks of whole objects, or of stretches of one, from prepared light curves.

Every method computes *stretches* of neighbouring frequencies and hands them to :func:`deliver`, in order.  A
stretch depends only on its object and its position, so results are the same, bit for bit, for any distribution of
objects and stretches over threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.cpu.jit import njit
from skysieve.periodogram.contract import METHODS
from skysieve.periodogram.cpu.direct import exact_power, grid_point
from skysieve.periodogram.numerics.normalization import LOGARITHM, RATIO
from skysieve.periodogram.numerics.nufft import TAPS, M
from skysieve.periodogram.numerics.peaks import MOST_TRIES, more_tries

from .climb import refine, sample_frequency, share_of
from .comb import comb_band, comb_setup
from .comb_simd import outline
from .direct import COARSE, PER_COARSE, direct_range
from .peaks import FULL, HERE, LEFT, LIMIT, begin, choose, copy_row, drop_low, find_candidates, finish_candidates

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .state import Answers

NUFFT = METHODS.index("nufft")
IRREGULAR_STRETCH = 1024
CONCLUDED = 256
"""Objects that are searched before their peaks are refined."""
DIRECT_STRETCH = COARSE * PER_COARSE


@njit(nogil=True, error_model="numpy")
def normalize(block, n, form, scale, out, at):
    """Write standard powers to ``out[at:]`` in a form of `numerics.normalization`, times the scale.

    The ratio and the logarithm have a pole at a power of 1, which rounding can reach or pass: the largest number below
    1 is used in its place.
    """
    outline()
    top = 1.0 - 2.0**-53 if block.itemsize == 8 else 1.0 - 2.0**-24
    if form == RATIO:
        for k in range(n):
            p = top if block[k] > top else block[k]
            out[at + k] = p / (1 - p)
    elif form == LOGARITHM:
        for k in range(n):
            p = top if block[k] > top else block[k]
            out[at + k] = -np.log(1 - p)
    else:
        for k in range(n):
            out[at + k] = block[k] * scale


@njit(nogil=True, error_model="numpy")
def fold_counts(combs, cycles):
    """:func:`skysieve.periodogram.cpu.cost.fold_counts`, compiled."""
    span = M * combs * cycles
    return int(np.ceil((span + TAPS + 1) / M)), int(np.ceil((2 * span + 1.5 * TAPS + 1) / M))


@njit(nogil=True, error_model="numpy")
def least_distance(curves, grid, i, df):
    """Minimum separation of two peaks, 1/T: in samples, or in frequency for irregular grids."""
    T = curves.span[i]
    return (1.0 - 1e-9) / T if grid.values.shape[0] > 0 else np.ceil(1.0 / (T * df) - 1e-9)


@njit(nogil=True, error_model="numpy")
def replace_missing(block, m, base, f0, df, t, w, wy, n, floating_mean, work):
    """Compute powers that are NaN, of samples ``base:base + m``, by `exact_power`."""
    for k in range(m):
        if np.isnan(block[k]):
            f, f_low = grid_point(f0, df, np.float64(base + k))
            block[k] = exact_power(f, f_low, t, w, wy, n, floating_mean, work.c, work.s)


@njit(nogil=True, error_model="numpy")
def deliver(
    block,
    n,
    base,
    flagged,
    i,
    f0,
    df,
    curves,
    grid,
    form,
    floating_mean,
    distance,
    share,
    work,
    answers,
    state,
    found,
    count,
    chosen,
):
    """Store standard powers of samples ``base:base + n`` of object ``i``, and find candidates.

    If ``flagged`` is true, powers that are NaN are first computed again by `exact_power`.  Callers that never need this
    pass None instead of False, so that numba does not compile this step.
    """
    outline()
    if flagged is not None and flagged:
        lo = curves.start[i]
        hi = lo + curves.n_used[i]
        t, w, wy = curves.t[lo:hi], curves.w[lo:hi], curves.wy[lo:hi]
        replace_missing(block, n, base, f0, df, t, w, wy, hi - lo, floating_mean, work)
    if answers.power.shape[0] > 0:
        normalize(block, n, form, curves.scale[i], answers.power, answers.power_start[i] + base)
    found, count = find_candidates(block, n, base, state, found, count)
    if count > state[LIMIT]:
        count = drop_low(found, count, grid.values, distance, answers.index.shape[1], share, chosen, state)
    return found, count


tries_of = njit(nogil=True, error_model="numpy")(more_tries)


@njit(nogil=True, error_model="numpy")
def room(answers):
    """Array for the chosen candidates of any object."""
    return np.empty(answers.index.shape[1] + MOST_TRIES, np.int64)


@njit(nogil=True, error_model="numpy")
def part_of(space, n, harmonics):
    """The part of that array for an object of ``n`` points."""
    return space[: space.shape[0] - MOST_TRIES + tries_of(n, harmonics)]


@njit(nogil=True, error_model="numpy")
def share_behind(curves, grid, i, df, harmonics):
    """Fraction of the power of the last peak that further candidates must have; 0 for a list of frequencies."""
    return 0.0 if grid.values.shape[0] > 0 else share_of(df, curves.span[i], harmonics)


@njit(nogil=True, error_model="numpy")
def keep_best(found, count, grid, distance, share, answers, chosen, best):
    """Copy the rows of ``found`` that are chosen to ``best``, in their order; returns how many there are."""
    taken, _ = choose(found, count, grid.values, distance, answers.index.shape[1], share, chosen)
    for k in range(taken):
        copy_row(found, chosen[k], best, k)
    return taken


@njit(nogil=True, error_model="numpy")
def conclude(which, curves, grid, floating_mean, best, taken, c, s, answers):
    """Refine the candidates ``best[k, :taken[k]]`` of each object ``which[k]``, as far as they are chosen, and write
    the answers; ``c`` and ``s`` are scratch."""
    space = room(answers)
    for k in range(which.shape[0]):
        i = which[k]
        j = 0 if grid.shared else i
        f0, df, nf = grid.f0[j], grid.df[j], grid.nf[j]
        distance, share = least_distance(curves, grid, i, df), share_behind(curves, grid, i, df, 1)
        chosen = part_of(space, curves.n_used[i], 1)
        found = best[k]
        number, first = choose(found, taken[k], grid.values, distance, answers.index.shape[1], share, chosen)
        refine(i, f0, df, nf, curves, grid, floating_mean, found, number, first, chosen, c, s, answers)


@njit(nogil=True, error_model="numpy")
def sums_to_powers(block, n, sums, floating_mean, guard):
    """Standard powers from complex sums ``sums[w y, w at 2f, w]``; NaN where CC SS - CS^2 <= guard."""
    flagged = False
    for k in range(n):
        ch, sh = sums[0, k].real, sums[0, k].imag
        c2, s2 = sums[1, k].real, sums[1, k].imag
        cc, ss, cs = 0.5 + 0.5 * c2, 0.5 - 0.5 * c2, 0.5 * s2
        if floating_mean:
            c, s = sums[2, k].real, sums[2, k].imag
            cc, ss, cs = cc - c * c, ss - s * s, cs - c * s
        det = cc * ss - cs * cs
        if det > guard:
            block[k] = (ch * (ss * ch - cs * sh) + sh * (cc * sh - cs * ch)) / det
        else:
            block[k] = np.nan
            flagged = True
    return flagged


@njit(nogil=True, error_model="numpy")
def guard_of(guard, n):
    """Least CC SS - CS^2 that is trusted for ``n`` points: sums of many points have smaller errors."""
    return guard / np.sqrt(np.float64(n))


@njit(nogil=True, error_model="numpy")
def exact_powers(f0, df, base, m, values, t, w, wy, n, floating_mean, work):
    """Exact powers of the samples ``base:base + m`` into ``work.block``."""
    for q in range(m):
        f, f_low = sample_frequency(f0, df, base + q, values)
        work.block[q] = exact_power(f, f_low, t, w, wy, n, floating_mean, work.c, work.s)


@njit(nogil=True, error_model="numpy")
def stretch(method, i, k, f0, df, nf, combs, modes, curves, grid, constants, work, floating_mean, guard):
    """Standard powers of stretch ``k`` of object ``i`` into ``work.block``; True if some must be computed again.

    Without ``constants``, for lists of frequencies and for a first answer, each is an exact power.
    """
    outline()
    lo, n = curves.start[i], curves.n_used[i]
    t, w, wy = curves.t[lo : lo + n], curves.w[lo : lo + n], curves.wy[lo : lo + n]
    if constants is None:
        base = k * IRREGULAR_STRETCH
        exact_powers(f0, df, base, min(IRREGULAR_STRETCH, nf - base), grid.values, t, w, wy, n, floating_mean, work)
        return None
    if method == NUFFT:
        folds1, folds2 = fold_counts(combs, df * t[n - 1])
        f, f_low = grid_point(f0, df, np.float64(combs) * modes * (k + 0.5))
        return comb_band(
            f, f_low, n, w, wy, folds1, folds2, combs, modes, constants, work, floating_mean, guard, work.block
        )
    first = k * DIRECT_STRETCH
    coarse = min(COARSE, (nf - first + PER_COARSE - 1) // PER_COARSE)
    return direct_range(f0, df, first, coarse, t, w, wy, n, work, floating_mean, guard, work.block)


@njit(nogil=True, error_model="numpy")
def search(
    method, which, first, last, length, combs, modes, curves, grid, constants, work, answers, form, floating_mean,
    guard, best, taken,
):  # fmt: skip
    """Search the objects ``which``, in stretches of ``length`` samples.

    With ``last < 0`` every object is done whole, and the candidates of object ``which[k]`` that `conclude` refines are
    written to ``best[k, :taken[k]]``.  Otherwise ``which`` is one object, of which the stretches ``first:last`` are
    done; its candidates come back, less those at the seams, with the first two and the last two samples:
    ``found, count, seam``.
    """
    space = room(answers)
    found = np.empty((2 * FULL, 4))
    state = np.empty(4)
    seam = np.empty(4)
    count = np.int64(0)  # a literal 0 would make numba compile every callee twice
    for number in range(which.shape[0]):
        i = which[number]
        j = 0 if grid.shared else i
        f0, df, nf = grid.f0[j], grid.df[j], grid.nf[j]
        distance, share = least_distance(curves, grid, i, df), share_behind(curves, grid, i, df, 1)
        chosen = part_of(space, curves.n_used[i], 1)
        begin(state)
        count = np.int64(0)
        stop = (nf + length - 1) // length if last < 0 else last
        limit = guard_of(guard, curves.n_used[i])
        if constants is not None and method == NUFFT:
            lo, n = curves.start[i], curves.n_used[i]
            comb_setup(curves.t[lo : lo + n], n, df, combs, constants.taps, work)
        for k in range(first, stop):
            base = k * length
            m = min(length, nf - base)
            flagged = stretch(
                method, i, k, f0, df, nf, combs, modes, curves, grid, constants, work, floating_mean, limit
            )
            found, count = deliver(
                work.block, m, base, flagged, i, f0, df, curves, grid, form, floating_mean, distance, share, work,
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


@njit(nogil=True, error_model="numpy")
def whole_object(i, sums, length, curves, grid, work, answers, form, floating_mean, guard, best):
    """As :func:`search` for one object whose sums (``[w y, w at 2f, w][frequency]``) are given, in stretches of
    ``length``; returns the number of candidates."""
    space = room(answers)
    found = np.empty((2 * FULL, 4))
    state = np.empty(4)
    begin(state)
    count = np.int64(0)
    j = 0 if grid.shared else i
    f0, df, nf = grid.f0[j], grid.df[j], grid.nf[j]
    distance, share = least_distance(curves, grid, i, df), share_behind(curves, grid, i, df, 1)
    chosen = part_of(space, curves.n_used[i], 1)
    limit = guard_of(guard, curves.n_used[i])
    for base in range(0, nf, length):
        n = min(length, nf - base)
        flagged = sums_to_powers(work.block, n, sums[:, base : base + n], floating_mean, limit)
        found, count = deliver(
            work.block, n, base, flagged, i, f0, df, curves, grid, form, floating_mean, distance, share, work,
            answers, state, found, count, chosen,
        )  # fmt: skip
    found, count = finish_candidates(nf, state, found, count)
    return keep_best(found, count, grid, distance, share, answers, chosen, best)


def best_rows(answers: Answers, objects: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Empty arrays for the candidates of each object, which `search` writes and `conclude` reads, and their numbers."""
    return np.empty((objects, answers.index.shape[1] + MOST_TRIES, 4)), np.empty(objects, np.int64)


def joined(parts: Any, seams: Any, bounds: Any) -> NDArray[np.float64]:
    """Candidates of an object from those of its stretches, one after another in ``parts``; ``seams`` are the
    first two and last two samples of each, ``bounds`` where they start (and the end of the grid)."""
    n = len(seams)
    rows = [parts]
    for k in range(n):
        before = seams[k - 1, 3] if k > 0 else -np.inf
        after = seams[k + 1, 0] if k + 1 < n else -np.inf
        start = (bounds[k], before, seams[k, 0], seams[k, 1])
        end = (bounds[k + 1] - 1, seams[k, 2], seams[k, 3], after)
        for at, left, here, right in (start, end) if k > 0 else (end,):
            if here > -np.inf and not here <= left and not right > here:
                rows.append(np.array([[at, left, here, right]], np.float64))
    found = np.concatenate(rows)
    return found[np.argsort(found[:, 0])]
