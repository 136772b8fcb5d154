"""Maps between host and GPU: by pieces, which several threads bring into pinned memory and send over the bus."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.pipeline import usable_cores
from skysieve.core.staging import Lane, is_pinned, make_lane

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from skysieve.core.kernels import Runtime

PIECE = 1 << 22
"""Bytes that cross the bus at a time: smaller ones keep the interpreter busy, and buffers are slow to get."""
MOST_THREADS = 12
"""More do not copy faster (16 cores of an H100's host: 6 ms for 200 MB, as with 16; 8 ms with 8, 33 ms with one)."""
LEAST_HELD, MOST_HELD, SLOTS = 1 << 20, 1 << 30, 2
"""Bytes of results for which pinned memory is kept, and how many of them."""


class Transfers:
    """One direction of the bus."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.threads = min(MOST_THREADS, usable_cores())
        self._lanes: list[Lane] = []
        self._pool: ThreadPoolExecutor | None = None

    def close(self) -> None:
        """Give back threads and buffers."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None
        for lane in self._lanes:
            lane.free()
        self._lanes.clear()

    def up(self, target: Any, source: NDArray[Any]) -> None:
        """Copy ``source`` (n,) of any dtype into the device array ``target`` (n,); back when it is there."""
        if source.dtype == target.dtype and source.flags.c_contiguous and is_pinned(self.runtime, source):
            self._at_once(lambda lane: lane.to_device(target, source))
        else:
            self._share(len(source), target.dtype, lambda *who: self._send(target, source, *who))

    def down(self, target: NDArray[Any], source: Any) -> None:
        """Copy the device array ``source`` (n,) into ``target`` (n,) of its dtype."""
        if is_pinned(self.runtime, target):
            self._at_once(lambda lane: lane.to_host(target, source))
        else:
            self._share(len(target), target.dtype, lambda *who: self._fetch(target, source, *who))

    def _at_once(self, copy: Callable[[Lane], None]) -> None:
        (lane,) = self._ready(1)
        copy(lane)
        lane.synchronize()

    def _ready(self, count: int) -> list[Lane]:
        while len(self._lanes) < count:
            self._lanes.append(make_lane(self.runtime))
        return self._lanes[:count]

    def _share(self, size: int, dtype: np.dtype[Any], work: Callable[..., None]) -> None:
        """``work(lane, starts, step)`` in several threads, each with pieces and a buffer of its own: while one copies,
        pieces of others cross the bus."""
        step = PIECE // dtype.itemsize
        starts = range(0, size, step)
        threads = min(self.threads, len(starts))
        lanes = self._ready(threads)
        if threads <= 1:
            work(lanes[0], starts, step)
            return
        pool = self._pool = self._pool or ThreadPoolExecutor(self.threads, "skysieve-copy")
        futures = [pool.submit(work, lanes[k], starts[k::threads], step) for k in range(threads)]
        errors = [f.exception() for f in futures]  # waits for all: none may write on behind an error
        for error in errors:
            if error is not None:
                raise error

    def _send(self, target: Any, source: NDArray[Any], lane: Lane, starts: range, step: int) -> None:
        with lane:
            buffer = lane.pinned("map", step, target.dtype)
            for a in starts:
                piece = source[a : a + step]
                lane.synchronize()
                np.copyto(buffer[: len(piece)], piece, casting="unsafe")
                lane.to_device(target[a : a + len(piece)], buffer[: len(piece)])
            lane.synchronize()

    def _fetch(self, target: NDArray[Any], source: Any, lane: Lane, starts: range, step: int) -> None:
        with lane:
            buffer = lane.pinned("map", step, target.dtype)
            for a in starts:
                piece = target[a : a + step]
                lane.to_host(buffer[: len(piece)], source[a : a + len(piece)])
                lane.synchronize()
                np.copyto(piece, buffer[: len(piece)])


class Results:
    """Host memory for results.

    Fresh memory costs more than the bus: the system clears its pages.  From the second result of one size on, two
    pinned blocks are kept, into which a GPU writes by itself; each is handed out again once nobody holds the array.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._blocks: list[tuple[Any, weakref.ref[Any]]] = []
        self._seen = 0

    def close(self) -> None:
        """Let go of what is kept; arrays that were handed out stay."""
        self._blocks.clear()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array to write a result into."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if self.runtime.xp is np or not LEAST_HELD <= size <= MOST_HELD:
            return np.empty(shape, dtype)
        if size != self._seen:
            self._seen = size
            self._blocks.clear()
            return np.empty(shape, dtype)
        for k, (memory, held) in enumerate(self._blocks):
            if held() is None:
                return self._hand_out(k, memory, shape, dtype)
        if len(self._blocks) == SLOTS:
            return np.empty(shape, dtype)
        cupy = self.runtime.xp
        try:
            memory = cupy.cuda.alloc_pinned_memory(size)
        except cupy.cuda.runtime.CUDARuntimeError:
            return np.empty(shape, dtype)  # as much as may be pinned is: pageable memory serves too
        return self._hand_out(len(self._blocks), memory, shape, dtype)

    def _hand_out(self, k: int, memory: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        # the base of all views of the result: it goes with the last of them
        whole = np.frombuffer(memory, dtype, int(np.prod(shape, dtype=np.int64)))
        self._blocks[k : k + 1] = [(memory, weakref.ref(whole))]
        return whole.reshape(shape)
