"""``skysieve smooth`` of many files of maps as a job: a partition is a file."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.cluster.description import Job, OutputError, Part, Prepared, Resources
from skysieve.core.command import STDIO, Messages, check_output
from skysieve.core.device import resolve
from skysieve.core.errors import one_line
from skysieve.core.memory import available_host_memory
from skysieve.core.parts import files_of

from .cli import smooth_one

if TYPE_CHECKING:
    from skysieve.cluster.folder import Parts


AT_ONCE = 3
"""Partitions at the same time on a GPU: it smooths one, while the files of the others are read and written."""
SHARE, TOGETHER = 100, 2**26
"""Small files are smoothed together: at most so many partitions are made of them, unless one has more bytes."""


class SmoothWork:
    """See `skysieve.cluster.description.Work`.  A partition is a list of numbers of files of maps."""

    row = "file"
    needed = None
    at_once: int

    def __init__(self, job: Job, resources: Resources) -> None:
        self.job = job
        self.options = job.options | {"threads": resources.threads, "memory": resources.memory}
        transforms = job.options["method"] == "harmonic" or any(
            job.options[name] is not None for name in ("iterations", "lmax", "nside_out")
        )
        self.options["device"] = job.options["device"] if transforms else job.device  # transforms run on the CPU
        self.at_once = 1 if transforms or resolve(job.device)[0].kind == "cpu" else self._most_at_once()
        self._smoothing = threading.Lock()

    def _most_at_once(self) -> int:
        """Files that fit into the host's memory: each may need eight times its size, for it may be compressed."""
        largest = max((size or 1 for _, size, _ in self.job.inputs), default=1)
        return max(1, min(AT_ONCE, available_host_memory() // (8 * largest)))

    @classmethod
    def prepare(cls, options: dict[str, Any], output: str) -> Prepared:
        """Check names of files, and make the folder of the output."""
        files, folder = [Path(name) for name in options["files"]], Path(output)
        if STDIO in files:
            raise ValueError("--cluster needs files, not standard input")
        names = [file.name for file in files]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two files are called {twice}: the smoothed maps would have one name")
        check_output(folder, folder=True)
        folder.mkdir(exist_ok=True)
        partitions = _partitions(files)
        return Prepared(partitions, files_of(files), {"names": names}, own=partitions)

    def compute(self, partition: list[int]) -> Part:
        """Smooth the maps of some files."""
        rows: list[tuple[str, str, int, str]] = []
        faults, outputs, maps = list[str](), list[str](), 0
        quiet = Messages(quiet=True)
        for name in (self.options["files"][number] for number in partition):
            file = self.job.at(name)
            output = self.job.at(self.job.output) / file.name
            try:
                found = smooth_one(file, output, self.options, quiet, overwrite=True, alone=self._smoothing)
            except (ValueError, OSError) as error:
                if isinstance(error, OSError) and error.filename == str(output):
                    raise OutputError(error.errno, error.strerror or str(error), str(output)) from error
                text = one_line(error)
                faults.append(text if str(file) in text else f"{file}: {text}")
            else:
                rows.append((name, output.name, found.nside, ",".join(found.names)))
                outputs.append(str(output))
                maps += len(found.names)
        names = ("file", "output", "nside", "columns")
        columns = {name: np.array([row[k] for row in rows]) for k, name in enumerate(names)} if rows else {}
        return Part(columns, counts={"maps": maps} if rows else {}, faults=faults, files=outputs)

    @classmethod
    def finish(cls, job: Job, parts: Parts, path: Path) -> None:
        """Do nothing: the partitions are written to the folder of the maps, so that there is nothing to join."""


def _partitions(files: list[Path]) -> list[list[int]]:
    """Groups of files that are smoothed together, by the numbers of the files."""
    made: list[list[int]] = []
    size = 0
    for number, file in enumerate(files):
        more = file.stat().st_size if file.exists() else 0
        if not made or size + more > TOGETHER or len(made[-1]) >= len(files) / SHARE:
            made.append([])
            size = 0
        made[-1].append(number)
        size += more
    return made
