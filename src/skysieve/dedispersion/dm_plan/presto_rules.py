"""Choosing DMs, time binning and subbands: PRESTO's DDplan rules, and the bound on lost S/N."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from skysieve.dedispersion.data.delays import error_for_loss, numbers, scattering, smearing

if TYPE_CHECKING:
    from numpy.typing import NDArray

STEPS = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 50.0, 100.0, 200.0, 300.0)
SOFT = 1.2
"""Two times within this factor count as equal."""
SUBBAND_SHARE = 0.8
"""Smearing inside subbands stays below this part of the smaller of the two others."""
MOST_DMS = 2_000_000


@dataclass(frozen=True)
class Stage:
    """DMs searched with one step, one time binning and one spacing of nominal DMs.

    ``per_call`` DMs share one set of subbands (0: no subbands).
    """

    dms: NDArray[np.float64]
    step: float
    downsamp: int = 1
    per_call: int = 0


@dataclass(frozen=True)
class Band:
    """What the rules need of an observation: MHz and seconds."""

    centre: float
    width: float
    nchan: int
    tsamp: float

    def smear(self, dm: float, part: int = 1) -> float:
        """Smearing over ``1 / part`` of the band, seconds."""
        return float(smearing(dm, self.width / part, self.centre))


def presto_stages(
    band: Band, dm_min: float, dm_max: float, nsub: int, downsamps: tuple[int, ...], resolution: float
) -> list[Stage]:
    """Stages by PRESTO's rules.

    The first step smears over the band, for half of it, by the effective sampling time; a stage ends where smearing in
    a channel is twice all other smearing, in quadrature; the next bins time further and takes the largest listed
    step that smears no more than the new sampling time, both softened by 1.2.  With subbands, a call has the largest
    even number of DMs for which the smearing inside a subband is the least.

    Parameters
    ----------
    nsub : int
        Subbands; 0 for none.
    downsamps : tuple of int
        Binnings that may be used, rising from 1.
    resolution : float
        Smearing that is acceptable throughout, seconds.
    """
    i = 0
    while i + 1 < len(downsamps) and downsamps[i + 1] * band.tsamp * SOFT < resolution:
        i += 1
    low, stages = dm_min, list[Stage]()
    while low < dm_max:
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
        if per_call:
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

    The width grows with the DM by smearing in channels (and scattering); time is binned where two bins still fit it.
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


def survey_stages(rows: object) -> list[Stage]:
    """Stages of a table as the paper's Table 1: rows of low DM, high DM, step, binning and spacing of nominal DMs."""
    table = np.atleast_2d(numbers("stages", rows))
    if table.ndim != 2 or table.shape[1] not in (4, 5):
        raise ValueError("stages: expected rows of low DM, high DM, step, binning and (with subbands) nominal spacing")
    stages = []
    for row in table:
        low, high, step, binning = row[:4]
        if not (np.isfinite(row).all() and 0 <= low < high and step > 0 and binning >= 1 and binning % 1 == 0):
            raise ValueError(f"stages: {row.tolist()} is no low DM < high DM, step above 0, whole binning")
        count = round((high - low) / step)
        check_count(count)
        per_call = 0
        if len(row) == 5 and row[4] > 0:
            per_call = round(row[4] / step)
            if abs(per_call * step - row[4]) > 1e-6 * row[4]:
                raise ValueError(f"stages: nominal spacing {row[4]:g} is no multiple of the step {step:g}")
        stages.append(Stage(_raster(low, step, max(1, count)), float(step), int(binning), per_call))
    return stages


def check_count(count: int) -> None:
    """Refuse DM lists that no search could mean."""
    if count > MOST_DMS:
        raise ValueError(f"dm_max: the plan would have more than {MOST_DMS} DMs; are the band and tsamp right?")


def _raster(low: float, step: float, count: int) -> NDArray[np.float64]:
    return np.round(low + step * np.arange(count), 9)
