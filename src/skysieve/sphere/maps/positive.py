"""Results without values of 0 and below, for the logarithms of maps of probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import array_module

if TYPE_CHECKING:
    from skysieve.sphere.kernels.base import Kernel

__all__ = ["check_positive", "lift_to_positive"]


def check_positive(kernel: Kernel | None, by_harmonics: bool, quadrature: str | None) -> None:
    """Refuse what leaves negative values far beyond rounding."""
    if by_harmonics:
        raise ValueError(
            "positive=True does not go with iter, lmax, mmax, weights, nside_out or harmonics: harmonics that are cut "
            "ring below 0; expected the sum over pixels, without them"
        )
    if quadrature == "band":
        raise ValueError("positive=True: quadrature='band' has negative weights, expected 'ring', 'none' or 'pixel'")
    if kernel is not None and not kernel.positive:
        raise ValueError(
            f"positive=True: kernel={kernel!r} is not known to be nowhere negative, expected such a kernel"
        )


def lift_to_positive(out: Any, maps: Any, conserve: bool) -> None:
    """Raise what is left of the method's error below 0 to the smallest normal number; maps of zeros stay zeros.

    With ``conserve`` the sum over all pixels is the same after it.
    """
    xp = array_module(out)
    for line, given in zip(out.reshape(-1, out.shape[-1]), maps.reshape(-1, maps.shape[-1]), strict=True):
        if not bool((given > 0).any()):
            line[...] = 0
            continue
        before = line.sum(dtype=np.float64)
        xp.maximum(line, np.finfo(out.dtype).tiny, out=line)
        if conserve:
            line *= (before / line.sum(dtype=np.float64)).astype(out.dtype)
            xp.maximum(line, np.finfo(out.dtype).tiny, out=line)
