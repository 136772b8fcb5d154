"""DM and time of a candidate from the events around its peak, and the S/N there.

The S/N of a pulse falls slowly with the DM error, so that noise moves the highest event by a good part of the pulse's
width.  The mean over the events near the peak, with the S/N to the power of `POWER` as weights, moves less.  The second
look (`vetting`) takes such a mean over finer DMs, also over those whose S/N is below the threshold.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from skysieve.dedispersion.clean.masks import Mask, check_mask
from skysieve.dedispersion.clean.repair import repaired, split_mask
from skysieve.dedispersion.contract import block_samples
from skysieve.dedispersion.data.delays import delay_seconds
from skysieve.dedispersion.data.filterbank import opened

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.data.filterbank import Filterbank, Paths
    from skysieve.dedispersion.data.observation import Observation

    from .candidates import Candidates, Events

__all__ = ["window_snr"]

POWER = 12
"""Events are weighted with this power of their S/N.  Of the powers 4 to 16, those from 8 to 16 give the smallest errors
at S/N 7 to 30."""
SMEARED, LATE, WIDER = 4.0, 2.0, 2.0
"""An event is near a peak if its DM error smears the pulse over at most ``SMEARED`` widths, its time at mid band is at
most ``LATE`` widths away, and its width differs by at most the factor ``WIDER``."""

FARTHEST, STEPS = 3, 4
"""The second look tries DM errors that smear a pulse over the band by up to ``FARTHEST`` of its widths, ``STEPS`` for
each width (see `cpu_look.place`)."""
ROUNDED = 256
"""It rounds its changes to 1 / ``ROUNDED`` of the width, since the order of its sums differs between CPUs and GPUs."""

AROUND, WIDTHS = 2048, 8
"""Level and sigma are taken from ``AROUND`` samples on each side of a window, or ``WIDTHS`` widths if that is more."""
CLIP = 4.0
"""Samples farther than this from the median, in sigma, do not count for level and sigma."""


def refined(
    events: Events, group: NDArray[np.int64], best: NDArray[np.int64], dms: NDArray[np.float64], obs: Observation,
    ref_freq: float, dm_constant: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """DM and time of candidates, at the reference frequency.

    At each DM only the highest event near the peak counts; its weight includes the spacing of the DMs around it.  The
    events that count lie within the same distance on both sides of the peak, so that the ends of the list of DMs do not
    shift the mean.  Times are averaged at the frequency where they do not depend on the DM error: at the mean of f^-2
    over the channels.

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


CHOSEN = 3.0
"""Number of parameters that the search has chosen: DM, time and width."""


def window_snr(data: Filterbank | Paths, found: Candidates, *, mask: Mask | None = None) -> NDArray[np.float64]:
    """S/N in the windows that the columns ``dm``, ``time`` and ``width`` of candidates describe.

    ``Candidates.snr`` is the highest of many neighbouring windows, so that noise raises it: by 5% at an S/N of 10 on
    average.  The DM and time of a candidate are means over events, so that noise affects them less, and with them the
    S/N of this function.  The remaining bias is subtracted: the choice of three parameters, DM, time and width, raises
    the square of the S/N by 3 on average.

    Parameters
    ----------
    data : Filterbank, path or sequence of paths
        The data that were searched, after any cleaning.
    found : Candidates
    mask : Mask, optional
        The mask of the search, or that of what its cleaning removed, ``found.removed.mask``.  Channels that are masked
        throughout are left out; other masked cells are replaced by noise of their channel.

    Returns
    -------
    numpy.ndarray of float64, shape (candidates,)
        NaN where the window of a channel reaches beyond the data.  Level and sigma are those of the de-dispersed
        samples around the window, without those farther than 4 sigma from their median.  Values that are not finite
        are replaced by the mean of their channel over the samples that are read.

    Examples
    --------
    >>> import numpy as np
    >>> from skysieve.dedispersion import fake, search
    >>> fb = fake(nchan=64, duration=4, tsamp=1e-3, fch1=1500, foff=-4, dm=200, times=[1.5], width=4e-3, snr=20, seed=1)
    >>> found = search(fb, np.arange(100, 300, 4), threads=1)
    >>> found.snr.round(), window_snr(fb, found).round()
    (array([17.], dtype=float32), array([17.]))
    """
    with opened(data) as fb:
        rows = None
        if mask is not None:
            check_mask(mask, fb)
            whole, cells = split_mask(mask, fb)
            if cells is not None:
                fb = repaired(fb, fb.lost, cells, block_samples(fb.tsamp))
            if whole is not None:
                rows = np.flatnonzero(~whole.cells[:, 0])
        return np.array([window_snr_of(fb, found, i, rows) for i in range(len(found))])


def window_snr_of(fb: Filterbank, found: Candidates, i: int, rows: NDArray[np.int64] | None = None) -> float:
    """`window_snr` of candidate ``i``; ``rows`` are the channels that are added, by default all."""
    from .cpu_refine import add_channels

    obs, dm = fb.observation, float(found.dm[i])
    time = float(found.time[i]) + float(delay_seconds(obs.top, dm, found.ref_freq, found.dm_constant))
    delays = np.rint(delay_seconds(obs.freqs, dm, obs.top, found.dm_constant) / obs.tsamp).astype(np.int64)
    n = max(1, round(float(found.width[i]) / obs.tsamp))
    first = round(time / obs.tsamp - n / 2)
    around = max(AROUND, WIDTHS * n)
    low, high = max(0, first - around), min(first + n + around, fb.nsamp - int(delays.max()))
    if first < low or first + n > high:
        return math.nan
    series = np.zeros(high - low)
    if fb.gpu is not None:  # `shifted` copies few samples from the GPU
        block, delays = fb.shifted(low + delays, high - low), np.zeros_like(delays)
    else:
        block = fb.block(low, high - low + int(delays.max()))
    if rows is not None:
        block, delays = block[rows], delays[rows]
    if block.dtype.kind == "f":
        good = np.isfinite(block)
        if not good.all():
            total = np.where(good, block, 0).sum(axis=1, dtype=np.float64)
            mean = (total / np.maximum(good.sum(axis=1), 1)).astype(np.float32)
            block = np.where(good, block, mean[:, None])
    add_channels(block.T, delays, series)
    begin = first - low
    rest = np.concatenate([series[: max(0, begin - n)], series[begin + 2 * n :]])
    if len(rest) < 2:
        return math.nan
    lower, level, upper = np.quantile(rest, (0.25, 0.5, 0.75))
    rest = rest[np.abs(rest - level) <= CLIP * (upper - lower) / 1.3489795]
    sigma = float(rest.std()) if len(rest) else 0.0
    if not sigma:
        return math.nan
    snr = float(series[begin : begin + n].sum() - n * rest.mean()) / (sigma * math.sqrt(n))
    return math.copysign(math.sqrt(max(0.0, snr**2 - CHOSEN)), snr)
