"""Datagrams from UDP sockets: a thread of compiled code a socket, which waits for nobody.

The thread calls ``recvmmsg`` and never takes Python's lock, so that plots, searches and everything else written in
Python cannot hold it up.  What it receives waits in a ring of slots for `UdpReceiver.batch`.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEAD, TAIL, STOP, OVERFLOW, TRUNCATED = range(5)
BATCH = 64
MOST_BUFFER = 2**26
HDR = 8


class UdpReceiver:
    """Receive datagrams.

    Parameters
    ----------
    host, port : str, int
        Where to listen; port 0 takes a free one.
    slot_bytes : int
        Longest datagram; longer ones count as truncated.
    memory : int
        Bytes of the ring.
    policy : {"drop", "block"}
        What happens when the ring is full: datagrams are read and counted, or left to the kernel, which drops them
        uncounted (`kernel_drops` tells).
    socket_buffer : int, optional
        Bytes to ask the kernel for; as many as it grants (``net.core.rmem_max``) by default, 0 for its own default.

    Attributes
    ----------
    address : (str, int)
    granted : int
        Bytes of the kernel's buffer.
    real_time : bool
        Whether the thread runs before all ordinary ones, which takes root or CAP_SYS_NICE.

    Raises
    ------
    OSError
        When the port is taken or the address is not one of this machine.
    RuntimeError
        On systems without ``recvmmsg``.

    Examples
    --------
    >>> with UdpReceiver("127.0.0.1", 0) as receiver:
    ...     with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    ...         _ = sender.sendto(b"one", receiver.address)
    ...     while not len(lengths := receiver.batch(16)[1]):
    ...         pass
    >>> lengths.tolist()
    [3]
    """

    def __init__(
        self, host: str, port: int, *, slot_bytes: int = 9216, memory: int = 2**26, policy: str = "drop",
        socket_buffer: int | None = None,
    ) -> None:  # fmt: skip
        check_system()
        if policy not in ("drop", "block"):
            raise ValueError(f"policy={policy!r}: expected 'drop' or 'block'")
        if not 64 <= slot_bytes <= 65535:
            raise ValueError(f"slot_bytes={slot_bytes}: expected 64 to 65535")
        self.policy = policy
        self.slots = max(4 * BATCH, memory // slot_bytes)
        self.buffers = np.zeros((self.slots + BATCH, slot_bytes), np.uint8)
        self.buffers.fill(0)  # pages are mapped now, not while packets wait
        self.lengths = np.zeros(self.slots + BATCH, np.int64)
        self._headers, self._vectors = message_headers(self.buffers)
        self.state = np.zeros(8, np.int64)
        self.state[STOP] = 1
        self._receive_from(-1)  # loaded or compiled before a packet can wait
        self.state[:] = 0
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_DGRAM)
        try:
            if socket_buffer != 0:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, socket_buffer or MOST_BUFFER)
            self.socket.bind((host, port))
        except (OSError, OverflowError) as error:
            self.socket.close()
            raise OSError(f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}") from None
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 100_000))
        self.granted = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        self.address: tuple[str, int] = self.socket.getsockname()[:2]
        self._inode = os.fstat(self.socket.fileno()).st_ino
        self._thread = threading.Thread(target=self._receive, name=f"udp-{self.address[1]}", daemon=True)
        self.real_time = False
        self._running = threading.Event()
        self._thread.start()
        self._running.wait()

    def _receive(self) -> None:
        self.real_time = first_served()
        self._running.set()
        self._receive_from(self.socket.fileno())

    def _receive_from(self, handle: int) -> None:
        from skysieve.dedispersion.stream import cpu_receive

        cpu_receive.receive(
            handle, self._headers, self._headers.ctypes.data, self.lengths, self.slots, BATCH,
            self.policy == "drop", self.state,
        )  # fmt: skip

    @property
    def waiting(self) -> int:
        """Datagrams in the ring."""
        return int(self.state[HEAD] - self.state[TAIL])

    @property
    def fill(self) -> float:
        """Part of the ring that is taken."""
        return self.waiting / self.slots

    def batch(self, most: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The next datagrams, at most so many, and their lengths (-1: too long for a slot); valid until `release`."""
        head, tail = int(self.state[HEAD]), int(self.state[TAIL])
        first = tail % self.slots
        n = min(most, head - tail, self.slots - first)
        return self.buffers[first : first + n], self.lengths[first : first + n]

    def release(self, count: int) -> None:
        """Give back the slots of the oldest datagrams."""
        self.state[TAIL] += count

    def counts(self) -> dict[str, int]:
        """Datagrams received, dropped for want of room, too long; those that the kernel dropped."""
        received = int(self.state[HEAD] + self.state[OVERFLOW])
        return {
            "datagrams": received, "ring_overflow": int(self.state[OVERFLOW]), "oversized": int(self.state[TRUNCATED]),
            "kernel_drops": self.kernel_drops(),
        }  # fmt: skip

    def kernel_drops(self) -> int:
        """Datagrams that the kernel dropped because its buffer was full; -1 where it does not tell."""
        name = "/proc/net/udp6" if self.socket.family == socket.AF_INET6 else "/proc/net/udp"
        try:
            with open(name, encoding="ascii") as table:
                rows = [line.split() for line in table.readlines()[1:]]
        except OSError:
            return -1
        return next((int(words[12]) for words in rows if words[9] == str(self._inode)), -1)

    def halt(self) -> None:
        """Receive what waits in the kernel, and no more; what is in the ring stays."""
        self.state[STOP] = 1
        self._thread.join()

    def close(self) -> None:
        """Stop the thread and close the socket."""
        self.halt()
        self.socket.close()

    def __enter__(self) -> UdpReceiver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def check_system() -> None:
    """Refuse systems that lack ``recvmmsg`` and ``sendmmsg``, or have other structures."""
    if sys.platform != "linux" or struct.calcsize("P") != 8:
        raise RuntimeError("UDP packets are sent and received on 64-bit Linux only")


def first_served() -> bool:
    """Let this thread run before all ordinary ones, where the system allows it; whether it does.

    A kernel's default buffer holds a millisecond or two of a gigabit a second; a thread that wakes on busy cores may
    have to wait for eight (measured), with real-time priority for 0.2.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:  # not allowed; some containers know no such priority
        return False
    return True


def message_headers(buffers: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Linux ``struct mmsghdr`` for each row of buffers, and the ``struct iovec`` that they point to."""
    n, size = buffers.shape
    vectors = np.zeros((n, 2), np.uint64)
    vectors[:, 0] = buffers.ctypes.data + np.arange(n) * buffers.strides[0]
    vectors[:, 1] = size
    headers = np.zeros((n, HDR), np.uint64)
    headers[:, 2] = vectors.ctypes.data + np.arange(n) * 16
    headers[:, 3] = 1
    assert ctypes.sizeof(ctypes.c_void_p) == 8
    return headers, vectors
