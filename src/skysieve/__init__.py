"""Searches of astronomical data at GPU speed, with a CPU backend that stands on its own.

The public names are loaded when they are first used, so that ``import skysieve`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skysieve.periodogram import LombScarglePlan, lombscargle
    from skysieve.sphere import smoothing

__version__ = "0.1.0"

__all__ = ["LombScarglePlan", "__version__", "lombscargle", "smoothing"]

_HOMES = {
    "lombscargle": "skysieve.periodogram",
    "LombScarglePlan": "skysieve.periodogram",
    "smoothing": "skysieve.sphere",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
