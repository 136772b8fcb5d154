"""A short measurement of what the methods cost on a GPU, kept per GPU name in the user's cache folder."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from skysieve.core.errors import format_bytes, out_of_memory
from skysieve.core.gpu.staging import GROWTH, make_lane
from skysieve.core.measured import Figures, figures
from skysieve.periodogram.contract import Grids, Output, Spec

from .chunks import SMALLEST_COMB, Plan, job_of
from .cost import DEFAULTS, Costs

if TYPE_CHECKING:
    from .worker import Job, Worker

logger = logging.getLogger("skysieve")

OBJECTS, NF = 600, 57_600
POINTS = {"nufft": (48, 160), "direct": (16, 32)}
"""Of each object, by method: direct sums are chosen for few."""
FEWEST_RUNS, AGREE, ALIKE, LONGEST = 5, 3, 0.08, 3.0
"""Runs of a case, how many must agree with the least, how well, and the seconds in which they must."""
Case = tuple[str, int]
"""Method, and points of each object (0: the nearly empty chunk)."""
FORMAT = 8
"""Changes when the kernels change enough to void old figures."""
SLOWER, FASTER, APART = 1000.0, 30.0, 30.0
"""What is believed of a GPU beside an H100: costs at most so many times as high, or as low, and so far apart.

The slowest card in float64 that can run the kernels, a T4 of 0.25 TFLOP/s, has 1/130 of an H100's multiply-adds and
1/260 of its matrix units.
"""


def costs_of(worker: Worker, spec: Spec, budget: float = np.inf) -> Costs:
    """The figures of the worker's GPU: one set for a process, whatever other processes measure meanwhile.

    ``budget``: bytes of device memory that may be used.
    """
    defaults = DEFAULTS[spec.dtype]

    def believed() -> Figures | None:
        if (need := needed(worker, spec)) > budget:
            logger.warning(
                "%s: the costs of the periodogram's methods are not measured, which needs %s of device memory, those "
                "of an H100 are used", worker.runtime.device, format_bytes(need),
            )  # fmt: skip
            return None
        try:
            found = measure(worker, spec)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            logger.warning(
                "%s: too little memory is free to measure the costs of the periodogram's methods, those of an H100 are "
                "used: %s", worker.runtime.device, error,
            )  # fmt: skip
            return None
        if plausible(found, defaults):
            return found.as_dict()
        logger.warning(
            "%s: measured costs of the periodogram's methods are not believed, those of an H100 are used: %s",
            worker.runtime.device, found,
        )  # fmt: skip
        return None

    return defaults.measured(figures(name_of(worker.runtime.device.name, spec), believed, defaults.as_dict()))


def needed(worker: Worker, spec: Spec) -> float:
    """Bytes of device memory of a measurement: every case has its rows and a lane."""
    total = 0.0
    for method, numbers in POINTS.items():
        plan = _plan(worker, spec, method, NF)
        for points in numbers:
            total += OBJECTS * (points * (16 + GROWTH * plan.row_bytes()) + GROWTH * plan.object_bytes(NF, 0.1))
    return total


def name_of(gpu: str, spec: Spec) -> str:
    """Under which figures are kept."""
    return f"periodogram {gpu} {spec.dtype} {FORMAT}"


def plausible(found: Costs, defaults: Costs) -> bool:
    """Can a GPU be like this?  Other ones are slower by up to `SLOWER`, and not at one method alone."""
    ratios = np.array([value / defaults.as_dict()[key] for key, value in found.as_dict().items()])
    if not np.isfinite(ratios).all() or ratios.min() < 1 / FASTER or ratios.max() > SLOWER:
        return False
    return bool(ratios.max() <= APART * ratios.min())


def measure(worker: Worker, spec: Spec) -> Costs:
    """Time both methods for two numbers of points; a tenth of a second and the compilation.

    A chunk of one object and few frequencies is taken off: it is launched alike, and nearly empty.  NaN
    where the GPU was too busy to tell.
    """
    defaults = DEFAULTS[spec.dtype]
    plan = _plan(worker, spec, "nufft", NF)
    layout = plan.layout(NF, 0.1)
    if layout is None:
        return defaults
    jobs = {(m, n): _job(worker, spec, m, n) for m in POINTS for n in POINTS[m]}
    jobs |= {(m, 0): _job(worker, spec, m, POINTS[m][0], 1, SMALLEST_COMB) for m in POINTS}
    worker.compile_ahead((part.layout, False, part.per_block) for job in jobs.values() for part in job.parts)
    seconds = _seconds(worker, jobs)

    def line(method: str) -> tuple[float, float]:
        """Nanoseconds of an object without points, and of each point."""
        few, many = POINTS[method]
        a, b = (1e9 * (seconds[method, n] - seconds[method, 0]) / OBJECTS for n in (few, many))
        return a - few * (b - a) / (many - few), (b - a) / (many - few)

    base, point = line("nufft")
    tile, pair = line("direct")
    unit = replace(defaults, comb=1.0, spread=1.0, tile=1.0, pair=1.0)
    combs, points = unit.comb_line(layout, NF)
    tiles, _ = unit.direct_line(NF)
    return replace(
        defaults, comb=float(base / combs), spread=float(point / points), tile=float(tile / tiles),
        pair=float(pair / tiles),
    )  # fmt: skip


def _plan(worker: Worker, spec: Spec, method: str, nf: int) -> Plan:
    device = worker.runtime.device
    grids = Grids(np.array([0.2]), np.array([0.1 / 120]), np.array([nf], np.int64), True)
    spec = replace(spec, method=method, n_peaks=1, return_power=False)
    return Plan(spec, grids, DEFAULTS[spec.dtype], device.sm_count, device.shared_per_block, None)


def _job(worker: Worker, spec: Spec, method: str, points: int, objects: int = OBJECTS, nf: int = NF) -> Job:
    """A chunk of like objects."""
    rng = np.random.default_rng(points)
    t = np.sort(rng.random((objects, points)) * 120, axis=1)
    t[:, 0], t[:, -1] = 0, 119.9
    y = rng.standard_normal((objects, points))
    offsets = np.arange(objects + 1, dtype=np.int64) * points
    xp = worker.runtime.xp  # from arrays on the device: the bus is not what is measured
    return job_of(
        _plan(worker, spec, method, nf), xp.asarray(t.ravel()), xp.asarray(y.ravel()), None, offsets,
        slice(0, objects), Output.allocate(objects, 1), np.full(objects, 0.1), np.diff(offsets),
    )  # fmt: skip


def _seconds(worker: Worker, jobs: dict[Case, Job]) -> dict[Case, float]:
    """Least seconds of each chunk, from launch to answer; NaN where no few runs agree.

    What else the GPU does only adds, and hardly ever the same: runs that agree with the least had it to themselves.
    The chunks take turns, so that steady company slows all of them alike.
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
        return len(best) >= FEWEST_RUNS and best[AGREE - 1] <= (1 + ALIKE) * best[0]

    try:
        for case in jobs:
            run(case)  # may compile
            run(case)  # records the launches
        while not (told := all(agree(case) for case in jobs)):
            if len(times[case]) >= FEWEST_RUNS and sum(map(sum, times.values())) > LONGEST:
                break
            for case in jobs:
                times[case].append(run(case))
    finally:
        for lane in lanes.values():
            worker.forget(lane)
    return {case: min(times[case]) if told else np.nan for case in jobs}
