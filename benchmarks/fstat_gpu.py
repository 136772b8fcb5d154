"""The transient F-statistic on a GPU: seconds a template, beside the bound and the limit of the GPU.

``python -m benchmarks.fstat_gpu [--quick]`` (from the repository's root); writes ``results/fstat_gpu.json``.  Numbers
of cells are those of the full grid, with truncated windows; all is float32.  The limit of a kernel is the number of
instructions it issues for a cell (counted in the machine code of its innermost loops, see `SLOTS`) over the rate at
which the GPU issues them, which is taken as that of its multiply-adds.  The limit of a written map is the rate of a
copy.  Both rates are measured in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.harness import Report
from tests.truth import fstat as reference

from skysieve.core.device import resolve
from skysieve.fstat import Grid, TransientPlan, WindowSum, synth_atoms
from skysieve.fstat.command.rates import measure
from skysieve.fstat.contract import Bank, MapJob, Spec, make_schedule
from skysieve.fstat.cuda import engine as cuda
from skysieve.fstat.inputs.bins import Bins, bin_atoms
from skysieve.fstat.inputs.grid import Times
from skysieve.fstat.inputs.windows import resolve_window

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGES = ("skysieve", "numpy", "cupy-cuda13x", "cupy-cuda12x")
T = 1800
T0 = 1_000_000_000
FMA = """
extern "C" __global__ void fma_rate(float* out, int n) {
  float a[8], x = threadIdx.x * 1e-9f;
  for (int k = 0; k < 8; k++) a[k] = k;
  for (int i = 0; i < n; i++)
    for (int k = 0; k < 8; k++) a[k] = fmaf(a[k], 0.999f, x);
  float s = 0;
  for (int k = 0; k < 8; k++) s += a[k];
  out[blockIdx.x * blockDim.x + threadIdx.x] = s;
}
"""
SLOTS = {
    ("exp", True): 5 / 6 * 21.1 + 1 / 6 * 32.5,
    ("exp", False): 5 / 6 * 37.8 + 1 / 6 * 69.6,
    ("rect", True): 0.5 * 20.3,
    ("rect", False): 0.5 * 34.6,
}
"""Instructions for a cell of a full grid, by kind of window and whether templates share their point of the sky.  In a
sixth of the exponential windows a bin leaves the window; half of the rectangular windows equal others and are not
computed."""
WANTED = {("exp", True): 6e11, ("exp", False): 4e11, ("rect", True): 1.6e12, ("rect", False): 0.0}
"""Cells a second."""
BATCH = {10: 1024, 30: 512, 121: 128, 365: 64}


def power_law(x: Any) -> Any:
    """A window function that has no recurrence relation."""
    return (1 + x) ** -1.5


@dataclass
class Case:
    """Templates over some days, and their job."""

    days: int
    window: str
    shared: bool
    count: int

    @property
    def n(self) -> int:
        return self.days * 48

    @property
    def cells(self) -> float:
        return float((self.n - 1) ** 2)

    @property
    def grid(self) -> Grid:
        return Grid(t0=T0, t0_band=(self.n - 2) * T, dt0=T, tau=2 * T, tau_band=(self.n - 2) * T, dtau=T)

    def job(self, xp: Any, dtype: Any = np.float32) -> MapJob:
        """Return a job of noise, on the host or the device: ``Fa = sum a n``, so that 2F is chi-squared."""
        skies = 1 if self.shared else min(self.count, 16)
        made = [
            bin_atoms(synth_atoms(T0, self.n * T, ra=0.3 + 0.35 * i, dec=0.9 - 0.1 * i, seed=i)) for i in range(skies)
        ]
        rng = np.random.default_rng(self.days)
        antenna = np.stack([b.x[:3] for b in made])[np.arange(1 if self.shared else self.count) % skies]
        antenna = antenna.astype(dtype) / np.float32(2 * (antenna[:, 0] + antenna[:, 1]).max())
        a = np.sqrt(antenna[:, 0])
        b = np.divide(antenna[:, 2], a, out=np.zeros_like(a), where=a > 0)
        noise = rng.standard_normal((self.count, 2, self.n), np.float32)
        rest = np.sqrt(np.maximum(antenna[:, 1] - b**2, 0))[:, None] * rng.standard_normal(noise.shape, np.float32)
        data = np.concatenate([a[:, None] * noise, b[:, None] * noise + rest], axis=1).astype(dtype)
        bank = Bank(xp.asarray(antenna.astype(dtype)), xp.asarray(data), made[0].occupied)
        window = resolve_window(self.window, 3)
        bins = Bins(T0, T, made[0].x, made[0].occupied)
        return MapJob(bank, T, self.grid.taus.astype(float), make_schedule(self.grid, window, bins))


def device_seconds(cp: Any, engine: cuda.Engine, job: MapJob, repeat: int = 5) -> float:
    """Median seconds of all launches of one batch whose atoms lie on the device, by events."""
    engine.execute(job.part(slice(0, min(4, job.n_templates))))  # compiles, takes memory
    tables, lane = engine._tables_of(job), engine.lanes[0]
    reference = np.full(job.n_templates, cuda.REFERENCE)
    times = []
    for _ in range(repeat + 1):
        start, end = cp.cuda.Event(), cp.cuda.Event()
        start.record(lane.stream)
        work = engine.launcher.begin(lane, job, tables, np.arange(job.n_templates), reference)
        end.record(lane.stream)
        end.synchronize()
        times.append(1e-3 * cp.cuda.get_elapsed_time(start, end))
        del work
    return float(statistics.median(times[1:]))


def wall_seconds(call: Callable[[], object], repeat: int = 25) -> float:
    for _ in range(5):  # the first calls allocate, the second records the launches
        call()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(statistics.median(times))


class Bench:
    """The sections of the benchmark; each prints its rows."""

    def __init__(self, report: Report, quick: bool) -> None:
        import cupy

        self.cp, self.report, self.quick = cupy, report, quick
        self.device = resolve("cuda")[0]
        report.machine["gpu"] = str(self.device)

    def engine(self, window: str, **options: Any) -> cuda.Engine:
        return cuda.Engine(Spec(resolve_window(window, 3), np.dtype(np.float32), **options), device=self.device)

    def ceilings(self) -> None:
        """Multiply-adds and bytes a second of this GPU."""
        cp = self.cp
        blocks, n = 32 * self.device.sm_count, 4096
        out = cp.empty(256 * blocks, np.float32)
        kernel = cp.RawKernel(FMA, "fma_rate")
        a, b = cp.zeros(2**28, np.float32), cp.empty(2**28, np.float32)

        def seconds(call: Callable[[], object]) -> float:
            call()
            start, end = cp.cuda.Event(), cp.cuda.Event()
            start.record()
            for _ in range(5):
                call()
            end.record()
            end.synchronize()
            return float(cp.cuda.get_elapsed_time(start, end)) * 1e-3 / 5

        self.issue = 8 * n * out.size / seconds(lambda: kernel((blocks,), (256,), (out, np.int32(n))))
        self.copy = 2 * a.nbytes / seconds(lambda: cp.copyto(b, a))
        self.write = a.nbytes / seconds(lambda: a.data.memset_async(0, a.nbytes))
        self.report.title("ceilings")
        self.report.row("GPU", fma_per_s=self.issue, copy_bytes_per_s=self.copy, write_bytes_per_s=self.write)

    def fused(self) -> None:
        """Time maximum, its cell and ln B of a batch with atoms on the device, without and with marginals."""
        self.report.title("batches: max + argmax + ln B (kernels, atoms on the device)")
        for window in ("exp", "rect"):
            for shared in (True, False):
                for days, count in BATCH.items():
                    if (self.quick and days != 121) or (not shared and days in (10, 30)):
                        continue
                    case = Case(days, window, shared, count)
                    job = case.job(self.cp)
                    lean, sums = (self.engine(window, keep_map=False, marginals=m) for m in (False, True))
                    one = device_seconds(self.cp, lean, job) / count
                    with_sums = device_seconds(self.cp, sums, job, 3) / count
                    lean.close()
                    sums.close()
                    rate, wanted = case.cells / one, WANTED[window, shared]
                    self.report.row(
                        f"{window} {days} d x {count}", sky="one" if shared else "each", us=1e6 * one, cells_per_s=rate,
                        limit_percent=100 * rate * SLOTS[window, shared] / self.issue, wanted=wanted,
                        reached=bool(rate >= wanted) if days >= 121 else None, marginals_extra=with_sums / one - 1,
                    )  # fmt: skip

    def maps(self) -> None:
        """The whole map written on the device."""
        self.report.title("full maps written on the device")
        for window in ("exp", "rect"):
            for days, count in ((121, 64), (121, 256), (365, 32)):
                case = Case(days, window, True, count)
                engine = self.engine(window, marginals=False)
                seconds = device_seconds(self.cp, engine, case.job(self.cp), 3)
                engine.close()
                self.cp.get_default_memory_pool().free_all_blocks()
                rate = 4 * case.cells * count / seconds
                self.report.row(
                    f"{window} {days} d x {count}", us=1e6 * seconds / count, bytes_per_s=rate,
                    limit_percent=100 * rate / self.write, wanted=2e12, reached=bool(rate >= 2e12),
                )  # fmt: skip

    def singles(self) -> None:
        """One template, host to host."""
        self.report.title("one template, host to host: max, argmax, ln B")
        for window in ("exp", "rect"):
            for days, wanted in ((30, 0.5), (121, 0.0), (365, 2.0)):
                case = Case(days, window, True, 1)
                job = case.job(np)
                engine = self.engine(window, keep_map=False, marginals=False)
                of_engine = 1e3 * wall_seconds(lambda engine=engine, job=job: engine.execute(job))
                on_device = case.job(self.cp)
                kernels = 1e3 * device_seconds(self.cp, engine, on_device)
                engine.close()
                atoms = synth_atoms(T0, case.n * T, seed=1)
                with TransientPlan(
                    case.grid, window=window, dtype="float32", device="cuda", keep_map=False, posteriors=False
                ) as plan:
                    public = 1e3 * wall_seconds(lambda plan=plan, atoms=atoms: plan.execute(atoms))
                self.report.row(
                    f"{window} {days} d", engine_ms=of_engine, launches_ms=kernels, plan_ms=public, wanted_ms=wanted,
                    reached=bool(of_engine <= wanted) if wanted else None,
                )  # fmt: skip

    def windows(self) -> None:
        """Sums of exponentials, and a function by both methods: kernels, atoms on the device."""
        self.report.title("other windows: max + argmax + ln B (kernels, atoms on the device)")
        two = WindowSum([(1, 1), (-1, 5)])
        for name, window, fourier in (
            ("exp(-x) - exp(-5x)", two, None), ("function, bin by bin", power_law, False),
            ("function, by transforms", power_law, True),
        ):  # fmt: skip
            for days, count in ((30, 64), (121, 4)) if fourier is not False else ((30, 64),):
                case = Case(days, "rect", True, count)
                made = resolve_window(window, 3)
                job = case.job(self.cp)
                job = replace(job, schedule=make_schedule(case.grid, made, Times(T0, T, case.n)))
                engine = cuda.Engine(
                    Spec(made, np.dtype(np.float32), keep_map=False, marginals=False), device=self.device
                )
                if fourier is not None:
                    engine.launcher.fourier = fourier
                seconds = device_seconds(self.cp, engine, job, 3) / count
                engine.close()
                self.cp.get_default_memory_pool().free_all_blocks()
                self.report.row(f"{name}, {days} d x {count}", us=1e6 * seconds, cells_per_s=case.cells / seconds)

    def predictions(self) -> None:
        """Compare the time that `describe` predicts with the time of a call."""
        self.report.title("predicted times of one template, maximum and ln B, host to host")
        measure(resolve("cuda")[0])
        for window in ("exp", "rect"):
            for days in (30, 365):
                atoms = synth_atoms(T0, days * 48 * T, seed=1)
                with TransientPlan(
                    window=window, dtype="float32", device="cuda", keep_map=False, posteriors=False
                ) as plan:
                    predicted = plan.describe(atoms)["seconds"]
                    took = wall_seconds(lambda plan=plan, atoms=atoms: plan.execute(atoms))
                self.report.row(f"{window} {days} d", predicted_ms=1e3 * predicted, measured_ms=1e3 * took)

    def streams(self) -> None:
        """Batches of host arrays through the engine."""
        self.report.title("batches, host to host (two lanes)")
        for window in ("exp", "rect"):
            for days, count in ((30, 2048), (121, 512)):
                case = Case(days, window, True, count)
                job = case.job(np)
                engine = self.engine(window, keep_map=False, marginals=False)
                seconds = wall_seconds(lambda engine=engine, job=job: engine.execute(job), 3)
                engine.close()
                self.report.row(
                    f"{window} {days} d x {count}", us=1e6 * seconds / count, cells_per_s=case.cells * count / seconds
                )

    def accuracy(self) -> None:
        """Compare random cells of a year's maps with sums in float64, and maximum and ln B with the map."""
        cp, rng = self.cp, np.random.default_rng(1)
        self.report.title("float32 against sums of random cells in float64, 365 days")
        for window in ("exp", "rect"):
            for shared in (True, False):
                case = Case(365, window, shared, 2)
                job, w = case.job(cp), resolve_window(window, 3)
                engine, lean = (
                    self.engine(window, marginals=False),
                    self.engine(window, keep_map=False, marginals=False),
                )
                found, fused = engine.execute(job), lean.execute(job)
                m, n = (rng.integers(0, case.n - 1, 400) for _ in range(2))
                errors, flips = [], 0
                for i in range(2):
                    bins = Bins(T0, T, cp.asnumpy(job.bank.template(i)).astype(float), job.occupied)
                    F = cp.asnumpy(found.F[i][cp.asarray(m), cp.asarray(n)]).astype(float)
                    for row, column, value in zip(m, n, F, strict=True):
                        truth, condition = reference.cell(bins, int(case.grid.t0s[row]), int(case.grid.taus[column]), w)
                        if abs(condition / 1e4 - 1) > 0.01:
                            errors.append(abs(value - truth) / max(1, truth))
                            flips += (value == 2) != (truth == 2)
                highest = [float(F.max()) for F in found.F]
                sums = [float(cp.log(cp.exp(F - F.max()).sum(dtype=np.float64)) + F.max()) for F in found.F]
                same = [int(F.argmax()) for F in found.F] == fused.index.tolist()
                engine.close()
                lean.close()
                del found, F
                cp.get_default_memory_pool().free_all_blocks()
                worst, rms = max(errors), float(np.sqrt(np.mean(np.square(errors))))
                self.report.row(
                    f"{window}, sky {'one' if shared else 'each'}", cells=len(errors), max=worst, rms=rms,
                    flips=int(flips), reached=bool(worst <= 3e-4 and rms <= 1e-5 and flips == 0), same_cell=same,
                    max_F=float(np.abs(fused.max_F - highest).max()), ln_B=float(np.abs(fused.log_sum - sums).max()),
                )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer cases")
    quick = parser.parse_args().quick
    report = Report("fstat_gpu", PACKAGES, quick)
    bench = Bench(report, quick)
    bench.ceilings()
    bench.accuracy()
    bench.fused()
    bench.singles()
    bench.streams()
    if not quick:
        bench.predictions()
        bench.windows()
    bench.maps()  # the last one, because small calls take four times as long for 80 ms after its maps are freed
    report.write()
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
