"""The work of one GPU on its share of the DMs: samples, plans, sums, events."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from skysieve.core.errors import MemoryBudgetError
from skysieve.core.gpu.runtime import Runtime
from skysieve.core.gpu.staging import Copier, Lane, make_lane
from skysieve.dedispersion.contract import Detection, Source, Table, sum_dtype

from .detect import Detector, Search
from .rows import ALIGN, BUILDS, OFFSETS, READ, TAIL, Planes, Store, bytes_of
from .tensor_plan import PACKAGE, TURN, TensorPlan, make_plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

logger = logging.getLogger("skysieve")
R = TypeVar("R")

SLAB_ROWS, SLAB_COLUMNS = 256, 1 << 17
"""Series, and samples of each, that are summed at a time if they are copied to the host."""
LEAST_COLUMNS = 4096
"""Fewest samples that are summed at a time."""
SEARCH_BYTES = 4 << 30
"""Most bytes of series that are searched at a time."""
LEAST_SHARED = 1 << 23
"""Samples of all series from which the two lanes share a search."""
PLAN_BYTES = 20.0
"""Bytes of a plan for each delay (measured: 10 to 18 for delays that fit the tensor cores best)."""
PACKED = {"dms": 32, "samples": 512, "rows": 16}
"""Kernel ``packed``: DMs and samples of a block of threads, and largest number of rows in shared memory at a time."""
FLOAT_DMS = 32
"""DMs of a block of threads of the kernel ``floats``; like ``direct``, it sums 256 samples."""
DIRECT = np.dtype(
    [
        ("stride", np.int64), ("ypitch", np.int64), ("nchan", np.int32), ("ndm", np.int32), ("first", np.int32),
        ("count", np.int32), ("row0", np.int32), ("rows", np.int32), ("words", np.int32), ("chunk", np.int32),
        ("weight", np.uint32), ("start", np.uint32), ("fresh", np.int32), ("spare", np.int32),
    ],
    align=True,
)  # fmt: skip
"""``struct Shape`` of ``direct.cu``."""


def bytes_needed(source: Source, tables: Sequence[Table], samples: int) -> int:
    """Bytes of a GPU's memory for ``samples`` loaded samples: rows, binned rows, plans, series that are copied."""
    total = sum(bytes_of(source, samples, b, 4 * TAIL) for b in {1, *(t.downsamp for t in tables)})
    for t in tables:
        total += int(t.delays.size * (4 + PLAN_BYTES))
    least = min(t.downsamp for t in tables)
    pieces = 2 * min(READ, samples * source.nchan * source.dtype.itemsize)
    return total + pieces + 4 * 64 * (samples // least) + 3 * 4 * SLAB_ROWS * SLAB_COLUMNS


def kernels_of(source: Source) -> list[tuple[str, ...]]:
    """The arguments of `Runtime.module` for the kernels that load samples and plan sums."""
    loading: list[tuple[str, ...]] = [(PACKAGE, "load.cu", BUILDS[source.dtype.name]), (PACKAGE, "turn.cu")]
    return loading if source.dtype.kind == "f" else [*loading, (PACKAGE, "plan.cu")]


class Worker:
    """One GPU.

    Parameters
    ----------
    runtime : Runtime
    source : Source
    tables : sequence of Table or None
        The parts of the tables that it works on; None for a table of which it has no DMs.
    capacity : int
        Most samples (not binned) that are loaded at once.
    budget : int
        Bytes of the GPU's memory that may be used.
    """

    def __init__(
        self, runtime: Runtime, source: Source, tables: Sequence[Table | None], capacity: int, budget: int
    ) -> None:
        self.runtime, self.source, self.tables = runtime, source, tables
        self.budget = budget
        self.dtype = sum_dtype(source.dtype)
        self.real = source.dtype.kind == "f"
        self.offset = OFFSETS.get(source.dtype.name, 0)
        self.copier = Copier()
        self.lanes = [make_lane(runtime) for _ in range(2)]
        self.delays: list[Any] = []
        self.plans: list[TensorPlan | None] = []
        self.words: list[int] = []
        self.detector: Detector | None = None
        self.cleaner: Any = None
        try:
            self.store = Store(
                runtime, source, [t.downsamp for t in tables if t is not None], capacity, self._plan(), self.lanes,
                self.copier,
            )  # fmt: skip
            runtime.synchronize()  # the streams of the lanes do not wait for the one that copied the delays
        except BaseException:
            for lane in self.lanes:
                lane.free()
            self.plans.clear()
            self.delays.clear()
            raise

    def _plan(self) -> dict[int, int]:
        """Copy the delays and plan each table; returns by binning the bytes that kernels read beyond the samples."""
        device = self.runtime.device
        tensor = not self.real and device.compute_capability >= (8, 0) and device.shared_per_block > TURN["plain"]
        tails: dict[int, int] = {}
        for table in self.tables:
            if table is None:
                self.delays.append(None)
                self.plans.append(None)
                self.words.append(0)
                continue
            delays = np.ascontiguousarray(table.delays, np.int32)
            self.delays.append(self.runtime.xp.asarray(delays))
            plan = make_plan(self.runtime, delays, self.delays[-1], self.budget) if tensor else None
            self.plans.append(plan)
            self.words.append(0 if plan is not None or self.real else self._packed_words(delays))
            reach = plan.reach if plan is not None else 2 * self.words[-1] + ALIGN
            tails[table.downsamp] = max(tails.get(table.downsamp, 0), reach + TAIL)
        return tails

    @property
    def nbytes(self) -> int:
        """Bytes of samples, plans and the cleaning on the device."""
        rows = sum(int(p.data.nbytes) for p in self.store.planes.values())
        rows += 0 if self.cleaner is None else self.cleaner.nbytes
        return rows + sum(p.nbytes for p in self.plans if p is not None)

    @property
    def held(self) -> int:
        """Bytes of all that the worker has on the device."""
        return self.nbytes + sum(lane.nbytes for lane in self.lanes)

    def kernel(self, table: int) -> str:
        """The kernel that sums a table."""
        if self.real:
            return "floats"
        return "tensor" if self.plans[table] is not None else "packed" if self.words[table] else "direct"

    def clean_with(self, cleaner: Any) -> None:
        """Set the `clean.cuda.launch.DeviceCleaner` that cleans samples after they are loaded; None cleans nothing."""
        if self.cleaner is not None:
            self.cleaner.close()
        self.cleaner = cleaner

    def loaded(self) -> None:
        """Wait until the samples are in their rows, and clean them."""
        self.store.wait()
        if self.cleaner is not None:
            store = self.store
            self.cleaner.clean_planes(store.planes[1], store.start, store.stop, self.source.nsamp)

    def close(self) -> None:
        """Free the memory of the device."""
        self.clean_with(None)
        for lane in self.lanes:
            lane.free()
        self.copier.close()
        self.plans.clear()
        self.delays.clear()
        self.store.planes.clear()

    def _packed_words(self, delays: NDArray[np.int32]) -> int:
        """Words of a row in shared memory of the kernel ``packed``; 0 if no row fits."""
        starts = np.arange(0, len(delays), PACKED["dms"])
        spread = int((np.maximum.reduceat(delays, starts) - np.minimum.reduceat(delays, starts)).max())
        words = -(-(PACKED["samples"] + spread + 2) // 8) * 4
        return words if 8 * words + 64 <= min(self.runtime.device.shared_per_block, 2 * 65535) else 0

    # ------------------------------------------------------------------ sums
    def _launch(
        self, table: int, planes: Planes, first: int, y: Any, pitch: int, count: int, rows: tuple[int, int], stream: Any
    ) -> None:
        """Start to sum DMs ``rows`` from column ``first`` of the samples (a multiple of 16) on, to ``y``."""
        given = self.tables[table]
        assert given is not None
        nchan, plan = self.source.nchan, self.plans[table]
        start = -self.offset * given.downsamp * nchan % 2**32
        count = -(-count // 4) * 4
        for i in range(max(1, planes.planes)):
            x, weight = planes.part(i), 256**i
            if plan is not None:
                module = self.runtime.module(PACKAGE, "tensor.cu", plan.cut.build)
                plan.launch(module, x, planes.stride, first, y, pitch, count, rows, weight, start, i == 0, stream)
                continue
            s = np.zeros(1, DIRECT)
            s["stride"], s["ypitch"], s["nchan"], s["ndm"] = planes.stride, pitch, nchan, len(given.delays)
            s["first"], s["count"], s["row0"], s["rows"] = first, count, rows[0], rows[1] - rows[0]
            s["weight"], s["start"], s["fresh"], s["words"] = weight, start, i == 0, self.words[table]
            name, shared, kernel = "direct.cu", 0, self.kernel(table)
            n, block = rows[1] - rows[0], 256
            if kernel == "packed":
                room = min(self.runtime.device.shared_per_block, 100 * 1024) if s["words"][0] < 4096 else 2**31
                each = 8 * self.words[table] + 64
                room = min(room, self.runtime.device.shared_per_block)
                s["chunk"] = max(1, min(PACKED["rows"], room // each, 65535 // (2 * self.words[table])))
                shared = int(s["chunk"][0]) * each
                grid = (-(-n // PACKED["dms"]), -(-count // PACKED["samples"]))
            else:
                dms = FLOAT_DMS if self.real else 4
                grid = (-(-count // block), -(-n // dms))
            args = (x, self.delays[table], y, s[0])
            self.runtime.module(PACKAGE, name).launch(kernel, grid, (block,), args, shared_mem=shared, stream=stream)

    def _multiple(self, table: int) -> int:
        """The first DM of a launch is a multiple of this."""
        plan = self.plans[table]
        return plan.dms if plan is not None else PACKED["dms"]

    def sums(self, table: int, first: int, count: int, out: Any, column: int) -> None:
        """Write the series of this worker's DMs to the rows of ``out``, an array of the host or of a GPU."""
        given = self.tables[table]
        if given is None:
            return
        planes = self.store.rows(given.downsamp)
        ndm, unit = len(given.delays), self._multiple(table)
        step = -(-min(SLAB_ROWS, ndm) // unit) * unit
        wide = self._room(step, min(SLAB_COLUMNS, count))
        waiting: list[tuple[Any, NDArray[Any], int, int, int, int]] = []

        def finish() -> None:
            lane, pinned, m, at, n, lead = waiting.pop(0)
            lane.synchronize()
            self.copier.copy([(out[m : m + len(pinned), column + at : column + at + n], pinned[:, lead : lead + n])])

        turn = 0
        for at in range(0, count, wide):
            n = min(wide, count - at)
            x0 = first + at - planes.first
            lead = x0 % ALIGN
            pitch = -(-(n + lead) // 32) * 32
            for m in range(0, ndm, step):
                rows = (m, min(ndm, m + step))
                if len(waiting) == len(self.lanes):
                    finish()
                lane = self.lanes[turn % len(self.lanes)]
                turn += 1
                size = (rows[1] - rows[0]) * pitch
                with lane:
                    y = lane.array("sums", size, self.dtype)
                    self._launch(table, planes, x0 - lead, y, pitch, n + lead, rows, lane.stream)
                    if not isinstance(out, np.ndarray):
                        target = out[rows[0] : rows[1], column + at : column + at + n]
                        self._copy_to_gpu(lane, y.reshape(-1, pitch)[:, lead : lead + n], target)
                        continue
                    pinned = lane.pinned("sums", size, self.dtype)
                    lane.to_host(pinned, y)
                waiting.append((lane, pinned.reshape(-1, pitch), m, at, n, lead))
        while waiting:
            finish()
        for lane in self.lanes:  # copies to a GPU's array have ended, too
            lane.synchronize()

    def _copy_to_gpu(self, lane: Lane, sums: Any, target: Any) -> None:
        """Start to copy series to an array of this GPU, or copy them to one of another GPU."""
        xp, index = self.runtime.xp, int(target.device.id)
        if index == self.runtime.device.index:
            target[...] = sums
            return
        ready = xp.ascontiguousarray(sums)
        lane.synchronize()
        with xp.cuda.Device(index):
            moved = xp.empty(ready.shape, ready.dtype)
            xp.cuda.runtime.memcpyPeer(moved.data.ptr, index, ready.data.ptr, self.runtime.device.index, ready.nbytes)
            target[...] = moved
            xp.cuda.get_current_stream().synchronize()

    def _room(self, rows: int, columns: int) -> int:
        """Columns that the lanes can hold of ``rows`` series: fewer than ``columns`` if memory is short."""
        while True:
            try:
                for lane in self.lanes:
                    lane.array("sums", rows * (-(-(columns + ALIGN) // 32) * 32), self.dtype)
                return columns
            except memory_errors(self.runtime) as error:
                if columns <= LEAST_COLUMNS:
                    what = f"{rows} series of {columns} samples on {self.runtime.device}"
                    raise MemoryBudgetError(what, 8 * rows * columns, self.runtime.device.free_memory) from error
                columns = max(LEAST_COLUMNS, columns // 2)
                logger.warning("%s is out of memory: using %d samples at a time", self.runtime.device, columns)

    def search(
        self, table: int, first: int, count: int, low: int, high: int, what: Detection, valid: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Events of this worker's DMs, with indices from its first DM; see `contract.Engine.search`."""
        return ended(self.searching(table, first, count, low, high, what, valid))

    def searching(
        self, table: int, first: int, count: int, low: int, high: int, what: Detection, valid: NDArray[np.int64]
    ) -> Generator[None, None, NDArray[np.float64]]:
        """`search` in two steps: the generator pauses once, when the first sums run on the GPU."""
        given = self.tables[table]
        if given is None:
            yield
            return np.empty((0, 4))
        if self.detector is None:
            self.detector = Detector(self.runtime, self.source.dtype.kind, self.source.dtype.itemsize == 1)
        planes = self.store.rows(given.downsamp)
        unit, ndm = self._multiple(table), len(given.delays)
        x0 = first - planes.first
        lead = x0 % ALIGN
        pitch = -(-(count + lead) // 32) * 32
        room = min(SEARCH_BYTES, (self.budget - self.nbytes) // 2) // len(self.lanes)
        step = max(unit, room // (4 * pitch) // unit * unit)
        if ndm * count >= LEAST_SHARED:  # two parts, so that one uses the GPU while the other ends
            step = min(step, -(-ndm // len(self.lanes) // unit) * unit)
        found: list[NDArray[np.float64]] = []
        waiting: list[tuple[Lane, Any, Search, int]] = []

        def finish() -> None:
            lane, sums, job, m = waiting.pop(0)
            assert self.detector is not None
            events = self.detector.finish(lane, sums, job)
            events[:, 0] += m
            events[:, 1] += first
            found.append(events)

        m = turn = 0
        while m < ndm:
            rows = (m, min(ndm, m + step))
            lane = self.lanes[turn % len(self.lanes)]
            if len(waiting) == len(self.lanes):
                finish()
            with lane:
                try:
                    y = lane.array("sums", (rows[1] - rows[0]) * pitch, self.dtype)
                except memory_errors(self.runtime) as error:
                    if step <= unit:
                        series = f"{rows[1] - rows[0]} series of {count} samples on {self.runtime.device}"
                        raise MemoryBudgetError(series, 4 * pitch * step, self.budget) from error
                    step = step // 2 // unit * unit or unit
                    logger.warning("%s is out of memory: using %d series at a time", self.runtime.device, step)
                    continue
                self._launch(table, planes, x0 - lead, y, pitch, count + lead, rows, lane.stream)
            if turn == 0:
                yield
            held = np.clip(valid[rows[0] : rows[1]] - first, 0, count)
            job = self.detector.begin(lane, pitch, held, count, low - first, high - first, what)
            self.detector.start(lane, y[lead:], job)
            waiting.append((lane, y[lead:], job, m))
            m = rows[1]
            turn += 1
        while waiting:
            finish()
        return np.concatenate(found)


def ended(steps: Generator[None, None, R]) -> R:
    """Run a generator to its end, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: R = end.value
            return result


def memory_errors(runtime: Runtime) -> tuple[type[BaseException], ...]:
    """Errors that arrays on the device raise if they do not fit."""
    return () if runtime.xp is np else (runtime.xp.cuda.memory.OutOfMemoryError,)
