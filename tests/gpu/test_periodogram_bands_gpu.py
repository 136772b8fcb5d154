"""Several bands on a GPU: combs and exact fits against the CPU's exact fits, peaks, arrays on either side, bootstrap.

Tolerances: 1e-8 for the combs, which is what is asked; 1e-9 for exact fits.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.gpu.batches import (
    BAND_MODELS,
    FlatSource,
    bands_engine,
    batch,
    check_bands,
    host,
    in_bands,
    log_normal_lengths,
    run,
    shared_grid,
)

import skysieve
from skysieve.core.device import resolve
from skysieve.core.gpu.runtime import CudaRuntime
from skysieve.periodogram import multiband_bootstrap
from skysieve.periodogram.contract import Grids, Status

pytestmark = pytest.mark.gpu

STEP = 1 / 1200
F64, F32 = np.dtype(np.float64), np.dtype(np.float32)


@pytest.fixture(scope="module")
def runtime():
    return CudaRuntime(resolve("cuda:0")[0])


@pytest.mark.parametrize("model", list(BAND_MODELS))
def test_combs(runtime, model):
    source = in_bands(batch([40, 90, 500, 25, 1300]), 5)
    out = check_bands(bands_engine(model, 5, runtime), source, shared_grid(0.16, STEP, 3000), 1e-8)
    assert (out.method == 2).all()


@pytest.mark.parametrize("cycles", [0.01, 0.25, 0.6, 2.0])
def test_steps(runtime, cycles):
    source, grids = in_bands(batch([60, 300], errors=False), 6), shared_grid(0.16, cycles / 120, 4000)
    check_bands(bands_engine("offsets", 6, runtime), source, grids, 1e-8)
    check_bands(bands_engine("separate", 6, runtime), source, grids, 1e-8)


@pytest.mark.parametrize("model", list(BAND_MODELS))
def test_exact_fits(runtime, model):
    source, grids = in_bands(batch([14, 40, 333]), 2), shared_grid(0.16, STEP, 700)
    out = check_bands(bands_engine(model, 2, runtime, method="direct"), source, grids, 1e-9)
    assert (out.method == 1).all()


def test_list_of_frequencies_and_many_bands(runtime):
    values = np.sort(np.random.default_rng(0).random(900)) * 23 + 0.1
    grids = Grids(values[:1], np.zeros(1), np.array([900]), True, values)
    check_bands(bands_engine("flexible", 3, runtime), in_bands(batch([50, 300]), 3), grids, 1e-9)
    source = in_bands(batch([300, 900]), 40)
    check_bands(bands_engine("offsets", 40, runtime), source, shared_grid(0.16, STEP, 900), 1e-8)
    check_bands(bands_engine("separate", 40, runtime), source, shared_grid(0.16, STEP, 300), 1e-8)


@pytest.mark.parametrize("normalization", ["model", "log", "psd", "scargle"])
def test_normalizations(runtime, normalization):
    e = bands_engine("offsets", 3, runtime, normalization=normalization)
    check_bands(e, in_bands(batch([45, 90]), 3), shared_grid(0.16, STEP, 1000), 1e-7)


@pytest.mark.parametrize("model", ["offsets", "separate", "flexible"])
def test_objects_that_lack_bands_and_broken_rows(runtime, model):
    source = batch([50, 30, 3, 60, 40, 40])
    rng, a = np.random.default_rng(0), source.offsets
    codes = rng.integers(0, 3, len(source.t))
    codes[a[1] : a[2]] = 1
    for i in range(6):
        turn = rng.permutation(a[i + 1] - a[i])
        for rows in (source.t, source.y, source.dy, codes):
            rows[a[i] : a[i + 1]] = rows[a[i] : a[i + 1]][turn]
    source.t[3], source.y[70], source.dy[a[4] + 5] = np.nan, np.inf, -1.0
    source.y[a[5] : a[6]] = codes[a[5] : a[6]]
    grids = Grids(
        0.1 + 0.01 * np.arange(6), STEP * np.linspace(1, 1.2, 6), np.array([400, 7000, 300, 260, 90, 90]), False
    )
    out = check_bands(bands_engine(model, 3, runtime), in_bands(source, codes=codes), grids, 1e-8)
    assert out.status.tolist() == [0, 0, Status.TOO_FEW_POINTS, 0, Status.BAD_ERRORS, Status.CONSTANT_Y]


@pytest.mark.parametrize("model", ["offsets", "flexible"])
def test_a_ragged_batch_equals_singles_and_float32_stores_float64(runtime, model):
    lengths = log_normal_lengths(30)
    source, grids = in_bands(batch(lengths), 5), shared_grid(0.16, STEP, 3000)
    out = run(bands_engine(model, 5, runtime), source, grids)
    narrow = run(bands_engine(model, 5, runtime, dtype=F32), source, grids)
    assert np.array_equal(narrow.power, out.power.astype(F32), equal_nan=True)
    rows = source.source
    for i in range(0, 30, 7):
        a, b = source.offsets[i : i + 2]
        one = FlatSource(rows.t[a:b], rows.y[a:b], rows.dy[a:b], np.array([0, b - a]))
        single = run(bands_engine(model, 5, runtime), in_bands(one, codes=source.codes[a:b]), grids)
        assert np.array_equal(single.power, out.power[i * 3000 : (i + 1) * 3000], equal_nan=True)
        assert np.array_equal(single.peak_index[0], out.peak_index[i])


def test_kept_plans_with_other_bands(runtime):
    """From the third time on the launches are replayed as a graph; the bands of the rows travel with the rows."""
    source, grids = batch([40, 80, 300]), shared_grid(0.16, STEP, 2000)
    plan = bands_engine("offsets", 3, runtime)
    for seed in range(5):
        banded = in_bands(source, 3, seed=seed)
        fresh = run(bands_engine("offsets", 3, runtime), banded, grids)
        out = run(plan, banded, grids)
        assert np.array_equal(out.power, fresh.power)
        assert np.array_equal(out.peak_index, fresh.peak_index)


def test_streamed_in_chunks_and_on_several_workers(runtime):
    source, grids = in_bands(batch(np.full(300, 50)), 4), shared_grid(0.16, STEP, 2500)
    whole = run(bands_engine("offsets", 4, runtime), source, grids, power=False)
    pieces = run(bands_engine("offsets", 4, runtime, memory="30 MB"), source, grids)
    shared = run(bands_engine("offsets", 4, (runtime, runtime), memory="30 MB"), source, grids)
    for out in (pieces, shared):
        assert (out.status == 0).all()
        assert np.array_equal(out.peak_index, whole.peak_index)


@pytest.mark.parametrize("model", ["offsets", "separate", "flexible"])
def test_the_public_function_on_both_devices_and_arrays_on_the_gpu(model):
    cp = pytest.importorskip("cupy")
    source = in_bands(batch([60, 90, 40]), 3)
    rows = source.source
    grid = {"fmin": 0.1, "fmax": 3.0, "nf": 2000, "n_peaks": 3, "model": model, "offsets": source.offsets}
    names = np.array(["g", "r", "i"])[source.codes]
    on_gpu = skysieve.lombscargle_multiband(rows.t, rows.y, names, rows.dy, device="cuda", **grid)
    here = skysieve.lombscargle_multiband(rows.t, rows.y, names, rows.dy, device="cpu", **grid)
    assert on_gpu.device == "cuda:0"
    np.testing.assert_allclose(on_gpu.power, here.power, rtol=0, atol=1e-8)
    np.testing.assert_array_equal(on_gpu.peaks.index, here.peaks.index)
    flat = (cp.asarray(rows.t), cp.asarray(rows.y))
    on_gpu = skysieve.lombscargle_multiband(*flat, cp.asarray(source.codes), cp.asarray(rows.dy), **grid)
    assert isinstance(on_gpu.power, cp.ndarray)
    codes_of_names = skysieve.lombscargle_multiband(rows.t, rows.y, source.codes, rows.dy, device="cuda", **grid)
    np.testing.assert_array_equal(host(on_gpu.power), codes_of_names.power)


def test_bootstrap():
    t, band = np.sort(np.random.default_rng(1).uniform(0, 60, 80)), np.random.default_rng(2).integers(0, 3, 80)
    y = np.random.default_rng(3).normal(size=80)
    grid = {"fmin": 0.1, "fmax": 2.0, "nf": 600}
    levels = np.array([0.05, 0.2, 0.3, 0.9])
    shares = [
        multiband_bootstrap(levels, t, y, band, n=500, seed=2, device=device, **grid) for device in ("cuda", "cpu")
    ]
    np.testing.assert_array_equal(*shares)
    assert shares[0][0] == 1.0
    assert shares[0][3] == 0.0
