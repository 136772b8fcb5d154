"""Candidates that most beams see at once: interference, not the sky."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from skysieve.dedispersion.stream.beams import Row

HOLD = 2.0
"""Seconds of the clock that a candidate waits for the other beams at most."""


class Coincidence:
    """Holds candidates until every beam has searched their time; counts the beams that have one then.

    Parameters
    ----------
    part : float
        A candidate is flagged when more than this part of the beams, and at least two, have one that overlaps it.
    link : float
        Seconds that windows may lie apart, at the top of the band.
    """

    def __init__(self, part: float = 0.5, link: float = 0.01) -> None:
        if not 0 < part <= 1:
            raise ValueError(f"part={part!r}: expected a part of the beams, above 0 to 1")
        self.part, self.link = part, link
        self._held: list[tuple[float, Row, float]] = []

    def add(self, rows: Iterable[Row], until: float) -> None:
        """Candidates, held until all beams have searched ``until`` seconds past their time."""
        now = time.monotonic()
        self._held += [(_moment(row) + until, row, now) for row in rows]

    def release(self, frontiers: dict[int, float], last: bool = False) -> list[Row]:
        """Candidates that no other beam's can join any more, with ``beams`` and ``flagged``.

        ``frontiers``: seconds (of MJD 0) up to which each beam is searched.
        """
        if not self._held:
            return []
        limit = min(frontiers.values(), default=0.0)
        now = time.monotonic()
        count = max(1, len(frontiers))
        ready = []
        for until, row, since in self._held:
            if not (last or count == 1 or until < limit or now - since > HOLD):
                continue
            moment, width = _moment(row), row.columns["width"]
            near = {
                other.columns["beam"]
                for _, other, _ in self._held
                if abs(_moment(other) - moment) <= (width + other.columns["width"]) / 2 + self.link
            }
            near |= set(row.columns.get("with", ()))
            flagged = len(near) >= 2 and len(near) > self.part * count
            ready.append((row, {**row.columns, "beams": len(near), "flagged": int(flagged)}))
        gone = {id(row) for row, _ in ready}
        for row, _ in ready:  # those that wait know whom they have missed
            for _, other, _ in self._held:
                apart = abs(_moment(other) - _moment(row))
                if id(other) not in gone and apart <= (row.columns["width"] + other.columns["width"]) / 2 + self.link:
                    other.columns.setdefault("with", []).append(row.columns["beam"])
        self._held = [held for held in self._held if id(held[1]) not in gone]
        for _, columns in ready:
            columns.pop("with", None)
        return [replace(row, columns=columns) for row, columns in ready]


def _moment(row: Row) -> float:
    """Seconds of arrival at the top of the band."""
    return row.observation.tstart * 86400 + row.top_time
