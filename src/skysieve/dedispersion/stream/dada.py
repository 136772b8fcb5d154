"""PSRDADA files: voltages or power with a header of text lines.

The header is HDR_SIZE bytes (4096 unless it says otherwise) of ``KEY value`` lines; samples follow in the order of
time, frequency, polarisation, real and imaginary part (psrdada.sourceforge.net).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from skysieve.dedispersion.sigproc import BadFile
from skysieve.dedispersion.stream.packets import POWER, VOLTAGE, Geometry, chunks_for, epoch_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEADER = 4096
LARGEST_HEADER = 2**20
REQUIRED = ("NBIT", "NCHAN", "NPOL", "NDIM", "TSAMP", "FREQ", "BW")


class DadaFile:
    """A PSRDADA file.

    Parameters
    ----------
    path : path

    Attributes
    ----------
    nchan, npol, nbits, nsamp : int
    complex : bool
        Whether it holds voltages.
    tsamp : float
        Seconds.
    fch1, foff : float
        Centre of the first channel and step, MHz.
    tstart : float
        MJD; 0 where it is not known.

    Raises
    ------
    ValueError
        (`BadFile`) when the header lacks a key or has what cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with open(self.path, "rb") as file:
            text = file.read(HEADER)
            keys = header_keys(text, self.path)
            size = int(keys.get("HDR_SIZE", HEADER))
            if not HEADER <= size <= LARGEST_HEADER:
                raise BadFile(f"{self.path}: HDR_SIZE={size}; expected {HEADER} to {LARGEST_HEADER}")
            if size > HEADER:
                keys = header_keys(text + file.read(size - HEADER), self.path)
        missing = [k for k in REQUIRED if k not in keys]
        if missing:
            raise BadFile(f"{self.path}: the header lacks {', '.join(missing)}")
        try:
            self.nbits, self.nchan, self.npol = (int(keys[k]) for k in ("NBIT", "NCHAN", "NPOL"))
            ndim = int(keys["NDIM"])
            self.tsamp, centre, band = float(keys["TSAMP"]) * 1e-6, float(keys["FREQ"]), float(keys["BW"])
            self.tstart = float(keys.get("MJD_START", 0.0))
        except ValueError as error:
            raise BadFile(f"{self.path}: {error}") from None
        if ndim not in (1, 2) or self.npol not in (1, 2) or self.nchan < 1 or self.nbits not in (8, 32):
            raise BadFile(
                f"{self.path}: NDIM={ndim}, NPOL={self.npol}, NCHAN={self.nchan}, NBIT={self.nbits}; expected 1 or 2, "
                "1 or 2, at least 1, 8 or 32"
            )
        if not (self.tsamp > 0 and centre > 0 and band != 0):
            raise BadFile(
                f"{self.path}: TSAMP={keys['TSAMP']}, FREQ={centre}, BW={band}; expected them above (BW not) 0"
            )
        if keys.get("ORDER", "TFP") != "TFP":
            raise BadFile(f"{self.path}: ORDER={keys['ORDER']}; expected TFP")
        self.complex = ndim == 2
        self.foff = band / self.nchan
        self.fch1 = centre - band / 2 + self.foff / 2
        self.start = size
        self.step = self.nchan * self.npol * ndim * self.nbits // 8
        self.nsamp = (self.path.stat().st_size - size) // self.step
        if self.nsamp < 1:
            raise BadFile(f"{self.path}: holds no whole sample")

    def geometry(self, packet_bytes: int = 8192) -> Geometry:
        """How its samples would be sent in packets of at most so many bytes."""
        chunks, nsamp = chunks_for(self.nchan, self.step * 8, packet_bytes)
        return Geometry(
            VOLTAGE if self.complex else POWER, self.nbits, self.npol, min(nsamp, self.nsamp), self.nchan, chunks,
            epoch_of(self.tstart), self.tsamp, self.fch1, self.foff,
        )  # fmt: skip

    def steps(self, start: int, count: int) -> NDArray[np.uint8]:
        """Samples as bytes, shape (samples, polarisations, bytes): the order of packets."""
        with open(self.path, "rb") as file:
            file.seek(self.start + start * self.step)
            raw = np.frombuffer(file.read(count * self.step), np.uint8)
        each = self.step // self.nchan // self.npol
        return np.ascontiguousarray(raw.reshape(-1, self.nchan, self.npol, each).transpose(0, 2, 1, 3)).reshape(
            -1, self.npol, self.nchan * each
        )

    def pieces(self, count: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """All samples, ``count`` at a time, each with the first one's number."""
        for start in range(0, self.nsamp, count):
            yield start, self.steps(start, min(count, self.nsamp - start))


def header_keys(text: bytes, path: Path) -> dict[str, str]:
    """Keys of a header.

    >>> header_keys(b"NBIT 8  # bits" + bytes([10]) + b"NCHAN 4", Path("a"))
    {'NBIT': '8', 'NCHAN': '4'}
    """
    keys = {}
    for line in text.split(b"\0")[0].decode("ascii", errors="replace").splitlines():
        words = line.partition("#")[0].split(None, 1)
        if len(words) == 2:
            keys[words[0]] = words[1].strip()
    if not keys:
        raise BadFile(f"{path}: no PSRDADA header")
    return keys


def is_dada(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as a PSRDADA header does."""
    with open(path, "rb") as file:
        head = file.read(HEADER)
    return b"HDR_SIZE" in head and b"NBIT" in head


def write_dada(
    path: str | os.PathLike[str], x: NDArray[np.int8], *, tsamp: float, fch1: float, foff: float, tstart: float = 0.0
) -> None:
    """Write 8-bit voltages, shape (samples, polarisations, channels, 2), as a PSRDADA file."""
    from skysieve.dedispersion.io import written

    _, npol, nchan, _ = x.shape
    keys = {
        "HDR_VERSION": "1.0", "HDR_SIZE": HEADER, "NBIT": 8, "NDIM": 2, "NPOL": npol, "NCHAN": nchan, "ORDER": "TFP",
        "TSAMP": repr(tsamp * 1e6), "FREQ": repr(fch1 + foff * (nchan - 1) / 2), "BW": repr(foff * nchan),
        "MJD_START": repr(tstart), "OBS_OFFSET": 0,
    }  # fmt: skip
    head = "".join(f"{k} {v}\n" for k, v in keys.items()).encode()
    with written(path) as part, open(part, "wb") as file:
        file.write(head.ljust(HEADER, b"\0"))
        file.write(np.ascontiguousarray(x.transpose(0, 2, 1, 3), np.int8).tobytes())
