"""The cleaning of `clean.blocks.cleaner` on samples that are in the memory of a GPU, with the same bits.

Statistics, bad channels, cells, series of groups and replacement run on the GPU (``clean.cu``), for many blocks at a
time.  The GPU flags blocks in which there may be a step of the gain or an impulse.  The host examines their series,
with the code of the CPU, and cleans the blocks that have a step of the gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from skysieve.core.arrays import array_module, to_host
from skysieve.core.errors import MemoryBudgetError
from skysieve.core.gpu.runtime import Runtime, on_device
from skysieve.core.gpu.staging import make_lane
from skysieve.core.gpu.structs import address, fill, ints, struct
from skysieve.core.tasks import TaskPool
from skysieve.dedispersion.clean.blocks.cleaner import Cleaner
from skysieve.dedispersion.clean.blocks.gain import STEP_BANDS
from skysieve.dedispersion.clean.blocks.scratch import SpareScratch, scratch_array
from skysieve.dedispersion.clean.blocks.steps import AHEAD, PIECES
from skysieve.dedispersion.cuda.rows import OFFSETS, Planes
from skysieve.dedispersion.cuda.tensor_plan import FRONT
from skysieve.dedispersion.cuda.worker import memory_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray

PACKAGE = "skysieve.dedispersion.clean.cuda"
JOB = struct(
    "x*", "stride#", "plane#", "blocks*", "use*", "edges*", "group*", "bands*", "thresholds*", "mean*", "var*",
    "level*", "sigma*", "rho*", "fill*", "scratch*", "listed*", "tracks*", "marks*", "states*", "cells*",
    "weights*", "means*", "scales*", "used*", "whole*", "base*", "sums*", "series*", "prefix*", "flags*", "held*",
    "held_sigma*", "memory*", "factor*", "shift*", "rough*", "pitch#", "limit.", "fair.", "low.", "high.", "planes",
    "offset", "channels", "groups", "piece", "room", "count", "band_count", "widths", "wanted", "changed",
)  # fmt: skip
"""``struct Job``."""
BLOCK = struct("start#", "column#", "count", "total")
"""``struct Block``."""
WINDOW = struct("block", "first", "last", "low", "high")
"""``struct Window``."""
THREADS, WIDE, SERIES_THREADS, LINE_THREADS = 256, 512, 128, 64
MOST_ROWS = 65535
GOOD, BAD, FRESH = 1, 2, 4
KNOWN, BEGUN, WAS_BAD = 1, 2, 4
MAY_STEP, MAY_IMPULSE, NONE_GOOD, BEFORE = 1, 2, 4, 8
"""Bits of ``states``, ``memory`` and ``flags`` in ``clean.cu``."""
WANTED = {"channels": 1, "cells": 2, "impulses": 4, "gain": 8}
"""Bit of each cleaning step in ``Job.wanted``."""
NO_CELLS: NDArray[np.bool_] = np.zeros((1, 1), bool)
ROOM = PIECES + AHEAD
"""Largest number of pieces of a block and of the samples after it."""
MOST_THREADS = 8
"""Largest number of threads that examine blocks; few blocks are examined."""
MOST_BLOCKS, SCRATCH_BYTES = 128, 1 << 28
"""Largest number of blocks that are cleaned at a time, and of bytes for the arrays that are computed from them."""


class Rows(Protocol):
    """Samples on the device that can be cleaned in place.

    Attributes
    ----------
    build : str
        Build of ``clean.cu``.
    data : array
    stride, plane, planes, offset : int
        As in ``struct Job``.
    """

    build: str
    data: Any
    stride: int
    plane: int
    planes: int
    offset: int

    def get(self, column: int, count: int) -> NDArray[Any]:
        """Copy samples to the host, shape (samples, channels)."""

    def set(self, column: int, samples: NDArray[Any]) -> None:
        """Copy samples from the host."""


class Block(NamedTuple):
    """First sample of a block, its column, number of samples, and that number with the samples after the block."""

    start: int
    column: int
    samples: int
    total: int


class DeviceCleaner(Cleaner):
    """A `Cleaner` of samples on a GPU.

    Parameters
    ----------
    runtime : Runtime
    most : int
        Samples that are cleaned at a time, at most.
    like : Cleaner
        A cleaner for the same data, whose settings are copied.
    begin : int
        Samples before this one are not changed, and do not count.
    threads : int
        Threads that examine blocks on the host.
    scratch : SpareScratch, optional
        Memory of threads that examine blocks, which several cleaners may share.

    Raises
    ------
    MemoryBudgetError
        Its arrays do not fit on the device.
    """

    def __init__(
        self, runtime: Runtime, most: int, like: Cleaner, begin: int = 0, threads: int = 1,
        scratch: SpareScratch | None = None,
    ) -> None:  # fmt: skip
        self.runtime, self.begin = runtime, begin
        self._pool = TaskPool(min(threads, MOST_THREADS))
        self._scratch = SpareScratch() if scratch is None else scratch
        self.lane = make_lane(runtime)
        self._arrays: dict[str, Any] = {}
        super().__init__(*like.given)
        self.few, self.waits = like.few, like.waits
        if not self.steps:
            return
        self.pitch = series_pitch(self)
        each = parts(self)
        self.batch = batch(self, most)
        self._each = {name: size for name, (size, _) in each.items()}
        try:
            self._allocate(each)
        except memory_errors(runtime) as error:
            what = f"the cleaning of {self.batch} blocks of {self.nchan} channels on {runtime.device}"
            raise MemoryBudgetError(what, bytes_needed(self, most), runtime.device.free_memory) from error
        fair = 1 - 2 / (9 * (self.piece - 1))
        self._constants = {
            "limit": self._limit, "fair": fair * fair * fair, "low": self.low, "high": self.high,
            "channels": self.nchan, "groups": len(self._used), "piece": self.piece, "room": ROOM,
            "band_count": len(self._bands), "widths": self._widths, "pitch": self.pitch,
            "wanted": sum(WANTED[name] for name in self.steps),
        }  # fmt: skip

    def _allocate(self, each: dict[str, tuple[int, Any]]) -> None:
        """Make the arrays on the device, with a part for each block and for the one before."""
        xp = self.runtime.xp
        with self.lane:
            self._arrays = {name: xp.empty((self.batch + 1) * size, kind) for name, (size, kind) in each.items()}
            self._arrays |= {
                "held": xp.empty(self.nchan), "held_sigma": xp.empty(self.nchan),
                "memory": xp.empty(self.nchan, np.uint8), "factor": xp.empty(self.nchan),
                "shift": xp.empty(self.nchan), "rough": xp.empty(self.nchan, np.uint8),
                "use": xp.asarray(self._use.view(np.uint8)),
                "edges": xp.asarray(self._edges.astype(np.int32)), "group": xp.asarray(self._group.astype(np.int32)),
                "bands": xp.asarray(self._bands.astype(np.int32).ravel()), "thresholds": xp.asarray(self._thresholds),
            }  # fmt: skip
            self._arrays["flags"][:1] = 0

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(int(held.nbytes) for held in self._arrays.values())

    def close(self) -> None:
        """Free threads and the memory of the device."""
        self._pool.close()
        self.lane.free()
        self._arrays = {}

    def reset(self) -> None:
        """See `Cleaner.reset`."""
        super().reset()
        self.done = self.begin
        self._tail: Block | None = None  # the block to which the first part of the arrays belongs
        self._before_of = -1  # the sample before which ``_before`` lies; -1 if the host has none
        if self._arrays:
            with self.lane:
                self._arrays["flags"][:1] = 0

    def reach(self, stop: int) -> int:
        """The number of samples that must be known, so that samples up to ``stop`` can be cleaned."""
        return -(-stop // self.block) * self.block + self.ahead

    def clean_planes(self, planes: Planes, first: int, stop: int, nsamp: int) -> None:
        """`clean_rows` for the rows of an engine."""
        self.clean_rows(PlaneRows(planes, self.dtype, self.nchan), first, stop, nsamp)

    def clean_rows(self, rows: Rows, first: int, stop: int, nsamp: int) -> None:
        """Clean all blocks that are complete, in place.

        Parameters
        ----------
        rows : Rows
            Samples ``first : stop`` of ``nsamp``.
        """
        if not self.steps:
            return
        if first > self.done:
            raise ValueError(
                f"samples from {first} on: expected samples from {self.done} on, because blocks are cleaned in order"
            )
        blocks, at = [], self.done
        while at < nsamp:
            end = min((at // self.block + 1) * self.block, nsamp)
            reach = min(end + self.ahead, nsamp)
            if reach > stop:
                break
            blocks.append(Block(at, at - first, end - at, reach - at))
            at = end
        self.done = at
        with self.lane:
            while blocks:
                some = blocks[: self.batch]
                count = self._run(rows, some)
                if count < len(some):
                    self._on_host(rows, blocks[count])
                    count += 1
                blocks = blocks[count:]
            self.lane.synchronize()

    # ------------------------------------------------------------------ on the device
    def _run(self, rows: Rows, blocks: Sequence[Block]) -> int:
        """Clean blocks up to the first that the host must clean; return their number."""
        lane, C, G, N = self.lane, self.nchan, len(self._used), len(blocks)
        module = self.runtime.module(PACKAGE, "clean.cu", rows.build)
        longest = max(b.total for b in blocks)
        warps = -(-C // (THREADS // 32))
        addresses = {name: address(held) for name, held in self._arrays.items()}
        job = fill(
            JOB, x=rows.data, stride=rows.stride, plane=rows.plane, planes=max(1, rows.planes), offset=rows.offset,
            count=N, changed=int(self._gain.changed), **addresses, **self._constants,
        )  # fmt: skip

        def launch(kernel: str, grid: tuple[int, ...], threads: int, *more: Any, shared: int = 0) -> None:
            module.launch(kernel, grid, (threads,), (job, *more), shared_mem=shared, stream=lane.stream)

        self._launch = launch
        given = lane.pinned("blocks", 3 * N, np.int64)
        given.view(BLOCK)[:] = np.array(blocks, BLOCK)
        lane.to_device(self._arrays["blocks"][: 3 * N], given)
        self._send_memory()
        launch("moments", (warps, N), THREADS)
        launch("judge", (N,), WIDE)
        launch("follow", (-(-C // THREADS),), THREADS)
        launch("weigh", (N,), WIDE)
        if {"impulses", "gain"} & set(self.steps):
            launch("series", (-(-longest // (4 * SERIES_THREADS)), G, N), SERIES_THREADS)
            launch("lines", (G, N), LINE_THREADS)
        if "impulses" in self.steps:
            launch("flatten", (-(-longest // THREADS), N), THREADS)
            launch("impulses", (len(self._bands), N), THREADS)
        if "gain" in self.steps:
            launch("steps", (N,), THREADS, shared=8 * (ROOM + PIECES // 2) * (G + STEP_BANDS + 1))
        found = {name: self._fetch(name, 1, N) for name in ("flags", "states", "cells")}
        memory = self._fetch_memory()
        lane.synchronize()
        flags, states, cells = (found[name].reshape(N, -1).copy() for name in ("flags", "states", "cells"))
        end, windows = self._examine_flagged(flags[:, 0], blocks)
        states, cells = states[:end], cells[:end]
        if 0 < end < N:
            self._send_memory()
            job["count"] = end
            launch("follow", (-(-C // THREADS),), THREADS)
            memory = self._fetch_memory()
            lane.synchronize()
        if self._gain.changed:
            launch("regain", (warps, end), THREADS)
        if (states & FRESH).any() or cells.any():
            launch("replace", (warps, end), THREADS)
        if windows:
            every = [(k, *window) for k, found_ in windows.items() for window in found_.tolist()]
            widest = max(high - low for *_, low, high in every)
            for at in range(0, len(every), MOST_ROWS):
                some = np.array(every[at : at + MOST_ROWS], WINDOW)
                on_device = self.runtime.xp.asarray(some.view(np.int32))
                launch("cut", (-(-widest // (THREADS // 32)), len(some)), THREADS, on_device)
        if end:
            self._held, self._sigma = memory["held"].copy(), memory["held_sigma"].copy()
            self._known, self._begun, self._bad = (memory["memory"] & bit > 0 for bit in (KNOWN, BEGUN, WAS_BAD))
            self._count(blocks[:end], states, cells, windows)
            self._keep(end, blocks[end - 1], flags[end - 1, 0])
        return end

    def _fetch(self, name: str, part: int, count: int = 1) -> NDArray[Any]:
        """Begin to copy parts of an array to the host."""
        held, each = self._arrays[name], self._each[name]
        on_host = self.lane.pinned(name, count * each, held.dtype)
        self.lane.to_host(on_host, held[part * each : (part + count) * each])
        return on_host

    def _part(self, name: str, part: int) -> NDArray[Any]:
        """A copy of one part of an array."""
        found = self._fetch(name, part)
        self.lane.synchronize()
        return found.copy()

    def _send_memory(self) -> None:
        """Copy the state of the channels after earlier blocks to the device."""
        memory = (KNOWN * self._known + BEGUN * self._begun + WAS_BAD * self._bad).astype(np.uint8)
        given = [("held", self._held), ("held_sigma", self._sigma), ("memory", memory)]
        if self._gain.changed:
            gain = self._gain
            given += [("factor", gain.factor), ("shift", gain.offset), ("rough", gain.rough.view(np.uint8))]
        for name, value in given:
            pinned = self.lane.pinned("given " + name, self.nchan, value.dtype)
            pinned[:] = value
            self.lane.to_device(self._arrays[name], pinned)

    def _fetch_memory(self) -> dict[str, NDArray[Any]]:
        """Begin to copy the state of the channels to the host."""
        found = {}
        for name in ("held", "held_sigma", "memory"):
            found[name] = self.lane.pinned("found " + name, self.nchan, self._arrays[name].dtype)
            self.lane.to_host(found[name], self._arrays[name])
        return found

    def _keep(self, part: int, block: Block, flags: int) -> None:
        """Copy a block's part of the arrays to the first part, because the next block depends on it."""
        if flags & BEFORE:
            for name in ("level", "states", "series", "sums", "base", "flags"):
                held, each = self._arrays[name], self._each[name]
                held[:each] = held[part * each : (part + 1) * each]
            self._tail = block

    def _count(
        self, blocks: Sequence[Block], states: NDArray[np.uint8], cells: NDArray[np.uint32],
        windows: dict[int, NDArray[np.int64]],
    ) -> None:  # fmt: skip
        """Record what is removed from several blocks, as `_note` does for one."""
        n = np.array([b.samples for b in blocks])[:, None]
        bad = states & BAD > 0
        removed = {"channels": int(n[:, 0] @ np.count_nonzero(bad, axis=1)), "cells": 0, "impulses": 0}
        lost = bad
        some_cells: NDArray[np.bool_] = np.asarray(cells.any(axis=1))
        if some_cells.any() or windows:
            gone, cut = np.zeros(states.shape, np.int64), np.zeros(states.shape, np.int64)
            bits = np.unpackbits(np.ascontiguousarray(cells).view(np.uint8).reshape(*cells.shape, 4), axis=2)
            last = np.maximum(1, n // self.piece) - 1
            gone += bits.sum(axis=2, dtype=np.int64) * self.piece + (cells.astype(np.int64) >> last & 1) * (
                n - (last + 1) * self.piece
            )
            for k, found in windows.items():
                for first, end, low, high in found.tolist():
                    cut[k, low:high] += end - first
            cut[bad] = 0
            removed |= {"cells": int(gone.sum()), "impulses": int(cut.sum())}
            lost = bad | (2 * (gone + cut) >= n)
        self.records.count(blocks[0].start, int(n.sum()), removed)
        none, pieces = np.empty((0, 4), np.int64), np.arange(PIECES)[:, None]
        for k, block in enumerate(blocks):
            each = NO_CELLS
            if some_cells[k]:
                each = (cells[k].astype(np.int64) >> pieces[: block.samples // self.piece]) & 1 > 0
            if self._gain.changed:
                self._changes.append(self._gain.change(0, self._gain.factor, self._gain.offset))
            self._add(block.start, block.samples, bad[k], each, windows.get(k, none), lost[k])

    # ------------------------------------------------------------------ on the host
    def _examine_flagged(
        self, flags: NDArray[np.uint32], blocks: Sequence[Block]
    ) -> tuple[int, dict[int, NDArray[np.int64]]]:
        """The first block that the host must clean, and windows of impulses by block."""
        if "gain" in self.steps:
            for k in range(min(2, len(blocks))):  # the GPU may lack the half block before these
                earlier = self._earlier(k, blocks, flags)
                short = earlier is not None and earlier.samples < self.block
                if flags[k] & BEFORE and (short or (k == 0 and earlier is None and self._plain is not None)):
                    flags[k] |= MAY_STEP
        end = len(blocks)
        for k in np.flatnonzero(flags & (MAY_STEP | NONE_GOOD)).tolist():
            if flags[k] & NONE_GOOD or self._has_step(k, blocks, flags):
                end = k
                break
        return end, self._windows_in(np.flatnonzero(flags[:end] & MAY_IMPULSE).tolist(), blocks, flags)

    def _has_step(self, k: int, blocks: Sequence[Block], flags: NDArray[np.uint32]) -> bool:
        """Whether a block has a step of the gain."""
        series = self._series_of(k + 1, blocks[k])
        self._used = self._part("used", k + 1)
        self._fetch_plain(k, blocks, flags)
        context = 0 if self._plain is None else self._plain[0].shape[1]
        joined = np.concatenate([np.empty((len(series), context), np.float32), series], axis=1)
        weights = self._part("weights", k + 1)
        power = (weights * self._part("sigma", k + 1)) ** 2
        self._join(joined, context, self._part("level", k + 1), weights, power)
        return self._find_step(joined, context, blocks[k].samples) is not None

    def _windows_in(
        self, flagged: list[int], blocks: Sequence[Block], flags: NDArray[np.uint32]
    ) -> dict[int, NDArray[np.int64]]:
        """Windows of impulses by block, where there are any.

        Several threads examine blocks.  One thread examines successive blocks in order, because each needs the cleaned
        series of the one before.
        """
        runs = np.split(np.array(flagged, np.int64), np.flatnonzero(np.diff(flagged) > 1) + 1) if flagged else []
        found: dict[int, NDArray[np.int64]] = {}
        copying = Lock()

        def examine(run: list[int]) -> NDArray[np.float32] | None:
            memory = self._scratch.take()
            before = None
            for k in run:
                with copying, on_device(self.runtime):
                    before = self._before_block(k, blocks, flags) if k == run[0] else before
                    given, used = self._flat_series(k + 1, blocks[k]), self._part("used", k + 1)
                    series = scratch_array(memory, "flat", given.shape, np.float32)
                    series[:] = given
                windows, before = self._examined(series, blocks[k].samples, before, used, memory)
                if len(windows):
                    found[k] = windows
            self._scratch.give_back(memory)
            return before

        lasts = self._pool.run([partial(examine, run.tolist()) for run in runs])
        if runs:
            last = blocks[flagged[-1]]
            self._before, self._before_of = lasts[-1], last.start + last.samples
            self._used = self._part("used", flagged[-1] + 1)
        return dict(sorted(found.items()))

    def _earlier(self, k: int, blocks: Sequence[Block], flags: NDArray[np.uint32]) -> Block | None:
        """The block before block ``k``, if part ``k`` of the arrays has its series."""
        if k:
            return blocks[k - 1] if flags[k - 1] & BEFORE else None
        tail = self._tail
        return tail if tail is not None and tail.start + tail.samples == blocks[0].start else None

    def _series_of(self, part: int, block: Block) -> NDArray[np.float32]:
        """The series of the groups of a block, without the samples before it."""
        return np.ascontiguousarray(self._part("series", part).reshape(-1, self.pitch)[:, : block.total])

    def _flat_series(self, part: int, block: Block) -> NDArray[np.float32]:
        """The series of `_series_of` less their baseline, as by `_flatten`; the next call overwrites them."""
        lane, groups, total = self.lane, len(self._used), block.total
        flat = lane.array("flat", groups * total, np.float32)
        pieces = max(1, block.samples // self.piece, total // self.piece)
        self._launch("level", (-(-total // THREADS), groups), THREADS, *ints(part, pieces, total), flat)
        on_host = lane.pinned("flat", flat.size, np.float32)
        lane.to_host(on_host, flat)
        lane.synchronize()
        return on_host.reshape(groups, total)

    def _fetch_plain(self, k: int, blocks: Sequence[Block], flags: NDArray[np.uint32]) -> None:
        """Set ``_plain`` to the series and levels of the block before block ``k``, if the GPU has them."""
        earlier = self._earlier(k, blocks, flags)
        if earlier is not None:
            n, level = earlier.samples, self._part("level", k)
            level[self._part("states", k) & GOOD == 0] = np.nan
            self._plain = self._series_of(k, earlier)[:, max(0, n - self.block // 2) : n].copy(), level

    def _before_block(self, k: int, blocks: Sequence[Block], flags: NDArray[np.uint32]) -> NDArray[np.float32] | None:
        """The last half of the block before block ``k``, without impulses."""
        earlier = self._earlier(k, blocks, flags)
        if earlier is None or self._before_of == blocks[k].start:
            return self._before
        return self._last_half(self._flat_series(k, earlier), earlier.samples)

    def _on_host(self, rows: Rows, block: Block) -> None:
        """Let the host clean a block."""
        none = np.zeros(1, np.uint32)
        self._fetch_plain(0, [block], none)
        self._before = self._before_block(0, [block], none)
        samples = rows.get(block.column, block.total)
        rows.set(block.column, self._clean(block.start, samples, block.samples, True))
        self._tail, self._before_of = None, block.start + block.samples
        self._arrays["flags"][:1] = 0


def kernels_of(dtype: np.dtype[Any]) -> list[tuple[str, str, str]]:
    """The arguments of `Runtime.module` for the kernels that clean the rows of an engine."""
    return [(PACKAGE, "clean.cu", build_of(dtype))]


def build_of(dtype: np.dtype[Any]) -> str:
    """The build of ``clean.cu`` for samples of a type."""
    return "f32" if dtype.kind == "f" else "bytes" if dtype.itemsize == 1 else "words"


class PlaneRows:
    """The rows of an engine as `Rows`; see `dedispersion.cuda.rows.Planes`."""

    def __init__(self, planes: Planes, dtype: np.dtype[Any], nchan: int) -> None:
        self.data, self.stride, self.plane, self.planes = planes.data, planes.stride, planes.plane, planes.planes
        self.dtype, self.nchan = np.dtype(dtype).newbyteorder("="), nchan
        self.offset = OFFSETS.get(self.dtype.name, 0)
        self.build = build_of(self.dtype)
        self._whole = np.uint8 if self.planes == 1 else np.uint16 if self.planes == 2 else np.uint32

    def _views(self, column: int, count: int) -> list[tuple[int, int, Any]]:
        """Samples on the device: number of the plane, first of every fourth channel, view of channels x samples."""
        if not self.planes:
            return [(0, 0, self.data.reshape(self.nchan, self.stride)[:, column : column + count])]
        found = []
        for i in range(self.planes):
            x = self.data[i * self.plane :][: self.nchan * self.stride].reshape(self.nchan, self.stride)
            for k in range(min(4, self.nchan)):
                at = FRONT + 4 * k + column
                found.append((i, k, x[k::4, at : at + count]))
        return found

    def get(self, column: int, count: int) -> NDArray[Any]:
        """See `Rows.get`."""
        if not self.planes:
            return np.ascontiguousarray(to_host(self._views(column, count)[0][2]).T)
        out = array_module(self.data).zeros((count, self.nchan), self._whole)  # put in order on the device
        for i, k, view in self._views(column, count):
            out[:, k::4] |= view.T.astype(self._whole) << (8 * i)
        found = to_host(out)
        return (found.astype(np.int32) - self.offset if self.offset else found).astype(self.dtype, copy=False)

    def set(self, column: int, samples: NDArray[Any]) -> None:
        """See `Rows.set`."""
        xp = array_module(self.data)
        if not self.planes:
            self._views(column, len(samples))[0][2][:] = xp.asarray(np.ascontiguousarray(samples.T))
            return
        whole = (samples.astype(np.int32) + self.offset if self.offset else samples).astype(self._whole, copy=False)
        on_device = xp.asarray(np.ascontiguousarray(whole))
        for i, k, view in self._views(column, len(samples)):
            view[:] = (on_device[:, k::4] >> (8 * i) & 255).astype(np.uint8).T


class TimeRows:
    """Bytes of shape (samples, channels) as `Rows`."""

    build = "times"
    stride = plane = offset = 0
    planes = 1

    def __init__(self, data: Any) -> None:
        self.data = data

    def get(self, column: int, count: int) -> NDArray[Any]:
        """See `Rows.get`."""
        return np.array(to_host(self.data[column : column + count]))

    def set(self, column: int, samples: NDArray[Any]) -> None:
        """See `Rows.set`."""
        self.data[column : column + len(samples)] = array_module(self.data).asarray(samples)


def series_pitch(cleaner: Cleaner) -> int:
    """Samples from one series to the next."""
    return -(-(cleaner.block + cleaner.ahead) // 128) * 128


def parts(cleaner: Cleaner) -> dict[str, tuple[int, Any]]:
    """Elements of each array for a block, and their type."""
    C, G = cleaner.nchan, cleaner.groups
    f8, f4, i4, u4, u1 = np.float64, np.float32, np.int32, np.uint32, np.uint8
    return {
        "mean": (PIECES * C, f8), "var": (PIECES * C, f8), "level": (C, f8), "sigma": (C, f8), "rho": (C, f8),
        "fill": (C, f8), "scratch": (4 * C, f8), "listed": (C, i4), "tracks": ((PIECES + 1) * C, i4), "marks": (C, u1),
        "states": (C, u1), "cells": (C, u4), "weights": (C, i4), "means": (ROOM * G, f8), "scales": (ROOM * G, f8),
        "used": (G, f8), "whole": (G, f8), "base": (G * ROOM, f8), "sums": (G * ROOM, f8),
        "series": (G * series_pitch(cleaner), f4), "prefix": (G * series_pitch(cleaner), f4), "flags": (1, u4),
        "blocks": (3, np.int64),
    }  # fmt: skip


def block_bytes(cleaner: Cleaner) -> int:
    """Bytes of the arrays for a block."""
    return sum(size * np.dtype(kind).itemsize for size, kind in parts(cleaner).values())


def batch(cleaner: Cleaner, most: int) -> int:
    """Blocks that are cleaned at a time, of ``most`` samples."""
    return max(1, min(MOST_BLOCKS, -(-most // cleaner.block) + 1, SCRATCH_BYTES // block_bytes(cleaner)))


def bytes_needed(cleaner: Cleaner, most: int) -> int:
    """Bytes of the device that a cleaner of up to ``most`` samples at a time takes."""
    return (batch(cleaner, most) + 1) * block_bytes(cleaner) if cleaner.steps else 0
