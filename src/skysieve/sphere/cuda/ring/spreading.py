"""The window that spreads the pixels of a ring to a grid of azimuths, and how many modes such a grid carries.

A pixel at azimuth phi is spread to the cells of a grid of L azimuths within ``taps / 2`` cells of it.  The modes of the
grid, divided by the window's transform, are those of the pixels, except for aliases from modes m + L, m - L, ...  The
window is a Kaiser-Bessel window, as a polynomial.  The aliasing error is weighted with the kernel's own modes: high
modes, for which the grid is least accurate, contribute little.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from skysieve.sphere.kernels.radial import Radial

SHAPE = {8: (0.68, 12), 10: (0.60, 14)}
"""By number of cells: shape parameter of the window, divided by pi times the cells, and degree of its polynomial.  They
were found by a search, for a kernel whose last mode is 1e-6 of its first."""
PART = 0.25
"""Share of ``eps`` that a grid may add as rms error, in each direction."""
_FLOOR = {4: 5e-8, 8: 0.0}
"""By bytes of the dtype: an error that is accepted at any ``eps``."""
_SHARES = tuple(np.arange(0.46, 0.1, -0.02))
_NODES = 128
_BINS = 64
_TERMS = 48


@dataclass(frozen=True)
class SpreadingWindow:
    """A spreading window.

    Attributes
    ----------
    taps : int
        Width in cells.
    coefficients : numpy.ndarray
        Coefficients of powers of ``2 y - 1``; y is the squared distance from the centre, relative to that of the end.
        In these powers the terms do not cancel.
    share : float
        Highest mode that a grid of length L carries, divided by L.
    """

    taps: int
    coefficients: NDArray[np.float64]
    share: float

    @property
    def degree(self) -> int:
        """Degree of the polynomial."""
        return len(self.coefficients) - 1

    def struct(self, dtype: np.dtype[Any]) -> Any:
        """``Window`` of ``ring/grid.cu``."""
        s = np.zeros((), np.dtype([("scale", dtype), ("c", dtype, self.degree + 1)], align=True))
        s["scale"], s["c"] = 8 / self.taps**2, self.coefficients
        return s[()]

    def transform(self, m: NDArray[Any]) -> NDArray[np.float64]:
        """The transform at ``m`` cycles per cell.

        Examples
        --------
        >>> bool(abs(polynomial(8).transform(np.array([0.2, 1.2]))[1]) < 1e-6)
        True
        """
        x, weight = _nodes()
        v = np.polynomial.polynomial.polyval(2 * x * x - 1, self.coefficients) * weight * self.taps
        return np.asarray(np.cos(np.multiply.outer(math.pi * self.taps * np.asarray(m, np.float64), x)) @ v)

    def factors(self, m: NDArray[Any]) -> NDArray[np.float64]:
        """The inverse of the transform, to 1e-13, at ``m`` from 0 to 0.5 cycles per cell.

        Examples
        --------
        >>> m = np.linspace(0, 0.46, 9)
        >>> bool(np.abs(polynomial(8).factors(m) * polynomial(8).transform(m) - 1).max() < 1e-13)
        True
        """
        x = 4 * np.asarray(m, np.float64) - 1
        return np.asarray(np.polynomial.chebyshev.chebval(x, _inverse(self.taps)), np.float64)


@functools.cache
def _inverse(taps: int) -> NDArray[np.float64]:
    """Chebyshev coefficients of the inverse of the transform, from 0 to half a cycle per cell."""
    angle = math.pi * (np.arange(_TERMS) + 0.5) / _TERMS
    values = 1 / polynomial(taps).transform((np.cos(angle) + 1) / 4)
    found = 2 / _TERMS * np.cos(np.multiply.outer(np.arange(_TERMS), angle)) @ values
    found[0] /= 2
    return np.asarray(found, np.float64)


@functools.cache
def _nodes() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gauss-Legendre nodes and weights from 0 to 1."""
    x, weight = np.polynomial.legendre.leggauss(_NODES)
    return x[_NODES // 2 :], weight[_NODES // 2 :]


@functools.cache
def polynomial(taps: int) -> SpreadingWindow:
    """The window of ``taps`` cells, without its share."""
    shape, degree = SHAPE[taps]
    beta = shape * math.pi * taps
    y = -np.cos(math.pi * (np.arange(400) + 0.5) / 400)
    values = np.i0(beta * np.sqrt(0.5 - 0.5 * y)) / np.i0(beta)
    series = np.polynomial.chebyshev.chebfit(y, values, degree)
    return SpreadingWindow(taps, np.asarray(np.polynomial.chebyshev.cheb2poly(series), np.float64), 0.0)


def power(radial: Radial, most: int, spin: int) -> NDArray[np.float64]:
    """Squares of the kernel's modes on the equator, summed in `_BINS` bins of 0 .. ``most``."""
    n = 1 << (4 * most + 64).bit_length()
    x = 4 * np.sin(np.arange(n // 2 + 1) * (math.pi / n)) ** 2
    k = np.fft.irfft(radial(x) * (1 - x / 4) ** spin, n)[: most + 1] ** 2
    return np.bincount(np.arange(most + 1) * _BINS // (most + 1), k, _BINS).astype(np.float64)


def find_spreading_window(
    radials: Sequence[Radial], most: int, eps: float, spin: int, item: int
) -> SpreadingWindow | None:
    """The narrowest window for kernels with modes up to ``most`` on the equator; None if none is accurate enough."""
    limit = max(PART * eps, _FLOOR[item])
    powers = [power(r, most, spin) for r in radials]
    at = (np.arange(_BINS) + 0.5) / _BINS
    for taps in SHAPE:
        window = polynomial(taps)
        worst = {}
        for share in (_SHARES[-1], *_SHARES):
            if share not in worst:
                m = share * at
                lost = sum(window.transform(m + p) ** 2 for p in (-2, -1, 1, 2)) / window.transform(m) ** 2
                worst[share] = max(float((p * lost).sum() / p.sum()) for p in powers)
            if worst[share] <= limit**2:
                if share != _SHARES[-1] or len(worst) == len(_SHARES):
                    return SpreadingWindow(taps, window.coefficients, float(share))
            elif len(worst) == 1:
                break  # not accurate enough even for the smallest share
    return None
