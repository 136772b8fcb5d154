"""Measure the cost of dividing a command with ``--cluster``: whole jobs, single partitions, and workers that die.

    python benchmarks/cluster.py [--quick] [--only jobs|tasks|deaths] [--job NAME] [--scale X]

Each job runs as one process with two threads, as two processes with a thread each that share the input, and with
``--cluster local:2``, in turn.  Times include the start of Python and of the workers.  The elapsed time is meaningful
on an idle machine only, the processor time of all processes also on a busy one.  ``reached``: the elapsed time is at
most 1.1 times that of the better of the first two ways; this is judged only if the load is below `IDLE`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])

from benchmarks.harness import RESULTS, Report  # noqa: E402

PACKAGES = ("numpy", "numba", "dask", "distributed", "pyarrow")
BOUND = 1.1
IDLE = 0.5
"""Largest load, before a job, of a machine that is called idle."""
ADOPT = 36
"""Number of Linux's ``PR_SET_CHILD_SUBREAPER``."""
Words = list[str]


def seconds(commands: list[Words], folder: Path) -> tuple[float, float]:
    """Return the seconds of commands that run at the same time, and the processor seconds with all their subprocesses.

    Workers whose parents have ended become children of this process, so that their times are counted.
    """
    ctypes.CDLL(None).prctl(ADOPT, 1, 0, 0, 0)
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    running = [
        subprocess.Popen([sys.executable, "-m", "skysieve", *words, "-q"], cwd=folder, stdout=subprocess.DEVNULL)
        for words in commands
    ]
    for process in running:
        if process.wait():
            raise RuntimeError(f"{commands}: exit code {process.returncode}")
    took = time.perf_counter() - start
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime


def light_curves(folder: Path, scale: float) -> tuple[Words, list[Words], Words]:
    """Write light curves to two Parquet files, one light curve in each row."""
    import pyarrow as pa
    from pyarrow import parquet

    n, rows = round(5_000 * scale), 300
    rng = np.random.default_rng(1)
    for k in range(2):
        t = np.sort(rng.uniform(0, 1000, (n, rows)), axis=1)
        values = {"mjd": t, "mag": rng.normal(15, 0.1, (n, rows)), "magerr": np.full((n, rows), 0.1)}
        edges = np.arange(n + 1) * rows
        lists = {name: pa.ListArray.from_arrays(edges, v.ravel()) for name, v in values.items()}
        parquet.write_table(
            pa.table({"id": np.arange(n) + k * n, **lists}), folder / f"{k}.parquet", row_group_size=500
        )
    words = ["period", "--min-period", "0.05", "--max-period", "100", "--device", "cpu"]
    part = ["--partition", "500"]
    halves = [[*words, f"{k}.parquet", "-o", f"half{k}.parquet", "--threads", "1"] for k in range(2)]
    return [*words, "0.parquet", "1.parquet", "-o", "p.parquet", "--threads", "2"], halves, part


def templates(folder: Path, scale: float) -> tuple[Words, list[Words], Words]:
    """Templates of a frequency band of simulated SFTs."""
    n = 2 * round(4_000 * scale)
    made = ["fstat", "simulate", "sfts", "--days", "20", "--freq", "100", "--freq-band", f"{0.17 + 4e-6 * n:.3f}",
            "--ephemeris", "builtin"]  # fmt: skip
    seconds([made], folder)
    words = ["fstat", "search", "--sfts", "sfts", "--ra", "0.5", "--dec", "1.0", "--df", "4e-6", "--device", "cpu",
             "--dt0", "7200", "--dtau", "7200", "-w", "rect", "-w", "exp", "--ephemeris", "builtin"]  # fmt: skip

    def band(first: int, last: int) -> Words:
        return ["--freq", f"{100.08 + 4e-6 * first:.9f}", "--freq-band", f"{4e-6 * (last - first - 1):.9f}"]

    halves = [
        [*words, *band(low, low + n // 2), "-o", f"half{k}.parquet", "--threads", "1"]
        for k, low in enumerate((0, n // 2))
    ]
    return [*words, *band(0, n), "-o", "p.parquet", "--threads", "2"], halves, []


def maps(folder: Path, scale: float) -> tuple[Words, list[Words], Words]:
    """HEALPix maps; one process smooths them one after the other."""
    from astropy.io import fits

    nside, n = 512, max(2, round(40 * scale))
    for k in range(n):
        values = np.random.default_rng(k).standard_normal(12 * nside**2).astype(np.float32)
        table = fits.BinTableHDU.from_columns([fits.Column("I", "E", array=values)])
        table.header.update({"PIXTYPE": "HEALPIX", "ORDERING": "RING", "NSIDE": nside})
        table.writeto(folder / f"{k:02d}.fits")
    names = [f"{k:02d}.fits" for k in range(n)]
    words = ["smooth", "--fwhm", "2deg", "--device", "cpu"]
    halves = [[*words, *names[k::2], "-o", f"half{k}", "--threads", "1"] for k in range(2)]
    return [*words, *names, "-o", "p", "--threads", "2"], halves, []


def filterbanks(folder: Path, scale: float) -> tuple[Words, list[Words], Words]:
    """Filterbank files; one process searches them one after the other."""
    n = max(2, round(16 * scale))
    for k in range(n):
        fake = ["dedisp", "fake", "-o", f"{k:02d}.fil", "--nchan", "256", "--duration", "60",
                "--fch1", "1500", "--foff", "-1", "--tsamp", "2e-4", "--seed", str(k)]  # fmt: skip
        seconds([fake], folder)
    names = [f"{k:02d}.fil" for k in range(n)]
    words = ["dedisp", "search", "--dm-max", "300", "--device", "cpu"]
    serial = ["--cluster", "serial"]
    halves = [[*words, *names[k::2], "-o", f"half{k}.parquet", "--threads", "1", *serial] for k in range(2)]
    return [*words, *names, "-o", "p.parquet", "--threads", "2"], halves, []


JOBS: dict[str, Callable[[Path, float], tuple[Words, list[Words], Words]]] = {
    "period": light_curves, "fstat search": templates, "smooth": maps, "dedisp search": filterbanks,
}  # fmt: skip


def jobs(report: Report, names: list[str], turns: int, scale: float) -> None:
    """Each command in three ways."""
    report.title("one process with two threads, two processes, --cluster local:2")
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            one, two, part = JOBS[name](folder, scale)
            words = [word for k, word in enumerate(one) if word != "--threads" and one[k - 1] != "--threads"]
            again = ["--overwrite"]
            serial = ["--cluster", "serial"] if name == "dedisp search" else []
            ways = {
                "one process": [[*one, *again, *serial]], "two processes": [[*w, *again] for w in two],
                "local:2": [[*words, *part, *again, "--cluster", "local:2"]],
            }  # fmt: skip
            found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
            load = os.getloadavg()[0]
            for turn in range(turns + 1):
                for way, commands in ways.items():
                    times = seconds(commands, folder)
                    if turn or turns == 1:  # the first turn compiles
                        found[way].append(times)
                if turns == 1:
                    break
            least = {way: min(wall for wall, _ in times) for way, times in found.items()}
            used = {f"{way}, processor": min(used for _, used in times) for way, times in found.items()}
            ratio = least["local:2"] / min(least["one process"], least["two processes"])
            processors = used["local:2, processor"] / min(list(used.values())[:2])
            judged = scale >= 1 and load < IDLE
            bound = {"wanted": BOUND, "reached": bool(ratio <= BOUND)} if judged else {}
            report.row(name, scale=scale, load=load, **least, ratio=ratio, **used, ratio_processor=processors, **bound)


def processor() -> float:
    """Return the processor seconds of this process and of its child processes that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def nothing(number: int) -> int:
    """An empty task."""
    return number


def tasks(report: Report, scale: float) -> None:
    """Measure the cost of an empty task of Dask, and of an empty partition with its file."""
    from distributed import Client, LocalCluster, as_completed

    from skysieve import cluster

    report.title("cost of a cluster and of a partition")
    start = time.perf_counter()
    before = processor()
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as local,
        Client(local) as client,
    ):
        client.wait_for_workers(2)
    report.row("start and end", workers=2, seconds=time.perf_counter() - start, processor=processor() - before)
    n = max(1_000, round(100_000 * scale))
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as local,
        Client(local) as client,
    ):
        start, own = time.perf_counter(), time.process_time()
        waiting = iter(range(n))
        done = as_completed([client.submit(nothing, next(waiting), pure=False) for _ in range(8)])
        for future in done:
            future.release()
            for number in waiting:
                done.add(client.submit(nothing, number, pure=False))
                break
        wall, own = time.perf_counter() - start, time.process_time() - own
        report.row("empty tasks", n=n, ms_wall=1e3 * wall / n, ms_scheduler_and_client=1e3 * own / n)
        few = n // 50
        with tempfile.TemporaryDirectory() as place:
            job = cluster.job("tests.cluster.toy:Toy", Path(place) / "a.parquet", n=few, device="cpu")
            start, own = time.perf_counter(), time.process_time()
            cluster.run(job, client)
            wall, own = time.perf_counter() - start, time.process_time() - own
            report.row("empty partitions", n=few, ms_wall=1e3 * wall / few, ms_launcher=1e3 * own / few)


def deaths(report: Report, scale: float) -> None:
    """Run a job in which a twentieth of the partitions kill their worker, each of them once."""
    from skysieve import cluster

    report.title("workers that die")
    n = max(40, round(1_000 * scale))
    doomed = np.random.default_rng(1).choice(n, n // 20, replace=False).tolist()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        cluster.run(cluster.job("tests.cluster.toy:Toy", folder / "one.parquet", n=n, device="cpu"))
        start = time.perf_counter()
        job = cluster.job("tests.cluster.toy:Toy", folder / "a.parquet", n=n, kill=doomed, device="cpu")
        done = cluster.run(job, "local:2")
        same = (folder / "a.parquet").read_bytes() == (folder / "one.parquet").read_bytes()
        killed = len(list(folder.glob("killed-*")))
        took = time.perf_counter() - start
        report.row(
            "deaths", n=n, killed=killed, failed=len(done.failed), seconds=took, reached=same and not done.failed
        )


def merge(report: Report) -> None:
    """Put the rows of earlier runs that this run did not measure before its rows; each row has its date and load."""
    load = report.machine["load_average"]
    report.rows = [{"date": report.machine["date"], "load": load and load[0]} | row for row in report.rows]
    path = RESULTS / "cluster.json"
    before = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    again = {(row["case"], row.get("scale")) for row in report.rows}
    report.rows[:0] = [row for row in before if (row["case"], row.get("scale")) not in again]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small inputs: a check that it runs")
    parser.add_argument("--only", choices=("jobs", "tasks", "deaths"))
    parser.add_argument("--job", choices=JOBS, action="append", help="this command alone; may be repeated")
    parser.add_argument("--turns", type=int, default=3, help="turns after the first, which compiles; 1: no other")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the jobs; below 1 nothing is required")
    given = parser.parse_args()
    report = Report("cluster", PACKAGES, given.quick)
    scale = 0.02 if given.quick else given.scale
    if given.only in (None, "jobs"):
        jobs(report, given.job or list(JOBS), given.turns, scale)
    if given.only in (None, "tasks"):
        tasks(report, scale)
    if given.only in (None, "deaths"):
        deaths(report, scale)
    if not given.quick:
        merge(report)
    report.write()
    raise SystemExit(report.failed)


if __name__ == "__main__":
    main()
