"""Lomb-Scargle periodograms: the periods of one light curve or of a million."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skysieve.core.lazy import lazy_names

if TYPE_CHECKING:
    from skysieve.periodogram.aliases import Alias, Aliases, find_aliases
    from skysieve.periodogram.api import LombScarglePlan, lombscargle
    from skysieve.periodogram.dropin import LombScargle
    from skysieve.periodogram.fap import NoFormulaWarning
    from skysieve.periodogram.interop import register_astropy
    from skysieve.periodogram.multiband import MultibandResult, lombscargle_multiband, multiband_bootstrap
    from skysieve.periodogram.peaklist import PeakList
    from skysieve.periodogram.prewhiten import Prewhitened
    from skysieve.periodogram.result import LombScargleResult, Peaks
    from skysieve.periodogram.workload import Status

__all__ = [
    "Alias",
    "Aliases",
    "LombScargle",
    "LombScarglePlan",
    "LombScargleResult",
    "MultibandResult",
    "NoFormulaWarning",
    "PeakList",
    "Peaks",
    "Prewhitened",
    "Status",
    "find_aliases",
    "lombscargle",
    "lombscargle_multiband",
    "multiband_bootstrap",
    "register_astropy",
]

_HOMES = {
    "Alias": "skysieve.periodogram.aliases",
    "Aliases": "skysieve.periodogram.aliases",
    "find_aliases": "skysieve.periodogram.aliases",
    "LombScargle": "skysieve.periodogram.dropin",
    "NoFormulaWarning": "skysieve.periodogram.fap",
    "register_astropy": "skysieve.periodogram.interop",
    "PeakList": "skysieve.periodogram.peaklist",
    "Prewhitened": "skysieve.periodogram.prewhiten",
    "lombscargle": "skysieve.periodogram.api",
    "lombscargle_multiband": "skysieve.periodogram.multiband",
    "multiband_bootstrap": "skysieve.periodogram.multiband",
    "MultibandResult": "skysieve.periodogram.multiband",
    "LombScarglePlan": "skysieve.periodogram.api",
    "LombScargleResult": "skysieve.periodogram.result",
    "Peaks": "skysieve.periodogram.result",
    "Status": "skysieve.periodogram.workload",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
