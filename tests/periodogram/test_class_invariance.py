"""Invariance of the results, for any light curve: units, offsets, order of rows, origin of the times."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import skysieve
from skysieve.periodogram import find_aliases
from skysieve.periodogram.analysis.fap import FORMULAS, Noise
from skysieve.periodogram.numerics.normalization import with_distribution

F = np.linspace(0.05, 3.0, 120)


def curve(seed, n):
    rng = np.random.default_rng(seed)
    t = np.sort(rng.integers(0, 40, n) + 0.4 * rng.random(n))
    return rng, t, rng.normal(size=n) + np.sin(5 * t), rng.uniform(0.5, 2, n)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.integers(12, 80), st.floats(0.01, 100), st.floats(-1e3, 1e3), st.floats(-1e4, 1e4))
def test_class(seed, n, scale, offset, start):
    """Scale, offset and origin change results only by the rounding of y and t (1e4 d against 1e-8 of a cycle)."""
    rng, t, y, dy = curve(seed, n)
    ls = skysieve.LombScargle(t, y, dy, device="cpu")
    power = ls.power(F, method="direct")
    order = rng.permutation(n)
    other = skysieve.LombScargle(t[order] + start, scale * y[order] + offset, scale * dy[order], device="cpu")
    np.testing.assert_allclose(other.power(F, method="direct"), power, atol=1e-7)
    np.testing.assert_allclose(other.window(F), ls.window(F), atol=1e-7)
    np.testing.assert_allclose(other.model(t + start, 0.7), scale * ls.model(t, 0.7) + offset, atol=1e-5 * scale + 1e-9)
    for method in FORMULAS:
        chance, scaled = (x.false_alarm_probability(0.4, method=method) for x in (ls, other))
        np.testing.assert_allclose(scaled, chance, rtol=0.01)  # astropy's rule may take one of 12.5 n frequencies more


PROBABILITY = st.floats(1e-25, 0.5)
"""With few points, powers near 1 have too few digits for this comparison."""


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(with_distribution()),
    st.sampled_from(FORMULAS),
    st.integers(12, 3000),
    st.floats(0.5, 1e5),
    PROBABILITY,
)
def test_levels_invert_probabilities(normalization, method, n, bandwidth, p):
    noise = Noise(n, 1.0, 1.02, bandwidth, normalization)
    level = noise.level(p, method)
    np.testing.assert_allclose(noise.probability(level, method), p, rtol=1e-6)
    assert noise.probability(level * 1.01, method) < p * (1 + 1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(20, 120), st.floats(0.1, 2.0), st.floats(0, 6e4))
def test_aliases(seed, n, frequency, start):
    """Flags see neither the origin of the times nor the order of the rows, nor a common scale of the errors."""
    rng, t, _, dy = curve(seed, n)
    peaks = [frequency, frequency + 1, 1.37 * frequency, abs(frequency - 1) + 1e-4]
    order = rng.permutation(n)
    first = find_aliases(t, peaks, np.ptp(t), dy)
    second = find_aliases(t[order] + round(start), peaks, np.ptp(t), 7 * dy[order])
    assert np.array_equal(first.text, second.text)
    assert np.array_equal(first.flag, second.flag)
    np.testing.assert_allclose(first.window, second.window, rtol=1e-7)
