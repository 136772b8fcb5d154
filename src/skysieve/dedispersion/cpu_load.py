"""Samples into rows: the corner turn, time binning, byte planes (numba)."""

from __future__ import annotations

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
