"""The whole pipeline: sockets, files, beams, faults of senders and disks."""

from __future__ import annotations

import csv
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from tests.dedispersion.dada import write_dada

from skysieve.dedispersion import Filterbank, fake, plan, search
from skysieve.dedispersion.clean.missing import Losses
from skysieve.dedispersion.stream.beams import Segment
from skysieve.dedispersion.stream.channelise.channeliser import Channeliser
from skysieve.dedispersion.stream.command.emulate import emulate
from skysieve.dedispersion.stream.intake import FileFeed, Intake, SocketFeed
from skysieve.dedispersion.stream.pipeline import Pipeline
from skysieve.dedispersion.stream.receive import cpu_ring
from skysieve.dedispersion.stream.receive.dada_file import DadaFile
from skysieve.dedispersion.stream.receive.file_source import source_geometry, source_steps
from skysieve.dedispersion.stream.receive.packets import SkysieveParser, packets
from skysieve.dedispersion.stream.receive.udp import UdpReceiver
from skysieve.dedispersion.stream.records import Options
from skysieve.dedispersion.stream.report.sink import Sink

SEARCH = {"threshold": 7.0, "block": 0.6, "threads": 1}
TIMES = [0.4, 1.3, 2.4, 3.1]


@pytest.fixture(scope="module")
def data():
    made = fake(
        nchan=32, duration=4, tsamp=5e-4, fch1=1500, foff=-8, dm=100, times=TIMES, width=4e-3, snr=25, seed=4, nbits=8
    )
    x = Filterbank.from_array(made.read(), freqs=made.freqs, tsamp=5e-4, tstart=60000.5)
    p = plan(x, dms=np.arange(0, 201, 10.0))
    options = Options(plan=p, search=SEARCH, gulp=0.1, policy="block", cutouts=False)
    return SimpleNamespace(fb=x, plan=p, options=options)


def rows_of(folder):
    with open(folder / "candidates.csv", encoding="ascii") as file:
        return list(csv.DictReader(file))


def run_feed(make_feed, options, folder, *, parser=None, receivers=(), before=None, most_beams=16, status=None, **sink):
    said = []
    intake = Intake(parser or SkysieveParser(), options, most_beams=most_beams, say=said.append)
    kept = Sink(folder, pictures=False, raw=False, say=said.append, **sink)
    pipeline = Pipeline(intake, make_feed(intake), kept, receivers=receivers, status=status, nice=0)
    if before is not None:
        threading.Thread(target=before, args=(pipeline,), daemon=True).start()
    return pipeline.run(), said


def packets_of(fb, packet_bytes=512, **changes):
    g = replace(source_geometry(fb, packet_bytes), **changes)
    ((_, steps),) = source_steps(fb, g, fb.nsamp // g.nsamp * g.nsamp, 1)
    return g, packets(g, steps, 0)


class ListFeed(FileFeed):
    """Feeds batches of datagrams."""

    def __init__(self, intake, batches):
        super(FileFeed, self).__init__(intake)
        self.batches = batches

    def feed(self):
        for made in self.batches:
            self.intake.take(made, np.full(len(made), made.shape[1]))


def same_as_file(rows, found):
    assert len(rows) == len(found) > 0
    rows = sorted(rows, key=lambda r: (-float(r["snr"]), float(r["dm"])))
    order = np.lexsort((found.dm, -found.snr))
    columns = found.columns()
    for row, i in zip(rows, order, strict=True):
        for name in ("sample", "width_samples", "downsamp", "members"):
            assert int(row[name]) == columns[name][i], name
        assert float(row["snr"]) == pytest.approx(float(columns["snr"][i]), abs=5e-5)  # four digits are written
        assert float(row["mjd_infinite"]) == pytest.approx(columns["mjd_infinite"][i], abs=1e-11)


# ---------------------------------------------------------------- streams and files


def test_a_file_streamed_is_the_file_searched(data, tmp_path):
    summary, _ = run_feed(lambda i: FileFeed(i, data.fb, 700), data.options, tmp_path)
    same_as_file(rows_of(tmp_path), search(data.fb, data.plan, **SEARCH))
    assert summary["counts"]["lost"] == 0
    assert summary["data_seconds"] == pytest.approx(8000 * 5e-4)


def test_the_last_state_is_that_of_all_data(data, tmp_path):
    """Also when no beam is searched any more."""
    states = []
    run_feed(lambda i: FileFeed(i, data.fb, 700), data.options, tmp_path, status=states.append)
    end = data.fb.observation.tstart + 8000 * 5e-4 / 86400
    assert states[-1]["mjd"] == pytest.approx(end, abs=1e-11)  # the step of an MJD


def test_the_summary_has_the_latency_of_every_candidate(data, tmp_path):
    """Those that the end of the data releases are counted separately."""
    summary, said = run_feed(lambda i: FileFeed(i, data.fb, 700), data.options, tmp_path)
    late = [float(row["latency"]) for row in rows_of(tmp_path)]
    before, at_end = summary["latency_candidates"], summary["end_latency_candidates"]
    assert before > 0 < at_end
    assert before + at_end == len(late)
    assert max(late) == pytest.approx(max(summary["latency_most"], summary["end_latency_most"]), abs=5.1e-4)  # digits
    announced = [line for line in said if "after its last sample" in line]
    assert len(announced) == len(late)


@pytest.mark.parametrize("nsamp", [7993, 1661])
def test_the_end_of_a_file_that_fills_no_packet_is_searched(data, tmp_path, nsamp):
    """The zeros that fill the last packet are not searched."""
    part = Filterbank.from_array(data.fb.block(0, nsamp), freqs=data.fb.freqs, tsamp=5e-4, tstart=60000.5)
    summary, _ = run_feed(lambda i: FileFeed(i, part, 700), data.options, tmp_path)  # 21 samples
    assert summary["data_seconds"] == pytest.approx(nsamp * 5e-4)
    assert summary["counts"]["lost"] == 0
    assert summary["counts"]["equal"] == 0
    same_as_file(rows_of(tmp_path), search(part, data.plan, **SEARCH))


def test_faults_of_a_socket_are_counted_and_searched_as_losses_of_a_file(data, tmp_path):
    sent = []

    def send(pipeline):
        sent.append(emulate(data.fb, *receiver.address, packet_bytes=512, rate=4.0, loss=0.05, reorder=0.2,
                            duplicate=0.1, seed=3))  # fmt: skip
        pipeline.stop()

    with UdpReceiver("127.0.0.1", 0) as receiver:
        summary, _ = run_feed(
            lambda i: SocketFeed(i, [receiver]),
            replace(data.options, window=500),
            tmp_path,
            receivers=[receiver],
            before=send,
        )
    counts, result = summary["counts"], sent[0]
    assert counts["kernel_drops"] == 0
    assert counts["datagrams"] == counts["packets"] == result.sent
    assert counts["lost"] == result.lost > 0
    assert counts["duplicate"] == result.doubled > 0
    assert counts["late"] == 0
    assert counts["accepted"] == 500 - result.lost
    kept = np.ones(500, bool)
    from skysieve.dedispersion.stream.command.emulate import schedule

    kept[schedule(500, np.random.default_rng(3), 0.05, 0.2, 0.1, 4)[0]] = False  # those never sent
    gone = np.flatnonzero(kept)
    losses = Losses(np.stack([gone * 16, gone * 16 + 16, 0 * gone, 0 * gone + 32], axis=1))
    same_as_file(rows_of(tmp_path), search(data.fb, data.plan, losses=losses, **SEARCH))


def test_voltages_to_candidates(tmp_path):
    """A burst in subband voltages is found at its time; stream and file give the same candidates."""
    rng = np.random.default_rng(1)
    nsub, tsamp, dm = 16, 8e-6, 60.0
    f = 1400.0 - np.arange(nsub) / 8
    n = 250_000
    sigma = np.full((n, nsub), 12.0)
    t = np.arange(n) * tsamp
    delay = (f**-2 - f[0] ** -2) * dm / 2.41e-4
    sigma[np.abs(t[:, None] - 1.0 - delay) < 2e-3] *= 1.6
    x = np.clip(np.rint(rng.standard_normal((n, nsub, 2)) * sigma[..., None]), -128, 127).astype(np.int8)
    path = tmp_path / "v.dada"
    write_dada(path, x[:, None], tsamp=tsamp, fch1=1400.0, foff=-1 / 8, tstart=60000.0)
    source = DadaFile(path)
    how = {"channels": 4, "integrate": 4, "calibrate": 0.2}
    options = Options(plan=np.arange(0, 120, 5.0), search=SEARCH, channelise=how, gulp=0.07, cutouts=False)
    summary, _ = run_feed(lambda i: FileFeed(i, source, 480), options, tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    best = max(rows, key=lambda r: float(r["snr"]))
    assert float(best["time"]) == pytest.approx(1.0, abs=3e-3)
    assert summary["stages"]["channelise"] > 0
    c = Channeliser(1400.0, -1 / 8, nsub, 1, tsamp, **how)
    z = x[..., 0] + 1j * x[..., 1]
    _, power, _ = c.feed(0, z[:, None].astype(np.complex64))
    offline = Filterbank.from_array(np.ascontiguousarray(power.T), freqs=c.freqs, tsamp=c.tsamp, tstart=60000.0)
    same_as_file(rows, search(offline, np.arange(0, 120, 5.0), **SEARCH))


def test_beams_and_interference(data, tmp_path, monkeypatch):
    """A pulse in all three beams is flagged, a pulse in one is not; a fourth beam is refused."""
    monkeypatch.setattr("skysieve.dedispersion.stream.search.coincidence.HOLD", 1e9)
    quiet = fake(nchan=32, duration=4, tsamp=5e-4, fch1=1500, foff=-8, dm=100, times=[], width=4e-3, seed=9)
    made = [packets_of(fb)[1] for fb in (data.fb, quiet, quiet, quiet)]
    both = fake(nchan=32, duration=4, tsamp=5e-4, fch1=1500, foff=-8, dm=0, times=[2.0], width=4e-3, snr=40, seed=7)
    x = both.read().astype(int) - 96
    for i in range(4):
        own = (data.fb if i == 0 else quiet).read() + (x > 40) * 60
        fb = Filterbank.from_array(
            np.clip(own, 0, 255).astype(np.uint8), freqs=data.fb.freqs, tsamp=5e-4, tstart=60000.5
        )
        made[i] = packets_of(fb)[1]
        made[i].view("<u2")[:, 4] = i
    batches = [m[a : a + 50] for a in range(0, 500, 50) for m in made]
    options = replace(data.options, search={**data.options.search, "clean": False})  # the pulse is an impulse at DM 0
    summary, said = run_feed(lambda i: ListFeed(i, batches), options, tmp_path, most_beams=3)
    rows = rows_of(tmp_path)
    at_two = [r for r in rows if abs(float(r["time"]) - 2.0) < 0.01 and float(r["dm"]) < 30]
    pulses = [r for r in rows if r["beam"] == "0" and abs(float(r["dm"]) - 100) < 15 and float(r["snr"]) > 15]
    assert {r["beam"] for r in at_two} == {"0", "1", "2"}
    assert {r["flagged"] for r in at_two} == {"1"}
    assert {r["beams"] for r in at_two} == {"3"}
    assert len(pulses) == 4
    assert {r["flagged"] for r in pulses} == {"0"}
    assert summary["counts"]["refused"] == 500
    assert any("more than 3 beams" in line for line in said)


def test_hostile_packets_are_counted_and_dropped(data, tmp_path):
    """Noise, other versions, changed and absurd headers among good packets do not change the candidates."""
    rng = np.random.default_rng(5)
    g, good = packets_of(data.fb)
    batches = []
    for a in range(0, 500, 20):
        some = [good[a : a + 20]]
        some.append(rng.integers(0, 256, (5, good.shape[1]), dtype=np.uint8))
        for at, value in ((4, 9), (6, 4), (31, 127), (40, 77)):
            bad = good[a : a + 1].copy()
            bad[0, at] = value
            some.append(bad)
        batches.append(np.concatenate(some))
    huge = packets(replace(g, total=2**20, chunks=2**15, tsamp=1e-9), np.zeros((g.nsamp, 1, 2**20), np.uint8), 0)[:1]
    huge.view("<u2")[:, 4] = 7
    batches.insert(3, huge)
    summary, said = run_feed(lambda i: ListFeed(i, batches), data.options, tmp_path)
    counts = summary["counts"]
    assert (counts["foreign"], counts["version"], counts["accepted"], counts["lost"]) == (125, 25, 500, 0)
    assert counts["length"] + counts["fields"] == 50
    assert counts["changed"] == 25
    assert counts["refused"] == 1
    assert any(line.startswith("beam 7: its packets are refused: ") for line in said)
    same_as_file(rows_of(tmp_path), search(data.fb, data.plan, **SEARCH))


def test_a_feed_that_fails_ends_the_run(data, tmp_path):
    class Broken(FileFeed):
        def feed(self):
            raise OSError("unplugged")

    with pytest.raises(OSError, match="unplugged"):
        run_feed(lambda i: Broken(i, data.fb), data.options, tmp_path)


@pytest.mark.few
@pytest.mark.parametrize(
    "changes", [{"kind": 1, "tsamp": 5e-324}, {"kind": 1, "tsamp": 1e-310}, {"fch1": 1e300}, {"tsamp": 1e300}]
)
def test_absurd_headers_of_one_beam_do_not_end_the_run(data, tmp_path, changes):
    """Also without a plan, with which headers could be compared."""
    g, good = packets_of(data.fb)
    other = replace(g, nsamp=8, **changes)
    bad = packets(other, np.zeros((8, 1, other.step_bytes), np.uint8), 0, 3)
    options = replace(data.options, plan=None, dm_max=200.0, search={**data.options.search, "block": None})
    batches = [good[:100], bad, *(good[a : a + 100] for a in range(100, 500, 100))]
    summary, _ = run_feed(lambda i: ListFeed(i, batches), options, tmp_path)
    assert (summary["counts"]["accepted"], summary["counts"]["lost"]) in ((500, 0), (501, 0))
    assert len(rows_of(tmp_path)) >= 4


@pytest.mark.slow
def test_beams_and_noise_in_one_batch(data, tmp_path):
    """A batch as one socket delivers it: packets of any beam in any order, with random datagrams between them."""
    rng = np.random.default_rng(6)
    _, first = packets_of(data.fb)
    shifted = Filterbank.from_array(
        np.roll(data.fb.read(), 1600, axis=1), freqs=data.fb.freqs, tsamp=5e-4, tstart=60000.5
    )
    second = packets_of(shifted)[1]
    second.view("<u2")[:, 4] = 1
    rubbish = rng.integers(0, 256, (200, first.shape[1]), dtype=np.uint8)
    rubbish[::2, :4] = np.frombuffer(b"SKYS", np.uint8)
    every = np.concatenate([first, second, rubbish])
    when = np.concatenate([np.arange(500.0), np.arange(500.0), rng.uniform(0, 500, 200)])
    order = np.argsort(when + rng.uniform(0, 3, len(when)), kind="stable")
    options = replace(data.options, policy="drop", ring=60.0)
    batches = [every[order[a : a + 100]] for a in range(0, len(every), 100)]
    summary, _ = run_feed(lambda i: ListFeed(i, batches), options, tmp_path)
    counts = summary["counts"]
    assert (counts["accepted"], counts["lost"], counts["late"]) == (1000, 0, 0)
    assert counts["foreign"] + counts["version"] == 200
    rows = rows_of(tmp_path)
    same_as_file([r for r in rows if r["beam"] == "0"], search(data.fb, data.plan, **SEARCH))
    same_as_file([r for r in rows if r["beam"] == "1"], search(shifted, data.plan, **SEARCH))


def test_a_wrong_parser_does_no_harm(data, tmp_path):
    """Places outside the ring or the datagram are counted and not used."""

    class Wrong(SkysieveParser):
        def parse(self, buffers, lengths):
            found = super().parse(buffers, lengths)
            at = np.flatnonzero(found.number == 77)
            for name, value in (("chunk", 10**9), ("chunk", -(10**9)), ("offset", 10**9), ("offset", -(10**9)),
                                ("number", -5), ("number", 2**62), ("status", 99)):  # fmt: skip
                if len(at):
                    getattr(found, name)[at[0]] = value
                    at = at[1:]
            return found

    _, good = packets_of(data.fb)
    batches = [good[:77], good[77:78], np.repeat(good[77:78], 8, axis=0), good[78:]]
    summary, _ = run_feed(lambda i: ListFeed(i, batches), data.options, tmp_path, parser=Wrong())
    counts = summary["counts"]
    assert (counts["fields"], counts["accepted"], counts["lost"], counts["duplicate"]) == (8, 500, 0, 0)
    same_as_file(rows_of(tmp_path), search(data.fb, data.plan, **SEARCH))


def test_a_beam_that_cannot_be_searched_is_refused(data, tmp_path, monkeypatch):
    """It is reported once, its packets are counted, and the candidates of the other beam do not change."""
    from skysieve.dedispersion.stream.beams import Segment

    prepare = Segment.prepare
    refused = []

    def picky(self):
        if self.beam == 5:
            refused.append(5)
            raise MemoryError("more than there is")
        return prepare(self)

    monkeypatch.setattr(Segment, "prepare", picky)
    _, good = packets_of(data.fb)
    other = good.copy()
    other.view("<u2")[:, 4] = 5

    class Slow(ListFeed):
        def feed(self):
            for i, made in enumerate(self.batches):
                while i == 2 and not refused:
                    time.sleep(0.01)
                self.intake.take(made, np.full(len(made), made.shape[1]))

    batches = [good[:250], other[:250], good[250:], other[250:]]
    summary, said = run_feed(lambda i: Slow(i, batches), data.options, tmp_path)
    assert said.count("beam 5: its packets are refused: more than there is") == 1
    assert summary["counts"]["refused"] == 250
    same_as_file(rows_of(tmp_path), search(data.fb, data.plan, **SEARCH))


def test_samples_around_candidates_are_those_of_the_file(data, tmp_path):
    """Each candidate gets samples, at the end of the data those that exist; each has a latency."""
    said = []
    intake = Intake(SkysieveParser(), replace(data.options, cutouts=True), say=said.append)
    sink = Sink(tmp_path, pictures=False, say=said.append)
    pipeline = Pipeline(intake, FileFeed(intake, data.fb, 512), sink, nice=0)
    pipeline.run()
    kept = sorted(tmp_path.glob("pulses/*.fil"))
    rows = rows_of(tmp_path)
    assert len(kept) == len(rows) == sink.counts["pictures"] >= 4
    x = data.fb.read()
    for path in kept:
        with Filterbank.open(path) as held:
            begin = round((held.observation.tstart - 60000.5) * 86400 / 5e-4)
            assert np.array_equal(held.read(), x[:, begin : begin + held.nsamp])
            assert held.nsamp > 200
    assert all(float(r["latency"]) >= 0 for r in rows)


@pytest.mark.few
@pytest.mark.parametrize("policy", ["block", "drop"])
def test_gulps_larger_than_the_ring(data, tmp_path, policy):
    """The pipeline does not wait for a gulp that the ring cannot hold."""
    options = replace(data.options, ring=0.01, gulp=3.0, policy=policy)
    summary, _ = run_feed(lambda i: FileFeed(i, data.fb, 512), options, tmp_path)
    counts = summary["counts"]
    assert counts["accepted"] + counts["overflow"] == 500
    assert summary["data_seconds"] > 0
    if policy == "block":
        same_as_file(rows_of(tmp_path), search(data.fb, data.plan, **SEARCH))


@pytest.mark.parametrize("window", [0, 1, 8, 40])
@pytest.mark.parametrize("ring", [0.01, 0.2])
@pytest.mark.parametrize("first", [0, 3, 8, 41])
def test_a_ring_that_is_full_at_the_start_holds_a_gulp(data, window, ring, first):
    """Places before the first packet, and those of the window, hold nothing that can be taken."""
    g, sent = packets_of(data.fb, 64)
    segment = Segment(0, 0, g, replace(data.options, window=window, ring=ring, gulp=3.0))
    found = SkysieveParser().parse(sent, np.full(len(sent), sent.shape[1]))
    index, state = np.arange(first, len(sent)), segment.ring.state
    fields = found.number, found.chunk, found.offset
    jump = segment.ring.most_jump
    done = cpu_ring.place(
        sent, 0, index, *fields, window, jump, 256, False, segment.ring.ring, segment.ring.seen, state
    )
    assert done < len(index)  # there is no room for the next packet
    loan = segment.take()
    assert loan is not None
    assert loan.start == first * g.nsamp
    assert loan.count == segment.gulp


@pytest.mark.parametrize("name", ["ring", "gulp", "dm_max"])
@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_options_are_checked_before_packets_arrive(name, value):
    with pytest.raises(ValueError, match=f"{name}="):
        Options(**{name: value})


def test_an_error_of_the_sink_ends_the_run(data, tmp_path):
    intake = Intake(SkysieveParser(), data.options)
    sink = Sink(tmp_path, pictures=False, raw=False)
    pipeline = Pipeline(intake, FileFeed(intake, data.fb), sink, nice=0)
    sink.add(SimpleNamespace(columns={}, raw=None))
    with pytest.raises(KeyError, match="flagged"):
        pipeline.run()


def test_a_closed_terminal(monkeypatch):
    from skysieve.dedispersion.stream.command.commands import Screen

    class Gone:
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stderr", Gone())
    screen = Screen(progress=True)
    screen.say("a")
    screen.line("b")
    screen.end()
    assert screen.count == 1


def test_a_signal_during_the_wait_for_pictures_keeps_the_summary(data, tmp_path, monkeypatch):
    """Everything has been searched by then."""
    close, given = Sink.close, []

    def interrupted(sink, seconds, grace):
        given.append((seconds, grace))
        if len(given) == 1:
            raise KeyboardInterrupt
        close(sink, seconds, grace)

    monkeypatch.setattr(Sink, "close", interrupted)
    summary, _ = run_feed(lambda i: ListFeed(i, [packets_of(data.fb)[1]]), data.options, tmp_path)
    assert summary["sink"]["written"] == summary["sink"]["candidates"] == len(rows_of(tmp_path)) > 0
    assert given == [(120.0, 30.0), (5.0, 0.0)]
