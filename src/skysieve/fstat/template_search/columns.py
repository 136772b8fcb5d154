"""The columns of the table of a search, and the statistics that rank its templates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skysieve.fstat.contract import MapJob, Output
from skysieve.fstat.inputs.grid import Grid
from skysieve.fstat.inputs.windows import Window
from skysieve.fstat.result.map import ln_bayes

from .bsgl import LOG10E
from .cells import cell_F

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "COLUMNS",
    "STATISTICS",
    "Answers",
    "Column",
    "Statistic",
    "StatisticName",
    "columns_of",
    "is_reserved",
    "unit",
]

StatisticName = Literal["max2F", "lnBtSG", "log10BSGL"]
"""Names of `STATISTICS`, for type checkers; a test compares them."""


@dataclass(frozen=True)
class Answers:
    """The answers of a backend for the templates of a chunk and one window."""

    grid: Grid
    job: MapJob
    window: Window
    output: Output
    detectors: tuple[str, ...]
    rhohatmax: float

    @cached_property
    def max2F(self) -> NDArray[np.float64]:
        """Largest 2F of each template; NaN where no cell could be computed."""
        return 2 * self.output.max_F

    @cached_property
    def lnBtSG(self) -> NDArray[np.float64]:
        """Log Bayes factor of each template."""
        return np.asarray(ln_bayes(self.output.log_sum, self.job.schedule.n_valid(), self.rhohatmax))

    @cached_property
    def log10BSGL(self) -> NDArray[np.float64]:
        """Largest line-robust statistic of each template; NaN without prior."""
        if self.output.line_max is None:
            return np.full(len(self.output.max_F), np.nan)
        return LOG10E * self.output.line_max

    def start(self, cell: NDArray[np.int64]) -> NDArray[np.int64]:
        """Start times of flat cells."""
        return self.grid.t0s[np.maximum(cell, 0) // self.grid.shape[1]]

    def duration(self, cell: NDArray[np.int64]) -> NDArray[np.int64]:
        """Durations of flat cells."""
        return self.grid.taus[np.maximum(cell, 0) % self.grid.shape[1]]

    @property
    def line_cell(self) -> NDArray[np.int64]:
        """Flat cell of the largest line-robust statistic of each template."""
        assert self.output.line_index is not None
        return self.output.line_index

    def line_twoF(self, which: NDArray[np.int64], detector: int | None) -> NDArray[np.float64]:
        """2F of some templates in the cell `line_cell`, from all detectors (None) or from one."""
        bank = self.job.bank if detector is None else self.job.detectors[detector]
        cells = self.line_cell
        return np.array([2 * cell_F(self.job, bank, int(i), int(cells[i]), self.window) for i in which])


@dataclass(frozen=True)
class Statistic:
    """A number by which templates are ranked, the highest first."""

    help: str
    value: Callable[[Answers], NDArray[np.float64]]
    needs_lines: bool = False


STATISTICS = {
    "max2F": Statistic("Largest 2F of all cells.", lambda a: a.max2F),
    "lnBtSG": Statistic("Log Bayes factor of a transient signal against Gaussian noise.", lambda a: a.lnBtSG),
    "log10BSGL": Statistic("Largest line-robust statistic of all cells.", lambda a: a.log10BSGL, needs_lines=True),
}
"""All statistics by name; each is also a column."""


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes
    ----------
    name : str
        With ``{detector}`` there is one column for each detector.
    help : str
        One sentence for the documentation.
    value : callable
        ``value(answers, which, detector)``: the numbers of the templates `which`; `detector` is None, or the number of
        the detector.
    unit : str or None
    needs_lines : bool
        Whether the column exists only if the line-robust statistic was requested.
    shown : bool
        Whether ``skysieve fstat search`` prints the column.
    """

    name: str
    help: str
    value: Callable[[Answers, NDArray[np.int64], int | None], NDArray[Any]]
    unit: str | None = None
    needs_lines: bool = False
    shown: bool = False


def _statistic(name: str) -> Column:
    s = STATISTICS[name]
    return Column(name, s.help, lambda a, which, _: s.value(a)[which], needs_lines=s.needs_lines, shown=True)


COLUMNS = (
    _statistic("max2F"),
    Column(
        "t0_ml", "Start time of the cell of `max2F`.", lambda a, which, _: a.start(a.output.index[which]), "s",
        shown=True,
    ),
    Column(
        "tau_ml", "Duration of that cell.", lambda a, which, _: a.duration(a.output.index[which]), "s", shown=True
    ),
    _statistic("lnBtSG"),
    Column(
        "n_fallback", "Number of cells that are empty or ill-conditioned, where F is set to 2.",
        lambda a, which, _: a.output.n_fallback[which],
    ),
    _statistic("log10BSGL"),
    Column(
        "t0_bsgl", "Start time of the cell of `log10BSGL`.", lambda a, which, _: a.start(a.line_cell[which]), "s", True
    ),
    Column("tau_bsgl", "Duration of that cell.", lambda a, which, _: a.duration(a.line_cell[which]), "s", True),
    Column("twoF_bsgl", "2F of all detectors in that cell.", lambda a, which, _: a.line_twoF(which, None), None, True),
    Column(
        "twoF_{detector}_bsgl", "2F of one detector in that cell.", lambda a, which, d: a.line_twoF(which, d), None,
        True,
    ),
)  # fmt: skip
"""Columns in their order, after ``template``, ``window`` and the parameters of the batches."""

OWN = ("number", "statistic", "template", "window")
"""Names of further columns that a search makes."""


def columns_of(answers: Answers, which: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """All columns for some templates."""
    out: dict[str, NDArray[Any]] = {}
    for column in COLUMNS:
        if column.needs_lines and answers.output.line_max is None:
            continue
        if "{detector}" in column.name:
            for number, detector in enumerate(answers.detectors):
                out[column.name.format(detector=detector)] = column.value(answers, which, number)
        else:
            out[column.name] = column.value(answers, which, None)
    return out


def _matches(column: Column, name: str) -> bool:
    before, _, after = column.name.partition("{detector}")
    if not after:
        return name == column.name
    return name.startswith(before) and name.endswith(after) and len(name) > len(before) + len(after)


PARAMETERS = {"f0": "Hz", "f1dot": "Hz / s", "f2dot": "Hz / s2", "ra": "rad", "dec": "rad", "tref": "s"}
"""Units of the parameters of templates that are made here or read from names of files."""


def unit(name: str) -> str | None:
    """The unit of a column, by its name in a table."""
    if name in PARAMETERS:
        return PARAMETERS[name]
    return next((column.unit for column in COLUMNS if _matches(column, name)), None)


def is_reserved(name: str) -> bool:
    """Whether a search has a column of this name."""
    return name in OWN or any(_matches(column, name) for column in COLUMNS)
