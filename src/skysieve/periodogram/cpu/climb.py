"""numba kernels: from a sample of the grid to the maximum of the exact periodogram beside it.

A climb asks for the exact power and its first two derivatives at one frequency after another (:func:`begin_climb`,
:func:`climb`), so that the same steps serve every model.  Frequencies are offsets from the sample, which is known
beyond float64.  The best point so far lies between two bounds at which the power is lower, or past which it falls:
Newton's step from it is taken where it stays between them, half the way to the bound uphill otherwise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skysieve.core.cpu.jit import njit
from skysieve.periodogram.cpu.direct import (
    COLUMN_NOISE,
    SINGULAR,
    TWO_PI,
    centred_sums,
    cos_sin,
    exact_power,
    grid_point,
    weighted_sums,
)
from skysieve.periodogram.numerics.peaks import FEW, HIGHER, LEAST, LOWER, STEP, WIDE, least_share

from .comb_simd import outline

BEST, POWER, SLOPE, CURVATURE, LOW, HIGH, WIDTH, COUNT = range(8)
"""State of a climb: the best point with its power and derivatives, bounds, 1/(T harmonics), evaluations so far."""
CELLS = 8
MOST = 60
"""Largest number of evaluations of one climb; 2 or 3 are usual."""
CLOSE = 3e-6
"""Newton step in 1/(T harmonics) after which the power is not evaluated again: the neglected third-order term of the
power is under 1e-14."""
SHARP = 6.0
"""Square root of the curvature, in units of the squared 1/(T harmonics), above which `CLOSE` is reduced in proportion:
where columns are nearly dependent, the power can change much faster.  Curvatures of other maxima are at most 20."""
MOST_TRIALS = 2 * int(np.ceil(1 / STEP)) + 1
SHARE = least_share(STEP, 1.0, 1)
"""Fraction of the highest power that the best trial in the window of a further candidate must have."""
share_of = njit(nogil=True, error_model="numpy")(least_share)


@njit(nogil=True, error_model="numpy")
def begin_climb(state, low, high, width):
    """Begin a climb between the offsets ``low`` and ``high`` from one sample."""
    state[BEST], state[POWER], state[SLOPE], state[CURVATURE] = 0.0, -np.inf, 0.0, np.nan
    state[LOW], state[HIGH], state[WIDTH], state[COUNT] = low, high, width, 0


@njit(nogil=True, error_model="numpy")
def begins_low(state, x, power, sample):
    """Whether the power at the first guess is below that of the sample, where the climb begins again."""
    return state[COUNT] == 0 and x != 0.0 and power < sample - LOWER


@njit(nogil=True, error_model="numpy")
def climb(state, x, power, slope, curvature):
    """Take the power and its derivatives at ``x``; returns where to evaluate next, or NaN at the end of the climb.

    The result is then in the state: offset, power, curvature (NaN where the best point is no maximum).
    """
    best = state[BEST]
    state[COUNT] += 1
    if power >= state[POWER]:
        if state[POWER] > -np.inf:  # the best so far bounds the new best
            if x > best:
                state[LOW] = max(state[LOW], best)
            else:
                state[HIGH] = min(state[HIGH], best)
        best = x
        state[BEST], state[POWER], state[SLOPE], state[CURVATURE] = x, power, slope, curvature
    elif x > best:  # NaN too
        state[HIGH] = min(state[HIGH], x)
    else:
        state[LOW] = max(state[LOW], x)
    if state[POWER] == -np.inf:
        return 0.0 if x != 0.0 else np.nan
    slope, curvature = state[SLOPE], state[CURVATURE]
    bound = state[HIGH] if slope > 0.0 else state[LOW]
    to, close = np.nan, CLOSE * state[WIDTH]
    if curvature < 0.0:
        to, close = best - slope / curvature, min(close, CLOSE * SHARP / np.sqrt(-curvature))
    if abs(to - best) <= close:
        if state[LOW] <= to <= state[HIGH]:
            state[BEST], state[POWER] = to, state[POWER] + 0.5 * slope * (to - best)
        return np.nan
    if abs(bound - best) <= close and bound != best and bound != x and state[COUNT] < MOST:
        return bound
    if slope == 0.0 or abs(bound - best) <= close or state[COUNT] >= MOST:
        state[CURVATURE] = np.nan  # the power does not change, or rises up to the bound
        return np.nan
    return to if (to - best) * (to - bound) < 0.0 else 0.5 * (best + bound)


@njit(nogil=True, error_model="numpy")
def window(j, nf, df, values, width):
    """How far a peak may move from sample ``j``: lowest and highest offset."""
    below, above, first, last = df, df, -j * df, (nf - 1 - j) * df
    if values.shape[0] > 0:
        first, last = values[0] - values[j], values[nf - 1] - values[j]
        below = values[j] - values[j - 1] if j > 0 else 0.0
        above = values[j + 1] - values[j] if j + 1 < nf else 0.0
    low = -min(max(below, LEAST * width), width)
    high = min(max(above, LEAST * width), width)
    return max(low, first), min(high, last)


@njit(nogil=True, error_model="numpy")
def vertex(left, here, right, j, df, values, low, high):
    """Offset of the vertex of the parabola through sample ``j`` and its neighbours: a first guess between ``low`` and
    ``high``."""
    if not (np.isfinite(left) and np.isfinite(right)):
        return 0.0
    below, above = df, df
    if values.shape[0] > 0:
        below, above = values[j] - values[j - 1], values[j + 1] - values[j]
    rise, fall = (here - left) / below, (right - here) / above
    bend = (fall - rise) / (below + above)
    if not bend < 0.0:
        return 0.0
    slope = (rise * above + fall * below) / (below + above)
    return min(min(0.5 * above, high), max(max(-0.5 * below, low), -0.5 * slope / bend))


@njit(nogil=True, error_model="numpy")
def trials(low, high, width, offset):
    """Write the offsets of trials in a window, the sample among them; returns their number, 0 for a narrow window."""
    if not high - low > WIDE * width:
        return 0
    below, above = int(np.ceil(-low / (STEP * width))), int(np.ceil(high / (STEP * width)))
    for q in range(below + above + 1):
        offset[q] = low * (below - q) / below if q < below else high * (q - below) / max(above, 1)
    return below + above + 1


@njit(nogil=True, error_model="numpy")
def narrowed(best, n, offset, low, high):
    """The window between the neighbours of the best trial."""
    return (offset[best - 1] if best > 0 else low), (offset[best + 1] if best + 1 < n else high)


@njit(nogil=True, error_model="numpy")
def highest(p, n, left_end, right_end):
    """Place of the highest maximum of ``p[:n]`` (the ends count where they are those of the grid), else of the highest
    value; -1 where all are NaN."""
    best, inner = -1, -1
    for q in range(n):
        if np.isnan(p[q]):
            continue
        if best < 0 or p[q] > p[best]:
            best = q
        rises = not p[q - 1] > p[q] if q > 0 else left_end
        falls = not p[q + 1] > p[q] if q + 1 < n else right_end
        if rises and falls and (inner < 0 or p[q] > p[inner]):
            inner = q
    return inner if inner >= 0 else best


class Candidates(NamedTuple):
    """Candidates of one object: sample, best point so far, first guess and window (as offsets from the sample)."""

    sample: Any
    frequency: Any
    power: Any
    curvature: Any
    start: Any
    low: Any
    high: Any
    tried: Any  # whether trials were made


@njit(nogil=True, error_model="numpy")
def candidates(taken):
    """Room for ``taken`` candidates."""
    return Candidates(
        np.empty(taken, np.int64), np.empty(taken), np.empty(taken), np.full(taken, np.nan), np.empty(taken),
        np.empty(taken), np.empty(taken), np.zeros(taken, np.bool_),
    )  # fmt: skip


@njit(nogil=True, error_model="numpy")
def sample_frequency(f0, df, j, values):
    """Frequency of sample ``j`` in two parts."""
    return (values[j], 0.0) if values.shape[0] > 0 else grid_point(f0, df, np.float64(j))


@njit(nogil=True, error_model="numpy")
def set_candidate(peak, k, row, f0, df, nf, values, width):
    """Candidate ``k`` from a row of the candidates that the search found."""
    j = np.int64(row[0])
    peak.sample[k], peak.power[k] = j, row[2]
    f, f_low = sample_frequency(f0, df, j, values)
    peak.frequency[k] = f + f_low
    peak.low[k], peak.high[k] = window(j, nf, df, values, width)
    peak.start[k] = vertex(row[1], row[2], row[3], j, df, values, peak.low[k], peak.high[k])


@njit(nogil=True, error_model="numpy")
def take_trials(peak, k, trial, m, offset):
    """Continue from the highest of ``m`` trials, between its neighbours."""
    peak.tried[k] = True
    best = highest(trial, m, peak.low[k] == 0.0, peak.high[k] == 0.0)
    if best >= 0:
        peak.start[k], peak.power[k] = offset[best], trial[best]
        peak.low[k], peak.high[k] = narrowed(best, m, offset, peak.low[k], peak.high[k])


@njit(nogil=True, error_model="numpy")
def take_climb(peak, k, state, f, f_low, f0, df, nf, values):
    """Take the end of a climb from the sample at ``f + f_low``, if it found a power at all."""
    if state[POWER] == -np.inf:
        return
    peak.frequency[k] = f + (f_low + state[BEST])
    peak.power[k], peak.curvature[k] = state[POWER], state[CURVATURE]
    if values.shape[0] == 0:  # rounding may pass an end of the grid
        peak.frequency[k] = min(max(peak.frequency[k], f0), f0 + df * (nf - 1))


@njit(nogil=True, error_model="numpy")
def cannot_be_highest(peak, k, best, n, nf, df, values, span, harmonics):
    """Whether no maximum beside candidate ``k`` can be higher than ``best``, by the power of its sample or trials.

    This is not known of ``n <= FEW`` points, whose power can change faster than `least_share` allows.
    """
    if n <= FEW:
        return False
    if peak.tried[k]:
        return peak.power[k] < SHARE * best
    step, j = df, peak.sample[k]
    if values.shape[0] > 0:
        below = values[j] - values[j - 1] if j > 0 else 0.0
        step = max(below, values[j + 1] - values[j] if j + 1 < nf else 0.0)
    return peak.power[k] < share_of(step, span, harmonics) * best


@njit(nogil=True, error_model="numpy")
def rank(peak, first, span, index, out_frequency, out_power, out_curvature):
    """Write the peaks to the answers in falling order, ties to the lower frequency: the ``first`` ones, and a further
    one if it is the highest of all.  Samples of -1 are no candidates; ``peak.sample`` is overwritten."""
    taken, wanted = peak.sample.shape[0], index.shape[0]
    places, power = peak.sample, peak.power
    top, further = -np.inf, -1
    for i in range(taken):
        if i < first:
            top = max(top, power[i])
        elif places[i] >= 0 and (further < 0 or power[i] > power[further]):
            further = i
    for i in range(first, taken):
        if i != further or not power[i] > top + HIGHER:
            places[i] = -1
    if further >= 0 and places[further] >= 0:
        nearest, least = -1, 1.0
        for i in range(first):
            gap = abs(peak.frequency[i] - peak.frequency[further]) * span
            if gap < least:
                nearest, least = i, gap
        if nearest >= 0:
            places[nearest] = -1
    for k in range(wanted):
        best = -1
        for i in range(taken):
            if places[i] < 0:
                continue
            if best < 0 or power[i] > power[best] or (power[i] == power[best] and places[i] < places[best]):
                best = i
        if best < 0:
            break
        index[k], out_frequency[k] = places[best], peak.frequency[best]
        out_power[k], out_curvature[k] = min(power[best], 1.0), peak.curvature[best]
        places[best] = -1


@njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def slope_sums(t, w, wy, c, s, n, mc, ms, a, b, middle):
    rm, re, uu, wu, cu, su, vc, vs = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(n):
        tau = TWO_PI * (t[j] - middle)
        dc, ds = c[j] - mc, s[j] - ms
        r = wy[j] - w[j] * (a * dc + b * ds)
        u = tau * (b * c[j] - a * s[j])
        rt = r * tau
        rm += r * u
        re += rt * tau * (a * c[j] + b * s[j])
        uu += w[j] * u * u
        wu += w[j] * u
        cu += w[j] * dc * u
        su += w[j] * ds * u
        vc -= rt * s[j]
        vs += rt * c[j]
    return rm, re, uu, wu, cu, su, vc, vs


@njit(nogil=True, error_model="numpy")
def exact_slopes(f, f_low, t, w, wy, n, fit_mean, middle, c, s):
    """Standard power at ``f + f_low`` as `exact_power` gives it, with its first and second derivative.

    With residuals r, columns X, parameters p and ``'`` for derivatives with respect to frequency,
    ``P' = 2 r.W X' p`` and ``P'' = 2 (r.W X'' p - |X' p|^2 + g.A^-1 g)``, where ``A = X.W X`` and
    ``g = X'.W r - X.W X' p``.  Times count from ``middle``: that turns the columns among themselves alone.
    """
    outline()
    cos_sin(f, f_low, t, np.int64(0), n, c, s)
    mc, ms = 0.0, 0.0
    if fit_mean:
        mc, ms, _, _ = weighted_sums(w, wy, c, s, n)
    cc, ss, cs, yc, ys = centred_sums(w, wy, c, s, n, mc, ms)
    det = cc * ss - cs * cs
    if not det > SINGULAR * cc * ss + COLUMN_NOISE * (cc + ss):
        return np.nan, np.nan, np.nan
    a, b = (ss * yc - cs * ys) / det, (cc * ys - cs * yc) / det
    rm, re, uu, wu, cu, su, vc, vs = slope_sums(t, w, wy, c, s, n, mc, ms, a, b, middle)
    gc, gs = vc - cu, vs - su
    more = (ss * gc * gc - 2 * cs * gc * gs + cc * gs * gs) / det
    if fit_mean:
        more += wu * wu
    return a * yc + b * ys, 2 * rm, 2 * (more - uu - re)


@njit(nogil=True, error_model="numpy")
def refine(i, f0, df, nf, curves, grid, floating_mean, found, taken, first, chosen, c, s, answers):
    """Refine the chosen candidates of object ``i`` and write the answers: `numerics.peaks`, rules 3 and 4, for one
    sinusoid."""
    outline()
    lo, n = curves.start[i], curves.n_used[i]
    t, w, wy = curves.t[lo : lo + n], curves.w[lo : lo + n], curves.wy[lo : lo + n]
    span = curves.span[i]
    width, middle = 1.0 / span, 0.5 * (t[0] + t[n - 1])
    free = n > (3 if floating_mean else 2)
    peak = candidates(taken)
    state, trial, offset = np.empty(CELLS), np.empty(MOST_TRIALS), np.empty(MOST_TRIALS)
    top = 0.0
    for k in range(taken):
        set_candidate(peak, k, found[chosen[k]], f0, df, nf, grid.values, width)
        m = trials(peak.low[k], peak.high[k], width, offset) if free else 0
        if m > 0 and not (k >= first and cannot_be_highest(peak, k, top, n, nf, df, grid.values, span, 1)):
            f, f_low = sample_frequency(f0, df, peak.sample[k], grid.values)
            for q in range(m):
                trial[q] = exact_power(f, f_low + offset[q], t, w, wy, n, floating_mean, c, s)
            take_trials(peak, k, trial, m, offset)
        top = max(top, peak.power[k])
    for k in range(taken if free else 0):
        if k >= first and cannot_be_highest(peak, k, top, n, nf, df, grid.values, span, 1):
            peak.sample[k] = -1
            continue
        f, f_low = sample_frequency(f0, df, peak.sample[k], grid.values)
        begin_climb(state, peak.low[k], peak.high[k], width)
        x = peak.start[k]
        while not np.isnan(x):
            p, slope, bend = exact_slopes(f, f_low + x, t, w, wy, n, floating_mean, middle, c, s)
            x = 0.0 if begins_low(state, x, p, peak.power[k]) else climb(state, x, p, slope, bend)
        take_climb(peak, k, state, f, f_low, f0, df, nf, grid.values)
        top = max(top, peak.power[k])
    rank(peak, first, span, answers.index[i], answers.frequency[i], answers.peak_power[i], answers.curvature[i])
