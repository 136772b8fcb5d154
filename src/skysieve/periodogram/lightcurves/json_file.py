"""Light curves of a JSON file: a list of records, one record a line, or an object with a list for each column.

A record is a row, or an object whose rows are lists.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .choose_columns import choose, hints_of
from .column_names import BadFile, Columns, MissingColumn, Wanted
from .column_notes import of_difference, sampled
from .table_columns import as_text, left_out_note, text_columns
from .textfile import TextTable, encoding_of, open_text, unpacked

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXPECTED = (
    "a list of records, one record a line, or an object with a list for each column is expected "
    "(of pandas' to_json: orient='records', 'columns', 'split' or 'table')"
)


def read_json(path: Path, wanted: Wanted) -> TextTable:
    """Read the columns of a JSON file that a light curve needs.

    Raises
    ------
    BadFile
        No JSON, JSON of another form, or a cell that is not a number; the message names the line or the record.
    MissingColumn
        A column does not exist.
    """
    with unpacked(path) as head:
        encoding = encoding_of(head.read(65536))
    try:
        with open_text(path, encoding) as f:
            table = _columns(f.read())
    except UnicodeError:
        raise BadFile("is JSON, but not in UTF-8") from None
    names = list(table)
    nested = {name for name, cells in table.items() if any(isinstance(cell, list) for cell in cells)}

    def sample(i: int) -> NDArray[Any]:
        if names[i] in nested:
            return np.empty(0)
        cells = table[names[i]]
        return np.array([as_text(cells[k]) for k in sampled(len(cells))], dtype=str)

    columns = choose(names, wanted, sample)
    data, dates, notes = _values(table, names, columns, nested)
    notes += of_difference(names, columns) if nested else hints_of(names, columns, sample, wanted)
    return TextTable(names, columns, data, "dates" if dates else "", tuple(notes))


def _columns(text: str) -> dict[str, list[Any]]:
    """Columns by name, whatever the form of the JSON text."""
    try:
        whole = json.loads(text)
    except json.JSONDecodeError as e:
        if not e.msg.startswith("Extra data"):
            raise BadFile(f"is damaged JSON: line {e.lineno}: {e.msg}") from None
        return _of_records(_lines(text))
    if isinstance(whole, dict) and not any(isinstance(value, list | dict) for value in whole.values()):
        whole = [whole]  # one line
    if isinstance(whole, dict) and {"columns", "data"} <= set(whole) <= {"columns", "index", "data"}:
        return _of_split(whole["columns"], whole["data"])
    if isinstance(whole, dict):
        lists = [v for v in whole.values() if isinstance(v, list) and v]
        if len(lists) == 1 and all(isinstance(r, dict) for r in lists[0]):  # {"data": [records]}
            whole = lists[0]
    if isinstance(whole, list):
        return _of_records(whole)
    return _of_lists(whole)


def _lines(text: str) -> Iterable[Any]:
    for n, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except json.JSONDecodeError as e:
            raise BadFile(f"line {n} is damaged JSON: {e.msg}") from None


def _of_records(records: Iterable[Any]) -> dict[str, list[Any]]:
    """Columns of records; a record without a name has no value there."""
    table: dict[str, list[Any]] = {}
    n = 0
    for n, record in enumerate(records, start=1):
        if not isinstance(record, dict):
            raise BadFile(f"is JSON of another form: {EXPECTED}")
        for name, value in record.items():
            if name not in table:
                table[name] = [None] * (n - 1)
            table[name].append(value)
        if len(record) < len(table):
            for cells in table.values():
                cells.extend([None] * (n - len(cells)))
    if n == 0:
        raise BadFile("has no rows")
    return table


def _of_split(names: Any, rows: Any) -> dict[str, list[Any]]:
    """Columns of a list of names and a list of rows, as pandas writes a table with ``orient="split"``."""
    lists = isinstance(names, list) and isinstance(rows, list) and all(isinstance(row, list) for row in rows)
    if not lists or any(len(row) != len(names) for row in rows):
        raise BadFile(f"is JSON of another form: {EXPECTED}")
    if not rows:
        raise BadFile("has no rows")
    titles = [str(name) for name in names]
    if twice := next((name for name in titles if titles.count(name) > 1), None):
        raise BadFile(f"has two columns of the name {twice!r}")
    return {name: [row[i] for row in rows] for i, name in enumerate(titles)}


def _of_lists(whole: dict[str, Any]) -> dict[str, list[Any]]:
    """Columns of an object of lists, or of objects with the same keys, as pandas writes a table."""
    dicts = {name: value for name, value in whole.items() if isinstance(value, dict)}
    if dicts and len(dicts) == len(whole) and len({tuple(value) for value in dicts.values()}) == 1:
        if _has_columns(islice(next(iter(dicts.values())), MOST_NAMES)):
            raise BadFile(f"is JSON with an object for each row, or for each star: {EXPECTED}")
        return {name: list(value.values()) for name, value in dicts.items()}
    lists = {name: value for name, value in whole.items() if isinstance(value, list)}
    if not lists:
        raise BadFile(f"is JSON of another form: {EXPECTED}")
    sizes = {len(value) for value in lists.values()}
    if len(sizes) > 1:
        some = ", ".join(f"{name!r} {len(value)}" for name, value in list(lists.items())[:4])
        raise BadFile(f"holds lists of different lengths ({some}): {EXPECTED}")
    n = sizes.pop()
    return {name: value if name in lists else [value] * n for name, value in whole.items()}


MOST_NAMES = 100
"""Keys of an object that are looked at to tell columns from rows: a light curve has few columns."""


def _has_columns(names: Iterable[str]) -> bool:
    """Whether these are names of columns of a light curve, rather than of rows."""
    try:
        choose(list(names), Wanted())
    except MissingColumn:
        return False
    return True


def _values(
    table: dict[str, list[Any]], names: list[str], columns: Columns, nested: set[str]
) -> tuple[dict[str, NDArray[Any]], bool, list[str]]:
    """Values by role, whether the times are dates, and notes on uneven records."""
    parts = columns.parts()
    counts: list[int] | None = None
    uneven: dict[int, str] = {}
    if nested:
        inside = [names[at] for role, at in parts.items() if names[at] in nested]
        if names[columns.time] not in nested or names[columns.mag] not in nested:
            raise MissingColumn(f"found no lists of times and values. The columns are: {', '.join(names)}")
        first = names[columns.time]
        counts = [len(cell) if isinstance(cell, list) else 0 for cell in table[first]]
        for name in inside:
            for i, cell in enumerate(table[name]):
                size = len(cell) if isinstance(cell, list) else 0
                if size != counts[i] and i not in uneven:
                    uneven[i] = f"record {i + 1}: {first!r} holds {counts[i]} values, {name!r} holds {size}"
        if uneven:
            if len(uneven) == len(counts):
                raise BadFile(min(uneven.items())[1])
            keep = [i for i in range(len(counts)) if i not in uneven]
            table = {name: [cells[i] for i in keep] for name, cells in table.items()}
            counts = [counts[i] for i in keep]

    def cells_of(name: str) -> list[str]:
        """Cells of a column, one for each value of the lists."""
        cells = table[name]
        if counts is not None and name in nested:
            cells = [value for cell in cells if isinstance(cell, list) for value in cell]
        elif counts is not None:
            cells = [value for value, n in zip(cells, counts, strict=True) for _ in range(n)]
        return [as_text(cell) for cell in cells]

    titles = {role: names[at] for role, at in parts.items()}
    data, dates = text_columns(
        ((role, cells_of(name)) for role, name in titles.items()), titles,
        lambda row: f"record {row + 1}: " if counts is None else "",
    )  # fmt: skip
    if counts is not None and columns.id is None and len(counts) > 1:
        data["id"] = np.repeat(np.arange(len(counts)), counts)
    return data, dates, left_out_note(list(uneven.values()))
