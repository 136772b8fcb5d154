"""De-dispersion and single-pulse search: from filterbank files to candidates.

Public names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skysieve.core.lazy import lazy_names

if TYPE_CHECKING:
    from skysieve.dedispersion.clean.dropouts import find_dropped
    from skysieve.dedispersion.clean.masks import Mask
    from skysieve.dedispersion.clean.missing import Losses
    from skysieve.dedispersion.clean.repair import fill_dropped
    from skysieve.dedispersion.clean.rfi import channel_statistics, read_rfifind, rfi_mask, write_rfifind, zero_dm
    from skysieve.dedispersion.clean.zdot import z_dot
    from skysieve.dedispersion.data.filterbank import Filterbank
    from skysieve.dedispersion.data.observation import DM_CONSTANT, Observation
    from skysieve.dedispersion.data.requantise import requantise
    from skysieve.dedispersion.data.sigproc import BadFile
    from skysieve.dedispersion.data.simulate import fake
    from skysieve.dedispersion.data.write import write_dat, write_fil, write_tim
    from skysieve.dedispersion.dm_plan.plan import DMPlan, plan
    from skysieve.dedispersion.injections.campaign import completeness
    from skysieve.dedispersion.injections.grid import PulseGrid
    from skysieve.dedispersion.injections.inject import inject, inject_grid, inject_pulses
    from skysieve.dedispersion.injections.noise import Noise
    from skysieve.dedispersion.injections.pulses import Pulse
    from skysieve.dedispersion.injections.result import Completeness
    from skysieve.dedispersion.single_pulse.candidates import Candidates, Events
    from skysieve.dedispersion.single_pulse.cutouts import Cutout, cutout
    from skysieve.dedispersion.single_pulse.refine import window_snr
    from skysieve.dedispersion.single_pulse.search import SearchPlan, search

    from .api import DedispersionPlan, dedisperse
    from .result import Dedispersed

__all__ = [
    "DM_CONSTANT",
    "BadFile",
    "Candidates",
    "Completeness",
    "Cutout",
    "DMPlan",
    "Dedispersed",
    "DedispersionPlan",
    "Events",
    "Filterbank",
    "Losses",
    "Mask",
    "Noise",
    "Observation",
    "Pulse",
    "PulseGrid",
    "SearchPlan",
    "channel_statistics",
    "completeness",
    "cutout",
    "dedisperse",
    "fake",
    "fill_dropped",
    "find_dropped",
    "inject",
    "inject_grid",
    "inject_pulses",
    "plan",
    "read_rfifind",
    "requantise",
    "rfi_mask",
    "search",
    "window_snr",
    "write_dat",
    "write_fil",
    "write_rfifind",
    "write_tim",
    "z_dot",
    "zero_dm",
]

_HOMES = {
    "z_dot": "skysieve.dedispersion.clean.zdot",
    "zero_dm": "skysieve.dedispersion.clean.rfi",
    "rfi_mask": "skysieve.dedispersion.clean.rfi",
    "read_rfifind": "skysieve.dedispersion.clean.rfi",
    "requantise": "skysieve.dedispersion.data.requantise",
    "channel_statistics": "skysieve.dedispersion.clean.rfi",
    "Completeness": "skysieve.dedispersion.injections.result",
    "completeness": "skysieve.dedispersion.injections.campaign",
    "cutout": "skysieve.dedispersion.single_pulse.cutouts",
    "Cutout": "skysieve.dedispersion.single_pulse.cutouts",
    "DM_CONSTANT": "skysieve.dedispersion.data.observation",
    "BadFile": "skysieve.dedispersion.data.sigproc",
    "Candidates": "skysieve.dedispersion.single_pulse.candidates",
    "DMPlan": "skysieve.dedispersion.dm_plan.plan",
    "Dedispersed": "skysieve.dedispersion.result",
    "Events": "skysieve.dedispersion.single_pulse.candidates",
    "Filterbank": "skysieve.dedispersion.data.filterbank",
    "Losses": "skysieve.dedispersion.clean.missing",
    "Mask": "skysieve.dedispersion.clean.masks",
    "Noise": "skysieve.dedispersion.injections.noise",
    "Pulse": "skysieve.dedispersion.injections.pulses",
    "PulseGrid": "skysieve.dedispersion.injections.grid",
    "Observation": "skysieve.dedispersion.data.observation",
    "dedisperse": "skysieve.dedispersion.api",
    "fake": "skysieve.dedispersion.data.simulate",
    "fill_dropped": "skysieve.dedispersion.clean.repair",
    "find_dropped": "skysieve.dedispersion.clean.dropouts",
    "inject_grid": "skysieve.dedispersion.injections.inject",
    "inject_pulses": "skysieve.dedispersion.injections.inject",
    "inject": "skysieve.dedispersion.injections.inject",
    "plan": "skysieve.dedispersion.dm_plan.plan",
    "SearchPlan": "skysieve.dedispersion.single_pulse.search",
    "DedispersionPlan": "skysieve.dedispersion.api",
    "search": "skysieve.dedispersion.single_pulse.search",
    "window_snr": "skysieve.dedispersion.single_pulse.refine",
    "write_dat": "skysieve.dedispersion.data.write",
    "write_fil": "skysieve.dedispersion.data.write",
    "write_rfifind": "skysieve.dedispersion.clean.rfi",
    "write_tim": "skysieve.dedispersion.data.write",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
