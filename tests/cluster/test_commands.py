"""The commands that can be divided: the same table as without --cluster; bad inputs do not stop the others."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from skysieve.cli import app
from skysieve.periodogram.command import partitions as period_partitions

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def run(*words, code=0):
    """What a command prints on standard error."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.stderr


def curves(path, n, rows=30, seed=0, lists=False, text=False, bands=False, groups=None, error="magerr"):
    """A Parquet file of stars; ``lists``: one row a star."""
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0, 50, (n, rows)), axis=1)
    y = 15 + 0.3 * np.sin(2 * np.pi * t / rng.uniform(0.5, 5, (n, 1))) + 0.05 * rng.standard_normal((n, rows))
    ids = np.arange(n) + 1000 * seed
    ids = np.array([f"s{i}" for i in ids]) if text else ids
    values = {"mjd": t, "mag": y, error: np.full((n, rows), 0.05)}
    if lists:
        edges = np.arange(n + 1) * rows
        columns = {name: pa.ListArray.from_arrays(edges, v.ravel()) for name, v in values.items()} | {"id": ids}
    else:
        columns = {"id": np.repeat(ids, rows)} | {name: v.ravel() for name, v in values.items()}
        if bands:
            columns["band"] = np.array(["g", "r"])[np.arange(n * rows) // 3 % 2]
    pq.write_table(pa.table(columns), path, row_group_size=groups or n * rows)


RANGE = ("--min-period", "0.5", "--max-period", "5", "--device", "cpu")


@pytest.mark.few
@pytest.mark.parametrize(
    "form",
    [{}, {"lists": True, "groups": 3}, {"text": True, "groups": 101}, {"bands": True, "groups": 50}],
    ids=["rows", "lists", "text", "bands"],
)
def test_period_in_partitions_gives_the_same_table(form, tmp_path):
    curves(tmp_path / "a.parquet", 11, **form)
    curves(tmp_path / "b.parquet", 7, seed=1, **form)
    files = (tmp_path / "a.parquet", tmp_path / "b.parquet")
    run("period", *files, *RANGE, "-o", tmp_path / "one.parquet", "-q")
    run("period", *files, *RANGE, "-o", tmp_path / "two.parquet", "--cluster", "serial", "--partition", "4")
    one, two = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("one", "two"))
    assert len(one) == 18
    assert one.equals(two)
    assert one.schema.equals(two.schema, check_metadata=True)
    run("period", *files, *RANGE, "-o", tmp_path / "one.csv", "-q")
    run("period", *files, *RANGE, "-o", tmp_path / "two.csv", "--cluster", "serial", "--partition", "5")
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


def test_small_files_are_searched_together_and_a_bad_one_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(period_partitions, "MOST_FILES", 2)
    for k in range(3):
        curves(tmp_path / f"{k}.parquet", 2, seed=k)
    (tmp_path / "bad.csv").write_text("nothing\n")
    files = [*sorted(tmp_path.glob("?.parquet")), tmp_path / "bad.csv", tmp_path / "none.csv"]
    out = tmp_path / "out"
    said = run("period", *files, *RANGE, "-o", out, "--cluster", "serial", code=1)
    assert f"{tmp_path / 'bad.csv'}: " in said
    assert f"{tmp_path / 'none.csv'}: No such file" in said
    assert len(list(out.glob("part-*.parquet"))) == 3
    assert json.loads((out / "manifest.json").read_text())["rows"] == 6


def test_bad_rows_are_left_out(tmp_path):
    curves(tmp_path / "a.parquet", 6)
    table = pq.read_table(tmp_path / "a.parquet").to_pydict()
    table["mag"][0:30] = [float("nan")] * 30
    table["mag"][35] = None
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    run("period", tmp_path / "a.parquet", *RANGE, "-o", tmp_path / "one.csv", "-q")
    run("period", tmp_path / "a.parquet", *RANGE, "-o", tmp_path / "two.csv", "--cluster", "serial", "--partition", "2")
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


@pytest.mark.few
@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_ids_of_several_types_lose_no_digit(form, tmp_path, monkeypatch):
    monkeypatch.setattr(period_partitions, "MOST_FILES", 1)
    kinds = {"a": (np.int32, 0), "b": (np.int64, 2**62 + 1), "c": (np.uint64, 2**63 + 1)}
    for name, (kind, first) in kinds.items():
        curves(tmp_path / f"{name}.parquet", 2)
        table = pq.read_table(tmp_path / f"{name}.parquet")
        ids = table["id"].to_numpy().astype(kind) + kind(first)
        pq.write_table(table.set_column(0, "id", pa.array(ids)), tmp_path / f"{name}.parquet")
    for names, text in (("ab", False), ("abc", True)):
        files = [tmp_path / f"{name}.parquet" for name in names]
        one, two = (tmp_path / f"{n}-{names}.{form}" for n in ("one", "two"))
        run("period", *files, *RANGE, "-o", one, "-q")
        run("period", *files, *RANGE, "-o", two, "--cluster", "serial")
        if form == "csv":
            assert one.read_bytes() == two.read_bytes()
            ids = [line.split(",")[1] for line in two.read_text().splitlines()[1:]]
        else:
            found = pq.read_table(two)
            assert found.equals(pq.read_table(one))
            assert found.schema.field("id").type == (pa.string() if text else pa.int64())
            ids = list(map(str, found["id"].to_pylist()))
        assert ids == [str(kinds[name][1] + k) for name in names for k in range(2)]


def test_partitions_without_a_row_of_the_band_have_no_objects(tmp_path):
    curves(tmp_path / "a.parquet", 9, bands=True)
    table = pq.read_table(tmp_path / "a.parquet")
    bands = pa.array(np.repeat(["g", "r", "g"], 90))
    pq.write_table(table.set_column(4, "band", bands), tmp_path / "a.parquet", row_group_size=50)
    words = ("period", tmp_path / "a.parquet", *RANGE, "--band", "r")
    run(*words, "-o", tmp_path / "one.parquet", "-q")
    for form in ("parquet", "csv"):
        run(*words, "-o", tmp_path / f"two.{form}", "--cluster", "serial", "--partition", "2")
    assert pq.read_table(tmp_path / "one.parquet").equals(pq.read_table(tmp_path / "two.parquet"))
    assert pq.read_table(tmp_path / "two.parquet")["id"].to_pylist() == [3, 4, 5]
    assert len((tmp_path / "two.csv").read_text().splitlines()) == 4


@pytest.mark.slow
def test_small_files_between_large_ones_stay_in_order(tmp_path):
    for name, n in (("a", 9), ("b", 2), ("c", 3), ("d", 9), ("e", 2)):
        curves(tmp_path / f"{name}.parquet", n)
    files = sorted(tmp_path.glob("?.parquet"))
    run("period", *files, *RANGE, "-o", tmp_path / "one.csv", "-q")
    run("period", *files, *RANGE, "-o", tmp_path / "two.csv", "--cluster", "serial", "--partition", "4")
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


def test_partitions_of_a_file_without_bands_are_refused_as_the_file_is(tmp_path):
    curves(tmp_path / "a.parquet", 4)
    words = (
        "period",
        tmp_path / "a.parquet",
        *RANGE,
        "--multiband",
        "offsets",
        "-o",
        tmp_path / "p.csv",
        "--overwrite",
    )
    for more in ((), ("--cluster", "serial"), ("--cluster", "serial", "--partition", "2")):
        said = run(*words, *more, code=2)
        assert f"{tmp_path / 'a.parquet'}: --multiband offsets: found no band column" in said
        assert not (tmp_path / "p.csv").exists()


def test_a_file_without_rows_is_left_out(tmp_path):
    curves(tmp_path / "a.parquet", 4)
    pq.write_table(pq.read_table(tmp_path / "a.parquet")[:0], tmp_path / "b.parquet")
    files = (tmp_path / "a.parquet", tmp_path / "b.parquet")
    said = run("period", *files, *RANGE, "-o", tmp_path / "p", "--cluster", "serial", "--partition", "3", code=1)
    assert f"{tmp_path / 'b.parquet'}: has no rows" in said
    assert json.loads((tmp_path / "p" / "manifest.json").read_text())["rows"] == 4


def test_a_run_continues_from_another_folder(tmp_path, monkeypatch):
    """Relative paths may be written differently if they mean the same files."""
    here, other = tmp_path / "here", tmp_path / "other"
    for folder in (here, other):
        folder.mkdir()
        curves(folder / "a.parquet", 6)
    monkeypatch.chdir(here)
    divided = ("--cluster", "serial", "--partition", "2")
    run("period", "a.parquet", *RANGE, "-o", "p", *divided)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in Path("p").glob("part-*")}
    assert len(before) == 3
    (here / "p" / "part-000001.parquet").unlink()
    monkeypatch.chdir(tmp_path)
    said = run("period", "other/a.parquet", *RANGE, "-o", "here/p", *divided, "--resume", code=2)
    assert f"repeat that run's command in {here}, or with absolute paths, use --overwrite" in said
    run("period", "here/a.parquet", *RANGE, "-o", "here/p", *divided, "--resume")
    after = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in (here / "p").glob("part-*")}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"part-000001.parquet"}
    assert all(before[name][0] == after[name][0] for name in before)
    run("period", here / "a.parquet", *RANGE, "-o", here / "p", *divided, "--resume")


def test_no_object_with_a_period_is_exit_code_1(tmp_path):
    (tmp_path / "a.csv").write_text("time,mag\n1,2\n2,2\n")
    words = (*RANGE, "-o", tmp_path / "p.csv", "--overwrite")
    for more in ((), ("--cluster", "serial")):
        run("period", tmp_path / "a.csv", *words, *more, code=1)
    said = run("period", tmp_path / "a.csv", *words, "--cluster", "serial", "-q", code=1)
    assert said == f"skysieve: {tmp_path / 'p.csv'} has no row with a period; its rows give the reasons\n"


@pytest.mark.parametrize("other", [{"error": "other"}, {"text": True}], ids=["column", "type"])
def test_schema_drift_is_an_error_before_the_search(other, tmp_path):
    curves(tmp_path / "a.parquet", 6)
    curves(tmp_path / "b.parquet", 6, seed=1, **other)
    files = (tmp_path / "a.parquet", tmp_path / "b.parquet")
    said = run("period", *files, *RANGE, "-o", tmp_path / "o", "--cluster", "serial", "--partition", "2", code=2)
    assert f"the columns of {tmp_path / 'b.parquet'} are " in said
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--cluster", "serial"), "--cluster needs -o"),
        (("--cluster", "pbs", "-o", "a.csv"), "expected serial, local[:N]"),
        (("--cluster", "serial", "-o", "a.csv", "--plot", "a.png"), "--cluster and --plot cannot be combined"),
        (("--cluster", "serial", "-o", "a.xyz"), "expected one of csv, parquet"),
        (("--cluster", "dask:nowhere", "-o", "a.csv"), "the Dask scheduler at nowhere cannot be reached"),
        (("--cluster", "slurm", "-o", "a.csv", "--device", "auto"), "--device auto: slurm needs"),
        (("--cluster", "serial", "-o", "a.parquet", "--overwrite"), "a.parquet is one of the files to read"),
        (("--cluster", "serial", "-o", "."), "a.parquet lies in the folder of the output, .: expected another output"),
    ],
)
def test_wrong_options_of_period(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    curves(tmp_path / "a.parquet", 2)
    said = run("period", "a.parquet", *words, code=2)
    assert said.splitlines()[-1].startswith(f"skysieve: {message}") or message in said
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_what_cannot_be_submitted_is_refused_before_the_input_is_divided(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.fits").touch()
    words = ("smooth", "a.fits", "-o", "out", "--fwhm", "1deg", "--cluster")
    assert run(*words, "htcondor", code=2).startswith("skysieve: --device auto: htcondor needs")
    monkeypatch.setenv("PATH", "")
    assert run(*words, "slurm", "--device", "cpu", code=2).startswith("skysieve: sbatch is not on the PATH")
    assert [path.name for path in tmp_path.iterdir()] == ["a.fits"]


@pytest.fixture
def signals():
    """Handlers of signals, which ``task`` replaces, are restored."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("words", [("task", "0", "1"), ("finish",)])
def test_a_folder_without_a_job_is_one_line(words, tmp_path):
    from skysieve.cluster.__main__ import line

    result = CliRunner().invoke(line, [words[0], str(tmp_path), *words[1:]])
    assert result.exit_code == 2
    assert result.stderr == f"skysieve: {tmp_path / 'manifest.json'}: No such file or directory\n"


def test_reasons_of_files_name_options(tmp_path, monkeypatch):
    """As without --cluster; the names of files are not changed."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "samples_per_peak=6"
    folder.mkdir()
    curves(folder / "a.parquet", 2)
    words = ("--min-period", "1e-9", "--max-period", "10", "--samples-per-peak", "6", "--device", "cpu")
    said = run("period", folder / "a.parquet", *words, "-o", "a.csv", "--cluster", "serial", code=2)
    assert f"skysieve: {folder / 'a.parquet'}: the grid would have" in said
    assert "nf or --samples-per-peak, or check the unit" in said


@pytest.mark.slow
def test_a_search_of_sfts_in_partitions_gives_the_same_files(tmp_path):
    made = ("--days", "0.5", "--signal", "100.05,5e-24,0.5,1.0", "--ephemeris", "builtin", "-q")
    run("fstat", "simulate", tmp_path / "sfts", *made)
    words = ["fstat", "search", "--sfts", tmp_path / "sfts", "--ra", "0.5", "--dec", "1.0", "--freq", "100.0499",
             "--freq-band", "0.0002", "--df", "4e-6", "--dt0", "7200", "--dtau", "7200", "--ephemeris", "builtin",
             "--topk", "9", "--bsgl", "15", "--device", "cpu", "-q"]  # fmt: skip
    divided = ("--cluster", "serial", "--partition", "7")
    run(*words, "-o", tmp_path / "one.npz")
    run(*words, "-o", tmp_path / "two.npz", *divided)
    one, two = (np.load(tmp_path / f"{name}.npz") for name in ("one", "two"))
    assert one.files == two.files
    for name in one.files:
        assert one[name].dtype == two[name].dtype
        np.testing.assert_array_equal(one[name], two[name])


def test_a_search_of_atoms_in_partitions_lists_bad_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "atoms").mkdir()
    for k in range(5):
        run("fstat", "synth", f"atoms/{k}.npz", "--days", "0.5", "--seed", k, "-q")
    (tmp_path / "atoms" / "3.npz").write_text("bad")
    words = ("fstat", "search", "atoms", "--dt0", "7200", "--dtau", "7200", "--device", "cpu", "-q")
    run(*words, "-o", "one.csv", code=1)
    said = run(*words, "-o", "two.csv", "--cluster", "serial", "--partition", "2", code=1)
    assert "template 3: atoms/3.npz: " in said
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


def test_many_maps_are_smoothed_as_one_is_and_resume_makes_lost_and_changed_ones(tmp_path):
    fits = pytest.importorskip("astropy.io.fits")
    for k in range(3):
        values = np.random.default_rng(k).standard_normal(12 * 16**2).astype(np.float32)
        table = fits.BinTableHDU.from_columns([fits.Column("I", "E", array=values)])
        table.header.update({"PIXTYPE": "HEALPIX", "ORDERING": "RING", "NSIDE": 16})
        table.writeto(tmp_path / f"{k}.fits")
    (tmp_path / "bad.fits").write_text("x")
    files = sorted(tmp_path.glob("*.fits"))
    out, how = tmp_path / "out", ("--fwhm", "10deg", "--device", "cpu")
    said = run("smooth", *files, "-o", out, *how, code=1)
    assert "bad.fits: is not a FITS file" in said
    run("smooth", tmp_path / "1.fits", tmp_path / "one.fits", *how)
    assert (tmp_path / "one.fits").read_bytes() == (out / "1.fits").read_bytes()
    before = (out / "0.fits").stat().st_mtime_ns
    (out / "1.fits").unlink()
    run("smooth", *files, "-o", out, *how, "--resume", code=1)
    assert (tmp_path / "one.fits").read_bytes() == (out / "1.fits").read_bytes()
    assert (out / "0.fits").stat().st_mtime_ns == before
    made = (out / "1.fits").read_bytes()
    for damaged in (b"", made[:-2880], b"x" * len(made)):
        (out / "1.fits").write_bytes(damaged)
        run("smooth", *files, "-o", out, *how, "--resume", code=1)
        assert (out / "1.fits").read_bytes() == made
    assert (out / "0.fits").stat().st_mtime_ns == before
    (tmp_path / "bad.fits").write_bytes(files[0].read_bytes())  # repaired
    run("smooth", *files, "-o", out, *how, "--resume")
    assert (out / "bad.fits").exists()
    assert (out / "0.fits").stat().st_mtime_ns == before
    other = run("smooth", *files, "-o", out, "--fwhm", "9deg", "--device", "cpu", "--resume", code=2)
    assert "with other fwhm" in other
    assert "exists; use --overwrite" in run("smooth", *files, "-o", out, *how, code=2)
    assert "two files are called" in run("smooth", files[0], files[0], "-o", tmp_path / "x", *how, code=2)
    (tmp_path / "9.fits").write_bytes(files[0].read_bytes())
    (tmp_path / "8.fits").write_text("x")
    run("smooth", tmp_path / "9.fits", tmp_path / "8.fits", "-o", out, *how, code=1)  # the first run is finished
    assert (out / "9.fits").exists()
    assert (out / "0.fits").stat().st_mtime_ns == before
    assert "nothing was written" in run("smooth", tmp_path / "8.fits", tmp_path / "8a.fits", "-o", out, *how, code=2)
    run("smooth", tmp_path / "0.fits", "-o", tmp_path / "y.fits", *how)
    new = tmp_path / "new"
    new.mkdir()
    (new / "0.fits").write_text("a map of the user's")
    assert "exists; use --overwrite" in run("smooth", *files, "-o", new, *how, "--resume", code=2)  # no run to continue
    assert [path.read_text() for path in new.iterdir()] == ["a map of the user's"]


def test_a_first_map_that_is_missing_or_empty_costs_itself_alone(tmp_path):
    fits = pytest.importorskip("astropy.io.fits")
    table = fits.BinTableHDU.from_columns([fits.Column("I", "E", array=np.arange(12 * 4**2, dtype=np.float32))])
    table.header.update({"PIXTYPE": "HEALPIX", "ORDERING": "RING", "NSIDE": 4})
    table.writeto(tmp_path / "good.fits")
    (tmp_path / "empty.fits").write_bytes(b"")
    how = ("--fwhm", "60deg", "--device", "cpu")
    for bad in ("none.fits", "empty.fits"):
        out = tmp_path / f"out-{bad[:4]}"
        assert bad in run("smooth", tmp_path / bad, tmp_path / "good.fits", "-o", out, *how, code=1)
        assert (out / "good.fits").exists()


def test_small_maps_are_smoothed_together(tmp_path, monkeypatch):
    fits = pytest.importorskip("astropy.io.fits")
    monkeypatch.setattr("skysieve.sphere.command.partitions.SHARE", 2)
    for k in range(5):
        table = fits.BinTableHDU.from_columns([fits.Column("I", "E", array=np.full(12 * 4**2, k, np.float32))])
        table.header.update({"PIXTYPE": "HEALPIX", "ORDERING": "RING", "NSIDE": 4})
        table.writeto(tmp_path / f"{k}.fits")
    (tmp_path / "1.fits").write_text("x")
    out, how = tmp_path / "out", ("--fwhm", "60deg", "--device", "cpu", "--cluster", "serial")
    said = run("smooth", *(tmp_path / f"{k}.fits" for k in range(6)), "-o", out, *how, code=1)
    assert "1.fits: is not a FITS file" in said
    assert f"{tmp_path / '5.fits'}: No such file" in said
    assert sorted(path.name for path in out.glob("*.fits")) == ["0.fits", "2.fits", "3.fits", "4.fits"]
    tables = [pq.read_table(path) for path in sorted(out.glob("part-*.parquet"))]
    assert [table["output"].to_pylist() for table in tables] == [["0.fits", "2.fits"], ["3.fits", "4.fits"]]
    assert f"wrote {out}: 4 files (4 maps)" in said


def test_filterbank_files_are_searched_one_by_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    receiver = ("--nchan", "32", "--duration", "4", "--fch1", "1500", "--foff", "-2", "--tsamp", "1e-3", "--snr", "25")
    for k in range(2):
        run("dedisp", "fake", "-o", f"{k}.fil", *receiver, "--seed", k, "-q")
    (tmp_path / "bad.fil").write_text("x")
    words = ("--dm-max", "150", "--device", "cpu", "-q", "--max-width", "0.02", "--no-baseline", "--dip", "inf",
             "--threshold", "5.5", "--excess", "1")  # fmt: skip
    said = run("dedisp", "search", "0.fil", "1.fil", "bad.fil", *words, "-o", "all.csv", "--cluster", "serial", code=1)
    assert "bad.fil: is not a SIGPROC" in said
    run("dedisp", "search", "1.fil", *words, "-o", "one.csv")
    rows = (tmp_path / "all.csv").read_text().splitlines()
    assert [row.removeprefix("1.fil,") for row in rows if row.startswith("1.fil,")] == (
        tmp_path / "one.csv"
    ).read_text().splitlines()[1:]
    assert rows[0].startswith("file,snr,dm,")
    run("dedisp", "search", "0.fil", "1.fil", *words, "-o", "all.parquet", "--cluster", "serial")
    assert set(pq.read_table(tmp_path / "all.parquet")["file"].to_pylist()) == {"0.fil", "1.fil"}


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_light_curves(tmp_path):
    """100,000 light curves, and ten times fewer: the peaks of memory differ by the ids alone."""
    code = (
        "import re, sys\n"
        "from pathlib import Path\n"
        "from skysieve import cluster\n"
        "job = cluster.job('period', sys.argv[2], files=[sys.argv[1]], fmin=0.2, fmax=2.0, nf=50, device='cpu',\n"
        "                  partition=2000)\n"
        "done = cluster.run(job, threads=2)\n"
        "print(done.rows, re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])\n"
    )
    if not Path("/proc/self/status").exists():
        pytest.skip("the peak of memory is read from /proc")
    peaks = {}
    for n in (10_000, 100_000):
        curves(tmp_path / f"{n}.parquet", n, lists=True, groups=2000)
        words = [sys.executable, "-c", code, tmp_path / f"{n}.parquet", tmp_path / f"out-{n}"]
        rows, peak = map(int, subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())
        assert rows == n
        peaks[n] = peak * 1024
        shutil.rmtree(tmp_path / f"out-{n}")
    # measured: 14 MB, of ids and of the allocator; the light curves have 65 MB more
    assert peaks[100_000] - peaks[10_000] < 30e6, peaks
