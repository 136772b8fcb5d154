"""Plans of convolution on the sphere: description, errors, memory, large means."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conformance.sphere_truth import GRIDS, HARD, KERNELS, METHODS, fast, sky, some
from tests.truth import sphere as reference

from skysieve.core.errors import DeviceUnavailable, MemoryBudgetError
from skysieve.sphere import ECP, ConvolvePlan, Gaussian, Healpix, Window


def test_a_plan_describes_itself():
    beam = Gaussian(fwhm=np.radians(10))
    with ConvolvePlan(beam, Healpix(32), eps=1e-4, method="ring", device="cpu") as plan:
        info = plan.describe()
        assert info["method"] in METHODS
        assert info["bytes"] > 0
        assert list(info["work"]) == ["ring float64"]
        assert info["work"]["ring float64"] > 0
        assert info["moved"] == 2 * 8 * 12 * 32**2
        assert 0.3e-4 < info["truncation_error"] <= 0.55e-4
        cl = 1 / (np.arange(200) + 1.0) ** 2
        assert 0 < plan.truncation_error(cl) < 2e-4
        assert np.abs(plan.window(60) - beam.window(60)).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_memory_is_as_described(method, dtype):
    """Plan and call take at most 1.2 times the bytes of ``describe`` without the result (and 1 MiB of objects).

    For white maps, and for maps that have to be converted first: with an offset, NESTED, of another type.
    """
    import tracemalloc

    k, nside = Gaussian(fwhm=np.radians(1.3)), 128
    x = sky(12 * nside**2)[0]
    other = np.float32 if dtype == "float64" else np.float64
    cases = {
        "white": (x.astype(dtype), False),
        "offset": ((x + 100).astype(dtype), False),
        "nested offset": ((x + 100).astype(dtype), True),
        "other type": (x.astype(other), False),
    }
    with ConvolvePlan(k, Healpix(nside), method=method, dtype=dtype, device="cpu", threads=1) as plan:
        plan.execute(x + 100)
    for name, (y, nest) in cases.items():
        tracemalloc.start()
        with ConvolvePlan(k, Healpix(nside, nest), method=method, dtype=dtype, device="cpu", threads=1) as plan:
            found = plan.execute(y)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            described = plan.describe()["bytes"]
        assert peak - found.nbytes <= 1.2 * described + 2**20, name
        assert name == "white" or described <= 1.5 * (peak - found.nbytes), name


@pytest.mark.few
@pytest.mark.parametrize("grid", list(GRIDS))
@pytest.mark.parametrize("kernel", ["narrow", "wide", "needlet", "top hat"])
def test_ones_are_convolved_to_twelve_digits(grid, kernel):
    """Convolution of a constant map: by a series and the modes beyond it, or by the direct sum in bands of rings."""
    from skysieve.sphere.cpu.offset import Ones

    k, table = (KERNELS | HARD)[kernel], GRIDS[grid].table()
    ones = Ones(table, [k], 1e-6, 1)
    found = np.concatenate([np.broadcast_to(ones.ring(0, r), table.n[r]) for r in range(len(table.n))])
    rows = np.arange(0, table.npix, 3)
    whole = reference.matrix(table, k.profile, rows=rows)
    # measured 5e-12
    assert np.abs(found[rows] - whole.sum(axis=1)).max() <= 2e-11 * np.abs(whole).sum(axis=1).max()


def test_an_offset_needs_nothing_at_call_time():
    """The ring method with a spline, whose modes fall below 1e-6 but not below 1e-12; memory is checked in advance."""
    k, g = KERNELS["profile"], Healpix(8)
    x = sky(768)[0]
    with ConvolvePlan(k, g, method="ring", device="cpu", threads=1) as plan:
        a, b = plan.execute(x), plan.execute(x + 1e4)
        described = plan.describe()["bytes"]
    ones = reference.matrix(g.table(), k.profile).sum(axis=1)
    assert np.abs(b - a - 1e4 * ones).max() <= 1e-5 * np.abs(a).max()  # a few eps
    with pytest.raises(MemoryBudgetError, match="budget"):
        ConvolvePlan(k, g, method="ring", device="cpu", threads=1, memory=described - 1)
    with ConvolvePlan(k, g, method="ring", device="cpu", threads=1, memory=described) as plan:
        assert plan.describe()["bytes"] == described


@pytest.mark.slow
def test_the_cut_error_is_as_predicted():
    """Eq. 7 of the paper for white noise, against the measured error."""
    k, g = Gaussian(fwhm=0.3), Healpix(24)
    x = sky(g.table().npix)[0]
    with ConvolvePlan(k, g, eps=2e-3, quadrature="none", device="cpu") as plan:
        rows = some(len(x), 600)
        truth = reference.convolve(g.table("none"), fast(k), x, rows=rows)
        cut = reference.convolve(g.table("none"), fast(k), x, plan.describe()["support"], rows)
        assert (cut - truth).std() / truth.std() == pytest.approx(plan.truncation_error(), rel=0.2)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"kernel": "gauss"}, TypeError, "expected a kernel"),
        ({"kernel": []}, TypeError, "expected a kernel"),
        ({"grid": 64}, TypeError, "expected a grid"),
        ({"method": "fft"}, ValueError, "method='fft'"),
        ({"quadrature": "gauss"}, ValueError, "quadrature='gauss'"),
        ({"quadrature": "pixel", "grid": ECP(8, 16)}, ValueError, "quadrature='pixel': expected a HEALPix grid"),
        ({"eps": 0}, ValueError, "eps=0"),
        ({"eps": 2.0}, ValueError, "eps=2.0"),
        ({"dtype": "int32"}, ValueError, "dtype='int32'"),
        ({"dtype": "many"}, TypeError, "dtype='many'"),
        ({"threads": 0}, ValueError, "threads=0"),
        ({"threads": 1.5}, ValueError, "threads=1.5"),
        ({"threads": "2"}, ValueError, "threads='2'"),
        ({"memory": 1000}, MemoryBudgetError, "budget"),
        ({"mask": np.zeros(12, bool)}, ValueError, "mask has shape"),
        ({"mask": np.zeros(768, bool)}, ValueError, "leaves no pixel"),
        ({"rings": 3}, TypeError, "rings=3"),
        ({"rings": slice(0, 3), "grid": Healpix(8, nest=True)}, ValueError, "NESTED"),
        ({"device": "tpu"}, ValueError, "device='tpu'"),
    ],
)
def test_bad_options_raise(options, kind, message):
    given = {"kernel": Gaussian(fwhm=0.2), "grid": Healpix(8), "device": "cpu", **options}
    with pytest.raises(kind, match=message):
        ConvolvePlan(given.pop("kernel"), given.pop("grid"), **given)


def test_bad_maps_raise():
    with ConvolvePlan(Gaussian(fwhm=0.2), Healpix(8), device="cpu") as plan:
        with pytest.raises(ValueError, match=r"expected \(\.\.\., 768\)"):
            plan.execute(np.zeros(767))
        with pytest.raises(TypeError, match="complex128"):
            plan.execute(np.zeros(768, complex))
        with pytest.raises(TypeError, match="masked array"):
            plan.execute(np.ma.MaskedArray(np.zeros(768), np.zeros(768, bool)))
        with pytest.raises(ValueError, match="lmax=-1"):
            plan.window(-1)
        with pytest.raises(ValueError, match="power spectrum"):
            plan.truncation_error([-1.0])


def test_different_windows_of_e_and_b_are_no_single_window():
    pytest.importorskip("ducc0")
    w = Window(np.ones(9), np.ones(9), np.full(9, 0.9))
    with ConvolvePlan(w, Healpix(8), spin=2, device="cpu") as plan:
        assert plan.method == "harmonic"
        with pytest.raises(ValueError, match="E and B have different windows"):
            plan.window(8)


def test_methods_that_run_on_the_cpu_alone(monkeypatch):
    """Harmonics and the published algorithm run on the CPU: "auto" takes it, "cuda" raises."""
    from skysieve.core import device as devices
    from skysieve.sphere import api

    gpu = devices.Device("cuda", 0, "a GPU", 1 << 30)
    monkeypatch.setattr(api, "resolve", lambda d: devices.resolve("cpu") if d == "cpu" else (gpu,))
    for options in ({"method": "harmonic"}, {"compat": "arkcos"}):
        with pytest.raises(DeviceUnavailable, match="run only on the CPU"):
            ConvolvePlan(Gaussian(fwhm=0.2), Healpix(8), device="cuda", **options)
    with ConvolvePlan(Gaussian(fwhm=0.2), Healpix(8), compat="arkcos") as plan:
        assert plan.device.kind == "cpu"
