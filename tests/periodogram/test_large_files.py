"""Large Parquet files, which are read a piece at a time while they are searched: as if read whole, or refused."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.marks import slow
from tests.periodogram.test_stops import no_file_above
from typer.testing import CliRunner, Result

import skysieve
from skysieve.cli import app
from skysieve.core import files
from skysieve.core.cpu.jit import interpreted
from skysieve.core.errors import DeviceUnavailable
from skysieve.periodogram import survey
from skysieve.periodogram.analysis import sampling
from skysieve.periodogram.command import run as command
from skysieve.periodogram.command.resume import Parts
from skysieve.periodogram.cpu import aliases as kernels
from skysieve.periodogram.lightcurves import arrays, stream
from skysieve.periodogram.lightcurves.column_names import BadFile, Wanted
from skysieve.periodogram.lightcurves.io import read_light_curves
from skysieve.periodogram.lightcurves.sources import light_curves
from skysieve.periodogram.result import aliases

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

N = 40
GRID = ("--fmin", "0.2", "--fmax", "3", "--nf", "300", "--device", "cpu")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


def rows(seed: int = 0) -> dict[str, np.ndarray]:
    """Objects of 1 to 60 rows, one of 300, seen at night, with gaps, flags and a mark for a missing magnitude."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 60, N)
    counts[7] = 300
    n = int(counts.sum())
    t = 58000 + rng.integers(0, 90, n) + 0.3 * rng.random(n)
    mag = 15 + np.sin(2 * np.pi * t / np.repeat(rng.uniform(0.4, 4, N), counts)) + rng.normal(0, 0.3, n)
    mag[rng.random(n) < 0.02] = np.nan
    mag[rng.random(n) < 0.02] = 99.99
    return {
        "objectid": np.repeat(2**60 + rng.permutation(N), counts),
        "mjd": t,
        "mag": mag,
        "magerr": np.where(rng.random(n) < 0.02, np.nan, rng.uniform(0.1, 0.5, n)).astype(np.float32),
        "filter": rng.choice(["zg", "zr", "zi"], n),
        "catflags": np.where(rng.random(n) < 0.05, 32768, 0).astype(np.int32),
    }


def nulls(table: dict[str, np.ndarray]) -> dict[str, Any]:
    """The same with Arrow's nulls in place of NaN, and in the flags of some rows."""
    return table | {
        "mag": pa.array(table["mag"], mask=np.isnan(table["mag"])),
        "magerr": pa.array(table["magerr"], mask=np.isnan(table["magerr"])),
        "catflags": pa.array(table["catflags"], mask=np.arange(len(table["mag"])) % 11 == 0),
    }


def as_lists(table: dict[str, np.ndarray], struct: bool = False) -> Any:
    """One row an object; object 5 has no observations."""
    ids, starts = np.unique(table["objectid"], return_index=True)
    starts = np.sort(starts)
    ids = table["objectid"][starts]
    ends = np.append(starts, len(table["mjd"]))
    ends = np.insert(ends, 5, ends[5])
    ids = np.insert(ids, 5, 77)
    offsets = pa.array(ends, pa.int32())
    lists = {k: pa.ListArray.from_arrays(offsets, pa.array(v)) for k, v in table.items() if k != "objectid"}
    if struct:
        return pa.table({"objectid": ids, "lc": pa.StructArray.from_arrays(list(lists.values()), list(lists))})
    return pa.table({"objectid": ids, **lists})


def uneven(table: Any, struct: bool = False) -> Any:
    """Lists of four rows differ in length: two neighbours, one without times, and one with other errors."""
    lists = as_lists(table)
    for name, at in (("mag", (8, 9, 30)), ("mjd", (21,)), ("magerr", (12,))):
        cells = lists.column(name).to_pylist()
        for i in at:
            cells[i] = [] if name == "mjd" else [*cells[i], 1.0]
        lists = lists.set_column(lists.column_names.index(name), name, pa.array(cells, lists.column(name).type))
    if struct:
        names = ["mjd", "mag", "magerr", "filter"]
        packed = pa.StructArray.from_arrays([lists.column(name).combine_chunks() for name in names], names)
        return pa.table({"objectid": lists.column("objectid"), "lc": packed})
    return lists


def beside(table: dict[str, Any]) -> Any:
    """Rows with columns that are not flat before and behind the others, and magnitudes of another kind."""
    n = len(table["mjd"])
    position = pa.array([{"ra": None, "dec": None}] * n, pa.struct([("ra", pa.float64()), ("dec", pa.float64())]))
    cutout = pa.array([[1.0, 2.0]] * n)
    return pa.table({"position": position, **table, "cutout": cutout, "psfMag": table["mag"]})


def write(path: Path, table: Any, rows_a_group: int) -> Path:
    parquet.write_table(table if isinstance(table, pa.Table) else pa.table(table), path, row_group_size=rows_a_group)
    return path


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "FEWEST_ROWS", 0)
    monkeypatch.setattr(stream, "PIECE_ROWS", 64)


def same_tables(a: Path, b: Path) -> None:
    """Text and whole numbers are equal, other numbers within rounding."""
    left, right = ([line.split(",") for line in path.read_text().splitlines()] for path in (a, b))
    assert left[0] == right[0]
    for row in zip(left[1:], right[1:], strict=True):
        for x, y in zip(*row, strict=True):
            if "." in x and "/" not in x:
                assert float(x) == pytest.approx(float(y), rel=1e-9, abs=1e-300)
            else:
                assert x == y


def test_a_note_on_the_grid_is_printed_once(small_pieces: None, tmp_path: Path) -> None:
    """Not for each piece, whose counts are its own."""
    path = write(tmp_path / "a.parquet", rows(), 23)
    said = run("period", path, *GRID[2:], "--fmin", "0.001", "--multiband", "none", "-o", tmp_path / "a.csv").stderr
    [note] = [line for line in said.splitlines() if "is under 1/T" in line]
    assert re.search(r"for (\d+) of \1 objects .* \(counted among the first \1 objects\)$", note), note


FORMS = {
    "rows": lambda t: t,
    "nulls": nulls,
    "text ids": lambda t: t | {"objectid": np.char.add("ZTF", t["objectid"].astype(str))},
    "whole numbers": lambda t: t | {"mag": np.nan_to_num(100 * t["mag"]).astype(np.int16)},
    "numbered bands": lambda t: t | {"filter": np.unique(t["filter"], return_inverse=True)[1] - 3},
    "a dictionary of bands": lambda t: t | {"filter": pa.array(t["filter"]).dictionary_encode()},
    "dots": lambda t: {f"lc.{k}" if k in ("filter", "mag") else k: v for k, v in t.items()},
    "no errors": lambda t: {k: v for k, v in t.items() if k != "magerr"},
    "flux beside": lambda t: (
        {k: v for k, v in t.items() if k != "magerr"}
        | {"flux": 10 ** (-0.4 * t["mag"]), "flux_err": np.abs(t["magerr"])}
    ),
    "lists": as_lists,
    "struct of lists": lambda t: as_lists(t, struct=True),
    "uneven lists": uneven,
    "uneven struct of lists": lambda t: uneven(t, struct=True),
    "lists beside": beside,
    "large text": lambda t: t | {"filter": pa.array(t["filter"], pa.large_string())},
    "missing errors": lambda t: t | {"magerr": np.where(np.arange(len(t["mag"])) % 9 == 4, 99.99, t["magerr"])},
}
QUICK_FORMS = (
    "rows", "text ids", "flux beside", "struct of lists", "uneven lists",
)  # fmt: skip


@pytest.mark.few
@pytest.mark.parametrize(
    ("form", "group", "options"),
    [
        *((form, 23, (*GRID, "--multiband", "none")) for form in QUICK_FORMS),
        *(slow(form, 23, (*GRID, "--multiband", "none")) for form in FORMS if form not in QUICK_FORMS),
        ("rows", 100_000, (*GRID, "--multiband", "none")),
        *(slow(form, 100_000, (*GRID, "--multiband", "none")) for form in FORMS if form != "rows"),
        ("rows", 23, ("--device", "cpu")),
        ("lists", 23, (*GRID, "--jitter", "1")),
        slow("lists", 23, ("--device", "cpu")),
        slow("rows", 23, (*GRID, "--jitter", "1")),
    ],
)
def test_as_if_read_whole(
    form: str, group: int, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects may lie in several row groups, and row groups may have many pieces."""
    path = write(tmp_path / "a.parquet", FORMS[form](rows()), group)
    whole, pieces = tmp_path / "whole.csv", tmp_path / "pieces.csv"
    first = run("period", path, *options, "-o", whole)
    assert first.exit_code == 0, first.stderr
    monkeypatch.setattr(stream, "FEWEST_ROWS", 0)
    monkeypatch.setattr(stream, "PIECE_ROWS", 64)
    opened = stream.open_stream(path, Wanted())
    assert opened is not None
    assert len(opened) == N + form.endswith(" lists") + (form == "lists")
    with opened.pieces() as found:
        parts = list(found)
    assert len(parts) > 5
    second = run("period", path, *options, "-o", pieces)
    assert second.exit_code == 0, second.stderr
    if "none" in options:
        assert pieces.read_text() == whole.read_text()
    else:  # the bands of a piece set the order of the sums
        same_tables(pieces, whole)
    notes = [sorted(re.findall(r"^note: .* left out.*$|^\d+ rows.*$", r.stderr, re.M)) for r in (first, second)]
    assert notes[0] == notes[1] != []


@pytest.mark.slow
def test_compiled_code_gives_the_same_table(
    small_pieces: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tables = write(tmp_path / "a.parquet", rows(), 100_000), []
    monkeypatch.setattr(kernels, "relate", interpreted(kernels.relate))
    for compiled in (False, True):
        monkeypatch.setattr(survey, "is_compiled", lambda compiled=compiled: compiled)
        out = tmp_path / f"{compiled}.csv"
        assert run("period", path, *GRID, "--multiband", "none", "-o", out).exit_code == 0
        tables.append(out.read_text())
    assert tables[0] == tables[1]


@pytest.mark.slow
def test_code_is_compiled_beside_for_large_files(
    small_pieces: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is stored, NumPy finds the aliases."""
    asked: list[bool] = []
    monkeypatch.setattr(kernels, "compile_beside", lambda: asked.append(True))
    monkeypatch.setattr(kernels, "is_ready", lambda: False)
    path = write(tmp_path / "a.parquet", rows(), 100_000)
    for most, times in ((10**9, 0), (100, 1)):
        monkeypatch.setattr(survey, "COMPILED_ROWS", most)
        assert run("period", path, *GRID, "--multiband", "none", "-q").exit_code == 0
        assert len(asked) == times


def test_pieces_are_the_rows_of_the_file(small_pieces: None, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", rows(), 23)
    whole, opened = read_light_curves(path), stream.open_stream(path, Wanted())
    assert opened is not None
    with opened.pieces() as found:
        parts = list(found)
    for name in ("ids", "t", "y", "dy"):
        np.testing.assert_array_equal(np.concatenate([getattr(p, name) for p in parts]), getattr(whole, name))
    assert all(p.t.dtype == p.y.dtype == p.dy.dtype == np.float64 and p.t.flags.writeable for p in parts)
    assert [p.band_names.tolist() for p in parts] == [["zg", "zi", "zr"]] * len(parts)
    np.testing.assert_array_equal(np.concatenate([p.band_names[p.band] for p in parts]), whole.band)
    assert opened.missing() == whole.missing()
    assert opened.n_rows == whole.n_rows


ODD = ["unsorted", "no id", "text flags", "null ids", "Rubin", "repeated list", "lists of lists"]


@pytest.mark.parametrize("odd", ODD)
def test_other_files_are_read_whole(odd: str, small_pieces: None, tmp_path: Path) -> None:
    """Files in which the rows of an object are not together, or whose columns must be judged as a whole."""
    table: Any = rows()
    n = len(table["mjd"])
    order = np.random.default_rng(1).permutation(n)
    table = {
        "unsorted": lambda: {k: v[order] for k, v in table.items()},
        "no id": lambda: {k: v for k, v in table.items() if k != "objectid"},
        "text flags": lambda: table | {"catflags": np.where(table["catflags"] > 0, "bad", "good")},
        "null ids": lambda: table | {"objectid": pa.array(table["objectid"], mask=order < 3)},
        "Rubin": lambda: (
            {"diaObjectId" if k == "objectid" else k: v for k, v in table.items()}
            | {"diaObjectId": np.where(table["objectid"] == table["objectid"][0], 0, table["objectid"])}
        ),
        "repeated list": lambda: pa.concat_tables([as_lists(table)] * 2),
        "lists of lists": lambda: pa.table(
            {"objectid": [1, 2], **{name: [[table[name][:9], table[name][9:20]]] * 2 for name in ("mjd", "mag")}}
        ),
    }[odd]()
    assert stream.open_stream(write(tmp_path / "a.parquet", table, 100), Wanted()) is None


def test_ids_that_were_rounded_numbers(small_pieces: None, tmp_path: Path) -> None:
    table = rows()
    names = {one: f"6.866{k}e+17" for k, one in enumerate(np.unique(table["objectid"]))}
    made = table | {"objectid": np.array([names[one] for one in table["objectid"]])}
    with pytest.raises(BadFile, match=r"column 'objectid' holds 6\.866\d+e\+17, a rounded floating-point number"):
        stream.open_stream(write(tmp_path / "a.parquet", made, 100), Wanted())


EPOCH = np.datetime64("1858-11-17", "us")


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", ["timestamps", slow("time zone"), slow("text"), "limits", "lists of dates", slow("lists of limits")]
)
def test_dates_and_limits_are_read_whole(form: str, small_pieces: None, tmp_path: Path) -> None:
    """The table is that of the same numbers in pieces, and the times are days, whatever ``--time-unit`` says."""
    table = rows()
    dates = EPOCH + (table["mjd"] * 86400e6).astype("timedelta64[us]")
    table["mjd"] = (dates - EPOCH) / np.timedelta64(1, "D")
    limits = np.isnan(table["mag"])
    assert limits.sum() > 5
    texts = [">16.2" if limit else repr(float(m)) for limit, m in zip(limits, table["mag"], strict=True)]
    odd: dict[str, Any] = {
        "timestamps": {"mjd": pa.array(dates)},
        "time zone": {"mjd": pa.array(dates).cast(pa.timestamp("us", "America/Lima"))},
        "text": {"mjd": dates.astype(str)},
        "limits": {"mag": texts},
        "lists of dates": {"mjd": pa.array(dates)},
        "lists of limits": {"mag": np.array(texts)},
    }[form]
    made: Any = table | odd
    if form.startswith("lists"):
        made, table = as_lists(made), as_lists(table)
    numbers, path = write(tmp_path / "b.parquet", table, 23), write(tmp_path / "a.parquet", made, 23)
    assert stream.open_stream(numbers, Wanted()) is not None
    assert stream.open_stream(path, Wanted()) is None
    hours = ("--time-unit", "h") if "mjd" in odd else ()
    for file, options in ((path, hours), (numbers, ())):
        result = run("period", file, *options, *GRID, "--multiband", "none", "-o", file.with_suffix(".csv"))
        assert result.exit_code == 0, result.stderr
        assert bool(options) == ("the file itself says that its times are in dates" in result.stderr)
        assert (form == "limits" and file == path) == (f"{limits.sum()} with a limit instead" in result.stderr)
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()


def test_empty_columns_beside_fields(small_pieces: None, tmp_path: Path) -> None:
    """An empty column is not taken, wherever the fields of other columns stand in the file."""
    table = beside(rows())
    first = stream.open_stream(write(tmp_path / "a.parquet", table, 100), Wanted())
    assert first is not None
    assert "mag = mag," in first.taken
    at = table.column_names.index("mag")
    empty = table.set_column(at, "mag", pa.nulls(len(table), pa.float64()))
    second = stream.open_stream(write(tmp_path / "b.parquet", empty, 100), Wanted())
    assert second is not None
    assert second.taken == first.taken.replace("mag = mag,", "mag = psfMag,")


def test_an_unsorted_file_gives_what_a_sorted_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grouped through a hash table, as large files are, and through a sort."""
    table, texts = rows(), []
    order = np.random.default_rng(1).permutation(len(table["mjd"]))
    table = {k: v[order] for k, v in table.items()}
    path = write(tmp_path / "a.parquet", table, 100)
    for many in (0, 10**9):
        monkeypatch.setattr(arrays, "MANY_LABELS", many)
        out = tmp_path / f"{many}.csv"
        assert run("period", path, *GRID, "-q", "-o", out).exit_code == 0
        texts.append(out.read_text())
    assert texts[0] == texts[1]
    rank = np.unique(table["objectid"], return_index=True)
    ids = rank[0][np.argsort(rank[1])]
    assert [line.split(",")[0] for line in texts[0].splitlines()[1:]] == [str(i) for i in ids]


# ---------------------------------------------------------------- faults


def damage(path: Path, group: int) -> None:
    """Overwrite the magnitudes of a row group."""
    meta = parquet.ParquetFile(path).metadata.row_group(group).column(2)
    start = meta.dictionary_page_offset or meta.data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + meta.total_compressed_size] = b"\xff" * meta.total_compressed_size
    path.write_bytes(data)


def test_a_damaged_row_group_loses_its_objects(small_pieces: None, tmp_path: Path) -> None:
    """The others have the periods that they have in the whole file; the command fails and says which rows are lost."""
    path, out, good = write(tmp_path / "a.parquet", rows(), 150), tmp_path / "bad.csv", tmp_path / "good.csv"
    assert run("period", path, *GRID, "-q", "-o", good).exit_code == 0
    damage(path, 3)
    result = run("period", path, *GRID, "-o", out)
    assert result.exit_code == 1
    message = " ".join(result.stderr.split())
    lost = re.search(
        r"skysieve: \S+a\.parquet: rows 451 to 600 cannot be read \(.+?\): (\d+) objects are lost", message
    )
    assert lost is not None, message
    ids = rows()["objectid"]
    gone = {str(i) for i in ids[450:600]}
    assert int(lost[1]) == len(gone)
    expected = [line for line in good.read_text().splitlines() if line.split(",")[0] not in gone]
    assert out.read_text().splitlines() == expected


@pytest.mark.slow
def test_rows_of_unequal_lists(small_pieces: None, tmp_path: Path) -> None:
    """Such rows are left out, also if a piece has no others; a file that has no others is refused."""
    table = rows()
    path, out = write(tmp_path / "a.parquet", uneven(table), 2), tmp_path / "p.csv"
    result = run("period", path, *GRID, "--multiband", "none", "-o", out)
    assert result.exit_code == 0
    message = " ".join(result.stderr.split())
    assert re.search(r"note: row 9: 'mjd' holds \d+ values, 'mag' holds \d+; it was left out, and 3 like it", message)
    assert re.search(r"note: row 13: 'mjd' holds \d+ values, 'magerr' holds \d+; it was left out note", message)
    good = tmp_path / "good.csv"
    even = write(tmp_path / "b.parquet", as_lists(table), 2)
    assert run("period", even, *GRID, "--multiband", "none", "-q", "-o", good).exit_code == 0
    ids = as_lists(table).column("objectid").to_pylist()
    gone = {str(ids[i]) for i in (8, 9, 12, 21, 30)}
    expected = [line for line in good.read_text().splitlines() if line.split(",")[0] not in gone]
    assert out.read_text().splitlines() == expected
    nothing = uneven(table).take([8, 9])
    result = run("period", write(tmp_path / "c.parquet", nothing, 2), *GRID, "-o", tmp_path / "c.csv")
    assert result.exit_code == 2
    assert re.search(r"row 1: 'mjd' holds \d+ values, 'mag' holds \d+", " ".join(result.stderr.split()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [KeyboardInterrupt, skysieve.core.errors.SkysieveError])
def test_results_survive_an_interruption(
    kind: type[BaseException], small_pieces: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C or an error in the seventh chunk: all objects of the six before it, and no thread is left."""
    execute, done = skysieve.LombScarglePlan.execute, []

    def stopped(self: Any, t: Any, y: Any, dy: Any, *, offsets: Any, **options: Any) -> Any:
        if len(done) == 6:
            raise kind("stopped by the test")
        done.append(len(offsets) - 1)
        return execute(self, t, y, dy, offsets=offsets, **options)

    monkeypatch.setattr(skysieve.LombScarglePlan, "execute", stopped)
    path = write(tmp_path / "a.parquet", rows(), 50)
    result = run("period", path, *GRID, "--multiband", "none", "-o", tmp_path / "p.parquet")
    assert result.exit_code == (130 if kind is KeyboardInterrupt else 2)
    message = " ".join(result.stderr.split())
    assert f"the periods of the {sum(done)} objects that were done are in" in message
    assert parquet.read_table(tmp_path / "p.partial.parquet").num_rows == sum(done)
    assert not (tmp_path / "p.parquet").exists()
    assert not [t.name for t in threading.enumerate() if t.name.startswith(("skysieve-ahead", "skysieve-finish"))]


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 3000, 12_000])
def test_a_full_disk(small_pieces: None, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the table is written during the search, or at its end: all that was found goes to the standard output."""
    monkeypatch.setattr(files, "ROWS_TOGETHER", 5)
    path, out = write(tmp_path / "a.parquet", rows(), 50), tmp_path / "p.parquet"
    assert run("period", path, *GRID, "-q", "-o", out).exit_code == 0
    assert parquet.ParquetFile(out).num_row_groups > 3
    before = out.read_bytes()
    assert len(before) > 12_000
    with no_file_above(size):
        result = run("period", path, *GRID, "-q", "-o", out, "--overwrite")
    assert result.exit_code == 2
    message = " ".join(result.stderr.split())
    assert f"cannot write {out}: " in result.stderr.replace("\n", "")
    done = re.search(r"the periods of the (\d+) objects that were done are on standard output", message)
    assert done is not None, message
    assert len(result.stdout.splitlines()) == 1 + int(done[1])
    assert out.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.parquet", "p.parquet"]


@pytest.mark.slow
def test_a_table_that_is_written_during_the_search(
    small_pieces: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the columns, types and units of one that is written at the end."""
    path = write(tmp_path / "a.parquet", rows(), 50)
    tables = []
    for fewest in (3, 10**9):
        monkeypatch.setattr(files, "ROWS_TOGETHER", fewest)
        assert run("period", path, *GRID, "-q", "-o", tmp_path / f"{fewest}.parquet").exit_code == 0
        tables.append(parquet.ParquetFile(tmp_path / f"{fewest}.parquet"))
    assert [t.num_row_groups for t in tables][1] == 1 < tables[0].num_row_groups
    monkeypatch.setattr(stream, "FEWEST_ROWS", 10**9)
    assert run("period", path, *GRID, "-q", "-o", tmp_path / "whole.parquet").exit_code == 0
    tables.append(parquet.ParquetFile(tmp_path / "whole.parquet"))
    first = tables[0].read()
    for other in tables[1:]:
        assert first.schema.equals(other.schema_arrow, check_metadata=True)
        for name in first.column_names:
            np.testing.assert_array_equal(first.column(name).to_numpy(), other.read().column(name).to_numpy())


@pytest.mark.parametrize("fewest", [0, 10**9])
def test_marks_without_flags_leave_an_answer(fewest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the last rows without a flag have no error either, no option keeps them, in pieces or not."""
    monkeypatch.setattr(stream, "FEWEST_ROWS", fewest)
    monkeypatch.setattr(stream, "PIECE_ROWS", 64)
    table = rows()
    flags = np.where(np.arange(len(table["mjd"])) % 2, 32768, 0).astype(np.int32)
    path = write(tmp_path / "a.parquet", table | {"catflags": flags, "magerr": np.full(len(flags), 99.99)}, 100)
    result = run("period", path, *GRID, "-o", tmp_path / "p.csv")
    assert result.exit_code == 1, result.stderr
    assert "with 99.99 for an error" in result.stderr
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 1 + N


def test_all_rows_flagged(small_pieces: None, tmp_path: Path) -> None:
    table = rows() | {"catflags": np.full(len(rows()["mjd"]), 32768, np.int32)}
    result = run("period", write(tmp_path / "a.parquet", table, 100), *GRID, "-o", tmp_path / "p.csv")
    assert result.exit_code == 2
    assert "has no row left: all are flagged by catflags" in " ".join(result.stderr.split())
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["rows", "lists"])
def test_two_kinds_of_dates_cost_their_object(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces and whole: the object has no period, the others have; a file with nothing else is refused."""
    table = rows()
    jd, odd = table["mjd"] + 2400000.5, np.arange(len(table["mjd"])) % 2 == 1
    mixed = np.isin(table["objectid"], table["objectid"][[400, -1]])
    one = table | {"mjd": np.where(mixed & odd, jd, table["mjd"])}
    every = {
        "id": np.repeat([1, 2, 3], 100),
        "mjd": np.where(odd, jd, table["mjd"])[:300],
        "mag": np.arange(300.0) / 30,
    }
    out = tmp_path / "p.csv"
    found, path = [], tmp_path / "a.parquet"
    for fewest in (0, 10**9):
        monkeypatch.setattr(stream, "FEWEST_ROWS", fewest)
        monkeypatch.setattr(stream, "PIECE_ROWS", 64)
        result = run("period", write(path, FORMS[form](one), 50), *GRID, "--overwrite", "-o", out)
        assert result.exit_code == 0, result.stderr
        assert " of objects with both Julian Dates and Modified Julian Dates" in result.stderr
        found.append(out.read_text())
        refused = run("period", write(path, every, 50), *GRID, "--overwrite", "-o", out)
        assert refused.exit_code == 2
        assert "Julian Dates and Modified Julian Dates" in " ".join(refused.stderr.split())
    assert found[0] == found[1]
    status = dict(line.split(",")[:2] for line in found[0].splitlines()[1:])
    assert [status[str(i)] for i in np.unique(table["objectid"][mixed])] == ["empty", "empty"]
    assert list(status.values()).count("ok") > N // 2


def test_flags_in_a_struct_of_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits of ZTF's flags are known by the name of the field: others than 32768 keep a row."""
    table = rows()
    table["catflags"] = table["catflags"] | np.where(np.arange(len(table["mjd"])) % 3 == 0, 2, 0).astype(np.int32)
    path = write(tmp_path / "a.parquet", as_lists(table, struct=True), 23)
    bad = int(((table["catflags"] & 32768) > 0)[np.isfinite(table["mag"])].sum())
    for fewest in (10**9, 0):
        monkeypatch.setattr(stream, "FEWEST_ROWS", fewest)
        result = run("period", path, *GRID)
        assert f"{bad} flagged by lc.catflags (bit 32768: bad data of ZTF)" in " ".join(result.stderr.split())


@pytest.mark.parametrize("form", ["rows", "lists", "struct of lists", "numbered bands"])
def test_bands_are_counted_for_each_object(form: str, small_pieces: None, tmp_path: Path) -> None:
    """Also for an object whose rows are in several batches, where the band changes from one batch to the next."""
    table = rows()
    _, owner, counts = np.unique(table["objectid"], return_inverse=True, return_counts=True)
    for change, several in ((False, False), (True, True)):
        table["filter"] = np.array(["zg", "zr"])[owner % 2]
        if change:
            of_one = np.flatnonzero(owner == np.argmax(counts))
            later = of_one[of_one // 50 > of_one[0] // 50]
            table["filter"][later] = np.where(table["filter"][of_one[0]] == "zg", "zr", "zg")
        path = write(tmp_path / "a.parquet", FORMS[form](table), 3 if "lists" in form else 50)
        curves = stream.open_stream(path, Wanted())
        assert curves is not None
        assert curves.several_bands is several
        assert len(curves.bands) == 2
        assert curves.anew().several_bands is several


def test_a_band_that_does_not_exist(small_pieces: None, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", rows(), 100)
    result = run("period", path, *GRID, "--band", "K")
    assert result.exit_code == 2
    assert "has no row of band 'K'; the bands are: zg, zi, zr" in result.stderr
    result = run("period", path, *GRID, "--band", "zg")
    n = int((rows()["filter"] != "zg").sum())
    assert f"note: {n:,} rows of other bands than zg left out" in result.stderr
    assert "are searched together" not in result.stderr


@pytest.mark.slow
def test_a_range_from_the_first_objects_is_reported(small_pieces: None, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", rows(), 100)
    assert re.search(r"40 objects, .* in the first \d+ objects", run("period", path, "--device", "cpu").stderr)
    assert "in the first" not in run("period", path, *GRID).stderr


def test_a_bad_column_is_named_at_once(small_pieces: None, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", rows(), 100)
    result = run("period", path, "--mag", "nothing")
    assert result.exit_code == 2
    assert "no column 'nothing' for --mag" in result.stderr
    twice = pa.Table.from_arrays([pa.array([1.0, 2.0])] * 3, ["mjd", "mag", "mag"])
    path = write(tmp_path / "b.parquet", twice, 100)
    with pytest.raises(BadFile, match="2 columns of the name"):
        stream.open_stream(path, Wanted(mag="2"))


def test_a_gpu_that_cannot_be_used_is_reported_by_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the thread that starts it while the file is opened."""
    shown: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    path = write(tmp_path / "a.parquet", rows(), 100)

    def broken(device: str) -> Any:
        raise DeviceUnavailable(f"device={device!r} is broken", "Repair it")

    monkeypatch.setattr("skysieve.core.device.check_name", lambda device: None)  # the driver knows it
    monkeypatch.setattr("skysieve.core.device.resolve", broken)
    monkeypatch.setattr("skysieve.periodogram.api.resolve", broken)
    monkeypatch.setattr("skysieve.periodogram.multiband.resolve", broken)
    result = run("period", path, *GRID, "--device", "cuda")
    assert result.exit_code == 2
    assert [line for line in result.stderr.splitlines() if "broken" in line] == [
        "skysieve: --device 'cuda' is broken. Repair it"
    ]
    assert not shown


# ---------------------------------------------------------------- many objects at once


def test_the_highest_frequency_of_many_objects_is_that_of_each() -> None:
    """Regular, nearly regular and irregular times, sorted or not, with repeated ones and gaps."""
    rng = np.random.default_rng(1)
    curves = []
    for k in range(1200):
        n = int(rng.integers(1, 300) if k % 7 else rng.integers(1, 6))
        days = np.sort(rng.choice(700, n, replace=False)).astype(float)
        t = [
            rng.uniform(0, 700, n),
            days,
            days + rng.normal(0, 0.0029, n),
            days + rng.normal(0, 0.0033, n),
            np.arange(n) / 720,
            np.sort(rng.integers(0, 400, n) + 0.3 * rng.random(n)),
            np.repeat(days, 2),
            np.full(n, 3.0),
            rng.permutation(2.0 * days),
            np.sort(rng.integers(0, 400, n) + rng.normal(0, 0.05, n)),
        ][k % 10]
        curves.append(t + 58000 * (k % 3 > 0))
    y = [np.where(rng.random(len(t)) < 0.02, np.nan, 1.0) for t in curves]
    wanted = np.array([bool(np.isfinite(v).any()) for v in y]) & (rng.random(len(y)) < 0.9)
    highest, regular = sampling.highest_frequencies(light_curves(curves, y), wanted)
    for i, (t, v) in enumerate(zip(curves, y, strict=True)):
        expected = sampling.highest_frequency(t[np.isfinite(v)]) if wanted[i] else (np.nan, False)
        np.testing.assert_array_equal(highest[i], expected[0])
        assert regular[i] == expected[1]
    assert 0.1 < regular.mean() < 0.9


def test_aliases_of_a_batch_are_those_of_each_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of some rows and all at once; texts follow from positions."""
    rng = np.random.default_rng(2)
    n, k, span = 60, 5, 400.0
    counts = rng.integers(20, 80, n)
    offsets = np.append(0, np.cumsum(counts))
    t = rng.integers(0, int(span), offsets[-1]) + 0.3 * rng.random(offsets[-1])
    dy = rng.uniform(0.1, 1, len(t))
    rhythms = [1.0, 2.0, 1 / 29.530589, 1 + 1 / 29.530589]
    peaks = rng.uniform(0.1, 3, (n, k))
    for j in range(1, k):
        peaks[:, j] = np.abs(peaks[:, j - 1] + rng.choice([-1, 0, 1, 2], n) * rng.choice(rhythms, n))
    peaks[rng.random((n, k)) < 0.05] = np.nan
    spans = np.full(n, span)
    whole = aliases.find_aliases(t, peaks, spans, dy, offsets=offsets)
    assert {"", "#1 - 1/d", "#2 + 1/d", "1/d - #1"} < set(whole.text.ravel())
    assert (whole.of >= 0).sum() > 30
    monkeypatch.setattr(aliases, "BLOCK_ROWS", 100)
    blocks = aliases.find_aliases(t, peaks, spans, dy, offsets=offsets)
    for i in range(n):
        rows_of = slice(offsets[i], offsets[i + 1])
        one = aliases.find_aliases(t[rows_of], peaks[i], span, dy[rows_of])
        for name in ("flag", "of", "text", "window"):
            np.testing.assert_array_equal(getattr(one, name), getattr(whole, name)[i])
            np.testing.assert_array_equal(getattr(blocks, name)[i], getattr(whole, name)[i])


@pytest.fixture
def groups_read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The rows of each read of values (not of ids or of bands alone)."""
    seen = []
    read = stream._File._read_groups

    def noted(self: Any, groups: list[int], start: int, stop: int, columns: list[str]) -> Any:
        if len(columns) > 1:
            seen.append((self.rows[0] + start, self.rows[0] + stop))
        return read(self, groups, start, stop, columns)

    monkeypatch.setattr(stream._File, "_read_groups", noted)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("form", ["rows", "lists"])
def test_a_run_that_continues_reads_what_is_not_done(
    form: str, small_pieces: None, groups_read: list[tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = rows() if form == "rows" else as_lists(rows())
    path, out = write(tmp_path / "a.parquet", table, 50 if form == "rows" else 3), tmp_path / "p.csv"
    assert run("period", path, *GRID, "-q", "-o", tmp_path / "one.csv").exit_code == 0
    command = ("period", path, *GRID, "-o", out, "--resume", "--partition", "10")
    saved = []
    save = Parts.save

    def twice(self: Parts, file: int, k: int, found: Any) -> None:
        if len(saved) == 2:
            raise KeyboardInterrupt
        saved.append(len(found))
        save(self, file, k, found)

    with monkeypatch.context() as patch:
        patch.setattr(Parts, "save", twice)
        assert run(*command).exit_code == 130
    everything = max(stop for _, stop in groups_read)
    groups_read.clear()
    result = run(*command)
    assert result.exit_code == 0, result.stderr
    assert "2 of " in result.stderr
    assert "partitions were done before" in result.stderr
    same_tables(out, tmp_path / "one.csv")
    assert not list(tmp_path.glob("*.parts"))
    again = sum(stop - start for start, stop in groups_read)
    assert again < 0.8 * everything  # the last two or three of four or five partitions, and the first pieces


@pytest.mark.slow
def test_a_partition_that_cannot_be_read_is_tried_again(small_pieces: None, tmp_path: Path) -> None:
    path, out = write(tmp_path / "a.parquet", rows(), 50), tmp_path / "p.csv"
    damage(path, 10)
    command = ("period", path, *GRID, "-q", "-o", out, "--resume", "--partition", "10")
    found = []
    for _ in range(2):
        result = run(*command, "--overwrite")
        assert result.exit_code == 1, result.stderr
        assert re.search(r"rows 501 to \d+ cannot be read", " ".join(result.stderr.split()))
        found.append(len(out.read_text().splitlines()) - 1)
    assert 0 < found[0] == found[1] < N


@pytest.mark.slow
def test_pictures_of_a_large_file_need_its_beginning(
    small_pieces: None, groups_read: list[tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.parquet", rows(), 50)
    monkeypatch.setattr(command, "MAX_PLOTS", 2)
    assert run("period", path, *GRID, "-q", "-o", tmp_path / "p.csv").exit_code == 0
    once = sum(stop - start for start, stop in groups_read)
    groups_read.clear()
    result = run("period", path, *GRID, "-q", "-o", tmp_path / "p.csv", "--overwrite", "--plot", tmp_path / "pictures")
    assert result.exit_code == 0, result.stderr
    assert len(list((tmp_path / "pictures").glob("a_*.png"))) == 2
    assert once < sum(stop - start for start, stop in groups_read) < 2 * once


def test_single_precision_times_of_a_file_in_pieces_are_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(stream, "FEWEST_ROWS", 1)
    table = rows()
    parquet.write_table(
        pa.table(table | {"mjd": (2_400_000 + table["mjd"]).astype(np.float32)}), tmp_path / "a.parquet"
    )
    opened = stream.open_stream(tmp_path / "a.parquet", Wanted())
    assert opened is not None
    with opened.pieces() as pieces:
        assert {piece.time_resolution for piece in pieces} == {0.25}
    done = run("period", tmp_path / "a.parquet", *GRID)
    assert done.exit_code == 2
    assert "0.75 cycles" in " ".join(done.output.split())
    with opened.pieces() as pieces, pytest.raises(ValueError, match="single precision"):  # without the command's check
        list(survey.search(pieces, survey.Request({"fmin": 0.2, "fmax": 3.0, "nf": 30}), total=N, banded=False))
