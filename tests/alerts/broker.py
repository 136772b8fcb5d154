"""librdkafka's mock cluster in a process of its own: ``python broker.py`` prints the brokers and ends with its input.

It keeps the last few megabytes of each partition and forgets everything when it ends.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class Broker:
    """The process of the mock cluster, with methods that send, read and pause."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        assert self.address

    def send(self, topic: str, messages: Iterable[bytes], partition: int | None = None) -> None:
        """Send messages to one partition, or to all in turn."""
        from confluent_kafka import Producer

        producer, failed = Producer({"bootstrap.servers": self.address}), []
        for i, message in enumerate(messages):
            producer.produce(
                topic, message, partition=i % 4 if partition is None else partition,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )  # fmt: skip
        assert producer.flush(20) == 0
        assert failed == []

    def read(self, topic: str, n: int, seconds: float = 30.0) -> list[tuple[bytes, bytes]]:
        """Keys and values of the first `n` messages of a topic, sorted."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.address, "group.id": "reader", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, k, OFFSET_BEGINNING) for k in range(4)])
        found: list[tuple[bytes, bytes]] = []
        until = time.monotonic() + seconds
        while len(found) < n and time.monotonic() < until:
            found += [(m.key(), m.value()) for m in consumer.consume(100, 0.2) if m.error() is None]
        found += [(m.key(), m.value()) for m in consumer.consume(100, 0.5) if m.error() is None]
        consumer.close()
        return sorted(found)

    def pause(self) -> None:
        """The brokers stop answering until `go_on`."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def main() -> None:
    from confluent_kafka import Producer

    options: dict[str, Any] = {"test.mock.num.brokers": 2, "bootstrap.servers": "mock", "log_level": 0}
    cluster = Producer(options)
    print(",".join(f"{b.host}:{b.port}" for b in cluster.list_topics(timeout=10).brokers.values()), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
