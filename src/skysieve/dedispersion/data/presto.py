"""PRESTO's time series: ``.dat`` (raw float32) with ``.inf`` (text)."""

from __future__ import annotations

import math
import os
import re
import warnings
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .observation import Observation, check_freqs, check_tsamp
from .sigproc import BadFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

ON_OFF = re.compile(r"On/Off bin pair")
MOST_PAIRS = 39
"""Most on/off pairs that PRESTO's ``readinf`` accepts; with 40 PRESTO exits."""
NAMES = {
    "source": "Object being observed",
    "telescope": "Telescope used",
    "ra": "J2000 Right Ascension",
    "dec": "J2000 Declination",
    "epoch": "Epoch of observation",
    "barycentric": "Barycentered?",
    "n": "Number of bins in the time series",
    "dt": "Width of each time series bin",
    "dm": "Dispersion measure",
    "low": "Central freq of low channel",
    "band": "Total bandwidth",
    "nchan": "Number of channels",
    "width": "Channel bandwidth",
}


def read_inf(path: Path) -> tuple[Observation, int]:
    """An ``.inf`` file as an `Observation` of one channel, and the number of samples without padding.

    PRESTO pads a series to a convenient length and marks the padding by on/off pairs: the padding begins with the gap
    that reaches the end of the series.
    """
    found: dict[str, str] = {}
    pairs: list[tuple[int, int]] = []
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise BadFile(f"{path} is missing: a .dat file cannot be read without it") from None
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if not equals:
            continue
        if ON_OFF.search(name):
            try:
                first, last = (int(float(v)) for v in value.split(","))
            except ValueError:
                raise BadFile(f"{path}: cannot read the on/off pair {value.strip()!r}") from None
            pairs.append((first, last))
        for key, start in NAMES.items():
            if name.strip().startswith(start):
                found[key] = value.strip()

    def number(key: str, default: float | None = None) -> float:
        if key not in found and default is not None:
            return default
        try:
            return float(found[key])
        except KeyError:
            raise BadFile(f"{path}: the line {NAMES[key]!r} is missing") from None
        except ValueError:
            raise BadFile(f"{path}: {NAMES[key]!r} is {found[key]!r}, expected a number") from None

    for key in ("n", "nchan"):
        if not (math.isfinite(number(key, 1)) and number(key, 1) >= 1):
            raise BadFile(f"{path}: {NAMES[key]!r} is {found[key]!r}, expected at least 1")
    n = int(number("n"))
    if len(pairs) > 1 and pairs[-1][0] >= n - 1:
        n = pairs[-2][1] + 1
    try:
        tsamp = check_tsamp(number("dt"))
    except ValueError as error:
        raise BadFile(f"{path}: {error}") from None
    low, width, nchan = number("low", 1000.0), number("width", 1.0), number("nchan", 1)
    try:
        check_freqs(np.array([low, low + (nchan - 1) * width]) if nchan > 1 else np.array([low]), NAMES["low"])
    except ValueError as error:
        raise BadFile(f"{path}: {error}") from None
    extra = {"nchan": int(nchan), "low_channel": low, "channel_width": width, "breaks": pairs}
    extra["barycentric"] = int(number("barycentric", 0))
    return (
        Observation(
            np.array([low + (nchan - 1) * width]), tsamp, 32, number("epoch", 0.0), found.get("source", ""),
            found.get("telescope", ""), 15 * _sexagesimal(found.get("ra")), _sexagesimal(found.get("dec")),
            number("dm", 0.0), number("band", abs(width) * nchan), extra,
        ),
        n,
    )  # fmt: skip


def _sexagesimal(text: str | None) -> float:
    try:
        d, m, s = (text or "").split(":")
        value = abs(float(d)) + float(m) / 60 + float(s) / 3600
    except ValueError:
        return math.nan
    return -value if d.strip().startswith("-") else value


def on_off(gaps: NDArray[np.int64], n: int) -> list[tuple[int, int]]:
    """PRESTO's on/off pairs: first and last sample of each stretch of a series of ``n`` samples between gaps.

    If the series ends in a gap, the last pair is the last sample, as PRESTO writes it.

    >>> on_off(np.array([[3, 5], [8, 10]]), 10)
    [(0, 2), (5, 7), (9, 9)]
    """
    pairs, at = [], 0
    for first, stop in gaps.tolist():
        if first > at:
            pairs.append((at, first - 1))
        at = max(at, stop)
    return [*pairs, (min(at, n - 1), n - 1)]


def write_inf(path: Path, obs: Observation, n: int, notes: str, gaps: NDArray[np.int64]) -> None:
    """Write the ``.inf`` of a series of ``n`` samples.

    Parameters
    ----------
    path : pathlib.Path
    obs : Observation
        The observation of the filterbank, with the DM of the series.
    n : int
    notes : str
    gaps : numpy.ndarray of int64, shape (count, 2)
        Samples without data: rising ranges (first, last + 1).
    """

    def sexagesimal(degrees: float) -> str:
        tenths = 0 if not math.isfinite(degrees) else round(abs(degrees) * 3600 * 10000)
        minutes, rest = divmod(tenths, 600000)
        sign = "-" if math.isfinite(degrees) and degrees < 0 else ""
        return f"{sign}{minutes // 60:02d}:{minutes % 60:02d}:{rest / 10000:07.4f}"

    nchan = int(obs.extra.get("nchan", obs.nchan))
    width = float(obs.extra.get("channel_width", abs(obs.foff)))
    low = float(obs.extra.get("low_channel", obs.freqs[-1]))
    on: list[tuple[int, int]] = []
    if len(gaps):
        on = on_off(gaps, n)
        if len(on) > MOST_PAIRS:
            longest = np.sort(np.argsort(gaps[:, 0] - gaps[:, 1], kind="stable")[: MOST_PAIRS - 1])
            warnings.warn(
                f"PRESTO reads at most {MOST_PAIRS} on/off pairs: the .inf lists the {len(longest)} longest of "
                f"{len(gaps)} gaps",
                stacklevel=3,
            )
            on = on_off(gaps[longest], n)
    pairs = [(f"On/Off bin pair #{i:3d}", f"{first}, {last}") for i, (first, last) in enumerate(on, 1)]
    lines = [
        ("Data file name without suffix", path.with_suffix("").name),
        ("Telescope used", obs.telescope or "unknown"),
        ("Instrument used", "unknown"),
        ("Object being observed", obs.source or "unknown"),
        ("J2000 Right Ascension (hh:mm:ss.ssss)", sexagesimal(obs.ra / 15)),
        ("J2000 Declination     (dd:mm:ss.ssss)", sexagesimal(obs.dec)),
        ("Data observed by", "unknown"),
        ("Epoch of observation (MJD)", f"{obs.tstart:.15f}"),
        ("Barycentered?           (1 yes, 0 no)", "1" if obs.extra.get("barycentric") else "0"),
        ("Number of bins in the time series", str(n)),
        ("Width of each time series bin (sec)", f"{obs.tsamp:.15g}"),
        ("Any breaks in the data? (1 yes, 0 no)", "1" if len(gaps) else "0"),
        *pairs,
        ("Type of observation (EM band)", "Radio"),
        ("Beam diameter (arcsec)", "3600"),
        ("Dispersion measure (cm-3 pc)", f"{obs.dm or 0.0:.12g}"),
        ("Central freq of low channel (MHz)", f"{low:.12g}"),
        ("Total bandwidth (MHz)", f"{obs.band:.12g}"),
        ("Number of channels", str(nchan)),
        ("Channel bandwidth (MHz)", f"{width:.12g}"),
        ("Data analyzed by", "skysieve"),
    ]
    text = "".join(f" {name:<38} =  {value}\n" for name, value in lines)
    text += f" Any additional notes:\n    {notes}\n"
    path.write_text(text, encoding="utf-8")


class DatReader:
    """Samples of a ``.dat`` file as one channel; the stretches between on/off pairs are gaps."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.observation, claimed = read_inf(self.path.with_suffix(".inf"))
        size = self.path.stat().st_size
        self.nsamp = min(claimed, size // 4)
        if self.nsamp == 0:
            raise BadFile(f"{self.path}: holds no samples")
        if size // 4 < claimed:
            raise BadFile(f"{self.path}: {size // 4} samples, but its .inf claims {claimed}; it has been cut off")
        self.order = np.zeros(1, np.int64)
        self.dtype: np.dtype[Any] = np.dtype("<f4")
        self.nchan, self.maximum, self.signed = 1, 0, False
        on: list[tuple[int, int]] = self.observation.extra["breaks"]
        before = [(0, -1), *on] if on else []  # a series may begin with a gap
        holes = [(a[1] + 1, b[0]) for a, b in pairwise(before) if a[1] + 1 < b[0] < self.nsamp]
        self.gaps = np.array(holes, np.int64).reshape(-1, 2)

    def close(self) -> None:
        """Does nothing: the file is not kept open."""

    def read(self, start: int, count: int) -> NDArray[Any]:
        """Samples ``start : start + count``, shape (count, 1)."""
        values = np.fromfile(self.path, "<f4", count, offset=4 * start)
        if len(values) < count:
            raise BadFile(f"{self.path}: ends {count - len(values)} samples early; it was cut off after it was opened")
        return values[:, None]
