"""Sums of a candidate's cut-out against NumPy over the whole cut-out, compiled and interpreted."""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.core.cpu.jit import interpreted
from skysieve.dedispersion.single_pulse import cpu_vetting

SIDE, WIDTH, GUARD, CHANNELS = 20, 6, 4, 40
EDGES = np.array([0, 9, 21, 40])


def cut_out(size, seed):
    """Samples with NaN where they do not count, and the bin at which each channel begins."""
    rng = np.random.default_rng(seed)
    late = np.sort(rng.integers(0, 60, CHANNELS))
    bins = 2 * SIDE + WIDTH + int(late.max())
    rows = rng.normal(100, 10, (bins * size, CHANNELS)).astype(np.float32)
    counts = rng.random(rows.shape) > 0.1
    rows[~counts] = np.nan
    return rows, counts, late, bins


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("size", [1, 3])
def test_sums_of_a_cut_out(size, compiled):
    how = (lambda kernel: kernel) if compiled else interpreted
    rows, counts, late, bins = cut_out(size, size)
    parts = [(0, slice(0, 7 * size)), (7, slice(7 * size, None))]
    sums = np.zeros((3, CHANNELS))
    for first, part in parts:
        how(cpu_vetting.channel_sums)(rows[part], counts[part], first, size, SIDE + late, WIDTH, GUARD, sums)
    x = np.where(counts, rows.astype(np.float64), 0.0)
    place = np.arange(len(rows))[:, None] // size - SIDE - late
    beside = (place < -GUARD) | (place >= WIDTH + GUARD)
    expected = [beside & counts, beside * x, beside * x**2]
    np.testing.assert_allclose(sums, [each.sum(axis=0) for each in expected], rtol=1e-13)

    rng = np.random.default_rng(3)
    used = rng.random(CHANNELS) > 0.2
    mean, var = np.where(used, 100.0, 0.0), np.where(used, rng.uniform(50, 150, CHANNELS), 0.0)
    flat, lined = np.zeros((2, 3, bins)), np.zeros((2, 3, 2 * SIDE + WIDTH))
    for first, part in parts:
        how(cpu_vetting.band_series)(
            rows[part], (counts & used)[part], first, size, late, EDGES, mean, var, flat, lined
        )
    for i, values in enumerate(((x - mean) * counts * used, var * counts)):
        binned = values.reshape(bins, size, CHANNELS).sum(axis=1)
        wanted = np.add.reduceat(binned, EDGES[:-1], axis=1).T
        np.testing.assert_allclose(flat[i], wanted, atol=1e-10 * np.abs(wanted).max())
        moved = np.stack([binned[k : k + lined.shape[2], c] for c, k in enumerate(late)], axis=1)
        wanted = np.add.reduceat(moved, EDGES[:-1], axis=1).T
        np.testing.assert_allclose(lined[i], wanted, atol=1e-10 * np.abs(wanted).max())
