"""The requests and results that pass between the public API of the sphere and its backends, and shared names.

``api`` checks the arguments and builds a `Spec`; an `Engine` convolves contiguous maps in the memory of its device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from skysieve.core.device import Device
    from skysieve.sphere.grids.grid import RingTable
    from skysieve.sphere.grids.polar_correction import PolarCorrection
    from skysieve.sphere.kernels.base import Kernel
    from skysieve.sphere.kernels.radial import Radial

Method = Literal["auto", "direct", "ring", "harmonic"]
METHOD_HELP: dict[str, str] = {
    "auto": "the method that is expected to be the fastest",
    "direct": "the sum over the pixels within the kernel's support",
    "ring": "Fourier modes of the rings, summed over rings",
    "harmonic": "spherical harmonic transforms (needs ducc0)",
}
"""The methods, and what each does."""
METHODS = tuple(METHOD_HELP)

Compat = Literal["arkcos", "arkcos+duplicate", "arkcos+unshifted", "arkcos+duplicate+unshifted"]
COMPAT: tuple[str, ...] = get_args(Compat)
"""The algorithm of Elsner & Wandelt as published, with its options behind plus signs."""

COPIED = "bytes copied"
"""Name of the work of copying a map from the host's memory to a GPU, and the results back."""

Where: TypeAlias = "str | Device | Sequence[str | Device]"
"""A device, or several GPUs."""
RealType: TypeAlias = "Literal['float64', 'float32'] | np.dtype[Any] | type[np.floating[Any]]"
"""Type of the arithmetic and of the result."""


@dataclass(frozen=True)
class Spec:
    """A convolution; it is the same for every map of a plan.

    Attributes
    ----------
    table : RingTable
        Rings of the maps.
    kernels : tuple of Kernel
    radials : tuple of Radial
        The kernels, truncated at their supports; empty if only harmonics can be used.
    dtype : numpy.dtype
        float32 or float64, for maps and arithmetic.
    eps : float
        Accuracy for which the supports were chosen.
    spin : int
        0, or 2 for Q and U.
    rings : numpy.ndarray of bool or None, shape (R,)
        Rings that hold any pixel of the mask; the others are neither read nor written.
    extra : int
        Bytes of host memory that the plan holds besides the engine; they count towards the memory budget.
    compat : tuple of str
        "arkcos" for the published algorithm, and its options "duplicate" and "unshifted".
    copies : int
        Copies of one map (Q and U count as one) that a GPU holds while it reorders, masks or corrects it.
    band : bool
        Quadrature "band": `Engine.run` of a GPU subtracts the mean of each map and applies the polar correction.
    polar : PolarCorrection, optional
        With ``band``: the correction around the poles, in RING order; None for a grid that is too small for it.
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
    """A backend, made by ``Engine(spec, method, device=, memory=, threads=)``."""

    method: str

    def convolve(self, maps: Any, out: Any, w_in: NDArray[Any], w_out: NDArray[Any]) -> None:
        """Convolve maps (B, [2,] npix) into ``out`` (B, K, [2,] npix).

        Rings are multiplied by ``w_in`` before the sum and by ``w_out`` after it.  The arrays are contiguous, of the
        dtype of the `Spec`, and in the device's memory; ``maps`` is not changed.
        """

    @property
    def nbytes(self) -> int:
        """Bytes that the engine holds on its device, or on each of several GPUs."""

    def describe(self) -> dict[str, Any]:
        """Method, device, bytes of the plan; ``work`` of one map for `core.machine.rates` (seconds by the cost model of
        the methods), and the number of ``threads`` or GPUs that share it."""

    def close(self) -> None:
        """Free threads and memory."""
