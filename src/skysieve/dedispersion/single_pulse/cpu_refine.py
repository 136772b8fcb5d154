"""Kernel that sums the channels of samples along a dispersed pulse (numba)."""

from __future__ import annotations

from skysieve.core.cpu.jit import njit


@njit(nogil=True, error_model="numpy")
def add_channels(rows, delays, out):
    """Add samples ``delays[c] : delays[c] + len(out)`` of each channel ``c`` to ``out``.

    ``rows`` has the shape (samples, channels).
    """
    for c in range(rows.shape[1]):
        at = delays[c]
        for t in range(len(out)):
            out[t] += rows[at + t, c]
