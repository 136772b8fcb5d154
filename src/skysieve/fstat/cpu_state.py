"""Scratch memory, padded bins and tiles of the CPU backend: NumPy, no kernels."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from .cpu_lanes import BITS, CONSTANTS, POLYNOMIAL
from .grid import Schedule
from .workload import CONDITION_BOUND, Job

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


def padded(job: Job, i: int, before: int, after: int) -> NDArray[Any]:
    """Bins of template `i` with zeros on both sides."""
    x = np.zeros((7, before + job.n + after), job.dtype)
    x[:3, before : before + job.n] = job.bank.antenna[0 if job.shared else i]
    x[3:, before : before + job.n] = job.bank.data[i]
    return x


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
