"""The ring engine's CUDA code on the host: ways of transforming rows, and the sky in pieces."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from skysieve.sphere import ECP, Gaussian, Healpix, Rings, reference
from skysieve.sphere.cuda_ring import RingEngine
from skysieve.sphere.cuda_rows import longest_transform
from skysieve.sphere.radial import make_radial
from skysieve.sphere.workload import Spec
from tests.kernels.shim import shim_runtime

BOUND = {"float32": 2e-6, "float64": 1e-6}
"""Of the largest value: float32 rounds, float64 has the shares that eps=1e-6 allows modes and grid."""


def spec_of(grid, width, dtype, eps=1e-6, spin=0, kernels=1):
    table = grid.table("none")
    beams = tuple(Gaussian(fwhm=width * (1 + k)) for k in range(kernels))
    return Spec(table, beams, tuple(make_radial(b, eps, spin) for b in beams), np.dtype(dtype), eps, spin)


def convolved(engine, x, pieces=None):
    spec = engine.spec
    t, k = spec.table, len(spec.radials)
    ones = np.ones(len(t.n), spec.dtype)
    out = np.full((k, *x.shape), np.nan, spec.dtype)
    weight = t.weight.astype(spec.dtype)
    flags = np.zeros(k, np.int32)
    if pieces is None:
        engine.one(x, out, weight, [ones] * (k + 1), flags, None)
    else:
        for p in pieces:
            some = np.concatenate([x[..., a:b] for a, b in p.read], axis=-1)
            found = np.full((k, *x.shape[:-1], p.npix_written), np.nan, spec.dtype)
            engine.some(p, some, found, weight, [ones] * (k + 1), flags)
            at = 0
            for a, b in p.written:
                out[..., a:b] = found[..., at : at + b - a]
                at += b - a
    return out


def belt(rings, n):
    """Rings of n pixels about the equator, every other one off by half a pixel."""
    theta = np.pi / 2 + (np.arange(rings) - rings // 2) * 3 / n
    return Rings(theta, [n] * rings, np.arange(rings) % 2 * np.pi / n)


CASES = {
    "grid": (Healpix(16), 0.2, "float32", 227 * 1024, "grid"),
    "grid, double": (Healpix(16), 0.2, "float64", 227 * 1024, "grid"),
    "plain": (belt(21, 512), 0.04, "float32", 227 * 1024, "plain"),
    "plain, all modes and more": (belt(17, 512), 0.02, "float32", 227 * 1024, "plain"),
    "plain, in two": (belt(17, 1024), 0.02, "float32", 5000, "plain"),
    "plain, in two, all modes and more": (belt(17, 1024), 0.009, "float64", 10000, "plain"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_pixel_sum(case):
    grid, width, dtype, shared, kind = CASES[case]
    runtime = shim_runtime()
    runtime.device = type(runtime.device)("cuda", 0, "host shim", 2**30, (9, 0), 2, shared)
    spec = spec_of(grid, width, dtype)
    engine = RingEngine(runtime, spec)
    assert kind in {r.kind for r in engine.runs}
    if "two" in case:
        assert {r.residues for r in engine.runs} == {2}
    if "more" in case:
        assert 2 * engine.most.max() > spec.table.n.max()
    x = np.random.default_rng(1).normal(size=spec.table.npix).astype(dtype)
    found = convolved(engine, x)[0]
    rows = np.random.default_rng(2).integers(0, len(x), 300)
    radial = spec.radials[0]
    expected = reference.convolve(spec.table, lambda a: radial(4 * np.sin(a / 2) ** 2), x, radial.radius, rows)
    assert np.abs(found[rows] - expected).max() <= BOUND[dtype] * np.abs(expected).max()


@pytest.mark.parametrize(
    ("grid", "spin", "kernels"), [(Healpix(21), 0, 2), (Healpix(16), 2, 1), (belt(75, 120), 0, 1), (ECP(150, 24), 0, 1)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pieces_of_the_sky_have_the_bits_of_the_whole(grid, spin, kernels, dtype):
    engine = RingEngine(shim_runtime(), spec_of(grid, 0.12, dtype, spin=spin, kernels=kernels))
    parts = (2,) if spin else ()
    x = np.random.default_rng(3).normal(size=(*parts, engine.spec.table.npix)).astype(dtype)
    whole = convolved(engine, x)
    assert np.isfinite(whole).all()
    before = engine.nbytes
    cuts = np.unique(engine.cuts(3))
    assert len(cuts) > 2
    alone = [engine.piece(int(a), int(b), alone=True) for a, b in pairwise(cuts)]
    assert (convolved(engine, x, alone) == whole).all()
    assert sum(p.npix_written for p in alone) == engine.spec.table.npix
    engine.fit(0)  # as little as there can be
    assert len(engine.pieces) > 1
    assert (convolved(engine, x) == whole).all()
    assert engine.nbytes - before < 2 * len(engine.pieces) * engine.rows * 48


def test_transforms_fit_into_shared_memory():
    assert longest_transform(4, 227 * 1024) == 16384
    assert longest_transform(8, 227 * 1024) == 8192
    assert longest_transform(4, 99 * 1024) == 8192
    assert longest_transform(4, 48 * 1024) == 4096
