"""The summary that a search keeps: counts, a histogram, the loudest template of each band, and the best templates.

The size does not grow with the number of templates.  The order of the templates does not matter: if statistics are
equal, the lower template number comes first.  The ledger is therefore the same for any division into chunks, for any
distribution over devices, and after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.fstat.archive import ARRAY, COLUMNS, JSON, form

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["HISTOGRAM_EDGES", "Ledger", "Rows"]

HISTOGRAM_EDGES = np.arange(0.0, 1000.5, 0.5)
"""Edges of the histogram of max 2F; one more bin counts the values above the last edge."""
MOST_BANDS = 1_000_000
MOST_FAULTS = 1000
"""Most bad templates whose errors are stored."""

Rows = dict[str, Any]
"""Columns of a table, including "number" and "statistic"."""
Posteriors = dict[int, tuple[Any, Any]]
"""Posterior probabilities of the start times and of the durations, by the number of the template."""
Bands = dict[int, tuple[float, int]]
"""Loudest 2F of a band and its template, by the number of the band."""


def _pack_bands(bands: Bands) -> dict[str, Any]:
    found = sorted(bands.items())
    return {
        "band": np.array([b for b, _ in found], np.int64),
        "twoF": np.array([v for _, (v, _) in found], np.float64),
        "template": np.array([n for _, (_, n) in found], np.int64),
    }


def _unpack_bands(values: dict[str, Any]) -> Bands:
    columns = (values[name].tolist() for name in ("band", "twoF", "template"))
    return {b: (v, n) for b, v, n in zip(*columns, strict=True)}


def _pack_posteriors(posteriors: Posteriors) -> dict[str, Any]:
    values: dict[str, Any] = {"templates": np.array(list(posteriors), np.int64)}
    for n, (p_t0, p_tau) in posteriors.items():
        values |= {f"{n}/t0": p_t0, f"{n}/tau": p_tau}
    return values


def _unpack_posteriors(values: dict[str, Any]) -> Posteriors:
    return {n: (values[f"{n}/t0"], values[f"{n}/tau"]) for n in values["templates"].tolist()}


def best_first(rows: Rows) -> NDArray[np.int64]:
    """The order of rows: highest statistic first, then lowest number."""
    return np.asarray(np.lexsort((rows["number"], -rows["statistic"])))


def take(rows: Rows, which: Any) -> Rows:
    """Some of the rows."""
    return {name: column[which] for name, column in rows.items()}


def join(a: Rows, b: Rows) -> Rows:
    """The rows of both; where one lacks a column, its values are NaN or empty text."""
    if not a or not len(a["number"]):
        return b
    if not len(b["number"]):
        return a
    out = {}
    for name in [*a, *(n for n in b if n not in a)]:
        parts = [r[name] if name in r else missing(r, (a if name in a else b)[name]) for r in (a, b)]
        out[name] = np.concatenate(parts)
    return out


def missing(rows: Rows, like: NDArray[Any]) -> NDArray[Any]:
    """A column of NaN or of empty text, whichever fits `like`."""
    shape = (len(rows["number"]), *like.shape[1:])
    if like.dtype.kind in "US":
        return np.full(shape, "", like.dtype)
    return np.full(shape, np.nan)


@dataclass
class Ledger:
    """The ledger of one window.

    Attributes
    ----------
    topk : int
        Number of best templates whose rows are kept.
    threshold : float
        Smallest statistic of a template whose row is kept.
    n_posteriors : int
        Number of best templates whose posteriors are kept.
    best : Rows
        The kept rows, best first.
    posteriors : Posteriors
    histogram : numpy.ndarray of int64
        Number of templates by max 2F, between `HISTOGRAM_EDGES`; the last count is for values above the last edge.
    bands : dict of int to (float, int)
        Loudest 2F of a band and its template, by the number of the band.
    n_above : int
        Number of templates whose statistic reaches the threshold.
    n_empty : int
        Number of templates for which no cell could be computed.
    """

    topk: int = field(metadata=JSON)
    threshold: float = field(metadata=JSON, default=-np.inf)
    n_posteriors: int = field(metadata=JSON, default=0)
    best: Rows = field(metadata=COLUMNS, default_factory=dict)
    posteriors: Posteriors = field(metadata=form(_pack_posteriors, _unpack_posteriors), default_factory=dict)
    histogram: NDArray[np.int64] = field(
        metadata=ARRAY, default_factory=lambda: np.zeros(len(HISTOGRAM_EDGES), np.int64)
    )
    bands: Bands = field(metadata=form(_pack_bands, _unpack_bands), default_factory=dict)
    n_above: int = field(metadata=JSON, default=0)
    n_empty: int = field(metadata=JSON, default=0)

    def bar(self, most: int) -> float:
        """The statistic that a template must reach to be among the best `most` so far."""
        if not self.best or len(self.best["number"]) < most:
            return self.threshold
        return float(self.best["statistic"][most - 1]) if most else np.inf

    @property
    def bars(self) -> tuple[float, float]:
        """The smallest statistics for which rows and posteriors, respectively, are kept."""
        return self.bar(self.topk), self.bar(self.n_posteriors)

    def count(self, twoF: NDArray[np.float64], statistic: NDArray[np.float64]) -> None:
        """Add a chunk to the histogram and the counts."""
        good = np.isfinite(twoF)
        self.n_empty += int(np.count_nonzero(~good))
        self.n_above += int(np.count_nonzero(statistic[good] >= self.threshold))
        width = HISTOGRAM_EDGES[1] - HISTOGRAM_EDGES[0]
        at = np.clip(twoF[good] / width, 0, len(HISTOGRAM_EDGES) - 1).astype(np.int64)
        self.histogram += np.bincount(at, minlength=len(self.histogram))

    def loudest(self, band: NDArray[np.int64], twoF: NDArray[np.float64], number: NDArray[np.int64]) -> None:
        """Add a chunk to the loudest templates of the bands."""
        good = np.isfinite(twoF)
        band, twoF, number = band[good], twoF[good], number[good]
        order = np.lexsort((number, -twoF, band))
        first = order[np.concatenate([[True], np.diff(band[order]) > 0])] if order.size else order
        for b, value, n in zip(band[first].tolist(), twoF[first].tolist(), number[first].tolist(), strict=True):
            old = self.bands.get(b)
            if old is None or (value, -n) > (old[0], -old[1]):
                self.bands[b] = (value, n)
        if len(self.bands) > MOST_BANDS:
            raise ValueError(f"band_width gives more than {MOST_BANDS} bands; expected a larger width")

    def keep(self, rows: Rows, posteriors: Posteriors) -> None:
        """Add rows of a chunk (at least those that reach the bar) and the posteriors of the best of them."""
        if not rows:
            return
        if not len(rows["number"]):
            self.best = self.best or rows  # an empty table has columns too
            return
        both = join(self.best, rows)
        order = best_first(both)
        order = order[both["statistic"][order] >= self.threshold]
        self.best = take(both, order[: self.topk])
        few = {int(n) for n in self.best["number"][: self.n_posteriors]}
        self.posteriors = {n: p for n, p in (self.posteriors | posteriors).items() if n in few}


def wanted(statistic: NDArray[np.float64], number: NDArray[np.int64], bar: float, most: int) -> NDArray[np.int64]:
    """Indices of the highest statistics: at most `most`, none below `bar` and none NaN."""
    places = np.flatnonzero(statistic >= bar)
    order = np.lexsort((number[places], -statistic[places]))
    return np.asarray(places[order[:most]])
