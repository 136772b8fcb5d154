"""Marks that tests share."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """Return a case for `pytest.mark.parametrize` that ``make test`` leaves out and ``make test-all`` runs."""
    return pytest.param(*values, marks=pytest.mark.slow)
