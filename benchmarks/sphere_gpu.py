"""Convolution on the sphere on a GPU: milliseconds a map, beside the bound and the limit of the GPU.

``python -m benchmarks.sphere_gpu [--quick] [--only maps|batches|auto|peers]`` (from the repository's root); writes
``results/sphere_gpu.json``.  Unless a row says otherwise, maps are white noise in GPU memory, plans are made before,
and times are medians of CUDA events.  Errors are relative to the pixel sum of the uncut kernel in float64, at some
hundred pixels of all zones.  The limit of the direct engine is the larger of two times: that of reading and writing the
map once, and that of the multiply-adds of the pixels within the support.  The limit of the ring engine is the time to
read and write the map and the modes of its rings once.  The rates of copies and multiply-adds are measured in the same
run. ``peers`` needs ducc0 and healpy; without them it says so.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.harness import Report

from skysieve.core.device import resolve
from skysieve.core.tasks import usable_cores
from skysieve.sphere import ConvolvePlan, Gaussian, Healpix
from skysieve.sphere.command.rates import measure
from skysieve.sphere.kernels.radial import make_radial
from skysieve.sphere.ring_pairs import reach

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGES = ("skysieve", "numpy", "cupy-cuda13x", "cupy-cuda12x", "ducc0", "healpy")
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
SWEEP = [
    *((64, pixels, 0, "float32") for pixels in (2.0, 4.5, 12.0, 40.0)),
    *((512, pixels, 0, "float32") for pixels in (3.0, 4.5, 7.0, 40.0)),
    *((2048, pixels, 0, "float32") for pixels in (2.0, 4.5, 7.0)),
    *((512, pixels, 2, "float32") for pixels in (3.0, 4.5, 7.0)),
    *((512, pixels, 0, "float64") for pixels in (3.0, 4.5, 7.0)),
    (2048, 4.5, 2, "float32"), (2048, 4.5, 0, "float64"), (4096, 2.7, 0, "float32"), (8192, 11.6, 0, "float32"),
]  # fmt: skip
"""Cases of "auto": nside, FWHM in pixels, spin, type."""
SLOW = 20.0
"""A method is not timed if it is expected to take this many times as long as the other one."""
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


def ducc_smoothing(x: np.ndarray, nside: int, lmax: int, fwhm: float, threads: int) -> None:
    """Analysis and synthesis by ducc0 with plain quadrature, in the map's precision."""
    import ducc0

    rings = ducc0.healpix.Healpix_Base(nside, "RING").sht_info()
    options = {"lmax": lmax, "spin": 0, "nthreads": threads, **rings}
    alm = ducc0.sht.adjoint_synthesis(map=x[None] * x.dtype.type(4 * np.pi / x.size), **options)
    ell = np.arange(lmax + 1.0)
    window = np.exp(-0.5 * ell * (ell + 1) * (fwhm / np.sqrt(8 * np.log(2))) ** 2).astype(x.dtype)
    alm[0] *= np.concatenate([window[m:] for m in range(lmax + 1)])
    ducc0.sht.synthesis(alm=alm, **options)


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
        """Return the least seconds that the GPU needs; see the docstring of the module."""
        item = plan.dtype.itemsize
        moved = 2 * parts * plan.npix * item
        if plan.method == "direct":
            inside = plan.npix * plan.npix * np.sin(plan.describe()["support"] / 2) ** 2
            return max(moved / self.copy, inside / (self.fma if item == 4 else self.fma / 2))
        modes = plan._engine._engine.size * plan._engine._engine.parts * 2 * item
        return (moved + 4 * modes) / self.copy

    def error(self, plan: ConvolvePlan, kernel: Gaussian, nside: int, x: Any, y: Any) -> tuple[float, float]:
        """Rms and largest error over the rms of the result."""
        table = Healpix(nside).table("ring")
        rng = np.random.default_rng(0)
        edge = 2 * nside * (nside - 1)
        count = PIXELS if plan.describe()["support"] * nside < 20 else 20
        pixels = np.r_[np.arange(4), rng.integers(0, 400, 6), edge + rng.integers(-9 * nside, 40 * nside, 20)]
        pixels = np.unique(np.r_[pixels, rng.integers(0, table.npix, count), table.npix - 1])
        expected = brute(table, kernel, self.cp.asnumpy(x).astype(float), pixels)
        rms = float(self.cp.sqrt(self.cp.mean(y[::97].astype(np.float64) ** 2)))
        d = (self.cp.asnumpy(y[self.cp.asarray(pixels)]) - expected) / rms
        return float(np.sqrt(np.mean(d**2))), float(np.abs(d).max())

    def row(
        self, nside: int, arcmin: float, wanted: float, dtype: str = "float32", eps: float = 1e-6,
        method: str = "auto", memory: str | None = None,
    ) -> float:  # fmt: skip
        """One map; milliseconds."""
        cp, kernel = self.cp, Gaussian(fwhm=np.radians(arcmin / 60))
        with ConvolvePlan(
            kernel, Healpix(nside), dtype=dtype, eps=eps, method=method, device="cuda", memory=memory
        ) as plan:
            x = self.noise((1, plan.npix), dtype)
            y = cp.empty((1, 1, plan.npix), np.dtype(dtype))
            engine: Any = plan._engine
            table, ones = plan._table, plan._ones
            ms = 1e3 * self.seconds(lambda: engine.convolve(x, y, table.weight, ones))
            whole = 1e3 * self.seconds(lambda: plan.execute(x), 3)
            rms, worst = self.error(plan, kernel, nside, x[0], y[0, 0])
            limit = 1e3 * self.limit(plan)
            self.report.row(
                f"nside {nside} {arcmin:g}' {dtype}", eps=eps, method=plan.method, ms=ms, plan_call_ms=whole,
                wanted_ms=wanted or None, limit_ms=limit, of_limit=limit / ms, rms_error=rms, max_error=worst,
                gigabytes=plan.describe()["bytes"] / 1e9, reached=bool(ms <= wanted) if wanted else None,
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
        self.row(8192, 5, 20, memory="12 GB")

    def batches(self) -> None:
        """Time batches, Q and U, maps from host to host, and calls that include the plan."""
        cp, nside = self.cp, 2048
        beam = Gaussian(fwhm=np.radians(4.7 / 60))
        self.report.title("batches, polarisation, transfers (nside 2048, 4.7', float32)")
        count = 10 if self.quick else 100
        with ConvolvePlan(beam, Healpix(nside), dtype="float32", device="cuda") as plan:
            x = self.noise((count, plan.npix), "float32")
            ms = 1e3 * self.seconds(lambda: plan.execute(x), 1) / count
            self.report.row(f"batch of {count}", ms_a_map=ms, wanted_ms=0.65, reached=bool(ms <= 0.65))
            intensity = 1e3 * self.seconds(lambda: plan.execute(x[0]), 5)
            host = cp.asnumpy(x[:4])
            x = None
            cp.get_default_memory_pool().free_all_blocks()
            for case, given in (("host to host", host[0]), ("host to host, batch of 4", host)):
                for _ in range(2):
                    plan.execute(given)  # from the second call on pinned memory is taken for results
                ms = 1e3 * wall(lambda given=given: plan.execute(given), 5) / (4 if given.ndim == 2 else 1)
                self.report.row(case, ms_a_map=ms, wanted_ms=12.0, reached=bool(ms <= 12.0))
        with ConvolvePlan(beam, Healpix(nside), spin=2, dtype="float32", device="cuda") as tensor:
            x = self.noise((2, tensor.npix), "float32")
            ms = intensity + 1e3 * self.seconds(lambda: tensor.execute(x), 5)
            self.report.row("I, Q and U", ms=ms, wanted_ms=4 * intensity, reached=bool(ms <= 4 * intensity))
        x = self.noise((12 * nside**2,), "float32")

        def once() -> None:
            with ConvolvePlan(Gaussian(fwhm=np.radians(4.7 / 60)), Healpix(nside), dtype="float32", device="cuda") as p:
                p.execute(x)
            cp.cuda.Device().synchronize()

        once()
        found = []
        for _ in range(5):
            start = time.perf_counter()
            once()
            found.append(time.perf_counter() - start)
        ms = 1e3 * statistics.median(found)
        self.report.row("plan and one map", ms=ms, wanted_ms=8.0, reached=bool(ms <= 8.0))

    def auto(self) -> None:
        """Compare the time of the method that "auto" chooses with the faster one, for 1 map and 100, plans included."""
        self.report.title('"auto" beside the faster method: milliseconds of a map and of a plan')
        measure(resolve("cuda")[0])
        worst = {1: 0.0, 100: 0.0}
        cases = SWEEP[:: 5 if self.quick else 1]

        def made(case: tuple[int, float, int, str], method: str) -> ConvolvePlan:
            nside, pixels, spin, dtype = case
            kernel = Gaussian(fwhm=pixels * np.sqrt(4 * np.pi / (12 * nside**2)))
            return ConvolvePlan(kernel, Healpix(nside), spin=spin, method=method, dtype=dtype, device="cuda")

        with ThreadPoolExecutor(usable_cores()) as pool:  # compiles what the plans need
            small = [case for case in cases if case[0] <= 2048]
            for method in ("ring", "direct"):
                list(pool.map(lambda case, method=method: made(case, method).close(), small))
        for case in cases:
            map_ms: dict[str, float] = {}
            plan_ms: dict[str, float] = {}
            said: dict[str, float] = {}
            for method in ("ring", "direct", "auto"):
                with made(case, method) as plan:
                    taken, said[method] = plan.method, 1e3 * plan.describe()["seconds"]
                    if method == "ring" or (method == "direct" and said[method] < SLOW * map_ms["ring"]):
                        map_ms[method] = self.of_a_map(plan)
            for _ in range(3):  # in turn: the host may be busy
                for method in said:
                    seconds = wall(lambda case=case, method=method: made(case, method).close(), 1)
                    plan_ms[method] = min(1e3 * seconds, plan_ms.get(method, np.inf))
            self.cp.get_default_memory_pool().free_all_blocks()
            facts: dict[str, Any] = {}
            for count in worst:
                best = min(plan_ms[m] + count * ms for m, ms in map_ms.items())
                facts[f"ratio_{count}"] = (plan_ms["auto"] + count * map_ms[taken]) / best
                worst[count] = max(worst[count], facts[f"ratio_{count}"])
            facts |= {f"{m}_ms": ms for m, ms in map_ms.items()} | {f"{m}_said_ms": said[m] for m in map_ms}
            facts |= {f"{m}_plan_ms": ms for m, ms in plan_ms.items()}
            self.report.row(
                "nside {}, {:g} pixels, spin {}, {}".format(*case), taken=taken, wanted=1.25, **facts,
                reached=bool(max(facts["ratio_1"], facts["ratio_100"]) <= 1.25),
            )  # fmt: skip
        self.report.row("auto, worst of all", **{f"ratio_{count}": ratio for count, ratio in worst.items()})

    def of_a_map(self, plan: ConvolvePlan) -> float:
        """Milliseconds of a map in GPU memory."""
        shape = (1, 2, plan.npix) if plan.spin else (1, plan.npix)
        x, y = self.noise(shape, plan.dtype.name), self.cp.empty((1, *shape), plan.dtype)
        engine: Any = plan._engine
        return 1e3 * self.seconds(lambda: engine.convolve(x, y, plan._table.weight, plan._ones), 3)

    def peers(self) -> None:
        """Time ducc0 and healpy on all cores of the host, lmax = 2 nside, beside the GPU with maps in host memory."""
        missing = [name for name in ("ducc0", "healpy") if find_spec(name) is None]
        if missing:
            self.report.title(f"no peers: {', '.join(missing)} is not installed")
            return
        import healpy

        threads = usable_cores()
        os.environ["OMP_NUM_THREADS"] = str(threads)
        for nside, arcmin in ((512, 18.8),) if self.quick else ((512, 18.8), (2048, 4.7), (2048, 60.0)):
            fwhm = np.radians(arcmin / 60)
            self.report.title(f"peers: nside {nside}, {arcmin:g}', {threads} threads")
            x = np.random.default_rng(0).normal(size=12 * nside**2)
            single = x.astype(np.float32)
            tools: dict[str, Callable[[], object]] = {
                "ducc0": lambda x=x, n=nside, f=fwhm: ducc_smoothing(x, n, 2 * n, f, threads),
                "ducc0 float32": lambda x=single, n=nside, f=fwhm: ducc_smoothing(x, n, 2 * n, f, threads),
                "healpy iter=0": lambda x=x, n=nside, f=fwhm: healpy.smoothing(x, fwhm=f, lmax=2 * n, iter=0),
            }
            seconds = {name: wall(call, 1 if nside > 1024 else 3) for name, call in tools.items()}
            for dtype, given in (("float32", single), ("float64", x)):
                with ConvolvePlan(Gaussian(fwhm=fwhm), Healpix(nside), dtype=dtype, device="cuda") as plan:
                    on_gpu = self.cp.asarray(given)
                    plan.execute(on_gpu)
                    device = wall(lambda plan=plan, on_gpu=on_gpu: self.wait(plan.execute(on_gpu)), 5)
                    for _ in range(3):
                        plan.execute(given)
                    host = wall(lambda plan=plan, given=given: plan.execute(given), 5)
                    ratios = {f"{name} over this": s / host for name, s in seconds.items()}
                    self.report.row(f"{plan.method} {dtype}", host_to_host_ms=1e3 * host, ms=1e3 * device, **ratios)
            for name, s in seconds.items():
                self.report.row(name, ms=1e3 * s)

    def wait(self, _: object) -> None:
        """Wait until the GPU is done."""
        self.cp.cuda.Device().synchronize()


def wall(call: Callable[[], object], repetitions: int) -> float:
    """Return the median seconds of calls that wait for the GPU, after a call that is not counted."""
    call()
    found = []
    for _ in range(repetitions):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer cases")
    parts = ("maps", "batches", "auto", "peers")
    parser.add_argument("--only", choices=parts, help="one part; its rows are written to a file of their own")
    options = parser.parse_args()
    report = Report("sphere_gpu", PACKAGES, options.quick)
    bench = Bench(report, options.quick)
    bench.ceilings()
    for part in parts:
        if options.only in (None, part):
            getattr(bench, part)()
    report.write(f"-{options.only}" if options.only else "")
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
