"""Transient F-statistic maps on an NVIDIA GPU: splits batches, keeps two lanes busy, copies the answers to the host.

``Engine`` implements ``contract.Engine``; the mathematics is in ``exp.cu``, ``rect.cu``, ``any.cu``, ``sum.cu`` and
``cells.cu``.  Sums of ``exp F`` are relative to `REFERENCE`, which float32 can represent for any F from 0 to `LOUDEST`;
louder templates are computed a second time with their own reference.  Templates whose weights or data are too uneven
for these sums (see ``precision.py``) go to an engine in float64 with the same kernels, or with sums bin by bin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import is_device_array
from skysieve.core.device import Device
from skysieve.core.errors import DeviceUnavailable, MemoryBudgetError
from skysieve.core.gpu.runtime import CudaRuntime, Runtime, on_device
from skysieve.core.gpu.staging import Lane, ResultMemory, make_lane
from skysieve.core.memory import parse_budget
from skysieve.fstat import precision
from skysieve.fstat.contract import MapJob, Output, Spec, description
from skysieve.fstat.inputs.window_kinds import Algorithm

from .launch import SHARED, LaunchedWork, Launcher, pitch
from .tables import MOST_DETECTORS, NOWHERE, DeviceTables, make_tables, same_schedule
from .timing import method_of, predicted
from .windows import WindowLauncher

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.fstat.inputs.grid import Schedule

REFERENCE = 32.0
"""F relative to which exponentials are summed."""
LOUDEST = 96.0
"""Largest F whose exponential, summed over a year of cells, float32 can represent relative to `REFERENCE`."""
FINE = 1e5
"""Largest F for float32: of louder templates, float32 has ``exp F`` relative to another cell with an error above 1%."""
MOST_CELLS = 2**32 - 2
"""Most cells of a map: the kernels count them in 32 bits."""
FEWEST, CELLS, BYTES = 64, 2e10, 2**28
"""Size of a launch: the usual least number of templates, and the most cells and bytes if there are more templates."""
SMALL = 2**28
"""Below this size, in bytes, skip the slow query of free GPU memory."""


class Engine:
    """Transient F-statistic maps on a GPU.

    Maps stay on the GPU where the atoms of the job (`contract.Bank`) are CuPy arrays.

    Parameters
    ----------
    spec : Spec
        What to compute.
    device : Device, optional
        A GPU of `skysieve.core.device.resolve`.
    memory : str, number or None
        Budget of device memory; 80% of what is free by default.
    threads : int, optional
        Not used; for the same signature as the CPU engine.
    runtime : Runtime, optional
        Where the kernels run, instead of ``device``.

    Raises
    ------
    ValueError
        The spec asks for ``lal``, or for lines of more detectors than the kernels allow.
    """

    def __init__(
        self,
        spec: Spec,
        device: Device | None = None,
        memory: str | float | None = None,
        threads: int | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        if spec.lal:
            raise ValueError("compat='lalpulsar' runs on the CPU only: device='cpu'")
        if spec.lines and len(spec.lines.log_line) > MOST_DETECTORS:
            count = len(spec.lines.log_line)
            raise ValueError(f"lines of {count} detectors: a GPU takes at most {MOST_DETECTORS}; device='cpu'")
        if runtime is None:
            if device is None:
                raise DeviceUnavailable("no GPU was given to the engine", "Use device='cuda'")
            runtime = CudaRuntime(device)
        self.spec, self.runtime, self.memory = spec, runtime, memory
        self.algorithm = Algorithm.WEIGHTS if spec.sums == "exact" else spec.window.algorithm
        self.dtype = np.dtype(spec.dtype)
        self.launcher = (WindowLauncher if self.algorithm in (Algorithm.MOMENTS, Algorithm.WEIGHTS) else Launcher)(
            runtime, spec
        )
        if isinstance(self.launcher, WindowLauncher):
            self.launcher.memory = memory
            self.launcher.fourier = False if spec.sums == "exact" else None
        self._others: dict[int, Engine] = {}
        self.lanes: list[Lane] = []
        self.results = ResultMemory(runtime)
        self._tables: tuple[MapJob, DeviceTables] | None = None

    @property
    def nbytes(self) -> int:
        """See `contract.Engine.nbytes`."""
        return sum(lane.nbytes for lane in self.lanes) + sum(other.nbytes for other in self._others.values())

    def close(self) -> None:
        """Free the device's memory."""
        for other in self._others.values():
            other.close()
        for lane in self.lanes:
            lane.free()
        self.lanes.clear()
        self.results.close()
        self.launcher.close()
        self._tables = None

    def describe(self, job: MapJob) -> dict[str, Any]:
        """See `contract.Engine.describe`."""
        rows, columns = job.schedule.shape
        map_bytes = rows * columns * job.n_templates * self.dtype.itemsize if self.spec.keep_map else 0
        atoms_on_device = is_device_array(job.bank.data)
        with on_device(self.runtime):
            times = predicted(self.spec, job, self.runtime.device, self.runtime.xp, self._like, atoms_on_device)
        return description(job, method_of(self.spec, job), str(self.runtime.device), self.dtype, map_bytes, times)

    def _like(self, spec: Spec, fourier: bool | None) -> Engine:
        """Another engine on this device."""
        other = Engine(spec, memory=self.memory, runtime=self.runtime)
        if isinstance(other.launcher, WindowLauncher):
            other.launcher.fourier = fourier
        return other

    def execute(self, job: MapJob, progress: Any = None) -> Output:
        """See `contract.Engine.execute`."""
        with on_device(self.runtime):
            levels = np.zeros(0, np.int8)
            if self.spec.sums == "usual":
                levels = precision.levels_of(job, self.spec, data=False)
            if not levels.any():
                return self._execute(job, progress)
            output = self._with_map(job) if self.spec.keep_map else Output.allocate(
                job.n_templates, job.schedule.shape, self.spec
            )  # fmt: skip
            return precision.run_by_level(job, self.spec, levels, output, self._part, progress)

    def _part(self, job: MapJob, level: int) -> Output:
        """The answers for some templates, with the sums of a level of precision."""
        if level == precision.USUAL:
            return self._execute(job, None)
        if level not in self._others:
            self._others[level] = Engine(precision.spec_of(self.spec, level), memory=self.memory, runtime=self.runtime)
        return self._others[level].execute(job)

    def _execute(self, job: MapJob, progress: Any) -> Output:
        rows, columns = job.schedule.shape
        if rows * columns > MOST_CELLS:
            raise ValueError(f"grid has {rows} x {columns} cells: a GPU takes at most {MOST_CELLS} a template")
        size = self._batch_size(job)
        output = Output.allocate(0 if self.spec.keep_map else job.n_templates, job.schedule.shape, self.spec)
        if self.spec.keep_map:
            output = self._with_map(job)
        tables = self._tables_of(job)
        every = np.arange(job.n_templates)
        if is_device_array(job.bank.data):
            self.runtime.synchronize()  # the streams of the lanes do not wait for the stream that made the atoms
        if tables.host.count:
            self._sweep(job, tables, every, size, output, progress)
        elif output.F is not None:  # no cell holds two bins: no kernel has written the map
            blank_map(self.runtime.xp if is_device_array(output.F) else np, output.F, job.schedule)
        return output

    # ------------------------------------------------------------------ batches
    def _with_map(self, job: MapJob) -> Output:
        """Empty answers with a map in the memory of the atoms, host or device."""
        shape = job.schedule.shape
        lean = Spec(self.spec.window, self.spec.dtype, False, self.spec.marginals, False, self.spec.lines)
        output = Output.allocate(job.n_templates, shape, lean)
        if is_device_array(job.bank.data):
            wide = job.n_templates, shape[0], pitch(shape[1])
            output.F = self.runtime.xp.empty(wide, self.dtype)[:, :, : shape[1]]
        else:
            output.F = self.results.empty((job.n_templates, *shape), self.dtype)
        return output

    def _tables_of(self, job: MapJob) -> DeviceTables:
        if self._tables is None or not same_schedule(self._tables[0], job):
            found = DeviceTables(self.runtime.xp, make_tables(job, self.algorithm), self.dtype)
            self.runtime.synchronize()  # the streams of the lanes do not wait for the stream that made the tables
            self._tables = job.part(slice(0, 0)), found
        return self._tables[1]

    def _batch_size(self, job: MapJob) -> int:
        """Number of templates of a launch."""
        item, (rows, columns) = self.dtype.itemsize, job.schedule.shape
        need = 32 * item * job.n * (1 + 2 * len(job.detectors)) + (3 * item + 8) * (rows + columns) + 64
        if self.algorithm == Algorithm.WEIGHTS:  # spectra, and slots of many small pieces
            need += 400 * job.n * (1 + len(job.detectors)) + item * rows * columns // 32
        if self.spec.keep_map:
            need += item * rows * columns
        budget = SMALL
        if self.memory is not None or need * job.n_templates > SMALL:  # the query of free memory is slow
            device = self.runtime.device
            free = device.total_memory if self.runtime.xp is np else device.free_memory
            budget = parse_budget(self.memory, free, default=0.8)
        if need > budget:
            hint = "keep_map=False avoids it" if self.spec.keep_map else "for one template"
            raise MemoryBudgetError(f"the map of {rows} x {columns} cells on the GPU ({hint})", need, budget)
        useful = max(FEWEST, min(CELLS / (rows * columns), BYTES / need))
        lanes = 1 if job.n_templates <= useful else 2
        size = int(max(1, min(65535, budget // (lanes * need), useful)))
        together = SHARED[self.dtype.name]
        return size if size < together else size // together * together

    def _sweep(
        self, job: MapJob, tables: DeviceTables, every: NDArray[np.int64], size: int, output: Output, progress: Any
    ) -> None:
        """Compute all templates on two lanes, and then once more those that were found too loud."""
        if not self.lanes:
            self.lanes = [make_lane(self.runtime) for _ in range(2)]
        waiting: list[LaunchedWork] = []
        too_loud: list[NDArray[np.int64]] = []
        loudest: list[NDArray[np.int64]] = []
        done = 0

        def finish() -> None:
            nonlocal done
            work = waiting.pop(0)
            again, beyond = self._collect(job, work, output)
            too_loud.append(again)
            loudest.append(beyond)
            done += len(work.templates)
            if progress is not None:
                progress(min(done, job.n_templates), job.n_templates)

        for i, start in enumerate(range(0, len(every), size)):
            if len(waiting) == len(self.lanes):
                finish()
            part = every[start : start + size]
            lane = self.lanes[i % len(self.lanes)]
            reference = np.full(len(part), REFERENCE)
            target = None
            if is_device_array(output.F):
                whole = output.F if output.F.base is None else output.F.base
                target = whole[start : start + size]
            waiting.append(self.launcher.begin(lane, job, tables, part, reference, target=target))
        while waiting:
            finish()
        flagged, beyond = np.concatenate(too_loud), np.concatenate(loudest)
        if self.dtype == np.float32 and self.spec.sums == "usual":
            flagged = np.union1d(flagged, beyond[output.max_F[beyond] > FINE])
        for i in np.setdiff1d(beyond, flagged):
            reference = np.array([output.max_F[i] - REFERENCE])
            work = self.launcher.begin(self.lanes[0], job, tables, np.array([i]), reference)
            self._collect(job, work, output)
        if flagged.size:
            self._repeat(job, flagged, output)

    def _repeat(self, job: MapJob, flagged: NDArray[np.int64], output: Output) -> None:
        """Compute templates whose data or answers were too loud once more, with more precise sums."""
        part = job.part(flagged)
        levels = np.maximum.reduce([precision.level_of_data(self.spec, b) for b in (part.bank, *part.detectors)])
        if self.dtype == np.float32:
            levels = np.maximum(levels, precision.DOUBLE)
        for level in (precision.DOUBLE, precision.EXACT):
            found = flagged[levels == level]
            for at in np.split(found, found.size) if self.spec.keep_map and found.size else [found]:
                if at.size:
                    precision.copy_answers(output, at, self._part(precision.in_float64(job, at, level), level))

    # ------------------------------------------------------------------ answers
    def _collect(self, job: MapJob, work: LaunchedWork, output: Output) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Wait for a launch and write its answers.

        Returns the templates that are too loud for these sums, and those with F beyond `LOUDEST`.
        """
        work.lane.synchronize()
        a, at = work.answers, work.templates
        found = a["cell"] != NOWHERE
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            top = np.where(found, (a["top"] + work.offset) / work.scale, np.nan)
            output.max_F[at] = top
            output.index[at] = np.where(found, a["cell"].astype(np.int64), -1)
            output.log_sum[at] = work.reference + np.log(a["sum"])
            output.n_fallback[at] = a["lost"].astype(np.int64)
            if work.sums and output.row_log is not None and output.column_log is not None:
                rows, columns = (
                    work.sums[name].reshape(len(at), -1).astype(np.float64) for name in ("rows", "columns")
                )
                output.row_log[at] = work.reference[:, None] + np.log(rows)
                output.column_log[at] = work.reference[:, None] + np.log(columns)
        if work.lines is not None and output.line_max is not None and output.line_index is not None:
            some = work.lines["cell"] != NOWHERE
            output.line_max[at] = np.where(some, work.lines["top"], np.nan)
            output.line_index[at] = np.where(some, work.lines["cell"].astype(np.int64), -1)
        if work.map is not None:
            self._copy_map(job, work, output)
        flagged = a["flag"] != 0
        return at[flagged], at[found & (top > LOUDEST)]

    def _copy_map(self, job: MapJob, work: LaunchedWork, output: Output) -> None:
        """Fill the cells that no kernel writes, and copy the maps to the output."""
        columns = job.schedule.shape[1]
        with work.lane:
            found = work.map[:, :, :columns]
            blank_map(self.runtime.xp, found, job.schedule)
            work.lane.synchronize()
            target = output.F[int(work.templates[0]) : int(work.templates[-1]) + 1]
            if is_device_array(output.F):
                if work.map.data.ptr != target.data.ptr:
                    target[...] = found
                    work.lane.synchronize()
            elif isinstance(found, np.ndarray):
                target[...] = found
            else:  # row by row, without another copy on the device
                runtime, item = self.runtime.xp.cuda.runtime, self.dtype.itemsize
                rows, wide = len(work.templates) * job.schedule.shape[0], work.map.shape[2]
                runtime.memcpy2DAsync(
                    target.ctypes.data, columns * item, work.map.data.ptr, wide * item, columns * item, rows,
                    runtime.memcpyDeviceToHost, work.lane.stream.ptr,
                )  # fmt: skip
                work.lane.synchronize()
        work.map = None


def blank_map(xp: Any, F: Any, s: Schedule) -> None:
    """Write NaN to cells of maps (B, N_t0, N_tau) with fewer than two bins."""
    late = np.flatnonzero(s.late)
    if late.size:
        F[:, xp.asarray(late)] = np.nan
    for g in np.flatnonzero(s.valid_from):
        rows = np.flatnonzero((s.group == g) & ~s.late)
        if rows.size:
            F[:, xp.asarray(rows), : int(s.valid_from[g])] = np.nan
