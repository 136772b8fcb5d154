"""The jobs by which ``skysieve info --measure`` measures the rates of single-pulse searches."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.machine import rates
from skysieve.dedispersion.data.filterbank import Filterbank
from skysieve.dedispersion.single_pulse.search import WIDTHS, SearchPlan

if TYPE_CHECKING:
    from skysieve.core.device import Device

__all__ = ["measure"]

CASES = (
    (256, 1 << 16, 60, 26, False), (64, 1 << 16, 120, 26, False), (1024, 1 << 14, 240, 1, False),
    (512, 1 << 14, 480, 1, False), (128, 1 << 16, 4, 26, False), (64, 1 << 16, 120, 1, False),
    (256, 1 << 13, 10, 26, False), (512, 1 << 15, 4, 26, True), (256, 1 << 17, 4, 1, True),
)  # fmt: skip
"""Channels, samples, DMs, widths, and whether the samples are cleaned; additions are a third of the work of some."""
NOISE = 1_000_003
"""Random numbers that all data repeat: a prime, so that no channel repeats another."""
LONGER = 8
"""Times as many samples on a GPU."""


def measure(device: Device) -> None:
    """Measure the rates of a device with small data, and store them; `OSError` if they cannot be stored."""
    noise = np.random.default_rng(1).normal(100, 10, NOISE)
    works, took = [], []
    where = "cpu" if device.kind == "cpu" else f"cuda:{device.index}"
    for dtype in (np.uint8, np.float32):
        for channels, samples, dms, widths, clean in CASES:
            samples *= 1 if device.kind == "cpu" else LONGER
            x = np.resize(noise.astype(dtype), (samples, channels)).T  # as in files
            fb = Filterbank.from_array(x, fch1=1500, foff=-300 / channels, tsamp=256e-6)
            given: dict[str, Any] = {"widths": WIDTHS[:widths], "threshold": 8, "device": where, "clean": clean}
            with SearchPlan(fb, np.linspace(0, 300, dms), **given) as plan:
                works.append(plan.describe()["work"])
                took.append(rates.timed(device, partial(plan.execute, fb)))
    rates.keep("dedispersion", device, rates.fit(works, took))
