"""Candidates that most beams see at once: interference, not the sky."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from skysieve.dedispersion.stream.records import Row

HOLD = 2.0
"""Seconds of the clock that a candidate waits for the other beams at most."""


class Coincidence:
    """Holds candidates until every beam has searched their time; counts the beams that have one then.

    Parameters
    ----------
    part : float
        A candidate is flagged when more than this part of the beams that have searched its time, and at least two,
        have one that overlaps it.
    link : float
        Seconds that windows may lie apart, at the top of the band.
    """

    def __init__(self, part: float = 0.5, link: float = 0.01) -> None:
        if not 0 < part <= 1:
            raise ValueError(f"part={part!r}: expected a part of the beams, above 0 to 1")
        self.part, self.link = part, link
        self._held: list[tuple[float, Row, float]] = []
        self._missed: dict[int, set[int]] = {}

    def add(self, rows: Iterable[Row], until: float) -> None:
        """Candidates, held until all beams have searched ``until`` seconds past their time."""
        now = time.monotonic()
        self._held += [(_moment(row) + until, row, now) for row in rows]

    def earliest(self, beam: int, segment: int) -> float:
        """Seconds of a segment before which none of its candidates is held."""
        starts = (
            row.columns["time"] - row.columns["width"] / 2
            for _, row, _ in self._held
            if (row.columns["beam"], row.columns["segment"]) == (beam, segment)
        )
        return min(starts, default=math.inf)

    def release(
        self, frontiers: dict[int, float], last: bool = False, ended: Mapping[int, float] | None = None
    ) -> list[Row]:
        """Candidates that no other beam's can join any more, with ``beams`` and ``flagged``.

        ``frontiers``: seconds (of MJD 0) up to which each beam is searched; ``ended``: of beams whose stream is over.
        """
        if not self._held:
            return []
        limit = min(frontiers.values(), default=0.0)
        now = time.monotonic()
        count = max(1, len(frontiers))
        goes = np.array([last or count == 1 or until < limit or now - since > HOLD for until, _, since in self._held])
        rows = [row for _, row, _ in self._held]
        moment = np.array([_moment(row) for row in rows])
        width = np.array([row.columns["width"] for row in rows])
        beam = np.array([row.columns["beam"] for row in rows])
        alone = bool((beam == beam[0]).all()) and not self._missed
        searched = np.array(list({**(ended or {}), **frontiers}.values()))
        ready = []
        for i in np.flatnonzero(goes):
            near = {int(beam[i])}
            if not alone:
                joined = np.abs(moment - moment[i]) <= (width + width[i]) / 2 + self.link
                near |= set(beam[joined].tolist()) | self._missed.pop(id(rows[i]), set())
                for other in np.flatnonzero(joined & ~goes):  # those that wait know whom they have missed
                    self._missed.setdefault(id(rows[other]), set()).add(int(beam[i]))
            could = max(len(near), int((searched >= moment[i]).sum()))  # beams that fell silent before could not
            flagged = len(near) >= 2 and len(near) > self.part * could
            ready.append(replace(rows[i], columns={**rows[i].columns, "beams": len(near), "flagged": int(flagged)}))
        self._held = [held for held, gone in zip(self._held, goes, strict=True) if not gone]
        return ready


def _moment(row: Row) -> float:
    """Seconds of arrival at the top of the band."""
    return row.observation.tstart * 86400 + row.top_time
