"""Threads that share the parts of a long read or of a look at samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Lock
from typing import TypeVar

from skysieve.core.tasks import usable_cores

MOST_THREADS = 8
"""Most threads; more would wait for the global interpreter lock."""

R = TypeVar("R")

_making = Lock()
"""Held while threads are made."""


def _new_lock() -> None:
    """Replace the lock after a fork: a thread that held it does not exist in the child."""
    global _making
    _making = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


class Threads:
    """Threads that are started when they are needed; several threads may use them at once."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    def run(self, parts: Sequence[Callable[[], R]]) -> list[R]:
        """Run every part, and return the results; after an error, or Ctrl-C, no part goes on."""
        if len(parts) < 2 or usable_cores() == 1:
            return [part() for part in parts]
        pool = self._made()
        work = [pool.submit(part) for part in parts]
        try:
            return [one.result() for one in work]
        finally:
            for one in work:
                one.cancel()
            wait(work)

    def _made(self) -> ThreadPoolExecutor:
        with _making:
            if self._pool is None or self._process != os.getpid():  # a forked process has no copies of the threads
                self._process = os.getpid()
                self._pool = ThreadPoolExecutor(min(MOST_THREADS, usable_cores()), "skysieve-read")
            return self._pool

    def close(self) -> None:
        """Wait for the parts that run, and end the threads."""
        if self._pool is not None and self._process == os.getpid():
            self._pool.shutdown(wait=True)
        self._pool = None
