"""The live pipeline: Tables 5 and 6 of the paper, packets over the loopback in real time, and a gigabit a second.

``python -m benchmarks.stream [--quick] [--minutes M] [--device cuda] [--only table6 table5 slow gigabit]``.  Senders
are separate processes on the same cores; sockets have the kernel's default buffers.  ``--sockets 1`` uses one socket
for each port, as a simple program would.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.harness import Report
from tests.dedispersion.dada import write_dada

from skysieve.dedispersion import Filterbank, fake, plan, write_fil
from skysieve.dedispersion.data.observation import Observation
from skysieve.dedispersion.stream.beams import Segment
from skysieve.dedispersion.stream.channelise.channeliser import Channeliser
from skysieve.dedispersion.stream.command.warm_up import warm
from skysieve.dedispersion.stream.intake import FileFeed, Intake, SocketFeed
from skysieve.dedispersion.stream.pipeline import Pipeline
from skysieve.dedispersion.stream.receive.file_source import open_source
from skysieve.dedispersion.stream.receive.packets import VOLTAGE, Geometry, SkysieveParser, packets
from skysieve.dedispersion.stream.receive.udp import UdpReceiver
from skysieve.dedispersion.stream.records import Options
from skysieve.dedispersion.stream.report.sink import Sink

PACKAGES = ("skysieve", "numpy", "numba")
NSUB, TSAMP, FCH1, FOFF = 256, 12.8e-6, 620.0 - 20 / 512, -20 / 256
"""The paper's Table 5: 20 MHz at 610 MHz in 256 subbands, 78,125 spectra a second."""
DMS = np.linspace(0, 60, 500)
BUFFER = 2**19
PAPER = {
    "copy in": 475, "channelise, power": 458 + 20, "corner turn": 112, "de-dispersion": 4500, "copy out": 220,
}  # fmt: skip
"""Milliseconds in the paper's Table 6 (on a C1060) for a buffer of 2^19 spectra, 6.71 s."""


def voltages(seconds: float, seed: int = 1, every: float = 0.5, dm: float = 30.0) -> np.ndarray[Any, Any]:
    """Return 8+8 bit voltages with a burst of DM 30 each half second, shape (samples, 1, subbands, 2)."""
    rng = np.random.default_rng(seed)
    n = round(seconds / TSAMP) // 16 * 16
    freqs = FCH1 + FOFF * np.arange(NSUB)
    delay = (freqs**-2 - freqs[0] ** -2) * dm / 2.41e-4
    x = np.empty((n, 1, NSUB, 2), np.int8)
    for a in range(0, n, 2**14):
        part = rng.standard_normal((min(2**14, n - a), NSUB, 2), np.float32) * 16
        t = (a + np.arange(len(part)))[:, None] * TSAMP - delay
        part *= np.where(np.abs((t + every / 2) % every - every / 2) < 1e-3, np.float32(1.12), np.float32(1))[..., None]
        x[a : a + len(part), 0] = np.clip(np.rint(part), -127, 127)
    return x


def table6(report: Report, quick: bool, device: str) -> None:
    """Time each stage from datagrams to candidates, for a buffer of 2^19 spectra in memory and one thread.

    Times are processor seconds on a CPU, which other work of the machine affects less, and elapsed seconds on a GPU.
    """
    report.title("Table 6: milliseconds for 2^19 spectra of 256 subbands (6.71 s of data)")
    now = time.process_time if device == "cpu" else time.perf_counter
    spectra = BUFFER // 8 if quick else BUFFER
    scale = BUFFER / spectra
    steps = voltages(spectra * TSAMP).view(np.uint8).reshape(-1, 1, 2 * NSUB)
    g = Geometry(VOLTAGE, 8, 1, 16, NSUB, 1, 10**18, TSAMP, FCH1, FOFF)
    made = packets(g, steps, 0)
    lengths = np.full(len(made), made.shape[1])
    options = Options(plan=DMS, search={"block": 0.5, "step": 4, "threads": 1, "device": device}, ring=1.0,
                      channelise={"calibrate": 0.3}, gulp=0.25, policy="block", cutouts=False)  # fmt: skip
    for turn in range(2):  # the first loads kernels
        intake = Intake(SkysieveParser(), options)
        clock: dict[str, float] = {}
        segment: Segment | None = None
        for a in range(0, len(made), 512):
            since = now()
            intake.take(made[a : a + 512], lengths[a : a + 512])
            clock["receive"] = clock.get("receive", 0.0) + now() - since
            if segment is None:
                segment = intake.beams[0].segments[0]
                _timed(segment, clock, now)
            drain(segment, clock, now)
        assert segment is not None
        intake.end()
        drain(segment, clock, now)
        since = now()
        segment.finish()
        clock["all"] += now() - since
        if turn == 0:
            continue
        names = ("receive", "channelise, power", "corner turn", "de-dispersion")
        copy = clock["unpack"]
        rest = clock["all"] - sum(clock[n] for n in names[1:]) - copy
        rows = {"receive": clock["receive"], "copy in": copy, **{n: clock[n] for n in names[1:]}, "other": rest}
        total = sum(rows.values())
        for name, took in rows.items():
            report.row("table6", stage=name, device=device, ms=1e3 * took * scale, paper_ms=PAPER.get(name, 0))
        report.row("table6", stage="total", device=device, ms=1e3 * total * scale, paper_ms=sum(PAPER.values()),
                   realtime=spectra * TSAMP / total, paper_realtime=1.16)  # fmt: skip


def drain(segment: Segment, clock: dict[str, float], now: Callable[[], float]) -> None:
    """Process all samples that have arrived."""
    while True:
        since = now()
        gulp = segment.take()
        if gulp is None:
            return
        segment.step(gulp)
        clock["all"] = clock.get("all", 0.0) + now() - since


def _timed(segment: Segment, clock: dict[str, float], now: Callable[[], float]) -> None:
    """Time the parts of a segment's channeliser and engine."""
    search, c = segment.prepare(), segment.channeliser
    assert c is not None

    def watch(owner: Any, name: str, stage: str) -> None:
        call = getattr(owner, name)
        clock.setdefault(stage, 0.0)

        def wrapped(*args: Any, **more: Any) -> Any:
            since = now()
            try:
                return call(*args, **more)
            finally:
                clock[stage] += now() - since

        setattr(owner, name, wrapped)

    if segment.chain is None:
        watch(segment.unpack, "voltages", "unpack")
        watch(c, "feed", "channelise, power")
    else:  # a GPU copies one gulp while it works on another; `stream_gpu` times each stage alone
        watch(segment.chain, "begin", "unpack")
        watch(segment.chain, "end", "channelise, power")
    watch(search.engine, "load", "corner turn")
    if search.series is None:
        watch(search.engine, "search", "de-dispersion")
    else:
        watch(search.engine, "sums", "de-dispersion")
        watch(search.series, "look", "de-dispersion")


def live(report: Report, case: str, file: Path, options: Options, seconds: float, folder: Path, wanted: str,
         sockets: int | None, most: float | None = None, least: float = 0.0) -> None:  # fmt: skip
    """Search a file while another process sends it in real time.

    ``most`` is the longest time to a candidate in seconds, ``least`` the lowest rate of samples in Mbit per second.
    """
    warm(options)  # as the command does before it listens; then a first search of the file loads the other kernels
    intake = Intake(SkysieveParser(), replace(options, policy="block"))
    feed = FileFeed(intake, open_source(file))
    Pipeline(intake, feed, Sink(folder / "file", pictures=False, raw=False), nice=0).run()
    sink = Sink(folder, pictures=False, raw=False)
    intake = Intake(SkysieveParser(), options)
    with UdpReceiver("127.0.0.1", 0, socket_buffer=0, sockets=sockets) as receiver:
        pipeline = Pipeline(intake, SocketFeed(intake, [receiver]), sink, receivers=[receiver])
        to = f"127.0.0.1:{receiver.address[1]}"
        command = [sys.executable, "-m", "skysieve", "dedisp", "emulate", str(file), "--repeat", "0",
                   "--rate", "1x", "--to", to, "--seconds", str(seconds)]  # fmt: skip
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        said: list[str] = []

        def send() -> None:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            said.extend(line for line in done.stderr.splitlines() if line.startswith("sent "))
            time.sleep(1.0)
            pipeline.stop()

        threading.Thread(target=send, daemon=True).start()
        since, cpu = time.perf_counter(), time.process_time()
        summary = pipeline.run()
        took = time.perf_counter() - since
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    c = summary["counts"]
    sender = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / took
    mbit = float(said[-1].partition(" s: ")[2].partition(" ")[0])
    latest = summary["latency_most"] or float("inf")
    report.row(
        case, data_seconds=summary["data_seconds"], mbit=mbit, lost=c["lost"],
        kernel_drops=c["kernel_drops"], overflow=c["overflow"] + c["ring_overflow"], accepted=c["accepted"],
        realtime=summary["realtime"], own_cores=(time.process_time() - cpu) / took, sender_cores=sender,
        latency_median=summary["latency_median"], latency_most=summary["latency_most"],
        candidates=summary["sink"]["candidates"], buffer=receiver.granted, sockets=len(receiver.sockets),
        real_time=receiver.real_time, sender=said[-1], wanted=wanted,
        reached=c["lost"] == 0 and mbit >= least and (most is None or latest <= most),
    )  # fmt: skip


def table5(report: Report, seconds: float, device: str, folder: Path, sockets: int | None) -> None:
    """Search the stream of the paper's Table 5 over the loopback, with bursts every half second."""
    report.title("Table 5 over UDP at 1x: 256 subbands, 2048 channels, 500 DMs")
    file = folder / "table5.dada"
    write_dada(file, voltages(4.0), tsamp=TSAMP, fch1=FCH1, foff=FOFF, tstart=60000.0)
    c = Channeliser(FCH1, FOFF, NSUB, 1, TSAMP)
    dms = plan(Observation(c.freqs, c.tsamp), dms=DMS)
    search = {"block": 0.25, "threads": 2, "device": device, "threshold": 8.0}
    options = Options(plan=dms, search=search, channelise={"calibrate": 0.3}, gulp=0.5, ring=4.0, cutouts=False)
    live(report, "table5", file, options, seconds, folder / "table5", "no loss; latency 1 s", sockets, 1.0)


def slow(report: Report, seconds: float, device: str, folder: Path, sockets: int | None) -> None:
    """Search samples of 1 ms, whose noise blocks last a second."""
    report.title("Every 1 ms: 512 channels, 300 DMs, a pulse every 1.3 s")
    file = folder / "slow.fil"
    made = fake(nchan=512, duration=26, tsamp=1e-3, fch1=1500, foff=-0.5, dm=100, times=np.arange(0.5, 25, 1.3),
                width=5e-3, snr=20, seed=2)  # fmt: skip
    write_fil(file, Filterbank.from_array(made.read(), freqs=made.freqs, tsamp=1e-3))
    with Filterbank.open(file) as fb:
        dms = plan(fb, dms=np.arange(300.0))
    search = {"block": 0.25, "threads": 2, "device": device, "threshold": 8.0}
    options = Options(plan=dms, search=search, gulp=0.5, ring=8.0, cutouts=False)
    live(report, "slow", file, options, seconds, folder / "slow", "no loss; latency 2.5 s", sockets, 2.5)


def gigabit(report: Report, seconds: float, device: str, folder: Path, sockets: int | None) -> None:
    """Search a little over a gigabit a second of detected power in packets of 8 KiB, 64 DMs x 256 channels."""
    report.title("1 Gbit/s over UDP: 256 channels every 2 us, 64 DMs, packets of 8 KiB, default socket buffers")
    file = folder / "gigabit.fil"
    noise = fake(nchan=256, duration=0.5, tsamp=2e-6, fch1=1500, foff=-1, times=[], seed=2)
    write_fil(file, Filterbank.from_array(noise.read(), freqs=noise.freqs, tsamp=2e-6))
    with Filterbank.open(file) as fb:
        dms = plan(fb, dms=np.arange(64) * 0.1)
    search = {"block": 0.25, "step": 4, "threads": 2, "device": device, "threshold": 8.0}
    options = Options(plan=dms, search=search, gulp=0.1, ring=6.0, cutouts=False)
    live(report, "gigabit", file, options, seconds, folder / "gigabit", "no loss at 1000 Mbit/s", sockets, least=1000)


def main() -> None:
    """Run the cases that were asked for."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--minutes", type=float, default=10.0, help="of table5 and of gigabit")
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--sockets", type=int, default=None, help="that share the port")
    cases = ("table6", "table5", "slow", "gigabit")
    arguments.add_argument("--only", nargs="+", choices=cases, default=list(cases))
    given = arguments.parse_args()
    seconds = 10.0 if given.quick else 60 * given.minutes
    report = Report("stream", PACKAGES, given.quick)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "table6" in given.only:
            table6(report, given.quick, given.device)
        if "table5" in given.only:
            table5(report, seconds, given.device, folder, given.sockets)
        if "slow" in given.only:
            slow(report, min(seconds, 60.0), given.device, folder, given.sockets)
        if "gigabit" in given.only:
            gigabit(report, seconds, given.device, folder, given.sockets)
    some = "" if len(given.only) == len(cases) else "-" + "-".join(given.only)
    report.write(some if given.device == "cpu" else f"{some}-{given.device}")
    sys.exit(report.failed)


if __name__ == "__main__":
    main()
