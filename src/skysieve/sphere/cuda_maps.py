"""Maps between host and GPU: pieces through pinned buffers, copied by several threads while others cross the bus."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from skysieve.core.staging import Copier, Lane, is_pinned, make_lane

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.core.kernels import Runtime

PIECE = 1 << 26
"""Bytes that cross the bus at a time."""
PAGE, TOUCHING = 4096, 4
"""Bytes of a page of memory, and threads that touch them."""
_LANES = 3


def _zero(some: NDArray[Any]) -> None:
    some[...] = 0


class Transfers:
    """One direction of the bus."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._copier = Copier()
        self._lanes: list[Lane] = []
        self._pool: ThreadPoolExecutor | None = None
        self._touching: list[Future[None]] = []

    def _ready(self) -> list[Lane]:
        if not self._lanes:
            self._lanes = [make_lane(self.runtime) for _ in range(_LANES)]
        return self._lanes

    def close(self) -> None:
        """Give back threads and buffers."""
        for lane in self._lanes:
            lane.free()
        self._lanes.clear()
        self._copier.close()
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None

    def up(self, target: Any, source: NDArray[Any]) -> None:
        """Copy ``source`` (n,) of any dtype into the device array ``target`` (n,); back when it is there."""
        lanes, dtype = self._ready(), target.dtype
        if source.dtype == dtype and source.flags.c_contiguous and is_pinned(self.runtime, source):
            lanes[0].to_device(target, source)
            lanes[0].synchronize()
            return
        step = PIECE // dtype.itemsize
        for c, a in enumerate(range(0, len(source), step)):
            lane = lanes[c % _LANES]
            lane.synchronize()
            piece = source[a : a + step]
            buffer = lane.pinned("map", step, dtype)[: len(piece)]
            self._copier.copy([(buffer, piece)])
            lane.to_device(target[a : a + len(piece)], buffer)
        for lane in lanes:
            lane.synchronize()

    def down(self, target: NDArray[Any], source: Any) -> None:
        """Copy the device array ``source`` (n,) into ``target`` (n,) of its dtype."""
        wait(self._touching)
        self._touching.clear()
        lanes, dtype = self._ready(), target.dtype
        if is_pinned(self.runtime, target):
            lanes[0].to_host(target, source)
            lanes[0].synchronize()
            return
        step = PIECE // dtype.itemsize
        waiting: list[tuple[Lane, NDArray[Any], NDArray[Any]]] = []
        for c, a in enumerate(range(0, len(target), step)):
            if len(waiting) == _LANES:
                self._finish(waiting.pop(0))
            lane = lanes[c % _LANES]
            piece = target[a : a + step]
            buffer = lane.pinned("map", step, dtype)[: len(piece)]
            lane.to_host(buffer, source[a : a + len(piece)])
            waiting.append((lane, buffer, piece))
        for one in waiting:
            self._finish(one)

    def touch(self, target: NDArray[Any]) -> None:
        """Begin to give the pages of a fresh host array (n,) their memory, which takes as long as to fill them."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(TOUCHING, "skysieve-touch")
        step = PAGE // target.dtype.itemsize
        size = -(-len(target) // (TOUCHING * step)) * step
        for a in range(0, len(target), size):
            self._touching.append(self._pool.submit(_zero, target[a : a + size : step]))

    def _finish(self, one: tuple[Lane, NDArray[Any], NDArray[Any]]) -> None:
        lane, buffer, piece = one
        lane.synchronize()
        self._copier.copy([(piece, buffer)])
