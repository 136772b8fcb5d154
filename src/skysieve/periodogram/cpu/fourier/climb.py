"""numba kernels: peaks of series fits refined to the maximum of the exact periodogram; the twin of ``cpu.climb``."""

from __future__ import annotations

import numpy as np
from numba import njit

from skysieve.periodogram.cpu.climb import (
    BEST,
    CELLS,
    CURVATURE,
    POWER,
    begin_climb,
    climb,
    highest,
    hopeless,
    narrowed,
    rank,
    trials,
    vertex,
    window,
)
from skysieve.periodogram.cpu.comb_simd import outline
from skysieve.periodogram.cpu.direct import TWO_PI, grid_point

from .kernels import COLUMN_NOISE, SINGULAR, direct, exact, product, turns, weights_of
from .simd import WIDE

SOUND = 1e-6
"""Pivots of the normal matrix down to this part of the column's square are trusted, with one round of improvement of
the parameters: the power errs in the second order of their error only."""


@njit(cache=True, nogil=True, error_model="numpy")
def fill(f, f_low, t, w, n, bands, fit, work, q):
    """The columns of the fit at ``f + f_low``, each over the errors, into rows of ``q``."""
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


@njit(cache=True, nogil=True, error_model="numpy")
def rows_of(b, n, bands):
    """First row of a band, and one past the last; all rows for the base."""
    return (bands[b], bands[b + 1]) if b >= 0 else (np.int64(0), n)


@njit(cache=True, nogil=True, error_model="numpy")
def common(i, k, n, bands, fit):
    """Rows that two columns share."""
    a, b = fit.column[i, 0], fit.column[k, 0]
    if a >= 0 and b >= 0 and a != b:
        return np.int64(0), np.int64(0)
    return rows_of(max(a, b), n, bands)


@njit(cache=True, nogil=True, error_model="numpy")
def cholesky(q, n, bands, fit, r, penalty):
    """Upper triangle ``r`` with ``r.T r`` the normal matrix; False where a pivot is too small to be trusted.

    ``penalty`` is what is added to the diagonal.  A column of nought (a band without rows) gets a pivot of 0.
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


@njit(cache=True, nogil=True, error_model="numpy")
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
        own = product(q, i, q, i, 0, rows)
        if own == 0.0:
            continue
        for _ in range(2):
            for h in range(i):
                part = product(q, i, q, h, 0, rows)
                r[h, i] += part
                for j in range(rows):
                    q[i, j] -= part * q[h, j]
        left = product(q, i, q, i, 0, rows)
        if not left > SINGULAR * own + COLUMN_NOISE * trace:
            return False
        r[i, i] = np.sqrt(left)
        for j in range(rows):
            q[i, j] /= r[i, i]
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def forward(r, x):
    """Solve ``r.T z = x`` in place (0 where a pivot is 0)."""
    for i in range(x.shape[0]):
        for h in range(i):
            x[i] -= r[h, i] * x[h]
        x[i] = x[i] / r[i, i] if r[i, i] > 0.0 else 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def backward(r, x):
    """Solve ``r z = x`` in place (0 where a pivot is 0)."""
    k = x.shape[0]
    for i in range(k - 1, -1, -1):
        for h in range(i + 1, k):
            x[i] -= r[i, h] * x[h]
        x[i] = x[i] / r[i, i] if r[i, i] > 0.0 else 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def add_column(y, factor, q, i, lo, hi):
    """``y += factor q[i]``."""
    for j in range(lo, hi):
        y[j] += factor * q[i, j]


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def dot(a, b, lo, hi):
    """Inner product of two vectors from ``lo`` to ``hi``."""
    total = 0.0
    for j in range(lo, hi):
        total += a[j] * b[j]
    return total


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def row_dot(q, i, b, lo, hi):
    """Inner product of a column and a vector."""
    total = 0.0
    for j in range(lo, hi):
        total += q[i, j] * b[j]
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def exact_slopes(f, f_low, t, w, wy, n, bands, fit, middle, work, q, rest, along, bent):
    """Standard power at ``f + f_low`` with its first and second derivative (see ``cpu_climb.exact_slopes``); NaN where
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
        if fit.column[i, 2]:  # m tau cos of the cosine, which stands before it
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


@njit(cache=True, nogil=True, error_model="numpy")
def look_over(f, f_low, offset, count, t, w, wy, n, bands, highest_sum, fit, work, limit, trial):
    """Powers at ``count`` offsets from ``f + f_low`` into ``trial``."""
    many, low = np.zeros(WIDE), np.zeros(WIDE)
    for q in range(count):
        many[q], low[q] = f, f_low + offset[q]
    if direct(many, low, count, t, n, w, wy, bands, highest_sum, fit, work, limit, trial, 0):
        for q in range(count):
            if np.isnan(trial[q]):
                trial[q] = exact(f, low[q], t, w, wy, n, bands, highest_sum, fit, work)


@njit(cache=True, nogil=True, error_model="numpy")
def refine(i, f0, df, nf, curves, bands, grid, fit, limit, found, taken, chosen, work, answers):
    """The chosen candidates of object ``i`` to its answers: `peaks`, rules 3 and 4, for a series."""
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
    width, middle = 1.0 / (curves.span[i] * max(terms, 1)), 0.5 * curves.span[i]
    places = np.empty(taken, np.int64)
    frequency, power, curvature = np.empty(taken), np.empty(taken), np.empty(taken)
    start, low, high = np.empty(taken), np.empty(taken), np.empty(taken)
    state, trial, offset = np.empty(CELLS), np.empty(WIDE), np.empty(WIDE)
    wanted = answers.index.shape[1]
    looked = np.zeros(taken, np.bool_)
    top = 0.0
    weights_of(w, bands, fit, work)
    for k in range(taken):
        row = chosen[k]
        j = np.int64(found[row, 0])
        places[k], power[k] = j, found[row, 2]
        low[k], high[k] = window(j, nf, df, grid.values, width)
        start[k] = vertex(found[row, 1], found[row, 2], found[row, 3], j, df, grid.values, low[k], high[k])
        m = trials(low[k], high[k], width, offset) if free else 0
        if m == 0 or (
            k >= wanted and hopeless(j, power[k], top, False, nf, df, grid.values, curves.span[i], max(terms, 1))
        ):
            top = max(top, power[k])
            continue
        looked[k] = True
        f, f_low = (grid.values[j], 0.0) if grid.values.shape[0] > 0 else grid_point(f0, df, np.float64(j))
        look_over(f, f_low, offset, m, t, w, wy, n, bands, highest_sum, fit, work, limit, trial)
        best = highest(trial, m, low[k] == 0.0, high[k] == 0.0)
        if best >= 0:
            start[k], power[k] = offset[best], trial[best]
            low[k], high[k] = narrowed(best, m, offset, low[k], high[k])
        top = max(top, power[k])
    q = work.design if free else np.empty((0, 0))
    rest, along, bent = np.empty(n if free else 0), np.empty(n if free else 0), np.empty(n if free else 0)
    for k in range(taken):
        j = places[k]
        f, f_low = (grid.values[j], 0.0) if grid.values.shape[0] > 0 else grid_point(f0, df, np.float64(j))
        frequency[k], curvature[k] = f + f_low, np.nan
        if not free:
            continue
        if k >= wanted and hopeless(j, power[k], top, looked[k], nf, df, grid.values, curves.span[i], max(terms, 1)):
            places[k] = -1
            continue
        begin_climb(state, low[k], high[k], width)
        x = start[k]
        while not np.isnan(x):
            p, slope, bend = exact_slopes(f, f_low + x, t, w, wy, n, bands, fit, middle, work, q, rest, along, bent)
            x = climb(state, x, p, slope, bend)
        if state[POWER] > -np.inf:
            frequency[k], power[k], curvature[k] = f + (f_low + state[BEST]), state[POWER], state[CURVATURE]
            top = max(top, power[k])
            if grid.values.shape[0] == 0:  # rounding may pass an end of the grid
                frequency[k] = min(max(frequency[k], f0), f0 + df * (nf - 1))
    rank(
        taken, places, frequency, power, curvature, answers.index[i], answers.frequency[i], answers.peak_power[i],
        answers.curvature[i],
    )  # fmt: skip
