"""One sinusoid on one GPU: the launches for a chunk that all its methods share."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from skysieve.core.gpu.runtime import Runtime
from skysieve.core.gpu.staging import Copier, Lane
from skysieve.periodogram.contract import Spec
from skysieve.periodogram.cuda import structs as cs
from skysieve.periodogram.cuda.chunks import ChunkJob
from skysieve.periodogram.cuda.graphs import MOST_ROWS
from skysieve.periodogram.cuda.methods import DeviceChunk, Methods, Sizes
from skysieve.periodogram.cuda.rooms import MOST_PARTS, Room
from skysieve.periodogram.cuda.samples.samples import BINS
from skysieve.periodogram.cuda.worker import PACKAGE, Worker

from .methods import SinusoidMethod, SinusoidMethods, sample_layout


class SinusoidWorker(Worker):
    """As `Worker`, for fits of one sinusoid."""

    methods: ClassVar[type[Methods]] = SinusoidMethods

    def __init__(self, runtime: Runtime, spec: Spec, lanes: int = 3, copier: Copier | None = None) -> None:
        super().__init__(runtime, spec, sample_layout(spec.dtype), lanes, copier)
        self._rooms: dict[tuple[Lane, str], Room] = {}
        self._sizes: dict[Lane, Sizes] = {}

    def _model_kernels(self) -> list[tuple[Any, ...]]:
        return [(PACKAGE, "sinusoid/direct.cu", self.build)]

    def _launch(self, lane: Lane, job: ChunkJob) -> None:
        plain = job.shared and job.values is None and job.start is None and len(job.parts) <= MOST_PARTS
        room = self._room(lane, job) if plain and job.n_rows <= MOST_ROWS and self.rooms else None
        chunk = self._chunk(lane, job) if room is None else room.chunk
        methods: list[Any] = [part.method for part in job.parts]
        assert all(isinstance(method, SinusoidMethod) for method in methods)
        chunk.largest = max(range(len(methods)), key=lambda i: (not methods[i].direct, len(job.parts[i].order)))
        others = [i for i in range(len(methods)) if i != chunk.largest]
        with lane:
            chunk.work = self._clean(chunk)
            chunk.prepare_rows(self, methods[chunk.largest], lane.stream)
            # small parts do not fill the GPU: they run beside the largest one, which is launched first
            side = lane.fork() if others else None
            methods[chunk.largest].launch(self, chunk, chunk.largest, lane.stream)
            for i in others:
                chunk.prepare_rows(self, methods[i], side)
                methods[i].launch(self, chunk, i, side)
            if others:
                lane.join()
            self._peaks(chunk)
            if job.host_power is not None and job.n_powers:
                lane.to_host(job.host_power, chunk.power[: job.n_powers])
        if room is not None:  # the buffers that moved are not this room's, which requests each buffer once
            room.moves = lane.moves

    def forget(self, lane: Lane) -> None:
        super().forget(lane)
        self._rooms = {key: room for key, room in self._rooms.items() if key[0] is not lane}
        self._sizes.pop(lane, None)

    def _room(self, lane: Lane, job: ChunkJob) -> Room:
        """Buffers of a lane that serve other chunks too, with the small arrays of this one."""
        key = lane, self.data_buffer
        rows = self._placed(lane, job)
        if np.ndarray in map(type, rows.values()):
            rows = self._upload(lane, rows)
        room = self._rooms.get(key)
        new = room is None or not room.fits(job)
        if room is None or new:
            own, sizes = Sizes.of(job), self._sizes.get(lane)
            if sizes is None or not sizes.hold(own):
                sizes = self._sizes[lane] = own.grown(sizes)
            room = self._rooms[key] = Room(lane, f"{self.data_buffer}.small", job, sizes)
            chunk, n = room.chunk, sizes.objects
            chunk.info, chunk.peaks = lane.place("info", n, cs.INFO), self._candidates(lane, chunk.sizes)
            chunk.bins = lane.place("bins", n * BINS, np.uint32)
        room.load(job, rows, self.runtime.device.sm_count, new or not lane.recording)
        return room

    def _chunk(self, lane: Lane, job: ChunkJob) -> DeviceChunk:
        """A chunk whose buffers are requested for it alone."""
        small, cuts, parts = self._of_objects(job, job.start), [], job.parts
        for i, part in enumerate(parts):
            small[f"order{i}"], small[f"tasks{i}"] = part.order, part.tasks
            cut, arrays = part.method.small_arrays(job, i, self.runtime.device.sm_count)
            small |= arrays
            cuts.append(cut)
        data = self._data(lane, job, small)
        sizes = Sizes.of(job)
        info, peaks = lane.place("info", sizes.objects, cs.INFO), self._candidates(lane, sizes)
        values, power = self._device_values(lane, job.values), job.device_power
        if power is None and job.n_powers:
            power = lane.array("power", job.n_powers, self.spec.dtype)
        bins = lane.place("bins", job.n_objects * BINS, np.uint32) if any(c is not None for c in cuts) else None
        return DeviceChunk(lane, job, data, info, peaks, power, values, bins, cuts=cuts, sizes=sizes)
