"""Packets from Kafka, and periods to Kafka, through librdkafka.

Offsets are stored with the data and read from the store.  They are committed to the broker only for monitoring.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.errors import install_hint

from .intake import Unit
from .packets import Decoder, Packets

if TYPE_CHECKING:
    from .store import Place, Store

__all__ = ["KafkaSink", "KafkaSource", "import_kafka", "settings_of"]

START_SECONDS = 30.0
"""Seconds within which a broker must answer at the start; if brokers fail later, the command waits for them."""
POLL_SECONDS = 0.5
AT_ONCE = 500
"""Messages that are taken from librdkafka at a time."""
IN_FLIGHT = 10_000
"""Messages of periods that are sent before the first is acknowledged."""


def import_kafka() -> Any:
    """The package confluent_kafka.

    Raises
    ------
    ModuleNotFoundError
        It is not installed; the message names the extra.
    """
    try:
        import confluent_kafka
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"Kafka needs confluent-kafka: {install_hint('confluent_kafka')}") from error
    return confluent_kafka


def settings_of(pairs: list[str]) -> dict[str, str]:
    """Settings of librdkafka from ``NAME=VALUE``.

    Raises
    ------
    ValueError
        One is not of this form, or is set by this program.

    Examples
    --------
    >>> settings_of(["security.protocol=SASL_SSL"])
    {'security.protocol': 'SASL_SSL'}
    """
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"--kafka-option {pair}: expected NAME=VALUE, such as security.protocol=SASL_SSL")
        if name in ("enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset", "enable.idempotence"):
            raise ValueError(f"--kafka-option {name}: is set by this command, because offsets are kept in the store")
        found[name] = value
    return found


class KafkaSource:
    """Consumes a topic.

    Parameters
    ----------
    brokers, topic, group : str
        Brokers ``HOST:PORT,...``; the topic; the consumer group, whose members share the partitions.
    decoder : Decoder
    say : callable
        Gets lines for the user.
    from_end : bool
        Whether a partition without a stored offset is read from its end; otherwise from its beginning.
    stop_at_end : bool
        End when all partitions have been read to their ends.
    options : mapping
        Settings of librdkafka.

    Raises
    ------
    ModuleNotFoundError
        confluent-kafka is not installed.
    OSError
        No broker answers, or there is no such topic.
    """

    def __init__(
        self,
        brokers: str,
        topic: str,
        group: str,
        decoder: Decoder,
        say: Callable[[str], None],
        *,
        from_end: bool = False,
        stop_at_end: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self._kafka = import_kafka()
        self._topic, self._decoder, self._say = topic, decoder, say
        self._from_end, self._stop_at_end = from_end, stop_at_end
        self._error = ""
        self._errors = 0
        self._ended: set[int] = set()
        self._assigned: set[int] = set()
        self._next: dict[int, int] = {}
        self._marks: dict[int, str] = {}
        self._behind: dict[int, int] = {}
        self._begins: dict[int, int] = {}
        self._begun: list[Unit] = []
        self._lost = 0
        self._consumer = self._kafka.Consumer(
            {
                "socket.timeout.ms": 10_000,
                "session.timeout.ms": 45_000,
                "fetch.message.max.bytes": 8 * 2**20,
                "queued.max.messages.kbytes": 128 * 1024,
                **(options or {}),
                "bootstrap.servers": brokers,
                "group.id": group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "error_cb": self._failed,
            },
            logger=_quiet(),
        )
        try:
            self._wait_for_topic(brokers)
        except OSError:
            self._consumer.close()
            raise

    def _wait_for_topic(self, brokers: str) -> None:
        """Wait until a broker answers and has the topic, which brokers may create when it is first used."""
        until, answered = time.monotonic() + START_SECONDS, False
        while (left := until - time.monotonic()) > 0:
            try:
                about = self._consumer.list_topics(self._topic, timeout=left).topics.get(self._topic)
            except self._kafka.KafkaException as error:
                if error.args[0].fatal():
                    raise OSError(f"--kafka {brokers}: {error.args[0].str()}") from None
                continue
            answered = True
            if about is not None and about.error is None and about.partitions:
                self._error = ""
                return
            time.sleep(0.2)
        if answered:
            raise OSError(f"--topic {self._topic}: the brokers {brokers} have no such topic")
        raise OSError(f"--kafka {brokers}: no broker answered in {START_SECONDS:g} s")

    @property
    def fault(self) -> str:
        """The present problem with the brokers; "" if there is none."""
        return self._error

    def counts(self) -> dict[str, float]:
        """Metrics of this part."""
        behind = dict(self._behind)
        return {
            "broker_errors": self._errors, "partitions": len(self._assigned), "lost": self._lost,
            "behind": sum(behind.get(part, 0) for part in list(self._assigned)),
        }  # fmt: skip

    def _failed(self, error: Any) -> None:
        """An error of a broker or of the network; librdkafka tries again."""
        self._errors += 1
        if error.code() == self._kafka.KafkaError._ALL_BROKERS_DOWN or error.fatal():
            if not self._error:
                self._say(f"no broker can be reached ({error.str()}); waiting for one")
            self._error = f"no broker can be reached: {error.str()}"

    def units(self, places: Callable[[], Mapping[Place, tuple[int, str]]], stop: threading.Event) -> Iterator[Unit]:
        """See `intake.Source`."""
        kafka, consumer = self._kafka, self._consumer

        def assign(_consumer: Any, partitions: list[Any]) -> None:
            stored = places()
            committed = self._committed([p for p in partitions if (self._topic, p.partition) not in stored], stop)
            for p in partitions:
                known = stored.get((self._topic, p.partition))
                group = committed.get(p.partition, -1)
                p.offset = known[0] if known is not None else group if group >= 0 else kafka.OFFSET_BEGINNING
                if p.offset < 0 and self._from_end:
                    p.offset = self._begin_at_end(p.partition, stop)
                self._next[p.partition] = p.offset
                self._marks[p.partition] = "" if known is None else known[1]
            self._assigned |= {p.partition for p in partitions}
            self._ended -= {p.partition for p in partitions}
            consumer.assign(partitions)
            self._say(f"reading {len(self._assigned)} partitions of {self._topic}")

        def revoke(_consumer: Any, partitions: list[Any]) -> None:
            self._assigned -= {p.partition for p in partitions}
            consumer.unassign()

        sent_offsets: dict[int, int] = {}
        consumer.subscribe([self._topic], on_assign=assign, on_revoke=revoke, on_lost=revoke)
        try:
            while not stop.is_set():
                messages = consumer.consume(AT_ONCE, POLL_SECONDS)
                yield from self._begun
                self._begun.clear()
                for message in messages:
                    error = message.error()
                    part = message.partition()
                    if error is None:
                        self._recovered()
                        self._next[part] = message.offset() + 1
                        self._ended.discard(part)
                        stamp = message.timestamp()[1]
                        yield Unit(
                            (self._topic, part), message.offset(), message.offset() + 1, self._marks.get(part, ""),
                            self._decoder.message(message.value() or b""),
                            stamp / 1000 if stamp > 0 else time.time(),
                        )  # fmt: skip
                    elif error.code() == kafka.KafkaError._PARTITION_EOF:
                        self._recovered()
                        self._ended.add(part)
                    elif error.code() == kafka.KafkaError._AUTO_OFFSET_RESET:
                        self._skip_deleted(part)
                    elif error.fatal() or error.code() in (
                        kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED,
                        kafka.KafkaError.GROUP_AUTHORIZATION_FAILED,
                    ):
                        raise OSError(f"Kafka: {error.str()}")
                    else:
                        self._failed(error)
                if self._error:
                    self._ask()
                self._inform(places(), sent_offsets)
                self._measure()
                if self._stop_at_end and self._assigned and self._assigned <= self._ended:
                    return
        finally:
            consumer.close()

    def _committed(self, partitions: list[Any], stop: threading.Event) -> dict[int, int]:
        """The group's committed offsets for partitions that the store does not know; asks until `stop`."""
        while partitions and not stop.is_set():
            try:
                found = self._consumer.committed(partitions, timeout=START_SECONDS)
            except self._kafka.KafkaException as error:
                self._failed(error.args[0])
            else:
                wrong = [p.error for p in found if p.error is not None]
                if not wrong:
                    return {p.partition: p.offset for p in found}
                self._failed(wrong[0])
            stop.wait(POLL_SECONDS)
        return {}

    def _begin_at_end(self, part: int, stop: threading.Event) -> int:
        """The offset behind the last message of a partition; asks until `stop`.

        The store notes it before the first message arrives, because the end is a later one when a process that was
        killed is started again.
        """
        while part not in self._begins and not stop.is_set():
            try:
                _, end = self._consumer.get_watermark_offsets(
                    self._kafka.TopicPartition(self._topic, part), timeout=START_SECONDS
                )
            except self._kafka.KafkaException as error:
                self._failed(error.args[0])
                stop.wait(POLL_SECONDS)
            else:
                self._begins[part] = end
        at = self._begins.get(part, int(self._kafka.OFFSET_END))
        if at >= 0:
            self._begun.append(Unit((self._topic, part), at, at, "", Packets(), time.time(), at_once=True))
        return at

    def _ask(self) -> None:
        """Ask whether a broker answers again: without new messages, nothing else would show it."""
        try:
            self._consumer.list_topics(self._topic, timeout=1.0)
        except self._kafka.KafkaException:
            return
        self._recovered()

    def _recovered(self) -> None:
        if self._error:
            self._say("a broker answers again")
        self._error = ""

    def _inform(self, stored: Mapping[Place, tuple[int, str]], sent_offsets: dict[int, int]) -> None:
        """Commit the offsets of the store to the broker, for monitoring only."""
        new = [
            self._kafka.TopicPartition(self._topic, part, stored[self._topic, part][0])
            for part in self._assigned
            if (self._topic, part) in stored and stored[self._topic, part][0] > sent_offsets.get(part, -1)
        ]
        if new:
            try:
                self._consumer.commit(offsets=new, asynchronous=True)
            except self._kafka.KafkaException as error:
                self._failed(error.args[0])
                return
            sent_offsets.update({p.partition: p.offset for p in new})

    def _measure(self) -> None:
        """Measure how far the reader is behind the broker, by the end offsets that librdkafka fetched last."""
        for part in list(self._assigned):
            try:
                _, high = self._consumer.get_watermark_offsets(
                    self._kafka.TopicPartition(self._topic, part), cached=True
                )
            except self._kafka.KafkaException:
                continue  # the partition was just revoked
            if high >= 0 and self._next.get(part, -1) >= 0:
                self._behind[part] = max(0, high - self._next[part])

    def _skip_deleted(self, part: int) -> None:
        """Continue with the first message that the broker has if the next one was deleted or the log was truncated."""
        kafka, wanted = self._kafka, self._next.get(part, -1)
        try:
            low, high = self._consumer.get_watermark_offsets(kafka.TopicPartition(self._topic, part), timeout=10)
        except kafka.KafkaException as error:
            self._failed(error.args[0])
            low = high = -1
        if low < 0:
            return
        if wanted < low:
            self._lost += low - wanted
            why = f"{low - wanted} messages were deleted before they were read"
        else:  # the topic was created again: its offsets no longer tell which messages are in the store
            self._marks[part] = f"since {time.time():.3f}"
            why = "the topic was created again, or has lost its last messages"
        self._say(
            f"partition {part} of {self._topic} has the messages {low} to {high - 1}, but not message {wanted}, the "
            f"next to read: {why}; continuing at {low}"
        )
        self._next[part] = low
        self._consumer.assign([kafka.TopicPartition(self._topic, p, self._next[p]) for p in self._assigned])


class KafkaSink:
    """Sends periods to a topic: one JSON message for each object and version, with the key ``OBJECT/VERSION``.

    A message that was delivered just before a crash is sent again with the same key and content.

    Parameters
    ----------
    brokers, topic : str
    say : callable
    options : mapping
        Settings of librdkafka.
    """

    def __init__(
        self, brokers: str, topic: str, say: Callable[[str], None], options: Mapping[str, str] | None = None
    ) -> None:
        self._kafka, self._topic, self._say = import_kafka(), topic, say
        self._sent = self._errors = 0
        self._delivered: list[tuple[Any, int]] = []
        self._waiting: set[tuple[Any, int]] = set()
        self._producer = self._kafka.Producer(
            {
                "linger.ms": 50, **(options or {}), "bootstrap.servers": brokers, "enable.idempotence": True,
                "message.timeout.ms": 60_000,
            },
            logger=_quiet(),
        )  # fmt: skip

    def counts(self) -> dict[str, float]:
        """Metrics of this part."""
        return {"sent": self._sent, "send_errors": self._errors}

    def send(self, store: Store, wait: float) -> None:
        """See `service.Publisher`."""
        until = time.monotonic() + wait
        while True:
            self._producer.poll(0)
            self._note(store)
            room = IN_FLIGHT - len(self._waiting)
            rows = store.unsent(IN_FLIGHT) if room > 0 else []
            for name, version, row in [r for r in rows if (r[0], r[1]) not in self._waiting][:room]:
                self._produce(name, version, row)
            left = until - time.monotonic()
            if left <= 0 or not self._waiting:
                break
            self._producer.flush(min(left, 1.0))
        self._note(store)

    def _note(self, store: Store) -> None:
        if self._delivered:
            store.mark_sent(self._delivered)  # if the store is locked, they are noted at the next call
            self._waiting -= set(self._delivered)
            self._delivered = []

    def _produce(self, name: Any, version: int, row: Mapping[str, Any]) -> None:
        key = f"{name}/{version}"
        filled = {k: v for k, v in row.items() if v is not None}
        value = json.dumps({"key": key, "object": name, "version": version, **filled}, default=_plain)

        def report(error: Any, _message: Any) -> None:
            if error is None:
                self._sent += 1
                self._delivered.append((name, version))
                return
            self._errors += 1
            self._waiting.discard((name, version))
            if self._errors == 1:
                self._say(f"a message to {self._topic} was not delivered ({error.str()}); it is sent again")

        try:
            self._producer.produce(self._topic, value.encode(), key.encode(), on_delivery=report)
        except BufferError:  # librdkafka's queue is full: it is sent with the next batch
            return
        self._waiting.add((name, version))

    def close(self) -> None:
        """Give messages on their way a second; what is not acknowledged is sent by the next run."""
        self._producer.flush(1.0)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


def _quiet() -> Any:
    """A logger for librdkafka's own lines: its errors reach the user through callbacks."""
    import logging

    logger = logging.getLogger("skysieve.alerts.librdkafka")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return logger
