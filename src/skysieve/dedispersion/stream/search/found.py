"""What a stream's search gives out, and the events of which it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.dedispersion.single_pulse.candidates import Events

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Found:
    """Candidates that have become final, the loudest first.

    Attributes
    ----------
    columns : dict of numpy.ndarray
        As `Candidates.columns`, and ``live``: the part of the window's samples that came.
    events : Events
        Their members, in the order of DM, time and width.
    group : numpy.ndarray of int64
        Candidate that each event belongs to.
    """

    columns: dict[str, NDArray[Any]]
    events: Events
    group: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.columns["snr"])


def picked(events: Events, some: NDArray[np.bool_]) -> Events:
    """Some of the events."""
    return Events(*(getattr(events, name)[some] for name in events.__dataclass_fields__))


def joined_events(a: Events, b: Events) -> Events:
    """Events of two, in the order of DM, time and width."""
    columns = {n: np.concatenate([getattr(a, n), getattr(b, n)]) for n in a.__dataclass_fields__}
    order = np.lexsort((columns["width_samples"], columns["time"], columns["dm_index"]))
    return Events(**{n: c[order] for n, c in columns.items()})
