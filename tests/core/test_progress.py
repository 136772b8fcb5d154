"""The argument ``progress`` of public functions."""

from __future__ import annotations

import numpy as np
import pytest

from skysieve.core.progress import reporting


def test_a_function_is_passed_on():
    seen = []
    with reporting(lambda done, total: seen.append((done, total)), "work") as report:
        report(1, 2)
    assert seen == [(1, 2)]


@pytest.mark.parametrize("no", [False, np.False_])
def test_nothing_is_reported_by_default(no):
    with reporting(no, "work") as report:
        assert report is None


def test_a_bar_is_drawn_on_standard_error(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    with reporting(True, "Lomb-Scargle") as report:
        report(1, 2)
        report(2, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert "Lomb-Scargle" in err


@pytest.mark.parametrize("wrong", [1, "yes", None])
def test_what_is_refused(wrong):
    with (
        pytest.raises(TypeError, match=f"progress={wrong!r}: expected True, False or a function"),
        reporting(wrong, ""),
    ):
        pass
