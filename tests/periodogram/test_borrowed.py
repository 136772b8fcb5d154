"""Engines of the cache behind `lombscargle`: what the caller sees of an error."""

from __future__ import annotations

import traceback

import numpy as np
import pytest

import skysieve
from skysieve.core.engine_cache import ENGINES
from skysieve.periodogram.cpu.engine import Engine


def test_an_error_of_an_engine_keeps_its_traceback_and_closes_the_engine(monkeypatch):
    t = np.sort(np.random.default_rng(1).uniform(0, 100, 60))

    def broken_execute(*given, **options):
        raise RuntimeError("a fault")

    skysieve.clear_cache()
    monkeypatch.setattr(Engine, "execute", broken_execute)
    with pytest.raises(RuntimeError, match="a fault") as caught:
        skysieve.lombscargle(t, np.sin(t), fmin=0.1, fmax=1.0, device="cpu")
    assert "broken_execute" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert len(ENGINES) == 0


def test_a_search_is_made_once_more_where_idle_engines_held_the_memory(monkeypatch):
    t = np.sort(np.random.default_rng(1).uniform(0, 100, 60))
    skysieve.clear_cache()
    expected = skysieve.lombscargle(t, np.sin(t), fmin=0.1, fmax=1.0, device="cpu")
    skysieve.lombscargle(t, np.sin(t), fmin=0.1, fmax=1.0, n_peaks=2, device="cpu")  # an engine that stays idle
    true_execute, calls = Engine.execute, []

    def short_once(self, *given, **options):
        calls.append(self)
        if len(calls) == 1:
            raise MemoryError("short")
        return true_execute(self, *given, **options)

    monkeypatch.setattr(Engine, "execute", short_once)
    assert len(ENGINES) == 2
    again = skysieve.lombscargle(t, np.sin(t), fmin=0.1, fmax=1.0, device="cpu")
    assert np.array_equal(again.power, expected.power)
    assert len(calls) == 2
    assert calls[0] is not calls[1]
    skysieve.clear_cache()
    calls.clear()
    with pytest.raises(MemoryError, match="short"):
        skysieve.lombscargle(t, np.sin(t), fmin=0.1, fmax=1.0, device="cpu")
