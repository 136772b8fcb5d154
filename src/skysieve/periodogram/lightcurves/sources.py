"""Sources of light curves for the backends, made from every form that the user may give; also with a band for each row.

The sources here hold references to the user's arrays.  A range of objects is converted to
contiguous float64 when it is read, so that no more than a chunk is copied.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import array_module, is_device_array, to_host

from .arrays import (
    arrow_labels,
    arrow_lists,
    arrow_words,
    group_rows,
    is_ragged,
    is_table,
    numeric,
    pick,
    pieces,
    time_resolution,
)
from .column_names import missing_in
from .units import Units, strip, strip_times

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from skysieve.periodogram.contract import Source


_FLOAT64 = np.dtype(np.float64)


def _is_plain(x: Any) -> bool:
    """Whether ``x`` is certainly a 1-D array of native float64, of NumPy (aligned) or CuPy, without a unit or mask."""
    if type(x) is not np.ndarray:
        of_cupy: Any = getattr(sys.modules.get("cupy"), "ndarray", None)
        return type(x) is of_cupy and x.dtype == _FLOAT64 and x.ndim == 1
    return x.dtype is _FLOAT64 and x.ndim == 1 and x.flags.aligned


def _native(x: Any) -> Any:
    """Contiguous, aligned, native float64; not copied if it is so already."""
    if _is_plain(x) and x.flags.c_contiguous:
        return x
    if is_device_array(x):
        return array_module(x).ascontiguousarray(x, dtype=np.float64).reshape(-1)
    return np.require(x, np.float64, ["C", "A"]).reshape(-1)


@dataclass(frozen=True)
class _Columns:
    """Times, values and errors (None without errors), which may be copied when they are read.

    Rows are counted from the first one of each object.
    """

    t: Any
    y: Any
    dy: Any

    @property
    def has_dy(self) -> bool:
        return self.dy is not None

    @property
    def flat(self) -> bool:
        return False

    def row(self, i: int, j: int) -> int:
        """The user's number of row ``j`` of object ``i``."""
        return j


@dataclass(frozen=True)
class RowSource(_Columns):
    """Objects of equally many rows: ``t``, ``y`` and ``dy`` of shape (n, n_times), some of them broadcast."""

    @property
    def n_objects(self) -> int:
        return int(self.y.shape[0])

    @property
    def offsets(self) -> NDArray[np.int64]:
        return np.arange(self.n_objects + 1, dtype=np.int64) * int(self.y.shape[1])

    def read(
        self, start: int, stop: int, empty: Callable[[str, int], Any] | None = None
    ) -> tuple[Any, Any, Any, NDArray[np.int64]]:
        """Objects ``start:stop``; see `skysieve.periodogram.contract.Source`."""
        dy = None if self.dy is None else _native(self.dy[start:stop])
        offsets = np.arange(stop - start + 1, dtype=np.int64) * int(self.y.shape[1])
        return _native(self.t[start:stop]), _native(self.y[start:stop]), dy, offsets


@dataclass(frozen=True)
class FlatSource(_Columns):
    """Objects one after another in flat arrays, or in the rows that ``order`` lists."""

    offsets: NDArray[np.int64]
    order: NDArray[np.int64] | None = None

    @property
    def n_objects(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def flat(self) -> bool:
        columns = (x for x in (self.t, self.y, self.dy) if x is not None)
        return self.order is None and all(_is_plain(x) and x.flags.c_contiguous for x in columns)

    def read(
        self, start: int, stop: int, empty: Callable[[str, int], Any] | None = None
    ) -> tuple[Any, Any, Any, NDArray[np.int64]]:
        """Objects ``start:stop``; see `skysieve.periodogram.contract.Source`."""
        first, last = int(self.offsets[start]), int(self.offsets[stop])
        offsets = self.offsets[start : stop + 1] - first
        if self.order is None and last - first == len(self.t):  # a slice of CuPy's takes as long as a launch
            if self.flat:
                return self.t, self.y, self.dy, offsets
            return _native(self.t), _native(self.y), None if self.dy is None else _native(self.dy), offsets
        rows: Any = slice(first, last) if self.order is None else self.order[first:last]
        dy = None if self.dy is None else _native(self.dy[rows])
        return _native(self.t[rows]), _native(self.y[rows]), dy, offsets

    def row(self, i: int, j: int) -> int:
        """The user's number of row ``j`` of object ``i``."""
        k = int(self.offsets[i]) + j
        return k if self.order is None else int(self.order[k])


@dataclass(frozen=True)
class JoinedSource(FlatSource):
    """Lists of one array per object that are one after another in memory."""

    row = _Columns.row


@dataclass(frozen=True)
class GroupedSource(FlatSource):
    """Lists of which several may be of one object, as the rows that ``order`` takes from all lists, joined."""

    lists: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    """Offsets of the lists, in the order in which they were given."""


@dataclass(frozen=True)
class ListSource(_Columns):
    """One array per object."""

    offsets: NDArray[np.int64]
    on_device: bool = False

    @property
    def n_objects(self) -> int:
        return len(self.y)

    def read(
        self, start: int, stop: int, empty: Callable[[str, int], Any] | None = None
    ) -> tuple[Any, Any, Any, NDArray[np.int64]]:
        """Objects ``start:stop``; see `skysieve.periodogram.contract.Source`."""
        rows = int(self.offsets[stop] - self.offsets[start])
        t, y, dy = (
            None if x is None else _joined(x[start:stop], self.on_device, partial(empty, name, rows) if empty else None)
            for name, x in (("t", self.t), ("y", self.y), ("dy", self.dy))
        )
        return t, y, dy, self.offsets[start : stop + 1] - self.offsets[start]


def _joined(pieces: Sequence[Any], on_device: bool, empty: Callable[[], Any] | None = None) -> Any:
    if len(pieces) == 1:
        return _native(pieces[0])
    if on_device:
        xp = array_module(pieces[0])
        return xp.concatenate([xp.asarray(piece, dtype=np.float64) for piece in pieces])
    if not pieces:
        return np.empty(0)
    if empty is not None:
        return np.concatenate(pieces, out=empty())
    return np.require(np.concatenate(pieces), np.float64)


@dataclass(frozen=True)
class CurveSet:
    """The light curves of one call, and the form in which they were given."""

    source: Source
    units: Units
    single: bool = False
    same_times: bool = False
    ids: Any = None
    resolution: float = 0.0
    on_device: bool = False
    bands: Any = None
    """Band of each row of a file that has such a column; None otherwise."""

    def name(self, i: int) -> str:
        """Name of object ``i`` in messages."""
        if self.single:
            return "the light curve"
        return f"object {i}" if self.ids is None else f"object {self.ids[i]!s} (number {i})"


MOST_JOINED = 2**30
"""Bytes of lists that are joined at once; longer ones are joined a range of objects at a time, each time that they are
read."""


def joined(source: Source) -> Source:
    """Join lists in memory if they are on the host and not too long, because the source is read twice."""
    if not isinstance(source, ListSource) or source.on_device:
        return source
    columns = 3 if source.has_dy else 2
    if int(source.offsets[-1]) * columns * 8 > MOST_JOINED:
        return source
    t, y, dy, offsets = source.read(0, source.n_objects)
    return JoinedSource(t, y, dy, offsets)


def light_curves(
    t: Any = None, y: Any = None, dy: Any = None, *, offsets: Any = None, id: Any = None, data: Any = None,
    bands: Any = None,
) -> CurveSet:  # fmt: skip
    """Recognise and check the form of the light curves, and make a source of them without a copy.

    ``t`` alone, or ``data``, may be the path of a file.  ``bands`` names the column of bands of a file or table.

    Raises
    ------
    TypeError
        For text, complex or object arrays, and tables given as `t`.
    ValueError
        For shapes, offsets, ids and units that do not fit together, and files that cannot be read as light curves;
        the message names the argument or the file.
    """
    if data is None and y is None and isinstance(t, str | os.PathLike):
        data, t = t, None
    if isinstance(data, str | os.PathLike):
        if offsets is not None:
            raise ValueError("offsets need arrays, but a file is given")
        return _from_file(data, {"t": t, "y": y, "dy": dy, "id": id, "bands": bands})
    if t is None or y is None:
        missing = "t" if t is None else "y"
        raise TypeError(
            f"{missing} is missing: expected t and y, a table as data=, or the path of a file of light curves"
        )
    if data is not None:
        t, y, dy = pick(data, t, "t"), pick(data, y, "y"), pick(data, dy, "dy")
        id, bands = pick(data, id, "id"), pick(data, bands, "bands")
    elif not isinstance(t, np.ndarray) and not _is_plain(t) and is_table(t):
        raise TypeError(
            "t is a table; pass it as data= and name its columns: "
            "lombscargle('time', 'mag', 'err', data=table, id='star')"
        )
    found = _from_columns(t, y, dy, offsets, id)
    return found if bands is None else replace(found, bands=bands)


FILE_OPTIONS = {"id": "id", "time": "t", "mag": "y", "err": "dy", "band-column": "bands"}
"""Argument of the Python functions for each option that error messages of the readers name."""


def _from_file(path: str | os.PathLike[str], columns: dict[str, Any]) -> CurveSet:
    """The light curves of a file, whose columns have the names given, or usual ones; times are in days."""
    from .io import BadFile, MissingColumn, Wanted, read_light_curves
    from .table_columns import notes_on_days

    for argument, column in columns.items():
        if column is not None and not isinstance(column, str):
            raise TypeError(
                f"{argument} is a {type(column).__name__}, but a file is given: expected the name of a column"
            )
    names = {argument: columns[argument] for argument in FILE_OPTIONS.values()}
    wanted = Wanted(*(names[argument] for argument in ("id", "t", "y", "dy", "bands")))
    try:
        curves = read_light_curves(path, wanted)
    except (BadFile, MissingColumn) as error:
        text = re.sub(rf"--({'|'.join(FILE_OPTIONS)})\b", lambda match: f"{FILE_OPTIONS[match[1]]}=", str(error))
        raise ValueError(f"{os.fspath(path)}: {text}") from None
    for note in curves.notes + ([] if curves.time_unit else notes_on_days(curves.t)):
        logging.getLogger("skysieve").info("%s: %s", os.fspath(path), note)
    flat = FlatSource(curves.t, curves.y, curves.dy, curves.offsets)
    ids = curves.ids if curves.has_ids else None
    return CurveSet(flat, Units(), single=ids is None, ids=ids, resolution=curves.time_resolution, bands=curves.band)


def _from_columns(t: Any, y: Any, dy: Any, offsets: Any, id: Any) -> CurveSet:
    """Arrays, Quantities, columns of tables, or lists of them."""
    if id is None and _is_plain(t) and _is_plain(y) and (dy is None or _is_plain(dy)):
        same = all(type(x) is type(t) and x.shape == t.shape for x in (y, dy) if x is not None)
        one = offsets is None
        if same and (t.size or not one):  # a shortcut with the result of the checks below
            bounds = np.array([0, t.size]) if one else _checked_offsets(offsets, t.size)
            flat = FlatSource(t, y, dy, bounds)
            return CurveSet(flat, Units(), one, one, on_device=not isinstance(t, np.ndarray))
    if offsets is None:
        found = _from_arrow_lists(t, y, dy)
        if found is not None:
            return found if id is None else _of_objects(found, id)
    t, y, dy = pieces(t), pieces(y), pieces(dy)
    for name, x in (("t", t), ("y", y), ("dy", dy), ("id", id)):
        if isinstance(x, str):
            raise TypeError(f"{name}={x!r} is text; numbers are expected, or a table as data= to name its column")
    if offsets is not None and id is not None:
        raise ValueError("offsets and id are both given; give one or the other")
    if is_ragged(y) or is_ragged(t):
        if offsets is not None:
            raise ValueError("offsets need flat arrays, but lists of arrays are given")
        lists = _from_lists(t, y, dy)
        return lists if id is None else _of_objects(lists, id)
    times, time_unit = strip_times(t, "t")
    values, y_unit = strip(y, "y")
    errors = None if dy is None else _errors(dy, y_unit)
    times, values = numeric(times, "t"), numeric(values, "y")
    units = Units(time_unit, y_unit)
    on_device = next(filter(is_device_array, (times, values, errors)), None)
    if on_device is not None:
        xp = array_module(on_device)
        times, values = xp.asarray(times), xp.asarray(values)
        errors = None if errors is None else xp.asarray(errors)
    resolution = time_resolution(times)
    if offsets is None and (id is None or values.ndim == 2):
        source, single, same_times = _from_arrays(times, values, errors)
        found = CurveSet(source, units, single, same_times, None, resolution, on_device is not None)
        return found if id is None else _of_objects(found, id)
    if times.ndim != 1 or values.shape != times.shape:
        raise ValueError(f"with offsets or id, t and y must be 1-D and equally long; got {times.shape}, {values.shape}")
    errors = _broadcast(errors, times.shape, "dy")
    ids = order = None
    if id is None:
        bounds = _checked_offsets(offsets, times.size)
    else:
        ids, bounds, order = group_rows(id)
        if bounds[-1] != times.size:
            raise ValueError(f"id has {bounds[-1]} rows, t and y have {times.size}")
    flat = FlatSource(times, values, errors, bounds, order)
    return CurveSet(flat, units, False, False, ids, resolution, on_device is not None)


def _of_objects(curves: CurveSet, id: Any) -> CurveSet:
    """Light curves that ``id`` names, one entry for each; those with the same id are joined, as the rows of a file."""
    ids, bounds, order = group_rows(id)
    n = curves.source.n_objects
    if bounds[-1] != n:
        raise ValueError(f"id has {bounds[-1]} entries, y has {n} light curves; one id for each is expected")
    if len(ids) == n:
        return replace(curves, ids=ids)
    t, y, dy, offsets = curves.source.read(0, n)
    objects = np.arange(n) if order is None else order
    rows = np.concatenate([np.arange(offsets[i], offsets[i + 1]) for i in objects])
    ends = np.append(0, np.cumsum(np.diff(offsets)[objects]))[bounds]
    return replace(curves, source=GroupedSource(t, y, dy, ends, rows, offsets), ids=ids, same_times=False)


def _from_arrow_lists(t: Any, y: Any, dy: Any) -> CurveSet | None:
    """Columns of Arrow lists of equal lengths (`dy` may be one number), without a copy; None for anything else."""
    times, values = arrow_lists(t), arrow_lists(y)
    if times is None or values is None or len(values[1]) == 1 or not np.array_equal(times[1], values[1]):
        return None
    errors = None
    if dy is not None:
        listed = arrow_lists(dy)
        if listed is not None and np.array_equal(listed[1], values[1]):
            errors = listed[0]
        elif isinstance(dy, int | float):
            errors = np.broadcast_to(_errors(dy, None), values[0].shape)
        else:
            return None
    source = JoinedSource(times[0], values[0], errors, values[1])
    return CurveSet(source, Units(), resolution=time_resolution(times[0]))


def _errors(dy: Any, y_unit: Any, name: str = "dy") -> Any:
    bare, unit = strip(dy, name, y_unit)
    if unit is not None and y_unit is None:
        raise ValueError(f"{name} has the unit {unit}, but y has none; give both a unit or neither")
    return numeric(bare, name)


def _broadcast(x: Any, shape: tuple[int, ...], name: str) -> Any:
    if x is None or x.shape == shape:
        return x
    try:
        return array_module(x).broadcast_to(x, shape)
    except ValueError:
        raise ValueError(f"{name} has shape {x.shape}, which does not fit y of shape {shape}") from None


def _from_arrays(t: Any, y: Any, dy: Any) -> tuple[RowSource, bool, bool]:
    """One light curve (1-D `y`) or many of equally many rows (2-D `y`)."""
    if y.ndim not in (1, 2) or t.ndim not in (1, 2) or t.ndim > y.ndim:
        raise ValueError(
            f"t has shape {t.shape} and y has shape {y.shape}; 1-D, or 2-D y (objects, times), is expected"
        )
    if t.shape != y.shape[-t.ndim :]:
        turned = " (y must be (objects, times): did you mean y.T?)" if y.ndim == 2 and t.shape == y.shape[:1] else ""
        raise ValueError(f"t has shape {t.shape}, which does not fit y of shape {y.shape}{turned}")
    if y.shape[-1] == 0:
        raise ValueError("t and y are empty; at least one row is expected")
    single = y.ndim == 1
    shape = (1, *y.shape) if single else y.shape
    rows = RowSource(_broadcast(t, shape, "t"), _broadcast(y, shape, "y"), _broadcast(dy, shape, "dy"))
    return rows, single, t.ndim == 1


def _from_lists(t: Any, y: Any, dy: Any) -> CurveSet:
    """A list of arrays for `y`, and for `t` (or one array of times for all) and `dy` (or a number for all)."""
    if not _has_items(y):
        raise ValueError(f"t is a list of light curves, y is {y!r:.50}; a list of 1-D arrays is expected")
    n = len(y)
    shared = not is_ragged(t)
    if not shared and len(t) != n:
        raise ValueError(f"t has {len(t)} light curves, y has {n}")
    dy_of_each = dy is not None and _has_items(dy)
    if dy_of_each and len(dy) != n:
        raise ValueError(f"dy has {len(dy)} light curves, y has {n}")
    plain = _plain_lists(t, y, dy)
    if plain is not None:
        return plain
    _, y_unit = strip(y[0], "y[0]")
    error_of_all = None if dy is None or dy_of_each else _errors(dy, y_unit)
    errors: list[Any] | None = None if dy is None else []
    values, times = [], []
    first, time_unit = strip_times(t if shared else t[0], "t" if shared else "t[0]")
    first = numeric(first, "t")
    for i in range(n):
        yi = _item(y[i], f"y[{i}]", y_unit)
        ti = first
        if not shared:
            bare, unit = strip_times(t[i], f"t[{i}]", time_unit)
            if unit != time_unit:
                raise ValueError(f"t[{i}] has the unit {unit}, but t[0] has none; give all a unit or none")
            ti = numeric(bare, f"t[{i}]")
        if yi.ndim != 1 or ti.shape != yi.shape:
            raise ValueError(
                f"t[{i}] has shape {ti.shape} and y[{i}] has shape {yi.shape}; equal 1-D ones are expected"
            )
        if errors is not None:
            error = _errors(dy[i], y_unit, f"dy[{i}]") if error_of_all is None else error_of_all
            errors.append(_broadcast(error, yi.shape, f"dy[{i}]"))
        times.append(ti)
        values.append(yi)
    sizes = [v.size for v in values]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
    resolution = time_resolution(first) if shared else max(map(time_resolution, times))
    on_device = next(filter(is_device_array, [*values, *times, *(errors or [])]), None)
    if on_device is not None:
        xp = array_module(on_device)
        times, values = [xp.asarray(x) for x in times], [xp.asarray(x) for x in values]
        errors = None if errors is None else [xp.asarray(x) for x in errors]
    source = ListSource(times, values, errors, offsets, on_device is not None)
    return CurveSet(source, Units(time_unit, y_unit), False, shared, None, resolution, on_device is not None)


def _plain_lists(t: Any, y: Any, dy: Any) -> CurveSet | None:
    """Lists of float64 arrays on the host, each pair of equal length: no array is converted, so that a million light
    curves are looked at in a second.  None for anything else."""
    columns, n = [x for x in (t, y, dy) if x is not None], len(y)
    for x in columns:
        if type(x) not in (list, tuple) or len(x) != n or list(map(type, x)).count(np.ndarray) != n:
            return None
        if list(map(_DTYPE, x)).count(_FLOAT64) != n or list(map(_NDIM, x)).count(1) != n:
            return None
    sizes = list(map(len, y))
    if any(x is not y and list(map(len, x)) != sizes for x in columns):
        return None
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return CurveSet(ListSource(t, y, dy, offsets), Units())


_DTYPE, _NDIM = attrgetter("dtype"), attrgetter("ndim")


def _has_items(x: Any) -> bool:
    """Whether ``x`` is a sequence with one entry for each light curve."""
    return isinstance(x, list | tuple) or np.ndim(x) > 0


def _item(x: Any, name: str, unit: Any) -> Any:
    bare, own = strip(x, name, unit)
    if own != unit:
        raise ValueError(f"{name} has the unit {own}, but y[0] has none; give all a unit or none")
    return numeric(bare, name)


def _checked_offsets(offsets: Any, n_rows: int) -> NDArray[np.int64]:
    bounds = np.asarray(offsets)
    if bounds.dtype.kind not in "iu":
        raise TypeError(f"offsets has dtype {bounds.dtype}; whole numbers are expected")
    bounds = bounds.astype(np.int64, copy=False)
    if bounds.ndim != 1 or bounds.size == 0:
        raise ValueError(f"offsets has shape {bounds.shape}; a 1-D array of n_objects + 1 numbers is expected")
    if bounds[0] != 0 or bounds[-1] != n_rows:
        raise ValueError(
            f"offsets go from {bounds[0]} to {bounds[-1]}; from 0 to the number of rows, {n_rows}, expected"
        )
    if bounds.size > 1 and (steps := bounds[1:] - bounds[:-1]).min() < 0:
        j = int(np.argmax(steps < 0))
        raise ValueError(
            f"offsets[{j + 1}] = {bounds[j + 1]} is below offsets[{j}] = {bounds[j]}; offsets must not decrease"
        )
    return bounds


@dataclass(frozen=True)
class BandedSource:
    """A source, and the number of the band of every row."""

    source: Source
    codes: Any

    @property
    def n_objects(self) -> int:
        return self.source.n_objects

    @property
    def offsets(self) -> NDArray[np.int64]:
        return self.source.offsets

    @property
    def has_dy(self) -> bool:
        return self.source.has_dy

    @property
    def flat(self) -> bool:
        return self.source.flat

    def row(self, i: int, j: int) -> int:
        """The user's number of row ``j`` of object ``i``."""
        return self.source.row(i, j)

    def read(
        self, start: int, stop: int, empty: Callable[[str, int], Any] | None = None
    ) -> tuple[Any, Any, Any, NDArray[np.int64]]:
        """See `skysieve.periodogram.contract.Source`."""
        return self.source.read(start, stop, empty)

    def bands(self, start: int, stop: int) -> NDArray[np.int64]:
        """Numbers of the bands of the rows that `read` returns."""
        if self.codes.ndim == 1 and len(self.codes) != int(self.offsets[-1]):  # one list of bands for all light curves
            return np.tile(self.codes, stop - start)
        first, last = int(self.offsets[start]), int(self.offsets[stop])
        codes: NDArray[np.int64] = self.codes[first:last]
        return codes


SMALL_NUMBERS = 4096
"""Bands that are whole numbers below this are counted; others are sorted, which takes longer."""


def _host_bands(bands: Any) -> NDArray[Any]:
    """Bands as an array on the host, with None for those that are masked."""
    bands = arrow_labels(bands)
    mask = getattr(bands, "mask", None)  # a method of a pandas column, an array of a masked one
    bare = np.asarray(bands.data) if isinstance(bands, np.ma.MaskedArray) else getattr(bands, "unmasked", bands)
    found: NDArray[Any] = np.asarray(to_host(bare))
    if found.dtype.kind == "S":  # text of FITS tables
        found = np.char.decode(found, "utf-8")
    elif found.dtype.kind == "T":  # text of variable width
        found = found.astype(object)
    if mask is None or callable(mask) or not np.any(mask):
        return found
    found = found.astype(object)
    found[np.asarray(mask)] = None
    return found


def _missing_bands(bands: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Bands with those that are missing replaced by another one, and which these are; None if none is missing."""
    missing = np.zeros(bands.shape, bool)
    if bands.dtype.kind in "OU":
        missing = missing_in(bands)
    elif bands.dtype.kind == "f":  # whole numbers, if some are missing
        missing = np.isnan(bands)
    if not missing.any():
        return bands, None
    if missing.all():
        raise ValueError("bands: no row has a band; expected names or whole numbers")
    there = bands[~missing]
    if there.dtype.kind == "O" and all(isinstance(band, int | np.integer) for band in there):
        there = there.astype(np.int64)
    if there.dtype.kind == "f" and np.array_equal(whole := there.astype(np.int64), there):
        there = whole
    filled = np.full(bands.shape, there[0], there.dtype)
    filled[~missing] = there
    return filled, missing


def _without_values(source: Source, missing: NDArray[np.bool_]) -> Source:
    """A source whose values are NaN in some rows of the user's."""
    held: Any = source
    if isinstance(held, ListSource):
        held = JoinedSource(*held.read(0, held.n_objects))
    rows = missing.reshape(held.y.shape) if missing.size == held.y.size else missing
    xp = array_module(held.y)
    without: Source = replace(held, y=xp.where(xp.asarray(rows), np.nan, held.y))
    return without


def read_once(curves: CurveSet) -> CurveSet:
    """Light curves whose lists are joined, see `joined`."""
    source = curves.source
    if isinstance(source, BandedSource):
        return replace(curves, source=replace(source, source=joined(source.source)))
    return replace(curves, source=joined(source))


def with_bands(curves: CurveSet, bands: Any) -> tuple[tuple[Any, ...], CurveSet]:
    """Names of the bands, and the light curves with the band of each row.

    Rows whose band is missing (masked, None, NaN, an empty word) have no value: they are left out of a search.

    Raises
    ------
    TypeError
        For bands that are neither text nor whole numbers.
    ValueError
        For bands of another shape than the rows, or if all are missing.
    """
    source = curves.source
    rows = int(source.offsets[-1])
    lists = source.lists if isinstance(source, GroupedSource) else source.offsets
    listed = arrow_words(bands)
    if listed is None:
        bands = pieces(bands)
    if listed is not None:
        flat, bounds = listed
        if not np.array_equal(bounds, lists):
            raise ValueError("bands: the lists have other lengths than those of y; a band for every row is expected")
    elif isinstance(source, ListSource | JoinedSource | GroupedSource) and (is_ragged(bands) or _lists_among(bands)):
        if len(bands) != len(lists) - 1:
            raise ValueError(f"bands has {len(bands)} light curves, y has {len(lists) - 1}")
        for i, (one, size) in enumerate(zip(bands, np.diff(lists), strict=True)):
            if np.shape(one) != (size,):
                raise ValueError(f"bands[{i}] has shape {np.shape(one)}; ({size},) is expected")
        each = [_host_bands(one) for one in bands]
        flat = np.concatenate([one for one in each if one.size] or [np.empty(0, int)])
    else:
        flat = _host_bands(bands)
        if isinstance(source, GroupedSource) and flat.shape == (len(lists) - 1,) != (rows,):  # one for each list
            flat = np.repeat(flat, np.diff(lists))
    flat, missing = _missing_bands(flat)
    if flat.dtype.kind == "O":
        for i, one in enumerate(flat.ravel()):
            if not isinstance(one, str):
                raise TypeError(f"bands: row {i} is {one!r}; expected a name for every row, or whole numbers")
        flat = flat.astype(str)
    if flat.dtype.kind not in "Uiub":
        raise TypeError(f"bands has dtype {flat.dtype}; expected names or whole numbers")
    single_row = rows // max(1, source.n_objects)
    if flat.shape != (rows,) and not (
        (curves.single or not isinstance(source, FlatSource | ListSource))
        and flat.shape in ((single_row,), (source.n_objects, single_row))
    ):
        raise ValueError(f"bands has shape {flat.shape}; expected one band for each of {rows} rows")
    if flat.dtype.kind in "iu" and flat.size and flat.min() >= 0 and flat.max() < SMALL_NUMBERS:
        seen = np.bincount(flat.reshape(-1)) > 0
        names, codes = np.flatnonzero(seen), (np.cumsum(seen) - 1)[flat.reshape(-1)]
    else:
        names, codes = np.unique(flat, return_inverse=True)
    codes = codes.reshape(-1).astype(np.int64, copy=False)
    if missing is not None:
        source = _without_values(source, missing)
    if isinstance(source, FlatSource) and source.order is not None:
        codes = codes[source.order]
    return tuple(names.tolist()), replace(curves, source=BandedSource(source, codes))


def _lists_among(bands: Any) -> bool:
    """Whether a list whose first entry is no list holds lists; the error then names the first entry."""
    if not isinstance(bands, list | tuple):
        return False
    return any(isinstance(one, list | tuple) or getattr(one, "ndim", 0) > 0 for one in bands[1:])
