"""Sums of the cut-outs of candidates on a GPU; see ``look.cu``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.errors import MemoryBudgetError
from skysieve.core.gpu.runtime import Runtime, on_device
from skysieve.core.gpu.staging import Lane, make_lane
from skysieve.core.gpu.structs import fill, struct
from skysieve.dedispersion.cuda.worker import memory_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.single_pulse.vetting import CutOut, Sums

__all__ = ["DeviceSums", "kernels_of"]

PACKAGE = "skysieve.dedispersion.single_pulse.cuda"
JOB = struct(
    "x*", "gone*", "start*", "edges*", "sums*", "var*", "flat*", "lined*", "samples#", "same", "channels", "bands",
    "size", "first", "side", "width", "guard", "count", "length",
)  # fmt: skip
"""``struct Job``."""
WARPS = 16


class DeviceSums:
    """Sums the samples of cut-outs on a GPU, for several threads at once; see `vetting.sums_on_host`.

    Parameters
    ----------
    runtime : Runtime
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._lanes: SimpleQueue[Lane] = SimpleQueue()
        self._made: list[Lane] = []

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(lane.nbytes for lane in self._made)

    @contextmanager
    def _lane(self) -> Iterator[Lane]:
        with on_device(self.runtime):
            try:
                lane = self._lanes.get_nowait()
            except Empty:
                self._made.append(lane := make_lane(self.runtime))
            try:
                with lane:
                    yield lane
            finally:
                lane.settle()
                self._lanes.put(lane)

    def close(self) -> None:
        """Free the memory of the device."""
        with on_device(self.runtime):
            for lane in self._made:
                lane.free()

    def __call__(self, cut: CutOut) -> Sums | None:
        """See `vetting.sums_on_host`.

        Raises
        ------
        MemoryBudgetError
            The samples do not fit on the device.
        """
        with self._lane() as lane:
            try:
                return self._sums(cut, lane)
            except memory_errors(self.runtime) as error:
                what = f"the second look at {cut.count} bins of {cut.channels} channels on {self.runtime.device}"
                raise MemoryBudgetError(
                    what, 4 * cut.count * cut.bin * cut.channels, self.runtime.device.free_memory
                ) from error

    def _sums(self, cut: CutOut, lane: Lane) -> Sums | None:
        C, bands = cut.channels, len(cut.edges) - 1
        sizes = {"sums": 3 * C, "var": C, "flat": 2 * bands * cut.count, "lined": 2 * bands * cut.length}
        out = {name: lane.array(name, size, np.float64) for name, size in sizes.items()}
        for array in out.values():
            lane.clear(array)
        start, edges = lane.array("start", C, np.int64), lane.array("edges", bands + 1, np.int32)
        lane.to_device(start, cut.arrivals.delays)
        lane.to_device(edges, cut.edges.astype(np.int32))

        def memory(nbytes: int) -> NDArray[np.uint8]:
            lane.synchronize()  # what lay there is copied
            return lane.pinned("samples", nbytes, np.uint8)

        for kernel in ("beside", "bands"):
            for first, rows, gone in cut.slices(memory):
                x = lane.array("floats" if rows.dtype.kind == "f" else "bytes", rows.size, rows.dtype)
                hidden = lane.array("gone", gone.size, np.uint8)
                if kernel == "beside" or not cut.whole:
                    lane.to_device(x, rows.reshape(-1))
                    lane.to_device(hidden, np.ascontiguousarray(gone).view(np.uint8).reshape(-1))
                job = fill(
                    JOB, x=x, gone=hidden, start=start, edges=edges, **out, samples=len(rows), same=int(len(gone) == 1),
                    channels=C, bands=bands, size=cut.bin, first=first, side=cut.side, width=cut.width, guard=cut.guard,
                    count=cut.count, length=cut.length,
                )  # fmt: skip
                grid = (
                    (-(-C // 32),) if kernel == "beside" else (-(-(len(rows) // cut.bin + cut.length) // WARPS), bands)
                )
                module = self.runtime.module(PACKAGE, "look.cu", build_of(rows.dtype))
                module.launch(kernel, grid, (32 * WARPS,), (job,), stream=lane.stream)
            if cut.gone:
                return None
        found = {name: lane.pinned("found " + name, out[name].size, np.float64) for name in ("var", "flat", "lined")}
        for name, array in found.items():
            lane.to_host(array, out[name])
        lane.synchronize()
        var, flat, lined = (array.copy() for array in found.values())
        return flat.reshape(2, bands, -1), lined.reshape(2, bands, -1), var


def kernels_of(dtype: np.dtype[Any]) -> list[tuple[str, str, str]]:
    """The arguments of `Runtime.module` for the kernels that look at samples of a type."""
    return [(PACKAGE, "look.cu", build_of(dtype))]


def build_of(dtype: np.dtype[Any]) -> str:
    """The build of ``look.cu`` for samples of a type: all but bytes are looked at as float32."""
    return "bytes" if dtype == np.uint8 else "f32"
