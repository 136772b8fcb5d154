"""The latest samples of a stream on a GPU, and the noise for missing ones: `history.History`, `missing.Filler`.

The samples are bytes.  Only lists of missing rectangles, and samples that are requested, cross the bus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.errors import MemoryBudgetError
from skysieve.core.gpu.runtime import Runtime
from skysieve.core.gpu.staging import Lane, make_lane
from skysieve.dedispersion.clean.cuda.launch import DeviceCleaner, TimeRows
from skysieve.dedispersion.clean.missing import ENOUGH
from skysieve.dedispersion.contract import Resident

from .history import ENDLESS, History

if TYPE_CHECKING:
    from numpy.typing import NDArray

PACKAGE = "skysieve.dedispersion.stream.search"
THREADS, PIECE = 256, 64
ROOM = 4
"""Spare room, as a multiple of that of a history on the host, so that samples are moved less often."""
SPREAD = 3.0**0.5 / 65536
"""As `cpu_missing.SPREAD`; a test compares them."""


class Samples:
    """Rows of samples on a GPU.

    Parameters
    ----------
    runtime : Runtime
    rows, nchan : int

    Raises
    ------
    MemoryBudgetError
        They would take more than half of the free memory.
    """

    def __init__(self, runtime: Runtime, rows: int, nchan: int) -> None:
        self.runtime = runtime
        self.module = runtime.module(PACKAGE, "samples.cu")
        self.lane: Lane = make_lane(runtime)
        half = runtime.device.free_memory // 2 if runtime.xp is not np else 2**40
        if rows * nchan > half:
            raise MemoryBudgetError(f"{rows} samples of {nchan} channels on {runtime.device}", rows * nchan, half)
        with self.lane:
            self.rows = runtime.xp.zeros((rows, nchan), np.uint8)

    def put(self, at: int, rows: Any) -> None:
        """Copy rows, from the host or from this GPU, to row ``at`` and after it."""
        with self.lane:
            self.runtime.xp.copyto(self.rows[at : at + len(rows)], self.runtime.xp.asarray(rows))

    def move(self, first: int, count: int) -> None:
        """Move rows ``first : first + count`` to the start, in steps that do not overlap."""
        with self.lane:
            for at in range(0, count if first else 0, first or 1):
                n = min(first, count - at)
                self.runtime.xp.copyto(self.rows[at : at + n], self.rows[first + at : first + at + n])

    def grow(self, rows: int, first: int, count: int) -> None:
        """Make room for ``rows`` rows; rows ``first : first + count`` are moved to the start."""
        with self.lane:
            bigger = self.runtime.xp.zeros((rows, self.rows.shape[1]), np.uint8)
            self.runtime.xp.copyto(bigger[:count], self.rows[first : first + count])
            self.rows = bigger
        self.lane.synchronize()


class DeviceHistory(History):
    """A `history.History` on a GPU."""

    def __init__(self, like: History, runtime: Runtime) -> None:
        super().__init__(like.observation, like.dtype, like.maximum, 0, 1)
        self.keep = like.keep
        self.samples = Samples(runtime, self.keep + ROOM * (len(like.rows) - self.keep), len(self.order))
        self.rows = np.empty((0, len(self.order)), self.dtype)

    def append(self, rows: Any, needed: int) -> None:
        """See `History.append`."""
        held = self.samples
        if self.stop - self.base + len(rows) > len(held.rows):
            first = max(self.base, min(needed, self.stop + len(rows) - self.keep))
            left = self.stop - first
            if left + len(rows) > len(held.rows):
                held.grow(2 * (left + len(rows)), first - self.base, left)
            else:
                held.move(first - self.base, left)
            self.base = first
        held.put(self.stop - self.base, rows)
        self.stop += len(rows)

    def view(self, start: int, stop: int) -> Any:
        """See `History.view`."""
        return self.samples.rows[start - self.base : stop - self.base]

    def copy(self, start: int, stop: int) -> NDArray[Any]:
        """See `History.copy`."""
        with self.samples.lane:
            rows = self.view(start, stop)
            found: NDArray[Any] = np.array(rows) if isinstance(rows, np.ndarray) else rows.get()
        return found

    def clean(self, cleaner: DeviceCleaner, start: int, stop: int, last: bool) -> None:
        """Clean the blocks from ``start`` on that are complete; ``last``: the stream ends at ``stop``."""
        self.samples.lane.synchronize()
        cleaner.done = start
        cleaner.clean_rows(TimeRows(self.samples.rows), self.base, stop, stop if last else ENDLESS)

    def read(self, start: int, count: int) -> Any:
        """Samples for an engine, which reads them on its own streams."""
        held = self.samples
        held.lane.synchronize()
        if self.trial or count == 0:
            with held.lane:
                rows = held.runtime.xp.zeros((count, len(self.order)), np.uint8)
            held.lane.synchronize()
        else:
            self.check(start, count)
            rows = self.view(start, start + count)
        return Resident(rows, held.runtime.device.index)

    def synchronize(self) -> None:
        """See `History.synchronize`."""
        self.samples.lane.synchronize()

    def touch(self) -> None:
        """Do nothing: device memory is mapped already."""

    def close(self) -> None:
        """Free the device memory."""
        self.samples.lane.free()
        self.samples.rows = self.samples.rows[:0].copy()


class DeviceFiller:
    """`missing.Filler` for bytes on a GPU; the same bits."""

    def __init__(self, samples: Samples, block: int, maximum: int) -> None:
        self.samples, self.block, self.most = samples, block, maximum or 255
        self.nchan = samples.rows.shape[1]
        self.known = np.zeros(self.nchan, bool)
        self._count = np.zeros(self.nchan, np.int64)
        xp = samples.runtime.xp
        with samples.lane:
            self._number, self._total, self._square = (xp.zeros(self.nchan, np.uint64) for _ in range(3))
            self._mean, self._sigma = xp.zeros(self.nchan), xp.zeros(self.nchan)
            self._known = xp.zeros(self.nchan, np.uint32)
            self._none = xp.zeros(4, np.int64)

    def _rects(self, rects: NDArray[np.int64]) -> Any:
        return self.samples.runtime.xp.asarray(np.ascontiguousarray(rects, np.int64).ravel())

    def add(self, start: int, rows: Any, rects: NDArray[np.int64]) -> None:
        """See `missing.Filler.add`."""
        n, count, lane = len(rows), np.int32(len(rects)), self.samples.lane
        if not n:
            return
        held = self._none
        if len(rects):
            with lane:
                held = self._rects(rects)
        given = (rows, np.int64(start), np.int32(n), np.int32(self.nchan), held, count)
        grid = (min(len(rects), 4096),)
        self.samples.module.launch("blank", grid, (THREADS,), given, stream=lane.stream)
        args = (*given, self._number, self._total, self._square)
        grid2 = (-(-self.nchan // THREADS), -(-n // PIECE))
        self.samples.module.launch("statistics", grid2, (THREADS,), args, stream=lane.stream)
        self._count += n
        if not len(rects):
            return
        gone = (np.minimum(rects[:, 1], start + n) - np.maximum(rects[:, 0], start)).clip(0)
        steps = np.zeros(self.nchan + 1, np.int64)
        np.add.at(steps, rects[:, 2], gone)
        np.subtract.at(steps, rects[:, 3], gone)
        self._count -= np.cumsum(steps[:-1])

    @property
    def ready(self) -> bool:
        """See `missing.Filler.ready`."""
        return bool(self.known.any())

    def hide(self, rows: Any) -> None:
        """See `missing.Filler.hide`."""
        if not self.known.all():
            with self.samples.lane:
                rows[:, self.samples.runtime.xp.asarray(~self.known)] = 0

    def end_block(self, last: bool = False) -> bool:
        """See `missing.Filler.end_block`."""
        lane = self.samples.lane
        joined = False
        if not self.known.all():
            new = self._count * ENOUGH >= self.block
            if last and not self.ready:
                new = self._count > 0
            joined = self.ready and bool((new & ~self.known).any())
            if not (new | self.known).all():
                with lane:  # the kernel takes any sample for a channel whose level is not known
                    self._number[self.samples.runtime.xp.asarray(~new & ~self.known)] = 0
            self.known |= new
        self._count[:] = 0
        args = (
            self._number, self._total, self._square, self._mean, self._sigma, self._known, np.int32(self.nchan),
            np.int64(self.block),
        )  # fmt: skip
        self.samples.module.launch("end_block", (-(-self.nchan // THREADS),), (THREADS,), args, stream=lane.stream)
        return joined

    def fill(self, start: int, rows: Any, rects: NDArray[np.int64]) -> None:
        """See `missing.Filler.fill`."""
        lane = self.samples.lane
        if not len(rects) or not len(rows):
            return
        with lane:
            args = (
                rows, np.int64(start), np.int32(len(rows)), np.int32(self.nchan), self._rects(rects),
                np.int32(len(rects)), self._mean, self._sigma, np.float64(SPREAD), np.float64(self.most),
            )  # fmt: skip
            self.samples.module.launch("fill", (min(len(rects), 4096),), (THREADS,), args, stream=lane.stream)
