"""Groups of events that belong to one burst, by the response of a dispersed pulse in DM, time and width.

A DM error ``d`` shifts the channels of a pulse by ``-K d (f^-2 - ref^-2)``: it spreads the pulse over
``m = K d (f_low^-2 - f_high^-2)``, so that its events fill a bow tie in the plane of time and DM.  A window of width w
that holds the fraction c of the spread pulse, of width w0 and S/N s, has the S/N ``s c sqrt(w0 / w)``; where windows
fit the pulse this is the response of Cordes & McLaughlin (2003, eq. 12-13).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.dedispersion.data.observation import DM_CONSTANT, Observation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .candidates import Events

GAP = 3.0
"""Samples above the threshold of a detector without boxcars are one event if at most this many samples lie between."""

EVENT_STEPS = 500.0
"""Steps of Python's interpreter for an event (measured: 40 to 520 us)."""
WORTH = 4.0
"""Time of compiling the grouping, in `jit.INTERPRETED_SECONDS`."""


def compile_beside(dtype: np.dtype[Any] | str | None) -> None:
    """Start to compile the grouping of events and the second look in another process, if they are not stored.

    The interpreter runs some of them for the first candidates, but holds up all threads meanwhile.

    Parameters
    ----------
    dtype : numpy.dtype, str or None
        Of the samples that are summed on the CPU; None if a GPU sums them.
    """
    from skysieve.core.cpu import jit

    from . import cpu_grouping, vetting

    use = f"from {__name__} import group_one; group_one(); "
    name = None if dtype is None else np.dtype(dtype).name
    use += f"from {__package__}.vetting import look_at_one; look_at_one({name!r})"
    needed = vetting.kernels()[2 if dtype is None else 0 :]
    jit.compile_beside(use, cpu_grouping.explain, cpu_grouping.add_up, *needed)


def group_one() -> None:
    """Group one event."""
    zeros = np.zeros(1)
    rule = Response(zeros, 1000.0, 1500.0, 1500.0, DM_CONSTANT, zeros, 1, 6.0, 1.0)
    rule._group(np.zeros(1, np.int64), zeros, np.ones(1), np.zeros(1, bool), np.full(1, 7.0), None)


@dataclass(frozen=True)
class Groups:
    """Which events belong together.

    Attributes
    ----------
    head : numpy.ndarray of int64
        For each event, the event at which its burst peaks.
    own : numpy.ndarray of bool
        Whether no single event explains the event: heads, and those that several heads explain together.
    open : numpy.ndarray of bool
        Whether later events may change the group of an event.
    """

    head: NDArray[np.int64]
    own: NDArray[np.bool_]
    open: NDArray[np.bool_]


@dataclass(frozen=True)
class Known:
    """The groups of the events of a stream that were found before.

    Attributes
    ----------
    frontiers : numpy.ndarray of float64
        For each DM, the time in seconds before which no more events can come.
    done, own : numpy.ndarray of bool
        Whether the candidate of each event was returned before; and the value that `Groups.own` had then.
    waits : bool
        Whether the data can wait until they are searched, as data in a file can.
    """

    frontiers: NDArray[np.float64]
    done: NDArray[np.bool_]
    own: NDArray[np.bool_]
    waits: bool = False


@dataclass(frozen=True)
class Response:
    """The response of a band to pulses, and the rule that divides events into bursts.

    The strongest event is a burst.  A weaker one belongs to a stronger one if its S/N is at most 1.4 times the response
    there, plus ``excess``, or if a ridge of events leads to the stronger one without a dip of more than ``excess`` and
    a tenth of its S/N, as for bursts that fill a part of the band; if not, it is a burst of its own.  An event that
    belongs to another event belongs to the burst of that event.  A wide event that narrower bursts explain together is
    not a burst.

    Attributes
    ----------
    dms : numpy.ndarray of float64
        All DMs that are searched, rising.
    low, high : float
        Edges of the band, MHz.
    ref_freq : float
        MHz, or inf.
    dm_constant : float
    widest : numpy.ndarray of float64
        For each DM, seconds of the widest boxcar.
    box : int
        The widest boxcar in binned samples.
    threshold, excess : float
        S/N.
    every : bool
        Whether every sample above the threshold is an event.

    Examples
    --------
    >>> from skysieve.dedispersion import fake, search
    >>> fb = fake(nchan=64, duration=4, tsamp=1e-3, fch1=1500, foff=-4, dm=200, times=[1.5], width=4e-3, snr=60, seed=1)
    >>> found = search(fb, range(0, 400, 2), threads=1)
    >>> len(found), len(found.events) > 50
    (1, True)
    """

    dms: NDArray[np.float64]
    low: float
    high: float
    ref_freq: float
    dm_constant: float
    widest: NDArray[np.float64]
    box: int
    threshold: float
    excess: float
    every: bool = False

    @classmethod
    def of(
        cls, obs: Observation, dms: NDArray[np.float64], ref_freq: float, dm_constant: float,
        widest: NDArray[np.float64], box: int, threshold: float, excess: float, every: bool,
    ) -> Response:  # fmt: skip
        """The response of the band of an observation; the other arguments are attributes."""
        half = abs(obs.foff) / 2 if obs.nchan > 1 else 0.0
        low, high = float(obs.freqs.min()) - half, float(obs.freqs.max()) + half
        return cls(dms, low, high, ref_freq, dm_constant, widest, box, threshold, excess, every)

    @cached_property
    def band(self) -> NDArray[np.float64]:
        """See `cpu_grouping.share`."""
        ref = 0.0 if math.isinf(self.ref_freq) else self.ref_freq**-2
        top, bottom = self.high**-2, self.low**-2
        wide = self.high - self.low
        dense = self.high**3 * (bottom - top) / (2 * wide) if wide > 0 else 1.0
        return np.array([self.dm_constant, ref, top, bottom, wide, dense])

    def group(self, events: Events, known: Known | None = None) -> Groups:
        """The groups of events, which are sorted by DM and time; of a stream if ``known`` is given."""
        if self.every:
            return self._group_runs(events, known)
        wide = events.width_samples >= self.box
        snr = events.snr.astype(np.float64)
        first = known is None or known.waits
        return self._group(events.dm_index, events.time, events.width, wide, snr, known, first=first)

    def _group(
        self, row: NDArray[np.int64], time: NDArray[np.float64], width: NDArray[np.float64], wide: NDArray[np.bool_],
        snr: NDArray[np.float64], known: Known | None, first: bool = False,
    ) -> Groups:  # fmt: skip
        """See `group`; a ``first`` answer about few events need not wait for compiled code."""
        from skysieve.core.cpu.jit import interpreted_if_small

        from . import cpu_grouping

        n, ndm = len(time), len(self.dms)
        explain = interpreted_if_small(cpu_grouping.explain, EVENT_STEPS * n if first else math.inf, WORTH)
        done = np.zeros(n, bool) if known is None else known.done
        parent, waits = np.full(n, -1), np.zeros(n, np.uint8)
        starts = np.searchsorted(row, np.arange(ndm + 1))
        widest = np.zeros(ndm)
        np.maximum.at(widest, row, width)
        by_time = np.argsort(time, kind="stable")
        given = (
            row, self.dms, starts, widest, time, width, wide, snr, self.band, self.excess, self.threshold, by_time,
            row[by_time], time[by_time], width[by_time], snr[by_time],
        )  # fmt: skip
        explain(*given, False, done, parent)
        safe = np.ones(n, bool)
        if known is not None:
            safe = done | self._safe(row, time, width, wide, snr, parent, known.frontiers)
        explain(*given, True, done, parent)
        own = parent < 0 if known is None else np.where(done, known.own, parent < 0)
        heads = np.flatnonzero(own)
        heads = heads[np.argsort(time[heads], kind="stable")]
        add_up = interpreted_if_small(cpu_grouping.add_up, EVENT_STEPS * len(heads) if first else math.inf)
        add_up(heads, row, self.dms, time, width, wide, snr, self.band, self.excess, safe, done, parent, waits)
        return Groups(cpu_grouping.heads_of(parent), own, ~safe | (waits > 0))

    def _safe(
        self, row: NDArray[np.int64], time: NDArray[np.float64], width: NDArray[np.float64], wide: NDArray[np.bool_],
        snr: NDArray[np.float64], parent: NDArray[np.int64], frontiers: NDArray[np.float64],
    ) -> NDArray[np.bool_]:  # fmt: skip
        """Whether no later event can explain an event or be explained by it.

        Events that explain each other have arrival times at the top, or at the bottom, of the band that differ by the
        widths of their windows, or one arrives first at the top and the other one at the bottom.
        """
        from .cpu_grouping import FAR, REACH, RIDGE_FAR

        k, ref, top, bottom = self.band[:4]
        span = k * (bottom - top)
        loud = (snr / self.threshold) ** 2
        far = np.maximum(FAR * loud, np.minimum(REACH, RIDGE_FAR * loud)) * width  # smearing of events that it explains
        alone = np.where(wide, np.inf, REACH * width)  # smearing of events that may explain it, if none does so yet
        far = np.where(parent < 0, np.maximum(far, alone), far)
        last = np.full(len(time), len(self.dms) - 1)
        if span > 0:
            last = np.searchsorted(self.dms, self.dms[row] + far / span, side="right") - 1
        # only an event with a nearer DM could take the place of the one that explains it
        other = np.where(parent < 0, row, row[parent])
        last = np.maximum(last, np.minimum(row + np.abs(row - other), len(self.dms) - 1))
        near = self.reach(width, np.maximum.accumulate(self.widest)[last])
        safe = np.ones(len(time), bool)
        for y in (top, bottom):
            late = k * (y - ref) * self.dms
            safe &= np.minimum.accumulate(frontiers + late)[last] > time + late[row] + near
        return safe

    def most(self, events: Events, head: NDArray[np.int64]) -> NDArray[np.float64]:
        """The highest S/N that a pulse can give to each event, if the pulse peaks at the event ``head``."""
        dm, k, _, top, bottom, _, dense = self.dms[events.dm_index], *self.band
        error, width, other = dm - dm[head], events.width, events.width[head]
        narrow, wide = np.minimum(width, other), np.maximum(width, other)
        smear = k * (bottom - top) * np.abs(error)
        snr = events.snr[head] * np.sqrt(narrow / wide) * np.minimum(1, dense * wide / np.maximum(smear, 1e-300))
        far = (width + other) / 2
        late = [arrival - arrival[head] for arrival in self.arrivals(events)]
        inside = (np.minimum(*late) <= far) & (np.maximum(*late) >= -far)
        return np.where(inside, snr, 0.0)

    def reach(self, width: NDArray[np.float64], widest: NDArray[np.float64] | float) -> NDArray[np.float64]:
        """Seconds from the centre of a window to that of the farthest window that explains it or that it explains."""
        from .cpu_grouping import SOFT, WIDE

        near = (width + widest) / 2 + SOFT * np.minimum(width, widest)
        return near + np.where(width >= WIDE * widest, widest / 2, 0.0)

    def arrivals(self, events: Events) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """When events arrive at the top and at the bottom of the band, seconds."""
        k, ref, top, bottom = self.band[:4]
        dm = self.dms[events.dm_index]
        return events.time + k * (top - ref) * dm, events.time + k * (bottom - ref) * dm

    def ends(self, frontiers: NDArray[np.float64]) -> tuple[float, float]:
        """Seconds at the top and at the bottom of the band before which no more events arrive; see `Known`."""
        k, ref, top, bottom = self.band[:4]
        return float((frontiers + k * (top - ref) * self.dms).min()), float(
            (frontiers + k * (bottom - ref) * self.dms).min()
        )

    def _group_runs(self, events: Events, known: Known | None) -> Groups:
        """Groups of single samples: runs of them are the events, with the S/N of the whole run."""
        if not len(events):
            return Groups(np.zeros(0, np.int64), np.zeros(0, bool), np.zeros(0, bool))
        first = np.ones(len(events), bool)
        first[1:] = (np.diff(events.dm_index) > 0) | (np.diff(events.time) > (1 + GAP) * events.width[1:] * (1 + 1e-9))
        run = np.cumsum(first) - 1
        starts = np.flatnonzero(first)
        ends = np.append(starts[1:], len(events)) - 1
        order = np.lexsort((np.arange(len(events)), -events.snr, run))
        top = order[starts]  # the strongest sample of each run
        low = events.time[starts] - events.width[starts] / 2
        high = events.time[ends] + events.width[ends] / 2
        width = high - low
        snr = events.snr[top].astype(np.float64) * np.sqrt(width / events.width[top])
        part = None if known is None else Known(known.frontiers, known.done[top], known.own[top])
        wide = np.zeros(len(starts), bool)
        found = self._group(events.dm_index[starts], (low + high) / 2, width, wide, snr, part)
        return Groups(top[found.head][run], found.own[run], found.open[run])
