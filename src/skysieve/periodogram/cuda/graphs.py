"""Launches of chunks, recorded: what a lane keeps of them, and in which of its buffers their rows lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skysieve.core.arrays import is_device_array
from skysieve.core.gpu.staging import Lane

from . import structs as cs
from .parts import Part

MOST = 4
"""Launches that a lane keeps recorded at once, each with rows of its own: chunks of one `execute` take turns on it."""
MOST_ROWS = 1 << 18
"""Rows of a chunk up to which it does; longer ones take far longer than their launch."""


@dataclass
class Recorded:
    """A launch on a lane, as one graph once it has come twice.

    ``parts`` stay alive, since what the launch serves is told by their identity.  ``data``: the lane's buffer of its
    rows and small arrays.  ``rows``: for each array of rows, where it goes on the device, and its pinned bytes on the
    way; ``whole``: all of them.
    """

    generation: int
    parts: list[Part]
    data: str
    replay: Callable[[], None] | None = None
    rows: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    whole: tuple[Any, Any] | None = None
    results: dict[str, NDArray[Any]] = field(default_factory=dict)

    def place(self, lane: Lane, host: dict[str, Any]) -> None:
        """Note where rows of the host are expected; the small arrays are there since the launch before."""
        places, total = places_of(host)
        device, pinned = lane.array(self.data, total, np.uint8), lane.pinned(self.data, total, np.uint8)
        for name, p in places.items():
            at = slice(p, p + host[name].nbytes)
            self.rows[name] = device[at], pinned[at]
        self.whole = device, pinned


class Launches:
    """The launches that the lanes of a worker know, by what they serve."""

    def __init__(self) -> None:
        self._known: dict[int, dict[tuple[Any, ...], Recorded]] = {}

    def known(self, lane: Lane, key: tuple[Any, ...]) -> Recorded | None:
        """The lane's launch for this key, if there is one and no buffer has moved since."""
        found = self._known.get(id(lane), {}).get(key)
        return found if found is not None and found.generation == lane.generation else None

    def room(self, lane: Lane, rows: int) -> str:
        """Name of the lane's buffer for another launch: none's that stays known."""
        mine = self._known.setdefault(id(lane), {})
        for key, launch in list(mine.items()):
            if launch.generation != lane.generation:
                del mine[key]
        while len(mine) >= (MOST if rows <= MOST_ROWS else 1):
            del mine[next(iter(mine))]  # the oldest
        taken = {launch.data for launch in mine.values()}
        return next(name for name in (f"data{i}" for i in range(MOST)) if name not in taken)

    def keep(self, lane: Lane, key: tuple[Any, ...], launch: Recorded) -> None:
        """Know a launch from now on."""
        self._known[id(lane)][key] = launch

    def last(self, lane: Lane) -> Recorded:
        """The lane's newest launch."""
        return list(self._known[id(lane)].values())[-1]

    def forget(self, lane: Lane) -> None:
        """Know none of a lane's."""
        self._known.pop(id(lane), None)


def gathered(a: Any) -> bool:
    """Are these rows of a chunk on the device, and so many that no launch is kept for each place where they may lie?

    They are copied to where the launch looks that serves every chunk: 20 us for a million rows, which take 2 ms.
    """
    return is_device_array(a) and a.size > MOST_ROWS


def place_of(rows: Any) -> int:
    """Where a launch reads rows: the address of those that stay on the device where they are, below 2 for others."""
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
