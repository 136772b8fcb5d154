"""One sinusoid on one GPU: the launches of samples, combs and direct sums for a chunk of objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from skysieve.core.gpu.staging import Lane
from skysieve.core.gpu.structs import fill
from skysieve.periodogram.cuda import structs as cs
from skysieve.periodogram.cuda.layouts import Layout, Samples
from skysieve.periodogram.cuda.parts import LIST_SPAN, SEARCH_SPAN, Part
from skysieve.periodogram.cuda.samples.samples import (  # fmt: skip
    BINS,
    NAMES,
    launch_powers,
    launch_taps,
    one_term,
    powers_kernels,
    small_arrays,
)
from skysieve.periodogram.cuda.samples.stretches import Cut, cut
from skysieve.periodogram.cuda.worker import NORM, PACKAGE, Job, Worker

GUARD = {
    ("comb", 8): (0.005, 30), ("direct", 8): (1e-3, 0), ("comb", 4): (0.02, 36), ("direct", 4): (0.02, 0),
    ("samples", 8): (0.02, 15), ("samples", 4): (0.05, 16),
}  # fmt: skip
"""Determinants CC SS - CS^2 up to the first number, or all of them for so many points, are taken again from exact
centred sums: the errors of the sums are divided by the determinant.  Without a guard no error passed 8e-10 with 25
points and more in float64, 1.7e-6 with 33 and more in float32; of sums interpolated from samples 7.2e-10 with 16 and
more, 1.3e-6 with 18 and more, 8.5e-7 with 28 and more (30 light curves of each length, uniform and nightly times, df*T
0.1)."""
BESIDE = 4
"""Tiles of a block of direct sums beside larger parts (``RUN`` of ``sinusoid/direct.cu``, at most): fewer blocks
leave more of the GPU to those."""
LONG = 1024
"""Series of more points are spread by a block for each 16 cells, shorter ones by a warp (``sinusoid/spread.cu``)."""
SPREAD_CELLS = 2 * 1024
"""Complex cells of a pair of bands."""
GROUP = 256
"""Objects whose blocks follow one another: their first bands together, then their second, and so on, so that the
floor under the best peaks is known when the later ones are searched."""


class SinusoidWorker(Worker):
    """As `Worker`, for fits of one sinusoid."""

    def _kernels(self, layouts: Iterable[tuple[Layout | None, bool, int]]) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = [(PACKAGE, "sinusoid/direct.cu", self.build)]
        for layout, writes, per_block in layouts:
            if isinstance(layout, Samples):
                found += [self.sampler.kernels, powers_kernels(PACKAGE, self.spec, layout)]
            elif layout is not None:
                form = layout.form(writes, per_block)
                found.append(
                    (PACKAGE, "sinusoid/fine.cu", self.build) if layout.window else (PACKAGE, "sinusoid/comb.cu", form)
                )
        return found

    def _launch(self, lane: Lane, job: Job) -> None:
        n, rows, spec = job.n_objects, job.n_rows, self.spec
        small = self._of_objects(job, job.start)
        cuts: dict[int, Cut] = {}
        for i, part in enumerate(job.parts):
            small[f"order{i}"], small[f"tasks{i}"] = part.order, part.tasks
            if isinstance(part.layout, Samples):
                own = slice(None) if job.shared else part.order
                grids = (job.f0[own], job.df[own], job.nf[own])
                cuts[i] = cut(one_term(part.layout), *grids, len(part.order), job.shared, 1, turns=1)
                small |= small_arrays(cuts[i], i)
        data = self._upload(lane, {**self._placed(lane, job), **small})
        stride = 0 if job.shared else 1
        info, peaks = lane.array("info", n, cs.INFO), self._candidates(lane, job)
        values = self._device_values(lane, job.values)
        power = job.device_power
        if power is None and job.n_powers:
            power = lane.array("power", job.n_powers, spec.dtype)
        bins = lane.array("bins", n * BINS, np.uint32) if cuts else None
        combs = [i for i, part in enumerate(job.parts) if part.kind == "comb"]
        largest = max(combs or range(len(job.parts)), key=lambda i: len(job.parts[i].order))
        with lane:
            there = {"f0": data["f0"], "df": data["df"], "grid_stride": stride}
            found = {i: {name: data[f"{name}{i}"] for name in NAMES} for i in cuts}
            taps = {
                i: launch_taps(
                    self.sampler, lane, self._data, i, spec, job.parts[i], found[i], data[f"order{i}"], there
                )
                for i in cuts
            }  # fmt: skip
            work = self._clean(lane, job, data, info, peaks, bins)
            # small parts do not fill the GPU: they run beside the largest one
            side = lane.fork() if len(job.parts) > 1 else None
            each = [
                there | peaks | {
                    "tp": work["tp"], "wv": work["wv"], "offsets": data["offsets"], "info": info, "nf": data["nf"],
                    "order": data[f"order{i}"], "tasks": data[f"tasks{i}"], "start": data["start"], "power": power,
                    "norm": NORM[spec.normalization], "scaled": spec.normalization != "standard", "edges": job.edges,
                }
                for i in range(len(job.parts))
            ]  # fmt: skip
            for i, part in enumerate(job.parts):
                if i not in combs:
                    self._direct(lane.stream if i == largest else side, part, i != largest, values=values, **each[i])
            spread = self._weights(lane, data, work, rows, stride) if len(combs) > len(cuts) else {}
            points = self.sampler.points(lane, data, info, work, work["owner"], rows, stride) if cuts else {}
            if len(combs) > 1:
                lane.fork()
            for i in sorted(combs, key=lambda i: i == largest):
                stream, part = lane.stream if i == largest else side, job.parts[i]
                if i in cuts:
                    launch_powers(
                        self.sampler, lane, stream, i, spec, part, cuts[i], found[i], points, taps[i],
                        guard=GUARD["samples", self.itemsize], group=GROUP, bins=bins, **each[i],
                    )  # fmt: skip
                else:
                    self._comb(lane, stream, i, part, spread, **each[i])
            if len(job.parts) > 1:
                lane.join()
            self._peaks(lane, job, data, info, values, peaks, work)
            if job.host_power is not None and job.n_powers:
                lane.to_host(job.host_power, power[: job.n_powers])

    def _comb(self, lane: Lane, stream: Any, i: int, part: Part, spread: dict[str, Any], **more: Any) -> None:
        layout, t = part.layout, self.spec.dtype
        assert layout is not None
        tables = self._device_tables(lane, layout)
        form = layout.form(more["power"] is not None, part.per_block)
        guard, few = GUARD["comb", self.itemsize]
        cells = None
        if layout.columns and part.long:
            cells = lane.array(f"cells{i}", part.launches * SPREAD_CELLS * 2, t)
            names = ("tp", "wv", "offsets", "info", "order", "tasks", "f0", "df", "grid_stride")
            args = fill(
                cs.SPREAD, out=cells, mean=float(self.spec.fit_mean), modes=layout.modes, P=layout.combs,
                pairs=part.stretches, **spread, **{k: more[k] for k in names},
            )  # fmt: skip
            grid = (part.launches * 48,)
            self.module("sinusoid/spread.cu").launch("ls_spread", grid, (256,), (args,), stream=stream)
        more |= dict(zip(("first", "second", "fold", "deconvolve", "taps"), tables, strict=False))
        more |= {
            "spread": cells, "guard": guard, "few": few, "modes": layout.modes, "P": layout.combs,
            "pairs": part.stretches, "members": len(part.order), "group": GROUP, "blocks": part.blocks,
            "mean": float(self.spec.fit_mean),
        }  # fmt: skip
        if layout.window:
            args = fill(cs.COARSE, tiles=part.per_block, **spread, **more)
            kernel, threads, module = form, 256, self.module("sinusoid/fine.cu")
        else:
            args = fill(cs.COMB, S=part.per_block, zero=0, **spread, **more)
            kernel, threads, module = "ls_comb", 128, self.module("sinusoid/comb.cu", form)
        module.launch(
            kernel, (part.launches * part.blocks,), (threads,), (args,),
            shared_mem=layout.shared_bytes(self.itemsize, form, part.per_block), stream=stream,
        )  # fmt: skip

    def _direct(self, stream: Any, part: Part, beside: bool, *, values: Any, **more: Any) -> None:
        guard, few = GUARD["direct", self.itemsize]
        args = fill(
            cs.DIRECT, frequencies=values, guard=guard, few=few, blocks=part.stretches, fit_mean=self.spec.fit_mean,
            each=BESIDE if beside else 0, **more,
        )  # fmt: skip
        module = self.module("sinusoid/direct.cu")
        if part.kind == "direct":
            module.launch("ls_direct", (part.launches,), (256,), (args,), stream=stream)
            return
        module.launch("ls_list", (part.launches,), (LIST_SPAN,), (args,), stream=stream)
        blocks = -(-(part.stretches * LIST_SPAN) // SEARCH_SPAN)
        names = (
            "power", "start", "info", "nf", "order", "count", "floor", "edge", "share", "cap", "wanted", "list",
            "grid_stride",
        )  # fmt: skip
        args = fill(cs.SEARCH, blocks=blocks, **{k: more[k] for k in names})
        self.module("peaks/peaks.cu").launch(
            "ls_candidates", (len(part.order) * blocks,), (SEARCH_SPAN,), (args,), stream=stream
        )
        if more["scaled"]:
            which = ("power", "start", "info", "nf", "order", "grid_stride", "norm")
            args = fill(cs.SCALE, blocks=blocks, **{k: more[k] for k in which})
            self.module("peaks/peaks.cu").launch(
                "ls_scale", (len(part.order) * blocks,), (SEARCH_SPAN,), (args,), stream=stream
            )
