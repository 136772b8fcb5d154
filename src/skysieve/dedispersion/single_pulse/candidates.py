"""`Candidates`, the result of a search, its columns, and the events that the candidates consist of."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from skysieve.core.result import Result
from skysieve.dedispersion.clean.blocks.records import Removed
from skysieve.dedispersion.contract import distinct
from skysieve.dedispersion.data.delays import delay_seconds
from skysieve.dedispersion.data.observation import Observation
from skysieve.dedispersion.result import load_fields, save_fields

if TYPE_CHECKING:
    from astropy.table import Table
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["Candidates", "Events"]


@dataclass(frozen=True, eq=False)
class Events:
    """Windows that reach the threshold, one array for each column, sorted by DM, time and width.

    Attributes
    ----------
    dm_index : int64
        Index of the DM in the rising list of all DMs that were searched.
    dm : float64
        pc / cm^3.
    snr : float32
    time : float64
        Seconds from the start of the data to the centre of the window, at the reference frequency.
    width : float64
        Seconds.
    sample : int64
        First sample of the window, not binned.
    width_samples : int64
        Length of the window in binned samples.
    downsamp : int64
        Samples that were added in time.
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

    def select(self, which: NDArray[Any]) -> Events:
        """The events that a boolean mask or an array of indices selects."""
        return Events(*(getattr(self, f.name)[which] for f in fields(Events)))


@dataclass(frozen=True)
class Column:
    """A column of candidates.

    Attributes
    ----------
    name, help : str
    dtype : str
    unit : str
        As astropy writes it; "" for none.
    text : str
        Format of a number in text tables.
    """

    name: str
    dtype: str
    unit: str
    text: str
    help: str


def _column(dtype: str, unit: str, text: str, help: str) -> dict[str, str]:
    return {"dtype": dtype, "unit": unit, "text": text, "help": help}


@dataclass(frozen=True, repr=False, eq=False)
class Candidates(Result):
    """Candidates of a search, the loudest first.

    The fields up to ``peaks`` are columns with one number for each candidate, listed in ``COLUMNS``.  S/N, width and
    samples are those of the event at which a candidate peaks.  DM and time are means over the events around it (see
    `refine`), corrected by the second look at the samples (see `vetting`).  Times are in seconds from the start of the
    data, at the reference frequency.

    Attributes
    ----------
    events : Events
        All events.
    group : numpy.ndarray of int64
        Index of the candidate that each event belongs to.
    dms : numpy.ndarray
        All DMs that were searched, rising.
    threshold : float
    noise, detector, method, device : str
    dm_constant, ref_freq : float
    searched : float
        Seconds of data.
    seconds : float
        Time that the search took, files included.
    adds : float
        Channels x DMs x samples.
    live : float
        Fraction of the data that was not masked, missing or dropped.
    observation : Observation
    dropped : numpy.ndarray of int64, shape (n, 4)
        Dropped data, which were replaced by noise: first sample, last + 1, first channel (0 has the highest frequency),
        last + 1.
    until : numpy.ndarray of float64
        Time in seconds at which the search of each of ``dms`` ends: the data end before a pulse that arrives later
        reaches the bottom of the band.
    removed : Removed or None
        What the cleaning removed; None if the data were not cleaned.
    vetoed : dict of str to int
        Numbers of the candidates that were vetoed, by reason (`vetting.REASONS`); they are not among the candidates.
    """

    COLUMNS: ClassVar[tuple[Column, ...]]
    """The columns, in the order of tables.  A new one is a field with ``metadata`` and a value in `columns_of`; `load`
    makes its values for older files.  Streams have the same columns.  Both pages, ``docs/dedispersion.md`` and
    ``docs/streaming.md``, have a row for it."""

    snr: NDArray[np.float32] = field(metadata=_column("float32", "", ".4f", "signal-to-noise ratio"))
    dm: NDArray[np.float64] = field(metadata=_column("float64", "pc / cm3", ".9g", "dispersion measure"))
    time: NDArray[np.float64] = field(metadata=_column("float64", "s", ".9f", "centre of the pulse"))
    width: NDArray[np.float64] = field(metadata=_column("float64", "s", ".9f", "width of the window"))
    mjd_top: NDArray[np.float64] = field(
        metadata=_column("float64", "d", ".12f", "arrival time at the top of the band, MJD")
    )
    mjd_infinite: NDArray[np.float64] = field(
        metadata=_column("float64", "d", ".12f", "arrival time at infinite frequency, MJD")
    )
    sample: NDArray[np.int64] = field(metadata=_column("int64", "", "d", "first sample of the window, not binned"))
    width_samples: NDArray[np.int64] = field(
        metadata=_column("int64", "", "d", "width of the window in binned samples")
    )
    downsamp: NDArray[np.int64] = field(metadata=_column("int64", "", "d", "samples that were added in time"))
    members: NDArray[np.int64] = field(metadata=_column("int64", "", "d", "number of events of the candidate"))
    dm_low: NDArray[np.float64] = field(metadata=_column("float64", "pc / cm3", ".9f", "lowest DM of its events"))
    dm_high: NDArray[np.float64] = field(metadata=_column("float64", "pc / cm3", ".9f", "highest DM of its events"))
    time_first: NDArray[np.float64] = field(metadata=_column("float64", "s", ".9f", "start of its first window"))
    time_last: NDArray[np.float64] = field(metadata=_column("float64", "s", ".9f", "end of its last window"))
    peaks: NDArray[np.int64] = field(
        metadata=_column("int64", "", "d", "number of its events at the DM of the highest")
    )
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
    removed: Removed | None = None
    vetoed: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.snr)

    def __repr__(self) -> str:
        loudest = f", loudest S/N {self.snr[0]:.1f} at DM {self.dm[0]:g}" if len(self) else ""
        return f"<Candidates: {len(self)} of {len(self.events)} events above {self.threshold:g}{loudest}>"

    @property
    def realtime(self) -> float:
        """Real-time factor: seconds of data per second of work."""
        return self.searched / max(self.seconds, 1e-9)

    @property
    def rate(self) -> float:
        """Channels x DMs x samples per second of work."""
        return self.adds / max(self.seconds, 1e-9)

    def summary(self) -> str:
        """Text on the candidates, the cleaning, and the data that were not searched."""
        lines = [
            f"{len(self)} candidates ({len(self.events)} events above {self.threshold:g} sigma)",
            *self.remarks(),
        ]
        return "\n".join(lines)

    def remarks(self) -> list[str]:
        """Sentences on the cleaning, dropped data and the end of the search; none if everything was searched."""
        found = []
        if self.removed is not None and self.removed.any:
            found.append(self.removed.summary())
        if self.vetoed:
            found.append(vetoed_text(self.vetoed))
        if len(self.dropped):
            found.append(dropped_text(self.dropped, self.observation))
        obs, cut = self.observation, 0.0
        if len(self.until):
            late = float(delay_seconds(obs.top, self.dms[-1], self.ref_freq, self.dm_constant))
            cut = self.searched - (self.until[-1] + late)
        if cut > 1.5 * obs.tsamp:
            found.append(
                f"not searched: pulses of DM {self.dms[-1]:g}, the highest of the plan, that arrive after "
                f"{self.until[-1]:.6g} s, {cut:.4g} s before the end of the data (at lower DMs later, up to "
                f"{self.until[0]:.6g} s at DM {self.dms[0]:g}): the end of the data cuts their sweep"
            )
        return found

    def facts(self) -> dict[str, str | float]:
        """The metadata of tables."""
        found: dict[str, str | float] = {
            "dm_constant": self.dm_constant, "threshold": self.threshold, "noise": self.noise,
            "detector": self.detector, "method": self.method, "source": self.observation.source,
            "reference_frequency_mhz": self.ref_freq,
        }  # fmt: skip
        if remarks := self.remarks():
            found["remarks"] = "; ".join(remarks)
        return found

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns in the order of a table; see ``COLUMNS``."""
        return {column.name: getattr(self, column.name) for column in self.COLUMNS}

    def to_table(self) -> Table:
        """A row for each candidate, with units and descriptions."""
        from astropy.table import Table

        return Table(
            self.columns(), units={c.name: c.unit for c in self.COLUMNS if c.unit},
            descriptions={c.name: c.help for c in self.COLUMNS}, meta=self.facts(),
        )  # fmt: skip

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a table for other programs; the suffix is one of `files.TABLE_FORMATS`.

        ``.csv``, ``.ecsv`` and ``.parquet`` have a row for each candidate, ``.singlepulse`` (PRESTO) one for each
        event, ``.cand`` (Heimdall) one for each candidate.  `save` writes all of the result.
        """
        from .files import write_candidates

        write_candidates(self, path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result, events included, to an ``.npz`` file that `load` reads."""
        save_fields(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Candidates:
        """Read a result that `save` wrote.

        Raises
        ------
        ValueError
            The file holds something else.
        """
        parts = {"events": Events, "observation": Observation, "removed": Removed}
        found = load_fields(cls, path, parts)
        if "peaks" not in found:  # in files without this column the loudest event of a candidate was its peak
            events, group = found["events"], found["group"]
            order = np.lexsort((events.time, events.dm_index, -events.snr))[::-1]
            best = np.empty(len(found["snr"]), np.int64)
            best[group[order]] = order
            found["peaks"] = peaks_of(events, group, best)
        return cls(**found)

    def plot(self, **options: Any) -> Figure:
        """S/N against time and DM, and the DM-time plane: figure 5 of Magro et al. 2011.

        Parameters
        ----------
        **options
            Options of `matplotlib.figure.Figure`.
        """
        from .plot import search_figure

        return search_figure(self, **options)


Candidates.COLUMNS = tuple(Column(name=f.name, **f.metadata) for f in fields(Candidates) if f.metadata)


def vetoed_text(vetoed: dict[str, int]) -> str:
    """A sentence on vetoed candidates.

    >>> vetoed_text({"narrow": 3, "edge": 1})
    'vetoed as interference: 4 (3 narrow, 1 edge)'
    """
    parts = ", ".join(f"{count} {reason}" for reason, count in vetoed.items())
    return f"vetoed as interference: {sum(vetoed.values())} ({parts})"


def dropped_text(dropped: NDArray[np.int64], obs: Observation, most: int = 6) -> str:
    """A sentence on dropped data, with the ``most`` longest stretches.

    >>> from skysieve.dedispersion.data.observation import Observation
    >>> obs = Observation(np.array([1500.0, 1499.0]), 1e-3)
    >>> dropped_text(np.array([[1000, 3000, 0, 2], [5000, 5010, 1, 2]]), obs)
    'dropped data, filled with noise: 1 to 3 s (all channels), 5 to 5.01 s (channel 1)'
    """
    spans: dict[tuple[int, int], list[NDArray[np.int64]]] = {}
    for rect in dropped:
        spans.setdefault((int(rect[0]), int(rect[1])), []).append(rect)
    parts = []
    for (first, last), rects in sorted(spans.items(), key=lambda s: s[0][0] - s[0][1])[:most]:
        count = sum(int(r[3] - r[2]) for r in rects)
        low, high = min(int(r[2]) for r in rects), max(int(r[3]) for r in rects) - 1
        which = f"channel {low}" if low == high else f"{count} channels, from number {low} to {high}"
        which = "all channels" if count == obs.nchan else which
        parts.append((first, f"{first * obs.tsamp:.6g} to {last * obs.tsamp:.6g} s ({which})"))
    text = ", ".join(part for _, part in sorted(parts))
    rest = f" and {len(spans) - most} shorter stretches" if len(spans) > most else ""
    return f"dropped data, filled with noise: {text}{rest}"


def event_order(
    dm_index: NDArray[np.int64], sample: NDArray[np.int64], width_samples: NDArray[np.int64],
    downsamp: NDArray[np.int64],
) -> NDArray[np.int64]:  # fmt: skip
    """Indices that sort events by DM, time and width, each window once.

    Two neighbouring chunks of data may both return the events of a divided window.

    ``sample`` is the first sample of each window, not binned.

    >>> event_order(np.array([1, 0, 1]), np.array([50, 70, 50]), np.array([4, 4, 4]), np.array([1, 1, 1])).tolist()
    [1, 0]
    """
    if not len(sample):
        return np.empty(0, np.int64)
    middle = 2 * sample + width_samples * downsamp  # in half samples
    middle -= middle.min()
    keys = dm_index * (middle.max() + 1) + middle
    order, new = distinct(keys)
    if not new.all():  # windows with the same middle
        order = np.lexsort((downsamp, width_samples, keys))
        for key in (width_samples, downsamp):
            new[1:] |= np.diff(key[order]) != 0
    return order[new]


def columns_of(
    events: Events, head: NDArray[np.int64], dms: NDArray[np.float64], obs: Observation, ref_freq: float,
    dm_constant: float, shifts: NDArray[np.float64] | None = None,
) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:  # fmt: skip
    """The columns of the candidates, loudest first, and the candidate that each event belongs to.

    ``head`` is, for each event, the event at which its candidate peaks; ``dms`` are all DMs that were searched.
    ``shifts`` holds, for each event, by how much the DM and the time (at the top of the band) of its candidate change
    (`vetting.Vetting.vetted`).
    """
    from .refine import refined

    peaked = np.bincount(head, minlength=len(head)) > 0
    best, group = np.flatnonzero(peaked), (np.cumsum(peaked) - 1)[head]
    count = len(best)
    rank = np.lexsort((events.time[best], events.dm_index[best], -events.snr[best]))
    number = np.empty(count, np.int64)
    number[rank] = np.arange(count)
    group, best = number[group], best[rank]

    def extreme(values: NDArray[np.float64], lowest: bool) -> NDArray[np.float64]:
        out = np.full(count, math.inf if lowest else -math.inf)
        (np.minimum if lowest else np.maximum).at(out, group, values)
        return out

    dm, time = refined(events, group, best, dms, obs, ref_freq, dm_constant)
    if shifts is not None:
        by = np.clip(dm + shifts[best, 0], dms[0], dms[-1]) - dm
        late = delay_seconds(obs.top, by, ref_freq, dm_constant)
        dm, time = dm + by, time + shifts[best, 1] - late
    top = time + delay_seconds(obs.top, dm, ref_freq, dm_constant)
    mjd = obs.tstart + top / 86400
    late = delay_seconds(obs.top, dm, math.inf, dm_constant)
    return {
        "snr": events.snr[best], "dm": dm, "time": time, "width": events.width[best],
        "mjd_top": mjd, "mjd_infinite": mjd - late / 86400, "sample": events.sample[best],
        "width_samples": events.width_samples[best], "downsamp": events.downsamp[best],
        "members": np.bincount(group, minlength=count).astype(np.int64),
        "dm_low": extreme(events.dm, True), "dm_high": extreme(events.dm, False),
        "time_first": extreme(events.time - events.width / 2, True),
        "time_last": extreme(events.time + events.width / 2, False),
        "peaks": peaks_of(events, group, best),
    }, group  # fmt: skip


def events_at(events: Events, ref_freq: float, obs: Observation, dm_constant: float) -> Events:
    """Events of a search, whose times are those at the top of the band, with times and samples at ``ref_freq``."""
    if ref_freq == obs.top:
        return events
    late = delay_seconds(obs.top, events.dm, ref_freq, dm_constant)
    steps = np.rint(late / (obs.tsamp * events.downsamp)).astype(np.int64)
    return replace(events, time=events.time - late, sample=events.sample - steps * events.downsamp)


def peaks_of(events: Events, group: NDArray[np.int64], best: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each candidate, the number of its events at the DM of its event ``best``."""
    same = events.dm_index == events.dm_index[best][group] if len(group) else np.zeros(0, bool)
    return np.bincount(group[same], minlength=len(best)).astype(np.int64)
