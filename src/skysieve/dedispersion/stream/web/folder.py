"""What a live page shows, read from the folder of a run: its table as it grows, its state, its pictures.

Nothing here asks the run for anything, so that a page cannot hold it up.  All numbers are read as numbers; what is
none is counted and left out.
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skysieve.dedispersion.stream.report.status import NAME
from skysieve.dedispersion.stream.report.tables import COLUMNS

KEPT = 5000
"""Candidates that are remembered, the latest."""
REMEMBERED = 900
"""States that are remembered: 15 minutes."""
REMEMBERED_BYTES = 256
"""The end of what was read, by which a table is known to be the same one."""
PIECE = 2**22
"""Bytes of the table read at a time."""
LARGEST_STATUS = 2**20
POLL = 0.5
PICTURE = re.compile(r"(?P<mjd>-?\d+\.\d+)_dm-?\d+\.\d+_beam(?P<beam>\d+)(_segment(?P<segment>\d+))?\.png")
UNIX_MJD = 40587.0


@dataclass(frozen=True)
class Candidate:
    """A line of the table: the columns that the page shows; ``when`` is Unix time of arrival at infinite frequency."""

    beam: int
    snr: float
    dm: float
    width: float
    mjd: float
    live: float
    beams: int
    flagged: bool
    latency: float
    segment: int = 0

    @property
    def when(self) -> float:
        """Seconds since 1970."""
        return (self.mjd - UNIX_MJD) * 86400

    @property
    def name(self) -> str:
        """Of its picture, without ``.png``."""
        return f"{self.mjd:.9f}_dm{self.dm:.3f}_beam{self.beam}" + (f"_segment{self.segment}" if self.segment else "")


@dataclass(frozen=True)
class Moment:
    """The state of a second: Unix time, Mbit/s, packets lost, late, double, dropped a second, ring, latency."""

    when: float
    rate: float
    lost: float
    late: float
    duplicate: float
    dropped: float
    ring: float
    realtime: float
    latency: float


@dataclass
class View:
    """What is known now.  ``generation`` changes when the table is another one."""

    generation: int = 0
    total: int = 0
    bad: int = 0
    candidates: deque[Candidate] = field(default_factory=lambda: deque(maxlen=KEPT))
    moments: deque[Moment] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    moments_seen: int = 0
    about: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    running: bool | None = None
    age: float = math.inf
    pictures: list[str] = field(default_factory=list)
    problem: str = ""


class Tail:
    """New whole lines of a file that grows, split into cells.

    Parameters
    ----------
    path : path
    names : tuple of str
        Of its columns; its first line.
    """

    def __init__(self, path: Path, names: tuple[str, ...]) -> None:
        self.path, self.head = path, ",".join(names).encode()
        self._at = 0
        self._last = b""

    def read(self, begin_again: Callable[[], None], take: Callable[[list[bytes]], None]) -> None:
        """Give the lines that are new, piece by piece; ``begin_again`` is called when the file is another one."""
        if not self.path.exists():
            return
        with open(self.path, "rb") as file:
            file.seek(self._at - len(self._last))
            if file.read(len(self._last)) != self._last:  # cut, or another one of the name
                self._at, self._last = 0, b""
                begin_again()
            file.seek(self._at)
            while data := file.read(PIECE):
                end = data.rfind(b"\n") + 1
                if not end and len(data) < PIECE:
                    break  # a line that is being written
                lines = data[:end].split(b"\n")
                take([line for line in lines if line and line != self.head])
                self._at += end or len(data)
                self._last = data[: end or len(data)][-REMEMBERED_BYTES:]
                file.seek(self._at)


class FolderReader:
    """Follows a folder, in a thread once `start` is called.

    Parameters
    ----------
    folder : path

    Raises
    ------
    ValueError
        When it is no folder of a run: it has neither a table of candidates nor a state.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.table = self.folder / "candidates.csv"
        if not self.folder.is_dir():
            raise ValueError(f"{self.folder}: no such folder")
        if not (self.table.is_file() or (self.folder / NAME).is_file()):
            raise ValueError(f"{self.folder}: holds no candidates.csv and no {NAME}; expected the --out of a stream")
        self.lock = threading.Lock()
        self.view = View()
        self._candidates = Tail(self.table, COLUMNS)
        self._status_at: tuple[int, int] | None = None
        self._scanned, self._next_scan = 0, -math.inf
        self._pictures: dict[tuple[str, int, int], str] = {}
        self._pictures_exact: set[str] = set()
        self._changed = -math.inf
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="folder", daemon=True)

    def start(self) -> None:
        """Read what is there, then follow it."""
        self.poll()
        self._thread.start()

    def close(self) -> None:
        """Follow it no more."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def _run(self) -> None:
        while not self._over.wait(POLL):
            self.poll()

    def poll(self) -> None:
        """Read what is new."""
        problem = ""
        for part in (self._read_table, self._read_status, self._read_pictures):
            try:
                part()
            except OSError as error:  # the next look may find it again
                problem = problem or f"{error.filename or self.folder}: {error.strerror}"
        with self.lock:
            self.view.problem = problem
            self.view.age = time.monotonic() - self._changed

    # ------------------------------------------------------------------ candidates
    def _read_table(self) -> None:
        """New candidates; the last ones alone where there are very many."""
        self._candidates.read(self._begin_again, self._take)

    def _begin_again(self) -> None:
        with self.lock:
            self.view.generation += 1
            self.view.total = self.view.bad = 0
            self.view.candidates.clear()

    def _take(self, lines: list[bytes]) -> None:
        new: list[Candidate] = []
        bad = 0
        for line in lines[-KEPT:]:
            one = parsed(line)
            if one is None:
                bad += 1
            else:
                new.append(one)
        with self.lock:
            self.view.candidates.extend(new)
            self.view.bad += bad
            self.view.total += len(lines) - bad

    # ------------------------------------------------------------------ state
    def _read_status(self) -> None:
        path = self.folder / NAME
        try:
            facts = path.stat()
        except FileNotFoundError:
            return
        stamp = (facts.st_mtime_ns, facts.st_ino)
        if stamp == self._status_at or facts.st_size > LARGEST_STATUS:
            return
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            now, running = float(body["now"]), bool(body["running"])
            about, state = dict(body["about"]), numbers(dict(body["state"]))
        except (ValueError, KeyError, TypeError):
            raise OSError(0, "is no state of a run of this version", str(path)) from None
        first = self._status_at is None
        self._status_at = stamp
        # of a run seen for the first time the clock may be another machine's: its file's age is the best there is
        self._changed = time.monotonic() - (max(0.0, time.time() - facts.st_mtime) if first else 0.0)
        with self.lock:
            self._remember(now, state)
            self.view.about, self.view.state, self.view.running = about, state, running

    def _remember(self, now: float, state: dict[str, Any]) -> None:
        view = self.view
        before = view.state.get("counts", {})
        span = state.get("seconds", 0.0) - view.state.get("seconds", 0.0)
        if not state or not before or span <= 0:
            return
        counts = state.get("counts", {})

        def a_second(*names: str) -> float:
            return sum(max(0.0, counts.get(name, 0.0) - before.get(name, 0.0)) for name in names) / span

        view.moments.append(
            Moment(
                now, state.get("rate", 0.0) / 1e6, a_second("lost"), a_second("late"), a_second("duplicate"),
                a_second(*DROPPED), state.get("ring_fill", 0.0), state.get("realtime", 0.0), state.get("latency", 0.0),
            )
        )  # fmt: skip
        view.moments_seen += 1

    # ------------------------------------------------------------------ pictures
    def _read_pictures(self) -> None:
        """Names of pictures, the latest last; a folder that takes long to read is read less often."""
        folder = self.folder / "pulses"
        now = time.monotonic()
        if now < self._next_scan or not folder.is_dir() or (stamp := folder.stat().st_mtime_ns) == self._scanned:
            return
        with os.scandir(folder) as entries:
            found = [m for e in entries if (m := PICTURE.fullmatch(e.name))]
        found.sort(key=lambda m: float(m["mjd"]))
        self._scanned, self._next_scan = stamp, now + 10 * (time.monotonic() - now)
        with self.lock:
            self.view.pictures = [m[0] for m in found]
            self._pictures = {(m["mjd"], int(m["beam"]), int(m["segment"] or 0)): m[0] for m in found}
            self._pictures_exact = {m[0] for m in found}

    def picture_of(self, one: Candidate) -> str | None:
        """The picture of a candidate; its DM may have been rounded another way in the table."""
        with self.lock:
            exact = one.name + ".png"
            return (
                exact
                if exact in self._pictures_exact
                else self._pictures.get((f"{one.mjd:.9f}", one.beam, one.segment))
            )


GROUPS = ("counts", "sink")
LARGEST = 1e18
"""Numbers of states beyond this are not believed."""
DROPPED = ("overflow", "ring_overflow", "kernel_drops")
"""Packets for which there was no room."""


def parsed(line: bytes) -> Candidate | None:
    """A line of the table; None where it is none.

    >>> parsed(b"1,2,x") is None
    True
    """
    cells = line.split(b",")
    if len(cells) != len(COLUMNS):
        return None
    named = dict(zip(COLUMNS, cells, strict=True))
    try:
        one = Candidate(
            int(named["beam"]), float(named["snr"]), float(named["dm"]), float(named["width"]),
            float(named["mjd_infinite"]), float(named["live"]), int(named["beams"]), named["flagged"] != b"0",
            float(named["latency"]), int(named["segment"]),
        )  # fmt: skip
    except ValueError:
        return None
    return one if _fine(one) else None


def _fine(one: Candidate) -> bool:
    return all(map(math.isfinite, (one.snr, one.dm, one.width, one.mjd))) and abs(one.mjd) < 1e6


def numbers(state: Any) -> dict[str, Any]:
    """A state with its numbers, and its groups of them, alone.

    >>> numbers({"rate": 3, "counts": {"lost": 1, "x": "<b>"}, "sink": "<b>"})
    {'rate': 3.0, 'counts': {'lost': 1.0}, 'sink': {}}
    """
    if not state:
        return {}
    alone = _numbers_of(state)
    return {**alone, **{name: _numbers_of(state.get(name)) for name in GROUPS}}


def _numbers_of(group: Any) -> dict[str, float]:
    if not isinstance(group, dict):
        return {}
    return {k: float(v) for k, v in group.items() if isinstance(v, int | float) and abs(v) < LARGEST}
