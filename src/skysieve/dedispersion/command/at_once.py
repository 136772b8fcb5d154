"""Files that are searched at the same time: in threads of this process, and in processes beside it."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import redirect_stderr, suppress
from functools import partial
from io import StringIO
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from skysieve.core.command import counted
from skysieve.core.device import begin, current, resolve
from skysieve.core.errors import one_line
from skysieve.core.memory import available_host_memory
from skysieve.core.tasks import usable_cores

if TYPE_CHECKING:
    from pathlib import Path

R = TypeVar("R")
logger = logging.getLogger(__name__)

FILE_ERRORS = OSError, ValueError, ArithmeticError, MemoryError
"""Errors in the search of a file that do not end the run: the next file is searched."""
BYTES_EACH = 4e9
"""Bytes of files for each further GPU.  Its first search begins 0.4 s later, and the GPUs share Python's lock: on two
H200s eight files of 0.24 GB take 2.39 s instead of 2.29, and eight of 0.96 GB with a pulse each second 3.6 instead of
4.4."""
AT_ONCE = 2
"""Files that are searched at the same time on each GPU.  One H200 takes 0.062 instead of 0.086 s for a file of 0.24 GB
with a pulse each second, 0.11 instead of 0.15 s for files of 0.96 GB, and 0.036 instead of 0.042 s for files of 0.24 GB
with one pulse; no less with three at a time."""
BYTES_AT_ONCE = 4e9
"""Largest file that is searched beside another one on the same GPU: a larger one keeps the GPU busy by itself."""
AHEAD = 2
"""Number of files for each search at a time that are being searched or wait until earlier files are written."""
CORES_EACH = 4
"""Processor cores for each process: a search keeps two to four busy."""
HELPERS_EACH = 3
"""Most processes beside this one for each GPU.  On an H200 with 16 cores, files of 0.24 GB with a pulse each second are
searched at 20 per second without, 37 with two, 43 with three and 45 with four; those of 0.96 GB at 6 and 11."""
WARM = 4
"""Results after which the time for a file is known: the first ones wait for the start."""
WORTH_SECONDS = 8.0
"""Seconds that the remaining files must take for processes to be started.  Their start takes 2 to 4 s, in which this
process searches half as many files; they do not speed up a search that keeps the GPU busy by itself."""
HOST_BYTES = 3 * 2**30
"""Bytes of host memory that must be available for each process."""
CONTEXT_BYTES = 2**30
"""Bytes of a GPU that a process needs besides the memory of its searches."""


def devices_for(device: str, files: Sequence[Path], limited: bool = False) -> list[str]:
    """The device of each search at a time: the requested device, or the GPUs that speed up these files.

    Each GPU stands `AT_ONCE` times in the list, except where the memory of a search is ``limited``.
    """
    if len(files) < 2:
        return [device]
    gpus = [found for found in resolve(device) if found.kind == "cuda"]
    if not gpus:
        return [device]
    sizes = [file.stat().st_size for file in files if file.exists()]
    used = [f"cuda:{gpu.index}" for gpu in gpus[: 1 + int(sum(sizes) / BYTES_EACH)]]
    together = 1 if limited or max(sizes, default=0) > BYTES_AT_ONCE else AT_ONCE
    return (together * used)[: len(files)]


def most_helpers(devices: Sequence[str], threads: int | None = None) -> int:
    """The largest number of `Helpers` for some devices.

    It is 0 on CPUs, if each GPU searches one file at a time, and on Windows, where processes inherit no pipes.  The
    processes use no more cores than ``threads``, if it is given.
    """
    gpus = set(devices) if devices[0].startswith("cuda") else set()
    if len(devices) == len(gpus) or sys.platform == "win32":
        return 0
    cores = usable_cores() if threads is None else min(threads, usable_cores())
    return max(0, min(cores // CORES_EACH - 1, HELPERS_EACH * len(gpus)))


def results_of(
    work: Callable[[int, str], R], numbers: list[int], devices: Sequence[str], helpers: Helpers[R] | None = None
) -> Generator[Callable[[], R]]:
    """Yield, for each number, a function that returns its result or raises its error.

    ``work(number, device)`` runs in the caller's thread if ``devices`` has one entry, otherwise in a thread for each
    entry, and in the processes of ``helpers``; each takes the next number when it is idle.  It does not return None.
    """
    if len(devices) == 1:
        for number in numbers:
            yield partial(work, number, devices[0])
        return
    free: SimpleQueue[str] = SimpleQueue()
    idle: SimpleQueue[Callable[[int], R | None]] = SimpleQueue()
    ended = threading.Event()

    def here(number: int) -> R:
        device = free.get()
        try:
            if ended.is_set():
                raise CancelledError
            return work(number, device)
        finally:
            free.put(device)

    for device in devices:
        free.put(device)
        idle.put(here)

    def run(number: int) -> R:
        search = idle.get()
        try:
            if ended.is_set():
                raise CancelledError
            found = search(number)
        finally:
            idle.put(search)
        return here(number) if found is None else found

    coming: deque[Future[R]] = deque()
    left = len(numbers)
    most = 0 if helpers is None else helpers.most
    pool = ThreadPoolExecutor(len(devices) + most, "skysieve-file")
    try:
        for number in numbers:
            if len(coming) >= AHEAD * (len(devices) + (0 if helpers is None else helpers.ready)):
                yield coming.popleft().result
                left -= 1
                if helpers is not None:
                    helpers.consider(left, idle.put)
            coming.append(pool.submit(run, number))
        while coming:
            yield coming.popleft().result
    finally:
        ended.set()
        pool.shutdown(wait=True, cancel_futures=True)


class Helpers(Generic[R]):
    """Processes that search files beside this one, because the threads of a process share Python's lock.

    They are started when the remaining files take long enough, see `consider`.  A file that a process cannot search is
    searched again in this one, which reports the error.

    Parameters
    ----------
    work : callable
        As in `results_of`; it is pickled.
    devices : sequence of str
        Devices that the processes use in turn.
    most : int
        Largest number of processes.
    detail : callable
        Gets a line for a verbose user.
    """

    def __init__(
        self, work: Callable[[int, str], R], devices: Sequence[str], most: int,
        detail: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._work, self._devices, self.most, self._detail = work, devices, most, detail
        self._done, self._since = 0, 0.0
        self._started: list[_Helper[R]] = []

    @property
    def ready(self) -> int:
        """Number of processes that search files."""
        return sum(helper.ready for helper in self._started)

    def consider(self, left: int, add: Callable[[Callable[[int], R | None]], None]) -> None:
        """Start the processes if the ``left`` files are worth it; it is called after each result.

        ``add`` gets a function for each process that is ready, which searches a file there.  It returns None if the
        process cannot search the file, or has ended.
        """
        if self._started or not self.most:
            return
        now = time.perf_counter()
        self._done += 1
        if self._done == WARM:
            self._since = now
        if self._done < 2 * WARM or (now - self._since) / (self._done - WARM) * left < WORTH_SECONDS:
            return
        each = [_fit(device) for device in self._devices]
        self.most = count = min(self.most, left, int(available_host_memory() // HOST_BYTES), len(each) * min(each))
        if count:
            self._detail(f"the remaining files are also searched by {counted(count, 'process', 'processes')} more")
        for number in range(count):
            try:
                helper = _Helper[R](self._devices[(number + 1) % len(self._devices)])
            except OSError as error:
                self._detail(f"no further process: {one_line(error)}")
                self.most = number
                return
            self._started.append(helper)
            threading.Thread(target=self._wait, args=(helper, add), name="skysieve-helper", daemon=True).start()

    def _wait(self, helper: _Helper[R], add: Callable[[Callable[[int], R | None]], None]) -> None:
        if helper.begins(self._work):
            add(helper.search)
        elif not helper.ending:
            self._detail(f"a process for {helper.device} ended before it began")

    def close(self) -> None:
        """End the processes, which have no work."""
        for helper in self._started:
            helper.end()
        for helper in self._started:
            helper.process.wait()


def _fit(device: str) -> int:
    """Number of further processes for which a GPU has memory, if each takes as much as a search of this process."""
    import cupy

    [gpu] = resolve(device)
    with current(gpu):
        each = cupy.get_default_memory_pool().total_bytes() / AT_ONCE
    return int(gpu.free_memory / (each + CONTEXT_BYTES))


class _Helper(Generic[R]):
    """A process that searches files on a device.

    It does not import the program that started this process, as `multiprocessing` would, and Ctrl-C at the terminal
    does not reach it.  If this process is killed, it ends after its file.
    """

    def __init__(self, device: str) -> None:
        self.device, self.ready, self.ending = device, False, False
        self._connection, other = Pipe()
        with other:
            code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve({other.fileno()})"
            self.process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                pass_fds=[other.fileno()], start_new_session=True,
            )  # fmt: skip

    def begins(self, work: Callable[[int, str], R]) -> bool:
        """Wait until the process is ready to do ``work``; return False if it has ended."""
        with suppress(EOFError, OSError):
            self._connection.send((work, self.device))
            self.ready = self._connection.recv()
        return self.ready

    def search(self, number: int) -> R | None:
        """Search a file there; return None if that fails, or if the process has ended."""
        with suppress(EOFError, OSError):
            self._connection.send(number)
            found: R | None = self._connection.recv()
            return found
        return None

    def end(self) -> None:
        """Let the process end."""
        self.ending = True
        self.process.terminate()


def serve(descriptor: int) -> None:
    """Search the files whose numbers come from a connection, until it is closed.

    The first message is the function that searches a file, and the device.  The answer to a number is the result, or
    None if the file cannot be searched here; what was printed about it is then dropped, because the first process
    prints it again.
    """
    # the first process has ended, or there is no memory for a result
    with Connection(descriptor) as connection, suppress(EOFError, OSError, MemoryError):
        work, device = connection.recv()
        started = begin(device, "skysieve.dedispersion.cuda.engine")
        importlib.import_module("skysieve.dedispersion.single_pulse.search")
        if started is not None:
            started.join()
        usable = _usable(device)
        connection.send(usable)
        while usable:
            number = connection.recv()
            found: Any = None
            try:
                with redirect_stderr(StringIO()) as said:
                    found = work(number, device)
                sys.stderr.write(said.getvalue())
            except (*FILE_ERRORS, RuntimeError) as error:
                logger.info("file %d is searched again by the first process: %s", number, one_line(error))
            connection.send(found)


def _usable(device: str) -> bool:
    """Whether this process can use a device; a GPU may refuse a context to more than one process."""
    try:
        return resolve(device)[0].free_memory > 0
    except (ValueError, RuntimeError) as error:
        logger.info("no files are searched by a further process on %s: %s", device, one_line(error))
        return False
