"""The options of a stream, and the candidates that its stages pass to each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from skysieve.core.checks import one_of
from skysieve.dedispersion.data.observation import mjd_of
from skysieve.dedispersion.single_pulse.candidates import Candidates

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.data.observation import Observation

Policy = Literal["drop", "block"]
POLICIES: dict[str, str] = {
    "drop": "packets without room are dropped and counted",
    "block": "the sender, or the kernel, waits until there is room",
}
"""Policies for packets when a ring is full."""


@dataclass(frozen=True)
class Options:
    """Options that all beams of a stream share.

    Attributes
    ----------
    plan : DMPlan, array_like or None
        DMs to search.
    dm_max : float or None
        Highest DM of the plan that is made if `plan` is None.
    window : int
        A packet is late, and not used, if it arrives after a packet that is more than this many packets ahead of it.
    ring : float
        Seconds of data that the ring of a beam holds.
    gulp : float
        Most seconds of data that are processed at a time.
    policy : {"drop", "block"}
        Policy for packets when a ring is full, see `POLICIES`.
    growing : bool
        Whether rings may grow while a search is set up, so that no packets of senders that cannot wait are lost.
    channelise : dict
        Keyword arguments of `Channeliser`.
    search : dict
        Keyword arguments of `StreamSearch`.
    inject : dict or None
        Keyword arguments of `LiveInjector`: ``every``, ``grid`` and ``seed``; None to inject nothing.
    expected : int
        Number of samples that will come from a source that can wait, such as a file; otherwise 0.
    cutouts : bool
        Whether to cut out the samples around candidates.
    source, telescope : str
        Names for the headers of cut-outs and for VOEvents.
    ra, dec : float
        Degrees.
    """

    plan: Any = None
    dm_max: float | None = None
    window: int = 8
    ring: float = 2.0
    gulp: float = 0.125
    policy: Policy = "drop"
    growing: bool = False
    channelise: dict[str, Any] = field(default_factory=dict)
    search: dict[str, Any] = field(default_factory=dict)
    inject: dict[str, Any] | None = None
    expected: int = 0
    cutouts: bool = True
    source: str = ""
    telescope: str = ""
    ra: float = float("nan")
    dec: float = float("nan")

    def __post_init__(self) -> None:
        one_of("policy", self.policy, POLICIES)
        for name in ("ring", "gulp"):
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
class Column:
    """A column of a table of the stream.

    Attributes
    ----------
    name, help : str
    unit : str
        Unit in astropy's notation; empty for a dimensionless number.
    format : str
        Format of floating-point numbers in CSV files.
    ucd : str
        IVOA's unified content descriptor, if there is one.
    voevent : bool
        Whether VOEvents contain the column.
    """

    name: str
    help: str
    unit: str = ""
    format: str = ".9f"
    ucd: str = ""
    voevent: bool = False

    def cell(self, value: Any) -> str:
        """A value as text for a CSV file."""
        return format(value, self.format) if isinstance(value, float) else str(value)


VOEVENT_UCDS = {
    "snr": "stat.snr", "dm": "phys.dispMeasure", "time": "", "width": "time.duration", "mjd_infinite": "time.epoch",
    "members": "",
}  # fmt: skip
"""Columns of a search that VOEvents contain, and their unified content descriptors."""
CANDIDATE_COLUMNS = (
    Column("beam", "Number of the beam.", voevent=True),
    Column("segment", "Number of the segment: 0, and one more each time the sender starts again."),
    *(
        Column(
            c.name,
            f"{c.help[0].upper()}{c.help[1:]}.",
            c.unit,
            c.text,
            VOEVENT_UCDS.get(c.name, ""),
            c.name in VOEVENT_UCDS,
        )
        for c in Candidates.COLUMNS
    ),
    Column("live", "Fraction of the window's samples that arrived.", format=".4f", voevent=True),
    Column("beams", "Number of beams that detected the candidate at the same time."),
    Column("flagged", "1 if so many beams detected the candidate at the same time that it is interference, else 0."),
    Column("injected", "Number of the injected pulse to which the candidate belongs; 0 for a candidate of the data."),
    Column("latency", "Time from the arrival of the candidate's last sample to its release.", "s", ".3f"),
)
"""Columns of ``candidates.csv``, in its order; triggers send the same values."""


INJECTION_COLUMNS = (
    Column("beam", "Number of the beam."),
    Column("segment", "Number of the segment."),
    Column("number", "Number of the injected pulse, as in the column injected of candidates."),
    Column("snr", "Injected S/N, measured with the ideal boxcar.", format=".4f"),
    Column("dm", "Injected dispersion measure.", "pc / cm3", ".6f"),
    Column("time", "Arrival time at the top of the band.", "s"),
    Column("mjd_top", "Arrival time at the top of the band, MJD.", "d", ".12f"),
    Column("width", "Full width at half maximum of the pulse.", "s"),
    Column("effective_width", "Length of the ideal boxcar.", "s"),
    Column("live", "Fraction of the samples of the ideal boxcar that arrived.", format=".4f"),
    Column("found", "1 if a candidate has the time and DM of the pulse, else 0."),
    Column("snr_found", "S/N of that candidate.", format=".4f"),
    Column("dm_found", "Dispersion measure of that candidate.", "pc / cm3", ".6f"),
    Column("time_found", "Arrival time of that candidate at the top of the band.", "s"),
)
"""Columns of ``injections.csv``."""
LEAST_LIVE = 0.8
"""Least fraction of an injected pulse that must have arrived for the pulse to count for the recall."""


@dataclass(frozen=True)
class Injection:
    """An injected pulse, and the candidate that was found for it; the fields are `INJECTION_COLUMNS`."""

    number: int
    snr: float
    dm: float
    time: float
    mjd_top: float
    width: float
    effective_width: float
    live: float
    found: bool
    snr_found: float
    dm_found: float
    time_found: float
    beam: int = 0
    segment: int = 0

    @property
    def row(self) -> dict[str, Any]:
        """A row of ``injections.csv``."""
        return {**vars(self), "found": int(self.found)}


@dataclass(frozen=True, eq=False)
class Candidate:
    """A candidate on its way to the sink.

    Attributes
    ----------
    columns : dict
        Values by the names of `CANDIDATE_COLUMNS`; later stages add ``beams``, ``flagged`` and ``latency``.
    observation : Observation
    top_time : float
        Seconds from sample 0 to the arrival of the candidate at the top of the band.
    raw, raw_start
        Samples around the candidate and the number of the first one, if they are available already.
    number : int
        Number of the `CandidateSamples` that follow; 0 if none follow.
    arrival : float or None
        `time.monotonic` when the packet with its last sample arrived; None if it is no longer known.
    """

    columns: dict[str, Any]
    observation: Observation
    top_time: float
    raw: NDArray[Any] | None = None
    raw_start: int = 0
    number: int = 0
    arrival: float | None = None


@dataclass(frozen=True)
class CandidateSamples:
    """The samples around a candidate, sent after it; ``raw`` is None if there was no room for them."""

    number: int
    start: int
    raw: NDArray[Any] | None


@dataclass(frozen=True)
class Mark:
    """A position in the stream of a beam: all candidates before it are on the disk.

    Attributes
    ----------
    segment : int
    epoch : int
        Nanoseconds since 1970 of sample 0; 0 if the sender does not know it.
    seconds : float
        Seconds since sample 0, at the top of the band.
    sample : int
        The sender's number of the sample at this position.
    """

    segment: int
    epoch: int
    seconds: float
    sample: int

    @property
    def mjd(self) -> float:
        """The position as MJD."""
        return mjd_of(self.epoch) + self.seconds / 86400
