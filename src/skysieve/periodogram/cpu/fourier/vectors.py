"""First answers of series without compiled code; see `cpu.vectors`."""

from __future__ import annotations

from typing import Any

import numpy as np

from skysieve.core.cpu.jit import in_interpreter, interpreted
from skysieve.periodogram.cpu.finufft import steps, transform, turns_at
from skysieve.periodogram.cpu.vectors import finufft_code, frequencies, pieces

from .climb import add_column, dot, look_over, row_dot
from .kernels import NUFFT_LIMIT, PIVOT, exact, product, subtract
from .search import conclude, exact_powers, search, terms_of
from .simd import WIDE

PRODUCT, REFINED = 3e-9, 0.5e-3
"""Seconds of a product of columns in one point, and of each product to refine the peaks of an object."""
MODE, STEP = 0.07e-6, 10e-9
"""Seconds of a frequency of each sum by finufft, and of each step of the normal equations."""
STRETCH = 2**13
"""Frequencies that are done at once with finufft."""
FEWEST = 64
"""Largest number of frequencies for which finufft is not used."""
F64 = np.dtype(np.float64)


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


def _sums(f0: float, df: float, base: int, m: int, t: Any, w: Any, wy: Any, bands: Any, fit: Any) -> Any:
    """The values that `fourier.Tables.source` indexes, one row each, at the samples ``base:base + m``, by finufft."""
    channels, derived = len(fit.channel), len(fit.derived)
    x, turn = steps(df, t), turns_at(f0, df, base + m // 2, t, finufft_code())
    values = np.zeros((2 * (channels + derived) + fit.bands + 2, m))
    sums = np.zeros((channels + derived, m), np.complex128)
    for harmonic, b in np.unique(fit.channel[:, :2], axis=0):
        which = np.flatnonzero((fit.channel[:, 0] == harmonic) & (fit.channel[:, 1] == b))
        rows = slice(bands[b], bands[b + 1]) if b >= 0 else slice(0, len(t))
        if rows.start == rows.stop:
            continue
        strengths = np.stack([(wy if fit.channel[k, 2] else w)[rows] for k in which])
        sums[which] = transform(m, harmonic * x[rows], strengths * turn[rows] ** harmonic, F64)
    for k, (first, stride) in enumerate(fit.derived):
        sums[channels + k] = sums[first : first + stride * fit.bands : stride].sum(axis=0)
    values[0 : 2 * len(sums) : 2], values[1 : 2 * len(sums) : 2] = sums.real, sums.imag
    weights = np.array([w[bands[b] : bands[b + 1]].sum() for b in range(fit.bands)])
    values[2 * len(sums) : -2], values[-2] = weights[:, None], weights.sum()
    return values


def _solve(values: Any, fit: Any, limit: float) -> Any:
    """`kernels.solve` for arrays of frequencies: powers, NaN where they are not trusted."""
    columns, m = len(fit.penalty), values.shape[1]
    upper, lower = np.zeros((2, fit.right // WIDE + columns + 1, m))
    inverse, beta, sound = np.zeros((columns, m)), np.zeros((columns, m)), np.ones(m, np.bool_)
    weights = values[len(values) - 2 - fit.bands :][: fit.constants]
    inverse[: fit.constants] = np.divide(1, weights, out=np.zeros_like(weights), where=weights > 0)
    for (a, b, up, down, n, place, pivot, kind), (fa, fb, fc) in zip(
        fit.steps // (WIDE, WIDE, WIDE, WIDE, 1, WIDE, WIDE, 1), fit.factors, strict=True
    ):
        entry = fa * values[a] + (fb * values[b] + fc)
        entry -= np.einsum("km,km->m", upper[up : up + n], lower[down : down + n])
        if kind:
            good = entry > PIVOT * values[place]
            inverse[pivot] = np.divide(1, entry, out=np.zeros(m), where=good)
            sound &= good | (values[place] == 0)
        else:
            upper[place], lower[place] = entry, entry * inverse[pivot]
    right = fit.right // WIDE
    beta[fit.constants :] = lower[right + fit.constants : right + columns]
    for ij, i, j in fit.pairs // WIDE:
        beta[j] -= lower[ij] * beta[i]
    trusted = sound & (np.einsum("km,km->m", beta, beta) < limit)
    return np.where(trusted, -upper[right + columns], np.nan)


@in_interpreter(exact_powers)
def _exact_powers(
    f0: float, df: float, base: int, m: int, values: Any, t: Any, w: Any, wy: Any, n: int, bands: Any, fit: Any,
    work: Any,
) -> None:  # fmt: skip
    """Powers from sums by finufft on a regular grid, and of `exact` where these are not trusted or there is no grid."""
    left = np.arange(m)
    if len(values) == 0 and m > FEWEST and len(fit.channel):
        power = _solve(_sums(f0, df, base, m, t, w, wy, bands, fit), fit, NUFFT_LIMIT * np.sqrt(n))
        work.block[:m], left = power, np.flatnonzero(np.isnan(power))
    for first, count in pieces(len(left), n):
        which = left[first : first + count]
        f, low = frequencies(f0, df, base + which, values)
        work.block[which] = _exact(f, low, t, w, wy, n, bands, fit, work)


@in_interpreter(look_over)
def _look_over(
    f: float, f_low: float, offset: Any, count: int, t: Any, w: Any, wy: Any, n: int, bands: Any, highest_sum: int,
    fit: Any, work: Any, limit: float, trial: Any,
) -> None:  # fmt: skip
    trial[:count] = _exact(np.full(count, f), f_low + offset[:count], t, w, wy, n, bands, fit, work)
