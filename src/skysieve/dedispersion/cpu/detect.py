"""Boxcars over de-dispersed series: noise of anchored blocks, fixed-point samples, peaks (numba).

After the noise all arithmetic is in integers.  A normalised sample is ``rint(64 (y - level) / sigma)``, clipped to
+-2**18; prefix sums wrap in 32 bits, and the sum of a window of up to 4096 samples is exact.  The order of summation,
chunks and vectors change no bit.

Cost of a sample of a series: one histogram count and one load for the noise, one multiplication to normalise it, and
for each width a subtraction, a conversion, a multiplication and a comparison.  The widths limit the speed.
"""

from __future__ import annotations

import math

import numpy as np

from skysieve.core.cpu.jit import ZERO, njit
from skysieve.dedispersion.contract import CLIP, NOISE, UNIT

from .simd import WIDE, any_window

JIT = {"nogil": True, "error_model": "numpy"}
BINS = 8192
"""Bins of a histogram of a block."""
SEGMENT = 2048
"""Number of samples whose windows are examined together."""
CLIPPED = NOISE["clipped"].code
IQR = 1.3489795003921634
"""Distance of the quartiles of a normal distribution, in sigma."""
CLIPS, CLIP_AT, CLIPPED_SIGMA = 5, 3.0, 0.98657826
"""Rounds of clipping, its limit in sigma, and the standard deviation of a unit normal distribution clipped there."""
PART = 64
"""Samples of a partial sum of `moments`."""
VALLEY = np.float32(0.2)
"""Two peaks are resolved if the S/N between them falls below this fraction of that of the lower peak, so that the
components of a pulse are one event."""
POINTED = np.float32(1.75)
"""Ratio of the S/N of the best part of a pulse to that of the same part of a top-hat, for a pulse with an exponential
tail."""


@njit(**JIT)
def quartiles(y, first, n, counts, out):
    """Quartiles of ``n`` integers, interpolated as if the samples of each value were spread evenly over +-1/2.

    Samples are counted in bins.  Bins around the quartiles are made finer until each holds one value, or until 4096
    bins are between the outer quartiles.
    """
    x = y[first : first + n]
    least, most = x[0], x[0]
    for i in range(1, n):
        least, most = min(least, x[i]), max(most, x[i])
    low, high = np.int64(least), np.int64(most)
    below = 0
    while True:
        shift = 0
        while (high - low) >> shift >= BINS:
            shift += 1
        bins = ((high - low) >> shift) + 1
        for b in range(bins + 1):
            counts[b] = 0
        for i in range(n):
            b = (np.int64(x[i]) - low) >> shift
            if 0 <= b < bins:
                counts[b] += 1
        k, total = 0, below
        where_low = where_high = 0
        before = 0
        for q in range(3):
            wanted = n * 0.25 * (q + 1)
            while total + counts[k] < wanted:
                total += counts[k]
                k += 1
            if q == 0:
                where_low, before = k, total
            where_high = k
            width = 1 << shift
            out[q] = low + k * width - 0.5 + width * ((wanted - total) / counts[k])
        if shift == 0 or where_high - where_low >= 4096:
            return
        high = low + ((where_high + 1) << shift) - 1
        low = low + (where_low << shift)
        below = before


@njit(**JIT)
def even_bin(v, low, scale):
    """Number of the bin of a value, limited to the bins."""
    return min(max(np.int64((np.float64(v) - low) * scale), 0), BINS - 1)


@njit(**JIT)
def sort_floats(a, n):
    """Sort the first ``n`` values in place with a heap; it compiles in a tenth of the time of NumPy's sort."""
    for start in range(n // 2 - 1, -n, -1):
        if start < 0:  # the heap is built: move its largest value to the end
            last = n + start
            a[0], a[last] = a[last], a[0]
            i, size = 0, last
        else:
            i, size = start, n
        v = a[i]
        while True:
            child = 2 * i + 1
            if child >= size:
                break
            if child + 1 < size and a[child + 1] > a[child]:
                child += 1
            if not a[child] > v:
                break
            a[i] = a[child]
            i = child
        a[i] = v


@njit(**JIT)
def float_quartiles(y, first, n, counts, spare, out):
    """Quartiles of ``n`` floats: the samples of ranks n / 4, n / 2 and 3 n / 4, as sorting would give them.

    Samples that have the same value are spread, see `spread`.  Samples are counted in even bins between their ends;
    then only the bins that hold a quartile are sorted.
    """
    low, high = np.float64(y[first]), np.float64(y[first])
    for i in range(first, first + n):
        v = np.float64(y[i])
        low, high = min(low, v), max(high, v)
    scale = (BINS - 1) / (high - low) if high > low else 0.0
    even = math.isfinite(high - low) and math.isfinite(scale)
    for b in range(BINS):
        counts[b] = 0
    for i in range(first, first + n):
        counts[even_bin(y[i], low, scale) if even else 0] += 1
    b, before = 0, 0
    sorted_bin = -1
    size = 0
    for k in range(3):
        rank = n * (k + 1) // 4
        while before + counts[b] <= rank:
            before += counts[b]
            b += 1
        if b != sorted_bin:
            size = 0
            for i in range(first, first + n):
                if not even or even_bin(y[i], low, scale) == b:
                    spare[size] = y[i]
                    size += 1
            sort_floats(spare, size)
            sorted_bin = b
        begin = end = rank - before
        while begin > 0 and spare[begin - 1] == spare[end]:
            begin -= 1
        while end < size - 1 and spare[end + 1] == spare[begin]:
            end += 1
        out[k] = spare[end]
        if end > begin:
            share = (n * 0.25 * (k + 1) - (before + begin)) / (end - begin + 1)
            out[k] = spread(y, first, n, out[k], share)


@njit(**JIT)
def spread(y, first, n, v, share):
    """The value below which a share of the samples of value ``v`` lies, if these are spread evenly.

    They are spread between the middles of the distances to the next smaller and larger values, as far to both sides at
    the ends of the values: whole numbers from 1/2 below to 1/2 above, as in `quartiles`.
    """
    low, high = -np.inf, np.inf
    for i in range(first, first + n):
        x = np.float64(y[i])
        if x < v:
            low = max(low, x)
        elif x > v:
            high = min(high, x)
    below, above = 0.5 * (v - low), 0.5 * (high - v)
    if not math.isfinite(below):
        below = above
    if not math.isfinite(above):
        above = below
    return v - below + (below + above) * share if math.isfinite(above) else v


@njit(**JIT)
def moments(y, first, n, level, most, out):
    """Count, mean and variance of the samples within ``most`` of ``level``, from sums over 64 samples in order."""
    count, total, square = 0, 0.0, 0.0
    origin = np.float64(y[first])
    for i in range(first, first + n, PART):
        t = s = 0.0
        for j in range(i, min(i + PART, first + n)):
            v = np.float64(y[j])
            if abs(v - level) <= most:
                d = v - origin
                t += d
                s += d * d
                count += 1
        total += t
        square += s
    mean = total / max(count, 1)
    out[0] = count
    out[1] = origin + mean
    out[2] = max(0.0, square / max(count, 1) - mean * mean)


@njit(**JIT)
def block_noise(y, first, n, noise, counts, spare, out):
    """Write level and sigma of one block to ``out[:2]``.

    ``noise`` is that of `Detection.noise_kind`; ``spare`` is scratch memory for floats, None for integers.
    """
    if noise is None:  # known when this is compiled
        if spare is not None:  # known when this is compiled
            float_quartiles(y, first, n, counts, spare, out)
        else:
            quartiles(y, first, n, counts, out)
        middle = out[1]
        out[1] = (out[2] - out[0]) / IQR
        out[0] = middle
        return
    moments(y, first, n, 0.0, np.inf, out)
    level, sigma = out[1], math.sqrt(out[2])
    if noise == CLIPPED:
        for _ in range(CLIPS):
            moments(y, first, n, level, CLIP_AT * sigma, out)
            if out[0] < 2:
                break
            level, sigma = out[1], math.sqrt(out[2]) / CLIPPED_SIGMA
    out[0], out[1] = level, sigma


@njit(**JIT)
def fixed_points(y, first, n, level, sigma, total, prefix, at):
    """Continue prefix sums, from ``prefix[at] = total``, over ``n`` samples of a block; returns the last sum."""
    scale = UNIT / sigma if sigma > 0 else 0.0
    samples, sums = y[first : first + n], prefix[at + 1 : at + n + 1]
    for i in range(n):
        q = np.rint((np.float64(samples[i]) - level) * scale)
        sums[i] = np.int32(min(max(q, -CLIP), CLIP))
    for i in range(n):
        total = np.int32(total + sums[i])
        sums[i] = total
    return total


@njit(**JIT)
def normalise(y, count, block, noise, parts, counts, spare, flat, drifts, levels, out, prefix):
    """Prefix sums of the fixed-point samples of a row that begins with a block.

    With a baseline (``parts``), `find_levels` has written ``levels[:, 0]``, and blocks whose level drifts
    (``drifts[b] >= 0``) are taken from ``flat``, see `subtract_baselines`.  A last block of less than a quarter takes
    the noise of the block before it.  ``out`` is scratch memory for three numbers.
    """
    prefix[0] = 0
    total = np.int32(0)
    for b in range((count + block - 1) // block):
        first = b * block
        n = min(block, count - first)
        level = levels[b]
        x = flat if parts and drifts[b] >= 0 else y
        if b == 0 or 4 * n >= block:
            block_noise(x, first, n, noise, counts, spare, out)
            level[1] = out[1]
        else:
            out[0], level[1] = levels[b - 1, 0], levels[b - 1, 1]
        if not parts:
            level[0] = out[0]
        total = fixed_points(x, first, n, level[0], level[1], total, prefix, first)


@njit(**JIT)
def boxcars(prefix, count, start, stop, widths, scales, best, which):
    """Highest S/N over the widths of the windows centred on samples ``start : stop``; 0 if no window fits."""
    for i in range(stop - start):
        best[i] = np.float32(0)
        which[i] = np.int32(0)
    for k in range(len(widths)):
        w = widths[k]
        scale = scales[k]
        half = w // 2
        low = max(start, half)
        high = min(stop, count - w + half + 1)
        if high <= low:
            continue
        a = prefix[low - half + w :]
        b = prefix[low - half :]
        s = best[low - start :]
        v = which[low - start :]
        kk = np.int32(k)
        for i in range(high - low):
            f = np.float32(np.int32(a[i] - b[i])) * scale
            s0 = s[i]
            more = f > s0
            s[i] = f if more else s0
            v[i] = kk if more else v[i]


@njit(**JIT)
def first_window(prefix, s, stop, width, scale, threshold):
    """First of the samples ``s : stop`` at which a window of ``width[0]`` samples that reaches the threshold begins, or
    ``stop``.
    """
    u, w = s, width[0]
    while u + WIDE <= stop:
        if any_window(prefix, u + w // 2, 1, width, scale, 1, threshold):
            break
        u += WIDE
    while u < stop and np.float32(np.int32(prefix[u + w] - prefix[u])) * scale[0] < threshold:
        u += 1
    return u


@njit(**JIT)
def next_crest(prefix, s, stop, widths, scales, k, threshold, dip):
    """Whether windows of width number ``k`` that begin at ``s`` or later, and end by ``stop``, have a peak.

    A peak reaches the threshold, and after it the S/N falls by more than ``dip``, to less than the fraction `VALLEY` of
    the peak, and rises in the same way.  The middle of that valley and the sample from which to look for the next peak
    are returned as well; ``stop`` twice if there is none.  Lower peaks have no effect, so the first window that reaches
    the threshold is looked for first.
    """
    rising, high = True, False
    top, bottom, cut = np.float32(-np.inf), np.float32(np.inf), s
    w, scale = widths[k], scales[k]
    first = first_window(prefix, s, stop - w + 1, widths[k : k + 1], scales[k : k + 1], threshold)
    for u in range(first, stop - w + 1):
        f = np.float32(np.int32(prefix[u + w] - prefix[u])) * scale
        if rising:
            if f > top:
                top = f
            elif f < top - dip and f < VALLEY * top:
                rising, bottom, cut, high = False, f, u, top >= threshold
        elif f < bottom:
            bottom, cut = f, u
        elif f > bottom + dip and VALLEY * f > bottom:
            if high:
                return True, cut + w // 2, u
            rising, top = True, f
    return top >= threshold if rising else high, stop, stop


@njit(**JIT)
def best_within(prefix, first, stop, widths, scales, even):
    """Highest S/N of the windows within samples ``first : stop``, above ``even`` times the root of their width.

    ``even`` is for windows of ``UNIT**-2`` samples.  The window's centre and width number are returned as well.
    """
    best, at, which = np.float32(-np.inf), first, 0
    for k in range(len(widths)):
        w = widths[k]
        expected = even / scales[k]
        for s in range(first, stop - w + 1):
            f = np.float32(np.int32(prefix[s + w] - prefix[s])) * scales[k] - expected
            if f > best:
                best, at, which = f, s + w // 2, k
    return best, at, which


@njit(**JIT)
def add_event(row, t, k, snr, found, n_found):
    """Write an event to ``found``, if there is room; returns the new number of events."""
    if n_found < len(found):
        event = found[n_found]
        event[0] = row
        event[1] = t
        event[2] = k
        event[3] = snr
    return n_found + 1


@njit(**JIT)
def pointed(prefix, begin, k, widths, scales, threshold, dip, row, found, n_found):
    """Add a narrow pulse upon a wide one as a further event; the window ``k`` of the wide one begins at ``begin``.

    The narrow pulse is at most a third as long.  Its S/N exceeds `POINTED` times the S/N that this part of an even
    window would have by more than ``dip``.  Returns the new number of events.
    """
    w = widths[k]
    few = 0
    while 3 * widths[few] <= w:
        few += 1
    if few == 0:
        return n_found
    whole = np.float32(np.int32(prefix[begin + w] - prefix[begin])) * scales[k]
    above, t, which = best_within(prefix, begin, begin + w, widths[:few], scales, POINTED * whole * scales[k])
    if above > dip:
        v = widths[which]
        s = t - v // 2
        f = np.float32(np.int32(prefix[s + v] - prefix[s])) * scales[which]
        if f >= threshold:
            n_found = add_event(row, t, which, f, found, n_found)
    return n_found


@njit(**JIT)
def hidden(w, snr, threshold):
    """Distance from a window of ``w`` samples within which a wider window can hide a burst of S/N ``threshold``.

    The wider window holds both bursts, which are ``d`` samples apart, in ``2 d`` samples.  Its S/N is the higher one if
    ``d < w / 2 (1 + snr / threshold)**2``.
    """
    more = np.float32(1) + snr / threshold
    return np.int64(min(np.float32(0.5) * np.float32(w) * (more * more), np.float32(1e6)))


@njit(**JIT)
def split(prefix, count, t, k, f, widths, scales, threshold, dip, row, found, n_found):
    """Events of the window of width number ``k`` around sample ``t``, if it holds peaks that are resolved.

    Peaks are resolved if the S/N of shorter windows falls by more than ``dip`` between them.  Windows from a sixteenth
    to a third as long are tried on the window and a quarter of its width on both sides.  The width that shows the most
    peaks is taken; of several such widths, the longest.  The data are divided at the dips, and the best window of each
    part is an event, in place of the whole window.  Narrow pulses upon wide ones are events too, see `pointed`.

    A loud window, of S/N ``f``, hides weaker bursts beside it.  Within the distance of `hidden`, windows up to its own
    width are tried as well.  The loud window stays an event, unless it is divided itself; parts beside it are events if
    they are weaker.

    Returns the new number of events: at least two more if the data are divided, or else up to one more.
    """
    w = widths[k]
    start = t - w // 2
    beside = w // 4
    loud = f >= threshold + dip
    if loud:
        beside = max(beside, min(hidden(w, f, threshold), widths[-1] // 2 + widths[-1] // 4 - (w - w // 2)))
    first, stop = max(0, start - beside), min(count, start + w + beside)
    most, which = 1, ZERO
    for j in range(k, -1, -1):
        v = widths[j]
        if 3 * v > w and not loud:
            continue
        if 16 * v < w:
            break
        n, s = 0, first
        while s + v <= stop:
            crest, _, s = next_crest(prefix, s, stop, widths, scales, j, threshold, dip)
            n += crest
        if n > most:
            most, which = n, j
    v, s, begin, n = widths[which], first, first, 0
    for turn in range(2 if most > 1 else 0):  # are there two events?  Then write them
        s, begin = first, first
        while s + v <= stop:
            crest, end, s = next_crest(prefix, s, stop, widths, scales, which, threshold, dip)
            if crest:
                own = loud and begin <= start and end >= start + w
                away = loud and (end <= start or begin >= start + w)
                g, at, i = f, t, k
                if not own:
                    g, at, i = best_within(prefix, begin, end, widths, scales, np.float32(0))
                wanted = g >= threshold and not (away and g > f)
                if wanted and turn == 0:
                    n += 1
                elif wanted:
                    n_found = add_event(row, at, i, g, found, n_found)
                    n_found = pointed(
                        prefix, at - widths[i] // 2, i, widths, scales, threshold, dip, row, found, n_found
                    )
            begin = end
        if n < 2:
            break
    if n < 2:
        return pointed(prefix, start, k, widths, scales, threshold, dip, row, found, n_found)
    return n_found


@njit(**JIT)
def peaks(
    best, which, start, low, high, widths, threshold, every, row, found, n_found, prefix, count, scales, dip
):  # fmt: skip
    """Find the events that are centred on samples ``low : high``.

    An event reaches the threshold and is the highest within half its width; with ``every`` the threshold is enough.
    ``best[0]`` belongs to sample ``start``; of equal values the earliest counts.  A window with several resolved peaks
    gives an event for each, see `split`.  ``prefix[i]`` is the sum of the samples before ``i``.  Returns the new number
    of events, also if ``found`` is too short for all of them.
    """
    last = start + len(best)
    for t in range(low, high):
        f = best[t - start]
        if f < threshold:
            continue
        top, k = True, np.int64(which[t - start])
        if not every:
            r = max(1, widths[k] // 2)
            for u in range(t + 1, min(last, t + r + 1)):
                if best[u - start] > f:
                    top = False
                    break
            if top:  # the nearest first: on the slope of a peak it is higher
                for back in range(1, min(r, t - start) + 1):
                    if best[t - back - start] >= f:
                        top = False
                        break
        if top and not every and (widths[k] > 2 or f >= threshold + dip):
            before = n_found
            n_found = split(prefix, count, t, k, f, widths, scales, threshold, dip, row, found, n_found)
            top = n_found < before + 2
        if top:
            n_found = add_event(row, t, k, f, found, n_found)
    return n_found


@njit(**JIT)
def find_events(
    prefix, count, low, high, widths, scales, threshold, every, dip, best, which, row, found, n
):  # fmt: skip
    """Events in the ``count`` samples of a row whose prefix sums are known, for windows centred on ``low : high``.

    ``found[n:]`` gets (row, column, index of the width, S/N); returns the new number of events.  ``prefix`` has room
    for the widest window and `WIDE` more samples after the end, which are 0 here, so that no valid window is hidden.
    ``best`` and ``which`` are scratch memory for a segment and half the widest window on both sides.
    """
    reach = widths[-1]
    side = max(1, reach // 2)
    for past in range(count + 1, count + reach + WIDE + 1):
        prefix[past] = prefix[count]
    end = min(high, count)
    for t in range(low, end, SEGMENT):
        stop = min(end, t + SEGMENT)
        blocks = (stop - t + WIDE - 1) // WIDE
        if t >= side and not any_window(prefix, t, blocks, widths, scales, len(widths), threshold):
            continue  # no window reaches the threshold, as in most segments
        a, b = max(0, t - side), min(count, stop + side)
        for u in range(a, b, WIDE):
            if u >= side and not any_window(prefix, u, 1, widths, scales, len(widths), threshold):
                best[u - a : u - a + WIDE] = np.float32(0)
            else:
                boxcars(prefix, count, u, min(b, u + WIDE), widths, scales, best[u - a :], which[u - a :])
        n = peaks(
            best[: b - a], which[: b - a], a, t, stop, widths, threshold, every, row, found, n, prefix, count, scales,
            dip,
        )  # fmt: skip
    return n
