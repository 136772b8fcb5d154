"""A filterbank that is cleaned while it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.dedispersion.data.filterbank import ChangedReader, Filterbank

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.clean.dropouts import Watch

    from .cleaner import Cleaner

__all__ = ["CleanReader"]

KEPT = 2
"""Number of blocks that a reader holds, since an engine reads a few samples again for each chunk."""


class CleanReader(ChangedReader):
    """A reader of a filterbank that is cleaned while it is read, from the beginning to the end.

    The latest `KEPT` blocks stay in memory, or those of the samples that are read and of ``again`` samples before them.
    To read earlier samples again, the cleaning starts from the beginning.

    Parameters
    ----------
    fb : Filterbank
    cleaner : Cleaner
    begin : int
        Samples before this one are not changed, and do not count.
    watch : Watch, optional
        Gets the samples before they are cleaned, to look for dropped data.
    again : int
        Number of samples that may be read again: those before the samples that were read last.
    """

    def __init__(
        self, fb: Filterbank, cleaner: Cleaner, begin: int = 0, watch: Watch | None = None, again: int = 0
    ) -> None:
        super().__init__(fb)
        self._again, self._kept = again, KEPT
        self.cleaner, self.begin, self.watch = cleaner, begin, watch
        self.dtype = fb.dtype.newbyteorder("=")
        self._next = begin
        self._blocks: dict[int, NDArray[Any]] = {}
        cleaner.reset()

    def read(self, start: int, count: int) -> NDArray[Any]:
        """Samples ``start : start + count``, shape (count, nchan)."""
        if self._again:  # the earlier samples are read while these are held
            self._kept = max(self._kept, -(-(self._again + count) // self.cleaner.block) + 2)
        out = np.empty((count, self.fb.nchan), self.dtype)
        at, stop = start, start + count
        while at < stop:
            if at < self.begin:
                end = min(stop, self.begin)
                out[at - start : end - start] = self._raw(at, end - at)
            else:
                number = at // self.cleaner.block
                rows, first = self._block(number), max(number * self.cleaner.block, self.begin)
                end = min(stop, first + len(rows))
                out[at - start : end - start] = rows[at - first : end - first]
            at = end
        return out

    def _raw(self, start: int, count: int) -> NDArray[Any]:
        parts, at = [], start
        for rows, order in self.fb.raw(start, count):
            if self.watch is not None:
                self.watch.see(at, rows)
            parts.append(rows if np.array_equal(order, self.order) else rows[:, order])
            at += len(rows)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _block(self, number: int) -> NDArray[Any]:
        """A cleaned block."""
        size = self.cleaner.block
        if number not in self._blocks and number * size < self._next - size:
            self.cleaner.reset()
            self._next = self.begin
            self._blocks.clear()
        while number not in self._blocks:
            at = self._next
            self._next = min((at // size + 1) * size, self.nsamp)
            rows = self._raw(at, min(self._next + self.cleaner.ahead, self.nsamp) - at)
            rows = self.cleaner.clean(at, rows, self._next - at)
            while len(self._blocks) >= self._kept:
                self._blocks.pop(next(iter(self._blocks)))
            self._blocks[at // size] = rows
        return self._blocks[number]
