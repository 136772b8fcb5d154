"""From datagrams to beams: parse, sort by beam, watch for senders that start anew."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from skysieve.dedispersion.data.sigproc import BadFile
from skysieve.dedispersion.stream.beams import Segment
from skysieve.dedispersion.stream.receive.dada_file import DadaHeader
from skysieve.dedispersion.stream.receive.dada_ipc import RingGone
from skysieve.dedispersion.stream.receive.dada_ring import POLL, DadaReader
from skysieve.dedispersion.stream.receive.file_source import source_geometry, source_steps
from skysieve.dedispersion.stream.receive.packets import LAST_SAMPLE, REASONS, Geometry, Parsed, Parser, packets
from skysieve.dedispersion.stream.receive.ring import RESTART
from skysieve.dedispersion.stream.records import Options

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.data.filterbank import Filterbank
    from skysieve.dedispersion.stream.receive.dada_file import DadaFile
    from skysieve.dedispersion.stream.receive.udp import UdpReceiver

BATCH, SWEEP = 512, 1024
"""Packets of a file at a time; datagrams, at least as many as a receiver publishes together."""
IDLE = 0.002
MOST_HOPELESS = 10_000
MOST_SEGMENTS = 8
REFUSED = (ValueError, ArithmeticError, MemoryError)
"""Forms of packets that are remembered as useless; streams of a beam that may wait for their search, each with a ring
of its own; what is raised by streams that cannot be searched."""


class Held:
    """Copies of the latest packets that may be the first ones of another stream, with what the parser said of them."""

    def __init__(self) -> None:
        self.packets: deque[tuple[NDArray[np.uint8], int, int, int, NDArray[np.uint64]]] = deque(maxlen=2 * RESTART)
        self.key = b""

    def add(
        self, index: NDArray[np.int64], buffers: NDArray[np.uint8], lengths: NDArray[np.int64], found: Parsed
    ) -> None:
        """Hold packets; of too many, the latest."""
        for i in index[-2 * RESTART :]:
            row = buffers[i, : lengths[i]].copy()
            self.packets.append((row, found.number[i], found.chunk[i], found.offset[i], found.key[i].copy()))

    def take(self, beam: int) -> tuple[NDArray[np.uint8], NDArray[np.int64], Parsed]:
        """All of them, in the order in which they came: rows, lengths and what the parser said; none is held after."""
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
    """Place from which on numbers fall back by ``window`` at most: a sender may have started anew more than once.

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
    """What comes for one beam: segments, the latest last; ``made`` is the number of the next."""

    def __init__(self, number: int, made: int = 0) -> None:
        self.number = number
        self.segments: deque[Segment] = deque()
        self.made = made
        self.key: NDArray[np.uint64] | None = None
        self.geometry: Geometry | None = None
        self.changed = 0
        self.strange: NDArray[np.uint64] | None = None
        self.doubted = Held()
        self.changed_ones = Held()
        self.past: dict[str, int] = {}
        self.over = False

    def begin(self, geometry: Geometry, key: NDArray[np.uint64], options: Options) -> None:
        """A new segment."""
        segment = Segment(self.number, self.made, geometry, options)
        if self.segments:
            self.segments[-1].ring.end()
        self.geometry, self.key = geometry, key.copy()
        self.doubted.packets.clear()
        self.changed = 0
        self.strange = None
        self.over = False
        self.made += 1
        self.segments.append(segment)

    def retire(self) -> Segment:
        """The oldest segment is worked off: keep its counts."""
        segment = self.segments.popleft()
        for name, value in segment.counts().items():
            self.past[name] = self.past.get(name, 0) + value
        return segment

    def counts(self) -> dict[str, int]:
        """Packets of all segments."""
        total = dict(self.past)
        for segment in list(self.segments):
            for name, value in segment.counts().items():
                total[name] = total.get(name, 0) + value
        return total


class Intake:
    """Feeds the beams' rings.

    Parameters
    ----------
    parser : Parser
    options : Options
    most_beams : int
        Beams at most; packets of more are refused and counted.
    say : callable
        Takes a line for the operator.
    made : dict, optional
        Number of each beam's first segment, where it is not 0.
    """

    def __init__(
        self, parser: Parser, options: Options, *, most_beams: int = 16, say: Callable[[str], None] = lambda line: None,
        made: Mapping[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.parser, self.options, self.most_beams, self.say = parser, options, most_beams, say
        self.made = dict(made or {})
        self.beams: dict[int, Beam] = {}
        self.bad = dict.fromkeys((*REASONS[1:], "oversized", "changed", "refused", "restarts", "gpus_lost"), 0)
        self.packets = self.bytes = 0
        self._refused: set[str] = set()
        self._hopeless: set[bytes] = set()

    # ------------------------------------------------------------------ packets
    def take(
        self, buffers: NDArray[np.uint8], lengths: NDArray[np.int64], order: NDArray[np.int64] | None = None
    ) -> None:
        """Datagrams, in the rows of ``buffers``; they came in the order of the rows, or in that of ``order``."""
        self.packets += len(lengths)
        self.bytes += int(lengths.clip(0).sum())
        found = self.parser.parse(buffers, lengths)
        status = np.where(lengths < 0, -1, found.status)
        if status.any():
            self.bad["oversized"] += int((status < 0).sum())
            for number, count in zip(*np.unique(status[status > 0], return_counts=True), strict=True):
                self.bad[REASONS[number] if number < len(REASONS) else "fields"] += int(count)
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
                self.bad["refused"] += len(index)
                self.tell(f"beam {number}: more than {self.most_beams} beams; its packets are refused")
                return
            beam = Beam(number, self.made.get(number, 0))
            if not self._begin(beam, buffers[index[0]], key[index[0]]):
                self.bad["refused"] += len(index)
                return
            self.beams[number] = beam
        elif beam.over and not self._begin(beam, buffers[index[0]], key[index[0]]):
            self.bad["refused"] += len(index)
            return
        while len(index):
            stop, same, anew = self._until_changed(beam, key[index])
            rest = self._place(beam, index[:stop][same[:stop]], buffers, lengths, found)
            if len(rest):  # begun anew by its numbers
                stop, anew = int(np.flatnonzero(index == rest[0])[0]), False
            self._hold_changed(beam, index[:stop][~same[:stop]], buffers, lengths, found)
            if anew:
                rows, sizes, said = beam.changed_ones.take(number)
                new = np.arange(last_start(said.number, self.options.window), len(rows))
                if self._restart(beam, new, rows, sizes, said):
                    self.bad["changed"] -= len(new)
            index = index[stop:]

    def _until_changed(self, beam: Beam, keys: NDArray[np.uint64]) -> tuple[int, NDArray[np.bool_], bool]:
        """Packets up to one by which the stream begins anew with another header, if there is one; which are the beam's.

        That is so when `RESTART` packets in a row have the same other header, in this batch and those before.
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
        """Hold packets with the latest other header: of a sender that starts anew they are the first."""
        if not len(index):
            return
        self.bad["changed"] += len(index)
        held, latest = beam.changed_ones, found.key[index[-1]]
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
        """Packets of a beam into its ring; those after one by whose number the stream begins anew."""
        if not len(index):
            return index
        if beam.segments[-1].refused:
            self.bad["refused"] += len(index)
            return index[:0]
        index = self._inside(beam, index, lengths, found)
        ring = beam.segments[-1].ring
        done = ring.put(buffers, index, found.number, found.chunk, found.offset)
        doubted = ring.doubted
        if doubted <= done:  # the row of them has begun here, if there is one
            beam.doubted.packets.clear()
        if doubted:
            beam.doubted.add(index[max(0, done - doubted) : done], buffers, lengths, found)
        if ring.stale:
            rows, sizes, said = beam.doubted.take(beam.number)
            new = np.flatnonzero(ring.closer(said.number))
            ring.settle(said.number[new], -1)
            if not self._restart(beam, new, rows, sizes, said):
                ring.settle(said.number[new], 1)
        return index[done:]

    def _inside(
        self, beam: Beam, index: NDArray[np.int64], lengths: NDArray[np.int64], found: Parsed
    ) -> NDArray[np.int64]:
        """Packets that the ring can take: compiled code looks at no bounds, and a parser may be anybody's."""
        g = beam.geometry
        assert g is not None
        chunk, offset, number = found.chunk[index], found.offset[index], found.number[index]
        fine = (chunk >= 0) & (chunk < g.chunks) & (offset >= 0) & (offset + g.packet_bytes <= lengths[index])
        fine &= (number >= 0) & (number <= LAST_SAMPLE // g.nsamp)
        if fine.all():
            return index
        self.bad["fields"] += int((~fine).sum())
        return index[fine]

    def _restart(
        self, beam: Beam, index: NDArray[np.int64], rows: NDArray[np.uint8], lengths: NDArray[np.int64], found: Parsed
    ) -> bool:
        """Begin a stream with the packets ``index`` of those that were held; whether that could be."""
        if found.key[-1].tobytes() in self._hopeless:
            return False
        if len(beam.segments) >= MOST_SEGMENTS:  # senders that take turns: one ring after the other would fill memory
            self.tell(f"beam {beam.number}: {MOST_SEGMENTS} streams wait for their search; no other is begun now")
            return False
        geometry = self.parser.geometry(rows[-1])
        if beam.geometry is not None and not geometry.alike(beam.geometry):
            self.tell(f"beam {beam.number}: packets of another form ({geometry}) are refused")
            if len(self._hopeless) < MOST_HOPELESS:
                self._hopeless.add(found.key[-1].tobytes())
            return False
        if not self._begin(beam, rows[-1], found.key[-1]):
            return False
        self.bad["restarts"] += 1
        self.say(f"beam {beam.number}: the sender has started anew")
        self._beam(beam.number, index, rows, lengths, found)
        return True

    def _begin(self, beam: Beam, datagram: NDArray[np.uint8], key: NDArray[np.uint64]) -> bool:
        """Begin a segment; whether its packets can be searched."""
        name = key.tobytes()
        if name in self._hopeless:
            return False
        try:
            beam.begin(self.parser.geometry(datagram), key, self.options)
        except REFUSED as error:
            if len(self._hopeless) < MOST_HOPELESS:
                self._hopeless.add(name)
            self.tell(f"beam {beam.number}: its packets are refused: {error}")
            return False
        return True

    def refuse(self, beam: Beam, segment: Segment, error: Exception) -> None:
        """A segment cannot be searched: its packets are taken and thrown away, and that is told and counted."""
        segment.refused = True
        self.tell(f"beam {beam.number}: its packets are refused: {error}")

    def make_room(self, growing: bool) -> None:
        """Let all rings grow while a search is made, when nothing is taken from them; or those that wait for theirs."""
        if self.options.growing:
            for beam in list(self.beams.values()):
                for segment in list(beam.segments):
                    segment.ring.growing = growing or (segment.search is None and not segment.refused)

    def tell(self, line: str) -> None:
        """Say a thing once."""
        if line not in self._refused and len(self._refused) < 100:
            self._refused.add(line)
            self.say(line)

    def over(self, number: int) -> None:
        """The stream of a beam is over; what comes next is another one, however it looks."""
        beam = self.beams.get(number)
        if beam is not None:
            beam.over = True
            for segment in list(beam.segments):
                segment.ring.end()

    def end(self) -> None:
        """No packets any more."""
        for beam in list(self.beams.values()):
            for segment in list(beam.segments):
                segment.ring.end()

    def counts(self) -> dict[str, int]:
        """What became of all packets: those of the rings, and what was refused before."""
        total = dict.fromkeys(("accepted", "lost", "late", "duplicate", "overflow", "jump", "equal"), 0)
        for beam in list(self.beams.values()):
            for name, value in beam.counts().items():
                total[name] += value
        return {"packets": self.packets, "bytes": self.bytes, **total, **self.bad}


class Feed(threading.Thread, ABC):
    """A thread that feeds an intake until its data end or ``stop`` is set; an error waits in ``error``."""

    def __init__(self, intake: Intake) -> None:
        super().__init__(name="intake", daemon=True)
        self.intake = intake
        self.stop = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        """See `threading.Thread.run`."""
        try:
            self.feed()
        except Exception as error:  # noqa: BLE001 - handed to the main thread, which raises it
            self.error = error
        finally:
            self.intake.end()

    @property
    def fill(self) -> float:
        """Part of the source's own ring that is taken, where it has one."""
        return 0.0

    @abstractmethod
    def feed(self) -> None:
        """Give datagrams to the intake."""


class SocketFeed(Feed):
    """Datagrams from receivers."""

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
    """The samples of a file, as the packets that they would be sent in; waits for room in the rings."""

    def __init__(self, intake: Intake, source: Filterbank | DadaFile, packet_bytes: int = 8192) -> None:
        super().__init__(intake)
        self.source, self.packet_bytes = source, packet_bytes
        self.geometry = source_geometry(source, packet_bytes)

    def feed(self) -> None:
        """See `Feed.feed`."""
        g = self.geometry
        for start, steps in source_steps(self.source, g, BATCH * g.nsamp, 1):
            if self.stop.is_set():
                return
            made = packets(g, steps, start)
            self.intake.take(made, np.full(len(made), made.shape[1]))


class DadaFeed(Feed):
    """The transfers of a ring, each a segment of one beam; their samples go the way of packets.

    What a transfer has beyond whole packets of ``packet_bytes`` is left out, as with files.  A header that cannot be
    read costs its transfer alone.  A ring that is removed between transfers ends the feed, one that is removed within
    one is an error.
    """

    def __init__(self, intake: Intake, reader: DadaReader, packet_bytes: int = 8192, beam: int = 0) -> None:
        super().__init__(intake)
        self.reader, self.packet_bytes, self.beam = reader, packet_bytes, beam

    @property
    def fill(self) -> float:
        """See `Feed.fill`; 0 of a ring that has gone, which `feed` tells."""
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
                self.intake.bad["fields"] += 1
                self.intake.say(f"{error}; the transfer is left out")
            if self._transfer(head, geometry):
                self.intake.over(self.beam)

    def _transfer(self, head: DadaHeader | None, g: Geometry | None) -> bool:
        """Data until the transfer's end, for nothing where the header was not understood; whether that has come."""
        data = self.reader.data
        unit = 1 if head is None or g is None else head.step * g.nsamp
        rest = np.zeros(0, np.uint8)
        sample, skip = -1, 0
        while not self.stop.is_set():
            block = data.next(POLL)
            if block is None:
                continue
            if head is not None and g is not None:
                if sample < 0:  # a reader before us may have had the beginning
                    skip = -data.offset % unit
                    sample = (data.offset + skip) // head.step
                left = min(skip, len(block))
                skip -= left
                raw = np.concatenate([rest, block[left:]])
                whole = len(raw) // unit * unit
                for at in range(0, whole, BATCH * unit):
                    steps = head.arranged(raw[at : min(at + BATCH * unit, whole)])
                    made = packets(g, steps, sample, self.beam)
                    self.intake.take(made, np.full(len(made), made.shape[1]))
                    sample += len(steps)
                rest = raw[whole:]
            data.done()
            if data.last:
                self.reader.end()
                return True
        return False
