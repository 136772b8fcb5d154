"""Datagrams from a socket into a ring of slots, many a system call, without Python (numba)."""

from __future__ import annotations

import numpy as np
from numba import njit, types

JIT = {"cache": True, "nogil": True, "error_model": "numpy"}
HEAD, TAIL, STOP, OVERFLOW, TRUNCATED = range(5)
WAITFORONE, DONTWAIT, TRUNC = 0x10000, 0x40, 0x20
HDR = 8
"""Words of 8 bytes of Linux's ``struct mmsghdr`` on 64-bit machines; the last holds the received length."""
FLAGS, LENGTH = 6, 7

_recvmmsg = types.ExternalFunction(
    "recvmmsg", types.int32(types.int32, types.intp, types.uint32, types.int32, types.intp)
)
_sendmmsg = types.ExternalFunction("sendmmsg", types.int32(types.int32, types.intp, types.uint32, types.int32))
_usleep = types.ExternalFunction("usleep", types.int32(types.uint32))


@njit(**JIT)
def receive(fd, headers, address, lengths, slots, batch, drop, state):
    """Fill slots until ``state[STOP]``, then with what the kernel still has, at most a ring of it.

    The ring holds ``state[HEAD] - state[TAIL]`` of ``slots``.

    ``headers`` are ``slots + batch`` mmsghdrs at ``address``; the last ``batch`` lead to spare slots, whose datagrams
    are dropped and counted when the ring is full (``drop``).  A datagram that did not fit its slot has length -1.
    """
    left = slots
    while state[STOP] == 0 or (left > 0 and fd >= 0):
        last = state[STOP] != 0
        head = state[HEAD]
        free = slots - (head - state[TAIL])
        first = head % slots
        most = min(batch, free, slots - first)
        spare = most == 0
        if spare:
            if not drop:
                if last:
                    break
                _usleep(np.uint32(500))
                continue
            first, most = slots, batch
        n = _recvmmsg(
            np.int32(fd), address + 8 * HDR * first, np.uint32(most), np.int32(DONTWAIT if last else WAITFORONE), 0
        )
        if n <= 0:
            if last:
                break
            _usleep(np.uint32(200))
            continue
        left -= n if last else 0
        if spare:
            state[OVERFLOW] += n
            continue
        for i in range(first, first + n):
            cut = headers[i, FLAGS] & TRUNC
            lengths[i] = -1 if cut else np.int64(headers[i, LENGTH] & 0xFFFFFFFF)
            state[TRUNCATED] += 1 if cut else 0
            headers[i, FLAGS] = 0
        state[HEAD] = head + n


@njit(**JIT)
def send(fd, address, first, count):
    """Send the mmsghdrs ``first : first + count``; how many the kernel took."""
    sent = 0
    while sent < count:
        n = _sendmmsg(np.int32(fd), address + 8 * HDR * (first + sent), np.uint32(count - sent), np.int32(0))
        if n <= 0:
            break
        sent += n
    return sent
