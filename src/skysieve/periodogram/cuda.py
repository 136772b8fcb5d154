"""The periodogram on NVIDIA GPUs: chunks of objects through a pipeline of lanes, on one card or several.

``Engine`` is the twin of ``cpu.Engine`` (see ``workload.Engine``).  A chunk's rows go to the GPU through pinned
buffers while the chunk before is computed and the one before that is copied home; a chunk that does not fit is
halved; chunks of a GPU that fails are done again on the others.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skysieve.core.arrays import is_device_array
from skysieve.core.device import Device
from skysieve.core.errors import DeviceUnavailable, MemoryBudgetError
from skysieve.core.kernels import CudaRuntime, Runtime
from skysieve.core.memory import parse_budget
from skysieve.core.progress import Reporter
from skysieve.core.staging import Copier, is_pinned
from skysieve.periodogram.cuda_bands import BandsWorker
from skysieve.periodogram.cuda_calibrate import costs_of
from skysieve.periodogram.cuda_chi2 import Chi2Worker
from skysieve.periodogram.cuda_chi2_parts import choose as choose_chi2
from skysieve.periodogram.cuda_cost import DEFAULTS, Costs
from skysieve.periodogram.cuda_jobs import Again, Chunk, JobCache, Plan, cycles_of, deliver, gather, make_job
from skysieve.periodogram.cuda_worker import Job, Worker
from skysieve.periodogram.workload import Grids, Output, Scan, Source, Spec

logger = logging.getLogger("skysieve")

LANES = 3
FEWEST_ROWS = 70_000
"""A chunk of fewer rows does not fill the GPU; the first one is half as long, so that the GPU begins early."""
MOST_ROWS = 1 << 20
MOST_INDEX = 2**30
MOST_CACHED = 1 << 16
"""Objects of an `execute` whose cuts are kept for the next one."""
SMALL_BYTES = 1 << 29
"""Needs below this are taken for granted: asking the driver for free memory takes longer than most chunks."""


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
        self._memory = memory
        self._copier = Copier(threads)
        if runtime is None:
            devices = (device,) if isinstance(device, Device) else tuple(device or ())
            if not devices:
                raise DeviceUnavailable("no GPU was given to the engine", "Use device='cuda'")
            runtimes: tuple[Runtime, ...] = tuple(CudaRuntime(d) for d in devices)
        else:
            runtimes = tuple(runtime) if isinstance(runtime, Sequence) else (runtime,)
        make = BandsWorker if spec.model is not None else Worker if spec.sinusoid else Chi2Worker
        self.workers = [make(r, spec, LANES, self._copier) for r in runtimes]
        self._costs: Costs | None = None
        self._cache = JobCache()
        self._turn = threading.RLock()  # lanes and their buffers serve one call at a time

    # ------------------------------------------------------------------ the engine's four verbs

    def scan(self, source: Source) -> Scan:
        """See `workload.Engine.scan`."""
        parts = []
        worker = self._worker_of(source.read(0, 1)[0] if source.n_objects else None)
        with self._turn:
            for start, stop in self._chunks(source.offsets, 120, 300.0, worker):
                t, y, dy, offsets = source.read(start, stop)
                parts.append(worker.scan(t, y, dy, offsets))
        names = ("n_used", "n_dropped", "t_min", "span", "status")
        if not parts:
            return Scan(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0, np.uint8))
        return Scan(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))

    def execute(self, source: Source, grids: Grids, output: Output, progress: Any = None) -> None:
        """See `workload.Engine.execute`."""
        if source.n_objects == 0:
            return
        with self._turn:
            self._execute(source, grids, output, progress)

    def _execute(self, source: Source, grids: Grids, output: Output, progress: Any) -> None:
        if (most := int(grids.nf[0] if grids.shared else grids.nf.max())) > MOST_INDEX:
            raise ValueError(f"nf={most}: the GPU takes at most {MOST_INDEX} frequencies an object")
        rows = source.read(0, 1)[0]
        first = self._worker_of(rows, output)
        plan = self._plan(source, grids, output)

        def cut() -> list[tuple[int, int]]:
            return self.cut(source, plan, first)

        self._cache.renew(plan)
        few = source.n_objects <= MOST_CACHED
        chunks = self._cache.cut(source.offsets, cut) if few else cut()
        reporter = Reporter(progress, source.n_objects)
        one = len(self.workers) == 1 or len(chunks) == 1 or is_device_array(output.power) or is_device_array(rows)
        run = _Run(plan, source, output, reporter, deque(Chunk(*c) for c in chunks), self._cache)
        workers = [first] if one else self.workers
        if len(workers) == 1:
            run.work(workers[0], alone=True)
        else:
            run.share(workers)
        run.repeat(workers[0] if workers[0] not in run.lost else next(w for w in workers if w not in run.lost))

    def describe(self, source: Source, grids: Grids) -> dict[str, Any]:
        """See `workload.Engine.describe`."""
        n = source.n_objects
        plan = self._plan(source, grids, Output.allocate(0, self.spec.n_peaks))
        offsets = source.offsets
        cycles = self._first_cycles(source, grids)
        nf = int(np.max(grids.nf))
        if not self.spec.sinusoid:
            number = int(choose_chi2(plan.chi2_layouts, np.array([cycles]))[0])
            fit = plan.chi2_layouts[number] if number >= 0 else None
            return {
                "method": "direct" if fit is None else "nufft",
                "device": ", ".join(str(w.runtime.device) for w in self.workers),
                "bytes": int(offsets[-1]) * plan.row_bytes() + n * int(plan.object_bytes(nf, cycles)),
                "layout": fit,
            }
        layout = plan.layout(nf, cycles)
        mean = float(offsets[-1]) / max(1, n)
        if layout is not None and mean <= int(plan.few(np.array([nf]), np.array([plan.layouts.index(layout)]))[0]):
            layout = None
        pairs = -(-nf // layout.span) if layout is not None else 0
        base, point = self.costs.comb_line(layout, nf) if layout is not None else self.costs.direct_line(nf)
        return {
            "method": "nufft" if layout is not None else "direct",
            "device": ", ".join(str(w.runtime.device) for w in self.workers),
            "bytes": int(offsets[-1]) * plan.row_bytes() + n * int(plan.object_bytes(nf, cycles)),
            "expected_seconds": 1e-9 * n * float(base + mean * point) / len(self.workers),
            "layout": layout,
            "combs_a_block": layout.per_block(n * pairs, plan.multiprocessors) if layout is not None else 0,
        }

    def close(self) -> None:
        """Give back threads and device memory."""
        for worker in self.workers:
            worker.close()
        self._copier.close()

    @property
    def costs(self) -> Costs:
        """What the methods cost on this GPU: asked for by ``method="auto"`` alone, measured once a GPU."""
        if self._costs is None:  # asked for by a callback, while `execute` has its turn, they are known
            with self._turn:
                worker = self.workers[0]
                measured = self.spec.method == "auto" and self.spec.sinusoid and worker.runtime.xp is not np
                self._costs = costs_of(worker, self.spec) if measured else DEFAULTS[self.spec.dtype]
        return self._costs

    # ------------------------------------------------------------------ helpers

    def _plan(self, source: Source, grids: Grids, output: Output) -> Plan:
        start = grids.offsets(source.n_objects) if output.power is not None else None
        device = self.workers[0].runtime.device
        return Plan(self.spec, grids, self.costs, device.sm_count, device.shared_per_block, start)

    def _first_cycles(self, source: Source, grids: Grids) -> float:
        t, _, _, offsets = source.read(0, 1)
        return float(cycles_of(t, offsets, grids.df[:1])[0])

    def cut(self, source: Source, plan: Plan, worker: Worker) -> list[tuple[int, int]]:
        """Ranges of objects that are searched together."""
        return self._chunks(source.offsets, plan.row_bytes(), self._object_bytes(plan, source), worker)

    def _object_bytes(self, plan: Plan, source: Source) -> float:
        return plan.object_bytes(int(np.max(plan.grids.nf)), self._first_cycles(source, plan.grids))

    def _worker_of(self, array: Any, output: Output | None = None) -> Worker:
        """The worker whose GPU holds the rows or the powers; the first one for arrays of the host."""
        if output is not None and is_device_array(output.power):
            array = output.power
        if not is_device_array(array):
            return self.workers[0]
        index = int(array.device.id)
        for worker in self.workers:
            if worker.runtime.device.index == index:
                return worker
        raise ValueError(f"the arrays are on cuda:{index}, the engine works on {self.workers[0].runtime.device}")

    def _chunks(
        self, offsets: NDArray[np.int64], row_bytes: int, object_bytes: float, worker: Worker
    ) -> list[tuple[int, int]]:
        """Ranges of objects: small enough for a lane's share of memory, several for the lanes to overlap."""
        n = len(offsets) - 1
        rows = np.diff(offsets)
        target = float(np.clip(offsets[-1] / (2 * LANES * len(self.workers)), FEWEST_ROWS, MOST_ROWS))
        need = LANES * (object_bytes * n + row_bytes * float(offsets[-1]))
        small = self._memory is None and need < SMALL_BYTES
        budget = (SMALL_BYTES if small else parse_budget(self._memory, worker.free_memory)) / LANES
        most = min(1.0, budget / max(1.0, object_bytes * n + row_bytes * float(offsets[-1])))
        weight = np.maximum(rows / target, (rows * row_bytes + object_bytes) / budget) if most < 1 else rows / target
        ends = np.cumsum(weight)
        cuts, base, start = [], 0.0, 0
        while start < n:
            more = 1.0 if start else 0.5
            stop = max(start + 1, int(np.searchsorted(ends, base + more + 1e-9, side="right")))
            cuts.append((start, stop))
            start, base = stop, float(ends[stop - 1])
        return cuts


@dataclass
class _Task:
    """A chunk on its way through a lane."""

    lane: Any
    job: Job
    chunk: Chunk


class _Run:
    """One `execute`: a queue of chunks that workers draw from, and what has to be done again."""

    def __init__(
        self,
        plan: Plan,
        source: Source,
        output: Output,
        reporter: Reporter,
        queue: deque[Chunk],
        cache: JobCache,
    ) -> None:
        self.plan, self.source, self.output, self.reporter = plan, source, output, reporter
        self.queue, self.cache = queue, cache
        self.again = Again([], [])
        self.lost: list[Worker] = []
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._open = 0
        self._changed = threading.Condition(self._lock)

    def _next(self, wait: bool) -> Chunk | None:
        """The next chunk; None when none is left (and, with ``wait``, none can come back from another worker)."""
        with self._changed:
            while True:
                if self.error is not None:
                    return None
                if self.queue:
                    self._open += 1
                    return self.queue.popleft()
                if not wait or not self._open:
                    return None
                self._changed.wait()

    def _closed(self, back: Sequence[Chunk] = (), done: int = 1) -> None:
        with self._changed:
            self._open -= done
            self.queue.extendleft(back)
            self._changed.notify_all()

    def work(self, worker: Worker, alone: bool) -> None:
        """Draw chunks until none is left.

        While other threads copy the rows of a chunk, the next one is made; a lane's old chunk is finished when no
        lane is free.
        """
        busy: deque[_Task] = deque()  # launched, oldest first
        ahead: deque[_Task] = deque()  # made, not yet launched
        free = deque(worker.lanes)
        chunk: Chunk | None = None
        try:
            while True:
                chunk = self._next(wait=not alone and not busy and not ahead)
                if chunk is None:
                    if ahead:
                        self._launch(worker, busy, ahead, free)
                    elif busy:
                        self._finish_oldest(worker, busy, free)
                    else:
                        return
                    continue
                while not free:
                    if busy:
                        self._finish_oldest(worker, busy, free)
                    else:
                        self._launch(worker, busy, ahead, free)
                lane = free.popleft()
                job = make_job(self.plan, self.source, chunk, self.output, cache=self.cache)
                ahead.append(_Task(lane, job, chunk))
                chunk = None
                self._place_power(worker, lane, job)
                worker.prefetch(lane, job)
                while ahead and (len(ahead) > 1 or not ahead[0].job.copies):
                    self._launch(worker, busy, ahead, free)
        except RuntimeError as error:
            back = [task.chunk for task in (*busy, *ahead)]
            if chunk is not None:
                back.append(chunk)
            if alone or error is self.error:
                raise
            self.lost.append(worker)
            logger.warning("%s failed (%s); its objects go to the other devices", worker.runtime.device, error)
            with self._changed:
                self.error_of_last = error
            self._closed(back, len(back))

    def _launch(self, worker: Worker, busy: deque[_Task], ahead: deque[_Task], free: deque[Any]) -> None:
        """Launch the first chunk made; if memory is short, finish the others and put its halves back."""
        task = ahead[0]
        try:
            worker.begin(task.lane, task.job)
            busy.append(ahead.popleft())
        except MemoryError as error:
            while busy:
                self._finish_oldest(worker, busy, free)
            self._halve(worker, task.chunk, error)  # until here the chunk is among those of a lost device
            ahead.popleft()
            waiting = [other.chunk for other in ahead]
            free.extend((task.lane, *(other.lane for other in ahead)))
            ahead.clear()
            self._closed(waiting, len(waiting))

    def _finish_oldest(self, worker: Worker, busy: deque[_Task], free: deque[Any]) -> None:
        task = busy[0]
        self._finish(worker, task.lane, task.job, task.chunk)
        free.append(busy.popleft().lane)

    def share(self, workers: Sequence[Worker]) -> None:
        """Several workers draw from the queue, the costliest chunks first."""
        rows = self.source.offsets
        self.queue = deque(sorted(self.queue, key=lambda c: int(rows[c.start] - rows[c.stop])))

        def run(worker: Worker) -> None:
            finished = False
            try:
                self.work(worker, alone=False)
                finished = True
            finally:
                if not finished:  # the others stop; the error reaches the caller through the future
                    with self._changed:
                        self.error = sys.exc_info()[1]
                        self._changed.notify_all()

        with ThreadPoolExecutor(len(workers), "skysieve-gpu") as pool:
            ends = [pool.submit(run, worker) for worker in workers]
        for end in ends:
            end.result()
        if len(self.lost) == len(workers):
            raise self.error_of_last

    def repeat(self, worker: Worker) -> None:
        """Take objects again that had more candidates than their chunk had room for."""
        overflow = sorted(set(self.again.overflow))
        self.again.overflow = []
        for i in overflow:
            lane = worker.spare
            job = make_job(self.plan, self.source, Chunk(i, i + 1, True), self.output, all_candidates=True)
            self._place_power(worker, lane, job)
            worker.begin(lane, job)
            self._finish(worker, lane, job, None)
        if self.again.overflow or self.again.unlike:
            raise RuntimeError(f"objects {self.again.overflow + self.again.unlike} cannot be completed")

    def _halve(self, worker: Worker, chunk: Chunk, error: MemoryError) -> None:
        start, stop = chunk.start, chunk.stop
        for lane in worker.lanes:
            lane.free()
        if stop - start == 1:
            self._closed()
            raise MemoryBudgetError(f"object {start}", self.plan.row_bytes(), 0) from error
        middle = (start + stop) // 2
        logger.warning(
            "%s is out of memory for objects %d to %d: trying halves", worker.runtime.device, start, stop - 1
        )
        self._closed([replace(chunk, start=middle), replace(chunk, stop=middle)])

    def _place_power(self, worker: Worker, lane: Any, job: Job) -> None:
        """Where the chunk's powers land on the host: the user's array if it is page-locked, else the lane's buffer."""
        power = self.output.power
        if power is None or is_device_array(power) or self.plan.power_start is None:
            return
        direct = self._target(job)
        job.host_power = direct if is_pinned(worker.runtime, power) else lane.pinned("power", job.n_powers, power.dtype)

    def _target(self, job: Job) -> Any:
        assert self.plan.power_start is not None
        a = int(self.plan.power_start[job.objects.start])
        return self.output.power[a : a + job.n_powers]

    def _finish(self, worker: Worker, lane: Any, job: Job, chunk: Chunk | None) -> None:
        lane.synchronize()
        if job.host_power is not None:
            target = self._target(job)
            if target.ctypes.data != job.host_power.ctypes.data:
                worker.copier.copy([(target, job.host_power)])
        with self._lock:
            deliver(job, self.plan, self.output, self.again)
            unlike, back = self.again.unlike, []
            if unlike and chunk is not None and not chunk.known:
                back, self.again.unlike = gather(unlike), []
                self.cache.drop(self.plan, chunk, job.n_rows)
        if chunk is not None:
            self._closed(back)
            self._report(0 if chunk.known else chunk.stop - chunk.start)

    def _report(self, done: int) -> None:
        """Tell the user's callback; what it raises ends the search, and is no fault of a device."""
        told = False
        try:
            self.reporter.add(done)
            told = True
        finally:
            if not told:
                with self._changed:
                    self.error = sys.exc_info()[1]
                    self._changed.notify_all()
