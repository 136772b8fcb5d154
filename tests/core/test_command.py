"""What the command lines share."""

from __future__ import annotations

import os
import signal
import time

import pytest
import typer

from skysieve.core.command import INTERRUPTED, USER_ERROR, number_list, report_errors
from skysieve.core.errors import MemoryBudgetError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("x=3: expected 4"), "skysieve: x=3: expected 4\n"),
        (FileNotFoundError(2, "No such file or directory", "a.fits"), "skysieve: a.fits: No such file or directory\n"),
        (MemoryBudgetError("the map", 2048, 1024), "skysieve: the map needs 2.0 KiB (2048 bytes)"),
        (ModuleNotFoundError("No module named 'h5py'", name="h5py"), "'h5py': pip install 'skysieve[hdf5]'\n"),
        (ModuleNotFoundError("No module named 'other'", name="other"), "skysieve: No module named 'other'\n"),
    ],
)
def test_an_error_is_one_line_and_exit_code_2(error, text, capsys):
    with pytest.raises(typer.Exit) as stop, report_errors():
        raise error
    assert stop.value.exit_code == USER_ERROR
    assert text in capsys.readouterr().err


def test_a_mistake_of_the_package_is_not_hidden():
    with pytest.raises(KeyError), report_errors():
        raise KeyError("x")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts(number, capsys):
    steps = []

    def work():
        try:
            os.kill(os.getpid(), number)
            time.sleep(60)
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


def test_number_list():
    assert number_list("3", "--ignore", 4) == [3]
    assert number_list("0,2:2,1:3", "--ignore", 4) == [0, 2, 1, 2, 3]


@pytest.mark.parametrize("text", ["", "a", "1,", "1:", ":1", "1.5", "-1", "3:1", "4", "0:4", "0:99999999999999"])
def test_what_is_no_number_list(text):
    with pytest.raises(ValueError, match=f"^--ignore {text}: expected channels"):
        number_list(text, "--ignore", 4, "channels")
