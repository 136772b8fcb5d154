"""Files of light curves in place of arrays."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import skysieve
from skysieve.core.table_files import write_table
from skysieve.periodogram import LombScarglePlan, MultibandPlan

GRID = {"fmin": 0.1, "fmax": 2.0, "nf": 400, "device": "cpu"}
RNG = np.random.default_rng(5)
T = np.sort(RNG.uniform(0, 40, 90))
Y = 15 + np.sin(2 * np.pi * T / 1.3) + RNG.normal(0, 0.1, 90)
DY = RNG.uniform(0.1, 0.2, 90)
ID = np.repeat(["a", "b", "c"], [40, 48, 2])
BAND = np.resize(["g", "r", "i"], 90)


@pytest.fixture
def star(tmp_path: Path) -> Path:
    path = tmp_path / "star.csv"
    write_table({"mjd": T, "mag": Y, "magerr": DY}, path)
    return path


@pytest.fixture
def survey(tmp_path: Path) -> Path:
    path = tmp_path / "survey.ecsv"
    write_table({"name": ID, "mjd": T, "mag": Y, "other": Y[::-1], "magerr": DY}, path)
    return path


@pytest.fixture
def banded(tmp_path: Path) -> Path:
    path = tmp_path / "bands.csv"
    write_table({"mjd": T, "mag": Y, "magerr": DY, "band": BAND}, path)
    return path


def test_a_file_without_ids_is_one_light_curve(star):
    expected = skysieve.lombscargle(T, Y, DY, **GRID)
    for found in (
        skysieve.lombscargle(str(star), **GRID),
        skysieve.lombscargle(star, **GRID),
        skysieve.lombscargle(data=star, **GRID),
        skysieve.lombscargle("mjd", "mag", "magerr", data=star, **GRID),
    ):
        assert found.single
        np.testing.assert_array_equal(found.power, expected.power)
    found = skysieve.lombscargle("mjd", "mag", data=str(star), **GRID)
    assert found.peaks.power[0] == pytest.approx(expected.peaks.power[0], rel=1e-12)  # errors are found by their name


def test_a_file_with_ids_is_a_batch(survey):
    found = skysieve.lombscargle(survey, **GRID)
    expected = skysieve.lombscargle(T, Y, DY, id=ID, **GRID)
    assert found.ids.tolist() == ["a", "b", "c"]
    assert found[2].status == skysieve.periodogram.Status.TOO_FEW_POINTS
    np.testing.assert_array_equal(found.power, expected.power)
    other = skysieve.lombscargle(y="other", data=survey, **GRID)
    assert not np.array_equal(other.power[0], found.power[0])


def test_a_file_whose_objects_are_mixed_is_a_batch(tmp_path):
    order = RNG.permutation(90)
    columns = {"name": ID, "mjd": T, "mag": Y, "magerr": DY}
    write_table({name: values[order] for name, values in columns.items()}, tmp_path / "mixed.csv")
    found = skysieve.lombscargle(tmp_path / "mixed.csv", **GRID)
    assert sorted(found.ids) == ["a", "b", "c"]
    assert found.of("a").n_used == 40
    assert found.of("b").period == pytest.approx(skysieve.lombscargle(T[40:88], Y[40:88], DY[40:88], **GRID).period)


def test_plans_and_aliases_take_paths(survey):
    with LombScarglePlan(**GRID, n_peaks=2) as plan:
        found = plan.execute(survey)
        assert plan.describe(survey)["n_objects"] == 3
        assert found.aliases(survey).flag.shape == (3, 2)


def test_bands_of_a_file(banded):
    expected = skysieve.lombscargle_multiband(T, Y, BAND, DY, **GRID)
    named = {"t": "mjd", "y": "mag", "bands": "band"}
    for found in (
        skysieve.lombscargle_multiband(banded, **GRID),
        skysieve.lombscargle_multiband(**named, data=banded, **GRID),
    ):
        assert found.bands == ("g", "i", "r")
        np.testing.assert_array_equal(found.power, expected.power)
    with MultibandPlan(**GRID) as plan:
        assert plan.describe(banded)["n_bands"] == 3
        assert plan.execute(banded).period == expected.period
    with pytest.raises(ValueError, match=r"rows of 3 bands \(g, i, r\): use lombscargle_multiband"):
        skysieve.lombscargle(banded, **GRID)
    assert skysieve.lombscargle(y="mag", data=banded, **GRID).n_used == 90  # the user named the values of all rows


def test_errors_of_files_are_named(star, tmp_path):
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "none.csv"))):
        skysieve.lombscargle(tmp_path / "none.csv")
    empty = tmp_path / "empty.csv"
    empty.touch()
    with pytest.raises(ValueError, match=r"empty\.csv: is empty"):
        skysieve.lombscargle(empty)
    with pytest.raises(ValueError, match=r"star\.csv: no column 'flux' for y=; the columns are: mjd, mag, magerr"):
        skysieve.lombscargle("mjd", "flux", data=star)
    with pytest.raises(ValueError, match="offsets need arrays, but a file is given"):
        skysieve.lombscargle(star, offsets=[0, 90])
    with pytest.raises(TypeError, match="dy is a ndarray, but a file is given: expected the name of a column"):
        skysieve.lombscargle(data=star, dy=DY)
    with pytest.raises(TypeError, match="y is missing: expected t and y, a table as data=, or the path of a file"):
        skysieve.lombscargle(T)
    with pytest.raises(TypeError, match="bands is missing: expected the band of each row"):
        skysieve.lombscargle_multiband(star)
