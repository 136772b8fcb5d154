"""The emulator of a telescope: sends the samples of a file as packets at their own rate, with faults on request."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.dedispersion.data.filterbank import Filterbank
from skysieve.dedispersion.stream.receive.dada_file import DadaFile
from skysieve.dedispersion.stream.receive.file_source import packet_samples, source_geometry, source_steps
from skysieve.dedispersion.stream.receive.packets import HEADER, Geometry, packets
from skysieve.dedispersion.stream.receive.udp import check_system, message_headers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.stream.receive.voltages import Voltages

BURST = 8
"""Packets per system call; the kernel's default socket buffer holds about twenty packets of 8 KiB."""
BATCH_BYTES = 2**23
MOST_BYTES = 65507
"""Most bytes of a datagram."""


@dataclass(frozen=True)
class Sent:
    """Counts of what was sent.

    Attributes
    ----------
    sent, lost, moved, doubled : int
        Packets sent, left out, sent late, sent twice.
    bytes : int
        Bytes of samples.
    seconds, cpu : float
        Wall time and processor time.
    refused : int
        Packets that the system refused, for example because nothing listens.
    over : int
        Samples at the end of the file that do not fill a packet, and are not sent.
    """

    sent: int
    lost: int
    moved: int
    doubled: int
    bytes: int
    seconds: float
    cpu: float
    refused: int = 0
    over: int = 0


def schedule(
    n: int, rng: np.random.Generator, loss: float, reorder: float, duplicate: float, reach: int
) -> tuple[NDArray[np.int64], int, int, int]:
    """Packet numbers in the order in which ``n`` packets leave; how many are left out, sent late and sent twice.

    A late packet leaves at most ``reach`` places later.
    """
    kept = rng.random(n) >= loss
    moved = (rng.random(n) < reorder) & kept
    doubled = (rng.random(n) < duplicate) & kept
    when = np.arange(n, dtype=np.float64)
    when[moved] += rng.integers(1, reach + 1, moved.sum()) + 0.25
    again = when[doubled] + rng.integers(0, reach + 1, doubled.sum()) + 0.5
    numbers = np.concatenate([np.flatnonzero(kept), np.flatnonzero(doubled)])
    order = np.argsort(np.concatenate([when[kept], again]), kind="stable")
    return numbers[order], int((~kept).sum()), int(moved.sum()), int(doubled.sum())


@dataclass(frozen=True)
class Faults:
    """Faults of the network.

    Attributes
    ----------
    loss, reorder, duplicate : float
        Fractions of the packets.
    reach : int
        Most places by which packets are late.
    seed : int
        Seed of the random numbers.
    gap : (float, float) or None
        Seconds of data that are left out.
    """

    loss: float = 0.0
    reorder: float = 0.0
    duplicate: float = 0.0
    reach: int = 4
    seed: int = 0
    gap: tuple[float, float] | None = None

    def departures(
        self, g: Geometry, starts: Iterable[tuple[int, int]]
    ) -> Iterator[tuple[NDArray[np.int64], int, int, int]]:
        """For each piece (first sample, samples), the order in which its packets leave, and its counts of faults.

        Packets are counted from the first one of the piece; faults are packets left out, sent late, sent twice.
        """
        rng = np.random.default_rng(self.seed)
        for start, count in starts:
            n = count // g.nsamp * g.chunks
            order, lost, moved, doubled = schedule(n, rng, self.loss, self.reorder, self.duplicate, self.reach)
            if self.gap is not None:
                when = (start + np.arange(n) // g.chunks * g.nsamp) * g.tsamp
                inside = (when >= self.gap[0]) & (when < self.gap[1])
                kept = np.zeros(n, bool)
                kept[order] = True
                lost += int((kept & inside).sum())
                doubled -= len(order[inside[order]]) - int((kept & inside).sum())
                order = order[~inside[order]]
            yield order, lost, moved, doubled


def piece_samples(g: Geometry) -> int:
    """Number of samples that are turned into packets at a time."""
    return max(1, BATCH_BYTES // (g.packet_bytes * g.chunks)) * g.nsamp


def check_sending(rate: float, repeat: int, seconds: float) -> None:
    """Check how fast and for how long data are sent."""
    if not seconds > 0:
        raise ValueError(f"seconds={seconds!r}: expected seconds, above 0")
    if not rate > 0:
        raise ValueError(f"rate={rate!r}: expected a multiple of the data's own rate, above 0")
    if repeat < 0:
        raise ValueError(f"repeat={repeat}: expected the number of times to send the file, or 0 for no end")


def emulate(
    source: Filterbank | DadaFile | Voltages,
    host: str,
    port: int,
    *,
    rate: float = 1.0,
    loss: float = 0.0,
    reorder: float = 0.0,
    duplicate: float = 0.0,
    reach: int = 4,
    packet_bytes: int = 8192,
    first: int = 0,
    beam: int = 0,
    repeat: int = 1,
    seconds: float = math.inf,
    seed: int = 0,
    gap: tuple[float, float] | None = None,
) -> Sent:
    """Send a file as UDP packets.

    Parameters
    ----------
    source : Filterbank, DadaFile or Voltages
    host, port : str, int
    rate : float
        Multiple of the data's own rate; inf sends as fast as the system takes packets.
    loss, reorder, duplicate : float
        Fractions of the packets to leave out, to send up to ``reach`` places later, to send twice.
    reach : int
    packet_bytes : int
        Most bytes of samples in a packet.
    first : int
        Number of the first sample, rounded down to whole packets.
    beam : int
    repeat : int
        How many times to send the file, without a gap; 0 means without end.
    seconds : float
        Stop after this wall time.
    seed : int
        Seed of the faults.
    gap : (float, float), optional
        Seconds of data to leave out.

    Returns
    -------
    Sent
    """
    from skysieve.dedispersion.stream.receive import cpu_udp

    check_system()
    check_sending(rate, repeat, seconds)
    for name, value in (("loss", loss), ("reorder", reorder), ("duplicate", duplicate)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name}={value!r}: expected a fraction of the packets, from 0 to 1")
    if port == 0:
        raise ValueError(f"cannot send to {host}:0: expected a port from 1 to 65535")
    g = source_geometry(source, packet_bytes)
    if g.packet_bytes + HEADER > MOST_BYTES:
        raise ValueError(f"packet_bytes={packet_bytes}: expected {MOST_BYTES - HEADER} at most, which UDP can carry")
    if isinstance(source, Filterbank):  # few samples remain at the end, which fill no packet
        g = replace(g, nsamp=packet_samples(source.nsamp, g.nsamp))
    per_second = g.chunks / (g.nsamp * g.tsamp) * rate
    faults = Faults(loss, reorder, duplicate, reach, seed, gap)
    first = first // g.nsamp * g.nsamp
    sent = lost = moved = doubled = refused = 0
    now_at = [(0, 0)]
    departures = faults.departures(g, iter(lambda: now_at[0], None))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as out:
        try:
            out.connect((host, port))
        except OSError as error:
            raise OSError(f"cannot send to {host}:{port}: {error.strerror}") from None
        headers: Any = message_headers(np.zeros((1, 1), np.uint8))[0]
        cpu_udp.send(out.fileno(), headers.ctypes.data, 0, 0)  # loads the function before the clock starts
        clock, cpu = time.perf_counter(), time.thread_time()
        due = 0.0
        for start, steps in source_steps(source, g, piece_samples(g), repeat):
            made = packets(g, steps, first + start, beam)
            now_at[0] = start, len(steps)
            order, out_of, aside, twice = next(departures)
            lost, moved, doubled = lost + out_of, moved + aside, doubled + twice
            queue = made[order]
            headers, vectors = message_headers(queue)
            begun, at = due, 0
            while at < len(queue):
                now = time.perf_counter() - clock
                if now > seconds:
                    break
                if not math.isinf(rate):
                    when = (begun + int(order[at])) / per_second
                    time.sleep(max(when - now, 0.0) or BURST / per_second / 2)  # if late, at most twice the rate
                taken = cpu_udp.send(out.fileno(), headers.ctypes.data, at, min(BURST, len(queue) - at))
                sent += taken
                refused += taken == 0
                at += max(taken, 1)
            del vectors
            due = begun + len(made)
            if at < len(queue):
                break
        if not math.isinf(rate):
            left = due / per_second - (time.perf_counter() - clock)
            time.sleep(max(0.0, min(left, 1.0)))
        took, used = time.perf_counter() - clock, time.thread_time() - cpu
    return Sent(sent, lost, moved, doubled, sent * g.packet_bytes, took, used, refused, source.nsamp % g.nsamp)
