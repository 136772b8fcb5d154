"""The pictures of cost against size."""

import json

import pytest
from benchmarks import scale_plots


def results(path, device, seconds):
    rows = [
        {"case": "scale: objects", "tool": tool, "best": factor * seconds * size, "size": size, "device": device}
        for size in (1, 10, 100)
        for tool, factor in (("function", 1.0), ("nifty-ls", 10.0))
    ]
    path.write_text(json.dumps({"rows": [*rows, {"case": "one curve", "tool": "function"}]}))
    return path


@pytest.mark.slow
def test_a_picture_has_both_devices_and_each_peer_once(tmp_path):
    cpu = results(tmp_path / "user-scale.json", "cpu", 1e-3)
    assert scale_plots.both_devices(cpu) == []
    gpu = results(tmp_path / "user_gpu-scale.json", "cuda", 1e-5)
    assert scale_plots.both_devices(cpu) == [gpu]
    assert scale_plots.both_devices(gpu) == [cpu]
    lines = scale_plots.lines_of([json.loads(path.read_text()) for path in (cpu, gpu)], "scale: objects")
    assert list(lines) == ["skysieve, CPU", "nifty-ls", "skysieve, GPU"]
    assert lines["nifty-ls"] == ([1, 10, 100], [0.01, 0.1, 1.0])
    (written,) = scale_plots.draw([cpu, gpu], tmp_path / "pictures")
    text = written.read_text()
    assert written.name == "cost-objects.svg"
    assert all(f">{name}<" in text for name in lines)
    assert len(text) < 40_000
