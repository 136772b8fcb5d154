"""A long run of the live pipeline with many faults: ``make soak`` (an hour); the tests run 60 s of data.

1% of the packets are lost, others arrive out of order or twice, two seconds are missing, the sender restarts, and the
disk is full for a while.  The run fails unless every packet is accounted for, the candidates are those of a search of
files with the same samples missing, the pulses are found, and memory does not grow.

``python -m benchmarks.soak [--seconds 3600] [--rate 1]``
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skysieve.dedispersion import Filterbank, fake, plan, search
from skysieve.dedispersion.clean.missing import Losses, live_of
from skysieve.dedispersion.stream.command.emulate import Faults, emulate, piece_samples
from skysieve.dedispersion.stream.command.warm_up import warm
from skysieve.dedispersion.stream.intake import Feed, Intake, SocketFeed
from skysieve.dedispersion.stream.pipeline import Pipeline
from skysieve.dedispersion.stream.receive.file_source import source_geometry, source_steps
from skysieve.dedispersion.stream.receive.packets import SkysieveParser, packets
from skysieve.dedispersion.stream.receive.udp import UdpReceiver
from skysieve.dedispersion.stream.records import CANDIDATE_COLUMNS, Options
from skysieve.dedispersion.stream.report.sink import Sink

NCHAN, TSAMP, PACKET = 64, 1e-3, 1024
THRESHOLD, WIDTH, EVERY = 7.0, 8e-3, 2.5
SEARCH = {"threshold": THRESHOLD, "block": 1.1, "threads": 1}
DMS = np.arange(0, 201, 5.0)
WINDOW = 8
DM_FORMAT = {c.name: c.format for c in CANDIDATE_COLUMNS}["dm"]
"""Format of DMs in tables, with which the DMs of a file are rounded before the comparison."""
BATCH = 50
MIB = 2**20


@dataclass
class Outcome:
    """Result of a run: the summary of the pipeline, the faults found, and figures to print."""

    summary: dict[str, Any]
    faults: list[str]
    figures: dict[str, Any]


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def observation(seconds: float) -> tuple[Filterbank, np.ndarray[Any, Any]]:
    """Make noise with a pulse of S/N 20 every 2.5 s, a minute that is repeated; return it with the pulses' times."""
    minute = min(60.0, seconds)
    times = np.arange(1.3, minute - 0.5, EVERY)
    made = fake(nchan=NCHAN, duration=minute, tsamp=TSAMP, fch1=1500, foff=-4, dm=100, times=times, width=WIDTH, snr=20,
                seed=7)  # fmt: skip
    x = made.read()
    count = max(1, round(seconds / minute))
    every = (np.arange(count)[:, None] * x.shape[1] * TSAMP + times).ravel()
    fb = Filterbank.from_array(np.tile(x, (1, count)), freqs=made.freqs, tsamp=TSAMP, tstart=60000.0)
    return fb, every


def received(fb: Filterbank, faults: Faults) -> tuple[np.ndarray[Any, Any], int, int, int]:
    """Return the packets that are placed, and the numbers of duplicate, late and sent packets."""
    g = source_geometry(fb, PACKET)
    whole = fb.nsamp // g.nsamp * g.nsamp
    starts = [(a, min(piece_samples(g), whole - a)) for a in range(0, whole, piece_samples(g))]
    orders = [o + a // g.nsamp for (a, _), (o, *_) in zip(starts, faults.departures(g, starts), strict=True)]
    order = np.concatenate(orders)
    highest = np.maximum.accumulate(order)
    late = order < highest - WINDOW
    placed, first = np.unique(order[~late], return_index=True)
    return placed, int((~late).sum() - len(first)), int(late.sum()), len(order)


class FullDisk:
    """A table of candidates on a disk that is full from `begin` to `end`."""

    def __init__(self, folder: Path) -> None:
        self.table, self.aside = folder / "candidates.csv", folder / "aside.csv"

    def begin(self) -> None:
        """Make every write fail from now on."""
        self.table.rename(self.aside)
        self.table.symlink_to("/dev/full")

    def end(self) -> None:
        """Make writes succeed again."""
        self.table.unlink()
        self.aside.rename(self.table)


class GivenFeed(Feed):
    """Packets of both halves in the order in which they would be sent, without sockets and without a clock.

    The disk is full from packet ``full`` on, until the sink has had a write error.
    """

    def __init__(
        self, intake: Intake, fb: Filterbank, faults: list[Faults], disk: FullDisk, full: int, sink: Sink
    ) -> None:
        super().__init__(intake)
        self.fb, self.faults, self.disk, self.full, self.sink = fb, faults, disk, full, sink
        self.sent: list[int] = []

    def feed(self) -> None:
        """See `Feed.feed`."""
        g = source_geometry(self.fb, PACKET)
        whole = self.fb.nsamp // g.nsamp * g.nsamp
        starts = [(a, min(piece_samples(g), whole - a)) for a in range(0, whole, piece_samples(g))]
        is_full, count = False, 0
        for faults in self.faults:
            before = count
            pieces = source_steps(self.fb, g, piece_samples(g), 1)
            for (start, steps), (order, *_) in zip(pieces, faults.departures(g, starts), strict=True):
                queue = packets(g, steps, start)[order]
                for at in range(0, len(queue), BATCH):
                    some = queue[at : at + BATCH]
                    self.intake.take(some, np.full(len(some), some.shape[1]))
                    count += len(some)
                    if not is_full and count >= self.full:
                        self.disk.begin()
                        is_full = True
            self.sent.append(count - before)
            if is_full and self.disk.aside.exists():
                while not self.sink.counts["write_errors"] and not self.stop.wait(0.01):
                    pass
                self.disk.end()


def soak(seconds: float, rate: float | None, folder: Path) -> Outcome:
    """Send ``seconds`` of data in two halves, ``rate`` times as fast, and compare the result with the expected one.

    Without a rate no sockets are used, and each packet waits until there is room, so that no clock affects the outcome.
    """
    fb, times = observation(seconds / 2)
    half = fb.duration
    dms = plan(fb, dms=DMS)
    faults = [
        Faults(0.01, 0.1, 0.01, seed=1, gap=(half * 0.4, half * 0.4 + 2.0)), Faults(0.01, 0.1, 0.01, seed=2),
    ]  # fmt: skip
    options = Options(plan=dms, search=SEARCH, window=WINDOW, gulp=0.3, ring=120.0, cutouts=True,
                      policy="block" if rate is None else "drop")  # fmt: skip
    warm(options)
    said: list[str] = []
    sink = Sink(folder, pictures=False, raw=True, say=said.append, min_snr=25.0)
    intake = Intake(SkysieveParser(), options, say=said.append)
    memory: list[int] = []
    disk = FullDisk(folder)
    if rate is None:
        given = GivenFeed(intake, fb, faults, disk, round(0.3 * seconds / TSAMP * NCHAN / PACKET), sink)
        summary = Pipeline(intake, given, sink).run()
        return judged(fb, times, dms, faults, summary, given.sent, memory, folder)
    with UdpReceiver("127.0.0.1", 0) as receiver:
        pipeline = Pipeline(intake, SocketFeed(intake, [receiver]), sink, receivers=[receiver],
                            status=lambda state: memory.append(resident()))  # fmt: skip
        sent: list[int] = []

        def send() -> None:
            for f in faults:
                done = emulate(fb, *receiver.address, rate=rate, packet_bytes=PACKET, loss=f.loss, reorder=f.reorder,
                               duplicate=f.duplicate, seed=f.seed, gap=f.gap)  # fmt: skip
                sent.append(done.sent)
            time.sleep(0.5)
            pipeline.stop()

        def fill_disk() -> None:
            time.sleep(0.15 * seconds / rate)
            disk.begin()
            time.sleep(min(60.0, 0.1 * seconds / rate))
            disk.end()

        for job in (send, fill_disk):
            threading.Thread(target=job, daemon=True).start()
        summary = pipeline.run()
    return judged(fb, times, dms, faults, summary, sent, memory, folder)


def judged(
    fb: Filterbank, times: np.ndarray[Any, Any], dms: Any, faults: list[Faults], summary: dict[str, Any],
    sent: list[int], memory: list[int], folder: Path,
) -> Outcome:  # fmt: skip
    """Compare the run with the files that have the same samples missing."""
    wrong: list[str] = []

    def check(good: bool, words: str) -> None:
        if not good:
            wrong.append(words)

    c, s = summary["counts"], summary["sink"]
    first, double, late, count = received(fb, faults[0])
    second, again, later, count2 = received(fb, faults[1])
    lost = sum(int(p.max() - p.min()) + 1 - len(p) for p in (first, second))
    check(sent == [count, count2], f"packets sent: {sent}, expected {[count, count2]}")
    dropped = [c.get(name, 0) for name in ("kernel_drops", "overflow", "ring_overflow")]
    check(not any(dropped), f"dropped for want of room: {c}")
    check(c["restarts"] == 1, f"restarts: {c['restarts']}")
    check(c["late"] == late + later, f"late: {c['late']}, {late + later} expected")
    check(c["accepted"] == len(first) + len(second), f"accepted: {c['accepted']}, {len(first) + len(second)} expected")
    check(c["duplicate"] == double + again, f"double: {c['duplicate']}, {double + again} expected")
    check(c["lost"] == lost, f"lost: {c['lost']}, {lost} expected")
    check(c["packets"] == sum(sent), f"datagrams: {c['packets']}, {sum(sent)} sent")
    check(s["write_errors"] > 0 and s["dropped"] == 0 and s["written"] == s["candidates"], f"sink: {s}")
    with open(folder / "candidates.csv", encoding="ascii") as file:
        rows = list(csv.DictReader(file))
    check(len(rows) == s["candidates"], f"{len(rows)} lines of {s['candidates']} candidates")
    found = wanted = extra = compared = 0
    worst = 0.0
    for number, placed in enumerate((first, second)):
        got, should, more, ratio, same = compare(
            fb, times, dms, placed, [r for r in rows if r["segment"] == str(number)], check
        )
        found, wanted, extra, compared = found + got, wanted + should, extra + more, compared + same
        worst = max(worst, ratio)
    check(wanted > 0 and found >= 0.99 * wanted, f"{found} of {wanted} pulses found")
    settled = memory[len(memory) // 4] if memory else resident()
    grown = (max(memory[-3:]) if memory else resident()) - settled
    check(grown < 0.1 * settled + 16 * MIB, f"memory grew by {grown / MIB:.0f} MiB from {settled / MIB:.0f}")
    figures = {
        "data_seconds": summary["data_seconds"], "packets": c["packets"], "lost": c["lost"], "late": c["late"],
        "duplicate": c["duplicate"], "pulses": wanted, "found": found, "others": extra, "equal": compared,
        "snr_off": worst, "grown_mib": grown / MIB, "resident_mib": settled / MIB, "write_errors": s["write_errors"],
        "realtime": summary["realtime"],
    }  # fmt: skip
    return Outcome(summary, wrong, figures)


def compare(
    fb: Filterbank, times: np.ndarray[Any, Any], dms: Any, placed: np.ndarray[Any, Any], rows: list[dict[str, str]],
    check: Any,
) -> tuple[int, int, int, float, int]:  # fmt: skip
    """Compare a segment with its file: pulses found and expected, other candidates, S/N errors, equal candidates."""
    g = source_geometry(fb, PACKET)
    start, stop = int(placed.min()) * g.nsamp, (int(placed.max()) + 1) * g.nsamp
    gone = np.setdiff1d(np.arange(placed.min(), placed.max() + 1), placed) * g.nsamp
    losses = Losses(np.stack([gone, gone + g.nsamp, 0 * gone, 0 * gone + NCHAN], axis=1), start)
    cut = Filterbank.from_array(fb.block(0, stop), freqs=fb.freqs, tsamp=TSAMP, tstart=60000.0)
    offline = search(cut, dms, losses=losses, **SEARCH)
    key = {(int(r["sample"]), int(r["width_samples"]), float(r["dm"])): float(r["snr"]) for r in rows}
    theirs = {(int(a), int(w), float(format(d, DM_FORMAT))): float(v) for a, w, d, v in
              zip(offline.sample, offline.width_samples, offline.dm, offline.snr, strict=True)}  # fmt: skip
    check(key.keys() == theirs.keys(), f"candidates differ from the file's: {sorted(key.keys() ^ theirs.keys())[:5]}")
    ratio = max((abs(key[k] / theirs[k] - 1) for k in key.keys() & theirs.keys()), default=0.0)
    check(ratio < 0.05, f"S/N differ by {ratio:.1%}")
    for r in rows:
        check(float(r["live"]) >= 0.5, f"a candidate of which {r['live']} came")
    from skysieve.dedispersion.dm_plan.delay_tables import make_table

    table = make_table(fb.observation, np.array([100.0]), dm_constant=dms.dm_constant)
    width = round(WIDTH / TSAMP)
    inside = times[(times > start * TSAMP + 0.1) & (times < stop * TSAMP - 0.3)]
    raw = np.stack([0 * inside, np.rint(inside / TSAMP), 0 * inside, 0 * inside], axis=1)
    live = live_of([table], [raw], [width], losses)[0]
    wanted = inside[live >= 0.95]
    moments = np.array([float(r["time"]) for r in rows]) if rows else np.empty(0)
    found = sum(bool((np.abs(moments - t) < WIDTH).any()) for t in wanted)
    others = sum(not (np.abs(inside - m) < 0.2).any() for m in moments)
    return found, len(wanted), others, ratio, len(key.keys() & theirs.keys())


def main() -> None:
    """Run the test and print the outcome."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=3600.0, help="seconds of data")
    arguments.add_argument("--rate", type=float, default=1.0)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        outcome = soak(given.seconds, given.rate, Path(name))
    for key, value in outcome.figures.items():
        print(f"{key:14s} {value:.4g}" if isinstance(value, float) else f"{key:14s} {value}")
    for line in outcome.faults:
        print(f"WRONG: {line}")
    print("no faults" if not outcome.faults else f"{len(outcome.faults)} faults")
    sys.exit(bool(outcome.faults))


if __name__ == "__main__":
    main()
