"""The comparison of `benchmarks.user` with a baseline."""

import pytest

user = pytest.importorskip("benchmarks.user")


def rows(ours, floor, case="a command", **size):
    return [
        {"case": case, "tool": "command", "best": ours, **size},
        {"case": case, "tool": "floor", "best": floor, **size},
    ]


def test_a_case_that_became_slower_beside_its_floor_is_named():
    before = rows(2.0, 1.0)
    assert user.slower(rows(4.3, 2.0), before) == []  # the machine is slower: the ratio counts
    [line] = user.slower(rows(2.3, 1.0), before)
    assert line.startswith("a command: 2.3 times")


def test_sizes_of_a_case_are_compared_one_by_one():
    before = rows(2.0, 1.0, size=1) + rows(8.0, 1.0, size=10)
    [line] = user.slower(rows(2.5, 1.0, size=1) + rows(8.0, 1.0, size=10), before)
    assert line.startswith("a command, 1: ")


def test_a_case_that_nothing_was_measured_beside_is_left_out():
    alone = [{"case": "a", "tool": "function", "best": 1.0}]
    assert user.reference_ratios(alone) == {}
    assert user.reference_ratios([*alone, {"case": "a", "tool": "plan", "best": 0.5}]) == {"a": 2.0}
