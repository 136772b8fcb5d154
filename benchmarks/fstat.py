"""The transient F-statistic: time beside LALPulsar on one core each, scaling, and accuracy at N = 17,520.

``python benchmarks/fstat.py [--quick] [--lal PYTHON] [--only search]``; writes ``results/fstat.json``.  ``PYTHON`` is
an interpreter with lalsuite, which may be in another environment.  LALPulsar runs there, between our own timings.
``--only search`` searches 100,000 templates over a year from a seeded generator, and records the memory
(``results/fstat-search.json``; some minutes).
Numbers of cells are those of the full grid, with truncated windows.  LALPulsar's exponential map takes O(N^3) time: its
time for longer spans is extrapolated from the longest span that was run.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np
from harness import Report, interleaved
from tests.truth import fstat as reference

from skysieve.fstat import AtomsBatch, Grid, TransientPlan, from_lal, register_pyfstat, search, synth_atoms
from skysieve.fstat.inputs.bins import bin_atoms
from skysieve.fstat.inputs.windows import resolve_window

PACKAGES = ("skysieve", "numpy", "numba", "scipy")
PEER = """
import sys, time, json
import lalpulsar as lp, numpy as np
for line in sys.stdin:
    job = json.loads(line)
    a = np.load(job["atoms"])
    multi = lp.CreateMultiFstatAtomVector(int(a["n"]))
    for X in range(int(a["n"])):
        v = lp.CreateFstatAtomVector(len(a[f"{X}t"])); v.TAtom = 1800
        for j in range(len(a[f"{X}t"])):
            x = v.data[j]
            x.timestamp = int(a[f"{X}t"][j])
            x.a2_alpha, x.b2_alpha, x.ab_alpha = (float(a[f"{X}{k}"][j]) for k in ("a2", "b2", "ab"))
            x.Fa_alpha, x.Fb_alpha = complex(a[f"{X}Fa"][j]), complex(a[f"{X}Fb"][j])
            v.data[j] = x
        multi.data[X] = v
    w = lp.transientWindowRange_t()
    w.type = lp.TRANSIENT_EXPONENTIAL if job["window"] == "exp" else lp.TRANSIENT_RECTANGULAR
    for k in ("t0", "t0Band", "dt0", "tau", "tauBand", "dtau"):
        setattr(w, k, job[k])
    start = time.perf_counter()
    m = lp.ComputeTransientFstatMap(multi, w, False)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "maxF": m.maxF, "version": lp.__version__}), flush=True)
"""


class Lal:
    """LALPulsar in a separate process."""

    def __init__(self, python: str, folder: Any) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [python, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"OMP_NUM_THREADS": "1"}
        )

    def run(self, atoms: Any, grid: Grid, window: str) -> dict[str, Any]:
        """Seconds of one map and its maximum."""
        path = self.folder / "atoms.npz"
        values: dict[str, Any] = {"n": len(atoms)}
        for i, a in enumerate(atoms):
            values |= {f"{i}{k}": getattr(a, k) for k in ("t", "a2", "b2", "ab", "Fa", "Fb")}
        np.savez(path, **values)
        job = {"atoms": str(path), "window": window, "t0": int(grid.t0s[0]), "t0Band": grid.t0_band, "dt0": grid.dt0}
        job |= {"tau": int(grid.taus[0]), "tauBand": grid.tau_band, "dtau": grid.dtau}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def ours(atoms: Any, grid: Grid, window: str, threads: int, repeats: int, **options: Any) -> tuple[list[float], Any]:
    """Return the seconds of ``execute`` of a plan after a first call."""
    with TransientPlan(grid, window=window, device="cpu", threads=threads, **options) as plan:
        result, seconds = plan.execute(atoms), []
        for _ in range(repeats):
            start = time.perf_counter()
            result = plan.execute(atoms)
            seconds.append(time.perf_counter() - start)
    return seconds, result


def bench_peer(report: Report, lal: Lal | None) -> None:
    """Time our maximum, ln B and posteriors, and LALPulsar's map, on the same grids."""
    lean = {"keep_map": False}
    for window, spans, peer_spans in (
        ("rect", (10, 30, 121), (10, 30) if not report.quick else (10,)),
        ("exp", (10, 30, 121), (10,)),
    ):
        report.title(f"{window}: t0 and tau on the full grid, steps of one SFT")
        known = None
        for days in spans[: 1 if report.quick else 3]:
            atoms = synth_atoms(span=days * 86400, seed=days)
            grid = Grid.full(atoms)
            runs: dict[str, list[float]] = {}
            peer = [lal.run(atoms, grid, window)] if lal and days in peer_spans else []
            for name, threads, options in (
                ("skysieve float32, 1 thread", 1, {"dtype": "float32", **lean}),
                ("skysieve float32, 2 threads", 2, {"dtype": "float32", **lean}),
                ("skysieve float32 with map, 1 thread", 1, {"dtype": "float32"}),
                ("skysieve float64, 1 thread", 1, {"dtype": "float64", **lean}),
            ):
                runs[name], result = ours(atoms, grid, window, threads, 3 if days > 100 else 9, **options)
            if lal and days in peer_spans:
                peer.append(lal.run(atoms, grid, window))
                known = (grid.shape[0], statistics.median(p["seconds"] for p in peer), peer[0]["version"])
            for name, seconds in runs.items():
                middle = statistics.median(seconds)
                facts: dict[str, Any] = {"days": days, "cells": grid.cells, "ns_per_cell": 1e9 * middle / grid.cells}
                if known:
                    scale = (grid.shape[0] / known[0]) ** (3 if window == "exp" else 2)
                    facts |= {"lalpulsar_seconds": known[1] * scale, "lalpulsar": known[2]}
                    facts |= {"lalpulsar_scaled": scale != 1, "ratio": known[1] * scale / middle}
                    if days == 30 and name == "skysieve float32, 1 thread":
                        wanted = 5000 if window == "exp" else 15
                        facts |= {"wanted": wanted, "reached": facts["ratio"] >= wanted}
                report.row(f"{window} {days} d", tool=name, seconds=middle, best=min(seconds), **facts)
            if peer:
                error = abs(result.max_F - peer[0]["maxF"])
                report.row(f"{window} {days} d", tool="difference of max F from LALPulsar's", value=error)


def bench_accuracy(report: Report) -> None:
    """Compare random cells of a year with sums in float64."""
    n = 1_440 if report.quick else 17_520
    report.title(f"accuracy at N = {n}, {'2,000'} random cells: max and rms of |dF| / max(1, F)")
    width = 1800
    atoms = synth_atoms(span=n * width, duty=0.8, seed=4)
    taus = np.unique(np.geomspace(2, n, 24).round()).astype(int) * width
    t0 = int(min(a.t[0] for a in atoms))
    grid = Grid.from_lists(t0 + width * np.arange(n - 2), taus)
    bins, rng = bin_atoms(atoms), np.random.default_rng(1)
    cells = list(zip(rng.integers(0, n - 2, 2000), rng.integers(0, len(taus), 2000), strict=True))
    for window in ("rect", "exp"):
        w = resolve_window(window, 3)
        truth = [reference.cell(bins, int(grid.t0s[m]), int(taus[c]), w) for m, c in cells]
        for dtype in ("float32", "float64"):
            F = ours(atoms, grid, window, 2, 0, dtype=dtype)[1].F
            pairs = [(F[m, c], R) for (m, c), (R, k) in zip(cells, truth, strict=True) if abs(k / 1e4 - 1) > 0.01]
            error = np.array([abs(float(f) - r) / max(1, r) for f, r in pairs])
            bound = 3e-4 if dtype == "float32" else 1e-11
            report.row(
                f"accuracy {window}", dtype=dtype, max=float(error.max()), rms=float(np.sqrt(np.mean(error**2))),
                wanted=bound, reached=bool(error.max() <= bound),
            )  # fmt: skip


def bench_year(report: Report) -> None:
    """Time one template over a year, without keeping the map."""
    report.title("a year (N = 17,520, 3.07e8 cells), maximum, ln B and posteriors, float32")
    atoms = synth_atoms(span=365 * 86400, seed=9)
    grid = Grid.full(atoms)
    for window in ("rect", "exp"):
        for threads in (1, 2):
            seconds, _ = ours(atoms, grid, window, threads, 1, dtype="float32", keep_map=False)
            report.row(
                f"{window} 365 d", tool=f"skysieve, {threads} threads", seconds=seconds[0],
                ns_per_cell=1e9 * seconds[0] / grid.cells,
            )  # fmt: skip


def bench_interop(report: Report) -> None:
    """Time the conversion of LALPulsar's atoms, and one cell as in a Markov chain; needs LALSuite and PyFstat."""
    try:
        import lalpulsar as lp
        import pyfstat
    except ModuleNotFoundError as error:
        print(f"no rows of interop: {error}")
        return
    logging.getLogger("pyfstat").setLevel(logging.ERROR)
    report.title(
        "LALPulsar's atoms, 2 x 1,440 of 30 d: taken over at once; F of one cell of 20 SFTs, as PyFstat calls it"
    )
    atoms = synth_atoms(span=30 * 86400)
    multi = lp.CreateMultiFstatAtomVector(len(atoms))
    for x, a in enumerate(atoms):
        vector = lp.CreateFstatAtomVector(len(a))
        vector.TAtom = a.tatom
        for j in range(len(a)):
            atom = vector.data[j]
            atom.timestamp, atom.a2_alpha, atom.b2_alpha = int(a.t[j]), float(a.a2[j]), float(a.b2[j])
            atom.ab_alpha, atom.Fa_alpha, atom.Fb_alpha = float(a.ab[j]), complex(a.Fa[j]), complex(a.Fb[j])
            vector.data[j] = atom
        multi.data[x] = vector
    register_pyfstat(device="cpu", threads=1)
    maps = pyfstat.tcw_fstat_map_funcs
    maps.init_transient_fstat_map_features("lal")
    window = lp.transientWindowRange_t()
    window.type, window.t0, window.tau = lp.TRANSIENT_RECTANGULAR, int(atoms[0].t[5]), 20 * 1800
    window.dt0 = window.dtau = 1800
    tools = {
        "from_lal": lambda: from_lal(multi),
        "one cell, skysieve": lambda: maps.fstatmap_versions["skysieve"](multi, window, False),
        "one cell, LALPulsar": lambda: maps.fstatmap_versions["lal"](multi, window, False),
    }
    for name, seconds in interleaved(tools, 20 if report.quick else 200, pause=0).items():
        report.row("interop", tool=name, seconds=statistics.median(seconds), best=min(seconds))


def noise(template: Any, count: int, size: int, seed: int = 0) -> Any:
    """Yield batches of noise at the template's point of the sky."""
    rng = np.random.default_rng(seed)
    a = np.sqrt(template.a2)
    b = np.sqrt(template.b2) * np.where(template.ab < 0, -1, 1).astype(np.float32)
    for start in range(0, count, size):
        shape = (min(size, count - start), len(template), 2)
        z = rng.standard_normal(shape, np.float32).view(np.complex64)[..., 0] * np.float32(np.sqrt(0.5))
        yield AtomsBatch(template.t, template.a2, template.b2, template.ab, a * z, b * z)


def bench_throughput(report: Report) -> None:
    """Templates a second of a search, on one core and on two."""
    report.title("search: full grid, 30 d, templates made beforehand; maximum and ln B, float32")
    one = synth_atoms(span=30 * 86400, detectors=["H1"])[0]
    batches, grid = list(noise(one, 64 if report.quick else 512, 64)), Grid.full(one)
    count = sum(map(len, batches))
    for window in ("rect", "exp"):
        seconds: dict[int, list[float]] = {1: [], 2: []}
        search(batches[:1], grid, windows=window, device="cpu", threads=1)
        for _ in range(1 if report.quick else 5):
            for threads, times in seconds.items():
                start = time.perf_counter()
                search(batches, grid, windows=window, device="cpu", threads=threads)
                times.append(time.perf_counter() - start)
        for threads, times in seconds.items():
            report.row(
                f"search {window} 30 d", tool=f"skysieve, {threads} threads", seconds_per_template=min(times) / count,
                cells_per_second=grid.cells * count / min(times), ratio_to_one=min(seconds[1]) / min(times),
            )  # fmt: skip


def bench_search(report: Report) -> None:
    """Many templates on a coarse grid of a year, in constant memory."""
    total = 2_000 if report.quick else 100_000
    year = synth_atoms(span=365 * 86400, detectors=["H1"], seed=3)[0]
    t0 = int(year.t[0])
    coarse = Grid(t0=t0, t0_band=363 * 86400, dt0=86400, tau=2 * 86400, tau_band=360 * 86400, dtau=8 * 86400)
    report.title(f"search: {total:,} templates over a year, {coarse.shape[0]} x {coarse.shape[1]} cells, rect and exp")
    peaks: list[int] = []

    def watch(done: int, whole: int) -> None:
        if done >= whole // 10 * (len(peaks) + 1):
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

    start = time.perf_counter()
    result = search(noise(year, total, 32), coarse, device="cpu", total=total, progress=watch)
    seconds_all = time.perf_counter() - start
    report.row(
        "search 365 d", templates=result.n_templates, seconds=seconds_all, ms_per_template=1e3 * seconds_all / total,
        peak_MiB_at_tenths=[p // 1024 for p in peaks], loudest=repr(result), wanted="constant memory",
        reached=bool(peaks[-1] < 1.05 * peaks[0]),
    )  # fmt: skip


def main() -> int:
    import tempfile
    from pathlib import Path

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    parser.add_argument("--lal", help="a Python that has lalsuite")
    parser.add_argument("--only", choices=["search"], help="the long search alone")
    options = parser.parse_args()
    report = Report("fstat", PACKAGES, options.quick)
    if options.only == "search":
        bench_search(report)
        report.write("-search")
        return int(report.failed)
    with tempfile.TemporaryDirectory() as folder:
        lal = Lal(options.lal, Path(folder)) if options.lal else None
        bench_peer(report, lal)
        if lal:
            lal.close()
    bench_interop(report)
    bench_throughput(report)
    bench_accuracy(report)
    if not options.quick:
        bench_year(report)
    report.write()
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
