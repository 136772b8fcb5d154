"""Scratch memory, padded bins and tiles of the CPU backend: NumPy, no kernels."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from .cpu_lanes import BITS, CONSTANTS, POLYNOMIAL
from .grid import Schedule
from .workload import CONDITION_BOUND, Bank, Job, loud_bins

if TYPE_CHECKING:
    from numpy.typing import NDArray

NEVER = 2**60
"""A bin beyond any data."""
LAL_TABLE = np.exp(-np.arange(2001) / 100.0)
"""LALPulsar's table of ``exp(-x)``: the nearest of its entries, 0 beyond 20."""


def lal_exp(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """``exp(-x)`` from the table."""
    entry = np.minimum(x * 100.0 + 0.5, 2000.0).astype(np.int64)
    values: NDArray[np.float64] = np.where(x > 20.0, 0.0, LAL_TABLE[entry])
    return values


@dataclass(frozen=True)
class Typed:
    """Constants of one type of arithmetic."""

    bound: Any
    k: NDArray[Any]
    poly: NDArray[Any]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, dtype: Any) -> Typed:
        d = np.dtype(dtype)
        return cls(d.type(CONDITION_BOUND), CONSTANTS[d], POLYNOMIAL[d], d)

    def bits(self, size: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """One memory seen as integers and as numbers."""
        whole = np.zeros(size, BITS[self.dtype])
        return whole, whole.view(self.dtype)


def padded(bank: Bank, i: int, before: int, after: int) -> NDArray[Any]:
    """Bins of template `i` with zeros on both sides."""
    n = bank.data.shape[2]
    x = np.zeros((7, before + n + after), bank.data.dtype)
    x[:3, before : before + n] = bank.antenna[0 if bank.shared else i]
    x[3:, before : before + n] = bank.data[i]
    return x


@dataclass(frozen=True)
class March:
    """The order of an exponential map: its rows by falling first bin, the lengths that all groups have.

    ``step`` is that by which the lengths rise from column to column, 0 where they rise by no constant step; ``before``
    are the empty bins ahead of the data.
    """

    rows: NDArray[np.int64]
    firsts: NDArray[np.int64]
    groups: NDArray[np.int64]
    shortest: NDArray[np.int64]
    before: int
    step: int

    @classmethod
    def of(cls, s: Schedule, rows: NDArray[np.int64]) -> March:
        order = rows[np.argsort(-s.first[rows], kind="stable")]
        shortest = s.length[np.unique(s.group[rows])].min(axis=0)
        steps = np.unique(np.diff(shortest))
        step = int(steps[0]) if steps.size == 1 and steps[0] > 0 else 0
        before = max(0, -int(s.first[order[-1]]))
        return cls(order, s.first[order], s.group[order], shortest, before, step)

    def stream(self, x: NDArray[Any], occupied: NDArray[np.bool_]) -> list[NDArray[Any]]:
        """Bins, the same sorted by phase (where lengths rise by `step`), and the next occupied bin from each on."""
        n, step = self.before + x.shape[1], self.step
        wide = np.zeros((7, -(-n // max(1, step)) * max(1, step)), x.dtype)
        wide[:, self.before : n] = x
        fine = np.zeros((7, 1, 1), x.dtype)
        if step:
            fine = np.ascontiguousarray(wide.reshape(7, -1, step).transpose(0, 2, 1))
        return [wide[:, :n] if n == wide.shape[1] else wide[:, :n].copy(), fine, next_occupied(occupied, self.before)]

    def streams(self, bank: Bank, i: int) -> tuple[list[NDArray[Any]], list[NDArray[Any]] | None]:
        """The quiet bins of template `i`, and the loud ones if there are any."""
        x = bank.template(i)
        loud = loud_bins(x)
        if not loud.any():
            return self.stream(x, bank.occupied), None
        quiet = np.where(loud, x.dtype.type(0), x)
        return self.stream(quiet, bank.occupied & ~loud), self.stream(x - quiet, loud)


@dataclass(frozen=True)
class Columns:
    """Columns `a` to `b` of an exponential map: lengths, where groups have one bin more, weights."""

    a: int
    b: int
    length: NDArray[np.int64]
    more: NDArray[Any]
    skip: NDArray[np.int64]
    weights: NDArray[Any]

    @classmethod
    def of(cls, job: Job, order: March, a: int, b: int, dtype: np.dtype[Any]) -> Columns | None:
        """None where no row has a valid cell."""
        s = job.schedule
        length = order.shortest[a:b]
        longer = (s.length[:, a:b] - length).astype(dtype)
        used = np.unique(order.groups)
        more = longer if longer[used].any() else longer[:0]
        skip = np.clip(s.valid_from - a, 0, b - a)
        if (skip[used] == b - a).all():
            return None
        rate = job.tatom / job.taus[a:b]
        decays = [-np.expm1(-rate), np.exp(-rate * length), -np.expm1(-2 * rate), np.exp(-2 * rate * length)]
        return cls(a, b, length, more, skip, np.stack(decays).astype(dtype))


def tiles(schedule: Schedule, rows: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Rows in tiles of one group each."""
    out = []
    groups = schedule.group[rows]
    for g in np.unique(groups):
        mine = rows[groups == g]
        out += [mine[i : i + size] for i in range(0, len(mine), size)]
    return out


def column_tiles(n: int, size: int, workers: int) -> list[tuple[int, int]]:
    """Ranges of columns: at most `size` wide, their number a multiple of the workers where they are wide enough."""
    count = -(-n // size)
    if count < workers and n >= 64 * workers:
        count = workers
    elif count > workers:
        count = -(-count // workers) * workers
    edges = np.linspace(0, n, count + 1).astype(int)
    return [(int(a), int(b)) for a, b in pairwise(edges) if b > a]


def next_occupied(occupied: NDArray[np.bool_], before: int) -> NDArray[np.int64]:
    """``[before + c]``: the first occupied bin from ``c`` on; far beyond the data where there is none."""
    n = len(occupied)
    nearest = np.where(occupied, np.arange(n), NEVER)
    after = np.minimum.accumulate(nearest[::-1])[::-1]
    return np.concatenate([np.full(before, after[0]), after]).astype(np.int64)
