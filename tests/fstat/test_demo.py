"""The demo's transient."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from skysieve.cli import DEMOS
from skysieve.fstat import read_sfts
from skysieve.fstat.command import demo


def run(folder, **options):
    out = io.StringIO()
    return demo.run(folder, Console(file=out, width=200), "cpu", **options), out.getvalue()


def test_demo_finds_the_signal_in_files_of_sfts(tmp_path):
    short, text = run(tmp_path)
    assert short == []
    assert "exp: the loudest template has f0 = 22.400" in text
    assert "tau found" in text
    assert [one.detector for one in read_sfts(tmp_path / "sfts")] == ["H1", "L1"]
    assert DEMOS["fstat"] == "skysieve.fstat.command.demo:run"


@pytest.mark.slow
def test_demo_reports_what_is_not_as_expected(tmp_path):
    short, _ = run(tmp_path, signal=dataclasses.replace(demo.SIGNAL, h0=0))
    assert short[0].startswith("rect window: f0 =")
