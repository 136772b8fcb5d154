"""Lomb-Scargle periodograms: the periods of one light curve or of a million."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skysieve.core.lazy import lazy_names

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

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
