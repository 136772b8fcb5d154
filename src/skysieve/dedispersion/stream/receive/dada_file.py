"""PSRDADA files: voltages or power with a header of text lines.

The header is HDR_SIZE bytes (4096 unless it says otherwise) of ``KEY value`` lines; samples follow in the order of
time, frequency, polarisation, real and imaginary part (psrdada.sourceforge.net).
"""

from __future__ import annotations

import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from skysieve.dedispersion.data.observation import epoch_of
from skysieve.dedispersion.data.sigproc import BadFile
from skysieve.dedispersion.stream.receive.packets import MOST_CHANNELS, POWER, VOLTAGE, Geometry, chunks_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEADER = 4096
LARGEST_HEADER = 2**20
LATEST_MJD = 1e7
REQUIRED = ("NBIT", "NCHAN", "NPOL", "NDIM", "TSAMP", "FREQ", "BW")


class DadaHeader:
    """The header of a PSRDADA file or ring.

    Parameters
    ----------
    text : bytes
        The header; everything after a zero byte is ignored.
    where : path or str
        Name of the source in error messages.

    Attributes
    ----------
    size : int
        Bytes of the header.
    nchan, npol, nbits : int
    complex : bool
        Whether the samples are voltages.
    tsamp : float
        Seconds.
    fch1, foff : float
        Centre of the first channel and step, MHz.
    tstart : float
        MJD of the first sample, OBS_OFFSET bytes after MJD_START (or UTC_START and PICOSECONDS); 0 if the header has
        neither.
    step : int
        Bytes of one sample of all channels.

    Raises
    ------
    ValueError
        (`BadFile`) A key is missing, or its value cannot be used.

    Examples
    --------
    >>> text = b"NBIT 8\\nNDIM 2\\nNPOL 1\\nNCHAN 4\\nTSAMP 0.5\\nFREQ 1400\\nBW -4\\nUTC_START 2023-02-25-12:00:00\\n"
    >>> head = DadaHeader(text, "a")
    >>> head.step, head.fch1, head.foff, head.tstart
    (8, 1401.5, -1.0, 60000.5)
    """

    def __init__(self, text: bytes, where: Path | str) -> None:
        keys = header_keys(text, where)
        missing = [k for k in REQUIRED if k not in keys]
        if missing:
            raise BadFile(f"{where}: the header lacks {', '.join(missing)}")
        try:
            self.size = whole(keys, "HDR_SIZE", HEADER)
            self.nbits, self.nchan, self.npol = (whole(keys, k) for k in ("NBIT", "NCHAN", "NPOL"))
            ndim, offset = whole(keys, "NDIM"), whole(keys, "OBS_OFFSET")
            self.tsamp, centre, band = number(keys, "TSAMP") * 1e-6, number(keys, "FREQ"), number(keys, "BW")
            self.tstart = start_of(keys)
        except (ValueError, OverflowError) as error:
            raise BadFile(f"{where}: {error}") from None
        if (
            ndim not in (1, 2)
            or self.npol not in (1, 2)
            or self.nbits not in (8, 32)
            or not 1 <= self.nchan <= MOST_CHANNELS
        ):
            raise BadFile(
                f"{where}: NDIM={ndim}, NPOL={self.npol}, NCHAN={self.nchan}, NBIT={self.nbits}; expected 1 or 2, "
                f"1 or 2, 1 to {MOST_CHANNELS}, 8 or 32"
            )
        finite = all(map(math.isfinite, (self.tsamp, centre, band, self.tstart)))
        if not (finite and self.tsamp > 0 and centre > 0 and band != 0):
            raise BadFile(
                f"{where}: TSAMP={keys['TSAMP']}, FREQ={centre}, BW={band}; "
                "expected TSAMP and FREQ above 0, and BW not 0"
            )
        order = keys.get("ORDER", "TFP")
        if order != "TFP" and not (order == "TF" and self.npol == 1):
            raise BadFile(f"{where}: ORDER={order}; expected TFP (TF with one polarisation)")
        self.complex = ndim == 2
        self.foff = band / self.nchan
        self.fch1 = centre - band / 2 + self.foff / 2
        self.step = self.nchan * self.npol * ndim * self.nbits // 8
        if not 0 <= offset < 2**63:
            raise BadFile(f"{where}: OBS_OFFSET={keys['OBS_OFFSET']:.40}; expected bytes, at least 0")
        if self.tstart:
            self.tstart += offset // self.step * self.tsamp / 86400
        if not abs(self.tstart) < LATEST_MJD:
            raise BadFile(f"{where}: begins at MJD {self.tstart:g}; expected days before {LATEST_MJD:g}")

    def geometry(self, packet_bytes: int = 8192, most: int = 2**16) -> Geometry:
        """The geometry of packets with at most this many bytes and samples."""
        chunks, nsamp = chunks_for(self.nchan, self.step * 8, packet_bytes)
        return Geometry(
            VOLTAGE if self.complex else POWER, self.nbits, self.npol, min(nsamp, most), self.nchan, chunks,
            epoch_of(self.tstart), self.tsamp, self.fch1, self.foff,
        )  # fmt: skip

    def to_packet_order(self, raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Bytes of whole samples in the order of packets, shape (samples, polarisations, bytes)."""
        each = self.step // self.nchan // self.npol
        return np.ascontiguousarray(raw.reshape(-1, self.nchan, self.npol, each).transpose(0, 2, 1, 3)).reshape(
            -1, self.npol, self.nchan * each
        )


class DadaFile(DadaHeader):
    """A PSRDADA file; see `DadaHeader`.

    Parameters
    ----------
    path : path

    Attributes
    ----------
    nsamp : int
        Whole samples in the file.
    text : bytes
        The header.

    Raises
    ------
    ValueError
        (`BadFile`) The header lacks a key, or a value cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with open(self.path, "rb") as file:
            text = file.read(HEADER)
            keys = header_keys(text, self.path)
            try:
                size = int(keys.get("HDR_SIZE", HEADER))
            except ValueError as error:
                raise BadFile(f"{self.path}: {error}") from None
            if not HEADER <= size <= LARGEST_HEADER:
                raise BadFile(f"{self.path}: HDR_SIZE={size}; expected {HEADER} to {LARGEST_HEADER}")
            text += file.read(size - HEADER)
        super().__init__(text, self.path)
        self.text = text
        self.nsamp = (self.path.stat().st_size - self.size) // self.step
        if self.nsamp < 1:
            raise BadFile(f"{self.path}: holds no whole sample")

    def geometry(self, packet_bytes: int = 8192, most: int = 2**16) -> Geometry:
        """See `DadaHeader.geometry`."""
        return super().geometry(packet_bytes, min(most, self.nsamp))

    def steps(self, start: int, count: int) -> NDArray[np.uint8]:
        """Samples as bytes in the order of packets, shape (samples, polarisations, bytes)."""
        return self.to_packet_order(self.raw(start, count))

    def raw(self, start: int, count: int) -> NDArray[np.uint8]:
        """Samples in the order and type of the file."""
        with open(self.path, "rb") as file:
            file.seek(self.size + start * self.step)
            return np.frombuffer(file.read(count * self.step), np.uint8)


def start_of(keys: dict[str, str]) -> float:
    """MJD of the start of an observation, from MJD_START, or else UTC_START and PICOSECONDS; 0 if there is neither.

    >>> start_of({"UTC_START": "2023-02-25-12:00:00", "PICOSECONDS": "864000000000"})
    60000.50001
    """
    if "MJD_START" in keys:
        return number(keys, "MJD_START")
    text = keys.get("UTC_START", "UNKNOWN")
    if text.upper() == "UNKNOWN":
        return 0.0
    try:
        moment = datetime.strptime(text, "%Y-%m-%d-%H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        raise ValueError(f"UTC_START={text:.40}; expected a time such as 2023-02-25-12:00:00") from None
    since = moment - datetime(1858, 11, 17, tzinfo=UTC)
    return since.days + (since.seconds + whole(keys, "PICOSECONDS") * 1e-12) / 86400


def number(keys: dict[str, str], name: str) -> float:
    """The value of a key as a number."""
    try:
        return float(keys[name])
    except ValueError:
        raise ValueError(f"{name}={keys[name]:.40}; expected a number") from None


def whole(keys: dict[str, str], name: str, default: int = 0) -> int:
    """The value of a key as a whole number, or the default without the key."""
    try:
        return int(keys.get(name, default))
    except ValueError:
        raise ValueError(f"{name}={keys[name]:.40}; expected a whole number") from None


def header_keys(text: bytes, where: Path | str) -> dict[str, str]:
    """The keys of a header and their values.

    >>> header_keys(b"NBIT 8  # bits" + bytes([10]) + b"NCHAN 4", Path("a"))
    {'NBIT': '8', 'NCHAN': '4'}
    """
    keys = {}
    for line in text.split(b"\0")[0].decode("ascii", errors="replace").splitlines():
        words = line.partition("#")[0].split(None, 1)
        if len(words) == 2:
            keys[words[0]] = words[1].strip()
    if not keys:
        raise BadFile(f"{where}: this is not a PSRDADA header")
    return keys


def is_dada(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins with a PSRDADA header."""
    with open(path, "rb") as file:
        head = file.read(HEADER)
    return b"HDR_SIZE" in head and b"NBIT" in head


def header_text(
    npol: int, nchan: int, *, tsamp: float, fch1: float, foff: float, tstart: float = 0.0, nbits: int = 8,
    voltages: bool = True,
) -> bytes:  # fmt: skip
    """Make a header of `HEADER` bytes."""
    keys = {
        "HDR_VERSION": "1.0", "HDR_SIZE": HEADER, "NBIT": nbits, "NDIM": 2 if voltages else 1, "NPOL": npol,
        "NCHAN": nchan, "ORDER": "TFP", "TSAMP": repr(tsamp * 1e6), "FREQ": repr(fch1 + foff * (nchan - 1) / 2),
        "BW": repr(foff * nchan), "MJD_START": repr(tstart), "OBS_OFFSET": 0,
    }  # fmt: skip
    return "".join(f"{k} {v}\n" for k, v in keys.items()).encode().ljust(HEADER, b"\0")
