"""Typical uses of the periodogram on small made data, for ``skysieve warm-up``.

Small data and large data run the same compiled functions; only the methods and the types differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from skysieve.periodogram.api import lombscargle
from skysieve.periodogram.multiband import lombscargle_multiband

__all__ = ["USES"]

POINTS, OBJECTS, FREQUENCIES = 60, 4, 100_000
"""So many frequencies are divided among threads; the threads' results are joined by a compiled function."""


def _curves(objects: int) -> dict[str, Any]:
    """Return light curves of noise, one after another."""
    rng = np.random.default_rng(1)
    t = np.sort(rng.uniform(0, 100, (objects, POINTS)), axis=1).ravel()
    offsets = POINTS * np.arange(objects + 1)
    return {"t": t, "y": rng.standard_normal(t.size), "dy": np.full(t.size, 0.1), "offsets": offsets}


def _search(objects: int, device: str, **options: Any) -> None:
    lombscargle(**_curves(objects), fmin=0.01, fmax=10, n_peaks=5, device=device, threads=2, **options)


def curve(device: str) -> None:
    """Compute the periodogram of one light curve."""
    _search(1, device, nf=FREQUENCIES)


def batch(device: str) -> None:
    """Search a batch of light curves for peaks."""
    _search(OBJECTS, device, nf=1000, return_power=False)


def single_precision(device: str) -> None:
    """Do both in float32."""
    _search(1, device, nf=FREQUENCIES, dtype="float32")
    _search(OBJECTS, device, nf=1000, return_power=False, dtype="float32")


def terms(device: str) -> None:
    """Fit several terms."""
    _search(1, device, nf=FREQUENCIES, nterms=2)
    _search(OBJECTS, device, nf=1000, nterms=4, return_power=False)


def bands(device: str) -> None:
    """Search light curves of two bands."""
    for objects, nf, power in ((1, FREQUENCIES, True), (OBJECTS, 1000, False)):
        made = _curves(objects)
        made["bands"] = np.arange(len(made["t"])) % 2
        lombscargle_multiband(
            **made, fmin=0.01, fmax=10, nf=nf, n_peaks=5, return_power=power, device=device, threads=2
        )


USES: dict[str, Callable[[str], None]] = {
    "curve": curve, "batch": batch, "float32": single_precision, "terms": terms, "bands": bands,
}  # fmt: skip
"""Name of each use, and the function that runs it on a device."""
