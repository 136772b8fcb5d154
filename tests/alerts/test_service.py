"""The loop of ``skysieve alerts`` while the disk is full, the store locked, or a batch takes for ever."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.alerts.packets import star, write_files

from skysieve.alerts.files import FileSource
from skysieve.alerts.intake import Intake
from skysieve.alerts.kafka import KafkaSink
from skysieve.alerts.metrics import METRICS
from skysieve.alerts.packets import Decoder
from skysieve.alerts.search import PeriodSearch
from skysieve.alerts.service import Service
from skysieve.alerts.store import Batch, Store, StoreInUse, describe_error, most_columns, passing

pytest.importorskip("fastavro")


@pytest.fixture(scope="module")
def search():
    with PeriodSearch(min_period=2, max_period=20, n_peaks=1, device="cpu") as made:
        yield made


@pytest.fixture
def night(tmp_path) -> list[Path]:
    return write_files(tmp_path / "night", [star(k, n=25) for k in range(1, 7)], 2, cutout=10)


def run(service: Service, night: list[Path]) -> None:
    intake = Intake(FileSource(night, Decoder(), print), service.places, 100)
    try:
        service.run(intake)
    finally:
        intake.close()


def counted(store: Store) -> tuple[int, int, int]:
    totals = store.totals()
    return totals["packets"], totals["rows_added"], totals["searches"]


def test_a_full_disk_is_waited_for(tmp_path, night, search, monkeypatch):
    monkeypatch.setattr("skysieve.alerts.service.RETRY_SECONDS", 0.01)
    said, faults = list[str](), list[str]()
    with Store(tmp_path / "a.db") as store:
        pages = store._base.execute("PRAGMA page_count").fetchone()[0]
        store._base.execute(f"PRAGMA max_page_count = {pages}")

        def say(text: str) -> None:
            said.append(text)
            store._base.execute("PRAGMA max_page_count = 1000000")
            faults.append(service.fault)

        service = Service(store, search, patient=True, say=say, every=0.05)
        run(service, night)
        assert counted(store) == (6, 150, 6)
        assert said == [
            f"{store.path}: the disk is full; trying again every 0.01 s, nothing is lost",
            "the store can be written again",
        ]  # fmt: skip
        assert faults[1] == "the disk is full"
        assert service.fault == ""
        assert service.metrics()["store_errors_total"] == 1


def test_errors_of_a_full_disk_name_the_file_and_the_cause(tmp_path, monkeypatch):
    """SQLite says "disk I/O error" if its shared memory has no room."""
    error, store = sqlite3.OperationalError("disk I/O error"), tmp_path / "a.db"
    assert describe_error(error, store) == "the store cannot be used (disk I/O error)"
    error.sqlite_errorname = "SQLITE_IOERR_WRITE"
    assert describe_error(error, store) == "the store cannot be used (disk I/O error, SQLITE_IOERR_WRITE)"
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=4096 if path == tmp_path else 2**30))
    assert describe_error(error, store) == "the disk is full"
    assert passing(error)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_lock_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "a.db-lock").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"a\.db-lock") as caught:
        Store(tmp_path / "a.db")
    assert caught.value.filename == str(tmp_path / "a.db-lock")
    assert not (tmp_path / "a.db").exists()


def test_a_full_disk_ends_a_run_over_files(tmp_path, night, search):
    with Store(tmp_path / "a.db") as store:
        store._base.execute(f"PRAGMA max_page_count = {store._base.execute('PRAGMA page_count').fetchone()[0]}")
        with pytest.raises(sqlite3.OperationalError, match="full"):
            run(Service(store, search), night)
        assert store.totals() == {}
        assert store.places() == {}
    with Store(tmp_path / "a.db") as store:
        run(Service(store, search), night)
        assert counted(store) == (6, 150, 6)


def test_a_locked_store_is_waited_for(tmp_path, night, search, monkeypatch):
    monkeypatch.setattr("skysieve.alerts.service.RETRY_SECONDS", 0.01)
    monkeypatch.setattr("skysieve.alerts.store.BUSY_SECONDS", 0.05)
    said = list[str]()
    with Store(tmp_path / "a.db") as store:
        other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")

        def say(text: str) -> None:
            said.append(text)
            if len(said) == 1:
                other.execute("ROLLBACK")

        run(Service(store, search, patient=True, say=say), night)
        assert counted(store) == (6, 150, 6)
        assert "another program has kept the store locked" in said[0]
        other.close()


def test_a_store_that_is_locked_while_periods_are_sent(tmp_path, night, search, monkeypatch):
    """The command waits, and notes what was delivered once the store can be written."""
    pytest.importorskip("confluent_kafka")
    monkeypatch.setattr("skysieve.alerts.service.RETRY_SECONDS", 0.01)
    monkeypatch.setattr("skysieve.alerts.store.BUSY_SECONDS", 0.05)
    said, versions = list[str](), dict[Any, int]()
    with Store(tmp_path / "a.db") as store:
        other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        sink = KafkaSink("127.0.0.1:9", "periods", said.append)

        def deliver(name: Any, version: int, row: Any) -> None:
            if not versions:
                other.execute("BEGIN IMMEDIATE")
            versions[name] = version
            sink._delivered.append((name, version))
            sink._waiting.add((name, version))

        def say(text: str) -> None:
            said.append(text)
            if other.in_transaction:
                other.execute("ROLLBACK")

        monkeypatch.setattr(sink, "_produce", deliver)
        run(Service(store, search, publisher=sink, patient=True, say=say), night)
        assert [text.partition(" for over")[0] for text in said] == [
            f"{store.path}: another program has kept the store locked", "the store can be written again"
        ]  # fmt: skip
        assert versions == dict.fromkeys(range(1, 7), 1)
        assert store.unsent(10) == []
        assert (sink._delivered, sink._waiting) == ([], set())
        other.close()


def test_a_table_that_cannot_be_written_is_tried_again(tmp_path, night, search):
    folder = tmp_path / "out"
    with Store(tmp_path / "a.db") as store:
        said = list[str]()

        def say(text: str) -> None:
            said.append(text)
            folder.mkdir()

        service = Service(
            store, search, table=folder / "p.csv", table_every=0.0, every=0.01, most=1, patient=True, say=say
        )
        run(service, night)
        assert "the table cannot be written" in said[0]
        assert service.metrics()["table_errors_total"] == 1
        assert len((folder / "p.csv").read_text().splitlines()) == 7
        folder.joinpath("p.csv").unlink()
        folder.rmdir()
        service._table_old = True
        with pytest.raises(FileNotFoundError, match="does not exist"):
            service._write_table(last=True)


def test_a_batch_that_hangs_is_reported(tmp_path, night, search, monkeypatch):
    monkeypatch.setattr("skysieve.alerts.service.STALLED_SECONDS", 0.05)
    reached, go_on = threading.Event(), threading.Event()

    class Slow:
        settings = ()

        def search(self, *arguments: Any) -> dict[str, Any]:
            reached.set()
            go_on.wait(30)
            return search.search(*arguments)

    with Store(tmp_path / "a.db") as store:
        service = Service(store, Slow())
        faults = []

        def watch() -> None:
            reached.wait(30)
            time.sleep(0.1)
            faults.append(service.fault)
            go_on.set()

        thread = threading.Thread(target=watch)
        thread.start()
        run(service, night)
        thread.join()
        assert faults == ["a batch has taken over 0.05 s"]
        assert service.fault == ""


def test_an_error_of_the_source_is_raised_after_what_it_delivered(tmp_path, night, search):
    class Breaks(FileSource):
        def units(self, places: Any, stop: Any) -> Any:
            for number, unit in enumerate(super().units(places, stop)):
                if number == 2:  # a block holds the two packets of a file
                    raise OSError("the source broke")
                yield unit

    with Store(tmp_path / "a.db") as store:
        service = Service(store, search)
        intake = Intake(Breaks(night, Decoder(), print), service.places, 100)
        with pytest.raises(OSError, match="the source broke"):
            service.run(intake)
        intake.close()
        assert counted(store) == (4, 100, 4)


@pytest.mark.parametrize("error", [RuntimeError("cudaErrorIllegalAddress"), MemoryError("no room for a batch")])
def test_a_lost_gpu_or_a_lack_of_memory_ends_the_run_and_the_next_one_continues(tmp_path, night, search, error):
    class Breaks:
        """A search whose device fails at the batch with the last object."""

        def search(self, objects: Any, *arguments: Any) -> dict[str, Any]:
            if 6 in objects:
                raise error
            return search.search(objects, *arguments)

    with Store(tmp_path / "a.db") as store, pytest.raises(type(error), match=str(error)):
        run(Service(store, Breaks(), every=0.0, most=2), night)
    with Store(tmp_path / "a.db") as store:
        assert store.totals().get("packets", 0) < 6
        run(Service(store, search), night)
        assert counted(store) == (6, 150, 6)


def test_a_store_is_open_once_also_through_links(tmp_path):
    (tmp_path / "link.db").symlink_to("a.db")
    (tmp_path / "folder").symlink_to(".")
    names = [tmp_path / name for name in ("a.db", "link.db", "folder/a.db", "folder/link.db")]
    for name in names:
        with Store(name):
            for other in names:
                with pytest.raises(StoreInUse, match="uses this store"):
                    Store(other)


def test_a_store_is_open_once(tmp_path):
    with Store(tmp_path / "a.db") as store:
        with pytest.raises(StoreInUse, match=r"uses this store; each process needs a store of its own"):
            Store(tmp_path / "a.db")
        store.commit(Batch(totals={"packets": 1}))
    with Store(tmp_path / "a.db") as store:
        assert store.totals() == {"packets": 1}


def test_every_metric_is_documented(tmp_path, search):
    text = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text(encoding="utf-8")
    for metric in METRICS:
        assert f"| `{metric.exported}` | {metric.kind} | {metric.help} |" in text
    with Store(tmp_path / "a.db") as store:
        assert set(Service(store, search).metrics()) < {metric.exported for metric in METRICS}


def test_the_most_peaks_fit_into_the_table(tmp_path):
    """One more peak would exceed SQLite's limit, also of the columns that are selected for `--to-topic`."""
    with PeriodSearch(min_period=2, max_period=20, n_peaks=1, device="cpu") as search:
        most = search.most_peaks(most_columns())
    with PeriodSearch(min_period=2, max_period=20, n_peaks=most, device="cpu") as search:
        width = len(search.no_periods())
        assert 0 <= most_columns() - width < 7
        columns = {name: np.zeros(1, values.dtype) for name, values in search.no_periods().items()}
    columns.pop("searched")  # the store adds it
    with Store(tmp_path / "a.db") as store:
        store.commit(Batch(objects=[0], rows=[b""], n_rows=[0], periods=columns))
        assert len(store.periods()) == width
        assert len(store.unsent(1)[0][2]) == width


def test_a_transaction_that_fails_adds_nothing(tmp_path):
    """Also where the error comes after most of it was written."""
    with Store(tmp_path / "a.db") as store:
        place = ("t", 0)
        whole = Batch(places={place: (5, "")}, objects=[1], rows=[b"x"], n_rows=[1], totals={"packets": 1})
        bad = Batch(places={place: (9, "")}, objects=[2], rows=[b"y"], n_rows=[1], totals={"packets": None})
        store.commit(whole)
        with pytest.raises(sqlite3.IntegrityError):
            store.commit(bad)
        assert store.places() == {place: (5, "")}
        assert store.rows([1, 2]) == [b"x", b""]
        assert store.totals() == {"packets": 1}
