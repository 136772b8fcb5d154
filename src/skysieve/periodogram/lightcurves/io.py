"""Readers of light-curve files: text, JSON, Parquet (also with lists of rows), FITS, ECSV, VOTable.

A file is read whole, but only the columns that are needed; its objects are then searched a chunk at a time.  The
command reads large Parquet files in pieces (`stream`).
"""

from __future__ import annotations

import gzip
import math
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from skysieve.periodogram.lightcurves.choose_columns import choose, hints_of, left_over
from skysieve.periodogram.lightcurves.column_names import (
    FLAG,
    MOVING,
    STARS,
    BadFile,
    Columns,
    MissingColumn,
    Wanted,
    is_label,
    is_magnitude,
    missing_in,
    plain,
)
from skysieve.periodogram.lightcurves.textfile import read_text

from .arrays import group_rows
from .column_notes import repeated_times, sampled
from .flags import judge, mission
from .json_file import read_json
from .parquet import needs_astropy, read_parquet, units_of
from .table_columns import (
    holds_dates,
    is_number,
    is_ragged,
    joined_cells,
    labels,
    left_out_note,
    limits_in,
    numbers,
    refuse_stamps,
    resolution_of,
    tidy_labels,
    unit_of_times,
)
from .units import UNITS_OF_TIME, days_of, in_one_unit, unit_in_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BadFile", "LightCurves", "MissingColumn", "Wanted", "read_light_curves", "read_stream"]


@dataclass(frozen=True, eq=False)
class LightCurves:
    """The light curves of one file, object after object.

    Rows of object ``i`` are ``offsets[i]:offsets[i+1]`` of ``t`` (days), ``y`` and ``dy`` (None
    where the file has no errors).  ``band`` holds the band of each row, ``r``, ``delta`` (au) and ``phase`` (degrees)
    the observing geometry of objects of the solar system, if these columns are used.  ``notes`` are lines for the user.
    """

    path: Path
    ids: NDArray[Any]
    t: NDArray[np.float64]
    y: NDArray[np.float64]
    dy: NDArray[np.float64] | None
    offsets: NDArray[np.int64]
    taken: str
    value_name: str
    notes: list[str] = field(default_factory=list)
    band: NDArray[Any] | None = None
    r: NDArray[np.float64] | None = None
    delta: NDArray[np.float64] | None = None
    phase: NDArray[np.float64] | None = None
    time_unit: str = ""
    """Unit of the times in the file, before their conversion to days; "" if the file does not say."""
    has_ids: bool = True
    """Whether the file has a column of ids; without one it holds one object."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Number of rows whose value was replaced by NaN, by the reason."""
    time_resolution: float = 0.0
    """Spacing of the floating-point times as the file holds them, in days; 0 in double precision."""
    band_names: NDArray[Any] | None = None
    """Names of the bands where ``band`` holds positions among them."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.t)

    @cached_property
    def bands(self) -> NDArray[Any]:
        """Names of the bands, in order."""
        return np.empty(0, str) if self.band is None else np.unique(self.band)

    @property
    def several_bands(self) -> bool:
        """Whether an object has rows of more than one band."""
        return self.band is not None and bands_change(self.band, self.offsets)

    def pieces(self) -> AbstractContextManager[Iterator[LightCurves]]:
        """The light curves as an iterator with one piece; the interface is that of `CurveStream`."""
        return nullcontext(iter([self]))

    def missing(self) -> dict[str, int]:
        """Number of rows that are not searched, by the reason."""
        columns = (x for x in (self.t, self.y, self.dy) if x is not None)
        if not self.left_out and all(np.isfinite(x).all() for x in columns):
            return {}
        t, y = np.isfinite(self.t), np.isfinite(self.y)
        reasons = dict(self.left_out)
        reasons["without a value"] = max(0, int((~y).sum()) - sum(reasons.values()))
        reasons["without a time"] = int((y & ~t).sum())
        if self.dy is not None:
            reasons["without an error"] = int((t & y & ~np.isfinite(self.dy)).sum())
        return {why: n for why, n in reasons.items() if n}

    @property
    def is_magnitude(self) -> bool:
        """Whether the values are magnitudes, which plots draw downwards."""
        return is_magnitude(self.value_name)

    def part(self, start: int, stop: int) -> LightCurves:
        """Objects ``start:stop`` alone; views, not copies."""
        rows = slice(int(self.offsets[start]), int(self.offsets[stop]))
        columns = {name: getattr(self, name) for name in ("t", "y", "dy", "band", "r", "delta", "phase")}
        cut: dict[str, Any] = {name: None if x is None else x[rows] for name, x in columns.items()}
        offsets = self.offsets[start : stop + 1] - self.offsets[start]
        return replace(self, ids=self.ids[start:stop], offsets=offsets, **cut)

    def stop_after(self, start: int, max_objects: int, max_rows: int) -> int:
        """End of a run of objects from ``start`` within both limits; the run has at least one object."""
        limit = int(np.searchsorted(self.offsets, self.offsets[start] + max_rows, side="right")) - 1
        return min(len(self), start + max_objects, max(limit, start + 1))

    def edges(self, objects: int, rows: int) -> list[int]:
        """Objects at which runs within both limits begin, and the number of objects; see `part`."""
        edges = [0]
        while edges[-1] < len(self):
            edges.append(self.stop_after(edges[-1], objects, rows))
        return edges


def bands_change(band: NDArray[Any], starts: NDArray[np.int64]) -> bool:
    """Whether the band changes between rows of one object, where objects begin at the rows ``starts``.

    >>> band = np.array(["g", "g", "r"])
    >>> bands_change(band, np.array([0, 2])), bands_change(band, np.array([0, 1]))
    (False, True)
    """
    changes = np.append(False, band[1:] != band[:-1])
    changes[starts[starts < len(changes)]] = False
    return bool(changes.any())


def read_light_curves(
    path: str | os.PathLike[str], wanted: Wanted | None = None, *, band: str | None = None
) -> LightCurves:
    """Read the light curves of one file, whatever its format.

    Parameters
    ----------
    path : path
        CSV, whitespace or other delimited text, JSON (a list of records, one record a line, or lists by name), ECSV,
        FITS table or VOTable (each also gzipped), or Parquet.  A row of JSON, FITS, VOTable and Parquet may hold a
        whole light curve as lists.  The content decides, not the suffix.
    wanted : Wanted, optional
        Columns by name, or by number from 1.  Those not named are found by their usual names; a
        file without a header by its number of columns.  Values of rows that quality flags mark as bad become NaN
        (``Wanted(flags=())`` keeps them), and are counted in ``left_out``.
    band : str, optional
        Keep only the rows whose band column holds this value.

    Returns
    -------
    LightCurves
        Objects in the order of their first rows.  Without an id column the file is one object,
        named after the file.

    Raises
    ------
    BadFile
        The file is empty or cannot be read; the message names the first bad row.
    MissingColumn
        A column does not exist; the message lists those that do.

    Examples
    --------
    >>> from skysieve.periodogram.command.demo import star_file
    >>> star = read_light_curves(star_file())
    >>> len(star), len(star.t), star.taken
    (1, 1235, 'time = mjd, mag = mag, err = mag_err')
    """
    path = Path(path)
    wanted = wanted or Wanted()
    satellite, resolution = "", 0.0
    try:
        magic, packed = _beginning(path)
        if not magic:
            raise BadFile("is empty")
        kind = _kind(path, magic)
        if kind == "Parquet" and packed:
            raise BadFile("is gzipped Parquet: unpack it first (Parquet is compressed inside)")
        if kind == "Parquet" and not needs_astropy(path):
            names, columns, data, notes, time_unit, resolution = read_parquet(path, wanted)
            units: Sequence[Any] = units_of(path, names)
        elif kind in ("text", "JSON"):
            table = read_text(path, wanted) if kind == "text" else read_json(path, wanted)
            names, columns, data, notes = table.names, table.columns, table.data, list(table.notes)
            time_unit, units = table.time_unit, table.units
        else:
            names, columns, data, time_unit, satellite, notes, units, resolution = _read_astropy(path, wanted, kind)
    except (gzip.BadGzipFile, EOFError, zlib.error) as e:
        raise BadFile(f"is a damaged gzip file ({e})") from None
    if len(data["time"]) == 0:
        raise BadFile("has no rows")
    parts = columns.parts()
    given = {role: units[at] for role, at in parts.items() if at < len(units)}
    notes += in_one_unit(data, given, {role: names[at] for role, at in parts.items()})
    of_times = str(given.get("time") or unit_in_name(names[columns.time])).strip()
    if not time_unit and (days := days_of(of_times)) is not None:
        time_unit = UNITS_OF_TIME.get(of_times.casefold(), of_times)
        data["time"] = data["time"] * days
        resolution *= days
    if not time_unit:
        refuse_stamps(names[columns.time], data["time"])
    if wanted.quality_mask is not None and not columns.flags:
        raise MissingColumn(
            f"--quality-mask {wanted.quality_mask}: found no column of flags; name it with --flag-column. "
            f"There are: {', '.join(names)}"
        )
    grouped = _group(path, names, columns, data, band, wanted, satellite or mission(names))
    return replace(grouped, time_unit=time_unit, notes=[*notes, *grouped.notes], time_resolution=resolution)


def read_stream(stream: BinaryIO, wanted: Wanted | None = None, *, band: str | None = None) -> LightCurves:
    """Read the light curves of an open binary stream, such as standard input; see `read_light_curves`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stdin"
        with path.open("wb") as file:
            shutil.copyfileobj(stream, file)
        return replace(read_light_curves(path, wanted, band=band), path=Path(path.name))


HEAD = 2**14
"""Bytes of the beginning of a file by which its format is recognised."""
OTHERS = {
    b"PK\x03\x04": "is a ZIP archive or a spreadsheet: unpack it, or save it as CSV",
    b"BZh": "is packed by bzip2: unpack it first, or pack it by gzip",
    b"\xfd7zXZ": "is packed by xz: unpack it first, or pack it by gzip",
    b"\x28\xb5\x2f\xfd": "is packed by zstd: unpack it first, or pack it by gzip",
    b"\x89HDF": "is HDF5: save its table as Parquet or CSV",
    b"CDF\x01": "is netCDF: save its table as Parquet or CSV",
    b"ARROW1": "is an Arrow (Feather) file: save it as Parquet",
    b"FEA1": "is a Feather file: save it as Parquet",
    b"\x93NUMPY": "is an array of NumPy: save it as CSV or Parquet",
    b"\x80\x04\x95": "is a pickle of Python: save its table as CSV or Parquet",
    b"SQLite format": "is a database of SQLite: save its table as CSV or Parquet",
    b"%PDF": "is a PDF: its table is needed as CSV or text",
    b"Obj\x01": "is Avro: save it as Parquet or CSV",
    b"\x0c\0\0\0HEADER_START": "is a filterbank: skysieve dedisp search reads it",
    b"\\begin{": "is a table of LaTeX: save it as CSV",
    b"\\documentclass": "is a document of LaTeX: save its table as CSV",
}
"""What to do with a file of another kind, by its first bytes."""


def _kind(path: Path, magic: bytes) -> str:
    """The format of a file by its first bytes: Parquet, JSON, one that astropy reads, or text.

    Raises
    ------
    BadFile
        A known format that is not read; the message says what to do.
    """
    suffix = path.suffix.lower()
    start = magic.removeprefix(b"\xef\xbb\xbf").lstrip()
    if magic[:4] == b"PAR1":
        return "Parquet"
    for beginning, advice in OTHERS.items():
        if magic.startswith(beginning):
            raise BadFile(advice)
    if b"<VOTABLE" in magic[:512] or (start.startswith(b"<?xml") and suffix != ".csv"):
        return "VOTable"
    if start[:14].lower().startswith((b"<!doctype html", b"<html")):
        raise BadFile("is a page of HTML, perhaps an error of a server: download the table again")
    if magic[:9] == b"SIMPLE  =":
        return "FITS"
    if magic.startswith(b"# %ECSV") or suffix == ".ecsv":
        return "ECSV"
    if start[:1] in (b"{", b"["):
        return "JSON"
    if start.startswith(b"Title:"):
        return "MRT"
    return "IPAC" if magic[:1] == b"\\" or (magic[:1] == b"|" and not _has_bars_in_rows(magic)) else "text"


def _has_bars_in_rows(head: bytes) -> bool:
    """Whether the second line of a table is a row or a rule between bars; that of an IPAC table names types."""
    line = head.decode(errors="replace").splitlines()[1:2]
    cells = [cell.strip() for cell in line[0].split("|")] if line and line[0].startswith("|") else []
    return any(is_number(cell) or (cell and not cell.strip("-:")) for cell in cells)


def _beginning(path: Path) -> tuple[bytes, bool]:
    """The first bytes of a file, unpacked where it is gzipped, and whether it is."""
    with path.open("rb") as f:
        magic = f.read(HEAD)
    if magic[:2] != b"\x1f\x8b":
        return magic, False
    with gzip.open(path) as f:
        return f.read(HEAD), True


def _collect(names: Sequence[str], columns: Columns, column: Any) -> tuple[dict[str, NDArray[Any]], list[str], float]:
    """Values of the columns by role, notes, and the resolution of the times.

    A row may hold a whole light curve.
    """
    data: dict[str, NDArray[Any]] = {}
    texts, resolution = list[Any](), 0.0
    parts = columns.parts()
    table = {at: column(names[at]) for at in parts.values()}
    time, value = table[columns.time], table[columns.mag]
    width = _width(time)
    counts, notes = None, list[str]()
    if (width > 1 or is_ragged(time)) and (is_ragged(time), width) != (is_ragged(value), _width(value)):
        shapes = " and ".join(f"column {names[at]!r} {_shape(table[at])}" for at in (columns.time, columns.mag))
        raise BadFile(f"{shapes}: one time and one value a row, or as many times as values, are expected")
    if is_ragged(time):
        counts = joined_cells(time)[0]
        even, notes = _even_rows(names, columns.time, table, counts)
        table, counts = {at: values[even] for at, values in table.items()}, counts[even]
    for role, at in parts.items():
        values = table[at]
        if width > 1 and _width(values) in (1, width):  # a light curve a row
            values = values.ravel() if _width(values) == width else np.repeat(np.ma.asarray(values), width)
        elif counts is not None and is_ragged(values):
            unit = getattr(values, "unit", None) if role == "time" else None
            values = joined = joined_cells(values)[1]
            values = values if unit is None else np.ma.filled(values.astype(np.float64), np.nan) * unit
        elif counts is not None:
            values = np.repeat(np.ma.asarray(values), counts)
        # pyrefly: ignore[unbound-name]  # cells of times are arrays if there are counts
        held = joined if role == "time" and counts is not None else values
        if is_label(role):
            data[role] = labels(values, names[at] if role == "id" else "")
        else:
            data[role] = numbers(names[at], values, role)
            texts += [values] if role in ("mag", "err") else []
            resolution = _resolution(held, data[role]) if role == "time" else resolution
    if width > 1 and columns.id is None:
        data["id"] = np.repeat(np.arange(len(data["time"]) // width), width)
    elif counts is not None and columns.id is None and len(counts) > 1:
        data["id"] = np.repeat(np.arange(len(counts)), counts)
    return data | limits_in(texts), notes, resolution


def _resolution(times: Any, days: NDArray[np.float64]) -> float:
    """See `resolution_of`, for a column of an astropy table."""
    bare = times if hasattr(times, "mjd") else getattr(times, "value", times)
    if getattr(getattr(bare, "dtype", None), "kind", "") != "f":
        return 0.0
    return resolution_of(bare.dtype, np.ma.filled(np.ma.asarray(bare).astype(np.float64), np.nan), days)


def _even_rows(
    names: Sequence[str], time: int, table: dict[int, Any], counts: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], list[str]]:
    """Rows whose lists are all as long as that of the times, and a note on the others."""
    uneven: dict[int, str] = {}
    for at, values in table.items():
        if is_ragged(values):
            lengths = joined_cells(values)[0]
            for i in np.flatnonzero(lengths != counts).tolist():
                what = f"row {i + 1}: {names[time]!r} holds {counts[i]} values, {names[at]!r} holds {lengths[i]}"
                uneven.setdefault(i, what)
    if uneven and len(uneven) == len(counts):
        raise BadFile(uneven[0])
    even = np.ones(len(counts), bool)
    even[list(uneven)] = False
    return even, left_out_note(list(uneven.values()))


def _width(values: Any) -> int:
    """Number of values in a cell."""
    shape: tuple[int, ...] = getattr(values, "shape", ())
    return shape[1] if len(shape) == 2 else 1


def _shape(values: Any) -> str:
    """The shape of a column in words."""
    return "holds lists" if is_ragged(values) else f"has shape {getattr(values, 'shape', ())}"


def _tidy(table: Any, header: Mapping[str, Any]) -> None:
    """Make one value a row of columns of shape (n, 1), and of astropy's times in FITS, which have two parts.

    The parts are Julian Dates, and the keyword TCTYPn of the header names the time scale.
    """
    from astropy.time import Time

    scales = {header.get(f"TTYPE{n}"): str(header.get(f"TCTYP{n}")) for n in range(1, header.get("TFIELDS", 0) + 1)}
    for name in table.colnames:
        column = table[name]
        if getattr(column, "shape", ())[1:] == (1,):
            table[name] = column[:, 0]
        elif getattr(column, "shape", ())[1:] == (2,) and scales.get(name, "").casefold() in Time.SCALES:
            table[name] = Time(column[:, 0], column[:, 1], format="jd")


def _some(values: Any) -> NDArray[Any]:
    """A sample of the values of a column; empty for a column of arrays, of times or of coordinates."""
    if getattr(values, "ndim", 0) != 1 or not hasattr(values, "dtype") or is_ragged(values):
        return np.empty(0)
    bare = getattr(values, "value", values)[sampled(len(values))]
    if isinstance(bare, np.ma.MaskedArray):
        bare = bare.compressed()
        if not bare.size:
            return np.array([""])
    return np.asarray(bare)


def _read_astropy(
    path: Path, wanted: Wanted, kind: str
) -> tuple[list[str], Columns, dict[str, NDArray[Any]], str, str, list[str], list[Any], float]:
    """Names of all columns, those that are used, their values, the unit of the times, the satellite, notes, the units
    of all columns, and the resolution of the times."""
    import warnings

    from astropy.io import fits as pyfits
    from astropy.table import Table
    from astropy.utils.exceptions import AstropyWarning

    satellite, unread, header, cards = "", 0, dict[str, Any](), dict[str, Any]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AstropyWarning)
        try:
            if kind == "FITS":
                with pyfits.open(path) as hdus:
                    tables = [i for i, h in enumerate(hdus) if isinstance(h, (pyfits.BinTableHDU, pyfits.TableHDU))]
                    header = dict(hdus[tables[0]].header) if tables else {}
                    cards = dict(hdus[0].header) | header
                    twice = _named_twice(hdus[tables[0]].columns.names) if tables else None
                if not tables:
                    raise BadFile("is a FITS file without a table")
                if twice is not None:
                    raise BadFile(f"has two columns of the name {twice!r}")
                satellite, unread = mission([], cards), len(tables) - 1
                table = Table.read(path, format="fits", hdu=tables[0], unit_parse_strict="silent")
            elif kind == "VOTable":
                from astropy.io import votable

                found = [t for t in votable.parse(path).iter_tables() if t.fields]
                if not found:
                    raise BadFile("is a VOTable without a table")
                table, unread = found[0].to_table(), len(found) - 1
            else:
                table = Table.read(path, format="parquet" if kind == "Parquet" else f"ascii.{kind.lower()}")
            _tidy(table, header)
        except (OSError, ValueError, TypeError, KeyError, IndexError) as e:
            if isinstance(e, BadFile):
                raise
            reason = str(e).strip().splitlines() or [type(e).__name__]
            raise BadFile(f"cannot be read as {kind}: {reason[0]}") from None
        names = table.colnames

        def sample(i: int) -> NDArray[Any]:
            return _some(table[names[i]])

        try:
            columns = choose(names, wanted, sample)
        except MissingColumn as error:
            if not unread:
                raise
            raise MissingColumn(f"{error}; the file holds {unread + 1} tables, of which the first is read") from None
        data, uneven, resolution = _collect(names, columns, table.__getitem__)
        times = table[names[columns.time]]
        unit = unit_of_times(times) or ("dates" if holds_dates(times) else "")
        notes = [*uneven, *hints_of(names, columns, sample, wanted)]
        if unread:
            notes.append(f"the file holds {unread + 1} tables, of which the first is read")
        units = [getattr(table[name], "unit", None) for name in names]
        if kind == "FITS" and units[columns.time] is None and not unit:
            units[columns.time] = cards.get("TIMEUNIT")
        return names, columns, data, unit, satellite, notes, units, resolution


def _named_twice(names: Sequence[str]) -> str | None:
    """The first name that occurs twice."""
    seen = [name.casefold() for name in names]
    return next((name for name in names if seen.count(name.casefold()) > 1), None)


SENTINELS = np.array(
    [s * v for v in (99, 100, 999, 9999) for s in (1, -1)]
    + [s * v for v in (99.9, 99.99, 99.999, 99.9999, 999.9, 999.99, 999.999) for s in (1, -1)]
    + [29.999]
)
"""Magnitudes that surveys write for missing values."""
LEAST_SENTINEL = 29.99
LEAST_ERROR = 9.9
BRIGHTEST = 5.0
"""A magnitude of exactly 0 stands for a missing one if no other magnitude is brighter than this."""
LEAST_DATE = 10_000.0
"""Times whose median is later than this are dates, among which 0 and negative `SENTINELS` stand for missing times."""
MODIFIED, JULIAN = 1e5, 2.2e6
"""Modified or otherwise reduced Julian Dates are below the first number, Julian Dates are above the second."""


def marked(
    names: Sequence[str], columns: Columns, data: dict[str, NDArray[Any]], wanted: Wanted, satellite: str,
    notes: list[str], whole: bool = True,
) -> tuple[dict[str, int], tuple[int, ...]]:  # fmt: skip
    """Replace values that are marked as bad by NaN; returns how many, by the reason, and the flags that were used.

    ``whole``: these are all rows of the file, one of which at least must be left.
    """
    value = names[columns.mag]
    magnitudes = is_magnitude(value)
    if not columns.flags and _usual(data["time"], data["mag"], data.get("err"), magnitudes):
        return {}, ()
    left_out: dict[str, int] = {}
    used: list[int] = []
    present = np.isfinite(data["mag"])
    bad = _no_time(data["time"], present, left_out)
    for k, at in enumerate(columns.flags):
        found = judge(
            names[at], data.pop(f"{FLAG}{k}"), wanted.quality_mask, satellite, value, wanted.flags is not None
        )
        if found.bad is None:
            notes.append(found.note)
            continue
        used.append(at)
        new = int((found.bad & present & ~bad).sum())
        if new:
            left_out[f"flagged by {found.name} ({found.why})"] = new
        bad |= found.bad
    if whole and left_out and not (present & ~bad).any():
        raise BadFile(f"has no row left: all are {', '.join(left_out)}; --quality-mask none keeps them")
    if magnitudes:
        known = np.abs(data["mag"]) > LEAST_SENTINEL  # few, if any
        known[known] = np.isin(np.round(data["mag"][known], 4), SENTINELS)
        zero = data["mag"] == 0
        if zero.any() and np.nanmin(np.where(zero | known, np.inf, data["mag"]), initial=np.inf) > BRIGHTEST:
            known |= zero
        known &= present & ~bad
        if known.any():
            example = float(data["mag"][known][0])
            left_out[f"with {example:.7g} for a magnitude"] = int(known.sum())
            bad |= known
        bad |= _no_error(data.get("err"), present & ~bad, left_out)
    else:
        bad |= _no_flux(data["mag"], present & ~bad, left_out)
    if bad.any():
        data["mag"] = np.where(bad, np.nan, data["mag"])
    return left_out, tuple(used)


def _usual(
    time: NDArray[np.float64], value: NDArray[np.float64], error: NDArray[np.float64] | None, is_magnitude: bool
) -> bool:
    """Whether the extremes alone show that nothing is marked as bad: no NaN, and no number that may be a mark."""
    if not len(value) or not time.min() > 0:
        return False
    if not is_magnitude:
        return bool(value.min() >= -LEAST_ERROR)
    plausible = value.min() > 0 and value.max() <= LEAST_SENTINEL
    return bool(plausible and (error is None or (error.min() >= -LEAST_ERROR and error.max() <= LEAST_ERROR)))


def _no_time(time: NDArray[np.float64], present: NDArray[np.bool_], left_out: dict[str, int]) -> NDArray[np.bool_]:
    """Rows whose time is a number that is written for a missing date."""
    known = present & (time <= 0)
    known[known] = np.isin(np.round(time[known], 4), [0.0, -1.0, *SENTINELS])
    if not known.any() or not np.nanmedian(time) > LEAST_DATE:
        return np.zeros(len(time), bool)
    left_out[f"with {float(time[known][0]):.7g} for a time"] = int(known.sum())
    return known


TWO_DATES = "of objects with both Julian Dates and Modified Julian Dates"
"""Why `leave_out_two_dates` leaves out rows."""


def leave_out_two_dates(
    name: str, data: dict[str, NDArray[Any]], offsets: NDArray[np.int64], whole: bool = True
) -> dict[str, int]:
    """Replace the values of objects by NaN whose times are Julian Dates in some rows, Modified ones in others.

    Returns how many, by the reason.  Rows without a finite time and value do not count.  Each object has rows.
    ``name`` is that of the column of times.  ``whole``: these are all rows of the file, one of which must be left.
    """
    time, value = data["time"], data["mag"]
    if not len(time) or time.min() >= MODIFIED or time.max() <= JULIAN:
        return {}
    present = np.isfinite(time) & np.isfinite(value)
    dated = present & (time > LEAST_DATE)
    low, high = dated & (time < MODIFIED), dated & (time > JULIAN)
    n_low, n_high, n_dated = (np.add.reduceat(rows, offsets[:-1], dtype=np.int64) for rows in (low, high, dated))
    mixed = np.repeat((n_low > 0) & (n_high > 0) & (n_low + n_high == n_dated), np.diff(offsets))
    if not mixed.any():
        return {}
    if whole and not (present & ~mixed).any():
        raise BadFile(
            f"column {name!r} holds Julian Dates and Modified Julian Dates, such as {time[high][0]:.10g} and "
            f"{time[low][0]:.7g}; one of them is expected"
        )
    data["mag"] = np.where(mixed, np.nan, value)
    return {TWO_DATES: int((mixed & present).sum())}


def _no_flux(flux: NDArray[np.float64], present: NDArray[np.bool_], left_out: dict[str, int]) -> NDArray[np.bool_]:
    """Rows whose flux is a negative number that surveys write for a missing one, and is far from all others."""
    known = present & (flux < -LEAST_ERROR)
    known[known] = np.isin(np.round(flux[known], 4), SENTINELS)
    others = flux[present & ~known] if known.any() else flux[:0]
    if not others.size:
        return np.zeros(len(flux), bool)
    low, high = float(others.min()), float(others.max())
    known &= flux < low - (high - low)
    if known.any():
        left_out[f"with {float(flux[known][0]):.7g} for a flux"] = int(known.sum())
    return known


def _no_error(
    error: NDArray[np.float64] | None, present: NDArray[np.bool_], left_out: dict[str, int]
) -> NDArray[np.bool_]:
    """Rows whose error is a number that surveys write for a missing one: ASAS-SN's 99.99 marks a magnitude that is a
    limit."""
    if error is None:
        return np.zeros(len(present), bool)
    known = np.abs(error) > LEAST_ERROR
    known[known] = np.isin(np.round(error[known], 4), [*SENTINELS, 9.99, 9.999])
    known &= present
    if known.any():
        left_out[f"with {float(error[known][0]):.7g} for an error"] = int(known.sum())
    return known


def _group(
    path: Path, names: Sequence[str], columns: Columns, data: dict[str, NDArray[Any]], band: str | None,
    wanted: Wanted, satellite: str,
) -> LightCurves:  # fmt: skip
    notes: list[str] = []
    if rest := left_over(names):
        notes.append(
            f"{', '.join(rest)}: unused; without a header --time, --mag, --err, --id, --band-column take numbers"
        )
    if columns.id is not None:
        data = _owned(names[columns.id], data, notes)
    if band is not None:
        if "band" not in data:
            raise MissingColumn(
                f"--band {band}: found no band column; name it with --band-column. The columns are: {', '.join(names)}"
            )
        text = data["band"].astype(str)
        keep = text == band
        if not keep.any():
            raise BadFile(f"has no row of band {band!r}; the bands are: {', '.join(sorted(set(text)))}")
        data = {role: a[keep] for role, a in data.items()}
    no_band = _no_band(data)
    limits = data.pop("limit", None)
    left_out, flags = marked(names, columns, data, wanted, satellite, notes)
    if limits is not None and limits.any():
        left_out = {"with a limit instead of a value": int(limits.sum())} | left_out
    if no_band:
        left_out["without a band"] = no_band
    columns = replace(columns, flags=flags)
    error_of_flux(data)
    same_times(columns, data, notes)
    if columns.id is not None and wanted.id is None and _numbers_rows(names[columns.id], data.get("id")):
        notes.append(f"column {names[columns.id]} has another value in each row, and is not used; --id takes it")
        columns = replace(columns, id=None)
        del data["id"]
    if "id" in data:
        try:
            ids, offsets, order = group_rows(
                data["id"], "id" if columns.id is None else f"column {names[columns.id]!r}"
            )
        except ValueError as e:
            raise BadFile(str(e)) from None
        if order is not None:
            data = {role: a[order] for role, a in data.items()}
    else:
        name = path.name[: -len("".join(path.suffixes[-2:]))] if path.suffix == ".gz" else path.stem
        ids, offsets = np.array([name]), np.array([0, len(data["time"])], np.int64)
    left_out |= leave_out_two_dates(names[columns.time], data, offsets)
    return LightCurves(
        path=path, ids=ids, t=data["time"], y=data["mag"], dy=data.get("err"), offsets=offsets,
        taken=columns.taken(names), value_name=names[columns.mag], notes=notes,
        band=data.get("band"), r=data.get("r"), delta=data.get("delta"), phase=data.get("phase"), left_out=left_out,
        has_ids="id" in data,
    )  # fmt: skip


def _no_band(data: dict[str, NDArray[Any]]) -> int:
    """Replace the values of rows without a band by NaN, if others have one; returns how many."""
    if "band" not in data or data["band"].dtype.kind != "U":
        return 0
    missing = missing_in(data["band"])
    if not missing.any() or missing.all():
        return 0
    n = int((missing & np.isfinite(data["mag"])).sum())
    data["mag"] = np.where(missing, np.nan, data["mag"])
    data["band"] = tidy_labels(np.where(missing, data["band"][~missing][0], data["band"]))
    return n


def error_of_flux(data: dict[str, NDArray[Any]]) -> None:
    """Errors of magnitudes from a flux and its error, where these stand beside magnitudes without errors."""
    if "flux" in data and "flux_err" in data:
        flux, error = data.pop("flux"), data.pop("flux_err")
        with np.errstate(divide="ignore", invalid="ignore"):
            data["err"] = np.where(flux > 0, 2.5 / math.log(10) * error / flux, np.nan)


ROW_NUMBERS = ("id", "number", "uid", "catid", "identifier")
"""Names of identifiers that may also be those of rows."""
FEWEST_NUMBERED = 8


def _numbers_rows(name: str, ids: NDArray[Any] | None) -> bool:
    """Whether identifiers are those of rows, by their name and because all differ."""
    if ids is None or plain(name) not in ROW_NUMBERS or len(ids) < FEWEST_NUMBERED:
        return False
    return len(np.unique(ids)) == len(ids)


REPEATED = 0.1
"""The user is notified if more than this fraction of the rows have the same time as another row."""
LONG = 200_000


def same_times(columns: Columns, data: dict[str, NDArray[Any]], notes: list[str]) -> None:
    """Note that many rows share a time, as rows of several objects or bands do."""
    n = min(len(data["time"]), LONG)
    keys = [np.unique(data[role][:n], return_inverse=True)[1].reshape(-1) for role in ("id", "band") if role in data]
    groups = None if not keys else keys[0] if len(keys) == 1 else keys[0] * (int(keys[1].max()) + 1) + keys[1]
    many = repeated_times(data["time"][:n], groups)
    if many >= 5 and many > REPEATED * n:
        of = [] if columns.id is not None else ["objects (--id)"]
        of += [] if columns.band is not None else ["bands (--band-column)"]
        which = f" of one {' and '.join(r for r in ('id', 'band') if r in data)}" if keys else ""
        what = f": are they of several {' or '.join(of)}?" if of else ""
        notes.append(f"{many:,} rows{which} have the time of another row{what}")


def _owned(name: str, data: dict[str, NDArray[Any]], notes: list[str]) -> dict[str, NDArray[Any]]:
    """Rows with an id.

    Rubin's ids are numbers, 0 or missing for objects of the other kind.  Others may be names, and any word can be one.
    """
    ids = data["id"]
    rubin = plain(name) in (STARS, MOVING)
    if ids.dtype.kind in "iu":
        missing = (ids == 0) & rubin
    else:
        missing = (ids == "0") | missing_in(ids) if rubin else ids == ""
    if not missing.any():
        return data
    if missing.all():
        raise BadFile(f"has no row with an id in column {name!r}; --id names another column")
    n = int(missing.sum())
    notes.append(f"{n:,} row{' was' if n == 1 else 's were'} left out: no id in column {name!r}")
    rest = {role: a[~missing] for role, a in data.items()}
    return rest | ({} if ids.dtype.kind in "iu" else {"id": tidy_labels(rest["id"])})
