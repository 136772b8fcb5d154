"""Which column of a light-curve table is the time, the brightness, its error and the object's name.

Names are compared without case, spaces, dots, dashes and underscores.  Nothing here reads files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TIME_NAMES = (
    "time", "t", "bjd", "hjd", "jd", "mjd", "bmjd", "hmjd", "btjd", "bkjd", "bjdtdb", "hjdutc", "jdutc", "mjdtai",
    "mjdutc", "midpointmjdtai", "midpointtai",
    "midpointmjd", "midmjd", "expmidptmjd", "expmjd", "obsmjd", "mjdobs", "obsjd",
    "obstime", "timeobs", "observationtime", "timebtjd", "timebkjd", "timemjd", "timejd", "timehjd", "timebjd", "days",
    "date", "dates", "epoch",
)  # fmt: skip
VALUE_NAMES = (
    "mag", "magnitude", "mags", "psfmag", "magpsf", "magauto", "magaper", "calmag", "vmag", "gmag", "rmag", "imag",
    "flux", "psfflux", "pdcsapflux", "sapflux", "fluxujy", "fluxmjy", "fluxjy", "calflux", "scienceflux", "forcedflux",
    "diffflux", "psfdiffflux", "ujy", "normflux", "relflux", "y", "value", "signal", "brightness", "counts", "rate",
    "rv", "vrad", "radialvelocity",
)  # fmt: skip
ERROR_NAMES = (
    "err", "error", "dy", "yerr", "e", "sigma", "sig", "uncertainty", "unc", "std", "valueerr", "magerr", "dmag",
    "magerror", "magnitudeerror", "fluxerr", "dflux", "fluxerror",
)  # fmt: skip
ID_NAMES = (
    "id", "objid", "objectid", "diaobjectid", "ssobjectid", "sourceid", "oid", "object", "obj", "objname",
    "source", "name", "starid", "star", "target", "targetid", "targetname", "ticid", "tic", "kic", "epic",
    "designation", "lcid", "asteroid", "number",
)  # fmt: skip
BAND_NAMES = ("band", "filter", "filtercode", "filt", "passband", "fid", "bandpass", "filtername")

NUMERIC, LABELS = ("time", "mag", "err", "r", "delta", "phase"), ("id", "band")
ROLES = ("id", "time", "mag", "err", "band", "r", "delta", "phase")
STARS, MOVING = "diaobjectid", "ssobjectid"
"""Ids of Rubin's difference-image sources: a row belongs to a fixed object or to a moving one, the other id is 0."""


class MissingColumn(ValueError):
    """A column that was asked for, or that is needed, is not in the table."""


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
    """Whether objects of the solar system are wanted, where a table holds both kinds."""

    def named(self) -> dict[str, str]:
        """Those that were named, by role."""
        return {role: w for role in ROLES if (w := getattr(self, role)) is not None}


@dataclass(frozen=True)
class Columns:
    """Positions (from 0) of the columns taken; None where there is none."""

    time: int
    mag: int
    err: int | None = None
    id: int | None = None
    band: int | None = None
    r: int | None = None
    delta: int | None = None
    phase: int | None = None

    def taken(self, names: Sequence[str]) -> str:
        """One line that says which column serves as what."""
        return ", ".join(f"{role} = {names[i]}" for role in ROLES if (i := getattr(self, role)) is not None)


def plain(name: str) -> str:
    """A column name as it is compared: lower case, letters and digits only.

    >>> plain("midpointMjdTai"), plain("mag_err")
    ('midpointmjdtai', 'magerr')
    """
    return "".join(c for c in name.casefold() if c.isalnum())


def _first(names: Sequence[str], known: Sequence[str], used: set[int]) -> int | None:
    have: dict[str, int] = {}
    for i, name in enumerate(names):
        if i not in used:
            have.setdefault(plain(name), i)
    return next((have[k] for k in known if k in have), None)


def _error_of(names: Sequence[str], value: int, used: set[int]) -> int | None:
    """The error column that belongs to the chosen brightness, before any general one."""
    v = plain(names[value])
    own = [f"{v}{s}" for s in ("err", "error", "sigma", "unc", "uncertainty", "std")]
    own += [f"{s}{v}" for s in ("err", "error", "e", "d", "sig", "sigma", "unc", "delta")]
    if v.startswith("mag"):
        own += ["magerr", "dmag", "sigmag", "sigmapsf", "emag"]
    general = [n for n in ERROR_NAMES if not ("flux" in n and "flux" not in v) and not ("mag" in n and "mag" not in v)]
    return _first(names, [*own, *general], used)


def _position(names: Sequence[str], wanted: str, role: str) -> int:
    for i, name in enumerate(names):
        if name == wanted:
            return i
    for i, name in enumerate(names):
        if plain(name) == plain(wanted) != "":
            return i
    if wanted.isdigit() and 1 <= int(wanted) <= len(names):
        return int(wanted) - 1
    option = "band-column" if role == "band" else role
    raise MissingColumn(f"no column {wanted!r} for --{option}; there are: {', '.join(names)}")


def choose(names: Sequence[str], wanted: Wanted) -> Columns:
    """Find the columns of a table with a header.

    Raises
    ------
    MissingColumn
        A named column is not there, or no time or brightness was found; the message lists the columns.

    Examples
    --------
    >>> choose(["diaObjectId", "midpointMjdTai", "psfFlux", "psfFluxErr"], Wanted())
    Columns(time=1, mag=2, err=3, id=0, band=None, r=None, delta=None, phase=None)
    """
    asked = {role: _position(names, name, role) for role, name in wanted.named().items()}
    used = set(asked.values())

    def needed(role: str, known: Sequence[str], what: str) -> int:
        at = asked.get(role)
        if at is None:
            at = _first(names, known, used)
        if at is None:
            raise MissingColumn(f"found no column of {what}; name it with --{role}. There are: {', '.join(names)}")
        used.add(at)
        return at

    time = needed("time", TIME_NAMES, "times")
    mag = needed("mag", VALUE_NAMES, "magnitudes or fluxes")
    err = asked["err"] if "err" in asked else _error_of(names, mag, used)
    if err is not None:
        used.add(err)
    ids = [MOVING, *ID_NAMES] if wanted.moving else ID_NAMES
    return Columns(
        time=time,
        mag=mag,
        err=err,
        id=asked["id"] if "id" in asked else _first(names, ids, used),
        band=asked["band"] if "band" in asked else _first(names, BAND_NAMES, used),
        **{role: asked[role] for role in ("r", "delta", "phase") if role in asked},
    )


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
        columns = Columns(**{role: _position(names, name, role) for role, name in asked_names.items()})
        names[columns.mag] += " (mag)"
        return names, columns
    if n < 2:
        raise MissingColumn(f"a light curve needs at least a time and a magnitude; the file has {n} column")
    order = ["id", "time", "mag", "err"] if first_is_id and n > 2 else ["time", "mag", "err"]
    names = [order[i] if i < len(order) else f"column {i + 1}" for i in range(n)]
    return names, Columns(**{name: i for i, name in enumerate(names) if name in ROLES})


def left_over(names: Sequence[str]) -> list[str]:
    """Columns that `by_count` has left unused because it knows no meaning for them.

    >>> left_over(by_count(5, True, Wanted())[0])
    ['column 5']
    """
    known = sum(name in ROLES for name in names)
    rest = list(names[known:])
    return rest if known and rest == [f"column {known + i + 1}" for i in range(len(rest))] else []
