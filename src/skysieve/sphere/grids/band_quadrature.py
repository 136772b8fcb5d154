"""The steps of quadrature "band" around the sum over pixels on the CPU; `cuda.band_steps` has those of a GPU.

The mean of a map is taken off, and multiplied by the kernel's integral.  What is left is corrected around the poles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from skysieve.sphere.kernels.base import Kernel

    from .polar_correction import PolarCorrection

__all__ = ["finish", "mean_of"]


def mean_of(x: NDArray[Any], spin: int) -> Any:
    """The mean of one map; 0 for Q and U."""
    return 0.0 if spin else x.mean(dtype=np.float64)


def finish(
    out: NDArray[Any], mean: Any, kernels: Sequence[Kernel], polar: PolarCorrection | None, spin: int, transposed: bool
) -> None:
    """Add what the mean becomes to the results (K, [2,] npix) of one map.

    ``transposed`` is the transposed operator, of which the correction is a last step too.
    """
    if transposed and polar is not None:
        polar.add(out, spin, transposed=True)
    if spin:
        return
    for kernel, row in zip(kernels, out, strict=True):
        row += (mean * float(kernel.window(0)[0]) - (mean_of(row, 0) if transposed else 0.0)).astype(row.dtype)
