"""Measurement of the rates of F-statistic maps, searches and demodulation, for ``skysieve info --measure``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.command import counted, show_prediction
from skysieve.core.device import current, resolve
from skysieve.core.machine import rates
from skysieve.fstat.api import TransientPlan
from skysieve.fstat.demod.demodulator import Demodulator, batch_size
from skysieve.fstat.demod.search import demodulators
from skysieve.fstat.demod.simulate import simulate_sfts
from skysieve.fstat.inputs.grid import Grid
from skysieve.fstat.inputs.simulate import synth_atoms
from skysieve.fstat.inputs.windows import WindowSum
from skysieve.fstat.sfts.files import read_sfts, write_sfts
from skysieve.fstat.template_search.batch import AtomsBatch
from skysieve.fstat.template_search.search import ON_GPU, SearchPlan
from skysieve.fstat.timing import measuring

from .sfts import extent

if TYPE_CHECKING:
    from skysieve.core.device import Device
    from skysieve.fstat.demod.bank import TemplateBank
    from skysieve.fstat.inputs.atoms import Atoms

__all__ = ["measure", "predicted_search", "rehearsals", "show_search"]

T0, T = 1_000_000_000, 1800
GRIDS = (
    Grid(t0=T0, t0_band=20 * T, dt0=T, tau=4 * T),
    Grid(t0=T0, t0_band=20 * T, dt0=2 * T, tau=4 * T),
    Grid(t0=T0, t0_band=20 * T, dt0=T, tau=2 * T, tau_band=30 * T, dtau=15 * T),
    Grid(t0=T0, t0_band=20 * T, dt0=T + 50, tau=4 * T),
)
"""Grids with start times in every bin, in every second bin, with far fewer cells than bins, and with start times that
are not aligned with the bins."""
SEARCHES = {"cpu": ((400, 24), (400, 96), (60, 960)), "cuda": ((4000, 24), (10_000, 96), (8000, 1920))}
"""Templates and SFTs of the searches that time the work other than maps; the last one has the size of a batch."""
PROJECTIONS = {"cpu": (4000, 96), "cuda": (20_000, 960)}
"""Templates and SFTs that are demodulated."""
FILES = ((400, 200), (50, 20_000))
"""Number of SFTs in the files that are read, and number of values of each SFT."""


def measure(device: Device) -> None:
    """Measure the rates of a device, and store them; `OSError` if they cannot be stored."""
    for part in _parts(device):
        part()


def rehearsals(device: Device) -> list[Callable[[], object]]:
    """The calls that compile the code of `measure` (see `core.machine.rates.rehearsal`)."""
    return [partial(_around_maps, device)] if device.kind == "cpu" else [partial(_compile, device)]


def _compile(device: Device) -> None:
    """Compile all kernels of a GPU at the same time, and then the code for the CPU.

    Threads do not launch kernels at the same time: some launches are captured in a CUDA graph, and CUDA forbids many
    calls during stream capture.
    """
    from skysieve.core.gpu.runtime import CudaRuntime

    runtime = CudaRuntime(device)
    wanted = [("skysieve.fstat.cuda", f"{name}.cu", build) for name in KERNELS for build in ("f32", "f64")]
    runtime.compile_ahead(wanted)
    for each in wanted:
        runtime.module(*each)
    _around_maps(device)


KERNELS = ("exp", "rect", "any", "pack", "demod/demod")
"""Files of the kernels that are timed."""


def _parts(device: Device) -> list[Callable[[], object]]:
    """The parts of `measure`."""
    parts: list[Callable[[], object]] = [
        partial(_maps_of_one, device, *case) for case in product(("rect", "exp"), ("float64", "float32"), (False, True))
    ]
    if device.kind == "cuda":
        parts += [partial(_maps_of_many, device, *case) for case in product(("float64", "float32"), (False, True))]
    return [*parts, partial(_around_maps, device)]


def _maps_of_one(device: Device, window: Any, dtype: Any, keep_map: bool) -> None:
    """Measure the constants of maps of one template."""
    atoms = synth_atoms(T0, 40 * T)
    for grid in GRIDS[: 3 if keep_map else 4]:
        for posteriors in ((True,) if keep_map else (False, True)) if device.kind == "cuda" else (False,):
            options: dict[str, Any] = {"keep_map": keep_map, "posteriors": posteriors, "device": device}
            with TransientPlan(grid, window=window, dtype=dtype, **options) as plan, measuring():
                plan.describe(atoms)


def _maps_of_many(device: Device, dtype: Any, on_gpu: bool) -> None:
    """Measure the constants of a GPU for many templates, which differ from those for one template."""
    for grid in GRIDS[:2]:
        with SearchPlan(grid, dtype=dtype, device=device) as search, measuring():
            search.describe(_batch(4, 48, device if on_gpu else None))


def _around_maps(device: Device) -> None:
    """Measure the rates of the other work, of reading and of demodulation; the rates of maps are known by then."""
    found: dict[str, float] = {}
    if device.kind == "cpu":
        with TransientPlan(window=WindowSum([(1, 1), (-1, 5)]), dtype="float32", keep_map=False, device=device) as plan:
            many = synth_atoms(T0, 300 * T)
            took = rates.timed(device, partial(plan.execute, many))
            rates.keep("fstat", device, {"weights": 1.0})
            found["weights"] = took / float(plan.describe(many)["processor_seconds"])
    name = "processor_seconds" if device.kind == "cpu" else "seconds"
    rates.keep("fstat", device, found | dict.fromkeys(["templates", "atoms", *ON_GPU], 0.0))  # then maps alone count
    for place in (None, device)[: 1 if device.kind == "cpu" else 2]:
        works, took_each = [], []
        for templates, sfts in SEARCHES[device.kind]:
            batch = _batch(templates, sfts, place)
            grid = Grid(t0=T0, t0_band=0, dt0=T, tau=2 * T, tau_band=0, dtau=T)
            with SearchPlan(grid, windows=("rect",), device=device) as search:
                alone = search.describe(batch)[name] or 0.0  # None in a rehearsal: the rates of maps are not known yet
                seconds = rates.timed(device, partial(_searched, search, batch))
                works.append(search.work_of(templates, templates * sfts, batch[0].on_device))
                took_each.append(max(seconds - alone, 0.1 * seconds))
        found |= rates.fit(works, took_each)
    templates, sfts_count = PROJECTIONS[device.kind]
    made = simulate_sfts((100.0, 100.2), T0, sfts_count * T, detectors=("H1",), ephemeris="builtin")
    with Demodulator(made, 0.5, 1.0, barycentre="builtin", device=device) as host:
        f0 = np.linspace(100.09, 100.11, templates)
        seconds = rates.timed(device, partial(host.batch, f0))
    found["projections"] = seconds / (templates * sfts_count)
    wide = simulate_sfts((100.0, 101.0), T0, 300 * T, detectors=("H1",), ephemeris="builtin")
    made_anew = partial(Demodulator, wide, 0.5, 1.0, barycentre="builtin", device=device)
    found["sft values"] = rates.timed(device, made_anew) / wide[0].data.size
    works, took_each = [], []
    for sfts_count, values in FILES:
        made = simulate_sfts((100.0, 100 + values / T), T0, sfts_count * T, detectors=("H1",), ephemeris="builtin")
        with TemporaryDirectory() as folder:
            [path] = write_sfts(folder, made)
            took_each.append(rates.timed(device, partial(_opened, path)))
            works.append({"sfts read": float(sfts_count), "sft bytes read": float(path.stat().st_size)})
    rates.keep("fstat", device, found | rates.fit(works, took_each))


def _opened(path: Path) -> None:
    """Read SFTs as a search does."""
    extent([str(path)])
    read_sfts(path)


SAMPLED = 256
"""Largest number of templates that are timed; the time of all is estimated from them."""


def show_search(
    plan: SearchPlan,
    first: list[Atoms],
    host: Demodulator | None,
    bank: TemplateBank | None,
    total: int,
    read: Callable[[], object],
    sft_bytes: int = 0,
) -> None:
    """Print the predicted time and memory of a search, for ``--dry-run``.

    Parameters
    ----------
    plan : SearchPlan
    first : list of Atoms
        Atoms of the first template.
    host, bank : Demodulator and TemplateBank, optional
        For a search of SFTs.
    total : int
        Number of templates.
    read : callable
        Reads the file of one template.
    sft_bytes : int
        Size of all files of SFTs.
    """
    facts = predicted_search(plan, first, host, bank, total, read, sft_bytes)
    show_prediction(facts, f"{counted(total, 'template')}, windows {', '.join(plan.options.windows)}")


def predicted_search(
    plan: SearchPlan,
    first: list[Atoms],
    host: Demodulator | None,
    bank: TemplateBank | None,
    total: int,
    read: Callable[[], object],
    sft_bytes: int = 0,
) -> dict[str, Any]:
    """The prediction that `show_search` prints."""
    device, shared = plan.devices[0], len(plan.devices)
    if host is not None and bank is not None and device.kind == "cuda":  # a batch of the usual size
        with demodulators(host, plan.devices[:1]) as [one]:
            few = min(total, batch_size(one))
            facts = plan.describe(one.batch(*bank.part(0, few).values(), strict=False))
    elif host is not None and bank is not None:
        facts = plan.describe(host.batch(*bank.part(0, min(total, SAMPLED)).values(), strict=False))
    else:
        facts = plan.describe(first)
    whole = total / facts["templates"]
    for name in ("seconds", "processor_seconds"):
        facts[name] = None if facts[name] is None else facts[name] * whole
    if facts["processor_seconds"] is not None:  # the threads share the templates of all batches
        facts["seconds"] = facts["processor_seconds"] / min(total, shared)
    work, once = {}, 0.0
    if host is not None:
        work["projections"] = float(total * sum(len(one) for one in host.sfts))
        work["sft values"] = float(sum(one.data.size for one in host.sfts))
        work |= {"sfts read": float(sum(map(len, host.sfts))), "sft bytes read": float(sft_bytes)}
    else:
        once = total * rates.timed(resolve("cpu")[0], read)
    around = rates.predicted("fstat", device, work)
    for name in ("seconds", "processor_seconds"):
        each = facts[name], around[name]
        facts[name] = None if each[0] is None or each[1] is None else each[0] + each[1] + once
    missing = rates.missing("fstat", device, plan.work_of(1, 1, host is not None and device.kind == "cuda") | work)
    windows = [] if missing else ["the maps of these windows"]
    return facts | {"moved": round(facts["moved"] * whole), "missing": missing or windows, "threads": shared}


def _searched(search: SearchPlan, batch: list[AtomsBatch]) -> None:
    """Search a batch as a stream."""
    search.execute(iter([batch]))


def _batch(templates: int, sfts: int, place: Device | None = None) -> list[AtomsBatch]:
    """Atoms of noise of one detector; in the memory of a GPU, where the demodulation leaves them, if it is `place`."""
    [one] = synth_atoms(T0, sfts * T, detectors=("H1",))
    rng = np.random.default_rng(1)
    shape = templates, len(one)
    noise = np.empty(shape, np.complex64)
    noise.real, noise.imag = (rng.standard_normal(shape, np.float32) for _ in range(2))
    a, b = np.sqrt(one.a2 / 2), np.copysign(np.sqrt(one.b2 / 2), one.ab)
    Fa, Fb = (response.astype(np.float32) * noise for response in (a, b))  # E[2F] = 4: no template is loud
    arrays: list[Any] = [one.a2, one.b2, one.ab, Fa, Fb]
    if place is not None:
        import cupy

        with current(place):
            arrays = [cupy.asarray(x) for x in arrays]
    a2, b2, ab, Fa, Fb = arrays
    params = {"f0": np.linspace(100, 101, templates)}
    return [AtomsBatch(one.t, a2, b2, ab, Fa, Fb, one.tatom, one.detector, params)]
