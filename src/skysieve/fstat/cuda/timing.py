"""Predicted times of a GPU: the constants of `timing` that a job needs, and the calls that are timed for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.device import Device
from skysieve.fstat import timing
from skysieve.fstat.contract import MapJob, Spec
from skysieve.fstat.inputs.window_kinds import Algorithm
from skysieve.fstat.inputs.windows import Window, WindowSum

from .tables import make_tables
from .windows import Terms, work_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


def method_of(spec: Spec, job: MapJob) -> str:
    """The method by which most cells are summed."""
    if spec.window.algorithm != Algorithm.WEIGHTS:
        return str(spec.window.algorithm)
    direct, fourier = work_of(job, make_tables(job, Algorithm.WEIGHTS), np.dtype(spec.dtype))
    return str(Algorithm.WEIGHTS) if direct >= fourier else "fourier"


def predicted(
    spec: Spec, job: MapJob, device: Device, xp: Any, make: Callable[[Spec, bool | None], Any], on_device: bool
) -> dict[str, float | None]:  # fmt: skip
    """Seconds of a job by the model of `timing`; None without measured constants.

    Parameters
    ----------
    spec : Spec
    job : MapJob
    device : Device
    xp : module
        Module of the device's arrays.
    make : callable
        ``make(spec, fourier)`` returns an engine on the device; ``fourier`` is the method for windows of any shape.
    on_device : bool
        Whether the atoms are on the device; maps then stay there.
    """
    weights = spec.window.algorithm == Algorithm.WEIGHTS
    aligned = bool((job.schedule.group == job.schedule.group[0]).all())
    alone = job.n_templates == 1 and not weights
    by_steps = aligned and not weights and timing.stepped(job.schedule)
    words = [
        f"{device.name}, {detail(spec.window)}",
        "groups" * (not aligned),
        "steps" * by_steps,
        "map" * spec.keep_map,
    ]
    words += ["device arrays" * on_device, "alone" * alone, "posteriors" * spec.marginals]
    words += [f"{len(job.detectors)} detectors" if job.detectors else ""]
    name = " ".join(word for word in words if word) + f", {spec.dtype}"

    def cases() -> timing.Cases:
        methods = (False, True) if weights else (None,)
        setups: tuple[tuple[int, int, int, int], ...] = timing.GPU_SETUPS_ALONE if alone else timing.GPU_SETUPS
        many: tuple[tuple[int, int, int, int], ...] = timing.GPU_SETUPS_MANY
        if by_steps:
            setups = timing.GPU_STEP_SETUPS_ALONE if alone else timing.GPU_STEP_SETUPS
            many = timing.GPU_STEP_SETUPS_MANY
        if on_device and not (alone or weights or spec.keep_map or spec.marginals):
            setups += many
        sums = spec.window.algorithm == Algorithm.RUNNING_SUMS
        plain = sums and aligned and not spec.keep_map and not spec.marginals
        for fourier in methods:
            engine = make(spec, fourier)
            try:
                for n, dt0, dtau, templates in setups:
                    few = min(templates, 8) if spec.keep_map else templates
                    if not aligned and weights and n > timing.LONGEST_UNALIGNED:
                        continue
                    if not plain and n > timing.LARGEST:
                        continue
                    found = timing.sample(n, dt0, dtau, spec.window, np.dtype(spec.dtype), not aligned, few)
                    if on_device:
                        bank = found.bank
                        found = replace(
                            found, bank=replace(bank, antenna=xp.asarray(bank.antenna), data=xp.asarray(bank.data))
                        )
                    found = replace(found, detectors=(found.bank,) * len(job.detectors))
                    yield counts(spec, found, fourier), partial(engine.execute, found)
            finally:
                engine.close()

    found = timing.constants(name, cases, time.perf_counter)
    seconds = None if found is None else float(found @ counts(spec, job, None))
    return {"seconds": seconds, "processor_seconds": None}


def detail(window: Window) -> str:
    """The properties of a window on which the time of the kernels depends."""
    if isinstance(window.shape, WindowSum):
        return " ".join(map(str, [window.algorithm, *Terms(window.shape).defines(1).values()][:6]))
    return str(window.algorithm)


def counts(spec: Spec, job: MapJob, fourier: bool | None) -> NDArray[np.float64]:
    """The counts that the constants are multiplied by; for windows of any shape bins summed and points transformed."""
    if spec.window.algorithm != Algorithm.WEIGHTS:
        return timing.terms(job, spec.window.algorithm != Algorithm.RUNNING_SUMS, job.n_templates)
    work = work_of(job, make_tables(job, Algorithm.WEIGHTS), np.dtype(spec.dtype), fourier)
    return np.array([1.0, job.n, *(job.n_templates * w for w in work)])
