"""The periodogram on a GPU that is short of memory, or lost: same answers, clear errors; and the longest grids."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.gpu.batches import batch, default_spec, run, shared_grid

from skysieve.core.device import resolve
from skysieve.core.errors import MemoryBudgetError
from skysieve.core.gpu.runtime import CudaRuntime
from skysieve.periodogram.contract import Grids
from skysieve.periodogram.cuda import engine as cuda

pytestmark = pytest.mark.gpu

GRID = shared_grid(0.16, 1 / 1200, 4000)
ROOT = Path(__file__).resolve().parents[2]
PATHS = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


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
    """Real allocations fail, also of recorded launches; with room again the same plan works as before."""
    source = batch([50] * 1000)
    engine = cuda.Engine(default_spec(**spec), runtime=CudaRuntime(resolve("cuda:0")[0]))
    expected = run(engine, source, GRID)
    engine.close()  # frees its buffers, which are then allocated anew
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


LOST = """
import cupy
from skysieve import LombScarglePlan
from tests.gpu.batches import batch

source = batch([50] * 3000)
with LombScarglePlan(fmin=0.16, fmax=4, nf=4000, method="nufft", device="cuda", return_power=False) as plan:
    for _ in range(4):
        plan.execute(source.t, source.y, source.dy, offsets=source.offsets)
    cupy.RawKernel('extern "C" __global__ void fail() { asm("trap;"); }', "fail")((1,), (1,), ())
    try:
        plan.execute(source.t, source.y, source.dy, offsets=source.offsets)
    except RuntimeError as error:
        print("error:", error, flush=True)
print("closed", flush=True)
"""


def test_a_gpu_that_is_really_lost():
    """A kernel of somebody else ends the device's context: the driver's error reaches the caller, the plan closes."""
    run_there = [sys.executable, "-c", LOST]
    done = subprocess.run(run_there, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT, env=PATHS)
    assert "error: cuda" in done.stdout, done.stdout + done.stderr
    assert "closed" in done.stdout, done.stdout + done.stderr


def test_as_many_frequencies_as_there_may_be():
    """The last numbers of a grid of 2^30: a signal there is found, a grid of one more is refused."""
    nf = cuda.MOST_INDEX
    source = batch([300, 40])
    engine = cuda.Engine(default_spec(method="nufft"), runtime=CudaRuntime(resolve("cuda:0")[0]))
    df = 20 / nf
    last = 0.1 + df * (nf - 1_000_000)
    source.y[:300] = np.sin(2 * np.pi * last * source.t[:300])
    grids = Grids(np.full(2, 0.1), np.array([df, 1 / 1200]), np.array([nf, 3000]), False)
    out = run(engine, source, grids, power=False)
    flat = np.sqrt(1e-9) / (np.pi * df * 120)  # in so many steps, the power falls by about its error
    assert abs(int(out.peak_index[0, 0]) - (nf - 1_000_000)) <= 2 * flat
    alone = run(engine, source, shared_grid(0.1, 1 / 1200, 3000), power=False)
    assert np.array_equal(out.peak_index[1], alone.peak_index[1])
    with pytest.raises(ValueError, match=f"nf={nf + 1}"):
        run(engine, source, shared_grid(0.1, df, nf + 1), power=False)
    engine.close()
