"""The least that the periodogram's arithmetic could take on a GPU."""

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
"""Measured on an H100; the latter of half-precision matrix units (16 and 8 products in turn)."""


def least_ms(source: FlatSource, nf: int, cycles: float, dtype: Any, device: Any) -> float:
    """Milliseconds of the multiply-adds alone, at the rate of the card's plain units, matrix units twice as fast.

    Of a comb, a frequency takes 3 transforms of 256 points for every ``modes`` of them (2 x 192 fused operations for 16
    points), and 30 for folding and the power; a point takes 16 cells, 2 bands, 6 operations in every pair of bands.
    Where all but `COARSE` combs are interpolated, the others take 12 taps of a complex sum and 8 of two on matrix
    units; where all are, from samples, a band of these takes a transform and 16 cells a point (matrix units), and a
    frequency 8 multiply-adds of matrix units for every four samples that a sum is made of; of samples that are halves
    a complex sum takes 3 products of 24 samples.
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
