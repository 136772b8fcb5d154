"""Series of several terms on a GPU: large batches, arrays on the GPU, recorded launches, chunks.

Every kernel is tested in tests/kernels/test_periodogram_fourier.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.gpu.batches import (
    FlatSource,
    batch,
    default_spec,
    host,
    log_normal_lengths,
    run,
    shared_grid,
)

from skysieve.core.device import resolve
from skysieve.core.gpu.runtime import CudaRuntime
from skysieve.periodogram.cuda import engine as cuda

pytestmark = pytest.mark.gpu

STEP = 1 / 1200
F64, F32 = np.dtype(np.float64), np.dtype(np.float32)


@pytest.fixture(scope="module")
def runtime():
    return CudaRuntime(resolve("cuda:0")[0])


def engine(runtime, memory=None, **spec):
    return cuda.Engine(default_spec(**spec), runtime=runtime, memory=memory)


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
