"""numba kernel that bounds the residue of bins that have left an exponential window; see ``fstat/precision.py``."""

from __future__ import annotations

import numpy as np

from skysieve.core.cpu.jit import njit

NEAR = 0.01
"""Singular windows closer to the bound than this part of it may be on either side of the bound."""


@njit(nogil=True, error_model="numpy")
def note(A, B, C, left, roundings, own, bound, worst):
    """Update ``worst`` with a window of the sums ``A, B, C`` that bins of the weight ``left`` have left.

    The residue is ``left`` times `roundings` units in the last place, as an error of A, B and C.  It changes F by that
    part of F by which it changes the determinant ``D = A B - C^2``; a singular window stays singular unless it raises
    ``D`` above the bound.  Residues of up to `own` units are not above the rounding errors of the window itself.

    ``worst`` has the largest errors in units in the last place: of the weight and of D in windows that are not
    singular, and of D in singular windows as a part of its distance from the bound.
    """
    s = A + B
    if s > 0.0:
        ratio = left / s
        determinant = (A / s) * (B / s) - (C / s) ** 2
    else:  # the bins that have left exceed the window by all digits of float64
        ratio, determinant = np.inf, np.inf
    if roundings * ratio <= own:
        return
    if determinant > bound:
        worst[0] = max(worst[0], roundings * ratio)
        worst[1] = max(worst[1], roundings * ratio / min(determinant, 0.25))
    else:
        worst[2] = max(worst[2], roundings * ratio / max(bound - determinant, NEAR * bound))


@njit(nogil=True, error_model="numpy")
def residue_of_windows(x, upto, next_occupied, few, rate, length, roundings, own, bound, worst):
    """Apply `note` to the windows of `length` bins with the decay `rate`, from the last start down.

    ``x`` (3, n) are the antenna factors, ``upto[c]`` the number of occupied bins before bin ``c``, and
    ``next_occupied[c]`` the first occupied bin from ``c`` on.  In gaps of ``few`` bins or more sums are recomputed, so
    that windows which start there are left out; those of up to ``few`` bins before the data are included.
    """
    n = x.shape[1]
    q = np.exp(-2.0 * rate)
    lose = np.exp(-2.0 * rate * length)
    A = B = C = after = 0.0
    for c in range(n - 1, -few, -1):
        out = c + length
        if c >= 0:
            A, B, C = x[0, c] + q * A, x[1, c] + q * B, x[2, c] + q * C
        else:
            A, B, C = q * A, q * B, q * C
        if out < n:
            A, B, C = A - lose * x[0, out], B - lose * x[1, out], C - lose * x[2, out]
            after = x[0, out] + x[1, out] + q * after
        start = max(c, 0)
        if out <= 0 or out >= n or upto[out] == upto[start] or next_occupied[start] - c >= few:
            continue
        note(A, B, C, lose * after, roundings, own, bound, worst)
