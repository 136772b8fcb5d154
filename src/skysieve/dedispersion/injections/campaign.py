"""Injection campaigns: pulses are added to noise or to data, the search runs as for a user, and finds are counted."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.progress import reporting
from skysieve.dedispersion.data.delays import delay_seconds
from skysieve.dedispersion.data.filterbank import Filterbank, opened
from skysieve.dedispersion.data.observation import Observation, regular_freqs
from skysieve.dedispersion.data.simulate import LEVELS, NoiseReader, PulseReader, robust_sigma, whole_reader
from skysieve.dedispersion.dm_plan.arguments import stages_of
from skysieve.dedispersion.single_pulse.search import SearchPlan

from .pulses import Pulse, Recorded, record
from .result import TRIALS, Completeness

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from skysieve.dedispersion.data.filterbank import Paths
    from skysieve.dedispersion.dm_plan.plan import DMPlan
    from skysieve.dedispersion.single_pulse.candidates import Candidates

__all__ = ["Noise", "completeness"]

SAMPLED = 1 << 14
"""Samples from which level and sigma of each channel are taken."""


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

    def segment(self, seed: int) -> Filterbank:
        """Noise that depends on the seed alone."""
        freqs = np.sort(regular_freqs(self.fch1, self.foff, self.nchan))[::-1]
        obs = Observation(freqs, self.tsamp, self.nbits, 56000.0, "noise", "Fake")
        nsamp = max(1, round(self.duration / self.tsamp))
        return Filterbank([NoiseReader(obs, nsamp, seed, *LEVELS[self.nbits])])


@dataclass
class _Placed:
    """A pulse that was added, and what the ideal detector sees of it."""

    pulse: Pulse
    made: Recorded
    known: float


def completeness(
    data: Filterbank | Paths | Noise,
    dms: ArrayLike | DMPlan,
    *,
    n: int = 1000,
    snr: Sequence[float] = (7.0, 8.0, 9.0, 10.0),
    dm: tuple[float, float] = (50.0, 500.0),
    width: tuple[float, float] = (1e-3, 1e-2),
    scatter: tuple[float, float] = (0.0, 0.0),
    index: tuple[float, float] = (0.0, 0.0),
    band: tuple[float, float] = (0.0, 1.0),
    seed: int = 0,
    progress: bool | Callable[[int, int], None] = False,
    **options: Any,
) -> Completeness:
    """Measure which pulses a search finds.

    Pulses of known S/N are added to the data, separated by at least two sweeps, and the data are searched without
    knowledge of them.  A candidate belongs to a pulse if its time is within two effective widths ``w`` of the pulse and
    its DM within ``w / (K (f_low^-2 - f_high^-2))``; ``w`` is the length of the ideal boxcar.

    Parameters
    ----------
    data : Filterbank, path, sequence of paths, or Noise
        Data that get pulses, as often as needed for ``n`` of them, each time others; or the noise of a receiver.
    dms : DMPlan or array_like
        What is searched, as for `search`.
    n : int
        Pulses.
    snr : sequence of float
        S/N of the ideal boxcar, after smearing within channels and sampling; each for a share of the pulses.
    dm, width, scatter, index : tuple of float
        Lowest and highest value.  DM is drawn evenly, width (FWHM, s) evenly in its logarithm, scatter (s at mid band)
        and spectral index evenly.
    band : tuple of float
        Part of the band that pulses fill, from its bottom, 0, to its top, 1.
    seed : int
    progress : bool or callable
        True draws a bar of the pulses; a callable gets ``(done, total)``.
    **options
        As for `search`: ``threshold``, ``widths``, ``noise``, ``device`` and so on.

    Returns
    -------
    Completeness

    Raises
    ------
    ValueError
        A range is not one, or the data are too short for a pulse of the highest DM.

    Examples
    --------
    >>> import numpy as np
    >>> from skysieve.dedispersion import Noise, completeness
    >>> receiver = Noise(nchan=64, foff=-4, tsamp=1e-3, duration=20)
    >>> found = completeness(receiver, np.arange(100, 400, 4), n=8, snr=[20], dm=(150, 300), threads=1)
    >>> float(found.recall()["recall"][0])
    1.0
    """
    for name, pair in (("dm", dm), ("width", width), ("scatter", scatter), ("index", index), ("band", band)):
        if len(pair) != 2 or not all(map(math.isfinite, pair)) or pair[0] > pair[1]:
            raise ValueError(f"{name}={pair!r}: expected a lowest and a highest value")
    for name, lowest in (("width", width[0]), ("snr", min(snr, default=0.0))):
        if not lowest > 0:
            raise ValueError(f"{name}={lowest!r}: expected values above 0")
    if n < 1:
        raise ValueError(f"n={n}: expected at least one pulse")
    rng = np.random.default_rng([seed, 7])
    levels = rng.permutation(np.resize(np.asarray(snr, np.float64), n))
    ranges = {"dm": dm, "scatter": scatter, "index": index}

    def draw(i: int, when: float) -> Pulse:
        values = {name: float(rng.uniform(*pair)) for name, pair in ranges.items()}
        wide = float(np.exp(rng.uniform(*np.log(width))))
        return Pulse(time=when, width=wide, snr=float(levels[i]), band=band, **values)

    began, done, segments = time.perf_counter(), 0, 0
    rows: list[tuple[Any, ...]] = []
    false: list[tuple[float, float, float]] = []
    hours = 0.0
    with (
        opened(data.segment(seed) if isinstance(data, Noise) else data) as first,
        reporting(progress, "injecting pulses") as report,
        SearchPlan(first, dms, **options) as plan,
    ):
        own = None if isinstance(data, Noise) else plan.execute(first)
        constant = stages_of(first, dms, options.get("dm_constant"))[1]
        while done < n:
            fb = data.segment(seed + segments) if isinstance(data, Noise) else first
            segments += 1
            level, sigma = _levels(fb, data if isinstance(data, Noise) else None)
            placed = list(_place(fb, n - done, done, draw, sigma, level, constant, max(dm), rng))
            if not placed:
                raise ValueError(f"dm={dm!r}: the data last {fb.nsamp * fb.tsamp:g} s, too short for such a pulse")
            pulses = [(one.made.first, _counts(fb, one.made)) for one in placed]
            with_pulses = Filterbank([PulseReader(whole_reader(fb), pulses, analog=isinstance(data, Noise))])
            found = plan.execute(with_pulses)
            matched, spare, near = _match(fb.observation, found, placed, constant, _already_there(found, own))
            rows += matched
            false += spare
            hours += max(0.0, fb.nsamp * fb.tsamp - near) / 3600
            done += len(placed)
            if report is not None:
                report(done, n)
        threshold = found.threshold
        where = f"{first.nchan} channels, {first.observation.freqs.min():g} to {first.observation.top:g} MHz"
    trials = np.array(rows, TRIALS)
    alarms = np.array(false, [("snr", "f8"), ("dm", "f8"), ("time", "f8")])
    return Completeness(trials, alarms, hours, float(threshold), where, time.perf_counter() - began)


def _levels(fb: Filterbank, noise: Noise | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Level and sigma of each channel: those of simulated noise, rounding included; of data from quartiles."""
    if noise is not None:
        level, sigma = LEVELS[noise.nbits]
        rounding = 0.0 if noise.nbits == 32 else 1 / 12
        return np.full(fb.nchan, level), np.full(fb.nchan, math.sqrt(sigma**2 + rounding))
    count = min(fb.nsamp, SAMPLED)
    block = fb.block((fb.nsamp - count) // 2, count).astype(np.float64)
    good = [row[np.isfinite(row)] for row in block]
    return np.array([np.median(row) if len(row) else 0.0 for row in good]), np.array(
        [robust_sigma(row) for row in good]
    )


def _place(
    fb: Filterbank,
    most: int,
    done: int,
    draw: Callable[[int, float], Pulse],
    sigma: NDArray[np.float64],
    level: NDArray[np.float64],
    constant: float,
    highest: float,
    rng: np.random.Generator,
) -> Iterator[_Placed]:
    """Pulses, one after the other, as long as they fit into the data."""
    obs = fb.observation
    sweep = float(delay_seconds(obs.freqs.min(), highest, obs.top, constant))
    margin = 0.5
    at = margin
    for i in range(most):
        pulse = draw(done + i, at + margin * float(rng.uniform()))
        made = record(obs, pulse, sigma, constant)
        if int(made.first.max()) + made.counts.shape[1] > fb.nsamp or made.first.min() < 0:
            if made.first.min() >= 0:
                return
            at -= float(made.first.min()) * obs.tsamp  # a wide pulse: begin later
            pulse = Pulse(**{**vars(pulse), "time": at + margin})
            made = record(obs, pulse, sigma, constant)
            if int(made.first.max()) + made.counts.shape[1] > fb.nsamp:
                return
        yield _Placed(pulse, made, _known(fb, made, sigma, level))
        at = pulse.time + 2 * sweep + margin + 4 * made.length * obs.tsamp


def _counts(fb: Filterbank, made: Recorded) -> NDArray[Any]:
    """What is added to the samples: whole counts of integers of a file, whose fractions are carried on."""
    if fb.dtype.kind == "f" or isinstance(whole_reader(fb), NoiseReader):
        return made.counts.astype(np.float32)
    running = np.rint(np.cumsum(made.counts))
    return np.diff(running, prepend=0.0).reshape(made.counts.shape).astype(np.int32)


def _known(fb: Filterbank, made: Recorded, sigma: NDArray[np.float64], level: NDArray[np.float64]) -> float:
    """S/N in the window of the ideal boxcar: what a detector finds that knows DM, time and width."""
    begin, length = made.begin + made.delays, made.length
    low, high = int(begin.min()), int(begin.max()) + length
    if low < 0 or high > fb.nsamp:
        return math.nan
    block = fb.block(low, high - low).astype(np.float64)
    total = 0.0
    for row, at in enumerate(begin - low):
        total += float(block[row, at : at + length].sum()) - length * float(level[row])
        a = int(begin[row] - made.first[row])
        total += float(made.counts[row, max(0, a) : max(0, a + length)].sum())
    return total / math.sqrt(length * float((sigma**2).sum()))


def _reach(pulse: Pulse, wide: float, found: Candidates, per_dm: float) -> float:
    """Seconds by which events of a pulse at wrong DMs are early or late.

    A DM error that smears the pulse over ``m`` widths leaves ``1 / sqrt(m)`` of the S/N to a window of ``m`` widths,
    and moves it by half of that.  Noise adds up to 2.5.
    """
    smeared = (pulse.snr / max(1.0, found.threshold - 2.5)) ** 2 * wide
    searched = per_dm * max(pulse.dm - float(found.dms[0]), float(found.dms[-1]) - pulse.dm, 0.0)
    return min(smeared, searched) / 2 + wide


def _times(found: Candidates) -> NDArray[np.float64]:
    """Seconds at which candidates arrive at the top of the band; `Candidates.time` is that at ``ref_freq``."""
    late = delay_seconds(found.observation.top, found.dm, found.ref_freq, found.dm_constant)
    times: NDArray[np.float64] = found.time + late
    return times


def _already_there(found: Candidates, data: Candidates | None) -> NDArray[np.bool_]:
    """Which candidates the data have without pulses: the same time and DM, and an S/N within 5%."""
    out = np.zeros(len(found), bool)
    if data is None:
        return out
    now, before = _times(found), _times(data)
    for i in range(len(data)):
        same = np.abs(now - before[i]) <= data.width[i]
        same &= (found.dm_low <= data.dm[i]) & (data.dm[i] <= found.dm_high)
        out |= same & (np.abs(found.snr / data.snr[i] - 1) <= 0.05)
    return out


def _match(
    obs: Observation, found: Candidates, placed: list[_Placed], constant: float, known: NDArray[np.bool_]
) -> tuple[list[tuple[Any, ...]], list[tuple[float, float, float]], float]:
    """A row for each pulse, the candidates of no pulse, and the seconds that are near a pulse.

    ``known`` candidates, which the data have without pulses, belong to no pulse and are not false.
    """
    per_dm = constant * (float(obs.freqs.min()) ** -2 - obs.top**-2)
    times, taken = _times(found), known.copy()
    rows, near = [], 0.0
    for one in placed:
        wide = one.made.length * obs.tsamp
        middle = (one.made.begin + one.made.length / 2) * obs.tsamp
        own = ~known & (np.abs(times - middle) <= 2 * wide)
        own &= np.abs(found.dm - one.pulse.dm) <= wide / per_dm
        reach = wide + _reach(one.pulse, wide, found, per_dm)
        close = ~known & (np.abs(times - middle) <= reach)
        near += 2 * reach
        best = int(np.flatnonzero(own)[np.argmax(found.snr[own])]) if own.any() else -1
        rows.append((
            one.pulse.snr, one.pulse.dm, middle, one.pulse.width, wide, one.pulse.scatter, one.known, best >= 0,
            found.snr[best] if best >= 0 else math.nan, found.dm[best] - one.pulse.dm if best >= 0 else math.nan,
            times[best] - middle if best >= 0 else math.nan, found.width[best] if best >= 0 else math.nan,
            int((own | close).sum()),
        ))  # fmt: skip
        taken |= own | close
    spare = [(float(found.snr[i]), float(found.dm[i]), float(times[i])) for i in np.flatnonzero(~taken)]
    return rows, spare, near
