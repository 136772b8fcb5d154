"""The jobs by which ``skysieve info --measure`` measures the rates of single-pulse searches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.machine import rates
from skysieve.dedispersion.data.filterbank import Filterbank
from skysieve.dedispersion.single_pulse.search import WIDTHS, SearchPlan

if TYPE_CHECKING:
    from skysieve.core.device import Device

__all__ = ["measure", "rehearsals"]

Case = tuple[int, int, int, int, bool]
SHARED: dict[str, tuple[Case, ...]] = {
    "cpu": (
        (256, 1 << 15, 60, 26, False), (64, 1 << 15, 120, 26, False), (256, 1 << 13, 10, 26, False),
        (64, 1 << 15, 120, 1, False),
    ),
    "cuda": (
        (256, 1 << 17, 500, 26, False), (64, 1 << 17, 2000, 26, False), (256, 1 << 13, 10, 26, False),
        (64, 1 << 17, 2000, 1, False),
    ),
}  # fmt: skip
"""Searches of 8-bit data: numbers of channels, samples, DMs and widths, and whether the samples are cleaned.  They
measure the rates that do not depend on the type of the samples."""
CASES: dict[str, tuple[Case, ...]] = {
    "cpu": (
        (1024, 1 << 13, 240, 1, False), (512, 1 << 14, 480, 1, False), (128, 1 << 15, 4, 26, False),
        (256, 1 << 16, 4, 1, True),
    ),
    "cuda": (
        (4096, 1 << 13, 8000, 1, False), (1024, 1 << 14, 4000, 1, False), (512, 1 << 16, 4, 26, False),
        (256, 1 << 16, 4, 1, True),
    ),
}  # fmt: skip
"""Searches for each type of samples: additions are a third of the work of the first two, and reading is a third of the
work of the third."""
TYPES = {"uint8": 1, "float32": 4}
"""Types of samples, and the divisor of the number of DMs, since additions of float32 take longer."""
NOISE = 1_000_003
"""Number of random numbers, which all data repeat: a prime, so that no channel repeats another."""


def measure(device: Device) -> None:
    """Measure the rates of a device with small data, and store them; `OSError` if they cannot be stored."""
    works, took = zip(*(job() for job in rehearsals(device)), strict=True)
    rates.keep("dedispersion", device, rates.fit(works, took))


def rehearsals(device: Device) -> list[Callable[[], tuple[dict[str, float], float]]]:
    """The parts of `measure`: functions that return the work of a search and the seconds that it took."""
    where = "cpu" if device.kind == "cpu" else "cuda"
    jobs = [("uint8", case) for case in SHARED[where]] + [(dtype, case) for dtype in TYPES for case in CASES[where]]
    return [
        partial(_search, device, dtype, channels, samples, max(4, dms // TYPES[dtype]), widths, clean)
        for dtype, (channels, samples, dms, widths, clean) in jobs
    ]


def _search(
    device: Device, dtype: str, channels: int, samples: int, dms: int, widths: int, clean: bool
) -> tuple[dict[str, float], float]:
    noise = np.random.default_rng(1).normal(100, 10, NOISE).astype(dtype)
    x = np.resize(noise, (samples, channels)).T  # as in files
    fb = Filterbank.from_array(x, fch1=1500, foff=-300 / channels, tsamp=256e-6)
    where = "cpu" if device.kind == "cpu" else f"cuda:{device.index}"
    given: dict[str, Any] = {"widths": WIDTHS[:widths], "threshold": 8, "device": where, "clean": clean}
    with SearchPlan(fb, np.linspace(0, 300, dms), **given) as plan:
        return plan.describe()["work"], rates.timed(device, partial(plan.execute, fb))
