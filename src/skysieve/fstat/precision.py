"""Which templates need more than the usual sums, by the range of their weights and by how loud their data are.

A recurrence that takes off what leaves a window keeps a residue: the rounding of all that the sum held since the bin
entered.  It is small beside the sums of the window where the weights are of one order, and it is everything where a
window holds nothing but SFTs of a far worse detector.  The test here is made once for the antenna factors of a point of
the sky and, for the data, once for each template: the kernels pay nothing for it.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import array_module, to_host
from skysieve.fstat.inputs.window_kinds import Algorithm

from .contract import CONDITION_BOUND, Bank, MapJob, Output, Spec, powers, scaled, span_of, weights_of_bins

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from skysieve.fstat.inputs.grid import Schedule

__all__ = ["DOUBLE", "EXACT", "USUAL", "divided", "levels_of", "loud_limit", "of_data", "put", "spec_of", "wide"]

USUAL, DOUBLE, EXACT = 0, 1, 2
"""Sums in the type asked for; the same in float64; no subtraction, a scale for each cell (float64)."""
RESIDUE = {"float32": 20.0, "float64": 3e2}
"""Largest weight that has just left the exponential windows of a start, over the weight that is in them, for which the
residue does not show.  Measured in float32, full grids of 480 and 1,500 bins, condition numbers up to 1e3: up to this
value errors are those of even weights, 3e-4 at most; at 80 they are 9e-4."""
QUICK = 3.0
"""The same when it is only bounded, by the ratio of the weights of the data."""
MOST = 1e4
"""Ratio of weights from which nothing is summed in float32 by a recurrence."""
RESIDUE_DOUBLE = 1e7
"""The same of sums in float64 when the answer is wanted in float32."""
RANGE = {"float32": 1e4, "float64": 1e3}
"""Largest ratio of weights for moments and Fourier transforms, which subtract in float64, by the type asked for; and
for sums in float32 that only add: products of sums in which one or two SFTs outweigh all others want more digits."""
RANGE_DOUBLE = 1e6
"""The same for moments and transforms when the answer is wanted in float32 but the sums' products are in float64."""
LOUD = {"float32": 30.0, "float64": 1e5}
"""Largest number in the data, over the root of the largest weight (the scale of the noise), for a recurrence."""
LOUD_DOUBLE = 1e9
WILD = {"float32": 1e16, "float64": 1e140}
"""The same for sums that only add: their squares must not overflow."""
FLOOR = {"float32": 1e-15, "float64": 1e-140}
"""Smallest sum of weights of a window, over the largest weight of a bin: products of two such sums must not
underflow."""
FEWEST = 16
"""Bins of a gap after which recurrences start anew (see ``cpu.exp`` and ``exp.cu``)."""
RENEWED = ((1, 8), (2, 8), (4, 20), (8, 20), (16, 260), (64, 260))
"""Bins after a gap: of these many the second number has been in the sums since they were formed anew."""
AFTER_GAPS = 50.0
"""Such sums are few: their roundings are by so much smaller than those of `RESIDUE`."""
SINGULAR = 1e3
"""A residue shows only where it is so many times as large in windows that are singular: they are the fallback."""
QUICK_GAPS = 3.0
"""By so much smaller must the ratio of weights be in data with gaps."""
EVEN = 1e3
"""Ratio of weights with which all sums are good, but for recurrences in float32."""
SCALES = 6
"""Durations of the grid for which the residue is bounded: so many evenly spaced, and so many in the logarithm."""
KNOWN = 16
"""Residues that are kept: those of other templates of one point of the sky."""
WIDE = 900
"""The power of two to which `wide` brings the largest weight: what is 600 decades smaller can still be held."""


def levels_of(job: MapJob, spec: Spec, data: bool = True) -> NDArray[np.int8]:
    """`USUAL`, `DOUBLE` or `EXACT` for each template, shape (B,).

    With ``data=False`` the data are not looked at: on a GPU a kernel does it.
    """
    banks = (job.bank, *job.detectors)
    largest = _span(job.bank)[0]
    level = np.zeros(job.n_templates, np.int8)
    for bank in banks:
        if not _even(spec, bank, largest):
            level = np.maximum(level, _of_weights(job, spec, bank, largest))
        if data:
            level = np.maximum(level, of_data(job, spec, bank))
    return level


def _span(bank: Bank) -> NDArray[np.float64]:
    """Largest and smallest weight of a bank, in the units of its source."""
    if bank.span is not None:
        return bank.span
    return span_of(weights_of_bins(bank.antenna), bank.occupied)


def _even(spec: Spec, bank: Bank, scale: NDArray[np.float64]) -> bool:
    """Whether the weights of all points of the sky are so even that nothing need be looked at more closely."""
    smallest, limit = _span(bank)[1], EVEN
    if spec.window.algorithm == Algorithm.RECURRENCE:
        limit = min(limit, QUICK / QUICK_GAPS * math.exp(2.0 * min(spec.window.efold, 10.0)))
        if spec.window.efold > 10:
            return False
    if smallest.size == 1 and scale.size == 1:
        return float(scale[0]) <= limit * float(smallest[0])
    return bool((scale <= limit * smallest).all())


def _of_weights(job: MapJob, spec: Spec, bank: Bank, scale: NDArray[np.float64]) -> NDArray[np.int8]:
    """By the antenna factors; ``scale`` is the largest weight of all detectors together."""
    algorithm, name = spec.window.algorithm, np.dtype(spec.dtype).name
    largest, smallest = _span(bank)
    some = largest > 0  # else the bank is empty: F is the fallback everywhere
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(some, largest / smallest, 1.0)
        least = np.where(some, smallest / scale, 1.0)
    if algorithm == Algorithm.RECURRENCE and not bank.occupied.all():
        least = least * np.exp(-2.0 * spec.window.efold)  # the last bins of a window that starts in a gap
    level = np.where(least >= FLOOR[name], USUAL, np.where(least >= FLOOR["float64"], DOUBLE, EXACT)).astype(np.int8)
    if algorithm in (Algorithm.MOMENTS, Algorithm.WEIGHTS):
        level[~(ratio <= RANGE[name])] = DOUBLE
        level[~(ratio <= RANGE_DOUBLE) | (least < FLOOR["float32"])] = EXACT
    elif algorithm == Algorithm.RUNNING_SUMS:
        level[(level == USUAL) & ~(ratio <= RANGE["float32"])] = DOUBLE if name == "float32" else USUAL
    else:
        quick = QUICK * np.exp(2.0 * min(spec.window.efold, 10.0)) / (1 if bank.occupied.all() else QUICK_GAPS)
        for k in np.flatnonzero(~(ratio <= quick) & (level < EXACT)):
            residue = _known_residue(job, bank, int(k), spec.window.efold)
            if not residue <= RESIDUE[name] or (name == "float32" and not ratio[k] <= MOST):
                good = name == "float32" and residue <= RESIDUE_DOUBLE
                level[k] = max(level[k], DOUBLE if good else EXACT)
    if name == "float64":
        level[level == DOUBLE] = EXACT
    return level if len(level) == job.n_templates else np.repeat(level, job.n_templates)


def of_data(job: MapJob, spec: Spec, bank: Bank) -> NDArray[np.int8]:
    """By the data, shape (B,): their largest number against the largest weight, and data in bins of no weight."""
    xp, name = array_module(bank.data), np.dtype(spec.dtype).name
    level = np.zeros(len(bank.data), np.int8)
    limit = loud_limit(spec)
    idle = None
    if spec.window.algorithm != Algorithm.RUNNING_SUMS and not bank.occupied.all():
        idle = bank.data[:, :, xp.asarray(np.flatnonzero(~bank.occupied))]
    flat = bank.data.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        quiet = float(flat @ flat) <= limit**2 or max(float(flat.max()), -float(flat.min())) <= limit
    if quiet and (idle is None or not bool(idle.any())):
        return level
    size = xp.maximum(bank.data.max(axis=(1, 2)), -bank.data.min(axis=(1, 2)))
    size = np.asarray(to_host(size), np.float64)
    # banks are scaled: the largest weight lies in [1/4, 1)
    level[~(size <= limit)] = DOUBLE if name == "float32" else EXACT
    level[~(size <= (WILD["float64"] if spec.window.algorithm == Algorithm.RUNNING_SUMS else LOUD_DOUBLE))] = EXACT
    if idle is not None:
        level[to_host((idle != 0).any(axis=(1, 2)))] = EXACT
    return level


_known: dict[tuple[int, float, bytes], tuple[Schedule, float]] = {}


def _known_residue(job: MapJob, bank: Bank, k: int, efold: float) -> float:
    """`_residue`, which is kept for the next template of this point of the sky."""
    antenna = to_host((bank if bank.source is None else bank.source).antenna[k])
    key = id(job.schedule), efold, hashlib.sha1(antenna.tobytes(), usedforsecurity=False).digest()
    held = _known.get(key)
    if held is None or held[0] is not job.schedule:
        if len(_known) >= KNOWN:
            _known.clear()
        held = _known[key] = job.schedule, _residue(job, bank, k, efold)
    return held[1]


def _residue(job: MapJob, bank: Bank, k: int, efold: float) -> float:
    """Largest weight that has just left a window over the weight in it, at some durations of the grid.

    A duration stands for the longer ones up to the next: where their windows hold but little weight, so do its own.
    """
    occupied = np.flatnonzero(bank.occupied)
    if occupied.size == 0:
        return 0.0
    a2, b2, ab = np.asarray(to_host((bank if bank.source is None else bank.source).antenna[k]), np.float64)
    weight = a2 + b2
    with np.errstate(divide="ignore", invalid="ignore"):
        single = (a2 / weight) * (b2 / weight) - (ab / weight) ** 2 > CONDITION_BOUND
    counts = np.where(single, 2, weight > 0)  # a bin that gives F by itself, or with another one
    worst = _after_gaps(weight, occupied) / AFTER_GAPS
    nearest = np.searchsorted(occupied, np.arange(-FEWEST, len(weight)))
    rows = np.flatnonzero(nearest < occupied.size) - FEWEST
    rows = rows[occupied[nearest[rows + FEWEST]] - rows < FEWEST]  # in longer gaps sums are formed anew
    rates = job.tatom / job.taus
    even = np.linspace(0, len(rates) - 1, SCALES).round().astype(int)
    geometric = np.searchsorted(job.taus, np.geomspace(job.taus[0], job.taus[-1], SCALES))
    for n in np.union1d(even, np.minimum(geometric, len(rates) - 1)):
        length = int(min(job.schedule.length[:, n].min(), len(weight)))
        if length > 0:
            worst = max(worst, residue_of(weight, counts, rows, float(rates[n]), length))
    return worst


def residue_of(
    weight: NDArray[np.float64], counts: NDArray[Any], rows: NDArray[np.int64], rate: float, length: int
) -> float:
    """The largest ``q^2L W(c + L) / (W(c) - q^2L W(c + L))``, W the sum of all weights from c on, decayed.

    Windows whose `counts` are below 2 are singular: there a residue shows only where it is `SINGULAR` times as large.
    """
    from scipy.signal import lfilter

    q = np.exp(-2.0 * rate)
    padded = np.concatenate([np.zeros(FEWEST), weight])
    sums = lfilter([1.0], [1.0, -q], padded[::-1])[::-1]
    some = rows[rows + length < len(weight)] + FEWEST
    left = np.exp(-2.0 * rate * length) * sums[some + length]
    # nothing inside (or nothing but rounding) counts where there is some: an empty window is the fallback
    inside = sums[some] - left
    upto = np.concatenate([np.zeros(FEWEST + 1, np.int64), np.cumsum(counts)])
    held = upto[some + length] - upto[some]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(left > 0, left / np.maximum(inside, 0), 0.0)
    return float(max(ratio[held > 1].max(initial=0.0), ratio[held == 1].max(initial=0.0) / SINGULAR))


def _after_gaps(weight: NDArray[np.float64], occupied: NDArray[np.int64]) -> float:
    """Largest ratio of the weight in the first bins after a gap, of which sums are formed anew, to that in fewer."""
    begin = occupied[np.diff(occupied, prepend=-FEWEST) >= FEWEST]
    begin = np.union1d(begin, occupied[:1])
    upto = np.concatenate([[0.0], np.cumsum(weight / weight.max())])

    def within(k: int) -> NDArray[np.float64]:
        return np.asarray(upto[np.minimum(begin + k, len(weight))] - upto[begin])

    worst = 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        for few, many in RENEWED:
            ratio = within(many) / within(few)
            worst = max(worst, float(np.where(np.isnan(ratio), np.inf, ratio).max()))
    return worst


def spec_of(spec: Spec, level: int) -> Spec:
    """What an engine for such templates computes."""
    return replace(spec, dtype=np.dtype(np.float64), sums="double" if level == DOUBLE else "exact")


def wide(job: MapJob, chosen: NDArray[np.int64], level: int) -> MapJob:
    """Some templates in float64, from the numbers of the atoms; scaled so that nothing of them is lost."""
    banks = [b if b.source is None else b.source for b in (b.part(chosen) for b in (job.bank, *job.detectors))]
    power = powers(_span(banks[0])[0]) + np.int32(WIDE // 2 if level == EXACT else 0)
    out = []
    for b in banks:
        own = power if len(b.antenna) == len(power) else power[:1]
        double = replace(b, antenna=b.antenna.astype(np.float64), data=b.data.astype(np.float64), source=None)
        with np.errstate(over="ignore", under="ignore"):
            out.append(scaled(double, own))
    return replace(job, bank=out[0], detectors=tuple(out[1:]))


def divided(
    job: MapJob,
    spec: Spec,
    levels: NDArray[np.int8],
    output: Output,
    run: Callable[[MapJob, int], Output],
    progress: Any,
) -> Output:
    """Templates by the sums that they need: ``run(part, level)`` gives the answers of some, which go to `output`."""
    done = 0
    for level in (USUAL, DOUBLE, EXACT):
        found = np.flatnonzero(levels == level)
        # of maps one at a time: those in float64 are held beside the map
        for at in np.split(found, found.size) if spec.keep_map and found.size else [found]:
            if at.size:
                put(output, at, run(job.part(at) if level == USUAL else wide(job, at, level), level))
                done += at.size
                if progress is not None:
                    progress(done, job.n_templates)
    return output


def loud_limit(spec: Spec) -> float:
    """Largest number in the (scaled) data for which the usual sums are good enough."""
    name = np.dtype(spec.dtype).name
    if spec.window.algorithm == Algorithm.RUNNING_SUMS:
        return WILD[name]
    if spec.window.algorithm == Algorithm.RECURRENCE:
        return LOUD[name]
    return LOUD_DOUBLE if name == "float32" else LOUD[name]


def put(output: Output, at: NDArray[np.int64], part: Output) -> None:
    """Write the answers of some templates, in the type of `output`."""
    with np.errstate(over="ignore"):
        for name in ("max_F", "index", "log_sum", "row_log", "column_log", "n_fallback", "line_max", "line_index"):
            target, values = getattr(output, name), getattr(part, name)
            if target is not None and values is not None:
                target[at] = values
        if output.F is not None and part.F is not None:
            xp: Any = array_module(output.F)
            output.F[xp.asarray(at)] = xp.asarray(part.F if xp is not np else to_host(part.F), dtype=output.F.dtype)
            output.max_F[at] = output.max_F[at].astype(output.F.dtype)
