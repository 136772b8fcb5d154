"""Rates of this machine, from which run times are predicted; ``skysieve info --measure`` measures and stores them.

A job is described by its *work*: counts by name, such as additions or rows, or seconds of a cost model.  A rate is the
time that one unit of work takes on this machine: processor seconds of one core on a CPU, seconds on a GPU.  Searches
measure nothing, and nothing is predicted without stored rates.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import numpy as np

from skysieve.core.machine.measured import in_memory, store, stored
from skysieve.core.tasks import usable_cores

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.core.device import Device

__all__ = [
    "ADVICE", "ALONE", "fastest", "fit", "fit_counts", "keep", "missing", "others_busy", "predicted", "processor",
    "rates_of", "rehearsal", "timed",
]  # fmt: skip

logger = logging.getLogger("skysieve")

ADVICE = "times are not predicted: skysieve info --measure measures this machine"
"""Message where there are no rates."""
ALONE = "alone "
"""Prefix of the names of work that a single thread does."""
LONG = 0.03
"""Seconds of a call that is timed twice; shorter ones are timed more often."""
MOST = 4
"""Largest number of calls that are timed; the fastest one counts."""
FORMAT = 3
"""Version of the stored rates; raise it when kernels or work change enough to make old ones wrong."""


_rehearsing = False


@contextmanager
def rehearsal() -> Iterator[None]:
    """Context in which each timed job runs only once, so that its code is compiled, and nothing is stored."""
    global _rehearsing
    _rehearsing = True
    try:
        with in_memory():
            yield
    finally:
        _rehearsing = False


def processor() -> str:
    """Name of the host's processor."""
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _name(domain: str, device: Device) -> str:
    """The name under which the rates are stored: the machine and the version of skysieve are part of it."""
    from skysieve import __version__

    where = f"{processor()} {usable_cores()} cores" if device.kind == "cpu" else device.name
    return f"rates {domain} {where} {__version__} {FORMAT}"


def rates_of(domain: str, device: Device) -> dict[str, float]:
    """Return the rates that are stored for a domain; an empty dict if none were measured.

    Parameters
    ----------
    domain : str
        "periodogram", "sphere", "dedispersion" or "fstat".
    device : Device
        The CPU, or a GPU of the model for which the rates hold.
    """
    return stored(_name(domain, device)) or {}


def keep(domain: str, device: Device, rates: Mapping[str, float]) -> None:
    """Store rates in place of older ones; `OSError` if the cache folder cannot be written."""
    store(_name(domain, device), {name: float(value) for name, value in rates.items()})


def predicted(domain: str, device: Device, work: Mapping[str, float], threads: int = 1) -> dict[str, float | None]:
    """Return the time that work takes on an idle machine.

    Parameters
    ----------
    domain, device
        As for `rates_of`.
    work : mapping
        Counts by name; work whose name begins with `ALONE` is done by one thread.
    threads : int
        Threads that share the other work.

    Returns
    -------
    dict
        ``seconds`` and ``processor_seconds`` (of all threads).  Both are None if a rate that the work needs is not
        known; ``processor_seconds`` is None on a GPU.
    """
    if missing(domain, device, work):
        return {"seconds": None, "processor_seconds": None}
    rates = rates_of(domain, device)
    alone = sum(count * rates[name] for name, count in work.items() if count and name.startswith(ALONE))
    shared = sum(count * rates[name] for name, count in work.items() if count and not name.startswith(ALONE))
    seconds = alone + shared / max(1, threads)
    return {"seconds": seconds, "processor_seconds": alone + shared if device.kind == "cpu" else None}


def fit(works: Sequence[Mapping[str, float]], seconds: Iterable[float]) -> dict[str, float]:
    """Return rates, at least 0, that give times close to those measured, in relative error.

    Parameters
    ----------
    works : sequence of mapping
        The work of each job.
    seconds : iterable of float
        Times of the jobs.

    Notes
    -----
    Jobs whose counts or times are not finite numbers are left out.  Work that only such jobs have gets no rate, with a
    warning.

    Examples
    --------
    >>> works = [{"rows": 10, "sums": 0}, {"rows": 10, "sums": 50}, {"rows": 30, "sums": 10}]
    >>> found = fit(works, [20.0, 170.0, 90.0])
    >>> round(found["rows"], 6), round(found["sums"], 6)
    (2.0, 3.0)
    """
    pairs = [(work, took) for work, took in zip(works, seconds, strict=True) if _usable(work, took)]
    names = sorted({name for work, _ in pairs for name in work})
    for name in sorted({name for work in works for name in work} - {*names}):
        logger.warning("no rate can be computed for %s: its counts or times are not finite numbers", name)
    if not pairs:
        return {}
    took = np.array([took for _, took in pairs])
    counts = np.array([[float(work.get(name, 0.0)) for name in names] for work, _ in pairs])
    return dict(zip(names, fit_counts(counts, took).tolist(), strict=True))


def fit_counts(counts: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rates, at least 0, such that ``counts @ rates`` is close to `seconds`, in relative error."""
    from scipy.optimize import nnls

    table = counts / seconds[:, None]
    scale = np.maximum(table.max(axis=0), 1e-300)
    return np.asarray(nnls(table / scale, np.ones(len(table)))[0] / scale)


def _usable(work: Mapping[str, float], took: float) -> bool:
    return bool(np.isfinite([took, *work.values()]).all() and took > 0)


def missing(domain: str, device: Device, work: Mapping[str, float]) -> list[str]:
    """Names of the work for which there is no rate, or whose count is not known (NaN)."""
    rates = rates_of(domain, device)
    return [name for name, count in work.items() if count and (name not in rates or not np.isfinite(count))]


@contextmanager
def others_busy() -> Iterator[None]:
    """Keep all other cores busy, because a core is slower when all of them work, as in a search by all threads.

    Threads of one core share its units, and all cores share caches, memory and the clock rate.
    """
    done = Event()

    def work() -> None:
        x = np.linspace(0.0, 1.0, 20_000)
        out = np.empty_like(x)
        while not done.is_set():
            np.exp(x, out=out)

    threads = [Thread(target=work, name="skysieve-busy", daemon=True) for _ in range(usable_cores() - 1)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def timed(device: Device, call: Callable[[], object]) -> float:
    """Return the time of a call: processor seconds of this process on a CPU, seconds on a GPU (see `fastest`)."""
    return fastest(call, time.process_time if device.kind == "cpu" else time.perf_counter, LONG)


def fastest(call: Callable[[], object], clock: Callable[[], float], long: float) -> float:
    """Return the shortest time of 2 to `MOST` calls, of which the first may compile.

    Parameters
    ----------
    call : callable
    clock : callable
        Returns the time in seconds.
    long : float
        The calls end when those after the first have taken more than this many seconds together.
    """
    if _rehearsing:
        call()
        return 1.0
    best, spent = np.inf, 0.0
    for number in range(MOST):
        start = clock()
        call()
        took = clock() - start
        best = min(best, took)
        spent += took if number else 0.0
        if spent > long:
            break
    return float(best)
