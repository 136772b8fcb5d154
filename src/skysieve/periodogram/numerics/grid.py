"""Frequency grids: the rules, the checks of the arguments, and the warnings.

Pure NumPy on small arrays.  Frequencies are cyclic, in 1/unit(t); spans ``T`` are in unit(t).
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skysieve.core.checks import one_of
from skysieve.core.errors import format_bytes
from skysieve.periodogram.contract import Grids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

LEAST_PER_PEAK = 1e-6
"""Least number of frequencies of a peak: the step of the grid overflows near 1e-308."""
MAX_FREQUENCIES = 10**10
"""Largest number of frequencies of one object: a search of more would not end in any useful time."""

PHASE_TOLERANCE = 1e-10
"""An array of frequencies is regular when no phase ``f T`` is moved by more than this many cycles."""

FEWEST_SEARCHED = 10
"""A shorter list of frequencies is not a search of a range: no warning says that it is too coarse."""

GridName = Literal["auto", "shared", "per-object"]
LAYOUTS = ("auto", "shared", "per-object")
AUTO = "auto"
"""An end of the grid that follows from the sampling: 1/T, and `sampling.highest_frequency`."""


def autofrequency(
    span: ArrayLike,
    n_points: ArrayLike,
    *,
    samples_per_peak: float = 5,
    nyquist_factor: float = 5,
    fmin: ArrayLike | None = None,
    fmax: ArrayLike | None = None,
    nf: int | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """First frequency, step and number of frequencies from the span and number of points of each object.

    The rule is astropy's (VanderPlas 2018, section 7.1): ``df = 1 / (samples_per_peak T)``,
    ``fmin = df / 2``, ``fmax = nyquist_factor n / (2 T)``, ``nf = 1 + round((fmax - fmin) / df)``.
    With ``nf`` given the grid includes both ends: ``df = (fmax - fmin) / (nf - 1)``.

    Parameters
    ----------
    span, n_points : array_like, shape (n,)
        Time span ``T`` and number of usable points of each object.
    samples_per_peak, nyquist_factor : float
        As above.
    fmin, fmax : float or array_like, optional
        Ends of the grid in place of the rule's, for all objects or one each.
    nf : int, optional
        Number of frequencies in place of the rule's.

    Returns
    -------
    f0, df, nf : numpy.ndarray, shape (n,), float64
        ``nf`` is a whole number kept as float, so that absurd grids can be counted; it is 0 where
        the span is no positive number or ``fmin >= fmax``.

    Examples
    --------
    >>> f0, df, nf = autofrequency([10.0], [100])
    >>> float(f0[0]), float(df[0]), int(nf[0])
    (0.01, 0.02, 1251)
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        baseline = np.atleast_1d(np.asarray(span, dtype=np.float64))
        points = np.broadcast_to(np.asarray(n_points, dtype=np.float64), baseline.shape)
        peak_step = 1.0 / baseline / samples_per_peak
        low = 0.5 * peak_step if fmin is None else np.broadcast_to(np.asarray(fmin, np.float64), baseline.shape)
        high = nyquist_factor * (0.5 * points / baseline)
        high = high if fmax is None else np.broadcast_to(np.asarray(fmax, np.float64), baseline.shape)
        if nf is None:
            df, count = peak_step, 1 + np.round((high - low) / peak_step)
        else:
            df, count = (high - low) / (nf - 1), np.full(baseline.shape, float(nf))
        good = np.isfinite(baseline) & (baseline > 0) & np.isfinite(low) & (low < high) & (df > 0)
    return np.where(good, low, np.nan), np.where(good, df, np.nan), np.where(good, count, 0.0)


@dataclass(frozen=True)
class FrequencyArray:
    """Frequencies as the user listed them, with what is needed to search them in rising order.

    Attributes
    ----------
    listed : numpy.ndarray
        As given.
    rising : numpy.ndarray
        Strictly rising, repeated ones once.
    position : numpy.ndarray or None
        ``listed == rising[position]``; None when the two are the same.
    first : numpy.ndarray or None
        First position of each of ``rising`` in ``listed``; None as above.
    deviation : float
        Largest distance from the regular grid through both ends.
    """

    listed: NDArray[np.float64]
    rising: NDArray[np.float64]
    position: NDArray[np.intp] | None
    first: NDArray[np.intp] | None
    deviation: float

    @classmethod
    def of(cls, frequency: ArrayLike) -> FrequencyArray:
        """Check and sort; ValueError or TypeError names the first bad frequency."""
        listed = np.atleast_1d(np.asarray(frequency))
        if listed.dtype.kind not in "iuf":
            raise TypeError(f"frequency has dtype {listed.dtype}; an array of real numbers is expected")
        listed = listed.astype(np.float64)
        if listed.ndim != 1 or listed.size == 0:
            raise ValueError(f"frequency has shape {listed.shape}; a 1-D array of at least one frequency is expected")
        bad = ~(np.isfinite(listed) & (listed > 0))
        if bad.any():
            j = int(np.argmax(bad))
            raise ValueError(f"frequency[{j}] = {listed[j]}; every frequency must be positive and finite")
        position = first = None
        rising = listed
        if np.any(listed[1:] <= listed[:-1]):
            rising, first, position = np.unique(listed, return_index=True, return_inverse=True)
        listed.flags.writeable = rising.flags.writeable = False
        deviation = 0.0
        if rising.size > 2:
            df = (rising[-1] - rising[0]) / (rising.size - 1)
            deviation = float(np.max(np.abs(rising - (rising[0] + df * np.arange(rising.size)))))
        return cls(listed, rising, position, first, deviation)

    @property
    def exactly_regular(self) -> bool:
        """Whether this is a regular grid except for rounding: ``f0 + j df`` in float64 is off by up to 2 ulp."""
        return self.rising.size > 1 and self.deviation <= 4 * float(np.spacing(self.rising[-1]))

    def is_regular(self, span: float) -> bool:
        """Whether the regular grid through both ends gives the same phases over ``span``."""
        return self.exactly_regular or (self.rising.size > 1 and self.deviation * span < PHASE_TOLERANCE)


@dataclass(frozen=True)
class GridRule:
    """The rule of a grid, checked before any light curve is known.

    ``auto_min`` and ``auto_max`` say which ends follow from the sampling; ``fmin`` and ``fmax`` are None then.
    """

    frequencies: FrequencyArray | None = None
    fmin: float | None = None
    fmax: float | None = None
    nf: int | None = None
    samples_per_peak: float = 5.0
    nyquist_factor: float = 5.0
    layout: str = "auto"
    auto_min: bool = False
    auto_max: bool = False

    @property
    def complete(self) -> bool:
        """Whether the grid is known without the times of the light curves."""
        return self.frequencies is not None or None not in (self.fmin, self.fmax, self.nf)

    @property
    def needs_spans(self) -> bool:
        """Whether the time spans are needed to build the grid."""
        if self.frequencies is not None:
            return self.frequencies.rising.size > 1 and not self.frequencies.exactly_regular
        return not self.complete

    def is_shared(self, one_set_of_times: bool) -> bool:
        """Whether all objects get the same grid."""
        if self.layout == "auto":
            return self.complete or one_set_of_times
        return self.layout == "shared"

    def build(
        self,
        span: NDArray[np.float64],
        n_used: NDArray[np.int64],
        *,
        shared: bool,
        highest: NDArray[np.float64] | None = None,
    ) -> Grids:
        """The grids; objects that can have none get ``nf = 0``.

        ``span`` and ``n_used`` hold the objects that are fit for a search (NaN and 0 for others);
        both may be empty when the rule is `complete`.  ``highest`` is the highest frequency that the sampling of
        each object calls for, needed with ``auto_max``.
        """
        if self.frequencies is not None:
            return self._listed(self.frequencies, span)
        if self.complete:
            return self._complete()
        points = n_used.astype(np.float64)
        if shared:
            usable = np.isfinite(span) & (span > 0)
            longest = np.max(span[usable], initial=0.0)
            rate = np.median(points[usable] / span[usable]) if usable.any() else 0.0
            span, points = np.array([longest]), np.array([rate * longest])
            if highest is not None:
                highest = np.array([np.max(highest[usable], initial=0.0)])
        fmin, fmax = self._ends(span, points, highest)
        f0, step, count = autofrequency(
            span,
            points,
            samples_per_peak=self.samples_per_peak,
            nyquist_factor=self.nyquist_factor,
            fmin=fmin,
            fmax=fmax,
            nf=self.nf,
        )
        if np.any(count > 0):
            check_count(float(np.min(count[count > 0])))  # no object can be searched
        return Grids(f0, step, np.where(count <= MAX_FREQUENCIES, count, 0.0).astype(np.int64), shared=shared)

    def _ends(
        self, span: NDArray[np.float64], points: NDArray[np.float64], highest: NDArray[np.float64] | None
    ) -> tuple[Any, Any]:
        """Ends of the grids for `autofrequency`, those that follow from the sampling for each object."""
        fmin: Any = self.fmin
        fmax: Any = self.fmax
        if self.auto_max:
            if highest is None:
                raise RuntimeError("the grid needs the highest frequencies of the sampling")
            fmax = highest
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.auto_min:
                top = self.nyquist_factor * (0.5 * points / span) if fmax is None else fmax
                fmin = np.where(1.0 / span < top, 1.0 / span, 0.5 / span / self.samples_per_peak)
            if self.auto_max and self.nf is None:
                low = 0.5 / span / self.samples_per_peak if fmin is None else fmin
                step = 1.0 / span / self.samples_per_peak
                fmax = np.minimum(fmax, low + step * (self.most(points) - 1))
        return fmin, fmax

    def most(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Most frequencies of a grid whose upper end follows from the sampling: those of astropy's rule, or `MOST`."""
        astropy = np.round(0.5 * self.nyquist_factor * self.samples_per_peak * points)
        return np.asarray(np.maximum(MOST, astropy), np.float64)

    def _complete(self) -> Grids:
        low, high, nf = self.fmin, self.fmax, self.nf
        if low is None or high is None or nf is None:
            raise RuntimeError("the grid is not complete")
        return Grids(np.array([low]), np.array([(high - low) / (nf - 1)]), np.array([nf]), shared=True)

    def _listed(self, frequencies: FrequencyArray, span: NDArray[np.float64]) -> Grids:
        values = frequencies.rising
        f0, nf = values[:1].copy(), np.array([values.size])
        longest = float(np.max(span[np.isfinite(span)], initial=0.0))
        if frequencies.is_regular(longest):
            return Grids(f0, (values[-1:] - values[:1]) / (values.size - 1), nf, shared=True)
        return Grids(f0, np.zeros(1), nf, shared=True, values=values)


def make_rule(
    frequency: Any = None,
    fmin: Any = None,
    fmax: Any = None,
    nf: Any = None,
    samples_per_peak: Any = 5,
    nyquist_factor: Any = 5,
    layout: str = "auto",
) -> GridRule:
    """Check the arguments of a grid (plain numbers in 1/unit(t)); TypeError or ValueError names the argument."""
    one_of("grid", layout, LAYOUTS)
    if frequency is not None:
        clash = [name for name, value in (("fmin", fmin), ("fmax", fmax), ("nf", nf)) if value is not None]
        if clash:
            raise ValueError(f"frequency and {', '.join(clash)} are both given; give one or the other")
        if layout == "per-object":
            raise ValueError("grid='per-object' needs a rule (fmin, fmax, nf); frequency is one list for all objects")
        return GridRule(frequencies=FrequencyArray.of(frequency), layout=layout)
    auto_min, auto_max = (isinstance(end, str) and end == AUTO for end in (fmin, fmax))
    low = None if fmin is None or auto_min else _positive("fmin", fmin)
    high = None if fmax is None or auto_max else _positive("fmax", fmax)
    per_peak, nyquist = _positive("samples_per_peak", samples_per_peak), _positive("nyquist_factor", nyquist_factor)
    if per_peak < LEAST_PER_PEAK:
        raise ValueError(f"samples_per_peak={per_peak:g}; at least {LEAST_PER_PEAK:g} is expected")
    if low is not None and high is not None and low >= high:
        raise ValueError(f"fmin={low:g} must be below fmax={high:g}")
    if nf is not None:
        if isinstance(nf, bool) or not isinstance(nf, numbers.Real) or not float(nf).is_integer():
            raise ValueError(f"nf={nf!r}: expected a whole number of frequencies")
        nf = int(float(nf))
        if nf < 2:
            raise ValueError(f"nf={nf}; a grid from fmin to fmax needs at least 2 frequencies")
        check_count(nf)
    if layout == "per-object" and None not in (low, high, nf):
        raise ValueError("grid='per-object' with all of fmin, fmax and nf is one grid for all objects; leave one out")
    return GridRule(None, low, high, nf, per_peak, nyquist, layout, auto_min, auto_max)


def _not_text(value: Any) -> float:
    """``value`` as a float; TypeError for text, which `float` reads."""
    if isinstance(value, str | bytes) or getattr(getattr(value, "dtype", None), "kind", None) in ("U", "S"):
        raise TypeError
    return float(value)


def _positive(name: str, value: Any) -> float:
    try:
        number = _not_text(value)
    except (TypeError, ValueError):
        auto = " or 'auto'" if name in ("fmin", "fmax") else ""
        raise TypeError(f"{name}={value!r}; a positive number{auto} is expected") from None
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name}={number:g}; a positive number is expected")
    return number


def check_count(count: float) -> None:
    """Refuse a grid of more than `MAX_FREQUENCIES` before any allocation."""
    if count > MAX_FREQUENCIES:
        raise ValueError(
            f"the grid would have {count:.3g} frequencies for one light curve (its powers alone would take "
            f"{format_bytes(8 * count)}); at most {MAX_FREQUENCIES:.0e} can be searched. Lower the highest "
            "frequency (fmax), nf or samples_per_peak, or check the unit of the times"
        )


def refusal(rule: GridRule, span: float, n_used: int, highest: NDArray[np.float64] | None = None) -> str:
    """Why there is no grid for a light curve of ``n_used`` points over ``span``, for an error message.

    ``highest`` are the highest frequencies that the sampling calls for, where these are the end of the grid.
    """
    low = "0.5 / (samples_per_peak * T)" if rule.fmin is None else "fmin"
    f_low = 0.5 / span / rule.samples_per_peak if rule.fmin is None else rule.fmin
    if rule.auto_max and highest is not None:
        high, f_high = "the limit of its sampling", float(np.nanmax(highest))
    elif rule.fmax is None:
        high, f_high = "nyquist_factor * N / (2 T)", rule.nyquist_factor * 0.5 * n_used / span
    else:
        high, f_high = "fmax", rule.fmax
    return (
        f"the grid would start at {low} = {f_low:.6g} and end at {high} = {f_high:.6g}, with T = {span:.6g}, "
        f"N = {n_used}; the start must be below the end"
    )


def nothing_to_warn_of(rule: GridRule, grids: Grids, span: NDArray[np.float64]) -> bool:
    """Whether `grid_warnings` is certainly empty: a quick test with the extreme spans, which most searches pass.

    ``span`` holds the time spans of objects that are all searched.
    """
    if rule.auto_max or rule.frequencies is not None or not grids.shared or not span.size or grids.nf[0] == 0:
        return False
    shortest, longest = float(np.minimum.reduce(span)), float(np.maximum.reduce(span))
    seen = rule.fmin is None or rule.fmin * shortest >= 1 - 1e-9
    return bool(shortest > 0 and longest < math.inf and seen and float(grids.df[0]) * longest <= 1)


def grid_warnings(
    rule: GridRule, grids: Grids, span: NDArray[np.float64], n_used: NDArray[np.int64] | None = None
) -> Sequence[str]:
    """Warnings on this grid and these time spans (of the objects that are searched).

    With ``n_used``, their numbers of points, there is also a warning if an automatic grid was made shorter.
    """
    has_span = np.isfinite(span) & (span > 0)
    searched = span[has_span]
    if searched.size == 0 or not np.any(grids.nf > 0):
        return []
    found = []
    without = span[has_span & (grids.nf == 0)]
    if without.size and rule.fmax is not None:
        longest = float(np.max(without))
        count = (rule.fmax - (rule.fmin or 0.0)) * longest * rule.samples_per_peak
        if count > MAX_FREQUENCIES:
            found.append(
                f"{without.size} of {searched.size} objects are not searched: with T = {longest:.6g} at most, "
                f"{count:.3g} frequencies would be needed, and {MAX_FREQUENCIES:.0e} are searched at most"
            )
    if rule.auto_max and rule.nf is None and n_used is not None:
        points = n_used[has_span] if grids.nf.size == span.size else np.max(n_used[has_span], keepdims=True)
        nf = grids.nf[has_span] if grids.nf.size == span.size else grids.nf
        cut = nf >= rule.most(points.astype(np.float64))
        if cut.any():
            whose = "" if span.size == 1 else f" of {int(np.count_nonzero(cut))} of {searched.size} objects"
            found.append(
                f"the highest frequency{whose} is lowered so that no more than {int(np.max(nf[cut])):,} frequencies "
                "are tried; a range that you give yourself is searched whole"
            )
    lowest = rule.fmin if rule.frequencies is None else float(rule.frequencies.rising[0])
    if lowest is not None:
        n_below = int(np.count_nonzero(lowest * searched < 1 - 1e-9))
        if n_below:
            whose = "" if span.size == 1 else f" for {n_below} of {searched.size} objects"
            found.append(
                f"the lowest frequency, {lowest:.6g}, is under 1/T{whose} (T = {float(np.max(searched)):.6g} at most): "
                "less than one cycle is seen, and a period longer than the data is poorly determined"
            )
    if rule.frequencies is not None and rule.frequencies.rising.size < FEWEST_SEARCHED:
        return found
    if grids.values is None:
        step = grids.df if grids.df.size == 1 else grids.df[has_span]
    else:
        step = np.median(np.diff(grids.values), keepdims=True)
    too_coarse = step * searched
    n_coarse = int(np.count_nonzero(too_coarse > 1))
    if n_coarse:
        whose = "" if span.size == 1 else f" for {n_coarse} of {searched.size} objects"
        found.append(
            f"the grid is too coarse{whose}: its step times the time span is {float(np.nanmax(too_coarse)):.3g}, but a "
            "peak is only 1/T wide and most would be stepped over; 0.2 or less is usual (a larger nf or "
            "samples_per_peak)"
        )
    return found


MOST = 5_000_000
"""Frequencies of an automatic grid, or those of astropy's rule where that has more; about a second on one core."""
