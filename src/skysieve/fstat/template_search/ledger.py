"""What a search keeps of the templates it has seen: counts, a histogram, the loudest of each band, the best of all.

Its size does not grow with the templates.  Order does not matter: equal statistics are told apart by the template's
number, so that templates in other chunks, on other devices or after a restart leave the same ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["HISTOGRAM_EDGES", "Ledger", "Rows"]

HISTOGRAM_EDGES = np.arange(0.0, 1000.5, 0.5)
"""Of max 2F; what is above the last edge is counted apart."""
MOST_BANDS = 1_000_000
MOST_FAULTS = 1000
"""Faults whose text is kept."""

Rows = dict[str, Any]
"""Columns of a table; "number" and "statistic" among them."""
Posteriors = dict[int, tuple[Any, Any]]
"""Number of a template to the posterior probabilities of its start times and its durations."""


def best_first(rows: Rows) -> NDArray[np.int64]:
    """Order of rows: highest statistic first, then lowest number."""
    return np.asarray(np.lexsort((rows["number"], -rows["statistic"])))


def take(rows: Rows, which: Any) -> Rows:
    """Some of the rows."""
    return {name: column[which] for name, column in rows.items()}


def join(a: Rows, b: Rows) -> Rows:
    """Rows of both; a column that one lacks is NaN (or empty) there."""
    if not a:
        return b
    out = {}
    for name in [*a, *(n for n in b if n not in a)]:
        parts = [r[name] if name in r else missing(r, (a if name in a else b)[name]) for r in (a, b)]
        out[name] = np.concatenate(parts)
    return out


def missing(rows: Rows, like: NDArray[Any]) -> NDArray[Any]:
    """A column of nothing, of the kind of another."""
    shape = (len(rows["number"]), *like.shape[1:])
    if like.dtype.kind in "US":
        return np.full(shape, "", like.dtype)
    return np.full(shape, np.nan)


@dataclass
class Ledger:
    """Of one window.

    Attributes
    ----------
    topk : int
        Rows that are kept.
    threshold : float
        Statistic from which they are.
    n_posteriors : int
        Of how many of the best the posteriors are kept.
    best : Rows
        The kept rows, best first.
    posteriors : Posteriors
    histogram : numpy.ndarray of int64
        Templates by max 2F, between `HISTOGRAM_EDGES`; the last count is what lies above.
    bands : dict of int to (float, int)
        Number of a band to the loudest 2F in it and its template.
    n_above : int
        Templates whose statistic reaches the threshold.
    n_empty : int
        Templates without any cell that could be computed.
    """

    topk: int
    threshold: float = -np.inf
    n_posteriors: int = 0
    best: Rows = field(default_factory=dict)
    posteriors: Posteriors = field(default_factory=dict)
    histogram: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(HISTOGRAM_EDGES), np.int64))
    bands: dict[int, tuple[float, int]] = field(default_factory=dict)
    n_above: int = 0
    n_empty: int = 0

    def bar(self, most: int) -> float:
        """Statistic that a template must reach to be among the best `most` now."""
        if not self.best or len(self.best["number"]) < most:
            return self.threshold
        return float(self.best["statistic"][most - 1]) if most else np.inf

    @property
    def bars(self) -> tuple[float, float]:
        """For a row to be kept, and for its posteriors."""
        return self.bar(self.topk), self.bar(self.n_posteriors)

    def count(self, twoF: NDArray[np.float64], statistic: NDArray[np.float64]) -> None:
        """Histogram and counts of a chunk."""
        good = np.isfinite(twoF)
        self.n_empty += int(np.count_nonzero(~good))
        self.n_above += int(np.count_nonzero(statistic[good] >= self.threshold))
        width = HISTOGRAM_EDGES[1] - HISTOGRAM_EDGES[0]
        at = np.clip(twoF[good] / width, 0, len(HISTOGRAM_EDGES) - 1).astype(np.int64)
        self.histogram += np.bincount(at, minlength=len(self.histogram))

    def loudest(self, band: NDArray[np.int64], twoF: NDArray[np.float64], number: NDArray[np.int64]) -> None:
        """Loudest of the bands of a chunk."""
        good = np.isfinite(twoF)
        band, twoF, number = band[good], twoF[good], number[good]
        order = np.lexsort((number, -twoF, band))
        first = order[np.concatenate([[True], np.diff(band[order]) > 0])] if order.size else order
        for b, value, n in zip(band[first].tolist(), twoF[first].tolist(), number[first].tolist(), strict=True):
            old = self.bands.get(b)
            if old is None or (value, -n) > (old[0], -old[1]):
                self.bands[b] = (value, n)
        if len(self.bands) > MOST_BANDS:
            raise ValueError(f"band_width makes more than {MOST_BANDS} bands: take a wider one")

    def keep(self, rows: Rows, posteriors: Posteriors) -> None:
        """Rows of a chunk, those above the bar at least, and posteriors of the best of them."""
        if not rows or not len(rows["number"]):
            return
        both = join(self.best, rows)
        order = best_first(both)
        order = order[both["statistic"][order] >= self.threshold]
        self.best = take(both, order[: self.topk])
        few = {int(n) for n in self.best["number"][: self.n_posteriors]}
        self.posteriors = {n: p for n, p in (self.posteriors | posteriors).items() if n in few}


def wanted(statistic: NDArray[np.float64], number: NDArray[np.int64], bar: float, most: int) -> NDArray[np.int64]:
    """Places of the highest statistics, at most `most`, none below `bar` and none NaN."""
    places = np.flatnonzero(statistic >= bar)
    order = np.lexsort((number[places], -statistic[places]))
    return np.asarray(places[order[:most]])
