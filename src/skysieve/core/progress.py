"""Progress reports: a callback ``progress(done, total)``, or a bar on a terminal; nothing by default."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

__all__ = ["Progress", "Reporter", "reporting"]

Progress = Callable[[int, int], None]
"""``progress(done, total)``."""


@contextmanager
def reporting(progress: bool | Progress, what: str) -> Iterator[Progress | None]:
    """Turn the argument `progress` of a public function into a callback for a backend.

    Parameters
    ----------
    progress : bool or callable
        True draws a bar on standard error; a callable is passed on; False reports nothing.
    what : str
        Label of the bar.

    Raises
    ------
    TypeError
        `progress` is neither a bool nor callable.
    """
    if callable(progress):
        yield progress
        return
    if not isinstance(progress, bool | np.bool_):
        raise TypeError(f"progress={progress!r}: expected True, False or a function")
    if not progress:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class Reporter:
    """Count finished work from any thread, and call a callback at most every `interval` seconds.

    Parameters
    ----------
    callback : callable or None
        ``callback(done, total)``; None reports nothing.
    total : int
        Units of work in the whole job.
    interval : float
        Least time between two calls in seconds; the first and the last one (``done == total``) are never left out.

    Examples
    --------
    >>> seen = []
    >>> report = Reporter(lambda done, total: seen.append((done, total)), 3, interval=0.0)
    >>> report.add(1); report.add(2)
    >>> seen
    [(1, 3), (3, 3)]
    """

    def __init__(self, callback: Progress | None, total: int, interval: float = 0.1) -> None:
        self.total = int(total)
        self.done = 0
        self.reports = callback is not None
        self._callback = callback
        self._interval = interval
        self._next = -float("inf")
        self._lock = threading.Lock()

    def add(self, units: int) -> None:
        """Add `units` to the finished work."""
        if self._callback is None:
            return
        with self._lock:
            self.done += units
            now = time.monotonic()
            if now < self._next and self.done < self.total:
                return
            self._next = now + self._interval
            self._callback(self.done, self.total)
