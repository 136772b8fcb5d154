"""The periodogram's kernels and launches on the host shim and on a GPU: every path, against direct sums.

Tolerances: 1e-9 for the comb in float64 (measured 4.2e-10 on 1,000 objects of more than 30 points), 2e-6 in float32
above 30 points (measured 1.8e-6) and 1e-5 at few points, where the deconvolution magnifies rounding; direct sums 1e-12
and 2e-6 where CC SS - CS^2 is above 0.01, 1e-5 elsewhere.  Needs NumPy, SciPy, numba and pytest, and CuPy for the GPU.
"""

from __future__ import annotations

import logging
from functools import partial

import numpy as np
import pytest

from skysieve.core.errors import MemoryBudgetError
from skysieve.periodogram.contract import Grids, Output, Status
from skysieve.periodogram.cuda import engine as cuda
from skysieve.periodogram.cuda import worker
from skysieve.periodogram.cuda.chunks import bounded_cycles, gather
from skysieve.periodogram.cuda.run import Run
from skysieve.periodogram.cuda.sinusoid.methods import Samples
from skysieve.periodogram.cuda.sinusoid.worker import SinusoidWorker
from skysieve.periodogram.numerics.normalization import NORMALIZATIONS, normalize
from tests.gpu.batches import (
    FaultyRuntime,
    FlatSource,
    batch,
    check,
    check_peaks_of_many_candidates,
    default_spec,
    direct_power,
    no_room_for_candidates,
    only_samples,
    run,
    shared_grid,
)
from tests.kernels.devices import launched, on_gpu, one_order
from tests.kernels.shim import run_sanitized, shim_runtime
from tests.marks import slow

F64, F32 = np.dtype(np.float64), np.dtype(np.float32)
STEP = 1 / 1200
DIRECT = {F64: 1e-12, F32: 2e-6}
GRIDS = {  # lengths, f0, df, nf: build of the comb that must run
    "f64": ([12, 40, 90], 0.16, STEP, 2000),
    "f64p4": ([30, 9], 0.16, 0.2 / 120, 900),
    "f64x2": ([1030, 1026], 0.16, 0.2 / 120, 3200),
    "f64x4p4": ([60], 0.16, 0.8 / 120, 1200),
    "ls_fine": ([60, 20], 0.16, 1 / 60_000, 25_000),
}
GPU_GRIDS = {
    "f64": ([31, 40, 90, 500, 1700], 0.16, STEP, 4000),
    "f64p4": ([31, 200], 0.16, 0.2 / 120, 1700),
    "f64x2": ([1030, 3000], 0.16, 0.2 / 120, 3300),
    "f64x4p4": ([40, 300], 0.16, 0.8 / 120, 1700),
    "ls_fine": ([60, 40, 1100], 0.16, 1 / 60_000, 25_000),
}
SAMPLES = {  # lengths, f0, df, nf: frequencies between samples
    8: ([12, 40, 90], 0.16, STEP, 2000),
    16: ([60], STEP / 2, STEP / 2, 4500),
    32: ([60, 33], 0.16, STEP / 4, 9000),
}
GPU_SAMPLES = {
    8: ([6, 16, 31, 40, 90, 500, 1700], 0.16, STEP, 6145),
    16: ([31, 200], STEP / 2, STEP / 2, 4500),
    32: ([40, 300], 0.16, STEP / 4, 9000),
}
PLAIN = (8, 6)
"""A compute capability without fast float64 matrix units: its layouts are combs."""


def engine(runtime, matrix=False, memory=None, **spec):
    """An engine as on a GPU with or without fast float64 matrix units."""
    e = cuda.Engine(default_spec(**spec), runtime=runtime, memory=memory)
    e._matrix = matrix
    return e


@pytest.mark.few
@pytest.mark.parametrize("build", GRIDS)
def test_comb(runtime, build):
    lengths, f0, df, nf = (GPU_GRIDS if on_gpu(runtime) else GRIDS)[build]
    source, grids = batch(lengths), shared_grid(f0, df, nf)
    if on_gpu(runtime):  # layouts depend on the GPU
        for dtype, tolerance in ((F64, 1e-9), (F32, 2e-6)):
            check(engine(runtime, method="nufft", dtype=dtype), source, grids, tolerance, few_det=0.005)
        return
    e = engine(runtime, method="nufft")
    assert e.describe(source, grids)["layout"].build == build
    check(e, source, grids, 1e-9)


@pytest.mark.slow
def test_methods_of_a_chunk_are_compiled_at_the_same_time(monkeypatch):
    source, grids, wanted = batch([40, 40, 40]), shared_grid(0.16, STEP, 900), []
    source.t[40:80] *= 8  # other lengths want other methods
    source.t[80:] /= 8
    e = engine(shim_runtime(), True, method="nufft")
    monkeypatch.setattr(type(e.workers[0].runtime), "compile_ahead", lambda runtime, given: wanted.append(list(given)))
    run(e, source, grids, power=False)
    builds = [{build for _, name, build, *_ in given if name == "sinusoid/comb.cu"} for given in wanted]
    assert builds[-1] == {"f64p4", "f64x4p4"}
    wanted.clear()
    run(e, batch([40, 40, 40], seed=1), grids, power=False)
    assert wanted == []


@pytest.mark.few
@pytest.mark.parametrize(
    ("step", "dtype"), [*((s, F64) for s in SAMPLES), (8, F32), slow(16, F32), slow(32, F32)], ids=str
)
def test_samples(runtime, step, dtype, monkeypatch):
    """Interpolation from samples, L frequencies apart, the last block half empty."""
    only_samples(monkeypatch)
    lengths, f0, df, nf = (GPU_SAMPLES if on_gpu(runtime) else SAMPLES)[step]
    e = engine(runtime, True, method="nufft", dtype=dtype)
    source, grids = batch(lengths), shared_grid(f0, df, nf)
    layout = e.describe(source, grids)["layout"]
    assert (layout.build, layout.combs) == ("ls_powers", step)
    if on_gpu(runtime):
        check(e, source, grids, 1e-9 if dtype == F64 else 2e-6, few_det=0.005)
    else:
        check(e, source, grids, 1e-9 if dtype == F64 else 1e-6)
    assert launched(runtime) >= {"chi2_samples", "ls_taps", "ls_powers"}


@pytest.mark.slow
@one_order
@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
def test_samples_where_every_power_is_suspicious(runtime, dtype, monkeypatch):
    """Few points: all powers of a block are computed again by direct sums."""
    only_samples(monkeypatch)
    check(engine(runtime, True, method="nufft", dtype=dtype), batch([7]), shared_grid(0.16, STEP / 4, 2048), 1e-6)


@pytest.mark.slow
def test_long_series_on_fine_grids_are_not_sampled():
    """A warp would take all points of an object: such objects are left to combs, also where rows are missing."""
    e = engine(shim_runtime(), True, method="nufft", dtype=F32)
    source, grids = batch([1030, 1026, 60]), shared_grid(0.16, 1 / 24_000, 40_000)
    source.y[1100:1104] = np.nan  # of the second object
    out = run(e, source, grids, power=False)
    names = {launch[0] for launch in e.workers[0].runtime.launches}
    assert names >= {"ls_spread", "ls_comb", "ls_powers"}
    assert out.n_used.tolist() == [1030, 1022, 60]
    for i in range(3):
        rows = slice(*source.offsets[i : i + 2])
        one = FlatSource(source.t[rows], source.y[rows], source.dy[rows], np.array([0, len(source.t[rows])]))
        assert isinstance(e.describe(one, grids)["layout"], Samples) == (i == 2)
        single = run(e, one, grids, power=False)
        assert np.array_equal(single.peak_index[0], out.peak_index[i])
        assert np.array_equal(single.peak_power[0], out.peak_power[i])


@pytest.mark.slow
@one_order
@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-9), (F32, 2e-6)])
def test_samples_of_grids_of_their_own(runtime, dtype, tolerance, monkeypatch):
    """Every object has coefficients and blocks of its own; two layouts, one on a second stream."""
    only_samples(monkeypatch)
    e = engine(runtime, True, method="nufft", dtype=dtype)
    grids = Grids(np.array([0.16, 0.3, 0.01]), np.array([STEP, STEP / 2, STEP]), np.array([2100, 4200, 900]), False)
    check(e, batch([40, 60, 25]), grids, tolerance)


@pytest.mark.few
@pytest.mark.parametrize("spec", [{"fit_mean": False}, {"center_data": False}, {"n_peaks": 40}])
@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-9), (F32, 2e-6)])
@one_order
def test_samples_of_other_models(runtime, spec, dtype, tolerance, monkeypatch):
    only_samples(monkeypatch)
    e = engine(runtime, True, method="nufft", dtype=dtype, **spec)
    check(e, batch([35, 14]), shared_grid(0.16, STEP, 2500), tolerance)


@one_order
def test_samples_in_another_normalisation(runtime, monkeypatch):
    only_samples(monkeypatch)
    source, grids = batch([35, 90]), shared_grid(0.16, STEP, 2500)
    engines = [engine(runtime, True, method="nufft", normalization=n) for n in ("standard", "model")]
    plain, model = (run(e, source, grids) for e in engines)
    assert np.abs(model.power / (1 + model.power) - plain.power).max() <= 1e-15
    assert np.array_equal(model.peak_index, plain.peak_index)


@pytest.mark.slow
def test_comb_runs():
    """Peaks without powers on a fine grid in float32: warps follow runs of combs; long series are spread first."""
    e = engine(shim_runtime(), method="nufft", dtype=F32)
    source, grids = batch([1030]), shared_grid(0.0005, 1 / 60_000, 150_000)
    about = e.describe(source, grids)
    assert about["layout"].form(False, about["combs_a_block"]) == "f32runs"
    out, alone = run(e, source, grids), run(e, source, grids, power=False)
    assert {launch[0] for launch in e.workers[0].runtime.launches} >= {"ls_spread", "ls_comb"}
    some = np.arange(0, 150_000, 50)
    expected, _ = direct_power(source, 0, 0.0005 + some / 60_000)
    assert np.abs(out.power[some] - expected).max() <= 1e-5
    assert np.array_equal(alone.peak_index, out.peak_index)


def test_interpolated_bands_in_several_blocks():
    """A fine grid in float64: blocks share a band, and the block at its end has few frequencies."""
    e = engine(shim_runtime(), method="nufft")
    source, grids = batch([60]), shared_grid(0.16, 1 / 60_000, 25_003)
    about = e.describe(source, grids)
    assert about["layout"].build == "ls_fine"
    assert about["layout"].blocks(about["combs_a_block"]) > 2
    check(e, source, grids, 1e-9, few_det=1e-5)


@pytest.mark.slow
def test_long_series_are_spread_by_a_kernel_of_their_own():
    e = engine(shim_runtime(), method="nufft")
    check(e, batch([1030, 40]), shared_grid(0.16, 1 / 60_000, 25_000), 1e-9)
    assert "ls_spread" in {launch[0] for launch in e.workers[0].runtime.launches}


@pytest.mark.slow
def test_comb_float32(runtime):
    lengths, grids = [40, 300], shared_grid(0.16, STEP, 2000)
    check(engine(runtime, method="nufft", dtype=F32), batch(lengths), grids, 1e-5)


@pytest.mark.slow
@one_order
def test_combs_of_a_long_fine_grid_in_float32(runtime):
    nf = 60_000 if on_gpu(runtime) else 4000
    e = engine(runtime, method="nufft", dtype=F32)
    check(e, batch([60]), shared_grid(0.16, 1 / 60_000, nf), 2e-6, few_det=0.005)


@pytest.mark.few
@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
def test_direct(runtime, dtype):
    e = engine(runtime, method="direct", dtype=dtype)
    if on_gpu(runtime):
        check(e, batch([6, 12, 40, 333]), shared_grid(0.16, STEP, 4500), DIRECT[dtype], few_det=0.01)
    check(e, batch([12, 40]), shared_grid(0.16, STEP, 2500), 1e-12 if dtype == F64 else 1e-5)


@pytest.mark.few
@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
def test_direct_sums_of_several_tiles(runtime, dtype):
    """Blocks of several tiles of one object give what blocks of one tile give; 65 points fill the tables twice."""
    tolerance = 1e-12 if dtype == F64 else 1e-5
    e, grids = engine(runtime, method="direct", dtype=dtype), shared_grid(0.16, STEP, 13_300)
    source = batch([33, 5, 65])
    together = run(e, source, grids)
    check(e, source, grids, tolerance, together, few_det=0.02)
    for i in range(3):
        rows = slice(*source.offsets[i : i + 2])
        one = FlatSource(source.t[rows], source.y[rows], source.dy[rows], np.array([0, rows.stop - rows.start]))
        alone = run(e, one, grids)
        assert np.array_equal(alone.power, together.power[i * 13_300 : (i + 1) * 13_300], equal_nan=True)
        assert np.array_equal(alone.peak_index[0], together.peak_index[i])


@one_order
@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
def test_list_of_frequencies(runtime, dtype):
    n, width, lengths = (3000, 23, [50, 300]) if on_gpu(runtime) else (500, 3, [50, 30])
    values = np.sort(np.random.default_rng(0).random(n)) * width + 0.1
    grids = Grids(values[:1], np.zeros(1), np.array([n]), True, values)
    if on_gpu(runtime):
        check(engine(runtime, dtype=dtype), batch(lengths), grids, DIRECT[dtype], few_det=0.01)
    else:
        check(engine(runtime, dtype=dtype), batch(lengths), grids, 1e-12 if dtype == F64 else 1e-5)


@one_order
@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
def test_julian_dates(runtime, dtype):
    """Times near 2.46e6 days cost no accuracy: they are made relative in float64."""
    e = engine(runtime, method="nufft", dtype=dtype)
    lengths, nf = ([60, 200], 3000) if on_gpu(runtime) else ([60], 700)
    source, tolerance = batch(lengths, offset=2_458_652.25), 1e-9 if dtype == F64 else 2e-6
    check(e, source, shared_grid(0.16, STEP, nf), tolerance, few_det=0.005)


@one_order
@pytest.mark.parametrize("fit_mean", [True, False])
@pytest.mark.parametrize("center_data", [True, False])
def test_models_with_and_without_errors(runtime, fit_mean, center_data):
    lengths, nf = ([35, 120], 1500) if on_gpu(runtime) else ([35], 900)
    for method in ("nufft", "direct") if on_gpu(runtime) else ("nufft",):
        for errors in (False, True) if on_gpu(runtime) else (False,):
            e = engine(runtime, fit_mean=fit_mean, center_data=center_data, method=method)
            few_det = 0.005 if on_gpu(runtime) else 0.0
            check(e, batch(lengths, errors=errors), shared_grid(0.16, STEP, nf), 1e-9, few_det=few_det)


@one_order
@pytest.mark.parametrize("method", ["nufft", "direct"])
def test_constant_values_where_nothing_is_subtracted(runtime, method):
    """The window function; three points, and two, which are as many as the parameters."""
    source, grids = batch([35, 3, 2, 40]), shared_grid(0.16, STEP, 900)
    source.y[:35] = -2.5
    source.y[-40:] = 0.0
    out = run(engine(runtime, fit_mean=False, center_data=False, method=method), source, grids)
    assert out.status.tolist() == [0, 0, 0, Status.CONSTANT_Y]
    w = source.dy[:35] ** -2.0
    x = 2 * np.pi * grids.frequency(0)[:, None] * source.t[:35]
    c, s, w = np.cos(x), np.sin(x), w / w.sum()
    a, b = c @ w, s @ w
    cc, ss, cs = (c * c) @ w, (s * s) @ w, (c * s) @ w
    expected = (ss * a * a + cc * b * b - 2 * cs * a * b) / (cc * ss - cs * cs)
    assert np.abs(out.power[: len(expected)] - expected).max() <= 1e-9
    out = run(engine(runtime, fit_mean=False, center_data=True, method=method), source, grids)
    assert out.status.tolist() == [Status.CONSTANT_Y, 0, 0, Status.CONSTANT_Y]
    out = run(engine(runtime, method=method), source, grids)
    assert out.status.tolist() == [Status.CONSTANT_Y, 0, Status.TOO_FEW_POINTS, Status.CONSTANT_Y]


def test_auto_gives_short_objects_to_direct_sums():
    e = engine(shim_runtime())
    source, grids = batch([8, 30, 31, 200]), shared_grid(0.16, STEP, 3000)
    out = run(e, source, grids)
    assert out.method.tolist() == [1, 1, 2, 2]
    check(e, source, grids, 1e-9, out)


@pytest.mark.few
@one_order
@pytest.mark.parametrize("normalization", [name for name in NORMALIZATIONS if name != "standard"])
@pytest.mark.parametrize(("method", "step"), [("nufft", STEP), ("nufft", STEP / 50), ("direct", STEP)])
def test_normalizations(runtime, normalization, method, step):
    nf = 1600 if on_gpu(runtime) else 600
    source, grids = batch([45, 90]), shared_grid(0.16, step, nf)
    standard = run(engine(runtime, method=method), source, grids)
    out = run(engine(runtime, method=method, normalization=normalization), source, grids)
    assert np.array_equal(out.peak_index[:, 0], standard.peak_index[:, 0])
    for i, p in enumerate(standard.power.reshape(2, -1)):
        a, b = source.offsets[i : i + 2]
        w = source.dy[a:b] ** -2.0
        yy = np.average((source.y[a:b] - np.average(source.y[a:b], weights=w)) ** 2, weights=w)
        expected = normalize(p, normalization, yy, w.sum(), b - a)
        np.testing.assert_allclose(out.power.reshape(2, -1)[i], expected, rtol=1e-9, atol=1e-12)


@one_order
def test_unsorted_and_broken_rows_with_a_grid_each(runtime):
    source = batch([50, 30, 8, 200, 2, 20, 9, 6])
    rng = np.random.default_rng(0)
    for i in range(8):
        a, b = source.offsets[i : i + 2]
        turn = rng.permutation(b - a)
        for rows in (source.t, source.y, source.dy):
            rows[a:b] = rows[a:b][turn]
    source.t[3] = np.nan
    source.y[20] = np.inf
    at = source.offsets
    source.y[at[5] : at[6]] = 3.0
    source.dy[at[6] + 2] = -1.0
    source.t[at[7] : at[8]] = 5.0
    nf = np.array([700, 3000, 300, 900, 50, 100, 40, 30])
    grids = Grids(0.1 + 0.01 * np.arange(8), STEP * np.linspace(1, 1.2, 8), nf, False)
    e = engine(runtime, method="nufft")
    out = run(e, source, grids)
    few, errors, constant, equal = (
        Status.TOO_FEW_POINTS,
        Status.BAD_ERRORS,
        Status.CONSTANT_Y,
        Status.EQUAL_TIMES,
    )
    assert out.status.tolist() == [0, 0, 0, 0, few, constant, errors, equal]
    assert out.n_used[0] == 48
    assert out.n_dropped[0] == 2
    start = grids.offsets(8)
    for i in range(8):
        mine = out.power[start[i] : start[i + 1]]
        if out.status[i]:
            assert np.isnan(mine).all()
            assert (out.peak_index[i] == -1).all()
            assert out.method[i] == 0
            continue
        a, b = at[i : i + 2]
        ok = np.isfinite(source.t[a:b]) & np.isfinite(source.y[a:b])
        rows = (x[a:b][ok] for x in (source.t, source.y, source.dy))
        clean = FlatSource(*rows, np.array([0, int(ok.sum())]))
        f0, df, n = grids.of(i)
        expected, _ = direct_power(clean, 0, np.longdouble(f0) + np.longdouble(df) * np.arange(n))
        assert np.abs(mine - expected).max() <= 1e-9
    scan = e.scan(source)
    assert np.array_equal(scan.status, out.status)
    assert np.array_equal(scan.n_used, out.n_used)
    assert np.array_equal(scan.span, out.span, equal_nan=True)


@one_order
def test_unsorted_times_whose_span_is_underestimated(runtime):
    source = batch([60, 40])
    source.t[[0, 30]] = source.t[[30, 0]]  # the first time is not the least: the estimate of the span is too short
    check(engine(runtime, method="nufft"), source, shared_grid(0.16, STEP, 600), 1e-9)


@pytest.mark.slow
@one_order
def test_scattered_objects_are_searched_again_together(runtime):
    """The times of every tenth object fall.  A chunk for each of them would take the host a millisecond."""
    source = batch([30] * 21)
    for first in source.offsets[:-1:10]:
        source.t[first : first + 30] = source.t[first : first + 30][::-1].copy()
    e, grids = engine(runtime, method="nufft"), shared_grid(0.16, STEP, 300)
    check(e, source, grids, 1e-9)
    begin, jobs = e.workers[0].begin, []
    e.workers[0].begin = lambda lane, job: jobs.append(job.n_objects) or begin(lane, job)
    run(e, source, grids)
    assert jobs == [21, 21]


@pytest.mark.parametrize(("nf", "chunks"), [(100, 1), (1 << 20, 2), (1 << 22, 3)])
def test_objects_far_apart_get_separate_chunks(nf, chunks):
    found = gather([0, 12, 20, 37], nf)
    assert len(found) == chunks
    assert found[0].start == 0
    assert found[-1].stop == 38


@one_order
def test_peaks_are_the_same_without_room_for_candidates(runtime, monkeypatch):
    source, grids = batch([60, 40]), shared_grid(0.16, STEP, 1500)
    expected = run(engine(runtime, n_peaks=12), source, grids)
    no_room_for_candidates(monkeypatch)
    out = run(engine(runtime, n_peaks=12), source, grids)
    assert np.array_equal(out.peak_index, expected.peak_index)


@pytest.mark.slow
@one_order
def test_objects_of_a_coarse_grid_are_searched_again_together(runtime, monkeypatch):
    """Less than two samples per peak: nearly every maximum is a candidate, so that no chunk has room for them all."""
    source, grids, together = batch([40] * 6), shared_grid(0.16, 0.9 / 120, 4000), []
    once = Run._by_itself
    monkeypatch.setattr(
        Run, "_by_itself",
        lambda run, worker, lane, chunk, known: (
            together.append(chunk.stop - chunk.start), once(run, worker, lane, chunk, known)
        ),
    )  # fmt: skip
    check(engine(runtime, method="nufft", n_peaks=8), source, grids, 1e-9, few_det=0.005)
    assert min(together, default=0) >= 5  # in each run
    expected = run(engine(runtime, method="nufft", n_peaks=8), source, grids)
    together.clear()
    out = run(engine(runtime, method="nufft", n_peaks=8, memory=350_000), source, grids)
    assert np.array_equal(out.peak_index, expected.peak_index)
    assert 1 < max(together) < 5


@pytest.mark.slow
@one_order
@pytest.mark.parametrize(
    ("dtype", "few"),
    [
        (np.float64, 0), (np.float32, worker.FEW_OBJECTS), slow(np.float64, worker.FEW_OBJECTS), slow(np.float32, 0),
    ],
)  # fmt: skip
def test_peaks_of_many_candidates(runtime, dtype, few, monkeypatch):
    monkeypatch.setattr(worker, "FEW_OBJECTS", few)
    check_peaks_of_many_candidates(partial(engine, runtime), dtype)


@one_order
def test_equal_peaks_and_peaks_at_the_ends(runtime):
    """Two equal maxima: the lower frequency first; more peaks than there are: NaN and -1."""
    t = np.arange(40.0)
    y = np.cos(np.pi * t / 5) + 0.001 * np.cos(2 * t)
    source = FlatSource(t, y, None, np.array([0, 40]))
    grids = shared_grid(0.02, 0.001, 961)  # alias of 0.1 at 0.9
    e = engine(runtime, n_peaks=60, method="direct")
    out = run(e, source, grids)
    check(e, source, grids, 1e-9, out, few_det=1e-3)
    assert (out.peak_index[0] == -1).any()
    best = {round(f * 1000) for f in grids.frequency()[out.peak_index[0, :2]]}
    assert best == {100, 900}


@one_order
def test_a_plan_on_new_values_equals_a_new_plan(runtime):
    """On a GPU the launches are replayed as a graph from the third time on."""
    grids = shared_grid(0.16, STEP, 3000 if on_gpu(runtime) else 700)
    kept = engine(runtime)
    for seed in range(5):
        source = batch([40, 70, 10], seed=seed)
        out, fresh = run(kept, source, grids), run(engine(runtime), source, grids)
        assert np.array_equal(out.power, fresh.power)
        assert np.array_equal(out.peak_frequency, fresh.peak_frequency)


@pytest.mark.slow
@one_order
def test_out_of_memory_halves_the_chunk(runtime, caplog):
    source, grids = batch([40, 50, 60, 35, 45] * 6), shared_grid(0.16, STEP, 400)
    expected = run(engine(runtime, method="nufft"), source, grids)
    tight = FaultyRuntime(runtime, "ls_comb", MemoryError("no room"), at=(1, 2))
    with caplog.at_level(logging.WARNING, "skysieve"):
        out = run(engine(tight, method="nufft"), source, grids)
    assert tight.faults == 2
    assert "trying halves" in caplog.text
    assert np.abs(out.power - expected.power).max() <= 1e-9
    assert np.array_equal(out.peak_index, expected.peak_index)
    hopeless = FaultyRuntime(runtime, "ls_comb", MemoryError("no room"), after=0)
    with pytest.raises(MemoryBudgetError):
        run(engine(hopeless, method="nufft"), source, grids)


@one_order
def test_small_memory_is_many_chunks(runtime):
    source, grids = batch([40, 50, 60, 35, 45]), shared_grid(0.16, STEP, 400)
    expected = run(engine(runtime, method="nufft"), source, grids)
    runtime.launches.clear()
    out = run(engine(runtime, method="nufft", memory=150_000), source, grids)
    assert sum(launch[0] == "ls_comb" for launch in runtime.launches) > 1
    assert np.abs(out.power - expected.power).max() <= 1e-9
    assert np.array_equal(out.peak_index, expected.peak_index)


@pytest.mark.few
@pytest.mark.parametrize("when", [1, 3])
def test_a_lost_device_leaves_its_objects_to_the_others(when, caplog):
    source, grids = batch([40] * 12), shared_grid(0.16, STEP, 400)
    spec = default_spec(method="nufft")
    expected = run(cuda.Engine(spec, runtime=shim_runtime(sm=PLAIN)), source, grids)
    lost = FaultyRuntime(shim_runtime(sm=PLAIN), "ls_comb", RuntimeError("the device fell off the bus"), after=when - 1)
    e = cuda.Engine(spec, runtime=(FaultyRuntime(shim_runtime(sm=PLAIN)), lost), memory=400_000)
    with caplog.at_level(logging.WARNING, "skysieve"):
        out = run(e, source, grids)
    assert np.abs(out.power - expected.power).max() <= 1e-9
    assert np.array_equal(out.peak_index, expected.peak_index)
    both = cuda.Engine(spec, runtime=(lost, lost), memory=400_000)
    with pytest.raises(RuntimeError, match="fell off the bus"):
        run(both, source, grids)


def test_a_device_lost_when_memory_was_short_leaves_its_objects_too(monkeypatch):
    """The chunk that did not fit is searched by the other device too, when waiting for the earlier chunks fails."""
    source, grids = batch([40] * 12), shared_grid(0.16, STEP, 400)
    spec = default_spec(method="nufft")
    expected = run(cuda.Engine(spec, runtime=shim_runtime(sm=PLAIN)), source, grids)
    short = FaultyRuntime(shim_runtime(sm=PLAIN), "ls_comb", MemoryError("no room"), at=(1,))
    e = cuda.Engine(spec, runtime=(FaultyRuntime(shim_runtime(sm=PLAIN)), short), memory=400_000)

    def fail():
        raise RuntimeError("the device fell off the bus")

    for lane in e.workers[1].lanes:
        monkeypatch.setattr(lane, "free", fail)
    out = run(e, source, grids)
    assert np.abs(out.power - expected.power).max() <= 1e-9


def test_an_error_of_a_callback_is_raised_unchanged(caplog):
    source, grids = batch([40] * 12), shared_grid(0.16, STEP, 400)
    runtimes = (FaultyRuntime(shim_runtime(sm=PLAIN)), FaultyRuntime(shim_runtime(sm=PLAIN)))
    e = cuda.Engine(default_spec(method="nufft"), runtime=runtimes, memory=400_000)

    def stop(done, total):
        raise RuntimeError("the window was closed")

    with pytest.raises(RuntimeError, match="window was closed"):
        e.execute(source, grids, Output.allocate(12, 5), progress=stop)
    assert not caplog.records


def test_a_scan_does_not_touch_the_buffers_of_recorded_launches():
    """A replay brings new values only: grids and limits are those in the lane's pinned buffer."""
    e = engine(shim_runtime())
    source, grids = batch([40, 70]), shared_grid(0.16, STEP, 700)
    run(e, source, grids)
    before = [lane._host | lane._device for lane in e.workers[0].lanes]
    contents = [{name: held.copy() for name, held in buffers.items()} for buffers in before]
    assert e.scan(batch([30, 60, 90])).n_used.tolist() == [30, 60, 90]
    for lane, buffers in zip(e.workers[0].lanes, contents, strict=True):
        after = lane._host | lane._device
        assert after.keys() == buffers.keys()
        assert all(np.array_equal(after[name], held) for name, held in buffers.items())


def test_progress_and_nothing_to_do():
    e = engine(shim_runtime(), method="direct")
    seen = []
    source, grids = batch([20, 20]), shared_grid(0.16, STEP, 100)
    out = Output.allocate(2, 5)
    e.execute(source, grids, out, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (2, 2)
    empty = FlatSource(np.zeros(0), np.zeros(0), None, np.array([0]))
    e.execute(empty, grids, Output.allocate(0, 5))
    nobody = FlatSource(np.zeros(0), np.zeros(0), None, np.array([0, 0, 0]))
    out = run(e, nobody, grids)
    assert (out.status == Status.EMPTY).all()
    with pytest.raises(ValueError, match="finufft"):
        cuda.Engine(default_spec(method="finufft"), runtime=shim_runtime(sm=PLAIN))
    with pytest.raises(ValueError, match="at most"):
        e.execute(source, shared_grid(0.1, 1e-9, 2**31), out)


@pytest.mark.slow
def test_sanitized():
    """The same under AddressSanitizer and UBSan, in a process of its own."""
    result = run_sanitized(__file__, "-k", "(comb and not backwards) or direct or list or unsorted")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]


def test_cycles_of_rows_on_a_gpu(runtime):
    """Cycles are those of the host, bit for bit: more objects than a block has threads, some of one row; then fewer
    objects, in the same buffers."""
    rng = np.random.default_rng(2)
    found = SinusoidWorker(runtime, default_spec())
    try:
        for lengths in (rng.integers(1, 9, 300), np.array([1]), np.array([4, 1, 700])):
            offsets = np.append(0, np.cumsum(lengths))
            t = rng.normal(0, 1e4, offsets[-1])
            t[0], t[-1] = np.inf, np.nan
            for df in (np.array([1e-3]), rng.uniform(1e-4, 1e-2, len(lengths))):
                cycles = found.cycles(runtime.xp.asarray(t), offsets, df)()
                expected = bounded_cycles(t[offsets[:-1]], t[offsets[1:] - 1], df)
                assert np.array_equal(cycles, expected)
                assert (expected > 0).any() or len(lengths) == 1
    finally:
        found.close()


@pytest.mark.slow
def test_new_rows_are_put_into_page_locked_memory(runtime, monkeypatch):
    """Flat rows, with and without errors: the answers are the same as without page-locked memory."""
    source, grids = batch([12, 40, 40, 9]), shared_grid(0.16, STEP, 300)
    for given in (source, FlatSource(source.t, source.y, None, source.offsets)):
        found, calls, staged = [], [], cuda.staged
        monkeypatch.setattr(cuda, "staged", lambda *a, calls=calls, staged=staged: calls.append(1) or staged(*a))
        for fewest in (1, 1 << 40):
            monkeypatch.setattr(cuda, "FEWEST_STAGED", fewest)
            engine = cuda.Engine(default_spec(method="nufft"), runtime=runtime, threads=2)
            found.append([run(engine, given, grids, power=False) for _ in range(2)])
            engine.close()
        assert len(calls) == 1  # the second time the division is known
        for one, other in zip(*found, strict=True):
            assert np.array_equal(one.peak_power, other.peak_power, equal_nan=True)
            assert np.array_equal(one.span, other.span)
            assert (one.status == 0).all()
