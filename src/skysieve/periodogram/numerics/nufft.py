"""Tables of the banded comb NUFFT (pure NumPy).

The transform is ``F(f) = sum_j c_j exp(2 pi i f t_j)`` on a regular grid ``f0 + k df`` that
is usually *finer* than 1/T, so that a plain oversampled NUFFT would transform mostly zeros.  Here
the grid is cut into bands of ``modes * P`` frequencies and each band into ``P`` interleaved combs,

    k = band * modes * P + q * P + r,      q = 0 .. modes-1,   r = 0 .. P-1.

One comb has the spacing ``P df``, which lets the series fill the circle of a small FFT:

* the strengths are multiplied by ``exp(2 pi i fc t)`` with ``fc = f0 + (band modes P + modes/2 P) df``
  and spread once per band on cells of width ``1 / (M P df)``, ``M = 256``;
* comb ``r`` is the DFT of those cells at ``m + r/P`` (``m = q - modes/2``).  The fraction ``r/P`` is not a
  multiplication of the cells: it is a shift of the output index, absorbed in the twiddle factors;
* when ``P df T`` exceeds 1 the cells do not fit one circle; cell ``c + M s`` folds on cell ``c`` with
  the factor ``exp(2 pi i s r / P)``.  At 2f (where w is also wanted) all positions double;
* outputs are divided by the Fourier transform of the spreading kernel at ``m + r/P``.

The 256 points are 16 x 16, with the shifted 16-point DFTs of :mod:`skysieve.periodogram.cpu.comb_simd`.

Kernel: Kaiser-Bessel (float64) or exponential of a semicircle (float32), the sizes chosen by
measurement: with ``sigma = M / modes`` the aliasing error falls as exp(-pi W sqrt(1 - 1/sigma))
(Barnett, Magland & af Klinteberg 2019, SIAM J. Sci. Comput. 41, C479), and the rounding error grows
with the kernel's fall towards the edge of the band.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

M = 256
"""Points of one FFT."""
TAPS = 16
"""Cells that a point may reach; kernels narrower than that leave the outer ones zero."""
TRANSFORM_DEGREE = 60
DEGREE = 15
"""Degree of the polynomial of each tap."""
N_COEFFICIENTS = DEGREE + 1
MAX_FOLDS = 16
"""Largest number of circles that the cells of f may cover: enough for 8 combs up to ``df T`` of 1.9."""


@dataclass(frozen=True)
class Kernel:
    """Spreading kernel of one precision: ``modes`` of the ``M`` outputs are used, ``width`` taps."""

    modes: int
    width: int
    shape: str
    beta_fraction: float

    @property
    def beta(self) -> float:
        return float(np.pi * self.width * (1 - self.modes / (2 * M)) * self.beta_fraction)

    def value(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """Kernel at ``z`` in [-1, 1]."""
        root = self.beta * np.sqrt(np.maximum(0, 1 - z * z))
        out = np.i0(root) / np.i0(self.beta) if self.shape == "kaiser-bessel" else np.exp(root - self.beta)
        return np.asarray(out, np.float64)

    def transform(self, m: NDArray[np.float64]) -> NDArray[np.float64]:
        """Fourier transform at the frequencies ``m`` (of ``M`` cells), |m| <= modes/2 + 1.

        By Gauss-Legendre quadrature at Chebyshev nodes, and the polynomial through them; the phases of the
        quadrature stay under 20, which 200 nodes and degree 60 resolve to rounding.
        """
        z, weight = np.polynomial.legendre.leggauss(200)
        kernel = weight * self.value(z) * self.width / 2
        edge = self.modes / 2 + 1

        def at(x: Any) -> Any:
            return np.cos(np.pi * self.width / M * edge * np.outer(x, z)) @ kernel

        fit = np.polynomial.chebyshev.chebinterpolate(at, TRANSFORM_DEGREE)
        return np.asarray(np.polynomial.chebyshev.chebval(m / edge, fit), np.float64)

    def coefficients(self) -> NDArray[np.float64]:
        """Polynomials of the taps, ``[N_COEFFICIENTS, TAPS]``, highest power last.

        Tap ``a`` is the cell ``ceil(x - TAPS/2) + a`` of a point at ``x`` cells; the variable is
        ``u = 2 (ceil(x - TAPS/2) - (x - TAPS/2)) - 1`` in [-1, 1].
        """
        return _coefficients(self).copy()


@lru_cache(maxsize=8)
def _coefficients(kernel: Kernel) -> NDArray[np.float64]:
    nodes = np.cos(np.pi * (np.arange(64) + 0.5) / 64)
    out = np.zeros((N_COEFFICIENTS, TAPS))
    for a in range((TAPS - kernel.width) // 2, (TAPS + kernel.width) // 2):
        distance = (nodes + 1) / 2 + a - TAPS / 2
        fit = np.polynomial.chebyshev.chebfit(nodes, kernel.value(distance / (kernel.width / 2)), DEGREE)
        power = np.polynomial.chebyshev.cheb2poly(fit)
        out[: len(power), a] = power
    return out


KERNELS = {
    np.dtype(np.float64): Kernel(modes=192, width=16, shape="kaiser-bessel", beta_fraction=0.98),
    np.dtype(np.float32): Kernel(modes=160, width=10, shape="semicircle", beta_fraction=0.90),
}


def unit(x: NDArray[np.float64]) -> NDArray[np.complex128]:
    """``exp(2 pi i x)``."""
    return np.asarray(np.exp(2j * np.pi * (x - np.rint(x))), np.complex128)


def shift_constants(phi: NDArray[np.float64]) -> NDArray[np.complex128]:
    """The eight constants of a 16-point DFT shifted by ``phi``, on a new first axis."""
    rows = [unit(phi / 2), unit(phi / 4), unit(phi / 8), unit((phi + 1) / 8)]
    return np.stack(rows + [unit((phi + c) / 16) for c in range(4)])


@dataclass(frozen=True)
class CombTables:
    """Constants of ``combs`` combs in groups of ``lanes``, as flat lane arrays (see ``simd``).

    ``first[group, 8]`` and ``second[group, 16, 8]`` are the constants of the two DFT stages,
    ``fold[group, MAX_FOLDS * 2 + 1]`` the factors exp(2 pi i s r / P), ``deconvolve[group, modes]`` (real).
    """

    combs: int
    lanes: int
    modes: int
    first: NDArray[Any]
    second: NDArray[Any]
    fold: NDArray[Any]
    deconvolve: NDArray[Any]
    taps: NDArray[np.float64]


@lru_cache(maxsize=32)
def tables(combs: int, lanes: int, dtype: np.dtype[Any]) -> CombTables:
    """Tables for ``combs`` combs (a multiple of ``lanes``)."""
    kernel = KERNELS[dtype]
    r = np.arange(combs, dtype=np.float64) / combs
    shift = r - kernel.modes / 2

    def lane_array(z: NDArray[Any]) -> NDArray[Any]:
        """[..., combs] -> flat [group, ..., (re, im), lanes]."""
        parts = np.stack([z.real, z.imag], -2) if np.iscomplexobj(z) else z[..., None, :]
        grouped = parts.reshape(*parts.shape[:-1], combs // lanes, lanes)
        return np.ascontiguousarray(np.moveaxis(grouped, -2, 0), dtype=dtype).ravel()

    m = np.arange(kernel.modes)[:, None] - kernel.modes / 2 + r
    second = np.stack([shift_constants((b + shift) / 16) for b in range(16)])
    folds = unit(np.arange(2 * MAX_FOLDS + 1)[:, None] * r)
    return CombTables(
        combs=combs,
        lanes=lanes,
        modes=kernel.modes,
        first=lane_array(shift_constants(shift)),
        second=lane_array(second),
        fold=lane_array(folds),
        deconvolve=lane_array(1 / kernel.transform(m)),
        taps=kernel.coefficients(),
    )
