"""De-dispersion on GPUs: additions a second, beside the rate required and the limit of the tensor cores.

``python -m benchmarks.dedispersion_gpu [--quick]``; writes ``results/dedispersion_gpu.json``.  Rates are channels x DMs
x samples a second (T adds/s), input on the device.  In part (a) series are written as 32-bit sums.  Part (b) also
estimates the noise, applies 26 boxcars and finds peaks, and keeps only events.  The limit is the time of the sparse
products of the plan, at the rate of a kernel that computes nothing else on the same GPU.  Sums are compared with
NumPy's at random places.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.harness import Report

from skysieve.core.device import Device, resolve
from skysieve.core.gpu.runtime import CudaRuntime
from skysieve.dedispersion import Filterbank, SearchPlan, fake, plan, search
from skysieve.dedispersion.contract import Detection, Packed, Table
from skysieve.dedispersion.cuda import engine as cuda
from skysieve.dedispersion.cuda import worker as cuda_worker
from skysieve.dedispersion.cuda.tensor_plan import make_plan
from skysieve.dedispersion.dm_plan.delay_tables import make_table
from skysieve.dedispersion.single_pulse.search import WIDTHS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.data.observation import Observation

PACKAGES = ("skysieve", "numpy", "cupy-cuda13x", "cupy-cuda12x")
SETUPS = {
    "P_RT": (2048, 500, 65_536, 630.0, 20.0, 102.4e-6, 60.0, 40.0),
    "P_SUB": (1024, 2048, 363_636, 308.0, 16.0, 165e-6, 61.44, 40.0),
    "P_BENCH": (1024, 1024, 262_144, 1581.0, 400.0, 64e-6, 204.8, 28.0),
    "P_BIG": (4096, 4096, 65_536, 1712.0, 856.0, 64e-6, 2000.0, 22.0),
}
"""Channels, DMs, samples, top and width of the band (MHz), sampling time (s), highest DM, T adds/s required."""
PEER = {"P_RT": 10.1, "P_SUB": 10.3, "P_BENCH": 10.3, "P_BIG": 0.37}
"""T adds/s of AstroAccelerate's kernels on an H100, 8 bit."""
PRODUCTS = r"""
extern "C" __global__ void __launch_bounds__(512, 1) products(unsigned* out, int n) {
  int c[16][4];
  unsigned a[4], b[4], meta = 0xcccccccc;
  for (int i = 0; i < 4; i++) { a[i] = threadIdx.x * 0x01010101u + i; b[i] = threadIdx.x * 0x03010201u + i; }
  for (int i = 0; i < 64; i++) c[i / 4][i % 4] = i;
  for (int k = 0; k < n; k++)
#pragma unroll
    for (int i = 0; i < 16; i++)
      asm volatile("mma.sp.sync.aligned.m16n8k64.row.col.s32.u8.u8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9,%10,%11},"
                   "{%0,%1,%2,%3},%12,0x0;" : "+r"(c[i][0]), "+r"(c[i][1]), "+r"(c[i][2]), "+r"(c[i][3])
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(meta));
  unsigned s = 0;
  for (int i = 0; i < 64; i++) s += c[i / 4][i % 4];
  out[blockIdx.x * blockDim.x + threadIdx.x] = s;
}
"""


class OnDevice:
    """A source that is never read, because the samples are already on the device."""

    def __init__(self, nchan: int, nsamp: int, dtype: Any = np.uint8, maximum: int = 255) -> None:
        self.dtype, self.maximum, self.nsamp, self.nchan = np.dtype(dtype), maximum, nsamp, nchan


def observed(name: str, shrink: int) -> tuple[Observation, NDArray[np.float64], int]:
    """A set-up's band, DMs and number of samples."""
    C, M, n, top, width, tsamp, dm_max, _ = SETUPS[name]
    freqs = top - width / C * np.arange(C)
    observation = Filterbank.from_array(np.zeros((C, 1), np.uint8), freqs=freqs, tsamp=tsamp).observation
    return observation, np.arange(M) * (dm_max / M), n // shrink


def fill(worker: cuda_worker.Worker, total: int, maximum: int) -> None:
    """Fill the rows on the current GPU with random samples."""
    import cupy

    worker.store.begin(0, total)
    cupy.random.seed(1)
    held = worker.store.planes[1]
    held.data[...] = cupy.random.randint(0, min(maximum, 255) + 1, held.data.size, dtype=np.uint8)
    cupy.cuda.Device().synchronize()


class Case:
    """A set-up on one GPU with random samples in its rows."""

    def __init__(
        self, name: str, device: Device, dtype: Any = np.uint8, maximum: int = 255, downsamp: int = 1,
        shrink: int = 1,
    ) -> None:  # fmt: skip
        import cupy

        observation, dms, self.n = observed(name, shrink)
        C, tsamp, self.wanted = observation.nchan, observation.tsamp, SETUPS[name][-1]
        table = make_table(observation, dms, downsamp).table
        self.table = Table(np.ascontiguousarray(table.delays), downsamp)
        total = (self.n + table.maxshift) * downsamp
        self.cp, self.runtime, self.total, self.tsamp = cupy, CudaRuntime(device), total, tsamp
        self.source: Any = OnDevice(C, total, dtype, maximum)
        with cupy.cuda.Device(device.index):
            self.worker = cuda_worker.Worker(self.runtime, self.source, [self.table], total, 72 * 2**30)
            self.plan_seconds = 0.0
            if self.worker.plans[0] is not None:
                start = time.perf_counter()
                make_plan(self.runtime, self.table.delays, self.worker.delays[0])
                self.plan_seconds = time.perf_counter() - start
            fill(self.worker, total, maximum)
            self.planes = self.worker.store.rows(downsamp)
        self.adds = float(C) * len(self.table.delays) * self.n

    def rows_at_a_time(self) -> int:
        unit = self.worker._multiple(0)
        return max(unit, (4 << 30) // (4 * self.n) // unit * unit)

    def sums(self) -> Any:
        """(a): every series written; the last ones are returned."""
        ndm, step = len(self.table.delays), self.rows_at_a_time()
        lane, pitch = self.worker.lanes[0], -(-self.n // 32) * 32
        for m in range(0, ndm, step):
            rows = (m, min(ndm, m + step))
            with lane:
                y = lane.array("sums", (rows[1] - rows[0]) * pitch, self.worker.dtype)
                self.worker._launch(0, self.planes, 0, y, pitch, self.n, rows, lane.stream)
        return y.reshape(-1, pitch), rows[0]

    def search(self) -> Any:
        """(b): events alone."""
        block = max(1024, round(2.0 / self.tsamp))
        valid = np.full(len(self.table.delays), self.n, np.int64)
        what = Detection(block, WIDTHS, 6.5, "robust", False, valid)
        return self.worker.search(0, 0, self.n, 0, self.n, what, valid)

    def check(self) -> None:
        """Compare sums at random places with NumPy's."""
        y, m0 = self.sums()
        self.worker.store.wait()
        rng = np.random.default_rng(0)
        t = np.sort(rng.choice(self.n, 40, replace=False))
        x = self.planes.part(0).reshape(-1)
        C, stride = self.source.nchan, self.planes.stride
        c = np.arange(C)
        for m in rng.choice(len(y), 4, replace=False):
            at = c[:, None] * stride + 4 * (c[:, None] & 3) + self.table.delays[m0 + m][:, None] + t
            truth = x[self.cp.asarray(at)].get().astype(np.uint32).sum(axis=0)
            if self.planes.planes == 1 and not np.array_equal(truth, y[int(m)].get()[t]):
                raise AssertionError(f"DM {m0 + m}: wrong sums")

    def seconds(self, call: Callable[[], object], repeat: int = 5) -> float:
        """Median wall seconds of device work."""
        call()
        self.worker.store.wait()
        times = []
        for _ in range(repeat):
            start = time.perf_counter()
            call()
            self.worker.store.wait()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def close(self) -> None:
        self.worker.close()
        self.cp.get_default_memory_pool().free_all_blocks()


class Bench:
    """The sections of the benchmark; each prints its rows."""

    def __init__(self, report: Report, quick: bool) -> None:
        import cupy

        self.cp, self.report, self.shrink = cupy, report, 8 if quick else 1
        self.devices = resolve("cuda:all")
        self.device = self.devices[0]
        report.machine["gpu"] = [str(d) for d in self.devices]

    def ceiling(self) -> None:
        """Sparse products a second."""
        kernel = self.cp.RawKernel(PRODUCTS, "products")
        out = self.cp.empty(512 * self.device.sm_count, np.uint32)
        n, times = 2000, []
        for _ in range(4):
            start, end = self.cp.cuda.Event(), self.cp.cuda.Event()
            start.record()
            kernel((self.device.sm_count,), (512,), (out, np.int32(n)))
            end.record()
            end.synchronize()
            times.append(1e-3 * self.cp.cuda.get_elapsed_time(start, end))
        self.products = self.device.sm_count * 16 * 16.0 * n / min(times[1:])
        self.report.title("ceiling")
        self.report.row("sparse products", per_second=self.products, tmac_per_second=self.products * 8192e-12)

    def limit(self, case: Case) -> float:
        """T adds/s that the products of a plan allow."""
        made = case.worker.plans[0]
        if made is None:
            return float("nan")
        blocks = int(made.arrays["ranges"][-1:].get()[0])
        products = 16.0 * blocks * case.planes.planes * case.n / 256
        return case.adds / (products / self.products) / 1e12

    def setups(self) -> None:
        for name in SETUPS:
            C, M, *_ = SETUPS[name]
            case = Case(name, self.device, shrink=self.shrink)
            self.report.title(f"{name}: {C} channels x {M} DMs x {case.n} samples, 8 bit")
            case.check()
            limit = self.limit(case)
            made = case.worker.plans[0]
            facts: dict[str, Any] = {"peer": PEER[name], "limit": limit}
            plain = case.seconds(case.sums)
            for what, seconds in (
                ("(a) series written", plain),
                ("(b) boxcars, events kept", case.seconds(case.search)),
            ):
                rate = case.adds / seconds / 1e12
                self.report.row(
                    name, what=what, seconds=seconds, tadds=rate, of_limit=rate / limit, of_peer=rate / PEER[name],
                    realtime=case.n * case.tsamp / seconds, wanted=case.wanted, reached=bool(rate >= case.wanted),
                    **facts,
                )  # fmt: skip
            turned = case.seconds(lambda c=case: (self.turn(c), c.sums()))
            self.report.row(
                name, what="time-major", seconds=turned, corner_turn=turned - plain, more=turned / plain - 1,
                wanted=0.1, reached=bool(turned <= 1.1 * plain),
            )  # fmt: skip
            if made is not None:
                self.report.row(
                    name, what="plan", seconds=case.plan_seconds, megabytes=made.nbytes / 1e6, words=made.cut.words,
                    groups=len(made.cut.origins), tiles=made.cut.wd, wanted=0.3, reached=bool(case.plan_seconds < 0.3),
                )  # fmt: skip
            case.close()

    def turn(self, case: Case) -> None:
        """Transpose time-major samples on the device into rows of channels."""
        store = case.worker.store
        size = case.total * case.source.nchan
        if not hasattr(self, "_piece") or self._piece.size < size:
            self._piece = self.cp.zeros(size, np.uint8)
        inverse = store._inverse(np.arange(case.source.nchan))
        store.turn(self._piece[:size], case.total, case.source.nchan, True, inverse, 0, store.lanes[0].stream)

    def kinds(self) -> None:
        """Time other numbers of bits, binned samples, and the kernels for cards without tensor cores, on P_SUB."""
        self.report.title("other samples, P_SUB's band")
        for kind, dtype, maximum, b in (
            ("16 bit", np.uint16, 65535, 1), ("8 bit, binned by 4", np.uint8, 255, 4),
            ("4 bit, binned by 4", np.uint8, 15, 4),
        ):  # fmt: skip
            case = Case("P_SUB", self.device, dtype, maximum, b, shrink=4 * self.shrink)
            seconds = case.seconds(case.sums, 3)
            self.report.row(kind, tadds=case.adds / seconds / 1e12, seconds=seconds, planes=case.planes.planes)
            case.close()
        case = Case("P_SUB", self.device, shrink=4 * self.shrink)
        plain = case.seconds(case.sums, 3)
        for bits in (1, 2, 4):
            stride = case.source.nchan * bits // 8
            data = self.cp.zeros((case.total, stride), np.uint8)
            seconds = case.seconds(lambda d=data, k=bits, c=case: self.unpack(c, d, k), 3)
            self.report.row(
                f"{bits} bit", unpacking=seconds, tadds=case.adds / (plain + seconds) / 1e12, of_sums=seconds / plain
            )
        case.close()
        import dataclasses

        old = dataclasses.replace(self.device, compute_capability=(7, 5))
        for name in ("P_SUB", "P_BIG"):
            case = Case(name, old, shrink=4 * self.shrink)
            case.check()
            seconds = case.seconds(case.sums, 3)
            self.report.row(f"{name}, packed integers", tadds=case.adds / seconds / 1e12, seconds=seconds)
            case.close()

    def unpack(self, case: Case, data: Any, bits: int) -> None:
        store = case.worker.store
        store.unpack(Packed(data, False, bits, False), data, 0, store.lanes[0].stream)

    def two(self) -> None:
        """Time P_SUB with its DMs divided between two GPUs."""
        if len(self.devices) < 2:
            return
        self.report.title("two GPUs")
        for name in ("P_SUB", "P_BIG"):
            one, two = (self.dealt(name, devices) for devices in (self.devices[:1], self.devices[:2]))
            wanted = {"wanted": 1.9, "reached": bool(one / two >= 1.9)} if name == "P_SUB" else {}
            self.report.row(name, one=one, two=two, ratio=one / two, **wanted)

    def dealt(self, name: str, devices: Sequence[Device]) -> float:
        """Return the median wall seconds of the engine's search with boxcars and events, DMs divided among GPUs."""
        observation, dms, n = observed(name, self.shrink)
        table = make_table(observation, dms, 1).table
        total = n + table.maxshift
        source: Any = OnDevice(observation.nchan, total)
        engine = cuda.Engine(source, [table], method="brute", capacity=total, devices=devices, budget=72 * 2**30)
        for worker in engine.workers:
            with self.cp.cuda.Device(worker.runtime.device.index):
                fill(worker, total, 255)
        valid = np.full(len(dms), n, np.int64)
        what = Detection(max(1024, round(2.0 / observation.tsamp)), WIDTHS, 6.5, "robust", False, valid)
        times = []
        for _ in range(12):
            start = time.perf_counter()
            engine.search(0, 0, n, 0, n, what)
            times.append(time.perf_counter() - start)
        engine.close()
        return statistics.median(times[2:])

    def survey(self) -> None:
        """Time the search of the paper's Table 4 without cleaning, from host memory to candidates."""
        length = 60 // self.shrink
        self.report.title(f"the paper's Table 4 plan, {length} s, host to candidates")
        made = fake(duration=length, fch1=308, foff=-1 / 64, dm=60, times=[length / 3], width=5e-3, snr=15)
        fb = Filterbank.from_array(made.read(), freqs=made.freqs, tsamp=made.tsamp)
        grid = plan(fb, stages=[(0, 53.46, 0.03, 1, 0.66), (53.46, 88.26, 0.05, 2, 1.2), (88.26, 150.66, 0.1, 4, 2.4)])
        walls = []
        for _ in range(3):
            found = search(fb, grid, device="cuda", clean=False, veto=False)
            walls.append(found.seconds)
        self.report.row(
            "Table 4", first=walls[0], seconds=min(walls), tadds=found.adds / min(walls) / 1e12,
            snr=float(found.snr[0]), dm=float(found.dm[0]), wanted=1.0, reached=bool(min(walls) <= 1.0),
        )  # fmt: skip

    def cleaning(self) -> None:
        """Time searches of noise on the GPU with and without the cleaning; ``wanted`` bounds the fraction it adds."""
        seconds = 60 // self.shrink
        self.report.title(f"cleaning, {seconds} s of 1,024 channels, 256 us, 500 DMs, samples on the GPU")
        n = round(seconds / 256e-6)
        x = self.cp.empty((1024, n), np.uint8)
        rng = self.cp.random.default_rng(1)
        for c in range(0, 1024, 64):
            x[c : c + 64] = (96 + 16 * rng.standard_normal((64, n), dtype=np.float32)).clip(0, 255)
        bursts = x.copy()
        for k in range(20):  # impulses that the host examines
            bursts[:, (2 * k + 1) * n // 40 :][:, :8] += 20
        for name, samples in (("noise", x), ("20 impulses", bursts)):
            fb = Filterbank.from_array(samples, fch1=1500.0, foff=-0.25, tsamp=256e-6)
            times = []
            for clean in (False, True):
                with SearchPlan(fb, np.arange(500.0), device="cuda", clean=clean) as made:
                    times.append(min(made.execute(fb).seconds for _ in range(6)))
            part = times[1] / times[0] - 1
            self.report.row(name, plain=times[0], cleaned=times[1], part=part, wanted=0.15, reached=bool(part <= 0.15))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="an eighth of the samples")
    options = parser.parse_args()
    report = Report("dedispersion_gpu", PACKAGES, options.quick)
    bench = Bench(report, options.quick)
    bench.ceiling()
    bench.setups()
    bench.kinds()
    bench.survey()
    bench.cleaning()
    bench.two()
    report.write()
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
