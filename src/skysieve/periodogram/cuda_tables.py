"""Layout and tables of the banded comb NUFFT for the GPU (pure NumPy; the mathematics is in ``comb``)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skysieve.periodogram.comb import TAPS, Kernel, M, shift_constants, unit

OUTPUTS = 16 * 13
"""Most outputs of one FFT that the kernel keeps (13 a thread)."""
MOST_MODES = {np.dtype(np.float64): 200, np.dtype(np.float32): 184}
"""Most modes used of 256: past these the aliasing (float64) or rounding (float32) error is too large."""
FEWEST_MODES = 160
"""The kernel is not made for fewer: more oversampling than 1.6 gains nothing."""
FOLDS = (1, 2, 4)
"""Circles that the cells of f may wind round, one build each."""
MOST_COMBS = 1 << 22
MOST_TABLED = 40_000
"""Combs whose deconvolution is tabled: 64 MiB in float64."""
SHORTEST_RUN = 48
"""Combs of a block below which its four warps had better share the two further ones."""
GROUP = 8
"""Combs staged together; a band of at most this many is searched as one stretch."""


@dataclass(frozen=True)
class Layout:
    """How the frequencies of a plan are dealt to blocks; see ``ls_comb.cu``.

    ``most_cycles`` is the largest ``df * span`` of an object that the layout serves.
    """

    build: str
    combs: int
    per_block: int
    pairs: int
    modes: int
    fold: int
    most_cycles: float

    @property
    def blocks(self) -> int:
        """Blocks a band pair."""
        return -(-self.combs // self.per_block)

    @property
    def columns(self) -> bool:
        return self.build.endswith("columns")

    @property
    def spread_apart(self) -> bool:
        """Are points spread once a band pair by a kernel of their own, rather than by every block?

        That needs the deconvolution of every comb, not of a block's, hence the limit.
        """
        return self.blocks > 1 and self.combs <= MOST_TABLED

    def form(self, writes: bool) -> str:
        """The build to launch: columns become runs where no power is written and a warp's run is long enough."""
        if self.columns and not writes and self.per_block >= SHORTEST_RUN:
            return self.build.replace("columns", "runs")
        return self.build

    def shared_bytes(self, itemsize: int, writes: bool) -> int:
        """Dynamic shared memory of a block: cells, exchange, staged powers."""
        form = self.form(writes)
        split = itemsize == 8 and not self.columns
        exchange = 4 * 16 * 17 * (1 if split else 2)
        columns = 2 * self.modes
        plane = 17 * ((columns + 3) // 4)
        if form.endswith("runs"):
            staged = 4 * 2 * 2 * OUTPUTS
        elif self.columns:
            staged = 2 * plane + 2 * columns
        else:
            staged = plane if self.combs == GROUP else 0
        return (2 * 1024 * self.fold + exchange) * 2 * itemsize + staged * itemsize


def choose_layout(nf: int, cycles: float, dtype: np.dtype[Any], objects: int, wave: int, shared: int) -> Layout | None:
    """The layout for grids of up to ``nf`` frequencies and ``df * span`` up to ``cycles``; None when no comb pays.

    ``wave`` is the number of blocks that run at once: a few objects are cut finer to fill it.  ``shared`` is the
    most shared memory of a block.
    """
    fold = next((f for f in FOLDS if _most_combs(f, cycles) >= 4), None)
    if fold is None:
        return None
    top, most = MOST_MODES[dtype], _most_combs(fold, cycles)
    pairs = 1
    while True:
        combs = 4 * -(-nf // (4 * 2 * pairs * top))
        if combs <= most:
            break
        pairs = max(pairs + 1, -(-nf // (2 * top * most)))
    modes = max(16, -(-nf // (2 * pairs * combs)))
    f = "f64" if dtype == np.float64 else "f32"
    columns = combs > GROUP
    per_block = combs
    if columns and objects * pairs < wave:
        per_block = min(combs, max(12, 4 * -(-combs * objects * pairs // (4 * wave))))
    if columns:
        fold = 1
    flat = f"x{fold}" if fold > 1 else "p4" if combs < GROUP else ""
    build = f + ("columns" if columns else flat)
    layout = Layout(build, combs, per_block, pairs, modes, fold, _limit(fold) / combs)
    return layout if max(layout.shared_bytes(dtype.itemsize, w) for w in (True, False)) <= shared else None


def _limit(fold: int) -> float:
    """Circles that a series may span so that every tap of every point falls on a cell."""
    return (M * fold - TAPS) / M - 1e-9


def _most_combs(fold: int, cycles: float) -> int:
    """Combs for the span in multiples of 4 (one a warp); the columns build has only one fold."""
    n = int(min(_limit(fold) / max(cycles, 1e-9), MOST_COMBS)) // 4 * 4
    return n if fold == 1 else min(n, 4)


def spreading_kernel(modes: int, dtype: np.dtype[Any]) -> Kernel:
    """The kernel of the precision, its shape fitted to the modes in use."""
    return Kernel(max(modes, FEWEST_MODES), TAPS if dtype == np.float64 else 10, "kaiser-bessel", 0.98)


@dataclass(frozen=True)
class Tables:
    """What the kernel reads for each comb of a block."""

    first: NDArray[Any]
    second: NDArray[Any]
    fold: NDArray[Any]
    deconvolve: NDArray[Any]
    taps: NDArray[np.float64]


@lru_cache(maxsize=16)
def make_tables(combs: int, per_block: int, modes: int, dtype: np.dtype[Any], all_combs: bool = False) -> Tables:
    """Tables of combs 0 .. per_block + 1, two more than a block owns.

    A block that starts at another comb moves its strengths or cells instead.  With ``all_combs`` the
    deconvolution is that of every comb, for cells spread at comb 0.
    """
    complex_type = np.complex128 if dtype == np.float64 else np.complex64
    kernel = spreading_kernel(modes, dtype)
    centre = modes // 2
    fraction = np.arange(per_block + 2) / combs
    shift = fraction - centre
    second = np.stack([shift_constants((b + shift) / 16) for b in range(16)], axis=-1)  # [8, comb, 16]
    rows = np.arange(combs + 2)[:, None] / combs if all_combs else fraction[:, None]
    m = np.arange(OUTPUTS)[None, :] - centre + rows
    edge = kernel.modes / 2 + 0.99
    transform = kernel.transform(np.clip(m, -edge, edge))
    return Tables(
        first=np.ascontiguousarray(shift_constants(shift).T, complex_type),
        second=np.ascontiguousarray(np.moveaxis(second, 1, 0), complex_type),
        fold=np.ascontiguousarray(unit(fraction), complex_type),
        deconvolve=np.ascontiguousarray(1 / transform, dtype),
        taps=np.ascontiguousarray(kernel.coefficients()),
    )
