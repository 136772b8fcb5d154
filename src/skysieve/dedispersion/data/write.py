"""Writers of filterbanks and time series.  A file appears under its name only when it is complete."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.arrays import to_host
from skysieve.core.checks import check_path
from skysieve.core.files import written

from .filterbank import Filterbank, Paths, opened
from .observation import DM_CONSTANT, SAMPLE_BITS, Observation
from .presto import write_inf
from .sigproc import TIME_SERIES, header_bytes, pack

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["write_dat", "write_fil", "write_tim"]

BLOCK_BYTES = 2**24


def write_fil(path: str | os.PathLike[str], data: Filterbank | Paths, *, nbits: int | None = None) -> None:
    """Write data as a SIGPROC ``.fil``, highest frequency first, a block at a time.

    Parameters
    ----------
    path : path
        The file to write.
    data : Filterbank, path or sequence of paths
        Signed integers keep their sign.
    nbits : {1, 2, 4, 8, 16, 32}, optional
        Bits of a sample in the file; by default those of the data, or more if a spectrum would not fill whole bytes.
        Values are not scaled.

    Raises
    ------
    TypeError
        `path` is no path, or `data` is something else.
    ValueError
        Values do not fit, or ``nbits`` is none of these.

    Examples
    --------
    >>> import numpy as np
    >>> fb = Filterbank.from_array(np.eye(4, 8, dtype=np.uint8), fch1=1500, foff=-1, tsamp=1e-3)
    >>> write_fil("eye.fil", fb, nbits=2)
    >>> bool((Filterbank.open("eye.fil").read() == fb.read()).all())
    True
    """
    check_path(path)
    with opened(data) as fb:
        _write_fil(path, fb, nbits)


def _write_fil(path: str | os.PathLike[str], fb: Filterbank, nbits: int | None) -> None:
    kind = fb.dtype.kind
    bits = fb.observation.nbits if nbits is None else nbits
    if nbits is None and 8 * fb.dtype.itemsize != bits:
        narrow = kind == "u" and fb.dtype.itemsize == 1
        bits = min(b for b in SAMPLE_BITS if b >= bits and b * fb.nchan % 8 == 0) if narrow else 8 * fb.dtype.itemsize
    if bits not in SAMPLE_BITS:
        raise ValueError(f"nbits={nbits}: expected one of {', '.join(map(str, SAMPLE_BITS))}")
    if bits * fb.nchan % 8:
        raise ValueError(f"nbits={bits}: {fb.nchan} channels of this size do not fill whole bytes")
    if kind == "f" and bits != 32:
        raise ValueError(f"nbits={bits}: floating-point data need 32 (or requantise them first)")
    signed = kind == "i" and bits in (8, 16)
    if kind == "i" and bits < 8:
        raise ValueError(f"nbits={bits}: signed data need 8, 16 or 32")
    stored: Any = {8: "i1" if signed else "u1", 16: "<i2" if signed else "<u2", 32: "<f4"}.get(bits, "u1")
    step = max(1, BLOCK_BYTES // (fb.nchan * 4))
    with written(path) as part, open(part, "wb") as file:
        file.write(header_bytes(fb.observation, bits, signed))
        for _, block in fb.blocks(step):
            rows = np.ascontiguousarray(block.T)
            if kind == "u" and bits < 8 * fb.dtype.itemsize and int(rows.max()) >> bits:
                raise ValueError(f"nbits={bits}: the data reach {int(rows.max())}, which needs more bits")
            if kind == "i" and bits == 8 and not (rows.min() >= -128 and rows.max() <= 127):
                raise ValueError(f"nbits=8: the data reach from {rows.min()} to {rows.max()}; 8 bits hold -128 to 127")
            file.write(pack(rows.astype(stored, copy=False), bits).tobytes())


def write_tim(
    path: str | os.PathLike[str],
    series: Any,
    observation: Observation,
    *,
    dm: float,
    tsamp: float | None = None,
    dm_constant: float = DM_CONSTANT,
    ref_freq: float | None = None,
) -> None:
    """Write a de-dispersed series as a SIGPROC ``.tim`` of 32-bit floats.

    Parameters
    ----------
    path : path
    series : array_like, shape (n,)
        Sums over the channels; integers are exact in float32 up to 2**24.
    observation : Observation
        The observation of the filterbank.
    dm : float
        pc / cm^3.
    tsamp : float, optional
        Sampling time of the series in seconds, if samples were added in time.
    dm_constant : float
        The constant that was used, MHz^2 s cm^3 / pc.  It is written to ``rawdatafile`` of the header, since SIGPROC
        has no key for it.
    ref_freq : float, optional
        MHz, if times are not those at the top of the band; also written to ``rawdatafile``.

    Examples
    --------
    >>> import numpy as np
    >>> fb = Filterbank.from_array(np.eye(4, 8, dtype=np.uint8), fch1=1500, foff=-1, tsamp=1e-3)
    >>> write_tim("sum.tim", fb.read().sum(axis=0), fb.observation, dm=0)
    >>> Filterbank.open("sum.tim").read().tolist()
    [[1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]]
    """
    check_path(path)
    obs = _series_observation(observation, dm, tsamp).replace(freqs=observation.freqs[:1])
    with written(path) as part, open(part, "wb") as file:
        file.write(header_bytes(obs, 32, signed=False, data_type=TIME_SERIES, note=delay_note(dm_constant, ref_freq)))
        file.write(_series(series).tobytes())


def write_dat(
    path: str | os.PathLike[str],
    series: Any,
    observation: Observation,
    *,
    dm: float,
    tsamp: float | None = None,
    dm_constant: float = DM_CONSTANT,
    ref_freq: float | None = None,
    gaps: Any = None,
) -> None:
    """Write a de-dispersed series as PRESTO's ``.dat`` and ``.inf``.

    Parameters
    ----------
    path : path
        The ``.dat``; the ``.inf`` has the same name.
    series, observation, dm, tsamp
        See `write_tim`.
    dm_constant : float
        The constant that was used, MHz^2 s cm^3 / pc; written to the notes.
    ref_freq : float, optional
        MHz, if times are not those at the top of the band; also written to the notes.
    gaps : array_like of int, shape (n, 2), optional
        Samples of the series without data, rising: first, and last + 1.  The ``.inf`` lists the stretches between gaps
        as on/off pairs.  PRESTO reads at most 39 pairs; if there are more, the shortest gaps are left out, with a
        warning.

    Examples
    --------
    >>> import numpy as np
    >>> fb = Filterbank.from_array(np.eye(4, 8, dtype=np.uint8), fch1=1500, foff=-1, tsamp=1e-3)
    >>> write_dat("sum.dat", fb.read().sum(axis=0), fb.observation, dm=0)
    >>> Filterbank.open("sum.dat").nsamp
    8
    """
    check_path(path)
    values = _series(series)
    target = Path(path).with_suffix(".dat")
    holes = _gaps(gaps, len(values))
    obs = _series_observation(observation, dm, tsamp)
    with written(target) as part, written(target.with_suffix(".inf")) as text:
        part.write_bytes(values.tobytes())
        write_inf(text, obs, len(values), delay_note(dm_constant, ref_freq), holes)
        body = text.read_text(encoding="utf-8")
        text.write_text(body.replace(text.with_suffix("").name, target.with_suffix("").name), encoding="utf-8")


def delay_note(dm_constant: float, ref_freq: float | None) -> str:
    """A note for files on the delays that were removed; short, since SIGPROC reads 80 characters.

    >>> delay_note(4149.0, None)
    'DM constant 4149.0 MHz^2 s cm^3 / pc'
    """
    times = "" if ref_freq is None else f", arrival times at {ref_freq:g} MHz"
    return f"DM constant {dm_constant!r} MHz^2 s cm^3 / pc{times}"


def _series(series: Any) -> NDArray[np.float32]:
    values = np.ascontiguousarray(to_host(series), "<f4")
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(f"series has shape {values.shape}, expected one dimension and at least one sample")
    return values


def _gaps(given: Any, n: int) -> NDArray[np.int64]:
    gaps = np.asarray(() if given is None else given)
    if gaps.size == 0:
        return np.empty((0, 2), np.int64)
    edges, shaped = gaps.ravel(), gaps.ndim == 2 and gaps.shape[1] == 2 and gaps.dtype.kind in "iu"
    if not shaped or edges[0] < 0 or edges[-1] > n or (np.diff(edges.astype(np.int64)) < 0).any():
        raise ValueError(f"gaps={given!r}: expected rising ranges of samples from 0 to {n}")
    return gaps[gaps[:, 0] < gaps[:, 1]].astype(np.int64)


def _series_observation(obs: Observation, dm: float, tsamp: float | None) -> Observation:
    extra = {"nchan": obs.nchan, "channel_width": abs(obs.foff), "low_channel": float(obs.freqs[-1]), **obs.extra}
    return obs.replace(
        dm=float(dm), tsamp=obs.tsamp if tsamp is None else float(tsamp), bandwidth=obs.band, extra=extra
    )
