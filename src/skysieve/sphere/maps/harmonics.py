"""Smoothing by spherical harmonic transforms (ducc0): with healpy's iterations, or at the pixels of another nside."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.progress import Progress, Reporter
from skysieve.core.tasks import usable_cores
from skysieve.sphere.grids.grid import QUADRATURES, Healpix, Quadrature
from skysieve.sphere.grids.healpix import ang2pix, pix2ang, reorder
from skysieve.sphere.grids.pixel_weights import find_table, full_map, read_weights, weights_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.sphere.kernels.base import Kernel

__all__ = ["HealpySmoothing", "at_other_pixels", "resampled"]

LEAST_SHARE = 1e-3
"""Smallest fraction of good pixels, relative to the largest fraction, by which results are divided."""


class HealpySmoothing:
    """Smoothing with the transforms and iterations of healpy, in float64."""

    def __init__(
        self, nside: int, kernel: Kernel, iter: int | None, lmax: int | None, mmax: int | None, use_weights: Any,
        use_pixel_weights: bool, datapath: Any, threads: int | None, nside_out: int | None,
    ) -> None:  # fmt: skip
        from skysieve.sphere.cpu.harmonic import Transforms

        self.lmax = 3 * nside - 1 if lmax is None else int(lmax)
        if self.lmax > 4 * nside:
            raise ValueError(f"lmax={lmax}: expected at most 4 nside = {4 * nside}")
        self.mmax = self.lmax if mmax is None else int(mmax)
        if self.mmax > self.lmax:
            raise ValueError(f"mmax={mmax}: expected at most lmax = {self.lmax}")
        # with pixel weights healpy does not iterate, whatever iter is
        self.rounds = 0 if use_pixel_weights else 3 if iter is None else int(iter)
        table = Healpix(nside).table("none")
        self.weight = table.weight
        if use_weights:
            self.weight = table.weight * _ring_weights(nside, datapath)
        self.factors = None
        if use_pixel_weights:
            self.factors = full_map(read_weights(weights_file(nside, datapath), nside), nside)
        threads = threads or usable_cores()
        self._transforms = self._last = Transforms(table, self.lmax, self.mmax, threads)
        if nside_out is not None:
            self._last = Transforms(Healpix(nside_out).table("none"), self.lmax, self.mmax, threads)
        self.windows = (kernel.window(self.lmax), *kernel.polarised(self.lmax))

    def __call__(self, maps: NDArray[Any], polarised: bool, report: Progress | None = None) -> NDArray[Any]:
        """Smooth maps (..., npix); with ``polarised`` maps (..., 3, npix) of I, Q and U."""
        flat = maps.reshape(-1, 3 if polarised else 1, maps.shape[-1])
        out = np.empty((*flat.shape[:2], self._last.npix), maps.dtype)
        reporter = Reporter(report, len(flat))
        for x, y in zip(flat.astype(np.float64), out, strict=True):
            if self.factors is not None:
                x *= self.factors
            y[:1] = self._transforms.smooth(x[:1], self.weight, self.windows[:1], 0, self.rounds, self._last)
            if polarised:
                y[1:] = self._transforms.smooth(x[1:], self.weight, self.windows[1:], 2, self.rounds, self._last)
            reporter.add(1)
        return out.reshape(*maps.shape[:-1], self._last.npix)


def _ring_weights(nside: int, datapath: Any) -> NDArray[np.float64]:
    """Weights of the rings from healpy's table."""
    from astropy.io import fits

    name = f"weight_ring_n{nside:05d}.fits"
    try:
        path = find_table(name, datapath)
    except ValueError as error:
        raise ValueError(f"use_weights=True: {error}; quadrature='ring' needs no file") from None
    with fits.open(path) as hdus:
        north = 1 + np.asarray(hdus[1].data.field(0), np.float64).ravel()[: 2 * nside]
    return np.concatenate([north, north[-2::-1]])


def resampled(
    maps: NDArray[Any], good: NDArray[np.bool_] | None, kernel: Kernel, nside: int, nside_out: int, polarised: bool,
    masked: str, quadrature: Quadrature, eps: float, threads: int | None, report: Progress | None = None,
) -> NDArray[Any]:  # fmt: skip
    """Smooth RING maps (..., npix) and evaluate them at the pixels of another nside.

    Harmonics go up to the end of the kernel's window, or to degree 3 nside - 1.
    """
    from skysieve.sphere.cpu.harmonic import Transforms

    band = kernel.bandlimit(eps / 4)
    if not math.isfinite(band):
        raise ValueError(f"nside_out={nside_out}: {kernel!r} is not band-limited, expected a kernel that is")
    lmax = max(2, min(int(band), 3 * nside - 1))
    threads = threads or usable_cores()
    grid, rule = Healpix(nside), QUADRATURES[quadrature]
    table = grid.table(quadrature)
    first = Transforms(table, lmax, lmax, threads)
    last = Transforms(Healpix(nside_out).table("none"), lmax, lmax, threads)
    factors = grid.pixel_factors() if rule.pixel_factors else np.ones(1)
    polar = grid.polar_correction() if rule.polar else None
    scalar, tensor = [kernel.window(lmax)], kernel.polarised(lmax) if polarised else ()
    out = np.empty((*maps.shape[:-1], last.npix), maps.dtype)
    flat = maps.reshape(-1, 3 if polarised else 1, maps.shape[-1])
    seen = np.zeros((len(flat), 0)) if good is None else good.reshape(flat.shape)
    reporter = Reporter(report, len(flat))
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
        reporter.add(1)
    return out


def at_other_pixels(
    good: NDArray[np.bool_], values: NDArray[Any], nside: int, nside_out: int, nest: bool
) -> tuple[NDArray[np.bool_], NDArray[Any]]:
    """Good pixels at another nside, and the values of the bad pixels, taken from the map at their centres."""
    at = ang2pix(nside, *pix2ang(nside_out, np.arange(12 * nside_out**2)))
    both = (reorder(good, to="ring"), reorder(values, to="ring")) if nest else (good, values)
    good, values = both[0][..., at], both[1][..., at]
    return (reorder(good, to="nest"), reorder(values, to="nest")) if nest else (good, values)
