"""What passes between the public API of de-dispersion and its backends.

``api`` checks the arguments and makes `Table`s (whole-sample delays) and a `Source`; ``cpu.Engine`` takes them and
gives sums.  A backend never sees a DM, a frequency or a file format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

METHODS = ("auto", "brute", "exact-subband", "subband", "tree")
"""Ways to form the sums; "brute" and "exact-subband" are exact."""

MOST_BINNED = 128
"""Most samples that are added in time: 16-bit sums of two 8-bit channels end there."""

REREAD = 16
"""Samples at hand that an engine may read again when it goes on: a GPU keeps whole words of them."""

NOISE = ("robust", "moments", "clipped")
"""Level and scatter of a block: median and quartiles; mean and standard deviation; these, clipped at 3 sigma."""

UNIT, CLIP = 64.0, float(2**18)
"""Fixed-point samples of a search: steps of a sigma, and the largest."""
MOST_WIDTH = 4096
"""Widest boxcar: the sum of so many clipped samples fits 31 bits."""


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

    @cached_property
    def maxshift(self) -> int:
        """Largest delay, binned samples."""
        return int(self.delays.max())


@dataclass(frozen=True)
class Detection:
    """What a search looks for in the series of one table.

    Attributes
    ----------
    block : int
        Binned samples of the blocks that noise is taken from, anchored at sample 0.
    widths : tuple of int
        Boxcars, binned samples, rising.
    threshold : float
        S/N.
    noise : str
        One of `NOISE`.
    every : bool
        Every sample that reaches the threshold, not the peaks alone.
    valid : numpy.ndarray of int64, shape (ndm,)
        Binned samples of each series that have all channels, from sample 0.
    most : int
        Events that there is room for.
    """

    block: int
    widths: tuple[int, ...]
    threshold: float
    noise: str
    every: bool
    valid: NDArray[np.int64]
    most: int = 2**62


def check_events(count: int, what: Detection) -> None:
    """Stop a search that finds more than there is room for: its threshold lies in the noise."""
    if count > what.most:
        raise ValueError(f"threshold={what.threshold!r}: more than {what.most} events; raise it, or memory")


@dataclass(frozen=True)
class Packed:
    """Samples of 1, 2 or 4 bits.

    Attributes
    ----------
    data : numpy.ndarray of uint8, shape (samples, bytes of a spectrum)
    down : bool
        Whether the last channel is the first row, rather than the first.
    bits : int
    high_first : bool
        Whether the first channel lies in the highest bits of a byte.
    """

    data: NDArray[np.uint8]
    down: bool
    bits: int
    high_first: bool


@dataclass(frozen=True)
class Resident:
    """Samples that lie on a GPU already, for an engine that works there.

    Attributes
    ----------
    data : array of that GPU, shape (samples, channels)
        It does not change while it is read.
    index : int
        The GPU's number.
    """

    data: Any
    index: int

    def __len__(self) -> int:
        return len(self.data)


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

    def packed(self, start: int, count: int) -> Iterator[Packed] | None:
        """The same samples in fewer than 8 bits, as the file holds them; None where it does not hold them so."""

    def fills(self, start: int, count: int) -> Iterator[tuple[int, int, int, float]]:
        """Masked cells in a range: row, first and last sample + 1 relative to ``start``, value to put there."""


class Engine(Protocol):
    """A backend, made for a source and the tables to be applied to it.

    Sums are exact integers for integer samples (uint32, or int32 for signed ones), the same bits on every backend and
    in any chunking; float32 samples are added in a fixed order: pairs, pairs of pairs, up to 16 neighbouring channels,
    then these groups from the highest frequency down.
    """

    def load(self, start: int, stop: int) -> None:
        """Make samples ``start : stop`` the ones at hand; of what was so before, ``REREAD`` at most are read again."""

    def sums(
        self, table: int, first: int, count: int, out: NDArray[Any], column: int = 0, progress: Any = None
    ) -> None:
        """``out[m, column + i] = sum over c of x[c][first + i + delays[m, c]]``, in binned samples that are loaded."""

    def search(
        self, table: int, first: int, count: int, low: int, high: int, what: Detection, progress: Any = None
    ) -> NDArray[np.float64]:
        """Events whose windows are centred on binned samples ``low : high``; the series never leave the backend.

        ``first : first + count`` are the samples to sum, from the first of a block on: the block before ``low`` and
        samples past ``high`` for the widest window and for the noise there.

        Returns
        -------
        numpy.ndarray, shape (events, 4)
            DM number, sample of the centre, number of the width, S/N; sorted by the first three.
        """

    def describe(self) -> dict[str, Any]:
        """Method, device, bytes, and what is expected of it."""

    def close(self) -> None:
        """Give back threads and memory."""


def direction(order: NDArray[np.int64]) -> int:
    """1 where rows are the channels in turn, -1 in reverse, 0 in another order.

    >>> direction(np.array([2, 1, 0])), direction(np.array([0, 2, 1]))
    (-1, 0)
    """
    n = len(order)
    if np.array_equal(order, np.arange(n)):
        return 1
    return -1 if np.array_equal(order, np.arange(n)[::-1]) else 0


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Type of the sums of samples of a type.

    >>> sum_dtype(np.dtype("int8")).name
    'int32'
    """
    return np.dtype({"u": np.uint32, "i": np.int32, "f": np.float32}[dtype.kind])


BLOCK_SECONDS = 2.0
"""Length of the blocks, anchored at sample 0, that noise and stand-ins for missing data are taken from."""


def block_samples(tsamp: float, seconds: float = BLOCK_SECONDS) -> int:
    """Samples of an anchored block: ``seconds`` to the nearest multiple of 128, so that every binning fits in.

    >>> block_samples(64e-6)
    31232
    """
    return max(1, round(seconds / tsamp / MOST_BINNED)) * MOST_BINNED
