"""Samples on the GPU: planes of bytes (or rows of float32) by channel, copied through pinned buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.gpu.runtime import Runtime
from skysieve.core.gpu.staging import Copier, Lane
from skysieve.core.gpu.structs import address
from skysieve.dedispersion.contract import REREAD, Packed, Resident, Room, Source

from .tensor_plan import FRONT, PACKAGE

if TYPE_CHECKING:
    from numpy.typing import NDArray

READ = 2**25
"""Bytes that are read and copied at a time."""
ROOMS = 4
"""Ranges of samples in page-locked memory: two are read while two are copied."""
ALIGN = REREAD
"""The number of the first sample of a kernel is a multiple of this."""
TAIL = 2048
"""Least bytes of a row after its samples: kernels read up to a piece beyond them, without using it."""
BUILDS = {"uint8": "u8", "int8": "i8", "uint16": "u16", "int16": "i16", "float32": "f32"}
"""Builds of ``load.cu``, by the type of the samples."""
OFFSETS = {"int8": 128, "int16": 32768}
"""Added to signed samples, so that unsigned bytes hold them."""
ROWS = np.dtype([("x", np.uint64), ("stride", np.int64), ("plane", np.int64), ("planes", np.int32)], align=True)
"""``struct Rows``."""


def planes_for(source: Source, downsamp: int) -> int:
    """Number of planes of bytes that hold sums of ``downsamp`` samples; 0 for float32."""
    if source.dtype.kind == "f":
        return 0
    top = source.maximum if source.dtype.kind == "u" and source.maximum else 256**source.dtype.itemsize - 1
    return (int(top * downsamp).bit_length() + 7) // 8


def row_stride(source: Source, samples: int, tail: int) -> int:
    """Elements from one row to the next."""
    front = 0 if source.dtype.kind == "f" else FRONT + 12
    return -(-(front + samples + max(tail, TAIL)) // 128) * 128


def bytes_of(source: Source, samples: int, downsamp: int, tail: int) -> int:
    """Bytes of the rows of one binning."""
    stride = row_stride(source, -(-samples // downsamp), tail)
    return source.nchan * stride * (planes_for(source, downsamp) or 4)


@dataclass
class Planes:
    """Rows of one binning on the device.

    Attributes
    ----------
    data : array
    stride, plane : int
        Elements from row to row, and from plane to plane.
    planes : int
        Planes of bytes; 0 for float32.
    first : int
        Binned sample at which the rows begin.
    """

    data: Any
    stride: int
    plane: int
    planes: int
    first: int = 0

    @property
    def struct(self) -> Any:
        """``struct Rows``."""
        s = np.zeros(1, ROWS)
        s["x"], s["stride"], s["plane"], s["planes"] = address(self.data), self.stride, self.plane, max(1, self.planes)
        return s[0]

    def part(self, i: int) -> Any:
        """Plane ``i`` from its first sample on."""
        return self.data if not self.planes else self.data[i * self.plane + FRONT :]


class Store:
    """The samples that are loaded on one GPU, and their binned copies."""

    def __init__(
        self, runtime: Runtime, source: Source, binnings: Sequence[int], capacity: int, tails: dict[int, int],
        lanes: Sequence[Lane], copier: Copier,
    ) -> None:  # fmt: skip
        self.runtime, self.source, self.lanes, self.copier = runtime, source, lanes, copier
        self.module = runtime.module(PACKAGE, "load.cu", BUILDS[source.dtype.name])
        self.bytes = runtime.module(PACKAGE, "turn.cu")
        self.offset = OFFSETS.get(source.dtype.name, 0)
        self.start = self.stop = 0
        self._orders: dict[bytes, Any] = {}
        self._pieces = 0
        self._ready: set[int] = set()
        self.piece = min(READ, max(1, capacity) * source.nchan * source.dtype.itemsize)
        for lane in lanes:  # now, so that an error for lack of memory comes before any work
            lane.reserve("piece", self.piece)
        self.planes = {b: self._allocate(b, capacity, tails.get(b, 0)) for b in sorted({1, *binnings})}

    def _allocate(self, downsamp: int, capacity: int, tail: int) -> Planes:
        stride = row_stride(self.source, -(-capacity // downsamp), tail)
        planes = planes_for(self.source, downsamp)
        plane = self.source.nchan * stride
        kind = np.uint8 if planes else np.float32
        return Planes(self.runtime.xp.empty(plane * max(1, planes), kind), stride, plane, planes)

    # ------------------------------------------------------------------ loading
    def begin(self, start: int, stop: int) -> int:
        """Begin to load samples ``start : stop``; returns how many of the first are loaded already."""
        self.wait()  # a load that failed may still copy
        have = 0
        if self.start <= start < self.stop:
            have = stop - start if stop <= self.stop else (self.stop - start) // ALIGN * ALIGN
            gone = start - self.start
            if gone and have:
                args = (np.int64(gone), np.int64(have), self.planes[1].struct)
                self.module.launch("keep", (self.source.nchan,), (256,), args, stream=self.lanes[0].stream)
                self.lanes[0].synchronize()
        self.start, self.stop = start, stop
        self._ready = {1}
        return have

    def put(
        self, rows: NDArray[Any] | Resident, order: NDArray[np.int64], column: int, room: Room | None = None
    ) -> None:
        """Copy samples x channels of the source to the rows, from ``column`` on."""
        if isinstance(rows, Resident):
            self.put_resident(rows, order, column)
            return
        lane = self.lanes[self._pieces % len(self.lanes)]
        self._pieces += 1
        lane.synchronize()
        n, channels = rows.shape
        by_time = channels == 1 or rows.strides[1] == rows.itemsize
        given = rows if by_time else rows.T
        with lane:
            piece = self._send(lane, given, room)
            self.turn(piece, n, channels, by_time, self._inverse(order), column, lane.stream)

    def room(self, number: int) -> Room:
        """Page-locked memory for a range of samples, which is used again `ROOMS` ranges later."""
        with self.lanes[0]:
            return Room(self.lanes[0].pinned(f"room {number % ROOMS}", self.piece, np.uint8))

    def put_host(
        self, piece: Packed | tuple[NDArray[Any], NDArray[np.int64]], column: int, room: Room | None = None
    ) -> None:
        """Copy packed samples, or an array and the order of its channels, to the rows, from ``column`` on.

        The copy of samples in ``room`` has ended when the second piece after them is put.
        """
        if isinstance(piece, Packed):
            self.put_packed(piece, column, room)
        else:
            self.put(*piece, column, room)

    def _send(self, lane: Lane, given: NDArray[Any], room: Room | None) -> Any:
        """Copy an array to the lane's buffer on the device: at once from ``room``, else through page-locked memory."""
        piece = lane.array("piece", given.size, given.dtype)
        if room is not None and given.flags.c_contiguous and room.holds(given):
            lane.to_device(piece, given.reshape(-1))
            return piece
        pinned = lane.pinned("piece", given.size, given.dtype)
        self.copier.copy([(pinned.reshape(given.shape), given)])
        lane.to_device(piece, pinned)
        return piece

    def equal_pairs(self, per: int, first: int, stride: int, pairs: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Count equal pairs of the loaded samples; see `clean.dropouts.CountRuns`."""
        lane, units = self.lanes[0], self.source.nchan // per
        with lane:
            runs = lane.array("runs", 4 * units, np.int32)
            many = lane.array("many", pairs, np.uint32)
            lane.clear(many)
            args = (
                self.planes[1].struct, np.int32(per), np.int64(first), np.int32(stride), np.int32(pairs), runs, many,
            )  # fmt: skip
            self.module.launch("runs", (units,), (256,), args, stream=lane.stream)
            on_host = lane.pinned("runs", runs.size, np.int32), lane.pinned("many", pairs, np.uint32)
            lane.to_host(on_host[0], runs)
            lane.to_host(on_host[1], many)
        lane.synchronize()
        return on_host[0].reshape(units, 4).copy(), on_host[1].astype(np.int32)

    def put_resident(self, rows: Resident, order: NDArray[np.int64], column: int) -> None:
        """Copy samples x channels that are on this GPU, or on another one, to the rows."""
        lane = self.lanes[self._pieces % len(self.lanes)]
        self._pieces += 1
        n, channels = rows.data.shape
        data, size = rows.data, rows.data.dtype.itemsize
        with lane:
            if rows.index != self.runtime.device.index:
                data, on_peer = lane.array("piece", n * channels, data.dtype).reshape(n, channels), rows.data
                if not on_peer.flags.c_contiguous:
                    with self.runtime.xp.cuda.Device(rows.index):
                        on_peer = self.runtime.xp.ascontiguousarray(on_peer)
                        self.runtime.xp.cuda.get_current_stream().synchronize()
                lane.from_peer(data, on_peer, rows.index)
                lane.synchronize()  # before the contiguous copy is freed
            ts, cs = (data.strides[0] // size, data.strides[1] // size)
            # kernels read words, and a view may begin anywhere
            by_time = cs == 1 and ts == channels and address(data) % 4 == 0
            strides = None if by_time else (ts, cs)
            self.turn(data, n, channels, by_time, self._inverse(order), column, lane.stream, strides)

    def put_packed(self, packed: Packed, column: int, room: Room | None = None) -> None:
        """Copy samples of fewer than 8 bits to the rows, from ``column`` on."""
        lane = self.lanes[self._pieces % len(self.lanes)]
        self._pieces += 1
        lane.synchronize()
        with lane:
            self.unpack(packed, self._send(lane, packed.data, room), column, lane.stream)

    def unpack(self, packed: Packed, piece: Any, column: int, stream: Any = None) -> None:
        """Unpack samples of fewer than 8 bits, which are in ``piece`` on the device, to the rows."""
        n, stride = packed.data.shape
        args = (
            piece, np.int32(n), np.int32(stride), np.int32(self.source.nchan), np.int32(packed.bits),
            np.int32(packed.high_first), np.int32(packed.down), np.int64(column), self.planes[1].struct,
        )  # fmt: skip
        self.bytes.launch("unpack", (-(-n // 32), -(-stride // 32)), (256,), args, stream=stream)

    def turn(
        self, piece: Any, n: int, channels: int, by_time: bool, inverse: Any, column: int, stream: Any = None,
        strides: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        """Transpose a piece on the device; ``strides`` are elements from sample to sample and channel to channel."""
        to = self.planes[1]
        if by_time and self.source.dtype.itemsize == 1 and channels % 4 == 0 and column % 4 == 0:
            flip = np.uint32(0x80808080 if self.offset else 0)
            four = (piece, np.int32(n), np.int32(channels), inverse, np.int64(column), flip, to.struct)
            self.bytes.launch("turn4", (-(-n // 128), -(-channels // 128)), (256,), four, stream=stream)
            return
        ts, cs = strides or ((channels, 1) if by_time else (1, n))
        given = piece if strides is None else np.uint64(address(piece))
        args = (
            given, np.int64(ts), np.int64(cs), np.int32(n), np.int32(channels), inverse, np.int64(column),
            np.int32(self.offset), to.struct,
        )  # fmt: skip
        self.module.launch("turn", (-(-n // 32), -(-channels // 32)), (256,), args, stream=stream)

    def fill(self, cells: NDArray[Any]) -> None:
        """Fill masked cells, each (row, first column, last + 1, value)."""
        self.wait()
        real = self.source.dtype.kind == "f"
        kind = [
            ("row", np.int32),
            ("first", np.int32),
            ("last", np.int32),
            ("value", np.float32 if real else np.uint32),
        ]
        given = np.empty(len(cells), kind)
        for i, name in enumerate(("row", "first", "last", "value")):
            given[name] = cells[:, i] + (self.offset if name == "value" else 0)
        lane = self.lanes[0]
        with lane:
            held = self.runtime.xp.asarray(given.view(np.int32))
            args = (held, np.int32(len(given)), np.int64(0), self.planes[1].struct)
            self.module.launch("fill", (min(len(given), 65535),), (256,), args, stream=lane.stream)
        lane.synchronize()

    def wait(self) -> None:
        """Wait until every piece is in the rows."""
        for lane in self.lanes:
            lane.synchronize()

    def rows(self, downsamp: int) -> Planes:
        """Rows of a binning; their ``first`` is the binned sample at which they begin."""
        to = self.planes[downsamp]
        to.first = -(-self.start // downsamp)
        if downsamp not in self._ready:
            count = self.stop // downsamp - to.first
            skipped = to.first * downsamp - self.start
            args = (
                self.planes[1].struct, np.int64(skipped), np.int32(downsamp), np.int64(count), to.struct,
            )  # fmt: skip
            grid = (max(1, min(1024, -(-count // 256))), self.source.nchan)
            self.module.launch("bin", grid, (256,), args, stream=self.lanes[0].stream)
            self.lanes[0].synchronize()
            self._ready.add(downsamp)
        return to

    def _inverse(self, order: NDArray[np.int64]) -> Any:
        """The row of each channel of the source."""
        key = order.tobytes()
        if key not in self._orders:
            inverse = np.empty(len(order), np.int32)
            inverse[order] = np.arange(len(order), dtype=np.int32)
            self._orders[key] = self.runtime.xp.asarray(inverse)
            self.runtime.synchronize()  # every lane uses it
        return self._orders[key]
