"""Series of several Fourier terms on one GPU: the launches for a chunk that all their methods share.

Sums and equations are float64 whatever the powers are stored as; powers of a chunk always pass through device memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from skysieve.core.gpu.runtime import Module, Runtime
from skysieve.core.gpu.staging import Copier, Lane
from skysieve.core.gpu.structs import fill, struct
from skysieve.periodogram.contract import Spec
from skysieve.periodogram.cuda import structs as cs
from skysieve.periodogram.cuda.chunks import ChunkJob
from skysieve.periodogram.cuda.methods import DeviceChunk, Method, Methods, Sizes
from skysieve.periodogram.cuda.peaks.launch import probe, tries
from skysieve.periodogram.cuda.samples.layout import SampleLayout
from skysieve.periodogram.cuda.samples.samples import BINS
from skysieve.periodogram.cuda.worker import PACKAGE, SEARCH_MANY, Worker

from .methods import EXACT_LIMIT, NO_TOPS, TOPS, ExactFits, SeriesMethods, SeriesPart

F64 = np.dtype(np.float64)
FEW, SUMMED = (32, 128), 5
"""Most points that one thread sums for a frequency: for up to ``SUMMED`` terms (a warp sums longer series), and for
more terms."""
MANY = 16
"""Stretches that a block of ``chi2_find`` examines if the highest powers are stored: at most one for each lane."""
EXACT = struct(
    "tp*", "wv*", "offsets*", "info*", "order*", "tasks*", "f0*", "df*", "nf*", "frequencies*", "start*", "power*",
    *TOPS, "left*", "n_left*", "room#", "doubted*", "tried*", "limit.", "members", "blocks", "total", "grid_stride",
    "mean", "all", "few",
)  # fmt: skip
FIND = struct(
    "info*", "order*", "tasks*", "nf*", "start*", "power*", *TOPS, *cs.PEAKS, "members", "many", "grid_stride",
    "norm", "scaled", "edges",
)  # fmt: skip


class SeriesWorker(Worker):
    """As `Worker`, for fits of any number of terms but one."""

    search = SEARCH_MANY
    methods: ClassVar[type[Methods]] = SeriesMethods

    def __init__(self, runtime: Runtime, spec: Spec, lanes: int = 3, copier: Copier | None = None) -> None:
        super().__init__(runtime, replace(spec, dtype=F64), SampleLayout(spec.nterms, 1, 1), lanes, copier)
        self.stored = spec.dtype

    @property
    def fit_kernels(self) -> tuple[Any, ...]:
        """Arguments of `Runtime.module` for exact fits; numbers of terms that are not tested are compiled as well."""
        return PACKAGE, "fourier/exact.cu", "t4", {"TERMS": self.spec.nterms}

    @property
    def fits(self) -> Module:
        """The kernels of this number of terms."""
        return self.runtime.module(*self.fit_kernels)

    @property
    def few(self) -> int:
        """Points up to which a thread sums them for one frequency."""
        return FEW[self.spec.nterms > SUMMED]

    def _kernels(self, wanted: Iterable[tuple[Method, bool, int]]) -> list[tuple[Any, ...]]:
        return [self.fit_kernels, self.sampler.kernels, *super()._kernels(wanted)]

    def _launch(self, lane: Lane, job: ChunkJob) -> None:
        n = job.n_objects
        assert job.start is not None
        direct_out = job.device_power is not None and self.stored == F64
        shift = 0 if direct_out else int(job.start[0])
        small, cuts = self._of_objects(job, job.start - shift), []
        for i, part in enumerate(job.parts):
            assert isinstance(part, SeriesPart)
            small |= {f"order{i}": part.order, f"exact{i}": part.exact[0], f"find{i}": part.find[0]}
            cut, arrays = part.method.small_arrays(job, i, self.runtime.device.sm_count)
            small |= arrays
            cuts.append(cut)
        data = self._data(lane, job, small)
        info, sizes = lane.array("info", n, cs.INFO), Sizes.of(job)
        values = self._device_values(lane, job.values)
        power = job.device_power if direct_out else lane.array("power64", job.n_powers, np.float64)
        bins = lane.array("bins", n * BINS, np.uint32)
        peaks = self._candidates(lane, sizes)
        chunk = DeviceChunk(lane, job, data, info, peaks, power, values, bins, cuts=cuts, sizes=sizes)
        with lane:
            self._prepare_rows(chunk)
            for i, part in enumerate(job.parts):
                part.method.launch(self, chunk, i, lane.stream)
                self._find(chunk, i)
            self._peaks(chunk)
            self._deliver_power(lane, job, power)

    def grids(self, chunk: DeviceChunk) -> dict[str, Any]:
        """Struct fields of the grids, and of the offsets of the objects' rows."""
        return {"offsets": chunk.data["offsets"], **chunk.grids}

    def _prepare_rows(self, chunk: DeviceChunk) -> None:
        """Clean the rows, and compute cells and weights of every point if a method needs them."""
        chunk.work = self._clean(chunk)
        chunk.work["counts"] = chunk.lane.array("chi2_counts", 2 * len(chunk.job.parts), np.uint32)
        for part in chunk.job.parts:
            chunk.prepare_rows(self, part.method, chunk.lane.stream)

    def _deliver_power(self, lane: Lane, job: ChunkJob, power: Any) -> None:
        """Copy powers to their destination, in the type in which they are stored."""
        if self.stored != F64 and (job.device_power is not None or job.host_power is not None):
            narrow = lane.array("narrow", job.n_powers, self.stored)
            narrow[...] = power[: job.n_powers]
            power = narrow
        if job.device_power is not None and self.stored != F64:
            assert job.start is not None
            first = int(job.start[0])
            job.device_power[first : first + job.n_powers] = power
        if job.host_power is not None and job.n_powers:
            lane.to_host(job.host_power, power[: job.n_powers])

    def fit_exactly(self, chunk: DeviceChunk, i: int, doubts: dict[str, Any]) -> None:
        """Fit part ``i`` by warps: the frequencies still in doubt, or all of them if none was fitted before."""
        part, data = chunk.job.parts[i], chunk.data
        assert isinstance(part, SeriesPart)
        self._exact(
            chunk.lane, part, data[f"order{i}"], data[f"exact{i}"], chunk.values, doubts, tp=chunk.work["tp"],
            wv=chunk.work["wv"], info=chunk.info, nf=data["nf"], start=data["start"], power=chunk.power,
            **self.grids(chunk), **part.method.tops(self, chunk),
        )  # fmt: skip

    def _exact(
        self, lane: Lane, part: SeriesPart, order: Any, tasks: Any, values: Any, doubts: dict[str, Any], **more: Any
    ) -> None:
        columns = 2 * self.spec.nterms + 1
        warps = 4 if self.spec.nterms <= 8 else 1
        entries = (columns + 1) * (columns + 2) // 2 - 1
        total = part.count(part.exact)
        some = {k: doubts.get(k, 0) for k in ("left", "n_left", "room", "doubted")}
        args = fill(
            EXACT, order=order, tasks=tasks, frequencies=values, members=len(part.order), blocks=part.exact[1],
            total=total, mean=int(self.spec.fit_mean), all=int(part.method.direct), limit=EXACT_LIMIT,
            few=self.few if doubts else 0, **some, **{"tried": None, **more},
        )  # fmt: skip
        looped = doubts or "tried" in more
        blocks = min(total, 8 * self.runtime.device.sm_count) if looped else total
        self.fits.launch(
            "chi2_exact", (blocks,), (32 * warps,), (args,),
            shared_mem=warps * (16 * entries + 8 * (32 * (columns + 1) + columns)), stream=lane.stream,
        )  # fmt: skip

    def _refine(
        self, chunk: DeviceChunk, picks: dict[str, Any], ranks: dict[str, Any], tried: dict[str, Any]
    ) -> None:  # fmt: skip
        n, lane = chunk.job.n_objects, chunk.lane
        slots = n * tries(self.spec)

        def evaluate(peaks: dict[str, Any]) -> None:
            self._at_peaks(chunk, slots, peaks)

        probe(self.refiner, lane, slots, n, chunk.data["offsets"], picks, ranks, tried, evaluate)

    def _at_peaks(self, chunk: DeviceChunk, slots: int, peaks: dict[str, Any]) -> None:
        """Compute exact powers of peaks; each peak is treated as an object with a grid of its own."""
        part = SeriesPart(ExactFits(), np.zeros(slots, np.int32), 1, None, 0, 0)
        order, some = peaks["order"], {k: v for k, v in peaks.items() if k not in ("order", "owner")}
        self._exact(
            chunk.lane, part, order, None, None, {}, tp=chunk.work["tp"], wv=chunk.work["wv"], **some, **NO_TOPS
        )  # fmt: skip

    def _find(self, chunk: DeviceChunk, i: int) -> None:
        """Find the candidates for peaks of part ``i``, whose powers are all computed."""
        part, data = chunk.job.parts[i], chunk.data
        assert isinstance(part, SeriesPart)
        tops, tasks = part.method.tops(self, chunk), data[f"find{i}"]
        many = MANY if tops["tops"] is not None else 1
        args = fill(
            FIND, order=data[f"order{i}"], tasks=tasks, members=len(part.order), many=many, norm=self.norm,
            scaled=int(self.scaled), edges=chunk.job.edges, grid_stride=chunk.stride, info=chunk.info, nf=data["nf"],
            start=data["start"], power=chunk.power, cap=chunk.job.cap, **chunk.peaks, **tops,
        )  # fmt: skip
        blocks = part.count(part.find) if tasks is not None else len(part.order) * -(-part.find[1] // many)
        self.fits.launch("chi2_find", (blocks,), (256,), (args,), stream=chunk.lane.stream)
