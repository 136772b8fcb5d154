"""The second look at several candidates in one call, from the sums of their cut-outs (numba)."""

from __future__ import annotations

import numpy as np

from skysieve.core.cpu.jit import njit

from .cpu_look import place, see
from .cpu_vetting import flatten

JIT = {"nogil": True, "error_model": "numpy"}


@njit(**JIT)
def second_look(
    values, starts, cuts, windows, early, late, mean, pulsed, lateness, channels, highest, scratch, looks, places
):  # fmt: skip
    """Set the numbers of `vetting.Look`, and by how much DM and time change (see `cpu_look.place`), of candidates.

    Parameters
    ----------
    values : float64
        Sums of the cut-outs (see `vetting.Sums`); changed.
    starts : int64 (candidates,)
        Where the sums of each begin; -1 if there are none, and its numbers are not set then.
    cuts : int64 (candidates, 9)
        ``width``, ``side``, ``guard``, ``bin``, ``count`` and ``length`` of the `vetting.CutOut`, the number of spaces
        between the knots of the splines of its level, ``near`` of `cpu_look.beside_window`, and the number of windows.
    windows : int64 (candidates, 2, most windows)
        ``sizes`` and ``nears`` of `cpu_look.undispersed`.
    early, late, mean : (candidates, bands)
        As of `vetting.Arrivals`.
    pulsed : bool (candidates, bands)
        Whether there is known interference in each sub-band.
    lateness : float64 (bands,)
        ``late`` of `cpu_look.place`.
    channels : int
    highest : float64
        As for `cpu_look.even`.
    scratch : float64
        Memory for ``2 * bands * (count + length + 2)`` numbers.
    looks, places : float64 (candidates, numbers)
    """
    bands = early.shape[1]
    begin = np.empty(bands)
    for i in range(len(starts)):
        if starts[i] < 0:
            continue
        w, side, guard, size, count, length = cuts[i, 0], cuts[i, 1], cuts[i, 2], cuts[i, 3], cuts[i, 4], cuts[i, 5]
        low = starts[i] + channels
        high = low + 2 * bands * count
        flat = values[low:high].reshape(2, bands, count)
        lined = values[high : high + 2 * bands * length].reshape(2, bands, length)
        room = 2 * bands * (count + 1)
        flat_sums = scratch[:room].reshape(2, bands, count + 1)
        lined_sums = scratch[room : room + 2 * bands * (length + 1)].reshape(2, bands, length + 1)
        first, last = side - guard, side + w + guard
        flatten(flat, lined, cuts[i, 6], first, last, early[i], late[i], mean[i], flat_sums, lined_sums)
        for b in range(bands):
            begin[b] = mean[i, b] + side
        sizes, nears = windows[i, 0, : cuts[i, 8]], windows[i, 1, : cuts[i, 8]]
        see(
            flat_sums[0], flat_sums[1], lined_sums[0], lined_sums[1], begin, pulsed[i], w, side, guard, cuts[i, 7],
            values[starts[i] : low], size, sizes, nears, highest, looks[i],
        )  # fmt: skip
        place(lined_sums[0], lined_sums[1], lateness, side, w, places[i])
