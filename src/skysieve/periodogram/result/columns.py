"""Columns of the tables of periods: names, units and descriptions.

Their values come from `survey.Found` for files of commands, alerts and LSDB, and from `result.export` for ``to_table``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from skysieve.core.arrays import Words

TableName = Literal["objects", "peaks", "power"]


@dataclass(frozen=True)
class Column:
    """A column of tables of results and of the files that hold them.

    The values are those of the entry or attribute with the same name.  ``kind`` selects the unit: that of the times,
    its inverse, that of the power, or none.
    """

    name: str
    kind: Literal["time", "frequency", "power", ""]
    help: str


OBJECT_COLUMNS = (
    Column("id", "", "Identifier of the object, or its number."),
    Column("status", "", "The word ok, or why the object has no period."),
    Column("n_used", "", "Number of rows that were used."),
    Column(
        "n_dropped",
        "",
        "Number of rows left out: with a missing value or band, or a flag, or in a band of too few rows.",
    ),
    Column("span", "time", "Time span of the rows that were used."),
    Column("method", "", "Method that computed the periodogram."),
)
"""One value for each object."""
PEAK_COLUMNS = (
    Column("period", "time", "Period of the peak."),
    Column("period_error", "time", "Standard error of the period."),
    Column("frequency", "frequency", "Frequency of the peak."),
    Column("frequency_error", "frequency", "Standard error of the frequency."),
    Column("power", "power", "Power of the peak."),
)
"""One value for each peak.  In a table of objects, the names for the peaks after the highest end in _2, _3, ..."""
CHANCE_COLUMNS = (
    Column("fap", "", "False-alarm probability of the peak."),
    Column("alias", "", "Relation of the peak to a higher peak or to the frequencies of the sampling."),
)
"""The same, for tables of the command line only."""
ROTATION_COLUMNS = (
    Column("period_doubled", "time", "Twice the period: the other rotation period that fits."),
    Column("delta_chi2", "", "Chi-square at the period less chi-square at twice the period."),
)
"""One value for each object, of asteroids that are fitted by several terms."""


def peak_names() -> tuple[str, ...]:
    """Names of the columns of every table of peaks."""
    return tuple(column.name for column in PEAK_COLUMNS)


def _of_peak(values: Any, k: int) -> Any:
    """Values of one peak of all objects.  `Words` get the words that this peak uses; others may be many."""
    if not isinstance(values, Words):
        return values[..., k]
    codes, used = values.codes[..., k], np.zeros(len(values.words), bool)
    used[codes] = True
    return Words((np.cumsum(used, dtype=np.int32) - 1)[codes], values.words[used])


def table_columns(
    objects: Mapping[str, Any], peaks: Mapping[str, Any], n_peaks: int, names: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """The columns of a table of objects, and the kind of unit of each.

    Parameters
    ----------
    objects : mapping
        Values of shape (n,), by the names of `OBJECT_COLUMNS` and `ROTATION_COLUMNS`; some may be left out.
    peaks : mapping
        Values of shape (n, n_peaks), by the names of `PEAK_COLUMNS` and `CHANCE_COLUMNS`; some may be left out.
    n_peaks : int
    names : mapping, optional
        Other names for some of the columns.

    Returns
    -------
    columns, kinds : dict
    """
    names = names or {}
    columns: dict[str, Any] = {}
    kinds: dict[str, str] = {}

    def add(column: Column, values: Any, suffix: str = "") -> None:
        name = names.get(column.name, column.name) + suffix
        columns[name], kinds[name] = values, column.kind

    for column in OBJECT_COLUMNS:
        if column.name in objects:
            add(column, objects[column.name])
    for k in range(n_peaks):
        for column in PEAK_COLUMNS + CHANCE_COLUMNS:
            if column.name in peaks:
                add(column, _of_peak(peaks[column.name], k), "" if k == 0 else f"_{k + 1}")
    for column in ROTATION_COLUMNS:
        if column.name in objects:
            add(column, objects[column.name])
    return columns, kinds
