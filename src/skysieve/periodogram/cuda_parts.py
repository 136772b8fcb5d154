"""What a chunk of objects is cut into: parts that one kernel serves, with their blocks and buffers (pure NumPy)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skysieve.periodogram.cuda_tables import Layout
from skysieve.periodogram.workload import Grids

DIRECT_SPAN = 2048
"""Frequencies of one block of ``ls_direct``."""
LIST_SPAN = 128
SEARCH_SPAN = 256
CANDIDATE_BYTES = {4: 20, 8: 32}
_PER_WARP = 4
"""Candidates that a warp may give beyond those asked for before its floor bites."""


@dataclass(frozen=True)
class Part:
    """Objects of a chunk that one method serves.

    ``order`` are their numbers in the chunk, longest first.  ``tasks`` lists (object, stretch) where grids
    differ; else every object has ``stretches``.  ``cap`` candidates and ``edges`` pairs of edge values are
    kept for an object.
    """

    kind: str
    order: NDArray[np.int32]
    stretches: int
    tasks: NDArray[np.int32] | None
    cap: int
    edges: int
    layout: Layout | None = None

    @property
    def launches(self) -> int:
        """Blocks of the main kernel, before a band pair is cut finer."""
        return len(self.order) * self.stretches if self.tasks is None else len(self.tasks)


def make_part(
    kind: str,
    order: NDArray[np.int32],
    nf: NDArray[np.int64],
    shared: bool,
    cycles: float,
    n_peaks: int,
    layout: Layout | None = None,
    all_candidates: bool = False,
) -> Part:
    """A part from the objects' grid sizes (``nf`` of length 1 when shared)."""
    if kind == "comb":
        assert layout is not None
        span = 2 * layout.modes * layout.combs
        warps = 4
    else:
        span, warps = (DIRECT_SPAN, 8) if kind == "direct" else (LIST_SPAN, 0)
    largest = int(nf.max())
    stretches = -(-largest // span)
    tasks = None
    if not shared:
        counts = -(-nf[order] // span)
        owner = np.repeat(order, counts)
        first = np.cumsum(counts) - counts
        tasks = np.stack([owner, np.arange(len(owner)) - np.repeat(first, counts)], axis=1).astype(np.int32)
    every = largest // 2 + 1
    if all_candidates or kind == "list":
        cap = every
    else:
        pruned = 2 * stretches * warps * (n_peaks + _PER_WARP) + 64 * n_peaks
        smooth = int(1.5 * largest * cycles) + 256
        # a warp of the comb's flat form sees some 800 neighbours, which gives a good floor; elsewhere nearly every
        # maximum may be given, and a band-limited function has hardly more than one for each 1/T
        flat = layout is not None and not layout.columns
        cap = min(every, max(pruned, 256) if flat else max(pruned, smooth))
    edges = 0 if kind == "list" or (layout is not None and layout.columns) else stretches
    return Part(kind, order, stretches, tasks, cap, edges, layout)


def edge_bytes(part: Part, objects: int, itemsize: int) -> int:
    """Device bytes of the edge values for a chunk."""
    return max(1, objects * part.edges * 2 * itemsize)


def longest_first(lengths: NDArray[np.int64], chosen: NDArray[np.bool_] | None = None) -> NDArray[np.int32]:
    """Object numbers, longest first; as they come where lengths hardly differ or there are very many."""
    objects = np.arange(len(lengths)) if chosen is None else np.flatnonzero(chosen)
    if len(objects) <= 20_000 and len(objects) and lengths[objects].max() > lengths[objects].min():
        objects = objects[np.argsort(-lengths[objects], kind="stable")]
    return objects.astype(np.int32)


def chunk_grids(grids: Grids, objects: NDArray[np.int64] | slice) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """``f0, df, nf`` of some objects (length 1 when shared)."""
    if grids.shared:
        return grids.f0, grids.df, grids.nf
    return grids.f0[objects], grids.df[objects], grids.nf[objects]
