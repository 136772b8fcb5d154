"""numba kernels of any window: every cell's sums bin by bin, or one LALPulsar would form.

A lane is a row (a start time) of one group, whose windows share their weights.  Costs a multiplication and an addition
for each of the seven sums, cell and bin of the window; `fourier` in ``cpu_any.py`` is faster for long windows.
"""

from __future__ import annotations

from numba import njit


@njit(cache=True, nogil=True)
def weighted(x, first, starts, weights, squares, ends, S):
    """``S`` (7, rows) = sums of the bins from ``first + starts`` (unsigned) on, in the order of time.

    The sums are of the type of ``S``; products and each addition are in float64 before they are rounded to it, as
    LALPulsar's are.
    """
    for i in range(7):
        row = S[i]
        w = squares if i < 3 else weights
        for j in range(row.size):
            row[j] -= row[j]
        for b in range(min(w.size, ends)):
            weight = w[b]
            if weight != 0.0:
                source = x[i, first + b :]
                for j in range(row.size):
                    row[j] += source[starts[j]] * weight
