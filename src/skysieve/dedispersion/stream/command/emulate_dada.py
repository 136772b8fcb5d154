"""The emulator of a telescope that writes to a PSRDADA ring: the samples of a file at their own rate."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from skysieve.dedispersion.data.filterbank import Filterbank
from skysieve.dedispersion.stream.receive.dada_file import DadaFile, header_text
from skysieve.dedispersion.stream.receive.dada_ipc import FULL, MissingRing
from skysieve.dedispersion.stream.receive.dada_ring import DadaRings, DadaWriter

from .emulate import Sent, check_sending

if TYPE_CHECKING:
    from skysieve.dedispersion.stream.receive.voltages import Voltages

BLOCK_SECONDS, LARGEST_BLOCK = 0.1, 2**22
BLOCKS = 8
PATIENCE = 60.0
"""Most seconds that a reader may take for a block."""


def emulate_ring(
    source: Filterbank | DadaFile | Voltages, key: int, *, rate: float = 1.0, repeat: int = 1, seconds: float = math.inf
) -> Sent:
    """Write a file to a ring as one transfer.

    If there is no ring with the key, one is made, and removed after everything has been read.

    Parameters
    ----------
    source : Filterbank, DadaFile or Voltages
        A filterbank of 8 bits or floats, a PSRDADA file, or voltages that are made from a filterbank.
    key : int
    rate : float
        Multiple of the data's own rate; inf writes as fast as the reader reads.
    repeat : int
        How many times to send the file, without a gap; 0 means without end.
    seconds : float
        Stop after this wall time.

    Returns
    -------
    Sent
        ``sent`` counts blocks.

    Raises
    ------
    TimeoutError
        Nothing was read for a minute.
    ValueError
        PSRDADA has no format for the samples, or a number is out of range.
    """
    check_sending(rate, repeat, seconds)
    head, step, tsamp = _header(source)
    per_second = step / tsamp * rate
    with ExitStack() as stack:
        try:
            writer = stack.enter_context(DadaWriter(key))
            made = None
        except MissingRing:
            size = max(1, min(round(BLOCK_SECONDS * step / tsamp), LARGEST_BLOCK) // step) * step
            made = stack.enter_context(DadaRings(key, nbufs=BLOCKS, bufsz=size))
            writer = stack.enter_context(DadaWriter(key))
        size, blocks, total = writer.data.ring.bufsz, 0, 0
        clock, cpu = time.perf_counter(), time.thread_time()
        writer.begin(head, PATIENCE)
        rest, done, over = b"", 0, False
        count = max(1, size // step)
        while not over and (repeat == 0 or done < repeat):
            for start in range(0, source.nsamp, count):
                rest += _bytes(source, start, min(count, source.nsamp - start))
                while len(rest) >= size:
                    writer.data.put(np.frombuffer(rest[:size], np.uint8), last=False, timeout=PATIENCE)
                    rest, blocks, total = rest[size:], blocks + 1, total + size
                now = time.perf_counter() - clock
                if not math.isinf(rate):
                    time.sleep(max(0.0, min((total + len(rest)) / per_second, seconds) - now))
                over = time.perf_counter() - clock >= seconds
                if over:
                    break
            done += 1
        writer.data.put(np.frombuffer(rest, np.uint8), last=True, timeout=PATIENCE)
        took, used = time.perf_counter() - clock, time.thread_time() - cpu
        if made is not None:
            wait_until_read(made)
    return Sent(blocks + 1, 0, 0, 0, total + len(rest), took, used)


def _header(source: Filterbank | DadaFile | Voltages) -> tuple[bytes, int, float]:
    """The header, bytes of a sample of all channels, seconds between samples."""
    if not isinstance(source, Filterbank):
        return source.text, source.step, source.tsamp
    o = source.observation
    if source.dtype not in (np.uint8, np.float32) or o.nbits < 8:
        raise ValueError(f"samples of {o.nbits} bits ({source.dtype}): expected 8 bits or floats")
    if not o.regular:
        raise ValueError("a PSRDADA header cannot describe unevenly spaced channels")
    text = header_text(
        1, o.nchan, tsamp=o.tsamp, fch1=o.top, foff=o.foff, tstart=o.tstart, nbits=8 * source.dtype.itemsize,
        voltages=False,
    )  # fmt: skip
    return text, o.nchan * source.dtype.itemsize, o.tsamp


def _bytes(source: Filterbank | DadaFile | Voltages, start: int, count: int) -> bytes:
    """Samples in the order of time, frequency, polarisation."""
    if not isinstance(source, Filterbank):
        return source.raw(start, count).tobytes()
    return np.ascontiguousarray(source.block(start, count).T).tobytes()


def wait_until_read(made: DadaRings) -> None:
    """Wait until the rings are empty, because unread data are lost when the rings are removed."""
    left, since = -1, time.monotonic()
    while (now := sum(ring.value(one, FULL) for ring in (made.data, made.headers) for one in ring.sets)) > 0:
        if now != left:
            left, since = now, time.monotonic()
        if time.monotonic() - since > PATIENCE:
            raise TimeoutError(f"PSRDADA ring {made.key:x}: {left} blocks were not read in time")
        time.sleep(0.02)
