"""Fixtures for the tests of the layer above the backends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.periodogram.standin import StandIn

import skysieve
from skysieve.periodogram import api


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
