"""First answers without compiled code: what the interpreter runs in place of kernels, for many frequencies at once.

The interpreter runs the sources of `search.search` and `search.conclude` (see `core.cpu.jit.interpreted`).  Their
innermost loops, over points, are NumPy's here; `exact_power` is its source for arrays of frequencies.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from skysieve.core.cpu.jit import in_interpreter, interpreted

from .comb_simd import fma, outline
from .direct import TWO_PI, centred_sums, cos_sin, exact_power, grid_point, select, weighted_sums
from .search import conclude, exact_powers, search

SPLIT = 2.0**27 + 1
ELEMENTS = 2**15
"""Elements of an array of points and frequencies: it stays in the second-level cache."""
FEWEST = 64
"""Least number of frequencies in an array: NumPy's cost for each call is then small."""
LARGEST = 1e150
"""Largest time or frequency: products of larger numbers, split into halves, would overflow."""


def sources() -> tuple[Any, Any]:
    """`search` and `conclude` for the interpreter."""
    return interpreted(search), interpreted(conclude)


@in_interpreter(outline)
def _outline() -> None:
    """Do nothing: it is for the compiler."""


in_interpreter(select)(np.where)


def _halves(a: Any) -> Any:
    """Two numbers of 26 bits whose sum is ``a`` (Dekker 1971, Numer. Math. 18, 224)."""
    large = SPLIT * a
    high = large - (large - a)
    return high, a - high


@in_interpreter(fma)
def _fma(a: Any, b: Any, c: Any) -> Any:
    """``a b + c`` where c is minus the rounded product: its error, which is a number."""
    a1, a2 = _halves(a)
    b1, b2 = _halves(b)
    return ((a1 * b1 + c) + a1 * b2 + a2 * b1) + a2 * b2


@in_interpreter(cos_sin)
def _cos_sin(f: Any, f_low: Any, t: Any, first: int, n: int, c: Any, s: Any) -> None:
    """Rows are points; columns, where f is an array, its frequencies."""
    times = t[first : first + n]
    if np.ndim(f):
        times = times[:, None]
    high = f * times
    turns = (high - np.rint(high)) + (_fma(f, times, -high) + f_low * times)
    angle = TWO_PI * (turns - np.rint(turns))
    c[:n], s[:n] = np.cos(angle), np.sin(angle)


@in_interpreter(weighted_sums)
def _weighted_sums(w: Any, wy: Any, c: Any, s: Any, n: int) -> Any:
    c, s = c[:n], s[:n]
    return w @ c, w @ s, wy @ c, wy @ s


@in_interpreter(centred_sums)
def _centred_sums(w: Any, wy: Any, c: Any, s: Any, n: int, mc: Any, ms: Any) -> Any:
    dc, ds = c[:n] - mc, s[:n] - ms
    return w @ (dc * dc), w @ (ds * ds), w @ (dc * ds), wy @ dc, wy @ ds


def pieces(m: int, elements: int) -> Any:
    """Cut ``m`` frequencies into pieces of arrays with ``elements`` for each: first and number."""
    per = max(FEWEST, ELEMENTS // elements)
    return ((first, min(per, m - first)) for first in range(0, m, per))


def frequencies(f0: float, df: float, first: int, count: int, values: Any) -> Any:
    """Frequencies of samples in two parts."""
    if len(values):
        return values[first : first + count], 0.0
    return interpreted(grid_point)(f0, df, np.arange(first, first + count, dtype=np.float64))


@in_interpreter(exact_powers)
def _exact_powers(
    f0: float, df: float, base: int, m: int, values: Any, t: Any, w: Any, wy: Any, n: int, floating_mean: bool,
    work: Any,
) -> None:  # fmt: skip
    for first, count in pieces(m, n):
        f, f_low = frequencies(f0, df, base + first, count, values)
        c, s = np.empty((n, count)), np.empty((n, count))
        work.block[first : first + count] = interpreted(exact_power)(f, f_low, t, w, wy, n, floating_mean, c, s)
