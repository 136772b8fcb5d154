"""The stages of one beam: ring of packets, unpacking, channeliser and search."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.device import Device, resolve
from skysieve.core.errors import DeviceLost
from skysieve.core.gpu.runtime import Runtime
from skysieve.dedispersion.data.delays import delay_seconds, sample_delays
from skysieve.dedispersion.data.observation import DM_CONSTANT, Observation, mjd_of, regular_freqs
from skysieve.dedispersion.dm_plan.plan import DMPlan
from skysieve.dedispersion.dm_plan.plan import plan as make_plan
from skysieve.dedispersion.stream.channelise.channeliser import Channeliser
from skysieve.dedispersion.stream.injection import LiveInjector
from skysieve.dedispersion.stream.receive.packets import VOLTAGE, Geometry
from skysieve.dedispersion.stream.receive.page_lock import PageLock
from skysieve.dedispersion.stream.receive.ring import Loan, Ring, Unpacker
from skysieve.dedispersion.stream.records import Candidate, CandidateSamples, Injection, Mark, Options
from skysieve.dedispersion.stream.search.result import StreamCandidates
from skysieve.dedispersion.stream.search.search import StreamSearch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.stream.channelise.cuda_channeliser import DeviceChanneliser

logger = logging.getLogger("skysieve")

SIDE = 128
"""Length of a cut-out before and after its candidate, in half widths of the candidate."""
GULP_BYTES = 2**20
"""Most bytes of a gulp: with larger ones, mapping pages for temporary arrays costs more than the arithmetic."""
DEVICE_GULP_BYTES = 2**28
"""Most bytes of a gulp that a GPU channelises."""
QUIET = 10.0
"""Seconds of data after a report of equal samples in which there is no further report."""
MOST_PENDING = 64
"""Most cut-outs that may wait for their samples."""
HISTORY_BYTES = 2**27
"""Bytes of samples to keep for cut-outs."""
NUMBERS = itertools.count(1)


class Segment:
    """The part of the stream of one beam between two starts of its sender.

    Raises
    ------
    ValueError
        The packets do not match the plan, or cannot be searched.
    """

    def __init__(self, beam: int, number: int, geometry: Geometry, options: Options) -> None:
        self.beam, self.number, self.geometry, self.options = beam, number, geometry, options
        self.unpack = Unpacker(geometry)
        self.channeliser: Channeliser | None = None
        start = mjd_of(geometry.epoch)
        if geometry.kind == VOLTAGE:
            self.channeliser = c = make_channeliser(geometry, options)
            freqs, tsamp = c.freqs, c.tsamp
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
                raise ValueError("expected a plan, or dm_max, the highest DM to search")
            self.plan = make_plan(self.observation, options.dm_max)
        if isinstance(self.plan, DMPlan):
            self.plan.check(self.observation)
        self.injector: LiveInjector | None = None
        if options.inject is not None:
            given = options.search.get("dm_constant")
            constant: float = getattr(self.plan, "dm_constant", DM_CONSTANT) if given is None else given
            self.injector = LiveInjector(
                self.observation, beam=beam, epoch=geometry.epoch, dtype=self.dtype, maximum=self.maximum,
                ignore=options.search.get("ignore", ()), dm_constant=constant, **options.inject,
            )  # fmt: skip
        self.ring = Ring(
            geometry, window=options.window, seconds=options.ring, policy=options.policy, expected=options.expected,
        )  # fmt: skip
        self.ring.growing = options.growing
        each = geometry.chunks * geometry.step_bytes
        # a gulp that exceeds a full ring would never be complete; at the start, `window` places before the first packet
        # are kept free for earlier ones, and the latest `window` places cannot be taken yet
        free = min((self.ring.places - options.window - 1) / 2, self.ring.places - 2 * options.window)
        most = max(1, int(free * geometry.nsamp))
        self._longest = min(round(options.gulp / geometry.tsamp), most)
        self.gulp = max(1, min(self._longest, GULP_BYTES // each))
        self.device: str | tuple[Device, ...] = options.search.get("device", "auto")
        self.search: StreamSearch | None = None
        self.chain: DeviceChanneliser | None = None
        self._ahead: Loan | None = None
        self._locked: PageLock | None = None
        self.unlocked = ""
        self.refused = False
        self.times = {"unpack": 0.0, "channelise": 0.0, "search": 0.0}
        self.samples = self._equal_before = self._equal_reported = 0
        self._equal_next = 0.0
        self._pending: deque[tuple[int, int, int]] = deque()
        self._samples: list[CandidateSamples] = []

    def prepare(self) -> StreamSearch:
        """Set up the search and load its kernels."""
        if self.search is None:
            o = self.observation
            size = np.dtype(self.dtype).itemsize * o.nchan
            history = HISTORY_BYTES // size if self.options.cutouts else 0
            on_gpu = self.channeliser is not None and uses_gpus(self.device)
            given: dict[str, Any] = {**self.options.search, "device": self.device}
            search = StreamSearch(
                o, self.plan, dtype=self.dtype, maximum=self.maximum, history=history,
                resident=bool(on_gpu and self.dtype == "uint8"), expected=self.options.expected // self.each, **given,
            )  # fmt: skip
            try:
                if not self.options.expected:
                    search.warm()
                if on_gpu:
                    self._channelise_on(search.engine.runtimes[0])  # pyrefly: ignore[missing-attribute]  # of GPUs
            except BaseException:
                search.close()
                raise
            self.search = search
        return self.search

    def _channelise_on(self, runtime: Runtime) -> None:
        """Use a GPU to channelise; it reads the packets from the memory of the ring."""
        from skysieve.dedispersion.stream.channelise.cuda_channeliser import DeviceChanneliser

        assert self.channeliser is not None
        each = self.geometry.chunks * self.geometry.step_bytes
        gulp = max(1, min(self._longest, DEVICE_GULP_BYTES // each))
        half = runtime.device.free_memory // 2 if runtime.xp is not np else 2**40
        self.chain = DeviceChanneliser(self.channeliser, self.geometry, runtime, max(gulp, self.gulp), half)
        self.gulp = gulp
        if self._locked is None:
            self._locked = PageLock(runtime, self.ring.fix())
            self.unlocked = self._locked.refused

    def take(self) -> Loan | None:
        """The packets for the next `step`, if a whole gulp has arrived or the stream has ended; else None."""
        if self._ahead is not None:
            loan, self._ahead = self._ahead, None
            return loan
        return self.ring.lend(self.gulp, 0)

    def step(self, loan: Loan) -> list[Candidate]:
        """Search a gulp and return the candidates that have become final.

        Raises
        ------
        DeviceLost
            A GPU failed; see `continue_without`.
        """
        search = self.prepare()
        clock = time.perf_counter()
        self.samples += loan.count
        with self._detecting_lost_gpus():
            if self.chain is not None:
                part = self._channelised(self.chain, loan)
                clock = self._timed("channelise", clock)
            elif self.channeliser is None:
                gulp = self.ring.copied(loan)
                part = gulp.start, self.unpack.power(gulp), self.unpack.rects(gulp.missing)
                clock = self._timed("unpack", clock)
            else:
                gulp = self.ring.copied(loan)
                x = self.unpack.voltages(gulp)
                clock = self._timed("unpack", clock)
                part = self.channeliser.feed(gulp.start, x, self.unpack.bands(gulp.missing))
                clock = self._timed("channelise", clock)
            if part is None:
                return []
            found = search.feed(*self._injected(*part))
        candidates = self._candidates(found)
        self._timed("search", clock)
        return candidates

    def _injected(self, start: int, rows: Any, missing: Any = ()) -> tuple[int, Any, Any]:
        """The samples with injected pulses."""
        return start, rows if self.injector is None else self.injector.add(start, rows, missing), missing

    def _channelised(self, chain: DeviceChanneliser, loan: Loan) -> tuple[int, Any, NDArray[np.int64]] | None:
        """Power of a gulp from the GPU; at the same time the next gulp, if it has arrived, is copied to the GPU."""
        if not chain.waiting:
            chain.begin(loan)
        self._ahead = self.ring.lend(self.gulp, 0)
        if self._ahead is not None:
            chain.begin(self._ahead)
        done, part = chain.end()
        self.ring.give_back(done)
        return part

    # ------------------------------------------------------------------ GPUs that fail
    @contextmanager
    def _detecting_lost_gpus(self) -> Iterator[None]:
        """Raise DeviceLost in place of the RuntimeError of a GPU that has failed."""
        try:
            yield
        except RuntimeError as error:
            failed = [r for r in getattr(self._search.engine, "runtimes", ()) if not responds(r)]
            if not failed:
                raise
            raise DeviceLost(tuple(str(r.device) for r in failed), str(error)) from error

    def continue_without(self, lost: DeviceLost) -> str:
        """Start again with the remaining GPUs, at the next packets.

        Data that have arrived but have not been searched yet are lost.  The level of 8-bit power is measured again.

        Returns
        -------
        str
            A message that says which data are lost.

        Raises
        ------
        DeviceLost
            No GPU is left.
        """
        search = self._search
        had = [r.device for r in search.engine.runtimes]  # pyrefly: ignore[missing-attribute]  # of GPUs
        left = tuple(d for d in had if str(d) not in lost.names)
        for number, low in [(c[2], c[0]) for c in self._pending]:
            self._samples.append(CandidateSamples(number, low, None))
        self._pending.clear()
        since = search.frontier
        self._equal_before += search.equal
        self._close()
        self.chain = self.search = self._ahead = None
        self.ring.take_back()
        if not left:
            raise lost
        if self.channeliser is not None:
            self.channeliser = make_channeliser(self.geometry, self.options)
        self.device = left
        until = self.ring.at * self.geometry.tsamp
        return f"{since:.3f} to {until:.3f} s are not searched; the search continues on {', '.join(map(str, left))}"

    def _close(self) -> None:
        """Free threads, and the memory of devices that still respond."""
        for part in (self.chain, self.search):
            try:
                if part is not None:
                    part.close()
            except RuntimeError as error:
                logger.warning("%s", error)

    def close(self) -> None:
        """Free everything, in any state."""
        self._close()
        if self._locked is not None:
            self._locked.close()
            self._locked = None

    def finish(self) -> list[Candidate]:
        """Search the remaining samples at the end of the segment, and return all waiting candidates."""
        if self.search is None:
            return []
        clock = time.perf_counter()
        found = []
        with self._detecting_lost_gpus():
            if self.channeliser is not None and (part := self.channeliser.finish()) is not None:
                found += self.search.feed(*self._injected(*part))
            found += self.search.finish()
            candidates = self._candidates(found, last=True)
        self._timed("search", clock)
        self.close()
        return candidates

    def _timed(self, name: str, since: float) -> float:
        now = time.perf_counter()
        self.times[name] += now - since
        return now

    def mark(self, seconds: float) -> Mark:
        """The position of a time in seconds of the searched data after sample 0."""
        late = (self.observation.tstart - mjd_of(self.geometry.epoch)) * 86400
        since = seconds + late
        return Mark(self.number, self.geometry.epoch, since, int(since / self.geometry.tsamp))

    def equal_samples_message(self) -> str:
        """A message if samples began to repeat one value since the last call, else an empty string."""
        search = self._search
        now, before = search.equal, self._equal_reported
        self._equal_reported = now
        if now == before or search.equal_since < self._equal_next:
            return ""
        self._equal_next = search.equal_since + QUIET
        return f"samples repeat one value at {search.equal_since:.3f} s; they count as lost"

    def counts(self) -> dict[str, int]:
        """The counts of the ring, and ``equal``: samples that count as lost because they repeat one value."""
        equal = self._equal_before + (0 if self.search is None else self.search.equal)
        return {**self.ring.counts(), "equal": equal}

    @property
    def seconds(self) -> float:
        """Seconds of data processed."""
        return self.samples * self.geometry.tsamp

    # ------------------------------------------------------------------ candidates
    def _candidates(self, found: Sequence[StreamCandidates], last: bool = False) -> list[Candidate]:
        """Candidates for the sink; `samples_around` returns the samples around them when these have arrived."""
        ready: list[Candidate] = []
        for one in found:
            for i in range(len(one)):
                columns = {name: values[i].item() for name, values in one.columns.items()}
                columns = {"beam": self.beam, "segment": self.number, **columns}
                top = self._top_time(columns)
                columns["injected"] = 0
                if self.injector is not None:
                    columns["injected"] = self.injector.match(top, columns["dm"], columns["snr"], columns["width"])
                number = next(NUMBERS) if self.options.cutouts else 0
                ready.append(Candidate(columns, self.observation, top, number=number, arrival=self._arrival(columns)))
                if number:
                    self._pending.append((*self._span(columns, top), number))
        while self._pending and (
            last or len(self._pending) > MOST_PENDING or self._pending[0][1] <= self._search.filled
        ):
            low, high, number = self._pending.popleft()
            self._samples.append(CandidateSamples(number, *self._search.recent(low, high)))
        return ready

    def _top_time(self, columns: dict[str, Any]) -> float:
        """Seconds of a candidate's arrival at the top of the band."""
        o = self.observation
        late = delay_seconds(o.top, columns["dm"], self._search.ref_freq, self._constant)
        return float(columns["time"] + late)

    def samples_around(self) -> list[CandidateSamples]:
        """The cut-outs made since the last call: each candidate with a number gets one."""
        ready, self._samples = self._samples, []
        return ready

    def injections(self, last: bool = False) -> list[Injection]:
        """The injected pulses whose candidates have all been returned; each pulse is returned once."""
        if self.injector is None or self.search is None:
            return []
        settled = math.inf if last else self.search.settled
        return [replace(one, beam=self.beam, segment=self.number) for one in self.injector.due(settled)]

    @property
    def _search(self) -> StreamSearch:
        assert self.search is not None
        return self.search

    @property
    def _constant(self) -> float:
        return self._search.job.dm_constant

    def _span(self, columns: dict[str, Any], top: float) -> tuple[int, int]:
        """First sample and last + 1 of a cut-out: `SIDE` half widths on both sides, and the delay of twice the DM."""
        o = self.observation
        half = SIDE * max(1, int(columns["width"] / o.tsamp) // 2)
        twice = np.array([max(2 * columns["dm"], 1.0)])
        shift = int(sample_delays(o.freqs[-1:], twice, o.tsamp, o.top, self._constant)[0, 0])
        most = HISTORY_BYTES // (np.dtype(self.dtype).itemsize * o.nchan) // 2
        centre = round(top / o.tsamp)
        return centre - half, min(centre + half + shift, centre + most)

    def _arrival(self, columns: dict[str, Any]) -> float | None:
        """`time.monotonic` when the packet with the pulse's last sample arrived; None if it is no longer known."""
        o = self.observation
        end = columns["time"] + columns["width"] / 2
        end += float(delay_seconds(o.freqs[-1], columns["dm"], self._search.ref_freq, self._constant))
        return self.ring.arrived(int(end / o.tsamp) * self.each)


def make_channeliser(geometry: Geometry, options: Options) -> Channeliser:
    """Make the channeliser of a stream of voltages."""
    g = geometry
    return Channeliser(g.fch1, g.foff, g.total, g.all_pols, g.tsamp, **options.channelise)


def uses_gpus(device: str | tuple[Device, ...]) -> bool:
    """Whether a device request means GPUs."""
    return (device if isinstance(device, tuple) else resolve(device))[0].kind == "cuda"


def responds(runtime: Runtime) -> bool:
    """Whether a GPU still works."""
    try:
        runtime.synchronize()
    except RuntimeError:
        return False
    return True
