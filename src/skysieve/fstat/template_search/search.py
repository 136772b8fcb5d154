"""A search over many templates: batches are streamed through one device or several, and only the best are kept."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from skysieve.core.checks import one_of, real_dtype, whole
from skysieve.core.device import Device, resolve
from skysieve.core.errors import one_line
from skysieve.core.machine import rates
from skysieve.core.memory import available_host_memory, parse_budget
from skysieve.core.plan import Closing, Plan
from skysieve.core.progress import reporting
from skysieve.core.tasks import usable_cores
from skysieve.fstat.api import check_grid, make_engine
from skysieve.fstat.contract import Dtype, Engine, Spec
from skysieve.fstat.inputs.atoms import Atoms, finite, positive
from skysieve.fstat.inputs.files import PathLike
from skysieve.fstat.inputs.grid import Grid, Times
from skysieve.fstat.inputs.window_kinds import KINDS
from skysieve.fstat.inputs.windows import Window, WindowLike, WindowSum, resolve_window

from .batch import AtomsBatch, groups, is_path, read_files
from .bsgl import BSGL
from .checkpoint import Checkpoint, State
from .columns import STATISTICS, StatisticName
from .ledger import Ledger
from .result import SearchResult
from .worker import Chunk, ChunkReport, SearchOptions, SearchWorker

__all__ = ["Devices", "SearchPlan", "search"]

Windows = WindowLike | Sequence[WindowLike] | Mapping[str, WindowLike]
"""The argument `windows`."""
Batches = PathLike | Iterable[Any] | Callable[[int], Iterable[Any]]
"""The argument `batches`."""
Devices = str | Device | Sequence[str | Device]
"""The argument `device` of a search."""

CHUNK_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}
"""Size of the atoms of a chunk, in bytes."""
GATHERED = 16
"""Most single templates that are gathered into one batch."""
NO_WORKER = -1
"""Used in place of the number of a worker for a chunk with nothing to search."""
ON_GPU = "templates on the GPU", "atoms on the GPU"
"""Names of the work other than maps (see `SearchPlan.work_of`) for atoms in the memory of a GPU."""
AHEAD = 1
"""Number of chunks that wait for a device while it works on another chunk."""
EXPONENTIAL = "from skysieve.fstat.command.warm_up import exponential_search; exponential_search('cpu')"
"""Program of the second process that compiles exponential windows while other windows are searched."""


def search(
    batches: Batches,
    grid: Grid | None = None,
    *,
    windows: Windows = ("rect", "exp"),
    efold: float = 3,
    topk: int = 1000,
    threshold: float | None = None,
    statistic: StatisticName | None = None,
    bsgl: BSGL | None = None,
    posteriors: int = 0,
    band: str | None = None,
    band_width: float | None = None,
    dtype: Dtype = "float32",
    device: Devices = "auto",
    strict: bool = True,
    rhohatmax: float = 1,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 60.0,
    memory: str | float | None = None,
    threads: int | None = None,
    total: int | None = None,
    facts: Mapping[str, Any] | None = None,
    progress: bool | Callable[[int, int], None] = False,
) -> SearchResult:
    """Search many templates for transient signals; only the best are kept, the others are counted.

    Parameters
    ----------
    batches : path, iterable, or callable
        Each item is an `AtomsBatch` (or a list of them, one for each detector), the `Atoms` of one template (or a list
        of them, one for each detector), a list of such lists, or the path of a file of atoms.  An item that is an
        exception, or a file that cannot be read, counts as one bad template.  A callable ``batches(start)`` returns an
        iterable that begins with template number `start`.  With a callable or a list of paths, a search that continues
        from a checkpoint does not read again the templates that it has already searched.
    grid : Grid, optional
        Start times and durations, the same for all templates; `Grid.full` of the first item by default.
    windows : window, sequence of windows, or dict
        Windows to search with, each as for `transient_map`; a dict gives them names.
    efold : float
        End in units of tau of windows that have no fixed end, as for `transient_map`.
    topk : int
        Number of best templates to keep for each window.
    threshold : float, optional
        Smallest statistic of a template that is kept.
    statistic : {"max2F", "lnBtSG", "log10BSGL"}, optional
        The statistic that ranks the templates: "log10BSGL" with `bsgl`, else "max2F" by default.
    bsgl : BSGL, optional
        Prior of the line-robust statistic.  If given, the largest value of this statistic over all cells is computed
        too, with the 2F of each single detector in the same cell; this needs two or more detectors.
    posteriors : int
        Number of best templates of each window for which the posteriors of t0 and tau are kept.
    band, band_width : str and float, optional
        A parameter of the batches (such as "f0") that is divided into bands, and the width of a band; the loudest
        template of each band is kept.  By default the number of the template and 100,000.
    dtype : {"float32", "float64"}
    device : str, Device or sequence of them
        "auto", "cpu", "cuda", "cuda:1", "cuda:all"; several devices share the chunks.  "auto" is a GPU if a usable one
        is found.
    strict : bool
        Raise if a cell of the grid holds fewer than two SFTs of the first item; otherwise such cells are left out.
    rhohatmax : float
        Largest signal-to-noise ratio of the amplitude prior of ln B.
    checkpoint : path, optional
        File (``.npz``) from which the search continues if it exists.  It is written every `checkpoint_every` seconds,
        at the end, and when the search is interrupted.
    memory : str or float, optional
        Working memory of each device, as for `transient_map`.
    threads : int, optional
        CPU threads; each works on a chunk of its own.  The default is one for each core.
    total : int, optional
        Number of templates, for the progress bar.
    facts : dict, optional
        Further text and numbers that describe the search.  They are added to ``SearchResult.settings``, and must be the
        same when a search continues from a checkpoint.
    progress : bool or callable
        Show a progress bar, or call ``progress(templates done, total or 0)``.

    Returns
    -------
    SearchResult

    Raises
    ------
    ValueError, TypeError
        An argument or an item is invalid, or the checkpoint belongs to another search.
    DeviceUnavailable
        A device that was named cannot be used.

    Notes
    -----
    Memory does not grow with the number of templates or cells: maps are never built.  Templates of one point of the sky
    (one row of ``a2, b2, ab`` for all) share the sums of the antenna factors.  A template with values that are not
    finite, or with negative ``a2`` or ``b2``, is counted, listed in ``faults``, and left out.  The result depends
    neither on interruptions nor on how templates are distributed over devices of one kind: on CPUs it is the same bit
    for bit, on GPUs within the rounding of `dtype`.

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
    with SearchPlan(
        grid, windows=windows, efold=efold, topk=topk, threshold=threshold, statistic=statistic, bsgl=bsgl,
        posteriors=posteriors, band=band, band_width=band_width, dtype=dtype, device=device, strict=strict,
        rhohatmax=rhohatmax, memory=memory, threads=threads,
    ) as plan:  # fmt: skip
        return plan.execute(
            batches, checkpoint=checkpoint, checkpoint_every=checkpoint_every, total=total, facts=facts,
            progress=progress,
        )  # fmt: skip


class SearchPlan(Plan):
    """A search that is set up once, for several streams of templates.

    Parameters
    ----------
    grid, windows, efold, topk, threshold, statistic, bsgl, posteriors, band, band_width : optional
    dtype, device, strict, rhohatmax, memory, threads : optional
        As for `search`.

    Raises
    ------
    ValueError, TypeError
        An option is invalid.
    DeviceUnavailable
        A device that was named cannot be used.

    Examples
    --------
    >>> from skysieve.fstat import SearchPlan, synth_atoms
    >>> with SearchPlan(windows="exp", topk=1, device="cpu") as plan:
    ...     found = [plan.execute([synth_atoms(span=86400, seed=i) for i in range(3)]) for _ in range(2)]
    >>> [result.n_templates for result in found]
    [3, 3]
    """

    def __init__(
        self,
        grid: Grid | None = None,
        *,
        windows: Windows = ("rect", "exp"),
        efold: float = 3,
        topk: int = 1000,
        threshold: float | None = None,
        statistic: StatisticName | None = None,
        bsgl: BSGL | None = None,
        posteriors: int = 0,
        band: str | None = None,
        band_width: float | None = None,
        dtype: Dtype = "float32",
        device: Devices = "auto",
        strict: bool = True,
        rhohatmax: float = 1,
        memory: str | float | None = None,
        threads: int | None = None,
    ) -> None:
        named = _windows(windows, efold)
        check_grid(grid)
        if bsgl is not None and not isinstance(bsgl, BSGL):
            raise TypeError(f"bsgl is a {type(bsgl).__name__}, expected a BSGL")
        ranked = one_of("statistic", statistic or ("log10BSGL" if bsgl else "max2F"), STATISTICS)
        if STATISTICS[ranked].needs_lines and bsgl is None:
            raise ValueError(f"statistic={ranked!r} needs its prior: bsgl=BSGL(Fstar0=...)")
        keep, few = whole("topk", topk, 1), whole("posteriors", posteriors, 0)
        if few > keep:
            raise ValueError(f"posteriors={posteriors}: expected at most topk={topk}")
        self.grid, self.efold = grid, float(efold)
        self.threshold = None if threshold is None else finite(threshold, "threshold")
        self.options = SearchOptions(
            named, real_dtype(dtype), ranked, keep, -np.inf if self.threshold is None else self.threshold, few, band,
            _width(band, band_width), bsgl, positive(rhohatmax, "rhohatmax"), bool(strict),
        )  # fmt: skip
        parse_budget(memory, available_host_memory())  # a mistake is found before the work
        self.devices = devices_of(device, threads)
        _compile_exponential(named, self.devices, self.options.dtype)
        make = partial(_engine, memory=memory)
        self._workers: list[SearchWorker] | None = [SearchWorker(self.options, d, make) for d in self.devices]

    def __repr__(self) -> str:
        names = ", ".join(self.options.windows)
        return f"<SearchPlan: windows {names} on {self._device_names()}, {self.options.dtype.name}>"

    def _device_names(self) -> str:
        return ", ".join(dict.fromkeys(map(str, self.devices)))

    def close(self) -> None:
        """Free threads and device memory; the plan cannot be used any more."""
        for worker in self._workers or ():
            worker.close()
        self._workers = None

    def _open_workers(self) -> list[SearchWorker]:
        if self._workers is None:
            raise ValueError("this SearchPlan is closed")
        return self._workers

    def _settings(self) -> dict[str, Any]:
        """The options that two runs must share to continue each other, for checkpoints and files."""
        o = self.options
        return {
            "windows": {name: _describe(w) for name, w in o.windows.items()}, "efold": self.efold,
            "statistic": o.statistic, "threshold": self.threshold, "topk": o.topk, "posteriors": o.posteriors,
            "band": o.band, "band_width": o.band_width, "dtype": o.dtype.name, "rhohatmax": o.rhohatmax,
            "strict": o.strict, "bsgl": None if o.bsgl is None else repr(o.bsgl), "grid": _grid_settings(self.grid),
        }  # fmt: skip

    def check(self, batch: Any) -> None:
        """Raise `Mismatch` if the grid or `bsgl` does not fit an item of a stream, as a search does first."""
        worker = self._open_workers()[0]
        for parts in groups(_raised(batch), 0):
            worker.set_grid(self.grid or self._full_grid(parts))
            worker.check(parts)

    def describe(self, batch: Any) -> dict[str, Any]:
        """Method, device, type, bytes and predicted seconds for one item of a stream, without a search.

        Parameters
        ----------
        batch : AtomsBatch, Atoms, path, or list
            As an item of `search`.

        Returns
        -------
        dict
            ``method`` names the methods of all windows.  ``bytes``, ``seconds`` (on an idle machine) and
            ``processor_seconds`` (of all threads) are sums over the windows; both times are None before ``skysieve info
            --measure`` has run.  ``moved`` is the size of the atoms in bytes.  Further keys are ``windows``,
            ``templates``, ``grid`` (its shape) and ``cells``.
        """
        workers = self._open_workers()
        items = [item for one in read_files([batch]) for item in groups(_raised(one), 0)]
        grid = self.grid or self._full_grid(items[0])
        found = []
        for parts in items:
            workers[0].set_grid(grid)
            found += workers[0].describe(parts)
        templates = sum(len(parts[0]) for parts in items)
        return {
            "method": ", ".join(dict.fromkeys(f["method"] for f in found)),
            "device": self._device_names(),
            "dtype": self.options.dtype.name,
            "bytes": sum(f["bytes"] for f in found),
            "moved": sum(p.Fa.nbytes + p.Fb.nbytes + 3 * p.a2.nbytes for parts in items for p in parts),
            **self._times(found, templates, sum(len(p.t) * templates for p in items[0]), items[0][0].on_device),
            "windows": tuple(self.options.windows),
            "templates": templates,
            "grid": None if grid is None else grid.shape,
            "cells": sum(f["cells"] for f in found),
        }

    def work_of(self, templates: int, atoms: int, on_device: bool = False) -> dict[str, float]:
        """The work other than maps, for `core.machine.rates`: counts of pairs of a template and a window, and of atoms.

        ``on_device`` is True for atoms in the memory of a GPU.
        """
        names = ON_GPU if on_device else ("templates", "atoms")
        return dict(zip(names, (float(templates * len(self.options.windows)), float(atoms)), strict=True))

    def _times(
        self, found: list[dict[str, Any]], templates: int, atoms: int, on_device: bool
    ) -> dict[str, float | None]:
        """Times of all windows and of the other work, on devices that share the templates; None without rates."""
        around = rates.predicted("fstat", self.devices[0], self.work_of(templates, atoms, on_device))
        times: dict[str, float | None] = {}
        for name, share in (("seconds", min(templates, len(self.devices))), ("processor_seconds", 1)):
            each: list[Any] = [*(f[name] for f in found), around[name]]
            times[name] = None if None in each else float(sum(each)) / share
        return times

    def _full_grid(self, parts: tuple[AtomsBatch, ...]) -> Grid | None:
        """The full grid of a batch; None if all windows cover all data."""
        if all(w.whole for w in self.options.windows.values()):
            return None
        return Grid.over(Times.of([p.t for p in parts], parts[0].tatom))

    def execute(
        self,
        batches: Batches,
        *,
        checkpoint: PathLike | None = None,
        checkpoint_every: float = 60.0,
        total: int | None = None,
        start: int = 0,
        facts: Mapping[str, Any] | None = None,
        progress: bool | Callable[[int, int], None] = False,
    ) -> SearchResult:
        """Search a stream of templates; see `search`.

        ``start`` is the number of the first template: a callable ``batches`` then begins with ``batches(start)``.
        """
        workers = self._open_workers()
        finite(checkpoint_every, "checkpoint_every", "seconds, at least 0", lambda x: x >= 0)
        if total is not None:
            whole("total", total, 0)
        options, settings = self.options, self._settings() | dict(facts or {})
        ledgers = {name: Ledger(options.topk, options.threshold, options.posteriors) for name in options.windows}
        state = State(ledgers, grid=self.grid, templates=start)
        with ExitStack() as stack:
            report = stack.enter_context(reporting(progress, "transient F-statistic"))
            file = Checkpoint(checkpoint, settings, checkpoint_every)
            file.restore(state)
            run = stack.enter_context(Run(self, workers, state))
            stack.callback(file.save, state)  # the first callback to run, also after an error
            if not state.finished:
                for _ in run.over(_stream(batches, state)):
                    file.save_if_due(state)
                    if report is not None:
                        report(state.templates, total or 0)
                state.finished = True
        return SearchResult(
            state.ledgers, state.templates - start, state.n_bad, state.faults, state.grid, options.statistic,
            self.threshold, options.band, options.band_width, settings,
        )  # fmt: skip


class Run(Closing):
    """One execution of a plan: distributes chunks to the devices and enters their reports in order."""

    def __init__(self, plan: SearchPlan, workers: list[SearchWorker], state: State) -> None:
        self.plan, self.options, self.workers, self.state = plan, plan.options, workers, state
        self.pools: list[ThreadPoolExecutor] = []
        self.pending = [0] * len(workers)

    def close(self) -> None:
        """End the threads."""
        for pool in self.pools:
            pool.shutdown(wait=True, cancel_futures=True)

    def over(self, stream: Iterator[tuple[tuple[AtomsBatch, ...] | Exception, int]]) -> Iterator[None]:
        """Search all of a stream; yields after every chunk that has been entered."""
        waiting: deque[tuple[Future[ChunkReport], int]] = deque()
        band = self.options.band
        for parts, start in stream:
            if isinstance(parts, Exception):
                while len(waiting) >= (1 + AHEAD) * len(self.workers):
                    yield from self._enter(waiting)
                lost: Future[ChunkReport] = Future()
                lost.set_result(ChunkReport(start, 1, np.zeros(0, np.int64), {start: one_line(parts)}, {}, {}))
                waiting.append((lost, NO_WORKER))
                continue
            if not self.pools:
                self._begin(parts)
            if band is not None and band not in parts[0].params:
                known = ", ".join(parts[0].params) or "none"
                raise ValueError(f"band={band!r} is not a parameter of template {start}; its parameters are {known}")
            for chunk in self._cut(parts, start):
                while len(waiting) >= (1 + AHEAD) * len(self.workers):
                    yield from self._enter(waiting)
                at = self._choose(chunk)
                self.pending[at] += 1
                waiting.append((self.pools[at].submit(self.workers[at].run, chunk), at))
        while waiting:
            yield from self._enter(waiting)

    def _begin(self, parts: tuple[AtomsBatch, ...]) -> None:
        """Start the workers once the grid is known."""
        if self.state.grid is None:
            self.state.grid = self.plan._full_grid(parts)
        for worker in self.workers:
            worker.set_grid(self.state.grid)
        # after a restart the first item has been checked before
        if self.state.templates == self.state.n_bad:
            self.workers[0].check(parts)
        self.pools = [ThreadPoolExecutor(1, "skysieve-search") for _ in self.workers]

    def _cut(self, parts: tuple[AtomsBatch, ...], start: int) -> Iterator[Chunk]:
        """Divide a batch into chunks of equal size, at least one for each device if there are enough templates."""
        size = sum(p.Fa.nbytes + p.Fb.nbytes for p in parts) / len(parts[0])
        step = max(1, int(min(CHUNK_BYTES[w.device.kind] for w in self.workers) / size))
        n = len(parts[0])
        step = -(-n // -(-n // step))
        if len(self.workers) > 1 and not parts[0].on_device:  # a batch in the memory of one GPU stays there
            step = min(step, max(1, -(-n // len(self.workers))))
        for a in range(0, n, step):
            rows = slice(a, min(a + step, n))
            bars = {name: ledger.bars for name, ledger in self.state.ledgers.items()}
            yield Chunk(parts if n <= step else tuple(p.part(rows) for p in parts), start + a, bars)

    def _choose(self, chunk: Chunk) -> int:
        """The worker of the GPU that holds the chunk, or else the worker with the fewest chunks."""
        owners = (i for i, worker in enumerate(self.workers) if worker.owns(chunk.parts[0]))
        return next(owners, int(np.argmin(self.pending)))

    def _enter(self, waiting: deque[tuple[Future[ChunkReport], int]]) -> Iterator[None]:
        """Wait for the oldest chunk and enter its report."""
        future, at = waiting.popleft()
        report = future.result()
        if at != NO_WORKER:
            self.pending[at] -= 1
        self.state.enter(report, self.options.band, self.options.band_width)
        yield


def _compile_exponential(windows: Mapping[str, Window], devices: Sequence[Device], dtype: np.dtype[Any]) -> None:
    """Start to compile exponential windows in another process, if CPUs search them and other windows in float32."""
    if len(windows) > 1 and "exp" in windows and all(d.kind == "cpu" for d in devices) and dtype == np.float32:
        from skysieve.core.cpu.jit import compile_beside
        from skysieve.fstat.cpu.exp import exp_blocks_of_all

        compile_beside(EXPONENTIAL, exp_blocks_of_all)


def _engine(spec: Spec, device: Device, *, memory: str | float | None) -> Engine:
    return make_engine(spec, device, memory, 1)


def devices_of(device: Any, threads: int | None) -> list[Device]:
    """The devices that take chunks: a GPU is listed once, a CPU once for each of its threads."""
    several = [device] if isinstance(device, str | Device) else device
    if not isinstance(several, list | tuple) or not several:
        raise TypeError(f"device={device!r}: expected a name or a list of names")
    if threads is not None:
        whole("threads", threads, 1)
    found = [d for one in several for d in resolve(one)]
    cpus = sum(d.kind == "cpu" for d in found)
    each = max(1, usable_cores() // max(1, cpus)) if threads is None else threads
    return [d for one in found for d in [one] * (each if one.kind == "cpu" else 1)]


def _raised(item: Any) -> Any:
    """Return an item; raise it if it is an exception."""
    if isinstance(item, Exception):
        raise item
    return item


def _stream(batches: Any, state: State) -> Iterator[tuple[tuple[AtomsBatch, ...] | Exception, int]]:
    """Groups of templates with the number of their first template, from the first that has not been entered."""
    done, at, source = state.templates, 0, batches
    if is_path(batches):
        source = [_raised(item) for item in read_files([batches])]
    if callable(batches):
        at, source = done, batches(done)
    elif isinstance(source, list | tuple) and all(map(is_path, source)):  # each file is one template
        at, source = done, source[done:]
    if isinstance(source, AtomsBatch) or not isinstance(source, Iterable):
        raise TypeError(f"batches is a {type(source).__name__}; expected an iterable of batches, or a function of it")
    for number, item in _gathered(read_files(source)):
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


def _gathered(source: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """The items with their numbers; consecutive items that are single templates are gathered into lists."""
    waiting: list[list[Atoms]] = []
    number = -1
    for number, item in enumerate(source):
        one = [item] if isinstance(item, Atoms) else item
        single = isinstance(one, list | tuple) and bool(one) and all(isinstance(a, Atoms) for a in one)
        if single:
            waiting.append(list(one))
        if waiting and (not single or len(waiting) == GATHERED):
            yield number, waiting
            waiting = []
        if not single:
            yield number, item
    if waiting:
        yield number, waiting


def _windows(windows: Windows, efold: float) -> dict[str, Window]:
    if isinstance(windows, Mapping):
        found = {str(name): resolve_window(w, efold) for name, w in windows.items()}
    else:
        several = [windows] if isinstance(windows, str | WindowSum) or callable(windows) else list(windows)
        found = {}
        for i, w in enumerate(several):
            name = w if isinstance(w, str) else f"window{i}"
            if name in found:
                raise ValueError(f"windows={windows!r}: {name!r} is given twice")
            found[name] = resolve_window(w, efold)
    if not found:
        raise ValueError(f"windows={windows!r}: expected at least one window")
    return found


def _describe(window: Window) -> str:
    """Text that identifies a window in the settings."""
    words = [window.kind]
    if isinstance(window.function, WindowSum):
        words.append(str(window.function.terms))
    elif window.function is not None:
        words.append(getattr(window.function, "__qualname__", type(window.function).__name__))
    if KINDS[window.kind].end is None:
        words.append(f"up to {window.efold} tau")
    return " ".join(words)


def _grid_settings(grid: Grid | None) -> str:
    if grid is None:
        return "full"
    return f"{grid!r} {hashlib.sha256(grid.t0s.tobytes() + b'|' + grid.taus.tobytes()).hexdigest()[:16]}"


def _width(band: str | None, width: float | None) -> float:
    if band is not None and not isinstance(band, str):
        raise TypeError(f"band={band!r}: expected the name of a parameter of the batches")
    if width is None:
        if band is not None:
            raise ValueError(f"band={band!r} needs band_width")
        return 100_000.0
    return positive(width, "band_width")
