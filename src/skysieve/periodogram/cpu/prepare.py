"""numba kernels: from raw rows to clean, sorted, centred light curves.

Rows with a non-finite t, y or dy are dropped; times are sorted and count from just before the first; errors become
weights that sum to 1; y is centred and scaled so that sum(w y^2) = 1.  Values are scaled by their largest
(errors by their smallest) before they are squared, so that nothing over- or underflows.
"""

from __future__ import annotations

import numpy as np

from skysieve.core.cpu.jit import njit
from skysieve.periodogram.contract import Status

EMPTY, TOO_FEW, BAD_ERRORS = int(Status.EMPTY), int(Status.TOO_FEW_POINTS), int(Status.BAD_ERRORS)
CONSTANT, EQUAL, BAD_GRID = int(Status.CONSTANT_Y), int(Status.EQUAL_TIMES), int(Status.BAD_GRID)
OK, SINGULAR = int(Status.OK), int(Status.SINGULAR)
SHORTEST_SPAN = 1e-290
"""Shortest usable time span: the reciprocal of a shorter one overflows."""
HUGE, SHRINK = 1e150, 2.0**-600
"""Values of y above this are scaled down before they are added or squared."""


@njit(nogil=True, error_model="numpy")
def status_of(n, bad, fewest, tmin, tmax, ymin, ymax, center):
    """Status of ``n`` rows between these bounds; ``bad``: an error is not above 0."""
    if n == 0:
        return EMPTY
    if bad:
        return BAD_ERRORS
    if n < fewest:
        return TOO_FEW
    if not tmax - tmin >= SHORTEST_SPAN:
        return EQUAL
    if not np.isfinite(tmax - tmin):
        return BAD_GRID
    if ymax == ymin and (center or ymax == 0.0):
        return CONSTANT
    return OK


@njit(nogil=True, error_model="numpy")
def scan_object(t, y, dy, has_dy, lo, hi, fewest, center):
    """Rows used, first time, span, status, whether the used times are sorted and no row is dropped.

    Fewer than ``fewest`` rows are too few.  Equal values are constant if they are centred or are 0.
    """
    n, tmin, tmax, ymin, ymax, bad, clean = 0, np.inf, -np.inf, np.inf, -np.inf, False, True
    last = -np.inf
    for j in range(lo, hi):
        if not (np.isfinite(t[j]) and np.isfinite(y[j]) and (not has_dy or np.isfinite(dy[j]))):
            clean = False
            continue
        n += 1
        tmin, tmax = min(tmin, t[j]), max(tmax, t[j])
        ymin, ymax = min(ymin, y[j]), max(ymax, y[j])
        if has_dy and dy[j] <= 0.0:
            bad = True
        if t[j] <= last:  # equal times too: they are sorted by value, so that the order of the input does not matter
            clean = False
        last = t[j]
    status = status_of(n, bad, fewest, tmin, tmax, ymin, ymax, center)
    if n == 0:
        tmin, tmax = np.nan, np.nan
    return n, tmin, tmax - tmin, status, clean


@njit(nogil=True, error_model="numpy")
def scan(t, y, dy, has_dy, offsets, first, last, fewest, center, n_used, t_min, span, status):
    """:func:`scan_object` for objects ``first:last``."""
    for i in range(first, last):
        lo, hi = offsets[i], offsets[i + 1]
        n_used[i], t_min[i], span[i], status[i], _ = scan_object(t, y, dy, has_dy, lo, hi, fewest, center)


@njit(nogil=True, error_model="numpy")
def exact_origin(first, last):
    """The first time rounded down to the grid of the coarsest: t - origin is then exact for times of one sign.

    (t - t_min itself rounds: 7e-15 in 100 d, which at 1000 cycles a day turns a phase by 4e-11.)
    """
    largest = max(abs(first), abs(last))
    step = np.nextafter(largest, np.inf) - largest
    origin = np.floor(first / step) * step
    return origin if np.isfinite(origin) else first


@njit(nogil=True, error_model="numpy")
def sort_rows(t, a, b, lo, end):
    """Heapsort of rows ``lo:end`` of three arrays by ``t``, then ``a``, then ``b``: a unique order."""
    n = end - lo
    for step in range(n // 2 + n - 1):
        if step < n // 2:  # build the heap from its last parent up
            root, size = n // 2 - 1 - step, n
        else:  # move the largest to the end of the heap
            size = n - 1 - (step - n // 2)
            swap_rows(t, a, b, lo, lo + size)
            root = 0
        while True:
            child = 2 * root + 1
            if child >= size:
                break
            if child + 1 < size and before(t, a, b, lo + child, lo + child + 1):
                child += 1
            if not before(t, a, b, lo + root, lo + child):
                break
            swap_rows(t, a, b, lo + root, lo + child)
            root = child


@njit(nogil=True, error_model="numpy")
def before(t, a, b, i, j):
    """Whether row ``i`` sorts before row ``j``."""
    if t[i] != t[j]:
        return t[i] < t[j]
    return a[i] < a[j] or (a[i] == a[j] and b[i] < b[j])


@njit(nogil=True, error_model="numpy")
def swap_rows(t, a, b, i, j):
    """Exchange rows ``i`` and ``j``."""
    t[i], t[j] = t[j], t[i]
    a[i], a[j] = a[j], a[i]
    b[i], b[j] = b[j], b[i]


@njit(nogil=True, error_model="numpy")
def prepare_object(t, y, dy, has_dy, lo, hi, fewest, center, tt, w, wy):
    """Clean rows ``lo:hi``: they fill tt, w, wy from ``lo`` on.

    Returns the number of rows, first time, span, status, weighted mean square of the (centred) y and sum of 1/dy^2.
    """
    n, t0, span, status, clean = scan_object(t, y, dy, has_dy, lo, hi, fewest, center)
    if status != OK:
        return n, t0, span, status, 1.0, 1.0
    origin = exact_origin(t0, t0 + span)
    k = lo
    smallest, largest, biggest = np.inf, 0.0, 0.0
    for j in range(lo, hi):
        if np.isfinite(y[j]):
            biggest = max(biggest, abs(y[j]))
    shrink = SHRINK if biggest > HUGE else 1.0
    for j in range(lo, hi):
        if clean or (np.isfinite(t[j]) and np.isfinite(y[j]) and (not has_dy or np.isfinite(dy[j]))):
            tt[k] = t[j] - origin
            wy[k] = y[j] * shrink
            w[k] = dy[j] if has_dy else 1.0
            smallest = min(smallest, w[k])
            k += 1
    end = lo + n
    if not clean:
        sort_rows(tt, wy, w, lo, end)
    total, weighty = 0.0, 0
    for j in range(lo, end):
        r = smallest / w[j]
        w[j] = r * r
        total += w[j]
        weighty += w[j] > 0.0
    if weighty < 2:  # by the errors, one point alone has weight
        return n, t0, span, SINGULAR, 1.0, 1.0
    for j in range(lo, end):
        w[j] /= total
    if center:
        # a mean of 1e9 standard deviations is rounded to 1e-7 of one: the second round removes that
        for _ in range(2):
            mean = 0.0
            base = wy[lo]  # a first guess keeps the sum small when y has a large offset
            for j in range(lo, end):
                mean += w[j] * (wy[j] - base)
            mean += base
            for j in range(lo, end):
                wy[j] -= mean
    for j in range(lo, end):
        largest = max(largest, abs(wy[j]))
    square = 0.0
    for j in range(lo, end):
        wy[j] /= largest
        square += w[j] * wy[j] * wy[j]
    if not square > 0.0:  # y differs only in points without weight
        return n, t0, span, CONSTANT, 1.0, 1.0
    for j in range(lo, end):
        wy[j] *= w[j] / np.sqrt(square)
    return n, t0, span, OK, square * (largest / shrink) * (largest / shrink), total / (smallest * smallest)


@njit(nogil=True, error_model="numpy")
def prepare(t, y, dy, has_dy, offsets, first, last, fewest, center, tt, w, wy, n_used, t_min, span, status, yy, weight):
    """`prepare_object` of objects ``first:last``; object ``i`` fills ``n_used[i]`` rows from ``offsets[i]`` on.

    The psd normalisation needs ``yy`` and ``weight``.
    """
    for i in range(first, last):
        n_used[i], t_min[i], span[i], status[i], yy[i], weight[i] = prepare_object(
            t, y, dy, has_dy, offsets[i], offsets[i + 1], fewest, center, tt, w, wy
        )
