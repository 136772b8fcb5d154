"""Injection campaigns: pulses are added to noise or to data, the search runs as for a user, and finds are counted."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.progress import reporting
from skysieve.dedispersion.clean.masks import Mask
from skysieve.dedispersion.data.delays import delay_seconds
from skysieve.dedispersion.data.filterbank import Filterbank, opened
from skysieve.dedispersion.data.observation import Observation
from skysieve.dedispersion.data.simulate import PulseReader, whole_reader
from skysieve.dedispersion.dm_plan.arguments import stages_of
from skysieve.dedispersion.single_pulse.search import SearchPlan

from .grid import Axis, PulseGrid
from .interference import InterferenceReader
from .noise import LEAST_ROOM, Levels, Noise, level_near, levels
from .pulses import Pulse, Recorded, record, whole_counts
from .result import TRIALS, Completeness

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from skysieve.dedispersion.data.filterbank import Paths
    from skysieve.dedispersion.dm_plan.plan import DMPlan
    from skysieve.dedispersion.single_pulse.candidates import Candidates

__all__ = ["completeness"]

AROUND = 256
"""Least samples before and after a pulse from which the level of data is measured."""
MARGIN = 0.5
"""Most seconds before the first pulse and between pulses, beside two sweeps."""


@dataclass
class Placed:
    """A pulse that was added, and what the ideal detector sees of it.

    Attributes
    ----------
    pulse, made
    known : float
        S/N of the detector that knows DM, time and width, in the samples that survive.
    left : float
        Fraction of the samples of its window that survive interference and gaps.
    snr_left : float
        Its ideal S/N in these samples.
    clipped : float
        Fraction of its counts that the range of the samples cuts off.
    """

    pulse: Pulse
    made: Recorded
    known: float = math.nan
    left: float = 1.0
    snr_left: float = 0.0
    clipped: float = 0.0


def completeness(
    data: Filterbank | Paths | Noise,
    dms: ArrayLike | DMPlan,
    *,
    n: int = 1000,
    snr: Sequence[float] = (7.0, 8.0, 9.0, 10.0),
    dm: Axis = (50.0, 500.0),
    width: Axis = (1e-3, 1e-2),
    scatter: Axis = 0.0,
    index: Axis = 0.0,
    band: Any = (0.0, 1.0),
    interference: str | Sequence[str] = (),
    strength: float = 1.0,
    prepare: Callable[[Filterbank], tuple[Filterbank, Mask | None]] | None = None,
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
    dm, width, scatter, index : tuple, list or float
        A tuple of the lowest and the highest value, from which each pulse is drawn; or values, of which all
        combinations are injected.  Width (FWHM, s) is drawn evenly in its logarithm, DM, scatter (s at mid band) and
        spectral index evenly.
    band : (float, float) or list of them
        Part of the band that pulses fill, from its bottom, 0, to its top, 1; or several.
    interference : str or sequence of str
        Kinds of interference to add, see `injections.interference.KINDS`, or "all".  What it covers is counted: the
        S/N of a pulse is then that in the samples that survive, and pulses that lose over 20% are counted apart.
    strength : float
        Factor of the heights of the interference.
    prepare : callable, optional
        ``prepare(data)`` returns the data to search and a mask or None: filters that a user applies before the search.
    seed : int
        Campaigns of different seeds share neither pulses nor noise.
    progress : bool or callable
        True draws a bar of the pulses; a callable gets ``(done, total)``.
    **options
        As for `search`: ``threshold``, ``widths``, ``noise``, ``clean``, ``device`` and so on.

    Returns
    -------
    Completeness

    Raises
    ------
    ValueError
        A range is not one, the data are too short for a pulse of the highest DM or do not vary, or all channels are
        masked.

    Examples
    --------
    >>> import numpy as np
    >>> from skysieve.dedispersion import Noise, completeness
    >>> receiver = Noise(nchan=64, foff=-4, tsamp=1e-3, duration=20)
    >>> found = completeness(receiver, np.arange(100, 400, 4), n=8, snr=[20], dm=(150, 300), threads=1)
    >>> float(found.recall()["recall"][0])
    1.0
    """
    grid = PulseGrid(snr, dm, width, scatter, index, band)
    if n < 1:
        raise ValueError(f"n={n}: expected at least one pulse")
    rng = np.random.default_rng([seed, 7])
    wanted = grid.draw(n, rng)
    kinds = (interference,) if isinstance(interference, str) else tuple(interference)
    noise = data if isinstance(data, Noise) else None
    began, done, number = time.perf_counter(), 0, 0
    rows: list[tuple[Any, ...]] = []
    false: list[tuple[float, float, float]] = []
    hours, searching = 0.0, 0.0

    def execute(plan: SearchPlan, fb: Filterbank) -> Candidates:
        nonlocal searching
        since = time.perf_counter()
        fb, mask = (fb, None) if prepare is None else prepare(fb)
        if mask is not None and not mask.weight_of(fb.nsamp):
            raise ValueError("mask: all channels are masked, so that nothing can be found")
        found = plan.execute(fb, mask=mask)
        searching += time.perf_counter() - since
        return found

    with (
        opened(noise.segment(seed) if noise is not None else data) as first,  # type: ignore[arg-type]
        reporting(progress, "injecting pulses") as report,
        SearchPlan(first, dms, **options) as plan,
    ):
        own = None if noise is not None else execute(plan, first)
        lost = np.empty((0, 4), np.int64) if own is None else own.dropped
        constant = stages_of(first, dms, options.get("dm_constant"))[1]
        known = levels(first, noise)
        analog = noise is not None and noise.analog
        while done < n:
            fb = first if noise is None else noise.segment(seed, number)
            placed = list(place(fb, wanted[done:], known.sigma, constant, grid.highest_dm, rng))
            if not placed:
                raise ValueError(
                    f"dm={grid.highest_dm:g}: the data last {fb.nsamp * fb.tsamp:g} s, too short for such a pulse"
                )
            pulses = [(one.made.first, counts_of(fb, one.made, known, analog)) for one in placed]
            searched = Filterbank([PulseReader(whole_reader(fb), pulses, analog=analog)])
            reader = None
            if kinds:
                reader = InterferenceReader(searched, kinds, seed * 1_000_003 + number, strength)
                searched = Filterbank([reader])
            for one, (_, counts) in zip(placed, pulses, strict=True):
                ideal(one, fb, counts, reader, lost, known, analog)
            found = execute(plan, searched)
            matched, spare, near = _match(fb.observation, found, placed, constant, _already_there(found, own))
            rows += matched
            false += spare
            hours += max(0.0, fb.nsamp * fb.tsamp - near) / 3600
            done, number = done + len(placed), number + 1
            if report is not None:
                report(done, n)
        threshold = found.threshold
        where = f"{first.nchan} channels, {first.observation.freqs.min():g} to {first.observation.top:g} MHz"
    trials = np.array(rows, TRIALS)
    alarms = np.array(false, [("snr", "f8"), ("dm", "f8"), ("time", "f8")])
    return Completeness(trials, alarms, hours, float(threshold), where, time.perf_counter() - began, searching)


def place(
    fb: Filterbank, wanted: Sequence[dict[str, Any]], sigma: NDArray[np.float64], constant: float, highest: float,
    rng: np.random.Generator,
) -> Iterator[Placed]:  # fmt: skip
    """Pulses, one after the other and at least two sweeps apart, as long as they fit into the data."""
    obs, length = fb.observation, fb.nsamp * fb.tsamp
    bottom = float(obs.freqs.min())
    sweep = float(delay_seconds(bottom, highest, obs.top, constant))
    margin = min(MARGIN, length / 20)
    at = margin + float(rng.uniform()) * min(2 * sweep, max(0.0, length - sweep - 4 * margin))
    for i, parameters in enumerate(wanted):
        pulse = Pulse(time=at + margin * float(rng.uniform()), **parameters)
        made = record(obs, pulse, sigma, constant)
        if made.first.min() < 0:  # a wide pulse: begin later
            at -= float(made.first.min()) * obs.tsamp
            pulse = Pulse(time=at + margin, **parameters)
            made = record(obs, pulse, sigma, constant)
        if int(made.first.max()) + made.counts.shape[1] > fb.nsamp:
            if i:
                return
            early = float(int(made.first.max()) + made.counts.shape[1] - fb.nsamp) * obs.tsamp
            pulse = Pulse(time=pulse.time - early, **parameters)
            made = record(obs, pulse, sigma, constant)
            if made.first.min() < 0:
                return
        yield Placed(pulse, made)
        at = pulse.time + 2 * sweep + margin + 4 * made.length * obs.tsamp


def counts_of(fb: Filterbank, made: Recorded, known: Levels, analog: bool) -> NDArray[Any]:
    """What is added to the samples: whole counts of integers of a file, whose fractions are carried on.

    Where a sample has its largest value already, nothing can be added; the others get more.
    """
    if analog or fb.dtype.kind == "f":
        return made.counts.astype(np.float32)
    return whole_counts(made.counts / np.maximum(known.room, LEAST_ROOM)[:, None])


def ideal(
    one: Placed, fb: Filterbank, counts: NDArray[Any], reader: InterferenceReader | None, lost: NDArray[np.int64],
    known: Levels, analog: bool,
) -> None:  # fmt: skip
    """What a detector sees that knows DM, time and width: the sum over the window of the ideal boxcar.

    Samples that interference covers and samples that the data lack do not count.  The level of data, which drifts, is
    measured around the pulse.
    """
    made, length = one.made, one.made.length
    begin = made.begin + made.delays
    low, high = max(0, int(begin.min())), min(fb.nsamp, int(begin.max()) + length)
    begin = np.clip(begin, low, high - length)  # a delay that is rounded can end a sample after the pulse
    at = (begin - low)[:, None] + np.arange(length)
    rows = np.arange(fb.nchan)[:, None]
    level, sigma = known.level, known.sigma
    if not analog:
        more = max(AROUND, 2 * length)
        first, last = max(0, low - more), min(fb.nsamp, high + more)
        block = fb.block(first, last - first)
        near = (begin - first)[:, None] + np.arange(-more, length + more)
        level = level_near(block[rows, np.clip(near, 0, last - first - 1)], known)
        block = block[:, low - first : high - first]
    else:
        block = fb.block(low, high - low)
    values = block[rows, at].astype(np.float64)
    steps = at + low - made.first[:, None]
    inside = (steps >= 0) & (steps < counts.shape[1])
    steps = np.clip(steps, 0, counts.shape[1] - 1)
    wanted, added = (np.where(inside, x[rows, steps], 0.0) for x in (made.counts, counts))
    if fb.dtype.kind != "f":
        info = np.iinfo(fb.dtype)
        added = np.minimum(added, (fb.maximum or info.max) - values)
    one.clipped = max(0.0, 1 - float(np.nansum(added)) / float(wanted.sum()))
    good = np.isfinite(values)
    if reader is not None:
        good &= ~reader.write(low, high - low)[1].T[rows, at]
    for first, last, top, bottom in lost[(lost[:, 0] < high) & (lost[:, 1] > low)]:
        good[top:bottom] &= (at[top:bottom] + low < first) | (at[top:bottom] + low >= last)
    one.left = float(good.mean())
    spread = math.sqrt(float((good * sigma[:, None] ** 2).sum()))
    if spread > 0:
        one.known = float(((values - level[:, None] + added)[good]).sum()) / spread
        one.snr_left = float(wanted[good].sum()) / spread


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
    obs: Observation, found: Candidates, placed: list[Placed], constant: float, known: NDArray[np.bool_]
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
            one.pulse.snr, one.pulse.dm, middle, one.pulse.width, wide, one.pulse.scatter, one.pulse.index,
            *one.pulse.band, one.left, one.snr_left, one.clipped, one.known, best >= 0,
            found.snr[best] if best >= 0 else math.nan, found.dm[best] - one.pulse.dm if best >= 0 else math.nan,
            times[best] - middle if best >= 0 else math.nan, found.width[best] if best >= 0 else math.nan,
            int((own | close).sum()),
        ))  # fmt: skip
        taken |= own | close
    spare = [(float(found.snr[i]), float(found.dm[i]), float(times[i])) for i in np.flatnonzero(~taken)]
    return rows, spare, near
