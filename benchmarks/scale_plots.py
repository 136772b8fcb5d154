"""Plots of time against size, as small SVG files, from the rows of the case ``scale`` of `benchmarks.user`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

AXES = {
    "scale: objects": ("objects", "light curves (median 110 points, 28,608 frequencies)"),
    "scale: nside": ("nside", "nside of the map (float32, FWHM 3 pixels)"),
    "scale: seconds of data": ("seconds", "seconds of data (256 channels, 256 us, 500 DMs)"),
}
"""File name and axis label of each case."""


def both_devices(path: Path) -> list[Path]:
    """Return the results of the other device, if there are any."""
    name = path.name.replace("user_gpu", "user") if "user_gpu" in path.name else path.name.replace("user", "user_gpu")
    return [path.with_name(name)] if path.with_name(name).exists() else []


def lines_of(results: list[dict[str, Any]], case: str) -> dict[str, tuple[list[float], list[float]]]:
    """Return sizes and seconds (best runs) of each tool of a case; peers are taken from the first results."""
    lines: dict[str, tuple[list[float], list[float]]] = {}
    peers: set[str] = set()
    for result in results:
        rows = [row for row in result["rows"] if row["case"] == case]
        for row in rows:
            ours = row["tool"] == "function"
            if not ours and row["tool"] in peers:
                continue
            name = f"skysieve, {'CPU' if row['device'] == 'cpu' else 'GPU'}" if ours else row["tool"]
            sizes, seconds = lines.setdefault(name, ([], []))
            sizes.append(row["size"])
            seconds.append(row["best"])
        peers |= {row["tool"] for row in rows}
    return lines


def draw(paths: list[Path], folder: Path) -> list[Path]:
    """Draw each case with the rows of these results; return the files."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    results = [json.loads(path.read_text()) for path in paths]
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for case, (name, label) in AXES.items():
        lines = lines_of(results, case)
        if not lines:
            continue
        figure = Figure(figsize=(5, 3.4), layout="constrained")
        axes = figure.subplots()
        for tool, (sizes, seconds) in lines.items():
            axes.loglog(sizes, seconds, "o-" if tool.startswith("skysieve") else "s--", ms=4, lw=1.2, label=tool)
        axes.set(xlabel=label, ylabel="seconds of one call")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        path = folder / f"cost-{name}.svg"
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "skysieve"}):
            figure.savefig(path, metadata={"Date": None})
        written.append(path)
    return written
