"""The periodogram on a GPU whose memory is short: chunks are halved, the answers stay, what does not fit is told."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from tests.gpu.batches import batch, default_spec, run, shared_grid

from skysieve.core.device import resolve
from skysieve.core.errors import MemoryBudgetError
from skysieve.core.kernels import CudaRuntime
from skysieve.periodogram import cuda

pytestmark = pytest.mark.gpu

GRID = shared_grid(0.16, 1 / 1200, 4000)


@pytest.fixture
def room():
    """Sets how many bytes CuPy may take beyond what it holds now."""
    pool = pytest.importorskip("cupy").get_default_memory_pool()
    before = pool.get_limit()

    def limit(size: int) -> None:
        pool.free_all_blocks()
        pool.set_limit(size=pool.total_bytes() + size)

    yield limit
    pool.set_limit(size=before)


@pytest.mark.parametrize("spec", [{"method": "nufft"}, {"nterms": 2}], ids=str)
def test_a_card_without_room(room, caplog, spec):
    """Real allocations fail, in launches that are recorded too; with room again the same plan goes on as before."""
    source = batch([50] * 1000)
    engine = cuda.Engine(default_spec(**spec), runtime=CudaRuntime(resolve("cuda:0")[0]))
    expected = run(engine, source, GRID)
    engine.close()  # gives its buffers back; they are made anew
    room(12 << 20)
    for _ in range(3):
        with caplog.at_level(logging.WARNING, "skysieve"):
            out = run(engine, source, GRID)
        assert np.array_equal(out.peak_index, expected.peak_index)
        assert np.abs(out.power - expected.power).max() <= 2e-8
    assert "trying halves" in caplog.text
    engine.close()
    room(1000)
    with pytest.raises(MemoryBudgetError, match=r"object 0 does not fit on cuda:0 .* even alone .Out of memory"):
        run(engine, source, GRID)
    room(1 << 30)
    for _ in range(4):
        assert np.array_equal(run(engine, source, GRID).power, expected.power)
    engine.close()
