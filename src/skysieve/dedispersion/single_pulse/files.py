"""Formats of tables of candidates: csv, ecsv, parquet, PRESTO's ``.singlepulse``, Heimdall's ``.cand``."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.files import write_parquet, written
from skysieve.dedispersion.data.write import delay_note

if TYPE_CHECKING:
    from .candidates import Candidates, Column


@dataclass(frozen=True)
class TableFormat:
    """A format of tables of candidates.

    Attributes
    ----------
    help : str
    write : callable
        ``write(candidates, path)``.
    """

    help: str
    write: Callable[[Candidates, Path], None]


def format_of(path: str | os.PathLike[str]) -> str:
    """The format of an output that can be written, from its suffix.

    Raises
    ------
    ValueError
        The suffix is none of `TABLE_FORMATS`.
    """
    suffix = Path(path).suffix.lower()
    if suffix.removeprefix(".") not in TABLE_FORMATS or not suffix:
        raise ValueError(f"{path}: expected a name that ends in {', '.join('.' + name for name in TABLE_FORMATS)}")
    return suffix.removeprefix(".")


def write_candidates(found: Candidates, path: str | os.PathLike[str], format: str | None = None) -> None:
    """Write candidates in one of `TABLE_FORMATS`, by default the one that the suffix names."""
    chosen = TABLE_FORMATS[format or format_of(path)]
    with written(path) as part:
        chosen.write(found, part)


def _cell(column: Column, value: Any) -> str:
    return format(value.item(), column.text)


def _csv(found: Candidates, path: Path) -> None:
    lines = [",".join([*(c.name for c in found.COLUMNS), "dm_constant"])]
    for row in zip(*found.columns().values(), strict=True):
        cells = [_cell(c, value) for c, value in zip(found.COLUMNS, row, strict=True)]
        lines.append(",".join([*cells, repr(found.dm_constant)]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _ecsv(found: Candidates, path: Path) -> None:
    found.to_table().write(path, format="ascii.ecsv", overwrite=True)


def _json(found: Candidates, path: Path) -> None:
    rows = [
        {c.name: value.item() for c, value in zip(found.COLUMNS, row, strict=True)}
        for row in zip(*found.columns().values(), strict=True)
    ]
    facts = {k: None if v == math.inf else v for k, v in found.facts().items()}  # JSON has no infinity
    path.write_text(json.dumps({**facts, "candidates": rows}, indent=1) + "\n", encoding="utf-8")


def _parquet(found: Candidates, path: Path) -> None:
    units = {c.name: c.unit for c in found.COLUMNS if c.unit}
    write_parquet(found.columns(), path, units=units, facts={k: str(v) for k, v in found.facts().items()})


def _singlepulse(found: Candidates, path: Path) -> None:
    """A row for each event: DM, S/N, seconds, sample of the middle, width in samples."""
    e = found.events
    lines = [
        "# DM      Sigma      Time (s)     Sample    Downfact",
        *(f"# {line}" for line in (delay_note(found.dm_constant, found.ref_freq), *found.remarks())),
    ]
    for dm, snr, time, sample, width, b in zip(e.dm, e.snr, e.time, e.sample, e.width_samples, e.downsamp, strict=True):
        middle = sample + width * b // 2
        lines.append(f"{dm:7.2f} {snr:7.2f} {time:13.6f} {middle:10d}     {width * b:3d}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cand(found: Candidates, path: Path) -> None:
    """A row for each candidate: S/N, sample, seconds, log2 width, DM number, DM, members, first and last sample."""
    lines = []
    tsamp = found.observation.tsamp
    for i in range(len(found)):
        width = int(found.width_samples[i] * found.downsamp[i])
        number = int(np.searchsorted(found.dms, found.dm[i]))
        first, last = round(float(found.time_first[i]) / tsamp), round(float(found.time_last[i]) / tsamp)
        sample = int(found.sample[i]) + width // 2
        lines.append(
            f"{found.snr[i]:.4f}\t{sample}\t{found.time[i]:.6f}\t{round(np.log2(width))}\t{number}\t{found.dm[i]:.6g}\t"
            f"{found.members[i]}\t{first}\t{last}"
        )
    path.write_text("\n".join(lines) + ("\n" if lines else ""), encoding="utf-8")


TABLE_FORMATS = {
    "csv": TableFormat("a row for each candidate, and the dispersion constant", _csv),
    "ecsv": TableFormat("the same with units, descriptions and facts of the search (astropy)", _ecsv),
    "json": TableFormat("the same as an object with a list of candidates", _json),
    "parquet": TableFormat("the same with units and facts of the search; needs pyarrow", _parquet),
    "singlepulse": TableFormat("a row for each event, with PRESTO's columns", _singlepulse),
    "cand": TableFormat("a row for each candidate, with Heimdall's columns", _cand),
}
"""Formats of tables of candidates, by the suffix without its dot.  All but ``cand``, which has no room for it, state
the dispersion constant."""
