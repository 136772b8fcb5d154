"""numba kernels: refinement of the peaks of series fits to the maximum of the exact periodogram, as in `cpu.climb`."""

from __future__ import annotations

import numpy as np

from skysieve.core.cpu.jit import ZERO, njit
from skysieve.periodogram.cpu.climb import (
    CELLS,
    begin_climb,
    begins_low,
    candidates,
    cannot_be_highest,
    climb,
    rank,
    sample_frequency,
    set_candidate,
    take_climb,
    take_trials,
    trials,
)
from skysieve.periodogram.cpu.comb_simd import outline
from skysieve.periodogram.cpu.direct import COLUMN_NOISE, SINGULAR, TWO_PI

from .kernels import direct, exact, product, turns, weights_of
from .simd import WIDE

SOUND = 1e-6
"""Pivots of the normal matrix down to this part of the column's square are trusted, with one round of improvement of
the parameters: the error of the power is of second order in theirs."""


@njit(nogil=True, error_model="numpy")
def fill(f, f_low, t, w, n, bands, fit, work, q):
    """Write the columns of the fit at ``f + f_low``, divided by the errors, to rows of ``q``."""
    terms = np.int64(0)
    for i in range(fit.column.shape[0]):
        terms = max(terms, fit.column[i, 1])
    if terms > 0:
        turns(f, f_low, t, n, terms, work)
    for i in range(fit.column.shape[0]):
        b, m, sine = fit.column[i, 0], fit.column[i, 1], fit.column[i, 2]
        lo, hi = rows_of(b, n, bands)
        top = (m - 1) * n
        for j in range(lo, hi):
            value = 1.0
            if m > 0:
                value = work.im[top + j] if sine else work.re[top + j]
            q[i, j] = value * np.sqrt(w[j])


@njit(nogil=True, error_model="numpy")
def rows_of(b, n, bands):
    """First row of a band, and one past its last; all rows for the base."""
    return (bands[b], bands[b + 1]) if b >= 0 else (np.int64(0), n)


@njit(nogil=True, error_model="numpy")
def common(i, k, n, bands, fit):
    """Rows that two columns share."""
    a, b = fit.column[i, 0], fit.column[k, 0]
    if a >= 0 and b >= 0 and a != b:
        return np.int64(0), np.int64(0)
    return rows_of(max(a, b), n, bands)


@njit(nogil=True, error_model="numpy")
def cholesky(q, n, bands, fit, r, penalty):
    """Upper triangle ``r`` with ``r.T r`` the normal matrix; False where a pivot is too small to be trusted.

    ``penalty`` is what is added to the diagonal.  A column of zeros (a band without rows) has a pivot of 0.
    """
    k = fit.column.shape[0]
    for i in range(k):
        for j in range(i, k):
            lo, hi = common(i, j, n, bands, fit)
            value = product(q, i, q, j, lo, hi)
            if i == j:
                value += penalty[i]
            own = value
            for h in range(i):
                value -= r[h, i] * r[h, j]
            if i == j:
                if not value > SOUND * own:
                    if own > 0.0:
                        return False
                    value = 0.0
                r[i, i] = np.sqrt(value)
            else:
                r[i, j] = value / r[i, i] if r[i, i] > 0.0 else 0.0
    return True


@njit(nogil=True, error_model="numpy")
def orthogonalise(q, n, bands, fit, r, penalty, trace):
    """`cholesky` by Gram-Schmidt, twice over, of the columns themselves, which it overwrites; False where a column is a
    combination of the ones before it."""
    k = fit.column.shape[0]
    rows = n
    for i in range(k):
        if fit.column[i, 0] >= 0:
            lo, hi = rows_of(fit.column[i, 0], n, bands)
            for j in range(n):
                if j < lo or j >= hi:
                    q[i, j] = 0.0
    if fit.regularised:
        rows = n + k
        for i in range(k):
            for j in range(k):
                q[i, n + j] = np.sqrt(penalty[i]) if i == j else 0.0
    for i in range(k):
        for h in range(k):
            r[h, i] = 0.0
        own = product(q, i, q, i, ZERO, rows)
        if own == 0.0:
            continue
        for _ in range(2):
            for h in range(i):
                part = product(q, i, q, h, ZERO, rows)
                r[h, i] += part
                for j in range(rows):
                    q[i, j] -= part * q[h, j]
        left = product(q, i, q, i, ZERO, rows)
        if not left > SINGULAR * own + COLUMN_NOISE * trace:
            return False
        r[i, i] = np.sqrt(left)
        for j in range(rows):
            q[i, j] /= r[i, i]
    return True


@njit(nogil=True, error_model="numpy")
def forward(r, x):
    """Solve ``r.T z = x`` in place (0 where a pivot is 0)."""
    for i in range(x.shape[0]):
        for h in range(i):
            x[i] -= r[h, i] * x[h]
        x[i] = x[i] / r[i, i] if r[i, i] > 0.0 else 0.0


@njit(nogil=True, error_model="numpy")
def backward(r, x):
    """Solve ``r z = x`` in place (0 where a pivot is 0)."""
    k = x.shape[0]
    for i in range(k - 1, -1, -1):
        for h in range(i + 1, k):
            x[i] -= r[i, h] * x[h]
        x[i] = x[i] / r[i, i] if r[i, i] > 0.0 else 0.0


@njit(nogil=True, error_model="numpy")
def add_column(y, factor, q, i, lo, hi):
    """``y += factor q[i]``."""
    for j in range(lo, hi):
        y[j] += factor * q[i, j]


@njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def dot(a, b, lo, hi):
    """Inner product of two vectors from ``lo`` to ``hi``."""
    total = 0.0
    for j in range(lo, hi):
        total += a[j] * b[j]
    return total


@njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def row_dot(q, i, b, lo, hi):
    """Inner product of a column and a vector."""
    total = 0.0
    for j in range(lo, hi):
        total += q[i, j] * b[j]
    return total


@njit(nogil=True, error_model="numpy")
def exact_slopes(f, f_low, t, w, wy, n, bands, fit, middle, work, q, rest, along, bent):
    """Standard power at ``f + f_low`` with its first and second derivative (see ``cpu.climb.exact_slopes``); NaN where
    columns depend on one another.  ``q`` has a row for each column; ``rest``, ``along`` and ``bent`` are scratch."""
    outline()
    nothing = (np.nan, np.nan, np.nan)
    k = fit.column.shape[0]
    fill(f, f_low, t, w, n, bands, fit, work, q)
    r, theta, step, penalty = np.zeros((k, k)), np.zeros(k), np.zeros(k), np.zeros(k)
    trace = 0.0
    for i in range(k):
        lo, hi = rows_of(fit.column[i, 0], n, bands)
        trace += product(q, i, q, i, lo, hi)
    if fit.regularised:
        for i in range(k):
            penalty[i] = fit.penalty[i] * trace
    if not cholesky(q, n, bands, fit, r, penalty):
        if not orthogonalise(q, n, bands, fit, r, penalty, trace):
            return nothing
        fill(f, f_low, t, w, n, bands, fit, work, q)
    for j in range(n):
        rest[j] = wy[j] / np.sqrt(w[j]) if w[j] > 0.0 else 0.0
    for _ in range(3):
        for i in range(k):
            lo, hi = rows_of(fit.column[i, 0], n, bands)
            step[i] = row_dot(q, i, rest, lo, hi) - penalty[i] * theta[i]
        forward(r, step)
        backward(r, step)
        for i in range(k):
            theta[i] += step[i]
            lo, hi = rows_of(fit.column[i, 0], n, bands)
            add_column(rest, -step[i], q, i, lo, hi)
    power = 1.0 - dot(rest, rest, 0, n)
    for j in range(n):
        along[j] = bent[j] = 0.0
    for i in range(k):
        power -= penalty[i] * theta[i] * theta[i]
        m = np.float64(fit.column[i, 1])
        lo, hi = rows_of(fit.column[i, 0], n, bands)
        if fit.column[i, 1] == 0:
            continue
        if fit.column[i, 2]:  # m tau cos of the cosine, the column before
            add_column(along, m * theta[i], q, i - 1, lo, hi)
        else:
            add_column(along, -m * theta[i], q, i + 1, lo, hi)
        add_column(bent, -m * m * theta[i], q, i, lo, hi)
    for j in range(n):
        tau = TWO_PI * (t[j] - middle)
        along[j] *= tau
        bent[j] *= tau * tau
    slope, square, curl = dot(rest, along, 0, n), dot(along, along, 0, n), dot(rest, bent, 0, n)
    for j in range(n):
        bent[j] = rest[j] * TWO_PI * (t[j] - middle)
    for i in range(k):
        m = np.float64(fit.column[i, 1])
        lo, hi = rows_of(fit.column[i, 0], n, bands)
        step[i] = -row_dot(q, i, along, lo, hi)
        if fit.column[i, 1] > 0:
            step[i] += m * row_dot(q, i - 1, bent, lo, hi) if fit.column[i, 2] else -m * row_dot(q, i + 1, bent, lo, hi)
    forward(r, step)
    return power, 2 * slope, 2 * (curl - square + dot(step, step, 0, k))


@njit(nogil=True, error_model="numpy")
def look_over(f, f_low, offset, count, t, w, wy, n, bands, highest_sum, fit, work, limit, trial):
    """Powers at ``count`` offsets from ``f + f_low`` into ``trial``."""
    many, low = np.zeros(WIDE), np.zeros(WIDE)
    for q in range(count):
        many[q], low[q] = f, f_low + offset[q]
    if direct(many, low, count, t, n, w, wy, bands, highest_sum, fit, work, limit, trial, ZERO):
        for q in range(count):
            if np.isnan(trial[q]):
                trial[q] = exact(f, low[q], t, w, wy, n, bands, highest_sum, fit, work)


@njit(nogil=True, error_model="numpy")
def refine(i, f0, df, nf, curves, bands, grid, fit, limit, found, taken, first, chosen, work, answers):
    """Refine the chosen candidates of object ``i`` and write the answers: `numerics.peaks`, rules 3 and 4, for a
    series."""
    outline()
    lo, n = curves.start[i], curves.n_used[i]
    t, w, wy = curves.t[lo : lo + n], curves.w[lo : lo + n], curves.wy[lo : lo + n]
    terms, highest_sum, columns = np.int64(0), np.int64(0), 0
    for k in range(fit.column.shape[0]):
        terms = max(terms, fit.column[k, 1])
        b = fit.column[k, 0]
        columns += b < 0 or bands[b] < bands[b + 1]
    for k in range(fit.channel.shape[0]):
        highest_sum = max(highest_sum, fit.channel[k, 0])
    free = terms > 0 and (fit.regularised or n > columns)
    span, harmonics = curves.span[i], max(terms, 1)
    width, middle = 1.0 / (span * harmonics), 0.5 * span
    peak = candidates(taken)
    state, trial, offset = np.empty(CELLS), np.empty(WIDE), np.empty(WIDE)
    top = 0.0
    weights_of(w, bands, fit, work)
    for k in range(taken):
        set_candidate(peak, k, found[chosen[k]], f0, df, nf, grid.values, width)
        m = trials(peak.low[k], peak.high[k], width, offset) if free else 0
        if m > 0 and not (k >= first and cannot_be_highest(peak, k, top, n, nf, df, grid.values, span, harmonics)):
            f, f_low = sample_frequency(f0, df, peak.sample[k], grid.values)
            look_over(f, f_low, offset, m, t, w, wy, n, bands, highest_sum, fit, work, limit, trial)
            take_trials(peak, k, trial, m, offset)
        top = max(top, peak.power[k])
    q = work.design if free else np.empty((0, 0))
    rest, along, bent = np.empty(n if free else 0), np.empty(n if free else 0), np.empty(n if free else 0)
    for k in range(taken if free else 0):
        if k >= first and cannot_be_highest(peak, k, top, n, nf, df, grid.values, span, harmonics):
            peak.sample[k] = -1
            continue
        f, f_low = sample_frequency(f0, df, peak.sample[k], grid.values)
        begin_climb(state, peak.low[k], peak.high[k], width)
        x = peak.start[k]
        while not np.isnan(x):
            p, slope, bend = exact_slopes(f, f_low + x, t, w, wy, n, bands, fit, middle, work, q, rest, along, bent)
            x = 0.0 if begins_low(state, x, p, peak.power[k]) else climb(state, x, p, slope, bend)
        take_climb(peak, k, state, f, f_low, f0, df, nf, grid.values)
        top = max(top, peak.power[k])
    rank(peak, first, span, answers.index[i], answers.frequency[i], answers.peak_power[i], answers.curvature[i])
