"""What passes between the public API of the sphere and its backends.

``api`` checks the arguments and builds a `Spec`; an `Engine` takes it and convolves contiguous maps of its device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.sphere.grids.grid import RingTable
    from skysieve.sphere.grids.polar_correction import PolarCorrection
    from skysieve.sphere.kernels.base import Kernel
    from skysieve.sphere.kernels.radial import Radial

METHODS = ("auto", "direct", "ring", "harmonic")
COMPAT = ("arkcos", "duplicate", "unshifted")


@dataclass(frozen=True)
class Spec:
    """What to convolve with what, the same for every map of a plan.

    Attributes
    ----------
    table : RingTable
        Rings of the maps.
    kernels : tuple of Kernel
    radials : tuple of Radial
        The kernels, cut at their supports; empty where only harmonics can be used.
    dtype : numpy.dtype
        float32 or float64: maps and arithmetic.
    eps : float
        Accuracy that the supports were found for.
    spin : int
        0, or 2 for Q and U.
    rings : numpy.ndarray of bool or None, shape (R,)
        Rings that hold any pixel of the mask; the others are neither read nor written.
    extra : int
        Bytes of the host that the plan holds beside the engine: counted with the engine's.
    compat : tuple of str
        The paper's own algorithm: "arkcos", and its options "duplicate" and "unshifted".
    copies : int
        Maps (Q and U are one) that a GPU holds besides while it turns them into RING order, masks or corrects them.
    band : bool
        Maps are those of quadrature "band": `Engine.run` of a GPU takes off their mean and corrects them.
    polar : PolarCorrection, optional
        With ``band``: the correction around the poles, in RING order; None for a grid too small for it.
    """

    table: RingTable
    kernels: tuple[Kernel, ...]
    radials: tuple[Radial, ...]
    dtype: np.dtype[Any]
    eps: float
    spin: int = 0
    rings: NDArray[np.bool_] | None = None
    extra: int = 0
    compat: tuple[str, ...] = ()
    copies: int = 0
    band: bool = False
    polar: PolarCorrection | None = None


class Engine(Protocol):
    """What a backend is: ``Engine(spec, method, device=, memory=, threads=)``."""

    method: str

    def convolve(self, maps: Any, out: Any, w_in: NDArray[Any], w_out: NDArray[Any]) -> None:
        """Maps (B, [2,] npix) into ``out`` (B, K, [2,] npix); rings are weighted by ``w_in`` before, ``w_out`` after.

        Contiguous arrays of the spec's dtype in the device's memory; ``maps`` is not changed.
        """

    def describe(self) -> dict[str, Any]:
        """Method, bytes and expected seconds of one map."""

    def close(self) -> None:
        """Give back threads and memory."""
