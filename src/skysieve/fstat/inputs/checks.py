"""Checks that a map and a search share: memory, and windows that hold too few SFTs."""

from __future__ import annotations

import numpy as np

from skysieve.core.errors import MemoryBudgetError
from skysieve.core.memory import available_host_memory, parse_budget

from .grid import Binning, Grid, Schedule
from .windows import Window

LENIENT = "strict=False (--not-strict)"
"""How error messages name the option that gives NaN in cells with fewer than two SFTs."""
SMALL_MAP = 2**26
"""Below this size of a map, in bytes, skip the query of free memory: it takes longer than a small map."""


def refuse_map(shape: tuple[int, int], need: int, lal: bool, memory: str | float | None) -> None:
    """Raise `MemoryBudgetError` if maps of ``need`` bytes do not fit into the host's memory, before allocating them."""
    rows, columns = shape
    if memory is None and need <= SMALL_MAP:
        return
    budget = parse_budget(memory, available_host_memory(), default=0.8)
    if need > budget:
        hint = (
            "compat='lalpulsar' needs the map; larger dt0 and dtau make it smaller"
            if lal
            else "keep_map=False avoids it"
        )
        raise MemoryBudgetError(f"the map of {rows} x {columns} cells ({hint})", need, budget)


def refuse_short(bins: Binning, grid: Grid, window: Window, s: Schedule) -> None:
    """Raise ValueError for the first cell whose window holds fewer than two SFTs.

    Windows that begin before the data may hold fewer, if a longer one of the same start time holds two.
    """
    if bins.n < 2:
        raise ValueError(f"atoms hold one SFT; a transient window needs two ({LENIENT} gives NaN)")
    late, end = np.flatnonzero(s.late), bins.t_start + bins.n * bins.tatom
    if late.size and s.first[late[0]] <= 0:
        longest = int(s.length[s.group[late[0]], -1])
        raise ValueError(
            f"grid: t0={grid.t0s[late[0]]} and tau={grid.taus[-1]}, the longest, leave fewer than two SFTs after the "
            f"start of the data at {bins.t_start}; the first usable t0 is about "
            f"{bins.t_start + (2 - longest) * bins.tatom} ({LENIENT} gives NaN in such cells)"
        )
    if late.size:
        raise ValueError(
            f"grid: t0={grid.t0s[late[0]]} leaves fewer than two SFTs before the end of the data at {end}; the "
            f"last usable t0 is about {end - 2 * bins.tatom} ({LENIENT} gives NaN in such cells)"
        )
    if s.valid_from.max() > 0:
        reach = "" if window.efold == 1 else f" (the window ends at {window.efold:g} tau)"
        raise ValueError(
            f"grid: tau={grid.taus[0]} holds fewer than two SFTs of {bins.tatom} s{reach}; "
            f"{LENIENT} gives NaN in such cells"
        )
