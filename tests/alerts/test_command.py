"""``skysieve alerts`` from files: periods, faults of files and stores, and processes that are killed."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from astropy.table import Table
from tests.alerts.packets import (
    LSST_BANDS,
    confluent,
    container,
    lsst_packet,
    lsst_schema,
    star,
    write_files,
    ztf_packet,
    ztf_schema,
)
from typer.testing import CliRunner

import skysieve
from skysieve.alerts.files import FileSource
from skysieve.alerts.packets import Decoder
from skysieve.alerts.surveys import ROW
from skysieve.cli import application

pytest.importorskip("fastavro")
QUICK = ("--min-period", "2", "--max-period", "20", "--peaks", "1", "--device", "cpu")
"""A short search: most tests are not about periods."""


def run(*arguments: Any, code: int | None = 0) -> str:
    """Run the command in this process and return its output.  With ``code=None`` it may set packets aside or not."""
    result = CliRunner().invoke(application("alerts"), ["alerts", *map(str, arguments)])
    assert result.exit_code in ((0, 1) if code is None else (code,)), result.output
    return result.output


def content(store: Path) -> dict[str, Any]:
    """The content of a store without times and versions, which depend on when packets were read."""
    base = sqlite3.connect(store)
    totals = dict(base.execute("SELECT name, value FROM totals"))
    totals.pop("searches", None)
    return {
        "rows": dict(base.execute("SELECT object, rows FROM objects")),
        "totals": totals,
        "set_aside": base.execute("SELECT source, part, place, number, reason, bytes FROM set_aside").fetchall(),
        "places": base.execute("SELECT source, part, next, mark FROM places ORDER BY source").fetchall(),
        "periods": base.execute("SELECT id, status, n_used, bands FROM periods ORDER BY id").fetchall(),
    }


def periods(store: Path) -> np.ndarray:
    return np.array(sqlite3.connect(store).execute("SELECT period FROM periods ORDER BY id").fetchall(), float)[:, 0]


@pytest.mark.slow
def test_periods_of_lsst_packets(tmp_path):
    """The periods are those of the public functions on the same rows, and the true ones."""
    stars = [star(k, bands=1 if k % 4 == 0 else 6) for k in range(1, 6)]
    write_files(tmp_path / "night", stars, 5, cutout=100)
    out, store = tmp_path / "periods.csv", tmp_path / "a.db"
    text = run("--avro", tmp_path / "night", "--store", store, "-o", out, "--min-period", 0.05, "--device", "cpu")
    assert f"wrote {store}: 5 packets, 500 new rows, 5 searches" in text
    found = Table.read(out)
    assert found["id"].tolist() == list(range(1, 6))
    assert found["n_used"].tolist() == [100] * 5
    grid = {"fmin": 1 / 50, "fmax": 20.0, "n_peaks": 5, "device": "cpu"}
    for s, row in zip(stars, found, strict=True):
        # the star's harmonics and the year's sampling leave its period within half a step of the grid, 1 / (10 T)
        assert abs(1 / row["period"] - 1 / s.period) < 1 / 3650
        if s.number % 4 == 0:
            expected: Any = skysieve.lombscargle(s.mjd, s.flux, s.error, **grid)
            assert row["bands"] == "u"
        else:
            names = [LSST_BANDS[b] for b in s.band]
            expected = skysieve.lombscargle_multiband(s.mjd, s.flux, names, s.error, **grid)
            assert row["bands"] == "".join(sorted(LSST_BANDS))
        assert row["period"] == pytest.approx(float(expected.period), rel=1e-9)
        assert row["power"] == pytest.approx(float(expected.best_power), rel=1e-9)
        assert row["last_mjd"] == pytest.approx(s.mjd[-1], abs=1e-9)


def test_periods_of_ztf_archives(tmp_path):
    """A night as ZTF publishes it: an archive of files with one packet each; the second run has nothing to do."""
    stars = [star(k, bands=3) for k in range(1, 5)]
    for s in stars:
        (tmp_path / f"{s.number}.avro").write_bytes(container([ztf_packet(s, cutout=10, limits=2)], ztf_schema()))
    (tmp_path / "5.avro").write_bytes(b"no packet")
    archive = tmp_path / "ztf_public_20260801.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for number in (1, 5, 2, 3, 4):
            tar.add(tmp_path / f"{number}.avro")
    store, out = tmp_path / "a.db", tmp_path / "periods.parquet"
    text = run(archive, "--store", store, "-o", out, "--min-period", 0.09, "--batch", 2, code=1)
    assert "1 packet could not be read: see the table set_aside" in text
    found = Table.read(out)
    assert found["id"].tolist() == [f"ZTF18aa000000{k}" for k in range(1, 5)]
    for s, row in zip(stars, found, strict=True):
        assert abs(1 / row["period"] - 1 / s.period) < 1 / 3650
    from pyarrow import parquet

    schema = parquet.read_schema(out)
    assert schema.field("period").metadata == {b"unit": b"d"}
    assert schema.field("searched").metadata == {b"unit": b"s"}
    assert content(store)["set_aside"][0][5] == b"no packet"
    assert ": 0 packets, 0 new rows" in run(archive, "--store", store, "-o", out, "--min-period", 0.09)


def some_night(folder: Path, stars: int = 24) -> list[Path]:
    """Files in which the alerts of each star come out of order and twice, with a damaged block in one of them."""
    folder.mkdir()
    made = [lsst_packet(star(k, n=30), last, cutout=30) for k in range(1, stars + 1) for last in (19, 24, 29, 29)]
    random.Random(3).shuffle(made)
    made[5] |= {"diaObject": None}
    paths = []
    for k in range(4):
        paths.append(folder / f"{k}.avro")
        paths[-1].write_bytes(container(made[k::4], lsst_schema(), block=20_000))
    data = bytearray(paths[1].read_bytes())
    middle = data.index(data[-16:], len(data) // 2) + 40
    data[middle : middle + 2000] = b"\xff" * 2000
    paths[1].write_bytes(data)
    return paths


@pytest.mark.slow
def test_order_repetitions_and_batches_do_not_matter(tmp_path):
    paths = some_night(tmp_path / "night")
    one, two = tmp_path / "one.db", tmp_path / "two.db"
    run("--avro", *paths, "--store", one, *QUICK, code=1)
    run(*reversed(paths), "--avro", paths[2], "--store", two, *QUICK, "--batch", 7, "--every", 0.01, code=1)
    first, second = content(one), content(two)
    assert first == second
    np.testing.assert_allclose(periods(one), periods(two), rtol=1e-9)
    assert first["totals"]["set_aside"] == len(first["set_aside"]) > 0
    assert first["totals"]["without_object"] == 1
    every = np.concatenate([np.frombuffer(rows, ROW) for rows in first["rows"].values()])
    assert first["totals"]["rows_added"] == len(every)
    for path in paths:  # the same packets in other files: nothing is new
        path.rename(path.with_name(f"again-{path.name}"))
    run(tmp_path / "night", "--store", one, *QUICK, code=1)
    assert content(one)["rows"] == first["rows"]
    assert content(one)["totals"]["rows_added"] == first["totals"]["rows_added"]


def start(*arguments: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "skysieve", "alerts", *map(str, arguments)], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def total(store: Path, name: str = "packets") -> int:
    """A total of a store that a process may be writing."""
    if not store.exists():
        return 0
    try:
        row = sqlite3.connect(store).execute("SELECT value FROM totals WHERE name = ?", (name,)).fetchone()
    except sqlite3.OperationalError:  # it has no tables yet
        return 0
    return 0 if row is None else row[0]


def owner_of(store: Path) -> int:
    """The process that has a store open, or had it last."""
    lock = Path(f"{store}-lock")
    return int(lock.read_text() or 0) if lock.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_killed_at_any_moment(tmp_path, kills):
    """SIGKILL loses and repeats nothing: packets, rows and packets that were set aside are those of one run."""
    paths = some_night(tmp_path / "night")
    whole, store = tmp_path / "whole.db", tmp_path / "killed.db"
    run(*paths, "--store", whole, *QUICK, code=1)
    expected = content(whole)
    rng = random.Random(kills)
    arguments = (*paths, "--store", store, *QUICK, "--batch", 3, "--every", 0.01)
    advanced = killed = 0
    until = time.monotonic() + 240 + 20 * kills
    while killed < kills and time.monotonic() < until:
        process = start(*arguments)
        before = total(store)
        if killed % 4 == 3:  # while it starts
            while process.poll() is None and owner_of(store) != process.pid:
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.4))
        else:
            while process.poll() is None and total(store) == before:
                time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.05))
        process.kill()
        process.wait()
        killed += process.returncode == -signal.SIGKILL
        assert total(store) >= before
        advanced += total(store) > before
        if process.returncode != -signal.SIGKILL:  # it had read everything: begin anew
            assert content(store) == expected
            for name in tmp_path.glob("killed.db*"):
                name.unlink()
    assert killed == kills
    assert advanced >= kills // 2
    run(*arguments, code=None)
    assert content(store) == expected
    np.testing.assert_allclose(periods(store), periods(whole), rtol=1e-9)
    assert sqlite3.connect(store).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_files_that_cannot_be_read_do_not_stop_the_run(tmp_path):
    (good,) = write_files(tmp_path / "a", [star(k, n=25) for k in range(1, 5)], 10, cutout=10)
    short = tmp_path / "short.avro"
    short.write_bytes(good.read_bytes()[:-5000])
    others = {
        "empty.avro": (b"", "is empty"), "text.avro": (b"a,b\n1,2\n", "is not an Avro container file"),
        "other.avro": (container([{"a": 1}], {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}),
                       "expected the fields of a known survey"),
        "head.avro": (good.read_bytes()[:300], "ends in the middle"),
    }  # fmt: skip
    for name, (data, _) in others.items():
        (tmp_path / name).write_bytes(data)
    store = tmp_path / "a.db"
    text = run(*[tmp_path / name for name in others], short, good, "--store", store, *QUICK, code=1)
    for name, (_, reason) in others.items():
        assert any(name in line and reason in line for line in text.splitlines()), name
    assert "short.avro: ends in the middle of a block, at byte" in text
    assert len(content(store)["periods"]) == 4
    short.write_bytes(good.read_bytes())  # the rest arrives
    assert "4 packets" not in run(short, "--store", store, *QUICK)
    assert content(store)["totals"]["packets"] >= 8


def test_a_folder_without_packets(tmp_path):
    (tmp_path / "night").mkdir()
    (tmp_path / "night" / "a.avro.gz").touch()
    text = run(tmp_path / "night", "--store", tmp_path / "a.db", *QUICK)
    assert f"{tmp_path / 'night'}: holds no files with names that end with .avro, .tar" in text


def test_names_of_files(tmp_path):
    """Names need not be UTF-8; hidden files, such as macOS adds to folders and archives, are left out."""
    folder = tmp_path / "night"
    (made,) = write_files(folder, [star(1, n=5)], 5, cutout=10)
    (folder / "._alerts.avro").write_bytes(b"attributes")
    made.rename(folder / os.fsdecode(b"\xff.avro"))
    archive_of(tmp_path / "a.tar", [2])
    with tarfile.open(tmp_path / "a.tar", "a") as tar:
        tar.add(folder / "._alerts.avro", "night/._alerts.avro")
    text = run(folder, tmp_path / "a.tar", "--store", tmp_path / "a.db", *QUICK)
    assert ": 2 packets, 10 new rows" in text
    assert ": 0 packets" in run(folder, "--store", tmp_path / "a.db", *QUICK)


def test_too_many_packets_that_cannot_be_read(tmp_path):
    """The run ends before it stores them: the disk does not fill with packets of a schema that is not known."""
    archive, store = tmp_path / "a.tar", tmp_path / "a.db"
    (tmp_path / "bad.avro").write_bytes(b"no packet")
    with tarfile.open(archive, "w") as tar:
        for number in range(5):
            tar.add(tmp_path / "bad.avro", f"{number}.avro")
    text = run(archive, "--store", store, *QUICK, "--max-set-aside", 4, code=2)
    assert "5 packets could not be read, the last: 4.avro is not an Avro container file" in text
    assert total(store, "set_aside") == 0
    run(archive, "--store", store, *QUICK, "--max-set-aside", 5, code=1)
    assert total(store, "set_aside") == 5


def test_a_file_that_is_replaced(tmp_path):
    """Another file of the same name is read from its beginning; what was set aside of the first remains."""
    path, store = tmp_path / "a.avro", tmp_path / "a.db"
    for k in (1, 2):
        data = bytearray(container([lsst_packet(star(k, n=25), cutout=10)], lsst_schema()))
        data[-100:-16] = b"\xff" * 84
        path.write_bytes(data)
        run(path, "--store", store, *QUICK, code=1)
        path.write_bytes(container([lsst_packet(star(k, n=25), cutout=10)], lsst_schema()))
        run(path, "--store", store, *QUICK)
    base = sqlite3.connect(store)
    assert len(content(store)["periods"]) == 2
    found = base.execute("SELECT place, number, bytes FROM set_aside").fetchall()
    assert len({place for place, _, _ in found}) == 1
    assert [number for _, number, _ in found] == [0, 1]
    assert len({raw for _, _, raw in found}) == 2


def archive_of(path: Path, numbers: Iterable[int]) -> bytearray:
    """Write an archive of a packet of each of these stars, and return its bytes."""
    with tarfile.open(path, "w") as tar:
        for k in numbers:
            member = tarfile.TarInfo(f"{k}.avro")
            data = container([ztf_packet(star(k, n=5, bands=2), cutout=2000)], ztf_schema())
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return bytearray(path.read_bytes())


def test_an_archive_that_is_replaced_by_one_of_the_same_size(tmp_path):
    path, store = tmp_path / "latest.tar", tmp_path / "a.db"
    sizes = set()
    for numbers in ((1, 2), (3, 4)):
        sizes.add(len(archive_of(path, numbers)))
        assert ": 2 packets, 10 new rows" in run(path, "--store", store, *QUICK)
    assert len(sizes) == 1  # a multiple of 10,240 bytes
    assert ": 0 packets" in run(path, "--store", store, *QUICK)


def test_archives_that_are_damaged_or_cut_off_in_a_header(tmp_path):
    """Not only members that are cut off: what follows a header that cannot be read is missing, too."""
    path, store = tmp_path / "a.tar", tmp_path / "a.db"
    data = archive_of(path, (1, 2, 3))
    with tarfile.open(path) as tar:
        third = tar.getmembers()[2].offset
    for at, n in ((third, 2), (third + 100, 0), (third + 600, 0)):
        path.write_bytes(data[:at])
        text = run(path, "--store", store, *QUICK, code=1)
        assert "a.tar: ends before the end of the archive; what is complete was read" in text
        assert f": {n} packets" in text
    damaged = bytearray(data)
    damaged[third + 20] ^= 1
    path.write_bytes(damaged)
    text = run(path, "--store", store, *QUICK, code=1)
    assert "a.tar: holds a damaged header (bad checksum); what follows it cannot be read" in text
    path.write_bytes(data)
    assert ": 1 packet, 5 new rows" in run(path, "--store", store, *QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["", "gz", "bz2", "xz"])
def test_an_archive_that_grows_is_continued(tmp_path, form):
    """Packets are read, and set aside, once; a file that was replaced in the part that was read is read anew."""
    whole, path, store = tmp_path / "whole.tar", tmp_path / f"a.tar.{form}".rstrip("."), tmp_path / "a.db"
    archive_of(whole, (1, 2, 3, 4))
    rng = random.Random(1)
    with tarfile.open(whole) as old, tarfile.open(path, f"w:{form}") as new:
        for member in old:
            new.addfile(member, old.extractfile(member))
            damaged = tarfile.TarInfo(f"not-{member.name}")
            damaged.size = 250_000
            new.addfile(damaged, io.BytesIO(rng.randbytes(damaged.size)))
    data = path.read_bytes()
    for part in (0.3, 0.55, 0.8):
        path.write_bytes(data[: int(part * len(data))])
        run(path, "--store", store, *QUICK, "--min-rows", 5, code=1)
    path.write_bytes(data)
    run(path, "--store", store, *QUICK, "--min-rows", 5, code=1)
    found = content(store)
    assert found["totals"] | {"rows_added": 20, "packets": 4, "set_aside": 4} == found["totals"]
    assert len(found["set_aside"]) == 4
    assert ": 0 packets" in run(path, "--store", store, *QUICK, "--min-rows", 5)
    path.touch()  # it is verified, but no packet is read again
    assert ": 0 packets" in run(path, "--store", store, *QUICK, "--min-rows", 5)
    archive_of(path, (5, 6))
    assert ": 2 packets, 10 new rows" in run(path, "--store", store, *QUICK, "--min-rows", 5)


@pytest.mark.parametrize("cut", [10, 600])
def test_a_file_that_grows_while_it_is_read(tmp_path, monkeypatch, cut):
    """Its last block is incomplete, and complete when its marker is sought: it is not damaged."""
    from skysieve.alerts import files

    packets = [lsst_packet(star(k, n=25), cutout=10) for k in (1, 2)]
    data, path = container(packets, lsst_schema(), block=100), tmp_path / "a.avro"
    last = data.rindex(data[-16:], 0, -16) + 16
    path.write_bytes(data[: last + cut])

    def grown(*arguments: Any) -> int:
        path.write_bytes(data)
        return find(*arguments)

    find = files._find
    monkeypatch.setattr(files, "_find", grown)
    source = FileSource([path], Decoder(), print)
    units = list(source.units(dict, threading.Event()))
    assert [(unit.packets.objects, unit.packets.bad) for unit in units] == [([1], []), ([2], [])]
    assert units[-1].following == len(data)
    assert source.failed == {}


def test_files_that_are_moved_away_are_no_fault(tmp_path, monkeypatch, capsys):
    """Neither one that was read in part, as it grew, nor one that goes after the folder was listed."""
    folder, stop, faults = tmp_path / "in", threading.Event(), list[int]()
    (whole,) = write_files(tmp_path / "a", [star(k, n=25) for k in range(1, 3)], 10, cutout=10)
    folder.mkdir()
    (folder / "a.avro").write_bytes(whole.read_bytes()[:-100])
    (folder / "b.avro").write_bytes(whole.read_bytes())

    def look(_: float) -> None:
        faults.append(len(source.failed))
        if len(faults) == 1:
            (folder / "a.avro").rename(tmp_path / "a.avro")
        elif len(faults) == 3:
            stop.set()

    source = FileSource([folder], Decoder(), print, watch=True)
    monkeypatch.setattr(stop, "wait", look)
    list(source.units(dict, stop))
    assert faults == [1, 0, 0]
    source = FileSource([folder], Decoder(), print)
    units = source.units(dict, threading.Event())
    (folder / "c.avro").write_bytes(whole.read_bytes())
    next(units)  # of b.avro
    (folder / "c.avro").unlink()
    list(units)
    assert source.failed == {}
    assert capsys.readouterr().out == ""


def test_packets_that_tar_appends_to_an_archive(tmp_path):
    """They overwrite the zeros that marked its end."""
    path, store = tmp_path / "a.tar", tmp_path / "a.db"
    archive_of(path, (1, 2))
    assert ": 2 packets" in run(path, "--store", store, *QUICK)
    data = container([ztf_packet(star(3, n=5, bands=2), cutout=2000)], ztf_schema())
    with tarfile.open(path, "a") as tar:
        member = tarfile.TarInfo("3.avro")
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    assert ": 1 packet, 5 new rows" in run(path, "--store", store, *QUICK)


def test_an_archive_that_grows_all_the_time_is_not_unpacked_all_the_time(tmp_path, monkeypatch):
    """It is read at the sizes 1, 2, 4 ... of the 64 through which it grows, and once at its end."""
    path, stop = tmp_path / "a.tar", threading.Event()
    data = archive_of(tmp_path / "whole.tar", range(1, 65))
    step, reads, clock = -(-len(data) // 64), list[int](), 0.0

    def counted(source: FileSource, path: Path, about: os.stat_result, *rest: Any) -> Any:
        reads.append(about.st_size)
        return read(source, path, about, *rest)

    def look() -> None:  # between two looks the file grows
        nonlocal clock
        clock += 1.0
        if path.stat().st_size < len(data):
            path.write_bytes(data[: path.stat().st_size + step])
        elif clock > 100:
            stop.set()

    read = FileSource._archive
    monkeypatch.setattr(FileSource, "_archive", counted)
    monkeypatch.setattr(stop, "wait", lambda _: look())
    monkeypatch.setattr("skysieve.alerts.files.time.monotonic", lambda: clock)
    monkeypatch.setattr("skysieve.alerts.files.time.thread_time", lambda: 10.0 * len(reads))
    path.write_bytes(data[:step])
    source = FileSource([path], Decoder(), print, watch=True)
    found = [unit for unit in source.units(dict, stop) if unit.packets.objects]
    assert [o for unit in found for o in unit.packets.objects] == [f"ZTF18aa{k:07d}" for k in range(1, 65)]
    assert reads == [step, 2 * step, 4 * step, 8 * step, 16 * step, 32 * step, len(data)]
    assert source.failed == {}


def test_packets_set_aside_after_others_were_recovered(tmp_path):
    """They are reported, also if they are fewer than those that --retry could read."""
    (tmp_path / "1.avsc").write_text(json.dumps(lsst_schema()))
    messages = [confluent(lsst_packet(star(k, n=5), cutout=10), lsst_schema(), 1) for k in (1, 2)]
    store = tmp_path / "a.db"
    for name, members in (("old.tar", messages), ("new.tar", [b"no packet"])):
        with tarfile.open(tmp_path / name, "w") as tar:
            for number, data in enumerate(members):
                member = tarfile.TarInfo(f"{number}.avro")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    assert "2 packets could not be read" in run(tmp_path / "old.tar", "--store", store, *QUICK, code=1)
    retry = ("--retry", "--schema", f"1={tmp_path / '1.avsc'}")
    text = run(tmp_path / "new.tar", "--store", store, *QUICK, *retry, code=1)
    assert "read 2 of the packets that were set aside; 0 remain" in text
    assert "1 packet could not be read: see the table set_aside" in text


def test_a_damaged_name_of_a_band(tmp_path):
    """Its rows form a separate band, and neither this run nor a later one ends with an error."""
    packet = lsst_packet(star(1, n=25, bands=1), cutout=10)
    packet["diaSource"]["band"] = "Q"
    data = container([packet], lsst_schema())
    assert data.count(b"\x02\x02Q") == 1
    (tmp_path / "a.avro").write_bytes(data.replace(b"\x02\x02Q", b"\x02\x02\xff"))
    run(tmp_path / "a.avro", "--store", tmp_path / "a.db", *QUICK)
    assert content(tmp_path / "a.db")["periods"] == [(1, "ok", 25, "u\\xff")]


@pytest.mark.slow
def test_new_files_are_seen(tmp_path):
    folder, store = tmp_path / "in", tmp_path / "a.db"
    folder.mkdir()
    process = start("--avro", folder, "--watch", "--store", store, *QUICK, "--every", 0.2, "--metrics", "0")
    try:
        address = ""
        assert process.stdout is not None
        for line in process.stdout:
            if "metrics are on" in line:
                address = line.split()[-1]
                break
        for k in (1, 2):
            (made,) = write_files(tmp_path / f"new{k}", [star(k, n=25)], 5, cutout=10)
            made.rename(folder / f"{k}.avro")
            until = time.monotonic() + 180
            text = ""
            while f"skysieve_alerts_packets_total {k}\n" not in text and time.monotonic() < until:
                time.sleep(0.05)
                text = urllib.request.urlopen(address).read().decode()
            assert f"skysieve_alerts_searches_total {k}\n" in text
        health = urllib.request.urlopen(address.replace("/metrics", "/health"))
        assert (health.status, health.read()) == (200, b"ok\n")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 130
        assert "the same command continues from there" in process.stdout.read()
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    assert len(content(store)["periods"]) == 2


def test_one_process_a_store(tmp_path):
    (path,) = write_files(tmp_path / "a", [star(1, n=25)], 5, cutout=10)
    store = tmp_path / "a.db"
    run(path, "--store", store, *QUICK)
    import fcntl

    with open(f"{store}-lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        text = run(path, "--store", store, *QUICK, code=2)
    assert f"{store}: process {os.getpid()} uses this store" in text
    run(path, "--store", store, *QUICK)


def test_a_store_that_another_program_has_locked(tmp_path, monkeypatch):
    (path,) = write_files(tmp_path / "a", [star(1, n=25)], 5, cutout=10)
    store = tmp_path / "a.db"
    run(path, "--store", store, *QUICK)
    monkeypatch.setattr("skysieve.alerts.store.BUSY_SECONDS", 0.2)
    other = sqlite3.connect(store, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert "another program has kept the store locked" in run(path, "--store", store, *QUICK, code=2)
    other.execute("ROLLBACK")
    run(path, "--store", store, *QUICK)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected one of --avro and --kafka"),
        (("--avro", "x.avro", "--kafka", "a:1", "--topic", "t"), "expected one of --avro and --kafka"),
        (("--kafka", "a:1"), "expected both of --kafka and --topic"),
        (("nothing.avro",), "nothing.avro: No such file or directory"),
        (("x", "--to-topic", "t"), "--to-topic needs --kafka"),
        (("x", "--group", "skysieve"), "--group needs --kafka"),
        (("x", "--from-end"), "--from-end needs --kafka"),
        (("x", "--stop-at-end"), "--stop-at-end needs --kafka"),
        (("x", "--kafka-option", "a=b"), "--kafka-option needs --kafka"),
        (("--kafka", "a:1", "--topic", "t", "--watch"), "--watch needs --avro"),
        (("x", "--table-every", "60"), "--table-every needs -o"),
        (("x", "--format", "csv"), "--format needs -o"),
        (("x", "--min-period", "5", "--max-period", "1"), "--min-period 5, --max-period 1: expected 0 < --min-period"),
        (("x", "--every", "0"), "--every 0, --table-every 60: expected positive"),
        (("x", "--min-period", "60"), "--min-period 60, --max-period 50: expected 0 < --min-period < --max-period"),
        (("x", "--schema", "a"), "--schema a: expected ID=FILE"),
        (("x", "-o", "-"), "--output -: expected the name of a file"),
        (("x", "-o", "a.txt"), "--output a.txt: expected one of csv"),
        (
            ("x", "-o", "alerts.db", "--format", "csv", "--overwrite"),
            "--output alerts.db: --store writes the same file",
        ),
        (("x", "-o", "x", "--format", "csv", "--overwrite"), "--output x is one of the files to read"),
        (("x", "--store", "x"), "--store x is one of the files to read"),
        (("x", "--store", "no/a.db"), "there is no folder no"),
        (("--kafka", "a:1", "--topic", "t", "--kafka-option", "enable.auto.commit=true"), "is set by this command"),
        (("x", "--peaks", "2000000"), "--peaks 2000000: expected at most 284, as SQLite limits the number of"),
        (("x", "--metrics", "abc"), "--metrics abc: expected HOST:PORT"),
        (("x", "--metrics", "70000"), "--metrics 70000: expected HOST:PORT, or PORT alone, of at most 65535"),
    ],
)
def test_wrong_arguments(tmp_path, monkeypatch, arguments, message):
    """They leave no store."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").touch()
    assert message in run(*arguments, code=2).replace("\n", " ")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_outputs_are_not_replaced_without_being_asked(tmp_path):
    (path,) = write_files(tmp_path / "a", [star(1, n=25)], 5, cutout=10)
    out, store = tmp_path / "p.csv", tmp_path / "a.db"
    out.write_text("precious")
    assert "exists; use --overwrite" in run(path, "--store", store, "-o", out, *QUICK, code=2)
    assert out.read_text() == "precious"
    assert not store.exists()
    run(path, "--store", store, "-o", out, *QUICK, "--overwrite")
    assert out.read_text().startswith("id,status")
    run(path, "--store", store, "-o", out, *QUICK)  # the table of this store
    assert f"{tmp_path}: is a folder, expected the name of a file" in run(path, "--store", tmp_path, *QUICK, code=2)
    (tmp_path / "b.db").write_text("text " * 1000)
    assert "b.db: the store cannot be used" in run(path, "--store", tmp_path / "b.db", *QUICK, code=2)
    sqlite3.connect(tmp_path / "c.db").execute("CREATE TABLE x (y)").connection.commit()
    assert "is a database, but not a store" in run(path, "--store", tmp_path / "c.db", *QUICK, code=2)


def test_what_is_not_searched_is_counted(tmp_path):
    packets = [lsst_packet(star(k, n=n), cutout=10) for k, n in ((1, 25), (2, 6), (3, 6), (4, 25))]
    packets[0]["diaSource"] |= {"psfFluxErr": -1.0}
    packets[0]["prvDiaSources"][0] |= {"psfFlux": float("inf")}
    packets[0]["prvDiaSources"][1] |= {"band": None}
    packets[3] |= {"diaObject": None}
    (tmp_path / "a.avro").write_bytes(container(packets, lsst_schema()))
    store = tmp_path / "a.db"
    text = run(tmp_path / "a.avro", "--store", store, *QUICK)
    assert (
        f"wrote {store}: 4 packets, 34 new rows, 1 search, 3 rows left out, 1 packet without an object, "
        "2 objects with fewer than 20 rows (--min-rows)\n"
    ) in text


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.fits", "a.json"])
def test_a_table_without_objects(tmp_path, name):
    write_files(tmp_path / "few", [star(1, n=6)], 5, cutout=10)
    run(tmp_path / "few", "--store", tmp_path / "few.db", "-o", tmp_path / name, *QUICK)
    if name == "a.json":
        assert json.loads((tmp_path / name).read_text()) == []
        return
    write_files(tmp_path / "more", [star(1, n=25)], 5, cutout=10)
    run(tmp_path / "more", "--store", tmp_path / "more.db", "-o", tmp_path / "more.csv", *QUICK)
    if name == "a.parquet":
        from pyarrow import parquet

        found = parquet.read_table(tmp_path / name)  # astropy reads no empty column of text
        rows, names = found.num_rows, found.column_names
    else:
        rows, names = len(table := Table.read(tmp_path / name)), table.colnames
    assert rows == 0
    assert names == Table.read(tmp_path / "more.csv").colnames


def test_a_period_of_an_object_that_has_too_few_rows_later(tmp_path):
    """Two rows of forced photometry of a visit are searched until a detection in this visit takes their place."""
    packet = lsst_packet(star(1, n=24, bands=2), cutout=10, forced=23)
    earlier, forced = packet["prvDiaSources"], packet["prvDiaForcedSources"]
    more = [f | {"diaForcedSourceId": f["diaForcedSourceId"] + 1000} for f in forced[:6]]
    packets = [
        packet | {"prvDiaSources": None, "prvDiaForcedSources": forced[:13] + more},
        packet | {"prvDiaSources": earlier[:6], "prvDiaForcedSources": None},
    ]
    for order in (packets, packets[::-1]):
        store = tmp_path / f"{packets.index(order[0])}.db"
        for number, one in enumerate(order):
            path = tmp_path / f"{store.stem}-{number}.avro"
            path.write_bytes(container([one], lsst_schema()))
            text = run(path, "--store", store, *QUICK, "--min-rows", 20)
            assert ("1 search" in text) == (order is packets and number == 0)
        assert "1 object with fewer than 20 rows" in text
        assert not _has_periods(store)


def _has_periods(store: Path) -> bool:
    base = sqlite3.connect(store)
    made = base.execute("SELECT 1 FROM sqlite_master WHERE name = 'periods'").fetchone() is not None
    return made and base.execute("SELECT count(*) FROM periods").fetchone() != (0,)


def test_a_refused_command_keeps_the_periods(tmp_path):
    """Even if its settings differ from those of the store."""
    write_files(tmp_path / "a", [star(1, n=25)], 5, cutout=10)
    store, other = tmp_path / "a.db", tmp_path / "other.csv"
    run(tmp_path / "a", "--store", store, *QUICK, "--every", "inf")
    before = content(store)["periods"]
    other.touch()
    assert "exists" in run(tmp_path / "a", "--store", store, "-o", other, *QUICK, "--peaks", 2, code=2)
    assert content(store)["periods"] == before
    assert "again" not in run(tmp_path / "a", "--store", store, *QUICK)


def test_other_settings_search_again(tmp_path):
    write_files(tmp_path / "a", [star(k, n=25) for k in range(1, 4)], 5, cutout=10)
    store, out = tmp_path / "a.db", tmp_path / "p.json"
    run(tmp_path / "a", "--store", store, "-o", out, *QUICK)
    assert "period_2" not in json.loads(out.read_text())[0]
    text = run(tmp_path / "a", "--store", store, "-o", out, *QUICK, "--peaks", 2)
    assert "searched 3 stored objects again, because the settings changed" in text
    assert "period_2" in json.loads(out.read_text())[0]
    assert "again" not in run(tmp_path / "a", "--store", store, "-o", out, *QUICK, "--peaks", 2)
    run(tmp_path / "a", "--store", store, *QUICK, "--min-rows", 26)
    assert sqlite3.connect(store).execute("SELECT count(*) FROM sqlite_master WHERE name = 'periods'").fetchone() == (
        0,
    )
