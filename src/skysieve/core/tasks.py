"""Work in threads: tasks on a pool, longest first, until the first error; iterators whose items are made ahead.

Tasks are callables that release the GIL for most of their time (compiled kernels, FFTs).
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from .checks import thread_count
from .plan import Closing
from .progress import Progress, Reporter

__all__ = ["Ahead", "TaskPool", "in_parallel", "job_share", "part_of_a_job", "usable_cores"]

R = TypeVar("R")
T = TypeVar("T")
_END = object()
HANDOFF_SECONDS = 3e-3
"""Time that one more thread costs a job whose tasks need the interpreter often, measured with `sphere` on 16 cores."""


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_share: ContextVar[float] = ContextVar("share of the job", default=1.0)


@contextmanager
def part_of_a_job(objects: int, left: int) -> Iterator[None]:
    """Declare that the calls in a ``with`` block work on ``objects`` of the ``left`` remaining objects of a job.

    Preparations that serve many calls can then be chosen for the whole job (`job_share`).
    """
    token = _share.set(objects / max(objects, left, 1))
    try:
        yield
    finally:
        _share.reset(token)


def job_share() -> float:
    """Return the share of the remaining job that the present call does; 1 outside `part_of_a_job`."""
    return _share.get()


class TaskPool(Closing):
    """Threads that live for several jobs, so that the plans and buffers that tasks store per thread can be used again.

    Parameters
    ----------
    workers : int, optional
        Threads; all usable cores by default.  One worker runs in the caller's thread.

    Examples
    --------
    >>> with TaskPool(2) as pool:
    ...     pool.run([lambda: 1, lambda: 2], costs=[1, 5])
    [1, 2]
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = thread_count(workers) or usable_cores()
        self._executor = ThreadPoolExecutor(self.workers, "skysieve") if self.workers > 1 else None

    def close(self) -> None:
        """Wait for running tasks, and end the threads."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def run(
        self,
        tasks: Sequence[Callable[[], R]],
        *,
        costs: Sequence[float] | None = None,
        units: Sequence[int] | None = None,
        progress: Progress | None = None,
        most: int | None = None,
    ) -> list[R]:
        """Run every task and return the results in the order of ``tasks``.

        Parameters
        ----------
        tasks : sequence of callables
            Each is called once, without arguments.
        costs : sequence of float, optional
            Relative times; the longest tasks start first, so that the last one to end is short.
        units : sequence of int, optional
            Weight of each task in ``progress``; 1 by default.
        progress : callable, optional
            ``progress(done, total)``, called in the caller's thread.
        most : int, optional
            Most threads to use; see `sharing`.

        Raises
        ------
        Exception
            The first error of a task, unchanged, after the running tasks have ended; no further task starts.
        """
        order = list(range(len(tasks)))
        if costs is not None:
            order.sort(key=lambda i: -costs[i])
        counts = [1] * len(tasks) if units is None else list(units)
        reporter = Reporter(progress, sum(counts))
        results: dict[int, R] = {}
        threads = min(self.workers if most is None else most, len(tasks))
        if self._executor is None or threads <= 1:
            for i in order:
                results[i] = tasks[i]()
                reporter.add(counts[i])
        else:
            self._share(self._executor, threads, tasks, order, counts, reporter, results)
        return [results[i] for i in range(len(tasks))]

    def sharing(self, seconds: float) -> int:
        """The number of threads that share tasks which need the interpreter often and take so long on one core.

        Of many threads each waits for the others, so that few share a short job: `HANDOFF_SECONDS` for each of p
        threads and ``seconds / p`` are least together if p is the square root of their ratio.
        """
        return max(1, min(self.workers, round(math.sqrt(seconds / HANDOFF_SECONDS))))

    def _share(
        self,
        executor: ThreadPoolExecutor,
        number: int,
        tasks: Sequence[Callable[[], R]],
        order: list[int],
        counts: list[int],
        reporter: Reporter,
        results: dict[int, R],
    ) -> None:
        """Let a ``number`` of threads take one task after another, until none is left.

        The caller sleeps meanwhile: to hand out each task, it would need the interpreter, for which many threads wait.
        """
        waiting, ended = deque(order), SimpleQueue[int]()

        def work(thread: int) -> None:
            done = False
            try:
                while True:
                    try:
                        i = waiting.popleft()
                    except IndexError:
                        break
                    results[i] = tasks[i]()
                    if reporter.reports:
                        ended.put(i)
                done = True
            finally:
                if not done:
                    waiting.clear()
                ended.put(~thread)

        threads = [executor.submit(work, k) for k in range(number)]
        try:
            for _ in range(len(threads) + (len(tasks) if reporter.reports else 0)):
                if (i := ended.get()) >= 0:
                    reporter.add(counts[i])
                else:
                    threads[~i].result()
        finally:
            waiting.clear()
            wait(threads)


class Ahead(Closing, Generic[T]):
    """An iterator whose items are made in a thread while the caller works on earlier ones.

    Parameters
    ----------
    items : iterable
        An error of the iterable is raised when its next item would be taken.
    depth : int
        Items that are made ahead.

    Examples
    --------
    >>> with Ahead([1, 2, 3], 2) as ahead:
    ...     sum(ahead)
    6
    """

    def __init__(self, items: Iterable[T], depth: int) -> None:
        self._items = iter(items)
        self._pool = ThreadPoolExecutor(1, "skysieve-ahead")
        self._waiting: deque[Future[Any]] = deque()
        for _ in range(depth):
            self._ask()

    def _ask(self) -> None:
        self._waiting.append(self._pool.submit(next, self._items, _END))

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if not self._waiting:
            raise StopIteration
        item = self._waiting.popleft().result()
        if item is _END:
            self._waiting.clear()
            raise StopIteration
        self._ask()
        result: T = item
        return result

    def close(self) -> None:
        """End the thread after the item that it makes now; items that wait are dropped."""
        self._waiting.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)
        if isinstance(self._items, Generator):
            self._items.close()


def in_parallel(parts: Iterable[Iterable[T]], threads: int) -> Generator[T]:
    """The items of all parts, one part after the other, while the next parts are read ahead.

    Parameters
    ----------
    parts : iterable of iterables
    threads : int
        Parts that are read at a time, with one item of each ahead.

    Examples
    --------
    >>> list(in_parallel([[1, 2], [3], [], [4]], 2))
    [1, 2, 3, 4]
    """
    waiting = iter(parts)
    running: deque[Ahead[T]] = deque(Ahead(part, 1) for part in islice(waiting, threads))
    try:
        while running:
            yield from running[0]
            running.popleft().close()
            running.extend(Ahead(part, 1) for part in islice(waiting, 1))
    finally:
        for ahead in running:
            ahead.close()
