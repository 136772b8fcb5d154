"""The ring engine on a GPU at sizes that are too large for the host shim: transforms, several GPUs, memory."""

from __future__ import annotations

import numpy as np
import pytest
from tests.gpu.test_sphere_gpu import brute_near, sky, some

from skysieve.core.device import resolve
from skysieve.sphere import ConvolvePlan, Gaussian, Healpix
from skysieve.sphere.contract import Spec
from skysieve.sphere.cuda import engine as cuda
from skysieve.sphere.kernels.radial import make_radial

pytestmark = pytest.mark.gpu


def spec_of(nside, width, dtype="float32", spin=0, eps=1e-6):
    table, beam = Healpix(nside).table(), Gaussian(fwhm=width)
    return Spec(table, (beam,), (make_radial(beam, eps, spin),), np.dtype(dtype), eps, spin)


def convolved(engine, x):
    t = engine.spec.table
    out = np.full((len(x), 1, *x.shape[1:]), np.nan, engine.spec.dtype)
    engine.run(x, out, t.weight, np.ones(len(t.n)))
    return out


@pytest.mark.parametrize(
    ("nside", "pixels", "dtype", "shared"),
    [(512, 8, "float32", 0), (512, 60, "float32", 0), (512, 8, "float64", 0), (512, 2.6, "float32", 0),
     (256, 8, "float32", 5000), (256, 8, "float64", 10000)],
)  # fmt: skip
def test_the_pixel_sum_by_every_transform(nside, pixels, dtype, shared):
    """Plain rows, rows split into two residues (little shared memory), rows through grids; also modes beyond n / 2."""
    width = pixels * np.sqrt(np.pi / 3) / nside
    spec = spec_of(nside, width, dtype)
    device = resolve("cuda")[0]
    runtime = cuda._runtime(device)
    if shared:
        runtime = type(runtime)(device)
        runtime.device = type(device)(**{**device.__dict__, "shared_per_block": shared})
    engine = cuda.Engine(spec, "ring", runtime=runtime)
    kinds = {(r.kind, r.residues) for r in engine._engine.runs}
    assert ("plain", 2 if shared else 1) in kinds
    x = sky(spec.table.npix, dtype=dtype)
    found = convolved(engine, x)[0, 0]
    engine.close()
    at = some(spec.table, 150)
    expected = brute_near(spec.table, make_radial(Gaussian(fwhm=width), 1e-12), x[0].astype(float), at)
    rms = float(np.sqrt(np.mean(found.astype(float) ** 2)))
    error = (found[at] - expected) / rms
    assert np.sqrt(np.mean(error**2)) <= 1e-6
    assert np.abs(error).max() <= 1e-5


def test_all_gpus_of_the_machine():
    x = sky(12 * 256**2, 2, 1, "float32")[0] + 2e3
    beam = Gaussian(fwhm=0.02)
    with ConvolvePlan(beam, Healpix(256), method="ring", dtype="float32", device="cuda") as plan:
        expected = plan.execute(x)
    with ConvolvePlan(beam, Healpix(256), method="ring", dtype="float32", device="cuda:all") as plan:
        assert (plan.execute(x) == expected).all()


@pytest.mark.parametrize("method", ["ring", "direct"])
@pytest.mark.parametrize("quadrature", ["ring", "pixel"])
def test_maps_stay_on_the_gpu_that_holds_them(method, quadrature):
    import cupy

    count = cupy.cuda.runtime.getDeviceCount()
    if count < 2:
        pytest.skip("this machine has one GPU")
    x = sky(12 * 64**2, 4, 3, "float32")
    beam = Gaussian(fwhm=0.05)
    options = {"method": method, "quadrature": quadrature, "dtype": "float32"}
    with ConvolvePlan(beam, Healpix(64), device="cuda:0", **options) as plan:
        expected = plan.execute(x)
    with ConvolvePlan(beam, Healpix(64), device="cuda:all", **options) as plan:
        assert (plan.execute(x) == expected).all()
        assert (plan.execute(x[0]) == expected[0]).all()
        assert not plan._engine.lost
        for card in range(count):
            with cupy.cuda.Device(card):
                maps = cupy.asarray(x)
            found = plan.execute(maps)  # while another card may be the current one
            assert int(found.device.id) == card
            assert (found.get() == expected).all()
    with ConvolvePlan(beam, Healpix(64), device=f"cuda:{count - 1}", **options) as plan:
        assert (plan.execute(x) == expected).all()
        with pytest.raises(ValueError, match="cuda:0"), cupy.cuda.Device(0):
            plan.execute(cupy.asarray(x))


def test_less_memory_than_all_modes_need():
    import cupy

    pool = cupy.get_default_memory_pool()
    beam, grid = Gaussian(fwhm=0.003), Healpix(1024)
    x = cupy.random.default_rng(3).standard_normal(12 * 1024**2, dtype=np.float32)
    with ConvolvePlan(beam, grid, method="ring", dtype="float32", device="cuda") as plan:
        expected, said = plan.execute(x), plan.describe()["bytes"]
    pool.free_all_blocks()
    before = pool.total_bytes()
    budget = said - 3 * x.nbytes // 2
    with ConvolvePlan(beam, grid, method="ring", dtype="float32", device="cuda", memory=budget) as plan:
        assert plan.describe()["bytes"] <= budget
        found = plan.execute(x)
        assert pool.total_bytes() - before <= 1.2 * plan.describe()["bytes"]
    assert bool((found == expected).all())


BUSY = r'extern "C" __global__ void busy(long long cycles) { for (long long t = clock64(); clock64() - t < cycles;); }'


@pytest.mark.parametrize("call", ["maps", "rows"])
def test_freed_memory_that_unfinished_work_still_writes_to(call):
    """The pool gives such memory to the same stream again, but maps are copied on other streams."""
    import cupy

    spec = spec_of(64, 0.08)
    t, ones = spec.table, np.ones(len(spec.table.n))
    x = sky(t.npix, 2, dtype="float32")
    first, second = (cuda.Engine(spec, "ring", runtime=cuda._runtime(resolve("cuda:0")[0])) for _ in range(2))
    expected = convolved(first, x)
    busy = cupy.RawKernel(BUSY, "busy")
    busy((1,), (1,), (np.int64(1000),))  # compiled
    second._up.up(cupy.empty(t.npix, np.float32), x[0])  # page-locks memory, which waits for the GPU
    second._ring_weights(t.weight, ones)  # CuPy page-locks memory for arrays too
    with cupy.cuda.Device(0):
        cupy.cuda.Device(0).synchronize()
        freed = [cupy.empty(t.npix, np.float32) for _ in range(8)]
        busy((1,), (1,), (np.int64(200_000_000),))  # about 0.1 s
        for a in freed:
            a.fill(7)
        del a, freed
        if call == "maps":
            found = convolved(second, x)
        else:
            found = np.full_like(expected, np.nan)
            for one, target in zip(x, found, strict=True):
                second.rows(one, target, t.weight, ones, 0, second._engine.rows)
    assert (found == expected).all()
    first.close()
    second.close()
