"""De-dispersion on a CPU: exact sums at four set-ups beside a plain C loop, on one core and two.

``python -m benchmarks.dedispersion [--quick]``.  Rates are channels x DMs x samples a second (Gadd/s), input
in memory, output written as 32-bit sums.  The C loop is compiled with ``cc -O3 -march=native`` where there is one.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.harness import Report, interleaved

from skysieve.dedispersion import Filterbank, fake, plan, search, write_fil
from skysieve.dedispersion.dispatch import make_engine
from skysieve.dedispersion.dm_plan.delay_tables import make_table

PACKAGES = ("skysieve", "numpy", "numba")
SETUPS = {
    "P_RT": (2048, 500, 630.0, 20.0, 102.4e-6, 60.0, 25.0),
    "P_SUB": (1024, 2048, 308.0, 16.0, 165e-6, 61.44, 50.0),
    "P_BENCH": (1024, 1024, 1581.0, 400.0, 64e-6, 204.8, 25.0),
    "P_BIG": (4096, 4096, 1712.0, 856.0, 64e-6, 2000.0, 25.0),
}
"""Channels, DMs, top and width of the band (MHz), sampling time (s), highest DM, Gadd/s required of one core."""

C_LOOP = r"""
#include <stdint.h>
#include <stddef.h>
void dedisperse(const uint8_t *restrict x, ptrdiff_t stride, const int32_t *restrict n, ptrdiff_t C, ptrdiff_t M,
                ptrdiff_t N, uint32_t *restrict out) {
  for (ptrdiff_t m = 0; m < M; m++)
    for (ptrdiff_t t0 = 0; t0 < N; t0 += 4096) {
      ptrdiff_t t1 = t0 + 4096 < N ? t0 + 4096 : N;
      uint32_t *restrict y = out + m * N;
      for (ptrdiff_t t = t0; t < t1; t++) y[t] = 0;
      for (ptrdiff_t c = 0; c < C; c++) {
        const uint8_t *restrict r = x + c * stride + n[m * C + c];
        for (ptrdiff_t t = t0; t < t1; t++) y[t] += r[t];
      }
    }
}
"""


def c_loop() -> Any:
    """Return the plain C loop for comparison, or None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    folder = Path(tempfile.mkdtemp())
    (folder / "loop.c").write_text(C_LOOP)
    library = folder / "loop.so"
    flags = ["-O3", "-march=native", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(folder / "loop.c"), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library)).dedisperse


def pointer(a: np.ndarray[Any, Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(a.ctypes.data)


def cpu_rate(call: Callable[[], object], adds: float, repetitions: int) -> float:
    """Return Gadd/s of processor time, which other work on the machine affects less than the elapsed time."""
    seconds = []
    for _ in range(repetitions):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return adds / statistics.median(seconds) / 1e9


def bench_setups(report: Report) -> None:
    """Time exact sums with one thread and two, the tree, and the C loop for a few of the DMs."""
    loop = c_loop()
    rng = np.random.default_rng(0)
    for name, (C, M, top, width, tsamp, dm_max, wanted) in SETUPS.items():
        n = 16_384 if name == "P_BIG" or report.quick else 65_536
        report.title(f"{name}: {C} channels x {M} DMs x {n} samples, 8 bit")
        freqs = top - width / C * np.arange(C)
        dms = np.arange(M) * (dm_max / M)
        empty = Filterbank.from_array(np.zeros((C, 1), np.uint8), freqs=freqs, tsamp=tsamp)
        exact, tree = (make_table(empty.observation, dms, tree=t) for t in (False, True))
        spare = max(exact.table.maxshift, tree.table.maxshift)
        x = rng.integers(0, 256, (C, n + spare), dtype=np.uint8)
        fb = Filterbank.from_array(x, freqs=freqs, tsamp=tsamp)
        out = np.empty((M, n), np.uint32)
        tools: dict[str, Callable[[], object]] = {}
        engines = {}
        for tool, made, threads in (
            ("tree, 1 thread", tree, 1), ("exact, 1 thread", exact, 1), ("exact, 2 threads", exact, 2),
        ):  # fmt: skip
            engine = make_engine(
                _Source(fb), [made.table], method="tree" if made is tree else "exact-subband", device="cpu",
                capacity=fb.nsamp, threads=threads,
            )  # fmt: skip
            engine.load(0, fb.nsamp)
            engines[tool] = engine
            tools[tool] = partial(engine.sums, 0, 0, n, out)
        some = np.linspace(0, M - 1, 4).astype(int)
        theirs = np.empty((len(some), n), np.uint32)
        if loop is not None:
            few = np.ascontiguousarray(exact.table.delays[some])
            size = ctypes.c_ssize_t
            tools["plain C loop"] = partial(
                loop, pointer(x), size(x.shape[1]), pointer(few), size(C), size(len(some)), size(n), pointer(theirs)
            )
        repetitions = 2 if report.quick else 5
        seconds = interleaved(tools, repetitions)
        tools["exact, 1 thread"]()
        if loop is not None and not np.array_equal(out[some], theirs):
            raise AssertionError("the sums differ from the C loop's")
        rates, cpu_rates = {}, {}
        for tool, values in seconds.items():
            adds = C * n * (len(some) if "C loop" in tool else M)
            rates[tool] = adds / statistics.median(values) / 1e9
            facts: dict[str, Any] = {"gadds": rates[tool], "best": adds / min(values) / 1e9}
            facts["gadds_of_cpu_time"] = cpu_rates[tool] = cpu_rate(tools[tool], adds, repetitions)
            if tool == "tree, 1 thread":
                facts |= {"delay_error": tree.delay_error, "loss_at_10_samples": tree.loss}
            if tool in engines:
                facts["tiles"] = engines[tool].describe()["tiles"]
            if tool == "exact, 1 thread":
                best = max(facts["best"], facts["gadds_of_cpu_time"])
                facts |= {"wanted": wanted, "reached": bool(best >= wanted)}
            report.row(name, tool=tool, **facts)
        ratio = rates["exact, 2 threads"] / rates["exact, 1 thread"]
        free = 2 * cpu_rates["exact, 2 threads"] / cpu_rates["exact, 1 thread"]
        report.row(name, tool="two threads over one", ratio=ratio, by_cpu_time=free)
        for engine in engines.values():
            engine.close()


def bench_survey(report: Report) -> None:
    """Time the search of the paper's Table 4 without cleaning: 60 s of 1024 channels, 3102 DMs in three passes."""
    seconds = 6 if report.quick else 60
    report.title(f"the paper's Table 4 plan, {seconds} s, file to candidates")
    with tempfile.TemporaryDirectory() as folder:
        fb = fake(
            duration=seconds, fch1=308, foff=-1 / 64, dm=60, times=[seconds / 3], width=5e-3, snr=15,
            path=Path(folder) / "survey.fil",
        )  # fmt: skip
        with fb:
            p = plan(fb, stages=[(0, 53.46, 0.03, 1, 0.66), (53.46, 88.26, 0.05, 2, 1.2), (88.26, 150.66, 0.1, 4, 2.4)],
                     nsub=64)  # fmt: skip
            for threads, method in ((1, "auto"), (2, "auto"), (2, "subband"), (2, "tree")):
                walls, cpus = [], []
                for _ in range(2 if threads == 2 and method == "auto" else 1):
                    start = time.process_time()
                    found = search(fb, p, threads=threads, method=method, clean=False, veto=False)
                    cpus.append(time.process_time() - start)
                    walls.append(found.seconds)
                bound = {"wanted": 30, "reached": min(walls) <= 30} if threads == 2 and method == "auto" else {}
                report.row(
                    "survey", method=found.method, threads=threads, seconds=min(walls), cpu_seconds=min(cpus),
                    snr=float(found.snr[0]), dm=float(found.dm[0]), **bound,
                )  # fmt: skip


def bench_widths(report: Report) -> None:
    """Time the reading of a file and exact sums for samples of each number of bits on P_SUB, in processor time."""
    C, M, top, width, tsamp, dm_max, _ = SETUPS["P_SUB"]
    n = 16_384 if report.quick else 65_536
    report.title(f"P_SUB by bits of a sample, and binned: {n} samples")
    freqs = top - width / C * np.arange(C)
    dms = np.arange(M) * (dm_max / M)
    rng = np.random.default_rng(0)
    repetitions = 2 if report.quick else 5
    for nbits, binning in ((1, 1), (2, 1), (4, 1), (8, 1), (16, 1), (32, 1), (8, 2), (8, 4), (16, 4)):
        empty = Filterbank.from_array(np.zeros((C, 1), np.uint8), freqs=freqs, tsamp=tsamp)
        table = make_table(empty.observation, dms, binning).table
        total = (n + table.maxshift) * binning
        if nbits == 32:
            x = rng.standard_normal((C, total), np.float32)
        else:
            kind = np.uint16 if nbits == 16 else np.uint8
            x = rng.integers(0, 2**nbits, (C, total), dtype=kind)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a.fil"
            some = None if nbits == 32 else nbits
            write_fil(path, Filterbank.from_array(x, freqs=freqs, tsamp=tsamp, nbits=some))
            del x
            with Filterbank.open(path) as fb:
                engine = make_engine(
                    _Source(fb), [table], method="exact-subband", device="cpu", capacity=total, threads=1
                )
                loads = []
                for _ in range(repetitions):
                    start = time.process_time()
                    engine.load(0, total)
                    loads.append(time.process_time() - start)
                    engine.load(total, total)
                engine.load(0, total)
                start = time.process_time()
                engine.planes(binning)
                binned = time.process_time() - start
                out = np.empty((M, n), np.float32 if nbits == 32 else np.uint32)
                engine.sums(0, 0, n, out)
                gadds = cpu_rate(partial(engine.sums, 0, 0, n, out), float(C) * M * n, repetitions)
                report.row(
                    "P_SUB widths", nbits=nbits, binning=binning, gadds_of_cpu_time=gadds,
                    load_gsamples=C * total / statistics.median(loads) / 1e9, bin_seconds=binned,
                    tiles=engine.describe()["tiles"],
                )  # fmt: skip
                engine.close()


class _Source:
    """A filterbank without masks."""

    def __init__(self, fb: Filterbank) -> None:
        self.fb, self.dtype, self.maximum, self.nsamp, self.nchan = fb, fb.dtype, fb.maximum, fb.nsamp, fb.nchan

    def raw(self, start: int, count: int, room: Any = None) -> Any:
        return self.fb.raw(start, count, room)

    def packed(self, start: int, count: int, room: Any = None) -> Any:
        return self.fb.packed(start, count, room)

    def fills(self, start: int, count: int) -> Any:
        return iter(())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    options = parser.parse_args()
    report = Report("dedispersion", PACKAGES, options.quick)
    bench_setups(report)
    bench_widths(report)
    bench_survey(report)
    report.write()
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
