"""A short measurement of what the methods cost on a GPU, kept per GPU name in the user's cache folder."""

from __future__ import annotations

import json
import logging
import os
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from skysieve.periodogram.cuda_cost import DEFAULTS, Costs
from skysieve.periodogram.cuda_jobs import Plan, job_of
from skysieve.periodogram.workload import Grids, Output, Spec

if TYPE_CHECKING:
    from skysieve.periodogram.cuda_worker import Worker

logger = logging.getLogger("skysieve")

OBJECTS, NF = 600, 57_600
POINTS = (48, 160)
REPEATS = 3
FORMAT = 3
"""Changes when the kernels change enough to void old figures."""


def cache_file() -> Path:
    """Where the figures are kept: ``$XDG_CACHE_HOME/skysieve`` or the system's like."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return base / "skysieve" / "periodogram-costs.json"


def costs_of(worker: Worker, spec: Spec) -> Costs:
    """The kept figures of the worker's GPU; measured, and kept, when there are none.

    A cache folder that cannot be read or written costs a measurement a process, nothing else.
    """
    name = f"{worker.runtime.device.name} {spec.dtype} {FORMAT}"
    path = cache_file()
    known: dict[str, dict[str, float]] = {}
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        return Costs(**known[name])
    except (OSError, ValueError, TypeError, KeyError):
        logger.debug("no figures for %s in %s", name, path)
    found = measure(worker, spec)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps({**known, name: found.as_dict()}, indent=1), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        logger.info("the costs of %s cannot be kept in %s: %s", name, path, error)
    return found


def measure(worker: Worker, spec: Spec) -> Costs:
    """Time both methods for two numbers of points; some ten milliseconds and the compilation."""
    defaults = DEFAULTS[spec.dtype]
    seconds = {(m, n): _time(worker, spec, m, n) for m in ("nufft", "direct") for n in POINTS}
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


def _time(worker: Worker, spec: Spec, method: str, points: int) -> float:
    """Median seconds of one chunk of like objects, from launch to answer."""
    rng = np.random.default_rng(points)
    t = np.sort(rng.random((OBJECTS, points)) * 120, axis=1)
    t[:, 0], t[:, -1] = 0, 119.9
    y = rng.standard_normal((OBJECTS, points))
    offsets = np.arange(OBJECTS + 1, dtype=np.int64) * points
    plan = _plan(worker, spec, method)
    output = Output.allocate(OBJECTS, 1)
    xp = worker.runtime.xp  # from arrays on the device: the bus is not what is measured
    job = job_of(
        plan, xp.asarray(t.ravel()), xp.asarray(y.ravel()), None, offsets, slice(0, OBJECTS), output,
        np.full(OBJECTS, 0.1), np.diff(offsets),
    )  # fmt: skip
    lane, times = worker.lanes[0], []
    for _ in range(REPEATS + 3):  # the first compiles, the second records the launches
        start = time.perf_counter()
        worker.begin(lane, job)
        lane.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[3:])
