"""Lomb-Scargle beside nifty-ls, astropy and scipy: time, first result, memory, choice of method, error.

``python benchmarks/periodogram.py [--quick] [--only NAME ...] [--data DIR]``; writes ``results/periodogram*.json``.
What each case is and how the peers are run: ``README.md`` beside this file.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from harness import Report, interleaved
from tests.periodogram.batch import benchmark_batch
from tests.truth import periodogram as reference

import skysieve

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Curve = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]

HERE = Path(__file__).parent
PACKAGES = ("skysieve", "numpy", "numba", "finufft", "nifty-ls", "astropy", "scipy")
BATCH = {"fmin": 0.16, "fmax": 24.0, "nf": 28_608}
DECADE = {"fmin": 0.16, "fmax": 24.0, "nf": 870_640}
SINGLE = {"fmin": 0.5, "fmax": 24.0}


class Batch:
    """The 1,000 simulated asteroids, as flat arrays (for us) and one by one (for the peers)."""

    def __init__(self, data: Path, span: float, n_objects: int) -> None:
        made = benchmark_batch(data, int(span))
        offsets = made.offsets[: n_objects + 1]
        rows = slice(0, int(offsets[-1]))
        self.t, self.y, self.dy = made.t[rows], made.y[rows], made.dy[rows]
        self.offsets = offsets
        self.curves: list[Curve] = [
            (self.t[a:b].copy(), self.y[a:b].copy(), self.dy[a:b].copy()) for a, b in pairwise(offsets)
        ]

    def ours(self, grid: dict[str, Any], threads: int, **options: Any) -> Any:
        return skysieve.lombscargle(
            self.t, self.y, self.dy, offsets=self.offsets, **grid, threads=threads, device="cpu", **options
        )


def step_times_span(grid: dict[str, Any], span: float) -> float:
    """Return ``df * T``, which says how finely a peak is sampled."""
    return (grid["fmax"] - grid["fmin"]) / (grid["nf"] - 1) * span


def nifty(curve: Curve, grid: dict[str, Any], threads: int = 1) -> NDArray[np.float64]:
    """Call nifty-ls with its finufft backend at its default precision."""
    import nifty_ls

    t, y, dy = curve
    return nifty_ls.lombscargle(
        t, y, dy, fmin=grid["fmin"], fmax=grid["fmax"], Nf=grid["nf"], backend="finufft", nthreads=threads
    ).power


def nifty_batch(
    curves: list[Curve], grid: dict[str, Any], threads: int, python_threads: int
) -> list[NDArray[np.float64]]:
    """Call nifty-ls for each object, with ``threads`` in each call or Python threads over objects; keep all powers."""
    if python_threads == 1:
        return [nifty(curve, grid, threads) for curve in curves]
    with ThreadPoolExecutor(python_threads) as pool:
        return list(pool.map(lambda curve: nifty(curve, grid), curves))


def astropy_power(curve: Curve, grid: dict[str, Any], method: str = "fast") -> NDArray[np.float64]:
    """Call astropy's LombScargle on the same regular grid."""
    from astropy.timeseries import LombScargle

    frequency = np.linspace(grid["fmin"], grid["fmax"], grid["nf"])
    extra = {"assume_regular_frequency": True} if method == "fast" else {}
    return LombScargle(*curve).power(frequency, method=method, **extra)


def scipy_power(curve: Curve, grid: dict[str, Any]) -> NDArray[np.float64]:
    """Call scipy's generalised Lomb-Scargle (weights and floating mean)."""
    from scipy.signal import lombscargle

    t, y, dy = curve
    omega = 2 * np.pi * np.linspace(grid["fmin"], grid["fmax"], grid["nf"])
    centred = y - np.average(y, weights=dy**-2)
    return lombscargle(t, centred, omega, weights=dy**-2, floating_mean=True, normalize=True)


def bench_batch(report: Report, data: Path) -> None:
    """1,000 ragged objects over 120 days."""
    n = 50 if report.quick else 1_000
    batch = Batch(data, 120.0, n)
    _batch_rows(report, "batch", batch, BATCH, 120.0, repetitions=3 if report.quick else 5, wanted=(5.0, 4.0))
    subset = batch.curves[:: max(1, n // (4 if report.quick else 40))]
    ours = next(r["seconds"] for r in report.rows if r["case"] == "batch" and r["tool"] == "skysieve, 1 thread")
    slow: dict[str, tuple[list[Curve], Callable[[Curve], object]]] = {
        "astropy fast": (subset, lambda c: astropy_power(c, BATCH)),
        "astropy cython": (subset[:2], lambda c: astropy_power(c, BATCH, "cython")),
        "scipy": (subset[:2], lambda c: scipy_power(c, BATCH)),
    }
    for tool, (curves, call) in slow.items():
        start = time.perf_counter()
        for curve in curves:
            call(curve)
        per_object = (time.perf_counter() - start) / len(curves)
        scaled, ratio = per_object * n, per_object * n / ours
        bound = {"wanted": 50.0, "reached": ratio >= 50} if tool == "astropy fast" and not report.quick else {}
        mean = sum(curve[0].size for curve in curves) / len(curves)
        facts = {"tool": tool, "threads": 1, "df_T": step_times_span(BATCH, 120.0)}
        facts["scaled"] = f"per object, from {len(curves)} of mean N_t {mean:.0f}"
        report.row("batch", **facts, seconds=scaled, ratio=ratio, **bound)


def bench_decade(report: Report, data: Path) -> None:
    """100 of the same objects spread over ten years."""
    batch = Batch(data, 3652.0, 4 if report.quick else 100)
    _batch_rows(report, "decade", batch, DECADE, 3652.0, repetitions=3, wanted=(2.0, 2.0))


def _batch_rows(
    report: Report, case: str, batch: Batch, grid: dict[str, Any], span: float, repetitions: int, wanted: Any
) -> None:
    df_t = step_times_span(grid, span)
    n, mean = len(batch.curves), batch.t.size / len(batch.curves)
    report.title(f"{case}: {n} objects, mean N_t {mean:.0f}, N_f {grid['nf']}, T {span} d, df*T {df_t:.4g}, GLS + dy")
    curves, kept = batch.curves, np.zeros((n, grid["nf"]))
    for threads in (1, 2):
        ours = f"skysieve, {threads} thread" + "s" * (threads > 1)
        tools: dict[str, Callable[[], object]] = {
            ours: partial(batch.ours, grid, threads),
            f"{ours}, power into out=": partial(batch.ours, grid, threads, out=kept),
            f"{ours}, peaks only": partial(batch.ours, grid, threads, return_power=False, n_peaks=5),
            f"nifty-ls nthreads={threads}": partial(nifty_batch, curves, grid, threads, 1),
        }
        if threads > 1:
            tools[f"nifty-ls, {threads} Python threads"] = partial(nifty_batch, curves, grid, 1, threads)
        seconds = interleaved(tools, repetitions)
        medians = report.timings(case, seconds, ours=ours, threads=threads, df_T=df_t, n_f=grid["nf"])
        peer = min(s for name, s in medians.items() if name.startswith("nifty"))
        ratio = peer / medians[ours]
        bound = {} if report.quick else {"wanted": wanted[0], "accepted": wanted[1], "reached": ratio >= wanted[1]}
        report.row(f"{case} ratio", tool=f"{ours} / best nifty-ls", threads=threads, ratio=ratio, df_T=df_t, **bound)


def bench_single(report: Report, data: Path) -> None:
    """One series of 3,555 points."""
    _, t, y, dy = np.loadtxt(data / "8205_normalized_with_error.txt", delimiter=",", unpack=True)
    curve = (np.ascontiguousarray(t), np.ascontiguousarray(y), np.ascontiguousarray(dy))
    for nf in (100_000, 1_000_000):
        grid = {**SINGLE, "nf": nf}
        df_t = step_times_span(grid, float(np.ptp(t)))
        report.title(f"single: N_t {t.size}, N_f {nf}, df*T {df_t:.4g}, GLS + dy")
        for threads in (1, 2):
            ours = f"skysieve, {threads} thread" + "s" * (threads > 1)
            tools: dict[str, Callable[[], object]] = {
                ours: partial(skysieve.lombscargle, *curve, **grid, threads=threads, device="cpu"),
                f"nifty-ls nthreads={threads}": partial(nifty, curve, grid, threads),
            }
            if threads == 2:
                tools["nifty-ls nthreads=1"] = partial(nifty, curve, grid)
            if threads == 1 and nf == 100_000:
                tools["astropy fast"] = partial(astropy_power, curve, grid)
            seconds = interleaved(tools, 3 if report.quick else 9)
            medians = report.timings(f"single {nf}", seconds, ours=ours, threads=threads, df_T=df_t, n_f=nf)
            ratio = min(s for name, s in medians.items() if name.startswith("nifty")) / medians[ours]
            bound = {} if report.quick else {"wanted": 2.0, "reached": ratio >= 2}
            tool = f"{ours} / best nifty-ls"
            report.row(f"single {nf} ratio", tool=tool, threads=threads, ratio=ratio, df_T=df_t, **bound)


def bench_series(report: Report, data: Path) -> None:
    """Time several terms on one thread beside nifty-ls's finufft_chi2, and measure the error against the exact fit."""
    import nifty_ls

    n = 3 if report.quick else 20
    batch = Batch(data, 120.0, 1_000)
    chosen = [c for c in batch.curves if 100 <= c[0].size <= 300][:n]
    df_t = step_times_span(BATCH, 120.0)
    mean = sum(c[0].size for c in chosen) / len(chosen)
    report.title(f"series: {len(chosen)} objects, mean N_t {mean:.0f}, N_f {BATCH['nf']}, df*T {df_t:.4g}, 1 thread")
    t, y, dy = ([c[i] for c in chosen] for i in range(3))
    for nterms in (2, 4):

        def theirs(nterms: int = nterms) -> None:
            for c in chosen:
                nifty_ls.lombscargle(*c, fmin=BATCH["fmin"], fmax=BATCH["fmax"], Nf=BATCH["nf"], nterms=nterms,
                                     backend="finufft_chi2", nthreads=1)  # fmt: skip

        ours = "skysieve, 1 thread"
        tools: dict[str, Callable[[], object]] = {
            ours: partial(skysieve.lombscargle, t, y, dy, **BATCH, nterms=nterms, threads=1, device="cpu"),
            "nifty-ls finufft_chi2": theirs,
            "skysieve, one term": partial(skysieve.lombscargle, t, y, dy, **BATCH, threads=1, device="cpu"),
        }
        medians = report.timings(f"series {nterms}", interleaved(tools, 5), ours=ours, nterms=nterms, df_T=df_t)
        ratio = medians["nifty-ls finufft_chi2"] / medians[ours]
        bound = {"wanted": 3.0, "reached": ratio >= 3} if nterms == 4 and not report.quick else {}
        report.row(f"series {nterms} ratio", tool=f"{ours} / nifty-ls", ratio=ratio, **bound)
    some = BATCH | {"nf": 3000, "fmax": BATCH["fmin"] + 2999 * (BATCH["fmax"] - BATCH["fmin"]) / (BATCH["nf"] - 1)}
    powers = [
        skysieve.lombscargle(t, y, dy, **some, nterms=4, method=m, device="cpu").power for m in ("nufft", "direct")
    ]
    error = float(np.nanmax(np.abs(powers[0] - powers[1])))
    report.row("series, error", nterms=4, error=error, wanted=1e-8, reached=error <= 1e-8)


def bench_bands(report: Report, data: Path) -> None:
    """Time the single-band batch beside the same rows divided among five bands."""
    n = 20 if report.quick else 1_000
    batch = Batch(data, 120.0, n)
    bands = np.random.default_rng(1).integers(0, 5, batch.t.size)
    df_t = step_times_span(BATCH, 120.0)
    report.title(f"bands: {n} objects, rows dealt to 5 bands, N_f {BATCH['nf']}, df*T {df_t:.4g}, peaks only")
    options = {**BATCH, "offsets": batch.offsets, "return_power": False, "device": "cpu"}
    several = partial(skysieve.lombscargle_multiband, batch.t, batch.y, bands, batch.dy, **options)
    for threads in (1, 2):
        tools: dict[str, Callable[[], object]] = {
            "one band": partial(skysieve.lombscargle, batch.t, batch.y, batch.dy, **options, threads=threads),
            "5 bands, offsets": partial(several, threads=threads),
        }
        medians = report.timings("bands", interleaved(tools, 5), ours="one band", threads=threads, df_T=df_t)
        ratio = medians["5 bands, offsets"] / medians["one band"]
        bound = {} if report.quick else {"wanted": 3.0, "reached": ratio <= 3}
        report.row("bands ratio", tool="5 bands, offsets / one band", threads=threads, ratio=ratio, **bound)


FIRST = """
import time; start = time.perf_counter()
import numpy as np, skysieve
loaded = time.perf_counter()
t = np.sort(np.random.default_rng(1).uniform(0, 100, 200)); y = np.sin(t)
skysieve.lombscargle(t, y, 0.1 + 0 * t, fmin=0.01, fmax=5, nf=5000, device="cpu").period
print(loaded - start, time.perf_counter() - start)
"""


def bench_first(report: Report, data: Path) -> None:
    """Time the first result of a new process whose compiled code is cached."""
    report.title("first: a fresh process, N_t 200, N_f 5000, from the start of the interpreter to the period")
    walls, inside = [], []
    for turn in range(3 if report.quick else 7):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", FIRST], check=True, capture_output=True, text=True)
        if turn:  # the first fills the caches
            walls.append(time.perf_counter() - start)
            inside.append([float(x) for x in done.stdout.split()])
    wall, (loaded, result) = statistics.median(walls), np.median(inside, axis=0)
    report.row("first", tool="skysieve", seconds=wall, import_s=float(loaded), result_s=float(result),
               df_T=4.99 / 4999 * 100, n=len(walls), wanted=2.0, reached=wall < 2)  # fmt: skip


PEAKS = """
import sys, time
from pathlib import Path
import numpy as np
n, n_t, threads = (int(x) for x in sys.argv[1:4])
rng = np.random.default_rng(7)
t, y, dy = (np.empty(n * n_t) for _ in range(3))
for i in range(n):
    rows = slice(i * n_t, (i + 1) * n_t)
    t[rows] = np.sort(rng.uniform(0, 120, n_t))
    y[rows] = np.sin(2 * np.pi * rng.uniform(0.2, 20) * t[rows]) + 0.3 * rng.standard_normal(n_t)
    dy[rows] = rng.uniform(0.2, 0.4, n_t)
offsets = np.arange(n + 1) * n_t

def memory(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024

import skysieve
Path("/proc/self/clear_refs").write_text("5")
before = memory("VmRSS")
start = time.perf_counter()
r = skysieve.lombscargle(t, y, dy, offsets=offsets, fmin=0.16, fmax=24.0, nf=28608, n_peaks=5, return_power=False,
                         threads=threads, device="cpu")
seconds = time.perf_counter() - start
assert np.isfinite(r.period).all()
print(before, memory("VmHWM"), seconds, t.nbytes * 3)
"""


def bench_peaks(report: Report, data: Path) -> None:
    """Search the peaks of a batch whose powers would not fit in memory."""
    n = 2_000 if report.quick else 100_000
    df_t = step_times_span(BATCH, 120.0)
    report.title(f"peaks: {n} objects of 200 points, N_f {BATCH['nf']}, 5 peaks each, no power kept, df*T {df_t:.4g}")
    done = subprocess.run([sys.executable, "-c", PEAKS, str(n), "200", "2"], check=True, capture_output=True, text=True)
    before, peak, seconds, data_bytes = (float(x) for x in done.stdout.split())
    above = (peak - before) / 2**20
    report.row("peaks", tool="skysieve", threads=2, seconds=seconds, objects_per_s=n / seconds, df_T=df_t,
               input_MiB=data_bytes / 2**20, above_input_MiB=above, wanted=256.0, reached=above <= 256)  # fmt: skip


def bench_selection(report: Report, data: Path) -> None:
    """Compare ``method="auto"`` with each method, for sizes that were not used in tuning."""
    warnings.filterwarnings("ignore", message="the grid is too coarse", category=UserWarning)  # df*T 1.1
    report.title("selection: one thread, peaks and power, GLS + dy; seconds a call; ratio of auto to the best method")
    sizes = (6, 120) if report.quick else (6, 13, 30, 60, 120, 260, 750, 2_000, 6_500)
    counts, steps = ((3_700,), (0.12,)) if report.quick else ((500, 3_700, 45_000, 230_000), (0.008, 0.12, 0.33, 1.1))
    rng = np.random.default_rng(99)
    worst, over = 1.0, 0
    for n_t in sizes:
        t = np.sort(rng.uniform(0, 100, n_t))
        y, dy = rng.standard_normal(n_t), rng.uniform(0.5, 2, n_t)
        for nf, df_t in product(counts, steps):
            f0, df = 0.2, df_t / float(np.ptp(t))
            grid = {"fmin": f0, "fmax": f0 + df * (nf - 1), "nf": nf}
            copies = int(np.clip(2_000_000 / (n_t * 100 + nf * 30), 1, 40))
            offsets = np.arange(copies + 1) * n_t
            ts, ys, dys = (np.tile(a, copies) for a in (t, y, dy))
            names = ["auto", "nufft", "finufft"] + ["direct"] * (n_t * nf * copies <= 1e9)
            tools: dict[str, Callable[[], object]] = {
                name: partial(
                    skysieve.lombscargle, ts, ys, dys, offsets=offsets, **grid, method=name, threads=1, device="cpu"
                )
                for name in names
            }
            chosen = str(np.atleast_1d(tools["auto"]().method)[0])
            once = min(
                interleaved({"auto": tools["auto"]}, 2, pause=0)["auto"]
            )  # short calls are repeated for some 0.2 s
            turns = 3 if report.quick else int(np.clip(0.2 / once, 5, 40))
            seconds = {name: min(s) for name, s in interleaved(tools, turns, pause=0).items()}
            ratio = seconds["auto"] / min(s for name, s in seconds.items() if name != "auto")
            worst, over = max(worst, ratio), over + (ratio > 1.25)
            flag = {"flag": "OVER 1.25"} if ratio > 1.25 else {}
            facts = {"n_t": n_t, "n_f": nf, "df_T": df_t, "objects": copies, "chosen": chosen}
            report.row("selection", **facts, **seconds, ratio=ratio, **flag)
    bound = {} if report.quick else {"wanted": 1.25, "reached": over == 0}
    report.row("selection worst", ratio=worst, over=over, **bound)


def bench_accuracy(report: Report, data: Path) -> None:
    """Report the largest difference of standard powers from sums in long double."""
    n = 100 if report.quick else 1_000
    report.title(
        "accuracy: max |power - long double|, GLS + dy, every 4th object, 200 random frequencies (N_t <= 30: all)"
    )
    batch = Batch(data, 120.0, n)
    shifted = Batch(data, 120.0, n)
    shifted.t = shifted.t + 2_460_000.5
    rng = np.random.default_rng(5)
    chosen = range(0, n, 4)
    df = (BATCH["fmax"] - BATCH["fmin"]) / (BATCH["nf"] - 1)
    size = np.diff(batch.offsets)
    every = np.arange(BATCH["nf"])  # few points, few phases: the worst frequencies are rare
    index = [every if size[i] <= 30 else np.sort(rng.integers(0, BATCH["nf"], 200)) for i in chosen]
    runs = [("float64", m, 10) for m in ("auto", "nufft", "finufft")] + [("float64", "direct", 10)]
    runs += [("float32", m, 30) for m in ("auto", "nufft", "finufft", "direct")]
    for name, case in (("120 d", batch), ("raw JD 2.46e6", shifted)):
        truth: dict[int, NDArray[Any]] = {}
        for dtype, method, least in runs:
            found = case.ours(BATCH, 2, method=method, dtype=dtype).power
            error = 0.0
            for i, rows in zip(chosen, index, strict=True):
                if size[i] < least:
                    continue
                if i not in truth:
                    part = slice(int(batch.offsets[i]), int(batch.offsets[i + 1]))
                    freq = reference.regular(BATCH["fmin"], df, rows)
                    truth[i] = reference.power(case.t[part], case.y[part], case.dy[part], frequency=freq).power
                error = max(error, float(np.max(np.abs(found[i][rows] - truth[i]))))
            bound = 2e-6 if dtype == "float32" else 1e-12 if method == "direct" else 1e-9
            facts = {"dtype": dtype, "method": method, "n_t_from": least, "df_T": step_times_span(BATCH, 120.0)}
            report.row(f"accuracy, {name}", **facts, error=error, wanted=bound, reached=error <= bound)
    for tool, call in (("nifty-ls", nifty), ("astropy fast", astropy_power)):
        error = 0.0
        for i, rows in list(zip(chosen, index, strict=True))[::5]:
            if size[i] >= 10:
                freq = reference.regular(BATCH["fmin"], df, rows)
                exact = reference.power(*batch.curves[i], frequency=freq).power
                error = max(error, float(np.max(np.abs(call(batch.curves[i], BATCH)[rows] - exact))))
        report.row("accuracy, 120 d", tool=tool, n_t_from=10, df_T=step_times_span(BATCH, 120.0), error=error)


def bench_bootstrap(report: Report, data: Path) -> None:
    """Time the bootstrap false-alarm probability of one light curve beside astropy's, on one thread."""
    from astropy.timeseries import LombScargle

    points, n, peers = 500, 50 if report.quick else 1_000, 2 if report.quick else 10
    rng = np.random.default_rng(3)
    t = np.sort(rng.uniform(0, 100, points))
    y, dy = rng.standard_normal(points), rng.uniform(0.5, 1.5, points)
    ours, theirs = skysieve.LombScargle(t, y, dy, device="cpu", threads=1), LombScargle(t, y, dy)
    last = 1e5 / (5 * float(np.ptp(t)))
    nf = len(theirs.autofrequency(maximum_frequency=last))
    report.title(f"bootstrap: {n} resamples of {points} points, N_f {nf}, df*T 0.2, one thread")

    def call(curve: Any, resamples: int) -> Any:
        keywords = {"n_bootstraps": resamples, "random_seed": 1}
        return curve.false_alarm_level(0.5, method="bootstrap", maximum_frequency=last, method_kwds=keywords)

    error = abs(float(call(ours, peers)) / float(call(theirs, peers)) - 1)
    tools = {"skysieve, 1 thread": partial(call, ours, n), "astropy": partial(call, theirs, peers)}
    seconds = interleaved(tools, 1 if report.quick else 3, warm=False)
    seconds["astropy"] = [s * n / peers for s in seconds["astropy"]]
    facts = {"resamples": n, "points": points, "n_f": nf, "df_T": 0.2}
    medians = report.timings("bootstrap", seconds, ours="skysieve, 1 thread", **facts)
    ratio = medians["astropy"] / medians["skysieve, 1 thread"]
    bound = {} if report.quick else {"wanted": 20.0, "reached": ratio >= 20}
    report.row("bootstrap ratio", tool=f"skysieve / astropy (scaled from {peers})", ratio=ratio, **bound)
    report.row(
        "bootstrap error", tool="level, relative to astropy's", error=error, wanted=1e-10, reached=error <= 1e-10
    )


CASES: dict[str, Callable[[Report, Path], None]] = {
    "batch": bench_batch,
    "decade": bench_decade,
    "single": bench_single,
    "series": bench_series,
    "bands": bench_bands,
    "first": bench_first,
    "peaks": bench_peaks,
    "selection": bench_selection,
    "accuracy": bench_accuracy,
    "bootstrap": bench_bootstrap,
}


def main() -> int:
    """Run the cases asked for; 1 when a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: small sizes, no bounds on ratios")
    names = list(CASES)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    default = os.environ.get("SKYSIEVE_TEST_DATA", str(HERE.parent.parent / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default), help="folder that holds lomb_scargle/")
    arguments = parser.parse_args()
    report = Report("periodogram", PACKAGES, arguments.quick)
    for name in arguments.only:
        CASES[name](report, arguments.data / "lomb_scargle")
    report.write("" if len(arguments.only) == len(CASES) else "-" + "-".join(arguments.only))
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
