"""Predicted times of a GPU: which constants of `timing` a job needs, and what is timed for them on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.device import Device
from skysieve.fstat import timing
from skysieve.fstat.contract import Job, Spec
from skysieve.fstat.inputs.windows import Window, WindowSum

from .tables import make_tables
from .windows import Terms, work_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

KINDS = {"none": "rect"}


def method_of(spec: Spec, job: Job) -> str:
    """How the sums of most cells are formed."""
    if spec.window.kind != "any":
        return "recurrence" if spec.window.kind in ("exp", "sum") else "running sums"
    direct, fourier = work_of(job, make_tables(job, "any"), np.dtype(spec.dtype))
    return "bin by bin" if direct >= fourier else "fourier"


def predicted(
    spec: Spec, job: Job, device: Device, xp: Any, make: Callable[[Spec, bool | None], Any], there: bool
) -> float:  # fmt: skip
    """Seconds of a job by the model of `timing`.

    Parameters
    ----------
    spec : Spec
    job : Job
    device : Device
    xp : module
        Of the device's arrays.
    make : callable
        ``make(spec, fourier)`` gives an engine on the device; ``fourier`` is the method of windows of any shape.
    there : bool
        Whether the atoms are on the device, where maps then stay.
    """
    kind = KINDS.get(spec.window.kind, spec.window.kind)
    apart = not (job.schedule.group == job.schedule.group[0]).all()
    name = f"{device.name}, {detail(spec.window)}{' apart' * apart}{' map' * spec.keep_map}{' there' * there}"
    alone = job.n_templates == 1 and kind != "any"
    name += " alone" * alone + (
        f"{' posteriors' * spec.marginals}{f' {len(job.detectors)} detectors' if job.detectors else ''}, {spec.dtype}"
    )

    def cases() -> timing.Cases:
        window = Window(kind, spec.window.efold, spec.window.function)
        methods = (False, True) if kind == "any" else (None,)
        for fourier in methods:
            engine = make(replace(spec, window=window), fourier)
            try:
                for n, dt0, dtau, templates in timing.GPU_SETUPS_ALONE if alone else timing.GPU_SETUPS:
                    few = min(templates, 8) if spec.keep_map else templates
                    if apart and kind == "any" and n > timing.LONGEST_APART:
                        continue
                    found = timing.sample(n, dt0, dtau, window, np.dtype(spec.dtype), apart, few)
                    if there:
                        bank = found.bank
                        found = replace(
                            found, bank=replace(bank, antenna=xp.asarray(bank.antenna), data=xp.asarray(bank.data))
                        )
                    found = replace(found, detectors=(found.bank,) * len(job.detectors))
                    yield counts(spec, found, fourier), partial(engine.execute, found)
            finally:
                engine.close()

    return float(timing.constants(name, cases) @ counts(spec, job, None))


def detail(window: Window) -> str:
    """What of a window the kernels depend on."""
    if isinstance(window.function, WindowSum):
        return " ".join(map(str, ["sum", *Terms(window.function).defines(1).values()][:6]))
    return "function" if window.function else KINDS.get(window.kind, window.kind)


def counts(spec: Spec, job: Job, fourier: bool | None) -> NDArray[np.float64]:
    """What the constants are multiplied by; for windows of any shape bins summed and points transformed."""
    if spec.window.kind != "any":
        return timing.terms(job, spec.window.kind in ("exp", "sum"), job.n_templates)
    work = work_of(job, make_tables(job, "any"), np.dtype(spec.dtype), fourier)
    return np.array([1.0, job.n, *(job.n_templates * w for w in work)])
