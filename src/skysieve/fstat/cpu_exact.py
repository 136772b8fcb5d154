"""numba kernels of sums from which nothing is subtracted, and F in a scale of its own for each cell; float64.

For windows of ``L`` bins that all decay alike, cut the bins at places ``L`` apart.  Every window is then the end of one
block, summed down from the cut, and the beginning of the next, summed up from it: two multiply-adds a bin, whatever L
is.  Numbers of all sizes may lie side by side: each sum holds its own bins and nothing else.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def block_sums(x, first, length, end, q, ahead, out):
    """``out[i, r] = sum_(j < length) q_i^j x[i, first[r] + j]`` for rising ``first``; bins from ``end`` on are empty.

    ``q_i`` is ``q^2`` for the first three rows.  ``ahead`` (at least ``length``) is scratch.
    """
    for i in range(7):
        decay = q * q if i < 3 else q
        row = x[i]
        at = first.size - 1
        while at >= 0:
            cut = first[at] + 1
            many = max(0, min(length - 1, end - cut))
            ahead[0] = 0.0
            total, w = 0.0, 1.0
            for k in range(many):
                total += w * row[cut + k]
                w *= decay
                ahead[k + 1] = total
            total, w = 0.0, 1.0
            c = cut
            while at >= 0 and first[at] >= cut - length:
                while c > first[at]:
                    c -= 1
                    total = row[c] + decay * total
                    w *= decay
                k = min(max(0, c + length - cut), many)
                out[i, at] = total + w * ahead[k]
                at -= 1


@njit(cache=True, nogil=True, error_model="numpy")
def fstat_exact(S, bound, F):
    """F of each lane from its sums ``S``, divided by the size of the antenna factors before they are multiplied."""
    for j in range(F.size):
        s = S[0, j] + S[1, j]
        F[j] = 2.0
        if s > 0.0:
            r = 1.0 / np.sqrt(s)
            a, b, c = S[0, j] * r * r, S[1, j] * r * r, S[2, j] * r * r
            d = a * b - c * c
            if d > bound * (a + b) * (a + b):
                ar, ai, br, bi = S[3, j] * r, S[4, j] * r, S[5, j] * r, S[6, j] * r
                top = b * (ar * ar + ai * ai) + a * (br * br + bi * bi) - (c + c) * (ar * br + ai * bi)
                F[j] = top / d
