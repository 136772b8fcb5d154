"""The direct engine for Q and U on a GPU (``spin.cu``, ``spin_belt.cu``): kernel ``p^4 G(x)``, see `cpu.spin`.

``p^4`` rotates Q + i U of an input pixel into the frame of the output pixel, by an angle ``4 psi`` that is nearly
``(z_i + z_o) dphi``, z being the cosine of a ring's colatitude.  For a small support ``2 z_i dphi`` is accurate enough:
an input pixel is then rotated once for all output rings, and Q and U need one multiply-add each.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.sphere.kernels.radial import product

from .engine import DirectEngine, DirectKernel, SharedTables
from .profile import make_profile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.sphere.contract import Spec
    from skysieve.sphere.kernels.radial import Radial

    from .profile import DeviceProfile
    from .zones import Belt, Zones

MOST_TURNING, WIDEST_TURNING = 0.25, 1e-3
"""Largest error of the simple angle: as a part of eps, and absolute."""
EXACT_TIME, TURNED_TIME = 2.8, 2.0
"""Time over the time of one scalar map, with the exact and with the simple angle; measured."""
ODD, TANGENT = 64, 128
"""Flags of weights of the stencil: the odd part of the kernel, and the tangent that rotates a ring's sums."""


def turning(radial: Radial) -> float:
    """Rms error of using ``2 z_i dphi`` for the angle between two pixels, relative to the rms of white maps' results.

    For pixels at a distance x along the ring and y across it, the angle is wrong by ``(z_o - z_i) dphi = x y``; the
    mean square over a circle is ``r^4 / 8``.  Terms of higher order are below a tenth of this in the caps.

    Examples
    --------
    >>> from skysieve.sphere import Gaussian
    >>> from skysieve.sphere.kernels.radial import make_radial
    >>> sigma = 0.001
    >>> print(round(turning(make_radial(Gaussian(sigma=sigma), 1e-6, 2)) / sigma**2, 3))
    0.5
    """
    u, w = _nodes()
    r = 0.5 * (u + 1) * np.sqrt(radial.xmax)
    k = radial(r * r) ** 2 * w * r
    return float(np.sqrt((k * r**4).sum() / (8 * k.sum())))


@functools.cache
def _nodes() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    u, w = np.polynomial.legendre.leggauss(64)
    return u, w


def must_be_exact(spec: Spec) -> bool:
    """Whether the simple angle is too inaccurate for any of the kernels, which all read the same pixels."""
    return max(turning(r) for r in spec.radials) > min(MOST_TURNING * spec.eps, WIDEST_TURNING)


def _nowhere_negative(radial: Radial) -> Radial:
    """The kernel, marked as positive if all its values are."""
    x = radial.xmax * (0.5 - 0.5 * np.cos(np.linspace(0, np.pi, 200))) * (1 - 1e-15)
    return dataclasses.replace(radial, positive=bool(radial(x).min() > 0))


class SpinKernel(DirectKernel):
    """One radial kernel for Q and U; see `DirectKernel`."""

    SOURCE, BELT, PLANES = "direct/spin.cu", "direct/spin_belt.cu", 4

    def _profile(self) -> DeviceProfile:
        self.exact = must_be_exact(self.spec)
        used = self.radial if self.exact else product(self.radial, lambda x: (1 - x / 4) ** 2)
        return make_profile(_nowhere_negative(used), self.spec.dtype)

    @property
    def _pixels(self) -> int:
        return 8 // self.spec.dtype.itemsize

    def _terms(self, belt: Belt) -> list[tuple[int, int]]:
        even = super()._terms(belt)
        if self.exact:
            return [(k + kind, y) for k, y in even for kind in (0, ODD)]
        found = []
        for e in range(max(belt.need)):
            found += [(TANGENT, 2 * e), (TANGENT, 2 * e + 1), *(t for t in even if t[1] // 2 == e)]
        return found

    def _floor(self) -> tuple[Any, ...]:
        return ()

    def _defines(self) -> dict[str, object]:
        return {"EXACT": int(self.exact)}

    def _npix(self) -> tuple[Any, ...]:
        return (np.int64(self.spec.table.npix),)

    def _rows(self) -> int:
        return 1 if self.exact else 2

    def _height(self, tables: SharedTables) -> tuple[Any, ...]:
        return (tables.height,)


class SpinEngine(DirectEngine):
    """The pixel sum of Q and U for all kernels of a `Spec`; see `DirectEngine`."""

    KERNEL = SpinKernel

    @classmethod
    def expected(cls, spec: Spec, zones: list[Zones]) -> float:
        """Expected seconds of one map of Q and U."""
        return (EXACT_TIME if must_be_exact(spec) else TURNED_TIME) * super().expected(spec, zones)

    def _heights(self, tables: SharedTables) -> None:
        height: NDArray[np.float64] = np.cos(self.spec.table.theta)
        tables.height = self.runtime.xp.asarray(height.astype(self.spec.dtype))
