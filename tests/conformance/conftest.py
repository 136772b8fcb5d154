"""Which combinations of the conformance tables exist."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The global NUFFT of finufft is a method of the CPU alone (the GPU refuses it: tests/kernels, tests/gpu)."""
    gone = [i for i in items if (p := _parameters(i)).get("device") == "cuda" and p.get("method") == "finufft"]
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = [i for i in items if i not in set(gone)]


def _parameters(item: pytest.Item) -> dict[str, object]:
    call = getattr(item, "callspec", None)
    return {} if call is None else call.params
