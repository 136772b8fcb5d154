"""Progress reports: one callback type, silent by default.

A callback takes ``(done, total)`` and returns nothing.  The command line passes one that draws a bar;
the API passes what the user gave, or none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Progress", "Reporter"]

Progress = Callable[[int, int], None]
"""``progress(done, total)``."""


class Reporter:
    """Count work done from any thread and tell a callback now and then.

    Parameters
    ----------
    callback : callable or None
        ``callback(done, total)``; None is silent and free.
    total : int
        Units of work in the whole job.
    interval : float
        Fewest seconds between two calls; the first report and the last (``done == total``) always come.

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
        self._callback = callback
        self._interval = interval
        self._next = -float("inf")
        self._lock = threading.Lock()

    def add(self, units: int) -> None:
        """Report ``units`` more as done."""
        if self._callback is None:
            return
        with self._lock:
            self.done += units
            now = time.monotonic()
            if now < self._next and self.done < self.total:
                return
            self._next = now + self._interval
            self._callback(self.done, self.total)
