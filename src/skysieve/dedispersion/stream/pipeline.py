"""The whole pipeline: feeds fill the beams' rings, this loop searches, the sink keeps what is found."""

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
from skysieve.dedispersion.stream.beams import Segment
from skysieve.dedispersion.stream.receive.udp import UdpReceiver
from skysieve.dedispersion.stream.records import Mark, Row
from skysieve.dedispersion.stream.report.earlier import Earlier, Gap
from skysieve.dedispersion.stream.report.sink import GRACE, Sink
from skysieve.dedispersion.stream.search.coincidence import Coincidence

from .intake import REFUSED, Beam, Feed, Intake

IDLE = 0.005
COUNTERS = {
    "packets": "Datagrams received.", "bytes": "Their bytes.", "accepted": "Packets that were used.",
    "lost": "Packets that had not come when their time was searched.", "late": "Packets that came too late.",
    "duplicate": "Packets that came twice.", "overflow": "Packets for which a beam's ring had no room.",
    "jump": "Packets that lay too far ahead.", "short": "Datagrams too short for a header.",
    "foreign": "Datagrams of another format.", "version": "Packets of another version.",
    "length": "Packets whose length was not what they said.", "fields": "Packets with impossible headers.",
    "oversized": "Datagrams too long.", "changed": "Packets whose header differed from the stream's.",
    "refused": "Packets of streams that cannot be searched.", "restarts": "Senders that started anew.",
    "datagrams": "Datagrams read from sockets.", "ring_overflow": "Datagrams for which the receiver had no room.",
    "kernel_drops": "Datagrams that the kernel dropped.", "gpus_lost": "GPUs that failed.",
    "equal": "Samples, each channel's, that repeat one value and count as lost.",
}  # fmt: skip


class Pipeline:
    """Runs until its feeds end.

    Parameters
    ----------
    intake : Intake
    feed : Feed
        Started by `run`.
    sink : Sink
    receivers : sequence of UdpReceiver
        For their counts.
    part : float
        Of the beams that see a candidate for it to be flagged.
    status : callable, optional
        Takes the state every second, see `state`.
    nice : int
        Added to the niceness of this thread and those that search, so that receiving goes first; not where the
        receivers have real-time priority.
    grace : float
        Seconds at the end for pictures to be drawn and triggers to run.
    earlier : Earlier, optional
        What the run before left in the sink's folder.
    """

    def __init__(
        self, intake: Intake, feed: Feed, sink: Sink, *, receivers: Sequence[UdpReceiver] = (), part: float = 0.5,
        status: Callable[[dict[str, Any]], None] | None = None, nice: int = 5, grace: float = GRACE,
        earlier: Earlier | None = None,
    ) -> None:  # fmt: skip
        self.intake, self.feed, self.sink, self.receivers = intake, feed, sink, receivers
        self.coincidence = Coincidence(part)
        self.status, self.nice, self.grace = status, nice, grace
        self.times = {"unpack": 0.0, "channelise": 0.0, "search": 0.0}
        self.data_seconds = 0.0
        self.latencies: list[float] = []
        self.earlier = Earlier() if earlier is None else earlier
        self.gaps: list[Gap] = []
        self._unnamed = dict(self.earlier.marks)
        self._added = 0
        self._ended: dict[int, float] = {}
        self._reached: dict[int, Mark] = dict(self.earlier.marks)
        self._unsure: deque[tuple[int, dict[int, Mark]]] = deque(maxlen=1000)
        self._sure: dict[int, Mark] = dict(self.earlier.marks)
        self._began = time.monotonic()
        self._tick = self._last_time = self._began
        self._last: dict[str, float] = {"bytes": 0.0, "data": 0.0, "busy": 0.0}
        self._state: dict[str, Any] = {}
        self._shown: dict[str, float] = {}
        self._lock = threading.Lock()

    def stop(self) -> None:
        """Take no more packets; search what has come."""
        self.feed.stop.set()

    def run(self) -> dict[str, Any]:
        """Until the feed ends.

        Returns
        -------
        dict
            Counts, seconds and what was found.

        Raises
        ------
        Exception
            What went wrong in the feed or the search; everything is closed.
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
                worked = self._turn()
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
            while self.feed.is_alive():  # it may have begun a ring since, and wait for room in it
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
                self.sink.close(5.0, 0.0)  # all is searched: what remains are pictures and triggers
        if self.feed.error is not None:
            raise self.feed.error
        if self.sink.error is not None:
            raise self.sink.error
        self._status(last=True)
        return self.summary()

    def _turn(self) -> bool:
        """A gulp of each beam that has one; whether there was any."""
        worked = False
        for beam in list(self.intake.beams.values()):
            if not beam.segments:
                continue
            segment = beam.segments[0]
            ended = segment.ring.ended
            gulp = segment.take()
            if gulp is not None:
                if segment.refused:
                    segment.drop(gulp)
                else:
                    try:
                        self._prepare(segment)
                    except REFUSED as error:  # one beam's headers must not end the search of the others
                        self.intake.refuse(beam, segment, error)
                        segment.drop(gulp)
                    else:
                        self._emit(self._watched(segment, partial(segment.step, gulp)))
                        self._cut(segment)
                        self._name_gap(beam, segment)
                        if segment.search is not None and (news := segment.news()):
                            self.intake.say(f"beam {beam.number}: {news}")
                worked = True
            elif ended:
                self._emit(self._watched(segment, segment.finish), over=True)
                self._cut(segment)
                self._name_gap(beam, segment)
                if segment.search is not None:
                    end = segment.search.stop * segment.observation.tsamp
                    self._reached[beam.number] = segment.mark(end)
                    self._ended[beam.number] = segment.observation.tstart * 86400 + end
                beam.retire()
                if segment.search is None:  # its GPUs failed at the end: its ring is page-locked still
                    segment.close()
                for name, seconds in segment.times.items():
                    self.times[name] += seconds
                self.data_seconds += segment.seconds
                worked = True
        return worked

    def _prepare(self, segment: Segment) -> None:
        """Make a segment's search; packets that come meanwhile, for any beam, find rings that grow."""
        if segment.search is not None:
            return
        self.intake.make_room(True)
        try:
            segment.prepare()
        finally:
            self.intake.make_room(False)
        if segment.slow:
            self.intake.tell(
                f"no page-locked memory ({segment.slow}): copies to the GPU are slower; what is found is the same"
            )

    def _watched(self, segment: Segment, work: Callable[[], list[Row]]) -> list[Row]:
        """Rows; where GPUs fail in the work, it goes on with those that are left, and what is lost is told."""
        try:
            return work()
        except DeviceLost as error:
            self.intake.say(f"beam {segment.beam}: {error}: {segment.go_on(error)}")
            self.intake.bad["gpus_lost"] += len(error.names)
            return []

    def _emit(self, rows: list[Row], last: bool = False, over: bool = False) -> None:
        """Candidates through the coincidence to the sink; after the end of a stream they tell nothing of latency."""
        frontiers = {}
        hold = 0.0
        for number, beam in list(self.intake.beams.items()):
            if beam.segments and (search := beam.segments[0].search) is not None:
                frontiers[number] = search.observation.tstart * 86400 + search.frontier
                hold = max(hold, search.widest)
        self.coincidence.add(rows, 2 * hold)
        for row in self.coincidence.release(frontiers, last, self._ended):
            late = math.nan if row.when is None else time.monotonic() - row.when
            row.columns["latency"] = late
            if not (last or over) and row.when is not None:
                self.latencies.append(late)
                del self.latencies[:-10_000]
            self.sink.add(row)
            self._added += 1

    def _cut(self, segment: Segment) -> None:
        """The samples around candidates to the sink."""
        for cut in segment.cuts():
            self.sink.add_cut(cut)

    # ------------------------------------------------------------------ how far
    def _name_gap(self, beam: Beam, segment: Segment) -> None:
        """When a beam's first samples are searched: what lies between the run before and them."""
        search = segment.search
        if beam.number not in self._unnamed or search is None or not search.filled > search.start >= 0:
            return
        first = segment.mark(search.start * segment.observation.tsamp)
        gap = Gap(beam.number, self._unnamed.pop(beam.number), first, self.earlier.killed)
        self.gaps.append(gap)
        self.sink.add_gap(gap)

    def _mark(self) -> None:
        """Up to where the candidates of each beam are on the disk."""
        for number, beam in list(self.intake.beams.items()):
            if beam.segments and (search := beam.segments[0].search) is not None and search.filled > search.start >= 0:
                segment = beam.segments[0]
                settled = min(search.settled, self.coincidence.earliest(number, segment.number))
                self._reached[number] = segment.mark(max(settled, search.start * search.observation.tsamp))
        self._unsure.append((self._added, dict(self._reached)))
        done = self.sink.done
        with self._lock:
            while self._unsure and self._unsure[0][0] <= done:
                self._sure = self._unsure.popleft()[1]

    def streams(self) -> dict[str, Any]:
        """How far each beam is searched, and the number of its next segment, for the run that comes after this one."""
        made = {**self.earlier.made, **{number: beam.made for number, beam in list(self.intake.beams.items())}}
        with self._lock:
            return Earlier.written(made, self._sure)

    # ------------------------------------------------------------------ numbers
    def _work(self) -> tuple[dict[str, float], float]:
        """Seconds of each stage, and of data."""
        times, data = dict(self.times), self.data_seconds
        for beam in list(self.intake.beams.values()):
            for segment in list(beam.segments):
                data += segment.seconds
                for name, seconds in segment.times.items():
                    times[name] += seconds
        return times, data

    def counts(self) -> dict[str, int]:
        """All counters."""
        total = self.intake.counts()
        for receiver in self.receivers:
            for name, value in receiver.counts().items():
                if name != "oversized":
                    total[name] = total.get(name, 0) + value
        return total

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
        state = {
            "seconds": now - self._began, "data_seconds": data, "stages": times, "counts": counts,
            "rate": 8 * (counts["bytes"] - self._last["bytes"]) / span,
            "realtime": passed / worked if worked > 0 else 0.0, "load": worked / span,
            "ring_fill": max([*fills, *(r.fill for r in self.receivers), self.feed.fill]),
            "latency": self.latencies[-1] if self.latencies else 0.0,
            "beams": len(self.intake.beams), "sink": dict(self.sink.counts),
            "mjd": max(
                (s.observation.tstart + s.frontier / 86400 for s in searches), default=self._state.get("mjd", 0.0)
            ),
        }  # fmt: skip
        self._tick = self._last_time = now
        self._last = {"bytes": float(counts["bytes"]), "data": data, "busy": busy}
        with self._lock:
            self._state = state
        if self.status is not None:
            self.status(state)

    def state(self) -> dict[str, Any]:
        """The latest state; empty in the first second."""
        with self._lock:
            return self._state

    def metrics(self) -> dict[str, tuple[str, str, float]]:
        """For Prometheus."""
        state = self.state()
        counts = state.get("counts", {})
        found: dict[str, tuple[str, str, float]] = {}
        for name, words in COUNTERS.items():  # packets that are found to be another stream's first are late no more
            self._shown[name] = max(self._shown.get(name, 0.0), float(counts.get(name, 0)))
            found[f"{name}_total"] = (words, "counter", self._shown[name])
        for name, value in state.get("sink", self.sink.counts).items():
            found[f"sink_{name}_total"] = (f"Sink: {name.replace('_', ' ')}.", "counter", float(value))
        for name, words in (
            ("rate", "Bits received a second."), ("realtime", "Seconds of data for a second of work."),
            ("ring_fill", "Part of the fullest ring that is taken."), ("beams", "Beams."),
            ("latency", "Seconds from a pulse's last sample to its candidate, the latest."),
            ("data_seconds", "Seconds of data searched."), ("mjd", "Time up to which the data are searched."),
            ("load", "Seconds of work in a second of the clock."),
        ):  # fmt: skip
            found[name] = (words, "gauge", float(state.get(name, 0.0)))
        return found

    def summary(self) -> dict[str, Any]:
        """What was done, for people and for ``summary.json``."""
        times, data = self._work()
        latencies = sorted(self.latencies)
        return {
            "seconds": time.monotonic() - self._began, "data_seconds": data, "stages": times, "counts": self.counts(),
            "sink": dict(self.sink.counts), "realtime": data / max(sum(times.values()), 1e-9),
            "latency_median": latencies[len(latencies) // 2] if latencies else None,
            "latency_most": latencies[-1] if latencies else None, "gaps": [gap.columns for gap in self.gaps],
        }  # fmt: skip

    def save_summary(self, summary: dict[str, Any]) -> None:
        """Into the sink's folder; that of an earlier run is kept under another name."""
        path: Path = self.sink.folder / "summary.json"
        if path.exists():
            others = (path.with_name(f"summary-{number}.json") for number in itertools.count(1))
            path.rename(next(other for other in others if not other.exists()))
        with written(path) as part:
            part.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


def live_line(state: dict[str, Any]) -> str:
    """The state in a line."""
    c, s = state["counts"], state["sink"]
    bad = sum(
        c[name] for name in ("short", "foreign", "version", "length", "fields", "oversized", "changed", "refused")
    )
    over = c["overflow"] + c.get("ring_overflow", 0)
    return (
        f"{state['seconds']:6.0f} s  {state['rate'] / 1e6:7.1f} Mbit/s  {state['realtime']:5.2f} x real time  "
        f"lost {c['lost']}  late {c['late']}  double {c['duplicate']}  over {over}  bad {bad}  "
        f"ring {state['ring_fill']:4.0%}  latency {state['latency']:.2f} s  {s['candidates']} candidates"
    )
