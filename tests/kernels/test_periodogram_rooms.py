"""Chunks of any objects share a GPU's buffers and structs: each answer is that of a new engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skysieve.core.gpu.structs import Place, Prepared, address
from skysieve.periodogram.cuda import engine as cuda
from skysieve.periodogram.lightcurves.sources import ListSource
from tests.gpu.batches import batch, default_spec, only_samples, run, same_peaks, shared_grid
from tests.kernels.devices import one_order, only_shim

LENGTHS = [[40, 60, 33, 31], [90, 20, 14], [7, 8, 9], [300, 1200, 40], [50] * 6, [1100, 1300], [9] * 20, [60, 41, 8]]
GRIDS = [shared_grid(0.2, 1 / 1200, nf) for nf in (300, 401, 520)]
SPANS = (120.0, 60.0, 3.0)


def jobs() -> list[tuple[Any, Any]]:
    """Light curves and grids that all differ: few and many objects, short and long ones, three methods and more."""
    made = enumerate(LENGTHS * 2)
    return [(batch(lengths, SPANS[k % 3], seed=k, errors=k % 5 != 3), GRIDS[k % len(GRIDS)]) for k, lengths in made]


@pytest.mark.slow
@pytest.mark.few
@one_order
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_unlike_chunks_in_the_same_buffers(runtime, dtype, monkeypatch):
    changed: list[set[str]] = []
    change = Prepared.change

    def noted(self: Prepared, values: dict[str, Any]) -> None:
        changed.append(set(values))
        change(self, values)

    monkeypatch.setattr(Prepared, "change", noted)
    spec = default_spec(dtype=np.dtype(dtype), n_peaks=2, return_power=False)
    engine = cuda.Engine(spec, runtime=runtime)
    for k, (source, grids) in enumerate(jobs()):
        for _ in range(1 + (k % 4 == 1)):  # some come again
            found = run(engine, source, grids, power=False)
            fresh = cuda.Engine(spec, runtime=runtime, memory="1 GiB")  # with a budget, no buffer is shared
            expected = run(fresh, source, grids, power=False)
            assert np.array_equal(found.status, expected.status)
            assert np.array_equal(found.method, expected.method)
            assert np.array_equal(found.span, expected.span)
            same_peaks(found, expected)
            fresh.close()
    assert any("held" in names for names in changed)  # structs were used again
    engine.close()


@pytest.mark.slow
@pytest.mark.few
@only_shim
def test_buffers_of_a_room_are_where_it_looks_for_them(runtime, monkeypatch):
    """The addresses that a room holds stay valid after chunks of other methods and sizes have asked for buffers."""
    only_samples(monkeypatch)
    engine = cuda.Engine(default_spec(method="nufft", n_peaks=2, return_power=False), runtime=runtime)
    worker, seen = engine.workers[0], set()
    grids = shared_grid(0.2, 1 / 1200, 20_480)  # long enough for the largest distance of samples that each span allows
    for k, span in enumerate((120.0, 60.0, 25.0, 120.0, 25.0, 120.0, 60.0, 60.0, 120.0)):
        run(engine, batch([20, 31 + k], span=span, seed=k), grids, power=False)
        for (lane, _), room in worker._rooms.items():
            held = {address(a) for a in lane._device.values()}
            own = [a for a in (*room.chunk.work.values(), *room.chunk.peaks.values()) if isinstance(a, Place)]
            for name, places in room.chunk.buffers.items():
                if name.startswith("taps"):
                    seen.add(name)
                if name != "answers":
                    own += [a for a in places.values() if isinstance(a, Place)]
            assert room.moves != lane.moves or {a.pointer for a in own} <= held
    assert len({name.split()[1] for name in seen}) == 3  # distances of samples
    engine.close()


@one_order
def test_lists_are_joined_once(runtime, monkeypatch):
    source = batch([40, 60, 33], seed=2)
    pieces = [np.split(x, source.offsets[1:-1]) for x in (source.t, source.y, source.dy)]
    listed = ListSource(*pieces, source.offsets)
    reads: list[tuple[int, int]] = []
    read = ListSource.read

    def noted(self: ListSource, start: int, stop: int, empty: Any = None) -> Any:
        reads.append((start, stop))
        return read(self, start, stop, empty)

    monkeypatch.setattr(ListSource, "read", noted)
    engine = cuda.Engine(default_spec(n_peaks=2, return_power=False), runtime=runtime)
    engine.costs  # noqa: B018  (a new engine looks at some objects to compile for them)
    reads.clear()
    found = run(engine, listed, GRIDS[0], power=False)
    assert reads.count((0, 3)) == 1
    assert len(reads) <= 2  # the first object says where the rows are
    same_peaks(found, run(engine, source, GRIDS[0], power=False))
    engine.close()
