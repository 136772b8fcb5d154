"""Series of several Fourier terms on one GPU: the launches of ``fourier/grid.cu`` and ``fourier/exact.cu`` for a chunk.

Sums and equations are float64 whatever the powers are stored as; powers of a chunk always pass through device memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from skysieve.core.gpu.runtime import Module, Runtime
from skysieve.core.gpu.staging import Copier, Lane
from skysieve.core.gpu.structs import fill, struct
from skysieve.periodogram.contract import Spec
from skysieve.periodogram.cuda import structs as cs
from skysieve.periodogram.cuda.layouts import Layout
from skysieve.periodogram.cuda.parts import Part
from skysieve.periodogram.cuda.peaks.launch import probe, tries
from skysieve.periodogram.cuda.samples.samples import BINS, NAMES, small_arrays
from skysieve.periodogram.cuda.samples.stretches import Cut, cut
from skysieve.periodogram.cuda.worker import NORM, PACKAGE, SEARCH_MANY, Job, Worker

from .layouts import FIND_SPAN, Chi2Layout, Chi2Part, tables

F64 = np.dtype(np.float64)
LIMIT = 10.0
"""Of combs, as ``cpu_chi2_job.LIMIT``: square sum of the parameters over the root of the number of points."""
TRUST = 3.0
"""The same of what is interpolated from samples: up to it no error passed 6e-9 (124 light curves of 9 to 39 points)."""
EXACT_LIMIT = 3e5
"""The same where sums are over all points: no power was more than 3e-9 off (12 light curves of 9 to 20 points)."""
FEW, SUMMED = (32, 128), 5
"""Points up to which a thread sums them for one frequency, of up to ``SUMMED`` terms (then a warp does) and of more."""
TOP = 64
"""Powers in a row of which the highest is kept, as in ``fourier/solve.cuh``."""
MANY = 16
"""Stretches that a block of ``chi2_find`` looks at where tops are kept: at most one a lane."""
_TOPS = ("tops*", "bins*", "width#")
POWERS = struct(
    "samples*", "place*", "taps*", "origin*", "shift*", "bands*", "info*", "order*", "tasks*", "nf*", "start*",
    "power*", *_TOPS, "doubts*", "doubted*", "room_doubts#", "limit.", "mean.", "L", "octets", "steps", "stride",
    "tiles", "turns", "room", "member", "blocks", "grid_stride",
)  # fmt: skip
REFIT = struct(
    "tp*", "wv*", "offsets*", "info*", "f0*", "df*", "start*", "power*", *_TOPS, "doubts*", "doubted*", "room_doubts#",
    "left*", "n_left*", "room_left#", "limit.", "mean.", "grid_stride", "few",
)  # fmt: skip
EXACT = struct(
    "tp*", "wv*", "offsets*", "info*", "order*", "tasks*", "f0*", "df*", "nf*", "frequencies*", "start*", "power*",
    *_TOPS, "left*", "n_left*", "room#", "doubted*", "tried*", "limit.", "members", "blocks", "total", "grid_stride",
    "mean", "all", "few",
)  # fmt: skip
FIND = struct(
    "info*", "order*", "tasks*", "nf*", "start*", "power*", *_TOPS, *cs._PEAKS, "members", "many", "grid_stride",
    "norm", "scaled", "edges",
)  # fmt: skip


class Chi2Worker(Worker):
    """As `Worker`, for fits of any number of terms but one."""

    search = SEARCH_MANY

    def __init__(self, runtime: Runtime, spec: Spec, lanes: int = 3, copier: Copier | None = None) -> None:
        super().__init__(runtime, replace(spec, dtype=F64), lanes, copier)
        self.stored = spec.dtype
        self._chi2_tables: dict[int, tuple[Any, ...]] = {}

    def close(self) -> None:
        """Give back buffers and tables."""
        super().close()
        self._chi2_tables.clear()

    @property
    def chi2_kernels(self) -> tuple[Any, ...]:
        """What a runtime is asked for; other numbers of terms than those tested with are compiled as well."""
        return PACKAGE, "fourier/exact.cu", "t4", {"TERMS": self.spec.nterms}

    @property
    def chi2(self) -> Module:
        """The kernels of this number of terms."""
        return self.runtime.module(*self.chi2_kernels)

    def _kernels(self, layouts: Iterable[tuple[Layout | None, bool, int]]) -> list[tuple[Any, ...]]:
        return [self.chi2_kernels, self.sampler.kernels]

    def _chi2_table(self, lane: Lane, combs: int) -> tuple[Any, ...]:
        if combs not in self._chi2_tables:
            with lane:
                self._chi2_tables[combs] = tuple(self.runtime.xp.asarray(a) for a in tables(combs))
                lane.synchronize()
        return self._chi2_tables[combs]

    def _launch(self, lane: Lane, job: Job) -> None:
        n = job.n_objects
        assert job.start is not None
        direct_out = job.device_power is not None and self.stored == F64
        shift = 0 if direct_out else int(job.start[0])
        small = self._of_objects(job, job.start - shift)
        cuts = self._cuts(job)
        for i, part in enumerate(job.parts):
            assert isinstance(part, Chi2Part)
            small |= {f"order{i}": part.order, f"exact{i}": part.exact[0], f"find{i}": part.find[0]}
            small |= self._small(i, part, cuts[i])
        data = self._upload(lane, {**self._placed(lane, job), **small})
        info, peaks = lane.array("info", n, cs.INFO), self._candidates(lane, job)
        values = self._device_values(lane, job.values)
        power = job.device_power if direct_out else lane.array("power64", job.n_powers, np.float64)
        stride = 0 if job.shared else 1
        grids = {"offsets": data["offsets"], "f0": data["f0"], "df": data["df"], "grid_stride": stride}
        to = {"info": info, "nf": data["nf"], "start": data["start"], "power": power}
        with lane:
            work = self._prepared(lane, job, data, info, peaks, lane.array("bins", n * BINS, np.uint32))
            for i, part in enumerate(job.parts):
                assert isinstance(part, Chi2Part)
                self._fit(lane, job, i, part, cuts[i], data, work, values, grids, to)
                self._find(
                    lane, part, data[f"order{i}"], data[f"find{i}"], edges=job.edges, grid_stride=stride, **peaks, **to,
                    **self._tops(lane, job, part),
                )  # fmt: skip
            self._peaks(lane, job, data, info, values, peaks, work)
            self._deliver_power(lane, job, power)

    def _cuts(self, job: Job) -> list[Cut | None]:
        """Where the samples of each part's objects lie."""
        return [self._cut(job, part) for part in job.parts]

    def _small(self, i: int, part: Chi2Part, cut: Cut | None) -> dict[str, Any]:
        """Further small arrays of part ``i``."""
        return {} if cut is None else small_arrays(cut, i)

    def _prepared(
        self, lane: Lane, job: Job, data: dict[str, Any], info: Any, peaks: dict[str, Any], bins: Any
    ) -> dict[str, Any]:
        """Clean rows; cells and weights of every point where there are combs."""
        stride, work = 0 if job.shared else 1, self._clean(lane, job, data, info, peaks, bins)
        counts = lane.array("chi2_counts", 2 * len(job.parts), np.uint32)
        spread: dict[str, Any] = {}
        if any(part.kind == "comb" for part in job.parts):
            spread = self.sampler.points(lane, data, info, work, work["owner"], job.n_rows, stride, counts)
        return {**work, "counts": counts, "spread": spread}

    def _fit(
        self, lane: Lane, job: Job, i: int, part: Chi2Part, cut: Cut | None, data: dict[str, Any], work: dict[str, Any],
        values: Any, grids: dict[str, Any], to: dict[str, Any],
    ) -> None:  # fmt: skip
        """Powers of part ``i``."""
        order, doubts, rows = data[f"order{i}"], {}, {"tp": work["tp"], "wv": work["wv"]}
        to = to | self._tops(lane, job, part)
        if cut is not None:
            found = {name: data[f"{name}{i}"] for name in NAMES}
            doubts = self._doubts(lane, job, work["counts"][2 * i : 2 * i + 2])
            self._sampled(lane, part, cut, order, found, work["spread"], doubts, grids, to)
            self._refit(lane, doubts, **rows, **grids, **{k: v for k, v in to.items() if k != "nf"})
        self._exact(lane, part, order, data[f"exact{i}"], values, doubts, **rows, **grids, **to)

    def _tops(self, lane: Lane, job: Job, part: Chi2Part) -> dict[str, Any]:
        """Where the highest powers are kept for the search; nowhere where ``chi2_powers`` does not keep them."""
        width = job.edges * FIND_SPAN // TOP
        keeps = self.spec.normalization == "standard" and self.spec.nterms <= 7
        if not keeps or not isinstance(part.fit, Chi2Layout) or part.fit.octets > 1:
            return {"tops": None, "bins": None, "width": 0}
        tops, bins = (lane.array(name, job.n_objects * k, np.uint32) for name, k in (("tops", width), ("bins", BINS)))
        return {"tops": tops, "bins": bins, "width": width}

    def _deliver_power(self, lane: Lane, job: Job, power: Any) -> None:
        """Powers to where they are wanted, in the type that they are stored as."""
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

    def _cut(self, job: Job, part: Part) -> Cut | None:
        """Where the samples of a part's objects lie; None where every frequency is fitted exactly."""
        assert isinstance(part, Chi2Part)
        if part.fit is None:
            return None
        assert isinstance(part.fit, Chi2Layout)
        own = slice(None) if job.shared else part.order
        grids = (job.f0[own], job.df[own], job.nf[own])
        return cut(part.fit, *grids, len(part.order), job.shared, self.runtime.device.sm_count)

    def _doubts(self, lane: Lane, job: Job, counts: Any) -> dict[str, Any]:
        """Room for the frequencies of a part that are not trusted, and for those to be fitted by a warp."""
        room = job.n_powers // 8 + 65_536
        lists = {name: lane.array(f"chi2_{name}", 2 * room, np.int32) for name in ("doubts", "left")}
        return {**lists, "doubted": counts[:1], "n_left": counts[1:], "room": room}

    def _refit(self, lane: Lane, doubts: dict[str, Any], **more: Any) -> None:
        """What is in doubt of series of few points once more, from direct sums."""
        room = doubts["room"]
        args = fill(
            REFIT, **{k: doubts[k] for k in ("doubts", "doubted", "left", "n_left")}, room_doubts=room, room_left=room,
            limit=EXACT_LIMIT, mean=float(self.spec.fit_mean), few=self._few, **more,
        )  # fmt: skip
        blocks = min(-(-room // 128), 4 * self.runtime.device.sm_count)
        self.chi2.launch("chi2_refit", (blocks,), (128,), (args,), stream=lane.stream)

    @property
    def _few(self) -> int:
        return FEW[self.spec.nterms > SUMMED]

    def _sampled(
        self, lane: Lane, part: Chi2Part, cut: Cut, order: Any, found: dict[str, Any], points: dict[str, Any],
        doubts: dict[str, Any], grids: dict[str, Any], to: dict[str, Any],
    ) -> None:  # fmt: skip
        """Powers of a part, a group of objects after the other: samples, coefficients, equations."""
        fit = part.fit
        assert isinstance(fit, Chi2Layout)
        for made in self.sampler.groups(lane, lane.stream, 0, fit, cut, order, found, points, to["info"], grids):
            taps = self.sampler.taps(lane, lane.stream, fit, cut, made, found, grids)
            args = fill(
                POWERS, tasks=made.tasks, limit=TRUST, mean=float(self.spec.fit_mean), stride=fit.stride,
                tiles=fit.tiles, turns=cut.turns, room=fit.room, blocks=made.blocks // made.members,
                doubts=doubts["doubts"], doubted=doubts["doubted"], room_doubts=doubts["room"], **made.arguments,
                **taps, **to,
            )  # fmt: skip
            self.sampler.module.launch(
                "chi2_powers", (made.blocks,), (32 * fit.tiles,), (args,), shared_mem=fit.shared_bytes,
                stream=lane.stream,
            )  # fmt: skip

    def _exact(
        self, lane: Lane, part: Chi2Part, order: Any, tasks: Any, values: Any, doubts: dict[str, Any], **more: Any
    ) -> None:
        """Fits by warps: of what is still in doubt, or of everything."""
        columns = 2 * self.spec.nterms + 1
        warps = 4 if self.spec.nterms <= 8 else 1
        entries = (columns + 1) * (columns + 2) // 2 - 1
        total = part.count(part.exact)
        some = {k: doubts.get(k, 0) for k in ("left", "n_left", "room", "doubted")}
        args = fill(
            EXACT, order=order, tasks=tasks, frequencies=values, members=len(part.order), blocks=part.exact[1],
            total=total, mean=int(self.spec.fit_mean), all=int(part.fit is None), limit=EXACT_LIMIT,
            few=self._few if doubts else 0, **some, **{"tried": None, **more},
        )  # fmt: skip
        looped = doubts or "tried" in more
        blocks = min(total, 8 * self.runtime.device.sm_count) if looped else total
        self.chi2.launch(
            "chi2_exact", (blocks,), (32 * warps,), (args,),
            shared_mem=warps * (16 * entries + 8 * (32 * (columns + 1) + columns)), stream=lane.stream,
        )  # fmt: skip

    def _refine(
        self, lane: Lane, job: Job, data: dict[str, Any], work: dict[str, Any], picks: dict[str, Any],
        ranks: dict[str, Any], tried: dict[str, Any],
    ) -> None:  # fmt: skip
        slots = job.n_objects * tries(self.spec)

        def evaluate(peaks: dict[str, Any]) -> None:
            self._at_peaks(lane, slots, work, peaks)

        probe(self.refiner, lane, slots, job.n_objects, data["offsets"], picks, ranks, tried, evaluate)

    def _at_peaks(self, lane: Lane, slots: int, work: dict[str, Any], peaks: dict[str, Any]) -> None:
        """Exact powers of peaks, each an object with a grid of its own."""
        part = Chi2Part("direct", np.zeros(slots, np.int32), 1, None, 0, 0, fit=None, exact=(None, 1), find=(None, 1))
        nowhere = {"tops": None, "bins": None, "width": 0}
        order, some = peaks["order"], {k: v for k, v in peaks.items() if k not in ("order", "owner")}
        self._exact(lane, part, order, None, None, {}, tp=work["tp"], wv=work["wv"], **some, **nowhere)

    def _find(self, lane: Lane, part: Chi2Part, order: Any, tasks: Any, **more: Any) -> None:
        many = MANY if more["tops"] is not None else 1
        args = fill(
            FIND, order=order, tasks=tasks, members=len(part.order), many=many, norm=NORM[self.spec.normalization],
            scaled=int(self.spec.normalization != "standard"), **more,
        )  # fmt: skip
        blocks = part.count(part.find) if tasks is not None else len(part.order) * -(-part.find[1] // many)
        self.chi2.launch("chi2_find", (blocks,), (256,), (args,), stream=lane.stream)
