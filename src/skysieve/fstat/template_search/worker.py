"""One device of a search, and the chunks of templates that it processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.core.device import Device, current
from skysieve.fstat.contract import Engine, Lines, MapJob, Spec
from skysieve.fstat.inputs.checks import refuse_short
from skysieve.fstat.inputs.grid import Binning, Grid, Schedule, Times, make_schedule, refuse_tables
from skysieve.fstat.inputs.windows import Window

from .batch import AtomsBatch, Binned, bin_batch
from .bsgl import BSGL
from .columns import STATISTICS, Answers, columns_of
from .ledger import Posteriors, Rows, wanted

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Chunk", "ChunkReport", "Mismatch", "SearchOptions", "SearchWorker", "WindowReport"]


@dataclass(frozen=True)
class SearchOptions:
    """The checked options of a search, the same for all its templates.

    ``statistic`` ranks the templates; ``topk`` and ``posteriors`` are the numbers of best templates whose rows and
    whose posteriors are kept.
    """

    windows: dict[str, Window]
    dtype: np.dtype[Any]
    statistic: str
    topk: int
    threshold: float
    posteriors: int
    band: str | None
    band_width: float
    bsgl: BSGL | None
    rhohatmax: float
    strict: bool


@dataclass(frozen=True)
class Chunk:
    """Templates of a batch, one part for each detector; ``start`` is the number of the first template.

    ``bars`` holds for each window the smallest statistics for which a row and posteriors were kept when the chunk was
    made.  These limits only rise, so that none of the best templates is missed.
    """

    parts: tuple[AtomsBatch, ...]
    start: int
    bars: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class WindowReport:
    """Results of a chunk for one window: 2F and the statistic of all templates, rows and posteriors of the best."""

    twoF: NDArray[np.float64]
    statistic: NDArray[np.float64]
    rows: Rows
    posteriors: Posteriors


@dataclass(frozen=True)
class ChunkReport:
    """Results of a chunk: numbers of the good templates, errors of the others, and one report for each window."""

    start: int
    count: int
    numbers: NDArray[np.int64]
    faults: dict[int, str]
    params: dict[str, NDArray[Any]]
    windows: dict[str, WindowReport]


class Mismatch(ValueError):
    """The grid does not fit the times of a batch, or the prior of lines does not fit its detectors."""


class SearchWorker:
    """One device of a search, with an engine for each window.

    Parameters
    ----------
    options : SearchOptions
    device : Device
    make : callable
        ``make(spec, device)`` returns an engine.

    Attributes
    ----------
    grid : Grid or None
        The grid of the current search; None for windows that cover all data.
    """

    def __init__(self, options: SearchOptions, device: Device, make: Callable[[Spec, Device], Engine]) -> None:
        self.options, self.device, self._make = options, device, make
        self.grid: Grid | None = None
        self._engines: dict[tuple[str, bool, Lines | None], Engine] = {}
        self._schedules: dict[tuple[str, int, int, int], tuple[Grid, Schedule]] = {}

    def close(self) -> None:
        """Free the memory of the engines."""
        for engine in self._engines.values():
            engine.close()

    def set_grid(self, grid: Grid | None) -> None:
        """Prepare for a search on another grid."""
        if grid != self.grid:
            self.grid = grid
            self._schedules.clear()

    def check(self, parts: tuple[AtomsBatch, ...]) -> None:
        """Raise `Mismatch` if the prior does not fit the detectors of a batch, or a strict grid its times."""
        self._lines(parts)
        if not self.options.strict:
            return
        times = Times.of([p.t for p in parts], parts[0].tatom)
        for name in self.options.windows:
            self._schedule(name, times)

    def run(self, chunk: Chunk) -> ChunkReport:
        """Search one chunk."""
        parts = tuple(_on_host(p) if p.on_device and not self.owns(p) else p for p in chunk.parts)
        with current(self.device):
            return self._run(replace(chunk, parts=parts))

    def describe(self, parts: tuple[AtomsBatch, ...]) -> list[dict[str, Any]]:
        """Results of the engine of each window for the templates of a batch."""
        with current(self.device):
            lines, binned = self._binned(parts)
            return [
                self._engine(name, False, lines).describe(self._job(name, binned)[1]) for name in self.options.windows
            ]

    def owns(self, p: AtomsBatch) -> bool:
        """Whether a batch is in the memory of this worker's GPU."""
        return p.on_device and self.device.kind == "cuda" and int(p.Fa.device.id) == self.device.index

    def _lines(self, parts: tuple[AtomsBatch, ...]) -> Lines | None:
        bsgl = self.options.bsgl
        try:
            return None if bsgl is None else bsgl.lines([p.detector for p in parts])
        except ValueError as error:
            raise Mismatch(str(error)) from error

    def _binned(self, parts: tuple[AtomsBatch, ...]) -> tuple[Lines | None, Binned]:
        lines = self._lines(parts)
        return lines, bin_batch(parts, self.options.dtype, each_detector=lines is not None)

    def _run(self, chunk: Chunk) -> ChunkReport:
        parts, count = chunk.parts, len(chunk.parts[0])
        faults: dict[int, str] = {}
        for p in parts:
            faults = p.faults() | faults
        good = np.array([i for i in range(count) if i not in faults], np.int64)
        params = {name: column[good] for name, column in parts[0].params.items()}
        numbered = {chunk.start + i: text for i, text in sorted(faults.items())}
        numbers = chunk.start + good
        if not good.size:
            return ChunkReport(chunk.start, count, numbers, numbered, params, {})
        if faults:
            parts = tuple(p.part(good) for p in parts)
        detectors = tuple(p.detector for p in parts)
        try:
            lines, binned = self._binned(parts)
            jobs = {name: self._job(name, binned) for name in self.options.windows}
        except Mismatch as error:
            every = dict.fromkeys(range(chunk.start, chunk.start + count), str(error)) | numbered
            return ChunkReport(chunk.start, count, numbers[:0], every, {k: v[:0] for k, v in params.items()}, {})
        windows = {}
        for name, (grid, job) in jobs.items():
            output = self._engine(name, False, lines).execute(job)
            window, rhohatmax = self.options.windows[name], self.options.rhohatmax
            answers = Answers(grid, job, window, output, detectors, rhohatmax)
            windows[name] = self._report(name, answers, numbers, params, chunk.bars[name])
        return ChunkReport(chunk.start, count, numbers, numbered, params, windows)

    def _job(self, name: str, binned: Binned) -> tuple[Grid, MapJob]:
        grid, schedule = self._schedule(name, binned)
        return grid, MapJob(binned.bank, binned.tatom, grid.taus.astype(np.float64), schedule, binned.detectors)

    def _schedule(self, name: str, times: Binning) -> tuple[Grid, Schedule]:
        """The grid and the schedule of a window for data with these times; the last ones are cached."""
        window, grid, width = self.options.windows[name], self.grid, times.tatom
        key = (name, times.t_start, times.n, width)
        if key not in self._schedules:
            if window.whole or grid is None:
                grid = Grid.whole(times)
            refuse_tables(grid, width)
            schedule = make_schedule(grid, window, times)
            if self.options.strict:
                try:
                    refuse_short(times, grid, window, schedule)
                except ValueError as error:
                    raise Mismatch(str(error)) from error
            self._schedules = {k: v for k, v in self._schedules.items() if k[1:] == key[1:]}
            self._schedules[key] = grid, schedule
        return self._schedules[key]

    def _engine(self, name: str, marginals: bool, lines: Lines | None) -> Engine:
        key = (name, marginals, lines)
        if key not in self._engines:
            window, dtype = self.options.windows[name], self.options.dtype
            spec = Spec(window, dtype, keep_map=False, marginals=marginals, lines=lines)
            self._engines[key] = self._make(spec, self.device)
        return self._engines[key]

    def _report(
        self, name: str, answers: Answers, numbers: NDArray[np.int64], params: dict[str, NDArray[Any]],
        bars: tuple[float, float],
    ) -> WindowReport:  # fmt: skip
        options = self.options
        statistic = STATISTICS[options.statistic].value(answers)
        statistic = np.where(np.isfinite(answers.max2F), statistic, np.nan)
        which = wanted(statistic, numbers, bars[0], options.topk)
        rows: Rows = {"number": numbers[which], "statistic": statistic[which]}
        rows |= {key: column[which] for key, column in params.items()}
        rows |= columns_of(answers, which)
        few = wanted(statistic, numbers, bars[1], options.posteriors)
        return WindowReport(answers.max2F, statistic, rows, self._posteriors(name, answers.job, few, numbers))

    def _posteriors(self, name: str, job: MapJob, which: NDArray[np.int64], numbers: NDArray[np.int64]) -> Posteriors:
        if not which.size:
            return {}
        found = self._engine(name, True, None).execute(replace(job, detectors=()).part(which))
        assert found.row_log is not None
        assert found.column_log is not None
        both = [np.exp(x - x.max(axis=1, keepdims=True)) for x in (found.row_log, found.column_log)]
        rows, columns = (p / p.sum(axis=1, keepdims=True) for p in both)
        return {int(n): (a, b) for n, a, b in zip(numbers[which], rows, columns, strict=True)}


def _on_host(p: AtomsBatch) -> AtomsBatch:
    a2, b2, ab, fa, fb = (to_host(x) for x in (p.a2, p.b2, p.ab, p.Fa, p.Fb))
    return AtomsBatch(p.t, a2, b2, ab, fa, fb, p.tatom, p.detector, p.params, p.errors)
