"""Simulated light curves with known periods: asteroids as a survey telescope observes them.

Everything is drawn with PCG64 from a seed, so the same call gives the same arrays on every machine.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

DUSK, DAWN = 0.25, 0.70
"""Fraction of a day in which observations are made."""

BAD_FRACTION, BAD_FACTOR = 0.2, 10.0
"""A fifth of the points, at random, have ten times the error."""

ERROR_RANGE = (0.05, 0.15)
"""Errors of the other points in magnitudes, uniform."""


@dataclass(frozen=True, eq=False)
class SimulatedLightCurves:
    """A batch of simulated light curves, with the true parameters.

    Rows of object ``i`` are ``offsets[i]:offsets[i+1]`` of ``t`` (days), ``y`` and ``dy``
    (magnitudes).  ``period`` (days) and ``amplitude`` (peak to peak, magnitudes) are the light
    curve's own: an asteroid shows two maxima a turn, so it rotates in ``2 * period``.
    """

    t: NDArray[np.float64]
    y: NDArray[np.float64]
    dy: NDArray[np.float64]
    offsets: NDArray[np.int64]
    period: NDArray[np.float64]
    amplitude: NDArray[np.float64]

    @property
    def n_obs(self) -> NDArray[np.int64]:
        """Number of observations of each object."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.period)

    def sha256(self) -> str:
        """Digest of offsets, t, dy, the parameters, and y in whole micromagnitudes.

        ``y`` holds sines, whose last bit depends on the C library; a micromagnitude does not.
        """
        digest = hashlib.sha256()
        micro = np.rint(self.y * 1e6).astype("<i8")
        for array in (self.offsets.astype("<i8"), self.t, self.dy, self.period, self.amplitude, micro):
            digest.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes())
        return digest.hexdigest()


def simulate_light_curves(
    period: ArrayLike,
    amplitude: ArrayLike,
    n_obs: ArrayLike,
    *,
    magnitude: ArrayLike = 18.0,
    span: int = 120,
    seed: int = 1,
) -> SimulatedLightCurves:
    """Sinusoids that are observed on random nights, with Gaussian noise of the given errors.

    Parameters
    ----------
    period : array_like
        Light-curve periods in days, one an object.
    amplitude : array_like
        Peak to peak, in magnitudes.
    n_obs : array_like of int
        Observations of each object.
    magnitude : array_like
        Mean magnitudes.
    span : int
        Nights.  Each observation falls on a random one of them, between dusk and dawn.
    seed : int
        Same seed, same arrays.

    Returns
    -------
    SimulatedLightCurves

    Examples
    --------
    >>> made = simulate_light_curves([0.5, 0.2], [1.0, 0.6], [40, 60], seed=3)
    >>> made.t.shape, made.offsets.tolist()
    ((100,), [0, 40, 100])
    """
    n_obs = np.atleast_1d(np.asarray(n_obs, dtype=np.int64))
    if n_obs.ndim != 1 or np.any(n_obs < 0):
        raise ValueError("n_obs must be a list of counts, none negative")
    if span < 1:
        raise ValueError(f"span must be at least one night, not {span}")
    n = len(n_obs)
    period, amplitude, mean = (
        np.ascontiguousarray(np.broadcast_to(np.asarray(a, np.float64), (n,))) for a in (period, amplitude, magnitude)
    )
    if not np.all(period > 0):
        raise ValueError("every period must be positive")
    rng = np.random.Generator(np.random.PCG64(seed))
    offsets = np.concatenate([[0], np.cumsum(n_obs)]).astype(np.int64)
    total = int(offsets[-1])
    phase = rng.random(n)
    night = np.floor(rng.random(total) * span)
    t = night + (DUSK + (DAWN - DUSK) * rng.random(total))
    t = t[np.lexsort((t, np.repeat(np.arange(n), n_obs)))]
    low, high = ERROR_RANGE
    dy = (low + (high - low) * rng.random(total)) * np.where(rng.random(total) < BAD_FRACTION, BAD_FACTOR, 1.0)
    noise = rng.standard_normal(total)
    turns = np.repeat(phase, n_obs) + t / np.repeat(period, n_obs)
    y = np.repeat(mean, n_obs) + 0.5 * np.repeat(amplitude, n_obs) * np.sin(2 * np.pi * (turns % 1.0)) + dy * noise
    return SimulatedLightCurves(t, np.round(y, 6), dy, offsets, period, amplitude)


def simulate_asteroids(n_objects: int, *, span: int = 120, seed: int = 1) -> SimulatedLightCurves:
    """Asteroids with parameters like those of the published simulations, no file needed.

    Two-sided log-normal distributions, whose 5%, 50% and 95% points are those of the 1,000 objects
    of Gowanlock et al. 2021: observations 19, 110, 511 (within 5 to 1,671); light-curve periods
    4.1, 12.2, 54 h (within 2.2 to 300 h); amplitudes 0.51, 1.0, 1.95 mag.

    Examples
    --------
    >>> made = simulate_asteroids(200, seed=1)
    >>> bool((made.period * 24 >= 2.2).all()), len(made)
    (True, 200)
    """
    rng = np.random.Generator(np.random.PCG64([seed, n_objects]))

    def draw(low: float, median: float, high: float, least: float, most: float) -> NDArray[np.float64]:
        z = rng.standard_normal(n_objects) / 1.6448536269514722
        return np.clip(median * np.exp(z * np.log(np.where(z < 0, median / low, high / median))), least, most)

    n_obs = np.rint(draw(19, 110, 511, 5, 1671)).astype(np.int64)
    hours = np.round(draw(4.1, 12.2, 54, 2.2, 300), 6)
    amplitude = np.round(draw(0.51, 1.0, 1.95, 0.27, 3.3), 6)
    return simulate_light_curves(hours / 24.0, amplitude, n_obs, span=span, seed=seed)
