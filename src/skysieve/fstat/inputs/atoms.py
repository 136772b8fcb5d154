"""F-statistic atoms: the contributions of single Fourier transforms of one detector to one template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import as_array, is_device_array, spacing_at, to_host

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Atoms"]

FIELDS = ("a2", "b2", "ab", "Fa", "Fb")
LARGEST_TIME = 2**53
"""Largest GPS second; a float64 holds it exactly."""
SCHWARZ = 1e-5
"""How far ``ab^2`` may exceed ``a2 b2``, relative to the squared scale of a2 + b2: text files round to 1e-6."""


@dataclass(frozen=True, init=False, repr=False)
class Atoms:
    """Atoms of one template: antenna factors and projections of the data for each short Fourier transform (SFT).

    Parameters
    ----------
    t : array_like of int, shape (n,)
        GPS seconds at which each SFT starts; rising, without repeats, gaps allowed.
    a2, b2, ab : array_like, shape (n,)
        Noise-weighted antenna-pattern products ``a^2``, ``b^2`` and ``a b``.
    Fa, Fb : array_like of complex, shape (n,)
        Projections of the data on the two halves of the template.
    tatom : int
        Length of an SFT in seconds.
    detector : str
        Name, such as ``"H1"``; merged atoms have several names joined by ``+``.

    Raises
    ------
    ValueError
        The lengths differ, there are no atoms, times are not integers, do not rise or were rounded to single
        precision, numbers are not finite, `a2` or `b2` is negative, or ``ab^2 > a2 b2`` beyond rounding.
    TypeError
        Values are not numbers.

    Notes
    -----
    The numbers are stored in float32 (complex64), as in LALPulsar, unless one of the arrays is of double precision
    (Python's own numbers are).  CuPy arrays stay on the GPU.

    Examples
    --------
    >>> atoms = Atoms([0, 1800, 5400], [1, 1, 1], [1, 1, 1], [0, 0, 0], [1, 2j, 0], [0, 1, 1], detector="L1")
    >>> len(atoms), atoms.tatom, atoms.Fa.dtype
    (3, 1800, dtype('complex128'))
    """

    t: NDArray[np.int64]
    a2: Any
    b2: Any
    ab: Any
    Fa: Any
    Fb: Any
    tatom: int
    detector: str

    def __init__(
        self, t: Any, a2: Any, b2: Any, ab: Any, Fa: Any, Fb: Any, tatom: int = 1800, detector: str = "H1"
    ) -> None:
        given = {"a2": as_array(a2), "b2": as_array(b2), "ab": as_array(ab), "Fa": as_array(Fa), "Fb": as_array(Fb)}
        double = any((x.dtype.kind, x.dtype.itemsize) in (("f", 8), ("c", 16)) for x in given.values())
        times = times_of(t)
        values: dict[str, Any] = {}
        for name, x in given.items():
            kinds = "buifc" if name in ("Fa", "Fb") else "buif"
            if x.dtype.kind not in kinds:
                raise TypeError(f"{name} has dtype {x.dtype}, expected {'complex' if 'c' in kinds else 'real'} numbers")
            if x.shape != times.shape:
                raise ValueError(f"{name} has shape {x.shape}, expected {times.shape}, that of t")
            wanted = (
                (np.complex128 if double else np.complex64) if "c" in kinds else np.float64 if double else np.float32
            )
            values[name] = x.astype(wanted)
        object.__setattr__(self, "t", times)
        for name, x in values.items():
            object.__setattr__(self, name, x)
        object.__setattr__(self, "tatom", positive_seconds(tatom, "tatom"))
        object.__setattr__(self, "detector", str(detector))
        self._check()

    def _check(self) -> None:
        if self.t.size == 0:
            raise ValueError("t is empty: there are no atoms")
        host = {name: to_host(getattr(self, name)) for name in FIELDS}
        for name, x in host.items():
            bad = np.flatnonzero(~np.isfinite(x))
            if bad.size:
                raise ValueError(
                    f"{name}[{bad[0]}] = {x[bad[0]]} is not finite ({bad.size} of {x.size} values are not)"
                )
        for name in ("a2", "b2"):
            bad = np.flatnonzero(host[name] < 0)
            if bad.size:
                raise ValueError(
                    f"{name}[{bad[0]}] = {host[name][bad[0]]} is negative; expected a square, which is at least 0"
                )
        a2, b2, ab = (host[name].astype(np.float64) for name in ("a2", "b2", "ab"))
        bad = np.flatnonzero(above_schwarz(a2, b2, ab))
        if bad.size:
            i = bad[0]
            limit = float(np.sqrt(a2[i]) * np.sqrt(b2[i]))
            raise ValueError(f"ab[{i}] = {host['ab'][i]}: its square is above a2 b2, the square of {limit:.6g}")

    def __len__(self) -> int:
        return int(self.t.size)

    def __repr__(self) -> str:
        return (
            f"<Atoms: {self.detector}, {len(self)} SFTs of {self.tatom} s, GPS {self.t[0]} to "
            f"{self.t[-1] + self.tatom}, {np.dtype(self.a2.dtype).name}>"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Atoms):
            return NotImplemented
        same = self.tatom == other.tatom and self.detector == other.detector and np.array_equal(self.t, other.t)
        return same and all(
            getattr(self, f).dtype == getattr(other, f).dtype
            and np.array_equal(to_host(getattr(self, f)), to_host(getattr(other, f)))
            for f in FIELDS
        )

    __hash__ = None

    @property
    def on_device(self) -> bool:
        """Whether the projections are in GPU memory."""
        return is_device_array(self.Fa)


def above_schwarz(a2: Any, b2: Any, ab: Any) -> Any:
    """Whether ``ab^2`` is above ``a2 b2`` beyond rounding, for float64 arrays with one template in a row.

    The values are divided by their scale first, so that no product overflows.
    """
    scale = a2.max(axis=-1, keepdims=True) + b2.max(axis=-1, keepdims=True)
    scale = scale + (scale == 0)
    return (ab / scale) ** 2 > (a2 / scale) * (b2 / scale) + SCHWARZ


def times_of(t: Any) -> NDArray[np.int64]:
    """Check GPS times: rising whole seconds."""
    x = to_host(t)
    if x.ndim != 1:
        raise ValueError(f"t has shape {x.shape}, expected one dimension")
    if x.dtype.kind not in "uif":
        raise TypeError(f"t has dtype {x.dtype}, expected GPS seconds")
    if x.dtype.kind == "f":
        bad = np.flatnonzero(~np.isfinite(x) | (np.abs(x) > LARGEST_TIME) | (x != np.round(x)))
        if bad.size:
            raise ValueError(f"t[{bad[0]}] = {float(x[bad[0]])!r} is not a whole GPS second")
        refuse_coarse_seconds(x, "t")
    elif np.any(np.abs(x.astype(np.float64)) > LARGEST_TIME):
        raise ValueError(f"t reaches {x.max()}, which is not a GPS time in seconds")
    times: NDArray[np.int64] = x.astype(np.int64)
    step = np.diff(times)
    bad = np.flatnonzero(step <= 0)
    if bad.size:
        i = int(bad[0]) + 1
        what = "is repeated" if step[bad[0]] == 0 else f"comes after {times[i - 1]}: times must rise"
        raise ValueError(f"t[{i}] = {times[i]} {what}")
    return times


def refuse_coarse_seconds(x: Any, name: str) -> None:
    """Raise ValueError for floating-point seconds that were rounded: their spacing is above half a second."""
    largest = float(np.abs(x).max(initial=0))
    spacing = spacing_at(x.dtype, largest)
    if spacing > 0.5:
        raise ValueError(
            f"{name} is of {x.dtype.name}, whose numbers near {largest:.0f} are {spacing:g} s apart: expected "
            "seconds that were never rounded, as int64 or float64"
        )


def finite(
    value: Any, name: str, expected: str = "a finite number", fits: Callable[[float], bool] | None = None
) -> float:
    """Return a finite number that `fits` as float; an error that says what was `expected` otherwise."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name}={value!r}: expected {expected}")
    if not np.isfinite(value) or not (fits is None or fits(float(value))):
        raise ValueError(f"{name}={value!r}: expected {expected}")
    return float(value)


def positive(value: Any, name: str) -> float:
    """Return a positive number as float; an error otherwise."""
    return finite(value, name, "a positive number", lambda x: x > 0)


def positive_seconds(value: Any, name: str) -> int:
    """Return a positive whole number of seconds as int; an error otherwise."""
    whole = whole_seconds(value, name)
    if whole <= 0:
        raise ValueError(f"{name}={value!r}: expected a positive number of seconds")
    return whole


def whole_seconds(value: Any, name: str) -> int:
    """Return a whole number of seconds as int; an error otherwise, also for floats that are not whole."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name}={value!r}: expected whole seconds")
    number = float(value)
    if not np.isfinite(number) or number != int(number) or abs(number) > LARGEST_TIME:
        raise ValueError(f"{name}={value!r}: expected whole seconds")
    if isinstance(value, np.floating):
        refuse_coarse_seconds(np.asarray(value), name)
    return int(value)
