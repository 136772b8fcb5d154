"""The search of a stream: samples in, in any pieces; candidates out, the same bits as `search` of a file gives.

On a CPU a block of noise is searched when it and the delay of the highest DM have come, and each sample is summed once
(`series`); on a GPU when the block after it has come too.  A candidate is given out when no later event can belong to
it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.ndimage import minimum_filter1d

from skysieve.core.errors import MemoryBudgetError
from skysieve.core.memory import available_host_memory
from skysieve.dedispersion.clean.dropouts import NO_RECTANGLES
from skysieve.dedispersion.clean.lookout import Lookout
from skysieve.dedispersion.clean.missing import Filler, Losses, clipped, kept_events, live_of
from skysieve.dedispersion.contract import BLOCK_SECONDS, REREAD
from skysieve.dedispersion.data.delays import reference_frequency
from skysieve.dedispersion.data.filterbank import DTYPES, Filterbank
from skysieve.dedispersion.data.observation import Observation
from skysieve.dedispersion.dispatch import find_target, make_engine
from skysieve.dedispersion.single_pulse.candidates import Events, group_events
from skysieve.dedispersion.single_pulse.grouping import friends
from skysieve.dedispersion.single_pulse.search import prepare

from .found import Found, joined_events, picked
from .history import ENDLESS, History, LiveSource
from .series import KeptSeries, joined, parts_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.core.device import Device
    from skysieve.dedispersion.contract import Detection
    from skysieve.dedispersion.dm_plan.plan import DMPlan

__all__ = ["Found", "StreamSearch"]

FAR = 2**45
"""Where an engine is tried before the first sample: nothing of that is used again."""
MOST_WAITING = 200_000
"""Events of a step, and events that may wait for their group to end; of more, the loudest are kept."""
LONG_BLOCK = 0.3
"""Seconds.  Longer blocks are summed in parts no longer than this, as samples come."""
LONGEST = 30.0
"""Seconds that a group may go on for (noise of radars): after that it is given out in pieces."""


class StreamSearch:
    """Search samples as they come.

    Parameters
    ----------
    observation : Observation
        Channels and sampling; ``tstart`` is the time of sample 0.
    plan : DMPlan or array_like
        DMs and binnings.
    dtype : str
        Of the samples: uint8, int8, uint16, int16, float32.
    maximum : int
        Largest value of unsigned samples, where it is less than the type's; 0 by default.
    ignore : sequence of int
        Channels to leave out, by number (0 has the highest frequency).
    step : int
        Blocks to search at a time: more cost less work and more latency.
    history : int
        Samples to keep for cut-outs.
    widths, threshold, noise, detector, buffer, block, link_dm, link_time, method, max_loss, ref_freq, dm_constant
        As for `search`.
    usual_block : float
        Seconds of the noise blocks where ``block`` is not given; they become longer where a search needs that.
    device, memory, threads
        As for `search`.
    resident : bool
        Keep the samples on the (first) GPU alone: bytes, which `feed` takes as arrays of CuPy or NumPy.

    Examples
    --------
    >>> import numpy as np
    >>> from skysieve.dedispersion import fake, search
    >>> fb = fake(nchan=64, duration=4, tsamp=1e-3, fch1=1500, foff=-4, dm=200, times=[1.5], width=4e-3, snr=20, seed=1)
    >>> live = StreamSearch(fb.observation, np.arange(100, 300, 4), dtype="uint8", threads=1)
    >>> found = [*live.feed(0, fb.block(0, 3000).T), *live.feed(3000, fb.block(3000, 1000).T), *live.finish()]
    >>> live.close()
    >>> offline = search(fb, np.arange(100, 300, 4), threads=1)
    >>> found[0].columns["snr"].tolist() == offline.snr.tolist()
    True
    """

    def __init__(
        self,
        observation: Observation,
        plan: DMPlan | Any,
        *,
        dtype: str = "uint8",
        maximum: int = 0,
        ignore: Sequence[int] = (),
        step: int = 1,
        history: int = 0,
        widths: Sequence[int] | None = None,
        threshold: float = 6.5,
        noise: str = "robust",
        detector: str = "boxcar",
        buffer: int | None = None,
        block: float | None = None,
        usual_block: float = BLOCK_SECONDS,
        link_dm: int = 5,
        link_time: float | None = None,
        method: str = "auto",
        max_loss: float = 0.0,
        ref_freq: str | float = "top",
        dm_constant: float | None = None,
        device: str | tuple[Device, ...] = "auto",
        memory: str | float | None = None,
        threads: int | None = None,
        resident: bool = False,
    ) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype={dtype!r}: expected one of {', '.join(DTYPES)}")
        if step < 1:
            raise ValueError(f"step={step}: expected blocks to search at a time, at least 1")
        if history < 0:
            raise ValueError(f"history={history}: expected samples to keep, at least 0")
        for number in ignore:
            if not 0 <= number < observation.nchan:
                raise ValueError(f"ignore={list(ignore)}: expected channels from 0 to {observation.nchan - 1}")
        kind = np.dtype(dtype)
        if resident and kind != np.uint8:
            raise ValueError(f"resident=True, dtype={dtype!r}: samples that stay on a GPU are expected to be uint8")
        most = (maximum or 2 ** (8 * kind.itemsize) - 1) if kind.kind == "u" else 0
        self._held = History(observation, kind, most, 1)
        fb = Filterbank([self._held])
        self.job = prepare(
            fb, plan, widths=widths, threshold=threshold, noise=noise, detector=detector, buffer=buffer, block=block,
            link_dm=link_dm, link_time=link_time, method=method, max_loss=max_loss, ref_freq=ref_freq,
            dm_constant=dm_constant, usual_block=usual_block,
        )  # fmt: skip
        self.observation, self.length = observation, self.job.length
        self.dtype, self.maximum = kind.name, most
        self.step = step * self.length
        self.ref_freq = reference_frequency(observation.freqs, ref_freq)
        self.real = kind.kind == "f"
        span = 2 * self.step + 2 * self.length + self.job.overlap
        rows, room = history + self.step + 2 * self.length, available_host_memory() // 2
        if (need := rows * observation.nchan * kind.itemsize) > room:
            raise MemoryBudgetError(f"block={block or usual_block:g}, step={step}: {rows} samples", need, room)
        self._held = History(observation, kind, most, history, rows - history)
        self._fb = Filterbank([self._held])
        self._source = LiveSource(self._fb, sorted(set(ignore)), self.length)
        self.live_channels = 1 - len(set(ignore)) / observation.nchan
        tables = [t.table for t in self.job.made]
        how = "brute" if method == "brute" else self.job.how
        place = find_target(device, memory)
        pace = self._pace(step)
        self._parts = [] if place.gpu else parts_of(tables, observation.tsamp)
        pieces = [part.of(tables[part.number]) for part in self._parts] or tables
        self.engine = make_engine(
            self._source, pieces, method=how, device=place, capacity=span, threads=threads, span=pace
        )
        looked = self.job.detections(ENDLESS)
        self.kept = None
        if not getattr(self.engine, "runtimes", None):
            self.kept = KeptSeries(self.engine, pieces, self._sought(looked), pace, place.budget)
        self._filler: Any = Filler(observation.nchan, self.length, kind, most)
        self._lookout: Lookout | None = Lookout(observation.nchan, observation.tsamp, kind, most, self.length)
        if resident:
            self._settle()
        self._looked = looked
        self._rects = self._due = NO_RECTANGLES
        self._decided = 0
        self._joins: list[int] = []
        self._pending: list[NDArray[np.int64]] = []
        self._waiting: Events | None = None
        self.widest = max(t.table.downsamp for t in self.job.made) * self.job.boxes[-1] * observation.tsamp
        self.start = self.low = self.filled = self._loaded = -1
        self._reach = round((LONGEST + 2 * self.widest) / observation.tsamp)
        self.events = self.forced = self.dropped = self.equal = 0
        self.equal_since = -1.0

    def _settle(self) -> None:
        """Move history and filler to the engine's first GPU."""
        from .cuda_samples import DeviceFiller, DeviceHistory

        runtimes = getattr(self.engine, "runtimes", None)
        if not runtimes:
            self.engine.close()
            raise ValueError(f"resident=True: expected a GPU, the search runs on {self.engine.describe()['device']}")
        try:
            self._held = held = DeviceHistory(self._held, runtimes[0])
        except BaseException:
            self.engine.close()
            raise
        self._fb.readers[0] = self._held
        self._filler = DeviceFiller(held.samples, self.length, self.maximum)
        self._lookout = None

    def _sought(self, looked: list[Detection]) -> list[Detection]:
        """What is looked for in each part."""
        return [part.sought(looked[part.number]) for part in self._parts]

    def _pace(self, step: int) -> int:
        """Samples that are summed at a time on a CPU: blocks, or parts of a long one."""
        if step > 1:
            return self.step
        common = math.lcm(*(t.table.downsamp for t in self.job.made))
        parts = math.ceil(self.length * self.observation.tsamp / LONG_BLOCK)
        return -(-self.length // (parts * common)) * common

    # ------------------------------------------------------------------ in
    def warm(self) -> None:
        """Load or compile every kernel and make every plan, on zeros, before the first sample."""
        self._held.touch()
        self._held.trial = True
        far = FAR // self.length * self.length
        try:
            if self.kept is not None:
                self.kept.warm(far, self._sought(self._looked))
            else:
                self.job.look(self.engine, self._looked, far, self.step, ENDLESS)
        finally:
            self._held.trial = False

    def feed(self, start: int, rows: Any, missing: Any = ()) -> list[Found]:
        """Take the next samples.

        Parameters
        ----------
        start : int
            Number of the first; the first call's is where the stream starts, others follow without a gap.
        rows : numpy.ndarray of ``dtype``, or of one that it holds, shape (samples, channels)
            Falling order of frequency.
        missing : array_like of int, shape (n, 4)
            Rectangles that did not come: first sample, last + 1, first channel, last + 1.

        Returns
        -------
        list of Found
            In the order in which they became final.
        """
        if rows.ndim != 2 or rows.shape[1] != self.observation.nchan:
            raise ValueError(f"rows has shape {rows.shape}, expected (samples, {self.observation.nchan})")
        if not np.can_cast(rows.dtype, self.dtype, "safe"):
            raise ValueError(f"rows has dtype {rows.dtype}, expected {self.dtype}")
        if self.start < 0:
            self._begin(start)
        if start != self._held.stop:
            raise ValueError(f"start={start}: expected {self._held.stop}, where the samples before end")
        rects = np.asarray(missing, np.int64).reshape(-1, 4)
        stop = start + len(rows)
        if len(rects):
            if rects[:, 0].min() < start or rects[:, 1].max() > stop:
                raise ValueError(f"missing: expected rectangles within samples {start} to {stop}")
            rects = clipped(rects.copy(), self.observation.nchan)
            self._rects = np.concatenate([self._rects, rects])
            self._due = np.concatenate([self._due, rects])
        at = start
        found: list[Found] = []
        while at < stop:
            end = min(stop, (at // self.length + 1) * self.length)
            first = min(self._loaded, self._decided) - REREAD  # an engine reads whole blocks of floats
            self._held.append(
                rows[at - start : end - start], first // self.length * self.length if self.real else first
            )
            at = end
            found += self._decide(end)
        self._held.settle()
        return found

    def _decide(self, stop: int, last: bool = False) -> list[Found]:
        """Look for dropped data in samples before ``stop``, and search those that are decided."""
        free = stop
        if self._lookout is not None:
            while end := self._lookout.next(stop, last):
                low = self._lookout.at
                some = self._lookout.look(self._held.view(low, end), self._due)
                if len(some):
                    self._note(some)
                if len(dead := np.flatnonzero(self._lookout.dead)):
                    edges = np.flatnonzero(np.diff(dead) > 1) + 1
                    runs = [(low, end, int(part[0]), int(part[-1]) + 1) for part in np.split(dead, edges)]
                    self._due = np.concatenate([self._due, np.array(runs)])
            free = stop if last else min(stop, self._lookout.free)
        found: list[Found] = []
        while self._decided < free:
            end = min(free, (self._decided // self.length + 1) * self.length)
            self._add(self._decided, end)
            self._decided = end
            found += self._search()
        self._due = self._due[self._due[:, 1] > self._decided]
        return found

    def _note(self, rects: NDArray[np.int64]) -> None:
        """Stretches of equal samples count as lost."""
        self.equal += int(((rects[:, 1] - rects[:, 0]) * (rects[:, 3] - rects[:, 2])).sum())
        self.equal_since = int(rects[:, 0].min()) * self.observation.tsamp
        self._due = np.concatenate([self._due, rects])
        for rect in rects:  # one that goes on is made longer
            same = (self._rects[:, 1] == rect[0]) & (self._rects[:, 2:] == rect[2:]).all(axis=1)
            if same.any():
                self._rects[np.flatnonzero(same)[0], 1] = rect[1]
            else:
                self._rects = np.concatenate([self._rects, rect[None]])

    @property
    def frontier(self) -> float:
        """Seconds before which all events are known."""
        return float(self._frontiers().min()) if self.low >= 0 else 0.0

    @property
    def stop(self) -> int:
        """Number of the sample after the last that was taken."""
        return self._held.stop

    @property
    def settled(self) -> float:
        """Seconds before which all candidates have been given out."""
        if self._waiting is None or not len(self._waiting):
            return self.frontier
        return min(self.frontier, float((self._waiting.time - self._waiting.width / 2).min()))

    def _begin(self, start: int) -> None:
        """Zeros from a block before the one that the stream starts in."""
        self.start = start
        self.low = start // self.length * self.length
        base = self._loaded = max(0, self.low - self.length)
        self._held.begin(base)
        if self.kept is not None:
            self.kept.begin(base, self.low)
        self.filled = base
        self._decided = start
        if self._lookout is not None:
            self._lookout.begin(start)
        if start > base:
            self._held.append(np.zeros((start - base, self.observation.nchan), self._held.dtype), base)
            self._pending.append(np.array([[base, start, 0, self.observation.nchan]]))
            first = self._held.view(self.low, start)
            if len(first):
                self._filler.add(self.low, first, np.array([[self.low, start, 0, self.observation.nchan]]))

    def _add(self, at: int, end: int) -> None:
        """Samples of one block: statistics, and what stands in for missing ones."""
        view = self._held.view(at, end)
        some = Losses(self._due).within(at, end) if len(self._due) else self._due
        some = clipped(some, self.observation.nchan) if len(some) else some
        over = end % self.length == 0
        self._filler.add(at, view, some)
        if self._filler.ready:
            self._filler.hide(view)
            if len(some):
                self._filler.fill(at, view, some)
            if over and self._filler.end_block():
                self._joins.append(end)
            self.filled = end
            return
        self._pending.append(some)
        if over:
            self._filler.end_block()
            if self._filler.ready:
                self._fill_first(end)
            else:
                self._begin_at(end)

    def _begin_at(self, low: int) -> None:
        """A first block of which too little came to give a level is left out: the stream starts at its end, ``low``."""
        self.start = self.low = low
        self.filled = self._loaded = low - self.length
        if self.kept is not None:
            self.kept.begin(self.filled, low)
        self._pending = [np.array([[self.filled, low, 0, self.observation.nchan]])]

    def _fill_first(self, end: int) -> None:
        """The first block with data is over: what is missing in it takes its own level and scatter.

        So does the block before it, whose noise a short last block takes.
        """
        view = self._held.view(self.filled, end)
        self._filler.hide(view)
        for some in self._pending:
            if len(some):
                self._filler.fill(self.filled, view, some)
        self._pending.clear()
        self.filled = end

    # ------------------------------------------------------------------ out
    def _search(self) -> list[Found]:
        found: list[Found] = []
        if self.kept is not None:
            whole = self.filled // self.length * self.length if self.real else self.filled
            sought = self._sought(self._looked)
            while (raw := self.kept.search(whole, sought, False)) is not None:
                found += self._taken(joined(self._parts, raw, len(self.job.made)), False)
            return found
        while True:
            need = self.low + self.step + self.length + self.job.overlap
            if self.real:
                need = -(-need // self.length) * self.length
            if self.filled < need:
                return found
            found += self._look(ENDLESS)

    def _look(self, nsamp: int) -> list[Found]:
        raw = self.job.look(self.engine, self._looked, self.low, self.step, nsamp)
        self._loaded = min(nsamp, self.low + self.step + self.length + self.job.overlap)
        self.low += self.step
        return self._taken(raw, nsamp != ENDLESS and self.low >= nsamp)

    def _taken(self, raw: list[NDArray[np.float64]], last: bool) -> list[Found]:
        """Events that have become final, together with those that wait for the end of their group."""
        if self.kept is not None:
            self._loaded, self.low = self.kept.loaded, min(self.kept.searched)
        self._rects = self._rects[self._rects[:, 1] > self.low - 2 * self.length - self._reach]
        raw = kept_events(
            self.job.made, self._loudest(raw), self.job.boxes, self._losses(), self.length, self._joins, self._looked
        )
        events, _ = self.job.events(raw, self.observation)
        self.events += len(events)
        if self._waiting is not None:
            events = joined_events(self._waiting, events)
        return self._close(events, last)

    def _loudest(self, raw: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """No more events than may wait: in a storm of interference the loudest."""
        count = sum(map(len, raw))
        if count <= MOST_WAITING:
            return raw
        self.dropped += count - MOST_WAITING
        snr = np.concatenate([rows[:, 3] for rows in raw])
        keep = np.zeros(count, bool)
        keep[np.argsort(-snr, kind="stable")[:MOST_WAITING]] = True
        return [rows[k] for rows, k in zip(raw, np.split(keep, np.cumsum([len(r) for r in raw])[:-1]), strict=True)]

    def _losses(self) -> Losses:
        return Losses(self._rects, max(0, self.start))

    def _frontiers(self) -> NDArray[np.float64]:
        """Seconds before which no event can come any more at each DM, in the rising list of all."""
        every = np.concatenate([np.full(len(t.table.delays), self.low) for t in self.job.made])
        binnings = np.concatenate([np.full(len(t.table.delays), t.table.downsamp) for t in self.job.made])
        starts = np.concatenate([np.full(len(t.table.delays), t.start) for t in self.job.made])
        if self.kept is not None:
            every = np.repeat(self.kept.searched, [part.stop - part.first for part in self._parts])
        rank = np.unique(np.concatenate([dms for dms, *_ in self.job.stages]), return_inverse=True)[1]
        found = np.full(int(rank.max()) + 1, np.inf)
        np.minimum.at(found, rank, (every // binnings + starts) * binnings * self.observation.tsamp)
        return found

    def _close(self, events: Events, last: bool) -> list[Found]:
        """Give out the groups that are complete: at no DM near a member's an event can come that would join it."""
        frontiers = self._frontiers()
        frontier = np.inf if last else float(frontiers.min())
        self._waiting = None
        if not len(events):
            return []
        job = self.job
        group = friends(events.dm_index, events.time, events.width, job.link_dm, job.link_time)
        count = int(group.max()) + 1
        until = events.time + np.maximum((events.width + self.widest) / 2, job.link_time) * 1.001
        near = minimum_filter1d(frontiers, 2 * job.link_dm + 1, mode="nearest")
        over = np.full(count, True)
        np.logical_and.at(over, group, (until < near[events.dm_index]) | last)
        since = np.full(count, np.inf)
        np.minimum.at(since, group, events.time)
        long = ~over & ((since < frontier - LONGEST) | (len(events) > MOST_WAITING))
        self.forced += int(long.sum())
        out = (over | long)[group]
        if not out.all():
            self._waiting = picked(events, ~out)
        if not out.any():
            return []
        ready = picked(events, out)
        columns, number = group_events(
            ready, self.observation, self.ref_freq, job.dm_constant, job.link_dm, job.link_time
        )
        columns["live"] = self._live(columns)
        return [Found(columns, ready, number)]

    def _live(self, columns: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
        """Part of the samples that came, of each candidate's window."""
        base = self.observation.dm or 0.0
        live = np.ones(len(columns["snr"]))
        losses = self._losses()
        boxes = np.array(self.job.boxes)
        for (dms, binning, *_), made in zip(self.job.stages, self.job.made, strict=True):
            some = np.flatnonzero((columns["downsamp"] == binning) & np.isin(columns["dm"], dms + base))
            if not len(some):
                continue
            order = np.argsort(dms, kind="stable")
            m = order[np.searchsorted(dms[order] + base, columns["dm"][some])]
            width = columns["width_samples"][some]
            centre = columns["sample"][some] // binning - made.start + width // 2
            raw = np.stack([m, centre, np.searchsorted(boxes, width), columns["snr"][some]], axis=1).astype(np.float64)
            live[some] = live_of([made], [raw], self.job.boxes, losses)[0]
        return live

    def finish(self) -> list[Found]:
        """The stream is over: search what is left, give out what waits."""
        if self.start < 0:
            return []
        nsamp = self._held.stop
        found = self._decide(nsamp, last=True)
        if self.filled < nsamp:
            self._filler.end_block(last=True)
            self._fill_first(nsamp)
        self._looked = self.job.detections(nsamp)
        self._source.nsamp = nsamp
        if self.kept is not None:
            while (raw := self.kept.search(nsamp, self._sought(self._looked), True)) is not None:
                found += self._taken(joined(self._parts, raw, len(self.job.made)), False)
        while self.kept is None and self.low < nsamp:
            found += self._look(nsamp)
        if self._waiting is not None:
            found += self._close(self._waiting, True)
        return found

    def recent(self, start: int, stop: int) -> tuple[int, NDArray[Any]]:
        """Samples that are still held of a range: the first one's number, and a copy (samples, channels)."""
        low = max(start, self._held.base)
        high = max(low, min(stop, self.filled))
        return low, self._held.copy(low, high)

    def close(self) -> None:
        """Give back threads and memory."""
        self._held.close()
        self.engine.close()

    def __enter__(self) -> StreamSearch:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
