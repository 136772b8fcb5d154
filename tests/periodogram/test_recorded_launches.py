"""Rows of a chunk whose launches are recorded: what the kernels would read is looked at (no GPU needed)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.gpu.batches import batch, only_samples, shared_grid

from skysieve.core.gpu.staging import HostLane
from skysieve.periodogram.contract import Output, Spec
from skysieve.periodogram.cuda import engine as cuda
from skysieve.periodogram.cuda import run as cuda_run
from skysieve.periodogram.cuda import worker as cuda_worker
from skysieve.periodogram.cuda.graphs import MOST, MOST_ROWS, Launches, Recorded

GRID = shared_grid(0.2, 1 / 1200, 3000)


class Recorder(HostLane):
    """A lane that records: a replay notes the bytes that lie on its device.  Its transfers are counted."""

    def __init__(self, runtime: Any) -> None:
        super().__init__(runtime)
        self.seen: list[dict[str, np.ndarray]] = []
        self.transfers = 0
        self.waits: list[int] = []

    def after_caller(self) -> None:
        assert not self.recording
        self.waits.append(len(self.seen))

    def record(self, work: Any) -> Any:
        self.recording = True
        before = self.transfers
        work()
        assert self.transfers == before  # nothing is sent by a recorded launch
        self.recording = False
        data = sorted(self._device.items())
        return lambda: self.seen.append({name: held.copy() for name, held in data if name.startswith("data")})

    def to_device(self, target: Any, source: Any) -> None:
        self.transfers += 1
        target.reshape(-1).view(np.uint8)[...] = source.reshape(-1).view(np.uint8)


class Arrays:
    """NumPy's functions under another name, so that arrays are taken for a device's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> cuda.Engine:
    device = SimpleNamespace(
        name="fake",
        index=0,
        kind="cuda",
        sm_count=132,
        shared_per_block=232_448,
        total_memory=2**34,
        free_memory=2**34,
        compute_capability=(9, 0),
    )
    module = SimpleNamespace(launch=lambda *a, **k: None)
    runtime = SimpleNamespace(xp=Arrays(), device=device, module=lambda *a, **k: module, synchronize=lambda: None)
    runtime.compile_ahead = lambda wanted: None
    monkeypatch.setattr(cuda_worker, "make_lane", Recorder)
    monkeypatch.setattr(cuda_run, "deliver", lambda *a: None)  # no kernel has written answers
    return cuda.Engine(Spec(n_peaks=2, method="nufft"), runtime=runtime)


def holds(held: np.ndarray, rows: list[np.ndarray]) -> bool:
    """Do the rows lie one after another in a buffer, each at a multiple of 256 bytes?"""
    at, same = 0, True
    for a in rows:
        same &= np.array_equal(held[at : at + a.nbytes], a.view(np.uint8))
        at += -(-a.nbytes // 256) * 256
    return same


@pytest.mark.parametrize("straight", [1 << 20, 0])
@pytest.mark.parametrize("rows", [3000, 700])
def test_every_run_sends_its_own_rows(engine, monkeypatch, straight, rows):
    """Straight from the user's arrays, and by the pinned buffer; also where a lane has several chunks of a run."""
    monkeypatch.setattr(cuda_worker, "STRAIGHT", straight)
    monkeypatch.setattr(cuda, "FEWEST_ROWS", rows)
    lengths = [40, 90, 200, 31] * 12
    output = Output.allocate(len(lengths), 2)
    lanes = engine.workers[0].lanes
    for seed in range(7):
        source = batch(lengths, seed=seed)
        for lane in lanes:
            lane.seen.clear()
        engine.execute(source, GRID, output)
        chunks = engine._cache._cut[1]
        assert len(chunks) == {3000: 2, 700: 7}[rows]
        if seed >= 3:  # the buffers have grown, every launch has been recorded
            assert sum(len(lane.seen) for lane in lanes) == len(chunks)
        for lane, first in zip(lanes, range(3), strict=True):
            for seen, (start, stop) in zip(lane.seen[::-1], chunks[first::3][::-1], strict=False):
                assert sum(holds(held, source.read(start, stop)[:3]) for held in seen.values()) == 1


def test_every_recorded_launch_keeps_its_own_coefficients(engine, monkeypatch):
    """They are made by the launch before the recorded one, so no other launch of the lane may write there."""
    only_samples(monkeypatch)
    monkeypatch.setattr(cuda, "FEWEST_ROWS", 700)
    source, output = batch(list(range(40, 136, 2))), Output.allocate(48, 2)
    for _ in range(5):
        engine.execute(source, GRID, output)
    worker = engine.workers[0]
    for lane in worker.lanes:
        names = [launch.data for launch in worker.launches._known[id(lane)].values()]
        assert len(set(names)) == len(names) >= 2
        assert {f"{name}_0_taps" for name in names} <= lane._device.keys()


def test_rows_on_the_device_are_one_chunk(engine, monkeypatch):
    """Nothing is copied beside them, unless powers go home; cuts of the two kinds are not taken for each other."""
    monkeypatch.setattr(cuda, "FEWEST_ROWS", 700)
    source, worker = batch([40, 90, 200, 31] * 12), engine.workers[0]
    plan = engine._plan(source, GRID, Output.allocate(48, 2))
    home = engine._plan(source, GRID, Output.allocate(48, 2, np.empty(48 * 3000)))
    assert (plan.home, home.home) == (False, True)
    assert len(engine.cut(source, plan, worker)) == 7
    monkeypatch.setattr(cuda, "is_device_array", lambda a: True)
    assert engine.cut(source, plan, worker) == [(0, 48)]
    assert len(engine.cut(source, home, worker)) == 7
    for _ in range(2):
        for there in (False, True):
            assert engine._cache.cut(source.offsets, there, lambda there=there: [(0, 48 - there)]) == [(0, 48 - there)]


def test_arrays_of_a_device_are_waited_for(engine, monkeypatch):
    """Every launch, recorded or not, and every first look waits for the stream that makes the caller's arrays."""
    source = batch([50] * 8)
    output = Output.allocate(8, 2)
    lane, spare = engine.workers[0].lanes[0], engine.workers[0].spare
    for _ in range(3):
        engine.execute(source, GRID, output)
    assert lane.waits == []
    monkeypatch.setattr(cuda_worker, "is_device_array", lambda a: a is not None)
    lane.seen.clear()
    for _ in range(4):
        engine.execute(source, GRID, output)
    assert len(lane.waits) == 4
    assert lane.waits[-1] == len(lane.seen) - 1  # before the replay
    engine.scan(source)
    assert len(spare.waits) == 1


def test_threads_of_one_plan_take_turns(engine, monkeypatch):
    """They share lanes and buffers: each one's rows must still lie there when they are searched."""
    lane, launch, same = engine.workers[0].lanes[0], engine.workers[0]._launch, []

    def slow(on: Any, job: Any) -> None:
        launch(on, job)
        time.sleep(0.01)
        same.append(any(holds(on._device[name], [job.t, job.y, job.dy]) for name in on._device if "data" in name))

    monkeypatch.setattr(engine.workers[0], "_launch", slow)
    monkeypatch.setattr(lane, "record", lambda work: work())
    sources = [batch([50] * 8, seed=seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda source: engine.execute(source, GRID, Output.allocate(8, 2)), sources))
    assert same == [True] * 8


def test_a_failed_launch_is_not_replayed(engine, monkeypatch):
    """Chunks of other objects that could not be launched leave the one recorded before as it was."""
    source, other = batch([50] * 8), batch([70] * 9)
    output = Output.allocate(9, 2)
    for _ in range(4):
        engine.execute(source, GRID, output)
    worker, lane = engine.workers[0], engine.workers[0].lanes[0]
    launch = worker._launch

    def fail(*a: Any) -> None:
        launch(*a)
        raise ValueError("a kernel that cannot be launched")

    monkeypatch.setattr(worker, "_launch", fail)
    for _ in range(6):
        with pytest.raises(ValueError, match="cannot be launched"):
            engine.execute(other, GRID, output)
    monkeypatch.setattr(worker, "_launch", launch)
    lane.seen.clear()
    for _ in range(3):
        engine.execute(source, GRID, output)
    for seen in lane.seen:
        assert sum(holds(held, source.read(0, 8)[:3]) for held in seen.values()) == 1


def test_what_a_lane_keeps():
    """Some launches of few rows, one of many; none that a moved buffer has spoilt."""
    lane, launches = SimpleNamespace(generation=1), Launches()
    for key in range(MOST + 2):
        launches.keep(lane, (key,), Recorded(1, [], launches.room(lane, 10)))
    known = [launches.known(lane, (key,)) for key in range(MOST + 2)]
    assert known[:2] == [None, None]
    assert sorted(k.data for k in known[2:]) == [f"data{i}" for i in range(MOST)]
    launches.keep(lane, ("long",), Recorded(1, [], launches.room(lane, MOST_ROWS + 1)))
    assert launches.known(lane, (MOST + 1,)) is None
    assert launches.known(lane, ("long",)) is launches.last(lane)
    lane.generation = 2
    assert launches.known(lane, ("long",)) is None
    assert launches.room(lane, 10) == "data0"
    launches.forget(lane)
    assert launches.known(lane, ("long",)) is None
