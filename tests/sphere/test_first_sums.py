"""The first answers of a new machine: all pixels summed by themselves, before the other algorithms are compiled."""

import numpy as np
import pytest

from skysieve import clear_cache, smoothing
from skysieve.sphere.cpu import direct

NSIDE, FWHM = 16, np.radians(12)


@pytest.fixture
def cold(monkeypatch):
    """Let the engine believe that nothing is compiled yet."""
    clear_cache()
    monkeypatch.setattr(direct.first_answers, "seconds", 0.0)
    monkeypatch.setattr(direct, "is_ready", lambda _: False)
    yield
    clear_cache()


@pytest.mark.few
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("maps", [1, 3])
def test_the_first_answer_agrees_with_later_ones(cold, maps, dtype, monkeypatch):
    x = np.random.default_rng(2).standard_normal((maps, 12 * NSIDE**2)).astype(dtype)
    options = {"method": "direct", "device": "cpu", "eps": 1e-6}
    first = smoothing(x, FWHM, **options)
    assert 0 < direct.first_answers.seconds < direct.FIRST_SECONDS
    monkeypatch.setattr(direct.first_answers, "seconds", direct.FIRST_SECONDS)
    later = smoothing(x, FWHM, **options)
    assert direct.first_answers.seconds == direct.FIRST_SECONDS
    assert not np.array_equal(first, later)  # other algorithms
    assert np.abs(first - later).max() < 2e-6 * later.std()


def test_a_plan_uses_the_other_algorithms_when_the_time_is_spent(cold, monkeypatch):
    engine = direct.first_answers
    x = np.random.default_rng(3).standard_normal(12 * NSIDE**2)
    smoothing(x, FWHM, method="direct", device="cpu")
    each, before = engine.seconds, engine.seconds
    monkeypatch.setattr(engine, "limit", 2.5 * each)
    for _ in range(3):
        smoothing(x, FWHM, method="direct", device="cpu")
    assert engine.seconds - before == pytest.approx(each)
