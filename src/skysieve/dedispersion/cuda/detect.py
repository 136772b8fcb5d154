"""Detection of events in series on the GPU (``baseline.cu``, ``search.cu``, ``glance.cu``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.gpu.runtime import Runtime
from skysieve.core.gpu.staging import Lane
from skysieve.core.gpu.structs import address
from skysieve.dedispersion.contract import UNIT, Detection, check_events, sorted_events, sum_dtype

from .tensor_plan import PACKAGE

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROOM = 1 << 16
"""Number of events for which memory is allocated at first."""
BUILDS = {"u": "u32", "i": "i32", "f": "f32"}
"""Builds of the kernels, by the kind of the sums."""
NOISE_BYTES = 4 * (8192 + 512)
"""Bytes of shared memory of the kernel ``noise``: counts, or partial sums."""
SHORT = 12
"""Windows of fewer samples are examined one by one."""
DENSE = (1, 2, 3, 4, 5, 6, 8, 10)
"""Widths below `SHORT` for which the kernel has special code."""
MOST_KEPT = 160 * 1024
"""Most bytes of shared memory for the samples of a block."""
GLANCE = {"block": 32_736, "widest": 1024, "widths": 64, "least": 4 * (8192 + 512), "counts": 4 * (4096 + 8)}
"""Limits of the kernel ``glance``: samples of a block, widest window, number of widths; and bytes of its shared memory:
the least, and those for counts."""
LONG = 20_000
"""Unsigned samples of a block from which the kernel ``glance`` uses 512 threads."""
PIECES = 16
"""Blocks of threads for each multiprocessor that examine the pieces on a list."""
PARTS_WARPS, PARTS_MARGIN = 8, 22
"""Of ``baseline.cu``: parts of a block of threads; room in shared memory beside 5 times the means of 3 blocks."""
EDGES = 4
"""Edges of noise blocks that a block of threads examines."""
EVENT = np.dtype([("row", np.int32), ("column", np.int32), ("width", np.int32), ("snr", np.float32)])
JOB = np.dtype(
    [
        ("pitch", np.int64), ("rows", np.int32), ("columns", np.int32), ("block", np.int32), ("blocks", np.int32),
        ("noise", np.int32), ("every", np.int32), ("low", np.int32), ("high", np.int32), ("segment", np.int32),
        ("look", np.int32), ("widths", np.int32), ("widest", np.int32), ("room", np.int32), ("shorter", np.int32),
        ("dense", np.int32), ("kept", np.int32), ("subs", np.int32),
        ("smaller", np.int32), ("pairs", np.int32), ("region", np.int32), ("parts", np.int32),
        ("threshold", np.float32), ("dip", np.float32),
    ],
    align=True,
)  # fmt: skip
"""``struct Job``."""


@dataclass(frozen=True)
class Search:
    """The arguments that all launches of a search share: the struct ``Job``, and arrays on the device.

    Attributes
    ----------
    job : numpy.ndarray of JOB, shape (1,)
    what : Detection
    constants : tuple
        Widths, their scales, and by width the sums that reach the threshold: of fixed-point samples, and in sigma
        before they are rounded.
    held : array
        Columns of every series.
    number : array
        The number of events and the number of pieces on the list.
    levels : array
        Level and scale of every block.
    means : array
        Means of the parts of every block, for the baseline.
    lists : tuple
        Pieces that are flagged, and marks of blocks.
    found : array
        Events.
    """

    job: NDArray[Any]
    what: Detection
    constants: tuple[Any, ...]
    held: Any
    number: Any
    levels: Any
    means: Any
    lists: tuple[Any, Any]
    found: Any

    @property
    def parts(self) -> tuple[Any, ...]:
        """All attributes, in order."""
        return (
            self.job, self.what, self.constants, self.held, self.number, self.levels, self.means, self.lists, self.found
        )  # fmt: skip


class Detector:
    """Noise and boxcars of one type of sums on one GPU.

    Parameters
    ----------
    runtime : Runtime
    kind : str
        Kind of the sums: "u", "i" or "f".
    narrow : bool
        Whether the samples that were summed have 8 bits, so that the sums of a block rarely spread over 16 bits.
    """

    def __init__(self, runtime: Runtime, kind: str, narrow: bool) -> None:
        self.runtime, self.narrow = runtime, narrow and kind != "f"
        self.module = runtime.module(PACKAGE, "search.cu", BUILDS[kind])
        self.kind = kind
        self._constants: dict[Any, tuple[Any, ...]] = {}
        self._valid: dict[int, tuple[int, bytes]] = {}

    def begin(
        self, lane: Lane, pitch: int, valid: NDArray[np.int64], count: int, low: int, high: int, what: Detection
    ) -> Search:
        """Copy the arguments to the device, after the kernel that sums the series; the host does not wait."""
        rows, widest = len(valid), what.widths[-1]
        j = np.zeros(1, JOB)
        j["pitch"], j["rows"], j["columns"] = pitch, rows, count
        j["block"], j["blocks"] = what.block, -(-count // what.block)
        j["noise"], j["every"], j["low"], j["high"] = what.noise_code, what.every, low, high
        j["look"], j["widths"], j["widest"] = max(1, widest // 2), len(what.widths), widest
        j["parts"] = what.parts
        j["segment"], j["threshold"] = 4080 if widest <= 1024 else 1024, what.threshold
        j["shorter"] = sum(w < SHORT for w in what.widths)
        j["dip"] = what.dip
        j["dense"] = what.widths[: len(DENSE)] == DENSE and int(j["shorter"][0]) == len(DENSE) and widest >= 32
        kept = NOISE_BYTES + 4 * what.block
        j["kept"] = kept <= min(self.runtime.device.shared_per_block - 1024, MOST_KEPT)
        if self._glances(what, bool(j["dense"][0])):
            j["subs"] = -(-what.block // int(j["segment"][0])) + 1
            j["smaller"] = sum(w < 32 for w in what.widths)
            j["pairs"], j["region"] = glance_room(what)
        key = (what.widths, what.threshold)
        with lane:
            if key not in self._constants:
                widths = np.array(what.widths, np.int32)
                scales = (1 / (UNIT * np.sqrt(widths.astype(np.int64)))).astype(np.float32)
                reached = sums_reached(scales, what.threshold)
                given = widths, scales, reached, (reached - 0.501 * widths) / UNIT
                self._constants = {key: tuple(self.runtime.xp.asarray(a) for a in given)}
                self.runtime.synchronize()
            held = self._columns(lane, valid)
            number = lane.array("number", 2, np.uint32)
            lane.clear(number)
            levels = lane.array("levels", 2 * rows * int(j["blocks"][0]), np.float64)
            means = lane.array("means", max(1, rows * int(j["blocks"][0]) * what.parts), np.float64)
            listed = lane.array("flagged", max(1, rows * int(j["blocks"][0] * j["subs"][0])), np.uint32)
            marks = lane.array("marks", rows * int(j["blocks"][0]), np.uint32)
            found = lane.array("events", 4 * ROOM, np.int32)
        return Search(j, what, self._constants[key], held, number, levels, means, (listed, marks), found)

    def _columns(self, lane: Lane, valid: NDArray[np.int64]) -> Any:
        """The columns of every series on the device.

        They are copied only if they differ from those of the last search, because a copy waits for the copies of
        samples on all streams.
        """
        held = lane.array("valid", len(valid), np.int32)
        content = address(held), valid.tobytes()
        if self._valid.get(id(lane)) != content:
            pinned = lane.pinned("valid", len(valid), np.int32)
            pinned[:] = valid
            lane.to_device(held, pinned)
            self._valid[id(lane)] = content
        return held

    def _glances(self, what: Detection, dense: bool) -> bool:
        """Whether the kernel ``glance`` can select the pieces that are examined."""
        widest = what.widths[-1]
        fits = glance_bytes(what) <= self.runtime.device.shared_per_block - 2048
        known = 4 * widest <= what.block <= GLANCE["block"] and widest <= GLANCE["widest"]
        few = len(what.widths) <= GLANCE["widths"]
        return self.narrow and dense and fits and known and few and what.noise == "robust" and what.threshold > 0

    def start(self, lane: Lane, sums: Any, search: Search) -> None:
        """Launch all kernels that look for events in series; column 0 begins a noise block."""
        j, what, constants, held, number, levels, means, lists, found = search.parts
        rows, blocks, subs = (int(j[name][0]) for name in ("rows", "blocks", "subs"))
        widths, _, reached, needed = constants
        args: tuple[Any, ...]
        grid: tuple[int, ...]
        with lane:
            if what.parts:
                line = self.runtime.module(PACKAGE, "baseline.cu", BUILDS[self.kind])
                grid = (-(-blocks * what.parts // PARTS_WARPS), rows)
                line.launch("parts", grid, (32 * PARTS_WARPS,), (sums, held, means, j[0]), stream=lane.stream)
                shared = 8 * (15 * what.parts + PARTS_MARGIN)
                args = (sums, held, means, levels, j[0])
                line.launch("baseline", (blocks, rows), (128,), args, shared_mem=shared, stream=lane.stream)
            if subs:
                args = (sums, held, levels, widths, reached, needed, *lists, number, j[0])
                shared, long = glance_bytes(what), what.block > LONG and self.kind == "u"
                first = self.runtime.module(PACKAGE, "glance.cu", BUILDS[self.kind] + ("-long" if long else ""))
                block = (512 if long else 256,)
                first.launch("glance", (blocks, rows), block, args, shared_mem=shared, stream=lane.stream)
                if blocks > 1:
                    shared = EDGES * 4 * 2 * what.widths[-1]
                    grid = (-(-rows * (blocks - 1) // EDGES),)
                    first.launch("edges", grid, (32 * EDGES,), args, shared_mem=shared, stream=lane.stream)
            else:
                shared = NOISE_BYTES + (4 * what.block if j["kept"][0] else 0)
                args = (sums, held, levels, j[0])
                self.module.launch("noise", (blocks, rows), (512,), args, shared_mem=shared, stream=lane.stream)
        self._detect(lane, sums, search, found, ROOM)

    def _detect(self, lane: Lane, sums: Any, search: Search, found: Any, room: int) -> None:
        """Examine the pieces exactly, and start to copy the number of events to the host."""
        j, what, constants, held, number, levels, _, lists, _ = search.parts
        rows, blocks, subs, segment = (int(j[name][0]) for name in ("rows", "blocks", "subs", "segment"))
        widths, scales, reached, _ = constants
        pieces = rows * -(-int(j["high"][0] - j["low"][0]) // segment)
        if subs:
            pieces = min(rows * blocks * subs, PIECES * self.runtime.device.sm_count)
        j["room"] = room
        shared = 4 * (2 * (segment + 2 * int(j["look"][0])) + what.widths[-1] + 40 + 16)
        args = (sums, held, levels, widths, scales, reached, lists[0], found, number, j[0])
        with lane:
            self.module.launch("detect", (pieces,), (256,), args, shared_mem=shared, stream=lane.stream)
            lane.to_host(lane.pinned("number", 1, np.uint32), number[:1])

    def finish(self, lane: Lane, sums: Any, search: Search) -> NDArray[np.float64]:
        """Wait for the events: (row, column, index of the width, S/N), sorted by row and column."""
        found, room = search.found, ROOM
        while True:
            lane.synchronize()
            n = int(lane.pinned("number", 1, np.uint32)[0])
            check_events(n, search.what)
            if n <= room:
                break
            room = n
            with lane:
                found = lane.array("events", 4 * room, np.int32)
                lane.clear(search.number[:1])
            self._detect(lane, sums, search, found, room)
        if not n:
            return np.empty((0, 4))
        with lane:
            on_host = lane.pinned("events", 4 * n, np.int32)
            lane.to_host(on_host, found[: 4 * n])
            lane.synchronize()
        events = on_host.view(EVENT)
        return sorted_events(
            np.stack([events[name].astype(np.float64) for name in ("row", "column", "width", "snr")], axis=1)
        )


def event_kernels(dtype: np.dtype[Any]) -> list[tuple[str, ...]]:
    """The arguments of `Runtime.module` for the kernels that usually find events in sums of samples of a type."""
    build = BUILDS[sum_dtype(dtype).kind]
    names = ["glance.cu", "search.cu", "baseline.cu"] if dtype.itemsize == 1 else ["search.cu", "baseline.cu"]
    return [(PACKAGE, name, build) for name in names]


def glance_room(what: Detection) -> tuple[int, int]:
    """Number of pairs of stretches for which the kernel ``glance`` has memory, and bytes before the samples."""
    pairs = -(-(what.block // 32 + what.widths[-1] // 32 + 4) // 4) * 4
    return pairs, -(-max(GLANCE["counts"], 24 * pairs) // 16) * 16


def glance_bytes(what: Detection) -> int:
    """Bytes of shared memory of the kernel ``glance``."""
    return max(GLANCE["least"], glance_room(what)[1] + 2 * (what.block + 80))


def sums_reached(scales: NDArray[np.float32], threshold: float) -> NDArray[np.int32]:
    """For each width, the smallest window sum whose S/N, computed in float32, reaches the threshold."""
    wanted, most = np.float32(threshold), 2**31 - 1
    found = []
    for scale in scales:
        low, high = 0, most
        while low < high:
            middle = (low + high) // 2
            if np.float32(middle) * scale >= wanted:
                high = middle
            else:
                low = middle + 1
        found.append(low)
    return np.array(found, np.int32)
