"""`search`: from a filterbank and a plan to candidates, a chunk of anchored blocks at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from skysieve.core.errors import MemoryBudgetError
from skysieve.core.memory import available_host_memory, parse_budget
from skysieve.core.progress import Reporter
from skysieve.core.tasks import usable_cores
from skysieve.dedispersion.api import (
    Place,
    check_binning,
    chosen_device,
    engine_that_fits,
    find_place,
    make_engine,
    reporting,
    stages_of,
    tabled,
)
from skysieve.dedispersion.clean.dropouts import NO_RECTANGLES, Suspicious, Watch
from skysieve.dedispersion.clean.masks import Cleaned, Mask, check_mask
from skysieve.dedispersion.clean.missing import FilledReader, Losses, kept_events
from skysieve.dedispersion.clean.repair import dropped_in, full, repaired, split_mask
from skysieve.dedispersion.contract import METHODS, MOST_WIDTH, NOISE, Detection, Engine, check_events
from skysieve.dedispersion.data.delays import reference_frequency
from skysieve.dedispersion.data.filterbank import Filterbank
from skysieve.dedispersion.data.observation import Observation
from skysieve.dedispersion.dm_plan.delay_tables import Tabled
from skysieve.dedispersion.dm_plan.plan import DMPlan, check_series

from .candidates import Candidates, Events, group_events

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["WIDTHS", "search"]

R = TypeVar("R")

WIDTHS = (
    1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 22, 27, 33, 40, 48, 58, 70, 84, 101, 122, 147, 177, 213, 256, 308,
)  # fmt: skip
"""Boxcars, binned samples: neighbours within a factor 1.21 (from 5 on), so that a top-hat pulse loses at most 5%."""
DETECTORS = ("boxcar", "threshold")
BLOCK_SECONDS = 2.0
LEAST_BLOCK = 1024
"""Samples of a noise block at least: quartiles of fewer say little."""
EVENT_BYTES = 320
"""Memory for an event, while candidates are made of them."""


@dataclass(frozen=True)
class _Layout:
    """Blocks of a search, unbinned samples."""

    block: int
    chunk_blocks: int


@dataclass(frozen=True)
class Job:
    """A search whose arguments are checked and whose delays are known: what a file and a stream share.

    Attributes
    ----------
    stages : list of (DMs, binning, subbands, DMs a call)
    made : list of Tabled
    dm_constant, threshold, link_time, tsamp : float
    boxes : tuple of int
    noise : str
    every : bool
    link_dm, length : int
        ``length``: unbinned samples of a noise block.
    """

    stages: list[tuple[NDArray[np.float64], int, int, int]]
    made: list[Tabled]
    dm_constant: float
    threshold: float
    boxes: tuple[int, ...]
    noise: str
    every: bool
    link_dm: int
    link_time: float
    length: int
    tsamp: float

    @property
    def overlap(self) -> int:
        """Unbinned samples that the highest DM reaches beyond a block."""
        return max(t.table.maxshift * t.table.downsamp for t in self.made)

    @property
    def how(self) -> str:
        """Method of the engine, where "brute" is not asked for."""
        return "tree" if all(t.method == "tree" for t in self.made) else "exact-subband"

    def detections(self, nsamp: int) -> list[Detection]:
        """What each table's series of data of a length are searched for."""
        found = []
        for t in self.made:
            table = t.table
            valid = nsamp // table.downsamp - table.delays.max(axis=1).astype(np.int64)
            found.append(
                Detection(self.length // table.downsamp, self.boxes, self.threshold, self.noise, self.every, valid)
            )
        return found

    def look(
        self, engine: Engine, looked: list[Detection], low: int, step: int, nsamp: int,
        told: Callable[[int], object] | None = None,
    ) -> list[NDArray[np.float64]]:  # fmt: skip
        """Events centred on samples ``low : low + step`` of data of ``nsamp``, by table; ``low`` begins a block.

        Reads from the block before ``low`` to the block after ``low + step`` and the highest DM's delay beyond.
        """
        first = max(0, low - self.length)
        stop = min(nsamp, low + step + self.length)
        engine.load(first, min(nsamp, stop + self.overlap))
        parts = []
        for i, (t, what) in enumerate(zip(self.made, looked, strict=True)):
            b = t.table.downsamp
            count = stop // b - first // b
            high = min(low + step, nsamp) // b
            some = count > 0 and high > low // b
            parts.append(engine.search(i, first // b, count, low // b, high, what) if some else np.empty((0, 4)))
            if told is not None:
                told(len(t.table.delays))
        return parts

    def events(self, raw: list[NDArray[np.float64]], obs: Observation) -> tuple[Events, NDArray[np.float64]]:
        """Events of all tables with their DMs, times and widths; and all DMs, rising."""
        base = obs.dm or 0.0
        every = np.concatenate([dms for dms, *_ in self.stages])
        dms_all, rank = np.unique(every, return_inverse=True)
        offset, parts = 0, []
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
        order = np.lexsort((columns[6], columns[3], columns[0]))
        return Events(*(c[order] for c in columns)), dms_all + base


def prepare(
    fb: Filterbank, plan: DMPlan | Any, *, widths: Sequence[int] | None, threshold: float, noise: str, detector: str,
    buffer: int | None, block: float | None, link_dm: int, link_time: float | None, method: str, max_loss: float,
    ref_freq: str | float, dm_constant: float | None, usual_block: float = BLOCK_SECONDS,
) -> Job:  # fmt: skip
    """The arguments of `search` checked, and the delays; no data are read.

    A ``block`` that is too short is refused; where none is given, ``usual_block`` becomes longer where that is needed.
    """
    stages, constant = stages_of(fb, plan, dm_constant, name="plan")
    check_series(fb.observation, np.concatenate([dms for dms, *_ in stages]))
    if method not in METHODS:
        raise ValueError(f"method={method!r}: expected one of {', '.join(map(repr, METHODS))}")
    boxes, kind = _check(widths, threshold, noise, detector, link_dm, link_time)
    common = math.lcm(*(binning for _, binning, _, _ in stages))
    length = _block_length(fb, block, buffer, detector, common, boxes, max(b for _, b, _, _ in stages),
                           usual_block)  # fmt: skip
    made = []
    for dms, binning, nsub, call in stages:
        check_binning(fb, binning)
        made.append(tabled(fb, dms, binning, method, max_loss, None, nsub, call, ref_freq, constant))
    gap = 3 * fb.tsamp if link_time is None else float(link_time)
    return Job(
        stages, made, constant, float(threshold), boxes, kind, detector == "threshold", int(link_dm), gap, length,
        fb.tsamp,
    )  # fmt: skip


def search(
    fb: Filterbank,
    plan: DMPlan | Any,
    *,
    widths: Sequence[int] | None = None,
    threshold: float = 6.5,
    noise: str = "robust",
    detector: str = "boxcar",
    buffer: int | None = None,
    block: float | None = None,
    link_dm: int = 5,
    link_time: float | None = None,
    method: str = "auto",
    max_loss: float = 0.0,
    ref_freq: str | float = "top",
    dm_constant: float | None = None,
    mask: Mask | None = None,
    losses: Losses | None = None,
    device: str = "auto",
    memory: str | float | None = None,
    threads: int | None = None,
    progress: bool | Callable[[int, int], None] = False,
) -> Candidates:
    """Search a filterbank for dispersed single pulses.

    Parameters
    ----------
    fb : Filterbank
    plan : DMPlan or array_like
        DMs and binnings, from `plan`; or DMs.
    widths : sequence of int, optional
        Boxcars in binned samples, rising, at most 4096 and half a block; by default 26 from 1 to 308.
    threshold : float
        S/N from which an event counts.
    noise : {"robust", "moments", "clipped"}
        Level and sigma of each block of each series: median and quartiles; mean and standard deviation; these of the
        samples within 3 sigma, five times over.
    detector : {"boxcar", "threshold"}
        "threshold" is the paper's: every sample that lies ``threshold`` sigma over the mean of its ``buffer``; no
        boxcars, ``noise="moments"``.
    buffer : int, optional
        Samples of its buffers (unbinned); by default those of ``block``.
    block : float, optional
        Seconds of the blocks that noise is taken from.  They are anchored at sample 0 of the data.  At least 1024
        samples and twice the widest boxcar, binned as the coarsest stage is; by default 2 s, or this minimum where it
        is longer.
    link_dm : int
        Events belong together that are at most so many DMs apart ...
    link_time : float, optional
        ... and whose windows overlap or lie within so many seconds (3 samples by default).
    losses : Losses, optional
        Samples that count as missing: noise of their channel's level and scatter stands in for them, and windows of
        which less than half is there are no events.  It is what a stream that lost them gives.  By default the gaps
        of the files and dropped data: stretches of equal samples that noise does not have (see `find_dropped`), which
        the result lists as ``dropped``.  ``Losses([])`` searches all samples as they are.
    mask : Mask, optional
        Cells to leave out.  Channels that are masked throughout add nothing; other cells are replaced by values drawn
        from the good samples of their channel and block.
    method, max_loss, ref_freq, dm_constant, device, memory, threads, progress
        As for `dedisperse`.

    Returns
    -------
    Candidates

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit.
    MemoryBudgetError
        When one block and the delay of the highest DM do not fit.

    Notes
    -----
    The S/N of a window of w samples is ``sum(y - level) / (sigma sqrt(w))``, with level and sigma of each sample's
    own block, so that w binned samples have the S/N of the unbinned window.  Normalised samples are rounded to 1/64
    sigma and held within 4096 sigma; window sums are exact integers.  An event is a window whose S/N is the highest
    among those centred within half its width.  At each DM the series ends where its lowest channel does, so that a
    pulse at the end of the file is found at the DMs whose delay the file holds.  DMs of a time series count from
    its own.  Masked channels add no noise: sigma is that of the live ones.  Nothing depends on chunks, threads, or
    the data's length (but that a last block of less than a quarter takes the noise of the one before); an event is
    final one block after its own, plus the DM's delay.

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
    job = prepare(
        fb, plan, widths=widths, threshold=threshold, noise=noise, detector=detector, buffer=buffer, block=block,
        link_dm=link_dm, link_time=link_time, method=method, max_loss=max_loss, ref_freq=ref_freq,
        dm_constant=dm_constant,
    )  # fmt: skip
    constant, made, length = job.dm_constant, job.made, job.length
    budget = parse_budget(memory, available_host_memory())
    looked = [replace(what, most=budget // EVENT_BYTES) for what in job.detections(fb.nsamp)]
    _check_reach(fb, job, looked)
    if losses is not None and not isinstance(losses, Losses):
        raise TypeError(f"losses is a {type(losses).__name__}, expected Losses")
    if mask is not None:
        check_mask(mask, fb)
    whole, cells = (None, None) if mask is None else split_mask(mask, fb)
    workers = usable_cores() if threads is None else max(1, threads)
    place = find_place(chosen_device(fb, device), memory)

    def run(data: Filterbank, watch: Watch | None = None) -> tuple[list[NDArray[np.float64]], str, str]:
        source = Cleaned(data, whole, length, watch)
        layout = _layout(data, source, made, length, place, workers)
        return _run(data, source, job, looked, layout, method, place, threads, progress)

    if losses is not None:
        filled = FilledReader(fb, losses, length)
        dropped, lost, joins = NO_RECTANGLES, filled.losses, filled.joins
        data = Filterbank([filled])
        raw, ran, where = run(data if cells is None else repaired(data, NO_RECTANGLES, cells, length))
    else:
        clean = None
        if cells is None and fb.gpu is None and not len(fb.gaps) and not len(fb.lost):
            clean, dropped = _optimistic(fb, run, threads)
        else:
            dropped = fb.lost if len(fb.lost) else dropped_in(fb)
        lost, joins = Losses(np.concatenate([dropped, full(fb.gaps, fb.nchan)])), []
        if clean is None:
            data = fb
            if cells is not None or len(dropped) > len(fb.lost):
                data = repaired(fb, dropped, cells, length)
            elif len(fb.gaps) and not len(fb.lost):
                filled = FilledReader(fb, lost, length)
                data, lost, joins = Filterbank([filled]), filled.losses, filled.joins
            clean = run(data)
        raw, ran, where = clean
    if losses is not None or len(lost.rects):
        raw = kept_events(made, raw, job.boxes, lost, length, joins, looked)
    events, dms_all = job.events(raw, fb.observation)
    ref = reference_frequency(fb.freqs, ref_freq)
    columns, group = group_events(events, fb.observation, ref, constant, link_dm, job.link_time)
    adds = sum(float(fb.nchan) * float(d.valid.clip(0).sum()) for d in looked)
    live = (1.0 if mask is None else mask.weight_of(fb.nsamp)) * (1 - float(np.diff(fb.gaps).sum()) / fb.nsamp)
    live *= 1 - float(((dropped[:, 1] - dropped[:, 0]) * (dropped[:, 3] - dropped[:, 2])).sum()) / fb.nsamp / fb.nchan
    return Candidates(
        **columns, events=events, group=group, dms=dms_all, threshold=float(threshold), noise=job.noise,
        detector=detector, method=ran, device=where, dm_constant=constant, ref_freq=ref, searched=fb.duration,
        seconds=time.perf_counter() - began, adds=adds, live=live,
        observation=fb.observation, dropped=dropped, until=_until(job, looked),
    )  # fmt: skip


def _optimistic(
    fb: Filterbank, run: Callable[[Filterbank, Watch], R], threads: int | None
) -> tuple[R | None, NDArray[np.int64]]:
    """What ``run`` gives and no rectangles; or None and the dropped data.

    The samples are watched as they are read, so that data without dropouts are read once.
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
    nothing = dropped.tolist() == [[0, fb.nsamp, 0, fb.nchan]]  # no sample is left to be searched again
    return (None if len(dropped) and not nothing else found), dropped


def _until(job: Job, looked: list[Detection]) -> NDArray[np.float64]:
    """Seconds at which the search of each DM ends, in the rising list of all DMs."""
    rank = np.unique(np.concatenate([dms for dms, *_ in job.stages]), return_inverse=True)[1]
    ends = [(w.valid.clip(0) + t.start) * t.table.downsamp * job.tsamp for t, w in zip(job.made, looked, strict=True)]
    found = np.full(int(rank.max()) + 1, -np.inf)
    np.maximum.at(found, rank, np.concatenate(ends))
    return found


def _check(
    widths: Sequence[int] | None, threshold: float, noise: str, detector: str, link_dm: int, link_time: float | None
) -> tuple[tuple[int, ...], str]:
    """Checked widths and noise."""
    if not (math.isfinite(threshold) and threshold > 0):
        raise ValueError(f"threshold={threshold!r}: expected a number above 0")
    if noise not in NOISE:
        raise ValueError(f"noise={noise!r}: expected one of {', '.join(map(repr, NOISE))}")
    if detector not in DETECTORS:
        raise ValueError(f"detector={detector!r}: expected one of {', '.join(map(repr, DETECTORS))}")
    if not isinstance(link_dm, (int, np.integer)) or link_dm < 0:
        raise ValueError(f"link_dm={link_dm!r}: expected a whole number of at least 0")
    if link_time is not None and not (math.isfinite(link_time) and link_time >= 0):
        raise ValueError(f"link_time={link_time!r}: expected seconds, at least 0")
    if detector == "threshold":
        if widths is not None:
            raise ValueError("widths: the threshold detector has no boxcars")
        return (1,), "moments"
    boxes = WIDTHS if widths is None else tuple(int(w) for w in widths)
    whole = widths is None or list(boxes) == list(widths)
    if not whole or not boxes or list(boxes) != sorted(set(boxes)) or boxes[0] < 1 or boxes[-1] > MOST_WIDTH:
        raise ValueError(f"widths={widths!r}: expected rising whole numbers from 1 to {MOST_WIDTH}")
    return boxes, noise


def _check_reach(fb: Filterbank, job: Job, looked: list[Detection]) -> None:
    """Refuse DMs whose delay the data do not hold: nothing would be searched there."""
    dms = np.concatenate([dms for dms, *_ in job.stages])
    fits = np.concatenate([what.valid >= 1 for what in looked])
    if not fits.all():
        good = f"; the highest that fits is {dms[fits].max():g}" if fits.any() else ""
        raise ValueError(
            f"dms reach {dms.max():g}: its delay across the band is {job.overlap} samples, the data have "
            f"{fb.nsamp}{good}"
        )


def _block_length(
    fb: Filterbank, given: float | None, buffer: int | None, detector: str, common: int, boxes: tuple[int, ...],
    most: int, usual: float,
) -> int:  # fmt: skip
    """Unbinned samples of a block: a multiple of every binning."""
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


def _layout(fb: Filterbank, source: Cleaned, made: list[Tabled], length: int, place: Place, workers: int) -> _Layout:
    """As many blocks in a chunk as fit: input, binned copies, and a tile of series for each thread."""
    tables = [t.table for t in made]
    overlap = max(t.maxshift * t.downsamp for t in tables)

    def need(blocks: int) -> int:
        samples = (blocks + 2) * length
        series = 0 if place.gpu else workers * min(256, max(len(t.delays) for t in tables)) * samples * 4
        return place.bytes_needed(source, tables, samples + overlap) + series

    blocks = max(1, -(-fb.nsamp // length))
    while blocks > 1 and need(blocks) > place.budget:
        blocks -= max(1, blocks // 8)
    if need(blocks) > place.budget:
        raise MemoryBudgetError(f"a block of {length} samples, its neighbours and the highest DM's delay of {overlap}",
                                need(blocks), place.budget)  # fmt: skip
    return _Layout(length, blocks)


def _run(
    fb: Filterbank, source: Cleaned, job: Job, looked: list[Detection], layout: _Layout, method: str,
    place: Place, threads: int | None, progress: bool | Callable[[int, int], None],
) -> tuple[list[NDArray[np.float64]], str, str]:  # fmt: skip
    """Events of every table, chunk after chunk; method and device that made them."""
    tables = [t.table for t in job.made]
    how = "brute" if method == "brute" else job.how

    def make(step: int) -> Engine:
        capacity = min(step + 2 * layout.block, fb.nsamp) + job.overlap
        return make_engine(source, tables, method=how, device=place, capacity=capacity, threads=threads)

    step = layout.chunk_blocks * layout.block
    engine, step = engine_that_fits(make, step, layout.block, layout.block, place)
    found: list[list[NDArray[np.float64]]] = [[] for _ in tables]
    events = 0
    try:
        with reporting(progress, "single pulses") as report:
            told = Reporter(report, sum(len(t.delays) for t in tables) * -(-fb.nsamp // step))
            for low in range(0, fb.nsamp, step):
                for parts, rows in zip(found, job.look(engine, looked, low, step, fb.nsamp, told.add), strict=True):
                    parts.append(rows)
                    events += len(rows)
                check_events(events, looked[0])
        facts = engine.describe()
        ran = facts["method"]
    finally:
        engine.close()
    used = sorted({t.method for t in job.made} - {"exact"})
    if used:
        ran = " and ".join(used)
    return [np.concatenate(parts) for parts in found], ran, facts["device"]
