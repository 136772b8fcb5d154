"""``skysieve period`` that is stopped: by Ctrl-C, by a full disk, by a second run on the same output."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import skysieve
from skysieve.cli import app
from skysieve.core.parts import PartsFolder
from skysieve.periodogram import survey as search
from skysieve.periodogram.lightcurves.io import read_light_curves

GRID = ("--fmin", "0.2", "--fmax", "5", "--nf", "2000", "--device", "cpu")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


# ---------------------------------------------------------------- one output, two runs

HOLD = """
import sys, time
from pathlib import Path
from skysieve.periodogram.command.resume import Parts
parts = Parts(Path(sys.argv[1]), {})
print("held", flush=True)
time.sleep(600)
"""


def test_a_second_run_on_one_output_names_the_process_that_writes_it(survey: Path, tmp_path: Path) -> None:
    """And a run that was killed leaves no lock behind."""
    out = tmp_path / "p.csv"
    command = ("period", survey, *GRID, "--resume", "-o", out)
    with subprocess.Popen([sys.executable, "-c", HOLD, str(out)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        refused = run(*command)
        assert refused.exit_code == 2
        message = " ".join(refused.stderr.split())
        assert f"p.csv.parts is in use by process {holder.pid} on {socket.gethostname()}; wait until it ends" in message
        assert not out.exists()
        holder.send_signal(signal.SIGKILL)
    done = run(*command)
    assert done.exit_code == 0, done.stderr
    assert out.exists()
    assert not (tmp_path / "p.csv.parts").exists()
    assert run(*command, "--overwrite").exit_code == 0  # the lock went with the folder


def test_a_run_that_has_finished_no_part_replaces_no_table(survey: Path, tmp_path: Path) -> None:
    """It was interrupted at its beginning, and the table has been made by another command since."""
    out = tmp_path / "p.csv"
    PartsFolder(out, {}).close()
    out.write_text("another table")
    command = ("period", survey, *GRID, "--resume", "-o", out)
    refused = run(*command)
    assert refused.exit_code == 2
    assert "p.csv: exists; use --overwrite to replace it" in " ".join(refused.stderr.split())
    assert out.read_text() == "another table"
    assert run(*command, "--overwrite").exit_code == 0
    assert [path.name for path in tmp_path.glob("p.*")] == ["p.csv"]


KILLED = """
import os, signal, sys
from pathlib import Path
import skysieve.core.parts as parts
import skysieve.core.files as files
where, *words = sys.argv[1:]
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
if where == "written":
    parts.PartsFolder.remove = die
elif where == "removed":
    unlink = Path.unlink
    Path.unlink = lambda self, **more: die() if self.name == "run.json" else unlink(self, **more)
else:
    record = parts.PartsFolder._record
    def then_die(self, part):
        if where == "recorded":
            record(self, part)
        die()
    parts.PartsFolder._record = then_die
sys.argv = ["skysieve", *words]
import skysieve.__main__
skysieve.__main__.main()
"""


@pytest.mark.parametrize("where", ["unwritten", "recorded", "written", "removed"])
def test_the_command_of_a_killed_run_ends_it(where: str, survey: Path, tmp_path: Path) -> None:
    """Wherever the run was killed, its command is successful the next time, and nothing else is left."""
    whole, out = tmp_path / "whole.csv", tmp_path / "p.csv"
    assert run("period", survey, *GRID, "-o", whole).exit_code == 0
    command = ("period", survey, *GRID, "--resume", "-o", out)
    killed = subprocess.run([sys.executable, "-c", KILLED, where, *map(str, command)], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert out.exists() == (where in ("written", "removed"))
    unfinished = list(tmp_path.glob(".p-*.csv"))
    assert len(unfinished) == (where in ("unwritten", "recorded"))
    for path in unfinished:
        os.utime(path, (0, 0))
    again = run(*command)
    assert again.exit_code == 0, again.stderr
    assert ("was complete before" in again.stderr) == (where == "removed")
    assert out.read_bytes() == whole.read_bytes()
    assert [path.name for path in (*tmp_path.glob("p.*"), *tmp_path.glob(".*"))] == ["p.csv"]


def test_a_run_that_continues_replaces_its_own_table_only(survey: Path, tmp_path: Path) -> None:
    empty, out = tmp_path / "empty.csv", tmp_path / "p.csv"
    empty.write_text("")
    command = ("period", survey, empty, *GRID, "--resume", "-o", out)
    assert run(*command).exit_code == 1  # the parts stay
    table = out.read_bytes()
    out.write_text("another table")
    refused = run(*command)
    assert refused.exit_code == 2
    assert "p.csv: exists; use --overwrite to replace it" in " ".join(refused.stderr.split())
    assert out.read_text() == "another table"
    assert run(*command, "--overwrite").exit_code == 1
    assert out.read_bytes() == table
    assert run(*command).exit_code == 1  # its own


def test_the_lock_is_given_back_after_an_error(survey: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    command = ("period", survey, *GRID, "--resume", "-o", out)
    assert run(*command, "--mag", "nothing").exit_code == 2
    assert run(*command).exit_code == 0


# ---------------------------------------------------------------- Ctrl-C

WATCHED = """
import signal, sys
import skysieve.__main__ as command
set_handler = signal.signal
def watched(number, handler):
    before = set_handler(number, handler)
    if handler is command._leave:
        print("ready", flush=True)
    return before
signal.signal = watched
command.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5])
def test_ctrl_c_at_any_moment(seconds: float, survey: Path, tmp_path: Path) -> None:
    """From the moment the command has begun to load; the search itself takes longer."""
    long = ("--fmin", "0.01", "--fmax", "5000", "--nf", "100000000", "--device", "cpu", "-o", str(tmp_path / "p.csv"))
    command = [sys.executable, "-c", WATCHED, "period", str(survey), *long]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, message = process.communicate(timeout=300)
    assert process.returncode == 130, message
    assert "Traceback" not in message


ONE_THREAD = """
import os, signal, threading
import numpy as np
import skysieve

t = np.sort(np.random.default_rng(1).uniform(0, 1000, 1000))
y = np.sin(t)

def search(nf):
    options = dict(fmin=0.1, fmax=3000.0, method="direct", return_power=False, device="cpu", threads=1)
    skysieve.lombscargle(t, y, nf=nf, **options)

from skysieve.periodogram.cpu import chunk
run = chunk.interrupted_after

def watched(kernel, *arguments):
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    return run(kernel, *arguments)

search(30_000)
chunk.interrupted_after = watched
try:
    search(1_500_000)
except KeyboardInterrupt:
    print("interrupted", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


def test_ctrl_c_in_compiled_code_of_the_main_thread() -> None:
    """numba raised SystemError, or crashed, if the signal came before it made the arrays that the function returns."""
    done = subprocess.run([sys.executable, "-c", ONE_THREAD], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted True\n"), done.stderr


def test_ctrl_c_after_minutes_keeps_what_is_done(survey: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects that take ten seconds each: what is lost is the chunk in work, of a few objects."""
    execute, done = skysieve.LombScarglePlan.execute, []

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return 10.0 * sum(done)

    def slow(self, t, y, dy, *, offsets, **options):
        if sum(done) > 20:
            raise KeyboardInterrupt
        done.append(len(offsets) - 1)
        return execute(self, t, y, dy, offsets=offsets, **options)

    monkeypatch.setattr(skysieve.LombScarglePlan, "execute", slow)
    monkeypatch.setattr(search, "time", Clock)
    monkeypatch.setattr(search, "FIRST_WORK", 16 * 2000)
    result = run("period", survey, *GRID, "-o", tmp_path / "p.csv")
    assert result.exit_code == 130
    assert done[-1] == 1  # seconds of work
    message = " ".join(result.stderr.split())
    assert re.search(rf"the periods of the {sum(done)} objects that were done are in \S+p.partial.csv", message)
    assert len((tmp_path / "p.partial.csv").read_text().splitlines()) == 1 + sum(done)
    done.clear()
    shown = run("period", survey, *GRID)
    assert shown.exit_code == 130
    assert f"the periods of the {sum(done)} objects that were done are in the table above" in shown.stderr
    assert re.search(r"^s0 +0\.\d+ ", shown.stdout, re.M)


def test_the_first_objects_are_few_where_each_takes_long(survey: Path) -> None:
    curves = read_light_curves(survey)
    for arguments, most in (({"nf": 2000}, 500), ({"nf": 10**7}, 2), ({"fmin": 0.1, "fmax": 1e4}, 8), ({}, 500)):
        assert 1 <= search.first_chunk(curves, search.Request(arguments)) <= most


# ---------------------------------------------------------------- a full disk


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """Writing beyond ``size`` bytes fails as on a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.few
@pytest.mark.parametrize("suffix", ["csv", "parquet", "fits", "ecsv"])
def test_a_full_disk_loses_nothing(suffix: str, survey: Path, tmp_path: Path) -> None:
    """The table cannot be written anywhere: it goes to the standard output, and an earlier table stays."""
    whole, out = tmp_path / "whole.csv", tmp_path / f"p.{suffix}"
    assert run("period", survey, *GRID, "-q", "-o", whole).exit_code == 0
    assert run("period", survey, *GRID, "-q", "-o", out).exit_code == 0
    before = out.read_bytes()
    with no_file_above(3000):
        result = run("period", survey, *GRID, "-q", "-o", out, "--overwrite")
    assert result.exit_code == 2
    assert f"cannot write {out}: " in result.stderr.replace("\n", "")
    assert "survey.csv" not in result.stderr
    assert "60 objects that were done are on standard output" in " ".join(result.stderr.split())
    assert list(io.StringIO(result.stdout)) == list(io.StringIO(whole.read_text()))
    assert out.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted({"survey.csv", "whole.csv", out.name})


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_an_output_of_another_process(survey: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The table is written once, under the name that the message gives."""
    found = search.join

    def slow(parts):
        (tmp_path / name).write_text("theirs")
        return found(parts)

    monkeypatch.setattr(search, "join", slow)
    result = run("period", survey, *GRID, "-q", "-o", tmp_path / name)
    assert result.exit_code == 2
    other = name.replace("p.", "p-2.")
    assert f"another process has written it meanwhile; this result is in {other}" in " ".join(result.stderr.split())
    assert (tmp_path / name).read_text() == "theirs"
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["survey.csv", name, other])


def test_a_full_disk_beside_the_output(survey: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is written to the folder of temporary files, if it has room."""
    from skysieve.core import table_files as files

    elsewhere = tmp_path / "tmp"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    write = files.write_table

    def full(columns, path, **options):
        if path.parent == tmp_path:
            raise OSError(28, os.strerror(28))
        write(columns, path, **options)

    monkeypatch.setattr(files, "write_table", full)
    result = run("period", survey, *GRID, "-q", "-o", tmp_path / "p.csv")
    assert result.exit_code == 2
    message = result.stderr.replace("\n", "")
    assert f"cannot write {tmp_path / 'p.csv'}: No space left on device" in message
    assert f"are in {elsewhere / 'p.partial.csv'}" in message
    assert len((elsewhere / "p.partial.csv").read_text().splitlines()) == 61


@pytest.mark.slow
def test_a_run_continues_after_a_full_disk(survey: Path, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole.csv", tmp_path / "p.csv"
    assert run("period", survey, *GRID, "-q", "-o", whole).exit_code == 0
    command = ("period", survey, *GRID, "--resume", "-o", out)
    with no_file_above(3000):
        result = run(*command, "--partition", "30")
    assert result.exit_code == 2
    message = result.stderr.replace("\n", "")
    assert f"cannot write {out}.parts/00000-000000.npz: " in message
    assert "Traceback" not in message
    result = run(*command, "--partition", "30")
    assert result.exit_code == 0, result.stderr
    assert out.read_text() == whole.read_text()
