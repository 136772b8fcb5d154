"""Samples into rows: the corner turn, time binning, byte planes (numba)."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

JIT = {"cache": True, "nogil": True, "error_model": "numpy"}
TILE = 64


@njit(**JIT)
def corner_turn(src, order, out, column, offset):
    """``out[i, column + t] = src[t, order[i]] + offset``: samples x channels to channels x samples, by tiles."""
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
def bin_rows(src, first, count, b, out):
    """``out[c, i] = sum of src[c, first + b i : first + b (i + 1)]`` for ``i < count``."""
    for c in range(src.shape[0]):
        row = src[c]
        line = out[c]
        for i in range(count):
            total = row[first + b * i]
            for j in range(1, b):
                total += row[first + b * i + j]
            line[i] = total


@njit(**JIT)
def split_bytes(src, low, high):
    """Low and high bytes of 16-bit rows."""
    for c in range(src.shape[0]):
        for t in range(src.shape[1]):
            v = src[c, t]
            low[c, t] = v & 255
            high[c, t] = v >> 8


@njit(**JIT)
def fill_cells(x, row, start, stop, value):
    """One masked cell."""
    for t in range(start, stop):
        x[row, t] = value


@njit(**JIT)
def channel_moments(rows, mean, sigma):
    """Mean and standard deviation of the finite values of each channel of ``rows`` (samples, channels), or NaN."""
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
    """``out = rint((rows - level) scale) + middle`` by channel, within 8 bits; ``middle`` for what is not finite."""
    n, C = rows.shape
    for t in range(n):
        for c in range(C):
            v = (np.float32(rows[t, c]) - level[c]) * scale[c]
            v = v if math.isfinite(v) else np.float32(0)
            v = np.rint(v) + middle
            out[t, c] = np.uint8(min(max(v, np.float32(0)), np.float32(255)))
