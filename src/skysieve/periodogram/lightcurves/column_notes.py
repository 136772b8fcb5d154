"""Notes on unused columns whose values look like identifiers, bands or flags.

A note says what a column looks like, and which option uses it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .column_names import ID_NAMES, OF_STARS, SIGN, Columns, forms, missing_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .column_names import Sample

MANY = 4
"""Least number of rows of each value in a column of identifiers or bands."""
MOST_BANDS, LONGEST_BAND, HIGHEST_BAND = 12, 12, 30
MOSTLY = 0.6
"""Least fraction of zeros in a column of flags."""
DULL = re.compile(
    r"^(x|y|l|b)\d*$|^(ra|dec|ccd|qid|rcid|chip|detector|amp|quadrant|field|program|tract|patch|exp|airmass|seeing|fwhm|limit|"
    r"nobs|night|visit|obs|image|img|frame|cadence|sector|quarter|campaign|orbit|chart|comp|comment|notes?|remark|mode|"
    r"stn|ref|date|ut|time|jd|mjd|hjd|bjd|zp|mag|flux|err|isdiffpos|solution|candid|pid|version|software|grouping|"
    r"cam|telescope|tel$|site|inst|station|observ|measurement|digitizer|credit|ads|astcat|photcat|transf|nterms|gain)"
)
"""Beginnings of names of columns that hold few values and are none of the three."""
ID_WORDS = re.compile(r"id$|name$|star|object|obj|source|target|catalog|key$|label$|number$|num$|no$|^no")
BAND_WORDS = re.compile(r"band|filt|colou?r|passband")
FLAG_WORDS = re.compile(r"flag|qual|bad|mask|reject|warn|blend|satur|good|status|error|code")


BLOCKS, BLOCK_ROWS = 8, 700
"""Number of runs of contiguous rows in a sample, which then has many rows of a few objects."""


def sampled(n: int) -> NDArray[np.int64]:
    """Numbers of the rows that are sampled of ``n``: all of them if there are few.

    >>> sampled(5).tolist(), sampled(10**6)[[0, -1]].tolist()
    ([0, 1, 2, 3, 4], [0, 999999])
    """
    if n <= BLOCKS * BLOCK_ROWS:
        return np.arange(n)
    starts = np.linspace(0, n - BLOCK_ROWS, BLOCKS).astype(np.int64)
    return (starts[:, None] + np.arange(BLOCK_ROWS)).reshape(-1)


def nothing_in(cells: NDArray[Any]) -> bool:
    """Whether a column has no value in any row of its sample."""
    values = np.asarray(cells)
    if values.size == 0:
        return False
    if values.dtype.kind == "f":
        return bool(np.isnan(values).all())
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    if values.dtype.kind not in "OU":
        return False
    return bool(missing_in(values).all())


def typed(cells: NDArray[Any]) -> NDArray[Any]:
    """Cells of text as whole numbers or numbers, if they all are (but for missing ones)."""
    array = np.asarray(cells)
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", "replace")
    if array.dtype.kind == "O":
        array = array.astype(str)
    if array.dtype.kind != "U":
        if array.dtype.kind == "f":
            finite = array[np.isfinite(array)]
            whole = finite.size > 0 and (np.abs(finite) < 2**53).all() and (finite == finite.round()).all()
            return finite.astype(np.int64) if whole else array
        return array
    text = np.char.strip(array)
    text = text[~missing_in(text)]
    for kind in (np.int64, np.float64):
        try:
            return text.astype(kind)
        except (ValueError, OverflowError):
            continue
    return text


def like_bands(cells: NDArray[Any]) -> bool:
    """A handful of short words, or of small whole numbers."""
    values = typed(cells)
    if values.ndim != 1 or values.size == 0 or values.dtype.kind not in "Uiu":
        return False
    unique = np.unique(values)
    if unique.size > min(MOST_BANDS, max(1, values.size // 2)):
        return False
    if values.dtype.kind == "U":
        words = np.isin(np.char.lower(unique), ("true", "false")).all()
        return not words and int(np.char.str_len(unique).max()) <= LONGEST_BAND
    return bool(unique[0] >= 0 and unique[-1] <= HIGHEST_BAND)


def like_objects(cells: NDArray[Any]) -> bool:
    """Words or whole numbers, each in many rows."""
    values = typed(cells)
    if values.ndim != 1 or values.size == 0 or values.dtype.kind not in "Uiu":
        return False
    return bool(np.unique(values).size * MANY <= values.size)


def like_flags(cells: NDArray[Any]) -> bool:
    """True and false, or whole numbers that are mostly 0."""
    values = typed(cells)
    if values.ndim != 1 or values.size == 0:
        return False
    if values.dtype.kind == "U":
        words = np.char.lower(values)
        if not np.isin(words, ("true", "false")).all():
            return False
        values = words == "true"
    if values.dtype.kind not in "biu":
        return False
    zero = float(np.mean(values == 0))
    return bool(MOSTLY <= zero < 1 and (values >= 0).all())


def _mixed_in_time(values: NDArray[Any], times: NDArray[Any]) -> bool:
    """Whether rows of the values alternate in time, as those of objects and bands do, and those of nights do not."""
    times = typed(times)
    if times.size != values.size or times.dtype.kind not in "fiu":
        return True
    codes = np.unique(values, return_inverse=True)[1].reshape(-1)[np.argsort(times, kind="stable")]
    return int(np.count_nonzero(np.diff(codes))) >= 2 * (int(codes.max(initial=0)) + 1)


def of_difference(names: Sequence[str], columns: Columns) -> list[str]:
    """A note where the values are magnitudes of ZTF's difference images, which have lost the sign of the flux.

    >>> of_difference(["mjd", "mag_psf"], Columns(0, 1)), len(of_difference(["i:jd", "i:magpsf"], Columns(0, 1)))
    ([], 1)
    """
    bare = [name.rpartition(":")[2].rpartition(".")[2] for name in names]  # without the struct of a list
    name = bare[columns.mag]
    if "mag" not in name.casefold() or any(form in OF_STARS for form in forms(name)):
        return []
    if not any(SIGN in forms(other) for other in bare) and name not in ("magpsf", "cmagpsf"):
        return []
    return [
        f"{names[columns.mag]} is the magnitude of the difference to a reference image, without its sign: of a "
        "variable star it gives half the period or none; a magnitude of the star, such as magpsf_corr, or a signed "
        "flux is needed (--mag)"
    ]


def hints(names: Sequence[str], columns: Columns, sample: Sample, flags: bool = True) -> list[str]:
    """A note for each kind of column that is not used though some column looks like it.

    ``flags`` says whether columns of flags are noted.
    """
    taken = set(columns.parts().values())
    times = sample(columns.time)
    found: dict[str, list[str]] = {"id": [], "band": [], "either": [], "flag": []}
    lacking = {"id": columns.id is None, "band": columns.band is None, "flag": flags and not columns.flags}
    for i, name in enumerate(names):
        words = forms(name)
        if i in taken or not words:
            continue
        hinted = {
            "id": any(ID_WORDS.search(form) is not None for form in words),
            "band": any(BAND_WORDS.search(form) is not None for form in words),
            "flag": any(FLAG_WORDS.search(form) is not None for form in words),
        }
        if any(DULL.search(form) for form in words) and not (hinted["band"] or hinted["flag"]):
            continue
        cells = sample(i)
        kind = _kind(cells, times, hinted)
        if kind == "either" and not (lacking["id"] and lacking["band"]):
            kind = "id" if lacking["id"] else "band"
        if kind == "id" and columns.id is not None and any(form in ID_NAMES for form in words):
            if _splits(sample(columns.id), cells):
                found["id"].append(name)
        elif kind and lacking.get(kind, True):
            found[kind].append(name)
    lines = of_difference(names, columns)
    for kind, what, option in (
        ("id", "an identifier", "id"),
        ("either", "a band or an identifier", "band-column"),
        ("band", "a band", "band-column"),
        ("flag", "a quality flag", "flag-column"),
    ):
        if found[kind]:
            few = found[kind][:3]
            one = len(few) == 1
            other = f" or --id {few[0]}" if kind == "either" else ""
            which = f"column {few[0]} looks" if one else f"columns {', '.join(few)} look"
            lines.append(
                f"{which} like {what} by {'its' if one else 'their'} values, and {'is' if one else 'are'} not used; "
                f"--{option} {few[0]}{other} takes {'it' if one else 'the first'}"
            )
    return lines


def _kind(cells: NDArray[Any], times: NDArray[Any], hinted: dict[str, bool]) -> str:
    values = typed(cells)
    if values.ndim != 1 or values.size < 2 * MANY:
        return ""
    unique, counts = np.unique(values, return_counts=True) if values.dtype.kind in "Uiub" else (values[:1], None)
    if counts is None or unique.size < 2:
        return ""
    if like_flags(cells) and not (hinted["band"] or (hinted["id"] and not hinted["flag"])):
        return "flag"
    if hinted["id"] and not hinted["band"] and unique.size <= 0.9 * values.size:
        return "id"
    if values.dtype.kind == "b" or np.median(counts) < MANY or unique.size * MANY > values.size:
        return ""
    if not (hinted["band"] or _mixed_in_time(values, times)):
        return ""
    if hinted["band"]:
        return "band"
    if values.dtype.kind == "U" and np.isin(np.char.lower(unique), ("true", "false")).all():
        return ""
    return "either" if like_bands(cells) else "id"


def _splits(ids: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether a second column distinguishes rows of one object."""
    if len(ids) != len(other):
        return False
    a = np.unique(np.asarray(ids).astype(str), return_inverse=True)[1].reshape(-1)
    b = np.unique(np.asarray(other).astype(str), return_inverse=True)[1].reshape(-1)
    return len(np.unique(a * (int(b.max()) + 1) + b)) > int(a.max()) + 1


def repeated_times(t: NDArray[np.float64], groups: NDArray[Any] | None) -> int:
    """Number of rows that have the time of another row of the same object and band."""
    good = np.isfinite(t)
    keys = np.zeros(len(t), np.int64) if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)
    order = np.lexsort((t[good], keys[good]))
    a, b = t[good][order], keys[good][order]
    return int(np.count_nonzero((a[1:] == a[:-1]) & (b[1:] == b[:-1])))
