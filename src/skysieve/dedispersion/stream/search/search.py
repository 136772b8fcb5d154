"""The search of a stream: pieces of samples of any length in, candidates out, with the same bits as `search`.

On a CPU each sample is summed once (`series`), and a noise block is searched when the next block and the delay of its
DMs are complete; on a GPU it is searched one block later.  A candidate is returned when no later event can belong to
it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.checks import whole
from skysieve.core.errors import MemoryBudgetError
from skysieve.core.memory import available_host_memory
from skysieve.core.plan import Plan
from skysieve.dedispersion.clean.blocks.cleaner import FEW, Cleaner
from skysieve.dedispersion.clean.blocks.records import Removed
from skysieve.dedispersion.clean.blocks.steps import Clean, cleaning_steps
from skysieve.dedispersion.clean.dropouts import NO_RECTANGLES
from skysieve.dedispersion.clean.lookout import Lookout
from skysieve.dedispersion.clean.missing import Filler, Losses, clipped, kept_events, live_of
from skysieve.dedispersion.contract import BLOCK_SECONDS, DIP, EXCESS, REREAD, THRESHOLD, sum_dtype
from skysieve.dedispersion.data.delays import reference_frequency
from skysieve.dedispersion.data.filterbank import DTYPES, Filterbank
from skysieve.dedispersion.data.observation import Observation
from skysieve.dedispersion.dispatch import find_target, make_engine
from skysieve.dedispersion.single_pulse.candidates import Events, columns_of, events_at
from skysieve.dedispersion.single_pulse.search import prepare
from skysieve.dedispersion.single_pulse.vetting import REASONS, SECONDS, Vetting, gone_in

from .history import ENDLESS, History, LiveSource
from .result import StreamCandidates
from .series import RunningSeries, by_table, dm_ranges
from .waiting import LONGEST, Waiting

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.core.device import Device
    from skysieve.dedispersion.contract import Detection, Detector, Method, Noise
    from skysieve.dedispersion.dm_plan.plan import DMPlan

__all__ = ["StreamSearch"]

FAR = 2**45
"""Sample number for a test search before the stream begins, far from all real samples."""
MOST_EVENTS = 200_000
"""Most events of a step; if there are more, only the loudest are used."""
MOST_AGAIN = 2**30
"""Most bytes of samples that are held to examine candidates again; candidates that wait longer are not examined."""
LONG_BLOCK = 0.3
"""Most seconds that are summed at once; longer blocks are summed in parts as samples arrive."""


class StreamSearch(Plan):
    """Search samples as they arrive.

    Pass the samples of a live stream to `feed`, piece by piece, and call `finish` at its end; or search a whole stream
    with `execute`.

    Parameters
    ----------
    observation : Observation
        Channels and sampling; ``tstart`` is the time of sample 0.
    plan : DMPlan or array_like
        DMs and binnings.
    dtype : {"uint8", "int8", "uint16", "int16", "float32"}
        Type of the samples.
    maximum : int
        Largest value of unsigned samples; 0 (the default) means the largest value of the type.
    ignore : sequence of int
        Numbers of channels to leave out; channel 0 has the highest frequency.
    step : int
        Number of noise blocks to search at a time; more blocks need less work but increase the latency.
    history : int
        Number of samples to keep for `recent`.
    widths, max_width, threshold, noise, detector, buffer, block, baseline, excess, dip, method, max_loss, \
    ref_freq, dm_constant
        As for `skysieve.dedispersion.search`.
    usual_block : float
        Length of the noise blocks in seconds if ``block`` is not given; the blocks are longer if the search needs it.
    clean, veto, device, memory, threads
        As for `skysieve.dedispersion.search`.  Samples are cleaned in blocks of about half a second, which increases
        the latency by up to this time.
    expected : int
        Number of samples that will come from a source that can wait, such as a file; 0 (the default) for a receiver.
        If the number is small, functions are not compiled on a CPU when compiling would take longer than it saves.  The
        candidates do not depend on this argument.
    resident : bool
        Keep the samples, which must be uint8, on the first GPU only; `feed` accepts CuPy and NumPy arrays.

    Attributes
    ----------
    length : int
        Samples of a noise block.
    start : int
        Number of the first sample that is searched; -1 before it is known.
    filled : int
        Number of the first sample that is not yet filled or cleaned, and so not ready for the search.
    events, forced, dropped, equal : int
        Number of events found; of groups returned in pieces; of events dropped because there were too many; of samples
        (of one channel) that count as lost because they repeat one value.
    vetoed : dict of str to int
        Number of candidates that were left out because they are not dispersed pulses, by reason.
    equal_since : float
        Seconds at which the latest run of equal samples began; -1 before the first one.

    Raises
    ------
    ValueError
        An argument is not valid.
    MemoryBudgetError
        The search does not fit the memory.

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
        max_width: float | None = None,
        threshold: float = THRESHOLD,
        noise: Noise = "robust",
        detector: Detector = "boxcar",
        buffer: int | None = None,
        block: float | None = None,
        usual_block: float = BLOCK_SECONDS,
        baseline: bool = True,
        excess: float = EXCESS,
        dip: float = DIP,
        method: Method = "auto",
        max_loss: float = 0.0,
        ref_freq: str | float = "top",
        dm_constant: float | None = None,
        clean: Clean = None,
        veto: bool | None = None,
        device: str | tuple[Device, ...] = "auto",
        memory: str | float | None = None,
        threads: int | None = None,
        expected: int = 0,
        resident: bool = False,
    ) -> None:
        if not isinstance(observation, Observation):
            raise TypeError(
                f"observation is a {type(observation).__name__}, expected an Observation, such as `fb.observation`"
            )
        if dtype not in DTYPES:
            raise ValueError(f"dtype={dtype!r}: expected one of {', '.join(DTYPES)}")
        step, history, expected = whole("step", step, 1), whole("history", history, 0), whole("expected", expected, 0)
        for number in ignore:
            if not 0 <= number < observation.nchan:
                raise ValueError(f"ignore={list(ignore)}: expected channels from 0 to {observation.nchan - 1}")
        if len(set(ignore)) == observation.nchan:
            raise ValueError("ignore: all channels are left out, so that nothing can be found")
        kind = np.dtype(dtype)
        if resident and kind != np.uint8:
            raise ValueError(f"resident=True, dtype={dtype!r}: samples that stay on a GPU are expected to be uint8")
        most = (maximum or 2 ** (8 * kind.itemsize) - 1) if kind.kind == "u" else 0
        steps = cleaning_steps(clean)
        place = find_target(device, memory)
        self._held: Any = History(observation, kind, most, 1)
        fb = Filterbank([self._held])
        self.job = prepare(
            fb, plan, widths=widths, threshold=threshold, noise=noise, detector=detector, buffer=buffer, block=block,
            excess=excess, dip=dip, method=method, max_loss=max_loss,
            dm_constant=dm_constant, usual_block=usual_block, baseline=baseline, max_width=max_width,
        )  # fmt: skip
        self.observation, self.length = observation, self.job.length
        self.dtype, self.maximum = kind.name, most
        self.step = step * self.length
        self.ref_freq = reference_frequency(observation.freqs, ref_freq)
        self._cleaner: Any = Cleaner(observation, kind, most, steps, ignore, self.job.dm_constant)
        self._waits = expected > 0
        self._cleaner.waits, self._cleaner.few = self._waits, 0 < expected * observation.nchan <= FEW
        delay = self._cleaner.block + self._cleaner.ahead if self._cleaner.steps else 0
        self.real = kind.kind == "f"
        span = 2 * self.step + 2 * self.job.context + self.job.overlap
        self._vetting = None
        if (steps if veto is None else veto) and not self.job.every:
            highest = float(self.dms[-1])
            made = Vetting(
                observation, observation.top, self.job.dm_constant, highest, self.length, self.job.threshold
            )  # fmt: skip
            self._vetting = made if made.usable else None
            wide = max(t.table.downsamp for t in self.job.made) * self.job.boxes[-1]
            again = made.reach(wide, highest) + 2 * wide + self.job.overlap + delay
            history = max(history, min(again, MOST_AGAIN // (observation.nchan * kind.itemsize)))
        rows, room = history + self.step + 2 * self.job.context + delay, available_host_memory() // 2
        if (need := rows * observation.nchan * kind.itemsize) > room:
            raise MemoryBudgetError(f"block={block or usual_block:g}, step={step}: {rows} samples", need, room)
        self._held = History(observation, kind, most, history, rows - history)
        self._fb = Filterbank([self._held])
        self._source = LiveSource(self._fb, sorted(set(ignore)), self.length)
        tables = [t.table for t in self.job.made]
        how = "brute" if method == "brute" else self.job.how
        pace = self._pace(step)
        self._ranges = [] if place.gpu else dm_ranges(tables, observation.tsamp)
        pieces = [one.delays(tables[one.table]) for one in self._ranges] or tables
        if not place.gpu:
            from .cpu_series import compile_beside

            compile_beside(sum_dtype(kind))
            self._source.nsamp = expected or ENDLESS
        self.engine = make_engine(
            self._source, pieces, method=how, device=place, capacity=span, threads=threads, span=pace,
            search=place.gpu,
        )  # fmt: skip
        looked = self.job.detections(ENDLESS)
        self.series = None
        if not getattr(self.engine, "runtimes", None):
            sought = self._detections_of_ranges(looked)
            self.series = RunningSeries(self.engine, pieces, sought, pace, place.budget, self._waits)
        if resident:
            self._move_to_gpu()
        self._resident = resident
        self._response = self.job.response(observation)
        self.widest = float(self._response.widest.max())
        self._reach = round((LONGEST + 2 * self.widest) / observation.tsamp)
        self._closed = False
        self._loaded = -1
        self.reset()

    def reset(self) -> None:
        """Forget all samples, so that the next `feed` begins another stream."""
        self._check_open()
        if self._loaded >= 0:
            self.engine.load(0, 0)  # otherwise it would reuse samples with the same numbers
        o, kind = self.observation, np.dtype(self.dtype)
        self._filler: Any
        self._lookout: Lookout | None = None
        if self._resident:
            from .cuda_samples import DeviceFiller

            self._filler = DeviceFiller(self._held.samples, self.length, self.maximum)
        else:
            self._filler = Filler(o.nchan, self.length, kind, self.maximum)
            self._lookout = Lookout(o.nchan, o.tsamp, kind, self.maximum, self.length)
        self._looked = self.job.detections(ENDLESS)
        self._source.nsamp = ENDLESS
        self._rects = self._due = NO_RECTANGLES
        self._decided = 0
        self._joins: list[int] = []
        self._pending: list[NDArray[np.int64]] = []
        self._waiting = Waiting.none()
        self.start = self.low = self.filled = self._repaired = self._loaded = self._base = -1
        self._cleaner.reset()
        self.vetoed = dict.fromkeys(REASONS, 0)
        self.events = self.forced = self.dropped = self.equal = 0
        self.equal_since = -1.0

    def _move_to_gpu(self) -> None:
        """Keep the history on the engine's first GPU."""
        from skysieve.dedispersion.clean.cuda.launch import DeviceCleaner

        from .cuda_samples import DeviceHistory

        runtimes = getattr(self.engine, "runtimes", None)
        if not runtimes:
            self.engine.close()
            raise ValueError(
                f"resident=True: expected a GPU, but the search runs on {self.engine.describe()['device']}"
            )
        try:
            self._held = DeviceHistory(self._held, runtimes[0])
            self._cleaner = DeviceCleaner(runtimes[0], self._cleaner.block, self._cleaner)
        except BaseException:
            self.engine.close()
            raise
        self._fb.readers[0] = self._held

    def _detections_of_ranges(self, looked: list[Detection]) -> list[Detection]:
        """The detection settings of each range of DMs."""
        return [one.detection(looked[one.table]) for one in self._ranges]

    def _pace(self, step: int) -> int:
        """Number of samples that are summed at a time on a CPU: whole blocks, or parts of a long block."""
        if step > 1:
            return self.step
        common = math.lcm(*(t.table.downsamp for t in self.job.made))
        parts = math.ceil(self.length * self.observation.tsamp / LONG_BLOCK)
        return -(-self.length // (parts * common)) * common

    def __repr__(self) -> str:
        o = self.observation
        return f"<StreamSearch: {len(self.dms)} DMs, {o.nchan} channels every {o.tsamp:g} s, {self.device}>"

    @property
    def dms(self) -> NDArray[np.float64]:
        """All DMs searched, rising."""
        return self.job.dms[0].copy()

    @property
    def device(self) -> str:
        """Name of the device that searches."""
        return str(self.engine.describe()["device"])

    def describe(self) -> dict[str, Any]:
        """Describe how the samples are searched.

        Returns
        -------
        dict
            ``method``, ``device`` and ``dtype``; ``bytes``, the memory of the search and of the samples that it holds;
            ``seconds``, which is None; ``dms``, the number of DMs; ``block``, the length of a noise block in seconds;
            ``threads``, the number of CPU threads.
        """
        self._check_open()
        engine = self.engine.describe()
        rows = (self._held.samples.rows if self._resident else self._held.rows).nbytes
        series = 0 if self.series is None else self.series.nbytes
        return {
            "method": str(engine["method"]), "device": str(engine["device"]), "dtype": self.dtype,
            "bytes": int(engine["bytes"]) + int(rows) + series, "seconds": None, "dms": len(self.dms),
            "block": self.length * self.observation.tsamp, "threads": int(engine["threads"]),
        }  # fmt: skip

    # ------------------------------------------------------------------ input
    def execute(self, pieces: Iterable[tuple[int, Any] | tuple[int, Any, Any]]) -> StreamCandidates:
        """Search a whole stream.

        Parameters
        ----------
        pieces : iterable of (start, rows) or (start, rows, missing)
            The arguments of `feed`, piece by piece.

        Returns
        -------
        StreamCandidates
            All candidates, the loudest first.
        """
        self.reset()
        found = [one for piece in pieces for one in self.feed(*piece)]
        return StreamCandidates.join([*found, *self.finish()])

    def warm(self) -> None:
        """Load or compile all kernels, by a search of zeros, before the first sample arrives."""
        self._check_open()
        self._held.touch()
        self._held.trial = True
        far = FAR // self.length * self.length
        try:
            if self.series is not None:
                self.series.warm(far, self._detections_of_ranges(self._looked))
            else:
                self.job.look(self.engine, self._looked, far, self.step, ENDLESS)
        finally:
            self._held.trial = False

    def feed(self, start: int, rows: Any, missing: Any = ()) -> list[StreamCandidates]:
        """Search the next samples.

        Parameters
        ----------
        start : int
            Number of the first sample.  The first call can begin at any number; later calls continue without a gap.
        rows : numpy.ndarray, shape (samples, channels)
            Samples in falling order of frequency, of type `dtype` or a type that can be cast to it safely.
        missing : array_like of int, shape (n, 4)
            Missing rectangles: first sample, last + 1, first channel, last + 1.

        Returns
        -------
        list of StreamCandidates
            Candidates that have become final, in that order.

        Raises
        ------
        ValueError
            An argument is not valid, or the search is closed.
        """
        self._check_open()
        start = whole("start", start, 0)
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
        found: list[StreamCandidates] = []
        while at < stop:
            end = stop if self._resident else min(stop, (at // self.length + 1) * self.length)
            first = min(self._loaded, self._decided, self.filled) - REREAD  # an engine reads whole blocks of floats
            self._held.append(
                rows[at - start : end - start], first // self.length * self.length if self.real else first
            )
            at = end
            found += self._decide(end)
        self._held.synchronize()
        return found

    def _decide(self, stop: int, last: bool = False) -> list[StreamCandidates]:
        """Look for runs of equal samples before ``stop``, and search the samples that have been examined."""
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
        found: list[StreamCandidates] = []
        while self._decided < free:
            end = min(free, (self._decided // self.length + 1) * self.length)
            self._add(self._decided, end)
            self._decided = end
            found += self._search()
        self._due = self._due[self._due[:, 1] > self._decided]
        return found

    def _note(self, rects: NDArray[np.int64]) -> None:
        """Count runs of equal samples as lost."""
        self.equal += int(((rects[:, 1] - rects[:, 0]) * (rects[:, 3] - rects[:, 2])).sum())
        self.equal_since = int(rects[:, 0].min()) * self.observation.tsamp
        self._due = np.concatenate([self._due, rects])
        for rect in rects:  # the new rectangle may continue an earlier run
            same = (self._rects[:, 1] == rect[0]) & (self._rects[:, 2:] == rect[2:]).all(axis=1)
            if same.any():
                self._rects[np.flatnonzero(same)[0], 1] = rect[1]
            else:
                self._rects = np.concatenate([self._rects, rect[None]])

    @property
    def frontier(self) -> float:
        """Seconds, at the top of the band, before which all events are known."""
        return float(self._frontiers().min()) if self.low >= 0 else 0.0

    @property
    def stop(self) -> int:
        """Number of the sample after the last one received."""
        return self._held.stop

    @property
    def settled(self) -> float:
        """Seconds, at the top of the band, before which all candidates have been returned."""
        return min(self.frontier, self._waiting.first)

    def _begin(self, start: int) -> None:
        """Begin the stream, with zeros from the start of the block before its first one."""
        self.start = start
        self.low = start // self.length * self.length
        base = self._base = self._loaded = max(0, self.low - self.job.context)
        self._held.begin(base)
        if self.series is not None:
            self.series.begin(base, self.low)
        self.filled = self._repaired = base
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
        """Add samples of one block: update the statistics, and fill missing samples with noise."""
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
            self._repaired = end
            self._clean()
            return
        self._pending.append(some)
        if over:
            self._filler.end_block()
            if self._filler.ready:
                self._fill_first(end)
            else:
                self._begin_at(end)

    def _begin_at(self, low: int) -> None:
        """Leave out a first block with too few samples to measure a level: the stream starts at its end, ``low``."""
        self.start = self.low = low
        self.filled = self._repaired = self._loaded = self._base = max(0, low - self.job.context)
        if self.series is not None:
            self.series.begin(self.filled, low)
        self._pending = [np.array([[self.filled, low, 0, self.observation.nchan]])]

    def _fill_first(self, end: int) -> None:
        """At the end of the first block with data, fill its missing samples with noise of its own level and scatter.

        The context before it is filled too, because the baseline depends on it, and a short last block takes the noise
        of the block before.
        """
        view = self._held.view(self._repaired, end)
        self._filler.hide(view)
        for some in self._pending:
            if len(some):
                self._filler.fill(self._repaired, view, some)
        self._pending.clear()
        self._repaired = end
        self._clean()

    def _clean(self, last: bool = False) -> None:
        """Clean the blocks that are complete, or all samples at the end of the stream (``last``)."""
        if not self._cleaner.steps:
            self.filled = self._repaired
            return
        if self._resident:
            self._held.clean(self._cleaner, self.filled, self._repaired, last)
            self.filled = self._cleaner.done
        size, most = self._cleaner.block, self._cleaner.ahead
        while self.filled < self._repaired and not self._resident:
            end = (self.filled // size + 1) * size
            if end + most > self._repaired and not last:
                break
            end = min(end, self._repaired)
            self._held.change(self.filled, end, min(most, self._repaired - end), self._cleaner.clean)
            self.filled = end
        self._cleaner.records.forget(self._held.base - round(SECONDS / self.observation.tsamp))

    @property
    def removed(self) -> Removed:
        """The data that cleaning has removed so far."""
        return self._cleaner.records.removed()

    # ------------------------------------------------------------------ output
    def _search(self) -> list[StreamCandidates]:
        found: list[StreamCandidates] = []
        if self.series is not None:
            whole = self.filled // self.length * self.length if self.real else self.filled
            sought = self._detections_of_ranges(self._looked)
            while (raw := self.series.search(whole, sought, False)) is not None:
                found += self._group(by_table(self._ranges, raw, len(self.job.made)), False)
            return found
        while True:
            need = self.low + self.step + self.job.context + self.job.overlap
            if self.real:
                need = -(-need // self.length) * self.length
            if self.filled < need:
                return found
            found += self._look(ENDLESS)

    def _look(self, nsamp: int) -> list[StreamCandidates]:
        raw = self.job.look(self.engine, self._looked, self.low, self.step, nsamp, begin=self._base)
        self._loaded = min(nsamp, self.low + self.step + self.job.context + self.job.overlap)
        self.low += self.step
        return self._group(raw, nsamp != ENDLESS and self.low >= nsamp)

    def _group(self, raw: list[NDArray[np.float64]], last: bool) -> list[StreamCandidates]:
        """Group new events with those that wait for the end of their group."""
        if self.series is not None:
            self._loaded, self.low = self.series.loaded, min(self.series.searched)
        self._rects = self._rects[self._rects[:, 1] > self.low - 2 * self.length - self._reach]
        raw = kept_events(
            self.job.made, self._loudest(raw), self.job.boxes, self._losses(), self.length, self._joins, self._looked
        )
        events, _ = self.job.events(raw, self.observation)
        self.events += len(events)
        self._waiting = self._waiting.merge(events)
        return self._complete_groups(last)

    def _loudest(self, raw: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """The `MOST_EVENTS` loudest events, if interference causes more."""
        count = sum(map(len, raw))
        if count <= MOST_EVENTS:
            return raw
        self.dropped += count - MOST_EVENTS
        snr = np.concatenate([rows[:, 3] for rows in raw])
        keep = np.zeros(count, bool)
        keep[np.argsort(-snr, kind="stable")[:MOST_EVENTS]] = True
        return [rows[k] for rows, k in zip(raw, np.split(keep, np.cumsum([len(r) for r in raw])[:-1]), strict=True)]

    def _losses(self) -> Losses:
        return Losses(self._rects, max(0, self.start))

    def _frontiers(self) -> NDArray[np.float64]:
        """For each DM, in rising order, the seconds before which no more events can come."""
        every = np.concatenate([np.full(len(t.table.delays), self.low) for t in self.job.made])
        binnings = np.concatenate([np.full(len(t.table.delays), t.table.downsamp) for t in self.job.made])
        starts = np.concatenate([np.full(len(t.table.delays), t.start) for t in self.job.made])
        if self.series is not None:
            every = np.repeat(self.series.searched, [one.stop - one.first for one in self._ranges])
        # a divided window gives events up to three quarters of its width before its middle
        before = 0 if self.job.every else -(-3 * self.job.boxes[-1] // 4) + 1
        dms, rank = self.job.dms
        found = np.full(len(dms), np.inf)
        ends = (every // binnings + starts - before) * binnings * self.observation.tsamp
        np.minimum.at(found, rank, ends)
        return found

    def _complete_groups(self, last: bool) -> list[StreamCandidates]:
        """The candidates of the groups that are complete: no later event can change them."""
        if not len(self._waiting.events):
            return []
        self._waiting, ready = self._waiting.complete(self._response, self._frontiers(), last, self._waits)
        self.forced += ready.forced
        if not len(ready.events):
            return []
        events, head, dms = ready.events, ready.head, self.dms + (self.observation.dm or 0.0)
        shifts = None
        if self._vetting is not None:
            limits = max(0, self.start), self._held.stop
            events, head, vetoed, shifts = self._vetting.vetted(
                events, head, dms, self._response, self._again, self._cleaner.records, limits
            )
            for reason, count in vetoed.items():
                self.vetoed[reason] += count
            if not len(events):
                return []
        given = events_at(events, self.ref_freq, self.observation, self.job.dm_constant)
        columns, number = columns_of(given, head, dms, self.observation, self.ref_freq, self.job.dm_constant, shifts)
        peak = np.empty(len(columns["snr"]), np.int64)
        peak[number] = head
        columns["live"] = self._live(events.select(peak))
        return [StreamCandidates(columns, given, number)]

    def _again(self, start: int, stop: int, memory: object = None) -> tuple[NDArray[Any], NDArray[np.bool_]] | None:
        """Samples for the second look at a candidate (`vetting.Samples`): None if they are not held any more.

        They are a copy of what the stream holds, so that ``memory`` is not used.
        """
        low, high = max(start, self.start), min(stop, self.filled)
        shape = (stop - start, self.observation.nchan)
        rows, gone = np.zeros(shape, self.dtype), np.ones(shape, bool)
        if low < high:
            if low < self._held.base:
                return None
            inside = slice(low - start, high - start)
            rows[inside] = self._held.copy(low, high)
            gone[inside] = self._cleaner.records.replaced(low, high)
            gone_in(self._losses().within(low, high), start, gone)
        gone[:, self._source.ignore] = True
        return rows, gone

    def _live(self, windows: Events) -> NDArray[np.float64]:
        """The fraction of each window that arrived."""
        base = self.observation.dm or 0.0
        live = np.ones(len(windows))
        losses = self._losses()
        if not (len(losses.rects) or losses.start):
            return live
        boxes = np.array(self.job.boxes)
        for (dms, binning, *_), made in zip(self.job.stages, self.job.made, strict=True):
            some = np.flatnonzero((windows.downsamp == binning) & np.isin(windows.dm, dms + base))
            if not len(some):
                continue
            order = np.argsort(dms, kind="stable")
            m = order[np.searchsorted(dms[order] + base, windows.dm[some])]
            width = windows.width_samples[some]
            centre = windows.sample[some] // binning - made.start + width // 2
            raw = np.stack([m, centre, np.searchsorted(boxes, width), windows.snr[some]], axis=1).astype(np.float64)
            live[some] = live_of([made], [raw], self.job.boxes, losses)[0]
        return live

    def finish(self) -> list[StreamCandidates]:
        """Search the remaining samples at the end of the stream, and return all waiting candidates."""
        self._check_open()
        if self.start < 0:
            return []
        nsamp = self._held.stop
        found = self._decide(nsamp, last=True)
        if self._repaired < nsamp:
            self._filler.end_block(last=True)
            self._fill_first(nsamp)
        self._clean(last=True)
        self._looked = self.job.detections(nsamp)
        self._source.nsamp = nsamp
        if self.series is not None:
            while (raw := self.series.search(nsamp, self._detections_of_ranges(self._looked), True)) is not None:
                found += self._group(by_table(self._ranges, raw, len(self.job.made)), False)
        while self.series is None and self.low < nsamp:
            found += self._look(nsamp)
        return found + self._complete_groups(True)

    def recent(self, start: int, stop: int) -> tuple[int, NDArray[Any]]:
        """The samples of a range that are still held: the first number, and a copy, shape (samples, channels)."""
        low = max(start, self._held.base)
        high = max(low, min(stop, self.filled))
        return low, self._held.copy(low, high)

    def close(self) -> None:
        """Free threads and memory; calling it again does nothing."""
        if not self._closed:
            self._closed = True
            self._held.close()
            self.engine.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("this StreamSearch is closed")
