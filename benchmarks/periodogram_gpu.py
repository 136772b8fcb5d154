"""Lomb-Scargle on the GPU: device time, end-to-end time and error, for the cases of the paper and beyond.

``python -m benchmarks.periodogram_gpu [--only NAME ...] [--data DIR] [--quick]``; writes
``results/periodogram_gpu.json``.  "device" is the time of everything that runs on the GPU for one `execute` with
inputs and outputs on the GPU: its launches are replayed as one graph, and the median of CUDA events is taken.  "end
to end" is the wall time of `Engine.execute` from pageable NumPy arrays with a plan made before.  All is the
generalised periodogram with dy and five peaks; every row gives df*T.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import Report
from benchmarks.periodogram_arithmetic import least_ms
from tests.gpu.batches import FlatSource, log_normal_lengths, shared_grid
from tests.gpu.batches import batch as made
from tests.periodogram.batch import benchmark_batch

from skysieve.core.device import resolve
from skysieve.core.gpu.runtime import CudaModule
from skysieve.periodogram.contract import Output, Spec
from skysieve.periodogram.cuda import engine as cuda
from skysieve.periodogram.cuda.chunks import Chunk, make_job

HERE = Path(__file__).parent
PACKAGES = ("numpy", "scipy", "cupy-cuda13x", "nifty-ls")
F64, F32 = np.dtype(np.float64), np.dtype(np.float32)
REFERENCE = r"""
extern "C" __global__ void reference(const double* t, const double* y, const double* dy, const long long* offs,
                                     double* out, double f0, double df, int nf, int first) {
  int o = blockIdx.y;
  long long k = blockIdx.x * (long long)blockDim.x + threadIdx.x, lo = offs[first + o], hi = offs[first + o + 1];
  if (k >= nf) return;
  double W = 0, Y = 0, C = 0, S = 0, CC = 0, SS = 0, CS = 0, YC = 0, YS = 0, YY = 0;
  double m = k * df, ml = fma((double)k, df, -m);
  for (long long i = lo; i < hi; i++) { double w = 1 / (dy[i] * dy[i]); W += w; Y += w * y[i]; }
  Y /= W;
  for (int pass = 0; pass < 2; pass++)
    for (long long i = lo; i < hi; i++) {
      double w = 1 / (dy[i] * dy[i]) / W, x = t[i], d = y[i] - Y, s, c;      // differences of times would be rounded
      double a = f0 * x, b = m * x, l = fma(f0, x, -a) + fma(m, x, -b) + ml * x;
      double p = ((a - rint(a)) + (b - rint(b))) + l;
      sincospi(2 * (p - rint(p)), &s, &c);
      if (!pass) { C += w * c; S += w * s; continue; }
      c -= C; s -= S;
      CC += w * c * c; SS += w * s * s; CS += w * c * s; YC += w * d * c; YS += w * d * s; YY += w * d * d;
    }
  out[o * (long long)nf + k] = (YC * (SS * YC - CS * YS) + YS * (CC * YS - CS * YC)) / (CC * SS - CS * CS) / YY;
}
"""


def reference(cp: Any, source: FlatSource, first: int, count: int, f0: float, df: float, nf: int) -> Any:
    """Return the reference powers ``[count, nf]``, by direct centred sums in float64 on the GPU."""
    out = cp.empty((count, nf))
    kernel = cp.RawKernel(REFERENCE, "reference")
    t, y, dy = (cp.asarray(a) for a in (source.t, source.y, source.dy))
    kernel(
        (-(-nf // 128), count), (128,),
        (t, y, dy, cp.asarray(source.offsets), out, np.float64(f0), np.float64(df), np.int32(nf), np.int32(first)),
    )  # fmt: skip
    return out


def on_device(cp: Any, source: FlatSource) -> FlatSource:
    return FlatSource(cp.asarray(source.t), cp.asarray(source.y), cp.asarray(source.dy), source.offsets)


def jobs_of(engine: cuda.Engine, source: FlatSource, grids: Any, power: Any) -> list[tuple[Any, Any]]:
    """Return the lane and the job of each chunk of one `execute`; with more chunks than lanes, of one chunk of all."""
    worker = engine.workers[0]
    output = Output.allocate(source.n_objects, engine.spec.n_peaks, power)
    settings = engine._settings(source, grids, output)
    chunks = engine.cut(source, settings, worker)
    if len(chunks) > len(worker.lanes):
        chunks = [(0, source.n_objects)]
    return [
        (lane, make_job(settings, source, Chunk(*c), output)) for lane, c in zip(worker.lanes, chunks, strict=False)
    ]


def device_ms(cp: Any, engine: cuda.Engine, source: FlatSource, grids: Any, power: Any = None) -> float:
    """Return the milliseconds of one `execute` on the device: launches of chunks are replayed as graphs on their lanes.

    Rounds are queued one after the other, and each waits on the device for all lanes of the previous round, so that the
    host never delays the device.
    """
    worker, jobs = engine.workers[0], jobs_of(engine, source, grids, power)
    for _ in range(3):  # the second begin records a graph
        for lane, job in jobs:
            worker.begin(lane, job)
        for lane, _ in jobs:
            lane.synchronize()
    gate = cp.cuda.Stream(non_blocking=True)
    rounds, times = 8, []
    for _ in range(7):
        start, end = cp.cuda.Event(), cp.cuda.Event()
        start.record(gate)
        last = start
        for _ in range(rounds):
            ends = []
            for lane, _ in jobs:
                lane.stream.wait_event(last)
                worker.launches.of(lane)[-1].replay()
                ends.append(cp.cuda.Event(disable_timing=True))
                ends[-1].record(lane.stream)
            for event in ends:
                gate.wait_event(event)
            last = cp.cuda.Event(disable_timing=True)
            last.record(gate)
        end.record(gate)
        end.synchronize()
        times.append(cp.cuda.get_elapsed_time(start, end) / rounds)
    return float(statistics.median(times))


def kernel_ms(cp: Any, engine: cuda.Engine, source: FlatSource, grids: Any, power: Any = None) -> dict[str, float]:
    """Return the milliseconds of each kernel alone on the device, with all objects in one chunk."""
    worker = engine.workers[0]
    output = Output.allocate(source.n_objects, engine.spec.n_peaks, power)
    job = make_job(engine._settings(source, grids, output), source, Chunk(0, source.n_objects), output)
    lane, found, rounds, done = worker.spare, {}, 6, [0]
    launch = CudaModule.launch

    def timed(module: Any, kernel: str, *args: Any, stream: Any = None, **more: Any) -> None:
        start, end = cp.cuda.Event(), cp.cuda.Event()
        start.record(stream)
        launch(module, kernel, *args, stream=stream, **more)
        end.record(stream)
        end.synchronize()
        found.setdefault(kernel, [0.0] * rounds)[done[0]] += cp.cuda.get_elapsed_time(start, end)

    CudaModule.launch = timed
    try:
        for done[0] in range(rounds):
            worker._launch(lane, job)
            lane.synchronize()
    finally:
        CudaModule.launch = launch
    return {k: float(statistics.median(v[1:])) for k, v in found.items()}


def wall_ms(call: Any, n: int = 15) -> float:
    call()
    call()
    times = []
    for _ in range(n):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * float(statistics.median(times))


class Bench:
    def __init__(self, report: Report, data: Path) -> None:
        import cupy

        self.cp, self.report, self.data = cupy, report, data
        self.device = resolve("cuda:all")
        rows = np.loadtxt(data / "8205_normalized_with_error.txt", delimiter=",")
        self.single = FlatSource(*(np.ascontiguousarray(rows[:, i]) for i in (1, 2, 3)), np.array([0, len(rows)]))
        self.engines: dict[Any, cuda.Engine] = {}
        self.device_times: dict[tuple[str, str], float] = {}

    def engine(self, dtype: Any, **more: Any) -> cuda.Engine:
        key = (dtype, tuple(sorted(more.items())))
        if key not in self.engines:
            self.engines[key] = cuda.Engine(Spec(n_peaks=5, dtype=dtype, **more), self.device[0])
        return self.engines[key]

    def simulated(self, span: int, n: int = 1000) -> FlatSource:
        made = benchmark_batch(self.data, span)
        offsets = np.asarray(made.offsets[: n + 1], np.int64)
        rows = slice(0, int(offsets[-1]))
        return FlatSource(made.t[rows].copy(), made.y[rows].copy(), made.dy[rows].copy(), offsets)

    def case(
        self,
        name: str,
        source: FlatSource,
        f0: float,
        df: float,
        nf: int,
        dtype: Any,
        reach: float,
        power: bool = False,
    ) -> None:
        cp, grids = self.cp, shared_grid(f0, df, nf)
        engine = self.engine(dtype)
        store = cp.full(source.n_objects * nf, cp.nan, dtype) if power else None
        ms = device_ms(cp, engine, on_device(cp, source), grids, store)
        span = max(
            float(source.t[b - 1] - source.t[a]) for a, b in zip(source.offsets[:-1], source.offsets[1:], strict=True)
        )
        facts = {"dtype": str(dtype), "nf": nf, "df_T": df * span, "objects": source.n_objects, "points": len(source.t)}
        self.device_times[name, str(dtype)] = ms
        limit = least_ms(source, nf, df * span, dtype, self.device[0])
        self.report.row(
            name, device_ms=ms, wanted=reach, reached=ms <= reach, arithmetic_ms=limit,
            percent_of_limit=100 * limit / ms, freq_per_s=source.n_objects * nf / ms * 1e3, **facts,
        )  # fmt: skip

    def errors(
        self, name: str, source: FlatSource, f0: float, df: float, nf: int, dtype: Any, method: str = "nufft"
    ) -> None:
        """Report the largest error by number of points, and how many highest peaks agree with the exact powers."""
        cp, grids = self.cp, shared_grid(f0, df, nf)
        engine = self.engine(dtype, method=method)
        n = source.n_objects
        output = Output.allocate(n, 5, cp.full(n * nf, cp.nan, dtype))
        engine.execute(source, grids, output)
        exact = reference(cp, source, 0, n, f0, df, nf)
        error = cp.abs(output.power.reshape(n, nf) - exact).max(axis=1).get()
        same = int((cp.argmax(exact, axis=1).get() == output.peak_index[:, 0]).sum())
        points = np.diff(source.offsets)
        worst = {f"err_N{k}": float(error[points >= k].max()) for k in (4, 10, 30, 100) if (points >= k).any()}
        self.report.row(
            name, method=method, dtype=str(dtype), same_peak=same, status=int((output.status != 0).sum()), **worst
        )

    def end_to_end(
        self, name: str, source: FlatSource, f0: float, df: float, nf: int, dtype: Any, reach: float
    ) -> None:
        grids, engine = shared_grid(f0, df, nf), self.engine(dtype)
        output = Output.allocate(source.n_objects, 5)
        ms = wall_ms(lambda: engine.execute(source, grids, output))
        self.report.row(name, wall_ms=ms, wanted=reach, reached=ms <= reach, dtype=str(dtype))

    def full_power(
        self, name: str, source: FlatSource, f0: float, df: float, nf: int, dtype: Any, reach: float
    ) -> None:
        """Time a search that returns all powers in page-locked, in reused pageable and in new pageable host memory."""
        cp, grids, engine, n = self.cp, shared_grid(f0, df, nf), self.engine(dtype), source.n_objects
        size = n * nf * dtype.itemsize
        pinned = np.frombuffer(cp.cuda.alloc_pinned_memory(size), dtype, n * nf)
        pageable = np.zeros(n * nf, dtype)

        def run(power: Any) -> None:
            engine.execute(source, grids, Output.allocate(n, 5, power))

        ms = wall_ms(lambda: run(pinned), 7)
        self.report.row(
            name, memory="pinned", wall_ms=ms, wanted=reach, reached=ms <= reach, dtype=str(dtype), megabytes=size / 1e6
        )
        self.report.row(name, memory="out=", wall_ms=wall_ms(lambda: run(pageable), 7))
        self.report.row(name, memory="fresh", wall_ms=wall_ms(lambda: run(np.empty(n * nf, dtype)), 5))
        plain = cp.empty(n * nf, dtype)
        self.report.row(
            name, memory="plain copy of the powers alone", wall_ms=wall_ms(lambda: plain.get(out=pageable), 5)
        )

    def million(
        self, name: str, objects: int, points: int, reach: float, devices: Any = None, there: bool = False
    ) -> float:
        """Return the seconds for many short objects in pageable memory or, with ``there``, on the GPU."""
        rng = np.random.default_rng(5)
        few = 2000
        t = np.sort(rng.integers(0, 120, (few, points)) + 0.3 + 0.4 * rng.random((few, points)), axis=1)
        period = 0.1 + 2 * rng.random((few, 1))
        dy = 0.02 + 0.05 * rng.random((few, points))
        y = 0.3 * np.sin(2 * np.pi * t / period) + dy * rng.standard_normal((few, points))
        repeat = -(-objects // few)
        offsets = np.arange(objects + 1, dtype=np.int64) * points
        source = FlatSource(*(np.tile(a, (repeat, 1)).reshape(-1)[: objects * points] for a in (t, y, dy)), offsets)
        source = on_device(self.cp, source) if there else source
        engine = cuda.Engine(Spec(n_peaks=5), devices or self.device[0])
        output = Output.allocate(objects, 5)
        grids = shared_grid(0.16, 1 / 1200, 28608)
        seconds = []
        for _ in range(7):
            start = time.perf_counter()
            engine.execute(source, grids, output)
            seconds.append(time.perf_counter() - start)
        again = output.peak_index[:few]
        whole = objects // few * few
        same = bool((output.peak_index[:whole].reshape(-1, few, 5) == again).all()) if whole else True
        median = statistics.median(seconds[1:])  # the first one records launches
        facts = {"objects": objects, "same_everywhere": same, "gpus": len(engine.workers)}
        self.report.row(
            name, seconds=median, least=min(seconds), first=seconds[0], wanted=reach, reached=median <= reach, **facts
        )
        engine.close()
        return median

    def kernels(self, name: str, source: FlatSource, f0: float, df: float, nf: int, dtype: Any) -> None:
        """Each kernel alone, with the few microseconds that its two events take."""
        times = kernel_ms(self.cp, self.engine(dtype), on_device(self.cp, source), shared_grid(f0, df, nf))
        self.report.row(name, dtype=str(dtype), **{f"{k}_ms": v for k, v in times.items()})

    def series(self, batch: FlatSource, f0: float, df: float, nf: int) -> None:
        """Time several terms beside one term, also by kernel, and measure the error against exact fits."""
        cp, grids = self.cp, shared_grid(f0, df, nf)
        there = on_device(cp, batch)
        one = device_ms(cp, self.engine(F64), there, grids)
        for nterms, dtype in ((2, F64), (3, F64), (4, F64), (4, F32), (6, F64), (8, F64)):
            engine = self.engine(dtype, nterms=nterms)
            ms = device_ms(cp, engine, there, grids)
            bound = {"wanted": 4.0, "reached": ms <= 4 * one} if nterms == 4 else {}
            times = {f"{k}_ms": v for k, v in kernel_ms(cp, engine, there, grids).items()}
            self.report.row(
                "series", nterms=nterms, dtype=str(dtype), device_ms=ms, over_one_term=ms / one, **bound, **times
            )
        some = FlatSource(batch.t, batch.y, batch.dy, batch.offsets[:41])
        powers = []
        for method in ("nufft", "direct"):
            output = Output.allocate(40, 5, cp.full(40 * nf, cp.nan))
            self.engine(F64, nterms=4, method=method).execute(some, grids, output)
            powers.append(output.power.reshape(40, nf))
        error = cp.nanmax(cp.abs(powers[0] - powers[1]), axis=1).get()
        self.report.row("series, error", nterms=4, error=float(np.nanmax(error)), wanted=1e-8,
                        reached=bool(np.nanmax(error) <= 1e-8), objects=40)  # fmt: skip

    def selection(self) -> None:
        """Compare "auto" with the best method, for sizes that the calibration does not use."""
        cp, worst = self.cp, 0.0
        for dtype in (F64, F32):
            for points in (12, 40, 75, 120, 450):
                for nf, cycles in ((700, 0.15), (9000, 0.06), (40_000, 0.21), (300_000, 0.004)):
                    objects = max(8, 40_000_000 // (nf * max(1, points // 40)) // 8)
                    source = on_device(cp, made([points] * min(objects, 4000)))
                    grids = shared_grid(0.2, cycles / 120, nf)
                    ms = {
                        m: device_ms(cp, self.engine(dtype, method=m), source, grids)
                        for m in ("auto", "direct", "nufft")
                    }
                    ratio = ms["auto"] / min(ms.values())
                    worst = max(worst, ratio)
                    self.report.row(
                        "selection", dtype=str(dtype), points=points, nf=nf, df_T=cycles, objects=source.n_objects,
                        auto_over_best=ratio, **{f"{k}_ms": v for k, v in ms.items()},
                    )  # fmt: skip
        self.report.row("selection, worst", auto_over_best=worst, wanted=1.25, reached=worst <= 1.25)

    def peers(self, batch: FlatSource) -> None:
        """Time nifty-ls on the host's cores and CuPy's own function in this process."""
        cp = self.cp
        nf, f0, df = 28608, 0.16, 1 / 1200
        at = batch.offsets
        if importlib.util.find_spec("nifty_ls"):
            import nifty_ls

            def one(i: int) -> None:
                rows = slice(at[i], at[i + 1])
                nifty_ls.lombscargle(
                    batch.t[rows], batch.y[rows], batch.dy[rows], fmin=f0, fmax=f0 + (nf - 1) * df, Nf=nf, nthreads=1,
                    normalization="standard",
                )  # fmt: skip

            cores = len(os.sched_getaffinity(0))
            with ThreadPoolExecutor(cores) as pool:
                seconds = []
                for _ in range(3):
                    start = time.perf_counter()
                    list(pool.map(one, range(batch.n_objects)))
                    seconds.append(time.perf_counter() - start)
            self.report.row("batch, nifty-ls on the host", cores=cores, wall_ms=1e3 * min(seconds))
        from cupyx.scipy.signal import lombscargle

        single, frequency = on_device(cp, self.single), 2 * np.pi * (0.5 + cp.arange(1_000_000) * (23.5 / 999_999))
        t = single.t - single.t[0]

        def run() -> None:
            lombscargle(t, single.y, frequency)
            cp.cuda.runtime.deviceSynchronize()

        self.report.row("single 1e6, cupyx (no mean, no errors)", wall_ms=wall_ms(run, 5))

    def bootstrap(self, name: str, resamples: int, reach: float) -> None:
        """Time the bootstrap false-alarm probability of a curve of 500 points at 1e5 frequencies, from host to host."""
        from skysieve import LombScargle

        rng = np.random.default_rng(3)
        t = np.sort(rng.uniform(0, 100, 500))
        curve = LombScargle(t, rng.standard_normal(500), rng.uniform(0.5, 1.5, 500), device="cuda")
        options = {"method": "bootstrap", "maximum_frequency": 1e5 / (5 * float(np.ptp(t)))}
        nf = len(curve.autofrequency(maximum_frequency=options["maximum_frequency"]))
        keywords = {"n_bootstraps": resamples, "random_seed": 1}
        ms = wall_ms(lambda: curve.false_alarm_probability(0.1, method_kwds=keywords, **options), 5000 // resamples + 1)
        self.report.row(name, wall_ms=ms, wanted=reach, reached=ms <= reach, resamples=resamples, nf=nf, points=500)

    def run(self, only: set[str]) -> None:
        def wanted(key: str) -> bool:
            return not only or key in only

        f0, df, nf = 0.16, 1 / 1200, 28608
        batch = self.simulated(120)
        single = self.single
        s1, s25 = 23.5 / 999_999, 23.5 / 24_999_999
        if wanted("error"):
            self.report.title("error against direct float64 sums")
            for dtype in (F64, F32):
                self.errors("batch", batch, f0, df, nf, dtype)
                self.errors("single 1e6", single, 0.5, s1, 1_000_000, dtype)
                self.errors("single folded", single, 0.5, 0.35 / 120, 8000, dtype)
            self.errors("batch", batch, f0, df, nf, F64, "direct")
            self.errors("batch", batch, f0, df, nf, F32, "direct")
        if wanted("batch"):
            self.report.title("batch of 1,000 x 28,608")
            self.case("batch", batch, f0, df, nf, F64, 0.55)
            self.case("batch, powers written", batch, f0, df, nf, F64, 0.62, True)
            self.case("batch", batch, f0, df, nf, F32, 0.38)
            self.end_to_end("batch, end to end", batch, f0, df, nf, F64, 1.0)
            self.end_to_end("batch, end to end", batch, f0, df, nf, F32, 0.8)
            longer = made(log_normal_lengths(3000))
            self.end_to_end("3,000 objects, end to end", longer, f0, df, nf, F64, 3.0)
            self.end_to_end("3,000 objects, end to end", longer, f0, df, nf, F32, 2.4)
        if wanted("power"):
            self.full_power("batch, powers home", batch, f0, df, nf, F64, 6.5)
        if wanted("single"):
            self.report.title("single series of 3,555 points")
            self.case("single 1e6", single, 0.5, s1, 1_000_000, F64, 0.10)
            self.case("single 1e6", single, 0.5, s1, 1_000_000, F32, 0.10)
            self.case("single 25e6", single, 0.5, s25, 25_000_000, F64, 0.40)
            self.case("single 25e6, powers written", single, 0.5, s25, 25_000_000, F64, 0.60, True)
            long = FlatSource(single.t * (3652 / 119.96875), single.y, single.dy, single.offsets)
            self.case("single ten years", long, 0.5, 0.2 / 3652, 25_000_000, F64, 4.0)
        if wanted("kernels"):
            self.report.title("time of each kernel")
            self.kernels("batch", batch, f0, df, nf, F64)
            self.kernels("batch", batch, f0, df, nf, F32)
            self.kernels("single 25e6", single, 0.5, s25, 25_000_000, F64)
        if wanted("series"):
            self.report.title("series of several terms, batch of 1,000 x 28,608")
            self.series(batch, f0, df, nf)
        if wanted("bands"):
            self.report.title("five bands, batch of 1,000 x 28,608")
            from benchmarks.periodogram_bands import bands

            bands(self, batch, shared_grid(f0, df, nf))
        if wanted("bootstrap"):
            self.report.title("bootstrap of one curve")
            self.bootstrap("bootstrap", 1_000, 500.0)
            self.bootstrap("bootstrap, one batch", 10_000, 5000.0)
        if wanted("peers"):
            self.report.title("peers")
            self.peers(batch)
        if wanted("selection"):
            self.report.title("choice of the method")
            self.selection()
        if wanted("decade"):
            self.report.title("the batch over ten years")
            self.case("batch ten years", self.simulated(3652), 0.16, 0.1 / 3652, 870_640, F64, 17.0)
        if wanted("fine"):
            self.report.title("the batch on a fine grid")
            self.case("batch 1e6", batch, f0, 23.84 / 999_999, 1_000_000, F64, 11.0)
        for (name, dtype), ms in list(self.device_times.items()):
            if dtype == "float64" and (name, "float32") in self.device_times:
                self.report.row(f"{name}, float64 over float32", ratio=ms / self.device_times[name, "float32"])
        if wanted("million"):
            self.report.title("a million light curves")
            n = 20_000 if self.report.quick else 1_000_000
            one = self.million("a million objects", n, 200, 1.2 * n / 1e6)
            self.million("a million objects on the GPU", n, 200, one, there=True)
            if len(self.device) > 1:
                least = 0.9 * len(self.device)
                several = self.million("a million objects, all GPUs", n, 200, one / least, self.device)
                self.report.row("all GPUs over one", ratio=one / several, wanted=least, reached=one / several >= least)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data" / "lomb_scargle")
    parser.add_argument("--suffix", default="")
    options = parser.parse_args()
    report = Report("periodogram_gpu", PACKAGES, options.quick)
    bench = Bench(report, options.data)
    report.machine["gpus"] = [d.name for d in bench.device]
    bench.run(set(options.only))
    report.write(options.suffix)
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
