"""Kernels that compute the numbers of `vetting.Look` from running sums of the sub-bands of a cut-out (numba).

``s`` are running sums of the samples less their level, and ``q`` of their variances; both have the shape
(bands, bins + 1).
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from skysieve.core.cpu.jit import ZERO, njit

from .refine import FARTHEST, POWER, ROUNDED, STEPS

if TYPE_CHECKING:
    from numpy.typing import NDArray

JIT = {"nogil": True, "error_model": "numpy"}
STRONGEST = 0.19
"""Part of the sub-bands that interference of a narrow band fills."""
BROAD = 8
"""Parts of the band in which the power of a candidate is compared with that of windows without dispersion: few, since
noise adds to each."""
FEW = 16, 0.6
"""The strongest 1 / ``FEW[0]`` of the sub-bands is left out if it has more than the fraction ``FEW[1]`` of the power,
since bursts fill more of the band."""
LOUDEST = 8
"""`vetting.Look.even` leaves out the strongest 1 / ``LOUDEST`` of the sub-bands, about the part that radar fills."""
BRIGHTER = 2.0
"""If the S/N in sub-bands with known interference exceeds what the other sub-bands suggest by more than this, only the
others count."""
ASIDE = 0.5
"""`vetting.Look.aside` is measured if the best window without dispersion has more than this fraction of the power.  For
candidates that are much stronger than this window it adds no information."""
QUIET, LEAST_QUIET = 0.66, 6
"""A window is quiet if it is not above the median of the five around it.  ``QUIET`` is the scatter of the quiet windows
of white noise relative to that of all, and ``LEAST_QUIET`` the fewest differences from which it is estimated."""
MAD = 1.4826
"""Standard deviation of normal numbers over the median of their absolute values."""


@njit(**JIT)
def over(a, b):
    """``a / b``, 0 where ``b`` is 0."""
    return a / b if b > 0 else 0.0


@njit(**JIT)
def power_of(excess, variance):
    """Square of the S/N of an excess, 0 if it is negative."""
    return over(excess * excess, variance) if excess > 0 else 0.0


@njit(**JIT)
def median(values, count):
    """Median of the first values, which it sorts."""
    for i in range(1, count):
        value, at = values[i], i
        while at > 0 and values[at - 1] > value:
            values[at] = values[at - 1]
            at -= 1
        values[at] = value
    return (values[(count - 1) // 2] + values[count // 2]) / 2


@njit(**JIT)
def strongest_first(values):
    """The places of values, the largest first; the first of equal ones first."""
    order = np.empty(len(values), np.int64)
    for i in range(len(values)):
        at = i
        while at > 0 and values[order[at - 1]] < values[i]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = i
    return order


@njit(**JIT)
def chosen(x, some):
    """The rows of ``x`` at the places ``some``."""
    out = np.empty((len(some), x.shape[1]))
    for i in range(len(some)):
        for k in range(x.shape[1]):  # the assignment of a whole row takes numba a second to compile
            out[i, k] = x[some[i], k]
    return out


@njit(**JIT)
def beside_window(s, q, side, w, guard, near):
    """Sums of sub-bands in a window less the level beside it, and their variances.

    Parameters
    ----------
    side, w : int
        First bin of the window, and its width.
    guard, near : int
        Bins on each side that are left out, and after them those from which the level is taken.
    """
    excess, variance = np.empty(len(s)), np.empty(len(s))
    low, high = side - guard + 1, side + w + guard - 1
    for b in range(len(s)):
        around = s[b, low] - s[b, low - near] + s[b, high + near] - s[b, high]
        weight = q[b, low] - q[b, low - near] + q[b, high + near] - q[b, high]
        variance[b] = q[b, side + w] - q[b, side]
        excess[b] = s[b, side + w] - s[b, side] - around * over(variance[b], weight)
    return excess, variance


@njit(**JIT)
def strong_few(excess, variance, pulsed, few):
    """Mark in ``few`` the strongest sub-bands if they have most of the power; returns `vetting.Look.free`.

    ``pulsed`` says in which sub-bands interference is known.
    """
    n = len(excess)
    power, total, most = np.empty(n), 0.0, 0.0
    for b in range(n):
        power[b] = power_of(excess[b], variance[b])
        total += power[b]
    order, count = strongest_first(power), max(1, n // FEW[0])
    for i in range(count):
        most += power[order[i]]
    for i in range(count):
        few[order[i]] = most > FEW[1] * total
    known, sums, powers = 0, np.zeros(2), np.zeros(2)  # [0]: sub-bands without known interference; [1]: with it
    for b in range(n):
        i = 1 if few[b] or pulsed[b] else 0
        known += i
        sums[i] += excess[b]
        powers[i] += variance[b]
    if known == 0 or known == n:
        return math.nan
    other, root = math.sqrt(powers[0]), math.sqrt(powers[1])
    free = over(sums[0], other)
    if over(sums[1], root) > free * over(root, other) + BRIGHTER:
        return free * over(math.sqrt(powers[0] + powers[1]), other)
    return math.nan


@lru_cache(maxsize=8)
def highest_sums(most: int) -> NDArray[np.float64]:
    """``highest`` of `even`, for up to ``most`` sub-bands (Blom 1958)."""
    found = np.zeros(most + 1)
    for n in range(1, most + 1):
        k = max(1, round(n / LOUDEST))
        found[n] = sum(NormalDist().inv_cdf((n - i - 0.375) / (n + 0.25)) for i in range(k))
    return found


@njit(**JIT)
def even(excess, variance, highest):
    """`vetting.Look.even`, from sums of sub-bands and their variances.

    A burst of S/N ``s`` in all ``n`` sub-bands has the S/N ``sqrt((n - k) / n) s - t / sqrt(n - k)`` in all but the
    strongest ``k``, which noise makes stronger than the others.  ``t = highest[n]`` is the mean of the sum of the ``k``
    highest of ``n`` normal numbers.
    """
    n, total, power = 0, 0.0, 0.0
    for b in range(len(excess)):
        n += 1 if variance[b] > 0 else 0
    k = max(1, int(np.rint(n / LOUDEST)))
    left = k if n >= 2 * k else 0
    for b in strongest_first(excess):
        if variance[b] > 0 and left > 0:
            left -= 1
        elif variance[b] > 0:
            total += excess[b]
            power += variance[b]
    snr = over(total, math.sqrt(power))
    return (snr + highest[n] / math.sqrt(n - k)) * math.sqrt(n / (n - k)) if n >= 2 * k else snr


@njit(**JIT)
def second_difference(z, a, b, c):
    """Difference of ``z[b]`` from the line through ``z[a]`` and ``z[c]``, in units of its error."""
    before = (c - b) / (c - a)
    after = 1 - before
    return (z[b] - before * z[a] - after * z[c]) / math.sqrt(1 + before * before + after * after)


@njit(**JIT)
def quiet_places(z, at, count, found):
    """Set the places of the values that are not above the median of the five around them; returns their number.

    ``at`` are the places of ``count`` values that are finite.
    """
    n, five = 0, np.empty(5)
    for i in range(count if count >= 5 else 0):
        first = min(max(i - 2, 0), count - 5)
        for k in range(5):
            five[k] = z[at[first + k]]
        if z[at[i]] <= median(five, len(five)):
            found[n] = at[i]
            n += 1
    return n


@njit(**JIT)
def redness(s, q, w, side, guard, var):
    """Scatter of the windows beside a candidate, relative to that of white noise.

    It is taken from second differences, so that slopes do not count.  If the quiet windows (see `QUIET`) scatter less
    than half as much, their scatter is returned: the other windows are pulses of a train.  ``var`` is the variance of a
    sample of all sub-bands.
    """
    windows, last = max(0, (side - guard) // w), s.shape[1] - 1
    z, at, quiet = np.empty(windows), np.empty(windows, np.int64), np.empty(windows, np.int64)
    every, between, n, m = np.empty(2 * windows), np.empty(2 * windows), ZERO, ZERO
    for part in range(2):  # before and after the candidate
        count = ZERO
        for i in range(windows):
            low = side - guard - (i + 1) * w if part == 0 else last - side + guard + i * w
            on = on_v = 0.0
            for b in range(len(s)):
                on += s[b, low + w] - s[b, low]
                on_v += q[b, low + w] - q[b, low]
            if on_v > 0.5 * w * var:
                z[i] = on * over(math.sqrt(w * var), on_v)
                at[count] = i
                count += 1
        for i in range(1, count - 1):
            if at[i + 1] - at[i - 1] == 2:
                every[n] = abs(second_difference(z, at[i - 1], at[i], at[i + 1]))
                n += 1
        few = quiet_places(z, at, count, quiet)
        for i in range(1, few - 1):
            between[m] = abs(second_difference(z, quiet[i - 1], quiet[i], quiet[i + 1]))
            m += 1
    if n < 4:
        return 1.0
    red = MAD * median(every, n)
    rest = MAD * median(between, m) / QUIET if m >= LEAST_QUIET else red
    return rest if rest < red / 2 else red


@njit(**JIT)
def undispersed(s, q, edges, power, middle, w, side, sizes, nears, used, window):
    """Power of the best window without dispersion: the largest sum over parts of the band of the squares of its S/N.

    The window is at the same time in all parts.  Only parts count in which it overlaps the window of the candidate by
    half of the shorter of the two; together they need at least half of the candidate's power.  ``window`` gets the
    first bin of the best window, and its last + 1; both are -1 if there is none.

    Parameters
    ----------
    edges : int64 (parts + 1,)
        First sub-band of each part.
    power, middle : float64 (parts,)
        Square of the candidate's S/N in each part, and its first bin there, which never falls from part to part.
    w, side : int
        Width of the candidate, and its first bin at the top of the band.
    sizes, nears : int64
        Widths of the windows, and of the bins on each side of them from which the level is taken.
    used : bool (parts,)
        Which parts are looked at.
    window : int64 (2,)
    """
    parts, bins = len(power), s.shape[1] - 1
    below = np.zeros(parts + 1)  # power of the parts below each
    for p in range(parts):
        below[p + 1] = below[p] + (power[p] if used[p] else 0.0)
    best = 0.0
    window[0] = window[1] = -1
    for i in range(len(sizes)):
        size, near = sizes[i], nears[i]
        gap, need = size // 2, 0.5 * min(w, size)
        first = max(near + gap, side - size)
        last = min(bins - near - size - gap, math.ceil(middle[-1]) + w)
        low = high = 0  # the window covers enough of the parts between them
        for at in range(first, last + 1, max(1, size // 16)):
            while high < parts and middle[high] + need - size <= at:
                high += 1
            while low < high and middle[low] + w - need < at:
                low += 1
            if below[high] - below[low] < 0.5 * below[parts]:
                continue
            total = 0.0
            before, after = at - gap, at + size + gap
            for p in range(low, high):
                if not used[p]:
                    continue
                on = around = excess = level = 0.0
                for b in range(edges[p], edges[p + 1]):
                    on += q[b, at + size] - q[b, at]
                    around += q[b, before] - q[b, before - near] + q[b, after + near] - q[b, after]
                    excess += s[b, at + size] - s[b, at]
                    level += s[b, before] - s[b, before - near] + s[b, after + near] - s[b, after]
                if around > 0:
                    excess -= level * (on / around)
                if on > 0 and excess > 0:
                    total += excess * excess / on
            if total > best:
                best = total
                window[0], window[1] = at, at + size
    return best


@njit(**JIT)
def power_in_parts(s, q, excess, variance, middle, parts, w, side, sizes, nears, aside):
    """Power of the candidate in equal parts of the sub-bands, and that of the best window without dispersion.

    The second power is that of `undispersed`.  If ``aside`` is not empty, it gets the S/N of the candidate in the parts
    that this window does not touch, and both powers in these parts.
    """
    n = len(excess)
    edges, power, first = np.empty(parts + 1, np.int64), np.empty(parts), np.zeros(parts)
    sums, used, window = np.empty((2, parts)), np.ones(parts, np.bool_), np.empty(2, np.int64)
    total = 0.0
    for p in range(parts + 1):
        edges[p] = int(np.rint(p * (n / parts)))
    for p in range(parts):
        on = on_v = 0.0
        for b in range(edges[p], edges[p + 1]):
            on += excess[b]
            on_v += variance[b]
            first[p] += middle[b] / (edges[p + 1] - edges[p])
        power[p] = power_of(on, on_v)
        sums[0, p], sums[1, p] = on, on_v
        total += power[p]
    best = undispersed(s, q, edges, power, first, w, side, sizes, nears, used, window)
    if len(aside) > 0 and best > ASIDE * total:
        on = on_v = 0.0
        for p in range(parts):
            used[p] = first[p] >= window[1] or first[p] + w <= window[0]
            if used[p]:
                on += sums[0, p]
                on_v += sums[1, p]
                aside[1] += power[p]
        aside[0] = over(on, math.sqrt(on_v))
        aside[2] = undispersed(s, q, edges, power, first, w, side, sizes, nears, used, window)
    return total, best


@njit(**JIT)
def see(s0, q0, s, q, middle, pulsed, w, side, guard, near, var, size, sizes, nears, highest, look):
    """Set the numbers of a `vetting.Look`, in the order of its attributes.

    Parameters
    ----------
    s0, q0 : float64 (bands, bins + 1)
        Running sums as observed.
    s, q : float64 (bands, length + 1)
        De-dispersed ones.
    middle : float64 (bands,)
        First bin of the candidate, as observed, on average over a sub-band; changed.
    pulsed : bool (bands,)
        Whether there is known interference in each sub-band.
    w, side, guard, near : int
        As for `beside_window`.
    var : float64 (channels,)
        Variances of samples; of bins, times ``size``.
    size : int
        Samples of a bin.
    sizes, nears : int64
        As for `undispersed`.
    highest : float64
        As for `even`.
    """
    excess, variance = beside_window(s, q, side, w, guard, near)
    few = np.zeros(len(s), np.bool_)
    look[2] = strong_few(excess, variance, pulsed, few)
    n, rest = ZERO, np.empty(len(s), np.int64)
    for b in range(len(s)):
        if not few[b]:
            excess[n], variance[n], middle[n], rest[n] = excess[b], variance[b], middle[b], b
            n += 1
    excess, variance, middle, rest = excess[:n], variance[:n], middle[:n], rest[:n]
    if n < len(s):
        s0, q0, s, q = chosen(s0, rest), chosen(q0, rest), chosen(s, rest), chosen(q, rest)
    total, mean, spread = np.zeros((2, 2)), 0.0, 0.0
    order = strongest_first(excess)
    strongest = max(1, int(np.rint(STRONGEST * n)))
    for i in range(n):  # all sub-bands, and those without the strongest
        b = order[i]
        for k in range(1 if i < strongest else 2):
            total[k, 0] += excess[b]
            total[k, 1] += variance[b]
    look[0] = over(total[0, 0], math.sqrt(total[0, 1]))
    look[1] = over(total[1, 0], math.sqrt(total[1, 1]))
    aside = np.zeros(3)
    look[3], look[4] = power_in_parts(s0, q0, excess, variance, middle, n, w, side, sizes, nears, aside[:0])
    look[5], look[6] = power_in_parts(s0, q0, excess, variance, middle, min(BROAD, n), w, side, sizes, nears, aside)
    for i in range(3):
        look[10 + i] = aside[i]
    for b in range(n):
        mean += over(power_of(excess[b], variance[b]), look[3]) * middle[b]
    for b in range(n):
        late = middle[b] - mean
        spread += over(power_of(excess[b], variance[b]), look[3]) * late * late
    look[7] = math.sqrt(12 * spread) / w
    total_var = 0.0
    for c in range(len(var)):
        total_var += var[c]
    look[8] = redness(s, q, w, side, guard, size * total_var)
    look[9] = even(excess, variance, highest)


@njit(**JIT)
def place(s, q, late, side, w, found):
    """Set by how much the DM and the time of a candidate have to change.

    For each DM error of a grid, the window at the best time within half a width counts.  The result is the mean of
    these windows, up to the same distance on both sides of the best one, with the S/N to the power of `refine.POWER`
    as weights.

    Parameters
    ----------
    late : float64 (bands,)
        Delay of each sub-band as a fraction of the delay over the whole band, less its mean over the sub-bands.
    side, w : int
        First bin of the window, and its width.
    found : float64 (2,)
        Bins over which the DM error smears a pulse over the band, and bins by which the candidate is later at the mean
        delay; both are 0 if the best DM error is one of the outermost, which are of other signals.
    """
    reach, half = FARTHEST * STEPS, (w + 1) // 2
    n, last = 2 * reach + 1, s.shape[1] - 1 - w
    snr, at = np.zeros(n), np.zeros(n)
    best = ZERO
    for i in range(n):
        for t in range(side - half, side + half + 1):
            excess = variance = 0.0
            for b in range(len(s)):
                first = t + int(np.rint((i - reach) * w / STEPS * late[b]))
                if 0 <= first <= last:
                    excess += s[b, first + w] - s[b, first]
                    variance += q[b, first + w] - q[b, first]
            here = over(excess, math.sqrt(variance))
            if here > snr[i]:
                snr[i], at[i] = here, t - side
        if snr[i] > snr[best]:
            best = i
    near = min(best, n - 1 - best)
    found[0] = found[1] = total = 0.0
    for i in range(best - near, best + near + 1):
        weight = over(snr[i], snr[best]) ** POWER
        total += weight
        found[0] += weight * (i - reach) * w / STEPS
        found[1] += weight * at[i]
    for k in range(2):
        mean = over(found[k], total) if near > 0 else 0.0
        found[k] = np.rint(mean / w * ROUNDED) * w / ROUNDED
