"""The whole pipeline: a feed fills the rings of the beams, this loop searches them, the sink writes the candidates."""

from __future__ import annotations

import itertools
import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from skysieve.core.errors import DeviceLost
from skysieve.core.files import written
from skysieve.dedispersion.single_pulse.candidates import vetoed_text
from skysieve.dedispersion.stream.beams import Segment
from skysieve.dedispersion.stream.metrics import metric_values, names_of, total
from skysieve.dedispersion.stream.receive.udp import UdpReceiver
from skysieve.dedispersion.stream.records import Candidate, Mark
from skysieve.dedispersion.stream.report.previous_run import Gap, PreviousRun
from skysieve.dedispersion.stream.report.sink import GRACE, Sink
from skysieve.dedispersion.stream.search.coincidence import Coincidence

from .intake import REFUSED, Beam, Feed, Intake

IDLE = 0.005
MOST_LATENCIES = 10_000
"""Latest candidates whose latencies are in the summary: before, and at, the end of the data."""


class Pipeline:
    """Searches the data of a feed until it ends.

    Parameters
    ----------
    intake : Intake
    feed : Feed
        Started by `run`.
    sink : Sink
    receivers : sequence of UdpReceiver
        Their counts are added to those of the intake.
    coincident : float
        A candidate is flagged if more than this fraction of the beams have it at the same time.
    status : callable, optional
        Function that is called with the state every second, see `state`.
    nice : int
        Increase of the niceness of this thread and the threads that search, so that receiving has priority.  It is not
        applied if the receivers have real-time priority.
    grace : float
        Seconds at the end of the run in which pictures are drawn and triggers run.
    previous : PreviousRun, optional
        State of the previous run in the sink's folder.
    """

    def __init__(
        self, intake: Intake, feed: Feed, sink: Sink, *, receivers: Sequence[UdpReceiver] = (), coincident: float = 0.5,
        status: Callable[[dict[str, Any]], None] | None = None, nice: int = 5, grace: float = GRACE,
        previous: PreviousRun | None = None,
    ) -> None:  # fmt: skip
        self.intake, self.feed, self.sink, self.receivers = intake, feed, sink, receivers
        self.coincidence = Coincidence(coincident)
        self.status, self.nice, self.grace = status, nice, grace
        self.times = {"unpack": 0.0, "channelise": 0.0, "search": 0.0}
        self.data_seconds = 0.0
        self.latencies: list[float] = []
        self.latencies_at_end: list[float] = []
        self.previous = PreviousRun() if previous is None else previous
        self.gaps: list[Gap] = []
        self._without_gap = dict(self.previous.marks)
        self._added = self._skipped = 0
        self._ended: dict[int, float] = {}
        self._reached: dict[int, Mark] = dict(self.previous.marks)
        self._pending_marks: deque[tuple[int, dict[int, Mark]]] = deque(maxlen=1000)
        self._written_marks: dict[int, Mark] = dict(self.previous.marks)
        self._began = time.monotonic()
        self._tick = self._last_time = self._began
        self._last: dict[str, float] = {"bytes": 0.0, "data": 0.0, "busy": 0.0}
        self._state: dict[str, Any] = {}
        self._highest: dict[str, float] = {}
        self._lock = threading.Lock()

    def stop(self) -> None:
        """Take no more packets; `run` searches the packets that have arrived, and returns."""
        self.feed.stop.set()

    def run(self) -> dict[str, Any]:
        """Search until the feed ends.

        Returns
        -------
        dict
            The summary: counts, seconds and latencies.

        Raises
        ------
        Exception
            An error of the feed, the search or the sink; everything is closed.
        """
        self._began = self._tick = self._last_time = time.monotonic()
        self.feed.start()
        urgent = bool(self.receivers) and all(r.real_time for r in self.receivers)
        if self.nice and not urgent and hasattr(os, "setpriority") and hasattr(threading, "get_native_id"):
            own = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, own, min(19, os.getpriority(os.PRIO_PROCESS, own) + self.nice))
        patience, grace, whole = 5.0, 0.0, False
        try:
            while True:
                over = not self.feed.is_alive()
                worked = self._search_once()
                self._status()
                if self.sink.error is not None:
                    raise self.sink.error
                if over and not any(beam.segments for beam in self.intake.beams.values()):
                    break
                if not worked:
                    time.sleep(IDLE)
            self._emit([], last=True)
            patience, grace, whole = 120.0, self.grace, True
        finally:
            self.feed.stop.set()
            while self.feed.is_alive():  # it may wait for room in a new ring
                self.intake.end()
                self.feed.join(0.1)
            for beam in self.intake.beams.values():
                for segment in beam.segments:
                    segment.close()
            try:
                self.sink.close(patience, grace)
            except KeyboardInterrupt:
                if not whole:
                    raise
                self.sink.close(5.0, 0.0)  # all data are searched; only pictures and triggers remain
        if self.feed.error is not None:
            raise self.feed.error
        if self.sink.error is not None:
            raise self.sink.error
        self._status(last=True)
        return self.summary()

    def _search_once(self) -> bool:
        """Search a gulp of each beam that has one; return whether there was any."""
        worked = False
        for beam in list(self.intake.beams.values()):
            if not beam.segments:
                continue
            segment = beam.segments[0]
            ended = segment.ring.ended
            gulp = segment.take()
            if gulp is not None:
                if segment.refused:
                    segment.ring.give_back(gulp)
                else:
                    try:
                        self._prepare(segment)
                    except REFUSED as error:  # the other beams continue
                        self.intake.refuse(beam, segment, error)
                        segment.ring.give_back(gulp)
                    else:
                        self._emit(self._without_lost_gpus(segment, partial(segment.step, gulp)))
                        self._send_samples(segment)
                        self._send_injections(segment)
                        self._report_gap(beam, segment)
                        if segment.search is not None and (message := segment.equal_samples_message()):
                            self.intake.say(f"beam {beam.number}: {message}")
                worked = True
            elif ended:
                self._emit(self._without_lost_gpus(segment, segment.finish), over=True)
                self._send_samples(segment)
                self._send_injections(segment, last=True)
                self._report_gap(beam, segment)
                if segment.search is not None:
                    removed = segment.search.removed
                    if removed.any:
                        self.intake.say(f"beam {beam.number}: {removed.summary()}")
                    if any(segment.search.vetoed.values()):
                        self.intake.say(
                            f"beam {beam.number}: {vetoed_text({n: c for n, c in segment.search.vetoed.items() if c})}"
                        )
                    end = segment.search.stop * segment.observation.tsamp
                    self._reached[beam.number] = segment.mark(end)
                    self._ended[beam.number] = segment.observation.tstart * 86400 + end
                beam.retire()
                if segment.search is None:  # its GPUs failed at the end, and its ring is still page-locked
                    segment.close()
                for name, seconds in segment.times.items():
                    self.times[name] += seconds
                self.data_seconds += segment.seconds
                worked = True
        return worked

    def _prepare(self, segment: Segment) -> None:
        """Set up the search of a segment; meanwhile the rings of all beams may grow."""
        if segment.search is not None:
            return
        self.intake.let_rings_grow(True)
        try:
            segment.prepare()
        finally:
            self.intake.let_rings_grow(False)
        if segment.unlocked:
            self.intake.say_once(
                f"no page-locked memory ({segment.unlocked}): copies to the GPU are slower; results are the same"
            )

    def _without_lost_gpus(self, segment: Segment, work: Callable[[], list[Candidate]]) -> list[Candidate]:
        """The candidates that ``work`` returns; if GPUs fail, the segment continues with the remaining ones."""
        try:
            return work()
        except DeviceLost as error:
            self.intake.say(f"beam {segment.beam}: {error}: {segment.continue_without(error)}")
            self.intake.tally["gpus_lost"] += len(error.names)
            return []

    def _emit(self, candidates: list[Candidate], last: bool = False, over: bool = False) -> None:
        """Pass candidates through `Coincidence` to the sink.

        Latencies of candidates that the end of a beam's data releases are counted separately, because they include the
        wait for that end.
        """
        frontiers = {}
        hold = 0.0
        for number, beam in list(self.intake.beams.items()):
            if beam.segments and (search := beam.segments[0].search) is not None:
                frontiers[number] = search.observation.tstart * 86400 + search.frontier
                hold = max(hold, search.widest)
        self.coincidence.add(candidates, 2 * hold)
        for one in self.coincidence.release(frontiers, last, self._ended):
            late = math.nan if one.arrival is None else time.monotonic() - one.arrival
            one.columns["latency"] = late
            if one.arrival is not None:
                measured = self.latencies_at_end if last or over else self.latencies
                measured.append(late)
                del measured[:-MOST_LATENCIES]
            self.sink.add(one)
            self._added += 1

    def _send_samples(self, segment: Segment) -> None:
        """Pass the samples around candidates to the sink."""
        for samples in segment.samples_around():
            self.sink.add(samples)

    def _send_injections(self, segment: Segment, last: bool = False) -> None:
        """Pass injected pulses that are searched to the sink."""
        for one in segment.injections(last):
            self.sink.add_injection(one)
        if last and segment.injector is not None:
            self._skipped += segment.injector.skipped

    # ------------------------------------------------------------------ progress of the beams
    def _report_gap(self, beam: Beam, segment: Segment) -> None:
        """When the first samples of a beam are searched, report the gap since the previous run."""
        search = segment.search
        if beam.number not in self._without_gap or search is None or not search.filled > search.start >= 0:
            return
        first = segment.mark(search.start * segment.observation.tsamp)
        gap = Gap(beam.number, self._without_gap.pop(beam.number), first, self.previous.killed)
        self.gaps.append(gap)
        self.sink.add_gap(gap)

    def _mark(self) -> None:
        """Record the time up to which the candidates of each beam are on the disk."""
        for number, beam in list(self.intake.beams.items()):
            if beam.segments and (search := beam.segments[0].search) is not None and search.filled > search.start >= 0:
                segment = beam.segments[0]
                settled = min(search.settled, self.coincidence.earliest(number, segment.number))
                self._reached[number] = segment.mark(max(settled, search.start * search.observation.tsamp))
        self._pending_marks.append((self._added, dict(self._reached)))
        done = self.sink.done
        with self._lock:
            while self._pending_marks and self._pending_marks[0][0] <= done:
                self._written_marks = self._pending_marks.popleft()[1]

    def streams(self) -> dict[str, Any]:
        """Position up to which each beam is searched, and its next segment number, for the next run in the folder."""
        begun = {number: beam.next_segment for number, beam in list(self.intake.beams.items())}
        with self._lock:
            return PreviousRun.to_json({**self.previous.next_segment, **begun}, self._written_marks)

    # ------------------------------------------------------------------ numbers
    def _work(self) -> tuple[dict[str, float], float]:
        """Processing seconds of each stage, and seconds of data."""
        times, data = dict(self.times), self.data_seconds
        for beam in list(self.intake.beams.values()):
            for segment in list(beam.segments):
                data += segment.seconds
                for name, seconds in segment.times.items():
                    times[name] += seconds
        return times, data

    def counts(self) -> dict[str, int]:
        """All counters of packets."""
        found = self.intake.counts()
        for receiver in self.receivers:
            counts = receiver.counts()
            for name in names_of("receiver"):
                found[name] = found.get(name, 0) + counts[name]
        return found

    def _status(self, last: bool = False) -> None:
        now = time.monotonic()
        if now - self._tick < 1 and not last:
            return
        self._mark()
        times, data = self._work()
        counts = self.counts()
        busy, span = sum(times.values()), max(now - self._last_time, IDLE)
        worked, passed = busy - self._last["busy"], data - self._last["data"]
        segments = [s for beam in list(self.intake.beams.values()) for s in list(beam.segments)]
        fills = [s.ring.fill for s in segments]
        searches = [s.search for s in segments if s.search is not None]
        reached = [s.observation.tstart + s.frontier / 86400 for s in searches]
        reached += [end / 86400 for end in list(self._ended.values())]
        state = {
            "seconds": now - self._began, "data_seconds": data, "stages": times, "counts": counts,
            "rate": 8 * (counts["bytes"] - self._last["bytes"]) / span,
            "realtime": passed / worked if worked > 0 else 0.0, "load": worked / span,
            "ring_fill": max([*fills, *(r.fill for r in self.receivers), self.feed.fill]),
            "latency": self.latencies[-1] if self.latencies else 0.0,
            "injections_skipped": self._skipped + sum(s.injector.skipped for s in segments if s.injector is not None),
            "beams": len(self.intake.beams), "sink": dict(self.sink.counts),
            "mjd": max(reached, default=0.0),
        }  # fmt: skip
        self._tick = self._last_time = now
        self._last = {"bytes": float(counts["bytes"]), "data": data, "busy": busy}
        with self._lock:
            self._state = state
        if self.status is not None:
            self.status(state)

    def state(self) -> dict[str, Any]:
        """The latest state: counts, rates and fill levels; empty in the first second."""
        with self._lock:
            return self._state

    def metrics(self) -> dict[str, float]:
        """The latest state as metrics, by the names that Prometheus shows; see `metrics.METRICS`.

        Counters of packets never decrease, although late packets that prove to be the first of another segment are no
        longer counted as late.
        """
        values = metric_values({"sink": self.sink.counts, **self.state()})
        for name, value in values.items():
            if name.endswith("_total"):
                self._highest[name] = values[name] = max(self._highest.get(name, 0.0), value)
        return values

    def summary(self) -> dict[str, Any]:
        """The summary of the run, as in ``summary.json``."""
        times, data = self._work()
        latencies = sorted(self.latencies)
        return {
            "seconds": time.monotonic() - self._began, "data_seconds": data, "stages": times, "counts": self.counts(),
            "sink": dict(self.sink.counts), "realtime": data / max(sum(times.values()), 1e-9),
            "latency_median": latencies[len(latencies) // 2] if latencies else None,
            "latency_most": latencies[-1] if latencies else None, "latency_candidates": len(latencies),
            "end_latency_most": max(self.latencies_at_end, default=None),
            "end_latency_candidates": len(self.latencies_at_end), "gaps": [gap.row for gap in self.gaps],
        }  # fmt: skip

    def save_summary(self, summary: dict[str, Any]) -> None:
        """Write ``summary.json`` to the sink's folder; the file of an earlier run is renamed."""
        path: Path = self.sink.folder / "summary.json"
        if path.exists():
            others = (path.with_name(f"summary-{number}.json") for number in itertools.count(1))
            path.rename(next(other for other in others if not other.exists()))
        with written(path) as part:
            part.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


def live_line(state: dict[str, Any]) -> str:
    """The state as a line for the terminal."""
    c, s = state["counts"], state["sink"]
    return (
        f"{state['seconds']:6.0f} s  {state['rate'] / 1e6:7.1f} Mbit/s  {state['realtime']:5.2f} x real time  "
        f"lost {c['lost']}  late {c['late']}  duplicate {c['duplicate']}  dropped {total(c, 'dropped'):.0f}  "
        f"refused {total(c, 'refused'):.0f}  ring {state['ring_fill']:4.0%}  latency {state['latency']:.2f} s  "
        f"{s['candidates']} candidates"
    )
