"""The periodogram on a GPU: large batches, arrays on the GPU, recorded launches, chunks, faults, several GPUs.

Every kernel is tested in tests/kernels/test_periodogram*.py.  What is here is too large for the shim, or needs CuPy.
Tolerances: see tests/kernels/test_periodogram.py.
"""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from tests.gpu.batches import (
    FaultyRuntime,
    FlatSource,
    batch,
    check,
    check_peaks,
    default_spec,
    direct_power,
    host,
    log_normal_lengths,
    run,
    same_peaks,
    shared_grid,
)

from skysieve.core.device import resolve
from skysieve.core.gpu.runtime import CudaRuntime
from skysieve.core.machine import measured
from skysieve.periodogram.contract import Grids, Output
from skysieve.periodogram.cuda import calibrate, graphs
from skysieve.periodogram.cuda import engine as cuda
from skysieve.periodogram.cuda import worker as cuda_worker
from skysieve.periodogram.cuda.cost import DEFAULTS
from skysieve.periodogram.cuda.sinusoid import worker as sinusoid_worker

pytestmark = pytest.mark.gpu

F64, F32 = np.dtype(np.float64), np.dtype(np.float32)
STEP = 1 / 1200


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


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
def test_the_best_peaks_of_a_long_grid(runtime, cp, dtype):
    """The floor below which powers are skipped rises from block to block; the peaks are those without a floor."""
    source, grids = batch([40, 200, 90, 33] * 5), shared_grid(0.16, STEP, 60_000)
    e = engine(runtime, method="nufft", dtype=dtype, n_peaks=8)
    out = run(e, source, grids, xp=cp)
    power = host(out.power).reshape(20, -1)
    for i in range(20):

        def exact(f, i=i):
            return direct_power(source, i, f)[0]

        check_peaks(grids.frequency(), power[i].astype(float), exact, out, i)
    same_peaks(run(e, source, grids, power=False), out)


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


def test_arrays_on_the_gpu_stay_on_it(runtime, cp):
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


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("nterms", [1, 2])
def test_rows_of_long_chunks_are_copied_by_other_threads(runtime, cp, monkeypatch, nterms, power):
    """The answers are those of rows on the GPU: new light curves of other lengths, and those that come again."""
    for module in (cuda_worker, sinusoid_worker, graphs):
        monkeypatch.setattr(module, "MOST_ROWS", 100)
    for name in ("FEWEST_ROWS", "FEWEST_NEW"):
        monkeypatch.setattr(cuda, name, 1)
    monkeypatch.setattr(cuda, "MOST_ROWS", 5 * 120)
    monkeypatch.setattr(cuda, "MOST_CACHED", 50)
    monkeypatch.setattr(cuda_worker, "STRAIGHT", 0)
    grids, e = shared_grid(0.16, STEP, 3000), engine(runtime, nterms=nterms)
    for n, seed in ((60, 1), (60, 2), (40, 3), (40, 3), (40, 3), (40, 3), (60, 4)):
        source = batch(log_normal_lengths(n, seed=seed), seed=seed)
        gone = FlatSource(cp.asarray(source.t), cp.asarray(source.y), cp.asarray(source.dy), source.offsets)
        out, expected = (
            run(e, source, grids, power=power),
            run(engine(runtime, nterms=nterms), gone, grids, power=power),
        )
        for name in ("status", "n_used", "span", "peak_index", "peak_power", "peak_frequency", "peak_curvature"):
            assert np.array_equal(getattr(out, name), getattr(expected, name), equal_nan=name[0] != "n"), name


@pytest.mark.parametrize("errors", [True, False])
def test_new_rows_are_copied_by_another_thread(runtime, cp, monkeypatch, errors):
    """Rows are copied while they are divided into chunks; answers are those of rows copied at once or on the GPU."""
    calls, staged = [], cuda.staged
    monkeypatch.setattr(cuda, "staged", lambda *given: calls.append(len(given)) or staged(*given))
    grids, e = shared_grid(0.16, STEP, 3000), engine(runtime)
    for seed, fewest in ((1, 1), (2, 1), (3, 1 << 40), (2, 1)):
        monkeypatch.setattr(cuda, "FEWEST_STAGED", fewest)
        source = batch(log_normal_lengths(300, seed=seed), seed=seed, errors=errors)
        gone = [a if a is None else cp.asarray(a) for a in (source.t, source.y, source.dy)]
        before, expected = len(calls), run(engine(runtime), FlatSource(*gone, source.offsets), grids, power=False)
        for _ in range(3):
            out = run(e, source, grids, power=False)
            for name in ("status", "n_used", "span", "peak_index", "peak_power", "peak_frequency", "peak_curvature"):
                assert np.array_equal(getattr(out, name), getattr(expected, name), equal_nan=name[0] != "n"), name
        assert len(calls) - before == (fewest == 1)  # the second time its division is known


def test_new_rows_of_several_bands(runtime, monkeypatch):
    import skysieve

    monkeypatch.setattr(cuda, "FEWEST_STAGED", 1)
    source, rng = batch([90, 200, 150]), np.random.default_rng(1)
    bands, cuts = rng.integers(0, 3, source.offsets[-1]), source.offsets[1:-1]
    grid = {"fmin": 0.2, "fmax": 3.0, "nf": 4000, "device": "cuda", "n_peaks": 2}
    flat = source.t, source.y, bands, source.dy
    whole = skysieve.lombscargle_multiband(*flat, offsets=source.offsets, **grid)
    lists = skysieve.lombscargle_multiband(*(np.split(a, cuts) for a in flat), **grid)
    assert np.array_equal(whole.power, lists.power)
    assert np.array_equal(whole.peaks.frequency, lists.peaks.frequency)


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


def test_costs_are_measured_once_and_stored(runtime, monkeypatch, tmp_path):
    monkeypatch.setenv("SKYSIEVE_CACHE_DIR", str(tmp_path / "skysieve"))
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
