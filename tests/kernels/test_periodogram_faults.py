"""Faults of GPUs in a periodogram, injected on the host shim: memory that is short, devices lost, errors on the way."""

from __future__ import annotations

import functools
import logging
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from skysieve.core.errors import MemoryBudgetError
from skysieve.periodogram.contract import Grids, Output, Status
from skysieve.periodogram.cuda import engine as cuda
from skysieve.periodogram.cuda import run as cuda_run
from skysieve.periodogram.cuda.run import Run
from tests.gpu.batches import (
    FaultyRuntime,
    FlatSource,
    bands_engine,
    batch,
    default_spec,
    in_bands,
    no_room_for_candidates,
    run,
    shared_grid,
)
from tests.kernels.shim import shim_runtime

STEP = 1 / 1200
GRID = shared_grid(0.16, STEP, 400)
FULL = RuntimeError("cudaErrorMemoryAllocation: out of memory")
GONE = RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")
SPEC = default_spec(method="nufft")


def engine(*runtimes, **more):
    return cuda.Engine(SPEC, runtime=runtimes or shim_runtime(), **more)


def same(out, expected):
    """Compare outputs.  Powers agree to 1e-9, since chunks that are cut elsewhere may add in another order."""
    assert np.array_equal(out.status, expected.status)
    assert np.array_equal(out.peak_index, expected.peak_index)
    assert np.abs(out.power - expected.power).max() <= 1e-9
    return True


@pytest.fixture(scope="module")
def source():
    return batch([40, 50, 60, 35, 45, 52])


@pytest.fixture(scope="module")
def expected(source):
    return run(engine(), source, GRID)


@pytest.fixture
def overflow(monkeypatch):
    """Give chunks room for few candidates, so that all objects are searched again."""
    no_room_for_candidates(monkeypatch)


class Failing:
    """A function that raises at chosen calls (counted from 0), after noting what it was called with."""

    def __init__(self, function, error, at):
        self.function, self.error, self.at, self.calls = function, error, at, []

    def __call__(self, *args, **kwargs):
        self.calls.append(args)
        if len(self.calls) - 1 in self.at:
            raise self.error
        return self.function(*args, **kwargs)


@pytest.mark.few
@pytest.mark.parametrize("error", [MemoryError("no room"), FULL])
@pytest.mark.parametrize("where", ["begin", "prefetch"])
def test_memory_is_short_for_a_chunk(source, expected, caplog, error, where):
    """CuPy may report it in several ways, at a launch or before: every buffer is freed, and half chunks are tried."""
    e = engine()
    worker = e.workers[0]
    e.scan(source)
    assert worker.spare._device
    held, function = [], getattr(worker, where)

    def attempt(lane, job):
        held.append(sum(len(every._device) + len(every._host) for every in (*worker.lanes, worker.spare)))
        return function(lane, job)

    setattr(worker, where, Failing(attempt, error, {0}))
    with caplog.at_level(logging.WARNING, "skysieve"):
        assert same(run(e, source, GRID), expected)
    assert "out of memory for objects 0 to 5: trying halves" in caplog.text
    assert held[0] <= 1  # of powers on the host


@pytest.mark.slow
def test_later_chunks_are_no_larger_than_what_fits(caplog):
    """Memory was short once: not every chunk is tried whole, halved, and halved again."""
    source = batch([30 + i % 7 for i in range(48)])
    expected = run(engine(), source, GRID)
    e = engine(memory=600_000)
    worker, tried = e.workers[0], []
    begin = worker.begin

    def attempt(lane, job):
        tried.append(job.n_objects)
        if job.n_objects > 2:
            raise MemoryError("no room")
        return begin(lane, job)

    worker.begin = attempt
    with caplog.at_level(logging.WARNING, "skysieve"):
        assert same(run(e, source, GRID), expected)
    assert sum(n > 2 for n in tried) == caplog.text.count("trying halves") <= 4
    assert len(e.cut(source, e._settings(source, GRID, Output.allocate(48, 5, expected.power)), worker)) > 3


def test_an_object_that_fits_alone(source, expected, caplog):
    """Memory is short for a chunk of one object while others are on the device: it waits for them."""
    e = engine(memory=60_000)
    worker = e.workers[0]
    begin, on_the_way, failed = worker.begin, set(), []

    def attempt(lane, job):
        if on_the_way and not failed:
            failed.append(job.objects)
            raise MemoryError("no room")
        on_the_way.add(lane)
        return begin(lane, job)

    worker.begin = attempt
    with caplog.at_level(logging.WARNING, "skysieve"):
        assert same(run(e, source, GRID), expected)
    (objects,) = failed
    assert objects.stop - objects.start == 1
    assert f"object {objects.start}: trying alone" in caplog.text


def test_an_object_that_does_not_fit(source):
    e = engine()
    e.workers[0].begin = Failing(None, MemoryError("not 170 bytes"), range(99))
    with pytest.raises(MemoryBudgetError, match=r"object \d does not fit on cuda:0 .* even alone .not 170 by"):
        run(e, source, GRID)
    assert len(e.workers[0].begin.calls) == 4  # six objects, three, one, and that alone


def test_memory_is_short_for_objects_that_are_searched_again(source, expected, overflow, caplog):
    e = engine()
    worker = e.workers[0]
    begin, tries = worker.begin, []

    def attempt(lane, job):
        if lane is worker.spare:
            tries.append(sum(len(every._device) for every in worker.lanes))
            if len(tries) == 1:
                raise MemoryError("no room")
        return begin(lane, job)

    worker.begin = attempt
    with caplog.at_level(logging.WARNING, "skysieve"):
        assert same(run(e, source, GRID), expected)
    assert tries[0] > 0
    assert not any(tries[1:])
    assert "out of memory for objects 0 to 5: trying halves" in caplog.text

    def hopeless(lane, job):
        if lane is worker.spare:
            raise FULL
        return begin(lane, job)

    worker.begin = hopeless
    with pytest.raises(MemoryBudgetError, match="object 5 does not fit") as caught:
        run(e, source, GRID)
    assert caught.value.__cause__ is FULL


def two(source, **more):
    """Return an engine of two GPUs and its second worker."""
    e = engine(FaultyRuntime(shim_runtime()), FaultyRuntime(shim_runtime()), **more)
    return e, e.workers


def test_an_object_too_large_for_one_gpu_goes_to_another(source, expected, caplog):
    e, (_, small) = two(source, memory=200_000)
    small.begin = Failing(None, MemoryError("no room"), range(99))
    with caplog.at_level(logging.WARNING, "skysieve"):
        assert same(run(e, source, GRID), expected)
    assert small in e.workers  # it may have more memory the next time


@pytest.mark.parametrize("chunks", [1, 6])
def test_a_lost_gpu_is_not_used_again(source, expected, caplog, chunks):
    """The other GPU searches its objects, also where there is one chunk; later runs and `close` leave it out."""
    e, (first, other) = two(source, **({} if chunks == 1 else {"memory": 60_000}))
    first.begin = Failing(None, GONE, range(99))
    for lane in first.lanes:
        lane.synchronize = Failing(None, GONE, range(99))
    for _ in range(3):
        with caplog.at_level(logging.WARNING, "skysieve"):
            assert same(run(e, source, GRID), expected)
        assert (e.workers == [other]) == bool(first.begin.calls)
    assert len(first.begin.calls) <= 1  # it may come too late for any of several chunks
    assert first.begin.calls or chunks > 1
    e.close()


@pytest.mark.parametrize("chunks", [1, 6])
def test_threads_do_not_return_to_a_lost_gpu(source, expected, monkeypatch, chunks):
    """The caller's thread makes a working GPU current, also for objects that are searched again."""
    e, (first, other) = two(source, **({} if chunks == 1 else {"memory": 60_000}))
    first.runtime.device = replace(first.runtime.device, index=7)
    moves = []
    note = lambda runtime, instead_of=(): moves.append((threading.current_thread(), runtime, instead_of))  # noqa: E731
    monkeypatch.setattr(cuda_run, "make_current", note)
    monkeypatch.setattr(cuda, "make_current", note)
    first.begin = Failing(None, GONE, range(99))
    assert same(run(e, source, GRID), expected)
    mine = [move[1:] for move in moves if move[0] is threading.current_thread()]
    assert set(map(str, mine)) <= {str((other.runtime, {7}))}
    assert bool(mine) == bool(first.begin.calls)
    theirs = [move[1:] for move in moves if move[0] is not threading.current_thread()]
    assert sorted(map(str, theirs)) == sorted(str((w.runtime, ())) for w in (first, other) if chunks > 1)


def test_a_gpu_lost_when_objects_are_searched_again(source, expected, overflow, caplog):
    e, (first, other) = two(source)
    begin = first.begin
    first.begin = lambda lane, job: Failing(begin, GONE, {0} if lane is first.spare else ())(lane, job)
    with caplog.at_level(logging.WARNING, "skysieve"):
        assert same(run(e, source, GRID), expected)
    assert e.workers == [other]
    assert "go to the other devices" in caplog.text
    other.begin = lambda lane, job: Failing(begin, GONE, {0})(lane, job)
    with pytest.raises(RuntimeError, match="illegal"):
        run(e, source, GRID)


def test_first_looks(source, caplog):
    """Halves where memory is short, another GPU where one is lost, and an error where one object does not fit."""
    e, (first, other) = two(source)
    expected = engine().scan(source)
    first.scan = Failing(first.scan, FULL, {0, 2})
    with caplog.at_level(logging.WARNING, "skysieve"):
        assert np.array_equal(e.scan(source).span, expected.span)
    assert "first pass over objects 0 to 5" in caplog.text
    first.scan = Failing(first.scan, GONE, {0})
    with caplog.at_level(logging.WARNING, "skysieve"):
        assert np.array_equal(e.scan(source).n_used, expected.n_used)
    assert e.workers == [other]
    other.scan = Failing(other.scan, GONE, {0})
    with pytest.raises(RuntimeError, match="illegal"):
        e.scan(source)
    other.scan = Failing(other.scan, MemoryError("no room"), range(99))
    with pytest.raises(MemoryBudgetError, match="first pass over object 0"):
        e.scan(source)


def test_nothing_runs_after_an_error(source):
    """The caller's arrays, which he may free, are no longer read or written when the error reaches him."""
    e = engine(memory=60_000)
    worker, begin, launched, copies = e.workers[0], e.workers[0].begin, set(), []

    def note(lane, job):
        begin(lane, job)
        launched.add(lane)

    def copy(lane, job):
        copies.append(pool.submit(time.sleep, 0.1))
        job.copies = copies[-1:]

    worker.begin, worker.prefetch = note, copy
    for lane in worker.lanes:
        lane.synchronize = functools.partial(launched.discard, lane)

    def stop(done, total):
        assert launched
        raise KeyError("the window was closed")

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(KeyError, match="window"):
            e.execute(source, GRID, Output.allocate(6, 5), progress=stop)
        assert not launched
        assert len(copies) == 3
        assert all(future.done() for future in copies)


def test_ctrl_c_ends_a_search_on_several_gpus(source):
    """The workers end what they have launched, then the interrupt reaches the caller."""
    e, workers = two(source, memory=60_000)
    done, pressed = [], threading.Event()

    def press(count, total):
        done.append(count)
        if not pressed.is_set():
            pressed.set()
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            threading.Event().wait(0.3)

    many = batch([40] * 60)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # processes of parallel tests may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            e.execute(many, GRID, Output.allocate(60, 5), progress=press)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert max(done) < 60
    assert len(done) < 30
    assert same(run(e, source, GRID), run(engine(), source, GRID))
    assert e.workers == workers


@pytest.mark.few
@pytest.mark.parametrize("spec", [{}, {"nterms": 2}, {"method": "direct"}, {"nterms": 2, "method": "direct"}])
def test_objects_without_rows_and_more_peaks_than_there_are(spec):
    nobody, some = FlatSource(np.zeros(0), np.zeros(0), None, np.zeros(4, np.int64)), batch([60, 45])
    e = cuda.Engine(default_spec(n_peaks=500, **spec), runtime=shim_runtime())
    out = run(e, nobody, GRID)
    assert (out.status == Status.EMPTY).all()
    assert np.isnan(out.power).all()
    few = run(e, FlatSource(some.t, some.y, some.dy, np.array([0, 60, 60, 105])), GRID)
    assert few.status.tolist() == [Status.OK, Status.EMPTY, Status.OK]
    assert (few.peak_index[0] >= 0).sum() > 5
    assert few.peak_index[0, -1] == -1
    assert np.isnan(few.peak_power[0, -1])


@pytest.mark.parametrize("model", ["offsets", "separate", "flexible"])
def test_objects_without_rows_in_bands(model):
    nobody = in_bands(FlatSource(np.zeros(0), np.zeros(0), None, np.zeros(4, np.int64)))
    out = run(bands_engine(model, 3, shim_runtime()), nobody, GRID)
    assert (out.status == Status.EMPTY).all()
    assert np.isnan(out.power).all()


def test_bad_input_before_any_work(source):
    """An amount of memory that cannot be read, and arrays of several GPUs or of one that does not take part."""
    with pytest.raises(ValueError, match="memory='a lot'"):
        engine(memory="a lot")
    on_gpus = [SimpleNamespace(__cuda_array_interface__={}, device=SimpleNamespace(id=i)) for i in (0, 1, 2)]
    e, workers = two(source)
    workers[1].runtime.device = replace(workers[1].runtime.device, index=1)
    assert e._worker_of((on_gpus[1], on_gpus[1], None)) is workers[1]
    assert e._worker_of((source.t, source.y, None), on_gpus[1]) is workers[1]
    with pytest.raises(ValueError, match="t on cuda:0, dy on cuda:1; arrays of one GPU"):
        e._worker_of((on_gpus[0], source.y, on_gpus[1]))
    with pytest.raises(ValueError, match="y on cuda:0, out on cuda:1; arrays of one GPU"):
        e._worker_of((source.t, on_gpus[0], None), on_gpus[1])
    with pytest.raises(ValueError, match="arrays are on cuda:2"):
        e._worker_of((on_gpus[2], on_gpus[2], None))


def test_gpus_that_differ(source):
    """Chunks fit the smallest GPU, whichever takes them."""
    large, small = FaultyRuntime(shim_runtime()), FaultyRuntime(shim_runtime())
    small.device = replace(small.device, shared_per_block=64 << 10, compute_capability=(7, 5))
    alone, both = engine(small, memory=60_000), engine(large, small, memory=60_000)
    grids = shared_grid(0.16, 0.3 / 120, 2100)
    layouts = [e.describe(source, grids)["layout"] for e in (alone, both)]
    assert layouts[0] == layouts[1] != engine(large).describe(source, grids)["layout"]
    assert same(run(both, source, grids), run(alone, source, grids))
    assert len(both.workers) == 2


def test_the_costliest_chunks_are_dealt_first(monkeypatch):
    """Costs follow from frequencies and points if grids differ; equal chunks keep their order."""
    drawn = []
    monkeypatch.setattr(Run, "work", lambda self, worker, alone: drawn.append([c.start for c in self.queue]))
    lengths, nf = [60, 30, 60, 200, 30], np.array([400, 4000, 400, 300, 90_000])
    for grids, order in (
        (Grids(np.full(5, 0.1), np.full(5, STEP), nf, False), [4, 1, 3, 0, 2]),
        (GRID, [3, 0, 2, 1, 4]),
    ):
        e = engine(shim_runtime(), shim_runtime())
        monkeypatch.setattr(e, "cut", lambda *a: [(i, i + 1) for i in range(5)])
        e.execute(batch(lengths), grids, Output.allocate(5, 5))
        assert drawn.pop() == order
        drawn.clear()


@pytest.mark.parametrize(("rate", "most", "limit"), [(1.0, 1, "host copies"), (1e30, 3, "GPUs")])
def test_no_more_gpus_work_than_the_host_keeps_busy(source, expected, monkeypatch, rate, most, limit):
    monkeypatch.setattr(cuda, "copy_rate", lambda: rate)
    working, together, turn = set(), [], threading.Barrier(most)
    work = Run.work

    def noted(self, worker, alone):
        working.add(worker)
        together.append(len(working))
        if most > 1:
            turn.wait(60)
        work(self, worker, alone)
        working.remove(worker)

    e = engine(*(FaultyRuntime(shim_runtime()) for _ in range(3)))
    monkeypatch.setattr(e, "cut", lambda *a: [(i, i + 1) for i in range(6)])
    monkeypatch.setattr(Run, "work", noted)
    assert same(run(e, source, GRID), expected)
    assert max(together) == most
    about = e.describe(source, GRID)
    assert (about["gpus"], about["limit"]) == (most, limit)
