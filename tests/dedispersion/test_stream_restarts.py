"""Streams that begin in the middle: late receivers, senders that start again, runs after a killed one."""

from __future__ import annotations

import csv
import json
import signal
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.dedispersion.test_stream_commands import command, start_stream, wait_for
from tests.dedispersion.test_stream_pipeline import SEARCH, TIMES, ListFeed, data, packets_of, rows_of, run_feed
from tests.marks import slow

from skysieve.dedispersion import Filterbank, fake, search, write_fil
from skysieve.dedispersion.stream.command.emulate import emulate
from skysieve.dedispersion.stream.intake import RESTART, Intake
from skysieve.dedispersion.stream.pipeline import Pipeline
from skysieve.dedispersion.stream.receive.file_source import source_steps
from skysieve.dedispersion.stream.receive.packets import SkysieveParser, packets
from skysieve.dedispersion.stream.records import CANDIDATE_COLUMNS, Mark
from skysieve.dedispersion.stream.report.previous_run import GAP_COLUMNS, Gap, PreviousRun
from skysieve.dedispersion.stream.report.sink import Sink
from skysieve.dedispersion.stream.report.status import StatusFile

__all__ = ["data"]


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 68, 137, 240])
@pytest.mark.parametrize("block", [0.6, 1.1])
def test_a_receiver_that_joins_late(data, tmp_path, first, block):
    """From packet ``first`` on, and after two more starts of the sender: no candidate in noise, pulses at their DM."""
    search_ = {**SEARCH, "block": block}
    options = replace(data.options, search=search_)
    for dm, times in ((100.0, []), (180.0, [3.35])):
        made = fake(nchan=32, duration=5, tsamp=5e-4, fch1=1500, foff=-8, dm=dm, times=times, width=4e-3, snr=25,
                    seed=first, nbits=8)  # fmt: skip
        fb = Filterbank.from_array(made.read(), freqs=made.freqs, tsamp=5e-4, tstart=60000.5)
        g, sent = packets_of(fb)
        again = [packets_of(fb, epoch=g.epoch + k * 10**11)[1][at:] for k, at in ((1, first // 2), (2, 300 - first))]
        batches = [part[a : a + 50] for part in (sent[first:], *again) for a in range(0, len(part), 50)]
        summary, _ = run_feed(lambda i, b=batches: ListFeed(i, b), options, tmp_path / str(dm))
        assert summary["counts"]["accepted"] == summary["counts"]["packets"]
        rows = rows_of(tmp_path / str(dm))
        assert [r["segment"] for r in rows] == ["0", "1", "2"][: 3 * len(times)]
        for r in rows:
            assert abs(float(r["dm"]) - dm) <= 10
            assert abs(float(r["time"]) - 3.35) < 4e-3
            assert float(r["snr"]) > 15
        assert {path.name for path in (tmp_path / str(dm)).iterdir()} == {"candidates.csv"}


@pytest.mark.few
@pytest.mark.parametrize("size", [64, slow(37), 1500])
def test_a_sender_that_starts_again(data, tmp_path, size):
    """Another epoch, then the same one again from sample 0: three segments with all packets and right times.

    The packets that it takes to believe it are searched too, in reads of any size.
    """
    g, first = packets_of(data.fb)
    _, second = packets_of(data.fb, epoch=g.epoch + 10**12)
    third = second.copy()
    every = np.concatenate([first, second, third])
    batches = [every[a : a + size] for a in range(0, 1500, size)]
    summary, said = run_feed(lambda i: ListFeed(i, batches), data.options, tmp_path)
    counts = summary["counts"]
    assert counts["restarts"] == 2
    assert counts["accepted"] == 1500
    assert not any(counts[name] for name in ("changed", "late", "jump", "duplicate", "lost"))
    rows = rows_of(tmp_path)
    whole = Filterbank.from_array(data.fb.block(0, len(first) * g.nsamp), freqs=data.fb.freqs, tsamp=5e-4, tstart=6e4)
    offline = search(whole, data.plan, **SEARCH)
    for number in "012":
        assert sorted(int(r["sample"]) for r in rows if r["segment"] == number) == sorted(offline.sample.tolist())
    assert {r["segment"] for r in rows} == {"0", "1", "2"}
    assert sum("started again" in line for line in said) == 2
    for r in rows:
        began = 60000.5 + (1000 / 86400 if r["segment"] != "0" else 0)
        assert float(r["mjd_top"]) == pytest.approx(began + float(r["time"]) / 86400, abs=1e-10)


def counts_of(intake, *parts, size=100):
    for a in range(0, len(every := np.concatenate(parts)), size):
        some = every[a : a + size]
        intake.take(some, np.full(len(some), some.shape[1]))
    return intake.counts()


def test_packets_of_both_streams_at_a_restart(data):
    """Late packets of the old stream, and another crash of the sender, do not affect either stream."""
    g, old = packets_of(data.fb)
    new = packets_of(data.fb, epoch=g.epoch + 10**12)[1]

    def intake():
        return Intake(SkysieveParser(), replace(data.options, ring=60.0, window=2))

    # the old stream's last packets come among the first of the new one
    one = intake()
    counts = counts_of(one, old[:400], new[:1], old[400:401], new[1:3], old[401:402], new[3:300])
    assert (counts["accepted"], counts["changed"], counts["restarts"]) == (402 + 300, 0, 1)
    # by number: a straggler of the old stream lies closer to its end
    one = intake()
    counts = counts_of(one, old[:400], old[:1], old[395:396], old[1:300], size=37)
    assert (counts["accepted"], counts["late"], counts["restarts"]) == (400 + 300, 1, 1)
    assert [int(s.ring.state[0]) for s in one.beams[0].segments] == [399, 299]
    # a sender that crashed after 100 packets and started with the same header once more
    one = intake()
    counts = counts_of(one, old[:400], new[:100], old[400:402], new[:300])
    assert (counts["accepted"], counts["changed"], counts["duplicate"]) == (402 + 300, 100, 0)
    # a gap longer than the limit: the packets after it are another segment
    far = packets_of(data.fb)[1]
    far[:, 24:32] = (far[:, 24:32].copy().view("<u8") + np.uint64(g.nsamp * 10**6)).view(np.uint8)
    one = intake()
    counts = counts_of(one, old[:300], far[:300])
    assert (counts["accepted"], counts["jump"], counts["restarts"]) == (600, 0, 1)
    assert int(one.beams[0].segments[1].ring.state[0]) == 10**6 + 299
    assert counts["packets"] == 600


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(data_=st.data(), size=st.integers(1, 700))
def test_counts_do_not_depend_on_the_size_of_reads(data, data_, size):
    """With pieces of three streams, of any length and from any place, segments and counts are the same."""
    g, first = packets_of(data.fb)
    streams = [first, *(packets_of(data.fb, epoch=g.epoch + k * 10**12)[1] for k in (1, 2))]
    runs = st.tuples(st.integers(0, 2), st.integers(0, 499), st.integers(1, 400))
    parts = [streams[k][a : a + n] for k, a, n in data_.draw(st.lists(runs, min_size=1, max_size=8))]
    every = np.concatenate(parts)

    def become(step):
        intake = Intake(SkysieveParser(), replace(data.options, ring=30.0))
        for a in range(0, len(every), step):
            some = every[a : a + step]
            intake.take(some, np.full(len(some), some.shape[1]))
        beam = intake.beams[0]
        return intake.counts(), [(s.geometry.epoch, s.ring.state.tolist()) for s in beam.segments]

    assert become(size) == become(1)


def test_senders_that_take_turns_do_not_fill_the_memory(data, monkeypatch):
    """Each segment has its own ring until it is searched; only a few may wait."""
    from skysieve.dedispersion.stream import intake as module

    monkeypatch.setattr(module, "MOST_SEGMENTS", 3)
    said = []
    intake = Intake(SkysieveParser(), replace(data.options, ring=30.0), say=said.append)
    g, _ = packets_of(data.fb)
    for turn in range(6):
        some = packets_of(data.fb, epoch=g.epoch + turn * 10**12)[1][: RESTART + 10]
        intake.take(some, np.full(len(some), some.shape[1]))
    assert len(intake.beams[0].segments) == 3
    assert intake.tally["restarts"] == 2
    assert said[-1] == "beam 0: 3 segments already wait to be searched; no further one is started"
    counts = intake.counts()
    assert counts["changed"] + counts["accepted"] == counts["packets"] == 6 * (RESTART + 10)


def mark_of(folder):
    try:
        return json.loads((folder / "status.json").read_text())["streams"]["0"]["mark"]
    except (OSError, KeyError):
        return None


@pytest.mark.slow
def test_runs_after_one_that_was_killed(data, tmp_path):
    """What was announced is on the disk; later runs name the gap, continue the segments and replace nothing."""
    data.plan.save(tmp_path / "a.json")
    out = tmp_path / "out"
    process, port = start_stream(tmp_path)
    emulate(data.fb, "127.0.0.1", port, rate=8.0, packet_bytes=512)
    announced = [next(line for line in process.stderr if line.startswith("S/N"))]
    wait_for(lambda: (mark := mark_of(out)) and mark["seconds"] > 1.5 and any((out / "pulses").glob("[0-9]*")))
    process.kill()
    announced += [line for line in process.stderr.read().splitlines() if line.startswith("S/N")]
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    mark, before = mark_of(out), (out / "candidates.csv").read_text()
    assert mark["sample"] * 5e-4 == pytest.approx(mark["seconds"], abs=5e-4)
    assert mark["seconds"] <= 4.0
    files = {path: path.read_bytes() for path in (out / "pulses").glob("[0-9]*")}
    rows = rows_of(out)
    assert len(rows) >= len(announced) >= 1
    assert all(len(r) == len(CANDIDATE_COLUMNS) and None not in r.values() for r in rows)
    # every pulse before the mark is in the table
    for t in (t for t in TIMES if t < mark["seconds"]):
        assert any(abs(float(r["time"]) - t) < 0.01 for r in rows)

    # a run in this process, of a sender that has continued meanwhile: 5.99 s later
    first = 19984
    said = []
    sink = Sink(out, pictures=False, raw=False, say=said.append)
    previous = PreviousRun.read(out, sink.table.segments)
    intake = Intake(SkysieveParser(), data.options, next_segment=previous.next_segment)
    g = packets_of(data.fb)[0]
    ((_, steps),) = source_steps(data.fb, g, data.fb.nsamp, 1)
    pipeline = Pipeline(intake, ListFeed(intake, [packets(g, steps, first)]), sink, previous=previous, nice=0)
    with StatusFile(out, pipeline.state, {}, streams=pipeline.streams):
        pipeline.save_summary(pipeline.run())
    assert (out / "candidates.csv").read_text().startswith(before)
    assert {path: path.read_bytes() for path in files} == files
    assert {r["segment"] for r in rows} == {"0"}
    assert {r["segment"] for r in rows_of(out)[len(rows) :]} == {"1"}
    (gap,) = json.loads((out / "summary.json").read_text())["gaps"]
    assert (gap["beam"], gap["segment"], gap["before"]) == (0, 1, "killed")
    assert gap["sample_from"] == mark["sample"]
    assert first <= gap["sample_to"] < first + 1200 // 4 + 1200  # a first block that is too short is left out
    assert gap["seconds"] == pytest.approx((gap["sample_to"] - mark["sample"]) * 5e-4, abs=1e-3)
    with open(out / "gaps.csv", encoding="ascii") as file:
        (kept,) = csv.DictReader(file)
    assert list(kept) == [c.name for c in GAP_COLUMNS]
    assert float(kept["seconds"]) == pytest.approx(gap["seconds"], abs=1e-6)
    (message,) = [line for line in said if "a gap of" in line]
    assert "the previous run in this folder was killed at MJD 60000.5" in message

    # the command, after a run that has ended, with data from before its end
    count = len(rows_of(out))
    write_fil(tmp_path / "a.fil", data.fb)
    done = command("stream", "--from", tmp_path / "a.fil", "--plan", tmp_path / "a.json", "-o", out, "--no-plots",
                   "--block", 0.6, "--threads", 1)  # fmt: skip
    assert done.exit_code == 0, done.output
    assert {r["segment"] for r in rows_of(out)[count:]} == {"2"}
    assert "the previous run in this folder ended at MJD" in done.output
    assert "may be listed twice" in done.output
    assert {path: path.read_bytes() for path in files} == files
    assert json.loads((out / "summary-1.json").read_text())["gaps"] == [gap]


@pytest.mark.parametrize("state", ["", "{", "[]", "null", '{"running": true, "streams": {"x": 1}}',
                                   '{"running": true, "streams": {"0": {"made": 1e400, "mark": {}}}}'])  # fmt: skip
def test_a_state_that_cannot_be_read_is_ignored(tmp_path, state):
    (tmp_path / "status.json").write_text(state)
    found = PreviousRun.read(tmp_path, {0: 4, 3: 0})
    assert found.next_segment == {0: 5, 3: 1}
    assert found.marks == {}


def test_gaps_between_runs():
    epoch = 1677326400_000_000_000  # MJD 60000.5
    before = Mark(3, epoch, 10.0, 10_000)
    for after, seconds, words in (
        (Mark(4, epoch, 12.5, 12_500), 2.5, "a gap of 2.500 s, up to MJD 60000.500144676, is not searched"),
        (Mark(4, epoch + 60 * 10**9, 1.0, 1000), 51.0, "a gap of 51.000 s"),
        (Mark(4, epoch, 2.0, 2000), -8.0, "8.000 s after the start of this run"),
        (Mark(4, 0, 2.0, 2000), None, "the epoch of one of them is not known"),
    ):
        gap = Gap(2, before, after, True)
        assert gap.seconds == seconds
        assert words in gap.message
        assert gap.message.startswith("beam 2: the previous run in this folder was killed at MJD 60000.5001157")
        assert (gap.row["sample_from"] == 10_000) == (after.epoch == epoch)
    assert Gap(2, before, Mark(4, 0, 2.0, 2000), True).row["seconds"] == ""
    assert Gap(2, before, before, True).row["seconds"] == 0.0
    unknown = Gap(0, Mark(0, 0, 10.0, 10_000), Mark(1, 0, 12.5, 12_500), False)
    assert unknown.message == "beam 0: the previous run in this folder ended at 10.000 s: a gap of 2.500 s, up to " \
        "12.500 s, is not searched"  # fmt: skip
