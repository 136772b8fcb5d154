"""The store: light curves, periods and the position in the stream, in one SQLite file with atomic updates."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.plan import Closing

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Batch", "Place", "Store", "StoreInUse", "describe_error", "most_columns", "passing"]

FORM = 1
"""Version of the tables."""
BUSY_SECONDS = 10.0
"""How long a transaction waits for another process that writes."""
LEAST_ROOM = 2**16
"""Least room on a disk that is not full, in bytes: SQLite's shared memory takes half of it at first."""
ROWS_AT_ONCE = 10_000
"""Rows of the table of periods that are held in memory as Python objects at a time."""
TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE totals (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE places (source TEXT, part INTEGER, next INTEGER NOT NULL, mark TEXT NOT NULL, PRIMARY KEY (source, part))
    WITHOUT ROWID;
CREATE TABLE objects (object PRIMARY KEY, version INTEGER NOT NULL, searched INTEGER NOT NULL, sent INTEGER NOT NULL,
    n_rows INTEGER NOT NULL, rows BLOB NOT NULL);
CREATE INDEX unsearched ON objects (object) WHERE searched < version;
CREATE INDEX unsent ON objects (object) WHERE sent < searched;
CREATE TABLE set_aside (source TEXT, part INTEGER, place INTEGER, number INTEGER, reason TEXT NOT NULL,
    bytes BLOB NOT NULL, time REAL NOT NULL, PRIMARY KEY (source, part, place, number));
"""
TYPES = {"f": "REAL", "i": "INTEGER", "u": "INTEGER", "b": "INTEGER"}

Place = tuple[str, int]
"""A partition of a topic; or a file, as partition 0."""


class StoreInUse(OSError):
    """Another process writes to the store."""


@dataclass
class Batch:
    """The data that one transaction adds to the store.

    Attributes
    ----------
    places : dict of Place to (int, str)
        How far each partition or file is read, and the file's marker.
    objects, rows : list
        Objects whose light curves changed, and the rows of these light curves.
    n_rows : list of int
    periods : mapping of str to array
        Columns of the table of periods for some of the objects; ``id`` is one of them.
    set_aside : list of (Place, int, str, bytes)
        Packets that cannot be read: place, position, reason and bytes.  The store numbers the packets of one position.
    recovered : list of (Place, int, int)
        Packets that were set aside and can be read now: place, position and number.
    totals : dict of str to int
        Increments of the totals.
    """

    places: dict[Place, tuple[int, str]] = field(default_factory=dict)
    objects: list[Any] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    n_rows: list[int] = field(default_factory=list)
    periods: Mapping[str, Any] = field(default_factory=dict)
    set_aside: list[tuple[Place, int, str, bytes]] = field(default_factory=list)
    recovered: list[tuple[Place, int, int]] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=dict)


class Store(Closing):
    """A file of light curves and periods; one process at a time writes to it.

    Parameters
    ----------
    path : path
        The file, which is made if it does not exist.

    Raises
    ------
    StoreInUse
        Another process has it open.
    OSError
        The file is no such store, is damaged or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.absolute().parent.is_dir():
            raise FileNotFoundError(f"{self.path}: there is no folder {self.path.parent}")
        self._lock = self._locked()
        try:
            self._base = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
            try:
                self._open()
            except BaseException:
                self._base.close()
                raise
        except sqlite3.Error as error:
            self._lock.close()
            raise OSError(f"{self.path}: {describe_error(error, self.path)}") from None
        except BaseException:
            self._lock.close()
            raise

    def _locked(self) -> Any:
        """A lock that ends with the process, however it ends; links to a store have the lock of the store."""
        name = Path(os.path.realpath(self.path) + "-lock")
        file = open(name, "a+", encoding="utf-8")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            file.close()
            raise StoreInUse(
                f"{self.path}: process {owner} uses this store; each process needs a store of its own"
            ) from None
        try:
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        except OSError as error:
            with suppress(OSError):  # it tries to write once more
                file.close()
            raise OSError(error.errno, error.strerror, str(name)) from None
        return file

    def _open(self) -> None:
        base = self._base
        if self.path.stat().st_size == 0:
            base.execute("PRAGMA page_size = 8192")
        base.execute("PRAGMA journal_mode = WAL")
        base.execute("PRAGMA synchronous = FULL")
        base.execute("PRAGMA cache_size = -65536")
        with self._transaction():
            if not base.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                for statement in TABLES.split(";"):
                    base.execute(statement)
                self._write_facts({"form": FORM})
            elif not base.execute("SELECT count(*) FROM sqlite_master WHERE name = 'places'").fetchone()[0]:
                raise OSError(f"{self.path}: is a database, but not a store of skysieve alerts")
            form = self._fact("form")
            if form != FORM:
                raise OSError(
                    f"{self.path}: is a store of format version {form}, expected {FORM}: another release made it"
                )

    def use(self, settings: Mapping[str, Any]) -> None:
        """Note the settings on which the periods depend; if they have changed, all objects are to be searched again."""
        if self._fact("settings") == json.loads(json.dumps(settings)):
            return
        with self._transaction():
            self._base.execute("DROP TABLE IF EXISTS periods")
            self._base.execute("UPDATE objects SET searched = 0, sent = 0, version = version + 1")
            self._write_facts({"settings": settings})

    @property
    def table(self) -> Path | None:
        """The file for the table of periods that was last used with the store."""
        known = self._fact("table")
        return None if known is None else Path(known)

    @table.setter
    def table(self, path: Path) -> None:
        if self.table != path:
            with self._transaction():
                self._write_facts({"table": str(path)})

    def _fact(self, name: str) -> Any:
        row = self._base.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def _write_facts(self, facts: Mapping[str, Any]) -> None:
        self._base.executemany(
            "INSERT OR REPLACE INTO facts VALUES (?, ?)", [(name, json.dumps(value)) for name, value in facts.items()]
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._base.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # SQLite has rolled back itself after some errors
                self._base.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Close the store."""
        self._base.close()
        self._lock.close()

    def places(self) -> dict[Place, tuple[int, str]]:
        """How far each partition or file is read, and the file's marker."""
        rows = self._base.execute("SELECT source, part, next, mark FROM places")
        return {(source, part): (place, mark) for source, part, place, mark in rows}

    def totals(self) -> dict[str, int]:
        """Numbers that advance with the store: packets, repeats and so on."""
        return dict(self._base.execute("SELECT name, value FROM totals"))

    def rows(self, objects: Iterable[Any]) -> list[bytes]:
        """The rows of objects; empty for unknown objects."""
        one = self._base.cursor()
        found = (one.execute("SELECT rows FROM objects WHERE object = ?", (o,)).fetchone() for o in objects)
        return [b"" if row is None else row[0] for row in found]

    def unsearched(self, limit: int) -> list[Any]:
        """Objects that are to be searched again, because the settings changed."""
        return [
            row[0]
            for row in self._base.execute("SELECT object FROM objects WHERE searched < version LIMIT ?", (limit,))
        ]

    def commit(self, batch: Batch) -> None:
        """Add a batch in one transaction: all of it, or nothing.

        Raises
        ------
        sqlite3.Error
            Nothing was added.
        """
        base, now = self._base, time.time()
        with self._transaction():
            base.executemany(
                "INSERT OR REPLACE INTO places VALUES (?, ?, ?, ?)",
                [(*place, following, mark) for place, (following, mark) in batch.places.items()],
            )
            base.executemany(
                "INSERT INTO set_aside SELECT ?1, ?2, ?3, (SELECT coalesce(max(number) + 1, 0) FROM set_aside "
                "WHERE source = ?1 AND part = ?2 AND place = ?3), ?4, ?5, ?6",
                [(*place, at, reason, raw, now) for place, at, reason, raw in batch.set_aside],
            )
            base.executemany(
                "DELETE FROM set_aside WHERE source = ? AND part = ? AND place = ? AND number = ?",
                [(*place, at, number) for place, at, number in batch.recovered],
            )
            base.executemany(
                "INSERT INTO objects VALUES (?, 1, 1, 0, ?, ?) ON CONFLICT DO UPDATE SET version = version + 1, "
                "searched = version + 1, n_rows = excluded.n_rows, rows = excluded.rows",
                zip(batch.objects, batch.n_rows, batch.rows, strict=True),
            )
            self._add_periods(batch.periods, now)
            if self._has_periods():  # detections can replace more rows of forced photometry than they are
                found = set(batch.periods["id"].tolist()) if batch.periods else set()
                base.executemany("DELETE FROM periods WHERE id = ?", [(o,) for o in batch.objects if o not in found])
            base.executemany(
                "INSERT INTO totals VALUES (?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value",
                batch.totals.items(),
            )

    def commit_again(self, objects: Sequence[Any], periods: Mapping[str, Any]) -> None:
        """Add periods of stored light curves, which were searched again."""
        with self._transaction():
            self._add_periods(periods, time.time())
            self._base.executemany("UPDATE objects SET searched = version WHERE object = ?", [(o,) for o in objects])

    def _add_periods(self, columns: Mapping[str, Any], now: float) -> None:
        """Replace rows of the table of periods; missing numbers are NULL."""
        if not columns or not len(columns["id"]):
            return
        names = ", ".join(f'"{name}"' for name in columns)
        kinds = {name: "" if name == "id" else TYPES.get(c.dtype.kind, "TEXT") for name, c in columns.items()}
        made = ", ".join(f'"{name}" {kind}' + (" PRIMARY KEY" if name == "id" else "") for name, kind in kinds.items())
        self._base.execute(f"CREATE TABLE IF NOT EXISTS periods ({made}, searched REAL)")
        marks = ", ".join("?" * (len(columns) + 1))
        values = [c.tolist() for c in columns.values()]  # SQLite stores NaN as NULL
        self._base.executemany(
            f"INSERT OR REPLACE INTO periods ({names}, searched) VALUES ({marks})",
            zip(*values, [now] * len(values[0]), strict=True),
        )

    def periods(self) -> dict[str, Any]:
        """The table of periods, sorted by object; empty before anything was searched."""
        if not self._has_periods():
            return {}
        about = [(name, kind) for _, name, kind, *_ in self._base.execute("PRAGMA table_info(periods)")]
        cursor = self._base.execute("SELECT * FROM periods ORDER BY id")
        pieces: dict[str, list[NDArray[Any]]] = {name: [] for name, _ in about}
        while rows := cursor.fetchmany(ROWS_AT_ONCE):
            for (name, kind), column in zip(about, zip(*rows, strict=True), strict=True):
                dtype = {"REAL": np.float64, "INTEGER": np.int64}.get(kind, object)
                pieces[name].append(np.array(column, dtype))  # NULL becomes NaN
        if not pieces["id"]:
            return {}
        columns = {name: np.concatenate(parts) for name, parts in pieces.items()}
        ids = columns["id"].tolist()
        whole = all(isinstance(x, int) for x in ids)
        return columns | {"id": np.array(ids, np.int64) if whole else np.array(list(map(str, ids)), object)}

    def n_waiting(self) -> int:
        """Number of objects without a period, because they have too few rows."""
        searched = "(SELECT count(*) FROM periods)" if self._has_periods() else "0"
        return int(self._base.execute(f"SELECT (SELECT count(*) FROM objects) - {searched}").fetchone()[0])

    def _has_periods(self) -> bool:
        return self._base.execute("SELECT 1 FROM sqlite_master WHERE name = 'periods'").fetchone() is not None

    def unsent(self, limit: int) -> list[tuple[Any, int, dict[str, Any]]]:
        """Objects whose periods were not sent yet: object, version and the row of the table of periods."""
        if not self._has_periods():
            return []
        cursor = self._base.execute(
            "SELECT o.object AS object_, o.version AS version_, p.* FROM objects o JOIN periods p ON p.id = o.object "
            "WHERE o.sent < o.searched LIMIT ?", (limit,),
        )  # fmt: skip
        names = [about[0] for about in cursor.description][2:]
        return [(row[0], row[1], dict(zip(names, row[2:], strict=True))) for row in cursor]

    def mark_sent(self, delivered: Iterable[tuple[Any, int]]) -> None:
        """Note which versions of objects were sent."""
        with self._transaction():
            self._base.executemany("UPDATE objects SET sent = ?2 WHERE object = ?1 AND sent < ?2", list(delivered))

    def set_aside(self, after: tuple[Place, int, int], limit: int) -> list[tuple[Place, int, int, bytes]]:
        """Packets that could not be read, after a given one: place, position, number and bytes."""
        query = (
            "SELECT source, part, place, number, bytes FROM set_aside "
            "WHERE (source, part, place, number) > (?, ?, ?, ?) ORDER BY source, part, place, number LIMIT ?"
        )
        found = self._base.execute(query, (*after[0], *after[1:], limit))
        return [((source, part), place, number, raw) for source, part, place, number, raw in found]


def most_columns() -> int:
    """How many columns the table of periods can have."""
    with closing(sqlite3.connect(":memory:")) as base:
        selected = base.getlimit(sqlite3.SQLITE_LIMIT_COLUMN) - 2  # `Store.unsent` selects two columns of objects, too
        return min(selected, base.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER))


def describe_error(error: sqlite3.Error, store: Path) -> str:
    """An error of SQLite in words."""
    text = str(error)
    if "locked" in text:
        return f"another program has kept the store locked for over {BUSY_SECONDS:g} s"
    if "full" in text or ("disk I/O" in text and _is_full(store)):
        return "the disk is full"
    name = getattr(error, "sqlite_errorname", "")  # such as SQLITE_IOERR_WRITE
    return f"the store cannot be used ({text}{name and ', '}{name})"


def _is_full(store: Path) -> bool:
    """Whether the disk has no room for the files that SQLite makes beside the store."""
    try:
        return shutil.disk_usage(store.absolute().parent).free < LEAST_ROOM
    except OSError:
        return False


def passing(error: sqlite3.Error) -> bool:
    """Whether the operation may succeed later: the disk is full, or another program has locked the store."""
    return isinstance(error, sqlite3.OperationalError) and any(
        word in str(error) for word in ("locked", "busy", "full", "disk I/O")
    )
