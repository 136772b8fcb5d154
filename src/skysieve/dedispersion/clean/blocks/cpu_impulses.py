"""Kernels that find impulses without dispersion, and steps of the level, in series of groups of channels (numba).

Impulses are sought in bands of groups and compared with dispersed sums.

The series have zero mean and unit variance; group 0 has the highest frequency.
"""

from __future__ import annotations

import math

import numpy as np

from skysieve.core.cpu.jit import ZERO, in_interpreter, interpreted, njit

from .cpu_cleaner import middle

JIT = {"nogil": True, "error_model": "numpy"}
ROUGHLY = 0.6
"""A step is examined closely if the difference of means exceeds the limit for a step times this."""
LEAST, LATE = 10, 2
"""A step is judged by at least ``LEAST`` pieces on each side.  A step in the last ``LATE`` pieces of a block is judged
with the next block."""
SIDE = np.int64(8)
"""Pieces on each side of a step whose medians are compared."""
SWEPT = 4.0
"""A window without dispersion is compared with sweeps up to the DM at which the upper half of the groups arrives within
this many of its widths.  In a wide band the lower half arrives much later."""
FLAT = 6
"""At least this many of the 8 pieces on each side of a step are at the level of that side."""


@njit(**JIT)
def sum_between(values, first, last):
    """Sum of ``values[first:last]``, which are added in turn; numba takes longer to compile a slice."""
    s = 0.0
    for i in range(first, last):
        s += values[i]
    return s


@njit(**JIT)
def strongest(y, widths, threshold, band, found, count):
    """Find windows of a series that reach the threshold: peaks for widths of powers of two, in steps of half a width.

    ``found[k]`` gets (S/N, middle, width, band); returns the new number, at most ``len(found)``.
    """
    n = len(y)
    for k in range(widths):
        step = 1 << max(0, k - 1)
        least = np.float32(threshold * math.sqrt(np.float64(step if k == 0 else 2 * step)))
        two = 0 if k == 0 else 1
        hits = 0
        for i in range(n - two):
            hits += (y[i] if k == 0 else y[i] + y[i + 1]) >= least
        last = -2
        for i in range(n - two if hits else 0):
            v = y[i] if k == 0 else y[i] + y[i + 1]
            if v < least:
                continue
            s = threshold * v / least
            new = last != i - 1
            last = i
            if new:
                if count == len(found):
                    return count
                count += 1
            elif found[count - 1, 0] >= s:
                continue
            found[count - 1, 0] = s
            found[count - 1, 1] = (i + 0.5 * (1 + two)) * step
            found[count - 1, 2] = (1 + two) * step
            found[count - 1, 3] = band
        if k:
            n //= 2
            for i in range(n):
                y[i] = y[2 * i] + y[2 * i + 1]
    return count


@njit(**JIT)
def detect(series, used, bands, thresholds, first, last, widths, y, sums, found):
    """Find windows in the sums of bands of groups; ``used[j]`` is the number of good channels of a group.

    ``bands[b]`` are (first group, last + 1).  Only samples ``first : last`` are examined.  ``y`` and ``sums`` are
    scratch memory of float32 for these samples, since ``numpy.zeros`` takes long to compile.  ``sums`` has one row more
    than there are groups, and zeros in the first row.
    """
    n = last - first
    G = len(series)
    for j in range(G):
        weight = np.float32(math.sqrt(used[j]))
        line, before, after = series[j], sums[j], sums[j + 1]
        for t in range(n):
            after[t] = before[t] + weight * line[first + t]
    count = ZERO
    for b in range(len(bands)):
        low, high = sums[bands[b, 0]], sums[bands[b, 1]]
        total = sum_between(used, bands[b, 0], bands[b, 1])
        if total == 0:
            continue
        scale = np.float32(1 / math.sqrt(total))
        for t in range(n):
            y[t] = (high[t] - low[t]) * scale
        count = strongest(y, widths, thresholds[b], b, found, count)
    return count


def sums_of_bands(used, bands):
    """Sums of ``used``, which are whole numbers, over the groups of each band."""
    total = np.append(0.0, np.cumsum(used))
    return total[bands[:, 1]] - total[bands[:, 0]]


@njit(**JIT)
def sum_of(prefix, used, low, high, phase, sweep, at, w):
    """S/N of a window of ``w`` samples that begins at ``at`` and is swept over the groups ``low : high``.

    Groups in which it is not within the samples are left out.  ``at`` is an array in the interpreter (see `highest`).
    """
    n = prefix.shape[1] - 1
    total = weight = 0.0 * at
    for j in range(low, high):
        if used[j] == 0:
            continue
        a = at + round(sweep * (phase[j] - phase[low]))
        inside = (a >= 0) & (a + w <= n)
        first = a * inside
        total = total + math.sqrt(used[j]) * (prefix[j, first + w * inside] - prefix[j, first])
        weight = weight + used[j] * inside
    return total / np.sqrt(np.maximum(weight, 1.0) * w)


@njit(**JIT)
def highest(prefix, used, low, high, phase, sweep, begin, end, w):
    """Largest `sum_of` for windows that begin from ``begin`` to ``end``, in steps of a quarter of ``w``; its place."""
    best, place = -np.inf, begin
    for at in range(begin, end + 1, max(1, w // 4)):
        s = sum_of(prefix, used, low, high, phase, sweep, at, w)
        if s > best:
            best, place = s, at
    return best, place


@in_interpreter(highest)
def highest_at_once(prefix, used, low, high, phase, sweep, begin, end, w):
    """`highest` without compiled code: all places at once."""
    at = np.arange(begin, end + 1, max(1, w // 4))
    if not len(at):
        return -np.inf, begin
    s = interpreted(sum_of)(prefix, used, low, high, phase, sweep, at, w)
    k = s.argmax()
    return s[k], int(at[k])


@njit(**JIT)
def best_of(prefix, used, low, high, phase, sweep, begin, end, widths):
    """The `highest` of windows of some widths; with place and width."""
    best, place, width = -np.inf, begin, 1
    for w in widths:
        if w < 1:
            continue
        s, at = highest(prefix, used, low, high, phase, sweep, begin, end, w)
        if s > best:
            best, place, width = s, at, w
    return best, place, width


@njit(**JIT)
def climb(prefix, used, low, high, phase, sweep, place, width):
    """The largest `sum_of` near a window: its edges move by ever smaller steps; with place and width."""
    best = sum_of(prefix, used, low, high, phase, sweep, place, width)
    step = max(1, width // 8)
    while step:
        better, at, size = False, place, width
        for first, last in ((-step, 0), (step, 0), (0, -step), (0, step), (-step, -step), (step, step)):
            w = width + last - first
            if w < 1:
                continue
            s = sum_of(prefix, used, low, high, phase, sweep, place + first, w)
            if s > best:
                best, better = s, True
                at, size = place + first, w
        if better:
            place, width = at, size
        else:
            step //= 2
    return best, place, width


@njit(**JIT)
def is_impulse(prefix, used, low, high, phase, unit, whole_dm, part_dm, margin, middle, w, most, out):
    """Whether a window in the groups ``low : high`` is stronger without dispersion than with any.

    This is so if the square of its S/N is higher by more than ``margin``.  ``unit`` is the sweep of the whole band for
    a DM of 1, in samples.  It is compared with dispersed sums of the whole band at DMs from ``whole_dm`` on, and of the
    groups ``low : high`` at DMs from ``part_dm`` on.  ``out`` gets the first sample and the width of the window without
    dispersion.
    """
    G = len(used)
    near = (w, (3 * w) // 4, w // 2, w + w // 2)
    flat, place, width = best_of(prefix, used, low, high, phase, 0.0, middle - w - w // 2, middle + w // 2, near)
    flat, place, width = climb(prefix, used, low, high, phase, 0.0, place, width)
    out[0], out[1] = place, width
    best = 0.0
    for part in range(2):
        a, b, dm = (0, G, whole_dm) if part == 0 else (low, high, part_dm)
        if part == 1 and high - low == G:
            break
        reach = phase[b - 1] - phase[a]
        while True:
            sweep = unit * dm
            inside = sweep * reach
            late = sweep * (phase[low] - phase[a])
            short = (width, (3 * width) // 4, width // 2, width // 4)
            begin = int(place - late - sweep * (phase[high - 1] - phase[low]) - width)
            s, x, y = best_of(prefix, used, a, b, phase, sweep, begin, int(place - late + width), short)
            if s > 0.8 * best:
                s, x, y = climb(prefix, used, a, b, phase, sweep, x, y)
            best = max(best, s)
            if flat * flat - best * best <= margin:
                return False
            if inside > most * width or inside > prefix.shape[1]:
                break
            dm *= 1.3
    return True


@njit(**JIT)
def put(out, k, a, z, low, high):
    """``out[k] = a, z, low, high``: numba takes a second to compile this assignment of a tuple."""
    out[k, 0], out[k, 1], out[k, 2], out[k, 3] = a, z, low, high


@njit(**JIT)
def remove(
    series, used, bands, found, order, first, last, phase, unit, whole_dm, part_dm, margin, prefix, done, out, windows,
    spared,
):  # fmt: skip
    """Judge the windows that were found, in some order, and set the impulses to 0.

    Windows that overlap one that was judged before are passed over.  ``windows`` and ``spared`` get (first sample,
    last + 1, first group, last + 1), relative to sample ``first``, and not after ``last``; returns their numbers.
    Scratch memory: ``prefix``, one column longer than ``series`` and with zeros in the first; ``done``, as ``windows``;
    ``out``, int64, shape (2,).
    """
    G, n = series.shape
    for j in range(G):
        s = 0.0
        for t in range(n):
            s += np.float64(series[j, t])
            prefix[j, t + 1] = s
    most = SWEPT / phase[G // 2]
    judged = cut = left = ZERO
    for k in order:
        if judged == len(done) or cut == len(windows) or left == len(spared):
            break
        middle, w, b = first + int(found[k, 1]), int(found[k, 2]), int(found[k, 3])
        low, high = bands[b, 0], bands[b, 1]
        a, z = middle - w, middle + w
        seen = False
        for i in range(judged):
            if a < done[i, 1] and z > done[i, 0] and low < done[i, 3] and high > done[i, 2]:
                seen = True
                break
        if seen:
            continue
        impulse = is_impulse(
            prefix, used, low, high, phase, unit, whole_dm, part_dm, margin, middle, w, most, out
        )  # fmt: skip
        extra = max(1, out[1] // 2)
        a, z = max(first, out[0] - extra), min(last, out[0] + out[1] + extra)
        if impulse and z > a:
            if 2 * (high - low) >= G:
                low, high = 0, G
            else:  # extend the impulse to neighbouring groups that show it too
                inner, outer = max(0, out[0]), min(n, out[0] + out[1])
                root = math.sqrt(max(1, outer - inner))
                while low > 0 and prefix[low - 1, outer] - prefix[low - 1, inner] > 2.5 * root:
                    low -= 1
                while high < G and prefix[high, outer] - prefix[high, inner] > 2.5 * root:
                    high += 1
            put(windows, cut, a - first, z - first, low, high)
            cut += 1
            for j in range(low, high):
                for t in range(a, z):
                    series[j, t] = 0
        else:
            put(spared, left, a - first, z - first, low, high)
            left += 1
        put(done, judged, a, z, low, high)
        judged += 1
    return cut, left


@njit(**JIT)
def change(means, p, size, later):
    """The mean of ``later`` pieces from ``p`` on less that of the ``size`` pieces before."""
    return sum_between(means, p, p + later) / later - sum_between(means, p - size, p) / size


def changes(series, used, bands, piece, context, count, error, each):
    """Whether there may be a step of the level, so that the slower `find_step` is needed.

    ``each[j + 1]`` gets the sums by piece of the groups up to ``j``, weighted by the roots of ``used``.
    """
    first = context // piece
    skip = context - first * piece
    whole = each.shape[1]
    parts = series[:, skip : skip + whole * piece].reshape(len(series), whole, piece)
    sums = parts.sum(axis=2)
    for j in range(len(series)):
        np.add(each[j], math.sqrt(used[j]) / piece * sums[j].astype(np.float64), out=each[j + 1])
    total = sums_of_bands(used, bands)
    low, high = bands[total != 0].T
    means = (each[high] - each[low]) / np.sqrt(total[total != 0])[:, None]
    after = np.zeros_like(means)  # sums of up to 16 pieces from each on
    for k in range(min(16, whole)):
        after[:, : whole - k] += means[:, k:]
    p = np.arange(max(LEAST, first - LATE), min(whole - LEAST, first + count // piece) + 1)
    size, later = np.minimum(p, 16), np.minimum(whole - p, 16)
    before = np.where(p < 16, np.cumsum(means, axis=1)[:, p - 1], after[:, np.maximum(p - 16, 0)])
    least = ROUGHLY * error * np.sqrt((1 / later + 1 / size) / piece)
    return bool((np.abs(after[:, p] / later - before / size) >= least).any())


@njit(**JIT)
def steady(each, used, low, high, root, first, last, a, out):
    """Means of pieces of a band, from medians over its groups, which spare dispersed bursts.

    A dispersed burst is in few groups at a time.

    ``each[j + 1] - each[j]`` are the sums of group ``j``; ``a`` is scratch memory.  ``out[first:last]`` gets the means.
    """
    for p in range(first, last):
        n = 0
        for j in range(low, high):
            if used[j] > 0:
                a[n] = (each[j + 1, p] - each[j, p]) / used[j]
                n += 1
        out[p] = middle(a, n) * root


@njit(**JIT)
def median_between(values, first, last, a):
    """Median of ``values[first:last]``, which are at most as many as the scratch memory ``a`` holds."""
    for i in range(first, last):
        a[i - first] = values[i]
    return middle(a, last - first)


@njit(**JIT)
def is_flat(means, first, last, median, error):
    """Whether at least `FLAT` of 8 means are within ``error`` of their median, unlike those on the flank of a pulse."""
    count = 0
    for i in range(first, last):
        count += abs(means[i] - median) <= error
    return count >= FLAT


@njit(**JIT)
def lasts(means, p, size, later, jump, error, a):
    """Whether the level changes at piece ``p`` by about ``jump``, at once, and lasts.

    ``size`` and ``later``, from `LEAST` to 16, are the numbers of pieces before and after ``p``.  The levels close to
    ``p`` are medians of 8 pieces, which have to be flat.  The levels farther away are medians of the other pieces; they
    have to differ by half of the jump as well, besides any slope.  ``error`` is that of the mean of a piece.
    """
    sign = 1.0 if jump > 0 else -1.0
    rise = abs(jump)
    close, near = median_between(means, p - SIDE, p, a), median_between(means, p, p + SIDE, a)
    if not 0.65 * rise <= sign * (near - close) <= 1.5 * rise:
        return False
    allowed = 0.25 * rise + 2.5 * error
    if not (is_flat(means, p - SIDE, p, close, allowed) and is_flat(means, p, p + SIDE, near, allowed)):
        return False
    early, late = median_between(means, p - size, p - SIDE, a), median_between(means, p + SIDE, p + later, a)
    slope = max(0.0, sign * (close - early), sign * (late - near))
    return min(sign * (near - early), sign * (late - close)) >= 0.5 * rise + 2 * slope


@njit(**JIT)
def jump_of_groups(each, used, low, high, root, p, size, later, a, groups):
    """The median of the jumps of the groups of a band; each is the difference of medians of pieces after and before.

    Dispersed bursts do not count, since they are in each group for a short time only.  For the arguments, see `steady`
    and `lasts`.
    """
    n = 0
    for j in range(low, high):
        if used[j] > 0:
            for i in range(size):
                a[i] = each[j + 1, p - size + i] - each[j, p - size + i]
            before = middle(a, size)
            for i in range(later):
                a[i] = each[j + 1, p + i] - each[j, p + i]
            groups[n] = (middle(a, later) - before) / used[j]
            n += 1
    return middle(groups, n) * root


@njit(**JIT)
def is_dispersed(series, used, at, piece, y):
    """Whether a step near a sample is the edge of a dispersed pulse: it comes later in the last third of the groups.

    The time of a step of ``jump`` sigma in a series is known to some 10 times ``1 / jump**2`` samples.  ``y`` is memory
    for the samples.
    """
    G, n = series.shape
    low, high, near = max(0, at - 10 * piece), min(n, at + 10 * piece), 5 * piece
    if at - low < near + piece or high - at < near + piece:
        return False
    later, allowed, other = 0, 3.0, 0.0
    third = max(1, G // 3)
    for side in range(2):
        first, last = (0, third) if side == 0 else (G - third, G)
        total = sum_between(used, first, last)
        if total == 0:
            return False
        for t in range(low, high):
            y[t] = 0
        for j in range(first, last):
            weight = math.sqrt(used[j] / total)
            for t in range(low, high):
                y[t] += weight * series[j, t]
        before = sum_between(y, low, at - near) / (at - near - low)
        after = sum_between(y, at + near, high) / (high - at - near)
        jump = after - before
        if abs(jump) < 5 * math.sqrt(1 / (at - near - low) + 1 / (high - at - near)):
            return False
        if side == 1 and not 0.5 < jump / other < 2:
            return False
        found, most, s = low, -np.inf, 0.0
        for t in range(high - 1, low - 1, -1):
            s += (y[t] - 0.5 * (before + after)) * jump
            if s > most:
                most, found = s, t
        later += found if side == 1 else -found
        allowed += 16 / (jump * jump)
        other = jump
    return later > allowed


@njit(**JIT)
def find_step(series, used, bands, each, piece, context, count, error, steep, work, out):
    """Find the strongest step of the level in a band of groups; return whether there is one.

    At a step, the medians of up to 16 piece means before and after it differ by at least ``error`` standard errors.
    Most of this difference happens at once: the means of two pieces on both sides differ by ``steep`` times as much,
    and by 5 standard errors more than on a slope.  The step `lasts`, and most groups of the band show it, at the same
    time (see `is_dispersed`).

    Parameters
    ----------
    series : array of float32, shape (groups, samples)
        In units of their noise.
    each : array of float64, shape (groups + 1, pieces)
        Sums by piece, as `changes` has set them.
    context, count : int
        Steps are sought at samples ``context : context + count``, and in the last `LATE` pieces before them, after
        which too few samples were known in the block before.
    work : tuple of arrays of float64
        Scratch memory for two values for each piece, for the samples of a series, for 16 values, for the groups.
    out : array of int64, shape (2,)
        Gets the sample, and the index of the band.
    """
    n = series.shape[1]
    first = context // piece
    skip = context - first * piece
    whole = (n - skip) // piece
    means, still, y, other, a, groups = work
    best = 0.0
    for b in range(len(bands)):
        total = sum_between(used, bands[b, 0], bands[b, 1])
        if total == 0:
            continue
        known = False
        for p in range(whole):
            means[p] = (each[bands[b, 1], p] - each[bands[b, 0], p]) / math.sqrt(total)
        for p in range(max(LEAST, first - LATE), min(whole - LEAST, first + count // piece) + 1):
            size, later = min(p, 16), min(whole - p, 16)
            noise = math.sqrt((1 / later + 1 / size) / piece)
            if abs(change(means, p, size, later)) < ROUGHLY * error * noise:
                continue
            before = median_between(means, p - size, p, a)
            jump = median_between(means, p, p + later, a) - before
            score = abs(jump) / (1.25 * noise)
            if score < error or score <= best:
                continue
            close = median_between(means, p - SIDE, p, a)
            if (median_between(means, p, p + SIDE, a) - close) * jump < 0.8 * jump * jump:  # a slope, not a step
                continue
            low, high = p - size, p + later
            steady(each, used, bands[b, 0], bands[b, 1], math.sqrt(total), low, high, groups, still)
            if not lasts(still, p, size, later, jump, math.sqrt(1 / piece), a):  # a burst, perhaps on a slope
                continue
            own = jump_of_groups(each, used, bands[b, 0], bands[b, 1], math.sqrt(total), p, size, later, a, groups)
            if own * jump < 0.5 * jump * jump:
                continue
            if not known:
                known = True
                for t in range(n):
                    y[t] = 0
                for j in range(bands[b, 0], bands[b, 1]):
                    weight = math.sqrt(used[j] / total)
                    for t in range(n):
                        y[t] += weight * series[j, t]
            low, high = max(2, skip + (p - 6) * piece), min(n - 2, skip + (p + 6) * piece)
            half, at, most, s = before + jump / 2, low, -np.inf, 0.0
            for t in range(high - 1, low - 1, -1):
                s += (y[t] - half) * jump
                if s > most:
                    most, at = s, t
            if not context - LATE * piece <= at < context + count:
                continue
            part = max(1, piece // 4)
            if at < 8 * part or at + 8 * part > n:
                continue
            for i in range(SIDE):
                a[i] = sum_between(y, at - (i + 1) * part, at - i * part) / part
            before8 = middle(a, SIDE)
            for i in range(SIDE):
                a[i] = sum_between(y, at + i * part, at + (i + 1) * part) / part
            now = middle(a, SIDE) - before8
            sure = 5 * 1.25 * math.sqrt(2 / (8 * part))
            if now * jump < steep * jump * jump or abs(now) < sure + abs(jump) / 8:
                continue
            if is_dispersed(series, used, at, piece, other):
                continue
            best = score
            out[0], out[1] = at, b
    return best > 0


@njit(**JIT)
def group_jumps(series, at, reach, jumps, errors):
    """Difference of the means of ``reach`` samples after and before a sample, by group, and its standard error."""
    low, high = max(0, at - reach), min(series.shape[1], at + reach)
    for j in range(len(series)):
        jumps[j] = np.mean(series[j, at:high]) - np.mean(series[j, low:at])
    errors[0] = math.sqrt(1 / (high - at) + 1 / (at - low))
