"""Pulses that are injected into a live stream: their places, and that they are found, marked and never sent."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from tests.dedispersion.test_stream_pipeline import ListFeed, packets_of, rows_of, run_feed
from typer.testing import CliRunner

from skysieve.cli import app
from skysieve.dedispersion import Filterbank, PulseGrid, fake, plan, search
from skysieve.dedispersion.stream import LiveInjector
from skysieve.dedispersion.stream.intake import FileFeed
from skysieve.dedispersion.stream.metrics import METRICS, metric_values
from skysieve.dedispersion.stream.receive.file_source import source_geometry, source_steps
from skysieve.dedispersion.stream.receive.packets import packets
from skysieve.dedispersion.stream.records import INJECTION_COLUMNS, Options
from skysieve.dedispersion.stream.report.triggers import make_trigger
from skysieve.dedispersion.stream.web.folder import FolderReader

SEARCH = {"threshold": 7.0, "block": 0.6, "threads": 1}
GRID = PulseGrid(snr=(20.0, 30.0), dm=(50.0, 150.0), width=(3e-3, 6e-3))
INJECT = {"every": 2.5, "grid": GRID, "seed": 3}


@pytest.fixture(scope="module")
def quiet():
    """20 s of noise with one burst of its own, at 7.3 s."""
    made = fake(nchan=32, duration=20, tsamp=5e-4, fch1=1500, foff=-8, dm=100, times=[7.3], width=4e-3, snr=25, seed=4)
    return Filterbank.from_array(made.read(), freqs=made.freqs, tsamp=5e-4, tstart=60000.5)


@pytest.fixture(scope="module")
def options(quiet):
    return Options(plan=plan(quiet, dms=np.arange(0, 201, 5.0)), search=SEARCH, gulp=0.1, policy="block", cutouts=False,
                   inject=INJECT)  # fmt: skip


def injections_of(folder):
    with open(folder / "injections.csv", encoding="ascii") as file:
        return list(csv.DictReader(file))


def added(fb, pieces, start=0, **more):
    """The samples with pulses, given in pieces, and the injections."""
    live = LiveInjector(fb.observation, **{**INJECT, "epoch": source_geometry(fb, 512).epoch, **more})
    out, at = [], start
    while at < fb.nsamp:
        n = min(pieces, fb.nsamp - at)
        out.append(np.array(live.add(at, fb.block(at, n).T.copy())))
        at += n
    return np.concatenate(out), live.due(math.inf)


def test_pulses_do_not_depend_on_the_pieces_nor_on_where_a_run_starts(quiet):
    whole, all_of_them = added(quiet, 40000)
    assert len(all_of_them) == 8
    for pieces in (333, 4999):
        again, found = added(quiet, pieces)
        assert again.tobytes() == whole.tobytes()
        assert [one.time for one in found] == [one.time for one in all_of_them]
    late, found = added(quiet, 1000, start=12345)  # inside interval 2, which it leaves out
    numbers = [one.number for one in found]
    assert numbers == [n for n in range(1, 9) if (n - 1) * 5000 >= 12345]
    assert {one.number: one.time for one in found}.items() <= {one.number: one.time for one in all_of_them}.items()
    assert late[15000 - 12345 :].tobytes() == whole[15000:].tobytes()
    for other in ({"seed": 4}, {"beam": 1}, {"epoch": 10**18}):
        assert added(quiet, 40000, **other)[1][0].time != all_of_them[0].time


def test_a_pulse_has_the_injected_signal_to_noise(quiet):
    whole, pulses = added(quiet, 40000)
    got = search(Filterbank.from_array(whole.T, freqs=quiet.freqs, tsamp=5e-4), np.arange(0, 201, 5.0), threads=1)
    assert len(got) >= 8
    ratios = []
    for one in pulses:
        near = np.flatnonzero(np.abs(got.time - one.time) < 2 * one.effective_width)
        ratios.append(got.snr[near].max() / one.snr)
    assert abs(np.median(ratios) - 1) < 0.08


def test_channels_that_the_search_leaves_out_get_no_pulses(quiet):
    ignore, before = [0, 1, 20], quiet.read().T.copy()
    loud = before.astype(float)
    loud[:, ignore] = np.random.default_rng(2).normal(100, 40, (40000, 3))
    fb = Filterbank.from_array(np.clip(np.rint(loud), 0, 255).astype(np.uint8).T, freqs=quiet.freqs, tsamp=5e-4)
    whole, pulses = added(fb, 4999, ignore=ignore)
    np.testing.assert_array_equal(whole[:, ignore], fb.read().T[:, ignore])
    rest = np.delete(np.arange(32), ignore)
    few = Filterbank.from_array(whole.T[rest], freqs=quiet.freqs[rest], tsamp=5e-4)
    got = search(few, np.arange(0, 201, 5.0), threads=1)
    near = [np.abs(got.time - one.time) < 2 * one.effective_width for one in pulses]
    ratios = [got.snr[some].max() / one.snr for some, one in zip(near, pulses, strict=True)]
    assert abs(np.median(ratios) - 1) < 0.1
    live = LiveInjector(quiet.observation, ignore=ignore, **INJECT)
    lost = [[0, 40000, 0, 2], [0, 40000, 20, 21]]  # only samples that are not searched
    live.add(0, before, lost)
    assert [one.live for one in live.due(math.inf)] == [1.0] * 8


def test_a_stream_marks_what_it_injects_and_says_what_it_found(quiet, options, tmp_path):
    sent = tmp_path / "sent.txt"
    trigger = make_trigger(f"command:tee -a {sent}")
    folder = tmp_path / "night"
    summary, said = run_feed(lambda i: FileFeed(i, quiet, 700), options, folder, triggers=[trigger])
    rows, injected = rows_of(folder), injections_of(folder)
    assert [int(one["number"]) for one in injected] == list(range(1, 9))
    assert all(one["found"] == "1" for one in injected)
    assert {int(row["injected"]) for row in rows} == {0, *range(1, 9)}
    own = [row for row in rows if row["injected"] == "0"]
    assert [float(row["time"]) for row in own] == [pytest.approx(7.3, abs=5e-3)]
    sink = summary["sink"]
    assert (sink["injections"], sink["injections_found"]) == (8, 8)
    assert sink["injected"] == len(rows) - 1
    assert sink["triggers"] == 1
    assert json.loads(sent.read_text())["injected"] == 0
    assert sum("injected pulse" in line for line in said) == sink["injected"]
    expected = added(quiet, 40000)[1]
    for row, one in zip(injected, expected, strict=True):
        assert float(row["time"]) == pytest.approx(one.time, abs=1e-9)
        assert float(row["snr_found"]) == pytest.approx(one.snr, abs=5)
    reader = FolderReader(folder)
    reader.poll()
    assert (reader.view.injections, reader.view.injections_found) == (8, 8)
    assert {one.injected for one in reader.view.candidates} == set(range(9))
    values = metric_values({"sink": sink})
    assert values["sink_injections_found_total"] == 8
    assert {"injected", "injections", "injections_found", "injections_skipped"} <= {m.name for m in METRICS}


@pytest.mark.slow
def test_the_second_run_injects_the_same_pulses(quiet, options, tmp_path):
    """A run ends after 11 s; the next one, which starts at 12 s, adds the pulses that one run would have added."""
    g, made = packets_of(quiet)
    per_second = 2000 * g.chunks // g.nsamp
    whole = added(quiet, 40000)[1]
    run_feed(lambda i: ListFeed(i, [made[: 11 * per_second]]), options, tmp_path)
    first = injections_of(tmp_path)
    run_feed(lambda i: ListFeed(i, [made[12 * per_second :]]), options, tmp_path)
    both = injections_of(tmp_path)
    assert both[: len(first)] == first
    times = {one.number: one.time for one in whole}
    assert len(both) > len(first) >= 3
    for row in both:
        assert float(row["time"]) == pytest.approx(times[int(row["number"])], abs=1e-9)


@pytest.mark.slow
def test_lost_packets_of_a_pulse_are_stated(quiet, options, tmp_path):
    """The packets of half of an injected pulse's time are lost: it does not count for the recall."""
    g, made = packets_of(quiet)
    one = added(quiet, 40000)[1][2]
    first = round((one.time - 0.5 * one.effective_width) / 5e-4) // g.nsamp * g.chunks
    lost = np.ones(len(made), bool)
    lost[first - 10 * g.chunks : first + 400 * g.chunks] = False
    summary, _ = run_feed(lambda i: ListFeed(i, [made[lost]]), options, tmp_path)
    row = [r for r in injections_of(tmp_path) if int(r["number"]) == one.number]
    assert float(row[0]["live"]) < 0.5
    assert summary["sink"]["injections"] <= 7


def test_a_brighter_burst_is_not_that_of_an_injected_pulse(quiet):
    live = LiveInjector(quiet.observation, **INJECT)
    live.add(0, quiet.block(0, 40000).T.copy())
    [one, *_] = live._pulses
    at = live._middle(one)
    wide = one.made.length * 5e-4
    assert live.match(at, one.pulse.dm, one.pulse.snr, wide) == one.number
    assert live.match(at, one.pulse.dm, 1.3 * one.pulse.snr + 4, wide) == 0
    assert live.match(at + 0.3, one.pulse.dm, 9, wide) == 0
    early = live._per_dm * 20
    assert live.match(at - early / 2, one.pulse.dm + 20, 8, wide) == one.number  # in the bow tie
    assert live.match(at + early + 3 * wide, one.pulse.dm + 20, 8, wide) == 0


def test_intervals_without_noise_have_no_pulse(quiet):
    o = quiet.observation
    live = LiveInjector(o, **INJECT)
    dead = np.full((20000, 32), 7, np.uint8)
    out = live.add(0, dead)
    assert (out == 7).all()
    assert live.skipped == 4
    assert live.due(math.inf) == []
    live = LiveInjector(o, **INJECT)
    live.add(0, quiet.block(0, 5000).T.copy(), [[0, 400, 0, 32]])
    assert live.skipped == 1
    with pytest.raises(ValueError, match="two sweeps apart"):
        LiveInjector(o, every=0.5, grid=PulseGrid(dm=[2000.0]))


def test_samples_that_cannot_be_written_and_floats(quiet):
    x = quiet.block(0, 10000).T
    x.flags.writeable = False
    live = LiveInjector(quiet.observation, **INJECT)
    assert (live.add(0, x) != x).any()
    real = LiveInjector(quiet.observation, **INJECT, dtype="float32")
    rows = quiet.block(0, 10000).T.astype(np.float32)
    more = real.add(0, rows.copy()) - rows
    whole = LiveInjector(quiet.observation, **INJECT).add(0, np.array(quiet.block(0, 10000).T)).astype(float) - rows
    assert more.sum() == pytest.approx(whole.sum(), rel=0.01)  # whole numbers carry their fractions on


@pytest.mark.slow
def test_the_command(quiet, tmp_path):
    from skysieve.dedispersion import write_fil

    write_fil(tmp_path / "a.fil", quiet)
    words = ["dedisp", "stream", "--from", str(tmp_path / "a.fil"), "--dm-max", "200", "-o", str(tmp_path / "out"),
             "--no-plots", "--no-raw", "--threads", "1"]  # fmt: skip
    done = CliRunner().invoke(app, [*words, "--inject-every", "2.5", "--inject-grid", "snr=25;dm=50:150;width=0.004"])
    assert done.exit_code == 0, done.output
    assert "injected pulses: 8 of 8 found" in done.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["sink"]["injections_found"] == 8
    with open(tmp_path / "out" / "injections.csv") as file:
        assert next(csv.reader(file)) == [c.name for c in INJECTION_COLUMNS]
    for more, message in (
        (["--inject-grid", "snr=9"], "--inject-grid needs --inject-every"),
        (["--inject-every", "3", "--inject-grid", "time=9"], "without 'time'"),
        (["--inject-every", "3", "--inject-grid", "size=9"], "--inject-grid"),
        (["--inject-every", "0.1"], "two sweeps apart"),
    ):
        refused = CliRunner().invoke(app, [*words[:-4], *more, "--threads", "1"])
        assert message in refused.output, refused.output


@pytest.mark.slow
def test_pulses_of_two_beams_differ(quiet, options, tmp_path):
    g = source_geometry(quiet, 512)
    ((_, steps),) = source_steps(quiet, g, quiet.nsamp // g.nsamp * g.nsamp, 1)
    both = [packets(g, steps, 0, beam) for beam in (0, 1)]
    mixed = np.stack(both, axis=1).reshape(-1, both[0].shape[1])
    run_feed(lambda i: ListFeed(i, [mixed]), replace(options, ring=12.0), tmp_path)
    rows = injections_of(tmp_path)
    times = {beam: [row["time"] for row in rows if row["beam"] == beam] for beam in ("0", "1")}
    assert len(times["0"]) == len(times["1"]) >= 3
    assert not set(times["0"]) & set(times["1"])
