"""The output of candidates: table, full disk, triggers, pictures; coincidence of beams."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
from tests.dedispersion.test_stream_pipeline import rows_of
from typer.testing import CliRunner

from skysieve.cli import app
from skysieve.dedispersion import Filterbank, fake
from skysieve.dedispersion.stream.records import CANDIDATE_COLUMNS, Candidate, CandidateSamples
from skysieve.dedispersion.stream.report import sink as sink_module
from skysieve.dedispersion.stream.report.drawing import PictureProcess, undrawn
from skysieve.dedispersion.stream.report.sink import Sink
from skysieve.dedispersion.stream.report.triggers import Trigger, make_trigger
from skysieve.dedispersion.stream.search.coincidence import Coincidence


@pytest.fixture(scope="module")
def fb():
    made = fake(nchan=32, duration=4, tsamp=5e-4, fch1=1500, foff=-8, dm=100, times=[1.3], width=4e-3, snr=25, seed=4)
    return Filterbank.from_array(made.read(), freqs=made.freqs, tsamp=5e-4, tstart=60000.5)


def row(fb, snr=9.0, time=1.3, beam=0, raw=None, **more):
    columns = dict.fromkeys((c.name for c in CANDIDATE_COLUMNS), 0) | {
        "snr": snr, "dm": 100.0, "time": time, "width": 4e-3, "mjd_top": 60000.5, "mjd_infinite": 60000.5, "beam": beam,
        "latency": 0.5, "live": 1.0, "dm_low": 90.0, "dm_high": 110.0, "time_first": 1.0, "time_last": 2.0, **more,
    }  # fmt: skip
    return Candidate(columns, fb.observation, time, raw, 0)


def command(*arguments):
    return CliRunner().invoke(app, ["dedisp", *map(str, arguments)])


def wait_for(condition, seconds=120.0):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    assert condition()


def test_a_full_disk_loses_nothing(fb, tmp_path):
    """While the disk is full, candidates wait; none is announced before its line is on the disk."""
    said = []
    sink = Sink(tmp_path, pictures=False, raw=False, say=said.append)
    sink.add(row(fb, 9.0))
    wait_for(lambda: sink.counts["written"] == 1)
    table, aside = tmp_path / "candidates.csv", tmp_path / "aside"
    table.rename(aside)
    table.symlink_to("/dev/full")
    for i in range(5):
        sink.add(row(fb, 10.0 + i))
    wait_for(lambda: sink.counts["write_errors"] >= 1)
    assert sum("S/N" in line and "at infinite frequency" in line for line in said) == 1
    table.unlink()
    aside.rename(table)
    wait_for(lambda: sink.counts["written"] == 6)
    sink.close()
    assert [float(r["snr"]) for r in rows_of(tmp_path)] == [9.0, 10.0, 11.0, 12.0, 13.0, 14.0]
    assert sink.counts["dropped"] == 0
    assert any("No space left" in line for line in said)


def test_candidates_that_are_never_written_are_printed_at_the_end(fb, tmp_path, monkeypatch):
    monkeypatch.setattr(sink_module, "LAST_TRIES", 1)
    said = []
    sink = Sink(tmp_path, pictures=False, raw=False, say=said.append)
    (tmp_path / "candidates.csv").unlink()
    for snr in (9.0, 10.0):
        sink.add(row(fb, snr))
    sink.close()
    assert (sink.counts["written"], sink.counts["dropped"]) == (0, 2)
    assert [line.split("  ")[0] for line in said if line.startswith("not written")] == [
        "not written: S/N 9.0", "not written: S/N 10.0"
    ]  # fmt: skip


def test_a_table_is_continued_not_overwritten(fb, tmp_path):
    for _ in range(2):
        sink = Sink(tmp_path, pictures=False, raw=False)
        sink.add(row(fb))
        sink.close()
        with open(tmp_path / "candidates.csv", "a", encoding="ascii") as file:
            file.write("0,0,9.00")  # cut off by a kill
    assert len(rows_of(tmp_path)) == 3
    Sink(tmp_path, pictures=False, raw=False).close()
    assert len(rows_of(tmp_path)) == 2
    (tmp_path / "candidates.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="is not a table of this version"):
        Sink(tmp_path)
    for trigger, message in [
        ("voevent:file:///x", "voevent='file:"),
        ("command:", "command=''"),
        ("command:no-such-program -x", "there is no program no-such-program"),
        ("mail:a@b", "expected command:PROGRAM or voevent:URL"),
    ]:
        with pytest.raises(ValueError, match=message):
            make_trigger(trigger)


def test_triggers(fb, tmp_path):
    """A command and a VOEvent for each candidate that is loud enough and not flagged; failures are counted."""
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(500 if len(got) > 1 else 200)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    said = []
    sink = Sink(
        tmp_path,
        pictures=False,
        raw=False,
        min_snr=8.0,
        say=said.append,
        triggers=[
            make_trigger(text, ivorn="org.example/frb", role="test")
            for text in (f"command:tee -a {tmp_path}/heard", f"voevent:http://127.0.0.1:{server.server_port}/")
        ],
    )
    observed = replace(fb.observation, ra=83.6, dec=22.0, source="Crab", telescope="GBT")
    for one in (row(fb, 9.0), row(fb, 7.0), row(fb, 20.0, flagged=1), row(fb, 10.0)):
        sink.add(replace(one, observation=observed))
    sink.close()
    server.shutdown()
    server.server_close()
    heard = (tmp_path / "heard").read_text().replace("}{", "}\n{").splitlines()
    assert [json.loads(line)["snr"] for line in heard] == [9.0, 10.0]
    assert (sink.counts["triggers"], sink.counts["triggers_failed"]) == (3, 1)
    assert any("a trigger failed: HTTP Error 500" in line for line in said)
    root = ET.fromstring(got[0])
    assert root.tag == "{http://www.ivoa.net/xml/VOEvent/v2.0}VOEvent"
    assert (root.get("version"), root.get("role")) == ("2.0", "test")
    assert root.get("ivorn").startswith("ivo://org.example/frb#60000.5")
    assert [e.tag for e in root] == ["Who", "What", "WhereWhen", "Why"]
    assert {p.get("name"): p.get("value") for p in root.iter("Param")}["dm"] == "100.0"
    assert root.find(".//ISOTime").text == "2023-02-25T12:00:00.000000"
    assert (root.find(".//C1").text, root.find(".//C2").text) == ("83.6", "22.0")


def test_a_command_that_fails(fb, tmp_path):
    sink = Sink(tmp_path, pictures=False, raw=False, triggers=[make_trigger("command:false")])
    sink.add(row(fb))
    sink.close()
    assert sink.counts["triggers_failed"] == 1


@pytest.mark.slow
def test_pictures_and_raw_samples(fb, tmp_path, monkeypatch):
    """The drawing process is in another group, because the terminal sends SIGINT to all processes of its group.

    It imports nothing from the current folder.
    """
    pytest.importorskip("matplotlib")
    (tmp_path / "select.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    sink = Sink(tmp_path)
    sink.add(row(fb, raw=fb.block(1000, 4000).T.copy(), time=1.3))
    wait_for(lambda: sink.drawing.process is not None)
    assert os.getpgid(sink.drawing.process.pid) != os.getpgid(0)
    wait_for(lambda: sink.counts["pictures"] + sink.counts["pictures_failed"] == 1)
    sink.close()
    assert sink.counts["pictures"] == 1
    assert sink.drawing.process._process.poll() is not None
    (picture,) = tmp_path.glob("pulses/*.png")
    (kept,) = tmp_path.glob("pulses/*.fil")
    assert picture.read_bytes()[:4] == b"\x89PNG"
    with Filterbank.open(kept) as held:
        assert np.array_equal(held.read(), fb.block(1000, 4000))


@pytest.mark.slow
def test_your_reads_the_samples_around_a_candidate(fb, tmp_path):
    """`your` itself opens the cut-out, and finds the pulse where the candidate is."""
    your = pytest.importorskip("your")
    candidate = pytest.importorskip("your.candidate")
    sink = Sink(tmp_path, pictures=False)
    sink.add(replace(row(fb, raw=fb.block(1000, 4000).T.copy(), time=1.3), raw_start=1000))
    sink.close()
    (kept,) = tmp_path.glob("pulses/*.fil")
    theirs = your.Your(str(kept))
    assert np.array_equal(theirs.get_data(0, 4000).T, fb.block(1000, 4000))
    head, o = theirs.your_header, fb.observation
    assert (head.nchans, head.nspectra, head.tsamp) == (o.nchan, 4000, o.tsamp)
    assert (head.fch1, head.foff) == (pytest.approx(o.top), pytest.approx(o.foff))
    assert head.tstart == pytest.approx(o.tstart + 1000 * o.tsamp / 86400, abs=1e-9)
    when = 1.3 - 1000 * o.tsamp
    one = candidate.Candidate(fp=str(kept), dm=100.0, tcand=when, width=8, label=-1, snr=20.0, min_samp=256, device=0)
    one.get_chunk()
    one.dedisperse()
    series = np.convolve(one.dedispersed.astype(float).sum(axis=1), np.ones(8), "valid")
    low, middle, high = np.percentile(series, [25, 50, 75])
    assert (series.max() - middle) / ((high - low) / 1.349) > 15  # of an S/N of 25


def test_coincidence_waits_for_the_slowest_beam(fb, monkeypatch):
    from skysieve.dedispersion.stream.search import coincidence

    monkeypatch.setattr(coincidence, "HOLD", 1e9)
    c = Coincidence(0.5)
    start = fb.observation.tstart * 86400
    c.add([row(fb, beam=0)], 0.5)
    assert c.release({0: start + 5.0, 1: start + 1.0}) == []
    c.add([row(fb, beam=1, time=1.302), row(fb, beam=1, time=1.7)], 0.5)
    out = c.release({0: start + 5.0, 1: start + 5.0})
    assert [(r.columns["beams"], r.columns["flagged"]) for r in out] == [(2, 1), (2, 1), (1, 0)]
    c.add([row(fb, beam=0)], 0.5)
    assert [r.columns["flagged"] for r in c.release({}, last=True)] == [0]
    with pytest.raises(ValueError, match="fraction=0"):
        Coincidence(0)


def test_coincidence_counts_the_beams_that_have_searched(fb, monkeypatch):
    """Beams without recent data do not count; beams whose stream has ended do."""
    from skysieve.dedispersion.stream.search import coincidence

    monkeypatch.setattr(coincidence, "HOLD", -1.0)  # do not wait for them
    start = fb.observation.tstart * 86400
    for frontiers, ended, flagged in (
        ({0: 9.0, 1: 9.0, 2: 0.5, 3: 0.9}, {}, 1),  # two of four are silent
        ({0: 9.0, 1: 9.0, 2: 9.0, 3: 9.0}, {}, 0),
        ({0: 9.0, 1: 9.0}, {2: 4.0, 3: 4.0}, 0),
        ({0: 9.0, 1: 9.0}, {2: 1.0, 3: 4.0}, 1),
        ({}, {0: 4.0, 1: 4.0, 2: 4.0, 3: 4.0}, 0),
    ):
        c = Coincidence(0.5)
        c.add([row(fb, beam=0), row(fb, beam=1)], 0.5)
        since = {beam: start + seconds for beam, seconds in frontiers.items()}
        out = c.release(since, ended={beam: start + seconds for beam, seconds in ended.items()})
        assert [(r.columns["beams"], r.columns["flagged"]) for r in out] == [(2, flagged)] * 2


def test_coincidence_is_its_definition(fb):
    """Random candidates of three beams, together and one after the other."""
    rng = np.random.default_rng(1)
    beam, time, width = rng.integers(0, 3, 300), rng.uniform(0, 20, 300), rng.uniform(1e-3, 3e-2, 300)
    rows = [row(fb, beam=int(b), time=float(t), width=float(w)) for b, t, w in zip(beam, time, width, strict=True)]

    def near(one, others):
        return len({o.columns["beam"] for o in others if abs(o.top_time - one.top_time)
                    <= (o.columns["width"] + one.columns["width"]) / 2 + 0.01})  # fmt: skip

    c = Coincidence(0.5)
    c.add(rows, 0.5)
    start = fb.observation.tstart * 86400
    out = c.release(dict.fromkeys(range(3), start + 30.0))
    assert [r.columns["beams"] for r in out] == [near(one, rows) for one in rows]
    assert {r.columns["flagged"] for r in out} == {0, 1}
    c.add(rows[:150], -100.0)  # released at once
    assert len(c.release(dict.fromkeys(range(3), start))) == 150
    c.add(rows[:1], -100.0)
    c.add(rows[1:], 100.0)
    (first,) = c.release(dict.fromkeys(range(3), start))
    late = c.release(dict.fromkeys(range(3), start + 200.0))
    assert first.columns["beams"] == near(rows[0], rows)
    assert [r.columns["beams"] for r in late] == [near(one, rows) for one in rows[1:]]
    assert not c._missed


def test_two_runs_do_not_share_a_folder(fb, tmp_path):
    pytest.importorskip("fcntl")
    first = Sink(tmp_path, pictures=False, raw=False)
    with pytest.raises(ValueError, match="another run writes to this folder"):
        Sink(tmp_path)
    first.add(row(fb))
    first.close()
    first.close()
    Sink(tmp_path, pictures=False, raw=False).close()
    assert len(rows_of(tmp_path)) == 1


def test_samples_that_wait_are_bounded(fb, tmp_path, monkeypatch):
    """If there is no memory for more samples, candidates keep their lines, lose their pictures, and are counted."""
    from skysieve.dedispersion.stream.report import sink as module

    raw = fb.block(1000, 400).T.copy()
    monkeypatch.setattr(module, "MOST_RAW", 2 * raw.nbytes)
    sink = Sink(tmp_path, pictures=False)
    for i in range(5):
        sink.add(row(fb, raw=raw, mjd_infinite=60000.0 + i))
    sink.close()
    assert sink.counts["written"] == 5
    assert sink.counts["pictures_failed"] == 0
    assert sink.counts["pictures"] + sink.counts["pictures_skipped"] == 5
    assert sink.counts["pictures"] == len(list(tmp_path.glob("pulses/*.fil"))) >= 2


@pytest.mark.slow
def test_a_killed_drawing_process(fb, tmp_path):
    """Its candidate keeps its line and its samples; a new process draws the next ones."""
    pytest.importorskip("matplotlib")
    raw = fb.block(1000, 4000).T.copy()
    sink = Sink(tmp_path)
    sink.add(row(fb, raw=raw))
    wait_for(lambda: sink.counts["pictures"] == 1)
    os.kill(sink.drawing.process.pid, signal.SIGKILL)
    for i in range(2):
        sink.add(row(fb, raw=raw, mjd_infinite=60001.0 + i))
        wait_for(lambda i=i: sink.counts["pictures"] + sink.counts["pictures_failed"] == 2 + i)
    sink.close()
    assert (sink.counts["pictures"], sink.counts["pictures_failed"]) == (2, 1)
    assert len(rows_of(tmp_path)) == len(list(tmp_path.glob("pulses/*.fil"))) == 3
    (missing,) = undrawn(tmp_path)
    assert missing.picture.name.startswith("60001.0")


@pytest.mark.slow
def test_missing_pictures_can_be_drawn_later(fb, tmp_path, monkeypatch):
    """Closing waits for at most the given time; samples are on the disk, and the command draws the rest."""
    pytest.importorskip("matplotlib")
    from skysieve.dedispersion.stream.report import pictures as module

    monkeypatch.setattr(module, "MOST_WAITING", 2)
    monkeypatch.setattr(PictureProcess, "draw", lambda painter, task, over: wait_for(over))
    raw, said = fb.block(1000, 4000).T.copy(), []
    sink = Sink(tmp_path, say=said.append, raw=False)
    for i in range(4):
        sink.add(row(fb, raw=raw, mjd_infinite=60001.0 + i, mjd_top=60000.5 + 1.3 / 86400))
    wait_for(lambda: len(list(tmp_path.glob("pulses/*.fil"))) == 4)
    sink.close(grace=0.0)
    assert not any(thread.is_alive() for thread in sink.drawing._threads)
    assert sink.counts["pictures"] == 0
    assert sink.counts["pictures_later"] == 4
    assert sum("skysieve dedisp plot" in line for line in said) == 1
    monkeypatch.undo()
    done = command("plot", tmp_path)
    assert done.exit_code == 0, done.output
    assert "4 pictures" in done.output
    assert len(list(tmp_path.glob("pulses/*.png"))) == 4
    assert not list(undrawn(tmp_path))
    assert "0 pictures" in command("plot", tmp_path).output


def test_a_broker_that_answers_nonsense(fb, tmp_path):
    """Answers that are not HTTP, and impossible times, are counted; the next candidate is sent."""
    got = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    got.append(connection.recv(65536))
                    connection.sendall(b"nonsense\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        sink = Sink(
            tmp_path,
            pictures=False,
            raw=False,
            triggers=[make_trigger(f"voevent:http://127.0.0.1:{server.getsockname()[1]}/")],
        )
        for mjd in (60000.5, 1e12, 60001.5):
            sink.add(row(fb, mjd_infinite=mjd))
        sink.close()
        thread.join(60)
    assert len(got) == 2
    assert (sink.counts["triggers"], sink.counts["triggers_failed"]) == (0, 3)


def test_a_command_gets_valid_json(fb, tmp_path):
    """An unknown latency is null, because JSON has no NaN."""
    sink = Sink(tmp_path, pictures=False, raw=False, triggers=[make_trigger(f"command:tee {tmp_path}/heard")])
    sink.add(row(fb, latency=float("nan")))
    sink.close()

    def refuse(word):
        raise AssertionError(word)

    assert json.loads((tmp_path / "heard").read_text(), parse_constant=refuse)["latency"] is None


def test_a_trigger_that_hangs_delays_nothing(fb, tmp_path, monkeypatch):
    from skysieve.dedispersion.stream.report import sink as module

    started, over = threading.Event(), threading.Event()

    class Hanging(Trigger):
        def __init__(self):
            pass

        def send(self, candidate):
            started.set()
            over.wait(300)

    monkeypatch.setattr(module, "MOST_TRIGGERS", 2)
    sink = Sink(tmp_path, pictures=False, raw=False, triggers=[Hanging()])
    sink.add(row(fb))
    assert started.wait(120)
    for i in range(5):
        sink.add(row(fb, mjd_infinite=60000.0 + i))
    wait_for(lambda: sink.counts["written"] == 6)
    for _ in range(2):
        sink.close(grace=0.0)
        assert not sink._thread.is_alive()
        assert (sink.counts["triggers_dropped"], sink.counts["triggers_unfinished"]) == (5, 1)
    over.set()


def test_the_end_of_the_disk_is_reserved_for_the_tables(fb, tmp_path, monkeypatch):
    from skysieve.dedispersion.stream.report import pictures as module

    raw, said = fb.block(1000, 400).T.copy(), []
    monkeypatch.setattr(module.shutil, "disk_usage", lambda folder: SimpleNamespace(free=module.LEAST_FREE))
    sink = Sink(tmp_path, pictures=False, say=said.append)
    for i in range(3):
        sink.add(row(fb, raw=raw, mjd_infinite=60001.0 + i))
    sink.close()
    assert len(rows_of(tmp_path)) == sink.counts["pictures_skipped"] == 3
    assert not list(tmp_path.glob("pulses/*"))
    assert sum("nearly full" in line for line in said) == 1
    assert sink._raw_bytes == 0


def test_a_sink_that_fails_keeps_the_error(fb, tmp_path):
    def say(line):
        raise RuntimeError("nobody hears")

    sink = Sink(tmp_path, pictures=False, raw=False, say=say)
    sink.add(row(fb))
    sink.close()
    assert str(sink.error) == "nobody hears"
    assert len(rows_of(tmp_path)) == 1


def test_candidates_do_not_wait_for_their_samples(fb, tmp_path):
    """The line is on the disk before the samples around a candidate arrive; they may also arrive before it."""
    raw = fb.block(1000, 400).T.copy()
    sink = Sink(tmp_path, pictures=False, min_snr=8.0)
    numbered = [replace(row(fb, snr, mjd_infinite=60000.0 + i), number=i + 1) for i, snr in enumerate([9, 7, 9, 7, 9])]
    for one in numbered[:2]:
        sink.add(one)
    wait_for(lambda: sink.counts["written"] == 2)
    for number in (1, 2, 3, 4):
        sink.add(CandidateSamples(number, 1000, raw))
    for one in numbered[2:]:
        sink.add(one)
    sink.add(CandidateSamples(5, 1000, None))
    sink.close()
    assert sink.counts["pictures"] == 2
    assert sorted(p.name[:5] for p in tmp_path.glob("pulses/*.fil")) == ["60000", "60002"]
    assert sink._raw_bytes == 0
    assert not sink._samples
    assert not sink._expected
    with Filterbank.open(next(iter(tmp_path.glob("pulses/60002*.fil")))) as held:
        assert np.array_equal(held.read(), fb.block(1000, 400))
