"""Recorded launches of chunks: what a lane remembers of them, and in which of its buffers their rows are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skysieve.core.arrays import is_device_array
from skysieve.core.gpu.staging import Lane

from . import structs as cs
from .parts import MethodPart

MOST = 4
"""Recorded launches that a lane holds at once, each with its own rows: chunks of one `execute` take turns on a lane."""
MOST_ROWS = 1 << 18
"""Most rows of a chunk for which a lane holds several; the work of longer chunks takes far longer than their launch."""


@dataclass
class Recorded:
    """A launch on a lane, which is recorded as one graph when it comes a second time.

    ``parts`` stay alive, because their identity is part of the launch's key.  ``data``: the lane's buffer of its rows
    and small arrays.  ``rows``: for each array of rows, its place on the device and its pinned buffer on the host;
    ``whole``: these of all arrays together.
    """

    generation: int
    parts: list[MethodPart]
    data: str
    replay: Callable[[], None] | None = None
    rows: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    whole: tuple[Any, Any] | None = None
    results: dict[str, NDArray[Any]] = field(default_factory=dict)

    def place(self, lane: Lane, host: dict[str, Any]) -> None:
        """Note where rows of the host are expected; the launch before has uploaded the small arrays."""
        places, total = places_of(host)
        device, pinned = lane.array(self.data, total, np.uint8), lane.pinned(self.data, total, np.uint8)
        for name, p in places.items():
            at = slice(p, p + host[name].nbytes)
            self.rows[name] = device[at], pinned[at]
        self.whole = device, pinned


class Launches:
    """The launches that the lanes of a worker remember, by their keys."""

    def __init__(self) -> None:
        self._known: dict[int, dict[tuple[Any, ...], Recorded]] = {}

    def known(self, lane: Lane, key: tuple[Any, ...]) -> Recorded | None:
        """The lane's launch for this key, if there is one and no buffer has moved since."""
        found = self._known.get(id(lane), {}).get(key)
        return found if found is not None and found.generation == lane.generation else None

    def room(self, lane: Lane, rows: int) -> str:
        """Name of a buffer of the lane that no remembered launch uses, for another launch."""
        mine = self._known.setdefault(id(lane), {})
        for key, launch in list(mine.items()):
            if launch.generation != lane.generation:
                del mine[key]
        while len(mine) >= (MOST if rows <= MOST_ROWS else 1):
            del mine[next(iter(mine))]  # the oldest
        taken = {launch.data for launch in mine.values()}
        return next(name for name in (f"data{i}" for i in range(MOST)) if name not in taken)

    def keep(self, lane: Lane, key: tuple[Any, ...], launch: Recorded) -> None:
        """Remember a launch."""
        self._known[id(lane)][key] = launch

    def last(self, lane: Lane) -> Recorded:
        """The lane's newest launch."""
        return list(self._known[id(lane)].values())[-1]

    def forget(self, lane: Lane) -> None:
        """Forget the launches of a lane."""
        self._known.pop(id(lane), None)


def gathered(a: Any) -> bool:
    """Are these rows of a chunk on the device, and so many that one recorded launch serves all chunks?

    They are copied to the place where that launch reads: 20 us for a million rows, whose search takes 2 ms.
    """
    return is_device_array(a) and a.size > MOST_ROWS


def place_of(rows: Any) -> int:
    """Where a launch reads rows: their address if it reads them in place, otherwise 0 (host) or 1 (`gathered`)."""
    if not is_device_array(rows):
        return 0
    return 1 if gathered(rows) else cs.address(rows)


def places_of(arrays: dict[str, Any]) -> tuple[dict[str, int], int]:
    """First byte of each array in a common buffer, and the buffer's size."""
    places, total, end = {}, 0, 0
    for name, a in arrays.items():
        places[name], end = total, total + a.nbytes
        total += -(-a.nbytes // 256) * 256
    return places, end


def bytes_of(a: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of an array, in a row."""
    return a.reshape(-1).view(np.uint8)
