"""Sums of a candidate's cut-out, their level and windows in them against NumPy and SciPy, compiled and interpreted."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.interpolate import BSpline

from skysieve.core.cpu.jit import interpreted
from skysieve.dedispersion.single_pulse import cpu_vetting
from skysieve.dedispersion.single_pulse.vetting import Arrivals, _flattened

SIDE, WIDTH, GUARD, CHANNELS = 20, 6, 4, 40
EDGES = np.array([0, 9, 21, 40])


def cut_out(size, seed, dtype):
    """Samples, NaN or 0 where they do not count, and the bins by which each channel begins later."""
    rng = np.random.default_rng(seed)
    late = np.sort(rng.integers(0, 60, CHANNELS))
    bins = 2 * SIDE + WIDTH + int(late.max())
    rows = rng.normal(100, 10, (bins * size, CHANNELS)).astype(dtype)
    counts = rng.random(rows.shape) > 0.1
    rows[~counts] = np.nan if dtype == np.float32 else 0
    return rows, counts, late, bins


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("size", "dtype"), [(1, np.float32), (3, np.uint8)])
def test_sums_of_a_cut_out(size, dtype, compiled):
    how = (lambda kernel: kernel) if compiled else interpreted
    rows, counts, late, bins = cut_out(size, size, dtype)
    parts = [(0, slice(0, 7 * size)), (7, slice(7 * size, None))]
    sums = np.zeros((3, CHANNELS))
    for first, part in parts:
        how(cpu_vetting.channel_sums)(rows[part], counts[part], first, size, SIDE, late, WIDTH, GUARD, sums)
    x = np.where(counts, rows.astype(np.float64), 0.0)
    place = np.arange(len(rows))[:, None] // size - SIDE - late
    beside = (place < -GUARD) | (place >= WIDTH + GUARD)
    expected = [beside & counts, beside * x, beside * x**2]
    np.testing.assert_allclose(sums, [each.sum(axis=0) for each in expected], rtol=1e-13)

    sums[:, 1], sums[:, 2] = (5, 500, 50100), (40, 4000, 400000)  # too few samples, and constant ones
    (mean, var), used = np.empty((2, CHANNELS)), np.empty(CHANNELS, bool)
    how(cpu_vetting.channel_levels)(sums, 6, mean, var, used)
    assert np.flatnonzero(~used).tolist() == [1, 2]
    assert (mean[1:3] == 0).all()
    assert (var[1:3] == 0).all()
    for c in np.flatnonzero(used):
        some = x[(beside & counts)[:, c], c]
        assert mean[c] == pytest.approx(some.mean(), rel=1e-12)
        assert var[c] == pytest.approx(some.var(), rel=1e-9)

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


@pytest.mark.parametrize("compiled", [True, False])
def test_the_level_of_a_sub_band_is_the_best_spline_beside_the_candidate(compiled):
    """Weighted least squares by NumPy, of the bins outside the candidate, with the small ridge that makes it unique."""
    how = (lambda kernel: kernel) if compiled else interpreted
    rng = np.random.default_rng(5)
    delays, edges, length, first, last = np.repeat([0, 7, 31], 4), np.array([0, 4, 8, 12]), 60, 25, 36
    bins = length + 31
    flat = np.stack([rng.normal(size=(3, bins)), rng.uniform(1, 2, (3, bins))])
    lined = np.stack([rng.normal(size=(3, length)), rng.uniform(1, 2, (3, length))])
    values, weights = flat.copy(), lined.copy()
    flat_sums, lined_sums = _flattened(
        how(cpu_vetting.flatten), flat, lined, Arrivals.of(delays, edges), first, last, 20.0
    )

    knots = np.linspace(0, bins, 6)  # 91 bins, a knot about every 20
    knots = np.concatenate([[-knots[1]], knots, [bins + knots[1]]])
    spline = BSpline.basis_element([-2, -1, 0, 1, 2], extrapolate=False)
    model = 6 * np.nan_to_num(spline((np.arange(bins)[:, None] + 0.5 - knots) / knots[2]))
    for b, late in enumerate((0, 7, 31)):
        beside = np.ones(bins, bool)
        beside[first + late : last + late] = False
        root = np.sqrt(values[1, b])
        rows, data = (model * root[:, None])[beside], (values[0, b] / root)[beside]
        ridge = np.sqrt(1e-9 * ((rows**2).sum() + 1)) * np.eye(len(knots))
        found = np.linalg.lstsq(np.concatenate([rows, ridge]), np.concatenate([data, np.zeros(len(knots))]))[0]
        level = model @ found
        np.testing.assert_allclose(np.diff(flat_sums[0, b]), values[0, b] - level * values[1, b], atol=1e-9)
        moved = weights[0, b] - level[late : late + length] * weights[1, b]
        np.testing.assert_allclose(np.diff(lined_sums[0, b]), moved, atol=1e-9)
        np.testing.assert_allclose(np.diff(flat_sums[1, b]), values[1, b], rtol=1e-12)
    assert (flat_sums[..., 0] == 0).all()
    assert (lined_sums[..., 0] == 0).all()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("w", "sweep"), [(3, 0), (8, 6), (8, 90), (40, 30)])
def test_the_best_window_at_one_time(w, sweep, compiled):
    """Each window on its own, of samples with gaps, in parts of one to three sub-bands, reached one after the other."""
    how = (lambda kernel: kernel) if compiled else interpreted
    rng = np.random.default_rng(w + sweep)
    edges, side = np.array([0, 1, 3, 6, 8, 9]), 130
    middle = side + np.linspace(0, sweep, len(edges) - 1)
    x = rng.normal(size=(edges[-1], 2 * side + w + sweep))
    v = rng.uniform(0.5, 2, x.shape) * (rng.random(x.shape) > 0.1)
    x[:, side : side + w] += 1.0
    power = rng.uniform(0, 3, len(middle))
    s, q = (np.concatenate([np.zeros((len(y), 1)), np.cumsum(y, axis=1)], axis=1) for y in (x, v))
    x, v = (np.add.reduceat(y, edges[:-1]) for y in (x, v))
    sizes, nears = np.array([w // 2 + 1, w, 2 * w]), np.array([16, 17, 18])
    best = 0.0
    for size, near in zip(sizes.tolist(), nears.tolist(), strict=True):
        gap = size // 2
        for at in range(max(near + gap, side - size), x.shape[1] - near - size - gap + 1, max(1, size // 16)):
            covered = np.minimum(at + size, middle + w) - np.maximum(at, middle)
            inside = covered >= 0.5 * min(w, size)
            if at > middle[-1] + w or power[inside].sum() < 0.5 * power.sum():
                continue
            around = np.r_[at - gap - near : at - gap, at + size + gap : at + size + gap + near]
            on, on_v = x[:, at : at + size].sum(axis=1), v[:, at : at + size].sum(axis=1)
            inside &= on_v > 0
            excess = on - x[:, around].sum(axis=1) * on_v / v[:, around].sum(axis=1)
            best = max(best, float((np.maximum(excess, 0)[inside] ** 2 / on_v[inside]).sum()))
    found = how(cpu_vetting.undispersed)(s, q, edges, power, middle, w, side, sizes, nears)
    assert (best > 0) == (sweep < 90)  # no window covers half of the power of the widest sweep
    assert found == pytest.approx(best, rel=1e-9)
