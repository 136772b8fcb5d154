"""Recorded launches of chunks, and the buffers of a lane that hold their rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skysieve.core.arrays import is_device_array
from skysieve.core.gpu.graphs import Recording, Recordings
from skysieve.core.gpu.staging import Lane
from skysieve.core.gpu.structs import address

from .parts import MethodPart

MOST = 4
"""Recorded launches that a lane holds at once, each with its own rows: chunks of one `execute` take turns on a lane."""
MOST_ROWS = 1 << 18
"""Most rows of a chunk for which a lane holds several; the work of longer chunks takes far longer than their launch."""


@dataclass
class Recorded(Recording):
    """A launch of a chunk on a lane.

    ``parts`` must stay alive: the launch is recognised by their identity.  ``data`` names the lane's buffer of the
    rows and small arrays.  ``rows`` holds, for each array of rows, its place on the device and in pinned memory;
    ``whole`` holds all of both buffers.
    """

    parts: list[MethodPart]
    data: str
    rows: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    whole: tuple[Any, Any] | None = None
    results: dict[str, NDArray[Any]] = field(default_factory=dict)

    def place(self, lane: Lane, host: dict[str, Any]) -> None:
        """Store the places for rows from the host; the launch before has uploaded the small arrays."""
        total = room_of(host)
        device, pinned = lane.array(self.data, total, np.uint8), lane.pinned(self.data, total, np.uint8)
        self.rows.update({name: (device[at], pinned[at]) for name, at in slices_of(host).items()})
        self.whole = device, pinned


class Launches(Recordings[Recorded]):
    """The recorded launches of a worker's lanes, each with a buffer of its own for the rows."""

    def __init__(self) -> None:
        super().__init__(MOST)

    def room(self, lane: Lane, rows: int) -> str:
        """Drop recordings to make room for another one of `rows` rows; return the name of a buffer that is free."""
        taken = {launch.data for launch in self.make_room(lane, MOST if rows <= MOST_ROWS else 1)}
        return next(name for name in (f"data{i}" for i in range(MOST)) if name not in taken)


def gathered(a: Any) -> bool:
    """Whether these rows of a chunk are on the device, and so many that one recorded launch serves all chunks.

    Such rows are copied to the place that the launch reads: 20 us for a million rows, whose search takes 2 ms.
    """
    return is_device_array(a) and a.size > MOST_ROWS


def place_of(rows: Any) -> int:
    """Where a launch reads rows: their address if it reads them in place, otherwise 0 (host) or 1 (`gathered`)."""
    if not is_device_array(rows):
        return 0
    return 1 if gathered(rows) else address(rows)


def padded(nbytes: int) -> int:
    """Bytes from an array in a common buffer to the next one."""
    return -(-nbytes // 256) * 256


def room_of(arrays: dict[str, Any]) -> int:
    """Size of a common buffer of arrays."""
    return sum([padded(a.nbytes) for a in arrays.values()])


def slices_of(arrays: dict[str, Any]) -> dict[str, slice]:
    """Where the bytes of each array lie in a common buffer."""
    slices, start = {}, 0
    for name, a in arrays.items():
        slices[name] = slice(start, start + a.nbytes)
        start += padded(a.nbytes)
    return slices


def bytes_of(a: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of an array, in a row."""
    return a.reshape(-1).view(np.uint8)
