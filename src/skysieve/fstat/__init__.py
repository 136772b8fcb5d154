"""Transient F-statistic maps: gravitational waves that last for hours to months."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skysieve.core.lazy import lazy_names

if TYPE_CHECKING:
    from skysieve.fstat.inputs.atoms import Atoms
    from skysieve.fstat.inputs.bins import merge
    from skysieve.fstat.inputs.files import load_atoms, read_atoms, save_atoms, write_atoms
    from skysieve.fstat.inputs.grid import Grid
    from skysieve.fstat.inputs.simulate import Injection, synth_atoms
    from skysieve.fstat.inputs.windows import WindowSum
    from skysieve.fstat.result.map import TransientResult
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
    "Grid",
    "Injection",
    "SearchPlan",
    "SearchResult",
    "TransientPlan",
    "TransientResult",
    "WindowSum",
    "from_lal",
    "load_atoms",
    "merge",
    "read_atoms",
    "register_pyfstat",
    "save_atoms",
    "search",
    "synth_atoms",
    "transient_map",
    "write_atoms",
]

_HOMES = {
    "BSGL": "skysieve.fstat.template_search.bsgl",
    "Atoms": "skysieve.fstat.inputs.atoms",
    "AtomsBatch": "skysieve.fstat.template_search.batch",
    "Grid": "skysieve.fstat.inputs.grid",
    "Injection": "skysieve.fstat.inputs.simulate",
    "SearchPlan": "skysieve.fstat.template_search.search",
    "SearchResult": "skysieve.fstat.template_search.result",
    "TransientPlan": "skysieve.fstat.api",
    "TransientResult": "skysieve.fstat.result.map",
    "WindowSum": "skysieve.fstat.inputs.windows",
    "from_lal": "skysieve.fstat.pyfstat",
    "load_atoms": "skysieve.fstat.inputs.files",
    "merge": "skysieve.fstat.inputs.bins",
    "read_atoms": "skysieve.fstat.inputs.files",
    "register_pyfstat": "skysieve.fstat.pyfstat",
    "save_atoms": "skysieve.fstat.inputs.files",
    "search": "skysieve.fstat.template_search.search",
    "synth_atoms": "skysieve.fstat.inputs.simulate",
    "transient_map": "skysieve.fstat.api",
    "write_atoms": "skysieve.fstat.inputs.files",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
