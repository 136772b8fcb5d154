"""Typical uses of the sphere on small simulated maps, for ``skysieve warm-up``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from skysieve.sphere.maps.smoothing import smoothing

if TYPE_CHECKING:
    from skysieve.sphere.contract import Method, RealType

__all__ = ["USES"]

NSIDE = 64
FWHM = np.radians(2)


def smooth(device: str, dtype: RealType) -> None:
    """Smooth one map, and maps of I, Q and U, by both methods of summing over pixels."""
    maps = np.random.default_rng(1).standard_normal((3, 12 * NSIDE**2)).astype(dtype)
    methods: tuple[Method, ...] = ("direct", "ring")
    for method in methods:
        smoothing(maps[0], FWHM, method=method, dtype=dtype, device=device)
        smoothing(maps, FWHM, method=method, dtype=dtype, device=device)


USES: dict[str, Callable[[str], None]] = {
    "float32": partial(smooth, dtype="float32"),
    "float64": partial(smooth, dtype="float64"),
}
"""Name of each use, and the function that runs it on a device."""
