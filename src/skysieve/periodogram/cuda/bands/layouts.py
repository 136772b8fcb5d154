"""How the GPU deals light curves in several bands to combs: layouts, shared memory, channels (pure NumPy).

The channels are those of ``chi2.tables``, band after band; an object's layout follows from its own grid and span.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from skysieve.periodogram.cuda.fourier.layouts import circles
from skysieve.periodogram.numerics.fourier import Model
from skysieve.periodogram.numerics.fourier import tables as columns_of_sums
from skysieve.periodogram.numerics.nufft import KERNELS, TAPS, M

F64 = np.dtype(np.float64)
OFFSET_MODES = 200
"""Modes of a comb of ``bands_offset``: as in ``cuda_tables.MODES``."""
OFFSET_SHAPES = ((1, 16), (1, 8), (2, 8), (4, 8), (4, 4), (4, 2), (4, 1))
"""Circles of w at f and combs of ``bands_offset``, the best first."""
EXCHANGE = 8 * (16 * 17 + 8)
"""Numbers that the half warps of ``bands_offset`` exchange: as in ``bands/bands.cu``."""
HALVES, SLOT, CHUNK = 24, KERNELS[F64].modes, 64
"""Half warps of a block of ``bands_comb``, complex numbers of a slot, points held: as in ``bands/bands.cu``."""
COMBS = (16, 12, 8, 6, 4, 3, 2, 1)
SPREADING = 4.0
"""Spreading the points, in rounds of transforms."""
RESERVED = 1024
"""Bytes of shared memory left for what the kernel declares itself."""


@dataclass(frozen=True)
class BandsLayout:
    """``combs`` a band of frequencies, for light curves of up to ``cycles`` = df T.

    ``together`` are transformed at a time; 0 for ``bands_offset``, whose cells of f wind round ``fold`` circles.
    """

    combs: int
    cycles: float
    shared_bytes: int
    modes: int
    fold: int = 1
    together: int = 0
    room: int = 0
    slots: int = 0

    @property
    def span(self) -> int:
        """Frequencies of a band."""
        return self.modes * self.combs


def most_terms(model: Model) -> int:
    """The highest harmonic that the model has."""
    return max(1, model.terms, model.band_terms)


def is_offset(model: Model) -> bool:
    """Whether the model is one sinusoid and a mean for each band, which has a kernel of its own."""
    return (model.terms, model.band_terms, model.constant, model.regularised) == (1, 0, False, False)


def harmonics(model: Model) -> NDArray[np.int64]:
    """Harmonic of each channel."""
    found: NDArray[np.int64] = columns_of_sums(model).channel[:, 0]
    return found


def spread_bytes(model: Model) -> int:
    """Device bytes of the kernel weights of one row."""
    return 2 * (16 * 8 + 4) if is_offset(model) else int(harmonics(model).max()) * (16 * 8 + 4)


@lru_cache(maxsize=32)
def layouts(model: Model, shared: int) -> tuple[BandsLayout, ...]:
    """Layouts for a GPU with ``shared`` bytes of shared memory a block, the best first."""
    return _offset_layouts(model, shared) if is_offset(model) else _general_layouts(model, shared)


def _offset_layouts(model: Model, shared: int) -> tuple[BandsLayout, ...]:
    out = []
    for fold, combs in OFFSET_SHAPES:
        size = 16 * M * fold * (model.n_bands + 3) + 8 * EXCHANGE
        if size <= shared - RESERVED:
            out.append(BandsLayout(combs, ((M * fold - TAPS) / M - 1e-9) / combs, size, OFFSET_MODES, fold))
    return tuple(out)


def _general_layouts(model: Model, shared: int) -> tuple[BandsLayout, ...]:
    channel = harmonics(model)
    top = int(channel.max())
    points = 16 * CHUNK * (top + 1) + 4 * CHUNK

    def room(combs: int, cycles: float) -> int:
        return int(M * circles(channel, combs, cycles).sum())

    def cost(layout: BandsLayout) -> float:
        """Of a frequency, in rounds of transforms."""
        turns = layout.combs // layout.together
        transforms = -(-layout.together * len(channel) // HALVES)
        equations = -(-layout.together * SLOT // (16 * HALVES)) * (1 + model.band_terms)
        return (SPREADING + turns * (transforms + equations)) / layout.combs

    out = []
    for together in (1, 2, 3, 4, 6, 8):
        slots = max(2 * -(-together * len(channel) // 2), 2 * -(-points // (32 * SLOT)))
        fixed = 16 * SLOT * slots + 4 * (len(channel) + 1)
        left = (shared - RESERVED - fixed) // 16
        for combs in (c for c in COMBS if c % together == 0):
            if room(combs, 0.0) > left:
                continue
            low, high = 0.0, 64.0 / combs
            for _ in range(50):
                middle = (low + high) / 2
                low, high = (middle, high) if room(combs, middle) <= left else (low, middle)
            size = room(combs, low)
            out.append(BandsLayout(combs, low, 16 * size + fixed, SLOT, 1, together, size, slots))
    out.sort(key=cost)
    return tuple(out)
