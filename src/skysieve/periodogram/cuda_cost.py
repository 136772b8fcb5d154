"""Which method serves an object faster on this GPU: a model of two lines, with defaults and a short calibration.

A method's time is that of the whole GPU when it is full, so that the choice follows from the object alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skysieve.periodogram.cuda_parts import DIRECT_SPAN

if TYPE_CHECKING:
    from skysieve.periodogram.cuda_tables import Layout


@dataclass(frozen=True)
class Shares:
    """What goes with one comb of a pair of bands, or with one point spread there, on any GPU.

    In combs: ``combs`` one comb of each kind of layout, ``start`` a pair of bands, ``extra`` what an object takes more
    than by direct sums.  In points: ``points`` one point of each kind of layout, ``weigh`` the weights of one.
    """

    combs: dict[str, float]
    points: dict[str, float]
    start: dict[str, float]
    extra: float
    weigh: float


@dataclass(frozen=True)
class Costs:
    """Nanoseconds of the whole GPU, for one precision.

    ``comb`` for one comb of a pair of bands, ``spread`` for one point of it; ``tile`` for `DIRECT_SPAN` frequencies
    summed directly, ``pair`` for one point of those.
    """

    comb: float
    spread: float
    tile: float
    pair: float
    shares: Shares = field(repr=False, compare=False)

    def comb_line(self, layout: Layout, nf: Any) -> tuple[Any, Any]:
        """Nanoseconds of an object by combs: without points, and of each point."""
        pairs, s = np.ceil(nf / layout.span), self.shares
        each = layout.combs * s.combs[layout.kind] + s.start[layout.kind]
        return self.comb * (s.extra + pairs * each), self.spread * (s.weigh + pairs * s.points[layout.kind])

    def direct_line(self, nf: Any) -> tuple[Any, Any]:
        """The same by direct sums: a block sums all its frequencies, wanted or not."""
        tiles = np.ceil(nf / DIRECT_SPAN)
        return self.tile * tiles, self.pair * tiles

    def few(self, layout: Layout, nf: NDArray[np.int64]) -> NDArray[np.int64]:
        """Most points of an object that is summed directly because that costs less."""
        (comb, spread), (tile, pair) = self.comb_line(layout, nf), self.direct_line(nf)
        gain, slope = comb - tile, pair - spread
        crossover = np.where(slope > 0, gain / np.where(slope > 0, slope, 1.0), np.where(gain > 0, np.inf, 0.0))
        most: NDArray[np.int64] = np.clip(crossover, 0, 2**31 - 2).astype(np.int64)
        return most

    def measured(self, figures: dict[str, float]) -> Costs:
        """The same shares with measured figures."""
        return Costs(**figures, shares=self.shares)

    def as_dict(self) -> dict[str, float]:
        """The figures that are measured."""
        return {name: value for name, value in asdict(self).items() if name != "shares"}


_F64 = Shares(
    combs={"flat": 1.0, "x2": 1.64, "x4": 4.4, "ls_fine": 0.48},
    points={"flat": 1.0, "x2": 1.0, "x4": 1.0, "ls_fine": 2.0},
    start={"flat": 2.9, "x2": 2.9, "x4": 2.9, "ls_fine": 10.0},
    extra=1.9,
    weigh=0.9,
)
_F32 = Shares(
    combs={"flat": 1.0, "x2": 1.36, "x4": 2.4, "columns": 1.54},
    points={"flat": 1.0, "x2": 1.0, "x4": 1.0, "columns": 1.4},
    start={"flat": 1.15, "x2": 1.15, "x4": 1.15, "columns": 0.0},
    extra=6.5,
    weigh=0.7,
)
DEFAULTS = {
    np.dtype(np.float64): Costs(comb=4.0, spread=0.128, tile=15.6, pair=0.76, shares=_F64),
    np.dtype(np.float32): Costs(comb=3.1, spread=0.072, tile=15.5, pair=0.96, shares=_F32),
}
"""An H100's, fitted to the times of 200 random sizes; other cards keep the ratios roughly."""
