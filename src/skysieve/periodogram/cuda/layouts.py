"""Layout and tables of the banded comb NUFFT for the GPU (pure NumPy; the mathematics is in ``comb``).

An object's layout follows from its own grid and time span alone, so that its answer does not depend on its company.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from skysieve.core.device import Device
from skysieve.periodogram.cuda.samples.half_window import HALVES_REACH
from skysieve.periodogram.numerics.nufft import TAPS, Kernel, M, shift_constants, unit

OUTPUTS = 16 * 13
"""Most outputs of one FFT that the kernel keeps (13 a thread)."""
MODES = {np.dtype(np.float64): 200, np.dtype(np.float32): 184}
"""Modes used of 256: with more the aliasing (float64) or rounding (float32) error is too large."""
SHAPES = ((1, 8), (1, 4), (2, 8), (2, 4), (4, 4), *((1, 2**k) for k in range(5, 14)))
"""Folds and combs of the builds.  Powers of two: the fractions of a comb are exact, and few shapes serve all spans."""
FLAT = 8
"""Bands of at most this many combs are staged whole and searched as one stretch; wider ones comb by comb."""
FINE = 64
"""In float64 bands of at least this many combs are interpolated from four of them (``sinusoid/fine.cu``)."""
COARSE_MODES = 192
"""Modes used where sums are interpolated: they need a few more on either side."""
TILE = 8
"""Intervals between coarse samples that a warp of ``ls_fine`` follows together."""
COARSE = 4
"""Combs that these transform."""
_WARPS = 8
SHORTEST_RUN = 48
"""Combs of a block below which its four warps had better share the two further ones."""
_FOLDING = {1: 1.0, 2: 1.15, 4: 1.5}
_FURTHER = 1.04
_SPREADING, _SPREADING_APART = 3.0, 8.0
"""What a comb costs more when cells fold or when neighbours are computed twice; spreading a band pair, in combs."""


INTERPOLATING = ("ls_fine",)
"""Kernels that transform few combs and interpolate the others."""
SAMPLED = "ls_powers"
"""The kernel that interpolates from samples on one grid for all harmonics (``cuda.samples.samples``); in float32 of
``sinusoid/powers_half.cu``."""
STEPS = (32, 16, 8)
"""Frequencies between samples: closer ones cost more than a comb."""
SAMPLED_MODES = {np.dtype(np.float64): 160, np.dtype(np.float32): 208}
SAMPLED_REACH = {np.dtype(np.float64): 18, np.dtype(np.float32): HALVES_REACH}
FULLEST = 0.8
"""Samples of a transform, and those that an interpolated value is made of; they are at most this part of 1/T apart."""
_SAMPLING = {160: (6.0, 1.6, 0.51), 208: (6.0, 2.3, 0.56)}
"""Cost in combs of an object, of two bands, of each frequency between their samples; by the samples of a transform."""
POWERS_SPAN = 2048
"""Frequencies of a block of ``ls_powers``."""
MATRIX_UNITS = (8, 0)
"""Lowest compute capability with float64 matrix units; they are faster than the plain ones where float64 is fast."""


@dataclass(frozen=True)
class Layout:
    """A build of ``sinusoid/comb.cu``: ``modes`` of each FFT, ``combs`` a band, ``fold`` circles of cells."""

    build: str
    combs: int
    fold: int
    modes: int
    sampled: ClassVar[bool] = False
    """Are frequencies interpolated from samples, ``combs`` frequencies apart?  (`Samples`)"""

    @property
    def columns(self) -> bool:
        """Are powers followed from comb to comb, the cells spread by a kernel of their own?"""
        return self.combs > FLAT

    @property
    def kind(self) -> str:
        """Its row in the table of costs (``cuda_cost.Shares``)."""
        if self.window:
            return self.build
        return "columns" if self.columns else "flat" if self.fold == 1 else f"x{self.fold}"

    @property
    def window(self) -> int:
        """The pair of windows that sums are interpolated by from coarse transforms: 0 none, -1 from samples."""
        return INTERPOLATING.index(self.build) + 1 if self.build in INTERPOLATING else 0

    @property
    def fine(self) -> bool:
        """Are there many combs, all but four of them interpolated?"""
        return self.build == "ls_fine"

    @property
    def span(self) -> int:
        """Frequencies of a pair of bands."""
        return 2 * self.modes * self.combs

    @property
    def cycles(self) -> float:
        """Largest ``df * span`` for which every tap of every point falls on a cell."""
        return ((M * self.fold - TAPS) / M - 1e-9) / self.combs

    def per_block(self, pairs: int, multiprocessors: int) -> int:
        """Combs of a block, or tiles of intervals: all, or fewer where that fills the GPU."""
        if self.fine:
            tiles = COARSE * self.modes // TILE
            most = 2 * pairs * tiles // (12 * max(1, multiprocessors))
            return max([t for t in range(_WARPS, tiles + 1, _WARPS) if tiles % t == 0 and t <= most] or [_WARPS])
        wave = multiprocessors * 4  # MINB of the builds with columns
        blocks = max(1, wave // max(1, pairs))
        if not self.columns or blocks == 1:
            return self.combs
        run = 4 * -(-self.combs // (4 * blocks))
        shared = max(
            10, 4 * -(-(self.combs - 2 * blocks) // (4 * blocks)) + 2
        )  # with two further combs a multiple of 4
        return min(self.combs, run if run >= SHORTEST_RUN else shared)

    def blocks(self, per_block: int) -> int:
        """Blocks that a band pair is cut into."""
        return 2 * COARSE * self.modes // TILE // per_block if self.fine else -(-self.combs // per_block)

    def stretch(self, per_block: int) -> int:
        """Neighbouring frequencies between edge values; 0 where there are none."""
        if self.fine:
            return per_block * TILE * self.combs // COARSE
        return 0 if self.columns else self.span

    def form(self, writes: bool, per_block: int) -> str:
        """The build to launch: columns become runs where no power is written and a warp's run is long enough."""
        return self.build.replace("columns", "runs") if not writes and per_block >= SHORTEST_RUN else self.build

    def shared_bytes(self, itemsize: int, form: str, per_block: int = 0) -> int:
        """Dynamic shared memory of a block: cells, exchange, staged powers."""
        if self.fine:
            tiles = per_block or COARSE * self.modes // TILE
            return max(1024 * 16 + 2 * _WARPS * (16 * 17 + 8) * 8, 3 * 784 * 16 + tiles * TILE * 4 * 8)
        split = itemsize == 8 and not self.columns
        pad = 16 * 17 + (4 if itemsize == 8 and not split else 8)
        exchange = 4 * pad * (1 if split else 2)
        columns = 2 * self.modes
        plane = 17 * ((columns + 3) // 4)
        if form.endswith("runs"):
            staged = 4 * 2 * 2 * OUTPUTS
        elif self.columns:
            staged = 2 * plane + 2 * columns
        else:
            staged = plane if self.combs == FLAT else 0
        return (2 * 1024 * self.fold + exchange) * 2 * itemsize + staged * itemsize

    def cost(self, pairs: Any) -> Any:
        """Time of ``pairs`` of bands, in that of a comb."""
        if self.fine:
            return pairs * (0.39 * self.combs + 21.0)
        each = (
            self.combs * _FURTHER + _SPREADING_APART if self.columns else self.combs * _FOLDING[self.fold] + _SPREADING
        )
        return pairs * each


@dataclass(frozen=True)
class Samples(Layout):
    """Samples ``combs`` frequencies apart, ``modes`` of a transform; ``reach`` of them make an interpolated value."""

    reach: int
    halves: bool
    """Are samples pairs of halves?  (``cuda.samples.half_window``)"""
    sampled: ClassVar[bool] = True

    @property
    def columns(self) -> bool:
        return False

    @property
    def kind(self) -> str:
        return self.build

    @property
    def window(self) -> int:
        return -1

    @property
    def taps(self) -> int:
        """Interpolation coefficients of one grid: pairs."""
        return self.parts * sum(self.steps) * 32

    @property
    def parts(self) -> int:
        """Rows of 16 frequencies that follow one another before samples lie alike again."""
        return self.combs // 8 if self.halves else max(1, self.combs // 16)

    @property
    def steps(self) -> tuple[int, int]:
        """Groups of four samples, of eight halves, that a row of 16 frequencies is made of, at f and at 2f."""
        if self.halves:
            return 3, 3
        at_f, at_2f = (-(-(self.reach * self.combs + 15 * h) // (4 * self.combs)) for h in (1, 2))
        return at_f, at_2f

    @property
    def cycles(self) -> float:
        """Largest ``df * span`` for which samples are close enough."""
        return FULLEST / self.combs

    def per_block(self, pairs: int, multiprocessors: int) -> int:
        return self.combs

    def blocks(self, per_block: int) -> int:
        return 1

    def stretch(self, per_block: int) -> int:
        return POWERS_SPAN

    def shared_bytes(self, itemsize: int, form: str, per_block: int = 0) -> int:
        """Dynamic shared memory of a block of powers: samples, or what the search lists in their place, and powers."""
        rows = POWERS_SPAN // (16 * self.parts) - 1
        stride, spare, group = (2, 2, 8) if self.halves else (max(1, 16 // self.combs), 1, 4)
        at_f, at_2f = (
            rows * h * stride + spare * (h + 1) * (self.parts > 1) + group * step
            for h, step in enumerate(self.steps, 1)
        )
        if self.halves:
            at_f, at_2f = ((samples + 13) // 8 for samples in (at_f, at_2f))  # octets, from any place on
            return max(64 * (2 * at_f + at_2f), 4 * POWERS_SPAN) + itemsize * POWERS_SPAN * 20 // 16
        return max(16 * (2 * at_f + at_2f), 4 * POWERS_SPAN) + itemsize * POWERS_SPAN * 17 // 16

    def cost(self, pairs: Any) -> Any:
        each, start, comb = _SAMPLING[self.modes]
        return each + pairs * (start + comb * self.combs)


def has_matrix_units(device: Device) -> bool:
    """Whether a GPU has float64 matrix units worth using."""
    return device.compute_capability >= MATRIX_UNITS and device.fast_doubles


@lru_cache(maxsize=8)
def layouts(dtype: np.dtype[Any], shared: int, matrix: bool = False) -> tuple[Layout, ...]:
    """Every layout that a GPU with ``shared`` bytes of shared memory a block can run.

    ``matrix``: has it float64 matrix units worth using?
    """
    sampled = (SAMPLED_MODES[dtype], SAMPLED_REACH[dtype], dtype == np.float32)
    out: list[Layout] = [Samples(SAMPLED, step, 1, *sampled) for step in STEPS if matrix]
    for fold, combs in SHAPES:
        build = "columns" if combs > FLAT else (f"x{fold}" if fold > 1 else "") + ("p4" if combs < FLAT else "")
        layout = Layout(("f64" if dtype == np.float64 else "f32") + build, combs, fold, MODES[dtype])
        if dtype == np.float64 and FLAT < combs < FINE:
            continue  # bands of `FLAT` combs cost as little
        if dtype == np.float64 and combs >= FINE:
            layout = Layout(INTERPOLATING[0], combs, fold, COARSE_MODES)
        forms = (layout.build, layout.form(False, combs))
        if max(layout.shared_bytes(dtype.itemsize, form) for form in forms) <= shared:
            out.append(layout)
    return tuple(out)


def choose_layouts(known: tuple[Layout, ...], nf: NDArray[np.int64], cycles: NDArray[np.float64]) -> NDArray[np.intp]:
    """The number of the layout for each object; -1 where none serves its ``df * span``."""
    if not known:
        return np.full(len(cycles), -1)
    costs = np.stack([np.where(cycles <= a.cycles, a.cost(np.ceil(nf / a.span)), np.inf) for a in known])
    best = np.argmin(costs, axis=0)
    return np.where(np.isfinite(costs.min(axis=0)), best, -1)


@lru_cache(maxsize=8)
def class_ends(known: tuple[Layout, ...]) -> NDArray[np.float64]:
    """Values of ``df * span`` up to each of which the choice of a layout is the same; the last is infinite."""
    return np.unique([*(a.cycles for a in known), np.inf])


def class_bounds(
    known: tuple[Layout, ...], cycles: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bounds (least, most] of ``df * span`` between which the choice of a layout is that of ``cycles``."""
    ends = np.append(-np.inf, class_ends(known))
    number = np.searchsorted(ends, cycles, side="left")
    return ends[number - 1], ends[number]


def spreading_kernel(dtype: np.dtype[Any]) -> Kernel:
    """The kernel of the precision."""
    return Kernel(MODES[dtype], TAPS if dtype == np.float64 else 10, "kaiser-bessel", 0.98)


@dataclass(frozen=True)
class Tables:
    """What the kernel reads for each comb."""

    first: NDArray[Any]
    second: NDArray[Any]
    fold: NDArray[Any]
    deconvolve: NDArray[Any]


@lru_cache(maxsize=8)
def make_tables(combs: int, dtype: np.dtype[Any]) -> Tables:
    """Tables of combs 0 .. combs + 1, two more than there are."""
    complex_type = np.complex128 if dtype == np.float64 else np.complex64
    kernel = spreading_kernel(dtype)
    centre = kernel.modes // 2
    fraction = np.arange(combs + 2) / combs
    shift = fraction - centre
    second = np.stack([shift_constants((b + shift) / 16) for b in range(16)], axis=-1)  # [8, comb, 16]
    m = np.arange(OUTPUTS)[None, :] - centre + fraction[:, None]
    edge = kernel.modes / 2 + 0.99
    transform = kernel.transform(np.clip(m, -edge, edge))
    return Tables(
        first=np.ascontiguousarray(shift_constants(shift).T, complex_type),
        second=np.ascontiguousarray(np.moveaxis(second, 1, 0), complex_type),
        fold=np.ascontiguousarray(unit(fraction), complex_type),
        deconvolve=np.ascontiguousarray(1 / transform, dtype),
    )
