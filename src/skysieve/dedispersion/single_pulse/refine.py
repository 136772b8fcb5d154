"""DM and time of a candidate from the events around its peak.

The S/N of a pulse falls slowly with the DM error, so that noise moves the highest event by a good part of the pulse's
width.  The mean over the events near the peak, with the S/N to the power of `POWER` as weights, moves less.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.data.observation import Observation

    from .candidates import Events

POWER = 12
"""Power of the S/N that an event weighs.  Of 4 to 16 the errors at S/N 7 to 30 are least from 8 to 16."""
SMEARED, LATE, WIDER = 4.0, 2.0, 2.0
"""Events near a peak: the DM error smears the pulse over so many widths at most, the time at mid band differs by so
many widths, and the width by this factor."""


def refined(
    events: Events, group: NDArray[np.int64], best: NDArray[np.int64], dms: NDArray[np.float64], obs: Observation,
    ref_freq: float, dm_constant: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """DM and time, at the reference frequency, of candidates.

    Of each DM the highest event near the peak counts, with the distance of the DMs around it as a further weight.  The
    events that count lie within the same distance on both sides of the peak, so that the end of the DMs has no pull.
    Times are averaged where they do not depend on the DM error: at the mean of f^-2 over the channels.

    Parameters
    ----------
    events : Events
    group : numpy.ndarray of int64
        The candidate of each event.
    best : numpy.ndarray of int64
        For each candidate, the event at which it peaks.
    dms : numpy.ndarray of float64
        All DMs that were searched, rising.
    obs, ref_freq, dm_constant
        As of `Candidates`.
    """
    dm, time = events.dm[best], events.time[best]
    squares = obs.freqs.astype(np.float64) ** -2
    per_dm = dm_constant * float(squares.max() - squares.min())
    if not per_dm > 0 or not len(best):
        return dm, time
    late = dm_constant * (float(squares.mean()) - (0.0 if math.isinf(ref_freq) else ref_freq**-2))
    width = events.width[best]
    reach = np.minimum(SMEARED * width / per_dm, np.minimum(dm - dms[0], dms[-1] - dm))
    off = events.dm - dm[group]
    delay = events.time - time[group] + late * off  # at mid band, after the peak
    ratio = events.width / width[group]
    near = (np.abs(off) <= reach[group]) & (np.abs(delay) <= LATE * width[group])
    near &= (ratio <= WIDER) & (ratio * WIDER >= 1)
    near[best] = True
    i = np.flatnonzero(near)
    row = group[i] * len(dms) + events.dm_index[i]
    order = np.lexsort((-events.snr[i], row))
    first = np.ones(len(i), bool)
    first[1:] = np.diff(row[order]) != 0
    i = i[order[first]]
    weight = (events.snr[i] / events.snr[best][group[i]]).astype(np.float64) ** POWER
    weight *= np.gradient(dms)[events.dm_index[i]] if len(dms) > 1 else 1.0
    total, n = np.bincount(group[i], weight), len(best)
    shift = np.bincount(group[i], weight * off[i], n) / total
    return dm + shift, time + np.bincount(group[i], weight * delay[i], n) / total - late * shift
