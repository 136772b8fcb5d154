"""A short measurement of what the methods cost on a GPU, kept per GPU name in the user's cache folder."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from skysieve.core.kept import Figures, figures
from skysieve.periodogram.cuda_cost import DEFAULTS, Costs
from skysieve.periodogram.cuda_jobs import Plan, job_of
from skysieve.periodogram.workload import Grids, Output, Spec

if TYPE_CHECKING:
    from skysieve.periodogram.cuda_worker import Job, Worker

logger = logging.getLogger("skysieve")

OBJECTS, NF = 600, 57_600
POINTS = (48, 160)
ROUNDS, REPEATS = 2, 5
"""The least of so many counts: what else the GPU does only adds, and comes and goes between the rounds."""
FORMAT = 4
"""Changes when the kernels change enough to void old figures."""
SLOWER, FASTER, APART = 1000.0, 30.0, 30.0
"""What is believed of a GPU beside an H100: costs at most so many times as high, or as low, and so far apart.

The slowest card in float64 that can run the kernels, a T4 of 0.25 TFLOP/s, has 1/130 of an H100's multiply-adds and
1/260 of its matrix units.
"""


def costs_of(worker: Worker, spec: Spec) -> Costs:
    """The figures of the worker's GPU: one set for a process, whatever other processes measure meanwhile."""
    defaults = DEFAULTS[spec.dtype]

    def believed() -> Figures | None:
        for _ in range(2):
            found = measure(worker, spec)
            if plausible(found, defaults):
                return found.as_dict()
        logger.warning(
            "%s: measured costs of the periodogram's methods are not believed, those of an H100 are used: %s",
            worker.runtime.device, found,
        )  # fmt: skip
        return None

    return Costs(**figures(name_of(worker.runtime.device.name, spec), believed, defaults.as_dict()))


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
    """Time both methods for two numbers of points; a tenth of a second and the compilation."""
    defaults = DEFAULTS[spec.dtype]
    seconds = _seconds(worker, spec)
    few, many = POINTS
    plan = _plan(worker, spec, "nufft")
    layout = plan.layout(NF, 0.1)
    if layout is None:
        return defaults
    pairs = -(-NF // layout.span)

    def line(method: str) -> tuple[float, float]:
        """Nanoseconds of an object without points, and of each point."""
        a, b = (1e9 * seconds[method, n] / OBJECTS for n in (few, many))
        slope = max((b - a) / (many - few), 1e-3)
        return max(a - few * slope, 0.0), slope

    base, point = line("nufft")
    fixed, pair = line("direct")
    return replace(
        defaults,
        comb=base / (pairs * layout.combs),
        spread=point / pairs,
        direct=fixed / NF,
        pair=pair / NF,
    )


def _plan(worker: Worker, spec: Spec, method: str) -> Plan:
    device = worker.runtime.device
    grids = Grids(np.array([0.2]), np.array([0.1 / 120]), np.array([NF], np.int64), True)
    spec = replace(spec, method=method, n_peaks=1, return_power=False)
    return Plan(spec, grids, DEFAULTS[spec.dtype], device.sm_count, device.shared_per_block, None)


def _seconds(worker: Worker, spec: Spec) -> dict[tuple[str, int], float]:
    """Seconds of a chunk by each method, for each number of points."""
    best: dict[tuple[str, int], float] = {}
    jobs = {(m, n): _job(worker, spec, m, n) for m in ("nufft", "direct") for n in POINTS}
    for _ in range(ROUNDS):
        for case, job in jobs.items():
            best[case] = min(best.get(case, np.inf), _time(worker, job))
    return best


def _job(worker: Worker, spec: Spec, method: str, points: int) -> Job:
    """A chunk of like objects."""
    rng = np.random.default_rng(points)
    t = np.sort(rng.random((OBJECTS, points)) * 120, axis=1)
    t[:, 0], t[:, -1] = 0, 119.9
    y = rng.standard_normal((OBJECTS, points))
    offsets = np.arange(OBJECTS + 1, dtype=np.int64) * points
    xp = worker.runtime.xp  # from arrays on the device: the bus is not what is measured
    return job_of(
        _plan(worker, spec, method), xp.asarray(t.ravel()), xp.asarray(y.ravel()), None, offsets, slice(0, OBJECTS),
        Output.allocate(OBJECTS, 1), np.full(OBJECTS, 0.1), np.diff(offsets),
    )  # fmt: skip


def _time(worker: Worker, job: Job) -> float:
    """Least seconds of a chunk, from launch to answer."""
    lane, times = worker.lanes[0], []
    for _ in range(REPEATS + 2):  # the first may compile, the second records the launches
        start = time.perf_counter()
        worker.begin(lane, job)
        lane.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[2:])
