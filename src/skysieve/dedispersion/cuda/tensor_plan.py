"""How a table of delays is divided for the tensor cores, and its lists of words (``plan.cu``, ``tensor.cu``).

A cut is chosen on the host: the cost of the parts of the kernel is estimated from a few tiles of 8 DMs.  The lists are
made on the GPU.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.errors import MemoryBudgetError
from skysieve.core.gpu.runtime import Runtime

if TYPE_CHECKING:
    from numpy.typing import NDArray

PACKAGE = "skysieve.dedispersion.cuda"
TILE, PIECE, WARPS, FRONT, BLOCK_WORDS = 8, 256, 16, 256, 72
"""As in ``common.cuh`` and ``tensor.cu``: DMs of a tile, samples and warps of a block of threads, bytes before a row,
words of a block of the plan."""
MOST_CHANNELS = 128
"""Most channels of a chunk: one for each thread that plans it."""
SPARE = 64
"""Bytes of a row in shared memory beyond its samples and the spread of its delays, for alignment and phases."""
TURN = {"plain": 4 * 16 * 8 * 164, "groups": 4 * 16 * 2 * 164}
"""Bytes of shared memory in which sums are transposed: "plain" in place of the rows at the end, "groups" beside
them."""
BARRIERS = 32
"""Bytes of shared memory for the barriers of chunks that are being copied and of chunks that are summed."""
SPREADS = (4, 6, 8, 12, 16, 24, 32)
"""Samples by which the delays of a tile may spread inside a group of channels; these values are tried."""
WIDE = (1, 2, 4, 8)
"""Tiles of a block of threads; these values are tried."""
FEW_WORDS = 3.5
"""Words of a channel up to which groups are not tried."""
SHARES = (1.0, 0.88, 0.75, 0.6, 0.45)
"""Fractions of the staging buffers that rows may fill; they are tried in turn until the lists fit."""
PER_BLOCK, PER_GROUP, PER_CHUNK = 62.0, 520.0, 210.0
"""Cost of 16 words, of the end of a group, and of a chunk with its partly empty lists (a fit to 35 cuts of four set-ups
on an H100, within 6%)."""
PAIRED = 0.9
"""Fraction of a tile's words that is still needed if the second quad of a pair may use the next word."""
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
    """A division of a table.

    Attributes
    ----------
    wd : int
        Tiles of a block of threads, which has ``16 / wd`` pieces.
    chunks : numpy.ndarray of CHUNK
        Channels whose rows are in shared memory together.
    origins : numpy.ndarray of int32
        First channels of groups; -1 without groups.
    cost : float
        Estimated cost of a channel.
    words : float
        Words of a channel that a tile needs, on average.
    """

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
    """A table that is prepared for the tensor cores; its arrays are on the device."""

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
        """Samples of a block of threads."""
        return PIECE * WARPS // self.cut.wd

    @property
    def dms(self) -> int:
        """DMs of a block of threads."""
        return TILE * self.cut.wd

    def launch(
        self, module: Any, x: Any, stride: int, first: int, y: Any, ypitch: int, count: int, rows: tuple[int, int],
        weight: int, start: int, fresh: bool, stream: Any,
    ) -> None:  # fmt: skip
        """Start to sum DMs ``rows`` (from a multiple of `dms`) of one plane to ``y``; ``first`` is a multiple of 16."""
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


def sampled_tiles(delays: NDArray[np.int32]) -> NDArray[np.int32]:
    """Delays of at most 8 tiles, evenly from the first to the last, shape (tiles, 8, channels)."""
    tiles = -(-len(delays) // TILE)
    chosen = np.unique(np.linspace(0, tiles - 1, min(8, tiles)).astype(np.int64))
    rows = np.minimum(TILE * chosen[:, None] + np.arange(TILE), len(delays) - 1)
    return delays[rows]


def group_starts(tiles: NDArray[np.int32], most: int) -> NDArray[np.int32]:
    """First channels of groups in which the delays of a tile, less their shifts, spread by at most ``most``."""
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
    """Words of a channel that a tile needs, on average; all delays between the extremes of a tile count."""
    relative = tiles
    if starts is not None:
        channels = np.arange(tiles.shape[2])
        relative = tiles - tiles[:, :, starts[np.searchsorted(starts, channels, side="right") - 1]]
    low, high = relative.min(axis=1), relative.max(axis=1)
    return float(np.minimum(((high + 3) >> 2) - (low >> 2) + 1, 2 * TILE).mean())


def make_chunks(
    spread: NDArray[np.int32], starts: NDArray[np.int32] | None, samples: int, room: int, plan: float
) -> Any:
    """Chunks of channels; None if a single row does not fit.

    Parameters
    ----------
    spread : numpy.ndarray of int32, shape (nchan,)
        Largest spread of the delays of a block's DMs.
    starts : numpy.ndarray of int32, optional
        First channels of groups.
    samples : int
        Samples of a block.
    room : int
        Bytes of a staging buffer, which holds the rows of a chunk and its part of the plan.
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
        left = end - a  # even parts, if the rows have similar lengths
        count = min(count, -(-left // -(-left // count)))
        found.append((a, count, int(widest[count - 1]) // 4, group))
        a += count
        group += a == end
    return np.array(found, CHUNK)


@dataclass(frozen=True)
class Grouping:
    """Groups of channels (``starts``; None without groups), and the words of a channel that a tile needs then."""

    starts: NDArray[np.int32] | None
    words: float

    def least(self, nchan: int) -> float:
        """Lower bound of the cost of its cuts."""
        groups = 0 if self.starts is None else len(self.starts)
        return PAIRED * self.words / 16 * PER_BLOCK + groups * PER_GROUP / nchan

    def cut(self, nchan: int, spread: NDArray[np.int32], wd: int, room: int) -> Cut | None:
        """Its cut for ``wd`` tiles a block and ``room`` bytes of a staging buffer; None if no row fits."""
        samples = PIECE * WARPS // wd
        chunks = make_chunks(spread[WIDE.index(wd)], self.starts, samples, room, plan_bytes(self.words, wd))
        if chunks is None:
            return None
        cost = self.least(nchan) + len(chunks) * PER_CHUNK / nchan
        origins = np.array([-1], np.int32) if self.starts is None else self.starts
        return Cut(wd, chunks, origins, cost, self.words)


def groupings(delays: NDArray[np.int32]) -> list[Grouping]:
    """Groupings of the channels of a table, found from some of its tiles."""
    tiles = sampled_tiles(delays)
    found = [Grouping(None, mean_words(tiles, None))]
    if found[0].words >= FEW_WORDS:
        for most in SPREADS:
            starts = group_starts(tiles, most)
            found.append(Grouping(starts, mean_words(tiles, starts)))
    return found


def likely_build(found: Sequence[Grouping], nchan: int) -> str:
    """The build of ``tensor.cu`` that the best cut of a table probably needs: ``Cut.build``."""
    return "plain" if min(found, key=lambda g: g.least(nchan)).starts is None else "groups"


def cuts(found: Sequence[Grouping], ndm: int, spreads: NDArray[np.int32], shared: int) -> Iterator[Cut]:
    """Cuts of a table, the cheapest first; a cut that the caller rejects may come again with smaller chunks.

    Parameters
    ----------
    found : sequence of Grouping
        The `groupings` of the table.
    ndm : int
        Number of its DMs.
    spreads : numpy.ndarray of int32, shape (4, nchan)
        Largest spread of the delays of 8, 16, 32, 64 neighbouring DMs.
    shared : int
        Bytes of shared memory of a block.
    """
    if shared < TURN["plain"]:
        return
    nchan = spreads.shape[1]
    options = [(g, wd) for g in found for wd in WIDE if -(-ndm // TILE) > wd // 2]
    # a cut is made only when the lower bound of its cost is below the costs of all others
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
    """Bytes of the plan for a channel in shared memory; a tenth more than the tiles need on average."""
    return 4 * BLOCK_WORDS * wd * (1.1 * words / 16 + 0.02)


def make_plan(
    runtime: Runtime, delays: NDArray[np.int32], on_device: Any, budget: int | None = None
) -> TensorPlan | None:
    """Divide a table and list its words; None if delays spread so far that no row fits shared memory.

    Parameters
    ----------
    runtime : Runtime
    delays : numpy.ndarray of int32, shape (ndm, nchan)
    on_device : array of the runtime
        The same delays.
    budget : int, optional
        Most bytes of the lists.
    """
    ndm, nchan = delays.shape
    found = groupings(delays)
    runtime.compile_ahead([(PACKAGE, "tensor.cu", likely_build(found, nchan))])
    spread = runtime.xp.zeros((4, nchan), np.int32)
    args = (on_device, np.int32(nchan), np.int32(ndm), spread)
    runtime.module(PACKAGE, "plan.cu").launch("plan_spread", (-(-nchan // 128), -(-ndm // 64)), (128,), args)
    for chosen in cuts(found, ndm, to_numpy(spread), runtime.device.shared_per_block):
        plan = _fill_plan(runtime, on_device, ndm, nchan, chosen, budget)
        if plan is not None:
            return plan
    return None


def _fill_plan(
    runtime: Runtime, on_device: Any, ndm: int, nchan: int, cut: Cut, budget: int | None
) -> TensorPlan | None:
    """Lists of a cut; None if it does not fit shared memory, or shifts reach before the rows."""
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
    """The array itself, or a copy on the host if it is on a device."""
    return array if isinstance(array, np.ndarray) else array.get()
