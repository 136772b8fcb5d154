"""Buffers and kernels' structs that are used again for the next chunks of a lane, even if their objects are new.

The host works on a chunk of new objects for as long as the GPU does, and so limits the speed.  If the buffers are large
enough for the next chunk, their addresses do not change.  The kernels' structs are then not filled again; only a few
numbers of each are changed (`DeviceChunk.struct`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skysieve.core.gpu.staging import Lane
from skysieve.core.gpu.structs import Place

from . import structs as cs
from .graphs import padded
from .methods import DeviceChunk, Sizes

if TYPE_CHECKING:
    from .chunks import ChunkJob

MOST_PARTS = 6
"""Parts of a chunk that a room has places for."""
_SLOT = 256
"""Bytes of an array of one grid."""


class Room:
    """Buffers of a lane for chunks whose objects share a grid, up to given numbers of objects, rows and candidates.

    Attributes
    ----------
    chunk : DeviceChunk
        The buffers; `load` gives it the next job.
    moves : int
        The lane's `Lane.moves` after the last launch: when a buffer has moved since, the room is useless.
    """

    def __init__(self, lane: Lane, name: str, job: ChunkJob, sizes: Sizes) -> None:
        """``name`` is that of the lane's buffers of small arrays."""
        self.lane, self.moves, n = lane, -1, sizes.objects
        kinds: dict[str, tuple[int, Any]] = {
            "offsets": (n + 1, np.int32), "f0": (1, np.float64), "df": (1, np.float64), "nf": (1, np.int32),
            "limit": (n * cs.LIMIT.itemsize // 8, np.int64), "order": (n, np.int32), "place": (n, np.int64),
        }  # fmt: skip
        small = {"lead": np.float64, "at": np.int32, "bands": np.int32}
        kinds |= {f"{k}{i}": (_SLOT // 8, kind) for i in range(MOST_PARTS) for k, kind in small.items()}
        total = sum(padded(size * np.dtype(kind).itemsize) for size, kind in kinds.values())
        self._whole, place, at = lane.pinned(name, total, np.uint8), lane.place(name, total, np.uint8), 0
        self._device: Any = lane.array(name, total, np.uint8) if lane.xp is np else place
        start = place.pointer
        self._host: dict[str, NDArray[Any]] = {}
        data: dict[str, Any] = {"start": None}
        for field, (size, kind) in kinds.items():
            self._host[field] = np.frombuffer(self._whole, kind, size, at)
            data[field] = Place(start + at, size, self._host[field].itemsize)
            at += padded(self._host[field].nbytes)
        self._limits = self._host["limit"].reshape(n, -1)
        self.chunk = DeviceChunk(lane, job, data, None, {}, None, None, sizes=sizes)

    def fits(self, job: ChunkJob) -> bool:
        """Whether no buffer has moved, and all are large enough for a job."""
        return self.moves == self.lane.moves and self.chunk.sizes.hold(Sizes.of(job))

    def load(self, job: ChunkJob, rows: dict[str, Any], multiprocessors: int, send: bool) -> None:
        """Give the room to a job, whose ``rows`` are on the device; ``send`` copies the small arrays there."""
        chunk, host, data, n, first = self.chunk, self._host, self.chunk.data, job.n_objects, 0
        order, place = data["order"].pointer, data["place"].pointer
        chunk.job = job
        chunk.cuts = []
        chunk.prepared.clear()
        data.update(rows)
        host["offsets"][: n + 1] = job.offsets
        host["f0"][0], host["df"][0], host["nf"][0] = job.f0[0], job.df[0], job.nf[0]
        self._limits[:n] = job.limits.view(np.int64).reshape(n, -1)
        for i, part in enumerate(job.parts):
            stop = first + len(part.order)
            host["order"][first:stop] = part.order
            cut, arrays = part.method.small_arrays(job, i, multiprocessors)
            for name, a in arrays.items():
                if a is None:
                    data[name] = None
                elif name in host:
                    host[name][: a.size] = a.ravel()
                else:
                    host["place"][first:stop] = a
            data[f"order{i}"], data[f"place{i}"], data[f"tasks{i}"] = order + 4 * first, place + 8 * first, None
            chunk.cuts.append(cut)
            first = stop
        if send:
            self.lane.to_device(self._device, self._whole)
