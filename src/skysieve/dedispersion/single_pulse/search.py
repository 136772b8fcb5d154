"""`search` and `SearchPlan`: the search for single pulses, from data and DMs to candidates.

Data are read in chunks of whole noise blocks; blocks are anchored at sample 0.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.core.checks import one_of
from skysieve.core.errors import MemoryBudgetError
from skysieve.core.machine import rates
from skysieve.core.memory import available_host_memory, parse_budget
from skysieve.core.progress import Reporter, reporting
from skysieve.core.tasks import usable_cores
from skysieve.dedispersion.clean.blocks.cleaner import FEW, Cleaner, can_clean
from skysieve.dedispersion.clean.blocks.reader import CleanReader
from skysieve.dedispersion.clean.blocks.scratch import SpareScratch
from skysieve.dedispersion.clean.blocks.steps import Clean, cleaning_steps
from skysieve.dedispersion.clean.dropouts import NO_RECTANGLES, Suspicious, Watch
from skysieve.dedispersion.clean.masks import Cleaned, Mask, NotFinite, check_mask
from skysieve.dedispersion.clean.missing import FilledReader, Losses, kept_events
from skysieve.dedispersion.clean.repair import dropped_in, full, repaired, split_mask
from skysieve.dedispersion.contract import (
    BLOCK_SECONDS,
    CONTEXT,
    DETECTORS,
    DIP,
    EXCESS,
    METHODS,
    MOST_WIDTH,
    NOISE,
    THRESHOLD,
    Detection,
    Detector,
    Engine,
    Method,
    Noise,
    Room,
    Table,
    block_parts,
    check_events,
)
from skysieve.dedispersion.data.delays import Reference, delay_seconds, reference_frequency
from skysieve.dedispersion.data.filterbank import Filterbank, Paths, opened
from skysieve.dedispersion.data.observation import Observation, in_unit
from skysieve.dedispersion.dispatch import (
    EnginePlan,
    Kind,
    Target,
    device_for,
    engine_that_fits,
    find_target,
    make_engine,
    with_cached_plan,
)
from skysieve.dedispersion.dm_plan.arguments import Stages, check_binning, stages_of, tabled
from skysieve.dedispersion.dm_plan.delay_tables import Tabled
from skysieve.dedispersion.dm_plan.plan import DMPlan, check_series

from .candidates import Candidates, Events, columns_of, event_order, events_at
from .grouping import Response, compile_beside
from .vetting import Memory, Vetting, gone_in

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from skysieve.core.device import Device
    from skysieve.core.gpu.runtime import Runtime

    from .cuda.launch import DeviceSums

__all__ = ["WIDTHS", "SearchPlan", "search"]

R = TypeVar("R")

WIDTHS = (
    1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 22, 27, 33, 40, 48, 58, 70, 84, 101, 122, 147, 177, 213, 256, 308,
)  # fmt: skip
"""Boxcar widths in binned samples.  From 5 on each is at most 1.21 times the one before, so that a top-hat pulse of any
width loses at most 5% of its S/N."""
LEAST_BLOCK = 1024
"""Fewest samples of a noise block: quartiles of fewer are uncertain."""
MANY = 2**24
"""From this number of samples in all series on, many events are expected, and compiled code groups them."""
EVENT_BYTES = 320
"""Bytes of memory that each event takes while events are grouped into candidates."""


@dataclass(frozen=True)
class Job:
    """A search whose arguments are checked and whose delays are known; used for files and for streams.

    Attributes
    ----------
    stages : list of (DMs, binning, subbands, DMs that share subbands)
    made : list of Tabled
        Delays of each stage.
    dm_constant, threshold, excess, dip, tsamp : float
    boxes : tuple of int
        Widths of the boxcars, binned samples.
    noise : str
    every : bool
        See `contract.Detection`.
    length : int
        Samples of a noise block, not binned.
    baseline : bool
        Whether the level of a block is taken from the running baseline.
    """

    stages: Stages
    made: list[Tabled]
    dm_constant: float
    threshold: float
    boxes: tuple[int, ...]
    noise: str
    every: bool
    excess: float
    dip: float
    length: int
    tsamp: float
    baseline: bool

    @property
    def context(self) -> int:
        """Number of unbinned samples before and after a range on which the events of the range depend."""
        return self.length * (CONTEXT if self.baseline else 1)

    @property
    def overlap(self) -> int:
        """Samples, not binned, by which the highest DM reaches beyond a block."""
        return max(t.table.maxshift * t.table.downsamp for t in self.made)

    @cached_property
    def dms(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """All DMs, rising, and the index in them of each DM of the stages."""
        return np.unique(np.concatenate([dms for dms, *_ in self.stages]), return_inverse=True)

    @property
    def how(self) -> str:
        """Method of the engine, unless "brute" is asked for."""
        return "tree" if all(t.method == "tree" for t in self.made) else "exact-subband"

    def detections(self, nsamp: int) -> list[Detection]:
        """The `Detection` of each table, for data of ``nsamp`` samples."""
        found = []
        parts = block_parts(self.length, self.tsamp) if self.baseline else 0
        for t in self.made:
            table = t.table
            valid = nsamp // table.downsamp - table.delays.max(axis=1).astype(np.int64)
            block = self.length // table.downsamp
            found.append(
                Detection(block, self.boxes, self.threshold, self.noise, self.every, valid, parts=parts, dip=self.dip)
            )
        return found

    def response(self, obs: Observation) -> Response:
        """The `Response` by which the events are grouped."""
        dms, rank = self.dms
        widest = np.zeros(len(dms))
        binnings = np.concatenate([np.full(len(dms), binning) for dms, binning, *_ in self.stages])
        np.maximum.at(widest, rank, binnings * self.boxes[-1] * self.tsamp)
        return Response.of(
            obs, dms, obs.top, self.dm_constant, widest, self.boxes[-1], self.threshold, self.excess, self.every
        )

    def look(
        self, engine: Engine, looked: list[Detection], low: int, step: int, nsamp: int,
        report: Callable[[int], object] | None = None, begin: int = 0,
    ) -> list[NDArray[np.float64]]:  # fmt: skip
        """Events of each table that are centred on samples ``low : low + step`` of ``nsamp``; ``low`` begins a block.

        The engine loads these samples, the `context` before and after them, and the delay of the highest DM, but no
        sample before ``begin``.  After each table ``report`` is called with the number of its DMs.
        """
        first = max(begin, low - self.context)
        stop = min(nsamp, low + step + self.context)
        engine.load(first, min(nsamp, stop + self.overlap))
        parts = []
        for i, (t, what) in enumerate(zip(self.made, looked, strict=True)):
            b = t.table.downsamp
            count = stop // b - first // b
            high = min(low + step, nsamp) // b
            some = count > 0 and high > low // b
            parts.append(engine.search(i, first // b, count, low // b, high, what) if some else np.empty((0, 4)))
            if report is not None:
                report(len(t.table.delays))
        return parts

    def events(self, raw: list[NDArray[np.float64]], obs: Observation) -> tuple[Events, NDArray[np.float64]]:
        """The events of all tables with their DMs, times at the top of the band and widths; and all DMs, rising."""
        base = obs.dm or 0.0
        dms_all, rank = self.dms
        offset = 0
        parts: list[tuple[NDArray[Any], ...]] = []
        width_of = np.array(self.boxes, np.int64)
        for (dms, binning, _, _), tab, rows in zip(self.stages, self.made, raw, strict=True):
            m = rows[:, 0].astype(np.int64)
            w = width_of[rows[:, 2].astype(np.int64)]
            first = rows[:, 1].astype(np.int64) - w // 2 + tab.start
            tsamp = self.tsamp * binning
            parts.append((
                rank[offset + m], dms[m] + base, rows[:, 3].astype(np.float32), (first + w / 2) * tsamp, w * tsamp,
                first * binning, w, np.full(len(m), binning, np.int64),
            ))  # fmt: skip
            offset += len(dms)
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        order = event_order(*(columns[i] for i in (0, 5, 6, 7)))
        return Events(*(c[order] for c in columns)), dms_all + base


def prepare(
    fb: Filterbank, dms: DMPlan | Any, *, widths: Sequence[int] | None, threshold: float, noise: str, detector: str,
    buffer: int | None, block: float | None, excess: float, dip: float, method: str, max_loss: float,
    dm_constant: float | None, usual_block: float = BLOCK_SECONDS, baseline: bool = True,
    max_width: float | None = None,
) -> Job:  # fmt: skip
    """Check the arguments of `search` and make the tables of delays; no data are read.

    A ``block`` that is too short is refused.  If it is None, the block lasts ``usual_block`` seconds, or longer if it
    has to.
    """
    block, max_width = in_unit("block", block, "s"), in_unit("max_width", max_width, "s")
    stages, constant = stages_of(fb, dms, dm_constant)
    check_series(fb.observation, np.concatenate([listed for listed, *_ in stages]))
    one_of("method", method, METHODS)
    if max_width is not None and detector == "boxcar":
        widths = boxcars(fb, max_width, widths, min(binning for _, binning, _, _ in stages))
    boxes, kind = _check(widths, threshold, noise, detector, excess, dip)
    common = math.lcm(*(binning for _, binning, _, _ in stages))
    length = _block_length(fb, block, buffer, detector, common, boxes, max(b for _, b, _, _ in stages),
                           usual_block)  # fmt: skip
    made = []
    for listed, binning, nsub, call in stages:
        check_binning(fb, binning)
        made.append(tabled(fb, listed, binning, method, max_loss, None, nsub, call, "top", constant))
    return Job(
        stages, made, constant, float(threshold), boxes, kind, DETECTORS[detector].every, float(excess), float(dip),
        length, fb.tsamp, bool(baseline) and detector == "boxcar",
    )  # fmt: skip


class SearchPlan(EnginePlan):
    """A search of many data of one kind: delays, engine and memory are set up once.

    Parameters
    ----------
    data : Filterbank, path or sequence of paths
        Data with the channels, the sampling time and the type of samples of all data that `execute` will get.
        Give a path if the plan is to be pickled: open files cannot be.
    dms, widths, max_width, threshold, noise, detector, buffer, block, baseline, excess, dip, method, max_loss, \
    ref_freq, dm_constant
        As for `search`.
    clean, veto, device, memory, threads
        As for `search`.

    Raises
    ------
    ValueError, TypeError, MemoryBudgetError
        As `search`.

    Examples
    --------
    >>> import numpy as np
    >>> from skysieve.dedispersion import fake
    >>> band = {"nchan": 64, "duration": 4, "tsamp": 1e-3, "fch1": 1500, "foff": -4}
    >>> nights = [fake(times=[t], dm=200, width=4e-3, snr=20, seed=1, **band) for t in (1.5, 2.5)]
    >>> with SearchPlan(nights[0], np.arange(100, 300, 4), threads=1) as plan:
    ...     [len(plan.execute(night)) for night in nights]
    [1, 1]
    """

    def __init__(
        self,
        data: Filterbank | Paths,
        dms: ArrayLike | DMPlan,
        *,
        widths: Sequence[int] | None = None,
        max_width: float | None = None,
        threshold: float = THRESHOLD,
        noise: Noise = "robust",
        detector: Detector = "boxcar",
        buffer: int | None = None,
        block: float | None = None,
        baseline: bool = True,
        excess: float = EXCESS,
        dip: float = DIP,
        method: Method = "auto",
        max_loss: float = 0.0,
        ref_freq: Reference | float = "top",
        dm_constant: float | None = None,
        clean: Clean = None,
        veto: bool | None = None,
        device: str = "auto",
        memory: str | float | None = None,
        threads: int | None = None,
    ) -> None:
        super().__init__()
        self._device_sums: DeviceSums | None = None
        self._scratch = SpareScratch()
        cleaning_steps(clean)  # a mistake is an error before the work
        with opened(data) as fb:
            self._job = job = prepare(
                fb, dms, widths=widths, threshold=threshold, noise=noise, detector=detector, buffer=buffer, block=block,
                excess=excess, dip=dip, method=method, max_loss=max_loss, dm_constant=dm_constant, baseline=baseline,
                max_width=max_width,
            )  # fmt: skip
            self._detector, self._threads = detector, threads
            self._ref_freq = reference_frequency(fb.freqs, ref_freq)
            self._most = parse_budget(memory, available_host_memory()) // EVENT_BYTES
            self._looked(fb)
            self._kind, self._nsamp = Kind.of(fb), fb.nsamp
            self._target = find_target(device_for(fb, device), memory)
            self._steps = cleaning_steps(clean)
            self._veto = bool(self._steps if veto is None else veto) and detector == "boxcar"
            workers = usable_cores() if threads is None else max(1, threads)
            tables = [t.table for t in job.made]
            many = fb.nsamp * sum(len(table.delays) for table in tables) >= MANY
            if many and self._target.gpu:  # a thread loads numba while this one compiles the kernels of the GPU
                threading.Thread(target=_compile_beside_gpu, args=(self._steps,), name="skysieve-compile").start()
            cleaner = self._cleaner(fb, ())
            if self._target.gpu:
                source = Cleaned(fb, None, job.length, kernels=_more_kernels(fb.dtype, cleaner.steps, self._veto))
            else:
                source = Cleaned(self._cleaned(fb, cleaner, 0, None), None, job.length)
            step = _chunk_blocks(source, tables, job, self._target, workers, cleaner) * job.length

            def make(step: int) -> Engine:
                capacity = step + 2 * job.context + job.overlap + _beyond(cleaner, self._target)
                how = "brute" if method == "brute" else job.how
                return make_engine(
                    source, tables, method=how, device=self._target, capacity=capacity, threads=threads, search=True
                )

            self._engine, self._step = engine_that_fits(make, step, job.length, job.length, self._target)
            if many and not self._target.gpu:
                compile_beside(fb.dtype)

    def execute(
        self,
        data: Filterbank | Paths,
        *,
        mask: Mask | None = None,
        losses: Losses | None = None,
        progress: bool | Callable[[int, int], None] = False,
    ) -> Candidates:
        """Search data.

        Parameters
        ----------
        data : Filterbank, path or sequence of paths
            Data of the kind that the plan was made for, of any length.
        mask, losses, progress
            As for `search`.

        Returns
        -------
        Candidates
        """
        began = time.perf_counter()
        with self._lock, opened(data) as fb:
            self._open_engine()
            self._kind.check(fb, self._target)
            _check_given(fb, mask, losses)
            found = self._execute(fb, mask, losses, progress)
        return replace(found, seconds=time.perf_counter() - began)

    def _looked(self, fb: Filterbank) -> list[Detection]:
        """The `Detection` of each table for some data; an error if the delay of a DM is longer than the data."""
        found = [replace(what, most=self._most) for what in self._job.detections(fb.nsamp)]
        _check_reach(fb, self._job, found)
        return found

    def _execute(
        self,
        fb: Filterbank,
        mask: Mask | None,
        losses: Losses | None,
        progress: bool | Callable[[int, int], None],
    ) -> Candidates:
        job, length, made = self._job, self._job.length, self._job.made
        looked = self._looked(fb)
        whole, cells = (None, None) if mask is None else split_mask(mask, fb)

        threads = usable_cores() if self._threads is None else max(1, self._threads)
        cleaner = self._cleaner(fb, [] if whole is None else np.flatnonzero(whole.cells[:, 0]).tolist())
        plain = fb

        def run(data: Filterbank, watch: Watch | None = None) -> list[NDArray[np.float64]]:
            nonlocal cleaner, plain
            plain = data
            begin = max(0, lost.start // length * length - job.context)
            if cleaner.steps and self._target.gpu:
                from skysieve.dedispersion.clean.cuda.launch import DeviceCleaner

                made: list[Cleaner] = []  # every GPU makes one, with the same results

                def make(runtime: Runtime, most: int) -> DeviceCleaner:
                    made.append(new := DeviceCleaner(runtime, most, cleaner, begin, threads, self._scratch))
                    return new

                source = Cleaned(data, whole, length, watch, make, gpu=True)
                with suppress(NotFinite):
                    found = self._run(data, source, looked, progress)
                    cleaner = made[0]
                    return found
            if cleaner.steps:  # also for values that are not finite, which the statistics leave out
                data = self._cleaned(data, cleaner, begin, watch)
            source = Cleaned(data, whole, length, None if cleaner.steps else watch, gpu=self._target.gpu)
            return self._run(data, source, looked, progress)

        lost = Losses(NO_RECTANGLES)
        if losses is not None:
            filled = FilledReader(fb, losses, length)
            dropped, lost, joins = NO_RECTANGLES, filled.losses, filled.joins
            data = Filterbank([filled])
            raw = run(data if cells is None else repaired(data, NO_RECTANGLES, cells, length, threads))
        else:
            clean = None
            if cells is None and fb.gpu is None and not len(fb.gaps) and not len(fb.lost):
                clean, dropped = _optimistic(fb, run, self._threads)
            else:
                dropped = fb.lost if len(fb.lost) else dropped_in(fb)
            lost, joins = Losses(np.concatenate([dropped, full(fb.gaps, fb.nchan)])), list[int]()
            if clean is None:
                data = fb
                if cells is not None or len(dropped) > len(fb.lost):
                    data = repaired(fb, dropped, cells, length, threads)
                elif len(fb.gaps) and not len(fb.lost):
                    filled = FilledReader(fb, lost, length)
                    data, lost, joins = Filterbank([filled]), filled.losses, filled.joins
                clean = run(data)
            raw = clean
        if losses is not None or len(lost.rects):
            raw = kept_events(made, raw, job.boxes, lost, length, joins, looked)
        events, dms_all = job.events(raw, fb.observation)
        obs, ref = fb.observation, self._ref_freq
        response = job.response(obs)
        head = response.group(events).head
        vetoed, shifts = dict[str, int](), None
        if self._veto:
            again, sums = _Again(plain, cleaner, lost, whole), self._sums()
            sum_many = None if sums is None else partial(sums, hidden=again.hidden)
            highest = float(dms_all[-1])
            vetting = Vetting(obs, obs.top, job.dm_constant, highest, length, job.threshold, sum_many)
            limits = lost.start, fb.nsamp
            events, head, vetoed, shifts = vetting.vetted(
                events, head, dms_all, response, again, cleaner.records, limits, threads
            )
        events = events_at(events, ref, obs, job.dm_constant)
        columns, group = columns_of(events, head, dms_all, obs, ref, job.dm_constant, shifts)
        until = _until(job, looked) - delay_seconds(obs.top, dms_all, ref, job.dm_constant)
        adds = sum(float(fb.nchan) * float(d.valid.clip(0).sum()) for d in looked)
        live = (1.0 if mask is None else mask.weight_of(fb.nsamp)) * (1 - float(np.diff(fb.gaps).sum()) / fb.nsamp)
        removed = cleaner.records.removed() if cleaner.steps else None
        live *= 1.0 if removed is None else 1 - sum(removed.parts.values())
        size = ((dropped[:, 1] - dropped[:, 0]) * (dropped[:, 3] - dropped[:, 2])).sum()
        live *= 1 - float(size) / fb.nsamp / fb.nchan
        facts = self.describe()
        return Candidates(
            **columns, events=events, group=group, dms=dms_all, threshold=job.threshold, noise=job.noise,
            detector=self._detector, method=facts["method"], device=facts["device"], dm_constant=job.dm_constant,
            ref_freq=ref, searched=fb.duration, seconds=0.0, adds=adds, live=live, observation=fb.observation,
            dropped=dropped, until=until, removed=removed,
            vetoed=vetoed,
        )  # fmt: skip

    def _sums(self) -> DeviceSums | None:
        """The kernels that sum the cut-outs of candidates on the first GPU; None on a CPU."""
        workers = getattr(self._open_engine(), "workers", None)
        if self._device_sums is None and workers:
            from .cuda.launch import DeviceSums

            self._device_sums = DeviceSums(workers[0].runtime, self._kind.dtype, workers[0].store)
        return self._device_sums

    def _idle_bytes(self) -> int:
        return super()._idle_bytes() + (0 if self._device_sums is None else self._device_sums.nbytes)

    def close(self) -> None:
        """Free threads and memory; the plan cannot be used any more."""
        sums, self._device_sums = self._device_sums, None
        self._scratch.clear()
        if sums is not None:
            sums.close()
        super().close()

    def _cleaner(self, fb: Filterbank, ignore: Sequence[int]) -> Cleaner:
        """A `Cleaner` with the steps that ``clean`` asks for; it ignores the channels ``ignore``."""
        cleaner = Cleaner(fb.observation, fb.dtype, fb.maximum, self._steps, ignore, self._job.dm_constant)
        cleaner.few, cleaner.waits = fb.nsamp * fb.nchan <= FEW, True
        return cleaner

    def _cleaned(self, fb: Filterbank, cleaner: Cleaner, begin: int, watch: Watch | None) -> Filterbank:
        """The data, cleaned on the host when they are read.

        Values that are not finite are replaced by means over a block of the noise, which is read for them again.
        """
        again = self._job.length if fb.dtype.kind == "f" else 0
        return Filterbank([CleanReader(fb, cleaner, begin, watch, again)]) if cleaner.steps else fb

    def _run(
        self, fb: Filterbank, source: Cleaned, looked: list[Detection], progress: bool | Callable[[int, int], None]
    ) -> list[NDArray[np.float64]]:
        """Events of every table, chunk after chunk."""
        engine = self._open_engine()
        engine.rebind(source)
        tables = [t.table for t in self._job.made]
        found: list[list[NDArray[np.float64]]] = [[] for _ in tables]
        events = 0
        with reporting(progress, "single pulses") as report:
            reporter = Reporter(report, sum(len(t.delays) for t in tables) * -(-fb.nsamp // self._step))
            for low in range(0, fb.nsamp, self._step):
                new = self._job.look(engine, looked, low, self._step, fb.nsamp, reporter.add)
                for parts, rows in zip(found, new, strict=True):
                    parts.append(rows)
                    events += len(rows)
                check_events(events, looked[0])
        return [np.concatenate(parts) for parts in found]

    def describe(self) -> dict[str, Any]:
        """The properties of the plan.

        Returns
        -------
        dict
            ``method``, ``device``, ``dtype`` (of the series), ``bytes`` (of memory that the plan holds), ``dms`` (their
            number), ``chunk`` (samples at a time), ``block`` (samples of a noise block), ``noise``, ``detector``,
            ``widths``.  For data as long as those that the plan was made for: ``moved`` (bytes of samples that are
            read, more than once where chunks overlap), ``seconds`` on an idle machine and ``processor_seconds`` of all
            threads (None before ``skysieve info --measure``), and the ``work`` from which they are predicted.
        """
        job = self._job
        facts = self._facts(job.made)
        workers = len(self._target.devices) if self._target.gpu else self._open_engine().describe()["threads"]
        work, moved = self._work(self._nsamp)
        times = rates.predicted("dedispersion", self.device, work, workers)
        return {
            **facts, **times, "work": work, "moved": moved, "block": job.length, "noise": job.noise,
            "detector": self._detector, "widths": job.boxes,
        }  # fmt: skip

    @property
    def job(self) -> Job:
        """The checked arguments and the delays of the search."""
        return self._job

    @property
    def device(self) -> Device:
        """The device, or the first of several."""
        return self._target.devices[0]

    @property
    def gpus(self) -> int:
        """Number of GPUs that search."""
        return len(self._target.devices) if self._target.gpu else 0

    def _work(self, nsamp: int) -> tuple[dict[str, float], int]:
        """The work of a search of ``nsamp`` samples of noise (`core.machine.rates`), and the bytes that it reads."""
        job, costs = self._job, self._open_engine().describe()["costs"]
        additions = series = boxcars = 0.0
        loaded = 0
        for low in range(0, nsamp, self._step):
            first, stop = max(0, low - job.length), min(nsamp, low + self._step + job.length)
            loaded += min(nsamp, stop + job.overlap) - first
            for made, cost in zip(job.made, costs, strict=True):
                b, dms = made.table.downsamp, len(made.table.delays)
                count = dms * (stop // b - first // b)
                series += count
                additions += cost * self._kind.observation.nchan * count
                boxcars += len(job.boxes) * dms * (min(low + self._step, nsamp) // b - low // b)
        kind = self._kind.dtype.name
        work = {"calls": 1.0, f"additions {kind}": additions, f"series {job.noise}": series}
        work[f"widths {self._detector}"] = boxcars
        work[f"samples {kind}"] = float(self._kind.observation.nchan) * loaded
        cleaned = bool(self._steps) and can_clean(self._kind.observation)
        work[f"cleaned {kind}"] = float(self._kind.observation.nchan) * nsamp * cleaned
        return work, self._kind.observation.nchan * loaded * self._kind.dtype.itemsize

    def __repr__(self) -> str:
        state = ", closed" if self._engine is None else ""
        count = sum(len(listed) for listed, *_ in self._job.stages)
        return f"<SearchPlan {count} DMs, S/N above {self._job.threshold:g}, {self._kind}{state}>"


def search(
    data: Filterbank | Paths,
    dms: ArrayLike | DMPlan,
    *,
    widths: Sequence[int] | None = None,
    max_width: float | None = None,
    threshold: float = THRESHOLD,
    noise: Noise = "robust",
    detector: Detector = "boxcar",
    buffer: int | None = None,
    block: float | None = None,
    baseline: bool = True,
    excess: float = EXCESS,
    dip: float = DIP,
    method: Method = "auto",
    max_loss: float = 0.0,
    ref_freq: Reference | float = "top",
    dm_constant: float | None = None,
    mask: Mask | None = None,
    losses: Losses | None = None,
    clean: Clean = None,
    veto: bool | None = None,
    device: str = "auto",
    memory: str | float | None = None,
    threads: int | None = None,
    progress: bool | Callable[[int, int], None] = False,
) -> Candidates:
    """Search a filterbank for dispersed single pulses.

    Parameters
    ----------
    data : Filterbank, path or sequence of paths
        The data; several files follow each other in time.
    dms : DMPlan or array_like
        DMs and binnings, from `plan`; or DMs, pc / cm^3.
    widths : sequence of int, optional
        Boxcars in binned samples, rising, at most 4096 and half a block; by default 26 from 1 to 308.
    max_width : float, optional
        Seconds of the widest boxcar of the stage with the least binning, instead of ``widths``.
    threshold : float
        Least S/N of an event.
    noise : {"robust", "moments", "clipped"}
        Estimator of sigma in each block of each series, and of the level if ``baseline`` is False.  "robust": median
        and quartiles.  "moments": mean and standard deviation.  "clipped": the same of the samples within 3 sigma,
        clipped five times.
    detector : {"boxcar", "threshold"}
        "boxcar" finds the peaks of the S/N over all boxcars.  "threshold" is the detector of Magro et al. 2011: every
        sample that lies ``threshold`` sigma above the mean of its ``buffer`` is an event.  It uses no boxcars, and
        always ``noise="moments"``.
    buffer : int, optional
        Samples (not binned) of the buffers of the threshold detector; by default those of ``block``.
    block : float, optional
        Seconds of the blocks from which noise is estimated.  Blocks are anchored at sample 0 of the data.  A block has
        at least 1024 samples and twice the widest boxcar, as binned in the coarsest stage.  The default is 2 s, or this
        minimum if it is longer.
    baseline : bool
        Take the level of a block from the block and its neighbours, and subtract a smooth line where it drifts.  False
        takes the level of each block from its noise estimator alone.
    excess : float
        S/N by which an event may exceed the response of a stronger burst; above that it is a separate candidate.  See
        Notes.
    dip : float
        Two peaks of a window are two events if the S/N between them falls by more than this.  In noise, fewer than one
        of a thousand windows has a fall of more than 7.
    mask : Mask, optional
        Cells to leave out.  Channels that are masked throughout add nothing; other cells are replaced by values drawn
        from the good samples of their channel and block.
    losses : Losses, optional
        Samples that count as missing.  They are replaced by noise of the level and scatter of their channel.  Windows
        of which less than half is present are not events.  A stream that lost these samples gives the same result.  By
        default the gaps of the files and dropped data count as missing.  Dropped data are runs of equal samples that
        are too long for noise (see `find_dropped`); the result lists them as ``dropped``.  ``Losses([])`` searches all
        samples as they are.
    clean : bool, str, sequence of str or None
        What is removed from the data first: None, True or "all" for steps of the gain, bad channels, narrow-band
        signals and impulses; False or "none" for nothing; or names of `CLEANING`.  The result lists what was removed as
        ``removed``.  Data of fewer than 16 channels and de-dispersed data are not cleaned.
    veto : bool, optional
        Examine each candidate again in the samples around it, and leave out candidates that are not dispersed pulses
        (for the reasons, see `vetting.REASONS`).  The result counts these as ``vetoed``.  In data of fewer than 32
        channels no candidate is vetoed.  The default is True, or False with ``clean=False``.
    method, max_loss, dm_constant, device, memory, threads, progress
        As for `dedisperse`.
    ref_freq : {"top", "centre", "bottom", "infinity"} or float
        Frequency (MHz) at which times are given; what is searched does not depend on it.

    Returns
    -------
    Candidates

    Raises
    ------
    ValueError, TypeError
        An argument is wrong.
    MemoryBudgetError
        One block and the delay of the highest DM do not fit.

    See Also
    --------
    SearchPlan : the same for many data, with one set-up

    Notes
    -----
    The S/N of a window of w samples is ``sum(y - level) / (sigma sqrt(w))``, with level and sigma of the block of each
    sample, so that w binned samples have the S/N of the window that is not binned.  Normalised samples are rounded to
    1/64 sigma and limited to 4096 sigma; window sums are exact integers.  An event is a window whose S/N is the highest
    among the windows that are centred within half its width.  If such a window holds several peaks, each of them is an
    event, and so are weaker peaks beside a loud window (``dip``).

    A pulse has events at many DMs, which fill a bow tie around it.  The strongest event is a candidate.  A weaker event
    belongs to a stronger one if its S/N is at most 1.4 times the response of a pulse (Cordes & McLaughlin 2003) plus
    ``excess``; see `grouping.Response`.  At each DM the series ends where its lowest channel does, so that a pulse at
    the end of the file is found at the DMs whose delay still fits.  DMs of a time series are relative to the DM at
    which it was de-dispersed.  Masked channels add no noise: sigma is that of the other channels.

    The result does not depend on chunks or threads, nor on the length of the data, except that a last block shorter
    than a quarter of a block takes the noise of the block before it.  An event does not depend on data later than two
    blocks after its own block, plus the delay of its DM.

    Examples
    --------
    >>> import numpy as np
    >>> from skysieve.dedispersion import fake
    >>> fb = fake(nchan=64, duration=4, tsamp=1e-3, fch1=1500, foff=-4, dm=200, times=[1.5], width=4e-3, snr=20, seed=1)
    >>> found = search(fb, np.arange(100, 300, 4), threads=1)
    >>> bool(abs(found.dm[0] - 200) < 10), bool(abs(found.time[0] - 1.5) < 4e-3)
    (True, True)
    """
    began = time.perf_counter()
    with opened(data) as fb:
        _check_given(fb, mask, losses)
        options: dict[str, Any] = {
            "widths": widths, "max_width": max_width, "threshold": threshold, "noise": noise, "detector": detector,
            "buffer": buffer, "block": block, "baseline": baseline, "excess": excess, "dip": dip,
            "method": method, "max_loss": max_loss, "ref_freq": ref_freq, "dm_constant": dm_constant,
            "clean": cleaning_steps(clean), "veto": None if veto is None else bool(veto),
            "memory": memory, "threads": threads,
        }  # fmt: skip
        found: Candidates = with_cached_plan(
            SearchPlan, fb, dms, device, options,
            lambda plan: plan.execute(fb, mask=mask, losses=losses, progress=progress),
        )  # fmt: skip
    return replace(found, seconds=time.perf_counter() - began)


@dataclass(frozen=True)
class _Again:
    """The samples of a search, read again: see `vetting.Samples`.

    Attributes
    ----------
    fb : Filterbank
        The data before they were cleaned.
    cleaner : Cleaner
        The cleaner of the search, which has no steps if the data were not cleaned.
    lost : Losses
        Missing samples.
    whole : Mask or None
        Channels that are masked throughout.
    memory : threading.local
        Memory of each thread for the samples that it reads.
    """

    fb: Filterbank
    cleaner: Cleaner
    lost: Losses
    whole: Mask | None
    memory: threading.local = field(default_factory=threading.local)

    @property
    def at_once(self) -> bool:
        """Whether several threads may read at once."""
        return bool(getattr(self.fb, "takes_room", False))

    def _of_thread(self, nbytes: int) -> NDArray[np.uint8]:
        """The memory of this thread, which its next call overwrites."""
        held: NDArray[np.uint8] | None = getattr(self.memory, "held", None)
        if held is None or len(held) < nbytes:
            held = self.memory.held = np.empty(nbytes, np.uint8)
        return held

    def _read(self, start: int, count: int, memory: Memory) -> NDArray[Any]:
        """Samples from ``start`` on, in ``memory`` if they come from files."""
        if not self.at_once:
            return np.ascontiguousarray(to_host(self.fb.block(start, count)).T)
        room = Room(memory(count * self.fb.nchan * self.fb.dtype.itemsize))
        return np.ascontiguousarray(self.fb.block(start, count, room).T)

    def __call__(self, start: int, stop: int, memory: Memory | None = None) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        fb = self.fb
        low, high = max(start, 0), min(stop, fb.nsamp)
        rows, gone = np.zeros((0, fb.nchan), fb.dtype.newbyteorder("=")), np.ones((0, fb.nchan), bool)
        if low < high:
            rows = self.cleaner.regained(low, self._read(low, high - low, memory or self._of_thread))
            gone = self._gone(low, high, whole=len(rows) == stop - start)
        if len(rows) < stop - start:
            before = min(max(low, start), stop) - start
            around = (before, stop - start - before - len(rows)), (0, 0)
            rows, gone = np.pad(rows, around), np.pad(gone, around, constant_values=True)
        if self.whole is not None:
            gone[:, self.whole.cells[:, 0]] = True
        return rows, gone

    def _gone(self, start: int, stop: int, whole: bool) -> NDArray[np.bool_]:
        """Samples that were lost or replaced; one row, for a ``whole`` cut-out, if they are the same at all times."""
        lost = self.lost.within(start, stop)
        all_of = self.cleaner.records.replaced_channels(start, stop) if whole and not len(lost) else None
        if all_of is not None:
            return all_of[None]
        gone = self.cleaner.records.replaced(start, stop)
        gone_in(lost, start, gone)
        return gone

    def hidden(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Which samples of ``start : stop``, all within the data, do not count; see `vetting.Samples`."""
        gone = self._gone(start, stop, whole=True)
        if self.whole is not None:
            gone[:, self.whole.cells[:, 0]] = True
        return gone


def _compile_beside_gpu(clean: Sequence[str]) -> None:
    """Start to compile the functions that the host runs in a search on a GPU."""
    from skysieve.dedispersion.clean.blocks import compile_ahead

    compile_beside(None)
    if "impulses" in clean:
        compile_ahead.compile_beside()


def _more_kernels(dtype: np.dtype[Any], clean: Sequence[str], veto: bool) -> list[tuple[str, str, str]]:
    """The kernels that clean samples of a type and look at candidates on a GPU, as far as they are asked for."""
    from skysieve.dedispersion.clean.cuda import launch as cleaning

    from .cuda import launch as looking

    return [*(cleaning.kernels_of(dtype) if clean else ()), *(looking.kernels_of(dtype) if veto else ())]


def _check_given(fb: Filterbank, mask: Mask | None, losses: Losses | None) -> None:
    if losses is not None and not isinstance(losses, Losses):
        raise TypeError(f"losses is a {type(losses).__name__}, expected Losses")
    if mask is not None:
        check_mask(mask, fb)
        if not mask.weight_of(fb.nsamp):
            raise ValueError("mask: all channels are masked, so that nothing can be found")


def _optimistic(
    fb: Filterbank, run: Callable[[Filterbank, Watch], R], threads: int | None
) -> tuple[R | None, NDArray[np.int64]]:
    """Run a search and look for dropped data at the same time.

    Returns the result of ``run``, or None if dropped data must be replaced first, and the rectangles of dropped data.
    `Watch` examines the samples while ``run`` reads them, so that data without dropouts are read once.
    """
    watch = Watch(fb, threads)
    found = None
    try:
        with suppress(Suspicious):
            found = run(fb, watch)
        watch.quiet = True
        if found is not None and watch.at == fb.nsamp and not watch.suspicious():
            return found, NO_RECTANGLES
        dropped = dropped_in(fb, watch)
    finally:
        watch.close()
    nothing = dropped.tolist() == [[0, fb.nsamp, 0, fb.nchan]]  # all is dropped: a second search would find the same
    return (None if len(dropped) and not nothing else found), dropped


def _until(job: Job, looked: list[Detection]) -> NDArray[np.float64]:
    """Seconds, at the top of the band, at which the search of each DM ends, for the rising list of all DMs."""
    rank = job.dms[1]
    ends = [(w.valid.clip(0) + t.start) * t.table.downsamp * job.tsamp for t, w in zip(job.made, looked, strict=True)]
    found = np.full(int(rank.max()) + 1, -np.inf)
    np.maximum.at(found, rank, np.concatenate(ends))
    return found


def _check(
    widths: Sequence[int] | None, threshold: float, noise: str, detector: str, excess: float, dip: float
) -> tuple[tuple[int, ...], str]:
    """Check arguments; return the widths and the noise estimator."""
    if not (math.isfinite(threshold) and threshold > 0):
        raise ValueError(f"threshold={threshold!r}: expected a number above 0")
    one_of("noise", noise, NOISE)
    one_of("detector", detector, DETECTORS)
    for name, value in (("excess", excess), ("dip", dip)):
        if not value > 0:
            raise ValueError(f"{name}={value!r}: expected an S/N above 0; inf is allowed")
    if (only := DETECTORS[detector].noise) is not None:
        if widths is not None:
            raise ValueError("widths: the threshold detector has no boxcars")
        return (1,), only
    boxes = WIDTHS if widths is None else tuple(int(w) for w in widths)
    whole = widths is None or list(boxes) == list(widths)
    if not whole or not boxes or list(boxes) != sorted(set(boxes)) or boxes[0] < 1 or boxes[-1] > MOST_WIDTH:
        raise ValueError(f"widths={widths!r}: expected rising whole numbers from 1 to {MOST_WIDTH}")
    return boxes, noise


def boxcars(fb: Filterbank, longest: float, given: Sequence[int] | None, binning: int) -> tuple[int, ...]:
    """Boxcar widths up to ``longest`` seconds, in samples of the least binning: `WIDTHS`, continued by their factor."""
    if given is not None:
        raise ValueError("max_width and widths cannot be combined")
    most = longest / (fb.tsamp * binning) if math.isfinite(longest) else math.inf
    if not 1 <= most <= MOST_WIDTH:
        low, high = (n * fb.tsamp * binning for n in (1, MOST_WIDTH))
        raise ValueError(f"max_width={longest!r}: expected seconds from {low:.6g} to {high:.6g}")
    found = list(WIDTHS)
    while found[-1] < most:
        found.append(min(math.ceil(most), int(1.205 * found[-1])))
    return tuple(w for w in found if w <= math.ceil(most))


def _check_reach(fb: Filterbank, job: Job, looked: list[Detection]) -> None:
    """Refuse DMs whose delay is longer than the data: nothing would be searched there."""
    dms = np.concatenate([dms for dms, *_ in job.stages])
    fits = np.concatenate([what.valid >= 1 for what in looked])
    if not fits.all():
        good = f"; the highest DM that fits is {dms[fits].max():g}" if fits.any() else ""
        raise ValueError(
            f"dms: the delay of DM {dms.max():g} across the band is {job.overlap} samples, but the data have only "
            f"{fb.nsamp}{good}"
        )


def _block_length(
    fb: Filterbank, given: float | None, buffer: int | None, detector: str, common: int, boxes: tuple[int, ...],
    most: int, usual: float,
) -> int:  # fmt: skip
    """Samples of a block, not binned: a multiple of every binning."""
    if detector == "threshold" and buffer is not None:
        if buffer < 2 or buffer % common:
            raise ValueError(f"buffer={buffer}: expected at least 2 samples, a multiple of the binnings ({common})")
        return int(buffer)
    if buffer is not None:
        raise ValueError(f"buffer={buffer}: only the threshold detector has buffers; expected detector='threshold'")
    seconds = usual if given is None else given
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"block={seconds!r}: expected seconds, above 0")
    least = max(LEAST_BLOCK, 2 * boxes[-1]) * most if detector == "boxcar" else 2 * most
    if given is not None and round(seconds / fb.tsamp) < least:
        why = f"{least // most} samples" + (f" of {most} binned ones each" if most > 1 else "")
        raise ValueError(f"block={seconds!r}: expected at least {math.ceil(least * fb.tsamp * 1e6) / 1e6:g} s: {why}")
    length = -(-max(least, round(seconds / fb.tsamp)) // common) * common
    return int(length)


def _beyond(cleaner: Cleaner, target: Target) -> int:
    """Number of samples after a chunk that a GPU needs to clean the chunk."""
    return cleaner.block + cleaner.ahead if target.gpu and cleaner.steps else 0


def _chunk_blocks(
    source: Cleaned, tables: list[Table], job: Job, target: Target, workers: int, cleaner: Cleaner
) -> int:
    """The largest number of blocks in a chunk that fits: input, binned copies, and a tile of series for each thread."""
    nsamp, length = source.nsamp, job.length
    kept = 0
    if cleaner.steps and not target.gpu and source.dtype.kind == "f":  # see `CleanReader`
        kept = (length + 2 * cleaner.block) * source.nchan * source.dtype.itemsize

    def need(blocks: int) -> int:
        samples = blocks * length + 2 * job.context + _beyond(cleaner, target)
        series = 0 if target.gpu else workers * min(256, max(len(t.delays) for t in tables)) * samples * 4
        cleaned = target.cleaning_bytes(cleaner, samples + job.overlap)
        return target.bytes_needed(source, tables, samples + job.overlap) + series + cleaned + kept

    blocks = max(1, -(-nsamp // length))
    while blocks > 1 and need(blocks) > target.budget:
        blocks -= max(1, blocks // 8)
    if need(blocks) > target.budget:
        what = f"a block of {length} samples, its neighbours and the highest DM's delay of {job.overlap}"
        raise MemoryBudgetError(what, need(blocks), target.budget)
    return blocks
