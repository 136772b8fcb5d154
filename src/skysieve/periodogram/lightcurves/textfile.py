"""Plain-text tables: comma, semicolon, tab or space separated, with a header, without one, or with one behind ``#``.

A large file is read by pyarrow, a small one by NumPy.  A file that they refuse (limits, repeated headers, a bad cell)
is read one row at a time: missing cells become NaN, and the first bad cell is named by its line.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

import numpy as np

from skysieve.periodogram.lightcurves.choose_columns import by_count, choose, hints_of
from skysieve.periodogram.lightcurves.column_names import FLAG, LABELS, MISSING, BadFile, Columns, Wanted, is_label

from .column_notes import BLOCK_ROWS, BLOCKS
from .table_columns import (
    CLOCK,
    COMMA,
    DATE,
    DOUBLE,
    THOUSANDS,
    BadCell,
    date_of,
    is_number,
    text_columns,
    text_numbers,
    tidy_labels,
)
from .units import UNITS_OF_TIME, mjd

if TYPE_CHECKING:
    from numpy.typing import NDArray

csv.field_size_limit(2**31 - 1)
COMMENT = "#"
"""Beginning of a line that is no row."""
RULE = re.compile(r"[-=+|,;\s]*")
"""A line of dashes under the names of columns."""
RDB_TYPE = re.compile(r"\d*[NSMnsm][<>]?")
"""A cell of the second line of an RDB table, which gives the width and type of a column."""
CELL = re.compile(r'"((?:[^"]|"")*)"(?=\s|$)|(\S+)')
"""A cell between spaces: in double quotes, or without any."""
LONGEST = 80
"""Number of characters of a cell that are examined."""
LARGE = 4_000_000
"""Number of bytes above which pyarrow saves more time than its import takes."""
BYTES = {"utf-8-sig": "utf8", "cp1252": "cp1252"}
"""Encodings with a byte for each ASCII character, and pyarrow's names of them."""
NULLS = sorted({form for word in MISSING for form in (word, word.upper(), word.capitalize())} | {"NaN", "NaT"})


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
    units: tuple[str, ...] = ()
    """Cells of the line of units under the header; empty without one."""
    encoding: str = "utf-8-sig"

    @property
    def comma(self) -> bool:
        """Whether numbers have a comma in place of the decimal point."""
        commas = [c for c in self.first if COMMA.fullmatch(c)]
        return bool(commas) and (self.delimiter != "," or any(not THOUSANDS.fullmatch(c) for c in commas))


@dataclass(frozen=True)
class TextTable:
    """The content of a text table.

    ``data`` has an array for each role: "time", "mag", "err", "r", "delta", "phase", "flux", "flux_err" float64; "id",
    "band" and flags int64 or str; "limit" bool, which says where a cell is like ``>16.2``.  ``time_unit`` is "dates"
    where times were dates, and are now Modified Julian Dates.
    """

    names: list[str]
    columns: Columns
    data: dict[str, NDArray[Any]]
    time_unit: str = ""
    notes: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    """Cells of the line of units under the header; empty without one."""


def _packed(path: Path) -> bool:
    """Whether a file is gzipped."""
    with path.open("rb") as f:
        return f.read(2) == b"\x1f\x8b"


def unpacked(path: Path) -> IO[bytes]:
    """Open a plain or gzipped file."""
    return cast("IO[bytes]", gzip.open(path)) if _packed(path) else path.open("rb")


def encoding_of(head: bytes) -> str:
    """Encoding of a text from its first bytes: UTF-8, UTF-16 or UTF-32.

    Raises
    ------
    BadFile
        The bytes are no text.

    >>> encoding_of(b"mjd,mag"), encoding_of("mjd,mag".encode("utf-16-be"))
    ('utf-8-sig', 'utf-16-be')
    """
    if head.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        return "utf-32"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    if b"\0" not in head:
        return "utf-8-sig"
    even, odd = head[::2], head[1::2]
    if odd.count(0) > 0.9 * len(odd) and 0 not in even:
        return "utf-16-le"
    if even.count(0) > 0.9 * len(even) and 0 not in odd:
        return "utf-16-be"
    raise BadFile("is not a text table")


def open_text(path: Path, encoding: str) -> TextIO:
    """Open a plain or gzipped text file."""
    if _packed(path):
        return gzip.open(path, "rt", encoding=encoding, newline="")
    return path.open(encoding=encoding, newline="")


def _delimiter(line: str, header: tuple[str, ...] | None = None, of_header: str | None = None) -> str | None:
    """Delimiter of a line; that of the header where it gives as many cells."""
    found = [d for d in (",", ";", "\t", "|") if d in line]
    if header and of_header in found and len(split(line, of_header)) in (len(header), len(header) + 1):
        return of_header
    if "," in found:  # in numbers, where something else divides the cells?
        for d in (*found[1:], None):
            cells = split(line, d)
            commas = [c for c in cells if "," in c]
            if len(cells) > 1 and commas and all(COMMA.fullmatch(c) for c in commas):
                return d
    return found[0] if found else None


def split(line: str, delimiter: str | None) -> list[str]:
    """Cells of one line, without surrounding spaces."""
    if delimiter is None and '"' in line:
        return [(quoted.replace('""', '"') or bare).strip() for quoted, bare in CELL.findall(line)]
    if delimiter is None:
        return line.split()
    if '"' in line:
        return [c.strip() for c in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))]
    return [c.strip() for c in line.split(delimiter)]


def _has_value(cells: Sequence[str]) -> bool:
    return any(is_number(c) or COMMA.fullmatch(c) for c in cells)


def _is_type_line(cells: Sequence[str]) -> bool:
    """Whether these are the types of an RDB table."""
    return len(cells) > 1 and all(RDB_TYPE.fullmatch(c) for c in cells)


def sniff(lines: Iterator[str]) -> Layout:
    """Delimiter, header and first row of a table from its first lines.

    >>> sniff(iter(["# made by hand", "#MJD Mag Err", "48823.4 -6.1 0.2"])).header
    ('MJD', 'Mag', 'Err')
    """
    comment = ""
    header: tuple[str, ...] | None = None
    of_header: str | None = None
    below: Layout | None = None  # a line without a number under the header: units, or the first row
    for n, raw in enumerate(lines):
        line = raw.strip()
        if not line:
            continue
        if line.startswith(COMMENT) or (header is None and line.startswith("!")):
            comment = line.lstrip(f"{COMMENT}!").strip() or comment
            continue
        units = below.first if below is not None else ()
        if header is not None and "-" in line and RULE.fullmatch(line):
            continue
        delimiter = _delimiter(line, header, of_header)
        cells = tuple(split(line, delimiter))
        if header is not None and below is None and _is_type_line(cells):
            continue
        has_value = _has_value(cells)
        if below is not None:
            if has_value and not any(c.isdigit() for cell in units for c in cell):
                return Layout(delimiter, header, n, cells, units)
            if has_value and below.skip < n - 1:  # a line of dashes followed
                return Layout(delimiter, header, n, cells, units)
            return below
        if not has_value:
            if header is None:
                header, of_header = cells, delimiter
            else:
                below = Layout(delimiter, header, n, cells)
            continue
        if header is None and comment:
            names = tuple(split(comment, _delimiter(comment)))
            if len(names) == len(cells) and not any(is_number(c) for c in names):
                header = names
        return Layout(delimiter, header, n, cells)
    if below is not None:
        return below
    raise BadFile("has a header but no rows" if header else "is empty")


def _first_is_id(layout: Layout, column: Sequence[str]) -> bool:
    """Whether the first column of a table without a header names objects: text, or whole numbers that repeat."""
    if len(layout.first) < 3 or all(date_of(c) is not None or COMMA.fullmatch(c) for c in column):
        return False
    if not all(is_number(c) for c in column):
        return True
    whole = all(not DOUBLE.fullmatch(c) and float(c).is_integer() for c in column)
    return whole and len(set(column)) <= max(1, len(column) // 2)


def read_text(path: Path, wanted: Wanted) -> TextTable:
    """Read the columns of a text table that a light curve needs.

    Text that is not UTF-8 is read as UTF-16 or UTF-32 if its first bytes say so, else as Windows-1252, which contains
    Latin-1.

    Raises
    ------
    BadFile
        Empty, not text, ragged rows, or a cell that is not a number; the message names the line.
    MissingColumn
        A column does not exist.
    """
    with unpacked(path) as f:
        head = f.read(65536)
    encoding = encoding_of(head)
    try:
        return _read(path, wanted, encoding)
    except UnicodeError:
        if encoding != "utf-8-sig" or re.search(rb"[\x00-\x08\x0e-\x1f]", head):
            raise BadFile("is not a text table (nor FITS, VOTable, Parquet or JSON)") from None
    try:
        table = _read(path, wanted, "cp1252")
    except UnicodeError:
        raise BadFile("is not text in UTF-8, UTF-16 or Latin-1") from None
    return replace(table, notes=(*table.notes, "the text is not UTF-8, and was read as Latin-1"))


def _read(path: Path, wanted: Wanted, encoding: str) -> TextTable:
    notes: list[str] = []
    with open_text(path, encoding) as f:
        layout = replace(sniff(f), encoding=encoding)
    if layout.header is not None:
        names = list(layout.header)
        even, rows = _look(path, layout, len(names))
        columns = choose(names, wanted, lambda i: rows[:, i])
        notes = hints_of(names, columns, lambda i: rows[:, i], wanted)
    else:
        with open_text(path, encoding) as f:
            head = [split(s, layout.delimiter)[0] for _, s in zip(range(2000), _data(f, layout), strict=False)]
        names, columns = by_count(len(layout.first), _first_is_id(layout, head), wanted)
        even, _ = _look(path, layout, len(names))
    clock, found = _clock(layout, columns), None
    if clock is None:
        if even is None and (found := _by_arrow(path, layout, names, columns)) is None:
            even = _look(path, layout, len(names), count=True)[0]
        if even and (fast := _fast(path, layout, columns)) is not None:
            found = fast, False
    data, dates = found or _careful(path, layout, names, columns, clock)
    unit = "dates" if dates else _scaled(data, _unit_of_times(layout, columns))
    return TextTable(names, columns, data, unit, tuple(notes), layout.units)


def _unit_of_times(layout: Layout, columns: Columns) -> str:
    """The unit of the times that a line under the header names; "" if there is none that is known."""
    unit = layout.units[columns.time].casefold() if columns.time < len(layout.units) else ""
    return UNITS_OF_TIME.get(unit, "")


def _scaled(data: dict[str, NDArray[Any]], unit: str) -> str:
    """Convert the times to days; returns the unit."""
    if unit and UNITS_OF_TIME[unit].days != 1:
        data["time"] = data["time"] * UNITS_OF_TIME[unit].days
    return unit


def _clock(layout: Layout, columns: Columns) -> tuple[int, int] | None:
    """Columns of the date and the time of day, where two neighbouring columns hold these; None otherwise."""
    at, n = columns.time, min(len(layout.first), len(layout.header or ()))
    if at >= n:
        return None
    cells, used = layout.first, set(columns.parts().values()) - {at}
    for date, clock in ((at, at + 1), (at - 1, at)):
        if date < 0 or clock >= n or {date, clock} & used or len(cells[date]) > 10:
            continue
        if date_of(cells[date]) is not None and CLOCK.fullmatch(cells[clock]):
            return date, clock
    return None


def _is_row(line: str) -> bool:
    """Whether a line is neither empty nor a comment."""
    return bool(line.strip()) and not line.lstrip().startswith(COMMENT)


def _data(f: TextIO, layout: Layout) -> Iterator[str]:
    return (line for n, line in enumerate(f) if n >= layout.skip and _is_row(line))


def _look(path: Path, layout: Layout, n: int, count: bool = False) -> tuple[bool | None, NDArray[np.str_]]:
    """Whether every row has a cell for each column, by counting delimiters; and a sample of the rows.

    The rows are runs at equal distances, so that the sample has many rows of an object.  Delimiters of a file that
    pyarrow may read are not counted, except with ``count``; the answer is then None.
    """
    delimiter = layout.delimiter
    large = not count and path.stat().st_size > LARGE and delimiter is not None and find_spec("pyarrow") is not None
    if large and layout.encoding in BYTES and not _packed(path):
        return None, _cells(_seek_rows(path, layout), n, delimiter)
    blocks: list[list[str]] = []
    stride, even = 1, True
    with open_text(path, layout.encoding) as f:
        for k, line in enumerate(_data(f, layout)):
            even = even and (
                len(split(line, None)) == n if delimiter is None else large or line.count(delimiter) == n - 1
            )
            block, row = divmod(k, BLOCK_ROWS)
            if block % stride:
                continue
            if row == 0:
                if len(blocks) == 2 * BLOCKS:
                    blocks, stride = blocks[::2], 2 * stride
                    if block % stride:
                        continue
                blocks.append([])
            blocks[-1].append(line)
    rows = _cells([line for block in blocks for line in block], n, delimiter)
    return (None if large else even), rows


def _cells(lines: Sequence[str], n: int, delimiter: str | None) -> NDArray[np.str_]:
    """Cells of the rows that have ``n`` of them."""
    rows = [split(line.rstrip("\r\n"), delimiter) for line in lines]
    cells = [[cell[:LONGEST] for cell in row] for row in rows if len(row) == n]
    return np.array(cells or np.empty((0, n)), dtype=str)


def _seek_rows(path: Path, layout: Layout) -> list[str]:
    """Runs of rows at equal distances in a large file, without reading what lies between them."""
    size, lines = path.stat().st_size, []
    with path.open("rb") as f:
        for _ in range(layout.skip):
            f.readline()
        start = f.tell()
        for k in range(BLOCKS):
            f.seek(start + k * (size - start) // BLOCKS)
            if k:
                f.readline()  # the rest of a row
            lines += [f.readline() for _ in range(BLOCK_ROWS)]
    return [line for line in (line.decode(layout.encoding) for line in lines) if _is_row(line)]


def _by_arrow(
    path: Path, layout: Layout, names: list[str], columns: Columns
) -> tuple[dict[str, NDArray[Any]], bool] | None:
    """Read the file by pyarrow; None if it has rows that pyarrow refuses.  Returns what `_careful` returns."""
    import pyarrow as pa

    if layout.encoding not in BYTES or _has_comments(path, layout.skip):
        return None
    parts = columns.parts()
    first = layout.first
    number, text = pa.float64(), pa.dictionary(pa.int32(), pa.string())
    types = {str(at): text if is_label(role) else number for role, at in parts.items()}
    dates = columns.time < len(first) and DATE.fullmatch(first[columns.time]) is not None
    if dates:
        types[str(columns.time)] = pa.timestamp("ns", "UTC" if first[columns.time].endswith("Z") else None)
    table = _arrow_table(path, layout, len(names), types)
    if table is None:  # perhaps limits: values and errors as text
        types |= {str(parts[role]): text for role in ("mag", "err") if role in parts}
        table = _arrow_table(path, layout, len(names), types)
    if table is None:
        return None
    data: dict[str, NDArray[Any]] = {}
    limits = np.zeros(table.num_rows, bool)
    for role, at in parts.items():
        column = table.column(str(at))
        table = table.drop_columns(str(at))  # the memory of Arrow's copy is free once the column is converted
        if types[str(at)] != text:
            values = column.to_numpy()
            data[role] = mjd(values) if values.dtype.kind == "M" else values
            continue
        whole = column.unify_dictionaries().combine_chunks()
        whole = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
        words, codes = np.char.strip(np.array(whole.dictionary.to_pylist(), dtype=str)), whole.indices.to_numpy()
        if is_label(role):
            if np.char.startswith(words, COMMENT).any() or (np.char.find(words, '"') >= 0).any():
                return None  # a comment behind spaces, or a quote behind a space
            data[role] = tidy_labels(words)[codes] if len(words) else words
            continue
        try:
            found = text_numbers(names[at], words, role, layout.delimiter != "," or layout.comma)
        except BadCell:
            return None
        data[role] = found.values[codes]
        limits |= found.limits[codes]
    if limits.any():
        data["limit"] = limits
    return data, dates


def _arrow_table(path: Path, layout: Layout, width: int, types: dict[str, Any]) -> Any:
    """Columns of these types, which are named by their positions; None if pyarrow refuses the file."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    options = {
        "read_options": arrow_csv.ReadOptions(
            skip_rows=layout.skip, column_names=[str(i) for i in range(width)], encoding=BYTES[layout.encoding]
        ),
        "parse_options": arrow_csv.ParseOptions(delimiter=layout.delimiter),
        "convert_options": arrow_csv.ConvertOptions(
            include_columns=list(types), column_types=types, null_values=NULLS,
            decimal_point="," if layout.comma else ".",
        ),
    }  # fmt: skip
    try:
        with unpacked(path) as f:
            return arrow_csv.read_csv(pa.PythonFile(f, "r") if isinstance(f, gzip.GzipFile) else str(path), **options)
    except pa.ArrowInvalid:
        return None


def _has_comments(path: Path, skip: int) -> bool:
    """Whether a line after the first ``skip`` is a comment; pyarrow may read it as a row."""
    begins = tuple(f"\n{space}{COMMENT}".encode() for space in ("", " "))
    with unpacked(path) as f:
        for _ in range(skip):
            f.readline()
        end = b""
        while block := f.read(1 << 24):
            chunk = end + block
            if any(beginning in chunk for beginning in begins):
                return True
            end = block[-2:]
    return False


def _fast(path: Path, layout: Layout, columns: Columns) -> dict[str, NDArray[Any]] | None:
    """Read the file by ``numpy.loadtxt``; None if that fails."""
    parts = columns.parts()
    if columns.flags:  # nearly always whole numbers: one pass is enough
        data = _numbers(path, layout, columns, [role for role in parts if role not in LABELS])
        if data is not None:
            return data
    return _numbers(path, layout, columns, [role for role in parts if not is_label(role)])


def _numbers(path: Path, layout: Layout, columns: Columns, numeric: list[str]) -> dict[str, NDArray[Any]] | None:
    """`_fast` with the columns of these roles as numbers, the others as labels."""
    parts = columns.parts()
    data: dict[str, NDArray[Any]] = {}
    try:
        with open_text(path, layout.encoding) as f:
            block = np.loadtxt(
                f, delimiter=layout.delimiter, skiprows=layout.skip, ndmin=2, comments=COMMENT, quotechar='"',
                usecols=[parts[role] for role in numeric],
            )  # fmt: skip
        for i, role in enumerate(numeric):
            data[role] = np.ascontiguousarray(block[:, i])
            if role.startswith(FLAG):
                if not np.array_equal(whole := block[:, i].astype(np.int64), block[:, i]):
                    return None
                data[role] = whole
        for role in set(parts) - set(numeric):
            with open_text(path, layout.encoding) as f:
                cells = np.loadtxt(
                    f, dtype=str, delimiter=layout.delimiter, skiprows=layout.skip, ndmin=1, comments=COMMENT,
                    quotechar='"', usecols=parts[role],
                )  # fmt: skip
            data[role] = tidy_labels(np.char.strip(cells))
    except UnicodeError:
        raise
    except ValueError:
        return None
    return data if len({len(a) for a in data.values()}) == 1 else None


def _careful(
    path: Path, layout: Layout, names: list[str], columns: Columns, clock: tuple[int, int] | None
) -> tuple[dict[str, NDArray[Any]], bool]:
    """Read row by row: missing cells become NaN.  Also whether the times are dates.

    A header may be repeated, as in joined files, also with columns in another order, as in ADES files.
    """
    parts = columns.parts()
    places, width = dict(parts), len(names)
    cells: dict[str, list[str]] = {role: [] for role in parts}
    lines: list[int] = []
    needed = {names[at] for at in parts.values()} if layout.header is not None else set()
    after_header = False
    with open_text(path, layout.encoding) as f:
        for n, line in enumerate(f, start=1):
            bare = line.strip()
            if n <= layout.skip or not bare or bare[0] == COMMENT or (bare[0] == "!" and layout.delimiter == "|"):
                continue
            row = split(line.rstrip("\r\n"), layout.delimiter)
            if needed and needed <= set(row):
                places, width, after_header = {role: row.index(names[at]) for role, at in parts.items()}, len(row), True
                continue
            if after_header:  # perhaps units, types and dashes
                if not any(c.isdigit() for c in bare) or _is_type_line(row):
                    continue
                after_header = False
            if len(row) == width + 1 and not row[-1]:
                row.pop()  # a delimiter at the end of the line
            if len(row) != width:
                raise BadFile(f"line {n} has {len(row)} cells, {width} expected")
            lines.append(n)
            for role, i in places.items():
                cells[role].append(row[i])
            if clock is not None:
                cells["time"][-1] = f"{row[clock[0]]}T{row[clock[1]]}"
    titles, comma = {role: names[at] for role, at in parts.items()}, layout.delimiter != "," or layout.comma
    return text_columns(cells.items(), titles, lambda row: f"line {lines[row]}: ", comma)
