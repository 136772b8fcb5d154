"""The rules that choose DMs, time binnings and subbands."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from skysieve.core.arrays import ByValue
from skysieve.dedispersion.data.delays import error_for_loss, numbers, scattering, smearing

if TYPE_CHECKING:
    from numpy.typing import NDArray

Rule = Literal["loss", "presto", "tolerance", "survey", "list"]


@dataclass(frozen=True)
class RuleKind:
    """A rule that chooses DMs.

    Attributes
    ----------
    help : str
    needs : str
        The arguments of `plan` that the rule needs; "" if the rule chooses DMs up to ``dm_max``.
    """

    help: str
    needs: str = ""


RULES = {
    "loss": RuleKind(
        "a pulse of `width` midway between two DMs loses at most `max_loss` of its S/N (Cordes & McLaughlin 2003)"
    ),
    "presto": RuleKind(
        "PRESTO's DDplan: steps and binnings from the smearing in channels, subbands and band; as there, the last DM "
        "is up to a step below the highest"
    ),
    "tolerance": RuleKind("dedisp and Heimdall: the smearing grows by `tol` from DM to DM; no binning"),
    "survey": RuleKind("rows of low DM, high DM, step, binning, nominal spacing", needs="stages"),
    "list": RuleKind("DMs, or an even step", needs="dms or step"),
}
"""Rules: names of `Rule`."""
STEPS = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 50.0, 100.0, 200.0, 300.0)
"""Steps in DM of the rule "presto"."""
SOFT = 1.2
"""Two times count as equal if their ratio is within this factor."""
SUBBAND_SHARE = 0.8
"""Largest smearing inside a subband, as a fraction of the smearing by the DM step or of the sampling time."""
MOST_DMS = 2_000_000
"""Longest list of DMs; a longer one is a mistake."""
FINEST = 1e-9
"""DMs of an even step are rounded to multiples of this."""


@dataclass(frozen=True, eq=False)
class Stage(ByValue):
    """DMs that have one step, one time binning and one spacing of nominal DMs.

    Attributes
    ----------
    dms : numpy.ndarray of float64
    step : float
        pc / cm^3.
    downsamp : int
        Samples that are added in time.
    per_call : int
        DMs that share one set of subbands; 0 without subbands.
    """

    dms: NDArray[np.float64]
    step: float
    downsamp: int = 1
    per_call: int = 0

    @property
    def calls(self) -> int:
        """Sets of subbands; 1 without subbands."""
        return math.ceil(len(self.dms) / self.per_call) if self.per_call else 1


@dataclass(frozen=True)
class Band:
    """The properties of an observation that the rules use, in MHz and seconds."""

    centre: float
    width: float
    nchan: int
    tsamp: float

    def smear(self, dm: float, part: int = 1) -> float:
        """Smearing by ``dm`` over the fraction ``1 / part`` of the band, seconds."""
        return float(smearing(dm, self.width / part, self.centre))


def presto_stages(
    band: Band, dm_min: float, dm_max: float, nsub: int, downsamps: tuple[int, ...], resolution: float
) -> list[Stage]:
    """Stages by PRESTO's rules.

    In each stage the step is the largest of `STEPS` with which an error of half a step smears a pulse over the band by
    less than 1.2 times the effective sampling time.  The stage ends at the DM at which the smearing in a channel is
    twice all other smearing, added in quadrature; the next stage bins more samples.  With subbands, the number of DMs
    that share subbands is the largest even number that keeps the smearing inside a subband below `SUBBAND_SHARE`.

    Parameters
    ----------
    nsub : int
        Subbands; 0 for none.
    downsamps : tuple of int
        Allowed binnings, rising from 1.
    resolution : float
        Smearing that is acceptable at all DMs, seconds.
    """
    i = 0
    while i + 1 < len(downsamps) and downsamps[i + 1] * band.tsamp * SOFT < resolution:
        i += 1
    low, stages = dm_min, list[Stage]()
    while low < dm_max or not stages:
        effective = max(band.tsamp * downsamps[i], resolution)
        fitting = [s for s in STEPS if band.smear(s / 2) < SOFT * effective] or [STEPS[0]]
        step, downsamp = fitting[-1], downsamps[i]
        over_band = band.smear(step / 2)
        per_call, inside = 0, 0.0
        if nsub:
            most = SUBBAND_SHARE * min(over_band, band.tsamp * downsamp)
            per_call = 2
            while band.smear((per_call + 2) * step / 2, nsub) <= most:
                per_call += 2
            inside = band.smear(per_call * step / 2, nsub)
        other = math.sqrt(band.tsamp**2 + (band.tsamp * downsamp) ** 2 + over_band**2 + inside**2)
        last = i + 1 == len(downsamps)
        until = dm_max if last else min(dm_max, 2 * other / band.smear(1.0, band.nchan))
        count = max(0, math.ceil((until - low) / step - 1e-9))
        if until == dm_max and not count:  # low and dm_max differ by rounding only
            if stages:
                break
            count = 1
        if per_call and count > 1:
            count = math.ceil(count / per_call) * per_call
        check_count(sum(len(s.dms) for s in stages) + count)
        if count:
            stages.append(Stage(_raster(low, step, count), step, downsamp, per_call))
            low = round(low + count * step, 9)
        i = min(i + 1, len(downsamps) - 1)
    return stages


def loss_stages(
    band: Band, dm_min: float, dm_max: float, max_loss: float, width: float, downsamps: tuple[int, ...], scatter: bool
) -> list[Stage]:
    """DMs at which a pulse of ``width`` seconds between two of them loses no more than ``max_loss`` of its S/N.

    The width grows with the DM by smearing in channels and, if ``scatter`` is set, by scattering.  Samples are binned
    as long as the width holds two bins.
    """
    found: list[tuple[int, float]] = []
    dm = dm_min
    while True:
        broad = math.hypot(width, band.tsamp, band.smear(dm, band.nchan))
        if scatter:
            broad = math.hypot(broad, float(scattering(dm, band.centre)))
        downsamp = max(d for d in downsamps if d == downsamps[0] or 2 * d * band.tsamp <= broad)
        found.append((downsamp, dm))
        check_count(len(found))
        if dm >= dm_max:
            break
        dm += 2 * error_for_loss(max_loss, band.width, band.centre, broad)
    stages = []
    for downsamp in sorted({d for d, _ in found}):
        dms = np.array([m for d, m in found if d == downsamp])
        stages.append(Stage(dms, float(np.diff(dms).mean()) if len(dms) > 1 else 0.0, downsamp))
    return stages


def tolerance_dms(
    dm_min: float, dm_max: float, tsamp: float, width: float, top: float, foff: float, nchan: int, tol: float
) -> NDArray[np.float64]:
    """DM list of dedisp and Heimdall: from each DM to the next the smearing grows by a factor of ``tol``.

    Parameters
    ----------
    tsamp, width : float
        Seconds: sampling time and intrinsic width.
    top, foff : float
        Centre of the highest channel and step (either sign), MHz.
    tol : float
        Above 1.

    Notes
    -----
    The next DM is the larger root of a quadratic equation with ``a = 8.3 df / f_c^3`` (us, MHz, GHz),
    ``b = a^2 nchan^2 / 16``, ``c = (tsamp^2 + width^2)(tol^2 - 1)`` (Barsdell et al. 2012).

    Examples
    --------
    >>> tolerance_dms(0, 8, 1.26646875e-3, 4e-5, 1465.0, -1.0, 336, 1.25).round(4).tolist()
    [0.0, 2.9772, 5.9541, 8.9309]
    """
    centre = (top - (nchan / 2 - 0.5) * abs(foff)) * 1e-3
    a2 = (8.3 * abs(foff) / centre**3) ** 2
    b = a2 * nchan**2 / 16
    c = ((tsamp * 1e6) ** 2 + (width * 1e6) ** 2) * (tol**2 - 1)
    dms = [float(dm_min)]
    while dms[-1] < dm_max:
        d = dms[-1]
        k = c + tol**2 * a2 * d * d
        dms.append((b * d + math.sqrt(-a2 * b * d * d + (a2 + b) * k)) / (a2 + b))
        if len(dms) > 10**7:
            raise ValueError(f"tol={tol!r}: more than 10 million DMs up to {dm_max:g}; expected a larger tol")
    return np.array(dms)


def survey_stages(rows: object) -> list[Stage]:
    """Stages of a table like Table 1 of Magro et al. 2011: low DM, high DM, step, binning, spacing of nominal DMs."""
    table = np.atleast_2d(numbers("stages", rows))
    if table.ndim != 2 or table.shape[1] not in (4, 5):
        raise ValueError("stages: expected rows of low DM, high DM, step, binning and (with subbands) nominal spacing")
    stages = []
    for row in table:
        low, high, step, binning = row[:4]
        if not (np.isfinite(row).all() and 0 <= low < high and step > 0 and binning >= 1 and binning % 1 == 0):
            raise ValueError(f"stages: {row.tolist()}: expected low DM < high DM, a step above 0 and a whole binning")
        count = round((high - low) / step)
        check_count(count, f"stages: {row.tolist()}: step", float(step))
        per_call = 0
        if len(row) == 5 and row[4] > 0:
            per_call = round(row[4] / step)
            if abs(per_call * step - row[4]) > 1e-6 * row[4]:
                raise ValueError(f"stages: nominal spacing {row[4]:g} is not a multiple of the step {step:g}")
        stages.append(Stage(_raster(low, step, max(1, count)), float(step), int(binning), per_call))
    return stages


def check_count(count: int, name: str = "", step: float = 1.0) -> None:
    """Refuse lists of DMs that are too long to be meant, and a step, called ``name``, that is too small."""
    if step < FINEST:
        raise ValueError(f"{name}={step!r}: expected a DM step of at least {FINEST:g}, to which DMs are rounded")
    if count > MOST_DMS:
        if name:
            raise ValueError(f"{name}={step!r}: the plan would have {count} DMs; expected at most {MOST_DMS}")
        raise ValueError(f"dm_max: the plan would have more than {MOST_DMS} DMs; are the band and tsamp right?")


def _raster(low: float, step: float, count: int) -> NDArray[np.float64]:
    return np.round(low + step * np.arange(count, dtype=np.float64), 9)
