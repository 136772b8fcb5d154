"""Rows of a chunk whose launches are recorded: what the kernels would read is looked at (no GPU needed)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.gpu.batches import FlatSource, batch, shared_grid

from skysieve.core.staging import HostLane
from skysieve.periodogram import cuda, cuda_worker
from skysieve.periodogram.workload import Output, Spec

GRID = shared_grid(0.2, 1 / 1200, 3000)


class Recorder(HostLane):
    """A lane that records: a replay notes the bytes that lie on its device.  Its transfers are counted."""

    def __init__(self, runtime: Any) -> None:
        super().__init__(runtime)
        self.seen: list[np.ndarray] = []
        self.transfers = 0

    def record(self, work: Any) -> Any:
        self.recording = True
        before = self.transfers
        work()
        assert self.transfers == before  # nothing is sent by a recorded launch
        self.recording = False
        return lambda: self.seen.append(self._device["data"].copy())

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
        name="fake", index=0, kind="cuda", sm_count=132, shared_per_block=232_448, total_memory=2**34, free_memory=2**34
    )
    module = SimpleNamespace(launch=lambda *a, **k: None)
    runtime = SimpleNamespace(xp=Arrays(), device=device, module=lambda *a, **k: module, synchronize=lambda: None)
    monkeypatch.setattr(cuda_worker, "make_lane", Recorder)
    monkeypatch.setattr(cuda, "deliver", lambda *a: None)  # no kernel has written answers
    return cuda.Engine(Spec(n_peaks=2, method="nufft"), runtime=runtime)


def rows_of(source: FlatSource, start: int, stop: int) -> list[np.ndarray]:
    return [a.view(np.uint8) for a in source.read(start, stop)[:3]]


@pytest.mark.parametrize("straight", [1 << 20, 0])
def test_every_run_sends_its_own_rows(engine, monkeypatch, straight):
    """Straight from the user's arrays, and by the pinned buffer: the recorded launch finds the rows of its chunk."""
    monkeypatch.setattr(cuda_worker, "STRAIGHT", straight)
    monkeypatch.setattr(cuda, "FEWEST_ROWS", 3000)
    lengths = [40, 90, 200, 31] * 12
    output = Output.allocate(len(lengths), 2)
    for seed in range(6):
        source = batch(lengths, seed=seed)
        lanes = engine.workers[0].lanes
        for lane in lanes:
            lane.seen.clear()
        engine.execute(source, GRID, output)
        if seed < 1:
            continue
        chunks = engine._cache._cut[1]
        assert 2 <= len(chunks) <= len(lanes)
        for lane, (start, stop) in zip(lanes, chunks, strict=False):
            (bytes_there,) = lane.seen
            at = 0
            for a in rows_of(source, start, stop):
                assert np.array_equal(bytes_there[at : at + a.nbytes], a)
                at += -(-a.nbytes // 256) * 256


def test_a_failed_launch_is_not_replayed(engine, monkeypatch):
    """After a chunk of other objects could not be launched, the one recorded before is launched anew."""
    source, other = batch([50] * 8), batch([70] * 9)
    output = Output.allocate(9, 2)
    for _ in range(3):
        engine.execute(source, GRID, output)
    worker, lane = engine.workers[0], engine.workers[0].lanes[0]
    assert len(lane.seen) == 2
    launch = worker._launch

    def fail(*a: Any) -> None:
        launch(*a)
        raise ValueError("a kernel that cannot be launched")

    monkeypatch.setattr(worker, "_launch", fail)
    with pytest.raises(ValueError, match="cannot be launched"):
        engine.execute(other, GRID, output)
    monkeypatch.setattr(worker, "_launch", launch)
    engine.execute(source, GRID, output)
    assert len(lane.seen) == 2
