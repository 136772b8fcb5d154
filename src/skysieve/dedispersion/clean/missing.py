"""Missing samples: their description, their replacement, and the events that they invalidate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import ByValue
from skysieve.dedispersion.contract import CONTEXT
from skysieve.dedispersion.data.filterbank import Filterbank
from skysieve.dedispersion.dm_plan.delay_tables import Tabled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from skysieve.dedispersion.contract import Detection

__all__ = ["Losses"]

LEAST_LIVE = 0.5
"""Least fraction of a window's samples that must be present for it to be an event."""
ENOUGH = 4
"""Mean and sigma of a channel are taken from a block if at least 1 / ``ENOUGH`` of its samples are present."""


@dataclass(frozen=True, eq=False)
class Losses(ByValue):
    """Missing samples of a filterbank, as rectangles.

    Attributes
    ----------
    rects : numpy.ndarray of int64, shape (n, 4)
        First sample, last + 1, first row, last + 1; rows are channels in falling order of frequency.  The rectangles do
        not overlap; they are sorted by their first sample.
    start : int
        First sample that is present in any channel.  Samples before it are missing, and noise blocks before it have no
        events.

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
        object.__setattr__(self, "rects", rects)
        object.__setattr__(self, "reach", 0)
        if not len(rects):
            return
        rects = rects.copy()
        rects[:, 0] = np.maximum(rects[:, 0], self.start)
        rects = rects[rects[:, 0] < rects[:, 1]]
        rects = rects[np.argsort(rects[:, 0], kind="stable")]
        object.__setattr__(self, "rects", rects)
        object.__setattr__(self, "reach", int((rects[:, 1] - rects[:, 0]).max()) if len(rects) else 0)

    def within(self, start: int, stop: int) -> NDArray[np.int64]:
        """Rectangles within samples ``start : stop``; the samples before the start of the stream are one of them."""
        some = self.rects[np.searchsorted(self.rects[:, 0], start - self.reach) :]
        some = some[: np.searchsorted(some[:, 0], stop)]
        some = some[some[:, 1] > start].copy()
        if start < self.start:
            some = np.concatenate([[[0, self.start, 0, 2**62]], some])
        some[:, 0] = np.maximum(some[:, 0], start)
        some[:, 1] = np.minimum(some[:, 1], stop)
        return some[some[:, 0] < some[:, 1]]


class Filler:
    """Replaces missing samples by noise of the right level and sigma, block after block.

    The noise of a missing sample has the mean and sigma of its channel in the last block before its own of which a
    quarter is present.  In the first such block they are taken from that block itself.  The noise depends on sample
    numbers and data, not on the amounts in which samples arrive.

    The level of a channel is not known before a quarter of a block is present.  Until the end of that block the channel
    is hidden: its samples are 0, so that the change of level is at the edge of a block.

    Parameters
    ----------
    nchan : int
    block : int
        Samples of a block, anchored at sample 0.
    dtype : numpy.dtype
    maximum : int
        Largest value of unsigned samples; 0 if it is not known.
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
        """Whether the level of any channel is known; if not, samples cannot be filled before the end of the block."""
        return bool(self.known.any())

    def add(self, start: int, rows: NDArray[Any], rects: NDArray[np.int64]) -> None:
        """Add the next samples of a block to the statistics; missing samples are set to 0."""
        from . import cpu_missing

        cpu_missing.blank(rows, start, rects)
        cpu_missing.accumulate(rows, start, rects, self._count, self._total, self._square)

    def end_block(self, last: bool = False) -> bool:
        """End a block: use its mean and sigma for the next.

        If the data end here (``last``), a first block uses the samples that it has, however few.  Returns True if the
        levels of some channels have become known later than the levels of others.
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
        """Set channels whose level is not known to 0."""
        if not self.known.all():
            rows[:, ~self.known] = 0

    def fill(self, start: int, rows: NDArray[Any], rects: NDArray[np.int64]) -> None:
        """Fill the missing samples of rows."""
        from . import cpu_missing

        cpu_missing.fill(rows, start, rects, self.mean, self.sigma, self.most, self.whole)


class FilledReader:
    """A reader of a filterbank with missing samples, which are filled as a stream fills them.

    Attributes
    ----------
    losses : Losses
        The missing samples.  If the block of ``start`` has too few samples to give a level, ``start`` moves to the next
        block.
    joins : list of int
        Samples from which the levels of further channels are known.
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
        """Close the filterbank."""
        self.fb.close()

    def _learn(self) -> None:
        """Level and sigma of the noise of each block; reads all data."""
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
        if begin < len(self._levels):  # the level of a block depends on its context
            for number in range(max(0, begin - CONTEXT), begin):
                self._levels[number] = self._levels[begin]

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
    """Rectangles limited to the rows of the data."""
    out = np.ascontiguousarray(rects)
    out[:, 3] = np.minimum(out[:, 3], nchan)
    return out


def live_of(
    made: Sequence[Tabled], raw: Sequence[NDArray[np.float64]], boxes: Sequence[int], losses: Losses
) -> list[NDArray[np.float64]]:
    """By table, the fraction of the samples of each event's window that is present."""
    from . import cpu_missing

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
        out, begin = np.ones(len(rows)), centre - width // 2
        # the others begin after all losses
        some = np.flatnonzero(begin * t.table.downsamp < rects[:, 1].max(initial=0))
        if len(some):
            part = out[some]
            cpu_missing.live_parts(
                number[some], begin[some], width[some], t.table.downsamp, t.table.delays, rects, reach, part
            )
            out[some] = part
        found.append(out)
    return found


def kept_events(
    made: Sequence[Tabled], raw: Sequence[NDArray[np.float64]], boxes: Sequence[int], losses: Losses, block: int,
    joins: Sequence[int], looked: Sequence[Detection],
) -> list[NDArray[np.float64]]:  # fmt: skip
    """Events of which at least half of the samples are present, except events in noise blocks before the start.

    If the levels of some channels become known at a sample, the level of a series changes while the delays of these
    channels pass that sample.  Events in noise blocks with such a change are removed too, as are events in a short last
    block that takes its noise from such a block.
    """
    if not (len(losses.rects) or losses.start or len(joins)):
        return list(raw)
    first = losses.start // block * block
    live = live_of(made, raw, boxes, losses)
    return [
        rows[
            (part >= LEAST_LIVE)
            & (rows[:, 1] * t.table.downsamp >= first)
            & ~_changing(t, rows, boxes, block, joins, what)
        ]
        for t, rows, part, what in zip(made, raw, live, looked, strict=True)
    ]


def _changing(
    t: Tabled, rows: NDArray[np.float64], boxes: Sequence[int], block: int, joins: Sequence[int], what: Detection,
) -> NDArray[np.bool_]:  # fmt: skip
    """Whether each event's window reaches into a noise block whose level changes because channels become known.

    The baseline of a block depends on its neighbours, which then count as well.
    """
    found = np.zeros(len(rows), bool)
    if not len(joins) or not len(rows):
        return found
    number = rows[:, 0].astype(np.int64)
    delays, width = t.table.delays[number], np.array(boxes)[rows[:, 2].astype(np.int64)]
    begin = rows[:, 1] - width // 2
    each, more = block // t.table.downsamp, int(what.parts > 0)
    for join in joins:
        low = ((join // t.table.downsamp - delays.max(axis=1)) // each - more) * each
        high = (-(-(join // t.table.downsamp - delays.min(axis=1)) // each) + more) * each
        short = 4 * (what.valid[number] - high) < each
        found |= ((begin < high) | short) & (begin + width > low)
    return found
