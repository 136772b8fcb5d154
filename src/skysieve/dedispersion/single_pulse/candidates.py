"""What a search gives back: events, and the candidates they belong to."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.dedispersion.data.delays import delay_seconds
from skysieve.dedispersion.data.observation import Observation

from .grouping import friends

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["Candidates", "Events"]


@dataclass(frozen=True)
class Events:
    """Windows that reach the threshold, one array a column, in the order of DM, time and width.

    Attributes
    ----------
    dm_index : int64
        Number of the DM in the rising list of all DMs searched.
    dm : float64
        pc / cm^3.
    snr : float32
    time : float64
        Seconds from the start of the data to the centre of the window, at the reference frequency.
    width : float64
        Seconds.
    sample : int64
        First sample of the window, unbinned.
    width_samples : int64
        Its length, in binned samples.
    downsamp : int64
    """

    dm_index: NDArray[np.int64]
    dm: NDArray[np.float64]
    snr: NDArray[np.float32]
    time: NDArray[np.float64]
    width: NDArray[np.float64]
    sample: NDArray[np.int64]
    width_samples: NDArray[np.int64]
    downsamp: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.snr)


@dataclass(frozen=True)
class Candidates:
    """Candidates of a search, the loudest first.

    Attributes
    ----------
    snr, dm, time, width : numpy.ndarray
        Of the loudest member, never an average: S/N, pc / cm^3, seconds (centre of the window at the reference
        frequency), seconds.
    mjd_top, mjd_infinite : numpy.ndarray of float64
        Its time as MJD at the top of the band and at infinite frequency.
    sample, width_samples, downsamp : numpy.ndarray of int64
        Its window: first sample (unbinned), length in binned samples, binning.
    members : numpy.ndarray of int64
        Events of the group.
    dm_low, dm_high, time_first, time_last : numpy.ndarray of float64
        Span of the group.
    events : Events
        All of them.
    group : numpy.ndarray of int64
        Candidate that each event belongs to.
    dms : numpy.ndarray
        All DMs searched, rising.
    threshold : float
    noise, detector, method, device : str
    dm_constant, ref_freq : float
    searched : float
        Seconds of data.
    seconds : float
        Time it took, files included.
    adds : float
        Channels x DMs x samples.
    live : float
        Part of the data that was not masked.
    observation : Observation
    dropped : numpy.ndarray of int64, shape (n, 4)
        Dropped data that noise stands in for: first sample, last + 1, first channel (0 has the highest frequency),
        last + 1.
    until : numpy.ndarray of float64
        Seconds at which the search of each of ``dms`` ends: a pulse that arrives later leaves the data before it has
        reached the bottom of the band.
    """

    snr: NDArray[np.float32]
    dm: NDArray[np.float64]
    time: NDArray[np.float64]
    width: NDArray[np.float64]
    mjd_top: NDArray[np.float64]
    mjd_infinite: NDArray[np.float64]
    sample: NDArray[np.int64]
    width_samples: NDArray[np.int64]
    downsamp: NDArray[np.int64]
    members: NDArray[np.int64]
    dm_low: NDArray[np.float64]
    dm_high: NDArray[np.float64]
    time_first: NDArray[np.float64]
    time_last: NDArray[np.float64]
    events: Events
    group: NDArray[np.int64]
    dms: NDArray[np.float64]
    threshold: float
    noise: str
    detector: str
    method: str
    device: str
    dm_constant: float
    ref_freq: float
    searched: float
    seconds: float
    adds: float
    live: float
    observation: Observation
    dropped: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 4), np.int64))
    until: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))

    def __len__(self) -> int:
        return len(self.snr)

    def __repr__(self) -> str:
        loudest = f", loudest S/N {self.snr[0]:.1f} at DM {self.dm[0]:g}" if len(self) else ""
        return f"<Candidates: {len(self)} of {len(self.events)} events above {self.threshold:g}{loudest}>"

    @property
    def realtime(self) -> float:
        """Seconds of data for a second of work."""
        return self.searched / max(self.seconds, 1e-9)

    @property
    def rate(self) -> float:
        """Channels x DMs x samples a second."""
        return self.adds / max(self.seconds, 1e-9)

    def describe(self) -> str:
        """What was searched and what was not: dropped data, and the end of the data at each DM."""
        lines = [
            f"{len(self)} candidates ({len(self.events)} events above {self.threshold:g} sigma)",
            *self.remarks(),
        ]
        return "\n".join(lines)

    def remarks(self) -> list[str]:
        """Dropped data and the end of the search, a sentence each; nothing where all was searched."""
        found = []
        if len(self.dropped):
            found.append(dropped_text(self.dropped, self.observation))
        if len(self.until) and self.searched - self.until[-1] > 1.5 * self.observation.tsamp:
            found.append(
                f"not searched: pulses of DM {self.dms[-1]:g} that arrive after {self.until[-1]:.6g} s, "
                f"{self.searched - self.until[-1]:.4g} s before the end of the data (at lower DMs later, up to "
                f"{self.until[0]:.6g} s at DM {self.dms[0]:g}): their sweep is cut by the end"
            )
        return found

    def columns(self) -> dict[str, NDArray[Any]]:
        """The candidates as columns, in the order of a table."""
        names = (
            "snr", "dm", "time", "width", "mjd_top", "mjd_infinite", "sample", "width_samples", "downsamp", "members",
            "dm_low", "dm_high", "time_first", "time_last",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write ``.csv``, ``.ecsv``, ``.parquet``, ``.singlepulse`` (PRESTO; every event) or ``.cand`` (Heimdall)."""
        from .files import write_candidates

        write_candidates(self, path)

    def plot(self) -> Figure:
        """S/N against time and DM, and the DM-time plane: figure 5 of Magro et al. 2011."""
        from .plot import search_figure

        return search_figure(self)


def dropped_text(dropped: NDArray[np.int64], obs: Observation, most: int = 6) -> str:
    """A sentence on dropped data.

    >>> from skysieve.dedispersion.data.observation import Observation
    >>> obs = Observation(np.array([1500.0, 1499.0]), 1e-3)
    >>> dropped_text(np.array([[1000, 3000, 0, 2], [5000, 5010, 1, 2]]), obs)
    'dropped data, filled with noise: 1 to 3 s (all channels), 5 to 5.01 s (1 channels, from number 1 to 1)'
    """
    spans: dict[tuple[int, int], list[NDArray[np.int64]]] = {}
    for rect in dropped:
        spans.setdefault((int(rect[0]), int(rect[1])), []).append(rect)
    parts = []
    for (first, last), rects in sorted(spans.items(), key=lambda s: s[0][0] - s[0][1])[:most]:
        count = sum(int(r[3] - r[2]) for r in rects)
        which = "all channels"
        if count < obs.nchan:
            which = (
                f"{count} channels, from number {min(int(r[2]) for r in rects)} to {max(int(r[3]) for r in rects) - 1}"
            )
        parts.append((first, f"{first * obs.tsamp:.6g} to {last * obs.tsamp:.6g} s ({which})"))
    text = ", ".join(part for _, part in sorted(parts))
    rest = f" and {len(spans) - most} shorter stretches" if len(spans) > most else ""
    return f"dropped data, filled with noise: {text}{rest}"


def group_events(
    events: Events, obs: Observation, ref_freq: float, dm_constant: float, link_dm: int, link_time: float
) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
    """Columns of the candidates, loudest first, and the candidate of each event."""
    group = friends(events.dm_index, events.time, events.width, link_dm, link_time)
    count = int(group.max()) + 1 if len(group) else 0
    # of equals the lowest DM, then the earliest
    order = np.lexsort((events.time, events.dm_index, -events.snr))
    best = np.full(count, -1)
    best[group[order[::-1]]] = order[::-1]
    rank = np.lexsort((events.time[best], events.dm_index[best], -events.snr[best]))
    place = np.empty(count, np.int64)
    place[rank] = np.arange(count)
    group, best = place[group], best[rank]

    def extreme(values: NDArray[np.float64], lowest: bool) -> NDArray[np.float64]:
        out = np.full(count, math.inf if lowest else -math.inf)
        (np.minimum if lowest else np.maximum).at(out, group, values)
        return out

    top = events.time[best] + delay_seconds(obs.top, events.dm[best], ref_freq, dm_constant)
    mjd = obs.tstart + top / 86400
    late = delay_seconds(obs.top, events.dm[best], math.inf, dm_constant)
    return {
        "snr": events.snr[best], "dm": events.dm[best], "time": events.time[best], "width": events.width[best],
        "mjd_top": mjd, "mjd_infinite": mjd - late / 86400, "sample": events.sample[best],
        "width_samples": events.width_samples[best], "downsamp": events.downsamp[best],
        "members": np.bincount(group, minlength=count).astype(np.int64),
        "dm_low": extreme(events.dm, True), "dm_high": extreme(events.dm, False),
        "time_first": extreme(events.time - events.width / 2, True),
        "time_last": extreme(events.time + events.width / 2, False),
    }, group  # fmt: skip
