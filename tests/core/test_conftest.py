"""The record of GPU runs: which files it covers, and when they count as run."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from tests.conftest import (
    GIVEN,
    ROOT,
    GpuRecord,
    all_but_few,
    asks_for_gpu,
    changed_files,
    gpu_hashes,
    is_whole_gpu_run,
    slow_cases,
)


def test_hashes_cover_kernels_and_launchers(tmp_path):
    names = ("a/k.cu", "h.cuh", "n.py", "a/cuda/run.py", "a/cuda/direct/ways.py", "a/stream/cuda_x.py", "a/cpu/run.py")
    for name in (*names, "core/gpu/runtime.py", "core/memory.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    found = gpu_hashes(tmp_path)
    assert list(found["kernels"]) == ["a/k.cu", "h.cuh"]
    expected = ["a/cuda/direct/ways.py", "a/cuda/run.py", "a/stream/cuda_x.py", "core/gpu/runtime.py"]
    assert list(found["launchers"]) == expected
    assert "core/gpu/selftest.cu" in gpu_hashes()["kernels"]
    assert {"core/gpu/runtime.py", "sphere/cuda/engine.py"} <= set(gpu_hashes()["launchers"])


def test_changed_files(tmp_path):
    record = tmp_path / "gpu_record.json"
    now = {"kernels": {"k.cu": "1", "h.cuh": "2"}, "launchers": {"run.py": "3", "new.py": "4"}}
    every = ["k.cu", "h.cuh", "run.py", "new.py"]
    assert changed_files(now, record) == every
    content = {"tests": {"passed": 3, "failed": 0}, "kernels": {"k.cu": "1", "h.cuh": "old"}}
    record.write_text(json.dumps(content))  # made before launchers were recorded
    assert changed_files(now, record) == ["h.cuh", "run.py", "new.py"]
    record.write_text(json.dumps(content | {"launchers": {"run.py": "3"}}))
    assert changed_files(now, record) == ["h.cuh", "new.py"]
    content["tests"]["failed"] = 1
    record.write_text(json.dumps(content))
    assert changed_files(now, record) == every


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


def test_of_many_cases_make_test_runs_the_first():
    def case(test, *values):
        marker = {"gpu": True}.get if "gpu" in values else {}.get
        return SimpleNamespace(nodeid=f"{test}[{'-'.join(values)}]", get_closest_marker=marker)

    cases = [case(test, a, b) for test in "tu" for a in "abc" for b in ("cpu", "gpu")]
    left = {item.nodeid for item in cases} - {item.nodeid for item in all_but_few(cases)}
    assert left == {f"{test}[a-{place}]" for test in "tu" for place in ("cpu", "gpu")}
    assert all_but_few([case("v", "a")]) == []


def test_a_third_of_the_cases_in_both_orders_runs_backwards_in_make_test():
    cases = [f"t[{i}-{order}]" for order in ("forwards", "backwards") for i in range(5)]
    others = ["t[9-backwards]", "u[backwards-1]", "u[forwards-1]", "u[forwards]"]
    assert slow_cases([*cases, *others]) == {"t[1-backwards]", "t[2-backwards]", "t[4-backwards]"}


@pytest.mark.parametrize(
    ("markexpr", "args", "asked"),
    [("gpu", [], True), ("not slow", [], False), ("", ["tests/gpu/test_x.py"], True), ("", ["tests/kernels"], False)],
)
def test_tests_that_need_a_gpu_are_asked_for_by_mark_or_folder(markexpr, args, asked):
    """Without a GPU they are skipped then, each with the reason; else they are left out."""
    config = SimpleNamespace(option=SimpleNamespace(markexpr=markexpr), args=args, stash=pytest.Stash())
    assert asks_for_gpu(config) is asked
    config.stash[GIVEN], config.args = args, ["tests/gpu/test_y.py"]  # a worker that collects in another order
    assert asks_for_gpu(config) is asked
