"""``skysieve fstat simulate`` and ``search --sfts``."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from skysieve.cli import app
from skysieve.fstat import read_sfts

SIGNAL = "100.05,6e-24,0.5,1.0,-2e-10,rect,1000036000,43200"
PLACE = ["--ra", "0.5", "--dec", "1.0", "--tref", "1000000000", "--ephemeris", "builtin", "--device", "cpu"]
BANK = ["--freq", "100.04999", "--freq-band", "2e-5", "--f1dot", "-4e-10", "--f1dot-band", "4e-10"]


def run(*args):
    return CliRunner().invoke(app, ["fstat", *map(str, args)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("sfts") / "made"
    done = run("simulate", made, "--days", 2, "--signal", SIGNAL, "--ephemeris", "builtin")
    assert done.exit_code == 0, done.output
    assert "wrote" in done.stderr
    assert "96 SFTs of L1" in done.stderr
    return made


def test_simulated_files_are_sfts(folder):
    h1, l1 = read_sfts(folder)
    assert (h1.detector, l1.detector, len(h1)) == ("H1", "L1", 96)
    assert run("simulate", folder, "--days", 2, "--ephemeris", "builtin").exit_code == 2  # files exist


def test_a_search_of_sft_files_finds_the_signal(folder, tmp_path):
    out = tmp_path / "found.csv"
    pattern = [folder / "H-*.sft", folder / "L-*.sft"]
    done = run("search", "--sfts", *pattern, *PLACE, *BANK, "-w", "rect", "-o", out, "--topk", 5)
    assert done.exit_code == 0, done.output
    found = np.genfromtxt(out, delimiter=",", names=True, dtype=None, encoding="utf-8")
    assert found["f0"][0] == pytest.approx(100.05, abs=1e-5)
    assert found["t0_ml"][0] == pytest.approx(1_000_036_000, abs=1800)
    assert found["tau_ml"][0] == pytest.approx(43_200, abs=3600)
    assert "templates, <SFTs: H1" in done.stderr
    assert "f1dot" in done.stdout


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--sfts", "none-*.sft", *PLACE, *BANK], "none-*.sft: no such file, and no file matches"),
        (["--sfts", "FOLDER", *PLACE], "--sfts needs --ra, --dec and --freq"),
        (["--sfts", "FOLDER", *PLACE, "--freq", "100.3"], "too narrow by"),
        (["--sfts", "FOLDER", *PLACE, *BANK, "--detectors", "V1"], "no SFT of V1"),
        (["--sfts", "FOLDER", *PLACE, *BANK, "--df", "-1"], "range and step of f0"),
        (["--sfts", "FOLDER", *PLACE, *BANK, "--ephemeris", "jpl"], "ephemeris='jpl'"),
        ([], "no files of atoms: expected names, or --sfts"),
    ],
)
def test_wrong_options_are_one_line(folder, changes, message):
    done = run("search", *(str(folder) if x == "FOLDER" else x for x in changes))
    assert done.exit_code == 2
    assert message in done.stderr.replace("\n", " ")


@pytest.mark.parametrize("signal", ["1,2,3", "1,2,3,x", "1,2,3,0.5,0,rect,a,b"])
def test_wrong_signals_are_one_line(tmp_path, signal):
    done = run("simulate", tmp_path / "x", "--signal", signal)
    assert done.exit_code == 2
    assert f"--signal {signal}" in done.stderr
    assert not (tmp_path / "x").exists()
