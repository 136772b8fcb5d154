"""One launch of the kernels on one lane: upload and pack the atoms, march, download the answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import is_device_array
from skysieve.core.gpu.graphs import Recording, Recordings
from skysieve.core.gpu.runtime import Module, Runtime
from skysieve.core.gpu.staging import Copier, Lane
from skysieve.core.gpu.structs import address
from skysieve.fstat.contract import CONDITION_BOUND, Bank, Lines, MapJob, Spec
from skysieve.fstat.inputs.window_kinds import Algorithm
from skysieve.fstat.precision import loud_limit

from .tables import ANSWER, ROWS, SHAPE, SLOT, STEEPEST, USUAL_DETECTORS, DeviceTables, Tables, distance

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SHARED", "STEEPEST", "LaunchedWork", "Launcher"]

SHARED = {"float32": 4, "float64": 2}
"""Templates that a thread computes together if they share their antenna factors; the kernels are built for this."""
ANY_THREADS = 128
UNIT_THREADS = 64
TAUS, STARTS = 2, 2
"""Columns (exponential) and rows (rectangular) of a thread."""
RESIDENT = {"small": 16, "alone": 12, "shared": 8}
"""Warps of ``exp.cu`` that the registers of a multiprocessor allow (sm_90): with one tau for each thread, with one
template, with several templates."""
FEW = 640
"""Rows or columns for each multiprocessor below which a thread computes a single one."""
MOST_CHUNKS, MOST_ROUNDS = 32, 8
"""Most chunks of start times, and most times that they may fill the GPU."""
WARM = 0.3
"""Cost of summing a bin before the first row of a chunk, in units of a row."""
ANY_WAVES = 1024
"""Threads for each multiprocessor below which the start times of ``exp_any`` are divided into chunks."""
FEWEST_BINS = 64
"""Fewest bins of a chunk."""
BEST_THREADS = 1024
"""Threads of a block that combines the slots of one template."""
MOST_RECORDS = 8
"""Recorded launches of a lane."""
LOG2E = math.log2(math.e)


@dataclass
class LaunchedWork:
    """Templates that are being computed on a lane, and the host buffers for their answers.

    F is ``(value + offset) / scale`` of the kernel's values.
    """

    lane: Lane
    templates: NDArray[np.int64]
    reference: NDArray[np.float64]
    answers: NDArray[Any]
    scale: float
    offset: NDArray[np.float64]
    lines: NDArray[Any] | None = None
    sums: dict[str, NDArray[Any]] = field(default_factory=dict)
    map: Any = None


@dataclass
class Record(Recording):
    """Launches of one size, ready to be started again."""

    tables: DeviceTables
    work: LaunchedWork


class Launcher:
    """Starts the computation of some templates of a job on a lane.

    Parameters
    ----------
    runtime : Runtime
    spec : Spec
    """

    def __init__(self, runtime: Runtime, spec: Spec) -> None:
        self.runtime, self.spec, self.xp = runtime, spec, runtime.xp
        self.dtype = np.dtype(spec.dtype)
        self.exponential = spec.window.algorithm == Algorithm.RECURRENCE
        self.kernels = "exp" if self.exponential else "rect"
        self.copier = Copier()
        self._modules: dict[str, Module] = {}
        self._records: Recordings[Record] = Recordings(MOST_RECORDS)

    def close(self) -> None:
        """Stop the copying threads and drop the recorded launches."""
        self._records.clear()
        self.copier.close()

    def module(self, name: str, defines: Mapping[str, object] | None = None) -> Module:
        """The kernels of ``<name>.cu``, compiled at first use."""
        if name not in self._modules:
            build = f"f{8 * self.dtype.itemsize}"
            self._modules[name] = self.runtime.module("skysieve.fstat.cuda", f"{name}.cu", build, defines)
        return self._modules[name]

    def begin(
        self, lane: Lane, job: MapJob, tables: DeviceTables, templates: NDArray[np.int64],
        reference: NDArray[np.float64], target: Any = None,
    ) -> LaunchedWork:  # fmt: skip
        """Start the computation of `templates`; lines use the kernels for arbitrary grids.

        Parameters
        ----------
        reference : numpy.ndarray of float64
            F relative to which each template's exponentials are summed.
        target : array, shape (count, N_t0, `pitch`), optional
            Device memory for the maps; new memory by default.
        """
        with lane:
            if not tables.host.unit or self.spec.lines is not None:
                return self._any(lane, job, tables, templates, reference, target)
            if self.spec.keep_map or is_device_array(job.bank.data):
                return self._unit(lane, job, tables, templates, reference, target)
            return self._recorded(lane, job, tables, templates, reference)

    def _recorded(
        self,
        lane: Lane,
        job: MapJob,
        tables: DeviceTables,
        templates: NDArray[np.int64],
        reference: NDArray[np.float64],
    ) -> LaunchedWork:
        """As `_unit`, but launches of a size that occurs again are recorded, and then started together."""
        equal = bool((reference == reference[0]).all())
        key = (len(templates), job.shared, equal)
        held = self._records.find(lane, key)
        if held is None or held.tables is not tables:
            work = self._unit(lane, job, tables, templates, reference, None)
            self._records.make_room(lane)
            self._records.keep(lane, key, Record(lane.generation, tables, work))
            return work
        if held.replay is None:

            def again() -> None:
                self._unit(lane, job, tables, templates, reference, None)

            held.replay = lane.record(again)
            if held.replay is None:  # this runtime cannot record: the launches have been made
                return replace(held.work, templates=templates, **self._scale(reference))
        else:
            antenna, data = self._chosen(job.bank, templates)
            for name, source in (("antenna", antenna), ("data", data), ("bases", self._bases(reference))):
                flat = np.ascontiguousarray(source).reshape(-1)
                self.copier.copy([(lane.pinned(name, flat.size, flat.dtype), flat)])
        held.replay()
        return replace(held.work, templates=templates, **self._scale(reference))

    # ------------------------------------------------------------------ regular grids: every bin, regular lengths
    def _unit(
        self, lane: Lane, job: MapJob, tables: DeviceTables, templates: NDArray[np.int64],
        reference: NDArray[np.float64], target: Any,
    ) -> LaunchedWork:  # fmt: skip
        host, spec, count = tables.host, self.spec, len(templates)
        exponential = self.exponential
        equal = bool((reference == reference[0]).all())
        keep = spec.keep_map
        together = SHARED[self.dtype.name] if job.shared and count > 1 and equal and (exponential or not keep) else 1
        groups = -(-count // together)
        columns = job.schedule.shape[1]
        lone = not keep and not spec.marginals and together == 1
        if exponential:
            small = lone and columns * groups < FEW * self.runtime.device.sm_count
            width, stride, chunk_unit = 1 if small else TAUS, 1 if keep else 32, ROWS
            blocks = -(-columns // (UNIT_THREADS * width))
            span = host.high - host.low // ROWS * ROWS
            chunks = self._chunks(
                tables,
                blocks * groups * UNIT_THREADS // 32,
                RESIDENT["small" if small else "shared" if together > 1 else "alone"],
            )
            chunk = -(-span // (chunks * chunk_unit)) * chunk_unit
            chunks = -(-span // chunk)
        else:
            small = lone and host.count * groups < FEW * self.runtime.device.sm_count
            width, stride, chunk, chunks = (1 if keep or small else STARTS), 1, 0, 1
            blocks = -(-host.count // (UNIT_THREADS * width))
        slots = blocks * chunks * UNIT_THREADS // 32
        work, shape, arrays = self._frame(lane, job, tables, templates, reference, slots, target)
        shape["low"], shape["high"], shape["chunk"] = host.low, host.high, chunk
        shape["width"], shape["stride"] = width, stride
        rows = lane.array("rows", 4 * groups * host.stored * (together + 1), self.dtype)
        fine = (
            lane.array("fine", 128 * groups * host.step * host.fine * (together + 1), self.dtype)
            if exponential
            else None
        )
        work = replace(work, **self._scale(reference))
        antenna, data = self._upload(lane, job.bank, templates, "")
        factor = self.dtype.type(1 if keep else math.sqrt(LOG2E))
        self._pack(shape, antenna, data, tables.away, 0, job, together, factor, rows, fine)
        bound = self.dtype.type(CONDITION_BOUND)
        mode = ("both" if spec.marginals else "map") if keep else "sums" if spec.marginals else "lean"
        name = f"{self.kernels}_{mode}" + ("_shared" if together > 1 else "")
        grid = (blocks, groups, chunks) if exponential else (groups, blocks)
        args: tuple[Any, ...]
        if exponential:
            flags = self._loud(lane, job, antenna, data, count)
            args = (
                rows, fine, tables.gaps, tables.length, tables.unit_weights, arrays["bases"], bound, shape[0], work.map,
                arrays["rows"], arrays["columns"], arrays["slots"],
            )  # fmt: skip
            name = "exp_small" if small else name
            self.module("exp").launch(name, grid, (UNIT_THREADS,), args, stream=lane.stream)
            args = (
                rows, tables.length, tables.unit_weights, bound, shape[0], np.int32(together), arrays["slots"], flags,
                arrays["answers"],
            )  # fmt: skip
            self.module("exp").launch("exp_best", (count,), (BEST_THREADS,), args, stream=lane.stream)
        else:
            name = "rect_small" if small else name
            args = (
                rows, arrays["bases"], bound, shape[0], work.map, arrays["rows"], arrays["columns"], arrays["after"],
                arrays["slots"],
            )  # fmt: skip
            self.module("rect").launch(name, grid, (UNIT_THREADS,), args, stream=lane.stream)
            args = (
                rows, bound, shape[0], np.int32(together), arrays["slots"], arrays["columns"], arrays["after"],
                arrays["answers"],
            )  # fmt: skip
            self.module("rect").launch("rect_best", (count,), (BEST_THREADS,), args, stream=lane.stream)
        self._download(lane, work, arrays)
        return work

    def _bases(self, reference: NDArray[np.float64]) -> NDArray[Any]:
        """The references in the units of the kernels, log2(e) F."""
        base: NDArray[Any] = (reference * LOG2E).astype(self.dtype)
        return base

    def _scale(self, reference: NDArray[np.float64]) -> dict[str, Any]:
        """Fields of a `LaunchedWork` for regular grids: without a map the kernels' values are log2(e) F minus a
        base."""
        base = self._bases(reference).astype(np.float64)
        if self.spec.keep_map:
            return {"reference": base / LOG2E}
        return {"reference": base / LOG2E, "scale": LOG2E, "offset": base}

    def _chunks(self, tables: DeviceTables, warps: int, resident: int) -> int:
        """The best number of chunks of start times, with `warps` in each chunk; each sums its first windows directly.

        With ``w`` warps on a multiprocessor, a row takes ``1 + w / resident`` times as long as with one.  Measured
        times for 121 and 365 days in 1 to 24 chunks follow this model within 10%.
        """
        key = warps, resident
        if key not in tables.chunks:
            tables.chunks[key] = self._best_chunks(tables.host, warps, resident * self.runtime.device.sm_count)
        return tables.chunks[key]

    @staticmethod
    def _best_chunks(host: Tables, warps: int, resident: int) -> int:
        best, least = 1, np.inf
        for chunks in range(1, MOST_CHUNKS + 1):
            if chunks > 1 and (host.count // chunks < FEWEST_BINS or warps * chunks > MOST_ROUNDS * resident):
                break
            rows, full = host.count / chunks, warps * chunks / resident
            each = [host.warm(host.high - int(i * rows)) for i in range(chunks)]
            warm = max(most for _, most in each) if full <= 1 else float(np.mean([mean for mean, _ in each]))
            cost = (rows + WARM * warm) * (1 + full)
            if cost < 0.97 * least:
                best, least = chunks, cost
        return best

    # ------------------------------------------------------------------ any grid
    def _any(
        self, lane: Lane, job: MapJob, tables: DeviceTables, templates: NDArray[np.int64],
        reference: NDArray[np.float64], target: Any,
    ) -> LaunchedWork:  # fmt: skip
        host, spec, count = tables.host, self.spec, len(templates)
        columns = job.schedule.shape[1]
        banks = (job.bank, *job.detectors) if spec.lines else (job.bank,)
        exponential, detectors = self.exponential, len(banks) - 1
        if exponential:
            blocks = -(-columns // ANY_THREADS)
            parts = -(-ANY_WAVES * self.runtime.device.sm_count // (blocks * ANY_THREADS * count))
            chunk = -(-host.count // max(1, min(parts, host.count // FEWEST_BINS)))
            chunks = -(-host.count // chunk)
        else:
            blocks, chunk, chunks = -(-host.count // ANY_THREADS), 0, 1
        slots = blocks * chunks * ANY_THREADS // 32
        work, shape, arrays = self._frame(lane, job, tables, templates, reference, slots, target)
        shape["low"], shape["high"], shape["chunk"] = 0, host.count, chunk
        one = self.dtype.type(1)
        most = max(USUAL_DETECTORS, detectors)
        each = 1 + most
        pointers = np.zeros(each, np.uint64)
        flags = None
        for i, bank in enumerate(banks):
            antenna, data = self._upload(lane, bank, templates, str(i))
            if exponential:
                flags = self._loud(lane, job, antenna, data, count, again=i > 0)
            rows = lane.array(f"any{i}", 8 * count * host.stored, self.dtype)
            away, step = self._away(lane, tables, bank, job, i)
            self._pack(shape, antenna, data, away, step, job, 1, one, rows, None)
            pointers[i] = address(rows)
        bound = self.dtype.type(CONDITION_BOUND)
        lines = line_struct(spec.lines, self.dtype, most)
        places = pointers.view([("p", np.uint64, each)])[0]
        count_name = str(detectors) if detectors < USUAL_DETECTORS else "_most"
        name = f"{self.kernels}_any{count_name}"
        common = (arrays["bases"], bound, lines, shape[0], *tables.rows)
        ends = (tables.skip, work.map, arrays["rows"], arrays["columns"], arrays["slots"], arrays["line_slots"])
        args: tuple[Any, ...]
        if exponential:
            args = (places, tables.length, tables.any_weights, *common, tables.more, *ends)
        else:
            args = (places, tables.length, *common, *ends)
        module = self.module("any", {"MOST_DETECTORS": most} if most > USUAL_DETECTORS else None)
        module.launch(name, (blocks, count, chunks), (ANY_THREADS,), args, stream=lane.stream)
        self._best(lane, shape, arrays, flags)
        self._download(lane, work, arrays)
        return work

    def _best(self, lane: Lane, shape: Any, arrays: dict[str, Any], flags: Any) -> None:
        """Combine the slots of every template."""
        for slots, answers, marked in (("slots", "answers", flags), ("line_slots", "line_answers", None)):
            if arrays[slots] is not None:
                args = (shape[0], arrays[slots], marked, arrays[answers])
                blocks = (int(shape["templates"][0]),)
                self.module("pack").launch("best_slot", blocks, (BEST_THREADS,), args, stream=lane.stream)

    def _away(self, lane: Lane, tables: DeviceTables, bank: Bank, job: MapJob, i: int) -> tuple[Any, int]:
        """Distances from each bin to the next bin of a bank that holds data."""
        if i == 0 or np.array_equal(bank.occupied, job.occupied):
            return tables.away, 0
        return self._stage(lane, f"away{i}", distance(bank.occupied, tables.host.pad)[0]), 0

    # ------------------------------------------------------------------ common to both
    def _frame(
        self, lane: Lane, job: MapJob, tables: DeviceTables, templates: NDArray[np.int64],
        reference: NDArray[np.float64], slots: int, target: Any,
    ) -> tuple[LaunchedWork, NDArray[Any], dict[str, Any]]:  # fmt: skip
        """The shape struct and the arrays on the device and the host for a launch."""
        host, spec, count, dtype = tables.host, self.spec, len(templates), self.dtype
        rows, columns = job.schedule.shape
        shape = np.zeros(1, SHAPE)
        shape["n"], shape["columns"], shape["rows"], shape["templates"] = host.n, columns, rows, count
        shape["stored"], shape["marginals"], shape["map"] = host.stored, spec.marginals, spec.keep_map
        shape["row0"] = host.low - int(host.rows[0])
        shape["step"], shape["fine"], shape["slots"] = host.step, host.fine, slots
        shape["length0"], shape["skip"] = int(host.length.ravel()[0]), int(host.skip[host.group[0]])
        shape["pitch"] = pitch(columns)
        base = self._bases(reference)
        arrays: dict[str, Any] = dict.fromkeys(("sums", "rows", "columns", "after", "line_slots", "line_answers"))
        arrays["bases"] = self._stage(lane, "bases", base)
        arrays["slots"] = lane.array("slots", count * slots * SLOT * dtype.itemsize // 4, np.uint8)
        arrays["answers"] = lane.array("answers", count * ANSWER.itemsize, np.uint8)
        if spec.lines:
            arrays["line_slots"] = lane.array("line_slots", count * slots * SLOT * dtype.itemsize // 4, np.uint8)
            arrays["line_answers"] = lane.array("line_answers", count * ANSWER.itemsize, np.uint8)
        if spec.marginals:
            arrays["sums"] = sums = lane.array("sums", count * (rows + 2 * columns), dtype)
            sums[...] = 0
            cuts = np.cumsum([0, count * rows, count * columns, count * columns])
            for name, a, b in zip(("rows", "columns", "after"), cuts, cuts[1:], strict=False):
                arrays[name] = sums[int(a) : int(b)]
        answers = lane.pinned("answers", count * ANSWER.itemsize, np.uint8).view(ANSWER)
        work = LaunchedWork(lane, templates, base.astype(np.float64) / LOG2E, answers, 1.0, np.zeros(count))
        if spec.keep_map:
            work.map = self.xp.empty((count, rows, pitch(columns)), dtype) if target is None else target
        return work, shape, arrays

    def _stage(self, lane: Lane, name: str, source: NDArray[Any]) -> Any:
        """Copy a host array to the device through a pinned buffer of the lane."""
        flat = np.ascontiguousarray(source).reshape(-1)
        target = lane.array(name, flat.size, flat.dtype)
        pinned = lane.pinned(name, flat.size, flat.dtype)
        self.copier.copy([(pinned, flat)])
        lane.to_device(target, pinned)
        return target

    def _chosen(self, bank: Bank, templates: NDArray[np.int64]) -> tuple[Any, Any]:
        """Antenna factors and data of some templates, in the memory where they are."""
        run = slice(int(templates[0]), int(templates[-1]) + 1)
        chosen = bank.part(run if run.stop - run.start == len(templates) else templates)
        return chosen.antenna, chosen.data

    def _upload(self, lane: Lane, bank: Bank, templates: NDArray[np.int64], name: str) -> tuple[Any, Any]:
        """Antenna factors and data of some templates in device memory."""
        antenna, data = self._chosen(bank, templates)
        found = []
        for part, array in (("antenna", antenna), ("data", data)):
            if is_device_array(array):
                found.append(self.xp.ascontiguousarray(array, dtype=self.dtype))
            else:
                found.append(self._stage(lane, part + name, array))
        return found[0], found[1]

    def _pack(
        self, shape: Any, antenna: Any, data: Any, away: Any, away_step: int, job: MapJob, together: int, factor: Any,
        rows: Any, fine: Any,
    ) -> None:  # fmt: skip
        s = shape[0]
        bins = max(int(s["stored"]), 0 if fine is None else 32 * int(s["step"]) * int(s["fine"]))
        grid = (-(-bins // 128), -(-int(s["templates"]) // together))
        pad = int(s["n"]) - job.n
        counts = (np.int32(away_step), np.int32(job.n), np.int32(pad), np.int32(job.shared), np.int32(together))
        self.module("pack").launch("pack", grid, (128,), (antenna, data, away, *counts, factor, s, rows, fine))

    def _loud(self, lane: Lane, job: MapJob, antenna: Any, data: Any, count: int, again: bool = False) -> Any:
        """Flags of templates whose data are too loud for these sums; `again` adds to the flags of another detector."""
        if self.spec.sums != "usual":
            return None
        flags = lane.array("flags", count, np.int32)
        counts = (np.int32(job.n), np.int32(job.shared))
        args = (antenna, data, *counts, self.dtype.type(loud_limit(self.spec)), np.int32(again), flags)
        self.module("pack").launch("loud", (count,), (BEST_THREADS,), args, stream=lane.stream)
        return flags

    def _download(self, lane: Lane, work: LaunchedWork, arrays: dict[str, Any]) -> None:
        """Start the copies of the answers to the host."""
        lane.to_host(work.answers.view(np.uint8), arrays["answers"])
        if arrays["line_answers"] is not None:
            work.lines = lane.pinned("line_answers", work.answers.nbytes, np.uint8).view(ANSWER)
            lane.to_host(work.lines.view(np.uint8), arrays["line_answers"])
        if arrays["sums"] is not None:
            sums = arrays["sums"][: arrays["rows"].size + arrays["columns"].size]
            pinned = lane.pinned("sums", sums.size, self.dtype)
            lane.to_host(pinned, sums)
            work.sums = {"rows": pinned[: arrays["rows"].size], "columns": pinned[arrays["rows"].size :]}


def pitch(columns: int) -> int:
    """Cells from one row of a map to the next, such that rows start on a memory line."""
    return -(-columns // 32) * 32


def line_struct(lines: Lines | None, dtype: np.dtype[Any], most: int = USUAL_DETECTORS) -> Any:
    """``struct Lines`` of ``lines.cuh`` for at most `most` detectors."""
    values = np.full(1 + most, -1e30)
    if lines is not None:
        values[: 1 + len(lines.log_line)] = np.maximum([lines.log_gauss, *lines.log_line], -1e30) * LOG2E
    return values.astype(dtype).view([("x", dtype, 1 + most)])[0]
