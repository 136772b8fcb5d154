"""Which reader a file wants, told by its content."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from .presto import DatReader
from .psrfits import PsrfitsReader
from .sigproc import BadFile, SigprocReader

if TYPE_CHECKING:
    from .filterbank import Reader


def open_reader(path: str | os.PathLike[str], bit_order: str = "little", ifs: str | int = "sum") -> Reader:
    """The reader for one file.

    Raises
    ------
    BadFile
        When it is of no known kind, or broken.
    OSError
        When it cannot be read.
    """
    p = Path(path)
    if bit_order not in ("little", "big"):
        raise ValueError(f"bit_order={bit_order!r}: expected 'little' (first channel in the lowest bits) or 'big'")
    if p.suffix == ".inf" and p.with_suffix(".dat").exists():
        p = p.with_suffix(".dat")
    with open(p, "rb") as file:
        head = file.read(16)
    if head[4:16] == b"HEADER_START":
        return SigprocReader(p, bit_order, ifs)
    if head.startswith(b"SIMPLE  ="):
        return PsrfitsReader(p, ifs)
    if p.suffix == ".dat":
        return DatReader(p)
    if not head:
        raise BadFile(f"{p}: is empty")
    raise BadFile(f"{p}: is no SIGPROC file, PSRFITS file or .dat with its .inf")
