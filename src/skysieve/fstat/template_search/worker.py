"""One chunk of a search: the templates of a batch that a device takes at once, and what it finds in them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.core.device import Device, current
from skysieve.fstat.contract import Bank, Engine, Job, Lines, Output, Spec
from skysieve.fstat.inputs.grid import Binning, Grid, Schedule, Times, make_schedule, refuse_tables
from skysieve.fstat.inputs.windows import Window
from skysieve.fstat.result.map import PRIOR

from .batch import AtomsBatch, Binned, bin_batch
from .bsgl import BSGL, LOG10E
from .cells import cell_F
from .ledger import Posteriors, Rows, wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

STATISTICS = ("max2F", "lnBtSG", "log10BSGL")


@dataclass(frozen=True)
class Plan:
    """What is asked of every template of a search.

    ``grid`` is None for the window "none" alone; ``statistic`` ranks the templates; ``keep`` are the best whose rows
    and ``posteriors`` those whose posteriors are worked out.
    """

    windows: dict[str, Window]
    grid: Grid | None
    dtype: np.dtype[Any]
    statistic: str
    keep: int
    posteriors: int
    bsgl: BSGL | None
    rhohatmax: float

    def spec(self, name: str, marginals: bool, lines: Lines | None) -> Spec:
        """Of one window."""
        return Spec(self.windows[name], self.dtype, keep_map=False, marginals=marginals, lines=lines)


@dataclass(frozen=True)
class Chunk:
    """Templates of a batch, one part a detector; ``start`` is the number of the first.

    ``bars`` are the statistics that each window's ledger asked of a row, and of posteriors, when the chunk was dealt:
    they only rise, so that none that will be kept is missed.
    """

    parts: tuple[AtomsBatch, ...]
    start: int
    bars: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Seen:
    """What one window shows of a chunk: 2F and the statistic of every template, rows and posteriors of the best."""

    twoF: NDArray[np.float64]
    statistic: NDArray[np.float64]
    rows: Rows
    posteriors: Posteriors


@dataclass(frozen=True)
class Report:
    """A chunk's outcome: numbers of its good templates, faults of the others, and what each window shows."""

    start: int
    count: int
    numbers: NDArray[np.int64]
    faults: dict[int, str]
    params: dict[str, NDArray[Any]]
    seen: dict[str, Seen]


class GeometryFault(ValueError):
    """The grid does not fit the times of a batch."""


class Worker:
    """One device of a search.

    Parameters
    ----------
    plan : Plan
    device : Device
    make : callable
        ``make(spec, device)`` gives an engine.
    check : callable
        ``check(times, grid, window, schedule)`` raises `GeometryFault` where the grid does not fit.
    """

    def __init__(
        self,
        plan: Plan,
        device: Device,
        make: Callable[[Spec, Device], Engine],
        check: Callable[[Binning, Grid, Window, Schedule], None],
    ) -> None:
        self.plan, self.device, self._make, self._check = plan, device, make, check
        self._engines: dict[tuple[str, bool, Lines | None], Engine] = {}
        self._schedules: dict[tuple[str, int, int, int], tuple[Grid, Schedule]] = {}

    def close(self) -> None:
        """Give back what the engines hold."""
        for engine in self._engines.values():
            engine.close()

    def check_geometry(self, parts: tuple[AtomsBatch, ...]) -> None:
        """Raise `GeometryFault` where the grid does not fit the times of a batch."""
        start, width = min(int(p.t[0]) for p in parts), parts[0].tatom
        n = (max(int(p.t[-1]) for p in parts) - start) // width + 1
        for name in self.plan.windows:
            self._schedule(name, Times(start, width, n))

    def run(self, chunk: Chunk) -> Report:
        """Search one chunk."""
        parts = tuple(p if not p.on_device or self._at_home(p) else _on_host(p) for p in chunk.parts)
        with current(self.device):
            return self._run(replace(chunk, parts=parts))

    def _at_home(self, p: AtomsBatch) -> bool:
        """Whether a batch lies in the memory of this GPU."""
        return self.device.kind == "cuda" and int(p.Fa.device.id) == self.device.index

    def _run(self, chunk: Chunk) -> Report:
        parts, count = chunk.parts, len(chunk.parts[0])
        faults: dict[int, str] = {}
        for p in parts:
            faults = p.faults() | faults
        good = np.array([i for i in range(count) if i not in faults], np.int64)
        params = {name: column[good] for name, column in parts[0].params.items()}
        numbered = {chunk.start + i: text for i, text in sorted(faults.items())}
        numbers = chunk.start + good
        if not good.size:
            return Report(chunk.start, count, numbers, numbered, params, {})
        if faults:
            parts = tuple(p.part(good) for p in parts)
        lines = None if self.plan.bsgl is None else self.plan.bsgl.lines([p.detector for p in parts])
        binned = bin_batch(parts, self.plan.dtype, apart=lines is not None)
        names = [p.detector for p in parts]
        try:
            jobs = {name: self._job(name, binned) for name in self.plan.windows}
        except GeometryFault as error:
            told = dict.fromkeys(range(chunk.start, chunk.start + count), str(error)) | numbered
            return Report(chunk.start, count, numbers[:0], told, {k: v[:0] for k, v in params.items()}, {})
        seen = {
            name: self._window(name, grid, job, numbers, params, lines, chunk.bars[name], names)
            for name, (grid, job) in jobs.items()
        }
        return Report(chunk.start, count, numbers, numbered, params, seen)

    def _job(self, name: str, binned: Binned) -> tuple[Grid, Job]:
        grid, schedule = self._schedule(name, binned)
        return grid, Job(binned.bank, binned.tatom, grid.taus.astype(np.float64), schedule, binned.detectors)

    def _schedule(self, name: str, times: Binning) -> tuple[Grid, Schedule]:
        window, grid, width = self.plan.windows[name], self.plan.grid, times.tatom
        key = (name, times.t_start, times.n, width)
        if key not in self._schedules:
            if window.kind == "none" or grid is None:
                grid = Grid(t0=times.t_start, tau=times.n * width, dt0=width, dtau=width)
            refuse_tables(grid, width)
            schedule = make_schedule(grid, window, times)
            self._check(times, grid, window, schedule)
            self._schedules = {k: v for k, v in self._schedules.items() if k[1:] == key[1:]}  # one geometry is kept
            self._schedules[key] = grid, schedule
        return self._schedules[key]

    def _engine(self, name: str, marginals: bool, lines: Lines | None) -> Engine:
        key = (name, marginals, lines)
        if key not in self._engines:
            self._engines[key] = self._make(self.plan.spec(name, marginals, lines), self.device)
        return self._engines[key]

    def _window(
        self, name: str, grid: Grid, job: Job, numbers: NDArray[np.int64], params: dict[str, NDArray[Any]],
        lines: Lines | None, bars: tuple[float, float], detectors: Sequence[str],
    ) -> Seen:  # fmt: skip
        plan = self.plan
        out = self._engine(name, False, lines).execute(job)
        cells = job.schedule.n_valid()
        twoF = 2 * out.max_F
        ln_b = np.full(len(twoF), np.nan)
        if cells:
            ln_b = np.log(PRIOR / cells) - 4 * np.log(plan.rhohatmax) + out.log_sum
        line = np.full(len(twoF), np.nan) if out.line_max is None else LOG10E * out.line_max
        statistic = {"max2F": twoF, "lnBtSG": ln_b, "log10BSGL": line}[plan.statistic]
        statistic = np.where(np.isfinite(twoF), statistic, np.nan)
        which = wanted(statistic, numbers, bars[0], plan.keep)
        rows: Rows = {"number": numbers[which], "statistic": statistic[which]}
        rows |= {key: column[which] for key, column in params.items()}
        rows |= {"max2F": twoF[which], **_place(grid, out.index[which]), "lnBtSG": ln_b[which]}
        rows["n_fallback"] = out.n_fallback[which]
        if out.line_max is not None and out.line_index is not None:
            rows["log10BSGL"] = line[which]
            rows |= _place(grid, out.line_index[which], "_bsgl")
            rows |= self._alone(job, which, out, plan.windows[name], detectors)
        few = wanted(statistic, numbers, bars[1], plan.posteriors)
        return Seen(twoF, statistic, rows, self._posteriors(name, job, few, numbers))

    def _alone(self, job: Job, which: NDArray[np.int64], out: Output, window: Window, detectors: Sequence[str]) -> Rows:
        """2F of all detectors and of each alone, in the cell of the largest B_S/GL."""
        assert out.line_index is not None
        banks: list[tuple[str, Bank]] = [
            ("", job.bank),
            *((f"_{d}", b) for d, b in zip(detectors, job.detectors, strict=True)),
        ]
        return {
            f"twoF{label}_bsgl": np.array(
                [2 * cell_F(job, bank, int(i), int(out.line_index[i]), window) for i in which]
            )
            for label, bank in banks
        }

    def _posteriors(self, name: str, job: Job, which: NDArray[np.int64], numbers: NDArray[np.int64]) -> Posteriors:
        """Probabilities of the start times and of the durations, by the template's number."""
        if not which.size:
            return {}
        found = self._engine(name, True, None).execute(replace(job, detectors=()).part(which))
        assert found.row_log is not None
        assert found.column_log is not None
        both = [np.exp(x - x.max(axis=1, keepdims=True)) for x in (found.row_log, found.column_log)]
        rows, columns = (p / p.sum(axis=1, keepdims=True) for p in both)
        return {int(n): (a, b) for n, a, b in zip(numbers[which], rows, columns, strict=True)}


def _place(grid: Grid, flat: NDArray[np.int64], label: str = "_ml") -> Rows:
    """Start time and duration of cells."""
    m, n = np.divmod(np.maximum(flat, 0), grid.shape[1])
    return {f"t0{label}": grid.t0s[m], f"tau{label}": grid.taus[n]}


def _on_host(p: AtomsBatch) -> AtomsBatch:
    a2, b2, ab, fa, fb = (to_host(x) for x in (p.a2, p.b2, p.ab, p.Fa, p.Fb))
    return AtomsBatch(p.t, a2, b2, ab, fa, fb, p.tatom, p.detector, p.params)
