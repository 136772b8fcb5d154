"""The sphere's part of the demo: its results do not ring."""

from __future__ import annotations

import io

import pytest


@pytest.mark.slow
def test_the_demo(tmp_path):
    from rich.console import Console

    from skysieve.sphere.command import demo

    pytest.importorskip("matplotlib")
    text = io.StringIO()
    assert demo.run(tmp_path, Console(file=text, width=200)) == []
    assert "beyond the beam" in text.getvalue()
    assert (tmp_path / "sphere-ringing.png").stat().st_size > 20_000
    assert (tmp_path / "sphere.png").stat().st_size > 20_000
    assert demo.ringing(demo.sources(), 0.1) == 0
    with pytest.raises(ValueError, match="device='tpu'"):
        demo.run(tmp_path, Console(file=text), "tpu")
