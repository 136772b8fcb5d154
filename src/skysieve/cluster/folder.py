"""The folder of a job: a manifest, a Parquet file for each partition, and the reasons of those that failed.

``manifest.json`` holds the job and, at the end, the rows of each partition.  ``part-000000.parquet`` holds the rows of
the first partition, and in its metadata the job's key, what was counted and what was left out.  Every file is written
under another name and renamed, so that a file that exists is complete; pages have checksums.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skysieve import __version__
from skysieve.core.arrays import from_arrow, joined, to_arrow
from skysieve.core.command import check_output
from skysieve.core.files import ROWS_TOGETHER, before_naming, parquet_schema, remove_leftovers, write_parquet, written
from skysieve.core.machine.rates import processor
from skysieve.core.parts import WRITTEN, InUse, Lock, fingerprint, has_written, read_json, states_with
from skysieve.core.table_files import json_text

from .description import Job, OutputError, Part, folder_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow

__all__ = [
    "Outcome",
    "Parts",
    "RunFolder",
    "check_place",
    "continues",
    "environment",
    "fail",
    "read_manifest",
    "store",
    "stored",
]

MANIFEST, LOCK = "manifest.json", "lock"
VERSIONS = ("numpy", "numba", "finufft", "ducc0", "pyarrow")
"""Packages whose version results may depend on."""
ENDED = "Invalid job id specified"
"""What squeue says about jobs that ended some minutes ago, with exit code 1."""
MOST_FAULTS = 1000
"""Most inputs whose faults are listed."""


@functools.cache
def environment() -> dict[str, str]:
    """Versions and processor of this process; partitions are bit-identical if these are the same."""
    found = {"skysieve": __version__, "python": platform.python_version(), "processor": processor()}
    for name in VERSIONS:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def check_place(output: Path, resume: bool, overwrite: bool) -> None:
    """Refuse, before any work, an output that exists already or cannot be written.

    Raises
    ------
    OSError
        As `skysieve.core.command.check_output`.
    """
    folder = folder_of(output)
    own = continues(output, resume) and has_written(folder / MANIFEST, output)
    check_output(output, overwrite or own, folder=folder == output)


def continues(output: Path, resume: bool) -> bool:
    """Whether a run with ``--resume`` finds the folder of an earlier one, whose outputs it may then replace."""
    return resume and (folder_of(output) / MANIFEST).exists()


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder.

    Raises
    ------
    ValueError, OSError
        There is none, or it is damaged.
    """
    found = read_json(folder / MANIFEST)
    if not isinstance(found, dict) or "job" not in found:
        raise ValueError(f"{folder / MANIFEST} is damaged; delete the folder to start anew")
    return found


def _part(folder: Path, number: int) -> Path:
    return folder / f"part-{number:06d}.parquet"


def _failure(folder: Path, number: int) -> Path:
    return folder / f"part-{number:06d}.failed.json"


def store(folder: Path, number: int, key: str, part: Part) -> dict[str, Any]:
    """Write the result of a partition; returns its facts."""
    facts: dict[str, Any] = {
        "key": key, "number": number, "rows": len(next(iter(part.columns.values()), ())), "counts": part.counts,
        "columns": len(part.columns),
        "faults": part.faults[:MOST_FAULTS], "n_faults": len(part.faults), "facts": part.facts,
        "environment": environment(),
    }  # fmt: skip
    try:
        facts["files"] = [_state(name) for name in part.files]
        with written(_part(folder, number)) as path:
            write_parquet(part.columns, path, units=part.units, facts={"skysieve": json.dumps(facts)})
        _failure(folder, number).unlink(missing_ok=True)
    except OSError as error:
        raise _unwritten(error, folder) from error
    return {name: value for name, value in facts.items() if name != "facts"}


def _state(name: str) -> list[Any]:
    """Name, size and time of change of a further file that a partition has written."""
    return [name, *fingerprint(Path(name))[1:]]


def _unwritten(error: OSError, path: Path) -> OutputError:
    return OutputError(error.errno, error.strerror or str(error), error.filename or str(path))


def stored(folder: Path, number: int, key: str) -> dict[str, Any] | None:
    """The facts of a partition that is done.

    They are None if it is not done, if its file is damaged or of another job, or if a further file that it has written
    is missing or has changed.
    """
    import pyarrow
    from pyarrow import parquet

    path = _part(folder, number)
    if not path.exists():
        return None
    try:
        facts = _facts_of(parquet.read_schema(path))
        same = facts["key"] == key and all(_state(made[0]) == made for made in facts["files"])
    except (OSError, pyarrow.ArrowException, ValueError, KeyError):  # also a further file that does not exist
        facts, same = {}, False
    if same:
        return {name: value for name, value in facts.items() if name != "facts"}
    path.unlink(missing_ok=True)
    return None


def _facts_of(schema: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((schema.metadata or {})[b"skysieve"])
    return found


def fail(folder: Path, number: int, error: str) -> None:
    """Write the reason why a partition has failed."""
    with written(_failure(folder, number)) as path:
        path.write_text(json.dumps({"error": error}), encoding="utf-8")


def in_slurm(numbers: list[str]) -> bool:
    """Whether SLURM still has one of the jobs; False without SLURM.

    Raises
    ------
    OSError
        squeue fails, for another reason than that it does not know the jobs any more.
    """
    if shutil.which("squeue") is None:
        return False
    asked = ["squeue", "--noheader", "--jobs", ",".join(numbers)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode and ENDED not in done.stderr:
        said = "; ".join(done.stderr.strip().splitlines())
        raise OSError(f"squeue: {said or f'exit code {done.returncode}'}")
    return done.returncode == 0 and bool(done.stdout.strip())


@dataclass
class Outcome:
    """The outcome of a job.

    Attributes
    ----------
    output, folder : pathlib.Path
        The output; the folder of partitions, which is removed once a table is complete.
    partitions, before, rows : int
        Numbers of all partitions, of partitions that were done before, and of rows of the output.
    failed : dict of int to str
        Partitions without a result, and the reasons.
    faults : list of str
        Inputs that were left out, and the reasons; the first thousand.
    n_faults : int
    counts : dict of str to int
        Counts of the command, such as objects.
    tables : int
        Number of partitions with a table; a partition has none if all of its inputs were left out.
    environments : list of dict
        Versions and processors of the workers; results are reproducible bit for bit if there is only one entry.
    row : str
        What a row is called; see `Work`.
    needed : str or None
        The count that must not be 0; see `Work`.
    """

    output: Path
    folder: Path
    partitions: int
    before: int = 0
    rows: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    n_faults: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    tables: int = 0
    environments: list[dict[str, str]] = field(default_factory=list)
    row: str = "row"
    needed: str | None = None

    def enter(self, facts: dict[str, Any]) -> None:
        """Add a partition that is done."""
        self.rows += facts["rows"]
        self.tables += facts["columns"] > 0
        self.n_faults += facts["n_faults"]
        self.faults += facts["faults"][: max(0, MOST_FAULTS - len(self.faults))]
        for name, count in facts["counts"].items():
            self.counts[name] = self.counts.get(name, 0) + count
        if facts["environment"] not in self.environments:
            self.environments.append(facts["environment"])


class RunFolder:
    """The folder of a job, which one launcher at a time may use.

    Parameters
    ----------
    job : Job
    resume : bool
        Continue from the partitions that are done.
    overwrite : bool
        Remove the partitions of another job.

    Raises
    ------
    skysieve.core.parts.InUse
        Another launcher works there.
    ValueError, OSError
        The folder holds partitions and neither `resume` nor `overwrite` is given, or partitions of another job, or
        SLURM works on it, or the folder cannot be made.
    """

    def __init__(self, job: Job, resume: bool = False, overwrite: bool = False) -> None:
        self.job, self.output = job, job.at(job.output)
        self.folder = folder_of(self.output)
        self._written: list[Any] = []
        check_place(self.output, resume, overwrite)
        self.lock = Lock(self.folder / LOCK)
        try:
            self._open(resume, overwrite)
        except BaseException:
            self.close()
            raise

    def _open(self, resume: bool, overwrite: bool) -> None:
        begun = (self.folder / MANIFEST).exists()
        if not begun and (others := sorted(self.folder.glob("part-*"))):  # a run removes its manifest last
            raise FileExistsError(
                f"{self.folder} holds files of another program ({others[0].name}), which partitions could replace; "
                "expected another output"
            )
        if begun:
            found = read_manifest(self.folder)
            self._check_slurm(found)
            before = Job(**found["job"])
            if self.job.device == "auto":
                self.job = replace(self.job, device=before.device)
            if resume and before.cwd != self.job.cwd and before.same_but_for_paths(self.job):
                self.job = replace(before, inputs=self.job.inputs, device=self.job.device, output=str(self.output))
            self._written = found.get(WRITTEN, [])
            continues = resume and (before.common_key, before.device) == (self.job.common_key, self.job.device)
            if overwrite or not any(self.folder.glob("part-*.parquet")):
                if not continues:
                    self._clear()
            elif not resume:
                if not self._only_lists(found):
                    raise FileExistsError(
                        f"{self.folder} holds partitions of a run; use --resume to continue it, or --overwrite"
                    )
                self._clear()
            elif not continues:
                old, new = before.facts(), json.loads(json.dumps(self.job.facts()))
                names = [n for n in new if n not in ("output", "cwd") and old.get(n) != new[n]]
                if names == ["options"]:
                    names = sorted(n for n in new["options"] if old["options"].get(n) != new["options"][n])
                there = "" if before.cwd == self.job.cwd else f" in {before.cwd}, or with absolute paths"
                raise ValueError(
                    f"{self.folder} holds partitions of a run with other {', '.join(names)}; repeat that run's "
                    f"command{there}, use --overwrite, or delete the folder"
                )
        remove_leftovers(self.folder)
        if self.folder != self.output:
            remove_leftovers(self.output.absolute().parent, self.output)
            before_naming[self.output.resolve()] = self._record
        if overwrite and self.output.is_file():  # a run that continues may replace it, too
            self._written = [fingerprint(self.output)[1:]]
        self.write_manifest("running")

    def _only_lists(self, found: dict[str, Any]) -> bool:
        """Whether the run is finished, and its partitions list only files that it wrote, such as maps, or nothing."""
        from pyarrow import parquet

        made = [_facts_of(parquet.read_schema(path)) for path in self.folder.glob("part-*.parquet")]
        return bool(found["state"] == "finished" and all(facts["files"] or not facts["columns"] for facts in made))

    def _check_slurm(self, found: dict[str, Any]) -> None:
        numbers, own = found.get("slurm", ()), os.environ.get("SLURM_JOB_ID")
        others = [number for number in numbers if number != own]
        try:
            running = bool(others) and in_slurm(others)
        except OSError as error:
            if own in numbers:  # SLURM starts the job that joins the results when the others have ended
                return
            raise InUse(
                f"{self.folder} may be in use by job {others[0]} of SLURM, which cannot be asked ({error}); try again "
                "later"
            ) from error
        if running:
            raise InUse(f"{self.folder} is in use by job {others[0]} of SLURM; wait until it ends, or scancel it")

    def _clear(self) -> None:
        unfinished = (".part-*", ".manifest-*.json", ".slurm-*.sh", ".condor-*.sub")  # of processes that were killed
        for pattern in ("part-*", *unfinished, "slurm-*", "condor*", MANIFEST):
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)

    def write_manifest(self, state: str, **facts: Any) -> None:
        """Write the manifest: the job, its state and further facts."""
        with written(self.folder / MANIFEST) as path:
            content = {"state": state, WRITTEN: self._written, **facts, "job": self.job.facts()}
            path.write_text(json_text(content), encoding="utf-8")

    def _record(self, part: Path) -> None:
        """Note the state of the complete output, before it has its name."""
        self._written = states_with(self._written, self.output, part)
        self.write_manifest("running")

    def outcome(self) -> tuple[Outcome, list[int]]:
        """The outcome so far, and the partitions that are not done."""
        kind, output = self.job.kind, self.job.at(self.job.output)
        found = Outcome(output, self.folder, len(self.job.partitions), row=kind.row, needed=kind.needed)
        missing = []
        for number in range(len(self.job.partitions)):
            facts = stored(self.folder, number, self.job.key_of(number))
            if facts is None:
                missing.append(number)
            else:
                found.before += 1
                found.enter(facts)
        return found, missing

    def failures(self, numbers: Iterable[int]) -> dict[int, str]:
        """The reasons why partitions failed."""
        found = {number: _failure(self.folder, number) for number in numbers}
        reasons = {number: read_json(path) for number, path in found.items() if path.exists()}
        return {number: reason["error"] for number, reason in reasons.items() if reason}

    def finish(self, outcome: Outcome) -> None:
        """Write the output and the last manifest; remove the folder if no partition failed and it is not the output."""
        done = [n for n in range(outcome.partitions) if n not in outcome.failed]
        try:
            if self.folder != outcome.output and outcome.tables:
                keys = {_part(self.folder, n): self.job.key_of(n) for n in done}
                self.job.kind.finish(self.job, Parts(list(keys), keys), outcome.output)
            self.write_manifest(
                "failed" if outcome.failed else "finished", rows=outcome.rows, counts=outcome.counts,
                failed=outcome.failed, n_faults=outcome.n_faults, faults=outcome.faults,
                environments=outcome.environments, partitions=[_part(self.folder, n).name for n in done],
            )  # fmt: skip
        except OSError as error:
            raise _unwritten(error, outcome.output) from error
        if self.folder != outcome.output and outcome.tables and not outcome.failed:
            self._clear()
            self.close()
            with suppress(OSError):  # other files are there
                self.folder.rmdir()

    def close(self) -> None:
        """Release the lock."""
        before_naming.pop(self.output.resolve(), None)
        self.lock.close()


class Parts:
    """The partitions that are done, in order: their tables and the facts beside them.

    Parameters
    ----------
    paths : list of pathlib.Path
    keys : dict of pathlib.Path to str, optional
        The key of the job for each partition, see `Job.key_of`.  A file with another key is refused: a worker of an
        earlier run, which has lost its launcher, may have replaced a partition.
    """

    def __init__(self, paths: list[Path], keys: Mapping[Path, str] | None = None) -> None:
        self.paths, self.keys = paths, keys or {}

    def __iter__(self) -> Iterator[tuple[pyarrow.Table, dict[str, Any]]]:
        import pyarrow
        from pyarrow import parquet

        for path in self.paths:
            try:
                with parquet.ParquetFile(path, page_checksum_verification=True) as file:  # read_table imports pandas
                    table = file.read()
            except (OSError, pyarrow.ArrowException) as error:
                path.unlink(missing_ok=True)
                raise ValueError(f"{path} is damaged ({error}); --resume computes it again") from error
            facts = _facts_of(table.schema)
            if facts["key"] != self.keys.get(path, facts["key"]):
                path.unlink(missing_ok=True)
                raise ValueError(f"{path} was replaced by a worker of another run; --resume computes it again")
            yield table, facts["facts"]

    def columns(self) -> tuple[dict[str, Any], dict[str, str]]:
        """All rows as NumPy arrays, and the units of columns."""
        columns: dict[str, list[Any]] = {}
        units: dict[str, str] = {}
        for table, _ in self:
            for one in table.schema:
                columns.setdefault(one.name, []).append(from_arrow(table.column(one.name)))
                if one.metadata and b"unit" in one.metadata:
                    units[one.name] = one.metadata[b"unit"].decode()
        return {name: joined(values) for name, values in columns.items()}, units

    def schema(self) -> pyarrow.Schema:
        """The schema of all rows: columns of several types have the type that `skysieve.core.arrays.joined` gives."""
        import pyarrow as pa
        from pyarrow import parquet

        fields: dict[str, pa.Field] = {}
        for path in self.paths:
            for one in parquet.read_schema(path):
                before = fields.setdefault(one.name, one)
                if before.type != one.type:
                    both = [from_arrow(pa.nulls(0, kind)) for kind in (before.type, one.type)]
                    fields[one.name] = before.with_type(to_arrow(joined(both)).type)
        return parquet_schema(fields.values())

    def copy(self, path: Path) -> None:
        """Write all rows as one Parquet table, with few partitions in memory at a time."""
        import pyarrow as pa
        from pyarrow import parquet

        schema = self.schema()
        texts = [one.name for one in schema if pa.types.is_string(one.type)]
        with written(path) as part, parquet.ParquetWriter(part, schema, use_dictionary=texts) as writer:
            waiting: list[pa.Table] = []
            for table, _ in self:
                if table.num_columns:
                    waiting.append(table.cast(schema))
                if sum(map(len, waiting)) >= ROWS_TOGETHER:
                    writer.write_table(pa.concat_tables(waiting))
                    waiting.clear()
            if waiting:
                writer.write_table(pa.concat_tables(waiting))
