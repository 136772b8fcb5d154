"""Demodulation on a GPU: data of one detector stay on it; launches of ``demod.cu``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.gpu.runtime import CudaRuntime, Runtime, on_device
from skysieve.core.gpu.structs import fill, struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from skysieve.core.device import Device

__all__ = ["Projector"]

PACKAGE = "skysieve.fstat.cuda"
TILE, ROWS = 32, 4
"""Templates and SFTs of a block, and SFTs of a thread, as in the kernel."""
DEMOD = struct(
    "data*", "delay*", "rate*", "a*", "b*", "f0*", "f1*", "f2*", "Fa*", "Fb*", "failed*", "sfts", "bins", "first_bin",
    "templates",
)  # fmt: skip


class Projector:
    """Projects the SFTs of a detector on templates.

    Parameters
    ----------
    data : numpy.ndarray of complex64 or complex128, shape (n, bins)
        Normalised SFTs.  Their precision is that of the sums.
    first_bin : int
    delay, rate : numpy.ndarray of float64, shape (n,)
        Barycentric time since the reference time at the middle of each SFT, and its rate.
    a, b : numpy.ndarray, shape (n,)
        Weighted antenna factors.
    tsft : float
    device : Device, optional
    runtime : Runtime, optional
        Instead of `device`: where the kernel runs.
    """

    def __init__(
        self, data: NDArray[np.complex64], first_bin: int, delay: Any, rate: Any, a: Any, b: Any, tsft: float,
        device: Device | None = None, runtime: Runtime | None = None,
    ) -> None:  # fmt: skip
        if runtime is None:
            if device is None:
                raise ValueError("device=None: expected a GPU, or a runtime")
            runtime = CudaRuntime(device)
        self.runtime, self.xp = runtime, runtime.xp
        self.first_bin, (self.sfts, self.bins), self.dtype = first_bin, data.shape, data.dtype
        with on_device(self.runtime):
            self.data = self.xp.asarray(data)
            self.times = [
                self.xp.asarray(np.ascontiguousarray(x, np.float64)) for x in (delay, tsft * np.asarray(rate))
            ]
            self.factors = [self.xp.asarray(np.ascontiguousarray(x, data.real.dtype)) for x in (a, b)]
            self.module = runtime.module(PACKAGE, "demod/demod.cu", "f32" if data.dtype == np.complex64 else "f64")

    def project(self, f0: Any, f1: Any, f2: Any) -> tuple[Any, Any, int]:
        """Projections on templates, in the memory of the GPU.

        Parameters
        ----------
        f0, f1, f2 : numpy.ndarray of float64, shape (m,)
            Frequency and its derivatives at the reference time.

        Returns
        -------
        Fa, Fb : array of the type of the data, shape (m, n)
        failed : int
            The first template that needs bins outside the data, or -1.
        """
        xp, m = self.xp, len(f0)
        with on_device(self.runtime):
            spins = [xp.asarray(x) for x in (f0, f1, f2)]
            found = [xp.empty((m, self.sfts), self.dtype) for _ in range(2)]
            failed = xp.full(1, m, np.uint32)
            delay, rate = self.times
            arrays = {"data": self.data, "delay": delay, "rate": rate, "a": self.factors[0], "b": self.factors[1]}
            arrays |= {"f0": spins[0], "f1": spins[1], "f2": spins[2], "Fa": found[0], "Fb": found[1]}
            args = fill(
                DEMOD, **arrays, failed=failed, sfts=self.sfts, bins=self.bins, first_bin=self.first_bin, templates=m
            )
            grid = -(-m // TILE), -(-self.sfts // TILE)
            self.module.launch("demod", grid, (TILE * TILE // ROWS,), (args,))
            first = int(failed[0])
        return found[0], found[1], first if first < m else -1

    def zeros(self, shape: tuple[int, ...]) -> Any:
        """An array of zeros of the type and on the device of `project`'s results."""
        with on_device(self.runtime):
            return self.xp.zeros(shape, self.dtype)

    def copies(self, arrays: Sequence[NDArray[Any]]) -> list[Any]:
        """Copies of host arrays in the memory of `project`'s results, whichever GPU is current in this thread."""
        with on_device(self.runtime):
            return [self.xp.asarray(x) for x in arrays]

    def close(self) -> None:
        """Free the device's memory."""
        self.data, self.times, self.factors = None, [], []
