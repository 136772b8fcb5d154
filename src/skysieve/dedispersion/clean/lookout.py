"""Dropped data in a stream: stretches of equal samples, found while samples arrive.

The test is that of `dropouts`: a run of equal samples counts if chance makes it less than once in a million hours.  The
fraction of equal pairs of a channel is taken from its latest noise blocks, except the runs that were found.  In the
first block it is taken from that block itself.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from . import dropouts
from .dropouts import NEVER, NO_RECTANGLES, ROUNDS, SATURATED, STRANGE, bits_of, certain, intervals, odds, together
from .missing import Losses, clipped

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Lookout"]

PIECE_SECONDS, LEAST_PIECE, MOST_PIECE = 0.016, 16, 120
"""Length of the pieces in which samples are examined: seconds, and the limits in samples."""
LEAST_HELD = 256
"""A run may hold back at least this many samples until it is known whether it is dropped data."""
FORGET = 0.5
"""Weight of earlier blocks in the statistics, relative to the next one."""
HOUR = 3600.0
LEAST_PAIRS = 64
"""Fewest pairs from which the fraction of equal pairs of a channel is estimated."""


class Lookout:
    """Examines samples in pieces that begin and end at fixed sample numbers within noise blocks.

    The result depends on the numbers and the values of the samples, not on the amounts in which they arrive.

    Parameters
    ----------
    nchan : int
    tsamp : float
    dtype : numpy.dtype
    maximum : int
        Largest value of unsigned samples.
    block : int
        Samples of a noise block.

    Attributes
    ----------
    free : int
        First sample that is not decided yet.
    dead : numpy.ndarray of bool
        Channels that have been constant since the start.  They are treated as channels whose data have not begun.
    """

    def __init__(self, nchan: int, tsamp: float, dtype: np.dtype[Any], maximum: int, block: int) -> None:
        self.nchan, self.block = nchan, block
        self.piece = min(max(LEAST_PIECE, round(PIECE_SECONDS / tsamp)), MOST_PIECE)
        kind = np.dtype(f"u{dtype.itemsize}").type
        self.top = kind(dropouts.top_value(dtype, maximum))
        self.bottom = kind(2 ** (8 * dtype.itemsize - 1)) if dtype.kind == "i" else kind(0)
        if dtype.kind == "f":
            self.bottom = self.top
        self.coarse = 0 < maximum <= dropouts.COARSE
        self.long = math.ceil(dropouts.CLIPPED / tsamp)
        self.most_top = math.ceil(SATURATED / tsamp)
        self.hold = max(self.most_top, LEAST_HELD) + self.piece
        self.stride = min(dropouts.MOST_STRIDE, max(1, int(dropouts.PROBE_SECONDS / tsamp)))
        self.least = certain(math.ceil(HOUR / tsamp), nchan)
        self.free = self.at = 0
        self.first = True
        self.dead = np.zeros(nchan, bool)
        self._before: NDArray[Any] = np.zeros(nchan, kind)
        self._lost_before = np.ones(nchan, bool)
        self._run = np.zeros(nchan, np.int64)
        self._equal, self._pairs = np.zeros(nchan, np.int64), np.zeros(nchan, np.int64)
        self._all_equal, self._all_pairs = np.zeros(nchan), np.zeros(nchan)
        self._odd = np.full(nchan, 1e-12)
        self._need = np.full(nchan, NEVER)
        self._need8 = np.full(nchan, 255, np.uint8)
        self._live = np.zeros(nchan, bool)
        self._dropped = np.full(nchan, -1)
        self._recent = NO_RECTANGLES
        self._limit = nchan + 1
        self._work = np.zeros((2, nchan), np.uint8)

    def begin(self, start: int) -> None:
        """Set the number of the first sample."""
        self.free = self.at = start

    def next(self, stop: int, last: bool = False) -> int:
        """End of the next piece if samples before ``stop`` are present; 0 if the piece is not complete yet."""
        low = self.at // self.block * self.block
        end = low + self.block
        if not self.first:
            end = min(end, low + ((self.at - low) // self.piece + 1) * self.piece)
        if last:
            end = min(end, stop)
        return end if self.at < end <= stop else 0

    def look(self, rows: NDArray[Any], missing: NDArray[np.int64]) -> NDArray[np.int64]:
        """Examine the samples of the next piece; ``missing`` are rectangles of missing samples.

        Returns
        -------
        numpy.ndarray of int64, shape (n, 4)
            Rectangles of dropped data, none of which begins before the old value of ``free``; ``free`` then increases.
        """
        rows = bits_of(rows)
        at, end = self.at, self.at + len(rows)
        missing = Losses(missing).within(at, end) if len(missing) else missing
        if self.first:
            found, begun = self._first(rows, missing), np.zeros(self.nchan, bool)
        else:
            found, begun = self._next(rows, missing), self.dead & (self._run < len(rows))
        self.dead &= ~begun
        self._equal[begun] = self._pairs[begun] = 0
        self._before = rows[-1].copy()
        self.at = end
        if end % self.block == 0:
            self._end_block()
        self._set_free()
        return joined_rows(found)

    def _next(self, rows: NDArray[Any], missing: NDArray[np.int64]) -> NDArray[np.int64]:
        if len(missing) or self._lost_before.any() or not self._quiet(rows):
            return self._closely(rows, missing)
        return NO_RECTANGLES

    def _quiet(self, rows: NDArray[Any]) -> bool:
        from . import cpu_lookout

        if not cpu_lookout.quiet(
            rows, self._before, self._run, self._need8, self._live, self._limit, self.stride, *self._work, self._equal
        ):
            return False
        self._pairs += -(-len(rows) // self.stride)
        return True

    def _gone(self, count: int, missing: NDArray[np.int64]) -> NDArray[np.bool_]:
        gone = np.zeros((count + 1, self.nchan), bool)
        gone[0] = self._lost_before
        for first, last, low, high in missing.tolist():
            gone[first - self.at + 1 : last - self.at + 1, low:high] = True
        self._lost_before = gone[-1].copy()
        return gone

    def _runs(
        self, rows: NDArray[Any], gone: NDArray[np.bool_], need: NDArray[np.int64], live: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Runs that are too long, and counts of equal samples.

        The counts are: equal pairs and pairs of each channel; equal channels at each sample; starts of open runs.
        """
        from . import cpu_lookout

        n = len(rows)
        equal, pairs = np.zeros(self.nchan, np.int64), np.zeros(self.nchan, np.int64)
        many, begin = np.zeros(n, np.int64), self.at - 1 - self._run
        room = np.empty((self.nchan * (n // max(1, int(need.min())) + 2), 4), np.int64)
        count = cpu_lookout.close_look(
            rows, self._before, not self.first, gone, live, self.at, self._before.copy(), begin, need,
            np.maximum(need, self.most_top), self.top, self.bottom, equal, pairs, many, room,
        )  # fmt: skip
        return room[:count], equal, pairs, many, begin

    def _first(self, rows: NDArray[Any], missing: NDArray[np.int64]) -> NDArray[np.int64]:
        """Examine the first block, with its own statistics."""
        gone = self._gone(len(rows), clipped(missing, self.nchan))
        self._run[:] = -1
        need = np.full(self.nchan, NEVER)
        runs, equal, pairs, _, begin = self._runs(rows, gone, need, self._live)
        enough = pairs >= LEAST_PAIRS
        self.dead = enough & (equal == pairs)
        if not (enough & ~self.dead).any():
            self.dead[:] = False
            self._run = self.at + len(rows) - 1 - begin
            return np.array([[self.at, self.at + len(rows), 0, self.nchan]]) if enough.any() else NO_RECTANGLES
        live = enough & ~self.dead
        odd = odds(equal, pairs)
        lengths = counts = np.zeros(self.nchan, np.int64)
        for _ in range(ROUNDS):
            wanted = np.where(live, np.ceil(np.minimum(self.least / odd, 2**60)).astype(np.int64) + 1, NEVER)
            if (wanted >= need).all():
                break
            need = np.minimum(need, wanted)
            runs, _, _, many, begin = self._runs(rows, gone, need, live)
            lengths = np.bincount(runs[:, 0], runs[:, 2] - runs[:, 1], self.nchan).astype(np.int64)
            counts = np.bincount(runs[:, 0], minlength=self.nchan)
            odd = odds(np.maximum(equal - (lengths - counts), 0), np.maximum(pairs - lengths, 1))
        self._odd = np.where(live, odd, 1e-12)
        self._equal = np.where(live, np.maximum(equal - (lengths - counts), 0), 0).astype(np.int64)
        self._pairs = np.where(live, np.maximum(pairs - lengths, 1), 0).astype(np.int64)
        self._need = need
        self._run = self.at + len(rows) - 1 - begin
        self.first = False
        self._live = live
        return self._rectangles(rows, runs, many)  # pyrefly: ignore[unbound-name]  # the first round gets here

    def _closely(self, rows: NDArray[Any], missing: NDArray[np.int64]) -> NDArray[np.int64]:
        """Compare all pairs of the piece."""
        gone = self._gone(len(rows), clipped(missing, self.nchan))
        need = np.where(self._dropped == self.at, 2, self._need)  # a dropout lasts until its run ends
        runs, equal, pairs, many, begin = self._runs(rows, gone, need, self._live)
        runs = runs[(runs[:, 1] < self.at) | (runs[:, 2] - runs[:, 1] >= self._need[runs[:, 0]])]
        within = runs[:, 2] - np.maximum(runs[:, 1], self.at - 1) - 1
        lengths = np.bincount(runs[:, 0], within, self.nchan).astype(np.int64)
        self._equal += np.maximum(equal - lengths, 0)
        self._pairs += np.maximum(pairs - lengths, 0)
        self._run = self.at + len(rows) - 1 - begin
        return self._rectangles(rows, runs, many)

    def _rectangles(self, rows: NDArray[Any], runs: NDArray[np.int64], many: NDArray[np.int64]) -> NDArray[np.int64]:
        """Dropped data: long runs, and short runs that many channels share; one rectangle for each row."""
        end = self.at + len(rows)
        self._recent = self._recent[self._recent[:, 2] > self.at - self.hold]
        continued = (self._dropped[runs[:, 0]] == self.at) & (runs[:, 1] < self.at)
        runs[continued, 3] = -1
        shared = self._shared(rows, runs, many)
        if (runs[:, 2] == end).all() and not len(shared):  # no run has ended: no edge can move
            old, runs = runs[continued], runs[~continued]
        else:
            old = runs[:0]
        runs = np.concatenate([runs, shared])
        others = self._recent[~np.isin(self._recent[:, 0], runs[:, 0])]
        new = dropouts.rectangles_of(runs, self._odd, self.coarse, self.long, end, others)
        self._recent = np.concatenate([others, runs])
        height = new[:, 3] - new[:, 2]
        number = np.repeat(np.arange(len(new)), height)
        row = new[number, 2] + np.arange(len(number)) - np.repeat(np.cumsum(height) - height, height)
        first = np.concatenate([np.full(len(old), self.at), new[number, 0]])
        last, row = np.concatenate([old[:, 2], new[number, 1]]), np.concatenate([old[:, 0], row])
        first = np.maximum(first, np.maximum(self._dropped[row], self.free))
        some = first < last
        first, last, row = first[some], last[some], row[some]
        np.maximum.at(self._dropped, row, last)
        return np.stack([first, last, row, row + 1], axis=1)

    def _shared(self, rows: NDArray[Any], runs: NDArray[np.int64], many: NDArray[np.int64]) -> NDArray[np.int64]:
        """Short runs that many channels have at the same time; channels in long runs are left out."""
        from . import cpu_dropouts

        live = self._live
        p = np.where(live, np.exp(-self._odd), 0.0)
        known, chance = np.zeros(len(rows) + 1), np.zeros(len(rows) + 1)
        begin, stop = np.maximum(runs[:, 1] + 1 - self.at, 0), runs[:, 2] - self.at
        for sums, weight in ((known, live[runs[:, 0]].astype(float)), (chance, p[runs[:, 0]])):
            np.add.at(sums, begin, weight)
            np.subtract.at(sums, stop, weight)
        known, chance = np.cumsum(known)[:-1], np.cumsum(chance)[:-1]
        surprise = together(
            np.maximum(many - known, 0), np.maximum(p.sum() - chance, 0), np.maximum(live.sum() - known, 1)
        )
        strange = np.flatnonzero(surprise >= STRANGE)
        found = [NO_RECTANGLES]
        for a, b in intervals(strange, surprise[strange], self.least).tolist():
            if b - a > self.piece:
                continue  # the runs of single channels are long enough to be found
            some = np.concatenate([self._before[None], rows[:b]])[a : b + 1]
            first, length = np.zeros(self.nchan, np.int64), np.zeros(self.nchan, np.int64)
            cpu_dropouts.longest_run(np.ascontiguousarray(some), self.top, first, length)
            which = np.flatnonzero((length >= max(2, len(some) // 2)) & live)
            begin = self.at - 1 + a + first[which]
            found.append(np.stack([which, begin, begin + length[which], np.zeros(len(which), np.int64)], axis=1))
        return np.concatenate(found)

    def _end_block(self) -> None:
        """Use the statistics of the block that has ended for the next one."""
        if self.first:
            return
        new = (self._pairs >= LEAST_PAIRS) & ~self.dead
        self._all_equal = np.where(new, FORGET * self._all_equal + self._equal, self._all_equal)
        self._all_pairs = np.where(new, FORGET * self._all_pairs + self._pairs, self._all_pairs)
        self._equal[:] = 0
        self._pairs[:] = 0
        known = self._all_pairs > 0
        self._odd = np.where(known, odds(self._all_equal, self._all_pairs), 1e-12)
        self._need = np.where(known, np.ceil(np.minimum(self.least / self._odd, 2**60)).astype(np.int64) + 1, NEVER)
        self._need8 = np.where(self.dead, 255, np.minimum(self._need - 1, 127)).astype(np.uint8)
        counts = np.arange(self.nchan + 1)
        self._live = known
        strange = together(counts, np.where(known, np.exp(-self._odd), 0.0).sum(), max(1, int(known.sum()))) >= STRANGE
        self._limit = int(np.argmax(strange)) if strange.any() else self.nchan + 1

    def _set_free(self) -> None:
        """Move ``free`` to the start of the first run that may still become long enough."""
        if self.first:
            self.free = self.at
            return
        need = np.where(self._before == self.top, np.maximum(self._need, self.most_top), self._need)
        waits = (self._run > 0) & (need <= self.hold) & (self._run + 1 < need)
        begin = int((self.at - 1 - self._run[waits]).min()) if waits.any() else self.at - 1
        self.free = max(self.free, self.at - self.hold, min(begin, self.at - 1))


def joined_rows(rects: NDArray[np.int64]) -> NDArray[np.int64]:
    """Join rectangles of neighbouring rows with the same samples.

    >>> joined_rows(np.array([[0, 5, 2, 3], [0, 5, 3, 5], [1, 5, 5, 6]])).tolist()
    [[0, 5, 2, 5], [1, 5, 5, 6]]
    """
    found: list[list[int]] = []
    for first, last, low, high in rects[np.lexsort((rects[:, 2], rects[:, 1], rects[:, 0]))].tolist():
        if found and found[-1][:2] == [first, last] and found[-1][3] == low:
            found[-1][3] = high
        else:
            found.append([first, last, low, high])
    return np.array(found, np.int64).reshape(-1, 4)
