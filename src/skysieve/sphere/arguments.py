"""Checks of the arguments of a plan, and the settings that follow from them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import array_module, is_device_array
from skysieve.core.checks import one_of
from skysieve.sphere.grids.grid import Grid, Healpix, Quadrature, RingTable
from skysieve.sphere.grids.healpix import reorder
from skysieve.sphere.kernels.base import Kernel
from skysieve.sphere.kernels.legendre import theta_nodes

from .contract import COMPAT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from skysieve.core.device import Device

    from .contract import Where

QUIET = 2e-11
"""eps that leaves at most 1e-10 of the peak beyond the support on grids of equal rings, in float64."""


def read_kernels(kernel: Kernel | Sequence[Kernel]) -> tuple[tuple[Kernel, ...], bool]:
    """The kernels, and whether a sequence was given."""
    if isinstance(kernel, Kernel):
        return (kernel,), False
    if not isinstance(kernel, list | tuple) or not kernel or not all(isinstance(k, Kernel) for k in kernel):
        raise TypeError(f"kernel is {kernel!r}, expected a kernel such as Gaussian(fwhm=0.01), or a list of them")
    return tuple(kernel), True


def ring_table_of(grid: Grid, quadrature: Quadrature, rings: slice | None) -> RingTable:
    """The rings of the grid that are used."""
    table = grid.table(quadrature)
    if rings is None:
        return table
    if not isinstance(rings, slice):
        raise TypeError(f"rings={rings!r}: expected a slice of neighbouring rings")
    if grid.nest:
        raise ValueError("rings: a NESTED map has no rings; use RING order, or a mask")
    return table.select(rings)


def read_compat(compat: str | None, grid: Grid, method: str, spin: int, rings: slice | None) -> tuple[str, ...]:
    """Options of the published algorithm; empty if it is not used."""
    if compat is None:
        return ()
    named = tuple(one_of("compat", compat, COMPAT).split("+"))
    if not isinstance(grid, Healpix) or method not in ("auto", "ring") or spin or rings is not None:
        raise ValueError(f"compat={compat!r}: expected a whole HEALPix grid, spin=0 and method='auto' or 'ring'")
    return named


def factors_of(grid: Grid, table: RingTable, rings: slice | None) -> NDArray[np.float64]:
    """The weight of each pixel of the rings that are used."""
    factors = grid.pixel_factors()
    if rings is None:
        return factors
    whole = grid.table("none")
    first = int(whole.start[rings.indices(len(whole.n))[0]])
    return factors[first : first + table.npix]


def quiet_eps(kernels: tuple[Kernel, ...], table: RingTable, dtype: np.dtype[Any], eps: float, narrow: int) -> float:
    """The eps to use: on equal rings, the modes of a wide kernel are cut so late that the cut leaves no trace.

    ``narrow`` is the support (pixels along a ring) up to which all modes are used anyway.
    """
    if dtype != np.float64 or not table.uniform or all(k.hard for k in kernels):
        return eps
    widest = max(k.support(eps) for k in kernels if not k.hard) * float(table.n[0]) / (2 * math.pi)
    return min(eps, QUIET) if widest > narrow else eps


def white_error(kernel: Kernel, radius: float) -> float:
    """Error of cutting a kernel at ``radius`` for white maps: ``sqrt(int beyond radius K^2 / int K^2)``."""
    inside, w = theta_nodes(radius, 30.0)
    used = float((kernel.profile(inside) ** 2 * w).sum())
    lost = 0.0
    a, width = radius, radius / 256  # narrow panels first: the kernel may end just beyond the radius
    while a < math.pi:
        b = min(a + width, math.pi)
        x, v = np.polynomial.legendre.leggauss(24)
        theta = (a + b) / 2 + (b - a) / 2 * x
        lost += float((kernel.profile(theta) ** 2 * np.sin(theta) * v).sum()) * (b - a) / 2
        a, width = b, 2 * width
    return math.sqrt(lost / (used + lost))


def devices_of(device: Where, ask: Callable[[str | Device], tuple[Device, ...]]) -> tuple[Device, ...]:
    """The devices that ``device`` names, each once; ``ask`` is `core.device.resolve`.

    Raises
    ------
    ValueError
        A sequence holds anything but GPUs.
    DeviceUnavailable
    """
    if not isinstance(device, list | tuple):
        return ask(device)  # pyrefly: ignore[bad-argument-type]  # which refuses other sequences
    found = tuple(dict.fromkeys(d for one in device for d in ask(one)))
    if not found or any(d.kind != "cuda" for d in found):
        raise ValueError(f"device={device!r}: expected GPUs, such as ['cuda:0', 'cuda:1']")
    return found


def check_out(out: Any, maps: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise an error if the result cannot be written into ``out``."""
    expected = f"expected a contiguous array of shape {shape} and dtype {dtype}"
    if type(out) is not (type(maps) if is_device_array(maps) else np.ndarray):
        raise TypeError(f"out is a {type(out).__name__}, {expected} on the device of the maps")
    if out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous:
        raise ValueError(f"out has shape {out.shape}, dtype {out.dtype} and strides {out.strides}: {expected}")
    if is_device_array(maps) and out.device != maps.device:
        raise ValueError(f"out is on {out.device}, the maps are on {maps.device}: {expected} on the device of the maps")
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError(f"out is read-only: {expected}")
    if array_module(out).may_share_memory(out, maps):
        raise ValueError("out shares its memory with the maps: expected another array")


def read_mask(mask: Any, table: RingTable, nest: bool) -> tuple[NDArray[np.bool_] | None, NDArray[np.bool_] | None]:
    """The mask in RING order, and the rings in which it has pixels."""
    if mask is None:
        return None, None
    m = np.asarray(mask)
    if m.shape != (table.npix,) or m.dtype.kind not in "biu":
        raise ValueError(f"mask has shape {m.shape} and dtype {m.dtype}: expected ({table.npix},), True or False")
    m = m.astype(bool)
    if not m.any():
        raise ValueError("mask: leaves no pixel; expected at least one that is True")
    if nest:
        m = reorder(m, to="ring")
    return m, np.logical_or.reduceat(m, table.start)
