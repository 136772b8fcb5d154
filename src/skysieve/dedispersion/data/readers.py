"""The protocol of readers of samples, and the registry of the file formats that are read."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from skysieve.core.checks import one_of

from .observation import Observation
from .presto import DatReader
from .psrfits import PsrfitsReader
from .sigproc import BIT_ORDERS, BadFile, SigprocReader

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Reader(Protocol):
    """A source of samples: a file, an array, or another reader whose samples are changed.

    Further attributes are optional: ``gaps`` and ``lost`` (see `Filterbank`); ``packs``, which is true if the reader
    gives samples of fewer than 8 bits by ``packed(start, count)`` (see `contract.Packed`); and ``takes_room``, which is
    true if `read` and ``packed`` take a `contract.Room` as a third argument, and several threads may call them.
    """

    observation: Observation
    order: NDArray[np.int64]
    dtype: np.dtype[Any]
    maximum: int
    nsamp: int

    def read(self, start: int, count: int) -> NDArray[Any]:
        """Samples ``start : start + count``, shape (count, nchan), channels in the order of the source."""

    def close(self) -> None:
        """Close the source."""


def gaps_of(reader: Reader) -> NDArray[np.int64]:
    """Ranges of samples that a reader lacks, shape (n, 2)."""
    found: NDArray[np.int64] = getattr(reader, "gaps", np.empty((0, 2), np.int64))
    return found


def lost_of(reader: Reader) -> NDArray[np.int64]:
    """Rectangles in which a reader has replaced dropped samples, shape (n, 4)."""
    found: NDArray[np.int64] = getattr(reader, "lost", np.empty((0, 4), np.int64))
    return found


@dataclass(frozen=True)
class FileFormat:
    """A format of files.

    Attributes
    ----------
    name : str
    suffixes : tuple of str
        Usual endings of names, for the documentation.
    help : str
    matches : callable
        ``matches(head, path)``: whether a file that begins with the bytes ``head`` is of this format.
    open : callable
        ``open(path, bit_order, ifs)`` returns the `Reader`.
    """

    name: str
    suffixes: tuple[str, ...]
    help: str
    matches: Callable[[bytes, Path], bool]
    open: Callable[[Path, str, str | int], Reader]


FILE_FORMATS = (
    FileFormat(
        "SIGPROC",
        (".fil", ".tim"),
        "1, 2, 4, 8, 16 or 32 bits, signed or not, one IF or several, even or listed channels",
        lambda head, path: head[4:16] == b"HEADER_START",
        SigprocReader,
    ),
    FileFormat(
        "PSRFITS",
        (".fits", ".sf"),
        "search mode, with scales, offsets, weights and polarisations",
        lambda head, path: head.startswith(b"SIMPLE  ="),
        lambda path, bit_order, ifs: PsrfitsReader(path, ifs),
    ),
    FileFormat(
        "PRESTO",
        (".dat",),
        "a time series of float32, with its .inf",
        lambda head, path: path.suffix == ".dat",
        lambda path, bit_order, ifs: DatReader(path),
    ),
)
"""Formats that `Filterbank.open` reads, in the order in which they are tried."""
SERIES = (".dat", ".tim")
"""Endings of files of time series."""
FOLDER_SUFFIXES = tuple(suffix for form in FILE_FORMATS for suffix in form.suffixes if suffix not in SERIES)
"""Endings of the files that commands take from a folder: all but time series."""


def open_reader(path: str | os.PathLike[str], bit_order: str = "little", ifs: str | int = "sum") -> Reader:
    """The reader for one file.

    Raises
    ------
    BadFile
        The file is of no known format, or broken.
    OSError
        It cannot be read.
    """
    p = Path(path)
    one_of("bit_order", bit_order, BIT_ORDERS)
    if p.suffix == ".inf" and p.with_suffix(".dat").exists():
        p = p.with_suffix(".dat")
    with open(p, "rb") as file:
        head = file.read(4096)
    for known in FILE_FORMATS:
        if known.matches(head, p):
            return known.open(p, bit_order, ifs)
    if not head:
        raise BadFile(f"{p}: is empty")
    names = [f"{known.name} ({', '.join(known.suffixes)})" for known in FILE_FORMATS]
    dada = "; PSRDADA files are searched as streams, by 'dedisp stream --from'" if b"HDR_SIZE" in head else ""
    raise BadFile(f"{p}: is not a {', '.join(names[:-1])} or {names[-1]} file{dada}")
