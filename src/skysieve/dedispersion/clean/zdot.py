"""The z-dot filter: each channel less its projection on the mean over the channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.dedispersion.contract import block_samples
from skysieve.dedispersion.data.filterbank import Filterbank, Paths, as_filterbank

from .rfi import ZeroDmReader

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["z_dot"]

LEAST = 4
"""A last block shorter than 1 / ``LEAST`` of a block takes the coefficients of the block before it."""


class ZDotReader(ZeroDmReader):
    """A filterbank less ``a_c s(t) + b_c`` in channel ``c``: the least-squares fit of the mean over the channels."""

    def __init__(self, fb: Filterbank, ignore: ArrayLike = ()) -> None:
        super().__init__(fb, ignore)
        self.length = block_samples(fb.tsamp)
        self.blocks = max(1, -(-(fb.nsamp - self.length // LEAST) // self.length))
        self._last: tuple[int, NDArray[np.float64], NDArray[np.float64]] | None = None

    def read(self, start: int, count: int) -> NDArray[Any]:
        """Samples ``start : start + count``, shape (count, nchan)."""
        x = self.fb.block(start, count).T
        out = np.empty(x.shape, self.dtype)
        at = start
        while at < start + count:
            number = min(at // self.length, self.blocks - 1)
            stop = start + count if number == self.blocks - 1 else min(start + count, (number + 1) * self.length)
            slope, offset = self._fit(number)
            some = x[at - start : stop - start]
            value = some - (slope * self.means(some)[:, None] + offset)
            if not self.real:
                value = np.clip(np.rint(self.scale * value) + self.middle, 0, self.maximum)
            out[at - start : stop - start] = value
            at = stop
        return out

    def _fit(self, number: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Slope and offset of each channel in a block."""
        if self._last is not None and self._last[0] == number:
            return self._last[1:]
        start = number * self.length
        stop = self.nsamp if number == self.blocks - 1 else start + self.length
        x = self.fb.block(start, stop - start).T.astype(np.float64)
        good = np.isfinite(x)
        live = np.maximum(good.sum(axis=0), 1)
        mean = np.where(good, x, 0.0).sum(axis=0) / live
        x = np.where(good, x - mean, 0.0)
        s = self.means(self.fb.block(start, stop - start).T)
        middle = (s @ good) / live  # mean over the finite samples of each channel
        spread = (s**2 @ good) / live - middle**2
        together = (s @ x) / live
        slope = np.divide(together, spread, out=np.zeros_like(mean), where=spread > 1e-12 * middle**2)
        self._last = number, slope, mean - slope * middle
        return self._last[1:]


def z_dot(data: Filterbank | Paths, *, ignore: ArrayLike = ()) -> Filterbank:
    """The z-dot filter: each channel less its projection on the mean over the channels (Men et al. 2019).

    In blocks of 2 s, ``a s(t) + b`` is fitted to each channel by least squares and subtracted; ``s(t)`` is the mean
    over the channels.  In contrast to `zero_dm`, which subtracts the same mean from all channels, the filter removes
    broadband interference also if its strength differs from channel to channel, and channels without interference keep
    their samples.  A pulse whose sweep is about as long as its width, or shorter, is removed like interference.

    The type and the range of the samples of the result are those of `zero_dm`.

    Parameters
    ----------
    data : Filterbank, path or sequence of paths
    ignore : sequence of int, optional
        As for `zero_dm`.

    Returns
    -------
    Filterbank

    Examples
    --------
    >>> import numpy as np
    >>> x = np.outer([1, 2, 3], [0, 8, 0, 4]).astype(np.float32)
    >>> bool(np.abs(z_dot(Filterbank.from_array(x, fch1=1500, foff=-1, tsamp=1e-3)).read()).max() < 1e-6)
    True
    """
    return Filterbank([ZDotReader(as_filterbank(data), ignore)])
