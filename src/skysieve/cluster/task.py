"""Computation of partitions, in a process of any launcher."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from skysieve.core.errors import DeviceLost, one_line

from .description import Job, OutputError, Resources, Work
from .folder import read_manifest, store, stored

__all__ = ["Step", "compute", "in_this_process", "in_words"]

Step = Callable[[int, dict[str, Any] | None, str], None]
"""``step(number, facts, error)``: a partition is done, or has failed."""

_working = threading.Lock()
"""A process computes one partition at a time."""
_last: dict[tuple[str, str, Resources], tuple[Job, Work]] = {}
"""The work of the job that this process computed last."""


def compute(folder: str, key: str, number: int, resources: Resources) -> dict[str, Any]:
    """Compute a partition and write its file, unless the file exists; tasks of Dask and SLURM call this.

    Returns
    -------
    dict
        ``rows``, ``counts``, ``faults`` and ``environment`` of the partition.

    Raises
    ------
    OutputError
        The file cannot be written.
    Exception
        The partition cannot be computed.
    """
    with _working:
        at = (folder, key, resources)
        if at not in _last:
            job = Job(**read_manifest(Path(folder))["job"])
            if job.key != key:
                raise ValueError(f"{folder}: the folder now holds another job")
            _last.clear()
            _last[at] = job, job.kind(job, resources)
        job, work = _last[at]
        if (found := stored(Path(folder), number, job.key_of(number))) is not None:
            return found
        return store(Path(folder), number, job.key_of(number), work.compute(job.partitions[number]))


FAULTS = (ValueError, TypeError, OSError, MemoryError, RuntimeError, ImportError)
"""Errors that make one partition fail in a process without Dask; Dask catches all errors."""


def in_this_process(folder: Path, key: str, numbers: Iterable[int], resources: Resources, step: Step) -> None:
    """Compute partitions one after the other."""
    for number in numbers:
        try:
            facts = compute(str(folder), key, number, resources)
        except (OutputError, DeviceLost):
            raise
        except FAULTS as error:
            step(number, None, in_words(error))
        else:
            step(number, facts, "")


def in_words(error: BaseException) -> str:
    """The first line of an error."""
    lines = one_line(error).splitlines()
    return lines[0] if lines else type(error).__name__
