"""Device memory that chunks are cut by, against what their launches take (no GPU needed)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gpu.batches import bands_engine, batch, default_spec, in_bands, shared_grid

from skysieve.core.gpu.staging import GROWTH, HostLane
from skysieve.periodogram.contract import Grids, Output
from skysieve.periodogram.cuda import engine as cuda
from skysieve.periodogram.cuda import run as cuda_run
from skysieve.periodogram.cuda import worker as cuda_worker
from skysieve.periodogram.cuda.chunks import Chunk, make_job

STEP = 1 / 1200
FIXED = 2 << 20
"""Bytes of a lane however little it has to do: tasks, and lists of weakly determined fits."""


class Counting(HostLane):
    """A lane that notes the bytes asked for by name."""

    def __init__(self, runtime: Any) -> None:
        super().__init__(runtime)
        self.asked: dict[str, int] = {}

    def array(self, name: str, size: int, dtype: Any, zero: bool = False) -> Any:
        self.asked[name] = max(self.asked.get(name, 0), max(1, int(size)) * np.dtype(dtype).itemsize)
        return super().array(name, size, dtype)

    def to_device(self, target: Any, source: Any) -> None:
        target.reshape(-1).view(np.uint8)[...] = source.reshape(-1).view(np.uint8)


class Arrays:
    """NumPy's functions under another name, so that rows are uploaded."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(cuda_worker, "make_lane", Counting)
    device = SimpleNamespace(name="fake", index=0, kind="cuda", sm_count=132, shared_per_block=232_448)
    device.compute_capability, device.total_memory, device.free_memory = (9, 0), 2**36, 2**36
    device.fast_doubles = True
    module = SimpleNamespace(launch=lambda *a, **k: None)
    made = SimpleNamespace(xp=Arrays(), device=device, module=lambda *a, **k: module, synchronize=lambda: None)
    made.compile_ahead = lambda wanted: None
    return made


def planned_and_taken(engine: cuda.Engine, source: Any, grids: Grids, power: bool) -> tuple[float, float]:
    """Bytes for all objects in one chunk."""
    n = source.n_objects
    powers = np.empty(int(grids.offsets(n)[-1]), engine.spec.dtype) if power else None
    output = Output.allocate(n, engine.spec.n_peaks, powers)
    settings, worker = engine._settings(source, grids, output), engine.workers[0]
    job = make_job(settings, source, Chunk(0, n), output)
    worker._launch(worker.lanes[0], job)
    lane: Any = worker.lanes[0]
    return settings.row_bytes() * job.n_rows + engine._object_bytes(settings, source) * n, sum(lane.asked.values())


CASES: dict[str, dict[str, Any]] = {
    "one term": {"method": "nufft"},
    "float32": {"method": "nufft", "dtype": np.dtype(np.float32)},
    "direct": {"method": "direct"},
    "three terms": {"nterms": 3},
    "three terms, float32": {"nterms": 3, "dtype": np.dtype(np.float32)},
}
SIZES = [((200,) * 40, 28_608), ((5,) * 300, 700), ((3000,) * 6, 3000)]


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("case", [*CASES, "offsets", "separate", "flexible"])
def test_what_is_planned_is_enough_and_not_far_too_much(runtime, case, power):
    for lengths, nf in SIZES:
        source, n = batch(lengths), len(lengths)
        each = Grids(0.1 + 0.01 * np.arange(n), np.full(n, STEP), np.full(n, nf), False)
        for grids in (shared_grid(0.16, STEP, nf), each):
            for bands in (None,) if case in CASES else (2, 200):
                if bands is None:
                    planned, taken = planned_and_taken(
                        cuda.Engine(default_spec(**CASES[case]), runtime=runtime), source, grids, power
                    )
                else:
                    planned, taken = planned_and_taken(
                        bands_engine(case, bands, runtime), in_bands(source, bands), grids, power
                    )
                assert taken <= 1.01 * planned + FIXED, (lengths[0], nf, grids.shared, bands)
                assert planned <= 3 * taken or planned < 16 << 20, (lengths[0], nf, grids.shared, bands)


def test_spans_of_many_lengths(runtime):
    """The first object's span is short; what the longest one needs is asked for all."""
    source = batch([60] * 40)
    for i in range(40):
        source.t[60 * i : 60 * (i + 1)] *= 1e-4 if i != 20 else 1
    e = cuda.Engine(default_spec(method="direct"), runtime=runtime)
    planned, taken = planned_and_taken(e, source, shared_grid(0.16, STEP, 28_608), False)
    assert taken <= 1.01 * planned + FIXED


def test_a_given_amount_holds_for_all_lanes_as_they_grow(runtime):
    budget = 40_000_000
    e = cuda.Engine(default_spec(method="nufft"), runtime=runtime, memory=budget)
    source, grids = batch([50] * 1500), shared_grid(0.16, STEP, 2500)
    output = Output.allocate(1500, 5, np.empty(1500 * 2500))
    settings, worker = e._settings(source, grids, output), e.workers[0]
    chunks = e.cut(source, settings, worker)
    assert len(chunks) > 3
    for i, (start, stop) in enumerate(chunks):
        worker._launch(worker.lanes[i % 3], make_job(settings, source, Chunk(start, stop), output))
    held = sum(a.nbytes for lane in worker.lanes for a in lane._device.values())
    assert held > budget / 3
    assert held <= budget
    assert GROWTH > 1


class Recording(HostLane):
    """A lane whose recorded launches do nothing."""

    def record(self, work: Any) -> Any:
        self.recording = True
        work()
        self.recording = False
        return lambda: None

    def to_device(self, target: Any, source: Any) -> None:
        return None


@pytest.mark.parametrize("cycles", [0.1, 0.05, 0.02])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_recorded_launches_of_many_grids_stay_within_the_amount(runtime, monkeypatch, dtype, cycles):
    monkeypatch.setattr(cuda_worker, "make_lane", Recording)
    monkeypatch.setattr(cuda_run, "deliver", lambda *a: None)  # no kernel has written answers
    budget, n = 60_000_000, 2000
    e = cuda.Engine(default_spec(method="nufft", dtype=np.dtype(dtype)), runtime=runtime, memory=budget)
    grids = Grids(0.1 + 1e-4 * np.arange(n), np.full(n, cycles / 120), np.full(n, 4000), False)
    source, output = batch([40] * n), Output.allocate(n, 5)
    for _ in range(5):  # buffers grow, then launches are recorded
        e.execute(source, grids, output)
    worker = e.workers[0]
    assert any(known.replay for lane in worker.lanes for known in worker.launches.of(lane))
    held = sum(a.nbytes for lane in worker.lanes for a in lane._device.values())
    assert budget / 3 < held <= budget


@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=60), st.integers(1, 20_000), st.integers(1, 500),
    st.integers(0, 10**6), st.integers(10**3, 10**8),
)  # fmt: skip
def test_chunks_are_as_long_as_rows_and_memory_allow(lengths, fewest, row_bytes, object_bytes, memory):
    """Each covers the next objects, the first one half as many, and no further one would have fitted."""
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int64)
    engine: Any = SimpleNamespace(workers=[None], _memory=memory)
    worker: Any = SimpleNamespace(free_memory=10**11)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "FEWEST_ROWS", fewest)
        chunks = cuda.Engine._chunks(engine, offsets, row_bytes, float(object_bytes), worker)
        rows = np.clip(offsets[-1] / (2 * cuda.LANES), fewest, cuda.MOST_ROWS)
    assert [a for a, _ in chunks] == [0, *(b for _, b in chunks[:-1])]
    assert chunks[-1][1] == len(lengths)
    for start, stop in chunks:
        part = 1.0 if start else 0.5
        most = part * memory / (cuda.LANES * GROWTH)

        def fits(i, start=start, part=part, most=most):
            more = int(offsets[i] - offsets[start])
            return more <= int(part * rows) and row_bytes * more + object_bytes * (i - start) <= most * (1 + 1e-9)

        assert stop == start + 1 or fits(stop)
        assert stop == len(lengths) or not fits(stop + 1)
