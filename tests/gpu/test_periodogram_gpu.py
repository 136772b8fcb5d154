"""The periodogram on a GPU: every build of every kernel against direct sums, arrays on either side, streams, faults.

Tolerances: 1e-9 for the comb in float64 above 30 points (measured 4.2e-10 on 1,000 objects), 2e-6 in float32 (measured
1.8e-6), 1e-12 and 2e-6 for direct sums where CC SS - CS^2 is above 0.01.
"""

from __future__ import annotations

import json
import logging
from functools import partial

import numpy as np
import pytest
from tests.gpu.batches import (
    FaultyRuntime,
    FlatSource,
    batch,
    check,
    check_peaks,
    check_peaks_of_many_candidates,
    default_spec,
    direct_power,
    host,
    log_normal_lengths,
    only_samples,
    run,
    same_peaks,
    shared_grid,
)

from skysieve.core import measured
from skysieve.core.device import resolve
from skysieve.core.gpu.runtime import CudaRuntime
from skysieve.core.gpu.selftest import run_selftest
from skysieve.periodogram.contract import Grids, Output
from skysieve.periodogram.cuda import calibrate, graphs, worker
from skysieve.periodogram.cuda import engine as cuda
from skysieve.periodogram.cuda.cost import DEFAULTS

pytestmark = pytest.mark.gpu

F64, F32 = np.dtype(np.float64), np.dtype(np.float32)
STEP = 1 / 1200
COMB = {F64: 1e-9, F32: 2e-6}
DIRECT = {F64: 1e-12, F32: 2e-6}
BUILDS = {  # lengths, f0, df, nf
    "": ([31, 40, 90, 500, 1700], 0.16, STEP, 4000),
    "p4": ([31, 200], 0.16, 0.2 / 120, 1700),
    "x2": ([40, 300], 0.16, 0.2 / 120, 3300),
    "x2p4": ([40, 300], 0.16, 0.35 / 120, 1700),
    "x4p4": ([40, 300], 0.16, 0.8 / 120, 1700),
    "fine": ([60, 40, 1100], 0.16, 1 / 60_000, 25_000),
    "finer": ([60, 1500], 0.16, 1 / 600_000, 100_000),
}
SAMPLES = {  # frequencies between samples: lengths, f0, df, nf
    8: ([6, 16, 31, 40, 90, 500, 1700], 0.16, STEP, 6145),
    16: ([31, 200], STEP / 2, STEP / 2, 4500),
    32: ([40, 300], 0.16, STEP / 4, 9000),
}


@pytest.fixture(scope="module")
def cp():
    return pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def runtime():
    return CudaRuntime(resolve("cuda:0")[0])


OPEN = []


@pytest.fixture(autouse=True)
def close_engines():
    """Give back the streams and buffers of a test's engines."""
    yield
    while OPEN:
        OPEN.pop().close()


def engine(runtime, memory=None, **spec):
    OPEN.append(cuda.Engine(default_spec(**spec), runtime=runtime, memory=memory))
    return OPEN[-1]


def test_selftest(runtime):
    run_selftest(runtime)


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@pytest.mark.parametrize("build", BUILDS)
def test_comb(runtime, build, dtype):
    lengths, f0, df, nf = BUILDS[build]
    e = engine(runtime, method="nufft", dtype=dtype)
    e._matrix = False  # as on a card without float64 matrix units
    check(e, batch(lengths), shared_grid(f0, df, nf), COMB[dtype], few_det=0.005)


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@pytest.mark.parametrize("step", SAMPLES)
def test_samples(runtime, step, dtype, monkeypatch):
    """Interpolation from samples, whatever the card: the last block has few frequencies."""
    only_samples(monkeypatch)
    lengths, f0, df, nf = SAMPLES[step]
    e = engine(runtime, method="nufft", dtype=dtype)
    e._matrix = True
    source, grids = batch(lengths), shared_grid(f0, df, nf)
    layout = e.describe(source, grids)["layout"]
    assert (layout.build, layout.combs) == ("ls_powers", step)
    check(e, source, grids, COMB[dtype], few_det=0.005)


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
def test_the_best_peaks_of_a_long_grid(runtime, cp, dtype):
    """Floors that rise from block to block leave none of the best out: as without any floor."""
    source, grids = batch([40, 200, 90, 33] * 5), shared_grid(0.16, STEP, 60_000)
    e = engine(runtime, method="nufft", dtype=dtype, n_peaks=8)
    out = run(e, source, grids, xp=cp)
    power = host(out.power).reshape(20, -1)
    for i in range(20):

        def exact(f, i=i):
            return direct_power(source, i, f)[0]

        check_peaks(grids.frequency(), power[i].astype(float), exact, out, i)
    same_peaks(run(e, source, grids, power=False), out)


@pytest.mark.parametrize("few", [0, worker.FEW_OBJECTS])
@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
def test_peaks_of_many_candidates(runtime, dtype, few, monkeypatch):
    monkeypatch.setattr(worker, "FEW_OBJECTS", few)
    check_peaks_of_many_candidates(partial(engine, runtime), dtype)


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
def test_direct(runtime, dtype):
    e = engine(runtime, method="direct", dtype=dtype)
    check(e, batch([6, 12, 40, 333]), shared_grid(0.16, STEP, 4500), DIRECT[dtype], few_det=0.01)


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
def test_list_of_frequencies(runtime, dtype):
    values = np.sort(np.random.default_rng(0).random(3000)) * 23 + 0.1
    grids = Grids(values[:1], np.zeros(1), np.array([3000]), True, values)
    check(engine(runtime, dtype=dtype), batch([50, 300]), grids, DIRECT[dtype], few_det=0.01)


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
def test_julian_dates(runtime, dtype):
    """Times near 2.46e6 days cost no accuracy: they are made relative in float64."""
    e = engine(runtime, method="nufft", dtype=dtype)
    check(e, batch([60, 200], offset=2_458_652.25), shared_grid(0.16, STEP, 3000), COMB[dtype], few_det=0.005)


@pytest.mark.parametrize("method", ["nufft", "direct"])
@pytest.mark.parametrize("fit_mean", [True, False])
@pytest.mark.parametrize("errors", [True, False])
def test_models(runtime, method, fit_mean, errors):
    e = engine(runtime, method=method, fit_mean=fit_mean, center_data=fit_mean)
    check(e, batch([35, 120], errors=errors), shared_grid(0.16, STEP, 1500), 1e-9, few_det=0.005)


@pytest.mark.parametrize("normalization", ["model", "log", "psd", "scargle"])
@pytest.mark.parametrize("method", ["nufft", "direct"])
def test_normalizations(runtime, normalization, method):
    source, grids = batch([45, 90]), shared_grid(0.16, STEP, 1600)
    p = run(engine(runtime, method=method), source, grids).power.reshape(2, -1)
    out = run(engine(runtime, method=method, normalization=normalization), source, grids)
    for i in range(2):
        a, b = source.offsets[i : i + 2]
        w = source.dy[a:b] ** -2.0
        yy = np.average((source.y[a:b] - np.average(source.y[a:b], weights=w)) ** 2, weights=w)
        expected = {
            "model": p[i] / (1 - p[i]),
            "log": -np.log1p(-p[i]),
            "psd": p[i] * yy * 0.5 * w.sum(),
            "scargle": p[i] * yy * 0.5 * (b - a),
        }[normalization]
        np.testing.assert_allclose(out.power.reshape(2, -1)[i], expected, rtol=1e-9, atol=1e-12)


def test_a_ragged_batch_equals_singles(runtime):
    lengths = log_normal_lengths(60)
    source, grids = batch(lengths), shared_grid(0.16, STEP, 6000)
    e = engine(runtime)
    out = run(e, source, grids)
    for i in range(0, 60, 7):
        rows = slice(*source.offsets[i : i + 2])
        one = FlatSource(source.t[rows], source.y[rows], source.dy[rows], np.array([0, lengths[i]]))
        single = run(e, one, grids)
        assert np.array_equal(single.power, out.power[i * 6000 : (i + 1) * 6000])
        assert np.array_equal(single.peak_index[0], out.peak_index[i])
    check(e, source, grids, 1e-9, out, few_det=0.005)


def test_a_grid_each_and_many_peaks(runtime):
    rng = np.random.default_rng(4)
    n = 40
    lengths = rng.integers(31, 300, n)
    source = batch(lengths)
    for i in range(0, n, 3):  # shorter spans, with a finer grid than they need, and unsorted
        a, b = source.offsets[i : i + 2]
        source.t[a:b] *= 0.2 + 0.8 * rng.random()
        turn = rng.permutation(b - a)
        for rows in (source.t, source.y, source.dy):
            rows[a:b] = rows[a:b][turn]
    grids = Grids(0.1 + rng.random(n), STEP * (0.5 + rng.random(n)), rng.integers(40, 9000, n), False)
    check(engine(runtime, n_peaks=20, method="nufft"), source, grids, 1e-9, few_det=0.005)


def test_arrays_on_the_gpu_stay_there(runtime, cp):
    source, grids = batch([40, 80, 300]), shared_grid(0.16, STEP, 3000)
    e = engine(runtime)
    expected = run(e, source, grids)
    on_gpu = FlatSource(cp.asarray(source.t), cp.asarray(source.y), cp.asarray(source.dy), source.offsets)
    for _ in range(3):
        out = run(e, on_gpu, grids, xp=cp)
        assert isinstance(out.power, cp.ndarray)
        assert np.abs(host(out.power) - expected.power).max() <= 1e-9
        assert np.array_equal(out.peak_index, expected.peak_index)


@pytest.mark.parametrize("nterms", [1, 2])
@pytest.mark.parametrize("errors", [True, False])
def test_one_launch_serves_rows_wherever_they_lie_on_the_gpu(runtime, cp, monkeypatch, nterms, errors):
    """Chunks of one length whose rows are gathered have one recorded launch; also where some rows are on the host."""
    monkeypatch.setattr(graphs, "MOST_ROWS", 100)
    monkeypatch.setattr(cuda, "FEWEST_ON_DEVICE", 1)
    monkeypatch.setattr(cuda, "FEWEST_ROWS", 1)
    source, grids = batch([120] * 30, errors=errors), shared_grid(0.16, STEP, 3000)
    monkeypatch.setattr(cuda, "MOST_ROWS", 5 * 120)
    e = engine(runtime, nterms=nterms)
    expected = run(e, source, grids, power=False)
    gone = [a if a is None else cp.asarray(a) for a in (source.t, source.y, source.dy)]
    for rows in (gone, gone, gone, [source.t, *gone[1:]], [gone[0], source.y, gone[2]], gone):
        out = run(e, FlatSource(*rows, source.offsets), grids, power=False)
        assert np.array_equal(out.peak_index, expected.peak_index)
        assert np.array_equal(out.peak_power, expected.peak_power)
    assert len(e._cache._cut[1]) == 6
    known = e.workers[0].launches.of(e.workers[0].lanes[0])[-1]
    assert known.replay is not None
    assert not known.rows


def test_kept_plan_on_new_values(runtime):
    """From the third time on the launches are replayed as a graph; the answers are those of a fresh engine."""
    grids, plan = shared_grid(0.16, STEP, 3000), engine(runtime)
    for seed in range(5):
        source = batch([40, 70, 10], seed=seed)
        out, fresh = run(plan, source, grids), run(engine(runtime), source, grids)
        assert np.array_equal(out.power, fresh.power)
        assert np.array_equal(out.peak_frequency, fresh.peak_frequency)


def test_powers_into_page_locked_memory(runtime, cp):
    source, grids = batch([40, 80, 300]), shared_grid(0.16, STEP, 3000)
    expected = run(engine(runtime), source, grids)
    pinned = np.frombuffer(cp.cuda.alloc_pinned_memory(9000 * 8), np.float64, 9000)
    pinned[:] = -7
    out = Output.allocate(3, 5, pinned)
    engine(runtime).execute(source, grids, out)
    assert np.array_equal(pinned, expected.power)


def test_streamed_in_chunks(runtime):
    lengths = np.full(3000, 50)
    source, grids = batch(lengths), shared_grid(0.16, STEP, 2500)
    whole = run(engine(runtime), source, grids, power=False)
    e = engine(runtime, memory="30 MB")
    pieces = run(e, source, grids)
    assert (pieces.status == 0).all()
    assert np.array_equal(pieces.peak_index, whole.peak_index)
    best = pieces.power.reshape(3000, 2500).max(axis=1)
    assert (pieces.peak_power[:, 0] >= best * (1 - 1e-9)).all()  # the best peak is a maximum of the exact power


def test_out_of_memory_halves_the_chunk(runtime, caplog):
    source, grids = batch([40] * 30), shared_grid(0.16, STEP, 1500)
    expected = run(engine(runtime, method="nufft"), source, grids)
    tight = FaultyRuntime(runtime, "ls_comb", MemoryError("no room"), at=(1, 2))
    with caplog.at_level(logging.WARNING, "skysieve"):
        out = run(engine(tight, method="nufft"), source, grids)
    assert tight.faults == 2
    assert "trying halves" in caplog.text
    assert np.array_equal(out.peak_index, expected.peak_index)


def test_two_runtimes_on_one_gpu(runtime):
    """CuPy gives both the same kernels; the shared memory that one asks for must not be taken from the other."""
    other = CudaRuntime(runtime.device)
    large, small = shared_grid(0.16, STEP, 3180), shared_grid(0.16, STEP, 1700)
    source = batch([60, 300])
    expected = run(engine(runtime, method="nufft"), source, large)
    run(engine(other, method="nufft"), source, small)
    again = run(engine(runtime, method="nufft"), source, large)
    assert np.array_equal(again.power, expected.power)


def test_a_lost_gpu(runtime, caplog):
    """Two workers on whatever GPUs there are; one is lost on its second chunk, which the other waits for."""
    devices = resolve("cuda:all")
    other = CudaRuntime(devices[-1])
    source, grids = batch([40] * 600), shared_grid(0.16, STEP, 1500)
    expected = run(engine(runtime, method="nufft"), source, grids)
    lost = FaultyRuntime(other, "ls_comb", RuntimeError("the GPU fell off the bus"), after=1)
    with caplog.at_level(logging.WARNING, "skysieve"):
        out = run(engine((FaultyRuntime(runtime, until=lost), lost), memory="8 MB", method="nufft"), source, grids)
    assert lost.faults == 1
    assert "go to the other devices" in caplog.text
    assert np.abs(out.power - expected.power).max() <= 2e-9
    assert np.array_equal(out.peak_index, expected.peak_index)


def test_several_gpus(runtime):
    devices = resolve("cuda:all")
    if len(devices) < 2:
        pytest.skip("this machine has one GPU")
    source, grids = batch(log_normal_lengths(3000)), shared_grid(0.16, STEP, 4000)
    one = run(engine(runtime), source, grids, power=False)
    all_of_them = run(engine([CudaRuntime(d) for d in devices], memory="1 GB"), source, grids, power=False)
    assert np.array_equal(one.peak_index, all_of_them.peak_index)


def test_costs_are_measured_once_and_kept(runtime, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(measured, "_used", {})
    monkeypatch.setattr(calibrate, "WITHIN", 1e9)  # other tests may use the GPU too
    monkeypatch.setattr(calibrate, "plausible", lambda found, defaults: True)
    first = engine(runtime).costs
    path = measured.path_of(calibrate.name_of(runtime.device.name, engine(runtime).spec))
    assert json.loads(path.read_text()) == first.as_dict()
    assert all(abs(value) < 1e6 for value in first.as_dict().values())
    path.unlink()
    assert engine(runtime).costs == first  # this process keeps them
    monkeypatch.setattr(measured, "_used", {})
    path.write_text("not json")
    again = engine(runtime).costs
    assert json.loads(path.read_text()) == again.as_dict()
    assert engine(runtime, method="nufft").costs is DEFAULTS[F64]


def test_a_first_look_leaves_recorded_launches_alone(runtime):
    """Looking at other light curves between runs of a kept plan changes none of its answers."""
    source, grids = batch([40, 70, 200]), shared_grid(0.16, STEP, 3000)
    plan = engine(runtime)
    expected = run(plan, source, grids)
    for seed in range(3):
        other = plan.scan(batch([300, 20], seed=seed))
        assert other.n_used.tolist() == [300, 20]
        again = run(plan, source, grids)
        assert np.array_equal(again.power, expected.power)
        assert np.array_equal(again.peak_frequency, expected.peak_frequency)
