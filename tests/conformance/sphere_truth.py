"""Grids, kernels and bounds of the tests of convolution on the sphere."""

from __future__ import annotations

import functools

import numpy as np
from tests.truth import sphere as reference

from skysieve.sphere import (
    ECP,
    Gaussian,
    GaussLegendre,
    Healpix,
    MexicanHat,
    Needlet,
    Profile,
    Rings,
    TopHat,
    Window,
    from_function,
)
from skysieve.sphere.kernels.radial import make_radial

METHODS = ["ring", "direct"]
GRIDS = {
    "healpix 8": Healpix(8),
    "healpix 3": Healpix(3),
    "healpix 1": Healpix(1),
    "ecp": ECP(20, 36),
    "ecp poles": ECP(21, 35, poles=True),
    "gauss": GaussLegendre(16, 30),
    "rings": Rings(
        [0.2, 0.4, 0.6, 1.1, 1.5, 1.9, 2.2, 3.0], [4, 9, 9, 16, 16, 16, 11, 1], [0, 0.1, 0.3, 0, 0, 0.2, 1, 2]
    ),
}
T = np.linspace(0, 0.5, 60)
KERNELS = {
    "gaussian": Gaussian(fwhm=0.25),
    "narrow": Gaussian(fwhm=0.1),
    "wide": Gaussian(sigma=0.9),
    "window": Window(np.exp(-((np.arange(80) / 15.0) ** 2))),
    "profile": Profile(T, (1 - (T / 0.5) ** 2) ** 6),
    "mexican hat": MexicanHat(0.12),
    "needlet": Needlet(3),
    "function": from_function(lambda t: np.exp(-8 * t**2) * np.cos(9 * t)),
}
HARD = {"top hat": TopHat(0.35), "hemisphere": TopHat(1.7)}
ERROR = {"float64": 1e-10, "float32": 2e-6}
"""Largest error, relative to the largest value of the result."""
EPS = {"float64": 1e-13, "float32": 1e-8}
"""Accuracy asked of a plan: so high that cutting the kernel does not matter, since these tests check the arithmetic."""


def fast(kernel):
    """The uncut profile of a kernel, from a table that is accurate to 1e-12 of the peak."""
    radial = make_radial(kernel, 1e-14)
    return lambda alpha: radial(4 * np.sin(alpha / 2) ** 2)


@functools.cache
def gaussian_matrix():
    """``K(p, q)`` of the Gaussian for all pixels of nside 16, without weights; read-only."""
    table = Healpix(16).table("none")
    found = reference.matrix(table, fast(KERNELS["gaussian"])) / table.weight[0]
    found.flags.writeable = False
    return found


def some(npix, count=60):
    """Some pixels, including the first ones."""
    return np.unique(np.concatenate([np.arange(6), np.random.default_rng(3).integers(0, npix, count)]) % npix)


def sky(npix, seed=0, count=1):
    return np.random.default_rng(seed).normal(size=(count, npix))


def error(found, truth):
    return float(np.abs(found - truth).max() / np.abs(truth).max())
