"""Light curves are the same whatever the order and the repetitions of the packets."""

from __future__ import annotations

import numpy as np

from skysieve.alerts.history import merge, searchable
from skysieve.alerts.surveys import DETECTION, FORCED, ROW


def some_rows(rng: np.random.Generator, n: int) -> np.ndarray:
    """Rows of one object; those with one number and kind agree."""
    rows = np.zeros(n, ROW)
    rows["id"] = rng.integers(0, 3 * n, n)
    rows["kind"] = rng.integers(0, 2, n)
    rows["exposure"] = rows["id"]
    rows["t"] = rows["id"] + 0.25 * rows["kind"]
    rows["dy"] = 1
    return rows


def test_any_order_and_any_repetitions():
    for seed in range(30):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 6))
        rows = np.concatenate([some_rows(rng, 40) for _ in range(n)])
        owner = np.repeat(np.arange(n), 40)
        expected, _, _ = merge([b""] * n, rows, owner)
        stored = [b""] * n
        order = np.concatenate([rng.permutation(len(rows)), rng.integers(0, len(rows), 100)])
        for piece in np.array_split(order, int(rng.integers(1, 9))):
            stored, everything, offsets = merge(stored, rows[piece], owner[piece])
        assert stored == expected
        assert everything.tobytes() == b"".join(expected)
        for i in range(n):
            mine = everything[offsets[i] : offsets[i + 1]]
            keys = set(zip(rows["kind"][owner == i].tolist(), rows["id"][owner == i].tolist(), strict=True))
            assert list(zip(mine["kind"].tolist(), mine["id"].tolist(), strict=True)) == sorted(keys)


def test_the_first_of_rows_that_disagree_remains():
    rows = np.zeros(2, ROW)
    rows["id"], rows["y"] = 5, (1, 2)
    stored, _, _ = merge([b""], rows, np.array([0, 0]))
    stored, everything, _ = merge(stored, rows[1:], np.array([0]))
    assert everything["y"].tolist() == [1]


def test_forced_photometry_fills_exposures_without_a_detection():
    rows = np.zeros(6, ROW)
    rows["id"] = np.arange(6)
    rows["kind"] = DETECTION, FORCED, FORCED, DETECTION, FORCED, FORCED
    rows["exposure"] = 10, 10, 11, 11, 10, -1
    owner_offsets = np.array([0, 3, 6])
    used, offsets = searchable(rows, owner_offsets)
    assert used["id"].tolist() == [0, 2, 3, 4, 5]
    assert offsets.tolist() == [0, 2, 5]
    used, offsets = searchable(rows, owner_offsets, forced=False)
    assert used["id"].tolist() == [0, 3]
    assert offsets.tolist() == [0, 1, 2]
