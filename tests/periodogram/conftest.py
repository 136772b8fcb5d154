"""Fixtures for the tests of the layer above the backends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.periodogram.standin import StandIn

import skysieve
from skysieve.core.table_files import write_table
from skysieve.periodogram import api
from skysieve.periodogram.lightcurves.simulate import simulate_light_curves


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Give plans a `StandIn` as engine.  ``["engine"]`` is the last one made; the objects in ``["fail"]`` fail."""
    state: dict[str, Any] = {"engine": None, "fail": ()}

    def make(spec: Any, device: Any, memory: Any, threads: Any) -> Any:
        state["engine"] = StandIn(spec, state["fail"])
        return state["engine"]

    skysieve.clear_cache()
    monkeypatch.setattr(api, "make_engine", make)
    yield state
    skysieve.clear_cache()


@pytest.fixture
def survey(tmp_path: Path) -> Path:
    """A file of 60 light curves of 40 rows, with periods of half a day."""
    made = simulate_light_curves(np.full(60, 0.5), 0.8, np.full(60, 40), seed=1)
    path = tmp_path / "survey.csv"
    names = np.repeat([f"s{i}" for i in range(60)], made.n_obs)
    write_table({"name": names, "mjd": made.t + 59000, "mag": made.y, "magerr": made.dy}, path)
    return path
