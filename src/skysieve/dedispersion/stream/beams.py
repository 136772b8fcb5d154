"""One beam: its packets' ring, unpacking, channeliser and search, from gulp to candidates."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.dedispersion.dmplan import DMPlan
from skysieve.dedispersion.dmplan import plan as make_plan
from skysieve.dedispersion.grid import delay_seconds, sample_delays
from skysieve.dedispersion.observation import Observation, regular_freqs
from skysieve.dedispersion.stream.channelise import Channeliser
from skysieve.dedispersion.stream.packets import VOLTAGE, Geometry, mjd_of
from skysieve.dedispersion.stream.ring import Gulp, Ring, Unpacker
from skysieve.dedispersion.stream.search import Found, StreamSearch

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIDE = 128
"""A cut-out reaches so many half widths before and after its candidate."""
GULP_BYTES = 2**20
"""Bytes of a gulp at most: temporaries of larger ones cost more in mapped pages than in arithmetic."""
MOST_CUTTING = 64
"""Cut-outs that may wait for their samples."""
NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class Options:
    """What all beams have in common.

    Attributes
    ----------
    plan : DMPlan, array_like or None
    dm_max : float or None
        Highest DM of the plan that is made where none is given.
    window : int
        Packets by which one may come late.
    ring : float
        Seconds of data that rings hold.
    gulp : float
        Seconds of data that are worked on at a time, at most.
    policy : {"drop", "block"}
    longest_gap : float
        Seconds that a packet may lie ahead of the latest.
    channelise : dict
        Keywords of `Channeliser`.
    search : dict
        Keywords of `StreamSearch`.
    history : float
        Bytes of samples to keep for cut-outs.
    cutouts : bool
    source, telescope : str
    ra, dec : float
        Degrees.
    """

    plan: Any = None
    dm_max: float | None = None
    window: int = 8
    ring: float = 2.0
    gulp: float = 0.25
    policy: str = "drop"
    longest_gap: float = 60.0
    channelise: dict[str, Any] = field(default_factory=dict)
    search: dict[str, Any] = field(default_factory=dict)
    history: float = 2.0**27
    cutouts: bool = True
    source: str = ""
    telescope: str = ""
    ra: float = float("nan")
    dec: float = float("nan")

    def __post_init__(self) -> None:
        for name in ("ring", "gulp", "longest_gap"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{name}={value!r}: expected seconds, above 0")
        if self.dm_max is not None and not 0 <= self.dm_max < float("inf"):
            raise ValueError(f"dm_max={self.dm_max!r}: expected pc/cm^3, at least 0")


@dataclass(frozen=True)
class Row:
    """A candidate on its way to the sink.

    Attributes
    ----------
    columns : dict
    observation : Observation
    top_time : float
        Seconds of its arrival at the top of the band.
    raw, raw_start
        Samples around it, and the number of the first, where they are there already.
    number : int
        Of the `Cut` that follows with them; 0: none follows.
    when : float or None
        `time.monotonic` when the packet with its last sample came, where that is remembered.
    """

    columns: dict[str, Any]
    observation: Observation
    top_time: float
    raw: NDArray[Any] | None = None
    raw_start: int = 0
    number: int = 0
    when: float | None = None


@dataclass(frozen=True)
class Cut:
    """The samples around a candidate, which come after it; ``raw`` is None where there was no room for them."""

    number: int
    start: int
    raw: NDArray[Any] | None


class Segment:
    """A stream of one beam from one start of its sender to the next.

    Raises
    ------
    ValueError
        When the packets are not what the plan was made for, or cannot be searched.
    """

    def __init__(self, beam: int, number: int, geometry: Geometry, options: Options) -> None:
        self.beam, self.number, self.geometry, self.options = beam, number, geometry, options
        self.unpack = Unpacker(geometry)
        self.channeliser: Channeliser | None = None
        start = mjd_of(geometry.epoch)
        if geometry.kind == VOLTAGE:
            c = Channeliser(
                geometry.fch1, geometry.foff, geometry.total, geometry.all_pols, geometry.tsamp, **options.channelise
            )
            self.channeliser, freqs, tsamp = c, c.freqs, c.tsamp
            self.each = c.channels * c.integrate
            self.dtype, self.maximum, bits = c.dtype, 0, c.nbits
            start += c.delay / 86400
        else:
            freqs = np.sort(regular_freqs(geometry.fch1, geometry.foff, geometry.total))[::-1].copy()
            tsamp, self.each = geometry.tsamp, 1
            self.dtype, self.maximum, bits = self.unpack.dtype.name, self.unpack.maximum, geometry.bits
        self.observation = Observation(
            freqs, tsamp, bits, start, options.source, options.telescope, options.ra, options.dec
        )
        self.plan = options.plan
        if self.plan is None:
            if options.dm_max is None:
                raise ValueError("a plan or dm_max is needed: how far to search")
            self.plan = make_plan(self.observation, options.dm_max)
        if isinstance(self.plan, DMPlan):
            self.plan.check(self.observation)
        self.ring = Ring(
            geometry, window=options.window, seconds=options.ring, longest_gap=options.longest_gap,
            policy=options.policy,
        )  # fmt: skip
        each = geometry.chunks * geometry.step_bytes
        # more than a full ring can give would be waited for without end
        most = max(1, (self.ring.places - options.window - 1) * geometry.nsamp // 2)
        self.gulp = max(1, min(round(options.gulp / geometry.tsamp), GULP_BYTES // each, most))
        self.search: StreamSearch | None = None
        self.refused = False
        self.times = {"unpack": 0.0, "channelise": 0.0, "search": 0.0}
        self.samples = 0
        self._cutting: deque[tuple[int, int, int]] = deque()
        self._cuts: list[Cut] = []

    def prepare(self) -> StreamSearch:
        """Make the search, with its kernels loaded."""
        if self.search is None:
            o = self.observation
            size = np.dtype(self.dtype).itemsize * o.nchan
            history = int(self.options.history / size) if self.options.cutouts else 0
            self.search = StreamSearch(
                o, self.plan, dtype=self.dtype, maximum=self.maximum, history=history, **self.options.search
            )  # fmt: skip
            self.search.warm()
        return self.search

    def step(self, gulp: Gulp) -> list[Row]:
        """Work on a gulp."""
        search = self.prepare()
        clock = time.perf_counter()
        if self.channeliser is None:
            part: tuple[int, NDArray[Any], NDArray[np.int64]] | None = (
                gulp.start, self.unpack.power(gulp), self.unpack.rects(gulp.missing)
            )  # fmt: skip
            clock = self._timed("unpack", clock)
        else:
            x = self.unpack.voltages(gulp)
            clock = self._timed("unpack", clock)
            part = self.channeliser.feed(gulp.start, x, self.unpack.bands(gulp.missing))
            clock = self._timed("channelise", clock)
        self.samples += gulp.count
        if part is None:
            return []
        found = search.feed(*part)
        rows = self._rows(found)
        self._timed("search", clock)
        return rows

    def finish(self) -> list[Row]:
        """The stream of this segment is over."""
        if self.search is None:
            return []
        clock = time.perf_counter()
        found = []
        if self.channeliser is not None and (part := self.channeliser.finish()) is not None:
            found += self.search.feed(*part)
        found += self.search.finish()
        rows = self._rows(found, last=True)
        self._timed("search", clock)
        self.search.close()
        return rows

    def _timed(self, name: str, since: float) -> float:
        now = time.perf_counter()
        self.times[name] += now - since
        return now

    @property
    def seconds(self) -> float:
        """Seconds of data worked on."""
        return self.samples * self.geometry.tsamp

    @property
    def busy(self) -> float:
        """Seconds of work."""
        return sum(self.times.values())

    # ------------------------------------------------------------------ candidates
    def _rows(self, found: Sequence[Found], last: bool = False) -> list[Row]:
        """Candidates, at once; the samples around them follow when they have come, see `cuts`."""
        ready: list[Row] = []
        for one in found:
            for i in range(len(one)):
                columns = {name: values[i].item() for name, values in one.columns.items()}
                columns = {"beam": self.beam, "segment": self.number, **columns}
                top = self._top(columns)
                number = next(NUMBERS) if self.options.cutouts else 0
                ready.append(Row(columns, self.observation, top, number=number, when=self._when(columns)))
                if number:
                    self._cutting.append((*self._span(columns, top), number))
        while self._cutting and (
            last or len(self._cutting) > MOST_CUTTING or self._cutting[0][1] <= self._search.filled
        ):
            low, high, number = self._cutting.popleft()
            self._cuts.append(Cut(number, *self._search.recent(low, high)))
        return ready

    def news(self) -> tuple[list[Row], list[int]]:
        """Pulses that are told before they are final, and numbers of those that came to nothing; new ones."""
        if self.search is None:
            return [], []
        early, withdrawn = self.search.news()
        rows = []
        for columns in early:
            full = {"beam": self.beam, "segment": self.number, **columns}
            rows.append(Row(full, self.observation, self._top(columns), when=self._when(columns)))
        return rows, withdrawn

    def _top(self, columns: dict[str, Any]) -> float:
        """Seconds of a candidate's arrival at the top of the band."""
        o = self.observation
        late = delay_seconds(o.top, columns["dm"], self._search.ref_freq, self._constant)
        return float(columns["time"] + late)

    def cuts(self) -> list[Cut]:
        """Samples around candidates that are there since the last call; each candidate with a number gets one."""
        some, self._cuts = self._cuts, []
        return some

    @property
    def _search(self) -> StreamSearch:
        assert self.search is not None
        return self.search

    @property
    def _constant(self) -> float:
        return self._search.job.dm_constant

    def _span(self, columns: dict[str, Any], top: float) -> tuple[int, int]:
        """Samples of a cut-out: its width many times over, and the delay of twice its DM."""
        o = self.observation
        half = SIDE * max(1, int(columns["width"] / o.tsamp) // 2)
        twice = np.array([max(2 * columns["dm"], 1.0)])
        shift = int(sample_delays(o.freqs[-1:], twice, o.tsamp, o.top, self._constant)[0, 0])
        most = int(self.options.history / (np.dtype(self.dtype).itemsize * o.nchan)) // 2
        centre = round(top / o.tsamp)
        return centre - half, min(centre + half + shift, centre + most)

    def _when(self, columns: dict[str, Any]) -> float | None:
        """When the packet with the pulse's last sample came, where that is remembered."""
        o = self.observation
        end = columns["time"] + columns["width"] / 2
        end += float(delay_seconds(o.freqs[-1], columns["dm"], self._search.ref_freq, self._constant))
        return self.ring.arrived(int(end / o.tsamp) * self.each)
