"""Reference F-statistic maps for tests: each cell is summed by itself, in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from skysieve.fstat.inputs.bins import Bins
from skysieve.fstat.inputs.grid import Grid
from skysieve.fstat.inputs.windows import Window

if TYPE_CHECKING:
    from numpy.typing import NDArray


def cell(bins: Bins, t0: int, tau: int, window: Window) -> tuple[float, float]:
    """``(F, condition number)`` of one cell.

    Both are NaN where the window holds fewer than two bins.  F is 2 where the condition number is above 1e4.
    """
    width, half = bins.tatom, bins.tatom // 2
    reach = tau if window.kind in ("rect", "none") else int(np.floor(window.efold * tau + 0.5))
    i0 = (t0 - bins.t_start + half) // width
    i1 = (t0 + reach - bins.t_start + half) // width - 1
    if i1 - i0 < 1 or i0 > bins.n - 2:
        return np.nan, np.nan
    i = np.arange(max(i0, 0), min(i1, bins.n - 1) + 1)
    since = bins.t_start + i * width - t0
    if window.kind not in ("rect", "none"):
        i, since = i[since >= 0], since[since >= 0]
    w = window.weights(since / tau)
    x = bins.x[:, i].astype(np.float64)
    a, b, c = (x[:3] * w**2).sum(axis=1)
    ar, ai, br, bi = (x[3:] * w).sum(axis=1)
    s, d = a + b, np.sqrt((a - b) ** 2 + 4 * c**2)
    condition = (s + d) / (s - d) if s - d > 0 else np.inf
    if condition > 1e4:
        return 2.0, condition
    return (b * (ar**2 + ai**2) + a * (br**2 + bi**2) - 2 * c * (ar * br + ai * bi)) / (a * b - c**2), condition


def reaches_data(bins: Bins, t0: int, longest: int, window: Window) -> bool:
    """Whether a window of length `longest` starts after the beginning of the data, or lasts to the end of two bins."""
    reach = longest if window.kind in ("rect", "none") else int(np.floor(window.efold * longest + 0.5))
    return t0 > bins.t_start or (t0 + reach - bins.t_start + bins.tatom // 2) // bins.tatom >= 2


@dataclass(frozen=True)
class Truth:
    """A map of F and its condition numbers, with the statistics that follow from F."""

    F: NDArray[np.float64]
    condition: NDArray[np.float64]

    @property
    def max_F(self) -> float:
        return float(np.nanmax(self.F))

    @property
    def index(self) -> int:
        return int(np.nanargmax(self.F))

    @property
    def weights(self) -> NDArray[np.float64]:
        """Posterior of every cell under a flat prior."""
        w = np.nan_to_num(np.exp(self.F - self.max_F), nan=0.0)
        return w / w.sum()

    @property
    def ln_bayes(self) -> float:
        """ln B of a transient signal against noise."""
        cells = int(np.isfinite(self.F).sum())
        return float(np.log(70 / cells) + self.max_F + np.log(np.nansum(np.exp(self.F - self.max_F))))


def transient_map(bins: Bins, grid: Grid, window: Window) -> Truth:
    """F of every cell of a grid; NaN for start times so long before the data that no window holds two bins."""
    pairs = [
        [cell(bins, int(t0), int(tau), window) for tau in grid.taus]
        if reaches_data(bins, int(t0), int(grid.taus[-1]), window)
        else [(np.nan, np.nan)] * grid.taus.size
        for t0 in grid.t0s
    ]
    values = np.array(pairs, dtype=np.float64)
    return Truth(values[..., 0], values[..., 1])
