"""Transient F-statistic maps: gravitational waves that last for hours to months."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skysieve.core.lazy import lazy_names

if TYPE_CHECKING:
    from skysieve.fstat.api import TransientPlan, transient_map
    from skysieve.fstat.atoms import Atoms, merge
    from skysieve.fstat.batch import AtomsBatch
    from skysieve.fstat.bsgl import BSGL
    from skysieve.fstat.grid import Grid
    from skysieve.fstat.interop import from_lal, register_pyfstat
    from skysieve.fstat.io import load_atoms, read_atoms, save_atoms, write_atoms
    from skysieve.fstat.result import TransientResult
    from skysieve.fstat.searching import search
    from skysieve.fstat.searchresult import SearchResult
    from skysieve.fstat.simulate import Injection, synth_atoms
    from skysieve.fstat.windows import WindowSum

__all__ = [
    "BSGL",
    "Atoms",
    "AtomsBatch",
    "Grid",
    "Injection",
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
    "BSGL": "skysieve.fstat.bsgl",
    "Atoms": "skysieve.fstat.atoms",
    "AtomsBatch": "skysieve.fstat.batch",
    "Grid": "skysieve.fstat.grid",
    "Injection": "skysieve.fstat.simulate",
    "SearchResult": "skysieve.fstat.searchresult",
    "TransientPlan": "skysieve.fstat.api",
    "TransientResult": "skysieve.fstat.result",
    "WindowSum": "skysieve.fstat.windows",
    "from_lal": "skysieve.fstat.interop",
    "load_atoms": "skysieve.fstat.io",
    "merge": "skysieve.fstat.atoms",
    "read_atoms": "skysieve.fstat.io",
    "register_pyfstat": "skysieve.fstat.interop",
    "save_atoms": "skysieve.fstat.io",
    "search": "skysieve.fstat.searching",
    "synth_atoms": "skysieve.fstat.simulate",
    "transient_map": "skysieve.fstat.api",
    "write_atoms": "skysieve.fstat.io",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
