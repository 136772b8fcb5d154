"""Time ``skysieve alerts``, run as a process, from alert packets in Avro files to periods.

Packets have the fields of LSST's schema v10.0, 100 visits in six bands over a year, and cut-outs of 60 kB: about 96 kB
each.  They are made first; ``--folder`` names a folder in which they are kept.

    python -m benchmarks.alerts                       10,000 packets, and the latency at 250 packets a second
    python -m benchmarks.alerts --packets 100000      the same with more packets

The processor time is that of the process with all its threads: on a busy machine it says more than the wall time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.harness import Report
from tests.alerts.packets import fast_container, fast_lsst_packets, lsst_schema, star

SECONDS, RATE, ANSWER, SHARE = 39.0, 250, 30.0, 0.99
"""Bounds: 10,000 packets take at most ``SECONDS``; of ``RATE`` packets a second, the fraction ``SHARE`` has its period
within ``ANSWER`` seconds."""
PER_FILE = 25


def _write(job: tuple[Path, int, int]) -> None:
    folder, first, n = job
    made, schema = folder / f".{first:07d}", lsst_schema()
    made.mkdir(exist_ok=True)
    for start in range(first, first + n, PER_FILE):
        packets = fast_lsst_packets([star(k) for k in range(start, start + PER_FILE)])
        (made / f"{start:07d}.avro").write_bytes(fast_container(packets, schema))
    made.rename(folder / f"{first:07d}")


def make(folder: Path, n: int) -> None:
    """Write packets of stars 1 to n, `PER_FILE` in each file; files that exist are kept."""
    jobs = [(folder, k, 100) for k in range(1, n + 1, 100) if not (folder / f"{k:07d}").is_dir()]
    with multiprocessing.get_context("spawn").Pool() as pool:
        pool.map(_write, jobs, chunksize=1)


def command(*arguments: Any) -> tuple[float, float, float]:
    """Run the command as a process; return its wall time, processor time and memory (MB)."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "skysieve", "alerts", *map(str, arguments)], check=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, processor, after.ru_maxrss / 1024


def check(store: Path, n: int) -> float:
    """Return the fraction of stars whose period was found."""
    found = dict(sqlite3.connect(store).execute("SELECT id, frequency FROM periods WHERE status = 'ok'"))
    assert len(found) == n, f"{len(found)} of {n} objects have a period"
    return float(np.mean([abs(found[k] - 1 / star(k).period) < 1 / 3650 for k in found]))


def throughput(report: Report, source: Path, work: Path, n: int, device: str) -> None:
    """Time the command from files to periods."""
    warm, paths = work / "warm.db", [source / f"{k:07d}" for k in range(1, n + 1, 100)]
    command("--avro", source / "0000001", "--store", warm, "--device", device, "-q")
    store, out = work / f"{n}.db", work / f"{n}.parquet"
    for path in paths:  # fill the page cache, so that the disk is not measured
        for file in path.iterdir():
            file.read_bytes()
    wall, processor, memory = command("--avro", *paths, "--store", store, "-o", out, "--device", device)
    again, _, _ = command("--avro", *paths, "--store", store, "--device", device, "-q")
    report.row(
        f"{n} packets", seconds=wall, processor_seconds=processor, packets_per_s=n / wall, memory_MB=memory,
        store_MB=store.stat().st_size / 2**20, right=check(store, n), nothing_new_seconds=again,
        reached=wall <= SECONDS, wanted=SECONDS,
    )  # fmt: skip


def latency(report: Report, source: Path, work: Path, seconds: float, rate: float, device: str, every: float) -> None:
    """Time how long packets wait for their period if files arrive at a steady rate in a folder that is watched."""
    n = int(rate * seconds) // 100 * 100
    arrivals, store = work / "arrivals", work / "live.db"
    arrivals.mkdir()
    files = [f for k in range(1, n + 1, 100) for f in sorted((source / f"{k:07d}").iterdir())]
    process = subprocess.Popen(
        [sys.executable, "-m", "skysieve", "alerts", "--avro", arrivals, "--watch", "--every", str(every),
         "--store", store,
         "--device", device, "-q"]
    )  # fmt: skip
    while not store.exists():
        time.sleep(0.1)
    time.sleep(3)
    came, start = np.empty(n), time.time()

    def feed() -> None:
        for i, file in enumerate(files):
            time.sleep(max(0.0, start + i * PER_FILE / rate - time.time()))
            os.link(file, arrivals / f"{i:06d}.avro")
            came[i * PER_FILE : (i + 1) * PER_FILE] = time.time()

    feeder = threading.Thread(target=feed)
    feeder.start()
    feeder.join()
    base = sqlite3.connect(store)
    until = time.time() + 120
    while time.time() < until:
        if base.execute("SELECT value FROM totals WHERE name = 'packets'").fetchone() == (n,):
            break
        time.sleep(0.2)
    process.terminate()
    process.wait()
    answered = dict(base.execute("SELECT id, searched FROM periods"))
    waits = np.array([answered.get(k + 1, np.inf) - came[k] for k in range(n)])
    report.row(
        f"{rate:g} packets/s for {seconds:g} s", every=every, median=float(np.median(waits)),
        p99=float(np.quantile(waits, SHARE, method="higher")), longest=float(waits.max()),
        reached=bool(np.mean(waits <= ANSWER) >= SHARE), wanted=ANSWER,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packets", type=int, default=10_000, help="a multiple of 100")
    parser.add_argument("--seconds", type=float, default=40.0, help="duration of the steady stream")
    parser.add_argument("--rate", type=float, default=RATE, help="packets a second of the steady stream")
    parser.add_argument("--every", type=float, default=5.0, help="--every of the steady stream")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", type=Path, help="keep the packets here")
    parser.add_argument("--suffix", default="", help="of the file of results")
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    given = parser.parse_args()
    n, seconds = (200, 1.0) if given.quick else (given.packets, given.seconds)
    report = Report("alerts", ("numpy", "numba", "fastavro"), given.quick)
    with tempfile.TemporaryDirectory() as work:
        folder = given.folder or Path(work) / "packets"
        folder.mkdir(parents=True, exist_ok=True)
        make(folder, max(n, 100))
        report.title("from Avro files to periods")
        throughput(report, folder, Path(work), n, given.device)
        if 100 <= given.rate * seconds <= n:
            report.title("steady stream")
            latency(report, folder, Path(work), seconds, given.rate, given.device, given.every)
    report.write(given.suffix)
    sys.exit(report.failed)


if __name__ == "__main__":
    main()
