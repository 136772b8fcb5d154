"""Series of several Fourier terms on one GPU: the launches of ``ls_chi2_grid.cu`` and ``ls_chi2.cu`` for a chunk.

Sums and equations are float64 whatever the powers are stored as; powers of a chunk always pass through device memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from skysieve.core.kernels import Module, Runtime
from skysieve.core.staging import Copier, Lane
from skysieve.periodogram import cuda_structs as cs
from skysieve.periodogram.cuda_chi2_grid import Cut, cut
from skysieve.periodogram.cuda_chi2_parts import BETA, REACH, SAMPLER, Chi2Layout, Chi2Part, tables
from skysieve.periodogram.cuda_parts import CANDIDATE_BYTES, Part
from skysieve.periodogram.cuda_worker import NORM, PACKAGE, Job, Worker
from skysieve.periodogram.workload import Spec

F64 = np.dtype(np.float64)
LIMIT = 10.0
"""Of combs, as ``cpu_chi2_job.LIMIT``: square sum of the parameters over the root of the number of points."""
TRUST = 3.0
"""The same of what is interpolated from samples: up to it no error passed 6e-9 (124 light curves of 9 to 39 points)."""
EXACT_LIMIT = 3e5
"""The same where sums are over all points: no power was more than 3e-9 off (12 light curves of 9 to 20 points)."""
FEW = 128
"""Points up to which a thread sums them for one frequency."""
PAD = 64
"""Rows of weights that may be read past the last one."""

SAMPLES_SHARED = 4 * 8 * 35 * (12 + 2 * 20)
"""Bytes of shared memory of a block of ``chi2_samples``: strengths and weights of some points."""

POINTS = cs._struct(
    "tp*", "wv*", "owner*", "info*", "taps*", "df*", "limit*", "cell*", "weight*", "strength*", "spin*", "counts*",
    "beta.", "scale.", "rows", "padded", "grid_stride", "counters",
)  # fmt: skip
SAMPLES = cs._struct(
    "tp*", "strength*", "spin*", "cell*", "weight*", "offsets*", "info*", "order*", "tasks*", "lead*", "at*", "bands*",
    "place*", "first*", "second*", "deconvolve*", "df*", "out*", "step.", "member", "blocks", "grid_stride",
)  # fmt: skip
TAPS = cs._struct(
    "f0*", "df*", "order*", "lead*", "at*", "taps*", "origin*", "shift*", "beta.", "inverse.", "L", "octets", "steps",
    "member", "blocks", "grid_stride",
)  # fmt: skip
POWERS = cs._struct(
    "samples*", "place*", "taps*", "origin*", "shift*", "bands*", "info*", "order*", "tasks*", "nf*", "start*",
    "power*", "doubts*", "doubted*", "room_doubts#", "limit.", "mean.", "L", "octets", "steps", "stride", "tiles",
    "turns", "room", "member", "blocks", "grid_stride",
)  # fmt: skip
REFIT = cs._struct(
    "tp*", "wv*", "offsets*", "info*", "f0*", "df*", "start*", "power*", "doubts*", "doubted*", "room_doubts#", "left*",
    "n_left*", "room_left#", "limit.", "mean.", "grid_stride", "few",
)  # fmt: skip
EXACT = cs._struct(
    "tp*", "wv*", "offsets*", "info*", "order*", "tasks*", "f0*", "df*", "nf*", "frequencies*", "start*", "power*",
    "some*", "n_some*", "room#", "limit.", "members", "blocks", "total", "grid_stride", "mean", "all", "few",
)  # fmt: skip
FIND = cs._struct(
    "info*", "order*", "tasks*", "nf*", "start*", "power*", *cs._PEAKS, "members", "grid_stride", "norm", "scaled",
    "edges",
)  # fmt: skip


class Chi2Worker(Worker):
    """As `Worker`, for fits of any number of terms but one."""

    def __init__(self, runtime: Runtime, spec: Spec, lanes: int = 3, copier: Copier | None = None) -> None:
        super().__init__(runtime, replace(spec, dtype=F64), lanes, copier)
        self.stored = spec.dtype
        self._chi2_tables: dict[int, tuple[Any, ...]] = {}

    def close(self) -> None:
        """Give back buffers and tables."""
        super().close()
        self._chi2_tables.clear()

    @property
    def chi2(self) -> Module:
        """The kernels of this number of terms; other numbers than those tested with are compiled when asked for."""
        return self.runtime.module(PACKAGE, "ls_chi2.cu", "t4", {"TERMS": self.spec.nterms})

    @property
    def grid(self) -> Module:
        """The kernels of samples, likewise."""
        return self.runtime.module(PACKAGE, "ls_chi2_grid.cu", "t4", {"TERMS": self.spec.nterms})

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
        small: dict[str, Any] = {
            "offsets": job.offsets.astype(np.int32), "f0": job.f0, "df": job.df, "nf": job.nf.astype(np.int32),
            "start": job.start - shift, "limit": job.limits.view(np.uint8),
        }  # fmt: skip
        cuts = self._cuts(job)
        for i, part in enumerate(job.parts):
            assert isinstance(part, Chi2Part)
            small |= {f"order{i}": part.order, f"exact{i}": part.exact[0], f"find{i}": part.find[0]}
            small |= self._small(i, part, cuts[i])
        data = self._upload(lane, {**self._rows(job), **small})
        answers = lane.array("answers", self._answer_bytes(n), np.uint8)
        info, frequency, best, index, flags = self._answers(answers, n)
        out = {"index": index, "frequency": frequency, "best": best, "flags": flags}
        peaks = {
            "list": lane.array("list", n * job.cap * CANDIDATE_BYTES[8], np.uint8),
            "count": lane.array("count", n, np.uint32), "floor": lane.array("floor", n, np.uint32),
            "edge": lane.array("edge", n * job.edges * 2, np.float64), "cap": job.cap, "wanted": self.spec.n_peaks,
        }  # fmt: skip
        values = self._device_values(lane, job.values)
        power = job.device_power if direct_out else lane.array("power64", job.n_powers, np.float64)
        stride = 0 if job.shared else 1
        grids = {"offsets": data["offsets"], "f0": data["f0"], "df": data["df"], "grid_stride": stride}
        to = {"info": info, "nf": data["nf"], "start": data["start"], "power": power}
        with lane:
            work = self._prepared(lane, job, data, info, count=peaks["count"], floor=peaks["floor"])
            for i, part in enumerate(job.parts):
                assert isinstance(part, Chi2Part)
                order = data[f"order{i}"]
                self._fit(lane, job, i, part, cuts[i], data, work, values, grids, to)
                self._find(lane, part, order, data[f"find{i}"], edges=job.edges, grid_stride=stride, **peaks, **to)
                self._peaks(lane, part, order, info, data, values, edges=job.edges, grid_stride=stride, **peaks, **out)
            host = lane.pinned("answers", len(answers), np.uint8)
            lane.to_host(host, answers)
            self._deliver_power(lane, job, power)
        job.results = self._results(lane, n)

    def _cuts(self, job: Job) -> list[Cut | None]:
        """Where the samples of each part's objects lie."""
        return [self._cut(job, part) for part in job.parts]

    def _small(self, i: int, part: Chi2Part, cut: Cut | None) -> dict[str, Any]:
        """Further small arrays of part ``i``."""
        if cut is None:
            return {}
        return {
            f"lead{i}": cut.found.lead, f"at{i}": cut.found.at, f"bands{i}": cut.found.bands, f"place{i}": cut.place,
            f"sample_tasks{i}": cut.sample_tasks, f"power_tasks{i}": cut.power_tasks,
        }  # fmt: skip

    def _prepared(self, lane: Lane, job: Job, data: dict[str, Any], info: Any, **peaks: Any) -> dict[str, Any]:
        """Clean rows; cells and weights of every point where there are combs."""
        rows, stride = job.n_rows, 0 if job.shared else 1
        work = {"tp": lane.array("tp", rows, np.float64), "wv": lane.array("wv", 2 * rows, np.float64)}
        owner = lane.array("owner", rows, np.int32)
        self._prepare(
            lane, data, job.n_objects, info, df=data["df"], row=lane.array("row", rows, np.int32), limit=data["limit"],
            grid_stride=stride, owner=owner, **work, **peaks,
        )  # fmt: skip
        counts = lane.array("chi2_counts", 2 * len(job.parts), np.uint32)
        spread: dict[str, Any] = {}
        if any(part.kind == "comb" for part in job.parts):
            spread = self._points(lane, data, info, work, owner, rows, stride, counts)
        return {**work, "counts": counts, "spread": spread}

    def _fit(
        self, lane: Lane, job: Job, i: int, part: Chi2Part, cut: Cut | None, data: dict[str, Any], work: dict[str, Any],
        values: Any, grids: dict[str, Any], to: dict[str, Any],
    ) -> None:  # fmt: skip
        """Powers of part ``i``."""
        order, doubts, rows = data[f"order{i}"], {}, {"tp": work["tp"], "wv": work["wv"]}
        if cut is not None:
            names = ("lead", "at", "bands", "place", "sample_tasks", "power_tasks")
            found = {name: data[f"{name}{i}"] for name in names}
            doubts = self._doubts(lane, job, work["counts"][2 * i : 2 * i + 2])
            self._sampled(lane, part, cut, order, found, {**work["spread"], "tp": work["tp"]}, doubts, grids, to)
            self._refit(lane, doubts, **rows, **grids, **{k: v for k, v in to.items() if k != "nf"})
        self._exact(lane, part, order, data[f"exact{i}"], values, doubts, **rows, **grids, **to)

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

    def _points(
        self, lane: Lane, data: dict[str, Any], info: Any, work: dict[str, Any], owner: Any, rows: int, stride: int,
        counts: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Cell, weights and strength of every point; and nothing in doubt yet."""
        padded = rows + PAD
        out = {
            "cell": lane.array("chi2_cell", padded, np.int32),
            "weight": lane.array("chi2_weight", 16 * padded, np.float64),
            "strength": lane.array("chi2_strength", 2 * padded, np.float64),
            "spin": lane.array("chi2_spin", 2 * padded, np.float64),
        }
        args = cs.fill(
            POINTS, owner=owner, info=info, taps=self._sampler(lane)[4], df=data["df"], limit=data["limit"], beta=BETA,
            scale=float(np.i0(BETA)) / REACH, rows=rows, padded=padded, grid_stride=stride, counts=counts,
            counters=len(counts), **work, **out,
        )  # fmt: skip
        self.grid.launch("chi2_points", (-(-padded // 16),), (256,), (args,), stream=lane.stream)
        return out

    def _doubts(self, lane: Lane, job: Job, counts: Any) -> dict[str, Any]:
        """Room for the frequencies of a part that are not trusted, and for those to be fitted by a warp."""
        room = job.n_powers // 8 + 65_536
        lists = {name: lane.array(f"chi2_{name}", 2 * room, np.int32) for name in ("doubts", "left")}
        return {**lists, "doubted": counts[:1], "n_left": counts[1:], "room": room}

    def _refit(self, lane: Lane, doubts: dict[str, Any], **more: Any) -> None:
        """What is in doubt of series of few points once more, from direct sums."""
        room = doubts["room"]
        args = cs.fill(
            REFIT, **{k: doubts[k] for k in ("doubts", "doubted", "left", "n_left")}, room_doubts=room, room_left=room,
            limit=EXACT_LIMIT, mean=float(self.spec.fit_mean), few=FEW, **more,
        )  # fmt: skip
        blocks = min(-(-room // 128), 4 * self.runtime.device.sm_count)
        self.chi2.launch("chi2_refit", (blocks,), (128,), (args,), stream=lane.stream)

    def _sampler(self, lane: Lane) -> tuple[Any, ...]:
        """Tables of the transforms that give samples."""
        if 0 not in self._chi2_tables:
            with lane:
                self._chi2_tables[0] = tuple(self.runtime.xp.asarray(a) for a in tables(1, SAMPLER))
                lane.synchronize()
        return self._chi2_tables[0]

    def _sampled(
        self, lane: Lane, part: Chi2Part, cut: Cut, order: Any, found: dict[str, Any], points: dict[str, Any],
        doubts: dict[str, Any], grids: dict[str, Any], to: dict[str, Any],
    ) -> None:  # fmt: skip
        """Powers of a part, a group of objects after the other: samples, coefficients, equations."""
        fit = part.fit
        assert isinstance(fit, Chi2Layout)
        first, second, _, deconvolve, _ = self._sampler(lane)
        steps, stride = int(fit.matrix_steps.sum()), grids["grid_stride"]
        most = max(g.stop - g.first for g in cut.groups) if stride else 1
        harmonics = 2 * fit.terms
        spread = 1 if stride else -(-fit.octets * steps // 8)  # blocks of a grid's coefficients
        samples = lane.array("chi2_samples", cut.most_samples, np.complex128)
        known = {
            "taps": lane.array("chi2_taps", most * fit.octets * steps * 32, np.float64),
            "origin": lane.array("chi2_origin", most * harmonics, np.int32),
            "shift": lane.array("chi2_shift", most * fit.octets * harmonics, np.int32),
        }
        common = {"order": order, "grid_stride": stride}
        shape = {"L": fit.combs, "octets": fit.octets, "steps": steps}
        done = [0, 0]
        for g in cut.groups:
            n = g.stop - g.first
            blocks = (g.sample_blocks, g.power_blocks)
            tasks = [
                None if found[name] is None else found[name].reshape(-1)[2 * d : 2 * (d + b)]
                for name, d, b in zip(("sample_tasks", "power_tasks"), done, blocks, strict=True)
            ]
            done = [d + b for d, b in zip(done, blocks, strict=True)]
            where = {**common, "member": g.first}
            args = cs.fill(
                SAMPLES, **points, tasks=tasks[0], first=first, second=second, deconvolve=deconvolve, out=samples,
                step=float(fit.combs), blocks=blocks[0] // n, offsets=grids["offsets"], df=grids["df"], info=to["info"],
                **{k: found[k] for k in ("lead", "at", "bands", "place")}, **where,
            )  # fmt: skip
            self.grid.launch(
                "chi2_samples", (blocks[0],), (128,), (args,), shared_mem=SAMPLES_SHARED, stream=lane.stream
            )
            if stride or not g.first:
                args = cs.fill(
                    TAPS, f0=grids["f0"], df=grids["df"], lead=found["lead"], at=found["at"], beta=BETA,
                    inverse=1 / float(np.i0(BETA)), blocks=spread, **known, **shape, **where,
                )  # fmt: skip
                self.grid.launch("chi2_taps", (n if stride else spread,), (256,), (args,), stream=lane.stream)
            args = cs.fill(
                POWERS, samples=samples, place=found["place"], bands=found["bands"], tasks=tasks[1], limit=TRUST,
                mean=float(self.spec.fit_mean), stride=fit.stride, tiles=fit.tiles,
                turns=cut.turns, room=fit.room, blocks=blocks[1] // n, doubts=doubts["doubts"],
                doubted=doubts["doubted"], room_doubts=doubts["room"], **known, **shape, **where, **to,
            )  # fmt: skip
            self.grid.launch(
                "chi2_powers", (blocks[1],), (32 * fit.tiles,), (args,), shared_mem=fit.shared_bytes, stream=lane.stream
            )

    def _exact(
        self, lane: Lane, part: Chi2Part, order: Any, tasks: Any, values: Any, doubts: dict[str, Any], **more: Any
    ) -> None:
        """Fits by warps: of what is still in doubt, or of everything."""
        columns = 2 * self.spec.nterms + 1
        warps = 4 if self.spec.nterms <= 8 else 1
        entries = (columns + 1) * (columns + 2) // 2 - 1
        total = part.count(part.exact)
        some = (doubts["left"], doubts["n_left"], doubts["room"]) if doubts else (None, None, 0)
        args = cs.fill(
            EXACT, order=order, tasks=tasks, frequencies=values, members=len(part.order), blocks=part.exact[1],
            total=total, mean=int(self.spec.fit_mean), all=int(part.fit is None), some=some[0], n_some=some[1],
            room=some[2], limit=EXACT_LIMIT, few=FEW if doubts else 0, **more,
        )  # fmt: skip
        blocks = min(total, 8 * self.runtime.device.sm_count) if doubts else total
        self.chi2.launch(
            "chi2_exact", (blocks,), (32 * warps,), (args,),
            shared_mem=warps * (16 * entries + 8 * (32 * (columns + 1) + columns)), stream=lane.stream,
        )  # fmt: skip

    def _find(self, lane: Lane, part: Chi2Part, order: Any, tasks: Any, **more: Any) -> None:
        args = cs.fill(
            FIND, order=order, tasks=tasks, members=len(part.order), norm=NORM[self.spec.normalization],
            scaled=int(self.spec.normalization != "standard"), **more,
        )  # fmt: skip
        self.chi2.launch("chi2_find", (part.count(part.find),), (256,), (args,), stream=lane.stream)

    def _peaks(
        self, lane: Lane, part: Chi2Part, order: Any, info: Any, data: dict[str, Any], values: Any, **more: Any
    ) -> None:
        """The best of the candidates of each object."""
        few = len(part.order) <= 256
        block, held = (1024, min(part.cap, 3600)) if few and part.cap > 1024 else (512, min(part.cap, 4096))
        args = cs.fill(
            cs.BEST, info=info, limit=data["limit"], f0=data["f0"], df=data["df"], nf=data["nf"], frequencies=values,
            order=order, held=held, **more,
        )  # fmt: skip
        self.module("ls_peaks.cu").launch(
            "ls_peaks", (len(part.order),), (block,), (args,), shared_mem=held * 12, stream=lane.stream
        )
