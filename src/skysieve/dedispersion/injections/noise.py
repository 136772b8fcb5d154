"""The noise of a receiver, as long as a campaign needs it, with interference if that is wanted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.dedispersion.data.filterbank import Filterbank
from skysieve.dedispersion.data.observation import Observation, regular_freqs
from skysieve.dedispersion.data.simulate import LEVELS, NoiseReader, robust_sigma

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Noise", "levels"]

PIECES, PIECE = 16, 1024
"""Pieces of data, and samples of each, from which level and sigma of each channel are taken."""


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

    def segment(self, seed: int, number: int = 0) -> Filterbank:
        """Noise that depends on the seed and the number of the segment: any other pair has other noise."""
        freqs = np.sort(regular_freqs(self.fch1, self.foff, self.nchan))[::-1]
        obs = Observation(freqs, self.tsamp, self.nbits, 56000.0, "noise", "Fake")
        nsamp = max(1, round(self.duration / self.tsamp))
        high, low = np.random.SeedSequence([seed, number]).generate_state(2, np.uint64)
        return Filterbank([NoiseReader(obs, nsamp, int(high) << 64 | int(low), *LEVELS[self.nbits])])


def levels(fb: Filterbank, noise: Noise | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Level and sigma of each channel: those of simulated noise, rounding included; of data from quartiles.

    Pieces in which a channel does not vary, because the beam is silent there, do not count.
    """
    if noise is not None:
        level, sigma = LEVELS[noise.nbits]
        rounding = 0.0 if noise.nbits == 32 else 1 / 12
        return np.full(fb.nchan, level), np.full(fb.nchan, math.sqrt(sigma**2 + rounding))
    count = min(fb.nsamp, PIECE)
    found: list[Any] = []
    for start in np.unique(np.linspace(0, fb.nsamp - count, PIECES).astype(int)):
        block = fb.block(int(start), count).astype(np.float64)
        good = [row[np.isfinite(row)] for row in block]
        found.append([(np.median(row) if len(row) else 0.0, robust_sigma(row)) for row in good])
    pieces = np.array(found)
    varies = pieces[:, :, 1] > 0
    pieces[~varies] = np.nan
    some = varies.any(axis=0)
    out = np.zeros((2, fb.nchan))
    out[:, some] = np.nanmedian(pieces[:, some], axis=0).T
    return out[0], out[1]
