"""The data of a live page, read from the folder of a run: the growing table, the state, the pictures.

The page only reads files, so that it cannot delay the run.  Numbers are parsed as numbers; lines that cannot be parsed
are counted and left out.
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

from skysieve.dedispersion.stream.metrics import total
from skysieve.dedispersion.stream.records import CANDIDATE_COLUMNS, INJECTION_COLUMNS, LEAST_LIVE
from skysieve.dedispersion.stream.report.status import NAME

MOST_CANDIDATES = 5000
"""How many of the latest candidates are shown."""
MOST_POINTS = 900
"""How many of the latest states are shown: 15 minutes."""
TAIL_BYTES = 256
"""Number of bytes before the current position that are compared to detect that a table was replaced."""
PIECE = 2**22
"""Bytes of the table read at a time."""
LARGEST_STATUS = 2**20
POLL = 0.5
PICTURE = re.compile(r"(?P<mjd>-?\d+\.\d+)_dm-?\d+\.\d+_beam(?P<beam>\d+)(_segment(?P<segment>\d+))?\.png")
UNIX_MJD = 40587.0
COLUMN_NAMES = tuple(c.name for c in CANDIDATE_COLUMNS)
INJECTION_NAMES = tuple(c.name for c in INJECTION_COLUMNS)


@dataclass(frozen=True)
class ShownCandidate:
    """A line of the table: the columns that the page shows, see `CANDIDATE_COLUMNS`."""

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
    injected: int = 0

    @property
    def when(self) -> float:
        """Arrival at infinite frequency, seconds since 1970."""
        return (self.mjd - UNIX_MJD) * 86400

    @property
    def name(self) -> str:
        """Name of its picture, without ``.png``."""
        return f"{self.mjd:.9f}_dm{self.dm:.3f}_beam{self.beam}" + (f"_segment{self.segment}" if self.segment else "")


@dataclass(frozen=True)
class StatusPoint:
    """The state of a run at one second: Unix time, Mbit/s, packets per second, and values of the state."""

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
    """All data that were read.  ``generation`` changes when the table is replaced.

    ``injections`` and ``injections_found`` count the pulses of all runs in the folder of which enough samples arrived.
    """

    generation: int = 0
    total: int = 0
    bad: int = 0
    candidates: deque[ShownCandidate] = field(default_factory=lambda: deque(maxlen=MOST_CANDIDATES))
    points: deque[StatusPoint] = field(default_factory=lambda: deque(maxlen=MOST_POINTS))
    points_seen: int = 0
    about: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    running: bool | None = None
    age: float = math.inf
    pictures: list[str] = field(default_factory=list)
    injections: int = 0
    injections_found: int = 0
    problem: str = ""


class Tail:
    """Reads the new complete lines of a table that grows.

    Parameters
    ----------
    path : path
    names : tuple of str
        Names of its columns, which are its first line.
    """

    def __init__(self, path: Path, names: tuple[str, ...]) -> None:
        self.path, self.head = path, ",".join(names).encode()
        self._at = 0
        self._last = b""

    def read(self, begin_again: Callable[[], None], take: Callable[[list[bytes]], None]) -> None:
        """Pass the new lines on, piece by piece; ``begin_again`` is called when the file was replaced."""
        if not self.path.exists():
            return
        with open(self.path, "rb") as file:
            file.seek(self._at - len(self._last))
            if file.read(len(self._last)) != self._last:  # it was cut or replaced
                self._at, self._last = 0, b""
                begin_again()
            file.seek(self._at)
            while data := file.read(PIECE):
                end = data.rfind(b"\n") + 1
                if not end and len(data) < PIECE:
                    break  # an incomplete line
                lines = data[:end].split(b"\n")
                take([line for line in lines if line and line != self.head])
                self._at += end or len(data)
                self._last = data[: end or len(data)][-TAIL_BYTES:]
                file.seek(self._at)


class FolderReader:
    """Follows the folder of a run, in a thread once `start` is called.

    Parameters
    ----------
    folder : path

    Raises
    ------
    ValueError
        The folder has neither a table of candidates nor a state.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.table = self.folder / "candidates.csv"
        if not self.folder.is_dir():
            raise ValueError(f"{self.folder}: there is no such folder")
        if not (self.table.is_file() or (self.folder / NAME).is_file()):
            raise ValueError(
                f"{self.folder}: has no candidates.csv and no {NAME}; expected the output folder of "
                "'skysieve dedisp stream'"
            )
        self.lock = threading.Lock()
        self.view = View()
        self._candidates = Tail(self.table, COLUMN_NAMES)
        self._injections = Tail(self.folder / "injections.csv", INJECTION_NAMES)
        self._status_at: tuple[int, int] | None = None
        self._scanned, self._next_scan = 0, -math.inf
        self._pictures: dict[tuple[str, int, int], str] = {}
        self._pictures_exact: set[str] = set()
        self._changed = -math.inf
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="folder", daemon=True)

    def start(self) -> None:
        """Read the folder, then follow it."""
        self.poll()
        self._thread.start()

    def close(self) -> None:
        """Stop following the folder."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def _run(self) -> None:
        while not self._over.wait(POLL):
            self.poll()

    def poll(self) -> None:
        """Read the new data."""
        problem = ""
        for part in (self._read_table, self._read_injections, self._read_status, self._read_pictures):
            try:
                part()
            except OSError as error:  # it is read again next time
                problem = problem or f"{error.filename or self.folder}: {error.strerror}"
        with self.lock:
            self.view.problem = problem
            self.view.age = time.monotonic() - self._changed

    # ------------------------------------------------------------------ candidates
    def _read_table(self) -> None:
        """Read new candidates; if there are very many, only the last ones."""
        self._candidates.read(self._begin_again, self._take)

    def _begin_again(self) -> None:
        with self.lock:
            self.view.generation += 1
            self.view.total = self.view.bad = 0
            self.view.candidates.clear()

    def _take(self, lines: list[bytes]) -> None:
        new: list[ShownCandidate] = []
        bad = 0
        for line in lines[-MOST_CANDIDATES:]:
            one = parse_line(line)
            if one is None:
                bad += 1
            else:
                new.append(one)
        with self.lock:
            self.view.candidates.extend(new)
            self.view.bad += bad
            self.view.total += len(lines) - bad

    # ------------------------------------------------------------------ injected pulses
    def _read_injections(self) -> None:
        """Count the new injected pulses."""
        self._injections.read(self._forget_injections, self._count_injections)

    def _forget_injections(self) -> None:
        with self.lock:
            self.view.injections = self.view.injections_found = 0

    def _count_injections(self, lines: list[bytes]) -> None:
        live, found = INJECTION_NAMES.index("live"), INJECTION_NAMES.index("found")
        rows = [line.split(b",") for line in lines]
        for row in rows:
            if len(row) != len(INJECTION_NAMES):
                continue
            try:
                counts = float(row[live]) >= LEAST_LIVE
            except ValueError:
                continue
            if counts:
                with self.lock:
                    self.view.injections += 1
                    self.view.injections_found += row[found] == b"1"

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
            raise OSError(0, "this is not a state of this version of skysieve", str(path)) from None
        first = self._status_at is None
        self._status_at = stamp
        # the run may be on a machine with another clock: at first use the age of the file
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

        rise = {name: max(0.0, value - before.get(name, 0.0)) / span for name, value in counts.items()}

        view.points.append(
            StatusPoint(
                now, state.get("rate", 0.0) / 1e6, rise.get("lost", 0.0), rise.get("late", 0.0),
                rise.get("duplicate", 0.0), total(rise, "dropped"), state.get("ring_fill", 0.0),
                state.get("realtime", 0.0), state.get("latency", 0.0),
            )
        )  # fmt: skip
        view.points_seen += 1

    # ------------------------------------------------------------------ pictures
    def _read_pictures(self) -> None:
        """Read the names of pictures, the latest last; a folder that takes long to read is read less often."""
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

    def picture_of(self, one: ShownCandidate) -> str | None:
        """The picture of a candidate; its DM may be rounded differently in the table."""
        with self.lock:
            exact = one.name + ".png"
            return (
                exact
                if exact in self._pictures_exact
                else self._pictures.get((f"{one.mjd:.9f}", one.beam, one.segment))
            )


GROUPS = ("counts", "sink")
LARGEST = 1e18
"""Larger numbers in states are ignored."""


def parse_line(line: bytes) -> ShownCandidate | None:
    """Parse a line of the table; None if it is not valid.

    >>> parse_line(b"1,2,x") is None
    True
    """
    cells = line.split(b",")
    if len(cells) != len(COLUMN_NAMES):
        return None
    named = dict(zip(COLUMN_NAMES, cells, strict=True))
    try:
        one = ShownCandidate(
            int(named["beam"]), float(named["snr"]), float(named["dm"]), float(named["width"]),
            float(named["mjd_infinite"]), float(named["live"]), int(named["beams"]), named["flagged"] != b"0",
            float(named["latency"]), int(named["segment"]), int(named["injected"]),
        )  # fmt: skip
    except ValueError:
        return None
    return one if _valid(one) else None


def _valid(one: ShownCandidate) -> bool:
    return all(map(math.isfinite, (one.snr, one.dm, one.width, one.mjd))) and abs(one.mjd) < 1e6


def numbers(state: Any) -> dict[str, Any]:
    """The numbers of a state, and its groups of numbers; everything else is left out.

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
