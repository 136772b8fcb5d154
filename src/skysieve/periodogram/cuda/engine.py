"""The periodogram on NVIDIA GPUs: objects are divided into chunks, for one card or several.

``Engine`` does the same as ``cpu.Engine`` (see ``contract.Engine``); ``cuda.run`` takes the chunks through the GPUs.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skysieve.core.arrays import array_module, is_device_array, to_host
from skysieve.core.device import Device
from skysieve.core.errors import DeviceUnavailable, MemoryBudgetError, out_of_memory
from skysieve.core.gpu.runtime import CudaRuntime, Runtime
from skysieve.core.gpu.sharing import Sharing, copy_rate, sharing
from skysieve.core.gpu.staging import GROWTH, Copier, make_current
from skysieve.core.memory import parse_budget
from skysieve.core.progress import Reporter
from skysieve.periodogram.contract import METHODS, Grids, Output, Scan, Source, Spec
from skysieve.periodogram.cuda.bands.worker import BandsWorker
from skysieve.periodogram.cuda.fourier.worker import SeriesWorker
from skysieve.periodogram.cuda.sinusoid.methods import has_matrix_units
from skysieve.periodogram.cuda.sinusoid.worker import SinusoidWorker

from .calibrate import costs_of
from .chunks import Chunk, Cycles, CyclesOnGPU, JobCache, RunSettings, bounded_cycles, joined, staged
from .cost import DEFAULTS, Costs
from .run import Run
from .worker import Worker

logger = logging.getLogger("skysieve")

LANES = 3
ANSWERS = 5
"""Numbers of a peak that are copied to the host."""
FEWEST_ROWS = 70_000
"""A chunk of fewer rows does not fill the GPU.  The first one is half as long, so that the GPU begins early."""
FEWEST_NEW = 250_000
"""The same for objects and a grid that come for the first time: to divide a chunk takes longer than to copy it."""
FEWEST_ON_DEVICE = 1 << 19
"""The same for rows that are on the GPU already: there are no copies to overlap, so longer chunks are better."""
MOST_ROWS = 1 << 22
"""Most rows of a chunk.  The host takes as long to divide and deliver a chunk of fewer rows.  With 1 << 20 rows,
1,000,000 light curves of 155 rows from host memory take 1.6 times as long."""
FEWEST_STAGED = 1 << 15
"""Other threads copy new rows in one piece of host memory to page-locked memory while the rows are divided, if they are
more than this number and at most `FEWEST_NEW`.  To copy fewer rows takes less time than to call the threads."""
MOST_INDEX = 2**30
SCAN_ROW, SCAN_OBJECT = 120, 300
"""Device bytes that a scan needs for a row and for an object."""
MOST_CACHED = 1 << 16
"""Most objects of an `execute` whose chunks are remembered for the next one."""
LOOKED_AT = 16
"""Objects whose time spans are computed before chunks are cut."""
SMALL_BYTES, SMALL_SHARE = 1 << 29, 1 / 16
"""Below this size, or share of a GPU's memory, skip the query of free memory, which takes longer than most chunks."""


class Engine:
    """Lomb-Scargle periodograms on GPUs.

    Parameters
    ----------
    spec : Spec
        What to compute.
    device : Device or sequence of Device
        GPUs of `skysieve.core.device.resolve`.
    memory : str, number or None
        Budget of device memory, of each GPU; half of what is free by default.
    threads : int, optional
        Threads that copy between pinned and pageable memory.
    runtime : Runtime or sequence of Runtime, optional
        Instead of ``device``: where the kernels run.
    """

    def __init__(
        self,
        spec: Spec,
        device: Device | Sequence[Device] | None = None,
        memory: str | float | None = None,
        threads: int | None = None,
        runtime: Runtime | Sequence[Runtime] | None = None,
    ) -> None:
        if spec.method == "finufft":
            raise ValueError("method='finufft' runs on the CPU only; the GPU has 'auto', 'direct' and 'nufft'")
        self.spec = spec
        parse_budget(memory, 1)  # raises an error if it cannot be read
        self._memory = memory
        self._copier = Copier(threads)
        if runtime is None:
            devices = (device,) if isinstance(device, Device) else tuple(device or ())
            if not devices:
                raise DeviceUnavailable("no GPU was given to the engine", "Use device='cuda'")
            runtimes: tuple[Runtime, ...] = tuple(CudaRuntime(d) for d in devices)
        else:
            runtimes = tuple(runtime) if isinstance(runtime, Sequence) else (runtime,)
        make = BandsWorker if spec.model is not None else SinusoidWorker if spec.sinusoid else SeriesWorker
        self.workers: list[Worker] = [make(r, spec, LANES, self._copier) for r in runtimes]
        for worker in self.workers:
            worker.rooms = memory is None
        self._left: list[Worker] = []
        self._shared = min(r.device.shared_per_block for r in runtimes)  # chunks must suit every GPU
        self._matrix = all(has_matrix_units(r.device) for r in runtimes)
        self._small = max(SMALL_BYTES, int(SMALL_SHARE * min(r.device.total_memory for r in runtimes)))
        self._costs: Costs | None = None
        self._bytes: dict[tuple[int, float, bool], float] = {}
        self._cache = JobCache()
        self._turn = threading.RLock()  # lanes and their buffers serve one call at a time

    # ------------------------------------------------------------------ the protocol of an engine

    def scan(self, source: Source) -> Scan:
        """See `contract.Engine.scan`."""
        parts = []
        rows = source.read(0, 1)[:3] if source.n_objects else ()
        with self._turn:
            worker = self._worker_of(rows)
            if self._costs is None:  # a search follows
                worker.compile_ahead(())
            for start, stop in self._chunks(source.offsets, SCAN_ROW, SCAN_OBJECT, worker):
                parts += self._scan(source, start, stop, any(map(is_device_array, rows)))
        names = ("n_used", "n_dropped", "t_min", "span", "status")
        if not parts:
            return Scan(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0, np.uint8))
        return Scan(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))

    def _scan(self, source: Source, start: int, stop: int, on_device: bool) -> list[Scan]:
        """Scan a range of objects, in halves if memory is short, and by another GPU if one fails.

        ``on_device``: the rows are on a GPU, so that no other GPU can take its place.
        """
        while True:
            worker = self.workers[0]
            try:
                t, y, dy, offsets = source.read(start, stop)
                worker = self._worker_of((t, y, dy))
                return [worker.scan(t, y, dy, offsets)]
            except (MemoryError, RuntimeError) as error:
                if out_of_memory(error):
                    short = error
                    break
                if on_device or len(self.workers) == 1:
                    raise
                logger.warning("%s failed (%s); the other devices go on", worker.runtime.device, error)
                self._leave([worker])
        worker.release()
        if stop - start == 1:
            rows = float(source.offsets[stop] - source.offsets[start])
            raise MemoryBudgetError(
                f"the first pass over object {start}", SCAN_ROW * rows, worker.free_memory
            ) from short
        logger.warning(
            "%s is out of memory for the first pass over objects %d to %d: trying halves", worker.runtime.device, start,
            stop - 1,
        )  # fmt: skip
        middle = (start + stop) // 2
        return self._scan(source, start, middle, on_device) + self._scan(source, middle, stop, on_device)

    def execute(self, source: Source, grids: Grids, output: Output, progress: Any = None) -> None:
        """See `contract.Engine.execute`."""
        if source.n_objects == 0:
            return
        with self._turn:
            self._execute(source, grids, output, progress)

    def _execute(self, source: Source, grids: Grids, output: Output, progress: Any) -> None:
        if (most := int(grids.nf[0] if grids.shared else grids.nf.max())) > MOST_INDEX:
            raise ValueError(f"nf={most}: the GPU takes at most {MOST_INDEX} frequencies an object")
        rows = source.read(0, source.n_objects if source.flat else 1)[:3]  # no slice of flat arrays is made
        first = self._worker_of(rows, output.power)
        if self._costs is None:
            self._compile_ahead(first, source, grids, output)
        settings = self._settings(source, grids, output, on_gpu=first.cycles)

        def cut(again: bool) -> list[tuple[int, int]]:
            return self.cut(given, settings, first, again, on_device)

        self._cache.renew(settings)
        few = source.n_objects <= MOST_CACHED
        on_device = not settings.to_host and any(map(is_device_array, rows))  # there are no copies to overlap
        known = few and self._cache.knows(source.offsets, on_device)
        if settings.cycles is not None and not known:
            settings.cycles.begin()
        on_host = not any(map(is_device_array, (*rows, output.power)))
        workers, given, copies = [first], source, list[Future[None]]()
        if len(self.workers) > 1 and on_host:
            workers += [worker for worker in self.workers if worker is not first]
        if few and not known and on_host and len(workers) == 1 and source.offsets[-1] <= FEWEST_NEW:
            empty = partial(first.row_memory, first.lanes[0])
            if not source.flat:
                given = joined(source, empty)
                settings = replace(settings, cycles=Cycles(given, grids))
            elif source.offsets[-1] > FEWEST_STAGED:
                given, copies = staged(source, empty, self._copier)
        made = [] if few else self._copier.beside(lambda: output.make(self._copier.fill))  # takes as long as two chunks
        try:
            chunks = self._cache.cut(source.offsets, on_device, known, cut) if few else cut(True)
            reporter = Reporter(progress, source.n_objects)
            queue = deque(Chunk(*c) for c in chunks)
            run = Run(settings, given, output, reporter, queue, self._cache, copies)
            self._go(run, workers)
        finally:
            wait([*copies, *made])

    def _go(self, run: Run, workers: list[Worker]) -> None:
        """Let workers take the chunks of a run."""
        try:
            if len(run.queue) == 1 or len(workers) == 1:
                run.in_turn(workers)
            else:
                most = self._sharing(run.source, run.settings.grids, run.settings).gpus
                if most == 1:
                    run.in_turn(workers)
                else:
                    run.share(workers, most)
            run.repeat(workers, self._memory)
        finally:
            if run.broken:
                self._leave(run.broken)

    def _sharing(self, source: Source, grids: Grids, settings: RunSettings) -> Sharing:
        """The number of GPUs to use for data in host memory; all of them if their time is not known."""
        n, nf, gpus = source.n_objects, int(np.max(grids.nf)), len(self.workers)
        mean = float(source.offsets[-1]) / max(1, n)
        method = settings.methods.typical(nf, self._most_cycles(source, grids), mean)
        seconds = settings.methods.expected(method, n, nf, mean, 1)["seconds"]
        if seconds is None:
            return Sharing(gpus, "GPUs")
        columns = 3 if source.has_dy else 2
        nbytes = 8.0 * (columns * float(source.offsets[-1]) + n * (1 + ANSWERS * max(1, self.spec.n_peaks)))
        if settings.to_host:
            nbytes += float(grids.offsets(n)[-1]) * self.spec.dtype.itemsize
        return sharing(gpus, seconds, nbytes, copy_rate())

    def _leave(self, broken: list[Worker]) -> None:
        """Stop using GPUs that have failed, unless none is left."""
        good = [worker for worker in self.workers if worker not in broken]
        if good:
            self._left += [worker for worker in self.workers if worker in broken]
            self.workers = good
            make_current(good[0].runtime, {worker.runtime.device.index for worker in broken})

    def describe(self, source: Source, grids: Grids) -> dict[str, Any]:
        """See `contract.Engine.describe`."""
        n, offsets = source.n_objects, source.offsets
        settings = self._settings(source, grids, Output.allocate(0, self.spec.n_peaks))
        cycles, nf = self._most_cycles(source, grids), int(np.max(grids.nf))
        mean = float(offsets[-1]) / max(1, n)
        method = settings.methods.typical(nf, cycles, mean)
        expected = settings.methods.expected(method, n, nf, mean, len(self.workers))
        expected.pop("seconds")
        usual = self._settings(source, grids, Output.allocate(0, self.spec.n_peaks), DEFAULTS[self.spec.dtype]).methods
        # stored rates are in units of the default costs, not of measured ones
        seconds = usual.expected(method, n, nf, mean, len(self.workers))["seconds"]
        kind = self.spec.dtype.name if self.spec.sinusoid else "bands" if self.spec.model is not None else "terms"
        work = {"calls": 1.0, "rows": float(offsets[-1]), "objects": float(n)}
        work[f"{METHODS[method.code]} {kind}"] = np.nan if seconds is None else seconds
        shared = self._sharing(source, grids, settings)
        return {
            "gpus": shared.gpus,
            "limit": shared.limit,
            "method": METHODS[method.code],
            "device": ", ".join(str(w.runtime.device) for w in self.workers),
            "bytes": int(offsets[-1]) * settings.row_bytes() + n * int(settings.object_bytes(nf, cycles)),
            "layout": None if method.direct else method,
            "work": work,
            "threads": 1,
            **expected,
        }

    @property
    def idle_bytes(self) -> int:
        """Bytes of device memory of the buffers of the first GPU."""
        return sum(lane.nbytes for lane in self.workers[0].every_lane)

    def close(self) -> None:
        """Give back threads and device memory."""
        for worker in (*self.workers, *self._left):
            try:
                worker.close()
            except RuntimeError as error:  # a lost GPU has nothing to give back
                logger.debug("%s cannot be closed: %s", worker.runtime.device, error)
        self._copier.close()

    @property
    def costs(self) -> Costs:
        """The costs of the methods on this GPU, measured once for each GPU, and only for ``method="auto"``."""
        if self._costs is None:  # within a callback, while `execute` holds the lock, they are known
            with self._turn:
                worker = self.workers[0]
                measured = self.spec.method == "auto" and self.spec.sinusoid and worker.runtime.xp is not np
                room = np.inf if self._memory is None else parse_budget(self._memory, worker.free_memory)
                self._costs = costs_of(worker, self.spec, room) if measured else DEFAULTS[self.spec.dtype]
        return self._costs

    # ------------------------------------------------------------------ helpers

    def _compile_ahead(self, worker: Worker, source: Source, grids: Grids, output: Output) -> None:
        """Begin to compile the kernels that most objects will need, while the methods are timed."""
        settings, nf = self._settings(source, grids, output, DEFAULTS[self.spec.dtype]), int(np.max(grids.nf))
        mean = int(source.offsets[-1]) // source.n_objects
        wanted = settings.methods.most_used(nf, self._most_cycles(source, grids), mean, source.n_objects)
        worker.compile_ahead([(method, output.power is not None, per_block) for method, per_block in wanted])

    def _settings(
        self,
        source: Source,
        grids: Grids,
        output: Output,
        costs: Costs | None = None,
        on_gpu: CyclesOnGPU | None = None,
    ) -> RunSettings:
        start = grids.offsets(source.n_objects) if output.power is not None else None
        worker, to_host = self.workers[0], output.power is not None and not is_device_array(output.power)
        methods = worker.methods(
            self.spec, grids, costs or self.costs, worker.runtime.device.sm_count, self._shared, self._matrix,
            output.power is not None,
        )  # fmt: skip
        some = source.flat and 0 < source.n_objects <= MOST_CACHED
        return RunSettings(methods, start, to_host, Cycles(source, grids, on_gpu) if some else None)

    def _most_cycles(self, source: Source, grids: Grids, known: Cycles | None = None) -> float:
        """The largest ``df * span`` of the objects, or of up to `LOOKED_AT` of them where they are not ``known``."""
        if known is not None:
            return float(known.every().max())
        chosen = np.unique(np.linspace(0, source.n_objects - 1, LOOKED_AT).astype(np.int64))
        chosen = chosen[np.diff(source.offsets)[chosen] > 0]
        if not len(chosen):
            return 0.0
        times = [source.read(int(i), int(i) + 1)[0] for i in chosen]
        xp = array_module(times[0])
        ends = to_host(xp.concatenate([part for t in times for part in (t[:1], t[-1:])]))
        return float(bounded_cycles(ends[::2], ends[1::2], grids.df[:1] if grids.shared else grids.df[chosen]).max())

    def cut(
        self, source: Source, settings: RunSettings, worker: Worker, again: bool = True, on_device: bool = False
    ) -> list[tuple[int, int]]:
        """Ranges of objects that are searched together.

        ``again``: such objects were searched on this grid before; ``on_device``: everything is on the GPU, so that
        there are no copies to overlap with other chunks.
        """
        fewest = FEWEST_ON_DEVICE if on_device else FEWEST_ROWS if again else FEWEST_NEW
        object_bytes = self._object_bytes(settings, source)
        halved = again and not on_device
        return self._chunks(source.offsets, settings.row_bytes(), object_bytes, worker, fewest, halved)

    def _object_bytes(self, settings: RunSettings, source: Source) -> float:
        """Bytes of an object beside its rows: `RunSettings.object_bytes`, or a bound of at most twice as many.

        On a grid of a new length, the exact number takes as long to find as half of all launches.  The bound is used if
        no limit of memory is given and all lanes need little.
        """
        methods, grids = settings.methods, settings.grids
        cycles, nf = self._most_cycles(source, grids, settings.cycles), int(grids.nf.max())
        most = methods.end_of(cycles)
        if self.spec.sinusoid and grids.shared and grids.values is None and most < np.inf:
            step = 1 << max(0, nf.bit_length() - 2)
            longer = -(-nf // step) * step
            key = (longer, most, methods.writes)
            if key not in self._bytes:
                # samples at f and at 2f lie in two stretches: no grid of so many frequencies needs more
                grid = Grids(np.array([2.0 * longer]), np.ones(1), np.array([longer]), shared=True)
                self._bytes[key] = replace(methods, grids=grid).object_bytes(longer, most)
            found = self._bytes[key]
            if self._memory is None and self._need(found, settings.row_bytes(), source.offsets) < self._small:
                return found
        return settings.object_bytes(nf, cycles)

    def _need(self, object_bytes: float, row_bytes: int, offsets: NDArray[np.int64]) -> float:
        """Bytes of all lanes if each had all objects."""
        return LANES * (object_bytes * (len(offsets) - 1) + row_bytes * float(offsets[-1]))

    def _worker_of(self, rows: Sequence[Any], power: Any = None) -> Worker:
        """The worker whose GPU holds the rows ``t, y, dy`` or the powers; the first one for arrays in host memory."""
        arrays = (*rows, power)
        if not any(map(is_device_array, arrays)):
            return self.workers[0]
        named = zip(("t", "y", "dy", "out"), arrays, strict=False)
        where = {name: int(array.device.id) for name, array in named if is_device_array(array)}
        if len(set(where.values())) > 1:
            places = ", ".join(f"{name} on cuda:{index}" for name, index in where.items())
            raise ValueError(f"{places}; arrays of one GPU are expected")
        index = next(iter(where.values()))
        for worker in self.workers:
            if worker.runtime.device.index == index:
                return worker
        raise ValueError(f"the arrays are on cuda:{index}, the engine works on {self.workers[0].runtime.device}")

    def _chunks(
        self, offsets: NDArray[np.int64], row_bytes: int, object_bytes: float, worker: Worker,
        fewest: int | None = None, halved: bool = True,
    ) -> list[tuple[int, int]]:  # fmt: skip
        """Ranges of objects: small enough for a share of memory, and several of `fewest` rows, so that lanes overlap.

        With `halved` the first one is half as long: its copies overlap nothing.
        """
        n, fewest = len(offsets) - 1, FEWEST_ROWS if fewest is None else fewest
        need = self._need(object_bytes, row_bytes, offsets) if self._memory is None else np.inf
        if need * GROWTH < self._small and offsets[-1] <= fewest and not halved and n:
            return [(0, n)]
        target = float(np.clip(offsets[-1] / (2 * LANES * len(self.workers)), fewest, MOST_ROWS))
        free = self._small if need < self._small else parse_budget(self._memory, worker.free_memory)
        budget = free / (LANES * GROWTH)

        def bytes_before(i: int) -> float:
            return row_bytes * float(offsets[i]) + object_bytes * i

        cuts, start = [], 0
        while start < n:  # two bisections a chunk: no array of a million objects is made
            part = 0.5 if halved and not start else 1.0
            stop = int(np.searchsorted(offsets, offsets[start] + int(part * target), side="right")) - 1
            if bytes_before(stop) - bytes_before(start) > part * budget:
                stop = bisect_right(range(stop), bytes_before(start) + part * budget, lo=start, key=bytes_before) - 1
            stop = max(start + 1, stop)
            cuts.append((start, stop))
            start = stop
        return cuts
