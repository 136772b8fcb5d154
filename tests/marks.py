"""Marks and conditions that tests share."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from itertools import product
from typing import Any

import pytest

OLD_TYPER = tuple(map(int, version("typer").split(".")[:2])) < (0, 26)


def loses_help(parameter: Any) -> bool:
    """Return whether typer drops the text of an argument: releases before 0.26 do with click 8.5."""
    return OLD_TYPER and parameter.param_type_name == "argument"


def slow(*values: Any) -> Any:
    """Return a case for `pytest.mark.parametrize` that ``make test`` leaves out and ``make test-all`` runs."""
    return pytest.param(*values, marks=pytest.mark.slow)


def product_of(*axes: Iterable[Any]) -> list[Any]:
    """Return the cases of a product for `pytest.mark.parametrize`: ``make test`` runs every second one of each axis.

    Those are the cases whose positions in the axes have an even sum, so that each value meets half of the others.

    Examples
    --------
    >>> [case.values for case in product_of("ab", (1, 2)) if not case.marks]
    [('a', 1), ('b', 2)]
    """
    numbered = product(*(tuple(enumerate(axis)) for axis in axes))
    return [
        slow(*(value for _, value in case)) if sum(i for i, _ in case) % 2 else pytest.param(*(v for _, v in case))
        for case in numbered
    ]
