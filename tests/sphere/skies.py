"""Skies that the tests of `smoothing` smooth."""

from __future__ import annotations

import numpy as np

NSIDE = 32
NPIX = 12 * NSIDE**2
RAD = np.pi / 180


def harmonics(count=1, nside=NSIDE, seed=0):
    """Spherical harmonic coefficients of skies with a red spectrum, band-limited at 2 nside."""
    rng, lmax = np.random.default_rng(seed), 2 * nside
    ell = np.concatenate([np.arange(m, lmax + 1) for m in range(lmax + 1)])
    alm = (rng.normal(size=(count, ell.size, 2)) @ [1, 1j]) / (ell + 10.0) / np.sqrt(2)
    alm[:, : lmax + 1] = alm[:, : lmax + 1].real * np.sqrt(2)
    return alm


def sky(count=1, seed=0):
    """Maps of skies with the spherical harmonics of `harmonics`."""
    import healpy

    maps = [healpy.alm2map(a, NSIDE, lmax=2 * NSIDE) for a in harmonics(count, seed=seed)]
    return np.array(maps) if count > 1 else maps[0]
