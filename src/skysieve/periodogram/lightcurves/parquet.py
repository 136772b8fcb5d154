"""Light curves of a Parquet file: one row an observation, or one row an object with lists of observations.

Lists may be columns of their own (``mjd: list<double>``), as a struct of lists or as a list of structs, the forms
in which nested-pandas and LSDB write them.  The fields of a struct are named ``struct.field``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from skysieve.core.arrays import from_arrow
from skysieve.core.errors import install_hint
from skysieve.periodogram.lightcurves.choose_columns import choose, hints_of
from skysieve.periodogram.lightcurves.column_names import (
    MOVING,
    STARS,
    BadFile,
    Columns,
    MissingColumn,
    Wanted,
    is_label,
    plain,
)

from .column_notes import of_difference
from .table_columns import holds_dates, labels, limits_in, numbers, resolution_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

Read = tuple[list[str], Columns, "dict[str, NDArray[Any]]", list[str], str, float]
Lists = dict[str, tuple[str, str | None]]
"""Columns of lists by name: the column of the file, and the field of its struct."""


def read_parquet(path: Path, wanted: Wanted) -> Read:
    """Names of all columns, those that are used, their values by role, notes, "dates" or "", and the
    resolution of the times.

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
        raise BadFile(f"is Parquet, which needs pyarrow: {install_hint('pyarrow')}") from None
    try:
        file = pq.ParquetFile(path)
        names, columns, lists, notes = chosen_columns(file, wanted)
        if lists:
            return _nested(file, names, columns, lists, notes)
        needed = list(dict.fromkeys(names[i] for i in columns.parts().values()))
        table = file.read(columns=needed)
    except (OSError, pa.ArrowException) as e:
        raise BadFile(f"cannot be read as Parquet: {str(e).splitlines()[0]}") from None
    data = {role: column_values(table.column(names[i]), names[i], role) for role, i in columns.parts().items()}
    times = table.column(names[columns.time])
    data |= _limits(table, names, columns)
    return names, columns, data, notes, _dates(times), resolution(times, data["time"])


def needs_astropy(path: Path) -> bool:
    """Whether astropy wrote columns that it divides in two: times (``time.jd1`` and ``time.jd2``) or masked columns
    (``mag`` and ``mag.mask``)."""
    if find_spec("pyarrow") is None:
        return False
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowException):
        return False
    header = (schema.metadata or {}).get(b"table_meta_yaml", b"")
    return b"astropy.time" in header or b"mask: !astropy.table.SerializedColumn" in header


def units_of(path: Path, names: Sequence[str]) -> list[str]:
    """Units of columns of a file that astropy wrote, as text; "" where there is none."""
    import pyarrow.parquet as pq

    header = (pq.read_schema(path).metadata or {}).get(b"table_meta_yaml")
    if header is None:
        return [""] * len(names)
    from astropy.table.meta import YamlParseError, get_header_from_yaml

    try:
        columns = get_header_from_yaml(header.decode().splitlines())["datatype"]
    except (YamlParseError, KeyError, UnicodeError):
        return [""] * len(names)
    units = {column["name"]: str(column.get("unit", "")) for column in columns}
    return [units.get(name, "") for name in names]


def _dates(times: Any) -> str:
    """The unit of a flat column of times: "dates" or ""."""
    import pyarrow as pa

    if pa.types.is_temporal(times.type) and not pa.types.is_duration(times.type):
        return "dates"
    return "dates" if is_text(times.type) and holds_dates(from_arrow(times.slice(0, SAMPLE))) else ""


def resolution(times: Any, days: NDArray[np.float64]) -> float:
    """See `resolution_of`, for an Arrow column whose values are ``days``."""
    import pyarrow as pa

    return resolution_of(times.type.to_pandas_dtype(), days, days) if pa.types.is_floating(times.type) else 0.0


def _limits(table: Any, names: list[str], columns: Columns) -> dict[str, NDArray[np.bool_]]:
    """See `limits_in`, for the columns of values and errors."""
    flat = [table.column(names[i]) for i in (columns.mag, columns.err) if i is not None]
    return limits_in(from_arrow(column) for column in flat if is_text(column.type))


def chosen_columns(file: Any, wanted: Wanted) -> tuple[list[str], Columns, Lists, list[str]]:
    """Names of the columns of a file, those that are used, the lists among them, and notes on those that are not used.

    There are no lists where each row is an observation: only flat columns are then named.

    Raises
    ------
    BadFile, MissingColumn
        As `read_light_curves`.
    """
    names, lists = fields_of(file.schema_arrow)
    if lists:
        try:
            names_of_all, columns = choose_nested(names, lists, wanted)
            return names_of_all, columns, lists, of_difference(names_of_all, columns)
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
    for i in columns.parts().values():
        if names[i] in twice:
            raise BadFile(f"has {names.count(names[i])} columns of the name {names[i]!r}")
    times = sample(columns.time, fractions=True)
    return names, columns, {}, hints_of(names, columns, lambda i: times if i == columns.time else sample(i), wanted)


def _sampler(file: Any, names: list[str]) -> Any:
    """Some rows of a flat column by its position in ``names``: of the first part of the file, and of its middle."""
    import pyarrow as pa

    held: dict[int, NDArray[Any]] = {}
    groups = sorted({0, file.num_row_groups // 2} & set(range(file.num_row_groups)))
    floats = {field.name for field in file.schema_arrow if pa.types.is_floating(field.type)}

    def sample(i: int, fractions: bool = False) -> NDArray[Any]:
        if i not in held and not fractions and names[i] in floats:
            held[i] = _without_rows(file, names[i])
        if i not in held or fractions:
            parts = [_middle(file, group, names[i]) for group in groups]
            held[i] = np.concatenate(parts) if parts else np.empty(0)
        return held[i]

    return sample


def _middle(file: Any, group: int, name: str) -> NDArray[Any]:
    """Some rows in the middle of a row group; of a large one, no more than a batch is in memory at a time."""
    n = file.metadata.row_group(group).num_rows
    at = max(0, n // 2 - SAMPLE // 2) if n > SAMPLE else 0
    for batch in file.iter_batches(BATCH, row_groups=[group], columns=[name]):
        if at < batch.num_rows:
            return from_arrow(batch.column(0).slice(at, SAMPLE))
        at -= batch.num_rows
    return np.empty(0)


def _without_rows(file: Any, name: str) -> NDArray[Any]:
    """For a column of floats, only whether it has values matters: return NaN if not, otherwise an empty array."""
    leaves = [file.schema.column(i) for i in range(len(file.schema))]
    at = next(i for i, leaf in enumerate(leaves) if leaf.path == leaf.name == name)
    for group in range(file.num_row_groups):
        part = file.metadata.row_group(group)
        known = part.column(at).statistics
        if known is None or not known.has_null_count or known.null_count < part.num_rows:
            return np.empty(0)
    return np.array([np.nan])


BATCH = 2**20
SAMPLE = 3000
"""Number of rows that are sampled of each part of the file."""


def column_values(column: Any, name: str, role: str) -> NDArray[Any]:
    """A flat column; labels become text if some are missing, but Rubin's ids stay whole numbers, with 0 if missing."""
    import pyarrow as pa

    if not is_label(role):
        if pa.types.is_null(column.type):
            return np.full(len(column), np.nan)
        if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us" if pa.types.is_date(column.type) else column.type.unit))
        return numbers(name, from_arrow(column), role)
    if column.null_count and pa.types.is_integer(column.type) and plain(name) in (STARS, MOVING):
        column = column.fill_null(0)
    elif column.null_count and not pa.types.is_floating(column.type):
        column = column.cast(pa.string()).fill_null("")
    return labels(from_arrow(column), name if role == "id" else "")


def fields_of(schema: Any) -> tuple[list[str], Lists]:
    """Names of flat columns, and of lists: the place of each list, ``(column, field of its struct)``."""
    import pyarrow as pa

    flat: list[str] = []
    lists: Lists = {}
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


def is_list(kind: Any) -> bool:
    """Whether an Arrow type is a list, of any kind."""
    import pyarrow as pa

    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is text, also as a dictionary."""
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _nested(file: Any, names: list[str], columns: Columns, lists: Lists, notes: list[str]) -> Read:
    """Read a file with one row for each object."""
    roles = {role: names[i] for role, i in columns.parts().items()}
    table = file.read(columns=sorted({lists[n][0] if n in lists else n for n in roles.values()}))
    rows = unpacked(table, roles, lists)
    if rows.uneven and not rows.counts.any():
        raise BadFile(list(rows.uneven.values())[-1].text)
    data = {role: column_values(values, roles[role], role) for role, values in rows.values.items()}
    for role, name in roles.items():
        if name not in lists:
            data[role] = np.repeat(column_values(table.column(name), name, role), rows.counts)
    if "id" not in data:
        data["id"] = np.repeat(np.arange(len(rows.counts)), rows.counts)
    notes = [*notes, *notes_on_rows(rows.uneven.values(), rows.n_empty)]
    times = rows.values["time"]
    return names, columns, data, notes, _dates(times), resolution(times, data["time"])


class Uneven(NamedTuple):
    """Rows that were left out because a list is not as long as that of the times: the first of them in words, their
    number, and the number of their times as Parquet counts them, one for an empty list."""

    text: str
    n_rows: int
    n_times: int


@dataclass
class ListRows:
    """Rows with lists."""

    counts: NDArray[np.int64]
    """Number of observations of each row; 0 where its lists differ in length."""
    values: dict[str, Any]
    """All values of each role, as Arrow's chunked arrays."""
    n_empty: int
    """Number of rows whose lists are empty."""
    uneven: dict[str, Uneven]
    """Rows that were left out, by the role of the list that is not as long as that of the times."""


def unpacked(table: Any, roles: dict[str, str], lists: Lists, start: int = 0) -> ListRows:
    """Join the lists of a table, of which rows with lists of several lengths are left out.

    ``roles``: names of the columns by role; those in ``lists`` are unpacked.  ``start``: position in the file of the
    table's first row.
    """
    import pyarrow as pa

    held: dict[str, tuple[NDArray[np.int64], Any]] = {}
    for role, name in roles.items():
        if name in lists:
            column, child = lists[name]
            held[role] = flattened(table.column(column).combine_chunks(), child)
    counts = held["time"][0]
    good = np.ones(len(counts), bool)
    uneven: dict[str, Uneven] = {}
    for role, (lengths, _) in held.items():
        differ = good & (counts != lengths)
        if differ.any():
            i = int(np.argmax(differ))
            what = f"{roles['time']!r} holds {counts[i]} values, {roles[role]!r} holds {lengths[i]}"
            n_times = int(np.maximum(counts[differ], 1).sum())
            uneven[role] = Uneven(f"row {start + i + 1}: {what}", int(differ.sum()), n_times)
            good &= ~differ
    values = {role: flat for role, (_, flat) in held.items()}
    if uneven:
        values = {role: flat.filter(pa.array(np.repeat(good, lengths))) for role, (lengths, flat) in held.items()}
    return ListRows(np.where(good, counts, 0), values, int((good & (counts == 0)).sum()), uneven)


def notes_on_rows(uneven: Iterable[Uneven], n_empty: int) -> list[str]:
    """Notes on rows of lists that are left out."""
    notes = [f"{text}; it was left out" + (f", and {n - 1:,} like it" if n > 1 else "") for text, n, _ in uneven]
    return notes + ([f"{n_empty:,} row{'s' * (n_empty > 1)} of empty lists left out"] if n_empty else [])


def choose_nested(flat: list[str], lists: Lists, wanted: Wanted) -> tuple[list[str], Columns]:
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
    raise refused or MissingColumn(f"found no lists of times and values. The columns are: {', '.join([*flat, *lists])}")


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
