"""Where candidates go: a table that outlives the process, pictures, raw samples, triggers.

A candidate is announced (printed, triggered) after its line has reached the disk.  While the disk refuses, lines wait.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import queue
import re
import shlex
import shutil
import subprocess
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from skysieve.core.files import remove_leftovers
from skysieve.dedispersion.stream.records import Cut, Row

from .drawing import name_of
from .earlier import GAP_COLUMNS, Gap
from .pictures import EndingThread, Pictures
from .tables import Table, claimed, line_of
from .voevent import voevent

MOST_LINES = 100_000
"""Candidates that wait for the disk; more are dropped, oldest first, and counted."""
MOST_RAW = 2**28
"""Bytes of samples that wait to be written and drawn; candidates beyond keep their lines alone."""
MOST_TRIGGERS = 1000
COMMAND_SECONDS, POST_SECONDS = 30.0, 10.0
GRACE = 30.0
"""Seconds that pictures and triggers have at the end."""


def _described(c: dict[str, Any]) -> str:
    late = f"  {c['latency']:.2f} s after its last sample" if math.isfinite(c["latency"]) else ""
    return (
        f"S/N {c['snr']:.1f}  DM {c['dm']:.2f}  width {c['width'] * 1e3:.3g} ms  "
        f"MJD {c['mjd_infinite']:.9f} at infinite frequency  beam {c['beam']}{late}"
    )


class Sink:
    """Keeps and announces candidates, in a thread of its own.

    Parameters
    ----------
    folder : path
        Made where it is missing; gets ``candidates.csv``, ``pulses/`` and, where an earlier run has written there,
        ``gaps.csv``.
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
        if url is not None and not re.match(r"https?://[^/\s]", url):
            raise ValueError(f"url={url!r}: expected http:// or https:// and a host")
        if not re.fullmatch(r"[\w.-]+(/[\w./-]+)?", ivorn):
            raise ValueError(f"ivorn={ivorn!r}: expected an authority and a stream, as org.example/frb")
        if math.isnan(least):
            raise ValueError(f"least={least!r}: expected an S/N")
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
            for place in (self.folder, self.pulses):
                remove_leftovers(place)
        except (OSError, ValueError):
            self._release_folder()
            raise
        self.pictures, self.raw, self.least, self.url, self.ivorn, self.role = pictures, raw, least, url, ivorn, role
        self.say = say
        self.counts = dict.fromkeys(
            ("candidates", "flagged", "written", "write_errors", "dropped",
             "pictures", "pictures_failed", "pictures_skipped", "pictures_later", "triggers", "triggers_failed",
             "triggers_dropped", "triggers_unfinished"), 0
        )  # fmt: skip
        self.latest: deque[dict[str, Any]] = deque(maxlen=500)
        self._waiting: deque[Row] = deque()
        self._cuts: dict[int, Cut] = {}
        self._expected: dict[int, Row | None] = {}
        self._inbox: queue.Queue[Row | Cut | Gap | None] = queue.Queue()
        self._triggers: queue.Queue[Row | None] = queue.Queue(MOST_TRIGGERS)
        self._raw_bytes = 0
        self._lock = threading.Lock()
        self.drawing = Pictures(
            self.folder, raw=raw, pictures=pictures, count=self._count, done=self._release, say=say
        )  # fmt: skip
        self._over = threading.Event()
        self._refusing = False
        self.error: Exception | None = None
        self._thread = EndingThread(self._run, "sink")
        self._trigger = EndingThread(self._run_triggers, "triggers")

    # ------------------------------------------------------------------ in
    def add(self, row: Row) -> None:
        """A candidate; its samples are let go of when many wait."""
        self._inbox.put(row if self._fits(row.raw) else replace(row, raw=None))

    def add_cut(self, cut: Cut) -> None:
        """The samples around a candidate that was, or will be, added."""
        self._inbox.put(cut if self._fits(cut.raw) else replace(cut, raw=None))

    def add_gap(self, gap: Gap) -> None:
        """What was not searched between the run before and this one."""
        self._inbox.put(gap)

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

    def close(self, seconds: float = 120.0, grace: float = GRACE) -> None:
        """Write what is left, for at most ``seconds``; then draw and send what is left, for at most ``grace``."""
        if not self._thread.ended.is_set():
            self._inbox.put(None)
            self._thread.ended.wait(seconds)
        until = time.monotonic() + grace
        self._over.set()
        with suppress(queue.Full):  # a full queue has something to wake up for
            self._triggers.put_nowait(None)
        self.drawing.close(grace)
        if not self._trigger.ended.is_set():
            self._trigger.ended.wait(max(0.0, until - time.monotonic()))
            self._drop_triggers()
        self._release_folder()

    def _drop_triggers(self) -> None:
        """Those that wait are not sent any more; one that has been begun is left to itself."""
        with suppress(queue.Empty):
            while True:
                self._count("triggers_dropped", int(self._triggers.get_nowait() is not None))
                self._triggers.task_done()
        if self._triggers.unfinished_tasks and not self.counts["triggers_unfinished"]:
            self._count("triggers_unfinished")
            self.say("a trigger has not ended in time; it is left to itself")
        self._triggers.put_nowait(None)

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
                elif isinstance(row, Gap):
                    self._keep_gap(row)
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

    def _keep_gap(self, gap: Gap) -> None:
        """Into ``gaps.csv``."""
        self.say(gap.words)
        try:
            Table(self.folder / "gaps.csv", GAP_COLUMNS).append([line_of(gap.columns, GAP_COLUMNS)])
        except (OSError, ValueError) as error:
            self._count("write_errors")
            self.say(f"{self.folder / 'gaps.csv'}: {getattr(error, 'strerror', None) or error}")

    @property
    def done(self) -> int:
        """Candidates that are on the disk, or were dropped because it refused for too long."""
        with self._lock:
            return self.counts["written"] + self.counts["dropped"]

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
        self.latest.append({**c, "name": name_of(row.columns)})
        mark = f"  in {c['beams']} beams: interference" if c["flagged"] else ""
        self.say(f"{_described(c)}{mark}")
        wanted = c["snr"] >= self.least and not c["flagged"]
        self._picture(row, wanted and (self.raw or self.pictures))
        if wanted and (self.command or self.url):
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
        cut = self._cuts.pop(row.number, None)
        if row.number and cut is None:
            self._expected[row.number] = row if wanted else None
        elif cut is not None:
            row = replace(row, raw=cut.raw, raw_start=cut.start)
        if wanted and row.raw is not None and len(row.raw):
            self.drawing.add(row)
        else:
            self._release(row)

    def _match(self, cut: Cut) -> None:
        """Samples go to their candidate, or wait for it."""
        if cut.number not in self._expected:
            self._cuts[cut.number] = cut
            return
        row = self._expected.pop(cut.number)
        if row is not None and cut.raw is not None and len(cut.raw):
            self.drawing.add(replace(row, raw=cut.raw, raw_start=cut.start))
        else:
            self._release(cut)

    # ------------------------------------------------------------------ triggers
    def _run_triggers(self) -> None:
        while not (self._over.is_set() and self._triggers.empty()):
            row = self._triggers.get()
            if row is not None and self.command:
                self._one_trigger(self._run_command, row)
            if row is not None and self.url:
                self._one_trigger(self._post, row)
            self._triggers.task_done()
            if row is None:
                return

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
        facts["name"] = name_of(row.columns)
        subprocess.run(  # in a session of its own: the terminal's Ctrl-C is not for it
            self.command, input=json.dumps(facts, allow_nan=False), text=True, check=True, timeout=COMMAND_SECONDS,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def _post(self, row: Row) -> None:
        o = row.observation
        body = voevent(
            row.columns, ivorn=self.ivorn, role=self.role, ra=o.ra, dec=o.dec, source=o.source, telescope=o.telescope,
        )  # fmt: skip
        assert self.url is not None
        request = urllib.request.Request(self.url, body.encode(), {"Content-Type": "text/xml"}, method="POST")
        with urllib.request.urlopen(request, timeout=POST_SECONDS):
            pass
