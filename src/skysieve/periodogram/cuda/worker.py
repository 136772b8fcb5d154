"""One GPU's share of a periodogram: upload a chunk of objects, launch its kernels, copy the answers to the host.

Launches only; the mathematics is in the ``.cu`` files, the sizes of launches in ``cuda.methods`` and ``cuda.parts``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from skysieve.core.arrays import is_device_array
from skysieve.core.gpu.runtime import Module, Runtime
from skysieve.core.gpu.staging import GROWTH, Copier, Lane, make_lane
from skysieve.core.gpu.structs import Place, Prepared, address, fill
from skysieve.periodogram.contract import Scan, Spec
from skysieve.periodogram.cuda.peaks.launch import columns, harmonics, longer_objects, refine, tries
from skysieve.periodogram.cuda.samples.layout import SampleLayout
from skysieve.periodogram.cuda.samples.samples import Sampler
from skysieve.periodogram.cuda.sinusoid.tables import corrections, spreading_kernel
from skysieve.periodogram.numerics.normalization import NORMALIZATIONS
from skysieve.periodogram.numerics.peaks import FEW, more_tries

from . import structs as cs
from .chunks import ChunkJob
from .graphs import MOST_ROWS, Launches, Recorded, bytes_of, gathered, padded, place_of, room_of, slices_of
from .methods import DeviceChunk, Method, Methods, Sizes
from .parts import CANDIDATE_BYTES

PACKAGE = "skysieve.periodogram.cuda"
I32, I64, F64 = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.float64)
SCALE_KIND = {name: kind.scale for name, kind in NORMALIZATIONS.items()}
NORM = {name: kind.form for name, kind in NORMALIZATIONS.items()}
WIDE, NARROW = 512, 128
"""Threads of a block of ``ls_prepare`` for few objects and for many: the sums are the same."""
WEIGHT_PAD = 64
"""Rows of weights that may be read past the last one."""
STRAIGHT = 1 << 21
"""Largest array, in bytes, that the driver copies from pageable memory (it is faster than one thread)."""
STAGED = 1 << 18
"""Smaller arrays are copied together, through page-locked memory."""
SEARCH, SEARCH_MANY, SEARCH_FEW, FEW_OBJECTS = (128, 1024), (512, 4096), (1024, 3600), 256
"""Threads of a block of ``ls_peaks``, and candidates that it holds in shared memory: where floors leave few candidates,
where they leave many, and for up to ``FEW_OBJECTS`` objects."""
FLOORED = 32
"""Most peaks for which a warp can find a floor under the lowest of them."""


class Worker(ABC):
    """Kernels, tables and lanes of one GPU; each subclass fits one kind of model."""

    search: tuple[int, int] = SEARCH
    methods: ClassVar[type[Methods]]
    """Class of the methods for the model."""

    def __init__(
        self, runtime: Runtime, spec: Spec, layout: SampleLayout, lanes: int = 3, copier: Copier | None = None
    ) -> None:
        self.runtime = runtime
        self.spec = spec
        self.itemsize = spec.dtype.itemsize
        self.build = "f64" if spec.dtype == np.float64 else "f32"
        self.norm, self.scaled = NORM[spec.normalization], spec.normalization != "standard"
        self.tries, self.harmonics, self.columns = tries(spec), harmonics(spec), columns(spec)
        self.copier = copier or Copier()
        self.lanes = [make_lane(runtime) for _ in range(lanes)]
        self._tables: dict[Hashable, dict[str, Any]] = {}
        self._cycling: tuple[int, int, dict[str, NDArray[Any]], Prepared] | None = None
        self._modules: dict[tuple[str, str | None], Module] = {}
        self._met: set[Method] = set()
        self.sampler = Sampler(runtime, PACKAGE, layout)
        self._spare: Lane | None = None
        self.launches = Launches()
        self.data_buffer = "data"
        """Name of the lane's buffer for the rows and small arrays of the launch that is being made."""
        self._values: tuple[NDArray[np.float64] | None, Any] = (None, None)
        self.rooms = True
        """Whether buffers may be an eighth larger than a chunk needs (see `rooms`)."""

    def module(self, name: str, build: str | None = None) -> Module:
        """The kernels of a file, by default in the build of the precision."""
        key = name, build
        if key not in self._modules:
            self._modules[key] = self.runtime.module(PACKAGE, name, build or self.build)
        return self._modules[key]

    def compile_ahead(self, wanted: Iterable[tuple[Method, bool, int]]) -> None:
        """Begin to compile the kernels that objects of these methods need, all at the same time.

        ``wanted`` has for each: the method, whether powers are written, and the combs of a block.  Other kernels are
        compiled when they are launched.
        """
        names = ["prepare.cu", "peaks/peaks.cu"]
        refining = (PACKAGE, "peaks/refine.cu", "f64")
        self.runtime.compile_ahead([*((PACKAGE, n, self.build) for n in names), refining, *self._kernels(wanted)])

    def _compile_parts(self, job: ChunkJob) -> None:
        """Begin to compile the kernels of a chunk's methods that no chunk before it had, if there are several."""
        new = [part for part in job.parts if part.method not in self._met]
        self._met.update(part.method for part in new)
        if len(new) > 1:
            writes = job.device_power is not None or job.n_powers > 0
            self.compile_ahead((part.method, writes, part.per_block) for part in new)

    def _kernels(self, wanted: Iterable[tuple[Method, bool, int]]) -> list[tuple[Any, ...]]:
        """Kernels of the model and of its methods, beside those of rows and peaks."""
        found = self._model_kernels()
        for method, writes, per_block in wanted:
            found += [kernel for kernel in method.kernels(self.spec, writes, per_block) if kernel not in found]
        return found

    def _model_kernels(self) -> list[tuple[Any, ...]]:
        """Kernels that every method of the model may need."""
        return []

    @property
    def spare(self) -> Lane:
        """A further lane for scans and repeated searches: recorded launches need the other lanes' buffers."""
        if self._spare is None:
            self._spare = make_lane(self.runtime)
        return self._spare

    @property
    def every_lane(self) -> tuple[Lane, ...]:
        """The lanes, and the spare one once it is used."""
        return (*self.lanes, *filter(None, [self._spare]))

    @property
    def free_memory(self) -> int:
        """Free bytes of the device's memory; all of its memory where the device is the host."""
        device = self.runtime.device
        return device.total_memory if self.runtime.xp is np else device.free_memory

    def forget(self, lane: Lane) -> None:
        """Give back a lane's buffers and its recorded launches."""
        lane.free()
        self.launches.forget(lane)

    def release(self) -> None:
        """Give back the buffers of every lane."""
        for lane in self.every_lane:
            self.forget(lane)

    def settle(self) -> None:
        """Wait for everything started on any lane."""
        for lane in self.every_lane:
            lane.settle()

    def close(self) -> None:
        """Give back buffers and tables."""
        self.release()
        self.sampler.close()
        self._tables.clear()
        self._values = (None, None)

    # ------------------------------------------------------------------ upload

    def _upload(self, lane: Lane, arrays: dict[str, Any], more: str = "") -> dict[str, Any]:
        """Copy host arrays to the device, small ones in one transfer; arrays of the device are used in place.

        ``more`` is added to the buffer's name, for arrays of a launch beside its rows.
        """
        host = {name: np.ascontiguousarray(a) for name, a in arrays.items() if isinstance(a, np.ndarray)}
        if self.runtime.xp is np:
            return arrays | host
        total, buffer = room_of(host), self.data_buffer + more
        start, at = lane.place(buffer, total, np.uint8, followed=True).pointer, 0
        if not lane.recording:
            pinned = lane.pinned(buffer, total, np.uint8, followed=True)  # a recorded launch reads all of it
            self._send(lane, host, start, pinned)
        out = dict(arrays)
        for name, a in host.items():
            out[name] = Place(start + at, a.size, a.itemsize)
            at += padded(a.nbytes)
        return out

    def _data(self, lane: Lane, job: ChunkJob, small: dict[str, Any]) -> dict[str, Any]:
        """The rows of a chunk and the small arrays of its launch, on the device."""
        rows = self._placed(lane, job)
        if job.n_rows <= MOST_ROWS:
            return self._upload(lane, rows | small)
        return self._upload_rows(lane, job, rows) | self._upload(lane, small, ".launch")

    def _upload_rows(self, lane: Lane, job: ChunkJob, rows: dict[str, Any]) -> dict[str, Any]:
        """As `_upload`, for many rows, which `prefetch` may have let other threads copy to page-locked memory."""
        if job.buffer is None:
            return self._upload(lane, rows)
        host = self._host_rows(job)
        total, slices = room_of(host), slices_of(host)
        pinned = lane.pinned(self.data_buffer, total, np.uint8, followed=True)
        for copy in job.copies or ():
            copy.result()
        if self.runtime.xp is np:
            return rows | {name: pinned[slices[name]].view(a.dtype) for name, a in host.items()}
        start = lane.place(self.data_buffer, total, np.uint8, followed=True).pointer
        lane.to_device(Place(start, total, 1), pinned)
        return rows | {name: Place(start + slices[name].start, a.size, a.itemsize) for name, a in host.items()}

    def _send(self, lane: Lane, host: dict[str, NDArray[Any]], start: int, pinned: NDArray[np.uint8]) -> None:
        """Copy arrays to the device, one after another from ``start`` on: small ones together, through ``pinned``."""
        room, at, together, straight, long = pinned.data, 0, list[int](), [], []
        for a in host.values():
            end = at + a.nbytes
            if a.nbytes <= STAGED:
                if a.nbytes:
                    room[at:end] = a.data.cast("B")  # NumPy takes five times as long for short arrays
                together += at, end
            elif a.nbytes <= STRAIGHT or lane.has_pinned(a):
                straight.append((Place(start + at, a.nbytes, 1), a))
            else:
                long.append((pinned[at:end], bytes_of(a)))
                together += at, end
            at += padded(a.nbytes)
        if long:
            self.copier.copy(long)
        if together:
            first, last = together[0], together[-1]
            lane.to_device(Place(start + first, last - first, 1), pinned[first:last])
        for place, a in straight:  # after the others, because their range may enclose these
            lane.to_device(place, a)

    def _device_values(self, lane: Lane, values: NDArray[np.float64] | None) -> Any:
        """The list of frequencies on the device; the same for all chunks."""
        if values is None:
            return None
        if self._values[0] is not values:
            with lane:
                self._values = (values, self.runtime.xp.asarray(values))
                lane.synchronize()
        return self._values[1]

    def on_device(self, lane: Lane, key: Hashable, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Tables that ``make`` computes, on the device; they stay there until the worker is closed."""
        if key not in self._tables:
            made = make()
            with lane:
                self._tables[key] = {name: Place.of(self.runtime.xp.asarray(a)) for name, a in made.items()}
                lane.synchronize()
        return self._tables[key]

    # ------------------------------------------------------------------ scan

    def scan(self, t: Any, y: Any, dy: Any, offsets: NDArray[np.int64]) -> Scan:
        """Count usable rows and compute the time spans of a chunk's objects."""
        lane, n = self.spare, len(offsets) - 1
        self.data_buffer = "scan"  # a buffer that no recorded launch uses
        if is_device_array(t) or is_device_array(y) or is_device_array(dy):
            lane.after_caller()
        data = self._upload(lane, {"t": t, "y": y, "dy": dy, "offsets": offsets.astype(np.int32)})
        info = lane.array("info", n, cs.INFO)
        with lane:
            none = dict.fromkeys(
                ("df", "limit", "tp", "wv", "owner", "row", "count", "floor", "bins", "share", "tried")
            )  # fmt: skip
            args = fill(
                cs.PREPARE, **{k: data[k] for k in ("t", "y", "dy", "offsets")}, info=info, grid_stride=0,
                scan_only=True, **none, **self._prepared,
            )  # fmt: skip
            self._prepare(lane, args, n)
            host = lane.pinned("info", n, cs.INFO)
            lane.to_host(host, info)
        lane.synchronize()
        return cs.scan_of(host)

    def cycles(self, t: Any, offsets: NDArray[np.int64], df: NDArray[np.float64]) -> Callable[[], NDArray[np.float64]]:
        """Begin to compute `chunks.bounded_cycles` of objects none of which is empty, whose times are on the device;
        return a function that waits for them.

        The kernel writes to host memory.  With CuPy, to copy the numbers of rows, gather and copy back takes five times
        as long.
        """
        lane, n = self.spare, len(offsets) - 1
        if self._cycling is None or self._cycling[0] < n or self._cycling[1] != lane.moves:
            most = int(GROWTH * n) + 1
            kinds = {"offsets": (most + 1, I64), "df": (most, F64), "cycles": (most, F64)}
            host, places = lane.pinned_arrays("cycles", kinds)
            struct = Prepared(cs.CYCLES, {"t": t, "n": n, "grid_stride": 0, **places})
            self._cycling = most, lane.moves, host, struct
        _, _, host, struct = self._cycling
        host["offsets"][: n + 1], host["df"][: len(df)] = offsets, df
        struct.change({"t": t, "n": n, "grid_stride": int(len(df) > 1)})
        lane.after_caller()
        self.module("prepare.cu").launch("ls_cycles", (-(-n // 256),), (256,), (struct.value,), stream=lane.stream)

        def found() -> NDArray[np.float64]:
            lane.synchronize()
            return host["cycles"][:n]

        return found

    @property
    def _prepared(self) -> dict[str, Any]:
        """Arguments of ``ls_prepare`` that are the same for every chunk."""
        return {
            "centre": self.spec.centred, "scale_kind": SCALE_KIND.get(self.spec.normalization, 0),
            "harmonics": self.harmonics, "fewest": self.spec.min_points,
        }  # fmt: skip

    def _prepare(self, lane: Lane, args: np.void, n: int) -> None:
        threads = WIDE if n <= 2 * self.runtime.device.sm_count else NARROW
        self.module("prepare.cu").launch("ls_prepare", (n,), (threads,), (args,), stream=lane.stream)

    # ------------------------------------------------------------------ one chunk

    def begin(self, lane: Lane, job: ChunkJob) -> None:
        """Upload and launch everything of a chunk; returns before the GPU is done.

        When a chunk comes again with other values (the same parts and destinations), its launches are recorded as one
        graph, and from then on they are one call.
        """
        if any(is_device_array(a) for a in (job.t, job.y, job.dy, job.device_power)):
            lane.after_caller()
        known = self.launches.find(lane, self._signature(job)) if job.again else None
        if known is None:
            self._compile_parts(job)
            self.data_buffer = job.buffer or self.launches.room(lane, job.n_rows)
            self._launch(lane, job)
            self.launches.keep(lane, self._signature(job), Recorded(lane.generation, job.parts, self.data_buffer))
            job.again = True
            return
        self.data_buffer = known.data
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

    def row_memory(self, lane: Lane, name: str, rows: int) -> NDArray[np.float64]:
        """Page-locked memory for one array of a chunk's rows, from which the GPU copies them itself."""
        return lane.pinned(f"rows.{name}", rows, np.float64)

    def prefetch(self, lane: Lane, job: ChunkJob) -> None:
        """Let other threads copy a chunk's rows to the page-locked buffer that they are uploaded from.

        Few rows are left to the driver, whose own copy is faster than one thread's and overlaps its transfer.
        """
        host = self._host_rows(job)
        if not any(a.nbytes > STRAIGHT and not lane.has_pinned(a) for a in host.values()):
            return
        known = self.launches.find(lane, self._signature(job)) if job.again else None
        if known is not None and known.replay is not None:
            places = {name: known.rows[name][1] for name in host}
        elif known is None and job.n_rows > MOST_ROWS:
            job.buffer = self.launches.room(lane, job.n_rows)
            pinned = lane.pinned(job.buffer, room_of(host), np.uint8, followed=True)
            places = {name: pinned[at] for name, at in slices_of(host).items()}
        else:
            return
        job.copies = self.copier.start([(places[name], bytes_of(a)) for name, a in host.items()])

    def _host_rows(self, job: ChunkJob) -> dict[str, Any]:
        """The rows that are in host memory."""
        if job.host_rows is None:
            job.host_rows = {k: a for k, a in self._rows(job).items() if a is not None and not is_device_array(a)}
        return job.host_rows

    def _rows(self, job: ChunkJob) -> dict[str, Any]:
        """The arrays of a chunk's rows, in the order in which they are uploaded."""
        return {"t": job.t, "y": job.y, "dy": job.dy}

    def _placed(self, lane: Lane, job: ChunkJob) -> dict[str, Any]:
        """The rows of a chunk; those that are `gathered` are copied to the buffer that a recorded launch reads."""
        rows = self._rows(job)
        for name, a in rows.items():
            if gathered(a):
                rows[name] = lane.array(f"{self.data_buffer}.{name}", a.nbytes, np.uint8).view(a.dtype)
                if not lane.recording:
                    lane.from_peer(rows[name], a, a.device.id)
        return rows

    def _signature(self, job: ChunkJob) -> tuple[Any, ...]:
        """The key of a recorded launch, which serves all jobs of the same key."""
        if job.signature is None:
            rows = ((name, place_of(a)) for name, a in self._rows(job).items() if a is not None)
            start = job.objects.start if job.device_power is not None else 0
            powers = address(job.device_power), address(job.host_power)
            job.signature = (id(job.parts), job.n_powers, start, *rows, *powers)
        return job.signature

    @abstractmethod
    def _launch(self, lane: Lane, job: ChunkJob) -> None:
        """Upload and launch everything of a chunk, and set `ChunkJob.results`."""

    # ------------------------------------------------------------------ what all kinds of chunks share

    def _of_objects(self, job: ChunkJob, start: NDArray[np.int64] | None) -> dict[str, Any]:
        """The small arrays that kernels read of every object; ``start``: where its powers begin."""
        return {
            "offsets": job.offsets.astype(np.int32), "f0": job.f0, "df": job.df, "nf": job.nf.astype(np.int32),
            "start": start, "limit": job.limits.view(np.uint8),
        }  # fmt: skip

    def _clean(self, chunk: DeviceChunk, other: dict[str, Any] | None = None) -> dict[str, Any]:
        """Prepare usable rows in order of time, with their weights and owners; set counters of candidates to 0.

        ``other``: rows that replace the uploaded ones.
        """
        lane = chunk.lane
        data = chunk.data | other if other else chunk.data
        rows = chunk.sizes.rows
        work = chunk.once(
            "work",
            lambda: {
                "tp": lane.place("tp", rows, np.float64), "wv": lane.place("wv", 2 * rows, np.float64),
                "owner": lane.place("owner", rows, np.int32),
            },
        )  # fmt: skip

        def fixed() -> dict[str, Any]:
            return {
                "offsets": data["offsets"], "info": chunk.info, "df": data["df"], "limit": data["limit"],
                "grid_stride": chunk.stride, "row": lane.place("row", rows, np.int32), "scan_only": False,
                "tried": lane.place("tried", 1, np.uint32), **work, **self._prepared,
                **{name: chunk.peaks[name] for name in ("count", "floor", "share")},
            }  # fmt: skip

        args = chunk.struct("prepare", cs.PREPARE, fixed, t=data["t"], y=data["y"], dy=data["dy"], bins=chunk.bins)
        self._prepare(lane, args, chunk.job.n_objects)
        return work

    def _candidates(self, lane: Lane, sizes: Sizes) -> dict[str, Any]:
        """Buffers for the candidates of every object, from which `_peaks` takes the best."""
        n, t = sizes.objects, self.spec.dtype
        return {
            "list": lane.place("list", sizes.listed * CANDIDATE_BYTES[t.itemsize], np.uint8),
            "count": lane.place("count", n, np.uint32), "floor": lane.place("floor", n, np.uint32),
            "edge": lane.place("edge", sizes.edged * 2, t), "share": lane.place("peak_share", n, np.float64),
            "wanted": self.spec.n_peaks,
        }  # fmt: skip

    def _peaks(self, chunk: DeviceChunk) -> None:
        """Select and refine the best candidates of every object; kernels write these answers to the host."""
        job, most, n, k = chunk.job, chunk.sizes.objects, chunk.job.n_objects, self.spec.n_peaks
        places = chunk.once("answers", lambda: self._places_of_peaks(chunk, most))
        held_by_host = places["on_host"]
        job.results = {
            name: a[: n if name in ("host_info", "flags") else n * k] for name, a in places["host"].items()
        }  # fmt: skip
        search = SEARCH_MANY if k > FLOORED else self.search
        if n <= FEW_OBJECTS and job.cap > SEARCH[1]:
            search = SEARCH_FEW
        threads, held = search[0], min(job.cap, search[1])

        def fixed() -> dict[str, Any]:
            return {
                "info": chunk.info, "limit": chunk.data["limit"], "nf": chunk.data["nf"], **chunk.peaks,
                **places["found"], **places["to"], **places["tried"], "host_info": held_by_host["host_info"],
                "flags": held_by_host["flags"], "frequencies": chunk.values, "tries": self.tries,
                "fewer": k + more_tries(FEW + 1, self.harmonics), "few": FEW, "grid_stride": chunk.stride,
            }  # fmt: skip

        args = chunk.struct("best", cs.BEST, fixed, cap=job.cap, edges=job.edges, held=held)
        self.module("peaks/peaks.cu").launch(
            "ls_peaks", (n,), (threads,), (args,), shared_mem=held * (self.itemsize + 4), stream=chunk.lane.stream
        )
        self._refine(chunk, places["picks"], places["ranks"], places["tried"])

    def _places_of_peaks(self, chunk: DeviceChunk, n: int) -> dict[str, Any]:
        """Buffers for the peaks of ``n`` objects and for the answers."""
        lane, k, m = chunk.lane, self.spec.n_peaks, self.tries
        kinds = {"index": I32, "frequency": F64, "best": F64, "curvature": F64}
        answers = {"host_info": (n, cs.INFO), "flags": (n, I32)} | {name: (n * k, kind) for name, kind in kinds.items()}
        host, on_host = lane.pinned_arrays("answers", answers)
        found = {
            "index": lane.place("picked", n * m, np.int32), "here": lane.place("picked_power", n * m, np.float64),
            "vertex": lane.place("picked_vertex", n * m, np.float64), "found": lane.place("found", n, np.int32),
            "first": lane.place("first", n, np.int32),
        }  # fmt: skip
        to = {
            "left": lane.place("left", n, np.uint32), "answer_index": on_host["index"],
            **{name: on_host[name] for name in ("frequency", "best", "curvature")},
        }  # fmt: skip
        tried = {"tried": lane.place("tried", 1, np.uint32), "tries_list": lane.place("tries", n * m, np.int32)}
        picks = {
            "info": chunk.info, **{name: chunk.data[name] for name in ("f0", "df", "nf")},
            "frequencies": chunk.values, **found, "refined": lane.place("refined", 3 * n * m, np.float64), "tries": m,
            "wanted": k, "grid_stride": chunk.stride, "harmonics": self.harmonics, "columns": self.columns,
        }  # fmt: skip
        ranks = {"rank": lane.place("rank", n * m, np.int32), **to}
        return {
            "host": host, "on_host": on_host, "found": found, "to": to, "tried": tried, "picks": picks, "ranks": ranks
        }  # fmt: skip

    @property
    def refiner(self) -> Module:
        """The kernels of ``peaks/refine.cu``: float64 in every search."""
        return self.module("peaks/refine.cu", "f64")

    def _refine(
        self, chunk: DeviceChunk, picks: dict[str, Any], ranks: dict[str, Any], tried: dict[str, Any]
    ) -> None:  # fmt: skip
        """Move picked peaks to the maxima of the exact periodogram."""
        # now that the GPU has work for some time
        longer = self._upload(chunk.lane, longer_objects(chunk.job.lengths), ".longer")
        rows = {"tp": chunk.work["tp"], "wv": chunk.work["wv"], "offsets": chunk.data["offsets"]}
        fixed = picks | ranks | tried | rows
        refine(self.refiner, chunk, longer, self.spec, self.runtime.device.sm_count, fixed)

    def weights(self, chunk: DeviceChunk, stream: Any) -> None:
        """Cells and weights of every point for the combs of one sinusoid."""
        lane, t = chunk.lane, self.spec.dtype

        def tables() -> dict[str, Any]:
            taps = np.ascontiguousarray(spreading_kernel(t).coefficients())
            return {"taps": taps, "correction": corrections()}

        def out() -> dict[str, Any]:
            rows = chunk.sizes.rows + WEIGHT_PAD
            return {
                "cell": lane.place("cell", 2 * rows, np.int32, zero=True),
                "at_f": lane.place("at_f", 16 * rows, t, zero=True),
                "at_2f": lane.place("at_2f", 16 * rows, t, zero=True),
            }  # fmt: skip

        made = chunk.once("weights", out)

        def fixed() -> dict[str, Any]:
            return {
                "tp": chunk.work["tp"], "owner": chunk.work["owner"], "df": chunk.data["df"],
                "limit": chunk.data["limit"], "grid_stride": chunk.stride, **self.on_device(lane, "weights", tables),
                **made,
            }  # fmt: skip

        rows = chunk.job.n_rows
        args = chunk.struct("weights", cs.WEIGHTS, fixed, rows=rows)
        self.module("prepare.cu").launch("ls_weights", (-(-rows // 64),), (256,), (args,), stream=stream)
