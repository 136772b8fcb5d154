"""The first answers of a new machine: powers that are summed one by one, before the fast methods are compiled."""

import numpy as np
import pytest

import skysieve
from skysieve.periodogram import lombscargle, lombscargle_multiband
from skysieve.periodogram.cpu import engine, prepare, search
from skysieve.periodogram.cpu.fourier import search as fourier_search
from skysieve.periodogram.cpu.fourier import series

GRID = {"fmin": 0.02, "fmax": 5.0, "nf": 3000, "n_peaks": 3, "device": "cpu"}


@pytest.fixture
def cold(monkeypatch):
    """Nothing is compiled yet, as far as the engine knows."""
    skysieve.clear_cache()
    monkeypatch.setattr(engine.first_answers, "seconds", 0.0)
    for kind in (engine.SinusoidSearch, series.SeriesSearch):
        monkeypatch.setattr(kind, "is_compiled", lambda *_: False)
    yield
    skysieve.clear_cache()


def curve(n=40, seed=3):
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0, 60, n))
    return t, np.sin(2 * np.pi * t / 1.7) + 0.5 * rng.standard_normal(n), rng.uniform(0.3, 0.6, n)


def bands(n=40):
    t, y, dy = curve(n)
    return lombscargle_multiband(t, y, np.arange(n) % 2, dy, **GRID)


CASES = {
    "one term": (lambda: lombscargle(*curve(), **GRID), 1e-9),
    "few points": (lambda: lombscargle(*curve(5), **GRID), 1e-9),
    "four terms": (lambda: lombscargle(*curve(), nterms=4, **GRID), 1e-8),
    "two bands": (bands, 1e-8),
}
"""Tolerances are those of the methods: `engine.GUARD`, `series.LIMIT`."""


@pytest.mark.parametrize("case", CASES)
def test_the_first_answer_agrees_with_later_ones(case, cold, monkeypatch):
    run, tolerance = CASES[case]
    first = run()
    assert set(np.atleast_1d(first.method)) == {"direct"}
    assert engine.first_answers.seconds > 0
    monkeypatch.setattr(
        engine.first_answers, "seconds", engine.PLAIN_SECONDS
    )  # from now on the fast methods are compiled
    skysieve.clear_cache()
    later = run()
    assert np.allclose(first.power, later.power, rtol=0, atol=tolerance, equal_nan=True)
    assert np.allclose(first.peaks.power, later.peaks.power, rtol=0, atol=tolerance, equal_nan=True)
    if np.isfinite(later.peaks.power).any():
        assert np.allclose(first.period, later.period, rtol=1e-6)


def test_large_jobs_and_chosen_methods_are_not_summed_one_by_one(cold):
    assert set(np.atleast_1d(lombscargle(*curve(), method="nufft", **GRID).method)) == {"nufft"}
    engine.first_answers.seconds = engine.PLAIN_SECONDS - 1e-6
    assert set(np.atleast_1d(lombscargle(*curve(), **GRID).method)) == {"nufft"}


@pytest.mark.parametrize("has_dy", [True, False])
def test_rows_are_prepared_by_the_interpreter_with_the_same_bits(has_dy):
    rng = np.random.default_rng(8)
    n, objects = 60, 6
    t = rng.uniform(0, 50, n)
    t[10:14] = t[10]  # equal times
    y, dy = rng.standard_normal(n) + 1e9, rng.uniform(0.1, 1, n)
    t[3], y[15], dy[31] = np.nan, np.inf, -1.0
    y[40:50] = 2.0
    y[50:] *= 1e200
    offsets = np.linspace(0, n, objects + 1).astype(np.int64)

    def run(function):
        out = [np.zeros(n) for _ in range(3)]
        each = [np.zeros(objects, np.int64), np.zeros(objects), np.zeros(objects), np.zeros(objects, np.uint8)]
        more = [np.ones(objects), np.ones(objects)]
        function(t, y, dy if has_dy else t[:0], has_dy, offsets, 0, objects, 3, True, *out, *each, *more)
        return out + each + more

    from skysieve.core.cpu.jit import _interpreted

    for a, b in zip(run(prepare.prepare), run(_interpreted(prepare.prepare)), strict=True):
        assert a.tobytes() == b.tobytes()


def test_peaks_of_both_types_are_refined_by_the_same_code():
    counts = []
    for dtype in ("float64", "float32"):
        lombscargle(*curve(), dtype=dtype, **GRID)
        lombscargle(*curve(), nterms=4, dtype=dtype, return_power=False, **GRID)
        counts.append([len(kernel.signatures) for kernel in (search.conclude, fourier_search.conclude)])
    assert counts[0] == counts[1]
