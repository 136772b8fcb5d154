"""Expected seconds of each CPU method, from which ``method="auto"`` chooses.

The form follows the work done; the constants were fitted by hand to timings of one core (``benchmarks/periodogram.py
--only selection`` prints how far the choice is from the best on other sizes).  Only their ratios matter, and those
move little between machines, because all methods are limited by the same vector units.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.periodogram.contract import METHODS
from skysieve.periodogram.numerics.nufft import KERNELS, MAX_FOLDS, TAPS, M

from .comb_simd import LANES
from .direct import PER_COARSE

if TYPE_CHECKING:
    from numpy.typing import NDArray

GROUPS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256])
"""Choices of the number of groups of LANES combs: more make wider bands, longer tables, more folds."""


FINUFFT_FREQUENCIES = 2_000_000
"""Above this number of frequencies "auto" does not choose finufft, which stores some 110 bytes for each."""


@dataclass(frozen=True)
class Costs:
    """Constants of the cost model, in nanoseconds."""

    comb_object: float  # per object
    comb_point: float  # kernel weights, per point
    comb_band: float  # per band
    comb_spread: float  # per band and point
    comb_group: float  # per band and group, without folding
    comb_fold: float  # per band, group and further circle, all channels counted
    comb_few: float  # per frequency, over the fourth power of the points: powers that are computed again by exact sums
    direct_object: float
    direct_point: float  # the table of fine phases
    direct_frequency: float
    direct_pair: float
    finufft_object: float
    finufft_point: float
    finufft_frequency: float


COSTS = {
    np.dtype(np.float64): Costs(10e3, 60, 1000, 21, 19e3, 420, 45e3, 10e3, 280, 12.5, 0.42, 105e3, 168, 83),
    np.dtype(np.float32): Costs(10e3, 70, 1000, 8.5, 12e3, 390, 160e3, 10e3, 280, 14, 0.27, 105e3, 150, 63),
}


def fold_counts(combs: Any, cycles: Any) -> tuple[Any, Any]:
    """Number of circles of ``M`` cells that the times of a series of ``cycles = df T`` cover at f and at 2f."""
    ceil = _ceil_for(cycles)
    span = M * combs * cycles
    return ceil((span + TAPS + 1) / M), ceil((2 * span + 1.5 * TAPS + 1) / M)


def _ceil_for(x: Any) -> Callable[[Any], Any]:
    """A function that rounds up: NumPy takes ten times as long for Python's own numbers."""
    return math.ceil if type(x) is float else np.ceil


def _comb_ns(c: Costs, modes: int, groups: Any, n: Any, nf: Any, cycles: Any) -> tuple[Any, Any, Any]:
    """Nanoseconds of an object from its number of groups of combs, the circles that it needs at f, and its bands."""
    combs = groups * LANES
    folds1, folds2 = fold_counts(combs, cycles)
    bands = _ceil_for(cycles)(nf / (modes * combs))
    folding = c.comb_fold * (2 * (folds1 - 1) + (folds2 - 1))
    per_band = c.comb_band + c.comb_spread * n + groups * (c.comb_group + folding)
    once = c.comb_object + c.comb_point * n + c.comb_few * nf / (1.0 * n) ** 4
    return once + bands * per_band, folds1, bands


def best_combs(n: Any, nf: Any, cycles: Any, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Number of combs for each object, and the expected seconds (inf if no number of combs is possible).

    It depends on the object alone, so that an object's result does not depend on the others in the batch.
    """
    ns, folds1, _ = _comb_ns(COSTS[dtype], KERNELS[dtype].modes, GROUPS[:, None], n, nf, cycles)
    ns = np.where(folds1 <= MAX_FOLDS, ns, np.inf)
    return LANES * GROUPS[ns.argmin(axis=0)], ns.min(axis=0) * 1e-9


def _best_combs_of_one(n: float, nf: int, cycles: float, dtype: np.dtype[Any]) -> tuple[int, float]:
    """As `best_combs`, of one object."""
    combs, least = LANES * int(GROUPS[0]), math.inf
    for groups in GROUPS.tolist():
        ns, folds1, bands = _comb_ns(COSTS[dtype], KERNELS[dtype].modes, groups, n, nf, cycles)
        if folds1 > MAX_FOLDS:
            break
        if ns < least:
            combs, least = groups * LANES, ns
        if bands == 1:  # further groups only add to the cost of one band
            break
    return combs, least * 1e-9


def choose(
    n: NDArray[Any], nf: NDArray[Any], cycles: NDArray[Any], dtype: np.dtype[Any], method: str, regular: bool
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.float64]]:
    """Method (index in METHODS), combs and expected seconds of each object.

    Parameters
    ----------
    n, nf, cycles : ndarray
        Points, frequencies and ``df T`` of each object.
    method : str
        The user's; ``"nufft"`` turns to ``"finufft"`` where the grid is too coarse for the comb (``df T`` over
        about 1.9).
    """
    if len(n) == 1 and math.isfinite(cycles[0]):
        one = float(n[0]), int(nf[0]), float(cycles[0])
        name, combs, seconds = _choose_one(*one, dtype, method, regular)
        return np.array([METHODS.index(name)], np.uint8), np.array([combs]), np.array([seconds])
    direct, finufft = _direct_and_finufft(n, nf, dtype, np.ceil)
    if not regular:
        return np.full(len(n), METHODS.index("direct"), np.uint8), np.full(len(n), LANES), 20 * direct
    combs, comb = best_combs(n, nf, cycles, dtype)
    found = _allowed(method, direct, comb, finufft, nf, np.where)
    names = np.array([METHODS.index(name) for name in found], np.uint8)
    table = np.array(list(found.values()))
    return names[table.argmin(axis=0)], combs, table.min(axis=0)


def _choose_one(
    n: float, nf: int, cycles: float, dtype: np.dtype[Any], method: str, regular: bool
) -> tuple[str, int, float]:
    """As `choose`, of one object, with Python's numbers; the name of the method."""
    direct, finufft = _direct_and_finufft(n, nf, dtype, math.ceil)
    if not regular:
        return "direct", LANES, 20 * direct
    combs, comb = _best_combs_of_one(n, nf, cycles, dtype)
    found = _allowed(method, direct, comb, finufft, nf, lambda test, yes, no: yes if test else no)
    best = min(found, key=found.__getitem__)
    return best, combs, found[best]


def _direct_and_finufft(n: Any, nf: Any, dtype: np.dtype[Any], ceil: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Seconds of direct sums, and by finufft."""
    c, whole = COSTS[dtype], ceil(nf / PER_COARSE) * PER_COARSE
    direct = (c.direct_object + c.direct_point * n + (c.direct_frequency + c.direct_pair * n) * whole) * 1e-9
    return direct, (c.finufft_object + c.finufft_point * n + c.finufft_frequency * nf) * 1e-9


def _allowed(
    method: str, direct: Any, comb: Any, finufft: Any, nf: Any, where: Callable[[Any, Any, Any], Any]
) -> dict[str, Any]:
    """Seconds of each method, of which the fastest is chosen; infinite where the method cannot be used."""
    if method == "nufft":
        return {"nufft": comb, "finufft": where(comb < math.inf, math.inf, finufft)}
    if method == "auto":
        affordable = where(nf <= FINUFFT_FREQUENCIES, finufft, math.inf)
        return {"direct": direct, "nufft": comb, "finufft": affordable}
    return {method: {"direct": direct, "finufft": finufft}[method]}
