"""What a smoothed FITS file keeps of the file that it is made from: its cards, its other columns, its other HDUs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["is_auxiliary", "of_source"]

AUXILIARY = frozenset((
    "OBS", "NOBS", "HIT", "HITS", "NHIT", "NHITS", "COV", "COVAR", "COVARIANCE", "VAR", "VARIANCE", "WEIGHT",
    "WEIGHTS", "MASK", "TMASK", "PMASK", "IMASK", "FLAG", "FLAGS",
))  # fmt: skip
"""Words in the names of columns that hold no map of the sky's signal."""
COVARIANCES = frozenset(["II", "IQ", "IU", "QQ", "QU", "UU"])
STRUCTURE = re.compile(
    r"XTENSION|SIMPLE|EXTEND|BITPIX|NAXIS\d*|PCOUNT|GCOUNT|TFIELDS|THEAP|CHECKSUM|DATASUM|"
    r"T(TYPE|FORM|UNIT|NULL|SCAL|ZERO|DISP|DIM|BCOL|MIN|MAX|DMIN|DMAX|LMIN|LMAX|COMM|UCD)\d+"
)
"""Cards that describe a table's columns rather than what is in them."""


def is_auxiliary(name: str) -> bool:
    """Whether a column holds numbers of observations, variances, weights or flags by its name.

    >>> [n for n in ("TEMPERATURE", "N_OBS", "HITS", "II_COV", "Q_POLARISATION") if is_auxiliary(n)]
    ['N_OBS', 'HITS', 'II_COV']
    """
    words = [w for w in re.split(r"[^A-Z]+", name.strip().upper()) if w]
    return bool(AUXILIARY & set(words)) or name.strip().upper() in COVARIANCES


def of_source(
    path: Path, hdu: int, columns: list[Any], order: Sequence[str], unchanged: Sequence[str], cards: dict[str, Any],
    history: Sequence[str],
) -> tuple[Any, Any]:  # fmt: skip
    """The HDUs of a file with another table of maps in the place of one of them, and what must be closed after writing.

    Parameters
    ----------
    path, hdu
        The file, and which of its HDUs is replaced.
    columns : list of astropy.io.fits.Column
        New columns.
    order : sequence of str
        Names of the table's columns, in the file's order.
    unchanged : sequence of str
        Those that are taken as they are.
    cards : dict
        Cards that are set.
    history : sequence of str
        Lines that are added to HISTORY.
    """
    from astropy.io import fits

    hdus = fits.open(path, disable_image_compression=True)
    try:
        old = hdus[hdu]
        found = {c.name: c for c in columns} | {n: old.columns[n] for n in unchanged}
        places = {name: k for k, name in enumerate(order)}
        listed = sorted(found.values(), key=lambda c: places.get(c.name, -1))
        header = fits.Header(
            [card for card in old.header.cards if not STRUCTURE.fullmatch(card.keyword)], copy=True
        )  # fmt: skip
        table = fits.BinTableHDU.from_columns(listed, header=header)
        for key, value in cards.items():
            table.header[key] = value
        for line in history:
            table.header.add_history(line)
        for stale in ("GRAIN", "OBS_NPIX") if cards.get("INDXSCHM") == "IMPLICIT" else ("FIRSTPIX", "LASTPIX"):
            table.header.remove(stale, ignore_missing=True)
        return fits.HDUList([*hdus[:hdu], table, *hdus[hdu + 1 :]]), hdus
    except BaseException:
        hdus.close()
        raise
