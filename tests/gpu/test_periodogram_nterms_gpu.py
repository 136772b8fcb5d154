"""Series of several terms on a GPU: combs and exact fits against the CPU's exact fits, peaks, arrays on either side.

Tolerances: 1e-8 for the combs, which is what is asked; 1e-9 for exact fits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.gpu.batches import (
    FlatSource,
    batch,
    default_spec,
    host,
    log_normal_lengths,
    run,
    same_maxima,
    same_peaks,
    shared_grid,
)

from skysieve.core.device import resolve
from skysieve.core.gpu.runtime import CudaRuntime
from skysieve.periodogram.contract import Grids
from skysieve.periodogram.cuda import engine as cuda

pytestmark = pytest.mark.gpu

STEP = 1 / 1200
F64, F32 = np.dtype(np.float64), np.dtype(np.float32)


@pytest.fixture(scope="module")
def runtime():
    return CudaRuntime(resolve("cuda:0")[0])


def engine(runtime, memory=None, **spec):
    return cuda.Engine(default_spec(**spec), runtime=runtime, memory=memory)


def check(e, source, grids, tolerance):
    """Powers against the CPU's direct sums (NaN at the same places), maxima against the CPU's."""
    from skysieve.periodogram.cpu import engine as cpu

    judge = cpu.Engine(replace(e.spec, method="direct", dtype=F64))
    out, expected = run(e, source, grids), run(judge, source, grids)
    judge.close()
    assert np.array_equal(out.status, expected.status)
    assert np.array_equal(np.isnan(out.power), np.isnan(expected.power))
    scale = np.maximum(1, np.nan_to_num(np.abs(expected.power)))
    assert np.nanmax(np.abs(out.power - expected.power) / scale, initial=0) <= tolerance
    same_maxima(out, expected)
    same_peaks(run(e, source, grids, power=False), out)
    e.close()
    return out


@pytest.mark.parametrize("nterms", [2, 3, 4, 7, 8, 9])
def test_combs(runtime, nterms):
    few = 25 if nterms < 8 else 45  # 17 columns of 25 points reach a condition of 2e11
    source = batch([40, 90, 500, few, 1300], errors=False)
    out = check(engine(runtime, nterms=nterms), source, shared_grid(0.16, STEP, 3000), 1e-8)
    assert (out.method == 2).all()


@pytest.mark.parametrize("cycles", [0.001, 0.01, 0.04, 0.25, 0.6])
def test_steps(runtime, cycles):
    check(engine(runtime, nterms=4), batch([60, 300], errors=False), shared_grid(0.16, cycles / 120, 4000), 1e-8)


def test_narrow_bands_and_long_series(runtime):
    """Samples of the low harmonics are separate stretches; all warps of a block fit what is in doubt of long series."""
    check(engine(runtime, nterms=4), batch([60, 5000], errors=False), shared_grid(20.0, STEP, 600), 1e-8)
    rng = np.random.default_rng(5)
    t = np.sort(rng.choice(4000, 900, replace=False)) * 0.25
    source = FlatSource(t, rng.standard_normal(900), None, np.array([0, 900]))
    out = check(engine(runtime, nterms=2), source, shared_grid(0.875, 2.0**-13, 1500), 1e-8)
    assert np.isnan(out.power).sum() == 1  # 1 a day: sines of both terms vanish


def test_grids_of_their_own(runtime):
    some = np.arange(3)
    grids = Grids(0.1 + 0.3 * some, STEP * (1 + 0.1 * some), np.array([4000, 900, 2500]), False)
    check(engine(runtime, nterms=3), batch([50, 300, 90]), grids, 1e-8)


def test_errors_and_no_mean(runtime):
    source, grids = batch([120, 400]), shared_grid(0.16, STEP, 2000)
    check(engine(runtime, nterms=2), source, grids, 1e-8)
    check(engine(runtime, nterms=3, fit_mean=False), source, grids, 1e-8)


@pytest.mark.parametrize("nterms", [0, 2, 10])
def test_exact_fits(runtime, nterms):
    out = check(
        engine(runtime, nterms=nterms, method="direct"), batch([12, 40, 333]), shared_grid(0.16, STEP, 700), 1e-9
    )
    assert set(out.method[out.status == 0]) == {1}  # 12 points have no fit of 21 columns


def test_list_of_frequencies(runtime):
    values = np.sort(np.random.default_rng(0).random(900)) * 23 + 0.1
    grids = Grids(values[:1], np.zeros(1), np.array([900]), True, values)
    check(engine(runtime, nterms=3), batch([50, 300]), grids, 1e-9)


@pytest.mark.parametrize("normalization", ["model", "log", "psd", "scargle"])
def test_normalizations(runtime, normalization):
    e = engine(runtime, nterms=2, normalization=normalization)
    check(e, batch([45, 90]), shared_grid(0.16, STEP, 1000), 1e-7)


def test_singular_frequencies_are_nan_alone(runtime):
    rng = np.random.default_rng(5)
    t = np.sort(rng.choice(200, 60, replace=False)).astype(float)
    source = FlatSource(t, rng.standard_normal(60), None, np.array([0, 60]))
    out = check(engine(runtime, nterms=2), source, shared_grid(0.25, 0.0025, 200), 1e-8)
    assert np.isnan(out.power).sum() == 2  # 1/4 and 1/2 a day


def test_a_ragged_batch_equals_singles_and_float32_stores_float64(runtime):
    lengths = log_normal_lengths(30)
    source, grids = batch(lengths, errors=False), shared_grid(0.16, STEP, 3000)
    out = run(engine(runtime, nterms=4), source, grids)
    narrow = run(engine(runtime, nterms=4, dtype=F32), source, grids)
    assert np.array_equal(narrow.power, out.power.astype(F32), equal_nan=True)
    for i in range(0, 30, 7):
        a, b = source.offsets[i : i + 2]
        one = FlatSource(source.t[a:b], source.y[a:b], None, np.array([0, b - a]))
        single = run(engine(runtime, nterms=4), one, grids)
        assert np.array_equal(single.power, out.power[i * 3000 : (i + 1) * 3000], equal_nan=True)
        assert np.array_equal(single.peak_index[0], out.peak_index[i])


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
def test_arrays_on_the_gpu_and_kept_plans(runtime, dtype):
    """From the third time on the launches are replayed as a graph."""
    cp = pytest.importorskip("cupy")
    source, grids = batch([40, 80, 300], errors=False), shared_grid(0.16, STEP, 2000)
    expected = run(engine(runtime, nterms=3, dtype=dtype), source, grids)
    on_gpu = FlatSource(cp.asarray(source.t), cp.asarray(source.y), None, source.offsets)
    e = engine(runtime, nterms=3, dtype=dtype)
    for _ in range(4):
        out = run(e, on_gpu, grids, xp=cp)
        assert isinstance(out.power, cp.ndarray)
        assert np.array_equal(host(out.power), expected.power, equal_nan=True)
        assert np.array_equal(out.peak_index, expected.peak_index)


def test_streamed_in_chunks(runtime):
    source, grids = batch(np.full(300, 50), errors=False), shared_grid(0.16, STEP, 2500)
    whole = run(engine(runtime, nterms=2), source, grids, power=False)
    pieces = run(engine(runtime, memory="30 MB", nterms=2), source, grids)
    assert (pieces.status == 0).all()
    assert np.array_equal(pieces.peak_index, whole.peak_index)
