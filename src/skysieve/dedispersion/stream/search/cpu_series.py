"""Noise and events of de-dispersed series that continue from call to call (numba).

The arithmetic is that of `cpu.detect`, which searches whole blocks at once.  Here a search begins anywhere, and the
noise of its blocks is known.  Prefix sums wrap, so that their start does not affect any window.
"""

from __future__ import annotations

import numpy as np

from skysieve.core.cpu.jit import ZERO, njit
from skysieve.dedispersion.cpu.baseline import LANES, level_block, part_means
from skysieve.dedispersion.cpu.detect import BINS, SEGMENT, block_noise, boxcars, fixed_points, peaks
from skysieve.dedispersion.cpu.simd import WIDE, any_window

JIT = {"nogil": True, "error_model": "numpy"}


@njit(**JIT)
def noise_of_block(sums, valid, origin, number, block, begin, noise, parts, kind, spare, means, levels):
    """Level and sigma of a block of each row into ``levels[:, number % slots]``.

    Columns count from sample ``origin``; row ``i`` has samples up to ``valid[i]``.  A last block that is
    shorter than a quarter takes the noise of the one before, unless it is the first block, ``begin``.

    With a baseline (``parts``), the samples of the next block are known, too, unless the row ends before; drifts are
    subtracted from the samples of the block, and ``means[:, number % slots]`` keep the means of its parts.
    """
    counts = np.zeros(BINS + 1, np.int64)
    out = np.zeros(3)
    slots = levels.shape[1]
    slot, before, after = number % slots, (number - 1) % slots, (number + 1) % slots
    first = number * block
    fit, work, lanes, m = np.empty(3 * parts), np.empty(10 * parts), np.empty(LANES), np.empty(3 * parts)
    for i in range(len(sums)):
        y, level = sums[i], levels[i, slot]
        n = min(block, valid[i] - first)
        if parts and n > 0:
            low = parts
            if number == begin:
                whole = part_means(y, first - origin, n, block, parts, means[i, slot], lanes)
            else:
                whole = min(parts, ((n + 1) * parts - 1) // block)
                low = 0
                m[:parts] = means[i, before]
            m[parts : 2 * parts] = means[i, slot]
            if n == block:
                later = min(block, valid[i] - first - block)
                whole += part_means(y, first + block - origin, later, block, parts, means[i, after], lanes)
                m[2 * parts :] = means[i, after]
            level_block(y, first - origin, n, block, parts, m, low, parts + whole, kind, fit, work, level, y)
        if n > 0 and (number == begin or 4 * n >= block):
            block_noise(y, first - origin, n, noise, counts, spare, out)
            level[1] = out[1]
        else:
            out[0], level[1] = levels[i, before, 0], levels[i, before, 1]
        if not parts or n <= 0:
            level[0] = out[0]


@njit(**JIT)
def search_series(
    sums, valid, origin, begin, low, high, block, newest, levels, widths, scales, threshold, every, dip,
    found
):  # fmt: skip
    """Events of rows whose windows are centred on samples ``low : high``, from samples ``begin`` on.

    As `cpu.detect.find_events`; blocks after ``newest`` take its noise.  ``found`` receives (row, sample, width number,
    S/N).  Samples after the end of a row are 0 in the first test of 64 windows together, which hides no valid window.
    """
    reach = widths[-1]
    prefix = np.zeros(sums.shape[1] + reach + WIDE + 1, np.int32)
    best = np.zeros(SEGMENT + 2 * reach, np.float32)
    which = np.zeros(SEGMENT + 2 * reach, np.int32)
    slots = levels.shape[1]
    n = ZERO
    for i in range(len(sums)):
        count = valid[i] - begin
        if count < 2:
            continue
        total = np.int32(0)
        prefix[0] = 0
        for b in range(begin // block, (valid[i] + block - 1) // block):
            first, stop = max(begin, b * block), min(valid[i], (b + 1) * block)
            slot = min(b, newest) % slots
            total = fixed_points(
                sums[i], first - origin, stop - first, levels[i, slot, 0], levels[i, slot, 1], total, prefix,
                first - begin,
            )  # fmt: skip
        for past in range(count + 1, count + reach + WIDE + 1):
            prefix[past] = total
        end = min(high - begin, count)
        for t in range(low - begin, end, SEGMENT):
            stop = min(end, t + SEGMENT)
            first = t - reach // 2
            blocks = (stop - first + WIDE - 1) // WIDE
            if first >= 0 and not any_window(prefix, first, blocks, widths, scales, len(widths), threshold):
                continue
            a, c = max(0, t - reach), min(count, stop + reach)
            boxcars(prefix, count, a, c, widths, scales, best, which)
            before = n
            n = peaks(
                best[: c - a], which[: c - a], a, t, stop, widths, threshold, every, i, found, n, prefix, count, scales,
                dip,
            )  # fmt: skip
            for k in range(before, min(n, len(found))):
                found[k, 1] += begin
    return n
