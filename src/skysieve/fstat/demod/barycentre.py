"""Arrival times at the solar-system barycentre."""

from __future__ import annotations

import functools
import gzip
import itertools
import math
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from skysieve.fstat.inputs.detectors import GPS_EPOCH, Detector, detector_of, gps_to_utc

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["EPHEMERIDES", "EphemerisName", "barycentre"]

EphemerisName = Literal["auto", "lal", "de405", "builtin"]
EPHEMERIDES: tuple[EphemerisName, ...] = get_args(EphemerisName)
SPANS = {
    "lal": (630_720_100, 1_893_024_000), "de405": (630_720_100, 1_893_024_000),
    "builtin": (-2_524_953_600, 3_786_480_000),
}  # fmt: skip
"""First and last GPS second of each ephemeris: the tables cover 2000 to 2040, the series 1900 to 2100."""
LIGHT_SECOND = 299_792_458.0
AU = 499.00478383615643
"""Astronomical unit in light seconds."""
SOLAR_TIME = 4.925490947e-6
"""``G M / c^3`` of the Sun, seconds."""
NODES, HOURS = 21_600.0, 3600.0
"""Seconds between the times at which the Earth's position and axes (`NODES`) and the clock correction (`HOURS`) are
computed."""
YEAR, DAY = 2**25, 86_400
"""Seconds of the spans (1.06 years) in which tables are read, and those beyond a span that are read too."""
STEP = 10.0
"""Half width in seconds of the central differences that give the rates: the third derivative of the delay,
8e-15 / s^2, leaves an error of 1.3e-13."""


def barycentre(
    t: Any, detector: str, ra: float, dec: float, ephemeris: EphemerisName = "auto"
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Time at the solar-system barycentre of plane waves that reach a detector.

    Parameters
    ----------
    t : array_like
        GPS seconds at the detector.
    detector : str
        A name of `DETECTORS`.
    ra, dec : float
        Direction of the source, radians (ICRS).
    ephemeris : {"auto", "lal", "de405", "builtin"}
        "lal": LALPulsar, which must be installed; "de405": tables of the package solar_system_ephemerides;
        "builtin": ERFA's series (VSOP2000), without a further package; "auto": the first of these that is installed.

    Returns
    -------
    delay : numpy.ndarray
        Barycentric time (GPS seconds of TDB) minus `t`.
    rate : numpy.ndarray
        Seconds of barycentric time in a second of `t`.

    Raises
    ------
    ValueError
        For an unknown detector or ephemeris, or times outside its range.
    ModuleNotFoundError
        The package of the ephemeris is not installed.

    Notes
    -----
    The delay is the sum of the light travel time from the detector to the barycentre, TDB - TT at the detector, and the
    Shapiro delay of the Sun.  The rotation of the Earth follows IAU 2006, with UT1 taken as UTC.  The difference from
    LALPulsar, less a constant, was at most 5 us for "de405" and 15 us for "builtin" at five positions over a year.

    Examples
    --------
    >>> delay, rate = barycentre([1_000_000_000], "H1", 0.5, 1.0, "builtin")
    >>> bool(abs(delay[0]) < 510), bool(abs(rate[0] - 1) < 1.1e-4)
    (True, True)
    """
    if ephemeris not in EPHEMERIDES:
        raise ValueError(f"ephemeris={ephemeris!r}: expected one of {', '.join(EPHEMERIDES)}")
    if ephemeris == "auto":
        packages: dict[EphemerisName, str] = {"lal": "lalpulsar", "de405": "solar_system_ephemerides"}
        ephemeris = next((name for name, package in packages.items() if find_spec(package)), "builtin")
    site, times = detector_of(detector), np.atleast_1d(np.asarray(t, np.float64))
    first, last = SPANS[ephemeris]
    if not (np.isfinite(times).all() and (times >= first).all() and (times <= last).all()):
        found = f"{times.min():.0f} to {times.max():.0f}"
        raise ValueError(f"t: GPS {found}; the ephemeris {ephemeris!r} covers {first} to {last}")
    if ephemeris == "lal":
        return _lal(times, detector, ra, dec)
    direction = np.array([np.cos(dec) * np.cos(ra), np.cos(dec) * np.sin(ra), np.sin(dec)])
    before, here, after = _delays(times, site, direction, ephemeris)
    return here, 1 + (after - before) / (2 * STEP)


def _delays(
    t: NDArray[np.float64], site: Detector, direction: NDArray[np.float64], ephemeris: EphemerisName
) -> list[NDArray[np.float64]]:
    """Delays at `STEP` before the times, at the times, and after them."""
    import erfa

    fixed = np.array(erfa.gd2gc(1, site.longitude, site.latitude, site.height)) / LIGHT_SECOND
    matrix, sun, sun_speed, earth, speed = _earth(t)
    clock, drift = _clock(t, site, fixed)
    out = []
    for step in (-STEP, 0.0, STEP):
        angle = erfa.era00(*gps_to_utc(t + step))
        cos, sin = np.cos(angle), np.sin(angle)
        x, y = fixed[0] * cos - fixed[1] * sin, fixed[0] * sin + fixed[1] * cos
        turned = np.stack([x, y, np.full(len(t), fixed[2])], axis=1)
        place = np.einsum("tji,tj->ti", matrix, turned)
        position = _table(_years(t))(t + step) if ephemeris == "de405" else earth + step * speed
        from_sun = sun + step * sun_speed
        along = from_sun @ direction
        shapiro = 2 * SOLAR_TIME * np.log(np.linalg.norm(from_sun, axis=1) + along)
        out.append((position + place) @ direction + clock + step * drift + shapiro)
    return out


def _terrestrial(t: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Terrestrial time as a Julian date in two parts."""
    return np.full(len(t), GPS_EPOCH), (t + 51.184) / 86400


def _earth(t: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """The rotation from celestial to intermediate axes, and position and velocity of the Earth.

    Positions are from the Sun and from the barycentre, in light seconds.  Many times are interpolated between `NODES`:
    linearly for the rotation (4e-11 s at the Earth's surface), by cubic polynomials for positions (1e-9 s).
    """
    import erfa

    count = int((t.max() - t.min()) / NODES) + 2
    dense = count < len(t)
    nodes = t.min() + NODES * np.arange(count) if dense else t
    tt = _terrestrial(nodes)
    matrix = erfa.c2i06a(*tt)
    places: list[NDArray[np.float64]] = []
    for found in erfa.epv00(*tt):
        places += [found["p"] * AU, found["v"] * (AU / 86400)]
    if not dense:
        return [matrix, *places]
    k = np.minimum(((t - nodes[0]) / NODES).astype(int), count - 2)
    x = ((t - nodes[k]) / NODES)[:, None]
    out = [(1 - x[:, None]) * matrix[k] + x[:, None] * matrix[k + 1]]
    for p, v in (places[:2], places[2:]):
        p0, p1, v0, v1 = p[k], p[k + 1], NODES * v[k], NODES * v[k + 1]
        out.append(p0 + x * (v0 + x * (3 * (p1 - p0) - 2 * v0 - v1 + x * (2 * (p0 - p1) + v0 + v1))))
        out.append((v0 + x * (6 * (p1 - p0) - 4 * v0 - 2 * v1 + 3 * x * (2 * (p0 - p1) + v0 + v1))) / NODES)
    return out


def _clock(
    t: NDArray[np.float64], site: Detector, fixed: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """TDB - TT at the detector and its rate; many times are interpolated between `HOURS` (2e-8 s)."""
    import erfa

    count = int((t.max() - t.min()) / HOURS) + 2
    dense = count < len(t)
    nodes = t.min() + HOURS * np.arange(count) if dense else np.concatenate([t - STEP, t, t + STEP])
    utc = gps_to_utc(nodes)
    universal = (utc[0] + 0.5) % 1 + utc[1]
    away, height = np.hypot(fixed[0], fixed[1]) * LIGHT_SECOND / 1000, fixed[2] * LIGHT_SECOND / 1000
    found = erfa.dtdb(*_terrestrial(nodes), universal % 1, site.longitude, away, height)
    if not dense:
        before, here, after = np.split(found, 3)
        return here, (after - before) / (2 * STEP)
    k = np.minimum(((t - nodes[0]) / HOURS).astype(int), count - 2)
    return np.interp(t, nodes, found), (found[k + 1] - found[k]) / HOURS


def _rows(path: Any, years: tuple[int, int]) -> tuple[int, float, list[bytes]]:
    """The part of a file of positions that covers `_years`: its first GPS second, its step, and its lines.

    A file begins with its start, its step and its number of rows.  To read all 40 years takes a second.
    """
    with gzip.open(path, "rb") as lines:
        text = (line for line in lines if not line.startswith(b"#"))
        start, step, count = (float(x) for x in next(text).split())
        low, high = (
            math.floor((YEAR * year + side - start) / step) for year, side in zip(years, (-DAY, DAY), strict=True)
        )
        low, high = max(0, low - 1), min(int(count), high + 3)
        found = list(itertools.islice(text, low, high))
    first = start + low * step
    if len(found) < high - low or float(found[0].split()[0]) != first:
        raise ValueError(f"{path}: expected rows from GPS {first:.0f} on in steps of {step:g} s, as its header says")
    return int(first), step, found


def _years(t: NDArray[np.float64]) -> tuple[int, int]:
    """The spans of `YEAR` that hold some GPS times: the number of the first one, and that after the last one."""
    return math.floor(t.min() / YEAR), math.floor(t.max() / YEAR) + 1


class _Table:
    """Barycentric positions of the Earth from a table of positions, velocities and accelerations in light seconds."""

    def __init__(self, path: Any, years: tuple[int, int]) -> None:
        self.start, self.step, lines = _rows(path, years)
        values = np.array(b" ".join(lines).split(), np.float64)
        self.rows = values.reshape(-1, 10)[:, 1:].reshape(-1, 3, 3)

    def __call__(self, t: NDArray[np.float64]) -> NDArray[np.float64]:
        at = np.rint((t - self.start) / self.step).astype(int)
        x = (t - self.start - at * self.step)[:, None]
        p, v, a = (self.rows[at, k] for k in range(3))
        return p + x * (v + 0.5 * x * a)


@functools.lru_cache(maxsize=4)
def _table(years: tuple[int, int]) -> _Table:
    from solar_system_ephemerides import body_ephemeris_path

    return _Table(body_ephemeris_path("earth", "DE405"), years)


@functools.lru_cache(maxsize=4)
def _lal_ephemeris(years: tuple[int, int]) -> Any:
    import lalpulsar

    with tempfile.TemporaryDirectory(prefix="skysieve-") as folder:
        parts = [Path(folder, f"{body}-DE405.dat") for body in ("earth", "sun")]
        for part in parts:
            whole = part.name.replace("-", "00-40-") + ".gz"
            path = lalpulsar.PulsarFileResolvePath(whole)
            if path is None:
                raise ModuleNotFoundError(
                    f"ephemeris='lal': LALPulsar does not find {whole}; expected the package solar_system_ephemerides"
                )
            start, step, lines = _rows(path, years)
            part.write_bytes(b"%d %.1f %d\n" % (start, step, len(lines)) + b"".join(lines))
        return lalpulsar.InitBarycenter(*map(str, parts))


def _lal(
    t: NDArray[np.float64], detector: str, ra: float, dec: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Delay and rate computed by LALPulsar."""
    import lal
    import lalpulsar

    stamps = lalpulsar.CreateTimestampVector(len(t))
    for i, second in enumerate(t):
        stamps.data[i] = lal.LIGOTimeGPS(float(second))
    states = lalpulsar.GetDetectorStates(stamps, lalpulsar.GetSiteInfo(detector), _lal_ephemeris(_years(t)), 0)
    sky = lal.SkyPosition()
    sky.longitude, sky.latitude, sky.system = ra, dec, lal.COORDINATESYSTEM_EQUATORIAL
    middle = lal.LIGOTimeGPS(float(np.rint(t.mean())))
    found = lalpulsar.GetSSBtimes(states, sky, middle, lalpulsar.SSBPREC_RELATIVISTICOPT)
    return np.array(found.DeltaT.data) + float(middle) - t, np.array(found.Tdot.data)
