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
