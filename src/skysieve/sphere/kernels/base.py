"""Base classes of radial kernels: window, profile, support and band limit.

A kernel has the window ``K_l`` (harmonics) and the profile ``K(theta)`` (1/sr).  Concrete kernels are in `shapes`.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .legendre import legendre_series, theta_nodes

if TYPE_CHECKING:
    from collections.abc import Callable

    from astropy.units import Quantity
    from numpy.typing import NDArray

__all__ = [
    "MAX_BAND", "SUPPORT_STEPS", "Angle", "Harmonic", "Kernel", "check_eps", "find_end", "find_support", "read_angle",
]  # fmt: skip

Angle: TypeAlias = "float | str | Quantity"
"""An angle: a number (rad), text with a unit such as ``"4.7 arcmin"``, or an astropy Quantity."""

PLAIN_UNITS = {"rad": 1.0, "deg": math.pi / 180, "arcmin": math.pi / 10_800, "arcsec": math.pi / 648_000}
PLAIN_ANGLE = re.compile(rf"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*({'|'.join(PLAIN_UNITS)})\s*")
"""Angles that are read without loading astropy's units."""
SUPPORT_STEPS = 1024
"""Angles of the grid on which the support of a kernel is searched."""
_PARTS, _DIVISIONS = 64, 9
"""Parts into which a cell of that grid is divided, and how often: to the spacing of float64 from any cell."""
MAX_BAND = 16384
"""Highest degree up to which the band limit of a kernel given in angle is searched."""


class Kernel(ABC):
    """Base of the kernels.

    Attributes
    ----------
    hard : bool
        Whether the kernel has a sharp edge, so that its window is not band-limited.
    positive : bool
        Whether the profile is nowhere negative.
    edges : numpy.ndarray, optional
        Angles (rad) where the profile is not smooth.
    """

    hard = False
    positive = False
    edges: NDArray[np.float64] | None = None

    @abstractmethod
    def window(self, lmax: int, spin: int = 0) -> NDArray[np.float64]:
        """``K_l`` for l from 0 to ``lmax``; with ``spin=2`` the window of E and B."""

    @abstractmethod
    def profile(self, theta: Any) -> NDArray[np.float64]:
        """``K(theta)`` per sr at angles theta (rad)."""

    @property
    def equal_polarisation(self) -> bool:
        """Whether E and B have the same window; "direct" and "ring" need this."""
        return True

    def polarised(self, lmax: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Windows of E and B up to ``lmax``."""
        both = self.window(lmax, 2)
        return both, both

    def components(self) -> tuple[Kernel, ...]:
        """The kernels that smooth E and B, or only the kernel itself if it smooths both."""
        return (self,)

    def gain(self) -> float:
        """Largest modulus of the window or an upper bound of it: the largest factor by which a harmonic grows."""
        theta, w = theta_nodes(self.support(), 64.0, self.edges)
        return 2 * math.pi * float((np.abs(self.profile(theta)) * w).sum())

    def tensor(self, theta: Any) -> NDArray[np.float64] | None:
        """The sum of `legendre.jacobi_series` for the window of E and B in closed form; None without one."""
        return None

    @abstractmethod
    def support(self, eps: float = 1e-6) -> float:
        """Angle (rad) beyond which the kernel is dropped.

        The dropped part changes a map of white noise by at most ``eps / 2`` of its rms, and holds at most ``eps``
        of the integral of the kernel's modulus.
        """

    def bandlimit(self, eps: float = 1e-6, most: int = MAX_BAND) -> float:
        """Degree above which the window adds less than ``eps`` to the rms of white noise; infinite for hard edges.

        Infinite also if this degree is larger than ``most``.
        """
        if self.hard:
            return math.inf
        lmax = 64
        while True:
            k = (2 * np.arange(lmax + 1) + 1) * self.window(lmax) ** 2
            rest = np.cumsum(k[::-1])[::-1]
            below = np.flatnonzero(rest <= eps**2 * rest[0])
            if below.size and below[0] < 0.8 * lmax:
                return int(below[0])
            if lmax >= most:
                return math.inf
            lmax *= 4

    def __repr__(self) -> str:
        values = ", ".join(f"{k}={v:.6g}" for k, v in vars(self).items() if isinstance(v, int | float) and k[0] != "_")
        return f"{type(self).__name__}({values})"


class Harmonic(Kernel):
    """A kernel given by its window, which ends at some degree."""

    @abstractmethod
    def _coefficients(self, spin: int = 0) -> NDArray[np.float64]:
        """``K_l`` from l = 0 to the last degree where it is not zero."""

    def window(self, lmax: int, spin: int = 0) -> NDArray[np.float64]:
        """See `Kernel.window`; zero beyond the last degree."""
        k = self._coefficients(spin)[: lmax + 1]
        return np.concatenate([k, np.zeros(lmax + 1 - len(k))])

    def profile(self, theta: Any) -> NDArray[np.float64]:
        """See `Kernel.profile`: the sum over all degrees, because a cut at the lmax of a map would cause ringing."""
        return legendre_series(self._coefficients(), np.asarray(theta, np.float64))

    def gain(self) -> float:
        """See `Kernel.gain`."""
        return float(np.abs(self._coefficients()).max())

    def bandlimit(self, eps: float = 1e-6, most: int = MAX_BAND) -> float:
        """See `Kernel.bandlimit`; ``most`` is not needed, because the window is known."""
        k = self._coefficients()
        power = (2 * np.arange(len(k)) + 1) * k**2
        rest = np.cumsum(power[::-1])[::-1]
        below = np.flatnonzero(rest <= eps**2 * rest[0])
        return int(below[0]) if below.size else len(k)

    def support(self, eps: float = 1e-6) -> float:
        """See `Kernel.support`."""
        check_eps(eps)
        k = self._coefficients()
        return find_support(self.profile, math.pi, eps, start=0.3 / max(1, len(k)))


def find_support(
    profile: Callable[[Any], NDArray[np.float64]], radius: float, eps: float, start: float, smooth: bool = True
) -> float:
    """The support of `Kernel.support`: the smallest angle of a geometric grid from ``start`` to ``radius``.

    A profile that is not ``smooth`` may fall steeply or end inside a cell of the grid: each cell counts with the
    largest of its values at both ends and in the middle, and the cell in which the support ends is divided further,
    except for the last one: kernels that reach their radius keep all of it.
    """
    edges = np.geomspace(start, radius, SUPPORT_STEPS + 1)
    theta, w = theta_nodes(start, 8.0)
    inner = np.abs(profile(theta))
    powers, limits = (1, 2), (eps, (eps / 2) ** 2)
    total: list[float] = []
    beyond = [0.0, 0.0]
    found = radius
    for _ in range(1 if smooth else _DIVISIONS):
        area = 2 * np.sin((edges[1:] + edges[:-1]) / 2) * np.sin(np.diff(edges) / 2)
        f = np.abs(profile(np.sqrt(edges[1:] * edges[:-1])))
        if not total:
            total = [float((f**power * area).sum() + (inner**power * w).sum()) for power in powers]
        if not smooth:
            ends = np.abs(profile(edges))
            f = np.maximum(f, np.maximum(ends[1:], ends[:-1]))
        left = [np.cumsum(np.append(f**p * area, b)[::-1])[::-1] for p, b in zip(powers, beyond, strict=True)]
        small = [rest <= limit * whole for rest, limit, whole in zip(left, limits, total, strict=True)]
        first = int(np.flatnonzero(small[0] & small[1])[0])  # at least the last place, beyond which nothing counts
        found = float(edges[first])
        if first == 0 or found == radius:
            break
        beyond = [float(rest[first]) for rest in left]
        edges = np.linspace(edges[first - 1], edges[first], _PARTS + 1)
    return found


def find_end(profile: Callable[[Any], NDArray[np.float64]], below: float, above: float) -> float:
    """The largest angle from ``below``, where the profile is not 0, to ``above``, where it is, at which it is not 0."""
    for _ in range(_DIVISIONS):
        theta = np.linspace(below, above, _PARTS + 1)
        last = int(np.flatnonzero(profile(theta[:-1]))[-1])
        below, above = float(theta[last]), float(theta[last + 1])
    return below


def read_angle(value: Any, name: str, zero: bool = False) -> float:
    """Read an `Angle`.

    Parameters
    ----------
    value : float, str or Quantity
    name : str
        Name of the argument in error messages.
    zero : bool
        Whether 0 is allowed.

    Returns
    -------
    float
        The angle (rad).

    Raises
    ------
    ValueError
        The value is not an angle of at most pi, or not positive.

    Examples
    --------
    >>> round(read_angle("90 deg", "fwhm"), 6)
    1.570796
    """
    angle = value
    plain = PLAIN_ANGLE.fullmatch(value) if isinstance(value, str) else None
    if plain is not None:
        angle = float(plain[1]) * PLAIN_UNITS[plain[2]]
    elif isinstance(value, str) or hasattr(value, "to_value"):
        from astropy.units import Quantity

        try:
            angle = Quantity(value).to_value("rad")
        except (TypeError, ValueError):  # not a number, without a unit, or the unit of another quantity
            raise ValueError(
                f"{name}={value!r}: expected an angle with its unit, such as 4.7arcmin, 1deg, 30arcsec or 0.01rad"
            ) from None
    number = isinstance(angle, int | float | np.number | np.ndarray) and np.ndim(angle) == 0
    if not number or not (0 < angle <= math.pi or (zero and angle == 0)):
        least = "of at least 0" if zero else "above 0"
        raise ValueError(f"{name}={value!r}: expected an angle {least} and at most {math.pi:.6g} (rad)")
    return float(angle)


def check_eps(eps: Any) -> None:
    """Check an accuracy.

    Raises
    ------
    ValueError
        ``eps`` is not a number from 1e-15 to below 1.
    """
    if not isinstance(eps, int | float | np.floating) or not 1e-15 <= eps < 1:
        raise ValueError(f"eps={eps!r}: expected a number from 1e-15 to below 1")
