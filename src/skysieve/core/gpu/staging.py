"""Move arrays between host and GPU through pinned buffers on streams of their own.

A `Lane` is one stream with its buffers, on the device and pinned on the host, kept between uses.  A pipeline
holds two or three lanes: while one computes, the next one's data cross the bus, and a third one's results are
copied into the user's (pageable) memory by several threads.  On a runtime whose arrays are NumPy's (the tests'
host shim) the same calls copy at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np

from skysieve.core.tasks import usable_cores

from .runtime import Runtime

__all__ = ["GROWTH", "Copier", "CudaLane", "HostLane", "Lane", "is_pinned", "make_current", "make_lane"]

ALIGN = 256
GROWTH = 1.125
"""Bytes of a lane's new buffer for each that was asked for: hardly larger needs find room in it."""
_PIECE = 4 << 20
"""Bytes of a piece: of shorter ones threads wait for the interpreter (two H100s, 16 threads, two million rows on their
way: 13 GB/s of 1 MiB, over 17 of 4 MiB, where the GPUs do not wait)."""
_SHORT = 1 << 20
"""Bytes that are copied before another thread has woken up and got the interpreter."""
_MOST = 16
"""Threads: more copy no faster."""
_PINNED = 1  # cudaMemoryTypeHost


class Copier:
    """Copies between host arrays with several threads; one thread saturates neither bus nor memory."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = max(1, min(_MOST, threads or usable_cores()))
        self._pool: ThreadPoolExecutor | None = None

    def start(self, pairs: Sequence[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]) -> list[Future[None]]:
        """Begin copying each ``source`` into its ``destination`` (1-D, equal lengths); wait on what is returned.

        Small copies are done before this returns.
        """
        work: list[Future[None]] = []
        for destination, source in pairs:
            if self._threads == 1 or source.nbytes <= _SHORT:
                np.copyto(destination, source)
                continue
            pool = self._pool = self._pool or ThreadPoolExecutor(self._threads, "skysieve-copy")
            parts = max(1, min(4 * self._threads, source.nbytes // _PIECE))
            cuts = np.linspace(0, len(source), parts + 1).astype(np.int64)
            for a, b in pairwise(cuts):
                work.append(pool.submit(np.copyto, destination[a:b], source[a:b]))
        return work

    def copy(self, pairs: Sequence[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]) -> None:
        """As `start`, but waits, for all of them whatever happens: the arrays may be used anew then."""
        work = self.start(pairs)
        try:
            for future in work:
                future.result()
        finally:
            wait(work)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None


class Lane(ABC):
    """One stream and the buffers that go with it; see `CudaLane` and `HostLane`.

    ``generation`` changes whenever a buffer moves, so that recorded work knows when it is stale; ``recording`` tells
    that work is recorded, not run.
    """

    stream: Any = None

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.xp = runtime.xp
        self.generation = 0
        self.recording = False
        self._device: dict[str, Any] = {}
        self._host: dict[str, Any] = {}

    def array(self, name: str, size: int, dtype: Any, zero: bool = False) -> Any:
        """Device array of ``size`` elements, from the lane's buffer ``name``, which grows as needed.

        Holds what the last user left; ``zero`` clears the buffer whenever it has to grow.
        """
        nbytes = max(1, int(size)) * np.dtype(dtype).itemsize
        held = self._device.get(name)
        if held is None or held.nbytes < nbytes:
            self._device.pop(name, None)
            self.generation += 1
            held = None
            self.synchronize()
            grown = -(-int(GROWTH * nbytes) // ALIGN) * ALIGN
            with self:
                held = self.xp.zeros(grown, np.uint8) if zero else self.xp.empty(grown, np.uint8)
            self._device[name] = held
        return held[:nbytes].view(dtype)[: int(size)]

    def pinned(self, name: str, size: int, dtype: Any) -> np.ndarray[Any, Any]:
        """Page-locked host array of ``size`` elements, from the lane's buffer ``name``."""
        nbytes = max(1, int(size)) * np.dtype(dtype).itemsize
        held = self._host.get(name)
        if held is None or held.nbytes < nbytes:
            self._host.pop(name, None)
            self.generation += 1
            held = self._host[name] = self._allocate(int(GROWTH * nbytes))
        view: np.ndarray[Any, Any] = held[:nbytes].view(dtype)[: int(size)]
        return view

    def free(self) -> None:
        """Wait, then let go of every buffer."""
        self.settle()
        self.generation += 1
        self._device.clear()
        self._host.clear()

    @abstractmethod
    def _allocate(self, nbytes: int) -> np.ndarray[Any, Any]:
        """Page-locked bytes."""

    @abstractmethod
    def to_device(self, target: Any, source: np.ndarray[Any, Any]) -> None:
        """Start copying ``source`` into the device array ``target``; if it is pageable, return when it may change."""

    @abstractmethod
    def to_host(self, target: np.ndarray[Any, Any], source: Any) -> None:
        """Start copying the device array ``source`` into pinned ``target``."""

    @abstractmethod
    def from_peer(self, target: Any, source: Any, index: int) -> None:
        """Start copying ``source``, an array of the device with another number, into ``target``."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for everything started on this lane."""

    def settle(self) -> None:
        """As `synchronize`, also for what an error has kept from being joined."""
        self.synchronize()

    def fork(self) -> Any:
        """A second stream that starts where this lane is now, for kernels that may run beside the lane's."""
        return None

    def join(self) -> None:
        """Let the lane wait for what was started on its second stream since `fork`; by default there is none."""
        return

    def after(self, other: Lane) -> None:
        """Let what is started from now on wait for what another lane has been given; by default that has ended."""
        return

    def after_caller(self) -> None:
        """Let what is started from now on wait for what the caller's own stream has been given (not inside ``with``).

        A lane waits for no other stream by itself: arrays of the caller on the device may still be in the making.
        """
        return

    def record(self, work: Callable[[], None]) -> Callable[[], None] | None:
        """Record what ``work`` starts on this lane, without running it; returns what starts it all at once.

        None where the device cannot: then ``work`` has been run.
        """
        work()
        return None

    def __enter__(self) -> Lane:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


class HostLane(Lane):
    """A lane whose device is the host: copies happen at once."""

    def _allocate(self, nbytes: int) -> np.ndarray[Any, Any]:
        return np.zeros(nbytes, np.uint8)

    def to_device(self, target: Any, source: np.ndarray[Any, Any]) -> None:
        target[...] = source

    def to_host(self, target: np.ndarray[Any, Any], source: Any) -> None:
        target[...] = source

    def from_peer(self, target: Any, source: Any, index: int) -> None:
        target[...] = source.reshape(target.shape)

    def synchronize(self) -> None:
        return None


class CudaLane(Lane):
    """A lane on a GPU: a non-blocking stream; entering it makes device and stream current."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._index = runtime.device.index
        with self.xp.cuda.Device(self._index):
            self.stream = self.xp.cuda.Stream(non_blocking=True)
        self._side: Any = None
        self._events: list[Any] = []
        self._entered: list[tuple[Any, Any]] = []

    def _allocate(self, nbytes: int) -> np.ndarray[Any, Any]:
        memory = self.xp.cuda.alloc_pinned_memory(nbytes)
        return np.frombuffer(memory, np.uint8, nbytes)

    def to_device(self, target: Any, source: np.ndarray[Any, Any]) -> None:
        runtime = self.xp.cuda.runtime
        start = source.__array_interface__["data"][0]  # half the time of source.ctypes.data
        runtime.memcpyAsync(target.data.ptr, start, source.nbytes, runtime.memcpyHostToDevice, self.stream.ptr)

    def to_host(self, target: np.ndarray[Any, Any], source: Any) -> None:
        runtime = self.xp.cuda.runtime
        runtime.memcpyAsync(
            target.ctypes.data, source.data.ptr, target.nbytes, runtime.memcpyDeviceToHost, self.stream.ptr
        )

    def from_peer(self, target: Any, source: Any, index: int) -> None:
        self.xp.cuda.runtime.memcpyPeerAsync(
            target.data.ptr, self._index, source.data.ptr, index, source.nbytes, self.stream.ptr
        )

    def synchronize(self) -> None:
        self.stream.synchronize()

    def settle(self) -> None:
        self.stream.synchronize()
        if self._side is not None:
            self._side.synchronize()

    def fork(self) -> Any:
        if self._side is None:
            with self.xp.cuda.Device(self._index):
                self._side = self.xp.cuda.Stream(non_blocking=True)
                self._events = [self.xp.cuda.Event(disable_timing=True) for _ in range(2)]
        self._events[0].record(self.stream)
        self._side.wait_event(self._events[0])
        return self._side

    def join(self) -> None:
        self._events[1].record(self._side)
        self.stream.wait_event(self._events[1])

    def after(self, other: Lane) -> None:
        with self.xp.cuda.Device(self._index):
            event = self.xp.cuda.Event(disable_timing=True)
            event.record(other.stream)
            self.stream.wait_event(event)

    def after_caller(self) -> None:
        with self.xp.cuda.Device(self._index):
            event = self.xp.cuda.Event(disable_timing=True)
            event.record(self.xp.cuda.get_current_stream())
            self.stream.wait_event(event)

    def record(self, work: Callable[[], None]) -> Callable[[], None] | None:
        with self:
            self.stream.begin_capture()
            self.recording = True
            whole = False
            try:
                work()
                whole = True
            finally:
                self.recording = False
                if not whole:  # what the work raises counts, not that its half cannot be recorded
                    with suppress(RuntimeError):
                        self.stream.end_capture()
            graph = self.stream.end_capture()

        def replay() -> None:
            graph.launch(self.stream)

        return replay

    def __enter__(self) -> Lane:
        device = self.xp.cuda.Device(self._index)
        device.__enter__()
        self.stream.__enter__()
        self._entered.append((device, self.stream))
        return self

    def __exit__(self, *exc: object) -> None:
        device, stream = self._entered.pop()
        stream.__exit__(*exc)
        device.__exit__(*exc)


def make_lane(runtime: Runtime) -> Lane:
    """A lane for the runtime's kind of arrays."""
    return HostLane(runtime) if runtime.xp is np else CudaLane(runtime)


def make_current(runtime: Runtime, instead_of: Collection[int] = ()) -> None:
    """Let this thread's current device be the runtime's; with ``instead_of`` only where it is one of these now.

    What works on a device for a while returns to the thread's current one afterwards, which fails if that one is lost.
    """
    if runtime.xp is np or (instead_of and runtime.xp.cuda.runtime.getDevice() not in instead_of):
        return
    runtime.xp.cuda.Device(runtime.device.index).use()


def is_pinned(runtime: Runtime, array: Any) -> bool:
    """True when ``array`` is a NumPy array in page-locked memory: the GPU can write there itself."""
    if runtime.xp is np or not isinstance(array, np.ndarray) or array.size == 0:
        return False
    attributes = runtime.xp.cuda.runtime.pointerGetAttributes(array.ctypes.data)
    return int(attributes.type) == _PINNED
