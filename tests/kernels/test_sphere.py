"""The sphere's CUDA code, kernels and launches: against the pixel sum, on the host shim and on a GPU."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from skysieve.core.errors import MemoryBudgetError
from skysieve.core.tasks import TaskPool
from skysieve.sphere import ECP, Gaussian, Healpix, MexicanHat, Profile, Rings, TopHat, from_function
from skysieve.sphere.contract import Spec
from skysieve.sphere.cpu.spin import SpinEngine
from skysieve.sphere.cuda import engine as cuda
from skysieve.sphere.cuda.direct.profile import make_profile
from skysieve.sphere.cuda.direct.spin import turning
from skysieve.sphere.grids.healpix import nest2ring
from skysieve.sphere.kernels.radial import make_radial
from skysieve.sphere.ring_pairs import NotBandLimited
from tests.gpu.batches import host
from tests.kernels.devices import launched, on_gpu, one_order
from tests.truth import sphere as reference

ERROR = {"float64": 1e-10, "float32": 2e-6}
"""Relative to the largest value of the result, as in tests/conformance/test_sphere.py."""
ODD = Rings([0.2, 0.4, 0.6, 1.1, 1.5, 1.9, 2.2, 3.0], [4, 9, 9, 16, 16, 16, 11, 1], [0, 0.1, 0.3, 0, 0, 0.2, 1, 2])
CUSP = from_function(lambda t: np.exp(-t / 0.012), 0.15, normalize=True)
STRAIGHT = from_function(lambda t: np.exp(-2 * np.sin(t / 2) ** 2 / 0.0234**2), 0.12, normalize=True)
DIRECT = {
    "straight logarithm": (STRAIGHT, Healpix(21), 1e-3, "float32"),
    "caps and belt": (Gaussian(fwhm=0.055), Healpix(21), 1e-6, "float32"),
    "caps and belt, double": (Gaussian(fwhm=0.055), Healpix(21), 1e-6, "float64"),
    "series": (MexicanHat(0.02), Healpix(20), 1e-4, "float32"),
    "table": (CUSP, Healpix(16), 1e-3, "float64"),
    "edge": (TopHat(0.1), Healpix(16), 1e-6, "float32"),
    "small": (Gaussian(fwhm=0.25), Healpix(8), 1e-6, "float32"),
    "three": (Gaussian(fwhm=0.5), Healpix(3), 1e-6, "float64"),
    "aligned": (Gaussian(fwhm=0.25), ECP(20, 40), 1e-6, "float32"),
    "any rings": (Gaussian(fwhm=0.3), ODD, 1e-6, "float64"),
}
RING = {
    "healpix": (Gaussian(fwhm=0.25), Healpix(8), 1e-11, "float64"),
    "single": (Gaussian(fwhm=0.25), Healpix(8), 1e-7, "float32"),
    "three": (Gaussian(fwhm=0.5), Healpix(3), 1e-7, "float32"),
    "equal rings": (Gaussian(fwhm=0.2), ECP(20, 36), 2e-11, "float64"),
    "any rings": (Gaussian(fwhm=0.3), ODD, 1e-11, "float64"),
    "whole sphere": (Gaussian(sigma=0.9), Healpix(4), 1e-11, "float64"),
}


def spec_of(kernels, grid, eps, dtype, spin=0, quadrature="ring"):
    table = grid.table(quadrature)
    return Spec(table, tuple(kernels), tuple(make_radial(k, eps, spin) for k in kernels), np.dtype(dtype), eps, spin)


def truth(spec, k, x, rows=slice(None)):
    radial = spec.radials[k]
    return reference.convolve(spec.table, lambda a: radial(4 * np.sin(a / 2) ** 2), x, radial.radius, rows)


def run(engine, x, w_in=None, w_out=None, **options):
    t, parts = engine.spec.table, engine.parts
    shape = (len(x), len(engine.spec.radials), *((2,) if parts == 2 else ()), t.npix)
    out = np.full(shape, np.nan, engine.spec.dtype)
    ones = np.ones(len(t.n))
    engine.run(x, out, t.weight if w_in is None else w_in, ones if w_out is None else w_out, **options)
    return out


def check(runtime, method, kernel, grid, eps, dtype):
    spec = spec_of([kernel], grid, eps, dtype)
    engine = cuda.Engine(spec, method, runtime=runtime)
    assert engine.method == method
    npix = spec.table.npix
    x = np.random.default_rng(5).normal(size=(1, npix)).astype(dtype)
    found = run(engine, x)[0, 0]
    rows = slice(None) if npix < 2000 else np.unique(np.random.default_rng(6).integers(0, npix, 1500))
    expected = truth(spec, 0, x[0], rows)
    engine.close()
    return np.abs(found[rows] - expected).max() / np.abs(expected).max()


@pytest.mark.few
@pytest.mark.parametrize("case", DIRECT)
def test_the_direct_sum(runtime, case):
    assert check(runtime, "direct", *DIRECT[case]) <= ERROR[DIRECT[case][3]]


def test_a_straight_logarithm_is_found():
    assert make_profile(make_radial(STRAIGHT, 1e-3), np.dtype("float32")).build == "f32_exp1"


@one_order
def test_every_kernel_of_the_direct_sum_runs(runtime):
    engine = cuda.Engine(spec_of([Gaussian(fwhm=0.055)], Healpix(21), 1e-6, "float32"), "direct", runtime=runtime)
    run(engine, np.ones((1, 12 * 21**2), np.float32))
    assert {"belt_plan", "caps_plan", "pack", "caps", "belt", "any"} <= launched(runtime)


@pytest.mark.few
@pytest.mark.parametrize("case", RING)
def test_the_ring_method(runtime, case):
    # in float64, the cut of the modes at 1e-11 of the rms is visible
    assert check(runtime, "ring", *RING[case]) <= ERROR[RING[case][3]]


@pytest.mark.few
def test_spin_two(runtime):
    for grid, dtype, bound in ((Healpix(4), "float64", 1e-9), (ODD, "float64", 1e-9), (Healpix(3), "float32", 2e-6)):
        kernel = Gaussian(fwhm=0.4)
        spec = spec_of([kernel], grid, 1e-10 if dtype == "float64" else 1e-7, dtype, 2)
        engine = cuda.Engine(spec, "ring", runtime=runtime)
        x = np.random.default_rng(1).normal(size=(1, 2, spec.table.npix)).astype(dtype)
        expected = reference.convolve_spin(spec.table, kernel.window(60, 2), x[0])
        assert np.abs(run(engine, x)[0, 0] - expected).max() <= bound * np.abs(expected).max()
        engine.close()


SPIN = {
    "caps and belt": (Gaussian(fwhm=0.055), Healpix(21), 1e-10, "float64"),
    "turned": (Gaussian(fwhm=0.055), Healpix(21), 4e-3, "float32"),
    "straight logarithm": (STRAIGHT, Healpix(21), 1e-3, "float32"),
    "series": (MexicanHat(0.02), Healpix(20), 1e-4, "float32"),
    "aligned": (Gaussian(fwhm=0.25), ECP(20, 40), 1e-6, "float64"),
    "any rings": (Gaussian(fwhm=0.3), ODD, 1e-6, "float32"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SPIN)
def test_the_direct_sum_of_spin_two(runtime, case):
    kernel, grid, eps, dtype = SPIN[case]
    # G may be any function; for a kernel with an edge there is no window from which to compute it
    spec = dataclasses.replace(spec_of([kernel], grid, eps, dtype, 0 if kernel.hard else 2), spin=2)
    engine = cuda.Engine(spec, "direct", runtime=runtime)
    part = engine._engine.parts[0]
    assert part.exact == ("turned" not in case)
    x = np.random.default_rng(5).normal(size=(1, 2, spec.table.npix)).astype(dtype)
    found = run(engine, x)[0, 0]
    with TaskPool(1) as pool:
        expected = np.empty((1, 1, 2, spec.table.npix))
        exactly = dataclasses.replace(spec, dtype=np.dtype("float64"))
        SpinEngine(exactly, pool).convolve(x.astype(float), expected, spec.table.weight, np.ones(len(spec.table.n)))
    error = found - expected[0, 0]
    engine.close()
    if part.exact:
        assert np.abs(error).max() <= ERROR[dtype] * np.abs(expected).max()
    else:  # the error is as `turning` predicts it, and within eps
        stated, rms = turning(spec.radials[0]), np.sqrt(np.mean(expected**2))
        assert 0.5 * stated * rms <= np.sqrt(np.mean(error**2)) <= 1.3 * stated * rms
        assert stated <= 0.25 * eps


@pytest.mark.slow
def test_several_kernels_weights_and_a_batch(runtime):
    """The pixel sum, linearity, and the adjoint, which weights the result in place of the map."""
    kernels = [Gaussian(fwhm=0.3), Gaussian(fwhm=0.2)]
    nside = 32 if on_gpu(runtime) else 6
    x = np.random.default_rng(2).normal(size=(2, 12 * nside**2))
    rows = np.unique(np.random.default_rng(3).integers(0, x.shape[1], 500))
    for method in ("direct", "ring"):
        spec = spec_of(kernels, Healpix(nside), 1e-11, "float64")
        engine = cuda.Engine(spec, method, runtime=runtime)
        ones, weight = np.ones(len(spec.table.n)), spec.table.weight
        found = run(engine, x)
        back = run(engine, x, ones, weight)
        for b in range(2):
            for k in range(2):
                expected = truth(spec, k, x[b], rows)
                assert np.abs(found[b, k][rows] - expected).max() <= 1e-10 * np.abs(expected).max()
        mixed = run(engine, (2 * x[0] - x[1])[None])[0]
        assert np.abs(mixed - 2 * found[0] + found[1]).max() <= 1e-13 * np.abs(found).max()
        assert x[0] @ found[1, 0] == pytest.approx(back[0, 0] @ x[1], rel=1e-12 if method == "direct" else 1e-9)
        engine.close()


def test_nested_maps_masks_and_offsets(runtime):
    nside = 8
    spec = spec_of([Gaussian(fwhm=0.25)], Healpix(nside), 1e-6, "float64")
    engine = cuda.Engine(spec, "direct", runtime=runtime)
    npix = spec.table.npix
    order = nest2ring(nside, np.arange(npix))
    x = np.random.default_rng(3).normal(size=(1, npix))
    plain = run(engine, x)[0, 0]
    assert (run(engine, x[:, order], nest=True)[0, 0] == plain[order]).all()
    mask = np.random.default_rng(4).random(npix) < 0.7
    masked = run(engine, np.where(mask, x, np.inf), mask=mask)[0, 0]
    assert np.abs(masked - mask * run(engine, x * mask)[0, 0]).max() <= 1e-15
    ones = engine.ones(spec.table.weight, np.ones(len(spec.table.n)))
    lifted = run(engine, x + 3e5, steady=lambda: ones)[0, 0]
    assert np.abs(lifted - plain - 3e5 * host(ones)[0]).max() <= 1e-9  # the map itself is rounded to 3e5 eps
    engine.close()


@pytest.mark.slow
@one_order
@pytest.mark.parametrize("method", ["direct", "ring"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_pixel_spoils_only_its_map(runtime, method, value):
    spec = spec_of([Gaussian(fwhm=0.3)], Healpix(64 if on_gpu(runtime) else 8), 1e-6, "float32")
    engine = cuda.Engine(spec, method, runtime=runtime)
    x = np.random.default_rng(3).normal(size=(3, spec.table.npix)).astype(np.float32)
    whole = run(engine, x)
    broken = x.copy()
    broken[1, 77] = value
    found = run(engine, broken)
    assert np.isnan(found[1]).all()
    assert (found[[0, 2]] == whole[[0, 2]]).all()
    assert np.isfinite(x).all()
    engine.close()


@one_order
def test_a_quarter_turn_is_exact(runtime):
    spec = spec_of([Gaussian(fwhm=0.055)], Healpix(21), 1e-6, "float32", quadrature="none")
    engine = cuda.Engine(spec, "direct", runtime=runtime)
    t = spec.table
    within = np.arange(t.npix) - np.repeat(t.start, t.n)
    turned = np.repeat(t.start, t.n) + (within + np.repeat(t.n, t.n) // 4) % np.repeat(t.n, t.n)
    x = np.random.default_rng(8).normal(size=(1, t.npix)).astype(np.float32)
    a, b = run(engine, x)[0, 0], run(engine, x[:, turned])[0, 0]
    fast = np.zeros(len(t.n), bool)
    caps, belt = engine._engine.parts[0].caps, engine._engine.parts[0].belt
    fast[caps.low - 1 : len(t.n) - caps.low + 1] = True
    assert belt is not None
    differ = np.abs(a[turned] - b)[np.repeat(fast, t.n)].max()
    assert differ <= (1e-6 * np.abs(a).max() if on_gpu(runtime) else 0)  # a GPU fuses products and sums differently
    assert np.abs(a[turned] - b).max() <= 1e-6 * np.abs(a).max()
    engine.close()


@one_order
def test_what_a_gpu_cannot_do_is_refused(runtime, monkeypatch):
    spec = spec_of([Gaussian(fwhm=0.3)], Healpix(4), 1e-6, "float32")
    with pytest.raises(ValueError, match="harmonic transforms run on the CPU"):
        cuda.Engine(spec, "harmonic", runtime=runtime)
    hard = spec_of([TopHat(0.3)], Healpix(4), 1e-6, "float32")
    with pytest.raises(NotBandLimited, match="has an edge"):
        cuda.Engine(hard, "ring", runtime=runtime)
    radii = np.linspace(0, np.pi, 50)
    cusp = spec_of([Profile(radii, np.exp(-radii))], Healpix(4), 1e-6, "float32")
    with pytest.raises(NotBandLimited, match="do not fall below eps=1e-06: method='ring' cannot be used on a GPU"):
        cuda.Engine(cusp, "ring", runtime=runtime)
    monkeypatch.setattr(cuda, "prefers_direct", lambda *_: False)
    for endless in (hard, cusp):
        assert cuda.Engine(endless, "auto", runtime=runtime).method == "direct"
    with pytest.raises(MemoryBudgetError, match="the plan on the GPU"):
        cuda.Engine(spec, "direct", runtime=runtime, memory=1000)


@one_order
def test_an_engine_describes_itself(runtime):
    for method in ("direct", "ring"):
        spec = spec_of([Gaussian(fwhm=0.3)], Healpix(4), 1e-6, "float32")
        found = cuda.Engine(spec, method, runtime=runtime).describe()
        assert found["method"] == method
        assert found["bytes"] >= 3 * 4 * 12 * 4**2
        assert 0 < found["work"][f"{method} float32"] < 1
