"""The record of GPU runs: what is hashed, and when a kernel counts as run."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from tests.conftest import ROOT, GpuRecord, changed_kernels, is_whole_gpu_run, kernel_hashes


def test_hashes_see_every_kernel_file(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "k.cu").write_text("x")
    (tmp_path / "h.cuh").write_text("y")
    (tmp_path / "n.py").write_text("z")
    assert list(kernel_hashes(tmp_path)) == ["a/k.cu", "h.cuh"]
    assert "core/gpu/selftest.cu" in kernel_hashes()


def test_changed_kernels(tmp_path):
    record = tmp_path / "gpu_record.json"
    now = {"k.cu": "1", "h.cuh": "2"}
    assert changed_kernels(now, record) == ["k.cu", "h.cuh"]
    content = {"tests": {"passed": 3, "failed": 0}, "kernels": {"k.cu": "1", "h.cuh": "old"}}
    record.write_text(json.dumps(content))
    assert changed_kernels(now, record) == ["h.cuh"]
    content["tests"]["failed"] = 1
    record.write_text(json.dumps(content))
    assert changed_kernels(now, record) == ["k.cu", "h.cuh"]


@pytest.mark.parametrize(
    ("change", "whole"),
    [
        ({}, True),
        ({"args": [str(ROOT / "tests")]}, True),
        ({"markexpr": ""}, False),
        ({"markexpr": "gpu and not slow"}, False),
        ({"keyword": "self"}, False),
        ({"deselect": ["x"]}, False),
        ({"args": [str(ROOT / "tests" / "core")]}, False),
        ({"args": [str(ROOT / "tests" / "core" / "test_kernels.py") + "::test_launch"]}, False),
    ],
)
def test_only_a_whole_run_counts(change, whole):
    args = change.pop("args", [str(ROOT)])
    option = SimpleNamespace(**({"markexpr": "gpu", "keyword": "", "deselect": None} | change))
    assert is_whole_gpu_run(SimpleNamespace(option=option, args=args)) is whole


def test_outcomes_are_counted_once():
    record = GpuRecord()

    def report(node, when, outcome):
        passed = outcome == "passed"
        record.pytest_runtest_logreport(
            SimpleNamespace(nodeid=node, when=when, passed=passed, failed=outcome == "failed", skipped=False)
        )

    for when in ("setup", "call", "teardown"):
        report("good", when, "passed")
    report("bad", "call", "failed")
    report("bad teardown", "call", "passed")
    report("bad teardown", "teardown", "failed")
    assert record.outcomes == {"good": "passed", "bad": "failed", "bad teardown": "failed"}
