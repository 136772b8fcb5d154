"""Lanes of a GPU, with a small stand-in for CuPy: their behaviour when something fails (no GPU needed)."""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from skysieve.core.device import resolve
from skysieve.core.errors import KernelError
from skysieve.core.gpu.runtime import CudaRuntime
from skysieve.core.gpu.staging import Copier, CudaLane, HostLane, ResultMemory, make_current, page_locked


class Context:
    """A context manager, as CuPy's devices and streams are."""

    def __init__(self, *args, **kwargs):
        self.inside = 0

    def __enter__(self):
        self.inside += 1
        return self

    def __exit__(self, *exc):
        self.inside -= 1


class Stream(Context):
    """A stream whose half-recorded work cannot be made a graph, as the driver has it."""

    capturing, whole = False, True

    def __init__(self, *args, **kwargs):
        super().__init__()
        self.launched, self.waits = [], 0

    def synchronize(self):
        self.waits += 1

    def wait_event(self, event):
        self.waited_for = event

    def begin_capture(self):
        assert not self.capturing
        self.capturing = True

    def end_capture(self):
        self.capturing = False
        if not self.whole:
            raise RuntimeError("cudaErrorStreamCaptureInvalidated")
        return SimpleNamespace(launch=lambda stream: self.launched.append(stream))


@pytest.fixture
def lane():
    event = SimpleNamespace(record=lambda stream: None)
    cuda = SimpleNamespace(Device=Context, Stream=Stream, Event=lambda **kwargs: event)
    return CudaLane(SimpleNamespace(xp=SimpleNamespace(cuda=cuda), device=SimpleNamespace(index=0)))


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("error", [MemoryError("no room"), RuntimeError("a kernel is missing"), KeyboardInterrupt()])
def test_an_error_while_recording_reaches_the_caller(lane, whole, error):
    """Not the one that its half-done recording causes; the lane records again."""

    def work():
        lane.stream.whole = whole
        raise error

    with pytest.raises(type(error)) as caught:
        lane.record(work)
    assert caught.value is error
    assert not lane.recording
    assert not lane.stream.capturing
    assert lane.stream.inside == 0
    lane.stream.whole = True
    replay = lane.record(lambda: None)
    replay()
    assert lane.stream.launched[-1] is lane.stream


def test_nobody_waits_for_the_device_while_a_stream_is_recorded(lane):
    """CUDA refuses that with an error; so another thread waits until the recording has ended."""
    runtime, waited = CudaRuntime.__new__(CudaRuntime), []
    runtime.device = SimpleNamespace(index=0)
    cuda = SimpleNamespace(Device=Context, runtime=SimpleNamespace(deviceSynchronize=lambda: waited.append(1)))
    runtime.xp = SimpleNamespace(cuda=cuda)
    other = threading.Thread(target=runtime.synchronize, daemon=True)

    def work():
        other.start()
        other.join(0.2)
        assert not waited

    lane.record(work)
    other.join(60)
    assert waited == [1]


@pytest.mark.gpu
def test_streams_are_recorded_while_another_thread_waits_for_the_device():
    runtime = CudaRuntime(resolve("cuda")[0])
    ended, errors = threading.Event(), []

    def wait_often():
        while not ended.is_set() and not errors:
            try:
                runtime.synchronize()
            except RuntimeError as error:
                errors.append(error)

    other = threading.Thread(target=wait_often, daemon=True)
    other.start()
    lane = CudaLane(runtime)
    try:
        values = runtime.xp.ones(1000)
        runtime.synchronize()
        for _ in range(300):
            replay = lane.record(lambda: lane.clear(values))
        assert float(values.sum()) == 1000
        replay()
        lane.synchronize()
        assert float(values.sum()) == 0
    finally:
        ended.set()
        other.join(60)
    assert not errors


def test_buffers_are_kept_until_both_streams_have_ended(lane):
    """An error between `fork` and `join` leaves work on the second stream that nobody waits for otherwise."""
    side = lane.fork()
    lane.synchronize()
    assert (lane.stream.waits, side.waits) == (1, 0)
    lane._device["rows"] = object()
    lane.free()
    assert (lane.stream.waits, side.waits) == (2, 1)
    assert not lane._device


@pytest.mark.gpu
def test_a_new_buffer_of_zeros_is_complete_for_the_second_stream():
    """The second stream may write to the buffer at once, and zeros that arrive later would overwrite its results."""
    lane = CudaLane(CudaRuntime(resolve("cuda")[0]))
    cuda = lane.xp.cuda
    size = min(4 << 30, cuda.runtime.memGetInfo()[0] // 2)  # which takes about a millisecond to write
    try:
        side = lane.fork()
        place = lane.place("large", size, np.uint8, zero=True)
        cuda.runtime.memsetAsync(place.pointer + size - 1024, 1, 1024, side.ptr)
        lane.join()
        lane.synchronize()
        assert int(lane.array("large", size, np.uint8)[-1024:].sum()) == 1024
    finally:
        lane.free()


@pytest.mark.gpu
def test_a_kernel_may_be_the_first_work_of_a_thread():
    """The driver launches nothing for a thread without a context, and device 0 is current in a new thread."""
    runtime = CudaRuntime(resolve("cuda")[0])
    module = runtime.module("skysieve.core.gpu", "selftest.cu", "f64")
    x, total, found = runtime.xp.arange(100, dtype=np.float64), runtime.xp.zeros(2), []

    def work(at):
        try:
            module.launch("block_sum", (4,), (256,), (x, np.int32(100), np.float64(1), total[at : at + 1]))
        except RuntimeError as error:
            found.append(error)

    work(0)
    runtime.synchronize()
    other = threading.Thread(target=work, args=(1,))
    other.start()
    other.join(60)
    runtime.synchronize()
    assert not found
    assert total.get().tolist() == [4950, 4950]


def test_both_streams_have_ended_when_a_buffer_grows(lane):
    """Work of the second stream may use the old buffer, whose memory can be given to another buffer at once."""
    side = lane.fork()
    lane.xp.empty = lambda size, dtype: np.empty(size, dtype)
    lane.array("rows", 10, np.float64)
    assert (lane.stream.waits, side.waits) == (1, 1)
    lane.array("rows", 10, np.float64)
    assert (lane.stream.waits, side.waits) == (1, 1)


@pytest.mark.parametrize("kind", ["array", "pinned"])
def test_two_users_of_one_buffer_are_an_error(kind):
    """Two parts of the code that share a name would overwrite each other's values silently."""
    lane = HostLane(SimpleNamespace(xp=np))
    take = getattr(lane, kind)
    take("rows", 10, np.float64)
    assert take("rows", 1000, np.float64).size == 1000
    with pytest.raises(KernelError, match="'rows' of a lane is requested with the types float64 and float32"):
        take("rows", 10, np.float32)
    take("weights", 10, np.float32)
    lane.free()
    assert take("rows", 10, np.float32).dtype == np.float32


def test_reserved_bytes_serve_any_dtype():
    lane = HostLane(SimpleNamespace(xp=np))
    lane.reserve("rows", 800)
    generation = lane.generation
    assert lane.array("rows", 100, np.float64).nbytes == 800
    assert lane.generation == generation


def test_moves_of_buffers_are_counted():
    """Not those of buffers whose address is requested at each use, since nobody stores the old address."""
    lane = HostLane(SimpleNamespace(xp=np))
    lane.place("rows", 10, np.float64)
    lane.place("other", 10, np.float64)
    assert lane.moves == 0
    lane.place("rows", 1000, np.float64)
    assert lane.moves == 1
    lane.place("other", 1000, np.float64, followed=True)
    lane.pinned("host", 10, np.uint8)
    lane.pinned("host", 1000, np.uint8, followed=True)
    assert lane.moves == 1
    lane.pinned("host", 10_000, np.uint8)
    assert lane.moves == 2
    lane.free()
    assert lane.moves == 3


def test_a_thread_leaves_lost_devices():
    """It makes another device current where the present one is lost; by default only then."""
    used, current = [], [0]
    device = lambda index: SimpleNamespace(use=lambda: used.append(index))  # noqa: E731
    cuda = SimpleNamespace(Device=device, runtime=SimpleNamespace(getDevice=lambda: current[0]))
    second = SimpleNamespace(xp=SimpleNamespace(cuda=cuda), device=SimpleNamespace(index=1))
    make_current(second, {0})
    assert used == [1]
    current[0] = 2
    make_current(second, {0, 1})
    assert used == [1]
    make_current(second)
    assert used == [1, 1]
    make_current(SimpleNamespace(xp=np))


def test_copies_have_ended_when_an_error_is_raised(monkeypatch):
    """Buffers that are filled anew after an interrupt must not be written by what was on its way."""
    failed, late = Future(), Future()
    failed.set_exception(KeyboardInterrupt())
    copier = Copier(2)
    monkeypatch.setattr(copier, "start", lambda pairs: [failed, late])
    threading.Timer(0.05, late.set_result, [None]).start()
    with pytest.raises(KeyboardInterrupt):
        copier.copy([])
    assert late.done()


def test_long_copies_are_cut_among_threads():
    source = np.arange(9_000_000, dtype=np.uint8)
    target = np.zeros_like(source)
    copier = Copier(2)
    assert len(copier.start([(target, source)])) > 1
    copier.copy([(target, source)])
    copier.close()
    assert np.array_equal(target, source)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("length", [0, 7, 2_000_003])
def test_every_element_is_filled(threads, length):
    array = np.arange(length + 1, dtype=np.float64)
    copier = Copier(threads)
    copier.fill(array[:length], 2.5)
    copier.close()
    assert (array[:length] == 2.5).all()
    assert array[length] == length


@pytest.mark.parametrize(("threads", "copies"), [(1, 0), (2, 2), (4, 2)])
def test_threads_copy_behind_the_caller(threads, copies):
    """The caller copies the first array itself; without other threads nothing is copied."""
    sources = [np.arange(n, dtype=np.float64) for n in (200_000, 0, 3)]
    targets = [np.zeros_like(a) for a in sources]
    copier = Copier(threads)
    work = copier.behind(list(zip(targets, sources, strict=True)))
    assert len(work) == copies
    for future in work:
        future.result()
    copier.close()
    assert all(np.array_equal(a, b) == (copies > 0 or not b.any()) for a, b in zip(targets, sources, strict=True))


class Registry:
    """Page-locked memory as the CUDA runtime registers it: whole pages, none of them twice."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.locked = 0

    def as_runtime(self):
        cuda = SimpleNamespace(runtime=self, Device=lambda index: nullcontext())
        return SimpleNamespace(xp=SimpleNamespace(cuda=cuda), device=SimpleNamespace(index=0))

    def hostRegister(self, address, nbytes, flags):
        assert address % 4096 == nbytes % 4096 == 0
        assert flags == 1  # portable: for all GPUs
        assert all(address + nbytes <= a or a + n <= address for a, n in self.held.items())
        if nbytes > 64 << 20:
            raise RuntimeError("cudaErrorMemoryAllocation")
        self.held[address] = nbytes
        self.locked += 1

    def hostUnregister(self, address):
        del self.held[address]


@pytest.fixture
def results():
    registry = Registry()
    return ResultMemory(registry.as_runtime()), registry


@pytest.mark.slow
def test_memory_of_a_deleted_result_serves_the_next(results):
    memory, registry = results
    last = None
    for i in range(6):
        found = memory.empty((3, 1000, 500), np.float32)
        assert found.shape == (3, 1000, 500)
        assert found.dtype == np.float32
        assert found.flags.writeable
        found[...] = i
        assert last is None or (last == i - 1).all()  # a result that is held is never written to
        last = found[1][10:]  # a view holds the memory of the whole
    assert registry.locked == 2
    del found, last
    gc.collect()
    assert len(registry.held) == 2
    memory.close()
    assert not registry.held


@pytest.mark.slow
def test_page_locked_memory_is_bounded(results, monkeypatch):
    memory, registry = results
    many = [memory.empty((1 << 20,), np.float32) for _ in range(5)]
    assert len(registry.held) == 5
    del many
    gc.collect()
    assert len(registry.held) == 2
    large = memory.empty((5 << 20,), np.float32)  # idle memory that does not fit is freed first
    assert len(registry.held) == 1
    assert memory.empty((100,), np.float32).base is None
    assert memory.empty((20 << 20,), np.float32).base is None  # the runtime refuses
    monkeypatch.setattr("skysieve.core.gpu.staging.available_host_memory", lambda: 100 << 20)
    assert memory.empty((3 << 20,), np.float32).base is None  # 12 MiB and the 20 of `large` exceed a quarter
    memory.close()
    assert len(registry.held) == 1
    large[:] = 1
    del large
    gc.collect()
    assert not registry.held


@pytest.mark.slow
def test_few_page_locked_results_after_one_of_their_size():
    registry = Registry()
    memory = ResultMemory(registry.as_runtime(), most=2, largest=8 << 20)
    held = []
    for locked in (0, 1, 2, 2):  # the first of a size, two, and no third
        held.append(memory.empty((1 << 20,), np.float32))
        assert len(registry.held) == locked
    held.clear()
    gc.collect()
    memory.empty((1 << 18,), np.float32)  # another size: idle memory is freed
    assert not registry.held
    for size, locked in ((2 << 20, 1), ((2 << 20) + 1, 0)):
        held = [memory.empty((size,), np.float32) for _ in range(2)]
        assert len(registry.held) == locked
        del held


@pytest.mark.slow
def test_page_locked_memory_is_unlocked_after_its_last_view():
    registry = Registry()
    memory = page_locked(registry.as_runtime(), 10_000)
    assert memory.nbytes == 3 * 4096
    part = memory[5000:].view(np.uint16)
    del memory
    gc.collect()
    assert len(registry.held) == 1
    part[:] = 1
    del part
    gc.collect()
    assert not registry.held


@pytest.mark.slow
def test_results_survive_the_engine_that_made_them():
    registry = Registry()
    memory = ResultMemory(registry.as_runtime())
    found, idle = (memory.empty((1 << 20,), np.float64) for _ in range(2))
    found[:] = 3
    del idle, memory
    gc.collect()
    assert (found == 3).all()
    del found
    gc.collect()
    assert not registry.held


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_does_not_ask_the_gpu(results):
    memory, registry = results
    found = memory.empty((1 << 20,), np.float64)
    pid = os.fork()
    if pid == 0:
        memory.close()
        del found
        gc.collect()
        os._exit(0 if len(registry.held) == 1 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(registry.held) == 1
    del found


def test_places_in_a_lanes_buffers():
    lane = HostLane(SimpleNamespace(xp=np))
    place, view = lane.place("a", 10, np.float64), lane.array("a", 10, np.float64)
    assert (place.pointer, place.size, place.itemsize) == (view.ctypes.data, 10, 8)
    held = lane.nbytes
    assert held >= 80
    assert lane.place("a", 9, np.float64).pointer == place.pointer
    with pytest.raises(KernelError, match="two names"):
        lane.place("a", 10, np.int32)
    larger = lane.place("a", 1000, np.float64)
    assert larger.pointer == lane.array("a", 1, np.float64).ctypes.data
    assert lane.nbytes == sum(a.nbytes for a in lane._device.values()) >= 8000
    rows = lane.pinned("rows", 100, np.float64)
    assert lane.has_pinned(rows[5:])
    assert not lane.has_pinned(np.empty(100))
    lane.free()
    assert lane.nbytes == 0
    assert not lane.has_pinned(rows)
