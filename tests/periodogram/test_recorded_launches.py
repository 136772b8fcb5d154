"""The recorded launches that a lane stores (no GPU needed).

tests/kernels/test_periodogram_graphs.py tests that their answers are those of a new engine.
"""

from __future__ import annotations

from skysieve.periodogram.cuda.graphs import MOST, MOST_ROWS, Launches, Recorded


class Lane:
    generation = 1


def test_what_a_lane_stores():
    """Some launches of few rows, one of many; none that a moved buffer has spoilt."""
    lane, launches = Lane(), Launches()
    for key in range(MOST + 2):
        launches.keep(lane, (key,), Recorded(1, [], launches.room(lane, 10)))
    known = [launches.find(lane, (key,)) for key in range(MOST + 2)]
    assert known[:2] == [None, None]
    assert sorted(k.data for k in known[2:]) == [f"data{i}" for i in range(MOST)]
    launches.keep(lane, ("long",), Recorded(1, [], launches.room(lane, MOST_ROWS + 1)))
    assert launches.find(lane, (MOST + 1,)) is None
    assert launches.find(lane, ("long",)) is launches.of(lane)[-1]
    lane.generation = 2
    assert launches.find(lane, ("long",)) is None
    assert launches.room(lane, 10) == "data0"
    launches.forget(lane)
    assert launches.find(lane, ("long",)) is None
