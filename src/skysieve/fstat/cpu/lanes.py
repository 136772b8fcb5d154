"""numba kernels of a vector of cells ("lanes"): F from the seven sums, exponentials, maxima and sums.

Every loop runs over whole arrays from index 0 and writes to one array, so that LLVM can vectorise it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from skysieve.core.cpu.jit import njit

LOG2E = math.log2(math.e)
POLYNOMIAL: dict[Any, Any] = {
    np.dtype(np.float32): np.array([math.log(2) ** i / math.factorial(i) for i in range(8)], np.float32),
    np.dtype(np.float64): np.array([math.log(2) ** i / math.factorial(i) for i in range(13)], np.float64),
}
"""Taylor series of ``2^r`` for ``|r| <= 1/2``: errors of 6e-9 and 2e-16, below the rounding of the dtype."""
BITS: dict[Any, Any] = {np.dtype(np.float32): np.dtype(np.int32), np.dtype(np.float64): np.dtype(np.int64)}
CONSTANTS: dict[Any, Any] = {
    # log2(e), smallest exponent, 1.5 * 2^mantissa (adding it rounds to an integer), the fallback, a mark for "no F"
    np.dtype(np.float32): np.array([LOG2E, -126.0, 1.5 * 2.0**23, 2.0, -1e30], np.float32),
    np.dtype(np.float64): np.array([LOG2E, -1022.0, 1.5 * 2.0**52, 2.0, -1e30], np.float64),
}


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def fstat_lanes(S, bound, k, F):
    """F of each lane from its sums ``S`` (rows A, B, C, Re Fa, Im Fa, Re Fb, Im Fb)."""
    A, B, C, ar, ai, br, bi = S[0], S[1], S[2], S[3], S[4], S[5], S[6]
    fallback = k[3]
    for j in range(F.size):
        a, b, c = A[j], B[j], C[j]
        s = a + b
        d = a * b - c * c
        top = b * (ar[j] * ar[j] + ai[j] * ai[j]) + a * (br[j] * br[j] + bi[j] * bi[j])
        top -= (c + c) * (ar[j] * br[j] + ai[j] * bi[j])
        F[j] = top / d if d > bound * s * s else fallback


@njit(nogil=True, error_model="numpy")
def fstat_lal(S, F):
    """F in LALPulsar's order of operations: float32, except one product and one difference in float64."""
    A, B, C, ar, ai, br, bi = S[0], S[1], S[2], S[3], S[4], S[5], S[6]
    one, four, largest = np.float32(1.0), np.float32(4.0), np.float32(1e4)
    for j in range(F.size):
        a, b, c = A[j], B[j], C[j]
        s, d = a + b, a - b
        disc = np.sqrt(d * d + four * (c * c))
        rest = s - disc
        good = rest > np.float32(0.0) and (s + disc) / rest <= largest
        inverse = one / (a * b - c * c) if good else np.float32(0.0)
        if inverse > np.float32(0.0):
            first = b * (ar[j] * ar[j] + ai[j] * ai[j]) + a * (br[j] * br[j] + bi[j] * bi[j])
            cross = ar[j] * br[j] + ai[j] * bi[j]
            two = np.float32((inverse + inverse) * (np.float64(first) - 2.0 * np.float64(c) * np.float64(cross)))
            F[j] = np.float32(0.5) * two
        else:
            F[j] = np.float32(2.0)


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def exp_lanes(F, ref, k, poly, E, bits):
    """``exp(F - ref)`` for ``F <= ref``, as ``E`` times powers of two, whose bit patterns are written to ``bits``."""
    log2e, lowest, magic = k[0], k[1], k[2]
    if poly.size == 8:
        p0, p1, p2, p3, p4, p5, p6, p7 = (
            poly[0], poly[1], poly[2], poly[3], poly[4], poly[5], poly[6], poly[7],
        )  # fmt: skip
        for j in range(F.size):
            y = max((F[j] - ref) * log2e, lowest)
            whole = (y + magic) - magic
            r = y - whole
            E[j] = ((((((p7 * r + p6) * r + p5) * r + p4) * r + p3) * r + p2) * r + p1) * r + p0
            bits[j] = (np.int32(whole) + np.int32(127)) << np.int32(23)
    else:
        p0, p1, p2, p3, p4, p5, p6 = poly[0], poly[1], poly[2], poly[3], poly[4], poly[5], poly[6]
        p7, p8, p9, p10, p11, p12 = poly[7], poly[8], poly[9], poly[10], poly[11], poly[12]
        for j in range(F.size):
            y = max((F[j] - ref) * log2e, lowest)
            whole = (y + magic) - magic
            r = y - whole
            high = (((((p12 * r + p11) * r + p10) * r + p9) * r + p8) * r + p7) * r + p6
            E[j] = (((((high * r + p5) * r + p4) * r + p3) * r + p2) * r + p1) * r + p0
            bits[j] = (np.int64(whole) + np.int64(1023)) << np.int64(52)


@njit(nogil=True)
def fold(a, b, out):
    """Write the larger of ``a`` and ``b`` to ``out``, lane by lane."""
    for j in range(b.size):
        out[j] = a[j] if a[j] > b[j] else b[j]


@njit(nogil=True)
def largest(F, work):
    """The largest of F, by comparing halves, because LLVM does not vectorise a plain loop over one maximum."""
    width = F.size
    half = (width + 1) // 2
    work[half - 1] = F[half - 1]
    fold(F[:half], F[half:], work)
    width = half
    while width > 8:
        half = (width + 1) // 2
        fold(work[:half], work[half:width], work)
        width = half
    top = work[0]
    for j in range(width):
        if work[j] > top:
            top = work[j]
    return top


@njit(nogil=True)
def count_equal(F, value):
    """The number of lanes in which F is ``value``."""
    count = 0
    for j in range(F.size):
        count += F[j] == value
    return count


@njit(nogil=True)
def first_equal(F, value):
    """The first lane in which F is ``value``."""
    j = 0
    while F[j] != value:
        j += 1
    return j


@njit(nogil=True, fastmath={"reassoc", "contract"})
def add_lanes(E, scale, lanes):
    """Multiply ``E`` by its powers of two ``scale`` and add it to ``lanes``; returns the sum of E."""
    total = E[0] - E[0]
    for j in range(E.size):
        e = E[j] * scale[j]
        E[j] = e
        lanes[j] += e
        total += e
    return total


@njit(nogil=True)
def add_times(E, times, sums):
    """``sums += times * E``."""
    for j in range(E.size):
        sums[j] += times * E[j]


@njit(nogil=True)
def flush(lanes, sums):
    """Add the sums of a stretch of rows to their float64 totals."""
    for j in range(lanes.size):
        sums[j] += lanes[j]
        lanes[j] -= lanes[j]


@njit(nogil=True)
def rescale(lanes, sums, factor):
    """Multiply all sums by ``factor``, after the reference was raised."""
    for j in range(lanes.size):
        sums[j] = (sums[j] + lanes[j]) * factor
        lanes[j] -= lanes[j]
