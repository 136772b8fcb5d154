"""Names by which the columns of light-curve tables are found: time, brightness, its error, the object's name.

Names are compared without case, spaces, dots, dashes and underscores.  Nothing here reads files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Sample = Callable[[int], NDArray[Any]]

MISSING = frozenset({"", "nan", "na", "n/a", "null", "none", "--", "-", "...", "nat", "<na>"})
"""Words for a missing value, in lower case."""
TIME_NAMES = (
    "time", "t", "bjd", "hjd", "jd", "mjd", "bmjd", "hmjd", "btjd", "bkjd", "bjdtdb", "hjdutc", "jdutc", "mjdtai",
    "mjdutc", "midpointmjdtai", "midpointtai",
    "midpointmjd", "midmjd", "expmidptmjd", "expmjd", "obsmjd", "mjdobs", "obsjd",
    "obstime", "timeobs", "observationtime", "timebtjd", "timebkjd", "timemjd", "timejd", "timehjd", "timebjd", "days",
    "jdb", "rjd", "tjd", "mbjd", "jdtdb", "bjdutc", "bjdtt", "hjdtt", "mjdtdb", "mjdmid", "midjd", "jdmid", "tmid",
    "midtime", "mjdstart", "startmjd", "mjdavg", "meanmjd", "epochmjd", "gtransittime", "gobstime", "timetcb",
    "juliandate", "date", "dates", "dateobs", "obsdate", "utdate", "datetime", "epoch",
)  # fmt: skip
VALUE_NAMES = (
    "mag", "magnitude", "mags", "psfmag", "magpsf", "magauto", "magaper", "calmag", "vmag", "gmag", "rmag", "imag",
    "flux", "psfflux", "pdcsapflux", "kspsapflux", "detflux", "sapflux", "fluxujy", "fluxmjy", "fluxjy", "calflux",
    "scienceflux", "forcedflux",
    "diffflux", "psfdiffflux", "ujy", "normflux", "relflux", "y", "value", "signal", "brightness", "counts", "rate",
    "rv", "vrad", "radialvelocity",
    "magcalibrated", "calibratedmag", "magcal", "magcalib", "magbest", "magap", "apmag", "aperturemag", "magiso",
    "forcedmag", "appmag", "obsmag", "meanmag", "magmean", "instmag", "tessmag", "gtransitmag", "bmag", "umag", "zmag",
    "ymag", "jmag", "hmag", "kmag", "wmag", "mag0", "mag1", "mag2", "w1mpro", "w2mpro", "w1mag", "w2mag",
    "fluxpsf", "fcor", "fluxcor", "corrflux", "fluxcorr", "apflux", "fluxap", "forcediffimflux", "gtransitflux",
    "calibratedflux", "detrendedflux", "w1flux", "w2flux", "w1mproep", "w2mproep", "dcmag", "magautocorr",
    "hp", "hpmag",
)  # fmt: skip
ERROR_NAMES = (
    "err", "error", "dy", "yerr", "e", "sigma", "sig", "uncertainty", "unc", "std", "valueerr", "magerr", "dmag",
    "magerror", "magnitudeerror", "fluxerr", "dflux", "fluxerror",
    "merr", "ferr", "errors", "errmag", "errflux", "emag", "eflux", "sigmag", "sigmamag", "sigmaflux", "rmsmag",
    "maguncertainty", "fluxuncertainty", "magunc", "fluxunc", "magsigma", "fluxsigma", "magrms", "uncert", "stderr",
    "photerr", "rms", "hquncertainty", "magcallocalrms", "magerrauto",
)  # fmt: skip
ID_NAMES = (
    "id", "objid", "objectid", "diaobjectid", "ssobjectid", "sourceid", "oid", "object", "obj", "objname",
    "source", "name", "starid", "star", "target", "targetid", "targetname", "ticid", "tic", "kic", "epic",
    "designation", "lcid", "asteroid", "number",
    "masterid", "objectname", "sourcename", "starname", "lcname", "varid", "varname", "variable", "kepid", "keplerid",
    "epicid", "epicnumber", "asassnid", "asasid", "ogleid", "ztfid", "ztfoid", "crtsid", "cssid", "gaiaid",
    "gaiasourceid", "gaiadr2sourceid", "gaiadr3sourceid", "dr2sourceid", "dr3sourceid", "objectidps1", "psobjid",
    "coaddobjectid", "coaddobjectsid", "quickobjectid", "wiseid", "allwiseid", "swaspid", "superwaspid", "hatid",
    "machoid", "erosid", "vvvid", "nsvsid", "keltid", "ngtsid", "atoobjectid", "atoid", "sdssid", "specobjid", "hip",
    "hipid", "hd", "tyc", "tycid", "tmassid", "2massid", "catid", "catalogid", "uid", "starnumber", "starno",
    "starnum", "objno", "objnum", "objectnumber", "permid", "provid", "trksub", "mpcdesignation", "identifier",
)  # fmt: skip
ID_ENDS = ("objectid", "objid", "sourceid", "starid", "targetid", "masterid", "starname", "objectname", "sourcename")
SIGN, OF_STARS = "isdiffpos", ("magpsfcorr", "magcorr", "dcmag")
"""Column with the sign of the flux in a difference image, and columns with magnitudes of the star itself."""
WISE_IDS = ("sourceidmf", "allwisecntr", "cntrmf")
"""Identifiers of objects in WISE's tables of single exposures, where ``source_id`` is that of one detection."""
ROW_IDS = ("diasourceid", "forcedsourceid", "diaforcedsourceid", "parentobjectid", "parentsourceid", "parentid")
"""Identifiers of rows or of other things that are no objects."""
BAND_NAMES = (
    "band", "filter", "filtercode", "filt", "passband", "fid", "bandpass", "filtername",
    "filtertype", "filterid", "filtid", "photfilter", "photband", "bandname", "bandid", "obsfilter", "obsband",
    "filterused", "physicalfilter", "abstractfilter", "passbandname", "lsstband", "ztffilter", "fltr", "flt", "filters",
)  # fmt: skip
BAND_HINTS = ("f", "flt", "color", "colour", "system", "bandcode")
"""Names with several meanings; such a column is used for bands if its values look like bands."""
FLAG_NAMES = (
    "qualityflag", "qualflag", "qflag", "qcflag", "flag", "flags", "dataquality", "dqflag", "dq", "qual", "badflag",
    "bad", "isbad", "reject", "rejected", "rejectflag", "isrejected", "outlier", "isoutlier", "masked", "photflag",
    "photflags", "magflag", "fluxflag",
)  # fmt: skip
"""General names of flags; those of surveys are in `skysieve.periodogram.lightcurves.flags`."""

NUMERIC, LABELS = ("time", "mag", "err", "r", "delta", "phase", "flux", "flux_err"), ("id", "band")
ROLES = ("id", "time", "mag", "err", "band", "r", "delta", "phase", "flux", "flux_err")
WANTED_ROLES = ROLES[:8]
FLAG = "flag "
"""Columns of flags are ``"flag 0"``, ``"flag 1"``, ..."""
OPTIONS = {"band": "band-column", "flag": "flag-column"}
"""Names of options, for roles whose option has another name."""
NOT_VALUES = re.compile(
    r"err|sig|unc|lim|zp|zero|rms|std|dev$|over|ref|bkg|back|flag|diff|num|nobs|snr|chi|mean|min|max|bias|corr$|^d|^e|5sig"
)
"""Words in names with "mag" or "flux" that are not the brightness itself."""
OBJECT_WORDS = re.compile(
    r"(star|var|variable|obj|object|src|source|target|lc|lightcurve|cat|catalog|catalogue|master|ogle|crts|css|asas|asassn"
    r"|ztf|gaia|tess|kepler|k2|wise|neowise|sdss|hat|wasp|kelt|atlas|ps1|des|lsst|rubin|macho|eros|vvv|nsvs|ngts|hip|tyc)"
    r"(no|num|number|nr|id|name|key|index|idx|designation)"
)
"""Words of names that are identifiers if each value is in many rows."""
STARS, MOVING = "diaobjectid", "ssobjectid"
"""Ids of Rubin's difference-image sources: a row belongs to a fixed object or to a moving one, the other id is 0."""


class MissingColumn(ValueError):
    """A column that was named, or that is needed, is not in the table."""


@dataclass(frozen=True)
class Wanted:
    """Columns the user named: a name, or a number counted from 1.  None: find it by its usual names."""

    id: str | None = None
    time: str | None = None
    mag: str | None = None
    err: str | None = None
    band: str | None = None
    r: str | None = None
    delta: str | None = None
    phase: str | None = None
    moving: bool = False
    """Whether to read objects of the solar system, if a table holds both kinds."""
    flags: tuple[str, ...] | None = None
    """Columns of quality flags; none for an empty list."""
    quality_mask: int | None = None
    """Bits of the flags that mark a row as bad; None for those that the survey recommends."""

    def named(self) -> dict[str, str]:
        """The columns that were named, by role."""
        return {role: w for role in WANTED_ROLES if (w := getattr(self, role)) is not None}


def is_missing(cell: str) -> bool:
    """Whether a cell of text has no value: a word of `MISSING`, or asterisks, Fortran's overflow.

    >>> [is_missing(cell) for cell in ("", " N/A", "****", "0")]
    [True, True, True, False]
    """
    cell = cell.strip()
    return cell.casefold() in MISSING or not cell.strip("*")


def missing_in(cells: NDArray[Any]) -> NDArray[np.bool_]:
    """Which cells of text have no value; each word is looked at once.

    >>> missing_in(np.array(["g", "NaN", None], object)).tolist()
    [False, True, True]
    """
    cells = cells.astype(str)
    words: set[str] = set()
    for start in range(0, cells.size, 1 << 16):
        words.update(cells.flat[start : start + (1 << 16)].tolist())
    missing = [word for word in words if is_missing(word)]
    return np.isin(cells, missing) if missing else np.zeros(cells.shape, bool)


@dataclass(frozen=True)
class Columns:
    """Positions (from 0) of the columns that are used; None for roles without a column."""

    time: int
    mag: int
    err: int | None = None
    id: int | None = None
    band: int | None = None
    r: int | None = None
    delta: int | None = None
    phase: int | None = None
    flux: int | None = None
    flux_err: int | None = None
    """Flux and its error, from which the errors of magnitudes are computed if the table has none."""
    flags: tuple[int, ...] = ()

    def parts(self) -> dict[str, int]:
        """Position of each column that is used, by its role; flags are numbered."""
        found = {role: i for role in ROLES if (i := getattr(self, role)) is not None}
        return found | {f"{FLAG}{k}": i for k, i in enumerate(self.flags)}

    def taken(self, names: Sequence[str]) -> str:
        """One line that says which column is used for what."""
        words = [f"{role} = {names[i]}" for role in WANTED_ROLES if (i := getattr(self, role)) is not None]
        if self.flux is not None and self.flux_err is not None:
            words.append(f"err = {names[self.flux_err]} (as 1.0857 {names[self.flux_err]} / {names[self.flux]})")
        return ", ".join(words + [f"flag = {names[i]}" for i in self.flags])


def plain(name: str) -> str:
    """The form of a name that is compared: lower case, letters and digits only.

    >>> plain("midpointMjdTai"), plain("mag_err")
    ('midpointmjdtai', 'magerr')
    """
    return "".join(c for c in name.casefold() if c.isalnum())


def forms(name: str) -> tuple[str, ...]:
    """The forms of a name that are compared: all of it, without a prefix ``i:``, without a unit in brackets.

    >>> forms("i:magpsf"), forms("flux (mJy)")
    (('imagpsf', 'magpsf'), ('fluxmjy', 'flux'))
    """
    bare = re.sub(r"\s*[(\[].*?[)\]]", "", name)
    last = bare.rpartition(":")[2]
    return tuple(dict.fromkeys(form for form in (plain(name), plain(bare), plain(last)) if form))


def is_magnitude(name: str) -> bool:
    """Whether a column of values holds magnitudes, by its name: such as ``psfMag``, or a band such as ``V``.

    >>> is_magnitude("magpsf"), is_magnitude("V"), is_magnitude("y"), is_magnitude("flux")
    (True, True, False, False)
    """
    return "mag" in plain(name) or (len(name) == 1 and plain(name) != "y")


def is_label(role: str) -> bool:
    """Whether the column of a role holds names or flags rather than numbers."""
    return role in LABELS or role.startswith(FLAG)


class BadFile(ValueError):
    """A file that cannot be read as light curves; the message is one line for the user."""


ROUNDED = re.compile(r"\d+\.\d*(e\+\d+)?|\d+e\+\d+", re.IGNORECASE)
"""A floating-point number in text, as Python and pandas write it."""


def refuse_rounded(ids: Any, what: str = "id") -> None:
    """Refuse ids that are floating-point numbers, or such numbers as text, and too large to be exact.

    ``what`` names the column in the message.

    Examples
    --------
    >>> refuse_rounded(np.array([1.0, np.nan, 2.0**53 - 1])), refuse_rounded(np.array(["9007199254740993", "1E2259"]))
    (None, None)
    """
    found: Any = ()
    if ids.dtype.kind == "f":
        found = ids[np.isfinite(ids) & (np.abs(ids) >= 2.0 ** (np.finfo(ids.dtype).nmant + 1))].tolist()
    elif ids.dtype.kind == "U":
        numbers = (text for text in ids.tolist() if ("." in text or "+" in text) and ROUNDED.fullmatch(text))
        found = [text for text in numbers if float(text) >= 2.0**53]
    if len(found):
        raise ValueError(
            f"{what} holds {found[0]}, a rounded floating-point number, so that ids of different objects may be equal. "
            "Store ids as whole numbers or text (pandas makes floats of whole numbers if one is missing, but not with "
            "the type 'Int64')"
        )
