"""Convolution on the sphere on a GPU: milliseconds a map beside what is required and what the GPU allows.

``python -m benchmarks.sphere_gpu [--quick]`` (from the repository's root); writes ``results/sphere_gpu.json``.  Maps of
white noise in GPU memory, plans kept, medians of CUDA events, unless a row says otherwise.  Errors are against the
pixel sum of the uncut kernel in float64 at some hundred pixels of all zones.  The limit of the direct engine is the
larger of the map read and written once and of the multiply-adds of the pixels within the support; that of the ring
engine the map and the modes of its rings, each read and written once; rates of both are measured in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.harness import Report

from skysieve.sphere import ConvolvePlan, Gaussian, Healpix
from skysieve.sphere.pairs import reach
from skysieve.sphere.radial import make_radial

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGES = ("skysieve", "numpy", "cupy-cuda13x", "cupy-cuda12x")
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
PIXELS = 120
"""Random pixels whose error is measured, beside those next to the poles and at the edge of the caps."""


def brute(table: Any, kernel: Gaussian, x: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """The pixel sum in float64, with the kernel to 1e-12."""
    radial = make_radial(kernel, 1e-12)
    first, last = reach(table.theta, radial.radius)
    ring = np.searchsorted(table.start, pixels, side="right") - 1
    out = np.zeros(len(pixels))
    for k, (p, o) in enumerate(zip(pixels, ring, strict=True)):
        phi = table.phi0[o] + 2 * np.pi * (p - table.start[o]) / table.n[o]
        for i in range(first[o], last[o]):
            n = int(table.n[i])
            a = 4 * np.sin((table.theta[i] - table.theta[o]) / 2) ** 2
            b = 4 * np.sin(table.theta[i]) * np.sin(table.theta[o])
            s = (radial.xmax - a) / b
            q = np.arange(n)
            if s < 1:
                reached = np.arcsin(np.sqrt(max(0.0, s))) * n / np.pi + 2
                u = (phi - table.phi0[i]) * n / (2 * np.pi)
                near = np.arange(int(np.ceil(u - reached)), int(np.floor(u + reached)) + 1)
                q = near if len(near) < n else q
            d = table.phi0[i] + 2 * np.pi * q / n - phi
            out[k] += table.weight[i] * (radial(a + b * np.sin(d / 2) ** 2) @ x[table.start[i] + q % n])
    return out


class Bench:
    """All rows of one run."""

    def __init__(self, report: Report, quick: bool) -> None:
        import cupy

        self.report, self.quick, self.cp = report, quick, cupy
        self.rng = cupy.random.default_rng(int(time.time()))
        self.copy = self.fma = 0.0

    def ceilings(self) -> None:
        """Rates of a copy and of multiply-adds."""
        cp = self.cp
        self.report.title("the GPU")
        a = cp.ones(1 << 28, np.float32)
        b = cp.empty_like(a)
        self.copy = 2 * a.nbytes / self.seconds(lambda: cp.copyto(b, a))
        kernel = cp.RawKernel(FMA, "fma_rate")
        rounds, blocks = 4096, 132 * 16
        self.fma = 8 * rounds * blocks * 256 / self.seconds(lambda: kernel((blocks,), (256,), (b, np.int32(rounds))))
        name = cp.cuda.runtime.getDeviceProperties(0)["name"].decode()
        self.report.row(name, copy_bytes_per_s=self.copy, fma_per_s=self.fma)

    def seconds(self, call: Callable[[], object], repetitions: int = 5) -> float:
        """Median of CUDA events around five calls, so that the time to launch them does not count."""
        cp = self.cp
        for _ in range(2):
            call()
        found = []
        for _ in range(repetitions):
            start, stop = cp.cuda.Event(), cp.cuda.Event()
            start.record()
            for _ in range(5):
                call()
            stop.record()
            stop.synchronize()
            found.append(1e-3 / 5 * cp.cuda.get_elapsed_time(start, stop))
        return statistics.median(found)

    def noise(self, shape: tuple[int, ...], dtype: str) -> Any:
        """White noise in GPU memory."""
        return self.rng.standard_normal(shape, dtype=np.dtype(dtype))

    def limit(self, plan: ConvolvePlan, parts: int = 1) -> float:
        """Seconds that the GPU needs at least; see the module."""
        item = plan.dtype.itemsize
        moved = 2 * parts * plan.npix * item
        if plan.method == "direct":
            inside = plan.npix * plan.npix * np.sin(plan.info()["support"] / 2) ** 2
            return max(moved / self.copy, inside / (self.fma if item == 4 else self.fma / 2))
        modes = plan._engine._engine.size * plan._engine._engine.parts * 2 * item  # type: ignore[attr-defined]
        return (moved + 4 * modes) / self.copy

    def error(self, plan: ConvolvePlan, kernel: Gaussian, nside: int, x: Any, y: Any) -> tuple[float, float]:
        """Rms and largest error over the rms of the result."""
        table = Healpix(nside).table("ring")
        rng = np.random.default_rng(0)
        edge = 2 * nside * (nside - 1)
        count = PIXELS if plan.info()["support"] * nside < 20 else 20
        pixels = np.r_[np.arange(4), rng.integers(0, 400, 6), edge + rng.integers(-9 * nside, 40 * nside, 20)]
        pixels = np.unique(np.r_[pixels, rng.integers(0, table.npix, count), table.npix - 1])
        expected = brute(table, kernel, self.cp.asnumpy(x).astype(float), pixels)
        rms = float(self.cp.sqrt(self.cp.mean(y[::97].astype(np.float64) ** 2)))
        d = (self.cp.asnumpy(y[self.cp.asarray(pixels)]) - expected) / rms
        return float(np.sqrt(np.mean(d**2))), float(np.abs(d).max())

    def row(
        self, nside: int, arcmin: float, wanted: float, dtype: str = "float32", eps: float = 1e-6, method: str = "auto"
    ) -> float:  # fmt: skip
        """One map; milliseconds."""
        cp, kernel = self.cp, Gaussian(fwhm=np.radians(arcmin / 60))
        with ConvolvePlan(kernel, Healpix(nside), dtype=dtype, eps=eps, method=method, device="cuda") as plan:
            x = self.noise((1, plan.npix), dtype)
            y = cp.empty((1, 1, plan.npix), np.dtype(dtype))
            engine: Any = plan._engine
            table, ones = plan._table, plan._ones
            ms = 1e3 * self.seconds(lambda: engine.convolve(x, y, table.weight, ones))
            whole = 1e3 * self.seconds(lambda: plan(x), 3)
            rms, worst = self.error(plan, kernel, nside, x[0], y[0, 0])
            limit = 1e3 * self.limit(plan)
            self.report.row(
                f"nside {nside} {arcmin:g}' {dtype}", eps=eps, method=plan.method, ms=ms, plan_call_ms=whole,
                wanted_ms=wanted or None, limit_ms=limit, of_limit=limit / ms, rms_error=rms, max_error=worst,
                gigabytes=plan.info()["bytes"] / 1e9, reached=bool(ms <= wanted) if wanted else None,
                accurate=bool(rms <= eps and worst <= 10 * eps),
            )  # fmt: skip
            x = y = None
        cp.get_default_memory_pool().free_all_blocks()
        return ms

    def maps(self) -> None:
        """The table of one map."""
        self.report.title("one map on the GPU")
        single = self.row(2048, 4.7, 0.7)
        self.row(2048, 4.7, 0.55, eps=1e-5)
        self.row(2048, 4.7, 3 * single, "float64")
        self.row(2048, 60, 1.5)
        if self.quick:
            return
        self.row(512, 18.8, 0)
        self.row(2048, 4.7, 0, method="ring")
        self.row(2048, 10, 0)
        self.row(2048, 60, 0, "float64")
        self.row(4096, 4.7, 3.5)
        self.row(8192, 5, 20)

    def batches(self) -> None:
        """Batches, Q and U, host to host, plans made on the way."""
        cp, nside = self.cp, 2048
        beam = Gaussian(fwhm=np.radians(4.7 / 60))
        self.report.title("batches, polarisation, transfers (nside 2048, 4.7', float32)")
        count = 10 if self.quick else 100
        with ConvolvePlan(beam, Healpix(nside), dtype="float32", device="cuda") as plan:
            x = self.noise((count, plan.npix), "float32")
            ms = 1e3 * self.seconds(lambda: plan(x), 1) / count
            self.report.row(f"batch of {count}", ms_a_map=ms, wanted_ms=0.65, reached=bool(ms <= 0.65))
            intensity = 1e3 * self.seconds(lambda: plan(x[0]), 5)
            host = cp.asnumpy(x[:4])
            x = None
            cp.get_default_memory_pool().free_all_blocks()
            for case, given in (("host to host", host[0]), ("host to host, batch of 4", host)):
                seconds = []
                for _ in range(5):
                    start = time.perf_counter()
                    plan(given)
                    seconds.append(time.perf_counter() - start)
                ms = 1e3 * statistics.median(seconds[1:]) / (4 if given.ndim == 2 else 1)
                self.report.row(case, ms_a_map=ms, wanted_ms=12.0, reached=bool(ms <= 12.0))
        with ConvolvePlan(beam, Healpix(nside), spin=2, dtype="float32", device="cuda") as tensor:
            x = self.noise((2, tensor.npix), "float32")
            ms = intensity + 1e3 * self.seconds(lambda: tensor(x), 5)
            self.report.row("I, Q and U", ms=ms, wanted_ms=4 * intensity, reached=bool(ms <= 4 * intensity))
        x = self.noise((12 * nside**2,), "float32")

        def once() -> None:
            with ConvolvePlan(Gaussian(fwhm=np.radians(4.7 / 60)), Healpix(nside), dtype="float32", device="cuda") as p:
                p(x)
            cp.cuda.Device().synchronize()

        once()
        found = []
        for _ in range(5):
            start = time.perf_counter()
            once()
            found.append(time.perf_counter() - start)
        ms = 1e3 * statistics.median(found)
        self.report.row("plan and one map", ms=ms, wanted_ms=8.0, reached=bool(ms <= 8.0))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer cases")
    quick = parser.parse_args().quick
    report = Report("sphere_gpu", PACKAGES, quick)
    bench = Bench(report, quick)
    bench.ceilings()
    bench.maps()
    bench.batches()
    report.write()
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
