"""Tables of ``sinusoid/comb.cu`` and ``sinusoid/fine.cu`` (pure NumPy; combs are explained in ``numerics.nufft``).

Of the many combs of a fine grid only few are transformed, and frequencies between them are interpolated.  A sum over
points at times t is a function of frequency whose transform vanishes beyond the light curve's span, so that samples
closer than one over the span determine it everywhere.  As in a gridding NUFFT, strengths are divided by the transform
(in time) of a smooth window beforehand, and the sum between samples is then a short sum over neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skysieve.periodogram.numerics.nufft import TAPS, Kernel, M, shift_constants, unit

OUTPUTS = 16 * 13
"""Most outputs of one FFT that a kernel keeps (13 a thread)."""
MODES = {np.dtype(np.float64): 200, np.dtype(np.float32): 184}
"""Modes used of 256: with more the aliasing (float64) or rounding (float32) error is too large."""
COARSE = 4
"""Combs of a fine grid that are transformed."""
CORRECTION = 14
"""Coefficients of the polynomials that the strengths of interpolated sums are divided by."""


def spreading_kernel(dtype: np.dtype[Any]) -> Kernel:
    """The kernel of the precision."""
    return Kernel(MODES[dtype], TAPS if dtype == np.float64 else 10, "kaiser-bessel", 0.98)


@lru_cache(maxsize=8)
def make_tables(combs: int, dtype: np.dtype[Any]) -> dict[str, NDArray[Any]]:
    """Tables that ``ls_comb`` reads for combs 0 to ``combs + 1``, two more than there are."""
    complex_type = np.complex128 if dtype == np.float64 else np.complex64
    kernel = spreading_kernel(dtype)
    centre = kernel.modes // 2
    fraction = np.arange(combs + 2) / combs
    shift = fraction - centre
    second = np.stack([shift_constants((b + shift) / 16) for b in range(16)], axis=-1)  # [8, comb, 16]
    m = np.arange(OUTPUTS)[None, :] - centre + fraction[:, None]
    edge = kernel.modes / 2 + 0.99
    transform = kernel.transform(np.clip(m, -edge, edge))
    return {
        "first": np.ascontiguousarray(shift_constants(shift).T, complex_type),
        "second": np.ascontiguousarray(np.moveaxis(second, 1, 0), complex_type),
        "fold": np.ascontiguousarray(unit(fraction), complex_type),
        "deconvolve": np.ascontiguousarray(1 / transform, dtype),
    }


@dataclass(frozen=True)
class Window:
    """Interpolation of sums from samples, by taps ``first`` to ``last``; strengths are divided by a transform.

    The transform is that of a Kaiser-Bessel window of ``width`` samples, whose ``shape`` was chosen by trial.  ``far``
    is the largest distance of a point from the circle's middle, in turns per sample, and ``edge`` that of the circle's
    end.
    """

    first: int
    last: int
    width: float
    shape: float
    far: float
    edge: float

    def correction(self, tau: NDArray[np.float64]) -> NDArray[np.float64]:
        """One over the transform at times ``tau``, in turns per sample."""
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
WINDOWS = (Window(-3, 4, 8, 0.94, _FAR / 4, 1 / 8), Window(-5, 6, 12, 0.96, _FAR / 2, 1 / 4))
"""How ``ls_fine`` interpolates at f and at 2f."""


@lru_cache(maxsize=1)
def corrections() -> NDArray[np.float64]:
    """Polynomials of the windows' corrections, ``[f or 2f, CORRECTION]``.

    Their variable is the square of ``x / 128 - 1``, where x is the place of a point in cells at f.
    """
    square = (np.cos(np.pi * (np.arange(64) + 0.5) / 64) + 1) / 2
    out = []
    for window in WINDOWS:
        values = window.correction(window.edge * np.sqrt(square))
        fit = np.polynomial.Chebyshev.fit(square, values, CORRECTION - 1, [0, 1])
        out.append(fit.convert(kind=np.polynomial.Polynomial).coef)
    return np.array(out, np.float64)


@lru_cache(maxsize=8)
def make_coarse_tables(combs: int, modes: int) -> dict[str, NDArray[Any]]:
    """Tables that ``ls_fine`` reads: those of its four combs, and the taps of places between two coarse samples."""
    kernel = spreading_kernel(np.dtype(np.float64))
    centre = modes // 2 + 2
    fraction = np.arange(COARSE) / COARSE
    shift = fraction - centre
    second = np.stack([shift_constants((b + shift) / 16) for b in range(16)], axis=-1)
    m = np.arange(OUTPUTS)[None, :] - centre + fraction[:, None]
    edge = kernel.modes / 2 + 0.99
    # times are counted from the circle's middle: cell 256 at 2f, 128 at f
    deconvolve = np.stack([unit(-m), unit(-m / 2)]) / kernel.transform(np.clip(m, -edge, edge))
    return {
        "first": np.ascontiguousarray(shift_constants(shift).T, np.complex128),
        "second": np.ascontiguousarray(np.moveaxis(second, 1, 0), np.complex128),
        "fold": np.ascontiguousarray(unit(fraction), np.complex128),
        "deconvolve": np.ascontiguousarray(deconvolve, np.complex128),
        "taps": _fine_taps(*WINDOWS, combs // COARSE),
    }


def _fine_taps(at_f: Window, at_2f: Window, width: int) -> NDArray[np.float64]:
    """``[16 places, 4 taps at 2f then at f, row, tap, half]``: left sides of matrix products, as lanes hold them."""
    parts = []
    for window in (at_2f, at_f):
        found = window.taps(np.arange(width) / width)
        parts.append(found.reshape(width // 16, 2, 8, found.shape[1] // 4, 4))
    return np.ascontiguousarray(np.concatenate([p.transpose(0, 3, 2, 4, 1) for p in parts], axis=1))
