"""A job for tests: its partitions return numbers, raise errors, or kill their worker."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from skysieve.cluster import Job, Part, Prepared, Resources

TOY = "tests.cluster.toy:Toy"


class Toy:
    """Partition ``k`` has the rows ``k * rows ...``; ``options`` say which partitions do something else.

    Options: ``n``, ``rows``, ``bad`` (partitions that raise), ``kill`` (that kill their worker the first time),
    ``lost`` (whose GPU does not respond the first time), ``always`` (that kill it each time), ``full`` (that find the
    disk full), ``hungry`` (that take 2.5 GiB), ``texts`` (whose ``x`` is text), ``seconds``, ``faults``, ``wants`` (a
    variable without which all raise), ``at_once``, ``meet`` (number of first partitions that wait for each other).
    """

    row = "row"
    needed = None

    def __init__(self, job: Job, resources: Resources) -> None:
        self.options, self.folder = job.options, job.at(job.output).parent
        self.at_once = job.options.get("at_once", 1)
        self.met = threading.Barrier(job.options.get("meet", 1))

    @classmethod
    def prepare(cls, options: dict[str, Any], output: str) -> Prepared:
        return Prepared(list(range(options["n"])), [], {"plan": 1})

    def compute(self, partition: int) -> Part:
        o, k = self.options, partition
        time.sleep(o.get("seconds", 0))
        if k < o.get("meet", 0):
            self.met.wait(60)
        if o.get("wants") and o["wants"] not in os.environ:
            raise ValueError(f"{o['wants']} is not set")
        if k in o.get("bad", ()):
            raise ValueError(f"partition {k} is bad")
        if k in o.get("full", ()):
            from skysieve.cluster.description import OutputError

            raise OutputError(28, "No space left on device", "part")
        mark = self.folder / f"killed-{k}"
        if k in o.get("always", ()) or (k in o.get("kill", ()) and not mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if k in o.get("lost", ()) and not mark.exists():
            from skysieve.core.errors import DeviceLost

            mark.touch()
            raise DeviceLost(("cuda:0",), "unspecified launch failure")
        if k in o.get("hungry", ()):
            held = [np.ones(2**23) for _ in range(40)]
            time.sleep(20)
            del held
        rows = o.get("rows", 3)
        x = np.arange(k * rows, (k + 1) * rows)
        faults = [f"row {k}: bad"] if k in o.get("faults", ()) else []
        kind = str if k in o.get("texts", ()) else np.int64
        return Part(
            {"x": x.astype(kind), "y": np.sqrt(x)}, {"y": "d"}, {"things": rows, "in pairs": 1}, faults, {"k": k}
        )

    @classmethod
    def finish(cls, job: Job, parts: Any, path: Path) -> None:
        parts.copy(path)
