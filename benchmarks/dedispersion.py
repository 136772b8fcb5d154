"""De-dispersion on a CPU: exact sums at four set-ups beside a plain C loop, on one core and two.

``python -m benchmarks.dedispersion [--quick]``.  Rates are channels x DMs x samples a second (Gadd/s), input
in memory, output written as 32-bit sums.  The C loop is compiled with ``cc -O3 -march=native`` where there is one.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.harness import Report, interleaved

from skysieve.dedispersion import Filterbank
from skysieve.dedispersion.api import make_engine
from skysieve.dedispersion.tables import make_table

PACKAGES = ("skysieve", "numpy", "numba")
SETUPS = {
    "P_RT": (2048, 500, 630.0, 20.0, 102.4e-6, 60.0, 25.0),
    "P_SUB": (1024, 2048, 308.0, 16.0, 165e-6, 61.44, 50.0),
    "P_BENCH": (1024, 1024, 1581.0, 400.0, 64e-6, 204.8, 25.0),
    "P_BIG": (4096, 4096, 1712.0, 856.0, 64e-6, 2000.0, 25.0),
}
"""Channels, DMs, top and width of the band (MHz), sampling time (s), highest DM, Gadd/s asked of one core."""

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
    """The yardstick, or None without a compiler."""
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


def bench_setups(report: Report) -> None:
    """Exact sums, one thread and two, and the C loop on a few of the DMs."""
    loop = c_loop()
    rng = np.random.default_rng(0)
    for name, (C, M, top, width, tsamp, dm_max, wanted) in SETUPS.items():
        n = 16_384 if name == "P_BIG" or report.quick else 65_536
        report.title(f"{name}: {C} channels x {M} DMs x {n} samples, 8 bit")
        freqs = top - width / C * np.arange(C)
        dms = np.arange(M) * (dm_max / M)
        table = make_table(Filterbank.from_array(
            np.zeros((C, 1), np.uint8), freqs=freqs, tsamp=tsamp).observation, dms).table  # fmt: skip
        x = rng.integers(0, 256, (C, n + table.maxshift), dtype=np.uint8)
        fb = Filterbank.from_array(x, freqs=freqs, tsamp=tsamp)
        out = np.empty((M, n), np.uint32)
        tools = {}
        engines = []
        for threads in (1, 2):
            engine = make_engine(
                _Source(fb), [table], method="exact-subband", device="cpu", capacity=fb.nsamp, threads=threads
            )
            engine.load(0, fb.nsamp)
            engines.append(engine)
            tools[f"skysieve, {threads} thread{'s' if threads > 1 else ''}"] = partial(engine.sums, 0, 0, n, out)
        some = np.linspace(0, M - 1, 4).astype(int)
        if loop is not None:
            few = np.ascontiguousarray(table.delays[some])
            theirs = np.empty((len(some), n), np.uint32)
            size = ctypes.c_ssize_t
            tools["plain C loop"] = partial(
                loop, pointer(x), size(x.shape[1]), pointer(few), size(C), size(len(some)), size(n), pointer(theirs)
            )
        seconds = interleaved(tools, 2 if report.quick else 5)
        if loop is not None and not np.array_equal(out[some], theirs):
            raise AssertionError("the sums differ from the C loop's")
        facts = engines[0].describe()
        rates = {}
        for tool, values in seconds.items():
            adds = C * n * (len(some) if "C loop" in tool else M)
            rates[tool] = adds / np.median(values) / 1e9
            bound = {"wanted": wanted, "reached": bool(rates[tool] >= wanted)} if tool == "skysieve, 1 thread" else {}
            report.row(name, tool=tool, gadds=float(rates[tool]), best=adds / min(values) / 1e9, **bound)
        both = rates["skysieve, 2 threads"] / rates["skysieve, 1 thread"]
        report.row(name, tool="two threads over one", ratio=both, gain=facts["gain"], tiles=facts["tiles"])
        for engine in engines:
            engine.close()


class _Source:
    """A filterbank without masks."""

    def __init__(self, fb: Filterbank) -> None:
        self.fb, self.dtype, self.maximum, self.nsamp, self.nchan = fb, fb.dtype, fb.maximum, fb.nsamp, fb.nchan

    def raw(self, start: int, count: int) -> Any:
        return self.fb.raw(start, count)

    def fills(self, start: int, count: int) -> Any:
        return iter(())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    options = parser.parse_args()
    report = Report("dedispersion", PACKAGES, options.quick)
    bench_setups(report)
    report.write()
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
