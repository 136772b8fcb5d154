"""A short measurement of the costs of the methods of one sinusoid on a GPU, stored in the user's cache folder."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from skysieve.core.errors import format_bytes, out_of_memory
from skysieve.core.gpu.staging import GROWTH, make_lane
from skysieve.core.machine.measured import Figures, figures
from skysieve.periodogram.contract import Grids, Output, Spec

from .chunks import ChunkJob, RunSettings, job_of
from .cost import DEFAULTS, Costs
from .methods import SMALLEST_NUFFT
from .sinusoid.methods import NufftMethod, SinusoidMethods

if TYPE_CHECKING:
    from .worker import Worker

logger = logging.getLogger("skysieve")

OBJECTS, NF = 600, 57_600
POINTS = {"nufft": (48, 160), "direct": (16, 32)}
"""Numbers of points of an object, by method; direct sums are chosen for few points."""
FEWEST_RUNS, AGREE, WITHIN, LONGEST = 5, 3, 0.08, 3.0
"""Fewest runs of a case, number of runs that must agree with the shortest, relative tolerance, and most seconds."""
Case = tuple[str, int]
"""Method, and points of each object (0: the nearly empty chunk)."""
FORMAT = 8
"""Changes when the kernels change enough to void old figures."""
SLOWER, FASTER, UNEQUAL = 1000.0, 30.0, 30.0
"""Largest plausible factors in comparison with an H100: by which costs are higher, by which they are lower, and by
which these ratios differ from each other.

The slowest card in float64 that can run the kernels, a T4 of 0.25 TFLOP/s, has 1/130 of an H100's multiply-adds and
1/260 of its matrix units.
"""


def costs_of(worker: Worker, spec: Spec, budget: float = np.inf) -> Costs:
    """The measured costs of the worker's GPU: one set for a process, whatever other processes measure meanwhile.

    ``budget``: bytes of device memory that may be used.
    """
    defaults = DEFAULTS[spec.dtype]

    def believed() -> Figures | None:
        if (need := needed(worker, spec)) > budget:
            logger.warning(
                "%s: the costs of the periodogram's methods cannot be measured, which needs %s of device memory; "
                "those of an H100 are used", worker.runtime.device, format_bytes(need),
            )  # fmt: skip
            return None
        try:
            found = measure(worker, spec)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            logger.warning(
                "%s: too little memory is free to measure the costs of the periodogram's methods; those of an H100 are "
                "used: %s", worker.runtime.device, error,
            )  # fmt: skip
            return None
        if plausible(found, defaults):
            return found.as_dict()
        logger.warning(
            "%s: measured costs of the periodogram's methods are implausible; those of an H100 are used: %s",
            worker.runtime.device, found,
        )  # fmt: skip
        return None

    return defaults.measured(figures(name_of(worker.runtime.device.name, spec), believed, defaults.as_dict()))


def needed(worker: Worker, spec: Spec) -> float:
    """Bytes of device memory that a measurement needs; every case has its own rows and lane."""
    total = 0.0
    for method, numbers in POINTS.items():
        settings = _settings(worker, spec, method, NF)
        for points in numbers:
            total += OBJECTS * (points * (16 + GROWTH * settings.row_bytes()) + GROWTH * settings.object_bytes(NF, 0.1))
    return total


def name_of(gpu: str, spec: Spec) -> str:
    """The name under which the costs of a GPU are stored."""
    return f"periodogram {gpu} {spec.dtype} {FORMAT}"


def plausible(found: Costs, defaults: Costs) -> bool:
    """Whether a real GPU may have these costs.  They may be higher by up to `SLOWER`, but not for one method only."""
    ratios = np.array([value / defaults.as_dict()[key] for key, value in found.as_dict().items()])
    if not np.isfinite(ratios).all() or ratios.min() < 1 / FASTER or ratios.max() > SLOWER:
        return False
    return bool(ratios.max() <= UNEQUAL * ratios.min())


def measure(worker: Worker, spec: Spec) -> Costs:
    """Time both methods for two numbers of points; this takes a tenth of a second, and the compilation.

    The time of a chunk of one object and few frequencies, which has the same launches, is subtracted.  Costs are NaN if
    the GPU was too busy.
    """
    defaults = DEFAULTS[spec.dtype]
    settings = _settings(worker, spec, "nufft", NF)
    method = settings.methods.typical(NF, 0.1, POINTS["nufft"][1])
    if not isinstance(method, NufftMethod):
        return defaults
    jobs = {(m, n): _job(worker, spec, m, n) for m in POINTS for n in POINTS[m]}
    jobs |= {(m, 0): _job(worker, spec, m, POINTS[m][0], 1, SMALLEST_NUFFT) for m in POINTS}
    worker.compile_ahead((part.method, False, part.per_block) for job in jobs.values() for part in job.parts)
    seconds = _seconds(worker, jobs)

    def line(method: str) -> tuple[float, float]:
        """Nanoseconds of an object without points, and of each point."""
        few, many = POINTS[method]
        a, b = (1e9 * (seconds[method, n] - seconds[method, 0]) / OBJECTS for n in (few, many))
        return a - few * (b - a) / (many - few), (b - a) / (many - few)

    base, point = line("nufft")
    tile, pair = line("direct")
    unit = replace(defaults, comb=1.0, spread=1.0, tile=1.0, pair=1.0)
    combs, points = unit.comb_line(method, NF)
    tiles, _ = unit.direct_line(NF)
    return replace(
        defaults, comb=float(base / combs), spread=float(point / points), tile=float(tile / tiles),
        pair=float(pair / tiles),
    )  # fmt: skip


def _settings(worker: Worker, spec: Spec, method: str, nf: int) -> RunSettings:
    device = worker.runtime.device
    grids = Grids(np.array([0.2]), np.array([0.1 / 120]), np.array([nf], np.int64), True)
    spec = replace(spec, method=method, n_peaks=1, return_power=False)
    methods = SinusoidMethods(spec, grids, DEFAULTS[spec.dtype], device.sm_count, device.shared_per_block)
    return RunSettings(methods, None)


def _job(worker: Worker, spec: Spec, method: str, points: int, objects: int = OBJECTS, nf: int = NF) -> ChunkJob:
    """A chunk of equal objects."""
    rng = np.random.default_rng(points)
    t = np.sort(rng.random((objects, points)) * 120, axis=1)
    t[:, 0], t[:, -1] = 0, 119.9
    y = rng.standard_normal((objects, points))
    offsets = np.arange(objects + 1, dtype=np.int64) * points
    xp = worker.runtime.xp  # from arrays on the device: the bus is not what is measured
    return job_of(
        _settings(worker, spec, method, nf), xp.asarray(t.ravel()), xp.asarray(y.ravel()), None, offsets,
        slice(0, objects), Output.allocate(objects, 1), np.full(objects, 0.1), np.diff(offsets),
    )  # fmt: skip


def _seconds(worker: Worker, jobs: dict[Case, ChunkJob]) -> dict[Case, float]:
    """Shortest time of each chunk in seconds, from launch to answer; NaN unless some runs agree with the shortest.

    Other load on the GPU only adds time, and rarely the same: runs that agree with the shortest had the GPU for
    themselves.  The chunks take turns, so that a steady load slows all of them equally.
    """
    lanes = {case: make_lane(worker.runtime) for case in jobs}  # each records its own launches
    times: dict[Case, list[float]] = {case: [] for case in jobs}

    def run(case: Case) -> float:
        start = time.perf_counter()
        worker.begin(lanes[case], jobs[case])
        lanes[case].synchronize()
        return time.perf_counter() - start

    def agree(case: Case) -> bool:
        best = sorted(times[case])
        return len(best) >= FEWEST_RUNS and best[AGREE - 1] <= (1 + WITHIN) * best[0]

    try:
        for case in jobs:
            run(case)  # may compile
            run(case)  # records the launches
        while not (sure := all(agree(case) for case in jobs)):
            if len(times[case]) >= FEWEST_RUNS and sum(map(sum, times.values())) > LONGEST:
                break
            for case in jobs:
                times[case].append(run(case))
    finally:
        for lane in lanes.values():
            worker.forget(lane)
    return {case: min(times[case]) if sure else np.nan for case in jobs}
