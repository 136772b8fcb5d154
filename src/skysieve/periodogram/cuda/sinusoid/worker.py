"""One sinusoid on one GPU: the launches for a chunk that all its methods share."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from skysieve.core.gpu.runtime import Runtime
from skysieve.core.gpu.staging import Copier, Lane
from skysieve.periodogram.contract import Spec
from skysieve.periodogram.cuda import structs as cs
from skysieve.periodogram.cuda.chunks import ChunkJob
from skysieve.periodogram.cuda.methods import DeviceChunk, Methods
from skysieve.periodogram.cuda.samples.samples import BINS
from skysieve.periodogram.cuda.worker import PACKAGE, Worker

from .methods import SinusoidMethod, SinusoidMethods, sample_layout


class SinusoidWorker(Worker):
    """As `Worker`, for fits of one sinusoid."""

    methods: ClassVar[type[Methods]] = SinusoidMethods

    def __init__(self, runtime: Runtime, spec: Spec, lanes: int = 3, copier: Copier | None = None) -> None:
        super().__init__(runtime, spec, sample_layout(spec.dtype), lanes, copier)

    def _model_kernels(self) -> list[tuple[Any, ...]]:
        return [(PACKAGE, "sinusoid/direct.cu", self.build)]

    def _launch(self, lane: Lane, job: ChunkJob) -> None:
        small, cuts, parts = self._of_objects(job, job.start), [], job.parts
        for i, part in enumerate(parts):
            small[f"order{i}"], small[f"tasks{i}"] = part.order, part.tasks
            cut, arrays = part.method.small_arrays(job, i, self.runtime.device.sm_count)
            small |= arrays
            cuts.append(cut)
        data = self._upload(lane, {**self._placed(lane, job), **small})
        info, peaks = lane.place("info", job.n_objects, cs.INFO), self._candidates(lane, job)
        values, power = self._device_values(lane, job.values), job.device_power
        if power is None and job.n_powers:
            power = lane.array("power", job.n_powers, self.spec.dtype)
        bins = lane.place("bins", job.n_objects * BINS, np.uint32) if any(c is not None for c in cuts) else None
        chunk = DeviceChunk(lane, job, data, info, peaks, power, values, bins, cuts=cuts)
        methods: list[Any] = [part.method for part in parts]
        assert all(isinstance(method, SinusoidMethod) for method in methods)
        chunk.largest = max(range(len(parts)), key=lambda i: (not methods[i].direct, len(parts[i].order)))
        others = [i for i in range(len(parts)) if i != chunk.largest]
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
                lane.to_host(job.host_power, power[: job.n_powers])
