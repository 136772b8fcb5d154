"""``skysieve fstat``, run as a user would."""

from __future__ import annotations

import errno
import gzip
import json
import os

import pytest
import typer
from tests.marks import loses_help
from typer.testing import CliRunner

from skysieve.cli import app
from skysieve.fstat import (
    Grid,
    Injection,
    SearchResult,
    TransientResult,
    load_atoms,
    save_atoms,
    synth_atoms,
    transient_map,
    write_atoms,
)
from skysieve.fstat.inputs.files import doppler_of
from skysieve.fstat.template_search import batch

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
    assert f"skysieve: {tmp_path / 'none.npz'}: No such file" in run("info", tmp_path / "none.npz", code=2)
    assert "expected one of npz, hdf5, text, h5" in run("convert", file, tmp_path / "x.csv", code=2)
    text = run("info", file.with_suffix(".dat"), code=2)
    assert text.count("\n") == 1


def test_map(file, tmp_path):
    text = run("map", file, "--window", "exp", "-o", tmp_path / "m.npz", "--device", "cpu")
    atoms = load_atoms(file)
    r = transient_map(atoms, window="exp", device="cpu")
    assert f"max 2F {r.max2F:.4f} at t0 GPS {r.t0_ml}, tau {r.tau_ml} s" in text
    (low, high), (short, long) = r.credible_interval("t0"), r.credible_interval("tau")
    assert f"t0: most probable GPS {r.t0_mp:.0f}, 90% credible interval GPS {low} to {high}\n" in text
    assert f"tau: most probable {r.tau_mp:.0f} s, 90% credible interval {short} to {long} s\n" in text
    back = TransientResult.load(tmp_path / "m.npz")
    assert (back.grid, back.max_F) == (Grid(t0=T0, t0_band=18 * T, tau=2 * T, tau_band=18 * T), r.max_F)
    options = ("--t0", T0, "--t0-band", 7200, "--dt0", 3600, "--log-tau", 3, "--compat", "lalpulsar", "-q")
    assert run("map", file, *options, "-o", tmp_path / "m.dat", "--format", "lalpulsar", "--device", "cpu") == ""
    lines = (tmp_path / "m.dat").read_text().splitlines()
    assert len(lines) == 9
    assert lines[0].split()[:2] == [str(T0), str(2 * T)]
    none = run("map", file, "-w", "none", "--device", "cpu")
    assert "1 start time x 1 duration on" in none
    nothing = run("map", file, "--t0", T0 + 19 * T, "--t0-band", 0, "--not-strict", "--device", "cpu")
    assert "no cell could be computed" in nothing


def test_map_draws(file, tmp_path):
    pytest.importorskip("matplotlib")
    run("map", file, "--plot", tmp_path / "m.png", "--device", "cpu")
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".png"] == ["m.png"]


def test_synth(tmp_path):
    path = tmp_path / "s.npz"
    run("synth", path, "--days", 1, "--inject", f"{T0 + 9000},18000,12,exp", "--gap", f"{T0},{T0 + 4 * T}", "--seed", 5)
    signal = Injection(T0 + 9000, 18000, 12, window="exp")
    assert load_atoms(path) == synth_atoms(T0, 86400, inject=signal, gaps=[(T0, T0 + 4 * T)], seed=5)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("synth", "x.npz", "--inject", "3,4"), "--inject 3,4: expected t0,tau,snr"),
        (
            ("synth", "x.npz", "--inject", "3.5,4,5"),
            "--inject 3.5,4,5: expected t0,tau,snr or t0,tau,snr,window, with t0 and tau in whole seconds\n",
        ),
        (
            ("synth", "x.npz", "--inject", "3,4,5,sine"),
            "--inject 3,4,5,sine: window='sine': expected one of 'rect', 'exp', 'none'\n",
        ),
        (
            ("simulate", "x", "--signal", "100,1,0,0,0,sine,3,4"),
            "window='sine': expected one of 'rect', 'exp', 'none'\n",
        ),
        (("synth", "x.npz", "--inject", "3,4,nan"), "--inject 3,4,nan: snr=nan: expected at least 0"),
        (("synth", "x.npz", "--dec", "nan"), "--dec nan: expected a finite number"),
        (("synth", "x.npz", "--days", "nan"), "--days nan: expected a number above 0"),
        (("synth", "x.npz", "--gap", "3"), "--gap 3: expected 2 whole numbers"),
        (("synth", "x.npz", "--gap", "5,1"), "--gap 5,1: expected the end after the beginning"),
        (("synth", "x.npz", "--detectors", "Z9"), "--detectors 'Z9': expected one of"),
        (("synth", "x.npz", "--detectors", "H1,H1"), "expected each name once"),
        (("map", "FILE", "--log-tau", "9", "--dtau", "1800"), "--dtau 1800 cannot be combined with --log-tau 9"),
        (("map", "FILE", "-o", "x.xyz"), "--output x.xyz: expected one of npz, pyfstat, lalpulsar, csv"),
        (("map", "FILE", "-o", "FILE"), "is one of the files to read"),
        (("search", "FILE", "-o", "FILE"), "is one of the files to read"),
        (("search", "--files-from", "FILE", "-o", "FILE", "--overwrite"), "is one of the files to read"),
        (("convert", "FILE", "FILE", "--overwrite"), "is one of the files to read"),
        (("synth", "FILE"), "exists; use --overwrite"),
        (("map", "FILE", "--compat", "pycuda"), "--compat 'pycuda': expected one of 'lalpulsar'"),
        (("map", "FILE", "-w", "sine"), "'sine': expected one of rect, exp, none"),
        (("search", "FILE", "-w", "exp", "-w", "sine"), "'sine': expected one of rect, exp, none"),
        (("search", "FILE", "--statistic", "power"), "--statistic 'power': expected one of 'max2F', 'lnBtSG'"),
        (("map", "FILE", "-q", "-v"), "at most one of them"),
        (("map", "FILE", "--threads", "2", "--memory", "much"), "--memory 'much'"),
        (("map", "FILE", "-o", "none/x.npz"), "there is no folder none"),
        (("map", "FILE", "--log-tau", "0"), "Invalid value for '--log-tau'"),
        (("map", "FILE", "--dt0", "0"), "Invalid value for '--dt0'"),
        (("map", "FILE", "--format", "csv"), "--format needs -o"),
        (("map", "FILE", "-w", "none", "--tau", "7200"), "--tau needs a window other than none"),
        (("map", "FILE", "--efold", "3"), "--efold needs --window exp"),
        (("map", "FILE", "--device", "cuda:all"), "--device cuda:all: a map is computed on one device"),
        (("search", "FILE", "--format", "csv"), "--format needs -o"),
        (("search", "FILE", "-w", "none", "--t0", "1"), "--t0 needs a window other than none"),
        (("search", "FILE", "-w", "rect", "--efold", "2"), "--efold needs --window exp"),
        (("search", "FILE", "--statistic", "log10BSGL"), "--statistic log10BSGL needs --bsgl"),
        (("search", "FILE", "--partition", "5"), "--partition needs --cluster"),
        (("search", "FILE", "--mismatch", "0.1"), "--mismatch needs --sfts"),
        (("search", "FILE", "--ra", "1", "--cluster", "serial", "-o", "x.csv"), "--ra needs --sfts"),
        (("search", "FILE", "--bsgl", "nan"), "--bsgl nan: expected a finite number"),
        (("search", "FILE", "--bsgl", "5", "--olgx", "-1,1"), "--olgx [-1.0, 1.0]: expected odds of at least 0"),
        (("search", "FILE", "-o", "x.txt"), "--output x.txt: expected one of npz, parquet, fits, csv, ecsv, json"),
        (("search", "FILE", "--olgx", "1,1"), "--olgx needs --bsgl"),
        (("search", "FILE", "--bsgl", "5", "--olgx", "1,1,1"), "3 entries, expected 2, one for each detector"),
        (("search", "FILE", "--bsgl", "5", "--olgx", "1,x"), "--olgx 1,x: expected numbers, with a comma between"),
        (("search", "none.npz"), "none.npz"),
    ],
)
def test_mistakes_come_before_the_work(file, args, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    given = [file if a == "FILE" else a for a in args]
    assert message in run(*given, code=2)
    assert [p.name for p in tmp_path.iterdir()] == [file.name]


def test_a_compressed_text_file_is_named(file, tmp_path):
    run("convert", file, tmp_path / "a.dat")
    (tmp_path / "a.dat.gz").write_bytes(gzip.compress((tmp_path / "a.dat").read_bytes()))
    for command in ("info", "map"):
        assert "a.dat.gz: is not text; expected atoms as text that is not" in run(
            command, tmp_path / "a.dat.gz", code=2
        )


def test_search(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    signal = Injection(T0 + 4 * T, 8 * T, snr=15, window="exp")
    save_atoms("b.h5" if has_h5py() else "b.npz", synth_atoms(T0, 20 * T, seed=2, inject=signal))
    (tmp_path / "c.dat").write_text("bad")
    names = [file.name, "c.dat", "b.h5" if has_h5py() else "b.npz"]
    text = run("search", *names, "-w", "exp", "--bsgl", 5, "-o", "t.csv", "--device", "cpu", code=1)
    assert "3 templates, 1 of them left out; ranked by log10BSGL" in text
    assert "skysieve: c.dat, line 1" in text
    head, first, second = (tmp_path / "t.csv").read_text().splitlines()
    assert head.startswith("template,window,file,max2F,t0_ml,tau_ml")
    assert first.startswith(f"2,exp,{names[2]},")
    assert second.startswith(f"0,exp,{names[0]},")


def test_a_search_continues_from_its_parts(file, tmp_path, monkeypatch):
    """The disk is full when the table is written; the second time no template is searched, for the same table."""
    monkeypatch.chdir(tmp_path)
    save_atoms("b.npz", synth_atoms(T0, 20 * T, seed=2))
    command = ("search", file.name, "b.npz", "-w", "rect", "--device", "cpu")
    run(*command, "-o", "whole.csv")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(SearchResult, "save", full)
        assert "No space left" in run(*command, "-o", "t.csv", "--resume", code=2)
    assert sorted(p.name for p in (tmp_path / "t.csv.parts").iterdir()) == ["00000.npz", "run.json"]
    assert "holds parts of a run with other options" in run(*command, "-o", "t.csv", "--resume", "--topk", 9, code=2)
    part = tmp_path / "t.csv.parts" / "00000.npz"
    whole = part.read_bytes()
    for damaged in (b"", whole[:-100], b"x" * len(whole)):
        part.write_bytes(damaged)
        said = run(*command, "-o", "t.csv", "--resume", code=2)
        assert "00000.npz' is not the checkpoint of a search, or is damaged; use another file, or delete it" in said
    part.write_bytes(whole)
    (tmp_path / "t.csv").write_text("of another command")
    assert "t.csv: exists; use --overwrite" in run(*command, "-o", "t.csv", "--resume", code=2)
    asked = []
    with monkeypatch.context() as patch:
        patch.setattr(batch, "read_files", lambda files, _: asked.append(files) or iter(files))
        run(*command, "-o", "t.csv", "--resume", "--overwrite")
    assert asked in ([], [[]])
    assert (tmp_path / "t.csv").read_text() == (tmp_path / "whole.csv").read_text()
    assert not (tmp_path / "t.csv.parts").exists()
    assert "--resume needs -o" in run(*command, "--resume", code=2)


def test_standard_input_and_output(file):
    """Nothing but the data goes to standard output; the summary goes to standard error."""
    data = file.read_bytes()
    text = CliRunner().invoke(app, ["fstat", "convert", "-", "-", "--detectors", "H1,L1"], input=data)
    assert (text.exit_code, text.stderr) == (0, "")
    assert text.stdout.startswith("%% tGPS")
    back = CliRunner().invoke(app, ["fstat", "info", "-", "--json"], input=text.stdout)
    facts = json.loads(back.stdout)
    assert facts["full_grid"] == [19, 19]
    assert [(d["detector"], d["sfts"]) for d in facts["detectors"]] == [("D0", 20), ("D1", 15)]
    options = ["--device", "cpu", "--t0", str(T0), "--t0-band", "0"]
    found = CliRunner().invoke(app, ["fstat", "map", str(file), *options, "-o", "-"])
    assert found.stdout.splitlines()[0] == "t0,tau,twoF"
    assert len(found.stdout.splitlines()) == 1 + 19
    assert "max 2F" in found.stderr
    table = CliRunner().invoke(app, ["fstat", "search", str(file), *options, "-o", "-", "--format", "json"])
    result = json.loads(table.stdout)
    edges = ", ".join(map(str, result["histogram_edges"]))
    assert f' "histogram_edges": [{edges}],' in table.stdout.splitlines()
    assert [row["window"] for row in result["rows"]] == ["rect", "exp"]
    assert result["windows"] == {"rect": "rect", "exp": "exp up to 3.0 tau"}
    assert "1 template;" in table.stderr
    broken = CliRunner().invoke(app, ["fstat", "info", "-"], input="1 2 3\n")
    assert broken.stderr == "skysieve: standard input, line 1: expected atoms in 8 columns, found 3\n"


def test_an_output_is_replaced_when_asked_for(file):
    before = file.read_bytes()
    assert "wrote" in run("synth", file, "--days", 1, "--overwrite")
    assert file.read_bytes() != before
    assert run("synth", file, "--days", 1, "--overwrite", "-q") == ""


def test_verbose_says_what_is_done(file):
    text = run("map", file, "-w", "exp", "--device", "cpu", "-v")
    assert text.startswith("recurrence on CPU")
    assert ", float64: 361 cells" in text
    assert "running sums, recurrence on CPU" in run("search", file, "--device", "cpu", "-v")


@pytest.mark.parametrize("command", ["map", "search", "synth", "info", "convert"])
def test_help_has_sentences_and_an_example(command):
    text = CliRunner().invoke(app, ["fstat", command, "--help"], env={"COLUMNS": "400"}).stdout
    assert f"skysieve fstat {command}" in text.split("Example")[1]
    application = typer.main.get_command(app).commands["fstat"].commands[command]
    for parameter in application.params:
        assert parameter.name == "help" or loses_help(parameter) or parameter.help.endswith("."), parameter.name


def has_h5py():
    from importlib.util import find_spec

    return find_spec("h5py") is not None


@pytest.fixture
def many(tmp_path):
    """Files of atoms of 30 templates in noise, with the names that LALPulsar gives them."""
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(30):
        f1dot = f"_f1dot-{i}e-11" if i else ""
        made = synth_atoms(T0, 20 * T, seed=i)
        write_atoms(folder / f"CFS_tRef{T0}_RA0.5_DEC-1.25_Freq{100 + 1e-5 * i:.10g}{f1dot}.dat", made)
    (folder / "notes.log").write_text("not atoms")
    return folder


def test_other_text_files_of_a_folder_are_left_alone(many, tmp_path, monkeypatch):
    """Tables and maps of PyFstat beside its atoms; a file without rows is a damaged file of atoms."""
    monkeypatch.chdir(tmp_path)
    table = many / "search_H1L1_TransientGridSearch.txt"
    table.write_text("# F0 F1 F2 Alpha Delta twoF maxTwoF t0_ML tau_ML\n30 0 0 0.5 1 4.5 20 1000000000 3600\n")
    (many / "a_tCW_map.dat").write_text("# t0 tau 2F\n1000000000 3600 4.5\n")
    (many / "README.TXT").write_text("These eight words are not atoms of templates\n")
    (many / "z.dat").write_text("%% tGPS\n")
    (many / "y.dat").write_text(f"%% tGPS a2 b2\n{T0} 1.0 1.0\n")
    (many / "x.dat").symlink_to("nowhere")
    (many / "w.dat").mkdir()
    text = run("search", many, "-w", "rect", "--device", "cpu", code=1)
    assert f"note: 3 text files without atoms left alone: README.TXT, a_tCW_map.dat, {table.name}" in text
    assert "33 templates, 3 of them left out" in text
    assert "z.dat holds no atoms" in text
    assert "y.dat, line 2: expected atoms in 8 columns, found 3" in text
    assert "x.dat: " in text
    text = run("search", many, table, "-w", "rect", "--device", "cpu", code=1)
    assert "note: 2 text files without atoms left alone: README.TXT, a_tCW_map.dat" in text
    (many / "x.dat").unlink()
    (many / "w.dat").rmdir()
    text = run("search", many, "-w", "rect", "-o", "a.csv", "--cluster", "serial", code=1)
    assert "note: 3 text files without atoms left alone" in text
    assert "expected atoms in 8 columns, found 9" in run("search", table, "-w", "rect", code=2)
    for path in many.glob("*.dat"):
        path.unlink()
    assert "many: no file in it holds atoms" in run("search", many, code=2)


def test_a_search_takes_folders_patterns_and_lists_of_names(many, tmp_path):
    names = sorted(map(str, many.glob("*.dat")))
    (tmp_path / "list").write_text("\n".join(names) + "\n\n")
    tables = []
    for i, given in enumerate(([many], [f"{many}/*.dat"], ["--files-from", tmp_path / "list"], names)):
        out = tmp_path / f"{i}.csv"
        text = run("search", *given, "-o", out, "--device", "cpu", "-w", "rect")
        assert "30 templates; ranked by max2F" in text
        assert "in noise alone the loudest would have 2F = " in text
        tables.append(out.read_text())
    assert len(set(tables)) == 1
    result = CliRunner().invoke(
        app,
        ["fstat", "search", "--files-from", "-", "-w", "rect", "-o", "-", "--device", "cpu"],
        input="\n".join(names),
    )
    assert result.stdout == tables[0]
    header, *rows = tables[0].splitlines()
    table = [dict(zip(header.split(","), row.split(","), strict=True)) for row in rows]
    assert {float(row["ra"]) for row in table} == {0.5}
    assert {float(row["dec"]) for row in table} == {-1.25}
    for row in table:
        i = round((float(row["f0"]) - 100) / 1e-5)
        assert float(row["f1dot"]) == pytest.approx(-i * 1e-11)
        assert f"Freq{100 + 1e-5 * i:.10g}" in row["file"]
    assert "no file matches" in run("search", f"{many}/*.h5", code=2)
    (tmp_path / "empty").mkdir()
    assert "no file in it ends in" in run("search", tmp_path / "empty", code=2)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tRef1000000000_RA0.5_DEC-1_Freq100.123456789012_f1dot-1e-10_f2dot1e-18", (100.123456789012, -1e-10, 1e-18)),
        ("a_tRef1000000000_RA0.5_DEC1_Freq100.dat", (100.0, 0.0, 0.0)),
        ("a_tRef1000000000_RA1e-05_DEC1_Freq100_f2dot-2e-18.npz", (100.0, 0.0, -2e-18)),
    ],
)
def test_parameters_in_names_of_lalpulsar(name, expected):
    found = doppler_of(name)
    assert tuple(found[key] for key in ("f0", "f1dot", "f2dot")) == expected
    assert found["tref"] == 1e9
    assert doppler_of("Freq100.dat") == {}


def test_a_file_that_is_missing_is_named_and_left_out(file, tmp_path):
    text = run("search", tmp_path / "none.npz", file, "-w", "rect", "--device", "cpu", code=1)
    assert f"skysieve: {tmp_path / 'none.npz'}: No such file or directory\n" in text


def test_a_map_is_computed_on_one_device():
    assert "cuda:all" not in run("map", "--help")
    assert "cuda:all" in run("search", "--help")


def test_files_that_are_cut_short_are_left_out(file, tmp_path):
    whole, short, empty, out = file.read_bytes(), tmp_path / "short.npz", tmp_path / "empty.npz", tmp_path / "t.csv"
    short.write_bytes(whole[:2000])
    empty.touch()
    text = run("search", empty, file, short, "-w", "rect", "-o", out, "--device", "cpu", code=1)
    assert "3 templates, 2 of them left out" in text
    assert f"skysieve: {empty}: damaged or cut short" in text
    assert f"skysieve: {short}: damaged or cut short" in text
    assert len(out.read_text().splitlines()) == 2
    for command in ("map", "info"):
        assert f"skysieve: {short}: damaged or cut short" in run(command, short, code=2)
        result = CliRunner().invoke(app, ["fstat", command, "-"], input=whole[:2000])
        assert result.stderr == "skysieve: standard input: damaged or cut short, or not a .npz file\n"


def test_a_search_reads_standard_input_once(file, tmp_path):
    data, out = file.read_bytes(), tmp_path / "t.csv"
    options = ["-w", "rect", "--device", "cpu", "-o"]
    for given in (["-"], [str(file), "-"], ["-", "-v"]):
        result = CliRunner().invoke(app, ["fstat", "search", *given, *options, str(out), "--overwrite"], input=data)
        assert result.exit_code == 0, result.output
        rows = out.read_text().splitlines()[1:]
        assert len({row.split(",")[3] for row in rows}) == 1
        assert len(rows) == len([name for name in given if name != "-v"])
    for more, message in (
        (["--resume"], "-: --resume needs files"),
        (["--cluster", "serial"], "-: --cluster needs files"),
        (["--files-from", "-"], "standard input can be read only once"),
    ):
        names = str(file).encode() if "--files-from" in more else data
        result = CliRunner().invoke(app, ["fstat", "search", "-", *options, f"{out}.csv", *more], input=names)
        assert result.exit_code == 2
        assert message in result.stderr


def test_options_of_text_must_agree_with_other_files(file):
    for command in ("map", "info", "search"):
        assert "tatom (--tatom) 900: the file says 1800 s" in run(command, file, "--tatom", 900, code=2)
        assert "detectors (--detectors) V1: the file holds H1,L1" in run(command, file, "--detectors", "V1", code=2)
    assert "20 bins" in run("info", file, "--tatom", T, "--detectors", "H1,L1")


def test_windows_and_signals_before_the_data_are_refused(file, tmp_path):
    options = ("--t0", 900_000_000, "--t0-band", 0, "--tau", 3600, "--tau-band", 0, "--device", "cpu")
    for command in ("map", "search"):
        text = run(command, file, *options, code=2)
        assert "--t0 900000000" in text
        assert "--not-strict" in text
    assert "no cell could be computed" in run("map", file, *options, "--not-strict")
    out = tmp_path / "t.csv"
    run("search", file, *options, "--not-strict", "-o", out)
    assert len(out.read_text().splitlines()) == 1
    text = run("synth", tmp_path / "s.npz", "--inject", "2000000000,86400,15,exp", code=2)
    assert "signal of t0=2000000000, tau=86400: no SFT starts in its window" in text


@pytest.mark.parametrize("more", [(), ("--cluster", "serial", "--partition", 1)])
def test_a_table_without_rows_has_all_columns(file, tmp_path, more):
    save_atoms(tmp_path / "b.npz", synth_atoms(T0, 20 * T, seed=2))
    command = ("search", file, tmp_path / "b.npz", "--device", "cpu", *more)
    run(*command, "-o", tmp_path / "all.csv")
    run(*command, "--threshold", 1e9, "-o", tmp_path / "none.csv")
    assert (tmp_path / "none.csv").read_text().splitlines() == (tmp_path / "all.csv").read_text().splitlines()[:1]
