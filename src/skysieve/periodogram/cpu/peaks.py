"""numba kernels: the best peaks of a periodogram that is computed one block at a time.

A candidate is a sample above its left and not below its right neighbour (the ends of the grid count).  Peaks are
chosen greedily: the highest candidate, ties to the lower frequency, then the highest at least ``distance`` samples
(`search.least_distance`) from all chosen, and behind those that are wanted the highest of the others (see
:mod:`skysieve.periodogram.numerics.peaks`).
Candidates are rows of ``index, left, power, right`` (standard powers) until the object is complete.

Candidates come in order of frequency, and then dropping some early is exact: once the k-th choice among those seen
has power p, later candidates can only raise the k-th choice (each choice they displace makes room for one at least
as high), and a candidate below it can neither be among the first k nor suppress one that is.  A further choice must
have a share of the highest power, which can only rise as well; so can the power of the last of them.
"""

from __future__ import annotations

import numpy as np

from skysieve.core.cpu.jit import ZERO, njit

from .comb_simd import outline

FULL = 256
"""Number of candidates at which those that are too low are dropped for the first time."""
STRIP = 64
"""Number of samples that are skipped together if none reaches the floor."""
LEFT, HERE, FLOOR, LIMIT = range(4)
"""Cells of the state of one object: the last two samples (-inf before the first), the power below
which candidates are dropped, and the number of candidates at which to drop some again."""
FREE, NEAR, TAKEN = np.int8(0), np.int8(1), np.int8(2)
"""State of a candidate while some are chosen: ``NEAR`` is one within the least distance of a peak."""


@njit(nogil=True, error_model="numpy")
def begin(state):
    """Set the state to that before the first sample."""
    state[LEFT] = state[HERE] = state[FLOOR] = -np.inf
    state[LIMIT] = FULL


@njit(nogil=True, error_model="numpy")
def copy_row(source, i, target, k):
    """Copy row ``i`` to row ``k``.  (Slice assignment would compile numba's formatting of shape errors: seconds.)"""
    for column in range(4):
        target[k, column] = source[i, column]


@njit(nogil=True, error_model="numpy")
def grow(found):
    """A copy with room for twice as many rows."""
    n = found.shape[0]
    grown = np.empty((2 * n, 4))
    for i in range(n):
        copy_row(found, i, grown, i)
    return grown


@njit(nogil=True, error_model="numpy")
def find_candidates(block, n, base, state, found, count):
    """Add the candidates among ``block[:n]``, samples ``base..`` of one object, to ``found[count:]``.

    The last sample of a block is judged with the next block (:func:`finish_candidates` ends the object).
    Returns ``found`` (grown where needed) and the count.
    """
    outline()
    left, here, floor = state[LEFT], state[HERE], state[FLOOR]
    for strip in range(0, n, STRIP):
        m = min(STRIP, n - strip)
        high = 0
        for i in range(strip, strip + m):
            high += block[i] >= floor
        if high == 0 and not here >= floor:
            left = np.float64(block[strip + m - 2]) if m > 1 else here
            here = np.float64(block[strip + m - 1])
            continue
        for i in range(strip, strip + m):
            right = np.float64(block[i])
            # comparisons with NaN are false: NaN is no candidate, and no obstacle to its neighbours
            if here >= floor and here > -np.inf and not here <= left and not right > here:
                if count == found.shape[0]:
                    found = grow(found)
                found[count, 0] = base + i - 1
                found[count, 1] = left
                found[count, 2] = here
                found[count, 3] = right
                count += 1
            left, here = here, right
    state[LEFT], state[HERE] = left, here
    return found, count


@njit(nogil=True, error_model="numpy")
def finish_candidates(end, state, found, count):
    """Judge the last sample of the grid (``end`` samples in all)."""
    closing = np.empty(1)
    closing[0] = -np.inf
    return find_candidates(closing, closing.shape[0], end, state, found, count)


@njit(nogil=True, error_model="numpy")
def position(index, values):
    """Coordinate of a sample in the units of ``distance``."""
    return values[np.int64(index)] if values.shape[0] > 0 else index


@njit(nogil=True, error_model="numpy")
def choose(found, count, values, distance, wanted, share, chosen):
    """Choose rows of ``found``; writes their numbers to ``chosen`` and returns how many there are, and how many of them
    are peaks that are at least ``distance`` from one another.

    ``distance`` is in samples, or in frequency where ``values`` holds the frequencies of an irregular grid.  Behind
    these peaks, ``wanted`` at most, follow the highest of all others whose power is at least ``share`` of the highest.
    """
    outline()
    state = np.full(count, FREE)
    taken, first = ZERO, ZERO
    last, least, spaced = -1.0, -np.inf, True
    while taken < chosen.shape[0]:
        spaced = spaced and taken < wanted
        best, power = -1, -np.inf
        for i in range(count):
            if state[i] == TAKEN or (spaced and state[i] == NEAR):
                continue
            if spaced and last >= 0 and abs(position(found[i, 0], values) - last) < distance:
                state[i] = NEAR
            elif found[i, 2] > power:
                best, power = i, found[i, 2]
        if spaced and best < 0:
            spaced = False
            continue
        if best < 0 or (not spaced and power < least):
            break
        if taken == 0:
            least = share * power
        state[best] = TAKEN
        chosen[taken] = best
        taken += 1
        first += spaced
        last = position(found[best, 0], values)
    return taken, first


@njit(nogil=True, error_model="numpy")
def drop_low(found, count, values, distance, wanted, share, chosen, state):
    """Drop candidates that cannot become peaks any more, and raise the floor; returns the number of the others."""
    outline()
    taken, first = choose(found, count, values, distance, wanted, share, chosen)
    kept = count
    floor = -np.inf
    if first == wanted:
        least = found[chosen[taken - 1], 2] if taken == chosen.shape[0] else share * found[chosen[0], 2]
        floor = min(least, found[chosen[wanted - 1], 2])
    if floor > -np.inf:
        state[FLOOR] = floor
        kept = ZERO
        for i in range(count):
            if found[i, 2] >= floor:
                copy_row(found, i, found, kept)
                kept += 1
    state[LIMIT] = 2 * kept + FULL
    return kept
