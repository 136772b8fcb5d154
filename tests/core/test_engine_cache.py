"""The cache of engines behind the functions: reuse, bounds, threads, fork, faults."""

from __future__ import annotations

import dataclasses
import os
import threading
from types import SimpleNamespace

import pytest

import skysieve
from skysieve.core.device import Device, resolve
from skysieve.core.engine_cache import ENGINES, EngineCache

CPU = dataclasses.replace(resolve("cpu")[0], total_memory=1000)
OTHER = Device("cpu", 1, "another", 1000)


class Engine:
    """Counts how often it is closed."""

    def __init__(self, size: int = 0) -> None:
        self.size, self.closed = size, 0

    def close(self) -> None:
        self.closed += 1


def use(cache, key, size=0, device=CPU):
    with cache.borrow(key, lambda: Engine(size), device, lambda e: e.size) as engine:
        assert not engine.closed
    return engine


def test_a_key_finds_its_engine_again():
    cache = EngineCache()
    first = use(cache, "a")
    assert use(cache, "b") is not first
    assert use(cache, "a") is first
    assert len(cache) == 2


def test_two_users_of_one_key_have_two_engines():
    cache = EngineCache()
    with cache.borrow("a", Engine, CPU, lambda e: 0) as one, cache.borrow("a", Engine, CPU, lambda e: 0) as two:
        assert one is not two
    assert len(cache) == 2


def test_the_least_recently_used_engine_goes_first():
    cache = EngineCache(most=2)
    a, b = use(cache, "a"), use(cache, "b")
    use(cache, "a")
    use(cache, "c")
    assert (a.closed, b.closed, len(cache)) == (0, 1, 2)


def test_bytes_are_bounded_for_each_device():
    cache = EngineCache(share=0.5)
    a, other = use(cache, "a", 300), use(cache, "o", 400, OTHER)
    b = use(cache, "b", 300)
    assert (a.closed, b.closed, other.closed) == (1, 0, 0)
    huge = use(cache, "huge", 501)
    assert (huge.closed, b.closed, other.closed) == (1, 1, 0)


def test_engines_are_closed_when_free_memory_is_scarce(monkeypatch):
    monkeypatch.setattr(Device, "free_memory", 10)
    monkeypatch.setattr("skysieve.core.engine_cache.SMALL", 100)
    cache = EngineCache()
    a = use(cache, "a", 50)
    assert not a.closed
    b = use(cache, "b", 60)
    assert (a.closed, b.closed, len(cache)) == (1, 1, 0)


def test_an_engine_whose_user_raises_is_closed():
    cache = EngineCache()
    idle = use(cache, "idle")
    with pytest.raises(KeyError), cache.borrow("a", Engine, CPU, lambda e: 0) as engine:
        raise KeyError("bad batch")
    assert (engine.closed, idle.closed) == (1, 0)
    with pytest.raises(RuntimeError), cache.borrow("a", Engine, CPU, lambda e: 0) as engine:
        raise RuntimeError("the GPU is lost")
    assert (engine.closed, idle.closed, len(cache)) == (1, 1, 0)


def test_an_engine_that_cannot_be_closed_does_not_hide_the_error(caplog):
    class Lost(Engine):
        def close(self) -> None:
            raise RuntimeError("no such device")

    cache = EngineCache()
    with pytest.raises(ValueError, match="first"), cache.borrow("a", Lost, CPU, lambda e: 0):
        raise ValueError("first")
    assert "could not be closed: no such device" in caplog.text


def test_idle_engines_make_room_for_a_new_one():
    cache = EngineCache()
    idle, other = use(cache, "a"), use(cache, "o", device=OTHER)
    calls = []

    def make():
        calls.append(idle.closed)
        if not idle.closed:
            raise MemoryError
        return Engine()

    with cache.borrow("b", make, CPU, lambda e: 0):
        pass
    assert calls == [0, 1]
    assert not other.closed

    def never():
        raise MemoryError("too large")

    cache.clear()
    with pytest.raises(MemoryError, match="too large"), cache.borrow("c", never, CPU, lambda e: 0):
        pass


def test_many_threads_never_share_an_engine():
    cache, used, broken = EngineCache(most=3), set(), []
    lock = threading.Lock()

    def work(number):
        for i in range(200):
            with cache.borrow((number + i) % 3, Engine, CPU, lambda e: 0) as engine:
                with lock:
                    broken.append(engine in used or engine.closed)
                    used.add(engine)
                with lock:
                    used.remove(engine)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(broken) == 1200
    assert not any(broken)
    assert len(cache) <= 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_makes_its_own_engines():
    cache = EngineCache()
    parent = use(cache, "a")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        child = use(cache, "a")
        os.write(writer, b"%d%d" % (child is parent, parent.closed))
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 9) == b"00"
    assert use(cache, "a") is parent


def test_clear_cache_closes_the_idle_engines():
    engine = use(ENGINES, "test_engine_cache")
    skysieve.clear_cache()
    assert engine.closed == 1
    assert len(ENGINES) == 0


def test_an_engine_of_unknown_size_is_closed():
    def size(engine):
        raise RuntimeError("no such device")

    cache = EngineCache()
    with pytest.raises(RuntimeError, match="no such device"), cache.borrow("a", Engine, CPU, size) as engine:
        pass
    assert (engine.closed, len(cache)) == (1, 0)


@pytest.mark.parametrize("idle", [True, False])
def test_work_is_done_once_more_where_idle_engines_held_the_memory(idle):
    cache, calls = EngineCache(), []
    held = use(cache, "idle") if idle else None

    def work():
        with cache.borrow("a", Engine, CPU, lambda e: 0) as engine:
            calls.append(engine)
            if len(calls) == 1:
                raise MemoryError("short")
        return "done"

    if held is None:
        with pytest.raises(MemoryError, match="short"):
            cache.retried(CPU, work)
    else:
        assert cache.retried(CPU, work) == "done"
        assert held.closed == 1
    assert [engine.closed for engine in calls] == [1, 0][: 1 + idle]


def test_free_memory_is_not_queried_at_each_call(monkeypatch):
    asked, now = [], [100.0]
    monkeypatch.setattr(Device, "free_memory", property(lambda device: asked.append(now[0]) or device.total_memory))
    monkeypatch.setattr("skysieve.core.engine_cache.SMALL", 100)
    monkeypatch.setattr("skysieve.core.engine_cache.time", SimpleNamespace(monotonic=lambda: now[0]))
    cache, device = EngineCache(), Device("cuda", 0, "a GPU", 1 << 20)
    for now[0], size in ((100.0, 200), (100.1, 200), (100.2, 300), (100.3, 300), (101.0, 300)):
        with cache.borrow("key", lambda: SimpleNamespace(close=lambda: None), device, lambda engine, size=size: size):
            pass
    assert asked == [100.0, 100.2, 101.0]
