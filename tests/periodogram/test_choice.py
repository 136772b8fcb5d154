"""The choice between direct sums and the non-uniform FFT on a GPU, as an engine describes it (no GPU needed).

The choice is compared with the engine's predicted times; ``benchmarks`` compare these with measured times.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.gpu.batches import FlatSource, batch, default_spec, run, shared_grid
from tests.kernels.shim import shim_runtime

from skysieve.periodogram.cpu.cost import choose
from skysieve.periodogram.cuda import engine as cuda

DTYPES = [np.dtype(np.float64), np.dtype(np.float32)]
SHARED = (48 << 10, 64 << 10, 99 << 10, 163 << 10, 227 << 10)
"""Shared memory of a block, from old GPUs to new ones."""


def engine(shared: int = 227 << 10, matrix: bool = False, **spec: Any) -> cuda.Engine:
    """An engine of a GPU of 132 multiprocessors, on which nothing is run."""
    runtime = shim_runtime()
    runtime.device = replace(runtime.device, sm_count=132, shared_per_block=shared)
    made = cuda.Engine(default_spec(return_power=False, **spec), runtime=runtime)
    made._matrix = matrix
    return made


def describe(e: cuda.Engine, points: int, nf: int, cycles: float, objects: int = 1000) -> tuple[str, float]:
    """Method and predicted seconds for objects of ``points`` rows and a step of ``cycles`` over their span."""
    t = np.sort(np.random.default_rng(points).random(points))
    t[0], t[-1] = 0, 120
    same = FlatSource(np.tile(t, objects), np.tile(t, objects), None, points * np.arange(objects + 1))
    facts = e.describe(same, shared_grid(0.2, cycles / 120, nf))
    return facts["method"], next(value for key, value in facts["work"].items() if key != "calls")


def sizes(seed: int, count: int) -> list[tuple[int, int, float]]:
    rng = np.random.default_rng(seed)
    points = np.exp(rng.uniform(np.log(5), np.log(300), count)).astype(int)
    nf = np.exp(rng.uniform(np.log(100), np.log(300_000), count)).astype(int)
    cycles = np.exp(rng.uniform(np.log(0.002), np.log(0.6), count))
    return list(zip(points.tolist(), nf.tolist(), cycles.tolist(), strict=True))


FACTOR = 1.6
"""Predictions are those of direct sums alone.  The choice also counts that they take 1.2 times as long beside others
and up to 1.3 times where the points do not fit into the tables of a block at once."""
INEXACT = 30
"""Objects of fewer points always get direct sums: after the FFT, most of their powers would be computed again."""


@pytest.mark.few
@pytest.mark.parametrize("matrix", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_choice_is_never_much_slower_than_the_best(dtype, matrix):
    auto, direct, nufft = (engine(matrix=matrix, dtype=dtype, method=m) for m in ("auto", "direct", "nufft"))
    chosen = set()
    for points, nf, cycles in sizes(1, 50):
        method, seconds = describe(auto, points, nf, cycles)
        chosen.add(method)
        times = [describe(e, points, nf, cycles) for e in (direct, nufft)]
        assert times[0][0] == "direct"
        if points > INEXACT:
            assert seconds <= FACTOR * min(s for _, s in times), (points, nf, cycles, method, times)
    assert chosen == {"direct", "nufft"}


@pytest.mark.few
@pytest.mark.parametrize("matrix", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_more_points_never_turn_the_choice_back(dtype, matrix):
    e = engine(matrix=matrix, dtype=dtype)
    for _, nf, cycles in sizes(2, 8):
        methods = [describe(e, points, nf, cycles)[0] for points in (4, 8, 15, 25, 40, 60, 100, 250, 1000)]
        assert methods == sorted(methods), (nf, cycles)  # "direct" comes first


@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_gpu_has_a_prediction(dtype, shared):
    """More objects take longer; more points and frequencies do so but for a step where the method changes."""
    e = engine(shared, dtype=dtype)
    for points, nf, cycles in sizes(3, 10):
        _, seconds = describe(e, points, nf, cycles)
        assert 0 < seconds < describe(e, points, nf, cycles, objects=3000)[1]
        assert seconds <= 1.25 * describe(e, 2 * points, nf, cycles)[1]
        assert seconds <= 1.25 * describe(e, points, 2 * nf, cycles)[1]


@pytest.mark.slow
def test_the_choice_does_not_depend_on_the_other_objects():
    """Alone, with others and in any order: only the number of points counts."""
    e, grids = cuda.Engine(default_spec(return_power=False), runtime=shim_runtime()), shared_grid(0.16, 1 / 1200, 700)
    source = batch([8, 30, 31, 60, 12, 45])
    together = run(e, source, grids, power=False).method
    assert set(together) == {1, 2}
    order = np.array([3, 5, 0, 1, 4, 2])
    rows = np.concatenate([np.arange(*source.offsets[i : i + 2]) for i in order])
    lengths = np.diff(source.offsets)[order]
    turned = FlatSource(source.t[rows], source.y[rows], source.dy[rows], np.append(0, np.cumsum(lengths)))
    assert np.array_equal(run(e, turned, grids, power=False).method, together[order])
    for i in range(source.n_objects):
        mine = slice(*source.offsets[i : i + 2])
        one = FlatSource(source.t[mine], source.y[mine], source.dy[mine], np.array([0, mine.stop - mine.start]))
        assert run(e, one, grids, power=False).method[0] == together[i]


@pytest.mark.parametrize("method", ["auto", "direct", "nufft", "finufft"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_object_on_the_cpu_is_given_the_method_that_it_has_among_others(dtype, method):
    rng = np.random.default_rng(3)
    points, nf = ((10 ** rng.uniform(low, high, 300)).astype(np.int64) for low, high in ((0.4, 6), (0, 7.5)))
    cycles = np.where(rng.random(300) < 0.02, 0.0, 10 ** rng.uniform(-5, 1.5, 300))
    for regular in (True, False):
        together = choose(points, nf, cycles, dtype, method, regular)
        alone = [
            choose(points[i : i + 1], nf[i : i + 1], cycles[i : i + 1], dtype, method, regular) for i in range(300)
        ]
        for found, parts in zip(together, zip(*alone, strict=True), strict=True):
            assert np.array_equal(found, np.concatenate(parts))
    if method == "auto":
        assert len(np.unique(together[0])) == 1
        assert len(np.unique(choose(points, nf, cycles, dtype, method, True)[0])) == 3
