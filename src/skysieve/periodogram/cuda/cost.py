"""A model of the costs of the methods of one sinusoid on a GPU, with default figures.  (`calibrate` measures them.)

A method's cost is the time of the whole GPU when it is full, so that the choice follows from the object alone.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .parts import DIRECT_SPAN

if TYPE_CHECKING:
    from .sinusoid.methods import NufftMethod


DIRECT_POINTS = 40
"""Points that the tables of ``ls_direct`` hold at once; tables of at most as many serve all tiles of a block."""
BESIDE = 1.2
"""Cost of direct sums beside other methods over their cost alone: a batch of different lengths has few short objects,
which do not fill the GPU.  Measured on an H100: 100 objects of 16 to 30 points among 1,000 took 150 ns each more than
by combs, although direct sums of short objects alone take 50 ns less.
"""


MOST_POINTS = 2**31 - 2


def _few_of_one(comb: float, tile: float, refilled: float, slope: float) -> int:
    """`Costs.few` of one grid; NumPy takes ten times as long for single numbers."""

    def crossing(gain: float) -> float:
        return gain / slope if slope > 0 else math.inf if gain > 0 else 0.0

    more = crossing(comb - refilled)
    return int(min(max(more if more > DIRECT_POINTS else min(crossing(comb - tile), DIRECT_POINTS), 0), MOST_POINTS))


@dataclass(frozen=True)
class Shares:
    """Relative costs, the same on any GPU.

    In units of one comb of a pair of bands, ``combs`` is the cost of one comb and ``start`` that of a pair of bands, by
    kind of method; ``extra`` is the cost of an object that direct sums do not have.  In units of one point spread in a
    pair of bands, ``points`` is the cost of one point by kind of method, and ``weigh`` that of its weights.  In units
    of a tile of direct sums, ``refill`` is the additional cost of a tile if its tables cannot hold all points.
    """

    combs: dict[str, float]
    points: dict[str, float]
    start: dict[str, float]
    extra: float
    weigh: float
    refill: float


@dataclass(frozen=True)
class Costs:
    """Nanoseconds of the whole GPU, for one precision.

    ``comb`` is the time of one comb of a pair of bands, and ``spread`` that of one point of the pair.  ``tile`` is the
    time of `DIRECT_SPAN` frequencies summed directly, and ``pair`` that of one point of the tile.
    """

    comb: float
    spread: float
    tile: float
    pair: float
    shares: Shares = field(repr=False, compare=False)

    def comb_line(self, method: NufftMethod, nf: Any) -> tuple[Any, Any]:
        """Nanoseconds of an object of ``nf`` frequencies by combs or samples: without points, and of each point."""
        pairs, s, kind = method.pairs(nf), self.shares, method.kind
        combs = nf / (2 * method.modes) if method.partly else pairs * method.combs
        base = s.extra + combs * s.combs[kind] + pairs * s.start[kind]
        return self.comb * base, self.spread * (s.weigh + pairs * s.points[kind])

    def direct_line(self, nf: Any) -> tuple[Any, Any]:
        """As `comb_line`, by direct sums of few points; a block sums all its frequencies, wanted or not."""
        tiles = -(-nf // DIRECT_SPAN)
        return self.tile * tiles, self.pair * tiles

    def few(self, method: NufftMethod, nf: Any) -> Any:
        """Largest number of points for which direct sums cost less than ``method``, also beside other methods.

        ``nf`` is a number, or an array of numbers.
        """
        (comb, spread), (tile, pair) = self.comb_line(method, nf), self.direct_line(nf)
        tile, pair = BESIDE * tile, BESIDE * pair
        slope = pair - spread
        if isinstance(nf, int):
            return _few_of_one(comb, tile, tile * (1 + self.shares.refill), slope)

        def crossing(gain: Any) -> Any:
            return np.where(slope > 0, gain / np.where(slope > 0, slope, 1.0), np.where(gain > 0, np.inf, 0.0))

        more = crossing(comb - tile * (1 + self.shares.refill))
        crossover = np.where(more > DIRECT_POINTS, more, np.minimum(crossing(comb - tile), DIRECT_POINTS))
        return np.clip(crossover, 0, MOST_POINTS).astype(np.int64)

    def measured(self, figures: dict[str, float]) -> Costs:
        """The same shares with measured figures."""
        return Costs(**figures, shares=self.shares)

    def as_dict(self) -> dict[str, float]:
        """The figures that are measured."""
        return {name: value for name, value in asdict(self).items() if name != "shares"}


_F64 = Shares(
    combs={"flat": 1.0, "x2": 1.35, "x4": 3.7, "columns": 1.4, "ls_fine": 0.62, "ls_powers": 0.55},
    points={"flat": 1.0, "x2": 1.4, "x4": 2.0, "columns": 4.0, "ls_fine": 13.0, "ls_powers": 0.38},
    start={"flat": 3.2, "x2": 3.2, "x4": 3.2, "columns": 11.0, "ls_fine": 10.0, "ls_powers": 2.1},
    extra=1.0,
    weigh=1.4,
    refill=0.9,
)
_F32 = Shares(
    combs={"flat": 1.0, "x2": 1.3, "x4": 2.3, "columns": 1.55, "ls_powers": 0.575},
    points={"flat": 1.0, "x2": 1.7, "x4": 1.5, "columns": 2.0, "ls_powers": 0.85},
    start={"flat": 1.3, "x2": 1.3, "x4": 1.3, "columns": 0.0, "ls_powers": 1.5},
    extra=2.7,
    weigh=3.5,
    refill=0.9,
)
DEFAULTS = {
    np.dtype(np.float64): Costs(comb=4.2, spread=0.1, tile=12.7, pair=0.486, shares=_F64),
    np.dtype(np.float32): Costs(comb=3.3, spread=0.044, tile=12.6, pair=0.486, shares=_F32),
}
"""An H100's: combs fitted to the times of 650 random sizes, direct sums to 1,000 objects of 16 to 32 points.

Other cards keep the ratios roughly.
"""
