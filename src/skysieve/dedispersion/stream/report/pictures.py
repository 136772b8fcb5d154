"""Write the samples around candidates to files, and draw pictures of them, with low priority.

One thread writes the samples as they come.  Another thread has the pictures drawn, one at a time, in the order of the
candidates.  The search does not wait for either thread.
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

from .drawing import PictureProcess, PictureTask, save_samples, task_of

if TYPE_CHECKING:
    from skysieve.dedispersion.stream.records import Candidate

MOST_WAITING = 1000
"""Most pictures that may wait to be drawn; for further candidates only the samples are written."""
LEAST_FREE = 2**26
"""Bytes of disk space that are reserved for the tables: 300,000 candidates."""
LEAST_SECONDS = 5.0
"""Least seconds to write samples at the end, even if pictures have less time: there is no other copy of the samples."""
NICE = 10


class Pictures:
    """Writes samples and has them drawn.

    Parameters
    ----------
    folder : Path
        Folder of the run.
    raw, pictures : bool
        Whether to keep the samples, and whether to draw them.  Without ``raw`` the samples are removed when their
        picture has been drawn.
    count : callable
        Is called with the name of a counter of the sink and its increase.
    done : callable
        Is called with each candidate whose samples are no longer needed in memory.
    say : callable
        Is called with a line for the operator.
    """

    def __init__(
        self, folder: Path, *, raw: bool, pictures: bool, count: Callable[[str, int], None],
        done: Callable[[Candidate], None], say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.folder, self.raw, self.pictures = folder, raw, pictures
        self.count, self.done, self.say = count, done, say
        self._candidates: queue.Queue[Candidate | None] = queue.Queue()
        self._tasks: deque[PictureTask] = deque()
        self._ready = threading.Condition()
        self._until = float("inf")
        self._written = False
        self._said: set[str] = set()
        self.process: PictureProcess | None = None
        self._threads: list[EndingThread] = []

    def add(self, candidate: Candidate) -> None:
        """Take a candidate with its samples."""
        if not self._threads:
            for work in (self._write, self._draw):
                self._threads.append(EndingThread(work, "pictures"))
        self._candidates.put(candidate)

    @property
    def waiting(self) -> int:
        """Candidates whose samples are not on the disk yet, or that have no picture yet."""
        return self._candidates.qsize() + len(self._tasks)

    def close(self, seconds: float) -> None:
        """Continue for at most ``seconds``, longer for samples; pictures that are missing then can be drawn later."""
        self._until = time.monotonic() + seconds
        if not self._threads:
            return
        if self.waiting > 1 and seconds > 0:
            what = "pictures to be drawn" if self.pictures else "candidates whose samples are to be written"
            self.say(f"waiting at most {seconds:g} s for {self.waiting} {what}")
        self._candidates.put(None)
        writer, drawer = self._threads
        if not writer.ended.wait(max(seconds, LEAST_SECONDS)):  # the disk hangs
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
        """Drop the samples that are not being written yet."""
        left = 0
        with suppress(queue.Empty):
            while True:
                candidate = self._candidates.get_nowait()
                if candidate is not None:
                    left += 1
                    self.done(candidate)
        self._candidates.put(None)
        if left:
            self.count("pictures_skipped", left)
            self.say(f"{self.folder}: the samples of {left} candidates could not be written in time")

    def _later(self, number: int) -> None:
        self.count("pictures_later", number)
        self._say_once("later", f"some pictures are not drawn; draw them with: skysieve dedisp plot {self.folder}")

    def _failed(self, why: str) -> None:
        self.count("pictures_failed", 1)
        self._say_once("failed", f"a picture failed: {why}")

    def _say_once(self, what: str, line: str) -> None:
        """Say a line, if no line of this kind has been said."""
        if what not in self._said:
            self._said.add(what)
            self.say(line)

    # ------------------------------------------------------------------ samples
    def _write(self) -> None:
        """Write samples to the disk."""
        lower_priority()
        while (candidate := self._candidates.get()) is not None:
            task = task_of(self.folder, candidate.columns)
            assert candidate.raw is not None
            try:
                if shutil.disk_usage(self.folder).free < LEAST_FREE + candidate.raw.nbytes:
                    self.count("pictures_skipped", 1)
                    self._say_once(
                        "full", f"{self.folder}: the disk is nearly full; samples and pictures are not written"
                    )
                    continue
                save_samples(task.samples, candidate.raw, candidate.raw_start, candidate.observation)
            except (OSError, ValueError, MemoryError) as error:
                self._failed(str(error) or type(error).__name__)
                continue
            finally:
                self.done(candidate)
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
        """Have pictures drawn until there are no more, or until the time is over."""
        while (task := self._next()) is not None:
            try:
                if self.process is None:
                    self.process = PictureProcess()
                wrong = self.process.draw(task, lambda: time.monotonic() > self._until)
            except OSError as error:  # killed, or not started: the next picture gets a new process
                if self.process is not None:
                    self.process.close()
                self.process, wrong = None, str(error)
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
        if self.process is not None:
            self.process.close()

    def _next(self) -> PictureTask | None:
        """The oldest task; None when there will be no more, or the time is over."""
        with self._ready:
            while not self._tasks and not self._written and time.monotonic() <= self._until:
                self._ready.wait(0.5)
            return self._tasks.popleft() if self._tasks and time.monotonic() <= self._until else None


class EndingThread(threading.Thread):
    """A daemon thread that starts at once and sets an event when it ends.

    The event is needed because in Python 3.11 a thread counts as ended after a signal has interrupted its `join`.
    """

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.work, self.ended = work, threading.Event()
        self.start()

    def run(self) -> None:
        """See `threading.Thread.run`."""
        try:
            self.work()
        finally:
            self.ended.set()


def lower_priority() -> None:
    """Lower the priority of this thread, if the system has priorities of threads."""
    if hasattr(os, "setpriority") and hasattr(threading, "get_native_id"):
        own = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, own, min(19, os.getpriority(os.PRIO_PROCESS, own) + NICE))
