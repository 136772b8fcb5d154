"""Sums over rings with a kernel that is a factor of two rings times a factor of each ring and mode.

This holds for narrow Gaussians away from the poles; see `split_from` and ``ring/split.cu``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.sphere.cuda import PACKAGE
from skysieve.sphere.cuda.direct.profile import gaussian

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.core.gpu.runtime import Module, Runtime
    from skysieve.sphere.contract import Spec
    from skysieve.sphere.kernels.radial import Radial

TALL, BLOCK, AHEAD = 32, 128, 6
"""Constants of ``ring/split.cu``: output rows of a tile, threads of a block, rings that are loaded ahead."""
MOST_RINGS = 256
"""Most rings of a tile; shared memory holds no more."""
SPLIT_PART, GAUSSIAN_PART = 0.5, 0.25
"""Shares of ``eps`` that the two approximations may take as rms error: the factors, and a Gaussian for the kernel."""
TOP = 2.4
"""Highest mode over z = sin^2 / sigma^2 of its ring: factors fall up to sqrt(6) z, and grow without limit above."""


def split_module(runtime: Runtime) -> Module:
    """The compiled kernels."""
    return runtime.module(PACKAGE, "ring/split.cu", "f32")


def split_from(spec: Spec, radial: Radial) -> tuple[float, float, float]:
    """Colatitude from which rows use factors of rings and modes, and 1 / sigma^2 and amplitude of the Gaussian.

    For other kernels the result is pi / 2 and zeros.  The error of the factors is 3/16 (sigma cot theta)^2 of the
    kernel's rms: ``ln k_m`` of two rings is the mean of the values of each ring, except for its curvature, half of
    ``-m^2 sigma^2 / (sin sin)`` times the square of half the difference of their ``ln sin``.
    """
    if spec.dtype.itemsize != 4 or spec.spin or not spec.table.symmetric:
        return math.pi / 2, 0.0, 0.0
    inverse, amplitude = gaussian(radial, GAUSSIAN_PART * spec.eps)
    if not inverse:
        return math.pi / 2, 0.0, 0.0
    return math.atan(math.sqrt(3 / 16 / (inverse * SPLIT_PART * spec.eps))), inverse, amplitude


def first_split(spec: Spec, angle: float, inverse: float, tiles: NDArray[Any]) -> int:
    """The first tile from which on all tiles can use factors.

    Parameters
    ----------
    angle, inverse : float
        See `split_from`.
    tiles : numpy.ndarray of `sums.TILE`
    """
    theta = spec.table.theta
    z = inverse * np.sin(theta[tiles["i0"]]) ** 2
    bad = (theta[tiles["o0"]] < angle) | (tiles["i1"] - tiles["i0"] > MOST_RINGS)
    bad |= tiles["most"] > TOP * z  # a narrower kernel has more modes
    at = np.flatnonzero(bad)
    return int(at[-1]) + 1 if at.size else 0


class Split:
    """Some tiles of one kernel: factors of pairs of rings and rows, and of each ring."""

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
        """See `Sums.run`; ``shape`` holds the numbers of rows and rings."""
        first, last = tiles
        blocks = int(self.tops[first:last].max()) // BLOCK + 1
        self.module.launch(
            "band", (blocks, last - first), (BLOCK,),
            (modes, place, top, self.tiles, self.held, self.counts, sums, *(np.int64(v) for v in starts),
             *(np.int32(v) for v in (first, *shape)), self.widths), shared_mem=self.shared,
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of the tables."""
        return int(self.tiles.nbytes + self.held.nbytes + self.counts.nbytes + self.widths.nbytes)
