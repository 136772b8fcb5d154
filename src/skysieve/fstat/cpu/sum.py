"""Windows that are sums of polynomials times exponentials: recurrences of their moments, in float64.

With ``y_j = (delta + j T) / tau`` the time of bin ``j`` of a window in units of tau and ``h = T / tau``, the moments
``M_d(c) = sum_j y_j^d exp(-r y_j) x_(c + j)`` of one rate ``r`` obey

    M_d(c) = w_d(0) x_c + exp(-r h) sum_(l <= d) binomial(d, l) h^(d - l) M_l(c + 1) - w_d(L) x_(c + L),

where ``w_d(j) = y_j^d exp(-r y_j)``.  The window is a sum of such terms, and so is its square.
The sums are recomputed at intervals, so that rounding errors do not accumulate if the weights do not decay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.cpu.jit import njit
from skysieve.fstat.inputs.windows import WindowSum

if TYPE_CHECKING:
    from numpy.typing import NDArray

RENEW = 4
"""Interval at which the sums are recomputed, in window lengths; this adds a quarter to the cost."""
FEWEST = 64
"""Shortest interval at which the sums are recomputed, in bins."""


@njit(nogil=True)
def advance(M, scratch, value, gone, has_gone, q, enter, leave, shift):
    """Advance the moments ``M`` (rates, degrees) of one row of bins to the previous bin."""
    degrees = M.shape[1]
    for k in range(M.shape[0]):
        for d in range(degrees):
            total = M[k, 0] * shift[d, 0]
            for j in range(1, d + 1):
                total += shift[d, j] * M[k, j]
            total = q[k] * total + enter[k, d] * value
            if has_gone:
                total -= leave[k, d] * gone
            scratch[d] = total
        for d in range(degrees):
            M[k, d] = scratch[d]


@njit(nogil=True)
def moment_sums(x, first, length, end, renew, q, enter, leave, shift, coefficients, out):
    """``out[r] = sum_(j < length) w_j x[first[r] + j]`` for rising ``first``; bins from ``end`` on are empty."""
    M = np.zeros(coefficients.shape, coefficients.dtype)
    scratch = np.zeros(coefficients.shape[1], coefficients.dtype)
    at = first.size - 1
    c = first[at] + 1
    fresh = renew
    while at >= 0:
        if fresh >= renew or c - first[at] > length:
            for k in range(M.shape[0]):
                for d in range(M.shape[1]):
                    M[k, d] = 0
            c = min(first[at] + length, end)
            while c > first[at]:
                c -= 1
                advance(M, scratch, x[c], x[c], False, q, enter, leave, shift)
            fresh = 0
        while c > first[at]:
            c -= 1
            gone = c + length < end
            advance(M, scratch, x[c], x[c + length] if gone else x[c], gone, q, enter, leave, shift)
            fresh += 1
        while at >= 0 and first[at] == c:
            total = M[0, 0] * 0
            for k in range(M.shape[0]):
                for d in range(M.shape[1]):
                    total += coefficients[k, d] * M[k, d]
            out[at] = total.real
            at -= 1


@dataclass(frozen=True)
class Terms:
    """Rates, shape (K,), and the coefficients of their polynomials, shape (K, D)."""

    rates: NDArray[Any]
    coefficients: NDArray[Any]

    @classmethod
    def of(cls, parts: dict[complex, NDArray[np.complex128]], real: bool) -> Terms:
        """From `WindowSum.gathered` or `squared`."""
        degrees = max(len(c) for c in parts.values())
        rates = np.array(list(parts))
        table = np.zeros((len(parts), degrees), np.complex128)
        for row, c in zip(table, parts.values(), strict=True):
            row[: len(c)] = c
        return cls(rates.real.copy(), table.real.copy()) if real else cls(rates, table)

    @property
    def work(self) -> float:
        """Real multiplications for one bin of one row."""
        k, d = self.coefficients.shape
        return k * d * (0.5 * d + 2.5) * (4 if np.iscomplexobj(self.rates) else 1)

    def weights(self, y: float) -> NDArray[Any]:
        """``y^d exp(-r y)``, shape (K, D)."""
        powers = y ** np.arange(self.coefficients.shape[1])
        return np.asarray(np.exp(-self.rates * y)[:, None] * powers)

    def shift(self, h: float) -> NDArray[Any]:
        """``binomial(d, l) h^(d - l)``, shape (D, D)."""
        n = self.coefficients.shape[1]
        table = np.zeros((n, n), self.coefficients.dtype)
        for d in range(n):
            table[d, : d + 1] = [math.comb(d, j) * h ** (d - j) for j in range(d + 1)]
        return table


class Recurrence:
    """Sums of a `WindowSum` for the rows of one group."""

    def __init__(self, window: WindowSum) -> None:
        self.once = Terms.of(window.gathered(), window.real)
        self.square = Terms.of(window.squared(), window.real)

    @property
    def work(self) -> float:
        """Real multiplications for one bin of all seven rows."""
        return 4 * self.once.work + 3 * self.square.work

    def sums(
        self, x: NDArray[np.float64], first: NDArray[np.int64], end: int, length: int, delta: float, h: float,
        out: NDArray[np.float64],
    ) -> None:  # fmt: skip
        """Write the sums to ``out`` (7, R), for windows of `length` bins that start `delta` tau before their first
        bin."""
        renew = max(FEWEST, RENEW * length)
        for i in range(7):
            t = self.square if i < 3 else self.once
            moment_sums(
                x[i], first, length, end, renew, np.exp(-t.rates * h), t.weights(delta), t.weights(delta + length * h),
                t.shift(h), t.coefficients, out[i],
            )  # fmt: skip
