"""Launches of the periodogram that are recorded and replayed, on the host shim: each answer is that of a new engine.

On a GPU a chunk like one before is launched as one graph.  Here a graph is the list of the kernels and of the copies of
results that `GraphLane.record` has collected.  The GPU's own graphs are tested in tests/gpu/test_periodogram_gpu.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from skysieve.core.gpu.staging import HostLane
from skysieve.core.gpu.structs import address
from skysieve.periodogram.contract import Grids
from skysieve.periodogram.cuda import engine as cuda
from skysieve.periodogram.cuda import run as cuda_run
from skysieve.periodogram.cuda import worker as cuda_worker
from skysieve.periodogram.cuda.sinusoid import worker as sinusoid_worker
from skysieve.periodogram.lightcurves.sources import ListSource
from tests.gpu.batches import batch, default_spec, only_samples, run, shared_grid
from tests.kernels.shim import ShimRuntime, shim_runtime
from tests.marks import slow

GRID = shared_grid(0.2, 1 / 1200, 300)
LENGTHS = [40, 60, 33, 31] * 4


class Arrays:
    """NumPy under another name, so that the engine takes the runtime for a GPU and uploads rows."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


class GraphModule:
    """A module of the shim whose launches are collected while a graph is recorded."""

    def __init__(self, module: Any, runtime: GraphRuntime) -> None:
        self.module, self.runtime, self.attributes = module, runtime, module.attributes

    def launch(self, *args: Any, **kwargs: Any) -> None:
        self.runtime.start(partial(self.module.launch, *args, **kwargs))


class GraphRuntime(ShimRuntime):
    """A shim that can record; ``graph`` is what is recorded now, ``events`` what happened."""

    xp = Arrays()

    def __init__(self) -> None:
        super().__init__()
        self.graph: list[Callable[[], None]] | None = None
        self.events: list[str] = []

    def module(self, *args: Any, **kwargs: Any) -> GraphModule:
        return GraphModule(super().module(*args, **kwargs), self)

    def start(self, work: Callable[[], None]) -> None:
        if self.graph is None:
            work()
        else:
            self.graph.append(work)


class GraphLane(HostLane):
    """A lane that records as a GPU's does: kernels and copies to the host, without running them."""

    runtime: GraphRuntime

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self.recording, self.runtime.graph = True, []
        try:
            work()
        finally:
            graph, self.recording, self.runtime.graph = self.runtime.graph, False, None
        self.runtime.events.append("record")

        def replay() -> None:
            self.runtime.events.append("replay")
            for each in graph:
                each()

        return replay

    def to_device(self, target: Any, source: Any) -> None:
        assert not self.recording, "a recorded launch sends nothing: what it reads is sent before each replay"
        ctypes.memmove(address(target), address(source), source.nbytes)

    def to_host(self, target: Any, source: Any) -> None:
        self.runtime.start(partial(HostLane.to_host, self, target, source))

    def after_caller(self) -> None:
        assert not self.recording
        self.runtime.events.append("wait for the caller")


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> GraphRuntime:
    shim_runtime()  # skips without g++
    make = cuda_worker.make_lane
    monkeypatch.setattr(cuda_worker, "make_lane", lambda r: GraphLane(r) if isinstance(r, GraphRuntime) else make(r))
    monkeypatch.setattr(cuda_run, "is_pinned", lambda runtime, a: False)  # it would ask CuPy
    return GraphRuntime()


def engine(runtime: Any, **spec: Any) -> cuda.Engine:
    return cuda.Engine(default_spec(**{"method": "nufft", "n_peaks": 2, **spec}), runtime=runtime)


def same(out: Any, expected: Any) -> None:
    assert np.array_equal(out.status, expected.status)
    assert np.array_equal(out.power, expected.power)
    assert np.array_equal(out.peak_index, expected.peak_index)
    assert np.array_equal(out.peak_frequency, expected.peak_frequency)


ROWS_AND_STRAIGHT = [(3000, 0), (150, 1 << 20), slow(3000, 1 << 20), slow(150, 0)]
"""Rows of a chunk, and bytes that are copied straight from the user's arrays."""


@pytest.mark.slow
@pytest.mark.few
@pytest.mark.parametrize(("rows", "straight"), ROWS_AND_STRAIGHT)
def test_lists_are_put_together_in_page_locked_memory(graphs, monkeypatch, straight, rows):
    """Several chunks of a run, and arrays of every size: each answer is that of the joined arrays."""
    monkeypatch.setattr(cuda_worker, "STRAIGHT", straight)
    monkeypatch.setattr(cuda_worker, "STAGED", 0)
    monkeypatch.setattr(cuda, "FEWEST_ROWS", rows)
    kept, locked = engine(graphs), []
    to_device = GraphLane.to_device

    def noted(lane: GraphLane, target: Any, a: Any) -> None:
        if a.dtype == np.float64 and a.size > max(LENGTHS):  # rows of several objects
            locked.append(lane.has_pinned(a))
        to_device(lane, target, a)

    monkeypatch.setattr(GraphLane, "to_device", noted)
    for seed in range(4):
        flat = batch(LENGTHS, seed=seed)
        pieces = ([x[a:b] for a, b in pairwise(flat.offsets)] for x in (flat.t, flat.y, flat.dy))
        same(run(kept, ListSource(*pieces, flat.offsets), GRID), run(engine(shim_runtime()), flat, GRID))
    assert len(locked) >= 12
    assert all(locked)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "straight"), ROWS_AND_STRAIGHT)
def test_every_run_searches_its_own_rows(graphs, monkeypatch, straight, rows):
    """Rows copied straight from the user's arrays, and through the pinned buffer; several chunks of a run in a lane."""
    monkeypatch.setattr(cuda_worker, "STRAIGHT", straight)
    monkeypatch.setattr(cuda, "FEWEST_ROWS", rows)
    kept = engine(graphs)
    for seed in range(6):
        graphs.events.clear()
        source = batch(LENGTHS, seed=seed)
        same(run(kept, source, GRID), run(engine(shim_runtime()), source, GRID))
    chunks = graphs.events.count("replay")
    assert chunks == 1 if rows == 3000 else chunks > 3
    assert "record" not in graphs.events


@pytest.mark.slow
@pytest.mark.few
@pytest.mark.parametrize("nterms", [1, slow(2)])
def test_rows_of_long_chunks_are_copied_by_other_threads(graphs, monkeypatch, nterms):
    """Before their launch, while another chunk is made: new light curves, and those that come again."""
    copies = []
    for module in (cuda_worker, sinusoid_worker):
        monkeypatch.setattr(module, "MOST_ROWS", 100)
    for name in ("FEWEST_ROWS", "FEWEST_NEW"):
        monkeypatch.setattr(cuda, name, 150)
    monkeypatch.setattr(cuda_worker, "STRAIGHT", 0)
    kept = engine(graphs, nterms=nterms)
    start = kept._copier.start
    monkeypatch.setattr(kept._copier, "start", lambda pairs: copies.append(len(pairs)) or start(pairs))
    for seed, lengths in enumerate([LENGTHS, LENGTHS[::-1], LENGTHS, LENGTHS]):
        source, expected = batch(lengths, seed=seed), engine(shim_runtime(), nterms=nterms)
        same(run(kept, source, GRID), run(expected, source, GRID))
        long = sum(source.offsets[b] - source.offsets[a] > 100 for a, b in kept._cache._cut[1])
        assert long > 3
        assert seed > 1 or copies.count(3) == long
        copies.clear()


@pytest.mark.slow
def test_every_recorded_launch_keeps_its_own_coefficients(graphs, monkeypatch):
    """Samples and coefficients of several chunks of a lane, each of which has a grid of its own."""
    only_samples(monkeypatch)
    monkeypatch.setattr(cuda, "FEWEST_ROWS", 150)
    n = len(LENGTHS)
    grids = Grids(0.2 + 0.01 * np.arange(n), np.full(n, 1 / 1200), 300 + 10 * np.arange(n), False)
    kept = engine(graphs)
    kept._matrix = True
    for seed in range(5):
        source, fresh = batch(LENGTHS, seed=seed), engine(shim_runtime())
        fresh._matrix = True
        same(run(kept, source, grids), run(fresh, source, grids))
    assert graphs.events.count("replay") > 6


@pytest.mark.slow
def test_a_run_between_two_others_does_not_change_their_launches(graphs):
    """Other sizes, other grids, and a first look."""
    kept, sources = engine(graphs), [batch([50] * 8), batch([70] * 9)]
    grids = [GRID, shared_grid(0.3, 1 / 1000, 400)]
    for k in range(6):
        source = batch([50] * 8, seed=k)
        same(run(kept, source, GRID), run(engine(shim_runtime()), source, GRID))
        other = sources[k % 2]
        same(run(kept, other, grids[k % 2]), run(engine(shim_runtime()), other, grids[k % 2]))
        assert kept.scan(batch([30, 60, 90])).n_used.tolist() == [30, 60, 90]
    assert graphs.events.count("replay") > 3


@pytest.mark.slow
def test_a_failed_launch_is_not_replayed(graphs, monkeypatch):
    """Chunks of other objects that could not be launched leave the one recorded before as it was."""
    source, other, kept = batch([50] * 8), batch([70] * 9), engine(graphs)
    expected = run(engine(shim_runtime()), source, GRID)
    for _ in range(4):
        same(run(kept, source, GRID), expected)
    worker = kept.workers[0]
    launch = worker._launch

    def fail(*args: Any) -> None:
        launch(*args)
        raise ValueError("a kernel that cannot be launched")

    monkeypatch.setattr(worker, "_launch", fail)
    for _ in range(6):
        with pytest.raises(ValueError, match="cannot be launched"):
            run(kept, other, GRID)
    monkeypatch.setattr(worker, "_launch", launch)
    for _ in range(3):
        same(run(kept, source, GRID), expected)
    same(run(kept, other, GRID), run(engine(shim_runtime()), other, GRID))


@pytest.mark.slow
def test_threads_of_one_plan_take_turns(graphs):
    """Threads share lanes and buffers: the rows of each must not be overwritten before they are searched."""
    kept, sources = engine(graphs), [batch([50] * 8, seed=seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda source: run(kept, source, GRID), sources))
    for source, out in zip(sources, found, strict=True):
        same(out, run(engine(shim_runtime()), source, GRID))


def test_arrays_of_a_device_are_waited_for(graphs, monkeypatch):
    """Every launch, recorded or not, and every first look waits for the stream that makes the caller's arrays."""
    source, kept = batch([50] * 8), engine(graphs)
    run(kept, source, GRID)
    assert "wait for the caller" not in graphs.events
    monkeypatch.setattr(cuda_worker, "is_device_array", lambda a: a is not None)
    graphs.events.clear()
    for k in range(1, 5):
        run(kept, source, GRID, power=False)
        assert graphs.events.count("wait for the caller") == k
    assert graphs.events[-2:] == ["wait for the caller", "replay"]
    kept.scan(source)
    assert graphs.events.count("wait for the caller") == 5
