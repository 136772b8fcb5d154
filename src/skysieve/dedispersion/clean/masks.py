"""Masks of cells (channel, block), and the values that replace masked samples and values that are not finite."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import ByValue, array_module
from skysieve.dedispersion.data.threads import Threads

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.core.gpu.runtime import Runtime
    from skysieve.dedispersion.contract import Packed, Resident, Room
    from skysieve.dedispersion.data.filterbank import Filterbank

    from .cuda.launch import DeviceCleaner
    from .dropouts import CountRuns, Watch

__all__ = ["Cleaned", "Mask", "NotFinite"]

SLICE = 2**20
"""Samples x channels that are read at a time."""
EXAMINED = 2**18
"""Samples x channels that a thread examines at a time."""


@dataclass(frozen=True, eq=False)
class Mask(ByValue):
    """Cells, each a channel in a block of samples, that are left out.

    Attributes
    ----------
    cells : numpy.ndarray of bool, shape (nchan, nblocks)
        True where masked; the rows are those of a `Filterbank`, in falling order of frequency.
    block : int
        Samples of a block; block ``i`` begins at sample ``i * block``.  Samples after the last block have the mask of
        the last block.

    Examples
    --------
    >>> m = Mask.channels(4, [2])
    >>> m.cells[:, 0].tolist(), m.weight
    ([False, False, True, False], 0.75)
    """

    cells: NDArray[np.bool_]
    block: int

    def __post_init__(self) -> None:
        cells = np.asarray(self.cells, bool)
        if cells.ndim != 2 or cells.size == 0:
            raise ValueError(f"cells has shape {cells.shape}, expected channels x blocks")
        if isinstance(self.block, bool) or not isinstance(self.block, (int, np.integer)) or self.block < 1:
            raise ValueError(f"block={self.block!r}: expected samples of a block, a whole number of at least 1")
        object.__setattr__(self, "cells", cells)

    @classmethod
    def channels(cls, nchan: int, which: Any) -> Mask:
        """A mask of whole channels, given by their numbers (0 has the highest frequency)."""
        given = np.atleast_1d(np.asarray(which)) if np.size(which) else np.empty(0, np.int64)
        if given.ndim != 1 or given.dtype.kind not in "ui":
            raise TypeError(
                f"channels of shape {given.shape} and dtype {given.dtype}: expected a list of whole numbers"
            )
        numbers = given.astype(np.int64)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < nchan):
            raise ValueError(f"channels {numbers.tolist()}: expected numbers from 0 to {nchan - 1}")
        cells = np.zeros((nchan, 1), bool)
        cells[numbers] = True
        return cls(cells, 2**40)

    @property
    def weight(self) -> float:
        """Fraction of the cells that is not masked; see `weight_of`."""
        return 1 - float(self.cells.mean())

    def weight_of(self, nsamp: int) -> float:
        """Fraction of ``nsamp`` samples of all channels that is not masked.

        >>> Mask(np.array([[True, False]]), 10).weight_of(40)
        0.75
        """
        count = min(self.cells.shape[1], -(-nsamp // self.block))
        samples = np.full(count, min(self.block, nsamp), np.float64)
        samples[-1] = nsamp - (count - 1) * self.block
        return 1 - float(self.cells[:, :count].mean(axis=0) @ samples) / nsamp

    def at(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Cells of the given blocks, shape (nchan, len(blocks)); blocks after the last have the mask of the last."""
        return self.cells[:, np.minimum(blocks, self.cells.shape[1] - 1)]

    def union(self, other: Mask) -> Mask:
        """A mask of the cells that either of two masks covers, with the shorter of the two block lengths.

        The shorter length must divide the longer one, unless the mask with the longer blocks has one block only.
        """
        small, large = sorted((self, other), key=lambda m: m.block)
        if large.cells.shape[1] > 1 and large.block % small.block:
            raise ValueError(f"blocks of {small.block} and {large.block} samples: one must be a multiple of the other")
        count = max(small.cells.shape[1], large.cells.shape[1] * (large.block // small.block))
        count = small.cells.shape[1] if large.cells.shape[1] == 1 else count
        numbers = np.arange(count)
        return Mask(small.at(numbers) | large.at(numbers * small.block // large.block), small.block)


def check_mask(mask: Any, fb: Filterbank) -> None:
    """Refuse an argument that is not a mask, or has another number of channels than the data."""
    if not isinstance(mask, Mask):
        raise TypeError(f"mask is a {type(mask).__name__}, expected a Mask")
    if len(mask.cells) != fb.nchan:
        raise ValueError(f"mask has {len(mask.cells)} channels, the data {fb.nchan}")


class NotFinite(Exception):
    """Samples that a GPU is to clean hold values that are not finite: the host must clean them."""


class Cleaned:
    """A `contract.Source`: a filterbank in which masked cells and values that are not finite are replaced.

    A masked cell takes the mean of its channel over the last block before it that is not masked or, if there is none,
    over the first such block after it.  The mean is rounded for integers, and is 0 for a channel that is masked
    throughout.  A NaN or infinity takes the mean of the finite values of its channel in its block of ``block`` samples,
    or 0 if there are none.  The replacement depends on the number of the sample only, not on the ranges in which data
    are read.

    Parameters
    ----------
    fb : Filterbank
    mask : Mask, optional
    block : int
        Samples of a block from which values that are not finite are replaced.
    watch : Watch, optional
        Gets the samples that are read, to look for dropped data.
    cleaner : callable, optional
        ``cleaner(runtime, samples)`` returns a `DeviceCleaner`, which cleans samples on a GPU after they are loaded, up
        to ``samples`` at a time.
    gpu : bool
        Whether an engine on a GPU reads the samples: then `look` examines them on the GPU, floats only if there is a
        ``cleaner``.
    kernels : sequence
        Arguments of `Runtime.module` for the kernels of a later ``cleaner``, which an engine compiles with its own.
    """

    def __init__(
        self, fb: Filterbank, mask: Mask | None, block: int, watch: Watch | None = None,
        cleaner: Callable[[Runtime, int], DeviceCleaner] | None = None, gpu: bool = False,
        kernels: Sequence[tuple[str, ...]] = (),
    ) -> None:  # fmt: skip
        self.fb, self.mask, self.block, self.watch, self.cleaner, self.kernels = (
            fb,
            mask,
            block,
            watch,
            cleaner,
            kernels,
        )
        self.dtype, self.maximum, self.nsamp, self.nchan = fb.dtype, fb.maximum, fb.nsamp, fb.nchan
        # floats that are to be replaced must be examined before; a search that a GPU cleans ends at the first of these
        self.looks = gpu and watch is not None and (fb.dtype.kind != "f" or cleaner is not None)
        self._last: tuple[int, NDArray[np.float32]] | None = None
        self._means: NDArray[np.float64] | None = None
        self._finite: bool | None = None
        self._threads = Threads()
        if mask is not None:
            check_mask(mask, fb)
            self._means = self._replacements(mask)

    def raw(self, start: int, count: int, room: Room | None = None) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        """See `contract.Source`.

        Raises
        ------
        NotFinite
            A GPU is to clean the samples, and some are not finite.
        """
        at = start
        for rows, order in self.fb.raw(start, count, room):
            if self.watch is not None and not self.looks:
                self.watch.see(at, rows)
            if self.dtype.kind != "f":
                yield rows, order
                at += len(rows)
                continue
            if not self._all_finite(rows):
                if self.cleaner is not None:
                    raise NotFinite
                good = np.isfinite(rows)
                rows = rows.copy()
                for number in range(at // self.block, (at + len(rows) - 1) // self.block + 1):
                    part = slice(max(0, number * self.block - at), (number + 1) * self.block - at)
                    mean = self._mean(number)[np.argsort(order)]
                    rows[part] = np.where(good[part], rows[part], mean)
            yield rows, order
            at += len(rows)

    def _all_finite(self, rows: NDArray[np.float32]) -> bool:
        """Whether all samples are finite; several threads look at parts that fit into a core's cache."""
        step = max(1, EXAMINED // rows.shape[1])

        def part(at: int) -> bool:
            return bool(np.isfinite(rows[at : at + step]).all())

        return all(self._threads.run([partial(part, at) for at in range(0, len(rows), step)]))

    def _mean(self, number: int) -> NDArray[np.float32]:
        """Means of the finite values of each channel in a block."""
        last = self._last  # another thread may replace it
        if last is None or last[0] != number:
            start = number * self.block
            total, live = finite_sums(self.fb, start, min(self.block, self.nsamp - start))
            self._last = last = number, (total / np.maximum(live, 1)).astype(np.float32)
        return last[1]

    def resident(self, start: int, count: int) -> Iterator[tuple[Resident, NDArray[np.int64]]] | None:
        """As `Filterbank.resident`; None also if values are not finite, since they are replaced on the host."""
        if self._finite is None:
            parts = self.fb.resident(0, self.nsamp) if self.dtype.kind == "f" else None
            self._finite = parts is None or all(all_finite(rows) for rows, _ in parts)
        return self.fb.resident(start, count) if self._finite else None

    @property
    def any_order(self) -> bool:
        """Whether several threads may read ranges in any order."""
        return self.fb.takes_room and (self.watch is None or self.looks)

    def look(self, runs: CountRuns, start: int, stop: int) -> None:
        """Look for dropped data in samples ``start : stop``, which an engine holds on a GPU; ``runs`` counts there.

        Raises
        ------
        Suspicious
        """
        if self.watch is not None and self.looks and stop > self.watch.at:
            self.watch.see_counted(runs, start, stop, self.fb)

    def packed(self, start: int, count: int, room: Room | None = None) -> Iterator[Packed] | None:
        """See `contract.Source`."""
        pieces = self.fb.packed(start, count, room)
        if pieces is None or self.watch is None or self.looks:
            return pieces
        return self._watched(start, pieces, self.watch)

    def _watched(self, start: int, pieces: Iterator[Packed], watch: Watch) -> Iterator[Packed]:
        for piece in pieces:
            watch.see(start, piece.data)
            yield piece
            start += len(piece.data)

    def fills(self, start: int, count: int) -> Iterator[tuple[int, int, int, float]]:
        """See `contract.Source`."""
        if self.mask is None or self._means is None or count == 0:
            return
        size = self.mask.block
        numbers = np.arange(start // size, (start + count - 1) // size + 1)
        cells = self.mask.at(numbers)
        for row, column in zip(*np.nonzero(cells), strict=True):
            number = int(numbers[column])
            low, high = max(start, number * size), min(start + count, (number + 1) * size)
            last = min(number, self._means.shape[1] - 1)
            yield int(row), low - start, high - start, float(self._means[row, last])

    def _replacements(self, mask: Mask) -> NDArray[np.float64]:
        """The mean that would replace each cell; reads all data if a channel is masked in part."""
        count = -(-self.nsamp // mask.block)
        cells = mask.at(np.arange(count))
        means = np.full((self.nchan, count), np.nan)
        partly = cells.any(axis=1) & ~cells.all(axis=1)
        for i in range(count if partly.any() else 0):
            start = i * mask.block
            total, live = finite_sums(self.fb, start, min(mask.block, self.nsamp - start))
            means[partly, i] = np.where(live > 0, total / np.maximum(live, 1), np.nan)[partly]
        means[cells] = np.nan
        for i in range(1, count):
            means[:, i] = np.where(np.isnan(means[:, i]), means[:, i - 1], means[:, i])
        for i in range(count - 2, -1, -1):
            means[:, i] = np.where(np.isnan(means[:, i]), means[:, i + 1], means[:, i])
        means = np.nan_to_num(means)
        return means if self.dtype.kind == "f" else np.rint(means)


def all_finite(rows: Resident) -> bool:
    """Whether all samples on a GPU are finite; tested in slices of bounded size."""
    step = max(64, SLICE // rows.data.shape[1])
    xp = array_module(rows.data)
    with contextlib.nullcontext() if xp is np else xp.cuda.Device(rows.index):
        return all(bool(xp.isfinite(rows.data[at : at + step]).all()) for at in range(0, len(rows), step))


def finite_sums(fb: Filterbank, start: int, count: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Sum and number of the finite values of each channel, read in slices of bounded size."""
    total, live = np.zeros(fb.nchan), np.zeros(fb.nchan, np.int64)
    step = max(64, SLICE // fb.nchan)
    for at in range(start, start + count, step):
        x = fb.block(at, min(step, start + count - at))
        if fb.dtype.kind != "f":
            total += x.sum(axis=1, dtype=np.float64)
            live += x.shape[1]
            continue
        good = np.isfinite(x)
        total += np.where(good, x, 0).sum(axis=1, dtype=np.float64)
        live += good.sum(axis=1)
    return total, live
