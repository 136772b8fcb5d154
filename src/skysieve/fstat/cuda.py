"""Transient F-statistic maps on an NVIDIA GPU: places atoms and tables on the card, launches, brings answers home.

``Engine`` is the twin of ``cpu.Engine`` (see ``workload.Engine``); the mathematics is in ``tf_exp.cu`` and
``tf_rect.cu``.  Sums of ``exp F`` are kept relative to `REFERENCE`, which float32 holds for any F from 0 to twice it;
louder templates are run once more with a reference of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.core.device import Device
from skysieve.core.errors import DeviceUnavailable, MemoryBudgetError
from skysieve.core.kernels import CudaRuntime, Runtime
from skysieve.core.memory import parse_budget

from .cuda_tables import Sweep, Tables, make_tables
from .parts import Joined, Part, empty_part, fill_empty, live_rows
from .workload import CONDITION_BOUND, Job, Output, Spec, blank, loud_bins

if TYPE_CHECKING:
    from numpy.typing import NDArray

REFERENCE = 60.0
LOUDEST = 128.0
"""Largest F whose exponential, and the sum of a year's, float32 holds relative to `REFERENCE`."""
NONE = -1e30
THREADS = 128
SHARED = 4
"""Templates of a thread where they share their antenna factors."""
MOST_CELLS = 2**32 - 2
WAVES = 1024
"""Threads a multiprocessor below which the starts are cut into chunks."""
FEWEST_BINS = 64
"""Bins of a chunk: each begins with the sum of its first window."""
CELLS_PER_SECOND = {
    ("rect", "float32"): 8e11, ("rect", "float64"): 1.5e11, ("exp", "float32"): 4.3e11, ("exp", "float64"): 1e11,
}  # fmt: skip


def supports(spec: Spec) -> bool:
    """Whether there are kernels for it; ``device="auto"`` takes the CPU where there are none."""
    return not spec.lal and spec.lines is None and spec.window.kind in ("none", "rect", "exp")


class Engine:
    """Transient F-statistic maps on a GPU.

    Parameters
    ----------
    spec : Spec
        What to compute.
    device : Device, optional
        A GPU of `skysieve.core.device.resolve`.
    memory : str, number or None
        Budget of device memory; 80% of what is free by default.
    threads : int, optional
        Not used; as for the CPU.
    runtime : Runtime, optional
        Instead of ``device``: where the kernels run.
    """

    def __init__(
        self,
        spec: Spec,
        device: Device | None = None,
        memory: str | float | None = None,
        threads: int | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        if not supports(spec):
            what = "compat='lalpulsar'" if spec.lal else "bsgl" if spec.lines else f"window={spec.window.name!r}"
            raise ValueError(f"{what} runs on the CPU only: device='cpu'")
        if runtime is None:
            if device is None:
                raise DeviceUnavailable("no GPU was given to the engine", "Use device='cuda'")
            runtime = CudaRuntime(device)
        self.spec, self.runtime, self.memory = spec, runtime, memory
        self.kind = "exp" if spec.window.kind == "exp" else "rect"
        self.dtype = np.dtype(spec.dtype)
        self.module = runtime.module("skysieve.fstat", f"tf_{self.kind}.cu", f"f{8 * self.dtype.itemsize}")

    def close(self) -> None:
        """Nothing is kept on the device between calls."""

    def describe(self, job: Job) -> dict[str, Any]:
        """See `workload.Engine.describe`."""
        rows, columns = job.schedule.shape
        cells = float(rows) * columns * job.n_templates
        return {
            "device": str(self.runtime.device),
            "dtype": self.dtype.name,
            "method": "running sums" if self.kind == "rect" else "recurrence",
            "cells": int(cells),
            "atoms_bytes": job.bank.nbytes,
            "map_bytes": int(cells) * self.dtype.itemsize if self.spec.keep_map else 0,
            "expected_seconds": cells / CELLS_PER_SECOND[self.kind, self.dtype.name],
        }

    def execute(self, job: Job, progress: Any = None) -> Output:
        """See `workload.Engine.execute`."""
        rows, columns = job.schedule.shape
        if rows * columns > MOST_CELLS:
            raise ValueError(f"grid has {rows} x {columns} cells: a GPU takes at most {MOST_CELLS} a template")
        output = Output.allocate(job.n_templates, job.schedule.shape, self.spec)
        if output.F is not None:
            blank(output.F, job.schedule)
        live = live_rows(job.schedule)
        if live.empty.size and output.F is not None:
            fill_empty(job.schedule, live.empty, output.F)
        done = 0
        for start, stop, loud in self._batches(job, live.rows):
            part = slice(start, stop)
            self._batch(job, part, live.rows, live.empty, loud, output)
            done += stop - start
            if progress is not None:
                progress(done, job.n_templates)
        return output

    # ------------------------------------------------------------------ batches
    def _batches(self, job: Job, rows: NDArray[np.int64]) -> list[tuple[int, int, bool]]:
        """Ranges of templates that fit the budget, each all with loud bins or all without."""
        size, n_columns = job.schedule.shape, job.schedule.shape[1]
        item = self.dtype.itemsize
        need = 24 * item * job.n + 2 * item * (size[0] + n_columns)
        if self.spec.keep_map:
            need += item * size[0] * n_columns
        device = self.runtime.device
        free = device.total_memory if self.runtime.xp is np else device.free_memory
        budget = parse_budget(self.memory, free, default=0.8)
        if need > budget:
            hint = "keep_map=False never builds it" if self.spec.keep_map else "a template"
            raise MemoryBudgetError(f"the map of {size[0]} x {n_columns} cells on the GPU ({hint})", need, budget)
        most = min(65535, budget // need)
        templates = (job.bank.template(i) for i in range(job.n_templates))
        loud = [self.kind == "exp" and bool(loud_bins(x).any()) for x in templates]
        cuts, start = [], 0
        for i in range(1, job.n_templates + 1):
            if i == job.n_templates or loud[i] != loud[start] or i - start >= most:
                cuts.append((start, i, loud[start]))
                start = i
        return cuts

    def _batch(
        self, job: Job, part: slice, rows: NDArray[np.int64], empty: NDArray[np.int64], loud: bool, output: Output
    ) -> None:
        """One launch for templates `part`, and another for those too loud for its reference."""
        base = range(part.start, part.stop)
        found: dict[int, Part] = {}
        if rows.size:
            tables = make_tables(job, rows, self.spec.window.kind == "exp", loud)
            first = np.full(len(base), REFERENCE)
            found = self._launch(job, list(base), tables, first, output)
            again = [i for i, p in found.items() if p.max_F > LOUDEST]
            if again:
                found |= self._launch(job, again, tables, np.array([found[i].max_F - REFERENCE for i in again]), output)
        for i in base:
            whole = Joined(*job.schedule.shape)
            if i in found:
                whole.parts.append(found[i])
            if empty.size:
                whole.parts.append(empty_part(job.schedule, empty))
            whole.into(output, i)

    def _launch(
        self, job: Job, templates: list[int], tables: Tables, reference: NDArray[np.float64], output: Output
    ) -> dict[int, Part]:
        xp, spec, dtype = self.runtime.xp, self.spec, self.dtype
        s, count = job.schedule, len(templates)
        rows, columns = s.shape
        sweep = Sweep(xp, job, templates, tables, dtype)
        unit = tables.unit and not tables.loud
        together = SHARED if unit and job.shared and count > 1 and not (self.kind == "rect" and spec.keep_map) else 1
        chunks, blocks = self._shape(tables, columns, count, together, unit)
        shape = tables.shape(columns, rows, count, job.shared, spec.marginals, spec.keep_map, chunks)
        slots = (count, blocks * chunks * (THREADS // 32))
        best_F, best_cell = xp.full(slots, NONE, dtype), xp.full(slots, 0xFFFFFFFF, np.uint32)
        row_sums, column_sums = xp.zeros((count, rows), dtype), xp.zeros((count, columns), dtype)
        missed = xp.zeros(count, np.uint64)
        bases = xp.asarray((reference * np.log2(np.e)).astype(dtype))
        field = xp.zeros((count, rows, columns), dtype) if spec.keep_map else None
        bound = dtype.type(CONDITION_BOUND)
        ends = (best_F, best_cell, missed)
        grid, block = (blocks, -(-count // together), chunks), (THREADS,)
        after = None
        if self.kind == "exp" and unit:
            name = f"exp_unit{together}" + ("_all" if spec.marginals or spec.keep_map else "")
            args = (
                *sweep.quiet,
                *sweep.fine,
                sweep.length,
                sweep.weights,
                bases,
                bound,
                shape,
                field,
                row_sums,
                column_sums,
            )
        elif self.kind == "exp":
            name = "exp_any"
            args = (
                *sweep.quiet, *(sweep.loud or sweep.quiet), sweep.length, sweep.weights, bases, bound, shape,
                *sweep.rows, sweep.more, sweep.skip, np.int32(tables.loud), field, row_sums, column_sums,
            )  # fmt: skip
        elif unit:
            after = xp.zeros((count, columns), dtype)
            mode = "_map" if spec.keep_map else "_columns" if spec.marginals else ""
            name = f"rect_unit{together}{mode}"
            args = (*sweep.quiet, bases, bound, shape, field, row_sums, column_sums, after)
        else:
            name = "rect_any"
            args = (
                *sweep.quiet,
                sweep.length,
                bases,
                bound,
                shape,
                *sweep.rows,
                sweep.skip,
                field,
                row_sums,
                column_sums,
            )
        self.module.launch(name, grid, block, (*args, *ends))
        if after is not None and spec.marginals:
            column_sums = column_sums + xp.cumsum(after, axis=1)
        if field is not None and output.F is not None:
            self._bring_map(field, tables, templates, output)
        return self._collect(templates, tables, reference, best_F, best_cell, missed, row_sums, column_sums, columns)

    def _shape(self, tables: Tables, columns: int, count: int, together: int, unit: bool) -> tuple[int, int]:
        """Chunks of the starts and blocks along x of a launch."""
        if self.kind == "rect":
            per_lane = 1
            if unit:
                plain = not (self.spec.keep_map or self.spec.marginals)
                per_lane = (4 if together == 1 else 2) if plain else 1
            lanes = -(-tables.count // per_lane)
            return 1, -(-lanes // THREADS)
        blocks = -(-columns // THREADS)
        threads = blocks * THREADS * -(-count // together)
        wanted = -(-WAVES * self.runtime.device.sm_count // threads)
        chunks = max(1, min(wanted, tables.count // FEWEST_BINS))
        return chunks, blocks

    def _bring_map(self, field: Any, tables: Tables, templates: list[int], output: Output) -> None:
        """Copy the computed cells of the maps to the host."""
        host = to_host(field)
        for k, i in enumerate(templates):
            for m, start in zip(tables.rows, tables.start, strict=True):
                output.F[i, m, start:] = host[k, m, start:]

    def _collect(
        self, templates: list[int], tables: Tables, reference: NDArray[np.float64], best_F: Any, best_cell: Any,
        missed: Any, row_sums: Any, column_sums: Any, columns: int,
    ) -> dict[int, Part]:  # fmt: skip
        xp = self.runtime.xp
        top = best_F.max(axis=1)
        cell = xp.where(best_F == top[:, None], best_cell, np.uint32(0xFFFFFFFF)).min(axis=1)
        sums = row_sums if self.kind == "rect" else column_sums
        totals = to_host(sums.sum(axis=1, dtype=np.float64))
        host_top, host_cell, host_missed = to_host(top), to_host(cell), to_host(missed)
        marginals = self.spec.marginals
        by_row = to_host(row_sums).astype(np.float64) if marginals else None
        by_column = to_host(column_sums).astype(np.float64) if marginals else None
        found = {}
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            for k, i in enumerate(templates):
                flat, ref = int(host_cell[k]), float(reference[k])
                found[i] = Part(
                    tables.rows,
                    np.arange(columns),
                    float(host_top[k]),
                    flat // columns,
                    flat % columns,
                    int(host_missed[k]),
                    ref + float(np.log(totals[k])),
                    ref + np.log(by_row[k, tables.rows]) if by_row is not None else np.zeros(0),
                    ref + np.log(by_column[k]) if by_column is not None else np.zeros(0),
                )
        return found
