"""What a chunk of objects is cut into: parts that one kernel serves, with their blocks and buffers (pure NumPy)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .layouts import POWERS_SPAN, Layout

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
    kept for an object.  A comb has ``per_block`` combs a block; ``long``: some object has many points.
    """

    kind: str
    order: NDArray[np.int32]
    stretches: int
    tasks: NDArray[np.int32] | None
    cap: int
    edges: int
    layout: Layout | None = None
    per_block: int = 0
    long: bool = False

    @property
    def launches(self) -> int:
        """Blocks of the main kernel, before a band pair is cut finer."""
        return len(self.order) * self.stretches if self.tasks is None else len(self.tasks)

    @property
    def blocks(self) -> int:
        """Blocks that a band pair is cut into."""
        return self.layout.blocks(self.per_block) if self.layout is not None else 1


def make_part(
    kind: str,
    order: NDArray[np.int32],
    nf: NDArray[np.int64],
    shared: bool,
    cycles: float,
    n_peaks: int,
    layout: Layout | None = None,
    all_candidates: bool = False,
    multiprocessors: int = 1,
    long: bool = False,
) -> Part:
    """A part from the objects' grid sizes (``nf`` of length 1 when shared); ``cycles`` is their largest."""
    if layout is not None:
        span, warps = (POWERS_SPAN, 8) if layout.sampled else (layout.span, 4)
    else:
        span, warps = (DIRECT_SPAN, 8) if kind == "direct" else (LIST_SPAN, 0)
    largest = int(nf[order].max()) if not shared else int(nf[0])
    stretches = -(-largest // span)
    tasks = None
    if not shared:
        counts = -(-nf[order] // span)
        owner = np.repeat(order, counts)
        first = np.cumsum(counts) - counts
        tasks = np.stack([owner, np.arange(len(owner)) - np.repeat(first, counts)], axis=1).astype(np.int32)
    pairs = len(order) * stretches if tasks is None else len(tasks)
    per_block = layout.per_block(pairs, multiprocessors) if layout is not None else 0
    every = largest // 2 + 1
    if all_candidates or kind == "list":
        cap = every
    else:
        pruned = 2 * stretches * warps * (n_peaks + _PER_WARP) + 64 * n_peaks
        smooth = int(1.5 * largest * cycles) + 256
        # a warp of the comb's flat form sees some 800 neighbours, which gives a good floor; elsewhere nearly every
        # maximum may be given, and a band-limited function has hardly more than one for each 1/T
        flat = layout is not None and not layout.columns and not layout.sampled
        cap = min(every, max(pruned, 256) if flat else max(pruned, smooth))
    stretch = layout.stretch(per_block) if layout is not None else 0 if kind == "list" else DIRECT_SPAN
    edges = -(-largest // stretch) if stretch else 0
    return Part(kind, order, stretches, tasks, cap, edges, layout, per_block, long)


def longest_first(lengths: NDArray[np.int64], chosen: NDArray[np.intp] | None = None) -> NDArray[np.int32]:
    """Object numbers, longest first; as they come where lengths hardly differ or there are very many."""
    objects = np.arange(len(lengths)) if chosen is None else chosen
    if len(objects) <= 20_000 and len(objects) and lengths[objects].max() > lengths[objects].min():
        objects = objects[np.argsort(-lengths[objects], kind="stable")]
    return objects.astype(np.int32)
