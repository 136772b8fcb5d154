"""``skysieve dedisp search`` of many files as a job: each partition is one file."""

from __future__ import annotations

import csv
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from skysieve.cluster.description import Job, Part, Prepared, Resources
from skysieve.cluster.task import in_words
from skysieve.core.arrays import Words
from skysieve.core.command import STDIO, Messages, table_format
from skysieve.core.files import written
from skysieve.core.parts import files_of
from skysieve.dedispersion.clean.blocks.steps import parse_steps
from skysieve.dedispersion.single_pulse.candidates import Candidates
from skysieve.dedispersion.single_pulse.search import search

from .options import Cleaning, DataOptions, DmOptions
from .several import filterbanks, labels

if TYPE_CHECKING:
    from skysieve.cluster.folder import Parts

G = TypeVar("G", Cleaning, DataOptions, DmOptions)
FORMATS = ("parquet", "csv")
"""Formats with a column of files."""
FILES = ("plan_file", "mask")
"""Options that name a file."""


class DedispWork:
    """See `skysieve.cluster.description.Work`.  A partition is the number of a file."""

    row = "row"
    needed = None
    at_once = 1

    def __init__(self, job: Job, resources: Resources) -> None:
        self.job = job
        self.options = options = job.options | {name: _at(job, job.options[name]) for name in FILES}
        self.dms, self.data = _group(DmOptions, options), _group(DataOptions, options)
        self.cleaning = _group(Cleaning, options)
        same = ("threshold", "noise", "detector", "buffer", "block", "method", "max_width", "excess", "dip")
        self.given: dict[str, Any] = {name: options[name] for name in same}
        self.given |= {
            "baseline": not options["no_baseline"],
            "clean": parse_steps(options["clean"]),
            "veto": options["veto"],
        }
        self.given |= {"device": job.device, "threads": resources.threads, "memory": resources.memory}

    @classmethod
    def prepare(cls, options: dict[str, Any], output: str) -> Prepared:
        """Check what can be checked without data."""
        parse_steps(options["clean"])  # a mistake is an error before the work
        files = [Path(name) for name in options["files"]]
        if STDIO in files or options["plan_file"] == str(STDIO):
            raise ValueError("--cluster needs files, not standard input")
        if Path(output).suffix:
            table_format(Path(output), options["form"], FORMATS)
        files = filterbanks(files)
        listed = [Path(options[name]) for name in FILES if options[name]]
        return Prepared(
            list(range(len(files))),
            files_of([*files, *listed]),
            {"labels": labels(files), "files": list(map(str, files))},
            own=[[number] for number in range(len(files))],
        )

    def compute(self, partition: int) -> Part:
        """Search a file."""
        file = self.job.at(self.job.plan["files"][partition])
        quiet = Messages(quiet=True)
        try:
            with self.data.open([file]) as fb:
                plan = self.dms.plan(fb, self.options["plan_file"])
                clean, mask, _ = self.cleaning.prepared(fb, quiet, self.options["requantise"])
                found = search(clean, plan, mask=mask, **self.given)
        except (ValueError, OSError, ArithmeticError) as error:
            text = in_words(error)
            return Part({}, faults=[text if str(file) in text else f"{file}: {text}"])
        name = Words(np.zeros(len(found), np.int64), np.array([self.job.plan["labels"][partition]]))
        units = {c.name: c.unit for c in found.COLUMNS if c.unit}
        counts = {"files": 1, "candidates": len(found)}
        return Part({"file": name, **found.columns()}, units, counts, facts={"dm_constant": found.dm_constant})

    @classmethod
    def finish(cls, job: Job, parts: Parts, path: Path) -> None:
        """Write the table of all candidates."""
        if table_format(path, job.options["form"], FORMATS) == "parquet":
            parts.copy(path)
            return
        with written(path) as part, open(part, "w", encoding="utf-8", newline="") as text:
            rows = csv.writer(text, lineterminator="\n")
            rows.writerow(["file", *(c.name for c in Candidates.COLUMNS), "dm_constant"])
            for table, facts in parts:
                columns = [table.column(c.name).to_pylist() for c in Candidates.COLUMNS if table.num_rows]
                names = table.column("file").to_pylist() if table.num_rows else []
                for name, *row in zip(names, *columns, strict=True):
                    cells = [format(value, c.text) for c, value in zip(Candidates.COLUMNS, row, strict=True)]
                    rows.writerow([name, *cells, repr(facts["dm_constant"])])


def _group(kind: type[G], options: dict[str, Any]) -> G:
    return kind(**{f.name: options[f.name] for f in fields(kind)})


def _at(job: Job, name: str | None) -> Path | None:
    return None if name is None else job.at(name)
