"""``skysieve period`` as users run it: answers, messages, exit codes, files."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import skysieve
from skysieve.cli import app
from skysieve.core.arrays import Words
from skysieve.core.table_files import write_table
from skysieve.periodogram.command.report import clock
from skysieve.periodogram.lightcurves.simulate import simulate_light_curves
from skysieve.periodogram.result.columns import table_columns

PERIODS = np.array([0.31, 0.77, 1.9])
GRID = ("--fmin", "0.2", "--fmax", "5", "--nf", "4000")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    """Three objects of 80 points and one of 2."""
    made = simulate_light_curves([*PERIODS, 1.0], 0.8, [80, 80, 80, 2], seed=4)
    path = tmp_path / "batch.csv"
    ids = np.repeat(["a", "b", "c", "short"], made.n_obs)
    write_table({"name": ids, "mjd": made.t + 59000, "mag": made.y, "magerr": made.dy}, path)
    return path


def read(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".parquet":
        from pyarrow import parquet

        whole = parquet.read_table(path)
        return {name: whole.column(name).to_numpy() for name in whole.column_names}
    from astropy.table import Table

    table = Table.read(path)
    table.convert_bytestring_to_unicode()
    return {
        n: np.ma.filled(table[n], np.nan) if table[n].dtype.kind == "f" else np.asarray(table[n])
        for n in table.colnames
    }


def test_batch_to_every_format(batch: Path, tmp_path: Path) -> None:
    for suffix in ("csv", "parquet", "fits", "ecsv"):
        out = tmp_path / f"p.{suffix}"
        result = run("period", batch, *GRID, "--peaks", "2", "-o", out)
        assert result.exit_code == 0, result.stderr
        table = read(out)
        assert [str(i) for i in table["id"]] == ["a", "b", "c", "short"]
        # Half the width of a peak, P^2 / (2 T), is the most a period can be off in its own peak.
        assert (np.abs(table["period"][:3] - PERIODS) < PERIODS**2 / 240).all()
        assert (table["period_2"][:3] != table["period"][:3]).all()
        np.testing.assert_allclose(table["period"][:3], 1 / table["frequency"][:3], rtol=1e-14)
        assert np.isnan(table["period"][3])
        assert [str(s) for s in table["status"]] == ["ok", "ok", "ok", "too_few_points"]
        assert table["n_used"].tolist() == [80, 80, 80, 2]
    assert "id = name, time = mjd, mag = mag, err = magerr" in result.stderr
    assert "1 of 4 without a period: 1 (too few usable rows)" in result.stderr
    assert re.search(r"^a +0\.31\d+ ", result.stdout, re.M)


def test_no_object_with_a_period(tmp_path: Path) -> None:
    """Exit code 1 and a line with the reasons, also with --quiet; the table has the reason of each object."""
    one, two, out = tmp_path / "one.csv", tmp_path / "two.csv", tmp_path / "p.csv"
    one.write_text("time,mag\n1,2\n2,2\n")
    two.write_text("id,time,mag\n" + "a,1,2\na,2,3\n" + "".join(f"b,{i},2\n" for i in range(20)))
    for files, line in (
        ((one,), "skysieve: the object has no period: too few usable rows"),
        ((two,), "skysieve: none of 2 objects has a period: 1 (too few usable rows), 1 (y is constant)"),
        ((one, two), "skysieve: none of 3 objects has a period: 2 (too few usable rows), 1 (y is constant)"),
    ):
        for more in ((), ("-q",), ("--resume",)):
            result = run("period", *files, *GRID, "-o", out, "--overwrite", *more)
            assert result.exit_code == 1
            assert result.stderr.splitlines()[-1] == line
            assert "without a period" not in result.stderr
            assert "ok" not in read(out)["status"]


def test_asteroid_prints_the_rotation_in_hours(test_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "ida.csv"
    file = test_data / "lomb_scargle" / "243_normalized_ztf_filter2.txt"
    result = run(
        "period", file, "--asteroid", "--min-period", "2", "--max-period", "96", "--samples-per-peak", "10", "-o", out
    )
    assert result.exit_code == 0, result.stderr
    assert "rotation period [h]" in result.stdout
    assert re.search(r"^1 +4\.63[34]", result.stdout, re.M)
    table = read(out)
    assert abs(table["rotation_period_h"][0] - 4.634) < 0.001
    np.testing.assert_allclose(table["rotation_period_h"], 48 / table["frequency"], rtol=1e-14)


def test_units(batch: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    for options, column, scale in (
        (("--hours", "--min-period", "4.8", "--max-period", "120"), "period_h", 24),
        (("--period-unit", "min", "--min-period", "288", "--max-period", "7200"), "period_min", 1440),
        (("--min-period", "0.2", "--max-period", "5"), "period", 1),
    ):
        assert run("period", batch, *options, "-q", "-o", out, "--overwrite").exit_code == 0
        np.testing.assert_allclose(read(out)[column][:3], PERIODS * scale, rtol=0.01)
    seconds = tmp_path / "s.csv"
    rows = np.genfromtxt(batch, delimiter=",", names=True, dtype=None, encoding="utf-8")
    write_table({"id": rows["name"], "t": rows["mjd"] * 86400, "y": rows["mag"]}, seconds)
    assert run("period", seconds, "--time-unit", "s", *GRID, "-q", "-o", out, "--overwrite").exit_code == 0
    assert np.abs(read(out)["period"][0] - 0.31) < 0.01


def test_the_first_line_has_the_range(batch: Path) -> None:
    rows = np.genfromtxt(batch, delimiter=",", names=True, dtype=None, encoding="utf-8")
    spans = np.array([np.ptp(rows["mjd"][rows["name"] == name]) for name in "abc"])
    words = (
        r"4 objects, 242 rows; periods of (\S+) to (\S+) d \(up to ([\d,]+) frequencies an object(; --min-period.*)?\)"
    )
    # one hour to the longest time span, ten frequencies in 1/T; shown to 4 digits
    open_ended = re.search(words, run("period", batch).stderr.splitlines()[0])
    assert open_ended
    np.testing.assert_allclose([float(open_ended[i]) for i in (1, 2)], [1 / 24, spans.max()], rtol=1e-3)
    assert int(open_ended[3].replace(",", "")) == 1 + round((24 - 1 / spans.max()) * 10 * spans.max())
    assert open_ended[4] == "; --min-period and --max-period set others"
    given = re.search(words, run("period", batch, *GRID).stderr.splitlines()[0])
    assert given
    assert given.groups() == ("0.2", "5", "4,000", None)
    hours = run("period", batch, "--asteroid", "--min-period", "2").stderr.splitlines()[0]
    assert f"rotation periods of 2 to {48 * spans.max():.4g} h (up to" in hours


def test_options_reach_the_search(batch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def stop(_plan: Any, _t: Any, _y: Any, dy: Any, **_options: Any) -> None:
        seen["dy"] = dy
        raise ValueError("seen enough")

    def made(plan: Any, **options: Any) -> None:
        seen.update(options)
        whole(plan, **options)

    whole = skysieve.LombScarglePlan.__init__
    monkeypatch.setattr(skysieve.LombScarglePlan, "__init__", made)
    monkeypatch.setattr(skysieve.LombScarglePlan, "execute", stop)
    options = ("--no-fit-mean", "--normalization", "psd", "--peaks", "7", "--method", "direct", "--dtype", "float32")
    result = run("period", batch, *options, "--device", "cpu", "--samples-per-peak", "9", "--fmax", "3", "--no-err")
    assert (result.exit_code, "skysieve: seen enough" in result.stderr) == (2, True)
    assert not seen["fit_mean"]
    assert not seen["return_power"]
    want = {"normalization": "psd", "n_peaks": 7, "method": "direct", "dtype": "float32", "device": "cpu", "dy": None}
    want |= {"samples_per_peak": 9, "fmin": "auto", "fmax": 3.0, "nf": None}
    assert {k: seen[k] for k in want} == want


def test_one_bad_file_does_not_stop_the_others(batch: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.csv"
    empty.touch()
    out = tmp_path / "p.csv"
    result = run("period", empty, batch, tmp_path / "none.csv", *GRID, "-o", out)
    assert result.exit_code == 1
    assert f"skysieve: {empty}: is empty" in result.stderr
    assert "none.csv: No such file" in result.stderr
    table = read(out)
    assert set(table["file"]) == {"batch.csv"}
    assert len(table["id"]) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--mag", "flux"), "no column 'flux' for --mag; the columns are: name, mjd, mag, magerr"),
        (("--fmin", "1", "--max-period", "3"), "periods or as frequencies, not both"),
        (("--min-period", "3", "--max-period", "1"), "--min-period 3 is not below --max-period 1"),
        (("--fmin", "0"), "--fmin 0: expected a positive number"),
        (("--fmin", "1", "--fmax", "1"), "not below"),
        (("--fmin", "1", "--fmax", "2", "--nf", "1"), "nf"),
        (("--fmin", "1e-3", "--fmax", "1e6", "--nf", "1000000000000"), "1000000000000|1e\\+?12|1,000,000,000,000"),
        (("--device", "tpu"), "tpu"),
        (("--hours", "--period-unit", "s"), "contradict"),
        (("-o", "out.txt"), "--output out.txt: expected one of csv, parquet, fits, ecsv, json"),
        (("--resume", "--overwrite"), "--resume needs -o"),
        (("--samples-per-peak", "1e-308"), "--samples-per-peak 1e-308; at least 1e-06 is expected"),
        (("-o", "nowhere/out.csv"), "nowhere/out.csv: there is no folder nowhere"),
        (("-o", "y" * 300 + ".csv"), r"skysieve: y+\.csv: File name too long"),
        (("-o", "y" * 300 + ".csv", "--resume"), r"skysieve: y+(\.csv)?\S*: File name too long"),
        (("--plot", "y" * 300 + ".png"), r"skysieve: y+\.png: File name too long"),
        (("--band", "r"), "found no band column"),
    ],
)
def test_user_mistakes(batch: Path, options: tuple[str, ...], message: str) -> None:
    result = run("period", batch, *options)
    assert result.exit_code == 2
    complaint = [line for line in result.stderr.splitlines() if line.startswith("skysieve:")]
    assert len(complaint) == 1
    assert re.search(message, complaint[0])
    assert "Traceback" not in result.stderr


def test_the_data_are_not_overwritten(batch: Path) -> None:
    before = batch.read_bytes()
    result = run("period", batch, "-o", batch)
    assert (result.exit_code, batch.read_bytes() == before) == (2, True)
    assert "is one of the files to read" in result.stderr


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    """Not as the pictures that ":mag:" and ":star:" stand for in some programs."""
    file = tmp_path / ":star:.csv"
    rows = "".join(f":mag:,{t},{t % 3}\nb,{t},{t % 4}\n" for t in range(20))
    file.write_text("id,mjd,mag\n" + rows)
    result = run("period", file, "--fmin", "0.1", "--fmax", "0.4")
    assert result.exit_code == 0
    assert ":mag:" in result.stdout
    file.write_text("mjd:mag\n1:2\n")
    assert "mjd:mag" in run("period", file).stderr
    assert ":star:.csv" in run("period", tmp_path / "no" / ":star:.csv").stderr


def test_further_tables_of_a_file_are_mentioned(tmp_path: Path) -> None:
    from astropy.io import fits
    from astropy.table import Table

    first, second = Table({"a": [1, 2]}), Table({"time": np.arange(9.0), "mag": np.arange(9.0) % 4})
    fits.HDUList([fits.PrimaryHDU(), fits.BinTableHDU(first), fits.BinTableHDU(second)]).writeto(tmp_path / "a.fits")
    message = " ".join(run("period", tmp_path / "a.fits").stderr.split())
    assert "found no column of times" in message
    assert "the file holds 2 tables, of which the first is read" in message


def test_chunks_give_what_one_search_gives(batch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from skysieve.periodogram import survey as search

    out = tmp_path / "p.csv"
    run("period", batch, "--max-period", "10", "-q", "-o", out)
    before = out.read_text()
    monkeypatch.setattr(search, "MAX_ROWS", 1)
    run("period", batch, "--max-period", "10", "-q", "-o", out, "--overwrite")
    assert out.read_text() == before


def test_a_file_that_cannot_be_searched_does_not_stop_the_others(batch: Path, tmp_path: Path) -> None:
    """Times of another unit that are taken for days give an absurd grid: an error; the other file is still written."""
    odd = tmp_path / "odd.csv"
    write_table({"t": 1.7e9 + 1e10 * np.arange(20), "mag": np.arange(20) % 7}, odd)
    out = tmp_path / "p.csv"
    result = run("period", batch, odd, "--fmin", "0.2", "--fmax", "5", "-o", out)
    assert result.exit_code == 1
    assert re.search(rf"skysieve: {re.escape(str(odd))}: the grid would have 4\.5\de\+12 frequencies", result.stderr)
    assert [str(i) for i in read(out)["id"]] == ["a", "b", "c", "short"]


@pytest.mark.slow
def test_files_of_one_name_are_listed_with_their_folders(batch: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    twin = tmp_path / "other" / batch.name
    twin.parent.mkdir()
    twin.write_bytes(batch.read_bytes())
    out = tmp_path / "p.csv"
    result = run("period", batch, twin, *GRID, "-o", out, "--plot", tmp_path / "plots")
    assert "of 2 files" in result.stderr
    assert read(out)["file"].tolist() == [str(batch)] * 4 + [str(twin)] * 4
    assert len(list((tmp_path / "plots").iterdir())) == 6


def test_bad_cell_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("time,mag\n1,2\n2,x\n")
    result = run("period", path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"skysieve: {path}: line 3: 'x' in column 'mag' is not a number\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_keeps_what_is_done(
    number: signal.Signals, batch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, and the signal of batch systems."""
    from skysieve.periodogram.lightcurves.io import LightCurves

    whole = skysieve.LombScarglePlan.execute
    calls: list[int] = []

    def interrupted(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(number)
        return whole(*args, **options)

    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = signal.signal(number, usual[number])
    monkeypatch.setattr(skysieve.LombScarglePlan, "execute", interrupted)
    monkeypatch.setattr(LightCurves, "stop_after", lambda self, start, max_objects, max_rows: start + 1)
    out = tmp_path / "p.csv"
    try:
        result = run("period", batch, *GRID, "-o", out)
        assert signal.getsignal(number) is usual[number]
    finally:
        signal.signal(number, before)
    assert result.exit_code == 130
    assert "interrupted; the periods of the 2 objects that were done are in" in result.stderr
    assert not out.exists()
    assert read(tmp_path / "p.partial.csv")["id"].tolist() == ["a", "b"]


def test_plots(batch: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "plots"
    result = run("period", batch, *GRID, "--plot", folder)
    assert result.exit_code == 0, result.stderr
    pictures = sorted(folder.iterdir())
    assert [p.name for p in pictures] == ["batch_a.png", "batch_b.png", "batch_c.png"]
    assert all(p.read_bytes().startswith(b"\x89PNG") and p.stat().st_size > 10_000 for p in pictures)


@pytest.mark.slow
def test_no_folder_is_left_without_pictures(tmp_path: Path) -> None:
    """Neither where nothing can be read nor where no object has a period; a folder of the user's stays."""
    pytest.importorskip("matplotlib")
    few, bad, folder, mine = (tmp_path / name for name in ("few.csv", "bad.csv", "plots", "mine"))
    few.write_text("mjd,mag,magerr\n59000,15,0.1\n59001,15.2,0.1\n")
    bad.write_text("nothing\n1\n")
    mine.mkdir()
    for target in (folder, mine):
        for file, code in ((few, 1), (bad, 2)):
            result = run("period", file, *GRID, "--plot", target)
            assert result.exit_code == code, result.stderr
            assert "pictures" not in result.stderr
    assert not folder.exists()
    assert mine.is_dir()


@pytest.mark.slow
def test_a_picture_that_cannot_be_written_costs_itself(batch: Path, tmp_path: Path) -> None:
    """The table and the other pictures are written all the same."""
    pytest.importorskip("matplotlib")
    folder, out = tmp_path / "plots", tmp_path / "p.csv"
    (folder / "batch_b.png").mkdir(parents=True)
    result = run("period", batch, *GRID, "--plot", folder, "-o", out, "--overwrite")
    assert result.exit_code == 1
    message = result.stderr.replace("\n", "")
    assert f"cannot write {folder / 'batch_b.png'}: this is a folder, expected the name of a file" in message
    assert len(read(out)["id"]) == 4
    assert sorted(p.name for p in folder.iterdir() if p.is_file()) == ["batch_a.png", "batch_c.png"]


@pytest.mark.slow
def test_any_name_of_an_object_gives_a_picture(tmp_path: Path) -> None:
    """Names longer than those of files, and signs that would be mathematics."""
    pytest.importorskip("matplotlib")
    made = simulate_light_curves(PERIODS, 0.8, [80, 80, 80], seed=4)
    ids = np.repeat(["\u00e9" * 300, "\u00e9" * 300 + "b", "a$_$"], made.n_obs)
    write_table({"name": ids, "mjd": made.t, "mag": made.y, "magerr": made.dy}, tmp_path / "a.csv")
    result = run("period", tmp_path / "a.csv", *GRID, "--plot", tmp_path / "plots")
    assert result.exit_code == 0, result.stderr
    names = sorted((p.name for p in (tmp_path / "plots").iterdir()), key=len)
    assert [len(name.encode()) for name in names] == [len("a_a___.png"), 204, 206]


def test_quiet_and_many_rows(tmp_path: Path) -> None:
    made = simulate_light_curves(np.full(25, 0.5), 0.8, np.full(25, 20), seed=1)
    path = tmp_path / "many.txt"
    rows = zip(np.repeat(np.arange(25), made.n_obs), made.t, made.y, made.dy, strict=True)
    path.write_text("".join(f"{i}, {t}, {y}, {e}\n" for i, t, y, e in rows))
    result = run("period", path, *GRID)
    assert len(re.findall(r"^\d+ ", result.stdout, re.M)) == 20
    assert "... and 5 more" in result.stdout
    assert "25 objects, 500 points" in result.stderr
    silent = run("period", path, *GRID, "-q")
    assert (silent.exit_code, silent.stdout, silent.stderr) == (0, "", "")


def test_progress_on_a_terminal_and_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from rich.console import Console

    from skysieve.periodogram.command import report

    def shown(terminal: bool) -> str:
        text = io.StringIO()
        console = Console(file=text, force_terminal=terminal, width=100)
        with report.progress_bar(console, "stars.csv", 4000) as progress:
            assert progress is not None
            progress(1000, 4000)
            progress(2000, 4000)
        return text.getvalue()

    bar = shown(True)
    assert "2,000 of 4,000 objects" in bar
    assert "left" in bar
    assert shown(False) == "", "nothing within the first seconds"
    monkeypatch.setattr(report, "PLAIN_EVERY", 0.0)
    assert re.search(r"stars\.csv: 2,000 of 4,000 objects, [\d,]+ objects/s, .* left", shown(False))


def test_standard_input_and_output(batch: Path, tmp_path: Path) -> None:
    """Nothing but the table is on the standard output, in any format; what is read need not be text."""
    out = tmp_path / "p.csv"
    assert run("period", batch, *GRID, "-q", "-o", out).exit_code == 0
    given = CliRunner().invoke(app, ["period", "-", *GRID, "-o", "-"], input=batch.read_bytes(), catch_exceptions=False)
    assert given.exit_code == 0
    assert given.stdout == out.read_text()
    assert "stdin: 4 objects, 242 rows" in given.stderr
    rows = json.loads(run("period", batch, *GRID, "-o", "-", "--format", "json").stdout)
    assert [row["id"] for row in rows] == ["a", "b", "c", "short"]
    assert rows[3]["period"] is None
    fits = CliRunner().invoke(app, ["period", str(batch), *GRID, "-o", "-", "--format", "fits"]).stdout_bytes
    assert fits.startswith(b"SIMPLE  =")
    parquet = CliRunner().invoke(app, ["period", "-", *GRID, "-q"], input=fits, catch_exceptions=False)
    assert "found no column" in parquet.stderr  # of times: the table of periods has none
    for options, message in (
        (("--format", "json"), "--format needs -o"),
        (("--plot-all",), "--plot-all needs --plot"),
        (("--nf", "100", "--samples-per-peak", "5"), "--samples-per-peak cannot be combined with --nf"),
        (("--fmax", "1e9", "--samples-per-peak", "1e5"), "or --samples-per-peak"),
        (("-o", "-", "--format", "xls"), "--format xls: expected one of csv, parquet, fits, ecsv, json"),
        (("-o", "-", "--resume"), "--resume needs -o"),
    ):
        assert message in run("period", batch, *options).stderr
    assert "- is given twice" in run("period", "-", "-").stderr


def test_errors_of_the_search_name_options(batch: Path) -> None:
    """The options that were given, and those of periods for a range that was not."""
    advice = "Lower the highest frequency ({}), --nf or --samples-per-peak, or check"
    finest = ("--samples-per-peak", "1e12")
    for options, message in (
        (("--min-period", "1e-12"), advice.format("--min-period")),
        (("--fmax", "1e12"), advice.format("--fmax")),
        (finest, advice.format("--min-period")),
        ((*finest, "--dry-run"), advice.format("--min-period")),
        (("--fmin", "1", "--fmax", "2", "--nf", "1"), "--nf 1; a grid from --fmin to --fmax needs at least 2"),
        (("--method", "finufft", "--nterms", "2"), "use 'auto', 'direct' or 'nufft' with other --nterms"),
    ):
        result = run("period", batch, *options)
        assert result.exit_code != 0
        assert message in result.stderr
        assert result.stdout == ""


def test_wrong_options_are_refused_before_files_are_read(
    batch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skysieve.core.device._load_driver", lambda: None)
    monkeypatch.setattr("skysieve.core.device._ask_driver", lambda: (None, 0))
    missing = tmp_path / "missing.csv"
    for options, message in (
        (("--nterms", "40"), "--nterms 40: expected 1 to 32"),
        (("--peaks", "1001"), "--peaks 1001: expected 1 to 1000"),
        (("--memory", "x"), "--memory 'x': expected a share such as '80%', an amount"),
        (("--device", "gpu"), "--device 'gpu': expected 'auto', 'cpu', 'cuda', 'cuda:N'"),
        (("--device", "cuda:9"), "--device cuda:9: no CUDA driver was found"),
        (("--nf", "1"), "--nf 1; a grid from --max-period to --min-period needs at least 2"),
        (("--samples-per-peak", "-1"), "--samples-per-peak -1; a positive number is expected"),
        (("--method", "finufft", "--nterms", "2"), "--method 'finufft' has one term"),
    ):
        for more in ((), ("--dry-run",)):
            result = run("period", missing, *options, *more)
            assert result.exit_code == 2
            assert result.stderr.startswith(f"skysieve: {message}")
            assert len(result.stderr.splitlines()) == 1


def test_a_range_without_frequencies(batch: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    result = run("period", batch, "--fmax", "1e-9", "-o", out)
    assert result.exit_code == 2
    assert "the shortest period, 1e+09 d, is not below the longest period of the automatic range, " in result.stderr
    assert result.stderr.rstrip().endswith("give that end of the range too (--max-period or --fmin)")
    assert not out.exists()
    result = run("period", batch, "--fmin", "1", "--fmax", "1.0000001")
    assert "(up to 1 frequency an object)" in result.stderr
    result = run("period", batch, "--fmin", "1", "--fmax", "4", "--samples-per-peak", "0.01")
    assert "0.2 or less is usual (a larger --nf or --samples-per-peak)" in result.stderr


def test_normalizations_without_probabilities(batch: Path) -> None:
    for options, why in (
        (("--normalization", "psd", "--no-err"), "'psd' without errors depends on the unknown scatter"),
        (("--normalization", "scargle"), "'scargle' depends on the unknown scatter of the values"),
    ):
        result = run("period", batch, *GRID, *options)
        assert f"note: no false-alarm probabilities: the power of normalization {why}" in result.stderr
        assert "bootstrap" not in result.stderr
    assert "probabilities" not in run("period", batch, *GRID, "--normalization", "psd").stderr


def test_many_peaks_have_only_the_words_of_their_aliases(batch: Path, tmp_path: Path) -> None:
    """Each of the columns had all words, whose number grows with that of the peaks too: 1,000 peaks took 80 s."""
    out = tmp_path / "p.ecsv"
    assert run("period", batch, "--peaks", "150", "-o", out).exit_code == 0
    few = tmp_path / "few.ecsv"
    assert run("period", batch, "--peaks", "3", "-o", few).exit_code == 0
    many, three = read(out), read(few)
    for name in ("alias", "alias_2", "alias_3", "period_3"):
        np.testing.assert_array_equal(many[name], three[name])
    assert any("#" in text for k in range(4, 151) for text in many[f"alias_{k}"].tolist())
    words = Words(np.array([[2, 0], [2, 1]]), np.array(["", "a", "b", "c"]))
    columns, _ = table_columns({}, {"alias": words}, 2)
    assert [columns[name].words.tolist() for name in ("alias", "alias_2")] == [["b"], ["", "a"]]
    assert [columns[name].text.tolist() for name in ("alias", "alias_2")] == [["b", "b"], ["", "a"]]


def test_what_exists_is_replaced_on_demand(batch: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    out.write_text("mine")
    result = run("period", batch, *GRID, "-o", out)
    assert (result.exit_code, out.read_text()) == (2, "mine")
    assert f"{out}: exists; use --overwrite" in result.stderr.replace("\n", "")
    result = run("period", batch, *GRID, "-o", out, "--overwrite")
    assert f"wrote {out}: 4 objects" in result.stderr.replace("\n", "")
    assert len(read(out)["id"]) == 4


@pytest.mark.slow
def test_a_picture_of_one_object_is_a_file(batch: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = np.genfromtxt(batch, delimiter=",", names=True, dtype=None, encoding="utf-8")
    one = tmp_path / "one.csv"
    write_table({name: rows[name][rows["name"] == "a"] for name in ("mjd", "mag", "magerr")}, one)
    picture = tmp_path / "one.pdf"
    result = run("period", one, *GRID, "--plot", picture)
    assert result.exit_code == 0
    assert picture.read_bytes().startswith(b"%PDF")
    assert f"wrote {picture}: 1 picture" in result.stderr.replace("\n", "")
    for files, message in (
        ((one,), "exists; use --overwrite"),
        ((batch,), "expected a folder, because"),
        ((one, one), "expected a folder, because there are several files"),
    ):
        target = picture if files == (one,) else tmp_path / "new.png"
        refused = run("period", *files, *GRID, "--plot", target)
        assert refused.exit_code == 2
        assert message in refused.stderr.replace("\n", " ")
    assert not (tmp_path / "new.png").exists()
    mistyped = run("period", one, *GRID, "--plot", tmp_path / "new.pgn").stderr.replace("\n", " ")
    assert "expected a folder, or the name of a picture, such as new.png" in mistyped
    folder = tmp_path / "plots"
    assert run("period", one, *GRID, "--plot", folder).exit_code == 0
    assert "the folder holds pictures (one.png); use --overwrite" in run("period", one, *GRID, "--plot", folder).stderr
    assert run("period", one, *GRID, "--plot", folder, "--overwrite").exit_code == 0
    assert [p.name for p in folder.iterdir()] == ["one.png"]


def test_how_much_is_printed(batch: Path) -> None:
    options = (*GRID, "--device", "cpu", "--threads", "1", "--memory", "1 GiB")
    assert re.search(r"4 objects by \w+(, \w+)* on cpu in float64: \S+ s", run("period", batch, *options, "-v").stderr)
    assert " on cpu in float64" not in run("period", batch, *options).stderr
    both = run("period", batch, "-q", "-v")
    assert (both.exit_code, both.stderr) == (2, "skysieve: --quiet and --verbose: expected at most one of them\n")
    wrong = run("period", batch, *GRID, "--memory", "much")
    assert wrong.exit_code == 2
    assert "--memory 'much'" in wrong.stderr


@pytest.mark.parametrize(("seconds", "shown"), [(59.96, "60.0 s"), (3600, "1 h 0 min"), (119.7, "2 min 0 s")])
def test_clock(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


def test_info_and_version() -> None:
    result = run("info")
    assert result.exit_code == 0
    packages = ("numpy", "numba", "finufft", "astropy", "h5py", "ducc0", "bokeh", "cupy")
    for word in (*packages, "cpu", "periodogram methods", "direct, nufft"):
        assert word in result.stdout
    facts = json.loads(run("info", "--json").stdout)
    assert facts["skysieve"] == skysieve.__version__
    assert facts["packages"]["numpy"] == np.__version__
    assert facts["devices"][0]["name"] == "cpu"
    assert facts["devices"][0]["cores"] >= 1
    assert facts["methods"]["periodogram"] == ["auto", "direct", "nufft", "finufft"]
    assert (facts["gpu_problem"] is None) == (len(facts["devices"]) > 1)
    assert run("--version").stdout == f"skysieve {skysieve.__version__}\n"


def test_the_command_line_is_light() -> None:
    """Help must not wait for numba or astropy."""
    code = "import sys, skysieve.cli; print({'numba', 'astropy', 'matplotlib', 'scipy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment())
    assert done.stdout.strip() == "set()"


def test_a_command_loads_what_it_needs(batch: Path, tmp_path: Path) -> None:
    """Neither pandas, which PyArrow's conversions import, nor the commands of other domains."""
    pytest.importorskip("pyarrow")
    data = np.genfromtxt(batch, delimiter=",", names=True, dtype=None, encoding="utf-8")
    table, out = tmp_path / "a.parquet", tmp_path / "p.parquet"
    write_table({name: data[name] for name in data.dtype.names}, table)
    code = (
        "import sys; from skysieve.cli import main; sys.argv[0] = 'skysieve'\n"
        "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code\n"
        "print({'pandas', 'astropy', 'matplotlib', 'skysieve.sphere', 'skysieve.fstat', 'skysieve.dedispersion'} "
        "& set(sys.modules))"
    )
    command = [sys.executable, "-c", code, "period", str(table), *GRID, "-q", "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=_environment())
    assert done.stdout.strip() == "set()"
    assert out.exists()


@pytest.mark.parametrize("command", ["period", "smooth", "dedisp", "fstat", "info", "demo"])
def test_one_command_or_all(command: str) -> None:
    """The command line of one command has the help of the one with all commands, and knows no other command."""
    from skysieve.cli import app, application

    alone, every = (CliRunner().invoke(line, [command, "--help"]) for line in (application(command), app))
    assert alone.exit_code == every.exit_code == 0
    assert alone.stdout == every.stdout
    unknown = CliRunner().invoke(application("perod"), ["perod"])
    assert unknown.exit_code == 2
    assert "Did you mean" in unknown.stderr


def _environment() -> dict[str, str]:
    import os

    return os.environ | {"PYTHONPATH": str(Path(skysieve.__file__).parents[1])}


@pytest.mark.slow
def test_demo(tmp_path: Path) -> None:
    result = run("demo", "-o", tmp_path / "d")
    assert result.exit_code == 0, result.stdout
    assert "period found 0.93697 d, known 0.93697 d" in result.stdout
    assert {"asteroid.png", "asteroids.png", "star.png"} <= {p.name for p in (tmp_path / "d").iterdir()}
    again = run("demo", "-o", tmp_path / "d")
    assert again.exit_code == 2
    assert "exists; use --overwrite" in again.stderr.replace("\n", " ")


@pytest.mark.slow
def test_demo_fails_below_the_stated_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from skysieve.periodogram.command import demo

    whole: Callable[..., Any] = skysieve.lombscargle

    def shuffled(t: Any, y: Any, dy: Any = None, **options: Any) -> Any:
        if options.get("nf") == demo.NF:
            y = np.random.default_rng(0).permutation(y)
        return whole(t, y, dy, **options)

    monkeypatch.setattr(skysieve, "lombscargle", shuffled)
    monkeypatch.setattr(demo, "_star", lambda *_: [])
    monkeypatch.setattr(demo, "_draws", lambda: False)
    result = run("demo", "-o", tmp_path / "d")
    assert result.exit_code == 1
    assert re.search(r"FAILED: asteroids with 100 points or more: \d+\.\d% recovered, 95% expected", result.stdout)


@pytest.mark.slow
def test_the_picture_of_an_object_of_three_rows(tmp_path: Path) -> None:
    """They are enough for a search, and so for its picture."""
    pytest.importorskip("matplotlib")
    made = simulate_light_curves(PERIODS[:2], 0.8, [3, 80], seed=4)
    write_table(
        {"name": np.repeat(["few", "many"], made.n_obs), "mjd": made.t, "mag": made.y, "magerr": made.dy},
        tmp_path / "a.csv",
    )
    result = run("period", tmp_path / "a.csv", *GRID, "--plot", tmp_path / "plots", "-o", tmp_path / "p.csv")
    assert result.exit_code == 0, result.stderr
    assert sorted(p.name for p in (tmp_path / "plots").iterdir()) == ["a_few.png", "a_many.png"]
