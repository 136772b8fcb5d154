"""Dynamic spectra of a cut-out, a slice of time after the other (numba)."""

from __future__ import annotations

from numba import njit

JIT = {"cache": True, "nogil": True, "error_model": "numpy"}


@njit(**JIT)
def add_slice(rows, at, delays, b, lined, span, raw):
    """Add samples ``at : at + len(rows)`` of a stretch to its pictures.

    Parameters
    ----------
    rows : float32 (samples, channels)
    at : int
    delays : int64 (channels,)
        Samples by which each channel is late.
    b : int
        Samples of a bin of ``lined``.
    lined : float64 (bins, channels)
        Channels lined up, by whole samples.
    span : int
        Samples that the bins of ``raw`` share evenly; a sample may lie in two.
    raw : float64 (bins, channels)
    """
    n, C = rows.shape
    bins = len(raw)
    width = span / bins
    for i in range(n):
        s = at + i
        for c in range(C):
            j = s - delays[c]
            if 0 <= j < len(lined) * b:
                lined[j // b, c] += rows[i, c]
        if s >= span:
            continue
        first = min(bins - 1, int(s / width))
        for k in range(first, min(first + 2, bins)):
            part = min(s + 1.0, (k + 1) * width) - max(float(s), k * width)
            if part > 0:
                for c in range(C):
                    raw[k, c] += part * rows[i, c]
