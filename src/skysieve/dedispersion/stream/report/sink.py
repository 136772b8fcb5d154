"""Output of candidates: a table that survives the process, pictures, samples and triggers.

A candidate is announced (printed, sent by triggers) after its line has reached the disk.  While lines cannot be
written, they wait.
"""

from __future__ import annotations

import http.client
import math
import os
import queue
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from skysieve.core.files import remove_leftovers
from skysieve.dedispersion.stream.metrics import SINK_COUNTERS
from skysieve.dedispersion.stream.records import (
    INJECTION_COLUMNS,
    LEAST_LIVE,
    Candidate,
    CandidateSamples,
    Column,
    Injection,
)

from .pictures import EndingThread, Pictures
from .previous_run import GAP_COLUMNS, Gap
from .tables import Table, lock_folder
from .triggers import Trigger

MOST_LINES = 100_000
"""Most candidates that may wait for the disk; if there are more, the oldest are dropped and counted."""
MOST_RAW = 2**28
"""Most bytes of samples that may wait to be written and drawn; for further candidates only the line is written."""
MOST_TRIGGERS = 1000
LAST_TRIES = 20
"""How often the sink tries, every 0.2 s, to write the last candidates of a run before it drops them."""
GRACE = 30.0
"""Seconds that pictures and triggers have at the end of a run."""


def describe_candidate(c: dict[str, Any]) -> str:
    """A candidate as a line for the operator."""
    late = f"  {c['latency']:.2f} s after its last sample" if math.isfinite(c["latency"]) else ""
    return (
        f"S/N {c['snr']:.1f}  DM {c['dm']:.2f}  width {c['width'] * 1e3:.3g} ms  "
        f"MJD {c['mjd_infinite']:.9f} at infinite frequency  beam {c['beam']}{late}"
    )


class Sink:
    """Writes and announces candidates, in its own thread.

    Parameters
    ----------
    folder : path
        Folder for ``candidates.csv``, ``pulses/``, ``gaps.csv`` (after an earlier run) and ``injections.csv`` (if
        pulses are injected).  It is made if it does not exist.
    pictures, raw : bool
        Whether to draw each candidate, and whether to keep the samples around it as a filterbank file.
    min_snr : float
        Candidates below this S/N get no picture, samples or triggers; candidates of injected pulses never get any.
    triggers : sequence of Trigger
        Triggers that are sent one after another for each candidate.
    say : callable
        Is called with a line for each candidate, and for each problem.

    Raises
    ------
    OSError, ValueError
        The folder cannot be written, is in use, or holds other files of these names.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, pictures: bool = True, raw: bool = True, min_snr: float = 0.0,
        triggers: Sequence[Trigger] = (), say: Callable[[str], None] = lambda line: None,
    ) -> None:  # fmt: skip
        if math.isnan(min_snr):
            raise ValueError(f"min_snr={min_snr!r}: expected an S/N")
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.pulses = self.folder / "pulses"
        self._folder_lock: int | None = lock_folder(self.folder)
        try:
            self.table = Table(self.folder / "candidates.csv")
            for place in (self.folder, self.pulses):
                remove_leftovers(place)
        except (OSError, ValueError):
            self._unlock_folder()
            raise
        self.pictures, self.raw, self.min_snr, self.triggers = pictures, raw, min_snr, list(triggers)
        self.say = say
        self.counts = dict.fromkeys(SINK_COUNTERS, 0)
        self._waiting: deque[Candidate] = deque()
        self._samples: dict[int, CandidateSamples] = {}
        self._expected: dict[int, Candidate | None] = {}
        self._inbox: queue.Queue[Candidate | CandidateSamples | Gap | Injection | None] = queue.Queue()
        self._to_send: queue.Queue[Candidate | None] = queue.Queue(MOST_TRIGGERS)
        self._raw_bytes = 0
        self._lock = threading.Lock()
        self.drawing = Pictures(
            self.folder, raw=raw, pictures=pictures, count=self._count, done=self._release, say=say
        )  # fmt: skip
        self._over = threading.Event()
        self._refusing = False
        self.error: BaseException | None = None
        self._thread = EndingThread(self._run, "sink")
        self._sender = EndingThread(self._send_triggers, "triggers")

    # ------------------------------------------------------------------ input
    def add(self, one: Candidate | CandidateSamples) -> None:
        """Take a candidate, or the samples around one; samples are dropped if too many bytes wait."""
        self._inbox.put(one if self._reserve(one.raw) else replace(one, raw=None))

    def add_gap(self, gap: Gap) -> None:
        """Take the gap between the previous run and this one."""
        self._inbox.put(gap)

    def add_injection(self, injection: Injection) -> None:
        """Take an injected pulse that is searched."""
        self._inbox.put(injection)

    def _reserve(self, raw: Any) -> bool:
        """Reserve memory for samples; return whether there was enough."""
        if raw is None:
            return True
        with self._lock:
            fits: bool = self._raw_bytes + raw.nbytes <= MOST_RAW
            self._raw_bytes += raw.nbytes if fits else 0
            self.counts["pictures_skipped"] += 0 if fits else 1
        return fits

    def _release(self, one: Candidate | CandidateSamples) -> None:
        """Give back the memory reserved for samples."""
        if one.raw is not None:
            with self._lock:
                self._raw_bytes -= one.raw.nbytes

    def close(self, seconds: float = 120.0, grace: float = GRACE) -> None:
        """Write the remaining candidates for at most ``seconds``; then draw and send them for at most ``grace``."""
        if not self._thread.ended.is_set():
            self._inbox.put(None)
            self._thread.ended.wait(seconds)
        until = time.monotonic() + grace
        self._over.set()
        with suppress(queue.Full):  # a full queue wakes the thread anyway
            self._to_send.put_nowait(None)
        self.drawing.close(grace)
        if not self._sender.ended.is_set():
            self._sender.ended.wait(max(0.0, until - time.monotonic()))
            self._drop_triggers()
        self._unlock_folder()

    def _drop_triggers(self) -> None:
        """Drop the triggers that wait; a running trigger continues."""
        with suppress(queue.Empty):
            while True:
                self._count("triggers_dropped", int(self._to_send.get_nowait() is not None))
                self._to_send.task_done()
        if self._to_send.unfinished_tasks and not self.counts["triggers_unfinished"]:
            self._count("triggers_unfinished")
            self.say("a trigger has not ended in time; it is left running")
        self._to_send.put_nowait(None)

    def _unlock_folder(self) -> None:
        """Let another run write to the folder."""
        if self._folder_lock is not None:
            os.close(self._folder_lock)
            self._folder_lock = None

    def _run(self) -> None:
        try:
            self._take_all()
        # Any error: without this thread nothing is written, so that the run must end.
        except BaseException as error:  # noqa: BLE001 - the pipeline raises it in the main thread
            self.error = error

    def _take_all(self) -> None:
        over = False
        tries = 0
        while True:
            try:
                item = self._inbox.get(timeout=1.0 if not self._waiting else 0.2)
                over |= item is None
                if isinstance(item, CandidateSamples):
                    self._match(item)
                elif isinstance(item, Gap):
                    self._write_gap(item)
                elif isinstance(item, Injection):
                    self._write_injection(item)
                elif item is not None:
                    self._waiting.append(item)
                    self._count("candidates")
                    self._count("flagged", int(item.columns["flagged"]))
                    self._count("injected", int(item.columns["injected"] > 0))
                    if len(self._waiting) > MOST_LINES:
                        self._picture(self._waiting.popleft(), False)
                        self._count("dropped")
            except queue.Empty:
                pass
            if self._waiting and self._inbox.empty():
                tries = 0 if self._flush() else tries + 1
            if over and (not self._waiting or tries > LAST_TRIES):
                self._count("dropped", len(self._waiting))
                for candidate in self._waiting:  # there is no other copy
                    self.say(f"not written: {describe_candidate(candidate.columns)}")
                return

    def _write_gap(self, gap: Gap) -> None:
        """Append a gap to ``gaps.csv``."""
        self.say(gap.message)
        self._append("gaps.csv", GAP_COLUMNS, gap.row)

    def _write_injection(self, one: Injection) -> None:
        """Count an injected pulse, and append it to ``injections.csv``."""
        if one.live >= LEAST_LIVE:
            self._count("injections")
            self._count("injections_found", int(one.found))
        self._append("injections.csv", INJECTION_COLUMNS, one.row)

    def _append(self, name: str, columns: Sequence[Column], row: dict[str, Any]) -> None:
        """Append a row to a table; if that fails, the run continues without the row."""
        try:
            Table(self.folder / name, columns).append([row])
        except (OSError, ValueError) as error:
            self._count("write_errors")
            self.say(f"{self.folder / name}: {getattr(error, 'strerror', None) or error}")

    @property
    def done(self) -> int:
        """Number of candidates that are on the disk, or were dropped because they could not be written for too long."""
        with self._lock:
            return self.counts["written"] + self.counts["dropped"]

    def _flush(self) -> bool:
        """Write the lines that wait; return whether that succeeded."""
        candidates = list(self._waiting)
        try:
            self.table.append([c.columns for c in candidates])
        except OSError as error:
            if not self._refusing:
                self.say(f"{self.table.path}: {error.strerror}; candidates wait until it can be written")
            self._refusing = True
            self._count("write_errors")
            return False
        self._waiting.clear()
        self._count("written", len(candidates))
        if self._refusing:
            self.say(f"{self.table.path}: written again")
        self._refusing = False
        for candidate in candidates:
            self._announce(candidate)
        return True

    def _announce(self, candidate: Candidate) -> None:
        c = candidate.columns
        mark = f"  in {c['beams']} beams: interference" if c["flagged"] else ""
        mark += f"  injected pulse {c['injected']}" if c["injected"] else ""
        self.say(f"{describe_candidate(c)}{mark}")
        wanted = c["snr"] >= self.min_snr and not c["flagged"] and not c["injected"]
        self._picture(candidate, wanted and (self.raw or self.pictures))
        if wanted and self.triggers:
            try:
                self._to_send.put_nowait(candidate)
            except queue.Full:
                self._count("triggers_dropped")

    def _count(self, name: str, by: int = 1) -> None:
        with self._lock:
            self.counts[name] += by

    # ------------------------------------------------------------------ pictures
    def _picture(self, candidate: Candidate, wanted: bool) -> None:
        """Have a candidate drawn, now or when its samples arrive, or release its samples."""
        samples = self._samples.pop(candidate.number, None)
        if candidate.number and samples is None:
            self._expected[candidate.number] = candidate if wanted else None
        elif samples is not None:
            candidate = replace(candidate, raw=samples.raw, raw_start=samples.start)
        if wanted and candidate.raw is not None and len(candidate.raw):
            self.drawing.add(candidate)
        else:
            self._release(candidate)

    def _match(self, samples: CandidateSamples) -> None:
        """Join samples with their candidate, or hold them until it comes."""
        if samples.number not in self._expected:
            self._samples[samples.number] = samples
            return
        candidate = self._expected.pop(samples.number)
        if candidate is not None and samples.raw is not None and len(samples.raw):
            self.drawing.add(replace(candidate, raw=samples.raw, raw_start=samples.start))
        else:
            self._release(samples)

    # ------------------------------------------------------------------ triggers
    def _send_triggers(self) -> None:
        while not (self._over.is_set() and self._to_send.empty()):
            candidate = self._to_send.get()
            if candidate is None:
                self._to_send.task_done()
                return
            for trigger in self.triggers:
                try:
                    trigger.send(candidate)
                except (
                    OSError, ValueError, ArithmeticError, subprocess.SubprocessError, http.client.HTTPException
                ) as error:  # fmt: skip
                    self._count("triggers_failed")
                    self.say(f"a trigger failed: {error}")
                else:
                    self._count("triggers")
            self._to_send.task_done()
