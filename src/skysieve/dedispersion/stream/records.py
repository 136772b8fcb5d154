"""Options of a stream, and what its stages hand on: candidates and their cut-outs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from skysieve.dedispersion.data.observation import mjd_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.data.observation import Observation


@dataclass(frozen=True)
class Options:
    """What all beams have in common.

    Attributes
    ----------
    plan : DMPlan, array_like or None
    dm_max : float or None
        Highest DM of the plan that is made where none is given.
    window : int
        Packets by which one may come late.
    ring : float
        Seconds of data that rings hold.
    gulp : float
        Seconds of data that are worked on at a time, at most.
    policy : {"drop", "block"}
    growing : bool
        Rings may grow while searches are made: of senders that do not wait nothing is lost then.
    longest_gap : float
        Seconds that a packet may lie ahead of the latest.
    channelise : dict
        Keywords of `Channeliser`.
    search : dict
        Keywords of `StreamSearch`.
    history : float
        Bytes of samples to keep for cut-outs.
    cutouts : bool
    source, telescope : str
    ra, dec : float
        Degrees.
    """

    plan: Any = None
    dm_max: float | None = None
    window: int = 8
    ring: float = 2.0
    gulp: float = 0.25
    policy: str = "drop"
    growing: bool = False
    longest_gap: float = 60.0
    channelise: dict[str, Any] = field(default_factory=dict)
    search: dict[str, Any] = field(default_factory=dict)
    history: float = 2.0**27
    cutouts: bool = True
    source: str = ""
    telescope: str = ""
    ra: float = float("nan")
    dec: float = float("nan")

    def __post_init__(self) -> None:
        for name in ("ring", "gulp", "longest_gap"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{name}={value!r}: expected seconds, above 0")
        for name, low, high in (("ra", 0.0, 360.0), ("dec", -90.0, 90.0)):
            value = getattr(self, name)
            if not (math.isnan(value) or low <= value <= high):
                raise ValueError(f"{name}={value!r}: expected degrees from {low:g} to {high:g}")
        if self.dm_max is not None and not 0 <= self.dm_max < float("inf"):
            raise ValueError(f"dm_max={self.dm_max!r}: expected pc/cm^3, at least 0")


@dataclass(frozen=True)
class Row:
    """A candidate on its way to the sink.

    Attributes
    ----------
    columns : dict
    observation : Observation
    top_time : float
        Seconds of its arrival at the top of the band.
    raw, raw_start
        Samples around it, and the number of the first, where they are there already.
    number : int
        Of the `Cut` that follows with them; 0: none follows.
    when : float or None
        `time.monotonic` when the packet with its last sample came, where that is remembered.
    """

    columns: dict[str, Any]
    observation: Observation
    top_time: float
    raw: NDArray[Any] | None = None
    raw_start: int = 0
    number: int = 0
    when: float | None = None


@dataclass(frozen=True)
class Cut:
    """The samples around a candidate, which come after it; ``raw`` is None where there was no room for them."""

    number: int
    start: int
    raw: NDArray[Any] | None


@dataclass(frozen=True)
class Mark:
    """How far a beam is searched: all candidates before it are on the disk.

    Attributes
    ----------
    segment : int
    epoch : int
        Nanoseconds since 1970 of sample 0; 0 where the sender does not know it.
    seconds : float
        Since sample 0, at the top of the band.
    sample : int
        The sender's sample there.
    """

    segment: int
    epoch: int
    seconds: float
    sample: int

    @property
    def mjd(self) -> float:
        """As MJD."""
        return mjd_of(self.epoch) + self.seconds / 86400
