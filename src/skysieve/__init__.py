"""GPU-accelerated searches of astronomical data, with a CPU backend that needs no GPU.

The public names are loaded when they are first used, so that ``import skysieve`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skysieve.core.lazy import lazy_names

if TYPE_CHECKING:
    from skysieve import cluster, dedispersion, fstat, periodogram, sphere
    from skysieve.core.engine_cache import clear_cache
    from skysieve.core.errors import DeviceUnavailable, MemoryBudgetError
    from skysieve.first_use import warm_up
    from skysieve.periodogram import LombScargle, LombScarglePlan, lombscargle, lombscargle_multiband
    from skysieve.sphere import smoothing

__version__ = "0.1.0"

__all__ = [
    "DeviceUnavailable", "LombScargle", "LombScarglePlan", "MemoryBudgetError", "__version__", "clear_cache", "cluster",
    "dedispersion", "fstat", "lombscargle", "lombscargle_multiband", "periodogram", "smoothing", "sphere", "warm_up",
]  # fmt: skip

_HOMES = {
    "DeviceUnavailable": "skysieve.core.errors",
    "MemoryBudgetError": "skysieve.core.errors",
    "clear_cache": "skysieve.core.engine_cache",
    "lombscargle": "skysieve.periodogram",
    "lombscargle_multiband": "skysieve.periodogram",
    "LombScargle": "skysieve.periodogram",
    "LombScarglePlan": "skysieve.periodogram",
    "smoothing": "skysieve.sphere",
    "cluster": "skysieve.cluster",
    "dedispersion": "skysieve.dedispersion",
    "fstat": "skysieve.fstat",
    "periodogram": "skysieve.periodogram",
    "sphere": "skysieve.sphere",
    "warm_up": "skysieve.first_use",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
