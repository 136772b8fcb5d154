"""Grids of isolatitude rings: HEALPix, equidistant cylindrical, Gauss-Legendre, and arbitrary rings.

A map is one array of pixels, ring after ring from north to south.  Engines work with the `RingTable` of a grid.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skysieve.core.checks import one_of, whole

from .healpix import check_nside, ring_table
from .pixel_weights import healpix_pixel_weights
from .polar_correction import PolarCorrection, polar_correction, seam_weights
from .ring_weights import clenshaw_curtis, fejer, healpix_ring_weights

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["ECP", "GRIDS", "QUADRATURES", "GaussLegendre", "Grid", "Healpix", "Quadrature", "RingTable", "Rings"]

Quadrature = Literal["band", "ring", "none", "pixel"]


@dataclass(frozen=True)
class QuadratureRule:
    """A rule for the weights of the pixels in the sum.

    Attributes
    ----------
    help : str
        The weights in words.
    ring_weights : callable, optional
        Returns the factors of the rings of a HEALPix map for a given nside; by default all factors are 1.
    pixel_factors : bool
        Whether each pixel is multiplied by its own factor, `Grid.pixel_factors`.
    polar : bool
        Whether the mean of a map is treated separately, and the map corrected by `Grid.polar_correction`.
    """

    help: str
    ring_weights: Callable[[int], NDArray[np.float64]] | None = None
    pixel_factors: bool = False
    polar: bool = False


QUADRATURES: dict[str, QuadratureRule] = {
    "band": QuadratureRule(
        "corrections around the poles and where caps and belt meet", ring_weights=seam_weights, polar=True
    ),
    "ring": QuadratureRule("one weight for each ring", ring_weights=healpix_ring_weights),
    "none": QuadratureRule("equal weights"),
    "pixel": QuadratureRule("HEALPix's pixel weights", pixel_factors=True),
}
"""The quadratures, by name."""


@dataclass(frozen=True)
class RingTable:
    """Rings of a map, in the order of its pixels.

    Attributes
    ----------
    theta, phi0 : numpy.ndarray of float64, shape (R,)
        Colatitude, and azimuth of the first pixel (rad).
    n, start : numpy.ndarray of int64, shape (R,)
        Number of pixels, and index of the first one in the map.
    weight : numpy.ndarray of float64, shape (R,)
        Weight (sr) of each pixel of the ring in the sum.
    """

    theta: NDArray[np.float64]
    n: NDArray[np.int64]
    phi0: NDArray[np.float64]
    start: NDArray[np.int64]
    weight: NDArray[np.float64]

    @functools.cached_property
    def npix(self) -> int:
        """Number of pixels."""
        return int(self.n.sum())

    @functools.cached_property
    def symmetric(self) -> bool:
        """Whether ring ``i`` from the north is the mirror image of ring ``i`` from the south."""
        same = np.array_equal(self.n, self.n[::-1]) and np.array_equal(self.phi0, self.phi0[::-1])
        return bool(same and np.abs(self.theta + self.theta[::-1] - math.pi).max() < 1e-13)

    @property
    def uniform(self) -> bool:
        """Whether all rings have one length and are aligned or off by half a pixel (ECP, Gauss-Legendre)."""
        n = int(self.n[0])
        shift = (self.phi0 - self.phi0[0]) * n / math.pi
        steps = np.rint(shift)
        near = np.abs(shift - steps).max() < 2e-9 and (n % 2 == 0 or not (steps % 2).any())
        return bool(near and (self.n == n).all())

    def pixels(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Colatitude, azimuth and weight of every pixel."""
        theta = np.repeat(self.theta, self.n)
        within = np.arange(self.npix) - np.repeat(self.start - self.start[0], self.n)
        return (
            theta,
            np.repeat(self.phi0, self.n) + 2 * math.pi * within / np.repeat(self.n, self.n),
            np.repeat(self.weight, self.n),
        )

    def select(self, rings: slice) -> RingTable:
        """The table of some neighbouring rings, whose pixels are numbered from 0."""
        if rings.step not in (None, 1):
            raise ValueError(f"rings={rings}: expected neighbouring rings (no step)")
        a, b, _ = rings.indices(len(self.n))
        if b <= a:
            raise ValueError(f"rings={rings}: none of the {len(self.n)} rings are left")
        s = slice(a, b)
        return RingTable(self.theta[s], self.n[s], self.phi0[s], self.start[s] - self.start[a], self.weight[s])


class Grid(ABC):
    """Base of the grids."""

    nest = False

    @abstractmethod
    def table(self, quadrature: Quadrature = "ring") -> RingTable:
        """The rings of the grid, with the weights of a quadrature.

        Parameters
        ----------
        quadrature : {"ring", "none", "pixel", "band"}
            "ring": one weight for each ring, which makes integrals of smooth functions exact; "none": the solid angle
            of a pixel; "pixel" (HEALPix): the solid angle, used with `pixel_factors`; "band" (HEALPix): the solid
            angle except for the rings where caps and belt meet, used with `polar_correction`.
        """

    def pixel_factors(self) -> NDArray[np.float64]:
        """Factors of the pixels for quadrature "pixel", in RING order.

        Raises
        ------
        ValueError
            The grid has no pixel weights.
        """
        raise ValueError(f"quadrature='pixel': expected a HEALPix grid, not {self!r}, for which 'ring' is exact")

    def polar_correction(self) -> PolarCorrection | None:
        """Correction of the pixels around the poles for quadrature "band"; None for a HEALPix grid below nside 8.

        Raises
        ------
        ValueError
            The grid has no such correction.
        """
        raise ValueError(f"quadrature='band': expected a HEALPix grid, not {self!r}, for which 'ring' is exact")

    def __repr__(self) -> str:
        values = ", ".join(f"{k.lstrip('_')}={v}" for k, v in vars(self).items() if not isinstance(v, np.ndarray))
        return f"{type(self).__name__}({values})"


class Healpix(Grid):
    """The HEALPix grid.

    Parameters
    ----------
    nside : int
        An integer of at least 1; in NESTED order a power of two.
    nest : bool
        Whether pixels are in NESTED order.

    Examples
    --------
    >>> Healpix(64).table("none").npix
    49152
    """

    def __init__(self, nside: int, nest: bool = False) -> None:
        self.nside = check_nside(nside, nest)
        self.nest = bool(nest)

    def table(self, quadrature: Quadrature = "ring") -> RingTable:
        """See `Grid.table` and `QUADRATURES`."""
        rule = QUADRATURES[one_of("quadrature", quadrature, QUADRATURES)]
        theta, n, phi0, start = ring_table(self.nside)
        area = 4 * math.pi / (12 * self.nside**2)
        weight = np.full(len(n), area) if rule.ring_weights is None else area * rule.ring_weights(self.nside)
        return RingTable(theta, n, phi0, start, weight)

    def pixel_factors(self) -> NDArray[np.float64]:
        """See `Grid.pixel_factors` and `pixel_weights.healpix_pixel_weights`."""
        return healpix_pixel_weights(self.nside)

    def polar_correction(self) -> PolarCorrection | None:
        """See `Grid.polar_correction` and `polar_correction.polar_correction`."""
        return polar_correction(self.nside)


class ECP(Grid):
    """Equidistant cylindrical (plate carree, CAR) grid: rings at equal steps of latitude, all of the same length.

    Parameters
    ----------
    nlat, nlon : int
        Number of rings, and number of pixels of a ring.
    poles : bool
        Whether there are rings at both poles; the step is then ``pi / (nlat - 1)``.  Otherwise it is ``pi / nlat``, and
        the first and last rings are half a step away from the poles.
    phi0 : float
        Azimuth of the first pixel (rad).

    Examples
    --------
    >>> t = ECP(180, 360).table("none")
    >>> print(round(float((t.weight * t.n).sum() / np.pi), 12))
    4.0
    """

    def __init__(self, nlat: int, nlon: int, poles: bool = False, phi0: float = 0.0) -> None:
        self.nlat, self.nlon = whole("nlat", nlat, 3 if poles else 1), whole("nlon", nlon, 1)
        if not math.isfinite(phi0):
            raise ValueError(f"phi0={phi0!r}: expected a finite number")
        self.poles, self.phi0 = bool(poles), float(phi0)

    def table(self, quadrature: Quadrature = "ring") -> RingTable:
        """See `Grid.table`: areas of cells, or with "ring" the weights of Fejer, or of Clenshaw and Curtis."""
        one_of("quadrature", quadrature, QUADRATURES)
        step = math.pi / (self.nlat - 1 if self.poles else self.nlat)
        north = (np.arange((self.nlat + 1) // 2, dtype=np.float64) + (0 if self.poles else 0.5)) * step
        if self.nlat % 2:
            north[-1] = math.pi / 2
        theta = np.concatenate([north, math.pi - north[: self.nlat // 2][::-1]])
        if quadrature == "ring":
            band = clenshaw_curtis(self.nlat) if self.poles else fejer(self.nlat)
        else:
            edges = np.clip(np.stack([theta - step / 2, theta + step / 2]), 0, math.pi)
            band = np.cos(edges[0]) - np.cos(edges[1])
        return _uniform(theta, self.nlon, self.phi0, band)


class GaussLegendre(Grid):
    """Rings at Gauss-Legendre nodes: the sum is exact for functions of degree up to ``2 nlat - 1``.

    Parameters
    ----------
    nlat, nlon : int
        Number of rings, and number of pixels of a ring.

    Examples
    --------
    >>> GaussLegendre(32, 64).table().npix
    2048
    """

    def __init__(self, nlat: int, nlon: int) -> None:
        self.nlat, self.nlon = whole("nlat", nlat, 1), whole("nlon", nlon, 1)

    def table(self, quadrature: Quadrature = "ring") -> RingTable:
        """See `Grid.table`; the Gauss weights for every quadrature."""
        from scipy.special import roots_legendre

        one_of("quadrature", quadrature, QUADRATURES)
        z, band = roots_legendre(self.nlat)
        z = (z - z[::-1]) / 2
        theta = np.arccos(z[::-1])
        half = self.nlat // 2
        theta[self.nlat - half :] = math.pi - theta[:half][::-1]
        return _uniform(theta, self.nlon, 0.0, (band + band[::-1]) / 2)


class Rings(Grid):
    """Arbitrary rings of equidistant pixels, from north to south.

    Parameters
    ----------
    theta : array_like, shape (R,)
        Colatitudes (rad), rising, within [0, pi].
    nphi : int or array_like of int, shape (R,)
        Number of pixels of each ring.
    phi0 : float or array_like
        Azimuth of the first pixel of each ring (rad).
    weight : array_like, optional
        Solid angle of one pixel of each ring (sr).  By default a ring reaches half-way to its neighbours.

    Examples
    --------
    >>> Rings([0.5, 1.5, 2.5], [6, 12, 6]).table().npix
    24
    """

    def __init__(self, theta: Any, nphi: Any, phi0: Any = 0.0, weight: Any = None) -> None:
        t = np.atleast_1d(np.asarray(theta, np.float64))
        if t.ndim != 1 or not t.size or not (np.isfinite(t).all() and t[0] >= 0 and t[-1] <= math.pi):
            raise ValueError("theta: expected colatitudes of rings from 0 to pi (rad)")
        if (np.diff(t) <= 0).any():
            raise ValueError("theta: expected rising colatitudes")
        counts = np.asarray(nphi)
        if counts.dtype.kind not in "iu" or (counts < 1).any():
            raise ValueError(f"nphi={nphi!r}: expected whole numbers of at least 1")
        self._n = np.broadcast_to(counts.astype(np.int64), t.shape).copy()
        self._theta = t
        self._phi0 = np.broadcast_to(np.asarray(phi0, np.float64), t.shape).copy()
        if not np.isfinite(self._phi0).all():
            raise ValueError(f"phi0={phi0!r}: expected finite azimuths (rad)")
        if weight is None:
            edges = np.concatenate([[0.0], (t[1:] + t[:-1]) / 2, [math.pi]])
            self._weight = 2 * math.pi * -np.diff(np.cos(edges)) / self._n
        else:
            self._weight = np.broadcast_to(np.asarray(weight, np.float64), t.shape).copy()
            if not np.isfinite(self._weight).all():
                raise ValueError("weight: expected finite solid angles (sr)")

    def table(self, quadrature: Quadrature = "ring") -> RingTable:
        """See `Grid.table`; the given weights for every quadrature."""
        one_of("quadrature", quadrature, QUADRATURES)
        start = np.concatenate([[0], np.cumsum(self._n)[:-1]]).astype(np.int64)
        return RingTable(self._theta, self._n, self._phi0, start, self._weight)


def _uniform(theta: NDArray[np.float64], nlon: int, phi0: float, band: NDArray[np.float64]) -> RingTable:
    rings = len(theta)
    n = np.full(rings, nlon, np.int64)
    return RingTable(theta, n, np.full(rings, phi0), np.arange(rings) * np.int64(nlon), 2 * math.pi * band / nlon)


GRIDS: dict[str, type[Grid]] = {
    "HEALPix": Healpix,
    "equidistant cylindrical (CAR)": ECP,
    "Gauss-Legendre": GaussLegendre,
    "any rings": Rings,
}
"""The grids, by the names that the documentation gives them."""
