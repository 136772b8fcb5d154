"""What becomes of the samples around candidates: files, then pictures, behind everything else.

A thread writes the samples as they come; another one has the pictures drawn, one at a time, in the order of the
candidates.  Nothing waits for either.
"""

from __future__ import annotations

import os
import queue
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from .drawing import Painter, Task, save_samples, task_of

if TYPE_CHECKING:
    from skysieve.dedispersion.stream.records import Row

MOST_WAITING = 1000
"""Pictures that wait to be drawn; of candidates beyond, the samples stay on the disk."""
LEAST_FREE = 2**26
"""Bytes of the disk that are left to the tables: 300,000 candidates."""
LEAST_SECONDS = 5.0
"""That samples have at the end, however short the time for pictures is: nobody else has them."""
NICE = 10


class Pictures:
    """Keeps samples and draws them.

    Parameters
    ----------
    folder : Path
        Of the run.
    raw, pictures : bool
        Keep the samples; draw them.  Without ``raw`` those of a picture go when it is there.
    count : callable
        Takes the name of a counter, and by how much it rises: ``pictures``, ``pictures_failed``, ``pictures_later``,
        ``pictures_skipped``.
    done : callable
        Takes a candidate whose samples need no memory any more.
    say : callable
        Takes a line for the operator.
    """

    def __init__(
        self, folder: Path, *, raw: bool, pictures: bool, count: Callable[[str, int], None],
        done: Callable[[Row], None], say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.folder, self.raw, self.pictures = folder, raw, pictures
        self.count, self.done, self.say = count, done, say
        self._rows: queue.Queue[Row | None] = queue.Queue()
        self._tasks: deque[Task] = deque()
        self._ready = threading.Condition()
        self._until = float("inf")
        self._written = False
        self._told: set[str] = set()
        self.painter: Painter | None = None
        self._threads: list[EndingThread] = []

    def add(self, row: Row) -> None:
        """A candidate with its samples."""
        if not self._threads:
            for work in (self._write, self._draw):
                self._threads.append(EndingThread(work, "pictures"))
        self._rows.put(row)

    @property
    def waiting(self) -> int:
        """Candidates that have no picture yet, or whose samples are not on the disk."""
        return self._rows.qsize() + len(self._tasks)

    def close(self, seconds: float) -> None:
        """Go on for so many seconds at most, longer for samples; what is not drawn then can be drawn later."""
        self._until = time.monotonic() + seconds
        if not self._threads:
            return
        if self.waiting > 1 and seconds > 0:
            what = "pictures to draw" if self.pictures else "candidates whose samples are to be written"
            self.say(f"{self.waiting} {what}, for {seconds:g} s at most")
        self._rows.put(None)
        writer, drawer = self._threads
        if not writer.ended.wait(max(seconds, LEAST_SECONDS)):  # a disk that hangs holds up nobody
            self._give_up()
            writer.ended.wait(1.0)
        with self._ready:
            self._ready.notify_all()
        drawer.ended.wait(max(0.0, self._until - time.monotonic()) + 5.0)
        with self._ready:
            left = len(self._tasks)
            self._tasks.clear()
        if left:
            self._later(left)

    def _give_up(self) -> None:
        """Samples that are not being written yet will not be."""
        left = 0
        with suppress(queue.Empty):
            while True:
                row = self._rows.get_nowait()
                if row is not None:
                    left += 1
                    self.done(row)
        self._rows.put(None)
        if left:
            self.count("pictures_skipped", left)
            self.say(f"{self.folder}: the samples of {left} candidates could not be written in time")

    def _later(self, number: int) -> None:
        self.count("pictures_later", number)
        self._tell("later", f"pictures are left to draw, when there is time: skysieve dedisp plot {self.folder}")

    def _failed(self, why: str) -> None:
        self.count("pictures_failed", 1)
        self._tell("failed", f"a picture failed: {why}")

    def _tell(self, what: str, line: str) -> None:
        """Say a thing once."""
        if what not in self._told:
            self._told.add(what)
            self.say(line)

    # ------------------------------------------------------------------ samples
    def _write(self) -> None:
        """Samples to the disk."""
        lower_priority()
        while (row := self._rows.get()) is not None:
            task = task_of(self.folder, row.columns)
            assert row.raw is not None
            try:
                if shutil.disk_usage(self.folder).free < LEAST_FREE + row.raw.nbytes:
                    self.count("pictures_skipped", 1)
                    self._tell("full", f"{self.folder}: the disk is nearly full; samples and pictures are left out")
                    continue
                save_samples(task.samples, row.raw, row.raw_start, row.observation)
            except (OSError, ValueError, MemoryError) as error:
                self._failed(str(error) or type(error).__name__)
                continue
            finally:
                self.done(row)
            if not self.pictures:
                self.count("pictures", 1)
                continue
            with self._ready:
                room = len(self._tasks) < MOST_WAITING
                if room:
                    self._tasks.append(task)
                    self._ready.notify_all()
            if not room:
                self._later(1)
        with self._ready:
            self._written = True
            self._ready.notify_all()

    # ------------------------------------------------------------------ pictures
    def _draw(self) -> None:
        """Have pictures drawn, until there are no more or the time is over."""
        while (task := self._next()) is not None:
            try:
                if self.painter is None:
                    self.painter = Painter()
                wrong = self.painter.draw(task, lambda: time.monotonic() > self._until)
            except OSError as error:  # killed, or the system gives none: the next one gets a new process
                if self.painter is not None:
                    self.painter.close()
                self.painter, wrong = None, str(error)
            if wrong is None:
                with self._ready:
                    self._tasks.appendleft(task)
                break
            if wrong:
                self._failed(wrong)
                continue
            self.count("pictures", 1)
            if not self.raw:
                Path(task.samples).unlink(missing_ok=True)
        if self.painter is not None:
            self.painter.close()

    def _next(self) -> Task | None:
        """The oldest task; None when there will be none, or the time is over."""
        with self._ready:
            while not self._tasks and not self._written and time.monotonic() <= self._until:
                self._ready.wait(0.5)
            return self._tasks.popleft() if self._tasks and time.monotonic() <= self._until else None


class EndingThread(threading.Thread):
    """A daemon that works from now on and tells its end by an event.

    A `join` that a signal interrupts makes Python 3.11 believe that the thread has ended.
    """

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.work, self.ended = work, threading.Event()
        self.start()

    def run(self) -> None:
        """Work."""
        try:
            self.work()
        finally:
            self.ended.set()


def lower_priority() -> None:
    """Let other threads go before this one, where the system has priorities of threads."""
    if hasattr(os, "setpriority") and hasattr(threading, "get_native_id"):
        own = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, own, min(19, os.getpriority(os.PRIO_PROCESS, own) + NICE))
