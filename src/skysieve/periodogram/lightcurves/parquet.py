"""Light curves of a Parquet file: one row an observation, or one row an object with lists of observations.

Lists may be columns of their own (``mjd: list<double>``), as a struct of lists or as a list of structs, the forms
in which nested-pandas and LSDB write them.  The fields of a struct are named ``struct.field``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.periodogram.lightcurves.choose_columns import choose, hints_of
from skysieve.periodogram.lightcurves.column_names import (
    FLAG,
    LABELS,
    MOVING,
    STARS,
    BadFile,
    Columns,
    MissingColumn,
    Wanted,
    plain,
)

from .table_columns import count_limits, holds_dates, labels, numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

Read = tuple[list[str], Columns, "dict[str, NDArray[Any]]", list[str], str, int]


def read_parquet(path: Path, wanted: Wanted) -> Read:
    """Names of all columns, those that are used, their values by role, notes, "dates" or "", and the number of limits.

    See `skysieve.periodogram.lightcurves.io.read_light_curves`.

    Raises
    ------
    BadFile, MissingColumn
        As `read_light_curves`.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise BadFile("is Parquet, which needs pyarrow: pip install 'skysieve[tables]'") from None
    try:
        file = pq.ParquetFile(path)
        schema = file.schema_arrow
        names = [field.name for field in schema if not pa.types.is_nested(field.type)]
        if any(_holds_lists(field.type) for field in schema):
            try:
                return _nested(file, wanted)
            except MissingColumn as nested:
                try:
                    choose(names, wanted)  # lists beside the columns of a flat table
                except MissingColumn:
                    raise nested from None
        sample = _sampler(file, names)
        twice = [name for name in names if names.count(name) > 1]
        try:
            columns = choose(names, wanted, sample)
        except MissingColumn:
            if twice:
                raise BadFile(f"has {names.count(twice[0])} columns of the name {twice[0]!r}") from None
            raise
        needed = list(dict.fromkeys(names[i] for i in columns.parts().values()))
        for name in needed:
            if name in twice:
                raise BadFile(f"has {names.count(name)} columns of the name {name!r}")
        times = sample(columns.time, fractions=True)
        notes = hints_of(names, columns, lambda i: times if i == columns.time else sample(i), wanted)
        table = file.read(columns=needed)
    except (OSError, pa.ArrowException) as e:
        raise BadFile(f"cannot be read as Parquet: {str(e).splitlines()[0]}") from None
    data = {role: _values(table.column(names[i]), names[i], role) for role, i in columns.parts().items()}
    return names, columns, data, notes, _dates(table.column(names[columns.time])), _limits(table, names, columns)


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _dates(times: Any) -> str:
    """The unit of a flat column of times: "dates" or ""."""
    import pyarrow as pa

    if pa.types.is_temporal(times.type) and not pa.types.is_duration(times.type):
        return "dates"
    return "dates" if _is_text(times.type) and holds_dates(times.slice(0, SAMPLE).to_numpy()) else ""


def _limits(table: Any, names: list[str], columns: Columns) -> int:
    """Number of rows with a limit in a column of text that holds values or errors."""
    flat = [table.column(names[i]) for i in (columns.mag, columns.err) if i is not None]
    return max((count_limits(column.to_numpy()) for column in flat if _is_text(column.type)), default=0)


def _sampler(file: Any, names: list[str]) -> Any:
    """Some rows of a column by its position: of the first part of the file, and of one in its middle."""
    import pyarrow as pa

    held: dict[int, NDArray[Any]] = {}
    groups = sorted({0, file.num_row_groups // 2} & set(range(file.num_row_groups)))

    def sample(i: int, fractions: bool = False) -> NDArray[Any]:
        if i not in held and not fractions and pa.types.is_floating(file.schema_arrow.field(i).type):
            held[i] = _without_rows(file, i)
        if i not in held or fractions:
            parts = []
            for group in groups:
                column = file.read_row_group(group, columns=[names[i]]).column(0)
                start = max(0, len(column) // 2 - SAMPLE // 2) if len(column) > SAMPLE else 0
                parts.append(column.slice(start, SAMPLE).to_numpy())
            held[i] = np.concatenate(parts) if parts else np.empty(0)
        return held[i]

    return sample


def _without_rows(file: Any, i: int) -> NDArray[Any]:
    """A column of floats only matters by whether it has values: NaN if not, an empty array if it has."""
    for group in range(file.num_row_groups):
        part = file.metadata.row_group(group)
        known = part.column(i).statistics
        if known is None or not known.has_null_count or known.null_count < part.num_rows:
            return np.empty(0)
    return np.array([np.nan])


SAMPLE = 3000
"""Number of rows that are sampled of each part of the file."""


def _values(column: Any, name: str, role: str) -> NDArray[Any]:
    """A flat column; labels are text where some are missing, but Rubin's ids stay whole numbers (0)."""
    import pyarrow as pa

    if role not in LABELS and not role.startswith(FLAG):
        if pa.types.is_null(column.type):
            return np.full(len(column), np.nan)
        if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us" if pa.types.is_date(column.type) else column.type.unit))
        return numbers(name, column.to_numpy(), role)
    if column.null_count and pa.types.is_integer(column.type) and plain(name) in (STARS, MOVING):
        column = column.fill_null(0)
    elif column.null_count:
        column = column.cast(pa.string()).fill_null("")
    return labels(column.to_numpy())


def _fields(schema: Any) -> tuple[list[str], dict[str, tuple[str, str | None]]]:
    """Names of flat columns, and of lists: the place of each list, ``(column, field of its struct)``."""
    import pyarrow as pa

    flat: list[str] = []
    lists: dict[str, tuple[str, str | None]] = {}
    for field in schema:
        kind = field.type
        if is_list(kind) and pa.types.is_struct(kind.value_type):
            lists |= {f"{field.name}.{child.name}": (field.name, child.name) for child in kind.value_type}
        elif is_list(kind):
            lists[field.name] = (field.name, None)
        elif pa.types.is_struct(kind):
            children = [child for child in kind if is_list(child.type)]
            lists |= {f"{field.name}.{child.name}": (field.name, child.name) for child in children}
        elif not pa.types.is_nested(kind):
            flat.append(field.name)
    return flat, lists


def _holds_lists(kind: Any) -> bool:
    import pyarrow as pa

    return is_list(kind) or (pa.types.is_struct(kind) and any(is_list(child.type) for child in kind))


def is_list(kind: Any) -> bool:
    """Whether an Arrow type is a list, of any kind."""
    import pyarrow as pa

    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _nested(file: Any, wanted: Wanted) -> Read:
    """Read a file with one row for each object."""
    flat, lists = _fields(file.schema_arrow)
    names, columns = _choose_nested(flat, lists, wanted)
    roles = {role: names[i] for role, i in columns.parts().items()}
    table = file.read(columns=sorted({lists[n][0] if n in lists else n for n in roles.values()}))
    data: dict[str, NDArray[Any]] = {}
    counts: NDArray[np.int64] | None = None
    lists_of: dict[str, tuple[NDArray[np.int64], NDArray[Any]]] = {}
    first = dates = ""
    notes: list[str] = []
    for role, name in roles.items():
        if name not in lists:
            continue
        column, child = lists[name]
        length, values = flattened(table.column(column).combine_chunks(), child)
        if counts is None:
            counts, first = length, name
            good = np.ones(len(counts), bool)
        elif (uneven := good & (counts != length)).any():
            i = int(np.argmax(uneven))
            note = f"row {i + 1}: {first!r} holds {counts[i]} values, {name!r} holds {length[i]}"
            good &= ~uneven
            if not good[counts > 0].any():
                raise BadFile(note)
            more = int(uneven.sum()) - 1
            notes.append(f"{note}; it was left out" + (f", and {more:,} like it" if more else ""))
        lists_of[role] = length, _values(values, name, role)
        dates = _dates(values) if role == "time" else dates
    if counts is None:
        raise MissingColumn(f"the lists hold neither times nor values; the columns are: {', '.join(names)}")
    for role, (length, flat_values) in lists_of.items():
        data[role] = flat_values if good.all() else flat_values[np.repeat(good, length)]
    counts = np.where(good, counts, 0)
    for role, name in roles.items():
        if name in lists:
            continue
        whole = _values(table.column(name), name, role)
        data[role] = np.repeat(whole, counts)
    if "id" not in data:
        data["id"] = np.repeat(np.arange(len(counts)), counts)
    empty = int((good & (counts == 0)).sum())
    notes += [f"{empty:,} row{'s' * (empty > 1)} of empty lists left out"] if empty else []
    return names, columns, data, notes, dates, 0


def _choose_nested(
    flat: list[str], lists: dict[str, tuple[str, str | None]], wanted: Wanted
) -> tuple[list[str], Columns]:
    """The columns of the first group of lists that holds a light curve, or of the group that has the user's names."""
    groups: dict[str, list[str]] = {}
    for name, (column, child) in lists.items():
        groups.setdefault(column if child is not None else "", []).append(name)
    named = {plain(n) for n in wanted.named().values()}
    order = sorted(groups, key=lambda g: not any(plain(n) in named for n in groups[g]))
    refused: MissingColumn | None = None
    for group in order:
        names = [*flat, *groups[group]]
        short = [*flat, *(n.rpartition(".")[2] if group else n for n in groups[group])]
        asked: dict[str, Any] = {role: short[names.index(n)] for role, n in wanted.named().items() if n in names}
        try:
            columns = choose(short, replace(wanted, **asked))
        except MissingColumn as e:
            refused = refused or e
            continue
        if columns.time >= len(flat) and columns.mag >= len(flat):
            return names, columns
    raise refused or MissingColumn(f"found no lists of times and values. There are: {', '.join([*flat, *lists])}")


def flattened(column: Any, child: str | None) -> tuple[NDArray[np.int64], Any]:
    """Number of values in each row's list, and all values one after another; lists in lists are joined."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_struct(column.type):
        column = pc.struct_field(column, child)
        child = None
    lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    values = pc.list_flatten(column)
    if child is not None:
        values = pc.struct_field(values, child)
    if is_list(values.type):
        inner, values = flattened(values, None)
        edges = np.concatenate([[0], np.cumsum(inner)])
        lengths = np.diff(edges[np.concatenate([[0], np.cumsum(lengths)])])
        return lengths, values
    return lengths, values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
