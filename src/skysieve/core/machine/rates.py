"""Rates of this machine, from which times are predicted: measured by ``skysieve info --measure``, and stored.

A job is described by its *work*: counts by name, such as additions or rows, or seconds of a cost model.  A rate is the
time that one of them takes here: processor seconds of one core on a CPU, seconds on a GPU.  Nothing is measured by a
search, and nothing is predicted without rates.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
"""What to say where there are no rates."""
ALONE = "alone "
"""Beginning of the names of work that one thread does."""
LONG = 0.03
"""Seconds of a call that is timed twice; shorter ones are timed more often."""
MOST = 4
"""Most calls of which the fastest counts."""
FORMAT = 3
"""Version of the stored rates; raise it when kernels or work change enough to make old ones wrong."""


_rehearsing = False


@contextmanager
def rehearsal() -> Iterator[None]:
    """Within it each job that is timed runs once, so that its code is compiled, and nothing is stored."""
    global _rehearsing
    _rehearsing = True
    try:
        with in_memory():
            yield
    finally:
        _rehearsing = False


def processor() -> str:
    """Name of the host's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
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
    """Store rates instead of older ones; `OSError` if the cache folder cannot be written."""
    store(_name(domain, device), {name: float(value) for name, value in rates.items()})


def predicted(domain: str, device: Device, work: Mapping[str, float], threads: int = 1) -> dict[str, float | None]:
    """Return the time that work takes on an idle machine.

    Parameters
    ----------
    domain, device
        As for `rates_of`.
    work : mapping
        Counts by name; names that begin with `ALONE` are of one thread.
    threads : int
        Threads that share the other work.

    Returns
    -------
    dict
        ``seconds`` and ``processor_seconds`` (of all threads); None each if a rate that the work needs is not known,
        and None for ``processor_seconds`` on a GPU.
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
        What the jobs took.

    Notes
    -----
    Jobs whose counts or times are not finite numbers are left out, with a warning.  Work that no other job has gets no
    rate.

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
        logger.warning("there is no rate of %s: its counts or times are not finite numbers", name)
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
    """Keep all cores but that of the caller busy: in a search by all threads a core is slower than alone.

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
    """Return what a call takes: processor seconds of this process on a CPU, seconds on a GPU (see `fastest`)."""
    return fastest(call, time.process_time if device.kind == "cpu" else time.perf_counter, LONG)


def fastest(call: Callable[[], object], clock: Callable[[], float], long: float) -> float:
    """Return the shortest time of 2 to `MOST` calls, of which the first may compile.

    Parameters
    ----------
    call : callable
    clock : callable
        Returns the time in seconds.
    long : float
        No call follows when those after the first have taken as many seconds together.
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
