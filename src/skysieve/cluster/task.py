"""Computation of partitions, in a process of any launcher."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from skysieve.core.command import compiled_code
from skysieve.core.errors import DeviceLost, one_line

from .description import Job, OutputError, Resources, Work
from .folder import MANIFEST, read_manifest, store, stored

__all__ = ["Step", "compute", "in_this_process", "in_words"]

Step = Callable[[int, dict[str, Any] | None, str], None]
"""``step(number, facts, error)``: a partition is done, or has failed."""

_working = threading.Lock()
"""A process computes one partition at a time, or `Work.at_once` partitions of one job."""
_last: dict[tuple[str, str, Resources], tuple[Job, Work]] = {}
"""The work of the job that this process computed last."""
_owned: dict[Path, tuple[str, tuple[int, int, int]]] = {}
"""The key of the job to which a folder belongs, and inode, size and time of change of the manifest that says so."""


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
        job, work = _prepared(folder, key, resources)
        with compiled_code(job.device):
            return _compute(Path(folder), number, job, work)


def _prepared(folder: str, key: str, resources: Resources) -> tuple[Job, Work]:
    """The job of a folder, and the work for it."""
    at = (folder, key, resources)
    if at not in _last:
        job = Job(**read_manifest(Path(folder))["job"])
        _check_key(job, key, Path(folder))
        _last.clear()
        _last[at] = job, job.kind(job, resources)
    return _last[at]


def _compute(folder: Path, number: int, job: Job, work: Work) -> dict[str, Any]:
    if (found := stored(folder, number, job.key_of(number))) is not None:
        return found
    part = work.compute(job.partitions[number])
    _check_owner(folder, job)
    return store(folder, number, job.key_of(number), part)


def _check_owner(folder: Path, job: Job) -> None:
    """Refuse to store a partition of a job whose launcher was killed, if the folder now belongs to another job."""
    state = (folder / MANIFEST).stat()
    mark = state.st_ino, state.st_size, state.st_mtime_ns
    if _owned.get(folder) != (job.key, mark):
        _check_key(Job(**read_manifest(folder)["job"]), job.key, folder)
        _owned.clear()
        _owned[folder] = job.key, mark


def _check_key(job: Job, key: str, folder: Path) -> None:
    if job.key != key:
        raise ValueError(f"{folder}: the folder now holds another job")


FAULTS = (ValueError, TypeError, OSError, MemoryError, RuntimeError, ImportError)
"""Errors that make one partition fail in a process without Dask; Dask catches all errors."""


def in_this_process(folder: Path, key: str, numbers: Iterable[int], resources: Resources, step: Step) -> None:
    """Compute partitions one after the other, or `Work.at_once` of them at the same time."""
    with _working:
        try:
            job, work = _prepared(str(folder), key, resources)
        except DeviceLost:
            raise
        except FAULTS as error:
            for number in numbers:
                step(number, None, in_words(error))
            return

        def one(number: int) -> tuple[dict[str, Any] | None, str]:
            try:
                return _compute(folder, number, job, work), ""
            except (OutputError, DeviceLost):
                raise
            except FAULTS as error:
                return None, in_words(error)

        with compiled_code(job.device):
            if work.at_once == 1:
                for number in numbers:
                    step(number, *one(number))
                return
            todo = list(numbers)
            # Threads that catch warnings at the same time may restore each other's filters; this one restores the first
            with warnings.catch_warnings(), ThreadPoolExecutor(work.at_once) as pool:
                try:
                    for number, found in zip(todo, pool.map(one, todo), strict=True):
                        step(number, *found)
                finally:
                    pool.shutdown(cancel_futures=True)


def in_words(error: BaseException) -> str:
    """The first line of an error."""
    lines = one_line(error).splitlines()
    return lines[0] if lines else type(error).__name__
