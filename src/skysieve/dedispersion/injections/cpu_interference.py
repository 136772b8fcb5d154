"""Random numbers by absolute sample and channel (numba)."""

from __future__ import annotations

import numpy as np

from skysieve.core.cpu.jit import njit

JIT = {"nogil": True, "error_model": "numpy"}


@njit(**JIT)
def hashed(start, channels, seed, out):
    """Uniform numbers above 0 and at most 1, which depend on the seed, the sample and the channel only."""
    n, C = out.shape
    for t in range(n):
        for i in range(C):
            z = np.uint64(start + t) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(channels[i] + 1) * np.uint64(
                0xD1B54A32D192ED03
            )
            z += np.uint64(seed) * np.uint64(0xA0761D6478BD642F)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z = z ^ (z >> np.uint64(31))
            out[t, i] = np.float32((np.float64(z >> np.uint64(40)) + 1.0) / 16777216.0)
