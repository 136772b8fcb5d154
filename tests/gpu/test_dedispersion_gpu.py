"""De-dispersion on GPUs: random shapes that are too large for the host shim, public functions, arrays on the GPU.

Every kernel is tested in tests/kernels/test_dedispersion*.py.  Imports only what a GPU machine has.
"""

from __future__ import annotations

import dataclasses
import logging
from itertools import pairwise

import numpy as np
import pytest
from tests.kernels.devices import gpu
from tests.kernels.test_dedispersion import both

from skysieve import clear_cache
from skysieve.core.errors import MemoryBudgetError
from skysieve.dedispersion import (
    DedispersionPlan,
    Filterbank,
    Mask,
    Noise,
    SearchPlan,
    completeness,
    dedisperse,
    fake,
    plan,
    search,
    z_dot,
)
from skysieve.dedispersion.clean.cuda import resident
from skysieve.dedispersion.clean.dropouts import Watch
from skysieve.dedispersion.contract import Table
from skysieve.dedispersion.data.delays import sample_delays

KINDS = ("u1", "u2", "i1", "i2", "f4")


def samples(kind, shape, rng, full=False):
    if kind == "f4":
        return rng.normal(size=shape).astype(np.float32)
    info = np.iinfo(kind)
    return np.full(shape, info.max, kind) if full else rng.integers(info.min, info.max, shape, kind, endpoint=True)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(40))
def test_any_shape_in_any_chunks(seed):
    rng = np.random.default_rng([40, seed])
    C, ndm, n = int(rng.integers(1, 300)), int(rng.integers(1, 200)), int(rng.integers(2000, 9000))
    kind = KINDS[seed % len(KINDS)]
    freqs = np.sort(rng.uniform(300, 400, C))
    freqs = (freqs, freqs[::-1], rng.permutation(freqs))[int(rng.integers(3))]
    fb = Filterbank.from_array(samples(kind, (C, n), rng, full=seed % 9 == 0), freqs=freqs.copy(), tsamp=1e-3)
    tables = []
    for b in (1, int(rng.integers(2, 9))):
        top = float(rng.choice([0.3, 3.0, 60.0]))
        dms = rng.uniform(0, top, ndm) if rng.random() < 0.3 else np.linspace(0, top, ndm)
        delays = sample_delays(fb.freqs, dms, fb.tsamp * b)
        tables.append(Table(np.minimum(delays, (n - 300) // b).astype(np.int32), b))
    cuts = np.unique(np.concatenate([[0], rng.integers(0, n, 2), [n]]))
    over = max(t.maxshift * t.downsamp for t in tables)
    both([gpu()], fb, tables, [(int(a), int(min(n, b + over))) for a, b in pairwise(cuts)])


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16", "float32"])
@pytest.mark.parametrize(("period", "amplitude"), [(1.0, 0.0), (10.0, 0.5), (1.7, 0.5), (0.9, 1.0)])
@pytest.mark.parametrize("options", [{}, {"block": 8.5, "noise": "clipped"}, {"block": 1.1, "noise": "moments"}])
def test_drifts_are_removed_with_the_bits_of_the_cpu(kind, period, amplitude, options):
    rng, n = np.random.default_rng(7), 26_000
    x = 96 + 16 * rng.normal(size=(64, n)) + 16 * amplitude * np.sin(2 * np.pi * np.arange(n) * 5e-4 / period)
    x[:, 9000:9020] += 8
    data = (np.clip(np.rint(x), 0, 255) - (96 if kind == "int8" else 0)).astype(kind)
    fb = Filterbank.from_array(data, fch1=1500, foff=-4, tsamp=5e-4)
    given = {"threshold": 5, "clean": False, **options}
    ours, theirs = (search(fb, np.arange(0, 300, 10.0), device=device, **given) for device in ("cuda", "cpu"))
    assert len(ours.events) > 3
    for name in ("dm_index", "sample", "width_samples", "snr"):
        assert np.array_equal(getattr(ours.events, name), getattr(theirs.events, name)), name


@pytest.mark.gpu
def test_the_public_functions_in_chunks_and_on_all_gpus(caplog):
    rng = np.random.default_rng(5)
    fb = Filterbank.from_array(samples("u1", (128, 40_000), rng), fch1=1500, foff=-2, tsamp=1e-3)
    dms = np.linspace(0, 500, 61)
    expected = dedisperse(fb, dms, downsamp=2, device="cpu")
    for device in ("cuda", "cuda:0", "cuda:all", "auto"):
        found = dedisperse(fb, dms, downsamp=2, device=device)
        assert np.array_equal(found.data, expected.data)
        assert (found.method, found.loss, found.start) == ("brute", 0, expected.start)
        assert "cuda" in found.device or "GPU" in found.device
    import cupy

    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    pool.set_limit(size=pool.used_bytes() + 140 * 2**20)
    big = Filterbank.from_array(samples("u1", (512, 300_000), rng), fch1=1500, foff=-0.5, tsamp=1e-3)
    try:
        with caplog.at_level(logging.WARNING, "skysieve"):
            found = dedisperse(big, [0.0, 100.0], device="cuda")
        assert "using chunks of" in caplog.text
        clear_cache()  # the engine of the call above holds buffers that would suffice
        pool.free_all_blocks()
        pool.set_limit(size=pool.used_bytes() + 2**20)
        with pytest.raises(MemoryBudgetError):
            dedisperse(big, [0.0, 100.0], device="cuda")
    finally:
        pool.set_limit(size=0)
    assert np.array_equal(found.data, dedisperse(big, [0.0, 100.0], device="cpu").data)
    with pytest.raises(MemoryBudgetError):
        dedisperse(fb, dms, device="cuda", memory="1 MiB")


@pytest.mark.gpu
def test_kept_plans_give_the_cpus_bits():
    kind = {"nchan": 96, "tsamp": 1e-3, "fch1": 1500, "foff": -3, "dm": 150, "width": 8e-3, "snr": 25}
    nights = [fake(duration=d, times=[d / 2], seed=s, **kind) for s, d in enumerate((8, 40, 3))]
    dms = np.arange(100, 201, 5.0)
    with (
        SearchPlan(nights[0], dms, device="cuda", clean=False) as ours,
        SearchPlan(nights[0], dms, device="cpu", clean=False) as theirs,
        DedispersionPlan(nights[0], plan(nights[0], 300, step=10), device="cuda") as sums,
    ):
        assert set(ours.describe()) == set(theirs.describe())
        for night in (*nights, nights[0]):
            for a, b in zip(events_of(ours.execute(night)), events_of(theirs.execute(night)), strict=True):
                assert np.array_equal(a, b)
            for a, b in zip(
                sums.execute(night), dedisperse(night, plan(night, 300, step=10), device="cpu"), strict=True
            ):
                assert np.array_equal(a.data, b.data)


def events_of(found):
    e = found.events
    return [np.asarray(getattr(e, f.name)) for f in dataclasses.fields(e)]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [{}, {"noise": "moments"}, {"noise": "clipped", "threshold": 5.0}, {"detector": "threshold"},
     {"widths": [1, 5, 300, 4096]}, {"memory": "700 MiB"}, {"threshold": 3.0}, {"clean": True}],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["u1", "f4"])
def test_candidates_are_the_cpus(options, kind):
    fb = fake(
        nchan=96, duration=30, tsamp=1e-3, fch1=1500, foff=-3, dm=150, times=[1.5, 9.0, 22.2, 29.6], width=8e-3, snr=25,
        seed=3,
    )  # fmt: skip
    x = fb.read()
    x = x.astype(np.float32) / 7 if kind == "f4" else x
    fb = Filterbank.from_array(x, fch1=1500, foff=-3, tsamp=1e-3)
    grid = plan(fb, 400, rule="survey", stages=[(0, 200, 1.0, 1), (200, 400, 4.0, 4)])
    options = {"clean": False, **options}
    ours, theirs = (search(fb, grid, device=device, **options) for device in ("cuda", "cpu"))
    for a, b in zip(events_of(ours), events_of(theirs), strict=True):
        assert np.array_equal(a, b)
    assert len(ours.dm)
    assert np.array_equal(ours.snr, theirs.snr)
    assert np.array_equal(ours.time, theirs.time)
    everywhere = search(fb, grid, device="cuda:all", **options)
    assert np.array_equal(everywhere.snr, theirs.snr)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16", "float32"])
def test_a_gpu_cleans_with_the_bits_of_the_cpu(kind):
    fb = fake(nchan=64, duration=40, tsamp=1e-3, fch1=1500, foff=-4, dm=150, times=[3.0], width=8e-3, snr=25, seed=3)
    x = fb.read().astype(np.float32)
    x[:, 5000:5004] += 40  # an impulse
    x[7, 6000:30_000:2] += 60
    x[:, 9000:14_000] *= 1.1
    x[20, 16_000:17_000] += 50
    fb = Filterbank.from_array((x.clip(0, 255) - (100 if kind == "int8" else 0)).astype(kind), fch1=1500, foff=-4,
                               tsamp=1e-3)  # fmt: skip
    dms = np.arange(0, 300, 5.0)
    ours, theirs = (search(fb, dms, device=device) for device in ("cuda", "cpu"))
    assert len(theirs.removed.windows) > 0
    assert (ours.removed.windows == theirs.removed.windows).all()
    assert (ours.removed.cells == theirs.removed.cells).all()
    assert ours.removed.parts == theirs.removed.parts
    assert np.array_equal(ours.snr, theirs.snr)


@pytest.mark.gpu
def test_values_that_are_not_finite_are_cleaned_on_the_host():
    fb = fake(nchan=32, duration=9, tsamp=1e-3, fch1=1500, foff=-4, dm=100, times=[5.0], width=8e-3, snr=25, seed=2)
    x = fb.read().astype(np.float32)
    x[3, 4000] = np.nan
    fb = Filterbank.from_array(x, fch1=1500, foff=-4, tsamp=1e-3)
    ours, theirs = (search(fb, np.arange(0, 200, 20.0), device=device, clean=True) for device in ("cuda", "cpu"))
    assert len(ours.events) > 0
    assert np.array_equal(ours.snr, theirs.snr)


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "by_time"), [("u1", False), ("u1", True), ("u2", False), ("i1", True), ("f4", False)])
def test_arrays_on_a_gpu_stay_on_it(kind, by_time):
    import cupy

    rng = np.random.default_rng(6)
    x = samples(kind, (70, 20_000), rng)
    band = {"freqs": np.linspace(1400, 1500, 70), "tsamp": 1e-3}
    dms = np.linspace(0, 300, 17)
    theirs = Filterbank.from_array(x, **band)
    given = cupy.asarray(x.T.copy()).T if by_time else cupy.asarray(x)
    ours = Filterbank.from_array(given, **band)
    assert ours.gpu == 0
    for device, options in (("auto", {}), ("cuda", {"downsamp": 3}), ("cuda:0", {}), ("cuda:all", {})):
        found = dedisperse(ours, dms, device=device, **options)
        assert isinstance(found.data, cupy.ndarray)
        assert found.data.device.id == 0
        assert np.array_equal(found.data.get(), dedisperse(theirs, dms, device="cpu", **options).data)
    for clean in (False, True):
        a = search(ours, dms, threshold=5.0, clean=clean)
        b = search(theirs, dms, threshold=5.0, clean=clean, device="cpu")
        assert np.array_equal(a.snr, b.snr)
    assert np.array_equal(ours.block(5, 100), theirs.block(5, 100))
    with pytest.raises(TypeError, match="on a GPU, but the work is to be done on the CPU"):
        dedisperse(ours, dms, device="cpu")
    with pytest.raises(TypeError, match="use device='cuda' or a NumPy array"):
        search(ours, dms, device="cpu")


@pytest.mark.gpu
def test_arrays_of_a_gpu_with_holes_and_masks(tmp_path):
    import cupy

    rng = np.random.default_rng(7)
    for kind in ("u1", "f4"):
        x = samples(kind, (40, 9000), rng)
        if kind == "f4":
            x[rng.random(x.shape) < 0.01] = np.nan
        cells = Mask(rng.random((40, 9)) < 0.2, 1000)
        pair = [Filterbank.from_array(a, fch1=1500, foff=-1, tsamp=1e-3) for a in (cupy.asarray(x), x)]
        ours, theirs = (dedisperse(fb, [0.0, 40.0], mask=cells, memory="900 MiB") for fb in pair)
        assert np.array_equal(ours.data.get(), theirs.data)
        paths = ours.write(tmp_path / kind)
        assert np.array_equal(np.fromfile(paths[1], np.float32), theirs.data[1].astype(np.float32))


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [1, 2, 8, 32])
def test_dropped_data_and_masks_are_filled_as_on_the_cpu(bits):
    """The same stretches and candidates on the CPU, on a GPU, and of samples that lie on one."""
    import cupy

    rng = np.random.default_rng(bits)
    x = rng.normal(size=(64, 12000)).astype(np.float32)
    if bits < 32:
        mean, sigma = {1: (0.5, 0.5), 2: (1.5, 1.0), 8: (96, 16)}[bits]
        x = np.clip(np.rint(x * sigma + mean), 0, 2**bits - 1).astype(np.uint8)
    y = x.copy()
    y[:, 5000:6500] = y[10:40, 8000:9000] = 0
    options = {"fch1": 1500, "foff": -4, "tsamp": 1e-3, "nbits": bits if bits < 8 else None}
    mask = Mask(rng.random((64, 24)) < 0.1, 500)
    for data, cells in ((x, None), (y, None), (y, mask)):
        host, device = (Filterbank.from_array(a, **options) for a in (data, cupy.asarray(data)))
        truth = search(host, np.arange(0, 200, 5.0), threshold=5, mask=cells, device="cpu", clean=False)
        assert (len(truth.dropped) > 0) == (data is y)
        for fb in (host, device):
            found = search(fb, np.arange(0, 200, 5.0), threshold=5, mask=cells, device="cuda", clean=False)
            assert np.array_equal(found.dropped, truth.dropped)
            for name, column in truth.columns().items():
                assert np.array_equal(found.columns()[name], column), name


@pytest.mark.gpu
def test_arrays_of_another_gpu():
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    x = samples("u1", (30, 5000), np.random.default_rng(8))
    with cupy.cuda.Device(1):
        fb = Filterbank.from_array(cupy.asarray(x), fch1=1500, foff=-1, tsamp=1e-3)
    expected = dedisperse(Filterbank.from_array(x, fch1=1500, foff=-1, tsamp=1e-3), [0.0, 9.0, 40.0], device="cpu")
    for device in ("auto", "cuda:1", "cuda:all"):
        found = dedisperse(fb, [0.0, 9.0, 40.0], device=device).data
        assert found.device.id == 1
        assert np.array_equal(found.get(), expected.data)
    with pytest.raises(ValueError, match="x lies on cuda:1"):
        dedisperse(fb, [0.0], device="cuda:0")


@pytest.mark.gpu
@pytest.mark.parametrize("interference", [(), ("zeros", "narrow")])
def test_a_campaign_has_the_pulses_and_candidates_of_the_cpu(interference):
    receiver = Noise(nchan=64, fch1=1500, foff=-4, tsamp=1e-3, duration=20)
    options = {"n": 24, "snr": (7, 9, 30), "dm": (60, 340), "width": (2e-3, 5e-2), "seed": 4}
    on_gpu, on_cpu = (
        completeness(receiver, np.arange(0, 400, 4.0), interference=interference, device=device, **options)
        for device in ("cuda", "cpu")
    )
    assert on_gpu.trials.tobytes() == on_cpu.trials.tobytes()
    assert on_gpu.false.tobytes() == on_cpu.false.tobytes()
    assert on_gpu.hours == on_cpu.hours


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["u1", "f4"])
def test_dropped_data_that_lie_on_a_gpu_are_found(kind):
    import cupy

    x = fake(nchan=64, duration=20, tsamp=1e-3, fch1=1500, foff=-4, dm=200, times=[10.5], snr=30, seed=1).read().copy()
    x[:, 4000:4400] = 0
    x[7, 9000:9800] = 96
    x = x.astype(kind)
    band = {"fch1": 1500, "foff": -4, "tsamp": 1e-3}
    on_gpu = search(Filterbank.from_array(cupy.asarray(x), **band), np.arange(100, 300, 4.0))
    on_cpu = search(Filterbank.from_array(x, **band), np.arange(100, 300, 4.0), device="cpu")
    assert len(on_cpu.dropped) > 1
    assert np.array_equal(on_gpu.dropped, on_cpu.dropped)
    assert np.array_equal(on_gpu.snr, on_cpu.snr)
    assert np.array_equal(on_gpu.time, on_cpu.time)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["u1", "i2", "f4"])
@pytest.mark.parametrize("tsamp", [1e-3, 1.1e-4])
def test_equal_neighbours_that_lie_on_a_gpu_are_counted_as_on_the_host(kind, tsamp, monkeypatch):
    import cupy

    x = np.random.default_rng(3).integers(20, 26, (33, 12_001)).astype(kind)
    x[1] = 21
    x[2, 3000:9500] = x[3, 11_000:] = x[4, :700] = 23
    if kind == "f4":
        x[5, 2000:3000] = 0
        x[5, 2000:3000:2] *= -1
        x[6, 100:4000] = np.nan
    band = {"freqs": np.random.default_rng(1).permutation(np.linspace(1200, 1500, 33)), "tsamp": tsamp}
    for nsamp, most in ((12_001, 2**26), (12_001, 3000 * 33 * x.itemsize), (2, 2**26), (1, 2**26)):
        monkeypatch.setattr(resident, "BYTES", most)
        on_host = Watch(Filterbank.from_array(x[:, :nsamp], **band), 1)
        on_host.quiet = True
        on_host.see(0, x[:, :nsamp].T)
        for held in (cupy.asarray(x), cupy.asfortranarray(cupy.asarray(x))):
            fb = Filterbank.from_array(held[:, :nsamp], **band)
            on_gpu = Watch(fb, 1)
            on_gpu.quiet = True
            resident.watch_resident(on_gpu, fb)
            assert (on_gpu.at, on_gpu.probes) == (nsamp, on_host.probes)
            many = (np.concatenate([np.empty(0, np.int32), *w._many]) for w in (on_gpu, on_host))
            assert np.array_equal(*many)
            for name in ("_run", "_longest", "_equal"):
                assert np.array_equal(getattr(on_gpu, name), getattr(on_host, name)), name
        on_host.close()


@pytest.mark.gpu
def test_z_dot_gives_the_candidates_of_the_cpu():
    x = (
        fake(nchan=64, duration=20, tsamp=1e-3, fch1=1500, foff=-4, dm=200, times=[10.5], snr=30, seed=1)
        .read()
        .astype(int)
    )
    x[:, 4000:4040] += np.linspace(0, 90, 64).astype(int)[:, None]
    fb = z_dot(Filterbank.from_array(x.clip(0, 255).astype(np.uint8), fch1=1500, foff=-4, tsamp=1e-3))
    on_gpu, on_cpu = (search(fb, np.arange(0, 300, 4.0), device=device) for device in ("cuda", "cpu"))
    assert len(on_cpu)
    for name in ("snr", "dm", "time", "width"):
        assert np.array_equal(getattr(on_gpu, name), getattr(on_cpu, name))


@pytest.mark.gpu
@pytest.mark.parametrize("by_time", [False, True])
def test_blocks_along_a_pulse_of_samples_on_a_gpu(by_time):
    import cupy

    x = samples("u1", (40, 3000), np.random.default_rng(9))
    freqs = np.random.default_rng(1).permutation(np.linspace(1200, 1500, 40))
    held = cupy.asfortranarray(cupy.asarray(x)) if by_time else cupy.asarray(x)
    first = np.random.default_rng(2).integers(0, 2000, 40)
    on_gpu, on_cpu = (Filterbank.from_array(y, freqs=freqs, tsamp=1e-3).shifted(first, 900) for y in (held, x))
    assert np.array_equal(on_gpu, on_cpu)
    with pytest.raises(ValueError, match="expected samples within 0 to 3000"):
        Filterbank.from_array(held, freqs=freqs, tsamp=1e-3).shifted(first, 2500)
