"""Missing and masked samples, replaced by values drawn from the good samples of their channel."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.tasks import TaskPool
from skysieve.dedispersion.contract import Room, block_samples
from skysieve.dedispersion.data.filterbank import ChangedReader, Filterbank, Paths, as_filterbank

from .dropouts import NO_RECTANGLES, Watch, dropped_rectangles
from .masks import SLICE, Mask
from .missing import ENOUGH, Losses

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["fill_dropped"]

MOST_VALUES = 1024
"""Integers with at most this many values are drawn from their histogram, others from a normal distribution."""
KEPT = 2**26
"""Bytes of the levels that stay in memory, about; also of the samples from which threads find levels."""
LEAST_SECONDS, PIECE_SECONDS, NEAR, FAR = 2e-3, 0.016, 8, 24
"""A missing stretch of at least ``LEAST_SECONDS`` gets the level beside it: the median of the means of the nearest
``NEAR`` pieces of ``PIECE_SECONDS`` with good samples, among ``FAR`` pieces."""
SURE = 4.0
"""The level beside a missing stretch differs from that of the block if the mean over its channels differs by more than
this many standard errors, or if the scatter of its channels is more than 1.5 times that of noise."""
MOST_EDGES = 1024
"""Stretches whose levels stay in memory."""
FEWEST_CHANNELS = 64
"""Fewest channels whose levels a thread computes."""
MOST_ROWS = 128
"""Rows in which a thread replaces samples at a time."""
BETWEEN = 64
"""Samples between two missing stretches that are treated as one, at most."""
COARSEST = 15
"""Samples with a lower maximum keep the values of the histogram."""


_Piece = tuple["NDArray[Any]", "NDArray[np.bool_]"]
"""Rows of samples, and which of them are gone, which is empty if none are."""


class RepairedReader(ChangedReader):
    """A reader of a filterbank whose missing and masked samples are drawn from the good ones of their channel.

    The good samples are those of the noise block.  If less than a quarter of it is good, they are those of the nearest
    block before it, or else after it, of which a quarter is good; if there is none, of the nearest block with any good
    sample.  A channel without good samples is 0.  Where a stretch is missing, the values move from the level before it
    to the level after it, so that a drift, or a step of the gain elsewhere in the block, makes no edges.  The values
    depend on the numbers of channel and sample and on the good samples only, not on the ranges in which data are read.

    Parameters
    ----------
    fb : Filterbank
    lost : numpy.ndarray of int64, shape (n, 4)
        Missing samples, as `Losses.rects`.
    cells : Mask, optional
        Masked samples.
    block : int
        Samples of a block.
    threads : int, optional
    """

    def __init__(
        self, fb: Filterbank, lost: NDArray[np.int64], cells: Mask | None, block: int, threads: int | None = None
    ) -> None:
        super().__init__(fb)
        self.lost, self.cells, self.block, self.threads = lost, cells, block, threads
        self.dtype = fb.dtype.newbyteorder("=")
        self.takes_room = fb.takes_room
        self._turn, self._reading = Lock(), Lock()
        self._losses = Losses(np.concatenate([lost, full(fb.gaps, fb.nchan)]))
        self._most = max(64, SLICE // fb.nchan)
        self._good = self._counts()
        self._levels: dict[int, Future[_Levels]] = {}
        self._edges: dict[tuple[int, ...], tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        self._piece = max(4, round(PIECE_SECONDS / fb.tsamp))
        self._rough = self.dtype.kind != "f" and (self.maximum or np.iinfo(self.dtype).max) <= COARSEST

    def _gone(self, start: int, count: int) -> NDArray[np.bool_] | None:
        """True for samples that are missing or masked, shape (count, nchan); None if there are none."""
        rects = self._losses.within(start, start + count)
        masked = None
        if self.cells is not None:
            size = self.cells.block
            numbers = np.arange(start // size, (start + count - 1) // size + 1)
            cells = self.cells.at(numbers)
            if cells.any():
                masked = cells[:, (start + np.arange(count)) // size - numbers[0]].T
        if masked is None and not len(rects):
            return None
        gone = np.zeros((count, self.fb.nchan), bool) if masked is None else np.ascontiguousarray(masked)
        for first, last, low, high in rects.tolist():
            gone[first - start : last - start, low:high] = True
        return gone

    def _stretches(self, start: int, stop: int) -> Iterator[_Stretch]:
        """Stretches of samples ``start : stop`` that hold all that are missing or masked, one after the other.

        None is longer than ``_most`` samples or in more than one block.
        """
        ranges = self._losses.within(start, stop)[:, :2]
        if self.cells is not None and start < stop:
            size = self.cells.block
            numbers = np.arange(start // size, (stop - 1) // size + 1)
            some = numbers[self.cells.at(numbers).any(axis=0)]
            masked = np.stack([np.maximum(some * size, start), np.minimum((some + 1) * size, stop)], axis=1)
            ranges = np.concatenate([ranges, masked])
        if not len(ranges):
            return
        ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
        latest = np.maximum.accumulate(ranges[:, 1])
        fresh = np.flatnonzero(np.append(True, ranges[1:, 0] > latest[:-1] + BETWEEN))
        for at, last in zip(ranges[fresh, 0].tolist(), np.maximum.reduceat(latest, fresh).tolist(), strict=True):
            while at < last:
                end = min(last, at + self._most, (at // self.block + 1) * self.block)
                gone = self._gone(at, end - at)
                yield _Stretch(at, np.zeros((end - at, self.fb.nchan), bool) if gone is None else gone)
                at = end

    def _counts(self) -> NDArray[np.int64]:
        """Good samples of each channel, by block."""
        good = np.zeros((-(-self.nsamp // self.block), self.fb.nchan), np.int64)
        for i in range(len(good)):
            first, last = self._ends(i)
            good[i] = last - first
            for stretch in self._stretches(first, last):
                good[i] -= stretch.gone.sum(axis=0)
        return good

    def _ends(self, number: int) -> tuple[int, int]:
        """First sample of a block, and the last + 1."""
        return number * self.block, min((number + 1) * self.block, self.nsamp)

    def _donors(self, number: int) -> NDArray[np.int64]:
        """The block from which each channel takes values; -1 for a channel without good samples."""
        found = np.full(self.fb.nchan, -1)
        away = np.abs(np.arange(len(self._good)) - number)
        order = np.lexsort((np.arange(len(away)) > number, away))
        before = [number, *range(number - 1, -1, -1), *range(number + 1, len(self._good))]
        quarter: NDArray[np.bool_] = np.asarray(self._good * ENOUGH >= self.block)
        for enough, blocks in ((quarter, before), (np.asarray(self._good > 0), order.tolist())):
            for i in blocks:
                if (found >= 0).all():
                    return found
                found[(found < 0) & enough[i]] = i
        return found

    def _levels_of(self, numbers: Sequence[int], held: _Held, pool: TaskPool) -> dict[int, _Levels]:
        """Levels of blocks for the channels in which samples are missing.

        Another thread that needs the same block waits for the first.
        """
        with self._turn:
            mine: dict[int, Future[_Levels]] = {i: Future() for i in numbers if i not in self._levels}
            self._levels.update(mine)
            known = {i: self._levels[i] for i in numbers}
        try:
            for i, made in self._learned(list(mine), held, pool).items():
                mine[i].set_result(made)
        except BaseException as error:
            for i, one in mine.items():
                self._levels.pop(i, None)
                if not one.done():  # an interrupt can come between two results
                    one.set_exception(error)
            raise
        found = {i: one.result() for i, one in known.items()}
        most = max(2, KEPT // max(1, *(one.nbytes for one in found.values())))
        with self._turn:
            while len(self._levels) > most:
                self._levels.pop(next(iter(self._levels)))
        return found

    def _learned(self, numbers: Sequence[int], held: _Held, pool: TaskPool) -> dict[int, _Levels]:
        """Levels of blocks, from samples that are held as far as possible."""
        found: dict[int, _Levels] = {}
        tasks: list[Callable[[], None]] = []
        each = -(-pool.workers // max(1, len(numbers)))
        for number in numbers:
            first, last = self._ends(number)
            channels = self._good[number] < last - first
            made = found[number] = _Levels(self.fb, channels)
            donors = self._donors(number)
            for i in np.unique(donors[channels & (donors >= 0)]).tolist():
                which = np.where(channels & (donors == i), made.which, -1)
                first, last = self._ends(i)
                if held.has(first, last):
                    tasks += made.learn(self._pieces(first, held.get(first, last)), which, each)
                    continue
                edges = sorted({first, last, *(edge for edge in (held.start, held.stop) if first < edge < last)})
                for a, b in pairwise(edges):
                    for at in range(a, b, step := self._most * pool.workers):
                        pieces = self._pieces(at, held.get(at, min(b, at + step)))
                        pool.run(made.learn(pieces, which, pool.workers))
        pool.run(tasks)
        pool.run([made.end for made in found.values()])
        return found

    def _pieces(self, start: int, rows: NDArray[Any]) -> list[_Piece]:
        """Rows in pieces of at most ``_most``, each with the samples of it that are gone; empty if there are none."""
        found: list[_Piece] = []
        nothing, at, stop = np.empty((0, 0), bool), start, start + len(rows)
        for stretch in [*self._stretches(start, stop), _Stretch(stop, nothing)]:
            for first in range(at, stretch.start, self._most):
                found.append((rows[first - start : min(stretch.start, first + self._most) - start], nothing))
            at = stretch.stop
            found.append((rows[stretch.start - start : at - start], stretch.gone))
        return found

    def _rows(self, start: int, count: int, room: Room | None = None) -> NDArray[Any]:
        """Samples x channels of the filterbank in memory that belongs to the caller."""
        if self.takes_room:  # files are read into new memory, or into ``room``
            return np.ascontiguousarray(self.fb.block(start, count, room).T, self.dtype)
        with self._reading:
            return np.array(self.fb.block(start, count).T, self.dtype, order="C")

    def read(self, start: int, count: int, room: Room | None = None) -> NDArray[Any]:
        """Samples ``start : start + count``, shape (count, nchan); in ``room`` if the filterbank can read into it."""
        rows = self._rows(start, count, room)
        gone = list(self._stretches(start, start + count))
        if gone:
            with TaskPool(self.threads) as pool:
                self._repair(_Held(start, rows, self._rows), gone, pool)
        return rows

    def _repair(self, held: _Held, gone: list[_Stretch], pool: TaskPool) -> None:
        """Replace the samples that are gone."""
        levels = self._levels_of(sorted({one.start // self.block for one in gone}), held, pool)
        tasks: list[Callable[[], None]] = []
        parts = shares(self.fb.nchan, -(-2 * pool.workers // len(gone)))
        for one in gone:
            rows, fill = held.get(one.start, one.stop), levels[one.start // self.block].fill
            for part in _parts(np.asarray(one.gone.any(axis=1))):
                given = one.start + part.start, rows[part], one.gone[part]
                tasks += [partial(fill, *given, *share) for share in parts]
        pool.run(tasks)
        if self._rough:
            return
        rects = self._losses.rects  # whole, not cut at blocks
        some = (rects[:, 0] < held.stop) & (rects[:, 1] > held.start)
        some &= (rects[:, 1] - rects[:, 0]) * self.fb.tsamp >= LEAST_SECONDS
        rects = rects[some]
        rects[:, 3] = np.minimum(rects[:, 3], self.fb.nchan)
        most = max(1, KEPT // (NEAR * self._piece * self.fb.nchan * self.dtype.itemsize))

        def level(some: NDArray[np.int64]) -> None:
            for rect in some.tolist():
                self._level(rect, held, gone, levels)

        pool.run([partial(level, rects[at::most]) for at in range(min(most, len(rects)))])

    def _level(self, rect: list[int], held: _Held, gone: list[_Stretch], levels: dict[int, _Levels]) -> None:
        """Give a missing rectangle the level beside it."""
        from . import cpu_dropouts

        first, last, low, high = rect
        begin = bisect_right(gone, first, key=lambda one: one.stop)
        for one in gone[begin : bisect_left(gone, last, key=lambda one: one.start)]:
            made = levels[one.start // self.block]
            which = made.which[low:high]
            before, after = self._beside(rect, held)
            mean, sigma = made.mean[which], made.sigma[which]
            known = (which >= 0) & np.isfinite(before) & np.isfinite(after) & (sigma > 0)
            error = 1.25 * sigma[known] / math.sqrt(NEAR * self._piece)
            if not any(_differs((level - mean)[known] / error) for level in (before, after)):
                continue
            before, after = (np.where(known, level, mean) for level in (before, after))
            rows, limits = held.get(one.start, one.stop), (float(made.low), float(made.high))
            cpu_dropouts.shift(rows, one.start, one.gone, np.array(rect), mean, before, after, *limits, made.whole)

    def _beside(self, rect: Sequence[int], held: _Held) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Levels of the channels of a rectangle before and after it; NaN for those without good samples."""
        key = tuple(rect)
        known = self._edges.get(key)
        if known is not None:
            return known
        first, last, low, high = rect
        before, after = self._line(first, True, low, high, held), self._line(last, False, low, high, held)
        before, after = (np.where(np.isnan(a), b, a) for a, b in ((before, after), (after, before)))
        with self._turn:
            while len(self._edges) >= MOST_EDGES:
                self._edges.pop(next(iter(self._edges)))
            self._edges[key] = before, after
        return before, after

    def _line(self, at: int, back: bool, low: int, high: int, held: _Held, far: int = NEAR) -> NDArray[np.float64]:
        """Level of channels beside a sample, from the pieces nearest to it: before it if ``back``, otherwise after it.

        The slope that the channels share is extrapolated to the sample.
        """
        from . import cpu_dropouts

        piece = self._piece
        count = min(far, (at if back else self.nsamp - at) // piece)
        if not count:
            return np.full(high - low, np.nan)
        start = at - count * piece if back else at
        rows, gone = held.get(start, start + count * piece), self._gone(start, count * piece)
        means = _means(rows[:, low:high], None if gone is None else gone[:, low:high], piece)
        if count == far == NEAR and np.isnan(means).any():
            return self._line(at, back, low, high, held, FAR)
        level, scatter, slope = np.empty((3, high - low))
        cpu_dropouts.nearest_levels(np.ascontiguousarray(means[:: -1 if back else 1]), NEAR, level, scatter, slope)
        slope = slope[np.isfinite(slope)]
        shared = float(np.median(slope)) if len(slope) else 0.0
        if abs(shared) * math.sqrt(len(slope)) < SURE * 1.25**2 / math.sqrt(NEAR // 2 / 2):
            shared = 0.0
        return np.asarray(level + shared * scatter)


def _means(rows: NDArray[Any], gone: NDArray[np.bool_] | None, piece: int) -> NDArray[np.float64]:
    """Means of the good samples of each channel in pieces of some samples; NaN if less than half of them are good."""
    each = (len(rows) // piece, piece, rows.shape[1])
    if gone is None and rows.dtype.kind != "f":
        return np.asarray(rows.reshape(each).sum(axis=1) / piece)
    good = np.isfinite(rows) if gone is None else ~gone & np.isfinite(rows)
    number = good.reshape(each).sum(axis=1)
    total = np.where(good, rows, 0).reshape(each).sum(axis=1, dtype=np.float64)
    return np.where(2 * number >= piece, total / np.maximum(number, 1), np.nan)


def _differs(deviations: NDArray[np.float64]) -> bool:
    """Whether deviations, in standard errors, are more than noise: their mean, or their scatter."""
    if not len(deviations):
        return False
    mean, scatter = float(np.mean(deviations)), 1.4826 * float(np.median(np.abs(deviations)))
    return abs(mean) * math.sqrt(len(deviations)) > SURE or scatter > 1.5


class _Levels:
    """Histograms, or means and standard deviations, of some channels."""

    def __init__(self, fb: Filterbank, channels: NDArray[np.bool_]) -> None:
        self.which = np.where(channels, np.cumsum(channels) - 1, -1)
        count, kind, bits = int(channels.sum()), fb.dtype.kind, 8 * fb.dtype.itemsize
        self.low = -(2 ** (bits - 1)) if kind == "i" else 0
        self.high = self.low + 2**bits - 1 if kind == "i" else fb.maximum or 2**bits - 1
        self.whole = kind != "f"
        values = self.high - self.low + 1
        self.counts = np.zeros((count, values), np.int32) if self.whole and values <= MOST_VALUES else None
        self.sums = np.zeros(count, np.int64), *(np.zeros(count) for _ in range(3))
        self.mean, self.sigma = np.zeros(count), np.zeros(count)
        self._turn = Lock()

    def learn(self, pieces: list[_Piece], which: NDArray[np.int64], most: int) -> list[Callable[[], None]]:
        """Tasks, at most ``most``, that add the good samples of channels; ``which`` is their number here, or -1."""
        if self.counts is None:  # sums of floats, which depend on the order
            return [partial(self._sum, pieces, which, *part) for part in shares(len(which), most)]
        rows = sum(len(piece[0]) for piece in pieces)
        each = max(-(-len(pieces) // most), -(-len(pieces) * 4 * self.counts.shape[1] // max(1, rows)))
        return [partial(self._count, pieces[at : at + each], which) for at in range(0, len(pieces), each)]

    def _sum(self, pieces: list[_Piece], which: NDArray[np.int64], low: int, high: int) -> None:
        from . import cpu_dropouts

        for rows, gone in pieces:
            cpu_dropouts.scatters(rows, gone, which, *self.sums, low, high)

    def _count(self, pieces: list[_Piece], which: NDArray[np.int64]) -> None:
        from . import cpu_dropouts

        assert self.counts is not None
        counts, some = np.zeros_like(self.counts), np.flatnonzero(which >= 0)
        place = which[some] * counts.shape[1]
        for rows, gone in pieces:
            cpu_dropouts.histograms(rows, gone, some, place, self.low, counts)
        with self._turn:
            self.counts += counts

    def end(self) -> None:
        """Finish: all samples have been added."""
        if self.counts is not None:
            values = np.arange(self.counts.shape[1]) + self.low
            number = np.maximum(self.counts.sum(axis=1), 1)
            self.mean[:] = self.counts @ values / number
            self.sigma[:] = np.sqrt(np.maximum(self.counts @ values**2 / number - self.mean**2, 0))
            np.cumsum(self.counts, axis=1, out=self.counts)
            return
        count, origin, total, square = self.sums
        mean = total / np.maximum(count, 1)
        self.mean[:] = origin + mean
        self.sigma[:] = np.sqrt(np.maximum(square / np.maximum(count, 1) - mean * mean, 0))

    def fill(self, start: int, rows: NDArray[Any], gone: NDArray[np.bool_], low: int, high: int) -> None:
        """Replace the samples of the channels ``low:high`` that are gone."""
        from . import cpu_dropouts

        given = rows, start, gone, self.which
        if self.counts is None:
            limits = float(self.low), float(self.high)
            cpu_dropouts.draw_noise(*given, self.mean, self.sigma, *limits, self.whole, low, high)
        else:
            cpu_dropouts.draw(*given, self.counts, self.low, low, high)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        held = [self.mean, self.sigma, *self.sums] if self.counts is None else [self.counts]
        return sum(a.nbytes for a in held)


@dataclass(frozen=True)
class _Stretch:
    """Samples from ``start`` on, of which ``gone`` tells which are missing or masked."""

    start: int
    gone: NDArray[np.bool_]

    @property
    def stop(self) -> int:
        return self.start + len(self.gone)


@dataclass(frozen=True)
class _Held:
    """Rows of samples from ``start`` on, which are in memory; ``read(start, count)`` reads others."""

    start: int
    rows: NDArray[Any]
    read: Callable[[int, int], NDArray[Any]]

    @property
    def stop(self) -> int:
        return self.start + len(self.rows)

    def has(self, first: int, last: int) -> bool:
        return self.start <= first and last <= self.stop

    def get(self, first: int, last: int) -> NDArray[Any]:
        """Samples ``first : last``."""
        if self.has(first, last):
            return self.rows[first - self.start : last - self.start]
        return self.read(first, last - first)


def _parts(some: NDArray[np.bool_]) -> list[slice]:
    """Ranges of at most `MOST_ROWS` rows that cover all rows of which something is gone.

    >>> _parts(np.array([False, True, True, False, True]))
    [slice(1, 3, None), slice(4, 5, None)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], some, [False]]))).reshape(-1, 2).tolist()
    return [slice(at, min(b, at + MOST_ROWS)) for a, b in edges for at in range(a, b, MOST_ROWS)]


def shares(nchan: int, most: int) -> list[tuple[int, int]]:
    """Ranges of channels, first and last + 1: at most ``most``, of at least `FEWEST_CHANNELS` if there are so many.

    >>> shares(300, 2), shares(40, 4)
    ([(0, 150), (150, 300)], [(0, 40)])
    """
    count = max(1, min(most, nchan // FEWEST_CHANNELS))
    return list(pairwise((np.arange(count + 1) * nchan // count).tolist()))


def full(ranges: NDArray[np.int64], nchan: int) -> NDArray[np.int64]:
    """Ranges of samples as rectangles of all channels."""
    return np.insert(ranges, 2, [[0], [nchan]], axis=1).astype(np.int64).reshape(-1, 4)


def repaired(
    fb: Filterbank, lost: NDArray[np.int64], cells: Mask | None, block: int, threads: int | None = None
) -> Filterbank:
    """The data with missing and masked samples replaced; see `RepairedReader`."""
    return Filterbank([RepairedReader(fb, lost, cells, block, threads)])


def split_mask(mask: Mask, fb: Filterbank) -> tuple[Mask | None, Mask | None]:
    """A mask of the channels that are masked throughout, and one of the other masked cells; None for an empty one."""
    numbers = np.arange(min(-(-fb.nsamp // mask.block), mask.cells.shape[1]))
    cells = mask.at(numbers)
    whole: NDArray[np.bool_] = np.asarray(cells.all(axis=1))
    rest = cells & ~whole[:, None]
    return (
        Mask.channels(fb.nchan, np.flatnonzero(whole)) if whole.any() else None,
        Mask(rest, mask.block) if rest.any() else None,
    )


def dropped_in(fb: Filterbank, watch: Watch | None = None) -> NDArray[np.int64]:
    """`find_dropped`, if `Watch` suspects dropped data; ``watch`` may have seen the beginning of the data already."""
    own = watch is None
    watch = Watch(fb) if watch is None else watch
    watch.quiet = True
    try:
        if fb.gpu is not None:
            from .cuda.resident import watch_resident

            watch_resident(watch, fb)
        step = max(64, SLICE // fb.nchan)
        while watch.at < fb.nsamp:
            start = watch.at
            count = min(step, fb.nsamp - start)
            pieces = None if watch.units == fb.nchan else fb.packed(start, count)
            for rows in (p.data for p in pieces) if pieces is not None else (rows for rows, _ in fb.raw(start, count)):
                watch.see(start, rows)
                start += len(rows)
        if not watch.suspicious():
            return NO_RECTANGLES
        with TaskPool(watch.threads) as pool:
            return dropped_rectangles(fb, pool)
    finally:
        if own:
            watch.close()


def fill_dropped(data: Filterbank | Paths) -> Filterbank:
    """The data with dropped stretches filled by noise of their channel; ``.lost`` of the result lists the stretches.

    `search` does this itself.  Fill data before `zero_dm` or `requantise` changes their samples.

    Parameters
    ----------
    data : Filterbank, path or sequence of paths

    Returns
    -------
    Filterbank
        `data` itself, if nothing was dropped.

    Examples
    --------
    >>> x = np.random.default_rng(0).integers(80, 120, (8, 4000)).astype(np.uint8)
    >>> x[:, 1000:1500] = 7
    >>> filled = fill_dropped(Filterbank.from_array(x, fch1=1500, foff=-1, tsamp=1e-3))
    >>> filled.lost.tolist(), bool(filled.block(1000, 500).min() >= 80)
    ([[1000, 1500, 0, 8]], True)
    """
    fb = as_filterbank(data)
    lost = dropped_in(fb)
    if not len(lost):
        return fb
    return repaired(fb, lost, None, block_samples(fb.tsamp))
