"""What the run before left in a folder, and how much of the stream lies between it and this run.

Every second a run writes into ``status.json`` up to where the candidates of each beam are on the disk.  So the next run
can say what was not searched, also where the run before was killed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from skysieve.dedispersion.stream.records import Mark

from .status import NAME

GAP_COLUMNS = (
    "beam", "segment", "mjd_from", "mjd_to", "seconds", "sample_from", "sample_to", "before",
)  # fmt: skip


@dataclass(frozen=True)
class Gap:
    """What lies between the end of the run before and the first sample of this one that is searched.

    ``seconds`` is below 0 where this run begins before the end of the other, None where the two cannot be compared.
    """

    beam: int
    before: Mark
    after: Mark
    killed: bool

    @property
    def seconds(self) -> float | None:
        """Seconds between the two."""
        a, b = self.before, self.after
        if (a.epoch == 0) != (b.epoch == 0):
            return None
        return (b.epoch - a.epoch) / 1e9 + b.seconds - a.seconds

    @property
    def words(self) -> str:
        """A line for the operator."""
        how = "was killed" if self.killed else "ended"
        start = f"beam {self.beam}: the run before in this folder {how} at {shown(self.before)}"
        if self.seconds is None:
            return f"{start}; this one begins at {shown(self.after)}: one of the two epochs is not known"
        if self.seconds < 0:
            return f"{start}, {-self.seconds:.3f} s after the start of this one: candidates may be there twice"
        return f"{start}: a gap of {self.seconds:.3f} s, up to {shown(self.after)}, is not searched"

    @property
    def columns(self) -> dict[str, Any]:
        """A line of the table of gaps."""
        same = self.before.epoch == self.after.epoch
        return {
            "beam": self.beam, "segment": self.after.segment, "mjd_from": self.before.mjd, "mjd_to": self.after.mjd,
            "seconds": self.seconds or 0.0, "sample_from": self.before.sample if same else "",
            "sample_to": self.after.sample if same else "", "before": "killed" if self.killed else "ended",
        }  # fmt: skip


def shown(mark: Mark) -> str:
    """A mark for people: MJD where it is known, else seconds since the sender's sample 0.

    >>> shown(Mark(0, 0, 1.5, 1500)), shown(Mark(0, 1677326400000000000, 86.4, 86400))
    ('1.500 s', 'MJD 60000.501000000')
    """
    return f"MJD {mark.mjd:.9f}" if mark.epoch else f"{mark.seconds:.3f} s"


@dataclass
class Earlier:
    """What the run before left.

    Attributes
    ----------
    made : dict
        Number of the next segment of each beam.
    marks : dict of Mark
        Of each beam.
    killed : bool
        Whether it did not end by itself.
    """

    made: dict[int, int] = field(default_factory=dict)
    marks: dict[int, Mark] = field(default_factory=dict)
    killed: bool = False

    @classmethod
    def read(cls, folder: Path, segments: Mapping[int, int]) -> Earlier:
        """From a run's state, and ``segments``, the highest number in its table of each beam.

        A state that cannot be read, or is that of another version, tells nothing.
        """
        found = cls({beam: number + 1 for beam, number in segments.items()})
        try:
            body = json.loads((folder / NAME).read_text(encoding="utf-8"))
            found.killed = bool(body["running"])
            streams = dict(body["streams"])
            for name, one in streams.items():
                beam, mark = int(name), one["mark"]
                found.made[beam] = max(found.made.get(beam, 0), int(one["made"]))
                if mark is not None:
                    found.marks[beam] = Mark(
                        int(mark["segment"]), int(mark["epoch"]), float(mark["seconds"]), int(mark["sample"])
                    )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return found
        return found

    @staticmethod
    def written(made: Mapping[int, int], marks: Mapping[int, Mark]) -> dict[str, Any]:
        """What `read` finds again, for the state."""
        return {
            str(beam): {"made": number, "mark": asdict(marks[beam]) if beam in marks else None}
            for beam, number in made.items()
        }
