"""numba kernels of sums without subtraction, and of F with its own scale in each cell; float64.

For windows of ``L`` bins with one decay, divide the bins into blocks of ``L`` bins.  Every window is then the end of
one block, summed downwards from the boundary, and the beginning of the next, summed upwards from it.  This takes two
multiply-adds for each bin, for any L.  No sum ever contains bins outside its window, so that neighbouring bins may
differ in size by any factor.
"""

from __future__ import annotations

import numpy as np

from skysieve.core.cpu.jit import njit


@njit(nogil=True)
def step_up(total, w, decay, row, out):
    """``total += w row``, ``w *= decay``; 8 lanes, of which 7 are used."""
    for i in range(8):
        total[i] += w[i] * row[i]
        w[i] *= decay[i]
        out[i] = total[i]


@njit(nogil=True)
def step_down(total, w, decay, row):
    """``total = row + decay total``, ``w *= decay``."""
    for i in range(8):
        total[i] = row[i] + decay[i] * total[i]
        w[i] *= decay[i]


@njit(nogil=True)
def block_sums(x, first, length, end, q, ahead, out):
    """``out[i, r] = sum_(j < length) q_i^j x[first[r] + j, i]`` for rising ``first``; bins from ``end`` on are empty.

    ``x`` (bins, 8) holds the seven numbers of a bin side by side; ``q_i`` is ``q^2`` for the first three.  ``ahead``
    (at least ``length``, 8) is scratch.
    """
    decay, total, w = np.empty(8), np.empty(8), np.empty(8)
    for i in range(8):
        decay[i] = q * q if i < 3 else q
    at = first.size - 1
    while at >= 0:
        cut = first[at] + 1
        many = max(0, min(length - 1, end - cut))
        for i in range(8):
            total[i], w[i], ahead[0, i] = 0.0, 1.0, 0.0
        for k in range(many):
            step_up(total, w, decay, x[cut + k], ahead[k + 1])
        for i in range(8):
            total[i], w[i] = 0.0, 1.0
        c = cut
        while at >= 0 and first[at] >= cut - length:
            while c > first[at]:
                c -= 1
                step_down(total, w, decay, x[c])
            k = min(max(0, c + length - cut), many)
            for i in range(7):
                out[i, at] = total[i] + w[i] * ahead[k, i]
            at -= 1


@njit(nogil=True, error_model="numpy")
def fstat_exact(S, bound, F):
    """F of each lane from its sums ``S``, divided by the size of the antenna factors before products are formed."""
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
