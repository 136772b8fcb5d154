"""Aliases among peaks, by the day, the lunar month, the year, and their harmonics.

Sampling with a rhythm D (cycles a day) lets a signal at f also appear at f - D, f + D and D - f, as strongly as the
window function is high at D (VanderPlas 2018, section 5).  So two peaks are called aliases when their difference
or sum is such a rhythm within their width *and* the window function of these times is high at it.
Pure NumPy; a batch is one call.
"""

from __future__ import annotations

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
BLOCK_ROWS = 2**18
"""Rows that are worked on at a time: few enough for the cache of a core, and enough that threads seldom wait for the
interpreter between two calls."""


class Alias(IntFlag):
    """Possible causes of a peak besides a signal at its own frequency."""

    NONE = 0
    DAY = 1
    MONTH = 2
    YEAR = 4
    MULTIPLE = 8
    """Its frequency is 2 or 3 times that of a higher peak, or a half or a third of it."""
    SAMPLING = 16
    """Its frequency is a rhythm of the sampling itself, where instruments cause signals."""


@dataclass(frozen=True)
class Period:
    """An astronomical period that the times of observations follow.

    Attributes
    ----------
    days : float
        Its length.
    unit : str
        Its unit in a relation, such as "yr" in "1/yr".
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


@dataclass(frozen=True, eq=False)
class Aliases:
    """Alias flags of the k peaks of each of n objects, or of one object.

    Attributes
    ----------
    flag : numpy.ndarray, uint8
        `Alias` of each peak, relative to the higher peaks of its object (SAMPLING: of itself).
    of : numpy.ndarray, int64
        Index of the higher peak of which it is an alias, or -1.
    text : numpy.ndarray of str
        The relation in words, such as ``"#1 + 1/yr"`` for a peak one cycle a year above the highest; "" for none.
    window : numpy.ndarray, float64
        Power of the window function at the distance of the two peaks (SAMPLING: at the peak), 0 to 1; NaN where none is
        flagged.
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


@dataclass(frozen=True)
class Sampling:
    """When and with which weights objects were observed.

    Attributes
    ----------
    t, weight : numpy.ndarray, shape (n_rows,)
        Times from the first usable one of each object, and weights that sum to 1; both 0 in rows that are not used.
    offsets : numpy.ndarray, int64, shape (n + 1,)
        Rows of each object.
    squared : numpy.ndarray, shape (n,)
        Sum of the squares of the weights: the mean power of the window function of random times.
    mean, mean_square : numpy.ndarray, shape (n,)
        Weighted means of the times and of their squares.
    """

    t: NDArray[np.float64]
    weight: NDArray[np.float64]
    offsets: NDArray[np.int64]
    squared: NDArray[np.float64]
    mean: NDArray[np.float64]
    mean_square: NDArray[np.float64]

    @classmethod
    def of(
        cls, t: NDArray[Any], dy: NDArray[Any] | None, offsets: NDArray[np.int64], usable: NDArray[np.bool_] | None
    ) -> Sampling:
        """The sampling of rows; those with a time or an error that is not finite, or not positive, are not used."""
        n = len(offsets) - 1
        out = cls(np.empty(len(t)), np.empty(len(t)), offsets, np.zeros(n), np.zeros(n), np.zeros(n))
        start = 0
        while start < n:
            stop = int(np.searchsorted(offsets, offsets[start] + BLOCK_ROWS, side="right")) - 1
            stop = min(max(stop, start + 1), n)
            rows = slice(int(offsets[start]), int(offsets[stop]))
            out._fill(
                slice(start, stop), rows, t[rows], None if dy is None else dy[rows],
                None if usable is None else usable[rows],
            )  # fmt: skip
            start = stop
        return out

    def _fill(
        self, objects: slice, rows: slice, t: NDArray[Any], dy: NDArray[Any] | None, usable: NDArray[np.bool_] | None
    ) -> None:
        """Fill in some neighbouring objects."""
        bounds = self.offsets[objects.start : objects.stop + 1] - rows.start
        counts = np.diff(bounds)
        filled = np.flatnonzero(counts)
        if filled.size == 0:
            return
        starts, counts = bounds[:-1][filled], counts[filled]
        good = np.isfinite(t) if usable is None else np.isfinite(t) & usable
        if dy is not None:
            good &= np.isfinite(dy) & (dy > 0)
        every = bool(good.all())
        early = np.minimum.reduceat(t if every else np.where(good, t, np.inf), starts)
        relative = t - np.repeat(early if every else np.where(np.isfinite(early), early, 0.0), counts)
        if not every:
            relative = np.where(good, relative, 0.0)
        if dy is None:
            weight = good.astype(np.float64)
        else:
            errors = dy if every else np.where(good, dy, np.inf)
            least = np.minimum.reduceat(errors, starts)
            weight = (np.repeat(least if every else np.where(np.isfinite(least), least, 1.0), counts) / errors) ** 2
        total = np.add.reduceat(weight, starts)
        weight = weight / np.repeat(total if every else np.where(total > 0, total, 1.0), counts)
        self.t[rows], self.weight[rows] = relative, weight
        weighted = weight * relative
        for values, summed in (
            (self.squared, weight**2), (self.mean, weighted), (self.mean_square, weight * relative**2)
        ):  # fmt: skip
            values[objects][filled] = np.add.reduceat(summed, starts)


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
    found = alias_relations(Sampling.of(times, errors, bounds, usable), peaks, spans)
    out = Aliases(found.flag, found.of, relation_texts(k)[found.relation], found.window)
    return out[0] if single else out


def days_in(unit: Any) -> float:
    """Days in a unit of time; 1 for None and for dimensionless times, which are plain times beside values with a unit.

    Raises
    ------
    ValueError
        If it is no unit of time.
    """
    if unit is None or unit.is_unity():
        return 1.0
    from astropy.units import UnitConversionError, day

    try:
        return float(unit.to(day))
    except UnitConversionError:
        raise ValueError(
            f"t is in {unit}, which is not a unit of time; aliases (unless aliases=False) and fmax='auto' need one"
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


@dataclass(frozen=True)
class Relations:
    """As `Aliases`, with the relations as positions in `relation_texts`."""

    flag: NDArray[np.uint8]
    of: NDArray[np.int64]
    relation: NDArray[np.int32]
    window: NDArray[np.float64]


@lru_cache(maxsize=8)
def relation_texts(n_peaks: int) -> NDArray[np.str_]:
    """All relations in words: none; a rhythm; above, below and mirrored at a higher peak; multiples and parts of it."""
    names = list(rhythms().name)
    wrapped = [f"({name})" if " " in name else name for name in names]
    texts = ["", *names]
    for high in range(1, n_peaks + 1):
        texts += [f"#{high} {sign} {name}" for sign in "+-" for name in wrapped]
        texts += [f"{name} - #{high}" for name in names]
    for high in range(1, n_peaks + 1):
        texts += [f"2 x #{high}", f"#{high} / 2", f"3 x #{high}", f"#{high} / 3"]
    return np.array(texts, "<U24")


def alias_relations(sampling: Sampling, frequency: NDArray[np.float64], spans: NDArray[np.float64]) -> Relations:
    """See `find_aliases`.

    Parameters
    ----------
    sampling : Sampling
    frequency : numpy.ndarray, shape (n, k)
    spans : numpy.ndarray, shape (n,)
    """
    n, k = frequency.shape
    out = Relations(
        np.zeros((n, k), np.uint8), np.full((n, k), -1, np.int64), np.zeros((n, k), np.int32), np.full((n, k), np.nan)
    )
    some = np.flatnonzero(np.isfinite(frequency).any(axis=0))
    peaks = np.ascontiguousarray(frequency.T[: some[-1] + 1 if some.size else 0])  # without columns that no object has
    for low in range(len(peaks)):
        _match(out, peaks, spans, low, sampling)
    _multiples(out, peaks, spans, 1 + len(rhythms().name) * (1 + 3 * k))
    return out


def is_compiled() -> bool:
    """Whether the code of `compiled_relations` is stored, so that it need not be compiled first."""
    from skysieve.periodogram.cpu import aliases

    return aliases.is_ready()


def compiled_relations(
    t: NDArray[Any], y: NDArray[Any], dy: NDArray[Any] | None, offsets: NDArray[np.int64],
    frequency: NDArray[np.float64], spans: NDArray[np.float64],
) -> tuple[Relations, NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """As `alias_relations`, in compiled code; also the moments ``mean`` and ``mean_square`` of `Sampling`.

    Rows in which ``y`` is not finite are not used.
    """
    from skysieve.periodogram.cpu import aliases

    known = rhythms()
    rules = WIDTH, LOUD, ABOVE_CHANCE, int(_SAMPLING), int(_MULTIPLE)
    found, mean, mean_square = aliases.relations(
        t, y, dy, offsets, frequency, spans, (known.frequency, known.needs, known.flag), rules
    )
    return Relations(*found), mean, mean_square


def _is_near(distance: NDArray[Any], spans: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether a distance agrees with any rhythm: a quick test before `_nearest`."""
    known = rhythms().frequency
    at = np.clip(np.searchsorted(known, distance), 1, len(known) - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = np.minimum(np.abs(known[at - 1] - distance), np.abs(known[at] - distance))
        near: NDArray[np.bool_] = (gap < WIDTH / spans) & (distance > 0)
    return near


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


def _match(out: Relations, peaks: NDArray[Any], spans: NDArray[Any], low: int, sampling: Sampling) -> None:
    """Flag peaks ``low`` at a rhythm of the sampling, and those a rhythm above or below a higher peak, or mirrored.

    Relations are tried in the order of the higher peaks; the first one that the window function supports is reported.
    """
    known = rhythms()
    difference = peaks[low] - peaks[:low]
    distance = np.empty((1 + 3 * low, peaks.shape[1]))
    distance[0] = peaks[low]
    distance[1::3], distance[2::3], distance[3::3] = difference, -difference, peaks[low] + peaks[:low]
    relation, objects = np.nonzero(_is_near(distance, spans))  # in the order in which relations are tried
    at = distance[relation, objects]
    best = _nearest(at, spans[objects])
    known_one = best >= 0
    relation, objects, at, best = relation[known_one], objects[known_one], at[known_one], best[known_one]
    while objects.size:
        # the first relation of each remaining object; one rhythm of the sampling cannot replace another
        later = relation > 0
        first = np.flatnonzero(~later)
        if later.any():
            first = np.append(first, np.flatnonzero(later)[np.unique(objects[later], return_index=True)[1]])
        tried = objects[first]
        power = window_power(sampling.t, sampling.weight, sampling.offsets, tried, at[first])
        loud = power >= np.maximum(LOUD, ABOVE_CHANCE * sampling.squared[tried])
        where, power, rhythm, kind = tried[loud], power[loud], best[first][loud], relation[first][loud]
        for mirrored in (False, True):
            some = (kind > 0) == mirrored
            those, which = where[some], rhythm[some]
            out.window[those, low] = power[some]
            if mirrored:
                out.flag[those, low] = (out.flag[those, low] & _SAMPLING) | known.flag[which]
                out.of[those, low] = (kind[some] - 1) // 3
            else:
                out.flag[those, low] |= _SAMPLING
            out.relation[those, low] = 1 + kind[some] * len(known.name) + which
        left = np.ones(len(objects), bool)
        left[first] = False
        left &= out.of[objects, low] < 0
        relation, objects, at, best = relation[left], objects[left], at[left], best[left]


def _multiples(out: Relations, peaks: NDArray[Any], spans: NDArray[Any], base: int) -> None:
    """Flag peaks at 2 or 3 times a higher peak's frequency, or at a half or third."""
    with np.errstate(divide="ignore", invalid="ignore"):
        width = WIDTH / spans
        for low in range(1, len(peaks)):
            hits = np.empty((low, 4, len(spans)), bool)
            for number, (m, up) in enumerate(((2, True), (2, False), (3, True), (3, False))):
                a, b = (peaks[low], peaks[:low]) if up else (peaks[:low], peaks[low])
                hits[:, number] = np.abs(a - m * b) <= width * (1 if up else m)
            tried = hits.reshape(4 * low, len(spans))
            some, first = tried.any(axis=0), tried.argmax(axis=0)
            out.flag[some, low] |= _MULTIPLE
            free = some & (out.of[:, low] < 0)
            out.of[free, low] = first[free] // 4
            out.relation[free, low] = base + first[free]
