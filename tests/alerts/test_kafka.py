"""``skysieve alerts`` from Kafka, with librdkafka's mock cluster in a process of its own."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.alerts.broker import Broker
from tests.alerts.packets import confluent, container, lsst_packet, lsst_schema, star
from tests.alerts.test_command import QUICK, content, run, start, total

pytest.importorskip("fastavro")
pytest.importorskip("confluent_kafka")
FAST = (
    *QUICK, "--every", "0.1", "--kafka-option", "session.timeout.ms=6000", "--kafka-option",
    "heartbeat.interval.ms=500", "--kafka-option", "socket.timeout.ms=1500",
    "--kafka-option", "reconnect.backoff.max.ms=500",
)  # fmt: skip


@pytest.fixture
def broker():
    made = Broker()
    yield made
    made.close()


@pytest.fixture
def processes():
    """Processes that end with the test."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def packets(first: int, n: int) -> list[dict[str, Any]]:
    return [lsst_packet(star(k, n=25), cutout=20) for k in range(first, first + n)]


def messages(first: int, n: int) -> list[bytes]:
    return [container([p], lsst_schema()) for p in packets(first, n)]


def wait_for(condition: Any, seconds: float = 180.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def arguments(broker: Broker, store: Path, *more: Any) -> tuple[Any, ...]:
    return ("--kafka", broker.address, "--topic", "alerts", "--store", store, *FAST, *more)


def test_both_formats_and_bytes_that_are_no_packet(broker, tmp_path):
    """The store holds what it holds after reading the packets from a file; the second run finds nothing new."""
    schema, store = tmp_path / "alert.avsc", tmp_path / "a.db"
    schema.write_text(json.dumps(lsst_schema()))
    made = packets(1, 6)
    broker.send("alerts", [container(made[:2], lsst_schema()), *(confluent(p, lsst_schema(), 7) for p in made[2:])])
    broker.send("alerts", [b"no packet", b"", confluent(made[0], lsst_schema(), 8)])
    broker.send("alerts", [confluent(made[0], lsst_schema(), 7)])  # comes twice
    given = arguments(broker, store, "--stop-at-end", "--schema", f"7={schema}")
    assert "7 packets, 150 new rows, 6 searches" in run(*given, code=1)
    found = content(store)
    assert [row[5] for row in found["set_aside"] if row[5][:1] != b"\0"] in ([b"no packet", b""], [b"", b"no packet"])
    assert sum("schema number 8, for which no file was given" in row[4] for row in found["set_aside"]) == 1
    assert found["totals"]["rows_repeated"] == 25
    (tmp_path / "a.avro").write_bytes(container(made, lsst_schema()))
    run(tmp_path / "a.avro", "--store", tmp_path / "b.db", *QUICK)
    assert content(tmp_path / "b.db")["rows"] == found["rows"]
    text = run(*given, "--schema", f"8={schema}", "--retry")
    assert ": 1 packet, 0 new rows, 0 searches" in text
    assert "read 1 of the packets that were set aside; 2 remain" in text
    later = content(store)
    assert later["rows"] == found["rows"]
    assert later["totals"]["packets"] == 8
    assert later["totals"]["set_aside"] == len(later["set_aside"]) == 2


@pytest.mark.slow
def test_killed_at_any_moment(broker, tmp_path, processes):
    store, kills = tmp_path / "a.db", 8
    given = arguments(broker, store)
    rng, sent = random.Random(kills), 0
    for _ in range(kills):
        process = start(*given, "--batch", 2)
        processes.append(process)
        broker.send("alerts", [*messages(sent + 1, 20), b"poison"])
        sent += 20
        before = total(store)
        wait_for(lambda before=before: total(store) > before)
        time.sleep(rng.uniform(0, 0.1))
        process.kill()
        process.wait()
    result = run(*given, "--stop-at-end", code=None)
    assert "packets" in result
    found = content(store)
    assert found["totals"]["packets"] == sent
    assert found["totals"]["rows_added"] == 25 * sent
    assert found["totals"]["rows_repeated"] == 0
    assert found["totals"]["set_aside"] == len(found["set_aside"]) == kills
    assert [row[0] for row in found["periods"]] == list(range(1, sent + 1))


@pytest.mark.slow
def test_killed_before_the_first_message_after_the_end(broker, tmp_path, processes):
    """``--from-end`` skips the messages before the first start, and none that arrive while no process runs."""
    store = tmp_path / "a.db"
    broker.send("alerts", messages(1, 4))
    given = arguments(broker, store, "--from-end")
    process = start(*given, "--every", 60)  # the position is stored long before the next search
    processes.append(process)
    wait_for(lambda: store.exists() and len(positions(store)) == 4)
    process.kill()
    process.wait()
    assert positions(store) == dict.fromkeys(range(4), 1)
    assert total(store) == 0
    broker.send("alerts", messages(5, 8))
    run(*given, "--stop-at-end")
    assert objects(store) == list(range(5, 13))
    assert positions(store) == dict.fromkeys(range(4), 3)


@pytest.mark.slow
def test_partitions_move_between_consumers(broker, tmp_path, processes):
    """Two processes of a group, each with a store of its own; when one ends, the other continues where it was."""
    stores = tmp_path / "a.db", tmp_path / "b.db"
    broker.send("alerts", messages(1, 20))
    processes.append(start(*arguments(broker, stores[0])))
    wait_for(lambda: total(stores[0]) == 20)
    processes.append(start(*arguments(broker, stores[1])))
    number = 20
    while not total(stores[1]):  # until the second has partitions
        broker.send("alerts", messages(number + 1, 8))
        number += 8
        time.sleep(0.5)
        assert number < 600
    wait_for(lambda: set(objects(stores[0])) | set(objects(stores[1])) == set(range(1, number + 1)))
    processes[1].send_signal(signal.SIGTERM)
    assert processes[1].wait(30) == 130
    broker.send("alerts", messages(number + 1, 8))
    number += 8
    wait_for(lambda: set(objects(stores[0])) | set(objects(stores[1])) == set(range(1, number + 1)))
    for store in stores:
        found = content(store)
        assert found["totals"]["rows_added"] == 25 * len(found["rows"])
        assert found["totals"]["packets"] >= len(found["rows"])


def objects(store: Path) -> list[int]:
    return [row[0] for row in sqlite3.connect(store).execute("SELECT object FROM objects")]


def positions(store: Path) -> dict[int, int]:
    """The next message of each partition, in a store that a process may be making."""
    try:
        return dict(sqlite3.connect(store).execute("SELECT part, next FROM places"))
    except sqlite3.OperationalError:  # it has no tables yet
        return {}


def health(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address.replace("/metrics", "/health")) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metrics_address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return next(line.split()[-1] for line in process.stdout if "metrics are on" in line)


@pytest.mark.slow
def test_brokers_that_go_away(broker, tmp_path, processes):
    store = tmp_path / "a.db"
    broker.send("alerts", messages(1, 4))
    processes.append(start(*arguments(broker, store, "--metrics", "0")))
    address = metrics_address(processes[0])
    wait_for(lambda: total(store) == 4)
    assert health(address) == (200, "ok\n")
    broker.pause()
    wait_for(lambda: health(address)[0] == 503)
    assert "no broker can be reached" in health(address)[1]
    broker.go_on()
    wait_for(lambda: health(address) == (200, "ok\n"))
    broker.send("alerts", messages(5, 4))
    wait_for(lambda: total(store) == 8)
    broker.close()
    wait_for(lambda: health(address)[0] == 503)
    processes[0].send_signal(signal.SIGTERM)
    assert processes[0].wait(40) == 130
    assert total(store) == 8


class Unanswered:
    """A consumer whose first requests for committed offsets fail, as a whole or for a partition."""

    def __init__(self, consumer: Any) -> None:
        self._consumer, self.asked = consumer, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def committed(self, partitions: list[Any], timeout: float) -> list[Any]:
        from confluent_kafka import KafkaError, KafkaException

        self.asked += 1
        if self.asked == 1:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        found: list[Any] = self._consumer.committed(partitions, timeout=timeout)
        if self.asked == 2:
            return [SimpleNamespace(error=KafkaError(KafkaError.NOT_COORDINATOR), partition=0, offset=-1001)]
        return found


@pytest.mark.slow
def test_committed_offsets_that_the_broker_does_not_tell_at_once(broker):
    """The group's offsets are asked for again: to begin at the beginning instead would read old packets again."""
    from confluent_kafka import Consumer, TopicPartition

    from skysieve.alerts import kafka
    from skysieve.alerts.packets import Decoder

    broker.send("alerts", messages(1, 6), partition=2)
    before = Consumer({"bootstrap.servers": broker.address, "group.id": "skysieve", "enable.auto.commit": False})
    before.commit(offsets=[TopicPartition("alerts", 2, 4)], asynchronous=False)
    before.close()
    said: list[str] = []
    options = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}
    source = kafka.KafkaSource(
        broker.address, "alerts", "skysieve", Decoder(), said.append, stop_at_end=True, options=options
    )
    source._consumer = consumer = Unanswered(source._consumer)
    units = list(source.units(dict, threading.Event()))
    assert consumer.asked == 3
    assert [unit.at for unit in units] == [4, 5]
    assert source.counts()["broker_errors"] >= 2


@pytest.mark.slow
def test_brokers_and_topics_that_do_not_exist(broker, tmp_path, monkeypatch):
    monkeypatch.setattr("skysieve.alerts.kafka.START_SECONDS", 1.0)
    given = ("--topic", "alerts", "--store", tmp_path / "a.db", *QUICK)
    text = run("--kafka", "127.0.0.1:9", *given, code=2)
    assert "--kafka 127.0.0.1:9: no broker answered in 1 s" in text
    text = run("--kafka", broker.address, *given, code=2)
    assert f"--topic alerts: the brokers {broker.address} have no such topic" in text


@pytest.mark.slow
def test_messages_that_the_broker_deleted(broker, tmp_path):
    """The log of the mock cluster holds a few megabytes: a reader that was away misses some, and says so."""
    store = tmp_path / "a.db"
    broker.send("alerts", messages(1, 2), partition=0)
    given = arguments(broker, store, "--stop-at-end", "--metrics", "0")
    run(*given)
    large = (container([lsst_packet(star(k, n=25), cutout=200_000)], lsst_schema()) for k in range(3, 20))
    broker.send("alerts", large, partition=0)
    broker.send("alerts", messages(20, 1), partition=0)
    text = run(*given)
    low = int(text.split("has the messages ")[1].split()[0])
    assert low > 2
    assert f"the next to read: {low - 2} messages were deleted before they were read; continuing at {low}" in text
    assert total(store) == 20 - low + 2


@pytest.mark.slow
def test_a_topic_that_is_made_anew(broker, tmp_path):
    """Its offsets begin at 0 again; it is read from there, and the store keeps what it had."""
    store = tmp_path / "a.db"
    broker.send("alerts", messages(1, 9), partition=0)
    run(*arguments(broker, store, "--stop-at-end"))
    other = Broker()
    try:
        other.send("alerts", messages(8, 4), partition=0)
        text = run(*arguments(other, store, "--stop-at-end"))
        assert "the topic was created again, or has lost its last messages; continuing at 0" in text
        assert objects(store) == list(range(1, 12))
        assert total(store) == 13
        assert total(store, "rows_repeated") == 50
        other.send("alerts", messages(12, 1), partition=0)
        run(*arguments(other, store, "--stop-at-end"))
        assert total(store) == 14
    finally:
        other.close()


@pytest.mark.slow
def test_periods_are_sent_with_keys(broker, tmp_path):
    store = tmp_path / "a.db"
    broker.send("alerts", messages(1, 5))
    given = arguments(broker, store, "--stop-at-end", "--to-topic", "periods")
    run(*given)
    found = broker.read("periods", 5)
    assert [key for key, _ in found] == [f"{k}/1".encode() for k in range(1, 6)]
    values = [json.loads(value) for _, value in found]
    held = dict(sqlite3.connect(store).execute("SELECT id, period FROM periods"))
    assert {v["object"]: v["period"] for v in values} == held
    assert [v["key"] for v in values] == [f"{k}/1" for k in range(1, 6)]
    run(*given)
    assert broker.read("periods", 5) == found  # nothing is sent twice
    base = sqlite3.connect(store)
    base.execute("UPDATE objects SET sent = 0 WHERE object < 3")  # killed before the answer of the broker was stored
    base.commit()
    base.close()
    broker.send("alerts", [container([lsst_packet(star(5, n=26), cutout=20)], lsst_schema())])
    run(*given)
    again = broker.read("periods", 8)
    assert len(again) == 8
    assert {key: value for key, value in again if key != b"5/2"} == dict(found)  # repeats are equal
    assert [key for key, _ in again].count(b"5/2") == 1


def test_without_the_package(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    text = run("--kafka", "127.0.0.1:9", "--topic", "t", "--store", tmp_path / "a.db", *QUICK, code=2)
    assert "Kafka needs confluent-kafka: pip install 'skysieve[alerts]'" in text
