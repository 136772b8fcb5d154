"""Copies of maps between host and GPU: in pieces, through pinned memory, by several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.gpu.staging import Lane, is_pinned, make_lane, page_locked
from skysieve.core.tasks import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from skysieve.core.gpu.runtime import Runtime

PIECE = 1 << 23
"""Bytes of a piece; smaller pieces would keep the interpreter busy."""
MOST_THREADS = 12
"""Copying threads; more are not faster (200 MB on 16 cores of an H100's host: 12 or 16: 6 ms, 8: 8 ms, 1: 33 ms)."""


def upload(runtime: Runtime, arrays: list[NDArray[Any]]) -> list[Any]:
    """Copy arrays to the device in one transfer."""
    places, total = [], 0
    for a in arrays:
        places.append(total)
        total += -(-a.nbytes // 256) * 256
    whole = np.zeros(total, np.uint8)
    for a, place in zip(arrays, places, strict=True):
        whole[place : place + a.nbytes] = np.ascontiguousarray(a).reshape(-1).view(np.uint8)
    held = runtime.xp.asarray(whole)
    return [
        held[place : place + a.nbytes].view(a.dtype).reshape(a.shape) for a, place in zip(arrays, places, strict=True)
    ]


class Threads:
    """Threads for both directions, started on first use; they share the bandwidth of the memory."""

    def __init__(self) -> None:
        self.count = min(MOST_THREADS, usable_cores())
        self._pool: ThreadPoolExecutor | None = None

    def run(self, works: list[Callable[[], None]]) -> None:
        """Run all works; raise the first error after all have ended, so that none writes any more."""
        if len(works) == 1:
            works[0]()
            return
        self._pool = self._pool or ThreadPoolExecutor(self.count, "skysieve-copy")
        errors = [f.exception() for f in [self._pool.submit(work) for work in works]]
        for error in errors:
            if error is not None:
                raise error

    def close(self) -> None:
        """Wait for the threads and end them."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None


class Transfers:
    """One direction of the bus."""

    def __init__(self, runtime: Runtime, threads: Threads) -> None:
        self.runtime, self.threads = runtime, threads
        self._lanes: list[Lane] = []
        self._staging: NDArray[np.uint8] = np.empty(0, np.uint8)

    def close(self) -> None:
        """Free streams and buffers."""
        for lane in self._lanes:
            lane.free()
        self._lanes.clear()
        self._staging = np.empty(0, np.uint8)

    def up(self, target: Any, source: NDArray[Any]) -> None:
        """Copy ``source`` (n,) of any dtype into the device array ``target`` (n,), and wait for it."""
        if source.dtype == target.dtype and source.flags.c_contiguous and is_pinned(self.runtime, source):
            self._at_once(lambda lane: lane.to_device(target, source))
        else:
            self._share(len(source), target.dtype, lambda *who: _send(target, source, *who))

    def down(self, target: NDArray[Any], source: Any) -> None:
        """Copy the device array ``source`` (n,) into ``target`` (n,) of the same dtype, and wait for it."""
        if is_pinned(self.runtime, target):
            self._at_once(lambda lane: lane.to_host(target, source))
        else:
            self._share(len(target), target.dtype, lambda *who: _fetch(target, source, *who))

    def _at_once(self, copy: Callable[[Lane], None]) -> None:
        (lane,) = self._ready(1)
        copy(lane)
        lane.synchronize()

    def _ready(self, count: int) -> list[Lane]:
        while len(self._lanes) < count:
            self._lanes.append(make_lane(self.runtime))
        return self._lanes[:count]

    def _share(self, size: int, dtype: np.dtype[Any], work: Callable[..., None]) -> None:
        """Run ``work(lane, buffer, starts)`` in several threads, each with its own pieces and buffer.

        While one thread copies, pieces of the others cross the bus.
        """
        step = PIECE // dtype.itemsize
        starts = range(0, size, step)
        if not starts:
            return
        count = min(self.threads.count, len(starts))
        lanes = self._ready(count)
        if len(self._staging) < count * PIECE:
            self._staging = page_locked(self.runtime, count * PIECE)
        buffers = self._staging[: count * PIECE].view(dtype).reshape(count, step)
        self.threads.run([lambda k=k: work(lanes[k], buffers[k], starts[k::count]) for k in range(count)])


def _send(target: Any, source: NDArray[Any], lane: Lane, buffer: NDArray[Any], starts: range) -> None:
    with lane:
        for a in starts:
            piece = source[a : a + len(buffer)]
            lane.synchronize()
            np.copyto(buffer[: len(piece)], piece, casting="unsafe")
            lane.to_device(target[a : a + len(piece)], buffer[: len(piece)])
        lane.synchronize()


def _fetch(target: NDArray[Any], source: Any, lane: Lane, buffer: NDArray[Any], starts: range) -> None:
    with lane:
        for a in starts:
            piece = target[a : a + len(buffer)]
            lane.to_host(buffer[: len(piece)], source[a : a + len(piece)])
            lane.synchronize()
            np.copyto(piece, buffer[: len(piece)])
