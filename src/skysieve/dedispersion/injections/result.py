"""What an injection campaign found: a row for each pulse, false candidates, and their rates with intervals."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from skysieve.core.result import Result
from skysieve.dedispersion.result import load_fields, save_fields

if TYPE_CHECKING:
    from astropy.table import Table
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["TRIALS", "Completeness"]

TRIALS = np.dtype([
    ("snr", "f8"), ("dm", "f8"), ("time", "f8"), ("width", "f8"), ("effective_width", "f8"), ("scatter", "f8"),
    ("snr_known", "f8"), ("found", "?"), ("snr_found", "f8"), ("dm_error", "f8"), ("time_error", "f8"),
    ("width_found", "f8"), ("candidates", "i8"),
])  # fmt: skip
"""Columns of the pulses.  ``snr_known`` is the S/N that a detector has which knows DM, time and width; ``candidates``
counts those of the pulse and within its reach; numbers of what was not found are NaN."""
UNITS = {"dm": "pc / cm3", "time": "s", "width": "s", "effective_width": "s", "scatter": "s", "dm_error": "pc / cm3",
         "time_error": "s", "width_found": "s"}  # fmt: skip
CONFIDENCE = 0.95


@dataclass(frozen=True, repr=False)
class Completeness(Result):
    """The answer of `completeness`.

    Attributes
    ----------
    trials : structured array
        A row for each pulse, with the fields of `TRIALS`.
    false : structured array
        ``snr``, ``dm`` and ``time`` of the candidates that belong to no pulse.
    hours : float
        Hours of data in which a candidate would have counted as false.
    threshold : float
    receiver : str
        The band.
    seconds : float
        Time that the campaign took.
    """

    trials: NDArray[Any]
    false: NDArray[Any]
    hours: float
    threshold: float
    receiver: str
    seconds: float

    def __len__(self) -> int:
        return len(self.trials)

    def __repr__(self) -> str:
        found = int(self.trials["found"].sum())
        return f"<Completeness: {found} of {len(self)} pulses found, {len(self.false)} false candidates>"

    def recall(self) -> Table:
        """The part of the pulses that was found, for each injected S/N.

        Returns
        -------
        astropy.table.Table
            ``snr``, ``pulses``, ``recall`` with its interval of 95% (``low``, ``high``; Clopper and Pearson 1934),
            ``known``: the part that a detector finds which knows DM, time and width, with the same threshold on the
            same noise; ``ratio``: the median of S/N recovered over injected; ``candidates`` for each pulse, mean;
            ``time_error`` (s) and ``dm_error``: medians of their modulus.
        """
        from astropy.table import Table
        from scipy.stats import beta

        t, tail = self.trials, (1 - CONFIDENCE) / 2
        rows = []
        for snr in np.unique(t["snr"]):
            some = t[t["snr"] == snr]
            n, k, good = len(some), int(some["found"].sum()), some[some["found"]]
            known = some["snr_known"][np.isfinite(some["snr_known"])]
            rows.append({
                "snr": snr, "pulses": n, "recall": k / n,
                "low": beta.ppf(tail, k, n - k + 1) if k else 0.0,
                "high": beta.ppf(1 - tail, k + 1, n - k) if k < n else 1.0,
                "known": float((known >= self.threshold).mean()) if len(known) else np.nan,
                "ratio": float(np.median(good["snr_found"] / snr)) if k else np.nan,
                "candidates": float(some["candidates"].mean()),
                "time_error": float(np.median(np.abs(good["time_error"]))) if k else np.nan,
                "dm_error": float(np.median(np.abs(good["dm_error"]))) if k else np.nan,
            })  # fmt: skip
        return Table(rows=rows)

    def false_rate(self) -> tuple[float, float, float]:
        """False candidates an hour, and their interval of 95% (Garwood 1936)."""
        from scipy.stats import chi2

        k, tail = len(self.false), (1 - CONFIDENCE) / 2
        if not self.hours > 0:
            return np.nan, 0.0, np.inf
        low = chi2.ppf(tail, 2 * k) / 2 if k else 0.0
        high = chi2.ppf(1 - tail, 2 * k + 2) / 2
        return k / self.hours, float(low / self.hours), float(high / self.hours)

    def summary(self) -> list[str]:
        """Lines of text: a table by S/N, and the rate of false candidates."""
        rate, low, high = self.false_rate()
        lines = [f"{'S/N':>6} {'pulses':>7} {'recall':>7} {'95% interval':>15} {'known':>6} {'ratio':>6} {'cand.':>6}"]
        lines += [
            f"{r['snr']:6g} {r['pulses']:7d} {r['recall']:7.3f} {r['low']:7.3f}-{r['high']:.3f} {r['known']:8.3f} "
            f"{r['ratio']:6.3f} {r['candidates']:6.3f}"
            for r in self.recall()
        ]
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

        figure = Figure(**{"figsize": (10, 7), "layout": "constrained", **options})
        (a, b), (c, d) = figure.subplots(2, 2)
        t, recall = self.trials, self.recall()
        error = [recall["recall"] - recall["low"], recall["high"] - recall["recall"]]
        a.errorbar(recall["snr"], recall["recall"], error, fmt="o", capsize=3, label="search")
        a.plot(recall["snr"], recall["known"], "k_", markersize=14, label="DM, time and width known")
        a.set(xlabel="injected S/N", ylabel="recall", ylim=(-0.02, 1.05))
        a.legend()
        good = t[t["found"]]
        b.plot(good["snr"], good["snr_found"] / good["snr"], ".", alpha=0.3)
        b.plot(recall["snr"], recall["ratio"], "k_", markersize=14, label="median")
        b.set(xlabel="injected S/N", ylabel="recovered / injected S/N")
        for axes, name, label in ((c, "dm", "DM"), (d, "effective_width", "effective width (s)")):
            found = t["found"]
            axes.plot(t[name][found], t["snr"][found], ".", alpha=0.4, label="found")
            axes.plot(t[name][~found], t["snr"][~found], "x", label="missed")
            axes.set(xlabel=label, ylabel="injected S/N")
        d.set_xscale("log")
        c.legend()
        rate, low, high = self.false_rate()
        figure.suptitle(f"{self.receiver}; {rate:.2g} false candidates an hour ({low:.2g} to {high:.2g})")
        return figure
