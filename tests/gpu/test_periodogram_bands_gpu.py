"""Several bands on a GPU: large batches, recorded launches, chunks, public functions, arrays on the GPU.

Every kernel is tested in tests/kernels/test_periodogram_bands.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.gpu.batches import (
    FlatSource,
    bands_engine,
    batch,
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

pytestmark = pytest.mark.gpu

STEP = 1 / 1200
F32 = np.dtype(np.float32)


@pytest.fixture(scope="module")
def runtime():
    return CudaRuntime(resolve("cuda:0")[0])


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
