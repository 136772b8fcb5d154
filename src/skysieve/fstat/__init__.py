"""Transient F-statistic maps: gravitational waves that last for hours to months."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skysieve.core.lazy import lazy_names

if TYPE_CHECKING:
    from skysieve.fstat.demod.bank import TemplateBank
    from skysieve.fstat.demod.demodulator import Demodulator
    from skysieve.fstat.demod.search import search_sfts
    from skysieve.fstat.demod.simulate import Signal, simulate_sfts
    from skysieve.fstat.inputs.atoms import Atoms
    from skysieve.fstat.inputs.bins import merge
    from skysieve.fstat.inputs.files import load_atoms, read_atoms, save_atoms, write_atoms
    from skysieve.fstat.inputs.grid import Grid
    from skysieve.fstat.inputs.simulate import Injection, synth_atoms
    from skysieve.fstat.inputs.windows import WindowSum
    from skysieve.fstat.result.map import TransientResult
    from skysieve.fstat.sfts.files import read_sfts, write_sfts
    from skysieve.fstat.sfts.sfts import SFTs
    from skysieve.fstat.template_search.batch import AtomsBatch
    from skysieve.fstat.template_search.bsgl import BSGL
    from skysieve.fstat.template_search.result import SearchResult
    from skysieve.fstat.template_search.search import SearchPlan, search

    from .api import TransientPlan, transient_map
    from .pyfstat import from_lal, register_pyfstat

__all__ = [
    "BSGL",
    "Atoms",
    "AtomsBatch",
    "Demodulator",
    "Grid",
    "Injection",
    "SFTs",
    "SearchPlan",
    "SearchResult",
    "Signal",
    "TemplateBank",
    "TransientPlan",
    "TransientResult",
    "WindowSum",
    "from_lal",
    "load_atoms",
    "merge",
    "read_atoms",
    "read_sfts",
    "register_pyfstat",
    "save_atoms",
    "search",
    "search_sfts",
    "simulate_sfts",
    "synth_atoms",
    "transient_map",
    "write_atoms",
    "write_sfts",
]

_HOMES = {
    "BSGL": "skysieve.fstat.template_search.bsgl",
    "Atoms": "skysieve.fstat.inputs.atoms",
    "AtomsBatch": "skysieve.fstat.template_search.batch",
    "Demodulator": "skysieve.fstat.demod.demodulator",
    "Grid": "skysieve.fstat.inputs.grid",
    "Injection": "skysieve.fstat.inputs.simulate",
    "SFTs": "skysieve.fstat.sfts.sfts",
    "SearchPlan": "skysieve.fstat.template_search.search",
    "SearchResult": "skysieve.fstat.template_search.result",
    "Signal": "skysieve.fstat.demod.simulate",
    "TemplateBank": "skysieve.fstat.demod.bank",
    "TransientPlan": "skysieve.fstat.api",
    "TransientResult": "skysieve.fstat.result.map",
    "WindowSum": "skysieve.fstat.inputs.windows",
    "from_lal": "skysieve.fstat.pyfstat",
    "load_atoms": "skysieve.fstat.inputs.files",
    "merge": "skysieve.fstat.inputs.bins",
    "read_atoms": "skysieve.fstat.inputs.files",
    "read_sfts": "skysieve.fstat.sfts.files",
    "register_pyfstat": "skysieve.fstat.pyfstat",
    "save_atoms": "skysieve.fstat.inputs.files",
    "search": "skysieve.fstat.template_search.search",
    "search_sfts": "skysieve.fstat.demod.search",
    "simulate_sfts": "skysieve.fstat.demod.simulate",
    "synth_atoms": "skysieve.fstat.inputs.simulate",
    "transient_map": "skysieve.fstat.api",
    "write_atoms": "skysieve.fstat.inputs.files",
    "write_sfts": "skysieve.fstat.sfts.files",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
