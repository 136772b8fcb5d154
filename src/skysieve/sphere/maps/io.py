"""HEALPix maps in FITS files, as healpy and the HEALPix programs write them: binary tables with NSIDE and ORDERING.

Files of part of the sky (INDXSCHM = EXPLICIT) have a column of pixel numbers; they become maps of the whole sky with
UNSEEN elsewhere, and files of the same pixels again.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.sphere.grids.healpix import UNSEEN, check_nside, npix2nside, reorder

from .fits_parts import is_auxiliary, of_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["SkyMaps", "read_maps", "write_maps"]

STOKES = {
    "I": ("I", "I_STOKES", "TEMPERATURE", "T"),
    "Q": ("Q", "Q_STOKES", "Q_POLARISATION", "Q-POLARISATION", "Q_POLARIZATION"),
    "U": ("U", "U_STOKES", "U_POLARISATION", "U-POLARISATION", "U_POLARIZATION"),
}
"""Names of the columns of I, Q and U."""
KEPT = ("COORDSYS", "POLCCONV", "BAD_DATA", "OBJECT", "TELESCOP", "INSTRUME", "FREQ", "DATE-OBS", "CREATOR", "PIXTYPE")
"""Cards that a smoothed map keeps."""
FAMILIES = {"I": ("I", "T", "TEMPERATURE", "INTENSITY"), "Q": ("Q",), "U": ("U",)}
"""First words of the names of their columns, such as Q_POLARISATION."""
UNSEEN_IN_FILES = "BAD_DATA"
"""The card that says what stands in pixels without data, where it is not UNSEEN."""
PIXEL = "PIXEL"
"""The column of pixel numbers of a map of part of the sky."""
ROW = 1024


@dataclass(frozen=True)
class SkyMaps:
    """Maps of one file.

    Attributes
    ----------
    maps : numpy.ndarray, shape (n, npix)
        In the file's type and order.
    nest : bool
        Whether pixels are in NESTED order.
    names, units : tuple of str
        Of each map.
    header : dict
        Cards that are kept (coordinates, polarisation convention, ...).
    pixels : numpy.ndarray of int64, optional
        Of a map of part of the sky, the pixels that its file holds; None for a map of the whole sky.
    source : Path, optional
        The file that the maps are from: what is written keeps its other HDUs and its cards.
    hdu : int
        The extension that they are from.
    columns, unchanged : tuple of str
        Names of all columns of the extension, and of those that are written as they are in the file.
    history : tuple of str
        Lines that are added to HISTORY when the maps are written.
    """

    maps: NDArray[Any]
    nest: bool
    names: tuple[str, ...]
    units: tuple[str, ...]
    header: dict[str, Any] = field(default_factory=dict)
    pixels: NDArray[np.int64] | None = None
    source: Path | None = None
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
        """Whether U has the sign of the IAU rather than that of HEALPix (COSMO)."""
        return str(self.header.get("POLCCONV", "COSMO")).strip().upper() == "IAU"


def read_maps(
    path: str | Path, fields: Sequence[int | str] | None = None, hdu: int = 1, auxiliary: bool = True
) -> SkyMaps:
    """Read maps; pixels that a file of part of the sky does not hold are UNSEEN.

    Parameters
    ----------
    path : str or Path
    fields : sequence of int or str, optional
        Columns, by number from 0 or by name; all by default.
    hdu : int
        Which extension.
    auxiliary : bool
        Without ``fields``: whether columns of numbers of observations, variances, weights and flags (N_OBS, HITS,
        II_COV, MASK, ...) are read too; where not, `write_maps` copies them from the file.

    Raises
    ------
    ValueError
        The file holds no such map.
    """
    from astropy.io import fits

    with _opened(path) as hdus:
        if not 0 < hdu < len(hdus) or not isinstance(hdus[hdu], fits.BinTableHDU):
            raise ValueError(f"{path}: extension {hdu} is no table, expected a HEALPix map")
        table = hdus[hdu]
        try:
            _ = table.data  # now, where a file that was cut short can be named
        except (OSError, EOFError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: extension {hdu} cannot be read, the file may be cut short ({error})") from None
        header, names = table.header, list(table.columns.names)
        pixels = None
        if str(header.get("INDXSCHM", "IMPLICIT")).strip().upper() == "EXPLICIT":
            pixels = _pixel_numbers(table, path)
            names = [n for n in names if n.upper() != PIXEL]
        if not names:
            raise ValueError(f"{path}: extension {hdu} has no column of a map")
        order = str(header.get("ORDERING", "")).strip().upper()
        if order not in ("RING", "NESTED", "NEST"):
            raise ValueError(f"{path}: ORDERING is {order!r}, expected RING or NESTED")
        unchanged = () if auxiliary or fields is not None else tuple(n for n in names if is_auxiliary(n))
        if len(unchanged) == len(names):
            raise ValueError(
                f"{path}: columns {', '.join(names)} hold no map by their names, expected fields (--fields)"
            )
        usual = [k for k, n in enumerate(names) if n not in unchanged]
        chosen = usual if fields is None else [_column(f, names, path) for f in fields]
        if len(set(chosen)) < len(chosen):
            raise ValueError(f"{path}: fields={list(fields or ())}: a column is named twice")
        taken = tuple(names[i] for i in chosen)
        maps = np.stack([_pixels(table, n, path, pixels) for n in taken])
        maps = maps.astype(maps.dtype.newbyteorder("="))
        kept = {k: header[k] for k in KEPT if k in header}
        units = tuple(str(table.columns[n].unit or "") for n in taken)
        every = tuple(table.columns.names)
    source = Path(path).absolute()
    found = SkyMaps(maps, order != "RING", taken, units, kept, pixels, source, hdu, every, unchanged)
    check_nside(found.nside, found.nest)
    return found


def _opened(path: str | Path) -> Any:
    from astropy.io import fits

    try:
        return fits.open(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path}: is no FITS file ({error})") from None


def _pixel_numbers(table: Any, path: str | Path) -> NDArray[np.int64]:
    """The pixels of a map of part of the sky."""
    named = [n for n in table.columns.names if n.upper() == PIXEL]
    if not named:
        raise ValueError(f"{path}: INDXSCHM is EXPLICIT, and there is no column {PIXEL}")
    found = np.asarray(table.data.field(named[0])).ravel()
    nside = table.header.get("NSIDE")
    if not isinstance(nside, int) or nside < 1:
        raise ValueError(f"{path}: NSIDE is {nside}, expected the whole sky's, as INDXSCHM is EXPLICIT")
    if found.dtype.kind not in "iu" or not found.size:
        raise ValueError(f"{path}: column {PIXEL} has {found.size} rows of {found.dtype.name}, expected whole numbers")
    number = found.astype(np.int64)
    bad = np.flatnonzero((number < 0) | (number >= 12 * nside**2))
    if bad.size:
        raise ValueError(f"{path}: column {PIXEL} holds {number[bad[0]]}, expected 0 to {12 * nside**2 - 1}")
    if len(np.unique(number)) < len(number):
        raise ValueError(f"{path}: column {PIXEL} holds a pixel twice")
    return number


def _pixels(table: Any, name: str, path: str | Path, pixels: NDArray[np.int64] | None) -> NDArray[Any]:
    """One column, checked against the file's NSIDE; with ``pixels``, spread over the whole sky."""
    found = np.asarray(table.data.field(name)).ravel()
    if found.dtype.kind not in "buif":
        raise ValueError(f"{path}: column {name} has dtype {found.dtype}, expected numbers")
    if pixels is not None:
        if found.size != pixels.size:
            raise ValueError(f"{path}: column {name} has {found.size} values for {pixels.size} pixels")
        real = found.dtype.newbyteorder("=") if found.dtype.kind == "f" else np.dtype(np.float64)
        nside = table.header["NSIDE"]
        try:
            whole = np.full(12 * nside**2, UNSEEN, real)
        except (MemoryError, ValueError):  # the latter where no array could be so long
            raise MemoryError(f"{path}: a map of the whole sky at NSIDE {nside} does not fit in memory") from None
        whole[pixels] = found
        return whole
    try:
        nside = npix2nside(found.size)
    except ValueError as error:
        raise ValueError(f"{path}: column {name}: {error}") from None
    said = table.header.get("NSIDE", nside)
    if str(said).strip() != str(nside):
        raise ValueError(f"{path}: NSIDE is {said}, and column {name} has the {found.size} pixels of nside {nside}")
    return found


def _column(wanted: int | str, names: list[str], path: Any) -> int:
    if isinstance(wanted, str) and not wanted.isdigit():
        upper = [n.upper() for n in names]
        for name in (wanted.upper(), *STOKES.get(wanted.upper(), ())):
            if name in upper:
                return upper.index(name)
        raise ValueError(f"{path}: no column {wanted!r}, there are {', '.join(names)}")
    if not 0 <= int(wanted) < len(names):
        raise ValueError(f"{path}: no column {wanted}, there are {len(names)} ({', '.join(names)})")
    return int(wanted)


def write_maps(path: str | Path, sky: SkyMaps, overwrite: bool = False) -> None:
    """Write maps; the file appears under its name when it is whole.

    Maps that were read from a file keep its primary header, its other HDUs and the cards of their own table, which are
    BEAM and EXTNAME among them.

    Raises
    ------
    FileExistsError
        Unless ``overwrite``.
    ValueError
        If the file that the maps were read from is no longer as it was.
    """
    from astropy.io import fits

    target = Path(path)
    if target.exists() and not overwrite:
        raise FileExistsError(f"{target} exists")
    npix = sky.maps.shape[-1]
    row = ROW if npix % ROW == 0 and sky.pixels is None else 1
    letter = "E" if sky.maps.dtype == np.float32 else "D"
    held = sky.maps if sky.pixels is None else sky.maps[:, sky.pixels]
    columns = [
        fits.Column(
            name=n,
            format=f"{row if row > 1 else ''}{letter}",
            unit=u or None,
            array=m.reshape(-1, row) if row > 1 else m,
        )
        for n, u, m in zip(sky.names, sky.units, held, strict=True)
    ]
    cards: dict[str, Any] = {
        "PIXTYPE": "HEALPIX", "ORDERING": "NESTED" if sky.nest else "RING", "NSIDE": sky.nside
    }  # fmt: skip
    if sky.pixels is None:
        cards |= {"FIRSTPIX": 0, "LASTPIX": npix - 1, "INDXSCHM": "IMPLICIT", "OBJECT": "FULLSKY"}
    else:
        columns.insert(0, fits.Column(name=PIXEL, format="K", array=sky.pixels))
        cards |= {"INDXSCHM": "EXPLICIT", "GRAIN": 1, "OBS_NPIX": len(sky.pixels), "OBJECT": "PARTIAL"}
    part = target.with_name(f".part{os.getpid()}.{target.name}")  # the suffix says whether it is compressed
    with ExitStack() as opened:
        if sky.source is None:
            table = fits.BinTableHDU.from_columns(columns)
            for key, value in {**cards, **sky.header}.items():
                table.header[key] = value
            for line in sky.history:
                table.header.add_history(line)
            hdus = fits.HDUList([fits.PrimaryHDU(), table])
        else:
            try:
                hdus, given = of_source(
                    sky.source, sky.hdu, columns, sky.columns, sky.unchanged, {**cards, **sky.header}, sky.history
                )
            except (OSError, KeyError, IndexError) as error:
                raise ValueError(f"{sky.source}: was changed after its maps were read ({error})") from None
            opened.enter_context(given)
        opened.callback(part.unlink, missing_ok=True)
        hdus.writeto(part, overwrite=True)
        part.replace(target)


def polarised(sky: SkyMaps) -> bool:
    """Whether the maps are I, Q and U by their names."""
    return [_stokes(n) for n in sky.names] == ["I", "Q", "U"]


def _stokes(name: str) -> str | None:
    """I, Q or U, by the first word of a column's name."""
    first = re.split(r"[^A-Z]", name.strip().upper())[0]
    return next((stokes for stokes, words in FAMILIES.items() if first in words), None)


def _bad_pixels(sky: SkyMaps) -> NDArray[np.bool_] | None:
    """Pixels that hold the file's own value of BAD_DATA, where it has one; UNSEEN is known to `smoothing`."""
    said = sky.header.get(UNSEEN_IN_FILES)
    try:
        value = UNSEEN if said is None else float(said)
    except ValueError:
        raise ValueError(f"{UNSEEN_IN_FILES} = {said!r}: expected a number") from None
    if not np.isfinite(value) or np.isclose(value, UNSEEN, rtol=1e-5):
        return None
    return np.abs(sky.maps - value) <= 1e-5 * abs(value)


def smooth_file(sky: SkyMaps, **options: Any) -> SkyMaps:
    """Smoothed maps with the file's order, units and cards.

    Stokes U in the convention of the IAU has the opposite sign of HEALPix's; it is turned before and turned back.

    Raises
    ------
    ValueError
        Q or U among maps that are not I, Q and U: each by itself is no map that can be smoothed.
    """
    from dataclasses import replace

    from .smoothing import smoothing

    pol = polarised(sky)
    stray = [n for n in sky.names if _stokes(n) in ("Q", "U")]
    if stray and not pol:
        raise ValueError(
            f"columns {', '.join(sky.names)}: {' and '.join(stray)} can be smoothed together with I alone; "
            "expected I, Q and U in this order (--fields I,Q,U), or none of Q and U (--fields I)"
        )
    bad = _bad_pixels(sky)
    maps = sky.maps.copy() if pol and sky.iau else sky.maps
    seen = None
    if pol and sky.iau:
        seen = np.abs(maps[2] - UNSEEN) > 1e25
        maps[2, seen] *= -1
    if bad is not None and bad.any():
        if options.get("nside_out") is not None:
            raise ValueError(f"{UNSEEN_IN_FILES} = {sky.header[UNSEEN_IN_FILES]} does not go with another nside")
        maps = np.ma.MaskedArray(maps, bad)
    out = np.asarray(smoothing(maps, pol=pol, nest=sky.nest, **options))
    if seen is not None:
        out[2, np.abs(out[2] - UNSEEN) > 1e25] *= -1
    pixels, unchanged = sky.pixels, sky.unchanged
    if out.shape[-1] != sky.maps.shape[-1]:
        unchanged = ()  # they have the pixels of the other nside
    if pixels is not None and out.shape[-1] != sky.maps.shape[-1]:
        pixels = np.flatnonzero((np.abs(out - UNSEEN) > 1e25).any(axis=0)).astype(np.int64)
    return replace(sky, maps=out, pixels=pixels, unchanged=unchanged)


def to_ring(sky: SkyMaps) -> NDArray[Any]:
    """Maps in RING order."""
    return reorder(sky.maps, to="ring") if sky.nest else sky.maps
