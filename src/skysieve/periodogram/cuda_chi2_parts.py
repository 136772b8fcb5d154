"""How the GPU deals light curves to the combs of the series fits: layouts, shared memory, parts (pure NumPy).

An object's layout follows from its own grid and time span alone, so that its answer does not depend on its company.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skysieve.periodogram.comb import KERNELS, M, shift_constants, unit
from skysieve.periodogram.cuda_parts import Part, longest_first
from skysieve.periodogram.workload import Spec

MODES = KERNELS[np.dtype(np.float64)].modes
EXACT_SPAN, FIND_SPAN = 256, 2048
"""Powers of a block of ``chi2_exact`` and of ``chi2_find``."""
HALVES, SLOT, CHUNK = 24, MODES, 64
"""Half warps of a block, complex numbers of a slot, points whose turns are held: as in ``ls_chi2.cu``."""
COMBS = (16, 12, 8, 6, 4, 2, 1)
RESERVED = 1024
"""Bytes of shared memory left for what the kernel declares itself."""
SMALLEST_COMB = 64
"""Grids of fewer frequencies are fitted one by one."""


def circles(harmonic: NDArray[np.int64], combs: int, cycles: float) -> NDArray[np.int64]:
    """Circles that the cells of each harmonic wind round, at most."""
    highest = harmonic * (M * combs * cycles) + 8 * harmonic - 7
    found: NDArray[np.int64] = np.floor((highest + 15) / M).astype(np.int64) + 1
    return found


@dataclass(frozen=True)
class Chi2Layout:
    """``combs`` a band, ``together`` of them transformed at a time, for light curves of up to ``cycles`` = df T."""

    terms: int
    combs: int
    together: int
    cycles: float

    @property
    def span(self) -> int:
        """Frequencies of a band."""
        return MODES * self.combs

    @property
    def room(self) -> int:
        """Complex cells of all channels of a band."""
        return cells(self.terms, self.combs, self.cycles)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 16 * self.room + slot_bytes(self.terms, self.together)


def cells(terms: int, combs: int, cycles: float) -> int:
    """Complex cells of the 2 n channels of w and the n of w y."""
    many = circles(np.arange(1, 2 * terms + 1), combs, cycles)
    return int(M * (many.sum() + many[:terms].sum()))


def slot_bytes(terms: int, together: int) -> int:
    """Room for the outputs of the transforms, and before that for the turns of the points."""
    items = 2 * -(-together * 3 * terms // 2)
    segments = max(1, HALVES // (2 * terms))
    points = segments * CHUNK * terms * (2 * (16 + 4) + 16)
    return max(16 * SLOT * items, -(-points // 16) * 16)


@lru_cache(maxsize=64)
def layouts(terms: int, shared: int) -> tuple[Chi2Layout, ...]:
    """Layouts for a GPU with ``shared`` bytes of shared memory a block, the best first; none without terms."""
    out = []
    most = max(1, HALVES // (3 * terms)) if terms else 0
    together = [g for g in (16, 8, 4, 2, 1) if g <= most]
    for g in together:
        for combs in COMBS:
            left = (shared - RESERVED - slot_bytes(terms, g)) // 16
            if combs % g or cells(terms, combs, 0.0) > left:
                continue
            low, high = 0.0, 64.0 / combs
            for _ in range(50):
                middle = (low + high) / 2
                low, high = (middle, high) if cells(terms, combs, middle) <= left else (low, middle)
            out.append(Chi2Layout(terms, combs, g, low))
    return tuple(out)


def choose(known: tuple[Chi2Layout, ...], cycles: NDArray[np.float64]) -> NDArray[np.intp]:
    """The number of the first layout that serves each object; -1 where none does."""
    out = np.full(len(cycles), -1)
    for i, layout in reversed(list(enumerate(known))):
        out = np.where(cycles <= layout.cycles, i, out)
    return out


def class_bounds(
    known: tuple[Chi2Layout, ...], cycles: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bounds (least, most] of ``df T`` between which the choice of a layout is that of ``cycles``."""
    ends = np.unique([-np.inf, *(a.cycles for a in known), np.inf])
    number = np.searchsorted(ends, cycles, side="left")
    return ends[number - 1], ends[number]


Blocks = tuple[NDArray[np.int32] | None, int]
"""(object, stretch) of every block where grids differ, and the stretches of the longest grid."""


@dataclass(frozen=True)
class Chi2Part(Part):
    """Objects of one layout; ``fit`` None: every frequency is fitted exactly.

    ``exact`` and ``find`` are the blocks of ``chi2_exact`` and ``chi2_find``: as ``tasks`` and ``stretches``.
    """

    fit: Chi2Layout | None = None
    exact: Blocks = (None, 1)
    find: Blocks = (None, 1)

    def count(self, blocks: Blocks) -> int:
        """Number of blocks to launch."""
        tasks, stretches = blocks
        return len(self.order) * stretches if tasks is None else len(tasks)


def parts_of(
    known: tuple[Chi2Layout, ...],
    spec: Spec,
    lengths: NDArray[np.int64],
    cycles: NDArray[np.float64],
    nf: NDArray[np.int64],
    shared_grid: bool,
    all_candidates: bool,
) -> tuple[list[Part], NDArray[np.float64]]:
    """Parts of a chunk, and the cells of one circle times combs of each object (0: exact alone)."""
    layout = choose(known, cycles)
    layout = np.where(np.broadcast_to(nf, layout.shape) < SMALLEST_COMB, -1, layout)
    circle = np.zeros(len(layout))
    parts: list[Part] = []
    for i in np.unique(layout):
        chosen = np.flatnonzero(layout == i)
        fit = known[i] if i >= 0 else None
        order = longest_first(lengths, chosen)
        if fit is not None:
            circle[chosen] = M * fit.combs
        tasks, stretches = _tasks(order, nf, shared_grid, fit.span if fit is not None else EXACT_SPAN)
        exact, find = (_tasks(order, nf, shared_grid, span) for span in (EXACT_SPAN, FIND_SPAN))
        largest = int(nf[0]) if shared_grid else int(nf[order].max())
        # nearly every maximum may be given: hardly more than one for each 1/T and term (see cuda_parts.make_part)
        smooth = int(1.5 * largest * float(cycles[chosen].max()) * max(1, spec.nterms)) + 256
        pruned = 2 * find[1] * 8 * (spec.n_peaks + 4) + 64 * spec.n_peaks
        every = largest // 2 + 1
        sparse = cycles[chosen].min() > 0 and not all_candidates  # of a list of frequencies nothing is known
        cap = min(every, max(pruned, smooth)) if sparse else every
        kind = "comb" if fit is not None else "direct"
        parts.append(
            Chi2Part(
                kind, order, stretches, tasks, cap, find[1], fit=fit, exact=exact, find=find
            )
        )  # fmt: skip
    return parts, circle


def _tasks(order: NDArray[np.int32], nf: NDArray[np.int64], shared_grid: bool, span: int) -> Blocks:
    """The blocks of a kernel that takes ``span`` frequencies a block."""
    if shared_grid:
        return None, -(-int(nf[0]) // span)
    counts = -(-nf[order] // span)
    owner = np.repeat(order, counts)
    first = np.cumsum(counts) - counts
    stretch = np.arange(len(owner)) - np.repeat(first, counts)
    return np.stack([owner, stretch], axis=1).astype(np.int32), int(counts.max())


@lru_cache(maxsize=8)
def tables(combs: int) -> tuple[NDArray[Any], ...]:
    """What ``chi2_comb`` reads of each comb: constants of the two stages, fold, deconvolution; and the taps."""
    kernel = KERNELS[np.dtype(np.float64)]
    fraction = np.arange(combs) / combs
    shift = fraction - MODES // 2
    second = np.stack([shift_constants((b + shift) / 16) for b in range(16)], axis=-1)  # [8, comb, 16]
    m = np.arange(MODES)[None, :] - MODES // 2 + fraction[:, None]
    return (
        np.ascontiguousarray(shift_constants(shift).T, np.complex128),
        np.ascontiguousarray(np.moveaxis(second, 1, 0), np.complex128),
        np.ascontiguousarray(unit(fraction), np.complex128),
        np.ascontiguousarray(1 / kernel.transform(m)),
        np.ascontiguousarray(kernel.coefficients()),
    )
