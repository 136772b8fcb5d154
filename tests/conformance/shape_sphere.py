"""Plans of the sphere, for test_api_shape.py.  There are no results: a convolved map is an array, like the input."""

from __future__ import annotations

import numpy as np


def _plan(spin=0, many=False, **options):
    from skysieve.sphere import ConvolvePlan, Gaussian, Healpix, Profile

    beam = Profile(np.linspace(0, 0.5, 20), np.linspace(1, 0, 20) ** 2) if many else Gaussian(fwhm=0.4)
    shape = (2, 192) if spin else (192,)
    maps = np.random.default_rng(1).normal(size=shape)
    plan = ConvolvePlan([beam, Gaussian("20 deg")] if many else beam, Healpix(4), spin=spin, device="cpu", **options)
    return plan, lambda p: p.execute(maps)


def _rings():
    from skysieve.sphere import ECP, ConvolvePlan, MexicanHat

    maps = np.random.default_rng(2).normal(size=200)
    return ConvolvePlan(MexicanHat(0.3), ECP(10, 20), device="cpu"), lambda p: p.execute(maps)


PLANS = {
    "direct": lambda: _plan(method="direct"),
    "several kernels, a mask": lambda: _plan(method="direct", many=True, mask=np.arange(192) < 100),
    "Q and U": lambda: _plan(spin=2, method="ring"),
    "band": lambda: _plan(quadrature="band"),
    "ECP": _rings,
}
RESULTS = {}


def describe(plan):
    return plan.describe()


def same(a, b):
    return np.array_equal(a, b, equal_nan=True)
