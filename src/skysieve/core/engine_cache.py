"""The bounded cache of engines and plans behind the public functions, which makes repeated calls as fast as a plan.

A function borrows an engine under a key of everything that the engine was made from, uses it alone, and gives it back.
Two threads that borrow under one key at the same time use two engines.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from .device import Device

__all__ = ["ENGINES", "EngineCache", "clear_cache"]

logger = logging.getLogger("skysieve")

MOST = 16
"""Largest number of idle engines, of all devices together."""
SHARE = 1 / 8
"""Share of a device's memory that its idle engines may hold."""
SCARCE = 1 / 10
"""Share of a device's memory that must be free, or its idle engines are closed."""
SMALL = 64 << 20
"""Bytes of idle engines below which free memory is not queried: the query takes longer than a small search."""


FRESH = 0.5
"""Seconds for which the last query of free memory is relied on."""


class Closable(Protocol):
    """The interface of an engine that the cache needs."""

    def close(self) -> None: ...


E = TypeVar("E", bound=Closable)
R = TypeVar("R")


@dataclass(slots=True)
class _Idle:
    key: Hashable
    engine: Any
    device: Device
    size: int


class EngineCache:
    """Idle engines, the most recently used last; bounded in number and, for each device, in bytes.

    Parameters
    ----------
    most : int
        Idle engines that are retained.
    share : float
        Share of the memory of a device that its idle engines may hold.
    """

    def __init__(self, most: int = MOST, share: float = SHARE) -> None:
        self.most, self.share = most, share
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []
        self._registered = False
        self._ample: dict[Device, tuple[int, float]] = {}  # bytes held, and when enough memory was found free

    @contextmanager
    def borrow(self, key: Hashable, make: Callable[[], E], device: Device, size: Callable[[E], int]) -> Iterator[E]:
        """Lend an engine: an idle one of this key, or a new one.

        An engine whose user raises is closed and forgotten, since its state is unknown.

        Parameters
        ----------
        key : hashable
            Everything that `make` depends on, the device included.
        make : callable
            Makes the engine.  When it raises MemoryError, the idle engines of the device are closed, and it is called
            once more.
        device : Device
            Device that holds the engine's memory; the first one of several.
        size : callable
            ``size(engine)`` returns the bytes that the idle engine holds on the device.
        """
        engine = self.lend(key, make, device)
        try:
            yield engine
        except BaseException as error:
            self.discard(engine, device, error)
            raise
        self.take_back(key, engine, device, size)

    def lend(self, key: Hashable, make: Callable[[], E], device: Device) -> E:
        """Return what `borrow` lends; the caller ends the loan by `take_back` or `discard`."""
        engine: E | None = self._take(key)
        return self._make(make, device) if engine is None else engine

    def take_back(self, key: Hashable, engine: E, device: Device, size: Callable[[E], int]) -> None:
        """End a loan: the engine is idle again."""
        try:
            held = size(engine)
        except BaseException:
            self._close([_Idle(key, engine, device, 0)])
            raise
        self._give_back(_Idle(key, engine, device, held))

    def discard(self, engine: Closable, device: Device, error: BaseException) -> None:
        """End a loan after an error: the engine is closed."""
        self._close([_Idle(None, engine, device, 0)])
        if isinstance(error, (RuntimeError, MemoryError)):  # a lost GPU takes its other engines with it
            self.clear(device)

    def retried(self, device: Device, work: Callable[[], R]) -> R:
        """Return ``work()``, which borrows engines; once more if it raises MemoryError while the device has idle ones.

        `borrow` has then closed the idle engines.
        """
        others = self.has_idle(device)
        try:
            return work()
        except MemoryError:
            if not others:
                raise
        return work()

    def has_idle(self, device: Device) -> bool:
        """Return whether idle engines hold memory of a device."""
        return any(one.device == device for one in self._idle)

    def clear(self, device: Device | None = None) -> None:
        """Close the idle engines, or those of one device."""
        with self._lock:
            closed = [one for one in self._idle if device is None or one.device == device]
            self._idle = [one for one in self._idle if not (device is None or one.device == device)]
        self._close(closed)

    def __len__(self) -> int:
        """Return the number of idle engines."""
        return len(self._idle)

    def _take(self, key: Hashable) -> Any:
        with self._lock:
            for place in range(len(self._idle) - 1, -1, -1):
                if self._idle[place].key == key:
                    return self._idle.pop(place).engine
        return None

    def _make(self, make: Callable[[], E], device: Device) -> E:
        try:
            return make()
        except MemoryError:
            if not self.has_idle(device):
                raise
        self.clear(device)
        return make()

    def _give_back(self, new: _Idle) -> None:
        with self._lock:
            if not self._registered:
                atexit.register(self.clear)
                if hasattr(os, "register_at_fork"):
                    os.register_at_fork(after_in_child=self._forget)
                self._registered = True
            self._idle.append(new)
            closed = self._surplus(new.device)
            if closed:
                self._idle = [one for one in self._idle if one not in closed]
        self._close(closed)

    def _surplus(self, device: Device) -> list[_Idle]:
        """Return the engines that must go, the least recently used first."""
        same = [one for one in self._idle if one.device == device]
        held = sum(one.size for one in same)
        if held > SMALL and self._is_scarce(device, held):
            return same
        surplus = self._idle[: max(0, len(self._idle) - self.most)]
        for one in same:
            if held <= self.share * device.total_memory:
                break
            held -= one.size
            surplus.append(one)
        return surplus

    def _is_scarce(self, device: Device, held: int) -> bool:
        """Whether little memory of a device is free.  It is queried at most every `FRESH` seconds while engines hold as
        much as before, because the query takes as long as a small search."""
        now, last = time.monotonic(), self._ample.get(device)
        if last is not None and last[0] == held and now - last[1] < FRESH:
            return False
        scarce = device.free_memory < SCARCE * device.total_memory
        if scarce:
            self._ample.pop(device, None)
        else:
            self._ample[device] = held, now
        return scarce

    def _close(self, closed: list[_Idle]) -> None:
        for one in closed:
            try:
                one.engine.close()
            except (RuntimeError, OSError) as error:  # a GPU that was lost refuses to free its memory
                logger.warning("an engine on %s could not be closed: %s", one.device, error)

    def _forget(self) -> None:
        """After a fork: threads and GPU contexts of the parent do not exist in the child; nothing may be closed."""
        self._lock = threading.Lock()
        _FORGOTTEN.extend(self._idle)
        self._idle = []


_FORGOTTEN: list[_Idle] = []  # keeps destructors of a parent's engines from running in a forked child
ENGINES = EngineCache()
"""The cache of this process."""


def clear_cache() -> None:
    """Close the idle engines behind the functions, and free the memory that they hold on CPU and GPU.

    Functions such as `skysieve.lombscargle` and `skysieve.smoothing` leave their threads, buffers and GPU memory ready
    for the next call with the same options.  The number of idle engines and their share of a device's memory are
    bounded, and they are closed when memory is short and when the process ends.

    Examples
    --------
    >>> import skysieve
    >>> skysieve.clear_cache()
    """
    ENGINES.clear()
