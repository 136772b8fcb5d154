"""The commands of live streams: mistakes, signals, metrics, the emulator."""

from __future__ import annotations

import csv
import errno
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from tests.dedispersion.test_stream_pipeline import SEARCH, ListFeed, data, packets_of, rows_of, same_as_file
from typer.testing import CliRunner

from skysieve.cli import app
from skysieve.core.metrics.server import PageServer, metrics_page, parse_address
from skysieve.dedispersion import Filterbank, PulseGrid, search
from skysieve.dedispersion.stream.command.commands import parse_rate, show
from skysieve.dedispersion.stream.command.emulate import emulate
from skysieve.dedispersion.stream.intake import FileFeed, Intake
from skysieve.dedispersion.stream.metrics import METRICS, PREFIX, names_of
from skysieve.dedispersion.stream.pipeline import Pipeline, live_line
from skysieve.dedispersion.stream.receive.formats import make_parser
from skysieve.dedispersion.stream.receive.packets import SkysieveParser
from skysieve.dedispersion.stream.report import sink as sink_module
from skysieve.dedispersion.stream.report.sink import Sink
from skysieve.dedispersion.stream.report.tables import Table

__all__ = ["data"]


def serve(read, host, port):
    """A server of the stream's metrics."""
    return PageServer({"/metrics": metrics_page(read, METRICS, PREFIX)}, host, port)


def test_metrics(data, tmp_path):
    intake = Intake(SkysieveParser(), data.options)
    sink = Sink(tmp_path, pictures=False, raw=False)
    pipeline = Pipeline(intake, FileFeed(intake, data.fb), sink)
    with serve(pipeline.metrics, "127.0.0.1", 0) as server:
        text = urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics").read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/")
        with pytest.raises(OSError, match="cannot serve metrics on 127"):
            serve(pipeline.metrics, "127.0.0.1", server.port)
    sink.close()
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert names == {f"skysieve_stream_{m.exported}" for m in METRICS if m.origin != "process"}
    assert "# HELP skysieve_stream_sink_written_total Candidates written to candidates.csv." in text.splitlines()
    assert all(line.startswith("#") or float(line.split()[1]) == 0 for line in text.splitlines())


@pytest.mark.slow
def test_metrics_are_those_of_an_independent_count(data, tmp_path):
    """Packets with known faults, counted by hand; candidates, from the table; seconds, from the number of samples."""
    options = replace(data.options, inject={"every": 1.0, "grid": PulseGrid((30.0,), (50.0, 60.0), 4e-3)}, window=8)
    g, whole = packets_of(data.fb)
    size, count = whole.shape[1], len(whole)
    lost, late = [100, 101, 300], 200
    order = [i for i in range(count) if i not in (*lost, late)]
    order.insert(order.index(late + 20), late)
    for i in (50, 60):
        order.insert(order.index(i) + 1, i)  # twice
    foreign, other = np.zeros(size, np.uint8), whole[10].copy()
    other[4] = 99  # another version
    faults = np.stack([foreign, foreign, other])

    class Faulty(ListFeed):
        def feed(self):
            super().feed()
            self.intake.take(faults, np.full(3, size))
            self.intake.take(faults[:1], np.array([5]))

    intake = Intake(SkysieveParser(), options)
    sink = Sink(tmp_path, pictures=False, raw=False)
    feed = Faulty(intake, [whole[order[i : i + 10]] for i in range(0, len(order), 10)])
    pipeline = Pipeline(intake, feed, sink, nice=0)
    pipeline.run()
    with serve(pipeline.metrics, "127.0.0.1", 0) as server:
        text = urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics").read().decode()
    found = {k.removeprefix(PREFIX): float(v) for k, v in (x.split() for x in text.splitlines() if x[0] != "#")}
    rows = rows_of(tmp_path)
    injected = sum(row["injected"] != "0" for row in rows)
    with open(tmp_path / "injections.csv", encoding="ascii") as file:
        pulses = list(csv.DictReader(file))
    expected = dict.fromkeys((m.exported for m in METRICS if m.origin != "process"), 0.0)
    expected |= {
        "packets_total": len(order) + 4, "bytes_total": (len(order) + 3) * size + 5, "accepted_total": count - 4,
        "lost_total": 4, "late_total": 1, "duplicate_total": 2,
        "foreign_total": 2, "version_total": 1, "short_total": 1,
        "sink_candidates_total": len(rows), "sink_written_total": len(rows), "sink_injected_total": injected,
        "sink_flagged_total": sum(int(row["flagged"]) for row in rows),
        "sink_injections_total": sum(float(one["live"]) >= 0.8 for one in pulses),
        "sink_injections_found_total": sum(one["found"] == "1" for one in pulses),
        "beams": 1, "data_seconds": 8000 * 5e-4, "mjd": 60000.5 + 4 / 86400,
    }  # fmt: skip
    measured = ("rate", "realtime", "load", "ring_fill", "latency")
    assert all(found[name] >= 0 for name in measured)
    assert {k: v for k, v in found.items() if k not in measured} == pytest.approx(
        {k: v for k, v in expected.items() if k not in measured}, rel=1e-11
    )
    assert len(rows) > injected >= len(pulses) > 0
    assert count * g.nsamp == 8000


def test_a_slow_client_is_disconnected(monkeypatch):
    """A client that sends byte after byte is disconnected, although no single read times out; others are served."""
    monkeypatch.setattr("skysieve.core.metrics.server.SECONDS", 0.2)
    over = threading.Event()
    with serve(lambda: {"beams": 1.0}, "127.0.0.1", 0) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as slow:

            def trickle():
                while not over.wait(0.02):
                    try:
                        slow.sendall(b"x")
                    except OSError:
                        over.set()

            thread = threading.Thread(target=trickle, daemon=True)
            thread.start()
            assert over.wait(120)
        monkeypatch.setattr("skysieve.core.metrics.server.SECONDS", 1e9)
        text = urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=120).read().decode()
    assert text.endswith("skysieve_stream_beams 1\n")


def test_idle_connections_do_not_delay_a_scrape(monkeypatch):
    """When many connections send nothing or half a request, the oldest are closed."""
    monkeypatch.setattr("skysieve.core.metrics.server.SECONDS", 1e9)
    monkeypatch.setattr("skysieve.core.metrics.server.MOST_OPEN", 8)
    links = []
    with serve(lambda: {"beams": 1.0}, "127.0.0.1", 0) as server:
        for i in range(60):
            links.append(socket.create_connection(("127.0.0.1", server.port)))
            links[-1].sendall(b"" if i % 2 else b"GET /metrics HTTP/1.1\r\nX: ")
            if i in (0, 7, 59):
                text = urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=300).read().decode()
                assert text.endswith("skysieve_stream_beams 1\n")
        for link in links[:50]:
            link.settimeout(300)
            with suppress(ConnectionResetError):
                assert link.recv(1) == b""
        assert sum("process_request" in thread.name for thread in threading.enumerate()) <= 16
    for link in links:  # closing the server closes all of them
        link.settimeout(300)
        with suppress(ConnectionResetError):
            assert link.recv(1) == b""
        link.close()


def test_scrapes_at_the_same_time(monkeypatch):
    """A scrape that takes long delays no other."""
    go, came = threading.Event(), []

    def read():
        came.append(threading.get_ident())
        if len(came) == 1:
            assert go.wait(300)
        return {"beams": float(len(came))}

    monkeypatch.setattr("skysieve.core.metrics.server.SECONDS", 1e9)
    with serve(read, "127.0.0.1", 0) as server:
        url, texts = f"http://127.0.0.1:{server.port}/metrics", []
        first = threading.Thread(target=lambda: texts.append(urllib.request.urlopen(url, timeout=300).read()))
        first.start()
        wait_for(lambda: came)
        for _ in range(5):
            texts.append(urllib.request.urlopen(url, timeout=300).read())
        go.set()
        first.join(300)
    assert len(texts) == 6
    assert len(set(came)) > 1


WITH_USUAL_PACKETS = """
from skysieve.__main__ import main
from skysieve.dedispersion.stream.command import warm_up

warm_up.POWER_BITS = warm_up.VOLTAGE_BITS = ()
main()
"""
"""The command, which loads code for 8-bit power alone: it would compile the code for other packets before it listens.

`tests/dedispersion/test_stream_start.py` tests what the command loads.
"""


def start_stream(tmp_path, *more, said=None):
    command = [sys.executable, "-c", WITH_USUAL_PACKETS, "dedisp", "stream", "--listen", "0",
               "-o", str(tmp_path / "out"), "--plan", str(tmp_path / "a.json"), "--no-plots", "--block", "0.6",
               "--threads", "1", "--ring", "20", *more]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    watchdog = threading.Timer(400, process.kill)
    watchdog.daemon = True
    watchdog.start()
    for line in process.stderr:
        if said is not None:
            said.append(line)
        if "listening on" in line:
            return process, int(line.rpartition(":")[2])
    raise AssertionError(process.communicate())


@pytest.mark.slow
def test_the_command_ends_with_a_summary(data, tmp_path):
    """SIGTERM: everything that has arrived is searched, then there is a summary, and the exit status is 0."""
    data.plan.save(tmp_path / "a.json")
    process, port = start_stream(tmp_path)
    emulate(data.fb, "127.0.0.1", port, rate=4.0, packet_bytes=512)
    announced = []
    for line in process.stderr:
        announced += [line] if line.startswith("S/N") else []
        if len(announced) == 2:  # the cleaning knows the third when more samples have arrived
            break
    process.send_signal(signal.SIGTERM)
    err = process.stderr.read()  # not `communicate`, which would skip lines that were read ahead
    out = process.communicate(timeout=300)[0]
    announced += [line for line in err.splitlines() if line.startswith("S/N")]
    rows = rows_of(tmp_path / "out")
    assert process.returncode == 0, err
    assert f"wrote {tmp_path / 'out' / 'candidates.csv'}: {len(rows)} candidates" in err
    assert f"wrote {tmp_path / 'out' / 'summary.json'}" in err
    assert "500 accepted" in out
    assert "lost" not in out
    assert len(rows) == len(announced) >= 3
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["counts"]["accepted"] == 500
    assert summary["latency_median"] > 0


def wait_for(condition, seconds=300.0):
    until = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < until:
        time.sleep(0.05)
    assert found
    return found


@pytest.mark.slow
def test_a_signal_before_the_first_packet(data, tmp_path):
    """Once the run says that it listens, a signal ends it with a summary and status 0."""
    data.plan.save(tmp_path / "a.json")
    process, _ = start_stream(tmp_path)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "0 candidates, 0 written" in out
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["counts"]["packets"] == 0


def command(*arguments):
    return CliRunner().invoke(app, ["dedisp", *map(str, arguments)])


def test_commands_on_files(data, tmp_path):
    from skysieve.dedispersion import write_fil

    write_fil(tmp_path / "a.fil", data.fb)
    data.plan.save(tmp_path / "a.json")
    out = tmp_path / "out"
    done = command("stream", "--from", tmp_path / "a.fil", "--plan", tmp_path / "a.json", "-o", out, "--no-plots",
                   "--no-raw", "--block", 0.6, "-t", 7, "--threads", 1)  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "x real time" in done.output
    same_as_file(rows_of(out), search(data.fb, data.plan, **SEARCH))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as hole:
        hole.bind(("127.0.0.1", 0))
        done = command("emulate", tmp_path / "a.fil", "--to", f"127.0.0.1:{hole.getsockname()[1]}", "--rate", "max")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("sent 32 packets (0 left out, 0 out of order, 0 twice)")


@pytest.mark.parametrize(
    ("given", "source", "position"),
    [([], "B0531+21", (83.5, -22.25)), (["--source", "x", "--ra", 10, "--dec", 5], "x", (10, 5))],
)
def test_samples_of_candidates_have_source_and_position(data, tmp_path, given, source, position):
    from skysieve.dedispersion import write_fil

    fb = Filterbank.from_array(data.fb.block(0, 1600), freqs=data.fb.freqs, tsamp=5e-4, tstart=60000.5)
    fb.observation = fb.observation.replace(source="B0531+21", telescope="GBT", ra=83.5, dec=-22.25)
    write_fil(tmp_path / "a.fil", fb)
    data.plan.save(tmp_path / "a.json")
    done = command("stream", "--from", tmp_path / "a.fil", "--plan", tmp_path / "a.json", "-o", tmp_path / "out",
                   "--no-plots", "--threads", 1, *given)  # fmt: skip
    assert done.exit_code == 0, done.output
    (cut,) = (tmp_path / "out" / "pulses").glob("*.fil")
    with Filterbank.open(cut) as found:
        o = found.observation
        assert (o.source, o.telescope) == (source, "GBT")
        assert (o.ra, o.dec) == pytest.approx(position, abs=1e-7)


def test_a_stream_of_which_nothing_can_be_searched_fails(data, tmp_path):
    """The pulses are too close; the message names the option."""
    from skysieve.dedispersion import write_fil

    write_fil(tmp_path / "a.fil", data.fb)
    done = command("stream", "--from", tmp_path / "a.fil", "--dm-max", 50, "-o", tmp_path / "out", "--no-plots",
                   "--threads", 1, "--inject-every", 0.01)  # fmt: skip
    assert done.exit_code == 2
    lines = [line for line in done.output.splitlines() if "its packets are refused" in line]
    why = "beam 0: its packets are refused: --inject-every 0.01: expected at least"
    assert len(lines) == 2  # when it happens, and at the end
    assert all(why in line for line in lines)


def test_candidates_that_could_not_be_written_give_an_error(data, tmp_path, monkeypatch):
    from skysieve.dedispersion import write_fil

    def full(table, rows):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Table, "append", full)
    monkeypatch.setattr(sink_module, "LAST_TRIES", 1)
    write_fil(tmp_path / "a.fil", data.fb)
    done = command("stream", "--from", tmp_path / "a.fil", "--dm-max", 200, "-o", tmp_path / "out", "--no-plots",
                   "--no-raw", "--threads", 1)  # fmt: skip
    assert done.exit_code == 2
    sink = json.loads((tmp_path / "out" / "summary.json").read_text())["sink"]
    assert (sink["written"], sink["dropped"]) == (0, sink["candidates"])
    lost = [line for line in done.output.splitlines() if line.startswith("not written: S/N")]
    assert len(lost) == sink["candidates"] > 1
    end = f"skysieve: {tmp_path / 'out' / 'candidates.csv'}: {len(lost)} candidates could not be written"
    assert done.output.splitlines()[-1] == end


def test_a_run_that_was_killed_before_it_noted_anything_is_reported(data, tmp_path):
    from skysieve.dedispersion import write_fil

    write_fil(tmp_path / "a.fil", data.fb)
    out = tmp_path / "out"
    out.mkdir()
    state = {"running": True, "streams": {"3": {"made": 1, "mark": None}}}
    (out / "status.json").write_text(json.dumps(state))
    data.plan.save(tmp_path / "a.json")
    done = command("stream", "--from", tmp_path / "a.fil", "--plan", tmp_path / "a.json", "-o", out, "--no-plots",
                   "--no-raw", "--threads", 1)  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "killed before it noted how far it had searched (beam 3): the gap between that run and" in done.output


def test_refused_packets_are_reported(data, tmp_path):
    """The loopback interface reports it to the sender; refused packets do not count as sent."""
    from skysieve.dedispersion import write_fil

    write_fil(tmp_path / "a.fil", data.fb)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    result = emulate(data.fb, "127.0.0.1", port, rate=float("inf"))
    assert result.sent + result.refused == 32
    assert result.refused > 0
    done = command("emulate", tmp_path / "a.fil", "--to", f"127.0.0.1:{port}", "--rate", "max")
    assert f"packets were refused: is anything listening on 127.0.0.1:{port}?" in done.output


def test_command_mistakes(data, tmp_path, monkeypatch):
    from skysieve.dedispersion import write_fil

    write_fil(tmp_path / "a.fil", data.fb)
    half = Filterbank.from_array(data.fb.block(0, 2000)[:16], freqs=data.fb.freqs[:16], tsamp=5e-4)
    write_fil(tmp_path / "b.fil", half)
    data.plan.save(tmp_path / "a.json")
    common = ["--plan", tmp_path / "a.json", "-o", tmp_path / "out"]
    (tmp_path / "file").write_text("")

    def never(*_, **__):
        raise AssertionError("long work before the mistake is reported")

    monkeypatch.setattr("skysieve.dedispersion.stream.command.warm_up.power_packets", never)
    monkeypatch.setattr("skysieve.dedispersion.stream.command.warm_up._run_through", never)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as used, socket.create_server(("127.0.0.1", 0)) as server:
        used.bind(("127.0.0.1", 0))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.bind(("127.0.0.1", 0))
            free = one.getsockname()[1]
        for arguments, message in [
            (["stream", *common], "expected one of --listen, --from and --dada-key"),
            (["stream", "--listen", "1", "-o", tmp_path], "expected one of --plan and --dm-max"),
            (["stream", "--listen", "x:y", *common], "--listen x:y: expected HOST:PORT"),
            (["stream", "--listen", used.getsockname()[1], *common], "cannot listen on 127.0.0.1"),
            (["stream", "--listen", "0", *common, "--packet-format", "vdif"], "needs --vdif-frames"),
            (["stream", "--listen", "0", *common, "--packet-format", "spead"], "packet format spead: expected"),
            (["stream", "--listen", "0", *common, "--vdif-threads", "1"], "--vdif-threads needs --packet-format vdif"),
            (["stream", "--listen", "0", *common, "--ivorn", "a"], "--ivorn needs --trigger voevent:URL"),
            (
                ["stream", "--listen", "0", *common, "--no-plots", "--no-raw", "--min-snr", "9"],
                "--min-snr needs --plots, --raw or --trigger",
            ),
            (["stream", "--listen", "0", *common, "--coincident", "0"], "--coincident 0: expected a fraction"),
            (["stream", "--listen", "0", *common, "--block", "0"], "--block 0: expected a number of seconds above 0"),
            (["stream", "--from", tmp_path / "a.fil", *common, "--window", "8"], "--window needs --listen"),
            (["stream", "--from", tmp_path / "a.fil", *common, "--taps", "2"], "--taps needs voltages"),
            (["stream", "--listen", "0", *common, "--ignore", "x"], "--ignore x"),
            (["stream", "--listen", "0", *common, "--ignore", "9:5"], "--ignore 9:5"),
            (["stream", "--from", tmp_path / "a.fil", *common, "--ignore", "200"], "expected channels from 0 to 31"),
            (["stream", "--listen", "0", *common, "-t", "0"], "--threshold 0"),
            (["stream", "--listen", "0", *common[:2], "-o", tmp_path / "file" / "out"], "there is no folder"),
            (["stream", "--from", tmp_path / "none.fil", *common[:2], "-o", tmp_path / "unmade"], "No such file"),
            (["stream", "--from", tmp_path / "a.fil", "--dm-max", "1e6", "-o", tmp_path / "unmade"], "DM 1e+06 across"),
            (
                ["stream", "--from", tmp_path / "b.fil", "--plan", tmp_path / "a.json", "-o", tmp_path / "unmade"],
                "plan: made for 32 channels",
            ),
            (["stream", "--from", tmp_path / "a.fil", "--dm-max", "inf", "-o", tmp_path / "unmade"], "--dm-max inf"),
            (["stream", "--listen", "0", *common, "--device", "cuda:99"], "cuda"),
            (["stream", "--listen", "0", *common, "--ring", "nan"], "--ring nan"),
            (["stream", "--listen", free, "--listen", free, *common], f"cannot listen on 127.0.0.1:{free}"),
            (["stream", "--listen", "0", *common, "--metrics", server.getsockname()[1]], "cannot serve metrics on 127"),
            (["stream", "--listen", "0", *common, "--seconds", "nan"], "--seconds nan"),
            (["stream", "--listen", "0", *common, "--seconds", "-1"], "--seconds -1"),
            (["stream", "--listen", "0", *common, "--ra", "400"], "--ra 400"),
            (["stream", "--listen", "0", *common, "--step", "1000000000"], "--step 1000000000: "),
            (["stream", "--listen", "0", *common, "--block", "1e9"], "--block 1e+09, "),
            (["stream", "--listen", "0", *common, "--dec", "-91"], "--dec -91"),
            (["stream", "--listen", "0", *common, "--min-snr", "nan"], "--min-snr nan"),
            (["stream", "--listen", "0", *common, "--trigger", "voevent:http://"], "voevent='http://'"),
            (["stream", "--listen", "0", *common, "--trigger", "voevent:http://a/", "--ivorn", ""], "--ivorn ''"),
            (["stream", "--listen", "0", *common, "--pfb-window", "kaiser"], "kaiser"),
            (["stream", "--listen", "0", *common, "--stokes", "V"], "--stokes 'V'"),
            (["stream", "--listen", "0", "--plan", tmp_path / "file", *common[2:]], "file"),
            (["stream", "--listen", "0", *common, "--trigger", "http://a/"], "expected command:PROGRAM or voevent:URL"),
            (["stream", "--listen", "0", *common, "-q", "-v"], "--quiet and --verbose"),
            (["stream", "--listen", "0", *common, "--trigger", "command:no-such-program"], "there is no program"),
            (["emulate", tmp_path / "none.fil", "--to", "127.0.0.1:1"], "No such file"),
            (["emulate", tmp_path / "a.json", "--to", "127.0.0.1:1"], "a.json"),
            (["emulate", tmp_path / "a.fil", "--to", "127.0.0.1:0"], "expected a port"),
            (["emulate", tmp_path / "a.fil", "--to", "none.invalid:5"], "cannot send to none.invalid:5"),
            (["emulate", tmp_path / "a.fil", "--to", "127.0.0.1:1", "--seconds", "nan"], "--seconds nan"),
            (["emulate", tmp_path / "a.fil", "--to", "127.0.0.1:1", "--packet-bytes", "80000"], "--packet-bytes 80000"),
            (["plot", tmp_path], "has no candidates.csv"),
            (["plot", tmp_path, "--zero-dm"], "expected no other options"),
            (["plot", tmp_path / "none"], "no such file or folder"),
            (["plot", tmp_path / "a.fil"], "--dm, --time and --width of the pulse are needed"),
        ]:
            done = command(*arguments)
            assert done.exit_code == 2, (arguments, done.output)
            assert message in done.output
    assert not (tmp_path / "unmade").exists()


def test_parts_of_the_command(capsys):
    class Mine:
        name = "mine"

        def parse(self, buffers, lengths):
            return SkysieveParser().parse(buffers, lengths)

        def geometry(self, datagram):
            return SkysieveParser().geometry(datagram)

    sys.modules["a_parser"] = SimpleNamespace(Mine=Mine, none=3)
    assert make_parser("a_parser:Mine").name == "mine"
    with pytest.raises(ValueError, match="has no methods parse and geometry"):
        make_parser("a_parser:none")
    del sys.modules["a_parser"]
    assert parse_address("0.0.0.0:12", "--listen") == ("0.0.0.0", 12)
    with pytest.raises(ValueError, match="--rate fast"):
        parse_rate("fast")
    with pytest.raises(ValueError, match="--listen 70000"):
        parse_address("70000", "--listen")
    summary = {
        "data_seconds": 1.0, "seconds": 1.0, "realtime": 1.0, "counts": {}, "stages": {}, "latency_most": None,
        "end_latency_most": None, "sink": dict.fromkeys(names_of("sink"), 0) | {"pictures_later": 2},
    }  # fmt: skip
    show(summary)
    said = capsys.readouterr().out
    assert "pictures: 0, 2 later" in said
    assert "triggers" not in said
    assert "latency" not in said
    show(
        summary | {"latency_median": 0.5, "latency_most": 0.714, "latency_candidates": 2,
                   "end_latency_most": 3.02, "end_latency_candidates": 1}
    )  # fmt: skip
    said = capsys.readouterr().out.splitlines()
    assert "latency: median 0.50 s, largest 0.71 s, of 2 candidates before the end of the data" in said
    assert "latency at the end of the data: largest 3.02 s, of 1 candidate" in said
    state = {
        "counts": dict.fromkeys(names_of("parser", "intake", "ring", "receiver"), 1), "sink": {"candidates": 3},
        "seconds": 5.0, "rate": 1e6, "realtime": 2.0,
        "ring_fill": 0.5, "latency": 0.1,
    }  # fmt: skip
    assert "lost 1  late 1  duplicate 1  dropped 3  refused 9" in live_line(state)
