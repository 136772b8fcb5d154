"""Typical uses of the F-statistic on a simulated day of data, for ``skysieve warm-up``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from skysieve.fstat.api import transient_map
from skysieve.fstat.demod.bank import TemplateBank
from skysieve.fstat.demod.search import search_sfts
from skysieve.fstat.demod.simulate import simulate_sfts
from skysieve.fstat.inputs.simulate import synth_atoms
from skysieve.fstat.template_search.search import search

__all__ = ["USES"]

START, DAY = 1_000_000_000, 86400
FREQUENCY, BAND = 22.4, (22.3, 22.5)


def rectangular(device: str) -> None:
    """Compute the map of one template, rectangular window."""
    transient_map(synth_atoms(span=DAY), window="rect", device=device)


def exponential(device: str) -> None:
    """Compute the map of one template, exponential window."""
    transient_map(synth_atoms(span=DAY), window="exp", device=device)


def templates(device: str) -> None:
    """Search two templates with both windows."""
    search([synth_atoms(span=DAY, seed=seed) for seed in range(2)], device=device)


def exponential_search(device: str) -> None:
    """Search one template with exponential windows; a first search of several windows runs this in a second process."""
    search([synth_atoms(span=DAY)], windows=("exp",), device=device, threads=1)


def sfts(device: str) -> None:
    """Demodulate SFTs and search two templates."""
    made = simulate_sfts(BAND, START, DAY, ephemeris="builtin")
    bank = TemplateBank(np.array([FREQUENCY, FREQUENCY + 1e-5]))
    search_sfts(made, 0.5, 1.0, bank, barycentre="builtin", device=device)


USES: dict[str, Callable[[str], None]] = {
    "rect": rectangular, "exp": exponential, "search": templates, "sfts": sfts,
}  # fmt: skip
"""Name of each use, and the function that runs it on a device."""
