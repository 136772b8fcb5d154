"""Missing and masked samples, replaced by values drawn from the good samples of their channel."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.tasks import TaskPool
from skysieve.dedispersion.contract import block_samples
from skysieve.dedispersion.data.filterbank import ChangedReader, Filterbank, Paths, as_filterbank

from .dropouts import NO_RECTANGLES, Watch, dropped_rectangles, shares, slice_of
from .masks import SLICE, Mask
from .missing import ENOUGH, Losses

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["fill_dropped"]

MOST_VALUES = 1024
"""Integers with at most this many values are drawn from their histogram, others from a normal distribution."""
KEPT = 2
"""Blocks whose histograms stay in memory."""
LEAST_SECONDS, PIECE_SECONDS, NEAR, FAR = 2e-3, 0.016, 8, 24
"""A missing stretch of at least ``LEAST_SECONDS`` gets the level beside it: the median of the means of the nearest
``NEAR`` pieces of ``PIECE_SECONDS`` with good samples, among ``FAR`` pieces."""
SURE = 4.0
"""The level beside a missing stretch differs from that of the block if the mean over its channels differs by more than
this many standard errors, or if the scatter of its channels is more than 1.5 times that of noise."""
MOST_EDGES = 1024
"""Stretches whose levels stay in memory."""
MOST_ROWS = 16
"""Rows in which a thread replaces samples at a time."""
COARSEST = 15
"""Samples with a lower maximum keep the values of the histogram."""


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
        self._losses = Losses(np.concatenate([lost, full(fb.gaps, fb.nchan)]))
        self._good = self._counts()
        self._levels: dict[int, _Levels] = {}
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

    def _counts(self) -> NDArray[np.int64]:
        """Good samples of each channel, by block."""
        good = np.zeros((-(-self.nsamp // self.block), self.fb.nchan), np.int64)
        for i in range(len(good)):
            for start, count in self._slices(i, 1):
                gone = self._gone(start, count)
                good[i] += count if gone is None else count - gone.sum(axis=0)
        return good

    def _slices(self, number: int, threads: int) -> Iterator[tuple[int, int]]:
        """First sample and length of the slices of a block, of bounded size."""
        step = max(64, slice_of(threads) // self.fb.nchan)
        stop = min((number + 1) * self.block, self.nsamp)
        for at in range(number * self.block, stop, step):
            yield at, min(step, stop - at)

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

    def _levels_of(self, number: int, channels: NDArray[np.bool_], pool: TaskPool) -> _Levels:
        """Levels for the channels of a block in which samples are missing."""
        if number not in self._levels:
            made = _Levels(self.fb, channels)
            donors = self._donors(number)
            for i in np.unique(donors[channels & (donors >= 0)]).tolist():
                for start, count in self._slices(i, pool.workers):
                    rows, gone = self._rows(start, count), self._gone(start, count)
                    gone = np.zeros(rows.shape, bool) if gone is None else gone
                    made.learn(rows, gone, channels & (donors == i), pool)
            made.end()
            while len(self._levels) >= KEPT:
                self._levels.pop(next(iter(self._levels)))
            self._levels[number] = made
        return self._levels[number]

    def _rows(self, start: int, count: int) -> NDArray[Any]:
        return np.array(self.fb.block(start, count).T, self.dtype, order="C")

    def read(self, start: int, count: int) -> NDArray[Any]:
        """Samples ``start : start + count``, shape (count, nchan)."""
        parts = []
        at, stop = start, start + count
        with TaskPool(self.threads) as pool:
            while at < stop:
                number = at // self.block
                n = min(stop, (number + 1) * self.block) - at
                gone = self._gone(at, n)
                rows = self._rows(at, n)
                if gone is not None:
                    length = min(self.block, self.nsamp - number * self.block)
                    levels = self._levels_of(number, self._good[number] < length, pool)
                    levels.fill(at, rows, gone, pool)
                    if not self._rough:
                        self._level(at, rows, gone, levels)
                parts.append(rows)
                at += n
        return np.concatenate(parts) if parts else np.empty((0, self.fb.nchan), self.dtype)

    def _level(self, start: int, rows: NDArray[Any], gone: NDArray[np.bool_], levels: _Levels) -> None:
        """Give missing stretches the level beside them."""
        from . import cpu_dropouts

        rects = self._losses.rects  # whole, not cut at blocks
        some = (rects[:, 0] < start + len(rows)) & (rects[:, 1] > start)
        for rect in rects[some & ((rects[:, 1] - rects[:, 0]) * self.fb.tsamp >= LEAST_SECONDS)].tolist():
            low, high = rect[2:] = rect[2], min(rect[3], self.fb.nchan)
            which = levels.which[low:high]
            before, after = self._beside(rect)
            mean, sigma = levels.mean[which], levels.sigma[which]
            known = (which >= 0) & np.isfinite(before) & np.isfinite(after) & (sigma > 0)
            error = 1.25 * sigma[known] / math.sqrt(NEAR * self._piece)
            if not any(_differs((level - mean)[known] / error) for level in (before, after)):
                continue
            before, after = (np.where(known, level, mean) for level in (before, after))
            least, most = float(levels.low), float(levels.high)
            cpu_dropouts.shift(rows, start, gone, np.array(rect), mean, before, after, least, most, levels.whole)

    def _beside(self, rect: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Levels of the channels of a rectangle before and after it; NaN for those without good samples."""
        key = tuple(rect)
        if key not in self._edges:
            first, last, low, high = rect
            before, after = self._line(first, True, low, high), self._line(last, False, low, high)
            before, after = (np.where(np.isnan(a), b, a) for a, b in ((before, after), (after, before)))
            while len(self._edges) >= MOST_EDGES:
                self._edges.pop(next(iter(self._edges)))
            self._edges[key] = before, after
        return self._edges[key]

    def _line(self, at: int, back: bool, low: int, high: int, far: int = NEAR) -> NDArray[np.float64]:
        """Level of channels beside a sample, from the pieces nearest to it: before it if ``back``, otherwise after it.

        The slope that the channels share is extrapolated to the sample.
        """
        piece = self._piece
        count = min(far, (at if back else self.nsamp - at) // piece)
        if not count:
            return np.full(high - low, np.nan)
        start = at - count * piece if back else at
        rows, gone = self._rows(start, count * piece), self._gone(start, count * piece)
        means = _means(rows[:, low:high], None if gone is None else gone[:, low:high], piece)
        with np.errstate(invalid="ignore", divide="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # channels without samples are NaN
            if count == far == NEAR and np.isnan(means).any():
                return self._line(at, back, low, high, FAR)
            if back:
                means = means[::-1]
            order = np.argsort(np.isnan(means), axis=0, kind="stable")[:NEAR]
            means = np.take_along_axis(means, order, axis=0)
            median = np.nanmedian if np.isnan(means).any() else np.median  # `median` is much faster
            level, half = median(means, axis=0), NEAR // 2
            scatter = 1.4826 * median(np.abs(means - level), axis=0)
            slope = (median(means[:half], axis=0) - median(means[half:], axis=0)) / scatter
            slope = slope[np.isfinite(slope)]
            shared = float(np.median(slope)) if len(slope) else 0.0
            if abs(shared) * math.sqrt(len(slope)) < SURE * 1.25**2 / math.sqrt(half / 2):
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

    def learn(
        self, rows: NDArray[Any], gone: NDArray[np.bool_], channels: NDArray[np.bool_], pool: TaskPool
    ) -> None:  # fmt: skip
        """Add the good samples of some channels."""
        from . import cpu_dropouts

        which = np.where(channels, self.which, -1)
        if self.counts is None:
            learn = partial(cpu_dropouts.scatters, rows, gone, which, *self.sums)
        else:
            learn = partial(cpu_dropouts.histograms, rows, gone, which, self.low, self.counts)
        pool.run([partial(learn, *part) for part in shares(rows.shape[1], pool)])

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

    def fill(self, start: int, rows: NDArray[Any], gone: NDArray[np.bool_], pool: TaskPool) -> None:
        """Replace the samples that are gone."""
        from . import cpu_dropouts

        def draw(part: slice) -> None:
            given = rows[part], start + part.start, gone[part], self.which
            if self.counts is None:
                limits = float(self.low), float(self.high)
                cpu_dropouts.draw_noise(*given, self.mean, self.sigma, *limits, self.whole)
            else:
                cpu_dropouts.draw(*given, self.counts, self.low)

        pool.run([partial(draw, part) for part in _parts(np.asarray(gone.any(axis=1)))])


def _parts(some: NDArray[np.bool_]) -> list[slice]:
    """Ranges of at most `MOST_ROWS` rows that cover all rows of which something is gone.

    >>> _parts(np.array([False, True, True, False, True]))
    [slice(1, 3, None), slice(4, 5, None)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], some, [False]]))).reshape(-1, 2).tolist()
    return [slice(at, min(b, at + MOST_ROWS)) for a, b in edges for at in range(a, b, MOST_ROWS)]


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
