"""Engines in the cache behind `lombscargle`: how errors reach the caller."""

from __future__ import annotations

import traceback

import numpy as np
import pytest

import skysieve
from skysieve.core.device import Device
from skysieve.core.engine_cache import ENGINES
from skysieve.periodogram import api
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


def test_auto_takes_the_cpu_for_small_jobs(monkeypatch):
    """With a GPU, `lombscargle` and the class choose by rows and frequencies; plans and named devices do not."""
    gpu, chosen = Device("cuda", 0, "a GPU", 1 << 34), []
    resolve = api.resolve

    def make(spec, devices, memory, threads):
        chosen.append(devices[0].kind)
        return Engine(spec, device=resolve("cpu")[0], memory=memory, threads=threads)

    monkeypatch.setattr(api, "resolve", lambda name: (gpu,) if name in ("auto", "cuda") else resolve(name))
    monkeypatch.setattr(api, "make_engine", make)
    skysieve.clear_cache()
    t = np.sort(np.random.default_rng(1).uniform(0, 100, 300))
    y, grid = np.sin(t), {"fmin": 0.02, "fmax": 3.0, "nf": 1000}
    dense = {**grid, "nf": api.SMALL_GRID}
    long = np.linspace(0, 100, api.SMALL_ROWS)
    results = [
        skysieve.lombscargle(t, y, **grid),
        skysieve.lombscargle(t[:20], y[:20]),  # the grid follows from the times
        skysieve.lombscargle(t, y, **{**dense, "nf": api.SMALL_GRID - 1}),
        skysieve.lombscargle(t, y, **grid, device="cuda"),
        skysieve.lombscargle(t, y, **dense),
        skysieve.lombscargle([t, t], [y, y], **grid),
        skysieve.lombscargle(long, np.sin(long), **grid),
    ]
    assert [r.device for r in results] == 3 * ["cpu"] + 4 * ["cuda:0"]
    assert np.array_equal(results[0].power, results[3].power)
    with skysieve.LombScarglePlan(**grid) as plan:
        assert plan.execute(t, y).device == "cuda:0"
    chosen.clear()
    skysieve.clear_cache()
    skysieve.LombScargle(t, y).power(np.linspace(0.1, 1.0, 500))
    assert chosen == ["cpu"]
    with pytest.warns(UserWarning, match="lowest frequency") as caught:
        skysieve.lombscargle(t, y, fmin=0.001, fmax=3.0, nf=2000)
    assert caught[0].filename == __file__
    with pytest.raises(ValueError, match="constant"):
        skysieve.lombscargle(t, 0 * t, **grid)
    skysieve.clear_cache()
