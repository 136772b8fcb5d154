"""Sums of the cut-outs of candidates on a GPU; see ``look.cu``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from skysieve.core.errors import MemoryBudgetError
from skysieve.core.gpu.runtime import Runtime, on_device
from skysieve.core.gpu.staging import make_lane
from skysieve.core.gpu.structs import address, ints, struct
from skysieve.core.tasks import TaskPool
from skysieve.dedispersion.cuda.worker import memory_errors
from skysieve.dedispersion.single_pulse.vetting import Sums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.cuda.rows import Store
    from skysieve.dedispersion.single_pulse.vetting import CutOut

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


class _Given(NamedTuple):
    """A cut-out, and where its samples are."""

    cut: CutOut
    held: int
    """Address of its first sample in the rows of the engine; 0 if the engine does not hold all its samples."""
    hidden: NDArray[np.bool_] | None
    """Mask of the samples that do not count; None if the engine does not hold them."""

    @property
    def parts(self) -> int:
        """Number of slices that are read; 1 if the engine holds the samples."""
        return 1 if self.held else self.cut.parts

    def samples_of(self, part: int) -> int:
        """Samples of a slice."""
        return self.cut.count * self.cut.bin if self.held else self.cut.samples_of(part)

    def nbytes(self, itemsize: int) -> int:
        """Bytes of its flags, or of the samples that are read, and of its sums."""
        cut = self.cut
        given = cut.count * cut.bin * cut.channels * itemsize if self.hidden is None else self.hidden.size
        return given + 16 * (len(cut.edges) - 1) * (cut.count + cut.length)


class DeviceSums:
    """Sums the samples of cut-outs on a GPU, as many at a time as fit `BATCH`.

    Parameters
    ----------
    runtime : Runtime
    dtype : numpy.dtype
        Type of the samples; all but bytes are converted to float32.
    store : Store, optional
        Cleaned samples of an engine on this GPU.  Bytes are not read again as long as the store holds them.
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

    def __call__(self, cuts: Sequence[CutOut], pool: TaskPool, hidden: Hidden | None = None) -> Iterator[Sums]:
        """Yield the sums of the cut-outs of a batch, as of `vetting.sums_on_host`; the next batch overwrites them.

        Parameters
        ----------
        cuts : sequence of CutOut
            Cut-outs with the same channels and sub-bands.
        pool : TaskPool
            Threads that read samples.
        hidden : callable, optional
            Returns the mask of the samples ``start : stop`` that do not count.  Without it, all samples are read.

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
                        what = f"the samples around candidates ({len(some)}) on {self.runtime.device}"
                        need = sum(one.nbytes(self.kind.itemsize) for one in some)
                        raise MemoryBudgetError(what, need, self.runtime.device.free_memory) from error
                yield found
        finally:
            self._hidden = None  # it holds the user's data

    def _batches(self, cuts: Sequence[CutOut]) -> Iterator[list[_Given]]:
        """Cut-outs that are read together; a cut-out of several slices is a batch of its own."""
        some: list[_Given] = []
        total = 0
        for cut in cuts:
            one = self._given(cut)
            size = one.nbytes(self.kind.itemsize)
            if some and (total + size > BATCH or one.parts > 1):
                yield some
                some, total = [], 0
            some.append(one)
            total = BATCH if one.parts > 1 else total + size
        if some:
            yield some

    def _sums(self, given: list[_Given], pool: TaskPool) -> Sums:
        lane, cuts = self.lane, [one.cut for one in given]
        edges = cuts[0].edges
        C, bands = cuts[0].channels, len(edges) - 1
        sizes = [(C, 2 * bands * cut.count, 2 * bands * cut.length) for cut in cuts]
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
            for name, size in zip(("var", "flat", "lined"), each, strict=True):
                job[name] = at
                at += 8 * size
            job["size"], job["side"], job["width"], job["guard"] = cut.bin, cut.side, cut.width, cut.guard
            job["count"], job["length"] = cut.count, cut.length
        module = self.runtime.module(PACKAGE, "look.cu", build_of(self.kind))
        for kernel in ("beside", "bands"):
            for part in range(given[0].parts):
                if part or kernel == "beside" or given[0].parts > 1:
                    read = self._read(given, part, pool, jobs)
                    lane.to_device(listed, jobs.view(np.uint8))
                # pyrefly: ignore[unbound-name]  # the first pass reads
                items = max(rows // cut.bin + cut.length for rows, cut in zip(read, cuts, strict=True))
                grid, args = (-(-C // 32), 1), (listed, *ints(C))
                if kernel == "bands":
                    grid, args = (-(-items // WARPS), bands), (listed, bounds, *ints(C, bands))
                module.launch(kernel, (*grid, len(cuts)), (32 * WARPS,), args, stream=lane.stream)
        on_host = lane.pinned("found", out.size, np.float64)
        lane.to_host(on_host, out)
        lane.synchronize()
        starts = np.cumsum([0, *map(sum, sizes)])[:-1]
        return Sums(on_host, np.where([cut.gone for cut in cuts], -1, starts))

    def _given(self, cut: CutOut) -> _Given:
        """A cut-out, and where its samples are."""
        store, start, stop = self.store, cut.start, cut.start + cut.count * cut.bin
        if store is None or self._hidden is None or start < store.start or stop > store.stop:
            return _Given(cut, 0, None)
        return _Given(cut, address(store.planes[1].part(0)) + start - store.start, self._hidden(start, stop))

    def _read(self, given: list[_Given], part: int, pool: TaskPool, jobs: NDArray[Any]) -> list[int]:
        """Read a slice of each cut-out, and begin to copy them to the device; return the numbers of their samples."""
        lane, width, samples = self.lane, self.kind.itemsize, [one.samples_of(part) for one in given]
        needs = [0 if one.held else n * one.cut.channels for one, n in zip(given, samples, strict=True)]
        places = np.append(0, np.cumsum([-(-need // 16) * 16 for need in needs])).tolist()
        lane.synchronize()  # the last copy from the buffer has ended
        memory = lane.pinned("samples", places[-1], self.kind)
        rooms = [memory[low : low + need] for low, need in zip(places, needs, strict=False)]
        tasks = [partial(self._flags, one, part, room) for one, room in zip(given, rooms, strict=True)]
        found = pool.run(tasks) if places[-1] else [task() for task in tasks]
        x = lane.array("samples", memory.size, self.kind)
        lane.to_device(x, memory)
        hidden = [np.ones((1, given[0].cut.channels), bool) if one is None else one for one in found]
        gone = lane.array("gone", sum(one.size for one in hidden), np.uint8)
        lane.to_device(gone, np.concatenate([one.reshape(-1) for one in hidden]).view(np.uint8))
        at = address(gone)
        for job, one, flags, low, count in zip(jobs, given, hidden, places, samples, strict=False):
            job["x"], job["gone"], job["same"] = one.held or address(x) + width * low, at, len(flags) == 1
            job["stride"] = self.store.planes[1].stride if one.held and self.store is not None else 0
            job["samples"], job["first"] = count, one.cut.first_of(part)
            at += flags.size
        return samples

    def _flags(self, one: _Given, part: int, place: NDArray[Any]) -> NDArray[np.bool_] | None:
        """Read a slice of a cut-out into page-locked memory, unless the engine holds it.

        Returns the mask of the samples that do not count; None if the samples are no longer available.
        """
        if one.hidden is not None:
            return one.hidden
        read = one.cut.slice(part, lambda nbytes: place.view(np.uint8)[:nbytes])
        if read is None:
            return None
        if address(read[1]) != address(place):
            place[:] = read[1].reshape(-1)
        return read[2]


def kernels_of(dtype: np.dtype[Any]) -> list[tuple[str, str, str]]:
    """The arguments of `Runtime.module` for the kernels that look at samples of a type."""
    return [(PACKAGE, "look.cu", build_of(kind_of(dtype)))]


def kind_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type as which samples are looked at."""
    return np.dtype(np.uint8 if dtype == np.uint8 else np.float32)


def build_of(kind: np.dtype[Any]) -> str:
    """The build of ``look.cu`` for a type of `kind_of`."""
    return "bytes" if kind == np.uint8 else "f32"
