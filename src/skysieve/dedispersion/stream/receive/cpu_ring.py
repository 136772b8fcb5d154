"""Place packets in a ring (numba)."""

from __future__ import annotations

import numpy as np

from skysieve.core.cpu.jit import in_interpreter, njit

JIT = {"nogil": True, "error_model": "numpy"}
HIGHEST, START, OPEN, ACCEPTED, LATE, DUPLICATE, OVERFLOW, JUMP, HELD, STALE, WHOLE, STATE = range(12)
"""Indices of a ring's state.  ``HIGHEST``: latest packet number; ``START``: first one; ``OPEN``: first one still held
(those before have been taken); ``HELD``: packets in the ring; ``STALE``: consecutive packets that were late or too far
ahead; ``WHOLE``: first number with a packet missing; ``STATE``: length.  The others count packets.
"""

PACKET_STEPS = 50.0
"""Number of steps of Python's interpreter for one packet (see `jit.STEP_SECONDS`)."""


@njit(**JIT)
def copy_bytes(given, line):
    """``line[:] = given``, in a form that compiles fast."""
    for k in range(len(line)):
        line[k] = given[k]


@in_interpreter(copy_bytes)
def copy_at_once(given, line):
    """`copy_bytes` without compiled code."""
    line[:] = given


@njit(**JIT)
def place(buffers, begin, index, number, chunk, offset, window, most_jump, restart, drop, ring, seen, state):
    """Copy the packets ``index[begin:]`` to ``ring[number % places, chunk]``; returns how many were processed.

    ``number``, ``chunk`` and ``offset`` have an entry for each row of ``buffers``.

    A packet is late if a packet more than ``window`` places ahead has arrived before it, a duplicate if it is in its
    place already, and a jump if it is more than ``most_jump`` places ahead of the latest.  The function returns early
    at a packet for which there is no room, unless ``drop`` is set and packets fill at least half of the ring.  (If they
    fill less, a gap in the data occupies the ring, and the gap will soon be taken.)  The function also returns after
    ``restart`` consecutive packets that are late or jump.
    """
    places, _, size = ring.shape
    for i in range(begin, len(index)):
        j = index[i]
        n, c = number[j], chunk[j]
        if state[HIGHEST] < 0:
            state[HIGHEST] = n
            state[OPEN] = max(0, n - window)
            state[START] = n
            state[WHOLE] = n
        if n > state[HIGHEST] + most_jump or n < state[HIGHEST] - window:
            state[JUMP if n > state[HIGHEST] else LATE] += 1
            state[STALE] += 1
            if state[STALE] >= restart:
                return i + 1
            continue
        state[STALE] = 0
        state[HIGHEST] = max(state[HIGHEST], n)
        if n >= state[OPEN] + places:
            if not drop or 2 * state[HELD] < places * ring.shape[1]:
                return i
            state[OVERFLOW] += 1
            continue
        slot = n % places
        if seen[slot, c] == n + 1:
            state[DUPLICATE] += 1
            continue
        seen[slot, c] = n + 1
        if n < state[START]:
            state[START] = n
            state[WHOLE] = n
        state[ACCEPTED] += 1
        state[HELD] += 1
        # slices: an index that might be negative would prevent vectorisation
        copy_bytes(buffers[j][offset[j] : offset[j] + size], ring[slot, c])
        state[WHOLE] = max(state[WHOLE], state[HIGHEST] - window)
        if n <= state[WHOLE] or state[WHOLE] == state[HIGHEST] - window:
            state[WHOLE] = first_awaited(seen, state[WHOLE], state[HIGHEST])
    return len(index)


@njit(**JIT)
def first_awaited(seen, first, highest):
    """The first number from ``first`` on of which not all packets have arrived."""
    for n in range(first, highest + 1):
        slot = n % len(seen)
        for c in range(seen.shape[1]):
            if seen[slot, c] != n + 1:
                return n
    return highest + 1


@njit(**JIT)
def order_falling(x, out):
    """``out[t, C - 1 - c] = x[t, c]``."""
    C = x.shape[1]
    for t in range(len(x)):
        for c in range(C):
            out[t, C - 1 - c] = x[t, c]


@njit(**JIT)
def nibbles(packed, out):
    """The two's complement 4-bit halves of bytes as floats, low half first."""
    for i in range(len(packed)):
        b = np.int32(packed[i])
        low, high = b & 15, b >> 4
        out[2 * i] = low - 16 * (low >> 3)
        out[2 * i + 1] = high - 16 * (high >> 3)
