"""Records of what the cleaning removed: for each block, and in total."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from skysieve.dedispersion.clean.masks import Mask

from .gain import GainChange

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BlockRecord", "Records", "Removed"]


@dataclass(frozen=True, eq=False)
class Removed:
    """What was removed from data.

    Attributes
    ----------
    steps : tuple of str
        The steps that were done.
    cells : numpy.ndarray of bool, shape (nchan, nblocks)
        Blocks of channels of which at least half of the samples were removed.
    block : int
        Samples of a block.
    windows : numpy.ndarray of int64, shape (n, 4)
        Impulses: first sample, last + 1, first row, last + 1.
    parts : dict of str to float
        Fraction of the samples that each step removed.
    hum : int
        Number of blocks whose impulses were not removed, because there were so many of them: hum of the mains, or a
        noise diode.
    """

    steps: tuple[str, ...]
    cells: NDArray[np.bool_]
    block: int
    windows: NDArray[np.int64]
    parts: dict[str, float]
    hum: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(self.steps))  # files hold lists

    @property
    def any(self) -> bool:
        """Whether the summary says more than that nothing was removed."""
        return any(self.parts.values()) or self.hum > 0

    @property
    def mask(self) -> Mask:
        """The cells as a mask, which `write_rfifind` saves."""
        return Mask(self.cells, self.block)

    def summary(self) -> str:
        """A line for people."""
        if not self.steps:
            return "not cleaned"
        names = [f"{name} {self.parts[name]:.2%}" for name in self.steps]
        if "impulses" in self.steps:
            names[self.steps.index("impulses")] += f" ({len(self.windows)})"
        text = f"cleaned: {', '.join(names)} of the data"
        if self.hum:
            text += f"; hum in {self.hum} block{'s' if self.hum != 1 else ''} of {self.block} samples was not removed"
        return text


@dataclass(frozen=True)
class BlockRecord:
    """A record of the cleaning of a block.

    It has masks of bad channels and of bad cells by piece (both packed), the windows of impulses relative to the start
    of the block, and changes of the gain.
    """

    start: int
    count: int
    bad: NDArray[np.uint8] | None
    cells: NDArray[np.uint8] | None
    windows: NDArray[np.int64] | None
    gains: tuple[GainChange, ...]

    @classmethod
    def of(
        cls, start: int, count: int, bad: NDArray[np.bool_], cells: NDArray[np.bool_], windows: NDArray[np.int64],
        gains: Sequence[GainChange],
    ) -> BlockRecord:  # fmt: skip
        return cls(
            start, count, np.packbits(bad) if bad.any() else None, np.packbits(cells, axis=1) if cells.any() else None,
            windows if len(windows) else None, tuple(gains),
        )  # fmt: skip

    def show(self, out: NDArray[np.bool_], start: int, piece: int) -> None:
        """Set what was replaced in ``out``, shape (samples, channels), whose first sample is ``start``."""
        at, nchan = self.start - start, out.shape[1]
        rows = out[max(0, at) : max(0, at + self.count)]
        if self.bad is not None:
            rows[:, np.unpackbits(self.bad, count=nchan).astype(bool)] = True
        if self.cells is not None and len(rows):
            cells = np.unpackbits(self.cells, axis=1, count=nchan).astype(bool)
            which = np.minimum((np.arange(len(rows)) + max(0, at) - at) // piece, len(cells) - 1)
            rows |= cells[which]
        if self.windows is not None:
            for first, last, low, high in self.windows.tolist():
                out[max(0, at + first) : max(0, at + last), low:high] = True


class Records:
    """Records of the blocks of one observation.

    Parameters
    ----------
    steps : tuple of str
        Names of `steps.CLEANING`.
    nchan, block, piece : int
        Channels, and samples of a block and of a piece.

    Attributes
    ----------
    jumps : list of (int, int)
        Steps of the gain: sample, and number of channels.
    blocks : list of BlockRecord
        In the order of time.
    hum : list of int
        The length of each block whose impulses were not removed; several threads append.
    """

    def __init__(self, steps: tuple[str, ...], nchan: int, block: int, piece: int) -> None:
        self.steps, self.nchan, self.block, self.piece = steps, nchan, block, piece
        self.jumps: list[tuple[int, int]] = []
        self.hum: list[int] = []
        self.blocks: list[BlockRecord] = []
        self._first, self._samples, self._counts = -1, 0, dict.fromkeys(steps, 0)
        self._lost: list[NDArray[np.uint8]] = []
        self._windows: list[NDArray[np.int64]] = []

    def count(self, start: int, samples: int, removed: Mapping[str, int]) -> None:
        """Count ``samples`` of all channels from ``start`` on, and those of them that each step has removed."""
        if self._first < 0:
            self._first = start // self.block
        self._samples += samples * self.nchan
        for name in removed.keys() & self._counts.keys():
            self._counts[name] += removed[name]

    def add(self, record: BlockRecord, lost: NDArray[np.bool_]) -> None:
        """Add the record of the next block; ``lost``: channels of which at least half of the samples were removed."""
        self.blocks.append(record)
        self._lost.append(np.packbits(lost))
        if record.windows is not None:
            self._windows.append(record.windows + np.array([record.start, record.start, 0, 0]))

    def touched(self, start: int, stop: int) -> Iterator[BlockRecord]:
        """Records of the blocks that contain samples of ``start : stop``."""
        first = bisect_right(self.blocks, start, key=lambda block: block.start) - 1
        for block in self.blocks[max(0, first) :]:
            if block.start >= stop:
                break
            if block.start + block.count > start:
                yield block

    def replaced(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Which samples of ``start : stop`` were replaced: shape (samples, channels).

        Blocks that `forget` dropped, and those that are not cleaned yet, count as not replaced.
        """
        out = np.zeros((stop - start, self.nchan), bool)
        for block in self.touched(start, stop):
            block.show(out, start, self.piece)
        return out

    def replaced_channels(self, start: int, stop: int) -> NDArray[np.bool_] | None:
        """Channels of which all samples in ``start : stop`` were replaced; None if a channel was replaced in part."""
        at, found = start, set[bytes]()
        for block in self.touched(start, stop):
            if block.cells is not None or block.windows is not None:
                return None
            if block.start > at:
                found.add(b"")
            at = block.start + block.count
            found.add(b"" if block.bad is None else block.bad.tobytes())
        if at < stop:
            found.add(b"")
        if len(found) > 1:
            return None
        bad = np.frombuffer(found.pop() or bytes(-(-self.nchan // 8)), np.uint8)
        return np.unpackbits(bad, count=self.nchan).astype(bool)

    def impulses(self, start: int, stop: int) -> NDArray[np.int64]:
        """Impulses and steps of the gain removed between two samples, in the order of time.

        Returns
        -------
        numpy.ndarray, shape (n, 3)
            First sample, first channel and last + 1; steps of the gain are in all channels.
        """
        found = [np.array([(at, 0, self.nchan) for at, _ in self.jumps], np.int64).reshape(-1, 3)]
        for block in self.touched(start, stop):
            if block.windows is not None:
                found.append(block.windows[:, [0, 2, 3]] + np.array([block.start, 0, 0]))
        every = np.concatenate(found)
        every = every[(every[:, 0] >= start) & (every[:, 0] < stop)]
        return every[np.argsort(every[:, 0], kind="stable")]

    def forget(self, before: int) -> None:
        """Drop the records of blocks that end before a sample."""
        while self.blocks and self.blocks[0].start + self.blocks[0].count <= before:
            del self.blocks[0]
        self.jumps = [jump for jump in self.jumps if jump[0] >= before]

    def removed(self) -> Removed:
        """What was removed so far."""
        cells = np.zeros((self.nchan, max(1, self._first + len(self._lost))), bool)
        if self._lost:
            cells[:, self._first :] = np.unpackbits(np.stack(self._lost), axis=1, count=self.nchan).T
        windows = np.concatenate(self._windows) if self._windows else np.empty((0, 4), np.int64)
        parts = {name: count / max(1, self._samples) for name, count in self._counts.items()}
        return Removed(self.steps, cells, self.block, windows, parts, len(self.hum))
