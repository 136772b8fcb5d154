"""Which method serves an object faster on this GPU: a model of two lines, with defaults and a short calibration."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from skysieve.periodogram.cuda_tables import Layout


@dataclass(frozen=True)
class Costs:
    """Nanoseconds of the whole GPU, for one precision.

    ``comb`` for one comb of a band pair, ``spread`` for one point of a band pair, ``pair`` for one point and
    frequency summed directly, ``direct`` for one frequency whatever the number of points.
    """

    comb: float = 5.1
    spread: float = 0.095
    pair: float = 4.2e-4
    direct: float = 5.0e-3

    def comb_time(self, layout: Layout, points: float) -> float:
        """Nanoseconds of one object by the comb."""
        return layout.pairs * (layout.combs * self.comb + points * self.spread * layout.blocks)

    def direct_time(self, nf: float, points: float) -> float:
        """Nanoseconds of one object by direct sums."""
        return nf * (self.direct + points * self.pair)

    def crossover(self, layout: Layout, nf: int) -> float:
        """Objects of at most this many points cost less summed directly."""
        slope = nf * self.pair - layout.pairs * self.spread * layout.blocks
        if slope <= 0:
            return 0.0
        return max(0.0, (layout.pairs * layout.combs * self.comb - nf * self.direct) / slope)

    def few(self, layout: Layout, nf: int, lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which objects to sum directly: where it costs less, and the few points whose comb would be less exact."""
        short: NDArray[np.bool_] = lengths <= max(self.crossover(layout, nf), ACCURATE_POINTS)
        return short

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


ACCURATE_POINTS = 30
"""Errors grow as 1 / (CC SS - CS^2), small for few points: direct sums keep them under 1e-9, at no more time."""
DEFAULTS = {
    np.dtype(np.float64): Costs(),
    np.dtype(np.float32): Costs(comb=2.9, spread=0.055, pair=6.0e-4, direct=4.0e-3),
}
"""An H100's; other cards keep the ratios roughly."""
