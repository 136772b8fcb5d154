"""The state that the previous run in a folder stored, and the gap between it and this run.

Every second a run writes to ``status.json`` the time up to which the candidates of each beam are on the disk.  The next
run reads the file and reports which data were not searched, even if the previous run was killed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from skysieve.dedispersion.stream.records import Column, Mark

from .status import NAME

GAP_COLUMNS = (
    Column("beam", "Number of the beam."),
    Column("segment", "Number of the segment of the new run."),
    Column("mjd_from", "End of the data that the previous run searched, MJD.", "d"),
    Column("mjd_to", "Start of the data that the new run searches, MJD.", "d"),
    Column(
        "seconds",
        "Length of the gap; below 0 if the new run begins before the end of the previous one; empty if an epoch is not "
        "known.",
        "s",
    ),
    Column("sample_from", "Sample at the start of the gap; empty if the two runs count from different epochs."),
    Column("sample_to", "Sample at the end of the gap, or empty."),
    Column("before", "How the previous run ended: ended or killed."),
)
"""Columns of ``gaps.csv``."""
Ending = Literal["ended", "killed"]


@dataclass(frozen=True)
class Gap:
    """The data between the end of the previous run and the first sample that this run searches.

    Attributes
    ----------
    beam : int
    before, after : Mark
        The end of the previous run and the start of this one.
    killed : bool
        Whether the previous run was killed.
    """

    beam: int
    before: Mark
    after: Mark
    killed: bool

    @property
    def seconds(self) -> float | None:
        """Length; negative if this run begins before the end of the previous one; None if an epoch is not known."""
        a, b = self.before, self.after
        if (a.epoch == 0) != (b.epoch == 0):
            return None
        return (b.epoch - a.epoch) / 1e9 + b.seconds - a.seconds

    @property
    def ending(self) -> Ending:
        """How the previous run ended."""
        return "killed" if self.killed else "ended"

    @property
    def message(self) -> str:
        """A line for the operator."""
        how = "was killed" if self.killed else "ended"
        start = f"beam {self.beam}: the previous run in this folder {how} at {format_mark(self.before)}"
        if self.seconds is None:
            return f"{start}; this run begins at {format_mark(self.after)}: the epoch of one of them is not known"
        if self.seconds < 0:
            return f"{start}, {-self.seconds:.3f} s after the start of this run: candidates may be listed twice"
        return f"{start}: a gap of {self.seconds:.3f} s, up to {format_mark(self.after)}, is not searched"

    @property
    def row(self) -> dict[str, Any]:
        """A row of ``gaps.csv``."""
        same = self.before.epoch == self.after.epoch
        return {
            "beam": self.beam, "segment": self.after.segment, "mjd_from": self.before.mjd, "mjd_to": self.after.mjd,
            "seconds": "" if self.seconds is None else self.seconds, "sample_from": self.before.sample if same else "",
            "sample_to": self.after.sample if same else "", "before": self.ending,
        }  # fmt: skip


def format_mark(mark: Mark) -> str:
    """A position as MJD, or in seconds since sample 0 if the epoch is not known.

    >>> format_mark(Mark(0, 0, 1.5, 1500)), format_mark(Mark(0, 1677326400000000000, 86.4, 86400))
    ('1.500 s', 'MJD 60000.501000000')
    """
    return f"MJD {mark.mjd:.9f}" if mark.epoch else f"{mark.seconds:.3f} s"


@dataclass
class PreviousRun:
    """The state that the previous run stored.

    Attributes
    ----------
    next_segment : dict
        For each beam, the number of its next segment.
    marks : dict of Mark
        For each beam, the position up to which it was searched.
    unmarked : list of int
        Beams for which the previous run stored no such position.
    killed : bool
        Whether the previous run was killed.
    """

    next_segment: dict[int, int] = field(default_factory=dict)
    marks: dict[int, Mark] = field(default_factory=dict)
    unmarked: list[int] = field(default_factory=list)
    killed: bool = False

    @classmethod
    def read(cls, folder: Path, segments: Mapping[int, int]) -> PreviousRun:
        """Read ``status.json``.

        Parameters
        ----------
        folder : Path
        segments : mapping
            For each beam, the highest segment number in ``candidates.csv``.

        Notes
        -----
        If the file is missing, damaged or of another version, the result holds what could be read, and `segments`.
        """
        found = cls({beam: number + 1 for beam, number in segments.items()})
        try:
            body = json.loads((folder / NAME).read_text(encoding="utf-8"))
            found.killed = bool(body["running"])
            streams = dict(body["streams"])
            for name, one in streams.items():
                beam, mark = int(name), one["mark"]
                found.next_segment[beam] = max(found.next_segment.get(beam, 0), int(one["made"]))
                if mark is not None:
                    found.marks[beam] = Mark(
                        int(mark["segment"]), int(mark["epoch"]), float(mark["seconds"]), int(mark["sample"])
                    )
                else:
                    found.unmarked.append(beam)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return found
        return found

    @staticmethod
    def to_json(next_segment: Mapping[int, int], marks: Mapping[int, Mark]) -> dict[str, Any]:
        """The entry of ``status.json`` that `read` reads."""
        return {
            str(beam): {"made": number, "mark": asdict(marks[beam]) if beam in marks else None}
            for beam, number in next_segment.items()
        }
