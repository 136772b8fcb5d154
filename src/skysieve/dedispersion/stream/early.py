"""Pulses that are told before they are final: which were, what became of them.

The noise of a block is known at its end, so a candidate of a long block comes late.  An early one has the noise of the
block before, and the windows that fit into what has come; the candidate that follows replaces it, or, where none does,
it is withdrawn.  Candidates do not depend on them.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.candidates import Events

NUMBERS = itertools.count(1)
MOST = 10_000
"""Early pulses that are remembered."""


class Early:
    """What was told early by one search.

    Parameters
    ----------
    link_dm, link_time : int, float
        As for `search`: what lies so near belongs together.
    """

    def __init__(self, link_dm: int, link_time: float) -> None:
        self.link_dm, self.link_time = link_dm, link_time
        self._told = np.empty((0, 4))
        self._numbers = np.empty(0, np.int64)
        self._sure = np.empty(0, bool)
        self._new: list[dict[str, Any]] = []
        self._withdrawn: list[int] = []

    def offer(self, events: Events, group: NDArray[np.int64], columns: dict[str, NDArray[Any]]) -> None:
        """Groups of events: those that nothing told belongs to are told."""
        for i, span in enumerate(spans(events, group)):
            near = self._near(span)
            self._told[near, 0::2] = np.minimum(self._told[near, 0::2], span[0::2])
            self._told[near, 1::2] = np.maximum(self._told[near, 1::2], span[1::2])
            if len(near) or len(self._told) >= MOST:
                continue
            number = next(NUMBERS)
            self._told = np.concatenate([self._told, span[None]])
            self._numbers = np.append(self._numbers, number)
            self._sure = np.append(self._sure, False)
            self._new.append({**{name: values[i].item() for name, values in columns.items()}, "early": number})

    def numbers(self, events: Events, group: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number of the early pulse that each final candidate replaces; 0 where none was told."""
        found = []
        for span in spans(events, group):
            near = self._near(span)
            if len(near):  # of several the first that has no candidate yet; what gets none is withdrawn
                near = near[np.argsort(self._sure[near], kind="stable")[:1]]
            self._sure[near] = True
            found.append(int(self._numbers[near[0]]) if len(near) else 0)
        return np.array(found, np.int64)

    def forget(self, until: float) -> None:
        """All candidates before a time have been given out: what was told of it and is none is withdrawn."""
        over = self._told[:, 3] < until
        if over.any():
            self._withdrawn += self._numbers[over & ~self._sure].tolist()
            self._told, self._numbers, self._sure = self._told[~over], self._numbers[~over], self._sure[~over]

    def take(self) -> tuple[list[dict[str, Any]], list[int]]:
        """Early pulses, and numbers of those that are withdrawn, since the last call."""
        some = self._new, self._withdrawn
        self._new, self._withdrawn = [], []
        return some

    def _near(self, span: NDArray[np.float64]) -> NDArray[np.int64]:
        """Places of what was told that touches a span."""
        told = self._told
        near = (told[:, 0] <= span[1] + self.link_dm) & (told[:, 1] >= span[0] - self.link_dm)
        near &= (told[:, 2] <= span[3] + self.link_time) & (told[:, 3] >= span[2] - self.link_time)
        return np.flatnonzero(near)


def spans(events: Events, group: NDArray[np.int64]) -> NDArray[np.float64]:
    """First and last DM number, first and last second of each group of events."""
    count = int(group.max()) + 1 if len(group) else 0
    found = np.tile([np.inf, -np.inf, np.inf, -np.inf], (count, 1))
    for column, low, high in ((0, events.dm_index, events.dm_index),
                              (2, events.time - events.width / 2, events.time + events.width / 2)):  # fmt: skip
        np.minimum.at(found[:, column], group, low)
        np.maximum.at(found[:, column + 1], group, high)
    return found
