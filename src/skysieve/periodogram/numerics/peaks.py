"""The choice of peaks among the samples of a periodogram, their refinement, and their errors.

The rules that both backends follow:

1. A candidate is a sample above its left and not below its right neighbour; the ends of the grid count.
2. Candidates are chosen greedily by the *standard* power of the sample: the highest (ties to the lower frequency),
   then the highest that is at least 1/T from all chosen ones.  The first ``n_peaks`` are refined.  Of the others, the
   highest are refined too, up to ``more_tries(n, harmonics)`` of them (n points), if their sample is at least
   `least_share` of the highest sample: the highest maximum of all may lie beside them.  These may be at any distance
   from others: with several terms, maxima lie within 1/T of one another.
3. Each is refined to the highest maximum of the exact standard power between its two neighbouring samples, but no
   farther than ``1 / (T * harmonics)`` from its sample, and as far as ``LEAST / (T * harmonics)`` where samples lie
   closer: rounding may move the highest of them.  The interval ends at the first and last frequency of the grid.
   Where the power rises towards an end of the interval, that end is the answer and the curvature is NaN.  Newton's
   method begins at the vertex of the parabola through the three samples, or at the sample if the power is higher there.
4. The maxima of the first ``n_peaks`` are the answer, in falling order (ties to the lower frequency).  A further one
   counts only if it is the highest of all, by more than ``HIGHER``: then it comes first, in place of the nearest
   of the others if that is within 1/T, else of the lowest.

`harmonics` is the highest multiple of the frequency in the model.  Where the interval of rule 3 is wider than
``WIDE / (T * harmonics)``, it may hold several maxima: trials are made to either side of the sample in equal steps
of at most ``STEP / (T * harmonics)`` first, and the highest trial is refined between its neighbours.

The engines give the standard power and its curvature; the other normalisations and the errors follow here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .normalization import chi_square

if TYPE_CHECKING:
    from numpy.typing import NDArray

MORE_TRIES = 15
"""Largest number of further candidates that are refined, for one sinusoid."""
SERIES_TRIES = 30
"""The same for several terms, which have more maxima, with fewer samples each.  (At 5 samples in 1/T, the highest
maximum of 200 points in two short runs, fitted with 3 terms, was not found in 22% of draws with 15, 3% with 30, and
3% with 63 further candidates.)"""
FEW, MOST_TRIES = 32, 63
"""For up to ``FEW`` points, ``MOST_TRIES``: they have high peaks everywhere, and refinement is cheap.  (At 2 samples
a peak, the highest maximum of 8 to 13 points was not among 16 candidates in 6% of draws.)"""
HIGHER = 1e-12
"""Difference of two powers that is more than rounding."""
LOWER = 1e-4
"""Difference of the power at the vertex from that of the sample that is more than rounding, also in float32."""
LEAST = 0.1
"""Least reach of an interval to either side, in 1/(T harmonics)."""
WIDE = 0.6
"""Widths of 1/(T harmonics) up to which an interval is taken to hold one maximum."""
STEP = 0.2
"""Step between trial frequencies in a wider interval, in 1/(T harmonics)."""


def more_tries(n: int, harmonics: int) -> int:
    """Further candidates that are refined at most, for a light curve of ``n`` points."""
    return MOST_TRIES if n <= FEW else MORE_TRIES if harmonics <= 1 else SERIES_TRIES


def least_share(step: float, span: float, harmonics: int) -> float:
    """Least power of the sample nearest to a maximum, in parts of that maximum.

    A function of exponential type ``2 pi T`` that is bounded by its maximum and not negative falls from it no faster
    than ``cos(pi T x)**2``; the nearest sample is at most half a step away.

    Parameters
    ----------
    step : float
        Step of the grid; the larger distance to a neighbour for a list of frequencies.
    span : float
        Time span T.
    harmonics : int
        Highest multiple of the frequency in the model.

    Examples
    --------
    >>> round(least_share(0.2, 1.0, 1), 3), round(least_share(0.5, 1.0, 1), 3), least_share(2.0, 1.0, 1)
    (0.905, 0.5, 0.0)
    """
    quarter_turns = step * span * harmonics
    return float(np.cos(0.5 * np.pi * quarter_turns) ** 2) if quarter_turns < 1 else 0.0


SURE = 5.0
"""Standard deviations of chi-square beyond which the residuals contradict the errors that were given."""


def frequency_error(
    power: Any, curvature: Any, mean_square: Any, weight: Any, n_used: Any, parameters: Any, has_dy: bool
) -> NDArray[np.float64]:
    """Standard error (1 sigma) of the frequency of a peak.

    The chi-square of the fit, ``chi2 = chi2_0 (1 - P)`` with ``chi2_0`` that of the constant model, is least at the
    peak, and exceeds its minimum by 1 at one standard error: ``sigma = sqrt(2 / (chi2_0 |P''|))``.  For one sinusoid
    in white noise this is ``sqrt(6 / N) s / (pi T A)`` (Montgomery & O'Donoghue 1999, DSSN 13, 28).

    Without errors, the variance of the residuals takes their place.  Given errors are used as they are, unless the
    chi-square of the residuals exceeds its expectation, the degrees of freedom, by more than ``SURE`` standard
    deviations: then the error grows by the square root of chi-square per degree of freedom.

    Parameters
    ----------
    power, curvature : array_like
        Standard power of a peak and its second derivative with respect to frequency.
    mean_square, weight, n_used : array_like
        Of the light curve, see `contract.Output`.
    parameters : array_like
        Number of parameters of the fit at one frequency.
    has_dy : bool
        Whether errors were given.

    Returns
    -------
    numpy.ndarray
        NaN without a degree of freedom, where the curvature is NaN, or where errors were given and `chi_square` is NaN.

    Examples
    --------
    >>> sigma = frequency_error(0.5, -0.5 * 2 * np.pi**2 / 3, 1.0, 300.0, 300, 3, False)  # T = 1, A^2 = 2 s^2
    >>> round(float(sigma * np.pi * np.sqrt(300 / 6) * np.sqrt(2)), 3)
    1.007
    """
    bend = np.abs(np.asarray(curvature, np.float64))
    free = np.asarray(n_used, np.float64) - parameters - 1
    rest = np.maximum(1 - np.asarray(power, np.float64), 0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scatter = np.sqrt(2 * rest / (free * bend))
        if has_dy:
            reference = chi_square(mean_square, weight)
            excess = reference * rest > free + SURE * np.sqrt(2 * free)
            scatter = np.where(excess, scatter, np.sqrt(2 / (reference * bend)))
    return np.asarray(np.where((free > 0) & np.isfinite(scatter), scatter, np.nan))
