"""Light-curve files: every format, the usual names, and one clear line for what cannot be read."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from skysieve.core.table_files import write_table
from skysieve.periodogram.command.demo import star_file
from skysieve.periodogram.lightcurves import io
from skysieve.periodogram.lightcurves.choose_columns import choose
from skysieve.periodogram.lightcurves.column_names import MissingColumn, Wanted
from skysieve.periodogram.lightcurves.io import BadFile, read_light_curves

T = np.array([1.5, 2.25, 3.0, 4.75])
Y = np.array([15.1, 15.2, 15.3, 15.4])
E = np.array([0.1, 0.2, 0.1, 0.2])


def text(path: Path, body: str) -> Path:
    path.write_text(body, encoding="utf-8")
    return path


def check(path: Path, **options: object) -> None:
    got = read_light_curves(path, **options)
    assert got.offsets.tolist() == [0, 4]
    np.testing.assert_array_equal(got.t, T)
    np.testing.assert_array_equal(got.y, Y)
    assert got.dy is not None
    np.testing.assert_array_equal(got.dy, E)


ROWS = list(zip(T, Y, E, strict=True))


@pytest.mark.parametrize("comment", ["", "# by hand\n\n"])
@pytest.mark.parametrize("delimiter", [",", ", ", ";", "\t", "|", "   "])
@pytest.mark.parametrize("header", ["HJD Mag MAG_ERR", None])
def test_delimited_text(tmp_path: Path, delimiter: str, header: str | None, comment: str) -> None:
    lines = [] if header is None else [delimiter.join(header.split())]
    lines += [delimiter.join(str(c) for c in row) for row in ROWS]
    check(text(tmp_path / "a.txt", comment + "\n".join(lines) + "\n"))


def test_header_in_a_comment_and_gzip(tmp_path: Path) -> None:
    body = "# a star\n#MJD  Mag  Err\n" + "\n".join(" ".join(map(str, r)) for r in ROWS)
    check(text(tmp_path / "a.mjd", body))
    with gzip.open(tmp_path / "b.csv.gz", "wt") as f:
        f.write(body)
    check(tmp_path / "b.csv.gz")


def test_quoted_cells_and_windows_lines(tmp_path: Path) -> None:
    body = "name,time,mag,err\r\n" + "".join(f'"a, b","{t}",{y},{e}\r\n' for t, y, e in ROWS)
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbf" + body.encode())
    check(path)
    assert read_light_curves(path).ids.tolist() == ["a, b"]


@pytest.mark.parametrize("kind", ["parquet", "fits", "ecsv"])
def test_binary_and_ecsv(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    ids = np.full(4, 2**62 + 1)
    write_table({"objectId": ids, "mjd": T, "flux": Y, "flux_err": E, "other": E * 0}, path)
    check(path)
    assert read_light_curves(path).ids.tolist() == [2**62 + 1]


def test_fits_with_units_masks_and_time(tmp_path: Path) -> None:
    from astropy.table import MaskedColumn, QTable, Table
    from astropy.time import Time
    from astropy.units import hour

    Table({"time": T * 24 * hour, "mag": Y, "err": E}).write(tmp_path / "a.fits")
    np.testing.assert_allclose(read_light_curves(tmp_path / "a.fits").t, T, rtol=1e-15)
    QTable({"time": Time(50000 + T, format="mjd"), "mag": MaskedColumn(Y, mask=[0, 1, 0, 0])}).write(
        tmp_path / "b.ecsv"
    )
    got = read_light_curves(tmp_path / "b.ecsv")
    np.testing.assert_allclose(got.t, 50000 + T, rtol=0, atol=1e-10)
    assert np.isnan(got.y).tolist() == [False, True, False, False]


def test_seed_files(test_data: Path) -> None:
    folder = test_data / "lomb_scargle"
    ida = read_light_curves(folder / "243_normalized_ztf_filter2.txt")
    assert (ida.ids.tolist(), len(ida.t), ida.dy) == ([243], 29, None)
    errors = read_light_curves(folder / "8205_normalized_with_error.txt")
    assert errors.dy is not None
    assert errors.dy[0] == 1.137982
    sdss = read_light_curves(folder / "SDSS_stripe82_band_z.txt")
    assert (len(sdss), len(sdss.t), sdss.ids[0]) == (136, 7064, 2794912)


def test_scattered_rows_come_together_in_order(tmp_path: Path) -> None:
    body = "id,time,mag\n7,1,10\nb,1,20\n7,3,11\n7,2,12\nb,0,21\n"
    got = read_light_curves(text(tmp_path / "a.csv", body))
    assert got.ids.tolist() == ["7", "b"]
    assert got.t.tolist() == [1, 3, 2, 1, 0]
    assert got.y.tolist() == [10, 11, 12, 20, 21]
    assert got.offsets.tolist() == [0, 3, 5]


def test_chunks_keep_within_their_limits() -> None:
    star = read_light_curves(star_file())
    many = type(star)(
        path=star.path, ids=np.arange(10), t=np.zeros(55), y=np.zeros(55), dy=None,
        offsets=np.concatenate([[0], np.cumsum(np.arange(1, 11))]), taken="", value_name="mag",
    )  # fmt: skip
    # Objects of 1, 2, ... 10 rows.
    assert many.stop_after(0, max_objects=4, max_rows=100) == 4
    assert many.stop_after(0, max_objects=9, max_rows=10) == 4
    assert many.stop_after(0, max_objects=9, max_rows=9) == 3
    assert many.stop_after(8, max_objects=9, max_rows=3) == 9, "one object at least"
    assert many.stop_after(8, max_objects=9, max_rows=100) == 10


def test_names() -> None:
    columns = choose(["diaObjectId", "midpointMjdTai", "scienceFlux", "psfFluxErr", "psfFlux", "band"], Wanted())
    assert (columns.id, columns.time, columns.mag, columns.err, columns.band) == (0, 1, 4, 3, 5)
    # An error of another brightness is not taken for this one's.
    assert choose(["t", "mag", "flux_err"], Wanted()).err is None
    assert choose(["T", "Y", "DY"], Wanted()).err == 2
    assert choose(["a", "b", "c"], Wanted(time="B", mag="3")).mag == 2


def test_chosen_columns_and_numbers_without_header(tmp_path: Path) -> None:
    path = text(tmp_path / "a.txt", "\n".join(f"{e} {y} 9 {t}" for t, y, e in ROWS))
    check(path, wanted=Wanted(time="4", mag="2", err="1"))
    with pytest.raises(MissingColumn, match="give --mag too"):
        read_light_curves(path, Wanted(time="4"))
    with pytest.raises(MissingColumn, match="no column 'mag' for --mag; the columns are: column 1"):
        read_light_curves(path, Wanted(time="4", mag="mag"))


def test_missing_cells_become_nan(tmp_path: Path) -> None:
    got = read_light_curves(text(tmp_path / "a.csv", "time,mag,err\n1,10,1\n2,,1\n3,null,\n4,nan,2\n"))
    assert np.isnan(got.y).tolist() == [False, True, True, True]
    assert got.dy is not None
    assert np.isnan(got.dy).tolist() == [False, False, True, False]


@pytest.mark.parametrize("form", ["ascii", "ascii.commented_header"])
def test_quoted_cells_between_spaces(tmp_path: Path, form: str) -> None:
    table = pytest.importorskip("astropy.table")
    mag = table.MaskedColumn([15.1, 15.2, 15.3], mask=[False, True, False])
    made = table.Table({"star": ["RR Lyr"] * 3, "mag": mag, "mjd": [1.5, 2.5, 3.5], "note": ['5"', 'say "a"', ""]})
    made.write(tmp_path / "star.txt", format=form)
    got = read_light_curves(tmp_path / "star.txt")
    assert got.ids.tolist() == ["RR Lyr"]
    assert got.t.tolist() == [1.5, 2.5, 3.5]
    np.testing.assert_array_equal(got.y, [15.1, np.nan, 15.3])


def test_masked_columns_that_astropy_wrote_to_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    table = pytest.importorskip("astropy.table")
    mask = [False, True, False]
    columns = {"mag": [15.1, 14.0, 15.3], "band": ["g", "i", "r"]}
    made = table.Table({name: table.MaskedColumn(values, mask=mask) for name, values in columns.items()})
    made["mjd"] = [1.5, 2.5, 3.5]
    made.write(tmp_path / "star.parquet")
    got = read_light_curves(tmp_path / "star.parquet")
    np.testing.assert_array_equal(got.y, [15.1, np.nan, 15.3])
    assert got.taken == "time = mjd, mag = mag, band = band"


def test_delimiter_at_the_end_of_lines(tmp_path: Path) -> None:
    check(text(tmp_path / "a.csv", "time,mag,err\n" + "".join(f"{t},{y},{e},\n" for t, y, e in ROWS)))


def test_bands(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", "time,mag,band\n1,10,g\n2,11,r\n3,12,g\n")
    both = read_light_curves(path)
    assert both.band is not None
    assert (both.band.tolist(), both.notes) == (["g", "r", "g"], [])  # the search reports how it uses them
    only = read_light_curves(path, band="g")
    assert (only.t.tolist(), only.notes) == ([1, 3], [])
    with pytest.raises(BadFile, match="no row of band 'i'; the bands are: g, r"):
        read_light_curves(path, band="i")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "is empty"),
        ("# only words\n", "is empty"),
        ("time,mag\n", "header but no rows"),
        ("time,mag\n1,2\n2,three\n", "line 3: 'three' in column 'mag' is not a number"),
        ("# note\ntime mag\n1 2\n\n2 3 4\n", "line 5 has 3 cells, 2 expected"),
        ("time,mag\n\x00\x01,\x02\n", "not a text table"),
        ("1\n2\n", "at least a time and a magnitude"),
        ("when,mag\n1,2\n", "found no column of times.*The columns are: when, mag"),
        ("time,z\n1,2\n", "found no column of magnitudes or fluxes.*The columns are: time, z"),
    ],
)
def test_bad_text(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises((BadFile, MissingColumn), match=message):
        read_light_curves(text(tmp_path / "a.csv", body))


def test_bad_binary(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for body in (b"PAR1 but not really", b"SIMPLE  =  broken", b"\x1f\x8bbroken", b"\xff\xfe\x00\x80" * 50):
        path.write_bytes(body)
        with pytest.raises(BadFile) as caught:
            read_light_curves(path)
        assert "\n" not in str(caught.value)


def test_write_is_whole_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    out.write_text("before")
    with pytest.raises(ValueError, match="zip"):
        write_table({"a": np.arange(3), "b": np.arange(2)}, out)
    assert [p.name for p in tmp_path.iterdir()] == ["p.csv"]
    assert out.read_text() == "before"
    write_table({"a": np.array([1.5, np.nan]), "id": np.array(["x,y", "z"])}, out)
    assert out.read_text() == 'a,id\n1.5,"x,y"\n,z\n'
    with pytest.raises(ValueError, match=r"p\.txt': expected a name that ends in one of \.csv, \.parquet"):
        write_table({"a": np.arange(3)}, tmp_path / "p.txt")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        write_table({"a": np.arange(3)}, tmp_path / "no" / "p.csv")


def test_rows_without_an_id_are_left_out(tmp_path: Path) -> None:
    """Rows without an id are neither an object of their own nor part of object 0."""
    pa = pytest.importorskip("pyarrow")
    from astropy.table import MaskedColumn, Table
    from pyarrow import parquet

    t, y = np.arange(1.0, 5), np.arange(4.0)
    gaps = {
        "csv": lambda p: p.write_text("id,t,y\n0,1,0\n,2,1\n0,3,2\n7,4,3\n"),
        "parquet": lambda p: parquet.write_table(pa.table({"id": pa.array([0, None, 0, 7]), "t": t, "y": y}), p),
        "ecsv": lambda p: Table({"id": MaskedColumn([0, 5, 0, 7], mask=[0, 1, 0, 0]), "t": t, "y": y}).write(p),
        "fits": lambda p: Table({"id": [0, np.nan, 0, 7], "t": t, "y": y}).write(p),
    }
    for suffix, write in gaps.items():
        path = tmp_path / f"a.{suffix}"
        write(path)
        got = read_light_curves(path)
        assert got.ids.tolist() == [0, 7], suffix
        assert got.t.tolist() == [1, 3, 4], suffix
        assert got.notes == ["1 row was left out: no id in column 'id'"], suffix
    path.write_bytes(b"")
    Table({"id": [np.nan, np.nan], "t": t[:2], "y": y[:2]}).write(path, overwrite=True)
    with pytest.raises(BadFile, match="has no row with an id in column 'id'; --id names another"):
        read_light_curves(path)


def test_columns_of_one_name(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    twice = pa.table([pa.array([1.0]), pa.array([1.0]), pa.array([2.0])], names=["t", "mag", "mag"])
    parquet.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(BadFile, match="2 columns of the name 'mag'"):
        read_light_curves(tmp_path / "a.parquet")


def test_names_beyond_ascii_in_fits(tmp_path: Path) -> None:
    path = tmp_path / "a.fits"
    write_table({"id": np.array(["\u03b1 Cen", "b"]), "t": np.arange(2.0), "mag": np.zeros(2)}, path)
    assert read_light_curves(path).ids.tolist() == ["\u03b1 Cen", "b"]


def test_columns_that_are_no_real_numbers(tmp_path: Path) -> None:
    from astropy.table import Table

    path = tmp_path / "a.fits"
    for values, message in (([1j, 2j], "'mag' holds complex numbers"), (["12", "high"], "row 2: 'high' in column")):
        Table({"t": [1.0, 2.0], "mag": values}).write(path, overwrite=True)
        with pytest.raises(BadFile, match=message):
            read_light_curves(path)
    text = tmp_path / "a.csv"
    text.write_bytes(b"t,mag,id\n1,2,\xe9\x01\n")
    with pytest.raises(BadFile, match="is not a text table"):
        read_light_curves(text)


def test_a_quick_look_finds_what_may_be_a_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are left out with and without the look at the extremes alone, for magnitudes and fluxes."""
    times, values, errors = (
        (0.0, -1.0, np.nan),
        (0.0, 99.99, -99.9, 29.999, np.nan, np.inf),
        (99.99, 9.99, np.nan),
    )
    looks = []
    for name in ("mag", "flux"):
        for column, odd in [("mjd", x) for x in times] + [("value", x) for x in values] + [("err", x) for x in errors]:
            table = {"mjd": 58000 + np.arange(20.0), "value": 15 + 0.1 * np.arange(20), "err": np.full(20, 0.1)}
            table[column][3] = odd
            path = tmp_path / "a.csv"
            write_table({"mjd": table["mjd"], name: table["value"], "err": table["err"]}, path)
            with monkeypatch.context() as patch:
                patch.setattr(io, "_usual", lambda *a: False)
                slowly = read_light_curves(path)
            found = read_light_curves(path)
            np.testing.assert_array_equal(found.y, slowly.y)
            assert (found.left_out, found.missing()) == (slowly.left_out, slowly.missing())
            looks.append(bool(found.missing()))
    assert any(looks)
    assert not all(looks)
