"""Tables of ``sinusoid/fine.cu``: few combs are transformed, frequencies between them interpolated.

A sum over points at times t is a function of frequency whose transform vanishes beyond the light curve's span, so
samples closer than one over the span tell it everywhere.  As in a gridding NUFFT, strengths are divided by the
transform (in time) of a smooth window beforehand, and the sum between samples is then a short sum over neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skysieve.periodogram.cuda.layouts import COARSE, INTERPOLATING, OUTPUTS, Tables, spreading_kernel
from skysieve.periodogram.numerics.nufft import TAPS, M, shift_constants, unit

if TYPE_CHECKING:
    from skysieve.periodogram.cuda.layouts import Layout

CORRECTION = 14
"""Coefficients of the polynomials that the strengths of interpolated sums are divided by."""


@dataclass(frozen=True)
class CoarseTables(Tables):
    """What ``ls_fine`` reads: of their four combs, and the taps of places between two coarse samples."""

    taps: NDArray[np.float64]


@dataclass(frozen=True)
class Window:
    """How sums are interpolated from samples: by taps ``first`` to ``last``, of strengths divided by a transform.

    The transform is that of a Kaiser-Bessel window of ``width`` samples, its shape chosen by trial.  ``far`` is the
    largest distance of a point from the circle's middle, in turns a sample; ``edge`` that of the circle's end.
    """

    first: int
    last: int
    width: float
    shape: float
    far: float
    edge: float

    def correction(self, tau: NDArray[np.float64]) -> NDArray[np.float64]:
        """One over the transform at times ``tau``, in turns a sample."""
        beta = np.pi * self.width * (1 - self.far) * self.shape
        x = np.sqrt(beta**2 - (np.pi * self.width * tau) ** 2)
        return np.asarray(np.i0(beta) * x / (self.width * np.sinh(x)), np.float64)

    def taps(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Coefficients of least error over all times for places ``u`` in [0, 1) after sample 0, ``[place, tap]``."""
        tau = self.far * np.cos(np.pi * (np.arange(200) + 0.5) / 200)
        columns = unit(np.outer(tau, np.arange(self.first, self.last + 1))) * self.correction(tau)[:, None]
        wanted = unit(np.outer(tau, u))
        matrix, right = (np.concatenate([z.real, z.imag]) for z in (columns, wanted))
        return np.asarray(np.linalg.lstsq(matrix, right, rcond=1e-16)[0].T, np.float64)


_FAR = (M - TAPS) / M / 2
WINDOWS = {  # at f, at 2f
    "ls_fine": (Window(-3, 4, 8, 0.94, _FAR / 4, 1 / 8), Window(-5, 6, 12, 0.96, _FAR / 2, 1 / 4)),
}


def corrections() -> NDArray[np.float64]:
    """Polynomials of the windows' corrections, ``[layout, f or 2f, CORRECTION]``.

    Their variable is the square of x / 128 - 1 for a point at x cells of those at f.
    """
    square = (np.cos(np.pi * (np.arange(64) + 0.5) / 64) + 1) / 2
    out = []
    for build in INTERPOLATING:
        for window in WINDOWS[build]:
            values = window.correction(window.edge * np.sqrt(square))
            fit = np.polynomial.Chebyshev.fit(square, values, CORRECTION - 1, [0, 1])
            out.append(fit.convert(kind=np.polynomial.Polynomial).coef)
    made: NDArray[np.float64] = np.array(out, np.float64).reshape(len(INTERPOLATING), 2, CORRECTION)
    return made


@lru_cache(maxsize=8)
def make_coarse_tables(layout: Layout) -> CoarseTables:
    """Tables of ``ls_fine``."""
    kernel = spreading_kernel(np.dtype(np.float64))
    centre = layout.modes // 2 + 2
    fraction = np.arange(COARSE) / COARSE
    shift = fraction - centre
    second = np.stack([shift_constants((b + shift) / 16) for b in range(16)], axis=-1)
    m = np.arange(OUTPUTS)[None, :] - centre + fraction[:, None]
    edge = kernel.modes / 2 + 0.99
    # times are counted from the circle's middle: cell 256 at 2f, 128 at f
    deconvolve = np.stack([unit(-m), unit(-m / 2)]) / kernel.transform(np.clip(m, -edge, edge))
    at_f, at_2f = WINDOWS[layout.build]
    return CoarseTables(
        first=np.ascontiguousarray(shift_constants(shift).T, np.complex128),
        second=np.ascontiguousarray(np.moveaxis(second, 1, 0), np.complex128),
        fold=np.ascontiguousarray(unit(fraction), np.complex128),
        deconvolve=np.ascontiguousarray(deconvolve, np.complex128),
        taps=_fine_taps(at_f, at_2f, layout.combs // COARSE),
    )


def _fine_taps(at_f: Window, at_2f: Window, width: int) -> NDArray[np.float64]:
    """``[16 places, 4 taps at 2f then at f, row, tap, half]``: left sides of matrix products, as lanes hold them."""
    parts = []
    for window in (at_2f, at_f):
        found = window.taps(np.arange(width) / width)
        parts.append(found.reshape(width // 16, 2, 8, found.shape[1] // 4, 4))
    return np.ascontiguousarray(np.concatenate([p.transpose(0, 3, 2, 4, 1) for p in parts], axis=1))
