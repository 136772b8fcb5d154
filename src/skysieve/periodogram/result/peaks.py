"""Peaks of periodograms, and arrays of unequal lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.periodogram.lightcurves.units import attach

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Ragged(Sequence[Any]):
    """One array per object, of unequal lengths, one after another in a flat array.

    Attributes
    ----------
    flat : array
        All values.
    offsets : numpy.ndarray, int64, shape (n + 1,)
        Values of object ``i`` are ``flat[offsets[i]:offsets[i + 1]]``.

    Examples
    --------
    >>> import numpy as np
    >>> r = Ragged(np.arange(5.0), np.array([0, 2, 5]))
    >>> len(r), r[1], r[-1] is not None
    (2, array([2., 3., 4.]), True)
    """

    def __init__(self, flat: Any, offsets: NDArray[np.int64], unit: Any = None) -> None:
        self.flat = attach(flat, unit)
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        i = _within(i, len(self))
        return self.flat[self.offsets[i] : self.offsets[i + 1]]

    def __repr__(self) -> str:
        return f"<{len(self)} arrays, {int(self.offsets[-1])} values>"


def _within(i: Any, n: int) -> int:
    """Position ``i`` from the start; TypeError unless it is a whole number."""
    try:
        j = index(i)
    except TypeError:
        hint = "; [result[i] for i in range(...)] gives several" if isinstance(i, slice) else ""
        raise TypeError(f"index {i!r}: the number of one object is expected{hint}") from None
    if not -n <= j < n:
        raise IndexError(f"object {j} of {n}")
    return j % n


@dataclass(frozen=True, repr=False, eq=False)
class Peaks:
    """The best peaks in falling order of power; shape (k,) for one light curve, (n, k) for a batch.

    Each is the maximum of the exact periodogram next to a high sample of the grid, found in float64 whatever the
    `dtype` of the powers is.  A peak never leaves the searched range: where the power still rises at an end of the
    range, that end is the peak, and its error is NaN.

    Attributes
    ----------
    index : numpy.ndarray, int64
        Index in the frequency grid of the sample from which the peak was found; -1 past the last peak found.
    frequency, period, power : numpy.ndarray or Quantity, float64
        Position and height of the maximum; NaN past the last.  A standard power is never above 1.
    frequency_error, period_error : numpy.ndarray or Quantity, float64
        Standard errors (1 sigma): the distance at which chi-square exceeds its minimum by 1
        (``sqrt(2 / (chi2_0 |P''|))`` with the chi-square ``chi2_0`` of the constant model and the standard power P),
        and that times the square of the period.  Without `dy` the scatter of the residuals takes its place.  Where
        chi-square of the residuals exceeds the degrees of freedom by more than 5 standard deviations, `dy` cannot be
        the scatter about this model, and the errors are multiplied by the root of chi-square per degree of freedom.
        They say how sharp a peak is, not whether it is the right one.  NaN without a degree of freedom.
    """

    index: NDArray[np.int64]
    frequency: Any
    period: Any
    power: Any
    frequency_error: Any
    period_error: Any

    @classmethod
    def found(
        cls,
        index: NDArray[np.int64],
        frequency: Any,
        power: Any,
        period: Callable[[], Any],
        errors: Callable[[], tuple[Any, Any]],
    ) -> Peaks:
        """Peaks whose periods, and errors of frequency and period, are computed at the first access."""
        peaks = object.__new__(cls)
        peaks.__dict__.update(index=index, frequency=frequency, power=power, _period=period, _errors=errors)
        return peaks

    def __getattr__(self, name: str) -> Any:
        """Compute a field at its first access; other attributes do not exist."""
        made = self.__dict__
        if name == "period" and (period := made.get("_period")):
            made["period"] = period()
            made.pop("_period", None)
        elif name in ("frequency_error", "period_error") and (errors := made.get("_errors")):
            made["frequency_error"], made["period_error"] = errors()
            made.pop("_errors", None)
        if name not in made:  # another thread may have computed it meanwhile
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return made[name]

    def __len__(self) -> int:
        return int(self.index.shape[-1])

    def __getitem__(self, key: Any) -> Peaks:
        return Peaks(*(getattr(self, f.name)[key] for f in fields(self)))

    def __repr__(self) -> str:
        if self.index.ndim > 1:
            return f"<Peaks: {self.index.shape[0]} objects, up to {len(self)} each>"
        columns = (self.period, self.period_error, self.frequency, self.power)
        rows = [f"  {p:.8g}  {e:.2g}  {f:.8g}  {h:.5g}" for p, e, f, h in zip(*columns, strict=True)]
        return "\n".join(["<Peaks: period, error, frequency, power", *rows]) + ">"
