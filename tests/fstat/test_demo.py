"""The demo's transient."""

from __future__ import annotations

import io

from rich.console import Console

from skysieve.cli import DEMOS
from skysieve.fstat.command import demo


def run(folder, templates):
    out = io.StringIO()
    return demo.run(folder, Console(file=out, width=200), "cpu", templates), out.getvalue()


def test_demo_finds_the_signal(tmp_path):
    short, text = run(tmp_path, demo.RIGHT + 1)
    assert short == []
    assert "exp: loudest template 17" in text
    assert "tau found" in text
    assert DEMOS["fstat"] == "skysieve.fstat.command.demo:run"


def test_demo_reports_what_is_not_as_expected(tmp_path):
    short, _ = run(tmp_path, 2)
    assert short[0].startswith("rect window: template")
