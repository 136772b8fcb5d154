"""Quadrature "band" on a GPU: the steps before and after the sum.  The host does not wait for any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.sphere.cuda import PACKAGE

from .transfers import upload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.core.gpu.runtime import Module, Runtime
    from skysieve.sphere.contract import Spec

THREADS = 128
SUMS, PIXELS = 1024, 4 * 256
"""Most blocks of threads that share a map, and fewest pixels of each."""


class BandSteps:
    """The mean of a map, and the correction around its poles; the tables are on the GPU.

    Parameters
    ----------
    runtime : Runtime
    spec : Spec
        A specification with ``band``.
    maps : Module
        The kernels of ``maps.cu``.

    Attributes
    ----------
    sums : device array
        Partial sums of the last map, for `finish`.
    """

    def __init__(self, runtime: Runtime, spec: Spec, maps: Module) -> None:
        xp = runtime.xp
        self.spin, self.npix, self._maps = spec.spin, spec.table.npix, maps
        self._blocks = min(SUMS, -(-self.npix // PIXELS))
        kernels = len(spec.kernels)
        self.sums, self._own = (xp.zeros((n, self._blocks), np.float64) for n in (1, kernels))
        self._integrals = xp.asarray(np.array([float(k.window(0)[0]) for k in spec.kernels]))
        self._polar: Module | None = None
        self.nbytes = int(self.sums.nbytes + self._own.nbytes + self._integrals.nbytes)
        if spec.polar is None:
            return
        self._polar = runtime.module(PACKAGE, "polar.cu", "f32" if spec.dtype.itemsize == 4 else "f64")
        self._quarter, self._read = spec.polar.matrix.shape
        read, changed = spec.polar.pixels()
        tables: list[NDArray[Any]] = [spec.polar.matrix, *read, *changed, spec.polar.before().astype(np.int32)]
        self._matrix, *self._lists, self._before = upload(runtime, tables)
        self._change = xp.empty(2 * max(8 * self._quarter, 2 * self._read), np.float64)
        self.nbytes += sum(a.nbytes for a in tables) + int(self._change.nbytes)

    def prepare(self, x: Any, out: Any) -> None:
        """Subtract the mean of a map ([2,] npix) and correct it around the poles; ``out`` may be ``x``."""
        if not self.spin:
            self.add_up(x)
            self._share("less_mean", 1, (x, out, self.sums, np.int32(self._blocks), np.int64(self.npix)))
        elif out is not x:
            out[...] = x
        self._correct(out, transposed=False)

    def add_up(self, x: Any) -> None:
        """Compute the sum of a map, for `finish`."""
        if not self.spin:
            self._share("add_up", 1, (x, self.sums, np.int64(self.npix)))

    def finish(self, out: Any, transposed: bool) -> None:
        """Add the smoothed mean to results (K, [2,] npix); with ``transposed`` correct them around the poles first."""
        if transposed:
            for row in out:
                self._correct(row, transposed=True)
        if self.spin:
            return
        if transposed:
            self._share("add_up", len(out), (out, self._own, np.int64(self.npix)))
        own = self._own if transposed else None
        self._share(
            "add_mean", len(out),
            (out, self.sums, self._integrals, own, np.int32(self._blocks), np.int64(self.npix)),
        )  # fmt: skip

    def _share(self, kernel: str, maps: int, args: tuple[Any, ...]) -> None:
        self._maps.launch(kernel, (self._blocks, maps), (256,), args)

    def _correct(self, x: Any, transposed: bool) -> None:
        """Correct a map ([2,] npix) around the poles in place, or apply the transposed correction."""
        if self._polar is None:
            return
        kind = (np.int64(self.npix), np.int32(self.spin))
        read_at, read_turn, at, turn = self._lists
        if transposed:
            self._polar.launch(
                "backward", (self._read, 2), (THREADS,),
                (x, at, turn, self._matrix, self._before, self._change, np.int32(self._quarter), *kind),
            )  # fmt: skip
            at, turn, count = read_at, read_turn, 2 * self._read
        else:
            self._polar.launch(
                "forward", (self._quarter, 8), (THREADS,),
                (x, read_at, read_turn, self._matrix, self._change, np.int32(self._read), *kind),
            )  # fmt: skip
            count = 8 * self._quarter
        self._polar.launch(
            "add", (-(-count // THREADS),), (THREADS,), (x, at, turn, self._change, np.int32(count), *kind)
        )
