"""From a source and its grids to chunks for a GPU (`ChunkJob`), and from a chunk's answers to the output."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skysieve.core.arrays import array_module, is_device_array, to_host
from skysieve.core.gpu.staging import Copier
from skysieve.periodogram.contract import Grids, Output, Source, Spec, Status

from .methods import Methods
from .parts import MethodPart
from .structs import UNLIKE


class Cycles:
    """``df * span`` of every object of a source whose rows are in one piece, computed when they are first asked for.

    ``on_gpu`` computes them where the rows are on a GPU; `begin` lets it start while the caller does other work.
    """

    def __init__(self, source: Source, grids: Grids, on_gpu: CyclesOnGPU | None = None) -> None:
        self._source, self._df, self._on_gpu = source, grids.df, on_gpu
        self._every: NDArray[np.float64] | None = None
        self._coming: Callable[[], NDArray[np.float64]] | None = None

    def begin(self) -> None:
        """Start to compute the values of rows on a GPU, without waiting for them."""
        t, _, _, offsets = self._source.read(0, self._source.n_objects)
        if self._on_gpu is not None and is_device_array(t) and lengths_of(offsets).min(initial=1) > 0:
            self._coming = self._on_gpu(t, offsets, self._df)

    def every(self) -> NDArray[np.float64]:
        """Return the values of all objects, as `cycles_of` does."""
        if self._every is None:
            if self._coming is None:
                self.begin()
            if self._coming is not None:
                self._every = self._coming()
            else:
                t = self._source.read(0, self._source.n_objects)[0]
                self._every = cycles_of(t, self._source.offsets, self._df)
        return self._every


@dataclass(frozen=True)
class RunSettings:
    """Settings that all chunks of one `execute` share.

    ``power_start`` says where the powers of each object begin in the output; it is None if powers are not wanted.
    ``to_host`` says whether powers are copied to the host.  ``cycles`` are those of all objects, if the rows are in one
    piece.
    """

    methods: Methods
    power_start: NDArray[np.int64] | None
    to_host: bool = False
    cycles: Cycles | None = None

    @property
    def spec(self) -> Spec:
        return self.methods.spec

    @property
    def grids(self) -> Grids:
        return self.methods.grids

    def row_bytes(self) -> int:
        """Device bytes of one row of a light curve."""
        return self.methods.row_bytes()

    def object_bytes(self, nf: int, cycles: float) -> float:
        """Device bytes of one object beside its rows."""
        return self.methods.object_bytes(nf, cycles)


@dataclass
class ChunkJob:
    """The input of a GPU for one chunk: its light curves, its grids, its parts, and where its answers go.

    ``objects`` are the numbers of the answers' rows.  ``start`` says where the powers of an object begin, in
    the chunk's own power buffer, or in the user's device array.
    """

    t: Any
    y: Any
    dy: Any
    offsets: NDArray[np.int64]
    objects: slice
    f0: NDArray[np.float64]
    df: NDArray[np.float64]
    nf: NDArray[np.int64]
    shared: bool
    parts: list[MethodPart]
    limits: NDArray[Any]
    cap: int
    edges: int
    values: NDArray[np.float64] | None = None
    start: NDArray[np.int64] | None = None
    n_powers: int = 0
    device_power: Any = None
    host_power: NDArray[Any] | None = None
    results: dict[str, NDArray[Any]] = field(default_factory=dict)
    copies: list[Future[None]] | None = None
    buffer: str | None = None
    """The lane's buffer from which the rows are uploaded, where other threads copy them to page-locked memory."""
    signature: tuple[Any, ...] | None = None
    host_rows: dict[str, Any] | None = None
    code: NDArray[np.int32] | None = None
    """Number of the band of each row, where there are several."""
    again: bool = False
    """Whether the same parts have been launched before; otherwise there is no recorded launch of them."""

    def like(self, **changes: Any) -> ChunkJob:
        """A job that differs in some fields (`dataclasses.replace` takes as long as a launch)."""
        job = object.__new__(ChunkJob)
        job.__dict__.update(self.__dict__ | changes)
        return job

    @property
    def n_objects(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Rows of each object."""
        return lengths_of(self.offsets)

    @cached_property
    def codes(self) -> NDArray[np.uint8]:
        """Number of the method of each object."""
        codes = np.empty(self.n_objects, np.uint8)
        for part in self.parts:
            codes[part.order] = part.method.code
        return codes

    @property
    def n_rows(self) -> int:
        return int(self.offsets[-1])


@dataclass(frozen=True)
class Chunk:
    """Objects ``start:stop``; ``known``: the output holds their first times, spans and numbers of points."""

    start: int
    stop: int
    known: bool = False


GAP_POWERS = 1 << 24
"""Most powers of the objects between two that are searched again, for which both share a chunk.  A GPU computes these
in 0.2 ms (fits of one term); another chunk takes the host 1 ms."""


def gather(objects: list[int], nf: int) -> list[Chunk]:
    """Chunks that cover these objects, whose spans are known by now; `nf`: largest number of frequencies.

    Objects that are near each other share a chunk with all objects between them.
    """
    numbers = np.unique(objects)
    cuts = np.flatnonzero(np.diff(numbers) > max(8, GAP_POWERS // nf)) + 1
    return [Chunk(int(p[0]), int(p[-1]) + 1, True) for p in np.split(numbers, cuts)]


CyclesOnGPU = Callable[[Any, NDArray[np.int64], NDArray[np.float64]], Callable[[], NDArray[np.float64]]]


def cycles_of(t: Any, offsets: NDArray[np.int64], df: NDArray[np.float64]) -> NDArray[np.float64]:
    """``df * span`` of each object from its first and last row (exact for sorted, clean rows); 0 where unusable."""
    lo, hi = offsets[:-1], offsets[1:] - 1
    if len(t) and not (hi < lo).any():
        if isinstance(t, np.ndarray):
            return bounded_cycles(t.take(lo), t.take(hi), df)  # half the time of an index
        ends = to_host(t[array_module(t).asarray(np.concatenate([lo, hi]))])
        return bounded_cycles(ends[: len(lo)], ends[len(lo) :], df)
    cycles = np.zeros(len(lo))
    filled = np.flatnonzero(hi >= lo)
    if len(filled):
        some = np.append(lo[filled], offsets[-1])  # no rows lie between neighbours of empty objects
        cycles[filled] = cycles_of(t, some, df if len(df) == 1 else df[filled])
    return cycles


def bounded_cycles(
    first: NDArray[np.float64], last: NDArray[np.float64], df: NDArray[np.float64]
) -> NDArray[np.float64]:
    """``df`` times the span, plus two units in the last place; 0 where it is not finite.

    The origin of times may lie one unit before the first time.  The result has the bits of ``ls_prepare`` and
    ``ls_cycles``.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        cycles = 2 * np.spacing(np.maximum(np.abs(first), np.abs(last)))
        cycles += last - first
        cycles = df * cycles
        if cycles.size and np.minimum.reduce(cycles) > 0 and np.maximum.reduce(cycles) < np.inf:
            return cycles
        return np.where((cycles > 0) & (cycles < np.inf), cycles, 0.0)


def _same_grids(a: Grids, b: Grids) -> bool:
    """Whether these are certainly the same frequencies.  (Long arrays are not compared.)"""
    return a is b or (a.shared and b.shared and a.values is None and b.values is None and a.of(0) == b.of(0))


def lengths_of(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of each object (`numpy.diff` takes three times as long)."""
    lengths: NDArray[np.int64] = offsets[1:] - offsets[:-1]
    return lengths


def same_cuts(a: NDArray[np.int64], b: NDArray[np.int64]) -> bool:
    """Whether the objects have the same numbers of rows.  (`numpy.array_equal` takes twice as long.)"""
    return len(a) == len(b) and bool((a == b).all())


def staged(source: Source, empty: Callable[[str, int], Any], copier: Copier) -> tuple[Source, list[Future[None]]]:
    """Let other threads begin to copy a source's rows, which are in one piece, to memory of ``empty``.

    Return a source with the copied rows, and the futures to wait for.  Without other threads, return the source itself.
    """
    rows = source.read(0, source.n_objects)[:3]
    places = [None if a is None else empty(name, len(a)) for name, a in zip(("t", "y", "dy"), rows, strict=True)]
    copies = copier.behind([(place, a) for place, a in zip(places, rows, strict=True) if place is not None])
    return (StagedSource(source, *places) if copies else source), copies


def joined(source: Source, empty: Callable[[str, int], Any]) -> Source:
    """A source whose rows, which were in pieces, are joined; in memory of ``empty`` if the given source uses it."""
    t, y, dy, _ = source.read(0, source.n_objects, empty)
    return StagedSource(source, t, y, dy)


@dataclass(frozen=True)
class StagedSource:
    """A source whose rows are one after another, mostly in page-locked memory."""

    source: Any
    t: Any
    y: Any
    dy: Any
    flat = True

    @property
    def n_objects(self) -> int:
        return len(self.offsets) - 1

    @property
    def offsets(self) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self.source.offsets
        return found

    @property
    def has_dy(self) -> bool:
        return self.dy is not None

    def read(
        self, start: int, stop: int, empty: Callable[[str, int], Any] | None = None
    ) -> tuple[Any, Any, Any, NDArray[np.int64]]:
        """See `contract.Source`."""
        first, last = int(self.offsets[start]), int(self.offsets[stop])
        dy = None if self.dy is None else self.dy[first:last]
        return self.t[first:last], self.y[first:last], dy, self.offsets[start : stop + 1] - first

    def row(self, i: int, j: int) -> int:
        """See `contract.Source`."""
        return int(self.source.row(i, j))

    def bands(self, start: int, stop: int) -> NDArray[np.int64]:
        """Numbers of the bands of the rows, where there are several."""
        found: NDArray[np.int64] = self.source.bands(start, stop)
        return found


class JobCache:
    """Chunks of the last `execute` and of this one, so that objects of the same lengths are not divided again."""

    def __init__(self) -> None:
        self._grids: Grids | None = None
        self._start: NDArray[np.int64] | None = None
        self._jobs: dict[tuple[int, ...], ChunkJob] = {}
        self._cut: tuple[NDArray[np.int64], list[tuple[int, int]]] | None = None
        self._on_device = self._again = False

    def cut(
        self, offsets: NDArray[np.int64], on_device: bool, known: bool, cutter: Callable[[bool], list[tuple[int, int]]]
    ) -> list[tuple[int, int]]:
        """The chunks of objects whose rows begin at ``offsets``: those of the last call if they are ``known``.

        ``on_device``: the rows are on the GPU, and no powers are copied from it.  ``cutter`` is called with False the
        first time that ``offsets`` occur, and with True the second time.
        """
        if self._cut is None or not (known and self._again):
            self._cut, self._on_device, self._again = (offsets.copy(), cutter(known)), on_device, known
        return self._cut[1]

    def knows(self, offsets: NDArray[np.int64], on_device: bool) -> bool:
        """Whether the objects have the same numbers of rows as those of the last call, on the same grid."""
        return self._cut is not None and self._on_device == on_device and same_cuts(self._cut[0], offsets)

    def renew(self, settings: RunSettings) -> None:
        """Forget everything unless ``settings`` has the grids of the last one, and both or none want powers."""
        old, new = self._grids, settings.grids
        same = old is not None and (self._start is None) == (settings.power_start is None) and _same_grids(old, new)
        if not same:
            self._jobs.clear()
            self._cut = None
        self._grids, self._start = new, settings.power_start

    @staticmethod
    def _key(settings: RunSettings, chunk: Chunk, rows: int, device_power: bool) -> tuple[int, ...]:
        """The key of a chunk; chunks of one key share a job if their objects have the same lengths.

        A chunk with its own grids, or whose powers stay on the device, shares its key with no other chunk.
        """
        if settings.grids.shared and not device_power:
            return (chunk.stop - chunk.start, rows)
        return (chunk.start, chunk.stop, rows)

    def get(
        self,
        settings: RunSettings,
        chunk: Chunk,
        t: Any,
        y: Any,
        dy: Any,
        offsets: NDArray[np.int64],
        device_power: Any,
    ) -> ChunkJob | None:
        """A job with new values, if one for objects of the same lengths is known.

        The kernels check whether the time spans are those that its parts were made for.
        """
        job = self._jobs.get(self._key(settings, chunk, len(t), device_power is not None))
        if job is None or (job.dy is None) != (dy is None) or not same_cuts(job.offsets, offsets):
            return None
        return job.like(
            t=t, y=y, dy=dy, objects=slice(chunk.start, chunk.stop), device_power=device_power, results={},
            host_power=None, copies=None, buffer=None, signature=None, host_rows=None, again=True,
        )  # fmt: skip

    def drop(self, settings: RunSettings, chunk: Chunk, rows: int) -> None:
        """Forget the jobs of a chunk whose light curves are not what they were made for."""
        for device_power in (False, True):
            self._jobs.pop(self._key(settings, chunk, rows, device_power), None)

    def put(self, settings: RunSettings, chunk: Chunk, job: ChunkJob) -> None:
        if len(self._jobs) >= 16:
            self._jobs.clear()
        light = np.zeros(0)
        self._jobs[self._key(settings, chunk, job.n_rows, job.device_power is not None)] = job.like(
            t=light, y=light, dy=None if job.dy is None else light, results={}, device_power=None
        )


def make_job(
    settings: RunSettings,
    source: Source,
    chunk: Chunk,
    output: Output,
    *,
    all_candidates: bool = False,
    cache: JobCache | None = None,
    empty: Callable[[str, int], Any] | None = None,
) -> ChunkJob:
    """The input of a GPU for a chunk; ``empty`` makes page-locked arrays (see `contract.Source.read`)."""
    in_pieces = empty is not None and not source.flat
    t, y, dy, offsets = (
        source.read(chunk.start, chunk.stop, empty) if in_pieces else source.read(chunk.start, chunk.stop)
    )
    job = _plain_job(settings, t, y, dy, offsets, chunk, output, all_candidates, cache)
    if settings.spec.model is not None:
        banded: Any = source
        job.code = banded.bands(chunk.start, chunk.stop).astype(np.int32)
    return job


def _plain_job(
    settings: RunSettings, t: Any, y: Any, dy: Any, offsets: NDArray[np.int64], chunk: Chunk, output: Output,
    all_candidates: bool, cache: JobCache | None,
) -> ChunkJob:  # fmt: skip
    """As `make_job`, for rows that have been read, without their bands."""
    objects = slice(chunk.start, chunk.stop)
    df = settings.grids.df if settings.grids.shared else settings.grids.df[objects]
    if chunk.known:
        first, lengths = output.t_min[objects], output.n_used[objects]
        cycles = bounded_cycles(first, first + output.span[objects], df)
        return job_of(settings, t, y, dy, offsets, objects, output, cycles, lengths, all_candidates)
    device_power = output.power if is_device_array(output.power) else None
    job = cache.get(settings, chunk, t, y, dy, offsets, device_power) if cache is not None else None
    if job is None:
        every = settings.cycles
        cycles = cycles_of(t, offsets, df) if every is None else every.every()[objects]
        lengths = lengths_of(offsets)
        job = job_of(settings, t, y, dy, offsets, objects, output, cycles, lengths, all_candidates)
        if cache is not None:
            cache.put(settings, chunk, job)
    return job


def job_of(
    settings: RunSettings,
    t: Any,
    y: Any,
    dy: Any,
    offsets: NDArray[np.int64],
    objects: slice,
    output: Output,
    cycles: NDArray[np.float64],
    lengths: NDArray[np.int64],
    all_candidates: bool = False,
) -> ChunkJob:
    """The input for the given rows.  ``objects``: their rows of the output; ``cycles``, ``lengths``: ``df * span`` and
    number of points of each object, as far as they are known."""
    parts, limits = settings.methods.deal(objects, lengths, cycles, all_candidates)
    grids = settings.grids
    own = slice(None) if grids.shared else objects
    job = ChunkJob(
        t, y, dy, offsets, objects, grids.f0[own], grids.df[own], grids.nf[own], grids.shared, parts, limits,
        max(part.cap for part in parts), max(part.edges for part in parts), grids.values,
    )  # fmt: skip
    if settings.methods.stores_powers:
        sizes = np.broadcast_to(job.nf, (job.n_objects,))
        job.start = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
        job.n_powers = int(job.start[-1])
    if settings.power_start is not None and is_device_array(output.power):
        assert job.start is not None
        job.device_power, job.start = output.power, job.start + settings.power_start[job.objects.start]
    return job


@dataclass
class Again:
    """Objects to search again: the span was not the one from first to last row, or there were too many candidates."""

    unlike: list[int]
    overflow: list[int]


def deliver(job: ChunkJob, settings: RunSettings, output: Output, again: Again) -> None:
    """Write a finished chunk's answers except the powers, and note which objects have to be searched again."""
    info, objects = job.results["host_info"], job.objects
    status, method = info["status"], job.codes
    index = job.results["index"].reshape(-1, settings.spec.n_peaks)
    over, none = job.results["flags"] != 0, index[:, 0] < 0
    if np.count_nonzero(status) or np.count_nonzero(none) or np.count_nonzero(over):
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
