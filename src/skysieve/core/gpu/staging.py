"""Lanes: streams of a GPU with buffers on the device and page-locked buffers on the host.

An engine has two or three lanes: while one computes, the data of the next one are copied to the GPU, and the results of
a third one are copied into the user's (pageable) memory by several threads.  Buffers are reused from one call to the
next.  On the host shim of the tests, whose arrays are NumPy's, the same calls copy at once.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np

from skysieve.core.errors import KernelError
from skysieve.core.memory import available_host_memory
from skysieve.core.tasks import usable_cores

from .runtime import Runtime, on_device, recording
from .structs import Place, address

__all__ = [
    "GROWTH",
    "Copier",
    "CudaLane",
    "HostLane",
    "Lane",
    "ResultMemory",
    "is_pinned",
    "make_current",
    "make_lane",
    "page_locked",
]

logger = logging.getLogger("skysieve")

ALIGN = 256
GROWTH = 1.125
"""Ratio of the size of a lane's new buffer to the size that is needed, so that a slightly larger array still fits."""
_PIECE = 4 << 20
"""Bytes that a thread copies at a time; with less, threads wait for the interpreter (two H100s, 16 threads: 13 GB/s
with 1 MiB, over 17 GB/s with 4 MiB)."""
_SHORT = 1 << 20
"""Below this number of bytes, a copy ends before another thread could begin."""
_MOST = 16
"""Most threads; more are not faster."""
_PINNED = 1  # cudaMemoryTypeHost
_PAGE = 4096
"""Page-locked memory begins and ends at a page, so that two pieces never share one."""
_PORTABLE = 1  # cudaHostRegisterPortable
_IDLE = 2
"""Number of idle pieces of memory that wait for later results: a caller holds one result while the next is computed."""
_RESULTS = 1 / 4
"""Largest share of the free host memory that results may page-lock."""


class Copier:
    """Copy between host arrays with several threads; one thread uses neither the bus nor the memory fully."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = max(1, min(_MOST, threads or usable_cores()))
        self._pool: ThreadPoolExecutor | None = None

    def start(self, pairs: Sequence[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]) -> list[Future[None]]:
        """Begin to copy each ``source`` into its ``destination`` (1-D, equal lengths); return the futures.

        Small copies are complete when this returns.
        """
        work: list[Future[None]] = []
        for destination, source in pairs:
            if self.threads == 1 or source.nbytes <= _SHORT:
                np.copyto(destination, source)
                continue
            pool = self._threaded()
            parts = max(1, min(4 * self.threads, source.nbytes // _PIECE))
            cuts = np.linspace(0, len(source), parts + 1).astype(np.int64)
            for a, b in pairwise(cuts):
                work.append(pool.submit(np.copyto, destination[a:b], source[a:b]))
        return work

    def behind(self, pairs: Sequence[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]) -> list[Future[None]]:
        """Copy the first source, and let other threads copy the others; return their futures when they have begun.

        The other threads go on while the caller works.  A thread begins when it gets the interpreter's lock, which the
        caller releases while it copies.  Without other threads, nothing is copied, and the list is empty.
        """
        if self.threads == 1:
            return []
        begun = threading.Semaphore(0)

        def copy(destination: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
            begun.release()
            np.copyto(destination, source)

        work = [self._threaded().submit(copy, *pair) for pair in pairs[1:]]
        np.copyto(*pairs[0])
        for _ in work[: self.threads]:
            begun.acquire()
        return work

    def beside(self, work: Callable[[], object]) -> list[Future[Any]]:
        """Let another thread do ``work``, and return its future in a list; without other threads, do nothing."""
        return [] if self.threads == 1 else [self._threaded().submit(work)]

    def _threaded(self) -> ThreadPoolExecutor:
        self._pool = self._pool or ThreadPoolExecutor(self.threads, "skysieve-copy")
        return self._pool

    def copy(self, pairs: Sequence[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]) -> None:
        """Copy, and wait for all copies, even after an error, so that the arrays may be used again."""
        work = self.start(pairs)
        try:
            for future in work:
                future.result()
        finally:
            wait(work)

    def fill(self, array: np.ndarray[Any, Any], value: float) -> None:
        """Write a number to all elements of a 1-D array; with one thread, new memory takes 0.2 ms for each MB."""
        if self.threads == 1 or array.nbytes <= _SHORT:
            array.fill(value)
            return
        pieces = np.array_split(array, max(1, min(4 * self.threads, array.nbytes // _PIECE)))
        for future in [self._threaded().submit(piece.fill, value) for piece in pieces]:
            future.result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None


class Lane(ABC):
    """One stream and its buffers; see `CudaLane` and `HostLane`.

    Attributes
    ----------
    generation : int
        Changes whenever a buffer moves; recorded work of an earlier generation is useless.
    moves : int
        Number of buffers that have moved, except those whose address is requested before each use (``followed``).
    recording : bool
        Whether work is being recorded instead of run.
    """

    stream: Any = None

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.xp = runtime.xp
        self.generation = 0
        self.moves = 0
        self.recording = False
        self._device: dict[str, Any] = {}
        self._addresses: dict[str, int] = {}
        self._places: dict[str, tuple[Any, int, int, int]] = {}
        self._total = 0
        self._host: dict[str, Any] = {}
        self._device_kinds: dict[str, np.dtype[Any]] = {}
        self._host_kinds: dict[str, np.dtype[Any]] = {}

    def array(self, name: str, size: int, dtype: Any, zero: bool = False) -> Any:
        """Return a device array of `size` elements in the lane's buffer `name`, which grows as needed.

        Its values are those of the last use; with `zero` they are 0 after the buffer has grown.

        Raises
        ------
        KernelError
            The buffer has been used with another dtype: two parts of the code share one name.
        """
        nbytes = _claim(self._device_kinds, name, size, dtype)
        return self._grow(name, nbytes, zero)[:nbytes].view(dtype)[: int(size)]

    def place(self, name: str, size: int, dtype: Any, zero: bool = False, followed: bool = False) -> Place:
        """As `array`, but return a `Place`, all that a kernel needs, which takes a tenth of the time on a GPU.

        The place is valid until the buffer grows or is freed.  With ``followed`` the caller requests it before each
        use, so that `moves` need not count this buffer.
        """
        kind, itemsize, most, start = self._places.get(name, _NOWHERE)
        if kind is not dtype or size > most:
            nbytes, moves = _claim(self._device_kinds, name, size, dtype), self.moves
            held = self._grow(name, nbytes, zero)
            self.moves = moves if followed else self.moves
            itemsize, start = self._device_kinds[name].itemsize, self._addresses[name]
            self._places[name] = dtype, itemsize, held.nbytes // itemsize, start
        return Place(start, size, itemsize)

    def reserve(self, name: str, nbytes: int) -> None:
        """Let the lane's buffer `name` on the device have at least `nbytes` bytes, for arrays of any dtype."""
        self._grow(name, nbytes, False)

    def _grow(self, name: str, nbytes: int, zero: bool) -> Any:
        held = self._device.get(name)
        if held is None or held.nbytes < nbytes:
            self._device.pop(name, None)
            self._places.pop(name, None)
            self._total -= 0 if held is None else int(held.nbytes)
            self.generation += 1
            self.moves += held is not None
            held = None
            self.settle()  # work of the second stream may still use the old buffer
            grown = -(-int(GROWTH * nbytes) // ALIGN) * ALIGN
            with self:
                held = self.xp.zeros(grown, np.uint8) if zero else self.xp.empty(grown, np.uint8)
            if zero:
                self.synchronize()  # the second stream does not wait for the first one after `fork`
            self._device[name], self._addresses[name] = held, address(held)
            self._total += int(held.nbytes)
        return held

    def pinned(self, name: str, size: int, dtype: Any, followed: bool = False) -> np.ndarray[Any, Any]:
        """Return a page-locked host array of `size` elements in the lane's buffer `name`; see `array` and `place`."""
        nbytes = _claim(self._host_kinds, name, size, dtype)
        held = self._host.get(name)
        if held is None or held.nbytes < nbytes:
            self._host.pop(name, None)
            self.generation += 1
            self.moves += held is not None and not followed
            held = self._host[name] = self._allocate(int(GROWTH * nbytes))
        view: np.ndarray[Any, Any] = held[:nbytes].view(dtype)[: int(size)]
        return view

    def pinned_arrays(
        self, name: str, wanted: dict[str, tuple[int, Any]]
    ) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Place]]:
        """Return page-locked host arrays of given sizes and dtypes in one buffer `name`, and the `Place` of each.

        One buffer takes a fifth of the time that a buffer for each array would take.
        """
        total = 0
        starts: list[int] = []
        for size, dtype in wanted.values():
            starts.append(total)
            total += -(-size * dtype.itemsize // ALIGN) * ALIGN
        memory = self.pinned(name, total, np.uint8)
        first = address(memory)
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        places: dict[str, Place] = {}
        for (field, (size, dtype)), start in zip(wanted.items(), starts, strict=True):
            arrays[field] = np.frombuffer(memory, dtype, size, start)
            places[field] = Place(first + start, size, dtype.itemsize)
        return arrays, places

    def has_pinned(self, array: np.ndarray[Any, Any]) -> bool:
        """Return whether `array` lies in a page-locked buffer of this lane."""
        start = address(array)
        return any(0 <= start - address(held) < held.nbytes for held in self._host.values())

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers on the device."""
        return self._total

    def free(self) -> None:
        """Wait for all work, then free every buffer."""
        self.settle()
        self.generation += 1
        self.moves += 1
        self._device.clear()
        self._addresses.clear()
        self._places.clear()
        self._total = 0
        self._host.clear()
        self._device_kinds.clear()
        self._host_kinds.clear()

    @abstractmethod
    def _allocate(self, nbytes: int) -> np.ndarray[Any, Any]:
        """Return page-locked bytes."""

    @abstractmethod
    def to_device(self, target: Any, source: np.ndarray[Any, Any]) -> None:
        """Start to copy `source` into the device array (or, on a GPU, the `Place`) `target`.

        The call returns when a pageable `source` may be changed.
        """

    @abstractmethod
    def to_host(self, target: np.ndarray[Any, Any], source: Any) -> None:
        """Start to copy the device array `source` into the page-locked array `target`."""

    @abstractmethod
    def from_peer(self, target: Any, source: Any, index: int) -> None:
        """Start to copy `source`, an array on the device of number `index`, into `target`."""

    @abstractmethod
    def clear(self, target: Any) -> None:
        """Start to set the bytes of a contiguous device array to 0; CuPy's ``fill`` would compile a kernel first."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all work of this lane's stream."""

    def settle(self) -> None:
        """Wait for all work of both streams, also after an error between `fork` and `join`."""
        self.synchronize()

    def fork(self) -> Any:
        """Return a second stream, which waits for the lane's present work, for kernels that may run concurrently."""
        return None

    def join(self) -> None:
        """Let the lane wait for the work of its second stream since `fork`."""
        return

    def after(self, other: Lane) -> None:
        """Let later work of this lane wait for the present work of another lane."""
        return

    def after_caller(self) -> None:
        """Let later work of this lane wait for the caller's stream: arrays that the caller gives may be unfinished.

        Call it outside ``with``, where the caller's stream is the current one.
        """
        return

    def record(self, work: Callable[[], None]) -> Callable[[], None] | None:
        """Record what `work` starts on this lane without running it; return a function that starts all of it.

        On the host nothing can be recorded: `work` is run, and None is returned.
        """
        work()
        return None

    def __enter__(self) -> Lane:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


_NOWHERE = (None, 0, -1, 0)


def _claim(kinds: dict[str, np.dtype[Any]], name: str, size: int, dtype: Any) -> int:
    """Check that a buffer is used with one dtype only, and return the bytes of an array."""
    kind = np.dtype(dtype)
    first = kinds.setdefault(name, kind)
    if kind is not first and kind != first:
        raise KernelError(
            f"the buffer {name!r} of a lane is requested with the types {first} and {kind}; use two names"
        )
    return max(1, int(size)) * int(kind.itemsize)


class HostLane(Lane):
    """A lane whose device is the host: copies are complete when they return."""

    def _allocate(self, nbytes: int) -> np.ndarray[Any, Any]:
        return np.zeros(nbytes, np.uint8)

    def to_device(self, target: Any, source: np.ndarray[Any, Any]) -> None:
        target[...] = source

    def to_host(self, target: np.ndarray[Any, Any], source: Any) -> None:
        target[...] = source

    def from_peer(self, target: Any, source: Any, index: int) -> None:
        target[...] = source.reshape(target.shape)

    def clear(self, target: Any) -> None:
        target[...] = 0

    def synchronize(self) -> None:
        return None


class CudaLane(Lane):
    """A lane on a GPU, with a non-blocking stream; ``with lane:`` makes device and stream current."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._index = runtime.device.index
        with self.xp.cuda.Device(self._index):
            self.stream = self.xp.cuda.Stream(non_blocking=True)
        self._side: Any = None
        self._of_caller: Any = None
        self._events: list[Any] = []
        self._entered: list[tuple[Any, Any]] = []

    def _allocate(self, nbytes: int) -> np.ndarray[Any, Any]:
        memory = self.xp.cuda.alloc_pinned_memory(nbytes)
        return np.frombuffer(memory, np.uint8, nbytes)

    def to_device(self, target: Any, source: np.ndarray[Any, Any]) -> None:
        runtime = self.xp.cuda.runtime
        start = source.__array_interface__["data"][0]  # half the time of source.ctypes.data
        runtime.memcpyAsync(address(target), start, source.nbytes, runtime.memcpyHostToDevice, self.stream.ptr)

    def to_host(self, target: np.ndarray[Any, Any], source: Any) -> None:
        runtime = self.xp.cuda.runtime
        runtime.memcpyAsync(
            target.ctypes.data, source.data.ptr, target.nbytes, runtime.memcpyDeviceToHost, self.stream.ptr
        )

    def from_peer(self, target: Any, source: Any, index: int) -> None:
        self.xp.cuda.runtime.memcpyPeerAsync(
            target.data.ptr, self._index, source.data.ptr, index, source.nbytes, self.stream.ptr
        )

    def clear(self, target: Any) -> None:
        self.xp.cuda.runtime.memsetAsync(target.data.ptr, 0, target.nbytes, self.stream.ptr)

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
        if self.xp.cuda.runtime.getDevice() != self._index:  # entering a device's context takes as long as a launch
            with self.xp.cuda.Device(self._index):
                self.after_caller()
            return
        event = self._of_caller = self._of_caller or self.xp.cuda.Event(disable_timing=True)
        event.record(self.xp.cuda.get_current_stream())
        self.stream.wait_event(event)

    def record(self, work: Callable[[], None]) -> Callable[[], None] | None:
        with recording, self:
            self.stream.begin_capture()
            self.recording = True
            whole = False
            try:
                work()
                whole = True
            finally:
                self.recording = False
                if not whole:  # raise the error of the work, not that of its incomplete recording
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


def page_locked(runtime: Runtime, nbytes: int, touch: bool = True) -> np.ndarray[Any, Any]:
    """Return page-locked memory of at least `nbytes` bytes for all GPUs; it is unlocked when its last view is deleted.

    With `touch`, several threads touch the pages before the driver locks them.  This takes a sixth of the time of
    allocating pinned memory from the driver.

    Raises
    ------
    RuntimeError
        The driver refuses.
    """
    size = -(-nbytes // _PAGE) * _PAGE
    whole = np.empty(size + _PAGE, np.uint8)
    start = -whole.ctypes.data % _PAGE
    memory = whole[start : start + size]
    if touch:
        _touch(memory, min(_MOST, usable_cores()))
    if runtime.xp is not np:
        with on_device(runtime):
            runtime.xp.cuda.runtime.hostRegister(memory.ctypes.data, size, _PORTABLE)
        # NumPy's views refer to `whole`.  At exit the driver may be unloaded.
        weakref.finalize(whole, _unlock, runtime, memory.ctypes.data, os.getpid()).atexit = False
    return memory


def _touch(memory: np.ndarray[Any, Any], threads: int) -> None:
    step = -(-memory.nbytes // (threads * _PAGE)) * _PAGE

    def touch(first: int) -> None:
        memory[first : first + step : _PAGE] = 0

    with ThreadPoolExecutor(threads, "skysieve-touch") as pool:
        list(pool.map(touch, range(0, memory.nbytes, step)))


def _unlock(runtime: Runtime, start: int, process: int) -> None:
    """Unlock memory before it is freed; a forked child has no context on the GPU, and frees its copy only."""
    if os.getpid() == process:
        with suppress(RuntimeError), on_device(runtime):  # a lost GPU has already dropped it
            runtime.xp.cuda.runtime.hostUnregister(start)


class ResultMemory:
    """Page-locked memory for results: a GPU copies into it at the full rate of its bus.

    Page-locking memory takes longer than copying into it.  The memory of a result that the user no longer holds is
    therefore used again for the next one.  Small arrays are in pageable memory, and so are those with which page-locked
    memory would exceed `_RESULTS` of the free memory.

    Parameters
    ----------
    runtime : Runtime
        On the host, all results are in pageable memory.
    most : int, optional
        Largest number of page-locked results at a time.  Only results about as large as the one before are page-locked;
        the others are in pageable memory.  This is for engines that copy into pageable memory faster than memory is
        page-locked.  Before memory is page-locked, several threads touch its pages.  By default all results are
        page-locked.
    largest : int, optional
        Bytes of the largest result in page-locked memory.
    """

    def __init__(self, runtime: Runtime, most: int | None = None, largest: int | None = None) -> None:
        self._runtime, self._most, self._largest = runtime, most, largest
        self._idle: dict[int, np.ndarray[Any, Any]] = {}  # by address; single operations, safe in a finalizer
        self._locked: weakref.WeakValueDictionary[int, np.ndarray[Any, Any]] = weakref.WeakValueDictionary()
        self._last = 0
        self._closed = False

    def empty(self, shape: Sequence[int], dtype: Any) -> np.ndarray[Any, Any]:
        """Return a new array with undefined values; its memory is used again when the array and its views are gone."""
        kind = np.dtype(dtype)
        nbytes = math.prod(shape) * kind.itemsize
        memory = self._memory(nbytes) if self._runtime.xp is not np and nbytes >= _SHORT else None
        if memory is None:
            return np.empty(shape, kind)
        owner = _Owner(memory)
        weakref.finalize(owner, self._take_back, memory).atexit = False
        found: np.ndarray[Any, Any] = np.asarray(owner)[:nbytes].view(kind).reshape(shape)
        return found

    def _memory(self, nbytes: int) -> np.ndarray[Any, Any] | None:
        """Return idle or new page-locked memory of at least `nbytes` bytes; None if pageable memory is to be used."""
        last, self._last = self._last, nbytes
        for start, held in list(self._idle.items()):
            if nbytes <= held.nbytes <= 2 * nbytes and self._idle.pop(start, None) is not None:
                return held
        self._idle.clear()
        if self._largest is not None and nbytes > self._largest:
            return None
        if self._most is not None and (len(self._locked) >= self._most or not nbytes <= 2 * last <= 4 * nbytes):
            return None
        if nbytes + sum(held.nbytes for held in self._locked.values()) > _RESULTS * available_host_memory():
            return None
        try:
            memory = page_locked(self._runtime, nbytes, touch=self._most is not None)
        except RuntimeError as error:
            logger.info("no page-locked memory for a result of %d bytes: %s", nbytes, error)
            return None
        self._locked[memory.ctypes.data] = memory
        return memory

    def _take_back(self, memory: np.ndarray[Any, Any]) -> None:
        if not self._closed:
            self._idle[memory.ctypes.data] = memory
            while len(self._idle) > _IDLE:
                self._idle.popitem()

    def close(self) -> None:
        """Free the memory that no result holds; memory of results is freed with them."""
        self._closed = True
        self._idle.clear()


class _Owner:
    """The owner of an array's memory, to which arrays and their views refer.

    It is not a NumPy array, because views would then refer to that array's own base.
    """

    def __init__(self, memory: np.ndarray[Any, Any]) -> None:
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__


def make_lane(runtime: Runtime) -> Lane:
    """Return a lane for the arrays of a runtime."""
    return HostLane(runtime) if runtime.xp is np else CudaLane(runtime)


def make_current(runtime: Runtime, instead_of: Collection[int] = ()) -> None:
    """Make the runtime's device the current one of this thread; with `instead_of`, only if one of these is current.

    The context of another device restores the current device at its end, which fails if that device is lost.
    """
    if runtime.xp is np or (instead_of and runtime.xp.cuda.runtime.getDevice() not in instead_of):
        return
    runtime.xp.cuda.Device(runtime.device.index).use()


def is_pinned(runtime: Runtime, array: Any) -> bool:
    """Return whether `array` is a NumPy array in page-locked memory, which the GPU can write to itself."""
    if runtime.xp is np or not isinstance(array, np.ndarray) or array.size == 0:
        return False
    attributes = runtime.xp.cuda.runtime.pointerGetAttributes(array.ctypes.data)
    return int(attributes.type) == _PINNED
