"""A search over many templates: batches streamed through one device or several, only the best kept."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.checks import one_of, real_dtype, whole
from skysieve.core.device import Device, resolve
from skysieve.core.progress import reporting
from skysieve.core.tasks import usable_cores
from skysieve.fstat.api import make_engine
from skysieve.fstat.contract import Engine, Spec
from skysieve.fstat.inputs.atoms import Atoms
from skysieve.fstat.inputs.checks import refuse_short
from skysieve.fstat.inputs.grid import Binning, Grid, Schedule
from skysieve.fstat.inputs.windows import Window, WindowSum, resolve_window

from .batch import AtomsBatch, groups
from .bsgl import BSGL
from .checkpoint import Checkpoint, State
from .ledger import Ledger
from .result import SearchResult
from .worker import STATISTICS, Chunk, GeometryFault, Plan, Report, Worker

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["search"]

CHUNK_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}
"""Bytes of atoms that a device takes at once."""
TOGETHER = 16
"""Single templates that are gathered."""
NOBODY = -1
"""In the place of a worker: nothing was to be searched."""
AHEAD = 1
"""Chunks that wait for a device while it works on another."""


def search(
    batches: Iterable[Any] | Callable[[int], Iterable[Any]],
    grid: Grid | None = None,
    *,
    windows: Any = ("rect", "exp"),
    efold: float = 3,
    topk: int = 1000,
    threshold: float | None = None,
    statistic: str | None = None,
    bsgl: BSGL | None = None,
    posteriors: int = 0,
    band: str | None = None,
    band_width: float | None = None,
    dtype: Any = "float32",
    device: Any = "auto",
    strict: bool = True,
    rhohatmax: float = 1,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 60.0,
    memory: str | float | None = None,
    threads: int | None = None,
    total: int | None = None,
    progress: bool | Callable[[int, int], None] = False,
) -> SearchResult:
    """Search many templates for transient signals; of all but the best only counts are kept.

    Parameters
    ----------
    batches : iterable, or callable
        Each item is an `AtomsBatch` (or a list of them, one a detector), the `Atoms` of one template (or a list of
        them, one a detector), or a list of such lists.  An item that is an exception counts as one template that could
        not be had.  A callable ``batches(start)`` gives an iterable that begins
        with template number `start`: then a search that goes on need not read again what it has seen.
    grid : Grid, optional
        Start times and durations, the same for all; `Grid.full` of the first item by default.
    windows : sequence or dict
        Windows to search with, each as for `transient_map`; a dict gives them names.
    efold : float
        Where windows other than "rect" end, in units of tau.
    topk : int
        Templates to keep for each window.
    threshold : float, optional
        Statistic below which none is kept.
    statistic : {"max2F", "lnBtSG", "log10BSGL"}, optional
        By which templates are ranked; "log10BSGL" with `bsgl`, else "max2F".
    bsgl : BSGL, optional
        Work out the line-robust statistic too: the largest of all cells, each with the 2F of the single detectors
        in that very cell.
    posteriors : int
        Of how many of the best templates of each window to keep the posteriors of t0 and tau.
    band, band_width : str and float, optional
        A parameter of the batches (such as "f0") and the width of the bands of which the loudest template is kept;
        by default the number of the template, and 100,000.
    dtype : {"float32", "float64"}
    device : str, Device or sequence of them
        "auto", "cpu", "cuda", "cuda:1", "cuda:all"; several share the chunks.  "auto" is a GPU if a usable one is
        found.
    strict : bool
        Raise if a cell of the grid holds fewer than two SFTs of the first item; otherwise such cells are left out.
    rhohatmax : float
        Largest signal-to-noise ratio of the amplitude prior of ln B.
    checkpoint : path, optional
        File (``.npz``) from which the search goes on if it exists, and that is renewed every `checkpoint_every`
        seconds, at the end, and when the search is interrupted.
    memory : str or float, optional
        Working memory of each device, as for `transient_map`.
    threads : int, optional
        CPU threads, each with a chunk of its own; default all.
    total : int, optional
        Number of templates, for the bar.
    progress : bool or callable
        Show a bar, or call ``progress(templates done, total or 0)``.

    Returns
    -------
    SearchResult

    Raises
    ------
    ValueError, TypeError
        For arguments and items that do not fit; a checkpoint of another search.
    DeviceUnavailable
        If a device asked for cannot be used.

    Notes
    -----
    Nothing grows with the number of templates or cells: maps are never built.  Templates of one point of the sky (one
    row of ``a2, b2, ab`` for all) share the work on these.  A template with values that are not finite, negative
    ``a2`` or ``b2`` is counted, named in ``faults``, and left out.  The result does not depend on how templates are
    dealt to devices of one kind, nor on interruptions: on CPUs not in one bit, on GPUs up to the rounding of `dtype`.

    Examples
    --------
    >>> from skysieve.fstat import Grid, Injection, search, synth_atoms
    >>> signal = Injection(t0=1000090000, tau=54000, snr=14, window="exp")
    >>> templates = (synth_atoms(span=3 * 86400, seed=i, inject=signal if i == 7 else None) for i in range(20))
    >>> found = search(templates, topk=3, device="cpu")
    >>> best = found.columns("exp")
    >>> int(best["template"][0]), bool(best["max2F"][0] > 100), found.n_templates
    (7, True, 20)
    """
    named = _windows(windows, efold)
    if grid is not None and not isinstance(grid, Grid):
        raise TypeError(f"grid is a {type(grid).__name__}, expected a Grid")
    if bsgl is not None and not isinstance(bsgl, BSGL):
        raise TypeError(f"bsgl is a {type(bsgl).__name__}, expected a BSGL")
    ranked = ("log10BSGL" if bsgl else "max2F") if statistic is None else statistic
    one_of("statistic", ranked, STATISTICS)
    if ranked == "log10BSGL" and bsgl is None:
        raise ValueError("statistic='log10BSGL' needs its prior: bsgl=BSGL(Fstar0=...)")
    keep, few = whole("topk", topk, 1), whole("posteriors", posteriors, 0)
    if few > keep:
        raise ValueError(f"posteriors={posteriors}: more than topk={topk}")
    if threshold is not None and not np.isfinite(threshold):
        raise ValueError(f"threshold={threshold!r}: expected a finite number")
    if not (np.isfinite(rhohatmax) and rhohatmax > 0):
        raise ValueError(f"rhohatmax={rhohatmax!r}: expected a positive number")
    width = _width(band, band_width)
    if not np.isfinite(checkpoint_every) or checkpoint_every < 0:
        raise ValueError(f"checkpoint_every={checkpoint_every!r}: expected seconds, at least 0")
    plan = Plan(named, grid, real_dtype(dtype), ranked, keep, few, bsgl, float(rhohatmax))
    least = -np.inf if threshold is None else float(threshold)
    settings = {
        "windows": {name: _describe(w) for name, w in named.items()}, "efold": float(efold), "statistic": ranked,
        "threshold": threshold if threshold is None else float(threshold), "topk": keep, "posteriors": few,
        "band": band, "band_width": width, "dtype": plan.dtype.name, "rhohatmax": float(rhohatmax),
        "strict": bool(strict), "bsgl": None if bsgl is None else repr(bsgl), "grid": _grid_settings(grid),
    }  # fmt: skip
    state = State({name: Ledger(keep, least, few) for name in named}, grid=grid)
    with ExitStack() as stack:
        report = stack.enter_context(reporting(progress, "transient F-statistic"))
        kept = Checkpoint(checkpoint, settings, checkpoint_every)
        kept.restore(state)
        devices = _devices(device, threads)
        make = partial(_engine, memory=memory)
        run = stack.enter_context(Run(plan, state, devices, make, strict, band, width))
        stack.callback(kept.save, state)  # first of all that is undone: also when something is raised
        if not state.finished:
            for _ in run.over(_stream(batches, state)):
                kept.save_now_and_then(state)
                if report is not None:
                    report(state.templates, total or 0)
            state.finished = True
    return SearchResult(
        state.ledgers, state.templates, state.n_bad, state.faults, state.grid, ranked, threshold, band, width, settings
    )


class Run:
    """Deals chunks to the devices and enters what they report, in order."""

    def __init__(
        self, plan: Plan, state: State, devices: Sequence[Device], make: Callable[[Spec, Device], Engine], strict: bool,
        band: str | None, width: float,
    ) -> None:  # fmt: skip
        self.plan, self.state, self.make, self.devices = plan, state, make, devices
        self.strict, self.band, self.width = strict, band, width
        self.workers: list[Worker] = []
        self.pools: list[ThreadPoolExecutor] = []
        self.pending: list[int] = []

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pool in self.pools:
            pool.shutdown(wait=True, cancel_futures=True)
        for worker in self.workers:
            worker.close()

    def _start(self, plan: Plan) -> None:
        """Workers, once the grid is known; each makes its engines when it first needs them."""
        self.plan = plan
        check = partial(_check, strict=self.strict)
        self.workers = [Worker(plan, d, self.make, check) for d in self.devices]
        self.pools = [ThreadPoolExecutor(1, "skysieve-search") for _ in self.workers]
        self.pending = [0] * len(self.workers)

    def over(self, stream: Iterator[tuple[tuple[AtomsBatch, ...] | Exception, int]]) -> Iterator[None]:
        """Search all of a stream; yields after every chunk that has been entered."""
        waiting: deque[tuple[Future[Report], int]] = deque()
        for parts, start in stream:
            if isinstance(parts, Exception):
                while len(waiting) >= (1 + AHEAD) * max(1, len(self.workers)):
                    yield from self._enter(waiting)
                lost: Future[Report] = Future()
                lost.set_result(Report(start, 1, np.zeros(0, np.int64), {start: str(parts)}, {}, {}))
                waiting.append((lost, NOBODY))
                continue
            if not self.workers:
                self._begin(parts)
            if self.band is not None and self.band not in parts[0].params:
                known = ", ".join(parts[0].params) or "none"
                raise ValueError(f"band={self.band!r}: template {start} has the parameters {known}")
            for chunk in self._cut(parts, start):
                while len(waiting) >= (1 + AHEAD) * len(self.workers):
                    yield from self._enter(waiting)
                at = self._choose(chunk)
                self.pending[at] += 1
                waiting.append((self.pools[at].submit(self.workers[at].run, chunk), at))
        while waiting:
            yield from self._enter(waiting)

    def _begin(self, parts: tuple[AtomsBatch, ...]) -> None:
        if self.state.grid is None and any(w.kind != "none" for w in self.plan.windows.values()):
            self.state.grid = Grid.full([p.template(0) for p in parts])
        self._start(replace(self.plan, grid=self.state.grid))
        if self.strict and self.state.templates == self.state.n_bad:  # else the first item was seen before a restart
            self.workers[0].check_geometry(parts)

    def _cut(self, parts: tuple[AtomsBatch, ...], start: int) -> Iterator[Chunk]:
        size = sum(p.Fa.nbytes + p.Fb.nbytes for p in parts) / len(parts[0])
        step = max(1, int(min(CHUNK_BYTES[d.kind] for d in self.devices) / size))
        n = len(parts[0])
        step = -(-n // -(-n // step))
        if len(self.workers) > 1:
            step = min(step, max(1, -(-n // len(self.workers))))
        for a in range(0, n, step):
            rows = slice(a, min(a + step, n))
            bars = {name: ledger.bars for name, ledger in self.state.ledgers.items()}
            yield Chunk(parts if n <= step else tuple(p.part(rows) for p in parts), start + a, bars)

    def _choose(self, chunk: Chunk) -> int:
        """The worker of the GPU that holds the chunk, or the one with the least to do."""
        if chunk.parts[0].on_device:
            home = int(chunk.parts[0].Fa.device.id)
            for i, d in enumerate(self.devices):
                if d.kind == "cuda" and d.index == home:
                    return i
        return int(np.argmin(self.pending))

    def _enter(self, waiting: deque[tuple[Future[Report], int]]) -> Iterator[None]:
        future, at = waiting.popleft()
        report = future.result()
        if at != NOBODY:
            self.pending[at] -= 1
        self.state.enter(report, self.band, self.width)
        yield


def _check(times: Binning, grid: Grid, window: Window, schedule: Schedule, *, strict: bool) -> None:
    if strict:
        try:
            refuse_short(times, grid, window, schedule)
        except ValueError as error:
            raise GeometryFault(str(error)) from error


def _engine(spec: Spec, device: Device, *, memory: str | float | None) -> Engine:
    return make_engine(spec, device, memory, 1)[0]


def _devices(device: Any, threads: int | None) -> list[Device]:
    """The devices that take chunks: a GPU is one, a CPU one for each of its threads."""
    several = [device] if isinstance(device, str | Device) else device
    if not isinstance(several, list | tuple) or not several:
        raise TypeError(f"device={device!r}: expected a name or a list of names")
    if threads is not None:
        whole("threads", threads, 1)
    found = [d for one in several for d in resolve(one)]
    cpus = sum(d.kind == "cpu" for d in found)
    each = max(1, usable_cores() // max(1, cpus)) if threads is None else threads
    return [d for one in found for d in [one] * (each if one.kind == "cpu" else 1)]


def _stream(batches: Any, state: State) -> Iterator[tuple[tuple[AtomsBatch, ...] | Exception, int]]:
    """Groups of templates with the number of their first, from the first template that is not yet entered."""
    done = state.templates
    at = done if callable(batches) else 0
    source = batches(done) if callable(batches) else batches
    if isinstance(source, AtomsBatch) or not isinstance(source, Iterable):
        raise TypeError(f"batches is a {type(source).__name__}; expected an iterable of batches, or a function of it")
    for number, item in _together(source):
        if isinstance(item, Exception):
            if at >= done:
                yield item, at
            at += 1
            continue
        for parts in groups(item, number):
            n = len(parts[0])
            if at + n > done:
                skip = max(0, done - at)
                yield (tuple(p.part(slice(skip, n)) for p in parts) if skip else parts), at + skip
            at += n


def _together(source: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """The items and their numbers, neighbours that are single templates gathered into lists."""
    waiting: list[list[Atoms]] = []
    number = -1
    for number, item in enumerate(source):
        one = [item] if isinstance(item, Atoms) else item
        single = isinstance(one, list | tuple) and bool(one) and all(isinstance(a, Atoms) for a in one)
        if single:
            waiting.append(list(one))
        if waiting and (not single or len(waiting) == TOGETHER):
            yield number, waiting
            waiting = []
        if not single:
            yield number, item
    if waiting:
        yield number, waiting


def _windows(windows: Any, efold: float) -> dict[str, Window]:
    if isinstance(windows, Mapping):
        found = {str(name): resolve_window(w, efold) for name, w in windows.items()}
    else:
        several = [windows] if isinstance(windows, str | WindowSum) or callable(windows) else list(windows)
        found = {}
        for i, w in enumerate(several):
            name = w if isinstance(w, str) else f"window{i}"
            if name in found:
                raise ValueError(f"windows={windows!r}: {name!r} comes twice")
            found[name] = resolve_window(w, efold)
    if not found:
        raise ValueError("windows is empty")
    return found


def _describe(window: Window) -> str:
    """What tells a window from another, for the settings."""
    if isinstance(window.function, WindowSum):
        return f"{window.kind} {window.function.terms} to {window.efold}"
    name = getattr(window.function, "__qualname__", type(window.function).__name__) if window.function else ""
    return f"{window.kind} {name} to {window.efold}"


def _grid_settings(grid: Grid | None) -> str:
    if grid is None:
        return "full"
    import hashlib

    return f"{grid!r} {hashlib.sha256(grid.t0s.tobytes() + b'|' + grid.taus.tobytes()).hexdigest()[:16]}"


def _width(band: str | None, width: float | None) -> float:
    if band is not None and not isinstance(band, str):
        raise TypeError(f"band={band!r}: expected the name of a parameter of the batches")
    if width is None:
        if band is not None:
            raise ValueError(f"band={band!r} needs band_width")
        return 100_000.0
    if not (np.isfinite(width) and width > 0):
        raise ValueError(f"band_width={width!r}: expected a positive number")
    return float(width)
