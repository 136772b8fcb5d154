"""Interferometers: where they are, how they respond, and the angle of the Earth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["DETECTORS", "GPS_EPOCH", "Detector", "antenna_patterns", "detector_of", "gps_to_utc", "sidereal_angle"]

GPS_EPOCH = 2_444_244.5
"""Julian date of GPS second 0."""


@dataclass(frozen=True)
class Detector:
    """A detector on the Earth (WGS 84).

    Attributes
    ----------
    latitude, longitude : float
        Geodetic, radians, east positive.
    height : float
        Above the ellipsoid, metres.
    x_azimuth, y_azimuth : float
        Directions of the arms, radians from north, clockwise.
    x_tilt, y_tilt : float
        Altitudes of the arms above the horizontal plane, radians.
    """

    latitude: float
    longitude: float
    height: float
    x_azimuth: float
    y_azimuth: float
    x_tilt: float = 0.0
    y_tilt: float = 0.0

    def axes(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Unit vectors to the east, north and zenith in axes that turn with the Earth."""
        (sin_lat, sin_lon), (cos_lat, cos_lon) = (f([self.latitude, self.longitude]) for f in (np.sin, np.cos))
        east = np.array([-sin_lon, cos_lon, 0.0])
        north = np.array([-sin_lat * cos_lon, -sin_lat * sin_lon, cos_lat])
        return east, north, np.array([cos_lat * cos_lon, cos_lat * sin_lon, sin_lat])

    def response(self) -> NDArray[np.float64]:
        """Response tensor ``(x x - y y) / 2`` of the arms' directions x and y, shape (3, 3)."""
        east, north, up = self.axes()
        arms = [
            np.cos(tilt) * (np.cos(azimuth) * north + np.sin(azimuth) * east) + np.sin(tilt) * up
            for azimuth, tilt in ((self.x_azimuth, self.x_tilt), (self.y_azimuth, self.y_tilt))
        ]
        return 0.5 * (np.outer(arms[0], arms[0]) - np.outer(arms[1], arms[1]))


DETECTORS = {
    "H1": Detector(0.81079526383, -2.08405676917, 142.554, 5.65487724844, 4.08408092164, -6.195e-4, 1.25e-5),
    "L1": Detector(0.53342313506, -1.58430937078, -6.574, 4.40317772346, 2.83238139666, -3.121e-4, -6.107e-4),
    "V1": Detector(0.76151183984, 0.18333805213, 51.884, 0.33916285222, 5.05155183261),
    "G1": Detector(0.91184982752, 0.17116780435, 114.425, 1.19360100484, 5.83039279401),
    "K1": Detector(0.6355068497, 2.396441015, 414.181, 1.054113, -0.5166798, 0.0031414, -0.003627),
    "I1": Detector(0.34231676739, 1.34444215058, 440.0, 5.80120119264, 4.23039066080),
}
"""LIGO Hanford, LIGO Livingston, Virgo, GEO 600, KAGRA and LIGO India, from their published coordinates."""


def detector_of(detector: str | Detector) -> Detector:
    """A detector from its name.

    Raises
    ------
    ValueError
        The name is none of `DETECTORS`.
    """
    if isinstance(detector, Detector):
        return detector
    if detector not in DETECTORS:
        raise ValueError(f"detector={detector!r}: expected one of {', '.join(DETECTORS)}")
    return DETECTORS[detector]


def sky_position(ra: Any, dec: Any) -> tuple[float, float]:
    """Right ascension and declination as plain numbers in radians; astropy Quantities are converted.

    Raises
    ------
    ValueError, TypeError
        The values are not angles in radians; most likely they are in degrees.
    """
    found = []
    for name, value, most, range_ in (("ra", ra, 2 * np.pi, "-2 pi to 2 pi"), ("dec", dec, np.pi / 2, "-pi/2 to pi/2")):
        angle: Any = value.to_value("rad") if getattr(value, "unit", None) is not None else value
        expected = f"{name}={value!r}: expected an angle in radians, {range_}"
        if isinstance(angle, bool) or not isinstance(angle, int | float | np.integer | np.floating):
            raise TypeError(expected)
        if not (np.isfinite(angle) and abs(float(angle)) <= most):
            raise ValueError(expected)
        found.append(float(angle))
    return found[0], found[1]


LEAP_SECONDS = (
    46_828_800, 78_364_801, 109_900_802, 173_059_203, 252_028_804, 315_187_205, 346_723_206, 393_984_007, 425_520_008,
    457_056_009, 504_489_610, 551_750_411, 599_184_012, 820_108_813, 914_803_214, 1_025_136_015, 1_119_744_016,
    1_167_264_017,
)  # fmt: skip
"""GPS seconds from which on UTC is one more second behind (IERS Bulletin C; none is announced after 2017)."""


def gps_to_utc(t: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two-part Julian date in UTC of GPS seconds."""
    seconds = np.asarray(t, np.float64)
    behind = np.searchsorted(LEAP_SECONDS, seconds, side="right")
    return np.full(seconds.shape, GPS_EPOCH), (seconds - behind) / 86400


def sidereal_angle(t: Any) -> NDArray[np.float64]:
    """Greenwich mean sidereal time of GPS seconds, radians; UT1 is taken as UTC.

    Notes
    -----
    The expression of 1982 (Aoki et al., A&A 105, 359): seconds of sidereal time as a polynomial of the Julian centuries
    since 2000, and the time of day.
    """
    day, part = gps_to_utc(t)
    centuries = (day - 2_451_545.0 + part) / 36_525
    seconds = 24_110.54841 - 43_200 + centuries * (8_640_184.812866 + centuries * (0.093104 - 6.2e-6 * centuries))
    of_day = (day % 1 + part % 1) % 1
    return np.asarray(2 * np.pi * np.remainder(seconds / 86400 + of_day, 1))


def antenna_patterns(
    t: Any, detector: str | Detector, ra: float, dec: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Antenna patterns ``a(t)`` and ``b(t)`` of a detector for a point of the sky.

    Parameters
    ----------
    t : array_like
        GPS seconds.
    detector : str or Detector
        A name of `DETECTORS`.
    ra, dec : float
        Right ascension and declination, radians.

    Returns
    -------
    a, b : numpy.ndarray

    Notes
    -----
    The definitions of Jaranowski, Krolak & Schutz 1998 (eqs. 10-13): the response tensor projected on the two
    polarisations at polarisation angle 0.  As in LALPulsar, precession and nutation are left out, and UT1 is taken as
    UTC.

    Examples
    --------
    >>> a, b = antenna_patterns([1000000000], "H1", 0.5, 1.0)
    >>> bool(a[0] ** 2 + b[0] ** 2 <= 1)
    True
    """
    d = detector_of(detector).response()
    angle = sidereal_angle(t) - ra
    sin, cos, zero = np.sin(angle), np.cos(angle), np.zeros(np.shape(angle))
    xi = np.stack([-sin, -cos, zero])  # towards falling right ascension, in the turning axes
    eta = np.stack([-np.sin(dec) * cos, np.sin(dec) * sin, np.cos(dec) + zero])
    a = np.einsum("i...,ij,j...->...", xi, d, xi) - np.einsum("i...,ij,j...->...", eta, d, eta)
    return a, 2 * np.einsum("i...,ij,j...->...", xi, d, eta)
