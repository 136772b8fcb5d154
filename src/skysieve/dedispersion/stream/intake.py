"""From datagrams to beams: parse packets, sort them by beam, and detect restarts of senders."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from skysieve.dedispersion.data.filterbank import Filterbank
from skysieve.dedispersion.data.sigproc import BadFile
from skysieve.dedispersion.stream.beams import Segment
from skysieve.dedispersion.stream.metrics import names_of
from skysieve.dedispersion.stream.receive.dada_file import DadaHeader
from skysieve.dedispersion.stream.receive.dada_ipc import RingGone
from skysieve.dedispersion.stream.receive.dada_ring import POLL, DadaReader
from skysieve.dedispersion.stream.receive.file_source import packed_samples, source_geometry, source_steps
from skysieve.dedispersion.stream.receive.packets import LAST_SAMPLE, REASONS, Geometry, Parsed, Parser, packets
from skysieve.dedispersion.stream.receive.ring import RESTART
from skysieve.dedispersion.stream.records import Options

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.stream.receive.dada_file import DadaFile
    from skysieve.dedispersion.stream.receive.udp import UdpReceiver

BATCH, SWEEP = 512, 1024
"""Number of packets that are made from a file at a time, and of datagrams that are parsed at a time (at least a sweep
of a receiver)."""
IDLE = 0.002
MOST_REFUSED_KEYS = 10_000
"""Most headers in the list of refused ones."""
MOST_SEGMENTS = 8
"""Most segments of a beam, each with its own ring, that may wait for their search."""
MOST_BEAMS = 16
REFUSED = (ValueError, ArithmeticError, MemoryError)
"""Exceptions that mean that a stream cannot be searched."""


class HeldPackets:
    """Copies of the latest packets that may be the first ones of another stream, with the results of the parser."""

    def __init__(self) -> None:
        self.packets: deque[tuple[NDArray[np.uint8], int, int, int, NDArray[np.uint64]]] = deque(maxlen=2 * RESTART)
        self.key = b""

    def add(
        self, index: NDArray[np.int64], buffers: NDArray[np.uint8], lengths: NDArray[np.int64], found: Parsed
    ) -> None:
        """Add packets; only the latest ones are held."""
        for i in index[-2 * RESTART :]:
            row = buffers[i, : lengths[i]].copy()
            self.packets.append((row, found.number[i], found.chunk[i], found.offset[i], found.key[i].copy()))

    def take(self, beam: int) -> tuple[NDArray[np.uint8], NDArray[np.int64], Parsed]:
        """Return and forget all packets in the order of arrival: rows, lengths and results of the parser."""
        rows, number, chunk, offset, key = zip(*self.packets, strict=True)
        lengths = np.array([len(row) for row in rows], np.int64)
        buffers = np.zeros((len(rows), lengths.max()), np.uint8)
        for out, row in zip(buffers, rows, strict=True):
            out[: len(row)] = row
        self.packets.clear()
        none = np.zeros(len(rows), np.int64)
        numbers, chunks, offsets = (np.array(values, np.int64) for values in (number, chunk, offset))
        return buffers, lengths, Parsed(none, none + beam, numbers, chunks, offsets, np.array(key))


def last_start(number: NDArray[np.int64], window: int) -> int:
    """Index after the last decrease by more than ``window``, because a sender may have restarted more than once.

    >>> last_start(np.array([7, 8, 0, 2, 1, 3]), 2)
    2
    """
    first, highest = 0, -1
    for i, n in enumerate(number.tolist()):
        if n < highest - window:
            first, highest = i, n
        highest = max(highest, n)
    return first


class Beam:
    """The segments of one beam, the latest last.

    Parameters
    ----------
    number : int
        Number of the beam.
    next_segment : int
        Number of its next segment.
    """

    def __init__(self, number: int, next_segment: int = 0) -> None:
        self.number = number
        self.segments: deque[Segment] = deque()
        self.next_segment = next_segment
        self.key: NDArray[np.uint64] | None = None
        self.geometry: Geometry | None = None
        self.changed = 0
        self.strange: NDArray[np.uint64] | None = None
        self.doubted = HeldPackets()
        self.changed_packets = HeldPackets()
        self.past: dict[str, int] = {}
        self.over = False

    def begin(self, geometry: Geometry, key: NDArray[np.uint64], options: Options) -> None:
        """Begin a segment."""
        segment = Segment(self.number, self.next_segment, geometry, options)
        if self.segments:
            self.segments[-1].ring.end()
        self.geometry, self.key = geometry, key.copy()
        self.doubted.packets.clear()
        self.changed = 0
        self.strange = None
        self.over = False
        self.next_segment += 1
        self.segments.append(segment)

    def retire(self) -> None:
        """Remove the oldest segment, which has been searched; its counts are kept."""
        segment = self.segments.popleft()
        for name, value in segment.counts().items():
            self.past[name] = self.past.get(name, 0) + value

    def counts(self) -> dict[str, int]:
        """The counts of all segments."""
        total = dict(self.past)
        for segment in list(self.segments):
            for name, value in segment.counts().items():
                total[name] = total.get(name, 0) + value
        return total


class Intake:
    """Gives packets to the rings of their beams.

    Parameters
    ----------
    parser : Parser
    options : Options
    most_beams : int
        Packets of further beams are refused and counted.
    say : callable
        Function that is called with a line for the operator.
    next_segment : mapping, optional
        Number of each beam's first segment, if it is not 0.
    describe : callable
        Function that returns the text of an error for the operator.

    Attributes
    ----------
    refusal : str
        Why the packets of a stream were refused; "" if none were.
    """

    def __init__(
        self, parser: Parser, options: Options, *, most_beams: int = MOST_BEAMS, say: Callable[[str], None] = lambda
        line: None, next_segment: Mapping[int, int] | None = None, describe: Callable[[Exception], str] = str,
    ) -> None:  # fmt: skip
        self.describe = describe
        self.parser, self.options, self.most_beams, self.say = parser, options, most_beams, say
        self.next_segment = dict(next_segment or {})
        self.beams: dict[int, Beam] = {}
        self.tally = dict.fromkeys(names_of("parser", "intake"), 0)
        self._said: set[str] = set()
        self._refused_keys: set[bytes] = set()
        self.refusal = ""

    # ------------------------------------------------------------------ packets
    def take(
        self, buffers: NDArray[np.uint8], lengths: NDArray[np.int64], order: NDArray[np.int64] | None = None
    ) -> None:
        """Take the datagrams in the rows of ``buffers``, which arrived in the order of the rows, or in ``order``."""
        self.tally["packets"] += len(lengths)
        self.tally["bytes"] += int(lengths.clip(0).sum())
        found = self.parser.parse(buffers, lengths)
        status = np.where(lengths < 0, -1, found.status)
        if status.any():
            self.tally["oversized"] += int((status < 0).sum())
            for number, count in zip(*np.unique(status[status > 0], return_counts=True), strict=True):
                self.tally[REASONS[number] if number < len(REASONS) else "fields"] += int(count)
        good = np.flatnonzero(status == 0) if order is None else order[status[order] == 0]
        for number in np.unique(found.beam[good]):
            self._beam(int(number), good[found.beam[good] == number], buffers, lengths, found)

    def _beam(
        self, number: int, index: NDArray[np.int64], buffers: NDArray[np.uint8], lengths: NDArray[np.int64],
        found: Parsed,
    ) -> None:  # fmt: skip
        key = found.key
        beam = self.beams.get(number)
        if beam is None:
            if len(self.beams) >= self.most_beams:
                self.tally["refused"] += len(index)
                self.say_once(f"beam {number}: more than {self.most_beams} beams; its packets are refused")
                return
            beam = Beam(number, self.next_segment.get(number, 0))
            if not self._begin(beam, buffers[index[0]], key[index[0]]):
                self.tally["refused"] += len(index)
                return
            self.beams[number] = beam
        elif beam.over and not self._begin(beam, buffers[index[0]], key[index[0]]):
            self.tally["refused"] += len(index)
            return
        while len(index):
            stop, same, restarted = self._until_changed(beam, key[index])
            rest = self._place(beam, index[:stop][same[:stop]], buffers, lengths, found)
            if len(rest):  # a restart, recognised by the numbers
                stop, restarted = int(np.flatnonzero(index == rest[0])[0]), False
            self._hold_changed(beam, index[:stop][~same[:stop]], buffers, lengths, found)
            if restarted:
                rows, sizes, parsed = beam.changed_packets.take(number)
                new = np.arange(last_start(parsed.number, self.options.window), len(rows))
                if self._restart(beam, new, rows, sizes, parsed):
                    self.tally["changed"] -= len(new)
            index = index[stop:]

    def _until_changed(self, beam: Beam, keys: NDArray[np.uint64]) -> tuple[int, NDArray[np.bool_], bool]:
        """Find a restart of the sender with another header.

        A restart is accepted after `RESTART` consecutive packets with the same other header, in this batch and earlier
        ones.

        Returns
        -------
        stop, same, restarted
            Number of packets up to the one that proves the restart, or of all packets; a mask of the packets with the
            header of the beam; whether there is a restart.
        """
        same = np.asarray((keys == beam.key).all(axis=1))
        if same.all():
            beam.changed = 0
            return len(keys), same, False
        edge = np.ones(len(keys), bool)
        edge[1:] = (keys[1:] != keys[:-1]).any(axis=1)
        starts = np.flatnonzero(edge)
        counts = np.where(same[starts], 0, np.diff(np.append(starts, len(keys))))
        again = beam.strange is not None and np.array_equal(keys[0], beam.strange)
        before = beam.changed if again else 0
        counts[0] += before if not same[0] else 0
        enough = np.flatnonzero(counts >= RESTART)
        if len(enough):
            beam.changed = 0
            run = enough[0]
            return int(starts[run]) + RESTART - (before if run == 0 else 0), same, True
        beam.changed, beam.strange = int(counts[-1]), keys[-1].copy()
        return len(keys), same, False

    def _hold_changed(
        self, beam: Beam, index: NDArray[np.int64], buffers: NDArray[np.uint8], lengths: NDArray[np.int64],
        found: Parsed,
    ) -> None:  # fmt: skip
        """Hold packets with the latest other header: if the sender has restarted, they are the first of its stream."""
        if not len(index):
            return
        self.tally["changed"] += len(index)
        held, latest = beam.changed_packets, found.key[index[-1]]
        others = np.flatnonzero((found.key[index] != latest).any(axis=1))
        if len(others):
            index = index[others[-1] + 1 :]
        if len(others) or held.key != latest.tobytes():
            held.packets.clear()
            held.key = latest.tobytes()
        held.add(index, buffers, lengths, found)

    def _place(
        self, beam: Beam, index: NDArray[np.int64], buffers: NDArray[np.uint8], lengths: NDArray[np.int64],
        found: Parsed,
    ) -> NDArray[np.int64]:  # fmt: skip
        """Place packets of a beam in its ring; returns those after a restart that is recognised by the numbers."""
        if not len(index):
            return index
        if beam.segments[-1].refused:
            self.tally["refused"] += len(index)
            return index[:0]
        index = self._valid(beam, index, lengths, found)
        ring = beam.segments[-1].ring
        done = ring.put(buffers, index, found.number, found.chunk, found.offset)
        doubted = ring.doubted
        if doubted <= done:  # the run of doubted packets, if any, began in this batch
            beam.doubted.packets.clear()
        if doubted:
            beam.doubted.add(index[max(0, done - doubted) : done], buffers, lengths, found)
        if ring.stale:
            rows, sizes, parsed = beam.doubted.take(beam.number)
            new = np.flatnonzero(ring.closer(parsed.number))
            ring.settle(parsed.number[new], -1)
            if not self._restart(beam, new, rows, sizes, parsed):
                ring.settle(parsed.number[new], 1)
        return index[done:]

    def _valid(
        self, beam: Beam, index: NDArray[np.int64], lengths: NDArray[np.int64], found: Parsed
    ) -> NDArray[np.int64]:
        """The packets whose fields are in bounds. Compiled code does not check bounds, and a parser may be wrong."""
        g = beam.geometry
        assert g is not None
        chunk, offset, number = found.chunk[index], found.offset[index], found.number[index]
        valid = (chunk >= 0) & (chunk < g.chunks) & (offset >= 0) & (offset + g.packet_bytes <= lengths[index])
        valid &= (number >= 0) & (number <= LAST_SAMPLE // g.nsamp)
        if valid.all():
            return index
        self.tally["fields"] += int((~valid).sum())
        return index[valid]

    def _restart(
        self, beam: Beam, index: NDArray[np.int64], rows: NDArray[np.uint8], lengths: NDArray[np.int64], found: Parsed
    ) -> bool:
        """Begin a segment with the held packets ``index``; return whether that was possible."""
        if found.key[-1].tobytes() in self._refused_keys:
            return False
        if len(beam.segments) >= MOST_SEGMENTS:  # senders that alternate would fill the memory with rings
            self.say_once(
                f"beam {beam.number}: {MOST_SEGMENTS} segments already wait to be searched; no further one is started"
            )
            return False
        geometry = self.parser.geometry(rows[-1])
        if beam.geometry is not None and not geometry.same_except_epoch(beam.geometry):
            self.say_once(f"beam {beam.number}: packets of another geometry ({geometry}) are refused")
            if len(self._refused_keys) < MOST_REFUSED_KEYS:
                self._refused_keys.add(found.key[-1].tobytes())
            return False
        if not self._begin(beam, rows[-1], found.key[-1]):
            return False
        self.tally["restarts"] += 1
        self.say(f"beam {beam.number}: the sender has started again")
        self._beam(beam.number, index, rows, lengths, found)
        return True

    def _begin(self, beam: Beam, datagram: NDArray[np.uint8], key: NDArray[np.uint64]) -> bool:
        """Begin a segment; returns whether its packets can be searched."""
        name = key.tobytes()
        if name in self._refused_keys:
            return False
        try:
            beam.begin(self.parser.geometry(datagram), key, self.options)
        except REFUSED as error:
            if len(self._refused_keys) < MOST_REFUSED_KEYS:
                self._refused_keys.add(name)
            self._refuse(beam, error)
            return False
        return True

    def refuse(self, beam: Beam, segment: Segment, error: Exception) -> None:
        """Refuse a segment that cannot be searched: its packets are dropped and counted."""
        segment.refused = True
        self._refuse(beam, error)

    def _refuse(self, beam: Beam, error: Exception) -> None:
        self.refusal = f"beam {beam.number}: its packets are refused: {self.describe(error)}"
        self.say_once(self.refusal)

    def let_rings_grow(self, growing: bool) -> None:
        """Let all rings grow while a search is set up, or else only the rings of segments that wait for a search."""
        if self.options.growing:
            for beam in list(self.beams.values()):
                for segment in list(beam.segments):
                    segment.ring.growing = growing or (segment.search is None and not segment.refused)

    def say_once(self, line: str) -> None:
        """Pass a line to the operator, if it has not been passed before."""
        if line not in self._said and len(self._said) < 100:
            self._said.add(line)
            self.say(line)

    def over(self, number: int) -> None:
        """End the stream of a beam; the next packets begin a new stream, even if their header is the same."""
        beam = self.beams.get(number)
        if beam is not None:
            beam.over = True
            for segment in list(beam.segments):
                segment.ring.end()

    def end(self) -> None:
        """End all streams: no more packets will come."""
        for beam in list(self.beams.values()):
            for segment in list(beam.segments):
                segment.ring.end()

    def counts(self) -> dict[str, int]:
        """The counts of all beams, of the parser and of the intake."""
        total = dict.fromkeys(names_of("ring"), 0)
        for beam in list(self.beams.values()):
            for name, value in beam.counts().items():
                total[name] += value
        return {**total, **self.tally}


class Feed(threading.Thread, ABC):
    """A thread that feeds an intake until its data end or ``stop`` is set; ``error`` holds the error that ended it."""

    def __init__(self, intake: Intake) -> None:
        super().__init__(name="intake", daemon=True)
        self.intake = intake
        self.stop = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        """See `threading.Thread.run`."""
        try:
            self.feed()
        # Any error, also SystemExit of a user's parser: a thread that ends without one means the end of the data.
        except BaseException as error:  # noqa: BLE001 - the pipeline raises it in the main thread
            self.error = error
        finally:
            self.intake.end()

    @property
    def fill(self) -> float:
        """Fraction of the source's own ring that is in use, if it has one."""
        return 0.0

    @abstractmethod
    def feed(self) -> None:
        """Give datagrams to the intake."""


class SocketFeed(Feed):
    """Feeds the datagrams of receivers."""

    def __init__(self, intake: Intake, receivers: Sequence[UdpReceiver]) -> None:
        super().__init__(intake)
        self.receivers = receivers

    def feed(self) -> None:
        """See `Feed.feed`."""
        over = False
        while True:
            if self.stop.is_set() and not over:
                for receiver in self.receivers:
                    receiver.halt()
                over = True
            moved = 0
            for receiver in self.receivers:
                buffers, lengths = receiver.batch(SWEEP)
                if len(lengths):
                    self.intake.take(buffers, lengths, receiver.order(len(lengths)))
                    receiver.release(len(lengths))
                    moved += len(lengths)
            if moved:
                continue
            if over:
                return
            time.sleep(IDLE)


class FileFeed(Feed):
    """Feeds the samples of a file, in packets as a telescope would send them, and waits for room in the rings.

    The last packet is filled with zeros; the rings end at the last sample of the file.
    """

    def __init__(self, intake: Intake, source: Filterbank | DadaFile, packet_bytes: int = 8192) -> None:
        super().__init__(intake)
        self.source, self.packet_bytes = source, packet_bytes
        self.geometry = source_geometry(source, packet_bytes)
        intake.options = replace(intake.options, expected=source.nsamp)

    def feed(self) -> None:
        """See `Feed.feed`."""
        g = self.geometry
        for start, steps in source_steps(self.source, g, BATCH * g.nsamp, 1):
            if self.stop.is_set():
                return
            made = packets(g, steps, start)
            self.intake.take(made, np.full(len(made), made.shape[1]))
        if rest := self.source.nsamp % g.nsamp:
            start = self.source.nsamp - rest
            steps = packed_samples(self.source, g, start, rest)
            made = packets(g, np.pad(steps, ((0, g.nsamp - rest), (0, 0), (0, 0))), start)
            self.intake.take(made, np.full(len(made), made.shape[1]))


class DadaFeed(Feed):
    """Feeds the transfers of a PSRDADA ring, in packets; each transfer is a segment of one beam.

    Samples after the last whole packet of ``packet_bytes`` are left out, as with files.  If a header is not
    valid, only its transfer is lost.  If the ring is removed between transfers, the feed ends; if it is removed during
    a transfer, an error is raised.
    """

    def __init__(self, intake: Intake, reader: DadaReader, packet_bytes: int = 8192) -> None:
        super().__init__(intake)
        self.reader, self.packet_bytes = reader, packet_bytes

    @property
    def fill(self) -> float:
        """See `Feed.fill`; 0 for a ring that was removed, which `feed` reports."""
        try:
            return self.reader.data.fill
        except RingGone:
            return 0.0

    def feed(self) -> None:
        """See `Feed.feed`."""
        while not self.stop.is_set():
            try:
                text = self.reader.header(POLL)
            except RingGone as error:
                self.intake.say(f"{error}; the run ends")
                return
            if text is None:
                continue
            head, geometry = None, None
            try:
                head = DadaHeader(text, self.reader.name)
                geometry = head.geometry(self.packet_bytes)
            except (BadFile, ValueError) as error:
                self.intake.tally["fields"] += 1
                self.intake.say(f"{error}; the transfer is left out")
            if self._transfer(head, geometry):
                self.intake.over(0)

    def _transfer(self, head: DadaHeader | None, g: Geometry | None) -> bool:
        """Take the data of a transfer, and drop them if its header is not valid; return whether its end was reached."""
        data = self.reader.data
        unit = 1 if head is None or g is None else head.step * g.nsamp
        rest = np.zeros(0, np.uint8)
        sample, skip = -1, 0
        while not self.stop.is_set():
            block = data.next(POLL)
            if block is None:
                continue
            if head is not None and g is not None:
                if sample < 0:  # an earlier reader may have read the beginning
                    skip = -data.offset % unit
                    sample = (data.offset + skip) // head.step
                left = min(skip, len(block))
                skip -= left
                raw = np.concatenate([rest, block[left:]])
                whole = len(raw) // unit * unit
                for at in range(0, whole, BATCH * unit):
                    steps = head.to_packet_order(raw[at : min(at + BATCH * unit, whole)])
                    made = packets(g, steps, sample)
                    self.intake.take(made, np.full(len(made), made.shape[1]))
                    sample += len(steps)
                rest = raw[whole:]
            data.done()
            if data.last:
                self.reader.end()
                return True
        return False
