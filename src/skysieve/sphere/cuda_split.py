"""Sums over rings where the kernel is a factor of two rings times factors of each ring and mode; see ``sp_split.cu``.

That holds for narrow Gaussians, away from the poles; see `cuda_plan.split_from`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .cuda_direct import PACKAGE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.core.kernels import Module, Runtime

    from .radial import Radial
    from .workload import Spec

TALL, BLOCK, AHEAD = 32, 128, 6
"""Of ``sp_split.cu``."""
MOST_RINGS = 256
"""Of a tile: what shared memory holds."""


def split_module(runtime: Runtime) -> Module:
    """The kernels."""
    return runtime.module(PACKAGE, "sp_split.cu", "f32")


def first_split(spec: Spec, angle: float, begin: NDArray[np.int64], rings: NDArray[np.int64]) -> int:
    """The first of the tiles, with rows from ``begin`` on and ``rings`` rings, from which on all go by factors.

    Parameters
    ----------
    angle : float
        See `cuda_plan.split_from`.
    """
    bad = np.flatnonzero((spec.table.theta[begin] < angle) | (rings > MOST_RINGS))
    return int(bad[-1]) + 1 if bad.size else 0


class Split:
    """Tiles ``tiles`` of one kernel: what rings and rows have in common, and each ring's factors."""

    def __init__(
        self, runtime: Runtime, spec: Spec, radial: Radial, tiles: NDArray[Any], inverse: float, amplitude: float
    ) -> None:
        xp, theta = runtime.xp, spec.table.theta
        self.module = split_module(runtime)
        tiles = tiles.copy()
        many = (tiles["i1"] - tiles["i0"]).astype(np.int64)
        tiles["place"] = np.concatenate([[0], np.cumsum(many * TALL)[:-1]])
        tiles["counts"] = np.concatenate([[0], np.cumsum(many)[:-1]])
        self.tops = tiles["most"]
        self.shared = int(many.max()) * (4 * TALL + 24) + AHEAD * 16 * BLOCK
        self.tiles = xp.asarray(tiles.view(np.uint8))
        self.held = xp.empty(int(many.sum()) * TALL, np.float32)
        self.counts = xp.zeros(int(many.sum()), np.int32)
        z, e = inverse * np.maximum(np.sin(theta), 1e-3) ** 2, math.log2(math.e)  # rings at the poles are not met
        widths = np.stack([e / (4 * z) * (1 + 1 / (2 * z)), e / (48 * z**3)], axis=1)
        self.widths = xp.asarray(widths.astype(np.float32))
        self.module.launch(
            "samples", (len(tiles),), (128,),
            (xp.asarray(theta), self.tiles, self.held, self.counts, np.float64(radial.xmax), np.float64(inverse),
             np.float64(amplitude)),
        )  # fmt: skip

    def run(
        self, modes: Any, sums: Any, place: Any, top: Any, starts: tuple[int, int], shape: tuple[int, int],
        tiles: tuple[int, int],
    ) -> None:  # fmt: skip
        """See `Sums.run`; ``shape``: rows and rings."""
        first, last = tiles
        blocks = int(self.tops[first:last].max()) // BLOCK + 1
        self.module.launch(
            "band", (blocks, last - first), (BLOCK,),
            (modes, place, top, self.tiles, self.held, self.counts, sums, *(np.int64(v) for v in starts),
             *(np.int32(v) for v in (first, *shape)), self.widths), shared_mem=self.shared,
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return int(self.tiles.nbytes + self.held.nbytes + self.counts.nbytes + self.widths.nbytes)
