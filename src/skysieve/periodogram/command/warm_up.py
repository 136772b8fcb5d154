"""Typical uses of the periodogram on small synthetic data, for ``skysieve warm-up``.

Each use calls functions that share compiled code: two processes would compile that code twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.cpu import jit
from skysieve.periodogram.api import lombscargle
from skysieve.periodogram.cpu import aliases
from skysieve.periodogram.multiband import lombscargle_multiband

if TYPE_CHECKING:
    from typing import Literal

__all__ = ["USES"]

POINTS, OBJECTS = 60, 4
LONG_GRID: dict[str, Any] = {"fmin": 0.01, "fmax": 10.0, "nf": 100_000}
"""One curve with this many frequencies is divided among threads, whose results a further compiled function joins."""


def _curves(objects: int) -> dict[str, Any]:
    """Return light curves of noise, one after another."""
    rng = np.random.default_rng(1)
    t = np.sort(rng.uniform(0, 100, (objects, POINTS)), axis=1).ravel()
    offsets = POINTS * np.arange(objects + 1)
    return {"t": t, "y": rng.standard_normal(t.size), "dy": np.full(t.size, 0.1), "offsets": offsets}


def _method(device: str) -> str:
    """The method whose code lasts: "auto" answers small jobs on a CPU without it while it is not compiled."""
    return "nufft" if device == "cpu" else "auto"


def sinusoid(device: str, dtype: Literal["float64", "float32"]) -> None:
    """Search one light curve on a long grid, and a batch on the grids that the function chooses."""
    given: dict[str, Any] = {"n_peaks": 5, "device": device, "dtype": dtype, "threads": 2, "method": _method(device)}
    lombscargle(**_curves(1), **LONG_GRID, **given)
    lombscargle(**_curves(OBJECTS), return_power=False, **given)


def series(device: str) -> None:
    """Fit several terms, then two bands, in the same two ways."""
    given: dict[str, Any] = {"n_peaks": 5, "device": device, "threads": 2, "method": _method(device)}
    lombscargle(**_curves(1), nterms=2, **LONG_GRID, **given)
    lombscargle(**_curves(OBJECTS), nterms=4, return_power=False, **given)
    for objects, more in ((1, LONG_GRID), (OBJECTS, dict[str, Any](return_power=False))):
        made = _curves(objects)
        made["bands"] = np.arange(len(made["t"])) % 2
        lombscargle_multiband(**made, **more, **given)


def later(dtype: Literal["float64", "float32"]) -> None:
    """Compile the search of one term, with low priority: the process that wants it has other work meanwhile."""
    if hasattr(os, "nice"):
        os.nice(10)
    jit.compile_all()
    lombscargle(**_curves(OBJECTS), n_peaks=5, device="cpu", dtype=dtype, threads=1, method="nufft", return_power=False)


USES: dict[str, Callable[[str], None]] = {
    "one term": partial(sinusoid, dtype="float64"),
    "one term, float32": partial(sinusoid, dtype="float32"),
    "several terms and bands": series,
    "aliases of large files": lambda device: aliases.use(),
}
"""Name of each use, and the function that runs it on a device."""
