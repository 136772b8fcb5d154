"""Flag candidates that many beams see at the same time, which are interference."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from skysieve.dedispersion.stream.records import Candidate

HOLD = 2.0
"""Most seconds of wall time that a candidate waits for the other beams."""
LINK = 0.01
"""Longest gap between two windows that count as overlapping, in seconds at the top of the band."""


class Coincidence:
    """Holds candidates until all beams have searched their time, then counts the beams with a candidate at that time.

    Parameters
    ----------
    fraction : float
        A candidate is flagged if at least two beams, and more than this fraction of the beams that have searched its
        time, have an overlapping candidate.
    """

    def __init__(self, fraction: float) -> None:
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction={fraction!r}: expected a fraction of the beams, above 0 and at most 1")
        self.fraction = fraction
        self._held: list[tuple[float, Candidate, float]] = []
        self._missed: dict[int, set[int]] = {}

    def add(self, candidates: Iterable[Candidate], until: float) -> None:
        """Hold candidates until all beams have searched ``until`` seconds past their time."""
        now = time.monotonic()
        self._held += [(_moment(c) + until, c, now) for c in candidates]

    def earliest(self, beam: int, segment: int) -> float:
        """Seconds in a segment, at the top of the band, before which none of its candidates is still held."""
        starts = (
            one.top_time - one.columns["width"] / 2
            for _, one, _ in self._held
            if (one.columns["beam"], one.columns["segment"]) == (beam, segment)
        )
        return min(starts, default=math.inf)

    def release(
        self, frontiers: dict[int, float], last: bool = False, ended: Mapping[int, float] | None = None
    ) -> list[Candidate]:
        """Release the candidates that no candidate of another beam can join any more, with ``beams`` and ``flagged``.

        Parameters
        ----------
        frontiers : dict
            For each beam, the seconds since MJD 0 up to which it is searched.
        last : bool
            Release all candidates.
        ended : mapping, optional
            As `frontiers`, for beams whose stream has ended.
        """
        if not self._held:
            return []
        limit = min(frontiers.values(), default=0.0)
        now = time.monotonic()
        count = max(1, len(frontiers))
        goes = np.array([last or count == 1 or until < limit or now - since > HOLD for until, _, since in self._held])
        held = [one for _, one, _ in self._held]
        moment = np.array([_moment(one) for one in held])
        width = np.array([one.columns["width"] for one in held])
        beam = np.array([one.columns["beam"] for one in held])
        alone = bool((beam == beam[0]).all()) and not self._missed
        searched = np.array(list({**(ended or {}), **frontiers}.values()))
        ready = []
        for i in np.flatnonzero(goes):
            near = {int(beam[i])}
            if not alone:
                joined = np.abs(moment - moment[i]) <= (width + width[i]) / 2 + LINK
                near |= set(beam[joined].tolist()) | self._missed.pop(id(held[i]), set())
                for other in np.flatnonzero(joined & ~goes):  # count these beams for the candidates that still wait
                    self._missed.setdefault(id(held[other]), set()).add(int(beam[i]))
            could = max(len(near), int((searched >= moment[i]).sum()))  # without beams that stopped before
            flagged = len(near) >= 2 and len(near) > self.fraction * could
            ready.append(replace(held[i], columns={**held[i].columns, "beams": len(near), "flagged": int(flagged)}))
        self._held = [one for one, gone in zip(self._held, goes, strict=True) if not gone]
        return ready


def _moment(candidate: Candidate) -> float:
    """Arrival at the top of the band, seconds since MJD 0."""
    return candidate.observation.tstart * 86400 + candidate.top_time
