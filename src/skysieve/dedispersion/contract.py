"""The interface between the public API of de-dispersion and its backends, and the registries that both read.

``api`` checks the arguments and makes `Table` objects (delays in whole samples) and a `Source`; an `Engine` takes them
and returns sums or events.  A backend knows no DM, no frequency and no file format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# ---------------------------------------------------------------- registries

Method = Literal["auto", "brute", "exact-subband", "subband", "tree"]
Noise = Literal["robust", "moments", "clipped"]
Detector = Literal["boxcar", "threshold"]


@dataclass(frozen=True)
class Summation:
    """A method to sum the channels.

    Attributes
    ----------
    help : str
    error : str
        Error of the delays.
    """

    help: str
    error: str


SUMMATIONS = {
    "auto": Summation(
        "exact sums, unless `max_loss` allows tree or subband and one of them is cheaper",
        "none, unless `max_loss` allows it",
    ),
    "brute": Summation("the direct sum", "0.5 samples, by rounding"),
    "exact-subband": Summation(
        "the same result as brute; sums of neighbouring channels are shared between DMs", "as brute"
    ),
    "subband": Summation("the two stages of PRESTO", "delay_error and loss of the result"),
    "tree": Summation("FDMT: a binary tree of sums with delays in whole samples", "delay_error and loss of the result"),
}
"""Methods to sum the channels: names of `Method`."""
METHODS = tuple(SUMMATIONS)


@dataclass(frozen=True)
class NoiseEstimator:
    """An estimator of the level and the sigma of a block of samples.

    Attributes
    ----------
    code : int
        Its number in the kernels: `cpu.detect.block_noise`, and ``cuda/search.cu`` with the names in
        ``cuda/detect.cuh``.
    help : str
    ranks : bool
        Whether it takes samples by their rank, which needs scratch memory for a block of floats.
    """

    code: int
    help: str
    ranks: bool = False


NOISE = {
    "robust": NoiseEstimator(0, "median and quartiles", ranks=True),
    "moments": NoiseEstimator(1, "mean and standard deviation"),
    "clipped": NoiseEstimator(2, "mean and standard deviation of the samples within 3 sigma, iterated five times"),
}
"""Noise estimators: names of `Noise`."""


@dataclass(frozen=True)
class DetectorKind:
    """A detector of events.

    Attributes
    ----------
    help : str
    every : bool
        Whether every sample that reaches the threshold is an event; otherwise only samples that are higher than their
        neighbours are.
    noise : str or None
        The only noise estimator that it works with; None for all.
    """

    help: str
    every: bool = False
    noise: str | None = None


DETECTORS = {
    "boxcar": DetectorKind(
        "boxcar windows of many widths; an event is the window with the highest S/N among its neighbours"
    ),
    "threshold": DetectorKind(
        "every sample that exceeds the mean of its buffer by the threshold (Magro et al. 2011); no boxcars",
        True,
        "moments",
    ),
}
"""Detectors: names of `Detector`."""

EXCESS, DIP = 4.0, 7.0
"""Defaults of the S/N by which an event may exceed the response of a stronger one, and of the fall of the S/N between
two peaks that makes them two events."""
EXCESS_HELP = (
    "S/N by which an event may exceed the response of a stronger burst at its DM, time and width; above that it is a "
    f"separate candidate. The default is {EXCESS:g}."
)
DIP_HELP = (
    "Fall of the S/N between two peaks of a window that makes them two events; inf never divides a window. "
    f"The default is {DIP:g}."
)

# ---------------------------------------------------------------- limits

MOST_BINNED = 128
"""Most samples that are added in time: the 16-bit sums of two 8-bit channels would overflow beyond it."""

REREAD = 16
"""Number of samples that an engine may read again when it loads the next range: a GPU keeps whole words of samples."""

UNIT, CLIP = 64.0, float(2**18)
"""Fixed-point samples of a search: number of units in one sigma, and the largest value."""
THRESHOLD = 6.7
"""Least S/N of an event: 500 DMs of noise, 256 us and 26 boxcars give less than one false candidate per hour."""
MOST_WIDTH = 4096
"""Widest boxcar in samples: the sum of this many clipped samples fits 31 bits."""

# ---------------------------------------------------------------- requests


@dataclass(frozen=True)
class Table:
    """Delays of one list of DMs.

    Attributes
    ----------
    delays : numpy.ndarray of int32, shape (ndm, nchan)
        Delay of each channel in binned samples; not negative.
    downsamp : int
        Samples that are added in time before the channels are summed.
    """

    delays: NDArray[np.int32]
    downsamp: int = 1

    @cached_property
    def maxshift(self) -> int:
        """Largest delay, binned samples."""
        return int(self.delays.max())


@dataclass(frozen=True)
class Detection:
    """The parameters of a search of the series of one table.

    Attributes
    ----------
    block : int
        Binned samples of a noise block; blocks are anchored at sample 0.
    widths : tuple of int
        Boxcars, binned samples, rising.
    threshold : float
        S/N.
    noise : str
        A name of `NOISE`.
    every : bool
        Whether every sample that reaches the threshold is an event; otherwise only the peaks are.
    valid : numpy.ndarray of int64, shape (ndm,)
        Binned samples of each series, from sample 0 on, for which all channels have data.
    most : int
        Largest number of events that memory holds.
    parts : int
        Number of parts of a block from whose means the running baseline is computed; 0 to take the level from the noise
        estimator instead.
    dip : float
        Fall of the S/N between two peaks of a window that makes them two events; see `cpu.detect.split`.
    """

    block: int
    widths: tuple[int, ...]
    threshold: float
    noise: str
    every: bool
    valid: NDArray[np.int64]
    most: int = 2**62
    parts: int = 0
    dip: float = np.inf

    @property
    def noise_code(self) -> int:
        """Number of the noise estimator in the kernels."""
        return NOISE[self.noise].code

    @property
    def noise_kind(self) -> int | None:
        """The same for the CPU's kernels: None for the default, so that the others are compiled only when used."""
        return self.noise_code or None

    def scratch(self, dtype: np.dtype[Any]) -> NDArray[np.float32] | None:
        """Scratch memory for the noise of a block of floats, empty if the estimator needs none; None for integers."""
        return np.empty(self.block if NOISE[self.noise].ranks else 0, np.float32) if dtype.kind == "f" else None


def check_events(count: int, what: Detection) -> None:
    """Stop a search that finds more events than memory holds: its threshold lies in the noise."""
    if count > what.most:
        raise ValueError(
            f"threshold={what.threshold!r}: more than {what.most} events; raise the threshold, or allow more memory"
        )


def sorted_events(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows of (DM, sample, width, S/N) in the order of the first three, each once.

    A resolved peak may lie in two windows that overlap.

    >>> sorted_events(np.array([[1, 7, 0, 9.0], [0, 8, 0, 7.0], [1, 7, 0, 9.0]])).tolist()
    [[0.0, 8.0, 0.0, 7.0], [1.0, 7.0, 0.0, 9.0]]
    """
    if len(rows) < 2:
        return rows.copy()  # the memory of ``rows`` is reused
    number, sample, width = rows[:, :3].astype(np.int64).T
    sample -= sample.min()
    order, new = distinct((number * (sample.max() + 1) + sample) * (width.max() + 1) + width)
    return rows[order[new]]


def distinct(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The order of rising keys, and in this order whether each is the first of its value.

    >>> [a.tolist() for a in distinct(np.array([3, 1, 3]))]
    [[1, 0, 2], [True, True, False]]
    """
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    new = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=new[1:])
    return order, new


@dataclass(frozen=True)
class Packed:
    """Samples of 1, 2 or 4 bits, as a file holds them.

    Attributes
    ----------
    data : numpy.ndarray of uint8, shape (samples, bytes of a spectrum)
    down : bool
        Whether the rows are the channels in reverse order.
    bits : int
    high_first : bool
        Whether the first channel is in the highest bits of a byte.
    """

    data: NDArray[np.uint8]
    down: bool
    bits: int
    high_first: bool


@dataclass(frozen=True)
class Resident:
    """Samples in the memory of a GPU.

    Attributes
    ----------
    data : array on that GPU, shape (samples, channels)
        Must not change while an engine reads it.
    index : int
        Number of the GPU.
    """

    data: Any
    index: int

    def __len__(self) -> int:
        return len(self.data)


class Room:
    """Memory for a range of samples, which the readers of files fill one after the other.

    Parameters
    ----------
    memory : numpy.ndarray of uint8
    """

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory, self._taken = memory, 0

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """Return the next ``nbytes`` bytes of this memory; a new array if fewer are left."""
        if self._taken + nbytes > len(self._memory):
            return np.empty(nbytes, np.uint8)
        self._taken += nbytes
        return self._memory[self._taken - nbytes : self._taken]

    def holds(self, array: NDArray[Any]) -> bool:
        """Whether an array lies in this memory."""
        return 0 <= array.ctypes.data - self._memory.ctypes.data < len(self._memory)


class Source(Protocol):
    """Samples by absolute number: a `Filterbank`, or one with cells masked."""

    dtype: np.dtype[Any]
    maximum: int
    nsamp: int

    @property
    def nchan(self) -> int:
        """Number of channels."""

    def raw(self, start: int, count: int, room: Room | None = None) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        """A range of samples in pieces: (array of samples x channels, the channel that belongs in each row).

        Files are read into ``room``.  Samples that are in memory already, or that are changed, are in other arrays.
        """

    def packed(self, start: int, count: int, room: Room | None = None) -> Iterator[Packed] | None:
        """The same samples in fewer than 8 bits, as the file holds them; None if it holds wider ones."""

    def fills(self, start: int, count: int) -> Iterator[tuple[int, int, int, float]]:
        """Masked cells of a range: row, first sample and last + 1 relative to ``start``, value that replaces them."""


class Engine(Protocol):
    """A backend, made for one kind of source and the tables that are applied to it.

    Sums of integer samples are exact (uint32, or int32 for signed samples), with the same bits on every backend and for
    any chunks.  float32 samples are added in a fixed order: pairs, pairs of pairs, up to 16 neighbouring channels, then
    these groups from the highest frequency down.
    """

    def rebind(self, source: Source) -> None:
        """Set another source, with the same channels and type of samples; after that no samples count as loaded."""

    def load(self, start: int, stop: int) -> None:
        """Load samples ``start : stop``; at most ``REREAD`` of the samples that are already loaded are read again."""

    def sums(
        self, table: int, first: int, count: int, out: NDArray[Any], column: int = 0, progress: Any = None
    ) -> None:
        """``out[m, column + i] = sum over c of x[c][first + i + delays[m, c]]``, of binned samples that are loaded."""

    def search(
        self, table: int, first: int, count: int, low: int, high: int, what: Detection, progress: Any = None
    ) -> NDArray[np.float64]:
        """Events whose windows are centred on binned samples ``low : high``; the series stay on the backend.

        A window that holds several peaks is replaced by events that lie up to three quarters of its width away.
        ``first : first + count`` are the samples to sum; ``first`` begins a block.  They include the block before
        ``low``, and enough samples after ``high`` for the widest window and for its noise.

        Returns
        -------
        numpy.ndarray, shape (events, 4)
            Index of the DM, sample of the centre, index of the width, S/N; sorted by the first three.
        """

    def describe(self) -> dict[str, Any]:
        """Method, device, threads of the CPU that sum, bytes of memory; ``held``: all bytes on the device, or on each
        of several, between calls; ``costs``: by table, the cost of a delay in additions of the direct sum."""

    def close(self) -> None:
        """Free threads and memory."""


def direction(order: NDArray[np.int64]) -> int:
    """1 if the rows are the channels in their order, -1 if they are in reverse, 0 for any other order.

    >>> direction(np.array([2, 1, 0])), direction(np.array([0, 2, 1]))
    (-1, 0)
    """
    n = len(order)
    if np.array_equal(order, np.arange(n)):
        return 1
    return -1 if np.array_equal(order, np.arange(n)[::-1]) else 0


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type of sums of samples of type `dtype`.

    >>> sum_dtype(np.dtype("int8")).name
    'int32'
    """
    return np.dtype({"u": np.uint32, "i": np.int32, "f": np.float32}[dtype.kind])


KINDS = "uif"
"""Kinds of sums, by their number in kernels."""

BLOCK_SECONDS = 2.0
"""Length of the blocks, anchored at sample 0, from which noise and replacements of missing data are taken."""


CONTEXT = 2
"""Number of blocks before and after the searched blocks on which their events depend: a window reaches into one more
block, and the baseline of that block depends on the next."""
PART_SECONDS, LEAST_PARTS, MOST_PARTS = 1 / 32, 16, 256
"""Length of the parts of a block from which the baseline is computed, and their least and largest number."""


def block_parts(block: int, tsamp: float) -> int:
    """Parts of a block of ``block`` samples: a multiple of 16.

    >>> block_parts(7808, 256e-6), block_parts(2560, 100e-6)
    (64, 16)
    """
    wanted = round(block * tsamp / PART_SECONDS / LEAST_PARTS) * LEAST_PARTS
    return min(max(wanted, LEAST_PARTS), MOST_PARTS)


def block_samples(tsamp: float) -> int:
    """Samples of an anchored block: `BLOCK_SECONDS`, rounded to a multiple of 128, so that every binning divides it.

    >>> block_samples(64e-6)
    31232
    """
    return max(1, round(BLOCK_SECONDS / tsamp / MOST_BINNED)) * MOST_BINNED
