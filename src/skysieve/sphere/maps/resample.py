"""Smoothing and a change of nside in one go: from the harmonics of the smoothed map, at the pixels of another grid."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.tasks import usable_cores
from skysieve.sphere.grids.grid import Healpix
from skysieve.sphere.grids.healpix import nearest, pix2ang, reorder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.sphere.kernels.base import Kernel

LEAST_SHARE = 1e-3
"""Of the largest share of good pixels: where there is less, nothing is divided by it."""


def resampled(
    maps: NDArray[Any], good: NDArray[np.bool_] | None, kernel: Kernel, nside: int, nside_out: int, polarised: bool,
    masked: str, quadrature: str, eps: float, threads: int | None,
) -> NDArray[Any]:  # fmt: skip
    """RING maps (..., npix) at the pixels of another nside, of degrees up to the window's end or 3 nside - 1."""
    from skysieve.sphere.cpu.harmonic import Transforms, pair

    band = kernel.bandlimit(eps / 4)
    if not math.isfinite(band):
        raise ValueError(f"nside_out={nside_out}: {kernel!r} has a window that does not end, expected one that does")
    lmax = max(2, min(int(band), 3 * nside - 1))
    threads = threads or usable_cores()
    grid = Healpix(nside)
    table = grid.table(quadrature)
    first = Transforms(table, lmax, lmax, threads)
    last = Transforms(Healpix(nside_out).table("none"), lmax, lmax, threads)
    factors = grid.pixel_factors() if quadrature == "pixel" else np.ones(1)
    polar = grid.polar_correction() if quadrature == "band" else None
    scalar, tensor = [kernel.window(lmax)], pair(kernel, lmax) if polarised else ()
    out = np.empty((*maps.shape[:-1], last.npix), maps.dtype)
    flat = maps.reshape(-1, 3 if polarised else 1, maps.shape[-1])
    seen = np.zeros((len(flat), 0)) if good is None else good.reshape(flat.shape)
    for x, y, some in zip(flat, out.reshape(*flat.shape[:2], -1), seen, strict=True):
        parts = x * factors
        if polar is not None:
            polar.add(parts[:1])
            polar.add(parts[1:], 2 if polarised else 0)
        y[:1] = first.smooth(parts[:1], table.weight, scalar, 0, 0, last)
        if polarised:
            y[1:] = first.smooth(parts[1:], table.weight, tensor, 2, 0, last)
        if masked == "normalize":
            for line, ok in zip(y, some, strict=False):
                share = first.smooth((ok * factors)[None], table.weight, scalar, 0, 0, last)[0]
                np.divide(line, share, out=line, where=share > LEAST_SHARE * share.max())
    return out


def kept(
    good: NDArray[np.bool_], values: NDArray[Any], nside: int, nside_out: int, nest: bool
) -> tuple[NDArray[np.bool_], NDArray[Any]]:
    """Which pixels of the other grid are good, and what stands in those that are not: those of their centres."""
    at = nearest(nside, *pix2ang(nside_out, np.arange(12 * nside_out**2)))
    both = (reorder(good, to="ring"), reorder(values, to="ring")) if nest else (good, values)
    good, values = both[0][..., at], both[1][..., at]
    return (reorder(good, to="nest"), reorder(values, to="nest")) if nest else (good, values)
