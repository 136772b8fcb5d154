"""Memory budgets, and the free memory that the system reports."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from skysieve.core import memory
from skysieve.core.errors import MemoryBudgetError, SkysieveError, format_bytes
from skysieve.core.memory import available_host_memory, parse_budget


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("80%", 8_000),
        ("12.5 %", 1_250),
        ("2 GiB", 2 * 2**30),
        ("2GiB", 2 * 2**30),
        ("1.5 kB", 1_500),
        ("500 MB", 500_000_000),
        ("4G", 4 * 2**30),
        ("1e9", 10**9),
        ("100 B", 100),
        (500e6, 500_000_000),
        (np.int64(7), 7),
        (None, 5_000),
    ],
)
def test_budgets(given, expected):
    assert parse_budget(given, 10_000) == expected


@pytest.mark.parametrize(
    "given", ["", "much", "0%", "101%", "-1", -5, 0, float("nan"), float("inf"), "5 parsec", "1 2 GB"]
)
def test_budgets_that_make_no_sense(given):
    with pytest.raises(ValueError, match="memory="):
        parse_budget(given, 10_000)


def test_an_error_of_the_budget_has_its_numbers():
    error = MemoryBudgetError("one map", 60, 55)
    assert "one map needs 60 B" in str(error)
    assert (error.needed, error.budget) == (60, 55)
    assert isinstance(error, MemoryError)
    assert isinstance(error, SkysieveError)


def test_available_memory_is_within_the_machine():
    assert 2**20 < available_host_memory() < 2**50


def _cgroup(folder, limit, current, inactive):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\n")


def test_a_container_may_have_less(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert memory._cgroup_available() == sys.maxsize
    _cgroup(tmp_path, 1000, 700, 50)
    assert memory._cgroup_available() == 350
    _cgroup(tmp_path, "max", 700, 50)
    assert memory._cgroup_available() == sys.maxsize
    (tmp_path / "memory").mkdir()
    for name, value in {"limit_in_bytes": "90", "usage_in_bytes": "100"}.items():
        (tmp_path / "memory" / f"memory.{name}").write_text(value)
    (tmp_path / "memory" / "memory.stat").write_text("total_inactive_file 0\n")
    assert memory._cgroup_available() == 0
    assert available_host_memory() == 0


def test_format_bytes():
    assert [format_bytes(n) for n in (0, 1023, 1024, 1.5 * 2**40, 2**60)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 TiB",
        "1024.0 PiB",
    ]
