"""Column and card names in FITS files of maps: columns of I, Q and U, columns without maps, and cards to keep."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BAD_DATA", "HEADER_CARDS", "PIXEL", "STRUCTURE", "find_column", "is_auxiliary", "pixel_column", "stokes"]

STOKES = {"I": ("I", "TEMPERATURE", "T", "INTENSITY"), "Q": ("Q",), "U": ("U",)}
"""First words of the names of columns of I, Q and U, such as Q_POLARISATION; the preferred ones first."""
AUXILIARY = frozenset((
    "OBS", "NOBS", "HIT", "HITS", "NHIT", "NHITS", "COV", "COVAR", "COVARIANCE", "VAR", "VARIANCE", "WEIGHT",
    "WEIGHTS", "IVAR", "INVVAR", "MASK", "TMASK", "PMASK", "IMASK", "FLAG", "FLAGS", "SERROR", "ERROR", "ERR", "RMS",
    "STD", "STDEV", "STDDEV", "RA", "DEC", "GLON", "GLAT", "ELON", "ELAT", "LON", "LAT",
))  # fmt: skip
"""Words in the names of columns that hold no map of the sky's signal: observations, errors, flags, coordinates."""
AUXILIARY_NAMES = frozenset(("II", "IQ", "IU", "QQ", "QU", "UU", "PIXEL", "IPIX", "HPXINDEX"))
"""Whole names of such columns: covariances and numbers of pixels."""
PIXEL = "PIXEL"
"""The usual name of the column of pixel numbers of a map of part of the sky."""
BAD_DATA = "BAD_DATA"
"""The card that holds the value of pixels without data, if it is not UNSEEN."""
HEADER_CARDS = (
    "COORDSYS", "POLCCONV", BAD_DATA, "OBJECT", "TELESCOP", "INSTRUME", "FREQ", "DATE-OBS", "CREATOR", "PIXTYPE",
)  # fmt: skip
"""Cards that `SkyMaps.header` holds.  A card need not be here to be kept: `write_maps` copies all cards of the file
except those of `STRUCTURE`."""
STRUCTURE = re.compile(
    r"XTENSION|SIMPLE|EXTEND|BITPIX|NAXIS\d*|PCOUNT|GCOUNT|TFIELDS|THEAP|CHECKSUM|DATASUM|"
    r"T(TYPE|FORM|UNIT|NULL|SCAL|ZERO|DISP|DIM|BCOL|MIN|MAX|DMIN|DMAX|LMIN|LMAX|COMM|UCD)\d+"
)
"""Cards that describe the layout of a table or its columns; they are not copied, but written anew."""


def is_auxiliary(name: str) -> bool:
    """Whether a column, by its name, holds numbers of observations, variances, weights, errors, flags or coordinates.

    >>> [n for n in ("TEMPERATURE", "N_OBS", "II_COV", "Q_POLARISATION", "SERROR", "RA2000") if is_auxiliary(n)]
    ['N_OBS', 'II_COV', 'SERROR', 'RA2000']
    """
    words = [w for w in re.split(r"[^A-Z]+", name.strip().upper()) if w]
    return bool(AUXILIARY & set(words)) or name.strip().upper() in AUXILIARY_NAMES


def pixel_column(names: Sequence[str]) -> str:
    """The column of pixel numbers of a map of part of the sky: PIXEL, or else the first column, as in healpy.

    >>> pixel_column(["SIGNAL", "PIXEL"]), pixel_column(["PIX", "CHANNEL1"])
    ('PIXEL', 'PIX')
    """
    return next((n for n in names if n.upper() == PIXEL), names[0])


def stokes(name: str) -> str | None:
    """I, Q or U, by the first word of a column's name; None for other names.

    >>> stokes("Q-POLARISATION"), stokes("QUALITY")
    ('Q', None)
    """
    return next((s for s, words in STOKES.items() if _first_word(name) in words), None)


def find_column(wanted: int | str, names: Sequence[str], path: str) -> int:
    """The number of a column that is given by number, by name, or as I (also T), Q or U.

    Parameters
    ----------
    wanted : int or str
    names : sequence of str
        Names of all columns.
    path : str
        Name of the file in error messages.

    Raises
    ------
    ValueError
        There is no such column.
    """
    if isinstance(wanted, int) or wanted.isdigit():
        if not 0 <= int(wanted) < len(names):
            raise ValueError(f"{path}: no column {wanted}, there are {len(names)} ({', '.join(names)})")
        return int(wanted)
    upper = [n.upper() for n in names]
    if wanted.upper() in upper:
        return upper.index(wanted.upper())
    word = next((s for s, words in STOKES.items() if wanted.upper() in words), "")
    found = [k for k, n in enumerate(names) if word and stokes(n) == word and not is_auxiliary(n)]
    if not found:
        raise ValueError(f"{path}: no column {wanted!r}, there are {', '.join(names)}")
    return min(found, key=lambda k: STOKES[word].index(_first_word(names[k])))


def _first_word(name: str) -> str:
    return re.split(r"[^A-Z]", name.strip().upper())[0]
