"""One GPU's share of a periodogram job: upload a chunk of objects, launch its kernels, bring the answers home.

Launches only; the mathematics is in the ``.cu`` files, the layout in ``cuda_tables`` and ``cuda_parts``.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skysieve.core.arrays import is_device_array
from skysieve.core.kernels import Module, Runtime
from skysieve.core.staging import Copier, Lane, make_lane
from skysieve.periodogram import cuda_structs as cs
from skysieve.periodogram.cuda_chi2_grid import Cut, cut
from skysieve.periodogram.cuda_chi2_parts import Chi2Layout
from skysieve.periodogram.cuda_coarse import corrections, make_coarse_tables
from skysieve.periodogram.cuda_parts import CANDIDATE_BYTES, LIST_SPAN, SEARCH_SPAN, Part
from skysieve.periodogram.cuda_recorded import Launches, Recorded, bytes_of, gathered, place_of, places_of
from skysieve.periodogram.cuda_samples import BINS, NAMES, Sampler, launch_powers, launch_taps, one_term, small_arrays
from skysieve.periodogram.cuda_tables import Layout, Samples, layouts, make_tables, spreading_kernel
from skysieve.periodogram.workload import Scan, Spec

PACKAGE = "skysieve.periodogram"
GUARD = {
    ("comb", 8): (0.005, 30), ("direct", 8): (1e-3, 0), ("comb", 4): (0.02, 36), ("direct", 4): (0.02, 0),
    ("samples", 8): (0.02, 15), ("samples", 4): (0.05, 16),
}  # fmt: skip
"""Determinants CC SS - CS^2 up to the first number, or all of them for so many points, are taken again from exact
centred sums: the errors of the sums are divided by the determinant.  Without a guard no error passed 8e-10 with 25
points and more in float64, 1.7e-6 with 33 and more in float32; of sums interpolated from samples 7.2e-10 with 16 and
more, 1.3e-6 with 18 and more, 8.5e-7 with 28 and more (30 light curves of each length, uniform and nightly times, df*T
0.1)."""
SCALE_KIND = {"psd": 1, "scargle": 2}
NORM = {"standard": 0, "psd": 0, "scargle": 0, "model": 1, "log": 2}
BESIDE = 4
"""Tiles of a block of direct sums beside larger parts (``RUN`` of ``ls_direct.cu``, at most): fewer blocks leave more
of the GPU to those."""
WIDE, NARROW = 512, 128
"""Threads of a block of ``ls_prepare`` for few objects and for many: the sums are the same."""
WEIGHT_PAD = 64
"""Rows of weights that may be read past the last one."""
STRAIGHT = 1 << 21
"""Bytes of an array up to which it goes from pageable memory to the device by the driver's copy."""
LONG = 1024
"""Series of more points are spread by a block for each 16 cells, shorter ones by a warp (``ls_spread.cu``)."""
SPREAD_CELLS = 2 * 1024
"""Complex cells of a pair of bands."""
GROUP = 256
"""Objects whose blocks follow one another: their first bands together, then their second, and so on, so that the
floor under the best peaks is known when the later ones are searched."""


@dataclass
class Job:
    """One chunk: its light curves, its grids, where its answers go.

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
    parts: list[Part]
    limits: NDArray[Any]
    cap: int
    edges: int
    codes: NDArray[np.uint8]
    """Number of the method of each object."""
    values: NDArray[np.float64] | None = None
    start: NDArray[np.int64] | None = None
    n_powers: int = 0
    device_power: Any = None
    host_power: NDArray[Any] | None = None
    results: dict[str, NDArray[Any]] = field(default_factory=dict)
    copies: list[Future[None]] | None = None
    signature: tuple[Any, ...] | None = None
    host_rows: dict[str, Any] | None = None
    code: NDArray[np.int32] | None = None
    """Number of the band of each row, where there are several."""

    def like(self, **changes: Any) -> Job:
        """A job that differs in some fields (`dataclasses.replace` takes as long as a launch)."""
        job = object.__new__(Job)
        job.__dict__.update(self.__dict__ | changes)
        return job

    @property
    def n_objects(self) -> int:
        return len(self.offsets) - 1

    @property
    def n_rows(self) -> int:
        return int(self.offsets[-1])


class Worker:
    """Kernels, tables and lanes of one GPU."""

    def __init__(self, runtime: Runtime, spec: Spec, lanes: int = 3, copier: Copier | None = None) -> None:
        self.runtime = runtime
        self.spec = spec
        self.itemsize = spec.dtype.itemsize
        self.build = "f64" if spec.dtype == np.float64 else "f32"
        self.copier = copier or Copier()
        self.lanes = [make_lane(runtime) for _ in range(lanes)]
        self._tables: dict[tuple[int, int], tuple[Any, ...]] = {}
        like = one_term(layouts(spec.dtype, 0, True)[0]) if spec.sinusoid else Chi2Layout(spec.nterms, 1, 1)
        self.sampler = Sampler(runtime, PACKAGE, like)
        self._spare: Lane | None = None
        self.launches = Launches()
        self._data = "data"
        self._values: tuple[NDArray[np.float64] | None, Any] = (None, None)

    def module(self, name: str, build: str | None = None) -> Module:
        return self.runtime.module(PACKAGE, name, build or self.build)

    @property
    def spare(self) -> Lane:
        """A further lane for first looks and what is taken again: recorded launches need the others' buffers whole."""
        if self._spare is None:
            self._spare = make_lane(self.runtime)
        return self._spare

    @property
    def free_memory(self) -> int:
        """Bytes that the device can still give; all of it where the device is the host."""
        device = self.runtime.device
        return device.total_memory if self.runtime.xp is np else device.free_memory

    def forget(self, lane: Lane) -> None:
        """Give back a lane's buffers and its recorded launches."""
        lane.free()
        self.launches.forget(lane)

    def release(self) -> None:
        """Give back the buffers of every lane."""
        for lane in (*self.lanes, *filter(None, [self._spare])):
            self.forget(lane)

    def settle(self) -> None:
        """Wait for everything started on any lane."""
        for lane in (*self.lanes, *filter(None, [self._spare])):
            lane.settle()

    def close(self) -> None:
        """Give back buffers and tables."""
        self.release()
        self.sampler.close()
        self._tables.clear()
        self._values = (None, None)

    # ------------------------------------------------------------------ upload

    def _upload(self, lane: Lane, arrays: dict[str, Any]) -> dict[str, Any]:
        """Host arrays to the device in one transfer; those already there stay where they are."""
        out: dict[str, Any] = {k: a for k, a in arrays.items() if a is None or is_device_array(a)}
        host = {k: np.ascontiguousarray(a) for k, a in arrays.items() if k not in out}
        if self.runtime.xp is np:
            return {**out, **host}
        places, total = places_of(host)
        device = lane.array(self._data, total, np.uint8)
        if not lane.recording:
            pinned = lane.pinned(self._data, total, np.uint8)
            self.copier.copy([(pinned[p : p + host[k].nbytes], bytes_of(host[k])) for k, p in places.items()])
            lane.to_device(device, pinned)
        for name, p in places.items():
            out[name] = device[p : p + host[name].nbytes].view(host[name].dtype)
        return out

    def _device_values(self, lane: Lane, values: NDArray[np.float64] | None) -> Any:
        """The list of frequencies on the device, kept between chunks."""
        if values is None:
            return None
        if self._values[0] is not values:
            with lane:
                self._values = (values, self.runtime.xp.asarray(values))
                lane.synchronize()
        return self._values[1]

    def _device_tables(self, lane: Lane, layout: Layout) -> tuple[Any, ...]:
        key = (layout.combs, layout.window)
        if key not in self._tables:
            made = make_coarse_tables(layout) if layout.window else make_tables(layout.combs, self.spec.dtype)
            parts = astuple(made)
            with lane:
                self._tables[key] = tuple(self.runtime.xp.asarray(a) for a in parts)
                lane.synchronize()
        return self._tables[key]

    def _device_taps(self, lane: Lane) -> Any:
        """Polynomials of the spreading kernel's taps, and of the corrections of interpolated sums."""
        if (0, 0) not in self._tables:
            with lane:
                taps = np.ascontiguousarray(spreading_kernel(self.spec.dtype).coefficients())
                self._tables[0, 0] = tuple(self.runtime.xp.asarray(a) for a in (taps, corrections()))
                lane.synchronize()
        return self._tables[0, 0]

    # ------------------------------------------------------------------ scan

    def scan(self, t: Any, y: Any, dy: Any, offsets: NDArray[np.int64]) -> Scan:
        """First look at the objects of a chunk."""
        lane, n = self.spare, len(offsets) - 1
        self._data = "scan"  # no recorded launch's buffer
        if is_device_array(t) or is_device_array(y) or is_device_array(dy):
            lane.after_caller()
        data = self._upload(lane, {"t": t, "y": y, "dy": dy, "offsets": offsets.astype(np.int32)})
        info = lane.array("info", n, cs.INFO)
        with lane:
            self._prepare(lane, data, n, info, scan_only=True)
            host = lane.pinned("info", n, cs.INFO)
            lane.to_host(host, info)
        lane.synchronize()
        return cs.scan_of(host)

    def _prepare(self, lane: Lane, data: dict[str, Any], n: int, info: Any, **more: Any) -> None:
        given: dict[str, Any] = {
            "df": None, "limit": None, "tp": None, "wv": None, "owner": None, "row": None, "count": None, "floor": None,
            "bins": None, "told": None, "grid_stride": 0, "scan_only": False,
        } | more  # fmt: skip
        centre = self.spec.center_data or self.spec.fit_mean
        kind = SCALE_KIND.get(self.spec.normalization, 0)
        args = cs.fill(
            cs.PREPARE, t=data["t"], y=data["y"], dy=data["dy"], offsets=data["offsets"], info=info,
            centre=centre, scale_kind=kind, **given,
        )  # fmt: skip
        threads = WIDE if n <= 2 * self.runtime.device.sm_count else NARROW
        self.module("ls_prepare.cu").launch("ls_prepare", (n,), (threads,), (args,), stream=lane.stream)

    # ------------------------------------------------------------------ one chunk

    def begin(self, lane: Lane, job: Job) -> None:
        """Upload and launch everything of a chunk; returns before the GPU is done.

        A chunk like one that the lane knows (the same parts and destinations, other values) is recorded as one
        graph, and from then on its launch is one call.
        """
        if any(is_device_array(a) for a in (job.t, job.y, job.dy, job.device_power)):
            lane.after_caller()
        known = self.launches.known(lane, self._signature(job))
        if known is None:
            self._data = self.launches.room(lane, job.n_rows)
            self._launch(lane, job)
            self.launches.keep(lane, self._signature(job), Recorded(lane.generation, job.parts, self._data))
            return
        self._data = known.data
        if known.replay is None:
            known.replay = lane.record(lambda: self._launch(lane, job))
            if known.replay is None:
                return
            known.place(lane, self._host_rows(job))
            known.results = job.results
        self._placed(lane, job)
        if job.copies is None:
            for name, a in self._host_rows(job).items():
                lane.to_device(known.rows[name][0], a)
        else:
            for copy in job.copies:
                copy.result()
            assert known.whole is not None
            lane.to_device(*known.whole)
        known.replay()
        job.results = known.results

    def prefetch(self, lane: Lane, job: Job) -> None:
        """Let other threads copy a chunk's rows to where its recorded launch will look for them.

        Few rows are left to the driver, whose own copy is faster than one thread's and overlaps its transfer.
        """
        known = self.launches.known(lane, self._signature(job))
        if known is None or known.replay is None:
            return
        host = self._host_rows(job)
        if any(a.nbytes > STRAIGHT for a in host.values()):
            job.copies = self.copier.start([(known.rows[name][1], bytes_of(a)) for name, a in host.items()])

    def _host_rows(self, job: Job) -> dict[str, Any]:
        """The rows that lie on the host."""
        if job.host_rows is None:
            job.host_rows = {k: a for k, a in self._rows(job).items() if a is not None and not is_device_array(a)}
        return job.host_rows

    def _rows(self, job: Job) -> dict[str, Any]:
        """What a chunk has for each row, in the order in which it is uploaded."""
        return {"t": job.t, "y": job.y, "dy": job.dy}

    def _placed(self, lane: Lane, job: Job) -> dict[str, Any]:
        """The rows of a chunk; those that are `gathered`, copied to where a recorded launch looks for them."""
        rows = self._rows(job)
        for name, a in rows.items():
            if gathered(a):
                rows[name] = lane.array(f"{self._data}.{name}", a.size, a.dtype)
                if not lane.recording:
                    lane.from_peer(rows[name], a, a.device.id)
        return rows

    def _signature(self, job: Job) -> tuple[Any, ...]:
        """What must not change for a recorded launch to serve another job."""
        if job.signature is None:
            rows = ((name, place_of(a)) for name, a in self._rows(job).items() if a is not None)
            start = job.objects.start if job.device_power is not None else 0
            powers = cs.address(job.device_power), cs.address(job.host_power)
            job.signature = (id(job.parts), job.n_powers, start, *rows, *powers)
        return job.signature

    def _launch(self, lane: Lane, job: Job) -> None:
        n, rows, spec = job.n_objects, job.n_rows, self.spec
        small: dict[str, Any] = {
            "offsets": job.offsets.astype(np.int32), "f0": job.f0, "df": job.df, "nf": job.nf.astype(np.int32),
            "start": job.start, "limit": job.limits.view(np.uint8),
        }  # fmt: skip
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
        k, t = spec.n_peaks, spec.dtype
        # kernels write answers to the host themselves: few bytes, which a copy after them would take longer for
        told, frequency, best, index, flags = self._answers(lane.pinned("answers", self._answer_bytes(n), np.uint8), n)
        info = lane.array("info", n, cs.INFO)
        work = {
            "tp": lane.array("tp", rows, np.float64), "wv": lane.array("wv", 2 * rows, np.float64),
            "owner": lane.array("owner", rows, np.int32),
        }  # fmt: skip
        count, floor = lane.array("count", n, np.uint32), lane.array("floor", n, np.uint32)
        values = self._device_values(lane, job.values)
        power = job.device_power
        if power is None and job.n_powers:
            power = lane.array("power", job.n_powers, t)
        size = self.itemsize
        candidates = lane.array("list", n * job.cap * CANDIDATE_BYTES[size], np.uint8)
        edge = lane.array("edge", n * job.edges * 2, t)
        bins = lane.array("bins", n * BINS, np.uint32) if cuts else None
        with lane:
            there = {"f0": data["f0"], "df": data["df"], "grid_stride": stride}
            found = {i: {name: data[f"{name}{i}"] for name in NAMES} for i in cuts}
            taps = {
                i: launch_taps(
                    self.sampler, lane, self._data, i, spec, job.parts[i], found[i], data[f"order{i}"], there
                )
                for i in cuts
            }  # fmt: skip
            self._prepare(
                lane, data, n, info, df=data["df"], row=lane.array("row", rows, np.int32), count=count, floor=floor,
                bins=bins, limit=data["limit"], grid_stride=stride, told=told, **work,
            )  # fmt: skip
            side = lane.fork() if len(job.parts) > 1 else None
            common = {
                "tp": work["tp"], "wv": work["wv"], "offsets": data["offsets"], "info": info, "f0": data["f0"],
                "df": data["df"], "grid_stride": stride,
            }  # fmt: skip
            peaks = {"list": candidates, "count": count, "floor": floor, "edge": edge, "cap": job.cap, "wanted": k}
            largest = max(range(len(job.parts)), key=lambda i: (job.parts[i].kind == "comb", len(job.parts[i].order)))
            spread: dict[str, Any] = {}
            points: dict[str, Any] = {}
            for i, part in sorted(enumerate(job.parts), key=lambda p: (p[1].kind == "comb", p[0] == largest)):
                if part.kind == "comb" and not spread and not points:
                    if sum(p.kind == "comb" for p in job.parts) > len(cuts):
                        spread = self._weights(lane, data, work, rows, stride)
                    if cuts:
                        points = self.sampler.points(lane, data, info, work, work["owner"], rows, stride)
                    if len(job.parts) > 1:
                        lane.fork()
                stream = lane.stream if i == largest else side  # small parts do not fill the GPU
                more = common | peaks | {
                    "order": data[f"order{i}"], "tasks": data[f"tasks{i}"], "nf": data["nf"], "start": data["start"],
                    "norm": NORM[spec.normalization], "scaled": spec.normalization != "standard", "edges": job.edges,
                    "power": power,
                }  # fmt: skip
                if i in cuts:
                    launch_powers(
                        self.sampler, lane, stream, i, spec, part, cuts[i], found[i], points, taps[i],
                        guard=GUARD["samples", size], group=GROUP, bins=bins, **more,
                    )  # fmt: skip
                elif part.kind == "comb":
                    self._comb(lane, stream, i, part, spread, **more)
                else:
                    self._direct(stream, part, i != largest, values=values, **more)
                few = len(part.order) <= 256
                block, held = (1024, min(part.cap, 3600)) if few and part.cap > 1024 else (128, min(part.cap, 1024))
                args = cs.fill(
                    cs.BEST, info=info, limit=data["limit"], f0=data["f0"], df=data["df"], nf=data["nf"],
                    frequencies=values, order=data[f"order{i}"], **peaks, index=index, frequency=frequency, best=best,
                    flags=flags, grid_stride=stride, edges=job.edges, held=held,
                )  # fmt: skip
                self.module("ls_peaks.cu").launch(
                    "ls_peaks", (len(part.order),), (block,), (args,), shared_mem=held * (size + 4), stream=stream
                )
            if len(job.parts) > 1:
                lane.join()
            if job.host_power is not None and job.n_powers:
                lane.to_host(job.host_power, power[: job.n_powers])
        job.results = self._results(lane, n)

    def _results(self, lane: Lane, n: int) -> dict[str, NDArray[Any]]:
        host = lane.pinned("answers", self._answer_bytes(n), np.uint8)
        return dict(zip(("info", "frequency", "best", "index", "flags"), self._answers(host, n), strict=True))

    def _answer_bytes(self, n: int) -> int:
        return n * (cs.INFO.itemsize + self.spec.n_peaks * 20 + 4)

    def _answers(self, raw: Any, n: int) -> tuple[Any, ...]:
        """Info, peak frequency, power and index, and flags, as views of one buffer."""
        k, out, at = self.spec.n_peaks, [], 0
        for dtype, each in ((cs.INFO, 1), (np.float64, k), (np.float64, k), (np.int32, k), (np.int32, 1)):
            size = n * each * np.dtype(dtype).itemsize
            out.append(raw[at : at + size].view(dtype))
            at += size
        return tuple(out)

    def _weights(
        self, lane: Lane, data: dict[str, Any], work: dict[str, Any], rows: int, stride: int
    ) -> dict[str, Any]:
        """Cells and weights of every point for the combs."""
        t = self.spec.dtype
        taps, correction = self._device_taps(lane)
        out = {
            "cell": lane.array("cell", 2 * (rows + WEIGHT_PAD), np.int32, zero=True),
            "at_f": lane.array("at_f", 16 * (rows + WEIGHT_PAD), t, zero=True),
            "at_2f": lane.array("at_2f", 16 * (rows + WEIGHT_PAD), t, zero=True),
        }
        args = cs.fill(
            cs.WEIGHTS, tp=work["tp"], owner=work["owner"], taps=taps, df=data["df"], limit=data["limit"], rows=rows,
            correction=correction, grid_stride=stride, **out,
        )  # fmt: skip
        self.module("ls_prepare.cu").launch("ls_weights", (-(-rows // 64),), (256,), (args,), stream=lane.stream)
        return out

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
            args = cs.fill(
                cs.SPREAD, out=cells, mean=float(self.spec.fit_mean), modes=layout.modes, P=layout.combs,
                pairs=part.stretches, **spread, **{k: more[k] for k in names},
            )  # fmt: skip
            grid = (part.launches * 48,)
            self.module("ls_spread.cu").launch("ls_spread", grid, (256,), (args,), stream=stream)
        more |= dict(zip(("first", "second", "fold", "deconvolve", "taps"), tables, strict=False))
        more |= {
            "spread": cells, "guard": guard, "few": few, "modes": layout.modes, "P": layout.combs,
            "pairs": part.stretches, "members": len(part.order), "group": GROUP, "blocks": part.blocks,
            "mean": float(self.spec.fit_mean),
        }  # fmt: skip
        if layout.window:
            args = cs.fill(cs.COARSE, tiles=part.per_block, **spread, **more)
            kernel, threads, module = form, 256, self.module(f"{form}.cu")
        else:
            args = cs.fill(cs.COMB, S=part.per_block, zero=0, **spread, **more)
            kernel, threads, module = "ls_comb", 128, self.module("ls_comb.cu", form)
        module.launch(
            kernel, (part.launches * part.blocks,), (threads,), (args,),
            shared_mem=layout.shared_bytes(self.itemsize, form, part.per_block), stream=stream,
        )  # fmt: skip

    def _direct(self, stream: Any, part: Part, beside: bool, *, values: Any, **more: Any) -> None:
        guard, few = GUARD["direct", self.itemsize]
        args = cs.fill(
            cs.DIRECT, frequencies=values, guard=guard, few=few, blocks=part.stretches, fit_mean=self.spec.fit_mean,
            each=BESIDE if beside else 0, **more,
        )  # fmt: skip
        module = self.module("ls_direct.cu")
        if part.kind == "direct":
            module.launch("ls_direct", (part.launches,), (256,), (args,), stream=stream)
            return
        module.launch("ls_list", (part.launches,), (LIST_SPAN,), (args,), stream=stream)
        blocks = -(-(part.stretches * LIST_SPAN) // SEARCH_SPAN)
        names = (
            "power", "start", "info", "nf", "order", "count", "floor", "edge", "cap", "wanted", "list", "grid_stride",
        )  # fmt: skip
        args = cs.fill(cs.SEARCH, blocks=blocks, **{k: more[k] for k in names})
        self.module("ls_peaks.cu").launch(
            "ls_candidates", (len(part.order) * blocks,), (SEARCH_SPAN,), (args,), stream=stream
        )
