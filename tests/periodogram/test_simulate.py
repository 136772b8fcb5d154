"""Simulated light curves: the same on every machine, with the stated distributions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.periodogram.batch import benchmark_batch

from skysieve.periodogram.lightcurves.simulate import (
    DAWN,
    DUSK,
    simulate_asteroids,
    simulate_light_curves,
)

SHA_120_D = "8a61f231eadb4507bc4117b1ef3675cfd78aa4db23625c0157c8fd8050ab74f2"
SHA_TEN_YEARS = "d00847438c6746e80784fcb0910dd459c8aa87861db19fb19d65d02a81c57ddc"


@pytest.mark.parametrize(("span", "sha"), [(120, SHA_120_D), (3652, SHA_TEN_YEARS)])
def test_the_benchmark_batch_has_the_recorded_hash(test_data: Path, span: int, sha: str) -> None:
    made = benchmark_batch(test_data / "lomb_scargle", span)
    assert (len(made), len(made.t), int(made.n_obs.min())) == (1000, 164_749, 5)
    assert made.t.max() < span
    assert made.sha256() == sha


def test_shape_of_the_light_curves() -> None:
    made = simulate_light_curves(np.full(40, 0.3), 0.8, np.full(40, 500), span=120, seed=2)
    assert made.offsets[-1] == len(made.t) == len(made.y) == len(made.dy) == 20_000
    inside = np.diff(made.t)[np.setdiff1d(np.arange(19_999), made.offsets[1:-1] - 1)]
    assert (inside >= 0).all(), "times rise within an object"
    hour = made.t % 1
    assert DUSK <= hour.min() < hour.max() <= DAWN
    assert np.unique(np.floor(made.t)).tolist() == list(range(120))
    # 20,000 draws of 0.2: standard deviation 0.0028.
    assert abs((made.dy > 0.4).mean() - 0.2) < 0.015
    assert np.std((made.y - 18) / made.dy) > 2, "the signal stands above the errors"
    one = slice(*made.offsets[:2])
    design = np.stack([np.ones(500), np.sin(2 * np.pi * made.t[one] / 0.3), np.cos(2 * np.pi * made.t[one] / 0.3)], 1)
    fit = np.linalg.lstsq(design / made.dy[one, None], made.y[one] / made.dy[one], rcond=None)[0]
    # Errors of about 0.1 over 400 good points: 0.007 an amplitude; five of those.
    assert abs(np.hypot(fit[1], fit[2]) - 0.4) < 0.035


def test_seed_decides() -> None:
    a, b, c = (simulate_asteroids(20, seed=s) for s in (1, 1, 2))
    assert a.sha256() == b.sha256() != c.sha256()
    np.testing.assert_array_equal(a.y, b.y)


def test_asteroids_have_the_stated_distributions() -> None:
    made = simulate_asteroids(4000, seed=1)
    # Quantiles of 4,000 draws scatter by about 4% (5% and 95% points of a width of 1 in the logarithm: 3.5%).
    for values, stated in (
        (made.n_obs, (19, 110, 511)),
        (made.period * 24, (4.1, 12.2, 54)),
        (made.amplitude, (0.51, 1.0, 1.95)),
    ):
        np.testing.assert_allclose(np.percentile(values, (5, 50, 95)), stated, rtol=0.12)
    assert made.period.min() * 24 >= 2.2
    assert made.period.max() * 24 <= 300


@pytest.mark.parametrize(
    ("bad", "message"), [({"period": [0.0]}, "positive"), ({"n_obs": [-1]}, "negative"), ({"span": 0}, "span")]
)
def test_bad_arguments(bad: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate_light_curves(**{"period": [1.0], "amplitude": [1.0], "n_obs": [5], **bad})
