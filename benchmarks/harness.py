"""Common parts of the benchmarks: interleaved timing, a description of the machine, and rows on screen and as JSON."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RESULTS = Path(__file__).parent / "results"
PAUSE = 0.02
"""Seconds before each timed call, in which threads of the previous tool go to sleep (OpenMP's spin for a while)."""


def interleaved(
    tools: dict[str, Callable[[], object]], repetitions: int, *, warm: bool = True, pause: float = PAUSE
) -> dict[str, list[float]]:
    """Return the seconds of each call of each tool; tools take turns, so that a busy machine affects all of them.

    With ``warm`` each tool runs once untimed beforehand, which does its compilation and fills caches.  Small jobs then
    run compiled code, not the slower code that gives first answers on a new machine.
    """
    if warm:
        from skysieve.core.cpu import jit

        jit.FirstAnswers.allowed = False
        for call in tools.values():
            call()
    seconds: dict[str, list[float]] = {name: [] for name in tools}
    for turn in range(repetitions):
        names = list(tools)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            time.sleep(pause)
            start = time.perf_counter()
            tools[name]()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def machine(packages: Sequence[str]) -> dict[str, Any]:
    """Return processor, load, date and versions, which a timing needs to be understood."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }


def version(package: str) -> str:
    """Return the installed version of a package, or "not installed"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


class Report:
    """Rows of one benchmark, which are printed at once and written as JSON at the end."""

    def __init__(self, name: str, packages: Sequence[str], quick: bool) -> None:
        self.name, self.quick = name, quick
        self.machine = machine(packages)
        self.rows: list[dict[str, Any]] = []
        self.failed = False
        print(f"{self.machine['processor']}, {self.machine['cores']} cores, load {self.machine['load_average']}")
        print(", ".join(f"{k} {v}" for k, v in self.machine["versions"].items()))

    def title(self, text: str) -> None:
        """Print a heading for the rows that follow."""
        print(f"\n== {text}", flush=True)

    def row(self, case: str, **values: Any) -> None:
        """Add and print a row; ``reached=False`` (the bound ``wanted`` was missed) makes the run exit with 1."""
        if values.get("reached") is False:
            self.failed = True
        self.rows.append({"case": case, **values})
        print(f"{case:24s} " + "  ".join(f"{k}={_show(v)}" for k, v in values.items()), flush=True)

    def timings(self, case: str, seconds: dict[str, list[float]], *, ours: str, **facts: Any) -> dict[str, float]:
        """Add a row for each tool, with its median and the ratio to the tool ``ours``; return the medians."""
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        for name, values in seconds.items():
            ratio = medians[name] / medians[ours]
            self.row(case, tool=name, seconds=medians[name], best=min(values), n=len(values), ratio=ratio, **facts)
        return medians

    def write(self, suffix: str = "") -> Path:
        """Write ``results/<name><suffix>.json`` (``-quick`` added for a smoke run)."""
        path = self.save(suffix)
        print(f"\nwritten: {path}")
        return path

    def save(self, suffix: str = "") -> Path:
        """Write the rows so far, so that a run that is killed leaves them."""
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.name}{suffix}{'-quick' if self.quick else ''}.json"
        text = json.dumps({"benchmark": self.name, "quick": self.quick, **self.machine, "rows": self.rows}, indent=1)
        path.write_text(text + "\n")
        return path


def _show(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
