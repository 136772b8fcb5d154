"""Compiled functions of the direct engine: the pixel sum within the support, by three algorithms.

- Stencils, for rings whose neighbours within the support all have the same length: the weights are the same for every
  pixel of a ring, and four output rings share each pixel that is read.
- Quarters, for rings of other lengths that are divisible by 4: the grid is symmetric under quarter turns and under
  reflection, so that each kernel value serves eight output pixels.  Values come from a Chebyshev series, for a vector
  of output pixels at a time.
- Single pixels, for all other rings and for the pixels around the poles.
"""

from __future__ import annotations

import math

import numpy as np

from skysieve.core.cpu.jit import njit

from .simd import STENCIL_ROWS, dot_lanes, series_weights, stencil_sum
from .tables import JIT, radial_value

QUARTERS = 8
"""Output pixels that share a kernel value: four quarters, two hemispheres."""


@njit(**JIT)
def span(a, b, xmax, n):
    """Half the width of the support in input pixels (not whole); ``n / 2`` if it contains the whole ring."""
    s = (xmax - a) / b if b > 0 else 2.0
    if s >= 1.0:
        return 0.5 * n
    return math.asin(math.sqrt(max(s, 0.0))) * n / math.pi


@njit(**JIT)
def one_by_one(
    o, first, last, theta, n, phi0, start, fold, both, w_in, xmax, scale, cells, positive, x, out, w_out
):  # fmt: skip
    """Output ring ``o``, and with ``both`` its mirror image, pixel by pixel.

    With ``fold`` 4, for grids that are symmetric under quarter turns, each kernel value serves four pixels of a ring,
    and every sum has the same symmetry, bit for bit.
    """
    rings, quarter = len(n), n[o] // fold
    north, south = np.zeros(fold), np.zeros(fold)  # sums over all rings, and over one
    north_ring, south_ring = np.zeros(fold), np.zeros(fold)
    for j in range(quarter):
        north[:], south[:] = 0, 0
        azimuth = phi0[o] + 2 * math.pi * j / n[o]
        for i in range(first[o], last[o]):
            half = math.sin(0.5 * (theta[i] - theta[o]))
            a, b = 4 * half * half, 4 * math.sin(theta[i]) * math.sin(theta[o])
            if a > xmax:
                continue
            reach = span(a, b, xmax, n[i])
            u = (azimuth - phi0[i]) * n[i] / (2 * math.pi)
            q0 = math.ceil(u - reach - 1e-9)
            count = min(n[i], math.floor(u + reach + 1e-9) - q0 + 1)
            north_ring[:], south_ring[:] = 0, 0
            mirror = rings - 1 - i
            for e in range(count):
                q = q0 + e
                s = math.sin((q - u) * math.pi / n[i])
                value = radial_value(a + b * s * s, xmax, scale, cells, positive)
                at = q % n[i]
                for turn in range(fold):
                    north_ring[turn] += value * x[start[i] + at]
                    if both:
                        south_ring[turn] += value * x[start[mirror] + at]
                    at += n[i] // fold
                    if at >= n[i]:
                        at -= n[i]
            for turn in range(fold):
                north[turn] += north_ring[turn] * w_in[i]
                if both:
                    south[turn] += south_ring[turn] * w_in[mirror]
        for turn in range(fold):
            out[start[o] + turn * quarter + j] = north[turn] * w_out[o]
            if both:
                out[start[rings - 1 - o] + turn * quarter + j] = south[turn] * w_out[rings - 1 - o]


@njit(**JIT)
def quarter_layout(n, halo, north, south, w_north, w_south, out, at):
    """Reorder a ring and its mirror image: equivalent pixels of all quarters are adjacent; a halo is on both sides."""
    quarter = n // 4
    for q in range(-halo, quarter + halo):
        k = at + (q + halo) * QUARTERS
        for side in range(4):
            p = (side * quarter + q) % n
            out[k + side] = north[p] * w_north
            out[k + 4 + side] = south[p] * w_south


@njit(**JIT)
def quarter_layouts(rings, mirrored, n, start, halo, place, x, w, out):
    """`quarter_layout` of several rings of a map."""
    for i in rings:
        south = len(n) - 1 - i if mirrored else i
        quarter_layout(
            n[i], halo[i], x[start[i] : start[i] + n[i]], x[start[south] : start[south] + n[i]], w[i], w[south], out,
            place[i],
        )  # fmt: skip


@njit(**JIT)
def quarter_ring(
    o, first, last, theta, n, phi0, place, halo, xmax, series, floor, lanes, packed, frac, begin, weights, total
):
    """Sums of output ring ``o`` and its mirror image into ``total`` (n / 4, 8)."""
    quarter = n[o] // 4
    for k in range(quarter * QUARTERS):
        total[k] = 0
    real = frac.dtype.type
    for i in range(first[o], last[o]):
        half = math.sin(0.5 * (theta[i] - theta[o]))
        a, b = 4 * half * half, 4 * math.sin(theta[i]) * math.sin(theta[o])
        if a > xmax:
            continue
        reach = span(a, b, xmax, n[i])
        count = (int(2 * reach) + 1 + 3) // 4 * 4
        step = math.pi / n[i]
        for j0 in range(0, quarter, lanes):
            for lane in range(lanes):
                u = (phi0[o] + 2 * math.pi * (j0 + lane) / n[o] - phi0[i]) * n[i] / (2 * math.pi)
                q0 = math.ceil(u - reach)
                begin[lane] = q0
                frac[lane] = q0 - u
            series_weights(
                frac, count, real(step), real(a), real(b), real(2 / xmax), series, len(series), real(floor), weights
            )
            for lane in range(min(lanes, quarter - j0)):
                at = place[i] + (begin[lane] + halo[i]) * QUARTERS
                dot_lanes(weights, lane, lanes, count, packed, at, total, (j0 + lane) * QUARTERS)


@njit(**JIT)
def quarter_store(n, total, north, south, w_north, w_south, alone):
    """Store sums of `quarter_layout` in two rings (in one if ``alone``)."""
    quarter = n // 4
    for q in range(quarter):
        for side in range(4):
            north[side * quarter + q] = total[q * QUARTERS + side] * w_north
            if not alone:
                south[side * quarter + q] = total[q * QUARTERS + 4 + side] * w_south


@njit(**JIT)
def quarter_rings(
    rings, mirrored, first, last, theta, n, phi0, start, place, halo, xmax, series, floor, lanes, packed, frac, begin,
    weights, total, y, w
):  # fmt: skip
    """`quarter_ring` and `quarter_store` for several output rings of a map."""
    for o in rings:
        quarter_ring(
            o, first, last, theta, n, phi0, place, halo, xmax, series, floor, lanes, packed, frac, begin, weights, total
        )
        store_ring(o, mirrored, n, start, total, y, w)


@njit(**JIT)
def store_ring(o, mirrored, n, start, total, y, w):
    """`quarter_store` for an output ring of a map."""
    south = len(n) - 1 - o if mirrored else o
    north = y[start[o] : start[o] + n[o]]
    quarter_store(n[o], total, north, y[start[south] : start[south] + n[o]], w[o], w[south], south == o)


@njit(**JIT)
def stencil_weights(
    o, rows, i0, i1, theta, n, phi0, xmax, scale, cells, positive, w_start, count, low, weights, fill
):  # fmt: skip
    """Stencils of output rings o .. o + rows - 1 over input rings i0 .. i1 - 1, interleaved by ``STENCIL_ROWS``.

    ``low[i]`` is the first offset.  Returns the number of weights, and writes them if ``fill`` is True.
    """
    at = 0
    for i in range(i0, i1):
        left, right = 1 << 40, -(1 << 40)
        for r in range(rows):
            half = math.sin(0.5 * (theta[i] - theta[o + r]))
            a, b = 4 * half * half, 4 * math.sin(theta[i]) * math.sin(theta[o + r])
            if a > xmax:
                continue
            reach = span(a, b, xmax, n)
            shift = (phi0[i] - phi0[o + r]) * n / (2 * math.pi)
            first = math.ceil(-reach - shift - 1e-9)
            last = min(math.floor(reach - shift + 1e-9), first + n - 1)
            left, right = min(left, first), max(right, last)
        length = max(0, right - left + 1)
        if length > n:  # the supports of the group's rings begin at different pixels: take the whole ring
            left, length = -(n // 2), n
        w_start[i - i0], count[i - i0], low[i - i0] = at, length, left
        if fill:
            for r in range(rows):
                half = math.sin(0.5 * (theta[i] - theta[o + r]))
                a, b = 4 * half * half, 4 * math.sin(theta[i]) * math.sin(theta[o + r])
                shift = (phi0[i] - phi0[o + r]) * n / (2 * math.pi)
                for e in range(length):
                    s = math.sin((left + e + shift) * math.pi / n)
                    value = radial_value(a + b * s * s, xmax, scale, cells, positive) if a <= xmax else 0.0
                    weights[at + e * STENCIL_ROWS + r] = value
            for r in range(rows, STENCIL_ROWS):
                for e in range(length):
                    weights[at + e * STENCIL_ROWS + r] = 0
        at += length * STENCIL_ROWS
    return at


@njit(**JIT)
def stencil_line(n, x, w, halo, line, at, size):
    """One ring, continued periodically on both sides: ``size`` elements from ``at``, with pixel 0 at ``at + halo``."""
    for k in range(n):
        line[at + halo + k] = x[k] * w
    for k in range(halo):
        line[at + k] = x[(k - halo) % n] * w
    for k in range(halo + n, size):
        line[at + k] = line[at + k - n]


@njit(**JIT)
def stencil_rows(n, block, weights, w_start, count, lines, line_start, rings, out, row):
    """Sum all pixels of one group of output rings."""
    for j in range(0, n, block):
        stencil_sum(weights, w_start, count, lines, line_start, 0, rings, j, out, 0, row)


@njit(**JIT)
def spans(o, first, last, theta, n, xmax):
    """Support of ring ``o``: half-width in pixels and in turns, whether it contains a ring, and the terms of a sum."""
    most, azimuth, around, pixels = 0.0, 0.0, False, 0.0
    for i in range(first, last):
        half = math.sin(0.5 * (theta[i] - theta[o]))
        a, b = 4 * half * half, 4 * math.sin(theta[i]) * math.sin(theta[o])
        if a > xmax:
            continue
        reach = span(a, b, xmax, n[i])
        most = max(most, reach)
        azimuth = max(azimuth, reach / n[i])
        if 2 * reach + 6 >= n[i]:
            around = True
        pixels += 2 * reach + 1
    return most, azimuth, around, pixels


def trimmed(series: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A Chebyshev series without the terms below the precision of ``dtype``."""
    least = 1e-8 if dtype == np.float32 else 1e-15
    rest = np.cumsum(np.abs(series)[::-1])[::-1]
    terms = max(1, int(np.count_nonzero(rest > least * rest[0])))
    return np.ascontiguousarray(series[:terms], dtype)
