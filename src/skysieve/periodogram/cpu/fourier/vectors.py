"""First answers of series without compiled code; see `cpu.vectors`."""

from __future__ import annotations

from typing import Any

import numpy as np

from skysieve.core.cpu.jit import in_interpreter, interpreted
from skysieve.periodogram.cpu.vectors import frequencies, pieces

from .climb import add_column, dot, look_over, row_dot
from .kernels import exact, product, subtract
from .search import conclude, exact_powers, search, terms_of


def sources() -> tuple[Any, Any]:
    """`search` and `conclude` for the interpreter."""
    return interpreted(search), interpreted(conclude)


@in_interpreter(product)
def _product(a: Any, i: int, b: Any, j: int, lo: int, hi: int) -> Any:
    return np.einsum("j...,j...->...", a[i, lo:hi], b[j, lo:hi])


@in_interpreter(subtract)
def _subtract(q: Any, i: int, part: Any, k: int, lo: int, hi: int) -> None:
    q[i, lo:hi] -= part * q[k, lo:hi]


@in_interpreter(dot)
def _dot(a: Any, b: Any, lo: int, hi: int) -> Any:
    return a[lo:hi] @ b[lo:hi]


@in_interpreter(row_dot)
def _row_dot(q: Any, i: int, b: Any, lo: int, hi: int) -> Any:
    return q[i, lo:hi] @ b[lo:hi]


@in_interpreter(add_column)
def _add_column(y: Any, factor: float, q: Any, i: int, lo: int, hi: int) -> None:
    y[lo:hi] += factor * q[i, lo:hi]


def _exact(f: Any, f_low: Any, t: Any, w: Any, wy: Any, n: int, bands: Any, fit: Any, work: Any) -> Any:
    """`exact` for arrays of frequencies."""
    count, columns, terms = len(f), len(fit.penalty), max(1, int(interpreted(terms_of)(fit)))
    wide = work._replace(
        c=np.empty((n, count)), s=np.empty((n, count)), re=np.empty((n * terms, count)),
        im=np.empty((n * terms, count)), design=np.empty((columns + 1, n + columns, count)),
    )  # fmt: skip
    return interpreted(exact)(f, f_low, t, w, wy, n, bands, terms, fit, wide)


@in_interpreter(exact_powers)
def _exact_powers(
    f0: float, df: float, base: int, m: int, values: Any, t: Any, w: Any, wy: Any, n: int, bands: Any, fit: Any,
    work: Any,
) -> None:  # fmt: skip
    for first, count in pieces(m, n):
        f, low = frequencies(f0, df, base + first, count, values)
        work.block[first : first + count] = _exact(f, low, t, w, wy, n, bands, fit, work)


@in_interpreter(look_over)
def _look_over(
    f: float, f_low: float, offset: Any, count: int, t: Any, w: Any, wy: Any, n: int, bands: Any, highest_sum: int,
    fit: Any, work: Any, limit: float, trial: Any,
) -> None:  # fmt: skip
    trial[:count] = _exact(np.full(count, f), f_low + offset[:count], t, w, wy, n, bands, fit, work)
