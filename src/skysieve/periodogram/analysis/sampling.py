"""The highest frequency of an automatic grid, from the times of a light curve.

Uneven sampling has no Nyquist frequency of its own (VanderPlas 2018, ApJS 236, 16, section 7.1): 24 cycles a day,
a period of one hour, is the limit then.  Regular times have one, beyond which every frequency is the mirror image
of a lower one.  Pure NumPy.  Many light curves are first tested together for times that are clearly irregular.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.periodogram.lightcurves.arrays import finite_rows
from skysieve.periodogram.result.aliases import days_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.periodogram.lightcurves.sources import CurveSet

HIGHEST = 24.0
"""Cycles a day: a period of one hour, the end of the range in which most variable stars and asteroids lie."""
SERIES_STEPS, SERIES_SHARE, SERIES_TOLERANCE = 10.5, 0.9, 0.1
"""A regular series: nine steps in ten are 1 to 10 times the shortest one, to within a tenth of the shortest."""
LATTICE_TOLERANCE = 0.003
"""Times lie on a lattice if they scatter about it by less than this fraction of its step (rms).

A sinusoid and its mirror image then differ by ``(2 pi 0.003)**2``, 0.04%, of the power, which is not visible at S/N 10.
"""

ROWS_AT_ONCE = 2**16
"""Number of rows that are processed at a time, so that they stay in the cache of a core."""
CLEARLY = 1.1
"""Scatter about a lattice, relative to the largest that is accepted, above which rounding cannot change the result."""


def highest_frequency(t: NDArray[np.float64]) -> tuple[float, bool]:
    """Highest frequency to try for a light curve.

    Parameters
    ----------
    t : numpy.ndarray
        Finite times in days, in any order; equal times are allowed.

    Returns
    -------
    frequency : float
        In cycles a day; NaN if all times are equal.
    regular : bool
        Whether this is the Nyquist frequency of regular times.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> highest_frequency(rng.uniform(0, 700, 150))
    (24.0, False)
    >>> whole_days = highest_frequency(rng.choice(700, 150, replace=False))
    >>> two_minutes = highest_frequency(np.arange(19440) / 720)
    >>> [(round(frequency, 6), regular) for frequency, regular in (whole_days, two_minutes)]
    [(0.5, True), (360.0, True)]
    """
    t = np.sort(t)
    step = np.diff(t)
    t, step = t[np.append(True, step > 0)], step[step > 0]
    if step.size == 0:
        return np.nan, False
    shortest = float(step.min())
    if shortest > 0.5 / HIGHEST:
        for divisor in (1, 2, 3):  # steps of 2 and 3, and none of 1, are possible too
            if (found := _lattice(t, step, shortest / divisor)) and 0.5 / found < HIGHEST:
                return 0.5 / found, True
        return HIGHEST, False
    found = _series(step)
    if found and 0.5 / found >= HIGHEST:
        return 0.5 / found, True
    # five times the Nyquist frequency of the mean sampling, as in astropy, if that is higher
    return max(HIGHEST, 2.5 * (len(t) / float(t[-1] - t[0]))), False


def _lattice(t: NDArray[np.float64], step: NDArray[np.float64], near: float) -> float:
    """Step of a lattice that holds all times, if one is close to ``near``; else 0."""
    turns = np.rint(step / near)
    if turns.min() < 1 or len(t) < 4:
        return 0.0
    number = np.append(0.0, np.cumsum(turns))
    number -= number.mean()
    length = float(number @ t / (number @ number))
    rest = t - length * number
    return length if rest.std() < LATTICE_TOLERANCE * length else 0.0


def _series(step: NDArray[np.float64]) -> float:
    """Step of a regular series (points may be missing, and breaks are allowed) if these are its steps; else 0."""
    longest = SERIES_STEPS * 0.5 / HIGHEST
    if np.count_nonzero(step < longest) < SERIES_SHARE * step.size:
        return 0.0  # a quick exit for sparse times
    length = float(np.quantile(step, 0.1, method="lower"))
    length = float(np.median(step[np.abs(step / length - 1) < SERIES_TOLERANCE]))
    ratio = step / length
    whole = np.rint(ratio)
    good = (whole >= 1) & (ratio < SERIES_STEPS) & (np.abs(ratio - whole) < SERIES_TOLERANCE)
    return length if good.mean() >= SERIES_SHARE else 0.0


def _irregular(t: NDArray[np.float64], offsets: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """`highest_frequency` of the light curves that are clearly not regular, and which these are.

    Parameters
    ----------
    t : numpy.ndarray
        Finite times in days, objects one after another, at least one of each.
    offsets : numpy.ndarray
        Rows of each object.
    """
    n = len(offsets) - 1
    highest, sure = np.full(n, HIGHEST), np.zeros(n, bool)
    counts, starts = np.diff(offsets), offsets[:-1]
    step = np.diff(t, prepend=t[:1])
    step[starts] = np.inf  # no step leads to the first time
    rising = np.logical_and.reduceat(step >= 0, starts)
    later = (step > 0) & (step < np.inf)
    steps = np.add.reduceat(later, starts, dtype=np.int64)
    shortest = np.minimum.reduceat(np.where(later, step, np.inf), starts)
    short = np.add.reduceat(step < SERIES_STEPS * 0.5 / HIGHEST, starts, dtype=np.int64)
    short -= np.add.reduceat(step <= 0, starts, dtype=np.int64)
    close = shortest <= 0.5 / HIGHEST
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = 2.5 * ((steps + 1) / (t[offsets[1:] - 1] - t[starts]))
    sure |= close & (short < SERIES_SHARE * steps)
    highest = np.where(close, np.maximum(HIGHEST, mean), highest)
    sure |= ~close & (steps < 3)  # too few for a lattice
    sure &= rising & (steps > 0)
    rest = np.flatnonzero(rising & ~close & (steps >= 3))
    if rest.size:
        rows = later.copy()
        rows[starts] = True
        rows &= np.repeat(np.isin(np.arange(n), rest), counts)
        sure[rest] = _off_lattices(t[rows], step[rows], steps[rest] + 1, shortest[rest])
    return highest, sure


def _off_lattices(
    t: NDArray[np.float64], step: NDArray[np.float64], counts: NDArray[np.int64], shortest: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Whether the rising times of each object are clearly on none of the lattices that `highest_frequency` tries."""
    starts = np.cumsum(counts) - counts
    t = t - np.repeat(t[starts], counts)
    clear = np.ones(len(counts), bool)
    for divisor in (1, 2, 3):
        turns = np.rint(step / np.repeat(shortest / divisor, counts))
        turns[starts] = 0.0
        number = np.cumsum(turns)
        number -= np.repeat(np.add.reduceat(number, starts) / counts, counts)
        length = np.add.reduceat(number * t, starts) / np.add.reduceat(number**2, starts)
        off = t - np.repeat(length, counts) * number
        off -= np.repeat(np.add.reduceat(off, starts) / counts, counts)
        scatter = np.sqrt(np.add.reduceat(off**2, starts) / counts)
        clear &= scatter > CLEARLY * LATTICE_TOLERANCE * length
    return clear


def highest_frequencies(curves: CurveSet, wanted: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """`highest_frequency` of each object for which ``wanted`` is True, in 1/unit(t); NaN and False for the others.

    Times without a unit are days.
    """
    highest, regular = np.full(len(wanted), np.nan), np.zeros(len(wanted), bool)
    chosen = np.flatnonzero(wanted)
    if curves.same_times and chosen.size > 1:
        one = highest_frequencies(curves, np.arange(len(wanted)) == chosen[0])
        highest[chosen], regular[chosen] = (x[chosen[0]] for x in one)
        return highest, regular
    source, days = curves.source, days_in(curves.units.time)
    start, bounds = 0, source.offsets
    while start < len(wanted):
        stop = max(start + 1, int(np.searchsorted(bounds, bounds[start] + ROWS_AT_ONCE, side="right")) - 1)
        if wanted[start:stop].any():
            t, y, dy, offsets = source.read(start, stop)
            keep = to_host(finite_rows(t, y, dy)) & np.repeat(wanted[start:stop], np.diff(offsets))
            times = (to_host(t) * days)[keep]
            here = start + np.flatnonzero(wanted[start:stop])
            counts = np.add.reduceat(np.append(keep, False), offsets[:-1], dtype=np.int64) * (np.diff(offsets) > 0)
            counts = counts[here - start]
            ends = np.append(0, np.cumsum(counts))
            found, sure = np.full(len(here), np.nan), np.zeros(len(here), bool)
            if counts.all():
                found, sure = _irregular(times, ends)
            for i in np.flatnonzero(~sure):
                found[i], regular[here[i]] = highest_frequency(times[ends[i] : ends[i + 1]])
            highest[here] = found * days
        start = stop
    return highest, regular
