"""Radio interference: masks from statistics of channels, PRESTO's masks, the zero-DM filter."""

from __future__ import annotations

import os
import struct
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skysieve.core.files import written
from skysieve.dedispersion.data.filterbank import ChangedReader, Filterbank, Paths, as_filterbank, opened
from skysieve.dedispersion.data.sigproc import BadFile

from .masks import SLICE, Mask, check_mask
from .repair import fill_dropped

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["channel_statistics", "read_rfifind", "rfi_mask", "write_rfifind", "zero_dm"]

Statistic = Literal["mean", "std", "kurtosis"]
STATISTICS = {"mean": "mean", "std": "standard deviation", "kurtosis": "spectral kurtosis"}
"""Statistics of channels by which interference is found: names of `Statistic`."""


def channel_statistics(data: Filterbank | Paths, block: int) -> dict[str, NDArray[np.float64]]:
    """Mean, standard deviation and spectral kurtosis of every channel in every block.

    Parameters
    ----------
    data : Filterbank, path or sequence of paths
    block : int
        Samples of a block; a last block of less than half of that is left out (unless it is the only one).

    Returns
    -------
    dict
        "mean", "std", "kurtosis", each of shape (nchan, nblocks).  Spectral kurtosis is Nita & Gary's (2010, eq. 8)
        estimator ``(M d + 1) / (M - 1) (M S2 / S1^2 - 1)`` with ``d = 1 / median(var / mean^2)`` of the channel, so
        that it is 1 for stationary noise; ``M`` is ``block`` also for a shorter last block.

    Examples
    --------
    >>> from skysieve.dedispersion import fake
    >>> fb = fake(nchan=4, duration=4, tsamp=1e-3, fch1=1500, foff=-1, period=None)
    >>> channel_statistics(fb, 1000)["mean"].round().tolist()[0]
    [96.0, 96.0, 96.0, 96.0]
    """
    if isinstance(block, bool) or not isinstance(block, (int, np.integer)) or block < 2:
        raise ValueError(f"block={block!r}: expected a whole number of at least 2 samples")
    with opened(data) as fb:
        return _statistics(fb, block)


def _statistics(fb: Filterbank, block: int) -> dict[str, NDArray[np.float64]]:
    count = max(1, fb.nsamp // block + (2 * (fb.nsamp % block) >= block))
    mean, std = np.empty((fb.nchan, count)), np.empty((fb.nchan, count))
    for i in range(count):
        mean[:, i], std[:, i] = _moments(fb, i * block, min(block, fb.nsamp - i * block))
    m = min(block, fb.nsamp)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (std / mean) ** 2
        d = 1 / _median(np.where(ratio > 0, ratio, np.nan))[:, None]
        kurtosis = (m * d + 1) / (m - 1) * ratio
    return {"mean": mean, "std": std, "kurtosis": kurtosis}


def _median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Medians of rows, ignoring NaN; NaN for a row of NaN."""
    out = np.full(len(values), np.nan)
    some = ~np.isnan(values).all(axis=1)
    if some.any():
        out[some] = np.nanmedian(values[some], axis=1)
    return out


def _moments(fb: Filterbank, start: int, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of each channel, a slice of bounded size at a time."""
    from skysieve.dedispersion.cpu.load import add_moments

    origin = fb.block(start, 1)[:, 0].astype(np.float64)
    total, square = np.zeros(fb.nchan), np.zeros(fb.nchan)
    step = max(64, SLICE // fb.nchan)
    for at in range(start, start + count, step):
        rows = np.ascontiguousarray(fb.block(at, min(step, start + count - at)).T)
        add_moments(rows, origin, total, square)
    with np.errstate(invalid="ignore"):
        off = total / count
        return origin + off, np.sqrt(np.maximum(square / count - off * off, 0))


def rfi_mask(
    data: Filterbank | Paths,
    *,
    block: int | None = None,
    sigma: float = 5.0,
    tests: Sequence[Statistic] = ("mean", "std", "kurtosis"),
    most: float = 0.3,
) -> Mask:
    """A mask of interference, found from statistics of channels and blocks.

    A cell is masked if its mean, standard deviation or spectral kurtosis is more than ``sigma`` from the median of its
    channel over time, in units of the larger of the channel's own scatter and the median scatter of all channels.  A
    channel is masked if its median standard deviation or kurtosis differs from those of the 32 channels on either side.
    A channel or a block of which more than ``most`` is masked is masked wholly.  Constant channels are masked, as are
    cells of which more than half is dropped data (`find_dropped`); dropped samples do not enter the statistics.
    Kurtosis is not tested in channels whose mean is within 10 standard errors of 0 (floats or signed data less their
    mean).

    Parameters
    ----------
    data : Filterbank, path or sequence of paths
    block : int, optional
        Samples of a block; about half a second by default.
    sigma : float
        Deviation above which a cell is masked; see above for its unit.
    tests : sequence of {"mean", "std", "kurtosis"}
        Statistics of cells that are tested.
    most : float
        Fraction of masked cells, between 0 and 1, above which all of a channel or of a block is masked.

    Returns
    -------
    Mask

    Examples
    --------
    >>> from skysieve.dedispersion import fake
    >>> fb = fake(nchan=64, duration=4, tsamp=1e-3, fch1=1500, foff=-1, period=None)
    >>> rfi_mask(fb).weight > 0.97
    True
    """
    if not (np.isfinite(sigma) and sigma > 0):
        raise ValueError(f"sigma={sigma!r}: expected a number above 0")
    if not 0 < most <= 1:
        raise ValueError(f"most={most!r}: expected a fraction above 0, at most 1")
    unknown = [t for t in tests if t not in STATISTICS]
    if unknown or not tests:
        raise ValueError(f"tests={tests!r}: expected some of {', '.join(map(repr, STATISTICS))}")
    with opened(data) as fb:
        size = max(16, round(0.5 / fb.tsamp)) if block is None else block
        return _mask(fill_dropped(fb), size, sigma, tests, most)


def _mask(fb: Filterbank, size: int, sigma: float, tests: Sequence[str], most: float) -> Mask:
    stats = channel_statistics(fb, min(size, max(2, fb.nsamp)))
    stats["kurtosis"][~_powers(stats, min(size, fb.nsamp))] = 1.0
    dead = ~(np.nan_to_num(stats["std"]).max(axis=1) > 0)
    cells = ~np.isfinite(stats["mean"]) | ~np.isfinite(stats["std"])
    live = ~dead
    for name in tests:
        v = stats[name]
        if v.shape[1] >= 4:
            off = v - _median(v)[:, None]
            scatter = 1.4826 * _median(np.abs(off))[:, None]
            typical = np.nanmedian(scatter[live]) if live.any() else 0.0
            cells |= np.abs(off) > sigma * np.maximum(scatter, typical)
    for typical in (_median(stats["std"]), _median(stats["kurtosis"])):
        cells[_stands_out(typical, live, sigma)] = True
    cells[_dropped(fb, size, cells.shape[1]) > size / 2] = True
    cells[dead] = True
    cells[cells.mean(axis=1) > most] = True
    kept = ~cells.all(axis=1)
    if kept.any():
        cells[:, cells[kept].mean(axis=0) > most] = True
    return Mask(cells, size)


def _dropped(fb: Filterbank, size: int, count: int) -> NDArray[np.int64]:
    """Dropped samples of each channel in each block."""
    found = np.zeros((fb.nchan, count), np.int64)
    starts = np.arange(count) * size
    for first, last, low, high in fb.lost.tolist():
        found[low:high] += np.clip(np.minimum(last, starts + size) - np.maximum(first, starts), 0, None)
    return found


def _powers(stats: dict[str, NDArray[np.float64]], samples: int) -> NDArray[np.bool_]:
    """Channels whose values are powers: the mean of ``samples`` of them differs from 0 by many standard errors."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (stats["mean"] / stats["std"]) ** 2 * samples
    live: NDArray[np.bool_] = np.median(np.where(np.isnan(ratio), np.inf, ratio), axis=1) > 100
    return live


def _stands_out(values: NDArray[np.float64], live: NDArray[np.bool_], sigma: float) -> NDArray[np.bool_]:
    """Channels whose value differs from the running median of 65 channels that are not constant."""
    where = np.flatnonzero(live & np.isfinite(values))
    out = np.zeros(len(values), bool)
    if len(where) < 8:
        return out
    from scipy.ndimage import median_filter

    v = values[where]
    off = v - median_filter(v, size=min(65, len(v) // 2 * 2 - 1), mode="nearest")
    scatter = 1.4826 * float(np.median(np.abs(off)))
    out[where] = np.abs(off) > sigma * max(scatter, 1e-3 * float(np.median(np.abs(v))))
    return out


def read_rfifind(path: str | os.PathLike[str], data: Filterbank | Paths | None = None) -> Mask:
    """The mask that PRESTO's ``rfifind`` wrote (``*.mask``).

    Parameters
    ----------
    path : path
    data : Filterbank, path or sequence of paths, optional
        The data that the mask is for: the number of channels must agree.  Intervals past the end of the data are left
        out.  If the data are longer than the mask by more than an interval, there is a warning, and the last interval
        is used for the rest of the data.  There is also a warning if the mask has other frequencies or another start.

    Returns
    -------
    Mask
        Rows in falling order of frequency (PRESTO counts channels upwards).

    Raises
    ------
    ValueError
        (`BadFile`) The file is not such a mask, or was made for another number of channels.

    Examples
    --------
    >>> import tempfile
    >>> from skysieve.dedispersion import fake
    >>> fb = fake(nchan=8, duration=4, tsamp=1e-3, fch1=1500, foff=-4, period=None)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_rfifind(Mask.channels(8, [0, 5]), f"{folder}/a.mask", fb)
    ...     mask = read_rfifind(f"{folder}/a.mask", fb)
    >>> np.flatnonzero(mask.cells.all(axis=1)).tolist()
    [0, 5]
    """
    body = Path(path).read_bytes()
    at = 0

    def take(form: str, count: int, what: str) -> tuple[Any, ...]:
        nonlocal at
        size = struct.calcsize(f"<{count}{form}")
        if count < 0 or at + size > len(body):
            raise BadFile(f"{path}: is not an rfifind mask, or is cut off: it is too short for {what}")
        at += size
        return struct.unpack_from(f"<{count}{form}", body, at - size)

    _, _, start, length, lowest, step = take("d", 6, "its header")
    nchan, nint, points = take("i", 3, "its header")
    if not (0 < nchan < 2**22 and 0 < nint < 2**26 and points > 0):
        raise BadFile(f"{path}: is not an rfifind mask: {nchan} channels, {nint} intervals of {points} samples")
    cells = np.zeros((nchan, nint), bool)
    channels = take("i", take("i", 1, "channels")[0], "channels")
    intervals = take("i", take("i", 1, "intervals")[0], "intervals")
    counts = take("i", nint, "counts")
    for i, count in enumerate(counts):
        if count == nchan:
            cells[:, i] = True
        elif count:
            cells[_within(take("i", count, "cells"), nchan, path), i] = True
    cells[_within(channels, nchan, path)] = True
    cells[:, _within(intervals, nint, path)] = True
    if data is not None:
        with opened(data) as fb:
            cells = _fitted(cells, points, fb, path)
            _check_observation(fb, start, length, lowest, step, path)
    return Mask(cells[::-1], points)


def write_rfifind(mask: Mask, path: str | os.PathLike[str], data: Filterbank | Paths) -> None:
    """Write a mask as PRESTO's ``rfifind`` does (``*.mask``); `read_rfifind` and PRESTO read it.

    Parameters
    ----------
    mask : Mask
    path : path
    data : Filterbank, path or sequence of paths
        The data that the mask is for: they give the frequencies, the times and the number of intervals.

    Raises
    ------
    ValueError
        The mask is for another number of channels.

    Examples
    --------
    >>> import tempfile
    >>> from skysieve.dedispersion import Mask, fake
    >>> fb = fake(nchan=8, duration=4, tsamp=1e-3, fch1=1500, foff=-4, period=None)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_rfifind(Mask.channels(8, [2]), f"{folder}/a.mask", fb)
    ...     read_rfifind(f"{folder}/a.mask", fb).cells[:, 0].tolist()
    [False, False, True, False, False, False, False, False]
    """
    with opened(data) as fb:
        check_mask(mask, fb)
        points = min(mask.block, fb.nsamp)
        cells = mask.at(np.arange(-(-fb.nsamp // points)))[::-1]
        lowest, tsamp, start = float(fb.freqs[-1]), fb.tsamp, fb.observation.tstart
        step = abs(fb.observation.foff)
    nchan, nint = cells.shape
    whole = np.flatnonzero(cells.all(axis=1))
    every = np.flatnonzero(cells.all(axis=0))
    with written(path) as part, open(part, "wb") as file:
        file.write(struct.pack("<6d3i", 0.0, 0.0, start, points * tsamp, lowest, step, nchan, nint, points))
        for numbers in (whole, every):
            file.write(struct.pack("<i", len(numbers)) + numbers.astype("<i4").tobytes())
        file.write(cells.sum(axis=0).astype("<i4").tobytes())
        for i in range(nint):
            if not cells[:, i].all():
                file.write(np.flatnonzero(cells[:, i]).astype("<i4").tobytes())


def _fitted(
    cells: NDArray[np.bool_], points: int, fb: Filterbank, path: str | os.PathLike[str]
) -> NDArray[np.bool_]:  # fmt: skip
    """The cells of an rfifind mask within the data; warns if the mask and the data differ in length."""
    nchan, nint = cells.shape
    if fb.nchan != nchan:
        raise BadFile(f"{path}: the mask has {nchan} channels, the data have {fb.nchan}")
    wanted = -(-fb.nsamp // points)
    if abs(wanted - nint) > 1:
        warnings.warn(
            f"{path}: the mask has {nint} intervals of {points} samples, the data have {fb.nsamp} samples: is it the "
            "mask of this file?",
            stacklevel=3,
        )
    return cells[:, :wanted]


def _check_observation(
    fb: Filterbank, start: float, length: float, lowest: float, step: float, path: str | os.PathLike[str]
) -> None:
    """Warn if the header of an rfifind mask names another observation than the data.

    ``start`` is an MJD, ``length`` that of an interval in seconds; ``lowest`` and ``step`` are frequencies in MHz.  A 0
    is not filled in.
    """
    obs, other = fb.observation, list[str]()
    if lowest and abs(lowest - obs.freqs.min()) > abs(obs.foff) / 2:
        other.append(f"its lowest channel is at {lowest:.6g} MHz, that of the data at {obs.freqs.min():.6g}")
    if step and abs(abs(step) - abs(obs.foff)) * obs.nchan > abs(obs.foff) / 2:
        other.append(f"its channels are {abs(step):.6g} MHz wide, those of the data {abs(obs.foff):.6g}")
    if start and obs.tstart and abs(start - obs.tstart) * 86400 > length:
        other.append(f"it begins at MJD {start:.6f}, the data at {obs.tstart:.6f}")
    if other:
        warnings.warn(f"{path}: may be the mask of other data: {', and '.join(other)}", stacklevel=3)


def _within(numbers: tuple[int, ...], count: int, path: str | os.PathLike[str]) -> NDArray[np.int64]:
    found = np.array(numbers, np.int64)
    wrong = found[(found < 0) | (found >= count)]
    if wrong.size:
        raise BadFile(f"{path}: is not an rfifind mask: number {wrong[0]}, expected at least 0 and less than {count}")
    return found


class ZeroDmReader(ChangedReader):
    """A filterbank less the mean over its channels, sample by sample; the mean leaves out the channels ``ignore``."""

    def __init__(self, fb: Filterbank, ignore: ArrayLike = ()) -> None:
        super().__init__(fb)
        self.real = fb.dtype.kind == "f"
        top = fb.maximum if fb.dtype.kind == "u" and fb.maximum else 256**fb.dtype.itemsize - 1
        self.top = top
        self.scale = max(1, 255 // (2 * top)) if not self.real else 1
        wide = 2 * top * self.scale > 255 and fb.dtype.itemsize > 1
        self.dtype = np.dtype(np.float32 if self.real else np.uint16 if wide else np.uint8)
        self.middle = 32768 if wide else 128
        self.maximum = 0 if self.real else 65535 if wide else 255
        self.used = ~Mask.channels(fb.nchan, ignore).cells[:, 0]
        if not self.used.any():
            raise ValueError(f"ignore has all {fb.nchan} channels: expected at least one channel that enters the mean")

    def read(self, start: int, count: int) -> NDArray[Any]:
        """Samples ``start : start + count``, shape (count, nchan)."""
        x = self.fb.block(start, count).T
        value = x - self.means(x)[:, None]
        if self.real:
            return value.astype(np.float32)
        return np.clip(np.rint(self.scale * value) + self.middle, 0, self.maximum).astype(self.dtype)

    def means(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """Mean over the channels of each sample, without values that are not finite; ``x`` is samples x channels."""
        if not self.used.all():
            x = x[:, self.used]
        if not self.real:
            found: NDArray[np.float64] = x.mean(axis=1, dtype=np.float64)
            return found
        good = np.isfinite(x)
        total: NDArray[np.float64] = np.where(good, x, 0).sum(axis=1, dtype=np.float64)
        return total / np.maximum(good.sum(axis=1), 1)


def zero_dm(data: Filterbank | Paths, *, ignore: ArrayLike = ()) -> Filterbank:
    """The zero-DM filter: each sample less its mean over the channels (Eatough et al. 2009).

    Integer data stay integers, and are centred on the middle of the range of 8 bits (16 bits for wider data).  Samples
    of few bits are multiplied first, so that the mean is not rounded to whole counts; 8-bit samples farther than 127
    from the mean are clipped.

    Parameters
    ----------
    data : Filterbank, path or sequence of paths
        The data are not changed.  Float samples that are not finite stay as they are, and do not enter the mean.
    ignore : sequence of int, optional
        Numbers of channels (0 has the highest frequency) that do not enter the mean.  Name the channels that a mask
        leaves out of the search: the mean would carry their interference into all other channels.

    Returns
    -------
    Filterbank
        The means are subtracted when samples are read.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[5, 9], [7, 11]], np.uint8)
    >>> zero_dm(Filterbank.from_array(x, fch1=1500, foff=-1, tsamp=1e-3)).read().tolist()
    [[127, 127], [129, 129]]
    """
    return Filterbank([ZeroDmReader(as_filterbank(data), ignore)])
