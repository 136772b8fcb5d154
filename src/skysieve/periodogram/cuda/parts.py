"""The part of a chunk that one method serves, with its blocks and the sizes of its buffers (pure NumPy)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .methods import Method

DIRECT_SPAN = 2048
"""Frequencies of one block of ``ls_direct``: ``SPAN`` of ``sinusoid/direct.cu``."""
LIST_SPAN, SEARCH_SPAN = 128, 256
"""Frequencies of one block of ``ls_list``, and of ``ls_candidates`` and ``ls_scale``."""
CANDIDATE_BYTES = {4: 20, 8: 32}
"""Bytes of a candidate for a peak (``struct Candidate`` of ``common.cuh``), by the bytes of a power."""
_PER_WARP = 4
"""Candidates that a warp may give beyond the number of peaks before its floor rises."""

MOST_SORTED = 20_000
"""Most objects of a chunk that are sorted by their numbers of points."""

Blocks = tuple[NDArray[np.int32] | None, int]
"""(object, stretch) of every block if grids differ, otherwise None; and the number of stretches of the longest grid."""


@dataclass(frozen=True)
class MethodPart:
    """Objects of a chunk that one method serves.

    ``order`` are their numbers in the chunk, longest first.  ``tasks`` lists (object, stretch) where grids differ;
    otherwise every object has ``stretches``.  ``cap`` candidates and ``edges`` pairs of edge values are stored for an
    object.  A band pair is cut into blocks of ``per_block`` combs; ``long``: some object has many points.
    """

    method: Method
    order: NDArray[np.int32]
    stretches: int
    tasks: NDArray[np.int32] | None
    cap: int
    edges: int
    per_block: int = 0
    long: bool = False

    @property
    def launches(self) -> int:
        """Blocks of the main kernel, before a band pair is cut finer."""
        return self.count((self.tasks, self.stretches))

    def count(self, blocks: Blocks) -> int:
        """Number of blocks to launch."""
        tasks, stretches = blocks
        return len(self.order) * stretches if tasks is None else len(tasks)


def blocks_of(order: NDArray[np.int32], nf: NDArray[np.int64], shared_grid: bool, span: int) -> Blocks:
    """The blocks of a kernel that takes ``span`` frequencies a block; ``nf`` has length 1 where the grid is shared."""
    if shared_grid:
        return None, -(-int(nf[0]) // span)
    counts = -(-nf[order] // span)
    owner = np.repeat(order, counts)
    first = np.cumsum(counts) - counts
    stretch = np.arange(len(owner)) - np.repeat(first, counts)
    return np.stack([owner, stretch], axis=1).astype(np.int32), int(counts.max())


def pruned_candidates(stretches: int, warps: int, n_peaks: int) -> int:
    """Number of candidates of an object if the ``warps`` of a stretch give none below their floor."""
    return 2 * stretches * warps * (n_peaks + _PER_WARP) + 64 * n_peaks


def smooth_candidates(nf: int, cycles: float, terms: int = 1) -> int:
    """Number of candidates if nearly every maximum is given: a band-limited power has hardly more than one in 1/T."""
    return int(1.5 * nf * cycles * terms) + 256


def dealt(
    lengths: NDArray[np.int64], kind: NDArray[np.integer[Any]], counts: list[int], parts: list[int]
) -> list[NDArray[np.int32]]:
    """The object numbers of each part, longest first; very many objects are not sorted.

    ``kind`` is the kind of each object, ``counts`` the number of objects of each kind, and ``parts`` the part of each
    kind.
    """
    longest = int(np.maximum.reduce(lengths)) if 0 < len(lengths) <= MOST_SORTED else 0
    few = (max(parts, default=0) + 1) * (longest + 1) <= 1 << 16
    dtype: Any = np.uint16 if few else np.int64  # uint16 is sorted in linear time
    ranks = np.array([part * (longest + 1) + longest for part in parts], dtype).take(kind)
    if longest:
        ranks = ranks - lengths.astype(dtype)
    order, sizes = ranks.argsort(kind="stable").astype(np.int32), [0] * (max(parts, default=-1) + 1)
    for part, count in zip(parts, counts, strict=True):
        sizes[part] += count
    ends = list(accumulate(sizes))
    return [order[end - size : end] for end, size in zip(ends, sizes, strict=True)]
