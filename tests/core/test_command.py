"""The code that all command lines share."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated
from zipfile import BadZipFile

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from skysieve.cli import app, application
from skysieve.core.command import (
    INTERRUPTED,
    STDIO,
    USER_ERROR,
    Messages,
    check_output,
    check_outputs,
    check_picture,
    needs,
    option,
    report_errors,
    table_format,
    with_option,
    write_stdout,
)
from skysieve.core.errors import EXTRAS, DeviceUnavailable, MemoryBudgetError, install_hint, one_line
from skysieve.core.table_files import json_text

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "value",
    [
        [], [[]], {}, 1.5, [1, 2.5e-300, -3], (4, 5), [True, None, float("inf")], [[1, 2], [], [3]], ["a", "b, c"],
        [1, "x"], {"a": "[\n1,\n2]", "b": [{"c": [1, 2]}, 3], "[\n": [0]}, ["[", 1, "]"],
    ],
)  # fmt: skip
def test_json_with_lists_of_numbers_on_one_line_is_the_same_json(value):
    assert json.loads(json_text(value)) == json.loads(json.dumps(value))


def test_each_list_of_numbers_is_on_one_line():
    lines = json_text({"a": [1, None, 2.5], "b": {"c": [[1, 2], [3]]}, "d": ["[", "x"]}).splitlines()
    assert lines == [
        "{", ' "a": [1, null, 2.5],', ' "b": {', '  "c": [', "   [1, 2],", "   [3]", "  ]", " },",
        ' "d": [', '  "[",', '  "x"', " ]", "}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("x=3: expected 4"), "skysieve: x=3: expected 4\n"),
        (FileNotFoundError(2, "No such file or directory", "a.fits"), "skysieve: a.fits: No such file or directory\n"),
        (MemoryBudgetError("the map", 2048, 1024), "skysieve: the map needs 2.0 KiB (2048 bytes)"),
        (ModuleNotFoundError("No module named 'h5py'", name="h5py"), "'h5py': pip install 'skysieve[hdf5]'\n"),
        (ModuleNotFoundError("No module named 'other'", name="other"), "skysieve: No module named 'other'\n"),
        (MemoryError(), "skysieve: not enough memory\n"),
        (EOFError(), "skysieve: a file is damaged or cut short: it ends early\n"),
        (BadZipFile("File is not a zip file"), "skysieve: a file is damaged or cut short: File is not a zip file\n"),
    ],
)
def test_an_error_is_one_line_and_exit_code_2(error, text, capsys):
    with pytest.raises(typer.Exit) as stop, report_errors():
        raise error
    assert stop.value.exit_code == USER_ERROR
    assert text in capsys.readouterr().err


def test_the_entry_point_has_the_same_exit_code():
    """``skysieve.__main__`` states it again, because it imports nothing before it handles Ctrl-C."""
    from skysieve import __main__ as entry

    assert entry.INTERRUPTED == INTERRUPTED


def test_a_mistake_of_the_package_is_not_hidden():
    with pytest.raises(KeyError), report_errors():
        raise KeyError("x")


@pytest.fixture
def usual_signals():
    """The handlers of a shell's foreground process; a process in the background is started with SIGINT ignored."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts(number, usual_signals, capsys):
    steps = []

    def work():
        try:
            signal.raise_signal(number)
            steps.append("not interrupted")
        finally:
            steps.append("cleaned up")

    with pytest.raises(typer.Exit) as stop, report_errors("interrupted; nothing was written"):
        work()
    assert (stop.value.exit_code, steps) == (INTERRUPTED, ["cleaned up"])
    assert capsys.readouterr().err == "skysieve: interrupted; nothing was written\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_that_is_installed_already_stays():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with report_errors():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def command_that(work):
    """The standard error of a command with these options whose body is ``work()``."""

    def command(
        threshold: Annotated[float, option("-t", "--threshold", help="")] = 6.0,
        n_pulses: Annotated[int, option("--pulses", help="")] = 1,
        max_loss: Annotated[float, option("--max-loss", "--loss", help="")] = 0.1,
        steps: Annotated[list[int] | None, option("--steps", help="")] = None,
    ) -> None:
        with report_errors(names={"n": "--pulses"}):
            work()

    line = typer.Typer()
    line.command()(command)

    def run(*words: str) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["skysieve", *words])
            return CliRunner().invoke(line, words).stderr

    return run


@pytest.mark.parametrize(
    ("words", "text", "message"),
    [
        (["--threshold=0"], "threshold=0.0: expected 1", "--threshold 0: expected 1"),
        (["-t", "0"], "threshold=0.0: expected 1", "-t 0: expected 1"),
        ([], "threshold=0.0: expected 1", "threshold=0.0: expected 1"),  # it follows from another option
        (["--pulses", "0"], "n=0: expected 1", "--pulses 0: expected 1"),
        (["--loss", "0"], "max_loss=0.0: expected 1", "--loss 0: expected 1"),
        (["--pulses", "3"], "n=3, max_loss=0.1: n above max_loss", "--pulses 3, --max-loss 0.1: n above --max-loss"),
        (["-t", "0"], "max_loss.fil, a/max_loss: threshold", "max_loss.fil, a/max_loss: threshold"),
        ([], "max_loss: at most 1 of n_pulses", "--max-loss: at most 1 of n_pulses"),
        ([], "no column 'x'; the columns are: t, max_loss", "no column 'x'; the columns are: t, max_loss"),
        (["--loss", "1"], "--grid width=3,max_loss=2: no", "--grid width=3,max_loss=2: no"),
    ],
)
def test_a_message_names_the_option_that_was_given(words, text, message):
    def work():
        raise ValueError(text)

    assert command_that(work)(*words) == f"skysieve: {message}\n"


def test_the_name_of_a_file_stays():
    def work():
        raise FileNotFoundError(2, "No such file or directory", "max_loss")

    assert command_that(work)() == "skysieve: max_loss: No such file or directory\n"


def test_a_message_without_a_command_stays():
    assert with_option("max_loss=0: expected 1") == "max_loss=0: expected 1"
    needs("--cutouts", False, "--most")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], ""),
        (["--loss", "3"], ""),
        (["--pulses", "1"], "skysieve: --pulses needs --grid\n"),  # also with the value of the default
        (["--steps", "3", "-t", "6"], "skysieve: -t needs --grid\n"),
    ],
)
def test_options_without_effect_are_refused(words, message):
    assert command_that(lambda: needs("--grid", None, "--threshold", "--pulses", "--steps"))(*words) == message
    assert command_that(lambda: needs("--grid", "snr=9", "--threshold", "--pulses", "--steps"))(*words) == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["info", "--device", "cpu"], "skysieve: --device needs --measure\n"),
        (["warm-up", "--only", "stars"], "skysieve: --only 'stars': expected some of periodogram"),
        (["demo", "--device", "gpu"], "skysieve: --device 'gpu': expected 'auto', 'cpu'"),
    ],
)
def test_mistakes_of_commands_without_a_domain(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words)
    assert not list(tmp_path.iterdir())
    assert (done.exit_code, done.stderr[: len(message)]) == (USER_ERROR, message)


def test_outputs_are_checked_before_any_work(tmp_path):
    file = tmp_path / "a.csv"
    check_output(None)
    check_output(STDIO)
    check_output(file)
    check_output(tmp_path / "new", folder=True)
    check_output(tmp_path, folder=True)
    file.write_text("x")
    check_output(file, overwrite=True)
    with pytest.raises(FileExistsError, match=r"a\.csv: exists; use --overwrite"):
        check_output(file)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        check_output(tmp_path / "none" / "a.csv")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        check_output(tmp_path, overwrite=True)
    with pytest.raises(NotADirectoryError, match="is a file"):
        check_output(file, folder=True)


def test_outputs_replace_neither_one_another_nor_an_input(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a, b = Path("a.csv"), Path("b.csv")
    check_outputs({"--output": a, "--plot": b, "--mask": None, "--table": STDIO}, [Path("c.csv"), STDIO])
    check_outputs({"--output": STDIO, "--plot": STDIO})
    with pytest.raises(ValueError, match=r"--plot .*a\.csv: --output writes the same file"):
        check_outputs({"--output": a, "--plot": tmp_path / "a.csv"})
    Path("link.csv").symlink_to(b)
    with pytest.raises(ValueError, match=r"--output link\.csv is one of the files to read"):
        check_outputs({"--output": Path("link.csv")}, [a, b])


def test_a_folder_that_cannot_be_written_to_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    for path, folder in ((tmp_path / "a.csv", False), (tmp_path, True)):
        with pytest.raises(PermissionError, match="no permission to write there"):
            check_output(path, folder=folder)


def test_pictures_are_checked_before_any_work(tmp_path):
    pytest.importorskip("matplotlib")
    check_picture(None)
    check_picture(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"--plot .*a\.xyz: expected a name that ends in .*\.png"):
        check_picture(tmp_path / "a.xyz")


@pytest.mark.parametrize(
    ("path", "wanted", "expected"),
    [("a.CSV", None, "csv"), ("-", None, "csv"), ("-", "json", "json"), ("a.txt", "json", "json")],
)
def test_the_format_follows_from_option_or_name(path, wanted, expected):
    assert table_format(Path(path), wanted, ("csv", "json")) == expected


@pytest.mark.parametrize(
    ("path", "wanted", "text"),
    [("a.xyz", None, "--output a.xyz: expected one of csv, json"), ("-", "fits", "--format fits: expected one of csv")],
)
def test_an_unknown_format_is_refused(path, wanted, text):
    with pytest.raises(ValueError, match=text):
        table_format(Path(path), wanted, ("csv", "json"))


def test_messages_go_to_stderr_as_wished(capsys):
    for messages in (Messages(), Messages(quiet=True), Messages(verbose=True)):
        messages.say("said")
        messages.detail("in detail")
        messages.wrote("a.csv", "3 rows")
        messages.wrote(STDIO)
        assert not messages.progress  # standard error is no terminal here
    out, err = capsys.readouterr()
    assert not out
    assert err == "said\nwrote a.csv: 3 rows\n" + "said\nin detail\nwrote a.csv: 3 rows\n"
    assert Messages(progress=True).progress
    with pytest.raises(ValueError, match="--quiet and --verbose"):
        Messages(quiet=True, verbose=True)


def test_info_shows_brackets(monkeypatch):
    """Rich takes words in brackets for styles: the extra to install would be missing."""
    advice = "pip install 'skysieve[cuda13]'"
    monkeypatch.setattr("skysieve.core.device.cuda_problem", lambda: DeviceUnavailable("CuPy is missing", advice))
    done = CliRunner().invoke(application("info"), ["info"], env={"COLUMNS": "400"})
    assert done.exit_code == 0
    assert advice in done.output


def test_hints_name_extras_that_install_the_package():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for package, extra in EXTRAS.items():
        assert any(re.match(rf"{package}\b", r.replace("-", "_")) for r in extras[extra]), package
        assert install_hint(package) == f"pip install 'skysieve[{extra}]'"


LOSES = """
import os, signal, time
from skysieve import __main__, cli

def lose():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    except KeyboardInterrupt:
        raise ImportError("as of a compiled module") from None

cli.main = lose
__main__.main()
"""


def test_an_import_that_is_interrupted_ends_as_any_work():
    done = subprocess.run([sys.executable, "-c", LOSES], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "skysieve: interrupted\n")


DROPS = """
import os, signal, sys, time
from skysieve import __main__, cli

class Cleaned:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

def work():
    Cleaned()
    time.sleep(60)

cli.main = work
__main__.main()
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers here")
def test_an_interrupt_that_python_drops_ends_the_command():
    """As Python drops one that comes in a callback of the lock of an import."""
    done = subprocess.run([sys.executable, "-c", DROPS], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (130, "skysieve: interrupted\n")


@pytest.mark.skipif(not hasattr(select, "poll"), reason="there is no poll here")
def test_a_reader_of_the_output_that_ends_early_is_no_error():
    code = (
        "from skysieve.core.command import report_errors\n"
        "with report_errors():\n"
        "    for _ in range(100_000):\n"
        "        print('a line', flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"a line\n"
        process.stdout.close()
        error = process.stderr.read()
    assert b"Broken pipe" not in error
    assert process.returncode != 0


COMPILED = """
from skysieve.core.cpu.jit import compile_all
compile_all()
import skysieve.__main__
skysieve.__main__.main()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(select, "poll"), reason="there is no poll here")
@pytest.mark.parametrize("domain", ["period", "search"])
def test_a_result_is_written_before_it_is_shown(tmp_path, domain):
    """Nobody reads the table on standard output, or its disk is full: the file is complete.

    No process gives a first answer, which differs in its last digits from those of compiled code.
    """
    if domain == "period":
        t = np.sort(np.random.default_rng(0).uniform(0, 30, 60))
        np.savetxt(tmp_path / "in.csv", np.c_[t, np.sin(t)], delimiter=",", header="t,y", comments="")
        command = ["period", "in.csv", "--min-period", "1", "--device", "cpu", "-o"]
    else:
        make = ["dedisp", "fake", "-o", "in.fil", "--duration", "2", "--nchan", "32", "--snr", "20"]
        subprocess.run([sys.executable, "-m", "skysieve", *make], cwd=tmp_path, check=True, timeout=60)
        command = ["dedisp", "search", "in.fil", "--dm-max", "30", "--device", "cpu", "-o"]

    def run(name: str, out: int) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", COMPILED, *command, name],
            cwd=tmp_path, check=False, stdout=out, stderr=subprocess.PIPE, text=True, timeout=300,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stderr

    status, error = run("wanted.csv", subprocess.DEVNULL)
    assert status == 0, error
    for name, code in (("closed.csv", 141), ("full.csv", 2)):
        if name == "full.csv" and not Path("/dev/full").exists():
            continue
        if name == "full.csv":
            out = os.open("/dev/full", os.O_WRONLY)
        else:
            read, out = os.pipe()
            os.close(read)
        try:
            status, error = run(name, out)
        finally:
            os.close(out)
        assert status == code, error
        assert (tmp_path / name).read_bytes() == (tmp_path / "wanted.csv").read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_standard_output_is_one_line():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "skysieve", "--version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (2, b"skysieve: standard output: No space left on device\n")


def test_an_error_of_standard_output_names_it(monkeypatch):
    class Full(io.BytesIO):
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(Full()))
    with pytest.raises(OSError, match="standard output") as caught:
        write_stdout(b"a")
    assert one_line(caught.value) == "standard output: No space left on device"


@pytest.mark.parametrize(
    ("words", "option", "message"),
    [
        (("period", "a.csv", "--nf", "abc"), "--nf", "'abc': expected a whole number"),
        (("period", "a.csv", "--nf", "1.5"), "--nf", "'1.5': expected a whole number"),
        (("period", "a.csv", "--fmax", "1,5"), "--fmax", "'1,5': expected a number"),
        (("period", "a.csv", "--threads", "0"), "--threads", "'0': expected a number of at least 1"),
        (("period", "a.csv", "--threads", "5000"), "--threads", "'5000': expected a number of at most 4096"),
        (("period", "a.csv", "--dtype", "float16"), "--dtype", "'float16': expected one of float64, float32"),
        (("dedisp", "plan", "a.fil", "--rule", "x"), "--rule", "'x': expected one of loss, presto, tolerance"),
        (("period", "a.csv", "--method", "x"), "--method", "'x': expected one of auto, direct, nufft, finufft"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_expected(words, option, message):
    """Versions of typer that read values by click have other words for the same facts."""
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "400"})
    assert result.exit_code == 2
    assert f"'{option}'" in result.stderr
    assert message.partition(":")[0].strip("'") in result.stderr
    if find_spec("typer._adapters") is not None:
        assert f"Invalid value for '{option}': {message}" in result.stderr
