"""Choose the columns of a table by the user's options, by their names, and by their values.

The names are in `column_names`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .column_names import (
    BAND_HINTS,
    BAND_NAMES,
    ERROR_NAMES,
    ID_ENDS,
    ID_NAMES,
    MOVING,
    NOT_VALUES,
    OBJECT_WORDS,
    OF_STARS,
    OPTIONS,
    ROLES,
    ROW_IDS,
    SIGN,
    TIME_NAMES,
    VALUE_NAMES,
    WISE_IDS,
    Columns,
    MissingColumn,
    Wanted,
    forms,
    plain,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .column_names import Sample


def _first(names: Sequence[str], known: Sequence[str], used: set[int], role: str) -> int | None:
    """The column with the first of the known names.

    Raises
    ------
    MissingColumn
        If two columns have that name.
    """
    have: dict[str, list[int]] = {}
    for which in (0, 1, 2):
        for i, name in enumerate(names):
            spellings = forms(name)
            if i not in used and which < len(spellings) and i not in have.get(spellings[which], []):
                have.setdefault(spellings[which], []).append(i)
    for k in known:
        if k in have:
            same = [i for i in have[k] if plain(names[i]) == plain(names[have[k][0]])]
            if len(same) > 1:
                raise _twice(names, same, role)
            return have[k][0]
    return None


def _twice(names: Sequence[str], same: Sequence[int], role: str) -> MissingColumn:
    numbers = " and ".join(str(i + 1) for i in same)
    title = " and ".join(dict.fromkeys(repr(names[i]) for i in same))
    option = OPTIONS.get(role, role)
    return MissingColumn(
        f"columns {numbers} are both named {title}; choose one by its number, as in --{option} {same[0] + 1}"
    )


def _error_of(names: Sequence[str], value: int, used: set[int], alone: bool = False) -> int | None:
    """The column of errors of the chosen brightness; by default, else one with a general name (not with ``alone``)."""
    own: list[str] = []
    for v in forms(names[value]):
        after = ("err", "error", "sigma", "unc", "uncertainty", "std", "sig", "rms", "e", "stderr", "dev")
        own += [f"{v}{s}" for s in after]
        own += [f"{s}{v}" for s in ("err", "error", "e", "d", "sig", "sigma", "unc", "delta", "s", "rms", "std")]
        for part in ("magnitude", "mag", "flux", "mpro"):
            if part in v:  # mag_0 and mer_0, w1mpro and w1sigmpro
                ends = (f"{part}err", f"{part}error", f"{part[0]}err", "mer", "err", "sig", f"sig{part}", f"e{part}")
                more = (
                    f"d{part}", f"err{part}", f"error{part}", f"sigma{part}", "sigma", f"{part}sig", f"{part}unc",
                    f"unc{part}",
                )  # fmt: skip
                own += [v.replace(part, s, 1) for s in (*ends, *more) if v.replace(part, s, 1) != "err"]
        if v.startswith("mag"):
            own += ["magerr", "dmag", "sigmag", "sigmapsf", "emag"]
    v = plain(names[value])
    # a code of ATLAS's photometry
    code = {"err"} if {"ujy", "dujy"} <= {plain(name) for name in names} else set()
    general = [] if alone else [
        n for n in ERROR_NAMES
        if not ("flux" in n and "flux" not in v) and not ("mag" in n and "mag" not in v) and n not in code
    ]  # fmt: skip
    return _first(names, [*own, *general], used, "err")


def _position(names: Sequence[str], wanted: str, role: str) -> int:
    exact = [i for i, name in enumerate(names) if name == wanted]
    found = exact or [i for i, name in enumerate(names) if plain(name) == plain(wanted) != ""]
    if len(found) > 1:
        raise _twice(names, found, role)
    if found:
        return found[0]
    if wanted.isdigit() and 1 <= int(wanted) <= len(names):
        return int(wanted) - 1
    raise MissingColumn(f"no column {wanted!r} for --{OPTIONS.get(role, role)}; the columns are: {', '.join(names)}")


def _by_pattern(names: Sequence[str], used: set[int], accept: Callable[[str], bool]) -> int | None:
    """The only unused column whose name fits; None if there are none or several."""
    found = [i for i, name in enumerate(names) if i not in used and any(accept(form) for form in forms(name))]
    return found[0] if len(found) == 1 else None


def _is_time(form: str) -> bool:
    return re.search(r"^(b|h|m|t|r|hm|bm)?jd|(mjd|hjd|bjd|jd)(utc|tdb|tai|tt)?$", form) is not None


def _is_value(form: str) -> bool:
    return re.search(r"mag|flux", form) is not None and NOT_VALUES.search(form) is None


def _is_object(form: str) -> bool:
    return form not in ROW_IDS and (form.endswith(ID_ENDS) or OBJECT_WORDS.fullmatch(form) is not None)


def _is_band(form: str) -> bool:
    return (
        form in BAND_HINTS or form.endswith(("filter", "band", "filtername", "filtercode")) or form.startswith("filter")
    )


def choose(names: Sequence[str], wanted: Wanted, sample: Sample | None = None) -> Columns:
    """Find the columns of a table with a header.

    Parameters
    ----------
    names : list of str
        Of the columns.
    wanted : Wanted
        The columns that the user named.
    sample : callable, optional
        Some values of a column, by its position: a name with several meanings is taken only if the values fit.

    Raises
    ------
    MissingColumn
        A named column does not exist, or no time or brightness was found, or two columns have the name that would be
        taken; the message lists the columns.

    Examples
    --------
    >>> choose(["diaObjectId", "midpointMjdTai", "psfFlux", "psfFluxErr"], Wanted())
    Columns(time=1, mag=2, err=3, id=0, band=None, r=None, delta=None, phase=None, flux=None, flux_err=None, flags=())
    """
    from .column_notes import like_bands, like_objects, nothing_in
    from .flags import find

    asked = {role: _position(names, name, role) for role, name in wanted.named().items()}
    have = {form for name in names for form in forms(name)}
    flags = None if wanted.flags is None else tuple(_position(names, name, "flag") for name in wanted.flags)
    used = set(asked.values()) | set(flags or ())
    empty = set() if sample is None else {i for i in range(len(names)) if nothing_in(sample(i))}

    def needed(role: str, known: Sequence[str], pattern: Callable[[str], bool], what: str) -> int:
        at = asked.get(role)
        if at is None:
            at = _first(names, known, used | empty, role)
        if at is None:
            at = _by_pattern(names, used | empty, pattern)
        if at is None:
            at = _first(names, known, used, role)
        if at is None:
            raise MissingColumn(
                f"found no column of {what}; name it with --{role}. The columns are: {', '.join(names)}"
            )
        used.add(at)
        return at

    def weak(accept: Callable[[str], bool], fits: Callable[[NDArray[Any]], bool]) -> int | None:
        """The first column of such a name whose values fit."""
        for i, name in enumerate(names):
            if i not in used and any(map(accept, forms(name))) and sample is not None and fits(sample(i)):
                return i
        return None

    time = needed("time", TIME_NAMES, _is_time, "times")
    values = [*OF_STARS, *VALUE_NAMES] if SIGN in have else VALUE_NAMES
    if {"x", "y"} <= have:  # places on a detector
        values = [name for name in values if name != "y"]
    mag = needed("mag", values, _is_value, "magnitudes or fluxes")
    err = asked["err"] if "err" in asked else _error_of(names, mag, used | empty)
    flux = flux_err = None
    if err is None and "mag" in plain(names[mag]):
        flux, flux_err = _flux_beside(names, mag, used | empty)
    used |= {i for i in (err, flux, flux_err) if i is not None}
    ids: Sequence[str] = [MOVING, *ID_NAMES] if wanted.moving else ID_NAMES
    if have & {"w1mpro", "w2mpro", "w1mproep", "w2mproep"}:
        ids = [*WISE_IDS, *(name for name in ids if name != "sourceid")]
    object_id = asked["id"] if "id" in asked else _first(names, ids, used | empty, "id")
    if object_id is None:
        object_id = _first(names, ids, used, "id")
    if object_id is None:
        object_id = weak(_is_object, like_objects)
    band = asked["band"] if "band" in asked else _first(names, BAND_NAMES, used, "band")
    if band is None:
        band = weak(_is_band, like_bands)
    used |= {i for i in (object_id, band) if i is not None}
    if flags is None:
        flags = find(names, sorted(used | empty), names[mag])
    return Columns(
        time=time, mag=mag, err=err, id=object_id, band=band, flux=flux, flux_err=flux_err, flags=flags,
        r=asked.get("r"), delta=asked.get("delta"), phase=asked.get("phase"),
    )  # fmt: skip


def hints_of(names: Sequence[str], columns: Columns, sample: Sample, wanted: Wanted) -> list[str]:
    """Notes on the columns that are not used; see `skysieve.periodogram.lightcurves.column_notes`."""
    from .column_notes import hints

    return hints(names, columns, sample, wanted.flags is None)


def _flux_beside(names: Sequence[str], mag: int, used: set[int]) -> tuple[int | None, int | None]:
    """A flux of the same band with an error, beside magnitudes without one."""
    partner = [form.replace("mag", "flux") for form in forms(names[mag])]
    flux = _first(names, [*partner, "flux"], used, "flux")
    if flux is None:
        return None, None
    err = _error_of(names, flux, {*used, flux}, alone=True)
    return (None, None) if err is None else (flux, err)


def by_count(n: int, first_is_id: bool, wanted: Wanted) -> tuple[list[str], Columns]:
    """Columns of a table without a header, by how many there are.

    Two are time and magnitude; three are time, magnitude, error, or id, time, magnitude where the
    first looks like an identifier; four are id, time, magnitude, error.  Once the user gives one by
    its number nothing is guessed: time and magnitude must both be given.  Brightness without a name is in magnitudes.

    >>> by_count(4, True, Wanted())[0]
    ['id', 'time', 'mag', 'err']
    """
    asked_names = wanted.named()
    if asked_names:
        names = [f"column {i + 1}" for i in range(n)]
        for role in ("time", "mag"):
            if role not in asked_names:
                raise MissingColumn(f"the file has no header: give --{role} too, as a number from 1 to {n}")
        at: dict[str, Any] = {role: _position(names, name, role) for role, name in asked_names.items()}
        columns = Columns(**at, flags=_flags_asked(names, wanted))
        names[columns.mag] += " (mag)"
        return names, columns
    if n < 2:
        raise MissingColumn(f"a light curve needs at least a time and a magnitude; the file has {n} column")
    order = ["id", "time", "mag", "err"] if first_is_id and n > 2 else ["time", "mag", "err"]
    names = [order[i] if i < len(order) else f"column {i + 1}" for i in range(n)]
    flags = _flags_asked(names, wanted)
    found: dict[str, Any] = {name: i for i, name in enumerate(names) if name in ROLES and i not in flags}
    return names, Columns(**found, flags=flags)


def _flags_asked(names: Sequence[str], wanted: Wanted) -> tuple[int, ...]:
    return tuple(_position(names, name, "flag") for name in wanted.flags or ())


def left_over(names: Sequence[str]) -> list[str]:
    """Columns that `by_count` does not use, because their meaning is unknown.

    >>> left_over(by_count(5, True, Wanted())[0])
    ['column 5']
    """
    known = sum(name in ROLES for name in names)
    rest = list(names[known:])
    return rest if known and rest == [f"column {known + i + 1}" for i in range(len(rest))] else []
