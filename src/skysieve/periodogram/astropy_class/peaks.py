"""The peaks of one light curve, with false-alarm probabilities and alias flags."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from skysieve.core.checks import one_of
from skysieve.core.result import Result
from skysieve.periodogram.analysis.bootstrap import exceeding, no_keywords
from skysieve.periodogram.result.aliases import days_in, find_aliases
from skysieve.periodogram.result.columns import peak_names
from skysieve.periodogram.result.value_files import load_values, save_values

from .light_curve import has_unit

if TYPE_CHECKING:
    import os

    from astropy.table import Table
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from skysieve.periodogram.result.plot import AxisName
    from skysieve.periodogram.result.result import LombScargleResult

    from .lombscargle import LombScargle


@dataclass(frozen=True, repr=False, eq=False)
class PeakList(Result):
    """The highest peaks of a periodogram, in falling order of power; shape (k,).

    Attributes
    ----------
    index : numpy.ndarray, int64
        Index in the grid of the sample from which a peak was found.
    frequency, period, power : numpy.ndarray or Quantity
        Position and height of the maximum of the exact periodogram; see `skysieve.periodogram.result.peaks.Peaks`.
    frequency_error, period_error : numpy.ndarray or Quantity
        Standard errors (1 sigma); see `Peaks`.
    fap : numpy.ndarray or None
        Probability that the highest peak of noise is at least as high; for peaks after the first, an upper bound.  None
        if no formula holds or none was requested.
    fap_method : str or None
        Method of the false-alarm probability.
    reason : str
        Why ``fap`` is None.
    alias : numpy.ndarray, uint8, or None
        `skysieve.periodogram.Alias` flags; None if they were not asked for.
    alias_of : numpy.ndarray, int64, or None
        Index of the higher peak of which a peak is an alias; -1 for none.
    alias_text : numpy.ndarray of str, or None
        The relation in words, such as ``"#1 + 1/yr"``; "" for none.
    """

    index: NDArray[np.int64]
    frequency: Any
    period: Any
    power: Any
    frequency_error: Any
    period_error: Any
    fap: Any
    fap_method: str | None
    reason: str
    alias: NDArray[np.uint8] | None
    alias_of: NDArray[np.int64] | None
    alias_text: NDArray[np.str_] | None

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        head = f"<PeakList: period, error, frequency, power, fap ({self.fap_method or 'none'}), alias"
        rows = []
        for k in range(len(self)):
            chance = "-" if self.fap is None else f"{float(self.fap[k]):.2g}"
            alias = "" if self.alias_text is None else str(self.alias_text[k])
            rows.append(
                f"  {self.period[k]:.8g}  {self.period_error[k]:.2g}  {self.frequency[k]:.8g}  {self.power[k]:.5g}  "
                f"{chance}  {alias}".rstrip()
            )
        return "\n".join([head, *rows]) + ">"

    def plot(self, *, axis: AxisName = "auto", **options: Any) -> Figure:
        """Draw the power of the peaks against frequency, or against period.

        Parameters
        ----------
        axis : {"auto", "period", "frequency"}
            "auto" is frequency.
        **options
            ``ax``, a `matplotlib.axes.Axes` to draw in; a new figure by default.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from skysieve.periodogram.result.plot import AXES, sticks

        if one_of("axis", axis, AXES) == "period":
            return sticks(self.period, self.power, ("Period", "Power"), **options)
        return sticks(self.frequency, self.power, ("Frequency", "Power"), **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to ``.npz`` (everything, see `load`), or the table to .csv, .parquet, .fits, .ecsv or .json."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        save_values("PeakList", values, self.to_table, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote to an ``.npz`` file; ValueError if the file holds something else."""
        return cls(**load_values("PeakList", path))

    def to_table(self) -> Table:
        """An astropy table with one row for each peak."""
        from astropy.table import Table

        columns = {name: getattr(self, name) for name in peak_names()}
        if self.fap is not None:
            columns["fap"] = np.asarray(self.fap)
        if self.alias is not None:
            columns |= {"alias": self.alias, "alias_of": self.alias_of, "alias_text": self.alias_text}
        table = Table(columns)
        table.meta["fap_method"] = self.fap_method or "none"
        if self.reason:
            table.meta["reason"] = self.reason
        return table


def make_peaks(
    curve: LombScargle,
    result: LombScargleResult,
    grid: NDArray[np.float64],
    normalization: str,
    false_alarm: str | None,
    keywords: dict[str, Any],
    aliases: bool,
) -> PeakList:
    """Probabilities and flags for the peaks of a search of ``curve`` at the frequencies ``grid``."""
    found = result.peaks.index >= 0
    index, f = result.peaks.index[found], result.peaks.frequency[found]
    power, chance, reason = np.asarray(result.peaks.power[found], np.float64), None, ""
    if false_alarm is not None:
        reason = curve._no_formula(false_alarm, normalization)
    if false_alarm == "bootstrap":
        maxima = curve._maxima(grid, normalization, False, {"refined": True} | keywords)
        chance = exceeding(maxima, power)
    elif false_alarm is not None and not reason:
        no_keywords(false_alarm, keywords)
        ends = float(grid.min()), float(grid.max())
        chance = curve._noise(ends, normalization, True).probability(power, false_alarm)
    flags_of: dict[str, Any] = {"alias": None, "alias_of": None, "alias_text": None}
    if aliases:
        scale = days_in(getattr(curve._relative, "unit", None))
        t, _, dy = curve._rows()
        flags = find_aliases(t * scale, f / scale, float(np.ptp(t)) * scale, dy)
        flags_of = {"alias": flags.flag, "alias_of": flags.of, "alias_text": flags.text}
    frequency_unit = 1 / curve._relative.unit if has_unit(curve._relative) else 1
    period, period_error, error = (
        np.asarray(getattr(result.peaks, name)[found]) for name in ("period", "period_error", "frequency_error")
    )
    return PeakList(
        index,
        f * frequency_unit,
        period / frequency_unit,
        power * curve._power_unit(normalization),
        error * frequency_unit,
        period_error / frequency_unit,
        chance,
        false_alarm,
        reason,
        **flags_of,
    )
