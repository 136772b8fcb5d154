"""Events of a stream that wait for the rest of their candidate."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.dedispersion.single_pulse.candidates import Events, event_order
from skysieve.dedispersion.single_pulse.grouping import Known, Response

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_WAITING = 200_000
"""Most events that may wait for the end of their group."""
LONGEST = 30.0
"""Longest time in seconds that an event waits for others of its group; then the group is returned incomplete."""


@dataclass(frozen=True)
class Complete:
    """Candidates that later events cannot change.

    Attributes
    ----------
    events : Events
    head : numpy.ndarray of int64
        For each event, the event at which its burst peaks.
    forced : int
        Number of groups that are returned before they are complete.
    """

    events: Events
    head: NDArray[np.int64]
    forced: int


@dataclass(frozen=True)
class Waiting:
    """Events that wait for the end of their group, and events of earlier groups that may explain some of them.

    Attributes
    ----------
    events : Events
    done, own : numpy.ndarray of bool
        See `skysieve.dedispersion.single_pulse.grouping.Known`.
    """

    events: Events
    done: NDArray[np.bool_]
    own: NDArray[np.bool_]

    @classmethod
    def none(cls) -> Waiting:
        """No events."""
        kinds: dict[str, Any] = {"snr": np.float32, "dm": np.float64, "time": np.float64, "width": np.float64}
        events = Events(**{f.name: np.empty(0, kinds.get(f.name, np.int64)) for f in fields(Events)})
        return cls(events, np.empty(0, bool), np.empty(0, bool))

    def select(self, mask: NDArray[np.bool_]) -> Waiting:
        """The events for which `mask` is True."""
        return Waiting(self.events.select(mask), self.done[mask], self.own[mask])

    def merge(self, events: Events) -> Waiting:
        """These events and new ones, in the order of DM, time and width, without duplicates."""
        if not len(events):
            return self
        more = np.zeros(len(events), bool)
        columns = {
            f.name: np.concatenate([getattr(self.events, f.name), getattr(events, f.name)]) for f in fields(Events)
        }
        order = event_order(*(columns[n] for n in ("dm_index", "sample", "width_samples", "downsamp")))
        done, own = (np.concatenate([a, more])[order] for a in (self.done, self.own))
        return Waiting(Events(**{n: c[order] for n, c in columns.items()}), done, own)

    @property
    def first(self) -> float:
        """Seconds at which the first window that waits begins; inf if none waits."""
        return float((self.events.time - self.events.width / 2)[~self.done].min(initial=np.inf))

    def complete(
        self, response: Response, frontiers: NDArray[np.float64], last: bool = False, waits: bool = False
    ) -> tuple[Waiting, Complete]:
        """The events that still wait, and the groups that are complete.

        Parameters
        ----------
        response : Response
        frontiers : numpy.ndarray of float64
            For each DM, the seconds before which no more events can come.
        last : bool
            No more events come at all.
        waits : bool
            See `skysieve.dedispersion.single_pulse.grouping.Known`.
        """
        events, done = self.events, self.done
        frontier = np.inf if last else float(frontiers.min())
        if last:
            frontiers = np.full(len(frontiers), np.inf)
        groups = response.group(events, Known(frontiers, done, self.own, waits))
        over = np.full(len(events), True)
        np.logical_and.at(over, groups.head, ~groups.open)
        since = np.full(len(events), np.inf)
        np.minimum.at(since, groups.head, events.time)
        long = ~over & ((since < frontier - LONGEST) | (np.count_nonzero(~done) > MOST_WAITING))
        out = (over | long)[groups.head] & ~done
        forced = len(np.unique(groups.head[out & long[groups.head]]))
        done = done | out
        # events of returned candidates can still explain waiting events
        keep = ~done
        widest = float(response.widest.max())
        for arrival, ends in zip(response.arrivals(events), response.ends(frontiers), strict=True):
            earliest = min(ends, float(arrival[~done].min(initial=np.inf)))
            keep |= arrival + response.reach(events.width, widest) >= earliest
        keep &= ~done | (events.time >= frontier - LONGEST)
        place = np.cumsum(out) - 1
        ready = Complete(events.select(out), place[groups.head[out]], forced)
        return Waiting(events, done, groups.own).select(keep), ready
