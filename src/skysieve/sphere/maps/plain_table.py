"""Write maps of the whole sky to FITS files: the bytes that astropy writes, in pieces, by several threads.

Making a `BinTableHDU` imports astropy's tables and units, and converts the data in one thread.  Together this takes
longer than smoothing a map.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.tasks import TaskPool, usable_cores

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

__all__ = ["copy_pixels", "table_header", "write_file"]

BLOCK = 2880
"""Block size of a FITS file in bytes."""
PIECE = 2**23
"""Bytes that are converted at a time."""
MOST_THREADS = 8
"""Number of threads that convert pieces; more threads are limited by the memory bandwidth."""


def table_header(
    names: Sequence[str], units: Sequence[str], letter: str, npix: int, row: int, kept: Iterable[Any] = ()
) -> Any:
    """The header of a table of maps.

    Parameters
    ----------
    names, units : sequence of str
    letter : {"E", "D"}
        Type of the pixels.
    npix, row : int
        Pixels of a map, and of a row of the table.
    kept : iterable of astropy.io.fits.Card
        Further cards.
    """
    from astropy.io import fits

    header = fits.Header([
        ("XTENSION", "BINTABLE", "binary table extension"),
        ("BITPIX", 8, "array data type"),
        ("NAXIS", 2, "number of array dimensions"),
        ("NAXIS1", len(names) * row * _dtype(letter).itemsize, "length of dimension 1"),
        ("NAXIS2", npix // row, "length of dimension 2"),
        ("PCOUNT", 0, "number of group parameters"),
        ("GCOUNT", 1, "number of groups"),
        ("TFIELDS", len(names), "number of table fields"),
    ])  # fmt: skip
    for number, (name, unit) in enumerate(zip(names, units, strict=True), 1):
        header[f"TTYPE{number}"] = name
        header[f"TFORM{number}"] = f"{row if row > 1 else ''}{letter}"
        if unit:
            header[f"TUNIT{number}"] = unit
    header.extend(fits.Header(kept, copy=True).copy(strip=True), unique=False, update=False)
    return header


def _dtype(letter: str) -> np.dtype[Any]:
    return np.dtype(">f4" if letter == "E" else ">f8")


def write_file(
    path: Path, before: Sequence[Any], header: Any, maps: NDArray[Any], row: int, after: Sequence[Any]
) -> None:
    """Write a file of HDUs and a table of maps.

    Parameters
    ----------
    path : Path
    before, after : sequence of HDU
        HDUs whose data are copied as they are.
    header : astropy.io.fits.Header
        See `table_header`.
    maps : numpy.ndarray, shape (n, npix)
    row : int
        Pixels of a row of the table.
    """
    dtype = _dtype(header["TFORM1"][-1])
    size = maps.size * dtype.itemsize
    with open(path, "wb") as file:
        for hdu in before:
            _copy(hdu, file)
        file.write(header.tostring().encode("ascii"))
        start = file.tell()
        file.seek(start + size)
        file.write(bytes(-size % BLOCK))
        for hdu in after:
            _copy(hdu, file)
    rows, each = maps.shape[1] // row, max(1, PIECE // (len(maps) * row * dtype.itemsize))

    def convert(first: int) -> None:
        last = min(rows, first + each)
        piece = np.empty((last - first, len(maps), row), dtype)
        piece[:] = maps[:, first * row : last * row].reshape(len(maps), -1, row).transpose(1, 0, 2)
        with open(path, "r+b") as part:
            part.seek(start + first * len(maps) * row * dtype.itemsize)
            part.write(piece.data)

    _run([partial(convert, first) for first in range(0, rows, each)])


def _copy(hdu: Any, file: Any) -> None:
    """Copy an HDU; if it comes from a file, copy the bytes of its data."""
    file.write(hdu.header.tostring().encode("ascii"))
    found = hdu.fileinfo()
    if found is not None:
        source, left = found["file"], found["datSpan"]
        source.seek(found["datLoc"])
        while left:
            data = source.read(min(left, PIECE))
            if not data:
                raise OSError("the file that the maps were read from ends early")
            file.write(data)
            left -= len(data)


def copy_pixels(found: NDArray[Any], into: NDArray[Any]) -> None:
    """Copy pixels of any byte order, shape (rows, pixels) or (rows,), to a map in native byte order."""
    target = into.reshape(found.shape)
    each = max(1, PIECE * len(found) // max(1, into.nbytes))

    def convert(first: int) -> None:
        target[first : first + each] = found[first : first + each]

    _run([partial(convert, first) for first in range(0, len(found), each)])


def _run(tasks: list[Any]) -> None:
    with TaskPool(max(1, min(len(tasks), usable_cores(), MOST_THREADS))) as pool:
        pool.run(tasks)
