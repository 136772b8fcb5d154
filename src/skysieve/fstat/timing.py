"""Predicted times: the model of Keitel & Ashton 2018, appendix A, with constants that are measured once on the device.

    seconds = c_call + c_SFTs N_SFT + c_sums N_sums + c_F N_t0 N_tau,

These are eqs. A.3 and A.4 of the paper with a constant term for the call itself.  ``N_sums`` counts the additions of
this implementation: for rectangular windows the bins of every row (eq. A.5); for exponential windows one step of the
recurrence for each bin and duration, where the paper (eq. A.6) counts the bins of every cell.  On a GPU the last two
terms count all templates of a call.  The second term counts the bins of one template, since a loop over the bins takes
the same time for several templates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skysieve import __version__
from skysieve.core.machine.measured import store, stored
from skysieve.core.machine.rates import fastest, fit_counts, others_busy
from skysieve.fstat.inputs.bins import Bins
from skysieve.fstat.inputs.grid import Grid, Schedule
from skysieve.fstat.inputs.window_kinds import Algorithm
from skysieve.fstat.inputs.windows import Window

from .contract import MapJob, make_job

if TYPE_CHECKING:
    from numpy.typing import NDArray

TATOM = 1800
SETUPS = ((48, 1, 1), (240, 1, 1), (240, 1, 6), (720, 1, 1), (720, 1, 8), (1440, 1, 1))
"""Maps that are timed on a CPU: bins, and steps of t0 and tau in bins.  They take some 60 milliseconds on one core."""
STEP_SETUPS = ((48, 2, 2), (240, 5, 1), (480, 4, 4), (720, 3, 2), (720, 8, 6), (1440, 2, 2), (1440, 6, 6))
"""The same for grids whose steps of t0 are longer than a bin: their rows do not begin in neighbouring bins, and sums
over them take twice as long."""
SPARSE_SETUPS = ((240, 2, 20), (480, 5, 40), (720, 12, 24), (1440, 8, 48), (1440, 2, 60))
"""The same for grids whose rows have many more bins than cells."""
MAP_SETUPS = ((240, 1, 1), (720, 1, 1), (720, 1, 8), (1440, 1, 1), (3000, 1, 1), (3000, 1, 3))
"""The same as `SETUPS` where the whole map is returned, for float32.  One map has 36 MB: for this size the operating
system clears new memory at each call."""
STEP_MAP_SETUPS = ((240, 2, 1), (720, 3, 2), (720, 8, 6), (1440, 2, 2), (4300, 2, 1))
"""The same as `STEP_SETUPS` where the whole map is returned."""
GPU_SETUPS = (
    (48, 1, 1, 1), (480, 1, 1, 1), (1440, 1, 1, 1), (480, 1, 1, 16), (1440, 1, 1, 16), (1440, 1, 4, 16),
    (1440, 1, 1, 64),
)  # fmt: skip
"""The same on a GPU, with the number of templates.  They take some milliseconds, after seconds of compilation."""
GPU_STEP_SETUPS = (
    (48, 2, 1, 1), (480, 4, 4, 1), (2880, 2, 2, 1), (480, 2, 2, 16), (1440, 4, 4, 16), (1440, 2, 1, 64),
    (1440, 4, 4, 64),
)  # fmt: skip
"""The same for grids whose steps of t0 are longer than a bin."""
GPU_SETUPS_MANY = ((480, 1, 1, 500), (480, 1, 2, 4000), (1440, 1, 4, 500))
"""Additional cases, in which only the maxima are computed, as in a search of SFTs: enough templates to fill a GPU."""
GPU_STEP_SETUPS_MANY = ((480, 2, 1, 500), (480, 4, 4, 4000), (1440, 4, 4, 500), (1440, 2, 4, 500))
"""The same for grids whose steps of t0 are longer than a bin."""
GPU_SETUPS_ALONE = (
    (48, 1, 1, 1), (480, 1, 1, 1), (1440, 1, 1, 1), (2880, 1, 2, 1), (5760, 1, 1, 1), (17_520, 1, 1, 1),
)  # fmt: skip
"""The same for calls with one template, which leave most of a GPU idle and therefore have their own constants.  Data
last up to a year, because the times of small maps do not predict those of large maps."""
GPU_STEP_SETUPS_ALONE = ((48, 2, 1, 1), (480, 4, 4, 1), (2880, 2, 2, 1), (5760, 4, 2, 1), (17_520, 3, 3, 1))
"""The same as `GPU_SETUPS_ALONE` for grids whose steps of t0 are longer than a bin."""
LONGEST_UNALIGNED = 480
"""Most bins that are timed for window functions, on grids whose start times have many offsets from the bins."""
LONG = 0.01
"""A call that takes this time in seconds or longer is timed twice; a shorter one is timed more often."""
LARGEST = 3000
"""Most bins that are timed on a GPU, except for maxima of rectangular windows: a map of a year has 3e8 cells."""
DIFFERENT = 16
"""Number of templates with different noise in a timed job; the other templates repeat these."""
COUNTED = ("call", "sfts", "sums", "cells")
"""Names of the constants, in the order of `terms`."""
FORMAT = 6
"""Version of the stored constants; raise it when the kernels change enough to make old ones wrong."""


def stepped(s: Schedule) -> bool:
    """Whether the rows of a schedule do not begin in neighbouring bins."""
    first = s.first[~s.late]
    return bool((np.diff(first) != 1).any())


def steps(s: Schedule, exponential: bool) -> float:
    """``N_sums`` of a schedule; `exponential` is for recurrences."""
    rows = ~s.late & (s.valid_from[s.group] < s.shape[1])
    if not rows.any():
        return 0.0
    first = np.maximum(s.first[rows], 0)
    if exponential:
        return float(s.n - first.min()) * s.shape[1]
    return float(np.minimum(s.n - first, s.length[s.group[rows], -1]).sum())


def terms(job: MapJob, exponential: bool, templates: int = 1) -> NDArray[np.float64]:
    """The counts that the constants are multiplied by, for one template or several together."""
    rows, columns = job.schedule.shape
    return np.array([1.0, job.n, templates * steps(job.schedule, exponential), float(rows) * columns * templates])


Kind = Literal["", "steps", "sparse"]
Cases = Iterable[tuple["NDArray[np.float64]", "Callable[[], object]"]]
"""Pairs of the counts of a call (see `terms`) and the call to be timed."""


_measuring: ContextVar[bool] = ContextVar("measuring", default=False)


@contextmanager
def measuring() -> Iterator[None]:
    """Context in which `constants` measures and stores constants; elsewhere it only reads the stored ones."""
    token = _measuring.set(True)
    try:
        yield
    finally:
        _measuring.reset(token)


def constants(
    name: str, cases: Callable[[], Cases], clock: Callable[[], float] = time.thread_time
) -> NDArray[np.float64] | None:
    """The stored constants of `name` (a device, an algorithm, a type); None if they were not measured.

    `clock` measures the processor time of the calling thread for a CPU, and elapsed time for a GPU.
    """
    known = f"fstat {name} {__version__} {FORMAT}"
    if _measuring.get():
        with others_busy() if clock is time.thread_time else nullcontext():
            store(known, dict(zip(COUNTED, measure(cases(), clock).tolist(), strict=True)))
    found = stored(known)
    if found is None or set(found) != set(COUNTED):
        return None
    return np.array([found[counted] for counted in COUNTED])


def measure(cases: Cases, clock: Callable[[], float] = time.thread_time) -> NDArray[np.float64]:
    """Time a few maps and fit the constants."""
    table, seconds = [], []
    for counts, call in cases:
        table.append(counts)
        seconds.append(fastest(call, clock, LONG))
    return fit_counts(np.array(table), np.array(seconds))


def host_cases(
    window: Window, dtype: Any, execute: Callable[[MapJob], object], unaligned: bool = False, keep_map: bool = False,
    kind: Kind = "",
) -> Cases:  # fmt: skip
    """Maps of noise to be timed on a CPU.

    Parameters
    ----------
    window : Window
    dtype : dtype
    execute : callable
        Computes the maps of a job.
    unaligned : bool
        Put the start times at several offsets from the bins, which needs other kernels.
    keep_map : bool
        Whether `execute` returns whole maps.
    kind : {"", "steps", "sparse"}
        "steps" are grids whose rows do not begin in neighbouring bins, "sparse" are grids with few cells.
    """
    setups = {
        "": (SETUPS, MAP_SETUPS),
        "steps": (STEP_SETUPS, STEP_MAP_SETUPS),
        "sparse": (SPARSE_SETUPS, SPARSE_SETUPS),
    }
    for n, dt0, dtau in setups[kind][keep_map]:
        if keep_map and np.dtype(dtype).itemsize == 8:
            n = round(n / 2**0.5)  # as many bytes as in float32
        job = sample(n, dt0, dtau, window, dtype, unaligned)
        yield terms(job, window.algorithm == Algorithm.RECURRENCE), partial(execute, job)


def sample(
    n: int, dt0: int, dtau: int, window: Window, dtype: Any, unaligned: bool = False, templates: int = 1
) -> MapJob:
    """A job with noise in `n` bins, at one point of the sky, with steps of `dt0` and `dtau` bins."""
    rng = np.random.default_rng(n)
    antenna = np.concatenate([rng.uniform(0.2, 0.4, (2, n)), rng.uniform(-0.1, 0.1, (1, n))])
    bins = [
        Bins(0, TATOM, np.concatenate([antenna, rng.standard_normal((4, n))]), np.ones(n, np.bool_))
        for _ in range(min(templates, DIFFERENT))
    ]
    bins = (bins * -(-templates // DIFFERENT))[:templates]
    band = (n - 2) * TATOM
    step = dt0 * TATOM + unaligned * TATOM // 3
    grid = Grid(t0=0, t0_band=band, dt0=step, tau=2 * TATOM, tau_band=band, dtau=dtau * TATOM)
    return make_job(bins, grid, window, dtype)
