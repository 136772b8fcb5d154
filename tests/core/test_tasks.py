"""Tasks on threads, and their progress."""

from __future__ import annotations

import threading

import pytest

from skysieve.core.progress import Reporter
from skysieve.core.tasks import HANDOFF_SECONDS, Ahead, TaskPool, in_parallel, usable_cores

WORKERS = pytest.mark.parametrize("workers", [1, 3])


@WORKERS
def test_results_come_in_the_order_of_the_tasks(workers):
    with TaskPool(workers) as pool:
        assert pool.run([lambda i=i: i * i for i in range(50)], costs=range(50)) == [i * i for i in range(50)]
        assert pool.run([]) == []


@WORKERS
def test_the_longest_start_first(workers):
    started = []
    with TaskPool(workers) as pool:
        pool.run([lambda i=i: started.append(i) for i in range(20)], costs=[i % 7 for i in range(20)])
    if workers == 1:
        assert started == sorted(range(20), key=lambda i: -(i % 7))
    assert set(started[:workers]) <= {6, 13}.union(range(20) if workers > 2 else ())
    assert sorted(started) == list(range(20))


def test_tasks_run_at_the_same_time():
    barrier = threading.Barrier(3)
    with TaskPool(3) as pool:
        assert sorted(pool.run([lambda: barrier.wait(timeout=600)] * 3)) == [0, 1, 2]


def test_few_threads_share_a_short_job():
    with TaskPool(6) as pool:
        sharing = {seconds: pool.sharing(seconds * HANDOFF_SECONDS) for seconds in (0, 1, 4, 9, 1e6)}
        assert sharing == {0: 1, 1: 1, 4: 2, 9: 3, 1e6: 6}
        for most in (1, 2, 3, None):
            used = set(pool.run([threading.get_ident] * 500, most=most))
            assert len(used) <= (most or 6)
            assert (used == {threading.get_ident()}) == (most == 1)
        barrier = threading.Barrier(3)
        pool.run([lambda: barrier.wait(timeout=600)] * 3, most=3)
        with pytest.raises(threading.BrokenBarrierError):
            pool.run([lambda: barrier.wait(timeout=0.2)] * 3, most=2)


@WORKERS
def test_the_first_error_stops_the_job(workers):
    ran = []

    def task(i):
        ran.append(i)
        if i == 5:
            raise KeyError("five")

    with TaskPool(workers) as pool:
        with pytest.raises(KeyError, match="five"):
            pool.run([lambda i=i: task(i) for i in range(1000)])
        assert len(ran) <= 6 + 3 * workers
        assert pool.run([lambda: 1, lambda: 2]) == [1, 2]


@WORKERS
def test_progress_counts_units(workers):
    seen = []
    with TaskPool(workers) as pool:
        pool.run([lambda: None] * 4, units=[1, 2, 3, 4], progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (10, 10)
    assert all(total == 10 for _, total in seen)
    assert [d for d, _ in seen] == sorted(d for d, _ in seen)


def test_a_broken_callback_stops_the_job():
    def broken(done, total):
        raise OSError("the terminal is gone")

    with TaskPool(2) as pool, pytest.raises(OSError, match="terminal"):
        pool.run([lambda: None] * 10, progress=broken)


def test_reporter_keeps_its_interval():
    seen = []
    reporter = Reporter(lambda done, total: seen.append(done), 1000, interval=60)
    for _ in range(1000):
        reporter.add(1)
    assert seen == [1, 1000]
    silent = Reporter(None, 10)
    silent.add(3)
    assert silent.done == 0


def test_no_workers_is_refused():
    with pytest.raises(ValueError, match="threads=0"):
        TaskPool(0)
    with pytest.raises(TypeError, match="threads='two': expected a whole number"):
        TaskPool("two")
    assert TaskPool().workers == usable_cores() >= 1


def test_items_are_made_ahead():
    """Two wait while the first is looked at, and no more."""
    made, looked = [], threading.Semaphore(0)

    def items():
        for i in range(5):
            made.append(i)
            looked.release()
            yield i

    with Ahead(items(), 2) as ahead:
        assert next(ahead) == 0
        for _ in range(3):
            assert looked.acquire(timeout=30)
        assert made == [0, 1, 2]
        assert list(ahead) == [1, 2, 3, 4]
        assert list(ahead) == []


def test_an_error_is_raised_in_place_of_its_item():
    def items():
        yield 1
        raise ValueError("the second item")

    with Ahead(items(), 3) as ahead:
        assert next(ahead) == 1
        with pytest.raises(ValueError, match="the second item"):
            next(ahead)
        assert list(ahead) == []


def test_parts_are_read_in_parallel_and_come_in_order():
    """Three wait for one another: only threads of their own can end them."""
    together, closed = threading.Barrier(3), []

    def part(number):
        try:
            if number < 3:
                together.wait(timeout=30)
            yield from range(10 * number, 10 * number + number)
        finally:
            closed.append(number)

    assert list(in_parallel((part(k) for k in range(6)), 3)) == [10 * k + i for k in range(6) for i in range(k)]
    assert sorted(closed) == list(range(6))


def test_an_abandoned_reader_leaves_no_thread():
    closed = []

    def part(number):
        try:
            yield from range(1000)
        finally:
            closed.append(number)

    parts = in_parallel((part(k) for k in range(9)), 3)
    with Ahead(parts, 2) as ahead:
        assert next(ahead) == 0
    assert sorted(closed) == [0, 1, 2]
    assert not [t for t in threading.enumerate() if t.name.startswith("skysieve-ahead")]
