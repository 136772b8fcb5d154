"""Conversion of the columns of light curves, in every form that is accepted, to arrays of real numbers.

Copies are made only of masked arrays, nullable pandas columns, columns of Python objects and lists of numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from decimal import Decimal
from importlib.util import find_spec
from numbers import Real
from typing import Any

import numpy as np

from skysieve.core.arrays import array_module, as_array, from_arrow, is_device_array, spacing_at, to_arrow

from .column_names import refuse_rounded

_PLAIN = "iuf"
_KINDS = {
    "U": "text",
    "S": "text",
    "T": "text",
    "c": "complex numbers",
    "b": "booleans",
    "O": "Python objects",
    "M": "dates",
    "m": "time differences (give an astropy TimeDelta instead)",
}


def is_table(x: Any) -> bool:
    """Whether ``x`` is a table with named columns: astropy, pandas, pyarrow, polars, a structured array or a dict."""
    if isinstance(x, Mapping) or _of_records(x) is not None:
        return True
    return any(hasattr(x, name) for name in ("colnames", "column_names", "columns", "iterrows"))


def column_names(table: Any) -> list[str]:
    """Names of the columns of a table."""
    if isinstance(table, Mapping):
        return [str(name) for name in table]
    if (names := _of_records(table)) is not None:
        return list(names)
    for attribute in ("colnames", "column_names", "columns"):
        names = getattr(table, attribute, None)
        if names is not None:
            return [str(name) for name in names]
    raise TypeError(f"data is a {type(table).__name__}; a table or a dict of columns is expected")


def _of_records(table: Any) -> tuple[str, ...] | None:
    """Names of the columns of a structured array, as of the data of a FITS table; None for others."""
    return table.dtype.names if isinstance(table, np.ndarray) else None


def pick(table: Any, column: Any, argument: str) -> Any:
    """The column of that name; a `column` that is no string is returned unchanged.

    ``table`` may also be a column of light curves (nested-pandas, or Arrow's structs of lists or lists of structs), of
    which ``column`` is then a field.
    """
    if not isinstance(column, str):
        return column
    fields = _fields(table)
    if fields:
        if column not in fields:
            raise ValueError(f"{argument}={column!r} is not a field of data: expected one of {', '.join(fields)}")
        return _field(table, column)
    names = column_names(table)
    outer, _, inner = column.partition(".")
    for name in (column, outer):
        if names.count(name) > 1:
            raise ValueError(f"{argument}={column!r}: data has {names.count(name)} columns {name!r}; expected one")
    if column not in names and outer in names:  # a field of a nested column, such as "lc.mjd"
        nested = table[outer]
        if inner in _fields(nested):
            return _field(nested, inner)
        cells = nested.to_list() if getattr(nested, "dtype", None) == np.dtype(object) else []
        if cells and all(isinstance(cell, Mapping) and inner in cell for cell in cells):
            return [np.asarray(cell[inner]) for cell in cells]
    if column not in names:
        raise ValueError(f"{argument}={column!r} is not a column of data: expected one of {', '.join(names)}")
    return table[column]


def _arrow_column(x: Any) -> Any:
    """A column of pyarrow, or one of pandas or nested-pandas that holds Arrow's memory, as Arrow has it; else None."""
    if sys.modules.get("pyarrow") is None:  # not loaded, perhaps not installed: no column holds Arrow's memory
        return None
    module = type(x).__module__.partition(".")[0]
    if module in ("pandas", "nested_pandas") and hasattr(getattr(x, "array", None), "__arrow_array__"):
        x = x.array.__arrow_array__()
        module = type(x).__module__.partition(".")[0]
    return x if module == "pyarrow" and hasattr(x, "type") else None


def _fields(column: Any) -> list[str]:
    """Names of the fields of a column of light curves: a struct's that are lists, or those of the structs in lists."""
    arrow = _arrow_column(column)
    if arrow is None or "struct<" not in str(arrow.type):
        return []
    import pyarrow as pa

    from .parquet import is_list

    if is_list(arrow.type) and pa.types.is_struct(arrow.type.value_type):
        return [field.name for field in arrow.type.value_type]
    return [field.name for field in arrow.type if is_list(field.type)] if pa.types.is_struct(arrow.type) else []


def _field(column: Any, name: str) -> Any:
    """A field of a column of light curves as Arrow's column of lists, without a copy of the values."""
    import pyarrow as pa

    from .parquet import flattened

    arrow = _arrow_column(column)
    lengths, values = flattened(arrow.combine_chunks() if isinstance(arrow, pa.ChunkedArray) else arrow, name)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.LargeListArray.from_arrays(offsets, values.combine_chunks())


def pieces(x: Any) -> Any:
    """A column of lists (pyarrow, pandas, nested-pandas, polars) as a list of arrays; anything else unchanged."""
    lists = arrow_lists(x)
    if lists is not None:
        values, offsets = lists
        return np.split(values, offsets[1:-1]) if len(offsets) > 1 else []
    module = type(x).__module__.partition(".")[0]
    if module == "polars" and hasattr(getattr(x, "dtype", None), "inner"):  # the type of lists of the inner type
        return [np.empty(0) if one is None else one.to_numpy() for one in x]
    if module not in ("pandas", "nested_pandas") or not hasattr(x, "array"):
        return x
    if x.dtype != object or not len(x) or not any(np.ndim(value) > 0 for value in x.array):
        return x
    values = x.to_numpy().tolist()
    if set(map(type, values)) == {np.ndarray} and all(value.dtype != object for value in values):
        return values
    return [np.empty(0) if value is None or np.ndim(value) == 0 else _joined(np.asarray(value)) for value in values]


def _joined(value: Any) -> Any:
    """A list of lists as one array; any other array unchanged."""
    if value.dtype == object and value.size and all(np.ndim(part) for part in value):
        return np.concatenate([_joined(np.asarray(part)) for part in value])
    return value


def arrow_lists(x: Any) -> tuple[Any, np.ndarray[Any, Any]] | None:
    """The numbers of a column of Arrow lists one after another, and the offsets of the lists; None for anything else.

    The numbers are a view of Arrow's memory where that is in one piece without missing values.
    """
    from .units import without_dates

    flat = _unlisted(x)
    return None if flat is None else (numeric(without_dates(flat[0]), "list"), flat[1])


def arrow_words(x: Any) -> tuple[Any, np.ndarray[Any, Any]] | None:
    """As `arrow_lists`, for lists of text or whole numbers, which are not converted; missing values are None."""
    flat = _unlisted(x)
    return None if flat is None else (flat[0].to_numpy(), flat[1])


def _unlisted(x: Any) -> tuple[Any, np.ndarray[Any, Any]] | None:
    """The values of a column of Arrow lists, as Arrow has them, and the lists' offsets; None for anything else."""
    x = _arrow_column(x)
    if x is None or not str(x.type).startswith(_ARROW_LISTS):
        return None
    from .parquet import flattened

    lengths, flat = flattened(x, None)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return flat, offsets


def arrow_labels(x: Any) -> Any:
    """Ids or bands of a column of Arrow as an array, in which missing ones are None or NaN; anything else unchanged."""
    arrow = _arrow_column(x)
    return x if arrow is None else from_arrow(arrow)


_ARROW_LISTS = ("list<", "large_list<", "fixed_size_list<")


def is_ragged(x: Any) -> bool:
    """Whether ``x`` is a list (tuple, object array) of arrays rather than one array."""
    if isinstance(x, np.ndarray):
        return x.dtype == object and x.ndim == 1 and x.size > 0 and np.ndim(x[0]) > 0
    return isinstance(x, (list, tuple)) and len(x) > 0 and np.ndim(x[0]) > 0


def numeric(x: Any, name: str) -> Any:
    """An array of real numbers, with NaN for masked entries; a view of ``x`` where possible.

    Raises
    ------
    TypeError
        For text, complex numbers, dates, booleans and objects.
    """
    if type(x) is np.ndarray and x.dtype.kind in _PLAIN:
        return x
    if is_device_array(x):
        return _checked(as_array(x), name)
    unmasked = getattr(x, "unmasked", None)
    if unmasked is not None:  # astropy Masked
        x = np.ma.MaskedArray(np.asarray(unmasked), np.asarray(x.mask))
    elif hasattr(x, "to_numpy") and not isinstance(getattr(x, "dtype", None), np.dtype):
        x = _nullable(x)
    if isinstance(x, np.ma.MaskedArray):
        data = _checked(np.asarray(x.data), name)
        mask = np.ma.getmaskarray(x)
        return np.where(mask, np.nan, data) if mask.any() else data
    try:
        array = as_array(x)
    except ValueError:
        raise ValueError(
            f"{name} is a list of pieces of unequal depth or length; numbers, or a list of 1-D arrays, are expected"
        ) from None
    return _checked(array, name)


def _nullable(x: Any) -> Any:
    """A pandas column of a nullable type, or an Arrow or polars column: missing entries become NaN.

    `from_arrow` is used because pyarrow's own array of a chunked column with a dictionary has wrong values in the place
    of missing ones.
    """
    try:
        return x.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError):
        return from_arrow(x) if type(x).__module__ == "pyarrow.lib" else x.to_numpy()


def _checked(array: Any, name: str) -> Any:
    if array.size == 0 and array.dtype.kind in "fO":
        return array.astype(np.float64)
    if array.dtype.kind == "O" and array.ndim:
        return _real_numbers(array, name)
    if array.dtype.kind not in _PLAIN:
        kind = _KINDS.get(array.dtype.kind, "records")
        raise TypeError(f"{name} holds {kind} ({array.dtype}); real numbers are expected")
    return array


def _real_numbers(array: Any, name: str) -> np.ndarray[Any, Any]:
    """Python's numbers as float64, with NaN for None and pandas' NA."""
    out = np.empty(array.shape)
    for i, value in np.ndenumerate(array):
        if value is None or value is np.ma.masked or type(value).__name__ == "NAType":
            out[i] = np.nan
        elif isinstance(value, Real | Decimal) and not isinstance(value, bool):
            out[i] = float(value)
        else:
            row = i[0] if len(i) == 1 else i
            raise TypeError(f"{name} holds Python objects (row {row} is {value!r:.50}); real numbers are expected")
    return out


def finite_rows(t: Any, y: Any, dy: Any) -> Any:
    """Whether each row has a finite time and value, and a finite error if there are errors."""
    xp = array_module(t)
    return xp.isfinite(t) & xp.isfinite(y) & (True if dy is None else xp.isfinite(dy))


def time_resolution(t: Any) -> float:
    """Spacing of the floating-point numbers at the largest of ``t``; 0 if they are float64 or whole numbers."""
    if t.size == 0 or spacing_at(t.dtype, 1.0) == 0:
        return 0.0
    low, high = float(t.min()), float(t.max())
    if not np.isfinite(low) or not np.isfinite(high):
        finite = t[abs(t) < float("inf")]
        if finite.size == 0:
            return 0.0
        low, high = float(finite.min()), float(finite.max())
    return spacing_at(t.dtype, max(abs(low), abs(high)))


def group_rows(ids: Any, name: str = "id") -> tuple[Any, np.ndarray[Any, Any], np.ndarray[Any, Any] | None]:
    """Objects of a column of ids, in order of first appearance.  ``name`` is that of the column in an error.

    Returns the id of each object, the offsets of its rows, and the order in which rows are to be
    taken (stable; None if the rows of each object are contiguous).
    """
    mask = getattr(ids, "mask", None)  # a method of a pandas column, an array of a masked one
    if mask is not None and not callable(mask) and np.any(mask):
        raise ValueError(f"id of row {int(np.argmax(mask))} is masked; every row needs one")
    ids = arrow_labels(ids)
    ids = np.asarray(getattr(ids, "unmasked", ids))
    if ids.ndim != 1:
        raise ValueError(f"id has shape {ids.shape}; one id per row is expected")
    if ids.dtype == object:
        odd = [j for j, value in enumerate(ids) if not isinstance(value, (str, int, np.integer))]
        if odd:
            raise TypeError(f"id of row {odd[0]} is {ids[odd[0]]!r}; text or whole numbers are expected")
        ids = ids.astype(str)
    elif ids.dtype.kind == "f" and np.isnan(ids).any():
        raise ValueError(f"id of row {int(np.argmax(np.isnan(ids)))} is nan; every row needs one")
    starts = np.flatnonzero(np.concatenate([np.ones(min(ids.size, 1), bool), ids[1:] != ids[:-1]]))
    names, code = _numbered(ids[starts])
    refuse_rounded(names, name)
    if names.dtype.kind == "S":  # text of FITS tables
        names = np.char.decode(names, "utf-8")
    elif names.dtype.kind == "T":  # text of variable width, which files cannot hold
        names = np.array(names.tolist(), dtype=str)
    if names.size == starts.size:
        return names, np.append(starts, ids.size).astype(np.int64), None
    codes = np.repeat(code, np.diff(np.append(starts, ids.size)))
    counts = np.bincount(codes, minlength=names.size)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    return names, offsets, _stable_order(codes)


MANY_LABELS = 200_000
"""From this number of labels on, PyArrow's hash table saves more time than importing PyArrow takes."""


def _numbered(labels: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Different labels in the order of their first appearance, and the position of each label among them."""
    if labels.size >= MANY_LABELS and labels.dtype.kind in "iu" and find_spec("pyarrow") is not None:
        found = to_arrow(labels).dictionary_encode()
        return from_arrow(found.dictionary).astype(labels.dtype), from_arrow(found.indices)
    names, first, code = np.unique(labels, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(names.size, np.int64)
    rank[order] = np.arange(names.size)
    return names[order], rank[code.reshape(-1)]


def _stable_order(codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As a stable `numpy.argsort` of whole numbers from 0 to 2**32, but by 16 bits at a time, which are sorted in
    linear time."""
    order = np.argsort((codes & 0xFFFF).astype(np.uint16), kind="stable")
    if codes.size and int(codes.max()) > 0xFFFF:
        order = order[np.argsort((codes >> 16).astype(np.uint16)[order], kind="stable")]
    return order
