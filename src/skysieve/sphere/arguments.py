"""Arguments of a plan, as they are read and checked."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.sphere.grid import Grid, Healpix, RingTable
from skysieve.sphere.kernels import Kernel
from skysieve.sphere.legendre import theta_nodes
from skysieve.sphere.workload import COMPAT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from skysieve.core.device import Device

DTYPES = ("float64", "float32")
QUIET = 2e-11
"""eps that leaves at most 1e-10 of the peak beyond the support on grids of equal rings, in float64."""


def read_kernels(kernel: Kernel | Sequence[Kernel]) -> tuple[tuple[Kernel, ...], bool]:
    """The kernels, and whether there is a list of them."""
    if isinstance(kernel, Kernel):
        return (kernel,), False
    if not isinstance(kernel, list | tuple) or not kernel or not all(isinstance(k, Kernel) for k in kernel):
        raise TypeError(f"kernel is {kernel!r}, expected a kernel such as Gaussian(fwhm=0.01), or a list of them")
    return tuple(kernel), True


def ring_table_of(grid: Grid, quadrature: str, rings: slice | None) -> RingTable:
    """The grid's rings that are in use."""
    table = grid.table(quadrature)
    if rings is None:
        return table
    if not isinstance(rings, slice):
        raise TypeError(f"rings={rings!r}: expected a slice of neighbouring rings")
    if grid.nest:
        raise ValueError("rings: a NESTED map has no rings; use RING order, or a mask")
    return table.select(rings)


def read_compat(compat: str | None, grid: Grid, method: str, spin: int, rings: slice | None) -> tuple[str, ...]:
    """The paper's algorithm and its options."""
    if compat is None:
        return ()
    named = tuple(str(compat).split("+"))
    if named[0] != COMPAT[0] or not set(named[1:]) <= set(COMPAT[1:]) or len(set(named)) < len(named):
        raise ValueError(f"compat={compat!r}: expected 'arkcos', with '+duplicate' or '+unshifted' behind it, or None")
    if not isinstance(grid, Healpix) or method not in ("auto", "ring") or spin or rings is not None:
        raise ValueError(f"compat={compat!r}: expected a whole HEALPix grid, spin=0 and method='auto' or 'ring'")
    return named


def factors_of(grid: Grid, table: RingTable, rings: slice | None) -> NDArray[np.float64]:
    """The pixels' factors, of the rings in use."""
    factors = grid.pixel_factors()
    if rings is None:
        return factors
    whole = grid.table("none")
    first = int(whole.start[rings.indices(len(whole.n))[0]])
    return factors[first : first + table.npix]


def quiet_eps(kernels: tuple[Kernel, ...], table: RingTable, dtype: np.dtype[Any], eps: float, narrow: int) -> float:
    """The eps to use: on equal rings a wide kernel, whose modes are cut, gets one that leaves no trace of the cut."""
    if dtype != np.float64 or not table.uniform or all(k.hard for k in kernels):
        return eps
    widest = max(k.support(eps) for k in kernels if not k.hard) * float(table.n[0]) / (2 * math.pi)
    return min(eps, QUIET) if widest > narrow else eps


def read_dtype(dtype: Any) -> np.dtype[Any]:
    """float64 or float32."""
    try:
        real: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"dtype={dtype!r}: expected 'float64' or 'float32'") from error
    if real.name not in DTYPES:
        raise ValueError(f"dtype={dtype!r}: expected 'float64' or 'float32'")
    return real


def white_error(kernel: Kernel, radius: float) -> float:
    """``sqrt(int beyond radius K^2 / int K^2)``."""
    inside, w = theta_nodes(radius, 30.0)
    kept = float((kernel.profile(inside) ** 2 * w).sum())
    lost = 0.0
    a = radius
    while a < math.pi:
        b = min(1.5 * a, math.pi)
        x, v = np.polynomial.legendre.leggauss(24)
        theta = (a + b) / 2 + (b - a) / 2 * x
        lost += float((kernel.profile(theta) ** 2 * np.sin(theta) * v).sum()) * (b - a) / 2
        a = b
    return math.sqrt(lost / (kept + lost))


def devices_of(
    device: str | Device | list[str | Device] | tuple[str | Device, ...],
    ask: Callable[[str | Device], tuple[Device, ...]],
) -> tuple[Device, ...]:
    """The devices that a request means, as ``ask`` knows them; of a sequence of GPUs each once.

    Raises
    ------
    ValueError
    DeviceUnavailable
    """
    if not isinstance(device, list | tuple):
        return ask(device)
    found = tuple(dict.fromkeys(d for one in device for d in ask(one)))
    if not found or any(d.kind != "cuda" for d in found):
        raise ValueError(f"device={device!r}: expected GPUs, such as ['cuda:0', 'cuda:1']")
    return found
