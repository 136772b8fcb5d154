"""Jobs: a command, its options and the partitions of its input; and the work of a command for one partition.

A job is plain data, so that it can be pickled for Dask and stored as JSON for SLURM.  The command's own code prepares
it, computes partitions and joins their results: see `Work`.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from skysieve import __version__
from skysieve.core.command import flat_options
from skysieve.core.parts import parts_folder

if TYPE_CHECKING:
    from .folder import Parts

__all__ = ["KINDS", "Job", "OutputError", "Part", "Prepared", "Resources", "Work", "folder_of", "job"]

KINDS = {
    "period": ("skysieve.periodogram.command.partitions:PeriodWork", "skysieve.periodogram.command.cli:period"),
    "fstat search": ("skysieve.fstat.command.partitions:SearchWork", "skysieve.fstat.command.cli:search"),
    "smooth": ("skysieve.sphere.command.partitions:SmoothWork", "skysieve.sphere.command.cli:smooth"),
    "dedisp search": (
        "skysieve.dedispersion.command.partitions:DedispWork",
        "skysieve.dedispersion.command.cli:search",
    ),
}
"""Commands that can be divided: the class that does the work, and the function with the options and their defaults."""

CODE = {
    command: (place.partition(":")[0], f"{place[: place.index('.command')]}.cpu.engine", "pyarrow.parquet")
    for command, (place, _) in KINDS.items()
}
"""Modules that a worker of each command will import on a CPU."""

NO_MATTER = {
    "cluster", "dry_run", "each", "memory", "output", "overwrite", "progress", "quiet", "resume", "threads", "verbose",
}  # fmt: skip
"""Options on which the results do not depend."""


class OutputError(OSError):
    """A result that cannot be written, such as on a full disk: further partitions would fail, too."""


@dataclass(frozen=True)
class Prepared:
    """The result of `Work.prepare`.

    Attributes
    ----------
    partitions : list
        The partitions as JSON values, in the order of the output's rows.
    inputs : list
        Files with their sizes and times of change, see `skysieve.core.parts.fingerprint`.
    plan : dict
        Values that all partitions must share, such as a grid that follows from the first template.
    notes : list of str
        Lines for the user.
    own : list of list of int
        For each partition, the numbers of the inputs on which no other partition depends.  If one of these inputs
        changes, `resume` computes only this partition again.  Empty if all partitions depend on all inputs.
    """

    partitions: list[Any]
    inputs: list[Any]
    plan: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    own: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class Part:
    """The result of a partition.

    Attributes
    ----------
    columns : mapping of str to array or Words
        Columns of its rows; none where it has no rows.
    units : mapping of str to str
        Units of some of the columns.
    counts : dict of str to int
        Counts that are added up over all partitions, such as ``{"objects": 10}``.
    faults : list of str
        Inputs that were left out, with the reasons.
    facts : dict
        Further values for `Work.finish`, as JSON values.
    files : list of str
        Further files that were written.
    """

    columns: Mapping[str, Any]
    units: Mapping[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Resources:
    """What a worker may use; the results do not depend on it."""

    threads: int | None = None
    memory: str | None = None


class Work(Protocol):
    """The work of a command for the partitions of a job.

    An instance belongs to one process, which computes partition after partition with it.

    Attributes
    ----------
    row : str
        What a row of the partitions' tables is called when rows are counted: "row", or "file" if each row is a file.
    needed : str or None
        The count (see `Part.counts`) that is 0 if nothing was found in any input, which gives exit code 1; None if
        it is a valid result that nothing was found.
    at_once : int
        Number of partitions that threads of a process without Dask compute at the same time.
    """

    row: ClassVar[str]
    needed: ClassVar[str | None]
    at_once: int = 1

    def __init__(self, job: Job, resources: Resources) -> None: ...

    @classmethod
    def prepare(cls, options: dict[str, Any], output: str) -> Prepared:
        """Check the options and divide the input."""

    def compute(self, partition: Any) -> Part:
        """Compute a partition; inputs that cannot be used are `Part.faults`."""

    @classmethod
    def finish(cls, job: Job, parts: Parts, path: Path) -> None:
        """Write the output from the tables and the facts of all partitions, in order."""


@dataclass(frozen=True)
class Job:
    """A command that is divided into partitions; `job` makes it.

    Attributes
    ----------
    command : str
        A name of `KINDS`, or ``module:class`` of another `Work`.
    options : dict
        Options of the command as JSON values.
    output : str
        The file or folder to write.
    partitions, inputs, plan, own : list, list, dict, list
        See `Prepared`.
    device : str
        Device on which partitions are computed: the option, or the device that "auto" has selected.
    version : str
        Version of this package.
    cwd : str
        The folder to which relative file names refer.
    """

    command: str
    options: dict[str, Any]
    output: str
    partitions: list[Any]
    inputs: list[Any]
    plan: dict[str, Any] = field(default_factory=dict)
    device: str = "auto"
    version: str = __version__
    cwd: str = field(default_factory=os.getcwd)
    own: list[list[int]] = field(default_factory=list)
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        n = len(self.partitions)
        return f"<Job: {self.command} in {n:,} partition{'s' if n != 1 else ''}, to {self.output}>"

    @cached_property
    def key(self) -> str:
        """A hash of everything on which the result depends, but not of the device."""
        return self._hash(self.inputs)

    @cached_property
    def common_key(self) -> str:
        """A hash of everything on which all partitions depend."""
        return self._hash(self._common)

    def key_of(self, number: int) -> str:
        """A hash of everything on which the result of a partition depends."""
        return self._hash([*self._common, *(self.inputs[k] for k in self.own[number])]) if self.own else self.key

    @property
    def _common(self) -> list[Any]:
        owned = {k for numbers in self.own for k in numbers}
        return [one for k, one in enumerate(self.inputs) if k not in owned]

    def _hash(self, inputs: list[Any]) -> str:
        options = {name: value for name, value in self.options.items() if name not in ("device", "format")}
        asked = [self.command, options, self.partitions, inputs, self.plan, self.version]
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()

    def at(self, name: str) -> Path:
        """The path of a file, relative to the folder in which the job was made."""
        return Path(self.cwd, name)

    def same_but_for_paths(self, other: Job) -> bool:
        """Whether a job that was made in another folder differs only in how its relative paths are written."""

        def same(mine: Any, theirs: Any) -> bool:
            if isinstance(mine, dict) and isinstance(theirs, dict):
                return mine.keys() == theirs.keys() and all(same(mine[key], theirs[key]) for key in mine)
            if isinstance(mine, list) and isinstance(theirs, list):
                return len(mine) == len(theirs) and all(map(same, mine, theirs))
            if isinstance(mine, str) and isinstance(theirs, str) and mine != theirs:
                return os.path.realpath(self.at(mine)) == os.path.realpath(other.at(theirs))
            return bool(mine == theirs)

        facts = [
            [job.command, {k: v for k, v in job.options.items() if k not in ("device", "format")}, job.partitions,
             job.plan, job.version, job._common]
            for job in (self, other)
        ]  # fmt: skip
        mine, theirs = json.loads(json.dumps(facts))
        return same(mine, theirs)

    def facts(self) -> dict[str, Any]:
        """The job as JSON values; ``Job(**facts)`` makes it again."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "notes"}

    @property
    def kind(self) -> type[Work]:
        """The class that does the work."""
        return kind_of(self.command)


def kind_of(command: str) -> type[Work]:
    """The class that does the work of a command."""
    place = KINDS[command][0] if command in KINDS else command
    if ":" not in place:
        raise ValueError(f"command={command!r}: expected one of {', '.join(KINDS)}")
    found: type[Work] = _load(place)
    return found


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def folder_of(output: str | PathLike[str]) -> Path:
    """The folder of a job: the output itself where its name has no ending, else ``OUT.parts`` beside it."""
    path = Path(output)
    return path if path.is_dir() or not path.suffix else parts_folder(path)


def _check_inputs(prepared: Prepared, output: Path) -> None:
    """Refuse an output that would replace an input, and a folder of partitions, which is emptied, with inputs."""
    folder = folder_of(output).resolve()
    for name, *_ in prepared.inputs:
        if Path(name) == output.resolve():
            raise ValueError(f"{output} is one of the files to read")
        if Path(name).parent == folder:
            raise ValueError(f"{name} lies in the folder of the output, {folder_of(output)}: expected another output")


def job(command: str, output: str | PathLike[str], **options: Any) -> Job:
    """Divide a command into partitions.

    Parameters
    ----------
    command : str
        "period", "fstat search", "smooth" or "dedisp search".
    output : path
        The table to write; a name without an ending is a folder of Parquet files.  For "smooth" it is the folder of
        the maps.
    **options
        The command's options by their names in Python: ``files=["a.parquet"]``, ``min_period=0.1``.  Options that are
        not given have the command's defaults.

    Returns
    -------
    Job

    Raises
    ------
    ValueError, OSError
        An option is wrong, or no input can be used.

    Examples
    --------
    >>> import tempfile
    >>> from skysieve import cluster
    >>> folder = Path(tempfile.mkdtemp())
    >>> for star in "ab":
    ...     rows = "".join(f"{0.37 * i} {10 + (i * 0.37 % 2.5) / 2.5}\\n" for i in range(60))
    ...     _ = (folder / f"{star}.txt").write_text(rows)
    >>> stars = cluster.job(
    ...     "period", folder / "periods.csv", files=sorted(folder.glob("*.txt")), min_period=1, max_period=10,
    ...     device="cpu")
    >>> done = cluster.run(stars)
    >>> done.rows, done.failed
    (2, {})
    """
    kind = kind_of(command)
    given = flat_options(options)
    if command in KINDS:
        parameters = inspect.signature(_load(KINDS[command][1])).parameters.values()
        known = flat_options({p.name: None if p.default is p.empty else p.default for p in parameters})
        if unknown := sorted({*given} - {*known}):
            raise ValueError(f"{unknown[0]}: {command} has no such option")
        given = known | given
    given = {name: value for name, value in given.items() if name not in NO_MATTER}
    prepared = kind.prepare(given, fspath(output))
    if not prepared.partitions:
        raise ValueError(f"{command}: the input holds nothing to divide into partitions")
    _check_inputs(prepared, Path(output))
    return Job(
        command, given, fspath(output), prepared.partitions, prepared.inputs, prepared.plan,
        given.get("device") or "auto", own=prepared.own, notes=tuple(prepared.notes),
    )  # fmt: skip
