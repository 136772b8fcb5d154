"""Corrections of light curves of moving objects for light time, distances and phase angle.

The times become those at which the light left; brightness is reduced to 1 au from Sun and observer; and a phase
function is fitted to each object (in each band) and removed, so that the rotation is left.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.checks import one_of

from .phase_function import PHASE_FUNCTIONS, PhaseFunction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from skysieve.periodogram.lightcurves.io import LightCurves

    from .phase_function import PhaseFunctionName

LIGHT_TIME = 499.004783836 / 86400
"""Days that light takes for an astronomical unit."""
SMALLEST_RANGE = 1.0
"""Degrees of phase angle below which no slope is fitted: only the mean brightness is removed."""
PER_MAGNITUDE = 0.4 * np.log(10)


def reduce_brightness(
    y: NDArray[Any], dy: NDArray[Any] | None, r: NDArray[Any], delta: NDArray[Any], magnitudes: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Brightness as it would be at 1 au from the Sun and 1 au from the observer.

    Parameters
    ----------
    y, dy : numpy.ndarray
        Magnitudes or fluxes and their errors; fluxes may be negative.
    r, delta : numpy.ndarray
        Distances in au from the Sun and from the observer.

    Examples
    --------
    >>> two = np.array([2.0])
    >>> reduce_brightness(np.array([20.0]), None, two, two, True)[0].round(4), reduce_brightness(
    ...     np.array([-5.0]), None, two, two, False
    ... )[0]
    (array([16.9897]), array([-80.]))
    """
    if magnitudes:
        return y - 5 * np.log10(r * delta), dy
    square = (r * delta) ** 2
    return y * square, None if dy is None else dy * square


def reduced(curves: LightCurves, model: PhaseFunctionName) -> LightCurves:
    """Light curves corrected for light time, distances and phase angle.

    Parameters
    ----------
    curves : LightCurves
        With ``r`` and ``delta``, and ``phase`` unless `model` is "none".
    model : {"hg1g2", "linear", "none"}
        Phase function, fitted to each object and band.  Magnitudes become differences from it, fluxes ratios to it.

    Returns
    -------
    LightCurves
        Rows whose distances or phase angle are missing or make no sense are NaN, so that the search counts them.

    Raises
    ------
    ValueError
        For an unknown model or a missing column.
    """
    out, lost, flat = reduce_part(curves, model)
    return replace(out, notes=[*curves.notes, *what_was_done(curves, lost, flat)])


def what_was_done(curves: LightCurves, lost: int, flat: int) -> list[str]:
    """Notes on a reduction: rows that were left out, light curves without a phase function, how brightness was read."""
    notes = []
    if lost:
        rows = "row" if lost == 1 else "rows"
        notes.append(f"{lost:,} {rows} without a usable distance or phase angle left out")
    if flat:
        notes.append(
            f"{flat:,} light curves have too few points or under {SMALLEST_RANGE:g} degrees of phase angle for a "
            "phase function; only their mean brightness was removed"
        )
    kind = "magnitudes" if curves.is_magnitude else "fluxes"
    return [*notes, f"{curves.value_name} is taken as {kind}: names of magnitudes hold 'mag' or are one letter"]


def reduce_part(curves: LightCurves, model: str) -> tuple[LightCurves, int, int]:
    """As `reduced` for some of a file's objects; returns the numbers for the notes instead of notes."""
    function = PHASE_FUNCTIONS[one_of("model", model, PHASE_FUNCTIONS)]
    if curves.r is None or curves.delta is None:
        raise ValueError("light time and reduced magnitudes need both distances: --r and --delta")
    if function.needs_phase and curves.phase is None:
        raise ValueError(f"the phase function {model!r} needs the phase angle: --phase")
    phase = np.zeros_like(curves.t) if curves.phase is None else curves.phase
    with np.errstate(invalid="ignore"):
        good = (curves.r > 0) & (curves.delta > 0) & np.isfinite(curves.r * curves.delta)
        good &= (phase >= 0) & (phase <= 150)
    r, delta = np.where(good, curves.r, 1.0), np.where(good, curves.delta, 1.0)
    y, dy = reduce_brightness(curves.y, curves.dy, r, delta, curves.is_magnitude)
    y = np.where(good, y, np.nan)
    flat = 0
    if function.needs_phase:
        y, dy, flat = _without_phase(curves, y, dy, phase, function)
    name = curves.value_name if len(curves.value_name) > 1 else f"magnitude {curves.value_name}"
    out = replace(curves, t=curves.t - delta * LIGHT_TIME, y=y, dy=dy, value_name=f"reduced {name}")
    return out, int((~good).sum()), flat


def _without_phase(
    curves: LightCurves, y: NDArray[Any], dy: NDArray[Any] | None, phase: NDArray[Any], function: PhaseFunction
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None, int]:
    """Each object's brightness in each band relative to its phase function; and how many have only a mean."""
    out, errors = np.full_like(y, np.nan), None if dy is None else np.array(dy)
    flat = 0
    for rows in _series(curves):
        usable = np.isfinite(y[rows]) & (True if dy is None else np.isfinite(dy[rows]) & (dy[rows] > 0))
        kept = rows[usable]
        if kept.size == 0:
            continue
        sigma = np.ones(kept.size) if dy is None else dy[kept]
        enough = kept.size >= function.parameters + 2 and np.ptp(phase[kept]) >= SMALLEST_RANGE
        fit = function.fit if enough else None
        if curves.is_magnitude:
            flux = np.exp(-PER_MAGNITUDE * (y[kept] - np.median(y[kept])))
            found = _fitted(fit, flux, sigma, phase[kept])
            # errors of magnitudes are relative to the model's flux: relative to the data, faint points would weigh more
            again = _fitted(fit, flux, sigma * (1.0 if found is None else found), phase[kept])
            found = found if again is None else again
        else:
            flux = y[kept]
            found = _fitted(fit, flux, sigma, phase[kept])
        if found is None or not enough:
            flat += 1
        if found is None:
            found = np.full(kept.size, np.max(np.abs(flux)) or 1.0)
        if curves.is_magnitude:
            out[kept] = -np.log(flux / found) / PER_MAGNITUDE
            continue
        out[kept] = flux / found
        if errors is not None:
            errors[kept] = errors[kept] / found
    return out, errors, flat


def _fitted(
    fit: Callable[..., NDArray[np.float64] | None] | None,
    flux: NDArray[Any],
    error: NDArray[Any],
    phase: NDArray[Any],
) -> NDArray[np.float64] | None:
    """The model's flux of each point, or their weighted mean without a model; None where neither is positive."""
    found = None if fit is None else fit(flux, error, phase)
    if found is not None:
        return found
    mean = float(np.sum(flux / error**2) / np.sum(error**-2.0))
    return np.full(len(flux), mean) if mean > 0 else None


def _series(curves: LightCurves) -> Iterator[NDArray[np.int64]]:
    """Rows of each object, and of each band of it."""
    for a, b in pairwise(curves.offsets.tolist()):
        rows = np.arange(a, b)
        if curves.band is None:
            yield rows
        else:
            bands = curves.band[a:b]
            for band in np.unique(bands):
                yield rows[bands == band]
