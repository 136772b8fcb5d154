"""Arrays that the numba kernels pass around, in named groups, and the scratch space of one thread."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skysieve.periodogram.numerics.nufft import TAPS, CombTables, M

from .comb_simd import GROUP, LANES, STEP
from .direct import BLOCK, COARSE, FINE_VECTORS, SUPER_BLOCK

ROW = TAPS + LANES
"""Elements of a point's row of kernel weights: room for the taps at any position of the first in a vector."""


class Curves(NamedTuple):
    """Prepared light curves of a chunk; object ``i`` owns ``n_used[i]`` rows from ``start[i]`` on."""

    t: Any
    w: Any
    wy: Any
    start: Any
    n_used: Any
    span: Any
    scale: Any


class Frequencies(NamedTuple):
    """``Grids`` for numba: ``values`` is empty for regular grids; ``shared`` is 0 or 1."""

    f0: Any
    df: Any
    nf: Any
    values: Any
    shared: int


class Answers(NamedTuple):
    """``Output`` for numba: ``power`` is empty without powers; rows are the objects of the chunk."""

    power: Any
    power_start: Any
    index: Any
    frequency: Any
    peak_power: Any
    curvature: Any

    def peaks_alone(self) -> Answers:
        """The answers without powers, so that the refinement of peaks is compiled once for float64 and float32."""
        return self._replace(power=np.empty(0))


class Constants(NamedTuple):
    """``CombTables`` for numba."""

    first: Any
    second: Any
    fold: Any
    deconvolve: Any
    taps: Any

    @classmethod
    def of(cls, t: CombTables) -> Constants:
        return cls(t.first, t.second, t.fold, t.deconvolve, t.taps)


class Work(NamedTuple):
    """Scratch of one thread."""

    # phases and strengths of the points
    c: Any
    s: Any
    shifted: Any
    cell1: Any
    cell2: Any
    weight1: Any
    weight2: Any
    values: Any
    # comb
    cells: Any
    scratch: Any
    x: Any
    worst: Any
    # direct sums
    left: Any
    right: Any
    acc: Any
    ones: Any
    small: Any
    # results of one stretch of frequencies
    block: Any


def comb_work(dtype: np.dtype[Any], points: int, folds2: int, block: int, old: Work | None) -> Work:
    """Scratch for the comb; ``old`` is returned if it is large enough."""
    cells = 6 * (M * folds2 + ROW)
    if old is not None and len(old.c) >= points and len(old.cells) >= cells and len(old.block) >= block:
        return old
    if old is not None:
        points, cells, block = max(points, len(old.c)), max(cells, len(old.cells)), max(block, len(old.block))
    return _work(dtype, points, points, cells, 4 * GROUP, 1, block)


def bytes_of_row(dtype: np.dtype[Any], comb: bool) -> int:
    """Bytes of scratch that a thread needs for each row of a light curve, for the comb or for direct sums."""
    return 16 + (24 + (2 * ROW + 6) * dtype.itemsize if comb else 0)


def direct_work(dtype: np.dtype[Any], points: int, block: int, old: Work | None) -> Work:
    """Scratch for direct sums and for exact powers."""
    points = max(points, SUPER_BLOCK)
    if old is not None and len(old.c) >= points and len(old.block) >= block:
        return old
    return _work(dtype, points, 1, 1, 1, SUPER_BLOCK * FINE_VECTORS * 4 * LANES, block)


def _work(
    dtype: np.dtype[Any], points: int, comb_points: int, cells: int, scratch: int, right: int, block: int
) -> Work:
    n = comb_points
    return Work(
        c=np.empty(points), s=np.empty(points), shifted=np.empty(n),
        cell1=np.empty(n, np.int64), cell2=np.empty(n, np.int64),
        weight1=np.empty(n * ROW, dtype), weight2=np.empty(n * ROW, dtype), values=np.empty((6, n), dtype),
        cells=np.empty(cells, dtype), scratch=np.empty(scratch, dtype), x=np.empty(3 * STEP, dtype),
        worst=np.empty(LANES, dtype), left=np.empty(6 * BLOCK, dtype), right=np.empty(right, dtype),
        acc=np.empty(COARSE * FINE_VECTORS * 12 * LANES if right > 1 else 1, dtype), ones=np.ones(LANES, dtype),
        small=np.empty(2 * LANES, dtype), block=np.empty(block, dtype),
    )  # fmt: skip
