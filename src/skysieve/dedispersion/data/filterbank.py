"""`Filterbank`: channels x samples from files or an array, read in blocks when they are needed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skysieve.core.arrays import as_array, is_device_array, to_host
from skysieve.core.plan import Closing

from .observation import Observation, check_freqs, check_tsamp, in_unit, regular_freqs
from .readers import Reader, gaps_of, lost_of, open_reader
from .sigproc import BadFile, BitOrder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.dedispersion.contract import Packed, Resident, Room

__all__ = ["Filterbank"]

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A file, or several that follow each other in time."""

DTYPES = ("uint8", "int8", "uint16", "int16", "float32")
LARGEST_SLIP = 0.5
"""Largest gap or overlap of consecutive files, in samples, in addition to the rounding of header times."""
MJD_STEP = 1.1e-11 * 86400
"""Seconds between neighbouring float64 MJDs of present dates, rounded up."""


class ArrayReader:
    """An array in memory, channels x samples."""

    def __init__(self, x: NDArray[Any], obs: Observation, order: NDArray[np.int64], maximum: int) -> None:
        self.x, self.observation, self.order, self.maximum = x, obs, order, maximum
        self.dtype, self.nsamp = x.dtype, x.shape[1]

    def read(self, start: int, count: int) -> NDArray[Any]:
        """Samples ``start : start + count``, shape (count, nchan); a view."""
        return self.x[:, start : start + count].T

    def close(self) -> None:
        """Does nothing."""


class DeviceReader(ArrayReader):
    """An array in the memory of a GPU, channels x samples; `read` copies to the host."""

    def __init__(self, x: Any, obs: Observation, order: NDArray[np.int64], maximum: int) -> None:
        super().__init__(x, obs, order, maximum)
        self.index = int(x.device.id)

    def read(self, start: int, count: int) -> NDArray[Any]:
        """Samples ``start : start + count``, shape (count, nchan); a copy on the host."""
        return to_host(self.x[:, start : start + count]).T

    def shifted(self, first: NDArray[np.int64], count: int) -> NDArray[Any]:
        """See `Filterbank.shifted`; only these samples are copied to the host."""
        import cupy

        with cupy.cuda.Device(self.index):
            at = cupy.asarray(first)[:, None] + cupy.arange(count)
            return to_host(self.x[cupy.asarray(self.order)[:, None], at])

    def resident(self, start: int, count: int) -> Resident:
        """A view of the samples on the GPU; first waits for the caller's stream, which may still write them."""
        import cupy

        from skysieve.dedispersion.contract import Resident

        with cupy.cuda.Device(self.index):
            cupy.cuda.get_current_stream().synchronize()
        return Resident(self.x[:, start : start + count].T, self.index)


class Filterbank(Closing):
    """Channels x samples of one observation, from one file, several files, or an array.

    The rows of its arrays are channels in falling order of frequency, whatever the order of the source.  Make one with
    `open` or `from_array`.  As a context manager it closes the files.

    Attributes
    ----------
    observation : Observation
        Channels, sampling, position, time.
    nchan, nsamp : int
    freqs : numpy.ndarray of float64
        Centres of the channels, MHz, falling.
    tsamp : float
        Seconds.
    dtype : numpy.dtype
        uint8, int8, uint16, int16 or float32.
    maximum : int
        Largest value that unsigned integer samples can have; 0 if it is not known.
    gaps : numpy.ndarray of int64, shape (n, 2)
        Samples that are missing in the source: first, and last + 1.  They are replaced by the mean of samples before
        them.
    lost : numpy.ndarray of int64, shape (n, 4)
        Dropped data that `fill_dropped` has replaced: first sample, last + 1, first row, last + 1.

    Examples
    --------
    >>> import numpy as np
    >>> fb = Filterbank.from_array(np.arange(12, dtype=np.uint8).reshape(3, 4), fch1=1500, foff=-1, tsamp=1e-3)
    >>> fb.nchan, fb.nsamp, fb.block(1, 2).tolist()
    (3, 4, [[1, 2], [5, 6], [9, 10]])
    """

    def __init__(self, readers: Sequence[Reader]) -> None:
        self.readers = list(readers)
        first = self.readers[0]
        self.observation = first.observation
        self.dtype, self.maximum = first.read(0, 0).dtype, first.maximum
        self.starts = np.concatenate([[0], np.cumsum([r.nsamp for r in self.readers])])
        self.nsamp = int(self.starts[-1])
        each = zip(self.readers, self.starts, strict=False)
        self.gaps = np.concatenate([gaps_of(r) + start for r, start in each])
        each = zip(self.readers, self.starts, strict=False)
        self.lost = np.concatenate([lost_of(r) + np.array([start, start, 0, 0]) for r, start in each])

    # ---------------------------------------------------------------- construction
    @classmethod
    def open(cls, path: Paths, *, bit_order: BitOrder = "little", ifs: Literal["sum"] | int = "sum") -> Filterbank:
        """Open a file, or several that follow each other in time.

        Parameters
        ----------
        path : path or sequence of paths
            SIGPROC ``.fil`` or ``.tim``, PSRFITS in search mode, PRESTO ``.dat`` with its ``.inf`` beside it.
            The format is found from the content, and for ``.dat``, which has no header, from the suffix.
        bit_order : {"little", "big"}
            SIGPROC samples of 1, 2 and 4 bits: whether the first channel is in the lowest or highest bits of a byte.
        ifs : {"sum"} or int
            Which IFs or polarisations to read: the sum of the first two (total power), or one by its number.

        Raises
        ------
        ValueError
            (`BadFile`) A file is damaged or of no known format, or files do not follow each other.
        OSError
            A file cannot be read.

        Notes
        -----
        The number of samples is found when the file is opened.  It stays the same if the file grows later; if the file
        is cut off later, reading the missing part raises an error.  Part of a spectrum at the end is dropped with a
        warning.
        """
        if isinstance(path, (str, os.PathLike)):
            return cls([open_reader(path, bit_order, ifs)])
        paths = list(path)
        if not paths:
            raise ValueError("path=[]: expected at least one file")
        opened: list[Reader] = []
        try:
            for p in paths:
                opened.append(open_reader(p, bit_order, ifs))
            return cls(joined(opened, [str(p) for p in paths]))
        except BaseException:
            for reader in opened:
                reader.close()
            raise

    @classmethod
    def from_array(
        cls,
        x: Any,
        *,
        fch1: float | None = None,
        foff: float | None = None,
        tsamp: float,
        freqs: Any = None,
        tstart: float = 0.0,
        source: str = "",
        telescope: str = "",
        nbits: int | None = None,
    ) -> Filterbank:
        """Make a filterbank from an array.

        Parameters
        ----------
        x : array_like, shape (channels, samples)
            Arrays of uint8, int8, uint16, int16 or float32 are not copied; float64 is converted to float32, bool to
            uint8.  An array on a GPU (CuPy) stays there: `dedisperse` and `search` read it on the GPU.
        fch1, foff : float
            Centre of the first row and step to the next, MHz.
        freqs : array_like, optional
            Centres of all rows, MHz, in any order; replaces ``fch1`` and ``foff``.
        tsamp : float
            Seconds.  Frequencies and ``tsamp`` may also be astropy Quantities.
        tstart : float
            MJD of the first sample.
        source, telescope : str
        nbits : int, optional
            Number of bits that the values need, if fewer than the type has: data of few bits are summed faster.

        Raises
        ------
        ValueError, TypeError
        """
        fch1, foff, freqs = (
            in_unit(name, value, "MHz") for name, value in (("fch1", fch1), ("foff", foff), ("freqs", freqs))
        )
        tsamp = in_unit("tsamp", tsamp, "s")
        a = as_array(x)
        if a.ndim != 2:
            raise ValueError(f"x has {a.ndim} dimensions, expected 2: channels x samples")
        if a.size == 0:
            raise ValueError(f"x has shape {a.shape}: expected at least one channel and one sample")
        if a.dtype == np.float64:
            a = a.astype(np.float32)
        elif a.dtype == np.bool_:
            a, nbits = a.view(np.uint8), 1 if nbits is None else nbits
        a = a.astype(a.dtype.newbyteorder("="), copy=False)
        if a.dtype.name not in DTYPES:
            raise TypeError(f"x has dtype {a.dtype}, expected one of {', '.join(DTYPES)}")
        if freqs is None:
            if fch1 is None or (foff is None and len(a) > 1):
                raise ValueError("expected fch1 and foff, or freqs: the frequencies of the rows in MHz")
            f = regular_freqs(float(fch1), -1.0 if foff is None else float(foff), len(a))
        else:
            f = np.array(freqs, np.float64)
            if f.shape != (len(a),):
                raise ValueError(f"freqs has shape {f.shape}, expected ({len(a)},): one for each row of x")
            check_freqs(f, "freqs")
        bits = 8 * a.dtype.itemsize
        if nbits is not None:
            if not 1 <= nbits <= bits or a.dtype.kind == "f":
                raise ValueError(f"nbits={nbits}: expected 1 to {bits} for x of dtype {a.dtype}")
            if a.dtype.kind == "u" and int(a.max()) >> nbits:
                raise ValueError(f"nbits={nbits}: x reaches {int(a.max())}, which needs more bits")
            bits = nbits
        order = np.argsort(-f, kind="stable")
        single = abs(float(foff)) if foff and len(a) == 1 else None
        obs = Observation(f[order], check_tsamp(float(tsamp)), bits, float(tstart), source, telescope, bandwidth=single)
        maximum = 2**bits - 1 if a.dtype.kind == "u" else 0
        return cls([(DeviceReader if is_device_array(a) else ArrayReader)(a, obs, order, maximum)])

    # ---------------------------------------------------------------- properties
    @property
    def nchan(self) -> int:
        """Number of channels."""
        return self.observation.nchan

    @property
    def freqs(self) -> NDArray[np.float64]:
        """Centres of the channels, MHz, falling."""
        return self.observation.freqs

    @property
    def tsamp(self) -> float:
        """Seconds between samples."""
        return self.observation.tsamp

    @property
    def duration(self) -> float:
        """Duration of the data, seconds."""
        return self.nsamp * self.tsamp

    def __repr__(self) -> str:
        o = self.observation
        return (
            f"<Filterbank {self.nchan} channels x {self.nsamp} samples, {o.freqs[-1]:g}-{o.freqs[0]:g} MHz, "
            f"{o.tsamp * 1e6:g} us, {self.dtype.name}>"
        )

    # ---------------------------------------------------------------- data
    def raw(self, start: int, count: int, room: Room | None = None) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        """Samples ``start : start + count`` in pieces; see `contract.Source`."""
        for i, first, n in self._ranges(start, count):
            reader: Any = self.readers[i]
            yield reader.read(*_given(reader, first, n, room)), reader.order

    def packed(self, start: int, count: int, room: Room | None = None) -> Iterator[Packed] | None:
        """The same samples in fewer than 8 bits, as the files hold them; None if one of the files holds wider ones."""
        holders: list[Any] = [reader for reader in self.readers if getattr(reader, "packs", False)]
        if len(holders) < len(self.readers):
            return None
        return (holders[i].packed(*_given(holders[i], first, n, room)) for i, first, n in self._ranges(start, count))

    @property
    def takes_room(self) -> bool:
        """Whether all samples come from files that several threads can read at once, into memory of the caller."""
        return all(getattr(reader, "takes_room", False) for reader in self.readers)

    def resident(self, start: int, count: int) -> Iterator[tuple[Resident, NDArray[np.int64]]] | None:
        """The same samples in the memory of a GPU; None if some are not on a GPU."""
        holders = [reader for reader in self.readers if isinstance(reader, DeviceReader)]
        if len(holders) < len(self.readers):
            return None
        return ((holders[i].resident(first, n), holders[i].order) for i, first, n in self._ranges(start, count))

    @property
    def gpu(self) -> int | None:
        """Number of the GPU that holds all samples; None if no single GPU does."""
        found = {reader.index if isinstance(reader, DeviceReader) else None for reader in self.readers}
        return found.pop() if len(found) == 1 else None

    def _ranges(self, start: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Parts of a range of samples by reader: number of the reader, first sample in it, number of samples."""
        self._check(start, count)
        i = int(np.searchsorted(self.starts, start, side="right")) - 1
        while count:
            n = min(count, int(self.starts[i + 1]) - start)
            yield i, start - int(self.starts[i]), n
            start, count, i = start + n, count - n, i + 1

    def block(self, start: int, count: int, room: Room | None = None) -> NDArray[Any]:
        """Samples ``start : start + count`` of every channel.

        Parameters
        ----------
        start, count : int
        room : Room, optional
            Memory in which readers of files may put them.

        Returns
        -------
        numpy.ndarray, shape (nchan, count)
            Highest frequency first; may be a view of the source, so do not write to it.

        Raises
        ------
        ValueError
            The range reaches beyond the data.
        """
        parts = [_by_channel(rows, order) for rows, order in self.raw(start, count, room)]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts, axis=1) if parts else np.empty((self.nchan, 0), self.dtype)

    def shifted(self, first: NDArray[np.int64], count: int) -> NDArray[Any]:
        """Samples ``first[c] : first[c] + count`` of each channel ``c``: a block along a dispersed pulse.

        Parameters
        ----------
        first : numpy.ndarray of int64, shape (nchan,)
        count : int

        Returns
        -------
        numpy.ndarray, shape (nchan, count)

        Raises
        ------
        ValueError
            A range reaches beyond the data.

        Examples
        --------
        >>> x = np.arange(12, dtype=np.uint8).reshape(3, 4)
        >>> Filterbank.from_array(x, fch1=1500, foff=-1, tsamp=1e-3).shifted(np.array([0, 1, 2]), 2).tolist()
        [[0, 1], [5, 6], [10, 11]]
        """
        low, high = int(first.min()), int(first.max()) + count
        self._check(low, high - low)
        if len(self.readers) == 1 and isinstance(self.readers[0], DeviceReader):
            return self.readers[0].shifted(first, count)
        return self.block(low, high - low)[np.arange(self.nchan)[:, None], (first - low)[:, None] + np.arange(count)]

    def blocks(self, count: int, overlap: int = 0) -> Iterator[tuple[int, NDArray[Any]]]:
        """Blocks of ``count`` samples, each with the number of its first sample.

        Neighbouring blocks share ``overlap`` samples; the last block may be shorter.
        """
        if not 0 <= overlap < count:
            raise ValueError(f"overlap={overlap}: expected 0 to count - 1 = {count - 1}")
        start = 0
        while start < self.nsamp:
            n = min(count, self.nsamp - start)
            yield start, self.block(start, n)
            if start + n == self.nsamp:
                return
            start += count - overlap

    def read(self) -> NDArray[Any]:
        """All samples, shape (nchan, nsamp)."""
        return self.block(0, self.nsamp)

    def _check(self, start: int, count: int) -> None:
        if start < 0 or count < 0 or start + count > self.nsamp:
            raise ValueError(f"samples {start} to {start + count}: expected samples within 0 to {self.nsamp}")

    def close(self) -> None:
        """Close the files."""
        for reader in self.readers:
            reader.close()


def _given(reader: Reader, first: int, count: int, room: Room | None) -> tuple[Any, ...]:
    """The arguments for `Reader.read` or ``packed``: ``room`` is included if the reader takes it."""
    return (first, count, room) if getattr(reader, "takes_room", False) else (first, count)


def as_filterbank(data: Filterbank | Paths) -> Filterbank:
    """`data` itself if it is a `Filterbank`, else the files that it names, opened."""
    if isinstance(data, Filterbank):
        return data
    several = isinstance(data, Sequence) and len(data) > 0 and all(isinstance(d, str | os.PathLike) for d in data)
    if not (isinstance(data, str | os.PathLike) or several):
        raise TypeError(f"data is a {type(data).__name__}, expected a Filterbank or the path of a file")
    return Filterbank.open(data)


@contextmanager
def opened(data: Filterbank | Paths) -> Iterator[Filterbank]:
    """`as_filterbank` as a context manager, which closes the files that it has opened."""
    fb = as_filterbank(data)
    try:
        yield fb
    finally:
        if fb is not data:
            fb.close()


def _by_channel(rows: NDArray[Any], order: NDArray[np.int64]) -> NDArray[Any]:
    """Samples x channels in their order of storage, as channels x samples in falling order of frequency."""
    step = np.diff(order)
    if (step == 1).all():
        return rows.T
    if (step == -1).all() and rows.flags.c_contiguous:  # a copy in the order of the memory is four times as fast
        return np.ascontiguousarray(rows[:, ::-1]).T
    return rows.T[order]


def joined(readers: list[Reader], names: list[str]) -> list[Reader]:
    """Readers in the order of their start times; an error if they are not one observation without gaps."""
    by_time = sorted(range(len(readers)), key=lambda i: readers[i].observation.tstart)
    for before, after in pairwise(by_time):
        a, b = readers[before], readers[after]
        if not np.array_equal(a.observation.freqs, b.observation.freqs):
            raise BadFile(f"{names[after]}: its channels differ from those of {names[before]}")
        if a.observation.tsamp != b.observation.tsamp:
            raise BadFile(f"{names[after]}: tsamp={b.observation.tsamp}, but {a.observation.tsamp} in {names[before]}")
        if a.observation.dm != b.observation.dm:
            raise BadFile(f"{names[after]}: DM={b.observation.dm}, but {a.observation.dm} in {names[before]}")
        if a.dtype != b.dtype or a.maximum != b.maximum:
            raise BadFile(f"{names[after]}: {b.dtype} samples cannot be combined with the {a.dtype} of {names[before]}")
        tsamp = a.observation.tsamp
        slip = (b.observation.tstart - a.observation.tstart) * 86400 - a.nsamp * tsamp
        if abs(slip) > LARGEST_SLIP * tsamp + 2 * MJD_STEP:
            kind = "a gap" if slip > 0 else "an overlap"
            raise BadFile(
                f"{names[after]} does not follow {names[before]}: {kind} of {abs(slip):.6g} s "
                f"({abs(slip) / tsamp:.1f} samples)"
            )
    return [readers[i] for i in by_time]


class ChangedReader:
    """Base of the readers that change the samples of a filterbank; a subclass adds `read`."""

    def __init__(self, fb: Filterbank) -> None:
        self.fb, self.observation, self.nsamp, self.maximum = fb, fb.observation, fb.nsamp, fb.maximum
        self.order, self.dtype, self.gaps, self.lost = np.arange(fb.nchan), fb.dtype, fb.gaps, fb.lost

    def close(self) -> None:
        """Close the filterbank."""
        self.fb.close()
