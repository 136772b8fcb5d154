"""The live pipeline on a GPU: stages of the paper's Table 6, the whole chain, latency of Table 5, channelisers.

``python -m benchmarks.stream_gpu [--quick] [--only stages chain live channelisers]`` takes under a minute on an H100.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.dedispersion_gpu import Case
from benchmarks.harness import Report
from benchmarks.stream import BUFFER, DMS, FCH1, FOFF, NSUB, PAPER, TSAMP, voltages
from tests.dedispersion.dada import write_dada

from skysieve.core.device import resolve
from skysieve.core.gpu.runtime import CudaRuntime
from skysieve.dedispersion.stream.beams import Segment
from skysieve.dedispersion.stream.channelise.channeliser import Channeliser
from skysieve.dedispersion.stream.channelise.cuda_channeliser import DeviceChanneliser
from skysieve.dedispersion.stream.intake import Feed, Intake, SocketFeed
from skysieve.dedispersion.stream.pipeline import Pipeline
from skysieve.dedispersion.stream.receive.packets import VOLTAGE, Geometry, SkysieveParser, packets
from skysieve.dedispersion.stream.receive.ring import Loan
from skysieve.dedispersion.stream.receive.udp import UdpReceiver
from skysieve.dedispersion.stream.records import Options
from skysieve.dedispersion.stream.report.sink import Sink

PACKAGES = ("skysieve", "numpy", "cupy-cuda13x")
CASES = ("stages", "chain", "live", "channelisers")
GEOMETRY = Geometry(VOLTAGE, 8, 1, 16, NSUB, 1, 10**18, TSAMP, FCH1, FOFF)
SECONDS = BUFFER * TSAMP
SENDER = """
import sys
from skysieve.dedispersion.stream.command.emulate import emulate
from skysieve.dedispersion.stream.receive.file_source import open_source
emulate(open_source(sys.argv[1]), "127.0.0.1", int(sys.argv[2]), repeat=0, seconds=float(sys.argv[3]))
"""


def median(call: Callable[[], object], repeat: int = 7) -> float:
    """Return the median wall seconds of a call that waits for the device."""
    times = []
    for _ in range(repeat + 1):
        since = time.perf_counter()
        call()
        times.append(time.perf_counter() - since)
    return statistics.median(times[1:])


class Stages:
    """The stages of a channeliser, each called alone, on packets in memory."""

    def __init__(self, geometry: Geometry, data: np.ndarray[Any, Any], **options: Any) -> None:
        g, n = geometry, len(data) * geometry.nsamp
        runtime = CudaRuntime(resolve("cuda")[0])
        self.c = Channeliser(g.fch1, g.foff, g.total, g.all_pols, g.tsamp, **options)
        self.chain = DeviceChanneliser(self.c, g, runtime, n)
        self.lane = self.chain.lanes[0]
        self.n, self.rows = n, (n // self.c.channels - self.c.taps + 1) // self.c.integrate
        self.loan = Loan(
            0, 0, n, np.empty((0, 4), np.int64), np.ones((len(data), 1), bool), [data], len(data), len(data)
        )
        level = runtime.xp.ones(self.c.nchan, np.float32)
        self.chain._levels = [level, level]
        with self.lane:
            self.raw, self.received = self.chain._send(self.lane, self.loan)
            self.room = self.lane.array("voltages", 2 * n * self.chain.line, self.chain.value)
        runtime.synchronize()

    def done(self, call: Callable[[], object]) -> None:
        with self.lane:
            call()
        self.lane.synchronize()

    def copy_in(self) -> None:
        self.done(lambda: self.chain._send(self.lane, self.loan))

    def unpack(self) -> None:
        self.done(lambda: self.chain._unpack(self.loan, self.raw, self.received, self.room, self.lane))

    def power(self) -> None:
        self.done(lambda: self.chain._channelise(self.lane, self.room, self.rows))


def stages(report: Report, quick: bool) -> None:
    """Time each stage of one buffer alone, and then several buffers in sequence, from the ring to candidates."""
    report.title("Table 6 on a GPU: milliseconds for 2^19 spectra of 256 subbands (6.71 s of data), 500 DMs")
    import cupy

    loud = voltages(SECONDS / 8).view(np.uint8).reshape(-1, 1, GEOMETRY.packet_bytes)
    noise = np.random.default_rng(2).standard_normal(loud.size, np.float32) * 16
    quiet = np.clip(np.rint(noise), -127, 127).astype(np.int8).view(np.uint8).reshape(loud.shape)  # as `voltages`
    kinds = {"a pulse in 6.7 s": [loud[: len(loud) * 5 // 16], *[quiet] * 7], "two pulses a second": [loud] * 8}
    buffers = 3 if quick else 6
    segment, bare = ring_to_candidates(kinds, buffers, False)
    segment.close()
    segment, cleaned = ring_to_candidates(kinds, buffers, True)
    ring = segment.ring
    each = Stages(GEOMETRY, ring.ring[: BUFFER // GEOMETRY.nsamp])
    took = {"copy in": median(each.copy_in), "unpack": median(each.unpack), "channelise, power": median(each.power)}
    each.chain.close()
    segment.close()
    case = Case("P_RT", resolve("cuda")[0])
    store = case.worker.store
    rows = cupy.random.randint(80, 112, case.total * 8 * NSUB, dtype=np.uint8)
    inverse = store._inverse(np.arange(8 * NSUB))

    def turned() -> None:
        store.turn(rows, case.total, 8 * NSUB, True, inverse, 0, store.lanes[0].stream)
        store.wait()

    took["corner turn"] = median(turned)
    took["de-dispersion"] = case.seconds(case.sums)
    took["detection"] = case.seconds(case.search) - took["de-dispersion"]
    case.close()
    for name, value in took.items():
        report.row("stages", stage=name, ms=1e3 * value, paper_ms=PAPER.get(name, 0))
    total = sum(took.values())
    report.row("stages", stage="sum", ms=1e3 * total, paper_ms=sum(PAPER.values()), realtime=SECONDS / total,
               paper_realtime=1.16)  # fmt: skip
    for clean, runs in ((False, bare), (True, cleaned)):
        for kind, (wall, seconds, found, own) in runs.items():
            rare = "6.7" in kind
            report.row(
                "ring to candidates", data=kind, cleaning=clean, seconds=seconds, wall=wall,
                ms=1e3 * wall * SECONDS / seconds, realtime=seconds / wall, wanted=400.0 if rare else 0.0,
                reached=bool(not rare or seconds / wall >= 400), candidates=found,
                copied_gb=2e-9 * NSUB * seconds / TSAMP / wall, channelise_ms=own["channelise"],
                search_ms=own["search"],
            )  # fmt: skip


Runs = dict[str, tuple[float, float, int, dict[str, float]]]
"""For each kind of data: elapsed seconds, seconds of data, candidates, milliseconds of each stage for 6.7 s of data."""


def ring_to_candidates(kinds: dict[str, list[Any]], buffers: int, clean: bool) -> tuple[Segment, Runs]:
    """Time buffers in sequence, from the ring to candidates, with or without the cleaning."""
    search = {"block": 0.5, "step": 13, "device": "cuda", "threshold": 8.0, "clean": clean}
    options = Options(plan=DMS, search=search, channelise={"calibrate": 0.3}, gulp=SECONDS, policy="block",
                      ring=(buffers + 0.2) * SECONDS, cutouts=False)  # fmt: skip
    segment = Segment(0, 0, GEOMETRY, options)
    segment.prepare()
    # the first run measures the level of bytes, loads kernels and allocates memory
    run_through(segment, np.concatenate(kinds["two pulses a second"]), 3)
    runs: Runs = {}
    for kind, parts in kinds.items():
        times = dict(segment.times)
        wall, seconds, found = run_through(segment, np.concatenate(parts), buffers)
        runs[kind] = (
            wall,
            seconds,
            found,
            {k: 1e3 * (v - times[k]) * SECONDS / seconds for k, v in segment.times.items()},
        )
    return segment, runs


def run_through(segment: Segment, data: np.ndarray[Any, Any], buffers: int) -> tuple[float, float, int]:
    """Put packets of some buffers into the ring and search them: elapsed seconds, seconds of data, candidates."""
    ring = segment.ring
    first = max(0, ring.at // GEOMETRY.nsamp)
    numbers = np.arange(first, first + buffers * BUFFER // GEOMETRY.nsamp)
    slots = numbers % ring.places
    for a in range(0, len(slots), len(data)):
        ring.ring[slots[a : a + len(data)]] = data[: len(slots[a : a + len(data)])]
    ring.seen[slots, 0] = numbers + 1
    ring.state[0], ring.state[1] = numbers[-1] + 1 + segment.options.window, 0
    count = found = 0
    since = time.perf_counter()
    while (loan := segment.take()) is not None:
        found += len(segment.step(loan))
        count += loan.count
    return time.perf_counter() - since, count * TSAMP, found


class MadeFeed(Feed):
    """A feed of the same packets again and again, with new packet numbers."""

    def __init__(self, intake: Intake, made: np.ndarray[Any, Any], repeat: int) -> None:
        super().__init__(intake)
        self.made, self.repeat = made, repeat

    def feed(self) -> None:
        """See `Feed.feed`."""
        lengths = np.full(512, self.made.shape[1])
        numbers = self.made[:, 24:32].view("<u8")[:, 0]
        first = numbers.copy()
        for i in range(self.repeat):
            numbers[:] = first + np.uint64(i * len(first) * GEOMETRY.nsamp)
            for a in range(0, len(self.made), 512):
                if self.stop.is_set():
                    return
                part = self.made[a : a + 512]
                self.intake.take(part, lengths[: len(part)])


def chain(report: Report, quick: bool, folder: Path) -> None:
    """Time the way from datagrams in memory to a table of candidates: parsing, placing, copying, searching."""
    report.title("The whole chain: datagrams in memory to candidates on disk, 2048 channels, 500 DMs")
    made = packets(GEOMETRY, voltages(1.0).view(np.uint8).reshape(-1, 1, 2 * NSUB), 0)
    search = {"block": 0.5, "step": 2, "device": "cuda", "threshold": 8.0}
    options = Options(plan=DMS, search=search, channelise={"calibrate": 0.3}, gulp=0.5, ring=4.0, policy="block")
    intake = Intake(SkysieveParser(), options)
    ready = Segment(0, 0, GEOMETRY, options)
    ready.prepare()
    ready.close()
    pipeline = Pipeline(intake, MadeFeed(intake, made, 20 if quick else 120), Sink(folder, pictures=False, raw=False))
    since = time.perf_counter()
    summary = pipeline.run()
    wall = time.perf_counter() - since
    busy = sum(summary["stages"].values())
    report.row("chain", seconds=summary["data_seconds"], wall=wall, realtime=summary["data_seconds"] / wall,
               gpu_side=summary["data_seconds"] / busy, candidates=summary["sink"]["candidates"],
               lost=summary["counts"]["lost"])  # fmt: skip


def live(report: Report, quick: bool, folder: Path) -> None:
    """Search the stream of Table 5 over the loopback in real time, with gulps of 0.5 s."""
    report.title("Table 5 over UDP at 1x, gulps of 0.5 s: seconds from a pulse's last sample to its candidate")
    file = folder / "table5.dada"
    write_dada(file, voltages(2.0), tsamp=TSAMP, fch1=FCH1, foff=FOFF, tstart=60000.0)
    for block in (0.125,):
        search = {"block": block, "device": "cuda", "threshold": 8.0}
        options = Options(plan=DMS, search=search, channelise={"calibrate": 0.3}, gulp=0.5, cutouts=False)
        ready = Segment(0, 0, GEOMETRY, options)  # kernels are loaded, as the command does before it listens
        ready.prepare()
        ready.close()
        intake = Intake(SkysieveParser(), options)
        sink = Sink(folder / f"live-{block}", pictures=False, raw=False)
        with UdpReceiver("127.0.0.1", 0) as receiver:
            pipeline = Pipeline(intake, SocketFeed(intake, [receiver]), sink, receivers=[receiver])
            command = [sys.executable, "-c", SENDER, str(file), str(receiver.address[1]), "4" if quick else "6"]

            def send(command: list[str] = command, pipeline: Pipeline = pipeline) -> None:
                subprocess.run(command, check=True)
                time.sleep(1.0)
                pipeline.stop()

            threading.Thread(target=send, daemon=True).start()
            summary = pipeline.run()
        with open(sink.folder / "candidates.csv", encoding="ascii") as table:
            rows = list(csv.DictReader(table))
        # the level of bytes is measured in the first 0.3 s; candidates in the last gulp wait for the end of the stream
        late = [float(r["latency"]) for r in rows if 0.4 < float(r["time"]) < summary["data_seconds"] - 1.2]
        report.row("live", block=block, gulp=0.5, latency_median=statistics.median(late), latency_most=max(late),
                   wanted=1.0, reached=bool(max(late) <= 1.0), candidates=len(rows), lost=summary["counts"]["lost"],
                   seconds=summary["data_seconds"])  # fmt: skip


def channelisers(report: Report, quick: bool) -> None:
    """Time other channelisers than that of Table 5: 1e9 voltages a second, and the ratio to real time at 20 MHz."""
    report.title("channelisers")
    rng = np.random.default_rng(0)
    for nsub, pols, channels, taps, bits in (
        (256, 1, 8, 8, 8), (256, 2, 16, 4, 4), (64, 2, 128, 4, 8), (1, 2, 1024, 4, 8),
        (1, 2, 4096, 1, 32),
    ):  # fmt: skip
        g = Geometry(VOLTAGE, bits, pols, 64, nsub, 1, 10**18, 12.8e-6, FCH1, FOFF)
        times = (2**23 if quick else 2**25) // (nsub * pols) // 64
        data = rng.integers(0, 256, (times, 1, g.packet_bytes), dtype=np.uint8)
        if bits == 32:
            data = rng.standard_normal((times, 1, g.packet_bytes // 4), np.float32).view(np.uint8)
        each = Stages(g, data, channels=channels, taps=taps)
        unpack, power = median(each.unpack, 5), median(each.power, 5)
        rate = times * 64 * nsub * pols / (unpack + power) / 1e9
        report.row("channelisers", subbands=nsub, pols=pols, channels=channels, taps=taps, bits=bits,
                   unpack_ms=1e3 * unpack, power_ms=1e3 * power, gigasamples=rate,
                   realtime_20mhz=rate / 0.02 / pols)  # fmt: skip
        each.chain.close()


def main() -> None:
    """Run the cases that were asked for."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    given = arguments.parse_args()
    report = Report("stream_gpu", PACKAGES, given.quick)
    report.machine["gpu"] = [str(d) for d in resolve("cuda:all")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "stages" in given.only:
            stages(report, given.quick)
        if "chain" in given.only:
            chain(report, given.quick, folder / "chain")
        if "live" in given.only:
            live(report, given.quick, folder)
        if "channelisers" in given.only:
            channelisers(report, given.quick)
    report.write()
    sys.exit(report.failed)


if __name__ == "__main__":
    main()
