"""PSRDADA rings: a ring of headers and a ring of data, read as a stream, and written by tests and the emulator.

A transfer is a header followed by data until the writer ends it; then the next header comes.  A block is cleared when
its data have been copied, so that the writer waits when our own rings are full.  A block is taken and cleared in one
semaphore operation, and the header is cleared after its data.  Therefore a reader that is killed leaves a consistent
ring, and the next reader continues at the right sample.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from skysieve.core.plan import Closing

from .dada_file import HEADER
from .dada_ipc import (
    CLEAR,
    DISCONNECTED,
    EODACK,
    FULL,
    IPC_NOWAIT,
    PLACE,
    READ,
    READING,
    SEM_UNDO,
    SODACK,
    TRANSFERS,
    WRITE,
    WRITING,
    AnySync,
    IpcRing,
    NewSync,
    RingError,
    RingGone,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


POLL = 0.1


def key_of(text: str, name: str = "--dada-key") -> int:
    """The key of a ring from hexadecimal text, as for ``dada_db -k``.

    >>> key_of("dada"), key_of("0xdada")
    (56026, 56026)
    """
    try:
        key = int(text, 16)
    except ValueError:
        key = -1
    if not 0 < key < 2**31 - 1:
        raise ValueError(f"{name} {text}: expected a hexadecimal key, such as dada")
    return key


class RingReader:
    """Reads one ring in order: `next` returns a block, `done` clears it.

    Attributes
    ----------
    last : bool
        Whether the current block is the last of its transfer.
    offset : int
        Bytes of the transfer before the current block.
    """

    def __init__(self, ring: IpcRing) -> None:
        self.ring = ring
        self.last, self.offset, self._shown = False, 0, False
        if not ring.change(ring.connections, (READ, -1), flags=IPC_NOWAIT | SEM_UNDO):
            ring.close()
            raise RingError(f"{ring.name}: all readers of the ring {ring.key:x} are connected ({ring.readers} of them)")
        order = sorted(range(ring.readers), key=lambda i: (ring.sync.r_bufs[i], i))
        for i in order:
            if ring.change(ring.sets[i], (PLACE, -1), flags=IPC_NOWAIT | SEM_UNDO):
                self.reader = i
                break
        else:
            ring.change(ring.connections, (READ, 1), flags=SEM_UNDO)
            ring.close()
            raise RingError(f"{ring.name}: the ring {ring.key:x} has no free place for a reader")
        self._set = ring.sets[self.reader]

    def next(self, timeout: float) -> NDArray[np.uint8] | None:
        """The oldest full block, or None if none came in time; the same block again until `done`."""
        ring, s, i = self.ring, self.ring.sync, self.reader
        if not ring.change(self._set, (FULL, -1), (FULL, 1), timeout=timeout):
            return None
        x = s.r_xfers[i] % TRANSFERS
        if s.r_states[i] != READING:
            s.r_bufs[i], s.r_states[i] = s.s_buf[x], READING
            ring.change(self._set, (SODACK, 1))
        at = s.r_bufs[i]
        self.last = bool(s.eod[x]) and at == s.e_buf[x]
        begin = s.s_byte[x] if at == s.s_buf[x] else 0
        end = s.e_byte[x] if self.last else ring.bufsz
        if not (begin <= end <= ring.bufsz and s.s_buf[x] <= at):
            raise RingError(
                f"{ring.name}: the ring {ring.key:x} is corrupt: bytes {begin} to {end} of blocks of {ring.bufsz}"
            )
        self.offset = max(0, (at - s.s_buf[x]) * ring.bufsz - s.s_byte[x]) if at > s.s_buf[x] else 0
        self._shown = True
        return ring.blocks[at % ring.nbufs][begin:end]

    def done(self) -> None:
        """Clear the current block: the writer may fill it again."""
        if not self._shown:
            return
        self._shown = False
        s, i = self.ring.sync, self.reader
        self.ring.change(self._set, (FULL, -1), (CLEAR, 1))
        if self.last:
            s.r_states[i] = DISCONNECTED
            s.r_xfers[i] += 1
            self.ring.change(self._set, (EODACK, 1))
        else:
            s.r_bufs[i] += 1

    @property
    def fill(self) -> float:
        """Fraction of the blocks that are full."""
        return self.ring.value(self._set, FULL) / self.ring.nbufs

    def close(self) -> None:
        """Disconnect the reader, so that another one can connect."""
        with suppress(RingGone):
            self.ring.change(self._set, (PLACE, 1), flags=SEM_UNDO)
            self.ring.change(self.ring.connections, (READ, 1), flags=SEM_UNDO)
        self.ring.close()


class DadaReader(Closing):
    """Reads the headers and the data of a key.

    Parameters
    ----------
    key : int
        Key of the ring of data; the ring of headers has the next one.

    Raises
    ------
    RingError
        See `IpcRing.connect`; or another reader is connected.
    """

    def __init__(self, key: int) -> None:
        self.name = f"PSRDADA ring {key:x}"
        self.headers = RingReader(IpcRing.connect(key + 1, self.name))
        try:
            self.data = RingReader(IpcRing.connect(key, self.name))
        except RingError:
            self.headers.close()
            raise

    def header(self, timeout: float) -> bytes | None:
        """The header of the next transfer, or None if none came in time; the same header again until `end`."""
        block = self.headers.next(timeout)
        if block is None:
            return None
        if not len(block):
            self.headers.done()
            return None
        return block.tobytes()

    def end(self) -> None:
        """Clear the header, after the end of its transfer."""
        self.headers.done()

    def close(self) -> None:
        """Disconnect from both rings."""
        self.data.close()
        self.headers.close()


class RingWriter:
    """Writes one ring in order, as the programs of PSRDADA do; for tests and the emulator."""

    def __init__(self, ring: IpcRing) -> None:
        self.ring = ring
        if not ring.change(ring.connections, (WRITE, -1), flags=IPC_NOWAIT | SEM_UNDO):
            ring.close()
            raise RingError(f"{ring.name}: the ring {ring.key:x} has another writer")

    def put(self, data: NDArray[np.uint8], *, last: bool, timeout: float = 60.0) -> None:
        """Write a block of ``bufsz`` bytes; the last block of a transfer may have fewer.

        Raises
        ------
        TimeoutError
            No block was free in time.
        """
        ring, s = self.ring, self.ring.sync
        if len(data) > ring.bufsz or (len(data) < ring.bufsz and not last):
            raise ValueError(f"data of {len(data)} bytes: expected {ring.bufsz}, or fewer at the end of a transfer")
        until = time.monotonic() + timeout
        if s.w_state != WRITING:
            for one in ring.sets:  # the entry of a transfer is reused after its readers have finished with it
                self._wait(one, until, (EODACK, -1), (EODACK, 1), (SODACK, -1))
            x = s.w_xfer % TRANSFERS
            s.s_buf[x], s.s_byte[x], s.e_buf[x], s.w_state = s.w_buf, 0, 0, WRITING
            s.eod[x] = 0
        place = s.w_buf % ring.nbufs
        while ring.count[place]:
            for one in ring.sets:
                self._wait(one, until, (CLEAR, -1))
            ring.count[place] -= 1
        ring.blocks[place][: len(data)] = data
        if last:
            for one in ring.sets:
                self._wait(one, until, (EODACK, -1))
            x = s.w_xfer % TRANSFERS
            s.e_buf[x], s.e_byte[x] = s.w_buf, len(data)
            s.eod[x] = 1
            s.w_xfer += 1
            s.w_state = DISCONNECTED
        ring.count[place] += 1
        s.w_buf += 1
        if isinstance(s, NewSync):
            s.taken = s.w_buf
        for one in ring.sets:
            ring.change(one, (FULL, 1))

    def _wait(self, which: int, until: float, *operations: tuple[int, int]) -> None:
        if not self.ring.change(which, *operations, timeout=max(0.0, until - time.monotonic())):
            raise TimeoutError(f"{self.ring.name}: no block of the ring {self.ring.key:x} was cleared in time")

    def close(self) -> None:
        """Disconnect the writer, so that another one can connect."""
        with suppress(RingGone):
            self.ring.change(self.ring.connections, (WRITE, 1), flags=SEM_UNDO)
        self.ring.close()


class DadaWriter(Closing):
    """Writes transfers to the rings of a key.

    Examples
    --------
    Make a ring, write a transfer and read it:

    >>> import os
    >>> with DadaRings(2 * os.getpid(), nbufs=4, bufsz=64) as rings, DadaWriter(rings.key) as writer:
    ...     writer.send(b"NBIT 8", [b"x" * 100])
    ...     with DadaReader(rings.key) as reader:
    ...         head = reader.header(1.0)
    ...         sizes = []
    ...         while not reader.data.last:
    ...             sizes.append(len(reader.data.next(1.0)))
    ...             reader.data.done()
    >>> head[:6], sizes
    (b'NBIT 8', [64, 36])
    """

    def __init__(self, key: int) -> None:
        name = f"PSRDADA ring {key:x}"
        self.headers = RingWriter(IpcRing.connect(key + 1, name, read_only=False))
        try:
            self.data = RingWriter(IpcRing.connect(key, name, read_only=False))
        except RingError:
            self.headers.close()
            raise

    def send(self, header: bytes, pieces: list[bytes], timeout: float = 60.0) -> None:
        """Write a whole transfer."""
        self.begin(header, timeout)
        rest = b""
        size = self.data.ring.bufsz
        for piece in pieces:
            rest += piece
            while len(rest) >= size:
                self.data.put(np.frombuffer(rest[:size], np.uint8), last=False, timeout=timeout)
                rest = rest[size:]
        self.data.put(np.frombuffer(rest, np.uint8), last=True, timeout=timeout)

    def begin(self, header: bytes, timeout: float = 60.0) -> None:
        """Write the header of a transfer; the ring of headers is one endless transfer."""
        text = header.ljust(self.headers.ring.bufsz, b"\0")
        self.headers.put(np.frombuffer(text, np.uint8), last=False, timeout=timeout)

    def close(self) -> None:
        """Disconnect from both rings."""
        self.data.close()
        self.headers.close()


class DadaRings(Closing):
    """Makes the two rings of a key, as ``dada_db`` does, and removes them at the end."""

    def __init__(
        self, key: int, *, nbufs: int = 8, bufsz: int = 2**20, readers: int = 1, layout: type[AnySync] = NewSync
    ) -> None:
        self.key, name = key, f"PSRDADA ring {key:x}"
        self.headers = IpcRing.create(key + 1, name, TRANSFERS, HEADER, readers, layout)
        try:
            self.data = IpcRing.create(key, name, nbufs, bufsz, readers, layout)
        except (RingError, ValueError):
            self.headers.destroy()
            raise

    def close(self) -> None:
        """Remove the rings."""
        self.data.destroy()
        self.headers.destroy()
