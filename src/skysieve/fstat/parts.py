"""Which rows a backend has to compute, and what the parts of a map give, joined."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.fstat.inputs.grid import Schedule

from .contract import FALLBACK, Output

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Live:
    """Rows of a schedule by what has to be done for them."""

    rows: NDArray[np.int64]
    empty: NDArray[np.int64]


def live_rows(schedule: Schedule) -> Live:
    """Rows to compute, and rows whose windows all end before the data (F is the fallback)."""
    ahead = schedule.first + schedule.length[schedule.group, -1] <= 0
    good = ~schedule.late & (schedule.valid_from[schedule.group] < schedule.shape[1])
    return Live(np.flatnonzero(good & ~ahead), np.flatnonzero(good & ahead))


@dataclass
class Part:
    """Maximum (and where), fallbacks and ``ln sum exp F`` of a tile, whole and by its rows and columns."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    max_F: float
    row: int
    column: int
    n_fallback: int
    log_sum: float
    row_log: NDArray[np.float64]
    column_log: NDArray[np.float64]


@dataclass
class Joined:
    """All parts of one template."""

    n_rows: int
    n_columns: int
    parts: list[Part] = field(default_factory=list)

    def into(self, output: Output, i: int) -> None:
        """Write the answers of template `i`."""
        if not self.parts:
            return
        n = self.n_columns
        best = max(self.parts, key=lambda p: (p.max_F, -(p.row * n + p.column)))
        output.max_F[i], output.index[i] = best.max_F, best.row * n + best.column
        output.n_fallback[i] = sum(p.n_fallback for p in self.parts)
        output.log_sum[i] = np.logaddexp.reduce([p.log_sum for p in self.parts])
        if output.row_log is not None and output.column_log is not None:
            first = self.parts[0].rows
            if len(self.parts) > 1 and all(p.rows is first for p in self.parts):
                output.row_log[i, first] = log_sums(np.stack([p.row_log for p in self.parts]))
                for p in self.parts:
                    output.column_log[i, p.columns] = p.column_log
                return
            for p in self.parts:
                add_log(output.row_log[i], p.rows, p.row_log)
                add_log(output.column_log[i], p.columns, p.column_log)


def log_sums(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """``ln sum exp`` over the first axis."""
    high = logs.max(axis=0)
    high[~np.isfinite(high)] = 0
    with np.errstate(divide="ignore"):
        return np.asarray(high + np.log(np.exp(logs - high).sum(axis=0)))


def add_log(total: NDArray[np.float64], at: NDArray[np.int64], values: NDArray[np.float64]) -> None:
    """``total[at] = ln(exp total[at] + exp values)``."""
    total[at] = np.logaddexp(total[at], values)


def empty_part(schedule: Schedule, rows: NDArray[np.int64]) -> Part:
    """Rows whose windows hold nothing: F is the fallback in every valid cell."""
    valid_from, n_columns = schedule.valid_from[schedule.group[rows]], schedule.shape[1]
    count = n_columns - valid_from
    columns = np.arange(n_columns)
    with np.errstate(divide="ignore"):
        per_column = FALLBACK + np.log((columns[:, None] >= valid_from).sum(1))
    row = int(np.argmin(rows))
    return Part(
        rows,
        columns,
        FALLBACK,
        int(rows[row]),
        int(valid_from[row]),
        int(count.sum()),
        FALLBACK + float(np.log(count.sum())),
        FALLBACK + np.log(count),
        per_column,
    )


def fill_empty(schedule: Schedule, rows: NDArray[np.int64], F: Any) -> None:
    """The fallback in the valid cells of such rows of a map (..., N_t0, N_tau)."""
    for m in rows:
        F[..., m, schedule.valid_from[schedule.group[m]] :] = FALLBACK
