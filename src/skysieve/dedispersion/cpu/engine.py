"""The CPU backend: rows of channels in memory, and tiles of DMs as tasks of a pool of threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.cpu import jit
from skysieve.core.errors import MemoryBudgetError
from skysieve.core.tasks import TaskPool
from skysieve.dedispersion.contract import (
    KINDS,
    LEAST_PARTS,
    UNIT,
    Detection,
    Source,
    Table,
    check_events,
    direction,
    sorted_events,
    sum_dtype,
)

from . import baseline, detect, load, program
from .simd import LANES, WIDE

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = 1024
"""Samples of a time block; a row of its scratch memory takes 2 KiB."""
CANDIDATES = (
    (32, 4, T), (64, 4, T), (64, 8, T), (128, 8, T), (64, 16, T), (128, 16, T), (256, 16, T), (256, 16, T // 2),
    (64, 32, T),
)  # fmt: skip
"""Tiles that are tried: DMs, channels of a group, samples of a time block."""
DEEP = ((64, 64, T), (128, 128, T), (128, 256, T), (256, 256, T))
"""Further tiles for tables of a tree, in which large groups have few patterns, too."""
FLOAT_GROUP = 16
"""Channels of a group for float32; fixed, since the order of summation depends on it."""
CACHE = 2.3 * 2**20
"""Size of the groups' sums in bytes at which additions take twice as long.  This and `STREAM` were fitted to 32 runs on
a shared core with 1 MiB of L2 (four set-ups, tiles of 64 to 256 DMs, groups of 8 to 64 channels)."""
STREAM = 4.6
"""Cost of loading a sample of the input for a tile, in additions."""
SPLIT = 2047
"""Largest sample that is added in one piece, if its binned sums fit 16 bits.  Of larger samples, low and high bytes are
added separately."""
KEPT_PROGRAMS = 2**28
"""Bytes of programs that stay in memory for the next chunk."""
READ = 2**21
"""Bytes that are read at a time."""
ROWS = 16
"""Number of channels that one task bins."""
ROOM = 4096
"""Number of events of a tile for which memory is allocated at first."""
DIRECT = 1.1
"""Cost of adding the samples of a channel directly, relative to adding two rows."""
ADD_SECONDS = 5e-11
"""Time of an addition of the direct sum."""
FIRST_SECONDS = 1.5
"""Total time of direct sums in a process, in place of programs that are not compiled yet: compiling
`program.make_program` and `program.run_program` takes longer."""
first_answers = jit.FirstAnswers(FIRST_SECONDS)
BASELINE_STEPS, BASELINE_WORTH = 5e3, 4.0
"""Steps of Python's interpreter for a block whose level drifts, and what compiling it takes, as in `jit`."""


@dataclass
class Plane:
    """All samples, or their low or high bytes.

    Attributes
    ----------
    rows : numpy.ndarray, shape (channels + 1, samples)
        The last row is 0.
    maximum : int
        Largest element; 0 for floats.
    weight : int
        Factor by which sums of the elements are multiplied.
    """

    rows: NDArray[Any]
    maximum: int
    weight: int


@dataclass
class Shape:
    """The division of a table into tiles, groups of channels and time blocks.

    Attributes
    ----------
    D : int
        DMs of a tile.
    G : int
        Channels of a group; 1 adds the channels directly.
    NB : int
        Groups that are added at a time.
    T : int
        Samples of a time block.
    cost : float
        Cost of a delay, in additions of the direct sum.
    programs : dict
        Programs of tiles that stay in memory.
    """

    D: int
    G: int
    NB: int
    T: int
    cost: float
    programs: dict[tuple[int, int], Any] = field(default_factory=dict)


class Engine:
    """De-dispersion on the CPU; see `contract.Engine`.

    Parameters
    ----------
    source : Source
    tables : sequence of Table
    method : {"brute", "exact-subband", "tree"}
        The way in which sums are formed; results are bit-identical.  "tree" tries larger groups.
    capacity : int
        Most samples (not binned) that are loaded at once.
    threads : int, optional
        All usable cores by default.
    budget : int, optional
        Bytes that samples may take; if they need more, `MemoryBudgetError` is raised.
    span : int, optional
        Samples (not binned) that are summed at a time, if they are few: time blocks get this length.
    """

    def __init__(
        self, source: Source, tables: Sequence[Table], *, method: str, capacity: int, threads: int | None = None,
        budget: int | None = None, span: int | None = None,
    ) -> None:  # fmt: skip
        self.source, self.tables, self.method, self.capacity = source, list(tables), method, capacity
        self.nchan, self.span = source.nchan, span
        kind = source.dtype.kind
        self.offset = {"int8": 128, "int16": 32768}.get(source.dtype.name, 0)
        self.dtype = sum_dtype(source.dtype)
        top = source.maximum if kind == "u" and source.maximum else 256**source.dtype.itemsize - 1
        self.maximum = 0 if kind == "f" else top
        need = bytes_needed(source, tables, capacity)
        if budget is not None and need > budget:
            raise MemoryBudgetError(f"{capacity} samples of {self.nchan} channels", need, budget)
        self.bytes = need
        self._keep = KEPT_PROGRAMS if budget is None else min(KEPT_PROGRAMS, (budget - need) // 4)
        self.pool = TaskPool(threads)
        self.start = self.stop = 0
        self._planes: dict[int, list[Plane]] = {}
        self._binned: dict[tuple[int, int], NDArray[Any]] = {}
        self._local = threading.local()
        self._lock = threading.Lock()
        self._kept = 0
        self._series: NDArray[Any] = np.empty(0, self.dtype)
        stored = np.float32 if kind == "f" else np.uint16 if self.maximum > 255 else np.uint8
        self._x = np.zeros((self.nchan + 1, capacity + T + LANES), stored)
        part = 0.0 if span is None else 1.0  # in a stream there is no `rebind`
        self._direct = method == "exact-subband" and bool(self.maximum) and self._is_first(part)
        self._shapes = [self._shape(t) for t in self.tables]

    def close(self) -> None:
        """Free the threads."""
        self.pool.close()

    def rebind(self, source: Source) -> None:
        """See `contract.Engine.rebind`."""
        self.source = source
        if self._direct and not self._is_first():
            self._direct = False
            self._shapes = [self._shape(t) for t in self.tables]
        self.start = self.stop = 0
        self._planes.clear()

    def _is_first(self, part: float = 1.0) -> bool:
        """Whether the data are so few that direct sums are faster than compiling programs.

        Direct sums give the same bits.  The fraction ``part`` of their time counts towards `FIRST_SECONDS`.
        """
        adds = self.nchan * sum(len(t.delays) * (self.source.nsamp // t.downsamp) for t in self.tables)
        if jit.is_ready(program.make_program) or ADD_SECONDS * adds > FIRST_SECONDS:
            return False
        return first_answers.take(part * ADD_SECONDS * adds)

    def describe(self) -> dict[str, Any]:
        """See `contract.Engine.describe`."""
        method = "brute" if self._direct else self.method
        return {
            "device": "cpu", "threads": self.pool.workers, "method": method, "bytes": self.bytes,
            "held": self.bytes + self._kept,
            "costs": [s.cost for s in self._shapes], "tiles": [(s.D, s.G, s.T) for s in self._shapes],
        }  # fmt: skip

    # ------------------------------------------------------------------ samples
    def load(self, start: int, stop: int) -> None:
        """See `contract.Engine.load`."""
        if stop - start > self.capacity:
            raise ValueError(f"samples {start} to {stop}: more than the capacity of {self.capacity}")
        have = gone = 0
        if self.start <= start < self.stop:
            have = min(self.stop, stop) - start
            gone = start - self.start
        self.stop = self.start  # after an error, no samples count as loaded
        if have:
            for line in self._x if gone else ():
                line[:have] = line[gone : gone + have]
        slice_ = max(64, min(READ, self.bytes // 32) // (self.nchan * self.source.dtype.itemsize))
        at = have
        while at < stop - start:
            at = self._take(start + at, min(slice_, stop - start - at), at)
        for row, a, b, value in self.source.fills(start + have, stop - start - have):
            load.fill_cells(self._x, row, have + a, have + b, value + self.offset)
        self.start, self.stop = start, stop
        self._planes.clear()

    def _take(self, start: int, count: int, at: int) -> int:
        """Read samples to the rows from column ``at`` on; returns the column after them."""
        x, width = self._x.reshape(-1), self._x.shape[1]
        pieces = self.source.packed(start, count)
        if pieces is not None:
            for p in pieces:
                n, stride = p.data.shape
                load.turn_packed(p.data.reshape(-1), n, stride, x, width, at, self.nchan, p.down, p.bits, p.high_first)
                at += n
            return at
        for rows, order in self.source.raw(start, count):
            n, way, size = len(rows), direction(order), rows.itemsize
            stored = rows.dtype.str[0] != ">" and size == self._x.itemsize
            if rows.strides[0] == size and way and n > 1:  # each channel is contiguous
                self._x[: self.nchan, at : at + n] = rows.T[::way]
                if self.offset:
                    self._x[: self.nchan, at : at + n] += self._x.dtype.type(self.offset)
            elif rows.strides[1] == size and way and stored and n:
                stride = rows.strides[0] // size
                flat = np.lib.stride_tricks.as_strided(rows[0], ((n - 1) * stride + self.nchan,), (size,))
                offset = self._x.dtype.type(self.offset)
                load.turn_squares(flat, n, stride, x, width, at, self.nchan, way < 0, offset)
            else:
                load.corner_turn(rows, order, self._x, at, self.offset)
            at += n
        return at

    def planes(self, downsamp: int) -> tuple[list[Plane], int]:
        """Rows binned by ``downsamp``, and the binned sample at which they begin."""
        first = -(-self.start // downsamp)
        with self._lock:
            if 1 not in self._planes:
                self._planes[1] = self._unbinned()
            if downsamp not in self._planes:
                count = self.stop // downsamp - first
                made = []
                for i, p in enumerate(self._planes[1]):
                    rows = self._binned.get((downsamp, i))
                    if rows is None:
                        kind = np.float32 if self.maximum == 0 else np.uint16
                        rows = np.zeros((self.nchan + 1, self.capacity // downsamp + T + LANES), kind)
                        self._binned[downsamp, i] = rows
                    self._bin(p.rows, first * downsamp - self.start, count, downsamp, rows)
                    made.append(Plane(rows, p.maximum * downsamp, p.weight))
                self._planes[downsamp] = made
            return self._planes[downsamp], first

    def _bin(self, rows: NDArray[Any], first: int, count: int, downsamp: int, out: NDArray[Any]) -> None:
        """Bin rows in time, with all threads."""
        halves = downsamp.bit_length() - 1
        by_halves = self.maximum and downsamp == 1 << halves
        tasks: list[Callable[[], None]] = []
        for c in range(0, self.nchan, ROWS):
            stop = min(c + ROWS, self.nchan)
            if by_halves:
                flat = rows.reshape(-1), rows.shape[1], first, count, halves, out.reshape(-1), out.shape[1]
                tasks.append(partial(load.halve_often, *flat, c, stop))
            else:
                tasks.append(partial(load.bin_rows, rows, first, count, downsamp, out, c, stop))
        self.pool.run(tasks)

    def _unbinned(self) -> list[Plane]:
        if not _in_bytes(self.maximum, self.tables):
            return [Plane(self._x, self.maximum, 1)]
        for i in range(2):
            if (1, i) not in self._binned:
                self._binned[1, i] = np.zeros(self._x.shape, np.uint8)
        low, high = self._binned[1, 0], self._binned[1, 1]
        raw = self._x.view(np.uint8) if sys.byteorder == "little" else self._x.byteswap().view(np.uint8)
        split = partial(load.split_bytes, raw, low, high)
        self.pool.run([partial(split, c, min(c + ROWS, self.nchan)) for c in range(0, self.nchan, ROWS)])
        return [Plane(low, 255, 1), Plane(high, self.maximum >> 8, 256)]

    def _largest(self, table: Table) -> int:
        """Largest element of a plane that is binned for this table; 0 for floats."""
        return (255 if _in_bytes(self.maximum, self.tables) else self.maximum) * table.downsamp

    # ------------------------------------------------------------------ tiles
    def _shape(self, table: Table) -> Shape:
        """The cheapest shape, from the cost of a few of its programs."""
        ndm = len(table.delays)
        largest = self._largest(table)
        room = 65535 // largest if largest else 2**30
        if not largest:
            trial = (1, FLOAT_GROUP) if self.method == "brute" else (64, FLOAT_GROUP)
            return self._try(table, min(trial[0], ndm), trial[1], self._time(table, T), room)
        D = min(64, ndm)
        direct = Shape(D, 1, _fitting(self.nchan, 1, room, 8), self._time(table, T), DIRECT + STREAM / D)
        if self.method == "brute" or self._direct:
            return direct
        found = [direct]
        for D, G, samples in (*CANDIDATES, *DEEP) if self.method == "tree" else CANDIDATES:
            if room >= G and 2 * self.nchan >= G and (ndm >= D or CANDIDATES[0][0] == D):
                found.append(self._try(table, min(D, ndm), G, self._time(table, samples), room))
        return min(found, key=lambda s: s.cost)

    def _time(self, table: Table, most: int) -> int:
        """Samples of a time block, at most ``most``, so that whole blocks fill the span with little left over."""
        if self.span is None:
            return most
        count = max(1, self.span // table.downsamp)
        return -(-count // (-(-count // most) * LANES)) * LANES

    def _try(self, table: Table, D: int, G: int, samples: int, room: int) -> Shape:
        ndm, NB = len(table.delays), _fitting(self.nchan, G, max(1, room // G), 4)
        shape = Shape(D, G, NB, samples, 0.0)
        costs = []
        for m in sorted({0, (ndm - D) // 2, ndm - D}):
            *_, need, cost = self._program(table, shape, m, D, 0)
            costs.append((cost / (samples * D * self.nchan) + STREAM / D) * (1 + 2 * need[2] / CACHE))
        shape.cost = float(np.mean(costs))
        return shape

    def _program(self, table: Table, shape: Shape, m: int, D: int, stride: int) -> tuple[Any, ...]:
        """The program of the tile of DMs ``m : m + D``; see `program.make_program`."""
        n, rows = self._padded(table, m, D, shape.G * shape.NB)
        C, levels = n.shape[1], shape.G.bit_length() - 1
        ops = np.empty((D * C, 4), np.int64)
        fin = np.empty(D * C // shape.G, np.int64)
        seg = np.empty((C // shape.G, levels + 1), np.int64)
        need = np.zeros(3, np.int64)
        work = program.program_scratch(D, shape.G)
        k, cost = program.make_program(
            n, rows, shape.G, shape.NB, shape.T, stride, shape.T // 2, work, ops, fin, seg, need
        )
        return ops[:k].copy(), fin, seg, need, cost

    def _padded(self, table: Table, m: int, D: int, multiple: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Delays of a tile, with channels of zeros up to a multiple, and the row of each channel."""
        C = -(-self.nchan // multiple) * multiple
        n = np.empty((D, C), np.int32)
        n[:, : self.nchan] = table.delays[m : m + D]
        n[:, self.nchan :] = n[:, self.nchan - 1 : self.nchan]
        return n, np.minimum(np.arange(C, dtype=np.int64), self.nchan)

    # ------------------------------------------------------------------ sums
    def sums(
        self, table: int, first: int, count: int, out: NDArray[Any], column: int = 0, progress: Any = None
    ) -> None:
        """See `contract.Engine.sums`."""
        shape, ndm = self._shapes[table], len(self.tables[table].delays)
        planes = self.planes(self.tables[table].downsamp)
        tasks: list[Callable[[], None]] = []
        units = []
        for m in range(0, ndm, shape.D):
            for at, n in self._pieces(count, -(-ndm // shape.D)):
                tasks.append(partial(self._tile, table, planes, m, first + at, n, out, m, column + at))
                units.append(min(shape.D, ndm - m) * n)
        self.pool.run(tasks, units=units, progress=progress)

    def _pieces(self, count: int, tiles: int) -> list[tuple[int, int]]:
        """First sample and length of the pieces in time into which tiles are divided, enough for all threads."""
        pieces = max(1, min(-(-count // (8 * T)), -(-4 * self.pool.workers // tiles)))
        step = -(-count // pieces // T) * T if pieces > 1 else max(1, count)
        return [(at, min(step, count - at)) for at in range(0, count, step)]

    def search(
        self, table: int, first: int, count: int, low: int, high: int, what: Detection, progress: Any = None
    ) -> NDArray[np.float64]:
        """See `contract.Engine.search`.

        It works on as many tiles at a time as there are threads: all threads sum, then all threads detect.
        """
        shape, ndm = self._shapes[table], len(self.tables[table].delays)
        planes = self.planes(self.tables[table].downsamp)
        tiles = list(range(0, ndm, shape.D))
        most = min(self.pool.workers, len(tiles))
        if self._series.size < most * shape.D * count or self._series.dtype != self.dtype:
            self._series = np.empty(most * shape.D * count, self.dtype)
        found = []
        for i in range(0, len(tiles), most):
            now = tiles[i : i + most]
            rows = min(now[-1] + shape.D, ndm) - now[0]
            series = self._series[: rows * count].reshape(rows, count)
            adding = [
                partial(self._tile, table, planes, m, first + at, n, series, m - now[0], at)
                for m in now
                for at, n in self._pieces(count, len(now))
            ]
            self.pool.run(adding)
            step = max(1, min(16, -(-rows // (4 * self.pool.workers))))
            looking = [
                partial(self._look, series[r : r + step], now[0] + r, first, low, high, what)
                for r in range(0, rows, step)
            ]
            units = [min(step, rows - r) for r in range(0, rows, step)]
            found += self.pool.run(looking, units=units, progress=progress)
            check_events(sum(map(len, found)), what)
        return np.concatenate(found)

    def _look(
        self, sums: NDArray[Any], m: int, first: int, low: int, high: int, what: Detection
    ) -> NDArray[np.float64]:
        """Events in the series of the DMs from index ``m`` on, which begin at sample ``first``."""
        D, count = sums.shape
        valid = np.clip(what.valid[m : m + D] - first, 0, count)
        found = self._scratch("found", 4 * ROOM, np.float64).reshape(-1, 4)
        while True:
            n = _search_rows(sums, valid, low - first, high - first, what, found)
            if n <= len(found):
                break
            found = np.empty((n, 4))
        events = sorted_events(found[:n])
        events[:, 0] += m
        events[:, 1] += first
        return events

    def _tile(
        self, table: int, planes: tuple[list[Plane], int], m: int, first: int, count: int, out: NDArray[Any],
        row: int, column: int,
    ) -> None:  # fmt: skip
        """Sum one tile of DMs over one range of time."""
        tab, shape = self.tables[table], self._shapes[table]
        D = min(shape.D, len(tab.delays) - m)
        parts, origin = planes
        one: Any = np.uint32 if self.maximum else np.float32  # int32 sums have the same bits, and share the code
        flat, width = out.reshape(-1).view(one), out.shape[1]
        start = self.dtype.type(-self.offset * tab.downsamp * self.nchan).view(one)
        for i, plane in enumerate(parts):
            if not plane.maximum and self.maximum:
                continue
            whole = 65535 // plane.maximum if plane.maximum else 2**30
            weight = one(plane.weight)
            x, t0 = plane.rows.reshape(-1), first - origin
            kind = np.float32 if self.maximum == 0 else np.uint16
            acc = self._scratch("acc", D * shape.T, kind)
            if shape.G == 1:
                starts, C = self._starts(tab, shape, m, D, plane.rows.shape[1])
                per = max(1, whole // shape.NB) * shape.NB
                program.run_direct(
                    x,
                    t0,
                    count,
                    starts,
                    D,
                    C,
                    shape.NB,
                    shape.T,
                    per,
                    acc,
                    flat,
                    width,
                    row,
                    column,
                    weight,
                    start,
                    i == 0,
                )
                continue
            ops, fin, seg, need, _ = self._program_of(table, shape, m, D, plane.rows.shape[1])
            even, odd, F = (self._scratch(k, int(v) + LANES, kind) for k, v in zip("abc", need, strict=True))
            groups = len(seg)
            per = max(1, whole // shape.G // shape.NB) * shape.NB
            program.run_program(
                x, t0, count, D, shape.NB, shape.T, groups, per, ops, fin, seg, even, odd, F, acc, flat, width,
                row, column, weight, start, i == 0,
            )  # fmt: skip

    def _starts(self, table: Table, shape: Shape, m: int, D: int, stride: int) -> tuple[NDArray[np.int64], int]:
        n, rows = self._padded(table, m, D, shape.NB)
        C = n.shape[1]
        starts = (n + rows * stride).T.reshape(C // shape.NB, shape.NB, D).transpose(0, 2, 1)
        return np.ascontiguousarray(starts).reshape(-1), C

    def _program_of(self, table: int, shape: Shape, m: int, D: int, stride: int) -> tuple[Any, ...]:
        key = (m, stride)
        with self._lock:
            made = shape.programs.get(key)
        if made is None:
            made = self._program(self.tables[table], shape, m, D, stride)
            with self._lock:
                if self._kept + made[0].nbytes + made[1].nbytes <= self._keep and key not in shape.programs:
                    self._kept += made[0].nbytes + made[1].nbytes
                    shape.programs[key] = made
        return made

    def _scratch(self, name: str, size: int, kind: Any) -> NDArray[Any]:
        """A buffer of this thread with at least ``size`` elements; it grows and is used again."""
        held: dict[Any, NDArray[Any]] = self._local.__dict__
        key = name + np.dtype(kind).char
        if key not in held or held[key].size < size:
            held[key] = np.zeros(size + size // 8, kind)
        return held[key]


def _fitting(nchan: int, G: int, most: int, largest: int) -> int:
    """Groups that are added at a time: a power of two up to ``most`` that adds few channels of zeros."""
    NB = largest
    while NB > 1 and (most < NB or -(-nchan // (G * NB)) * G * NB > 1.07 * -(-nchan // G) * G):
        NB //= 2
    return NB


def _in_bytes(largest: int, tables: Sequence[Table]) -> bool:
    """Whether low and high bytes are added separately: samples are large, or their binned sums overflow 16 bits."""
    return largest > SPLIT or largest * max((t.downsamp for t in tables), default=1) > 65535


def bytes_needed(source: Source, tables: Sequence[Table], capacity: int) -> int:
    """Bytes that an `Engine` needs for ``capacity`` samples: input, binned copies, delays, a slice to read."""
    rows = source.nchan + 1
    wide = 4 if source.dtype.kind == "f" else 2
    top = source.maximum or 256**source.dtype.itemsize - 1
    one = 4 if source.dtype.kind == "f" else 2 if top > 255 else 1
    split = source.dtype.kind != "f" and _in_bytes(top, tables)
    total = rows * (capacity + T + LANES) * (one + (2 if split else 0))
    for b in {t.downsamp for t in tables} - {1}:
        total += rows * (capacity // b + T + LANES) * wide * (2 if split else 1)
    return total + sum(t.delays.nbytes for t in tables) + total // 16


class _Rows:
    """The search of the rows of a tile, one after the other, in the same scratch memory.

    Its functions are compiled one by one, so that two processes can share the work.  Functions that only some data need
    are compiled when they are needed.
    """

    def __init__(self, sums: NDArray[Any], what: Detection) -> None:
        self.sums, self.what, count = sums, what, sums.shape[1]
        self.widths = np.array(what.widths, np.int64)
        self.scales = (1 / (UNIT * np.sqrt(self.widths))).astype(np.float32)
        self.kind, self.spare = KINDS.index(sums.dtype.kind), what.scratch(sums.dtype)
        blocks, parts = -(-count // what.block), what.parts
        self.counts, self.levels = np.zeros(detect.BINS + 1, np.int64), np.empty((blocks, 2))
        self.noise = np.empty(3)
        self.prefix = np.zeros(count + what.widths[-1] + WIDE + 1, np.int32)
        self.flat = np.empty(0, sums.dtype)
        self.means, self.drifts = np.empty((blocks + 2) * parts), np.full(blocks, -1.0)
        self.fit, self.work, self.lanes = np.empty(3 * parts), np.empty(10 * parts), np.empty(baseline.LANES)
        room = detect.SEGMENT + what.widths[-1] + WIDE + 1
        self.best, self.which = np.zeros(room, np.float32), np.zeros(room, np.int32)
        self.threshold, self.dip = np.float32(what.threshold), np.float32(what.dip)

    def find_levels(self, row: int, count: int) -> None:
        """Find the levels of the blocks of a row, and subtract their drifts."""
        y, block, parts = self.sums[row], self.what.block, self.what.parts
        work = self.means, self.fit, self.work
        if found := baseline.find_levels(y, count, block, parts, *work, self.lanes, self.drifts, self.levels):
            self.subtract(row, count, found)

    def subtract(self, row: int, count: int, found: int) -> None:
        """Subtract the drifts of the levels, which `find_levels` has ``found`` in so many blocks."""
        y, block, parts = self.sums[row], self.what.block, self.what.parts
        if not self.flat.size:
            self.flat = np.empty_like(y)
        work = self.means, self.fit, self.work
        subtract = jit.interpreted_if_small(baseline.subtract_baselines, BASELINE_STEPS * found, BASELINE_WORTH)
        subtract(y, count, block, parts, self.kind, *work, self.drifts, self.levels, self.flat)

    def normalise(self, row: int, count: int) -> None:
        """Set the prefix sums of the first ``count`` samples of a row."""
        what = self.what
        detect.normalise(
            self.sums[row], count, what.block, what.noise_kind, what.parts, self.counts, self.spare, self.flat,
            self.drifts, self.levels, self.noise, self.prefix,
        )  # fmt: skip

    def find(self, row: int, count: int, low: int, high: int, found: NDArray[np.float64], n: int) -> int:
        """Add the events of the row to ``found[n:]``; returns their new number."""
        more: int = detect.find_events(
            self.prefix, count, low, high, self.widths, self.scales, self.threshold, self.what.every, self.dip,
            self.best, self.which, row, found, n,
        )  # fmt: skip
        return more


def _search_rows(
    sums: NDArray[Any], valid: NDArray[np.int64], low: int, high: int, what: Detection, found: NDArray[np.float64]
) -> int:
    """Events in the rows of a tile, for windows centred on columns ``low : high``; column 0 begins a noise block.

    Row ``i`` has ``valid[i]`` columns.  ``found`` gets (row, column, index of the width, S/N); returns their number.
    """
    rows, n = _Rows(sums, what), 0
    for i, count in enumerate(valid.tolist()):
        if count > 1:
            if what.parts:
                rows.find_levels(i, count)
            rows.normalise(i, count)
            n = rows.find(i, count, low, high, found, n)
    return n


USES = {
    "find": detect.find_events, "normalise": detect.normalise, "find_levels": baseline.find_levels,
    "subtract": baseline.subtract_baselines,
}  # fmt: skip
"""Functions that `compile_search` compiles, starting with the one that takes longest.  One other process compiles the
first two while this process compiles the sums; whichever is free then compiles the others."""


def compile_beside(dtype: np.dtype[Any]) -> None:
    """Start to compile the search of sums of a type in other processes, where it is not stored.

    This process compiles the sums meanwhile.
    """
    for name, kernel in USES.items():
        jit.compile_beside(f"from {__name__} import compile_search; compile_search({dtype.name!r}, {name!r})", kernel)


def compile_search(dtype: str, function: str) -> None:
    """Call a function of a search of sums of a type, on two samples without events."""
    parts = 0 if function in ("normalise", "find") else LEAST_PARTS
    rows = _Rows(np.zeros((1, 2), dtype), Detection(2, (1,), 1.0, "robust", False, np.full(1, 2), parts=parts))
    if function == "find":
        rows.find(0, 2, 0, 2, np.empty((1, 4)), 0)
    elif function == "subtract":
        rows.subtract(0, 2, 1_000_000)  # more than the interpreter would do
    else:
        getattr(rows, function)(0, 2)
