"""``skysieve period`` with rows of several bands: what is fitted, false alarms, pictures, interrupted runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from astropy.table import Table
from typer.testing import CliRunner, Result

import skysieve
from skysieve.cli import app
from skysieve.core.table_files import write_table
from skysieve.periodogram.analysis.fap import Noise
from skysieve.periodogram.command.plot_files import on_one_level
from skysieve.periodogram.lightcurves.io import read_light_curves

GRID = ("--fmin", "0.2", "--fmax", "3", "--nf", "1500", "--device", "cpu")
PERIODS = (0.7, 1.7, 2.9)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


def table(n_objects: int = 3, rows: int = 90, noise: float = 0.05, amplitude: float = 0.3, seed: int = 0) -> dict:
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(n_objects), rows)
    t = rng.uniform(0, 60, n_objects * rows)
    band = rng.choice(list("gri"), n_objects * rows)
    level = np.select([band == "g", band == "r"], [16.5, 15.5], 15.0)
    wave = amplitude * np.sin(2 * np.pi * t / np.take(PERIODS, ids % 3))
    dy = noise * rng.uniform(0.5, 1.5, len(t))
    return {
        "id": ids,
        "mjd": 59000 + t,
        "mag": level + wave + dy * rng.standard_normal(len(t)),
        "err": dy,
        "band": band,
    }


@pytest.fixture
def survey(tmp_path: Path) -> Path:
    path = tmp_path / "survey.csv"
    write_table(table(), path)
    return path


def test_a_mean_for_each_band_by_default(survey: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.ecsv"
    result = run("period", survey, *GRID, "--peaks", "2", "-o", out)
    assert result.exit_code == 0, result.stderr
    assert "rows of 3 bands (g, i, r) are searched together (--multiband offsets) with 2 terms" in result.stderr
    found, columns = Table.read(out), table()
    np.testing.assert_allclose(found["period"], PERIODS, rtol=0.01)
    for i in range(3):
        t, y, dy, band = (columns[k][columns["id"] == i] for k in ("mjd", "mag", "err", "band"))
        one = skysieve.lombscargle_multiband(t, y, band, dy, fmin=0.2, fmax=3, nf=1500, n_peaks=2, device="cpu")
        np.testing.assert_allclose([found["power"][i], found["power_2"][i]], one.peaks.power, rtol=1e-9)
        noise = Noise.of(t, dy, 3.0, "standard")
        fewer = replace(noise, n=noise.n - 2, nterms=2, kept=1 / 1.12)
        assert found["fap_2"][i] == pytest.approx(float(fewer.probability(found["power_2"][i])), rel=1e-9)


def test_terms_of_several_bands(survey: Path) -> None:
    """Two by default; one for rotations, which are twice a sinusoid's period; as many as are named, or with a model."""
    for options, terms in (((), 2), (("--asteroid",), 1), (("--nterms", "3"), 3), (("--multiband", "offsets"), 1)):
        words = f"(--multiband offsets) with {terms} term{'s' * (terms > 1)}; --band keeps one"
        assert words in run("period", survey, *GRID, *options).stderr


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_objects_of_one_band_each_are_fitted_by_one_term(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object id of ZTF has one band; one object of two bands is enough for the model of several."""
    monkeypatch.setattr("skysieve.periodogram.lightcurves.stream.FEWEST_ROWS", 0)  # Parquet is read in pieces
    columns = table()
    columns["band"] = np.array(["g", "r", "g"])[columns["id"]]
    write_table(columns, tmp_path / name)
    result = run("period", tmp_path / name, *GRID, "-o", tmp_path / "p.ecsv")
    assert result.exit_code == 0, result.stderr
    assert "bands" not in result.stderr
    t, y, dy = (columns[k][columns["id"] == 1] for k in ("mjd", "mag", "err"))
    alone = skysieve.lombscargle(t, y, dy, fmin=0.2, fmax=3, nf=1500, device="cpu")
    assert Table.read(tmp_path / "p.ecsv")["power"][1] == pytest.approx(float(alone.best_power), rel=1e-9)
    columns["band"][-1] = "r"
    write_table(columns, tmp_path / name)
    assert "rows of 2 bands (g, r) are searched together" in run("period", tmp_path / name, *GRID).stderr


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_pictures_show_the_model_of_the_table(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three objects, one has several bands, and all have its model: objects in one band were drawn with one term."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("skysieve.periodogram.lightcurves.stream.FEWEST_ROWS", 0)
    drawn = []
    monkeypatch.setattr(
        "skysieve.periodogram.command.plot_files.save_plot", lambda result, *_, **__: drawn.append(result)
    )
    columns = table()
    columns["band"] = np.where(columns["id"] == 1, columns["band"], "g")
    write_table(columns, tmp_path / name)
    result = run("period", tmp_path / name, *GRID, "-o", tmp_path / "p.ecsv", "--plot", tmp_path / "pictures")
    assert result.exit_code == 0, result.stderr
    powers = [float(one.best_power) for one in drawn]
    np.testing.assert_allclose(powers, Table.read(tmp_path / "p.ecsv")["power"], rtol=1e-9)


def test_one_band_one_series_and_other_models(survey: Path, tmp_path: Path) -> None:
    columns = table()
    for options in (("--multiband", "none"), ("--no-fit-mean",)):
        result = run("period", survey, *GRID, *options, "-o", tmp_path / "one.ecsv", "--overwrite")
        assert "rows of 3 bands (g, i, r) are searched as one series" in result.stderr
    one_band = run("period", survey, *GRID, "--method", "finufft").stderr
    assert "are searched as one series (--method finufft has one band)" in one_band
    rows = columns["id"] == 0
    t, y, dy = (columns[k][rows] for k in ("mjd", "mag", "err"))
    plain = skysieve.lombscargle(t, y, dy, fmin=0.2, fmax=3, nf=1500, fit_mean=False, device="cpu")
    assert Table.read(tmp_path / "one.ecsv")["power"][0] == pytest.approx(float(plain.best_power), rel=1e-9)
    assert "bands" not in run("period", survey, *GRID, "--band", "r").stderr
    for model in ("separate", "flexible"):
        result = run("period", survey, *GRID, "--multiband", model, "-o", tmp_path / "other.ecsv", "--overwrite")
        assert f"no false-alarm probabilities: no formula holds for --multiband {model}" in result.stderr
        found = Table.read(tmp_path / "other.ecsv")
        np.testing.assert_allclose(found["period"], PERIODS, rtol=0.01)
        assert np.isnan(np.ma.filled(found["fap"], np.nan)).all()


def test_bands_of_too_few_rows_are_said_to_be_left_out(tmp_path: Path) -> None:
    columns = table(1)
    columns["band"][:3] = "z"
    write_table(columns, tmp_path / "few.csv")
    result = run("period", tmp_path / "few.csv", *GRID, "--multiband", "separate")
    assert result.exit_code == 0, result.stderr
    assert "3 rows were left out: 3 with missing or infinite values or in a band of too few rows" in result.stderr


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.json", "a.fits"])
def test_rows_without_a_band_are_counted(name: str, tmp_path: Path) -> None:
    columns = table(1)
    columns["band"][:3] = ""
    write_table(columns, tmp_path / name)
    result = run("period", tmp_path / name, *GRID)
    assert result.exit_code == 0, result.stderr
    assert "rows of 3 bands (g, i, r)" in result.stderr
    assert "3 without a band" in result.stderr


def test_a_column_of_bands_by_name_and_by_number(survey: Path, tmp_path: Path) -> None:
    """ATLAS names the column F, and files without a header have no names: the bands are found in both."""
    known, named, bare = (tmp_path / f"{name}.csv" for name in ("known", "named", "bare"))
    run("period", survey, *GRID, "-q", "-o", known)
    header, *lines = survey.read_text().splitlines()
    assert header == "id,mjd,mag,err,band"
    atlas, plain = tmp_path / "atlas.csv", tmp_path / "plain.txt"
    atlas.write_text("\n".join(["id,mjd,mag,err,F", *lines]))
    assert "3 bands" in run("period", atlas, *GRID).stderr
    assert "rows of 3 bands (g, i, r)" in run("period", atlas, *GRID, "--band-column", "F", "-o", named).stderr
    plain.write_text("\n".join(line.replace(",", " ") for line in lines))
    assert "note: column 5: unused" in run("period", plain, *GRID).stderr  # otherwise bands would be mixed silently
    numbers = ("--id", "1", "--time", "2", "--mag", "3", "--err", "4", "--band-column", "5")
    assert run("period", plain, *GRID, *numbers, "-q", "-o", bare).exit_code == 0
    assert named.read_text() == bare.read_text() == known.read_text()
    missing = run("period", survey, *GRID, "--band-column", "filter")
    assert (missing.exit_code, "no column 'filter' for --band-column" in missing.stderr) == (2, True)


def test_options_that_contradict(survey: Path, tmp_path: Path) -> None:
    result = run("period", survey, "--multiband", "offsets", "--no-fit-mean")
    assert result.exit_code == 2
    assert "cannot be combined with --no-fit-mean" in result.stderr
    result = run("period", survey, "--multiband", "separate", "--method", "finufft")
    assert result.exit_code == 2
    assert "one band" in result.stderr
    bare = tmp_path / "bare.csv"
    write_table({k: v for k, v in table().items() if k != "band"}, bare)
    result = run("period", bare, *GRID, "--multiband", "offsets")
    assert result.exit_code == 2
    assert "found no band column" in result.stderr
    assert run("period", bare, *GRID).exit_code == 0


@pytest.mark.parametrize("model", ["offsets", "separate"])
def test_parquet_in_parts_gives_the_same(model: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "survey.parquet"
    columns = table(5, 60)
    columns["band"][columns["id"] == 2] = "z"  # a part of one band alone
    write_table(columns, path)
    whole, parts = tmp_path / "whole.parquet", tmp_path / "parts.parquet"
    asked = ("period", path, *GRID, "--multiband", model)
    assert run(*asked, "-o", whole).exit_code == 0
    assert run(*asked, "-o", parts, "--resume", "--partition", "1").exit_code == 0
    a, b = Table.read(whole), Table.read(parts)
    np.testing.assert_allclose(a["period"], b["period"], rtol=1e-9)
    np.testing.assert_allclose(a["fap"], b["fap"], rtol=1e-6)
    other = run("period", path, *GRID, "-o", parts, "--overwrite", "--resume", "--multiband", "none")
    assert other.exit_code == 0  # the parts of a finished run are gone


@pytest.mark.slow
def test_chances_of_noise(tmp_path: Path) -> None:
    """At most a fraction p of 500 objects without a signal has a probability below p (three standard deviations)."""
    path, out = tmp_path / "noise.csv", tmp_path / "p.ecsv"
    write_table(table(500, 25, amplitude=0.0), path)
    assert run("period", path, *GRID, "-o", out).exit_code == 0
    chance = np.asarray(Table.read(out)["fap"])
    for p in (0.05, 0.2):
        slack = 3 * np.sqrt(p * (1 - p) / 500)
        assert p / 2 - slack < np.mean(chance < p) < p + slack


def test_both_readings_of_a_rotation(survey: Path, tmp_path: Path) -> None:
    """Chi-square at half the best frequency against that at the best one, by explicit least squares."""
    out = tmp_path / "spins.ecsv"
    assert run("period", survey, *GRID, "--asteroid", "--nterms", "2", "-o", out).exit_code == 0
    found, columns = Table.read(out), table()
    t, y, dy, band = (columns[k][columns["id"] == 0] for k in ("mjd", "mag", "err", "band"))
    chi2 = []
    for f in (found["frequency"][0], found["frequency"][0] / 2):
        angle = [2 * np.pi * k * f * t for k in (1, 2)]
        design = [band == b for b in "gri"] + [wave(a) for a in angle for wave in (np.sin, np.cos)]
        x = np.stack(design, 1) / dy[:, None]
        rest = y / dy - x @ np.linalg.lstsq(x, y / dy, rcond=None)[0]
        chi2.append(rest @ rest)
    assert found["delta_chi2"][0] == pytest.approx(chi2[0] - chi2[1], abs=1e-5 * chi2[1])


@pytest.mark.slow
def test_pictures_have_the_bands_on_one_level(survey: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert run("period", survey, *GRID, "--plot", tmp_path / "plots").exit_code == 0
    assert len(list((tmp_path / "plots").glob("*.png"))) == 3
    one = read_light_curves(survey).part(0, 1)
    level = on_one_level(one)
    assert np.ptp(level) < 1 < np.ptp(one.y)
    weight = one.dy**-2
    means = [np.average(level[one.band == b], weights=weight[one.band == b]) for b in "gri"]
    np.testing.assert_allclose(means, np.average(one.y, weights=weight), rtol=1e-12)


def test_moving_objects_are_on_one_level_already(tmp_path: Path) -> None:
    path = tmp_path / "moving.csv"
    columns = table() | {"rh": np.full(270, 2.0), "delta": np.full(270, 1.5), "alpha": np.linspace(1, 20, 270)}
    write_table(columns, path)
    geometry = ("--r", "rh", "--delta", "delta", "--phase", "alpha")
    assert "are searched as one series" in run("period", path, *GRID, *geometry).stderr
    message = run("period", path, *GRID, *geometry, "--multiband", "offsets").stderr
    assert "--multiband offsets" in message
    assert "--multiband offsets" in run("period", path, *GRID, *geometry[:4]).stderr
