"""``skysieve dedisp search`` of folders, patterns and files one by one; ``--resume`` after kill -9; survey plans."""

from __future__ import annotations

import csv
import functools
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from astropy.table import Table
from tests.dedispersion.test_cli import run
from tests.dedispersion.work_of_helpers import search

from skysieve.core.command import FAILED_SOME
from skysieve.core.device import Device
from skysieve.core.errors import DeviceUnavailable
from skysieve.dedispersion import DMPlan, fake
from skysieve.dedispersion.command import at_once, several
from skysieve.dedispersion.single_pulse import cutouts

BAND = {"nchan": 32, "fch1": 1500, "foff": -8, "tsamp": 1e-3, "duration": 6, "dm": 200, "width": 6e-3, "snr": 25}
DMS = ("--dm-max", 400, "--dm-step", 10, "--threads", 1)


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    """Three files with a pulse each, a damaged one, and a file of notes."""
    folder = tmp_path_factory.mktemp("night")
    for i in range(3):
        fake(times=[1.0 + i], seed=i, path=folder / f"b{i}.fil", **BAND).close()
    (folder / "b3.fil").write_bytes((folder / "b0.fil").read_bytes()[:100])
    (folder / "notes.txt").write_text("good weather")
    (folder / ".hidden.fil").write_text("being copied")
    return folder


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_candidates_of_a_file_without_pictures_are_written(night, tmp_path, monkeypatch):
    def fails(*_, **__):
        raise OSError("no room for pictures")

    monkeypatch.setattr(cutouts, "write_cutouts", fails)
    options = ("-o", tmp_path / "n.csv", "--cutouts", tmp_path / "cut", "--resume")
    said = run("search", night / "b0.fil", night / "b1.fil", "--each", *DMS, *options, code=FAILED_SOME)
    assert said.count("no room for pictures") == 2
    assert {row["file"] for row in rows(tmp_path / "n.csv")} == {"b0.fil", "b1.fil"}
    monkeypatch.undo()
    run("search", night / "b0.fil", night / "b1.fil", "--each", *DMS, *options)
    assert {p.name for p in (tmp_path / "cut").iterdir()} == {"b0.fil", "b1.fil"}


def test_a_folder_is_one_table_without_the_damaged_file(night, tmp_path):
    said = run("search", night, *DMS, "-o", tmp_path / "n.csv", code=FAILED_SOME)
    table = rows(tmp_path / "n.csv")
    assert {row["file"] for row in table} == {"b0.fil", "b1.fil", "b2.fil"}
    for i in range(3):
        own = [row for row in table if row["file"] == f"b{i}.fil"]
        assert float(own[0]["time"]) == pytest.approx(1 + i, abs=6e-3)
        run("search", night / f"b{i}.fil", *DMS, "-o", tmp_path / f"{i}.csv")
        assert [{**row, "file": f"b{i}.fil"} for row in rows(tmp_path / f"{i}.csv")] == own
    assert "b3.fil" in said
    assert "1 of 4 files" in said
    assert not (tmp_path / "n.csv.parts").exists()


@pytest.mark.slow
def test_all_files_are_searched_where_nobody_reads_the_lines(night, tmp_path):
    wanted, out = tmp_path / "wanted.csv", tmp_path / "n.csv"
    run("search", night, *DMS, "-o", wanted, code=FAILED_SOME)
    read, write = os.pipe()
    os.close(read)
    words = map(str, ("dedisp", "search", night, *DMS, "--device", "cpu", "-o", out))
    command = [sys.executable, "-m", "skysieve", *words]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False, timeout=300)
    os.close(write)
    assert done.returncode == FAILED_SOME, done.stderr
    assert b"Traceback" not in done.stderr
    assert out.read_bytes() == wanted.read_bytes()


def test_several_devices_search_a_file_each(night, tmp_path, monkeypatch):
    """Two at a time, in any order: the table, the folder of parts and the damaged file are as with one device."""
    one = run("search", night, *DMS, "-o", tmp_path / "one.csv", code=FAILED_SOME)
    monkeypatch.setattr(
        several, "devices_for", lambda device, files, limited: ["cpu", "cpu"] if len(files) > 1 else [device]
    )
    two = run("search", night, *DMS, "-o", tmp_path / "two.csv", "--resume", code=FAILED_SOME)
    assert rows(tmp_path / "two.csv") == rows(tmp_path / "one.csv")
    assert sorted(two.replace("two", "one").splitlines()) == sorted(one.splitlines())
    again = run("search", night, *DMS, "-o", tmp_path / "two.csv", "--resume", code=FAILED_SOME)
    assert again.count("was finished before") == 3


def test_a_run_that_continues_makes_the_pictures_that_are_missing(night, tmp_path):
    options = ("search", night, *DMS, "-o", tmp_path / "n.csv", "--resume")
    run(*options, code=FAILED_SOME)
    table = (tmp_path / "n.csv").read_bytes()
    pictures = ("--plot", tmp_path / "pictures")
    assert "was finished before" not in run(*options, *pictures, code=FAILED_SOME)
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {f"b{k}.fil.png" for k in range(3)}
    (tmp_path / "pictures" / "b1.fil.png").unlink()
    assert run(*options, *pictures, code=FAILED_SOME).count("was finished before") == 2
    assert (tmp_path / "pictures" / "b1.fil.png").exists()
    assert (tmp_path / "n.csv").read_bytes() == table


def test_a_run_that_continues_knows_its_own_outputs(night, tmp_path):
    """The table of another command is not taken for that of the run, and replaced only with --overwrite."""
    tables = tmp_path / "tables"
    options = ("search", night, *DMS, "-o", tables, "--format", "csv", "--resume", "--plot", tmp_path / "pictures")
    run(*options, code=FAILED_SOME)
    made = {path.name: path.read_bytes() for path in tables.iterdir()}
    assert sorted(made) == ["b0.fil.csv", "b1.fil.csv", "b2.fil.csv"]
    assert run(*options, code=FAILED_SOME).count("was finished before") == 3
    (tmp_path / "pictures" / "b2.fil.png").write_bytes(b"another picture")
    run("search", night / "b1.fil", *DMS, "--threshold", 12, "-o", tables / "b1.fil.csv", "--overwrite")
    other = (tables / "b1.fil.csv").read_bytes()
    said = run(*options, code=2)
    assert f"{tables / 'b1.fil.csv'}: exists; use --overwrite to replace it" in said
    assert (tables / "b1.fil.csv").read_bytes() == other
    assert run(*options, "--overwrite", code=FAILED_SOME).count("was finished before") == 1
    assert {path.name: path.read_bytes() for path in tables.iterdir()} == made
    assert (tmp_path / "pictures" / "b2.fil.png").read_bytes().startswith(b"\x89PNG")
    (tables / "b0.fil.csv").unlink()
    assert run(*options, code=FAILED_SOME).count("was finished before") == 2
    assert (tables / "b0.fil.csv").read_bytes() == made["b0.fil.csv"]


def test_results_come_in_order_from_devices_that_work_at_once():
    both, used = threading.Barrier(2), []

    def work(number, device):
        used.append(device)
        if number < 2:
            both.wait(60)
        if number == 2:
            raise ValueError("damaged")
        return number

    found = []
    for result in at_once.results_of(work, list(range(5)), ["a", "b"]):
        try:
            found.append(result())
        except ValueError as error:
            found.append(str(error))
    assert found == [0, 1, "damaged", 3, 4]
    assert set(used) == {"a", "b"}


def test_a_process_that_fails_or_is_killed_loses_no_file(tmp_path, monkeypatch, capfd):
    """Notes of the files that are searched again are printed once."""
    for name, value in {"AHEAD": 4, "WARM": 0, "WORTH_SECONDS": 0, "HOST_BYTES": 1}.items():
        monkeypatch.setattr(at_once, name, value)
    monkeypatch.setattr(at_once, "_fit", lambda device: 1)
    said: list[str] = []
    work = functools.partial(search, tmp_path, os.getpid())
    helpers = at_once.Helpers(work, ["cpu"], 2, said.append)
    try:
        found = [result() for result in at_once.results_of(work, list(range(12)), ["cpu", "cpu"], helpers)]
        assert helpers.ready == 1
    finally:
        helpers.close()
    assert (tmp_path / "killed").exists()
    assert len(list(tmp_path.glob("begun-*"))) == 3
    assert [number for number, _ in found] == list(range(12))
    assert sorted(where for _, where in found) == ["here"] * 11 + ["there on cpu"]
    assert said == ["the remaining files are also searched by 1 process more"]
    assert sorted(capfd.readouterr().err.splitlines()) == sorted(f"note: {number}" for number in range(12))


def test_a_process_without_its_device_searches_nothing(monkeypatch):
    """As where a GPU serves one process only."""
    assert at_once._usable("cpu")

    def refused(device):
        raise DeviceUnavailable(f"{device} is busy")

    monkeypatch.setattr(at_once, "resolve", refused)
    assert not at_once._usable("cuda:0")


class Unable:
    """Two processes that cannot search any file."""

    most = 2

    def __init__(self, answer=lambda number: None):
        self.ready, self.answer = 0, answer

    def consider(self, left, add):
        while self.ready < self.most:
            self.ready += 1
            add(self.answer)


def test_files_of_processes_that_end_wait_for_the_devices_here():
    """More searches at a time could exhaust the memory of the GPU."""
    lock, running, most = threading.Lock(), [], []

    def work(number, device):
        with lock:
            running.append(device)
            most.append(len(running))
            assert len(set(running)) == len(running)
        time.sleep(0.002)
        with lock:
            running.remove(device)
        return number

    results = at_once.results_of(work, list(range(40)), ["a", "b"], Unable())
    assert [result() for result in results] == list(range(40))
    assert max(most) <= 2


def test_a_file_of_a_process_that_ends_after_an_interrupt_is_not_searched(monkeypatch):
    """SIGTERM for all processes of a job ends them at once."""
    begun, released, given, again = threading.Event(), threading.Event(), set(), []

    class Pool(at_once.ThreadPoolExecutor):
        def shutdown(self, *args, **options):
            released.set()
            super().shutdown(*args, **options)

    def there(number):
        given.add(number)
        begun.set()
        released.wait(60)

    def work(number, device):
        if number in given:
            again.append(number)
        return number

    monkeypatch.setattr(at_once, "ThreadPoolExecutor", Pool)
    results = at_once.results_of(work, list(range(20)), ["a", "b"], Unable(there))
    assert [next(results)() for _ in range(3)] == [0, 1, 2]
    assert begun.wait(60)
    results.close()
    assert given
    assert not again


PROGRAM = """
import functools, os, pathlib
from skysieve.dedispersion.command import at_once
from tests.dedispersion.work_of_helpers import search

print("program")
at_once.AHEAD, at_once.WARM, at_once.WORTH_SECONDS, at_once.HOST_BYTES, at_once._fit = 4, 0, 0, 1, lambda device: 1
work = functools.partial(search, pathlib.Path({folder!r}), os.getpid())
helpers = at_once.Helpers(work, ["cpu"], 1)
found = [result() for result in at_once.results_of(work, list(range(12)), ["cpu", "cpu"], helpers)]
helpers.close()
print(helpers.ready, sorted(where for _, where in found)[-1])
"""


@pytest.mark.slow
def test_a_process_does_not_run_the_program_again(tmp_path):
    """The program comes from standard input, and has no line ``if __name__ == "__main__"``."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-"], input=PROGRAM.format(folder=str(tmp_path)), capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])},
        check=False,
    )  # fmt: skip
    assert sorted(done.stderr.splitlines()) == sorted(f"note: {number}" for number in range(12))
    assert done.stdout == "program\n1 there on cpu\n"


def test_processes_are_started_for_long_runs_only(monkeypatch):
    """One process for each four cores, at most three beside the first for each GPU, none for one file at a time."""
    monkeypatch.setattr(at_once, "usable_cores", lambda: 32)
    zero, one = "cuda:0", "cuda:1"
    wanted = {(zero, zero): 3, (zero, one, zero, one): 6, (zero, one): 0, (zero,): 0, ("cpu", "cpu"): 0}
    assert {devices: at_once.most_helpers(devices) for devices in wanted} == wanted
    monkeypatch.setattr(at_once, "usable_cores", lambda: 8)
    assert at_once.most_helpers([zero, one, zero, one]) == 1
    assert at_once.most_helpers([zero, one, zero, one], threads=4) == 0
    started: list[str] = []
    monkeypatch.setattr(at_once, "_fit", lambda device: started.append(device) or 0)
    now = iter(range(1000))
    monkeypatch.setattr(at_once.time, "perf_counter", lambda: next(now) / 10)
    helpers = at_once.Helpers(search, [zero, one], 3)
    for left in (500, 400, 300, 200, 150, 120, 100):
        helpers.consider(left, started.append)
    assert not started  # the time for a file is not known before
    helpers.consider(79, started.append)
    assert not started
    helpers.consider(81, started.append)
    assert started == [zero, one]
    assert helpers.ready == helpers.most == 0


def test_another_process_can_search_the_files_of_a_command(night, tmp_path, monkeypatch):
    """It gets a copy of all options."""
    made: list[Any] = []

    class Recorder(at_once.Helpers):
        def __init__(self, work, *rest):
            made.append(pickle.dumps(work))
            super().__init__(work, *rest)

    monkeypatch.setattr(several, "Helpers", Recorder)
    options = "--ignore", "3:4", "--threshold", 7, "--clean", "none", "--max-width", 0.05
    run("search", night / "b[0-1].fil", *DMS, *options, "-o", tmp_path / "n.csv")
    prepared: list[tuple[bool, ...]] = []
    monkeypatch.setattr(several, "Messages", lambda *given: prepared.append(given))
    work = pickle.loads(made[0])
    assert prepared == [(False, False, False)]  # with --verbose it logs, too
    found, not_drawn = work(1, "cpu")
    assert not_drawn is None
    assert found.threshold == 7
    own = [row for row in rows(tmp_path / "n.csv") if row["file"] == "b1.fil"]
    assert [f"{snr:.4f}" for snr in found.snr] == [f"{float(row['snr']):.4f}" for row in own] != []


def test_gpus_that_search_files(monkeypatch, tmp_path):
    """Two files at a time on each GPU; one GPU for few data.  A file that does not exist is reported later."""
    monkeypatch.setattr(at_once, "BYTES_EACH", 100)
    files = [tmp_path / f"{i}.fil" for i in range(6)]
    for file in files[:5]:
        file.write_bytes(bytes(60))
    gpus = [Device("cuda", i, "a GPU", 1 << 30, (9, 0), 100) for i in range(3)]
    cpu = [Device("cpu", 0, "a CPU", 1 << 30, None, 2)]
    found = {"cuda:all": gpus, "cuda:1": gpus[1:2], "auto": gpus[:1], "cpu": cpu}
    monkeypatch.setattr(at_once, "resolve", found.__getitem__)
    one, two, three = (f"cuda:{i}" for i in range(3))
    assert at_once.devices_for("cuda:all", files[:5]) == [one, two, three, one, two]
    assert at_once.devices_for("cuda:all", files[:2]) == [one, two]
    assert at_once.devices_for("cuda:all", files[:1]) == ["cuda:all"]
    assert at_once.devices_for("cuda:all", [files[0], files[5]]) == [one, one]
    assert at_once.devices_for("cuda:1", files[:5]) == [two, two]
    assert at_once.devices_for("auto", files[:5]) == [one, one]
    assert at_once.devices_for("cpu", files[:5]) == ["cpu"]
    assert at_once.devices_for("cuda:all", files[:5], limited=True) == [one, two, three]
    monkeypatch.setattr(at_once, "BYTES_AT_ONCE", 59)
    assert at_once.devices_for("cuda:all", files[:5]) == [one, two, three]


@pytest.mark.few
@pytest.mark.parametrize("ending", ["ecsv", "json", "parquet"])
def test_every_format_with_a_column_of_files(night, tmp_path, ending):
    out = tmp_path / f"n.{ending}"
    run("search", night / "b[0-2].fil", *DMS, "-q", "-o", out)
    run("search", night / "b[0-2].fil", *DMS, "-q", "-o", tmp_path / "n.csv")
    expected = [(row["file"], float(row["snr"])) for row in rows(tmp_path / "n.csv")]
    if ending == "json":
        held = json.loads(out.read_text())["files"]
        found = [(one["file"], c["snr"]) for one in held for c in one["candidates"]]
    else:
        table = Table.read(out) if ending == "ecsv" else pq.read_table(out).to_pydict()
        found = list(zip(table["file"], table["snr"], strict=True))
    assert [name for name, _ in found] == [name for name, _ in expected]
    np.testing.assert_allclose([snr for _, snr in found], [snr for _, snr in expected], atol=1e-4)


@pytest.mark.slow
def test_a_quoted_pattern_into_a_folder_of_tables_pictures_and_cut_outs(night, tmp_path):
    run("search", f"{night}/b[0-1].fil", *DMS, "-o", tmp_path / "t", "--format", "cand", "--plot", tmp_path / "p",
        "--cutouts", tmp_path / "c", "--most", 1)  # fmt: skip
    assert sorted(p.name for p in (tmp_path / "t").iterdir()) == ["b0.fil.cand", "b1.fil.cand"]
    assert sorted(p.name for p in (tmp_path / "p").iterdir()) == ["b0.fil.png", "b1.fil.png"]
    assert len(list((tmp_path / "c" / "b1.fil").glob("*.h5"))) == 1
    said = run("search", f"{night}/b[0-1].fil", *DMS, "-o", tmp_path / "t", "--format", "cand", code=2)
    assert "exists; use --overwrite" in said


def test_the_cached_engine_serves_files_of_one_shape(night, monkeypatch):
    from skysieve.dedispersion.single_pulse import search as module

    made = []
    plan = module.SearchPlan
    monkeypatch.setattr(module, "SearchPlan", lambda *a, **k: made.append(1) or plan(*a, **k))
    run("search", night / "b0.fil", night / "b1.fil", night / "b2.fil", "--each", "--dm-max", 390, "--dm-step", 13,
        "--threads", 1)  # fmt: skip
    assert len(made) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["b0.fil", "b1.fil"], "--each searches every file by itself"),
        (["b0.fil", "--resume"], "--resume needs --each"),
        (["b0.fil", "--each", "--resume"], "--resume needs -o"),
        (["none*.fil"], "no file matches"),
        (["b0.fil", "b1.fil", "--each", "-o", "a.cand"], "expected the name of a folder"),
        (["-", "b1.fil", "--each"], "standard input"),
        (["b0.fil", "--each", "--plot", "a.png"], "expected the name of a folder"),
    ],
)
def test_mistakes_are_one_line(night, words, message, monkeypatch):
    monkeypatch.chdir(night)
    said = run("search", *words, *DMS, code=2)
    assert message in said
    assert said.count("\n") == 1


def test_a_folder_without_data(tmp_path):
    assert "no file in it ends in" in run("search", tmp_path, *DMS, code=2)


@pytest.mark.slow
def test_a_run_continues_after_kill_9(night, tmp_path):
    """The finished files are not searched again, even if they are gone; the table is that of one run."""
    data = tmp_path / "data"
    shutil.copytree(night, data)
    (data / "b3.fil").unlink()
    for i in range(3, 8):
        fake(times=[2.5], seed=i, path=data / f"b{i}.fil", **BAND).close()
    run("search", data, *DMS, "-q", "-o", tmp_path / "whole.csv")
    words = [sys.executable, "-m", "skysieve", "dedisp", "search", *map(str, (data, *DMS)), "-o",
             str(tmp_path / "n.csv"), "--resume"]  # fmt: skip
    parts = tmp_path / "n.csv.parts"
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until = time.monotonic() + 120
        while not list(parts.glob("[0-9]*.npz")) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
    done = len(list(parts.glob("[0-9]*.npz")))
    assert done >= 1
    assert not (tmp_path / "n.csv").exists()
    excess = run("search", data, *DMS, "--excess", 9, "-o", tmp_path / "n.csv", "--resume", code=2)
    assert "a run with other options" in excess
    other = run("search", data, "--dm-max", 300, "--dm-step", 10, "-o", tmp_path / "n.csv", "--resume", code=2)
    assert "a run with other options" in other
    said = run("search", data, *DMS, "-o", tmp_path / "n.csv", "--resume")
    assert said.count("was finished before") == done
    assert (tmp_path / "n.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not parts.exists()


def test_a_repaired_file_is_searched_when_the_run_is_repeated(night, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(night, data)
    run("search", data, *DMS, "-o", tmp_path / "n.csv", "--resume", code=FAILED_SOME)
    assert len(rows(tmp_path / "n.csv")) > 0
    fake(times=[4.0], seed=9, path=data / "b3.fil", **BAND).close()
    said = run("search", data, *DMS, "-o", tmp_path / "n.csv", "--resume")
    assert said.count("was finished before") == 3
    assert "b3.fil" in {row["file"] for row in rows(tmp_path / "n.csv")}


TABLE_1 = "0,53.46,0.03,1,0.66\n53.46,88.26,0.05,2,1.2  # row 2\n88.26,150.66,0.1,4,2.4\n"


def test_survey_plans_on_the_command_line(tmp_path):
    """Table 1 of Magro et al. (2011), from a file and as an option."""
    (tmp_path / "t1.txt").write_text(TABLE_1)
    fake(nchan=64, fch1=308, foff=-0.25, tsamp=64e-6, duration=0.1, period=None, path=tmp_path / "a.fil").close()
    run("plan", tmp_path / "a.fil", "--stages", tmp_path / "t1.txt", "--nsub", 32, "-o", tmp_path / "a.json")
    text = "0,53.46,0.03,1,0.66; 53.46,88.26,0.05,2,1.2; 88.26 150.66 0.1 4 2.4"
    run("plan", tmp_path / "a.fil", "--stages", text, "--nsub", 32, "-o", tmp_path / "b.json")
    a, b = (DMPlan.load(tmp_path / name) for name in ("a.json", "b.json"))
    assert a.to_json() == b.to_json()
    assert [(len(s.dms), s.step, s.downsamp, s.per_call) for s in a.stages] == [
        (1782, 0.03, 1, 22), (696, 0.05, 2, 24), (624, 0.1, 4, 24),
    ]  # fmt: skip


def test_a_survey_plan_searches(night, tmp_path):
    run("search", night / "b1.fil", "--stages", "0,150,10,1;150,400,10,2", "--threads", 1, "-o", tmp_path / "c.csv")
    found = rows(tmp_path / "c.csv")[0]
    assert float(found["time"]) == pytest.approx(2, abs=8e-3)
    assert int(found["downsamp"]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stages", "0,100,1"], "is not a row of low DM"),
        (["--stages", "0,100,1,x"], "is not a row of low DM"),
        (["--stages", "none.txt"], "the name of an existing file"),
        (["--stages", "0,100,1,1;100,200,1,1,2"], "rows of equal length"),
        (["--stages", "100,0,1,1"], "low DM < high DM"),
        (["--stages", "0,100,1,1", "--dm-max", "9"], "--stages cannot be combined with"),
    ],
)
def test_bad_survey_plans(night, words, message):
    assert message in run("search", night / "b1.fil", *words, code=2)
