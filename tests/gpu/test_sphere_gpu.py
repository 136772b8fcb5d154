"""Convolution on the sphere on a GPU through the public functions, at sizes where all kernels run.

Every kernel is tested in tests/kernels/test_sphere*.py.  What is here is too large for the host shim, or needs CuPy.
Needs NumPy, SciPy, numba, CuPy and pytest alone.
"""

from __future__ import annotations

import functools
import itertools
import threading

import numpy as np
import pytest
from typer.testing import CliRunner

import skysieve
from skysieve.cli import app
from skysieve.core.device import resolve
from skysieve.core.errors import DeviceUnavailable, MemoryBudgetError
from skysieve.sphere import ECP, ConvolvePlan, Gaussian, GaussLegendre, Healpix, MexicanHat, Rings, TopHat, Window
from skysieve.sphere.command import partitions
from skysieve.sphere.cuda.direct import spin
from skysieve.sphere.grids.healpix import UNSEEN, nest2ring
from skysieve.sphere.kernels.radial import make_radial
from skysieve.sphere.ring_pairs import reach

pytestmark = pytest.mark.gpu

BEAM = Gaussian(fwhm=np.radians(1.2))
ODD = Rings([0.2, 0.4, 0.6, 1.1, 1.5, 1.9, 2.2, 3.0], [4, 9, 9, 16, 16, 16, 11, 1], [0, 0.1, 0.3, 0, 0, 0.2, 1, 2])
CASES = {
    "healpix 64": (BEAM, Healpix(64)),
    "healpix 51": (BEAM, Healpix(51)),
    "healpix 256, narrow": (Gaussian(fwhm=np.radians(0.62)), Healpix(256)),
    "healpix 128, wide": (Gaussian(fwhm=np.radians(9)), Healpix(128)),
    "healpix 3": (Gaussian(fwhm=0.5), Healpix(3)),
    "healpix 1": (Gaussian(fwhm=1.5), Healpix(1)),
    "mexican hat": (MexicanHat(0.012), Healpix(64)),
    "window": (Window(np.exp(-((np.arange(200) / 60.0) ** 2))), Healpix(48)),
    "ecp": (Gaussian(fwhm=0.1), ECP(90, 180)),
    "ecp poles": (Gaussian(fwhm=0.2), ECP(61, 97, poles=True)),
    "gauss": (Gaussian(fwhm=0.1), GaussLegendre(64, 128)),
    "rings": (Gaussian(fwhm=0.3), ODD),
}
ERROR = {"float64": 1e-10, "float32": 2e-6}
EPS = {"float64": 1e-12, "float32": 1e-8}


def sky(npix, seed=0, count=1, dtype="float64"):
    return np.random.default_rng(seed).standard_normal((count, npix)).astype(dtype)


def some(table, count=400):
    """Pixels of all zones: the poles, caps, their edge, the belt."""
    rng = np.random.default_rng(3)
    ends = np.r_[np.arange(40), table.npix - 1 - np.arange(40)]
    return np.unique(np.r_[ends, rng.integers(0, table.npix, count)] % table.npix)


def brute(table, radial, x, pixels):
    """The pixel sum in float64 at some pixels."""
    theta, phi, weight = table.pixels()
    first, last = reach(table.theta, radial.radius)
    ring = np.searchsorted(table.start, pixels, side="right") - 1
    out = np.empty(len(pixels))
    for k, (p, o) in enumerate(zip(pixels, ring, strict=True)):
        a, b = int(table.start[first[o]]), int(table.start[last[o] - 1] + table.n[last[o] - 1])
        chord = 4 * np.sin((theta[a:b] - theta[p]) / 2) ** 2
        chord += 4 * np.sin(theta[a:b]) * np.sin(theta[p]) * np.sin((phi[a:b] - phi[p]) / 2) ** 2
        out[k] = (radial(chord) * weight[a:b]) @ x[a:b]
    return out


def brute_near(table, radial, x, pixels):
    """The result of `brute`, computed ring by ring, for large maps."""
    first, last = reach(table.theta, radial.radius)
    ring = np.searchsorted(table.start, pixels, side="right") - 1
    out = np.zeros(len(pixels))
    for k, (p, o) in enumerate(zip(pixels, ring, strict=True)):
        phi = table.phi0[o] + 2 * np.pi * (p - table.start[o]) / table.n[o]
        for i in range(first[o], last[o]):
            n = int(table.n[i])
            a = 4 * np.sin((table.theta[i] - table.theta[o]) / 2) ** 2
            b = 4 * np.sin(table.theta[i]) * np.sin(table.theta[o])
            q = np.arange(n)
            if radial.xmax - a < b:
                u = (phi - table.phi0[i]) * n / (2 * np.pi)
                wide = np.arcsin(np.sqrt(max(0.0, (radial.xmax - a) / b))) * n / np.pi + 2
                near = np.arange(int(np.ceil(u - wide)), int(np.floor(u + wide)) + 1)
                q = near if len(near) < n else q
            d = table.phi0[i] + 2 * np.pi * q / n - phi
            out[k] += table.weight[i] * (radial(a + b * np.sin(d / 2) ** 2) @ x[table.start[i] + q % n])
    return out


@functools.cache
def truth(case, eps):
    kernel, grid = CASES[case]
    table, x = grid.table(), sky(grid.table().npix)[0]
    pixels = some(table)
    return pixels, brute(table, make_radial(kernel, eps), x.astype(np.float32).astype(float), pixels)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("method", ["direct", "ring"])
@pytest.mark.parametrize("case", CASES)
def test_the_pixel_sum(case, method, dtype):
    kernel, grid = CASES[case]
    x = sky(grid.table().npix)[0].astype(np.float32)
    eps, bound = EPS[dtype], ERROR[dtype]
    if (case, method, dtype) == ("window", "ring", "float64"):
        # the table of the window is accurate to 1e-11; below that its modes do not fall, as on the CPU
        with pytest.raises(ValueError, match="the kernel's modes do not fall below eps=1e-12"):
            ConvolvePlan(kernel, grid, method=method, eps=eps, dtype=dtype, device="cuda")
        eps, bound = 1e-10, 1e-9
    with ConvolvePlan(kernel, grid, method=method, eps=eps, dtype=dtype, device="cuda") as plan:
        found = plan.execute(x)
        assert plan.describe()["method"] == method
        assert plan.device.kind == "cuda"
    assert found.dtype == dtype
    pixels, expected = truth(case, EPS[dtype])
    assert np.abs(found[pixels] - expected).max() <= bound * np.abs(expected).max()


@pytest.mark.parametrize("method", ["direct", "ring"])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_the_default_accuracy(method, offset):
    """Against the uncut kernel, the rms error is below 1e-6, and the largest error below 1e-5, of the result's rms."""
    grid = Healpix(512)
    table, kernel = grid.table(), Gaussian(fwhm=np.radians(18.8 / 60))
    dtype = "float64" if offset else "float32"  # float32 itself holds 1e4 rms to 1e-3
    x = sky(table.npix, 1)[0].astype(dtype) + np.dtype(dtype).type(offset)
    with ConvolvePlan(kernel, grid, method=method, dtype=dtype, device="cuda") as plan:
        found = plan.execute(x).astype(float)
    pixels = some(table, 200)
    radial = make_radial(kernel, 1e-12)
    expected = brute(table, radial, x.astype(float) - offset, pixels)
    if offset:
        found = found[pixels] - offset * brute(table, radial, np.ones(table.npix), pixels)
    else:
        found = found[pixels]
    rms = np.sqrt(np.mean(expected**2))
    assert np.sqrt(np.mean((found - expected) ** 2)) <= 1e-6 * rms
    assert np.abs(found - expected).max() <= 1e-5 * rms


@pytest.mark.parametrize(
    ("method", "nside", "arcmin"),
    [("direct", 2048, 4.7), ("ring", 2048, 60), ("ring", 4096, 4.7), ("direct", 1500, 6.0), ("ring", 1500, 30)],
)
def test_large_maps(method, nside, arcmin):
    """The default accuracy for long transforms and large indices."""
    import cupy

    grid, kernel = Healpix(nside), Gaussian(fwhm=np.radians(arcmin / 60))
    table = grid.table()
    x = cupy.random.default_rng(nside).standard_normal(table.npix, dtype=np.float32)
    with ConvolvePlan(kernel, grid, method=method, dtype="float32", device="cuda") as plan:
        found = plan.execute(x)
    rng, edge = np.random.default_rng(0), 2 * nside * (nside - 1)
    pixels = np.r_[np.arange(4), rng.integers(0, 300, 4), edge + rng.integers(-9 * nside, 40 * nside, 10)]
    pixels = np.unique(np.r_[pixels, rng.integers(0, table.npix, 30 if arcmin < 20 else 10), table.npix - 1])
    expected = brute_near(table, make_radial(kernel, 1e-12), x.get().astype(float), pixels)
    rms = float(cupy.sqrt(cupy.mean(found[::97].astype(np.float64) ** 2)))
    error = found[cupy.asarray(pixels)].get() - expected
    del x, found
    cupy.get_default_memory_pool().free_all_blocks()
    assert np.sqrt(np.mean(error**2)) <= 1.2e-6 * rms  # 1e-6 is for the map; these are some 50 pixels
    assert np.abs(error).max() <= 1e-5 * rms


def test_q_and_u_turned_ring_by_ring(monkeypatch):
    """With a small support the angles between pixels are simplified: the error is what `turning` predicts."""
    import cupy

    grid, kernel, eps = Healpix(1024), Gaussian(fwhm=np.radians(5.5 / 60)), 1e-6
    said = spin.turning(make_radial(kernel, eps, 2))
    assert said <= 0.25 * eps
    x = cupy.random.default_rng(1).standard_normal((2, 12 * 1024**2), dtype=np.float64)
    found = []
    for most in (spin.MOST_TURNING, 0.0):
        monkeypatch.setattr(spin, "MOST_TURNING", most)
        with ConvolvePlan(kernel, grid, spin=2, eps=eps, method="direct", device="cuda") as plan:
            found.append(plan.execute(x))
    error = float(cupy.sqrt(((found[0] - found[1]) ** 2).mean() / (found[1] ** 2).mean()))
    assert 0.7 * said <= error <= 1.3 * said


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("method", ["direct", "ring"])
def test_spin_two_is_the_cpus(method, dtype):
    for kernel, grid in (
        (Gaussian(fwhm=np.radians(3)), Healpix(48)),
        (Gaussian(fwhm=np.radians(0.6)), Healpix(200)),
        (Gaussian(fwhm=0.2), ECP(40, 80)),
        (Gaussian(fwhm=0.3), ODD),
    ):
        npix = grid.table().npix
        x = np.stack([sky(npix, 5, 2), np.eye(2)[:, :1] * (np.arange(npix) == npix // 3)])
        plans = [
            ConvolvePlan(kernel, grid, spin=2, eps=EPS[dtype], dtype=dtype, method=method, device=device)
            for device in ("cuda", "cpu")
        ]
        found, expected = (plan.execute(x) for plan in plans)
        for plan in plans:
            plan.close()
        for a, b in zip(found, expected, strict=True):
            assert np.abs(a - b).max() <= 3 * ERROR[dtype] * np.abs(b).max()


def test_maps_in_gpu_memory_give_results_in_gpu_memory():
    import cupy

    grid = Healpix(64)
    x = sky(grid.table().npix, 1, 3, "float32")
    on_gpu = cupy.asarray(x)
    with ConvolvePlan([BEAM, Gaussian(fwhm=0.05)], grid, dtype="float32", device="cuda") as plan:
        found, expected = plan.execute(on_gpu), plan.execute(x)
        assert isinstance(found, cupy.ndarray)
        assert found.shape == (3, 2, x.shape[1])
        assert (found.get() == expected).all()
        assert (on_gpu.get() == x).all()
        for b in range(3):
            assert (plan.execute(x[b]) == expected[b]).all()
        shifted = cupy.empty(x.shape[1] + 1, np.float32)[1:]
        shifted[:] = on_gpu[0]
        assert (plan.execute(shifted).get() == expected[0]).all()  # memory that is not aligned
        assert np.abs(plan.execute(x.astype(">f8")[:, ::1]) - expected).max() == 0
    with ConvolvePlan(BEAM, grid, device="cpu") as plan, pytest.raises(TypeError, match="maps are on a GPU"):
        plan.execute(on_gpu)


def test_nested_maps_masks_and_parts_of_the_sky():
    nside = 64
    grid, table = Healpix(nside), Healpix(nside).table()
    x = sky(table.npix, 6)[0]
    order = nest2ring(nside, np.arange(table.npix))
    mask = np.random.default_rng(1).random(table.npix) < 0.6
    with ConvolvePlan(BEAM, grid, device="cuda") as plan:
        whole = plan.execute(x)
        only = plan.execute(x * mask)
    with ConvolvePlan(BEAM, Healpix(nside, nest=True), device="cuda") as plan:
        assert (plan.execute(x[order]) == whole[order]).all()
    with ConvolvePlan(BEAM, Healpix(nside, nest=True), mask=mask[order], device="cuda") as plan:
        assert np.abs(plan.execute(x[order]) - (only * mask)[order]).max() <= 1e-14
    rings = slice(20, 150)
    part = slice(int(table.start[20]), int(table.start[150]))
    inside = np.zeros_like(x)
    inside[part] = x[part]
    with ConvolvePlan(BEAM, grid, device="cuda") as plan:
        expected = plan.execute(inside)[part]
    for method in ("direct", "ring"):
        with ConvolvePlan(BEAM, grid, rings=rings, method=method, eps=1e-6, device="cuda") as plan:
            assert np.abs(plan.execute(x[part]) - expected).max() <= 3e-6 * np.abs(expected).max()


def test_point_sources_do_not_ring():
    grid = Healpix(256)
    table, kernel = grid.table("none"), Gaussian(fwhm=np.radians(37.6 / 60))
    theta, phi, weight = table.pixels()
    for method, bound in (("direct", 1e-9), ("ring", 1e-6)):
        with ConvolvePlan(kernel, grid, quadrature="none", method=method, device="cuda") as plan:
            for p in (0, 1000, 130000, 2 * 256 * 255 + 7, 400000):
                x = np.zeros(table.npix)
                x[p] = 1 / weight[p]
                chord = 4 * np.sin((theta - theta[p]) / 2) ** 2
                chord += 4 * np.sin(theta) * np.sin(theta[p]) * np.sin((phi - phi[p]) / 2) ** 2
                expected = make_radial(kernel, 1e-6)(chord)
                # where the cut kernel has its edge, pixels on it may fall on either side
                assert np.abs(plan.execute(x) - expected).max() <= max(bound, 1e-6) * expected.max()
                if method == "direct":
                    assert not plan.execute(x)[chord > 1.001 * make_radial(kernel, 1e-6).xmax].any()


def test_results_in_host_memory_do_not_change():
    """Memory of results is reused only after they have been deleted."""
    grid = Healpix(256)
    x = sky(grid.table().npix, 4, 5, "float32")
    with ConvolvePlan(Gaussian(fwhm=np.radians(0.62)), grid, dtype="float32", device="cuda") as plan:
        expected = plan.execute(x).copy()
        for _ in range(2):
            held = [plan.execute(m) for m in x]
            parts = [plan.execute(m)[1000:2000] for m in x]
            for found, part, right in zip(held, parts, expected, strict=True):
                assert (found == right).all()
                assert (part == right[1000:2000]).all()
    assert (held[3] == expected[3]).all()


def test_a_result_goes_where_it_is_wanted():
    import cupy

    grid = Healpix(128)
    x = sky(grid.table().npix, 4, 2, "float32")
    with ConvolvePlan([BEAM, Gaussian(fwhm=0.05)], grid, dtype="float32", device="cuda") as plan:
        expected = plan.execute(x)
        out = np.full(expected.shape, np.nan, np.float32)
        assert plan.execute(x, out=out) is out
        assert (out == expected).all()
        out_on_gpu = cupy.full(expected.shape, np.nan, np.float32)
        assert plan.execute(cupy.asarray(x), out=out_on_gpu) is out_on_gpu
        assert (out_on_gpu.get() == expected).all()
        with pytest.raises(TypeError, match="on the device of the maps"):
            plan.execute(x, out=out_on_gpu)


def test_smoothing_is_the_cpus():
    import cupy

    nside = 32
    rng = np.random.default_rng(2)
    iqu = rng.standard_normal((3, 12 * nside**2))
    holes = iqu.astype(np.float32)
    holes[:, rng.random(12 * nside**2) < 0.1] = UNSEEN
    width = np.radians(6)
    for given, options in (
        (iqu, {}),
        (iqu[0], {"nest": True, "flux": "conserve"}),
        (holes, {"masked": "normalize", "nest": True}),
        (np.ma.MaskedArray(iqu[0], iqu[0] > 1.5), {}),
        (iqu[0], {"fwhm": 0}),
    ):
        call = {"fwhm": width, **options}
        found = skysieve.smoothing(given, device="cuda", **call)
        expected = skysieve.smoothing(given, device="cpu", **call)
        assert type(found) is type(expected)
        assert found.dtype == expected.dtype
        bound = 5e-6 if found.dtype == np.float32 else 3e-6
        assert np.abs(found - expected).max() <= bound * np.abs(expected[np.abs(expected) < 1e20]).max()
        if isinstance(given, np.ndarray) and not isinstance(given, np.ma.MaskedArray):
            out_on_gpu = skysieve.smoothing(cupy.asarray(given), device="cuda", **call)
            assert isinstance(out_on_gpu, cupy.ndarray)
            assert np.array_equal(out_on_gpu.get(), found)


def test_edges_and_automatic_choice():
    grid = Healpix(64)
    x = sky(grid.table().npix, 9)[0]
    hat = TopHat(0.06)
    with ConvolvePlan(hat, grid, device="cuda") as plan, ConvolvePlan(hat, grid, device="cpu") as host:
        assert plan.method == "direct"
        # a pixel on the edge may count on one device and not on the other
        differs = np.abs(plan.execute(x) - host.execute(x)) > 1e-12 * np.abs(x).max() * hat.profile(0.0)
        assert differs.mean() < 1e-3
    with pytest.raises(ValueError, match="has an edge"):
        ConvolvePlan(hat, grid, method="ring", device="cuda")
    with ConvolvePlan(Gaussian(fwhm=0.2), Healpix(256), device="cuda") as plan:
        assert plan.method == "ring"
    with ConvolvePlan(Gaussian(fwhm=0.008), Healpix(512), device="cuda") as plan:
        assert plan.method == "direct"


def test_bad_input_and_too_little_memory():
    grid = Healpix(64)
    with ConvolvePlan(BEAM, grid, device="cuda") as plan:
        with pytest.raises(ValueError, match="maps have shape"):
            plan.execute(np.zeros(7))
        with pytest.raises(TypeError, match="expected real numbers"):
            plan.execute(np.zeros(plan.npix, complex))
        assert plan.execute(np.zeros((0, plan.npix))).shape == (0, plan.npix)
    with pytest.raises(DeviceUnavailable, match="run only on the CPU"):
        ConvolvePlan(BEAM, grid, method="harmonic", device="cuda")
    with pytest.raises(MemoryBudgetError, match="the plan on the GPU"):
        ConvolvePlan(BEAM, grid, device="cuda", memory="1 MB")
    with pytest.raises(DeviceUnavailable):
        ConvolvePlan(BEAM, grid, device="cuda:99")


@pytest.mark.parametrize(("method", "width"), [("direct", 18.8), ("ring", 60)])
def test_memory_is_as_described(method, width):
    import cupy

    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    grid = Healpix(512)
    x = sky(grid.table().npix, 0, 2, "float32")
    with ConvolvePlan(Gaussian(fwhm=np.radians(width / 60)), grid, method=method, dtype="float32", device="cuda") as p:
        p.execute(x)
        used, said = pool.total_bytes() - before, p.describe()["bytes"]
    assert used <= 1.2 * said
    assert resolve("cuda")[0].total_memory > said


def test_files_that_are_smoothed_at_the_same_time_are_those_of_one_at_a_time(tmp_path, monkeypatch):
    fits = pytest.importorskip("astropy.io.fits")
    files = [tmp_path / f"{k}.fits" for k in range(7)]
    for k, file in enumerate(files):
        column = fits.Column("I", "E", array=np.random.default_rng(k).standard_normal(12 * 64**2).astype(np.float32))
        table = fits.BinTableHDU.from_columns([column])
        table.header.update({"PIXTYPE": "HEALPIX", "ORDERING": "RING", "NSIDE": 64})
        table.writeto(file)
    smooth_one = partitions.smooth_one
    for number in (1, 3):
        calls, met = itertools.count(), threading.Barrier(number)

        def meeting(*given, calls=calls, met=met, number=number, **options):
            if next(calls) < number:
                met.wait(60)
            return smooth_one(*given, **options)

        monkeypatch.setattr(partitions, "smooth_one", meeting)
        monkeypatch.setattr(partitions, "AT_ONCE", number)
        command = ["smooth", *map(str, files), "-o", str(tmp_path / f"{number}"), "--fwhm", "4deg", "--device", "cuda"]
        assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    for file in files:
        assert (tmp_path / "3" / file.name).read_bytes() == (tmp_path / "1" / file.name).read_bytes()
