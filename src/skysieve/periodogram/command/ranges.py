"""The description of the range of periods that is searched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from skysieve.core.command import counted
from skysieve.periodogram.analysis.sampling import highest_frequencies
from skysieve.periodogram.lightcurves.arrays import finite_rows
from skysieve.periodogram.lightcurves.checks import refuse_coarse_times
from skysieve.periodogram.lightcurves.sources import light_curves
from skysieve.periodogram.numerics.grid import make_rule

if TYPE_CHECKING:
    from skysieve.periodogram.lightcurves.io import LightCurves
    from skysieve.periodogram.survey import Request

GRID = ("fmin", "fmax", "nf", "samples_per_peak")


def range_of(curves: LightCurves, request: Request, total: int | None = None) -> tuple[str, list[str]]:
    """The periods that will be searched, in a few words, and notes on them.

    Both are empty where no object can be searched.  ``curves`` are the first of ``total`` objects.

    Raises
    ------
    ValueError
        As the search itself, for a grid of too many frequencies or times in single precision, or where the given end
        of the range leaves none.
    """
    arguments = {name: request.arguments.get(name) for name in GRID}
    rule = make_rule(**{name: value for name, value in arguments.items() if value is not None})
    t, y, dy, offsets = curves.t, curves.y, curves.dy, curves.offsets
    usable = finite_rows(t, y, dy)
    counts = np.diff(offsets)
    filled = np.flatnonzero(counts)
    n_used, first, last = np.zeros(len(curves), np.int64), np.full(len(curves), np.inf), np.full(len(curves), -np.inf)
    if filled.size:
        starts = offsets[:-1][filled]
        n_used[filled] = np.add.reduceat(usable, starts, dtype=np.int64)
        first[filled] = np.minimum.reduceat(np.where(usable, t, np.inf), starts)
        last[filled] = np.maximum.reduceat(np.where(usable, t, -np.inf), starts)
    least = 3 if request.arguments.get("fit_mean", True) else 2
    good = (n_used >= least) & (last > first)
    if not good.any():
        return "", []
    span = np.where(good, last - np.where(good, first, 0.0), np.nan)
    highest, regular = None, np.zeros(len(curves), bool)
    if rule.auto_max:
        highest, regular = highest_frequencies(light_curves(t, y, dy, offsets=offsets), good)
    grids = rule.build(span, np.where(good, n_used, 0), shared=rule.is_shared(False), highest=highest)
    refuse_coarse_times(curves.time_resolution, grids)
    searched = grids.nf > 0
    if not searched.any():
        if highest is not None and rule.fmin is not None:
            given, limit = (request.scale / f for f in (rule.fmin, float(np.nanmax(highest))))
            raise ValueError(
                f"the longest period, {given:.4g} {request.unit}, is not above the shortest period of the automatic "
                f"range, {limit:.4g} {request.unit}; give that end of the range too (--min-period or --fmax)"
            )
        if rule.auto_min and rule.fmax is not None and len(curves) == (total or len(curves)):
            given, limit = request.scale / rule.fmax, request.scale * 2 * rule.samples_per_peak * float(np.nanmax(span))
            raise ValueError(
                f"the shortest period, {given:.4g} {request.unit}, is not below the longest period of the automatic "
                f"range, {limit:.4g} {request.unit}; give that end of the range too (--max-period or --fmin)"
            )
        return "", []
    low, high = np.min(grids.f0[searched]), np.max((grids.f0 + grids.df * (grids.nf - 1))[searched])
    most = int(np.max(grids.nf))
    count = counted(most, "frequency", "frequencies")
    count = count if len(curves) == 1 else f"up to {count} an object"
    others = "; --min-period and --max-period set others" if rule.auto_min or rule.auto_max else ""
    what = "rotation periods" if request.asteroid else "periods"
    text = f"{what} of {request.scale / high:.4g} to {request.scale / low:.4g} {request.unit} ({count}{others})"
    if total is not None and total > len(curves) and not grids.shared:
        text += f" in the first {len(curves):,} objects"
    notes = []
    if regular.any():
        whose = "" if len(curves) == 1 else f" of {int(regular.sum()):,} of {int(good.sum()):,} objects"
        notes.append(
            f"the times{whose} are regular: the range ends at their Nyquist frequency, one cycle in two steps, beyond "
            "which the periodogram repeats itself"
        )
    return text, notes
