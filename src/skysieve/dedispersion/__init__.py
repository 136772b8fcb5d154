"""De-dispersion and single-pulse search: from filterbank files to candidates.

The public names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skysieve.core.lazy import lazy_names

if TYPE_CHECKING:
    from skysieve.dedispersion.api import dedisperse
    from skysieve.dedispersion.candidates import Candidates, Events
    from skysieve.dedispersion.cutouts import Cutout, cutout
    from skysieve.dedispersion.dmplan import DMPlan, plan
    from skysieve.dedispersion.dropouts import find_dropped
    from skysieve.dedispersion.filterbank import Filterbank
    from skysieve.dedispersion.io import write_dat, write_fil, write_tim
    from skysieve.dedispersion.losses import Losses
    from skysieve.dedispersion.masks import Mask
    from skysieve.dedispersion.observation import DM_CONSTANT, Observation
    from skysieve.dedispersion.repair import fill_dropped
    from skysieve.dedispersion.requantise import requantise
    from skysieve.dedispersion.result import Dedispersed
    from skysieve.dedispersion.rfi import channel_statistics, read_rfifind, rfi_mask, zero_dm
    from skysieve.dedispersion.searching import search
    from skysieve.dedispersion.sigproc import BadFile
    from skysieve.dedispersion.simulate import fake, inject

__all__ = [
    "DM_CONSTANT",
    "BadFile",
    "Candidates",
    "Cutout",
    "DMPlan",
    "Dedispersed",
    "Events",
    "Filterbank",
    "Losses",
    "Mask",
    "Observation",
    "channel_statistics",
    "cutout",
    "dedisperse",
    "fake",
    "fill_dropped",
    "find_dropped",
    "inject",
    "plan",
    "read_rfifind",
    "requantise",
    "rfi_mask",
    "search",
    "write_dat",
    "write_fil",
    "write_tim",
    "zero_dm",
]

_HOMES = {
    "zero_dm": "skysieve.dedispersion.rfi",
    "rfi_mask": "skysieve.dedispersion.rfi",
    "read_rfifind": "skysieve.dedispersion.rfi",
    "requantise": "skysieve.dedispersion.requantise",
    "channel_statistics": "skysieve.dedispersion.rfi",
    "cutout": "skysieve.dedispersion.cutouts",
    "Cutout": "skysieve.dedispersion.cutouts",
    "DM_CONSTANT": "skysieve.dedispersion.observation",
    "BadFile": "skysieve.dedispersion.sigproc",
    "Candidates": "skysieve.dedispersion.candidates",
    "DMPlan": "skysieve.dedispersion.dmplan",
    "Dedispersed": "skysieve.dedispersion.result",
    "Events": "skysieve.dedispersion.candidates",
    "Filterbank": "skysieve.dedispersion.filterbank",
    "Losses": "skysieve.dedispersion.losses",
    "Mask": "skysieve.dedispersion.masks",
    "Observation": "skysieve.dedispersion.observation",
    "dedisperse": "skysieve.dedispersion.api",
    "fake": "skysieve.dedispersion.simulate",
    "fill_dropped": "skysieve.dedispersion.repair",
    "find_dropped": "skysieve.dedispersion.dropouts",
    "inject": "skysieve.dedispersion.simulate",
    "plan": "skysieve.dedispersion.dmplan",
    "search": "skysieve.dedispersion.searching",
    "write_dat": "skysieve.dedispersion.io",
    "write_fil": "skysieve.dedispersion.io",
    "write_tim": "skysieve.dedispersion.io",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
