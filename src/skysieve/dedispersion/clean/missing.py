"""Samples that never came: which, what stands in for them, and which events they make worthless."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.dedispersion.data.filterbank import Filterbank
from skysieve.dedispersion.dm_plan.delay_tables import Tabled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from skysieve.dedispersion.contract import Detection

__all__ = ["Losses"]

LEAST_LIVE = 0.5
"""Part of a window's samples that must have come for it to be an event."""
ENOUGH = 4
"""A block gives a channel's mean and scatter when at least one in this many of its samples came."""


@dataclass(frozen=True)
class Losses:
    """Missing samples of a filterbank, as rectangles.

    Attributes
    ----------
    rects : numpy.ndarray of int64, shape (n, 4)
        First sample, last + 1, first row, last + 1; rows are channels in falling order of frequency.  They do not
        overlap; kept sorted by first sample.
    start : int
        First sample that came at all.  Samples before it are missing, and noise blocks before it have no events.

    Examples
    --------
    >>> lost = Losses([[100, 120, 0, 16]], start=40)
    >>> lost.within(0, 110).tolist()
    [[0, 40, 0, 4611686018427387904], [100, 110, 0, 16]]
    """

    rects: NDArray[np.int64]
    start: int = 0
    reach: int = field(init=False)

    def __post_init__(self) -> None:
        rects = np.ascontiguousarray(np.asarray(self.rects, np.int64).reshape(-1, 4))
        if len(rects) and not ((rects[:, 0] < rects[:, 1]) & (rects[:, 2] < rects[:, 3]) & (rects >= 0).all(1)).all():
            raise ValueError("rects: expected first sample < last + 1 and first row < last + 1, none negative")
        if self.start < 0:
            raise ValueError(f"start={self.start}: expected a sample number of at least 0")
        rects = rects.copy()
        rects[:, 0] = np.maximum(rects[:, 0], self.start)
        rects = rects[rects[:, 0] < rects[:, 1]]
        rects = rects[np.argsort(rects[:, 0], kind="stable")]
        object.__setattr__(self, "rects", rects)
        object.__setattr__(self, "reach", int((rects[:, 1] - rects[:, 0]).max()) if len(rects) else 0)

    def within(self, start: int, stop: int) -> NDArray[np.int64]:
        """Rectangles of samples ``start : stop``, cut to them; what lies before the start of the stream is one."""
        some = self.rects[np.searchsorted(self.rects[:, 0], start - self.reach) :]
        some = some[: np.searchsorted(some[:, 0], stop)]
        some = some[some[:, 1] > start].copy()
        if start < self.start:
            some = np.concatenate([[[0, self.start, 0, 2**62]], some])
        some[:, 0] = np.maximum(some[:, 0], start)
        some[:, 1] = np.minimum(some[:, 1], stop)
        return some[some[:, 0] < some[:, 1]]


class Filler:
    """Puts noise of the right level and scatter in the place of missing samples, block after block.

    A missing sample takes the mean and scatter of its channel in the last block before its own of which a quarter came;
    in the first such block, those of that block itself.  So what stands in depends on absolute sample numbers and
    on the data, not on how they are cut.

    The level of a channel is not known before a quarter of a block of it has come.  Until that block is over the
    channel is hidden, that is, its samples are 0: the change of level then falls on the edge of a block.

    Parameters
    ----------
    nchan : int
    block : int
        Samples of a block, anchored at sample 0.
    dtype : numpy.dtype
    maximum : int
        Largest value of unsigned samples; 0 where it is not known.
    """

    def __init__(self, nchan: int, block: int, dtype: np.dtype[Any], maximum: int) -> None:
        self.nchan, self.block, self.dtype = nchan, block, np.dtype(dtype)
        self.whole = self.dtype.kind != "f"
        size = 8 * self.dtype.itemsize
        self.most = (maximum or 2**size - 1) if self.dtype.kind == "u" else -(2 ** (size - 1))
        self.mean, self.sigma = np.zeros(nchan), np.zeros(nchan)
        self.known = np.zeros(nchan, bool)
        self._count = np.zeros(nchan, np.int64)
        self._total, self._square = np.zeros(nchan), np.zeros(nchan)

    @property
    def ready(self) -> bool:
        """Whether the level of any channel is known: until then, the end of the block must be awaited."""
        return bool(self.known.any())

    def add(self, start: int, rows: NDArray[Any], rects: NDArray[np.int64]) -> None:
        """Take the statistics of the next samples of a block; missing ones are set to 0."""
        from . import cpu_missing as cpu_losses

        cpu_losses.blank(rows, start, rects)
        cpu_losses.accumulate(rows, start, rects, self._count, self._total, self._square)

    def end_block(self, last: bool = False) -> bool:
        """The block is over: its mean and scatter hold for the next.

        ``last``: the data end here, and a first block has to do with the samples that it has.  Returns whether channels
        have become known after others.
        """
        new = self._count * ENOUGH >= self.block
        if last and not self.ready:
            new = self._count > 0
        joined = self.ready and bool((new & ~self.known).any())
        n = np.maximum(self._count, 1)
        mean = self._total / n
        sigma = np.sqrt(np.maximum(self._square / n - mean * mean, 0))
        self.mean[new], self.sigma[new] = mean[new], sigma[new]
        self.known |= new
        for a in (self._count, self._total, self._square):
            a[:] = 0
        return joined

    def hide(self, rows: NDArray[Any]) -> None:
        """Channels whose level is not known are 0."""
        if not self.known.all():
            rows[:, ~self.known] = 0

    def fill(self, start: int, rows: NDArray[Any], rects: NDArray[np.int64]) -> None:
        """Fill the missing samples of rows."""
        from . import cpu_missing as cpu_losses

        cpu_losses.fill(rows, start, rects, self.mean, self.sigma, self.most, self.whole)


class FilledReader:
    """A filterbank with missing samples filled as a stream fills them: a `filterbank.Reader`.

    Attributes
    ----------
    losses : Losses
        Those given; a start whose block has too few samples to give a level is moved to the next block's.
    joins : list of int
        Samples from which on further channels are known.
    """

    def __init__(self, fb: Filterbank, losses: Losses, block: int) -> None:
        self.fb, self.losses, self.block = fb, losses, block
        self.observation, self.nsamp, self.maximum = fb.observation, fb.nsamp, fb.maximum
        self.order = np.arange(fb.nchan)
        self.dtype = fb.dtype
        self._filler = Filler(fb.nchan, block, fb.dtype, fb.maximum)
        self._levels: list[tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]] = []
        self.joins: list[int] = []
        self._learn()

    def close(self) -> None:
        """Close what lies below."""
        self.fb.close()

    def _learn(self) -> None:
        """Level and scatter that each block is filled with: one pass over the data."""
        f = self._filler
        for start in range(0, self.nsamp, self.block):
            rows, rects = self._part(start, min(self.block, self.nsamp - start))
            end = start + self.block
            ready, levels = f.ready, (f.mean.copy(), f.sigma.copy(), f.known.copy())
            f.add(start, rows, rects)
            if f.end_block(last=end > self.nsamp) and end < self.nsamp:
                self.joins.append(end)
            self._levels.append(levels if ready else (f.mean.copy(), f.sigma.copy(), f.known.copy()))
            if not f.ready and end <= self.nsamp:
                self.losses = replace(self.losses, start=max(self.losses.start, end))
        begin = self.losses.start // self.block
        if 0 < begin < len(self._levels):  # a short last block takes the noise of the block before it
            self._levels[begin - 1] = self._levels[begin]

    def _part(self, start: int, count: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        rows = np.array(self.fb.block(start, count).T, order="C")
        return rows, clipped(self.losses.within(start, start + count), self.fb.nchan)

    def read(self, start: int, count: int) -> NDArray[Any]:
        """Samples ``start : start + count``, shape (count, nchan)."""
        if count == 0:
            return np.empty((0, self.fb.nchan), self.dtype)
        parts = []
        at, stop = start, start + count
        while at < stop:
            number = at // self.block
            n = min(stop, (number + 1) * self.block) - at
            rows, rects = self._part(at, n)
            self._filler.mean, self._filler.sigma, self._filler.known = self._levels[number]
            self._filler.hide(rows)
            self._filler.fill(at, rows, rects)
            parts.append(rows)
            at += n
        return np.concatenate(parts)


def clipped(rects: NDArray[np.int64], nchan: int) -> NDArray[np.int64]:
    """Rectangles with rows that exist."""
    out = np.ascontiguousarray(rects)
    out[:, 3] = np.minimum(out[:, 3], nchan)
    return out


def live_of(
    made: Sequence[Tabled], raw: Sequence[NDArray[np.float64]], boxes: Sequence[int], losses: Losses
) -> list[NDArray[np.float64]]:
    """Part of the samples of each event's window that came, by table."""
    from . import cpu_missing as cpu_losses

    nchan = made[0].table.delays.shape[1]
    rects = clipped(losses.rects.copy(), nchan)
    if losses.start:
        rects = np.concatenate([[[0, losses.start, 0, nchan]], rects])
    reach = max(losses.reach, losses.start)
    widths = np.array(boxes, np.int64)
    found = []
    for t, rows in zip(made, raw, strict=True):
        number, centre = rows[:, 0].astype(np.int64), rows[:, 1].astype(np.int64)
        width = widths[rows[:, 2].astype(np.int64)]
        out = np.ones(len(rows))
        if len(rows) and len(rects):
            cpu_losses.live_parts(
                number, centre - width // 2, width, t.table.downsamp, t.table.delays, rects, reach, out
            )
        found.append(out)
    return found


def kept_events(
    made: Sequence[Tabled], raw: Sequence[NDArray[np.float64]], boxes: Sequence[int], losses: Losses, block: int,
    joins: Sequence[int], looked: Sequence[Detection],
) -> list[NDArray[np.float64]]:  # fmt: skip
    """Events of which at least half of the samples came, none of a noise block before the start.

    Where channels join at a sample, the level of a series changes while their delays pass it: noise blocks of the
    series with such a change have no events either, nor has a short last block that takes the noise of one of them.
    """
    first = losses.start // block * block
    live = live_of(made, raw, boxes, losses)
    return [
        rows[
            (part >= LEAST_LIVE)
            & (rows[:, 1] * t.table.downsamp >= first)
            & ~_changing(t, rows, boxes, block, joins, what.valid)
        ]
        for t, rows, part, what in zip(made, raw, live, looked, strict=True)
    ]


def _changing(
    t: Tabled, rows: NDArray[np.float64], boxes: Sequence[int], block: int, joins: Sequence[int],
    valid: NDArray[np.int64],
) -> NDArray[np.bool_]:  # fmt: skip
    """Events whose windows reach into a noise block in which the level changes, because channels join.

    ``valid``: samples of each series.
    """
    found = np.zeros(len(rows), bool)
    if not len(joins) or not len(rows):
        return found
    number = rows[:, 0].astype(np.int64)
    delays, width = t.table.delays[number], np.array(boxes)[rows[:, 2].astype(np.int64)]
    begin = rows[:, 1] - width // 2
    each = block // t.table.downsamp
    for join in joins:
        low = (join // t.table.downsamp - delays.max(axis=1)) // each * each
        high = -(-(join // t.table.downsamp - delays.min(axis=1)) // each) * each
        short = 4 * (valid[number] - high) < each
        found |= ((begin < high) | short) & (begin + width > low)
    return found
