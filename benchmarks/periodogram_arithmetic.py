"""The least time that the arithmetic of the periodogram can take on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.periodogram.cuda.methods import choose_among
from skysieve.periodogram.cuda.sinusoid.methods import (
    LONG,
    FineComb,
    NufftMethod,
    Samples,
    has_matrix_units,
    nufft_methods,
)
from skysieve.periodogram.cuda.sinusoid.tables import COARSE

if TYPE_CHECKING:
    from tests.gpu.batches import FlatSource

F64, F32 = np.dtype(np.float64), np.dtype(np.float32)
FMA_PER_SECOND = {F64: 1.6e13, F32: 3.0e13}
HALVES_PER_SECOND = 2.7e14
"""Rates measured on an H100; this one is that of half-precision matrix units (16 and 8 products in turn)."""


def least_ms(source: FlatSource, nf: int, cycles: float, dtype: Any, device: Any) -> float:
    """Return the milliseconds of the multiply-adds alone; matrix units are twice as fast as the card's plain units.

    The operations depend on the layout:

    - Combs: ``modes`` frequencies take 3 transforms of 256 points (2 x 192 fused operations for 16 points), and each
      frequency takes 30 operations for folding and the power.  A point takes 16 cells, 2 bands and 6 operations in
      every pair of bands.
    - Combs of which all but `COARSE` are interpolated: a frequency of an interpolated comb takes 12 taps of a complex
      sum and 8 taps of two such sums, on matrix units.
    - Samples from which all sums are interpolated: a band of samples takes a transform and 16 cells a point, on matrix
      units.  A frequency takes 8 multiply-adds of matrix units for every four samples in a sum, or, from samples in
      half precision, 3 products of 24 samples for each complex sum.
    """
    known = nufft_methods(np.dtype(dtype), device.shared_per_block, has_matrix_units(device))

    def chosen(some: tuple[NufftMethod, ...]) -> NufftMethod:
        return some[int(choose_among(some, np.array([nf]), np.array([cycles]))[0])]

    layout = chosen(tuple(a for a in known if not a.long_alone))
    if len(source.t) > LONG * source.n_objects:  # long series are left to combs that are spread by themselves
        comb = chosen(tuple(a for a in known if not isinstance(a, Samples)))
        layout = comb if comb.for_long_series or comb.long_alone else layout
    pairs = -(-nf // layout.span)
    if isinstance(layout, Samples):
        bands = 3 * nf / (layout.combs * layout.modes)
        at_f, at_2f = layout.steps
        doubles = source.n_objects * bands * 384 * 16 + len(source.t) * bands * 16
        between = 3 * 2 * 3 * 24 / HALVES_PER_SECOND if layout.halves else 4 * (2 * at_f + at_2f) / FMA_PER_SECOND[F64]
        each = between + 30 / FMA_PER_SECOND[dtype]
        return 1e3 * (doubles / FMA_PER_SECOND[F64] + source.n_objects * nf * each)
    if isinstance(layout, FineComb):
        power = source.n_objects * (pairs * COARSE * 2 * 3 * 384 * 16 + nf * (30 + (2 * 12 + 4 * 8) / 2))
    else:
        power = source.n_objects * nf * (3 * 384 * 16 / layout.modes + 30)
    return 1e3 * (power + len(source.t) * pairs * 192) / FMA_PER_SECOND[dtype]
