"""Injection of pulses of known S/N into data: a single pulse, or many pulses with a table of their parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.dedispersion.data.filterbank import Filterbank, as_filterbank
from skysieve.dedispersion.data.observation import DM_CONSTANT, in_unit
from skysieve.dedispersion.data.simulate import PulseReader, check_scatter, top_hat, whole_reader

from .grid import PulseGrid
from .noise import Levels, Noise, levels, levels_between, without
from .pulses import Pulse, extent, record, whole_counts
from .segments import Placed, counts_of, ideal, place

if TYPE_CHECKING:
    from astropy.table import Table
    from numpy.typing import ArrayLike, NDArray

    from skysieve.dedispersion.data.filterbank import Paths

__all__ = ["TRUTHS", "inject", "inject_grid", "inject_pulses", "truth_table"]

TRUTHS = np.dtype([
    ("snr", "f8"), ("dm", "f8"), ("time", "f8"), ("mjd_top", "f8"), ("width", "f8"), ("effective_width", "f8"),
    ("scatter", "f8"), ("index", "f8"), ("band_low", "f8"), ("band_high", "f8"), ("clipped", "f8"),
])  # fmt: skip
"""Columns of the table of injected pulses.  ``time`` (s) and ``mjd_top`` are the arrival times, at the top of the band,
of the middle of the ideal boxcar, whose length is ``effective_width``.  ``clipped`` is the fraction of the counts that
exceed the range of the samples."""
NEAR = 16_384
"""Length of the range around a pulse, in samples, from pieces of which the noise is measured."""
UNITS = {"dm": "pc / cm3", "time": "s", "mjd_top": "d", "width": "s", "effective_width": "s", "scatter": "s"}


def inject(
    data: Filterbank | Paths,
    *,
    dm: float,
    time: float,
    snr: float,
    width: float,
    scatter: float = 0.0,
    alpha: float = 4.0,
    sigma: Any = None,
    ignore: ArrayLike = (),
    dm_constant: float = DM_CONSTANT,
) -> Filterbank:
    """Add a pulse of known S/N to data.

    The counts are divided by the fraction of the samples of their channel that are not saturated, so that after
    clipping they have, on average, the sum that the S/N requires.  Fractions of counts are carried from sample to
    sample and from channel to channel, so that rounding changes the sum by half a count at most.

    Parameters
    ----------
    data : Filterbank, path or sequence of paths
        The data are not changed.
    dm, time : float
        DM in pc / cm^3; time in seconds at which the middle of the pulse arrives at the top of the band.
    snr : float
        S/N of the window that holds the de-dispersed pulse, before scattering widens it, in the channels that are
        neither in ``ignore`` nor constant.
    width : float
        Width of the pulse, seconds.
    scatter, alpha : float
        See `fake`.
    sigma : array_like, optional
        Noise of each channel, in counts; by default measured around the pulse, in up to 16,384 samples.  Channels whose
        sigma is 0, because they are constant, get no counts.
    ignore : sequence of int, optional
        Channels that the search will leave out; channel 0 has the highest frequency.  They get no counts, and their
        noise does not contribute to the S/N.
    dm_constant : float

    Returns
    -------
    Filterbank
        The data with the pulse, which is added when samples are read.

    Raises
    ------
    ValueError
        The pulse reaches beyond the data, or the data have no noise.

    Examples
    --------
    >>> from skysieve.dedispersion import fake
    >>> fb = fake(nchan=16, duration=0.5, tsamp=1e-3, fch1=1500, foff=-1, period=None)
    >>> one = inject(fb, dm=10, time=0.2, snr=30, width=5e-3)
    >>> int(one.read().sum(dtype=int) - fb.read().sum(dtype=int)) > 0
    True
    """
    time, width, scatter = (
        in_unit(name, value, "s") for name, value in (("time", time), ("width", width), ("scatter", scatter))
    )
    dm = in_unit("dm", dm, "pc / cm3")
    for name, value in (("snr", snr), ("width", width)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name}={value!r}: expected a number above 0")
    if not (math.isfinite(dm) and dm >= 0):
        raise ValueError(f"dm={dm!r}: expected a number of at least 0")
    if not math.isfinite(time):
        raise ValueError(f"time={time!r}: expected a finite number")
    check_scatter(scatter, alpha)
    fb = as_filterbank(data)
    obs = fb.observation
    first, unit = top_hat(obs, dm, time, width, scatter, alpha, dm_constant)
    if first.min() < 0 or int(first.max()) + math.ceil(width / obs.tsamp) > fb.nsamp:
        raise ValueError(
            f"time={time!r}: the pulse covers samples {first.min()} to {first.max() + unit.shape[1]}; "
            f"expected samples within 0 to {fb.nsamp}"
        )
    begin = max(0, min(int(first[0]) - NEAR // 2, fb.nsamp - NEAR))
    known = levels_between(fb, begin, min(begin + NEAR, fb.nsamp))
    if sigma is not None:
        known = replace(known, sigma=np.broadcast_to(np.asarray(sigma, np.float64), (fb.nchan,)))
    spread = without(known, ignore).sigma
    samples = width / obs.tsamp
    total = math.sqrt(float((spread**2).sum()))
    if not (math.isfinite(total) and total > 0):
        raise ValueError(
            f"snr={snr!r}: the noise around the pulse is {total:g} counts, so an S/N is not defined; in Python, "
            "`sigma` gives the noise"
        )
    used = spread > 0
    wanted = np.where(used[:, None], unit, 0.0) * (snr * total * math.sqrt(samples) / (used.sum() * samples))
    added = wanted.astype(np.float32) if fb.dtype.kind == "f" else whole_counts(wanted, known.room)
    return Filterbank([PulseReader(whole_reader(fb), [(first, added)], analog=False)])


def inject_pulses(
    data: Filterbank | Paths, pulses: Sequence[Pulse], *, ignore: ArrayLike = (), dm_constant: float = DM_CONSTANT
) -> tuple[Filterbank, NDArray[Any]]:
    """Add pulses of known S/N to data.

    Parameters
    ----------
    data : Filterbank, path or sequence of paths
        The data are not changed.
    pulses : sequence of Pulse
    ignore : sequence of int, optional
        Channels that the search will leave out; channel 0 has the highest frequency.  They get no counts, and their
        noise does not contribute to the S/N.
    dm_constant : float

    Returns
    -------
    with_pulses : Filterbank
        Pulses are added when samples are read.
    truths : structured array
        A row for each pulse, with the fields of `TRUTHS`.

    Raises
    ------
    ValueError
        A pulse reaches beyond the data or lies outside the band, two pulses overlap, or the data do not vary.

    Examples
    --------
    >>> from skysieve.dedispersion import fake
    >>> fb = fake(nchan=16, duration=2, tsamp=1e-3, fch1=1500, foff=-1, period=None)
    >>> both, truths = inject_pulses(fb, [Pulse(10, 0.5, 5e-3, 30), Pulse(20, 1.5, 5e-3, 30)])
    >>> truths["dm"].tolist()
    [10.0, 20.0]
    """
    fb = as_filterbank(data)
    known = levels(fb, None, ignore)
    placed = []
    for pulse in pulses:
        first, samples = extent(fb.observation, pulse, dm_constant)
        low, high = int(first.min()), int(first.max()) + samples
        if low < 0 or high > fb.nsamp:
            raise ValueError(f"{pulse}: it covers samples {low} to {high}; expected samples within 0 to {fb.nsamp}")
        placed.append(Placed(pulse, record(fb.observation, pulse, known.sigma, dm_constant)))
    placed.sort(key=lambda one: one.pulse.time)
    for a, b in pairwise(placed):
        if (a.made.first + a.made.counts.shape[1] > b.made.first).any():
            raise ValueError(f"{b.pulse} overlaps {a.pulse}")
    return _added(fb, placed, known, False)


def inject_grid(
    data: Filterbank | Paths | Noise, grid: PulseGrid, *, n: int | None = None, seed: int = 0, ignore: ArrayLike = (),
    dm_constant: float = DM_CONSTANT,
) -> tuple[Filterbank, NDArray[Any]]:  # fmt: skip
    """Add the pulses of a grid to data, or to noise.

    Parameters
    ----------
    data : Filterbank, path, sequence of paths, or Noise
        A `Noise` gives noise for its ``duration``.
    grid : PulseGrid
        Pulses arrive at the times of the grid.  Without times they follow each other at least two sweeps apart.
    n : int, optional
        Number of pulses; by default one of each combination.
    seed : int
    ignore : sequence of int, optional
        Channels that the search will leave out; channel 0 has the highest frequency.  They get no counts, and their
        noise does not contribute to the S/N.
    dm_constant : float

    Returns
    -------
    with_pulses : Filterbank
    truths : structured array
        As of `inject_pulses`.

    Raises
    ------
    ValueError
        As `inject_pulses`; or the data are too short for all pulses.

    Examples
    --------
    >>> from skysieve.dedispersion import Noise, PulseGrid
    >>> receiver = Noise(nchan=16, fch1=1500, foff=-1, tsamp=1e-3, duration=10)
    >>> both, truths = inject_grid(receiver, PulseGrid(dm=[10.0, 20.0], width=[5e-3], snr=[15.0, 30.0]))
    >>> sorted(zip(truths["dm"].tolist(), truths["snr"].tolist()))
    [(10.0, 15.0), (10.0, 30.0), (20.0, 15.0), (20.0, 30.0)]
    """
    rng = np.random.default_rng([seed, 7])
    times = grid.times
    count = n if n is not None else grid.combinations * (1 if times is None else len(times))
    wanted = grid.draw(count, rng)
    fb = data.segment(seed) if isinstance(data, Noise) else as_filterbank(data)
    if times is not None:
        if count != len(times):
            raise ValueError(f"time={times!r}: expected {count} times, one for each pulse")
        return inject_pulses(fb, [Pulse(time=t, **one) for t, one in zip(times, wanted, strict=True)],
                             ignore=ignore, dm_constant=dm_constant)  # fmt: skip
    noise = data if isinstance(data, Noise) else None
    known = levels(fb, noise, ignore)
    placed = [
        Placed(pulse, record(fb.observation, pulse, known.sigma, dm_constant))
        for pulse in place(fb, wanted, dm_constant, grid.highest_dm, rng)
    ]
    if len(placed) < count:
        raise ValueError(
            f"grid: {count} pulses up to DM {grid.highest_dm:g}, two sweeps apart, need more than the "
            f"{fb.duration:g} s of the data; {len(placed)} fit"
        )
    return _added(fb, placed, known, noise is not None and noise.analog)


def _added(fb: Filterbank, placed: list[Placed], known: Levels, analog: bool) -> tuple[Filterbank, NDArray[Any]]:
    """The data with pulses, and the table of truths."""
    added = [(one.made.first, counts_of(fb, one.made, known, analog)) for one in placed]
    rows = []
    for one, (_, counts) in zip(placed, added, strict=True):
        ideal(one, fb, counts, None, np.empty((0, 4), np.int64), known, analog)
        p, middle = one.pulse, (one.made.begin + one.made.length / 2) * fb.tsamp
        rows.append((
            p.snr, p.dm, middle, fb.observation.tstart + middle / 86400, p.width, one.made.length * fb.tsamp,
            p.scatter, p.index, *p.band, one.clipped,
        ))  # fmt: skip
    return Filterbank([PulseReader(whole_reader(fb), added, analog=analog)]), np.array(rows, TRUTHS)


def truth_table(truths: NDArray[Any]) -> Table:
    """The table of truths with units."""
    from astropy.table import Table

    table = Table(truths, units=UNITS)
    table.meta["dm_constant"] = DM_CONSTANT
    return table
