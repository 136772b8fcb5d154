"""Packets: the package's own format, version 1, and the interface of all parsers.

A datagram is a header of 64 bytes, little endian, followed by the samples of a range of channels:

====== ======= ======================================================================================
offset type    meaning
====== ======= ======================================================================================
0      4 bytes ``SKYS``
4      u8      version, 1
5      u8      0: detected power, 1: complex voltages
6      u8      bits of a number: power 1, 2, 4, 8, 16 (unsigned) or 32 (float); voltages 4, 8 (two's
               complement, real part first; 4 bits: real part in the low half of a byte) or 32 (float)
7      u8      polarisations, 1 or 2
8      u16     beam
10     u16     samples in the packet, ``n``
12     u32     channels of the band
16     u32     first channel of the packet, a multiple of ``c``
20     u32     channels of the packet, ``c``; divides those of the band
24     u64     number of the first sample since the epoch, a multiple of ``n``
32     i64     epoch: time of sample 0, nanoseconds since 1970 (UTC without leap seconds)
40     f64     seconds between samples
48     f64     centre of channel 0 of the band, MHz
56     f64     step to the next channel, MHz; either sign, not 0
====== ======= ======================================================================================

Samples follow in the order of time, polarisation, channel.  Samples of less than 8 bits have the first channel in the
lowest bits.  The samples of one time and polarisation fill whole bytes.  Missing packets are detected by the sample
numbers alone.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC, VERSION, HEADER = b"SKYS", 1, 64
POWER, VOLTAGE = 0, 1
BITS = {POWER: (1, 2, 4, 8, 16, 32), VOLTAGE: (4, 8, 32)}
MOST_CHANNELS = 2**20
LAST_SAMPLE = 2**56
FIELDS = np.dtype([
    ("magic", "S4"), ("version", "u1"), ("kind", "u1"), ("bits", "u1"), ("pols", "u1"), ("beam", "<u2"),
    ("nsamp", "<u2"), ("total", "<u4"), ("first", "<u4"), ("nchan", "<u4"), ("sample", "<u8"), ("epoch", "<i8"),
    ("tsamp", "<f8"), ("fch1", "<f8"), ("foff", "<f8"),
])  # fmt: skip

GOOD, SHORT, FOREIGN, WRONG_VERSION, WRONG_LENGTH, WRONG_FIELDS = range(6)
REASONS = ("good", "short", "foreign", "version", "length", "fields")
"""Names of the states of a parsed packet; all but the first are counted as metrics."""


@dataclass(frozen=True)
class Geometry:
    """The properties that all packets of a stream share.

    Attributes
    ----------
    kind : int
        `POWER` or `VOLTAGE`.
    bits, pols, nsamp : int
        Bits per number, polarisations per packet, samples per packet.
    total, chunks : int
        Number of channels of the band; number of packets for the same samples (by channels, or by polarisations).
    epoch : int
        Time of sample 0, nanoseconds since 1970; 0 if the sender does not know it.
    tsamp, fch1, foff : float
        Seconds between samples; centre of channel 0 and step to the next, MHz.
    offset_binary : bool
        Whether voltages are unsigned numbers around the middle of their range.
    by_pol : bool
        Whether packets of the same samples are polarisations (VDIF threads), not ranges of channels.
    """

    kind: int
    bits: int
    pols: int
    nsamp: int
    total: int
    chunks: int
    epoch: int
    tsamp: float
    fch1: float
    foff: float
    offset_binary: bool = False
    by_pol: bool = False

    @property
    def nchan(self) -> int:
        """Channels of a packet."""
        return self.total if self.by_pol else self.total // self.chunks

    @property
    def step_bytes(self) -> int:
        """Bytes of one sample in one packet."""
        return self.pols * self.nchan * (2 if self.kind == VOLTAGE else 1) * self.bits // 8

    @property
    def packet_bytes(self) -> int:
        """Bytes of samples in a packet."""
        return self.nsamp * self.step_bytes

    @property
    def all_pols(self) -> int:
        """Polarisations of the stream."""
        return self.chunks if self.by_pol else self.pols

    @property
    def rate(self) -> float:
        """Bytes of samples per second."""
        return self.chunks * self.step_bytes / self.tsamp

    def same_except_epoch(self, other: Geometry) -> bool:
        """Whether another geometry is the same, or differs only in the epoch."""
        return replace(self, epoch=other.epoch) == other


@dataclass(frozen=True)
class Parsed:
    """The result of a parser for a batch of datagrams: arrays with one entry for each.

    Attributes
    ----------
    status : numpy.ndarray of int64
        0 for a good packet, else the number of the fault in `REASONS`.  The other arrays are for good packets only.
    beam : numpy.ndarray of int64
    number : numpy.ndarray of int64
        Number of the packet in time: its first sample divided by the samples per packet.
    chunk : numpy.ndarray of int64
        Number of the packet among the packets of the same samples.
    offset : numpy.ndarray of int64
        Byte at which the samples begin.
    key : numpy.ndarray of uint64, shape (datagrams, words)
        Equal for packets of equal `Geometry`.
    """

    status: NDArray[np.int64]
    beam: NDArray[np.int64]
    number: NDArray[np.int64]
    chunk: NDArray[np.int64]
    offset: NDArray[np.int64]
    key: NDArray[np.uint64]


class Parser(Protocol):
    """The methods of a packet parser.  Datagrams may hold anything: check lengths before use."""

    name: str

    def parse(self, buffers: NDArray[np.uint8], lengths: NDArray[np.int64]) -> Parsed:
        """Parse the datagrams in the rows of ``buffers``; ``lengths`` bytes of each were received."""

    def geometry(self, datagram: NDArray[np.uint8]) -> Geometry:
        """The geometry of a good datagram."""


class SkysieveParser:
    """Parses the format that is described at the top of this module.

    Examples
    --------
    >>> g = Geometry(POWER, 8, 1, 4, 16, 1, 0, 1e-3, 1500.0, -1.0)
    >>> sent = packets(g, np.zeros((8, 1, 16), np.uint8), first=100)
    >>> found = SkysieveParser().parse(sent, np.full(2, sent.shape[1]))
    >>> found.status.tolist(), found.number.tolist(), SkysieveParser().geometry(sent[0]) == g
    ([0, 0], [25, 26], True)
    """

    name = "skysieve"

    def parse(self, buffers: NDArray[np.uint8], lengths: NDArray[np.int64]) -> Parsed:
        """See `Parser.parse`."""
        n = len(lengths)
        head = np.zeros((n, HEADER), np.uint8)
        wide = min(HEADER, buffers.shape[1])
        head[:, :wide] = buffers[:n, :wide]
        h = head.view(FIELDS).reshape(n)
        status = np.zeros(n, np.int64)
        nsamp, nchan, first, total, bits, pols = (
            h[name].astype(np.int64) for name in ("nsamp", "nchan", "first", "total", "bits", "pols")
        )
        voltage = h["kind"] == VOLTAGE
        widths = np.where(voltage, np.isin(bits, BITS[VOLTAGE]), (h["kind"] == POWER) & np.isin(bits, BITS[POWER]))
        with np.errstate(invalid="ignore"):
            real = (
                np.isfinite(h["tsamp"]) & (h["tsamp"] > 0) & np.isfinite(h["fch1"]) & (h["fch1"] > 0)
                & np.isfinite(h["foff"]) & (h["foff"] != 0)
            )  # fmt: skip
        some = (nsamp > 0) & (nchan > 0) & (total <= MOST_CHANNELS) & (first < total)
        n1, c1 = np.maximum(nsamp, 1), np.maximum(nchan, 1)
        whole = (first % c1 == 0) & (total % c1 == 0) & (first + nchan <= total)
        sample = np.minimum(h["sample"], np.uint64(LAST_SAMPLE)).astype(np.int64)
        in_time = (h["sample"] < LAST_SAMPLE) & (sample % n1 == 0)
        line = nchan * np.where(voltage, 2, 1) * bits
        fields = widths & real & some & whole & in_time & ((pols == 1) | (pols == 2)) & (line % 8 == 0)
        status[~fields] = WRONG_FIELDS
        status[fields & (lengths != HEADER + nsamp * pols * (line // 8))] = WRONG_LENGTH
        status[h["version"] != VERSION] = WRONG_VERSION
        status[h["magic"] != MAGIC] = FOREIGN
        status[(lengths < HEADER) | (wide < HEADER)] = SHORT
        key = np.empty((n, 8), np.uint64)
        words = head.view("<u8")
        key[:, 0] = words[:, 0]
        key[:, 1], key[:, 2], key[:, 3] = nsamp, total, nchan
        key[:, 4:] = words[:, 4:]
        return Parsed(
            status, h["beam"].astype(np.int64), sample // n1, first // c1, np.full(n, HEADER, np.int64), key
        )  # fmt: skip

    def geometry(self, datagram: NDArray[np.uint8]) -> Geometry:
        """See `Parser.geometry`."""
        h = np.ascontiguousarray(datagram[:HEADER]).view(FIELDS)[0]
        return Geometry(
            int(h["kind"]), int(h["bits"]), int(h["pols"]), int(h["nsamp"]), int(h["total"]),
            int(h["total"]) // int(h["nchan"]), int(h["epoch"]), float(h["tsamp"]), float(h["fch1"]), float(h["foff"]),
        )  # fmt: skip


def packets(g: Geometry, steps: NDArray[np.uint8], first: int, beam: int = 0) -> NDArray[np.uint8]:
    """Make the datagrams of packed samples.

    Parameters
    ----------
    g : Geometry
    steps : numpy.ndarray of uint8, shape (samples, polarisations, bytes of a polarisation)
        Packed numbers of whole packets; channels in the order of the band.
    first : int
        Number of the first sample.
    beam : int

    Returns
    -------
    numpy.ndarray of uint8, shape (packets, bytes)
        In the order of time, then channels.
    """
    n = len(steps) // g.nsamp
    if first % g.nsamp or n * g.nsamp != len(steps):
        raise ValueError(f"samples {first} to {first + len(steps)}: expected whole packets of {g.nsamp}")
    width = steps.shape[2] // g.chunks
    out = np.zeros((n, g.chunks, HEADER + g.packet_bytes), np.uint8)
    body = steps.reshape(n, g.nsamp, g.pols, g.chunks, width).transpose(0, 3, 1, 2, 4)
    out[:, :, HEADER:] = body.reshape(n, g.chunks, g.packet_bytes)
    h = np.zeros((n, g.chunks), FIELDS)
    for name in ("kind", "bits", "pols", "nsamp", "total", "nchan", "epoch", "tsamp", "fch1", "foff"):
        h[name] = getattr(g, name)
    h["magic"], h["version"], h["beam"] = MAGIC, VERSION, beam
    h["first"] = np.arange(g.chunks) * g.nchan
    h["sample"] = first + np.arange(n)[:, None] * g.nsamp
    out[:, :, :HEADER] = h.view(np.uint8).reshape(n, g.chunks, HEADER)
    return out.reshape(n * g.chunks, -1)


def chunks_for(total: int, step_bits: int, largest: int) -> tuple[int, int]:
    """How many packets hold one sample of the band, and how many samples a packet has.

    Parameters
    ----------
    total : int
        Channels of the band.
    step_bits : int
        Bits of one sample of the whole band.
    largest : int
        Most bytes of samples in a packet.

    >>> chunks_for(256, 8 * 256, 8192), chunks_for(65536, 8 * 65536, 8192)
    ((1, 32), (8, 1))
    """
    chunks = 1
    while step_bits / chunks > 8 * largest or total % chunks:
        chunks += 1
        if chunks > total:
            raise ValueError(f"packet_bytes={largest}: too few for one channel of {step_bits // total} bits")
    return chunks, min(65535, max(1, 8 * largest * chunks // step_bits))


assert FIELDS.itemsize == HEADER == struct.calcsize("<4sBBBBHHIIIQqddd")
