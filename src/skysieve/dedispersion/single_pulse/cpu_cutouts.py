"""Kernel that adds slices of time to the dynamic spectra of a cut-out (numba)."""

from __future__ import annotations

from skysieve.core.cpu.jit import njit

JIT = {"nogil": True, "error_model": "numpy"}


@njit(**JIT)
def add_slice(rows, at, delays, b, lined, span, raw):
    """Add samples ``at : at + len(rows)`` of a stretch to its two dynamic spectra.

    Parameters
    ----------
    rows : float32 (samples, channels)
    at : int
    delays : int64 (channels,)
        Delay of each channel in samples.
    b : int
        Samples of a bin of ``lined``.
    lined : float64 (bins, channels)
        The de-dispersed spectrum, by whole samples.
    span : int
        Samples that the bins of ``raw`` divide evenly; a sample may belong to two bins.
    raw : float64 (bins, channels)
        The spectrum as observed.
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
