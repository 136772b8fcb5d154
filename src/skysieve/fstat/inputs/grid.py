"""The grid of start times and durations, and the bins of data that belong to each of its cells.

All times are whole seconds in signed 64-bit integers: LALPulsar's unsigned 32 bits wrap for a start before the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from skysieve.core.arrays import ByValue
from skysieve.core.errors import MemoryBudgetError
from skysieve.core.memory import available_host_memory, parse_budget

from .atoms import positive_seconds, refuse_coarse_seconds, whole_seconds
from .files import AtomsLike, as_list
from .window_kinds import Algorithm
from .windows import Window

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["Binning", "Grid", "Schedule", "Times", "make_schedule"]

MOST_CELLS = 2**62
BYTES_T0, BYTES_TAU, BYTES_LENGTH = 80, 48, 32
"""Bytes of memory for each start time, for each duration, and for each duration of a group of starts (see `Schedule`)
while a grid is searched."""
SMALL_TABLES = 2**26
"""Below this size of the tables, in bytes, skip the query of free memory."""


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Grid(ByValue):
    """Start times ``t0 + m dt0`` and durations ``tau + n dtau``, ends of the bands included.

    Parameters
    ----------
    t0 : int
        First start time, GPS seconds.
    t0_band : int
        Range of start times; there are ``floor(t0_band / dt0) + 1`` of them.
    dt0 : int
        Step of the start time.
    tau, tau_band, dtau : int
        The same for the duration.

    Attributes
    ----------
    t0s, taus : numpy.ndarray of int64
        The start times and the durations.
    t0_band, tau_band, dt0, dtau : int or None
        As given; for a grid made by `from_lists` the bands are the ranges and the steps are None.

    Raises
    ------
    ValueError, TypeError
        Times are not whole seconds, steps or durations are not positive, or bands are negative.
    MemoryBudgetError
        The start times and durations alone do not fit into memory.

    Examples
    --------
    >>> grid = Grid(t0=1000000000, t0_band=7200, dt0=1800, tau=3600, tau_band=3000, dtau=1800)
    >>> grid.shape, grid.taus.tolist()
    ((5, 2), [3600, 5400])
    """

    t0s: NDArray[np.int64]
    taus: NDArray[np.int64]
    t0_band: int
    tau_band: int
    dt0: int | None
    dtau: int | None

    def __init__(
        self, *, t0: int, t0_band: int = 0, dt0: int = 1800, tau: int = 3600, tau_band: int = 0, dtau: int = 1800
    ) -> None:
        first, shortest = whole_seconds(t0, "t0"), positive_seconds(tau, "tau")
        steps = positive_seconds(dt0, "dt0"), positive_seconds(dtau, "dtau")
        bands = _band(t0_band, "t0_band"), _band(tau_band, "tau_band")
        _count(bands[0] // steps[0] + 1, bands[1] // steps[1] + 1)
        t0s = first + steps[0] * np.arange(bands[0] // steps[0] + 1, dtype=np.int64)
        taus = shortest + steps[1] * np.arange(bands[1] // steps[1] + 1, dtype=np.int64)
        self._set(t0s, taus, *bands, *steps)

    def _set(self, t0s: Any, taus: Any, t0_band: int, tau_band: int, dt0: int | None, dtau: int | None) -> None:
        for a in (t0s, taus):
            a.flags.writeable = False
        values = {"t0s": t0s, "taus": taus, "t0_band": t0_band, "tau_band": tau_band, "dt0": dt0, "dtau": dtau}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_lists(cls, t0s: ArrayLike, taus: ArrayLike) -> Grid:
        """A grid of arbitrary start times and durations, such as logarithmic durations.

        Parameters
        ----------
        t0s, taus : array_like of int
            Whole seconds, rising.

        Examples
        --------
        >>> import numpy as np
        >>> Grid.from_lists([0, 1800], np.geomspace(3600, 360000, 5).round()).taus.tolist()
        [3600, 11384, 36000, 113842, 360000]
        """
        starts, durations = _rising(t0s, "t0s"), _rising(taus, "taus")
        if durations[0] <= 0:
            raise ValueError(f"taus[0] = {durations[0]}: durations must be positive")
        _count(starts.size, durations.size)
        grid = cls.__new__(cls)
        grid._set(starts, durations, int(starts[-1] - starts[0]), int(durations[-1] - durations[0]), None, None)
        return grid

    @classmethod
    def full(cls, atoms: AtomsLike, *, dt0: int | None = None, dtau: int | None = None) -> Grid:
        """All starts and durations of at least two SFTs that fit the data: PyFstat's default grid.

        Parameters
        ----------
        atoms : Atoms, path, or sequence of them
        dt0, dtau : int, optional
            Steps; one SFT by default.
        """
        found = as_list(atoms)
        return cls.over(Times.of([a.t for a in found], found[0].tatom), dt0=dt0, dtau=dtau)

    @classmethod
    def over(cls, bins: Binning, *, dt0: int | None = None, dtau: int | None = None) -> Grid:
        """The grid of `full` for data in these bins."""
        width = bins.tatom
        if bins.n < 2:
            raise ValueError("atoms hold one SFT; a transient window needs two")
        start, band = bins.t_start, (bins.n - 2) * width
        steps = {"dt0": width if dt0 is None else dt0, "dtau": width if dtau is None else dtau}
        return cls(t0=start, t0_band=band, tau=2 * width, tau_band=band, **steps)

    @classmethod
    def whole(cls, bins: Binning) -> Grid:
        """One cell that covers all data."""
        width = bins.tatom
        return cls(t0=bins.t_start, tau=bins.n * width, dt0=width, dtau=width)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of start times and of durations."""
        return int(self.t0s.size), int(self.taus.size)

    @property
    def cells(self) -> int:
        """Number of cells."""
        return int(self.t0s.size) * int(self.taus.size)

    def __repr__(self) -> str:
        a, b = self.shape
        return f"<Grid: {a} t0 from {self.t0s[0]} to {self.t0s[-1]}, {b} tau from {self.taus[0]} to {self.taus[-1]} s>"


def _band(value: Any, name: str) -> int:
    band = whole_seconds(value, name)
    if band < 0:
        raise ValueError(f"{name}={value!r}: expected at least 0")
    return band


def _count(n_t0: int, n_tau: int) -> None:
    if n_t0 * n_tau > MOST_CELLS or max(n_t0, n_tau) > 2**31 - 1:
        raise ValueError(
            f"the grid has {n_t0} x {n_tau} cells: too many; expected larger dt0 and dtau, or smaller bands"
        )
    refuse_large(n_t0, n_tau, 0)


def refuse_large(n_t0: int, n_tau: int, groups: int, memory: str | float | None = None) -> None:
    """Raise `MemoryBudgetError` if the tables of a grid do not fit into memory, before they are made.

    Parameters
    ----------
    n_t0, n_tau : int
    groups : int
        Number of different offsets of the start times from the bins.
    memory : str or float, optional
        Budget; 80% of what is free by default.
    """
    need = BYTES_T0 * n_t0 + BYTES_TAU * n_tau + BYTES_LENGTH * groups * n_tau
    if need <= SMALL_TABLES:
        return
    budget = parse_budget(memory, available_host_memory(), default=0.8)
    if need > budget:
        raise MemoryBudgetError(
            f"the grid of {n_t0} x {n_tau} cells (larger dt0 and dtau make it smaller, preferably multiples of the SFT "
            "length; or list few durations with Grid.from_lists)",
            need,
            budget,
        )


def _rising(values: Any, name: str) -> NDArray[np.int64]:
    x = np.atleast_1d(np.asarray(values))
    if x.ndim != 1 or x.size == 0:
        raise ValueError(f"{name} has shape {x.shape}, expected one dimension and at least one value")
    if x.dtype.kind not in "uif":
        raise TypeError(f"{name} has dtype {x.dtype}, expected whole seconds")
    if x.dtype.kind == "f":
        bad = np.flatnonzero(~np.isfinite(x) | (x != np.round(x)) | (np.abs(x) > 2**53))
        if bad.size:
            raise ValueError(f"{name}[{bad[0]}] = {x[bad[0]]} is not a whole number of seconds")
        refuse_coarse_seconds(x, name)
    out: NDArray[np.int64] = x.astype(np.int64)
    bad = np.flatnonzero(np.diff(out) <= 0)
    if bad.size:
        raise ValueError(f"{name}[{bad[0] + 1}] = {out[bad[0] + 1]} is not larger than the value before it")
    return out


@dataclass(frozen=True)
class Schedule:
    """The bins of every cell of a grid: the cell (m, n) sums ``length[group[m], n]`` bins from ``first[m]`` on.

    Rows of one group start at the same offset from the bins, so that their windows have the same lengths and weights.
    ``first`` may be negative (a start before the data) and windows may reach past the data: bins outside the data
    count as empty.

    Attributes
    ----------
    n : int
        Bins of data.
    first : numpy.ndarray of int64, shape (N_t0,)
    group : numpy.ndarray of int64, shape (N_t0,)
    length : numpy.ndarray of int64, shape (G, N_tau)
        Rises with tau; windows are not cut at the end of the data.
    offset : numpy.ndarray of int64, shape (G,)
        Seconds from t0 to the start of the first bin.
    valid_from : numpy.ndarray of int64, shape (G,)
        First column whose window holds two bins or more.
    late : numpy.ndarray of bool, shape (N_t0,)
        Rows without a window that holds two bins of data: they start less than two bins before the end of the data,
        or end before its second bin.
    """

    n: int
    first: NDArray[np.int64]
    group: NDArray[np.int64]
    length: NDArray[np.int64]
    offset: NDArray[np.int64]
    valid_from: NDArray[np.int64]
    late: NDArray[np.bool_]

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of start times and of durations."""
        return int(self.first.size), int(self.length.shape[1])

    def n_valid(self) -> int:
        """Number of cells that can be computed."""
        per_row = self.shape[1] - self.valid_from[self.group[~self.late]]
        return int(per_row.sum())


def refuse_tables(grid: Grid, tatom: int, memory: str | float | None = None) -> None:
    """Apply `refuse_large` to a grid and data in bins of `tatom` seconds."""
    n_t0, n_tau = grid.shape
    if BYTES_T0 * n_t0 + BYTES_TAU * n_tau + BYTES_LENGTH * min(n_t0, tatom) * n_tau > SMALL_TABLES:
        refuse_large(n_t0, n_tau, int(np.unique(grid.t0s % tatom).size), memory)


class Binning(Protocol):
    """Time bins of data: `bins.Bins`, those of a batch, or `Times`."""

    @property
    def t_start(self) -> int: ...  # GPS second at which bin 0 starts
    @property
    def tatom(self) -> int: ...  # width
    @property
    def n(self) -> int: ...  # number


@dataclass(frozen=True)
class Times:
    """Time bins without data."""

    t_start: int
    tatom: int
    n: int

    @classmethod
    def of(cls, times: Sequence[NDArray[np.int64]], tatom: int) -> Times:
        """The common bins of SFTs that start at these times, one rising array for each detector."""
        start = min(int(t[0]) for t in times)
        return cls(start, tatom, (max(int(t[-1]) for t in times) - start) // tatom + 1)


def make_schedule(grid: Grid, window: Window, bins: Binning) -> Schedule:
    """Find the bins of every cell by LALPulsar's rules.

    The start is rounded half up to a bin, and so is the end, which is exclusive.  Bins that start before ``t0`` have
    weight only in the rectangular window; other windows start at the next bin.  An end at ``efold`` times tau is
    rounded to whole seconds.

    Bins before the data count as empty, so that some windows of a row may hold no data.  A row is left out if even its
    longest window ends before the second bin of the data, or if it starts at the last bin or later.
    """
    width, half = bins.tatom, bins.tatom // 2
    since = grid.t0s - bins.t_start
    if window.algorithm == Algorithm.RUNNING_SUMS:
        first = (since + half) // width
        phase = (since + half) - first * width
        reach = grid.taus
        offset_of = half - phase  # start of bin `first` minus t0
        base = phase
    else:
        first = -((-since) // width)
        offset_of = first * width - since
        reach = np.floor(window.efold * grid.taus.astype(np.float64) + 0.5).astype(np.int64)
        base = half - offset_of
    offset, group = np.unique(offset_of, return_inverse=True)
    start = np.zeros(offset.size, np.int64)
    start[group] = base
    length = np.maximum((start[:, None] + reach) // width, 0)
    # a bin that rounding selects but that starts before t0 is one of the two bins that a window needs
    rounded = (since + half) // width
    early = np.zeros(offset.size, np.int64)
    early[group] = first - rounded
    enough = length + early[:, None] >= 2
    valid_from = np.where(enough.any(1), enough.argmax(1), grid.taus.size)
    before = (first <= 0) & (valid_from < grid.taus.size)[group] & (first + length[group, -1] < 2)
    late = before | (rounded > bins.n - 2)
    return Schedule(bins.n, first, group.astype(np.int64), length, offset, valid_from, late)
