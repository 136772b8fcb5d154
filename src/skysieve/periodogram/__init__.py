"""Lomb-Scargle periodograms: the periods of one light curve or of a million."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skysieve.periodogram.api import LombScarglePlan, lombscargle
    from skysieve.periodogram.result import LombScargleResult, Peaks
    from skysieve.periodogram.workload import Status

__all__ = ["LombScarglePlan", "LombScargleResult", "Peaks", "Status", "lombscargle"]

_HOMES = {
    "lombscargle": "skysieve.periodogram.api",
    "LombScarglePlan": "skysieve.periodogram.api",
    "LombScargleResult": "skysieve.periodogram.result",
    "Peaks": "skysieve.periodogram.result",
    "Status": "skysieve.periodogram.workload",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
