"""Kernel that groups events by joining trees (numba); its memory does not depend on the number of friends."""

from __future__ import annotations

from skysieve.core.cpu.jit import njit

JIT = {"nogil": True, "error_model": "numpy"}


@njit(**JIT)
def top_of(root, i):
    """The root of the tree that holds event ``i``; halves the path to it."""
    while root[i] != i:
        root[i] = root[root[i]]
        i = root[i]
    return i


@njit(**JIT)
def join(dms, starts, time, width, link_dm, link_time, root):
    """Join events that are friends; see `grouping.friends`.

    Parameters
    ----------
    dms : int64 (rows,)
        Numbers of the DMs that have events, rising.
    starts : int64 (rows + 1,)
        First event of each.
    time, width : float64 (n,)
        Events, sorted by DM, then time.
    root : int64 (n,)
        In: 0, 1, ...; out: one number for each group.
    """
    for r in range(len(dms)):
        for q in range(r, len(dms)):
            if dms[q] - dms[r] > link_dm:
                break
            widest = link_time
            for j in range(starts[q], starts[q + 1]):
                widest = max(widest, width[j])
            first = starts[q]
            latest = 0.0
            for i in range(starts[r], starts[r + 1]):
                latest = max(latest, width[i])
            reach = max(link_time, (latest + widest) / 2) * (1 + 1e-12)
            for i in range(starts[r], starts[r + 1]):
                while first < starts[q + 1] and time[first] < time[i] - reach:
                    first += 1
                for j in range(max(first, i + 1) if q == r else first, starts[q + 1]):
                    gap = abs(time[j] - time[i])
                    if time[j] - time[i] > reach:
                        break
                    if gap <= max((width[i] + width[j]) / 2, link_time) * (1 + 1e-12):
                        a, b = top_of(root, i), top_of(root, j)
                        if a < b:
                            root[b] = a
                        else:
                            root[a] = b
    for i in range(len(root)):
        root[i] = top_of(root, i)
