"""Padded bins, tiles and constants of the CPU backend, in NumPy without kernels."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.fstat.contract import CONDITION_BOUND, Bank, MapJob
from skysieve.fstat.inputs.grid import Schedule

from .lanes import BITS, CONSTANTS, POLYNOMIAL
from .simd import ROWS, lanes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

NEVER = 2**60
"""Number of a bin later than all data."""
LAL_TABLE = np.exp(-np.arange(2001) / 100.0)
"""LALPulsar's table of ``exp(-x)``, from 0 to 20 in steps of 0.01."""


def lal_exp(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """``exp(-x)`` as LALPulsar computes it: the nearest entry of its table, and 0 beyond 20."""
    entry = np.minimum(x * 100.0 + 0.5, 2000.0).astype(np.int64)
    values: NDArray[np.float64] = np.where(x > 20.0, 0.0, LAL_TABLE[entry])
    return values


@dataclass(frozen=True)
class Typed:
    """Constants of the kernels for one dtype."""

    bound: Any
    k: NDArray[Any]
    poly: NDArray[Any]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, dtype: Any) -> Typed:
        d = np.dtype(dtype)
        return cls(d.type(CONDITION_BOUND), CONSTANTS[d], POLYNOMIAL[d], d)

    def bits(self, size: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Scratch memory, viewed as integers and as floating-point numbers."""
        whole = np.zeros(size, BITS[self.dtype])
        return whole, whole.view(self.dtype)


def padded(bank: Bank, i: int, before: int, after: int) -> NDArray[Any]:
    """The bins of template `i` with zero bins on both sides."""
    return all_padded(bank, np.array([i]), before, after)[0]


def all_padded(bank: Bank, some: NDArray[np.int64], before: int, after: int) -> NDArray[Any]:
    """The bins of some templates with zero bins on both sides, shape (templates, 7, bins)."""
    n = bank.data.shape[2]
    x = np.zeros((some.size, 7, before + n + after), bank.data.dtype)
    bank.fill(some, x[:, :, before : before + n])
    return x


@dataclass(frozen=True)
class March:
    """The order of an exponential map: rows by falling first bin, lengths common to all groups, and weights.

    ``step`` is the constant by which the lengths rise from column to column, or 0.  ``before`` is the number of zero
    bins before the data: those that the rows need and one block.  ``more[g]`` is 1 where windows of group ``g`` hold
    one bin more; it is empty if none do.  ``weights`` (4, N_tau) are p and w = q^L for the data, then for the antenna
    factors.
    """

    rows: NDArray[np.int64]
    firsts: NDArray[np.int64]
    groups: NDArray[np.int64]
    shortest: NDArray[np.int64]
    more: NDArray[Any]
    valid_from: NDArray[np.int64]
    weights: NDArray[Any]
    before: int
    step: int
    one_group: bool

    @classmethod
    def of(cls, job: MapJob, rows: NDArray[np.int64], dtype: np.dtype[Any]) -> March:
        """The order of some rows of a job's schedule."""
        s = job.schedule
        order = rows[np.argsort(-s.first[rows], kind="stable")]
        firsts, groups = s.first[order], s.group[order]
        alone = bool((groups == groups[0]).all())
        used = groups[:1] if alone else np.unique(groups)
        shortest = s.length[used].min(axis=0)
        more = np.zeros((0, shortest.size), dtype)
        if not alone and (s.length[used] > shortest).any():
            more = (s.length - shortest).astype(dtype)
        rises = np.diff(shortest)
        step = int(rises[0]) if rises.size and rises[0] > 0 and (rises == rises[0]).all() else 0
        rate = job.tatom / job.taus
        decays = [-np.expm1(-rate), np.exp(-rate * shortest), -np.expm1(-2 * rate), np.exp(-2 * rate * shortest)]
        return cls(
            order, firsts, groups, shortest, more, s.valid_from, np.stack(decays).astype(dtype),
            max(0, -int(firsts[-1])) + ROWS, step, alone,
        )  # fmt: skip

    def streams(self, bank: Bank, some: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
        """The bins of some templates, and the same sorted by phase (if lengths rise by `step`)."""
        n, step, dtype = self.before + bank.data.shape[2], self.step, bank.data.dtype
        turns = -(-n // max(1, step)) + lanes_of(dtype.itemsize) + ROWS if step else n
        wide = np.zeros((some.size, 7, turns * max(1, step)), dtype)
        bank.fill(some, wide[:, :, self.before : n])
        fine = np.zeros((some.size, 7, 1, 1), dtype)
        if step:
            fine = np.ascontiguousarray(wide.reshape(some.size, 7, -1, step).transpose(0, 1, 3, 2))
        return np.ascontiguousarray(wide[:, :, :n]), fine

    def stream_of(self, bank: Bank, i: int) -> list[NDArray[Any]]:
        """The bins of template `i`, the same sorted by phase, and the next occupied bin from each bin on."""
        x, fine = self.streams(bank, np.array([i]))
        return [x[0], fine[0], next_occupied(bank.occupied, self.before)]


@dataclass(frozen=True)
class Columns:
    """Columns `a` to `b` of an exponential map: their part of the arrays of `March`."""

    a: int
    b: int
    length: NDArray[np.int64]
    more: NDArray[Any]
    skip: NDArray[np.int64]
    weights: NDArray[Any]

    @classmethod
    def of(cls, order: March, a: int, b: int) -> Columns | None:
        """The columns, or None if no row has a valid cell in them."""
        skip = np.clip(order.valid_from - a, 0, b - a)
        if (skip[order.groups] == b - a).all():
            return None
        return cls(a, b, order.shortest[a:b], order.more[:, a:b], skip, np.ascontiguousarray(order.weights[:, a:b]))

    def filled(self, lanes: int, step: int) -> tuple[NDArray[np.uint64], NDArray[Any]]:
        """Lengths and weights filled up to whole vectors; F of the added lanes is the fallback."""
        width = self.b - self.a
        more = -width % lanes
        length = np.concatenate([self.length, self.length[-1] + step * np.arange(1, more + 1)])
        weights = np.zeros((4, width + more), self.weights.dtype)
        weights[:, :width] = self.weights
        weights[::2, width:] = 1
        return length.astype(np.uint64), weights


def tiles(schedule: Schedule, rows: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Tiles of at most `size` rows, each of one group."""
    out = []
    groups = schedule.group[rows]
    for g in np.unique(groups):
        mine = rows[groups == g]
        out += [mine[i : i + size] for i in range(0, len(mine), size)]
    return out


def column_tiles(n: int, size: int, workers: int) -> list[tuple[int, int]]:
    """Ranges of at most `size` columns; their number is a multiple of the workers if there are enough columns."""
    count = -(-n // size)
    if count < workers and n >= 64 * workers:
        count = workers
    elif count > workers:
        count = -(-count // workers) * workers
    edges = np.linspace(0, n, count + 1).astype(int)
    return [(int(a), int(b)) for a, b in pairwise(edges) if b > a]


def next_occupied(occupied: NDArray[np.bool_], before: int) -> NDArray[np.int64]:
    """The first occupied bin from each bin on, after `before` bins of padding; `NEVER` if there is none."""
    n = len(occupied)
    nearest = np.where(occupied, np.arange(n), NEVER)
    after = np.minimum.accumulate(nearest[::-1])[::-1]
    return np.concatenate([np.full(before, after[0]), after]).astype(np.int64)
