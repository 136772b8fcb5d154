"""Iterators that work ahead in threads of their own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from queue import Empty, Full, Queue
from typing import Any, Generic, TypeVar

__all__ = ["Ahead", "in_parallel"]

T = TypeVar("T")
_TICK = 0.05
"""Seconds after which a waiting thread looks whether it is to end."""


class Ahead(Generic[T]):
    """An iterator whose items are made in a thread while the caller works on earlier ones.

    Parameters
    ----------
    items : iterable
        An error that it raises is raised where its next item would be taken.
    depth : int
        Items that may wait.

    Examples
    --------
    >>> with Ahead(iter([1, 2, 3]), 2) as ahead:
    ...     sum(ahead)
    6
    """

    def __init__(self, items: Iterable[T], depth: int) -> None:
        self._items = items
        self._queue: Queue[tuple[str, Any]] = Queue(depth)
        self._stop = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="skysieve-ahead", daemon=True)
        self._thread.start()

    def __enter__(self) -> Ahead[T]:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._ended:
            raise StopIteration
        while True:
            try:
                kind, value = self._queue.get(timeout=1.0)
                break
            except Empty:
                if not self._thread.is_alive() and self._queue.empty():
                    raise RuntimeError("a thread that reads ahead has ended without a word") from None
        if kind == "item":
            item: T = value
            return item
        self._ended = True
        if kind == "error":
            raise value
        raise StopIteration

    def _work(self) -> None:
        try:
            for item in self._items:
                if not self._put("item", item):
                    return
            self._put("end", None)
        except BaseException as error:  # it is raised in the caller's thread
            self._put("error", error)
        finally:
            close = getattr(self._items, "close", None)
            if close is not None:
                close()

    def _put(self, kind: str, value: Any) -> bool:
        """Whether there was room before the end of the work."""
        while not self._stop.is_set():
            try:
                self._queue.put((kind, value), timeout=_TICK)
                return True
            except Full:
                continue
        return False

    def close(self) -> None:
        """End the thread, after the item that it makes now; items that wait are dropped."""
        self._stop.set()
        self._ended = True
        self._thread.join()


def in_parallel(parts: Iterable[Iterable[T]], threads: int, depth: int = 1) -> Iterator[T]:
    """The items of all parts, one part after the other, while the next parts are read ahead.

    Parameters
    ----------
    parts : iterable of iterables
    threads : int
        Parts that are read at a time.
    depth : int
        Items of each part that may wait.

    Examples
    --------
    >>> list(in_parallel([[1, 2], [3], [], [4]], 2))
    [1, 2, 3, 4]
    """
    waiting = iter(parts)
    running: deque[Ahead[T]] = deque(Ahead(part, depth) for part in islice(waiting, threads))
    try:
        while running:
            yield from running[0]
            running.popleft().close()
            running.extend(Ahead(part, depth) for part in islice(waiting, 1))
    finally:
        for ahead in running:
            ahead.close()
