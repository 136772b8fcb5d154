"""The cleaning of samples on the host shim and on a GPU: bit for bit the results of `clean.blocks.cleaner.Cleaner`."""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.dedispersion.clean.blocks.cleaner import Cleaner
from skysieve.dedispersion.clean.blocks.reader import CleanReader
from skysieve.dedispersion.clean.blocks.steps import cleaning_steps
from skysieve.dedispersion.clean.cuda import launch
from skysieve.dedispersion.clean.cuda.launch import DeviceCleaner, PlaneRows, TimeRows
from skysieve.dedispersion.clean.masks import Cleaned
from skysieve.dedispersion.contract import Table
from skysieve.dedispersion.cpu import engine as cpu
from skysieve.dedispersion.cuda import engine as cuda
from skysieve.dedispersion.cuda.rows import Planes
from skysieve.dedispersion.data.filterbank import Filterbank
from skysieve.dedispersion.data.observation import DM_CONSTANT
from skysieve.dedispersion.data.simulate import fake
from skysieve.dedispersion.injections.interference import interference
from tests.kernels.devices import one_order
from tests.marks import slow

KINDS = {"u1": np.uint8, "i1": np.int8, "u2": np.uint16, "i2": np.int16, "f4": np.float32}


def recording(kinds, kind="u1", seconds=3.0, nchan=40, seed=1, snr=30.0, tsamp=1e-3):
    """Noise with a pulse and interference, samples x channels."""
    band = {"nchan": nchan, "tsamp": tsamp, "fch1": 1500.0, "foff": -256 / nchan}
    x = fake(duration=seconds, times=[seconds / 2], dm=100, width=6e-3, snr=snr, seed=seed, **band).read().T.copy()
    interference(x, kinds, tsamp=tsamp, level=96, sigma=16, seed=seed)
    if kind == "f4":
        return x.astype(np.float32) * np.float32(0.37)
    shift = {"i1": -100, "i2": -20_000}.get(kind, 0)
    return (x.astype(np.int32).clip(0, 200) * (40 if kind[1] == "2" else 1) + shift).astype(KINDS[kind])


def on_device(runtime, x):
    """The samples in rows on the device."""
    n, C = x.shape
    planes = 0 if x.dtype.kind == "f" else x.dtype.itemsize
    stride = -(-(256 + 12 + n + 2048) // 128) * 128
    data = runtime.xp.zeros(C * stride * max(1, planes), np.uint8 if planes else np.float32)
    rows = PlaneRows(Planes(data, stride, C * stride, planes), x.dtype, C)
    rows.set(0, x)
    assert (rows.get(0, n) == x).all()
    return rows


def compare(
    runtime, x, steps=True, tsamp=1e-3, ignore=(), begin=0, cuts=(), batch=None, monkeypatch=None, by_time=False,
    threads=1,
):  # fmt: skip
    """Clean on the device, with samples known up to each of ``cuts`` in turn, and on the CPU: results must be equal.

    Returns what was removed, and the cleaned samples.
    """
    fb = Filterbank.from_array(x.T, fch1=1500.0, foff=-256 / x.shape[1], tsamp=tsamp)
    given = fb.observation, fb.dtype, fb.maximum, cleaning_steps(steps), ignore, DM_CONSTANT
    theirs = Cleaner(*given)
    expected = CleanReader(fb, theirs, begin).read(0, fb.nsamp)
    rows = TimeRows(runtime.xp.array(x)) if by_time else on_device(runtime, x)
    runtime.synchronize()
    if batch is not None:
        monkeypatch.setattr(launch, "MOST_BLOCKS", batch)
    ours = DeviceCleaner(runtime, fb.nsamp, Cleaner(*given), begin, threads)
    for stop in cuts:  # as in a stream, whose end is not known
        ours.clean_rows(rows, 0, stop, 2**60)
    ours.clean_rows(rows, 0, fb.nsamp, fb.nsamp)
    found = rows.get(0, fb.nsamp)
    a, b = ours.records.removed(), theirs.records.removed()
    assert ours.records.jumps == theirs.records.jumps
    assert np.array_equal(a.windows, b.windows)
    assert np.array_equal(a.cells, b.cells)
    assert a.parts == b.parts
    assert a.hum == b.hum
    assert np.array_equal(found, expected)
    assert np.array_equal(ours.records.replaced(0, fb.nsamp), theirs.records.replaced(0, fb.nsamp))
    assert np.array_equal(ours.regained(0, x), theirs.regained(0, x))
    ours.close()
    return a, expected


@pytest.mark.few
@pytest.mark.parametrize("kinds", ["bad", ("narrow", "radar"), "impulses"], ids=str)
def test_interference_is_removed_with_the_bits_of_the_cpu(runtime, kinds):
    removed, _ = compare(runtime, recording(kinds))
    assert sum(removed.parts.values()) > 0


@pytest.mark.slow
@one_order
def test_hum_stays(runtime):
    """In the first and the last blocks only, so that impulses beside them are removed."""
    x = np.random.default_rng(8).normal(96, 16, (512 * 8, 40))
    t = np.arange(len(x))
    x += np.where((t < 512 * 3) | (t >= 512 * 6), 32 * np.sin(2 * np.pi * t / 20), 0)[:, None]
    x[512 * 4 + 100 : 512 * 4 + 104] += 60
    removed, _ = compare(runtime, np.rint(x).clip(0, 255).astype(np.uint8), threads=3)
    assert removed.hum >= 5
    assert len(removed.windows) == 1


@pytest.mark.slow
@one_order
def test_blocks_that_several_threads_examine(runtime):
    """Single blocks with impulses, and successive ones, of which each needs what is left of the one before."""
    x = np.random.default_rng(8).normal(96, 16, (512 * 14, 40)).astype(np.uint8)
    for block in (1, 3, 4, 5, 8, 10, 11, 13):
        for at in (40, 250, 500):  # the last one reaches into the next block
            x[512 * block + at : 512 * block + at + 20] += 30
    removed, _ = compare(runtime, x, threads=3)
    assert len(removed.windows) >= 24


@pytest.mark.few
@pytest.mark.parametrize("dm", [10, 150])
def test_cells_on_the_track_of_a_bright_pulse_stay(runtime, dm):
    """Beside narrow-band signals, in the middle of a block and across the end of one."""
    band = {"nchan": 64, "tsamp": 1e-3, "fch1": 1500.0, "foff": -4.0}
    x = fake(duration=3.0, times=[0.7, 2.0], dm=dm, width=3e-3, snr=300.0, seed=2, **band).read().T.copy()
    before = x.copy()
    x[520:570, 9:11] = 160
    x[2300:2310, 40:43] = 200
    removed, out = compare(runtime, x, steps=["cells"])
    assert 0 < removed.parts["cells"] < 0.02
    untouched = np.r_[0:8, 12:39, 44:64]
    assert (out[:, untouched] == before[:, untouched]).all()


@pytest.mark.slow
@one_order
@pytest.mark.parametrize("kind", ["u1", slow("i1"), "u2", slow("i2"), "f4"])
def test_every_type_of_samples(runtime, kind):
    removed, _ = compare(runtime, recording("all", kind, 3.0, 64, snr=20))
    assert sum(removed.parts.values()) > 0


@pytest.mark.slow
@one_order
def test_narrow_band_signals_and_impulses_in_any_batches(runtime, monkeypatch):
    """Signals that come and go, a noisy channel, broadband impulses; blocks become known one by one."""
    rng = np.random.default_rng(3)
    x = rng.normal(96, 12, (4096, 48))
    x[700:760, 9] += 60
    x[1500:1600, 20:22] += 50
    x[:, 33] = rng.normal(96, 40, len(x))
    for at in (900, 1530, 1535, 2590, 3000):
        x[at : at + 4] += 25
    x = np.rint(x.clip(0, 255)).astype(np.uint8)
    removed, _ = compare(runtime, x)
    assert min(removed.parts[name] for name in ("channels", "impulses")) > 0
    assert len(removed.windows) >= 4
    for cuts in ((700, 1500, 1501, 3500), range(100, 4096, 777)):
        compare(runtime, x, cuts=cuts, batch=2, monkeypatch=monkeypatch)
    compare(runtime, x, cuts=range(100, 4096, 777), by_time=True)
    compare(runtime, x[:3900], begin=300, ignore=(5, 33))
    removed, _ = compare(runtime, x, steps=["cells", "impulses"])
    assert min(removed.parts.values()) > 0
    removed, _ = compare(runtime, x[:, :31], steps=["channels", "impulses"])
    assert removed.steps == ("channels",)


@pytest.mark.slow
@one_order
@pytest.mark.parametrize(
    ("kind", "sigma", "unit"),
    [("u1", 16, 1), ("u1", 3, 1), slow("i1", 3, 1), ("u2", 16, 1), ("f4", 16, 1), slow("f4", 16, 2.0**-60)],
)
def test_steps_of_the_gain_are_undone(runtime, kind, sigma, unit):
    """Up and not quite down again, with channels of few levels, which are rounded at random; an impulse after it."""
    x = np.random.default_rng(0).normal(96, sigma, (7000, 40))
    x[2000:4000] *= 1.1
    x[4000:] *= 1.03
    x[5000:5004] += 4 * sigma
    x -= 100 if kind == "i1" else 0
    x = (unit * x).astype(KINDS[kind]) if kind == "f4" else np.rint(x).clip(-128, 255).astype(KINDS[kind])
    removed, out = compare(runtime, x)
    assert len(removed.windows) > 0
    assert abs(out[2100:3900].mean() - out[:1900].mean()) < unit
    assert len({name for name, *_ in runtime.launches} & {"regain", "cut"}) == 2


@pytest.mark.slow
@one_order
def test_a_step_of_a_quarter_of_the_band_on_a_drift_is_undone(runtime):
    """The CPU finds it against the rest of the band; the GPU has to flag its block."""
    x = np.random.default_rng(0).normal(96, 16, (4100, 64))
    x += 64 * np.sin(2 * np.pi * np.arange(4100) / 1700)[:, None]
    x[1021:, :16] *= 1.2
    compare(runtime, np.rint(x).clip(0, 255).astype(np.uint8))


@pytest.mark.few
def test_data_that_begin_late_die_and_end_early(runtime):
    """Zeros from the beginning, all channels silent for some blocks, one channel silent; a last block of few pieces."""
    rng = np.random.default_rng(4)
    x = np.rint(rng.normal(96, 16, (2300, 24))).astype(np.uint8)
    x[:600, :5] = 0
    x[:40, 5] = 0
    x[1000:1700] = 77
    x[:, 11] = 96
    x[300:2000, 12] = 40
    compare(runtime, x)


@pytest.mark.slow
@one_order
@pytest.mark.parametrize("kind", ["u1", slow("f4")])
def test_an_engine_cleans_what_it_loads_in_chunks(runtime, kind):
    """Chunks overlap, and end within blocks; the last ones load nothing new."""
    x = recording("all", kind, 4.0, 40)
    fb = Filterbank.from_array(x.T, fch1=1500.0, foff=-6.4, tsamp=1e-3)
    given = fb.observation, fb.dtype, fb.maximum, cleaning_steps(True), (), DM_CONSTANT
    delays = np.arange(40, dtype=np.int32)[None] * np.array([[0], [1]], np.int32)
    tables = [Table(delays), Table(delays[:1], 3)]
    theirs = cpu.Engine(
        Cleaned(Filterbank([CleanReader(fb, Cleaner(*given))]), None, 128), tables, method="brute", capacity=4000,
        threads=1,
    )  # fmt: skip
    made = []

    def make(runtime, most):
        made.append(DeviceCleaner(runtime, most, Cleaner(*given)))
        return made[-1]

    source = Cleaned(fb, None, 128, cleaner=make)
    ours = cuda.Engine(source, tables, method="brute", capacity=4000, runtimes=[runtime])
    for _ in range(2):  # from the beginning again
        ours.rebind(source)
        for first, stop in ((0, 1300), (700, 2500), (2001, 3990), (3000, 4000), (3600, 4000)):
            sums = []
            for engine in (ours, theirs):
                engine.load(first, stop)
                for i, t in enumerate(tables):
                    low, count = -(-first // t.downsamp), (stop - 40) // t.downsamp - -(-first // t.downsamp)
                    out = np.zeros((len(t.delays), count), engine.dtype)
                    engine.sums(i, low, count, out)
                    sums.append(out)
            assert np.array_equal(sums[0], sums[2])
            assert np.array_equal(sums[1], sums[3])
    assert sum(made[-1].records.removed().parts.values()) > 0
    ours.close()
    theirs.close()


@one_order
def test_an_engine_compiles_the_cleaning_with_its_own_kernels(runtime, monkeypatch):
    """A search waits for one compilation, not for two after each other."""
    ahead, asked = [], []
    module = runtime.module
    monkeypatch.setattr(runtime, "compile_ahead", ahead.extend, raising=False)
    monkeypatch.setattr(runtime, "module", lambda *given: asked.append(given) or module(*given))
    fb = Filterbank.from_array(recording("all", seconds=2.0).T, fch1=1500.0, foff=-6.4, tsamp=1e-3)
    like = Cleaner(fb.observation, fb.dtype, fb.maximum, cleaning_steps(True), (), DM_CONSTANT)
    like.few = True

    def make(runtime, most):
        made = DeviceCleaner(runtime, most, like)
        assert made.few
        return made

    tables = [Table(np.arange(40, dtype=np.int32)[None])]
    first = Cleaned(fb, None, 128, kernels=launch.kernels_of(fb.dtype))
    engine = cuda.Engine(first, tables, method="brute", capacity=2000, runtimes=[runtime])
    engine.rebind(Cleaned(fb, None, 128, cleaner=make))
    engine.load(0, 2000)
    engine.close()
    cleaning = [given for given in asked if "clean.cu" in given]
    assert cleaning
    assert set(cleaning) <= set(ahead)
