"""Packets on their way from a source to the search: read and decoded in a thread, taken in batches."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .packets import Packets
    from .store import Place

__all__ = ["Intake", "Source", "Unit"]


@dataclass(frozen=True)
class Unit:
    """The unit in which a source delivers packets: a block of a file, or a message.

    Attributes
    ----------
    place : Place
        The partition or file.
    at, following : int
        Its position in the partition or file, and that of the next unit.
    mark : str
        Distinguishes the file from others of the same name.
    packets : Packets
    arrived : float
        When it arrived, in seconds since 1970.
    at_once : bool
        Whether the position must be stored without delay.
    """

    place: Place
    at: int
    following: int
    mark: str
    packets: Packets
    arrived: float
    at_once: bool = False


class Source(Protocol):
    """A source of packets."""

    def units(self, places: Callable[[], Mapping[Place, tuple[int, str]]], stop: threading.Event) -> Iterator[Unit]:
        """Deliver units from the positions in the store on, until the end or `stop`; repeated units do no harm."""

    @property
    def fault(self) -> str:
        """The present fault; "" if there is none."""

    def counts(self) -> dict[str, float]:
        """Metrics of this part."""


class Intake:
    """Reads a source in a thread.

    Parameters
    ----------
    source : Source
    places : callable
        Returns the places that the store holds.
    most : int
        Number of waiting packets at which reading pauses.
    """

    def __init__(self, source: Source, places: Callable[[], Mapping[Place, tuple[int, str]]], most: int) -> None:
        self._source, self._places, self._most = source, places, most
        self._units: deque[Unit] = deque()
        self._packets = 0
        self._at_once = False
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._ended = False
        self._pool = ThreadPoolExecutor(1, "skysieve-alerts-intake")
        self._reading = self._pool.submit(self._run)

    @property
    def fault(self) -> str:
        """The present fault of the source; "" if there is none."""
        return self._source.fault

    def counts(self) -> dict[str, float]:
        """Metrics of the source, and the number of packets that wait."""
        return {**self._source.counts(), "waiting": self._packets}

    def _run(self) -> None:
        try:
            for unit in self._source.units(self._places, self._stop):
                with self._changed:
                    self._units.append(unit)
                    self._packets += max(1, len(unit.packets.objects))
                    self._at_once |= unit.at_once
                    self._changed.notify_all()
                    while self._packets >= self._most and not self._stop.is_set():
                        self._changed.wait(0.5)
                if self._stop.is_set():
                    break
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def take(self, seconds: float, enough: int) -> list[Unit] | None:
        """The units that wait, after `seconds` or as soon as there are `enough` packets; None after the last.

        Raises
        ------
        Exception
            The error that ended the source, after all that it delivered was taken.
        """
        until = time.monotonic() + seconds
        with self._changed:
            while not (self._ended or self._at_once) and self._packets < enough:
                if (left := until - time.monotonic()) <= 0:
                    break
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
            taken, self._packets, self._at_once = list(self._units), 0, False
            self._units.clear()
            self._changed.notify_all()
            if not taken and self._ended:
                self._reading.result(timeout=60)
                return None
        return taken

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        self._pool.shutdown()
