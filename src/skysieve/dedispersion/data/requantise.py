"""Floating-point, scaled or wide samples as 8-bit integers with equal noise in every channel."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .filterbank import ChangedReader, Filterbank, Paths, as_filterbank

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["requantise"]

LEVEL, COUNTS = 64.0, 10.0
"""Mean and sigma of the result, in counts: 8 bits cover -6.4 to 19.1 sigma."""
LOSS = 1 - 1 / math.sqrt(1 + 1 / (12 * COUNTS**2))
"""Fraction of the S/N that rounding costs: it adds a variance of 1/12 count^2 to one of ``COUNTS**2``."""
MOST_LEVEL, MOST_SCALE = 0.5, 1.25
"""A channel keeps its level and scale until its mean has changed by this many sigma, or its sigma by this factor."""
BLOCK_SECONDS, PARTS = 2.0, 16
"""Length of a block in seconds, and number of its parts, over whose statistics medians are taken."""
BLOCK_VALUES = 2**24
"""Most samples x channels of a block."""
LEAST_BLOCK = 1024
"""Fewest samples of a block."""
LEAST_PART = LEAST_BLOCK // PARTS
"""Fewest samples of a part, except in shorter data: the sigma of few samples is too small on average."""
LEAST = 4
"""A last block shorter than 1 / ``LEAST`` of a block takes level and scale of the block before it."""


class RequantisedReader(ChangedReader):
    """The samples of a filterbank, rounded to 8 bits with ``COUNTS`` counts a sigma; see `requantise`."""

    def __init__(self, fb: Filterbank, block: int) -> None:
        super().__init__(fb)
        self.block = block
        self.observation = fb.observation.replace(nbits=8, extra={**fb.observation.extra, "requantise_loss": LOSS})
        self.dtype, self.maximum = np.dtype(np.uint8), 255
        self._levels: list[tuple[NDArray[np.float32], NDArray[np.float32]]] = []
        self._held = np.zeros(fb.nchan), np.zeros(fb.nchan)

    def levels(self, number: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Level and scale of the channels in a block; those of earlier blocks are computed first."""
        while len(self._levels) <= number:
            start = len(self._levels) * self.block
            self._levels.append(self._next(start, min(self.block, self.nsamp - start)))
        return self._levels[number]

    def _next(self, start: int, count: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        from skysieve.dedispersion.cpu import load as cpu_load

        if start and count < self.block // LEAST:
            return self._levels[-1]
        step = max(-(-count // PARTS), LEAST_PART)
        parts = []
        for at in range(start, start + count, step):
            found = np.empty((2, self.fb.nchan))
            cpu_load.channel_moments(_rows(self.fb, at, min(step, start + count - at)), found[0], found[1])
            parts.append(found)
        mean, sigma = _median(np.array(parts))
        live = sigma > 0
        level, scale = self._held
        with np.errstate(invalid="ignore"):
            ratio = sigma * scale / COUNTS
            moved = (np.abs(mean - level) > MOST_LEVEL * sigma) | (ratio > MOST_SCALE) | (ratio < 1 / MOST_SCALE)
        moved &= live
        level[moved], scale[moved] = mean[moved], COUNTS / sigma[moved]
        return level.astype(np.float32), np.where(live, scale, 0).astype(np.float32)

    def read(self, start: int, count: int) -> NDArray[np.uint8]:
        """Samples ``start : start + count``, shape (count, nchan)."""
        from skysieve.dedispersion.cpu import load as cpu_load

        out = np.empty((count, self.fb.nchan), np.uint8)
        at = start
        while at < start + count:
            number = at // self.block
            n = min(start + count, (number + 1) * self.block) - at
            level, scale = self.levels(number)
            cpu_load.round_rows(
                _rows(self.fb, at, n), level, scale, np.float32(LEVEL), out[at - start : at - start + n]
            )
            at += n
        return out


def _median(parts: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Medians of (parts, 2, channels) over the parts whose sigma is above 0; NaN if there are none."""
    values = np.sort(np.where(parts[:, 1:] > 0, parts, np.nan), axis=0)  # NaN last
    count = np.isfinite(values[:, :1]).sum(axis=0, keepdims=True)
    low, high = (np.take_along_axis(values, np.maximum(i, 0), axis=0)[0] for i in ((count - 1) // 2, count // 2))
    middle = (low + high) / 2
    return middle[0], middle[1]


def _rows(fb: Filterbank, start: int, count: int) -> NDArray[Any]:
    """A contiguous array of samples x channels, in falling order of frequency."""
    return np.ascontiguousarray(fb.block(start, count).T)


def requantise(data: Filterbank | Paths) -> Filterbank:
    """Convert samples to 8-bit integers with the same noise in every channel: a flat bandpass.

    The samples of a channel are taken relative to its mean, in units of a tenth of its sigma, and centred on 64.
    Rounding costs 0.04% of the S/N (``observation.extra["requantise_loss"]`` of the result), and samples below -6.4 or
    above 19.1 sigma are clipped.  Integers are searched several times faster than float32, and are summed exactly.  All
    channels of the result have equal noise, so that sums over channels are weighted by the inverse of the original
    sigma of each channel.

    Parameters
    ----------
    data : Filterbank, path or sequence of paths
        Samples of any type; the data are not changed.

    Returns
    -------
    Filterbank

    Notes
    -----
    Mean and sigma are medians over 16 parts of a block (2 s, or less for very many channels), so that a pulse or a
    burst of interference does not change them.  A channel keeps them until its mean has moved by half a sigma or its
    sigma by a factor of 1.25: stationary data have one scale, without steps.  Blocks are anchored at sample 0 and do
    not depend on later ones.  A last block shorter than a quarter of a block takes the scale of the block before it.
    Parts have at least 64 samples.  Values that are not finite, and constant channels, become 64.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(1000, 3, (4, 5000)).astype(np.float32)
    >>> y = requantise(Filterbank.from_array(x, fch1=1500, foff=-1, tsamp=1e-3)).read()
    >>> y.dtype.name, float(y.mean().round()), float(y.std().round())
    ('uint8', 64.0, 10.0)
    """
    fb = as_filterbank(data)
    longest = max(LEAST_BLOCK, BLOCK_VALUES // fb.nchan)
    return Filterbank([RequantisedReader(fb, min(longest, max(LEAST_BLOCK, round(BLOCK_SECONDS / fb.tsamp))))])
