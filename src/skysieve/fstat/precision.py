"""The precision that each template needs, from the range of its weights and the size of its data.

A recurrence that subtracts the bins that leave a window keeps a residue: the rounding errors of all bins that were ever
in the sum.  The residue is small compared with the sums of the window if all weights have the same order of magnitude.
It dominates if a window holds only SFTs of a far less sensitive detector.  The test runs once for the antenna factors
of a point of the sky and once for the data of each template, and not in the kernels.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import array_module, to_host
from skysieve.fstat.inputs.window_kinds import Algorithm

from .contract import CONDITION_BOUND, Bank, MapJob, Output, Spec, powers, scaled, span_of, weights_of_bins

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from skysieve.fstat.inputs.grid import Schedule

__all__ = [
    "DOUBLE", "EXACT", "USUAL", "copy_answers", "in_float64", "level_of_data", "levels_of", "loud_limit",
    "run_by_level", "spec_of",
]  # fmt: skip

USUAL, DOUBLE, EXACT = 0, 1, 2
"""Levels of precision.  `USUAL`: sums in the dtype of the call.  `DOUBLE`: the same in float64.  `EXACT`: float64
without any subtraction, with a scale for each cell."""
RESIDUE = {"float32": 400.0, "float64": 6e3}
"""Largest harmless `Residue.size` for the data of the bins that have left a window.
Measured in float32 on full grids of 480 and 1,500 bins (some 20 `roundings`) with condition numbers up to 1e3: at 400
errors are as for even weights, at most 3e-4; at 1,600 they are 9e-4."""
QUICK_GAPS = 3.0
"""In data with gaps, the quick test of weights takes windows as ending at this number of tau if they are longer: the
last SFTs of a window that starts in a gap have decayed too."""
FEW_ROUNDINGS = 8.0
"""`roundings` of windows that are not much longer than the longest gap in which sums are not recomputed."""
MOST = 1e4
"""Ratio of weights above which no recurrence runs in float32."""
RESIDUE_DOUBLE = 2e8
"""`RESIDUE` for sums in float64 whose result is stored in float32."""
RANGE = {"float32": 1e4, "float64": 1e3}
"""Largest ratio of weights for moments and Fourier transforms, which subtract in float64, by the dtype of the call.
The value of float32 also applies to float32 sums without subtraction: if one or two SFTs outweigh all others, products
of sums need more digits."""
RANGE_DOUBLE = 1e6
"""`RANGE` for moments and transforms if the result is stored in float32 and products of sums are in float64."""
LOUD = {"float32": 30.0, "float64": 1e5}
"""Largest number in the data for a recurrence, in units of the root of the largest weight (the scale of the noise)."""
UNEVEN = {"float32": 6.7, "float64": 6e3}
"""`LOUD` in units of the root of the weight of the same bin, for uneven weights."""
LOUD_DOUBLE = 1e9
"""`LOUD` for sums in float64 whose result is stored in float32."""
UNEVEN_DOUBLE = 3e5
"""`UNEVEN` for sums in float64 whose result is stored in float32."""
WILD = {"float32": 1e16, "float64": 1e140}
"""`LOUD` for sums without subtraction, whose squares must not overflow."""
FLOOR = {"float32": 1e-15, "float64": 1e-140}
"""Smallest sum of weights of a window, in units of the largest weight of a bin: products of two such sums must not
underflow."""
FEWEST = 16
"""Length in bins of a gap after which recurrences start again (see ``cpu/exp.py`` and ``exp.cu``)."""
RENEWED = ((1, 8), (2, 8), (4, 20), (8, 20), (16, 260), (64, 260))
"""Pairs (few, many): if a window holds only the first `few` bins after a gap, up to `many` bins have been in its sums
since they were last recomputed."""
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53}
"""Relative error of a rounded number."""
OWN = 4.0
"""Rounding errors, in units in the last place, that the sums of a window have without any residue."""
ACCURACY = {"float32": 3e-4, "float64": 1e-9}
"""Largest error of F, in units of max(1, F), that a residue may cause, by the dtype of the call."""
EVEN = 1e3
"""Ratio of weights up to which all sums are accurate except recurrences in float32."""
TURN = 8 * 3600
"""Seconds in which the Earth turns a detector far enough that the antenna factors of real SFTs determine F.  For 16
half-hour SFTs of single detectors and 600 points of the sky, the largest condition number was 113."""
NEARLY_SINGULAR = 1e3
"""Condition number of the SFTs of `TURN` seconds above which float32 has too few digits, for windows of any length."""
SCALES = 6
"""The residue is bounded at this number of evenly spaced durations and as many logarithmically spaced ones."""
SHORT = 64
"""Length in bins below which the residue is bounded at all lengths up to 8 and then at steps of a quarter."""
KNOWN = 16
"""Number of residues in the cache, which serves other templates at the same points of the sky."""
WIDE = 900
"""`in_float64` scales the largest weight to about this power of two for `EXACT`, so that weights 600 decades smaller
can still be represented."""


def levels_of(job: MapJob, spec: Spec, data: bool = True) -> NDArray[np.int8]:
    """`USUAL`, `DOUBLE` or `EXACT` for each template, shape (B,).

    With ``data=False`` the data are not examined; on a GPU a kernel does this.
    """
    banks = (job.bank, *job.detectors)
    largest = _span(job.bank)[0]
    level = np.zeros(job.n_templates, np.int8)
    for bank in banks:
        even = _even(job, spec, bank, largest)
        if not even:
            level = np.maximum(level, _of_weights(job, spec, bank, largest))
            level = np.maximum(level, _of_loud_bins(spec, bank))
        if data:
            level = np.maximum(level, level_of_data(spec, bank))
    if np.dtype(spec.dtype) == np.float32:
        level = np.where(_nearly_singular(job), np.maximum(level, DOUBLE), level)
    return level


def _nearly_singular(job: MapJob) -> NDArray[np.bool_]:
    """Whether the SFTs of any stretch of `TURN` seconds have a nearly singular antenna matrix: shape (B,) or (1,)."""
    antenna, length = job.bank.antenna, -(-TURN // job.tatom)
    if not job.bank.occupied.all():
        antenna = antenna[:, :, array_module(antenna).asarray(np.flatnonzero(job.bank.occupied))]
    whole = antenna.shape[2] // length * length
    if whole == 0:
        return np.zeros(1, bool)
    ones = array_module(antenna).ones(length, antenna.dtype)  # a product is faster than sums of a short axis
    sums = antenna[:, :, :whole].reshape(*antenna.shape[:2], -1, length) @ ones
    a2, b2, ab = np.moveaxis(np.asarray(to_host(sums), np.float64), 1, 0)
    weight = a2 + b2
    with np.errstate(divide="ignore", invalid="ignore"):
        determinant = (a2 / weight) * (b2 / weight) - (ab / weight) ** 2  # about 1 / condition number
    return np.asarray((determinant < 1 / NEARLY_SINGULAR).any(axis=1))


def _span(bank: Bank) -> NDArray[np.float64]:
    """Largest and smallest weight of a bank, in the units of its source."""
    if bank.span is not None:
        return bank.span
    return span_of(weights_of_bins(bank.antenna), bank.occupied)


def _even(job: MapJob, spec: Spec, bank: Bank, scale: NDArray[np.float64]) -> bool:
    """Whether the weights of all points of the sky are even enough that no further test is needed."""
    smallest, limit = _span(bank)[1], EVEN
    if spec.window.algorithm == Algorithm.RECURRENCE:
        limit = min(limit, _quick(job, spec, bank))
    if smallest.size == 1 and scale.size == 1:
        return float(scale[0]) <= limit * float(smallest[0])
    return bool((scale <= limit * smallest).all())


def _quick(job: MapJob, spec: Spec, bank: Bank) -> float:
    """A ratio of the largest and smallest weights up to which no residue of a recurrence needs to be bounded.

    Without gaps, the weight that leaves a window is at most ``q^2L`` times this ratio of the weight inside, and its
    rounding errors are then not above those of the window itself.  With gaps, a window may hold only its last SFTs, but
    not enough errors for a singular window to seem regular.
    """
    if not bank.occupied.all():
        regular = CONDITION_BOUND / (FEW_ROUNDINGS * UNIT["float32"])
        return min(math.exp(2.0 * min(spec.window.efold, QUICK_GAPS)), regular)
    lengths = job.schedule.length
    errors = 0.0
    for n in (0, -1):
        rate, length = job.tatom / float(job.taus[n]), max(1, int(lengths[:, n].min()))
        errors = max(errors, roundings(rate, length) * math.exp(-2.0 * rate * length))
    return OWN / errors if errors > 0 else math.inf


def _of_weights(job: MapJob, spec: Spec, bank: Bank, scale: NDArray[np.float64]) -> NDArray[np.int8]:
    """Levels that follow from the antenna factors; ``scale`` is the largest weight of the sum over all detectors."""
    algorithm, name = spec.window.algorithm, np.dtype(spec.dtype).name
    largest, smallest = _span(bank)
    some = largest > 0  # otherwise the bank is empty, and F is the fallback everywhere
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
        quick = _quick(job, spec, bank)
        for k in np.flatnonzero(~(ratio <= quick) & (level < EXACT)):
            residue = _known_residue(job, bank, int(k))
            if not residue.harmless(RESIDUE[name], name, name) or (name == "float32" and not ratio[k] <= MOST):
                good = name == "float32" and residue.harmless(RESIDUE_DOUBLE, "float64", name)
                level[k] = max(level[k], DOUBLE if good else EXACT)
    if name == "float64":
        level[level == DOUBLE] = EXACT
    return level if len(level) == job.n_templates else np.repeat(level, job.n_templates)


def level_of_data(spec: Spec, bank: Bank) -> NDArray[np.int8]:
    """Levels that follow from the data, shape (B,).

    The largest number in the data is compared with the largest weight, and bins without weight must hold no data.
    """
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


def _of_loud_bins(spec: Spec, bank: Bank) -> NDArray[np.int8]:
    """Levels that follow from data that are large for the weight of their own bin, shape (B,), for recurrences.

    `level_of_data` compares the data with the largest weight only, which is enough if the weights are even.  If they
    are not, the weight inside a window may be far smaller than the weight that has just left it.
    """
    level = np.zeros(len(bank.data), np.int8)
    if spec.window.algorithm != Algorithm.RECURRENCE:
        return level
    xp, name = array_module(bank.data), np.dtype(spec.dtype).name
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        size = xp.maximum(bank.data.max(axis=1), -bank.data.min(axis=1))
        size = xp.where(size > 0, size / xp.sqrt(weights_of_bins(bank.antenna)), 0)
    most = np.asarray(to_host(size.max(axis=1)), np.float64)
    level[~(most <= UNEVEN[name])] = DOUBLE if name == "float32" else EXACT
    level[~(most <= UNEVEN_DOUBLE)] = EXACT
    return level


@dataclass(frozen=True)
class Residue:
    """The largest residues of the windows of a template (see ``cpu_residue.py``).

    Attributes
    ----------
    size : float
        Residue of the weight of a window that is not singular, in units in the last place of the weight inside it.
    regular : float
        Relative error of the determinant of such a window, and thus of F, in units in the last place.
    singular : float
        Error of the determinant of a singular window, as a part of its distance from `CONDITION_BOUND`, in the same
        units.
    """

    size: float
    regular: float
    singular: float

    def harmless(self, most: float, sums: str, result: str) -> bool:
        """Whether sums of the dtype `sums` are accurate enough for a result of another dtype."""
        unit = UNIT[sums]
        return self.size <= most and self.regular * unit <= ACCURACY[result] and self.singular * unit <= 1.0


_known: dict[tuple[int, bytes], tuple[Schedule, Residue]] = {}


def _known_residue(job: MapJob, bank: Bank, k: int) -> Residue:
    """`_residue`, cached for other templates at this point of the sky."""
    antenna = to_host((bank if bank.source is None else bank.source).antenna[k])
    key = id(job.schedule), hashlib.sha1(antenna.tobytes(), usedforsecurity=False).digest()
    held = _known.get(key)
    if held is None or held[0] is not job.schedule:
        if len(_known) >= KNOWN:
            _known.clear()
        held = _known[key] = job.schedule, _residue(job, bank, k)
    return held[1]


def _residue(job: MapJob, bank: Bank, k: int) -> Residue:
    """The residues of the windows of some durations of the grid, and of windows that start in a gap.

    Each of these durations represents the longer ones up to the next: if a longer window holds little weight, so does
    a window of this duration.  Gaps matter most where they are about as long as the window, so that all short lengths
    are examined closely.
    """
    from .cpu_residue import residue_of_windows

    worst = np.zeros(3)
    occupied = np.flatnonzero(bank.occupied)
    if occupied.size == 0:
        return Residue(*worst)
    x = np.ascontiguousarray(to_host((bank if bank.source is None else bank.source).antenna[k]), np.float64)
    scale = (x[0] + x[1]).max()
    x = x / scale if scale > 0 else x  # products must not overflow
    upto = np.concatenate([np.zeros(1, np.int64), np.cumsum(x[0] + x[1] > 0)])
    following = np.append(occupied, 2 * x.shape[1] + FEWEST)[np.searchsorted(occupied, np.arange(x.shape[1]))]
    _after_gaps(x, occupied, worst)
    rates, lengths = job.tatom / job.taus, np.minimum(job.schedule.length.min(axis=0), x.shape[1])
    for n in _durations(job.taus, lengths):
        if lengths[n] > 0:
            rounded = roundings(float(rates[n]), int(lengths[n]))
            length = int(lengths[n])
            residue_of_windows(
                x, upto, following, FEWEST, float(rates[n]), length, rounded, OWN, CONDITION_BOUND, worst
            )
    return Residue(*worst.tolist())


def _durations(taus: NDArray[np.float64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The durations at which residues are examined, as columns of the grid."""
    last = taus.size - 1
    even = np.linspace(0, last, SCALES).round().astype(np.int64)
    geometric = np.searchsorted(taus, np.geomspace(taus[0], taus[-1], SCALES))
    wanted = np.unique(np.concatenate([np.arange(1, 9), np.geomspace(8, SHORT, 10).astype(np.int64)]))
    short = np.searchsorted(lengths, wanted[wanted <= lengths[-1]])
    return np.unique(np.minimum(np.concatenate([even, geometric, short]), last))


def roundings(rate: float, length: int) -> float:
    """Rounding errors of a bin that leaves a window, in units in the last place of its decayed weight.

    On a CPU the decay ``q^2 = 1 - p`` is applied `length` times, and p has an error of half a unit.  On a GPU the
    weight is ``2^y`` twice, with y of up to 8, or 16 bins if these are more, of which half a unit is lost.  In addition
    each step rounds the sums that hold the bin.
    """
    p = -math.expm1(-2.0 * rate)
    decayed = length * p / 2.0 * math.exp(min(2.0 * rate, 600.0))
    exponent = math.log(2.0) * max(8.0, 16.0 * rate / math.log(2.0))
    return max(decayed, exponent) + math.sqrt(length) / 2.0


def _after_gaps(x: NDArray[np.float64], occupied: NDArray[np.int64], worst: NDArray[np.float64]) -> None:
    """Add the residues of the first `many` bins after a gap to the windows of the first `few`, as in `RENEWED`.

    Sums fall from the larger to the smaller in equal steps, each of which rounds them.
    """
    from .cpu_residue import note

    begin = occupied[np.diff(occupied, prepend=-FEWEST) >= FEWEST]
    begin = np.union1d(begin, occupied[:1])
    upto = np.concatenate([np.zeros((3, 1)), np.cumsum(x, axis=1)], axis=1)
    for few, many in RENEWED:
        short, whole = (upto[:, np.minimum(begin + k, x.shape[1])] - upto[:, begin] for k in (few, many))
        left = whole[:2].sum(axis=0) - short[:2].sum(axis=0)
        for (A, B, C), gone in zip(short.T.tolist(), left.tolist(), strict=True):
            note(A, B, C, gone, math.sqrt(many / 3.0) / 2.0, OWN, CONDITION_BOUND, worst)


def spec_of(spec: Spec, level: int) -> Spec:
    """The `Spec` of an engine for templates of a level."""
    return replace(spec, dtype=np.dtype(np.float64), sums="double" if level == DOUBLE else "exact")


def in_float64(job: MapJob, chosen: NDArray[np.int64], level: int) -> MapJob:
    """The chosen templates in float64, made from the numbers of the atoms and scaled so that none underflows."""
    banks = [b if b.source is None else b.source for b in (b.part(chosen) for b in (job.bank, *job.detectors))]
    power = powers(_span(banks[0])[0]) + np.int32(WIDE // 2 if level == EXACT else 0)
    out = []
    for b in banks:
        own = power if len(b.antenna) == len(power) else power[:1]
        double = replace(b, antenna=b.antenna.astype(np.float64), data=b.data.astype(np.float64), source=None)
        with np.errstate(over="ignore", under="ignore"):
            out.append(scaled(double, own))
    return replace(job, bank=out[0], detectors=tuple(out[1:]))


def run_by_level(
    job: MapJob,
    spec: Spec,
    levels: NDArray[np.int8],
    output: Output,
    run: Callable[[MapJob, int], Output],
    progress: Any,
) -> Output:
    """Run the templates of each level by ``run(part, level)``, and collect the answers in `output`."""
    done = 0
    for level in (USUAL, DOUBLE, EXACT):
        found = np.flatnonzero(levels == level)
        # one map at a time, since a float64 map needs memory in addition to the output
        for at in np.split(found, found.size) if spec.keep_map and found.size else [found]:
            if at.size:
                copy_answers(output, at, run(job.part(at) if level == USUAL else in_float64(job, at, level), level))
                done += at.size
                if progress is not None:
                    progress(done, job.n_templates)
    return output


def loud_limit(spec: Spec) -> float:
    """Largest number in the scaled data for which the usual sums are accurate enough."""
    name = np.dtype(spec.dtype).name
    if spec.window.algorithm == Algorithm.RUNNING_SUMS:
        return WILD[name]
    if spec.window.algorithm == Algorithm.RECURRENCE:
        return LOUD[name]
    return LOUD_DOUBLE if name == "float32" else LOUD[name]


def copy_answers(output: Output, at: NDArray[np.int64], part: Output) -> None:
    """Write the answers of the templates `at` to `output`, in its dtype."""
    with np.errstate(over="ignore"):
        for field in fields(Output):
            target, values = getattr(output, field.name), getattr(part, field.name)
            if field.name != "F" and target is not None and values is not None:
                target[at] = values
        if output.F is not None and part.F is not None:
            xp: Any = array_module(output.F)
            output.F[xp.asarray(at)] = xp.asarray(part.F if xp is not np else to_host(part.F), dtype=output.F.dtype)
            output.max_F[at] = output.max_F[at].astype(output.F.dtype)
