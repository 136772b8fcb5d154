"""The running baseline of a series: one level for a block, or a smooth line where the level drifts (numba).

A block is divided into *parts* of about 1/32 s, anchored as blocks are.  All rules work on the means of the parts of a
block and of its two neighbours, so that the result depends on these three blocks alone, and on no chunk:

- The scatter of the means in white noise is estimated from their third differences, in which drifts cancel.
- If the means of eighths of a block scatter by less than `DRIFTS` times that, there is no drift: the level of the block
  is the mean of all parts of the three blocks, without those beyond `OUTLIER` sigma.
- Otherwise a smooth line is fitted to means over ``d`` parts.  Its value at each mean is the middle of a cubic through
  this mean and `REACH` neighbours on each side (Savitzky and Golay 1964; at the ends of the data, the outer part of the
  first and the last cubic).  Means that are beyond `OUTLIER` sigma of the line, such as those of pulses, are replaced
  by the line, and the fit is repeated.  ``d`` is the first of 16, 4 and 1 after which the means of the block scatter
  like noise.

The values of the line are joined by straight pieces and subtracted from the samples of the block.  Sums of integers
stay integers: the line is rounded with a different fraction at each sample, so that the rounding errors in a window
average out.

The cost is an addition for each sample, and a subtraction more where the level drifts.  The CUDA kernels
(``cuda/baseline.cu``) do the same operations in the same order.
"""

from __future__ import annotations

import math

import numpy as np

from skysieve.core.cpu.jit import ZERO, in_interpreter, njit
from skysieve.dedispersion.contract import KINDS

JIT = {"nogil": True, "error_model": "numpy"}
LANES = 32
"""Sums are formed in this many interleaved parts, as a warp of a GPU does."""
GROUPS = 8
"""Number of groups of parts of a block, whose scatter shows a drift; the number of parts is a multiple of it."""
DRIFTS = 2.0
"""The level drifts if the scatter of the groups, in units of that of white noise, exceeds this."""
OUTLIER = 3.5
"""Means of parts that are further from the line are left out, in sigma."""
REACH = 11
"""Neighbours on each side through which a cubic is fitted."""
ROUNDS = 4
"""Repetitions of a fit without outliers."""
STEPS = (16, 4, 1)
"""Parts that are joined for a fit, tried in this order."""
LEAST_STEPS = 12
"""A block has at least this many joined parts."""
UNSIGNED, REAL = KINDS.index("u"), KINDS.index("f")
FLAT = 2.0**30
"""Level of unsigned sums from which a line was subtracted."""
GOLDEN, MASK, FRACTION = np.uint64(2654435769), np.uint64(2**32 - 1), 2.0**-32
"""Multiples of the golden ratio, modulo 1, are evenly distributed fractions, also within short windows."""
TO_SIGMA = 1.4826022185056018
"""Standard deviation of a normal distribution over its median absolute deviation."""
DIFFERENCE = 3.5682482323055424
"""Mean absolute third difference of white noise, in sigma: sqrt(20) sqrt(2 / pi)."""
SECOND, FOURTH, SIXTH = 1012.0, 79948.0, 7499932.0
"""Sums of the second, fourth and sixth powers of -`REACH` to `REACH`."""
CUBIC, ODD = (2 * REACH + 1) * FOURTH - SECOND * SECOND, SECOND * SIXTH - FOURTH * FOURTH
"""Determinants of the even and the odd powers of a cubic: its middle value has the weights ``FOURTH - SECOND t^2``,
whose sum is the first."""


@njit(**JIT)
def part_start(k, block, parts):
    """First sample of part ``k``, counted from the start of block 0; ``k`` may be negative."""
    b = k // parts
    return b * block + ((k - b * parts) * block) // parts


@njit(**JIT)
def strided_sum(y, first, n, lanes):
    """Sum of ``n`` values in double precision, in `LANES` interleaved sums that are added in pairs."""
    for j in range(LANES):
        lanes[j] = 0.0
    whole = n - n % LANES
    for i in range(first, first + whole, LANES):
        for j in range(LANES):
            lanes[j] += np.float64(y[i + j])
    for j in range(n - whole):
        lanes[j] += np.float64(y[first + whole + j])
    o = LANES // 2
    while o:
        for j in range(o):
            lanes[j] += lanes[j + o]
        o //= 2
    return lanes[0]


@njit(**JIT)
def part_means(y, first, count, block, parts, out, lanes):
    """Means of the parts of a block of ``count`` samples that begins at ``first``; returns how many parts are whole."""
    for k in range(parts):
        low, high = (k * block) // parts, ((k + 1) * block) // parts
        if high > count:
            return k
        out[k] = strided_sum(y, first + low, high - low, lanes) / np.float64(high - low)
    return parts


@njit(**JIT)
def median(values, n, space):
    """Median of ``n`` values; of an even number, the mean of the middle two."""
    for i in range(n):
        v = values[i]
        k = i
        while k > 0 and space[k - 1] > v:
            space[k] = space[k - 1]
            k -= 1
        space[k] = v
    return 0.5 * (space[(n - 1) // 2] + space[n // 2])


@njit(**JIT)
def fit_cubics(x, low, high, out):
    """The middle of the cubic around each of ``x[low:high]``; near an end, the outer part of the cubic there."""
    n = high - low
    for i in range(REACH, n - REACH):
        out[low + i] = 0.0
    for t in range(2 * REACH + 1):
        weight = FOURTH - SECOND * ((t - REACH) * (t - REACH))
        for i in range(REACH, n - REACH):
            out[low + i] += weight * x[low + i - REACH + t]
    for i in range(REACH, n - REACH):
        out[low + i] /= CUBIC
    for i in range(REACH):
        out[low + i] = end_of_cubic(x, low + REACH, i - REACH)
        out[high - 1 - i] = end_of_cubic(x, high - 1 - REACH, REACH - i)


@njit(**JIT)
def end_of_cubic(x, middle, t):
    """Value at ``middle + t`` of the cubic around ``x[middle]``."""
    even = odd = 0.0
    for k in range(-REACH, REACH + 1):
        even += ((FOURTH - SECOND * (k * k)) + (t * t) * ((2.0 * REACH + 1.0) * (k * k) - SECOND)) * x[middle + k]
        odd += ((k * t) * ((SIXTH - FOURTH * (k * k)) + (t * t) * (SECOND * (k * k) - FOURTH))) * x[middle + k]
    return even / CUBIC + odd / ODD


@njit(**JIT)
def scatter_of_noise(m, low, high, work, lanes):
    """Standard deviation of white noise in the means ``m[low:high]``, from their third differences."""
    n = high - low - 3
    for i in range(n):
        k = low + i
        work[i] = abs((m[k + 3] - m[k]) + 3.0 * (m[k + 1] - m[k + 2]))
    most = 3.0 * (strided_sum(work, ZERO, n, lanes) / np.float64(n))
    for i in range(n):
        work[i] = min(work[i], most)
    return strided_sum(work, ZERO, n, lanes) / np.float64(n) / DIFFERENCE


@njit(**JIT)
def find_level(m, low, high, parts, fit, work, lanes, level):
    """Write the level of a block that does not drift to ``level[0]``, from the means of the parts of three blocks.

    The block itself is ``m[parts : 2 * parts]``; ``m[low:high]`` are known.  Returns the standard deviation of white
    noise in the means if the level drifts; else -1.
    """
    n = high - low
    group = parts // GROUPS
    groups = n // group
    if groups < GROUPS:
        level[0] = strided_sum(m, low, n, lanes) / np.float64(n)
        return -1.0
    sigma = scatter_of_noise(m, low, high, work, lanes)
    for g in range(groups):
        total = 0.0
        for i in range(group):
            total += m[low + g * group + i]
        fit[g] = total / np.float64(group)
    middle = median(fit, groups, work)
    for g in range(groups):
        fit[g] = abs(fit[g] - middle)
    spread = TO_SIGMA * median(fit, groups, work)
    drifts = spread > DRIFTS * sigma / math.sqrt(np.float64(group))
    for _ in range(0 if drifts else 2):
        kept = 0
        for i in range(n):
            near = abs(m[low + i] - middle) <= OUTLIER * sigma
            work[i] = m[low + i] if near else 0.0
            kept += 1 if near else 0
        if kept == 0:
            break
        middle = strided_sum(work, ZERO, n, lanes) / np.float64(kept)
    level[0] = middle
    return sigma if drifts else -1.0


@njit(**JIT)
def fit_baseline(m, low, high, parts, sigma, fit, work):
    """Fit a line to the means of the parts of three blocks; arguments are those of `find_level`, and what it returned.

    Returns ``d``; ``fit[j]`` is the baseline in the middle of parts ``j d : (j + 1) d``.  0 if there are too few.
    """
    space = work[6 * parts : 8 * parts]
    found = 0
    for d in STEPS:
        if LEAST_STEPS * d > parts:
            continue
        first, stop = -(-low // d), high // d
        if stop - first < 2 * REACH + 2:
            continue
        found = d
        q, x = work[: 3 * parts], work[3 * parts : 6 * parts]
        for j in range(first, stop):
            total = 0.0
            for i in range(d):
                total += m[j * d + i]
            q[j] = total / np.float64(d)
            x[j] = q[j]
        most = OUTLIER * (sigma / math.sqrt(np.float64(d)))
        fit_cubics(x, first, stop, fit)
        for _ in range(ROUNDS):
            for j in range(first, stop):
                x[j] = q[j] if abs(q[j] - fit[j]) <= most else fit[j]
            fit_cubics(x, first, stop, fit)
        if d == 1:
            break
        a, b = max(first, parts // d), min(stop, 2 * parts // d)
        for j in range(a, b):
            x[j - a] = abs(q[j] - fit[j])
        if b > a and not TO_SIGMA * median(x, b - a, space) > DRIFTS * (sigma / math.sqrt(np.float64(d))):
            break
    return found


@njit(**JIT)
def take_line(y, first, start, stop, at, value, step, kind, out):
    """``out = y - value - step (i + 1/2 - at)`` for the samples ``i`` of ``start : stop`` of a block."""
    if kind == REAL:
        for i in range(start, stop):
            out[first + i] = np.float64(y[first + i]) - (value + step * ((i + 0.5) - at))
        return
    flat = np.int64(FLAT) if kind == UNSIGNED else np.int64(0)
    for i in range(start, stop):
        fraction = np.float64((np.uint64(i) * GOLDEN) & MASK) * FRACTION
        line = np.int64(np.floor((value + step * ((i + 0.5) - at)) + fraction))
        out[first + i] = np.int64(y[first + i]) - line + flat


@in_interpreter(take_line)
def take_line_at_once(y, first, start, stop, at, value, step, kind, out):
    """`take_line` without compiled code: all samples at once."""
    i = np.arange(start, stop)
    line = value + step * ((i + 0.5) - at)
    if kind == REAL:
        out[first + start : first + stop] = y[first + start : first + stop].astype(np.float64) - line
        return
    fraction = ((i.astype(np.uint64) * GOLDEN) & MASK).astype(np.float64) * FRACTION
    flat = int(FLAT) if kind == UNSIGNED else 0
    out[first + start : first + stop] = (
        y[first + start : first + stop].astype(np.int64) - np.floor(line + fraction).astype(np.int64) + flat
    )


@njit(**JIT)
def subtract_line(y, first, n, block, parts, low, high, d, fit, kind, out):
    """Subtract a fitted line from the ``n`` samples of a block; unsigned sums then lie around `FLAT`, others at 0."""
    last = high // d - 2
    i, j = ZERO, min(max(-(-low // d), parts // d - 1), last)
    while i < n:
        k = j * d - parts
        a, b, c = part_start(k, block, parts), part_start(k + d, block, parts), part_start(k + 2 * d, block, parts)
        at, after = 0.5 * np.float64(a + b), 0.5 * np.float64(b + c)
        stop = n if j == last else min(n, (b + c) // 2)
        take_line(y, first, i, stop, at, fit[j], (fit[j + 1] - fit[j]) / (after - at), kind, out)
        i = max(i, stop)
        j += 1


@njit(**JIT)
def known_means(b, whole, parts):
    """First, and last + 1, of the known means of the parts of block ``b`` of a row and of the blocks beside it."""
    return parts if b == 0 else 0, min(3 * parts, whole - (b - 1) * parts)


@njit(**JIT)
def find_levels(y, count, block, parts, means, fit, work, lanes, drifts, levels):
    """Write the levels of the blocks of a row to ``levels[:, 0]``; return the number of blocks whose level drifts.

    The row begins with a block.

    ``means[(b + 1) * parts :]`` gets the means of the parts of block ``b``, ``drifts[b]`` what `find_level` returns.
    """
    blocks = (count + block - 1) // block
    whole = found = ZERO
    for b in range(blocks):
        whole += part_means(y, b * block, min(block, count - b * block), block, parts, means[(b + 1) * parts :], lanes)
    for b in range(blocks):
        low, high = known_means(b, whole, parts)
        if high <= low:
            drifts[b] = -1.0
            levels[b, 0] = strided_sum(y, b * block, count - b * block, lanes) / np.float64(count - b * block)
        else:
            drifts[b] = find_level(means[b * parts : (b + 3) * parts], low, high, parts, fit, work, lanes, levels[b])
            found += drifts[b] >= 0
    return found


@njit(**JIT)
def subtract_baselines(y, count, block, parts, kind, means, fit, work, drifts, levels, out):
    """Copy the blocks of a row whose level drifts to ``out``, less a line, and set their levels; after `find_levels`.

    ``drifts[b]`` becomes -1 for blocks to which no line can be fitted.
    """
    blocks = (count + block - 1) // block
    whole = (count // block) * parts
    for k in range(parts):
        whole += (k + 1) * block // parts <= count % block
    for b in range(blocks):
        if drifts[b] < 0:
            continue
        low, high = known_means(b, whole, parts)
        d = fit_baseline(means[b * parts : (b + 3) * parts], low, high, parts, drifts[b], fit, work)
        if d:
            n = min(block, count - b * block)
            subtract_line(y, b * block, n, block, parts, low, high, d, fit, kind, out)
            levels[b, 0] = FLAT if kind == UNSIGNED else 0.0
        else:
            drifts[b] = -1.0
