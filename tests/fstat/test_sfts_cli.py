"""``skysieve fstat simulate`` and ``search --sfts``."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from skysieve.cli import app
from skysieve.fstat import Demodulator, TemplateBank, read_sfts, transient_map, write_sfts

SIGNAL = "100.05,6e-24,0.5,1.0,-2e-10,rect,1000036000,43200"
PLACE = ["--ra", "0.5", "--dec", "1.0", "--tref", "1000000000", "--ephemeris", "builtin", "--device", "cpu"]
BANK = ["--freq", "100.04999", "--freq-band", "2e-5", "--f1dot", "-4e-10", "--f1dot-band", "4e-10"]


def run(*args):
    return CliRunner().invoke(app, ["fstat", *map(str, args)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("sfts") / "made"
    done = run("simulate", made, "--days", 2, "--signal", SIGNAL, "--ephemeris", "builtin")
    assert done.exit_code == 0, done.output
    assert "wrote" in done.stderr
    assert "96 SFTs of L1" in done.stderr
    return made


def test_simulated_files_are_sfts(folder):
    h1, l1 = read_sfts(folder)
    assert (h1.detector, l1.detector, len(h1)) == ("H1", "L1", 96)
    assert run("simulate", folder, "--days", 2, "--ephemeris", "builtin").exit_code == 2  # files exist


def test_a_search_of_sft_files_finds_the_signal(folder, tmp_path):
    out = tmp_path / "found.csv"
    pattern = [folder / "H-*.sft", folder / "L-*.sft"]
    done = run("search", "--sfts", *pattern, *PLACE, *BANK, "-w", "rect", "-o", out, "--topk", 5)
    assert done.exit_code == 0, done.output
    found = np.genfromtxt(out, delimiter=",", names=True, dtype=None, encoding="utf-8")
    assert found["f0"][0] == pytest.approx(100.05, abs=1e-5)
    assert found["t0_ml"][0] == pytest.approx(1_000_036_000, abs=1800)
    assert found["tau_ml"][0] == pytest.approx(43_200, abs=3600)
    assert "templates; H1: 96 SFTs of 1800 s from GPS 1000000000, " in done.stderr
    assert "<" not in done.stderr
    assert "f1dot" in done.stdout


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--sfts", "none-*.sft", *PLACE, *BANK], "none-*.sft: no file matches"),
        (["--sfts", "FOLDER", *PLACE], "--freq or --templates; found --ra 0.5, --dec 1.0"),
        (["--sfts", "FOLDER"], "--sfts needs --ra, --dec and --freq or --templates; found none of them"),
        (["--sfts", "FOLDER", *PLACE, *BANK, "--tatom", "1800"], "--tatom 1800: is for files of atoms"),
        (["--sfts", "FOLDER", *PLACE, *BANK, "--inject", "105,1e-24,0.5,1"], "signal of f0=105 Hz"),
        (["--sfts", "FOLDER", *PLACE, "--freq", "100.3"], "too narrow by"),
        (
            ["--sfts", "FOLDER", *PLACE, "--freq", "100.05", "--freq-band", "0.3", "--df", "1e-5"],
            "--freq 100.05 --freq-band 0.3 --df 1e-05: the templates need 100.00613 to 100.39387 Hz, which includes",
        ),
        (
            ["--sfts", "FOLDER", *PLACE, *BANK, "--noise", "0"],
            "--noise 0: expected numbers above 0, with a comma between",
        ),
        (["--sfts", "FOLDER", *PLACE, *BANK, "--noise", "1,2,3"], "--noise 1,2,3: expected one value, or 2, of H1, L1"),
        (["FOLDER/H-96_H1_1800SFT_skysieve-1000000000-172800.sft"], "holds SFTs, not atoms; expected --sfts"),
        (["--sfts", "FOLDER", *PLACE, *BANK, "--detectors", "V1"], "no SFT of V1"),
        (["--sfts", "FOLDER", *PLACE, *BANK, "--df", "-1"], "--df -1.0: expected a number above 0"),
        (
            ["--sfts", "FOLDER", *PLACE, "--freq", "100", "--freq-band", "1", "--df", "1e-18"],
            "--freq-band 1, --df 1e-18: the grid would have 1e+18 values, expected at most",
        ),
        (
            ["--sfts", "FOLDER", *PLACE, *BANK, "--f1dot-band", "1", "--df1dot", "1e-320"],
            "--f1dot-band 1, --df1dot 1e-320: the grid would have inf values, expected at most",
        ),
        (["--sfts", "FOLDER", *PLACE, *BANK, "--f1dot-band", "-1"], "--f1dot-band -1.0: expected at least 0"),
        (["--sfts", "FOLDER", *PLACE, "--freq", "nan"], "--freq nan: expected a finite number"),
        (
            ["--sfts", "FOLDER", *PLACE, "--freq", "1e308"],
            "reach 1e+308 Hz during the data, expected frequencies below",
        ),
        (
            ["--sfts", "FOLDER", *PLACE, *BANK, "--f2dot", "1e308"],
            "--freq, --f1dot, --f2dot and --tref: templates reach",
        ),
        (["--sfts", "FOLDER", *PLACE, *BANK, "--f1dot", "1", "--tref", "1e308"], "--tref: templates reach"),
        (["--sfts", "FOLDER", "--ra", "inf", "--dec", "0", *BANK], "--ra inf: expected a finite number"),
        (["--sfts", "FOLDER", *PLACE, *BANK, "--ephemeris", "jpl"], "--ephemeris jpl: expected one of auto, lal"),
        ([], "no files of atoms are given; expected their names, --files-from, or --sfts"),
        (
            ["--sfts", "FOLDER", *PLACE, *BANK, "--templates", "none.txt"],
            "--freq and --templates: expected one of them",
        ),
        (["--sfts", "FOLDER", *PLACE, "--templates", "x", "--df", "1"], "--df needs --freq, not --templates"),
        (["--sfts", "FOLDER", *PLACE, "--freq", "-1"], "--freq -1.0: expected a number above 0"),
        (["--sfts", "FOLDER", *PLACE, "--templates", "none.txt"], "none.txt: No such file"),
        (["--sfts", "FOLDER", *PLACE, *BANK, "--files-from", "x"], "--files-from lists files of atoms"),
        (["--sfts", "FOLDER", *PLACE, *BANK, "--inject", "1,2"], "--inject 1,2: expected 4, 5 or 8 values"),
        (["--templates", "x", "a.npz"], "--templates needs --sfts"),
        (["--files-from", "none.txt"], "none.txt: No such file"),
    ],
)
def test_wrong_options_are_one_line(folder, changes, message):
    done = run("search", *(x.replace("FOLDER", str(folder)) for x in changes))
    assert done.exit_code == 2
    assert message in done.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--topk", "0"], "--topk 0: expected a whole number, at least 1"),
        (["--threads", "0"], "--threads"),
        (["--threads", "999999"], "Invalid value for '--threads'"),
        (["--log-tau", "99999999999"], "Invalid value for '--log-tau'"),
        (["--memory", "much"], "--memory 'much': expected a share"),
        (["--statistic", "power"], "--statistic 'power': expected one of"),
        (["--threshold", "nan"], "--threshold nan: expected a finite number"),
        (["--bsgl", "15", "--olgx", "0.5"], "--olgx [0.5] has 1 entry, expected 2"),
        (["--bsgl", "15", "--detectors", "H1"], "--bsgl 15: the line-robust statistic needs two or more detectors"),
        (["--inject", "100,-1,0.5,1"], "--inject 100,-1,0.5,1: h0=-1.0: expected at least 0"),
        (["--log-tau", "3", "--dtau", "1800"], "--dtau 1800 cannot be combined with --log-tau 3"),
        (["--dec", "2"], "--dec 2.0: expected an angle"),
    ],
)
def test_wrong_options_are_found_before_the_sfts_are_read(folder, options, message, monkeypatch):
    monkeypatch.setattr("skysieve.fstat.sfts.files.read_sfts", None)
    done = run("search", "--sfts", folder, *PLACE, *BANK, *options)
    assert done.exit_code == 2
    assert message in done.stderr.replace("\n", " ")
    assert "SFTs of 1800 s" not in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dec", "5"], "--dec 5: expected an angle"),
        (["--dec=2e0"], "--dec 2e0: expected an angle"),
        (["--bsgl", "15", "--olgx", "0.50"], "--olgx 0.50 has 1 entry, expected 2"),
    ],
)
def test_numbers_in_errors_are_as_typed(folder, options, message, monkeypatch):
    args = ["search", "--sfts", folder, *PLACE, *BANK, *options]
    monkeypatch.setattr("sys.argv", ["skysieve", "fstat", *map(str, args)])
    done = run(*args)
    assert done.exit_code == 2
    assert message in done.stderr.replace("\n", " ")


@pytest.mark.parametrize("more", [(), ("--cluster", "serial", "-o", "a.csv")])
def test_the_line_robust_statistic_needs_two_detectors(folder, more, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("search", "--sfts", folder / "H-*.sft", *PLACE, *BANK, "--bsgl", "15", *more)
    assert done.exit_code == 2
    assert "--bsgl 15: the line-robust statistic needs two or more detectors, found 1 (H1)" in done.stderr
    assert not list(tmp_path.iterdir())


def test_patterns_may_be_joined_as_in_lalpulsar(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    h1, l1 = next(folder.glob("H-*.sft")), next(folder.glob("L-*.sft"))
    assert [one.detector for one in read_sfts(f"{h1};{l1}")] == ["H1", "L1"]
    odd = tmp_path / "a;b.sft"
    shutil.copy(h1, odd)
    assert [one.detector for one in read_sfts(odd)] == ["H1"]
    tables = []
    for i, more in enumerate(([], ["--cluster", "serial"])):
        out = tmp_path / f"{i}.csv"
        done = run("search", "--sfts", f"H-*.sft;{l1.name};", *PLACE, *BANK, "-w", "rect", "-o", out, *more)
        assert done.exit_code == 0, done.output
        tables.append(out.read_text())
    assert tables[0] == tables[1]
    done = run("search", "--sfts", f"{h1};none.sft", *PLACE, *BANK)
    assert done.exit_code == 2
    assert "none.sft: no such file" in done.stderr


def best(out):
    return np.genfromtxt(out, delimiter=",", names=True, dtype=None, encoding="utf-8", ndmin=1)


def test_templates_at_the_end_of_the_band_are_named(folder, tmp_path):
    """Also where nothing else is searched: the band that is read still has the bins of the running median."""
    (tmp_path / "list.txt").write_text("100.199 0 0\n")
    done = run("search", "--sfts", folder, *PLACE, "--templates", tmp_path / "list.txt", "-w", "rect")
    assert done.exit_code == 2
    assert "template 0, H1: SFTs hold 100.087778 to 100.2 Hz, too narrow by" in done.stderr.replace("\n", " ")


def test_templates_from_a_list_and_standard_input(folder, tmp_path):
    """Bad templates of a list are named and left out."""
    rows = [(100.05, -2e-10), (100.04, -2e-10), (150.0, 0.0), (np.nan, 0.0), (100.06, -1e-10)]
    listed = tmp_path / "list.csv"
    listed.write_text("f1dot,name,f0\n" + "".join(f"{f1},x,{f0}\n" for f0, f1 in rows))
    plain = "# f0 f1dot\n" + "".join(f"{f0} {f1}\n" for f0, f1 in rows)
    tables = []
    for source, text in ((listed, None), ("-", plain)):
        out = tmp_path / f"{len(tables)}.csv"
        options = ["search", "--sfts", folder, *PLACE, "--templates", source, "-w", "rect", "-o", out]
        done = CliRunner().invoke(app, ["fstat", *map(str, options)], input=text)
        assert done.exit_code == 1, done.output
        assert "template 2: H1: SFTs hold" in done.stderr
        assert "template 3: f0 = nan" in done.stderr
        tables.append(best(out))
    assert np.array_equal(tables[0], tables[1])
    assert tables[0]["f0"][0] == 100.05
    assert tables[0]["f1dot"][0] == -2e-10
    assert sorted(tables[0]["template"]) == [0, 1, 4]


def test_damaged_files_are_reported_and_left_out(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "sfts")
    out = tmp_path / "found.csv"
    file = next((tmp_path / "sfts").glob("L-*.sft"))
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    (tmp_path / "sfts" / "none.sft").write_bytes(b"")
    done = run("search", "--sfts", tmp_path / "sfts", *PLACE, *BANK, "-w", "rect", "-o", out)
    assert done.exit_code == 1, done.output
    assert "SFT 95: checksum" in done.stderr.replace("\n", "")
    assert "none.sft: SFT 0: the file ends within a header" in done.stderr.replace("\n", "")
    assert best(out)["f0"][0] == pytest.approx(100.05, abs=1e-5)


def test_the_reference_time_may_be_years_before_the_data(folder, tmp_path):
    """As in catalogues of pulsars: the band to read is that of the frequencies during the data."""
    place, since, f1 = PLACE[:4] + PLACE[6:], -300_000_000, -2e-10
    (tmp_path / "list.txt").write_text(f"{100.05 + f1 * since:.12f} {f1}\n")
    loudest = []
    for tref, bank in (
        (0, ["--freq", "100.05", "--f1dot", f1]), (since, ["--freq", 100.05 + f1 * since, "--f1dot", f1]),
        (since, ["--templates", tmp_path / "list.txt"]),
    ):  # fmt: skip
        out = tmp_path / f"{len(loudest)}.csv"
        done = run("search", "--sfts", folder, *place, "--tref", 1_000_000_000 + tref, *bank, "-w", "rect", "-o", out)
        assert done.exit_code == 0, done.output
        loudest.append(float(best(out)["max2F"][0]))
    assert loudest == pytest.approx([loudest[0]] * 3, rel=2e-3)  # the bands read, and so the weights, differ a little


def test_detectors_that_are_not_searched_do_not_matter(folder, tmp_path):
    """Neither their times, from which the steps follow, nor their band."""
    alone, both = tmp_path / "alone", tmp_path / "both"
    for target in (alone, both):
        shutil.copytree(folder, target, ignore=shutil.ignore_patterns("L-*"))
    run("simulate", both, "--detectors", "L1", "--days", 6, "--freq", 100.1, "--freq-band", 0.1)
    (tmp_path / "list.txt").write_text("100.05\n")
    for bank in (["--freq", "100.05", "--freq-band", "2e-5"], ["--templates", tmp_path / "list.txt"]):
        done = [run("search", "--sfts", f, *PLACE, *bank, "--detectors", "H1", "-w", "none") for f in (alone, both)]
        assert done[0].exit_code == done[1].exit_code == 0, done[1].output
        assert done[0].output == done[1].output


def test_a_search_of_some_times_is_that_of_these_sfts(folder, tmp_path):
    """Also with --cluster; the steps of the grid follow from the shorter span."""
    first, last = 1_000_028_800, 1_000_090_000
    some = tmp_path / "some"
    some.mkdir()
    write_sfts(some, read_sfts(folder, min_start=first, max_start=last))
    options = [*PLACE, *BANK, "-w", "rect", "-o"]
    times = ["--min-start", first, "--max-start", last]
    assert run("search", "--sfts", some, *options, tmp_path / "a.csv").exit_code == 0
    for name, more in (("b.csv", ()), ("c.csv", ("--cluster", "serial"))):
        assert run("search", "--sfts", folder, *times, *options, tmp_path / name, *more).exit_code == 0
        assert (tmp_path / name).read_text() == (tmp_path / "a.csv").read_text()
    done = run("search", "--sfts", folder, "--min-start", 2_000_000_000, *options, tmp_path / "d.csv")
    assert "skysieve: --min-start 2000000000: no SFT starts then; they start from GPS 1000000000" in done.stderr


def test_a_search_with_known_noise(folder, tmp_path):
    """As in Python, also with --cluster; a checkpoint of another level is not continued."""
    options = ["--sfts", folder, *PLACE, *BANK, "-w", "none", "--noise", "1e-23,2e-23", "--topk", 3, "-o"]
    for name, more in (("a.csv", ()), ("b.csv", ("--cluster", "serial"))):
        assert run("search", *options, tmp_path / name, *more).exit_code == 0
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    found = np.genfromtxt(tmp_path / "a.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")[0]
    host = Demodulator(read_sfts(folder, (100.02, 100.08)), 0.5, 1.0, 1_000_000_000, barycentre="builtin",
                       noise={"H1": 1e-23, "L1": 2e-23})  # fmt: skip
    expected = transient_map(host.atoms(found["f0"], found["f1dot"]), window="none", device="cpu").max2F
    assert found["max2F"] == pytest.approx(expected, rel=1e-5)
    assert host.facts(TemplateBank([1.0]))["noise"] == "{'H1': 1e-23, 'L1': 2e-23}"


def test_the_default_reference_time_is_printed(folder):
    """A CSV file does not hold it."""
    place = PLACE[: PLACE.index("--tref")] + PLACE[PLACE.index("--tref") + 2 :]
    done = run("search", "--sfts", folder, *place, "--freq", "100.05", "-w", "none")
    assert "frequencies refer to GPS 1000086400, the middle of the data" in " ".join(done.stderr.split())
    done = run("search", "--sfts", folder, *PLACE, "--freq", "100.05", "-w", "none")
    assert "frequencies refer to" not in " ".join(done.stderr.split())


def test_injected_signals_are_found(folder, tmp_path):
    out = tmp_path / "found.csv"
    signal = "100.15,8e-24,0.5,1.0,0,rect,1000100000,36000"
    done = run(
        "search", "--sfts", folder, *PLACE, "--freq", "100.14999", "--freq-band", "2e-5", "--inject", signal,
        "-w", "rect", "-o", out,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    found = best(out)
    assert found["f0"][0] == pytest.approx(100.15, abs=5e-6)
    assert abs(found["t0_ml"][0] - 1_000_100_000) <= 3600
    assert abs(found["tau_ml"][0] - 36_000) <= 7200
    assert found["max2F"][0] > 100
    assert "in noise alone the loudest would have" not in done.stdout  # too few templates
    quiet = run(
        "search", "--sfts", folder, *PLACE, "--freq", "100.1499", "--freq-band", "2e-4", "--df", "4e-6", "-w", "rect"
    )
    assert "rect: in noise alone the loudest would have 2F =" in quiet.stdout
    narrow = run("search", "--sfts", folder, *PLACE, "--freq", "100.04999", "--freq-band", "2e-5", "--df", "4e-7",
                 "-w", "rect")  # fmt: skip
    assert "in noise alone the loudest would have" not in narrow.stdout
    assert "rect: the templates are too loud to tell what noise alone would give" in narrow.stdout


@pytest.mark.parametrize("signal", ["1,2,3", "1,2,3,x", "1,2,3,0.5,0,rect,a,b"])
def test_wrong_signals_are_one_line(tmp_path, signal):
    done = run("simulate", tmp_path / "x", "--signal", signal)
    assert done.exit_code == 2
    assert f"--signal {signal}" in done.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--start", "9000000000"], "--start 9000000000: expected 0 to 2147483647"),
        (["--start", "-5"], "--start -5: expected 0 to"),
        (["--tsft", "0"], "Invalid value for '--tsft'"),
        (["--seed", "-1"], "Invalid value for '--seed'"),
        (["--freq", "-1"], "--freq -1: expected at least 0"),
        (["--freq", "1e9"], "--freq 1e+09: expected frequencies below 1193046.47 Hz for an SFT"),
        (["--freq-band", "nan"], "--freq-band nan: expected a finite number"),
        (["--days", "0"], "--days 0: expected a number above 0, at most 24855.1"),
        (["--days", "1e308"], "--days 1e+308: expected a number above 0, at most 24855.1"),
        (["--noise", "1e308"], "--noise 1e+308 and --signal: the values do not fit into float32"),
        (["--noise", "-1"], "--noise -1: expected at least 0"),
        (["--detectors", "Z9"], "--detectors 'Z9': expected one of"),
        (["--signal", "105,1e-24,.5,1"], "signal of f0=105 Hz"),
        (["--signal", "100.1,1e-24,.5,1,0,rect,900000000,7200"], "no SFT starts in it"),
    ],
)
def test_simulations_that_cannot_be_right_write_nothing(tmp_path, options, message):
    done = run("simulate", tmp_path / "x", "--days", "0.1", "--ephemeris", "builtin", *options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (tmp_path / "x").exists()


def test_a_simulated_band_may_begin_at_0_hz(tmp_path):
    done = run("simulate", tmp_path / "x", "--days", "0.1", "--ephemeris", "builtin", "--freq", "0", "--freq-band", "1")
    assert done.exit_code == 0, done.output
    made = read_sfts(tmp_path / "x")[0]
    assert made.first_bin == 0
    assert np.isfinite(made.data).all()
