"""Receive datagrams from sockets into a ring of slots, many per system call, without Python's lock (numba)."""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from skysieve.core.cpu.jit import njit

JIT = {"nogil": True, "error_model": "numpy"}
HEAD, TAIL, STOP, OVERFLOW, TRUNCATED, AT = range(6)
"""Indices of the state: number of datagrams published, number given back, whether to stop, number of datagrams dropped,
number of datagrams that were too long, slot that is written next.
"""
EACH = 32
"""Most datagrams that are taken at a time from one of several sockets."""
LAST, WRAP = 1, 2
"""Marks of the last slot of a sweep: the next sweep begins in the next slot, or in slot 0."""
DONTWAIT, TRUNC = 0x40, 0x20
CONTROL = 4
"""8-byte words of a ``struct cmsghdr`` with a ``struct timespec``."""
HDR = 8
"""8-byte words of Linux's ``struct mmsghdr`` on 64-bit machines; the last one holds the received length."""
ROOM, FLAGS, LENGTH = 5, 6, 7

_recvmmsg = types.ExternalFunction(
    "recvmmsg", types.int32(types.int32, types.intp, types.uint32, types.int32, types.intp)
)
_sendmmsg = types.ExternalFunction("sendmmsg", types.int32(types.int32, types.intp, types.uint32, types.int32))
_epoll_wait = types.ExternalFunction("epoll_wait", types.int32(types.int32, types.intp, types.int32, types.int32))
_usleep = types.ExternalFunction("usleep", types.int32(types.uint32))


@intrinsic
def load_acquire(typingctx, array, index):
    """Load an element; everything that another thread wrote before it stored the element is visible afterwards."""

    def code(context, builder, signature, args):
        held = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.load_atomic(builder.gep(held.data, [args[1]]), "acquire", 8)

    return types.int64(array, types.int64), code


@intrinsic
def store_release(typingctx, array, index, value):
    """Store an element, after all earlier reads and writes on any processor."""

    def code(context, builder, signature, args):
        held = context.make_array(signature.args[0])(context, builder, args[0])
        builder.store_atomic(args[2], builder.gep(held.data, [args[1]]), "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), code


@njit(**JIT)
def published(state):
    """How many datagrams have been published: their slots may be read."""
    return load_acquire(state, HEAD)


@njit(**JIT)
def give_back(state, count):
    """Release the oldest ``count`` slots, which have been read."""
    store_release(state, TAIL, state[TAIL] + count)


@njit(**JIT)
def receive(
    queue, events, address_of_events, words, word, headers, address, controls, stamps, marks, lengths, slots, sweep,
    drop, pause, state,
):  # fmt: skip
    """Fill slots until ``state[STOP]``, then with the datagrams that the kernel still holds, at most a ring of them.

    ``queue`` is an epoll of all sockets.  ``events`` is memory for its results: each has ``words`` 4-byte words, and
    the word with index ``word`` is the socket.  ``headers`` are ``slots + sweep`` mmsghdrs at ``address``; another
    ``sweep`` of them follow, whose datagrams are dropped and counted when the ring is full and ``drop`` is set.  A
    datagram too long for its slot has length -1.  With several sockets, ``controls`` receive the time at which the
    kernel received each datagram, and ``stamps`` hold it in nanoseconds.  A sweep of all sockets fills consecutive
    slots and ends with a mark.  After a small sweep the function waits ``pause`` microseconds, so that the next sweep
    is larger.
    """
    left = slots
    many = len(stamps) > 0
    timeout = 100
    while load_acquire(state, STOP) == 0 or (left > 0 and queue >= 0):
        if load_acquire(state, STOP) != 0:
            timeout = 0
        ready = _epoll_wait(types.int32(queue), address_of_events, types.int32(len(events) // words),
                            types.int32(timeout))  # fmt: skip
        if ready <= 0:
            if timeout == 0:
                break
            if ready < 0:
                _usleep(types.uint32(200))
            continue
        head = state[HEAD]
        free = slots - (head - load_acquire(state, TAIL))
        if free <= 0:
            if not drop:
                if timeout == 0:
                    break
                _usleep(types.uint32(500))
                continue
            for e in range(ready):
                n = _recvmmsg(types.int32(events[words * e + word]), address + 8 * HDR * (slots + sweep),
                              types.uint32(sweep), types.int32(DONTWAIT), 0)  # fmt: skip
                for i in range(slots + sweep, slots + sweep + max(n, 0)):
                    headers[i, ROOM] = 8 * CONTROL if many else 0
                    headers[i, FLAGS] = 0
                if n > 0:
                    state[OVERFLOW] += n
                    left -= n if timeout == 0 else 0
            continue
        first = state[AT]
        most, taken = min(free, sweep), 0
        for e in range(ready):
            if taken == most:
                break
            at = first + taken
            count = min(most - taken, EACH if many else sweep)
            n = _recvmmsg(types.int32(events[words * e + word]), address + 8 * HDR * at, types.uint32(count),
                          types.int32(DONTWAIT), 0)  # fmt: skip
            for i in range(at, at + n):
                cut = headers[i, FLAGS] & TRUNC
                lengths[i] = -1 if cut else types.int64(headers[i, LENGTH] & 0xFFFFFFFF)
                state[TRUNCATED] += 1 if cut else 0
                headers[i, FLAGS] = 0
                marks[i] = 0
                if many:
                    stamps[i] = controls[i, 2] * 1_000_000_000 + controls[i, 3]
                    headers[i, ROOM] = 8 * CONTROL
            taken += max(n, 0)
        if taken == 0:
            continue
        left -= taken if timeout == 0 else 0
        end = first + taken
        marks[end - 1] = LAST if end < slots else WRAP
        state[AT] = end if end < slots else 0
        store_release(state, HEAD, head + taken)
        if pause > 0 and taken < EACH and timeout:
            _usleep(types.uint32(pause))


@njit(**JIT)
def send(fd, address, first, count):
    """Send the mmsghdrs ``first : first + count``; return how many the kernel accepted."""
    sent = 0
    while sent < count:
        n = _sendmmsg(types.int32(fd), address + 8 * HDR * (first + sent), types.uint32(count - sent), types.int32(0))
        if n <= 0:
            break
        sent += n
    return sent
