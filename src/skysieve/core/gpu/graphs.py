"""Recorded launches (CUDA graphs): work that a lane repeats is recorded once, and then started by one call."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from .staging import Lane

__all__ = ["Recording", "Recordings"]


@dataclass
class Recording:
    """Work that a lane has been given before; subclasses add the data that are needed to reuse its buffers.

    Attributes
    ----------
    generation : int
        The lane's `Lane.generation` after the work: once a buffer has moved, the recording is useless.
    replay : callable or None
        Starts the work; None until it has been recorded (`Lane.record`).
    """

    generation: int
    replay: Callable[[], None] | None = field(default=None, kw_only=True)


R = TypeVar("R", bound=Recording)


class Recordings(Generic[R]):
    """The recordings of several lanes, each found by a key; work with an equal key can use the recording.

    Parameters
    ----------
    most : int
        Largest number of recordings of one lane; the oldest are dropped to make room for others.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._known: dict[Lane, dict[Hashable, R]] = {}

    def find(self, lane: Lane, key: Hashable) -> R | None:
        """Return the lane's recording of `key`; None if there is none, or if a buffer has moved since."""
        found = self._known.get(lane, {}).get(key)
        return found if found is not None and found.generation == lane.generation else None

    def make_room(self, lane: Lane, most: int | None = None) -> list[R]:
        """Drop recordings so that, with another one, the lane has at most `most`; return the remaining ones.

        Recordings whose buffers have moved go first, then the oldest.
        """
        known = self._known.setdefault(lane, {})
        for key in [key for key, recording in known.items() if recording.generation != lane.generation]:
            del known[key]
        while len(known) >= (self.most if most is None else most):
            del known[next(iter(known))]
        return list(known.values())

    def keep(self, lane: Lane, key: Hashable, recording: R) -> R:
        """Keep a recording, and return it."""
        self._known.setdefault(lane, {})[key] = recording
        return recording

    def of(self, lane: Lane) -> list[R]:
        """Return the lane's recordings, oldest first."""
        return list(self._known.get(lane, {}).values())

    def forget(self, lane: Lane) -> None:
        """Drop a lane's recordings."""
        self._known.pop(lane, None)

    def clear(self) -> None:
        """Drop all recordings."""
        self._known.clear()
