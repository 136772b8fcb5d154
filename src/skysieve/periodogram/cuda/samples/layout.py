"""Distances of samples of the sums over points, and sizes of the blocks that interpolate from them (pure NumPy).

One layout serves fits of one sinusoid and of several terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skysieve.periodogram.numerics.nufft import Kernel, shift_constants, unit

from .half_window import BETA

FULLEST = 0.8
"""Largest distance of neighbouring samples, in units of one over the time span."""
SAMPLES, REACH = 160, 17
"""Samples of a transform (fewer than elsewhere, because interpolation adds up the spreading errors), and samples that
an interpolated value is made of: as in ``fourier/grid.cu``."""
POWERS_SPAN = 2048
"""Frequencies of a block of ``ls_powers``: ``SPAN`` of ``sinusoid/powers.cuh``."""


@lru_cache(maxsize=64)
def bessel_i0(x: float) -> float:
    """The modified Bessel function of order 0 (`numpy.i0` takes as long as four launches)."""
    return float(np.i0(x))


@dataclass(frozen=True)
class SampleLayout:
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
    """Whether each sample is a pair of half-precision numbers (``cuda.samples.half_window``)."""

    @property
    def sample_bytes(self) -> int:
        return 8 if self.halves else 16

    @cached_property
    def beta(self) -> float:
        """Shape parameter of the Kaiser-Bessel window that interpolates."""
        if self.halves:
            return BETA
        return float(np.pi * self.reach * (1 - FULLEST / 2) * 0.98)

    @property
    def cycles(self) -> float:
        return FULLEST / self.combs

    @cached_property
    def octets(self) -> int:
        return max(1, self.combs // 8)

    @cached_property
    def stride(self) -> int:
        """Samples from one row of frequencies to the next, at f."""
        return max(1, 8 // self.combs)

    @cached_property
    def rows(self) -> int:
        return 8 * self.tiles

    @cached_property
    def span(self) -> int:
        """Frequencies that a block computes at a time."""
        return self.rows * 8 * self.octets

    @cached_property
    def matrix_steps(self) -> NDArray[np.int64]:
        """Groups of four samples that each harmonic's frequencies are made of: ``steps_of`` of ``fourier/grid.cu``."""
        h = np.arange(1, 2 * self.terms + 1)
        return -(-(self.reach * self.combs + 7 * h) // (4 * self.combs))

    @cached_property
    def room(self) -> int:
        """Samples of all channels in a buffer."""
        h = np.arange(1, 2 * self.terms + 1)
        each = (self.rows - 1) * h * self.stride + (h + 1) * (self.octets > 1) + 4 * self.matrix_steps
        return int(each.sum() + each[: self.terms].sum())

    @cached_property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        passed = 3 * self.terms * 32 * self.tiles * through_shared(self.terms)
        return 16 * (max(self.room, passed) if self.terms > 7 and self.octets == 1 else self.room + passed)


def through_shared(terms: int) -> int:
    """How many of a thread's two frequencies pass their sums through shared memory: as in ``fourier/grid.cu``."""
    return 0 if terms <= 5 else 1 if terms <= 7 else 2


def sampler(modes: int) -> Kernel:
    """The kernel that spreads points for samples."""
    return Kernel(modes=modes, width=16, shape="kaiser-bessel", beta_fraction=0.98)


@lru_cache(maxsize=8)
def comb_tables(combs: int, kernel: Kernel) -> dict[str, NDArray[Any]]:
    """Tables of each comb for ``bands_comb`` and ``chi2_samples``: constants of two stages, fold, deconvolution."""
    fraction = np.arange(combs) / combs
    shift = fraction - kernel.modes // 2
    second = np.stack([shift_constants((b + shift) / 16) for b in range(16)], axis=-1)  # [8, comb, 16]
    m = np.arange(kernel.modes)[None, :] - kernel.modes // 2 + fraction[:, None]
    return {
        "first": np.ascontiguousarray(shift_constants(shift).T, np.complex128),
        "second": np.ascontiguousarray(np.moveaxis(second, 1, 0), np.complex128),
        "fold": np.ascontiguousarray(unit(fraction), np.complex128),
        "deconvolve": np.ascontiguousarray(1 / kernel.transform(m)),
    }
