"""``skysieve period`` for surveys: aliases, false-alarm probabilities, jitter, moving objects, interrupted runs."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import skysieve
from skysieve.cli import app
from skysieve.core.errors import SkysieveError
from skysieve.core.table_files import write_table
from skysieve.periodogram.analysis.phase_function import basis
from skysieve.periodogram.command.resume import Parts
from skysieve.periodogram.lightcurves.simulate import simulate_light_curves
from skysieve.periodogram.survey import Found

GRID = ("--fmin", "0.2", "--fmax", "5", "--nf", "4000", "--device", "cpu")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


def read(path: Path):
    from astropy.table import Table

    return Table.read(path)


def test_aliases_and_chances_are_shown(tmp_path: Path) -> None:
    """Nights only: the peaks a cycle a day away are named, in the table and on the terminal."""
    rng = np.random.default_rng(0)
    t = np.sort(rng.integers(0, 90, 200) + 0.25 * rng.random(200))
    path, out = tmp_path / "star.csv", tmp_path / "p.ecsv"
    noise = rng.normal(0, 0.1, 200)
    write_table({"t": 59000 + t, "mag": np.sin(2 * np.pi * 1.41 * t) + noise, "err": np.full(200, 0.1)}, path)
    result = run("period", path, *GRID, "--peaks", "3", "-o", out)
    assert result.exit_code == 0, result.stderr
    assert re.search(r"^1 +0\.709\d+ +\d\.\de-\d+ +1\.4[01]\d+ +0\.9\d+ +\d\.\de-\d+ *$", result.stdout, re.M)
    assert re.search(r"^2 .*#1 [+-] 1/d *$", result.stdout, re.M)
    table = read(out)
    assert table["fap"][0] < table["fap_2"][0] < 1e-20
    assert set(table["alias_2"]) <= {"#1 + 1/d", "#1 - 1/d"}
    data = np.loadtxt(path, delimiter=",", skiprows=1)
    ls = skysieve.LombScargle(*data.T, device="cpu")
    for k, end in enumerate(("", "_2", "_3")):
        expected = ls.false_alarm_probability(table["power" + end][0], frequency=np.array([0.2, 5.0]))
        assert table["fap" + end][0] == pytest.approx(float(expected), rel=1e-9), k


def test_chances_of_a_batch_with_holes(tmp_path: Path) -> None:
    """Objects differ, and some have no result; each has the probability of a search of that object alone."""
    made = simulate_light_curves([0.31, 0.77, 1.9, 1.0], 0.2, [60, 2, 90, 50], seed=4)
    y = made.y.copy()
    y[[5, 70]] = np.nan
    ids = np.repeat([4, 1, 3, 2], made.n_obs)
    path, out = tmp_path / "batch.csv", tmp_path / "p.ecsv"
    write_table({"id": ids, "mjd": made.t, "mag": y, "magerr": made.dy}, path)
    result = run("period", path, "--fmax", "4", "--peaks", "2", "-o", out, "--device", "cpu")
    assert result.exit_code == 0, result.stderr
    table = read(out)
    assert table["id"].tolist() == [4, 1, 3, 2]
    assert np.isnan(table["fap"][1])
    for i in (0, 2, 3):
        rows = ids == table["id"][i]
        ls = skysieve.LombScargle(made.t[rows], y[rows], made.dy[rows], device="cpu")
        lowest = 1 / np.ptp(made.t[rows][np.isfinite(y[rows])])  # of the grid; the formula looks at its upper end
        ends = {"minimum_frequency": lowest, "maximum_frequency": 4.0, "samples_per_peak": 10}
        expected = ls.false_alarm_probability(table["power"][i], **ends)
        assert table["fap"][i] == pytest.approx(float(expected), rel=1e-6), i
    raw = run("period", path, "--fmax", "4", "--normalization", "scargle", "--device", "cpu")
    assert "the power of normalization 'scargle' depends on the unknown scatter of the values" in raw.stderr


def test_jitter(tmp_path: Path) -> None:
    """One point with an error far too small rules the fit, unless the known scatter is added."""
    made = simulate_light_curves([0.77], 0.5, [60], seed=1)
    y, dy = made.y.copy(), made.dy.copy()
    y[7], dy[7] = y[7] + 3, 1e-6
    path = tmp_path / "a.csv"
    write_table({"t": made.t, "mag": y, "err": dy}, path)
    out = tmp_path / "p.csv"
    for options, good in (((), False), (("--jitter", "1"), True)):
        assert run("period", path, *GRID, *options, "-q", "-o", out, "--overwrite").exit_code == 0
        assert (abs(read(out)["period"][0] - 0.77) < 0.005) == good
        arguments = {"fmin": 0.2, "fmax": 5, "nf": 4000, "device": "cpu"}
        expected = skysieve.lombscargle(made.t, y, np.hypot(dy, 1.0 if good else 0.0), **arguments)
        assert read(out)["power"][0] == pytest.approx(float(expected.best_power), rel=1e-12)
    assert "--jitter -1: expected a number of at least 0" in run("period", path, "--jitter", "-1").stderr
    dy[7] = -1  # a mark of something wrong; scatter does not make it good
    write_table({"t": made.t, "mag": y, "err": dy}, path)
    assert "dy has values that are not positive" in run("period", path, *GRID, "--jitter", "1").stderr
    assert run("period", path, *GRID, "--no-err", "--jitter", "0", "-q", "-o", out, "--overwrite").exit_code == 0
    assert read(out)["status"][0] == "ok"


def test_times_that_carry_a_unit_keep_it(tmp_path: Path) -> None:
    from astropy.table import Table
    from astropy.units import s

    made = simulate_light_curves([0.77], 0.5, [60], seed=1)
    path, out = tmp_path / "a.fits", tmp_path / "p.csv"
    Table({"time": made.t * 86400 * s, "mag": made.y}).write(path)
    expected = skysieve.lombscargle(made.t, made.y, fmin=0.2, fmax=5, nf=4000, device="cpu").period
    for unit, noted in (("d", False), ("s", False), ("h", True)):
        result = run("period", path, *GRID, "--time-unit", unit, "-o", out, "--overwrite")
        assert ("--time-unit is not used" in result.stderr) == noted
        assert read(out)["period"][0] == pytest.approx(float(expected), rel=1e-9)


@pytest.fixture
def asteroids(tmp_path: Path) -> Path:
    """Two asteroids of two humps a turn with Rubin's columns, and a row of a star."""
    rng = np.random.default_rng(3)
    rows: dict[str, list[np.ndarray]] = {}
    for k, rotation in enumerate((8.7, 21.3)):
        n = 150
        t = np.sort(rng.integers(0, 100, n) + 0.4 * rng.random(n))
        delta, r = 1.2 + 0.6 * np.sin(t / 40) ** 2, 2.1 + 0.1 * np.cos(t / 70)
        alpha = 2 + 22 * np.abs(np.sin(t / 45))
        angle = 2 * np.pi * (t - delta * 0.0057755183) / (rotation / 24)
        shape = 0.12 * np.sin(2 * angle) + 0.05 * np.cos(angle)
        flux = 3e5 * (np.array([0.3, 0.4, 0.3]) @ basis(alpha)) / (r * delta) ** 2 * 10 ** (-0.4 * shape)
        more = {
            "ssObjectId": np.full(n, 10**17 + k), "diaObjectId": np.zeros(n, int), "midpointMjdTai": 60000 + t,
            "psfFlux": flux * (1 + 0.02 * rng.normal(size=n)), "psfFluxErr": 0.02 * flux, "heliocentricDist": r,
            "topocentricDist": delta, "phaseAngle": alpha, "band": np.full(n, "r"),
        }  # fmt: skip
        for name, values in more.items():
            rows.setdefault(name, []).append(values)
    path = tmp_path / "sources.parquet"
    table = {name: np.concatenate([*values, values[0][:1]]) for name, values in rows.items()}
    table["ssObjectId"][-1], table["diaObjectId"][-1] = 0, 5
    write_table(table, path)
    return path


GEOMETRY = ("--r", "heliocentricDist", "--delta", "topocentricDist", "--phase", "phaseAngle")


def test_moving_objects(asteroids: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.ecsv"
    search = ("--min-period", "4", "--max-period", "60", "--samples-per-peak", "10", "--device", "cpu", "-o", out)
    result = run("period", asteroids, "--asteroid", *GEOMETRY, *search)
    assert result.exit_code == 0, result.stderr
    assert "1 row was left out: no id in column 'ssObjectId'" in result.stderr
    table = read(out)
    np.testing.assert_allclose(table["rotation_period_h"], [8.7, 21.3], rtol=2e-3)
    assert (table["power"] > 0.6).all()
    plain = run("period", asteroids, "--asteroid", *search, "--overwrite")
    assert plain.exit_code == 0
    assert (read(out)["power"] < 0.5).all()
    for options, message in (
        (("--r", "heliocentricDist"), "--r and --delta: both distances"),
        (("--phase", "phaseAngle"), "need the distances"),
        ((*GEOMETRY, "--phase-model", "none"), "--phase needs a --phase-model other than none"),
        ((*GEOMETRY[:4], "--phase-model", "linear"), "needs the column of phase angles"),
        ((*GEOMETRY[:4], "--phase", "nothing"), "no column 'nothing' for --phase"),
    ):
        assert message in run("period", asteroids, *options).stderr


def test_motion_is_taken_out_a_part_at_a_time(asteroids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the run stores its fits of phase functions: a run that continues does not repeat them."""
    from skysieve.periodogram.analysis import solar_system as moving

    reduce_part, execute = moving.reduce_part, skysieve.LombScarglePlan.execute
    reduced: list[int] = []
    searched: list[int] = []

    def counted(curves, model):
        reduced.extend(curves.ids % 10)
        return reduce_part(curves, model)

    def broken(*args, **options):
        searched.append(1)
        if len(searched) == 2:
            raise KeyboardInterrupt
        return execute(*args, **options)

    monkeypatch.setattr(moving, "reduce_part", counted)
    whole, out = tmp_path / "whole.csv", tmp_path / "p.csv"
    command = ("period", asteroids, "--asteroid", *GEOMETRY, *GRID)
    run(*command, "-o", whole)
    command = (*command, "--resume", "--partition", "1", "-o", out)
    monkeypatch.setattr(skysieve.LombScarglePlan, "execute", broken)
    reduced.clear()
    assert run(*command).exit_code == 130
    assert reduced == [0, 1]
    reduced.clear()
    result = run(*command)
    assert result.exit_code == 0
    assert reduced == [1]
    assert "psfFlux is taken as fluxes" in result.stderr
    assert out.read_text() == whole.read_text()


@pytest.mark.slow
def test_both_readings_with_several_terms(asteroids: Path, tmp_path: Path) -> None:
    """With four terms the period may be one turn or half a turn: the table has both, and the chi-square between them.

    Of the first asteroid a whole turn is in the range (nothing is gained by two), of the second only half of one.
    """
    out = tmp_path / "p.ecsv"
    options = ("--nterms", "4", "--min-period", "3", "--max-period", "12", "--device", "cpu", "-o", out)
    result = run("period", asteroids, "--asteroid", *GEOMETRY, *options, "--plot", tmp_path / "plots")
    assert result.exit_code == 0, result.stderr
    assert len(list((tmp_path / "plots").iterdir())) == 2
    table = read(out)
    readings = np.array([8.7, 21.3 / 2])
    np.testing.assert_allclose(table["rotation_period_h"], readings, rtol=2e-3)
    np.testing.assert_allclose(table["rotation_period_h_doubled"], 2 * readings, rtol=2e-3)
    # 8 more degrees of freedom gain some 8; the odd term of 0.05 mag gains 150 (0.046 / 0.02)^2 / 2 = 400
    assert abs(table["delta_chi2"][0]) < 40
    assert 200 < table["delta_chi2"][1] < 600
    assert (table["fap"] < 1e-20).all()
    assert "doubled [h]  delta chi2" in result.stdout
    assert "no false-alarm probabilities" not in result.stderr


def test_false_alarm_probability_of_several_terms(tmp_path: Path) -> None:
    """Of noise a share p has a probability under p, also in one band; see `test_chances_of_several_terms_and_bands`."""
    rng, n, objects, out = np.random.default_rng(5), 40, 400, tmp_path / "p.csv"
    ids = np.repeat(np.arange(objects), n)
    t, y = rng.uniform(0, 60, ids.size), rng.normal(size=ids.size)
    np.savetxt(
        tmp_path / "n.csv",
        np.column_stack([ids, t, y, np.ones(ids.size)]),
        "%d,%.9f,%.9f,%g",
        header="id,time,flux,error",
        comments="",
    )
    options = ("--nterms", "3", "--min-period", "0.5", "--max-period", "20", "--device", "cpu", "-o", out)
    result = run("period", tmp_path / "n.csv", *options)
    assert result.exit_code == 0, result.stderr
    found = np.asarray(read(out)["fap"])
    for share in (0.03, 0.1, 0.3):
        slack = 3 * np.sqrt(share * (1 - share) / objects)
        assert 0.7 * share - slack < np.mean(found < share) < share + slack
    power = np.asarray(read(out)["power"])
    for i in range(3):  # the class has the same formula
        one = ids == i
        ls = skysieve.LombScargle(t[one], y[one], nterms=3, device="cpu")
        expected = ls.false_alarm_probability(power[i], minimum_frequency=0.05, maximum_frequency=2, samples_per_peak=5)
        assert found[i] == pytest.approx(float(expected), rel=1e-6)


# ---------------------------------------------------------------- runs that go on


def test_resume_gives_what_one_run_gives(survey: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, out = tmp_path / "whole.csv", tmp_path / "p.csv"
    run("period", survey, "--max-period", "10", "--device", "cpu", "-q", "-o", whole)
    command = ("period", survey, "--max-period", "10", "--device", "cpu", "--resume", "--partition", "25", "-o", out)
    execute, calls = skysieve.LombScarglePlan.execute, []

    def broken(*args, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return execute(*args, **options)

    monkeypatch.setattr(skysieve.LombScarglePlan, "execute", broken)
    result = run(*command)
    assert result.exit_code == 130
    assert "continues from the finished partitions" in result.stderr
    parts = tmp_path / "p.csv.parts"
    assert sorted(p.name for p in parts.iterdir()) == ["00000-000000.npz", "00000.json", "run.json"]
    assert not out.exists()
    other = run(*command[:-2], "--no-fit-mean", "-o", out)
    assert (other.exit_code, "with other options" in other.stderr) == (2, True)
    calls.clear()
    calls += [1, 1]
    result = run(*command)
    assert result.exit_code == 0, result.stderr
    assert "1 of 3 partitions were done before" in result.stderr
    assert len(calls) == 4  # two searches, not three
    assert out.read_text() == whole.read_text()
    assert not parts.exists()


def test_errors_lose_no_finished_work(survey: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second file meets a broken device, or a disk that is full: the periods of the first are not lost."""
    second, out = tmp_path / "second.csv", tmp_path / "p.csv"
    second.write_bytes(survey.read_bytes())
    execute, save = skysieve.LombScarglePlan.execute, Parts.save
    errors: list[Exception] = [SkysieveError("the device is gone")]
    calls: list[int] = []

    def broken(*args, **options):
        calls.append(1)
        if len(calls) == 2:
            raise errors[0]
        return execute(*args, **options)

    monkeypatch.setattr(skysieve.LombScarglePlan, "execute", broken)
    result = run("period", survey, second, *GRID, "-o", out)
    assert (result.exit_code, out.exists()) == (2, False)
    assert "the device is gone" in result.stderr
    assert "stopped; the periods of the 60 objects that were done are in" in result.stderr.replace("\n", " ")
    assert len(read(tmp_path / "p.partial.csv")) == 60

    def full(self, file, k, found):
        if file == 1:
            raise OSError(28, "No space left on device", "part")
        save(self, file, k, found)

    monkeypatch.setattr(Parts, "save", full)
    result = run("period", survey, second, *GRID, "--resume", "-o", out)
    assert result.exit_code == 2
    assert "part: No space left on device" in result.stderr
    assert "stopped; the same command continues" in result.stderr
    assert (tmp_path / "p.csv.parts" / "00000-000000.npz").exists()


def test_files_done_before_are_not_read_again(survey: Path, tmp_path: Path) -> None:
    second, out = tmp_path / "second.csv", tmp_path / "p.csv"
    second.write_text("")
    command = ("period", survey, second, *GRID, "--resume", "-o", out)
    assert run(*command).exit_code == 1  # the second file is empty: an error, and the parts stay
    state = json.loads((tmp_path / "p.csv.parts" / "run.json").read_text())
    assert state["files"][1][1] == 0
    result = run(*command)
    assert "survey.csv: all 1 partitions were done before" in result.stderr
    second.write_bytes(survey.read_bytes())
    assert "with other files" in run(*command).stderr
    fresh = tmp_path / "fresh.csv"
    assert run("period", survey, *GRID, "--mag", "nothing", "--resume", "-o", fresh).exit_code == 2
    # the mistake was found before any work: other options are accepted
    assert run("period", survey, *GRID, "--resume", "-o", fresh).exit_code == 0
    for options, message in (
        (("--resume",), "--resume needs -o"),
        (("--resume", "-o", out, "--plot", tmp_path / "x"), "cannot be combined"),
        (("--partition", "5", "-o", tmp_path / "y.csv"), "--partition needs --resume or --cluster"),
    ):
        assert message in run("period", survey, *options).stderr


def test_damaged_parts_are_done_again(survey: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that loses the end of a file, or all of it, costs that part."""
    out = tmp_path / "p.csv"
    command = ("period", survey, *GRID, "--resume", "--partition", "15", "-o", out)
    with monkeypatch.context() as patch:
        patch.setattr(Parts, "remove", lambda self, code: None)
        assert run(*command).exit_code == 0
    whole, parts = out.read_text(), tmp_path / "p.csv.parts"
    for k, keep in ((0, 100), (2, 0)):
        part = parts / f"00000-00000{k}.npz"
        part.write_bytes(part.read_bytes()[:keep])
    (parts / "00000.json").write_text("[0, 15")
    result = run(*command)
    assert result.exit_code == 0, result.stderr
    assert "2 of 4 partitions were done before" in result.stderr
    assert "00000-000000.npz, 00000-000002.npz: damaged, searched again" in result.stderr.replace("\n", " ")
    assert out.read_text() == whole
    assert not parts.exists()
    parts.mkdir()
    out.unlink()
    (parts / "run.json").write_text("{")
    result = run(*command)
    assert result.exit_code == 2
    assert "run.json is damaged; delete the folder" in result.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("mark", "at"), [(b"PK\1\2", 8), (b"PK\1\2", 10), (b"PK\5\6", 12), (b"PK\3\4", 30), (b"NUMPY", 8)]
)
def test_a_part_with_one_wrong_byte_is_done_again(mark: bytes, at: int, tmp_path: Path) -> None:
    """Flags and the kind of compression of a member, the length of the list of members, a name, a header."""
    parts = Parts(tmp_path / "p.csv", {})
    parts.save(0, 0, Found(**{f.name: np.arange(3.0) for f in fields(Found)}))
    assert parts.load(0, 0) is not None
    path = tmp_path / "p.csv.parts" / "00000-000000.npz"
    held = bytearray(path.read_bytes())
    held[held.index(mark) + at] ^= 0xFF
    path.write_bytes(held)
    assert parts.load(0, 0) is None
    assert parts.damaged == [path.name]
    assert not path.exists()


@pytest.mark.parametrize("text", ["", "[]", "[1, 15]", '[0, "15"]', "[0, 15, 15]", "{}", "[0, 30, 15]"])
def test_a_damaged_list_of_parts_is_none(text: str, tmp_path: Path) -> None:
    parts = Parts(tmp_path / "p.csv", {})
    (tmp_path / "p.csv.parts" / "00000.json").write_text(text)
    assert parts.edges(0) is None
    assert parts.complete(0) == 0


@pytest.mark.slow
def test_kill_9(survey: Path, tmp_path: Path) -> None:
    """Killed while it works, again and again: the run that ends has all objects, each searched as in one run."""
    whole, out = tmp_path / "whole.csv", tmp_path / "p.csv"
    grid = ("--fmin", "0.2", "--fmax", "5", "--nf", "4000", "--device", "cpu")
    assert run("period", survey, *grid, "-q", "-o", whole).exit_code == 0
    command = [sys.executable, "-m", "skysieve", "period", str(survey), *grid, "--resume", "--partition", "1"]
    parts = tmp_path / "p.csv.parts"
    seen = 0
    for _ in range(2):
        process = subprocess.Popen([*command, "-o", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and len(list(parts.glob("[0-9]*.npz"))) <= seen + 1:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        done = len(list(parts.glob("[0-9]*.npz"))) if parts.exists() else 60
        assert done > seen
        seen = done
    result = run(*command[3:], "-o", out)
    assert result.exit_code == 0, result.stderr
    assert out.read_text() == whole.read_text()
    assert not parts.exists()
