"""Formats of tables of candidates: csv, ecsv, parquet, PRESTO's ``.singlepulse``, Heimdall's ``.cand``."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import Words
from skysieve.core.checks import one_of
from skysieve.core.files import write_parquet, written
from skysieve.core.table_files import FORMATS, Table, TableFormat, check_format
from skysieve.dedispersion.data.write import delay_note

if TYPE_CHECKING:
    from .candidates import Candidates, Column


def write_candidates(found: Candidates, path: str | os.PathLike[str], format: str | None = None) -> None:
    """Write candidates in one of `TABLE_FORMATS`, by default the one that the suffix names.

    Raises
    ------
    ValueError
        There is no such format.
    ModuleNotFoundError
        It needs a package that is not installed.
    """
    chosen = check_format(path, format, TABLE_FORMATS)
    units = {c.name: c.unit for c in found.COLUMNS if c.unit}
    with written(path) as part:
        chosen.write(Table(found.columns(), units, found.facts(), found), part)


def write_several(found: Sequence[tuple[str, Candidates]], path: str | os.PathLike[str], format: str) -> None:
    """Write the candidates of one or more searches, each with its name, as one table with a column ``file``.

    Raises
    ------
    ValueError
        The format has no place for such a column.
    """
    one_of("format", format, SEVERAL)
    with written(path) as part:
        SEVERAL[format](found, part)


def _cell(column: Column, value: Any) -> str:
    return format(value.item(), column.text)


def _cells(found: Candidates) -> Iterator[list[str]]:
    """The rows of a text table."""
    for row in zip(*found.columns().values(), strict=True):
        yield [*(_cell(c, value) for c, value in zip(found.COLUMNS, row, strict=True)), repr(found.dm_constant)]


def _rows(found: Candidates) -> list[dict[str, Any]]:
    """A dictionary for each candidate."""
    return [
        {c.name: value.item() for c, value in zip(found.COLUMNS, row, strict=True)}
        for row in zip(*found.columns().values(), strict=True)
    ]


def _csv(table: Table, path: Path) -> None:
    found: Candidates = table.source
    lines = [[*(c.name for c in found.COLUMNS), "dm_constant"], *_cells(found)]
    path.write_text("".join(",".join(cells) + "\n" for cells in lines), encoding="utf-8")


def _csv_several(found: Sequence[tuple[str, Candidates]], path: Path) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["file", *(c.name for c in found[0][1].COLUMNS), "dm_constant"])
        for name, one in found:
            rows.writerows([name, *cells] for cells in _cells(one))


def _ecsv(table: Table, path: Path) -> None:
    table.source.to_table().write(path, format="ascii.ecsv", overwrite=True)


def _ecsv_several(found: Sequence[tuple[str, Candidates]], path: Path) -> None:
    from astropy.table import vstack

    tables = []
    for name, one in found:
        table = one.to_table()
        table.meta = {}
        table.add_column([name] * len(table), name="file", index=0)
        table["file"].description = "file that was searched"
        tables.append(table)
    whole = vstack(tables)
    whole["file"] = whole["file"].astype(str)  # an empty column has the type float
    whole.meta = {"files": [{"file": name, **one.facts()} for name, one in found]}
    whole.write(path, format="ascii.ecsv", overwrite=True)


def _json_object(found: Candidates) -> dict[str, Any]:
    facts = {k: None if v == math.inf else v for k, v in found.facts().items()}  # JSON has no infinity
    return {**facts, "candidates": _rows(found)}


def _json(table: Table, path: Path) -> None:
    path.write_text(json.dumps(_json_object(table.source), indent=1) + "\n", encoding="utf-8")


def _json_several(found: Sequence[tuple[str, Candidates]], path: Path) -> None:
    whole = {"files": [{"file": name, **_json_object(one)} for name, one in found]}
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def _parquet_several(found: Sequence[tuple[str, Candidates]], path: Path) -> None:
    listed = found[0][1].COLUMNS
    units = {c.name: c.unit for c in listed if c.unit}
    codes = np.repeat(np.arange(len(found)), [len(one) for _, one in found])
    columns: dict[str, Any] = {"file": Words(codes, np.array([name for name, _ in found]))}
    columns |= {c.name: np.concatenate([one.columns()[c.name] for _, one in found]) for c in listed}
    facts = json.dumps([{"file": name, **{k: str(v) for k, v in one.facts().items()}} for name, one in found])
    write_parquet(columns, path, units=units, facts={"files": facts})


def _singlepulse(table: Table, path: Path) -> None:
    """A row for each event: DM, S/N, seconds, sample of the middle, width in samples."""
    found: Candidates = table.source
    e = found.events
    lines = [
        "# DM      Sigma      Time (s)     Sample    Downfact",
        *(f"# {line}" for line in (delay_note(found.dm_constant, found.ref_freq), *found.remarks())),
    ]
    for dm, snr, time, sample, width, b in zip(e.dm, e.snr, e.time, e.sample, e.width_samples, e.downsamp, strict=True):
        middle = sample + width * b // 2
        lines.append(f"{dm:7.2f} {snr:7.2f} {time:13.6f} {middle:10d}     {width * b:3d}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cand(table: Table, path: Path) -> None:
    """A row for each candidate: S/N, sample, seconds, log2 width, DM number, DM, members, first and last sample."""
    found: Candidates = table.source
    lines = []
    tsamp = found.observation.tsamp
    for i in range(len(found)):
        width = int(found.width_samples[i] * found.downsamp[i])
        number = int(np.searchsorted((found.dms[1:] + found.dms[:-1]) / 2, found.dm[i]))  # the nearest
        first, last = round(float(found.time_first[i]) / tsamp), round(float(found.time_last[i]) / tsamp)
        sample = int(found.sample[i]) + width // 2
        lines.append(
            f"{found.snr[i]:.4f}\t{sample}\t{found.time[i]:.6f}\t{round(np.log2(width))}\t{number}\t{found.dm[i]:.6g}\t"
            f"{found.members[i]}\t{first}\t{last}"
        )
    path.write_text("\n".join(lines) + ("\n" if lines else ""), encoding="utf-8")


TABLE_FORMATS: dict[str, TableFormat] = {
    kind.name: kind
    for kind in (
        replace(FORMATS["csv"], help="a row for each candidate, and the dispersion constant", write=_csv),
        replace(
            FORMATS["ecsv"], help="the table with units, descriptions and facts of the search (astropy)", write=_ecsv
        ),
        replace(
            FORMATS["json"],
            help="an object with the facts of the search, such as the dispersion constant, and a list of candidates",
            write=_json,
        ),
        replace(
            FORMATS["parquet"],
            help="the table with units (for astropy, too), and facts of the search as metadata; needs pyarrow",
        ),
        TableFormat("singlepulse", "a row for each event, with PRESTO's columns", _singlepulse),
        TableFormat("cand", "a row for each candidate, with Heimdall's columns", _cand),
    )
}
"""Formats of tables of candidates: those of `core.table_files`, and those of other programs.  All give the dispersion
constant, except ``cand``, which has no place for it."""

SEVERAL = {"csv": _csv_several, "ecsv": _ecsv_several, "json": _json_several, "parquet": _parquet_several}
"""Functions that write the candidates of several searches, for the formats with a column ``file``."""
