"""De-dispersion's CUDA code on the host shim and on a GPU: results are those of the CPU's engine, bit for bit."""

from __future__ import annotations

import dataclasses
import logging

import numpy as np
import pytest

from skysieve.core.errors import MemoryBudgetError
from skysieve.dedispersion import DedispersionPlan, Filterbank, Mask, SearchPlan, api, fake, plan
from skysieve.dedispersion.clean.dropouts import Watch
from skysieve.dedispersion.clean.masks import Cleaned
from skysieve.dedispersion.contract import Detection, Packed, Table
from skysieve.dedispersion.cpu import engine as cpu
from skysieve.dedispersion.cuda import detect as cuda_search
from skysieve.dedispersion.cuda import engine as cuda
from skysieve.dedispersion.cuda import rows as cuda_rows
from skysieve.dedispersion.cuda import tensor_plan as cuda_plan
from skysieve.dedispersion.cuda import worker as cuda_worker
from skysieve.dedispersion.data.delays import sample_delays
from skysieve.dedispersion.data.sigproc import pack
from skysieve.dedispersion.dispatch import Target, engine_that_fits
from skysieve.dedispersion.single_pulse import search as single_pulses
from skysieve.dedispersion.single_pulse.search import WIDTHS
from tests.dedispersion.test_formats import fil, psrfits
from tests.kernels.devices import another, on_gpu, one_order
from tests.kernels.shim import shim_runtime
from tests.marks import slow
from tests.truth import dedispersion as reference

TURING = (7, 5)


def bank(kind, C, n, seed=1, freqs=(400.0, 300.0), full=False, order=None):
    rng = np.random.default_rng(seed)
    if kind == "f4":
        x = rng.normal(size=(C, n)).astype(np.float32)
    else:
        info = np.iinfo(kind)
        x = np.full((C, n), info.max, kind) if full else rng.integers(info.min, info.max, (C, n), kind, endpoint=True)
    f = np.linspace(*freqs, C) if order is None else np.linspace(*freqs, C)[order]
    return Filterbank.from_array(x, freqs=f, tsamp=1e-3)


def both(runtimes, fb, tables, pieces, mask=None, method="brute"):
    """Sums of every table by the GPU's engine and by the CPU's, over pieces (first, stop) of samples."""
    source = Cleaned(fb, mask, 128)
    capacity = max(stop - first for first, stop in pieces)
    ours = cuda.Engine(source, tables, method=method, capacity=capacity, runtimes=runtimes)
    theirs = cpu.Engine(source, tables, method=method, capacity=capacity, threads=1)
    found = []
    try:
        for first, stop in pieces:
            for engine in (ours, theirs):
                engine.load(first, stop)
            for i, t in enumerate(tables):
                b = t.downsamp
                low = -(-first // b)
                count = stop // b - low - t.maxshift
                if count < 1:
                    continue
                outs = [np.full((len(t.delays), count + 5), 7, engine.dtype) for engine in (ours, theirs)]
                for engine, out in zip((ours, theirs), outs, strict=True):
                    engine.sums(i, low, count, out, 3)
                assert np.array_equal(*outs)
                found.append((i, low, outs[0][:, 3 : 3 + count]))
        return found, ours.describe()
    finally:
        ours.close()
        theirs.close()


def all_sums(engine, t, n):
    """The series of the only table of an engine, from all ``n`` samples."""
    engine.load(0, n)
    out = np.empty((len(t.delays), n - t.maxshift), engine.dtype)
    engine.sums(0, 0, out.shape[1], out)
    engine.close()
    return out


def table(fb, dms, downsamp=1):
    return Table(sample_delays(fb.freqs, np.asarray(dms, float), fb.tsamp * downsamp), downsamp)


@pytest.mark.few
@pytest.mark.parametrize("kind", ["u1", "i1", "u2", slow("i2"), "f4"])
def test_every_type_in_chunks(runtime, kind):
    fb = bank(kind, 9, 420)
    tables = [table(fb, np.linspace(0, 2, 5)), table(fb, [1.0, 3.0], 3)]
    found, _ = both([runtime], fb, tables, [(0, 300), (150, 420), (401, 420)])
    for i, low, sums in found:
        truth = reference.sums(fb.read(), tables[i].delays, tables[i].downsamp)
        if kind != "f4":
            assert np.array_equal(sums, truth[:, low : low + sums.shape[1]])


@pytest.mark.parametrize(("channels", "ndm", "most"), [(5, 1, 40), (16, 33, 256), (37, 70, 257), (18, 40, 400)])
def test_floats_are_added_in_one_order(runtime, channels, ndm, most):
    """Groups of channels that are not full, and delays of a block that fit its shared memory, just fit, and do not."""
    fb, rng = bank("f4", channels, 1100), np.random.default_rng(channels)
    delays = rng.integers(0, most, (ndm, channels)).astype(np.int32)
    delays[0], delays[-1, ::3] = 0, most
    both([runtime], fb, [Table(delays, 1)], [(0, 1100), (300, 1001)])


@one_order
@pytest.mark.parametrize("sm", [None, TURING])
def test_cards_with_and_without_tensor_cores(runtime, sm):
    """Fine and coarse steps; a GPU takes large tables."""
    if sm is not None:
        runtime.device = dataclasses.replace(runtime.device, compute_capability=sm)
    fb = bank("u1", 30, 700)
    cases = [(fb, table(fb, np.linspace(0, 3, 37)))]
    if on_gpu(runtime):
        cases += [large(*case) for case in LARGE]
    for fb, t in cases:
        _, facts = both([runtime], fb, [t], [(0, fb.nsamp)])
        assert facts["kernels"] == ["packed" if runtime.device.compute_capability == TURING else "tensor"]


LARGE = (
    (512, 300, 308.0, 16.0, 165e-6, 9.0),
    (600, 200, 1581.0, 400.0, 64e-6, 40.0),
    (700, 90, 1712.0, 856.0, 64e-6, 60.0),
)
"""Channels, DMs, highest frequency and bandwidth (MHz), sampling time, highest DM."""


def large(C, ndm, top, width, tsamp, dm):
    x = np.random.default_rng(2).integers(0, 256, (C, 12_000), np.uint8)
    fb = Filterbank.from_array(x, fch1=top, foff=-width / C, tsamp=tsamp)
    return fb, Table(sample_delays(fb.freqs, np.arange(ndm) * (dm / ndm), tsamp))


@pytest.mark.few
@one_order
@pytest.mark.parametrize("sm", [None, TURING])
def test_the_largest_values_of_many_channels(runtime, sm):
    if sm is not None:
        runtime.device = dataclasses.replace(runtime.device, compute_capability=sm)
    fb = bank("u1", 600, 64, full=True)
    found, _ = both([runtime], fb, [table(fb, [0.0, 0.01], 2)], [(0, 64)])
    assert (found[0][2] == 600 * 255 * 2).all()
    cases = [("u1", 4096, 1), ("u1", 5000, 16), ("u1", 700, 128), ("u2", 4096, 1), ("i2", 600, 1)]
    for kind, C, b in cases if on_gpu(runtime) else ():
        fb = bank(kind, C, 40 * b, full=True, freqs=(1500.0, 1500 - 0.05 * C))
        both([runtime], fb, [table(fb, np.linspace(0, 5, 3), b)], [(0, 40 * b)])


@pytest.mark.slow
def test_coarse_steps_are_cut_in_groups(runtime, monkeypatch):
    monkeypatch.setattr(cuda_plan, "PER_GROUP", 0.0)  # worth it from hundreds of channels on
    monkeypatch.setattr(cuda_plan, "PER_BLOCK", 1000.0)
    fb = bank("u1", 24, 1400)
    t = table(fb, np.linspace(0, 12, 16))
    plan = cuda_plan.make_plan(runtime, t.delays, runtime.xp.asarray(t.delays))
    assert plan.cut.build == "groups"
    assert len(plan.cut.origins) > 1
    both([runtime], fb, [t], [(0, 1400), (16, 1300)])


@pytest.mark.parametrize("order", [None, [3, 0, 2, 5, 1, 4, 6, 7]])
def test_channels_in_any_order_and_uneven(runtime, order):
    rng = np.random.default_rng(3)
    x = rng.integers(0, 256, (8, 300), np.uint8)
    freqs = np.sort(rng.uniform(300, 400, 8))
    fb = Filterbank.from_array(x, freqs=freqs if order is None else freqs[order], tsamp=1e-3)
    both([runtime], fb, [table(fb, [0, 0.3, 2.0, 0.1, 1.7])], [(0, 300)])


@one_order
def test_delays_that_spread_far_are_read_through_the_caches(runtime):
    far, n = (390_000, 400_000) if on_gpu(runtime) else (60_000, 60_040)
    if not on_gpu(runtime):
        runtime.device = dataclasses.replace(runtime.device, shared_per_block=96 * 1024)
    delays = np.zeros((3, 2), np.int32)
    delays[1, 1], delays[2, 1] = far, 7
    fb = bank("u1", 2, n)
    _, facts = both([runtime], fb, [Table(delays)], [(0, n)])
    assert facts["kernels"] == ["direct"]


@one_order
def test_delays_of_an_approximation_need_not_rise(runtime):
    delays = np.random.default_rng(2).integers(0, 60, (11, 10)).astype(np.int32)
    fb = bank("u1", 10, 200)
    both([runtime], fb, [Table(delays)], [(0, 200)])


@pytest.mark.parametrize("kind", ["u1", "f4"])
def test_masked_cells_and_values_that_are_not_finite(runtime, kind):
    C, n, dms = (60, 5000, 20) if on_gpu(runtime) else (12, 300, 3)
    fb, rng = bank(kind, C, n), np.random.default_rng(4)
    if kind == "f4":
        x = fb.read()
        x[rng.random(x.shape) < 0.01] = np.nan
        fb = Filterbank.from_array(x, freqs=fb.freqs, tsamp=1e-3)
    cells = rng.random((C, 4)) < 0.3
    both(
        [runtime], fb, [table(fb, np.linspace(0, 2, dms))], [(0, 2 * n // 3), (n // 3, n)], mask=Mask(cells, -(-n // 4))
    )


@one_order
@pytest.mark.parametrize(("bits", "high_first", "down"), [(1, False, False), (2, True, True), (4, False, True)])
def test_narrow_samples_are_unpacked_on_the_device(runtime, bits, high_first, down):
    rng = np.random.default_rng(7)
    C, n, per = 40, 150, 8 // bits
    values = rng.integers(0, 1 << bits, (n, C), np.uint8)
    cells = values.reshape(n, C // per, per)
    shifts = bits * np.arange(per)[:: -1 if high_first else 1]
    data = (cells << shifts).sum(axis=2).astype(np.uint8)
    rows = values[:, :: -1 if down else 1].T

    class FewBits:
        dtype, maximum, nsamp, nchan = np.dtype(np.uint8), (1 << bits) - 1, n, C

        def packed(self, start, count, room):
            yield Packed(data[start : start + count], down, bits, high_first)

        def fills(self, start, count):
            return iter(())

    t = Table(np.minimum(np.arange(3)[:, None] * np.arange(C) // 8, 9).astype(np.int32))
    engine = cuda.Engine(FewBits(), [t], method="brute", capacity=n, runtimes=[runtime])
    engine.load(0, n)
    out = np.empty((3, n - t.maxshift), np.uint32)
    engine.sums(0, 0, out.shape[1], out)
    engine.close()
    assert np.array_equal(out, reference.sums(rows, t.delays))


@pytest.mark.few
@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i2", "f4"])
@pytest.mark.parametrize("tsamp", [1e-3, 1e-4])
def test_a_device_counts_equal_neighbours_as_the_host_does(runtime, kind, tsamp):
    """Dropped data: in chunks that overlap, with channels in any order, some constant, and runs across chunks."""
    C, n = 5, 12_000
    rng = np.random.default_rng(3)
    x = rng.integers(20, 26, (C, n)).astype(kind)
    x[1] = 21
    x[2, 3000:9500] = x[3, 11_000:] = x[4, :700] = 23
    freqs = [1500.0, 1400.0, 1450.0, 1410.0, 1420.0]
    fb = Filterbank.from_array(x, freqs=freqs, tsamp=tsamp)
    by_device, by_host = (Watch(fb, 1) for _ in range(2))
    by_device.quiet = by_host.quiet = True
    source = Cleaned(fb, None, 128, by_device, lambda runtime, most: None, gpu=True)
    assert source.looks
    engine = cuda.Engine(source, [table(fb, [0.0])], method="brute", capacity=6000, runtimes=[runtime])
    for start, stop in ((0, 4001), (3500, 8006), (8000, n)):
        engine.load(start, stop)
        by_host.see(0, x.T[:stop])
        assert (by_device.at, by_device.probes) == (stop, by_host.probes)
        assert np.array_equal(np.concatenate(by_device._many), np.concatenate(by_host._many))
        for name in ("_run", "_longest", "_equal"):
            assert np.array_equal(getattr(by_device, name), getattr(by_host, name)), name
    engine.close()
    by_host.close()


@one_order
@pytest.mark.parametrize(("nbits", "foff"), [(1, -1.0), (2, 1.0), (4, -1.0)])
def test_a_device_counts_equal_bytes_of_narrow_samples(runtime, tmp_path, nbits, foff):
    C, n = 24, 9000
    x = np.random.default_rng(4).integers(0, 1 << nbits, (n, C), np.uint8)
    x[2000:7000, 8:16] = 1
    path = fil(tmp_path, pack(x, nbits), nbits=nbits, nchans=C, foff=foff, tsamp=3e-4)
    with Filterbank.open(path) as fb:
        by_device, by_host = (Watch(fb, 1) for _ in range(2))
        by_device.quiet = by_host.quiet = True
        source = Cleaned(fb, None, 128, by_device, gpu=True)
        engine = cuda.Engine(source, [table(fb, [0.0])], method="brute", capacity=6000, runtimes=[runtime])
        for start, stop in ((0, 4001), (3500, n)):
            engine.load(start, stop)
            by_host.see(0, next(fb.packed(0, stop)).data)
            assert (by_device.at, by_device.units) == (stop, C * nbits // 8)
            assert np.array_equal(np.concatenate(by_device._many), np.concatenate(by_host._many))
            for name in ("_run", "_longest", "_equal"):
                assert np.array_equal(getattr(by_device, name), getattr(by_host, name)), name
        engine.close()
        by_host.close()


@pytest.mark.parametrize(("nbits", "scaled"), [(8, True), (4, True), (8, False), (4, False)])
def test_psrfits_is_read_into_page_locked_memory(runtime, tmp_path, monkeypatch, nbits, scaled):
    """Scaled samples and plain ones, of which those of 4 bits stay packed; rows lie across the ranges that are read."""
    pytest.importorskip("astropy")
    for module in (cuda_rows, cuda):
        monkeypatch.setattr(module, "READ", 1 << 14)
    rng, n, C = np.random.default_rng(9), 4000, 40
    raw = rng.integers(0, 1 << nbits, (n, 1, C))
    scl = rng.uniform(0.5, 2, (n // 16, C)) if scaled else None
    with Filterbank.open(psrfits(tmp_path / "a.sf", raw, nbits, scl=scl, offs=scl)) as fb:
        t = table(fb, [0.0, 20.0])
        out = all_sums(cuda.Engine(Cleaned(fb, None, 128), [t], method="brute", capacity=n, runtimes=[runtime]), t, n)
        same = Cleaned(Filterbank.from_array(fb.read(), freqs=fb.freqs, tsamp=1e-3), None, 128)
        expected = all_sums(cpu.Engine(same, [t], method="brute", capacity=n, threads=1), t, n)
        assert np.array_equal(out, expected)


@one_order
@pytest.mark.parametrize(("nbits", "nifs"), [(8, 1), (2, 1), (8, 2), (32, 1)])
def test_files_are_read_into_page_locked_memory(runtime, tmp_path, monkeypatch, nbits, nifs):
    """Two files of one observation, in more ranges than there is memory for at a time."""
    monkeypatch.setattr(cuda_rows, "READ", 1 << 15)
    monkeypatch.setattr(cuda, "READ", 1 << 15)
    rng = np.random.default_rng(9)
    n, C = 9000, 40
    kind = np.float32 if nbits == 32 else np.uint8
    x = rng.integers(0, 1 << min(nbits, 8), (n, nifs, C)).astype(kind)
    paths = []
    for i, (a, b) in enumerate(((0, 5001), (5001, n))):
        keys = {"nbits": nbits, "nchans": C, "nifs": nifs, "tstart": 60_000 + a * 1e-3 / 86_400}
        (tmp_path / str(i)).mkdir()
        paths.append(fil(tmp_path / str(i), pack(x[a:b].reshape(b - a, -1), nbits), tsamp=1e-3, **keys))
    with Filterbank.open(paths) as fb:
        t = table(fb, [0.0, 20.0])
        out = all_sums(cuda.Engine(Cleaned(fb, None, 128), [t], method="brute", capacity=n, runtimes=[runtime]), t, n)
        assert np.array_equal(out, reference.sums(fb.read(), t.delays))


@one_order
def test_two_gpus_share_the_dms(runtime):
    fb = bank("u1", 10, 300)
    tables = [table(fb, np.linspace(0, 2, 9)), table(fb, [1.0])]
    _, facts = both([another(runtime), another(runtime)], fb, tables, [(0, 300)])
    assert facts["device"].startswith("2 GPUs")


@pytest.mark.few
@one_order
@pytest.mark.parametrize(
    ("kind", "noise"), [("u1", "robust"), ("f4", "moments"), ("u2", "clipped"), slow("i1", "robust")]
)
@pytest.mark.parametrize("every", [False, True])
def test_events_are_the_cpus(runtime, kind, noise, every):
    rng = np.random.default_rng(5)
    n = 1500
    x = rng.normal(100 if kind[0] == "u" else 0, 12, (6, n))
    for at, width, height in ((200, 1, 60), (330, 9, 40), (900, 30, 25), (n - 8, 4, 50), (5, 3, 60)):
        x[:, at : at + width] += height
    fb = Filterbank.from_array(x.astype({"u1": np.uint8, "i1": np.int8, "f4": np.float32, "u2": np.uint16}[kind]),
                               freqs=np.linspace(400, 300, 6), tsamp=1e-3)  # fmt: skip
    t = table(fb, [0.0, 0.05, 0.2])
    what = Detection(256, (1, 2, 3, 7, 30), 5.0, noise, every, n - t.delays.max(axis=1).astype(np.int64))
    source = Cleaned(fb, None, 256)
    engines = [
        cuda.Engine(source, [t], method="brute", capacity=n, runtimes=[runtime]),
        cpu.Engine(source, [t], method="brute", capacity=n, threads=1),
    ]
    found = []
    for engine in engines:
        engine.load(0, n)
        found.append([
            engine.search(0, 0, min(n, 1024) - t.maxshift, 0, 768, what),
            engine.search(0, 512, n - 512, 768, n, what),
        ])  # fmt: skip
        engine.close()
    for ours, theirs in zip(*found, strict=True):
        assert np.array_equal(ours, theirs)
    assert len(found[0][0]) > 3


@pytest.mark.few
@one_order
@pytest.mark.parametrize(
    ("seed", "widths"),
    [*((i, WIDTHS) for i in range(6)), (6, (1, 5, 300, 2000)), (7, (3,)), (8, (1, 2, 3, 4, 5, 6, 8, 10, 20))],
)
def test_pulses_of_every_width_in_long_series(runtime, seed, widths):
    """Series of several pieces: pulses of all widths and heights around the threshold, anywhere."""
    rng = np.random.default_rng([9, seed])
    n, block = 13_000, 4500 if seed == 6 else 2500
    x = rng.normal(100, 10, (2, n))
    for _ in range(25):
        at, width = int(rng.integers(0, n)), int(rng.choice([1, 2, 3, 5, 8, 9, 12, 17, 40, 90, 200, 300]))
        x[:, at : at + width] += rng.uniform(6.0, 9.0) * 10 / np.sqrt(2 * width)
    if seed == 5:
        x[:, 4000:4100] = 255  # samples that are clipped
    fb = Filterbank.from_array(x.clip(0, 255).astype(np.uint8), freqs=[400.0, 399.0], tsamp=1e-3)
    t = Table(np.array([[0, 0], [0, 3]], np.int32))
    what = Detection(block, widths, 6.0, "robust", False, np.array([n, n - 3]))
    found = []
    for engine in (
        cuda.Engine(Cleaned(fb, None, block), [t], method="brute", capacity=n, runtimes=[runtime]),
        cpu.Engine(Cleaned(fb, None, block), [t], method="brute", capacity=n, threads=1),
    ):
        engine.load(0, n)
        found.append(engine.search(0, 0, n - t.maxshift, 0, n, what))
        engine.close()
    assert np.array_equal(*found)
    assert len(found[0]) > 2


@pytest.mark.few
@one_order
@pytest.mark.parametrize("kind", ["u1", "i1", "f4"])
def test_windows_with_several_peaks_are_divided_as_on_the_cpu(runtime, kind):
    """Pairs and trains of pulses that one window joins: an event each, also at the ends of series."""
    rng = np.random.default_rng(21)
    n, width = 9000, 6
    x = rng.normal(0 if kind == "i1" else 90, 8, (4, n))
    places = [
        0,
        18,
        *(400 + 18 * i for i in range(6)),
        1500,
        1521,
        3000,
        3026,
        5000,
        5014,
        5100,
        7600,
        7660,
        n - 28,
        n - 6,
    ]
    for at in places:
        x[:, at : at + width] += 40 / np.sqrt(width)
    x[:, 4000:4150] += 12  # a wide pulse without peaks
    x[:, 6300:6500] += 8  # a narrow pulse upon a wide one
    x[:, 6400:6404] += 60
    for at, height in ((6900, 60), (6930, 14), (7040, 12), (8300, 60), (8330, 45)):  # weak ones beside a loud one
        x[:, at : at + width] += height
    fb = Filterbank.from_array(np.rint(x).astype({"u1": np.uint8, "i1": np.int8, "f4": np.float32}[kind]),
                               freqs=np.linspace(400, 399, 4), tsamp=1e-3)  # fmt: skip
    t = Table(np.array([[0, 0, 0, 0], [0, 1, 2, 3]], np.int32))
    found = {}
    for dip in (7.0, np.inf):
        what = Detection(2500, WIDTHS, 6.5, "robust", False, n - t.delays.max(axis=1).astype(np.int64), dip=dip)
        parts = []
        for engine in (
            cuda.Engine(Cleaned(fb, None, 2500), [t], method="brute", capacity=n, runtimes=[runtime]),
            cpu.Engine(Cleaned(fb, None, 2500), [t], method="brute", capacity=n, threads=1),
        ):
            engine.load(0, n)
            parts.append(engine.search(0, 0, n - t.maxshift, 0, n, what))
            engine.close()
        assert np.array_equal(*parts)
        found[dip] = parts[0][parts[0][:, 0] == 0]
    centres = found[7.0][:, 1]
    assert all(np.abs(centres - at - width / 2).min() <= 2 for at in places)
    for weak in (6402, 6933, 7043, 8333):
        assert np.abs(centres - weak).min() <= 1
    assert len(centres) <= len(places) + 10
    assert len(found[np.inf]) < len(centres)


@pytest.mark.few
@one_order
@pytest.mark.parametrize(
    ("kind", "noise", "block", "parts", "period"),
    [
        ("u1", "robust", 2560, 64, 3000), ("u1", "robust", 1040, 16, 700), ("i1", "moments", 1100, 32, 2000),
        ("f4", "robust", 1100, 32, 900), ("u2", "clipped", 1040, 16, 1e9), ("u1", "robust", 3300, 256, 20000),
    ],
)  # fmt: skip
def test_baselines_are_the_cpus(runtime, kind, noise, block, parts, period):
    """Levels that drift in some blocks, slowly and fast, with pulses on them; rows that end anywhere in a block."""
    rng = np.random.default_rng(block)
    n = 9 * block // 2 if block < 3000 else 12_000
    x = rng.normal(100 if kind[0] == "u" else 0, 8, (4, n))
    drift = 20 * np.sin(2 * np.pi * np.arange(n) / period)
    x += np.where(np.arange(n) > 1.4 * block, drift, 0)
    for at, width, height in ((200, 1, 40), (block + 50, 9, 20), (3 * block, 60, 9), (n - 30, 4, 30)):
        x[:, at : at + width] += height
    data = np.clip(np.rint(x), *((0, 255) if kind[0] == "u" else (-128, 127)))
    fb = Filterbank.from_array(data.astype({"u1": np.uint8, "i1": np.int8, "f4": np.float32, "u2": np.uint16}[kind]),
                               freqs=[400.0, 399.0, 398.0, 397.0], tsamp=1e-3)  # fmt: skip
    t = Table(np.zeros((4, 4), np.int32))
    valid = np.array([n, n - block // 2 - 7, n - block // 2 + 3, 10])
    what = Detection(block, (1, 2, 3, 4, 5, 6, 8, 10, 50, 256), 6.0, noise, False, valid, parts=parts)
    flat = Detection(block, (1, 2, 3, 4, 5, 6, 8, 10, 50, 256), 6.0, noise, False, valid)
    found = []
    for engine in (
        cuda.Engine(Cleaned(fb, None, block), [t], method="brute", capacity=n, runtimes=[runtime]),
        cpu.Engine(Cleaned(fb, None, block), [t], method="brute", capacity=n, threads=1),
    ):
        engine.load(0, n)
        found.append([engine.search(0, 0, n, 0, n, what), engine.search(0, 0, n, 0, n, flat)])
        engine.close()
    assert np.array_equal(found[0][0], found[1][0])
    assert np.array_equal(found[0][1], found[1][1])
    ours = found[0][0][found[0][0][:, 0] == 0]
    assert set(np.abs(ours[:, 1, None] - [200, block + 54, 3 * block + 30, n - 28]).argmin(axis=1)) == {0, 1, 2, 3}
    if period < 1e6:
        assert not np.array_equal(found[0][0], found[0][1])


def first_look(kind):
    """Series of 5 blocks of 1300 samples whose sums do what ``kind`` says."""
    rng, n = np.random.default_rng(12), 6200
    C = 300 if kind == "wide" else 60
    x = rng.normal(100, 10, (C, n))
    if kind == "pulses":
        x[:, 700:705] += 14
        x[:, 3000:3090] += 3
    elif kind == "edges":
        for at, width in ((1299, 2), (2592, 20), (3750, 300), (5199, 2)):
            x[:, at : at + width] += 20 / np.sqrt(width)
    elif kind == "two levels":
        x[:, rng.random(n) < 0.5] += 150
    elif kind == "wide":
        x[:, rng.random(n) < 0.5] = 255
        x[:, rng.random(n) < 0.3] = 0
    elif kind == "flat":
        x[:] = 17
    elif kind == "dropped":
        x[:, 2000:2040] = 0
    return np.rint(x.clip(0, 255)).astype(np.uint8)


@pytest.mark.few
@one_order
@pytest.mark.parametrize(
    ("kind", "least", "most", "threads"),
    [("noise", 0, 0, 256), ("pulses", 2, 3, 256), ("edges", 4, 6, 256), ("two levels", 5, 9, 256), ("wide", 9, 9, 256),
     ("flat", 0, 0, 256), ("dropped", 0, 0, 256), ("pulses", 2, 3, 512), ("wide", 9, 9, 512)],
)  # fmt: skip
def test_a_first_look_chooses_the_pieces(runtime, kind, least, most, threads, monkeypatch):
    """The pieces are none, those of noise, or all that cannot be judged; the events are always those of the CPU."""
    if threads == 512:
        monkeypatch.setattr(cuda_search, "LONG", 0)
    x = first_look(kind)
    C, n = x.shape
    fb = Filterbank.from_array(x, freqs=np.linspace(400, 300, C), tsamp=1e-3)
    t = Table(np.zeros((1, C), np.int32))
    what = Detection(1300, WIDTHS, 6.5, "robust", False, np.array([n]))
    found = []
    for engine in (
        cuda.Engine(Cleaned(fb, None, 1300), [t], method="brute", capacity=n, runtimes=[runtime]),
        cpu.Engine(Cleaned(fb, None, 1300), [t], method="brute", capacity=n, threads=1),
    ):
        engine.load(0, n)
        found.append(engine.search(0, 0, n, 0, n, what))
        if len(found) == 1:
            listed = int(engine.workers[0].lanes[0].array("number", 2, np.uint32)[1])
            [glance] = [launch for launch in engine.runtimes[0].launches if launch[0] == "glance"]
            assert glance[2][0] == threads
        engine.close()
    assert np.array_equal(*found)
    assert least <= listed <= most
    assert (len(found[0]) > 0) == (kind in ("pulses", "edges", "two levels"))


@one_order
def test_more_events_than_there_is_room_for(runtime, monkeypatch):
    monkeypatch.setattr(cuda_search, "ROOM", 4)
    fb = bank("u1", 3, 400)
    t = table(fb, [0.0, 0.1])
    what = Detection(200, (1, 2), 0.5, "robust", True, np.array([400, 399]))
    found = []
    for make in (
        lambda s: cuda.Engine(s, [t], method="brute", capacity=400, runtimes=[runtime]),
        lambda s: cpu.Engine(s, [t], method="brute", capacity=400, threads=1),
    ):
        engine = make(Cleaned(fb, None, 200))
        engine.load(0, 400)
        found.append(engine.search(0, 0, 400 - t.maxshift, 0, 400, what))
        engine.close()
    assert np.array_equal(*found)
    assert len(found[0]) > 8


@one_order
def test_both_lanes_search(runtime, monkeypatch):
    monkeypatch.setattr(cuda_worker, "LEAST_SHARED", 1)
    fb = bank("u1", 5, 600)
    t = table(fb, np.linspace(0, 0.3, 150))
    what = Detection(200, (1, 2, 5), 2.5, "robust", False, 600 - t.delays.max(axis=1).astype(np.int64))
    found = []
    for engine in (
        cuda.Engine(Cleaned(fb, None, 200), [t], method="brute", capacity=600, runtimes=[runtime]),
        cpu.Engine(Cleaned(fb, None, 200), [t], method="brute", capacity=600, threads=1),
    ):
        engine.load(0, 600)
        found.append(engine.search(0, 0, 600 - t.maxshift, 0, 600, what))
        engine.close()
    assert np.array_equal(*found)
    assert len(np.unique(found[0][:, 0])) > 100
    assert sum(launch[0] == "detect" for launch in runtime.launches) >= 2


@one_order
def test_too_little_memory_is_an_error(runtime):
    fb = bank("u1", 8, 300)
    t = table(fb, [0.0, 1.0])
    source = Cleaned(fb, None, 128)
    need = cuda_worker.bytes_needed(source, [t], 300)
    with pytest.raises(MemoryBudgetError, match="300 samples of 8 channels"):
        cuda.Engine(source, [t], method="brute", capacity=300, runtimes=[runtime], budget=need - 1)
    engine = cuda.Engine(source, [t], method="brute", capacity=300, runtimes=[runtime], budget=2**40)
    with pytest.raises(ValueError, match="more than the capacity of 300"):
        engine.load(0, 301)
    engine.close()


@pytest.mark.slow
def test_a_cut_fits_shared_memory_and_covers_every_channel():
    for C, ndm, top in ((4096, 600, 4000.0), (1024, 500, 60.0), (100, 30, 1e5), (3, 9, 10.0)):
        f = np.linspace(1700, 900, C)
        delays = sample_delays(f, np.linspace(0, top, ndm), 1e-4)
        spread = np.stack([
            np.max([np.ptp(delays[m : m + 8 * wd], axis=0) for m in range(0, ndm, 8 * wd)], axis=0)
            for wd in (1, 2, 4, 8)
        ])  # fmt: skip
        groups = cuda_plan.groupings(delays)
        for shared in (227 * 1024, 99 * 1024):
            found = list(cuda_plan.cuts(groups, ndm, spread.astype(np.int32), shared))
            cut = found[0] if found else None
            if cut is None:
                assert 4096 + spread[0].max() > shared // 2 - 200
                continue
            assert np.array_equal(np.concatenate([np.arange(a, a + n) for a, n, *_ in cut.chunks]), np.arange(C))
            assert cut.chunks["count"].max() <= cuda_plan.MOST_CHANNELS
            assert cut.cost <= min(other.cost for other in found)
            assert cut.build == cuda_plan.likely_build(groups, C)  # which is compiled ahead
            assert (8 * cut.chunks["count"] * cut.chunks["pitch"]).max() <= shared


def test_a_chunk_that_does_not_fit_is_halved(caplog):
    target = Target((shim_runtime().device,), 2**40)
    tried = []

    def make(step):
        tried.append(step)
        if step > 300:
            raise MemoryBudgetError(f"{step} samples", 2, 1)
        return "engine"

    with caplog.at_level(logging.WARNING, "skysieve"):
        assert engine_that_fits(make, 2000, 100, 8, target) == ("engine", 248)
    assert tried == [2000, 1000, 496, 248]
    assert "using chunks of 496 samples" in caplog.text
    with pytest.raises(MemoryBudgetError, match="400 samples"):
        engine_that_fits(make, 2000, 400, 8, target)


@pytest.mark.parametrize("start", [500, 1000])
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_samples_that_were_read_in_part_are_read_again(kind, start):
    """The second load fails after it has moved samples of the first; the third must not use them."""
    fb = bank("u1", 4, 4000)
    source, t = Cleaned(fb, None, 64), table(fb, [0.0, 1.0])
    options = {"method": "brute", "capacity": 3000}
    engine = (
        cpu.Engine(source, [t], threads=1, **options)
        if kind == "cpu"
        else cuda.Engine(source, [t], runtimes=[shim_runtime()], **options)
    )
    engine.load(0, 2000)
    raw = source.raw

    def fail(start, count, room=None):
        raise OSError("cut off")
        yield

    source.raw = fail
    with pytest.raises(OSError, match="cut off"):
        engine.load(1000, 3000)
    source.raw = raw
    engine.load(start, start + 2000)
    for first in (start + 32, start + 1504):
        out = np.zeros((2, 100), np.uint32)
        engine.sums(0, first, 100, out)
        assert np.array_equal(out[0], fb.block(first, 100).sum(axis=0))
    engine.close()


@pytest.mark.parametrize("kind", ["u1", "f4"])
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_an_engine_that_reads_another_source_keeps_no_sample_of_the_first(backend, kind):
    first, second = (bank(kind, 4, 3000, seed=seed) for seed in (1, 2))
    t, options = table(first, [0.0, 1.0]), {"method": "brute", "capacity": 2000}
    source = Cleaned(first, None, 64)
    engine = (
        cpu.Engine(source, [t], threads=1, **options)
        if backend == "cpu"
        else cuda.Engine(source, [t], runtimes=[shim_runtime()], **options)
    )
    engine.load(0, 2000)
    engine.rebind(Cleaned(second, None, 64))
    engine.load(500, 2500)  # samples 500 to 2000 are loaded of the first source
    out = np.zeros((2, 900), engine.dtype)
    engine.sums(0, 512, 900, out)
    np.testing.assert_allclose(out[0], second.block(512, 900).sum(axis=0, dtype=np.float64), rtol=1e-5, atol=1e-5)
    engine.close()


def test_kept_plans_give_the_cpus_bits_and_keys(monkeypatch):
    """Data with dropped samples, which are read twice, and data of another length, through the same engine."""
    kind = {"nchan": 8, "tsamp": 1e-3, "fch1": 1500, "foff": -16, "dm": 60, "width": 8e-3, "snr": 30}
    x = fake(duration=2, times=[0.6], seed=1, **kind)
    dropped = x.read().copy()
    dropped[:, 1500:1560] = 7
    nights = [x, Filterbank.from_array(dropped, freqs=x.freqs, tsamp=1e-3), fake(duration=3, times=[2], seed=2, **kind)]
    grid = plan(x, stages=[(0, 60, 20, 1), (60, 120, 30, 2)])
    options = {"widths": [1, 4, 8], "block": 2.048, "threshold": 5.0}
    with SearchPlan(x, grid, device="cpu", **options) as theirs, DedispersionPlan(x, grid, device="cpu") as sums:
        expected = [(theirs.execute(night), sums.execute(night)) for night in nights]
        keys = set(theirs.describe()), set(sums.describe())

    def engine(source, tables, *, method, capacity, **_):
        return cuda.Engine(source, tables, method=method, capacity=capacity, runtimes=[shim_runtime()])

    for module in (api, single_pulses):
        monkeypatch.setattr(module, "make_engine", engine)
    with SearchPlan(x, grid, device="cpu", **options) as ours, DedispersionPlan(x, grid, device="cpu") as sums:
        assert (set(ours.describe()), set(sums.describe())) == keys
        for night, (candidates, series) in zip(nights, expected, strict=True):
            found = ours.execute(night)
            assert len(candidates.events) > 0
            for name in candidates.events.__dataclass_fields__:
                assert np.array_equal(getattr(found.events, name), getattr(candidates.events, name)), name
            for a, b in zip(sums.execute(night), series, strict=True):
                assert np.array_equal(a.data, b.data)


def test_memory_is_given_back_where_a_gpu_has_too_little(monkeypatch):
    runtime = shim_runtime()
    lanes = []

    def refuse(self, *args):
        lanes.extend(self.lanes)
        raise MemoryBudgetError("rows", 2, 1)

    monkeypatch.setattr(cuda_rows.Store, "_allocate", refuse)
    fb = bank("u1", 4, 100)
    with pytest.raises(MemoryBudgetError):
        cuda.Engine(Cleaned(fb, None, 64), [table(fb, [0.0])], method="brute", capacity=100, runtimes=[runtime])
    assert lanes
    assert not any(lane._device for lane in lanes)
