"""Where candidates go: a table that outlives the process, pictures, raw samples, triggers.

A candidate is announced (printed, triggered) after its line has reached the disk.  While the disk refuses, lines wait.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import queue
import shlex
import shutil
import signal
import subprocess
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.dedispersion.io import written
from skysieve.dedispersion.stream.beams import Cut, Row
from skysieve.dedispersion.stream.voevent import voevent

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

COLUMNS = (
    "beam", "segment", "snr", "dm", "time", "width", "mjd_top", "mjd_infinite", "sample", "width_samples", "downsamp",
    "members", "dm_low", "dm_high", "time_first", "time_last", "live", "beams", "flagged", "latency",
)  # fmt: skip
FORMATS = {"snr": ".4f", "dm": ".9g", "mjd_top": ".12f", "mjd_infinite": ".12f", "live": ".4f", "latency": ".3f"}
MOST_LINES = 100_000
"""Candidates that wait for the disk; more are dropped, oldest first, and counted."""
MOST_RAW = 2**28
"""Bytes of samples that wait to be written and drawn; candidates beyond keep their lines alone."""
MOST_TRIGGERS = 1000
COMMAND_SECONDS, POST_SECONDS = 30.0, 10.0


class Table:
    """A CSV file that lines are appended to, each on the disk before `append` returns.

    Raises
    ------
    ValueError
        When the file is there and is another table.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        head = ",".join(COLUMNS) + "\n"
        if path.exists() and path.stat().st_size:
            with open(path, "rb+") as file:
                body = file.read()
                if not body.startswith(head.encode()):
                    raise ValueError(f"{path} is there and is no table of candidates of this version")
                file.truncate(body.rfind(b"\n") + 1)  # a line that was cut off
        else:
            with open(path, "w", encoding="ascii") as file:
                file.write(head)

    def append(self, lines: list[str]) -> None:
        """Lines, all of them or an OSError."""
        data = "".join(f"{line}\n" for line in lines).encode()
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            size = os.fstat(handle).st_size
            done = 0
            try:
                while done < len(data):
                    done += os.write(handle, data[done:])
                os.fsync(handle)
            except OSError:
                if done:
                    os.ftruncate(handle, size)
                raise
        finally:
            os.close(handle)


def line_of(columns: dict[str, Any]) -> str:
    """A candidate as a line of the table."""
    cells = []
    for name in COLUMNS:
        value = columns[name]
        cells.append(format(value, FORMATS.get(name, ".9f")) if isinstance(value, float) else str(value))
    return ",".join(cells)


class Sink:
    """Keeps and announces candidates, in a thread of its own.

    Parameters
    ----------
    folder : path
        Made where it is missing; gets ``candidates.csv`` and ``pulses/``.
    pictures, raw : bool
        Draw each candidate; keep the samples around each as a filterbank file.
    least : float
        S/N from which candidates get pictures, raw samples and triggers.
    command : str, optional
        Run for each candidate, which it gets as JSON on its standard input.
    url : str, optional
        Gets each candidate as a VOEvent 2.0 packet by HTTP POST.
    ivorn, role : str
        Of VOEvents.
    say : callable
        Takes a line for each candidate.

    Raises
    ------
    OSError, ValueError
        When the folder cannot be written, or what is there is not ours.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, pictures: bool = True, raw: bool = True, least: float = 0.0,
        command: str | None = None, url: str | None = None, ivorn: str = "skysieve/stream", role: str = "observation",
        say: Callable[[str], None] = lambda line: None,
    ) -> None:  # fmt: skip
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError(f"url={url!r}: expected http:// or https://")
        self.command = shlex.split(command) if command is not None else []
        if command is not None and not self.command:
            raise ValueError(f"command={command!r}: expected a program")
        if self.command and shutil.which(self.command[0]) is None:
            raise ValueError(f"command={command!r}: no program of the name {self.command[0]}")
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.pulses = self.folder / "pulses"
        self._claim: int | None = claimed(self.folder)
        try:
            self.table = Table(self.folder / "candidates.csv")
        except (OSError, ValueError):
            self._release_folder()
            raise
        self.pictures, self.raw, self.least, self.url, self.ivorn, self.role = pictures, raw, least, url, ivorn, role
        self.say = say
        self.counts = dict.fromkeys(
            ("candidates", "flagged", "written", "write_errors", "dropped", "pictures", "pictures_failed",
             "pictures_skipped", "triggers", "triggers_failed", "triggers_dropped"), 0
        )  # fmt: skip
        self.latest: deque[dict[str, Any]] = deque(maxlen=500)
        self._waiting: deque[Row] = deque()
        self._early: dict[int, Cut] = {}
        self._expected: dict[int, Row | None] = {}
        self._inbox: queue.Queue[Row | Cut | None] = queue.Queue()
        self._triggers: queue.Queue[Row | None] = queue.Queue(MOST_TRIGGERS)
        self._pool: ProcessPoolExecutor | None = None
        self._drawing = self._raw_bytes = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._refusing = False
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="sink", daemon=True)
        self._trigger = threading.Thread(target=self._run_triggers, name="triggers", daemon=True)
        self._thread.start()
        self._trigger.start()

    # ------------------------------------------------------------------ in
    def add(self, row: Row) -> None:
        """A candidate; its samples are let go of when many wait."""
        self._inbox.put(row if self._fits(row.raw) else replace(row, raw=None))

    def add_cut(self, cut: Cut) -> None:
        """The samples around a candidate that was, or will be, added."""
        self._inbox.put(cut if self._fits(cut.raw) else replace(cut, raw=None))

    def _fits(self, raw: Any) -> bool:
        """Whether there is room for samples, which is taken then."""
        if raw is None:
            return True
        with self._lock:
            fits: bool = self._raw_bytes + raw.nbytes <= MOST_RAW
            self._raw_bytes += raw.nbytes if fits else 0
            self.counts["pictures_skipped"] += 0 if fits else 1
        return fits

    def _release(self, row: Row | Cut) -> None:
        """The samples of a candidate are done with."""
        if row.raw is not None:
            with self._lock:
                self._raw_bytes -= row.raw.nbytes

    def close(self, seconds: float = 120.0) -> None:
        """Write, draw and send what is left, for at most so many seconds."""
        until = time.monotonic() + seconds
        if self._thread.is_alive():
            self._inbox.put(None)
            self._thread.join(max(0.0, until - time.monotonic()))
        if self._trigger.is_alive():
            self._over.set()
            with suppress(queue.Full):  # a full queue has something to wake up for
                self._triggers.put_nowait(None)
            self._trigger.join(max(0.0, until - time.monotonic()))
            self._count("triggers_dropped", sum(row is not None for row in list(self._triggers.queue)))
        if self._pool is not None:
            while self._drawing and time.monotonic() < until:
                time.sleep(0.02)
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._release_folder()

    def _release_folder(self) -> None:
        """Another run may write there."""
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None

    def _run(self) -> None:
        try:
            self._keep_all()
        except Exception as error:  # noqa: BLE001 - handed to the pipeline, which ends: nothing would be kept any more
            self.error = error

    def _keep_all(self) -> None:
        over = False
        tries = 0
        while True:
            try:
                row = self._inbox.get(timeout=1.0 if not self._waiting else 0.2)
                over |= row is None
                if isinstance(row, Cut):
                    self._match(row)
                elif row is not None:
                    self._waiting.append(row)
                    self._count("candidates")
                    self._count("flagged", int(row.columns["flagged"]))
                    if len(self._waiting) > MOST_LINES:
                        self._picture(self._waiting.popleft(), False)
                        self._count("dropped")
            except queue.Empty:
                pass
            if self._waiting and self._inbox.empty():
                tries = 0 if self._flush() else tries + 1
            if over and (not self._waiting or tries > 20):
                self._count("dropped", len(self._waiting))
                return

    def _flush(self) -> bool:
        """Lines to the disk, then announce them; False when the disk refuses."""
        rows = list(self._waiting)
        try:
            self.table.append([line_of(row.columns) for row in rows])
        except OSError as error:
            if not self._refusing:
                self.say(f"{self.table.path}: {error.strerror}; candidates wait")
            self._refusing = True
            self._count("write_errors")
            return False
        self._waiting.clear()
        self._count("written", len(rows))
        if self._refusing:
            self.say(f"{self.table.path}: written again")
        self._refusing = False
        for row in rows:
            self._announce(row)
        return True

    def _announce(self, row: Row) -> None:
        c = row.columns
        self.latest.append({**c, "name": name_of(row)})
        mark = f"  in {c['beams']} beams: interference" if c["flagged"] else ""
        late = f"  {c['latency']:.2f} s after its last sample" if math.isfinite(c["latency"]) else ""
        self.say(
            f"S/N {c['snr']:.1f}  DM {c['dm']:.2f}  width {c['width'] * 1e3:.3g} ms  MJD {c['mjd_infinite']:.9f}  "
            f"beam {c['beam']}{late}{mark}"
        )
        wanted = c["snr"] >= self.least and not c["flagged"]
        self._picture(row, wanted and (self.raw or self.pictures))
        if not wanted:
            return
        if self.command or self.url:
            try:
                self._triggers.put_nowait(row)
            except queue.Full:
                self._count("triggers_dropped")

    def _count(self, name: str, by: int = 1) -> None:
        with self._lock:
            self.counts[name] += by

    # ------------------------------------------------------------------ pictures
    def _picture(self, row: Row, wanted: bool) -> None:
        """A candidate gets a picture, now or when its samples come, or none."""
        cut = self._early.pop(row.number, None)
        if row.number and cut is None:
            self._expected[row.number] = row if wanted else None
        elif cut is not None:
            row = replace(row, raw=cut.raw, raw_start=cut.start)
        if wanted and row.raw is not None and len(row.raw):
            self._keep(row)
        else:
            self._release(row)

    def _match(self, cut: Cut) -> None:
        """Samples go to their candidate, or wait for it."""
        if cut.number not in self._expected:
            self._early[cut.number] = cut
            return
        row = self._expected.pop(cut.number)
        if row is not None and cut.raw is not None and len(cut.raw):
            self._keep(replace(row, raw=cut.raw, raw_start=cut.start))
        else:
            self._release(cut)

    def _keep(self, row: Row) -> None:
        """Raw samples and a picture, made by another process."""
        from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
        from multiprocessing import get_context

        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=_attend, initargs=(os.getpid(),))
        try:
            task = self._pool.submit(
                draw, row.raw, row.raw_start, row.observation, row.columns, row.top_time,
                str(self.pulses / name_of(row)), self.raw, self.pictures,
            )  # fmt: skip
        except (BrokenExecutor, OSError):  # killed, or the system gives none: the next candidate gets a new one
            self._pool = None
            self._count("pictures_failed")
            self._release(row)
            return
        with self._lock:
            self._drawing += 1
        task.add_done_callback(partial(self._drawn, row))

    def _drawn(self, row: Row, task: Any) -> None:
        self._release(row)
        with self._lock:
            self._drawing -= 1
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            self._count("pictures_failed")
            if error is not None and self.counts["pictures_failed"] == 1:
                self.say(f"a picture failed: {error}")
        else:
            self._count("pictures")

    # ------------------------------------------------------------------ triggers
    def _run_triggers(self) -> None:
        while not (self._over.is_set() and self._triggers.empty()):
            row = self._triggers.get()
            if row is None:
                return
            if self.command:
                self._one_trigger(self._run_command, row)
            if self.url:
                self._one_trigger(self._post, row)

    def _one_trigger(self, send: Callable[[Row], None], row: Row) -> None:
        try:
            send(row)
        except (OSError, ValueError, ArithmeticError, subprocess.SubprocessError, http.client.HTTPException) as error:
            self._count("triggers_failed")
            self.say(f"a trigger failed: {error}")
        else:
            self._count("triggers")

    def _run_command(self, row: Row) -> None:
        facts = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.columns.items()}
        facts["name"] = name_of(row)
        subprocess.run(  # in a session of its own: the terminal's Ctrl-C is not for it
            self.command, input=json.dumps(facts, allow_nan=False), text=True, check=True, timeout=COMMAND_SECONDS,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def _post(self, row: Row) -> None:
        o = row.observation
        body = voevent(
            row.columns, ivorn=self.ivorn, role=self.role, ra=o.ra, dec=o.dec, source=o.source, telescope=o.telescope
        )
        assert self.url is not None
        request = urllib.request.Request(self.url, body.encode(), {"Content-Type": "text/xml"}, method="POST")
        with urllib.request.urlopen(request, timeout=POST_SECONDS):
            pass


def claimed(folder: Path) -> int | None:
    """A lock on a folder, so that two runs do not cut each other's lines; None where the system has none.

    Raises
    ------
    ValueError
        When another run has it.
    """
    try:
        import fcntl
    except ModuleNotFoundError:
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ValueError(f"{folder}: another run writes there") from None
    except OSError:  # file systems of networks may have no locks
        os.close(handle)
        return None
    return handle


def name_of(row: Row) -> str:
    """A file's name for a candidate."""
    c = row.columns
    return f"{c['mjd_infinite']:.9f}_dm{c['dm']:.3f}_beam{c['beam']}"


def _attend(parent: int) -> None:
    """Begin a process that draws: everything else goes first, Ctrl-C is the parent's, and it ends when that has."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "nice"):
        os.nice(15)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def draw(
    raw: Any, start: int, observation: Any, columns: dict[str, Any], top_time: float, stem: str, keep: bool,
    picture: bool,
) -> None:  # fmt: skip
    """Write ``stem.fil`` and ``stem.png``."""
    from skysieve.dedispersion.cutouts import cutout
    from skysieve.dedispersion.filterbank import Filterbank
    from skysieve.dedispersion.io import write_fil

    o = observation
    Path(stem).parent.mkdir(parents=True, exist_ok=True)
    begin = start * o.tsamp
    fb = Filterbank.from_array(
        np.ascontiguousarray(raw.T), freqs=o.freqs, tsamp=o.tsamp, tstart=o.tstart + begin / 86400, source=o.source,
        telescope=o.telescope,
    )  # fmt: skip
    if keep:
        write_fil(f"{stem}.fil", fb)
    if picture:
        inside = min(max(top_time - begin, 0.0), fb.duration)
        one = cutout(fb, dm=columns["dm"], time=inside, width=columns["width"], snr=columns["snr"])
        with written(f"{stem}.png") as part:
            one.plot().savefig(part, dpi=100)
