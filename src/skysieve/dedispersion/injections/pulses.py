"""Pulses as a receiver records them: Gaussians, smeared within channels, scattered and sampled, of known ideal S/N."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from skysieve.dedispersion.data.delays import delay_seconds
from skysieve.dedispersion.data.observation import in_unit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.data.observation import Observation

__all__ = ["Pulse", "Recorded", "record", "spread_per_dm", "whole_counts"]

FWHM = math.sqrt(8 * math.log(2))
_SIGMAS = 5.0
"""Half the length of a pulse in standard deviations."""
_SCATTERINGS = 12.0
"""Length of a scattered tail in its time constants: exp(-12) of it is left out."""


@dataclass(frozen=True)
class Pulse:
    """A pulse to inject.  Numbers with a unit may be Quantities; the attributes are plain numbers.

    Attributes
    ----------
    dm : float
        pc / cm^3.
    time : float
        Seconds at which its middle, before scattering, arrives at the top of the band.
    width : float
        Full width at half maximum of the emitted Gaussian, seconds.
    snr : float
        S/N of the ideal boxcar, after smearing and sampling, in the channels that are neither masked nor constant.
    scatter : float
        Time constant of the exponential tail at mid band, seconds; it grows as the frequency to the power -4.
    index : float
        Spectral index: the height in a channel goes as the frequency to this power.
    band : tuple of float
        Part of the band that the pulse fills: from the bottom, 0, to the top, 1.

    Raises
    ------
    ValueError
        A number is not finite or out of its range, or has a unit that cannot be converted.
    """

    dm: float
    time: float
    width: float
    snr: float
    scatter: float = 0.0
    index: float = 0.0
    band: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        for name, unit in (("dm", "pc / cm3"), ("time", "s"), ("width", "s"), ("scatter", "s")):
            object.__setattr__(self, name, in_unit(name, getattr(self, name), unit))
        for name in ("dm", "time", "width", "snr", "scatter", "index"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name}={getattr(self, name)!r}: expected a finite number")
        for name in ("width", "snr"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected a number above 0")
        for name in ("dm", "scatter"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected a number from 0")


@dataclass(frozen=True)
class Recorded:
    """A pulse in units of the samples.

    Attributes
    ----------
    first : int64, shape (nchan,)
        First sample of each channel.
    counts : float64, shape (nchan, samples)
        Counts that the pulse adds to the samples.
    delays : int64, shape (nchan,)
        Delay of each channel behind the top of the band, in whole samples.
    begin, length : int
        The ideal boxcar: its first sample in the series that is de-dispersed to the top of the band, and its length.
    """

    first: NDArray[np.int64]
    counts: NDArray[np.float64]
    delays: NDArray[np.int64]
    begin: int
    length: int


def spread_per_dm(obs: Observation, dm_constant: float) -> float:
    """Seconds over which a DM error of 1 spreads a pulse; almost 0 for one channel, where the DM has no effect."""
    return max(dm_constant * (float(obs.freqs.min()) ** -2 - obs.top**-2), 1e-12)


def _times(
    obs: Observation, pulse: Pulse, dm_constant: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """For each channel, delay after the top of the band, smearing, and time constant of scattering; all in seconds."""
    f, half = obs.freqs, abs(obs.foff) / 2
    delay = delay_seconds(f, pulse.dm, obs.top, dm_constant)
    smear = delay_seconds(f - half, pulse.dm, obs.top, dm_constant)
    smear = np.maximum(smear - delay_seconds(f + half, pulse.dm, obs.top, dm_constant), 1e-3 * obs.tsamp)
    return delay, smear, pulse.scatter * (f / obs.centre) ** -4.0


def extent(obs: Observation, pulse: Pulse, dm_constant: float) -> tuple[NDArray[np.int64], int]:
    """The first sample of a pulse in each channel, and the number of samples, which is the same in all channels."""
    delay, smear, tau = _times(obs, pulse, dm_constant)
    before = _SIGMAS * pulse.width / FWHM + smear / 2
    first = np.floor((pulse.time + delay - before) / obs.tsamp).astype(np.int64)
    return first, math.ceil(float((2 * before + _SCATTERINGS * tau).max()) / obs.tsamp) + 2


def record(obs: Observation, pulse: Pulse, sigma: NDArray[np.float64], dm_constant: float) -> Recorded:
    """The samples of a pulse.

    Parameters
    ----------
    sigma : numpy.ndarray of float64, shape (nchan,)
        Noise of each channel, in counts.  A channel whose sigma is 0, because it is masked or constant, gets no counts
        and does not contribute to the S/N.

    Raises
    ------
    ValueError
        No channel lies in the part of the band, or the noise of none of them is above 0.
    """
    from .cpu_segments import best_boxcar, gaussian, shifted_sum

    f, step = obs.freqs, obs.tsamp
    delay, smear, tau = _times(obs, pulse, dm_constant)
    spread = pulse.width / FWHM
    first, samples = extent(obs, pulse, dm_constant)
    begin = first * step - (pulse.time + delay)
    if tau.any():
        edges = begin[:, None] + np.arange(samples + 1) * step
        area = _area(edges + smear[:, None] / 2, spread, tau) - _area(edges - smear[:, None] / 2, spread, tau)
        shape = np.diff(area / smear[:, None], axis=1)
    else:
        shape = np.empty((obs.nchan, samples))
        gaussian(begin, smear, spread, step, shape)
    low, high = (f.min() + part * (f.max() - f.min()) for part in pulse.band)
    inside = (f >= low) & (f <= high)
    if not inside.any():
        raise ValueError(f"band={pulse.band!r}: expected a part of the band that holds a channel")
    noise = math.sqrt(float((sigma**2).sum()))
    if not (math.isfinite(noise) and noise > 0):
        raise ValueError(
            f"snr={pulse.snr!r}: the samples do not vary (sigma is {noise:g} counts), so that a pulse has no S/N"
        )
    inside &= sigma > 0
    if not inside.any():
        raise ValueError(f"band={pulse.band!r}: all channels of this part of the band are masked or constant")
    shape *= (pulse.width / step * np.where(inside, (f / obs.centre) ** pulse.index, 0.0))[:, None]  # of height 1
    whole = np.rint(delay / step).astype(np.int64)
    at = first - whole
    start = int(at.min())
    series = np.zeros(int(at.max()) - start + samples)
    shifted_sum(shape, at - start, series)
    place, length, best = best_boxcar(series, np.unique(np.rint(np.geomspace(1, len(series), 400)).astype(np.int64)))
    shape *= pulse.snr * noise / best
    return Recorded(first, shape, whole, start + int(place), int(length))


LEAST_ROOM = 0.05
"""Lower limit of the fraction of the samples of a channel to which counts can be added."""


def whole_counts(counts: NDArray[np.float64], room: NDArray[np.float64]) -> NDArray[np.int32]:
    """Whole numbers to add to samples: the counts of each channel divided by its room (see `noise.Levels`).

    After saturated samples are clipped, the counts that were added have the wanted sum on average.  Fractions are
    carried from sample to sample and from channel to channel, so that rounding changes the sum by half a count at most.
    """
    running = np.rint(np.cumsum(counts / np.maximum(room, LEAST_ROOM)[:, None]))
    return np.diff(running, prepend=0.0).reshape(counts.shape).astype(np.int32)


def _area(x: NDArray[np.float64], sigma: float, tau: NDArray[np.float64]) -> NDArray[np.float64]:
    """The second integral, up to ``x``, of a Gaussian of area 1 that is scattered; ``tau`` of each row."""
    from scipy.special import log_ndtr, ndtr

    z = x / sigma
    out: NDArray[np.float64] = x * ndtr(z) + sigma / math.sqrt(2 * math.pi) * np.exp(-0.5 * z**2)
    t = tau[:, None]
    tail = np.exp(0.5 * (sigma / t) ** 2 - x / t + log_ndtr(z - sigma / t))
    out -= t * (ndtr(z) - tail)
    return out
