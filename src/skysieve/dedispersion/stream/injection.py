"""Pulses of known parameters that are added to live samples before the search, so that its recall is known.

The pulses depend only on the seed, the beam, the epoch and the sample numbers, so that a run that is started again
injects the same pulses at the same samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import array_module, to_host
from skysieve.dedispersion.clean.masks import Mask
from skysieve.dedispersion.data.delays import delay_seconds
from skysieve.dedispersion.data.observation import DM_CONSTANT
from skysieve.dedispersion.injections.grid import PulseGrid
from skysieve.dedispersion.injections.noise import measured
from skysieve.dedispersion.injections.pulses import Pulse, Recorded, record, spread_per_dm, whole_counts
from skysieve.dedispersion.stream.records import Injection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from skysieve.dedispersion.data.observation import Observation

__all__ = ["LiveInjector"]

WINDOW = 512
"""Samples before a pulse from which the noise of each channel is measured."""
MOST_MISSING = 0.1
"""Fraction of these samples that may be missing."""
MARGIN = 0.05
"""Fraction of the time between two pulses that stays free in addition to the two sweeps."""
LOUDER = 1.3, 3.0
"""Factor and number: a candidate is not assigned to an injected pulse if its S/N exceeds the factor times the S/N of
the pulse at the candidate's DM, plus the number."""


@dataclass
class _Added:
    """A pulse that is being added, or has been added and may still be found."""

    number: int
    pulse: Pulse
    made: Recorded
    counts: NDArray[Any]
    missing: int = 0
    found: dict[str, float] = field(default_factory=dict)

    @property
    def first(self) -> int:
        return int(self.made.first.min())

    @property
    def last(self) -> int:
        """The sample after the last one of the pulse."""
        return int(self.made.first.max()) + self.counts.shape[1]


class LiveInjector:
    """Adds one pulse to the samples of one beam in each interval of a fixed length.

    Interval ``k`` begins at sample ``k * round(every / tsamp)``.  The noise of each channel is measured in the first
    samples of the interval, and a pulse is added at a random time after them.  An interval whose first samples are
    missing has no pulse.

    Parameters
    ----------
    observation : Observation
    every : float
        Seconds between pulses, on average.
    grid : PulseGrid
        Distribution from which pulses are drawn; listed values are equally likely.
    seed, beam, epoch : int
        The pulses differ between seeds, beams and epochs.
    dtype : str
        Type of the samples.
    maximum : int
        Largest value of unsigned samples; 0 means the largest value of the type.
    ignore : sequence of int
        Channels that the search leaves out.  They get no counts, and their noise does not contribute to the S/N.
    dm_constant : float

    Attributes
    ----------
    skipped : int
        Number of intervals without a pulse, because the noise could not be measured.

    Raises
    ------
    ValueError
        Pulses of the highest DM would be less than two sweeps apart.

    Examples
    --------
    >>> from skysieve.dedispersion import PulseGrid, fake
    >>> fb = fake(nchan=32, duration=8, tsamp=1e-3, fch1=1500, foff=-8, period=None)
    >>> live = LiveInjector(fb.observation, every=2, grid=PulseGrid(snr=[20], dm=[100.0], width=[5e-3]))
    >>> rows = live.add(0, fb.block(0, 8000).T.copy())
    >>> len(live.due(math.inf)), bool((rows != fb.block(0, 8000).T).any())
    (4, True)
    """

    def __init__(
        self, observation: Observation, *, every: float, grid: PulseGrid | None = None, seed: int = 0, beam: int = 0,
        epoch: int = 0, dtype: str = "uint8", maximum: int = 0, ignore: Sequence[int] = (),
        dm_constant: float = DM_CONSTANT,
    ) -> None:  # fmt: skip
        self.observation, self.seed, self.beam, self.epoch = observation, seed, beam, epoch
        self.grid = PulseGrid() if grid is None else grid
        self.dm_constant = dm_constant
        self._searched = ~Mask.channels(observation.nchan, ignore).cells[:, 0]
        o, kind = observation, np.dtype(dtype)
        self.real = kind.kind == "f"
        if not self.real:
            info = np.iinfo(kind)
            self._range = int(info.min), int(maximum or info.max)
        self.sweep = float(delay_seconds(o.freqs.min(), self.grid.highest_dm, o.top, dm_constant))
        widest = self.grid.widest
        least = (2 * self.sweep + 12 * widest + 2 * WINDOW * o.tsamp) * (1 + MARGIN)
        if not (math.isfinite(every) and every >= least):
            raise ValueError(
                f"every={every!r}: expected at least {least:.4g} s, so that pulses of DM {self.grid.highest_dm:g} are "
                "two sweeps apart"
            )
        self.interval = round(every / o.tsamp)
        self._free = every - least
        self._lead = WINDOW * o.tsamp + 6 * widest
        self._window = np.empty((WINDOW, o.nchan), kind)
        self._next = -1
        self._filled = self._missed = 0
        self._pulses: list[_Added] = []
        self.skipped = 0

    # ------------------------------------------------------------------ input
    def add(self, start: int, rows: Any, missing: NDArray[np.int64] | tuple[()] = ()) -> Any:
        """Add pulses to samples.

        Parameters
        ----------
        start : int
            Number of the first sample; consecutive calls have consecutive samples.
        rows : array, shape (samples, channels)
            NumPy or CuPy array, which is changed in place if it is writable.
        missing : array_like of int, shape (n, 4)
            Missing rectangles, as for `StreamSearch.feed`.

        Returns
        -------
        array
            The samples with pulses.
        """
        stop = start + len(rows)
        rects = np.asarray(missing, np.int64).reshape(-1, 4)
        if start != self._next:  # the first call, or samples were left out
            self._filled = -1
            self._pulses = [one for one in self._pulses if one.last <= self._next]
        self._next = stop
        at = start
        while at < stop:  # the noise is measured before anything is added
            number, place = divmod(at, self.interval)
            if place == 0:
                self._filled = self._missed = 0
            if place < WINDOW and self._filled == place:
                n = min(WINDOW - place, stop - at)
                self._window[place : place + n] = to_host(rows[at - start : at - start + n])
                self._filled += n
                self._missed += _inside(rects, at, at + n)
                if self._filled == WINDOW:
                    self._begin(number)
            elif place < WINDOW:  # the beginning of the interval was not received
                n = WINDOW - place
                self.skipped += 1
            else:
                n = self.interval - place
            at += n
        for one in self._pulses:
            if one.first < stop and one.last > start:
                rows = self._added(one, start, rows, rects)
        return rows

    def _begin(self, number: int) -> None:
        """Make the pulse of an interval."""
        o = self.observation
        if self._missed > MOST_MISSING * self._window.size:
            self.skipped += 1
            return
        epoch = divmod(self.epoch, 2**32)
        rng = np.random.default_rng([self.seed, self.beam, *epoch, number])
        [parameters] = self.grid.draw(1, rng)
        when = number * self.interval * o.tsamp + self._lead + self._free * float(rng.uniform())
        pulse = Pulse(time=when, **parameters)
        _, sigma, room = measured(self._window.T, 0 if self.real else self._range[1])
        try:
            made = record(o, pulse, np.where(self._searched, sigma, 0.0), self.dm_constant)
        except ValueError:  # the beam is silent
            self.skipped += 1
            return
        counts = made.counts.astype(np.float32) if self.real else whole_counts(made.counts, room)
        self._pulses.append(_Added(number + 1, pulse, made, counts))

    def _added(self, one: _Added, start: int, rows: Any, rects: NDArray[np.int64]) -> Any:
        """Samples with a pulse."""
        low, high = max(start, one.first), min(start + len(rows), one.last)
        at = np.arange(low, high)[:, None] - one.made.first
        inside = (at >= 0) & (at < one.counts.shape[1])
        channels = np.arange(rows.shape[1])
        more = np.where(inside, one.counts[channels, np.clip(at, 0, one.counts.shape[1] - 1)], 0)
        xp = array_module(rows)
        if xp is np and not rows.flags.writeable:
            rows = rows.copy()
        part = rows[low - start : high - start]
        if self.real:
            part += xp.asarray(more)
        else:
            part[:] = xp.clip(part.astype(np.int32) + xp.asarray(more), *self._range).astype(part.dtype)
        begin = one.made.begin + one.made.delays
        for first, last, top, bottom in rects:
            overlap = np.minimum(begin[top:bottom] + one.made.length, last) - np.maximum(begin[top:bottom], first)
            one.missing += int((overlap.clip(0) * self._searched[top:bottom]).sum())
        return rows

    # ------------------------------------------------------------------ output
    def match(self, time: float, dm: float, snr: float, width: float) -> int:
        """The number of the injected pulse to which a candidate belongs; 0 if it belongs to none.

        Parameters
        ----------
        time : float
            Arrival of the candidate at the top of the band, seconds.
        dm, snr, width : float
            DM, S/N and width of the candidate.
        """
        per_dm = self._per_dm
        for one in self._pulses:
            wide = one.made.length * self.observation.tsamp
            late, error = time - self._middle(one), dm - one.pulse.dm
            early, reach = -per_dm * error, 2 * wide + width / 2  # the bow tie of the pulse at a wrong DM
            left = math.sqrt(wide / (wide + abs(early)))  # of the S/N, in a window as long as the smeared pulse
            if snr > LOUDER[0] * one.pulse.snr * left + LOUDER[1]:
                continue
            if not min(early, 0.0) - reach <= late <= max(early, 0.0) + reach:
                continue
            own = abs(late) <= 2 * wide and abs(error) <= wide / per_dm
            if own and snr > one.found.get("snr", 0.0):
                one.found = {"snr": snr, "dm": dm, "time": time, "width": width}
            return one.number
        return 0

    def due(self, settled: float) -> list[Injection]:
        """The pulses that end before ``settled`` seconds, whose candidates are all known; each is returned once."""
        over: list[_Added] = []
        rest: list[_Added] = []
        for one in self._pulses:
            wide = one.made.length * self.observation.tsamp
            done = one.last <= self._next and self._middle(one) + 3 * wide < settled
            (over if done else rest).append(one)
        self._pulses = rest
        return [self._row(one) for one in over]

    def _row(self, one: _Added) -> Injection:
        o = self.observation
        nan = math.nan
        return Injection(
            one.number, one.pulse.snr, one.pulse.dm, self._middle(one), o.tstart + self._middle(one) / 86400,
            one.pulse.width, one.made.length * o.tsamp, 1 - one.missing / (one.made.length * int(self._searched.sum())),
            bool(one.found), one.found.get("snr", nan), one.found.get("dm", nan), one.found.get("time", nan),
        )  # fmt: skip

    def _middle(self, one: _Added) -> float:
        """Seconds at which the middle of the ideal boxcar arrives at the top of the band."""
        return (one.made.begin + one.made.length / 2) * self.observation.tsamp

    @property
    def _per_dm(self) -> float:
        return spread_per_dm(self.observation, self.dm_constant)


def _inside(rects: NDArray[np.int64], low: int, high: int) -> int:
    """Number of samples of rectangles in a range."""
    if not len(rects):
        return 0
    length = (np.minimum(rects[:, 1], high) - np.maximum(rects[:, 0], low)).clip(0)
    return int((length * (rects[:, 3] - rects[:, 2])).sum())
