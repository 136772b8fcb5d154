"""``skysieve fstat``, run as a user would."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from skysieve.cli import app
from skysieve.fstat import load_atoms, save_atoms, synth_atoms

T = 1800
T0 = 1_000_000_000


def run(*args, code=0):
    result = CliRunner().invoke(app, ["fstat", *map(str, args)], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.npz"
    save_atoms(path, synth_atoms(T0, 20 * T, seed=1, gaps={"L1": [(T0, T0 + 5 * T)]}))
    return path


def test_info(file):
    text = run("info", file)
    assert "H1" in text
    assert "20 bins, 20 of them with data" in text
    assert "19 start times x 19 durations" in text


def test_convert(file, tmp_path):
    atoms = load_atoms(file)
    run("convert", file, tmp_path / "b.dat")
    run("convert", tmp_path / "b.dat", tmp_path / "c.npz", "--detectors", "H1,L1")
    back = load_atoms(tmp_path / "c.npz")
    for a, b in zip(atoms, back, strict=True):
        assert a.detector == b.detector
        assert abs(a.Fa - b.Fa).max() < 1e-6  # the text has 6 decimals


def test_mistakes_are_one_line(file, tmp_path):
    assert "No such file" in run("info", tmp_path / "none.npz", code=2)
    assert "ends in .npz" in run("convert", file, tmp_path / "x.csv", code=2)
    text = run("info", file.with_suffix(".dat"), code=2)
    assert text.count("\n") == 1
