"""``skysieve period`` as a job of partitions: whole small files, and runs of objects of large Parquet files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.cluster.description import Job, Part, Prepared, Resources
from skysieve.core.arrays import Words
from skysieve.core.command import STDIO, Messages
from skysieve.core.parts import files_of
from skysieve.periodogram.lightcurves.column_names import BadFile, MissingColumn
from skysieve.periodogram.lightcurves.io import LightCurves, read_light_curves
from skysieve.periodogram.lightcurves.stream import CurveStream, open_stream
from skysieve.periodogram.survey import Found, join, search

from .report import with_search_options
from .run import PeriodRun
from .search_options import SearchOptions, read_options

if TYPE_CHECKING:
    from skysieve.cluster.folder import Parts

OBJECTS, ROWS = 20_000, 4_000_000
"""Objects and rows of a partition."""
LARGE = 2**24
"""Size in bytes from which a Parquet file is divided."""
TOGETHER, MOST_FILES = 2**25, 1000
"""Bytes, or number, of small files that fill one partition."""


class PeriodWork:
    """See `skysieve.cluster.description.Work`.

    A partition is a list of numbers of files, ``[1, 2]``, or a run of rows of one, ``[1, [first, last + 1], banded]``.
    """

    row = "row"
    needed = "with a period"
    at_once = 1

    def __init__(self, job: Job, resources: Resources) -> None:
        options = job.options | {
            "device": job.device, "threads": resources.threads, "memory": resources.memory,
        }  # fmt: skip
        self.chosen = read_options(options)
        self.files = [job.at(name) for name in options["files"]]
        self.labels = np.array(job.plan["labels"])
        # pyrefly: ignore[bad-argument-type]  # nothing is printed
        self.run = PeriodRun(Messages(quiet=True), len(self.files))
        self.run.request, self.run.treatment = self.chosen.request, self.chosen.treatment

    @classmethod
    def prepare(cls, options: dict[str, Any], output: str) -> Prepared:
        """Divide files: large Parquet files by objects; small files are put together."""
        files = [Path(name) for name in options["files"]]
        if STDIO in files:
            raise ValueError("--cluster needs files, not standard input")
        chosen = read_options(options | {"threads": None, "memory": None})
        objects = options["partition"] or OBJECTS
        partitions: list[Any] = []
        together: list[int] = []
        size, first = 0, ""
        for number, file in enumerate(files):
            stream = _large(file, chosen, 0 if options["partition"] else LARGE)
            if stream is not None:
                first = first or _schema(stream)
                if _schema(stream) != first:
                    raise ValueError(
                        f"the columns of {file} are {_schema(stream)}; those of the files before it are {first}; "
                        "search them separately"
                    )
            edges = [] if stream is None else stream.edges(objects, ROWS)
            if stream is not None and len(edges) > 2:
                if together:  # rows of the table are in the order of the files
                    partitions.append(together)
                    together, size = [], 0
                banded = chosen.request.banded(stream)
                partitions += [[number, [low, high], banded] for low, high in pairwise(edges)]
                continue
            size += file.stat().st_size if file.exists() else 0
            together.append(number)
            if size >= TOGETHER or len(together) == MOST_FILES:
                partitions.append(together)
                together, size = [], 0
        if together:
            partitions.append(together)
        names = [file.name for file in files]
        labels = [str(file) if names.count(file.name) > 1 else file.name for file in files] if len(files) > 1 else []
        return Prepared(partitions, files_of(files), {"labels": labels})

    def compute(self, partition: list[Any]) -> Part:
        """Search the objects of a partition."""
        rows, banded = None, None
        if len(partition) == 3 and isinstance(partition[1], list):
            partition, rows, banded = partition[:1], (partition[1][0], partition[1][1]), partition[2]
        found: list[Found] = []
        owners: list[int] = []
        faults: list[str] = []
        for number in partition:
            try:
                some = self._searched(self.files[number], rows, banded, faults)
            except (BadFile, MissingColumn) as error:
                faults.append(f"{self.files[number]}: {str(error).splitlines()[0]}")
            except ValueError as error:
                faults.append(f"{self.files[number]}: {with_search_options(str(error).splitlines()[0])}")
            except OSError as error:
                faults.append(f"{self.files[number]}: {error.strerror or error}")
            else:
                if some is not None:
                    found.append(some)
                    owners += [number] * len(some)
        if not found:
            return Part({}, faults=faults)
        whole = join(found)
        file = Words(np.array(owners), self.labels) if len(self.labels) else None
        columns, units = whole.table(self.chosen.request, file, coded=True)
        counts = {"objects": len(whole), "with a period": int(np.isfinite(whole.frequency[:, 0]).sum())}
        return Part(columns, units, counts, faults)

    def _searched(
        self, file: Path, rows: tuple[int, int] | None, banded: bool | None, faults: list[str]
    ) -> Found | None:
        """The results for the objects of a file, or of a range of its rows; None if the range has none to search."""
        chosen, treatment = self.chosen, self.chosen.treatment
        held: LightCurves | CurveStream
        if rows is None:
            held = self.run.treated(read_light_curves(file, chosen.wanted, band=treatment.band))
        else:
            stream = open_stream(file, chosen.wanted, band=treatment.band, fewest=0, rows=rows)
            if stream is None:
                raise BadFile(f"rows {rows[0] + 1:,} to {rows[1]:,} cannot be read")
            stream.treat = self.run.treated
            held = stream
        if treatment.multiband not in (None, "none") and not len(held.bands):
            raise BadFile(f"--multiband {treatment.multiband}: found no band column")
        banded = chosen.request.banded(held) if banded is None else banded
        with held.pieces() as pieces:
            answers = list(
                search(pieces, chosen.request, total=len(held), banded=banded, prepare=self.run.correction())
            )
        if isinstance(held, CurveStream):
            faults += [f"{file}: {line}" for line in held.lost]
        if not answers and rows is None:
            raise BadFile("has no rows")
        return join(answers) if answers else None

    @classmethod
    def finish(cls, job: Job, parts: Parts, path: Path) -> None:
        """Write the table of all objects."""
        from skysieve.core.table_files import check_format, write_table

        kind = job.options["format"]
        if check_format(path, kind).name == "parquet":
            parts.copy(path)
            return
        columns, units = parts.columns()
        write_table(columns, path, units=units, format=kind)


def _large(file: Path, chosen: SearchOptions, least: int) -> CurveStream | None:
    """A Parquet file that can be divided; None for others, and for those that cannot be read: they are faults later."""
    try:
        if file.stat().st_size < least:
            return None
        return open_stream(file, chosen.wanted, band=chosen.treatment.band, fewest=0)
    except (OSError, BadFile, MissingColumn):
        return None


def _schema(stream: CurveStream) -> str:
    """The columns that are used and the type of the ids, in words."""
    kind = {"U": "text", "i": "numbers", "u": "numbers"}.get(stream.ids.dtype.kind, "other")
    return f"{stream.taken} (ids: {kind})"
