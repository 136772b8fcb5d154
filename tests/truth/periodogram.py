"""Reference implementation of the Lomb-Scargle periodogram, for tests and accuracy benchmarks only.

Every sum is taken over every row at every frequency, in ``numpy.longdouble`` where the machine has
more than float64 (x86: 64 bits of mantissa), with phases ``f t`` reduced modulo 1 in that precision.
The formulas are evaluated as they are written: no fast transforms, no caches, no choice of methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from skysieve.periodogram.numerics.peaks import HIGHER, LEAST, MOST_TRIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

LONG = np.longdouble
TWO_PI = 2 * np.arctan2(LONG(0), LONG(-1))
RANK_ONE = 100
"""Where det <= RANK_ONE * eps * (CC + SS)^2, det is rounding noise: the columns of the fit are linearly dependent."""


class ReferencePower(NamedTuple):
    """Power at each frequency, the determinant ``CC SS - CS^2`` there and the weighted ``YY``."""

    power: NDArray[Any]
    det: NDArray[Any]
    yy: float


@dataclass(frozen=True)
class ReferencePeaks:
    """Peaks in falling order of power: grid index, and frequency and power of the maximum."""

    index: NDArray[np.int64]
    frequency: NDArray[np.float64]
    power: NDArray[np.float64]


def regular(f0: float, df: float, index: ArrayLike) -> NDArray[Any]:
    """``f0 + index * df`` in long double: the frequencies of a regular grid before they are rounded to float64."""
    return LONG(f0) + LONG(df) * np.asarray(index).astype(LONG)


def usable(t: ArrayLike, y: ArrayLike, dy: ArrayLike | None = None) -> NDArray[np.bool_]:
    """Rows where everything is finite."""
    keep = np.isfinite(np.asarray(t, np.float64)) & np.isfinite(np.asarray(y, np.float64))
    if dy is not None:
        keep &= np.isfinite(np.broadcast_to(np.asarray(dy, np.float64), keep.shape))
    return keep


def power(
    t: ArrayLike,
    y: ArrayLike,
    dy: ArrayLike | None = None,
    *,
    frequency: ArrayLike,
    fit_mean: bool = True,
    center_data: bool = True,
    normalization: str = "standard",
    precision: type[np.floating[Any]] = LONG,
) -> ReferencePower:
    """Generalised Lomb-Scargle power by direct sums (Zechmeister & Kuerster 2009, eqs. 4-15).

    ``frequency`` may be long double (see :func:`regular`).  With ``precision=numpy.float64`` the
    phases are still reduced in long double, but sines and sums are float64: some ten times faster,
    good to about 1e-15 / det.  Rows that are not finite are left out.
    """
    keep = usable(t, y, dy)
    times = np.asarray(t, np.float64)[keep].astype(LONG)
    values = np.asarray(y, np.float64)[keep].astype(LONG)
    errors = np.ones_like(values) if dy is None else np.broadcast_to(np.asarray(dy, np.float64), keep.shape)[keep]
    inverse_variance = 1 / errors.astype(LONG) ** 2
    weights = inverse_variance / inverse_variance.sum()
    if center_data or fit_mean:
        values = values - (weights * values).sum()
    yy = (weights * values**2).sum()
    times = times - times.min()

    freq = np.atleast_1d(np.asarray(frequency)).astype(LONG)
    w, wy = weights.astype(precision), (weights * values).astype(precision)
    raw, det = np.empty(freq.size, precision), np.empty(freq.size, precision)
    block = max(1, 200_000 // max(1, times.size))
    for start in range(0, freq.size, block):
        rows = slice(start, start + block)
        phase = freq[rows, None] * times
        phase -= np.floor(phase)
        angle = (TWO_PI * phase).astype(precision)
        raw[rows], det[rows] = _fit(np.cos(angle), np.sin(angle), w, wy, fit_mean)
    scaled = normalise(raw, yy.astype(precision), inverse_variance.sum().astype(precision), times.size, normalization)
    return ReferencePower(scaled, det, float(yy))


def _fit(
    cosine: NDArray[Any], sine: NDArray[Any], w: NDArray[Any], wy: NDArray[Any], fit_mean: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Reduction of chi-square and determinant for one block of frequencies (rows) over all points (columns)."""
    ch, sh = (wy * cosine).sum(axis=1), (wy * sine).sum(axis=1)
    if fit_mean:  # columns orthogonal to the constant: CC = sum w cos^2 - C^2 and so on, without the cancellation
        cosine = cosine - (w * cosine).sum(axis=1)[:, None]
        sine = sine - (w * sine).sum(axis=1)[:, None]
    cc, ss, cs = (w * cosine**2).sum(axis=1), (w * sine**2).sum(axis=1), (w * cosine * sine).sum(axis=1)
    det = cc * ss - cs**2
    trace, eps = cc + ss, np.finfo(w.dtype).eps
    with np.errstate(divide="ignore", invalid="ignore"):
        full = (ss * ch**2 + cc * sh**2 - 2 * cs * ch * sh) / det
        # One column only (the matrix has rank 1): the fit along its one direction, by the pseudo-inverse;
        # no column at all (every phase equal, floating mean): nothing is reduced.
        rank_one = np.where(trace > RANK_ONE * eps**2, (cc * ch**2 + 2 * cs * ch * sh + ss * sh**2) / trace**2, 0)
    return np.where(det > RANK_ONE * eps * trace**2, full, rank_one), det


def normalise(raw: NDArray[Any], yy: Any, sum_inverse_variance: Any, n_points: int, normalization: str) -> NDArray[Any]:
    """Convert the reduction of chi-square (for weights of sum 1) to a normalisation."""
    standard = raw / yy
    with np.errstate(divide="ignore", invalid="ignore"):
        if normalization == "standard":
            return standard
        if normalization == "model":
            return standard / (1 - standard)
        if normalization == "log":
            return -np.log(1 - standard)
        if normalization == "psd":
            return standard * yy * sum_inverse_variance / 2
        if normalization == "scargle":
            return standard * yy * n_points / 2
    raise ValueError(f"normalization={normalization!r} has no formula here (`normalise` of tests/truth/periodogram.py)")


def peaks(
    frequency: ArrayLike,
    power: ArrayLike,
    n_peaks: int,
    span: float,
    exact: Callable[[NDArray[np.float64]], ArrayLike] | None = None,
    harmonics: int = 1,
) -> ReferencePeaks:
    """The ``n_peaks`` highest maxima at least ``1/span`` apart, from the whole periodogram.

    ``power`` are standard powers.  A sample is a candidate when it is above the one before it and not below the one
    after it (a missing or NaN neighbour is below everything).  Candidates are taken in falling order of power, and at
    equal power in rising order of frequency.  A candidate nearer than ``1/span`` to a peak already taken is left out.

    Without ``exact`` the peaks are these samples.  ``exact`` returns the standard power at any frequencies; with it,
    `refine` finds the maximum beside each candidate.  Up to ``MOST_TRIES`` of the other candidates are then refined as
    well.  The highest of these, if it is the highest of all, replaces the nearest peak within ``1/span`` of it, else
    the lowest peak.
    Missing peaks have the index -1, and NaN elsewhere.
    """
    freq, height = np.asarray(frequency, np.float64), np.asarray(power, np.float64)
    n = height.size
    candidates = []
    for j in range(n):
        if np.isnan(height[j]):
            continue
        before = -np.inf if j == 0 or np.isnan(height[j - 1]) else height[j - 1]
        after = -np.inf if j == n - 1 or np.isnan(height[j + 1]) else height[j + 1]
        if (j == 0 or height[j] > before) and height[j] >= after:
            candidates.append(j)
    candidates.sort(key=lambda j: (-height[j], j))
    distance = least_distance(span)
    taken: list[int] = []
    for j in candidates:
        if len(taken) < n_peaks and all(abs(freq[j] - freq[a]) >= distance for a in taken):
            taken.append(j)
    found = [(j, float(freq[j]), float(height[j])) for j in taken]
    if exact is not None:
        others = [j for j in candidates if j not in taken][:MOST_TRIES]
        refined = lambda j: (j, *refine(freq, j, 1 / (span * harmonics), exact))  # noqa: E731
        found = with_highest([refined(j) for j in taken], [refined(j) for j in others], span)
    found = found[:n_peaks] + [(-1, np.nan, np.nan)] * (n_peaks - len(found))
    return ReferencePeaks(
        np.array([j for j, _, _ in found], np.int64),
        np.array([f for _, f, _ in found], np.float64),
        np.array([p for _, _, p in found], np.float64),
    )


def with_highest(
    found: list[tuple[int, float, float]], others: list[tuple[int, float, float]], span: float
) -> list[tuple[int, float, float]]:
    """Peaks (sample, frequency, power) in falling order, and before them the highest of ``others`` if it is the highest
    of all; it replaces the nearest peak within ``1/span``.  A list longer by one than ``found`` is to be cut."""
    key = lambda peak: (-peak[2], peak[0])  # noqa: E731
    further, ordered = sorted(others, key=key)[:1], sorted(found, key=key)
    if further and further[0][2] > ordered[0][2] + HIGHER:
        nearest = min(ordered, key=lambda peak: abs(peak[1] - further[0][1]))
        if abs(nearest[1] - further[0][1]) * span < 1:
            ordered.remove(nearest)
        ordered = further + ordered
    return ordered


def least_distance(span: float) -> float:
    """The least distance of two peaks in frequency, less a part for the rounding of frequencies."""
    return (1 - 1e-9) / span


def refine(
    frequency: NDArray[np.float64], j: int, width: float, exact: Callable[[NDArray[np.float64]], ArrayLike]
) -> tuple[float, float]:
    """Frequency and power of the highest maximum beside sample ``j``.

    Of 41 powers in an interval the highest is taken, and its two neighbours bound the next interval, until an interval
    is not longer than 1e-9 of ``width``.  Since the power is accurate to some 1e-15, the frequency of a maximum is
    accurate to some 1e-8 of ``width``.
    """
    x = float(frequency[j])
    below = x - float(frequency[j - 1]) if j > 0 else 0.0
    above = float(frequency[j + 1]) - x if j + 1 < len(frequency) else 0.0
    low = max(x - min(max(below, LEAST * width), width), float(frequency[0]))
    high = min(x + min(max(above, LEAST * width), width), float(frequency[-1]))
    best, top = x, -np.inf
    while high - low > 1e-9 * width:
        trial = np.linspace(low, high, 41)
        power = np.asarray(exact(trial), np.float64)
        k = int(np.nanargmax(power)) if np.isfinite(power).any() else 0
        if power[k] > top:
            best, top = float(trial[k]), float(power[k])
        low, high = trial[max(k - 1, 0)], trial[min(k + 1, 40)]
    return best, top if np.isfinite(top) else float("nan")
