"""The data around a candidate: dynamic spectra, profile, bow tie; HDF5 files in the layout of `your` and FETCH."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.files import hdf5_file, save_figure, written
from skysieve.core.memory import available_host_memory, parse_budget
from skysieve.core.result import Result
from skysieve.dedispersion.api import dedisperse
from skysieve.dedispersion.clean.masks import Mask, check_mask
from skysieve.dedispersion.data.delays import delay_seconds, sample_delays
from skysieve.dedispersion.data.filterbank import Filterbank, Paths, opened
from skysieve.dedispersion.data.observation import DM_CONSTANT, Observation, in_unit
from skysieve.dedispersion.result import load_fields, save_fields

if TYPE_CHECKING:
    from astropy.table import Table
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from .candidates import Candidates

__all__ = ["Cutout", "cutout"]

SLICE = 2**22
"""Samples x channels that are read at a time."""
PART, PARTS = 16, 64
"""Medians are taken from ``PARTS`` pieces of ``PART`` samples."""
SIDE = 256
"""Samples, channels and DMs of the images; the size that FETCH expects."""


@dataclass(frozen=True, repr=False, eq=False)
class Cutout(Result):
    """The data around one candidate.

    Attributes
    ----------
    raw, dedispersed : numpy.ndarray of float32, shape (channels, samples)
        Dynamic spectra, each channel less its median; 256 x 256 at most.
    bowtie : numpy.ndarray of float32, shape (256, samples)
        De-dispersed series at DMs from 0 to twice that of the candidate, in sigma.
    profile : numpy.ndarray of float32
        The series at the DM of the candidate, in sigma.
    times : numpy.ndarray
        Seconds from the candidate for the columns of ``dedispersed``, ``bowtie`` and ``profile``.
    raw_times : numpy.ndarray
        Seconds from the candidate for the columns of ``raw``, which spans the delay across the band.
    freqs, dms : numpy.ndarray
        Frequencies of the rows of the spectra (MHz, falling), and DMs of those of ``bowtie`` (pc / cm^3).
    snr, dm, time, width : float
        Of the candidate.
    observation : Observation
    name : str
    dm_constant : float
        MHz^2 s cm^3 / pc.
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
    dm_constant: float

    def __repr__(self) -> str:
        known = f"S/N {self.snr:.1f}, " if np.isfinite(self.snr) else ""
        return f"<Cutout {known}DM {self.dm:g} at {self.time:g} s, width {self.width:g} s>"

    def to_table(self) -> Table:
        """The profile: a row for each sample, with its time from the candidate and its value in sigma."""
        from astropy.table import Table

        facts = {
            "dm": self.dm,
            "time": self.time,
            "width": self.width,
            "snr": self.snr,
            "dm_constant": self.dm_constant,
        }
        return Table({"time": self.times, "profile": self.profile}, units={"time": "s"}, meta=facts)

    def plot(self, **options: Any) -> Figure:
        """Profile, de-dispersed and raw dynamic spectrum, bow tie.

        Parameters
        ----------
        **options
            Options of `matplotlib.figure.Figure`.
        """
        from .plot import cutout_figure

        return cutout_figure(self, **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the cut-out to an ``.npz`` file that `load` reads."""
        save_fields(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Cutout:
        """Read a cut-out that `save` wrote.

        Raises
        ------
        ValueError
            The file holds something else.
        """
        return cls(**load_fields(cls, path, {"observation": Observation}))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write HDF5: ``data_freq_time`` (time, frequency), ``data_dm_time`` (DM, time), and the attributes of `your`.

        Both are 256 x 256, as FETCH expects; fewer channels are repeated.
        """
        with written(path) as part, hdf5_file(part) as file:
            o = self.observation
            facts = {
                "cand_id": self.name, "tcand": self.time, "dm": self.dm, "dm_opt": -1.0, "snr": self.snr,
                "snr_opt": -1.0, "width": max(1, round(self.width / o.tsamp)), "label": -1, "nchans": o.nchan,
                "tsamp": o.tsamp, "fch1": o.top, "foff": o.foff, "source_name": o.source, "tstart": o.tstart,
                "native_tsamp": o.tsamp, "native_nchans": o.nchan, "native_foff": o.foff, "bw": -o.band,
                "center_freq": o.centre, "nbits": o.nbits, "basename": self.name, "dm_constant": self.dm_constant,
            }  # fmt: skip
            for key, value in facts.items():
                file.attrs[key] = value
            rows = self.dedispersed[np.arange(SIDE) * len(self.dedispersed) // SIDE]
            spectrum = file.create_dataset("data_freq_time", data=rows.T, compression="gzip")
            spectrum.dims[0].label, spectrum.dims[1].label = "time", "frequency"
            bowtie = file.create_dataset("data_dm_time", data=self.bowtie, compression="gzip")
            bowtie.dims[0].label, bowtie.dims[1].label = "dm", "time"


def cutout(
    data: Filterbank | Paths, *, dm: float, time: float, width: float, snr: float = float("nan"),
    dm_constant: float = DM_CONSTANT, mask: Mask | None = None, memory: str | float | None = None,
) -> Cutout:  # fmt: skip
    """The data around one pulse.

    Parameters
    ----------
    data : Filterbank, path or sequence of paths
    dm, time, width : float
        pc / cm^3; seconds from the start of the data to its arrival at the top of the band; seconds.  They may be
        Quantities.
    snr : float, optional
        S/N, for the label.
    dm_constant : float
    mask : Mask, optional
    memory : str or float, optional
        As for `dedisperse`; any delay across the band fits.

    Returns
    -------
    Cutout
        Time is binned to half the width.  Samples that are masked, beyond the data or not finite are replaced by the
        median of their channel.

    Examples
    --------
    >>> from skysieve.dedispersion import fake
    >>> fb = fake(nchan=64, duration=3, tsamp=1e-3, fch1=1500, foff=-4, dm=200, times=[1.5], width=4e-3, snr=30)
    >>> c = cutout(fb, dm=200, time=1.5, width=4e-3)
    >>> c.dedispersed.shape, c.bowtie.shape, bool(abs(c.times[c.profile.argmax()]) < 4e-3)
    ((64, 256), (256, 256), True)
    """
    dm, time, width = in_unit("dm", dm, "pc / cm3"), in_unit("time", time, "s"), in_unit("width", width, "s")
    if not (np.isfinite(dm) and dm >= 0):
        raise ValueError(f"dm={dm!r}: expected a DM of at least 0")
    with opened(data) as fb:
        return _cutout(fb, dm, time, width, snr, dm_constant, mask, memory)


def _cutout(
    fb: Filterbank, dm: float, time: float, width: float, snr: float, dm_constant: float, mask: Mask | None,
    memory: str | float | None,
) -> Cutout:  # fmt: skip
    if not 0 <= time <= fb.duration:
        raise ValueError(f"time={time!r}: the data last {fb.duration:g} s")
    if not (np.isfinite(width) and width > 0):
        raise ValueError(f"width={width!r}: expected seconds, above 0")
    if width > fb.duration:
        raise ValueError(f"width={width!r}: the data last {fb.duration:g} s")
    tsamp = fb.tsamp
    b = max(1, int(width / tsamp) // 2)
    half = SIDE * b // 2
    dms = np.linspace(0, 2 * dm, SIDE) if dm > 0 else np.linspace(0, 1, SIDE)
    late = sample_delays(fb.freqs, dms, tsamp, "top", dm_constant).max(axis=1)
    centre = round(time / tsamp)
    n = 2 * half
    delays = sample_delays(fb.freqs, np.array([dm]), tsamp, "top", dm_constant)[0]
    span = n + int(delays.max())
    budget = parse_budget(memory, available_host_memory())
    from . import cpu_cutouts

    window = WindowReader(fb, mask, centre - half, n + int(late.max()))
    step = max(64, min(SLICE, budget // 32) // fb.nchan)
    count = min(SIDE, span)
    lined, raw = np.zeros((SIDE, fb.nchan)), np.zeros((count, fb.nchan))
    for at in range(0, span, step):
        cpu_cutouts.add_slice(window.read(at, min(step, span - at)), at, delays.astype(np.int64), b, lined, span, raw)
    edges = np.linspace(0, span, count + 1)
    bowtie = _bowtie(window, dms, late, n, b, dm_constant, budget)
    times = ((np.arange(SIDE, dtype=np.float64) + 0.5) * b - half) * tsamp + centre * tsamp - time
    return Cutout(
        _level(_shrink(raw.T * (count / span), fb.nchan)), _level(_shrink(lined.T, fb.nchan)), _sigma(bowtie),
        _sigma(lined.sum(axis=1)[None])[0], times,
        ((edges[:-1] + edges[1:]) / 2 - half) * tsamp + centre * tsamp - time,
        _shrink(fb.freqs[:, None], fb.nchan)[:, 0], dms, float(snr), float(dm), float(time), float(width),
        fb.observation, f"cand_tstart_{fb.observation.tstart:.12f}_tcand_{time:.7f}_dm_{dm:.5f}_snr_{snr:.5f}",
        float(dm_constant),
    )  # fmt: skip


def write_cutouts(
    data: Filterbank | Paths, found: Candidates, folder: str | os.PathLike[str], *, most: int = 20, plots: bool = True,
    mask: Mask | None = None, memory: str | float | None = None,
) -> list[Path]:  # fmt: skip
    """Write cut-outs of the loudest candidates to a folder, as ``.h5`` and ``.png``; return the paths of the files."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = []
    with opened(data) as fb:
        for i in range(min(most, len(found))):
            late = delay_seconds(found.observation.top, float(found.dm[i]), found.ref_freq, found.dm_constant)
            top = float(found.time[i]) + float(late)
            one = cutout(
                fb, dm=float(found.dm[i]), time=min(max(top, 0.0), fb.duration), width=float(found.width[i]),
                snr=float(found.snr[i]), dm_constant=found.dm_constant, mask=mask, memory=memory,
            )  # fmt: skip
            paths.append(target / f"{one.name}.h5")
            one.write(paths[-1])
            if plots:
                paths.append(target / f"{one.name}.png")
                save_figure(one.plot(), paths[-1], dpi=110)
    return paths


class WindowReader:
    """A range of samples of a filterbank as float32.

    The range may reach beyond the ends of the data.  Missing samples take the median of their channel.
    """

    def __init__(self, fb: Filterbank, mask: Mask | None, start: int, nsamp: int) -> None:
        if mask is not None:
            check_mask(mask, fb)
        self.fb, self.mask, self.start, self.nsamp, self.maximum = fb, mask, start, nsamp, 0
        self.observation, self.order, self.dtype = fb.observation, np.arange(fb.nchan), np.dtype(np.float32)
        self._middle = self._medians()

    def close(self) -> None:
        """Does nothing: the filterbank stays open."""

    def read(self, start: int, count: int) -> NDArray[np.float32]:
        """Samples ``start : start + count`` of the stretch, shape (count, nchan)."""
        out = np.empty((count, self.fb.nchan), np.float32)
        out[:] = self._middle
        at = self.start + start
        low, high = max(0, at), min(self.fb.nsamp, at + count)
        if high > low:
            inside = self._good(low, high - low)
            out[low - at : high - at] = np.where(np.isfinite(inside), inside, self._middle)
        return out

    def _good(self, start: int, count: int) -> NDArray[np.float32]:
        """Samples of the filterbank, NaN where masked: shape (count, nchan)."""
        x = self.fb.block(start, count).T.astype(np.float32)
        if self.mask is not None:
            x[self.mask.at(np.arange(start, start + count) // self.mask.block).T] = np.nan
        return x

    def _medians(self) -> NDArray[np.float32]:
        """Median of each channel, from about 1024 evenly spread samples; 0 for a channel without good samples."""
        low, high = max(0, self.start), min(self.fb.nsamp, self.start + self.nsamp)
        step = max(PART, (high - low) // PARTS)
        parts = [self._good(at, min(PART, high - at)) for at in range(low, high, step)]
        values = np.concatenate(parts) if parts else np.empty((0, self.fb.nchan), np.float32)
        found = np.zeros(self.fb.nchan, np.float32)
        good = np.isfinite(values)
        whole = good.all(axis=0) & (len(values) > 0)
        if whole.any():
            lines = np.ascontiguousarray(values[:, whole].T)
            found[whole] = np.median(lines, axis=1, overwrite_input=True)
        for c in np.flatnonzero(good.any(axis=0) & ~whole):
            found[c] = np.median(values[good[:, c], c])
        return found


def _bowtie(
    window: WindowReader, dms: NDArray[np.float64], late: NDArray[np.int32], n: int, b: int, dm_constant: float,
    budget: int,
) -> NDArray[np.float64]:  # fmt: skip
    """The first ``n`` samples of the series at some DMs, binned by ``b``; as many DMs at a time as fit.

    A single channel has the same series at all DMs.
    """
    out = np.empty((len(dms), n // b))
    if window.fb.nchan == 1:
        out[:] = window.read(0, n).reshape(n // b, b).sum(axis=1, dtype=np.float64)
        return out
    each = max(1, min(len(dms), budget // 2 // (12 * n)))
    for m in range(0, len(dms), each):
        some = slice(m, m + each)
        window.nsamp = n + int(late[some].max())
        series = dedisperse(Filterbank([window]), dms[some], dm_constant=dm_constant, memory=max(1, budget // 2)).data
        out[some] = series.reshape(len(series), n // b, b).sum(axis=2, dtype=np.float64)
    return out


def _resample(x: NDArray[Any], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means of rows between edges, which may be fractions of samples."""
    running = np.concatenate([np.zeros((len(x), 1)), np.cumsum(x, axis=1, dtype=np.float64)], axis=1)
    whole = np.minimum(edges.astype(np.int64), x.shape[1] - 1)
    at = running[:, whole] + (edges - whole) * x[:, whole]
    return np.diff(at, axis=1) / np.diff(edges)


def _shrink(x: NDArray[Any], nchan: int) -> NDArray[np.float64]:
    """`x` with at most `SIDE` rows."""
    if nchan <= SIDE:
        return np.asarray(x, np.float64)
    return _resample(np.asarray(x, np.float64).T, np.linspace(0, nchan, SIDE + 1)).T


def _level(x: NDArray[np.float64]) -> NDArray[np.float32]:
    return (x - np.median(x, axis=1, keepdims=True)).astype(np.float32)


def _sigma(x: NDArray[np.float64]) -> NDArray[np.float32]:
    """Rows relative to their median, in sigma."""
    low, middle, high = np.percentile(x, [25, 50, 75], axis=1, keepdims=True)
    spread = (high - low) / 1.349
    return np.where(spread > 0, (x - middle) / np.where(spread > 0, spread, 1), 0).astype(np.float32)
