"""The number of GPUs worth using for data in host memory, which the host must copy to and from pinned memory."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from skysieve.core.gpu.staging import Copier
from skysieve.core.machine.measured import figures
from skysieve.core.machine.rates import processor
from skysieve.core.tasks import usable_cores

__all__ = ["Sharing", "copy_rate", "sharing"]

LINK = 25e9
"""Bytes a second that cross the bus of one GPU: PCI Express 4.0 with 16 lanes, from pinned memory."""
GAIN = 1.1
"""Ratio of times from which more GPUs are used.  A smaller gain does not pay for the threads that feed them."""
MEASURED = 2**28
"""Bytes that are copied to measure the rate: more than caches hold."""
USUAL = 1e10
"""Bytes a second that are assumed if the rate cannot be measured."""
IDLE = 0.6
"""Fraction of the time in which the copying threads must have had a core.  Otherwise the host was busy, and the rate is
not stored."""


@dataclass(frozen=True)
class Sharing:
    """How a job is shared.

    Attributes
    ----------
    gpus : int
        Number of GPUs that are used.
    limit : str
        The part that limits the speed: "host copies" or "GPUs".
    """

    gpus: int
    limit: str


def copy_rate() -> float:
    """Return the rate at which this host copies with all its threads, in bytes a second.

    It is measured once, while the host is idle, and stored.
    """
    name = f"host copies {processor()} {usable_cores()} cores"
    return figures(name, _measured, {"bytes a second": USUAL})["bytes a second"]


def _measured() -> dict[str, float] | None:
    source, target = np.ones(MEASURED, np.uint8), np.zeros(MEASURED, np.uint8)
    copier, best, idle = Copier(), np.inf, False
    try:
        for _ in range(3):
            start, spent = time.perf_counter(), time.process_time()
            copier.copy([(target, source)])
            took, spent = time.perf_counter() - start, time.process_time() - spent
            if took < best:
                best, idle = took, spent >= IDLE * took * copier.threads
    finally:
        copier.close()
    return {"bytes a second": MEASURED / best} if idle else None


def sharing(gpus: int, seconds: float, nbytes: float, rate: float) -> Sharing:
    """Return how many GPUs to use.

    Copies and work on the GPUs overlap, so that the slower of the two determines the time.  The smallest number of GPUs
    is chosen whose time is at most `GAIN` times that of all GPUs.

    Parameters
    ----------
    gpus : int
        GPUs that may be used.
    seconds : float
        Time of all the work on one GPU.
    nbytes : float
        Bytes that the host copies: the input of the GPUs, and their answers.
    rate : float
        Bytes a second that the host copies, see `copy_rate`.

    Examples
    --------
    >>> sharing(4, seconds=0.2, nbytes=1e9, rate=1e10), sharing(4, seconds=2.0, nbytes=1e9, rate=1e10)
    (Sharing(gpus=2, limit='host copies'), Sharing(gpus=4, limit='GPUs'))
    """
    host = nbytes / rate
    times = [max(seconds / k, nbytes / (k * LINK), host) for k in range(1, gpus + 1)]
    used = next(k for k, took in enumerate(times, 1) if took <= GAIN * times[-1])
    return Sharing(used, "host copies" if host >= times[used - 1] / GAIN else "GPUs")
