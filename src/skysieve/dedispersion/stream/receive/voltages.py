"""Voltages with the power of a filterbank file, as a telescope would have sent them before its channeliser.

Each sample of the file becomes spectra of complex amplitudes, the square roots of its powers with random phases; the
inverse Fourier transform of the channels of a subband gives voltages.  A receiver that channelises them gets the powers
of the file again, apart from the rounding of the voltages to 8 bits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from skysieve.dedispersion.data.observation import epoch_of
from skysieve.dedispersion.injections.noise import clipped_moments
from skysieve.dedispersion.stream.receive.packets import VOLTAGE, Geometry, chunks_for

from .dada_file import header_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.data.filterbank import Filterbank

__all__ = ["Voltages"]

RMS = 20.0
"""Rms of the real part and of the imaginary part, in counts; 8 bits can hold values six times as large."""
BLOCK = 64
"""Number of samples of the file that share a generator of random phases."""
MEASURED = 4096
"""Number of samples of the file from which the mean power is measured."""
LEVEL, SCATTER = 96.0, 16.0
"""Mean and sigma to which samples of signed numbers or floats are scaled before they are used as powers."""


class Voltages:
    """Voltages of 8 + 8 bits that have the power of a filterbank.

    Parameters
    ----------
    source : Filterbank
    channels : int
        Channels of a subband.
    spectra : int
        Spectra for each sample of the file.
    seed : int
        Seed of the phases.

    Attributes
    ----------
    nsamp : int
        Voltages of a subband: ``channels * spectra`` for each sample of the file.
    tsamp : float
        Seconds between voltages.

    Raises
    ------
    ValueError
        The channels are not evenly spaced, or do not make two or more subbands.

    Examples
    --------
    >>> from skysieve.dedispersion import fake
    >>> fb = fake(nchan=32, duration=0.1, tsamp=1e-3, fch1=1500, foff=-8, period=None)
    >>> x = Voltages(fb, 8)
    >>> x.nsamp, x.steps(0, 800).shape
    (800, (800, 1, 8))
    """

    def __init__(self, source: Filterbank, channels: int, spectra: int = 1, seed: int = 0) -> None:
        o = source.observation
        if not o.regular:
            raise ValueError("voltages need evenly spaced channels")
        if spectra < 1:
            raise ValueError(f"spectra={spectra}: expected at least 1")
        if channels < 1 or o.nchan % channels or o.nchan // channels < 2:
            raise ValueError(f"channels={channels}: expected a divisor of {o.nchan} that gives at least two subbands")
        self.source, self.channels, self.spectra, self.seed = source, channels, spectra, seed
        self.nsub = o.nchan // channels
        self.each = channels * spectra
        self.nsamp, self.tsamp = source.nsamp * self.each, o.tsamp / self.each
        step = abs(o.foff)
        self.foff = -channels * step
        self.fch1 = o.top - (channels - 1 - channels // 2) * step  # of the channel at bin 0
        self.step = 2 * self.nsub
        k = np.arange(channels)
        rising = np.where(k >= -(-channels // 2), k - channels, k) + channels // 2
        self._row_of_bin = channels - 1 - rising
        some = source.block(0, min(source.nsamp, MEASURED)).astype(np.float64)
        some = np.where(np.isfinite(some), some, 0.0)
        self._scaled = source.dtype.kind != "u"
        self._level, self._sigma = np.zeros(o.nchan), np.ones(o.nchan)
        if self._scaled:
            self._level, sigma = clipped_moments(some)
            self._sigma = np.where(sigma > 0, sigma, 1.0)
        mean = float(self._power(some.T).mean())
        if not mean > 0:
            raise ValueError("the file has no power: all its samples are 0")
        self._scale = RMS * math.sqrt(2 * channels / mean)

    @property
    def text(self) -> bytes:
        """The header of a PSRDADA ring."""
        o = self.source.observation
        return header_text(1, self.nsub, tsamp=self.tsamp, fch1=self.fch1, foff=self.foff, tstart=o.tstart)

    def geometry(self, packet_bytes: int = 8192) -> Geometry:
        """The geometry of packets with at most this many bytes."""
        chunks, nsamp = chunks_for(self.nsub, self.step * 8, packet_bytes)
        return Geometry(
            VOLTAGE, 8, 1, min(nsamp, self.nsamp), self.nsub, chunks, epoch_of(self.source.observation.tstart),
            self.tsamp, self.fch1, self.foff,
        )  # fmt: skip

    def raw(self, start: int, count: int) -> NDArray[np.uint8]:
        """Voltages as bytes, one sample of all subbands after the other."""
        return self.steps(start, count).reshape(-1)

    def steps(self, start: int, count: int) -> NDArray[np.uint8]:
        """Voltages as bytes in the order of packets, shape (samples, 1, bytes)."""
        first, last = start // self.each, -(-(start + count) // self.each)
        parts = []
        for block in range(first // BLOCK, -(-last // BLOCK)):
            low, high = max(first, block * BLOCK), min(last, (block + 1) * BLOCK)
            parts.append(self._voltages(block, low, high))
        x = np.concatenate(parts)[start - first * self.each :][:count]
        return x.reshape(count, 1, self.step).view(np.uint8)

    def _power(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Samples as powers, at least 0."""
        if self._scaled:
            rows = LEVEL + SCATTER * (rows - self._level) / self._sigma
        return np.maximum(np.where(np.isfinite(rows), rows, 0.0), 0.0)

    def _voltages(self, block: int, low: int, high: int) -> NDArray[np.int8]:
        """Voltages of samples ``low : high`` of the file, which lie in a block; shape (voltages, subbands, 2)."""
        from scipy.fft import ifft

        rows = self._power(self.source.block(low, high - low).T.astype(np.float64))
        rng = np.random.default_rng([self.seed, block])
        turns = rng.random((BLOCK, self.spectra, rows.shape[1]), np.float32)[low - block * BLOCK : high - block * BLOCK]
        amplitudes = np.sqrt(rows).astype(np.float32)[:, None] * np.exp(2j * np.pi * turns).astype(np.complex64)
        bands = amplitudes.reshape(-1, self.nsub, self.channels)[:, :, self._row_of_bin]
        x = ifft(bands, axis=2).transpose(0, 2, 1).reshape(-1, self.nsub) * np.float32(self._scale)
        pairs = np.stack([x.real, x.imag], axis=2)
        return np.clip(np.rint(pairs), -127, 127).astype(np.int8)
