"""Conversion of the columns of files: numbers, dates, limits such as ``>16.2``, labels, and lists in cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from skysieve.core.arrays import spacing_at
from skysieve.periodogram.lightcurves.column_names import BadFile, is_label, is_missing, refuse_rounded
from skysieve.periodogram.lightcurves.units import mjd

if TYPE_CHECKING:
    from numpy.typing import NDArray

DATE = re.compile(
    r"(?P<year>\d{4})(?P<sep>[-/ ])(?P<month>\d\d)(?P=sep)(?P<day>\d\d)"
    r"(?P<part>\.\d+)?([T ](?P<clock>\d\d(:\d\d(:\d\d(\.\d*)?)?)?)( ?(Z|UTC?|(?P<zone>[-+]\d\d(:?\d\d)?)))?)?Z?"
)
COMPACT_DATE = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d(\.\d*)?)?Z?")
"""A date with the year first, as ISO 8601 writes it and in forms near to that."""
CLOCK = re.compile(r"\d\d?:\d\d(:\d\d(\.\d*)?)?Z?")
COMMA = re.compile(r"[-+]?(\d+,\d*|,\d+)([eE][-+]?\d+)?")
"""A number with a comma in place of the decimal point."""
THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+")
"""A number whose comma may stand between thousands."""
LIMIT = re.compile(r"[<>≤≥]=?")
DOUBLE = re.compile(r"[-+]?(\d+\.\d*|\.\d+)[dD][-+]\d+")
"""A number of Fortran's double precision, as Fortran writes it: with a point and a sign of the exponent."""


class Cells(NamedTuple):
    """Numbers that were written as text."""

    values: NDArray[np.float64]
    limits: NDArray[np.bool_]
    """Whether a cell holds a limit, such as ``>16.2``; its value is NaN."""
    n_dates: int


class BadCell(ValueError):
    """A cell that is no number; ``row`` counts from 0."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row = row


def is_number(cell: str) -> bool:
    """Whether the cell is a number for Python, or one of Fortran's double precision.

    >>> is_number("1.5e3"), is_number("1.5D+03"), is_number("5d3")
    (True, True, False)
    """
    try:
        float(cell)
    except ValueError:
        return DOUBLE.fullmatch(cell) is not None
    return True


def date_of(cell: str) -> float | None:
    """Modified Julian Date of a date in text; None for other text.

    >>> date_of("2018-07-09T12:00:00Z"), date_of("2018/07/09.5"), date_of("2018-07-09 14:00+02:00"), date_of("9.7.2018")
    (58308.5, 58308.5, 58308.5, None)
    """
    compact = COMPACT_DATE.fullmatch(cell)
    if compact is not None:
        year, month, day, hour, minute, second = compact.groups()[:6]
        cell = f"{year}-{month}-{day}T{hour}:{minute}:{second or '00'}"
    found = DATE.fullmatch(cell)
    if found is None or (found["part"] and found["clock"]):
        return None
    days = float(found["part"] or 0)
    if zone := found["zone"]:
        minutes = int(zone[1:3]) * 60 + int(zone[-2:] if len(zone) > 3 else 0)
        days += minutes / 1440 if zone[0] == "-" else -minutes / 1440
    date = "-".join(found[name] for name in ("year", "month", "day")) + (f"T{found['clock']}" if found["clock"] else "")
    try:
        return float(mjd(np.datetime64(date, "us"))) + days
    except ValueError:  # such as the 30th of February
        return None


def text_numbers(name: str, cells: Sequence[str] | NDArray[Any], role: str = "", comma: bool = False) -> Cells:
    """Numbers of a column of text.

    Parameters
    ----------
    name : str
        Of the column.
    cells : sequence of str
    role : str
        Of the column; dates are read as times, limits as values or errors.  "" accepts both.
    comma : bool
        Whether "1,234" is 1.234.  Otherwise that is refused, because it may also be 1234.

    Raises
    ------
    BadCell
        A cell is neither a number nor missing.

    Examples
    --------
    >>> text_numbers("mag", ["15.25", "15,5", ">16.2", "--"]).values.tolist()
    [15.25, 15.5, nan, nan]
    """
    limits = np.zeros(len(cells), bool)
    try:
        return Cells(np.array(cells, dtype=str).astype(np.float64), limits, 0)
    except ValueError:
        pass
    values = np.empty(len(cells))
    n_dates = 0
    for i, cell in enumerate(cells):
        try:
            values[i] = float(cell)
            continue
        except ValueError:
            text = cell.strip().replace("\u2212", "-")
        value, limit, date = _odd_number(name, i, text, role, comma)
        values[i], limits[i] = value, limit
        n_dates += date
    return Cells(values, limits, n_dates)


def _odd_number(name: str, row: int, text: str, role: str, comma: bool) -> tuple[float, bool, bool]:
    """Value of a cell that `float` does not read, whether it is a limit, and whether it is a date."""
    if is_missing(text):
        return np.nan, False, False
    if (sign := LIMIT.match(text)) is not None and role in ("", "mag", "err"):
        number = text[sign.end() :].strip()
        if is_number(number) or COMMA.fullmatch(number):
            return np.nan, True, False
    if COMMA.fullmatch(text):
        if THOUSANDS.fullmatch(text) and not comma:
            point, none = text.replace(",", ".", 1), text.replace(",", "")
            raise BadCell(row, f"{text!r} in column {name!r} may be {point} or {none}: write it without a comma")
        return float(text.replace(",", ".")), False, False
    if role in ("", "time") and (date := date_of(text)) is not None:
        return date, False, True
    plain = re.sub(r"(?<=[\d.])[dD](?=[-+]?\d+$)", "e", text)  # Fortran's exponent
    if is_number(plain):
        return float(plain), False, False
    hint = ""
    if CLOCK.fullmatch(text):
        hint = ": it is a time of day; join it with its date in one column"
    elif role == "time" and not text.isalpha() and any(c.isdigit() for c in text):
        hint = "; a date begins with its year, as in 2018-07-09T06:25:32"
    raise BadCell(row, f"{text!r} in column {name!r} is not a number{hint}")


def text_columns(
    cells: Iterable[tuple[str, Sequence[str]]], names: Mapping[str, str], at: Callable[[int], str], comma: bool = False
) -> tuple[dict[str, NDArray[Any]], bool]:
    """Values of columns of text by role, with the role "limit" if a cell has a limit; and whether the times are dates.

    ``cells`` are those of each role, ``names`` the names of the columns by role.  ``at(row)`` is the beginning of the
    error for a bad cell of that row.
    """
    data: dict[str, NDArray[Any]] = {}
    limits, n_dates = np.zeros(1, bool), 0
    for role, column in cells:
        if is_label(role):
            data[role] = tidy_labels(np.array(column, dtype=str))
            continue
        try:
            found = text_numbers(names[role], column, role, comma)
        except BadCell as e:
            raise BadFile(f"{at(e.row)}{e}") from None
        data[role] = found.values
        limits = limits | found.limits
        n_dates += found.n_dates
    if 0 < n_dates < np.isfinite(data["time"]).sum():
        raise mixed_dates(names["time"])
    if limits.any():
        data["limit"] = limits
    return data, n_dates > 0


def as_text(cell: Any) -> str:
    """A cell of a column of Python objects as text; missing ones are ""."""
    if cell is None or cell is np.ma.masked:
        return ""
    return cell.decode(errors="replace") if isinstance(cell, bytes) else str(cell)


def _as_cells(array: NDArray[Any]) -> list[str]:
    return [as_text(cell) for cell in array.tolist()]


def numbers(name: str, values: Any, role: str = "") -> NDArray[np.float64]:
    """A column as native float64: NaN for masked cells and limits, times in days, dates as Modified Julian Dates."""
    if hasattr(values, "mjd"):
        days = values.mjd
        values = np.where(values.mask, np.nan, getattr(days, "unmasked", days))
    unit = getattr(values, "unit", None)
    if role in ("", "time") and unit is not None and getattr(unit, "physical_type", None) == "time":
        values = values.quantity.to("d") if hasattr(values, "quantity") else values.to("d")
    values = getattr(values, "value", values)
    if isinstance(values, np.ma.MaskedArray):
        if values.dtype.kind in "iufb":
            values = np.ma.filled(values.astype(np.float64), np.nan)
        elif np.ma.getmaskarray(values).any() and values.ndim == 1:
            cells = np.where(np.ma.getmaskarray(values), b"" if values.dtype.kind == "S" else "", values.data)
            values = cells
        else:
            values = np.asarray(values)
    array = np.asarray(values)
    if array.ndim != 1:
        raise BadFile(f"column {name!r} holds arrays; one number a row is expected")
    if array.dtype.kind == "c":
        raise BadFile(f"column {name!r} holds complex numbers; real ones are expected")
    if array.dtype.kind == "M":
        if role not in ("", "time"):
            raise BadFile(f"column {name!r} holds dates; numbers are expected")
        return mjd(array)
    if array.dtype.kind == "m":
        return np.asarray(np.where(np.isnat(array), np.nan, array / np.timedelta64(1, "D")), np.float64)
    if array.dtype.kind not in "iufb":
        try:
            found = text_numbers(name, _as_cells(array), role)
        except BadCell as e:
            raise BadFile(f"row {e.row + 1}: {e}") from None
        if 0 < found.n_dates < np.isfinite(found.values).sum():
            raise mixed_dates(name)
        return found.values
    return np.ascontiguousarray(array, dtype=np.float64)


def mixed_dates(name: str) -> BadFile:
    """The error for a column that holds both dates and numbers."""
    return BadFile(f"column {name!r} holds dates and numbers; one of them is expected")


def resolution_of(kind: Any, values: NDArray[np.float64], days: NDArray[np.float64]) -> float:
    """Spacing of the floating-point numbers at the largest time of a column, in the unit of ``days``.

    Parameters
    ----------
    kind : dtype
        Of the column as the file holds it; double precision gives 0.
    values, days : numpy.ndarray
        The times in the unit of the file, and as they are used.

    Examples
    --------
    >>> resolution_of("f4", np.array([2459000.0]), np.array([2459000.0])), resolution_of("f8", np.ones(1), np.ones(1))
    (0.25, 0.0)
    """
    if spacing_at(kind, 1.0) == 0:
        return 0.0
    largest, used = (float(np.max(np.abs(x[np.isfinite(x)]), initial=0.0)) for x in (values, days))
    return spacing_at(kind, largest) * (used / largest if largest else 1.0)


def holds_dates(values: Any) -> bool:
    """Whether the first value of a column of a file is a date, of a date type or as text."""
    array = np.asarray(values)
    if array.dtype.kind == "M":
        return True
    if array.dtype.kind not in "OUS" or array.ndim != 1:
        return False
    first = next((text for text in map(as_text, array) if not is_missing(text)), "")
    return date_of(first.strip()) is not None


def limits_in(columns: Iterable[Any]) -> dict[str, NDArray[np.bool_]]:
    """The role "limit", which says in which rows a column of text has a limit; nothing if there is none."""
    found: NDArray[np.bool_] | None = None
    for values in columns:
        array = np.asarray(values)
        if array.dtype.kind in "OUS" and array.ndim == 1:
            limits = np.array([LIMIT.match(as_text(cell).strip()) is not None for cell in array.tolist()], bool)
            found = limits if found is None else found | limits
    return {} if found is None or not found.any() else {"limit": found}


def labels(values: Any, ids: str = "") -> NDArray[Any]:
    """A column of names or whole numbers; as text if cells are missing, with "" for these.

    ``ids``: the name of a column of ids, which is refused if they are rounded numbers.
    """
    values = getattr(values, "value", values)
    if isinstance(values, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(values)
        values = np.where(mask, "", labels(values.data, ids)) if mask.any() else values.data
    array = np.asarray(values)
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8")
    if array.dtype.kind in "iu":
        return array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind == "f":  # whole numbers that passed through a table with gaps
        if ids:
            try:
                refuse_rounded(array, f"column {ids!r}")
            except ValueError as e:
                raise BadFile(str(e)) from None
        whole = np.where(np.abs(array) < 2**53, array, 0.0).astype(np.int64)
        text = np.where(whole == array, whole.astype(str), array.astype(str))
        return np.where(np.isnan(array), "", text)
    return array.astype(str)


def tidy_labels(cells: NDArray[np.str_]) -> NDArray[np.generic]:
    """Labels as int64 if every one is a whole number without leading zeros, else unchanged."""
    try:
        whole = cells.astype(np.int64)
    except (ValueError, OverflowError):
        return cells
    return whole if np.array_equal(whole.astype(cells.dtype), cells) else cells


def is_ragged(values: Any) -> bool:
    """Whether a column of objects holds a list or an array in each of its cells."""
    array = np.asarray(getattr(values, "value", values)) if not hasattr(values, "mjd") else np.empty(0)
    if array.dtype.kind != "O" or array.ndim != 1:
        return False
    filled = [np.ndim(cell) for cell in array if cell is not None]
    return bool(filled) and min(filled) > 0


def joined_cells(values: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Length of the list in each cell of a column, and all their values one after another."""
    cells = [np.ma.empty(0) if cell is None else np.ma.asarray(cell).reshape(-1) for cell in values]
    lengths = np.array([len(cell) for cell in cells], np.int64)
    return lengths, np.ma.concatenate([cell for cell in cells if len(cell)] or [np.ma.empty(0)])


def left_out_note(uneven: Sequence[str]) -> list[str]:
    """A note on the rows whose lists differ in length, from a description of each.

    >>> left_out_note(["row 2: 't' holds 1 values, 'y' holds 2"])
    ["row 2: 't' holds 1 values, 'y' holds 2; it was left out"]
    """
    if not uneven:
        return []
    more = len(uneven) - 1
    return [f"{uneven[0]}; it was left out" + (f", and {more:,} like it" if more else "")]


def unit_of_times(values: Any) -> str:
    """Unit of a column of times, or ""; `numbers` converts to days."""
    if hasattr(values, "mjd"):
        return str(getattr(values, "format", "mjd"))
    unit = getattr(values, "unit", None)
    return str(unit) if unit is not None and getattr(unit, "physical_type", None) == "time" else ""


LATEST_DAY, LEAST_STAMP = 1e7, 3e11
"""No Julian Date is above the first number.  Times above the second are in milliseconds or less: as milliseconds since
1970 it is a date in 1979, and Julian Dates in seconds are below it."""


def _typical(times: NDArray[np.float64]) -> float:
    """Median of the times if one of them is too late for a Julian Date, else 0."""
    return float(np.nanmedian(times)) if np.fmax.reduce(times, initial=0.0) > LATEST_DAY else 0.0


def refuse_stamps(name: str, times: NDArray[np.float64]) -> None:
    """Refuse times without a unit that are milliseconds, microseconds or nanoseconds since 1970.

    Raises
    ------
    BadFile

    Examples
    --------
    >>> refuse_stamps("t", np.array([2459000.5, 1.5e9]))
    """
    typical = _typical(times)
    if typical > LEAST_STAMP:
        unit = "milli" if typical < 1e3 * LEAST_STAMP else "micro" if typical < 1e6 * LEAST_STAMP else "nano"
        raise BadFile(
            f"column {name!r} holds {typical:.0f}, which is too large for days. If its times are {unit}seconds since "
            "1970, write them as days, or as dates such as 2018-07-09T06:25:32 (in pandas to_json(date_format='iso'))"
        )


def notes_on_days(times: NDArray[np.float64]) -> list[str]:
    """A note on times that are used as days although they are too late for Julian Dates.

    >>> notes_on_days(np.array([1.5e9])), notes_on_days(np.array([2459000.5]))
    (['times such as 1.5e+09 are used as days; Julian Dates are below 1e+07'], [])
    """
    typical = _typical(times)
    late = typical > LATEST_DAY
    return [f"times such as {typical:.6g} are used as days; Julian Dates are below {LATEST_DAY:g}"] if late else []
