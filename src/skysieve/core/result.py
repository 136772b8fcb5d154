"""Common parts of the results of all domains: the display in notebooks, and reading ``.npz`` files."""

from __future__ import annotations

import errno
import html
import os
import zipfile
import zlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from astropy.table import Table
    from matplotlib.figure import Figure

__all__ = ["DAMAGED", "Result", "npz_arrays"]

ROWS_SHOWN = 10
DAMAGED = (ValueError, OSError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""Exceptions of NumPy and h5py for damaged content; RuntimeError is for damaged ZIP flags that say "encrypted"."""


class Result(ABC):
    """Base of the results."""

    @abstractmethod
    def to_table(self) -> Table:
        """The result as an astropy table."""

    @abstractmethod
    def plot(self, **options: Any) -> Figure:
        """A figure of the result; needs matplotlib."""

    @abstractmethod
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result to a file that `load` reads."""

    @classmethod
    @abstractmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a result that `save` wrote."""

    def _repr_html_(self) -> str:
        """The ``repr`` and the first rows of the table, as HTML."""
        rows = self.to_table()
        return f"<p>{html.escape(repr(self))}</p>{rows[:ROWS_SHOWN]._repr_html_()}"


def npz_arrays(path: str | os.PathLike[str]) -> dict[str, Any]:
    """All arrays of an npz file.

    Raises
    ------
    ValueError
        The file is damaged or cut short, or is no npz file.
    OSError
        It cannot be opened or read.
    """
    with open(path, "rb") as file:  # a file that cannot be opened is not damaged
        try:
            held = np.load(file, allow_pickle=False)
            if isinstance(held, np.lib.npyio.NpzFile):
                return {name: held[name] for name in held.files}
        except DAMAGED as error:
            if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # the disk failed
                raise
            raise ValueError(f"{os.fspath(path)}: damaged or cut short, or not a .npz file") from error
    raise ValueError(f"{os.fspath(path)}: expected a .npz file, not a single array (.npy)")
