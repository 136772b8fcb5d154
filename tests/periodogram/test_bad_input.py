"""Bad input: an error that names it for one light curve, NaN and a status for one of a batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from astropy import units as u
from astropy.table import Column, Table
from typer.testing import CliRunner

from skysieve import LombScargle
from skysieve.cli import app
from skysieve.core.errors import MemoryBudgetError
from skysieve.periodogram import lombscargle_multiband
from skysieve.periodogram.api import lombscargle
from skysieve.periodogram.contract import Spec, Status
from skysieve.periodogram.lightcurves.io import read_light_curves

GRID = {"fmin": 0.2, "fmax": 3.0, "nf": 200}
T = np.sort(np.random.default_rng(0).uniform(0, 20, 25))
Y = np.sin(2 * np.pi * T / 1.3) + 5
DY = np.full(25, 0.1)
NAN = np.full(25, np.nan)


def replaced(x, j, value):
    x = x.copy()
    x[j] = value
    return x


BAD = {
    "zero error": ((T, Y, replaced(DY, 7, 0.0)), Status.BAD_ERRORS, r"dy\[7\] is 0; every error must be positive"),
    "negative error": ((T, Y, replaced(DY, 3, -0.2)), Status.BAD_ERRORS, r"dy\[3\] is -0.2"),
    "zero error behind a hole": (
        (replaced(T, 2, np.nan), Y, replaced(replaced(DY, 2, 0.0), 9, 0.0)),
        Status.BAD_ERRORS,
        r"dy\[9\] is 0",
    ),
    "constant": ((T, np.full(25, 3.5), DY), Status.CONSTANT_Y, r"y is constant \(3\.5\)"),
    "constant but for a hole": ((T, replaced(np.ones(25), 4, np.inf), DY), Status.CONSTANT_Y, r"1 of 25 rows"),
    "equal times": ((np.full(25, 7.0), Y, DY), Status.EQUAL_TIMES, r"all times t are equal \(7\.0\)"),
    "no usable row": ((T, NAN, DY), Status.EMPTY, r"no usable row \(25 of 25 rows are not finite"),
    "one point": ((T[:1], Y[:1], DY[:1]), Status.TOO_FEW_POINTS, r"1 usable row; at least 3"),
    "two points": ((T[:2], Y[:2], DY[:2]), Status.TOO_FEW_POINTS, r"2 usable rows; at least 3"),
    "two left": ((T[:4], np.r_[Y[:2], NAN[:2]], DY[:4]), Status.TOO_FEW_POINTS, r"2 usable rows \(2 of 4"),
}


@pytest.mark.parametrize("options", [GRID, {}], ids=["grid", "automatic"])
@pytest.mark.parametrize("case", BAD)
def test_one_bad_light_curve_is_an_error(case, options):
    arguments, _, words = BAD[case]
    with pytest.raises(ValueError, match=words):
        lombscargle(*arguments, **options)


def test_one_bad_light_curve_leaves_the_users_array_alone():
    out = np.full(200, 7.0)
    with pytest.raises(ValueError, match="y is constant"):
        lombscargle(T, np.ones(25), DY, **GRID, out=out)
    assert (out == 7).all()


@pytest.mark.parametrize("options", [GRID, {}, {"fmin": 0.2, "fmax": 3.0, "return_power": False}])
def test_bad_light_curves_of_a_batch_get_a_status_and_harm_no_other(options):
    good = (T, Y, DY)
    curves = [good, *(arguments for arguments, _, _ in BAD.values()), (T[:0], Y[:0], DY[:0]), good]
    expected = [Status.OK, *(status for _, status, _ in BAD.values()), Status.EMPTY, Status.OK]
    batch = lombscargle(*([c[k] for c in curves] for k in range(3)), **options, n_peaks=2)
    assert batch.status.tolist() == expected
    assert batch.ok.tolist() == [s == Status.OK for s in expected]
    bad = ~batch.ok
    assert np.isnan(batch.period[bad]).all()
    assert np.isnan(batch.best_power[bad]).all()
    assert (batch.peaks.index[bad] == -1).all()
    alone = lombscargle(*good, **options, n_peaks=2)
    for i in (0, len(curves) - 1):
        np.testing.assert_allclose(batch.period[i], alone.period, rtol=1e-8)
        assert (batch.n_used[i], batch.n_dropped[i]) == (25, 0)
    used = [np.isfinite(np.stack(c)).all(axis=0).sum() if len(c[0]) else 0 for c in curves]
    assert batch.n_used.tolist() == used
    assert batch.n_dropped.tolist() == [len(c[0]) - n for c, n in zip(curves, used, strict=True)]
    if batch.power is not None:
        for i in np.flatnonzero(bad):
            assert np.isnan(batch.power[i]).all()
        np.testing.assert_allclose(batch.power[0], alone.power, atol=1e-9)


def test_lists_of_unlike_entries():
    """Errors as arrays and numbers side by side; None and an object without rows, first or last."""
    found = lombscargle([T, T], [Y, Y], [0.0, DY], **GRID)
    assert found.status.tolist() == [Status.BAD_ERRORS, Status.OK]
    assert found.period[1] == lombscargle([T, T], [Y, Y], [DY, 0.1], **GRID).period[1]
    for k, name in enumerate(("y", "dy")):
        for items in ([None, Y], [Y, None]):
            columns = [[Y, Y], [DY, DY]]
            columns[k] = items
            with pytest.raises(TypeError, match=rf"^{name}\[{0 if items[0] is None else 1}\] holds"):
                lombscargle([T, T], *columns, **GRID)
    bands = np.arange(25) % 2
    found = lombscargle_multiband([[], T], [[], Y], [[], bands], **GRID)
    assert found.status.tolist() == [Status.EMPTY, Status.OK]
    assert found.bands == (0, 1)
    for first in (None, "g"):
        with pytest.raises(ValueError, match=r"bands\[0\] has shape \(\)"):
            lombscargle_multiband([T, T], [Y, Y], [first, bands], **GRID)


def test_a_batch_in_which_nothing_can_be_searched():
    batch = lombscargle([T[:2], T], [Y[:2], np.ones(25)])
    assert batch.status.tolist() == [Status.TOO_FEW_POINTS, Status.CONSTANT_Y]
    assert batch.n_used.tolist() == [2, 25]
    assert [len(p) for p in batch.power] == [0, 0]
    assert batch.method == "none"
    shared = lombscargle(T[:2], np.stack([Y[:2], Y[:2]]))
    assert shared.power.shape == (2, 0)
    assert shared.status.tolist() == [Status.TOO_FEW_POINTS] * 2


@pytest.mark.parametrize(("threads", "error"), [(0, ValueError), (-2, ValueError), ("2", TypeError), (True, TypeError)])
def test_threads(threads, error):
    with pytest.raises(error, match=f"threads={threads!r}"):
        lombscargle(T, Y, threads=threads, **GRID)


def test_an_empty_batch():
    for arguments, options in (((T, np.empty((0, 25))), {}), (([], []), {"offsets": [0]}), (([], []), {"id": []})):
        batch = lombscargle(*arguments, **options, **GRID)
        assert len(batch) == 0
        assert batch.power.shape == (0, 200)
        assert batch.period.shape == (0,)


def test_an_object_without_a_grid():
    batch = lombscargle([T, 1000 * T], [Y, Y], fmin=0.2)
    assert batch.status.tolist() == [Status.OK, Status.BAD_GRID]
    assert batch.n_used.tolist() == [25, 25]
    assert batch.span[1] == np.ptp(1000 * T)
    assert len(batch.power[1]) == len(batch.frequency[1]) == 0
    assert np.isnan(batch.period[1])
    with pytest.raises(ValueError, match=r"start at fmin = 0\.2 and end at nyquist_factor \* N / \(2 T\) = 0\.00"):
        lombscargle(1000 * T, Y, fmin=0.2)


@pytest.mark.parametrize("column", [0, 1, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_policy_raise_names_the_row(column, value):
    columns = [T, Y, DY]
    columns[column] = replaced(columns[column], 11, value)
    name = ("t", "y", "dy")[column]
    with pytest.raises(ValueError, match=rf"^{name}\[11\] is {value} .*nan_policy='raise'"):
        lombscargle(*columns, **GRID, nan_policy="raise")
    assert lombscargle(*columns, **GRID).n_dropped == 1
    lists = [[good, bad] for good, bad in zip((T, Y, DY), columns, strict=True)]
    with pytest.raises(ValueError, match=rf"^{name} of row 11 of object 1 is {value}"):
        lombscargle(*lists, **GRID, nan_policy="raise")
    flat = [np.concatenate(x) for x in lists]
    with pytest.raises(ValueError, match=rf"^{name} of row 36 of object b \(number 1\)"):
        lombscargle(*flat, **GRID, nan_policy="raise", id=np.repeat(["a", "b"], 25))


def test_nan_policy_raise_passes_good_rows_and_meets_masks():
    assert lombscargle(T, Y, DY, **GRID, nan_policy="raise").n_dropped == 0
    masked = np.ma.MaskedArray(Y, mask=np.arange(25) == 4)
    with pytest.raises(ValueError, match=r"y\[4\] is nan \(or masked\)"):
        lombscargle(T, masked, **GRID, nan_policy="raise")
    assert lombscargle(T, masked, **GRID).n_used == 24


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nan_policy": "drop"}, r"nan_policy='drop': expected one of 'omit', 'raise'"),
        (
            {"normalization": "psdd"},
            r"normalization='psdd': expected one of 'standard', 'model', 'log', 'psd', 'scargle'",
        ),
        ({"method": "fast"}, r"method='fast': expected one of 'auto', 'direct'"),
        ({"dtype": "float16"}, r"dtype='float16': expected one of 'float64', 'float32'"),
        ({"dtype": "complex"}, r"dtype='complex128'"),
        ({"dtype": "wide"}, r"dtype='wide'"),
        ({"dtype": None}, r"dtype=None"),
        ({"n_peaks": -1}, r"n_peaks=-1: expected 0 or more"),
        ({"nf": 10**12}, r"1e\+12 frequencies .* 7\.3 TiB"),
        ({"fmax": 1e13}, r"frequencies for one light curve"),
        ({"fmin": 0.0}, r"fmin=0; a positive"),
        ({"frequency": [0.5, -1.0], "fmin": None, "fmax": None}, r"frequency\[1\] = -1"),
        ({"fmin": 0.2 / u.day}, r"fmin has the unit 1 / d, but fmax has none"),
        ({"fmin": 0.2 / u.day, "fmax": 3 / u.day}, r"fmin has the unit 1 / d, but t has none"),
    ],
)
def test_options_with_wrong_values(options, words):
    with pytest.raises(ValueError, match=words):
        lombscargle(T, Y, DY, **{"fmin": 0.2, "fmax": 3.0, **options})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_peaks": 2.5}, r"n_peaks=2\.5: expected a whole number"),
        ({"fit_mean": 1}, r"fit_mean=1: expected True or False"),
        ({"center_data": "yes"}, r"center_data='yes'"),
        ({"return_power": None}, r"return_power=None"),
    ],
)
def test_options_of_the_wrong_type(options, words):
    with pytest.raises(TypeError, match=words):
        lombscargle(T, Y, DY, **GRID, **options)


def test_units_of_the_grid():
    with pytest.raises(ValueError, match=r"fmin has no unit, but t is in d; give fmin a unit such as 1/d"):
        lombscargle(T * u.day, Y, **GRID)
    with pytest.raises(ValueError, match=r"fmax has the unit d; one that converts to 1 / d"):
        lombscargle(T * u.day, Y, fmin=0.2 / u.day, fmax=3 * u.day)
    with pytest.raises(ValueError, match=r"fmin has the unit m; one that converts to 1 / d"):
        lombscargle(T * u.day, Y, fmin=0.2 * u.m, fmax=3 / u.day)
    assert lombscargle(T * u.one, Y, **GRID).period == lombscargle(T, Y, **GRID).period


@pytest.mark.parametrize("search", [lombscargle, LombScargle])
def test_units_that_astropy_does_not_know(search):
    time = Column(T, unit=u.Unit("BJD - 2457000, days", parse_strict="silent"))
    flux = Column(Y, unit=u.Unit("e-/s", parse_strict="silent"))
    with pytest.raises(ValueError, match=r"t has the unit 'BJD - 2457000, days', which astropy does not know"):
        search(time, flux)
    with pytest.raises(ValueError, match=r"y has the unit 'e-/s', which astropy does not know"):
        search(T * u.day, flux)


def test_times_rounded_to_single_precision():
    jd = (2_458_652.0 + T).astype(np.float32)
    with pytest.raises(
        ValueError, match=r"t came in single precision, where neighbouring numbers are 0\.25 apart: 0\.75"
    ):
        lombscargle(jd, Y, **GRID)
    with pytest.raises(ValueError, match="single precision"):
        lombscargle([T, jd], [Y, Y], **GRID)
    fine = lombscargle(T.astype(np.float32), Y, **GRID)
    assert fine.period == pytest.approx(1.3, rel=0.02)


@pytest.mark.parametrize("kind", ["parquet", "lists", "fits", "vot", "rows.fits"])
def test_times_of_a_file_in_single_precision(kind: str, tmp_path: Path) -> None:
    jd, path = (2_458_652.0 + T).astype(np.float32), tmp_path / f"star.{kind}"
    if kind in ("parquet", "lists"):
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        flat = pa.table({"mjd": jd, "mag": Y, "band": np.resize(["g", "r"], len(Y))})
        lists = pa.table({"id": [1], "mjd": pa.array([jd.tolist()], pa.list_(pa.float32())), "mag": [Y.tolist()]})
        parquet.write_table(flat if kind == "parquet" else lists, path)
    else:
        table = Table({"id": [1], "mjd": jd[None], "mag": Y[None]} if "rows" in kind else {"mjd": jd, "mag": Y})
        table.write(path, format="votable" if kind == "vot" else "fits")
    with pytest.raises(ValueError, match=r"t came in single precision, .* 0\.25 apart: 0\.75 cycles"):
        lombscargle(data=path, y="mag", **GRID)
    if kind == "parquet":
        with pytest.raises(ValueError, match="single precision"):
            lombscargle_multiband(path, **GRID)
    asked = CliRunner().invoke(app, ["period", str(path), "--fmin", "0.2", "--fmax", "3"])
    assert asked.exit_code == 2
    assert "single precision" in " ".join(asked.output.split())


def test_the_resolution_of_times_in_another_unit(tmp_path: Path) -> None:
    seconds = Column((T * 86400).astype(np.float32), unit="s")
    Table({"time": seconds, "flux": Y}).write(tmp_path / "star.fits")
    spacing = float(np.spacing(seconds.max()))
    assert read_light_curves(tmp_path / "star.fits").time_resolution == pytest.approx(spacing / 86400, rel=1e-6)


def test_values_that_are_constant_in_every_band_are_named_so():
    for bands in (np.arange(25), np.arange(25) % 2):
        y = np.where(bands == 0, 3.0, 5.0) if bands.max() == 1 else Y
        with pytest.raises(ValueError, match="y is constant in every band; there is no period"):
            lombscargle_multiband(T, y, bands, DY, **GRID)
    with pytest.raises(ValueError, match=r"y is constant \(3\.0\)"):
        lombscargle_multiband(T, np.full(25, 3.0), np.arange(25) % 2, DY, **GRID)


@pytest.mark.parametrize("text", ["2", "2 ", b"2", np.str_("2"), np.array("2")])
@pytest.mark.parametrize("end", ["fmin", "fmax"])
def test_text_is_no_frequency(end, text):
    with pytest.raises(TypeError, match=f"{end}=.*; a positive number or 'auto' is expected"):
        lombscargle(T, Y, **{end: text})


@pytest.mark.parametrize("options", [{"method": "nufft"}, {"method": "direct"}, {"method": "finufft"}, {"nterms": 3}])
def test_an_object_that_does_not_fit_into_the_memory(options):
    """Refused before the search, with the bytes that it needs; with that many it would be searched."""
    t = np.linspace(0, 100, 3000)
    grid = {"fmin": 0.1, "fmax": 5.0, "nf": 500, "device": "cpu", "threads": 1}
    with pytest.raises(MemoryBudgetError, match=r"object 1 of 3,000 rows, with method='\w+' and 1 thread") as found:
        lombscargle([t[:9], t], [np.sin(t[:9]), np.sin(t)], **grid, **options, memory=20_000)
    per_row = found.value.needed / 3000
    assert 60 <= per_row < 2000


@pytest.mark.parametrize("nterms", [1, 2])
def test_threads_of_a_long_light_curve_fit_into_the_free_memory(nterms, monkeypatch):
    """Each thread has scratch for all rows, of some 470 bytes a row: without a limit, fewer threads search it."""
    from skysieve.core.tasks import TaskPool
    from skysieve.periodogram.cpu import engine

    t = np.sort(np.random.default_rng(3).uniform(0, 100, 2000))
    y = np.sin(6 * t)
    grid = {"fmin": 0.1, "fmax": 50.0, "nf": 400_000}
    options = grid | {"method": "nufft", "device": "cpu", "threads": 6, "nterms": nterms}
    pieces, run = list[int](), TaskPool.run

    def counted(pool, tasks, **more):
        pieces.append(len(tasks))
        return run(pool, tasks, **more)

    monkeypatch.setattr(TaskPool, "run", counted)
    wanted = lombscargle(t, y, **options).power
    assert max(pieces) >= 6
    monkeypatch.setattr(engine, "SMALL_SCRATCH", 0)
    row = engine.Engine(Spec(nterms=nterms), threads=1)._bytes_of_row(engine.NUFFT)
    for free, most in ((2 * 3.5 * 2000 * row, 3), (1000, 1)):
        monkeypatch.setattr(engine, "available_host_memory", lambda free=free: int(free))
        pieces.clear()
        np.testing.assert_allclose(lombscargle(t, y, **options).power, wanted, atol=1e-9)
        assert max(pieces, default=1) == most


def test_the_memory_of_an_object_on_the_command_line(tmp_path):
    t = np.linspace(0, 100, 3000)
    np.savetxt(tmp_path / "a.txt", np.stack([t, np.sin(t)], 1), header="mjd mag", comments="")
    words = ["period", str(tmp_path / "a.txt"), "--nf", "500", "--device", "cpu", "--memory", "20kB"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "object 0 of 3,000 rows" in result.stderr
    assert "--memory" in result.stderr
