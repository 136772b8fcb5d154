"""The CUDA backend: de-dispersion and search on one GPU or several, which share the DMs.

``Engine`` gives the bits of ``cpu.engine.Engine`` (see ``contract.Engine``).  Sums run on the sparse integer tensor
cores (``tensor.cu``), or with packed integers on cards without them (``direct.cu``).  Events are found on the device
(``search.cu``), so that nothing but events is copied to the host.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from skysieve.core.device import Device
from skysieve.core.errors import DeviceUnavailable, MemoryBudgetError
from skysieve.core.gpu.runtime import CudaRuntime, Runtime, on_device
from skysieve.dedispersion.contract import Detection, Packed, Room, Source, Table, sum_dtype

from .detect import event_kernels
from .rows import READ
from .worker import Worker, bytes_needed, ended, kernels_of, memory_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Engine", "bytes_needed", "free_memory", "room"]

logger = logging.getLogger("skysieve")

R = TypeVar("R")


class Engine:
    """De-dispersion on one GPU or several; see `contract.Engine`.

    Parameters
    ----------
    source : Source
    tables : sequence of Table
    method : str
        As for the CPU, but the sums are always direct ones.
    capacity : int
        Most samples (not binned) that are loaded at once.
    devices : sequence of Device
        GPUs, from `skysieve.core.device.resolve`.
    budget : int, optional
        Bytes of the memory of each GPU; 80% of what is free by default.
    runtimes : sequence of Runtime, optional
        Where the kernels run, instead of ``devices``.
    search : bool
        Whether `search` will be called.  If so, the kernels that find events are compiled together with the others.

    Raises
    ------
    MemoryBudgetError
        Samples, plans and a few series do not fit.
    """

    def __init__(
        self, source: Source, tables: Sequence[Table], *, method: str, capacity: int, devices: Sequence[Device] = (),
        budget: int | None = None, runtimes: Sequence[Runtime] | None = None, search: bool = False,
    ) -> None:  # fmt: skip
        if runtimes is None:
            if not devices:
                raise DeviceUnavailable("no GPU was given to the engine", "Use device='cuda'")
            runtimes = [CudaRuntime(d) for d in devices]
        self.source, self.tables, self.method, self.capacity = source, list(tables), method, capacity
        self.dtype = sum_dtype(source.dtype)
        self.runtimes = list(runtimes)
        free = free_memory([r.device for r in self.runtimes]) if self.runtimes[0].xp is not np else 2**40
        budget = int(0.8 * free) if budget is None else min(budget, int(0.95 * free))
        need = bytes_needed(source, self._shares(0), capacity)
        if need > budget:
            raise MemoryBudgetError(f"{capacity} samples of {source.nchan} channels on the GPU", need, budget)
        together = len(self.runtimes) > 1 and self.runtimes[0].xp is not np
        self._pool = ThreadPoolExecutor(len(self.runtimes), "skysieve-gpu") if together else None
        self._ahead: ThreadPoolExecutor | None = None
        self.workers: list[Worker] = []

        built: dict[int, Worker] = {}

        wanted = [
            *kernels_of(source),
            *(event_kernels(source.dtype) if search else ()),
            *getattr(source, "kernels", ()),  # only some sources are cleaned on a GPU
        ]

        def make(i: int) -> None:
            runtime = self.runtimes[i]
            runtime.compile_ahead(wanted)
            parts = [t if len(t.delays) else None for t in self._shares(i)]
            try:
                built[i] = Worker(runtime, source, parts, capacity, budget)
            except memory_errors(runtime) as error:
                what = f"{capacity} samples of {source.nchan} channels on {runtime.device}"
                raise MemoryBudgetError(what, need, free_memory([runtime.device])) from error

        try:
            self._each(make)
        except BaseException:
            self.workers = list(built.values())
            self.close()
            raise
        self.workers = [built[i] for i in range(len(self.runtimes))]
        self._kernels = [self.workers[0].kernel(i) for i in range(len(self.tables))]
        self._bytes = sum(w.nbytes for w in self.workers)

    def close(self) -> None:
        """Free threads and the memory of the devices."""
        if self._ahead is not None:
            self._ahead.shutdown(wait=True)
        if self._pool is not None:  # first, so that no thread uses memory that is freed
            self._pool.shutdown(wait=True)
        for worker in self.workers:
            with on_device(worker.runtime):
                worker.close()
        self.workers = []
        for runtime in self.runtimes:
            if runtime.xp is not np:
                with on_device(runtime):
                    runtime.xp.get_default_memory_pool().free_all_blocks()

    def rebind(self, source: Source) -> None:
        """See `contract.Engine.rebind`."""
        self._each(lambda i: self.workers[i].store.wait())
        self.source = source
        make = getattr(source, "cleaner", None)  # only some sources are cleaned on a GPU

        def bind(i: int) -> None:
            worker = self.workers[i]
            worker.source = worker.store.source = source
            worker.store.stop = worker.store.start
            worker.clean_with(None if make is None else make(worker.runtime, self.capacity))

        self._each(bind)

    def describe(self) -> dict[str, Any]:
        """See `contract.Engine.describe`."""
        names = [str(r.device) for r in self.runtimes]
        return {
            "device": names[0] if len(names) == 1 else f"{len(names)} GPUs: {', '.join(names)}",
            "threads": 1,
            "method": "brute",
            "kernels": self._kernels,
            "bytes": self._bytes,
            "held": max((w.held for w in self.workers), default=0),
            "costs": [1.0] * len(self.tables),
        }

    # ------------------------------------------------------------------ samples
    def load(self, start: int, stop: int) -> None:
        """See `contract.Engine.load`."""
        if self.workers[0].cleaner is not None:
            stop = min(self.source.nsamp, self.workers[0].cleaner.reach(stop))
        if stop - start > self.capacity:
            raise ValueError(f"samples {start} to {stop}: more than the capacity of {self.capacity}")
        try:
            self._load(start, stop)
        except BaseException:
            for worker in self.workers:  # after an error nothing counts as loaded
                worker.store.stop = worker.store.start
            raise

    def _load(self, start: int, stop: int) -> None:
        have = min(self._each(lambda i: self.workers[i].store.begin(start, stop)))
        most = max(128, READ // (self.source.nchan * self.source.dtype.itemsize) // 128 * 128)
        resident = getattr(self.source, "resident", None)  # only some sources have samples on a GPU
        at = have
        ranges = [(first, min(most, stop - first)) for first in range(start + have, stop, most)]
        for number, (first, count) in enumerate(ranges):
            held = resident(first, count) if resident else None
            if held is None:
                self._load_host(ranges[number:], at)
                self._look(start, stop)
                break
            for given, order in held:
                self._each(lambda i, g=given, o=order, c=at: self.workers[i].store.put(g, o, c))
                at += len(given)
        cells = np.array(list(self.source.fills(start + have, stop - start - have)), np.float64).reshape(-1, 4)
        if len(cells):
            cells[:, 1:3] += have
            self._each(lambda i: self.workers[i].store.fill(cells))
        self._each(lambda i: self.workers[i].loaded())

    def _look(self, start: int, stop: int) -> None:
        """Let a source that has a method ``look`` search the loaded samples for dropped data."""
        look = getattr(self.source, "look", None)
        if look is not None:
            store = self.workers[0].store
            with on_device(self.runtimes[0]):
                store.wait()
                look(store.equal_pairs, start, stop)

    def _load_host(self, ranges: list[tuple[int, int]], at: int) -> None:
        """Copy ranges (first sample, count) to the GPUs from column ``at`` on; some are read while others are copied.

        If the source can be read in any order, two ranges are read at a time, so that the reading threads never pause.
        """
        ahead = 2 if getattr(self.source, "any_order", False) else 1
        if len(ranges) > 1 and self._ahead is None:
            self._ahead = ThreadPoolExecutor(2, "skysieve-ahead")
        store = self.workers[0].store
        coming: deque[tuple[Room, Future[list[Any]]]] = deque()
        asked = 0

        def ask() -> None:
            nonlocal asked
            if asked < len(ranges):
                room = store.room(asked)
                coming.append((room, self._submit(ranges[asked], room)))
                asked += 1

        try:
            for _ in range(ahead):
                ask()
            while coming:
                room, work = coming.popleft()
                pieces = work.result()
                if ahead == 1:
                    ask()
                for piece in pieces:
                    self._each(lambda i, p=piece, c=at, r=room: self.workers[i].store.put_host(p, c, r))
                    at += len(piece.data if isinstance(piece, Packed) else piece[0])
                if ahead > 1:
                    ask()  # into the room of the range before the last, whose copy has ended
        finally:  # afterwards others may use the source and the memory
            wait([work for _, work in coming])

    def _submit(self, given: tuple[int, int], room: Room) -> Future[list[Any]]:
        """Begin to read a range of samples."""
        if self._ahead is not None:
            return self._ahead.submit(self._read, *given, room)
        done: Future[list[Any]] = Future()
        done.set_result(self._read(*given, room))
        return done

    def _read(self, start: int, count: int, room: Room) -> list[Any]:
        """Read samples: packed pieces, or pairs of an array and the order of its channels."""
        packed = self.source.packed(start, count, room)
        return list(self.source.raw(start, count, room) if packed is None else packed)

    # ------------------------------------------------------------------ work
    def sums(
        self, table: int, first: int, count: int, out: NDArray[Any], column: int = 0, progress: Any = None
    ) -> None:
        """See `contract.Engine.sums`."""
        edges = self._edges(table)

        def part(i: int) -> None:
            self.workers[i].sums(table, first, count, out[edges[i] : edges[i + 1]], column)

        self._each(part)
        if progress is not None:
            progress(edges[-1] * count, edges[-1] * count)

    def search(
        self, table: int, first: int, count: int, low: int, high: int, what: Detection, progress: Any = None
    ) -> NDArray[np.float64]:
        """See `contract.Engine.search`."""
        edges = self._edges(table)
        steps = []
        for i, worker in enumerate(self.workers):
            valid = what.valid[edges[i] : edges[i + 1]]
            steps.append(worker.searching(table, first, count, low, high, what, valid))
        # One thread starts the first sums on every GPU: several threads would wait for the interpreter's lock.
        try:
            for runtime, step in zip(self.runtimes, steps, strict=True):
                with on_device(runtime):
                    next(step)
        except BaseException:
            self._each(lambda i: self.workers[i].store.wait())  # until all work has ended
            raise

        def part(i: int) -> NDArray[np.float64]:
            events = ended(steps[i])
            events[:, 0] += edges[i]
            return events

        found = np.concatenate(self._each(part))
        if progress is not None:
            progress(edges[-1], edges[-1])
        return found

    # ------------------------------------------------------------------ shares of the GPUs
    def _edges(self, table: int) -> list[int]:
        """First DM of each worker, and the number of DMs."""
        ndm, n = len(self.tables[table].delays), len(self.runtimes)
        return [round(ndm * i / n) for i in range(n + 1)]

    def _shares(self, i: int) -> list[Table]:
        """Tables of a worker's DMs."""
        parts = []
        for k, t in enumerate(self.tables):
            edges = self._edges(k)
            parts.append(Table(t.delays[edges[i] : edges[i + 1]], t.downsamp))
        return parts

    def _each(self, work: Callable[[int], R]) -> list[R]:
        """``work(i)`` for every worker, on its device; with several, each in a thread of its own.

        An error is raised after all have ended, so that no thread uses memory that is freed then.
        """

        def run(i: int) -> R:
            with on_device(self.runtimes[i]):
                return work(i)

        if self._pool is None:
            return [run(i) for i in range(len(self.runtimes))]
        waiting = [self._pool.submit(run, i) for i in range(len(self.runtimes))]
        wait(waiting)
        return [w.result() for w in waiting]


def room(shape: tuple[int, int], dtype: np.dtype[Any], index: int) -> Any:
    """An array for the result in the memory of a GPU.

    Raises
    ------
    MemoryBudgetError
        It does not fit.
    """
    import cupy

    with cupy.cuda.Device(index):
        try:
            return cupy.empty(shape, dtype)
        except cupy.cuda.memory.OutOfMemoryError as error:
            what = f"the result of {shape[0]} DMs x {shape[1]} samples on cuda:{index}"
            need = shape[0] * shape[1] * dtype.itemsize
            raise MemoryBudgetError(what, need, int(cupy.cuda.runtime.memGetInfo()[0])) from error


def free_memory(devices: Sequence[Device]) -> int:
    """Free bytes of the GPU that has the fewest."""
    return min(d.free_memory for d in devices)
