"""The data around a candidate: raw and de-dispersed spectra, profile, bow tie; HDF5 as `your` and FETCH lay it out."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.dedispersion.api import dedisperse
from skysieve.dedispersion.filterbank import Filterbank
from skysieve.dedispersion.grid import delay_seconds, sample_delays
from skysieve.dedispersion.io import written
from skysieve.dedispersion.observation import DM_CONSTANT, Observation

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["Cutout", "cutout"]

SIDE = 256
"""Samples, channels and DMs of the images, which is what FETCH takes."""


@dataclass(frozen=True)
class Cutout:
    """One candidate's data.

    Attributes
    ----------
    raw, dedispersed : numpy.ndarray of float32, shape (channels, samples)
        Dynamic spectra, each channel less its median; 256 x 256 at most.
    bowtie : numpy.ndarray of float32, shape (256, samples)
        De-dispersed series at DMs from 0 to twice the candidate's, in sigma.
    profile : numpy.ndarray of float32
        The series at its DM, in sigma.
    times : numpy.ndarray
        Seconds from the candidate, of the columns of ``dedispersed``, ``bowtie`` and ``profile``.
    raw_times : numpy.ndarray
        Those of ``raw``, which spans the delay across the band.
    freqs, dms : numpy.ndarray
        Of the rows: MHz, falling; pc / cm^3.
    snr, dm, time, width : float
        The candidate.
    observation : Observation
    name : str
    """

    raw: NDArray[np.float32]
    dedispersed: NDArray[np.float32]
    bowtie: NDArray[np.float32]
    profile: NDArray[np.float32]
    times: NDArray[np.float64]
    raw_times: NDArray[np.float64]
    freqs: NDArray[np.float64]
    dms: NDArray[np.float64]
    snr: float
    dm: float
    time: float
    width: float
    observation: Observation
    name: str

    def plot(self) -> Figure:
        """Profile, de-dispersed and raw dynamic spectrum, bow tie."""
        from skysieve.dedispersion.plot import cutout_figure

        return cutout_figure(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write HDF5: ``data_freq_time`` (time, frequency), ``data_dm_time`` (DM, time), attributes as `your` has."""
        import h5py

        with written(path) as part, h5py.File(part, "w") as file:
            o = self.observation
            facts = {
                "cand_id": self.name, "tcand": self.time, "dm": self.dm, "dm_opt": -1.0, "snr": self.snr,
                "snr_opt": -1.0, "width": max(1, round(self.width / o.tsamp)), "label": -1, "nchans": o.nchan,
                "tsamp": o.tsamp, "fch1": o.top, "foff": o.foff, "source_name": o.source, "tstart": o.tstart,
                "native_tsamp": o.tsamp, "native_nchans": o.nchan, "native_foff": o.foff, "bw": -o.band,
                "center_freq": o.centre, "nbits": o.nbits, "basename": self.name,
            }  # fmt: skip
            for key, value in facts.items():
                file.attrs[key] = value
            spectrum = file.create_dataset("data_freq_time", data=self.dedispersed.T, compression="gzip")
            spectrum.dims[0].label, spectrum.dims[1].label = "time", "frequency"
            bowtie = file.create_dataset("data_dm_time", data=self.bowtie, compression="gzip")
            bowtie.dims[0].label, bowtie.dims[1].label = "dm", "time"


def cutout(
    fb: Filterbank, *, dm: float, time: float, width: float, snr: float = float("nan"), dm_constant: float = DM_CONSTANT
) -> Cutout:
    """The data around one pulse.

    Parameters
    ----------
    fb : Filterbank
    dm, time, width : float
        pc / cm^3; seconds from the start to its arrival at the top of the band; seconds.
    snr : float, optional
    dm_constant : float

    Returns
    -------
    Cutout
        Time is binned to half the width.  What lies outside of the data or is not finite takes the channels' medians.

    Examples
    --------
    >>> from skysieve.dedispersion import fake
    >>> fb = fake(nchan=64, duration=3, tsamp=1e-3, fch1=1500, foff=-4, dm=200, times=[1.5], width=4e-3, snr=30)
    >>> c = cutout(fb, dm=200, time=1.5, width=4e-3)
    >>> c.dedispersed.shape, c.bowtie.shape, bool(abs(c.times[c.profile.argmax()]) < 4e-3)
    ((64, 256), (256, 256), True)
    """
    if not (np.isfinite(dm) and dm >= 0):
        raise ValueError(f"dm={dm!r}: expected a DM of at least 0")
    if not 0 <= time <= fb.duration:
        raise ValueError(f"time={time!r}: the data last {fb.duration:g} s")
    if not (np.isfinite(width) and width > 0):
        raise ValueError(f"width={width!r}: expected seconds, above 0")
    tsamp = fb.tsamp
    b = max(1, int(width / tsamp) // 2)
    half = SIDE * b // 2
    dms = np.linspace(0, 2 * dm, SIDE) if dm > 0 else np.linspace(0, 1, SIDE)
    shift = int(sample_delays(fb.freqs, dms[-1:], tsamp, "top", dm_constant).max())
    centre = round(time / tsamp)
    x = _padded(fb, centre - half, 2 * half + shift)
    part = Filterbank.from_array(x, freqs=fb.freqs, tsamp=tsamp)
    n = 2 * half
    delays = sample_delays(fb.freqs, np.array([dm]), tsamp, "top", dm_constant)[0]
    lined = np.stack([row[s : s + n] for row, s in zip(x, delays, strict=True)])
    series = dedisperse(part, dms, dm_constant=dm_constant).data[:, :n].astype(np.float64)
    profile = lined.sum(axis=0, dtype=np.float64)
    binned = [a.reshape(*a.shape[:-1], SIDE, b).sum(axis=-1, dtype=np.float64) for a in (lined, series, profile)]
    span = min(x.shape[1], n // 2 + int(delays.max()) + n // 2)
    raw = x[:, :span]
    count = min(SIDE, span)
    edges = np.linspace(0, span, count + 1)
    times = ((np.arange(SIDE, dtype=np.float64) + 0.5) * b - half) * tsamp + centre * tsamp - time
    return Cutout(
        _level(_shrink(_resample(raw, edges), fb.nchan)), _level(_shrink(binned[0], fb.nchan)), _sigma(binned[1]),
        _sigma(binned[2][None])[0], times,
        ((edges[:-1] + edges[1:]) / 2 - half) * tsamp + centre * tsamp - time,
        _shrink(fb.freqs[:, None], fb.nchan)[:, 0], dms, float(snr), float(dm), float(time), float(width),
        fb.observation, f"cand_tstart_{fb.observation.tstart:.12f}_tcand_{time:.7f}_dm_{dm:.5f}_snr_{snr:.5f}",
    )  # fmt: skip


def write_cutouts(
    fb: Filterbank, found: Any, folder: str | os.PathLike[str], *, most: int = 20, hdf5: bool = True, plots: bool = True
) -> list[Path]:
    """Cut-outs of the loudest candidates of a search into a folder: ``.h5`` and ``.png``."""
    home = Path(folder)
    home.mkdir(parents=True, exist_ok=True)
    paths = []
    for i in range(min(most, len(found))):
        late = delay_seconds(found.observation.top, float(found.dm[i]), found.ref_freq, found.dm_constant)
        top = float(found.time[i]) + float(late)
        one = cutout(
            fb, dm=float(found.dm[i]), time=min(max(top, 0.0), fb.duration), width=float(found.width[i]),
            snr=float(found.snr[i]), dm_constant=found.dm_constant,
        )  # fmt: skip
        if hdf5:
            paths.append(home / f"{one.name}.h5")
            one.save(paths[-1])
        if plots:
            paths.append(home / f"{one.name}.png")
            with written(paths[-1]) as part:
                one.plot().savefig(part, dpi=110)
    return paths


def _padded(fb: Filterbank, start: int, count: int) -> NDArray[np.float32]:
    low, high = max(0, start), min(fb.nsamp, start + count)
    inside = fb.block(low, max(0, high - low)).astype(np.float32) if high > low else np.empty((fb.nchan, 0), np.float32)
    good = np.isfinite(inside)
    if not good.all():  # what is not finite counts as outside
        held = [row[g] for row, g in zip(inside, good, strict=True)]
        middle = np.array([np.median(v) if v.size else 0 for v in held], np.float32)
        inside = np.where(good, inside, middle[:, None])
    else:
        middle = np.median(inside, axis=1) if inside.size else np.zeros(fb.nchan, np.float32)
    out = np.repeat(middle[:, None], count, axis=1).astype(np.float32)
    out[:, low - start : low - start + inside.shape[1]] = inside
    return out


def _resample(x: NDArray[Any], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means of rows between edges, which may lie within samples."""
    running = np.concatenate([np.zeros((len(x), 1)), np.cumsum(x, axis=1, dtype=np.float64)], axis=1)
    whole = np.minimum(edges.astype(np.int64), x.shape[1] - 1)
    at = running[:, whole] + (edges - whole) * x[:, whole]
    return np.diff(at, axis=1) / np.diff(edges)


def _shrink(x: NDArray[Any], nchan: int) -> NDArray[np.float64]:
    """At most `SIDE` rows."""
    if nchan <= SIDE:
        return np.asarray(x, np.float64)
    return _resample(np.asarray(x, np.float64).T, np.linspace(0, nchan, SIDE + 1)).T


def _level(x: NDArray[np.float64]) -> NDArray[np.float32]:
    return (x - np.median(x, axis=1, keepdims=True)).astype(np.float32)


def _sigma(x: NDArray[np.float64]) -> NDArray[np.float32]:
    """Rows in sigma over their median."""
    low, middle, high = np.percentile(x, [25, 50, 75], axis=1, keepdims=True)
    spread = (high - low) / 1.349
    return np.where(spread > 0, (x - middle) / np.where(spread > 0, spread, 1), 0).astype(np.float32)
