"""Places of the samples of a series fit, on the grid and in memory, and groups of objects (pure NumPy).

A harmonic ``h`` needs samples from ``h f0`` to ``h (f0 + nf df)``.  The low harmonics of a narrow band of frequencies
have stretches of their own.  From the first harmonic whose stretch reaches the next one, all share a stretch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .layout import SampleLayout

SAMPLE_WARPS = 2
"""Warps of a block of ``chi2_samples``, which work independently: as in ``fourier/grid.cu``."""
GROUP_BYTES = 256 << 20
"""Most bytes of the samples of a group of objects, unless a single object has more."""


@dataclass(frozen=True)
class Stretches:
    """The stretches of each grid.

    ``lead`` is the first sample of every harmonic's stretch, and ``at`` the place of the stretch in memory,
    ``[grid, harmonic]``.  ``bands`` are the numbers of bands of ``modes`` samples, of w and of w y, ``[grid, 2]``.
    """

    lead: NDArray[np.float64]
    at: NDArray[np.int32]
    bands: NDArray[np.int32]
    modes: int

    @property
    def samples(self) -> NDArray[np.int64]:
        """Samples of w and w y of each grid."""
        total: NDArray[np.int64] = self.modes * self.bands.sum(axis=1, dtype=np.int64)
        return total


def stretches(
    layout: SampleLayout, f0: NDArray[np.float64], df: NDArray[np.float64], nf: NDArray[np.int64]
) -> Stretches:
    """Where the samples of grids of one layout begin and end."""
    if len(f0) == 1:
        return _of_one(layout, float(f0[0]), float(df[0]), int(nf[0]))[0]
    return _of_many(layout, f0, df, nf)


@lru_cache(maxsize=16)
def _of_one(layout: SampleLayout, f0: float, df: float, nf: int) -> tuple[Stretches, int, int]:
    """As `stretches`, for one grid; also return its numbers of bands.  NumPy would take five times as long.

    The result is needed twice for a chunk: for its memory and for its launches.
    """
    margin, pair = _margin(layout), 2 * layout.modes
    first, last_row = f0 / (layout.combs * df), -(-nf // layout.span) * layout.rows - 1
    lead: list[int] = []
    at: list[int] = []
    end = before = place = first_half = 0
    for k, steps in enumerate(layout.matrix_steps.tolist()):
        h = k + 1
        whole = math.floor(h * first)
        start = whole - margin
        if k and start > end:
            place, before = place + pair * -(-(end - before) // pair), start
        elif not k:
            before = start
        end = whole + last_row * (h * layout.stride) + (h + 1) * (layout.octets > 1) + 4 * steps + 4
        lead.append(before)
        at.append(place)
        if h == layout.terms:
            first_half = place + end - before
    of_w, of_both = (-(-used // layout.modes) for used in (place + end - before, first_half))
    bands = np.array([[of_w, of_both]], np.int32)
    return Stretches(np.array([lead], float), np.array([at], np.int32), bands, layout.modes), of_w, of_both


def _margin(layout: SampleLayout) -> int:
    """Samples before a harmonic's first frequency: half the reach, and a margin for rounding."""
    return layout.reach // 2 + 4


def _of_many(
    layout: SampleLayout, f0: NDArray[np.float64], df: NDArray[np.float64], nf: NDArray[np.int64]
) -> Stretches:
    margin, pair = _margin(layout), 2 * layout.modes  # samples of a warp: two neighbouring bands of a stretch
    first = f0 / (layout.combs * df)
    turns = -(-nf // layout.span)
    last_row = (turns * layout.rows - 1).astype(np.float64)
    shape = (len(f0), 2 * layout.terms)
    lead, end = np.empty(shape), np.empty(shape)
    for k, steps in enumerate(layout.matrix_steps):
        h = k + 1
        lead[:, k] = np.floor(h * first) - margin
        end[:, k] = np.floor(h * first) + last_row * (h * layout.stride) + (h + 1) * (layout.octets > 1) + 4 * steps + 4
    at, place = np.zeros(shape, np.int64), np.zeros(len(f0), np.int64)
    for k in range(shape[1]):
        if k:
            joined = lead[:, k] <= end[:, k - 1]
            length = (end[:, k - 1] - lead[:, k - 1]).astype(np.int64)
            place = np.where(joined, place, at[:, k - 1] + pair * -(-length // pair))
            lead[:, k] = np.where(joined, lead[:, k - 1], lead[:, k])
        at[:, k] = place
    used = at + (end - lead).astype(np.int64)
    bands = -(-used[:, [-1, layout.terms - 1]] // layout.modes)
    return Stretches(lead, at.astype(np.int32), bands.astype(np.int32), layout.modes)


@dataclass(frozen=True)
class Group:
    """Objects ``first`` to ``stop`` of a part's order, their samples, and the blocks of both kernels."""

    first: int
    stop: int
    samples: int
    sample_blocks: int
    power_blocks: int


@dataclass(frozen=True)
class Cut:
    """The groups of a part's objects.

    ``place`` says where the samples of each object are.  The tasks are (place in the order, block) of every block if
    grids differ, otherwise None.
    """

    found: Stretches
    groups: list[Group]
    place: NDArray[np.int64]
    sample_tasks: NDArray[np.int32] | None
    power_tasks: NDArray[np.int32] | None
    turns: int

    @property
    def most_samples(self) -> int:
        return max(g.samples for g in self.groups)


def cut(
    layout: SampleLayout,
    f0: NDArray[np.float64],
    df: NDArray[np.float64],
    nf: NDArray[np.int64],
    members: int,
    shared: bool,
    multiprocessors: int,
    group_bytes: int = GROUP_BYTES,
    turns: int | None = None,
) -> Cut:
    """Groups of a part's objects; the grids are theirs in order, or the one that they share.

    ``turns``: the turns of a block of the kernel of powers, chosen to fill the GPU by default.
    """
    if shared and turns is not None:
        one = _of_one(layout, float(f0[0]), float(df[0]), int(nf[0]))
        return _cut_of_one(layout, *one, int(nf[0]), members, group_bytes, turns)
    found = stretches(layout, f0, df, nf)
    each = np.broadcast_to(found.samples, (members,))
    spans = -(-nf // layout.span)
    if turns is None:
        turns = int(np.clip(np.broadcast_to(spans, (members,)).sum() // (8 * multiprocessors), 1, 8))
    sample_blocks = _sample_blocks(found.bands[:, 0], found.bands[:, 1])
    power_blocks = -(-spans // turns)
    ends = np.cumsum(each)
    groups: list[Group] = []
    place = np.empty(members, np.int64)
    first = 0
    while first < members:
        before = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, before + group_bytes // layout.sample_bytes, side="right")))
        place[first:stop] = ends[first:stop] - each[first:stop] - before
        blocks = [
            int(b[0]) * (stop - first) if shared else int(b[first:stop].sum()) for b in (sample_blocks, power_blocks)
        ]
        groups.append(Group(first, stop, int(ends[stop - 1]) - before, *blocks))
        first = stop
    tasks = [None if shared else _tasks(b) for b in (sample_blocks, power_blocks)]
    return Cut(found, groups, place, tasks[0], tasks[1], turns)


def _sample_blocks(of_w: Any, of_both: Any) -> Any:
    """Number of blocks of ``chi2_samples`` for given numbers of bands of w and of w y."""
    twos = -(-of_both // 2)  # warps of two bands, w and w y; the others do four bands of w
    rest = of_w - 2 * twos
    return -(-(twos + -(-(rest * (rest > 0)) // 4)) // SAMPLE_WARPS)


def _cut_of_one(
    layout: SampleLayout, found: Stretches, of_w: int, of_both: int, nf: int, members: int, group_bytes: int, turns: int
) -> Cut:  # fmt: skip
    """As `cut`, of objects that share a grid."""
    each = layout.modes * (of_w + of_both)
    most = max(1, group_bytes // layout.sample_bytes // each)
    spans = -(-nf // layout.span)
    blocks = _sample_blocks(of_w, of_both), -(-spans // turns)
    groups = []
    for first in range(0, members, most):
        n = min(most, members - first)
        groups.append(Group(first, first + n, n * each, n * blocks[0], n * blocks[1]))
    place = np.arange(members, dtype=np.int64)
    return Cut(found, groups, (place if members <= most else place % most) * each, None, None, turns)


def _tasks(counts: NDArray[Any]) -> NDArray[np.int32]:
    """(Place in the order, block) of every block."""
    owner = np.repeat(np.arange(len(counts)), counts)
    begin = np.cumsum(counts) - counts
    return np.stack([owner, np.arange(len(owner)) - np.repeat(begin, counts)], axis=1).astype(np.int32)


def sample_bytes(
    layout: SampleLayout, f0: NDArray[np.float64], df: NDArray[np.float64], nf: NDArray[np.int64], shared: bool
) -> float:
    """Bytes of the samples of an object on one of these grids, and of its coefficients where each has its own."""
    taps = 0 if shared else 8 * 32 * layout.octets * int(layout.matrix_steps.sum())
    return layout.sample_bytes * float(stretches(layout, f0, df, nf).samples.max()) + taps
