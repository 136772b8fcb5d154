"""Results of a search: access, tables, files, pictures."""

from __future__ import annotations

import json
import pickle
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from astropy import units as u
from astropy.table import Table

from skysieve.periodogram.api import lombscargle
from skysieve.periodogram.contract import Output, Status
from skysieve.periodogram.result import assemble, plot
from skysieve.periodogram.result.peaks import Ragged
from skysieve.periodogram.result.result import LombScargleResult

GRID = {"fmin": 0.2, "fmax": 3.0, "nf": 300}
RNG = np.random.default_rng(8)
T = np.sort(RNG.uniform(0, 25, 40))
Y = 12 + np.sin(2 * np.pi * T / 1.1) + 0.1 * RNG.standard_normal(40)
DY = np.full(40, 0.1)


@pytest.fixture
def one():
    return lombscargle(T, Y, DY, **GRID, n_peaks=3)


@pytest.fixture
def batch():
    """The third object has too few points."""
    ids = np.repeat(["a", "b", "c"], [40, 30, 2])
    t, y, dy = (np.concatenate([x, x[:30], x[:2]]) for x in (T, Y, DY))
    return lombscargle(t, y, dy, id=ids, fmax=2.0, n_peaks=2)


def with_units():
    return lombscargle(T * u.day, Y * u.mag, fmin=0.2 / u.day, fmax=3 / u.day, nf=300, normalization="psd", n_peaks=2)


def same(a, b):
    """Two results hold the same, to the last bit."""
    for name in ("n_used", "n_dropped", "span", "ids", "method", "status", "frequency", "power"):
        x, y = getattr(a, name), getattr(b, name)
        assert type(x) is type(y), name
        if isinstance(x, Ragged):
            np.testing.assert_array_equal(x.offsets, y.offsets)
            x, y = x.flat, y.flat
        if isinstance(x, u.Quantity):
            assert x.unit == y.unit
        if name == "frequency" and not isinstance(x, np.ndarray):
            x, y = np.concatenate(list(x)), np.concatenate(list(y))
        assert x is None if y is None else np.array_equal(x, y, equal_nan=np.asarray(x).dtype.kind == "f"), name
    for name in ("index", "frequency", "period", "power"):
        np.testing.assert_array_equal(getattr(a.peaks, name), getattr(b.peaks, name))
    for name in ("device", "dtype", "normalization", "fit_mean", "single", "power_unit"):
        assert getattr(a, name) == getattr(b, name), name


def test_ragged_is_a_sequence():
    ragged = Ragged(np.arange(6.0), np.array([0, 2, 2, 6]))
    assert [x.tolist() for x in ragged] == [[0, 1], [], [2, 3, 4, 5]]
    assert ragged[-1].tolist() == [2, 3, 4, 5]
    assert [x.tolist() for x in ragged[:2]] == [[0, 1], []]
    assert repr(ragged) == "<3 arrays, 6 values>"
    with pytest.raises(IndexError, match="object 3 of 3"):
        ragged[3]


def test_frequencies_of_grids_per_object(batch):
    assert len(batch.frequency) == 3
    assert len(batch.frequency[0]) == len(batch.power[0])
    np.testing.assert_array_equal(batch.frequency[-2], batch.frequency[1])
    assert len(batch.frequency[:2]) == 2
    with pytest.raises(IndexError):
        batch.frequency[3]


def test_objects_of_a_batch_by_number_and_id(batch):
    assert [r.ids for r in batch] == ["a", "b", "c"]
    assert batch[0].single
    assert batch[-1].status is Status.TOO_FEW_POINTS
    assert np.isnan(batch[-1].period)
    assert batch.of("b").period == batch.period[1] == batch[1].period
    assert batch[1].power is not None
    np.testing.assert_array_equal(batch[1].frequency, batch.frequency[1])
    with pytest.raises(KeyError):
        batch.of("d")
    with pytest.raises(IndexError):
        batch[3]
    assert batch[np.int64(1)].ids == "b"
    with pytest.raises(
        TypeError, match=r"index slice\(None, 1, None\): the number of one object is expected; \[result"
    ):
        batch[:1]
    for wrong in (0.7, "a", None):
        with pytest.raises(TypeError, match=f"index {wrong!r}: the number of one object is expected"):
            batch[wrong]


@pytest.mark.parametrize("dtype", ["S2", np.dtypes.StringDType()])
@pytest.mark.parametrize("suffix", ["csv", "json", "npz"])
def test_ids_of_any_type_of_text_are_text(dtype, suffix, tmp_path):
    names = np.repeat(["V1", "V2"], 20)
    result = lombscargle(T, Y, DY, id=names.astype(dtype), **GRID)
    assert result.ids.tolist() == ["V1", "V2"]
    assert result.of("V2").n_used == 20
    result.save(tmp_path / f"periods.{suffix}")
    if suffix == "npz":
        assert LombScargleResult.load(tmp_path / "periods.npz").ids.tolist() == ["V1", "V2"]
    else:
        assert "b'" not in (tmp_path / f"periods.{suffix}").read_text()


def test_one_has_no_length_and_no_objects(one):
    with pytest.raises(TypeError, match="no length"):
        len(one)
    with pytest.raises(KeyError):
        one.of("a")


def test_repr_describes_a_result(one, batch):
    assert repr(one).startswith("<LombScargleResult: period 1.0998")
    assert "40 points, 300 frequencies" in repr(one)
    assert "3 objects (1 without a result), one grid per object" in repr(batch)
    assert "too few usable rows" in repr(batch[2])
    assert len(repr(one.peaks).splitlines()) == 4
    assert repr(batch.peaks) == "<Peaks: 3 objects, up to 2 each>"


def test_results_cannot_be_changed(one):
    with pytest.raises(AttributeError):
        one.power = None


def test_table_of_peaks_and_powers(one):
    peaks = one.to_table()
    assert peaks.colnames == ["period", "period_error", "frequency", "frequency_error", "power"]
    np.testing.assert_array_equal(peaks["period"], one.peaks.period)
    power = one.to_table("power")
    np.testing.assert_array_equal(power["power"], one.power)
    assert one.to_table("objects")["status"][0] == "ok"
    with pytest.raises(ValueError, match="what='all'"):
        one.to_table("all")
    without = lombscargle(T, Y, **GRID, return_power=False)
    with pytest.raises(ValueError, match="return_power=True"):
        without.to_table("power")


def test_table_of_a_batch(batch):
    table = batch.to_table()
    columns = ["id", "status", "n_used", "n_dropped", "span", "method"]
    of_peak = ["period", "period_error", "frequency", "frequency_error", "power"]
    assert table.colnames == [*columns, *of_peak, *(f"{name}_2" for name in of_peak)]
    np.testing.assert_array_equal(table["period_error_2"], batch.peaks.period_error[:, 1])
    assert table["id"].tolist() == ["a", "b", "c"]
    assert table["status"].tolist() == ["ok", "ok", "too_few_points"]
    np.testing.assert_array_equal(table["period_2"], batch.peaks.period[:, 1])
    assert table.meta["normalization"] == "standard"
    for what in ("peaks", "power"):
        with pytest.raises(ValueError, match="one light curve"):
            batch.to_table(what)
    assert with_units().to_table()["period"].unit == u.day


@pytest.mark.parametrize("kind", ["one", "batch", "units", "shared", "listed", "no power", "float32"])
def test_npz_gives_everything_back(kind, tmp_path, one, batch):
    result = {
        "one": lambda: one,
        "batch": lambda: batch,
        "units": with_units,
        "shared": lambda: lombscargle(T, np.stack([Y, Y]), **GRID),
        "listed": lambda: lombscargle(T, Y, frequency=1 / np.linspace(0.4, 3, 50)),
        "no power": lambda: lombscargle([T], [Y], **GRID, return_power=False),
        "float32": lambda: lombscargle(T, Y, **GRID, dtype="float32"),
    }[kind]()
    path = tmp_path / "result.npz"
    result.save(path)
    again = LombScargleResult.load(path)
    same(result, again)
    if not result.single:
        same(result[0], again[0])
    again.save(path)
    same(result, LombScargleResult.load(path))


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".ecsv", ".fits", ".CSV", ".json"])
def test_table_files(suffix, tmp_path, batch):
    path = tmp_path / f"periods{suffix}"
    batch.save(path)
    if suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        table = parquet.read_table(path).to_pydict()
    elif suffix == ".json":
        rows = json.loads(path.read_text())
        table = {name: [np.nan if row[name] is None else row[name] for row in rows] for name in rows[0]}
    else:
        table = Table.read(path, format="ascii.csv") if suffix.lower() == ".csv" else Table.read(path)
    assert [str(x) for x in table["id"]] == ["a", "b", "c"]
    np.testing.assert_array_equal(np.asarray(table["period"], float)[:2], batch.period[:2])
    assert np.isnan(float(np.ma.filled(table["period"][2], np.nan)))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_units_in_files(tmp_path):
    result = with_units()
    result.save(tmp_path / "a.ecsv")
    assert Table.read(tmp_path / "a.ecsv")["frequency"].unit == 1 / u.day
    parquet = pytest.importorskip("pyarrow.parquet")
    result.save(tmp_path / "a.parquet")
    assert parquet.read_schema(tmp_path / "a.parquet").field("period").metadata == {b"unit": b"d"}


def test_a_file_is_written_whole_or_not_at_all(tmp_path, one, monkeypatch):
    path = tmp_path / "result.npz"
    path.write_text("before")

    def broken(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", broken)
    with pytest.raises(OSError, match="disk full"):
        one.save(path)
    assert path.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["result.npz"]


@pytest.mark.parametrize("name", ["result.txt", "result", "result.npz.zip"])
def test_format_that_is_not_known(name, tmp_path, one):
    with pytest.raises(ValueError, match=r"expected a name that ends in one of \.npz, \.csv, \.parquet"):
        one.save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_something_else_is_not_loaded(tmp_path):
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match="was not written by LombScargleResult"):
        LombScargleResult.load(tmp_path / "other.npz")


def test_parquet_without_its_library(tmp_path, one, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"skysieve\[tables\]"):
        one.save(tmp_path / "a.parquet")


def marked(ax):
    """Coordinates of the markers of a panel."""
    return sorted(float(x) for line in ax.lines if line.get_marker() == "o" for x in np.atleast_1d(line.get_xdata()))


@pytest.mark.parametrize("axis", ["period", "frequency"])
def test_periodogram_with_its_peaks(one, axis, tmp_path):
    figure = plot.periodogram(one, axis=axis)
    (ax,) = figure.axes
    np.testing.assert_allclose(marked(ax), np.sort(getattr(one.peaks, axis)))
    x, y = ax.lines[0].get_data()
    assert len(x) == 300
    assert y.max() == one.power.max()
    assert ax.get_xscale() == ("log" if axis == "period" else "linear")
    figure.savefig(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000


def test_labels_have_units():
    figure = with_units().plot()
    (ax,) = figure.axes
    assert ax.get_xlabel() == "Period [d]"
    assert ax.get_ylabel() == "Power (psd) [mag2]"
    assert any("P = 1.09984" in text.get_text() and text.get_text().endswith(" d") for text in ax.texts)


def test_folded_light_curve_under_its_model(one):
    figure = one.plot(T, Y, DY, magnitudes=True, labels=("Phase", "mag"), title="a star")
    _, ax = figure.axes
    assert ax.yaxis_inverted()
    assert ax.get_xlim() == (0, 2)
    assert figure.get_suptitle() == "a star"
    model = max((line for line in ax.lines if len(line.get_xdata()) == 401), key=lambda line: line.get_linewidth())
    constant, a, b = plot.fit_sinusoid(T - T.min(), Y, DY, one.period)
    assert constant == pytest.approx(12, abs=0.1)
    assert np.hypot(a, b) == pytest.approx(1, abs=0.1)
    assert np.ptp(model.get_ydata()) == pytest.approx(2 * np.hypot(a, b), rel=1e-3)


@pytest.mark.parametrize("fit_mean", [True, False])
def test_the_drawn_model_has_the_power_of_the_periodogram(fit_mean):
    """The chi-square that the sinusoid takes away is the standard power, by definition."""
    dy = np.linspace(0.05, 0.3, 40)
    result = lombscargle(T, Y, dy, frequency=[0.8, 0.9], fit_mean=fit_mean)
    constant, a, b = plot.fit_sinusoid(T, Y, dy, 1 / 0.9, fit_mean)
    angle = 2 * np.pi * 0.9 * T
    left = np.sum(((Y - constant - a * np.cos(angle) - b * np.sin(angle)) / dy) ** 2)
    total = np.sum(((Y - np.average(Y, weights=dy**-2)) / dy) ** 2)
    assert result.power[1] == pytest.approx(1 - left / total, abs=1e-9)


def test_folding_leaves_bad_rows_out_and_takes_units():
    y = np.where(np.arange(40) == 5, np.nan, Y)
    figure = plot.folded(T * u.day, y * u.mag, DY * u.mag, period=1.1 * 24 * u.hour)
    (ax,) = figure.axes
    assert ax.get_ylabel() == "y [mag]"
    assert ax.get_title() == "folded at P = 1.1 d"
    for period in (0, -1.0, np.nan):
        with pytest.raises(ValueError, match="period="):
            plot.folded(T, Y, period=period)
    with pytest.raises(ValueError, match="2 usable rows; at least 3"):
        plot.folded(T[:2], Y[:2], period=1.0)
    (ax,) = plot.folded(T[:3], Y[:3], period=1.0, nterms=2).axes
    assert ax.get_xlabel() == "Phase"
    with pytest.raises(ValueError, match="one light curve"):
        plot.folded(T, np.stack([Y, Y]), period=1.0)


def test_a_light_curve_without_the_units_of_its_result_is_named():
    t = np.sort(np.random.default_rng(0).uniform(0, 20, 50))
    found = lombscargle(t * u.day, np.sin(t) * u.mag, fmax=2 / u.day)
    found.plot(t * 24 * u.h, np.sin(t) * u.mag)
    with pytest.raises(ValueError, match="t has no unit, but the period is in d; give t a unit of time"):
        found.plot(t, np.sin(t))


def test_the_best_peaks_of_a_batch(batch):
    (ax,) = batch.plot().axes
    x, y = ax.lines[0].get_data()
    np.testing.assert_array_equal(x, batch.period[:2])
    np.testing.assert_array_equal(y, batch.best_power[:2])
    assert ax.get_title() == "highest peaks of 2 of 3 objects"
    (ax,) = batch.plot(axis="frequency").axes
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), batch.best_frequency[:2])


def test_what_cannot_be_drawn(one, batch):
    with pytest.raises(ValueError, match=r"result\[i\]\.plot"):
        batch.plot(T, Y)
    with pytest.raises(ValueError, match="both t and y"):
        one.plot(T)
    with pytest.raises(ValueError, match="axis='log'"):
        one.plot(axis="log")
    with pytest.raises(ValueError, match="return_power=True"):
        lombscargle(T, Y, **GRID, return_power=False).plot()
    with pytest.raises(ValueError, match="no power to draw: too few usable rows"):
        batch[2].plot()


def test_an_object_without_a_result_is_drawn_empty_on_a_shared_grid():
    batch = lombscargle([T, T], [Y, np.ones(40)], **GRID)
    _, fold = batch[1].plot(T, np.ones(40)).axes
    assert len(fold.lines) == 0


@pytest.mark.slow
def test_millions_of_points_keep_their_extremes(tmp_path):
    """Few points are drawn, so that a picture takes no longer than one of a short curve."""
    n = 2_000_000
    x, y = np.linspace(0, 1, n), np.random.default_rng(0).random(n)
    y[1_234_567] = 7.0
    y[765_432] = -3.0
    y[5] = np.nan
    a, b = plot.decimate(x, y, 1000)
    assert len(a) <= 2000
    assert np.all(np.diff(a) > 0)
    assert (np.nanmax(b), np.nanmin(b)) == (7.0, -3.0)
    figure = plot.folded(x * 100, y, np.ones(n), period=0.37)
    figure.savefig(tmp_path / "fold.png")
    drawn = [len(line.get_xdata()) for axes in figure.axes for line in axes.lines]
    drawn += [len(c.get_offsets()) for axes in figure.axes for c in axes.collections if hasattr(c, "get_offsets")]
    assert sum(drawn) < n / 4


def test_short_curves_are_drawn_as_they_are():
    x = np.arange(10.0)
    a, b = plot.decimate(x, x**2, 100)
    assert a is x
    np.testing.assert_array_equal(b, x**2)


def test_errors_are_computed_when_they_are_asked_for(monkeypatch):
    t = np.sort(np.random.default_rng(4).uniform(0, 40, 80))
    given = {"fmin": 0.1, "fmax": 2.0, "nf": 400, "n_peaks": 3, "device": "cpu"}
    expected = lombscargle([t, t], [np.sin(t), np.cos(2 * t)], **given).peaks.frequency_error
    calls, whole = [], assemble.frequency_error
    monkeypatch.setattr(assemble, "frequency_error", lambda *args: calls.append(1) or whole(*args))
    peaks = lombscargle([t, t], [np.sin(t), np.cos(2 * t)], **given).peaks
    assert not calls
    copied = pickle.loads(pickle.dumps(peaks))
    assert np.array_equal(peaks.frequency_error, expected, equal_nan=True)
    assert np.array_equal(peaks.period_error, peaks.frequency_error * peaks.period**2, equal_nan=True)
    assert len(calls) == 1
    assert np.array_equal(copied.period_error, peaks.period_error, equal_nan=True)
    assert np.array_equal(peaks[0].frequency_error, expected[0], equal_nan=True)
    with pytest.raises(AttributeError, match="no attribute 'errors'"):
        _ = peaks.errors


def test_names_of_methods_are_made_when_they_are_asked_for():
    t = np.sort(np.random.default_rng(4).uniform(0, 40, 80))
    result = lombscargle([t, t], [np.sin(t), np.cos(2 * t)], fmin=0.1, fmax=2.0, nf=400, device="cpu")
    several = replace(result, method=partial(np.array, ["direct", "nufft"]))
    assert "method" not in vars(several)
    copied = pickle.loads(pickle.dumps(several))
    assert several.method.tolist() == several.method.tolist() == ["direct", "nufft"]
    assert copied[1].method == "nufft"
    assert "several methods" in repr(several)
    with pytest.raises(AttributeError, match="no attribute 'methods'"):
        _ = several.methods


def test_arrays_of_an_output_are_made_when_they_are_first_asked_for():
    output = Output.allocate(3, 2, power="given")
    assert "status" not in vars(output)
    output.status[1] = Status.OK
    assert output.status.tolist() == [Status.FAILED, Status.OK, Status.FAILED]
    assert output.power == "given"
    assert output.peak_index.tolist() == [[-1, -1]] * 3
    assert np.isnan(output.peak_frequency).all()
    with pytest.raises(AttributeError, match="'Output' object has no attribute 'other'"):
        output.other  # noqa: B018


@pytest.mark.parametrize("ending", ["csv", "ecsv"])
def test_a_table_is_no_whole_result(tmp_path, ending):
    found = lombscargle(np.arange(20.0) ** 1.1, np.sin(np.arange(20)), fmin=0.1, fmax=0.4, nf=30, device="cpu")
    found.save(tmp_path / f"a.{ending}")
    with pytest.raises(ValueError, match=r"is a table, which does not hold all values: expected a \.npz file"):
        type(found).load(tmp_path / f"a.{ending}")
