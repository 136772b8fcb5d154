"""Predicted times: the model of Keitel & Ashton 2018, appendix A, with constants measured on the device once.

    seconds = c_call + c_SFTs N_SFT + c_sums N_sums + c_F N_t0 N_tau,

their eqs. A.3 and A.4 and a term for the call itself.  ``N_sums`` counts what is added up here: of rectangular windows
the bins of every row (eq. A.5), of exponential ones one step of the recurrence for each bin and duration, where theirs
(eq. A.6) counts the bins of every cell.  On a GPU the last two are those of all templates of the call, the second is of
one: a march through the bins takes its time however many march beside it.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.measured import Figures, figures
from skysieve.fstat.inputs.atoms import Bins
from skysieve.fstat.inputs.grid import Grid, Schedule
from skysieve.fstat.inputs.windows import Window

from .contract import Job, make_job

if TYPE_CHECKING:
    from numpy.typing import NDArray

TATOM = 1800
SETUPS = ((48, 1, 1), (240, 1, 1), (240, 5, 1), (240, 1, 6), (720, 1, 1), (720, 3, 2), (720, 12, 8), (1440, 1, 1))
"""Bins, and steps of t0 and tau in bins, of the maps that are timed: some 60 milliseconds on one core."""
MAP_SETUPS = ((240, 1, 1), (720, 1, 1), (720, 12, 8), (1440, 1, 1), (3000, 1, 1), (3000, 1, 3))
"""The same for maps that are kept: with 36 MB, the pages of which the system clears anew each time."""
GPU_SETUPS = (
    (48, 1, 1, 1), (480, 1, 1, 1), (1440, 1, 1, 1), (2880, 2, 2, 1), (480, 1, 1, 16), (1440, 1, 1, 16),
    (1440, 4, 4, 16), (1440, 1, 1, 64),
)  # fmt: skip
"""The same for a GPU, and how many templates: some milliseconds, after the compiler's seconds."""
GPU_SETUPS_ALONE = ((48, 1, 1, 1), (480, 1, 1, 1), (1440, 1, 1, 1), (2880, 2, 2, 1), (5760, 1, 1, 1), (8640, 3, 3, 1))
"""One template alone leaves most of a GPU idle: its constants are those of such calls."""
LONGEST_APART = 480
"""Bins, for functions on grids with many places between the bins: their weights are many."""
WARM, REPEATS = 2, 3
COUNTED = ("call", "sfts", "sums", "cells")
"""What the constants are multiplied by, as in `terms`."""
FORMAT = 2
"""Changes when the kernels change enough to void old figures."""


def steps(s: Schedule, exponential: bool) -> float:
    """``N_sums`` of a schedule."""
    rows = ~s.late & (s.valid_from[s.group] < s.shape[1])
    if not rows.any():
        return 0.0
    first = np.maximum(s.first[rows], 0)
    if exponential:
        return float(s.n - first.min()) * s.shape[1]
    return float(np.minimum(s.n - first, s.length[s.group[rows], -1]).sum())


def terms(job: Job, exponential: bool, templates: int = 1) -> NDArray[np.float64]:
    """What the constants are multiplied by, for one template or several together."""
    rows, columns = job.schedule.shape
    return np.array([1.0, job.n, templates * steps(job.schedule, exponential), float(rows) * columns * templates])


def processor() -> str:
    """Name of the host's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


Cases = Iterable[tuple["NDArray[np.float64]", "Callable[[], object]"]]
"""Counts that the constants are multiplied by, and what takes so long."""


def constants(name: str, cases: Callable[[], Cases]) -> NDArray[np.float64]:
    """The constants of `name` (a device, a window, a type): kept, or measured and kept."""

    def measured() -> Figures:
        return dict(zip(COUNTED, measure(cases()).tolist(), strict=True))

    found = figures(f"fstat {name} {FORMAT}", measured, dict.fromkeys(COUNTED, 0.0))
    return np.array([found[counted] for counted in COUNTED])


def measure(cases: Cases) -> NDArray[np.float64]:
    """Time a few maps and fit the constants, none below zero, to relative errors."""
    from scipy.optimize import nnls

    table, seconds = [], []
    for counts, call in cases:
        for _ in range(WARM):
            call()
        best = np.inf
        for _ in range(REPEATS):
            start = time.perf_counter()
            call()
            best = min(best, time.perf_counter() - start)
        table.append(counts)
        seconds.append(best)
    rows = np.array(table) / np.array(seconds)[:, None]
    scale = np.maximum(rows.max(axis=0), 1e-300)
    return np.asarray(nnls(rows / scale, np.ones(len(rows)))[0] / scale)


def host_cases(
    window: Window, dtype: Any, execute: Callable[[Job], object], apart: bool = False, kept: bool = False
) -> Cases:
    """Maps of noise for a CPU.

    ``apart``: start times that lie at several places between the bins, which take other kernels; ``kept``: maps are.
    """
    for n, dt0, dtau in MAP_SETUPS if kept else SETUPS:
        job = sample(n, dt0, dtau, window, dtype, apart)
        yield terms(job, window.kind == "exp"), partial(execute, job)


def sample(
    n: int, dt0: int, dtau: int, window: Window, dtype: Any, apart: bool = False, templates: int = 1
) -> Job:  # fmt: skip
    """A job of noise, at one point of the sky."""
    rng = np.random.default_rng(n)
    antenna = np.concatenate([rng.uniform(0.2, 0.4, (2, n)), rng.uniform(-0.1, 0.1, (1, n))])
    bins = [
        Bins(0, TATOM, np.concatenate([antenna, rng.standard_normal((4, n))]), np.ones(n, np.bool_))
        for _ in range(templates)
    ]
    band = (n - 2) * TATOM
    grid = Grid(
        t0=0, t0_band=band, dt0=dt0 * TATOM + apart * TATOM // 3, tau=2 * TATOM, tau_band=band, dtau=dtau * TATOM
    )
    return make_job(bins, grid, window, dtype)
