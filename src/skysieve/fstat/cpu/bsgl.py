"""The line-robust statistic on the CPU: the maximum over tiles of cells; the tiles are those of the map."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.fstat.contract import Lines, MapJob, Spec
from skysieve.fstat.inputs.window_kinds import Algorithm

from . import exp, lines, rect, state
from .any import any_columns, by_columns, groups_of
from .state import Columns, March, Typed

if TYPE_CHECKING:
    from numpy.typing import NDArray

Best = tuple[float, int, int]
"""``ln B_S/GL``, row, column."""


def priors_of(prior: Lines) -> NDArray[np.float64]:
    """The prior of noise and those of the detectors' lines, as one array."""
    return np.array([prior.log_gauss, *prior.log_line])


def best_of(found: list[Best], columns: int) -> Best | None:
    """The highest value; of equal values, the one whose cell comes first in the map."""
    return max(found, key=lambda b: (b[0], -(b[1] * columns + b[2])), default=None)


class LineTasks:
    """Makes the tasks of the templates of a job; each task returns a list with a `Best`, or an empty list."""

    def __init__(self, spec: Spec, typed: Typed, workers: int) -> None:
        assert spec.lines is not None
        self.spec, self.typed, self.workers, self.lines = spec, typed, workers, spec.lines
        self.priors = priors_of(spec.lines)
        self.slack = typed.dtype.type(4 * np.finfo(typed.dtype).eps)

    def tasks(self, job: MapJob, i: int, rows: NDArray[np.int64]) -> list[Callable[[], list[Best]]]:
        """Tasks of template `i`, for `rows`."""
        if rows.size == 0:
            return []
        if by_columns(self.spec):
            return [partial(self._any, job, i, rows)]
        if self.spec.window.algorithm == Algorithm.RECURRENCE:
            return self._exp_tasks(job, i, rows)
        return self._rect_tasks(job, i, rows)

    def _exp_tasks(self, job: MapJob, i: int, rows: NDArray[np.int64]) -> list[Callable[[], list[Best]]]:
        order = March.of(job, rows, self.typed.dtype)
        each = [order.stream_of(d, i) for d in job.detectors]
        streams = [np.stack(parts) for parts in zip(*each, strict=True)]
        pieces = state.column_tiles(job.schedule.shape[1], exp.COLUMNS, self.workers)
        return [partial(self._exp, job, streams, order, a, b) for a, b in pieces]

    def _exp(self, job: MapJob, streams: list[NDArray[Any]], order: March, a: int, b: int) -> list[Best]:
        typed, width, detectors = self.typed, b - a, len(job.detectors)
        c = Columns.of(order, a, b)
        if c is None:
            return []
        S, Z = (np.zeros((len(streams[0]), 7, width), typed.dtype) for _ in range(2))
        T, FX = np.zeros((detectors, 7, width), typed.dtype), np.zeros((detectors, width), typed.dtype)
        total, work, best = np.zeros((7, width), typed.dtype), np.zeros((4, width), typed.dtype), np.zeros(3)
        lines.exp_lines(
            *streams, order.step, order.before, job.n, order.rows, order.firsts, order.groups,
            c.length.astype(np.uint64), c.more, c.skip, c.weights, typed.bound, typed.k, self.priors, self.slack,
            S, Z, T, total, work, FX, a, best,
        )  # fmt: skip
        return [(float(best[0]), int(best[1]), int(best[2]))] if best[1] >= 0 else []

    def _rect_tasks(self, job: MapJob, i: int, rows: NDArray[np.int64]) -> list[Callable[[], list[Best]]]:
        s = job.schedule
        pieces = state.tiles(s, rows, rect.ROWS)
        before = max(0, -int(s.first[rows].min()))
        after = max(int(s.first[p[-1]] - s.first[p[0]]) for p in pieces) + 1
        x = np.stack([state.padded(d, i, before, after) for d in job.detectors])
        return [partial(self._rect, job, x, before, piece) for piece in pieces]

    def _rect(self, job: MapJob, x: NDArray[Any], before: int, rows: NDArray[np.int64]) -> list[Best]:
        s, typed, size, detectors = job.schedule, self.typed, len(rows), len(job.detectors)
        g = int(s.group[rows[0]])
        first = s.first[rows]
        S, FX = np.zeros((detectors, 7, size), typed.dtype), np.zeros((detectors, size), typed.dtype)
        total, work, best = np.zeros((7, size), typed.dtype), np.zeros((4, size), typed.dtype), np.zeros(3)
        lines.rect_lines(
            x, int(first[0]) + before, job.n - int(first[0]), rows, (first - first[0]).astype(np.uint64), s.length[g],
            int(s.valid_from[g]), typed.bound, typed.k, self.priors, self.slack, S, total, work, FX, best,
        )  # fmt: skip
        return [(float(best[0]), int(best[1]), int(best[2]))] if best[1] >= 0 else []

    def _any(self, job: MapJob, i: int, rows: NDArray[np.int64]) -> list[Best]:
        """Compute the columns of all detectors and of each single detector, by the methods for any window."""
        typed, found = Typed.of(np.float64), []
        banks = [job.bank, *job.detectors]
        for groups in zip(*(groups_of(job, b, i, rows, False) for b in banks), strict=True):
            iterators: list[Iterator[tuple[int, NDArray[Any]]]] = [
                any_columns(g, self.spec.window, job.taus, typed, False, self.spec.sums == "exact") for g in groups
            ]
            for parts in zip(*iterators, strict=True):
                column, F = parts[0]
                value = self.lines.log_odds(F, [f for _, f in parts[1:]])
                j = int(value.argmax())
                found.append((float(value[j]), int(groups[0].rows[j]), column))
        return found
