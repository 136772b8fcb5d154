"""Receive datagrams from UDP sockets: one thread of compiled code per port.

The thread calls ``recvmmsg`` and never takes Python's lock, so that Python code cannot delay it.  The datagrams wait in
a ring of slots for `UdpReceiver.batch`.

While the thread waits for a core, or while the host of a virtual machine has taken the core away, datagrams collect in
the kernel.  Its default buffer of 208 KiB holds 12 datagrams of 8 KiB (measured; each takes 17 KiB), which is 0.8 ms at
a gigabit per second.  If the kernel grants only a small buffer, up to 64 sockets therefore share the port, each with
its own buffer.
"""

from __future__ import annotations

import ctypes
import os
import platform
import select
import socket
import struct
import sys
import threading
from typing import TYPE_CHECKING

import numpy as np

from skysieve.core.checks import one_of
from skysieve.core.plan import Closing
from skysieve.dedispersion.stream.records import POLICIES, Policy

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_BUFFER = 2**26
ENOUGH_BUFFER = 2**22
"""Bytes that the kernel should grant a socket.  If it grants less, several sockets share the port and hold four times
as much together.
"""
MOST_SOCKETS = 64
SWEEP, LONG_SWEEP = 256, 1024
"""Most datagrams that are taken before they are published; with many sockets more, so that they can be put in order."""
PAUSE = 200
"""Microseconds to wait for more datagrams, if the kernel has room for them."""
SO_RCVBUFFORCE, SO_TIMESTAMPNS, SO_ATTACH_REUSEPORT_CBPF = 33, 35, 51
ANY_SOCKET = (0x20, 0xFFFFF000 + 56), (0x94, 0), (0x16, 0)
"""A program for the kernel: load a random number, take it modulo the number of sockets, return it."""


class UdpReceiver(Closing):
    """Receives datagrams.

    Parameters
    ----------
    host, port : str, int
        The address to listen on; port 0 takes a free one.
    slot_bytes : int
        Longest datagram; longer ones are counted as oversized.
    memory : int
        Bytes of the ring.
    policy : {"drop", "block"}
        When the ring is full, datagrams are read, dropped and counted ("drop"), or left to the kernel ("block"), which
        drops and counts them (`kernel_drops`).
    socket_buffer : int, optional
        Bytes of buffer to request from the kernel, 64 MiB by default; it grants at most ``net.core.rmem_max``, or
        everything with CAP_NET_ADMIN.  0 leaves the kernel's default.
    sockets : int, optional
        Sockets that share the port, each with its own buffer, 1 to 64.  The default is one if it is granted 4 MiB, else
        as many as hold 16 MiB together.  The kernel gives each datagram to any of them; `order` restores the order in
        which the kernel received them.

    Attributes
    ----------
    address : (str, int)
    granted : int
        Bytes of the kernel's buffer for each socket.
    sockets : list of socket.socket
    real_time : bool
        Whether the thread has real-time priority, which needs root or CAP_SYS_NICE.

    Raises
    ------
    OSError
        The port is in use, or the address is not one of this machine.
    RuntimeError
        The system has no ``recvmmsg``.

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
        self, host: str, port: int, *, slot_bytes: int = 9216, memory: int = 2**26, policy: Policy = "drop",
        socket_buffer: int | None = None, sockets: int | None = None,
    ) -> None:  # fmt: skip
        check_system()
        one_of("policy", policy, POLICIES)
        if not 64 <= slot_bytes <= 65535:
            raise ValueError(f"slot_bytes={slot_bytes}: expected 64 to 65535")
        if sockets is not None and not 1 <= sockets <= MOST_SOCKETS:
            raise ValueError(f"sockets={sockets}: expected 1 to {MOST_SOCKETS}")
        from .cpu_udp import CONTROL

        self.policy = policy
        count = socket_count(socket_buffer) if sockets is None else sockets
        self.sweep = SWEEP if count == 1 else LONG_SWEEP
        self.slots = max(self.sweep, memory // slot_bytes)
        rows = self.slots + 2 * self.sweep
        self.buffers = np.zeros((rows, slot_bytes), np.uint8)
        self.buffers.fill(0)  # map the pages now, not while packets wait
        self.lengths, self._marks = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self._headers, self._vectors = message_headers(self.buffers)
        self._controls = np.zeros((rows, CONTROL), np.int64)
        self._stamps = np.zeros(0, np.int64)
        self._events, self._words, self._word = event_buffer()
        self._at = self._pause = 0
        self.state = np.zeros(8, np.int64)
        self._load()
        self.sockets = open_sockets(host, port, socket_buffer, count)
        self.granted = self.sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        self.address: tuple[str, int] = self.sockets[0].getsockname()[:2]
        if len(self.sockets) > 1:
            self._stamps = np.zeros(rows, np.int64)
            self._headers[:, 4] = self._controls.ctypes.data + np.arange(rows) * 8 * CONTROL
            self._headers[:, 5] = 8 * CONTROL
        self._pause = PAUSE if self.granted * len(self.sockets) >= ENOUGH_BUFFER else 0
        self._inodes = {str(os.fstat(one.fileno()).st_ino) for one in self.sockets}
        self._queue = select.epoll(len(self.sockets))
        for one in self.sockets:
            self._queue.register(one.fileno(), select.EPOLLIN)
        self._thread = threading.Thread(target=self._receive, name=f"udp-{self.address[1]}", daemon=True)
        self.real_time = False
        self._running = threading.Event()
        self._thread.start()
        self._running.wait()

    def _load(self) -> None:
        """Load or compile the receiving functions before packets can wait."""
        from . import cpu_udp

        self.state[cpu_udp.STOP] = 1
        self._receive_from(-1)
        cpu_udp.give_back(self.state, 0)
        cpu_udp.published(self.state)
        self.state[:] = 0

    def _receive(self) -> None:
        self.real_time = request_real_time()
        self._running.set()
        self._receive_from(self._queue.fileno())

    def _receive_from(self, handle: int) -> None:
        from . import cpu_udp

        cpu_udp.receive(
            handle, self._events, self._events.ctypes.data, self._words, self._word, self._headers,
            self._headers.ctypes.data, self._controls, self._stamps, self._marks, self.lengths, self.slots, self.sweep,
            self.policy == "drop", self._pause, self.state,
        )  # fmt: skip

    @property
    def waiting(self) -> int:
        """Datagrams in the ring."""
        from .cpu_udp import TAIL, published

        return int(published(self.state) - self.state[TAIL])

    @property
    def fill(self) -> float:
        """Fraction of the ring that is in use."""
        return self.waiting / self.slots

    def batch(self, most: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """At most ``most`` next datagrams, valid until `release`, and their lengths (-1: too long for a slot)."""
        from .cpu_udp import WRAP

        first, n = self._at, min(most, self.waiting)
        marks = self._marks[first : first + n]
        ends = np.flatnonzero(marks)
        wraps = np.flatnonzero(marks == WRAP)
        if len(wraps):
            n = int(wraps[0]) + 1
        elif len(ends):  # take whole sweeps: within a sweep the datagrams may be in any order
            n = int(ends[-1]) + 1
        return self.buffers[first : first + n], self.lengths[first : first + n]

    def order(self, count: int) -> NDArray[np.int64] | None:
        """Order in which the kernel received the oldest ``count`` datagrams; None if they are in that order already."""
        if not len(self._stamps):
            return None
        return np.argsort(self._stamps[self._at : self._at + count], kind="stable")

    def release(self, count: int) -> None:
        """Release the slots of the oldest datagrams."""
        from .cpu_udp import WRAP, give_back

        if count:
            self._at += count
            if self._marks[self._at - 1] == WRAP:
                self._at = 0
            give_back(self.state, count)

    def counts(self) -> dict[str, int]:
        """Datagrams received, dropped because the ring was full, too long, dropped by the kernel."""
        from .cpu_udp import HEAD, OVERFLOW, TRUNCATED

        received = int(self.state[HEAD] + self.state[OVERFLOW])
        return {
            "datagrams": received, "ring_overflow": int(self.state[OVERFLOW]), "oversized": int(self.state[TRUNCATED]),
            "kernel_drops": self.kernel_drops(),
        }  # fmt: skip

    def kernel_drops(self) -> int:
        """Datagrams that the kernel dropped because its buffers were full; -1 if that is unknown."""
        name = "/proc/net/udp6" if self.sockets[0].family == socket.AF_INET6 else "/proc/net/udp"
        try:
            with open(name, encoding="ascii") as table:
                rows = [line.split() for line in table.readlines()[1:]]
        except OSError:
            return -1
        drops = [int(words[12]) for words in rows if words[9] in self._inodes]
        return sum(drops) if len(drops) == len(self.sockets) else -1

    def halt(self) -> None:
        """Receive the datagrams that wait in the kernel, then stop; the datagrams in the ring can still be read."""
        from .cpu_udp import STOP

        self.state[STOP] = 1
        self._thread.join()

    def close(self) -> None:
        """Stop the thread and close the sockets."""
        self.halt()
        self._queue.close()
        for one in self.sockets:
            one.close()


def check_system() -> None:
    """Refuse systems that lack ``recvmmsg`` and ``sendmmsg``, or whose structures differ."""
    if sys.platform != "linux" or struct.calcsize("P") != 8:
        raise RuntimeError("UDP packets are sent and received on 64-bit Linux only")


def socket_count(buffer: int | None) -> int:
    """Number of sockets that should share a port, from the buffer that the kernel grants to one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        request_buffer(one, buffer)
        granted = one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    return 1 if granted >= ENOUGH_BUFFER else min(MOST_SOCKETS, 4 * ENOUGH_BUFFER // max(1, granted))


def request_buffer(one: socket.socket, buffer: int | None) -> None:
    """Request a buffer from the kernel: None for the largest that it grants, 0 for its default.

    With CAP_NET_ADMIN the kernel grants any size, otherwise at most ``net.core.rmem_max``.
    """
    if buffer == 0:
        return
    size = min(buffer or MOST_BUFFER, 2**30)
    try:
        one.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, size)
    except PermissionError:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


def open_sockets(host: str, port: int, buffer: int | None, count: int) -> list[socket.socket]:
    """Open sockets that share a port; the kernel gives each datagram to any one of them.

    The first is bound alone, so that a port in use is refused; the others join it.
    """
    made: list[socket.socket] = []
    try:
        while len(made) < count:
            one = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
            made.append(one)
            request_buffer(one, buffer)
            if len(made) > 1:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind((host, port))
            if len(made) == 1:
                port = one.getsockname()[1]
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(count > 1))
        if len(made) > 1:
            for one in made:
                one.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            program = b"".join(
                struct.pack("HBBI", code, 0, 0, len(made) if code == 0x94 else k) for code, k in ANY_SOCKET
            )
            room = ctypes.create_string_buffer(program, len(program))
            made[0].setsockopt(
                socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF,
                struct.pack("HxxxxxxP", len(ANY_SOCKET), ctypes.addressof(room)),
            )  # fmt: skip
    except (OSError, OverflowError) as error:
        for one in made:
            one.close()
        raise OSError(f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}") from None
    return made


def check_free(places: list[tuple[str, int]], kind: int = socket.SOCK_DGRAM, purpose: str = "listen") -> None:
    """Refuse ports that are in use, before long work; `purpose` is what the program wants to do there.

    Raises
    ------
    OSError
        A port is in use, or is given twice.
    """
    made: list[socket.socket] = []
    try:
        for host, port in places:
            one = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind)
            made.append(one)
            try:
                if kind == socket.SOCK_STREAM:  # as servers set it
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind((host, port))
            except (OSError, OverflowError) as error:
                reason = getattr(error, "strerror", None) or error
                raise OSError(f"cannot {purpose} on {host}:{port}: {reason}") from None
    finally:
        for one in made:
            one.close()


def event_buffer() -> tuple[NDArray[np.int32], int, int]:
    """Memory for the events of an epoll, 4-byte words per event, and the index of the word with the socket.

    ``struct epoll_event`` is packed on x86-64 only.
    """
    words, word = (3, 1) if platform.machine() in ("x86_64", "AMD64") else (4, 2)
    return np.zeros(words * MOST_SOCKETS, np.int32), words, word


def request_real_time() -> bool:
    """Give this thread real-time priority; return whether the system allowed it.

    The kernel's default buffer holds a millisecond or two of a gigabit per second.  On busy cores an ordinary thread
    that wakes may wait for eight milliseconds (measured); a thread with real-time priority waits for 0.2 ms.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:  # not allowed, or not supported by the container
        return False
    return True


def message_headers(buffers: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Linux's ``struct mmsghdr`` for each row of buffers, and the ``struct iovec`` that they point to."""
    n, size = buffers.shape
    vectors = np.zeros((n, 2), np.uint64)
    vectors[:, 0] = buffers.ctypes.data + np.arange(n) * buffers.strides[0]
    vectors[:, 1] = size
    headers = np.zeros((n, 8), np.uint64)
    headers[:, 2] = vectors.ctypes.data + np.arange(n) * 16
    headers[:, 3] = 1
    assert ctypes.sizeof(ctypes.c_void_p) == 8
    return headers, vectors
