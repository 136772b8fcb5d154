"""Kernels that move samples to rows: transposition, time binning, byte planes (numba)."""

from __future__ import annotations

import math

import numpy as np

from skysieve.core.cpu.jit import njit

from .simd import LANES, SIDE, halve_rows, turn_1, turn_2, turn_4, turn_8

JIT = {"nogil": True, "error_model": "numpy"}
TILE = 64
"""Samples and channels of a tile of the transposition."""


@njit(**JIT)
def corner_turn(src, order, out, column, offset):
    """``out[i, column + t] = src[t, order[i]] + offset``: transpose samples x channels in tiles."""
    n, C = src.shape
    for t0 in range(0, n, TILE):
        t1 = min(t0 + TILE, n)
        for c0 in range(0, C, TILE):
            c1 = min(c0 + TILE, C)
            for c in range(c0, c1):
                channel = order[c]
                for t in range(t0, t1):
                    out[c, column + t] = src[t, channel] + offset


@njit(**JIT)
def turn_squares(src, n, stride, out, width, column, rows, down, offset):
    """`corner_turn` of flat arrays in squares, for rows in the order of the channels, or in reverse if ``down``.

    ``src`` has ``n`` samples every ``stride`` elements, ``out`` rows of ``width``.  Samples that fill no square are
    moved one by one.
    """
    far = -width if down else width
    base = (rows - 1) * width if down else 0
    square = rows // SIDE * SIDE
    whole = n // SIDE * SIDE
    for c in range(0, square, SIDE):
        d = base + c * far + column
        for t in range(0, whole, SIDE):
            turn_1(out, d + t, far, far, src, t * stride + c, stride, offset)
    for t in range(n):
        for c in range(square if t < whole else 0, rows):
            out[base + c * far + column + t] = src[t * stride + c] + offset


@njit(**JIT)
def turn_packed(src, n, stride, out, width, column, rows, down, bits, big):
    """`turn_squares` for samples of 1, 2 or 4 bits; a spectrum has ``stride`` bytes.

    If ``big``, the first sample is in the highest bits of a byte.
    """
    per = 8 // bits
    one = -width if down else width
    base = ((rows - 1) * width if down else 0) + column
    first = base + (per - 1) * one if big else base
    near = -one if big else one
    count = rows // per
    square = count // SIDE * SIDE
    whole = n // SIDE * SIDE
    for j in range(0, square, SIDE):
        d = first + j * per * one
        for t in range(0, whole, SIDE):
            if bits == 4:
                turn_2(out, d + t, per * one, near, src, t * stride + j, stride, 0)
            elif bits == 2:
                turn_4(out, d + t, per * one, near, src, t * stride + j, stride, 0)
            else:
                turn_8(out, d + t, per * one, near, src, t * stride + j, stride, 0)
    mask = (1 << bits) - 1
    for t in range(n):
        for j in range(square if t < whole else 0, count):
            v = src[t * stride + j]
            for k in range(per):
                out[first + j * per * one + k * near + t] = (v >> (bits * k)) & mask


@njit(**JIT)
def bin_rows(src, first, count, b, out, start, stop):
    """``out[c, i] = sum of src[c, first + b i : first + b (i + 1)]`` for ``i < count``, channels ``start : stop``.

    The samples are added one after the other.
    """
    for c in range(start, stop):
        row = src[c]
        line = out[c]
        for i in range(count):
            total = row[first + b * i]
            for j in range(1, b):
                total += row[first + b * i + j]
            line[i] = total


@njit(**JIT)
def halve_often(src, width, first, count, times, out, out_width, start, stop):
    """`bin_rows` of integers for ``b = 2**times`` by repeated pairwise sums; flat arrays, 16-bit sums.

    Up to ``2 LANES`` samples beyond the end are read, and up to ``LANES`` sums beyond the end are written.
    """
    spare = np.empty((count << (times - 1)) + 2 * LANES, np.uint16)
    for c in range(start, stop):
        at = c * width + first
        if times == 1:
            halve_rows(out, c * out_width, src, at, (count + LANES - 1) // LANES)
            continue
        halve_rows(spare, 0, src, at, ((count << (times - 1)) + LANES - 1) // LANES)
        for k in range(times - 2, 0, -1):
            halve_rows(spare, 0, spare, 0, ((count << k) + LANES - 1) // LANES)
        halve_rows(out, c * out_width, spare, 0, (count + LANES - 1) // LANES)


@njit(**JIT)
def split_bytes(src, low, high, start, stop):
    """Low and high bytes of rows of 16 bits, channels ``start : stop``; ``src`` holds the bytes of the rows."""
    for c in range(start, stop):
        row, below, above = src[c], low[c], high[c]
        for t in range(len(below)):
            below[t] = row[2 * t]
            above[t] = row[2 * t + 1]


@njit(**JIT)
def fill_cells(x, row, start, stop, value):
    """Set a masked cell to a value."""
    for t in range(start, stop):
        x[row, t] = value


@njit(**JIT)
def channel_moments(rows, mean, sigma):
    """Mean and sigma of the finite values of each channel of ``rows`` (samples, channels); NaN without any."""
    n, C = rows.shape
    origin = np.zeros(C)
    count = np.zeros(C, np.int64)
    total = np.zeros(C)
    square = np.zeros(C)
    for c in range(C):
        for t in range(n):
            if math.isfinite(rows[t, c]):
                origin[c] = rows[t, c]
                break
    for t in range(n):
        for c in range(C):
            d = np.float64(rows[t, c]) - origin[c]
            good = math.isfinite(d)
            d = d if good else 0.0
            count[c] += 1 if good else 0
            total[c] += d
            square[c] += d * d
    for c in range(C):
        if count[c] == 0:
            mean[c] = sigma[c] = np.nan
        else:
            m = total[c] / count[c]
            mean[c] = origin[c] + m
            sigma[c] = math.sqrt(max(0.0, square[c] / count[c] - m * m))


@njit(**JIT)
def round_rows(rows, level, scale, middle, out):
    """``out = rint((rows - level) scale) + middle`` by channel, clipped to 8 bits; ``middle`` if not finite."""
    n, C = rows.shape
    for t in range(n):
        for c in range(C):
            v = (np.float32(rows[t, c]) - level[c]) * scale[c]
            v = v if math.isfinite(v) else np.float32(0)
            v = np.rint(v) + middle
            out[t, c] = np.uint8(min(max(v, np.float32(0)), np.float32(255)))


@njit(**JIT)
def add_moments(rows, origin, total, square):
    """Add to the sums over time of ``rows - origin`` and of its square, by channel."""
    for t in range(len(rows)):
        for c in range(rows.shape[1]):
            d = np.float64(rows[t, c]) - origin[c]
            total[c] += d
            square[c] += d * d
