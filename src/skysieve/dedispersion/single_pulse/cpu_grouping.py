"""Kernels that find which events the response of a stronger event explains (numba)."""

from __future__ import annotations

import math

import numpy as np

from skysieve.core.cpu.jit import ZERO, njit

JIT = {"nogil": True, "error_model": "numpy"}
SLACK = 1.4
"""Factor by which the response may lie above that of a top-hat pulse with a flat spectrum."""
SOFT = 0.25
"""The response is widened by this fraction of the narrower of two windows, since pulses are not top-hats; by less if
the pulse is spread over several widths."""
REACH = 12.0
"""A stronger event explains an event only if the DM error between the two smears a pulse over at most this many widths
of the event.  For wide events this holds along a ridge only."""
FAR, RIDGE_FAR = 2.0, 4.0
"""Largest DM error at which an event explains others, by the response and along a ridge.  The unit is the DM error at
which its pulse falls to the threshold."""
WIDE = 0.25
"""Least width of an event, relative to the widest boxcar, that a pulse wider than this boxcar may explain."""
RIDGE = 0.1
"""The S/N may fall by this fraction along a ridge of events without dividing the ridge, since DMs and widths are
discrete."""
BROAD = 1.5
"""Greatest width of the events of a ridge, relative to those at its ends."""
NEAR, EACH = 4, 16
"""Number of DMs on each side of an event that are searched first.  After that, comparing ``EACH`` events one by one
takes as long as searching one more DM."""
NARROW, SHARE, FAINT = 0.7, 0.25, 0.02
"""Limits for events that add up to a wider event, relative to the wide event: their largest width, the least response
to which `SLACK` is applied, and the least response that counts."""


@njit(**JIT)
def share(low, high, d, band):
    """Fraction of the channels that a DM error ``d`` shifts by ``low : high`` seconds.

    ``band`` is (K, y at the reference frequency, at the top and at the bottom of the band, width of the band in MHz,
    density of the channels at its top over the mean), with ``y = f^-2``.
    """
    k, ref, top, bottom = band[0], band[1], band[2], band[3]
    if d == 0.0 or not bottom > top:
        x = -k * d * (top - ref)
        return 1.0 if low <= x <= high else 0.0
    a, b = ref - low / (k * d), ref - high / (k * d)
    if a > b:
        a, b = b, a
    a, b = max(a, top), min(b, bottom)
    if not b > a:
        return 0.0
    return (1 / math.sqrt(a) - 1 / math.sqrt(b)) / band[4]


@njit(**JIT)
def response(snr, w0, wide0, w, dt, d, band):
    """S/N in a window of width ``w`` that is ``dt`` later, and at a DM higher by ``d``, than a pulse.

    The pulse is a top-hat of S/N ``snr`` and width ``w0``, with a flat spectrum.  One that fills the widest window
    (``wide0``) may be twice as wide.
    """
    small = min(w, w0)
    near, far = abs(w - w0) / 2, (w + w0) / 2
    if wide0 and w >= WIDE * w0:
        near = far = far + w0 / 2
    smear = abs(d) * band[0] * (band[3] - band[2])
    soft = SOFT * small * (small / smear if smear > small else 1.0)
    near, far = near + soft, far + soft
    part = share(dt - near, dt + near, d, band) + share(dt - far, dt + far, d, band)
    return snr * small / math.sqrt(w * w0) * 0.5 * part


@njit(**JIT)
def first_after(values, low, high, value):
    """First index of ``low : high`` where the rising ``values`` are at least ``value``."""
    while low < high:
        middle = (low + high) // 2
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@njit(**JIT)
def on_ridge(i, j, row, dms, starts, widest, time, width, snr, least):
    """Whether the rows between events ``i`` and ``j`` have events of S/N ``least`` on the line between the two.

    They must be about as narrow as the two: the response of a pulse that fills the band gets wider with the DM error.
    """
    a, b = row[i], row[j]
    most = BROAD * max(width[i], width[j])
    step = 1 if b > a else -1
    q = a + step
    while q != b:
        at = time[i] + (time[j] - time[i]) * (dms[q] - dms[a]) / (dms[b] - dms[a])
        reach = (width[i] + widest[q]) / 2
        found = False
        for k in range(first_after(time, starts[q], starts[q + 1], at - reach), starts[q + 1]):
            if time[k] > at + reach:
                break
            if snr[k] >= least and width[k] <= most and abs(time[k] - at) <= (width[i] + width[k]) / 2:
                found = True
                break
        if not found:
            return False
        q += step
    return True


@njit(**JIT)
def explains(j, i, row, dms, starts, widest, time, width, wide, snr, band, excess, threshold, ridge):
    """Whether event ``j`` explains the weaker event ``i``; see `explain`."""
    d = dms[row[i]] - dms[row[j]]
    smear = abs(d) * band[0] * (band[3] - band[2])
    if smear > REACH * width[i] and (ridge or not wide[i]):
        return False
    above = snr[j] / threshold
    if smear > (RIDGE_FAR if ridge else FAR) * width[j] * (above * above):
        return False
    dt = time[i] - time[j]
    a, b = -band[0] * d * (band[2] - band[1]), -band[0] * d * (band[3] - band[1])
    far = (width[i] + width[j]) / 2
    most = far if ridge else (1 + SOFT) * far + (width[j] / 2 if wide[j] else 0.0)
    if dt < min(a, b) - most or dt > max(a, b) + most:
        return False
    # an upper limit of the response, which leaves out the fraction of the channels
    limit = SLACK * snr[j] * math.sqrt(min(width[i], width[j]) / max(width[i], width[j]))
    if snr[i] > limit + excess:
        return False
    if not ridge:
        broad = (4.0 if wide[j] else 1.5) * band[5] * max(width[i], width[j])
        if smear > broad and snr[i] > limit * broad / smear + excess:
            return False
        return snr[i] <= SLACK * response(snr[j], width[j], wide[j], width[i], dt, d, band) + excess
    if row[i] == row[j] or smear > REACH * width[j]:
        return False
    least = (1 - RIDGE) * snr[i] - excess
    return least <= threshold or on_ridge(i, j, row, dms, starts, widest, time, width, snr, least)


@njit(**JIT)
def explain(
    row, dms, starts, widest, time, width, wide, snr, band, excess, threshold, by_time, rows, when, broad, loud, ridge,
    known, parent
):  # fmt: skip
    """Write to ``parent`` the event that explains each event, or -1.

    Of the stronger events that explain an event, the one with the nearest DM is its parent; of several, the strongest.
    Among equally strong events, the first counts as stronger.  Events are compared DM by DM, outwards.  When that has
    taken longer than a comparison with all events within reach in time would, all these are compared one by one.

    Parameters
    ----------
    row : int64 (n,)
        DM numbers; events are sorted by DM, then time.
    dms, starts, widest : (ndm,), (ndm + 1,), (ndm,)
        All DMs, the first event of each, and the greatest width of its events.
    time, width, wide, snr : (n,)
    band : float64 (6,)
        See `share`.
    excess, threshold : float
    by_time, rows, when, broad, loud : (n,)
        Order of the events by time, and DM numbers, times, widths and S/N in this order.
    ridge : bool
        Whether to follow ridges: bursts that fill a part of the band.  Otherwise only the response counts.
    known : bool (n,)
        Events whose parent is known already: it stays.
    """
    n, ndm = len(time), len(dms)
    span = band[0] * (band[3] - band[2])
    top, bottom = band[0] * (band[2] - band[1]), band[0] * (band[3] - band[1])
    most = 0.0
    for r in range(ndm):  # with `widest.max()` numba would load scipy.linalg in every process
        most = max(most, widest[r])
    loudest = np.zeros(ndm)
    for i in range(n):
        loudest[row[i]] = max(loudest[row[i]], snr[i])
    for i in by_time:
        if known[i] or (ridge and parent[i] >= 0):
            continue
        best, turn = -1, NEAR
        a = b = 0
        low, high = 0, ndm
        if span > 0 and (ridge or not wide[i]):
            low = first_after(dms, ZERO, ndm, dms[row[i]] - 1.001 * REACH * width[i] / span)
            high = first_after(dms, ZERO, ndm, dms[row[i]] + 1.001 * REACH * width[i] / span)
        for r in range(ndm):
            if row[i] - r < low and row[i] + r >= high:
                break
            if r == NEAR:  # no near DM has an event that explains this one
                side = max(dms[row[i]] - dms[low], dms[high - 1] - dms[row[i]])
                reach = side * max(abs(top), abs(bottom)) + (1 + SOFT) * (width[i] + most) / 2 + most / 2
                a, b = first_after(when, ZERO, n, time[i] - reach), first_after(when, ZERO, n, time[i] + reach)
                turn = NEAR + (b - a) // EACH
            if r == turn:
                away = ndm
                for k in range(a, b):
                    if loud[k] < snr[i]:
                        continue
                    d, dt = dms[row[i]] - dms[rows[k]], time[i] - when[k]
                    far = (0.5 + SOFT) * (width[i] + broad[k]) + broad[k] / 2
                    if dt < min(-d * top, -d * bottom) - far or dt > max(-d * top, -d * bottom) + far:
                        continue
                    j = by_time[k]
                    if snr[j] == snr[i] and j >= i:
                        continue
                    off = abs(row[j] - row[i])
                    if off > away or (off == away and (snr[j] < snr[best] or (snr[j] == snr[best] and j > best))):
                        continue
                    if explains(j, i, row, dms, starts, widest, time, width, wide, snr, band, excess, threshold, ridge):
                        best, away = j, off
                break
            for q in (row[i] - r, row[i] + r):
                if q < low or q >= high or loudest[q] < snr[i] or (r == 0 and best >= 0):
                    continue
                d = dms[row[i]] - dms[q]
                reach = (1 + SOFT) * (width[i] + widest[q]) / 2 + widest[q] / 2
                first = time[i] - max(-d * top, -d * bottom) - reach
                last = time[i] - min(-d * top, -d * bottom) + reach
                for j in range(first_after(time, starts[q], starts[q + 1], first), starts[q + 1]):
                    if time[j] > last:
                        break
                    if snr[j] < snr[i] or (snr[j] == snr[i] and j >= i):
                        continue
                    if best >= 0 and (snr[j] < snr[best] or (snr[j] == snr[best] and j > best)):
                        continue
                    if explains(j, i, row, dms, starts, widest, time, width, wide, snr, band, excess, threshold, ridge):
                        best = j
            if best >= 0:
                break
        parent[i] = best


@njit(**JIT)
def add_up(heads, row, dms, time, width, wide, snr, band, excess, safe, known, parent, waits):
    """Find heads that several narrower heads explain together, and make the one that contributes most their parent.

    The narrower heads explain a head if its S/N is at most ``excess`` above the sum of their responses, as for the
    pulses of a train, or above `SLACK` times the sum of the responses of those that contribute at least `SHARE`.

    Parameters
    ----------
    heads : int64
        Events that nothing explains, sorted by time.
    safe, known : uint8 (n,)
        Whether no later event can explain an event; whether the parent of an event is known already.
    waits : uint8 (n,)
        Set for heads whose group may still change: those that help to explain a head that is not safe, and those that
        a head that is not safe helps to explain.
    """
    span = band[0] * (band[3] - band[2])
    when = time[heads]
    widest = 0.0
    for i in heads:
        widest = max(widest, width[i])
    far = max(abs(band[2] - band[1]), abs(band[3] - band[1])) / max(band[3] - band[2], 1e-300)
    found = np.full(len(heads), -1)
    for n in range(len(heads)):
        i = heads[n]
        if known[i]:
            continue
        reach = REACH * width[i] * max(1.0, far) + (1 + SOFT) * width[i]
        total, every, most, count, firm = 0.0, 0.0, 0.0, 0, True
        for m in range(first_after(when, ZERO, len(heads), time[i] - reach), len(heads)):
            j = heads[m]
            if time[j] > time[i] + reach:
                break
            d = dms[row[i]] - dms[row[j]]
            if width[j] > NARROW * width[i] or abs(d) * span > REACH * width[i]:
                continue
            part = response(snr[j], width[j], wide[j], width[i], time[i] - time[j], d, band)
            if part < FAINT * snr[i]:
                continue
            every += part
            if part >= SHARE * snr[i]:
                total += part
            count += 1
            firm = firm and safe[j]
            if not safe[i]:
                waits[j] = 1
            if part > most:
                most = part
                found[n] = j
        if count < 2 or snr[i] > max(every, SLACK * total) + excess:
            found[n] = -1
        elif not firm:
            waits[i] = 1
    for n in range(len(heads)):
        if found[n] >= 0:
            parent[heads[n]] = found[n]


def heads_of(parent):
    """Follow the parents of each event to its head; ``parent`` is -1 for heads."""
    head = np.where(parent < 0, np.arange(len(parent)), parent)
    while not np.array_equal(further := head[head], head):  # each round doubles the steps
        head = further
    return head
