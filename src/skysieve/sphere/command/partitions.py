"""``skysieve smooth`` of many files of maps as a job: a partition is a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.cluster.description import Job, OutputError, Part, Prepared, Resources
from skysieve.core.command import STDIO, Messages, check_output
from skysieve.core.parts import files_of

from .cli import smooth_one

if TYPE_CHECKING:
    from skysieve.cluster.folder import Parts


class SmoothWork:
    """See `skysieve.cluster.description.Work`.  A partition is the number of a file of maps."""

    def __init__(self, job: Job, resources: Resources) -> None:
        self.job = job
        self.options = job.options | {"threads": resources.threads, "memory": resources.memory}
        transforms = job.options["method"] == "harmonic" or any(
            job.options[name] is not None for name in ("iterations", "lmax", "nside_out")
        )
        self.options["device"] = job.options["device"] if transforms else job.device  # transforms run on the CPU

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
        if same := next((file for file in files if file.resolve().parent == folder.resolve()), None):
            raise ValueError(f"{same} lies in the folder of the output, which would replace it")
        folder.mkdir(exist_ok=True)
        return Prepared(list(range(len(files))), files_of(files), {"names": names})

    def compute(self, partition: int) -> Part:
        """Smooth the maps of a file."""
        file = self.job.at(self.options["files"][partition])
        output = self.job.at(self.job.output) / file.name
        try:
            found = smooth_one(file, output, self.options, Messages(quiet=True), overwrite=True)
        except (ValueError, OSError) as error:
            if isinstance(error, OSError) and error.filename == str(output):
                raise OutputError(error.errno, error.strerror or str(error), str(output)) from error
            return Part({}, faults=[str(error) if str(file) in str(error) else f"{file}: {error}"])
        columns = {
            "file": np.array([self.options["files"][partition]]), "output": np.array([output.name]),
            "nside": np.array([found.nside]), "columns": np.array([",".join(found.names)]),
        }  # fmt: skip
        return Part(columns, counts={"maps": len(found.names)}, files=[str(output)])

    @classmethod
    def finish(cls, job: Job, parts: Parts, path: Path) -> None:
        """The folder of the maps holds the partitions, too: there is nothing to join."""
