"""Files of tables: the formats, and how each is written."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from skysieve.core.errors import install_hint
from skysieve.core.files import write_parquet, written

if TYPE_CHECKING:
    from numpy.typing import NDArray

Columns = Mapping[str, "NDArray[Any]"]
Writer = Callable[[Columns, Path, Mapping[str, str], Mapping[str, Any]], None]


@dataclass(frozen=True)
class TableFormat:
    """A format of table files.

    Attributes
    ----------
    name : str
        Its name, which is the ending of its files without the dot.
    help : str
        What it is, in a few words.
    write : callable
        ``write(columns, path, units, facts)``.
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
    """The writer of a format of text, which has no place for units and metadata."""

    def write(columns: Columns, path: Path, units: Mapping[str, str], facts: Mapping[str, Any]) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            print_to(columns, file)

    return write


def _cells(columns: Columns, missing: Any, keep_infinity: bool = False) -> dict[str, list[Any]]:
    """Values of each column as Python objects, `missing` in place of NaN (and of infinity)."""
    gone = math.isnan if keep_infinity else lambda x: not math.isfinite(x)
    return {
        name: [missing if gone(x) else x for x in c.tolist()] if c.dtype.kind == "f" else c.tolist()
        for name, c in columns.items()
    }


def _write_parquet(columns: Columns, path: Path, units: Mapping[str, str], facts: Mapping[str, Any]) -> None:
    write_parquet(columns, path, units=units, facts={name: str(value) for name, value in facts.items()} or None)


def _write_astropy(columns: Columns, path: Path, units: Mapping[str, str], facts: Mapping[str, Any]) -> None:
    from astropy.table import Table

    table = Table({name: (c.astype(str) if c.dtype.kind == "O" else c) for name, c in columns.items()})
    for name, unit in units.items():
        table[name].unit = unit
    if path.suffix.lower() == ".fits":
        table.convert_unicode_to_bytestring()  # astropy writes text as ASCII; bytes keep UTF-8
        table.meta.update({name[:8].upper(): value for name, value in facts.items()})  # the width of a FITS keyword
        table.write(path, format="fits", overwrite=True)
    else:
        table.meta.update(facts)
        table.write(path, format="ascii.ecsv", overwrite=True)


FORMATS: dict[str, TableFormat] = {
    kind.name: kind
    for kind in (
        TableFormat("csv", "comma-separated values, without units", _text_file(_print_csv), "", _print_csv),
        TableFormat("parquet", "Apache Parquet", _write_parquet, "pyarrow"),
        TableFormat("fits", "FITS binary table", _write_astropy),
        TableFormat("ecsv", "astropy's enhanced CSV", _write_astropy),
        TableFormat("json", "a list of rows, each an object, without units", _text_file(_print_json), "", _print_json),
    )
}


def check_format(path: str | os.PathLike[str], wanted: str | None = None) -> TableFormat:
    """The format of a file: the one that is named, or that of the file's ending.

    Raises
    ------
    ValueError
        There is no such format.
    ModuleNotFoundError
        The format needs a package that is not installed.
    """
    name = Path(path).suffix.lower().removeprefix(".") if wanted is None else wanted
    if name not in FORMATS:
        endings = ", ".join(f".{known}" for known in FORMATS)
        raise ValueError(f"path={os.fspath(path)!r}: expected a name that ends in one of {endings}")
    kind = FORMATS[name]
    if kind.package and find_spec(kind.package) is None:
        raise ModuleNotFoundError(f"writing .{name} needs {kind.package}: {install_hint(kind.package)}")
    return kind


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
        Metadata of the table; likewise.
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
        kind.write(columns, part, units or {}, facts or {})


def table_bytes(columns: Columns, format: str, *, units: Mapping[str, str] | None = None) -> bytes:
    """The content of a table file, for standard output; formats of text are made without a disk."""
    kind = check_format("-", format)
    if kind.print_to is not None:
        text = io.StringIO(newline="")
        kind.print_to(columns, text)
        return text.getvalue().encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"table.{format}"
        write_table(columns, path, units=units)
        return path.read_bytes()
