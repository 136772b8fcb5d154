"""Simulated radio interference and faults of receivers, which do not depend on the ranges in which data are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.checks import one_of
from skysieve.dedispersion.data.filterbank import ChangedReader, Filterbank

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.core.tasks import TaskPool

__all__ = ["KINDS", "interference", "with_interference"]

HELD_PIECE = 2**21
"""Number of samples into which interference is written at a time if all samples are held in memory."""


@dataclass(frozen=True)
class _Samples:
    """Samples as floats, with their properties; a kind of interference changes ``x`` and ``spoiled``."""

    x: NDArray[np.float32]
    spoiled: NDArray[np.bool_]
    start: int
    tsamp: float
    level: NDArray[np.float32]
    sigma: NDArray[np.float32]
    top: float
    seed: int
    strength: float
    whole: bool

    def rng(self, *numbers: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *numbers])

    def part(self, begin: float, length: float) -> slice:
        """Rows between two times in seconds, at least one sample long; empty if they are outside."""
        first = math.floor(begin / self.tsamp)
        last = max(first + 1, math.ceil((begin + length) / self.tsamp))
        return slice(max(0, first - self.start), max(0, last - self.start))

    def cycles(self, seconds: float, before: int = 1) -> Iterator[tuple[int, float]]:
        """Number and start of the periods of ``seconds`` that overlap the samples, and of ``before`` earlier ones."""
        first = math.floor(self.start * self.tsamp / seconds)
        stop = math.ceil((self.start + len(self.x)) * self.tsamp / seconds)
        for k in range(max(0, first - before), stop):
            yield k, k * seconds

    def chosen(self, fraction: float, longest: int, key: int) -> NDArray[np.int64]:
        """The given fraction of the channels, in runs of up to ``longest``; the choice depends on the seed only."""
        nchan, rng = self.x.shape[1], self.rng(key)
        wanted = max(1, round(fraction * nchan))
        which: set[int] = set()
        while len(which) < wanted:
            low = int(rng.integers(nchan))
            which.update(range(low, min(nchan, low + int(rng.integers(1, longest + 1)), low + wanted - len(which))))
        return np.array(sorted(which))


def _powers(s: _Samples, rows: slice, channels: NDArray[np.int64], key: int) -> NDArray[np.float32]:
    """Random powers of mean 1, exponentially distributed, by absolute sample and channel."""
    from .cpu_noise import hashed

    count = len(s.x[rows])
    out = np.empty((count, len(channels)), np.float32)
    hashed(s.start + rows.start, channels, s.seed * 64 + key, out)
    return np.asarray(-np.log(out), np.float32)


def _narrow(s: _Samples) -> None:
    channels = s.chosen(0.05, 3, 1)
    always = s.rng(2).random(len(channels)) < 0.5
    for k, begin in s.cycles(1.0):
        rng = s.rng(3, k)
        power, late, long = (
            rng.uniform(2, 12, len(channels)),
            rng.random(len(channels)),
            rng.uniform(0.05, 1, len(channels)),
        )
        for i, c in enumerate(channels):
            rows = s.part(begin, 1.0) if always[i] else s.part(begin + late[i], min(long[i], 1.99 - late[i]))
            own = np.array([c])
            s.x[rows, c] += s.strength * power[i] * s.sigma[c] * _powers(s, rows, own, 4)[:, 0]
            s.spoiled[rows, c] = True


def _impulses(s: _Samples) -> None:
    nchan = s.x.shape[1]
    for k, begin in s.cycles(1.0):
        rng = s.rng(11, k)
        late, long = rng.random(), 10 ** rng.uniform(-3.3, -1.7)
        height = 10 ** rng.uniform(0.9, 2.2) / math.sqrt(nchan * max(1.0, long / s.tsamp))
        rows = s.part(begin + late, long)
        s.x[rows] += (s.strength * height * rng.uniform(0.5, 1.5, nchan) * s.sigma).astype(np.float32)
        s.spoiled[rows] = True


def _radar(s: _Samples) -> None:
    nchan, rng = s.x.shape[1], s.rng(21)
    width = max(1, round(0.12 * nchan))
    low = int(rng.integers(nchan - width + 1))
    turn, period = rng.uniform(3, 6), rng.uniform(0.04, 0.1)
    for k, begin in s.cycles(period):
        beam = 0.05 + math.exp(-0.5 * ((k * period / turn) % 1 - 0.5) ** 2 / 0.05**2)
        rows = s.part(begin, 2e-3)
        s.x[rows, low : low + width] += (s.strength * 8 * beam * s.sigma[low : low + width]).astype(np.float32)
        s.spoiled[rows, low : low + width] = True


def _gain(s: _Samples) -> None:
    """Steps of 5% at random times, 3 s apart on average: of all channels, and of a quarter of the band."""
    nchan = s.x.shape[1]
    low = int(s.rng(31).integers(nchan - nchan // 4 + 1))
    for key, seconds, band in ((32, 3.0, slice(None)), (33, 3.7, slice(low, low + nchan // 4))):
        for k, begin in s.cycles(seconds):
            late = s.rng(key, k).random() * seconds
            until = seconds + s.rng(key, k + 1).random() * seconds
            if k % 2:
                s.x[s.part(begin + late, until - late - s.tsamp), band] *= np.float32(1 + 0.05 * s.strength)


def _bad(s: _Samples) -> None:
    """23% of the channels: constant, saturated, too noisy, with slow noise, with hum, or with jumps."""
    channels = s.chosen(0.23, 6, 41)
    t = (s.start + np.arange(len(s.x))) * s.tsamp
    rng = s.rng(42)
    rows = slice(0, len(s.x))
    for c in channels:
        kind, factor, phase = rng.integers(6), rng.uniform(1, 4), rng.random()
        own, sigma = np.array([c]), s.sigma[c]
        x = s.x[:, c]
        if kind == 0:
            x[:] = s.level[c]
        elif kind == 1:
            x[:] = s.top
        elif kind == 2:
            x += s.strength * factor * sigma * (_powers(s, rows, own, 43)[:, 0] - 1)
        elif kind == 3:  # noise of 10 ms
            step = max(1, round(0.01 / s.tsamp))
            number = (s.start + np.arange(len(x))) // step
            held = np.empty((number[-1] - number[0] + 1, 1), np.float32)
            from .cpu_noise import hashed

            hashed(int(number[0]), own, s.seed * 64 + 44, held)
            x += s.strength * factor * sigma * (np.sqrt(12) * (held[number - number[0], 0] - 0.5))
        elif kind == 4:
            x += (s.strength * factor * sigma * np.sin(2 * np.pi * (50 * t + phase))).astype(np.float32)
        else:
            x += (s.strength * factor * sigma * (np.floor(t / 0.31 + phase) % 2)).astype(np.float32)
        s.spoiled[:, c] = True


def _lost(s: _Samples, key: int, values: NDArray[np.float32] | float) -> None:
    """Every 4 s a stretch of 2 to 400 ms; half of them of all channels, the others of an eighth of the band."""
    nchan = s.x.shape[1]
    for k, begin in s.cycles(4.0):
        rng = s.rng(key, k)
        late, long = rng.uniform(0, 4), 10 ** rng.uniform(-2.7, -0.4)
        part = max(1, nchan // 8)
        low = int(rng.integers(8)) * part
        band = slice(None) if rng.random() < 0.5 else slice(low, low + part)
        rows = s.part(begin + late, long)
        s.x[rows, band] = np.broadcast_to(values, nchan)[band]
        s.spoiled[rows, band] = True


def _zeros(s: _Samples) -> None:
    _lost(s, 51, 0.0)


def _constants(s: _Samples) -> None:
    _lost(s, 61, np.rint(s.level))


def _drift(seconds: float) -> Callable[[_Samples], None]:
    def drift(s: _Samples) -> None:
        t = (s.start + np.arange(len(s.x))) * s.tsamp
        if s.whole:  # without dither all samples would step from one integer to the next at once
            from .cpu_noise import hashed

            dither = np.empty(s.x.shape, np.float32)
            hashed(s.start, np.arange(s.x.shape[1]), s.seed * 64 + 45, dither)
            s.x[:] += dither - np.float32(0.5)
        s.x[:] += (s.strength * 0.2 * np.sin(2 * np.pi * t / seconds))[:, None].astype(np.float32) * s.sigma

    return drift


@dataclass(frozen=True)
class Kind:
    """A kind of interference: the function that writes it, and a sentence for the help."""

    write: Callable[[_Samples], None]
    help: str


KINDS = {
    "bad": Kind(_bad, "23% of the channels are constant, saturated, noisy, or have slow noise, hum or jumps"),
    "gain": Kind(_gain, "the gain of all channels, and that of a quarter of the band, steps by 5% every 3 s or so"),
    "drift1.7": Kind(_drift(1.7), "the level drifts by 0.2 sigma with a period of 1.7 s"),
    "drift10": Kind(_drift(10.0), "the level drifts by 0.2 sigma with a period of 10 s"),
    "narrow": Kind(_narrow, "5% of the channels have carriers of 2 to 12 sigma, half of them now and then"),
    "radar": Kind(_radar, "pulses of 2 ms in 12% of the band, every 40 to 100 ms, whose beam turns in 3 to 6 s"),
    "impulses": Kind(_impulses, "a pulse without dispersion every second, of S/N 8 to 160 and 0.5 to 20 ms"),
    "zeros": Kind(_zeros, "2 to 400 ms of zeros every 4 s, in all of the band or in an eighth of it"),
    "constants": Kind(_constants, "2 to 400 ms of the mean every 4 s, in all of the band or in an eighth of it"),
}
"""The kinds of interference, in the order in which they are added to the data."""


def interference(
    samples: NDArray[Any],
    kinds: str | Sequence[str],
    *,
    tsamp: float,
    level: Any,
    sigma: Any,
    start: int = 0,
    seed: int = 0,
    strength: float = 1.0,
    maximum: int = 0,
) -> NDArray[np.bool_]:
    """Write interference into samples.

    What is written depends on the seed and on the numbers of the samples, not on the ranges in which they are given.

    Parameters
    ----------
    samples : numpy.ndarray, shape (samples, channels)
        Changed in place.  Integers are rounded and clipped to their range.
    kinds : str or sequence of str
        Names of `KINDS`, or "all".
    tsamp : float
        Seconds of a sample.
    level, sigma : float or array_like, shape (channels,)
        Mean and standard deviation of the noise, in counts: heights are in units of sigma.
    start : int
        Number of the first sample.
    seed : int
    strength : float
        Factor of all heights.
    maximum : int
        Largest value of unsigned samples; 0 for that of their type.

    Returns
    -------
    numpy.ndarray of bool, shape (samples, channels)
        Samples that are of no use any more: covered by a signal, or lost.  Steps and drifts of the gain are not marked.

    Examples
    --------
    >>> x = np.full((1000, 16), 96, np.uint8)
    >>> bad = interference(x, "zeros", tsamp=1e-2, level=96, sigma=16)
    >>> bool((x[bad] == 0).all()), bool((x[~bad] == 96).all())
    (True, True)
    """
    given = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    names = tuple(KINDS) if given == ("all",) else given
    for name in names:
        one_of("kinds", name, KINDS)
    if samples.ndim != 2:
        raise ValueError(f"samples has shape {samples.shape}, expected (samples, channels)")
    if not (math.isfinite(tsamp) and tsamp > 0):
        raise ValueError(f"tsamp={tsamp!r}: expected seconds, above 0")
    nchan = samples.shape[1]
    whole = samples.dtype.kind in "iu"
    levels, sigmas = (np.broadcast_to(np.asarray(v, np.float32), nchan) for v in (level, sigma))
    low, high = (np.iinfo(samples.dtype).min, maximum or np.iinfo(samples.dtype).max) if whole else (0, 0)
    top = float(high) if whole else float((levels + 12 * sigmas).max())
    spoiled = np.zeros(samples.shape, bool)
    x = samples.astype(np.float32)
    s = _Samples(x, spoiled, int(start), float(tsamp), levels, sigmas, top, int(seed), float(strength), whole)
    for name in (name for name in KINDS if name in names):
        if len(x):
            KINDS[name].write(s)
    samples[:] = np.clip(np.rint(x), low, high) if whole else x
    return spoiled


class InterferenceReader(ChangedReader):
    """The samples of a filterbank with interference."""

    def __init__(self, fb: Filterbank, kinds: str | Sequence[str], seed: int, strength: float) -> None:
        super().__init__(fb)
        self.kinds, self.seed, self.strength = kinds, seed, strength
        x = fb.block(0, min(fb.nsamp, max(64, 2**22 // fb.nchan))).astype(np.float64)
        low, self.level, high = np.quantile(x, (0.25, 0.5, 0.75), axis=1)
        moments = x.std(axis=1)
        self.sigma = np.where(high > low, np.minimum((high - low) / 1.349, moments), moments)
        self._held: tuple[NDArray[Any], NDArray[np.bool_]] | None = None

    def close(self) -> None:
        """Close the filterbank, and free the samples that are held."""
        self.fb.close()
        self._held = None

    def hold(self, pool: TaskPool) -> None:
        """Write the interference into all samples now, and hold them in memory: a search reads them several times.

        The filterbank is closed, since its samples are not read again.
        """
        samples = np.empty((self.nsamp, self.fb.nchan), self.dtype)
        spoiled = np.empty(samples.shape, np.bool_)
        rows = max(1, HELD_PIECE // self.fb.nchan)

        def fill(start: int) -> None:
            stop = min(self.nsamp, start + rows)
            samples[start:stop], spoiled[start:stop] = self.write(start, stop - start)

        pool.run([partial(fill, start) for start in range(0, self.nsamp, rows)])
        self._held = samples, spoiled
        self.fb.close()

    def write(self, start: int, count: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Samples, shape (count, nchan), and which of them are of no use."""
        if self._held is not None:
            samples, spoiled = self._held
            return samples[start : start + count], spoiled[start : start + count]
        x = np.array(self.fb.block(start, count).T, order="C")
        spoiled = interference(
            x, self.kinds, tsamp=self.fb.tsamp, level=self.level, sigma=self.sigma, start=start, seed=self.seed,
            strength=self.strength, maximum=self.maximum,
        )  # fmt: skip
        return x, spoiled

    def read(self, start: int, count: int) -> NDArray[Any]:
        """Samples ``start : start + count``, shape (count, nchan)."""
        return self.write(start, count)[0]


def with_interference(
    data: Filterbank, kinds: str | Sequence[str], *, seed: int = 0, strength: float = 1.0
) -> Filterbank:
    """A filterbank with interference, which is computed when samples are read; see `interference`.

    Level and sigma of each channel are those of its first samples.

    Examples
    --------
    >>> from skysieve.dedispersion import fake
    >>> fb = fake(nchan=8, duration=4, tsamp=1e-3, fch1=1500, foff=-4, period=None)
    >>> bool((with_interference(fb, "zeros").read() == 0).any())
    True
    """
    return Filterbank([InterferenceReader(data, kinds, seed, strength)])
