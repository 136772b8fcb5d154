"""numba kernel of the aliases among the peaks of many objects: what `result.aliases` does with NumPy, without Python's
lock and without arrays of all rows between the steps.

Sums over the rows of an object add in the order of `numpy.add.reduceat`, so that the moments have the same bits; powers
of the window function differ from NumPy's by rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.cpu import jit
from skysieve.core.cpu.jit import njit, read_only

from .comb_simd import outline
from .direct import cos_sin

if TYPE_CHECKING:
    from numpy.typing import NDArray

TILE = 512
"""Rows whose sines and cosines are kept at a time."""
LEAF = 128
"""Numbers that NumPy adds in eight sums; more are halved first."""


@njit(nogil=True, error_model="numpy")
def leaf_sum(a, lo, n):
    """Sum of ``a[lo:lo + n]``, at most `LEAF` numbers."""
    if n < 8:
        total = 0.0
        for j in range(lo, lo + n):
            total += a[j]
        return total
    r0, r1, r2, r3 = a[lo], a[lo + 1], a[lo + 2], a[lo + 3]
    r4, r5, r6, r7 = a[lo + 4], a[lo + 5], a[lo + 6], a[lo + 7]
    whole = n - n % 8
    for j in range(lo + 8, lo + whole, 8):
        r0 += a[j]
        r1 += a[j + 1]
        r2 += a[j + 2]
        r3 += a[j + 3]
        r4 += a[j + 4]
        r5 += a[j + 5]
        r6 += a[j + 6]
        r7 += a[j + 7]
    total = ((r0 + r1) + (r2 + r3)) + ((r4 + r5) + (r6 + r7))
    for j in range(lo + whole, lo + n):
        total += a[j]
    return total


@njit(nogil=True, error_model="numpy")
def row_sum(a, n, left, sizes):
    """Sum of ``a[:n]``, at least one number; ``left`` and ``sizes`` are scratch of 64 values.

    The first number is added last.  The others are halved until at most `LEAF` are left; the sum of a first half waits
    in ``left`` for that of the second half, whose size is in ``sizes`` (0 once it is being added).
    """
    outline()
    at, size, depth, total = 1, n - 1, 0, 0.0
    while True:
        while size > LEAF:
            half = size // 2
            half -= half % 8
            sizes[depth] = size - half
            depth += 1
            size = half
        total = leaf_sum(a, at, size)
        at += size
        while depth > 0 and sizes[depth - 1] == 0:
            depth -= 1
            total = left[depth] + total
        if depth == 0:
            return a[0] + total
        left[depth - 1] = total
        size, sizes[depth - 1] = sizes[depth - 1], 0


@njit(nogil=True, error_model="numpy", fastmath={"nnan", "nsz"})
def smallest(a, n):
    """The smallest of ``a[:n]``, none of which is NaN."""
    found = np.inf
    for j in range(n):
        found = a[j] if a[j] < found else found
    return found


@njit(nogil=True, error_model="numpy")
def sampling_of(t, y, dy, has_dy, lo, n, relative, weight, work, left, sizes):
    """Fill in times and weights of ``n`` rows, and return the sum of the squares of the weights, the mean and the
    mean square of the times; see `result.aliases.Sampling`.  Rows with a number that is not finite are not used."""
    outline()
    for j in range(n):
        e = dy[lo + j] if has_dy else 1.0
        good = (abs(t[lo + j]) < np.inf) & (abs(y[lo + j]) < np.inf) & (abs(e) < np.inf) & (e > 0.0)
        relative[j] = t[lo + j] if good else np.inf
        work[j] = e if good else np.inf
    early, least = smallest(relative, n), smallest(work, n)
    if early == np.inf:
        early, least = 0.0, 1.0
    for j in range(n):
        ratio = least / work[j]
        work[j] = ratio * ratio
        relative[j] = relative[j] - early if relative[j] < np.inf else 0.0
    total = row_sum(work, n, left, sizes)
    total = total if total > 0.0 else 1.0
    for j in range(n):
        weight[j] = work[j] / total
        work[j] = weight[j] * weight[j]
    squared = row_sum(work, n, left, sizes)
    for j in range(n):
        work[j] = weight[j] * relative[j]
    mean = row_sum(work, n, left, sizes)
    for j in range(n):
        work[j] = weight[j] * (relative[j] * relative[j])
    return squared, mean, row_sum(work, n, left, sizes)


@njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def weighted(w, lo, c, s, n):
    """Sums of ``c[:n]`` and ``s[:n]`` with the weights of rows from ``lo`` on."""
    sc, ss = 0.0, 0.0
    for j in range(n):
        sc += w[lo + j] * c[j]
        ss += w[lo + j] * s[j]
    return sc, ss


@njit(nogil=True, error_model="numpy")
def window_power(f, relative, weight, n, c, s):
    """``|sum w exp(2 pi i f t)|^2`` of ``n`` rows."""
    outline()
    re, im = 0.0, 0.0
    for at in range(0, n, TILE):
        some = min(TILE, n - at)
        cos_sin(f, 0.0, relative, at, some, c, s)
        sc, ss = weighted(weight, at, c, s, some)
        re += sc
        im += ss
    return re * re + im * im


@njit(nogil=True, error_model="numpy")
def nearest(distance, span, width, rhythms, needs, order):
    """The rhythm that a distance agrees with, if the time span distinguishes it from others; -1 for none."""
    outline()
    best, off = -1, width / span
    if distance > 0.0:
        for k in range(len(order)):
            i = order[k]
            gap = abs(rhythms[i] - distance)
            if gap < off and needs[i] <= span:
                best, off = i, gap
    return best


@njit(nogil=True, error_model="numpy")
def relate(
    t, y, dy, has_dy, offsets, peaks, spans, rhythms, needs, flags, order, rules, flag, of, relation, window, mean,
    mean_square, rows, left, sizes,
):  # fmt: skip
    """Flag the peaks of all objects; see `relations`.

    ``peaks``: one row an object.  ``rules``: width, least power of the window function, its least ratio to chance,
    flags of a peak at a rhythm of the sampling and of a multiple.  ``rows``: scratch for the longest object.
    """
    width, loud, chance, own, multiple = rules
    relative, weight, work, c, s = rows
    many, k = len(rhythms), peaks.shape[1]
    for i in range(len(mean)):
        lo, n = offsets[i], offsets[i + 1] - offsets[i]
        if n == 0:
            continue
        squared, mean[i], mean_square[i] = sampling_of(t, y, dy, has_dy, lo, n, relative, weight, work, left, sizes)
        span = spans[i]
        for low in range(k):
            here = peaks[i, low]
            for kind in range(1 + 3 * low):
                high, side = (kind - 1) // 3, (kind - 1) % 3
                distance = here
                if kind > 0:
                    there = peaks[i, high]
                    distance = here + there if side == 2 else here - there if side == 0 else there - here
                found = nearest(distance, span, width, rhythms, needs, order)
                if found < 0:
                    continue
                power = window_power(distance, relative, weight, n, c, s)
                if not power >= max(loud, chance * squared):
                    continue
                window[i, low] = power
                relation[i, low] = 1 + kind * many + found
                if kind > 0:
                    flag[i, low] = (flag[i, low] & own) | flags[found]
                    of[i, low] = high
                    break
                flag[i, low] |= own
        for low in range(1, k):
            for kind in range(4 * low):
                a, b, m = peaks[i, low], peaks[i, kind // 4], 2 + kind % 4 // 2
                wide = width / span
                if kind % 2:
                    a, b, wide = b, a, wide * m
                if abs(a - m * b) <= wide:
                    flag[i, low] |= multiple
                    if of[i, low] < 0:
                        of[i, low] = kind // 4
                        relation[i, low] = 1 + many * (1 + 3 * k) + kind
                    break


def relations(
    t: NDArray[Any], y: NDArray[Any], dy: NDArray[Any] | None, offsets: NDArray[np.int64],
    frequency: NDArray[np.float64], spans: NDArray[np.float64],
    rhythms: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.uint8]],
    rules: tuple[float, float, float, int, int],
) -> tuple[tuple[NDArray[Any], ...], NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """Flags, higher peaks, relations and powers of the window function as in `result.aliases.Relations`, and the
    weighted means of the times and of their squares.

    ``rhythms``: frequencies, least time spans and flags of `result.aliases.Rhythms`; ``rules``: see `relate`.
    """
    n, k = frequency.shape
    found = (
        np.zeros((n, k), np.uint8), np.full((n, k), -1, np.int64), np.zeros((n, k), np.int32), np.full((n, k), np.nan)
    )  # fmt: skip
    mean, mean_square = np.zeros(n), np.zeros(n)
    longest = int(np.diff(offsets).max(initial=1))
    rows = tuple(np.empty(size) for size in (longest, longest, longest, TILE, TILE))
    known, needs, flags = rhythms
    order = np.argsort(needs, kind="stable")
    native = [np.require(x, np.float64, ["C", "A"]) for x in (t, y, t[:0] if dy is None else dy, frequency, spans)]
    t, y, errors, peaks, spans, offsets, known, needs, flags, order = read_only(
        *native, offsets, known, needs, flags, order
    )
    width, loud, chance, own, multiple = rules
    numbers = (float(width), float(loud), float(chance), np.uint8(own), np.uint8(multiple))
    relate(
        t, y, errors, dy is not None, offsets, peaks, spans, known, needs, flags, order, numbers, *found, mean,
        mean_square, rows, np.empty(64), np.empty(64, np.int64),
    )  # fmt: skip
    return found, mean, mean_square


def is_ready() -> bool:
    """Whether the code is stored."""
    return jit.is_ready(relate)


def compile_beside() -> None:
    """Let another process compile the code, if it is not stored."""
    jit.compile_beside(f"from {__name__} import use; use()", relate)


def use() -> None:
    """Run the code for two peaks of 20 rows."""
    one = np.ones(1)
    relations(
        np.arange(20.0), np.ones(20), np.ones(20), np.array([0, 20]), np.ones((1, 2)), 20 * one,
        (one, one, np.ones(1, np.uint8)), (0.5, 0.1, 9.0, 16, 8),
    )  # fmt: skip
