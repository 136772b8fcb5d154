"""`Completeness`, the result of an injection campaign: a row for each pulse, false candidates, rates with intervals."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from skysieve.core.checks import one_of
from skysieve.core.result import Result
from skysieve.dedispersion.result import load_fields, save_fields

if TYPE_CHECKING:
    from astropy.table import Table
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["TRIALS", "Completeness"]

TRIALS = np.dtype([
    ("snr", "f8"), ("dm", "f8"), ("time", "f8"), ("width", "f8"), ("effective_width", "f8"), ("scatter", "f8"),
    ("index", "f8"), ("band_low", "f8"), ("band_high", "f8"), ("left", "f8"), ("snr_left", "f8"), ("clipped", "f8"),
    ("snr_known", "f8"), ("snr_near", "f8"), ("found", "?"), ("snr_found", "f8"), ("snr_window", "f8"),
    ("dm_error", "f8"),
    ("time_error", "f8"), ("width_found", "f8"), ("candidates", "i8"),
])  # fmt: skip
"""Columns of the table of pulses.

- ``snr``: S/N of the ideal boxcar in the channels that are searched.
- ``left``: fraction of the samples of the ideal boxcar, in these channels, that interference, masks and gaps leave;
  ``snr_left``: ideal S/N in these samples.
- ``clipped``: fraction of the counts that exceed the range of the samples.
- ``snr_known``: S/N in a detector that knows DM, time and width.  In data, its noise is the scatter of such windows
  around the pulse, if that is significantly larger than the scatter of independent samples.
- ``snr_near``: highest S/N, in the same noise, at the DMs, times and widths of the search that count as this pulse (NaN
  in data and with interference).
- ``snr_window``: S/N in the window given by DM, time and width of the candidate, in the samples before any cleaning
  (`window_snr`; NaN if ``prepare`` changes the samples, or masks channels for a part of the time).
- ``candidates``: number of candidates of the pulse and within its reach.

Values of pulses that were not found are NaN.
"""
LEAST_LEFT = 0.8
"""Pulses with a smaller fraction of samples left do not count in the recall."""
BINS = 8
"""Number of bins of a quantity that has many values."""
UNITS = {"dm": "pc / cm3", "time": "s", "width": "s", "effective_width": "s", "scatter": "s", "dm_error": "pc / cm3",
         "time_error": "s", "width_found": "s"}  # fmt: skip
CONFIDENCE = 0.95
CLIPPED = 0.05
"""Pulses that lose a larger fraction of their counts are reported as saturated."""
NAMES = {"snr": "S/N", "dm": "DM"}


@dataclass(frozen=True, repr=False, eq=False)
class Completeness(Result):
    """The result of `completeness`.

    Attributes
    ----------
    trials : structured array
        A row for each pulse, with the fields of `TRIALS`.
    false : structured array
        ``snr``, ``dm`` and ``time`` of the candidates that belong to no pulse.
    hours : float
        Hours of data in which a candidate would have counted as false.
    threshold : float
        S/N of the search.
    receiver : str
        Number of channels and frequency range.
    seconds : float
        Time that the campaign took.
    searching : float
        Part of this time in which data were searched, in seconds; the rest went into making noise and pulses and into
        counting.
    """

    trials: NDArray[Any]
    false: NDArray[Any]
    hours: float
    threshold: float
    receiver: str
    seconds: float
    searching: float = 0.0

    def __len__(self) -> int:
        return len(self.trials)

    def __repr__(self) -> str:
        found = int(self.trials["found"].sum())
        return f"<Completeness: {found} of {len(self)} pulses found, {len(self.false)} false candidates>"

    @classmethod
    def join(cls, parts: Sequence[Completeness]) -> Completeness:
        """Join campaigns with the same threshold, for example campaigns on several files."""
        if not parts or len({one.threshold for one in parts}) > 1:
            raise ValueError("parts: expected one or more campaigns with the same threshold")
        where = list(dict.fromkeys(one.receiver for one in parts))
        return cls(
            np.concatenate([one.trials for one in parts]), np.concatenate([one.false for one in parts]),
            sum(one.hours for one in parts), parts[0].threshold, "; ".join(where), sum(one.seconds for one in parts),
            sum(one.searching for one in parts),
        )  # fmt: skip

    @property
    def too_much_lost(self) -> NDArray[Any]:
        """Pulses that lost over 20% of their samples to interference or gaps; `recall` leaves them out."""
        return self.trials[~(self.trials["left"] >= LEAST_LEFT)]

    def recall(self, by: str = "snr") -> Table:
        """The fraction of the pulses that was found, for each injected S/N or by another quantity.

        Parameters
        ----------
        by : str
            A column of `TRIALS`.  If it has more than 12 values, it is divided into 8 bins of equally many pulses; the
            table gives their lower edges.

        Returns
        -------
        astropy.table.Table
            A row for each value or bin of the quantity, with the columns:

            - ``pulses``: number of pulses; ``recall``: fraction of them that was found, with its 95% confidence
              interval ``low``, ``high`` (Clopper and Pearson 1934).
            - ``known``: recall of a detector that knows DM, time and width, with the same threshold on the same noise.
            - ``expected``: recall of a detector that takes the best of the DMs, times and widths that count as this
              pulse, on the same noise (see `TRIALS`).
            - ``ratio``: median ratio of recovered to injected S/N, in the samples that are left; ``window_ratio``: the
              same for ``snr_window``; ``known_ratio`` and ``expected_ratio``: the same for these two detectors, over
              the pulses that reach their threshold.
            - ``candidates``: mean number of candidates for each pulse.
            - ``time_error`` (s), ``dm_error``: medians of the absolute values.
            - ``width_ratio``: median ratio of the width found to the effective width.
        """
        from astropy.table import Table
        from scipy.stats import beta

        one_of("by", by, TRIALS.names or ())
        t, tail = self.trials[self.trials["left"] >= LEAST_LEFT], (1 - CONFIDENCE) / 2
        values = np.unique(t[by])
        if len(values) > 12:
            values = np.unique(np.quantile(t[by], np.arange(BINS) / BINS, method="lower"))
        which = np.searchsorted(values, t[by], side="right") - 1
        rows = []
        for i, value in enumerate(values):
            some = t[which == i]
            n, k, good = len(some), int(some["found"].sum()), some[some["found"]]
            known = some["snr_known"][np.isfinite(some["snr_known"])]
            near = some[np.isfinite(some["snr_near"])]
            seen = near[near["snr_near"] >= self.threshold]
            sure = some[some["snr_known"] >= self.threshold]
            rows.append({
                by: value, "pulses": n, "recall": k / n,
                "low": beta.ppf(tail, k, n - k + 1) if k else 0.0,
                "high": beta.ppf(1 - tail, k + 1, n - k) if k < n else 1.0,
                "known": float((known >= self.threshold).mean()) if len(known) else np.nan,
                "expected": len(seen) / len(near) if len(near) else np.nan,
                "ratio": _ratio(good, "snr_found"), "window_ratio": _ratio(good, "snr_window"),
                "known_ratio": _ratio(sure, "snr_known"), "expected_ratio": _ratio(seen, "snr_near"),
                "candidates": float(some["candidates"].mean()),
                "time_error": float(np.median(np.abs(good["time_error"]))) if k else np.nan,
                "dm_error": float(np.median(np.abs(good["dm_error"]))) if k else np.nan,
                "width_ratio": float(np.median(good["width_found"] / good["effective_width"])) if k else np.nan,
            })  # fmt: skip
        return Table(rows=rows)

    def false_rate(self) -> tuple[float, float, float]:
        """Number of false candidates per hour, and its 95% confidence interval (Garwood 1936)."""
        from scipy.stats import chi2

        k, tail = len(self.false), (1 - CONFIDENCE) / 2
        if not self.hours > 0:
            return np.nan, 0.0, np.inf
        low = chi2.ppf(tail, 2 * k) / 2 if k else 0.0
        high = chi2.ppf(1 - tail, 2 * k + 2) / 2
        return k / self.hours, float(low / self.hours), float(high / self.hours)

    def summary(self, by: str = "snr") -> list[str]:
        """Lines of text: a table by S/N or another quantity, and the rate of false candidates."""
        rate, low, high = self.false_rate()
        lines = []
        if self.trials["left"].max(initial=0.0) >= LEAST_LEFT:
            table = self.recall(by)
            near = bool(np.isfinite(table["expected"]).any())
            more = f"{'expected':>9}" if near else ""
            lines.append(
                f"{NAMES.get(by, by):>9} {'pulses':>7} {'recall':>7} {'95% interval':>15} {'known':>6}{more} "
                f"{'ratio':>6}{more} {'window':>6} {'cand.':>6} {'DM error':>9} {'time, ms':>9} {'width':>6}"
            )
            for r in table:
                found, ratio = (f" {r[name]:8.3f}" if near else "" for name in ("expected", "expected_ratio"))
                lines.append(
                    f"{r[by]:9.4g} {r['pulses']:7d} {r['recall']:7.3f} {r['low']:7.3f}-{r['high']:.3f} "
                    f"{r['known']:8.3f}{found} {r['ratio']:6.3f}{ratio} {r['window_ratio']:6.3f} "
                    f"{r['candidates']:6.3f} {r['dm_error']:9.3g} "
                    f"{r['time_error'] * 1e3:9.3g} {r['width_ratio']:6.2f}"
                )
        if len(lost := self.too_much_lost):
            lines.append(
                f"not in the table: {len(lost)} pulses lost over {1 - LEAST_LEFT:.0%} of their samples to interference "
                f"or gaps; {int(lost['found'].sum())} of them were found"
            )
        if count := int((self.trials["clipped"] > CLIPPED).sum()):
            lines.append(f"{count} pulses lost over {CLIPPED:.0%} of their counts, because samples were saturated")
        lines.append(
            f"false candidates: {len(self.false)} in {self.hours:.3g} h, {rate:.3g} an hour "
            f"(95%: {low:.3g} to {high:.3g})"
        )
        return lines

    def to_table(self) -> Table:
        """The pulses as an astropy table."""
        from astropy.table import Table

        table = Table(self.trials)
        for name, unit in UNITS.items():
            table[name].unit = unit
        table.meta |= {"threshold": self.threshold, "hours": self.hours, "false": len(self.false)}
        return table

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to an ``.npz`` file."""
        save_fields(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote.

        Raises
        ------
        ValueError
            The file holds something else.
        """
        return cls(**load_fields(cls, path, {}))

    def plot(self, **options: Any) -> Figure:
        """Recall, S/N and errors of the pulses; options of `matplotlib.figure.Figure`."""
        from matplotlib.figure import Figure

        figure = Figure(**dict[str, Any](figsize=(14, 8), layout="constrained") | options)
        (a, b, c), (d, e, f) = figure.subplots(2, 3)
        t = self.trials[self.trials["left"] >= LEAST_LEFT]
        recall = self.recall()
        error = [recall["recall"] - recall["low"], recall["high"] - recall["recall"]]
        a.errorbar(recall["snr"], recall["recall"], error, fmt="o", capsize=3, label="search")
        a.plot(recall["snr"], recall["known"], "k_", markersize=14, label="DM, time and width known")
        a.plot(recall["snr"], recall["expected"], "r+", markersize=12, label="best window near the pulse")
        a.set(xlabel="injected S/N", ylabel="recall", ylim=(-0.02, 1.05))
        a.legend()
        good = t[t["found"]]
        b.plot(good["snr"], good["snr_found"] / good["snr_left"], ".", alpha=0.3)
        b.plot(recall["snr"], recall["ratio"], "k_", markersize=14, label="median")
        b.plot(recall["snr"], recall["expected_ratio"], "r+", markersize=12, label="median of the best window")
        b.plot(recall["snr"], recall["window_ratio"], "gx", markersize=9, label="median at the refined DM")
        b.set(xlabel="injected S/N", ylabel="recovered / injected S/N")
        b.legend()
        c.plot(good["dm"], good["dm_error"], ".", alpha=0.4)
        c.set(xlabel="DM", ylabel="error of the DM")
        d.plot(good["effective_width"] * 1e3, good["time_error"] * 1e3, ".", alpha=0.4)
        d.set(xlabel="effective width (ms)", ylabel="error of the time (ms)", xscale="log")
        e.plot(good["effective_width"] * 1e3, good["width_found"] * 1e3, ".", alpha=0.4)
        e.axline((1, 1), (10, 10), color="k", linewidth=0.8)
        e.set(xlabel="effective width (ms)", ylabel="width found (ms)", xscale="log", yscale="log")
        for kind, some in ((".", good), ("x", t[~t["found"]])):
            label = "found" if kind == "." else "missed"
            f.plot(some["dm"], some["effective_width"] * 1e3, kind, alpha=0.5, label=label)
        f.set(xlabel="DM", ylabel="effective width (ms)", yscale="log")
        f.legend()
        rate, low, high = self.false_rate()
        figure.suptitle(f"{self.receiver}; {rate:.2g} false candidates an hour ({low:.2g} to {high:.2g})")
        return figure


def _ratio(some: NDArray[Any], name: str) -> float:
    """Median ratio of an S/N to the injected S/N; NaN without pulses."""
    ratios = some[name] / some["snr_left"]
    ratios = ratios[np.isfinite(ratios)]
    return float(np.median(ratios)) if len(ratios) else math.nan
