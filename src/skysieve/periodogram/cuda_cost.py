"""Which method serves an object faster on this GPU: a model of two lines, with defaults and a short calibration."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


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

    def comb_time(self, combs: Any, pairs: Any, points: float) -> Any:
        """Nanoseconds of one object by ``pairs`` of bands of ``combs`` combs."""
        return pairs * (combs * self.comb + points * self.spread)

    def direct_time(self, nf: float, points: float) -> float:
        """Nanoseconds of one object by direct sums."""
        return nf * (self.direct + points * self.pair)

    def few(self, combs: Any, pairs: Any, nf: NDArray[np.int64]) -> NDArray[np.int64]:
        """Most points of an object that is summed directly because that costs less."""
        slope = nf * self.pair - pairs * self.spread
        gain = pairs * combs * self.comb - nf * self.direct
        crossover = np.where(slope > 0, gain / np.where(slope > 0, slope, 1.0), 0.0)
        most: NDArray[np.int64] = np.clip(crossover, 0, 2**31 - 2).astype(np.int64)
        return most

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


DEFAULTS = {
    np.dtype(np.float64): Costs(),
    np.dtype(np.float32): Costs(comb=2.9, spread=0.055, pair=6.0e-4, direct=4.0e-3),
}
"""An H100's; other cards keep the ratios roughly."""
