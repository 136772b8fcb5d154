"""Series of several Fourier terms on one GPU: the launches of ``ls_chi2.cu`` for a chunk of objects.

Sums and equations are float64 whatever the powers are stored as; powers of a chunk always pass through device memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from skysieve.core.kernels import Module, Runtime
from skysieve.core.staging import Copier, Lane
from skysieve.periodogram import cuda_structs as cs
from skysieve.periodogram.cuda_chi2_parts import Chi2Part, tables
from skysieve.periodogram.cuda_parts import CANDIDATE_BYTES
from skysieve.periodogram.cuda_worker import NORM, PACKAGE, Job, Worker
from skysieve.periodogram.workload import Spec

F64 = np.dtype(np.float64)
LIMIT = 10.0
"""As ``cpu_chi2_job.LIMIT``: square sum of the parameters over the root of the number of points."""
PAD = 64
"""Rows of weights that may be read past the last one."""

WEIGHTS = cs._struct("tp*", "owner*", "taps*", "df*", "limit*", "cell*", "weight*", "rows", "stride", "grid_stride")
COMB = cs._struct(
    "tp*", "wv*", "cell*", "weight*", "offsets*", "info*", "order*", "tasks*", "first*", "second*", "fold*",
    "deconvolve*", "f0*", "df*", "nf*", "start*", "power*", "limit.", "mean.", "P", "G", "bands", "stride",
    "grid_stride", "room",
)  # fmt: skip
EXACT = cs._struct(
    "tp*", "wv*", "offsets*", "info*", "order*", "tasks*", "f0*", "df*", "nf*", "frequencies*", "start*", "power*",
    "members", "blocks", "grid_stride", "mean", "all",
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

    def _chi2_table(self, lane: Lane, combs: int) -> tuple[Any, ...]:
        if combs not in self._chi2_tables:
            with lane:
                self._chi2_tables[combs] = tuple(self.runtime.xp.asarray(a) for a in tables(combs))
                lane.synchronize()
        return self._chi2_tables[combs]

    def _launch(self, lane: Lane, job: Job) -> None:
        n, rows, spec = job.n_objects, job.n_rows, self.spec
        assert job.start is not None
        direct_out = job.device_power is not None and self.stored == F64
        shift = 0 if direct_out else int(job.start[0])
        small: dict[str, Any] = {
            "offsets": job.offsets.astype(np.int32), "f0": job.f0, "df": job.df, "nf": job.nf.astype(np.int32),
            "start": job.start - shift, "limit": job.limits.view(np.uint8),
        }  # fmt: skip
        for i, part in enumerate(job.parts):
            assert isinstance(part, Chi2Part)
            small |= {
                f"order{i}": part.order,
                f"tasks{i}": part.tasks,
                f"exact{i}": part.exact[0],
                f"find{i}": part.find[0],
            }
        data = self._upload(lane, {"t": job.t, "y": job.y, "dy": job.dy, **small})
        answers = lane.array("answers", self._answer_bytes(n), np.uint8)
        info, frequency, best, index, flags = self._answers(answers, n)
        count, floor = lane.array("count", n, np.uint32), lane.array("floor", n, np.uint32)
        values = self._device_values(lane, job.values)
        power = job.device_power if direct_out else lane.array("power64", job.n_powers, np.float64)
        stride = 0 if job.shared else 1
        work = {"tp": lane.array("tp", rows, np.float64), "wv": lane.array("wv", 2 * rows, np.float64)}
        owner = lane.array("owner", rows, np.int32)
        candidates = lane.array("list", n * job.cap * CANDIDATE_BYTES[8], np.uint8)
        peaks = {
            "list": candidates, "count": count, "floor": floor,
            "edge": lane.array("edge", n * job.edges * 2, np.float64), "cap": job.cap, "wanted": spec.n_peaks,
        }  # fmt: skip
        grids = {"offsets": data["offsets"], "f0": data["f0"], "df": data["df"], "grid_stride": stride}
        with lane:
            self._prepare(
                lane, data, n, info, df=data["df"], row=lane.array("row", rows, np.int32), count=count, floor=floor,
                limit=data["limit"], grid_stride=stride, owner=owner, **work,
            )  # fmt: skip
            spread: dict[str, Any] = {}
            if any(part.kind == "comb" for part in job.parts):
                spread = self._spreading(lane, data, work["tp"], owner, rows, stride)
            for i, part in enumerate(job.parts):
                assert isinstance(part, Chi2Part)
                to = {"info": info, "nf": data["nf"], "start": data["start"], "power": power}
                if part.fit is not None:
                    self._combs(lane, part, data[f"order{i}"], data[f"tasks{i}"], **spread, **work, **grids, **to)
                order = data[f"order{i}"]
                self._exact(lane, part, order, data[f"exact{i}"], values, **work, **grids, **to)
                self._find(lane, part, order, data[f"find{i}"], edges=job.edges, grid_stride=stride, **peaks, **to)
                out = {"index": index, "frequency": frequency, "best": best, "flags": flags}
                self._peaks(lane, part, order, info, data, values, edges=job.edges, grid_stride=stride, **peaks, **out)
            host = lane.pinned("answers", len(answers), np.uint8)
            lane.to_host(host, answers)
            self._deliver_power(lane, job, power)
        job.results = self._results(lane, n)

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

    def _spreading(
        self, lane: Lane, data: dict[str, Any], tp: Any, owner: Any, rows: int, stride: int
    ) -> dict[str, Any]:
        """Cells and weights of every point and harmonic."""
        harmonics, padded = 2 * self.spec.nterms, rows + PAD
        out = {
            "cell": lane.array("chi2_cell", harmonics * padded, np.int32, zero=True),
            "weight": lane.array("chi2_weight", 16 * harmonics * padded, np.float64),
        }
        taps = self._chi2_table(lane, 1)[4]
        args = cs.fill(
            WEIGHTS, tp=tp, owner=owner, taps=taps, df=data["df"], limit=data["limit"], rows=rows, stride=padded,
            grid_stride=stride, **out,
        )  # fmt: skip
        self.chi2.launch("chi2_weights", (-(-padded // 16),), (256,), (args,), stream=lane.stream)
        return {**out, "stride": padded}

    def _combs(self, lane: Lane, part: Chi2Part, order: Any, tasks: Any, **more: Any) -> None:
        fit = part.fit
        assert fit is not None
        first, second, fold, deconvolve, _ = self._chi2_table(lane, fit.combs)
        args = cs.fill(
            COMB, order=order, tasks=tasks, first=first, second=second, fold=fold, deconvolve=deconvolve, limit=LIMIT,
            mean=float(self.spec.fit_mean), P=fit.combs, G=fit.together, bands=part.stretches, room=fit.room, **more,
        )  # fmt: skip
        self.chi2.launch(
            "chi2_comb", (part.launches,), (16 * 24,), (args,), shared_mem=fit.shared_bytes, stream=lane.stream
        )

    def _exact(self, lane: Lane, part: Chi2Part, order: Any, tasks: Any, values: Any, **more: Any) -> None:
        columns = 2 * self.spec.nterms + 1
        warps = 4 if self.spec.nterms <= 8 else 1
        entries = (columns + 1) * (columns + 2) // 2 - 1
        args = cs.fill(
            EXACT, order=order, tasks=tasks, frequencies=values, members=len(part.order), blocks=part.exact[1],
            mean=int(self.spec.fit_mean), all=int(part.fit is None), **more,
        )  # fmt: skip
        self.chi2.launch(
            "chi2_exact", (part.count(part.exact),), (32 * warps,), (args,),
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
        block, held = (1024, min(part.cap, 3600)) if few and part.cap > 1024 else (128, min(part.cap, 1024))
        args = cs.fill(
            cs.BEST, info=info, limit=data["limit"], f0=data["f0"], df=data["df"], nf=data["nf"], frequencies=values,
            order=order, held=held, **more,
        )  # fmt: skip
        self.module("ls_peaks.cu").launch(
            "ls_peaks", (len(part.order),), (block,), (args,), shared_mem=held * 12, stream=lane.stream
        )
