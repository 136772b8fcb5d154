"""Quadrature "band" on the host shim and on a GPU: plans of the public interface, beside those of the CPU."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from skysieve.core.device import resolve
from skysieve.sphere import ConvolvePlan, Gaussian, Healpix, MexicanHat, api
from skysieve.sphere.cuda import engine as cuda
from skysieve.sphere.cuda.multi_gpu import MultiGpuEngine
from skysieve.sphere.grids.healpix import UNSEEN
from skysieve.sphere.grids.polar_correction import polar_correction
from tests.kernels.devices import another, one_order
from tests.kernels.shim import shim_runtime

ERROR = {"float64": 1e-12, "float32": 2e-6}
"""Largest difference from the CPU, relative to the largest value: rounding errors.  Sums in float32 have errors of 1e-6
(see tests/kernels/test_sphere.py)."""


def pretend(monkeypatch, runtimes):
    """Let plans on "cuda" use these runtimes; if there are several, each plan uses all of them."""
    gpu = runtimes[0].device
    monkeypatch.setattr(api, "resolve", lambda d: resolve("cpu") if d == "cpu" else (gpu,))
    make = api.make_engine

    def shimmed(spec, method, device, memory, threads):
        if device == "cpu":
            return make(spec, method, device, memory, threads)
        if len(runtimes) > 1:
            return MultiGpuEngine(spec, method, runtimes=[another(r) for r in runtimes], memory=memory), gpu
        return cuda.Engine(spec, method, runtime=runtimes[0], memory=memory), gpu

    monkeypatch.setattr(api, "make_engine", shimmed)


def both(x, kernel, grid, transposed=False, **options):
    """Results of the CPU and of the runtime."""
    found = []
    for device in ("cpu", "cuda"):
        method = "direct" if device == "cpu" else options.get("method", "direct")
        some = {**options, "quadrature": "band", "device": device, "method": method}
        with ConvolvePlan(kernel, grid, **some) as plan:
            found.append(plan.adjoint(x) if transposed else plan.execute(x))
    return found


def worst(found, truth):
    return np.abs(found - truth).max() / np.abs(truth).max()


@pytest.mark.few
@pytest.mark.parametrize(
    ("runtime", "nside", "nest"),
    [("forwards", 8, True), ("backwards", 19, False)]
    + [pytest.param("gpu", nside, nest, marks=pytest.mark.gpu) for nside, nest in ((8, True), (19, False), (64, True))],
    indirect=["runtime"],
)
@pytest.mark.parametrize("spin", [0, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_direct_engine_agrees_with_the_cpu(monkeypatch, runtime, nside, nest, spin, dtype, transposed):
    """A kernel of 2.7 pixels, where the correction is large; NESTED order, a batch of two."""
    pretend(monkeypatch, [runtime])
    x = np.random.default_rng(nside).normal(size=(2, *((2,) if spin else ()), 12 * nside**2)) + 5
    x = x.astype(dtype)
    options = {"spin": spin, "dtype": dtype, "eps": 1e-13 if dtype == "float64" else 1e-7}
    kernel = Gaussian(fwhm=2.7 * np.sqrt(np.pi / 3) / nside)
    truth, found = both(x, kernel, Healpix(nside, nest), transposed, **options)
    assert worst(found, truth) <= ERROR[dtype]


@pytest.mark.few
@one_order
@pytest.mark.parametrize("spin", [0, 2])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("nest", [False, True])
def test_the_ring_engine_agrees_with_the_cpu(runtime, monkeypatch, spin, transposed, nest):
    """The modes end where they are 1e-12 of the rms, so the tolerance is 1e-10."""
    pretend(monkeypatch, [runtime])
    nside = 16
    x = np.random.default_rng(7).normal(size=(*((2,) if spin else ()), 12 * nside**2)) - 40
    options = {"spin": spin, "eps": 1e-12, "method": "ring"}
    truth, found = both(x, Gaussian(fwhm=0.3), Healpix(nside, nest), transposed, **options)
    assert worst(found, truth) <= 1e-10


@pytest.mark.slow
@one_order
def test_several_kernels(runtime, monkeypatch):
    """Each result has the mean of the map times the integral of its kernel, which is 0 for a Mexican hat."""
    pretend(monkeypatch, [runtime])
    nside = 16
    x = np.random.default_rng(3).normal(size=(3, 12 * nside**2)) + 2.7e4
    kernels = [Gaussian(fwhm=0.2), MexicanHat(0.15), Gaussian(fwhm=0.3)]
    truth, found = both(x, kernels, Healpix(nside), eps=1e-12)
    for k in range(3):
        assert worst(found[:, k], truth[:, k]) <= 1e-11  # roundings of 2e-16, of a mean of 2.7e4


@one_order
@pytest.mark.parametrize("nside", [1, 3, 5, 8, 9])
def test_small_grids(runtime, monkeypatch, nside):
    """Below nside 8 the mean alone is treated."""
    pretend(monkeypatch, [runtime])
    x = np.random.default_rng(nside).normal(size=12 * nside**2) + 1
    truth, found = both(x, Gaussian(fwhm=2.5 / nside), Healpix(nside), eps=1e-12)
    assert worst(found, truth) <= 1e-12


@pytest.mark.few
@one_order
@pytest.mark.parametrize("spin", [0, 2])
@pytest.mark.parametrize("method", ["direct", "ring"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_pixel_spoils_only_its_map(runtime, monkeypatch, spin, method, value):
    pretend(monkeypatch, [runtime])
    nside = 8
    x = np.random.default_rng(4).normal(size=(3, *((2,) if spin else ()), 12 * nside**2)).astype("f4")
    broken = x.copy()
    broken[1, ..., 3] = value  # at the pole
    before = broken.copy()
    options = {"spin": spin, "method": method, "dtype": "float32", "quadrature": "band", "device": "cuda"}
    with ConvolvePlan(Gaussian(fwhm=0.4), Healpix(nside), **options) as plan:
        whole, found = plan.execute(x), plan.execute(broken)
    assert np.isnan(found[1]).all()
    assert (found[[0, 2]] == whole[[0, 2]]).all()
    assert np.array_equal(broken, before, equal_nan=True)


@pytest.mark.slow
@pytest.mark.few
@one_order
@pytest.mark.parametrize(("transposed", "spin", "nest"), [(False, 0, True), (False, 2, False), (True, 0, False)])
def test_several_gpus_have_the_bits_of_one(runtime, monkeypatch, transposed, spin, nest):
    """A single map, whose rows are shared, and a batch, which is dealt."""
    nside, found = 16, []
    x = np.random.default_rng(5).normal(size=(3, *((2,) if spin else ()), 12 * nside**2)) + 3
    x = x.astype("f4")
    for count in (1, 2):
        with monkeypatch.context() as patch:
            pretend(patch, [runtime] * count)
            options = {"spin": spin, "method": "ring", "dtype": "f4", "quadrature": "band", "device": "cuda"}
            with ConvolvePlan(Gaussian(fwhm=0.3), Healpix(nside, nest), **options) as plan:
                call = plan.adjoint if transposed else plan.execute
                found.append([call(x[0]), call(x)])
    for one, two in zip(*found, strict=True):
        assert (one == two).all()


@one_order
def test_a_batch_is_one_run_of_the_engine(runtime, monkeypatch):
    """So that transfers and sums of its maps overlap."""
    pretend(monkeypatch, [runtime])
    counts, run = [], cuda.Engine.run
    monkeypatch.setattr(cuda.Engine, "run", lambda self, x, *a, **k: (counts.append(len(x)), run(self, x, *a, **k))[1])
    with ConvolvePlan(Gaussian(fwhm=0.4), Healpix(8), quadrature="band", device="cuda") as plan:
        runtime.launches.clear()
        plan.execute(np.ones((5, 12 * 8**2)))
    assert counts == [5]
    names = [name for name, *_ in runtime.launches]
    for name in ("add_up", "less_mean", "forward", "add", "add_mean"):
        assert names.count(name) == 5


@one_order
def test_bytes_count_the_tables_and_the_copy(runtime, monkeypatch):
    pretend(monkeypatch, [runtime])
    nside, found = 32, {}
    for quadrature in ("none", "band"):
        with ConvolvePlan(Gaussian(fwhm=0.2), Healpix(nside), quadrature=quadrature, device="cuda") as plan:
            found[quadrature] = plan.describe()["bytes"]
    more = found["band"] - found["none"] - 8 * 12 * nside**2
    matrix = polar_correction(nside).matrix.nbytes
    assert matrix < more < 1.5 * matrix + 3e5
    with ConvolvePlan(Gaussian(fwhm=0.2), Healpix(nside), quadrature="none", method="direct", device="cpu") as plan:
        less = plan.describe()["bytes"] - plan._ones_response.nbytes
    with ConvolvePlan(Gaussian(fwhm=0.2), Healpix(nside), quadrature="band", method="direct", device="cpu") as plan:
        assert plan.describe()["bytes"] - less == polar_correction(nside).nbytes


@pytest.mark.slow
@one_order
def test_threads_share_a_plan(runtime, monkeypatch):
    pretend(monkeypatch, [runtime])
    x = np.random.default_rng(6).normal(size=(4, 12 * 16**2)) + np.arange(4)[:, None]
    found = [None] * 4
    with ConvolvePlan(Gaussian(fwhm=0.3), Healpix(16), quadrature="band", method="ring", device="cuda") as plan:
        truth = plan.execute(x)
        ones = [threading.Thread(target=lambda k=k: found.__setitem__(k, plan.execute(x[k]))) for k in range(4)]
        for one in ones:
            one.start()
        for one in ones:
            one.join()
    assert (np.array(found) == truth).all()


@one_order
@pytest.mark.parametrize("step", ["prepared", "finished"])
def test_a_gpu_that_fails_before_or_after_the_sum_is_replaced(runtime, monkeypatch, caplog, step):
    """One map, whose rows two GPUs share."""
    x = np.random.default_rng(8).normal(size=12 * 16**2) + 3
    pretend(monkeypatch, [runtime] * 2)
    calls, work = [], getattr(cuda.Engine, step)

    def fails_once(self, *args):
        calls.append(self)
        if len(calls) == 2:
            raise RuntimeError("lost")
        return work(self, *args)

    monkeypatch.setattr(cuda.Engine, step, fails_once)
    with ConvolvePlan(Gaussian(fwhm=0.3), Healpix(16), method="ring", quadrature="band", device="cuda") as plan:
        whole = plan.execute(x)
        assert (plan.execute(x) == whole).all()
    assert len(calls) == 3
    assert calls[2] is not calls[1]
    assert "lost" in caplog.text


@pytest.mark.parametrize("count", [1, 2])
def test_plans_describe_themselves_with_the_same_keys_on_every_device(monkeypatch, count):
    monkeypatch.setattr("skysieve.core.machine.rates.rates_of", lambda domain, device: {})  # this machine may have some
    with ConvolvePlan(Gaussian(fwhm=0.3), Healpix(16), method="ring", device="cpu") as plan:
        expected = plan.describe()
    pretend(monkeypatch, [shim_runtime() for _ in range(count)])
    with ConvolvePlan(Gaussian(fwhm=0.3), Healpix(16), method="ring", device="cuda") as plan:
        found = plan.describe()
        plan.close()
        with pytest.raises(ValueError, match="the plan is closed"):
            plan.execute(np.zeros(plan.npix))
    assert list(found) == list(expected)
    assert expected.pop("limit") is None
    assert found.pop("limit") in ("GPUs", "host copies")
    assert {k: type(v) for k, v in found.items()} == {k: type(v) for k, v in expected.items()}
    assert "cuda" in found["device"]


@pytest.mark.few
@pytest.mark.parametrize(
    ("runtime", "count"), [("forwards", 1), ("backwards", 1), ("forwards", 2)], indirect=["runtime"]
)
@pytest.mark.parametrize("quadrature", ["band", "ring"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("nest", [False, True])
def test_bad_pixels_count_as_zero_and_keep_their_values(monkeypatch, runtime, count, quadrature, dtype, nest):
    """The plan of `smoothing`, with a large mean, beside the CPU's; two runtimes share the rows of a map."""
    pretend(monkeypatch, [runtime] * count)
    nside = 8
    x = np.random.default_rng(3).normal(size=(2, 12 * nside**2)) + 50
    x[1, [0, 7, 500, -1]] = [np.nan, UNSEEN, np.inf, np.float32(UNSEEN)]
    found = []
    for device in ("cpu", "cuda"):
        method = "direct" if device == "cpu" else "ring" if count > 1 else "direct"
        options = {"quadrature": quadrature, "dtype": dtype, "device": device, "method": method, "eps": 1e-10}
        with api.SmoothingPlan(Gaussian(fwhm=0.4), Healpix(nside, nest), **options) as plan:
            found.append(np.stack([plan.execute(x[0]), plan.execute(x[1])]))
    truth, ours = found
    bad = ~np.isfinite(x) | (x < -1e30)
    np.testing.assert_array_equal(ours[bad], x[bad].astype(dtype))
    assert np.isfinite(ours[~bad]).all()
    assert worst(ours[~bad], truth[~bad]) <= max(ERROR[dtype], 1e-8)
