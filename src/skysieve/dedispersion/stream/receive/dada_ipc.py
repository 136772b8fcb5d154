"""One PSRDADA ring in System V shared memory: its layout and the meaning of its semaphores.

A ring with key ``k`` consists of

- a shared-memory segment with key ``k``: the structure below, one char per block (transfers that wait in it), and the
  keys of the segments of the blocks;
- a set of two semaphores, `WRITE` and `READ`: free places of writers and readers;
- for each reader a set of five semaphores: start of data acknowledged, end of data acknowledged, full blocks, cleared
  blocks, free place.

A transfer goes from byte ``s_byte`` of block ``s_buf`` to byte ``e_byte`` of block ``e_buf``.  Block numbers never
wrap; block ``n`` lies in segment ``n % nbufs``.  The structure describes eight transfers, transfer ``n`` at index ``n %
8``.

This follows psrdada's public headers and the behaviour of its programs; the code is our own.  Three versions of the
structure are supported, recognised by its size.  The latest has separate counts of the blocks that a writer has taken
and of those that it has filled.  Any other size is refused.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from ctypes import c_int, c_int32, c_long, c_short, c_size_t, c_uint8, c_uint32, c_uint64, c_ushort, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

TRANSFERS = READERS = 8
WRITE, READ = range(2)
SODACK, EODACK, FULL, CLEAR, PLACE = range(5)
DISCONNECTED, WRITING, READING = 0, 3, 6
KEY_STEP = 0x00010000
"""Difference between the keys of consecutive segments of a new ring."""
PERMISSIONS = 0o666
IPC_CREAT, IPC_EXCL, IPC_NOWAIT, IPC_RMID = 0o1000, 0o2000, 0o4000, 0
SHM_RDONLY, SEM_UNDO, GETVAL = 0o10000, 0x1000, 12
MOST_BLOCKS = 2**16


_HEAD: list[Any] = [
    ("semkey_connect", c_int32), ("semkey_data", c_int32 * READERS), ("nbufs", c_uint64), ("bufsz", c_uint64)
]  # fmt: skip
_REST: list[Any] = [
    ("w_state", c_int32), ("w_xfer", c_uint64), ("r_bufs", c_uint64 * READERS), ("r_states", c_int32 * READERS),
    ("r_xfers", c_uint64 * READERS), ("n_readers", c_uint32), ("s_buf", c_uint64 * TRANSFERS),
    ("s_byte", c_uint64 * TRANSFERS), ("eod", c_uint8 * TRANSFERS), ("e_buf", c_uint64 * TRANSFERS),
    ("e_byte", c_uint64 * TRANSFERS),
]  # fmt: skip


class OldSync(ctypes.Structure):
    """The structure that all processes of a ring share; ``w_buf`` counts the blocks that were written."""

    _fields_ = [*_HEAD, ("w_buf", c_uint64), *_REST]


class Sync(ctypes.Structure):
    """The structure since rings can lie on GPUs."""

    _fields_ = [*_HEAD, ("w_buf", c_uint64), *_REST, ("on_device_id", c_int32)]


class NewSync(ctypes.Structure):
    """The structure since a writer may hold several blocks; ``taken`` counts the blocks that it has taken."""

    _fields_ = [*_HEAD, ("taken", c_uint64), ("w_buf", c_uint64), *_REST, ("on_device_id", c_int32)]


AnySync = OldSync | Sync | NewSync
LAYOUTS: dict[int, type[AnySync]] = {ctypes.sizeof(kind): kind for kind in (OldSync, Sync, NewSync)}
"""The structures by their size."""


class Operation(ctypes.Structure):
    """``struct sembuf``."""

    _fields_ = [("number", c_ushort), ("by", c_short), ("flags", c_short)]


class Timespec(ctypes.Structure):
    """``struct timespec``."""

    _fields_ = [("seconds", c_long), ("nanoseconds", c_long)]


class RingError(OSError):
    """A ring does not exist, has an unknown version, has no free place, or was removed."""


class MissingRing(RingError):
    """There is no ring with the key."""


class RingGone(RingError):
    """The ring was removed from the system."""


@cache
def libc() -> Any:
    """The functions of the C library; 64-bit Linux only."""
    if sys.platform != "linux" or struct.calcsize("P") != 8:
        raise RuntimeError("PSRDADA rings are read on 64-bit Linux only")
    found = ctypes.CDLL(None, use_errno=True)
    for name, result, arguments in (
        ("shmget", c_int, (c_int, c_size_t, c_int)), ("shmat", c_void_p, (c_int, c_void_p, c_int)),
        ("shmdt", c_int, (c_void_p,)), ("shmctl", c_int, (c_int, c_int, c_void_p)),
        ("semget", c_int, (c_int, c_int, c_int)), ("semctl", c_int, (c_int, c_int, c_int, c_long)),
        ("semtimedop", c_int, (c_int, c_void_p, c_size_t, c_void_p)),
    ):  # fmt: skip
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


def call(name: str, *arguments: Any) -> int:
    """Call a function that returns -1 on errors."""
    result: int = getattr(libc(), name)(*arguments)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def size_of(identifier: int) -> int:
    """Bytes of a segment, as requested when it was made."""
    with open("/proc/sysvipc/shm", encoding="ascii") as table:
        for words in (line.split() for line in table.readlines()[1:]):
            if int(words[1]) == identifier:
                return int(words[3])
    raise OSError(errno.EINVAL, "the segment was removed")


class SharedMemory:
    """An attached segment of shared memory."""

    def __init__(self, identifier: int, read_only: bool = False) -> None:
        self.identifier, self.size = identifier, size_of(identifier)
        address = libc().shmat(identifier, None, SHM_RDONLY if read_only else 0)
        if address is None or address == c_void_p(-1).value:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self.address: int = address
        self.bytes: NDArray[np.uint8] = np.ctypeslib.as_array((c_uint8 * self.size).from_address(address))
        self.bytes.flags.writeable = not read_only

    def detach(self) -> None:
        """Detach the segment; its bytes may not be used any more."""
        call("shmdt", self.address)


class IpcRing:
    """One ring; use `connect` or `create`.

    Attributes
    ----------
    sync : OldSync, Sync or NewSync
    blocks : list of numpy.ndarray of uint8
    """

    def __init__(self, key: int, name: str, segment: SharedMemory, count_at: int, read_only: bool, made: bool) -> None:
        self.key, self.name, self._segment = key, name, segment
        self.sync: AnySync = LAYOUTS[count_at].from_address(segment.address)
        self.nbufs, self.bufsz, self.readers = self.sync.nbufs, self.sync.bufsz, self.sync.n_readers
        self.count = segment.bytes[count_at : count_at + self.nbufs]
        keys = segment.bytes[count_at + self.nbufs : count_at + 5 * self.nbufs].tobytes()
        flags = IPC_CREAT | IPC_EXCL | PERMISSIONS if made else 0
        self.connections = call("semget", self.sync.semkey_connect, 2, flags)
        self.sets = [call("semget", self.sync.semkey_data[i], 5, flags) for i in range(self.readers)]
        self._pieces: list[SharedMemory] = []
        for key in struct.unpack(f"={self.nbufs}i", keys):
            identifier = call("shmget", key, self.bufsz if made else 0, flags)
            self._pieces.append(SharedMemory(identifier, read_only))
            if self._pieces[-1].size < self.bufsz:
                raise RingError(
                    f"{name}: block {len(self._pieces) - 1} has {self._pieces[-1].size} bytes of {self.bufsz}"
                )
        self.blocks = [piece.bytes[: self.bufsz] for piece in self._pieces]

    @classmethod
    def connect(cls, key: int, name: str, read_only: bool = True) -> IpcRing:
        """Connect to an existing ring; ``read_only`` applies to its blocks.

        Raises
        ------
        RingError
            There is no such ring, it may not be used, or its version is not known.
        """
        try:
            identifier = call("shmget", key, 0, 0)
            segment = SharedMemory(identifier)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise MissingRing(
                    f"{name}: there is no shared memory with the key {key:x} (dada_db makes it)"
                ) from None
            raise RingError(f"{name}: the key {key:x} cannot be used: {error.strerror}") from None
        whole = segment.size >= min(LAYOUTS)
        nbufs = OldSync.from_address(segment.address).nbufs if whole else 0  # at the same place in all versions
        head = segment.size - 5 * nbufs
        sync = LAYOUTS[head].from_address(segment.address) if 0 < nbufs <= MOST_BLOCKS and head in LAYOUTS else None
        if sync is None or not 1 <= sync.n_readers <= READERS:
            segment.detach()
            raise RingError(f"{name}: the memory with the key {key:x} is not a PSRDADA ring of a known version")
        if not isinstance(sync, OldSync) and sync.on_device_id >= 0:
            segment.detach()
            raise RingError(f"{name}: the ring {key:x} lies on a GPU; expected one in host memory")
        try:
            return cls(key, name, segment, head, read_only, made=False)
        except OSError as error:
            raise RingError(f"{name}: the ring {key:x} is not complete: {error}") from None

    @classmethod
    def create(
        cls, key: int, name: str, nbufs: int, bufsz: int, readers: int = 1, layout: type[AnySync] = NewSync
    ) -> IpcRing:
        """Make a ring, as the ``dada_db`` of a version of PSRDADA does.

        Raises
        ------
        RingError
            The key is in use.
        """
        if not (1 <= nbufs <= MOST_BLOCKS and bufsz >= 1 and 1 <= readers <= READERS):
            raise ValueError(
                f"nbufs={nbufs}, bufsz={bufsz}, readers={readers}: expected at least 1, and 8 readers at most"
            )
        try:
            head = ctypes.sizeof(layout)
            identifier = call("shmget", key, head + 5 * nbufs, IPC_CREAT | IPC_EXCL | PERMISSIONS)
        except OSError as error:
            raise RingError(f"{name}: the key {key:x} cannot be used: {error.strerror}") from None
        segment = SharedMemory(identifier)
        sync = layout.from_address(segment.address)
        sync.nbufs, sync.bufsz, sync.n_readers = nbufs, bufsz, readers
        if not isinstance(sync, OldSync):
            sync.on_device_id = -1
        sync.eod[:] = [1] * TRANSFERS
        keys = [key + KEY_STEP * (i + 1) for i in range(1 + READERS + nbufs)]
        sync.semkey_connect = keys[0]
        sync.semkey_data[:] = keys[1 : 1 + READERS]
        segment.bytes[head + nbufs :] = np.frombuffer(struct.pack(f"={nbufs}i", *keys[1 + READERS :]), np.uint8)
        try:
            ring = cls(key, name, segment, head, False, made=True)
        except OSError as error:
            call("shmctl", identifier, IPC_RMID, None)
            raise RingError(f"{name}: the segments of the ring {key:x} cannot be made: {error}") from None
        ring.change(ring.connections, (WRITE, 1), (READ, readers))
        for one in ring.sets:
            ring.change(one, (SODACK, TRANSFERS), (EODACK, TRANSFERS), (PLACE, 1))
        return ring

    def change(self, which: int, *operations: tuple[int, int], timeout: float | None = None, flags: int = 0) -> bool:
        """Change semaphores of a set in one operation; returns False if that was not possible in time.

        Raises
        ------
        RingGone
            The ring was removed.
        """
        made = (Operation * len(operations))(*(Operation(number, by, flags) for number, by in operations))
        limit = None
        if timeout is not None:
            limit = ctypes.byref(Timespec(int(timeout), int(timeout % 1 * 1e9)))
        while True:
            try:
                call("semtimedop", which, made, len(operations), limit)
            except OSError as error:
                if error.errno == errno.EINTR:
                    continue
                if error.errno == errno.EAGAIN:
                    return False
                raise RingGone(f"{self.name}: the ring {self.key:x} was removed: {error.strerror}") from None
            return True

    def value(self, which: int, number: int) -> int:
        """The value of a semaphore."""
        try:
            return call("semctl", which, number, GETVAL, 0)
        except OSError as error:
            raise RingGone(f"{self.name}: the ring {self.key:x} was removed: {error.strerror}") from None

    def close(self) -> None:
        """Detach from the ring, which stays."""
        self.sync, self.count = type(self.sync)(), self.count.copy()
        for piece in (*self._pieces, self._segment):
            piece.detach()
        self._pieces, self.blocks = [], []

    def destroy(self) -> None:
        """Remove the ring from the system."""
        for which in (self.connections, *self.sets):
            call("semctl", which, 0, IPC_RMID, 0)
        for piece in (*self._pieces, self._segment):
            call("shmctl", piece.identifier, IPC_RMID, None)
        self.close()
