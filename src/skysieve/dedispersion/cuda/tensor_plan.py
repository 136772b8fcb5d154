"""How a table of delays is cut for the tensor cores, and its lists of words (``plan.cu``, ``tensor.cu``).

A cut is chosen on the host from a few tiles of 8 DMs by the cost of the kernel's parts; the lists are made on the GPU.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.errors import MemoryBudgetError
from skysieve.core.gpu.runtime import Runtime

if TYPE_CHECKING:
    from numpy.typing import NDArray

PACKAGE = "skysieve.dedispersion.cuda"
TILE, PIECE, WARPS, FRONT, BLOCK_WORDS = 8, 256, 16, 256, 72
"""As in ``common.cuh`` and ``tensor.cu``: DMs of a tile, samples and warps of a block, bytes before a row,
words of a block of the plan."""
MOST_CHANNELS = 128
"""Channels of a chunk: one for each thread that plans it."""
SPARE = 64
"""Bytes of a staged row beyond its samples and the spread of its delays: alignment, phases."""
TURN = {"plain": 4 * 16 * 8 * 164, "groups": 4 * 16 * 2 * 164}
"""Bytes of shared memory in which sums are turned: "plain" after the rows are done with, "groups" beside them."""
BARRIERS = 32
"""Bytes of shared memory for barriers of chunks that are copied and done with."""
SPREADS = (4, 6, 8, 12, 16, 24, 32)
"""Samples by which delays of a tile may spread inside a group of channels."""
WIDE = (1, 2, 4, 8)
"""Tiles of a block of threads."""
FEW_WORDS = 3.5
"""Words of a channel up to which groups are not tried."""
SHARES = (1.0, 0.88, 0.75, 0.6, 0.45)
"""Parts of the staging buffers that are counted on, until the lists fit."""
PER_BLOCK, PER_GROUP, PER_CHUNK = 62.0, 520.0, 210.0
"""What 16 words cost, the end of a group, and a chunk with what its lists leave empty (a fit to 35 cuts of four set-ups
on an H100, within 6%)."""
PAIRED = 0.9
"""Part of a tile's words that is left when pairs may be a word on for the second quad."""
CHUNK = np.dtype([("first", np.int32), ("count", np.int32), ("pitch", np.int32), ("group", np.int32)])
SHAPE = np.dtype(
    [
        ("stride", np.int64), ("ypitch", np.int64), ("chunks", np.int32), ("groups", np.int32), ("nchan", np.int32),
        ("ndm", np.int32), ("tiles", np.int32), ("first", np.int32), ("count", np.int32), ("samples", np.int32),
        ("stage", np.int32), ("rows", np.int32), ("most", np.int32),
        ("wd", np.int32), ("nc", np.int32), ("block0", np.int32), ("row0", np.int32),
        ("weight", np.uint32), ("start", np.uint32), ("fresh", np.int32), ("offset", np.int32), ("list", np.int32),
    ],
    align=True,
)  # fmt: skip
"""``struct Shape`` of ``tensor.cu``."""


@dataclass(frozen=True)
class Cut:
    """How to cut: ``wd`` tiles and ``16 / wd`` pieces a block; channels by chunks and groups."""

    wd: int
    chunks: NDArray[Any]
    origins: NDArray[np.int32]
    cost: float
    words: float

    @property
    def build(self) -> str:
        """Build of ``tensor.cu``."""
        return "plain" if self.origins[0] < 0 else "groups"


@dataclass(frozen=True)
class TensorPlan:
    """A table, ready for the tensor cores; arrays lie on the device."""

    cut: Cut
    nchan: int
    ndm: int
    blocks: int
    rows: int
    most: int
    shared: int
    reach: int
    most_shift: int
    arrays: dict[str, Any]
    nbytes: int

    @property
    def samples(self) -> int:
        """Samples that a block of threads advances by."""
        return PIECE * WARPS // self.cut.wd

    @property
    def dms(self) -> int:
        """DMs of a block of threads."""
        return TILE * self.cut.wd

    def launch(
        self, module: Any, x: Any, stride: int, first: int, y: Any, ypitch: int, count: int, rows: tuple[int, int],
        weight: int, start: int, fresh: bool, stream: Any,
    ) -> None:  # fmt: skip
        """Sum DMs ``rows`` (from a multiple of `dms`) of one plane into ``y``; ``first`` is a multiple of 16."""
        s = np.zeros(1, SHAPE)
        a, cut = self.arrays, self.cut
        grouped = cut.build == "groups"
        s["stride"], s["ypitch"], s["chunks"], s["groups"] = stride, ypitch, len(cut.chunks), len(cut.origins)
        s["nchan"], s["ndm"], s["tiles"] = self.nchan, self.ndm, -(-self.ndm // TILE)
        stage = self.rows + self.most * cut.wd * BLOCK_WORDS
        s["first"], s["count"], s["samples"], s["stage"] = first, count, self.samples, stage
        s["rows"], s["most"] = self.rows, self.most
        s["list"] = (self.shared - lists_bytes(cut)) // 4
        s["wd"], s["nc"], s["block0"], s["row0"] = cut.wd, WARPS // cut.wd, rows[0] // self.dms, rows[0]
        s["weight"], s["start"], s["fresh"], s["offset"] = weight, start, fresh, 2 * stage
        if grouped and fresh:
            size = ypitch * (rows[1] - rows[0])
            clearing = max(1, min(4096, -(-size // 1024)))
            module.launch("clear", (clearing,), (256,), (y, np.int64(size), np.uint32(start)), stream=stream)
        grid = (-(-(rows[1] - rows[0]) // self.dms), -(-(count + self.most_shift) // self.samples))
        args = (
            x, a["table"], a["ranges"], a["kinds"], a["row0"], a["pieces"], a["chunks"], a["shifts"], y, s[0],
        )  # fmt: skip
        module.launch("tensor", grid, (32 * WARPS,), args, shared_mem=self.shared, stream=stream)


def lists_bytes(cut: Cut) -> int:
    """Bytes of shared memory for chunks, barriers, and the blocks of each tile in each chunk."""
    return BARRIERS + (CHUNK.itemsize + 4 * cut.wd) * len(cut.chunks)


def sampled_tiles(delays: NDArray[np.int32], count: int = 8) -> NDArray[np.int32]:
    """Delays of some tiles, from the first to the last: shape (tiles, 8, channels)."""
    tiles = -(-len(delays) // TILE)
    chosen = np.unique(np.linspace(0, tiles - 1, min(count, tiles)).astype(np.int64))
    rows = np.minimum(TILE * chosen[:, None] + np.arange(TILE), len(delays) - 1)
    return delays[rows]


def group_starts(tiles: NDArray[np.int32], most: int) -> NDArray[np.int32]:
    """First channels of groups inside which the delays of a tile spread by at most ``most`` beyond their shifts."""
    nchan, starts, a = tiles.shape[2], [], 0
    while a < nchan:
        starts.append(a)
        step, b = 64, a + 1
        while b < nchan:
            relative = tiles[:, :, b : b + step] - tiles[:, :, a : a + 1]
            beyond = np.flatnonzero((relative.max(axis=1) - relative.min(axis=1)).max(axis=0) > most)
            if beyond.size:
                b += int(beyond[0])
                break
            b, step = min(nchan, b + step), 2 * step
        a = b
    return np.array(starts, np.int32)


def mean_words(tiles: NDArray[np.int32], starts: NDArray[np.int32] | None) -> float:
    """Words that a tile needs of a channel, on average; delays between a tile's extremes count as needed."""
    relative = tiles
    if starts is not None:
        channels = np.arange(tiles.shape[2])
        relative = tiles - tiles[:, :, starts[np.searchsorted(starts, channels, side="right") - 1]]
    low, high = relative.min(axis=1), relative.max(axis=1)
    return float(np.minimum(((high + 3) >> 2) - (low >> 2) + 1, 2 * TILE).mean())


def make_chunks(
    spread: NDArray[np.int32], starts: NDArray[np.int32] | None, samples: int, room: int, plan: float
) -> Any:
    """Chunks of channels; None where a row alone does not fit.

    Parameters
    ----------
    spread : numpy.ndarray of int32, shape (nchan,)
        Largest spread of the delays of a block's DMs.
    starts : numpy.ndarray of int32, optional
        First channels of groups.
    samples : int
        Samples of a block.
    room : int
        Bytes of a staging buffer: the rows of a chunk and its part of the plan.
    plan : float
        Bytes of plan for a channel.
    """
    nchan = len(spread)
    row = -(-(samples + spread.astype(np.int64) + SPARE) // 16) * 16
    ends = np.append(starts[1:], nchan) if starts is not None else np.array([nchan])
    found, a, group = [], 0, 0
    while a < nchan:
        end = int(ends[group])
        widest = np.maximum.accumulate(row[a : min(end, a + MOST_CHANNELS)])
        fits = np.flatnonzero((widest + plan) * np.arange(1, len(widest) + 1) <= room)
        if not fits.size:
            return None
        count = int(fits[-1]) + 1
        left = end - a  # even parts, as far as the rows are alike
        count = min(count, -(-left // -(-left // count)))
        found.append((a, count, int(widest[count - 1]) // 4, group))
        a += count
        group += a == end
    return np.array(found, CHUNK)


@dataclass(frozen=True)
class Grouping:
    """A way to cut the channels in groups (None: one group without shifts); words of a channel that a tile needs."""

    starts: NDArray[np.int32] | None
    words: float

    def least(self, nchan: int) -> float:
        """What its cuts cost at least."""
        groups = 0 if self.starts is None else len(self.starts)
        return PAIRED * self.words / 16 * PER_BLOCK + groups * PER_GROUP / nchan

    def cut(self, nchan: int, spread: NDArray[np.int32], wd: int, room: int) -> Cut | None:
        """Its cut for ``wd`` tiles a block and ``room`` bytes of a staging buffer; None where no row fits."""
        samples = PIECE * WARPS // wd
        chunks = make_chunks(spread[WIDE.index(wd)], self.starts, samples, room, plan_bytes(self.words, wd))
        if chunks is None:
            return None
        cost = self.least(nchan) + len(chunks) * PER_CHUNK / nchan
        origins = np.array([-1], np.int32) if self.starts is None else self.starts
        return Cut(wd, chunks, origins, cost, self.words)


def groupings(delays: NDArray[np.int32]) -> list[Grouping]:
    """Ways to cut the channels of a table in groups, as some of its tiles need."""
    tiles = sampled_tiles(delays)
    found = [Grouping(None, mean_words(tiles, None))]
    if found[0].words >= FEW_WORDS:
        for most in SPREADS:
            starts = group_starts(tiles, most)
            found.append(Grouping(starts, mean_words(tiles, starts)))
    return found


def cuts(delays: NDArray[np.int32], spreads: NDArray[np.int32], shared: int) -> Iterator[Cut]:
    """Cuts of a table, the cheapest first; one after which another is asked for may come again with smaller chunks.

    Parameters
    ----------
    delays : numpy.ndarray of int32, shape (ndm, nchan)
    spreads : numpy.ndarray of int32, shape (4, nchan)
        Largest spread of the delays of 8, 16, 32, 64 neighbouring DMs.
    shared : int
        Bytes of shared memory of a block.
    """
    if shared < TURN["plain"]:
        return
    ndm, nchan = delays.shape
    options = [(g, wd) for g in groupings(delays) for wd in WIDE if -(-ndm // TILE) > wd // 2]
    # a cut is made when what it costs at least is below what all others cost
    ways: list[tuple[float, int, int, Cut | None]] = [(g.least(nchan), i, 0, None) for i, (g, _) in enumerate(options)]
    heapq.heapify(ways)
    while ways:
        _, i, share, chosen = heapq.heappop(ways)
        grouping, wd = options[i]
        if chosen is None:
            room = (shared - (TURN["groups"] if grouping.starts is not None else 0)) // 2
            chosen = grouping.cut(nchan, spreads, wd, int(SHARES[share] * room))
            if chosen is not None:
                heapq.heappush(ways, (chosen.cost, i, share, chosen))
            continue
        yield chosen
        if share + 1 < len(SHARES):
            heapq.heappush(ways, (grouping.least(nchan), i, share + 1, None))


def plan_bytes(words: float, wd: int) -> float:
    """Bytes of plan that a block of threads stages for a channel; a tenth more than its tiles need on average."""
    return 4 * BLOCK_WORDS * wd * (1.1 * words / 16 + 0.02)


def make_plan(
    runtime: Runtime, delays: NDArray[np.int32], on_device: Any, budget: int | None = None, cut: Cut | None = None
) -> TensorPlan | None:
    """Cut a table and list its words; None where delays spread so far that no row fits shared memory.

    Parameters
    ----------
    runtime : Runtime
    delays : numpy.ndarray of int32, shape (ndm, nchan)
    on_device : array of the runtime
        The same.
    budget : int, optional
        Bytes that the lists may take.
    cut : Cut, optional
        Instead of the one chosen.
    """
    ndm, nchan = delays.shape
    if cut is not None:
        return _fill_plan(runtime, on_device, ndm, nchan, cut, budget)
    spread = runtime.xp.zeros((4, nchan), np.int32)
    args = (on_device, np.int32(nchan), np.int32(ndm), spread)
    runtime.module(PACKAGE, "plan.cu").launch("plan_spread", (-(-nchan // 128), -(-ndm // 64)), (128,), args)
    for chosen in cuts(delays, to_numpy(spread), runtime.device.shared_per_block):
        plan = _fill_plan(runtime, on_device, ndm, nchan, chosen, budget)
        if plan is not None:
            return plan
    return None


def _fill_plan(
    runtime: Runtime, on_device: Any, ndm: int, nchan: int, cut: Cut, budget: int | None
) -> TensorPlan | None:
    """Lists of a cut; None where it does not fit shared memory, or shifts reach before the rows."""
    xp, module = runtime.xp, runtime.module(PACKAGE, "plan.cu")
    counts = (np.int32(nchan), np.int32(ndm))
    tiles, groups = -(-ndm // TILE), len(cut.origins)
    blocks, pieces_of = -(-tiles // cut.wd), PIECE * WARPS // cut.wd
    chunks, origins = xp.asarray(cut.chunks.view(np.int32)), xp.asarray(cut.origins)
    row0 = xp.empty(blocks * nchan, np.int32)
    pieces = xp.empty(blocks * len(cut.chunks), np.int32)
    lowest = xp.asarray(np.array([2**30], np.int32))
    args: tuple[Any, ...] = (
        on_device, *counts, chunks, origins, np.int32(cut.wd), np.int32(tiles), np.int32(pieces_of), row0, pieces,
        lowest,
    )  # fmt: skip
    module.launch("plan_rows", (blocks, len(cut.chunks)), (128,), args)
    shifts = xp.zeros(tiles * groups * TILE, np.int32)
    if cut.build == "groups":
        args = (on_device, *counts, origins, np.int32(groups), np.int32(tiles), shifts)
        module.launch("plan_shifts", (-(-tiles * groups // 128),), (128,), args)
    number = xp.empty(tiles * len(cut.chunks), np.int32)
    grid = (tiles, len(cut.chunks))
    kinds = xp.empty_like(number)
    module.launch("plan_count", grid, (128,), (on_device, *counts, chunks, origins, number, kinds))
    ranges = xp.empty(number.size + 1, np.int32)
    module.launch("plan_scan", (1,), (1024,), (number, np.int32(number.size), ranges))
    if int(to_numpy(lowest)[0]) < 32 - FRONT:
        return None
    fitted = cut.chunks.copy()
    fitted["pitch"] = 4 * to_numpy(pieces).reshape(blocks, -1).max(axis=0)
    rows = int((fitted["count"].astype(np.int64) * fitted["pitch"]).max())
    most = int(to_numpy(number).max()) + 1
    stage = rows + most * cut.wd * BLOCK_WORDS
    turned = max(8 * stage, TURN["plain"]) if cut.build == "plain" else 8 * stage + TURN["groups"]
    shared = turned + lists_bytes(cut)
    total = int(to_numpy(ranges[-1:])[0])
    nbytes = total * (4 * BLOCK_WORDS + 128) + row0.nbytes + shifts.nbytes
    if shared > runtime.device.shared_per_block:
        return None
    if budget is not None and nbytes > budget:
        raise MemoryBudgetError(f"lists of words of {ndm} DMs x {nchan} channels on the GPU", nbytes, budget)
    chunks = xp.asarray(fitted.view(np.int32))
    items, table = xp.empty(32 * total, np.int32), xp.empty(BLOCK_WORDS * total, np.uint32)
    args = (on_device, *counts, chunks, origins, ranges, row0, np.int32(cut.wd), items, table)
    module.launch("plan_fill", grid, (128,), args)
    most_shift = int(to_numpy(shifts).max())
    arrays = {
        "table": table, "ranges": ranges, "kinds": kinds, "row0": row0, "pieces": pieces, "chunks": chunks,
        "shifts": shifts,
    }  # fmt: skip
    runtime.synchronize()
    made = Cut(cut.wd, fitted, cut.origins, cut.cost, cut.words)
    return TensorPlan(
        made, nchan, ndm, blocks, rows, most, shared, most_shift + pieces_of + SPARE, most_shift, arrays, nbytes
    )


def to_numpy(array: Any) -> NDArray[Any]:
    """A host copy, where it lies elsewhere."""
    return array if isinstance(array, np.ndarray) else array.get()
