"""Marks and conditions that tests share."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest

OLD_TYPER = tuple(map(int, version("typer").split(".")[:2])) < (0, 26)


def loses_help(parameter: Any) -> bool:
    """Return whether typer omits the help text of an argument, as releases before 0.26 do with click 8.5."""
    return OLD_TYPER and parameter.param_type_name == "argument"


def slow(*values: Any) -> Any:
    """Return a case for `pytest.mark.parametrize` that ``make test`` leaves out and ``make test-all`` runs."""
    return pytest.param(*values, marks=pytest.mark.slow)


no_warnings = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")
"""Any warning is an error, except those about objects of other tests that the garbage collector finds."""
