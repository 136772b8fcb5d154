"""How the GPU samples series of several terms: layouts, shared memory, parts (pure NumPy).

An object's layout follows from its own grid and time span alone, so that its answer does not depend on its company.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skysieve.periodogram.contract import Spec
from skysieve.periodogram.cuda.layouts import FULLEST
from skysieve.periodogram.cuda.parts import Part, longest_first
from skysieve.periodogram.cuda.samples.half_window import BETA
from skysieve.periodogram.numerics.nufft import KERNELS, Kernel, M, shift_constants, unit

COMBS = KERNELS[np.dtype(np.float64)]
EXACT_SPAN, FIND_SPAN = 256, 2048
"""Powers of a block of ``chi2_exact`` and of ``chi2_find``."""
SAMPLES, REACH = 160, 17
"""Samples of a transform, fewer than elsewhere, for the interpolation adds up what the spreading leaves; samples that
an interpolated value is made of: as in ``fourier/grid.cu``."""
STEPS = (256, 192, 128, 96, 64, 48, 32, 24, 16, 8, 4, 2, 1)
"""Frequencies from one sample to the next: multiples or parts of 8, the frequencies that a matrix has columns for."""
RESERVED = 1024
"""Bytes of shared memory left for what the kernel declares itself."""
TILES = 2
"""Tiles that a block does at most, a warp each: as in ``fourier/grid.cu``."""
SMALLEST_COMB = 64
"""Grids of fewer frequencies are fitted one by one."""


def circles(harmonic: NDArray[np.int64], combs: int, cycles: float) -> NDArray[np.int64]:
    """Circles that the cells of each harmonic wind round, at most."""
    highest = harmonic * (M * combs * cycles) + 8 * harmonic - 7
    found: NDArray[np.int64] = np.floor((highest + 15) / M).astype(np.int64) + 1
    return found


@dataclass(frozen=True)
class Chi2Layout:
    """Samples ``combs`` frequencies apart, for light curves of up to ``cycles`` = df T.

    A block interpolates ``tiles`` times 8 rows of 8 ``octets`` frequencies at a time.
    """

    terms: int
    combs: int
    tiles: int
    modes: int = SAMPLES
    """Samples of a transform."""
    reach: int = REACH
    """Samples that an interpolated value is made of."""
    halves: bool = False
    """Are samples pairs of halves?  (``cuda.samples.half_window``)"""

    @property
    def sample_bytes(self) -> int:
        return 8 if self.halves else 16

    @property
    def beta(self) -> float:
        """Shape of the interpolation."""
        if self.halves:
            return BETA
        return float(np.pi * self.reach * (1 - FULLEST / 2) * 0.98)

    @property
    def cycles(self) -> float:
        return FULLEST / self.combs

    @property
    def octets(self) -> int:
        return max(1, self.combs // 8)

    @property
    def stride(self) -> int:
        """Samples from one row of frequencies to the next, at f."""
        return max(1, 8 // self.combs)

    @property
    def rows(self) -> int:
        return 8 * self.tiles

    @property
    def span(self) -> int:
        """Frequencies of a block's turn."""
        return self.rows * 8 * self.octets

    @property
    def matrix_steps(self) -> NDArray[np.int64]:
        """Groups of four samples that each harmonic's frequencies are made of."""
        return matrix_steps(self.terms, self.combs, self.reach)

    @property
    def room(self) -> int:
        """Samples of all channels in a buffer."""
        h = np.arange(1, 2 * self.terms + 1)
        each = (self.rows - 1) * h * self.stride + (h + 1) * (self.octets > 1) + 4 * self.matrix_steps
        return int(each.sum() + each[: self.terms].sum())

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        passed = 3 * self.terms * 32 * self.tiles * through_shared(self.terms)
        return 16 * (max(self.room, passed) if self.terms > 7 and self.octets == 1 else self.room + passed)


def through_shared(terms: int) -> int:
    """Of a thread's two frequencies, those whose sums pass through shared memory: as in ``fourier/grid.cu``."""
    return 0 if terms <= 5 else 1 if terms <= 7 else 2


def sampler(modes: int) -> Kernel:
    """Spreads points for samples."""
    return Kernel(modes=modes, width=16, shape="kaiser-bessel", beta_fraction=0.98)


def matrix_steps(terms: int, combs: int, reach: int = REACH) -> NDArray[np.int64]:
    """As ``steps_of`` of ``fourier/grid.cu``, of every harmonic."""
    h = np.arange(1, 2 * terms + 1)
    return -(-(reach * combs + 7 * h) // (4 * combs))


@lru_cache(maxsize=64)
def layouts(terms: int, shared: int) -> tuple[Chi2Layout, ...]:
    """Layouts for ``shared`` bytes of shared memory a block, the coarsest samples first; none without terms."""
    out = []
    for combs in STEPS if terms else ():
        made = [Chi2Layout(terms, combs, tiles) for tiles in range(TILES, 0, -1)]
        two = [a for a in made if 2 * (a.shared_bytes + RESERVED) <= shared]  # two blocks a multiprocessor
        one = [a for a in made if a.shared_bytes + RESERVED <= shared]
        out += (two or one)[:1]
    return tuple(out)


def choose(known: tuple[Any, ...], cycles: NDArray[np.float64]) -> NDArray[np.intp]:
    """The number of the first layout that serves each object; -1 where none does."""
    out = np.full(len(cycles), -1)
    for i, layout in reversed(list(enumerate(known))):
        out = np.where(cycles <= layout.cycles, i, out)
    return out


def class_bounds(
    known: tuple[Any, ...], cycles: NDArray[np.float64]
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
def tables(combs: int, kernel: Kernel = COMBS) -> tuple[NDArray[Any], ...]:
    """What is read of each comb: constants of the two stages, fold, deconvolution; and the taps."""
    fraction = np.arange(combs) / combs
    shift = fraction - kernel.modes // 2
    second = np.stack([shift_constants((b + shift) / 16) for b in range(16)], axis=-1)  # [8, comb, 16]
    m = np.arange(kernel.modes)[None, :] - kernel.modes // 2 + fraction[:, None]
    return (
        np.ascontiguousarray(shift_constants(shift).T, np.complex128),
        np.ascontiguousarray(np.moveaxis(second, 1, 0), np.complex128),
        np.ascontiguousarray(unit(fraction), np.complex128),
        np.ascontiguousarray(1 / kernel.transform(m)),
        np.ascontiguousarray(kernel.coefficients()),
    )
