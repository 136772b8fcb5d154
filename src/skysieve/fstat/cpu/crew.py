"""Threads that help the caller with tasks of a millisecond.

On a virtual machine a sleeping thread takes up to a millisecond to wake, half as long as a map of 30 days.  The calling
thread therefore works on the tasks too, and the other threads take tasks as soon as they wake.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

R = TypeVar("R")


class Crew:
    """The caller's thread and further threads, which last for many calls.

    Parameters
    ----------
    workers : int
        Number of threads, including the caller's.

    Examples
    --------
    >>> crew = Crew(2)
    >>> crew.run([lambda: 1, lambda: 2, lambda: 3])
    [1, 2, 3]
    >>> crew.close()
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._others = ThreadPoolExecutor(workers - 1, "skysieve-crew") if workers > 1 else None

    def close(self) -> None:
        """End the threads."""
        if self._others is not None:
            self._others.shutdown(wait=True, cancel_futures=True)

    def run(
        self, tasks: Sequence[Callable[[], R]], progress: Callable[[int, int], Any] | None = None, alone: bool = False
    ) -> list[R]:
        """Call every task once, and return the results in the order of ``tasks``.

        With ``alone``, only the caller's thread is used, in which ``progress(done, total)`` is always called.  After
        the first error of a task no further task starts; the error is raised when the running tasks have ended.
        """
        todo = deque(enumerate(tasks))
        results: dict[int, R] = {}

        def work(report: Callable[[int, int], Any] | None = None) -> None:
            while True:
                try:
                    i, task = todo.popleft()
                except IndexError:
                    return
                try:
                    results[i] = task()
                except BaseException:
                    todo.clear()
                    raise
                if report is not None:
                    report(len(results), len(tasks))

        helpers = []
        if self._others is not None and not alone:
            helpers = [self._others.submit(work) for _ in range(min(self.workers, len(tasks)) - 1)]
        try:
            work(progress)
        finally:
            for helper in helpers:
                helper.cancel()
            errors = [e for h in helpers if not h.cancelled() and (e := h.exception()) is not None]
        if errors:
            raise errors[0]
        if progress is not None:
            progress(len(tasks), len(tasks))
        return [results[i] for i in range(len(tasks))]
