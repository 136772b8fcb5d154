"""Aliases among peaks, by the day, the lunar month, the year, and their harmonics.

Sampling with a rhythm D (cycles a day) lets a signal at f also appear at f - D, f + D and D - f, as strongly as the
window function is high at D (VanderPlas 2018, section 5).  So two peaks are called aliases when their difference
or sum is such a rhythm within their width *and* the window function of these times is high at it.
Pure NumPy; a batch is one call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntFlag
from functools import lru_cache, reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import to_host

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from skysieve.periodogram.lightcurves.sources import CurveSet

    from .result import LombScargleResult

WIDTH = 0.5
"""Largest deviation of two peaks from a rhythm, in parts of 1/T."""
RESOLVED = 1.5
"""Least number of cycles of a rhythm in the time span that distinguish it from its neighbours."""
LOUD, ABOVE_CHANCE = 0.1, 9.0
"""Least power of the window function (1 at frequency 0), and least ratio to its mean for random times,
sum(w^2): random times pass that with the probability exp(-9)."""
BLOCK_ROWS = 2**20


class Alias(IntFlag):
    """What may cause a peak besides a signal at its own frequency."""

    NONE = 0
    DAY = 1
    MONTH = 2
    YEAR = 4
    MULTIPLE = 8
    """Its frequency is 2 or 3 times that of a higher peak, or a half or a third of it."""
    SAMPLING = 16
    """It is at a rhythm of the sampling itself, where instruments cause signals."""


@dataclass(frozen=True)
class Period:
    """A period of the sky that the times of observations follow.

    Attributes
    ----------
    days : float
        Its length.
    unit : str
        The word for it in a relation, such as "yr" in "1/yr".
    flag : Alias
    """

    days: float
    unit: str
    flag: Alias


DAY = Period(1.0, "d", Alias.DAY)
SLOW = (Period(365.25, "yr", Alias.YEAR), Period(29.530589, "month", Alias.MONTH))
"""The year and the synodic month, alone or beside harmonics of the day: 1/d + 1/yr is the sidereal day."""
MOST_DAYS, MOST_ALONE, MOST_BESIDE = 4, 4, 2
"""Highest harmonics: of the day; of a slow period alone; of a slow period beside a harmonic of the day."""

_MULTIPLE, _SAMPLING = np.uint8(Alias.MULTIPLE), np.uint8(Alias.SAMPLING)


@dataclass(frozen=True)
class Rhythms:
    """Frequencies of the sampling in cycles a day, with their names."""

    frequency: NDArray[np.float64]
    flag: NDArray[np.uint8]
    name: tuple[str, ...]
    needs: NDArray[np.float64]
    """Least time span, in days, that distinguishes each from its neighbours."""


def _term(k: int, unit: str) -> str:
    return f"{'+' if k > 0 else '-'} {abs(k)}/{unit}"


@lru_cache(maxsize=1)
def rhythms() -> Rhythms:
    """The harmonics of the day, with those of the slow periods to either side, and of these alone."""
    rows: list[tuple[float, Alias, str, float]] = []
    for days in range(MOST_DAYS + 1):
        for slow, k in [(SLOW[0], 0), *((s, k) for s in SLOW for k in range(-MOST_ALONE, MOST_ALONE + 1) if k)]:
            if days and abs(k) > MOST_BESIDE:
                continue
            frequency = days / DAY.days + k / slow.days
            if frequency <= 0:
                continue
            terms = [(n, period) for n, period in ((days, DAY), (k, slow)) if n]
            flag = reduce(or_, (period.flag for _, period in terms))
            needs = RESOLVED * max(period.days for _, period in terms)
            name = " ".join(_term(n, period.unit) for n, period in terms).removeprefix("+ ")
            rows.append((frequency, flag, name, needs))
    rows.sort(key=lambda row: row[0])
    values, flags, names, spans = zip(*rows, strict=True)
    return Rhythms(np.array(values), np.array(flags, np.uint8), tuple(names), np.array(spans))


@dataclass(frozen=True)
class Aliases:
    """Alias flags of the peaks of n objects, k each; or of one object's.

    Attributes
    ----------
    flag : numpy.ndarray, uint8
        `Alias` of each peak, relative to the higher peaks of its object (SAMPLING: of itself).
    of : numpy.ndarray, int64
        The higher peak (counted from 0) that it mirrors, or -1.
    text : numpy.ndarray of str
        The relation in words, such as ``"#1 + 1/yr"`` for a peak one cycle a year above the highest; "" for none.
    window : numpy.ndarray, float64
        Power of the window function at the rhythm, 0 to 1; NaN where none is flagged.
    """

    flag: NDArray[np.uint8]
    of: NDArray[np.int64]
    text: NDArray[np.str_]
    window: NDArray[np.float64]

    def __getitem__(self, i: Any) -> Aliases:
        return Aliases(self.flag[i], self.of[i], self.text[i], self.window[i])


def window_power(
    t: NDArray[Any], weight: NDArray[Any], offsets: NDArray[np.int64], which: NDArray[np.int64], f: NDArray[Any]
) -> NDArray[np.float64]:
    """``|sum w exp(2 pi i f t)|^2`` of the objects ``which``, each at one frequency of its own (weights sum to 1)."""
    out = np.empty(len(which))
    counts = np.diff(offsets)[which]
    ends = np.cumsum(counts)
    first = 0
    while first < len(which):
        done = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, done + BLOCK_ROWS, side="right")))
        n = counts[first:stop]
        starts = np.concatenate([[0], np.cumsum(n)[:-1]])
        rows = np.arange(int(n.sum())) + np.repeat(offsets[which[first:stop]] - starts, n)
        phase = np.repeat(f[first:stop], n) * t[rows]
        angle, w = 2 * np.pi * (phase - np.rint(phase)), weight[rows]
        out[first:stop] = np.add.reduceat(w * np.cos(angle), starts) ** 2
        out[first:stop] += np.add.reduceat(w * np.sin(angle), starts) ** 2
        first = stop
    return out


def clean_rows(
    t: Any, dy: Any, offsets: NDArray[np.int64], usable: NDArray[np.bool_] | None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Times from each object's start, weights that sum to 1 (0 for rows not used), sum of their squares."""
    good = np.isfinite(t) if usable is None else np.isfinite(t) & usable
    if dy is not None:
        good &= np.isfinite(dy) & (np.asarray(dy) > 0)
    counts = np.diff(offsets)
    filled = np.flatnonzero(counts)
    starts = offsets[:-1][filled]

    def summed(x: NDArray[Any]) -> NDArray[Any]:
        total = np.zeros(len(counts))
        total[filled] = np.add.reduceat(x, starts)
        return total

    early, least = np.zeros(len(counts)), np.ones(len(counts))
    early[filled] = np.minimum.reduceat(np.where(good, t, np.inf), starts)
    relative = np.where(good, t - np.repeat(np.where(np.isfinite(early), early, 0.0), counts), 0.0)
    weight = good.astype(np.float64)
    if dy is not None:
        errors = np.where(good, dy, np.inf)
        least[filled] = np.minimum.reduceat(errors, starts)
        weight = (np.repeat(np.where(np.isfinite(least), least, 1.0), counts) / errors) ** 2
    total = summed(weight)
    weight = weight / np.repeat(np.where(total > 0, total, 1.0), counts)
    return relative, weight, summed(weight**2)


def find_aliases(
    t: ArrayLike,
    frequency: ArrayLike,
    span: ArrayLike,
    dy: ArrayLike | None = None,
    *,
    offsets: ArrayLike | None = None,
    usable: NDArray[np.bool_] | None = None,
) -> Aliases:
    """Alias flags of the peaks of one light curve or of many.

    Parameters
    ----------
    t : array_like, shape (n_rows,)
        Times in days, objects one after the other.
    frequency : array_like, shape (k,) or (n, k)
        Peaks in cycles a day, the highest first; NaN past the last.
    span : float or array_like, shape (n,)
        Time spans in days.
    dy : float or array_like, shape (n_rows,), optional
        Errors: the window function is weighted by ``dy**-2``.
    offsets : array_like, shape (n + 1,), optional
        Rows of each object; one object without it.
    usable : numpy.ndarray of bool, shape (n_rows,), optional
        Rows that the search used; rows with non-finite `t` or `dy` are left out anyway.

    Returns
    -------
    Aliases
        In the shape of `frequency`.

    Examples
    --------
    Two peaks one cycle a day apart, seen at night only:

    >>> rng = np.random.default_rng(0)
    >>> t = np.repeat(np.arange(60), 4) + rng.uniform(0, 0.3, 240)
    >>> a = find_aliases(t, [0.31, 1.31, 0.77], 60.0)
    >>> [Alias(f).name for f in a.flag], a.of.tolist(), str(a.text[1])
    (['NONE', 'DAY', 'NONE'], [-1, 0, -1], '#1 + 1/d')
    """
    peaks = np.asarray(frequency, np.float64)
    single = peaks.ndim == 1
    peaks = np.atleast_2d(peaks)
    n, k = peaks.shape
    times = np.asarray(t, np.float64)
    bounds = np.array([0, times.size]) if offsets is None else np.asarray(offsets, np.int64)
    if len(bounds) != n + 1 or bounds[-1] != times.size:
        raise ValueError(
            f"offsets end at {bounds[-1]} and have {len(bounds) - 1} objects: expected {times.size} and {n}"
        )
    spans = np.broadcast_to(np.asarray(span, np.float64), (n,))
    errors = None if dy is None else np.broadcast_to(np.asarray(dy, np.float64), times.shape)
    out = Aliases(
        np.zeros((n, k), np.uint8), np.full((n, k), -1, np.int64), np.full((n, k), "", "<U24"), np.full((n, k), np.nan)
    )
    relative, weight, chance = clean_rows(times, errors, bounds, usable)

    def is_loud(objects: NDArray[Any], f: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        power = window_power(relative, weight, bounds, objects, f)
        return power >= np.maximum(LOUD, ABOVE_CHANCE * chance[objects]), power

    held = np.flatnonzero(np.isfinite(peaks).any(axis=0))
    peaks = peaks[:, : held[-1] + 1 if held.size else 0]  # columns of peaks that no object has
    for low in range(peaks.shape[1]):
        _sampling(out, peaks, spans, low, is_loud)
        for high in range(low):  # the highest peak that explains another is reported
            _mirrors(out, peaks, spans, low, high, is_loud)
    _multiples(out, peaks, spans)
    return out[0] if single else out


def days_in(unit: Any) -> float:
    """Days in a unit of time; 1 for None.

    Raises
    ------
    ValueError
        If it is no unit of time.
    """
    if unit is None:
        return 1.0
    from astropy.units import UnitConversionError, day

    try:
        return float(unit.to(day))
    except UnitConversionError:
        raise ValueError(
            f"t is in {unit}, which is no unit of time; aliases (unless aliases=False) and fmax='auto' need one"
        ) from None


def aliases_of(result: LombScargleResult, curves: CurveSet) -> Aliases:
    """See `LombScargleResult.aliases`."""
    source, peaks = curves.source, result.peaks
    n = source.n_objects
    if n != (1 if result.single else len(result)) or curves.single != result.single:
        searched = "one light curve was" if result.single else f"{len(result)} light curves were"
        raise ValueError(f"t and y hold {n} light curve{'s'[: n != 1]}, but {searched} searched")
    scale = days_in(curves.units.time)
    t, y, dy, offsets = source.read(0, n)
    t, y, dy = to_host(t), to_host(y), None if dy is None else to_host(dy)
    frequency = np.asarray(getattr(peaks.frequency, "value", peaks.frequency), np.float64).reshape(n, -1)
    span = np.atleast_1d(np.asarray(getattr(result.span, "value", result.span), np.float64))
    found = find_aliases(t * scale, frequency / scale, span * scale, dy, offsets=offsets, usable=np.isfinite(y))
    return found[0] if result.single else found


Loud = Callable[["NDArray[Any]", "NDArray[Any]"], tuple["NDArray[np.bool_]", "NDArray[np.float64]"]]


def _nearest(distance: NDArray[Any], spans: NDArray[Any]) -> NDArray[np.int64]:
    """The rhythm that each distance agrees with, if the time span distinguishes it from others; -1 for none."""
    known = rhythms()
    best = np.full(len(distance), -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        off = WIDTH / spans
        for needed in np.unique(known.needs):
            group = np.flatnonzero(known.needs == needed)
            at = np.clip(np.searchsorted(known.frequency[group], distance), 1, len(group) - 1)
            for near in (group[at - 1], group[at]):
                gap = np.abs(known.frequency[near] - distance)
                closer = (gap < off) & (needed <= spans)
                best, off = np.where(closer, near, best), np.where(closer, gap, off)
        best[~(distance > 0)] = -1
    return best


def _sampling(out: Aliases, peaks: NDArray[Any], spans: NDArray[Any], low: int, is_loud: Loud) -> None:
    """Flag peaks at a rhythm of the sampling itself."""
    known = rhythms()
    best = _nearest(peaks[:, low], spans)
    objects = np.flatnonzero(best >= 0)
    loud, power = is_loud(objects, peaks[objects, low])
    objects, power = objects[loud], power[loud]
    out.flag[objects, low] |= _SAMPLING
    out.window[objects, low] = power
    out.text[objects, low] = np.array(known.name)[best[objects]]


def _mirrors(out: Aliases, peaks: NDArray[Any], spans: NDArray[Any], low: int, high: int, is_loud: Loud) -> None:
    """Flag peaks ``low`` that are a rhythm above or below ``high``, or its reflection at 0, and have no flag yet."""
    known = rhythms()
    names = np.array(known.name)
    wrapped = np.array([f"({name})" if " " in name else name for name in known.name])
    difference = peaks[:, low] - peaks[:, high]
    for kind, distance in (("+", difference), ("-", -difference), ("mirror", peaks[:, low] + peaks[:, high])):
        best = _nearest(distance, spans)
        objects = np.flatnonzero((best >= 0) & (out.of[:, low] < 0))
        loud, power = is_loud(objects, distance[objects])
        objects, power = objects[loud], power[loud]
        rhythm = best[objects]
        out.flag[objects, low] = (out.flag[objects, low] & _SAMPLING) | known.flag[rhythm]
        out.of[objects, low], out.window[objects, low] = high, power
        peak = f"#{high + 1}"
        if kind == "mirror":
            out.text[objects, low] = np.char.add(names[rhythm], f" - {peak}")
        else:
            out.text[objects, low] = np.char.add(f"{peak} {kind} ", wrapped[rhythm])


def _multiples(out: Aliases, peaks: NDArray[Any], spans: NDArray[Any]) -> None:
    """Flag peaks at 2 or 3 times a higher peak's frequency, or at a half or third."""
    k = peaks.shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        for low in range(1, k):
            for high in range(low):
                for m in (2, 3):
                    for up in (True, False):
                        a, b = (peaks[:, low], peaks[:, high]) if up else (peaks[:, high], peaks[:, low])
                        hit = np.abs(a - m * b) <= WIDTH / spans * (1 if up else m)
                        out.flag[hit, low] |= _MULTIPLE
                        free = hit & (out.of[:, low] < 0)
                        out.of[free, low] = high
                        out.text[free, low] = f"{m} x #{high + 1}" if up else f"#{high + 1} / {m}"
