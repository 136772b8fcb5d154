"""Simulated noise of a receiver for the segments of a campaign, and the noise that is measured in data."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.dedispersion.clean.masks import Mask
from skysieve.dedispersion.data.filterbank import Filterbank
from skysieve.dedispersion.data.observation import Observation, regular_freqs
from skysieve.dedispersion.data.simulate import LEVELS, NoiseReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Levels", "Noise", "clipped_moments", "levels", "measured"]

CLIP = 4.0
"""Samples farther than this from the median, in sigma, do not count for level and sigma."""
PIECES, PIECE = 16, 1024
"""Number of pieces of data, and samples of each piece, from which level and sigma of each channel are measured."""


class QuickNoise(NoiseReader):
    """Gaussian noise that is computed in a third of the time of `NoiseReader`."""

    def draw(self, rng: np.random.Generator, out: NDArray[np.float32]) -> None:
        """Draw numbers of sigma 1 around 0, from 32 random bits each."""
        from .cpu_noise import normal

        bits = rng.integers(0, 2**64 - 1, (out.size + 1) // 2, np.uint64, endpoint=True)
        normal(bits.view(np.int32), out.reshape(-1))


@dataclass(frozen=True)
class Noise:
    """A receiver that records Gaussian noise.

    Attributes
    ----------
    nchan : int
    fch1, foff : float
        Centre of the first channel and step from channel to channel, MHz.
    tsamp : float
        Seconds.
    nbits : int
        Bits of a sample.
    duration : float
        Seconds of noise that are searched at a time; each segment has different noise.
    """

    nchan: int = 256
    fch1: float = 1500.0
    foff: float = -1.171875
    tsamp: float = 256e-6
    nbits: int = 8
    duration: float = 60.0

    def __post_init__(self) -> None:
        if self.nbits not in LEVELS:
            raise ValueError(f"nbits={self.nbits!r}: expected one of {', '.join(map(str, LEVELS))}")
        for name in ("tsamp", "duration"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected seconds, above 0")

    @property
    def analog(self) -> bool:
        """Whether pulses are added before the noise is rounded; samples of 1 and 2 bits are too coarse for that."""
        return self.nbits >= 4

    def segment(self, seed: int, number: int = 0) -> Filterbank:
        """Noise of a segment; each pair of seed and number of the segment has different noise."""
        freqs = np.sort(regular_freqs(self.fch1, self.foff, self.nchan))[::-1]
        obs = Observation(freqs, self.tsamp, self.nbits, 56000.0, "noise", "Fake")
        nsamp = max(1, round(self.duration / self.tsamp))
        high, low = np.random.SeedSequence([seed, number]).generate_state(2, np.uint64)
        return Filterbank([QuickNoise(obs, nsamp, int(high) << 64 | int(low), *LEVELS[self.nbits])])


@dataclass(frozen=True)
class Levels:
    """Properties of the noise of each channel, in counts; arrays of float64, shape (nchan,).

    Attributes
    ----------
    level, sigma
        Mean and standard deviation.  The sigma of a channel that is masked or constant is 0; pulses are not added
        to it.
    room
        Fraction of the samples that are below the largest value, so that something can be added to them.
    """

    level: NDArray[np.float64]
    sigma: NDArray[np.float64]
    room: NDArray[np.float64]


def levels(fb: Filterbank, noise: Noise | None, ignore: Any = ()) -> Levels:
    """Level and sigma of each channel: known for simulated noise, including its rounding, and measured for data.

    Pieces in which a channel is constant, because the beam has no signal in them, do not count.  Channels of the list
    ``ignore`` have a sigma of 0.
    """
    if noise is not None and noise.analog:
        level, sigma = LEVELS[noise.nbits]
        rounding = 0.0 if noise.nbits == 32 else 1 / 12
        ones = np.ones(fb.nchan)
        known = Levels(level * ones, math.sqrt(sigma**2 + rounding) * ones, ones)
    else:
        known = levels_between(fb, 0, fb.nsamp)
    return without(known, ignore)


def without(known: Levels, ignore: Any) -> Levels:
    """The same levels, with a sigma of 0 in the channels of a list."""
    masked = Mask.channels(len(known.sigma), ignore).cells[:, 0]
    if masked.all():
        raise ValueError(f"ignore has all {len(masked)} channels: expected at least one channel that is searched")
    return replace(known, sigma=np.where(masked, 0.0, known.sigma))


def levels_between(fb: Filterbank, start: int, stop: int) -> Levels:
    """Level, sigma and room of each channel, measured in pieces of the samples ``start : stop``.

    Pieces in which a channel is constant do not count, unless it is constant in all.
    """
    count = min(stop - start, PIECE)
    starts = np.unique(np.linspace(start, stop - count, PIECES).astype(int))
    pieces = np.array([measured(fb.block(int(at), count), fb.maximum) for at in starts])
    varies = pieces[:, 1] > 0
    varies |= ~varies.any(axis=0)
    return Levels(*np.nanmedian(np.where(varies[:, None], pieces, np.nan), axis=0))


def measured(block: NDArray[Any], maximum: int) -> NDArray[np.float64]:
    """Level, sigma and room of each row, shape (3, nchan); see `Levels`."""
    room = (block < maximum).mean(axis=1) if maximum else np.ones(len(block))
    return np.array([*clipped_moments(block), room])


def clipped_moments(block: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of each row, without values beyond `CLIP` sigma of the median.

    Quartiles alone are too coarse for samples of few bits.  Rows without numbers count as zeros.
    """
    x = block.astype(np.float64)
    finite = np.isfinite(x)
    empty = ~finite.any(axis=1)
    x[empty], finite[empty] = 0.0, True
    quantile: Any = np.quantile if finite.all() else np.nanquantile  # `nanquantile` is ten times slower
    x[~finite] = np.nan
    low, middle, high = quantile(x, (0.25, 0.5, 0.75), axis=1)
    spread = (high - low) / 1.3489795
    wide = np.where(spread > 0, CLIP * np.maximum(spread, 1.0 if block.dtype.kind != "f" else 0.0), np.inf)
    x[np.abs(x - middle[:, None]) > wide[:, None]] = np.nan
    return np.nanmean(x, axis=1), np.nanstd(x, axis=1)


def level_near(block: NDArray[Any], known: Levels) -> NDArray[np.float64]:
    """Mean of each row, without values more than `CLIP` sigma away from it: the local level of data that drift."""
    x = block.astype(np.float32)
    good = np.isfinite(x)
    x[~good] = 0.0
    level = x.sum(axis=1, dtype=np.float64) / np.maximum(good.sum(axis=1), 1)
    for _ in range(2):
        some = good & (np.abs(x - level[:, None]) <= CLIP * known.sigma[:, None])
        count = some.sum(axis=1)
        level = np.where(count > 0, (x * some).sum(axis=1, dtype=np.float64) / np.maximum(count, 1), level)
    return level
