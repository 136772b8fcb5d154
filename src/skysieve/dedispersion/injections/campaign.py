"""Injection campaigns: pulses are added to noise or to data, the data are searched, and found pulses are counted."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.progress import reporting
from skysieve.core.tasks import in_parallel
from skysieve.dedispersion.clean.masks import Mask, check_mask
from skysieve.dedispersion.clean.repair import split_mask
from skysieve.dedispersion.data.delays import delay_seconds
from skysieve.dedispersion.data.filterbank import Filterbank, opened
from skysieve.dedispersion.data.observation import Observation
from skysieve.dedispersion.single_pulse.search import SearchPlan

from .grid import Axis, PulseGrid, usual_dms
from .noise import Noise, levels
from .pulses import Pulse, spread_per_dm
from .result import TRIALS, Completeness
from .segments import Maker, Placed, Segment, place

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from skysieve.dedispersion.data.filterbank import Paths
    from skysieve.dedispersion.dm_plan.arguments import Stages
    from skysieve.dedispersion.dm_plan.plan import DMPlan
    from skysieve.dedispersion.single_pulse.candidates import Candidates

    from .cuda.launch import DeviceNoise

__all__ = ["completeness"]

AHEAD = 6
"""Segments, without and with pulses, that may be in memory at the same time."""
SAME = 0.05
"""Candidates at the same time and DM are the same if their S/N differ by at most this fraction."""


def completeness(
    data: Filterbank | Paths | Noise,
    dms: ArrayLike | DMPlan,
    *,
    n: int = 1000,
    hours: float = 0.0,
    snr: Sequence[float] = (7.0, 8.0, 9.0, 10.0),
    dm: Axis | None = None,
    width: Axis = (1e-3, 1e-2),
    scatter: Axis = 0.0,
    index: Axis = 0.0,
    band: Any = (0.0, 1.0),
    interference: str | Sequence[str] = (),
    strength: float = 1.0,
    prepare: Callable[[Filterbank], tuple[Filterbank, Mask | None]] | None = None,
    seed: int = 0,
    parts: str | os.PathLike[str] | None = None,
    progress: bool | Callable[[int, int], None] = False,
    **options: Any,
) -> Completeness:
    """Measure which pulses a search finds.

    Pulses of known S/N are added to the data, separated by at least two sweeps, and the data are searched without
    knowledge of them.  A candidate belongs to a pulse if its time is within two effective widths ``w`` of the pulse and
    its DM within ``w / (K (f_low^-2 - f_high^-2))``; ``w`` is the length of the ideal boxcar.

    Parameters
    ----------
    data : Filterbank, path, sequence of paths, or Noise
        Data to which pulses are added, or the noise of a receiver.  The same data are used repeatedly, with other
        pulses each time, until ``n`` pulses have been injected.
    dms : DMPlan or array_like
        The DMs to search, as for `search`.
    n : int
        Number of pulses; with 0 only false candidates are counted.
    hours : float
        Hours of data, at least, in which false candidates are counted.  If the pulses need less, noise without pulses
        is searched until this time is reached.
    snr : sequence of float
        S/N of the ideal boxcar, after smearing within channels and sampling, in the channels that are searched; each
        value is given to an equal share of the pulses.  Channels that are constant, or that ``prepare`` masks
        throughout, get no counts, and their noise does not contribute to the S/N.
    dm, width, scatter, index : tuple, list or float
        A tuple of the lowest and the highest value, between which the value of each pulse is drawn; or a list of
        values, of which all combinations are injected.  Width (FWHM, s) is drawn uniformly in its logarithm; DM,
        scatter (s at mid band) and spectral index are drawn uniformly.  By default DMs are drawn from 10% to 90% of the
        range that is searched.
    band : (float, float) or list of them
        Part of the band that pulses fill, as fractions from 0 at its bottom to 1 at its top; or a list of such parts.
    interference : str or sequence of str
        Kinds of interference to add, see `injections.interference.KINDS`, or "all".  The samples that it covers are
        counted as lost: the S/N of a pulse is that in the samples that remain, and `Completeness.recall` leaves out
        pulses that lose over 20% (`Completeness.too_much_lost`).
    strength : float
        Factor of the heights of the interference.
    prepare : callable, optional
        ``prepare(data)`` returns the data to search and a mask or None.  It stands for the filters that a user applies
        before the search.  Its mask of the data without pulses defines which channels are searched; other cells that it
        masks in data (not in `Noise`) count as lost, like samples that interference covers.
    seed : int
        Campaigns of different seeds share neither pulses nor noise.
    parts : path, optional
        The counts of each finished segment are saved under this name, with ``-00000.npz`` and so on after it.  Segments
        whose files exist are not searched again.  The files belong to one campaign: use another name for other
        arguments.
    progress : bool or callable
        True draws a bar of the pulses; a callable gets ``(done, total)``.
    **options
        As for `search`: ``threshold``, ``widths``, ``noise``, ``clean``, ``device`` and so on.

    Returns
    -------
    Completeness

    Raises
    ------
    ValueError
        A range is invalid or reaches beyond the DMs that are searched, the data are too short for a pulse or constant,
        or all channels are masked.

    Examples
    --------
    >>> import numpy as np
    >>> from skysieve.dedispersion import Noise, completeness
    >>> receiver = Noise(nchan=64, foff=-4, tsamp=1e-3, duration=20)
    >>> found = completeness(receiver, np.arange(100, 400, 4), n=8, snr=[20], dm=(150, 300), threads=1)
    >>> float(found.recall()["recall"][0])
    1.0
    """
    grid = PulseGrid(snr, usual_dms(0.0, 1.0) if dm is None else dm, width, scatter, index, band)
    noise = data if isinstance(data, Noise) else None
    if not 0 <= hours < math.inf:
        raise ValueError(f"hours={hours!r}: expected a finite number, at least 0")
    if hours and noise is None:
        raise ValueError(f"hours={hours!r}: applies to noise only; expected Noise instead of data")
    if n < 0 or not (n or hours):
        raise ValueError(f"n={n}: expected at least one pulse, or hours of noise")
    kinds = (interference,) if isinstance(interference, str) else tuple(interference)
    began = time.perf_counter()

    def execute(plan: SearchPlan, fb: Filterbank) -> tuple[Candidates, bool]:
        """The candidates, and whether `prepare` leaves the samples as they are."""
        ready, mask = (fb, None) if prepare is None else prepare(fb)
        return plan.execute(ready, mask=mask), ready is fb

    found: list[Completeness] = []
    with (
        opened(data.segment(seed) if isinstance(data, Noise) else data) as first,
        reporting(progress, "injecting pulses" if n else "hours of noise, in thousandths") as report,
        SearchPlan(first, dms, **options) as plan,
    ):
        while (part := _saved(parts, len(found))) is not None:
            found.append(part)
        if dm is None:
            grid = replace(grid, dm=usual_dms(*plan.job.dms[0][[0, -1]].tolist()))
        wanted = grid.draw(n, np.random.default_rng([seed, 7]))
        if n:
            _check_dms(grid, plan.job.stages)
        own = None
        if noise is None:  # also find candidates that added noise may raise over the threshold
            with SearchPlan(first, dms, **dict[str, Any](options, threshold=(1 - SAME) * plan.job.threshold)) as faint:
                own, _ = execute(faint, first)
        lost = np.empty((0, 4), np.int64) if own is None else own.dropped
        job = plan.job
        ignore, cells = _masked(first, None if prepare is None else prepare(first)[1])
        if cells is not None and noise is None:
            lost = np.concatenate([lost, _rectangles(cells, first.nsamp)])
        known = levels(first, noise, ignore)
        maker = Maker(
            noise is not None and noise.analog, known, job.dm_constant, job.stages, job.boxes, kinds, strength, lost,
            options.get("threads"), _device_noise(plan, noise, first) if prepare is None and not kinds else None,
        )  # fmt: skip
        done, quiet = sum(map(len, found)), sum(one.hours for one in found)

        def segments() -> Generator[Iterator[Segment]]:
            at, number = done, len(found)
            while at < n or hours:
                fb = first if noise is None else noise.segment(seed, number)
                rng = np.random.default_rng([seed, 8, number])
                pulses = list(place(fb, wanted[at:], job.dm_constant, grid.highest_dm, rng))
                if at < n and not pulses:
                    raise ValueError(
                        f"dm={wanted[at]['dm']:g}, width={wanted[at]['width']:g}: the data last "
                        f"{fb.nsamp * fb.tsamp:g} s, too short for such a pulse"
                    )
                yield maker.making(fb, pulses, seed * 1_000_003 + number)
                at, number = at + len(pulses), number + 1

        # the readers of data are not shared between threads
        source = in_parallel(segments(), 2) if noise is not None else (one for made in segments() for one in made)
        try:
            while done < n or quiet < hours:
                one = next(source)
                since = time.perf_counter()
                searched, unchanged = execute(plan, one.searched)
                since = time.perf_counter() - since
                window = None
                if unchanged and cells is None:
                    window = maker.window_snr(one.searched, searched, noise is not None, ignore)
                rows, spare, near = _match(
                    first.observation, searched, one.placed, job.dm_constant, _already_there(searched, own), window
                )
                spent = max(0.0, one.base.nsamp * first.tsamp - near) / 3600
                alarms = np.array(spare, [("snr", "f8"), ("dm", "f8"), ("time", "f8")])
                where = f"{first.nchan} channels, {first.observation.freqs.min():g} to {first.observation.top:g} MHz"
                part = Completeness(
                    np.array(rows, TRIALS),
                    alarms,
                    spent,
                    float(job.threshold),
                    where,
                    time.perf_counter() - began,
                    since,
                )
                began += part.seconds
                if parts is not None:
                    part.save(_part(parts, len(found)))
                found.append(part)
                done, quiet = done + len(rows), quiet + spent
                if report is not None:
                    report(*((done, n) if n else (int(min(1, quiet / hours) * 1000), 1000)))
        finally:
            source.close()
            maker.close()
    return Completeness.join(found)


def _device_noise(plan: SearchPlan, noise: Noise | None, fb: Filterbank) -> DeviceNoise | None:
    """A generator of noise on the GPU that searches it; None if several GPUs search or if it takes too much memory."""
    if noise is None or plan.device.kind != "cuda" or plan.gpus > 1 or fb.dtype != np.uint8:
        return None
    if 2 * AHEAD * fb.nsamp * fb.nchan > plan.device.free_memory / 2:
        return None
    from skysieve.core.gpu.runtime import CudaRuntime

    from .cuda.launch import DeviceNoise

    return DeviceNoise(CudaRuntime(plan.device))


def _masked(fb: Filterbank, mask: Mask | None) -> tuple[NDArray[np.int64], Mask | None]:
    """The channels that a mask covers throughout, and a mask of its other cells; None if there are none."""
    if mask is None:
        return np.empty(0, np.int64), None
    check_mask(mask, fb)
    whole, cells = split_mask(mask, fb)
    if whole is not None and whole.cells.all():
        raise ValueError("mask: all channels are masked, so that nothing can be found")
    return np.flatnonzero(np.zeros(fb.nchan) if whole is None else whole.cells[:, 0]), cells


def _rectangles(mask: Mask, nsamp: int) -> NDArray[np.int64]:
    """The cells of a mask as rectangles, see `Losses.rects`.

    >>> _rectangles(Mask(np.array([[False, True], [True, True]]), 10), 15).tolist()
    [[0, 10, 1, 2], [10, 15, 0, 2]]
    """
    cells = mask.at(np.arange(-(-nsamp // mask.block)))
    edges = np.diff(np.pad(cells.T.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    (number, top), bottom = np.nonzero(edges > 0), np.nonzero(edges < 0)[1]
    first = number * mask.block
    return np.stack([first, np.minimum(first + mask.block, nsamp), top, bottom], axis=1)


def _check_dms(grid: PulseGrid, stages: Stages) -> None:
    """Refuse pulses more than a DM step beyond the DMs that are searched: none of them can be found."""
    searched = np.unique(np.concatenate([dms for dms, *_ in stages]))
    low, high = searched[0], searched[-1]
    step = float(np.diff(searched).max(initial=0.0))
    for one in (grid.lowest_dm, grid.highest_dm):
        if not low - step <= one <= high + step:
            raise ValueError(
                f"dm={one:g}: such pulses cannot be found, because the search covers DM {low:g} to {high:g}"
            )


def _part(parts: str | os.PathLike[str], number: int) -> Path:
    """The file of a finished segment."""
    return Path(f"{os.fspath(parts)}-{number:05d}.npz")


def _saved(parts: str | os.PathLike[str] | None, number: int) -> Completeness | None:
    """The saved counts of a segment; None if it was not saved."""
    if parts is None or not _part(parts, number).exists():
        return None
    return Completeness.load(_part(parts, number))


def _reach(pulse: Pulse, wide: float, found: Candidates, per_dm: float) -> float:
    """Seconds by which events of a pulse at wrong DMs are early or late.

    If a DM error smears the pulse over ``m`` widths, a window of ``m`` widths has ``1 / sqrt(m)`` of the S/N, and is
    shifted by half of the smearing.  Noise can add up to 2.5 to the S/N.
    """
    smeared = (pulse.snr / max(1.0, found.threshold - 2.5)) ** 2 * wide
    dm = (found.observation.dm or 0.0) + pulse.dm
    searched = per_dm * max(dm - float(found.dms[0]), float(found.dms[-1]) - dm, 0.0)
    return min(smeared, searched) / 2 + wide


def _times(found: Candidates) -> NDArray[np.float64]:
    """Seconds at which candidates arrive at the top of the band; `Candidates.time` is that at ``ref_freq``."""
    late = delay_seconds(found.observation.top, found.dm, found.ref_freq, found.dm_constant)
    times: NDArray[np.float64] = found.time + late
    return times


def _already_there(found: Candidates, data: Candidates | None) -> NDArray[np.bool_]:
    """Mask of candidates that the data have without pulses: at the same time and DM, with an S/N within `SAME`."""
    out = np.zeros(len(found), bool)
    if data is None:
        return out
    now, before = _times(found), _times(data)
    rising, highest = np.argsort(data.events.snr, kind="stable"), np.zeros(len(data))
    highest[data.group[rising]] = data.events.dm[rising]  # of the highest event; the second look moves the DM itself
    for i in range(len(data)):
        same = np.abs(now - before[i]) <= data.width[i]
        same &= (found.dm_low <= highest[i]) & (highest[i] <= found.dm_high)
        out |= same & (np.abs(found.snr / data.snr[i] - 1) <= SAME)
    return out


def _match(
    obs: Observation,
    found: Candidates,
    placed: list[Placed],
    constant: float,
    known: NDArray[np.bool_],
    window: NDArray[np.float64] | None = None,
) -> tuple[list[tuple[Any, ...]], list[tuple[float, float, float]], float]:
    """Identify candidates with pulses.

    Returns a row for each pulse, the candidates that belong to no pulse, and the seconds of data near a pulse.
    ``known`` candidates, which the data have without pulses, belong to no pulse and are not false.  ``window`` is the
    `window_snr` of the candidates.
    """
    per_dm, base = spread_per_dm(obs, constant), obs.dm or 0.0  # DMs of a series are relative to its own
    times, taken = _times(found), known.copy()
    rows, near = [], 0.0
    for one in placed:
        wide = one.made.length * obs.tsamp
        middle = (one.made.begin + one.made.length / 2) * obs.tsamp
        own = ~known & (np.abs(times - middle) <= 2 * wide)
        own &= np.abs(found.dm - base - one.pulse.dm) <= wide / per_dm
        reach = wide + _reach(one.pulse, wide, found, per_dm)
        close = ~known & (np.abs(times - middle) <= reach)
        near += 2 * reach
        best = int(np.flatnonzero(own)[np.argmax(found.snr[own])]) if own.any() else -1
        rows.append((
            one.pulse.snr, base + one.pulse.dm, middle, one.pulse.width, wide, one.pulse.scatter, one.pulse.index,
            *one.pulse.band, one.left, one.snr_left, one.clipped, one.known, one.near, best >= 0,
            found.snr[best] if best >= 0 else math.nan,
            window[best] if best >= 0 and window is not None else math.nan,
            found.dm[best] - base - one.pulse.dm if best >= 0 else math.nan,
            times[best] - middle if best >= 0 else math.nan, found.width[best] if best >= 0 else math.nan,
            int((own | close).sum()),
        ))  # fmt: skip
        taken |= own | close
    spare = [(float(found.snr[i]), float(found.dm[i]), float(times[i])) for i in np.flatnonzero(~taken)]
    return rows, spare, near
