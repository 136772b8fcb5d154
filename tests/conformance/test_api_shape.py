"""Plans and results of all domains have one shape: the same methods, keys and notebook form.

Each domain lists its own in ``tests/conformance/shape_<domain>.py``: PLANS maps a name to a function that returns a new
plan and a function that executes it (and returns arrays or a result); RESULTS maps a name to a function that returns a
result; SAME compares two results or two answers.
"""

from __future__ import annotations

import copy
import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from skysieve.core.plan import Plan
from skysieve.core.result import Result

DESCRIPTION = ("method", "device", "dtype", "bytes", "seconds")
"""Keys that every plan's ``describe`` returns: the names of method, device and dtype; bytes of memory that the plan and
its work take on the device; predicted seconds, None where there is no prediction."""
SHAPES = {
    path.stem.removeprefix("shape_"): importlib.import_module(f"tests.conformance.{path.stem}")
    for path in sorted(Path(__file__).parent.glob("shape_*.py"))
}
PLANS = [pytest.param(d, name, id=f"{d} {name}") for d, shape in SHAPES.items() for name in shape.PLANS]
RESULTS = [pytest.param(d, name, id=f"{d} {name}") for d, shape in SHAPES.items() for name in shape.RESULTS]


@pytest.mark.parametrize(("domain", "name"), PLANS)
def test_a_plan_executes_describes_itself_and_closes(domain, name):
    plan, _ = SHAPES[domain].PLANS[name]()
    assert isinstance(plan, Plan)
    with plan as entered:
        assert entered is plan
        described = SHAPES[domain].describe(plan)
        assert set(DESCRIPTION) <= set(described), described
        for key in ("method", "device", "dtype"):
            assert isinstance(described[key], str), (key, described[key])
        assert isinstance(described["bytes"], int)
        assert described["bytes"] > 0
        assert described["seconds"] is None or described["seconds"] > 0
        assert type(plan).__name__ in repr(plan)
    plan.close()  # a second time does nothing


@pytest.mark.few
@pytest.mark.parametrize(("domain", "name"), PLANS)
def test_a_copy_of_a_plan_is_another_plan_with_the_same_answers(domain, name):
    """`pickle` and `copy` go the same way, through `Plan.__reduce__`; `test_plans_can_be_copied` tests `copy`."""
    shape = SHAPES[domain]
    plan, execute = shape.PLANS[name]()
    with plan, pickle.loads(pickle.dumps(plan)) as other:
        assert other is not plan
        expected = execute(plan)
        assert shape.same(execute(other), expected)
        other.close()
        assert shape.same(execute(plan), expected)


@pytest.mark.parametrize("remake", [copy.copy, copy.deepcopy])
def test_plans_can_be_copied(remake):
    plan, execute = SHAPES["fstat"].PLANS["map rect"]()
    with plan, remake(plan) as other:
        assert other is not plan
        assert SHAPES["fstat"].same(execute(other), execute(plan))


@pytest.mark.parametrize(("domain", "name"), PLANS)
def test_executing_a_closed_plan_is_an_error(domain, name):
    plan, execute = SHAPES[domain].PLANS[name]()
    plan.close()
    with pytest.raises(ValueError, match="closed"):
        execute(plan)


@pytest.mark.parametrize(("domain", "name"), RESULTS)
def test_a_result_is_shown_tabulated_saved_and_loaded(domain, name, tmp_path):
    shape = SHAPES[domain]
    result, suffix = shape.RESULTS[name]()
    assert isinstance(result, Result)
    assert type(result).__name__ in repr(result)
    assert len(repr(result)) < 1000
    table = result.to_table()
    shown = result._repr_html_()
    assert "<table" in shown
    assert all(column in shown for column in table.colnames[:3])
    path = tmp_path / f"result{suffix}"
    result.save(path)
    assert shape.same(type(result).load(path), result)


@pytest.mark.parametrize(("domain", "name"), RESULTS)
def test_a_result_is_plotted(domain, name):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    result, _ = SHAPES[domain].RESULTS[name]()
    assert isinstance(result.plot(), Figure)


@pytest.mark.parametrize("domain", ["dedispersion", "fstat", "periodogram", "sphere"])
def test_domains_are_found_after_import_skysieve(domain):
    code = f"import skysieve; print(skysieve.{domain}.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"skysieve.{domain}\n"
