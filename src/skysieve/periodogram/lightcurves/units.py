"""Units of the arguments, which are removed before the search and given to the results; conversion of dates to days.

astropy is imported only if an argument has a unit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from skysieve.core.arrays import is_device_array
from skysieve.periodogram.numerics.normalization import NORMALIZATIONS


class TimeUnit(StrEnum):
    """Units of time of the command line: the value is the name in astropy and FITS, ``hours`` the length."""

    hours: float

    def __new__(cls, name: str, hours: float) -> TimeUnit:
        """Make a string with an attribute ``hours``."""
        unit = str.__new__(cls, name)
        unit._value_, unit.hours = name, hours
        return unit

    d = "d", 24.0
    h = "h", 1.0
    min = "min", 1 / 60
    s = "s", 1 / 3600
    yr = "yr", 8766.0

    @property
    def days(self) -> float:
        """Length in days."""
        return self.hours / TimeUnit.d.hours


UNITS_OF_TIME = {
    "d": TimeUnit.d, "day": TimeUnit.d, "days": TimeUnit.d,
    "h": TimeUnit.h, "hr": TimeUnit.h, "hrs": TimeUnit.h, "hour": TimeUnit.h, "hours": TimeUnit.h,
    "min": TimeUnit.min, "mins": TimeUnit.min, "minute": TimeUnit.min, "minutes": TimeUnit.min,
    "s": TimeUnit.s, "sec": TimeUnit.s, "secs": TimeUnit.s, "second": TimeUnit.s, "seconds": TimeUnit.s,
    "yr": TimeUnit.yr, "year": TimeUnit.yr, "years": TimeUnit.yr, "a": TimeUnit.yr,
}  # fmt: skip
"""Units of time by the names that a header, or a line of units under it, may give."""


def days_of(unit: str) -> float | None:
    """Length in days of a unit of time that a header gives; None for anything else.

    >>> days_of("Hours"), days_of("ks"), days_of("BJD")
    (0.041666666666666664, 0.011574074074074073, None)
    """
    if unit.casefold() in UNITS_OF_TIME:
        return UNITS_OF_TIME[unit.casefold()].days
    if not unit:
        return None
    from astropy import units as u

    parsed = u.Unit(unit, parse_strict="silent")
    return float(parsed.to(u.day)) if parsed.is_equivalent(u.day) else None


def unit_in_name(name: str) -> str:
    """The unit in brackets at the end of a column's name; "" without brackets.

    >>> unit_in_name("time [s]"), unit_in_name("flux_err (mJy)"), unit_in_name("mag")
    ('s', 'mJy', '')
    """
    found = re.search(r"[(\[]\s*([^()\[\]]+?)\s*[)\]]\s*$", name)
    return found[1] if found else ""


UNIT_OF = {"err": "mag", "flux_err": "flux"}
"""Columns of a file whose numbers are brought to the unit of another column."""
GEOMETRY = {"r": "AU", "delta": "AU", "phase": "deg"}
"""Columns of a file whose numbers are brought to a unit of their own."""


def in_one_unit(data: MutableMapping[str, Any], units: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    """Bring the errors of a file to the unit of its values, and distances and angles to au and degrees.

    Parameters
    ----------
    data : dict
        Columns by role; those in other units are replaced.
    units : mapping
        Units by role, as astropy's or as text.  If a column has none here, the unit in brackets in its name is used.
    names : mapping
        Names of the columns by role.

    Returns
    -------
    list of str
        Notes on units that cannot be converted into each other.

    Examples
    --------
    >>> data = {"mag": np.array([15.0]), "err": np.array([20.0])}
    >>> in_one_unit(data, {"mag": "mag", "err": "mmag"}, {"mag": "mag", "err": "err"}), data["err"]
    ([], array([0.02]))
    """
    notes = []
    own = {role: units.get(role) or unit_in_name(name) for role, name in names.items()}
    if not own.get("mag") and "mag" in names["mag"].casefold():
        own["mag"] = "mag"
    targets = {role: own.get(other) for role, other in UNIT_OF.items()} | GEOMETRY
    for role, target in targets.items():
        if role not in data or not own.get(role) or not target or str(own[role]) == str(target):
            continue
        from astropy import units as u

        given, wanted = (_plain_unit(u, unit) for unit in (own[role], target))
        if given is None or wanted is None or given == wanted:
            continue
        if given.is_equivalent(wanted):
            data[role] = data[role] * given.to(wanted)
        elif units.get(role) and (role in GEOMETRY or units.get(UNIT_OF[role])):
            notes.append(f"{names[role]} is in {given}, not in {wanted}: its numbers are used as they are")
    return notes


def _plain_unit(u: Any, unit: Any) -> Any:
    """An astropy unit; None for what astropy does not know and for numbers without a dimension."""
    known = u.Unit(unit, parse_strict="silent")
    known = getattr(known, "function_unit", known)  # mag for mag(AB)
    return None if isinstance(known, u.UnrecognizedUnit) or known == u.dimensionless_unscaled else known


@dataclass(frozen=True)
class Units:
    """Unit of the times and of the values; None for plain numbers."""

    time: Any = None
    y: Any = None

    @property
    def frequency(self) -> Any:
        """Unit of frequencies, or None."""
        return None if self.time is None else self.time**-1

    def power(self, normalization: str, has_dy: bool) -> Any:
        """Unit of the power: that of ``y**2`` or dimensionless, by the normalisation; None without units."""
        if self.y is None:
            return None
        return self.y**2 if NORMALIZATIONS[normalization].has_unit(has_dy) else self.y**0

    def with_time(self, values: Any) -> Any:
        """Periods or times with their unit."""
        return attach(values, self.time)

    def with_frequency(self, values: Any) -> Any:
        """Frequencies with their unit."""
        return attach(values, self.frequency)


def attach(values: Any, unit: Any) -> Any:
    """``values`` as a Quantity without a copy; unchanged if ``unit`` is None or they are on a GPU."""
    return values if unit is None or is_device_array(values) else values << unit


def unit_of(x: Any) -> Any:
    """Unit of a Quantity or of a table column that has one, else None."""
    unit = getattr(x, "unit", None)
    if unit is None:
        return None
    from astropy.units import UnitBase

    unit = getattr(unit, "function_unit", unit)  # mag for a Magnitude
    return unit if isinstance(unit, UnitBase) else None


def known_unit(x: Any, name: str) -> Any:
    """As `unit_of`; ValueError for a unit that was read from a file, but has no meaning for astropy."""
    unit = unit_of(x)
    if unit is not None:
        from astropy.units import UnrecognizedUnit

        if isinstance(unit, UnrecognizedUnit):
            raise ValueError(
                f"{name} has the unit {unit.to_string()!r}, which astropy does not know; expected a unit such as "
                "'d' or 'mag', or None (the attribute unit of a column of a table can be changed)"
            )
    return unit


MJD_EPOCH = np.datetime64("1858-11-17", "us")


def mjd(dates: Any) -> Any:
    """Modified Julian Dates (float64) of NumPy dates; NaN for NaT.

    >>> float(mjd(np.datetime64("2018-07-09T12:00")))
    58308.5
    """
    return (np.asarray(dates) - MJD_EPOCH) / np.timedelta64(1, "D")


def is_date(x: Any) -> bool:
    """Whether ``x`` is an astropy Time or TimeDelta."""
    return type(x).__module__.startswith("astropy.time")


def without_dates(x: Any) -> Any:
    """NumPy's, pandas' and Arrow's dates as Modified Julian Dates; anything else unchanged.

    Dates with a time zone are converted to UTC.
    """
    package = type(x).__module__.partition(".")[0]
    if package == "pyarrow":
        import pyarrow as pa

        if not (pa.types.is_timestamp(x.type) or pa.types.is_date(x.type)):
            return x
        unit = x.type.unit if pa.types.is_timestamp(x.type) else "us"
        values = x.cast(pa.timestamp(unit))
        return mjd(values.to_numpy() if isinstance(values, pa.ChunkedArray) else values.to_numpy(zero_copy_only=False))
    dtype = getattr(x, "dtype", None)
    if package == "pandas" and str(dtype).startswith(("datetime64[", "timestamp[", "date32", "date64")):
        return mjd(x.to_numpy(dtype="datetime64[ns]"))
    if isinstance(dtype, np.dtype) and dtype.kind == "M":
        if isinstance(x, np.ma.MaskedArray):
            x = np.where(np.ma.getmaskarray(x), np.datetime64("NaT"), x.data)
        return mjd(x)
    return x


def strip(x: Any, name: str, unit: Any = None) -> tuple[Any, Any]:
    """The numbers without their unit, and the unit; converted to ``unit`` if one is given.

    Raises
    ------
    ValueError
        If the units cannot be converted, only one of the two sides has any, or astropy does not know the unit.
    """
    own = known_unit(x, name)
    if own is None:
        if unit is not None and not unit.is_equivalent(""):
            raise ValueError(f"{name} has no unit; one that converts to {unit} is expected")
        return x, unit
    bare = getattr(x, "value", x)
    if unit is None or own == unit:
        return bare, own
    from astropy.units import UnitConversionError

    try:
        factor = own.to(unit)
    except UnitConversionError:
        raise ValueError(f"{name} has the unit {own}; one that converts to {unit} is expected") from None
    return bare * factor, unit


def first_time(x: Any) -> Any:
    """The first entry of a Time that is not masked; the first one if all are."""
    return x.reshape(-1)[int(np.argmin(np.asarray(x.mask).reshape(-1)))]


def strip_times(x: Any, name: str, unit: Any = None) -> tuple[Any, Any]:
    """As `strip`; a Time becomes days since its first entry, a TimeDelta days (float64, from both its parts).

    Dates of NumPy, pandas and Arrow become Modified Julian Dates, without a unit.
    """
    if not is_date(x):
        return strip(without_dates(x), name, unit)
    from astropy import units
    from astropy.time import TimeDelta

    mask = np.asarray(getattr(x, "mask", False))
    if not isinstance(x, TimeDelta) and x.size:
        x = x - first_time(x)
    days = x.to_value("jd")
    days = np.where(mask, np.nan, np.asarray(getattr(days, "unmasked", days)))
    return strip(days << units.day, name, unit)


def strip_frequency(value: Any, name: str, units: Units) -> Any:
    """``frequency``, ``fmin`` or ``fmax`` as plain numbers in 1/unit(t); None and text unchanged."""
    if value is None or isinstance(value, str) or (units.time is None and type(value) in _WITHOUT_UNIT):
        return value
    own = unit_of(value)
    if units.time is None:
        if own is not None:
            raise ValueError(f"{name} has the unit {own}, but t has none; give both a unit or neither")
        return value
    if own is None and units.time.is_unity():
        return value
    if own is None:
        raise ValueError(f"{name} has no unit, but t is in {units.time}; give {name} a unit such as 1/{units.time}")
    return strip(value, name, units.frequency)[0]


_WITHOUT_UNIT = frozenset({type(None), int, float, str})


def one_time_unit(bounds: dict[str, Any]) -> Any:
    """Unit of time in which `bounds` (frequencies by argument name, or None) are given; None without units."""
    if all(type(x) in _WITHOUT_UNIT for x in bounds.values()):
        return None
    units = {name: unit_of(x) for name, x in bounds.items() if x is not None and not isinstance(x, str)}
    having = [name for name, unit in units.items() if unit is not None]
    if not having:
        return None
    unit = next((units[name] for name in having if units[name].is_equivalent("1/s")), units[having[0]])
    for name, other in units.items():
        if other is None:
            raise ValueError(f"{having[0]} has the unit {unit}, but {name} has none; give both a unit or neither")
    return unit**-1
