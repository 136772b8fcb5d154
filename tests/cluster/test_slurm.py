"""Jobs as arrays of a SLURM that runs on this machine alone, and what its scripts say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cluster.slurm_node import AVAILABLE, slurm_node
from tests.cluster.toy import TOY
from tests.marks import slow

from skysieve import cluster
from skysieve.cluster.slurm import CHECKPOINT
from skysieve.core.parts import InUse

pytest.importorskip("pyarrow")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A SLURM with two processors; skipped where its daemons are not installed."""
    if not AVAILABLE:
        pytest.skip("munged, slurmctld, slurmd and sbatch are not installed")
    folder = tmp_path_factory.mktemp("slurm")
    before = {name: os.environ.get(name) for name in ("SLURM_CONF", "PYTHONPATH")}
    with slurm_node(folder) as conf:
        os.environ |= {"SLURM_CONF": str(conf), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        yield
    for name, value in before.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value


def toy(path, **options):
    return cluster.job(TOY, path, device="cpu", **({"n": 7} | options))


def numbers(lines):
    """The numbers of the array and of the job that joins."""
    words = lines[0].replace(",", "").split()
    return [words[i + 1] for i, word in enumerate(words) if word == "job"]


def queue(number):
    asked = ["squeue", "--noheader", "--format=%T %r", "--jobs", number]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def wait(number, seconds=120):
    end = time.monotonic() + seconds
    while queue(number):
        assert time.monotonic() < end, queue(number)
        time.sleep(0.5)


def until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.slow
def test_an_array_gives_the_table_of_one_process(slurm, tmp_path):
    cluster.run(toy(tmp_path / "one.parquet"))
    array, join = numbers(cluster.submit(toy(tmp_path / "a.parquet"), tasks=2))
    assert array != join
    with pytest.raises(ValueError, match="is in use by job"):
        cluster.submit(toy(tmp_path / "a.parquet"), tasks=2, resume=True)
    wait(join)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "one.parquet").read_bytes()
    assert not (tmp_path / "a.parquet.parts").exists()


@pytest.mark.slow
def test_a_task_at_its_time_limit_is_queued_again(slurm, tmp_path):
    """SIGUSR2, which SLURM sends before the limit, reaches the batch script."""
    cluster.run(toy(tmp_path / "one.parquet"))
    parts = tmp_path / "a.parquet.parts"
    array, join = numbers(cluster.submit(toy(tmp_path / "a.parquet", seconds=1), tasks=1))
    until(lambda: (parts / "part-000001.parquet").exists())
    subprocess.run(["scancel", "--batch", "--signal=USR2", f"{array}_0"], check=True)
    log = parts / f"slurm-{array}_0.log"
    until(lambda: "SIGUSR2; finished partitions are stored" in log.read_text())
    done = {path.name: path.stat().st_mtime_ns for path in parts.glob("part-*.parquet")}
    assert 2 <= len(done) < 7
    wait_for_end = time.monotonic() + 120
    while queue(join) and time.monotonic() < wait_for_end:
        kept = {path.name: path.stat().st_mtime_ns for path in parts.glob("part-*.parquet")}
        assert not kept or done.items() <= kept.items()  # they are not computed again
        time.sleep(0.2)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "one.parquet").read_bytes()


@pytest.mark.slow
def test_a_preempted_task_stops_and_a_second_array_continues(slurm, tmp_path):
    """SIGTERM: the task ends with the documented code, the table holds what is done, --resume does the rest."""
    cluster.run(toy(tmp_path / "one.parquet"))
    parts = tmp_path / "a.parquet.parts"
    array, join = numbers(cluster.submit(toy(tmp_path / "a.parquet", seconds=1), tasks=1))
    until(lambda: (parts / "part-000001.parquet").exists())
    subprocess.run(["scancel", "--batch", "--signal=TERM", f"{array}_0"], check=True)
    wait(join)
    shown = subprocess.run(["scontrol", "show", "job", f"{array}_0"], capture_output=True, text=True, check=True).stdout
    assert f"ExitCode={CHECKPOINT}:0" in shown
    manifest = json.loads((parts / "manifest.json").read_text())
    assert manifest["state"] == "failed"
    assert set(manifest["failed"].values()) == {"its task ended before it was computed"}
    job = toy(tmp_path / "a.parquet", seconds=1)
    wait(numbers(cluster.submit(job, tasks=2, resume=True))[1])
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "one.parquet").read_bytes()


def test_an_array_without_its_second_job_is_cancelled(tmp_path, monkeypatch):
    """The first sbatch succeeds, the second one finds a limit reached."""
    programs = {
        "sbatch": "[ -e first ] && { printf 'sbatch: error: %s\\n' a b; exit 1; } >&2; touch first; echo 17",
        "scancel": "echo $@ > cancelled",
        "squeue": "",
    }
    fake_programs(tmp_path, monkeypatch, **programs)
    with pytest.raises(OSError, match=r"^sbatch: error: a; error: b$"):
        cluster.submit(toy(tmp_path / "a.parquet"))
    assert (tmp_path / "cancelled").read_text() == "17\n"
    assert cluster.run(toy(tmp_path / "a.parquet")).rows == 21


def fake_programs(folder, monkeypatch, **texts):
    """Shell scripts in the place of SLURM's programs."""
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/sh\ncd {folder}\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_jobs_are_asked_for_before_their_folder_is_used_again(tmp_path, monkeypatch):
    """Only jobs that squeue does not know, or does not list, have ended."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    fake_programs(tmp_path, monkeypatch, sbatch="[ $# = 2 ] && echo 17 || echo 18")
    cluster.submit(toy(tmp_path / "a.parquet"))

    def again(squeue):
        fake_programs(tmp_path, monkeypatch, squeue=squeue)
        return cluster.run(toy(tmp_path / "a.parquet"), overwrite=True)

    failed = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    with pytest.raises(InUse, match=r"may be in use by job 17 of SLURM.*squeue: slurm_load.*\(connect failure\)"):
        again(f"echo '{failed}' >&2; exit 1")
    with pytest.raises(InUse, match=r"is in use by job 17 of SLURM"):
        again("echo '17_0 RUNNING'")
    monkeypatch.setenv("SLURM_JOB_ID", "18")  # in the job that joins the results
    assert again("exit 1").rows == 21
    monkeypatch.delenv("SLURM_JOB_ID")
    cluster.submit(toy(tmp_path / "a.parquet"), overwrite=True)
    assert again("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1").rows == 21


def test_a_percent_sign_of_the_output_is_no_pattern_of_slurm(tmp_path, monkeypatch):
    fake_programs(tmp_path, monkeypatch, sbatch="echo 17")
    cluster.submit(toy(tmp_path / "100%a.parquet"))
    folder = tmp_path / "100%a.parquet.parts"
    for name, log in (("tasks", "slurm-%A_%a.log"), ("join", "slurm-%j.log")):
        text = (folder / f"slurm-{name}.sh").read_text()
        assert f"#SBATCH --output={tmp_path}/100%%a.parquet.parts/{log}\n" in text
        assert f" {folder}" in text


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGTERM, slow(signal.SIGUSR2)])
def test_a_task_that_is_asked_to_stop_ends_with_the_code_for_checkpoints(tmp_path, sent):
    """The task is started as the scripts start it, without SLURM."""
    job = toy(tmp_path / "a.parquet", seconds=0.5)
    cluster.submit(job, "htcondor")
    command = [sys.executable, "-m", "skysieve.cluster", "task", str(tmp_path / "a.parquet.parts"), "0", "1"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    task = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    until(lambda: (tmp_path / "a.parquet.parts" / "part-000000.parquet").exists())
    task.send_signal(sent)
    assert f"{sent.name}; finished partitions are stored" in task.communicate(timeout=30)[1]
    assert task.returncode == CHECKPOINT
    rest = cluster.run(job, resume=True)
    assert rest.before >= 1
    assert rest.rows == 21


def test_the_description_for_htcondor_names_the_code_for_checkpoints(tmp_path):
    job = toy(tmp_path / "a.parquet")
    lines = cluster.submit(job, "htcondor", tasks=3, threads=2)
    text = (tmp_path / "a.parquet.parts" / "condor.sub").read_text()
    assert "untested" in lines[0]
    assert "NOT been tested" in text
    assert f"checkpoint_exit_code = {CHECKPOINT}\n" in text
    assert text.endswith("queue 3\n")
    assert "$(Process) 3 --threads 2" in text


def test_a_device_that_the_submitting_machine_cannot_know_is_refused(tmp_path):
    job = cluster.job(TOY, tmp_path / "a.parquet", n=2)
    with pytest.raises(ValueError, match=r"--device auto: slurm needs --device cpu or --device cuda"):
        cluster.submit(job)
    assert not (tmp_path / "a.parquet.parts").exists()
