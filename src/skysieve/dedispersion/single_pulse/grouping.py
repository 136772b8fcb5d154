"""Groups of events that belong to one pulse, by friends of friends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
STEPS = 10
"""Operations of the grouping on a pair of events, at most."""


def friends(
    dm_index: NDArray[np.int64], time: NDArray[np.float64], width: NDArray[np.float64], link_dm: int, link_time: float
) -> NDArray[np.int64]:
    """Number of the group that each event belongs to: 0, 1, ... in the order of the groups' first events.

    Two events are friends if their DMs differ by at most ``link_dm`` places in the list of DMs and their times by at
    most half the sum of their widths, or by ``link_time`` if that is more.  A group is a set of events that are
    connected by friends.

    Parameters
    ----------
    dm_index : int, shape (n,)
    time, width : float, shape (n,)
        Seconds: centre and width of the window.

    Examples
    --------
    >>> friends(np.array([0, 1, 9]), np.array([1.0, 1.002, 1.0]), np.full(3, 0.01), 3, 1e-3).tolist()
    [0, 0, 1]
    """
    n = len(time)
    if n == 0:
        return np.empty(0, np.int64)
    from skysieve.core.cpu.jit import interpreted_if_small

    from .cpu_grouping import join

    order = np.lexsort((time, dm_index))
    d = dm_index[order]
    starts = np.append(np.flatnonzero(np.diff(d, prepend=d[0] - 1)), n)
    root = np.arange(n)
    run = interpreted_if_small(join, STEPS * float(n) ** 2)
    run(d[starts[:-1]], starts, time[order], width[order], link_dm, link_time, root)
    groups = np.empty(n, np.int64)
    groups[order] = root
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]
