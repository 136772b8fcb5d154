"""What passes between the public API of de-dispersion and its backends.

``api`` checks the arguments and makes `Table`s (whole-sample delays) and a `Source`; ``cpu.Engine`` takes them and
gives sums.  A backend never sees a DM, a frequency or a file format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

METHODS = ("auto", "brute", "exact-subband", "subband")
"""Ways to form the sums; all but "subband" are exact."""

MOST_BINNED = 128
"""Most samples that are added in time: 16-bit sums of two 8-bit channels end there."""


@dataclass(frozen=True)
class Table:
    """Delays of one list of DMs.

    Attributes
    ----------
    delays : numpy.ndarray of int32, shape (ndm, nchan)
        Binned samples by which a channel lies behind; not negative.
    downsamp : int
        Samples added before, in time.
    """

    delays: NDArray[np.int32]
    downsamp: int = 1

    @property
    def maxshift(self) -> int:
        """Largest delay, binned samples."""
        return int(self.delays.max())


class Source(Protocol):
    """Samples by absolute number: a `Filterbank`, or one with cells masked."""

    dtype: np.dtype[Any]
    maximum: int
    nsamp: int

    @property
    def nchan(self) -> int:
        """Number of channels."""

    def raw(self, start: int, count: int) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        """Pieces of a range of samples: (samples x channels in some order, which of them is which row)."""

    def fills(self, start: int, count: int) -> Iterator[tuple[int, int, int, float]]:
        """Masked cells in a range: row, first and last sample + 1 relative to ``start``, value to put there."""


class Engine(Protocol):
    """A backend, made for a source and the tables to be applied to it.

    Sums are exact integers for integer samples (uint32, or int32 for signed ones), the same bits on every backend and
    in any chunking; float32 samples are added in a fixed order: pairs, pairs of pairs, up to 16 neighbouring channels,
    then these groups from the highest frequency down.
    """

    def load(self, start: int, stop: int) -> None:
        """Make samples ``start : stop`` the ones at hand; what was at hand before is not read again."""

    def sums(
        self, table: int, first: int, count: int, out: NDArray[Any], column: int = 0, progress: Any = None
    ) -> None:
        """``out[m, column + i] = sum over c of x[c][first + i + delays[m, c]]``, in binned samples that are loaded."""

    def map(
        self, table: int, first: int, count: int, work: Callable[[int, NDArray[Any]], Any], progress: Any = None
    ) -> list[Any]:
        """Sums of a few DMs at a time, handed to ``work(first DM, sums)`` and forgotten; what it returned, by DM."""

    def describe(self) -> dict[str, Any]:
        """Method, device, bytes, and what is expected of it."""

    def close(self) -> None:
        """Give back threads and memory."""


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Type of the sums of samples of a type.

    >>> sum_dtype(np.dtype("int8")).name
    'int32'
    """
    return np.dtype({"u": np.uint32, "i": np.int32, "f": np.float32}[dtype.kind])
