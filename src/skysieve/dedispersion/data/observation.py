"""`Observation`: channels, sampling, time and position of a filterbank, and checks of these values."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import ByValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

DM_CONSTANT = 1 / 2.41e-4
"""Dispersion constant of PRESTO and TEMPO, in MHz^2 s cm^3 / pc."""

SAMPLE_BITS = (1, 2, 4, 8, 16, 32)
TELESCOPES = {
    0: "Fake", 1: "Arecibo", 2: "Ooty", 3: "Nancay", 4: "Parkes", 5: "Jodrell", 6: "GBT", 7: "GMRT", 8: "Effelsberg",
    9: "ATA", 10: "SRT", 11: "LOFAR", 12: "VLA", 20: "CHIME", 64: "MeerKAT", 65: "KAT-7",
}  # fmt: skip
"""Names of telescopes by their number in SIGPROC."""

GHZ_BELOW = 10.0
"""A band that ends below this frequency (MHz) is most likely given in GHz: the ionosphere blocks lower frequencies."""
HZ_ABOVE = 1e6
"""A band that begins above this frequency (MHz) is most likely given in Hz or kHz."""


@dataclass(frozen=True, eq=False)
class Observation(ByValue):
    """Channels, sampling, time and position of a filterbank.

    Attributes
    ----------
    freqs : numpy.ndarray of float64, shape (nchan,)
        Centres of the channels in MHz, falling: the order of the rows of every block.
    tsamp : float
        Seconds between samples.
    nbits : int
        Bits of a sample in the file.
    tstart : float
        Time of the first sample at the top of the band, MJD.
    source, telescope : str
    ra, dec : float
        Degrees; NaN if unknown.
    dm : float or None
        DM at which the data were de-dispersed; None for a filterbank.
    bandwidth : float or None
        MHz, for data of a single channel, such as a time series: its width does not follow from ``freqs``.
    extra : dict
        Further entries of the header of the file.
    """

    freqs: NDArray[np.float64]
    tsamp: float
    nbits: int = 8
    tstart: float = 0.0
    source: str = ""
    telescope: str = ""
    ra: float = math.nan
    dec: float = math.nan
    dm: float | None = None
    bandwidth: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def nchan(self) -> int:
        """Number of channels."""
        return len(self.freqs)

    @property
    def top(self) -> float:
        """Centre of the highest channel, MHz: the reference of delays and arrival times."""
        return float(self.freqs[0])

    @property
    def regular(self) -> bool:
        """Whether the channels are evenly spaced (to a thousandth of a channel)."""
        steps = np.diff(self.freqs)
        return self.nchan < 3 or bool(np.ptp(steps) <= 1e-3 * abs(steps.mean()))

    @property
    def foff(self) -> float:
        """Mean channel spacing, MHz; negative.  For a single channel it is minus its bandwidth, or -1."""
        if self.nchan < 2:
            return -self.bandwidth if self.bandwidth else -1.0
        return float(self.freqs[-1] - self.freqs[0]) / (self.nchan - 1)

    @property
    def band(self) -> float:
        """Total bandwidth, MHz."""
        return abs(self.foff) * self.nchan if self.bandwidth is None else self.bandwidth

    @property
    def centre(self) -> float:
        """Middle of the band, MHz."""
        return float(self.freqs[0] + self.freqs[-1]) / 2

    def replace(self, **changes: Any) -> Observation:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


def regular_freqs(fch1: float, foff: float, nchan: int) -> NDArray[np.float64]:
    """Channel centres ``fch1 + i foff`` in the order of the file, MHz.

    Raises
    ------
    ValueError
        The numbers do not give the frequencies of a band.

    Examples
    --------
    >>> regular_freqs(1500, -1, 3)
    array([1500., 1499., 1498.])
    """
    if not (math.isfinite(fch1) and fch1 > 0):
        raise ValueError(f"fch1={fch1!r}: expected the first channel's centre, in MHz")
    if nchan > 1 and not (math.isfinite(foff) and foff != 0):
        raise ValueError(f"foff={foff!r}: expected the step from channel to channel, in MHz, not 0")
    freqs = fch1 + foff * np.arange(nchan, dtype=np.float64)
    check_freqs(freqs, f"fch1={fch1!r}, foff={foff!r}")
    return freqs


def check_freqs(freqs: NDArray[np.float64], name: str) -> None:
    """Refuse frequencies that cannot be channels; errors call them `name`."""
    if len(freqs) == 0:
        raise ValueError("nchan=0: expected at least one channel")
    if not (np.isfinite(freqs).all() and (freqs > 0).all()):
        raise ValueError(f"{name} reaches {freqs.min():g} MHz: expected frequencies above 0")
    if freqs.max() < GHZ_BELOW:
        raise ValueError(f"{name}: the band ends at {freqs.max():g} MHz; frequencies are expected in MHz, not GHz")
    if freqs.min() > HZ_ABOVE:
        raise ValueError(
            f"{name}: the band begins at {freqs.min():g} MHz; frequencies are expected in MHz, not Hz or kHz"
        )
    if len(np.unique(freqs)) != len(freqs):
        raise ValueError(f"{name}: two channels have the same frequency")


def in_unit(name: str, value: Any, unit: str) -> Any:
    """Convert an astropy Quantity to plain numbers in ``unit``; a value without a unit is returned unchanged.

    Raises
    ------
    ValueError
        The Quantity cannot be converted; the error calls it ``name``.
    """
    if getattr(value, "unit", None) is None:
        return value
    from astropy.units import UnitConversionError

    try:
        return value.to_value(unit)
    except UnitConversionError:
        raise ValueError(f"{name} has the unit {value.unit}; one that converts to {unit} is expected") from None


def check_tsamp(tsamp: float) -> float:
    """``tsamp``, if it can be a sampling time in seconds; ValueError otherwise."""
    if not (math.isfinite(tsamp) and tsamp > 0):
        raise ValueError(f"tsamp={tsamp!r}: expected a sampling time in seconds, above 0")
    return float(tsamp)


def packed_to_degrees(value: float) -> float:
    """SIGPROC's ``ddmmss.s`` (or ``hhmmss.s``) as degrees (or hours).

    >>> packed_to_degrees(-123000.0)
    -12.5
    """
    if not math.isfinite(value):
        return math.nan
    whole = abs(value)
    d, m = int(whole // 10000), int(whole // 100) % 100
    return math.copysign(d + m / 60 + (whole - 10000 * d - 100 * m) / 3600, value)


def degrees_to_packed(value: float) -> float:
    """Degrees (or hours) as SIGPROC's ``ddmmss.s``.

    >>> degrees_to_packed(-12.5)
    -123000.0
    """
    tenths = round(abs(value) * 3600 * 1e7)  # in 1e-7 seconds, so that rounding cannot give 60.0 seconds
    minutes, rest = divmod(tenths, 60 * 10**7)
    return math.copysign(minutes // 60 * 10000 + minutes % 60 * 100 + rest / 1e7, value)


def epoch_of(mjd: float) -> int:
    """Nanoseconds since 1970 of an MJD; 0 for MJD 0, which means that the time is not known.

    >>> epoch_of(60000.5)
    1677326400000000000
    """
    return 0 if mjd == 0 or not math.isfinite(mjd) else round((mjd - 40587) * 86400e6) * 1000


def mjd_of(epoch: int) -> float:
    """MJD of nanoseconds since 1970; 0 for 0."""
    return 0.0 if epoch == 0 else 40587 + epoch / 86400e9
