"""Sums over rings on a GPU, for each mode: tiles of output rows and the kernel's samples.

``ring/tensor.cu`` computes them in float32 for I on GPUs with tensor cores, ``ring/band.cu`` in all other cases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.gpu.structs import ints
from skysieve.sphere.cuda import PACKAGE
from skysieve.sphere.cuda.direct.zones import widest
from skysieve.sphere.ring_pairs import reach

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.core.gpu.runtime import Module, Runtime
    from skysieve.sphere.contract import Spec
    from skysieve.sphere.kernels.radial import Radial

TILE = np.dtype(
    [("place", "i8"), ("counts", "i8"), ("o0", "i4"), ("rows", "i4"), ("i0", "i4"), ("i1", "i4"), ("nphi", "i4"),
     ("terms", "i4"), ("most", "i4"), ("spare", "i4")], align=True,
)  # fmt: skip
PIECES = 32 * 16
"""Bytes of the samples of eight rows at sixteen azimuths, of ``ring/tensor.cu``."""
MOST_ROWS = 65535


@dataclass(frozen=True)
class SumBuild:
    """A build: output rows of a tile, terms at a time, threads of a block, and modes of a block."""

    file: str
    name: str
    tall: int
    terms: int
    block: int
    modes: int


def sum_build(runtime: Runtime, spec: Spec) -> SumBuild:
    """The build that a `Spec` uses."""
    single = spec.dtype.itemsize == 4
    if single and not spec.spin and runtime.device.compute_capability >= (8, 0):
        return SumBuild("ring/tensor.cu", "f32", 32, 16, 256, 128)
    build = ("f32" if single else "f64") + ("_spin" if spec.spin else "")
    return SumBuild("ring/band.cu", build, 8, 2, 128, 256 if build == "f32" else 128)


def band_module(runtime: Runtime, spec: Spec) -> Module:
    """The compiled kernels of this build."""
    build = sum_build(runtime, spec)
    return runtime.module(PACKAGE, build.file, build.name)


class Sums:
    """The tiles and samples of one radial kernel.

    Parameters
    ----------
    rows : int
        Output rows; all other rings are mirror images.
    most : numpy.ndarray of int64
        Highest mode of each ring.
    """

    def __init__(self, runtime: Runtime, spec: Spec, radial: Radial, rows: int, most: NDArray[np.int64], theta: Any):
        xp, t, item = runtime.xp, spec.table, spec.dtype.itemsize
        self.build = build = sum_build(runtime, spec)
        self.tensor = build.file == "ring/tensor.cu"
        waves, tall = 2 if spec.spin else 1, build.tall
        first, last = reach(t.theta, radial.radius)
        begin = np.arange(0, rows, tall)
        tiles = np.zeros(len(begin), TILE)
        end = np.minimum(begin + tall, rows)
        tiles["o0"], tiles["rows"] = begin, end - begin
        tiles["i0"], tiles["i1"] = first[begin], last[end - 1]
        tiles["most"] = np.maximum.reduceat(most[:rows], begin)
        tiles["nphi"] = 2 * tiles["most"] + 2
        reached = np.maximum.reduceat(widest(t, radial)[:rows], begin)
        terms = np.floor(reached * tiles["nphi"] / (2 * math.pi) + 1e-6).astype(np.int64) + 2
        terms = np.minimum(terms, tiles["nphi"] // 2 + 1)
        tiles["terms"] = -(-terms // build.terms) * build.terms
        many = (tiles["i1"] - tiles["i0"]).astype(np.int64)
        size = many * tiles["terms"] * (tall * waves if not self.tensor else PIECES * tall // 8 // 16)
        unit = 16 if self.tensor else 1  # elements that `place` counts
        tiles["place"] = np.concatenate([[0], np.cumsum(size // unit)[:-1]])
        tiles["counts"] = np.concatenate([[0], np.cumsum(many)[:-1]])
        self.count = len(tiles)
        self.low, self.high, self.tops = tiles["i0"].copy(), tiles["i1"].copy(), tiles["most"].copy()
        used = np.minimum(many, np.maximum(last - first, 1)[begin] + 8)
        self.terms: NDArray[np.float64] = (
            used * tall * (self.tops // build.modes + 1.0) * build.modes * (4 + waves * tiles["terms"] / 2)
        )
        self.module = band_module(runtime, spec)
        self.tiles = xp.asarray(tiles.view(np.uint8))
        self.held = xp.empty(int(size.sum()) if self.tensor else int(size.sum()) * item, np.uint8)
        self.counts = xp.zeros(int(many.sum()), np.int32)
        self.peak = float(radial.peak)
        floor = 0.0 if radial.positive else -1e300
        rings = int(many.max(initial=0))
        for a in range(0, rings, MOST_ROWS):
            self.module.launch(
                "samples", (len(begin), min(MOST_ROWS, rings - a)), (128,),
                (theta, xp.asarray(radial.cells), self.tiles, self.held, self.counts, np.float64(radial.xmax),
                 np.float64(floor), *((np.float64(self.peak),) if self.tensor else ()), np.int32(len(radial.cells)),
                 np.int32(a)),
            )  # fmt: skip

    def run(
        self, modes: Any, sums: Any, place: Any, top: Any, starts: tuple[int, int], sizes: tuple[int, int],
        shape: tuple[int, int, int], tiles: tuple[int, int],
    ) -> None:  # fmt: skip
        """Compute the sums of tiles ``tiles[0]`` .. ``tiles[1] - 1``.

        Parameters
        ----------
        place, top : device arrays
            Index of the first mode of each row, and its highest mode.
        starts, sizes : tuple of int
            Index of the first element, and number of elements of a part, of ``modes`` and of ``sums``.
        shape : tuple of int
            Rows, rings and parts.
        """
        a, b = tiles
        blocks = int(self.tops[a:b].max()) // self.build.modes + 1
        peak = (np.float32(self.peak),) if self.tensor else ()
        self.module.launch(
            "band", (blocks, b - a), (self.build.block,),
            (modes, place, top, self.tiles, self.held, self.counts, sums, *(np.int64(v) for v in (*starts, *sizes)),
             *ints(a, *shape), *peak),
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of the tables."""
        return int(self.tiles.nbytes + self.held.nbytes + self.counts.nbytes)
