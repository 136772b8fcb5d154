"""The packets of one beam in the order of time: placed by their number, taken in gulps of any length.

Whether a packet is lost, late, a duplicate or out of bounds depends only on the order of arrival, so that the counts
are exact and can be predicted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.checks import one_of
from skysieve.core.cpu.jit import interpreted_if_small
from skysieve.core.errors import MemoryBudgetError
from skysieve.core.memory import available_host_memory
from skysieve.dedispersion.data.sigproc import unpack_table
from skysieve.dedispersion.stream.records import POLICIES, Policy

from .cpu_ring import (
    ACCEPTED,
    DUPLICATE,
    HELD,
    HIGHEST,
    JUMP,
    LATE,
    OPEN,
    OVERFLOW,
    PACKET_STEPS,
    STALE,
    START,
    STATE,
    WHOLE,
    nibbles,
    order_falling,
    place,
)
from .packets import POWER, Geometry

if TYPE_CHECKING:
    from numpy.typing import NDArray

RESTART = 256
"""Number of consecutive packets that must indicate a restart of the sender before it is accepted."""
MOST_SECONDS = 60.0
"""Most seconds of data in a ring that grows."""
LARGEST_VOLTAGE = 1e12
"""Sums of squared powers of larger voltages would exceed the range of floats."""


@dataclass(frozen=True)
class Gulp:
    """Consecutive samples of one beam.

    Attributes
    ----------
    start : int
        Number of the first sample.
    data : numpy.ndarray, shape (packets, chunks, samples, bytes)
        Packets as received; packets that did not arrive hold old bytes.
    first : int
        Number of the first packet's first sample, at most ``start``.
    count : int
        Samples.
    missing : numpy.ndarray of int64, shape (n, 4)
        Missing rectangles: first sample, last + 1, first chunk, last + 1; sample numbers are counted as in ``start``.
    """

    start: int
    data: NDArray[np.uint8]
    first: int
    count: int
    missing: NDArray[np.int64]


@dataclass(frozen=True)
class Loan:
    """Samples of one beam in the memory of the ring, to be returned with `Ring.give_back`.

    Attributes
    ----------
    start, first, count, missing
        As in `Gulp`.
    received : numpy.ndarray of bool, shape (packets, chunks)
        Which packets arrived.
    pieces : list of numpy.ndarray of uint8, shape (packets, chunks, bytes)
        Parts of the ring in the order of time; packets after their end did not arrive.
    done, count_received : int
        First packet number that is still needed after the loan; number of packets before it that arrived.
    """

    start: int
    first: int
    count: int
    missing: NDArray[np.int64]
    received: NDArray[np.bool_]
    pieces: list[NDArray[np.uint8]]
    done: int
    count_received: int


class Ring:
    """The ring of packets of one beam.

    Parameters
    ----------
    geometry : Geometry
    window : int
        A packet may arrive after others that are up to this many places ahead of it.
    seconds : float
        Seconds of data for which there is room.
    longest_gap : float
        Packets more than this many seconds ahead of the latest one are not accepted.
    policy : {"drop", "block"}
        When the ring is full, packets are dropped and counted ("drop"), or `put` waits ("block").  In both cases `put`
        waits after a gap that is longer than the ring, until the gap has been taken.
    expected : int
        Number of samples of a source that can wait, as a file does; otherwise 0.  Samples after these only fill the
        last packet, and are not taken.  A small number of packets of such a source is placed without compiled code.

    Attributes
    ----------
    growing : bool
        Whether the ring doubles when it is half full, up to `MOST_SECONDS` of data and a quarter of the free memory.
        This is set while a search is set up, when no gulps are taken.  The ring shrinks again when its contents fit.
    fixed : bool
        Whether the memory of the ring does not change any more, see `fix`.
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        window: int = 8,
        seconds: float = 2.0,
        longest_gap: float = 60.0,
        policy: Policy = "drop",
        expected: int = 0,
    ) -> None:
        one_of("policy", policy, POLICIES)
        if window < 0:
            raise ValueError(f"window={window}: expected a number of packets, at least 0")
        if not seconds > 0:
            raise ValueError(f"seconds={seconds!r}: expected seconds, above 0")
        g = self.geometry = geometry
        budget = available_host_memory() // 2
        if not seconds * g.rate + 4 * (2 * window + 4) * g.chunks * g.packet_bytes < budget:
            raise MemoryBudgetError(f"{seconds:g} s of {g.total} channels every {g.tsamp:g} s",
                                    int(min(seconds * g.rate, 2.0**62)), budget)  # fmt: skip
        each = g.nsamp * g.tsamp
        self.window, self.policy, self.expected = window, policy, expected
        self.places = max(2 * window + 4, int(seconds / each) + 1)
        self.most_jump = max(window + 1, int(min(longest_gap / each, 2**62)))
        self.ring = np.zeros((self.places, g.chunks, g.packet_bytes), np.uint8)
        self.seen = np.zeros((self.places, g.chunks), np.int64)
        self.state = np.zeros(STATE, np.int64)
        self.state[HIGHEST] = -1
        self.at = -1
        self.lost = 0
        self.ended = False
        self.growing = self.fixed = False
        self._places = self.places
        self._ready = threading.Condition()
        self._arrivals: deque[tuple[int, float]] = deque(maxlen=4096)

    # ------------------------------------------------------------------ in
    def put(
        self, buffers: NDArray[np.uint8], index: NDArray[np.int64], number: NDArray[np.int64], chunk: NDArray[np.int64],
        offset: NDArray[np.int64],
    ) -> int:  # fmt: skip
        """Place the datagrams ``index`` of ``buffers``; with the policy "block" this waits for room.

        Returns the number of processed datagrams: all of them, unless the sender seems to have restarted, see `stale`.
        """
        begin, run = 0, place
        if self.expected:
            run = interpreted_if_small(run, PACKET_STEPS * len(index))
        with self._ready:
            self._shrink()
            if self._roomy() and 2 * self.state[HELD] >= self.places * self.geometry.chunks:
                self._move(2 * self.places)
            while begin < len(index) and not self.ended:
                roomy = self._roomy()
                begin = run(
                    buffers, begin, index, number, chunk, offset, self.window, self.most_jump, RESTART,
                    self.policy == "drop" and not roomy, self.ring, self.seen, self.state,
                )  # fmt: skip
                end = (int(self.state[HIGHEST]) + 1) * self.geometry.nsamp
                if not self._arrivals or self._arrivals[-1][0] < end:
                    self._arrivals.append((end, time.monotonic()))
                self._ready.notify_all()
                if self.stale:
                    return begin
                if begin < len(index):
                    if roomy:
                        self._move(2 * self.places)
                    else:
                        self._ready.wait(0.1)
        return len(index)

    def _roomy(self) -> bool:
        """Whether the ring may double."""
        if not self.growing or self.fixed:
            return False
        g = self.geometry
        size = 2 * self.places * g.chunks * g.packet_bytes
        return 2 * self.places * g.nsamp * g.tsamp <= MOST_SECONDS and size <= available_host_memory() // 4

    def _shrink(self) -> None:
        """Return to the first size, if the contents take at most half of it."""
        held = self.state[HIGHEST] + 1 - self.state[OPEN]
        if self.places > self._places and not (self.growing or self.fixed) and held <= self._places // 2:
            self._move(self._places)

    def _move(self, places: int) -> None:
        """Copy the contents to a ring of another size; loans keep the old memory."""
        opened, highest = int(self.state[OPEN]), int(self.state[HIGHEST])
        low = max(0, min(opened, highest - self.window))  # duplicates of packets that were taken may still arrive
        numbers = np.arange(low, min(highest + 1, opened + self.places))
        old, new = numbers % self.places, numbers % places
        marks = self.seen[old]
        marks[marks != numbers[:, None] + 1] = 0
        ring = np.zeros((places, *self.ring.shape[1:]), np.uint8)
        seen = np.zeros((places, self.seen.shape[1]), np.int64)
        seen[new] = marks
        some = marks.any(axis=1)
        ring[new[some]] = self.ring[old[some]]
        self.ring, self.seen, self.places = ring, seen, places

    @property
    def stale(self) -> bool:
        """Whether `RESTART` consecutive packets were late or far ahead, so that they must belong to another stream."""
        return bool(self.state[STALE] >= RESTART)

    @property
    def doubted(self) -> int:
        """Number of consecutive packets, up to the latest, that were late or far ahead."""
        return int(self.state[STALE])

    def closer(self, number: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Mask of the doubted packets that are closer to the last of them than to this ring's latest packet."""
        found: NDArray[np.bool_] = np.abs(number - number[-1]) <= np.abs(number - self.state[HIGHEST])
        return found

    def settle(self, number: NDArray[np.int64], sign: int) -> None:
        """Forget the doubted packets; subtract those with these numbers from the counts (-1), or add them (1)."""
        with self._ready:
            far = int((number > self.state[HIGHEST]).sum())
            self.state[LATE] += sign * (len(number) - far)
            self.state[JUMP] += sign * far
            self.state[STALE] = 0

    def end(self) -> None:
        """Mark the end of the packets, so that all samples can be taken."""
        with self._ready:
            self.ended = True
            self._ready.notify_all()

    def fix(self) -> NDArray[np.uint8]:
        """The memory of the ring, which does not change from now on."""
        with self._ready:
            self.fixed = True
            return self.ring

    # ------------------------------------------------------------------ out
    @property
    def closed(self) -> int:
        """First sample that may still arrive; all samples before it can be taken.

        Complete samples need not wait for the window, except at the start, because the first packet may not be the
        earliest.
        """
        highest = int(self.state[HIGHEST])
        if highest < 0:
            return 0
        sure = max(0, highest - self.window) if self.at < 0 else max(int(self.state[WHOLE]), highest - self.window)
        closed = (highest + 1 if self.ended else sure) * self.geometry.nsamp
        return min(closed, self.expected) if self.expected else closed

    @property
    def fill(self) -> float:
        """Fraction of the ring that is in use."""
        return (
            float(max(0, self.state[HIGHEST] + 1 - self.state[OPEN]) / self.places) if self.state[HIGHEST] >= 0 else 0.0
        )

    def take(self, count: int, timeout: float = 0.1) -> Gulp | None:
        """The next ``count`` samples, fewer at the end; None if they do not arrive within ``timeout`` seconds."""
        loan = self.lend(count, timeout)
        return None if loan is None else self.copied(loan)

    def copied(self, loan: Loan) -> Gulp:
        """Copy a loan, and give it back."""
        data = np.concatenate(loan.pieces) if len(loan.pieces) > 1 else loan.pieces[0].copy()
        more = len(loan.received) - len(data)
        if more:
            data = np.concatenate([data, np.zeros((more, *data.shape[1:]), np.uint8)])
        self.give_back(loan)
        return Gulp(loan.start, data, loan.first, loan.count, loan.missing)

    def lend(self, count: int, timeout: float = 0.1) -> Loan | None:
        """As `take`, without a copy: the places do not change until they are given back."""
        with self._ready:
            if not self._ready.wait_for(lambda: self._enough(count) or self.ended, timeout) and not self._enough(count):
                return None
            self._begin()
            n = min(count, self.closed - self.at) if self.at >= 0 else 0
            if n <= 0:
                return None
            start, nsamp = self.at, self.geometry.nsamp
            a, b = start // nsamp, -(-(start + n) // nsamp)
            # places before `closed` change no more, and are not reused before OPEN has passed them
            ring, marks, places = self.ring, self.seen, self.places
            held = max(a, min(b, int(self.state[OPEN]) + places))  # a gap may be longer than the ring
        low, high = a % places, a % places + held - a
        cuts = [slice(low, min(high, places))] + ([slice(0, high - places)] if high > places else [])
        pieces = [ring[cut] for cut in cuts]
        seen = np.concatenate([marks[cut] for cut in cuts])
        received = np.zeros((b - a, self.geometry.chunks), bool)
        received[: held - a] = seen == np.arange(a, held)[:, None] + 1
        missing = self._missing(received, a, start, start + n)
        with self._ready:
            self.at += n
            done = self.at // nsamp
            complete = received[: done - a]
            count_received = int(complete.sum())
            self.lost += int(complete.size) - count_received
        return Loan(start, a * nsamp, n, missing, received, pieces, done, count_received)

    def give_back(self, loan: Loan) -> None:
        """Let the places of a loan be used again; loans are given back in the order in which they were made."""
        with self._ready:
            self.state[OPEN] = loan.done
            self.state[HELD] -= loan.count_received
            self._ready.notify_all()

    def take_back(self) -> None:
        """Let the places of all loans be used again, because they will not be given back."""
        with self._ready:
            done = self.at // self.geometry.nsamp if self.at >= 0 else int(self.state[OPEN])
            gone = np.arange(int(self.state[OPEN]), min(done, int(self.state[OPEN]) + self.places))
            slots = gone % self.places
            self.state[HELD] -= int((self.seen[slots] == gone[:, None] + 1).sum())
            self.state[OPEN] = done
            self._ready.notify_all()

    def _enough(self, count: int) -> bool:
        if self.state[HIGHEST] < 0:
            return False
        at = self.at if self.at >= 0 else int(self.state[START]) * self.geometry.nsamp
        return self.closed - at >= count

    def _begin(self) -> None:
        if self.at < 0 and self.state[HIGHEST] >= 0:
            self.at = int(self.state[START]) * self.geometry.nsamp
            self.state[OPEN] = self.state[START]

    def _missing(self, received: NDArray[np.bool_], first: int, low: int, high: int) -> NDArray[np.int64]:
        """Missing rectangles: consecutive times at which all chunks are missing are joined, single chunks are not."""
        if received.all():
            return np.empty((0, 4), np.int64)
        nsamp, chunks = self.geometry.nsamp, self.geometry.chunks
        none: NDArray[np.bool_] = np.asarray(~received.any(axis=1))
        edges = np.flatnonzero(np.diff(np.concatenate([[False], none, [False]]).astype(np.int8)))
        runs = edges.reshape(-1, 2)
        whole = np.stack([runs[:, 0], runs[:, 1], np.zeros(len(runs), int), np.full(len(runs), chunks)], axis=1)
        t, c = np.nonzero(~received & ~none[:, None])
        some = np.stack([t, t + 1, c, c + 1], axis=1)
        rects = np.concatenate([whole, some]).astype(np.int64)
        rects[:, :2] = np.clip((rects[:, :2] + first) * nsamp, low, high)
        return rects[rects[:, 0] < rects[:, 1]]

    def arrived(self, sample: int) -> float | None:
        """`time.monotonic` when the first packet past a sample arrived; None if it is no longer known."""
        with self._ready:
            return next((when for end, when in self._arrivals if end >= sample), None)

    def counts(self) -> dict[str, int]:
        """Counts of packets so far; ``lost`` counts packets that had not arrived when their samples were taken."""
        return {
            "accepted": int(self.state[ACCEPTED]), "late": int(self.state[LATE]),
            "duplicate": int(self.state[DUPLICATE]), "overflow": int(self.state[OVERFLOW]),
            "jump": int(self.state[JUMP]), "lost": self.lost,
        }  # fmt: skip


class Unpacker:
    """Turns the bytes of packets into samples.

    Power: rows, shape (samples, channels), in falling order of frequency.  Voltages: complex64, shape (samples,
    polarisations, channels), in the order of the band.
    """

    def __init__(self, geometry: Geometry) -> None:
        g = self.geometry = geometry
        self.flip = g.foff > 0
        if g.kind == POWER:
            if g.all_pols == 2 and g.bits == 16:
                raise ValueError("bits=16, pols=2: sums of two polarisations would exceed 16 bits")
            wide = 2 if g.bits == 16 or (g.bits == 8 and g.all_pols == 2) else 1
            self.dtype = np.dtype(np.float32 if g.bits == 32 else np.uint16 if wide == 2 else np.uint8)
            self.maximum = 0 if g.bits == 32 else g.all_pols * (2**g.bits - 1)
            self._table = unpack_table(g.bits, "little") if g.bits < 8 else None

    def power(self, gulp: Gulp) -> NDArray[Any]:
        """The power of a gulp as rows."""
        g = self.geometry
        n, low = len(gulp.data), gulp.start - gulp.first
        raw = gulp.data.reshape(n, g.chunks, g.nsamp, g.pols, -1)
        if self._table is not None:
            x = self._table[raw].reshape(*raw.shape[:4], -1)
        else:
            x = raw.view({8: "u1", 16: "<u2", 32: "<f4"}[g.bits])
        lines = x.transpose(0, 2, 3, 1, 4).reshape(n * g.nsamp, g.pols, g.total)[low : low + gulp.count]
        rows = lines[:, 0] if g.pols == 1 else lines.sum(axis=1, dtype=self.dtype)
        if self.flip:
            out = np.empty(rows.shape, self.dtype)
            order_falling(rows, out)
            return out
        return np.ascontiguousarray(rows, self.dtype)

    def voltages(self, gulp: Gulp) -> NDArray[np.complex64]:
        """The voltages of a gulp; 0 where packets are missing."""
        g = self.geometry
        n, low = len(gulp.data), gulp.start - gulp.first
        raw = gulp.data.reshape(n, g.chunks, g.nsamp, g.pols, -1)
        if g.bits == 4:
            flat = np.empty(2 * raw.size, np.float32)
            nibbles((raw ^ np.uint8(0x88) if g.offset_binary else raw).reshape(-1), flat)
            x = flat.reshape(*raw.shape[:4], -1).view(np.complex64)
        elif g.bits == 8:
            signed = (raw ^ np.uint8(0x80) if g.offset_binary else raw).view(np.int8)
            x = signed.astype(np.float32).view(np.complex64)
        else:
            real = raw.view("<f4").astype(np.float32)
            real[~(np.abs(real) < LARGEST_VOLTAGE)] = 0  # a NaN would stay in its channel's level
            x = real.view(np.complex64)
        if g.by_pol:
            x = x.transpose(0, 2, 1, 3, 4).reshape(n * g.nsamp, g.chunks, g.total)
        else:
            x = x.transpose(0, 2, 3, 1, 4).reshape(n * g.nsamp, g.pols, g.total)
        x = np.ascontiguousarray(x[low : low + gulp.count])
        for a, b, c0, c1 in gulp.missing - [gulp.start, gulp.start, 0, 0]:
            if g.by_pol:
                x[a:b, c0:c1] = 0
            else:
                x[a:b, :, c0 * g.nchan : c1 * g.nchan] = 0
        return x

    def bands(self, missing: NDArray[np.int64]) -> NDArray[np.int64]:
        """Missing chunks as ranges of channels in the order of the band."""
        return bands(self.geometry, missing)

    def rects(self, missing: NDArray[np.int64]) -> NDArray[np.int64]:
        """Missing chunks as ranges of channels in falling order of frequency."""
        out = self.bands(missing)
        if self.flip:
            out[:, 2:] = self.geometry.total - out[:, :1:-1]
        return out


def bands(g: Geometry, missing: NDArray[np.int64]) -> NDArray[np.int64]:
    """Missing chunks as ranges of channels in the order of the band."""
    out = missing.copy()
    if g.by_pol:
        out[:, 2], out[:, 3] = 0, g.total
    else:
        out[:, 2:] *= g.nchan
    return out
