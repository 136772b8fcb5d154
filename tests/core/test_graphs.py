"""Recorded launches of lanes: which are reused, and which are dropped to free memory (no GPU needed)."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from skysieve.core.gpu.graphs import Recording, Recordings
from skysieve.core.gpu.staging import HostLane


def make_lane():
    return HostLane(SimpleNamespace(xp=np))


def test_a_recording_is_found_while_buffers_stay():
    lane, other, recordings = make_lane(), make_lane(), Recordings(2)
    lane.array("rows", 10, np.float64)
    kept = recordings.keep(lane, "a", Recording(lane.generation))
    assert recordings.find(lane, "a") is kept
    assert recordings.find(lane, "b") is None
    assert recordings.find(other, "a") is None
    lane.array("rows", 5, np.float64)
    assert recordings.find(lane, "a") is kept
    lane.array("rows", 1000, np.float64)  # moves the buffer
    assert recordings.find(lane, "a") is None


def test_the_oldest_recordings_make_room():
    lane, recordings = make_lane(), Recordings(3)
    for key in range(3):
        recordings.keep(lane, key, Recording(0))
    assert len(recordings.make_room(lane)) == 2
    assert recordings.find(lane, 0) is None
    recordings.keep(lane, 3, Recording(0))
    assert recordings.make_room(lane, most=1) == []
    assert recordings.of(lane) == []


def test_unusable_recordings_are_removed_first():
    lane, recordings = make_lane(), Recordings(3)
    recordings.keep(lane, "old", Recording(0))
    recordings.keep(lane, "moved", Recording(-1))
    assert recordings.make_room(lane) == [recordings.find(lane, "old")]


def test_forgotten_lanes():
    lane, other, recordings = make_lane(), make_lane(), Recordings(3)
    for each in (lane, other):
        recordings.keep(each, "a", Recording(0))
    recordings.forget(lane)
    assert recordings.of(lane) == []
    assert len(recordings.of(other)) == 1
    recordings.clear()
    assert recordings.of(other) == []
