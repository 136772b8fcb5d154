"""Running medians of many rows: a window is a set of ranks, whose median moves by a few ranks from bin to bin."""

from __future__ import annotations

from functools import partial

import numpy as np

from skysieve.core.cpu.jit import njit
from skysieve.core.tasks import TaskPool

__all__ = ["running_medians"]

ROWS = 256
"""Rows of a task."""


@njit(nogil=True)
def _medians(values, order, width, out):
    n, bins = values.shape
    half = width // 2
    rank = np.empty(bins, np.int64)
    inside = np.empty(bins, np.uint8)
    for i in range(n):
        for r in range(bins):
            rank[order[i, r]] = r
        inside[:] = 0
        for j in range(width):
            inside[rank[j]] = 1
        # `below` is the number of values in the window with a rank below `at`; for the median it is `half`
        at, below = 0, 0
        for j in range(width - 1, bins):
            if j >= width:
                new, old = rank[j], rank[j - width]
                inside[new], inside[old] = 1, 0
                below += (new < at) - (old < at)
            while below > half:
                at -= 1
                below -= inside[at]
            while below < half or not inside[at]:
                below += inside[at]
                at += 1
            out[i, j - half] = values[i, order[i, at]]
        out[i, :half] = out[i, half]
        out[i, bins - half :] = out[i, bins - half - 1]


def _task(values, width, out):
    _medians(values, np.argsort(values, axis=1), width, out)


def running_medians(values: np.ndarray, width: int, threads: int | None = None) -> np.ndarray:
    """Medians of `width` neighbouring values of each row; the elements at both ends get the nearest median.

    Parameters
    ----------
    values : numpy.ndarray of float64, shape (n, bins)
        Without NaN.
    width : int
        Odd, at most `bins`.
    threads : int, optional
        All usable cores by default.
    """
    out = np.empty(values.shape)
    parts = [slice(a, a + ROWS) for a in range(0, len(values), ROWS)]
    with TaskPool(threads) as pool:
        pool.run([partial(_task, values[part], width, out[part]) for part in parts])
    return out
