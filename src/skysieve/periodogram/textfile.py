"""Plain-text tables: comma, semicolon, tab or space separated, with a header, without one, or with one behind ``#``.

A clean file goes through NumPy's C reader.  Where that stumbles (empty cells, "null", a bad cell)
the rows are read one at a time, missing cells become NaN, and the first bad one is named by its line.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

from skysieve.periodogram.colnames import LABELS, NUMERIC, ROLES, Columns, Wanted, by_count, choose

if TYPE_CHECKING:
    from numpy.typing import NDArray

MISSING = frozenset({"", "nan", "na", "n/a", "null", "none", "--", "-", "...", "*"})


class BadFile(ValueError):
    """A file that cannot be read as light curves; the message is one line for the user."""


@dataclass(frozen=True)
class Layout:
    """What the first lines of a text table tell."""

    delimiter: str | None
    """None: any run of spaces or tabs."""
    header: tuple[str, ...] | None
    skip: int
    """Lines before the first row of data."""
    first: tuple[str, ...]
    """Cells of the first row of data."""


def open_text(path: Path) -> TextIO:
    """Open a plain or gzipped text file."""
    with path.open("rb") as f:
        zipped = f.read(2) == b"\x1f\x8b"
    if zipped:
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _delimiter(line: str) -> str | None:
    for d in (",", ";", "\t", "|"):
        if d in line:
            return d
    return None


def split(line: str, delimiter: str | None) -> list[str]:
    """Cells of one line, without the spaces round them."""
    if delimiter is None:
        return line.split()
    if '"' in line:
        return [c.strip() for c in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))]
    return [c.strip() for c in line.split(delimiter)]


def sniff(lines: Iterator[str]) -> Layout:
    """Delimiter, header and first row of a table from its first lines.

    >>> sniff(iter(["# made by hand", "#MJD Mag Err", "48823.4 -6.1 0.2"])).header
    ('MJD', 'Mag', 'Err')
    """
    comment = ""
    header: tuple[str, ...] | None = None
    for n, raw in enumerate(lines):
        line = raw.strip()
        if not line:
            continue
        if line.startswith("#"):
            comment = line.lstrip("#").strip() or comment
            continue
        delimiter = _delimiter(line)
        cells = tuple(split(line, delimiter))
        if header is None and not any(_number(c) for c in cells):
            header = cells
            continue
        if header is None and comment:
            names = tuple(split(comment, _delimiter(comment)))
            if len(names) == len(cells) and not any(_number(c) for c in names):
                header = names
        return Layout(delimiter, header, n, cells)
    raise BadFile("has a header but no rows" if header else "is empty")


def _first_is_id(layout: Layout, column: Sequence[str]) -> bool:
    """Whether the first column of a table without a header names objects: text, or whole numbers that repeat."""
    if len(layout.first) < 3:
        return False
    if not all(_number(c) for c in column):
        return True
    whole = all(float(c).is_integer() for c in column)
    return whole and len(set(column)) <= max(1, len(column) // 2)


def read_text(path: Path, wanted: Wanted) -> tuple[list[str], Columns, dict[str, NDArray[np.generic]]]:
    """Read the columns of a text table that a light curve needs.

    Returns
    -------
    names : list of str
        All columns of the file.
    columns : Columns
        Those taken.
    data : dict
        Arrays by role: "time", "mag", "err", "r", "delta", "phase" float64; "id" and "band" int64 or str.

    Raises
    ------
    BadFile
        Empty, not text, ragged rows, or a cell that is not a number; the message names the line.
    MissingColumn
        A column is not there.
    """
    try:
        with open_text(path) as f:
            layout = sniff(f)
        if any("\x00" in c for c in layout.first):
            raise BadFile("is not a text table")
        if layout.header is not None:
            names = list(layout.header)
            columns = choose(names, wanted)
        else:
            with open_text(path) as f:
                head = [split(s, layout.delimiter)[0] for _, s in zip(range(2000), _data(f, layout), strict=False)]
            names, columns = by_count(len(layout.first), _first_is_id(layout, head), wanted)
        data = _fast(path, layout, columns) if _even(path, layout, len(names)) else None
        if data is None:
            data = _careful(path, layout, names, columns)
    except UnicodeDecodeError:
        raise BadFile("is not a text table in UTF-8 (nor FITS, Parquet or ECSV)") from None
    return names, columns, data


def _data(f: TextIO, layout: Layout) -> Iterator[str]:
    for n, line in enumerate(f):
        if n >= layout.skip and line.strip() and not line.lstrip().startswith("#"):
            yield line


def _even(path: Path, layout: Layout, n: int) -> bool:
    """Whether every row has as many cells as there are columns, as far as counting tells."""
    with open_text(path) as f:
        if layout.delimiter is None:
            return all(len(line.split()) == n for line in _data(f, layout))
        return all(line.count(layout.delimiter) == n - 1 for line in _data(f, layout))


def _fast(path: Path, layout: Layout, columns: Columns) -> dict[str, NDArray[np.generic]] | None:
    """The whole file through ``numpy.loadtxt``; None where it needs more care."""
    numeric = [r for r in NUMERIC if getattr(columns, r) is not None]
    data: dict[str, NDArray[np.generic]] = {}
    try:
        with open_text(path) as f:
            block = np.loadtxt(
                f, delimiter=layout.delimiter, skiprows=layout.skip, ndmin=2, comments="#", quotechar='"',
                usecols=[getattr(columns, r) for r in numeric],
            )  # fmt: skip
        for i, role in enumerate(numeric):
            data[role] = np.ascontiguousarray(block[:, i])
        for role in LABELS:
            at = getattr(columns, role)
            if at is not None:
                with open_text(path) as f:
                    cells = np.loadtxt(
                        f, dtype=str, delimiter=layout.delimiter, skiprows=layout.skip, ndmin=1, comments="#",
                        quotechar='"', usecols=at,
                    )  # fmt: skip
                data[role] = tidy_labels(np.char.strip(cells))
    except ValueError:
        return None
    return data if len({len(a) for a in data.values()}) == 1 else None


def tidy_labels(cells: NDArray[np.str_]) -> NDArray[np.generic]:
    """Labels as int64 where every one is a plain whole number (no leading zeros), else as they are."""
    try:
        whole = cells.astype(np.int64)
    except (ValueError, OverflowError):
        return cells
    return whole if np.array_equal(whole.astype(cells.dtype), cells) else cells


def _careful(path: Path, layout: Layout, names: list[str], columns: Columns) -> dict[str, NDArray[np.generic]]:
    """Row by row: missing cells become NaN, the first bad line is named."""
    roles = [r for r in ROLES if getattr(columns, r) is not None]
    at = [(r, getattr(columns, r)) for r in roles]
    cells: dict[str, list[float]] = {r: [] for r in NUMERIC if r in roles}
    labels: dict[str, list[str]] = {r: [] for r in LABELS if r in roles}
    with open_text(path) as f:
        for n, line in enumerate(f, start=1):
            if n <= layout.skip or not line.strip() or line.lstrip().startswith("#"):
                continue
            row = split(line.rstrip("\r\n"), layout.delimiter)
            if len(row) == len(names) + 1 and not row[-1]:
                row.pop()  # a delimiter at the end of the line
            if len(row) != len(names):
                raise BadFile(f"line {n} has {len(row)} cells, {len(names)} expected")
            for role, i in at:
                cell = row[i]
                if role in labels:
                    labels[role].append(cell)
                    continue
                try:
                    cells[role].append(float(cell))
                except ValueError:
                    if cell.casefold() not in MISSING:
                        raise BadFile(f"line {n}: {cell!r} in column {names[i]!r} is not a number") from None
                    cells[role].append(np.nan)
    data: dict[str, NDArray[np.generic]] = {r: np.array(v, np.float64) for r, v in cells.items()}
    return data | {r: tidy_labels(np.array(v, dtype=str)) for r, v in labels.items()}
