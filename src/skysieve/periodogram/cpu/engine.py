"""The CPU backend: reads, cleans and searches light curves, a chunk of objects at a time, on all cores."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.cpu.jit import FirstAnswers, compile_beside, interpreted_if_small, read_only
from skysieve.core.errors import MemoryBudgetError
from skysieve.core.memory import available_host_memory, parse_budget
from skysieve.core.progress import Progress, Reporter
from skysieve.core.tasks import TaskPool, job_share, usable_cores
from skysieve.periodogram.contract import METHODS, Grids, Output, Scan, Source, Spec, for_each
from skysieve.periodogram.numerics import nufft
from skysieve.periodogram.numerics.fourier import Model
from skysieve.periodogram.numerics.normalization import NORMALIZATIONS

from . import cost, search, state, vectors
from .chunk import TASKS_PER_THREAD, ChunkSearch
from .comb_simd import LANES
from .finufft import COMPILED, finufft_object
from .prepare import OK, SINGULAR, prepare, scan

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK_BYTES = 64 << 20
"""Bytes of prepared rows and copies of a chunk of objects: large against overheads, small against memory."""
ROW_BYTES = 48
"""Bytes of a row: t, y, dy as read (if copied), and t, w, w y as prepared."""
FINUFFT_ROW_BYTES = 110
"""Bytes of a row that finufft needs; 104 are measured."""
MAX_OBJECTS = 65536
OBJECT_STEPS, ROW_STEPS = 150, 0.15
"""Microseconds of `prepare`, and at most of `scan`, by the interpreter: for an object and for a row."""
GUARD = {np.dtype(np.float64): 0.15, np.dtype(np.float32): 0.3}
"""Powers with CC SS - CS^2 below this over the square root of the number of points are computed again by exact sums.
The error of a power is that of the sums over CC SS - CS^2; without a guard, error times CC SS - CS^2 times the square
root of the number of points was at most 1.5e-10 (float32: 7e-7) over curves of 10 to 300 points.  Divided by this
limit, that is an error of 1e-9 (2.3e-6; 2e-6 from 40 points on)."""
DIRECT_GUARD = {np.dtype(np.float64): 1e-2, np.dtype(np.float32): 0.1}
"""As `GUARD`, for direct sums, which have rounding errors only."""
WORTH_SPLITTING = 1.5e-3
"""Seconds of an object below which several threads are not faster than one."""
FIRST_SECONDS = 7.0 if usable_cores() > 1 else 2.0
"""Processor time of first answers without compiled code in one process.  After it the search is compiled, which takes
longer.  The limit is lower on one core, where no other process compiles the search for later answers."""
BESIDE_SECONDS = 1.0
"""After this much of it, at the end of a job, another process compiles the search for later jobs."""
LATER = "from skysieve.periodogram.command.warm_up import later; later('{}')"
FIRST_BYTES = 512 << 20
"""Working memory of first answers, if no limit is given."""
SERIES_SECONDS = 4 / 7
"""Seconds of first answers of series that count as one second."""
KEPT_BYTES = 32 << 20
SMALL_SCRATCH = 1 << 30
"""Scratch of all threads for which the free memory is not asked for."""


first_answers = FirstAnswers(FIRST_SECONDS)
_scratch = threading.local()
"""Scratch of each thread, which is used again in later calls: new pages cost more than a small search."""
NUFFT, DIRECT, FINUFFT = (METHODS.index(m) for m in ("nufft", "direct", "finufft"))


class Engine:
    """Lomb-Scargle on the host's cores; see `contract.Engine`.

    Parameters
    ----------
    spec : Spec
        What to compute.
    device : Device, optional
        The host.
    memory : str or float, optional
        Working memory; bounds the rows of a chunk.  An object that needs more by itself is a MemoryBudgetError.
    threads : int, optional
        Threads; all usable cores by default.
    """

    def __init__(
        self, spec: Spec, device: Any = None, memory: str | float | None = None, threads: int | None = None
    ) -> None:
        self.spec = spec
        self.dtype = np.dtype(spec.dtype)
        if self.dtype not in nufft.KERNELS:
            raise ValueError(f"dtype={spec.dtype!r}: expected float64 or float32")
        self.normalization = NORMALIZATIONS[spec.normalization]
        self.form = self.normalization.form
        self.bounded = None if memory is None else parse_budget(memory, available_host_memory())
        self.budget = CHUNK_BYTES if self.bounded is None else min(CHUNK_BYTES, self.bounded)
        self.pool = TaskPool(threads)
        self.largest_scratch = 0
        self.fast = False
        """Whether the methods of long searches are compiled."""
        self.model = None if spec.nterms == 1 else Model.single(spec.nterms, spec.fit_mean)

    @property
    def idle_bytes(self) -> int:
        """Bytes of scratch that the threads hold at most between calls."""
        return self.pool.workers * self.largest_scratch

    def close(self) -> None:
        """Stop the threads, and free large scratch of the calling thread."""
        self.pool.close()
        self.free_scratch()

    def free_scratch(self) -> None:
        """Free large scratch of the calling thread."""
        for name, work in list(_scratch.__dict__.items()):
            if sum(a.nbytes for a in work) > KEPT_BYTES:
                delattr(_scratch, name)
        if self.model is not None:
            from skysieve.periodogram.cpu.fourier import series

            series.free_scratch()

    def threads_of_one(self, method: int, rows: int) -> int:
        """Threads whose scratch for one light curve fits into half of the free memory, where no limit was given."""
        needed = rows * self._bytes_of_row(method)
        if self.bounded is not None or needed * self.pool.workers <= SMALL_SCRATCH:
            return self.pool.workers
        return max(1, min(self.pool.workers, available_host_memory() // 2 // needed))

    def chunks(self, source: Source) -> list[tuple[int, int]]:
        """Ranges of objects whose rows fit the budget (or single objects that do not)."""
        offsets, n = source.offsets, source.n_objects
        rows = max(1, self.budget // ROW_BYTES)
        if 0 < n <= MAX_OBJECTS and offsets[-1] <= rows:
            return [(0, n)]
        out, start = [], 0
        while start < n:
            stop = int(np.searchsorted(offsets, offsets[start] + rows, side="right")) - 1
            stop = min(max(stop, start + 1), start + MAX_OBJECTS, n)
            out.append((start, stop))
            start = stop
        return out

    def scan(self, source: Source) -> Scan:
        """See `contract.Engine.scan`."""
        n = source.n_objects
        used, status = np.zeros(n, np.int64), np.zeros(n, np.uint8)
        t_min, span = np.full(n, np.nan), np.full(n, np.nan)
        kind = (self.spec.min_points, self.spec.centred)
        for start, stop in self.chunks(source):
            t, y, dy, offsets = source.read(start, stop)
            t, y, errors, offsets = read_only(t, y, t[:0] if dy is None else dy, offsets)
            views = [a[start:stop] for a in (used, t_min, span, status)]
            run = interpreted_if_small(scan, OBJECT_STEPS * (stop - start) + ROW_STEPS * len(t))
            self._spread(stop - start, lambda a, b: run(t, y, errors, dy is not None, offsets, a, b, *kind, *views))  # noqa: B023
        return Scan(used, np.diff(source.offsets) - used, t_min, span, status)

    def execute(self, source: Source, grids: Grids, output: Output, progress: Progress | None = None) -> None:
        """See `contract.Engine.execute`."""
        reporter = Reporter(progress, source.n_objects)
        power_start = grids.offsets(source.n_objects)
        for start, stop in self.chunks(source):
            self._chunk(source, grids, output, power_start, start, stop, reporter)
        if self.model is None and first_answers.seconds > BESIDE_SECONDS and job_share() == 1:
            compile_beside(LATER.format(self.dtype.name), search.search)

    def describe(self, source: Source, grids: Grids) -> dict[str, Any]:
        """See `contract.Engine.describe`."""
        seen = self.scan(source)
        n, nf = seen.n_used, np.broadcast_to(grids.nf, seen.n_used.shape)
        ok = (seen.status == OK) & (nf > 0)
        cycles = (seen.span * np.broadcast_to(grids.df, seen.span.shape))[ok]
        method, _, seconds = self._choose(n[ok], nf[ok], cycles, grids.values is None)
        largest = int(np.diff(source.offsets).max(initial=0))
        used = [METHODS[i] for i in np.unique(method)]
        scratch = max(
            (self.threads_of_one(int(i), largest) * self._bytes_of_row(int(i)) for i in np.unique(method)), default=0
        )
        working = int(max(self.budget, ROW_BYTES * largest)) + scratch * largest
        return {
            "method": ", ".join(used) or self.spec.method,
            "device": "cpu",
            "bytes": working + (int(nf.sum()) * self.dtype.itemsize if self.spec.return_power else 0),
            "work": self._work(method, seconds),
            "threads": self.pool.workers,
        }

    def _work(self, method: NDArray[np.uint8], seconds: NDArray[np.float64]) -> dict[str, float]:
        """The seconds of the cost model, of each method, for `core.machine.rates`: each has a rate of its own."""
        if self.model is None:
            kind = self.dtype.name
        else:
            kind = "bands" if self.spec.model is not None else "terms"
        sums = {f"{METHODS[i]} {kind}": float(seconds[method == i].sum()) for i in np.unique(method)}
        return {"calls": 1.0} | sums

    def _choose(
        self, n: NDArray[Any], nf: NDArray[Any], cycles: NDArray[Any], regular: bool
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.float64]]:
        """Method, combs and expected seconds of each object."""
        if self.model is None:
            return cost.choose(n, nf, cycles, self.dtype, self.spec.method, regular)
        from skysieve.periodogram.cpu.fourier import series

        return series.choose(self.model, n, nf, cycles, self.spec.method, regular)

    def _first(self, n: NDArray[Any], nf: NDArray[Any], regular: bool) -> tuple[int, NDArray[np.float64]]:
        """Method of a first answer, without compiled code, and expected seconds of each object."""
        if self.model is None:
            room = FIRST_BYTES if self.bounded is None else self.bounded
            return vectors.first(n, nf, room // (vectors.MODE_BYTES * self.pool.workers) if regular else 0)
        from skysieve.periodogram.cpu.fourier import series

        return series.first(self.model, n, nf, regular)

    def _bytes_of_row(self, method: int) -> int:
        """Bytes of scratch that a thread needs for each row of a light curve."""
        if method == FINUFFT:
            return FINUFFT_ROW_BYTES
        if self.model is None:
            return state.bytes_of_row(self.dtype, method == NUFFT)
        from skysieve.periodogram.cpu.fourier import series

        return series.bytes_of_row(self.model, method == NUFFT)

    def _refuse_large(
        self, objects: NDArray[np.int64], rows: NDArray[np.int64], method: NDArray[Any], large: NDArray[np.bool_]
    ) -> None:
        """Refuse objects that do not fit into the memory that was given, each by itself."""
        if self.bounded is None:
            return
        scratch = np.array([self._bytes_of_row(i) for i in range(len(METHODS))])[method]
        threads = np.where(large & (method != FINUFFT), self.pool.workers, 1)
        needed = rows * (ROW_BYTES + scratch * threads)
        worst = int(needed.argmax())
        if needed[worst] > self.bounded:
            n = int(threads[worst])
            how = f"method={METHODS[method[worst]]!r} and {n} thread{'s (fewer threads need less)' if n > 1 else ''}"
            what = f"object {objects[worst]} of {rows[worst]:,} rows, with {how},"
            raise MemoryBudgetError(what, int(needed[worst]), self.bounded)

    # ------------------------------------------------------------------ one chunk
    def _spread(self, n: int, work: Callable[[int, int], Any]) -> None:
        """``work(a, b)`` over ranges of ``n`` objects on all threads."""
        if n == 1:
            work(0, 1)
            return
        pieces = min(n, TASKS_PER_THREAD * self.pool.workers)
        edges = np.linspace(0, n, pieces + 1).astype(int)
        self.pool.run([partial(work, a, b) for a, b in pairwise(edges)])

    def _prepare(self, source: Source, start: int, stop: int, output: Output) -> state.Curves:
        """Clean light curves of the chunk; also fills in the output's values that describe rows."""
        t, y, dy, offsets = source.read(start, stop)
        n, rows = stop - start, len(t)
        tt, w, wy = np.empty(rows), np.empty(rows), np.empty(rows)
        yy, weight = np.ones(n), np.ones(n)
        out = [a[start:stop] for a in (output.n_used, output.t_min, output.span, output.status)]
        t, y, errors, offsets = read_only(t, y, t[:0] if dy is None else dy, offsets)
        clean, given = self._cleaning(source, start, stop, rows), (t, y, errors, dy is not None, offsets)
        self._spread(n, lambda a, b: clean(given, a, b, (tt, w, wy), (*out, yy, weight)))
        output.n_dropped[start:stop] = offsets[1:] - offsets[:-1] - output.n_used[start:stop]
        output.mean_square[start:stop], output.weight[start:stop] = yy, weight
        n_used = output.n_used[start:stop]
        scale = self.normalization.scale_of(yy, weight, n_used)
        return state.Curves(tt, w, wy, offsets[:-1].copy(), n_used, output.span[start:stop], scale)

    def _cleaning(self, source: Source, start: int, stop: int, rows: int) -> Callable[..., None]:
        """Function of `_prepare` that cleans objects ``a:b`` of a chunk of ``rows`` rows.

        It takes the rows, ``a``, ``b``, the arrays of clean rows and those with a value for each object.
        """
        run = interpreted_if_small(prepare, OBJECT_STEPS * (stop - start) + ROW_STEPS * rows)
        kind = (self.spec.min_points, self.spec.centred)
        return lambda given, a, b, clean, objects: run(*given, a, b, *kind, *clean, *objects)

    def _chunk(
        self, source: Source, grids: Grids, output: Output, power_start: NDArray[np.int64], start: int, stop: int,
        reporter: Reporter,
    ) -> None:  # fmt: skip
        curves = self._prepare(source, start, stop, output)
        part = slice(None) if grids.shared else slice(start, stop)
        values = np.empty(0) if grids.values is None else grids.values
        if not values.flags.writeable:  # numba would compile everything once more, for read-only arrays
            values = values.copy()
        grid = state.Frequencies(grids.f0[part], grids.df[part], grids.nf[part], values, int(grids.shared))
        first, last = int(power_start[start]), int(power_start[stop])
        # without powers to return, series of both types run the same code
        power = np.empty(0, self.dtype if self.model is None else np.float64)
        if output.power is not None:
            power = output.power[first:last]
        answers = state.Answers(
            power, power_start[start : stop + 1] - first,
            output.peak_index[start:stop], output.peak_frequency[start:stop], output.peak_power[start:stop],
            output.peak_curvature[start:stop],
        )  # fmt: skip
        every = for_each(grid.nf, stop - start)
        good = (output.status[start:stop] == OK) & (every > 0)
        ok = good.nonzero()[0]
        if len(ok) < stop - start:
            for i in (~good).nonzero()[0]:
                power[answers.power_start[i] : answers.power_start[i + 1]] = np.nan
        reporter.add(stop - start - len(ok))
        if len(ok) == 0:
            return
        nf = every[ok]
        cycles = curves.span[ok] * for_each(grid.df, stop - start)[ok]
        method, combs, seconds = self._choose(curves.n_used[ok], nf, cycles, grids.values is None)
        job = self._search_of(curves, grid, answers)
        if self.spec.method == "auto" and not self.fast:
            first, spent = self._first(curves.n_used[ok], nf, grids.values is None)
            top = max(float(np.max(curves.span[ok])), float(np.max(grid.f0 + grid.df * grid.nf)), *map(abs, values))
            if (
                top < vectors.LARGEST
                and not job.is_compiled(int(method[0]), int(combs[0]), ok[:1])
                and first_answers.take(float(spent.sum()) / (1.0 if self.model is None else SERIES_SECONDS))
            ):
                job.interpreted = True
                method, combs, seconds = np.full_like(method, first), np.full_like(combs, LANES), spent
            else:
                self.fast = True
        output.method[start:stop][ok] = method
        large = np.zeros(len(ok), np.bool_) if job.interpreted else self._is_large(seconds)
        self._refuse_large(start + ok, curves.n_used[ok].astype(np.int64), method, large)
        tasks, costs, units = [], [], []
        for m, c, members in _groups(method, combs, seconds, ~large, TASKS_PER_THREAD * self.pool.workers):
            tasks.append(partial(job.objects, m, c, ok[members]))
            costs.append(float(seconds[members].sum()))
            units.append(len(members))
        before = 0

        def step(done: int, _total: int) -> None:
            nonlocal before
            reporter.add(done - before)
            before = done

        if tasks:
            self.pool.run(tasks, costs=costs, units=units, progress=step)
        for k in large.nonzero()[0]:
            job.one(int(method[k]), int(combs[k]), int(ok[k]), int(nf[k]))
            reporter.add(1)
        none = answers.index[ok, 0] < 0
        if none.any():
            output.status[start:stop][ok[none]] = SINGULAR

    def _search_of(self, curves: state.Curves, grid: state.Frequencies, answers: state.Answers) -> Any:
        """The search of the objects of a chunk."""
        if self.model is None:
            return SinusoidSearch(self, curves, grid, answers)
        from skysieve.periodogram.cpu.fourier import series

        ends = curves.n_used.astype(np.int64)
        rows = np.stack([np.zeros_like(ends), ends], axis=1)
        return series.SeriesSearch(self, self.model, curves, rows, grid, answers)

    def _is_large(self, seconds: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Objects to cut into stretches, because one thread would take longer for each than the others for the rest."""
        if self.pool.workers == 1 or seconds.max() <= WORTH_SPLITTING:
            return np.zeros(len(seconds), np.bool_)
        share = 0.5 * seconds.sum() / self.pool.workers
        return np.asarray(seconds > max(share, WORTH_SPLITTING))


class SinusoidSearch(ChunkSearch):
    """The search of the objects of one chunk for one sinusoid."""

    def __init__(self, engine: Engine, curves: state.Curves, grid: state.Frequencies, answers: state.Answers) -> None:
        super().__init__(engine, curves, grid, answers, search, vectors)
        self.mean = bool(engine.spec.fit_mean)

    @property
    def plain(self) -> bool:
        """Whether every power is computed by itself: for lists of frequencies, and without compiled code."""
        return self.interpreted or len(self.grid.values) > 0

    def length(self, method: int, combs: int) -> int:
        """Samples of one stretch."""
        if self.plain:
            return search.IRREGULAR_STRETCH
        return search.DIRECT_STRETCH if method == DIRECT else combs * nufft.KERNELS[self.engine.dtype].modes

    def arguments(
        self, method: int, combs: int, which: NDArray[np.int64], first: int, last: int, best: Any, taken: Any
    ) -> tuple[tuple[Any, ...], state.Work]:
        """Arguments of `search.search`, and this thread's scratch."""
        dtype = self.engine.dtype
        points = int(self.curves.n_used[which].max())
        length = self.length(method, combs)
        constants = None
        if method == NUFFT:
            df = self.grid.df[0] if self.grid.shared else self.grid.df[which]
            ends = self.curves.t[self.curves.start[which] + self.curves.n_used[which] - 1]
            _, folds2 = cost.fold_counts(combs, float((df * ends).max()))
            work = _scratch_of(self.engine, "comb", state.comb_work, points, int(folds2), length)
            constants = state.Constants.of(nufft.tables(combs, LANES, dtype))
        else:
            work = _scratch_of(self.engine, "direct", state.direct_work, points, length)
            if not self.plain:
                constants = state.Constants.of(nufft.tables(LANES, LANES, dtype))
        arguments = (
            method, which, first, last, length, combs, nufft.KERNELS[dtype].modes, self.curves, self.grid, constants,
            work, self.answers, self.engine.form, self.mean, (GUARD if method == NUFFT else DIRECT_GUARD)[dtype],
            best, taken,
        )  # fmt: skip
        return arguments, work

    def ending(self, which: NDArray[np.int64], work: state.Work, best: Any, taken: Any) -> tuple[Any, ...]:
        """Arguments of `search.conclude`."""
        return which, self.curves, self.grid, self.mean, best, taken, work.c, work.s, self.answers.peaks_alone()

    def work_of_one(self, i: int) -> state.Work:
        """This thread's scratch for the end of the search of object ``i``."""
        return _scratch_of(self.engine, "direct", state.direct_work, int(self.curves.n_used[i]), 1)

    def objects(self, method: int, combs: int, which: NDArray[np.int64]) -> None:
        """Search whole objects."""
        if method != FINUFFT:
            super().objects(method, combs, which)
            return
        engine = self.engine
        points = int(self.curves.n_used[which].max())
        code = vectors.finufft_code() if self.interpreted else COMPILED
        work = _scratch_of(engine, "direct", state.direct_work, points, code.length)
        for i in which:
            finufft_object(
                int(i), self.curves, self.grid, work, self.answers, engine.form, self.mean, GUARD[engine.dtype], code
            )

    def one(self, method: int, combs: int, i: int, nf: int) -> None:
        """Search one object with all threads; the global transform is not divided."""
        if method == FINUFFT:
            self.objects(method, combs, np.array([i]))
        else:
            super().one(method, combs, i, nf)


def _scratch_of(engine: Engine, name: str, make: Callable[..., state.Work], *sizes: int) -> state.Work:
    """This thread's scratch for one family of kernels, made anew where it is too small."""
    key = f"{name}_{engine.dtype.name}"
    work = make(engine.dtype, *sizes, getattr(_scratch, key, None))
    setattr(_scratch, key, work)
    engine.largest_scratch = max(engine.largest_scratch, sum(a.nbytes for a in work))
    return work


def _groups(
    method: NDArray[Any], combs: NDArray[Any], seconds: NDArray[Any], wanted: NDArray[np.bool_], pieces: int
) -> list[tuple[int, int, NDArray[np.int64]]]:
    """Groups of objects with the same method and combs, of about equal cost, as ``(method, combs, members)``."""
    if len(method) == 1:
        return [(int(method[0]), int(combs[0]), np.zeros(1, np.int64))] if wanted[0] else []
    out = []
    target = max(seconds[wanted].sum() / pieces, 1e-4)
    key = method.astype(np.int64) << 32 | np.where(method == NUFFT, combs, 0)
    for kind in np.unique(key[wanted]):
        members = np.flatnonzero(wanted & (key == kind))
        cut = np.cumsum(seconds[members]) // target
        for piece in np.split(members, np.flatnonzero(np.diff(cut)) + 1):
            out.append((int(method[piece[0]]), int(combs[piece[0]]), piece))
    return out
