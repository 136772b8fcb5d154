"""``--dry-run`` of every long command: it states what the job takes, and does nothing."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from skysieve.cli import application
from skysieve.core.machine import measured, rates


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working folder, and an empty store of rates; compiled code is still taken from the cache folder."""
    monkeypatch.chdir(tmp_path)
    held: dict[str, dict[str, float]] = {}
    monkeypatch.setattr(rates, "stored", held.get)
    monkeypatch.setattr(rates, "store", lambda name, figures: held.update({name: figures}))
    monkeypatch.setattr("skysieve.fstat.timing.stored", held.get)
    return held


def light_curves() -> list[str]:
    rng = np.random.default_rng(1)
    rows = [
        f"{star},{t:.5f},{rng.normal(15, 0.1):.4f},0.1" for star in range(5) for t in np.sort(rng.uniform(0, 90, 40))
    ]
    Path("stars.csv").write_text("id,mjd,mag,magerr\n" + "\n".join(rows))
    return ["period", "stars.csv", "--min-period", "0.5", "--max-period", "20", "-o", "out.csv"]


def maps() -> list[str]:
    from skysieve.sphere.command.rates import fits_of

    Path("map.fits").write_bytes(fits_of(np.ones((2, 12 * 16**2), "f4")))
    return ["smooth", "map.fits", "out.fits", "--fwhm", "20deg", "--method", "ring"]


def pulses() -> list[str]:
    from skysieve.dedispersion.data.simulate import fake

    fake(nchan=32, duration=4, tsamp=1e-3, fch1=1500, foff=-10, nbits=8, path="a.fil").close()
    return ["dedisp", "search", "a.fil", "--dm-max", "100", "-o", "out.csv"]


def atoms() -> list[str]:
    made = ["fstat", "synth", "a.npz", "--days", "2", "-q"]
    assert CliRunner().invoke(application("fstat"), made).exit_code == 0
    return ["fstat", "search", "a.npz", "a.npz", "-o", "out.csv"]


def sfts() -> list[str]:
    made = [
        "fstat",
        "simulate",
        "sfts",
        "--freq",
        "99.9",
        "--freq-band",
        "0.3",
        "--days",
        "2",
        "--ephemeris",
        "builtin",
    ]
    assert CliRunner().invoke(application("fstat"), made).exit_code == 0
    search = "fstat search --sfts sfts --ra 0.5 --dec 1 --freq 100 --freq-band 1e-4 --ephemeris builtin -o out.csv"
    return search.split()


JOBS = {"periodogram": light_curves, "sphere": maps, "dedispersion": pulses, "fstat": atoms, "fstat SFTs": sfts}


def rows(n: int = 40) -> list[str]:
    """Light curves in Parquet, in four row groups, a row an observation."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rng = np.random.default_rng(1)
    t = np.sort(rng.uniform(0, 90, (n, 50)), axis=1).ravel()
    columns = {"id": np.repeat(np.arange(n), 50), "mjd": t, "mag": rng.normal(15, 0.1, t.size)}
    parquet.write_table(
        pa.table(columns | {"magerr": np.full(t.size, 0.1)}), "rows.parquet", row_group_size=n * 50 // 4
    )
    return ["period", "rows.parquet", "--min-period", "0.5", "--max-period", "20", "-o", "out.csv"]


def dry_run(words: list[str], device: str = "cpu") -> str:
    given = ["--device", device, *(["--threads", "2"] if device == "cpu" else [])]
    done = CliRunner().invoke(application(words[0]), [*words, *given, "--dry-run"])
    assert done.exit_code == 0, done.output
    assert not list(Path().glob("out*"))
    return done.output


class Every(dict):
    """A rate for every name."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> float:
        return 1e-6


@pytest.mark.parametrize("job", JOBS)
def test_a_dry_run_does_nothing_and_measures_nothing(job, folder, monkeypatch):
    words = JOBS[job]()
    monkeypatch.setattr(measured, "store", lambda *a: pytest.fail("a dry run has measured"))
    text = dry_run(words)
    assert "skysieve info --measure" in text
    assert re.search(r"^memory +[\d.]+ \w+$", text, re.M), text
    assert not re.search(r"^(time|processor) ", text, re.M)
    assert folder == {}


@pytest.mark.parametrize("job", JOBS)
def test_a_dry_run_states_times(job, monkeypatch):
    words = JOBS[job]()
    monkeypatch.setattr(rates, "rates_of", lambda domain, device: Every())
    monkeypatch.setattr("skysieve.fstat.timing.constants", lambda *a, **k: np.full(4, 1e-6))
    text = dry_run(words)
    found = {line.split()[0]: line for line in text.splitlines()[1:]}
    assert {"method", "time", "processor", "memory", "moved"} <= set(found), text
    assert "info --measure" not in text
    assert re.search(r"[\d.]+ (ms|s|h|d) on an idle machine", found["time"])


@pytest.fixture
def small_pieces(monkeypatch):
    """Read small files as large ones, in pieces of 200 rows."""
    monkeypatch.setattr("skysieve.periodogram.lightcurves.stream.FEWEST_ROWS", 100)
    monkeypatch.setattr("skysieve.periodogram.lightcurves.stream.PIECE_ROWS", 200)


def test_all_rows_that_readers_decode_ahead_are_counted(small_pieces):
    from skysieve.periodogram.lightcurves.io import Wanted
    from skysieve.periodogram.lightcurves.stream import open_stream

    rows()
    curves = open_stream(Path("rows.parquet"), Wanted())
    before = curves.share_decoded
    with curves.pieces() as pieces:
        objects = [len(piece) for piece in pieces]
    assert sum(objects) == 40
    assert len(objects) > 3
    assert curves.share_decoded - before == pytest.approx(1)
    with curves.pieces() as pieces:
        next(pieces)
    assert objects[0] / 40 < curves.share_decoded - before - 1 < 1


def test_reading_is_that_of_the_whole_file(small_pieces, monkeypatch):
    from skysieve.periodogram.command import rates as period_rates
    from skysieve.periodogram.command.rates import Clocks, Reading
    from skysieve.periodogram.lightcurves.io import Wanted
    from skysieve.periodogram.lightcurves.stream import open_stream

    rows()
    curves = open_stream(Path("rows.parquet"), Wanted())
    opened = curves.share_decoded
    ticks: list[float] = []

    def clocks() -> Clocks:
        """Fake clocks: processor time adds a second for each row, and the time of day counts the calls."""
        ticks.append(1.0)
        return Clocks(2000 * (curves.share_decoded - opened), float(len(ticks)))

    monkeypatch.setattr(period_rates, "clocks", clocks)
    monkeypatch.setattr(period_rates, "PIECES", 3)
    monkeypatch.setattr(period_rates, "READERS", 2)
    monkeypatch.setattr(period_rates, "usable_cores", lambda: 8)
    found = Reading.of(curves)
    assert found.processor == pytest.approx(2000)
    assert found.first == 1
    assert found.wall == pytest.approx(1 + (40 - 8) / 2)  # pieces of 4, 4 and 2 objects, with a tick for each


def test_pieces_are_searched_where_the_host_may_be_the_limit(small_pieces, monkeypatch):
    from skysieve.periodogram.command import rates as period_rates
    from skysieve.periodogram.command.rates import Clocks, sampled
    from skysieve.periodogram.lightcurves.io import Wanted
    from skysieve.periodogram.lightcurves.stream import open_stream
    from skysieve.periodogram.survey import Request

    rows()
    curves = open_stream(Path("rows.parquet"), Wanted())
    now = [0.0]

    def search(pieces, request, total, banded, rows):
        """The first pieces take longer, since they compile."""
        assert (total, banded, rows) == (40, False, curves.n_rows)
        for number, piece in enumerate(pieces):
            now[0] += 100.0 if number < 2 else len(piece)
            yield piece

    monkeypatch.setattr(period_rates, "clocks", lambda: Clocks(0.0, now[0]))
    monkeypatch.setattr(period_rates, "search", search)
    monkeypatch.setattr(period_rates, "READERS", 2)
    monkeypatch.setattr(period_rates, "PIECES", 6)
    assert sampled(curves, Request(), False) == pytest.approx(40)
    monkeypatch.setattr(period_rates, "PIECES", 3)
    assert sampled(curves, Request(), False) is None


@pytest.mark.gpu
@pytest.mark.parametrize("job", [rows, light_curves, sfts])
def test_a_dry_run_states_times_of_a_gpu(job, small_pieces, monkeypatch):
    if job is sfts:
        pytest.importorskip("erfa")  # barycentric times
    words = job()
    monkeypatch.setattr(rates, "rates_of", lambda domain, device: Every())
    monkeypatch.setattr("skysieve.fstat.timing.constants", lambda *a, **k: np.full(4, 1e-6))
    found = {line.split()[0]: line for line in dry_run(words, "cuda").splitlines()[1:]}
    assert {"method", "time", "memory", "moved"} <= set(found)
    assert "processor" not in found
    assert "cuda" in found["method"]


@pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_measurement_has_a_rate_for_all_work_of_a_search(name, folder, monkeypatch):
    from skysieve.core.device import resolve
    from skysieve.fstat.command import rates as fstat_rates

    pytest.importorskip("erfa")  # barycentric times
    monkeypatch.setattr("skysieve.fstat.timing.constants", lambda *a, **k: np.full(4, 1e-12))
    device = resolve(name)[0]
    fstat_rates._around_maps(device)
    found = rates.rates_of("fstat", device)
    wanted = {"templates", "atoms", "projections", "sft values", "sfts read", "sft bytes read"}
    assert wanted | ({"templates on the GPU", "atoms on the GPU"} if name == "cuda" else {"weights"}) == set(found)
    assert min(found.values()) >= 0
    assert found["projections"] > 0
    words = sfts()
    assert re.search(r"[\d.]+ (ms|s) on an idle machine", dry_run(words, name))


def test_more_work_is_predicted_to_take_longer(monkeypatch):
    monkeypatch.setattr(rates, "rates_of", lambda domain, device: Every())
    monkeypatch.setattr("skysieve.fstat.timing.constants", lambda *a, **k: np.full(4, 1e-3))

    def seconds(words: list[str]) -> float:
        number, unit = re.search(r"processor +(\S+) (\w+)", dry_run(words)).groups()
        return float(number) * {"ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86400}[unit]

    words = pulses()
    assert seconds(words) < seconds([*words[:-3], "200", *words[-2:]])
    words = sfts()
    assert 5 * seconds(words) < seconds([w if w != "1e-4" else "1e-3" for w in words])


def test_options_that_have_no_model_are_named():
    words = [*maps(), "--masked", "normalize"]
    done = CliRunner().invoke(application("smooth"), [*words, "--dry-run"])
    assert done.exit_code == 0
    assert "no rate was measured for these options" in done.output


def test_masks_and_filters_have_no_model_and_cleaning_has_one():
    words = pulses()
    assert "not predicted" not in dry_run(words).splitlines()[0]
    assert dry_run([*words, "--zero-dm"]).splitlines()[0].endswith("(without the time of masks and filters)")


def test_a_dry_run_of_smooth_needs_no_output_and_may_have_an_old_one():
    words = maps()
    text = dry_run([words[0], words[1], *words[3:]])
    Path(words[2]).write_text("old")
    done = CliRunner().invoke(application("smooth"), [*words, "--device", "cpu", "--threads", "2", "--dry-run"])
    assert (done.exit_code, done.output) == (0, text)
    assert Path(words[2]).read_text() == "old"


def test_a_bad_file_is_an_error_of_a_dry_run():
    Path("bad.csv").write_text("nothing here\n")
    words = light_curves()
    done = CliRunner().invoke(application("period"), ["period", "stars.csv", "bad.csv", "--dry-run", "--device", "cpu"])
    assert done.exit_code == 1
    assert "bad.csv" in done.output
    assert "stars.csv: 5 objects, 200 rows" in done.output
    assert words[1] == "stars.csv"


def test_times_that_the_search_refuses_are_an_error_of_a_dry_run():
    from astropy.table import Table

    t = np.linspace(2459000, 2459090, 40, dtype="f4")
    Table({"mjd": t, "mag": np.sin(t)}).write("single.ecsv")
    words = ["period", "single.ecsv", "--device", "cpu"]
    search, predicted = (CliRunner().invoke(application("period"), [*words, *more]) for more in ([], ["--dry-run"]))
    assert "t came in single precision" in search.output
    assert (predicted.exit_code, predicted.output) == (1, search.output.replace(": t", ": single.ecsv: t"))
