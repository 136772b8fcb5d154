"""Simulated data: the test signal of the paper, pulsars, RRATs, scattered pulses; pulses added to data."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .delays import delay_seconds
from .filterbank import ChangedReader, Filterbank
from .observation import DM_CONSTANT, Observation, check_tsamp, in_unit, regular_freqs
from .readers import Reader, gaps_of, lost_of
from .write import write_fil

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["fake"]

NOISE_BLOCK = 4096
"""Samples that are drawn at a time: the noise of such a block depends only on the seed and the number of the block."""
PIECE = 2**20
"""Numbers that are drawn at a time.  Larger numbers need fewer calls, between which threads wait for the global
interpreter lock; smaller numbers need less memory."""
MOST_PULSES = 100_000
"""Most pulses at a fixed period, since each pulse is held in memory."""
LEVELS = {1: (0.5, 1.0), 2: (1.5, 1.0), 4: (6.0, 2.0), 8: (96.0, 16.0), 16: (4096.0, 256.0), 32: (0.0, 1.0)}
"""Mean and standard deviation of the noise in counts, by the number of bits."""


class NoiseReader:
    """Gaussian noise, drawn when it is read."""

    def __init__(self, obs: Observation, nsamp: int, seed: int, level: float, sigma: float) -> None:
        self.observation, self.nsamp, self.seed, self.level, self.sigma = obs, nsamp, seed, level, sigma
        self.order = np.arange(obs.nchan)
        self.maximum = 0 if obs.nbits == 32 else 2**obs.nbits - 1
        self.dtype: np.dtype[Any] = np.dtype({16: np.uint16, 32: np.float32}.get(obs.nbits, np.uint8))

    def close(self) -> None:
        """Does nothing."""

    def read(self, start: int, count: int) -> NDArray[Any]:
        """Samples ``start : start + count``, shape (count, nchan)."""
        return quantise(self.values(start, count), self.observation.nbits, self.dtype)

    def values(self, start: int, count: int) -> NDArray[np.float32]:
        """The samples of `read` before they are rounded and clipped."""
        out = np.empty((count, self.observation.nchan), np.float32)
        for number in range(start // NOISE_BLOCK, -(-(start + count) // NOISE_BLOCK)):
            for first, piece in self.drawn(number):
                low, high = max(first, start), min(first + len(piece), start + count)
                if low < high:
                    out[low - start : high - start] = piece[low - first : high - first]
        out *= np.float32(self.sigma)
        out += np.float32(self.level)
        return out

    def drawn(self, number: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """The noise of block ``number``, of sigma 1 around 0, in pieces.

        Yields the first sample of each piece and the piece, shape (samples, nchan).  The next piece overwrites its
        memory.
        """
        nchan, rng = self.observation.nchan, np.random.default_rng([self.seed, number])
        step = max(2, PIECE // nchan // 2 * 2)
        held = np.empty((step, nchan), np.float32)
        stop = min((number + 1) * NOISE_BLOCK, self.nsamp)
        for start in range(number * NOISE_BLOCK, stop, step):
            piece = held[: stop - start]
            self.draw(rng, piece)
            yield start, piece

    def draw(self, rng: np.random.Generator, out: NDArray[np.float32]) -> None:
        """Draw numbers of sigma 1 around 0."""
        rng.standard_normal(out=out, dtype=np.float32)


def quantise(values: NDArray[np.float32], nbits: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Values, rounded and clipped to the range of the bits; 32-bit values are not changed."""
    if nbits == 32:
        return values
    return np.clip(np.rint(values), 0, 2**nbits - 1).astype(dtype)


class PulseReader:
    """The samples of another reader with pulses.

    Parameters
    ----------
    base : Reader
    pulses : list of (first sample of each row, values to add in each row)
    analog : bool
        Whether pulses are added before the noise of a `NoiseReader` is rounded; otherwise they are added to the
        samples, which are then clipped to the range of their type.
    """

    def __init__(self, base: Reader, pulses: list[tuple[NDArray[np.int64], NDArray[Any]]], analog: bool) -> None:
        self.base, self.pulses, self.analog = base, pulses, analog
        self.observation, self.nsamp, self.maximum = base.observation, base.nsamp, base.maximum
        self.order, self.dtype, self.gaps = base.order, base.read(0, 0).dtype, gaps_of(base)
        self.lost = lost_of(base)

    def close(self) -> None:
        """Close the other reader."""
        self.base.close()

    def read(self, start: int, count: int) -> NDArray[Any]:
        """Samples ``start : start + count``, shape (count, nchan), in the order of the source."""
        if self.analog:
            assert isinstance(self.base, NoiseReader)
            wide = self.base.values(start, count)
        else:
            wide = self.base.read(start, count).astype("f4" if self.dtype.kind == "f" else "i4")
        for firsts, shapes in self.pulses:
            length = shapes.shape[1]
            touched = (firsts < start + count) & (firsts + length > start)
            for row in np.flatnonzero(touched):
                a, b = max(start, int(firsts[row])), min(start + count, int(firsts[row]) + length)
                wide[a - start : b - start, self.order[row]] += shapes[row, a - firsts[row] : b - firsts[row]]
        if self.dtype.kind == "f":
            return wide
        if self.analog:
            return quantise(wide, self.observation.nbits, self.dtype)
        info = np.iinfo(self.dtype)
        return np.clip(wide, info.min, self.maximum or info.max).astype(self.dtype)


def top_hat(
    obs: Observation, dm: float, t0: float, width: float, scatter: float, alpha: float, dm_constant: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """A unit pulse: its first sample in each channel, and its mean height in each sample, shape (nchan, samples).

    The pulse is a top hat of ``width`` whose middle arrives at the top of the band at ``t0``.  ``scatter`` is the time
    constant of an exponential tail at mid band, which grows as ``f^-alpha``.
    """
    begin = (t0 - width / 2 + delay_seconds(obs.freqs, dm, obs.top, dm_constant)) / obs.tsamp
    w = width / obs.tsamp
    tau = scatter / obs.tsamp * (obs.freqs / obs.centre) ** -alpha if scatter else np.zeros(obs.nchan)
    first = np.floor(begin).astype(np.int64)
    length = math.ceil(w + 12 * float(tau.max())) + 2
    edges = np.arange(length + 1)[None, :] - (begin - first)[:, None]

    def area(x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Integral up to ``x`` of the scattered top hat that starts at 0."""
        if not scatter:
            return np.clip(x, 0, w)
        t = tau[:, None]
        rise = np.maximum(x, 0)
        fall = np.maximum(x - w, 0)
        out: NDArray[np.float64] = (rise - t * -np.expm1(-rise / t)) - (fall - t * -np.expm1(-fall / t))
        return out

    return first, np.diff(area(edges), axis=1)


def check_scatter(scatter: float, alpha: float) -> None:
    if not (math.isfinite(scatter) and scatter >= 0):
        raise ValueError(f"scatter={scatter!r}: expected seconds, at least 0")
    if not math.isfinite(alpha):
        raise ValueError(f"alpha={alpha!r}: expected a number")


def fake(
    *,
    nchan: int = 1024,
    duration: float = 10.0,
    tsamp: float = 165e-6,
    fch1: float = 156.0,
    foff: float = -5.941e-3,
    nbits: int = 8,
    dm: float = 75.0,
    period: float | None = 1.0,
    times: Sequence[float] | None = None,
    rate: float | None = None,
    width: float = 1e-2,
    height: float | None = None,
    snr: float | None = None,
    scatter: float = 0.0,
    alpha: float = 4.0,
    seed: int = 0,
    source: str = "",
    dm_constant: float = DM_CONSTANT,
    path: str | os.PathLike[str] | None = None,
) -> Filterbank:
    """A filterbank of Gaussian noise and square pulses; by default the test signal of Magro et al. 2011, Table 2.

    Parameters
    ----------
    nchan, duration, tsamp, fch1, foff, nbits
        Number of channels, seconds, seconds, MHz, MHz, bits of a sample.  With 8 bits the noise has a mean of 96 and a
        sigma of 16.  Numbers with a unit may be Quantities, here and below.
    dm : float
        pc / cm^3.
    period : float
        Seconds between pulses; the first arrives after half a period.
    times : sequence of float, optional
        Arrival times of the middle of the pulses at the top of the band, in seconds; replaces ``period``.
    rate : float, optional
        Pulses per second at random times, as of an RRAT; replaces ``period``.
    width : float
        Width of a pulse, seconds.
    height : float, optional
        Height of a pulse in one channel, in sigma: 0.25 by default, which is 8 sigma in a sum over 1024 channels.
    snr : float, optional
        S/N of a pulse, integrated over its width and all channels, before rounding to ``nbits``; instead of `height`.
    scatter, alpha : float
        Time constant in seconds of an exponential tail at mid band, which grows as ``f^-alpha``.  The area of a pulse
        does not change.
    seed : int
    source : str
    path : path, optional
        Write a SIGPROC file, which replaces any file of that name, and open it.  Without a path samples are computed
        each time they are read.

    Returns
    -------
    Filterbank

    Warns
    -----
    UserWarning
        No pulse lies in all channels of the data.

    Examples
    --------
    >>> fb = fake(nchan=16, duration=0.5, tsamp=1e-3, fch1=1500, foff=-1, dm=10, times=[0.2], snr=30)
    >>> fb.block(0, 500).shape
    (16, 500)
    """
    duration, tsamp, width, scatter = (
        in_unit(name, value, "s")
        for name, value in (("duration", duration), ("tsamp", tsamp), ("width", width), ("scatter", scatter))
    )
    period, times, rate = in_unit("period", period, "s"), in_unit("times", times, "s"), in_unit("rate", rate, "1 / s")
    fch1, foff, dm = in_unit("fch1", fch1, "MHz"), in_unit("foff", foff, "MHz"), in_unit("dm", dm, "pc / cm3")
    if nbits not in LEVELS:
        raise ValueError(f"nbits={nbits}: expected one of {', '.join(map(str, LEVELS))}")
    given = [name for name, v in (("times", times), ("rate", rate)) if v is not None]
    if len(given) > 1:
        raise ValueError("times and rate are given: expected one of them")
    for name, value in (("duration", duration), ("width", width)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name}={value!r}: expected seconds, above 0")
    if width > duration:
        raise ValueError(f"width={width:g}: expected at most the duration, {duration:g} s")
    if height is not None and snr is not None:
        raise ValueError("height and snr are given: expected one of them")
    for name, given_number in (("dm", dm), ("snr", snr), ("height", height)):
        if given_number is not None and not math.isfinite(given_number):
            raise ValueError(f"{name}={given_number!r}: expected a finite number")
    if dm < 0:
        raise ValueError(f"dm={dm!r}: expected at least 0")
    if snr is not None and snr <= 0:
        raise ValueError(f"snr={snr!r}: expected a number above 0")
    check_scatter(scatter, alpha)
    for name, whole, least in (("nchan", nchan, 1), ("seed", seed, 0)):
        if whole < least or whole % 1:
            raise ValueError(f"{name}={whole!r}: expected a whole number, at least {least}")
    step = check_tsamp(float(tsamp))
    freqs = np.sort(regular_freqs(float(fch1), float(foff), int(nchan)))[::-1]
    obs = Observation(freqs, step, nbits, 56000.0, source or f"fake DM {dm:g}", "Fake")
    nsamp = max(1, round(duration / step))
    rng = np.random.default_rng([seed, 2**31])
    if times is not None:
        when = [float(t) for t in times]
        if bad := [t for t in when if not 0 <= t < duration]:
            raise ValueError(f"times={bad[0]!r}: expected seconds from 0 to the duration, {duration:g}")
    elif rate is not None:
        if not (math.isfinite(rate) and rate >= 0):
            raise ValueError(f"rate={rate!r}: expected pulses a second, at least 0")
        when = sorted(rng.uniform(0, duration, rng.poisson(rate * duration)).tolist())
    elif period is None:
        when = []
    elif math.isfinite(period) and period > 0:
        if duration / period > MOST_PULSES:
            raise ValueError(f"duration={duration:g}, period={period:g}: expected at most {MOST_PULSES:,} pulses")
        when = (np.arange(0.5, duration / period, 1.0) * period).tolist()
    else:
        raise ValueError(f"period={period!r}: expected seconds, above 0, or None for no pulses")
    sweep = float(delay_seconds(freqs, dm, obs.top, dm_constant).max())
    if when and min(when) + width / 2 + sweep > duration:
        warnings.warn(
            f"no pulse lies in all channels of the {duration:g} s of data: at DM {dm:g} it takes {sweep:.3g} s to "
            "cross the band",
            stacklevel=2,
        )
    elif not when and (rate or (period and not given)):
        rule = f"at a rate of {rate:g} / s" if rate else f"with a period of {period:g} s"
        warnings.warn(f"no pulse lies in the {duration:g} s of data {rule}", stacklevel=2)
    sigma = LEVELS[nbits][1]
    tall = 0.25 if height is None else height
    if snr is not None:
        tall = snr / math.sqrt(nchan * width / step)
    pulses: list[tuple[NDArray[np.int64], NDArray[Any]]] = []
    for t in when:
        first, unit = top_hat(obs, dm, t, width, scatter, alpha, dm_constant)
        pulses.append((first, (unit * (tall * sigma)).astype(np.float32)))
    fb = Filterbank([PulseReader(NoiseReader(obs, nsamp, seed, *LEVELS[nbits]), pulses, analog=True)])
    if path is None:
        return fb
    write_fil(path, fb, nbits=nbits)
    return Filterbank.open(path)


def whole_reader(fb: Filterbank) -> Reader:
    """A filterbank as one reader."""
    return fb.readers[0] if len(fb.readers) == 1 else _Joined(fb)


class _Joined(ChangedReader):
    """Several files as one reader, rows in falling order of frequency."""

    def read(self, start: int, count: int) -> NDArray[Any]:
        """Samples ``start : start + count``, shape (count, nchan)."""
        return self.fb.block(start, count).T
