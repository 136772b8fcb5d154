"""Table files: the formats, the packages that they need, and their writers.

A domain supplies its columns.  If a format stores more than these columns, the domain replaces its writer
(`dataclasses.replace`).
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from .errors import install_hint
from .files import write_parquet, written

if TYPE_CHECKING:
    from astropy.table import Table as AstropyTable
    from numpy.typing import NDArray

__all__ = [
    "FORMATS", "Table", "TableFormat", "ascii_text", "check_format", "json_text", "needs_package", "table_bytes",
    "write_table",
]  # fmt: skip

Columns = Mapping[str, "NDArray[Any]"]
_NUMBERS = re.compile(r'\[\n([^][{}"]*)\]')
"""A list of numbers in indented JSON.  The line break is not inside a string: JSON writes it as ``\\n`` there."""


@dataclass(frozen=True)
class Table:
    """A table that is written to a file.

    Attributes
    ----------
    columns : mapping of str to numpy.ndarray
        Of equal length.
    units : mapping of str to str
        Units of some of the columns; CSV and JSON have no place for them.
    facts : mapping of str to str, bool or int
        Metadata of the table; CSV and JSON have no place for them.
    source : object, optional
        The result, for formats that store more of it than the columns.
    """

    columns: Columns
    units: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    source: Any = None


Writer = Callable[[Table, Path], None]


@dataclass(frozen=True)
class TableFormat:
    """A format of table files.

    Attributes
    ----------
    name : str
        Name, which is also the file extension without the dot.
    help : str
        Short description.
    write : callable
        ``write(table, path)``; the file may have any name that ends in `name`.
    package : str
        The optional package that it needs, or "".
    print_to : callable, optional
        ``print_to(columns, file)`` writes it to an open text file.
    """

    name: str
    help: str
    write: Writer
    package: str = ""
    print_to: Callable[[Columns, TextIO], None] | None = None


def _print_csv(columns: Columns, file: TextIO) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*_cells(columns, "", keep_infinity=True).values(), strict=True))


def _print_json(columns: Columns, file: TextIO) -> None:
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*_cells(columns, None).values(), strict=True)]
    json.dump(rows, file, indent=1, allow_nan=False, ensure_ascii=False)
    file.write("\n")


def _text_file(print_to: Callable[[Columns, TextIO], None]) -> Writer:
    """The writer of a text format, which has no place for units and metadata."""

    def write(table: Table, path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            print_to(table.columns, file)

    return write


def _cells(columns: Columns, missing: Any, keep_infinity: bool = False) -> dict[str, list[Any]]:
    """Values of each column as Python objects, `missing` in place of NaN (and of infinity)."""
    gone = math.isnan if keep_infinity else lambda x: not math.isfinite(x)
    return {
        name: [missing if gone(x) else x for x in _numbers(c)] if c.dtype.kind == "f" else c.tolist()
        for name, c in columns.items()
    }


def _numbers(column: NDArray[Any]) -> list[float]:
    """Values of a column; those of float32 get no more digits than they need."""
    return column.tolist() if column.dtype.itemsize == 8 else [float(str(x)) for x in column]


def _write_parquet(table: Table, path: Path) -> None:
    facts = {name: str(value) for name, value in table.facts.items()}
    write_parquet(table.columns, path, units=table.units, facts=facts or None)


def _astropy(table: Table) -> AstropyTable:
    from astropy.table import Table as AstropyTable

    made = AstropyTable({name: (c.astype(str) if c.dtype.kind == "O" else c) for name, c in table.columns.items()})
    for name, unit in table.units.items():
        made[name].unit = unit
    return made


def json_text(value: Any) -> str:
    """Indented JSON with each list of numbers on one line.

    >>> print(json_text({"name": "x", "shape": [2, 3], "gaps": [[0, 1], [5, 9]]}))
    {
     "name": "x",
     "shape": [2, 3],
     "gaps": [
      [0, 1],
      [5, 9]
     ]
    }
    """
    return _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", json.dumps(value, indent=1))


def ascii_text(text: str) -> str:
    """Text for the card of a FITS header: all characters except printable ASCII are escaped.

    >>> ascii_text("smoothed from carte_\u00e9.fits")
    'smoothed from carte_\\\\xe9.fits'
    """
    return "".join(c if " " <= c <= "~" else c.encode("unicode_escape").decode("ascii") for c in text)


def _write_fits(table: Table, path: Path) -> None:
    made = _astropy(table)
    made.convert_unicode_to_bytestring()  # astropy writes text as ASCII; bytes keep UTF-8
    made.meta.update({name[:8].upper(): value for name, value in table.facts.items()})  # the width of a FITS keyword
    made.write(path, format="fits", overwrite=True)


def _write_ecsv(table: Table, path: Path) -> None:
    made = _astropy(table)
    made.meta.update(table.facts)
    made.write(path, format="ascii.ecsv", overwrite=True)


FORMATS: dict[str, TableFormat] = {
    kind.name: kind
    for kind in (
        TableFormat("csv", "comma-separated values, without units", _text_file(_print_csv), "", _print_csv),
        TableFormat("parquet", "Apache Parquet", _write_parquet, "pyarrow"),
        TableFormat("fits", "FITS binary table", _write_fits),
        TableFormat("ecsv", "astropy's enhanced CSV", _write_ecsv),
        TableFormat("json", "a list of rows, each an object, without units", _text_file(_print_json), "", _print_json),
    )
}


def needs_package(kind: TableFormat) -> None:
    """Raise ModuleNotFoundError, before any work, if a format needs a package that is not installed."""
    if kind.package and find_spec(kind.package) is None:
        raise ModuleNotFoundError(f"writing .{kind.name} needs {kind.package}: {install_hint(kind.package)}")


def check_format(
    path: str | os.PathLike[str], wanted: str | None = None, formats: Mapping[str, TableFormat] = FORMATS
) -> TableFormat:
    """The format of a file: `wanted`, or the format of the file's extension.

    Raises
    ------
    ValueError
        There is no such format.
    ModuleNotFoundError
        The format needs a package that is not installed.
    """
    name = Path(path).suffix.lower().removeprefix(".") if wanted is None else wanted
    if name not in formats and wanted is not None:
        raise ValueError(f"format={wanted!r}: expected one of {', '.join(map(repr, formats))}")
    if name not in formats:
        endings = ", ".join(f".{known}" for known in formats)
        raise ValueError(f"path={os.fspath(path)!r}: expected a name that ends in one of {endings}")
    needs_package(formats[name])
    return formats[name]


def write_table(
    columns: Columns,
    path: str | os.PathLike[str],
    *,
    units: Mapping[str, str] | None = None,
    facts: Mapping[str, Any] | None = None,
    format: str | None = None,
) -> None:
    """Write columns of equal length to a file, which appears under its name only when it is complete.

    Parameters
    ----------
    columns : mapping of str to numpy.ndarray
    path : path
    units : mapping of str to str, optional
        Units of some of the columns; CSV and JSON have no place for them.
    facts : mapping of str to str, bool or int, optional
        Metadata of the table; CSV and JSON have no place for them.
    format : str, optional
        One of `FORMATS`; by default the ending of the file's name.

    Raises
    ------
    ValueError
        There is no such format, or the columns differ in length.
    OSError
        The file cannot be written.
    """
    kind = check_format(path, format)
    with written(path) as part:
        kind.write(Table(columns, units or {}, facts or {}), part)


def table_bytes(columns: Columns, format: str, *, units: Mapping[str, str] | None = None) -> bytes:
    """The content of a table file, for standard output; text formats are made in memory."""
    kind = check_format("-", format)
    if kind.print_to is not None:
        text = io.StringIO(newline="")
        kind.print_to(columns, text)
        return text.getvalue().encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"table.{format}"
        write_table(columns, path, units=units)
        return path.read_bytes()
