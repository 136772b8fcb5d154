"""Maps between host and GPU: by pieces, which several threads bring into pinned memory and send over the bus."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.gpu.staging import Lane, is_pinned, make_lane
from skysieve.core.tasks import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from skysieve.core.gpu.runtime import Runtime

PIECE = 1 << 23
"""Bytes that cross the bus at a time: smaller ones keep the interpreter busy."""
MOST_THREADS = 12
"""More do not copy faster (16 cores of an H100's host: 6 ms for 200 MB, as with 16; 8 ms with 8, 33 ms with one)."""
PAGE = 4096
LEAST_HELD, MOST_HELD, SLOTS = 1 << 20, 1 << 30, 2
"""Bytes of results for which pinned memory is kept, and how many of them."""


def upload(runtime: Runtime, arrays: list[NDArray[Any]]) -> list[Any]:
    """Arrays on the device, through one copy."""
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
    """Threads for both directions, started on first use: more than that would share the same memory's rate."""

    def __init__(self) -> None:
        self.count = min(MOST_THREADS, usable_cores())
        self._pool: ThreadPoolExecutor | None = None

    def run(self, works: list[Callable[[], None]]) -> None:
        """All of them; the first one's error, once all have ended: none may write on behind it."""
        if len(works) == 1:
            works[0]()
            return
        self._pool = self._pool or ThreadPoolExecutor(self.count, "skysieve-copy")
        errors = [f.exception() for f in [self._pool.submit(work) for work in works]]
        for error in errors:
            if error is not None:
                raise error

    def close(self) -> None:
        """Wait, then end them."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None


def pinned(runtime: Runtime, size: int, threads: Threads) -> NDArray[np.uint8]:
    """Page-locked bytes, for as long as they are referred to.

    Pages that threads have touched and the driver then locks are there in a sixth of the time that it takes to get as
    many from it.
    """
    memory = np.empty(size, np.uint8)
    step = -(-size // (threads.count * PAGE)) * PAGE

    def touch(part: NDArray[np.uint8]) -> None:
        part[::PAGE] = 0

    threads.run([lambda a=a: touch(memory[a : a + step]) for a in range(0, size, step)])  # type: ignore[misc]
    if runtime.xp is not np:
        cuda = runtime.xp.cuda.runtime
        cuda.hostRegister(memory.ctypes.data, size, 1)  # for all GPUs
        # before the memory is given back; when Python ends, the driver may have gone before
        weakref.finalize(memory, cuda.hostUnregister, memory.ctypes.data).atexit = False
    return memory


class Transfers:
    """One direction of the bus."""

    def __init__(self, runtime: Runtime, threads: Threads) -> None:
        self.runtime, self.threads = runtime, threads
        self._lanes: list[Lane] = []
        self._staging: NDArray[np.uint8] = np.empty(0, np.uint8)

    def close(self) -> None:
        """Give back streams and buffers."""
        for lane in self._lanes:
            lane.free()
        self._lanes.clear()
        self._staging = np.empty(0, np.uint8)

    def up(self, target: Any, source: NDArray[Any]) -> None:
        """Copy ``source`` (n,) of any dtype into the device array ``target`` (n,); back when it is there."""
        if source.dtype == target.dtype and source.flags.c_contiguous and is_pinned(self.runtime, source):
            self._at_once(lambda lane: lane.to_device(target, source))
        else:
            self._share(len(source), target.dtype, lambda *who: _send(target, source, *who))

    def down(self, target: NDArray[Any], source: Any) -> None:
        """Copy the device array ``source`` (n,) into ``target`` (n,) of its dtype."""
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
        """``work(lane, buffer, starts)`` in several threads, each with pieces and a buffer of its own.

        While one copies, pieces of others cross the bus.
        """
        step = PIECE // dtype.itemsize
        starts = range(0, size, step)
        if not starts:
            return
        count = min(self.threads.count, len(starts))
        lanes = self._ready(count)
        if len(self._staging) < count * PIECE:
            self._staging = pinned(self.runtime, count * PIECE, self.threads)
        buffers = self._staging[: count * PIECE].view(dtype).reshape(count, step)
        self.threads.run([lambda k=k: work(lanes[k], buffers[k], starts[k::count]) for k in range(count)])  # type: ignore[misc]


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


class Results:
    """Host memory for results.

    Fresh memory costs more than the bus: the system clears its pages.  From the second result of one size on, two
    pinned blocks are kept, into which a GPU writes by itself; each is handed out again once nobody holds the array.
    """

    def __init__(self, runtime: Runtime, threads: Threads) -> None:
        self.runtime, self.threads = runtime, threads
        self._blocks: list[tuple[NDArray[np.uint8], weakref.ref[Any]]] = []
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
        free = next((k for k, (_, held) in enumerate(self._blocks) if held() is None), len(self._blocks))
        if free == SLOTS:
            return np.empty(shape, dtype)
        block = self._blocks[free][0] if free < len(self._blocks) else pinned(self.runtime, size, self.threads)
        # made of a buffer, it is itself the base of all its views, and goes with the last of them
        whole = np.frombuffer(block.data, dtype)
        self._blocks[free : free + 1] = [(block, weakref.ref(whole))]
        return whole.reshape(shape)
