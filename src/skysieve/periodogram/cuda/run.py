"""One run of the periodogram on GPUs: chunks pass through lanes and workers, which may lack memory or fail.

A chunk's rows go to the GPU through pinned buffers while the chunk before is computed and the answers of the one before
that are copied to the host.  A chunk that does not fit is halved; chunks of a GPU that fails go to the others.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skysieve.core.arrays import is_device_array
from skysieve.core.errors import MemoryBudgetError, out_of_memory
from skysieve.core.gpu.staging import is_pinned, make_current
from skysieve.core.memory import parse_budget
from skysieve.core.progress import Reporter
from skysieve.periodogram.contract import Output, Source

from .chunks import Again, Chunk, ChunkJob, JobCache, RunSettings, deliver, gather, make_job
from .parts import CANDIDATE_BYTES
from .worker import Worker

logger = logging.getLogger("skysieve")

AGAIN_BYTES = 1 << 29
"""Most device memory for the objects that are searched again at a time, with all their candidates."""
FLAT = 300
"""Cost of a light curve without points, in units of one of its points, roughly (`cuda.cost`)."""


@dataclass
class _Task:
    """A chunk that a lane is working on."""

    lane: Any
    chunk: Chunk
    made: ChunkJob | None = None

    @property
    def job(self) -> ChunkJob:
        """The input that was made for the chunk."""
        assert self.made is not None
        return self.made


def _cost(chunk: Chunk, offsets: NDArray[np.int64]) -> int:
    """Estimated cost of a chunk on a shared grid, in units of one data point."""
    return int(offsets[chunk.stop] - offsets[chunk.start]) + FLAT * (chunk.stop - chunk.start)


class Run:
    """One `execute`: a queue of chunks that workers take work from, and the objects to search again."""

    def __init__(
        self,
        settings: RunSettings,
        source: Source,
        output: Output,
        reporter: Reporter,
        queue: deque[Chunk],
        cache: JobCache,
        copies: Sequence[Future[None]] = (),
    ) -> None:
        """``copies``: futures that must be done before rows are uploaded."""
        self.settings, self.source, self.output, self.reporter = settings, source, output, reporter
        self.queue, self.cache, self.copies = queue, cache, copies
        self.again = Again([], [])
        self.lost: list[Worker] = []  # workers that take no further part
        self.broken: list[Worker] = []  # those of them whose GPU has failed (the others were short of memory)
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._open = 0
        self._most: dict[int, int] = {}  # most objects of a chunk, for workers whose memory was short
        self._changed = threading.Condition(self._lock)

    def _next(self, wait: bool) -> Chunk | None:
        """The next chunk; None when none is left (and, with ``wait``, none can come back from another worker)."""
        with self._changed:
            while True:
                if self.error is not None:
                    return None
                if self.queue:
                    self._open += 1
                    return self.queue.popleft()
                if not wait or not self._open:
                    return None
                self._changed.wait()

    def _closed(self, back: Sequence[Chunk] = (), done: int = 1) -> None:
        with self._changed:
            self._open -= done
            self.queue.extendleft(back)
            self._changed.notify_all()

    def work(self, worker: Worker, alone: bool) -> None:
        """Take chunks until none is left.

        While other threads copy the rows of a chunk, the next one is made; a lane's old chunk is finished when no
        lane is free.  ``alone``: no other worker could take what this one cannot do.
        """
        busy: deque[_Task] = deque()  # launched, oldest first
        ahead: deque[_Task] = deque()  # taken, not yet launched
        free = deque(worker.lanes)
        chunk: Chunk | None = None
        try:
            while True:
                chunk = self._next(wait=not alone and not busy and not ahead)
                if chunk is None:
                    if ahead:
                        self._launch(worker, busy, ahead, free)
                    elif busy:
                        self._finish_oldest(worker, busy, free)
                    else:
                        return
                    continue
                chunk = self._no_more_than_fits(worker, chunk)
                while not free:
                    if busy:
                        self._finish_oldest(worker, busy, free)
                    else:
                        self._launch(worker, busy, ahead, free)
                ahead.append(_Task(free.popleft(), chunk))
                chunk = None
                self._make(worker, busy, ahead, free)
                while ahead and (len(ahead) > 1 or not ahead[0].job.copies):
                    self._launch(worker, busy, ahead, free)
        except (RuntimeError, MemoryBudgetError) as error:
            back = [task.chunk for task in (*busy, *ahead)]
            if chunk is not None:
                back.append(chunk)
            if alone or error is self.error:
                raise
            self._settle(worker, busy, ahead)
            self._lose(worker, error)
            self._closed(back, len(back))
        finally:
            if busy or ahead:
                self._settle(worker, busy, ahead)

    def _no_more_than_fits(self, worker: Worker, chunk: Chunk) -> Chunk:
        """The first objects of a chunk, if more did not fit before; the others are put back into the queue."""
        most = self._most.get(id(worker))
        if most is None:
            return chunk
        pieces = [replace(chunk, start=a, stop=min(a + most, chunk.stop)) for a in range(chunk.start, chunk.stop, most)]
        if len(pieces) > 1:
            self._closed(pieces[:0:-1], 0)
        return pieces[0]

    def _settle(self, worker: Worker, busy: deque[_Task], ahead: deque[_Task]) -> None:
        """Wait for unfinished copies and launches after an error: their arrays may be freed soon."""
        for task in ahead:
            if task.made is not None:
                wait(task.made.copies or ())
        with suppress(RuntimeError):  # a lost device does nothing any more
            worker.settle()
        busy.clear()
        ahead.clear()

    def _lose(self, worker: Worker, error: Exception) -> None:
        """Give the chunks of a worker that failed to the others."""
        logger.warning("%s failed (%s); its objects go to the other devices", worker.runtime.device, error)
        with self._changed:
            self.lost.append(worker)
            self.error_of_last = error
            if isinstance(error, RuntimeError):
                self.broken.append(worker)

    def _go_on_with(self, worker: Worker) -> None:
        """Make the worker's device the current one of the caller's thread, if the current one is lost."""
        if self.broken:
            make_current(worker.runtime, {lost.runtime.device.index for lost in self.broken})

    def _make(self, worker: Worker, busy: deque[_Task], ahead: deque[_Task], free: deque[Any]) -> None:
        """Make the job of the chunk taken last, and let other threads copy its rows."""
        task = ahead[-1]
        try:
            empty = partial(worker.row_memory, task.lane)
            task.made = make_job(self.settings, self.source, task.chunk, self.output, cache=self.cache, empty=empty)
            self._place_power(worker, task.lane, task.made)
            worker.prefetch(task.lane, task.made)
        except (MemoryError, RuntimeError) as error:
            self._make_room(worker, task, error, busy, ahead, free)

    def _launch(self, worker: Worker, busy: deque[_Task], ahead: deque[_Task], free: deque[Any]) -> None:
        """Launch the first chunk made."""
        try:
            for copy in self.copies:
                copy.result()
            worker.begin(ahead[0].lane, ahead[0].job)
            busy.append(ahead.popleft())
        except (MemoryError, RuntimeError) as error:
            self._make_room(worker, ahead[0], error, busy, ahead, free)

    def _make_room(
        self, worker: Worker, task: _Task, error: Exception, busy: deque[_Task], ahead: deque[_Task], free: deque[Any]
    ) -> None:
        """Where memory was short: finish the other chunks, give back all buffers, and put a chunk's halves back.

        A single object is searched at once, while it has the device for itself.
        """
        if not out_of_memory(error):
            raise error
        while busy:
            self._finish_oldest(worker, busy, free)
        halves = self._halves(worker, task.chunk)
        back = [other.chunk for other in ahead if other is not task]  # an error before this returns all of `ahead`
        if halves:
            back += halves[::-1]
            self._most[id(worker)] = halves[1].stop - halves[1].start
        else:
            self._by_itself(worker, task.lane, task.chunk, known=True)
            ahead.remove(task)
        free.clear()
        free.extend(worker.lanes)
        done = len(ahead)
        ahead.clear()
        self._closed(back, done)

    def _halves(self, worker: Worker, chunk: Chunk) -> list[Chunk]:
        """Give back all buffers where memory was short; return the halves of a chunk, or none for a single object."""
        start, stop = chunk.start, chunk.stop
        single = stop - start == 1
        what = f"object {start}: trying alone" if single else f"objects {start} to {stop - 1}: trying halves"
        logger.warning("%s is out of memory for %s", worker.runtime.device, what)
        worker.release()
        middle = (start + stop) // 2
        return [] if single else [replace(chunk, stop=middle), replace(chunk, start=middle)]

    def _by_itself(self, worker: Worker, lane: Any, chunk: Chunk, known: bool) -> None:
        """Search a chunk while the device does nothing else; ``known`` if it comes from the queue.

        Raises
        ------
        MemoryBudgetError
            If even that does not fit.
        """
        i = chunk.start
        try:
            job = make_job(self.settings, self.source, chunk, self.output, all_candidates=not known)
            self._place_power(worker, lane, job)
            worker.begin(lane, job)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            raise MemoryBudgetError(
                f"object {i} does not fit on {worker.runtime.device} even alone ({error}): it",
                self._bytes_of(i),
                worker.free_memory,
            ) from error
        self._finish(worker, lane, job, chunk if known else None)

    def _bytes_of(self, i: int) -> float:
        """Device memory of one object."""
        grids, (start, stop) = self.settings.grids, self.source.offsets[i : i + 2]
        _, df, nf = grids.of(i) if grids.values is None else (0.0, 0.0, len(grids.values))
        cycles = float(np.nan_to_num(df * self.output.span[i]))
        return float(stop - start) * self.settings.row_bytes() + self.settings.object_bytes(int(nf), cycles)

    def _finish_oldest(self, worker: Worker, busy: deque[_Task], free: deque[Any]) -> None:
        task = busy[0]
        self._finish(worker, task.lane, task.job, task.chunk)
        free.append(busy.popleft().lane)

    def in_turn(self, workers: Sequence[Worker]) -> None:
        """One worker does everything; another one only where it fails."""
        for worker in workers:
            self._go_on_with(worker)
            self.work(worker, alone=worker is workers[-1])
            if worker not in self.lost:
                return

    def share(self, workers: Sequence[Worker], most: int) -> None:
        """Several workers, ``most`` at a time, take chunks from the queue, the costliest ones first."""
        grids = self.settings.grids
        offsets = self.source.offsets
        if grids.shared:
            self.queue = deque(sorted(self.queue, key=lambda c: _cost(c, offsets), reverse=True))
        else:
            each = (FLAT + np.diff(offsets)) * grids.nf.astype(np.float64)
            costs = np.append(0.0, np.cumsum(each))
            self.queue = deque(sorted(self.queue, key=lambda c: float(costs[c.start] - costs[c.stop])))

        places = threading.Semaphore(most)  # a worker beyond them takes the place of one that fails

        def run(worker: Worker) -> None:
            finished = False
            try:
                with places:
                    with suppress(RuntimeError):  # `work` notices a lost device
                        make_current(worker.runtime)
                    self.work(worker, alone=False)
                finished = True
            finally:
                if not finished:  # the others stop; the error reaches the caller through the future
                    self._stop()

        with ThreadPoolExecutor(len(workers), "skysieve-gpu") as pool:
            ends = [pool.submit(run, worker) for worker in workers]
            finished = False
            try:
                wait(ends)
                finished = True
            finally:
                if not finished:  # Ctrl-C: the workers finish what they have launched
                    self._stop()
        for end in ends:
            end.result()
        if len(self.lost) == len(workers):
            raise self.error_of_last

    def _stop(self) -> None:
        """Let no worker take a further chunk, because of the error that is being raised."""
        with self._changed:
            self.error = sys.exc_info()[1]
            self._changed.notify_all()

    def repeat(self, workers: Sequence[Worker], memory: str | float | None) -> None:
        """Search objects again that had more candidates than their chunk had room for.

        On a coarse grid these may be all.  ``memory``: budget of device memory.
        """
        left = [worker for worker in workers if worker not in self.lost]
        chunks = self._with_room(memory, left[0]) if self.again.overflow else []
        while chunks:
            try:
                self._go_on_with(left[0])
                self._once_more(left[0], chunks)
            except (RuntimeError, MemoryBudgetError) as error:
                if len(left) == 1:
                    raise
                self._lose(left.pop(0), error)
        if self.again.overflow or self.again.unlike:
            raise RuntimeError(f"objects {self.again.overflow + self.again.unlike} cannot be completed")

    def _with_room(self, memory: str | float | None, worker: Worker) -> list[Chunk]:
        """Chunks of the objects to search again, each small enough to fit into memory with all its candidates."""
        room = min(AGAIN_BYTES, parse_budget(memory, worker.free_memory))
        lengths, chunks = np.diff(self.source.offsets), []
        nf, each = int(self.settings.grids.nf.max()), CANDIDATE_BYTES[self.settings.spec.dtype.itemsize]
        for found in gather(self.again.overflow, nf):
            longest = found.start + int(lengths[found.start : found.stop].argmax())
            most = max(1, int(room // (self._bytes_of(longest) + each * (nf // 2 + 1))))
            starts = range(found.start, found.stop, most)
            chunks += [replace(found, start=a, stop=min(a + most, found.stop)) for a in starts]
        self.again.overflow = []
        return chunks

    def _once_more(self, worker: Worker, chunks: list[Chunk]) -> None:
        """Search the last chunk with room for every candidate, or put its halves back where memory is short."""
        chunk, done = chunks[-1], False
        try:
            try:
                self._by_itself(worker, worker.spare, chunk, known=False)
                chunks.pop()
            except MemoryBudgetError:
                halves = self._halves(worker, chunk)
                if halves:
                    chunks[-1:] = halves
                else:
                    self._by_itself(worker, worker.spare, chunk, known=False)
                    chunks.pop()
            done = True
        finally:
            if not done:
                with suppress(RuntimeError):
                    worker.settle()

    def _place_power(self, worker: Worker, lane: Any, job: ChunkJob) -> None:
        """Choose where the chunk's powers are copied to: a page-locked array of the user, or the lane's buffer."""
        power = self.output.power
        if power is None or is_device_array(power) or self.settings.power_start is None:
            return
        direct = self._target(job)
        job.host_power = direct if is_pinned(worker.runtime, power) else lane.pinned("power", job.n_powers, power.dtype)

    def _target(self, job: ChunkJob) -> Any:
        assert self.settings.power_start is not None
        a = int(self.settings.power_start[job.objects.start])
        return self.output.power[a : a + job.n_powers]

    def _finish(self, worker: Worker, lane: Any, job: ChunkJob, chunk: Chunk | None) -> None:
        _ = job.codes, self.output.status  # found and made while the GPU works
        lane.synchronize()
        if job.host_power is not None:
            target = self._target(job)
            if target.ctypes.data != job.host_power.ctypes.data:
                worker.copier.copy([(target, job.host_power)])
        back, found = [], Again([], [])
        deliver(job, self.settings, self.output, found)
        if found.unlike and chunk is not None and not chunk.known:
            back, found.unlike = gather(found.unlike, int(self.settings.grids.nf.max())), []
            self.cache.drop(self.settings, chunk, job.n_rows)
        with self._lock:
            self.again.unlike += found.unlike
            self.again.overflow += found.overflow
        if chunk is not None:
            self._closed(back)
            self._report(0 if chunk.known else chunk.stop - chunk.start)

    def _report(self, done: int) -> None:
        """Call the user's callback.  What it raises ends the search and is not taken for a device's fault."""
        reported = False
        try:
            self.reporter.add(done)
            reported = True
        finally:
            if not reported:
                self._stop()
