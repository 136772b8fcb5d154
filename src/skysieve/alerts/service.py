"""The loop of ``skysieve alerts``: take packets, search the objects that changed, store everything at once."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from skysieve.core.table_files import write_table

from .history import merge
from .intake import Unit
from .metrics import METRICS, TOTALS
from .store import Batch, Place, Store, describe_error, passing
from .surveys import ROW

if TYPE_CHECKING:
    from .intake import Intake
    from .packets import Decoder
    from .search import PeriodSearch

__all__ = ["Publisher", "Service"]

RETRY_SECONDS = 2.0
"""Pause before a transaction that failed is tried again."""
STALLED_SECONDS = 300.0
"""A batch that takes longer is reported as a fault."""
AGAIN, AT_ONCE = 2000, 200
"""Number of objects in a batch that is searched again, and number of set-aside packets that are read at a time."""


class Publisher(Protocol):
    """A destination to which periods are sent, besides the store."""

    def send(self, store: Store, wait: float) -> None:
        """Send the periods that are marked as not sent, and note those delivered; wait for `wait` seconds at most."""

    def counts(self) -> dict[str, float]:
        """Metrics of this part."""


class Service:
    """Keeps the periods in a store up to date.

    Parameters
    ----------
    store : Store
    search : PeriodSearch
    every : float
        Seconds between two searches.
    most : int
        A search starts earlier when this many packets are waiting.
    table : path, optional
        File for the table of periods.
    table_format : str, optional
    table_every : float
        Seconds between two writes of it.
    publisher : Publisher, optional
    most_set_aside : int
        The run ends if more packets than this cannot be read.
    patient : bool
        Whether to wait while the disk is full or the store is locked; otherwise the run ends.
    say, detail : callable
        Called with lines for the user: `say` with faults, `detail` with one line for each batch.
    """

    def __init__(
        self,
        store: Store,
        search: PeriodSearch,
        *,
        every: float = 10.0,
        most: int = 5000,
        table: Path | None = None,
        table_format: str | None = None,
        table_every: float = 60.0,
        publisher: Publisher | None = None,
        most_set_aside: int = 1000,
        patient: bool = False,
        say: Callable[[str], None] = print,
        detail: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store, self._search = store, search
        self._every, self._most = every, most
        self._most_set_aside, self._set_aside = most_set_aside, 0
        self._table, self._table_format, self._table_every = table, table_format, table_every
        self._publisher, self._patient, self._say, self._detail = publisher, patient, say, detail
        self._places = store.places()
        self._totals = dict.fromkeys(TOTALS, 0) | store.totals()
        self._lock = threading.Lock()
        self._run: dict[str, float] = dict.fromkeys(
            ("batches", "store_errors", "table_errors", "latency_seconds", "batch_seconds", "last_commit_seconds"), 0.0
        )
        self._fault, self._busy_since = "", 0.0
        self._intake: Intake | None = None
        self._table_written, self._table_seconds = time.monotonic(), 0.0
        self._table_old = True

    def places(self) -> dict[Place, tuple[int, str]]:
        """The position up to which each partition or file is stored; safe to read in other threads."""
        with self._lock:
            return dict(self._places)

    @property
    def totals(self) -> dict[str, int]:
        """The totals of the store."""
        return dict(self._totals)

    @property
    def fault(self) -> str:
        """The present fault; "" if there is none."""
        since = self._busy_since
        if fault := self._fault or ("" if self._intake is None else self._intake.fault):
            return fault
        if since and time.monotonic() - since > STALLED_SECONDS:
            return f"a batch has taken over {STALLED_SECONDS:g} s"
        return ""

    def metrics(self) -> dict[str, float]:
        """All metrics by their exported names."""
        values: dict[str, float] = {**self._totals, **self._run, "healthy": float(not self.fault)}
        if self._intake is not None:
            values |= self._intake.counts()
        if self._publisher is not None:
            values |= self._publisher.counts()
        return {m.exported: float(values[m.name]) for m in METRICS if m.name in values}

    def run(self, intake: Intake) -> None:
        """Work until the source ends.

        Raises
        ------
        sqlite3.Error
            The store cannot be written, and the service does not wait for it.
        OSError
            The table cannot be written at the end.
        RuntimeError
            Too many packets cannot be read.
        """
        self._intake = intake
        self.search_again()
        try:
            while (units := intake.take(self._every, self._most)) is not None:
                if units:
                    self.process(units)
                self._publish(0.0)
                self._write_table()
        except KeyboardInterrupt:
            self._write_table(last=True)
            raise
        self._publish(30.0)
        self._write_table(last=True)

    def retry(self, decoder: Decoder) -> None:
        """Read messages again that were set aside, for example because a schema was not known."""
        found, after = 0, (("", -1), -1, -1)
        while waiting := self._store.set_aside(after, AT_ONCE):
            read = [(place, at, number, decoder.message(raw)) for place, at, number, raw in waiting]
            good = [(place, at, number, packets) for place, at, number, packets in read if not packets.bad]
            if good:
                units = [Unit(place, at, -1, "", packets, time.time()) for place, at, _, packets in good]
                self.process(units, [(place, at, number) for place, at, number, _ in good])
            found += len(good)
            after = waiting[-1][:3]
        self._say(f"read {found:,} of the packets that were set aside; {self._totals['set_aside']:,} remain")

    def process(self, units: Sequence[Unit], recovered: Sequence[tuple[Place, int, int]] = ()) -> None:
        """Search the objects of units that the store does not have, and store everything in one transaction.

        Units without a following position are packets that were set aside before; `recovered` lists them.
        """
        started = self._busy_since = time.monotonic()
        batch, objects, rows, owners, used = self._collect(units)
        self._refuse_too_many(batch)
        batch.recovered = list(recovered)
        batch.totals["set_aside"] -= len(recovered)
        self._merge(batch, objects, rows, owners)
        self._store_patiently(partial(self._store.commit, batch))
        with self._lock:
            self._places |= batch.places
        for name, value in batch.totals.items():
            self._totals[name] += value
        now = time.time()
        self._run["batches"] += 1
        self._run["batch_seconds"] = time.monotonic() - started
        self._run["last_commit_seconds"] = now
        if used:
            self._run["latency_seconds"] = now - min(unit.arrived for unit in used)
        self._table_old |= bool(batch.objects)
        self._busy_since = 0.0
        self._detail(
            f"{batch.totals['packets']:,} packets, {batch.totals['searches']:,} objects searched in "
            f"{self._run['batch_seconds']:.1f} s"
        )

    def _collect(self, units: Sequence[Unit]) -> tuple[Batch, dict[Any, int], np.ndarray, np.ndarray, list[Unit]]:
        """The packets of units that the store does not have, and the object of each row."""
        batch, objects = Batch(totals=dict.fromkeys(TOTALS, 0)), dict[Any, int]()
        totals, staged, used = batch.totals, dict(self._places), []
        pieces, numbers, counts = [], list[int](), list[int]()
        for unit in units:
            if unit.following >= 0:
                known, mark = staged.get(unit.place, (0, unit.mark))
                if mark == unit.mark and unit.at < known:
                    continue  # read again after the source went back
                staged[unit.place] = batch.places[unit.place] = unit.following, unit.mark
            used.append(unit)
            found = unit.packets
            totals["packets"] += len(found.objects)
            totals["rows_left_out"] += found.left_out
            totals["set_aside"] += len(found.bad)
            batch.set_aside += [(unit.place, unit.at, reason, raw) for reason, raw in found.bad]
            totals["without_object"] += sum(o is None for o in found.objects)
            numbers += [-1 if o is None else objects.setdefault(o, len(objects)) for o in found.objects]
            counts += found.counts
            pieces.append(found.rows)
        rows = np.concatenate(pieces) if pieces else np.empty(0, ROW)
        owners = np.repeat(np.array(numbers, np.int64), counts)
        return batch, objects, rows[owners >= 0], owners[owners >= 0], used

    def _refuse_too_many(self, batch: Batch) -> None:
        """Stop before the disk fills with packets of a schema that is not known."""
        self._set_aside += len(batch.set_aside)
        if self._set_aside > self._most_set_aside:
            raise RuntimeError(
                f"{self._set_aside:,} packets could not be read, the last: {batch.set_aside[-1][2]}; the last "
                f"batch was not stored (--max-set-aside {self._most_set_aside})"
            )

    def _merge(self, batch: Batch, objects: dict[Any, int], rows: np.ndarray, owners: np.ndarray) -> None:
        """Join rows to the stored ones, and search the objects that changed."""
        if not objects:
            return
        stored = self._store.rows(objects)
        joined, everything, offsets = merge(stored, rows, owners)
        changed = np.array([len(new) > len(old) for new, old in zip(joined, stored, strict=True)])
        added = int(offsets[-1]) - sum(map(len, stored)) // ROW.itemsize
        batch.totals["rows_added"] += added
        batch.totals["rows_repeated"] += len(rows) - added
        names = list(objects)
        lengths = np.diff(offsets)
        keep = np.repeat(changed, lengths)
        batch.objects = [names[k] for k in np.flatnonzero(changed)]
        batch.rows = [joined[k] for k in np.flatnonzero(changed)]
        batch.n_rows = lengths[changed].tolist()
        if batch.objects:
            new_offsets = np.concatenate([[0], np.cumsum(lengths[changed])]).astype(np.int64)
            batch.periods = self._search.search(batch.objects, everything[keep], new_offsets)
            batch.totals["searches"] += len(batch.periods["id"]) if batch.periods else 0

    def search_again(self) -> None:
        """Search the stored objects whose periods were found with other settings."""
        done = 0
        while objects := self._store.unsearched(AGAIN):
            stored = self._store.rows(objects)
            _, rows, offsets = merge(stored, np.empty(0, ROW), np.empty(0, np.int64))
            periods = self._search.search(objects, rows, offsets)
            self._store_patiently(partial(self._store.commit_again, objects, periods))
            done += len(objects)
        if done:
            self._say(f"searched {done:,} stored objects again, because the settings changed")
            self._table_old = True

    def _publish(self, wait: float) -> None:
        """Send the periods that were not sent yet; wait for `wait` seconds at most, unless the store is locked."""
        if self._publisher is not None:
            self._store_patiently(partial(self._publisher.send, self._store, wait))

    def _store_patiently(self, action: Callable[[], None]) -> None:
        """Do something to the store; while the disk is full or another program has locked it, try again."""
        while True:
            try:
                action()
            except sqlite3.Error as error:
                if not (self._patient and passing(error)):
                    raise
                self._run["store_errors"] += 1
                why = describe_error(error, self._store.path)
                if not self._fault:
                    self._say(f"{self._store.path}: {why}; trying again every {RETRY_SECONDS:g} s, nothing is lost")
                self._fault = why
                time.sleep(RETRY_SECONDS)
            else:
                if self._fault:
                    self._say("the store can be written again")
                self._fault = ""
                return

    def _write_table(self, last: bool = False) -> None:
        """Write the table of periods if it is time and something changed."""
        if self._table is None or not self._table_old:
            return
        if not last and time.monotonic() - self._table_written < max(self._table_every, 10 * self._table_seconds):
            return
        started = time.monotonic()
        columns = self._store.periods() or (self._search.no_periods() if last else {})
        if not columns:
            return
        try:
            write_table(columns, self._table, units=table_units(columns), format=self._table_format)
            self._table_old = False
        except OSError as error:
            self._run["table_errors"] += 1
            if last:
                raise
            self._say(f"the table cannot be written: {error}; trying again")
        self._table_written = time.monotonic()
        self._table_seconds = self._table_written - started


def table_units(columns: dict[str, Any]) -> dict[str, str]:
    """Units of the columns of the table of periods."""
    units = {
        "period": "d", "period_error": "d", "frequency": "1 / d", "frequency_error": "1 / d", "last_mjd": "d",
        "searched": "s",
    }  # fmt: skip
    found = {name: units.get(name) or units.get(name.rpartition("_")[0], "") for name in columns}
    return {name: unit for name, unit in found.items() if unit}
