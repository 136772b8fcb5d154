"""Device memory of the periodogram's plans: the stated bytes against those of the buffers (no GPU needed)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gpu.batches import BAND_MODELS, FlatSource, bands_engine, batch, default_spec, in_bands, shared_grid
from tests.kernels.shim import ShimRuntime

from skysieve.core.device import Device
from skysieve.core.gpu.staging import HostLane
from skysieve.periodogram.contract import Grids, Output
from skysieve.periodogram.cuda import engine as cuda
from skysieve.periodogram.cuda import run as cuda_run
from skysieve.periodogram.cuda import worker as cuda_worker

STEP = 1 / 1200
FIXED = 6 << 20
"""Bytes that an engine's three lanes need for even the smallest job: tasks, and lists of weakly determined fits."""


class Arrays:
    """NumPy under another name, so that the engine takes the runtime for a GPU and uploads rows."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


class DryModule:
    """Kernels that are not run."""

    def launch(self, *args: Any, **kwargs: Any) -> None:
        return

    def attributes(self, kernel: str) -> dict[str, int]:
        return {"registers": 32, "shared": 0, "local": 0, "max_threads": 1024}


class Card(Device):
    """A GPU whose memory is free."""

    @property
    def free_memory(self) -> int:
        return self.total_memory


class DryRuntime(ShimRuntime):
    """A GPU of 64 GiB that allocates, and runs nothing."""

    xp = Arrays()

    def __init__(self) -> None:
        super().__init__()
        self.device = Card("cuda", 0, "no GPU", 2**36, (9, 0), 132, 232_448)

    def module(self, *args: Any, **kwargs: Any) -> Any:
        return DryModule()

    def compile_ahead(self, wanted: Any) -> None:
        return


class DryLane(HostLane):
    """A lane whose copies are left out, and whose recorded launches do nothing."""

    def record(self, work: Any) -> Any:
        self.recording = True
        work()
        self.recording = False
        return lambda: None

    def to_device(self, target: Any, source: Any) -> None:
        return

    def to_host(self, target: Any, source: Any) -> None:
        return


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> DryRuntime:
    monkeypatch.setattr(cuda_worker, "make_lane", DryLane)
    monkeypatch.setattr(cuda_run, "deliver", lambda *a: None)  # no kernel has written answers
    monkeypatch.setattr(cuda_run, "is_pinned", lambda runtime, a: False)  # it would ask CuPy
    return DryRuntime()


def search(engine: cuda.Engine, source: Any, grids: Grids, power: bool, runs: int = 1) -> int:
    """Bytes that the engine's buffers take after some runs."""
    n = source.n_objects
    powers = np.empty(int(grids.offsets(n)[-1]), engine.spec.dtype) if power else None
    for _ in range(runs):
        engine.execute(source, grids, Output.allocate(n, engine.spec.n_peaks, powers))
    return sum(a.nbytes for worker in engine.workers for lane in worker.lanes for a in lane._device.values())


MODELS: dict[str, dict[str, Any]] = {
    "one term": {"method": "nufft"},
    "float32": {"method": "nufft", "dtype": np.dtype(np.float32)},
    "direct": {"method": "direct"},
    "three terms": {"nterms": 3},
    "three terms, float32": {"nterms": 3, "dtype": np.dtype(np.float32)},
}
SIZES = [((200,) * 80, 28_608), ((5,) * 3000, 700), ((3000,) * 12, 3000)]


def cases(model: str, lengths: tuple[int, ...]) -> list[tuple[Any, Any]]:
    """Functions that make an engine of some further arguments, with light curves for it."""
    source = batch(lengths)
    if model in MODELS:
        return [(lambda **more: cuda.Engine(default_spec(**MODELS[model]), **more), source)]
    return [
        (lambda bands=bands, **more: bands_engine(model, bands, **more), in_bands(source, bands)) for bands in (2, 200)
    ]


@pytest.mark.few
@pytest.mark.parametrize("model", [*MODELS, *(m for m in BAND_MODELS if m in ("offsets", "separate", "flexible"))])
@pytest.mark.parametrize("power", [True, False])
def test_buffers_take_the_memory_that_the_plan_states(runtime, model, power):
    """A plan states the bytes of all its objects at once, without powers."""
    for lengths, nf in SIZES:
        n = len(lengths)
        each = Grids(0.1 + 0.01 * np.arange(n), np.full(n, STEP), np.full(n, nf), False)
        for grids in (shared_grid(0.16, STEP, nf), each):
            for make, source in cases(model, lengths):
                stated = make(runtime=runtime).describe(source, grids)["bytes"]
                stated += power * n * nf * np.dtype(MODELS.get(model, {}).get("dtype", float)).itemsize
                taken = search(make(runtime=runtime), source, grids, power)
                assert taken <= 1.3 * stated + FIXED, (lengths[0], nf, grids.shared)
                assert stated <= 6 * taken or stated < 32 << 20, (lengths[0], nf, grids.shared)


@pytest.mark.few
@pytest.mark.parametrize("budget", [40_000_000, 150_000_000])
@pytest.mark.parametrize("model", [*MODELS, "offsets"])
def test_a_memory_budget_is_used_and_not_exceeded(runtime, model, budget):
    """Many chunks, whose launches are recorded from the second run on, each with buffers of its own."""
    for make, source in cases(model, (50,) * 2000)[:1]:
        taken = search(make(runtime=runtime, memory=budget), source, shared_grid(0.16, STEP, 4000), True, runs=5)
        assert budget / 4 < taken <= budget + FIXED


@pytest.mark.few
@pytest.mark.parametrize("cycles", [0.1, 0.05, 0.02])
@pytest.mark.parametrize("dtype", [np.dtype(np.float64), np.dtype(np.float32)], ids=str)
def test_a_memory_budget_is_not_exceeded_with_a_grid_each(runtime, dtype, cycles):
    budget, n = 60_000_000, 2000
    e = cuda.Engine(default_spec(method="nufft", dtype=dtype), runtime=runtime, memory=budget)
    grids = Grids(0.1 + 1e-4 * np.arange(n), np.full(n, cycles / 120), np.full(n, 4000), False)
    assert budget / 4 < search(e, batch([40] * n), grids, False, runs=5) <= budget


def test_spans_of_many_lengths(runtime):
    """The first object's span is short; what the longest one needs is asked for all."""
    source = batch([60] * 40)
    for i in range(40):
        source.t[60 * i : 60 * (i + 1)] *= 1e-4 if i != 20 else 1
    grids = shared_grid(0.16, STEP, 28_608)
    described, executed = (cuda.Engine(default_spec(method="nufft"), runtime=runtime) for _ in range(2))
    assert search(executed, source, grids, False) <= 1.3 * described.describe(source, grids)["bytes"] + FIXED


@pytest.mark.slow
@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=60), st.integers(1, 5000), st.integers(20_000, 10**8)
)  # fmt: skip
def test_chunks_cover_the_objects_once_and_in_order(lengths, nf, memory):
    """With any memory, each object is searched in exactly one chunk."""
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int64)
    rows = np.linspace(0, 120, max(1, int(offsets[-1])))
    source = FlatSource(rows, rows, None, offsets)
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_worker, "make_lane", DryLane)
        patch.setattr(cuda_run, "deliver", lambda job, *a: seen.append((job.objects.start, job.objects.stop)))
        e = cuda.Engine(default_spec(method="direct"), runtime=DryRuntime(), memory=memory)
        e.execute(source, shared_grid(0.2, STEP, nf), Output.allocate(len(lengths), 5))
    seen.sort()
    assert [a for a, _ in seen] == [0, *(b for _, b in seen[:-1])]
    assert seen[-1][1] == len(lengths)
