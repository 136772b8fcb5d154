"""Friends of friends: events that belong to one pulse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def friends(
    dm_index: NDArray[np.int64], time: NDArray[np.float64], width: NDArray[np.float64], link_dm: int, link_time: float
) -> NDArray[np.int64]:
    """Number of the group that each event belongs to: 0, 1, ... in the order of the groups' first events.

    Two events are friends when their DMs are at most ``link_dm`` apart in the list and their times no further than half
    the sum of their widths, or ``link_time``; groups are what friends of friends reach.

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
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = len(time)
    if n == 0:
        return np.empty(0, np.int64)
    order = np.lexsort((time, dm_index))
    d, t, w = dm_index[order], time[order], width[order]
    base = float(t.min())
    span = float(t.max()) - base + 4 * (float(w.max()) + link_time)
    key = d * span + (t - base)
    left, right = [], []
    reach = w.max() / 2
    for step in range(link_dm + 1):
        low = np.searchsorted(key, key + step * span - np.maximum(w / 2 + reach, link_time), side="left")
        high = np.searchsorted(key, key + step * span + np.maximum(w / 2 + reach, link_time), side="right")
        if step == 0:
            low = np.arange(1, n + 1)
        counts = np.maximum(high - low, 0)
        a = np.repeat(np.arange(n), counts)
        b = np.repeat(low - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts) + np.arange(counts.sum())
        near = (d[b] - d[a] == step) & (np.abs(t[b] - t[a]) <= np.maximum((w[a] + w[b]) / 2, link_time) * (1 + 1e-12))
        left.append(a[near])
        right.append(b[near])
    a, b = np.concatenate(left), np.concatenate(right)
    graph = coo_array((np.ones(len(a), np.bool_), (a, b)), shape=(n, n))
    _, label = connected_components(graph, directed=False)
    groups = np.empty(n, np.int64)
    groups[order] = label
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]
