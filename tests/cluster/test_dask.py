"""Jobs on workers of Dask: deaths, memory, missing schedulers."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from contextlib import ExitStack, suppress

import numpy as np
import psutil
import pytest
from tests.cluster.toy import TOY

from skysieve import cluster
from skysieve.cluster import launchers
from skysieve.cluster.description import OutputError
from skysieve.cluster.folder import environment
from skysieve.core.errors import DeviceUnavailable

pq = pytest.importorskip("pyarrow.parquet")
distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("dask")
LONGEST = 600
"""Seconds after which a test is ended: far longer than any takes, on a busy machine too."""


@pytest.fixture(autouse=True)
def end_a_test_that_waits_for_ever():
    """End a test that hangs, and print the stacks of all threads."""

    def end(number, frame):
        faulthandler.dump_traceback(all_threads=True)
        pytest.fail(f"the test did not end within {LONGEST} seconds; the stacks of its threads are on stderr")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(LONGEST)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def toy(path, **options):
    return cluster.job(TOY, path, device="cpu", **({"n": 12} | options))


@pytest.fixture(scope="module")
def client():
    """One worker process, whose memory is limited; it has one task at a time and may die often, as with "local:1"."""
    given = {"distributed.scheduler.worker-saturation": 1.0, "distributed.deploy.lost-worker-timeout": "1 day"}
    with (
        dask.config.set(given),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0", memory_limit="700MiB",
            silence_logs=50,
        ) as local,
        distributed.Client(local) as one,
    ):  # fmt: skip
        yield one


@pytest.mark.slow
def test_a_client_gives_the_table_of_one_process(client, tmp_path):
    cluster.run(toy(tmp_path / "one.parquet"))
    done = cluster.run(toy(tmp_path / "a.parquet", bad=[3], faults=[5], seconds=0.01), client)
    assert done.failed == {3: "partition 3 is bad"}
    assert done.faults == ["row 5: bad"]
    again = cluster.run(toy(tmp_path / "b.parquet"), client)
    assert (again.rows, again.environments == done.environments) == (36, True)
    assert (tmp_path / "b.parquet").read_bytes() == (tmp_path / "one.parquet").read_bytes()


@pytest.mark.slow
def test_a_full_disk_on_a_worker_ends_the_run(client, tmp_path):
    with pytest.raises(OutputError, match="No space left on device"):
        cluster.run(toy(tmp_path / "a.parquet", full=[2], seconds=0.1), client)
    assert len(list((tmp_path / "a.parquet.parts").glob("part-*.parquet"))) < 11


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_its_partition_computed_again(client, tmp_path):
    cluster.run(toy(tmp_path / "one.parquet"))
    done = cluster.run(toy(tmp_path / "a.parquet", kill=[4], lost=[7]), client)  # a worker with a lost GPU ends
    assert (tmp_path / "killed-4").exists()
    assert (tmp_path / "killed-7").exists()
    assert done.failed == {}
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "one.parquet").read_bytes()


def test_workers_with_other_versions_are_refused(client):
    client.wait_for_workers(1)
    with pytest.raises(ValueError, match=r"has numpy \d.*, expected 0\.1 as here"):
        launchers._check_workers(client, environment() | {"numpy": "0.1"})
    launchers._check_workers(client, environment() | {"processor": "another"})
    with pytest.raises(ValueError, match=r"has jax none, expected 1 as here"):
        launchers._check_workers(client, environment() | {"jax": "1"})


def test_a_device_that_a_worker_lacks_is_refused_before_the_work(client, tmp_path):
    where = tmp_path / "a.parquet"
    with pytest.raises(DeviceUnavailable, match=r"worker tcp://127\.0\.0\.1:\d+: "):
        cluster.run(cluster.job(TOY, where, device="cuda:99", n=12), client)
    with pytest.raises(DeviceUnavailable, match=r"^(?!worker)"):
        cluster.run(cluster.job(TOY, where, device="cuda:99", n=12))
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_scheduler_is_an_error_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(launchers, "CONNECT", 1.0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ConnectionError, match=f"scheduler at tcp://127.0.0.1:{port} cannot be reached"):
        cluster.run(toy(tmp_path / "a.parquet"), f"dask:tcp://127.0.0.1:{port}")
    with pytest.raises(ConnectionError, match="scheduler at nowhere cannot be reached"):
        cluster.run(toy(tmp_path / "a.parquet"), "dask:nowhere")
    assert list(tmp_path.iterdir()) == []
    left = [one for one in gc.get_objects() if isinstance(one, distributed.Client) and one.status == "connecting"]
    assert left == []  # the collector would close them, perhaps while Dask holds the lock that this needs


def test_local_workers_have_the_environment_of_the_launcher_and_leave_nothing_behind(tmp_path, monkeypatch):
    import dask

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    launchers.start_ahead(TOY)
    assert "OMP_NUM_THREADS" not in os.environ
    monkeypatch.setenv("SKYSIEVE_TOY", "set after the fork server has started")
    before = dask.config.get("distributed.nanny.pre-spawn-environ")
    known = set(psutil.Process().children(recursive=True))
    cluster.run(toy(tmp_path / "one.parquet", n=4))
    with socket.socket() as other, warnings.catch_warnings():
        with suppress(OSError):  # another program has it
            other.bind(("", 8787))
            other.listen()
        warnings.simplefilter("error", UserWarning)  # Dask's, that its usual port is in use
        done = cluster.run(toy(tmp_path / "a.parquet", n=4, kill=[1], wants="SKYSIEVE_TOY"), "local:2")
    assert (done.failed, done.rows) == ({}, 12)
    assert (tmp_path / "killed-1").exists()
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "one.parquet").read_bytes()
    assert dask.config.get("distributed.nanny.pre-spawn-environ") == before
    _, left = psutil.wait_procs(set(psutil.Process().children(recursive=True)) - known, 10)
    assert left == []


def test_one_partition_is_computed_by_the_launcher(tmp_path, monkeypatch):
    monkeypatch.setattr(launchers, "_local", None)
    notes = []
    done = cluster.run(toy(tmp_path / "a.parquet", n=1), "local:2", note=notes.append)
    assert (done.rows, notes) == (3, ["there is one partition: this process computes it"])


def threads_as_workers(n):
    """A cluster whose workers are threads of this process, which start and end fast."""
    return distributed.LocalCluster(
        n_workers=n, threads_per_worker=1, processes=False, protocol="tcp", host="127.0.0.1",
        dashboard_address="127.0.0.1:0", silence_logs=50,
    )  # fmt: skip


@pytest.mark.slow
def test_a_scheduler_without_workers_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(launchers, "WORKERS", 0.2)
    with threads_as_workers(0) as local:
        address = local.scheduler_address
        with pytest.raises(ConnectionError, match=f"scheduler at {address} has no workers: none connected within 0.2"):
            cluster.run(toy(tmp_path / "a.parquet"), f"dask:{address}")
        with distributed.Client(local) as one, pytest.raises(ConnectionError, match="has no workers"):
            cluster.run(toy(tmp_path / "a.parquet"), one)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_run_ends_when_its_workers_leave_and_resume_continues(tmp_path, monkeypatch):
    monkeypatch.setattr(launchers, "WORKERS", 0.5)
    cluster.run(toy(tmp_path / "one.parquet"))

    def leave(done, partitions):
        if done >= 1:
            local.scale(0)

    with threads_as_workers(1) as local, pytest.raises(ConnectionError, match="has no workers"):
        cluster.run(toy(tmp_path / "a.parquet", seconds=0.1), f"dask:{local.scheduler_address}", progress=leave)
    done = cluster.run(toy(tmp_path / "a.parquet", seconds=0.1), resume=True)
    assert 1 <= done.before < 12
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "one.parquet").read_bytes()


@pytest.mark.slow
def test_partitions_may_take_longer_than_a_worker_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(launchers, "WORKERS", 0.3)
    with threads_as_workers(1) as local:
        done = cluster.run(toy(tmp_path / "a.parquet", n=2, seconds=0.8), f"dask:{local.scheduler_address}")
    assert (done.failed, done.rows) == ({}, 6)


@pytest.mark.slow
def test_a_worker_out_of_memory_is_named_and_the_rest_is_done(client, tmp_path):
    done = cluster.run(toy(tmp_path / "a.parquet", hungry=[6]), client)
    assert list(done.failed) == [6]
    assert "its worker died each time, perhaps because memory ran out" in done.failed[6]
    assert done.rows == 33


@pytest.mark.slow
def test_a_worker_that_is_starting_15_seconds_after_a_death_stays(tmp_path):
    """Dask's default closes it for good then; the second death comes just before that."""
    with ExitStack() as stack:
        local, _ = launchers._local(1, toy(tmp_path / "a.parquet"), stack)
        stack.enter_context(local)

        def kill() -> None:
            local.wait_for_workers(1, timeout=120)
            os.kill(local.workers[0].pid, signal.SIGKILL)
            while local.scheduler_info["workers"]:
                time.sleep(0.01)

        kill()
        time.sleep(14.8)
        kill()
        time.sleep(5)
        local.wait_for_workers(1, timeout=120)
        assert list(local.workers) == [0]


@pytest.mark.slow
def test_random_deaths_of_workers_give_the_same_table(tmp_path):
    """A twentieth of the partitions kill their worker once; benchmarks/cluster.py does the same with 1,000."""
    n = 60
    cluster.run(toy(tmp_path / "one.parquet", n=n))
    doomed = np.random.default_rng(3).choice(n, n // 20, replace=False).tolist()
    done = cluster.run(toy(tmp_path / "a.parquet", n=n, kill=doomed), "local:2")
    assert sorted(path.name for path in tmp_path.glob("killed-*")) == sorted(f"killed-{k}" for k in doomed)
    assert done.failed == {}
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "one.parquet").read_bytes()


@pytest.mark.slow
def test_a_scheduler_that_ends_stops_the_run_and_resume_continues(tmp_path):
    cluster.run(toy(tmp_path / "one.parquet"))
    code = (
        "from distributed import LocalCluster; import time\n"
        "if __name__ == '__main__':\n"
        "    c = LocalCluster(n_workers=1, threads_per_worker=1, host='127.0.0.1', dashboard_address='127.0.0.1:0')\n"
        "    print(c.scheduler_address, flush=True); time.sleep(600)\n"
    )
    script = tmp_path / "scheduler.py"
    script.write_text(code)
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=paths)
    address = process.stdout.readline().strip()

    def end() -> None:
        while not (tmp_path / "a.parquet.parts" / "part-000000.parquet").exists():
            time.sleep(0.05)
        process.kill()

    ending = threading.Thread(target=end, daemon=True)
    ending.start()
    started = time.monotonic()
    with pytest.raises((ConnectionError, OSError)):
        cluster.run(toy(tmp_path / "a.parquet", seconds=1), f"dask:{address}")
    assert time.monotonic() - started < 60
    process.communicate()
    done = cluster.run(toy(tmp_path / "a.parquet", seconds=1), "local:2", resume=True)
    assert done.before >= 1
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "one.parquet").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_launcher_ends_its_workers_and_resume_continues(sent, tmp_path):
    cluster.run(toy(tmp_path / "one.parquet"))
    script = tmp_path / "run.py"
    script.write_text(
        "import signal, sys\n"
        "from pathlib import Path\n"
        "from skysieve.cluster.command import launch\n"
        "from skysieve.core.command import Messages, report_errors\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in the background
        "    options = dict(output=Path(sys.argv[1]), resume=False, overwrite=False, threads=None, memory=None)\n"
        "    with report_errors('interrupted'):\n"
        f"        launch({TOY!r}, 'local:2', options | dict(n=12, seconds=1, device='cpu'), Messages())\n"
    )
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, str(script), str(tmp_path / "a.parquet")]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=paths)
    end = time.monotonic() + 60
    while not (tmp_path / "a.parquet.parts" / "part-000001.parquet").exists():
        assert time.monotonic() < end
        time.sleep(0.1)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(sent)
    assert "skysieve: interrupted\n" in process.communicate(timeout=60)[1]
    gone, alive = psutil.wait_procs(workers, timeout=20)
    assert (process.returncode != 0, len(gone) >= 2, alive) == (True, True, [])
    done = cluster.run(toy(tmp_path / "a.parquet", seconds=1), resume=True)
    assert 2 <= done.before < 12
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "one.parquet").read_bytes()
