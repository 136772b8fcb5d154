"""The surveys whose packets are read: which fields of a packet hold the object and its light curve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "DETECTION",
    "FIELDS",
    "FORCED",
    "MISSING",
    "NUMBERS",
    "OBJECT",
    "ROW",
    "SURVEYS",
    "WORDS",
    "Survey",
    "band_name",
    "survey_of",
]

DETECTION, FORCED = 0, 1
"""Kinds of rows: sources that were detected, and forced photometry at the place of the object."""
FIELDS = {"id": 0, "exposure": 1, "band": 2, "sign": 3, "t": 4, "y": 5, "dy": 6}
"""Values that are read of a source, and their positions; the first four are whole numbers or short text."""
OBJECT = 7
"""Position of the object's identifier."""
MISSING = -(2**63)
"""Stands for a whole number that is missing in a packet."""

ROW = np.dtype(
    [("id", "<i8"), ("exposure", "<i8"), ("t", "<f8"), ("y", "<f4"), ("dy", "<f4"), ("band", "<u4"), ("kind", "u1")]
)
"""A row of a light curve: the source's number, that of its exposure (-1 if unknown), MJD, flux and error in nJy, the
name of the band as four bytes, and the kind."""

NUMBERS, WORDS = ("int", "long"), ("string", "bytes")
"""Avro types."""
TIMES = 40_000.0, 100_000.0
"""Earliest and latest MJD of an observation (1968 to 2132).  One row far off makes the grid of frequencies so fine that
the search of its object takes minutes."""
AB_ZERO = 31.4
"""AB magnitude of 1 nJy."""


@dataclass(frozen=True)
class Survey:
    """The form of a survey's packets.

    Attributes
    ----------
    name : str
    object : tuple of str
        Path of the object's identifier: names of nested fields, outermost first.
    sources : mapping of str to int
        Fields that hold a source or a list of them, and the kind of their rows.
    fields : mapping of int to mapping of str to str
        For each kind of row, the names of the fields for the keys of `FIELDS`.
    bands : tuple of str
        Avro types of the field of the band.
    convert : callable
        ``convert(t, y, dy, sign, band)`` returns MJD, flux and error in nJy, and bands as numbers of four bytes.
    """

    name: str
    object: tuple[str, ...]
    sources: Mapping[str, int]
    fields: Mapping[int, Mapping[str, str]]
    bands: tuple[str, ...]
    convert: Callable[..., tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]]

    def recognises(self, names: set[str]) -> bool:
        """Whether a packet with these fields is of this survey."""
        return {self.object[0], next(iter(self.sources))} <= names

    def rows(self, whole: NDArray[np.int64], real: NDArray[np.float64], kind: NDArray[np.uint8]) -> NDArray[Any]:
        """Rows of the values that were read, in the order of `FIELDS`.  A row without a source's number, a time within
        `TIMES`, a flux, a positive error or a band has the ``kind`` 255."""
        rows = np.empty(len(whole), ROW)
        with np.errstate(over="ignore"):  # a flux that becomes infinite is left out
            t, y, dy, band = self.convert(real[:, 0], real[:, 1], real[:, 2], whole[:, 3], whole[:, 2])
            rows["id"], rows["t"], rows["y"], rows["dy"], rows["band"] = whole[:, 0], t, y, dy, band
        rows["exposure"] = np.where(whole[:, 1] == MISSING, -1, whole[:, 1])
        usable = (t > TIMES[0]) & (t < TIMES[1]) & np.isfinite(rows["y"]) & np.isfinite(rows["dy"]) & (rows["dy"] > 0)
        rows["kind"] = np.where(usable & (whole[:, 0] != MISSING) & (band > 0), kind, 255)
        return rows


def _lsst(t: Any, y: Any, dy: Any, sign: Any, band: Any) -> tuple[Any, Any, Any, Any]:
    return t, y, dy, np.where(band == MISSING, 0, band)


_ZTF_BANDS = np.array([0, *b"gri"], np.int64)


def _ztf(t: Any, y: Any, dy: Any, sign: Any, band: Any) -> tuple[Any, Any, Any, Any]:
    """Convert ZTF's magnitudes of the absolute flux difference, whose sign is a separate field."""
    negative = (sign == ord("f")) | (sign == ord("0"))
    known = negative | (sign == ord("t")) | (sign == ord("1"))
    flux = 10 ** (0.4 * (AB_ZERO - y))
    signed = np.where(known, np.where(negative, -flux, flux), np.nan)
    inside = (band >= 0) & (band < len(_ZTF_BANDS))
    return t - 2_400_000.5, signed, flux * dy * (np.log(10) / 2.5), np.where(inside, _ZTF_BANDS[band * inside], 0)


_LSST_ROW = {"exposure": "visit", "t": "midpointMjdTai", "y": "psfFlux", "dy": "psfFluxErr", "band": "band"}
_ZTF_ROW = {"id": "candid", "exposure": "pid", "t": "jd", "y": "magpsf", "dy": "sigmapsf", "band": "fid"}
SURVEYS = (
    Survey(
        "LSST",
        ("diaObject", "diaObjectId"),
        {"diaSource": DETECTION, "prvDiaSources": DETECTION, "prvDiaForcedSources": FORCED},
        {DETECTION: _LSST_ROW | {"id": "diaSourceId"}, FORCED: _LSST_ROW | {"id": "diaForcedSourceId"}},
        WORDS,
        _lsst,
    ),
    Survey(
        "ZTF",
        ("objectId",),
        {"candidate": DETECTION, "prv_candidates": DETECTION},
        {DETECTION: _ZTF_ROW | {"sign": "isdiffpos"}},
        NUMBERS,
        _ztf,
    ),
)
"""All surveys; times of LSST are TAI, those of ZTF UTC.  The first of their ``sources`` is the source that caused the
alert, which every packet has."""


def survey_of(names: set[str]) -> Survey:
    """The survey of packets with fields of these names.

    Raises
    ------
    ValueError
        No survey has such packets.
    """
    for survey in SURVEYS:
        if survey.recognises(names):
            return survey
    forms = "; ".join(f"{s.name} has {s.object[0]} and {next(iter(s.sources))}" for s in SURVEYS)
    raise ValueError(
        f"the packet has the fields {', '.join(sorted(names))}: expected the fields of a known survey ({forms})"
    )


def band_name(code: int) -> str:
    """The name of a band that `ROW` holds as a number.

    >>> band_name(ord("g"))
    'g'
    """
    return int(code).to_bytes(4, "little").rstrip(b"\0").decode("utf-8", "backslashreplace")
