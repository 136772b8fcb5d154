"""What passes between the public API of the F-statistic and its backends.

``api`` and ``search`` check the arguments and build a `Spec` (what to compute) and a `Job` (the binned atoms and the
bins of every cell); ``cpu.Engine`` and ``cuda.Engine`` take them and give an `Output`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from skysieve.core.arrays import array_module
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
class Lines:
    """Priors of the line-robust statistic (Keitel et al. 2014, eq. 36), as natural logarithms.

    In every cell, with F of all detectors and ``F^X`` of detector X alone over the very bins of that cell (the
    fallback 2 where X alone is ill-conditioned or has no data there),

        ln B_S/GL = F - ln(exp(log_gauss) + sum_X exp(log_line[X] + F^X)).

    Since the logarithm is at least ``m = max(log_gauss, log_line[X] + F^X)``, a cell whose ``F - m`` is not above the
    best value so far needs no exponential.

    Attributes
    ----------
    log_gauss : float
        ``F*_0 - ln(1 + o)``, ``o`` the sum of the prior odds of lines ``oLGX``.
    log_line : tuple of float
        ``ln(oLGX / (1 + o))``, one a detector in the order of `Job.detectors`; -inf where a line is excluded.
    """

    log_gauss: float
    log_line: tuple[float, ...]


@dataclass(frozen=True)
class Spec:
    """What to compute, the same for every template of a plan.

    ``keep_map`` asks for F of every cell, ``marginals`` for the sums over rows and columns: a search has both False
    and asks another engine for the marginals of its few best templates.  ``lines`` asks for the line-robust statistic
    (never with ``lal``).  ``lal`` reproduces LALPulsar's arithmetic: its order of operations in float32 and its table
    of exponentials.
    """

    window: Window
    dtype: np.dtype[Any]
    keep_map: bool = True
    marginals: bool = True
    lal: bool = False
    lines: Lines | None = None


@dataclass(frozen=True)
class Bank:
    """Binned atoms of B templates that share their times.

    Arrays of the engine's type, NumPy or, for an engine on a GPU, CuPy; contiguous.

    Attributes
    ----------
    antenna : array, shape (1, 3, n) or (B, 3, n)
        Rows a2, b2, ab; of one point of the sky, or one of each template.
    data : array, shape (B, 4, n)
        Rows Re Fa, Im Fa, Re Fb, Im Fb.
    occupied : numpy.ndarray of bool, shape (n,)
        Bins that hold data.
    """

    antenna: Any
    data: Any
    occupied: NDArray[np.bool_]

    @property
    def shared(self) -> bool:
        """Whether the templates share their antenna factors."""
        return bool(self.antenna.shape[0] == 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return int(self.antenna.nbytes + self.data.nbytes)

    def template(self, i: int) -> Any:
        """Bins of template `i`, shape (7, n)."""
        return array_module(self.data).concatenate([self.antenna[0 if self.shared else i], self.data[i]])

    def part(self, chosen: Any) -> Bank:
        """Some of the templates: a slice or an array of numbers."""
        return Bank(self.antenna if self.shared else self.antenna[chosen], self.data[chosen], self.occupied)


@dataclass(frozen=True)
class Job:
    """Templates of one data set on one grid.

    Attributes
    ----------
    bank : Bank
        All detectors together, scaled by powers of two so that the largest a2 + b2 lies in [1/4, 1).
    tatom : int
    taus : numpy.ndarray of float64, shape (N_tau,)
    schedule : Schedule
    detectors : tuple of Bank
        For ``Spec.lines`` each detector alone, in the same bins and with the scale of `bank`: their sum is `bank` up
        to rounding.  Empty otherwise.
    """

    bank: Bank
    tatom: int
    taus: NDArray[np.float64]
    schedule: Schedule
    detectors: tuple[Bank, ...] = ()

    @property
    def shared(self) -> bool:
        """Whether a2, b2 and ab are the same for all templates (one point of the sky)."""
        return self.bank.shared

    @property
    def occupied(self) -> NDArray[np.bool_]:
        """Bins that hold data of any detector, shape (n,)."""
        return self.bank.occupied

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the bins."""
        return np.dtype(self.bank.data.dtype)

    @property
    def n_templates(self) -> int:
        """Number of templates."""
        return int(self.bank.data.shape[0])

    @property
    def n(self) -> int:
        """Bins of data."""
        return int(self.bank.data.shape[2])

    def part(self, chosen: Any) -> Job:
        """Some of the templates: a slice or an array of numbers."""
        return replace(self, bank=self.bank.part(chosen), detectors=tuple(d.part(chosen) for d in self.detectors))


@dataclass
class Output:
    """Answers of a backend, on the host; row ``i`` of each array belongs to template ``i``.

    On a CPU a template's answers do not depend on its company, not in one bit.  On a GPU they agree to the rounding of
    the type: kernels for several templates and for one, and launches of other sizes, start their recurrences at other
    bins and add exponentials in another order.

    Attributes
    ----------
    max_F : numpy.ndarray of float64, shape (B,)
    index : numpy.ndarray of int64, shape (B,)
        Flat cell ``m N_tau + n`` of the first maximum in that order; -1 where no cell could be computed.
    log_sum : numpy.ndarray of float64, shape (B,)
        ``ln sum exp F`` over all cells.
    row_log, column_log : numpy.ndarray of float64, shape (B, N_t0) and (B, N_tau), or None
        The same over one row, one column; with ``Spec.marginals``.
    n_fallback : numpy.ndarray of int64, shape (B,)
        Cells that are `FALLBACK`.
    F : array, shape (B, N_t0, N_tau), or None
        NaN in cells that hold fewer than two bins; with ``Spec.keep_map``.
    line_max : numpy.ndarray of float64, shape (B,), or None
        Largest ``ln B_S/GL`` over all cells that can be computed (fallbacks too); NaN where there is none; with
        ``Spec.lines``.
    line_index : numpy.ndarray of int64, shape (B,), or None
        Its flat cell, the first in order; -1 where there is none.
    """

    max_F: NDArray[np.float64]
    index: NDArray[np.int64]
    log_sum: NDArray[np.float64]
    row_log: NDArray[np.float64] | None
    column_log: NDArray[np.float64] | None
    n_fallback: NDArray[np.int64]
    F: Any = None
    line_max: NDArray[np.float64] | None = field(default=None)
    line_index: NDArray[np.int64] | None = field(default=None)

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
            line_max=np.full(b, np.nan) if spec.lines else None,
            line_index=np.full(b, -1, np.int64) if spec.lines else None,
        )


def blank(F: NDArray[Any], schedule: Schedule) -> None:
    """NaN in the cells of a map (..., N_t0, N_tau) that hold fewer than two bins."""
    F[..., schedule.late, :] = np.nan
    for g in np.flatnonzero(schedule.valid_from):
        rows = np.flatnonzero(schedule.group == g)
        F[..., rows, : schedule.valid_from[g]] = np.nan


class Engine(Protocol):
    """What ``cpu.Engine`` and ``cuda.Engine`` both are: ``Engine(spec, device=, memory=, threads=)``.

    An engine is used by one thread at a time; several engines, also of one device, may be used at once.
    """

    def execute(self, job: Job, progress: Any = None) -> Output:
        """Maps of all templates, or what is asked of them; ``progress(done, total)`` is called now and then.

        A batch may be larger than the device's memory: the engine cuts it.
        """

    def describe(self, job: Job) -> dict[str, Any]:
        """Method, bytes and expected seconds, without computing."""

    def close(self) -> None:
        """Give back threads and device memory."""


def make_job(
    templates: Sequence[Bins], grid: Grid, window: Window, dtype: Any, schedule: Schedule | None = None
) -> Job:
    """Binned atoms of templates that share their times, ready for a backend.

    `schedule` is that of the grid and the templates' times; it is made if it is not given.

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
    shared = all(np.array_equal(first.x[:3], b.x[:3]) for b in templates[1:])
    antenna = np.stack([b.x[:3] for b in templates[: 1 if shared else None]]).astype(dtype, copy=False)
    data = np.stack([b.x[3:] for b in templates]).astype(dtype, copy=False)
    power = powers(antenna)
    bank = scaled(Bank(antenna, data, first.occupied), power)
    if schedule is None:
        schedule = make_schedule(grid, window, first)
    return Job(bank, first.tatom, grid.taus.astype(np.float64), schedule)


def loud_bins(x: NDArray[Any]) -> NDArray[np.bool_]:
    """Bins (of x, shape (7, n)) far above the median of those with data, in the data or in the antenna factors.

    Recurrences that subtract what departs sum them apart: a bin of ``A`` times the noise leaves ``1e-7 A`` of it in
    float32, again at each step while it was inside.
    """
    loud = np.zeros(x.shape[1], np.bool_)
    for power, ratio in ((np.sum(x[3:].astype(np.float64) ** 2, axis=0), LOUD**2), (x[0] + x[1], LOUD)):
        some = power if power.all() else power[power > 0]
        if some.size:
            middle = some.size // 2
            loud |= power > ratio * np.partition(some, middle)[middle]
    return loud


def powers(antenna: Any) -> Any:
    """Powers of two ``k`` of each point of the sky, shape (S,): ``2^(2k)`` brings the largest a2 + b2 to [1/4, 1)."""
    xp = array_module(antenna)
    largest = (antenna[:, 0] + antenna[:, 1]).max(axis=1)
    return xp.where(largest > 0, -xp.frexp(largest)[1] // 2, 0).astype(np.int32)


def scaled(bank: Bank, power: Any) -> Bank:
    """Antenna factors times ``2^(2 power)``, data times ``2^power``: F does not change, not in one bit."""
    if not power.any():
        return bank
    xp, at = array_module(bank.data), power[:, None, None]
    return replace(bank, antenna=xp.ldexp(bank.antenna, 2 * at), data=xp.ldexp(bank.data, at))
