"""From a source and its grids to chunks (`Job`) for a GPU, and from a chunk's answers to the output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skysieve.core.arrays import is_device_array, to_host
from skysieve.periodogram.cuda_cost import Costs
from skysieve.periodogram.cuda_parts import CANDIDATE_BYTES, Part, edge_bytes, longest_first, make_part
from skysieve.periodogram.cuda_structs import RESPAN
from skysieve.periodogram.cuda_tables import Layout, choose_layout
from skysieve.periodogram.cuda_worker import Job
from skysieve.periodogram.workload import METHODS, Grids, Output, Source, Spec, Status

SMALLEST_COMB = 64
"""Grids of fewer frequencies are summed directly."""
CODES = {"direct": METHODS.index("direct"), "list": METHODS.index("direct"), "comb": METHODS.index("nufft")}


@dataclass(frozen=True)
class Plan:
    """What every chunk of one `execute` shares."""

    spec: Spec
    grids: Grids
    costs: Costs
    wave: int
    shared: int
    power_start: NDArray[np.int64] | None

    def row_bytes(self) -> int:
        """Device bytes of one row of a light curve: raw, prepared, and the weights of the spreading kernel."""
        return 24 + 24 + 8 + 8 + 2 * 16 * self.spec.dtype.itemsize

    def object_bytes(self, nf: int, cycles: float) -> float:
        """Device bytes of one object beside its rows."""
        size, k = self.spec.dtype.itemsize, self.spec.n_peaks
        layout = self.layout(nf, cycles, 1000)
        part = make_part("comb" if layout else "direct", np.zeros(1, np.int32), np.array([nf]), True, cycles, k, layout)
        power = nf * size if self.power_start is not None or self.grids.values is not None else 0
        return power + part.cap * CANDIDATE_BYTES[size] + edge_bytes(part, 1, size) + 200.0 + 20 * k

    def layout(self, nf: int, cycles: float, objects: int) -> Layout | None:
        """The comb for a chunk, or None where sums are direct."""
        if self.grids.values is not None or self.spec.method == "direct" or nf < SMALLEST_COMB or not cycles > 0:
            return None
        return choose_layout(nf, cycles, self.spec.dtype, objects, self.wave, self.shared)


def largest_cycles(t: Any, offsets: NDArray[np.int64], df: NDArray[np.float64]) -> float:
    """Largest ``df * span`` of a chunk, from the first and last time of each object (exact for sorted, clean rows)."""
    lo, hi = offsets[:-1], offsets[1:] - 1
    filled = hi > lo
    if not filled.any():
        return 0.0
    if not filled.all():
        lo, hi = lo[filled], hi[filled]
        df = df[filled] if len(df) > 1 else df
    span = to_host(t[hi] - t[lo]) if isinstance(t, np.ndarray) else _device_span(t, lo, hi)
    cycles = np.abs(span) * df
    cycles = cycles[np.isfinite(cycles)]
    return float(cycles.max()) if len(cycles) else 0.0


def _device_span(t: Any, lo: NDArray[np.int64], hi: NDArray[np.int64]) -> NDArray[np.float64]:
    from skysieve.core.arrays import array_module

    xp = array_module(t)
    ends = to_host(t[xp.asarray(np.concatenate([lo, hi]))])
    return ends[len(lo) :] - ends[: len(lo)]


def _same_grids(a: Grids, b: Grids) -> bool:
    """Surely the same frequencies? Told without comparing long arrays."""
    return a is b or (a.shared and b.shared and a.values is None and b.values is None and a.of(0) == b.of(0))


class JobCache:
    """Chunks of the last `execute`, so that a plan run again on like light curves need not cut and launch anew."""

    def __init__(self) -> None:
        self._grids: Grids | None = None
        self._start: NDArray[np.int64] | None = None
        self._jobs: dict[tuple[int, int], Job] = {}
        self._cut: tuple[NDArray[np.int64], list[tuple[int, int]]] | None = None

    def cut(self, offsets: NDArray[np.int64], cutter: Callable[[], list[tuple[int, int]]]) -> list[tuple[int, int]]:
        """The chunks of rows cut as ``offsets`` say; those of the last time when the rows are cut alike."""
        if self._cut is None or not np.array_equal(self._cut[0], offsets):
            self._cut = (offsets.copy(), cutter())
        return self._cut[1]

    def renew(self, plan: Plan) -> None:
        """Forget everything unless ``plan`` has the grids of the last one and wants powers alike."""
        old, new = self._grids, plan.grids
        same = old is not None and (self._start is None) == (plan.power_start is None) and _same_grids(old, new)
        if not same:
            self._jobs.clear()
            self._cut = None
        self._grids, self._start = new, plan.power_start

    def get(self, start: int, stop: int, t: Any, y: Any, dy: Any, offsets: NDArray[np.int64], df: Any) -> Job | None:
        """The chunk's job with new values, if its rows are cut as before and its parts still serve."""
        job = self._jobs.get((start, stop))
        if job is None or (job.dy is None) != (dy is None) or not np.array_equal(job.offsets, offsets):
            return None
        if is_device_array(t):  # the span is checked on the device; asking costs more than it can save
            return replace(job, t=t, y=y, dy=dy, results={}, host_power=None, copies=None)
        if not job.serves(largest_cycles(t, offsets, df)):
            return None
        return replace(job, t=t, y=y, dy=dy, results={}, host_power=None, copies=None)

    def put(self, start: int, stop: int, job: Job) -> None:
        if len(self._jobs) >= 16:
            self._jobs.clear()
        light = np.zeros(0)
        self._jobs[start, stop] = replace(job, t=light, y=light, dy=None if job.dy is None else light, results={})


def make_job(
    plan: Plan,
    source: Source,
    start: int,
    stop: int,
    output: Output,
    *,
    cycles: float | None = None,
    all_candidates: bool = False,
    cache: JobCache | None = None,
) -> Job:
    """The chunk of objects ``start:stop``; ``cycles`` when the caller knows better than the first and last times."""
    t, y, dy, offsets = source.read(start, stop)
    objects = slice(start, stop)
    if cache is not None:
        df = plan.grids.df if plan.grids.shared else plan.grids.df[objects]
        job = cache.get(start, stop, t, y, dy, offsets, df)
        if job is not None:
            job.device_power = output.power if is_device_array(output.power) else None
            return job
    job = job_of(plan, t, y, dy, offsets, objects, output, cycles=cycles, all_candidates=all_candidates)
    if cache is not None:
        cache.put(start, stop, job)
    return job


def job_of(
    plan: Plan,
    t: Any,
    y: Any,
    dy: Any,
    offsets: NDArray[np.int64],
    objects: Any,
    output: Output,
    *,
    cycles: float | None = None,
    all_candidates: bool = False,
) -> Job:
    """The chunk of the given rows; ``objects`` (a slice or numbers) are the output's rows."""
    grids, spec = plan.grids, plan.spec
    own = slice(None) if grids.shared else objects
    f0, df, nf = grids.f0[own], grids.df[own], grids.nf[own]
    n = len(offsets) - 1
    lengths = np.diff(offsets)
    cycles = largest_cycles(t, offsets, df) if cycles is None else cycles
    k = spec.n_peaks

    def part(kind: str, order: NDArray[np.int32], layout: Layout | None = None) -> Part:
        return make_part(kind, order, nf, grids.shared, cycles, k, layout, all_candidates)

    layout = plan.layout(int(nf.max()), cycles, n)
    if grids.values is not None:
        parts = [part("list", longest_first(lengths))]
    elif layout is None:
        parts = [part("direct", longest_first(lengths))]
    elif spec.method == "auto":
        few = plan.costs.few(layout, int(nf.max()), lengths)
        split = bool(few.any())
        parts = [part("comb", longest_first(lengths, ~few if split else None), layout)]
        if split:
            parts.append(part("direct", longest_first(lengths, few)))
    else:
        parts = [part("comb", longest_first(lengths), layout)]
    parts = [p for p in parts if len(p.order)]
    job = Job(t, y, dy, offsets, objects, f0, df, nf, grids.shared, parts, grids.values, cycles=cycles)
    if plan.power_start is not None or grids.values is not None:
        sizes = np.broadcast_to(nf, (n,))
        job.start = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
        job.n_powers = int(job.start[-1])
    if plan.power_start is not None and is_device_array(output.power) and isinstance(objects, slice):
        assert job.start is not None
        job.device_power, job.start = output.power, job.start + plan.power_start[objects.start]
    return job


@dataclass
class Again:
    """Objects to take again: of a span beyond the chunk's tables, or with more candidates than room."""

    respan: list[int]
    overflow: list[int]
    cycles: float = 0.0


def deliver(job: Job, plan: Plan, output: Output, again: Again) -> None:
    """Write a finished chunk's answers, but for the powers, and note what has to be done again."""
    info, objects = job.results["info"], job.objects
    status = info["status"]
    k = plan.spec.n_peaks
    numbers = np.arange(objects.start, objects.stop) if isinstance(objects, slice) else objects
    over, beyond = job.results["flags"] != 0, status == RESPAN
    if beyond.any():
        df = np.broadcast_to(job.df, status.shape)
        again.cycles = max(again.cycles, float((info["span"] * df)[beyond].max()))
        again.respan += numbers[beyond].tolist()
    if over.any():
        again.overflow += numbers[over & ~beyond].tolist()
    output.status[objects] = np.where(beyond, Status.FAILED, status)
    output.n_used[objects] = info["n"]
    output.n_dropped[objects] = info["dropped"]
    output.t_min[objects] = info["t_min"]
    output.span[objects] = info["span"]
    output.peak_index[objects] = job.results["index"].reshape(-1, k)
    output.peak_frequency[objects] = job.results["frequency"].reshape(-1, k)
    output.peak_power[objects] = job.results["best"].reshape(-1, k)
    method = np.zeros(len(status), np.uint8)
    for part in job.parts:
        method[part.order] = CODES[part.kind]
    method[status != Status.OK] = 0
    output.method[objects] = method
