"""HEALPix maps in FITS files, as healpy and the HEALPix programs write them: binary tables with NSIDE and ORDERING.

Files of part of the sky (INDXSCHM = EXPLICIT, or OBJECT = PARTIAL) have a column of pixel numbers.  They are read as
maps of the whole sky, in which the other pixels are UNSEEN, and written as files of the same pixels.
"""

from __future__ import annotations

import gzip
import io
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from skysieve.core.files import written
from skysieve.core.table_files import ascii_text
from skysieve.sphere.grids.healpix import ORDERINGS, UNSEEN, check_nside, npix2nside, ordering, reorder

from .fits_cards import BAD_DATA, HEADER_CARDS, PIXEL, STRUCTURE, find_column, is_auxiliary, pixel_column, stokes
from .plain_table import copy_pixels, table_header, write_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["SkyMaps", "fits_bytes", "read_maps", "write_maps"]

ROW = 1024
"""Number of pixels in a row of the tables that healpy writes."""
PLAIN = (".fits", ".fit", ".fts")
"""Ends of names of files that astropy does not compress."""


@dataclass(frozen=True, eq=False)
class SkyMaps:
    """Maps of one file.

    Attributes
    ----------
    maps : numpy.ndarray, shape (n, npix)
        In the type and order of the file.
    nest : bool
        Whether pixels are in NESTED order.
    names, units : tuple of str
        Names and units of the maps.
    header : dict
        Cards of the file: `fits_cards.HEADER_CARDS`.
    pixels : numpy.ndarray of int64, optional
        The pixels that the file of a map of part of the sky holds; None for a map of the whole sky.
    source : Path or bytes, optional
        The file that the maps were read from, or its content.  `write_maps` copies its other HDUs and cards.
    hdu : int
        The extension that the maps were read from.
    columns, unchanged : tuple of str
        Names of all columns of the extension, and of the columns that are copied from the file.
    history : tuple of str
        Lines that are added to HISTORY when the maps are written.
    """

    maps: NDArray[Any]
    nest: bool
    names: tuple[str, ...]
    units: tuple[str, ...]
    header: dict[str, Any] = field(default_factory=dict)
    pixels: NDArray[np.int64] | None = None
    source: Path | bytes | None = None
    hdu: int = 1
    columns: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    history: tuple[str, ...] = ()

    @property
    def nside(self) -> int:
        """Resolution."""
        return npix2nside(self.maps.shape[-1])

    @property
    def iau(self) -> bool:
        """Whether U has the sign of the IAU, which is opposite to HEALPix's (COSMO)."""
        return str(self.header.get("POLCCONV", "COSMO")).strip().upper() == "IAU"

    @property
    def polarised(self) -> bool:
        """Whether the maps are I, Q and U by their names, in any order."""
        return len(self.names) == 3 and {stokes(n) for n in self.names} == {"I", "Q", "U"}

    @property
    def bad_pixels(self) -> NDArray[np.bool_] | None:
        """Pixels with the value BAD_DATA of the file; None if this is UNSEEN, which `smoothing` recognises itself.

        Raises
        ------
        ValueError
            BAD_DATA is not a number.
        """
        card = self.header.get(BAD_DATA)
        try:
            value = UNSEEN if card is None else float(card)
        except ValueError:
            raise ValueError(f"{BAD_DATA} = {card!r}: expected a number") from None
        if not np.isfinite(value) or np.isclose(value, UNSEEN, rtol=1e-5):
            return None
        return np.abs(self.maps - value) <= 1e-5 * abs(value)

    def ordered(self, nest: bool) -> NDArray[Any]:
        """The maps in NESTED or in RING order."""
        return self.maps if nest == self.nest else reorder(self.maps, to="nest" if nest else "ring")


def read_maps(
    path: str | os.PathLike[str] | bytes,
    fields: Sequence[int | str] | None = None,
    hdu: int = 1,
    auxiliary: bool = True,
) -> SkyMaps:
    """Read maps; pixels that a file of part of the sky does not hold are UNSEEN.

    Parameters
    ----------
    path : str, path or bytes
        A file, or its content.
    fields : sequence of int or str, optional
        Columns, by number from 0 or by name; all by default.
    hdu : int
        The extension.
    auxiliary : bool
        Without ``fields``: whether columns of numbers of observations, variances, weights, errors, flags and
        coordinates (N_OBS, HITS, II_COV, SERROR, MASK, GLON, ...) are read too.  If not, `write_maps` copies them.

    Raises
    ------
    ValueError
        The file holds no such map.
    """
    from astropy.io import fits

    source, name = (path, "the input") if isinstance(path, bytes) else (Path(path).absolute(), os.fspath(path))
    with _opened(source, name) as hdus:
        if not 0 < hdu < len(hdus):
            raise ValueError(
                f"{name}: there is no extension {hdu} (number of extensions: {len(hdus) - 1}), expected a table with a "
                "HEALPix map"
            )
        if not isinstance(hdus[hdu], fits.BinTableHDU):
            raise ValueError(f"{name}: extension {hdu} is not a table, expected a HEALPix map")
        table = hdus[hdu]
        try:
            _ = table.data  # read it here, where the error about a truncated file can name the file
        except (OSError, EOFError, TypeError, ValueError) as error:
            raise ValueError(f"{name}: extension {hdu} cannot be read, the file may be cut short ({error})") from None
        header, names = table.header, list(table.columns.names)
        order = str(header.get("ORDERING", "")).strip().upper()
        if order not in ORDERINGS:
            many = " (a map of several resolutions: flatten it first)" if order == "NUNIQ" else ""
            raise ValueError(f"{name}: ORDERING is {order!r}{many}, expected RING or NESTED")
        pixels = None
        partial = str(header.get("OBJECT", "")).strip().upper() == "PARTIAL"
        scheme = header.get("INDXSCHM", "EXPLICIT" if partial else "IMPLICIT")
        if str(scheme).strip().upper() == "EXPLICIT" and names:
            pixels = _pixel_numbers(table, name)
            names.remove(pixel_column(names))
        if not names:
            raise ValueError(f"{name}: extension {hdu} has no column of a map")
        unchanged = () if auxiliary or fields is not None else tuple(n for n in names if is_auxiliary(n))
        if len(unchanged) == len(names):
            raise ValueError(
                f"{name}: columns {', '.join(names)} hold no map by their names, expected fields (--fields)"
            )
        usual = [k for k, n in enumerate(names) if n not in unchanged]
        chosen = usual if fields is None else [find_column(f, names, name) for f in fields]
        if len(set(chosen)) < len(chosen):
            raise ValueError(f"{name}: fields={list(fields or ())}: a column is named twice")
        taken = tuple(names[i] for i in chosen)
        read = [_read_column(table, n, name, pixels) for n in taken]
        if len({column.size for column in read}) > 1:
            raise ValueError(f"{name}: columns {', '.join(taken)} have maps of different lengths")
        maps = np.empty((len(read), read[0].size), np.result_type(*read))  # of the machine's byte order
        for row, column in zip(maps, read, strict=True):
            copy_pixels(column, row)
        cards = {k: header[k] for k in HEADER_CARDS if k in header}
        units = tuple(str(table.columns[n].unit or "") for n in taken)
        every = tuple(table.columns.names)
    found = SkyMaps(maps, ORDERINGS[order], taken, units, cards, pixels, source, hdu, every, unchanged)
    check_nside(found.nside, found.nest)
    return found


def _opened(source: Path | bytes, name: str, **options: Any) -> Any:
    from astropy.io import fits

    try:
        if isinstance(source, bytes):
            return fits.open(io.BytesIO(gzip.decompress(source) if source[:2] == b"\x1f\x8b" else source), **options)
        return fits.open(source, **options)
    except (OSError, EOFError, BadZipFile) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the file cannot be opened
            raise
        why = "" if str(error).startswith("No SIMPLE card") else f" ({error})"  # astropy's text names its own option
        raise ValueError(f"{name}: is not a FITS file{why}") from None


def _pixel_numbers(table: Any, name: str) -> NDArray[np.int64]:
    """The pixels of a map of part of the sky."""
    column = pixel_column(table.columns.names)
    found = np.asarray(table.data.field(column)).ravel()
    nside = table.header.get("NSIDE")
    if not isinstance(nside, int) or nside < 1:
        raise ValueError(f"{name}: NSIDE is {nside}, expected the whole sky's for a map of part of the sky")
    if found.dtype.kind not in "iu" or not found.size:
        raise ValueError(
            f"{name}: column {column} has {found.size} rows of {found.dtype.name}, expected the numbers of the pixels "
            "of a map of part of the sky"
        )
    number = found.astype(np.int64)
    bad = np.flatnonzero((number < 0) | (number >= 12 * nside**2))
    if bad.size:
        raise ValueError(f"{name}: column {column} holds {number[bad[0]]}, expected 0 to {12 * nside**2 - 1}")
    if len(np.unique(number)) < len(number):
        raise ValueError(f"{name}: column {column} holds a pixel twice")
    return number


def _read_column(table: Any, column: str, name: str, pixels: NDArray[np.int64] | None) -> NDArray[Any]:
    """Read one column and check it against NSIDE; with ``pixels``, spread it over the whole sky."""
    found = np.asarray(table.data.field(column))
    if found.dtype.kind not in "buif":
        raise ValueError(
            f"{name}: column {column} has dtype {found.dtype}, expected numbers; fields (--fields) chooses columns"
        )
    null = table.columns[column].null
    if isinstance(null, int):  # the stored value of pixels without data, before TSCAL and TZERO are applied
        found = np.where(_stored(table, column) == null, UNSEEN, found)
    if pixels is not None:
        if found.size != pixels.size:
            raise ValueError(f"{name}: column {column} has {found.size} values for {pixels.size} pixels")
        real = found.dtype.newbyteorder("=") if found.dtype.kind == "f" else np.dtype(np.float64)
        nside = table.header["NSIDE"]
        try:
            whole = np.full(12 * nside**2, UNSEEN, real)
        except (MemoryError, ValueError):  # ValueError if the array would be longer than any can be
            raise MemoryError(f"{name}: a map of the whole sky at NSIDE {nside} does not fit in memory") from None
        whole[pixels] = found.ravel()
        return whole
    try:
        nside = npix2nside(found.size)
    except ValueError as error:
        raise ValueError(f"{name}: column {column}: {error}") from None
    card = table.header.get("NSIDE", nside)
    if str(card).strip() != str(nside):
        raise ValueError(f"{name}: NSIDE is {card}, and column {column} has the {found.size} pixels of nside {nside}")
    return found


def _stored(table: Any, column: str) -> NDArray[Any]:
    """The integers of a column as stored in the file."""
    at = table.columns.names.index(column)
    return np.asarray(np.asarray(table.data.view(np.ndarray))[table.data.dtype.names[at]])


def write_maps(path: str | os.PathLike[str], sky: SkyMaps, overwrite: bool = False) -> None:
    """Write maps to a FITS file, which appears when it is complete; the name ``*.gz`` gives a compressed file.

    The primary header, the other HDUs and the cards of the file that the maps were read from are copied.

    Raises
    ------
    FileExistsError
        The file exists, unless ``overwrite``.
    ValueError
        The file that the maps were read from has changed.
    """
    target = Path(path)
    if target.exists() and not overwrite:
        raise FileExistsError(f"{target} exists")
    plain = sky.pixels is None and not sky.unchanged and target.suffix.lower() in PLAIN
    with written(target, sync=False) as part:
        if plain:
            _write_plain(part, sky)
            return
        with _hdus(sky) as hdus:
            hdus.writeto(part, overwrite=True)


def _write_plain(path: Path, sky: SkyMaps) -> None:
    """Write maps of the whole sky and no other columns."""
    from astropy.io import fits

    npix, row = sky.maps.shape[-1], _row(sky)
    given = fits.HDUList([fits.PrimaryHDU(), fits.ImageHDU()]) if sky.source is None else _opened_again(sky)
    with given:
        given.update_extend()
        try:
            kept = () if sky.source is None else _kept_cards(given[sky.hdu])
        except (OSError, KeyError, IndexError) as error:
            raise _changed(sky, error) from None
        places = {name: k for k, name in enumerate(sky.columns)}
        order = sorted(range(len(sky.names)), key=lambda k: places.get(sky.names[k], -1))
        names, units = ([given[k] for k in order] for given in (sky.names, sky.units))
        header = table_header(names, units, _letter(sky), npix, row, kept)
        _add_cards(header, _cards(sky), sky.history)
        _remove_stale(header, sky)
        maps = sky.maps if order == sorted(order) else sky.maps[order]
        write_file(path, given[: sky.hdu], header, maps, row, given[sky.hdu + 1 :])


def fits_bytes(sky: SkyMaps) -> bytes:
    """The content of the file that `write_maps` writes."""
    content = io.BytesIO()
    with _hdus(sky) as hdus:
        hdus.writeto(content)
    return content.getvalue()


@contextmanager
def _hdus(sky: SkyMaps) -> Iterator[Any]:
    """The HDUs of a file of maps."""
    from astropy.io import fits

    if sky.source is None:
        table = fits.BinTableHDU.from_columns(_columns(sky, _row(sky)))
        _add_cards(table.header, _cards(sky), sky.history)
        yield fits.HDUList([fits.PrimaryHDU(), table])
        return
    given = _opened_again(sky)
    try:
        table = _replaced_table(given[sky.hdu], sky)
    except BaseException as error:
        given.close()
        if isinstance(error, (OSError, KeyError, IndexError)):
            raise _changed(sky, error) from None
        raise
    _add_cards(table.header, _cards(sky), sky.history)
    _remove_stale(table.header, sky)
    with given:
        yield fits.HDUList([*given[: sky.hdu], table, *given[sky.hdu + 1 :]])


def _row(sky: SkyMaps, n_rows: int | None = None) -> int:
    """Number of pixels in a row of the table; ``n_rows`` is the number of rows if that is fixed."""
    npix = sky.maps.shape[-1] if sky.pixels is None else len(sky.pixels)
    if n_rows is not None:
        return npix // n_rows
    return ROW if npix % ROW == 0 and sky.pixels is None else 1


def _columns(sky: SkyMaps, row: int) -> list[Any]:
    """The maps as columns of a table with ``row`` pixels in a row, and the numbers of their pixels."""
    from astropy.io import fits

    repeat = row if row > 1 else ""
    shape = (-1, row) if row > 1 else (-1,)
    used = sky.maps if sky.pixels is None else sky.maps[:, sky.pixels]
    columns = [
        fits.Column(name=n, format=f"{repeat}{_letter(sky)}", unit=u or None, array=m.reshape(shape))
        for n, u, m in zip(sky.names, sky.units, used, strict=True)
    ]
    if sky.pixels is not None:
        name = pixel_column(sky.columns or (PIXEL,))
        columns.insert(0, fits.Column(name=name, format=f"{repeat}K", array=sky.pixels.reshape(shape)))
    return columns


def _letter(sky: SkyMaps) -> str:
    return "E" if sky.maps.dtype == np.float32 else "D"


def _cards(sky: SkyMaps) -> dict[str, Any]:
    """The cards of a HEALPix map."""
    cards: dict[str, Any] = {"PIXTYPE": "HEALPIX", "ORDERING": ordering(sky.nest), "NSIDE": sky.nside}
    if sky.pixels is None:
        cards |= {"FIRSTPIX": 0, "LASTPIX": sky.maps.shape[-1] - 1, "INDXSCHM": "IMPLICIT", "OBJECT": "FULLSKY"}
    else:
        cards |= {"INDXSCHM": "EXPLICIT", "GRAIN": 1, "OBS_NPIX": len(sky.pixels), "OBJECT": "PARTIAL"}
    return cards | sky.header


def _opened_again(sky: SkyMaps) -> Any:
    """The file that the maps were read from."""
    assert sky.source is not None
    name = "the input" if isinstance(sky.source, bytes) else str(sky.source)
    try:
        return _opened(sky.source, name, disable_image_compression=True)
    except OSError as error:
        raise _changed(sky, error) from None


def _changed(sky: SkyMaps, error: Exception) -> ValueError:
    name = "the input" if isinstance(sky.source, bytes) else str(sky.source)
    return ValueError(f"{name}: was changed after its maps were read ({error})")


def _remove_stale(header: Any, sky: SkyMaps) -> None:
    for card in ("GRAIN", "OBS_NPIX") if sky.pixels is None else ("FIRSTPIX", "LASTPIX"):
        header.remove(card, ignore_missing=True)


def _kept_cards(old: Any) -> list[Any]:
    return [card for card in old.header.cards if not STRUCTURE.fullmatch(card.keyword)]


def _replaced_table(old: Any, sky: SkyMaps) -> Any:
    """A table with new columns, and with the unchanged columns, the cards and the number of rows of the old table."""
    from astropy.io import fits

    columns = _columns(sky, _row(sky, len(old.data) if sky.unchanged else None))
    found = {c.name: c for c in columns} | {n: old.columns[n] for n in sky.unchanged}
    places = {name: k for k, name in enumerate(sky.columns)}
    listed = sorted(found.values(), key=lambda c: places.get(c.name, -1))
    return fits.BinTableHDU.from_columns(listed, header=fits.Header(_kept_cards(old), copy=True))


def _add_cards(header: Any, cards: dict[str, Any], history: Sequence[str]) -> None:
    for key, value in cards.items():
        header[key] = value
    for line in history:
        header.add_history(ascii_text(line))
