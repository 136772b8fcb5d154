"""One light curve of the class `LombScargle`, with astropy's meaning of units and of absolute and relative times."""

from __future__ import annotations

from functools import cached_property
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import is_device_array
from skysieve.periodogram.analysis.fap import Noise
from skysieve.periodogram.lightcurves.arrays import finite_rows, time_resolution
from skysieve.periodogram.lightcurves.units import first_time, is_date, known_unit

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Rows:
    """The usable rows of a light curve without units, and the sums over them that its methods share.

    Attributes
    ----------
    columns : tuple
        The columns of the light curve from which the rows were taken.
    masked : bool
        Whether one of them is a masked array.
    good : numpy.ndarray of bool
        Whether each row of the columns is usable.
    t, y, dy : numpy.ndarray
        Finite times and values, errors above 0; `dy` may be None.

    Raises
    ------
    ValueError
        If no row is usable, or an error is not positive.
    """

    def __init__(self, columns: tuple[Any, Any, Any]) -> None:
        self.columns = columns
        self.masked = any(isinstance(x, np.ma.MaskedArray) for x in columns)
        t, y = plain(columns[0]), plain(columns[1])
        dy = None if columns[2] is None else plain(columns[2])
        self.good = good = finite_rows(t, y, dy)
        if not good.any():
            names = "t and y" if dy is None else "t, y and dy"
            raise ValueError(f"t and y have no usable row: of {len(t)} none is finite in {names}")
        if dy is not None and (dy[good] <= 0).any():
            odd = int(np.argmax(good & (dy <= 0)))
            raise ValueError(f"dy[{odd}] is {dy[odd]:g}; every error must be positive")
        if not good.all():
            t, y, dy = t[good], y[good], None if dy is None else dy[good]
        self.t, self.y, self.dy = t, y, dy

    @cached_property
    def weight(self) -> NDArray[np.float64]:
        """``dy**-2``, or 1 without errors."""
        return np.ones_like(self.y) if self.dy is None else self.dy**-2.0

    @cached_property
    def total(self) -> float:
        """Sum of the weights."""
        return float(self.weight.sum())

    @cached_property
    def mean(self) -> float:
        """Weighted mean of the values."""
        return float(self.weight @ self.y / self.total)

    @cached_property
    def centred(self) -> NDArray[np.float64]:
        """Values less their weighted mean.

        The mean is subtracted in two rounds, as in `cpu.prepare`: that of values far from 0 is rounded.
        """
        once = self.y - self.mean
        return np.asarray(once - float(self.weight @ once / self.total))

    @cached_property
    def from_middle(self) -> NDArray[np.float64]:
        """Times since the middle of the time span, whose small phases have small rounding errors."""
        return np.asarray(self.t - 0.5 * (self.t.min() + self.t.max()))

    @cached_property
    def varies(self) -> bool:
        """Whether neither all times nor all values are equal."""
        return self.has_span and bool(np.ptp(self.y) > 0)

    @cached_property
    def has_span(self) -> bool:
        """Whether the times are not all equal."""
        return bool(np.ptp(self.t) > 0)

    def refuse_few(self, least: int) -> None:
        """Raise ValueError for fewer than ``least`` rows, and for equal times."""
        n = self.t.size
        if n < least:
            raise ValueError(f"t and y have {n} usable row{'s'[: n != 1]}; at least {least} are needed")
        if not self.has_span:
            raise ValueError(f"all times t are equal ({float(self.t[0])!r}); a time span above 0 is needed")

    @cached_property
    def noise(self) -> Noise:
        """Input of the formulas of false-alarm probabilities, for a bandwidth of 1."""
        return Noise.of(self.t, self.dy, 1.0, "standard")


class Curve:
    """Times, values and errors of one light curve, broadcast against one another, with units where one has any.

    Attributes
    ----------
    t : array, Quantity or Time
        As given (a TimeDelta in days).
    y, dy : numpy.ndarray or Quantity
        Read-only copies of the arguments; `dy` may be None.
    """

    def __init__(self, t: Any, y: Any, dy: Any = None) -> None:
        for name, x in (("t", t), ("y", y), ("dy", dy)):
            if x is not None and is_device_array(x):
                raise TypeError(
                    f"{name} is on a GPU; NumPy arrays are expected (device='cuda' computes there), "
                    "or skysieve.lombscargle, which takes such arrays"
                )
        self.t = _days(t)
        self._start = first_time(self.t) if _is_absolute(self.t) and self.t.size else None
        relative = self.t if self._start is None else _days(self.t - self._start)
        relative, y, dy = _together(relative, y, dy)
        self._relative, self.y = _frozen(relative), _frozen(y)
        self.dy = None if dy is None else _frozen(dy)
        self._resolution = _resolution(self._relative)
        self._checked: Rows | None = None
        self._sampling: tuple[int, Any] | None = None

    @property
    def _usable(self) -> Rows:
        """The usable rows; they are checked once for each set of columns, but again where a mask may have changed."""
        columns = (self._relative, self.y, self.dy)
        found = self._checked
        if found is None or found.masked or not all(map(is_, found.columns, columns)):
            found = self._checked = Rows(columns)
        return found

    def _rows(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
        """Bare finite rows: times since the start of a Time (as they are otherwise), values, errors above 0."""
        rows = self._usable
        return rows.t, rows.y, rows.dy

    def _frequency(self, frequency: Any) -> Any:
        """Frequencies in 1/unit(t)."""
        wanted = np.asanyarray(frequency)
        if not has_unit(self._relative):
            if has_unit(wanted):
                raise ValueError(f"frequency has the unit {wanted.unit}, but t has none; give both a unit or neither")
            return wanted
        from astropy.units import Quantity, UnitConversionError

        try:
            return Quantity(Quantity(wanted), unit=1 / self._relative.unit)  # refuses plain numbers, which have no unit
        except UnitConversionError:
            found = getattr(wanted, "unit", "none")
            raise ValueError(
                f"the unit of frequency, {found}, does not convert to that of 1/t, 1/({self._relative.unit})"
            ) from None

    def _one_frequency(self, frequency: Any) -> float:
        f = self._frequency(frequency)
        if np.ndim(f) != 0:
            raise ValueError(f"frequency has shape {np.shape(f)}; one number is expected")
        return float(getattr(f, "value", f))

    def _times(self, t: Any) -> NDArray[np.float64]:
        """The user's times as plain numbers, in the unit and from the origin of the light curve's times."""
        times = _days(t)
        if _is_absolute(times):
            if self._start is None:
                raise TypeError("t is an absolute time, but the LombScargle was made with relative times")
            times = _days(times - self._start)
        elif self._start is not None:
            raise TypeError("t is a relative time, but the LombScargle was made with absolute times")
        times = np.asanyarray(times)
        if has_unit(self._relative):
            from astropy.units import Quantity, UnitConversionError

            try:
                times = Quantity(Quantity(times), unit=self._relative.unit)
            except UnitConversionError:
                found = getattr(times, "unit", "none")
                raise ValueError(
                    f"the unit of t, {found}, does not convert to that of the light curve, {self._relative.unit}"
                ) from None
        if times.ndim != 1:
            raise ValueError(f"t has shape {times.shape}; a 1-D array of times is expected")
        return np.asarray(getattr(times, "value", times), np.float64)


def _resolution(t: Any) -> float:
    """Spacing of the floating-point numbers at the largest of the times as they were given; see `time_resolution`."""
    bare = getattr(t, "value", t)
    bare = bare.compressed() if isinstance(bare, np.ma.MaskedArray) else getattr(bare, "unmasked", bare)
    return time_resolution(bare)


def _frozen(x: Any) -> Any:
    """A read-only copy, so that results of earlier calls stay valid."""
    copy = x.copy()
    copy.flags.writeable = False
    return copy


def has_unit(x: Any) -> bool:
    return hasattr(x, "unit")


def unit_of(x: Any) -> Any:
    return getattr(x, "unit", 1)


def _is_absolute(t: Any) -> bool:
    """Whether ``t`` is a Time, but not a TimeDelta."""
    if not is_date(t):
        return False
    from astropy.time import TimeDelta

    return not isinstance(t, TimeDelta)


def _days(t: Any) -> Any:
    """A TimeDelta as days; anything else unchanged."""
    if not is_date(t) or _is_absolute(t):
        return t
    from astropy.units import day

    return t.to(day)


def _together(t: Any, y: Any, dy: Any) -> tuple[Any, Any, Any]:
    """Broadcast against one another; if one has a unit all get one."""
    if any(has_unit(x) for x in (t, y, dy)):
        from astropy.units import Quantity, UnitConversionError

        t, y = _as_quantity(t, "t"), _as_quantity(y, "y")
        if dy is not None:
            dy = _as_quantity(dy, "dy")
            try:
                dy = Quantity(dy, unit=y.unit)
            except UnitConversionError:
                of_y = f"that of y, {y.unit}" if str(y.unit) else "y, which has none"
                raise ValueError(f"the unit of dy, {dy.unit!s:.30}, does not convert to {of_y}") from None
    given = [x if isinstance(x, np.ndarray) else np.asarray(x) for x in ((t, y) if dy is None else (t, y, dy))]
    for name, x in zip(("t", "y", "dy"), given, strict=False):
        if x.dtype.kind not in "iuf":
            raise TypeError(f"{name} has dtype {x.dtype}; real numbers are expected")
    shapes = [x.shape for x in given if x.size != 1]
    if any(shape != shapes[0] for shape in shapes):
        listed = ", ".join(f"{name} {x.shape}" for name, x in zip(("t", "y", "dy"), given, strict=False))
        raise ValueError(f"arrays of equal length are expected; the shapes are {listed}")
    arrays = np.broadcast_arrays(*given, subok=True)
    if arrays[0].ndim != 1:
        raise ValueError(f"t, y and dy have shape {arrays[0].shape} together; 1-D arrays are expected")
    return arrays[0], arrays[1], None if dy is None else arrays[2]


def _as_quantity(x: Any, name: str) -> Any:
    """A Quantity, dimensionless without a unit, in mag for a Magnitude; masked entries NaN."""
    from astropy.units import Quantity

    unit = known_unit(x, name)
    unmasked = getattr(x, "unmasked", None)
    if unmasked is not None or isinstance(x, np.ma.MaskedArray):
        bare = x.data if unmasked is None else unmasked
        values = np.where(np.ma.getmaskarray(x) if unmasked is None else np.asarray(x.mask), np.nan, np.asarray(bare))
        return Quantity(values, unit=unit or "")
    return Quantity(x) if unit is None else Quantity(getattr(x, "value", x), unit=unit)


def plain(x: Any) -> NDArray[np.float64]:
    """Bare float64; masked entries NaN."""
    if isinstance(x, np.ma.MaskedArray):
        return np.ma.filled(x.astype(np.float64), np.nan)
    return np.asarray(x, np.float64)


def missing(x: Any) -> NDArray[np.bool_]:
    """Which entries of a column are NaN or masked."""
    absent = np.isnan(x)
    if isinstance(absent, np.ma.MaskedArray):
        return np.ma.filled(absent, True)
    bare = np.asarray(getattr(absent, "unmasked", absent), bool)
    return bare | np.broadcast_to(np.asarray(getattr(x, "mask", False)), bare.shape)
