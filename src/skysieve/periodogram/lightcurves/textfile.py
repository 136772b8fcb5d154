"""Plain-text tables: comma, semicolon, tab or space separated, with a header, without one, or with one behind ``#``.

A clean file goes through NumPy's C reader.  If that fails (empty cells, "null", a bad cell)
the rows are read one at a time, missing cells become NaN, and the first bad one is named by its line.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

from skysieve.periodogram.lightcurves.choose_columns import by_count, choose, hints_of
from skysieve.periodogram.lightcurves.column_names import FLAG, LABELS, BadFile, Columns, Wanted

if TYPE_CHECKING:
    from numpy.typing import NDArray

csv.field_size_limit(2**31 - 1)
RULE = re.compile(r"[-=+|,;\s]*")
"""A line of dashes under the names of columns."""
DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d*)?)?)?Z?")
MJD_EPOCH = np.datetime64("1858-11-17", "ns")
BLOCKS, BLOCK_ROWS = 8, 700
"""Number of rows of each of the 8 to 16 runs of a sample."""
LONGEST = 80
"""Number of characters of a cell that are examined."""
MISSING = frozenset({"", "nan", "na", "n/a", "null", "none", "--", "-", "...", "*"})


@dataclass(frozen=True)
class Layout:
    """The layout of a text table, from its first lines."""

    delimiter: str | None
    """None for any run of spaces or tabs."""
    header: tuple[str, ...] | None
    skip: int
    """Number of lines before the first row of data."""
    first: tuple[str, ...]
    """Cells of the first row of data."""


@dataclass(frozen=True)
class TextTable:
    """What a text table holds.

    ``data`` has an array for each role: "time", "mag", "err", "r", "delta", "phase", "flux", "flux_err" float64; "id",
    "band" and flags int64 or str.  ``limits`` counts cells such as ``>16.2`` where a value is expected.  ``dates``:
    times were dates, and are Modified Julian Dates.
    """

    names: list[str]
    columns: Columns
    data: dict[str, NDArray[np.generic]]
    limits: int = 0
    dates: bool = False
    notes: tuple[str, ...] = ()


def open_text(path: Path) -> TextIO:
    """Open a plain or gzipped text file."""
    with path.open("rb") as f:
        magic = f.read(2)
    if magic == b"\x1f\x8b":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    wide = magic in (b"\xff\xfe", b"\xfe\xff")
    return path.open(encoding="utf-16" if wide else "utf-8-sig", newline="")


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
    """Cells of one line, without surrounding spaces."""
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
    units: Layout | None = None  # a line without a number under the header: of units, if a line of dashes follows
    for n, raw in enumerate(lines):
        line = raw.strip()
        if not line:
            continue
        if line[0] in "{[" and not comment and header is None:
            raise BadFile("looks like JSON; CSV, text, Parquet, FITS, ECSV and VOTable are read")
        if line.startswith("#") or (header is None and line.startswith("!")):
            comment = line.lstrip("#!").strip() or comment
            continue
        if header is not None and "-" in line and RULE.fullmatch(line):
            units = None
            continue
        if units is not None:
            return units
        delimiter = _delimiter(line)
        cells = tuple(split(line, delimiter))
        if header is None and not any(_number(c) for c in cells):
            header = cells
            continue
        if header is not None and not any(_number(c) for c in cells):
            units = Layout(delimiter, header, n, cells)
            continue
        if header is None and comment:
            names = tuple(split(comment, _delimiter(comment)))
            if len(names) == len(cells) and not any(_number(c) for c in names):
                header = names
        return Layout(delimiter, header, n, cells)
    if units is not None:
        return units
    raise BadFile("has a header but no rows" if header else "is empty")


def _first_is_id(layout: Layout, column: Sequence[str]) -> bool:
    """Whether the first column of a table without a header names objects: text, or whole numbers that repeat."""
    if len(layout.first) < 3:
        return False
    if not all(_number(c) for c in column):
        return True
    whole = all(float(c).is_integer() for c in column)
    return whole and len(set(column)) <= max(1, len(column) // 2)


def read_text(path: Path, wanted: Wanted) -> TextTable:
    """Read the columns of a text table that a light curve needs.

    Raises
    ------
    BadFile
        Empty, not text, ragged rows, or a cell that is not a number; the message names the line.
    MissingColumn
        A column does not exist.
    """
    notes: list[str] = []
    try:
        with open_text(path) as f:
            layout = sniff(f)
        if any("\x00" in c for c in layout.first):
            raise BadFile("is not a text table")
        if layout.header is not None:
            names = list(layout.header)
            even, rows = _look(path, layout, len(names))
            columns = choose(names, wanted, lambda i: rows[:, i])
            notes = hints_of(names, columns, lambda i: rows[:, i], wanted)
        else:
            with open_text(path) as f:
                head = [split(s, layout.delimiter)[0] for _, s in zip(range(2000), _data(f, layout), strict=False)]
            names, columns = by_count(len(layout.first), _first_is_id(layout, head), wanted)
            even, _ = _look(path, layout, len(names))
        data = _fast(path, layout, columns) if even else None
        if data is not None:
            return TextTable(names, columns, data, notes=tuple(notes))
        data, limits, dates = _careful(path, layout, names, columns)
    except UnicodeDecodeError:
        raise BadFile("is not a text table in UTF-8 (nor FITS, Parquet or ECSV)") from None
    return TextTable(names, columns, data, limits, dates, tuple(notes))


def _data(f: TextIO, layout: Layout) -> Iterator[str]:
    for n, line in enumerate(f):
        if n >= layout.skip and line.strip() and not line.lstrip().startswith("#"):
            yield line


def _look(path: Path, layout: Layout, n: int) -> tuple[bool, NDArray[np.str_]]:
    """Whether every row seems to have a cell for each column, by counting delimiters; and cells of some rows.

    These are of runs of rows at equal distances, so that a sampled object has many of them.
    """
    kept: list[list[str]] = []
    stride, even, delimiter = 1, True, layout.delimiter
    with open_text(path) as f:
        for k, line in enumerate(_data(f, layout)):
            even = even and (len(line.split()) == n if delimiter is None else line.count(delimiter) == n - 1)
            block, row = divmod(k, BLOCK_ROWS)
            if block % stride:
                continue
            if row == 0:
                if len(kept) == 2 * BLOCKS:
                    kept, stride = kept[::2], 2 * stride
                    if block % stride:
                        continue
                kept.append([])
            kept[-1].append(line)
    rows = [split(line.rstrip("\r\n"), delimiter) for block in kept for line in block]
    cells = [[cell[:LONGEST] for cell in row] for row in rows if len(row) == n]
    return even, np.array(cells or np.empty((0, n)), dtype=str)


def _is_label(role: str) -> bool:
    return role in LABELS or role.startswith(FLAG)


def _fast(path: Path, layout: Layout, columns: Columns) -> dict[str, NDArray[np.generic]] | None:
    """Read the file by ``numpy.loadtxt``; None if that fails."""
    parts = columns.parts()
    if columns.flags:  # nearly always whole numbers: one pass is enough
        data = _numbers(path, layout, columns, [role for role in parts if role not in LABELS])
        if data is not None:
            return data
    return _numbers(path, layout, columns, [role for role in parts if not _is_label(role)])


def _numbers(path: Path, layout: Layout, columns: Columns, numeric: list[str]) -> dict[str, NDArray[np.generic]] | None:
    """`_fast` with the columns of these roles as numbers, the others as labels."""
    parts = columns.parts()
    data: dict[str, NDArray[np.generic]] = {}
    try:
        with open_text(path) as f:
            block = np.loadtxt(
                f, delimiter=layout.delimiter, skiprows=layout.skip, ndmin=2, comments="#", quotechar='"',
                usecols=[parts[role] for role in numeric],
            )  # fmt: skip
        for i, role in enumerate(numeric):
            data[role] = np.ascontiguousarray(block[:, i])
            if role.startswith(FLAG):
                if not np.array_equal(whole := block[:, i].astype(np.int64), block[:, i]):
                    return None
                data[role] = whole
        for role in set(parts) - set(numeric):
            with open_text(path) as f:
                cells = np.loadtxt(
                    f, dtype=str, delimiter=layout.delimiter, skiprows=layout.skip, ndmin=1, comments="#",
                    quotechar='"', usecols=parts[role],
                )  # fmt: skip
            data[role] = tidy_labels(np.char.strip(cells))
    except ValueError:
        return None
    return data if len({len(a) for a in data.values()}) == 1 else None


def tidy_labels(cells: NDArray[np.str_]) -> NDArray[np.generic]:
    """Labels as int64 if every one is a whole number without leading zeros, else unchanged."""
    try:
        whole = cells.astype(np.int64)
    except (ValueError, OverflowError):
        return cells
    return whole if np.array_equal(whole.astype(cells.dtype), cells) else cells


def _limit(cell: str) -> bool:
    """Whether a cell holds a limit, such as ``>16.2``."""
    return cell[:1] in ("<", ">") and _number(cell[1:].lstrip("="))


def _date(cell: str) -> float | None:
    """Modified Julian Date of a date as ISO 8601 writes it; None for anything else."""
    if DATE.fullmatch(cell) is None:
        return None
    try:
        return float((np.datetime64(cell.rstrip("Z").replace(" ", "T"), "ns") - MJD_EPOCH) / np.timedelta64(1, "D"))
    except ValueError:
        return None


def _careful(
    path: Path, layout: Layout, names: list[str], columns: Columns
) -> tuple[dict[str, NDArray[np.generic]], int, bool]:
    """Read row by row: missing cells become NaN.  Also the number of limits, and whether the times are dates."""
    parts = columns.parts()
    cells: dict[str, list[float]] = {r: [] for r in parts if not _is_label(r)}
    labels: dict[str, list[str]] = {r: [] for r in parts if _is_label(r)}
    limits = dates = n_times = 0
    with open_text(path) as f:
        for n, line in enumerate(f, start=1):
            if n <= layout.skip or not line.strip() or line.lstrip().startswith("#"):
                continue
            row = split(line.rstrip("\r\n"), layout.delimiter)
            if len(row) == len(names) + 1 and not row[-1]:
                row.pop()  # a delimiter at the end of the line
            if len(row) != len(names):
                raise BadFile(f"line {n} has {len(row)} cells, {len(names)} expected")
            for role, i in parts.items():
                cell = row[i]
                if role in labels:
                    labels[role].append(cell)
                    continue
                try:
                    value: float | None = float(cell)
                except ValueError:
                    value = _date(cell) if role == "time" else None
                    dates += value is not None
                    if value is None and role == "mag" and _limit(cell):
                        limits, value = limits + 1, np.nan
                    if value is None and cell.casefold() not in MISSING:
                        raise BadFile(f"line {n}: {cell!r} in column {names[i]!r} is not a number") from None
                n_times += role == "time" and value is not None
                cells[role].append(np.nan if value is None else value)
    if 0 < dates < n_times:
        raise BadFile(f"column {names[columns.time]!r} holds dates and numbers; one of them is expected")
    data: dict[str, NDArray[np.generic]] = {r: np.array(v, np.float64) for r, v in cells.items()}
    return data | {r: tidy_labels(np.array(v, dtype=str)) for r, v in labels.items()}, limits, dates > 0
