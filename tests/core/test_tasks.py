"""Tasks on threads, and their progress."""

from __future__ import annotations

import threading

import pytest

from skysieve.core.progress import Reporter
from skysieve.core.tasks import TaskPool, usable_cores

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
    assert TaskPool().workers == usable_cores() >= 1
