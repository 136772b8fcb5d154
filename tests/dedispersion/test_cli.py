"""``skysieve dedisp``: from options to files; mistakes are one line and exit status 2."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import typer
from astropy.io import fits
from rich.console import Console
from tests.dedispersion.test_formats import fil, psrfits
from tests.dedispersion.test_outputs import mask_bytes
from tests.marks import loses_help, slow
from typer.testing import CliRunner

from skysieve.cli import app
from skysieve.core.parts import LOCK, Lock
from skysieve.dedispersion import DMPlan, Filterbank, plan, write_fil
from skysieve.dedispersion.command import demo
from skysieve.dedispersion.command.cli import dedisp
from skysieve.dedispersion.search_options import channel_numbers


def run(*words, code=0):
    result = CliRunner().invoke(app, ["dedisp", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Pulses of DM 60 at half seconds."""
    made = tmp_path_factory.mktemp("data") / "a.fil"
    run(
        "fake", "-o", made, "--dm", 60, "--duration", 6, "--fch1", 430, "--foff", -0.4, "--nchan", 64, "--tsamp", 1e-3,
        "--snr", 25, "--width", 8e-3,
    )  # fmt: skip
    return made


def test_info(path):
    said = run("info", path)
    assert "6000 (6 s)" in said
    assert "404.800000 to 430.000000 MHz" in said
    assert run("info", path, path, code=2).count("\n") == 1


def test_plan_is_printed_saved_and_drawn(path, tmp_path):
    said = run("plan", path, "--dm-max", 120, "--rule", "presto", "--nsub", 16, "-o", tmp_path / "p.json", "--plot",
               tmp_path / "p.png")  # fmt: skip
    made = DMPlan.load(tmp_path / "p.json")
    assert f"{made.ndm} DMs (presto)" in said
    assert run("plan", path, "--dm-max", 50, "--width", 2).startswith("note: width=2 s: ")
    assert (tmp_path / "p.png").stat().st_size > 5000


def test_search_from_file_to_candidates_and_pictures(path, tmp_path):
    said = run("search", path, "--dm-max", 120, "-o", tmp_path / "c.csv", "--plot", tmp_path / "c.png", "--cutouts",
               tmp_path / "cuts", "--most", 2)  # fmt: skip
    assert "exact-subband on cpu" in said or "brute on cpu" in said  # the latter before the programs are compiled
    assert "x real time" in said
    table = np.genfromtxt(tmp_path / "c.csv", delimiter=",", names=True)
    top = table[table["snr"] > 12]
    np.testing.assert_allclose(np.sort(top["time"]), np.arange(0.5, 6, 1), atol=5e-3)
    assert np.abs(top["dm"] - 60).max() < 3
    assert len(list((tmp_path / "cuts").glob("*.h5"))) == 2
    assert (tmp_path / "c.png").exists()


def test_search_options_reach_the_search(path, tmp_path):
    quiet = run("search", path, "--lodm", 50, "--dmstep", 5, "--numdms", 5, "-q", "-o", tmp_path / "c.cand", "--noise",
                "clipped", "--threshold", 10, "--zerodm", "--rfi", "--ignore", "0,3:5", "--threads", 1)  # fmt: skip
    assert quiet == ""
    rows = np.loadtxt(tmp_path / "c.cand", ndmin=2)
    assert len(rows) >= 5
    assert set(rows[:, 4]) <= {0, 1, 2, 3, 4}  # the nearest of the DMs 50, 55, ...
    assert (np.abs(rows[:, 5] - 50 - 5 * rows[:, 4]) <= 2.5).all()
    said = run("search", path, "--dm-max", 100, "--dm-step", 20, "--detector", "threshold", "--buffer", 2000, "-t", 5)
    assert "events above 5 sigma" in said


def test_series_are_written(path, tmp_path):
    (tmp_path / "o").mkdir()
    said = run(
        "dedisperse", path, "--lodm", 58, "--dmstep", 1, "--numdms", 4, "--downsamp", 2, "-o", tmp_path / "o" / "x"
    )
    assert "x_DM61.00.dat: 4 series" in said
    series = Filterbank.open(tmp_path / "o" / "x_DM60.00.dat")
    assert series.tsamp == 2e-3
    found = run("search", tmp_path / "o" / "x_DM60.00.dat", "-o", tmp_path / "s.csv")
    assert "candidates" in found
    run("dedisperse", path, "--dm-max", 2, "--dm-step", 1, "-o", tmp_path / "y", "--format", "tim", "--quiet")
    assert Filterbank.open(tmp_path / "y_DM1.00.tim").observation.dm == 1


@pytest.mark.slow
def test_inject_and_plot(path, tmp_path):
    run("inject", path, "--dm", 30, "--time", 2.0, "--snr", 30, "--width", 4e-3, "-o", tmp_path / "b.fil")
    said = run("search", tmp_path / "b.fil", "--dm-max", 100, "--dm-step", 5)
    rows = [line.split() for line in said.splitlines() if re.match(r" +\d+\.\d+ +\d", line)]
    [shown] = [row for row in rows if abs(float(row[2]) - 2) < 2e-3]
    assert abs(float(shown[1]) - 30) < 0.5
    run("plot", tmp_path / "b.fil", "--dm", 30, "--time", 2.0, "--width", 4e-3, "-o", tmp_path / "b.png", "--hdf5",
        tmp_path / "b.h5")  # fmt: skip
    assert (tmp_path / "b.png").stat().st_size > 10_000
    assert (tmp_path / "b.h5").exists()
    assert "one of the files to read" in run("inject", path, "--dm", 30, "--time", 2, "--snr", 9, "--width", 4e-3, "-o",
                                             path, code=2)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search"], "--dm-max"),
        (["search", "--num-dms", "3"], "--num-dms needs --dm-step"),
        (["search", "--dm-max", "10", "-o", "c.txt"], "--output c.txt: expected one of csv, ecsv, json"),
        (["search", "--dm-max", "10", "--ignore", "99"], "from 0 to 63"),
        (["search", "--dm-max", "10", "--ignore", "a"], "such as 0,5:9"),
        (["search", "--dm-max", "10", "--device", "cuda:99"], "GPU"),
        (["search", "--dm-max", "10", "--memory", "1kB"], "budget"),
        (["search", "--dm-min", "9e5", "--dm-max", "1e6"], "the data have only 6000"),
        (["search", "--plan", "none.json"], "none.json"),
        (["search", "--dm-max", "1e308"], "--dm-max 1e+308: expected at most 1e+09"),
        (["search", "--dm-max", "9", "--width", "1e308"], "--width 1e+308: expected at most 1e+09"),
        (["search", "--dm-max", "9", "--each", "b.fil", "--threshold", "-1"], "skysieve: --threshold -1.0: expected a"),
        (["search", "--dm-max", "9", "--each", "b.fil", "--buffer", "9"], "--buffer needs --detector threshold"),
        (["search", "--dm-max", "9", "--each", "b.fil", "--dip", "0"], "skysieve: --dip 0.0: expected an S/N above 0"),
        (["search", "--dm-max", "9", "--dip", "1e308"], "--dip 1e+308: expected at most 1e+09"),
        (["search", "--dm-max", "9", "x" * 300], "xxx: File name too long"),
        (["inject", "--dm", "9", "--snr", "1e308", "-o", "a.fil"], "--snr 1e+308: expected at most 1e+09"),
        (["plot", "--dm", "1e308", "--time", "1", "--width", "1", "-o", "a.png"], "--dm 1e+308: expected at most"),
        (["dedisperse", "--dm-max", "1e6", "-o", "a"], "but the data have only 6000; expected lower DMs"),
        (["dedisperse", "--dm-max", "9", "-o", ""], "--output .: expected the start of file names"),
        (["info", "--ifs", "top"], "--ifs top"),
        (["search", "--dm-max", "10", "-q", "-v"], "--quiet and --verbose"),
    ],
)
def test_mistakes_are_one_line(path, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = run(words[0], path, *words[1:], code=2)
    assert message in said
    assert len(said.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["completeness", "--dm-max", "9", "--tsamp", "1e-308"], "--tsamp 1e-308: expected fewer than 2^53 samples"),
        (["completeness", "--dm-max", "9", "--noise-hours", "1e308"], "Invalid value for '--noise-hours'"),
        (["fake", "--dm", "1e308", "-o", "a.fil"], "--dm 1e+308: expected at most 1e+09"),
    ],
)
def test_mistakes_of_commands_without_files(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in run(*words, code=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["--device", "x"], ["--memory", "200%"], ["--dip", "-1"], ["--max-width", "inf"], ["--gulp", "1e308"],
        ["--block", "1e308"], ["--step", "2147483648"],
    ],
)  # fmt: skip
def test_a_refused_stream_makes_no_folder(path, words, tmp_path):
    given = ("--from", path, "--dm-max", 9, "--no-plots", "-o", tmp_path / "out", *words)
    assert words[0] in run("stream", *given, code=2)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_is_no_text_is_one_line(path):
    done = CliRunner().invoke(app, ["dedisp", "search", str(path), "--plan", "-", "-q"], input=b"\xff\x97")
    assert done.stderr == "skysieve: --plan -: is not a de-dispersion plan (it is not JSON)\n"


def test_files_of_other_kinds_are_refused(tmp_path):
    assert "No such file" in run("info", tmp_path / "no.fil", code=2)
    (tmp_path / "bad.fil").write_bytes(b"\x0c\x00\x00\x00HEADER_START")
    assert "cut off" in run("info", tmp_path / "bad.fil", code=2)


def test_missing_packages_are_reported_before_any_work(path, tmp_path, monkeypatch):
    for package, extra, option in (("h5py", "hdf5", "--cutouts"), ("matplotlib", "plot", "--plot")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            patch.setitem(sys.modules, f"{package}.backend_bases", None)
            said = run("search", path, "--dm-max", 90, "-o", tmp_path / "a.csv", option, tmp_path / "b.png", code=2)
        assert f"pip install 'skysieve[{extra}]'" in said
        assert not list(tmp_path.iterdir())


def test_demo_finds_its_pulses(tmp_path):
    assert demo.run(tmp_path, Console(quiet=True)) == []
    assert {"rrat.fil", "rrat.png", "rrat-pulse.png"} == {p.name for p in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="device='tpu'"):
        demo.run(tmp_path, Console(quiet=True), "tpu")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--num-dms", 3, "--dm-step", 1, "--dm-max", 9), "--num-dms cannot be combined with --dm-max"),
        (("--dm-max", 9, "--dm-step", 1, "--rule", "presto"), "--rule cannot be combined with"),
        (("--dm-max", 9, "--dm-constant", 0), "--dm-constant 0.0"),
        (("--dm-max", 9, "-t", 0), "--threshold 0.0: expected a number above 0"),
        (("--dm-max", 9, "--dm-step", 0), "--dm-step 0: expected a DM step of at least 1e-09"),
        (("--dm-max", 9, "--each", "--dm-step", 0), "skysieve: --dm-step 0: expected a DM step of at least 1e-09"),
        (("--num-dms", 5, "--dm-step", 1e-10), "--dm-step 1e-10: expected a DM step of at least 1e-09"),
        (("--num-dms", 5, "--dm-step", -1), "--dm-step -1: expected a DM step of at least 1e-09"),
        (("--num-dms", 5, "--dm-step", "nan"), "--dm-step nan: expected a DM step of at least 1e-09"),
        (("--num-dms", 5, "--dm-step", 1, "--dm-min", -2), "--dm-min -2: expected a number of at least 0"),
        (("--num-dms", 3_000_000, "--dm-step", 1), "--num-dms 3000000: expected at most 2000000 DMs"),
        (("--dm-max", 9, "--dm-step", 1e-7), "--dm-step 1e-07: the plan would have 90000001 DMs"),
        (("--dm-max", 9, "--most", 10), "--most needs --cutouts"),
        (("--dm-max", 9, "--most", 3, "--cluster", "serial"), "--most needs --cutouts"),
        (("--dm-max", 9, "--format", "csv"), "--format needs -o"),
        (("--dm-max", 9, "--tol", 1.25), "--tol needs --rule tolerance"),
        (("--dm-max", 9, "--rule", "presto", "--max-loss", 0.1), "--max-loss needs --rule loss"),
        (("--dm-max", 9, "--dm-step", 1, "--width", 1e-3), "--width needs a rule, not --stages, --dm-step or"),
        (("--dm-max", 9, "--detector", "threshold", "--max-width", 1), "--max-width needs --detector boxcar"),
        (("--dm-max", 9, "--block", 2, "--buffer", 512), "--block and --buffer: expected one of them"),
        (("--dm-max", 9, "--detector", "threshold", "--veto"), "--veto needs --detector boxcar"),
        (("--plan", "file", "--width", 1e-3), "--width needs a rule, not --plan"),
        (("--dm-max", 9, "--zero-dm", "--z-dot"), "--zero-dm and --z-dot: expected one of the two filters"),
        (("--dm-max", 9, "--ignore", "5:3"), "--ignore 5:3"),
        (("--dm-max", 9, "--ignore", "0:99999999999999"), "--ignore 0:99999999999999"),
        (("--dm-max", 9, "-o", "nowhere/a.csv"), "there is no folder nowhere"),
        (("--dm-max", 9, "--plot", "a.fil"), "--plot a.fil: expected a name that ends in"),
        (("--dm-max", 9, "-o", "folder.csv"), "folder.csv: is a folder"),
        (("--dm-max", 9, "--cutouts", "file"), "file: is a file, expected the name of a folder"),
    ],
)
def test_options_that_contradict_each_other_are_refused_before_any_work(path, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").touch()
    said = run("search", path, *words, code=2)
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("plan", "FILE", "--dm-max", 9, "--format", "csv"), "--format needs -o"),
        (("plan", "FILE", "--dm-max", 9, "--tol", 1.5), "--tol needs --rule tolerance"),
        (("dedisperse", "FILE", "--dm-max", 9, "--zero-dm", "--z-dot", "-o", "a"), "expected one of the two filters"),
        (("inject", "FILE", "--seed", 0, "-o", "b.fil"), "--seed needs --grid"),
        (("inject", "--ifs", "sum", "--grid", "snr=9", "-o", "b.fil"), "--ifs needs files"),
        (("plot", "FILE", "--dm", 9, "--time", 1, "--width", 1, "--zero-dm", "--z-dot", "-o", "a.png"), "two filters"),
        (("completeness", "--dm-max", 9, "--bit-order", "little"), "--bit-order needs files"),
        (("completeness", "--dm-max", 9, "--format", "csv"), "--format needs -o"),
        (("completeness", "--dm-max", 9, "--pulses", 0, "--duration", 1), "--pulses 0: expected at least one pulse"),
        (("emulate", "FILE", "--to", "127.0.0.1:9", "--reach", 4), "--reach needs --reorder or --duplicate"),
        (("emulate", "FILE", "--to", "127.0.0.1:9", "--spectra", 1), "--spectra needs --voltages"),
        (("emulate", "FILE", "--to", "dada:dada", "--packet-bytes", 9), "--packet-bytes needs a UDP address"),
    ],
)
def test_options_without_effect_are_refused_before_any_work(path, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in run(*(path if word == "FILE" else word for word in words), code=2)
    assert not list(tmp_path.iterdir())


def test_pulses_come_evenly_or_at_random(tmp_path):
    said = run("fake", "-o", tmp_path / "a.fil", "--rate", 1, "--period", 2, code=2)
    assert "--rate cannot be combined with --period" in said
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named(path, tmp_path):
    said = run("inject", path, "--dm", 9, "--time", 1, "--snr", 9, "--width", 4e-3, "-o", tmp_path / "no/b.fil", code=2)
    assert said == f"skysieve: {tmp_path / 'no/b.fil'}: there is no folder {tmp_path / 'no'}\n"


def test_a_series_keeps_the_dm_that_it_has(path, tmp_path):
    """De-dispersed at 60, then only binned: still at 60."""
    run("dedisperse", path, "--dm-min", 60, "--num-dms", 1, "-o", tmp_path / "a")
    run("dedisperse", tmp_path / "a_DM60.00.dat", "--downsamp", 2, "-o", tmp_path / "b")
    with Filterbank.open(tmp_path / "b_DM60.00.dat") as fb:
        assert (fb.observation.dm, fb.tsamp) == (60.0, 2e-3)


def test_a_mask_of_another_file_is_refused(path, tmp_path):
    mask = tmp_path / "a.mask"
    mask.write_bytes(mask_bytes(64, 12, 1000, [], list(range(6, 12)), [[]] * 12))
    said = run("search", path, "--dm-max", 1, "--mask", mask, "--device", "cpu")
    assert "note:" in said and "12 intervals of 1000 samples, the data have 6000 samples" in said  # noqa: PT018
    assert "masked: 0.00% of the data" in said  # what is masked lies past the end


def test_a_plan_brings_its_own_options(path, tmp_path):
    run("plan", path, "--dm-max", 80, "-o", tmp_path / "p.json")
    for words in (("--dm-constant", 4150), ("--dm-min", 5)):
        assert "--plan cannot be combined with" in run("search", path, "--plan", tmp_path / "p.json", *words, code=2)


def test_rfifind_and_rfi_masks_go_together(path, tmp_path):
    mask = struct.pack("<6d3i", 10, 4, 56000, 1.5, 404.8, 0.4, 64, 4, 1500)
    mask += struct.pack("<i1ii4i", 1, 7, 0, 0, 0, 0, 0)
    (tmp_path / "a.mask").write_bytes(mask)
    said = run("search", path, "--dm-max", 80, "--mask", tmp_path / "a.mask", "--rfi")
    assert 0.015 < float(said.split("masked: ")[1].split("%")[0]) / 100 < 0.2


def test_no_stage_writes_over_the_series_of_another(path, tmp_path):
    with Filterbank.open(path) as fb:
        plan(fb, stages=[(1.001, 3.001, 1, 1), (1.004, 3.004, 1, 2)]).save(tmp_path / "a.json")
        plan(fb, stages=[(1, 3, 1, 1), (2, 4, 1, 2)]).save(tmp_path / "b.json")
    (tmp_path / "out").mkdir()
    run("dedisperse", path, "--plan", tmp_path / "a.json", "-o", tmp_path / "out" / "a")
    names = sorted(f.name for f in (tmp_path / "out").glob("*.dat"))
    assert names == [f"a_DM{dm}.dat" for dm in ("1.001", "1.004", "2.001", "2.004")]
    said = run("dedisperse", path, "--plan", tmp_path / "b.json", "-o", tmp_path / "out" / "b", code=2)
    assert "the same DM in two stages" in said


def test_series_have_files_of_their_own(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "--output -: expected the start of file names" in run("dedisperse", path, "--dm-max", 2, "-o", "-", code=2)
    assert not list(tmp_path.glob("-*"))
    said = run("dedisperse", path, "--dm-max", 2, "--dm-step", 1, "-o", "s")
    assert "wrote s_DM0.00.dat to s_DM2.00.dat: 3 series" in said
    said = run("dedisperse", path, "--dm-max", 2, "--dm-step", 1, "-o", "none/s", code=2)
    assert "none/s_DM0.00.dat: there is no folder none" in said
    assert not (tmp_path / "none").exists()


def test_series_that_another_process_writes_are_refused_before_any_work(path, tmp_path):
    """Their .dat would be of one process, and their .inf of the other."""
    words = ("dedisperse", path, "--dm-max", 2, "--dm-step", 1, "-o", tmp_path / "s")
    lock = Lock(tmp_path / "s.parts" / LOCK)
    assert "s.parts is in use by process" in run(*words, code=2)
    lock.close()
    run(*words)
    names = [f"s_DM{n}.00.{end}" for n in range(3) for end in ("dat", "inf")]
    assert sorted(f.name for f in tmp_path.glob("*")) == names
    (tmp_path / "s_DM1.00.dat").unlink()
    assert "s_DM0.00.dat" in run(*words, code=2)
    for n in range(3):
        (tmp_path / f"s_DM{n}.00.dat").unlink(missing_ok=True)
    assert "s_DM0.00.inf" in run(*words, code=2)


def test_series_are_written_in_parts_that_fit(path, tmp_path):
    """41 DMs of 6000 samples, some 30 at a time: the series of all at once, and longer where delays are less."""
    words = ("dedisperse", path, "--dm-max", 60, "--dm-step", 1.5, "-o")
    said = run(*words, tmp_path / "a", "--memory", 1_500_000)
    assert said.count("wrote") == 2
    run(*words, tmp_path / "b", "-q")
    names = sorted(f.name[2:] for f in tmp_path.glob("a_DM*.dat"))
    assert len(names) == 41
    for name in names:
        part, whole = (Filterbank.open(tmp_path / f"{x}_{name}").read()[0] for x in "ab")
        assert len(part) >= len(whole)
        assert np.array_equal(part[: len(whole)], whole)


@pytest.mark.slow
def test_masks_reach_the_pictures(path, tmp_path):
    """A channel that is ignored is empty in the cut-outs, whether searched or plotted."""
    import h5py

    for words in (
        ("search", path, "--dm-max", 120, "--dm-step", 10, "--ignore", "5", "--cutouts", tmp_path, "--most", 1),
        ("plot", path, "--dm", 60, "--time", 2.5, "--width", 8e-3, "--ignore", "5", "-o", tmp_path / "b.png", "--hdf5",
         tmp_path / "b.h5"),
    ):  # fmt: skip
        run(*words)
    files = sorted(tmp_path.glob("*.h5"))
    assert len(files) == 2
    for name in files:
        with h5py.File(name) as file:
            spectrum = file["data_freq_time"][:]
        assert not spectrum[:, 20:24].any()  # 64 channels, four times each
        assert spectrum[:, [19, 24]].any(axis=0).all()


@pytest.mark.slow
def test_neither_pictures_nor_the_table_are_lost_if_the_other_fails(path, tmp_path, monkeypatch):
    from skysieve.dedispersion.command import cli
    from skysieve.dedispersion.single_pulse import cutouts

    def fails(*_, **__):
        raise OSError("no room is left")

    words = ("search", path, "--dm-max", 120, "--dm-step", 10, "--plot", tmp_path / "a.png", "--overwrite")
    with monkeypatch.context() as patch:
        patch.setattr(cli, "show", fails)
        assert "no room is left" in run(*words, code=2)
    assert (tmp_path / "a.png").stat().st_size > 1000
    monkeypatch.setattr(cutouts, "write_cutouts", fails)
    said = run(*words, "--cutouts", tmp_path / "cut", code=2)
    assert "no room is left" in said
    assert "candidates (" in said


@pytest.mark.slow
def test_requantised_data_hold_the_same_pulses(path, tmp_path):
    with Filterbank.open(path) as fb:
        x = fb.read().astype(np.float32) / 3 - 100
        write_fil(tmp_path / "f.fil", Filterbank.from_array(x, freqs=fb.freqs, tsamp=fb.tsamp))
    for words in ((), ("--zerodm",), ("--z-dot",)):
        said = run("search", tmp_path / "f.fil", "--dm-max", 120, "--dm-step", 4, "--requantise", *words, "-o",
                   tmp_path / "r.csv", "--overwrite")  # fmt: skip
        assert "requantised to 8 bits, which costs 0.04% of the S/N" in said
        table = np.genfromtxt(tmp_path / "r.csv", delimiter=",", names=True)
        top = table[table["snr"] > 12]
        np.testing.assert_allclose(np.sort(top["time"]), np.arange(0.5, 6, 1), atol=5e-3)
    run("dedisperse", tmp_path / "f.fil", "--dm-max", 2, "--dm-step", 1, "--requantise", "-q", "-o", tmp_path / "y")
    assert Filterbank.open(tmp_path / "y_DM0.00.dat").read().mean() == pytest.approx(64 * 64, rel=0.01)


def test_gaps_are_reported(tmp_path):
    offsets = 0.016 * (np.array([0, 1, 4, 5]) + 0.5)
    raw = np.random.default_rng(0).integers(0, 200, (64, 1, 8)).astype(np.uint8)
    made = psrfits(tmp_path / "a.fits", raw, 8)
    with fits.open(made, mode="update") as file:
        file["SUBINT"].data["OFFS_SUB"] = offsets
    said = run("info", made)
    assert "note: " in said
    assert "1, of 0.032 s in all" in said


def test_one_polarisation_is_chosen(tmp_path):
    x = np.random.default_rng(1).integers(0, 100, (200, 2, 4), np.uint8)
    two = fil(tmp_path, x, nifs=2)
    assert "200 (0.2 s)" in run("info", two, "--ifs", 1)
    for which, truth in (("sum", x[:, 0].astype(int) + x[:, 1]), (0, x[:, 0]), (1, x[:, 1])):
        run("dedisperse", two, "--dm-max", 0.1, "--dm-step", 1, "--ifs", which, "-q", "-o", tmp_path / f"{which}")
        [made] = tmp_path.glob(f"{which}_DM*.dat")
        assert np.array_equal(np.fromfile(made, np.float32)[:200], truth.sum(axis=1))
    assert "--ifs top: expected sum or the number" in run("info", two, "--ifs", "top", code=2)
    assert "--ifs 2: expected 'sum' or a number from 0 to 1" in run("info", two, "--ifs", 2, code=2)


@pytest.mark.parametrize(("device", "given"), [("cpu", 512 * 2**20), ("cuda", "1GiB")])
def test_memory_is_halved_for_series_on_the_host_only(path, tmp_path, monkeypatch, device, given):
    """On a GPU it is the GPU's."""
    asked = []

    def note(*_, memory, **__):
        asked.append(memory)
        raise ValueError("enough")

    monkeypatch.setattr("skysieve.core.device.resolve", lambda name: (SimpleNamespace(kind=name),))
    monkeypatch.setattr("skysieve.dedispersion.api.dedisperse", note)
    run("dedisperse", path, "--dm-max", 1, "--device", device, "--memory", "1GiB", "-o", tmp_path / "a", code=2)
    assert asked == [given]


def test_a_command_that_is_ended_leaves_nothing_half_written(tmp_path, monkeypatch):
    def end(*_, **__):
        assert [p.suffix for p in tmp_path.iterdir()] == [".fil"]
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    monkeypatch.setattr("skysieve.dedispersion.data.write.pack", end)
    assert "interrupted" in run("fake", "-o", tmp_path / "a.fil", "--nchan", 8, "--duration", 1, code=130)
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_cannot_be_searched_ends_with_status_2(path, tmp_path):
    """A block below the minimum, a file without nchans, DMs of a series: one line that says what was expected."""
    said = run("search", path, "--dm-max", 100, "--dm-step", 5, "--block", 0.05, code=2)
    assert "--block 0.05: expected at least 1.024 s: 1024 samples" in said
    head = path.read_bytes()
    at = head.index(b"nchans") - 4
    (tmp_path / "a.fil").write_bytes(head[:at] + head[at + 14 :])
    assert "the header lacks nchans" in run("search", tmp_path / "a.fil", "--dm-max", 100, code=2)
    assert "the header lacks nchans" in run("info", tmp_path / "a.fil", code=2)
    run("dedisperse", path, "--dm-min", 60, "--num-dms", 1, "-o", tmp_path / "x", "-q")
    series = tmp_path / "x_DM60.00.dat"
    assert "candidates" in run("search", series)
    assert "candidates" in run("search", series, "--dm-min", 60, "--dm-max", 60)
    assert "expected only DM 60" in run("search", series, "--dm-min", 50, "--dm-max", 50, code=2)
    for options in (("--dm-max", 100), ("--dm-max", 100, "--dm-step", 1), ("--dm-step", 1, "--num-dms", 5)):
        assert "at DM 60: they cannot be searched at several DMs" in run("search", series, *options, code=2)


@pytest.mark.slow
def test_dropouts_do_not_spoil_the_filters_of_the_command(tmp_path):
    x = np.random.default_rng(3).normal(96, 16, (64, 12000)).round().clip(0, 255).astype(np.uint8)
    x[:, 4000:4400] = x[10:30, 7000:9000] = 0
    write_fil(tmp_path / "a.fil", Filterbank.from_array(x, fch1=1500, foff=-4, tsamp=1e-3))
    for options in ((), ("--rfi",), ("--zerodm",), ("--requantise",), ("--rfi", "--zerodm"), ("--z-dot",)):
        said = run("search", tmp_path / "a.fil", "--dm-max", 300, "--dm-step", 5, "-t", 7, *options)
        assert "0 candidates (0 events above 7 sigma)" in said, options
        assert "4 to 4.4 s (all channels)" in said, options


def test_one_filter_of_broadband_interference_at_a_time(path):
    said = run("search", path, "--dm-max", 100, "--zerodm", "--z-dot", code=2)
    assert "--zero-dm and --z-dot: expected one of the two filters" in said


def test_filters_leave_out_masked_channels(tmp_path):
    """Samples of an ignored channel change nothing in a series that is filtered."""
    rng = np.random.default_rng(8)
    x = rng.integers(90, 110, (3000, 16), dtype=np.uint8)
    made = []
    for name, high in (("quiet", 110), ("loud", 250)):
        x[:, 3] = rng.integers(90, high, 3000)
        fil(tmp_path, x, name=f"{name}.fil", nchans=16, nbits=8)
        words = ("--lodm", 5, "--dmstep", 1, "--numdms", 1, "--zerodm", "--ignore", 3, "-o", tmp_path / name)
        run("dedisperse", tmp_path / f"{name}.fil", *words)
        made.append(np.fromfile(next(tmp_path.glob(f"{name}_DM*.dat")), np.float32))
    assert np.array_equal(*made)


def test_facts_of_files_as_json(path):
    found = json.loads(run("info", path, "--json"))
    assert (found["channels"], found["samples"], found["tsamp"], found["bits"]) == (64, 6000, 1e-3, 8)
    assert (found["highest_frequency"], found["dm"], found["gaps"]) == (430.0, None, [])


def stdout_of(*words, stdin=None):
    result = CliRunner().invoke(app, ["dedisp", *map(str, words)], input=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout_bytes


@pytest.mark.parametrize("form", ["csv", "json", "cand", "ecsv"])
def test_candidates_on_standard_output_are_those_of_a_file(path, tmp_path, form):
    # with "auto" the table names another method before the sums are compiled
    words = ("search", path, "--dm-max", 120, "--dm-step", 10, "--method", "brute", "--format", form, "-o")
    run(*words, tmp_path / f"c.{form}")
    assert stdout_of(*words, "-") == (tmp_path / f"c.{form}").read_bytes() != b""


def test_remarks_on_the_data_are_shown_beside_a_table_on_standard_output(tmp_path):
    write_fil(
        tmp_path / "a.fil", Filterbank.from_array(np.full((16, 4000), 100, np.uint8), fch1=1500, foff=-1, tsamp=1e-3)
    )
    result = CliRunner().invoke(app, ["dedisp", "search", str(tmp_path / "a.fil"), "--dm-max", "50", "-o", "-"])
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 1
    assert "channels 100.00%" in result.stderr
    assert "not searched: pulses of DM" in result.stderr


def test_one_dm_alone(path, tmp_path):
    with Filterbank.open(path) as fb:
        write_fil(tmp_path / "one.fil", Filterbank.from_array(fb.read()[:1], fch1=430, foff=-1, tsamp=1e-3))
    assert "DM 0" in run("search", tmp_path / "one.fil", "--dm-max", 5, code=2)
    run("search", tmp_path / "one.fil", "--dm-max", 0, "-o", tmp_path / "one.csv")
    run("stream", "--from", tmp_path / "one.fil", "--dm-max", 0, "-o", tmp_path / "out", "--no-plots", "--no-raw")
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["data_seconds"] == 6.0
    run("search", path, "--dm-min", 60, "--dm-max", 60, "-o", tmp_path / "c.json")
    assert {one["dm"] for one in json.loads((tmp_path / "c.json").read_text())["candidates"]} == {60.0}


def test_a_file_that_is_named_twice_is_searched_once(path, tmp_path):
    other = path.parent / ".." / path.parent.name / path.name
    run("search", path, other, "--each", "--dm-max", 70, "--dm-step", 10, "-o", tmp_path / "twice.csv")
    run("search", path, "--each", "--dm-max", 70, "--dm-step", 10, "-o", tmp_path / "once.csv")
    assert (tmp_path / "twice.csv").read_text() == (tmp_path / "once.csv").read_text() != ""


def test_a_plan_is_piped_into_a_search(path):
    for form, start in (("json", b'{"format"'), ("csv", b"dm_low,dm_high")):
        made = stdout_of("plan", path, "--dm-max", 120, "-o", "-", "--format", form)
        assert made.startswith(start)
    saved = stdout_of("plan", path, "--dm-max", 120, "-o", "-", "--format", "json")
    table = stdout_of("search", path, "--plan", "-", "-o", "-", stdin=saved)
    assert table == stdout_of("search", path, "--dm-max", 120, "-o", "-")


def test_data_come_from_standard_input_and_go_to_standard_output(path, tmp_path):
    data = path.read_bytes()
    assert stdout_of("info", "-", stdin=data) == stdout_of("info", path)
    words = ("--dm", 30, "--time", 2, "--snr", 30, "--width", 4e-3, "-o")
    run("inject", path, *words, tmp_path / "b.fil")
    assert stdout_of("inject", "-", *words, "-", stdin=data) == (tmp_path / "b.fil").read_bytes()
    assert "cannot be combined with files" in run("info", "-", path, code=2)


@pytest.mark.few
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("search", "DATA", "--dm-max", 60, "--dm-step", 20, "-o", "c.csv"), ["c.csv"]),
        slow(("search", "DATA", "--dm-max", 60, "--dm-step", 20, "--plot", "c.png"), ["c.png"]),
        (("search", "DATA", "--dm-max", 60, "--dm-step", 20, "--cutouts", "cuts", "--most", 1), ["cuts"]),
        (("plan", "DATA", "--dm-max", 60, "-o", "p.json"), ["p.json"]),
        (("plan", "DATA", "--dm-max", 60, "--plot", "p.png"), ["p.png"]),
        (("dedisperse", "DATA", "--dm-min", 5, "--num-dms", 1, "-o", "x"), ["x_DM5.00.dat"]),
        (("inject", "DATA", "--dm", 9, "--time", 1, "--snr", 9, "--width", 4e-3, "-o", "b.fil"), ["b.fil"]),
        (("fake", "--duration", 1, "--nchan", 8, "-o", "f.fil"), ["f.fil"]),
        (
            ("plot", "DATA", "--dm", 60, "--time", 2.5, "--width", 8e-3, "-o", "q.png", "--hdf5", "q.h5"),
            ["q.h5", "q.png"],
        ),
    ],
)
def test_outputs_are_named_and_not_replaced_without_overwrite(path, words, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [path if word == "DATA" else word for word in words]
    said = run(*words)
    assert all(f"wrote {name}" in said and (tmp_path / name).exists() for name in names), said
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    assert "--overwrite" in run(*words, code=2)
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == before
    run(*words, "--overwrite")
    assert "wrote" not in run(*words, "--overwrite", *(("-q",) if words[0] != "info" else ()))


@pytest.mark.parametrize("name", ["info", "plan", "dedisperse", "search", "fake", "inject", "plot"])
def test_help_screens_have_an_example_and_sentences(name):
    command = typer.main.get_command(dedisp).commands[name]
    assert re.search(rf"Examples?:\s+(- )?skysieve dedisp {name} ", command.help)
    for option in command.params:
        if option.name == "help" or loses_help(option):
            continue
        assert option.help[0].isupper(), (name, option.name)
        assert option.help.endswith("."), (name, option.name)
        if isinstance(option.default, str | int | float) and not isinstance(option.default, bool):
            assert "default is" in option.help or option.default != option.default, (name, option.name)


def test_channel_numbers():
    assert channel_numbers(None, 4) == []
    assert channel_numbers("3", 4) == [3]
    assert channel_numbers("0,2:2,1:3", 5) == [0, 2, 1, 2, 3]


@pytest.mark.parametrize("text", ["a", "1,", "1:", ":1", "1.5", "-1", "3:1", "4", "0:4", "0:99999999999999"])
def test_what_are_no_channel_numbers(text):
    with pytest.raises(ValueError, match=f"^--ignore {text}: expected channels"):
        channel_numbers(text, 4)


def test_all_channels_are_not_ignored():
    with pytest.raises(ValueError, match=r"^--ignore 2,0:3: all channels are left out"):
        channel_numbers("2,0:3", 4)
