"""Rows of the ring engine on a GPU (a ring with its mirror image), and how rows of any length are transformed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROW = np.dtype(
    [("phi", "f8"), ("north", "i8"), ("south", "i8"), ("place", "i8"), ("n", "i4"), ("most", "i4"), ("m", "i4"),
     ("residues", "i4")], align=True,
)  # fmt: skip
LIKE = 8
"""Number of rows of equal length from which they are transformed without a grid or chirps."""
LEAST = 64
"""Shortest transform of chirps."""
SCRATCH = 1 << 28
"""Most bytes of rows that are transformed at a time."""
MOST_ROWS = 65535
GRIDS = (512, 2048, 4096, 8192, 16384)
"""Lengths of grids of azimuths; there are few, because each is compiled."""
DENSEST = 3
"""Most pixels for each point of a grid; shared memory holds no more."""


@dataclass(frozen=True)
class Run:
    """Rows first .. first + count - 1, which are transformed together, in transforms of ``length`` points.

    ``kind`` is "plain" (one kernel, without a grid, in one or two ``residues``), "grid" (one kernel, through a grid),
    "batch" (cuFFT) or "chirp" (chirps and cuFFT).
    """

    kind: str
    first: int
    count: int
    length: int
    residues: int

    @property
    def size(self) -> int:
        """Elements of a row in the buffer."""
        return self.length * self.residues if self.kind in ("batch", "chirp") else 0

    def within(self, low: int, high: int) -> Run | None:
        """The part of the run within rows low .. high - 1."""
        a, b = max(low, self.first), min(high, self.first + self.count)
        return Run(self.kind, a, b - a, self.length, self.residues) if a < b else None


def longest_transform(item: int, shared: int) -> int:
    """Points of the longest transform that one block can do with ``shared`` bytes of shared memory."""
    longest = 16384 if item == 4 else 8192
    while 2 * (longest + longest // 32) * item > shared:
        longest //= 2
    return longest


def make_runs(
    n: NDArray[np.int64], phi: NDArray[np.float64], most: NDArray[np.int64], item: int, share: float, longest: int
) -> list[Run]:
    """Choose how rows of lengths ``n``, first azimuths ``phi`` and modes up to ``most`` are transformed.

    ``share`` is the highest mode that a grid carries, relative to its length (0: no grids), and ``longest`` the result
    of `longest_transform`.
    """
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(n)) + 1, [len(n)]])
    grids = np.array([x for x in GRIDS if x <= longest])
    tops = np.maximum.reduceat(most[: len(n)], cuts[:-1])
    least = np.searchsorted(share * grids, tops)  # the shortest grid that carries so many modes
    carried = np.append(grids, 0)[np.maximum(least, np.searchsorted(DENSEST * grids, n[cuts[:-1]]))]
    carried[n[cuts[:-1]] % 4 != 0] = 0
    keys: list[tuple[str, int, int]] = []
    for (a, b), grid in zip(pairwise(cuts.tolist()), carried.tolist(), strict=True):
        size, rows = int(n[a]), b - a
        like = rows >= LIKE
        power = like and size & (size - 1) == 0 and size >= GRIDS[0] and len(np.unique(phi[a:b][phi[a:b] != 0])) < 2
        if power and size <= longest:
            keys += [("plain", size, 1)] * rows
        elif grid and (not like or size >= GRIDS[0]):
            keys += [("grid", grid, 1)] * rows
        elif power and size == 2 * longest:
            keys += [("plain", longest, 2)] * rows
        elif like:
            keys += [("batch", size, 1)] * rows
        else:
            residues = 4 if size % 4 == 0 else 1
            keys += [("chirp", max(1 << (2 * (size // residues) - 2).bit_length(), LEAST), residues)] * rows
    keys = _fewer(keys)
    runs = []
    start = 0
    for k in range(1, len(keys) + 1):
        if k < len(keys) and keys[k] == keys[start]:
            continue
        kind, length, residues = keys[start]
        step = MOST_ROWS // residues
        if kind in ("batch", "chirp"):
            step = max(1, min(SCRATCH // (2 * item * length * residues), step))
        runs += [Run(kind, r, min(step, k - r), length, residues) for r in range(start, k, step)]
        start = k
    return runs


def _fewer(keys: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Reduce the lengths of chirps to the longest, half of it, and every second power of two below."""
    lengths = {length for kind, length, _ in keys if kind == "chirp"}
    longest = max(lengths, default=0)
    allowed = [longest, longest >> 1, *(longest >> k for k in range(3, 30, 2))]
    taken = {length: min(x for x in allowed if x >= length) for length in lengths}
    return [(kind, taken[length] if kind == "chirp" else length, residues) for kind, length, residues in keys]
