"""A kernel's profile in the form that engines use: truncated at its support, as a function of the squared chord.

The squared chord ``x = 4 sin^2(alpha / 2)`` needs no inverse cosine and loses no digits at small angles, and smooth
kernels are smooth functions of it.  The table holds quintics on equal cells of the chord, sqrt(x), so that a cusp at 0
is smooth too.  If a Chebyshev series over x in [0, xmax] converges in few terms, vector units evaluate it without a
table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from .base import Harmonic
from .legendre import jacobi_series, window_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from .base import Kernel

__all__ = ["Radial", "make_radial", "product"]

DEGREE = 5
"""Degree of the polynomials of the table."""
SERIES = (33, 65, 97)
"""Lengths of Chebyshev series that are tried; longer ones lose digits at both ends and are slower than a table."""
_SERIES_ERROR = 3e-14
_CELL_ERROR = 1e-13
_MAX_CELLS = 1 << 14
_SLACK = 1e-13
"""Relative margin of xmax: the chord of opposite points may round to more than 2."""


@dataclass(frozen=True)
class Radial:
    """A kernel, truncated at its support; see the module's docstring.

    Attributes
    ----------
    radius : float
        Support (rad).
    xmax : float
        ``4 sin^2(radius / 2)``.
    cells : numpy.ndarray of float64, shape (n, 6)
        Coefficients of u^0 .. u^5 on each of n equal cells of the chord, u from -1 to 1.
    series : numpy.ndarray of float64 or None
        Chebyshev coefficients over [0, xmax].
    peak : float
        Largest modulus of the profile; with ``spin=2`` times the fourth power of the cosine of half the angle, by which
        the profile of that spin is multiplied.
    error : float
        Largest difference between table and profile at some points, times the same factor, relative to the peak.
    positive : bool
        Whether no value may be below 0.
    hard : bool
        Whether the kernel itself has an edge.
    """

    radius: float
    xmax: float
    cells: NDArray[np.float64]
    series: NDArray[np.float64] | None
    peak: float
    error: float
    positive: bool
    hard: bool

    def __call__(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values at squared chords; zero beyond the support."""
        x = np.asarray(x, np.float64)
        n = len(self.cells)
        t = np.sqrt(np.clip(x, 0, self.xmax) / self.xmax) * n
        c = np.minimum(t.astype(np.int64), n - 1)
        u = 2 * (t - c) - 1
        value = self.cells[c, DEGREE]
        for k in range(DEGREE - 1, -1, -1):
            value = value * u + self.cells[c, k]
        if self.positive:
            value = np.maximum(value, 0)
        return np.where(x <= self.xmax, value, 0.0)

    def window(self, lmax: int, spin: int = 0) -> NDArray[np.float64]:
        """Window of the cut kernel; with ``spin=2`` the window of E and B, for a radial part made with ``spin=2``."""

        def profile(theta: NDArray[np.float64]) -> NDArray[np.float64]:
            return self(np.minimum(4 * np.sin(theta / 2) ** 2, self.xmax))

        return window_of(profile, self.radius, lmax, waves=40 + len(self.cells) / 16, spin=spin)


def make_radial(kernel: Kernel, eps: float, spin: int = 0) -> Radial:
    """The profile of ``kernel``, cut at its support for ``eps``.

    Examples
    --------
    >>> from skysieve.sphere import Gaussian
    >>> beam = Gaussian(fwhm=0.05)
    >>> r = make_radial(beam, 1e-6)
    >>> abs(r(4 * np.sin(0.01 / 2) ** 2) / beam.profile(0.01) - 1) < 1e-12
    np.True_
    """
    closed = bool(spin) and kernel.tensor(0.0) is not None
    window = _spin_window(kernel, eps) if spin and not closed else None
    radius = kernel.support(eps)
    xmax = 4 * math.sin(radius / 2) ** 2 * (1 + _SLACK)

    def profile(x: NDArray[np.float64]) -> NDArray[np.float64]:
        theta = 2 * np.arcsin(np.minimum(1, np.sqrt(np.clip(x, 0, xmax)) / 2))
        theta = np.minimum(theta, radius)
        if spin == 0:
            return kernel.profile(theta)
        return jacobi_series(window, theta) if window is not None else np.asarray(kernel.tensor(theta), np.float64)

    series, peak = _series(profile, xmax, spin)
    exact = profile if series is None else partial(_sum_series, series, xmax)
    cells, error = _cells(exact, xmax, peak, spin)
    return Radial(radius, xmax, cells, series, peak, error, kernel.positive and spin == 0, kernel.hard)


def product(radial: Radial, factor: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Radial:
    """A cut kernel times a smooth function of the squared chord.

    Examples
    --------
    >>> from skysieve.sphere import Gaussian
    >>> r = make_radial(Gaussian(fwhm=0.05), 1e-6)
    >>> x = 1e-4
    >>> abs(product(r, lambda x: 1 - x)(x) / (r(x) * (1 - x)) - 1) < 1e-12
    np.True_
    """
    whole = radial if radial.series is None else partial(_sum_series, radial.series, radial.xmax)

    def profile(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(whole(x) * factor(x), np.float64)

    series, peak = _series(profile, radial.xmax)
    exact = profile if series is None else partial(_sum_series, series, radial.xmax)
    cells, error = _cells(exact, radial.xmax, peak)
    return replace(radial, cells=cells, series=series, peak=peak, error=error)


def _sum_series(series: NDArray[np.float64], xmax: float, x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.polynomial.chebyshev.chebval(2 * x / xmax - 1, series), np.float64)


def _spin_window(kernel: Kernel, eps: float) -> NDArray[np.float64]:
    """The spin-2 window up to the degree beyond which it changes a white map's result by less than 1e-3 ``eps``."""
    if kernel.hard:
        raise ValueError(
            f"kernel={kernel!r}: has an edge, so its window does not end; Q and U (spin 2) need a kernel whose window "
            "ends"
        )
    harmonic = isinstance(kernel, Harmonic)
    least, most = (1e-16, 1 << 16) if harmonic else (max(1e-3 * eps, 1e-14), 1 << 14)
    lmax = 256
    while True:
        k = kernel.window(lmax, 2)
        power = (2 * np.arange(lmax + 1) + 1) * k**2
        total = power.sum()
        if total > 0 and power[-lmax // 4 :].sum() <= least**2 * total:
            return k
        if lmax >= most and total == 0:
            raise ValueError(f"kernel={kernel!r}: its window is zero from l = 2 on, where that of Q and U begins")
        if lmax >= most:
            raise ValueError(f"kernel={kernel!r}: its window does not end before l = {lmax}, as Q and U (spin 2) need")
        lmax *= 2


def _series(
    profile: Callable[[NDArray[np.float64]], NDArray[np.float64]], xmax: float, spin: int = 0
) -> tuple[NDArray[np.float64] | None, float]:
    """Chebyshev coefficients of a profile over [0, xmax], None if it needs too many, and `Radial.peak`."""
    peak = 0.0
    for n in SERIES:
        nodes = np.cos((np.arange(n) + 0.5) * math.pi / n)
        x = (nodes + 1) / 2 * xmax
        f = profile(x)
        peak = max(peak, float(np.abs(f * _fall(x, spin)).max()))
        # the cosine transform of type 2; importing scipy.fft takes longer than a map
        turned = np.fft.rfft(np.concatenate([f, f[::-1]]))[:n] * np.exp(-0.5j * math.pi / n * np.arange(n))
        c = turned.real / n
        c[0] /= 2
        if np.abs(c[-4:]).max() <= _SERIES_ERROR * peak:
            last = np.flatnonzero(np.abs(c) > _SERIES_ERROR * peak / 8)
            return c[: int(last[-1]) + 1 if last.size else 1].copy(), peak
    return None, peak


def _cells(
    exact: Callable[[NDArray[np.float64]], NDArray[np.float64]], xmax: float, peak: float, spin: int = 0
) -> tuple[NDArray[np.float64], float]:
    """The table of a profile, with as few cells as its accuracy needs, and `Radial.error`."""
    nodes = np.cos((np.arange(DEGREE + 1) + 0.5) * math.pi / (DEGREE + 1))
    inverse = np.linalg.inv(np.vander(nodes, DEGREE + 1, increasing=True))
    probes = np.array([-0.97, -0.5, 0.1, 0.61])
    powers = np.vander(probes, DEGREE + 1, increasing=True)
    n = 64
    while True:
        half = 0.5 * math.sqrt(xmax) / n
        middle = (2 * np.arange(n)[:, None] + 1) * half
        cells = exact(((middle + half * nodes) ** 2).ravel()).reshape(n, -1) @ inverse.T
        x = (middle + half * probes) ** 2
        found = (cells @ powers.T - exact(x.ravel()).reshape(n, -1)) * _fall(x, spin)
        error = float(np.abs(found).max()) / peak
        if error <= _CELL_ERROR or n >= _MAX_CELLS:
            if error > _CELL_ERROR and xmax >= 4 and spin == 0:
                # A slope at the antipode is a cusp of the chord.  Opposite pixels, which all grids have, are exact.
                ends = np.cos(np.arange(DEGREE + 1) * math.pi / DEGREE)
                cells[-1] = np.linalg.solve(
                    np.vander(ends, DEGREE + 1, increasing=True), exact((middle[-1] + half * ends) ** 2)
                )
                error = max(error, float(np.abs(powers @ cells[-1] - exact(x[-1])).max()) / peak)
            return np.ascontiguousarray(cells), error
        n *= 2


def _fall(x: NDArray[np.float64], spin: int) -> NDArray[np.float64]:
    """The factor by which the profile of a spin is multiplied: with spin 2 it is 0 at the antipode."""
    return np.asarray(np.maximum(0, 1 - x / 4) ** spin, np.float64)
