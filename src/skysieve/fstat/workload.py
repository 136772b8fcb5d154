"""What passes between the public API of the F-statistic and its backends.

``api`` checks the arguments and builds a `Spec` (what to compute) and a `Job` (the binned atoms and the bins of every
cell); ``cpu.Engine`` and ``cuda.Engine`` take them and give an `Output`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from skysieve.fstat.atoms import Bins
from skysieve.fstat.grid import Grid, Schedule, make_schedule
from skysieve.fstat.windows import Window

if TYPE_CHECKING:
    from numpy.typing import NDArray

FALLBACK = 2.0
"""F of a cell whose antenna-pattern matrix is ill-conditioned or empty: half of the mean of 2F in noise."""
MAX_CONDITION = 1e4
"""Largest condition number that is trusted (LALPulsar's)."""
CONDITION_BOUND = MAX_CONDITION / (MAX_CONDITION + 1) ** 2
"""The condition number ``(s + d) / (s - d)``, ``s = A + B``, ``d^2 = s^2 - 4 D``, is below its bound where
``D > CONDITION_BOUND * s^2``: no square root, no division, and false for an empty window."""

LOUD = 30.0
"""Amplitude over the median from which a bin is loud."""


@dataclass(frozen=True)
class Spec:
    """What to compute, the same for every template of a plan.

    ``marginals`` asks for the sums over rows and columns.  ``lal`` reproduces LALPulsar's arithmetic: its order of
    operations in float32 and its table of exponentials.
    """

    window: Window
    dtype: np.dtype[Any]
    keep_map: bool = True
    marginals: bool = True
    lal: bool = False


@dataclass(frozen=True)
class Job:
    """Templates of one data set on one grid.

    Attributes
    ----------
    x : numpy.ndarray, shape (B, 7, n)
        Binned atoms of each template, scaled by powers of two so that the largest a2 + b2 lies in [1/4, 1).
    shared : bool
        Whether a2, b2 and ab are the same for all templates (one point of the sky).
    occupied : numpy.ndarray of bool, shape (n,)
        Bins that hold data.
    tatom : int
    taus : numpy.ndarray of float64, shape (N_tau,)
    schedule : Schedule
    """

    x: NDArray[Any]
    shared: bool
    occupied: NDArray[np.bool_]
    tatom: int
    taus: NDArray[np.float64]
    schedule: Schedule

    @property
    def n_templates(self) -> int:
        """Number of templates."""
        return int(self.x.shape[0])

    @property
    def n(self) -> int:
        """Bins of data."""
        return int(self.x.shape[2])


@dataclass
class Output:
    """Answers of a backend; row ``i`` of each array belongs to template ``i``.

    Attributes
    ----------
    max_F : numpy.ndarray of float64, shape (B,)
    index : numpy.ndarray of int64, shape (B,)
        Flat cell ``m N_tau + n`` of the first maximum in that order; -1 where no cell could be computed.
    log_sum : numpy.ndarray of float64, shape (B,)
        ``ln sum exp F`` over all cells.
    row_log, column_log : numpy.ndarray of float64, shape (B, N_t0) and (B, N_tau), or None
        The same over one row, one column.
    n_fallback : numpy.ndarray of int64, shape (B,)
        Cells that are `FALLBACK`.
    F : array, shape (B, N_t0, N_tau), or None
        NaN in cells that hold fewer than two bins.
    """

    max_F: NDArray[np.float64]
    index: NDArray[np.int64]
    log_sum: NDArray[np.float64]
    row_log: NDArray[np.float64] | None
    column_log: NDArray[np.float64] | None
    n_fallback: NDArray[np.int64]
    F: Any = None

    @classmethod
    def allocate(cls, n_templates: int, shape: tuple[int, int], spec: Spec) -> Output:
        """Fresh host arrays, every answer marked missing; the map is not yet written."""
        rows, columns = shape
        b = n_templates
        return cls(
            max_F=np.full(b, np.nan),
            index=np.full(b, -1, np.int64),
            log_sum=np.full(b, -np.inf),
            row_log=np.full((b, rows), -np.inf) if spec.marginals else None,
            column_log=np.full((b, columns), -np.inf) if spec.marginals else None,
            n_fallback=np.zeros(b, np.int64),
            F=np.empty((b, rows, columns), spec.dtype) if spec.keep_map else None,
        )


def blank(F: NDArray[Any], schedule: Schedule) -> None:
    """NaN in the cells of a map (..., N_t0, N_tau) that hold fewer than two bins."""
    F[..., schedule.late, :] = np.nan
    for g in np.flatnonzero(schedule.valid_from):
        rows = np.flatnonzero(schedule.group == g)
        F[..., rows, : schedule.valid_from[g]] = np.nan


class Engine(Protocol):
    """What ``cpu.Engine`` and ``cuda.Engine`` both are: ``Engine(spec, device=, memory=, threads=)``."""

    def execute(self, job: Job, progress: Any = None) -> Output:
        """Maps of all templates, or what is asked of them; ``progress(done, total)`` is called now and then."""

    def describe(self, job: Job) -> dict[str, Any]:
        """Method, bytes and expected seconds, without computing."""

    def close(self) -> None:
        """Give back threads and device memory."""


def make_job(templates: Sequence[Bins], grid: Grid, window: Window, dtype: Any) -> Job:
    """Binned atoms of templates that share their times, ready for a backend.

    Raises
    ------
    ValueError
        If the templates differ in their bins.
    """
    first = templates[0]
    for i, b in enumerate(templates):
        same = (b.t_start, b.tatom, b.n) == (first.t_start, first.tatom, first.n)
        if not same or not np.array_equal(b.occupied, first.occupied):
            raise ValueError(f"template {i} has other times than template 0: search them apart")
    x = np.empty((len(templates), 7, first.n), dtype)
    for row, b in zip(x, templates, strict=True):
        row[:3], row[3:] = scaled(b.x)
    shared = all(np.array_equal(x[0, :3], row[:3]) for row in x[1:])
    return Job(x, shared, first.occupied, first.tatom, grid.taus.astype(np.float64), make_schedule(grid, window, first))


def loud_bins(x: NDArray[Any]) -> NDArray[np.bool_]:
    """Bins (of x, shape (7, n)) far above the median of those with data, in the data or in the antenna factors.

    Recurrences that subtract what departs sum them apart: a bin of ``A`` times the noise leaves ``1e-7 A`` of it in
    float32, again at each step while it was inside.
    """
    loud = np.zeros(x.shape[1], np.bool_)
    for power, ratio in ((np.sum(x[3:].astype(np.float64) ** 2, axis=0), LOUD**2), (x[0] + x[1], LOUD)):
        some = power[power > 0]
        if some.size:
            loud |= power > ratio * np.median(some)
    return loud


def scaled(x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The three antenna rows and the four of the data, scaled by powers of two: F does not change, not in one bit."""
    largest = float((x[0] + x[1]).max())
    power = 0 if largest == 0 else -math.frexp(largest)[1] // 2
    return np.ldexp(x[:3], 2 * power), np.ldexp(x[3:], power)
