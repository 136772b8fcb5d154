"""De-dispersed series that are continued at each call of a stream's search, so that each sample is summed once.

The baseline of a block depends on the next block, so that its noise is known when the next block has arrived.  An event
is known when the widest window around it has arrived.  The events of a block are therefore returned at the end of the
next block, except for events in its last samples, which are returned one block later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.errors import MemoryBudgetError
from skysieve.dedispersion.contract import Detection, Table, check_events, sorted_events

if TYPE_CHECKING:
    from numpy.typing import NDArray

LAG = 0.1
"""Largest difference between the delays of the DMs of a range, in seconds: no DM waits longer for another one."""
LEAST_ROWS = 128
"""Fewest DMs of a range; with fewer DMs, fewer partial sums are shared."""
ROOM = 1024
"""Number of events of a task for which memory is allocated at first."""
ROWS = 16
"""Most series of a task."""


@dataclass
class TableSeries:
    """The series of one table, in binned samples, counted from the sender's sample 0.

    Attributes
    ----------
    rows : numpy.ndarray, shape (ndm, room)
        Sums; column 0 is sample ``origin``.
    levels : numpy.ndarray, shape (ndm, blocks, 2)
        Level and sigma of the latest blocks, by number modulo ``blocks``.
    means : numpy.ndarray, shape (ndm, blocks, parts)
        Means of the parts of these blocks, for the baseline.
    block, reach : int
        Samples of a noise block, and of the widest window.
    origin, done : int
        First sample that is held, and first sample that is not summed yet.
    begin : int
        The first block.
    newest : int
        The last block whose noise is known.
    looked : int
        All events centred before this sample have been returned.
    """

    rows: NDArray[Any]
    levels: NDArray[np.float64]
    means: NDArray[np.float64]
    block: int
    reach: int
    origin: int = 0
    done: int = 0
    begin: int = 0
    newest: int = -1
    looked: int = 0

    def make_room(self, count: int) -> None:
        """If there is no room for ``count`` more samples, drop samples that no window and no noise block needs."""
        if self.done + count - self.origin <= self.rows.shape[1]:
            return
        first = max(self.origin, min(self.looked - 2 * self.reach, (self.newest + 1) * self.block))
        held = self.done - first
        for line in self.rows:
            line[:held] = line[first - self.origin : self.done - self.origin]
        self.origin = first


@dataclass(frozen=True)
class DMRange:
    """Rows ``first : stop`` of a table: DMs with similar delays, so that no DM waits long for the samples of another.

    Attributes
    ----------
    table : int
        Number of the table.
    """

    table: int
    first: int
    stop: int

    def delays(self, table: Table) -> Table:
        """The delays of these DMs."""
        return Table(table.delays[self.first : self.stop], table.downsamp)

    def detection(self, what: Detection) -> Detection:
        """The detection settings of these DMs."""
        return replace(what, valid=what.valid[self.first : self.stop])


def dm_ranges(tables: Sequence[Table], tsamp: float) -> list[DMRange]:
    """Split tables where the delays have grown by `LAG`, into ranges of at least `LEAST_ROWS`."""
    ranges = []
    for number, table in enumerate(tables):
        ends = table.delays.max(axis=1) * (table.downsamp * tsamp)
        first = 0
        for row in range(LEAST_ROWS, len(ends) - LEAST_ROWS + 1):
            if row - first >= LEAST_ROWS and abs(ends[row] - ends[first]) > LAG:
                ranges.append(DMRange(number, first, row))
                first = row
        ranges.append(DMRange(number, first, len(ends)))
    return ranges


def by_table(ranges: Sequence[DMRange], found: Sequence[NDArray[np.float64]], count: int) -> list[NDArray[np.float64]]:
    """Join the events of the ranges of each table."""
    every: list[list[NDArray[np.float64]]] = [[] for _ in range(count)]
    for one, rows in zip(ranges, found, strict=True):
        every[one.table].append(rows + np.array([one.first, 0.0, 0.0, 0.0]))
    return [np.concatenate(rows) for rows in every]


class RunningSeries:
    """The series of all tables of a search.

    Parameters
    ----------
    engine : cpu.Engine
    tables : sequence of Table
        Tables of ranges of DMs, see `dm_ranges`.
    looked : sequence of Detection
    step : int
        Most unbinned samples that are summed at a time.
    budget : int
        Most bytes that engine and series may take.
    waits : bool
        Whether the source of the data can wait: then a small number of drifts is subtracted without compiled code.

    Attributes
    ----------
    nbytes : int
        Bytes of the series.
    loaded : int
        Samples before this one have been given to the engine.
    """

    def __init__(
        self, engine: Any, tables: Sequence[Table], looked: Sequence[Detection], step: int, budget: int, waits: bool
    ) -> None:
        self.engine, self.tables, self.step, self.waits = engine, list(tables), step, waits
        self.warming = False
        self.loaded = 0
        need = sum(self._columns(t, w) * len(t.delays) for t, w in zip(tables, looked, strict=True))
        need *= np.dtype(engine.dtype).itemsize
        self.nbytes = need
        if engine.bytes + need > budget:
            raise MemoryBudgetError(f"{step} samples of every DM, two blocks and the widest window",
                                    engine.bytes + need, budget)  # fmt: skip
        self.table_series: list[TableSeries] = []
        for t, what in zip(tables, looked, strict=True):
            rows = np.zeros((len(t.delays), self._columns(t, what)), engine.dtype)
            blocks = (step // t.downsamp + 3 * what.widths[-1]) // what.block + 5
            levels = np.zeros((len(t.delays), blocks, 2))
            means = np.zeros((len(t.delays), blocks, what.parts))
            self.table_series.append(TableSeries(rows, levels, means, what.block, what.widths[-1]))

    def _columns(self, table: Table, what: Detection) -> int:
        """Samples of a series for which there is room."""
        held = (2 if what.parts else 1) * what.block + 3 * what.widths[-1] + 1
        return held + max(self.step // table.downsamp, what.block) + held

    def begin(self, first: int, low: int) -> None:
        """Begin a stream at sample ``first``, the start of a block; events are wanted from ``low`` on."""
        self.loaded = first
        for t, k in zip(self.tables, self.table_series, strict=True):
            k.origin = k.done = first // t.downsamp
            k.begin = k.done // k.block
            k.newest = k.begin - 1
            k.looked = low // t.downsamp

    @property
    def searched(self) -> list[int]:
        """For each table, the unbinned sample before which all events have been returned."""
        return [k.looked * t.downsamp for t, k in zip(self.tables, self.table_series, strict=True)]

    def search(self, filled: int, looked: Sequence[Detection], last: bool) -> list[NDArray[np.float64]] | None:
        """Search the next samples before ``filled``, at most a step; ``last``: no more will come.

        Returns
        -------
        list of numpy.ndarray
            Events that have become final, as `single_pulse.search.Job.look` returns them; None if there is nothing to
            do.
        """
        first = min(k.done * t.downsamp for t, k in zip(self.tables, self.table_series, strict=True))
        end = min(filled, first + self.engine.capacity)
        goals, busy = [], False
        for t, k in zip(self.tables, self.table_series, strict=True):
            goal = k.done + self.step // t.downsamp
            if self.step // t.downsamp <= k.block:  # a step ends at the end of a block, when its noise is known
                goal = min(goal, (k.done // k.block + 1) * k.block)
            if last:
                goal = min(goal, filled // t.downsamp)
            need = (goal + t.maxshift) * t.downsamp
            goals.append(goal if (min(need, filled) if last else need) <= end else k.done)
            busy |= goals[-1] > k.done or (last and k.looked < filled // t.downsamp)
        if not busy:
            return None
        self.loaded = end
        self.engine.load(first, end)
        return [
            self._table(i, goal, looked[i], last and goal == filled // t.downsamp)
            for i, (t, goal) in enumerate(zip(self.tables, goals, strict=True))
        ]

    def _table(self, number: int, goal: int, what: Detection, last: bool) -> NDArray[np.float64]:
        """Extend the series of a table to ``goal`` and search them; ``last``: they end there."""
        k = self.table_series[number]
        if goal > k.done:
            k.make_room(goal - k.done)
            self.engine.sums(number, k.done, goal - k.done, k.rows, k.done - k.origin)
            k.done = goal
        valid = np.minimum(what.valid, k.done)
        newest = (-(-k.done // k.block) if last else k.done // k.block) - 1
        if what.parts and not last:  # the baseline of a block depends on the next one
            newest = max(newest - 1, k.newest)
        high = k.done if last else max(k.looked, (newest + 1) * k.block - k.reach - 1)
        if high <= k.looked and newest == k.newest:
            return np.empty((0, 4))
        found = self.look(k, valid, newest, k.looked, high, what)
        k.newest, k.looked = newest, max(high, k.looked)
        check_events(len(found), what)
        return found

    def look(
        self, k: TableSeries, valid: NDArray[np.int64], newest: int, low: int, high: int, what: Detection
    ) -> NDArray[np.float64]:
        """The events centred on ``low : high`` of all rows, with the noise of new blocks, by all threads."""
        rows = len(k.rows)
        each = max(1, min(ROWS, -(-rows // (4 * self.engine.pool.workers))))
        tasks: list[Callable[[], NDArray[np.float64]]] = [
            partial(self._look, k, r, min(r + each, rows), valid, newest, low, high, what) for r in range(0, rows, each)
        ]
        return np.concatenate(self.engine.pool.run(tasks))

    def _look(
        self, k: TableSeries, row: int, stop: int, valid: NDArray[np.int64], newest: int, low: int, high: int,
        what: Detection,
    ) -> NDArray[np.float64]:  # fmt: skip
        """The events of some rows, with the noise of new blocks."""
        from .cpu_series import Rows

        some = slice(row, stop)
        rows = Rows(k.rows[some], valid[some], k.means[some], k.levels[some], k.origin, k.begin, what)
        for number in range(k.newest + 1, newest + 1):
            if what.parts and (drifting := rows.find_levels(number)) | self.warming:
                rows.subtract_drifts(number, drifting if self.waits else math.inf)
            rows.find_noise(number)
        begin = max(k.begin * k.block, low - k.reach)
        found = np.empty((ROOM, 4))
        while (n := rows.find(begin, low, high, newest, found)) > len(found):
            found = np.empty((n, 4))
        found[:n, 0] += row
        return sorted_events(found[:n])

    def warm(self, at: int, looked: Sequence[Detection]) -> None:
        """Load or compile all kernels, by a search from sample ``at`` on."""
        self.begin(at, at)
        self.warming = True
        while any(k.newest < k.begin for k in self.table_series):
            self.search(at + 2 * self.engine.capacity, looked, False)
        self.warming = False
