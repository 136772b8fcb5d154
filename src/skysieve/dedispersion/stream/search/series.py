"""De-dispersed series that are kept between the calls of a stream's search: each sample is summed once.

The noise of a block is known at its end, and an event when the widest window around it has been seen; so the events of
a block are given out at its end, but for the last few of it, which follow with the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.errors import MemoryBudgetError
from skysieve.dedispersion.contract import UNIT, Detection, Table, check_events

if TYPE_CHECKING:
    from numpy.typing import NDArray

LAG = 0.1
"""Seconds that a DM may wait for the delay of another one."""
LEAST_ROWS = 128
"""DMs that are summed together at least: fewer have less in common."""
ROOM = 1024
"""Events of a task that there is room for at first."""
ROWS = 16
"""Series that a task looks at."""


@dataclass
class Kept:
    """The series of one part of a table, in binned samples from the start of the sender's count.

    Attributes
    ----------
    rows : numpy.ndarray, shape (ndm, room)
        Sums; column 0 is sample ``origin``.
    levels : numpy.ndarray, shape (ndm, blocks, 2)
        Level and sigma of the latest blocks, by number modulo ``blocks``.
    block, reach : int
        Samples of a noise block, and of the widest window.
    origin, done : int
        First sample that is held, and the first that is not summed yet.
    begin : int
        The first block.
    newest : int
        The last block whose noise is known.
    looked : int
        All events centred before it have been given out.
    """

    rows: NDArray[Any]
    levels: NDArray[np.float64]
    block: int
    reach: int
    origin: int = 0
    done: int = 0
    begin: int = 0
    newest: int = -1
    looked: int = 0

    def make_room(self, count: int) -> None:
        """Let go of what no window and no noise will ask for, where ``count`` samples would find no room."""
        if self.done + count - self.origin <= self.rows.shape[1]:
            return
        first = max(self.origin, min(self.looked - 2 * self.reach, self.done // self.block * self.block))
        held = self.done - first
        for line in self.rows:
            line[:held] = line[first - self.origin : self.done - self.origin]
        self.origin = first


@dataclass(frozen=True)
class Part:
    """DMs of a table whose delays are much the same, so that none waits long for another's last samples.

    Attributes
    ----------
    number : int
        Of the table that they are rows ``first : stop`` of.
    """

    number: int
    first: int
    stop: int

    def of(self, table: Table) -> Table:
        """Their delays."""
        return Table(table.delays[self.first : self.stop], table.downsamp)

    def sought(self, what: Detection) -> Detection:
        """What is looked for in their series."""
        return replace(what, valid=what.valid[self.first : self.stop])


def parts_of(tables: Sequence[Table], tsamp: float) -> list[Part]:
    """Tables cut where delays have grown by `LAG`, into pieces of at least `LEAST_ROWS`."""
    parts = []
    for number, table in enumerate(tables):
        ends = table.delays.max(axis=1) * (table.downsamp * tsamp)
        first = 0
        for row in range(LEAST_ROWS, len(ends) - LEAST_ROWS + 1):
            if row - first >= LEAST_ROWS and abs(ends[row] - ends[first]) > LAG:
                parts.append(Part(number, first, row))
                first = row
        parts.append(Part(number, first, len(ends)))
    return parts


def joined(parts: Sequence[Part], found: Sequence[NDArray[np.float64]], count: int) -> list[NDArray[np.float64]]:
    """Events by table, of those by part."""
    every: list[list[NDArray[np.float64]]] = [[] for _ in range(count)]
    for part, rows in zip(parts, found, strict=True):
        every[part.number].append(rows + np.array([part.first, 0.0, 0.0, 0.0]))
    return [np.concatenate(rows) for rows in every]


class KeptSeries:
    """Series of all tables of a search.

    Parameters
    ----------
    engine : cpu.Engine
    tables : sequence of Table
        Of parts of them, see `parts_of`.
    looked : sequence of Detection
    step : int
        Samples, unbinned, that are summed at a time, at most.
    budget : int
        Bytes that engine and series may take.
    """

    def __init__(
        self, engine: Any, tables: Sequence[Table], looked: Sequence[Detection], step: int, budget: int
    ) -> None:
        self.engine, self.tables, self.step = engine, list(tables), step
        self.loaded = 0
        need = sum(self._columns(t, w) * len(t.delays) for t, w in zip(tables, looked, strict=True))
        need *= np.dtype(engine.dtype).itemsize
        if engine.bytes + need > budget:
            raise MemoryBudgetError(f"{step} samples of every DM, two blocks and the widest window",
                                    engine.bytes + need, budget)  # fmt: skip
        self.kept: list[Kept] = []
        for t, what in zip(tables, looked, strict=True):
            rows = np.zeros((len(t.delays), self._columns(t, what)), engine.dtype)
            blocks = (step // t.downsamp + 3 * what.widths[-1]) // what.block + 4
            levels = np.zeros((len(t.delays), blocks, 2))
            self.kept.append(Kept(rows, levels, what.block, what.widths[-1]))

    def _columns(self, table: Table, what: Detection) -> int:
        """Samples of a series that there is room for."""
        held = what.block + 3 * what.widths[-1] + 1
        return held + max(self.step // table.downsamp, what.block) + held

    def begin(self, first: int, low: int) -> None:
        """Samples are held from ``first`` on, the start of a block; events are wanted from ``low`` on."""
        self.loaded = first
        for t, k in zip(self.tables, self.kept, strict=True):
            k.origin = k.done = first // t.downsamp
            k.begin = k.done // k.block
            k.newest = k.begin - 1
            k.looked = low // t.downsamp

    @property
    def searched(self) -> list[int]:
        """Unbinned samples before which all events have been given out, by table."""
        return [k.looked * t.downsamp for t, k in zip(self.tables, self.kept, strict=True)]

    def search(self, filled: int, looked: Sequence[Detection], last: bool) -> list[NDArray[np.float64]] | None:
        """Go on with samples before ``filled``, by a step at most; ``last``: no more will come.

        Returns
        -------
        list of numpy.ndarray
            As `searching.Job.look` gives, of the events that have become final; None where there is nothing to do.
        """
        first = min(k.done * t.downsamp for t, k in zip(self.tables, self.kept, strict=True))
        end = min(filled, first + self.engine.capacity)
        goals, busy = [], False
        for t, k in zip(self.tables, self.kept, strict=True):
            goal = k.done + self.step // t.downsamp
            if self.step // t.downsamp <= k.block:  # a step ends with its block, whose noise is known then
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
        """Sum one table's series up to ``goal`` and look at them; ``last``: they end there."""
        k = self.kept[number]
        if goal > k.done:
            k.make_room(goal - k.done)
            self.engine.sums(number, k.done, goal - k.done, k.rows, k.done - k.origin)
            k.done = goal
        valid = np.minimum(what.valid, k.done)
        newest = (-(-k.done // k.block) if last else k.done // k.block) - 1
        high = k.done if last else max(k.looked, (newest + 1) * k.block - k.reach - 1)
        if high <= k.looked and newest == k.newest:
            return np.empty((0, 4))
        found = self.look(k, valid, newest, k.looked, high, what)
        k.newest, k.looked = newest, max(high, k.looked)
        check_events(len(found), what)
        return found

    def look(
        self, k: Kept, valid: NDArray[np.int64], newest: int, low: int, high: int, what: Detection
    ) -> NDArray[np.float64]:
        """Noise of the blocks that are new and events centred on ``low : high``, all rows, by all threads."""
        rows = len(k.rows)
        each = max(1, min(ROWS, -(-rows // (4 * self.engine.pool.workers))))
        tasks: list[Callable[[], NDArray[np.float64]]] = [
            partial(self._look, k, r, min(r + each, rows), valid, newest, low, high, what) for r in range(0, rows, each)
        ]
        return np.concatenate(self.engine.pool.run(tasks))

    def _look(
        self, k: Kept, row: int, stop: int, valid: NDArray[np.int64], newest: int, low: int, high: int,
        what: Detection,
    ) -> NDArray[np.float64]:  # fmt: skip
        """Noise of the blocks that are new, and events, of some rows."""
        from . import cpu_series

        sums, levels = k.rows[row:stop], k.levels[row:stop]
        spare = what.scratch(sums.dtype)
        for number in range(k.newest + 1, newest + 1):
            cpu_series.noise_of_block(
                sums, valid[row:stop], k.origin, number, k.block, k.begin, what.noise_code, spare, levels
            )
        begin = max(k.begin * k.block, low - 2 * k.reach)
        widths = np.array(what.widths, np.int64)
        scales = (1 / (UNIT * np.sqrt(widths))).astype(np.float32)
        found = np.empty((ROOM, 4))
        while True:
            n = cpu_series.search_kept(
                sums, valid[row:stop], k.origin, begin, low, high, k.block, newest, levels, widths, scales,
                np.float32(what.threshold), what.every, found,
            )  # fmt: skip
            if n <= len(found):
                break
            found = np.empty((n, 4))
        found[:n, 0] += row
        return found[:n].copy()

    def warm(self, at: int, looked: Sequence[Detection]) -> None:
        """Load every kernel and make every plan, on what the source gives from sample ``at`` on."""
        self.begin(at, at)
        while any(k.newest < k.begin for k in self.kept):
            self.search(at + 2 * self.engine.capacity, looked, False)
