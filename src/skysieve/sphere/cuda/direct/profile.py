"""A radial kernel in the form that a GPU evaluates fastest: a power of two, a polynomial, or a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.sphere.kernels.radial import Radial

MOST_TERMS = 100
DEGREES = {"float32": {"f32_exp1": 1, "f32_exp": 3}, "float64": {"f64_exp": 6}}
"""Builds of the exponential form, with the degree of the exponent."""
_EXP_ERROR = {"float32": 3e-8, "float64": 1e-13}
"""Largest error of the exponential form, relative to the peak."""
_SERIES_ERROR = {"float32": 1e-8, "float64": 1e-15}
_MOST_GROWTH = {"float32": 4.0, "float64": 64.0}
"""Largest sum of the coefficients' moduli, relative to the peak: rounding errors grow by this factor."""
TINY = 1e-30


@dataclass(frozen=True)
class DeviceProfile:
    """A radial kernel as an argument of kernel launches.

    Attributes
    ----------
    build : str
        Build of ``direct/direct.cu``.
    struct : numpy.void
        Its ``Profile``.
    cells : numpy.ndarray, shape (n, 6)
        The table of `Radial` in the dtype of the maps.
    amplitude : float
        Factor of the values.
    """

    build: str
    struct: Any
    cells: NDArray[Any]
    amplitude: float


def structure(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """``Profile`` of ``common.cuh``."""
    fields = [("top", dtype), ("scale", dtype), ("floor", dtype), ("terms", np.int32), ("c", dtype, MOST_TERMS)]
    return np.dtype(fields, align=True)


def make_profile(radial: Radial, dtype: np.dtype[Any]) -> DeviceProfile:
    """The fastest form that is accurate enough for ``dtype``.

    Examples
    --------
    >>> from skysieve.sphere import Gaussian
    >>> from skysieve.sphere.kernels.radial import make_radial
    >>> make_profile(make_radial(Gaussian(fwhm=0.001), 1e-6), np.dtype("float32")).build
    'f32_exp1'
    """
    name = dtype.name
    wide = "f32" if name == "float32" else "f64"
    cells = np.ascontiguousarray(radial.cells / radial.peak, dtype)
    floor = 0.0 if radial.positive else -1e30
    exponent = _exponent(radial, name)
    if exponent is not None:
        build, amplitude, c = exponent
        return DeviceProfile(build, _fill(dtype, radial.xmax, 0.0, floor, c), cells, amplitude)
    series = _polynomial(radial, name)
    if series is not None:
        return DeviceProfile(
            f"{wide}_series", _fill(dtype, radial.xmax, 2 / radial.xmax, floor, series), cells, radial.peak
        )
    struct = _fill(dtype, radial.xmax, len(cells) / np.sqrt(radial.xmax), floor, np.zeros(1))
    struct["terms"] = len(cells)
    return DeviceProfile(f"{wide}_table", struct, cells, radial.peak)


def _fill(dtype: np.dtype[Any], top: float, scale: float, floor: float, c: NDArray[np.float64]) -> Any:
    s = np.zeros((), structure(dtype))
    s["top"], s["scale"], s["floor"], s["terms"] = top, scale, floor, len(c)
    s["c"][: len(c)] = c
    return s[()]


def _exponent(radial: Radial, name: str) -> tuple[str, float, NDArray[np.float64]] | None:
    """Build, amplitude and coefficients in x, if the kernel's logarithm is a polynomial of low degree; else None."""
    u, k = _values(radial)
    if not radial.positive or k.min() <= TINY:
        return None
    for build, degree in DEGREES[name].items():
        c, fit = _power_of_two(u, k, degree)
        if np.abs(fit - k).max() <= _EXP_ERROR[name]:
            amplitude = radial.peak * float(np.exp2(c[0]))
            c[0] = 0
            return build, amplitude, c / radial.xmax ** np.arange(degree + 1)
    return None


def _values(radial: Radial) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Squared chords relative to the largest one, and the kernel's values relative to its peak."""
    u = 0.5 - 0.5 * np.cos(np.linspace(0, np.pi, 200))
    return u, radial(u * radial.xmax * (1 - 1e-15)) / radial.peak


def _power_of_two(
    u: NDArray[np.float64], k: NDArray[np.float64], degree: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fit a power of two: the coefficients of the exponent in u, and the fitted values."""
    c = np.asarray(np.polynomial.polynomial.polyfit(u, np.log2(k), degree, w=k), np.float64)
    return c, np.exp2(np.minimum(np.polynomial.polynomial.polyval(u, c), 99))


def _polynomial(radial: Radial, name: str) -> NDArray[np.float64] | None:
    """Coefficients in ``2 x / xmax - 1``, relative to the peak; None if rounding errors would grow too much."""
    if radial.series is None:
        return None
    s = radial.series / radial.peak
    rest = np.cumsum(np.abs(s)[::-1])[::-1]
    s = s[: max(1, int((rest > _SERIES_ERROR[name]).sum()))]
    c = np.asarray(np.polynomial.chebyshev.cheb2poly(s), np.float64)
    return c if np.abs(c).sum() <= _MOST_GROWTH[name] and len(c) <= MOST_TERMS else None
