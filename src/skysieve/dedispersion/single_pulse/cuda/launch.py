"""Sums of the cut-outs of candidates on a GPU; see ``look.cu``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.errors import MemoryBudgetError
from skysieve.core.gpu.runtime import Runtime, on_device
from skysieve.core.gpu.staging import make_lane
from skysieve.core.gpu.structs import address, ints, struct
from skysieve.core.tasks import TaskPool
from skysieve.dedispersion.cuda.worker import memory_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.cuda.rows import Store
    from skysieve.dedispersion.single_pulse.vetting import CutOut, Sums

__all__ = ["DeviceSums", "kernels_of"]

Hidden = Callable[[int, int], "NDArray[np.bool_]"]
PACKAGE = "skysieve.dedispersion.single_pulse.cuda"
JOB = struct(
    "x*", "gone*", "start*", "sums*", "var*", "flat*", "lined*", "stride#", "samples#", "same", "size", "first", "side",
    "width", "guard", "count", "length",
)  # fmt: skip
"""``struct Job``."""
WARPS = 16
BATCH = 1 << 26
"""Bytes of samples and sums of a batch, unless one cut-out has more."""


class DeviceSums:
    """Sums the samples of cut-outs on a GPU, as many at a time as fit `BATCH`.

    Parameters
    ----------
    runtime : Runtime
    dtype : numpy.dtype
        Of the samples; all but bytes are looked at as float32.
    store : Store, optional
        Samples of an engine on this GPU, which are cleaned.  Bytes need not be read again as long as it holds them.
    """

    def __init__(self, runtime: Runtime, dtype: np.dtype[Any], store: Store | None = None) -> None:
        self.runtime, self.kind = runtime, kind_of(dtype)
        self.store = store if self.kind == np.uint8 else None
        self.lane = make_lane(runtime)
        self._hidden: Hidden | None = None

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.lane.nbytes

    def close(self) -> None:
        """Free the memory of the device."""
        with on_device(self.runtime):
            self.lane.free()

    def __call__(
        self, cuts: Sequence[CutOut], pool: TaskPool, hidden: Hidden | None = None
    ) -> Iterator[list[Sums | None]]:
        """Yield what `vetting.sums_on_host` returns for each cut-out, batch by batch; the next one overwrites it.

        Parameters
        ----------
        cuts : sequence of CutOut
            Of the same channels and sub-bands.
        pool : TaskPool
            Threads that read samples.
        hidden : callable, optional
            Which of the samples ``start : stop`` do not count.  Without it all are read.

        Raises
        ------
        MemoryBudgetError
            The samples do not fit on the device.
        """
        self._hidden = hidden
        try:
            for some in self._batches(cuts):
                with on_device(self.runtime), self.lane:
                    try:
                        found = self._sums(some, pool)
                    except memory_errors(self.runtime) as error:
                        what = f"the second look at {len(some)} candidates on {self.runtime.device}"
                        need = sum(self._bytes(cut) for cut in some)
                        raise MemoryBudgetError(what, need, self.runtime.device.free_memory) from error
                yield found
        finally:
            self._hidden = None  # it holds the user's data

    def _bytes(self, cut: CutOut) -> int:
        """Bytes of a cut-out that are read, and of its sums."""
        read = 0 if self._held(cut) else cut.count * cut.bin * cut.channels * self.kind.itemsize
        return read + 16 * (len(cut.edges) - 1) * (cut.count + cut.length)

    def _batches(self, cuts: Sequence[CutOut]) -> Iterator[list[CutOut]]:
        """Cut-outs that are read together; a cut-out of several slices is a batch of its own."""
        some: list[CutOut] = []
        total = 0
        for cut in cuts:
            size = self._bytes(cut)
            if some and (total + size > BATCH or cut.parts > 1):
                yield some
                some, total = [], 0
            some.append(cut)
            total = BATCH if cut.parts > 1 else total + size
        if some:
            yield some

    def _sums(self, cuts: list[CutOut], pool: TaskPool) -> list[Sums | None]:
        lane, edges = self.lane, cuts[0].edges
        C, bands = cuts[0].channels, len(edges) - 1
        shapes = [{"var": (C,), "flat": (2, bands, cut.count), "lined": (2, bands, cut.length)} for cut in cuts]
        sizes = [[int(np.prod(shape)) for shape in one.values()] for one in shapes]
        out = lane.array("out", sum(map(sum, sizes)), np.float64)
        sums, starts = lane.array("sums", 3 * C * len(cuts), np.float64), lane.array("starts", C * len(cuts), np.int64)
        listed = lane.array("jobs", len(cuts) * JOB.itemsize, np.uint8)
        bounds = lane.array("edges", bands + 1, np.int32)
        lane.clear(out)
        lane.clear(sums)
        lane.to_device(starts, np.concatenate([cut.arrivals.delays for cut in cuts]))
        lane.to_device(bounds, edges.astype(np.int32))
        jobs, at = np.zeros(len(cuts), JOB), address(out)
        for i, (cut, each) in enumerate(zip(cuts, sizes, strict=True)):
            job = jobs[i]
            job["start"], job["sums"] = address(starts) + 8 * C * i, address(sums) + 24 * C * i
            for name, size in zip(shapes[i], each, strict=True):
                job[name] = at
                at += 8 * size
            job["size"], job["side"], job["width"], job["guard"] = cut.bin, cut.side, cut.width, cut.guard
            job["count"], job["length"] = cut.count, cut.length
        module = self.runtime.module(PACKAGE, "look.cu", build_of(self.kind))
        for kernel in ("beside", "bands"):
            for part in range(max(cut.parts for cut in cuts)):
                if part or kernel == "beside" or cuts[0].parts > 1:
                    read = self._read(cuts, part, pool, jobs)
                    lane.to_device(listed, jobs.view(np.uint8))
                items = max(rows // cut.bin + cut.length for rows, cut in zip(read, cuts, strict=True))
                grid, args = (-(-C // 32), 1), (listed, *ints(C))
                if kernel == "bands":
                    grid, args = (-(-items // WARPS), bands), (listed, bounds, *ints(C, bands))
                module.launch(kernel, (*grid, len(cuts)), (32 * WARPS,), args, stream=lane.stream)
        on_host = lane.pinned("found", out.size, np.float64)
        lane.to_host(on_host, out)
        lane.synchronize()
        found: list[Sums | None] = []
        at = 0
        for cut, shape, each in zip(cuts, shapes, sizes, strict=True):
            parts = {}
            for (name, dims), size in zip(shape.items(), each, strict=True):
                parts[name] = on_host[at : at + size].reshape(dims)
                at += size
            found.append(None if cut.gone else (parts["flat"], parts["lined"], parts["var"]))
        return found

    def _held(self, cut: CutOut) -> int:
        """Address of the first sample of a cut-out in the rows of the engine; 0 if it does not hold all of them."""
        store, start, stop = self.store, cut.start, cut.start + cut.count * cut.bin
        if store is None or self._hidden is None or cut.parts > 1 or start < store.start or stop > store.stop:
            return 0
        return address(store.planes[1].part(0)) + start - store.start

    def _read(self, cuts: list[CutOut], part: int, pool: TaskPool, jobs: NDArray[Any]) -> list[int]:
        """Read a slice of each cut-out, and begin to copy them to the device; the numbers of their samples."""
        lane, width, samples = self.lane, self.kind.itemsize, [cut.samples_of(part) for cut in cuts]
        held = [self._held(cut) for cut in cuts]
        needs = [0 if there else n * cut.channels for cut, there, n in zip(cuts, held, samples, strict=True)]
        places = np.append(0, np.cumsum([-(-need // 16) * 16 for need in needs])).tolist()
        lane.synchronize()  # what lay there is copied
        memory = lane.pinned("samples", places[-1], self.kind)
        rooms = [memory[low : low + need] for low, need in zip(places, needs, strict=False)]
        tasks = [partial(self._flags, cut, part, room) for cut, room in zip(cuts, rooms, strict=True)]
        found = pool.run(tasks) if places[-1] else [task() for task in tasks]
        x = lane.array("samples", memory.size, self.kind)
        lane.to_device(x, memory)
        hidden = [np.ones((1, cuts[0].channels), bool) if one is None else one for one in found]
        gone = lane.array("gone", sum(one.size for one in hidden), np.uint8)
        lane.to_device(gone, np.concatenate([one.reshape(-1) for one in hidden]).view(np.uint8))
        at = address(gone)
        for job, cut, there, flags, low, count in zip(jobs, cuts, held, hidden, places, samples, strict=False):
            job["x"], job["gone"], job["same"] = there or address(x) + width * low, at, len(flags) == 1
            job["stride"] = self.store.planes[1].stride if there and self.store is not None else 0
            job["samples"], job["first"] = count, cut.first_of(part)
            at += flags.size
        return samples

    def _flags(self, cut: CutOut, part: int, place: NDArray[Any]) -> NDArray[np.bool_] | None:
        """Which samples of a slice do not count; None if they are gone.

        They are read into page-locked memory, unless that is empty: then the engine has them.
        """
        if not len(place):
            assert self._hidden is not None
            return self._hidden(cut.start, cut.start + cut.samples_of(part))
        one = cut.slice(part, lambda nbytes: place.view(np.uint8)[:nbytes])
        if one is None:
            return None
        if address(one[1]) != address(place):
            place[:] = one[1].reshape(-1)
        return one[2]


def kernels_of(dtype: np.dtype[Any]) -> list[tuple[str, str, str]]:
    """The arguments of `Runtime.module` for the kernels that look at samples of a type."""
    return [(PACKAGE, "look.cu", build_of(kind_of(dtype)))]


def kind_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type as which samples are looked at."""
    return np.dtype(np.uint8 if dtype == np.uint8 else np.float32)


def build_of(kind: np.dtype[Any]) -> str:
    """The build of ``look.cu`` for a type of `kind_of`."""
    return "bytes" if kind == np.uint8 else "f32"
