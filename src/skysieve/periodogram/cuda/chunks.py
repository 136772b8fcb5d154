"""From a source and its grids to chunks (`Job`) for a GPU, and from a chunk's answers to the output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skysieve.core.arrays import array_module, is_device_array, to_host
from skysieve.periodogram.contract import METHODS, Grids, Output, Source, Spec, Status
from skysieve.periodogram.cuda.bands.layouts import layouts as bands_layouts
from skysieve.periodogram.cuda.bands.layouts import most_terms, spread_bytes
from skysieve.periodogram.cuda.fourier.layouts import FIND_SPAN, Chi2Layout, Chi2Part, parts_of
from skysieve.periodogram.cuda.fourier.layouts import choose as choose_chi2
from skysieve.periodogram.cuda.fourier.layouts import class_bounds as chi2_bounds
from skysieve.periodogram.cuda.fourier.layouts import layouts as chi2_layouts
from skysieve.periodogram.cuda.peaks.launch import PEAK_BYTES, PROBE_BYTES, tries
from skysieve.periodogram.cuda.samples.samples import one_term
from skysieve.periodogram.cuda.samples.stretches import sample_bytes
from skysieve.periodogram.cuda.sinusoid.worker import GUARD, LONG, SPREAD_CELLS
from skysieve.periodogram.numerics.nufft import M

from . import structs as cs
from .cost import Costs
from .layouts import Layout, Samples, choose_layouts, class_bounds, class_ends, layouts
from .parts import CANDIDATE_BYTES, DIRECT_SPAN, longest_first, make_part
from .structs import UNLIKE
from .worker import Job

SMALLEST_COMB = 64
"""Grids of fewer frequencies are summed directly."""
CODES = {"direct": METHODS.index("direct"), "list": METHODS.index("direct"), "comb": METHODS.index("nufft")}


@dataclass(frozen=True)
class Plan:
    """What every chunk of one `execute` shares."""

    spec: Spec
    grids: Grids
    costs: Costs
    multiprocessors: int
    shared: int
    power_start: NDArray[np.int64] | None
    matrix: bool = False
    """Has the GPU float64 matrix units worth using?"""
    home: bool = False
    """Do powers leave the GPU?"""

    def row_bytes(self) -> int:
        """Device bytes of one row of a light curve: raw, prepared, and the weights of the spreading kernel."""
        if self.spec.model is not None:
            return 24 + 24 + 8 + 24 + spread_bytes(self.spec.model)
        if self.spec.nterms != 1:
            return 24 + 24 + 8 + 16 * 8 + 4 + 32
        samples = 16 * 8 + 4 + 32 if self.matrix else 0
        return 24 + 24 + 8 + 8 + 2 * 16 * self.spec.dtype.itemsize + samples

    def object_bytes(self, nf: int, cycles: float) -> float:
        """Device bytes of one object beside its rows."""
        size, k = self.spec.dtype.itemsize, self.spec.n_peaks
        if not self.spec.sinusoid:
            number = int(choose_chi2(self.chi2_layouts, np.array([cycles]))[0])
            fit = self.chi2_layouts[number] if number >= 0 else None
            samples = 0.0
            if isinstance(fit, Chi2Layout):
                g, some = self.grids, self.some_grids()
                samples = sample_bytes(fit, g.f0[some], g.df[some], g.nf[some], g.shared) + 2.1 * nf  # doubts, tops
            terms = self.spec if self.spec.model is None else replace(self.spec, nterms=most_terms(self.spec.model))
            one, here = np.ones(1, np.int64), np.array([cycles])
            (part,), _ = parts_of(self.chi2_layouts, terms, one, here, one * nf, self.grids.shared, False)
            assert isinstance(part, Chi2Part)
            bands = 0 if self.spec.model is None else self.spec.model.n_bands
            tasks = 0 if self.grids.shared else 8 * (part.stretches + part.exact[1] + part.find[1])
            narrow = 0 if size == 8 else size
            return (
                samples + nf * (8.0 + narrow) + part.cap * CANDIDATE_BYTES[8] + 16 * part.edges + tasks + 12 * bands
                + 276.0 + 28 * k + (PEAK_BYTES + PROBE_BYTES) * tries(self.spec)
            )  # fmt: skip
        return max(self._layout_bytes(self.layout(nf, cycles, points), nf, cycles) for points in (0, LONG + 1))

    def _layout_bytes(self, layout: Layout | None, nf: int, cycles: float) -> float:
        """The same of one sinusoid by a layout."""
        size, k = self.spec.dtype.itemsize, self.spec.n_peaks
        part = make_part("comb" if layout else "direct", np.zeros(1, np.int32), np.array([nf]), True, cycles, k, layout)
        power = nf * size if self.power_start is not None or self.grids.values is not None else 0
        cells: float = part.launches * SPREAD_CELLS * 2 * size if layout is not None and layout.columns else 0
        if isinstance(layout, Samples):
            g, i = self.grids, int(np.argmax(self.grids.nf))
            cells = sample_bytes(one_term(layout), g.f0[i : i + 1], g.df[i : i + 1], g.nf[i : i + 1], True)
            cells += 0 if g.shared else 16 * layout.taps + 8 * (1 + layout.parts)
        return (
            power
            + cells
            + part.cap * CANDIDATE_BYTES[size]
            + 2 * part.edges * size
            + 264.0
            + 28 * k
            + PEAK_BYTES * tries(self.spec)
        )

    def some_grids(self) -> NDArray[np.intp]:
        """Numbers of the longest grid and of some others."""
        nf = self.grids.nf
        return np.append(np.linspace(0, len(nf) - 1, 32).astype(np.intp), np.argmax(nf))

    @property
    def chi2_layouts(self) -> tuple[Any, ...]:
        """The combs of series of several terms to choose from; none where every frequency is fitted by itself."""
        bare = self.grids.values is not None or self.spec.method == "direct"
        if self.spec.model is not None and not bare:
            return bands_layouts(self.spec.model, self.shared)
        return () if bare else chi2_layouts(self.spec.nterms, self.shared)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts to choose from; none where everything is summed directly."""
        bare = self.grids.values is not None or self.spec.method == "direct"
        return () if bare else layouts(self.spec.dtype, self.shared, self.matrix)

    def layout(self, nf: int, cycles: float, points: int = 0) -> Layout | None:
        """The comb for an object, or None where sums are direct."""
        i = int(self.choose(np.array([nf]), np.array([cycles]), np.array([points]))[0])
        return self.layouts[i] if i >= 0 else None

    def choose(
        self, nf: NDArray[np.int64], cycles: NDArray[np.float64], lengths: NDArray[np.int64] | None = None
    ) -> NDArray[np.intp]:
        """Number of the layout of each object, -1 where sums are direct; ``nf`` of length 1 when shared.

        A warp takes all points of an object for samples: those of more than `LONG` points (``lengths``) are left to
        combs whose cells are spread by a kernel of their own, where there are any for their grid.
        """
        found = self._choose(self.layouts, nf, cycles)
        if lengths is None or not (lengths > LONG).any():
            return found
        combs = tuple(a for a in self.layouts if not a.sampled)
        first = len(self.layouts) - len(combs)
        other = self._choose(combs, nf, cycles)
        apart = np.array([a.columns for a in combs] + [False])[other]
        sampled = np.array([a.sampled for a in self.layouts] + [False])[found]
        return np.where((lengths > LONG) & sampled & apart, other + first, found)

    def _choose(
        self, known: tuple[Layout, ...], nf: NDArray[np.int64], cycles: NDArray[np.float64]
    ) -> NDArray[np.intp]:
        """The same among ``known`` layouts."""
        if len(nf) > 1:
            return np.where(nf < SMALLEST_COMB, -1, choose_layouts(known, nf, cycles))
        ends = class_ends(self.layouts)
        each = choose_layouts(known, nf, ends) if nf[0] >= SMALLEST_COMB else np.full(len(ends), -1)
        return each[np.searchsorted(ends, cycles, side="left")]

    def few(self, nf: NDArray[np.int64], layout: NDArray[np.intp]) -> NDArray[np.int64]:
        """Most points of objects summed directly though a comb serves them; 0 unless the method is "auto"."""
        if self.spec.method != "auto" or not self.layouts:
            return np.zeros(len(layout), np.int64)
        size = self.spec.dtype.itemsize
        few = [GUARD["samples" if a.sampled else "comb", size][1] for a in self.layouts]
        inexact = np.array(few)[layout]  # the comb would take every power again
        most = np.stack([self.costs.few(a, nf) for a in self.layouts])  # [layout, grid]
        chosen = most[layout, 0 if len(nf) == 1 else np.arange(len(layout))]
        return np.where(layout >= 0, np.maximum(chosen, inexact), 0)


@dataclass(frozen=True)
class Chunk:
    """Objects ``start:stop``; ``known``: the output holds their first times, spans and numbers of points."""

    start: int
    stop: int
    known: bool = False


def gather(objects: list[int]) -> list[Chunk]:
    """Chunks of what is known now that cover these objects of one chunk: neighbours together, others left out."""
    numbers = np.unique(objects)
    cuts = np.flatnonzero(np.diff(numbers) > 8) + 1
    return [Chunk(int(p[0]), int(p[-1]) + 1, True) for p in np.split(numbers, cuts)]


def cycles_of(t: Any, offsets: NDArray[np.int64], df: NDArray[np.float64]) -> NDArray[np.float64]:
    """``df * span`` of each object from its first and last row (exact for sorted, clean rows); 0 where unusable."""
    lo, hi = offsets[:-1], offsets[1:] - 1
    if len(t) and not (hi < lo).any():
        if isinstance(t, np.ndarray):
            return bounded_cycles(t[lo], t[hi], df)
        ends = to_host(t[array_module(t).asarray(np.concatenate([lo, hi]))])
        return bounded_cycles(ends[: len(lo)], ends[len(lo) :], df)
    cycles = np.zeros(len(lo))
    filled = np.flatnonzero(hi >= lo)
    if len(filled):
        some = np.append(lo[filled], offsets[-1])  # empty objects lie between: their neighbours' rows touch
        cycles[filled] = cycles_of(t, some, df if len(df) == 1 else df[filled])
    return cycles


def bounded_cycles(
    first: NDArray[np.float64], last: NDArray[np.float64], df: NDArray[np.float64]
) -> NDArray[np.float64]:
    """``df`` times the span and two units in the last place: the origin of times may lie one before the first.

    Bit for bit what ``ls_prepare`` computes; 0 where it is not finite.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        cycles = df * ((last - first) + 2 * np.spacing(np.maximum(np.abs(first), np.abs(last))))
        return np.where((cycles > 0) & (cycles < np.inf), cycles, 0.0)


def _same_grids(a: Grids, b: Grids) -> bool:
    """Surely the same frequencies? Told without comparing long arrays."""
    return a is b or (a.shared and b.shared and a.values is None and b.values is None and a.of(0) == b.of(0))


def same_cuts(a: NDArray[np.int64], b: NDArray[np.int64]) -> bool:
    """Are rows cut alike?  (`numpy.array_equal` takes twice as long.)"""
    return len(a) == len(b) and bool((a == b).all())


class JobCache:
    """Chunks of the last `execute` and of this one, so that rows cut alike need not be dealt and launched anew."""

    def __init__(self) -> None:
        self._grids: Grids | None = None
        self._start: NDArray[np.int64] | None = None
        self._jobs: dict[tuple[int, ...], Job] = {}
        self._cut: tuple[NDArray[np.int64], list[tuple[int, int]]] | None = None
        self._there = False

    def cut(
        self, offsets: NDArray[np.int64], there: bool, cutter: Callable[[], list[tuple[int, int]]]
    ) -> list[tuple[int, int]]:
        """The chunks of rows cut as ``offsets`` say; those of the last time when the rows are cut alike.

        ``there``: they are on the GPU, and nothing leaves it.
        """
        if self._cut is None or self._there != there or not same_cuts(self._cut[0], offsets):
            self._cut, self._there = (offsets.copy(), cutter()), there
        return self._cut[1]

    def renew(self, plan: Plan) -> None:
        """Forget everything unless ``plan`` has the grids of the last one and wants powers alike."""
        old, new = self._grids, plan.grids
        same = old is not None and (self._start is None) == (plan.power_start is None) and _same_grids(old, new)
        if not same:
            self._jobs.clear()
            self._cut = None
        self._grids, self._start = new, plan.power_start

    @staticmethod
    def _key(plan: Plan, chunk: Chunk, rows: int, device_power: bool) -> tuple[int, ...]:
        """Chunks of one key share a job if their rows are cut alike; powers on the device have places of their own."""
        if plan.grids.shared and not device_power:
            return (chunk.stop - chunk.start, rows)
        return (chunk.start, chunk.stop, rows)

    def get(
        self, plan: Plan, chunk: Chunk, t: Any, y: Any, dy: Any, offsets: NDArray[np.int64], device_power: Any
    ) -> Job | None:
        """A job with new values, if one with rows cut in this way is known.

        Whether the spans are what its parts were made for is seen on the device.
        """
        job = self._jobs.get(self._key(plan, chunk, len(t), device_power is not None))
        if job is None or (job.dy is None) != (dy is None) or not same_cuts(job.offsets, offsets):
            return None
        return job.like(
            t=t, y=y, dy=dy, objects=slice(chunk.start, chunk.stop), device_power=device_power, results={},
            host_power=None, copies=None, signature=None, host_rows=None,
        )  # fmt: skip

    def drop(self, plan: Plan, chunk: Chunk, rows: int) -> None:
        """Forget the jobs of a chunk whose light curves are not what they were made for."""
        for device_power in (False, True):
            self._jobs.pop(self._key(plan, chunk, rows, device_power), None)

    def put(self, plan: Plan, chunk: Chunk, job: Job) -> None:
        if len(self._jobs) >= 16:
            self._jobs.clear()
        light = np.zeros(0)
        self._jobs[self._key(plan, chunk, job.n_rows, job.device_power is not None)] = replace(
            job, t=light, y=light, dy=None if job.dy is None else light, results={}, device_power=None
        )


def make_job(
    plan: Plan,
    source: Source,
    chunk: Chunk,
    output: Output,
    *,
    all_candidates: bool = False,
    cache: JobCache | None = None,
) -> Job:
    """What a GPU is given for a chunk."""
    job = _plain_job(plan, source, chunk, output, all_candidates, cache)
    if plan.spec.model is not None:
        banded: Any = source
        job.code = banded.bands(chunk.start, chunk.stop).astype(np.int32)
    return job


def _plain_job(
    plan: Plan, source: Source, chunk: Chunk, output: Output, all_candidates: bool, cache: JobCache | None
) -> Job:
    """The same without the bands of the rows."""
    start, stop = chunk.start, chunk.stop
    t, y, dy, offsets = source.read(start, stop)
    objects = slice(start, stop)
    df = plan.grids.df if plan.grids.shared else plan.grids.df[objects]
    if chunk.known:
        first, lengths = output.t_min[objects], output.n_used[objects]
        cycles = bounded_cycles(first, first + output.span[objects], df)
        return job_of(plan, t, y, dy, offsets, objects, output, cycles, lengths, all_candidates)
    device_power = output.power if is_device_array(output.power) else None
    job = cache.get(plan, chunk, t, y, dy, offsets, device_power) if cache is not None else None
    if job is None:
        cycles, lengths = cycles_of(t, offsets, df), np.diff(offsets)
        job = job_of(plan, t, y, dy, offsets, objects, output, cycles, lengths, all_candidates)
        if cache is not None:
            cache.put(plan, chunk, job)
    return job


def job_of(
    plan: Plan,
    t: Any,
    y: Any,
    dy: Any,
    offsets: NDArray[np.int64],
    objects: slice,
    output: Output,
    cycles: NDArray[np.float64],
    lengths: NDArray[np.int64],
    all_candidates: bool = False,
) -> Job:
    """The chunk of the given rows; ``objects`` are the output's; ``cycles``, ``lengths``: what is known of each."""
    grids, spec = plan.grids, plan.spec
    nf = grids.nf if grids.shared else grids.nf[objects]
    n, k = len(offsets) - 1, spec.n_peaks
    if not spec.sinusoid:
        limits = np.zeros(n, cs.LIMIT)
        limits["least"], limits["most"] = chi2_bounds(plan.chi2_layouts, cycles)
        limits["many"] = np.iinfo(np.int32).max
        terms = spec if spec.model is None else replace(spec, nterms=most_terms(spec.model))
        parts, limits["circle"] = parts_of(plan.chi2_layouts, terms, lengths, cycles, nf, grids.shared, all_candidates)
        limits["stretch"] = FIND_SPAN
        return _assembled(plan, output, (t, y, dy, offsets), objects, parts, limits)
    layout = plan.choose(nf, cycles, lengths)
    few = plan.few(nf, layout)
    direct = lengths <= few
    limits = np.zeros(n, cs.LIMIT)
    limits["least"], limits["most"] = class_bounds(plan.layouts, cycles)
    limits["few"], limits["many"] = np.where(direct, 0, few + 1), np.where(direct, few, np.iinfo(np.int32).max)
    # another number of points may want another layout
    swapped = (lengths > LONG) & (layout != plan.choose(nf, cycles))
    limits["few"][swapped] = np.maximum(limits["few"][swapped], LONG + 1)
    limits["many"][(lengths <= LONG) & (layout != plan.choose(nf, cycles, np.full(n, LONG + 1))) & ~direct] = LONG
    layout = np.where(direct, -1, layout)
    parts = []
    for i in np.unique(layout):
        chosen = np.flatnonzero(layout == i)
        comb = plan.layouts[i] if i >= 0 else None
        if comb is not None:
            limits["circle"][chosen], limits["window"][chosen] = M * comb.combs, comb.window
        elif grids.values is None:
            limits["stretch"][chosen] = DIRECT_SPAN
        kind = "comb" if comb is not None else "direct" if grids.values is None else "list"
        long = bool(lengths[chosen].max() > LONG)
        parts.append(
            make_part(
                kind, longest_first(lengths, chosen), nf, grids.shared, float(cycles[chosen].max()), k, comb,
                all_candidates, plan.multiprocessors, long,
            )
        )  # fmt: skip
        if comb is not None:
            limits["stretch"][chosen] = comb.stretch(parts[-1].per_block)
    return _assembled(plan, output, (t, y, dy, offsets), objects, parts, limits)


def _assembled(
    plan: Plan, output: Output, rows: tuple[Any, Any, Any, Any], objects: slice, parts: list[Any], limits: NDArray[Any]
) -> Job:
    """The job of these parts, with the method of each object, and with the places of its powers, where there are any:
    in its own buffer, or in the user's device array."""
    grids, codes = plan.grids, np.zeros(len(limits), np.uint8)
    own = slice(None) if grids.shared else objects
    for part in parts:
        codes[part.order] = CODES[part.kind]
    job = Job(
        *rows, objects, grids.f0[own], grids.df[own], grids.nf[own], grids.shared, parts, limits,
        max(part.cap for part in parts), max(part.edges for part in parts), codes, grids.values,
    )  # fmt: skip
    if plan.power_start is not None or plan.grids.values is not None or not plan.spec.sinusoid:
        sizes = np.broadcast_to(job.nf, (job.n_objects,))
        job.start = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
        job.n_powers = int(job.start[-1])
    if plan.power_start is not None and is_device_array(output.power):
        assert job.start is not None
        job.device_power, job.start = output.power, job.start + plan.power_start[job.objects.start]
    return job


@dataclass
class Again:
    """Objects to take again: unlike what their first and last rows told, or with more candidates than room."""

    unlike: list[int]
    overflow: list[int]


def deliver(job: Job, plan: Plan, output: Output, again: Again) -> None:
    """Write a finished chunk's answers, but for the powers, and note what has to be done again."""
    info, objects = job.results["told"], job.objects
    status, method = info["status"], job.codes
    index = job.results["index"].reshape(-1, plan.spec.n_peaks)
    over, none = job.results["flags"] != 0, index[:, 0] < 0
    if status.any() or none.any() or over.any():
        beyond = status == UNLIKE
        again.unlike += (objects.start + np.flatnonzero(beyond)).tolist()
        again.overflow += (objects.start + np.flatnonzero(over & ~beyond)).tolist()
        status = np.where(beyond, Status.FAILED, np.where((status == 0) & none, Status.SINGULAR, status))
        method = np.where(status == Status.OK, method, 0)
    output.status[objects] = status
    output.method[objects] = method
    output.n_used[objects] = info["n"]
    output.n_dropped[objects] = info["dropped"]
    output.t_min[objects] = info["t_min"]
    output.span[objects] = info["span"]
    output.peak_index[objects] = index
    output.peak_frequency[objects] = job.results["frequency"].reshape(index.shape)
    output.peak_power[objects] = job.results["best"].reshape(index.shape)
    output.peak_curvature[objects] = job.results["curvature"].reshape(index.shape)
    output.mean_square[objects] = info["mean_square"]
    output.weight[objects] = info["weight"]
