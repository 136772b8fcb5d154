"""Files as people have them: each is read like an independent reader reads it, or refused in one line."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.periodogram.test_cli import run

from skysieve import lombscargle
from skysieve.periodogram.lightcurves import textfile
from skysieve.periodogram.lightcurves.column_names import BadFile, MissingColumn, Wanted
from skysieve.periodogram.lightcurves.io import LightCurves, read_light_curves, read_stream
from skysieve.periodogram.lightcurves.sources import light_curves, with_bands

N = 60
RNG = np.random.default_rng(11)
T = np.round(np.sort(RNG.uniform(58300, 58600, N)), 5)
MAG = np.round(15 + 0.3 * np.sin(2 * np.pi * T / 0.56789), 4)
ERR = np.round(RNG.uniform(0.01, 0.03, N), 4)
DATES = np.datetime64("1858-11-17", "ms") + np.round(T * 86400e3).astype("timedelta64[ms]")
MS = 0.6e-3 / 86400
"""Half a millisecond in days, with the rounding of float64."""
GRID: dict[str, Any] = {"fmin": 0.2, "fmax": 4.0, "device": "cpu", "return_power": False}


def cells(numbers: np.ndarray, digits: int) -> list[str]:
    return [f"{x:.{digits}f}" for x in numbers]


def rows(*columns: list[str], delimiter: str = ",") -> str:
    return "".join(delimiter.join(row) + "\n" for row in zip(*columns, strict=True))


COLUMNS = (cells(T, 5), cells(MAG, 4), cells(ERR, 4))


def check(found: LightCurves, t: Any = T, y: Any = MAG, dy: Any = ERR, atol: float = 0.0) -> None:
    np.testing.assert_allclose(found.t, t, rtol=0, atol=atol)
    np.testing.assert_array_equal(found.y, y)
    if dy is not None:
        np.testing.assert_array_equal(found.dy, dy)


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


# ---------------------------------------------------------------- text


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
def test_encodings(tmp_path: Path, encoding: str, packed: bool) -> None:
    """The values are those that pandas reads with the encoding given."""
    pd = pytest.importorskip("pandas")
    name = "\u00b5 C\u00e9p"
    path = write(tmp_path / "a.csv", "star,mjd,mag,err\n" + rows([name] * N, *COLUMNS), encoding)
    expected = pd.read_csv(path, encoding=encoding)
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    found = read_light_curves(path)
    check(found, expected["mjd"], expected["mag"], expected["err"])
    assert found.ids.tolist() == [name] == expected["star"].unique().tolist()
    latin = encoding in ("latin-1", "cp1252")
    assert found.notes == (["the text is not UTF-8, and was read as Latin-1"] if latin else [])


@pytest.mark.parametrize("delimiter", [";", "\t", " ", "|"])
@pytest.mark.parametrize("header", [True, False])
def test_decimal_comma(tmp_path: Path, delimiter: str, header: bool) -> None:
    pd = pytest.importorskip("pandas")
    text = rows(*([c.replace(".", ",") for c in column] for column in COLUMNS), delimiter=delimiter)
    path = write(tmp_path / "a.csv", (delimiter.join(("mjd", "mag", "err")) + "\n" if header else "") + text)
    expected = pd.read_csv(path, sep=delimiter, decimal=",", header=0 if header else None).to_numpy().T
    found = read_light_curves(path)
    check(found, *expected)
    check(found)


def test_commas_between_thousands(tmp_path: Path) -> None:
    def quoted(columns: Any) -> str:
        return rows(*([f'"{c}"'.replace(".", ",") for c in column] for column in columns))

    check(read_light_curves(write(tmp_path / "a.csv", "mjd,mag,err\n" + quoted(COLUMNS))))
    ambiguous = quoted([[f"{58 + k}.300" for k in range(9)], ["12.345"] * 9])
    path = write(tmp_path / "b.csv", "mjd,flux\n" + ambiguous)
    with pytest.raises(BadFile, match=r"line 2: '58,300' in column 'mjd' may be 58.300 or 58300"):
        read_light_curves(path)


FORMS = {
    "iso": lambda d: d,
    "zulu": lambda d: d + "Z",
    "offset": lambda d: f"{np.datetime64(d) + np.timedelta64(2, 'h')}+02:00",
    "space": lambda d: d.replace("T", " "),
    "utc": lambda d: d.replace("T", " ") + " UTC",
    "slashes": lambda d: d.replace("-", "/").replace("T", " "),
    "compact": lambda d: d.replace("-", "").replace(":", ""),
}


@pytest.mark.parametrize("form", FORMS)
def test_dates(tmp_path: Path, form: str) -> None:
    from astropy.time import Time

    expected = Time(DATES.astype(str).tolist(), format="isot", scale="tai").mjd  # no leap second in any scale
    written = [FORMS[form](d) for d in DATES.astype(str)]
    found = read_light_curves(write(tmp_path / "a.csv", "date,mag,err\n" + rows(written, *COLUMNS[1:])))
    check(found, expected, atol=1e-11)
    check(found, atol=MS)
    assert found.time_unit == "dates"


def test_dates_in_other_places(tmp_path: Path) -> None:
    date, clock = (list(part) for part in zip(*(d.split("T") for d in DATES.astype(str)), strict=True))
    two = write(tmp_path / "a.txt", "date time mag err\n" + rows(date, clock, *COLUMNS[1:], delimiter=" "))
    check(read_light_curves(two), atol=MS)
    bare = write(tmp_path / "b.csv", rows(DATES.astype(str).tolist(), *COLUMNS[1:]))
    check(read_light_curves(bare), atol=MS)
    days = [f"{d[:10]}{f:.5f}".replace("0.", ".", 1) for d, f in zip(date, T % 1, strict=True)]
    check(read_light_curves(write(tmp_path / "c.csv", "date,mag,err\n" + rows(days, *COLUMNS[1:]))), atol=1e-9)
    for wrong, message in (
        ("09.07.2018 06:25", "a date begins with its year"),
        ("06:25:32", "it is a time of day; join it with its date in one column"),
        ("2018-02-30T00:00", "is not a number"),
    ):
        path = write(tmp_path / "d.csv", "date,mag,err\n" + rows([wrong] * N, *COLUMNS[1:]))
        with pytest.raises(BadFile, match=rf"line 2: '{wrong}' in column 'date'.*{message}|{message}"):
            read_light_curves(path)


def test_limits_are_counted(tmp_path: Path) -> None:
    mag, err = list(COLUMNS[1]), list(COLUMNS[2])
    mag[3], mag[5], mag[8], err[11], err[13] = ">16.2", "<15.1", "\u2265 16", "<0.02", "99.99"
    found = read_light_curves(write(tmp_path / "a.csv", "mjd,mag,err\n" + rows(COLUMNS[0], mag, err)))
    assert found.left_out == {"with a limit instead of a value": 4, "with 99.99 for an error": 1}
    lost = np.isnan(found.y) | np.isnan(found.dy)
    assert np.flatnonzero(lost).tolist() == [3, 5, 8, 11, 13]
    np.testing.assert_array_equal(found.y[~lost], MAG[~lost])


def test_cells_of_other_programs(tmp_path: Path) -> None:
    """Exponents and overflows of Fortran, a minus sign of typesetting, words for missing values."""
    mag = list(COLUMNS[1])
    mag[0], mag[1], mag[2], mag[3], mag[4] = "1.5D+01", "*****", "\u221215.25", "N/A", "--"
    found = read_light_curves(write(tmp_path / "a.csv", "mjd,mag,err\n" + rows(COLUMNS[0], mag, COLUMNS[2])))
    np.testing.assert_array_equal(found.y, [15.0, np.nan, -15.25, np.nan, np.nan, *MAG[5:]])


@pytest.mark.parametrize("word", ["N/A", "-", "None", "***"])
def test_words_for_missing_values_are_the_same_in_all_columns(tmp_path: Path, word: str) -> None:
    """A column of them is empty, a row without a band is left out, and a missing flag is not set."""
    band, flag, good = ["g", "r"] * (N // 2), ["0"] * N, ["false"] * N
    band[3] = flag[4] = good[5] = word
    flag[6], good[7] = "1", "true"
    names = "mjd,flux,mag,err,band,flags,is_bad\n"
    columns = (COLUMNS[0], [word] * N, *COLUMNS[1:], band, flag, good)
    found = read_light_curves(write(tmp_path / "a.csv", names + rows(*columns)), Wanted(flags=("flags", "is_bad")))
    assert found.value_name == "mag"
    assert found.bands.tolist() == ["g", "r"]
    assert np.flatnonzero(np.isnan(found.y)).tolist() == [3, 6, 7]
    assert found.left_out["without a band"] == 1
    bands = with_bands(light_curves(T, MAG), band)[0]
    assert bands == ("g", "r")


def test_ades(tmp_path: Path, test_data: Path) -> None:
    """Lines with ``!`` and ``#``, and a second block with its columns in another order."""
    from astropy.table import Table
    from astropy.time import Time

    made = test_data / "lightcurve_formats" / "10_ades.psv"
    lines = [line for line in made.read_text().splitlines() if line[0] not in "#!"]
    table = Table.read(lines, format="ascii.basic", delimiter="|")
    found = read_light_curves(made)
    check(found, Time([d.rstrip("Z") for d in table["obsTime"]], scale="tai").mjd, table["mag"], None, atol=1e-11)
    assert found.ids.tolist() == [243]
    head = "# version=2017\n# observatory\n! mpcCode {}\n# telescope\n! design reflector\n"
    dates = [f"{d}Z" for d in DATES.astype(str)]
    first = "permID |obsTime|mag|rmsMag|band\n" + rows(["243"] * N, dates, *COLUMNS[1:], ["o"] * N, delimiter="|")
    other = "permID|stn|mag|obsTime|band|rmsMag\n"
    other += rows(["244"] * N, ["X05"] * N, COLUMNS[1], dates, ["o"] * N, COLUMNS[2], delimiter=" | ")
    both = read_light_curves(write(tmp_path / "a.psv", head.format("W68") + first + head.format("X05") + other))
    assert both.ids.tolist() == [243, 244]
    for i in range(2):
        check(both.part(i, i + 1), atol=MS)


def test_vizier_and_rdb(tmp_path: Path) -> None:
    """Units and dashes under the header, types, several tables in a file, blanks for missing values."""
    from astropy.table import Table

    text = rows(*COLUMNS, delimiter="\t")
    under = {
        "vizier": "d\tmag\tmag\n-----\t---\t---\n", "blank unit": " \tmag\tmag\n-----\t---\t---\n",
        "dashes": "-----\t---\t---\n", "rdb": "15N\t10N\t10N\n", "short rdb": "N\tN\tN\n", "units": "d\tmag\tmag\n",
    }  # fmt: skip
    for lines in under.values():
        check(read_light_curves(write(tmp_path / "a.tsv", "#\n#VizieR\n\nHJD\tmag\te_mag\n" + lines + text)))
    path = write(tmp_path / "a.rdb", "HJD\tmag\te_mag\n15N\t10N\t10N\n" + text)
    expected = Table.read(path, format="ascii.rdb")
    check(read_light_curves(path), expected["HJD"], expected["mag"], expected["e_mag"])
    block = "HJD;mag;e_mag\nd;mag;mag\n---;---;---\n" + rows(*COLUMNS, delimiter=";") + "58700.5;     ;     \n"
    found = read_light_curves(write(tmp_path / "b.tsv", "#one\n" + block + "\n#two\n" + block))
    check(found, *([*x, last] * 2 for x, last in ((T, 58700.5), (MAG, np.nan), (ERR, np.nan))))
    hours = write(tmp_path / "c.tsv", "time\tmag\te_mag\nh\tmag\tmag\n---\t---\t---\n" + text)
    found = read_light_curves(hours)
    check(found, T / 24, atol=1e-9)
    assert found.time_unit == "h"


def test_a_repeated_header_is_no_row(tmp_path: Path) -> None:
    one = "star,mjd,mag,err\n" + rows(["a"] * N, *COLUMNS)
    other = "star,mjd,mag,err\n" + rows(["b"] * N, *COLUMNS)
    found = read_light_curves(write(tmp_path / "a.csv", one + other))
    assert found.ids.tolist() == ["a", "b"]
    check(found.part(1, 2))


# ---------------------------------------------------------------- JSON


def test_json(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"star": ["a"] * 30 + ["b"] * 30, "mjd": T, "mag": MAG, "err": ERR})
    records = frame.to_dict("records")
    curves = [
        {"star": name, "mjd": part["mjd"].tolist(), "mag": part["mag"].tolist(), "err": part["err"].tolist()}
        for name, part in frame.groupby("star")
    ]
    forms = {
        "lines": frame.to_json(orient="records", lines=True, double_precision=15),
        "records": json.dumps(records, indent=1),
        "columns": json.dumps(frame.to_dict("list")),
        "of pandas": frame.to_json(double_precision=15),
        "split": frame.to_json(orient="split", double_precision=15),
        "split without an index": frame.to_json(orient="split", index=False, double_precision=15),
        "table": frame.to_json(orient="table", double_precision=15),
        "wrapped": json.dumps({"name": "x", "data": records}),
        "wrapped beside an empty list": json.dumps({"data": records, "forced": []}),
        "a curve a line": "\n".join(map(json.dumps, curves)),
    }
    for name, text in forms.items():
        found = read_light_curves(write(tmp_path / "a.json", text))
        check(found)
        assert found.ids.tolist() == ["a", "b"], name
    curves.insert(1, {"star": "c", "mjd": [1, 2], "mag": [1], "err": [1]})  # only the bad object is left out
    found = read_light_curves(write(tmp_path / "a.json", "\n".join(map(json.dumps, curves))))
    check(found)
    assert found.ids.tolist() == ["a", "b"]
    assert found.notes == ["record 2: 'mjd' holds 2 values, 'mag' holds 1; it was left out"]
    records[3]["mag"], records[5]["mag"] = None, ">16"
    del records[4]["err"]
    found = read_light_curves(write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, records))))
    assert np.flatnonzero(np.isnan(found.y) | np.isnan(found.dy)).tolist() == [3, 4, 5]
    assert found.left_out == {"with a limit instead of a value": 1}
    for record, date in zip(records, DATES.astype(str), strict=True):
        record["mjd"] = date
    check(read_light_curves(write(tmp_path / "b.jsonl", json.dumps(records))), T, found.y, found.dy, atol=MS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"mjd": 1, "mag": 2}\n{"mjd": 1,', "line 2 is damaged JSON"),
        ('{"mjd": [1, 2', "is damaged JSON: line 1"),
        ('{"mjd": [1, 2], "mag": [1]}', "holds lists of different lengths .*'mjd' 2, 'mag' 1"),
        ("[[1, 2], [3, 4]]", "is JSON of another form: a list of records, one record a line"),
        ('{"0": {"mjd": 1, "mag": 2}, "1": {"mjd": 2, "mag": 3}}', "an object for each row, .*orient='records', 'col"),
        ('{"s1": {"t": [1, 2], "mag": [2, 3]}}', "an object for each row, or for each star: a list of records"),
        ('{"columns": ["t", "mag"], "data": [[1, 2], [3]]}', "is JSON of another form"),
        ('{"columns": ["t", "mag", "mag"], "data": [[1, 2, 3]]}', "has two columns of the name 'mag'"),
        ('{"a": {"b": [1]}}', "another form|found no column of times"),
        ('[{"mjd": 1, "mag": "high"}]', "record 1: 'high' in column 'mag' is not a number"),
        ('[{"mjd": [1, 2], "mag": [3]}]', "record 1: 'mjd' holds 2 values, 'mag' holds 1"),
        ("[]", "has no rows"),
    ],
)
def test_bad_json(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises((BadFile, MissingColumn), match=message):
        read_light_curves(write(tmp_path / "a.json", text))


@pytest.mark.parametrize(("unit", "name"), [("ms", "milli"), ("us", "micro"), ("ns", "nano")])
def test_times_that_cannot_be_days(unit: str, name: str, tmp_path: Path) -> None:
    stamps = DATES.astype(f"datetime64[{unit}]").astype(np.int64)
    path = write(tmp_path / "a.json", json.dumps({"time": stamps.tolist(), "mag": MAG.tolist()}))
    with pytest.raises(
        BadFile, match=rf"column 'time' holds \d+, which is too large for days.* {name}seconds since 19"
    ):
        read_light_curves(path)


def test_note_on_late_times(tmp_path: Path) -> None:
    seconds = ((T + 2400000.5) * 86400).tolist()  # of a Julian Date, the largest that --time-unit has to convert
    path = write(tmp_path / "b.json", json.dumps({"time": seconds, "mag": MAG.tolist()}))
    search = ("period", path, "--fmin", "1", "--fmax", "2", "--nf", "10")
    assert "note: times such as 2.12" in run(*search).stderr
    assert "are used as days" not in run(*search, "--time-unit", "s").stderr


# ---------------------------------------------------------------- tables


@pytest.mark.parametrize("packed", [False, True])
def test_machine_readable_tables(packed: bool, tmp_path: Path) -> None:
    """Of the AAS journals and CDS, with units."""
    from astropy import units as u
    from astropy.table import QTable

    text = io.StringIO()
    QTable({"star": ["a"] * N, "MJD": T * u.day, "mag": MAG * u.mag, "e_mag": 1e3 * ERR * u.mmag}).write(
        text, format="ascii.mrt", formats={"MJD": ".5f", "mag": ".4f", "e_mag": ".1f"}
    )
    path = tmp_path / "table.txt"
    path.write_bytes(gzip.compress(text.getvalue().encode()) if packed else text.getvalue().encode())
    found = read_light_curves(path)
    check(found, dy=None)
    np.testing.assert_allclose(found.dy, ERR, rtol=1e-12)
    assert (found.ids.tolist(), found.time_unit) == (["a"], "d")
    with pytest.raises(BadFile, match="cannot be read as MRT: "):
        read_light_curves(write(path, "Title: a star\nmjd,mag\n1,2\n"))


def test_bars_around_rows(tmp_path: Path) -> None:
    """Tables of fixed width and of Markdown; an IPAC table has bars around its names only."""
    lines = ["| " + line.replace(",", " | ") + " |\n" for line in rows(*COLUMNS).splitlines()]
    head = "| mjd | mag | err |\n"
    for rule in ("", "|-----|:---:|----:|\n"):
        check(read_light_curves(write(tmp_path / "a.txt", head + rule + "".join(lines))))


@pytest.mark.parametrize(
    ("beginning", "message"),
    [
        ("\\begin{table}\n", "is a table of LaTeX: save it as CSV"),
        ("\\documentclass{aastex}\n", "is a document of LaTeX"),
    ],
)
def test_latex(beginning: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=message):
        read_light_curves(write(tmp_path / "a.tex", beginning + "mjd & mag \\\\\n"))


@pytest.mark.parametrize("head", ["", "mjd mag err\n", "star mjd mag err\n"])
def test_exponents_of_fortran(head: str, tmp_path: Path) -> None:
    """``5.8D+04`` is a number in all columns of a row."""
    numbers = [[f"{x:.12E}".replace("E", "D") for x in column] for column in (T, MAG, ERR)]
    first = [["7"] * N] if "star" in head else []
    check(read_light_curves(write(tmp_path / "a.txt", head + rows(*first, *numbers, delimiter="  "))))


def test_dates_and_odd_types_of_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    stamps = pa.array(DATES)
    cast = (pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.timestamp("ms", "America/Lima"))
    text = pa.array(DATES.astype(str).tolist())
    for times in (*(stamps.cast(kind) for kind in cast), text, text.dictionary_encode()):
        parquet.write_table(pa.table({"time": times, "mag": MAG, "err": ERR}), path)
        found = read_light_curves(path)
        check(found, atol=MS)
        assert found.time_unit == "dates"
        np.testing.assert_array_equal(lombscargle(path, **GRID).period, lombscargle(found.t, MAG, ERR, **GRID).period)
    parquet.write_table(pa.table({"time": stamps.cast(pa.date32()), "mag": MAG, "err": ERR}), path)
    check(read_light_curves(path), np.floor(T))
    mag = [None, *(f"{m:.4f}" for m in MAG[1:])]
    mag[7] = ">16.2"
    parquet.write_table(pa.table({"time": T, "mag": mag, "err": [Decimal(c) for c in COLUMNS[2]]}), path)
    found = read_light_curves(path)
    check(found, T, [np.nan, *MAG[1:7], np.nan, *MAG[8:]])
    assert found.left_out == {"with a limit instead of a value": 1}
    gaps = {"time": [None, *T[1:]], "mag": [*MAG[:-1], None], "err": ERR, "note": pa.nulls(N)}
    parquet.write_table(pa.table(gaps), path)
    check(read_light_curves(path), [np.nan, *T[1:]], [*MAG[:-1], np.nan])
    whole = pa.array([None, *(MAG[1:] * 1e4).astype(int).tolist()])
    parquet.write_table(pa.table({"time": T, "mag": whole}), path)
    np.testing.assert_array_equal(read_light_curves(path).y, whole.to_pandas())


def test_lists_in_lists(tmp_path: Path) -> None:
    """A struct of lists of lists is joined within each row; a flat table may have other lists beside its columns."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def twice(x: np.ndarray) -> Any:
        return pa.array([[x[:10].tolist(), x[10:30].tolist()], [], [x[30:].tolist()]])

    path = tmp_path / "a.parquet"
    lists = [twice(T), twice(MAG), twice(ERR)]
    nested = pa.StructArray.from_arrays(lists, ["mjd", "mag", "err"])
    for table in (
        pa.table({"id": [1, 2, 3], "lc": nested}),
        pa.table({"id": [1, 2, 3], "mjd": lists[0], "mag": lists[1], "err": lists[2]}),
    ):
        parquet.write_table(table, path)
        found = read_light_curves(path)
        check(found)
        assert found.ids.tolist() == [1, 3]
        assert found.offsets.tolist() == [0, 30, 60]
    table = pa.table({"mjd": T, "mag": MAG, "err": ERR, "pos": [{"ra": 1.0}] * N, "cutout": [[1.0, 2.0]] * N})
    parquet.write_table(table, path)
    check(read_light_curves(path))


def test_gaia_arrays(tmp_path: Path) -> None:
    """A row a star with arrays of fixed or varying length, in VOTable and FITS, as astropy reads them."""
    from astropy.io import fits
    from astropy.table import Table

    edges = [0, 25, 60]
    parts = {
        name: np.array([x[a:b] for a, b in itertools.pairwise(edges)], object)
        for name, x in (("g_transit_time", T), ("g_transit_mag", MAG))
    }
    bad = np.zeros(N, bool)
    bad[40] = True
    flags = np.array([bad[:25], bad[25:]], object)
    table = Table({"source_id": [5, 6], **parts})
    table.write(tmp_path / "a.vot", format="votable")
    columns = [fits.Column("source_id", "K", array=[5, 6])]
    columns += [fits.Column(name, "PD()", array=x) for name, x in parts.items()]
    columns += [fits.Column("variability_flag_g_reject", "PL()", array=flags)]
    columns += [fits.Column("variability_flag_bp_reject", "PL()", array=~flags)]
    fits.BinTableHDU.from_columns(columns).writeto(tmp_path / "a.fits")
    for name in ("a.vot", "a.fits"):
        found = read_light_curves(tmp_path / name)
        assert found.ids.tolist() == [5, 6]
        assert found.offsets.tolist() == edges
        lost = bad if name == "a.fits" else np.zeros(N, bool)
        check(found, T, np.where(lost, np.nan, MAG), None)
    short = np.array([MAG[:25], MAG[25:59]], object)
    Table({"source_id": [5, 6], **parts, "g_transit_mag": short}).write(tmp_path / "c.vot", format="votable")
    found = read_light_curves(tmp_path / "c.vot")  # only the bad object is left out
    check(found, T[:25], MAG[:25], None)
    assert found.notes == ["row 2: 'g_transit_time' holds 35 values, 'g_transit_mag' holds 34; it was left out"]
    flat = Table({"source_id": [5, 6], "g_transit_time": T.reshape(2, 30), "g_transit_mag": MAG.reshape(2, 30)})
    flat.write(tmp_path / "b.vot", format="votable")
    check(read_light_curves(tmp_path / "b.vot"), T, MAG, None)


@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize(("scale", "form"), [("utc", "isot"), ("tdb", "jd"), ("utc", "unix"), ("tdb", "mjd")])
def test_times_of_astropy(scale: str, form: str, with_ids: bool, tmp_path: Path) -> None:
    # FITS holds such a time as a vector of two numbers, Parquet as two columns
    from astropy.coordinates import SkyCoord
    from astropy.table import QTable
    from astropy.time import Time

    time = Time(T + 2400000.5, format="jd", scale=scale)
    time.format = form
    time[3] = np.ma.masked
    table = QTable({"place": SkyCoord(T, ERR, unit="deg"), "time": time, "mag": MAG})  # two columns of a file before it
    if with_ids:
        table["id"] = np.repeat([1, 2], len(T) // 2)
    for name in ("a.ecsv", "a.fits", "a.parquet"):
        table.write(tmp_path / name)
        found = read_light_curves(tmp_path / name)
        assert len(found) == 1 + with_ids, name
        np.testing.assert_allclose(found.t, np.where(np.arange(len(T)) == 3, np.nan, T), rtol=0, atol=1e-8)
        np.testing.assert_array_equal(found.y, MAG)


@pytest.mark.parametrize("form", ["csv", "json", "parquet", "fits", "data frame"])
def test_rounded_ids_are_refused(form: str, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    from astropy.table import Table

    ids = np.repeat([686629372010000001, 686629372010000002], len(T) // 2).astype(float)
    frame = pd.DataFrame({"objectid": ids, "mjd": T, "mag": MAG})
    path = tmp_path / f"a.{form}"
    if form == "data frame":
        with pytest.raises(ValueError, match=r"^id holds 6\.866\d*e\+17, a rounded floating-point number"):
            lombscargle("mjd", "mag", data=frame, id="objectid", **GRID)
        return
    frame.loc[3, "objectid"] = np.nan
    if form == "fits":
        Table.from_pandas(frame).write(path)
    else:
        getattr(frame, f"to_{form}")(path)
    with pytest.raises(BadFile, match=r"column 'objectid' holds 6\.866\d*e\+17, a rounded floating-point number"):
        read_light_curves(path)


def test_whole_ids_that_are_floats(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    ids = np.repeat([2.0**53 - 1, 1e15], len(T) // 2)
    ids[3] = np.nan
    pd.DataFrame({"objectid": ids, "mjd": T, "mag": MAG}).to_parquet(tmp_path / "a.parquet")
    assert read_light_curves(tmp_path / "a.parquet").ids.tolist() == [2**53 - 1, 10**15]


def test_shapes_of_columns(tmp_path: Path) -> None:
    from astropy.table import Table

    Table({"mjd": T[:, None], "mag": MAG[:, None]}).write(tmp_path / "one.fits")
    found = read_light_curves(tmp_path / "one.fits")
    np.testing.assert_array_equal([found.t, found.y], [T, MAG])
    Table({"mjd": np.stack([T, T + 1], axis=1), "mag": MAG}).write(tmp_path / "two.fits")
    n = len(T)
    with pytest.raises(BadFile, match=rf"'mjd' has shape \({n}, 2\) and column 'mag' has shape \({n},\): one time"):
        read_light_curves(tmp_path / "two.fits")


def test_tables_in_python() -> None:
    """Dates, Arrow's nulls, Python's numbers and fields of nested columns in ``data``."""
    pa = pytest.importorskip("pyarrow")
    pd = pytest.importorskip("pandas")
    expected = lombscargle(T, MAG, ERR, **GRID)
    stamps = pd.Series(DATES)
    for times in (
        DATES,
        stamps,
        stamps.dt.tz_localize("UTC"),
        pa.array(DATES),
        stamps.astype("timestamp[ms][pyarrow]"),
    ):
        found = lombscargle("t", "y", "dy", data={"t": times, "y": MAG, "dy": ERR}, **GRID)
        assert found.period == pytest.approx(expected.period, rel=1e-9)
    short = lombscargle(T[1:], MAG[1:], ERR[1:], **GRID)
    lacking: list[Any] = [None, *MAG[1:].tolist()]
    for y in (
        pa.array(lacking), pa.array([None, *(Decimal(c) for c in COLUMNS[1][1:])]), pd.Series(lacking, dtype=object),
        pd.Series([pd.NA, *MAG[1:]], dtype=object), np.array(lacking, object), pd.array(lacking, dtype="Float64"),
    ):  # fmt: skip
        found = lombscargle("t", "y", "dy", data={"t": T, "y": y, "dy": ERR}, **GRID)
        assert (found.period, found.n_used) == (short.period, N - 1)
    with pytest.raises(TypeError, match=r"y holds Python objects \(row 2 is '>16'\); real numbers are expected"):
        lombscargle(T, np.array([1.0, 2.0, ">16", *MAG[3:]], object))
    with pytest.raises(TypeError, match="y holds dates"):
        lombscargle(T, DATES)
    both = lombscargle([T[:25], T[25:]], [MAG[:25], MAG[25:]], **GRID).period
    lists = [[T[:25].tolist(), T[25:].tolist()], [MAG[:25].tolist(), MAG[25:].tolist()]]
    deep = [[[x[0][:10], x[0][10:]], [x[1]]] for x in lists]
    rows = [[{"t": a, "y": b} for a, b in zip(*curve, strict=True)] for curve in zip(*lists, strict=True)]
    tables = [
        pa.table({"lc": pa.StructArray.from_arrays([pa.array(x) for x in form], ["t", "y"])}) for form in (lists, deep)
    ]
    for table in (*tables, pa.table({"lc": rows})):
        for data in (table, table.to_pandas(types_mapper=pd.ArrowDtype)):
            np.testing.assert_array_equal(lombscargle("lc.t", "lc.y", data=data, **GRID).period, both)
    with pytest.raises(ValueError, match=r"y='lc.z' is not a column of data"):
        lombscargle("lc.t", "lc.z", data=tables[0], **GRID)


# ---------------------------------------------------------------- large text files


LAYOUTS: dict[str, tuple[str, Any]] = {
    "plain": ("id,mjd,mag,err\n", {}),
    "no header": ("", {}),
    "comment": ("# by hand\n\n#id,mjd,mag,err\n", {}),
    "missing": ("id,mjd,mag,err\n", {"mag": {5: "", 6: "null", 7: "nan"}}),
    "limit": ("id,mjd,mag,err\n", {"mag": {5: ">16.2"}}),
    "quotes": ("id,mjd,mag,err\n", {"id": dict.fromkeys(range(N), '"a, b"')}),
    "space before quotes": ("id,mjd,mag,err\n", {"id": dict.fromkeys(range(N), ' "a, b"')}),
    "leading zeros": ("id,mjd,mag,err\n", {"id": dict.fromkeys(range(N), "007")}),
    "spaces": ("id,mjd,mag,err\n", {"mag": {k: f" {MAG[k]} " for k in range(N)}}),
    "comment between": ("id,mjd,mag,err\n", {"id": {9: "# star"}}),
    "comment behind spaces": ("id,mjd,mag,err\n", {"id": {9: "  # star"}}),
    "latin": ("id,mjd,mag,err\n", {"id": dict.fromkeys(range(N), "Cép")}),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_pyarrow_reads_what_numpy_reads(
    tmp_path: Path, name: str, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file gives exactly the values that the other readers give."""
    pytest.importorskip("pyarrow")
    header, changes = LAYOUTS[name]
    table = {"id": ["5"] * 30 + ["x1"] * 30, "mjd": COLUMNS[0], "mag": list(COLUMNS[1]), "err": COLUMNS[2]}
    for column, new in changes.items():
        table[column] = [new.get(k, cell) for k, cell in enumerate(table[column])]
    path = write(tmp_path / "a.csv", header + rows(*table.values()), "latin-1")
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    small = read_light_curves(path)
    assert len(small.t) == N - name.startswith("comment b")
    seen = []
    by_arrow = textfile._by_arrow
    monkeypatch.setattr(textfile, "LARGE", 0)
    monkeypatch.setattr(textfile, "_by_arrow", lambda *a: seen.append(by_arrow(*a)) or seen[-1])
    large = read_light_curves(path)
    check(large, small.t, small.y, small.dy)
    np.testing.assert_array_equal(large.ids, small.ids)
    assert large.left_out == small.left_out
    refused = name in ("space before quotes", "comment between", "comment behind spaces")
    assert [found is None for found in seen][-1:] == [refused]


def test_large_files_with_dates_commas_and_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(textfile, "LARGE", 0)
    monkeypatch.setattr(textfile, "_careful", lambda *_: pytest.fail("pyarrow did not read the file"))
    for end in ("", "Z"):
        dates = [d + end for d in DATES.astype(str)]
        found = read_light_curves(write(tmp_path / "a.csv", "date,mag,err\n" + rows(dates, *COLUMNS[1:])))
        check(found, atol=MS)
        assert found.time_unit == "dates"
    commas = rows(*([c.replace(".", ",") for c in column] for column in COLUMNS), delimiter=";")
    check(read_light_curves(write(tmp_path / "b.csv", "mjd;mag;err\n" + commas)))
    monkeypatch.undo()
    monkeypatch.setattr(textfile, "LARGE", 0)
    path = write(tmp_path / "c.csv", "mjd,mag,err\n" + rows(*COLUMNS) + "58700,15\n")
    with pytest.raises(BadFile, match="line 62 has 2 cells, 3 expected"):
        read_light_curves(path)


# ---------------------------------------------------------------- refused, and in a batch


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        (b"PK\x03\x04", "ZIP archive or a spreadsheet"),
        (b"BZh9", "unpack it first"),
        (b"\xfd7zXZ\x00", "unpack it first"),
        (b"\x89HDF\r\n\x1a\n", "HDF5: save its table as Parquet or CSV"),
        (b"ARROW1\0\0", "save it as Parquet"),
        (b"\x93NUMPY\x01\0", "array of NumPy"),
        (b"<!DOCTYPE html><html>", "page of HTML"),
        (b"\x0c\0\0\0HEADER_START\x08\0\0\0", "filterbank: skysieve dedisp search reads it"),
        (bytes(range(256)), "is not a text table"),
        (b"\x01\x02\xe9,1\n", "is not a text table"),
    ],
)
def test_other_formats_are_refused_in_one_line(tmp_path: Path, begin: bytes, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(begin + bytes(range(1, 200)) * 3)
    with pytest.raises(BadFile, match=message) as caught:
        read_light_curves(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=message):
        lombscargle(path)


def test_streams_are_read_like_files(test_data: Path) -> None:
    """Every made file through standard input."""
    for path in sorted((test_data / "lightcurve_formats").iterdir()):
        if path.name == "README.md":
            continue
        answers = []
        for read in (lambda p=path: read_light_curves(p), lambda p=path: read_stream(io.BytesIO(p.read_bytes()))):
            try:
                found = read()
                answers.append((found.t.tobytes(), found.y.tobytes(), found.left_out, found.notes, len(found)))
            except (BadFile, MissingColumn) as error:
                answers.append(str(error))
        assert answers[0] == answers[1], path.name


def test_a_bad_file_does_not_stop_the_others(tmp_path: Path) -> None:
    """One table of three files: one of them is refused, the others are searched."""
    good = write(tmp_path / "a.jsonl", "\n".join(json.dumps({"mjd": t, "mag": m}) for t, m in zip(T, MAG, strict=True)))
    latin = write(tmp_path / "b.csv", "star,mjd,mag\n" + rows(["\u00e9"] * N, *COLUMNS[:2]), "latin-1")
    bad = tmp_path / "c.zip"
    bad.write_bytes(b"PK\x03\x04" + bytes(90))
    out = tmp_path / "out.csv"
    result = run("period", good, bad, latin, "--fmin", "0.2", "--fmax", "4", "--device", "cpu", "-o", out)
    assert result.exit_code == 1
    assert "c.zip: is a ZIP archive or a spreadsheet: unpack it, or save it as CSV" in result.stderr
    lines = out.read_text().splitlines()
    assert len(lines) == 3
    at = lines[0].split(",").index("period")
    periods = [float(line.split(",")[at]) for line in lines[1:]]
    assert all(math.isclose(p, 0.56789, rel_tol=1e-3) for p in periods)


def test_flags_of_one_band_of_gaia_and_of_differences(tmp_path: Path) -> None:
    flags = np.zeros(N, int)
    flags[4] = 1
    for value, name, used in (
        ("g_transit_mag", "variability_flag_g_reject", True), ("g_transit_mag", "variability_flag_rp_reject", False),
        ("bp_mag", "variability_flag_bp_reject", True), ("psfDiffFlux", "diff_PixelFlags_nodataCenter", True),
        ("psfFlux", "diff_PixelFlags_nodataCenter", False), ("psfFlux", "pixelFlags_edge", False),
    ):  # fmt: skip
        text = f"time,{value},{name}\n" + rows(*COLUMNS[:2], flags.astype(str).tolist())
        found = read_light_curves(write(tmp_path / "a.csv", text), Wanted(mag=value))
        assert np.isnan(found.y).sum() == used, (value, name)


@pytest.mark.parametrize("form", ["csv", "jsonl", "vot", "parquet"])
def test_limits_of_the_chosen_band_are_counted(tmp_path: Path, form: str) -> None:
    """Three of the 20 rows of g are limits, and one of the 10 of r."""
    from astropy.table import Table

    band = np.array(["g"] * 20 + ["r"] * 10)
    mag = [">15.2" if i in (0, 5, 12, 25) else f"{15 + np.sin(i):.3f}" for i in range(30)]
    path = tmp_path / f"a.{form}"
    columns = {"mjd": np.arange(30) + 59000.25, "mag": mag, "magerr": np.full(30, 0.1), "filter": band.tolist()}
    if form == "jsonl":
        records = [{name: values[i] for name, values in columns.items()} for i in range(30)]
        path.write_text("\n".join(map(json.dumps, records)))
    elif form == "parquet":
        pq = pytest.importorskip("pyarrow.parquet")
        pq.write_table(pytest.importorskip("pyarrow").table(columns), path)
    else:
        Table(columns).write(path, format={"csv": "ascii.csv", "vot": "votable"}[form])
    for chosen, count in (("g", 3), ("r", 1), (None, 4)):
        curves = read_light_curves(path, band=chosen)
        assert curves.left_out == {"with a limit instead of a value": count}
        assert np.isnan(curves.y).sum() == count
