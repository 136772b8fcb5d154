"""The ring engine's CUDA code on the host shim and on a GPU: transforms of rows, the sky in pieces, several GPUs."""

from __future__ import annotations

import dataclasses
import threading
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from skysieve.core.errors import MemoryBudgetError
from skysieve.sphere import ECP, ConvolvePlan, Gaussian, Healpix, Rings
from skysieve.sphere.contract import Spec
from skysieve.sphere.cuda import engine as cuda
from skysieve.sphere.cuda import multi_gpu
from skysieve.sphere.cuda.multi_gpu import MultiGpuEngine
from skysieve.sphere.cuda.ring.engine import RingEngine
from skysieve.sphere.cuda.ring.rows import longest_transform
from skysieve.sphere.kernels.radial import make_radial
from tests.gpu.batches import FaultyRuntime
from tests.kernels.devices import another, on_gpu, one_order
from tests.kernels.shim import shim_runtime
from tests.truth import sphere as reference

BOUND = {"float32": 2e-6, "float64": 1e-6}
"""Relative to the largest value: rounding in float32, and errors of modes and grid for eps=1e-6 in float64."""


def spec_of(grid, width, dtype, eps=1e-6, spin=0, kernels=1):
    table = grid.table("none")
    beams = tuple(Gaussian(fwhm=width * (1 + k)) for k in range(kernels))
    return Spec(table, beams, tuple(make_radial(b, eps, spin) for b in beams), np.dtype(dtype), eps, spin)


def convolved(engine, x, pieces=None):
    spec, xp = engine.spec, engine.runtime.xp
    t, k = spec.table, len(spec.radials)
    x, weight = xp.asarray(x), xp.asarray(t.weight.astype(spec.dtype))
    ones = [xp.ones(len(t.n), spec.dtype)] * (k + 1)
    out = xp.full((k, *x.shape), np.nan, spec.dtype)
    flags = xp.zeros(k, np.int32)
    if pieces is None:
        engine.one(x, out, weight, ones, flags, None)
    else:
        for p in pieces:
            some = xp.concatenate([x[..., a:b] for a, b in p.read], axis=-1)
            found = xp.full((k, *x.shape[:-1], p.npix_written), np.nan, spec.dtype)
            engine.some(p, some, found, weight, ones, flags)
            at = 0
            for a, b in p.written:
                out[..., a:b] = found[..., at : at + b - a]
                at += b - a
    engine.runtime.synchronize()
    return out.get() if on_gpu(engine.runtime) else out


def belt(rings, n):
    """Rings of n pixels about the equator, every other one shifted by half a pixel."""
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


@pytest.mark.few
@one_order
@pytest.mark.parametrize("case", CASES)
def test_the_pixel_sum(runtime, case):
    grid, width, dtype, shared, kind = CASES[case]
    runtime.device = dataclasses.replace(runtime.device, shared_per_block=shared)
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


@pytest.mark.few
@pytest.mark.parametrize(
    ("grid", "spin", "kernels"), [(Healpix(21), 0, 2), (Healpix(16), 2, 1), (belt(75, 120), 0, 1), (ECP(150, 24), 0, 1)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@one_order
def test_pieces_of_the_sky_have_the_bits_of_the_whole(runtime, grid, spin, kernels, dtype):
    engine = RingEngine(runtime, spec_of(grid, 0.12, dtype, spin=spin, kernels=kernels))
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
    engine.fit(0)  # the smallest pieces
    assert len(engine.pieces) > 1
    assert (convolved(engine, x) == whole).all()
    assert engine.nbytes - before < 2 * len(engine.pieces) * engine.rows * 48


def test_transforms_fit_into_shared_memory():
    assert longest_transform(4, 227 * 1024) == 16384
    assert longest_transform(8, 227 * 1024) == 8192
    assert longest_transform(4, 99 * 1024) == 8192
    assert longest_transform(4, 48 * 1024) == 4096


def make_engine(runtimes, method="ring", spin=0, dtype="float32", memory=None):
    spec = spec_of(Healpix(21), 0.12, dtype, spin=spin)
    return MultiGpuEngine(spec, method, runtimes=runtimes, memory=memory)


def run(engine, x, **options):
    t, parts = engine.spec.table, (2,) if engine.spec.spin else ()
    out = np.full((len(x), 1, *parts, t.npix), np.nan, engine.spec.dtype)
    engine.run(x, out, t.weight, np.ones(len(t.n)), **options)
    return out


@pytest.mark.slow
@one_order
@pytest.mark.parametrize("spin", [0, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_sky_on_several_gpus_has_the_bits_of_one(runtime, spin, dtype):
    nside, width = (128, 0.03) if on_gpu(runtime) else (21, 0.12)
    spec = spec_of(Healpix(nside), width, dtype, spin=spin)
    x = np.random.default_rng(4).normal(size=(1, *((2,) if spin else ()), 12 * nside**2)).astype(dtype)
    one = cuda.Engine(spec, "ring", runtime=runtime)
    expected = run(one, x)
    assert np.isfinite(expected).all()
    crew = MultiGpuEngine(spec, "ring", runtimes=[another(runtime) for _ in range(3)])
    assert (run(crew, x) == expected).all()
    assert len(crew._alive()) == 3
    assert crew.describe()["device"].count(runtime.device.name) == 3
    mask = np.random.default_rng(5).random(12 * nside**2) < 0.6
    assert (run(crew, x, mask=mask) == run(one, x, mask=mask)).all()
    broken = x.copy()
    broken[..., 1000] = np.nan
    assert np.isnan(run(crew, broken)).all()
    for engine in (crew, one):
        engine.close()


@pytest.mark.slow
def test_nested_maps_and_offsets_on_several_gpus(monkeypatch):
    seen, mean = [], MultiGpuEngine._mean
    monkeypatch.setattr(MultiGpuEngine, "_mean", lambda self, x, offset: (seen.append(x), mean(self, x, offset))[1])
    spec = spec_of(Healpix(16), 0.2, "float32")
    one = cuda.Engine(spec, "ring", runtime=shim_runtime())
    crew = MultiGpuEngine(spec, "ring", runtimes=[FaultyRuntime(shim_runtime()) for _ in range(2)])
    x = (np.random.default_rng(6).normal(size=(1, spec.table.npix)) + 3e3).astype(np.float32)
    ones = one.ones(spec.table.weight, np.ones(len(spec.table.n))).astype(np.float64)
    for options in ({"nest": True}, {"steady": lambda: ones}, {"nest": True, "steady": lambda: ones}):
        assert (run(crew, x, **options) == run(one, x, **options)).all()
    assert len(seen) == 2
    assert all((m == x[0]).all() for m in seen)  # the mean of a large map is taken from some pixels, as they are given
    assert np.array_equal(crew.ones(spec.table.weight, np.ones(len(spec.table.n))), ones)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["load", "band", "store"])
def test_another_gpu_does_the_work_of_a_lost_one(kernel, caplog):
    x = np.random.default_rng(7).normal(size=(1, 12 * 21**2)).astype(np.float32)
    expected = run(make_engine([shim_runtime()]), x)
    lost = FaultyRuntime(shim_runtime(), kernel, RuntimeError("the device is gone"), after=0)
    waits = FaultyRuntime(shim_runtime())
    crew = make_engine([waits, lost])
    waits._until = lost  # plans are made before anything fails
    assert (run(crew, x) == expected).all()
    assert lost.faults == 1
    assert "the device is gone" in caplog.text
    assert (run(crew, x) == expected).all()  # by the one that is left
    gone = make_engine([FaultyRuntime(shim_runtime(), kernel, RuntimeError("all are gone"), after=0)])
    with pytest.raises(RuntimeError, match="all are gone"):
        run(gone, x)
    with pytest.raises(RuntimeError, match="every GPU of the plan has failed"):
        run(gone, x)


@pytest.mark.slow
@one_order
@pytest.mark.parametrize("method", ["ring", "direct"])
def test_a_batch_is_dealt_to_several_gpus(runtime, method):
    spec = spec_of(Healpix(8), 0.3, "float32")
    x = np.random.default_rng(8).normal(size=(7, spec.table.npix)).astype(np.float32)
    expected = run(cuda.Engine(spec, method, runtime=runtime), x)
    crew = MultiGpuEngine(spec, method, runtimes=[another(runtime) for _ in range(2)])
    assert (run(crew, x) == expected).all()
    assert (run(crew, x[:1]) == expected[:1]).all()
    assert run(crew, x[:0]).shape == (0, 1, spec.table.npix)


@pytest.mark.few
@pytest.mark.parametrize(("rate", "most", "limit"), [(1.0, 1, "host copies"), (1e30, 2, "GPUs")])
def test_a_batch_is_dealt_to_as_many_gpus_as_the_host_keeps_busy(monkeypatch, rate, most, limit):
    monkeypatch.setattr(multi_gpu, "copy_rate", lambda: rate)
    spec = spec_of(Healpix(8), 0.3, "float32")
    x = np.random.default_rng(8).normal(size=(6, spec.table.npix)).astype(np.float32)
    crew = MultiGpuEngine(spec, "ring", runtimes=[FaultyRuntime(shim_runtime()) for _ in range(2)])
    working, together, turn, convolve = set(), [], threading.Barrier(most), cuda.Engine.run

    def noted(self, *arguments, **options):
        working.add(self)
        together.append(len(working))
        if most > 1 and len(together) <= most:
            turn.wait(60)
        convolve(self, *arguments, **options)
        working.remove(self)

    monkeypatch.setattr(cuda.Engine, "run", noted)
    found = run(crew, x)
    monkeypatch.undo()
    assert (found == run(cuda.Engine(spec, "ring", runtime=shim_runtime()), x)).all()
    assert max(together) == most
    monkeypatch.setattr(multi_gpu, "copy_rate", lambda: rate)
    about = crew.describe()
    assert (about["gpus"], about["limit"]) == (most, limit)


@pytest.mark.slow
def test_a_gpu_that_waits_takes_the_place_of_a_lost_one(monkeypatch):
    monkeypatch.setattr(multi_gpu, "copy_rate", lambda: 1.0)
    x = np.random.default_rng(7).normal(size=(4, 12 * 21**2)).astype(np.float32)
    expected = run(make_engine([shim_runtime()]), x)
    lost = FaultyRuntime(shim_runtime(), "load", RuntimeError("the device is gone"), after=0)
    crew = make_engine([lost, FaultyRuntime(shim_runtime())])
    for _ in range(2):
        assert (run(crew, x) == expected).all()
    assert len(crew._alive()) == 2 - lost.faults


def test_bad_input_stops_all_gpus():
    crew = make_engine([FaultyRuntime(shim_runtime()) for _ in range(2)])
    with pytest.raises((ValueError, IndexError), match=r"shape|broadcast|size|bounds"):
        run(crew, np.zeros((1, 7), np.float32))


@pytest.mark.slow
@one_order
def test_the_sky_in_pieces_where_memory_is_short(runtime):
    spec = spec_of(Healpix(32), 0.06, "float32")
    x = np.random.default_rng(9).normal(size=(2, spec.table.npix)).astype(np.float32)
    whole = cuda.Engine(spec, "ring", runtime=runtime)
    expected = run(whole, x)
    one_map = spec.table.npix * 4
    less = cuda.Engine(spec, "ring", runtime=runtime, memory=whole.nbytes - one_map)
    assert len(less._engine.pieces) > 1
    assert less.nbytes <= whole.nbytes - one_map
    assert (run(less, x) == expected).all()
    with pytest.raises(MemoryBudgetError, match="the plan on the GPU"):
        cuda.Engine(spec, "ring", runtime=runtime, memory=2 * one_map)


def test_several_gpus_take_pieces_that_fit_their_memory():
    x = np.random.default_rng(10).normal(size=(1, 12 * 21**2))
    crew = make_engine([FaultyRuntime(shim_runtime()) for _ in range(2)], dtype="float64")
    expected = run(crew, x)
    for engine in crew.engines:
        engine._engine.fit(0)
        engine._pieces.clear()
    wanted = {(p.first, p.last) for p in crew.engines[0]._engine.pieces}
    assert len(wanted) > 2
    assert (run(crew, x) == expected).all()
    assert {rows for engine in crew.engines for rows in engine._pieces} == wanted
    crew.close()


def test_no_maps_and_maps_on_another_gpu():
    engine = cuda.Engine(spec_of(Healpix(8), 0.3, "float32"), "ring", runtime=shim_runtime())
    assert run(engine, np.empty((0, 12 * 8**2), np.float32)).shape == (0, 1, 12 * 8**2)
    elsewhere = SimpleNamespace(__cuda_array_interface__={}, device=SimpleNamespace(id=3))
    with pytest.raises(ValueError, match=r"the maps are on cuda:3, expected cuda:0"):
        engine.run(elsewhere, elsewhere, engine.spec.table.weight, np.ones(31))
    engine.close()


def test_copies_of_nested_and_masked_maps_are_counted():
    spec = spec_of(Healpix(8), 0.3, "float32")
    plain = cuda.Engine(spec, "direct", runtime=shim_runtime())
    more = cuda.Engine(dataclasses.replace(spec, copies=3), "direct", runtime=shim_runtime())
    assert more.nbytes - plain.nbytes == 3 * 4 * spec.table.npix
    mask = np.ones(12 * 8**2, bool)
    for nest, given, copies in ((False, None, 0), (True, None, 3), (False, mask, 1), (True, mask, 4)):
        beams = [Gaussian(fwhm=0.3), Gaussian(fwhm=0.4)]
        with ConvolvePlan(beams, Healpix(8, nest), mask=given, device="cpu") as plan:
            assert plan._spec.copies == copies


@pytest.mark.slow
@one_order
def test_a_wide_gaussian_beside_a_narrow_one_whose_modes_go_on(runtime):
    """The wide one's coefficients vanish at the modes of the narrow one; a quarter of the map was NaN once."""
    wide, narrow = Gaussian(sigma=0.1), Gaussian(fwhm=0.03)
    table = Healpix(64).table("none")
    specs = [Spec(table, b, tuple(make_radial(k, 1e-2) for k in b), np.dtype("float32"), 1e-2, 0)
             for b in ((wide,), (wide, narrow))]  # fmt: skip
    x = np.random.default_rng(6).normal(size=table.npix).astype("float32")
    alone, both = (RingEngine(runtime, s) for s in specs)
    expected = convolved(alone, x)[0]
    error = convolved(both, x)[0] - expected
    assert np.sqrt(np.mean(error**2)) <= 1e-2 * expected.std()
