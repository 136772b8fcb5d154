"""Light curves of a large Parquet file, which are read a piece at a time while earlier pieces are searched.

Rows must be grouped by object: one row for each observation, or one row with lists for each object.  Files with columns
of unusual types, and small files, are read whole by `io`, which also raises the errors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import from_arrow
from skysieve.core.tasks import Ahead, in_parallel, usable_cores

from .column_names import (
    FLAG,
    MOVING,
    NUMERIC,
    STARS,
    BadFile,
    Columns,
    Wanted,
    is_missing,
    plain,
    refuse_rounded,
)
from .flags import has_bits, mission
from .io import LightCurves, bands_change, error_of_flux, leave_out_two_dates, marked, same_times
from .parquet import (
    ListRows,
    Lists,
    Uneven,
    chosen_columns,
    flattened,
    is_list,
    is_text,
    needs_astropy,
    notes_on_rows,
    units_of,
    unpacked,
)
from .table_columns import refuse_stamps, resolution_of
from .units import unit_in_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEWEST_ROWS = 2_000_000
"""Files of fewer rows are read whole."""
PIECE_ROWS = 2**20
"""Rows of a piece, and of a batch that is decoded at a time."""
READERS, SCANNERS = 4, 8
"""Row groups that are decoded at a time: of all columns, or of one before the search."""
NO_BAND = -1
"""The number of the searched band if a range of rows does not have that band."""
BUFFER = 2**22
"""Bytes of a large row group that are read at a time."""
Objects = tuple["NDArray[Any]", "NDArray[np.int64]", "dict[str, NDArray[Any]]"]
"""Ids, offsets and columns of a run of whole objects."""


class _Whole(Exception):
    """Raised where a file cannot be read in pieces: `io` reads it whole."""


@dataclass
class CurveStream:
    """The light curves of a file, in order, as pieces of whole objects.

    Attributes
    ----------
    path : Path
    ids : numpy.ndarray
        Of all objects; of files with lists, also of those whose lists are empty.
    n_rows : int
    taken, value_name : str
        As in `LightCurves`.
    bands : numpy.ndarray
        Names of all bands, in order; the bands of pieces are indices into them.  If only one
        band is searched, its name.
    several_bands : bool
        Whether an object has rows of more than one band; for a range of rows, whether the file has several bands.
    treat : callable
        Called with each piece.
    left_out, rows_missing : Counter
        Numbers of rows by reason, in the pieces read so far: rows whose value was replaced by NaN, and all rows that
        are not searched.
    lost : list of str
        Messages on parts of the file that could not be read, of the pieces read so far.
    uneven : dict
        Rows of lists that differ in length, of the pieces read so far; see `ListRows`.
    n_lost, n_empty, n_other : int
        Objects that could not be read, lists that were empty, and rows of other bands than the one that is searched.
    """

    path: Path
    ids: NDArray[Any]
    n_rows: int
    taken: str
    value_name: str
    notes: list[str]
    bands: NDArray[Any]
    several_bands: bool
    _file: _File
    _offsets: NDArray[np.int64] | None
    _band: int | None = None
    treat: Callable[[LightCurves], LightCurves] = lambda curves: curves
    left_out: Counter[str] = field(default_factory=Counter)
    rows_missing: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    uneven: dict[str, Uneven] = field(default_factory=dict)
    n_lost: int = 0
    n_empty: int = 0
    n_other: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def edges(self, objects: int, rows: int) -> list[int]:
        """Rows of the file (objects, where they are lists) at which it can be divided into runs of whole objects.

        A run has `objects` objects and `rows` rows at most, but one object at least.  The first edge is 0.
        """
        n = len(self.ids)
        if self._offsets is None:
            step = max(1, min(objects, int(rows / self._file.rows_an_object)))
            return [*range(0, n, step), n]
        edges, at = [0], 0
        while at < n:
            limit = int(np.searchsorted(self._offsets, self._offsets[at] + rows, side="right")) - 1
            at = min(n, at + objects, max(limit, at + 1))
            edges.append(int(self._offsets[at]))
        return edges

    def part(self, start: int, stop: int) -> CurveStream:
        """Read only the objects between two edges of `edges`; the counts of rows do not change."""
        low = self._file.rows[0]
        file = replace(self._file, rows=(low + start, low + stop))
        if self._offsets is None:
            ids, offsets, rows = self.ids[start:stop], None, round((stop - start) * self._file.rows_an_object)
        else:
            first, last = np.searchsorted(self._offsets, [start, stop])
            ids, offsets, rows = self.ids[first:last], self._offsets[first : last + 1] - start, stop - start
        return CurveStream(
            self.path, ids, rows, self.taken, self.value_name, self.notes, self.bands, self.several_bands, file,
            offsets, self._band, self.treat,
        )  # fmt: skip

    def anew(self) -> CurveStream:
        """Read all objects once more; the counts of rows do not change."""
        return replace(self.part(0, self._file.rows[1] - self._file.rows[0]), n_rows=self.n_rows)

    def count(self, part: CurveStream) -> None:
        """Count what was read of a part as read."""
        self.left_out.update(self._renamed(part.left_out))
        self.rows_missing.update(self._renamed(part.rows_missing))
        self.lost += part.lost
        self._count_uneven(part.uneven)
        self.n_lost, self.n_empty, self.n_other = (
            self.n_lost + part.n_lost, self.n_empty + part.n_empty, self.n_other + part.n_other,
        )  # fmt: skip

    @property
    def n_read(self) -> int:
        """Number of rows of the objects and the band that are searched, once all pieces were read."""
        return self.n_rows - self.n_empty - self.n_other - sum(rows.n_times for rows in self.uneven.values())

    @property
    def share_decoded(self) -> float:
        """Fraction of the rows that were decoded so far, also for pieces that were not returned yet."""
        return sum(self._file.decoded) / max(1, self._file.rows[1] - self._file.rows[0])

    def notes_on_rows(self) -> list[str]:
        """Notes on rows of lists that are left out, of the pieces read so far."""
        return notes_on_rows(self.uneven.values(), self.n_empty)

    def missing(self) -> dict[str, int]:
        """Number of rows that are not searched, by the reason, of the pieces read so far."""
        return dict(self.rows_missing)

    def pieces(self) -> Ahead[LightCurves]:
        """Read the pieces ahead; close it to end its threads."""
        return Ahead(self._pieces(), 2)

    def _pieces(self) -> Iterator[LightCurves]:
        first = True
        for ids, offsets, data in self._objects():
            notes: list[str] = []
            refuse_stamps(self._file.roles["time"], data["time"])
            if self._band is not None:
                ids, offsets, data = self._of_band(ids, offsets, data)
                if not len(ids):
                    continue
            counts, used = marked(
                self._file.names, self._file.columns, data, self._file.wanted, self._file.satellite, notes, whole=False
            )
            counts = self._renamed(counts)
            counts |= leave_out_two_dates(self._file.roles["time"], data, offsets, whole=False)
            self.left_out.update(counts)
            error_of_flux(data)
            if first:
                first = False
                owner = np.repeat(np.arange(len(ids)), np.diff(offsets))
                same_times(replace(self._file.columns, flags=used), data | {"id": owner}, notes)
            piece = self.treat(
                LightCurves(
                    path=self.path, ids=ids, t=data["time"], y=data["mag"], dy=data.get("err"), offsets=offsets,
                    taken=self.taken, value_name=self.value_name, notes=notes, band=data.get("band"),
                    r=data.get("r"), delta=data.get("delta"), phase=data.get("phase"), left_out=counts,
                    band_names=self.bands if "band" in data else None, time_resolution=self._resolution(data["time"]),
                )
            )  # fmt: skip
            self.rows_missing.update(piece.missing())
            yield piece

    def _resolution(self, times: NDArray[np.float64]) -> float:
        """See `resolution_of`; only times in single precision are looked at."""
        return resolution_of(self._file.type_of("time").to_pandas_dtype(), times, times)

    def _of_band(self, ids: NDArray[Any], offsets: NDArray[np.int64], data: dict[str, NDArray[Any]]) -> Objects:
        """The rows of the band that is searched, and the objects that have such rows."""
        keep = data["band"] == self._band
        counts = np.add.reduceat(keep, offsets[:-1], dtype=np.int64)
        self.n_other += len(keep) - int(counts.sum())
        filled = counts > 0
        data = {role: values[keep] for role, values in data.items()}
        data["band"] = np.zeros_like(data["band"])
        return ids[filled], np.append(0, np.cumsum(counts[filled])), data

    def _renamed(self, counts: dict[str, int]) -> dict[str, int]:
        """Reasons as earlier pieces named them: for missing times, values or errors, the first one found."""
        for end in (" for a time", " for a flux", " for a magnitude", " for an error"):
            known = next((why for why in self.left_out if why.endswith(end)), None)
            if known is not None:
                counts = {known if why.endswith(end) else why: n for why, n in counts.items()}
        return counts

    def _objects(self) -> Iterator[Objects]:
        return self._of_lists() if self._offsets is None else self._of_rows(self._offsets)

    def _of_rows(self, bounds: NDArray[np.int64]) -> Iterator[Objects]:
        """Objects with one row for each observation; objects that are divided between batches are joined."""

        def decode(batch: _Batch) -> _Batch:
            """Arrays of the rows from the start of the first object on; its rows in earlier batches stay empty."""
            head = batch.start - int(bounds[np.searchsorted(bounds, batch.start, side="right") - 1])
            batch.data = {role: self._file.values(role, batch, head) for role in self._file.roles if role != "id"}
            return batch

        tail: dict[str, NDArray[Any]] = {}
        first = 0  # the first object that was not returned yet
        for batch in self._file.batches(decode):
            if batch.error:  # objects with a row in this batch cannot be searched
                last = int(np.searchsorted(bounds, batch.stop, side="left"))
                self._lose(batch, last - first)
                tail, first = {}, last
                continue
            stop = int(np.searchsorted(bounds, batch.stop, side="right")) - 1
            origin = int(bounds[np.searchsorted(bounds, batch.start, side="right") - 1])
            for role, values in tail.items():
                batch.data[role][: len(values)] = values
            if stop > first:
                part = slice(int(bounds[first]) - origin, int(bounds[stop]) - origin)
                rows = {role: values[part] for role, values in batch.data.items()}
                yield self.ids[first:stop], bounds[first : stop + 1] - bounds[first], rows
                first = stop
            begin = int(bounds[first]) - origin  # rows of an object that later batches complete
            tail = (
                {role: values[begin:].copy() for role, values in batch.data.items()}
                if batch.stop > bounds[first]
                else {}
            )

    def _of_lists(self) -> Iterator[Objects]:
        """Objects with one row each, whose observations are lists."""
        for batch in self._file.batches(self._file.unpack):
            if batch.error:
                self._lose(batch, batch.stop - batch.start)
                continue
            assert batch.rows is not None
            filled = batch.rows.counts > 0
            self.n_empty += batch.rows.n_empty
            self._count_uneven(batch.rows.uneven)
            ids = self.ids[batch.start : batch.stop]
            if filled.any():
                offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(batch.rows.counts[filled])])
                yield (ids if filled.all() else ids[filled]), offsets, batch.data

    def _count_uneven(self, rows: dict[str, Uneven]) -> None:
        for role, more in rows.items():
            known = self.uneven.get(role, Uneven(more.text, 0, 0))
            self.uneven[role] = Uneven(known.text, known.n_rows + more.n_rows, known.n_times + more.n_times)

    def _lose(self, batch: _Batch, objects: int) -> None:
        self.n_lost += objects
        first, last = self._file.rows[0] + batch.start + 1, self._file.rows[0] + batch.stop
        self.lost.append(f"rows {first:,} to {last:,} cannot be read ({batch.error}): {objects:,} objects are lost")


@dataclass
class _Batch:
    """Rows ``start:stop`` of the file, or why they cannot be read."""

    start: int
    stop: int
    table: Any = None
    error: str = ""
    data: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Values by role."""
    rows: ListRows | None = None
    """Lists, without their values."""


@dataclass
class _File:
    """A Parquet file and the columns that are used."""

    path: Path
    wanted: Wanted
    metadata: Any
    names: list[str]
    columns: Columns
    roles: dict[str, str]
    """Name of the column of each role."""
    lists: Lists
    rows_an_object: float
    satellite: str
    rows: tuple[int, int]
    """First and last + 1 of the rows that are read; rows count from the first."""
    band_names: NDArray[Any] | None = None
    decoded: list[int] = field(default_factory=list)
    """Numbers of rows of the batches that were decoded."""

    @property
    def needed(self) -> list[str]:
        """Columns of the file to read."""
        used = (name for role, name in self.roles.items() if role != "id")
        return list(dict.fromkeys(self.lists[name][0] if name in self.lists else name for name in used))

    def batches(self, decode: Callable[[_Batch], _Batch], columns: list[str] | None = None) -> Generator[_Batch]:
        """The rows of the file in order, read and decoded by several threads; more of them where it is one column."""
        threads = min(READERS if columns is None else SCANNERS, usable_cores())
        return in_parallel((self._read(*part, columns or self.needed, decode) for part in self._parts()), threads)

    def _parts(self) -> Iterator[tuple[list[int], int, int]]:
        """Row groups to read at a time, and their rows: a large one alone, or neighbours."""
        limit = PIECE_ROWS / self.rows_an_object
        groups: list[int] = []
        low, high = self.rows
        start = stop = -low
        for group in range(self.metadata.num_row_groups):
            n = self.metadata.row_group(group).num_rows
            if stop >= high - low:
                break
            if stop + n <= 0:
                start = stop = stop + n
                continue
            if groups and stop - start + n > limit:
                yield groups, start, stop
                groups, start = [], stop
            groups.append(group)
            stop += n
        if groups:
            yield groups, start, stop

    def _read(
        self, groups: list[int], start: int, stop: int, columns: list[str], decode: Callable[[_Batch], _Batch]
    ) -> Iterator[_Batch]:
        """Batches of some row groups; where one cannot be decoded, the rest of them is one batch with the error."""
        last = self.rows[1] - self.rows[0]
        for batch in self._read_groups(groups, start, stop, columns):
            first, end = max(0, batch.start), min(last, batch.stop)
            if first >= end:
                continue
            if (first, end) != (batch.start, batch.stop):
                if batch.table is not None:
                    batch.table = batch.table.slice(first - batch.start, end - first)
                batch = replace(batch, start=first, stop=end)
            made = batch if batch.error else decode(batch)
            self.decoded.append(end - first)
            yield made

    def _read_groups(self, groups: list[int], start: int, stop: int, columns: list[str]) -> Iterator[_Batch]:
        """Read as `_read` does, without decoding."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        size = max(1, int(PIECE_ROWS / self.rows_an_object))
        large = stop - start > 2 * size
        at = start
        try:
            with pq.ParquetFile(
                self.path, metadata=self.metadata, buffer_size=BUFFER if large else 0, pre_buffer=not large,
                read_dictionary=self._labels(columns),
            ) as file:  # fmt: skip
                if not large:
                    yield _Batch(start, stop, file.read_row_groups(groups, columns=columns))
                    return
                for rows in file.iter_batches(size, row_groups=groups, columns=columns):
                    batch = _Batch(at, at + rows.num_rows, pa.Table.from_batches([rows]))
                    yield batch
                    at += rows.num_rows
        except (OSError, pa.ArrowException) as error:
            yield _Batch(at, stop, error=str(error).splitlines()[0])

    def _labels(self, columns: list[str]) -> list[str]:
        """Paths of the text columns that are read with dictionary encoding."""
        if "band" not in self.roles or not self.text_bands:
            return []
        column, child = self.lists.get(self.roles["band"], (self.roles["band"], None))
        return self._paths(column, child) if column in columns else []

    def _paths(self, column: str, child: str | None = None) -> list[str]:
        """Paths of a column, or of a field of its struct, in Parquet's schema."""
        schema = self.metadata.schema
        paths = [schema.column(i).path for i in range(len(schema))]
        own = [path for path in paths if path == column or path.startswith(f"{column}.")]
        return own if child is None else [path for path in own if child in path.split(".")]

    @cached_property
    def schema(self) -> Any:
        """Arrow types of the columns."""
        return self.metadata.schema.to_arrow_schema()

    def type_of(self, role: str) -> Any:
        """Arrow type of the values of a role."""
        name = self.roles[role]
        column, child = self.lists.get(name, (name, None))
        kind = self.schema.field(column).type
        if name not in self.lists:
            return kind
        if not is_list(kind):
            return kind.field(child).type.value_type
        return kind.value_type if child is None else kind.value_type.field(child).type

    @cached_property
    def text_bands(self) -> bool:
        """Whether bands are text, which is read with dictionary encoding."""
        return is_text(self.type_of("band"))

    def unpack(self, batch: _Batch) -> _Batch:
        """Decode lists."""
        rows = unpacked(batch.table, self.roles, self.lists, batch.start)
        batch.data = {role: self._converted(role, values) for role, values in rows.values.items()}
        for role, name in self.roles.items():
            if name not in self.lists and role != "id":
                batch.data[role] = np.repeat(self.values(role, batch), rows.counts)
        batch.rows = replace(rows, values={})
        batch.table = None
        return batch

    def values(self, role: str, batch: _Batch, head: int = 0) -> NDArray[Any]:
        """A flat column of a batch, after ``head`` empty values."""
        return self._converted(role, batch.table.column(self.roles[role]), head)

    def _converted(self, role: str, column: Any, head: int = 0) -> NDArray[Any]:
        """Values of a role in one new array: numbers as float64, bands as positions in ``band_names``."""
        if role.startswith(FLAG):
            parts = [from_arrow(chunk.fill_null(0) if chunk.null_count else chunk) for chunk in column.chunks]
            out = np.empty(head + len(column), parts[0].dtype if parts else np.int64)
        elif role == "band":
            parts = [self._positions(chunk) for chunk in column.chunks]
            out = np.empty(head + len(column), np.int64)
        else:
            parts = [from_arrow(chunk) for chunk in column.chunks]
            out = np.empty(head + len(column))
        at = head
        for part in parts:
            out[at : at + len(part)] = part
            at += len(part)
        return out

    def _positions(self, chunk: Any) -> NDArray[np.int64]:
        """Positions of bands in ``band_names``."""
        assert self.band_names is not None
        if not self.text_bands:
            return np.searchsorted(self.band_names, from_arrow(chunk))
        words = np.array(chunk.dictionary.to_pylist(), str)
        found: NDArray[np.int64] = np.searchsorted(self.band_names, words)[from_arrow(chunk.indices)]
        return found


def open_stream(
    path: Path, wanted: Wanted, *, band: str | None = None, fewest: int | None = None,
    rows: tuple[int, int] | None = None,
) -> CurveStream | None:  # fmt: skip
    """Open a large Parquet file whose rows are grouped by object; None for any other file.

    ``band`` names the only band whose rows are kept; ``fewest`` is the least number of rows of a large file
    (`FEWEST_ROWS`).  ``rows`` is the range of rows to read (first, last + 1), which begins and ends between objects; in
    files with lists a row is an object.

    Raises
    ------
    BadFile, MissingColumn
        As `skysieve.periodogram.lightcurves.io.read_light_curves`.
    """
    with path.open("rb") as f:
        if f.read(4) != b"PAR1":
            return None
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return None
    try:
        with pq.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as opened:
            return _opened(path, wanted, opened, band, FEWEST_ROWS if fewest is None else fewest, rows)
    except (_Whole, OSError, pa.ArrowException):
        return None


def _opened(
    path: Path, wanted: Wanted, opened: Any, band: str | None, fewest: int, rows: tuple[int, int] | None
) -> CurveStream:
    import pyarrow as pa

    metadata = opened.metadata
    repeated = any(metadata.schema.column(i).max_repetition_level for i in range(len(metadata.schema)))
    if not metadata.num_rows or (metadata.num_rows < fewest and not repeated):
        raise _Whole
    if needs_astropy(path):
        raise _Whole
    names, columns, lists, notes = chosen_columns(opened, wanted)
    roles = {role: names[i] for role, i in columns.parts().items()}
    numeric = [name for role, name in roles.items() if role in NUMERIC]
    if any(map(unit_in_name, numeric)) or any(units_of(path, numeric)):
        raise _Whole  # `io` converts units
    divided = rows is not None
    rows = rows or (0, metadata.num_rows)
    file = _File(path, wanted, metadata, names, columns, roles, lists, 1.0, mission(names), rows)
    n_rows = rows[1] - rows[0]
    if lists:
        leaf = file._paths(lists[roles["time"]][0])
        at = next(i for i in range(len(metadata.schema)) if metadata.schema.column(i).path == leaf[0])
        n_rows = sum(metadata.row_group(g).column(at).num_values for g in range(metadata.num_row_groups))
        if n_rows < fewest:
            raise _Whole
        file.rows_an_object = max(1.0, n_rows / max(1, metadata.num_rows))
    elif columns.id is None:
        raise _Whole
    for role in roles:
        kind = file.type_of(role)
        number = pa.types.is_integer(kind) or kind in (pa.float32(), pa.float64())
        label = pa.types.is_integer(kind) or (is_text(kind) and (role == "band" or not pa.types.is_dictionary(kind)))
        if role.startswith(FLAG):
            fits = pa.types.is_integer(kind) and has_bits(roles[role], wanted.quality_mask, file.satellite)
        else:
            fits = label if role in ("id", "band") else number
        if not fits or (role == "id" and roles[role] in lists):
            raise _Whole
    if wanted.quality_mask is not None and not columns.flags:
        raise _Whole
    ids, offsets = _ids_of(file, bool(lists))
    if "band" in roles:
        file.band_names = _band_names(file)
    bands = np.empty(0, str) if file.band_names is None else file.band_names
    only = None
    if band is not None:
        named = np.flatnonzero(bands.astype(str) == band)
        if not named.size and not divided:
            raise _Whole
        only, bands = (int(named[0]), bands[named]) if named.size else (NO_BAND, np.array([band]))
    bounds = None if lists else offsets
    several = len(bands) > 1 and (divided or _several_bands(file, bounds))
    return CurveStream(
        path, ids, n_rows, columns.taken(names), names[columns.mag], notes, bands, several, file, bounds, only,
    )  # fmt: skip


def _ids_of(file: _File, lists: bool) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The id of each object, and the rows at which they begin; raises `_Whole` if rows of an object lie apart."""
    if "id" not in file.roles:
        n = file.rows[1] - file.rows[0]
        return np.arange(file.rows[0], file.rows[1]), np.arange(n + 1)
    name = file.roles["id"]

    def runs(batch: _Batch) -> _Batch:
        """Ids without repetitions, and their first rows."""
        import pyarrow.compute as pc

        labels, starts = [], []
        at = batch.start
        for chunk in batch.table.column(name).chunks:
            if chunk.null_count:
                raise _Whole
            found = pc.run_end_encode(chunk)
            ends = from_arrow(found.run_ends)
            if len(ends) > max(1000, 0.5 * len(chunk)) and not lists:
                raise _Whole
            labels.append(from_arrow(found.values))
            starts.append(at + np.append(0, ends[:-1]).astype(np.int64))
            at += len(chunk)
        batch.data = {"id": np.concatenate(labels), "start": np.concatenate(starts)}
        return batch

    batches = [_readable(batch).data for batch in file.batches(runs, [name])]
    ids, first = (np.concatenate([data[key] for data in batches]) for key in ("id", "start"))
    ids = ids.astype(str) if ids.dtype == object else ids
    new = np.append(True, ids[1:] != ids[:-1])
    ids, first = ids[new], first[new]
    empty = ids == (0 if ids.dtype.kind in "iu" else "")
    if len(np.unique(ids)) != len(ids) or (empty.any() and (ids.dtype.kind == "U" or plain(name) in (STARS, MOVING))):
        raise _Whole
    n = file.rows[1] - file.rows[0]
    if lists and len(ids) != n:
        raise _Whole
    try:
        refuse_rounded(ids, f"column {name!r}")
    except ValueError as error:
        raise BadFile(str(error)) from None
    return ids, np.append(first, n)


def _readable(batch: _Batch) -> _Batch:
    if batch.error:
        raise _Whole
    return batch


def _band_names(file: _File) -> NDArray[Any]:
    """Names of all bands, in order; raises `_Whole` if one is missing."""
    name = file.roles["band"]
    column, child = file.lists.get(name, (name, None))

    def names(batch: _Batch) -> _Batch:
        import pyarrow.compute as pc

        values = batch.table.column(column)
        if name in file.lists:
            values = flattened(values.combine_chunks(), child)[1]
        if values.null_count:
            raise _Whole
        used: set[Any] = set()
        for chunk in values.chunks:
            some = pc.unique(chunk.indices if file.text_bands else chunk)
            used.update((chunk.dictionary.take(some) if file.text_bands else some).to_pylist())
        batch.data = {"names": np.array(sorted(used))}
        if any(is_missing(str(word)) for word in used):
            raise _Whole
        return batch

    batches = [_readable(batch).data["names"] for batch in file.batches(names, [column])]
    return np.unique(np.concatenate(batches))


def _several_bands(file: _File, offsets: NDArray[np.int64] | None) -> bool:
    """Whether an object has rows of several bands; the bands are read up to the first such object."""
    name = file.roles["band"]
    column, child = file.lists.get(name, (name, None))
    if offsets is None and name not in file.lists:  # lists of rows beside one band
        return False

    def bands(batch: _Batch) -> _Batch:
        values = batch.table.column(column)
        if offsets is None:
            counts, values = flattened(values.combine_chunks(), child)
            starts = np.cumsum(counts) - counts
        else:
            first, last = np.searchsorted(offsets, [batch.start, batch.stop])
            starts = offsets[first:last] - batch.start
        batch.data = {"band": file._converted("band", values), "start": starts}
        return batch

    last = None  # band of the row before the batch
    with closing(file.batches(bands, [column])) as batches:
        for batch in batches:
            band, starts = (_readable(batch).data[key] for key in ("band", "start"))
            if not len(band):
                continue
            continues = last is not None and 0 not in starts[:1]
            if bands_change(band, starts) or (continues and band[0] != last):
                return True
            last = band[-1]
    return False
