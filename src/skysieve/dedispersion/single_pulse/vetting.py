"""Vetting: a second examination of each candidate in the samples around it, to veto interference.

The DM and time of a candidate that is not vetoed are measured again in these samples, which have more sub-bands and
finer DMs than the events of the search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache, partial
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from skysieve.core.tasks import TaskPool
from skysieve.dedispersion.contract import THRESHOLD
from skysieve.dedispersion.data.delays import delay_seconds

from .candidates import Events, columns_of
from .refine import FARTHEST, STEPS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.clean.blocks.records import Records
    from skysieve.dedispersion.data.observation import Observation

    from .grouping import Response

__all__ = ["REASONS", "Vetting"]

REASONS = {
    "edge": "The data end within half a width of it",
    "narrow": "Its power is in a part of the band",
    "undispersed": "The candidate is stronger without dispersion; or it is as strong, and has a DM below 3 or is among "
    "interference",
    "red noise": "The level beside it changes as much as the candidate, or it is not as strong against the samples "
    "beside it",
}
"""The reasons for which a candidate is vetoed, as in the table of ``docs/dedispersion.md``; `Vetting._reason` and
`Vetting._at_edge` decide."""

LEAST_CHANNELS = 32
"""In data of fewer channels no candidate is vetoed: there are too few sub-bands to compare."""
MOST_BANDS, LEAST_BAND = 32, 4
"""Largest number of sub-bands, and smallest number of channels in a sub-band."""
NARROW = 0.4, 0.25
"""A candidate is narrow if `Look.rest` is below the first number times `Look.snr`, and the best window without
dispersion lacks less than the second number, as a fraction, of its power (see `Look.lacks`)."""
LOW_DM, UNRESOLVED = 3.0, 0.25
"""Below ``LOW_DM`` a candidate is vetoed if the best window without dispersion lacks less than the fraction
``UNRESOLVED`` of its power."""
BETTER = 1.4, 20.0
"""A candidate of any DM is vetoed if the power of the best window without dispersion exceeds the first number times its
own power by more than the second number."""
MARGIN, WIDE_MARGIN = (9.0, 0.05), (16.0, 0.1)
"""A candidate is dispersed if its power exceeds that of the best window without dispersion by more than the first
number, and by more than the second number times its power.  The wide margin is for candidates among interference whose
sweep is below `SHORT`."""
SHORT, RESOLVED, SURELY = 0.5, 2.0, 4.0
"""Values of `Look.sweep`.  Below ``SHORT`` a pulse looks much like an impulse whose strength changes over the band.
Above ``RESOLVED`` no window without dispersion is stronger than a pulse.  Above ``SURELY`` a pulse is also
`Look.dispersed`."""
IMPULSES, SECONDS = 3, 32.0
"""If ``IMPULSES`` impulses and steps of the gain were removed in the ``SECONDS`` before a candidate and in a block
after it, the candidate has to be `Look.dispersed` and not `WEAK`.  If as many impulses were removed in a channel, the
channel has known interference.  For fewer seconds of data the number is lower in proportion."""
WEAK = 0.92
"""Fraction of the threshold of the search that `Look.snr` and `Look.even` have to reach among such impulses.  Bursts of
a campaign reached about 0.92 and more, other dispersed candidates 0.90 and less."""
SPREAD, SPREAD_WEAK = (10.0, 0.3), 0.88
"""A candidate has to reach `SPREAD_WEAK` of the threshold instead of `WEAK` if `Look.sweep` is above the first number,
and the best window without dispersion has less than the second number, as a fraction, of its power."""
CHANCES, LOUDER = 4, 2.0
"""Number of times that events of vetoed candidates may be grouped again, and the S/N by which such an event has to
exceed what the vetoed candidate explains."""
LONGEST = 0.04
"""Longest duration of an impulse, seconds."""
RED, SURE = 2.5, 5.5
"""The noise beside a candidate is red if `Look.red` exceeds ``RED``.  The candidate is vetoed for it unless its S/N is
at least ``SURE`` times `Look.red`."""
EVEN = 0.4, 1.6
"""Range of the ratio of `Look.snr` to the S/N of the candidate within which the level beside it is even."""
SIDE, LEAST_SIDE = 16, 128
"""Range that is examined on each side of a candidate: in widths, and its minimum in samples."""
PARTS = 8
"""Number of bins into which the samples of a wide window are added."""
SLICE = 2**24
"""Samples that are read at a time."""
KNOTS, KNOT_SECONDS = 6.0, 0.25
"""Distance between the knots of the spline that is fitted to slow changes of the level: in widths, and its minimum in
seconds."""
SAMPLE_STEPS, BAND_STEPS, BIN_STEPS, BESIDE_STEPS, PLACE_STEPS = 0.02, 280.0, 8.0, 9000.0, 2.0
"""Steps of Python's interpreter for a sample of a channel, by NumPy (measured: 8 to 45 ns), for the level of a
sub-band (190 to 280 us), for the windows that begin in a bin (2 to 8 us), for windows of one bin beside a candidate
(9 ms), and for the window of a sub-band in `cpu_look.place` (1.8 to 2.1 us)."""
WORTH = {"channel_sums": 4.0, "band_series": 5.0, "second_look": 10.0}
"""Time of compiling functions, in `jit.INTERPRETED_SECONDS`."""
MOST_WINDOWS = 11
"""Most windows of `_windows`."""
TOGETHER = 16
"""Candidates at which a thread looks in one call: starting a thread takes 0.3 ms, a look 0.2 ms."""
MOST_THREADS = 8
"""Most threads that examine candidates; more are slower, since they wait for the global interpreter lock."""
Slice = tuple[int, "NDArray[np.uint8 | np.float32]", "NDArray[np.bool_]"]
ManySums = Callable[[Sequence["CutOut"], TaskPool], Iterator["Sums"]]
Memory = Callable[[int], "NDArray[np.uint8]"]
"""A function that returns memory of the given number of bytes, for samples."""


class Sums(NamedTuple):
    """Sums of the samples of cut-outs.

    Attributes
    ----------
    values : numpy.ndarray of float64
        For each cut-out the variances of the channels, and ``flat`` and ``lined`` of `cpu_vetting.band_series`.
    starts : numpy.ndarray of int64
        Where they begin for each cut-out; -1 if its samples are no longer held.
    """

    values: NDArray[np.float64]
    starts: NDArray[np.int64]

    def of(self, cut: CutOut, i: int = 0) -> list[NDArray[np.float64]]:
        """Variances, ``flat`` and ``lined`` of cut-out ``i``."""
        bands, at, parts = len(cut.edges) - 1, int(self.starts[i]), []
        for shape in ((cut.channels,), (2, bands, cut.count), (2, bands, cut.length)):
            parts.append(self.values[at : at + math.prod(shape)].reshape(shape))
            at += math.prod(shape)
        return parts


class Samples(Protocol):
    """The samples that were searched, read again."""

    def __call__(
        self, start: int, stop: int, memory: Memory | None = None
    ) -> tuple[NDArray[Any], NDArray[np.bool_]] | None:
        """Samples ``start : stop``, shape (samples, channels), and a mask of samples that do not count.

        Returns None if the samples are no longer held.  The mask has one row if the same channels are masked at all
        times; the caller may change it.  Samples before and after the data do not count.  Samples of files may lie in
        ``memory``.  Otherwise the next call of this thread may overwrite them.  Several threads may call this function
        at once if its attribute ``at_once`` is true.
        """


@dataclass(frozen=True)
class Arrivals:
    """Bins by which a pulse arrives later than at the top of the band.

    Attributes
    ----------
    delays : numpy.ndarray of int64
        Of each channel.
    early, late, mean : numpy.ndarray
        The least, largest and mean delay of the channels of each sub-band.
    """

    delays: NDArray[np.int64]
    early: NDArray[np.int64]
    late: NDArray[np.int64]
    mean: NDArray[np.float64]

    @classmethod
    def of(cls, delays: NDArray[np.int64], edges: NDArray[np.int64]) -> Arrivals:
        """Make `Arrivals` from the delays of the channels; ``edges`` are those of the sub-bands."""
        first = edges[:-1]
        mean = np.add.reduceat(delays, first) / np.diff(edges)
        return cls(delays, np.minimum.reduceat(delays, first), np.maximum.reduceat(delays, first), mean)

    @property
    def latest(self) -> int:
        """The largest delay."""
        return int(self.late.max())


@dataclass(frozen=True)
class Look:
    """The measurements that decide whether a candidate is vetoed, from its cut-out.

    Attributes
    ----------
    snr : float
        S/N of the window against samples beside it.
    rest : float
        The same without the strongest fifth of the sub-bands.
    free : float
        S/N that the sub-bands without known interference suggest for all, if the others are brighter than that; NaN
        otherwise.
    power, undispersed : float
        Sum over sub-bands of the squares of their S/N: of the window, and of the best window without dispersion that
        covers it there.
    broad, broad_undispersed : float
        The same for `cpu_look.BROAD` parts of the band.
    sweep : float
        Widths by which the arrival differs over the sub-bands that carry its power.
    red : float
        Scatter of neighbouring windows over that of white noise: 1 for white noise.
    even : float
        S/N that the sub-bands without the strongest eighth suggest for all: about ``snr`` for a burst that fills the
        band, and less if few sub-bands have most of its power.
    aside, aside_power, aside_undispersed : float
        S/N of the candidate in those of the `cpu_look.BROAD` parts of the band that the best window without dispersion
        does not touch; ``broad`` and ``broad_undispersed`` of these parts alone.  0 if that window is weak.
    """

    snr: float
    rest: float
    free: float
    power: float
    undispersed: float
    broad: float
    broad_undispersed: float
    sweep: float
    red: float
    even: float
    aside: float = 0.0
    aside_power: float = 0.0
    aside_undispersed: float = 0.0

    def lacks(self, part: float) -> bool:
        """Whether the best window without dispersion lacks less than the fraction ``part`` of the candidate's power."""
        return self.power - self.undispersed < part * self.power

    @property
    def dispersed(self) -> bool:
        """Whether the candidate is stronger than any window without dispersion."""
        return _exceeds(self.broad, self.broad_undispersed)

    @property
    def dispersed_among(self) -> bool:
        """The same for a candidate among interference."""
        margin = WIDE_MARGIN if self.sweep < SHORT else MARGIN
        return _exceeds(self.broad, self.broad_undispersed, margin)

    @property
    def beside_bump(self) -> bool:
        """Whether the best window without dispersion is a bump of the level upon which one end of a pulse lies.

        Then the part of the candidate that this window does not touch is a dispersed pulse, too.
        """
        return self.aside >= SURE and _exceeds(self.aside_power, self.aside_undispersed)

    @property
    def flat(self) -> bool:
        """Whether a window without dispersion is stronger than the candidate."""
        return self.broad_undispersed - self.broad > MARGIN[0]


def _exceeds(power: float, undispersed: float, margin: tuple[float, float] = MARGIN) -> bool:
    """Whether the power of a candidate exceeds that of the best window without dispersion by a margin."""
    return power - undispersed > max(margin[0], margin[1] * power)


class Vetting:
    """Examines the candidates of a search again, and vetoes those that are not dispersed pulses.

    Parameters
    ----------
    obs : Observation
    ref_freq, dm_constant : float
    highest : float
        The highest DM that is searched.
    block : int
        In a stream, the number of samples after the block of a candidate that have arrived when it is complete.
    threshold : float
        S/N of the search.
    sums : callable, optional
        Function that computes the `Sums` of several `CutOut` in batches, with the threads of a pool.  It replaces
        `sums_on_host`.
    """

    def __init__(
        self, obs: Observation, ref_freq: float, dm_constant: float, highest: float, block: int,
        threshold: float = THRESHOLD, sums: ManySums | None = None,
    ) -> None:  # fmt: skip
        self.obs, self.ref_freq, self.dm_constant, self.block = obs, ref_freq, dm_constant, block
        self.threshold, self.sums = threshold, sums
        self.low = LOW_DM if highest > LOW_DM else -math.inf
        self.usable = obs.nchan >= LEAST_CHANNELS and obs.dm is None
        bands = max(4, min(MOST_BANDS, obs.nchan // LEAST_BAND))
        self._bands, self._edges = bands, np.linspace(0, obs.nchan, bands + 1).round().astype(np.int64)
        self._arrivals = lru_cache(maxsize=64)(self._arrivals_at)

    def side(self, width: int) -> int:
        """Samples on each side of a window of ``width`` samples that are looked at."""
        return max(width, min(max(SIDE * width, LEAST_SIDE), self.block - width))

    def reach(self, width: int, dm: float) -> int:
        """Samples between the first and the last one that may be looked at, for a candidate of a width and DM."""
        late = float(delay_seconds(self.obs.freqs, dm, self.obs.top, self.dm_constant).max())
        return 2 * self.side(width) + 4 * width + math.ceil(late / self.obs.tsamp)

    def examine(
        self, columns: dict[str, NDArray[Any]], samples: Samples, records: Records, limits: tuple[int, int],
        threads: int = 1, beside: bool = False,
    ) -> tuple[NDArray[np.str_], NDArray[np.float64]]:  # fmt: skip
        """Why each candidate is vetoed, and by how much its DM and time change.

        The first array holds names of `REASONS`, or "".  The second has the shape (candidates, 2): pc / cm^3, and
        seconds at the top of the band; 0 for candidates that are vetoed or whose samples are not held any more.

        Parameters
        ----------
        columns : dict of numpy.ndarray
            Columns of the candidates.
        samples : Samples
        records : Records
            Records of the impulses and steps of the gain that the cleaning has removed.
        limits : (int, int)
            The first sample of the data, and the last + 1.
        threads : int
            Threads that look at candidates; one of them reads samples at a time, unless ``samples.at_once``.
        beside : bool
            Whether the candidates lie beside interference.
        """
        reading = nullcontext() if getattr(samples, "at_once", False) else Lock()

        def read(start: int, stop: int, memory: Memory | None = None) -> tuple[NDArray[Any], NDArray[np.bool_]] | None:
            with reading:
                return samples(start, stop, memory)

        found = np.zeros(len(columns["snr"]), f"U{max(map(len, REASONS))}")
        shifts = np.zeros((len(found), 2))
        if not self.usable or not len(found):
            return found, shifts
        snrs, dms = columns["snr"].tolist(), columns["dm"].astype(np.float64)
        first, size = self._places(columns, dms)
        at_edge = self._at_edge(dms, first, size, limits)
        places = list(zip(dms.tolist(), first.tolist(), size.tolist(), strict=True))

        def cut_out(i: int) -> CutOut:
            return self._cut_out(read, *places[i])

        pulsed, among = self._interference(first, size, records, limits)
        among |= beside

        def look(some: range, cuts: list[CutOut], sums: Sums) -> None:
            looks, changes = self._looked(cuts, sums, pulsed[some.start : some.stop])
            for i, cut, numbers, change in zip(some, cuts, looks.tolist(), changes, strict=True):
                if cut.gone:
                    continue
                dm, _, width = places[i]
                found[i] = "edge" if at_edge[i] else self._reason(Look(*numbers), snrs[i], dm, width, among[i])
                if not found[i]:
                    shifts[i] = self._shift(cut, change)

        def on_host(i: int) -> None:
            cut = cut_out(i)
            look(range(i, i + 1), [cut], sums_on_host(cut, *self._summing(cut)))

        with TaskPool(max(1, min(threads, MOST_THREADS, len(found)))) as pool:
            if self.sums is None:
                pool.run([partial(on_host, i) for i in range(len(found))])
                return found, shifts
            cuts, done = [cut_out(i) for i in range(len(found))], 0
            for values, starts in self.sums(cuts, pool):
                tasks = []
                for at in range(done, done + len(starts), TOGETHER):
                    some = range(at, min(at + TOGETHER, done + len(starts)))
                    part = Sums(values, starts[some.start - done : some.stop - done])
                    tasks.append(partial(look, some, cuts[some.start : some.stop], part))
                pool.run(tasks)
                done += len(starts)
        return found, shifts

    def _interference(
        self, first: NDArray[np.int64], size: NDArray[np.int64], records: Records, limits: tuple[int, int]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """In which sub-bands impulses were removed near each candidate, and whether they were in half of the band."""
        before = np.maximum(limits[0], first - round(SECONDS / self.obs.tsamp))
        after = np.minimum(limits[1], first + size + self.block)
        needed = np.clip(IMPULSES * (after - before) * self.obs.tsamp / SECONDS, 1.0, IMPULSES)
        removed = records.impulses(int(before.min()), int(after.max()))
        wide = 2 * (removed[:, 2] - removed[:, 1]) >= self.obs.nchan
        low, high = (np.searchsorted(removed[wide, 0], end) for end in (before, after))
        among, removed = high - low >= needed, removed[~wide]
        low, high = (np.searchsorted(removed[:, 0], end) for end in (before, after))
        pulsed = np.zeros((len(first), self._bands), bool)
        for i in np.flatnonzero(high - low >= needed).tolist():
            begin, end = (
                np.bincount(removed[low[i] : high[i], k], minlength=self.obs.nchan + 1)[:-1] for k in (1, 2)
            )  # fmt: skip
            in_channels = np.cumsum(begin - end)
            pulsed[i] = np.maximum.reduceat(in_channels, self._edges[:-1]) >= needed[i]
        return pulsed, among

    def _places(
        self, columns: dict[str, NDArray[Any]], dms: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first sample of each candidate at the top of the band, and its length in samples."""
        late = delay_seconds(self.obs.top, dms, self.ref_freq, self.dm_constant)
        top = columns["time"].astype(np.float64) + late - columns["width"].astype(np.float64) / 2
        first, size = (np.rint(x / self.obs.tsamp).astype(np.int64) for x in (top, columns["width"].astype(np.float64)))
        return first, np.maximum(1, size)

    def _cut_out(self, samples: Samples, dm: float, at: int, width: int) -> CutOut:
        """The samples around a window, whose first sample at the top of the band is ``at``."""
        bin_ = max(1, width // PARTS)
        w, side = round(width / bin_), -(-self.side(width) // bin_)
        return CutOut(samples, self._arrivals(dm, bin_), self._edges, at, bin_, side, w)

    def vetted(
        self, events: Events, head: NDArray[np.int64], dms: NDArray[np.float64], response: Response, samples: Samples,
        records: Records, limits: tuple[int, int], threads: int = 1,
    ) -> tuple[Events, NDArray[np.int64], dict[str, int], NDArray[np.float64]]:  # fmt: skip
        """The events of candidates that are not vetoed, the event at which each peaks, and the numbers of those vetoed.

        The last array has the shape (events, 2).  It holds, for each event, the changes of the DM and time of its
        candidate (see `examine`).

        The events of a vetoed candidate may include those of real bursts, since interference may seem to explain them.
        Therefore the events that are stronger than the vetoed candidate explains are grouped again, without the others.

        Parameters
        ----------
        events, head, dms
            As for `columns_of`.
        response : Response
            The response by which events are grouped.
        samples, records, limits, threads
            As for `examine`.
        """
        peak, keep, shifts = head.copy(), np.zeros(len(events), bool), np.zeros((len(events), 2))
        some, vetoed = np.arange(len(events)), dict[str, int]()
        for turn in range(CHANCES):
            part, own = events.select(some), np.searchsorted(some, peak[some])
            columns, number = columns_of(part, own, dms, self.obs, self.ref_freq, self.dm_constant)
            reasons, by = self.examine(columns, samples, records, limits, threads, beside=turn > 0)
            vetoed = vetoed if turn else counted(reasons)
            good = (reasons == "")[number]
            keep[some[good]], shifts[some] = True, by[number]
            left = ~good & (part.snr > response.most(part, own) + LOUDER)
            order = np.flatnonzero(left)[np.argsort(own[left], kind="stable")]
            for mine in np.split(order, np.flatnonzero(np.diff(own[order])) + 1):
                peak[some[mine]] = some[mine][response.group(part.select(mine)).head]
            some = some[left]
            if not len(some):
                break
        return events.select(keep), (np.cumsum(keep) - 1)[peak[keep]], vetoed, shifts[keep]

    def _arrivals_at(self, dm: float, size: int) -> Arrivals:
        """Arrivals at a DM, in bins of ``size`` samples."""
        late = delay_seconds(self.obs.freqs, dm, self.obs.top, self.dm_constant) / (self.obs.tsamp * size)
        return Arrivals.of(np.rint(late).astype(np.int64), self._edges)

    def _summing(self, cut: CutOut) -> list[Callable[..., Any]]:
        """The first two of `kernels`; for a first small cut-out they are interpreted."""
        sums = SAMPLE_STEPS * cut.count * cut.bin * cut.channels
        return _run_by((sums, sums), kernels()[:2])

    def _looking(self, cuts: list[CutOut]) -> Callable[..., Any]:
        """The third of `kernels`; for a few first cut-outs it is interpreted."""
        places = self._bands * (2 * FARTHEST * STEPS + 1)
        steps = sum(
            BAND_STEPS * self._bands + BIN_STEPS * cut.count + BESIDE_STEPS / cut.width
            + PLACE_STEPS * places * (cut.width + 2)
            for cut in cuts
        )  # fmt: skip
        return _run_by((steps,), kernels()[2:])[0]

    def _at_edge(
        self, dms: NDArray[np.float64], first: NDArray[np.int64], size: NDArray[np.int64], limits: tuple[int, int]
    ) -> NDArray[np.bool_]:
        """Whether the data end within half a width of each window, in half of the channels."""
        middle = self.obs.freqs[[(self.obs.nchan - 1) // 2, self.obs.nchan // 2]]  # frequencies are in order
        late = delay_seconds(middle, dms[:, None], self.obs.top, self.dm_constant).mean(axis=1) / self.obs.tsamp
        half = size // 2
        return (first + late < limits[0] + half) | (first + late + size > limits[1] - half)

    def _reason(self, look: Look, snr: float, dm: float, width: int, among: bool) -> str:
        """Why a candidate is vetoed; ``among`` says whether impulses or steps of the gain were removed before it."""
        spread = look.sweep > SPREAD[0] and look.broad_undispersed < SPREAD[1] * look.broad
        least = (SPREAD_WEAK if spread else WEAK) * self.threshold
        if look.free < least or (look.rest < NARROW[0] * look.snr and look.lacks(NARROW[1])):
            return "narrow"
        flat = look.broad_undispersed > BETTER[0] * look.broad + BETTER[1] or (look.flat and look.sweep > RESOLVED)
        flat = flat or (look.sweep > SURELY and not look.dispersed)
        flat = flat or (among and self.low > 0 and not look.dispersed_among)
        if flat and not look.beside_bump:
            return "undispersed"
        if look.lacks(UNRESOLVED) and dm < self.low and width * self.obs.tsamp <= LONGEST:
            return "undispersed"
        if (look.red > RED and look.snr < SURE * look.red) or not EVEN[0] <= look.snr / snr <= EVEN[1]:
            return "red noise"
        if among and look.snr < least:
            return "red noise"
        return "narrow" if among and look.even < least else ""

    def _looked(
        self, cuts: list[CutOut], sums: Sums, pulsed: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The numbers of a `Look` and ``found`` of `cpu_look.place`, of each cut-out.

        ``pulsed`` says in which sub-bands impulses were removed before each.
        """
        from .cpu_look import highest_sums

        looks, found = np.empty((len(cuts), len(fields(Look)))), np.empty((len(cuts), 2))
        windows = np.zeros((len(cuts), 2, MOST_WINDOWS), np.int64)
        numbers = np.empty((len(cuts), 9), np.int64)
        for i, cut in enumerate(cuts):
            w, side, guard, count = cut.width, cut.side, cut.guard, cut.count
            spacing = max(KNOTS * w, KNOT_SECONDS / (self.obs.tsamp * cut.bin))
            near, some = max(1, min(_beside(w), side - guard)), _windows(w, side)
            windows[i, :, : len(some[0])] = some
            numbers[i] = w, side, guard, cut.bin, count, cut.length, max(1, round(count / spacing)), near, len(some[0])
        delays = [cut.arrivals for cut in cuts]
        early, late, mean = (np.stack([getattr(one, x) for one in delays]) for x in ("early", "late", "mean"))
        late_of, _ = self._lateness
        scratch = np.empty(2 * self._bands * max(cut.count + cut.length + 2 for cut in cuts))
        self._looking(cuts)(
            *sums, numbers, windows, early, late, mean, pulsed, late_of - late_of.mean(), self.obs.nchan,
            highest_sums(self._bands), scratch, looks, found,
        )  # fmt: skip
        return looks, found

    @cached_property
    def _lateness(self) -> tuple[NDArray[np.float64], float]:
        """Mean delay of each sub-band as a fraction of the largest delay, and that delay in seconds, at DM 1."""
        delays = delay_seconds(self.obs.freqs, 1.0, self.obs.top, self.dm_constant)
        most = float(delays.max())
        return np.add.reduceat(delays / most, self._edges[:-1]) / np.diff(self._edges), most

    def _shift(self, cut: CutOut, found: NDArray[np.float64]) -> tuple[float, float]:
        """By how much the DM of a candidate changes, and its time at the top of the band."""
        late, most = self._lateness
        smeared, later = (found * (cut.bin * self.obs.tsamp)).tolist()
        return smeared / most, later - smeared * float(late.mean())


class CutOut:
    """The samples around a candidate, in slices of time.

    Parameters
    ----------
    samples : Samples
    arrivals : Arrivals
    edges : numpy.ndarray of int64
        First channel of each sub-band, and the number of channels.
    at : int
        First sample of the candidate at the top of the band.
    bin : int
        Samples of a bin.
    side, width : int
        Bins on each side of the candidate, and of the candidate.

    Attributes
    ----------
    guard : int
        Bins before and after the candidate that do not count as beside it.
    count, length : int
        Bins of the series of a sub-band, as observed and de-dispersed.
    start : int
        The first sample.
    channels : int
    gone : bool
        Whether its samples are no longer held.
    """

    def __init__(
        self, samples: Samples, arrivals: Arrivals, edges: NDArray[np.int64], at: int, bin: int, side: int, width: int
    ) -> None:
        self.samples, self.arrivals, self.edges, self.bin = samples, arrivals, edges, bin
        self.side, self.width, self.guard = side, width, width // 2 + 1
        self.length = 2 * side + width
        self.count = self.length + arrivals.latest
        self.channels, self.gone = int(edges[-1]), False
        self.start = at - side * bin
        self._step = max(1, SLICE // (self.channels * bin))
        self._only: Slice | None = None

    @property
    def parts(self) -> int:
        """Number of slices."""
        return -(-self.count // self._step)

    def first_of(self, part: int) -> int:
        """First bin of a slice."""
        return part * self._step

    def samples_of(self, part: int) -> int:
        """Samples of a slice."""
        return (min(self.count, (part + 1) * self._step) - part * self._step) * self.bin

    def slice(self, part: int, memory: Memory | None = None) -> Slice | None:
        """First bin, samples, and which of them do not count; None if they are not held any more."""
        first = self.first_of(part)
        start = self.start + first * self.bin
        read = self.samples(start, start + self.samples_of(part), memory)
        if read is None:
            self.gone = True
            return None
        rows, gone = read
        if rows.dtype.kind == "f":
            gone = gone | ~np.isfinite(rows)
        return first, _in_kind(rows), gone

    def slices(self) -> Iterator[Slice]:
        """All slices, unless one is not held any more; a single one is read once."""
        for part in range(self.parts):
            one = self._only or self.slice(part)
            if one is None:
                return
            self._only = one if self.parts == 1 else None
            yield one


def sums_on_host(cut: CutOut, sum_channels: Callable[..., None], add_bands: Callable[..., None]) -> Sums:
    """Sums of the samples of a cut-out, by the first two of `kernels`."""
    C, bands, start = cut.channels, len(cut.edges) - 1, cut.arrivals.delays
    sums, mean, left = np.zeros((3, C)), np.empty(C), np.empty(C, np.bool_)
    for first, rows, gone in cut.slices():
        sum_channels(rows, gone, first, cut.bin, cut.side, start, cut.width, cut.guard, _scratch(rows), sums)
    if cut.gone:
        return Sums(np.empty(0), np.array([-1]))
    found = Sums(np.zeros(C + 2 * bands * (cut.count + cut.length)), np.array([0]))
    var, flat, lined = found.of(cut)
    for first, rows, gone in cut.slices():
        add_bands(rows, gone, first, cut.bin, start, cut.edges, _scratch(rows), sums, mean, var, left, flat, lined)
    return found


def _in_kind(rows: NDArray[Any]) -> NDArray[np.uint8 | np.float32]:
    """Samples in a type for which the functions are compiled: writable, since numba has another type for read-only."""
    return np.require(rows, rows.dtype if rows.dtype == np.uint8 else np.float32, ["C", "W"])


def _scratch(rows: NDArray[Any]) -> NDArray[Any]:
    """Memory for sums of the channels, in the type in which `cpu_vetting.channel_sums` adds them."""
    return np.empty((3, rows.shape[1]), np.int32 if rows.dtype == np.uint8 else np.float64)


def _run_by(steps: tuple[float, ...], some: tuple[Any, ...]) -> list[Callable[..., Any]]:
    """Functions that run ``some`` of `kernels`, compiled or interpreted.

    ``steps`` are the numbers of steps of Python's interpreter that the kernels would take.
    """
    from skysieve.core.cpu.jit import interpreted_if_small

    return [
        interpreted_if_small(kernel, each, WORTH.get(kernel.__name__, 1.0))
        for kernel, each in zip(some, steps, strict=True)
    ]


def kernels() -> tuple[Any, ...]:
    """The compiled functions of a second look, in the order in which they are called."""
    from .cpu_second_look import second_look
    from .cpu_vetting import band_series, channel_sums

    return channel_sums, band_series, second_look


def look_at_one(dtype: str | None) -> None:
    """Compile `kernels` for samples of a type; only the last if it is None."""
    from .cpu_look import highest_sums

    sum_channels, add_bands, look = kernels()
    edges = np.array([0, 8])
    some = Arrivals.of(np.zeros(8, np.int64), edges)
    rows, gone = np.zeros((8, 8), dtype or "uint8"), np.zeros((8, 8), np.bool_)
    cut = CutOut(lambda start, stop, memory=None: (rows, gone), some, edges, 3, 1, 3, 1)
    sums = Sums(np.zeros(8 + 4 * (cut.count + cut.length)), np.zeros(1, np.int64))
    if dtype is not None:
        sums = sums_on_host(cut, sum_channels, add_bands)
    numbers = np.array([[1, 3, 1, 1, cut.count, cut.length, 1, 1, 1]])
    delays = some.early[None], some.late[None], some.mean[None]
    looks, found, pulsed = np.empty((1, len(fields(Look)))), np.empty((1, 2)), np.zeros((1, 1), np.bool_)
    windows, scratch = np.ones((1, 2, MOST_WINDOWS), np.int64), np.empty(64)
    look(*sums, numbers, windows, *delays, pulsed, np.zeros(1), 8, highest_sums(1), scratch, looks, found)


def counted(reasons: NDArray[np.str_]) -> dict[str, int]:
    """How many candidates each reason vetoes.

    >>> counted(np.array(["", "narrow", "edge", "narrow"]))
    {'edge': 1, 'narrow': 2}
    """
    return {name: int(count) for name in REASONS if (count := np.count_nonzero(reasons == name))}


def gone_in(rects: NDArray[np.int64], start: int, gone: NDArray[np.bool_]) -> None:
    """Mark samples in rectangles (first sample, last + 1, first channel, last + 1); ``gone`` begins at ``start``."""
    for first, last, low, high in rects.tolist():
        gone[max(0, first - start) : max(0, last - start), low : min(high, gone.shape[1])] = True


def _beside(width: int) -> int:
    """Samples on each side of a window from which its level is taken."""
    return max(2 * width, 16)


@lru_cache(maxsize=32)
def _windows(w: int, side: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """``sizes`` and ``nears`` of `cpu_look.undispersed`, for windows of a third to twice the width."""
    sizes = np.array(sorted({max(1, round(w * 1.19**k)) for k in range(-6, 5)}))
    return sizes, np.maximum(sizes, [min(_beside(n), side - n - n // 2) for n in sizes.tolist()])
