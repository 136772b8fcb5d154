"""The CPU backend: divides maps into tiles that fit the caches and computes them on all cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.device import resolve
from skysieve.core.machine import rates
from skysieve.core.tasks import TaskPool
from skysieve.fstat import precision, timing
from skysieve.fstat.contract import (
    FALLBACK,
    MapJob,
    Output,
    Spec,
    TilePart,
    blank,
    description,
    live_rows,
    write_tiles,
)
from skysieve.fstat.inputs.checks import refuse_map
from skysieve.fstat.inputs.grid import Schedule
from skysieve.fstat.inputs.window_kinds import Algorithm

from . import exp, rect, state
from .any import Group, Tally, any_columns, by_columns, groups_of
from .bsgl import Best, LineTasks, best_of
from .crew import Crew
from .simd import ROWS, lanes_of
from .state import Columns, March, Typed, lal_exp

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOGETHER, VALUES = 64, 2**17
"""Most templates with maps of one tile in one call of a kernel, whose preparation takes 0.2 ms; and most numbers of
their bins, which then stay in the second-level cache."""
FEW_CELLS = 500_000
"""Below this number of cells and steps, rectangular and exponential maps use one thread: they take half a millisecond,
which is also the time in which another thread wakes up."""


@dataclass(frozen=True)
class Tiles:
    """Answers of a kernel for the same tile of several templates; ``best`` has F, row, column, fallbacks and ``ln sum
    exp F`` of each."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    best: NDArray[np.float64]
    row_log: NDArray[np.float64]
    column_log: NDArray[np.float64]

    @classmethod
    def blank(cls, count: int, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Tiles:
        """Arrays for `count` templates."""
        logs = [np.full((count, one.size), -np.inf) for one in (rows, columns)]
        return cls(rows, columns, np.zeros((count, 5)), *logs)

    def part(self, k: int) -> TilePart:
        """The answers for one of the templates."""
        F, row, column, missed, total = self.best[k].tolist()
        logs = self.row_log[k], self.column_log[k]
        return TilePart(self.rows, self.columns, F, int(row), int(column), int(missed), total, *logs)

    def write(self, at: NDArray[np.int64], n: int, output: Output) -> None:
        """Write the results of the templates `at`, whose maps of ``n`` columns are this tile."""
        F, row, column, missed, total = self.best.T
        output.max_F[at], output.log_sum[at] = F, total
        output.index[at], output.n_fallback[at] = (row * n + column).astype(np.int64), missed.astype(np.int64)
        if output.row_log is not None and output.column_log is not None:
            output.row_log[np.ix_(at, self.rows)] = self.row_log
            output.column_log[np.ix_(at, self.columns)] = self.column_log


def parts_of(run: Callable[..., Tiles | None], *args: Any) -> list[TilePart]:
    """The answers of a kernel for one template."""
    found = run(*args)
    return [] if found is None else [found.part(0)]


def _each(out: NDArray[Any], x: NDArray[Any]) -> NDArray[Any]:
    """The maps to write, or arrays without values: one for each template of ``x``."""
    return out if out.size else np.empty((len(x), 0, 0), out.dtype)


class Engine:
    """Transient F-statistic maps on the host's cores; see `contract.Engine`.

    Parameters
    ----------
    spec : Spec
        What to compute.
    device : Device, optional
        The host, for its name.
    memory : str or float, optional
        Budget for the map; 80% of the free memory by default.
    threads : int, optional
        Threads; all usable cores by default.
    """

    def __init__(
        self, spec: Spec, device: Any = None, memory: str | float | None = None, threads: int | None = None
    ) -> None:
        self.spec = spec
        self.name = "cpu" if device is None else str(device)
        self.typed = Typed.of(spec.dtype)
        self.memory = memory
        self.pool = TaskPool(threads)
        self.crew = Crew(self.pool.workers)
        self._march_of: tuple[Schedule, March] | None = None
        self._live: tuple[Schedule, NDArray[np.int64]] | None = None
        self.lines = LineTasks(spec, self.typed, self.pool.workers) if spec.lines else None
        self._others: dict[int, Engine] = {}

    @property
    def nbytes(self) -> int:
        """See `contract.Engine.nbytes`: the tables of the last grid."""
        held = [] if self._march_of is None else list(vars(self._march_of[1]).values())
        held += [] if self._live is None else [self._live[1]]
        own = sum(one.nbytes for one in held if isinstance(one, np.ndarray))
        return own + sum(other.nbytes for other in self._others.values())

    def close(self) -> None:
        """Free the threads."""
        for other in self._others.values():
            other.close()
        self.pool.close()
        self.crew.close()

    def describe(self, job: MapJob) -> dict[str, Any]:
        """See `contract.Engine.describe`."""
        method = str(self.spec.window.algorithm)
        if by_columns(self.spec):
            groups = groups_of(job, job.bank, 0, live_rows(job.schedule), self.spec.lal)
            costs = [g.seconds(self.spec.window) for g in groups]
            each = [direct if self.spec.lal else np.minimum(direct, other) for direct, other in costs]
            model = sum(float(column.sum()) for column in each)
            work = {"weights": model * job.n_templates}
            times = rates.predicted("fstat", resolve("cpu")[0], work, self.pool.workers)
            if self.spec.lal or all((direct <= other).all() for direct, other in costs):
                method = str(Algorithm.WEIGHTS)
            elif method == Algorithm.WEIGHTS:
                method = "fourier"
        else:
            times = self._predicted(job)
        return description(job, method, self.name, self.typed.dtype, self.map_bytes(job), times)

    def _predicted(self, job: MapJob) -> dict[str, float | None]:
        """Predicted times of all templates, by the model of `timing`; None without measured constants.

        The constants are processor seconds of one core.  The cores share the templates or, for one template, all
        but the constant part of a call.
        """
        spec = self.spec
        aligned = bool((job.schedule.group == job.schedule.group[0]).all())
        counts = timing.terms(job, spec.window.algorithm == Algorithm.RECURRENCE)
        kind: timing.Kind = "steps" if aligned and timing.stepped(job.schedule) else ""
        if spec.window.algorithm == Algorithm.RUNNING_SUMS and self.typed.dtype == np.float32:
            kind = "sparse" if counts[2] > rect.SPARSE * counts[3] else kind
        words = [spec.window.algorithm, "groups" * (not aligned), kind, "map" * spec.keep_map]
        name = f"{rates.processor()}, {' '.join(filter(None, words))}, {self.typed.dtype}"
        engine = Engine(Spec(spec.window, spec.dtype, keep_map=spec.keep_map), threads=1)
        cases = partial(
            timing.host_cases, spec.window, self.typed.dtype, engine.execute, not aligned, spec.keep_map, kind
        )
        constants = timing.constants(name, cases)
        if constants is None:
            return {"seconds": None, "processor_seconds": None}
        calls = -(-job.n_templates // self._at_once(job, live_rows(job.schedule)))
        each = float(constants[0] * counts[0]) * calls / job.n_templates
        work = float(constants[1:] @ counts[1:])
        workers = self.pool.workers
        one_thread_each = job.n_templates >= 2 * workers
        seconds = (each + work) / workers if one_thread_each else each + work / workers
        return {"seconds": job.n_templates * seconds, "processor_seconds": job.n_templates * (each + work)}

    def map_bytes(self, job: MapJob) -> int:
        """Bytes of the maps that are in memory at the same time."""
        rows, columns = job.schedule.shape
        count = job.n_templates if self.spec.keep_map else int(self.spec.lal)
        return rows * columns * self.typed.dtype.itemsize * count

    def execute(self, job: MapJob, progress: Any = None) -> Output:
        """See `contract.Engine.execute`."""
        refuse_map(job.schedule.shape, self.map_bytes(job), self.spec.lal, self.memory)
        output = Output.allocate(job.n_templates, job.schedule.shape, self.spec)
        if self.spec.sums == "usual" and not self.spec.lal:
            levels = precision.levels_of(job, self.spec)
            if levels.any():
                return precision.run_by_level(job, self.spec, levels, output, self._part, progress)
        return self._execute(job, output, progress)

    def _part(self, job: MapJob, level: int) -> Output:
        """The results for some templates, with sums of one level of precision."""
        if level == precision.USUAL:
            return self._execute(job, Output.allocate(job.n_templates, job.schedule.shape, self.spec), None)
        if level not in self._others:
            self._others[level] = Engine(
                precision.spec_of(self.spec, level), memory=self.memory, threads=self.pool.workers
            )
        return self._others[level].execute(job)

    def _execute(self, job: MapJob, output: Output, progress: Any) -> Output:
        if self._live is None or self._live[0] is not job.schedule:
            self._live = job.schedule, live_rows(job.schedule)
        live = self._live[1]
        if output.F is not None:
            blank(output.F, job.schedule)
        if self.spec.lal:
            spare = (
                np.empty((0, 0), self.spec.dtype) if output.F is not None else np.full(job.schedule.shape, np.nan, "f4")
            )
            for i in range(job.n_templates):
                out = spare if output.F is None else output.F[i]
                self._lal(self._tasks(job, i, live, out), out, output, i)
            return output
        if self._at_once(job, live) > 1:
            for i in self._together(job, live, output).tolist():
                self._template(job, i, live, output, None)
            return output
        if job.n_templates >= 2 * self.pool.workers > 2:
            whole = [partial(self._template, job, i, live, output, None) for i in range(job.n_templates)]
            self.pool.run(whole, progress=progress)
            return output
        rows, columns = job.schedule.shape
        steps = job.n * (columns if self.spec.window.algorithm == Algorithm.RECURRENCE else rows)
        small = not by_columns(self.spec) and max(rows * columns, steps) < FEW_CELLS
        for i in range(job.n_templates):
            inner = progress if job.n_templates == 1 else None
            self._template(job, i, live, output, partial(self.crew.run, progress=inner, alone=small))
            if progress is not None and job.n_templates > 1:
                progress(i + 1, job.n_templates)
        return output

    def _template(self, job: MapJob, i: int, live: NDArray[np.int64], output: Output, run: Any) -> None:
        """Compute one template: make tasks, run them (in turn if `run` is None) and combine the results."""
        out = np.empty((0, 0), self.spec.dtype) if output.F is None else output.F[i]
        maps = self._tasks(job, i, live, out)
        lines = self.lines.tasks(job, i, live) if self.lines else []
        tasks: list[Callable[[], list[Any]]] = [*maps, *lines]
        found = run(tasks) if run else [task() for task in tasks]
        columns = job.schedule.shape[1]
        write_tiles([part for parts in found[: len(maps)] for part in parts], columns, output, i)
        best: list[Best] = [one for some in found[len(maps) :] for one in some]
        top = best_of(best, columns)
        if top is not None and output.line_max is not None and output.line_index is not None:
            output.line_max[i], output.line_index[i] = top[0], top[1] * columns + top[2]

    # ------------------------------------------------------------------ one template
    def _tasks(
        self, job: MapJob, i: int, rows: NDArray[np.int64], out: NDArray[Any]
    ) -> list[Callable[[], list[TilePart]]]:
        if rows.size == 0:
            return []
        if by_columns(self.spec):
            return [partial(self._any, job, g, out) for g in groups_of(job, job.bank, i, rows, self.spec.lal)]
        if self.spec.window.algorithm == Algorithm.RECURRENCE:
            return self._exp_tasks(job, i, rows, out)
        return self._rect_tasks(job, i, rows, out)

    def _at_once(self, job: MapJob, rows: NDArray[np.int64]) -> int:
        """Number of templates that a call of a kernel computes: several, if the map of each is one tile."""
        several = job.n_templates > 1 and self.pool.workers == 1 and not self.spec.keep_map and self.lines is None
        if not several or self.spec.lal or by_columns(self.spec) or rows.size == 0:
            return 1
        s = job.schedule
        aligned = bool((s.group[rows] == s.group[rows[0]]).all())
        if self.spec.window.algorithm == Algorithm.RECURRENCE:
            fits = aligned and s.shape[1] <= exp.BLOCK_COLUMNS
        else:
            fits = (aligned and rows.size <= rect.ROWS) or self._sparse(job, rows)
        return min(TOGETHER, max(1, VALUES // (7 * job.n))) if fits else 1

    def _together(self, job: MapJob, rows: NDArray[np.int64], output: Output) -> NDArray[np.int64]:
        """Compute templates, `_at_once` in each call of a kernel; return those that need calls of their own."""
        every = np.arange(job.n_templates)
        out = np.empty((0, 0, 0), self.spec.dtype)
        work: list[tuple[NDArray[np.int64], Callable[[NDArray[np.int64]], Tiles | None]]] = []
        if self.spec.window.algorithm == Algorithm.RECURRENCE:
            order = self._march(job, rows)
            nearest = state.next_occupied(job.occupied, order.before)
            ends = 0, job.schedule.shape[1]
            work.append((every, lambda some: self._exp_blocks(
                job, (*order.streams(job.bank, some), nearest), order, *ends, out)))  # fmt: skip
        else:
            lone = self._row_by_row(job, every, rows)
            counts = np.concatenate([[0], np.cumsum(job.occupied)])
            work.append((every[lone], lambda some: self._rect_rows(
                job, self._running_sums(job, some), counts, rows, out)))  # fmt: skip
            tiles = state.tiles(job.schedule, rows, rect.ROWS)
            if len(tiles) == 1:
                before, after = self._padding(job, rows, tiles)
                work.append((every[~lone], lambda some: self._rect(
                    job, state.all_padded(job.bank, some, before, after), before, rows, out)))  # fmt: skip
        step = self._at_once(job, rows)
        for several, run in work:
            for some in np.split(several, range(step, several.size, step)):
                if some.size and (found := run(some)) is not None:
                    found.write(some, job.schedule.shape[1], output)
        return np.setdiff1d(every, np.concatenate([several for several, _ in work]))

    def _padding(self, job: MapJob, rows: NDArray[np.int64], tiles: Sequence[NDArray[np.int64]]) -> tuple[int, int]:
        """Numbers of zero bins before and after the data for rows in these tiles."""
        first = job.schedule.first
        return max(0, -int(first[rows].min())), max(int(first[p[-1]] - first[p[0]]) for p in tiles) + 1

    def _running_sums(self, job: MapJob, some: NDArray[np.int64]) -> NDArray[np.float64]:
        """Sums of the bins before each bin, shape (templates, 7, n + 1)."""
        x = np.empty((some.size, 7, job.n), job.dtype)
        job.bank.fill(some, x)
        sums = np.zeros((some.size, 7, job.n + 1))
        np.cumsum(x, axis=2, dtype=np.float64, out=sums[:, :, 1:])
        return sums

    def _rect_tasks(
        self, job: MapJob, i: int, rows: NDArray[np.int64], out: NDArray[Any]
    ) -> list[Callable[[], list[TilePart]]]:
        s, one = job.schedule, np.array([i])
        if self._row_by_row(job, one, rows)[0]:
            sums, counts = self._running_sums(job, one), np.concatenate([[0], np.cumsum(job.occupied)])
            parts = min(self.pool.workers, -(-rows.size // ROWS))
            return [
                partial(parts_of, self._rect_rows, job, sums, counts, some, out[None])
                for some in np.array_split(rows, parts)
            ]
        pieces = state.tiles(s, rows, rect.ROWS)
        before, after = self._padding(job, rows, pieces)
        x = state.all_padded(job.bank, one, before, after)
        pieces.sort(key=lambda p: int(s.first[p[0]]))
        return [partial(parts_of, self._rect, job, x, before, piece, out[None]) for piece in pieces]

    def _sparse(self, job: MapJob, rows: NDArray[np.int64]) -> bool:
        """Whether rows are better summed one by one, for templates whose weights and data allow it.

        Either the grid has far fewer cells than there are bins to add in its rows, or few rows start at the same place
        within a bin, so that tiles would hold few rows.
        """
        if self.spec.lal or self.typed.dtype != np.float32 or not job.occupied.any():
            return False
        s = job.schedule
        longest = np.minimum(s.length[s.group[rows], -1], job.n - s.first[rows])
        groups = len(s.length)  # of the whole grid, so that any part of it makes the same choice
        scattered = groups > 1 and s.shape[0] < rect.FEW_ROWS * groups
        return scattered or float(longest.sum()) > rect.SPARSE * rows.size * s.shape[1]

    def _row_by_row(self, job: MapJob, some: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the rows of some templates are summed one by one, see `_sparse`."""
        if not self._sparse(job, rows):
            return np.zeros(some.size, bool)
        data = job.bank.data[some]
        size = np.abs(data[:, 0, job.occupied])
        middle = size.shape[1] // 2
        fits = np.abs(data).max(axis=(1, 2)) <= rect.WILD * np.partition(size, middle, axis=1)[:, middle]
        if job.bank.span is not None:
            largest, smallest = job.bank.span if job.shared else job.bank.span[:, some]
            fits &= ~(largest > rect.RANGE * smallest)
        return np.asarray(fits)

    def _rect_rows(
        self, job: MapJob, P: NDArray[np.float64], counts: NDArray[np.int64], rows: NDArray[np.int64], out: NDArray[Any]
    ) -> Tiles:
        s, typed, columns = job.schedule, self.typed, job.schedule.shape[1]
        S, lines = np.zeros((7, columns), typed.dtype), np.zeros((3, columns), typed.dtype)
        bits, scale = typed.bits(columns)
        found = Tiles.blank(len(P), rows, np.arange(columns))
        rect.rect_rows_of_all(
            P, counts, job.n, rows, s.first[rows], s.group[rows], s.length, s.valid_from, typed.bound, typed.k,
            typed.poly, S, lines, bits, scale, out.size > 0, np.zeros(columns), _each(out, P), found.row_log,
            found.column_log, found.best,
        )  # fmt: skip
        return found

    def _rect(self, job: MapJob, x: NDArray[Any], before: int, rows: NDArray[np.int64], out: NDArray[Any]) -> Tiles:
        s, typed, columns = job.schedule, self.typed, job.schedule.shape[1]
        g = int(s.group[rows[0]])
        n0 = int(s.valid_from[g])
        first = s.first[rows]
        work = np.zeros((10, len(rows)), typed.dtype)
        bits, scale = typed.bits(len(rows))
        tile = np.zeros((rect.COLUMNS, len(rows)), typed.dtype)
        found = Tiles.blank(len(x), rows, np.arange(columns))
        rect.rect_tiles(
            x, int(first[0]) + before, job.n - int(first[0]), rows, (first - first[0]).astype(np.uint64), s.length[g],
            n0, typed.bound, self.spec.lal, typed.k, typed.poly, work, bits, scale, tile, out.size > 0,
            np.zeros(len(rows)), _each(out, x), found.row_log, found.column_log, found.best,
        )  # fmt: skip
        found.best[:, 1] = rows[found.best[:, 1].astype(int)]
        return found

    def _exp_tasks(
        self, job: MapJob, i: int, rows: NDArray[np.int64], out: NDArray[Any]
    ) -> list[Callable[[], list[TilePart]]]:
        order = self._march(job, rows)
        pieces = self._exp_pieces(job, order)
        if order.one_group:
            x, fine = order.streams(job.bank, np.array([i]))
            stream = x, fine, state.next_occupied(job.occupied, order.before)
            return [partial(parts_of, self._exp_blocks, job, stream, order, a, b, out[None]) for a, b in pieces]
        several = order.stream_of(job.bank, i)
        return [partial(self._exp, job, several, order, a, b, out) for a, b in pieces]

    def _exp_pieces(self, job: MapJob, order: March) -> list[tuple[int, int]]:
        """Ranges of columns of the tiles."""
        workers, columns, size = self.pool.workers, job.schedule.shape[1], exp.COLUMNS
        if order.one_group:
            size = exp.BLOCK_COLUMNS
            if workers > 1:  # three tiles for each thread, since tiles of long durations take less time
                size = min(size, max(exp.FEWEST_COLUMNS, -(-columns // (3 * workers))))
        return state.column_tiles(columns, size, workers)

    def _march(self, job: MapJob, rows: NDArray[np.int64]) -> March:
        """The order of the rows of a schedule; the order for the last schedule is cached."""
        if self._march_of is None or self._march_of[0] is not job.schedule:
            self._march_of = job.schedule, March.of(job, rows, self.typed.dtype)
        return self._march_of[1]

    def _exp_blocks(
        self, job: MapJob, stream: tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]], order: March, a: int, b: int,
        out: NDArray[Any],
    ) -> Tiles | None:  # fmt: skip
        typed = self.typed
        c = Columns.of(order, a, b)
        if c is None:
            return None
        skip = int(c.skip[order.groups[0]])
        vector = lanes_of(typed.dtype.itemsize)
        length, weights = c.filled(vector, order.step)
        whole = length.size
        S, F = np.zeros((7, whole), typed.dtype), np.zeros((ROWS, whole), typed.dtype)
        thin = np.zeros((7, ROWS, 1 if order.step else whole), typed.dtype)
        ends, places = np.zeros((3, ROWS, vector), typed.dtype), np.zeros((3, ROWS), np.int64)
        work, lanes = np.zeros((2, whole), typed.dtype)
        x, fine, nearest = stream
        found = Tiles.blank(len(x), order.rows, np.arange(a, b))
        row_log = np.full((len(x), job.schedule.shape[0]), -np.inf)
        exp.exp_blocks_of_all(
            x, fine, thin, nearest, order.step, order.before, job.n, order.rows, order.firsts, length, b - a, skip,
            weights, typed.bound, typed.k, S, F, ends, places, work, lanes, out.size > 0, np.zeros(whole),
            _each(out, x), a, row_log, found.column_log, found.best,
        )  # fmt: skip
        found.best[:, 2] += a
        return replace(found, row_log=row_log[:, order.rows])

    def _exp(
        self, job: MapJob, stream: list[NDArray[Any]], order: March, a: int, b: int, out: NDArray[Any]
    ) -> list[TilePart]:
        typed, width = self.typed, b - a
        c = Columns.of(order, a, b)
        if c is None:
            return []
        S, T, Z = (np.zeros((7, width), typed.dtype) for _ in range(3))
        lines = np.zeros((3, width), typed.dtype)
        bits, scale = typed.bits(width)
        sums, row_log = np.zeros(width), np.full(job.schedule.shape[0], -np.inf)
        column_log, best = np.zeros(width), np.zeros(5)
        exp.exp_tile(
            *stream, order.step, order.before, job.n, order.rows, order.firsts, order.groups,
            c.length.astype(np.uint64), c.more, c.skip, c.weights, typed.bound, typed.k, typed.poly, S, T, Z,
            lines, bits, scale, out.size > 0, sums, out, a, row_log, column_log, best,
        )  # fmt: skip
        columns = np.arange(a, b)
        where = float(best[0]), int(best[1]), a + int(best[2]), int(best[3]), float(best[4])
        return [TilePart(order.rows, columns, *where, row_log[order.rows], column_log)]

    # ------------------------------------------------------------------ any window
    def _any(self, job: MapJob, group: Group, out: NDArray[Any]) -> list[TilePart]:
        typed = self.typed if self.spec.lal else Typed.of(np.float64)
        tally = Tally(group.rows, job.schedule.shape[1])
        exact = self.spec.sums == "exact"
        for c, F in any_columns(group, self.spec.window, job.taus, typed, self.spec.lal, exact):
            if out.size:
                out[group.rows, c] = F
            if not self.spec.lal:
                tally.add(c, F.astype(self.spec.dtype))
        return [tally.part()]

    # ------------------------------------------------------------------ LALPulsar's arithmetic
    def _lal(self, tasks: list[Callable[[], list[TilePart]]], F: NDArray[Any], output: Output, i: int) -> None:
        """Compute the map first, and then its statistics with LALPulsar's table of exponentials."""
        self.pool.run(tasks)
        values = F.astype(np.float64)
        good = np.isfinite(values)
        if not good.any():
            return
        output.index[i] = int(np.nanargmax(values))
        high = output.max_F[i] = float(values.ravel()[output.index[i]])
        e = np.zeros(values.shape)
        e[good] = lal_exp(high - values[good])
        with np.errstate(divide="ignore"):
            output.log_sum[i] = high + np.log(e.sum())
            if output.row_log is not None and output.column_log is not None:
                output.row_log[i] = high + np.log(e.sum(axis=1))
                output.column_log[i] = high + np.log(e.sum(axis=0))
        output.n_fallback[i] = int(np.count_nonzero(values == FALLBACK))
