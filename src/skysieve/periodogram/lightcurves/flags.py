"""Columns of quality flags, and which of their values mark bad rows.

`KNOWN` holds the rules for the flags of surveys.  Bits of TESS and Kepler are those that lightkurve leaves out by
default (``TessQualityFlags`` and ``KeplerQualityFlags``, ``DEFAULT_BITMASK``).  ZTF: the explanatory supplement of its
data releases (``catflags``), and Masci et al. 2023 (arXiv:2305.16279), section 6.1 (``infobitssci`` below 33554432).
Rubin: "Flag use examples" of its data products, for the tables ForcedSource, DiaSource and ForcedSourceOnDiaObject.
Gaia: the descriptions of ``light_curve`` and ``epoch_photometry`` in its archive's data model.  WISE: the explanatory
supplement of NEOWISE, section II.3.  The rules for other surveys follow the descriptions of their columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.periodogram.lightcurves.column_names import BadFile

from .column_names import FLAG_NAMES, forms, missing_in, plain

if TYPE_CHECKING:
    from numpy.typing import NDArray

TESS, KEPLER = 17087, 1130799
"""TESS: attitude tweak, safe mode, coarse point, Earth point, argabrightening, desaturation, manual exclude, impulsive
outlier, bad calibration.  Kepler and K2: attitude tweak, safe mode, coarse point, Earth point, desaturation, manual
exclude, detector anomaly, no data, thruster firing."""
ZTF_BAD, ZTF_FORCED = 1 << 15, -(1 << 25)
"""``catflags`` of a bad measurement; ``infobitssci`` of a bad image (this bit and all above it)."""
YES = ("true", "t", "yes", "y", "1")
NO = ("false", "f", "no", "n", "0")


@dataclass(frozen=True)
class Rule:
    """A rule for the bad values of a flag.

    ``bits``: whole numbers with one of these bits are bad; ``words``: these words; ``zero``: 0; ``places``: text with a
    character for each band, where all characters but "0" are bad.  Without any of these, all values but 0 and false are
    bad.
    """

    why: str
    bits: int | None = None
    words: tuple[str, ...] = ()
    zero: bool = False
    places: bool = False


ANY = Rule("not 0")
KNOWN = {
    "catflags": Rule("bit 32768: bad data of ZTF", bits=ZTF_BAD),
    "infobitssci": Rule("bits from 33554432 on: bad images of ZTF", bits=ZTF_FORCED),
    "sapquality": Rule(f"bits {KEPLER}, lightkurve's default for Kepler", bits=KEPLER),
    "tessflags": Rule(f"bits {TESS}, lightkurve's default for TESS", bits=TESS),
    "tglcflags": ANY,
    "rejectedbyphotometry": ANY,
    "rejectedbyvariability": ANY,
    "rejectedbyvariabilityprocessing": ANY,
    "invalidpsfflag": ANY,
    "variabilityflaggreject": ANY,
    "variabilityflagbpreject": ANY,
    "variabilityflagrpreject": ANY,
    "pixelflagssaturatedcenter": ANY,
    "diffpixelflagsnodatacenter": ANY,
    "isdipole": ANY,
    "grade": Rule("D: the worst data of ASAS", words=("d",)),
    "validationflag": Rule("T or D: discrepant observations of AAVSO", words=("t", "d")),
    "valflag": Rule("T or D: discrepant observations of AAVSO", words=("t", "d")),
    "goodflag": Rule("0: not good", zero=True),
    "qualframe": Rule("0: bad frames of WISE", zero=True),
    "qifact": Rule("0: bad frames of WISE", zero=True),
    "ccflags": Rule("not 0: artefacts of WISE", places=True),
    "moonmasked": Rule("not 0: moonlight in WISE", places=True),
}
"""Rules by the plain name of the column."""
VALUES = {
    "variabilityflaggreject": "^g",
    "variabilityflagbpreject": "^bp",
    "variabilityflagrpreject": "^rp",
    "diffpixelflagsnodatacenter": "diff",
}
"""Flags that concern only some columns of values: a pattern of the names of these columns."""
QUALITY = {"tess": Rule(f"bits {TESS}, lightkurve's default for TESS", bits=TESS), "kepler": KNOWN["sapquality"]}
WORDS = Rule("B: bad images of ASAS-SN", words=("b", "bad", "poor"))


def mission(names: Sequence[str], header: Mapping[str, Any] | None = None) -> str:
    """The satellite of a table with a column ``QUALITY``, by its FITS header or its columns; "" if unknown."""
    cards = header or {}
    text = " ".join(str(cards.get(key, "")) for key in ("TELESCOP", "MISSION", "INSTRUME", "OBJECT", "ORIGIN")).upper()
    units = " ".join(str(value) for key, value in cards.items() if re.fullmatch(r"TUNIT\d+|BJDREFI|TIMEUNIT", key))
    if re.search(r"KEPLER|\bK2\b|\bKIC\b|\bEPIC\b", text) or "KEPLERID" in cards or "2454833" in units:
        return "kepler"
    if re.search(r"TESS|\bTIC\b", text) or "TICID" in cards or "2457000" in units:
        return "tess"
    have = {form for name in names for form in forms(name)}
    if have & {"sapquality", "bkjd", "timebkjd", "kepid", "keplerid", "epic", "epicid", "epicnumber"}:
        return "kepler"
    if have & {"btjd", "timebtjd", "ticid", "tic", "cadenceno", "timecorr", "pdcsapflux", "kspsapflux"}:
        return "tess"
    return ""


def find(names: Sequence[str], taken: Sequence[int], value: str) -> tuple[int, ...]:
    """Columns of flags that are found by their names: all those of a survey, else the first with a general name."""
    free = [i for i in range(len(names)) if i not in taken]
    own = {plain(value) + end for end in ("flag", "flags")}
    have = {form for name in names for form in forms(name)}
    known = [
        i for i in free
        if any(form in own or (form in KNOWN and _concerns(form, value)) for form in forms(names[i]))
    ]  # fmt: skip
    if {"ujy", "dujy"} <= have or {"m", "dm"} <= have:  # ATLAS: the error code of its photometry
        known += [i for i in free if plain(names[i]) == "err"]
    if any(plain(names[i]) == "sapquality" for i in known):
        return tuple(known)
    quality = [i for i in free if "quality" in forms(names[i])]
    if known or quality:
        return tuple(known + quality)
    for name in FLAG_NAMES:
        for i in free:
            if name in forms(names[i]):
                return (i,)
    return ()


def _concerns(flag: str, value: str) -> bool:
    """Whether a flag of `KNOWN` concerns the values of this name."""
    return flag not in VALUES or any(re.search(VALUES[flag], form) is not None for form in forms(value))


@dataclass(frozen=True)
class Flagged:
    """Rows that a column of flags marks as bad; ``note`` says why a column is not used."""

    name: str
    why: str
    bad: NDArray[np.bool_] | None
    note: str = ""


def has_bits(name: str, mask: int | None, satellite: str) -> bool:
    """Whether bits of a column of whole numbers mark bad rows, so that each row can be judged by itself."""
    spellings = forms(name.rpartition(".")[2])  # without the struct of a list
    rule = next((KNOWN[form] for form in spellings if form in KNOWN), None)
    if rule is None and "quality" in spellings:
        rule = QUALITY.get(satellite)
    return mask is not None or (rule is not None and rule.bits is not None)


def judge(name: str, values: NDArray[Any], mask: int | None, satellite: str, value: str, asked: bool) -> Flagged:
    """Which rows a column of flags marks.

    Parameters
    ----------
    name : str
        Of the column.
    values : numpy.ndarray
        Whole numbers or text; missing ones are "".
    mask : int or None
        Bits that the user names; None for the usual bits of the survey.
    satellite : str
        See `mission`.
    value : str
        Column of the brightness.
    asked : bool
        Whether the user named the column: what it marks is then left out, however many rows that is.
    """
    numbers = whole(values)
    spellings = forms(name.rpartition(".")[2])  # without the struct of a list
    rule = next((KNOWN[form] for form in spellings if form in KNOWN), None)
    if mask is not None:
        if numbers is None:
            raise BadFile(f"--quality-mask {mask}: column {name!r} holds no whole numbers")
        return Flagged(name, f"bits {mask}", (numbers & mask) != 0)
    if rule is None and "quality" in spellings:
        rule = QUALITY.get(satellite) if numbers is not None else WORDS
    if rule is not None and rule is not ANY:
        bad = _marked(rule, values, numbers, value)
        if bad is not None:
            return Flagged(name, rule.why, bad)
        rule = None
    true = numbers != 0 if numbers is not None else truth(values)
    if true is None:
        some = ", ".join(repr(v) for v in np.unique(values)[:3].tolist())
        if asked:
            raise BadFile(f"--flag-column {name}: it holds {some}; whole numbers, or true and false, are expected")
        return Flagged(name, "", None, f"column {name!r} looks like a flag; which of {some} is bad is not known")
    if rule is None and not asked and true.mean() >= 0.5:
        often = f"{true.mean():.0%} of its rows are not 0"
        return Flagged(
            name, "", None, f"column {name!r} looks like a flag, but {often}: not used; --flag-column takes it"
        )
    return Flagged(name, ANY.why if numbers is not None else "true", true)


def _marked(
    rule: Rule, values: NDArray[Any], numbers: NDArray[np.int64] | None, value: str
) -> NDArray[np.bool_] | None:
    """Rows that a rule marks as bad; None if the rule does not fit the values."""
    if numbers is not None and not rule.places:
        if rule.words:
            return None
        return numbers == 0 if rule.zero or rule.bits is None else (numbers & rule.bits) != 0
    text = np.char.lower(np.char.strip(values.astype(str)))
    if rule.words:
        return np.isin(text, rule.words)
    if rule.places:
        place = re.match(r"w(\d)", plain(value))
        at = int(place[1]) - 1 if place else None
        cells = [cell if at is None else cell[at : at + 1] for cell in text]
        return np.array([bool(cell.strip("0 ")) for cell in cells])
    floats = _floats(text)
    return floats == 0 if rule.zero and floats is not None else None


def _floats(text: NDArray[Any]) -> NDArray[np.float64] | None:
    try:
        return np.where(missing_in(text), "nan", text).astype(np.float64)
    except ValueError:
        return None


def whole(values: NDArray[Any]) -> NDArray[np.int64] | None:
    """Whole numbers of a column, 0 for missing ones; None if it holds other values."""
    if values.dtype.kind in "iu":
        return values.astype(np.int64)
    numbers = _floats(np.char.strip(values.astype(str)))
    if numbers is None or (finite := numbers[np.isfinite(numbers)]).size == 0 or (finite != np.round(finite)).any():
        return None
    return np.where(np.isfinite(numbers), numbers, 0).astype(np.int64)


def truth(values: NDArray[Any]) -> NDArray[np.bool_] | None:
    """A column of true and false as booleans, false for missing ones; None if it holds other words."""
    text = np.char.lower(np.char.strip(values.astype(str)))
    true = np.isin(text, YES)
    return true if (true | np.isin(text, NO) | missing_in(text)).all() else None
