"""Lomb-Scargle periodograms: the periods of one light curve or of a million."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skysieve.core.lazy import lazy_names

if TYPE_CHECKING:
    from skysieve.periodogram.analysis.fap import NoFormulaWarning
    from skysieve.periodogram.astropy_class.lombscargle import LombScargle
    from skysieve.periodogram.astropy_class.peaks import PeakList
    from skysieve.periodogram.astropy_class.prewhiten import Prewhitened
    from skysieve.periodogram.astropy_class.register import register_astropy
    from skysieve.periodogram.result.aliases import Alias, Aliases, find_aliases
    from skysieve.periodogram.result.peaks import Peaks
    from skysieve.periodogram.result.result import LombScargleResult

    from .api import LombScarglePlan, lombscargle
    from .contract import Status
    from .multiband import MultibandPlan, MultibandResult, lombscargle_multiband, multiband_bootstrap

__all__ = [
    "Alias",
    "Aliases",
    "LombScargle",
    "LombScarglePlan",
    "LombScargleResult",
    "MultibandPlan",
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
    "Alias": "skysieve.periodogram.result.aliases",
    "Aliases": "skysieve.periodogram.result.aliases",
    "find_aliases": "skysieve.periodogram.result.aliases",
    "LombScargle": "skysieve.periodogram.astropy_class.lombscargle",
    "NoFormulaWarning": "skysieve.periodogram.analysis.fap",
    "register_astropy": "skysieve.periodogram.astropy_class.register",
    "PeakList": "skysieve.periodogram.astropy_class.peaks",
    "Prewhitened": "skysieve.periodogram.astropy_class.lombscargle",
    "lombscargle": "skysieve.periodogram.api",
    "lombscargle_multiband": "skysieve.periodogram.multiband",
    "multiband_bootstrap": "skysieve.periodogram.multiband",
    "MultibandPlan": "skysieve.periodogram.multiband",
    "MultibandResult": "skysieve.periodogram.multiband",
    "LombScarglePlan": "skysieve.periodogram.api",
    "LombScargleResult": "skysieve.periodogram.result.result",
    "Peaks": "skysieve.periodogram.result.peaks",
    "Status": "skysieve.periodogram.contract",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
