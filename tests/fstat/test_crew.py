"""The calling thread and its helper threads: each task runs once, results are in order; errors; progress."""

from __future__ import annotations

import threading

import pytest

from skysieve.fstat.cpu.crew import Crew


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_all_tasks_are_done_once(workers):
    crew, seen, reports = Crew(workers), [], []

    def task(i):
        seen.append(i)
        return i * i

    for _ in range(20):
        seen.clear()
        found = crew.run([lambda i=i: task(i) for i in range(7)], progress=lambda *a: reports.append(a))
        assert found == [i * i for i in range(7)]
        assert sorted(seen) == list(range(7))
        assert reports[-1] == (7, 7)
    assert crew.run([]) == []
    crew.close()


def test_two_threads_work_at_once():
    """Each of two tasks waits for the other to begin."""
    crew, both = Crew(2), threading.Barrier(2, timeout=600)
    threads = crew.run([lambda: (both.wait(), threading.get_ident())[1]] * 2)
    assert len(set(threads)) == 2
    assert threading.get_ident() in threads
    crew.close()


def test_the_calling_thread_can_run_a_job_alone():
    crew = Crew(3)
    assert set(crew.run([threading.get_ident] * 9, alone=True)) == {threading.get_ident()}
    crew.close()


@pytest.mark.parametrize("workers", [1, 3])
def test_errors_reach_the_caller(workers):
    crew, done = Crew(workers), []

    def fails():
        raise ValueError("this one")

    for at in (0, 3):
        tasks = [lambda i=i: done.append(i) for i in range(6)]
        tasks[at] = fails
        with pytest.raises(ValueError, match="this one"):
            crew.run(tasks)
    assert crew.run([lambda: 5]) == [5]
    crew.close()
