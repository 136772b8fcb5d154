"""Typical uses of de-dispersion on a small simulated file, for ``skysieve warm-up``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from skysieve.dedispersion.api import dedisperse
from skysieve.dedispersion.clean.repair import fill_dropped
from skysieve.dedispersion.clean.rfi import rfi_mask
from skysieve.dedispersion.data.filterbank import Filterbank
from skysieve.dedispersion.data.simulate import fake
from skysieve.dedispersion.dm_plan.plan import plan
from skysieve.dedispersion.single_pulse.search import search

__all__ = ["USES"]

CHANNELS, SECONDS, DM = 64, 2.0, 50.0


@contextmanager
def _made(nbits: int) -> Iterator[Filterbank]:
    """Open a file of noise and pulses, which is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.fil"
        fake(
            nchan=CHANNELS, duration=SECONDS, tsamp=256e-6, fch1=1500, foff=-300 / CHANNELS, nbits=nbits, snr=20,
            path=path,
        ).close()  # fmt: skip
        with Filterbank.open(path) as fb:
            yield fb


def pulses(device: str, nbits: int) -> None:
    """Search a file for pulses."""
    with _made(nbits) as fb:
        search(fb, plan(fb, DM), device=device, threads=2)


def cleaned(device: str) -> None:
    """Search a file whose interference is masked."""
    with _made(8) as fb:
        clean = fill_dropped(fb)
        search(clean, plan(fb, DM), mask=rfi_mask(clean), device=device, threads=2)


def series(device: str) -> None:
    """De-disperse a file into time series."""
    with _made(8) as fb:
        dedisperse(fb, [0.0, DM], device=device, threads=2)


USES: dict[str, Callable[[str], None]] = {
    "search": partial(pulses, nbits=8),
    "search 32-bit": partial(pulses, nbits=32),
    "rfi": cleaned,
    "dedisperse": series,
}
"""Name of each use, and the function that runs it on a device."""
