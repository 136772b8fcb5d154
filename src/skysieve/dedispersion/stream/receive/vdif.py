"""VDIF frames as packets: complex voltages of any number of channels, threads as polarisations.

The frame header (32 bytes; 16 for legacy frames) has no frequencies and no sampling time; the user specifies them.
See the VDIF specification, release 1.1.1 (vlbi.org/vdif).
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import numpy as np

from .packets import FOREIGN, LAST_SAMPLE, SHORT, VOLTAGE, WRONG_FIELDS, WRONG_LENGTH, Geometry, Parsed

if TYPE_CHECKING:
    from numpy.typing import NDArray

FULL, LEGACY = 32, 16


class VdifParser:
    """Parses VDIF data frames, one per datagram.

    Parameters
    ----------
    frames : int
        Frames per second of one thread.
    fch1, foff : float
        Centre of channel 0 and step to the next, MHz.
    threads : int
        1, or 2 if threads 0 and 1 are polarisations.

    Notes
    -----
    Frames must hold complex samples of 4 or 8 bits.  Sample 0 is at the start of the reference epoch (half a year).
    Frames that are marked invalid are counted as faulty, so that their samples are missing.

    Examples
    --------
    >>> frame = vdif_frame(np.zeros(64, np.uint8), second=10, number=3, epoch=46, log2_channels=2, bits=8)
    >>> parser = VdifParser(frames=1000, fch1=1400.0, foff=1.0)
    >>> found = parser.parse(frame[None], np.array([len(frame)]))
    >>> found.status.tolist(), found.number.tolist(), parser.geometry(frame).nsamp
    ([0], [10003], 8)
    """

    name = "vdif"

    def __init__(self, *, frames: int, fch1: float, foff: float, threads: int = 1) -> None:
        if frames < 1:
            raise ValueError(f"frames={frames!r}: expected frames per second, at least 1")
        if threads not in (1, 2):
            raise ValueError(f"threads={threads!r}: expected 1 or 2 polarisations")
        if not fch1 > 0:
            raise ValueError(f"fch1={fch1!r}: expected a frequency above 0 MHz")
        if foff == 0:
            raise ValueError(f"foff={foff!r}: expected a step in MHz, above or below 0")
        self.frames, self.fch1, self.foff, self.threads = frames, float(fch1), float(foff), threads

    def parse(self, buffers: NDArray[np.uint8], lengths: NDArray[np.int64]) -> Parsed:
        """See `packets.Parser.parse`."""
        n = len(lengths)
        head = np.zeros((n, FULL), np.uint8)
        wide = min(FULL, buffers.shape[1])
        head[:, :wide] = buffers[:n, :wide]
        w = head.view("<u4").astype(np.int64)
        legacy = (w[:, 0] >> 30) & 1
        size = np.where(legacy == 1, LEGACY, FULL)
        seconds, frame = w[:, 0] & (2**30 - 1), w[:, 1] & (2**24 - 1)
        channels = np.int64(1) << np.minimum((w[:, 2] >> 24) & 31, 20)
        thread, bits = (w[:, 3] >> 16) & 1023, ((w[:, 3] >> 26) & 31) + 1
        long = (w[:, 2] & (2**24 - 1)) * 8
        line = np.maximum(channels * 2 * bits // 8, 1)
        payload = long - size
        nsamp = payload // line
        status = np.zeros(n, np.int64)
        valid = (
            ((w[:, 3] >> 31) & 1 == 1) & ((bits == 4) | (bits == 8)) & ((w[:, 2] >> 24) & 31 <= 20) & (nsamp >= 1)
            & (payload % line == 0) & (nsamp <= 65535) & (frame < self.frames) & ((w[:, 0] >> 31) & 1 == 0)
            & ((seconds * self.frames + frame) * np.maximum(nsamp, 1) < LAST_SAMPLE)
        )  # fmt: skip
        status[~valid] = WRONG_FIELDS
        status[long != lengths] = WRONG_LENGTH
        status[thread >= self.threads] = FOREIGN
        status[(lengths < size) | (wide < FULL)] = SHORT
        key = np.stack([channels, bits, nsamp, (w[:, 1] >> 24) & 63, size, w[:, 3] & 0xFFFF], axis=1)
        return Parsed(
            status, np.zeros(n, np.int64), seconds * self.frames + frame, thread, size, key.astype(np.uint64)
        )  # fmt: skip

    def geometry(self, datagram: NDArray[np.uint8]) -> Geometry:
        """See `packets.Parser.geometry`."""
        w = np.ascontiguousarray(datagram[:FULL]).view("<u4").astype(np.int64)
        size = LEGACY if (w[0] >> 30) & 1 else FULL
        bits, channels = int((w[3] >> 26) & 31) + 1, 1 << int((w[2] >> 24) & 31)
        nsamp = (int(w[2] & (2**24 - 1)) * 8 - size) // (channels * 2 * bits // 8)
        half_years = int((w[1] >> 24) & 63)
        zero = datetime.datetime(2000 + half_years // 2, 1 + 6 * (half_years % 2), 1, tzinfo=datetime.UTC)
        return Geometry(
            VOLTAGE, bits, 1, nsamp, channels, self.threads, int(zero.timestamp()) * 10**9,
            1 / (self.frames * nsamp), self.fch1, self.foff, offset_binary=True, by_pol=True,
        )  # fmt: skip


def vdif_frame(
    payload: NDArray[np.uint8], *, second: int, number: int, epoch: int, log2_channels: int, bits: int, thread: int = 0
) -> NDArray[np.uint8]:
    """Make a frame of complex samples."""
    head = np.zeros(8, "<u4")
    head[0] = second
    head[1] = (epoch << 24) | number
    head[2] = (log2_channels << 24) | ((FULL + len(payload)) // 8)
    head[3] = (1 << 31) | ((bits - 1) << 26) | (thread << 16)
    return np.concatenate([head.view(np.uint8), payload])
