"""Exact de-dispersion as a program of row additions (numba).

The sums ``y[m][t] = sum over c of x[c][t + n(c, m)]`` of neighbouring DMs have terms in common: over a few neighbouring
channels the delays *relative to the first of them* have few distinct patterns, because they are whole numbers that
hardly change from DM to DM.  Channels are joined in pairs, pairs of pairs, ... up to groups of ``G``, and at each level
every distinct pattern is summed once, by one addition of two shifted rows of the level below.  Then the sum of a DM is
the sum of one row from each group.  Nothing is approximated: the same integers are added as in the direct sum.

A program is a list of row additions for time blocks of ``T`` samples.  Level 1 adds two channels of the input (uint8 or
uint16 to uint16; float32), higher levels add rows of scratch memory, and the last level writes to ``F``.  From there
`accumulate` adds ``NB`` groups at a time to the sums of the tile.  16-bit sums are added to 32-bit sums before they can
overflow.

Cost of a tile of D DMs, in additions of rows of T samples: about ``C (P2/2 + P4/4 + P8/8 + ...) + D C / G``, where P is
the number of patterns of a level; brute force takes ``D C``.  Reading L2 limits the speed: scratch memory is a few
hundred KiB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.cpu.jit import njit

from .simd import LANES, accumulate_1, accumulate_2, accumulate_4, accumulate_8, add_rows, widen_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

JIT = {"nogil": True, "error_model": "numpy"}


def program_scratch(D: int, G: int) -> tuple[NDArray[Any], ...]:
    """Return the scratch memory of `make_program`; numba takes half a second to compile ``numpy.zeros``."""
    ids, keys, stamps = np.zeros((2, G, D), np.int32), np.zeros(4 * D, np.int64), np.zeros(4 * D, np.int32)
    low, high = np.zeros((2, G * D), np.int32), np.zeros((2, G * D), np.int32)
    of_a, of_b, shift = (np.zeros(G * D, np.int32) for _ in range(3))
    return ids, keys, stamps, np.zeros_like(stamps), low, high, np.zeros((2, G * D), np.int64), of_a, of_b, shift


@njit(**JIT)
def make_program(n, rows, G, NB, T, stride, most_span, work, ops, fin, seg, need):
    """Write the program of one tile; returns its number of operations and its cost in samples added.

    Parameters
    ----------
    n : int32 (D, C)
        Delays, not negative; C a multiple of ``G * NB``.
    rows : int64 (C,)
        Row of the input for each channel.
    G : int
        Channels of a group, a power of two above 1.
    NB : int
        Groups that are added at a time.
    T : int
        Samples of a time block, a multiple of LANES.
    stride : int
        Elements from row to row of the input.
    most_span : int
        DMs share a pattern only if its row need not be longer than ``T + most_span``.
    work : tuple
        Scratch memory, from `program_scratch`.
    ops : int64 (at least D * C, 4)
        Out: starts of the destination and of the two source rows, number of vectors.
    fin : int64 (D * C / G,)
        Out: start in F of the row of a DM and group; the groups of one addition are next to each other.
    seg : int64 (C / G, levels + 1)
        Out: first operation of each level of each group.
    need : int64 (3,)
        Out: elements of the scratch memory of even levels, of odd levels, of F.
    """
    D, C = n.shape
    L = 0
    while (1 << L) < G:
        L += 1
    H = 4 * D
    ids, keys, stamps, slots, low, high, place, of_a, of_b, shift = work
    k = 0
    stamp = 0
    cost = 0
    in_f = 0
    for g in range(C // G):
        first = g * G
        if g % NB == 0:
            in_f = 0
        seg[g, 0] = k
        for level in range(1, L + 1):
            src, dst = (level - 1) & 1, level & 1
            half = 1 << (level - 1)
            at = in_f if level == L else 0
            q = 0
            for j in range(G >> level):
                a_channel = first + 2 * half * j
                b_channel = a_channel + half
                q0 = q
                stamp += 1
                for d in range(D):
                    a = ids[src, 2 * j, d] if level > 1 else 0
                    b = ids[src, 2 * j + 1, d] if level > 1 else 0
                    x = n[d, a_channel]
                    s = n[d, b_channel] - x
                    key = ((np.int64(a) << 16) + b) * (np.int64(1) << 31) + s
                    h = ((key * 11400714819 + (key >> 27)) & 0x7FFFFFFFFFFF) % H
                    while True:
                        if stamps[h] != stamp:
                            stamps[h] = stamp
                            keys[h] = key
                            slots[h] = q
                            of_a[q], of_b[q], shift[q] = a, b, s
                            low[dst, q] = x
                            high[dst, q] = x
                            ids[dst, j, d] = q
                            q += 1
                            break
                        if keys[h] == key:
                            p = slots[h]
                            lo, hi = min(low[dst, p], x), max(high[dst, p], x)
                            if hi - lo <= most_span:
                                low[dst, p], high[dst, p] = lo, hi
                                ids[dst, j, d] = p
                                break
                        h += 1
                        if h == H:
                            h = 0
                for p in range(q0, q):
                    lo = low[dst, p]
                    vectors = (T + high[dst, p] - lo + LANES - 1) // LANES
                    ops[k, 0] = at
                    if level == 1:
                        ops[k, 1] = rows[a_channel] * stride + lo
                        ops[k, 2] = rows[b_channel] * stride + lo + shift[p]
                    else:
                        ops[k, 1] = place[src, of_a[p]] + lo - low[src, of_a[p]]
                        ops[k, 2] = place[src, of_b[p]] + lo + shift[p] - low[src, of_b[p]]
                    ops[k, 3] = vectors
                    place[dst, p] = at
                    at += vectors * LANES
                    cost += vectors * LANES
                    k += 1
            if level == L:
                in_f = at
                need[2] = max(need[2], at)
                for d in range(D):
                    p = ids[dst, 0, d]
                    fin[((g // NB) * D + d) * NB + g % NB] = place[dst, p] + n[d, first] - low[dst, p]
            else:
                need[dst] = max(need[dst], at)
            seg[g, level] = k
    return k, cost + D * (C // G) * T


@njit(**JIT)
def add_groups(acc, at, src, starts, s, vectors, NB, fresh):
    """``acc[at:] (+)= `` the sum of ``NB`` rows of ``src``."""
    if NB == 8:
        accumulate_8(acc, at, src, starts, s, vectors, fresh)
    elif NB == 4:
        accumulate_4(acc, at, src, starts, s, vectors, fresh)
    elif NB == 2:
        accumulate_2(acc, at, src, starts, s, vectors, fresh)
    else:
        accumulate_1(acc, at, src, starts, s, vectors, fresh)


@njit(**JIT)
def flush(acc, T, out, width, row, column, D, count, weight, start, fresh):
    """Add ``weight * acc`` to the first ``count`` columns of the tile's output (flat, rows of ``width``).

    If ``fresh``, the output is set to ``start`` first.
    """
    vectors = count // LANES
    for d in range(D):
        at = (row + d) * width + column
        base = d * T
        widen_rows(out, at, acc, base, vectors, weight, start, fresh)
        for i in range(vectors * LANES, count):
            out[at + i] = (start if fresh else out[at + i]) + acc[base + i] * weight


@njit(**JIT)
def run_program(
    x, t0, n_out, D, NB, T, groups, per_flush, ops, fin, seg, even, odd, F, acc, out, width, row, column, weight,
    start, fresh,
):  # fmt: skip
    """Run a program over ``n_out`` samples from ``t0`` of the input (flat)."""
    vectors = T // LANES
    L = seg.shape[1] - 1
    for block in range((n_out + T - 1) // T):
        t = t0 + block * T
        count = min(T, n_out - block * T)
        new = fresh
        for g in range(groups):
            if L == 1:
                for k in range(seg[g, 0], seg[g, 1]):
                    add_rows(F, ops[k, 0], x, ops[k, 1] + t, ops[k, 2] + t, ops[k, 3])
            else:
                for k in range(seg[g, 0], seg[g, 1]):
                    add_rows(odd, ops[k, 0], x, ops[k, 1] + t, ops[k, 2] + t, ops[k, 3])
            for level in range(2, L):
                if level & 1:
                    for k in range(seg[g, level - 1], seg[g, level]):
                        add_rows(odd, ops[k, 0], even, ops[k, 1], ops[k, 2], ops[k, 3])
                else:
                    for k in range(seg[g, level - 1], seg[g, level]):
                        add_rows(even, ops[k, 0], odd, ops[k, 1], ops[k, 2], ops[k, 3])
            if L > 1:
                last = even if L & 1 else odd
                for k in range(seg[g, L - 1], seg[g, L]):
                    add_rows(F, ops[k, 0], last, ops[k, 1], ops[k, 2], ops[k, 3])
            if g % NB == NB - 1:
                base = (g // NB) * D
                clear = (g + 1 - NB) % per_flush == 0
                for d in range(D):
                    add_groups(acc, d * T, F, fin, (base + d) * NB, vectors, NB, clear)
                if (g + 1) % per_flush == 0 or g == groups - 1:
                    flush(acc, T, out, width, row, column + block * T, D, count, weight, start, new)
                    new = False


@njit(**JIT)
def run_direct(x, t0, n_out, starts, D, C, NB, T, per_flush, acc, out, width, row, column, weight, start, fresh):
    """The direct sum over ``n_out`` samples; ``starts`` (C / NB, D, NB) holds the start of each row."""
    vectors = T // LANES
    for block in range((n_out + T - 1) // T):
        t = t0 + block * T
        count = min(T, n_out - block * T)
        new = fresh
        view = x[t:]
        for g in range(C // NB):
            clear = g * NB % per_flush == 0
            for d in range(D):
                add_groups(acc, d * T, view, starts, (g * D + d) * NB, vectors, NB, clear)
            if (g + 1) * NB % per_flush == 0 or g == C // NB - 1:
                flush(acc, T, out, width, row, column + block * T, D, count, weight, start, new)
                new = False
