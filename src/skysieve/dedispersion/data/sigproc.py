"""SIGPROC's files: the header of ``.fil`` and ``.tim``, packed samples, reading and writing."""

from __future__ import annotations

import math
import os
import struct
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skysieve.core.checks import one_of
from skysieve.dedispersion.contract import Packed, Room, direction

from .observation import (
    SAMPLE_BITS,
    TELESCOPES,
    Observation,
    check_freqs,
    check_tsamp,
    degrees_to_packed,
    packed_to_degrees,
    regular_freqs,
)
from .threads import Threads

if TYPE_CHECKING:
    from numpy.typing import NDArray

INTEGERS = (
    "machine_id", "telescope_id", "data_type", "nchans", "nbits", "nifs", "nbeams", "ibeam", "barycentric",
    "pulsarcentric", "nsamples", "nbins", "ntasks", "scan_number", "scan_nr",
)  # fmt: skip
DOUBLES = (
    "az_start", "za_start", "src_raj", "src_dej", "tstart", "tsamp", "fch1", "foff", "refdm", "period", "fchannel",
    "gal_l", "gal_b", "header_tobs", "raw_fch1", "raw_foff", "npuls",
)  # fmt: skip
STRINGS = ("source_name", "rawdatafile")
BYTES = ("signed",)
COPIED = ("barycentric", "pulsarcentric", "nbeams", "ibeam", "az_start", "za_start")
"""Keys, not known to `Observation`, that are copied from the header of a file to those of files made from it."""
BitOrder = Literal["little", "big"]
BIT_ORDERS = {
    "little": "the first channel is in the lowest bits of a byte, as SIGPROC writes",
    "big": "the first channel is in the highest bits of a byte",
}
"""Orders of samples of fewer than 8 bits in a byte: names of `BitOrder`."""
FILTERBANK, TIME_SERIES, SUBBANDS = 1, 2, 6
LONGEST_WORD = 255
MOST_CHANNELS = 2**22
SHORT_HEADER = 2**16
THREAD_BYTES = 4 << 20
"""Bytes that a thread reads at a time."""
LONG_HEADER = SHORT_HEADER + 20 * MOST_CHANNELS
"""Most bytes of a header: a channel in a list takes 20."""


class BadFile(ValueError):
    """A file is damaged, or not of the format that it seems to be; the message names the problem."""


def read_header(data: bytes, path: str | os.PathLike[str]) -> tuple[dict[str, Any], int]:
    """Keys of a SIGPROC header and its length in bytes.

    Parameters
    ----------
    data : bytes
        The beginning of the file.
    path : path
        For error messages.

    Raises
    ------
    BadFile
        The header is cut off, has unknown keys, or impossible lengths.
    """
    at = 0
    keys: dict[str, Any] = {}
    freqs: list[float] = []

    def take(count: int, what: str) -> bytes:
        nonlocal at
        if at + count > len(data):
            raise BadFile(f"{path}: the header is cut off in {what}, at byte {at}")
        at += count
        return data[at - count : at]

    def word(what: str) -> str:
        (length,) = struct.unpack("<i", take(4, what))
        if not 0 <= length <= LONGEST_WORD or (length == 0 and what == "a key"):
            raise BadFile(f"{path}: the header has {what} of {length} bytes at byte {at - 4}; it is damaged")
        return take(length, what).decode("utf-8", errors="replace")

    if len(data) < 16 or data[4:16] != b"HEADER_START":
        raise BadFile(f"{path}: does not begin with HEADER_START, so it is not a SIGPROC file")
    at = 16
    while True:
        key = word("a key")
        if key == "HEADER_END":
            break
        if key in ("FREQUENCY_START", "FREQUENCY_END"):
            continue
        if key == "fchannel":
            freqs.append(struct.unpack("<d", take(8, key))[0])
        elif key in INTEGERS:
            keys[key] = struct.unpack("<i", take(4, key))[0]
        elif key in DOUBLES:
            keys[key] = struct.unpack("<d", take(8, key))[0]
        elif key in BYTES:
            keys[key] = take(1, key)[0]
        elif key in STRINGS:
            keys[key] = word(f"the text of {key}")
        else:
            raise BadFile(f"{path}: unknown header key {key!r} at byte {at}; its length cannot be known")
    if freqs:
        keys["fchannel"] = freqs
    return keys, at


def observation(keys: dict[str, Any], path: str | os.PathLike[str]) -> tuple[Observation, NDArray[np.int64]]:
    """A header as an `Observation`, and the channel of the file for each of its rows."""
    one = keys.get("nchans", 1) == 1
    series = keys.get("data_type", FILTERBANK) == TIME_SERIES or (one and "refdm" in keys)
    needed = ["nbits", "tsamp"]
    if not series:
        needed.append("nchans")
    if not series and "fchannel" not in keys:
        needed += ["fch1"] if keys.get("nchans") == 1 else ["fch1", "foff"]
    if lacking := [key for key in needed if key not in keys]:
        raise BadFile(f"{path}: the header lacks {', '.join(lacking)}")
    nbits, nchan = int(keys["nbits"]), int(keys.get("nchans", 1))
    if nbits not in SAMPLE_BITS:
        raise BadFile(f"{path}: nbits={nbits}; expected one of {', '.join(map(str, SAMPLE_BITS))}")
    if not 1 <= nchan <= MOST_CHANNELS:
        raise BadFile(f"{path}: nchans={nchan}; expected 1 to {MOST_CHANNELS}")
    if keys.get("nifs", 1) < 1:
        raise BadFile(f"{path}: nifs={keys['nifs']}; expected at least 1")
    if not math.isfinite(keys.get("tstart", 0.0)):
        raise BadFile(f"{path}: tstart={keys['tstart']}; expected an MJD")
    try:
        tsamp = check_tsamp(keys.get("tsamp", 0.0))
        if "fchannel" in keys:
            freqs = np.array(keys["fchannel"], np.float64)
            if len(freqs) != nchan:
                raise ValueError(f"nchans={nchan}, but {len(freqs)} fchannel entries")
            check_freqs(freqs, "fchannel")
        elif nchan == 1 and series:
            freqs = np.array([keys.get("fch1", 0.0)]) if keys.get("fch1", 0.0) > 0 else np.array([1000.0])
        else:
            freqs = regular_freqs(keys.get("fch1", 0.0), keys.get("foff", 0.0), nchan)
    except ValueError as error:
        raise BadFile(f"{path}: {error}") from None
    order = np.argsort(-freqs, kind="stable")
    telescope = keys.get("telescope_id")
    foff = keys.get("foff", 0.0)
    found = Observation(
        freqs[order],
        tsamp,
        nbits,
        float(keys.get("tstart", 0.0)),
        keys.get("source_name", ""),
        "" if telescope is None else TELESCOPES.get(telescope, f"telescope {telescope}"),
        15 * packed_to_degrees(keys["src_raj"]) if "src_raj" in keys else math.nan,
        packed_to_degrees(keys["src_dej"]) if "src_dej" in keys else math.nan,
        float(keys.get("refdm", 0.0)) if series else None,
        abs(foff) if nchan == 1 and foff else None,
        {k: v for k, v in keys.items() if k != "fchannel"},
    )
    return found, order


class SigprocReader:
    """Samples of one ``.fil`` or ``.tim``, channels in the order of the file.

    Parameters
    ----------
    path : path
    bit_order : {"little", "big"}
        For samples of fewer than 8 bits: whether the lowest bits of a byte hold the first channel (SIGPROC), or the
        highest.
    ifs : {"sum"} or int
        "sum" adds the first two IFs (both polarisations; a single IF is not changed); a number picks one.
    """

    takes_room = True

    def __init__(self, path: str | os.PathLike[str], bit_order: str = "little", ifs: str | int = "sum") -> None:
        self.path = Path(path)
        self._file = open(self.path, "rb")  # noqa: SIM115 - closed by close()
        self._threads = Threads()
        try:
            self._open(bit_order, ifs)
        except BaseException:
            self._file.close()
            raise

    def _open(self, bit_order: str, ifs: str | int) -> None:
        keys, self.start = read_header(self._head(), self.path)
        if keys.get("data_type", FILTERBANK) not in (FILTERBANK, TIME_SERIES, SUBBANDS, 0):
            raise BadFile(f"{self.path}: data_type={keys['data_type']}; expected 1 (filterbank) or 2 (time series)")
        self.observation, self.order = observation(keys, self.path)
        self.nbits, self.nchan = self.observation.nbits, self.observation.nchan
        self.nifs = int(keys.get("nifs", 1))
        self.lut = unpack_table(self.nbits, bit_order) if self.nbits < 8 else None
        self.high_first = bit_order == "big"
        self.ifs = choose_ifs(ifs, self.nifs)
        self.signed = bool(keys.get("signed", 0)) and self.nbits in (8, 16)
        self.row_bits = self.nbits * self.nchan * self.nifs
        if self.row_bits % 8:
            raise BadFile(f"{self.path}: a spectrum of {self.row_bits} bits does not fill whole bytes")
        self.row_bytes = self.row_bits // 8
        size = os.fstat(self._file.fileno()).st_size - self.start
        self.nsamp, rest = divmod(size, self.row_bytes)
        if self.nsamp == 0:
            raise BadFile(f"{self.path}: holds no whole spectrum ({size} bytes; one takes {self.row_bytes})")
        if rest:
            lost = f"{rest} bytes are" if rest > 1 else "byte is"
            warnings.warn(f"{self.path}: the last {lost} part of a spectrum and dropped", stacklevel=4)
        claimed = int(keys.get("nsamples", 0))
        if claimed > self.nsamp:
            warnings.warn(
                f"{self.path}: the header claims {claimed} samples, the file holds only {self.nsamp}, which are used",
                stacklevel=4,
            )
        if self.nbits == 32:
            self.dtype: np.dtype[Any] = np.dtype("<f4")
        elif self.nbits == 16:
            self.dtype = np.dtype("<i2" if self.signed else "<u2")
        else:
            self.dtype = np.dtype(np.int8 if self.signed else np.uint8)
        self.maximum = 0 if self.signed else largest(self.nbits, len(self.ifs))
        """Largest value of unsigned samples after the IFs are added; 0 for signed samples and floats."""
        self.packs = self.nbits < 8 and self.nifs == 1 and direction(self.order) != 0

    def _head(self) -> bytes:
        """The beginning of the file; more of it if a list of channels makes the header long."""
        head = self._file.read(SHORT_HEADER)
        if b"HEADER_END" not in head and b"FREQUENCY_START" in head:
            head += self._file.read(LONG_HEADER - len(head))
        return head

    def close(self) -> None:
        """Close the file, and end the threads that read it."""
        self._threads.close()
        self._file.close()

    def read(self, start: int, count: int, room: Room | None = None) -> NDArray[Any]:
        """Samples ``start : start + count``, shape (count, nchan), channels in the order of the file.

        They are in ``room`` if they are whole bytes of one IF.
        """
        raw = self._bytes(start, count, room)
        if self.lut is not None:
            values = unpacked(raw, self.lut).reshape(count, self.nifs, self.nchan)
        else:
            values = raw.view(self.dtype).reshape(count, self.nifs, self.nchan)
        if len(self.ifs) == 1:
            return values[:, self.ifs[0]]
        return add_ifs(values[:, self.ifs[0]], values[:, self.ifs[1]])

    def packed(self, start: int, count: int, room: Room | None = None) -> Packed:
        """The same samples, in the bits of the file; see `contract.Packed`."""
        data = self._bytes(start, count, room).reshape(count, self.row_bytes)
        return Packed(data, direction(self.order) < 0, self.nbits, self.high_first)

    def _bytes(self, start: int, count: int, room: Room | None = None) -> NDArray[np.uint8]:
        size = count * self.row_bytes
        raw = np.empty(size, np.uint8) if room is None else room.take(size)
        self._fill(memoryview(raw.data), self.start + start * self.row_bytes)
        return raw

    def _fill(self, view: memoryview, offset: int) -> None:
        """Read bytes from an offset of the file on; several threads share a long read."""
        step = THREAD_BYTES if len(view) >= 2 * THREAD_BYTES else max(1, len(view))
        parts = range(0, len(view), step)
        self._threads.run([partial(self._fill_part, view[at : at + step], offset + at) for at in parts])

    def _fill_part(self, view: memoryview, offset: int) -> None:
        fd = self._file.fileno()
        while len(view):
            got = os.preadv(fd, [view], offset)
            if got == 0:
                raise BadFile(f"{self.path}: ends {len(view)} bytes early; it was cut off after it was opened")
            view, offset = view[got:], offset + got


def unpack_table(nbits: int, bit_order: str) -> NDArray[np.uint8]:
    """The samples in each of the 256 bytes, shape (256, 8 // nbits)."""
    one_of("bit_order", bit_order, BIT_ORDERS)
    shifts = np.arange(0, 8, nbits)
    if bit_order == "big":
        shifts = shifts[::-1]
    return ((np.arange(256)[:, None] >> shifts) & (2**nbits - 1)).astype(np.uint8)


def unpacked(raw: NDArray[np.uint8], table: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Unpack bytes with the table of `unpack_table`, which gives all samples of a byte at once."""
    words = table.view(f"u{table.shape[1]}")[:, 0]
    found: NDArray[np.uint8] = words[raw].view(np.uint8)
    return found


def choose_ifs(ifs: str | int, nifs: int) -> tuple[int, ...]:
    """The IFs to add."""
    if ifs == "sum":
        return (0,) if nifs == 1 else (0, 1)
    if isinstance(ifs, bool) or not isinstance(ifs, (int, np.integer)) or not 0 <= ifs < nifs:
        raise ValueError(f"ifs={ifs!r}: expected 'sum' or a number from 0 to {nifs - 1}")
    return (int(ifs),)


def largest(nbits: int, nifs: int) -> int:
    """Largest sum of unsigned samples of 1 or 2 IFs; 0 if `add_ifs` makes it a float.

    >>> [largest(2, 1), largest(8, 2), largest(16, 2), largest(32, 1)]
    [3, 510, 0, 0]
    """
    return nifs * (2**nbits - 1) if nbits * nifs <= 16 else 0


def add_ifs(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Sum of two polarisations, in a type that is wide enough."""
    wider = {"u1": np.uint16, "i1": np.int16, "u2": np.float32, "i2": np.float32, "f4": np.float32}
    total: NDArray[Any] = np.add(a, b, dtype=wider[f"{a.dtype.kind}{a.dtype.itemsize}"])
    return total


# ---------------------------------------------------------------- writing


def header_bytes(obs: Observation, nbits: int, signed: bool, data_type: int = FILTERBANK, note: str = "") -> bytes:
    """The header of a file whose channels are in falling order of frequency."""
    numbers = {name: number for number, name in TELESCOPES.items()}

    def text(word: str) -> bytes:
        encoded = word.encode("ascii", errors="replace")[: LONGEST_WORD - 1]
        return struct.pack("<i", len(encoded)) + encoded

    parts = [text("HEADER_START"), text("source_name"), text(obs.source or "unknown")]
    if note:
        parts += [text("rawdatafile"), text(note)]

    def integer(key: str, value: int) -> None:
        parts.append(text(key) + struct.pack("<i", value))

    def double(key: str, value: float) -> None:
        parts.append(text(key) + struct.pack("<d", value))

    integer("machine_id", int(obs.extra.get("machine_id", 0)))
    integer("telescope_id", int(obs.extra.get("telescope_id", numbers.get(obs.telescope, 0))))
    for key in COPIED:
        if key in obs.extra:
            integer(key, int(obs.extra[key])) if key in INTEGERS else double(key, float(obs.extra[key]))
    if math.isfinite(obs.ra):
        double("src_raj", degrees_to_packed(obs.ra / 15))
    if math.isfinite(obs.dec):
        double("src_dej", degrees_to_packed(obs.dec))
    integer("data_type", data_type)
    if obs.regular:
        double("fch1", obs.top)
        double("foff", obs.foff)
    else:
        parts.append(text("FREQUENCY_START"))
        for f in obs.freqs:
            double("fchannel", float(f))
        parts.append(text("FREQUENCY_END"))
    if data_type == TIME_SERIES:
        double("refdm", obs.dm or 0.0)
    integer("nchans", obs.nchan)
    integer("nbits", nbits)
    integer("nifs", 1)
    if signed:
        parts.append(text("signed") + b"\x01")
    double("tstart", obs.tstart)
    double("tsamp", obs.tsamp)
    return b"".join([*parts, text("HEADER_END")])


def pack(rows: NDArray[Any], nbits: int) -> NDArray[Any]:
    """Pack samples of shape (n, nchan) for a file; below 8 bits the first channel is in the lowest bits of a byte."""
    if nbits >= 8:
        return rows
    per = 8 // nbits
    parts = rows.reshape(rows.shape[0], -1, per).astype(np.uint8)
    shifts = (nbits * np.arange(per)).astype(np.uint8)
    packed: NDArray[Any] = np.bitwise_or.reduce(parts << shifts, axis=2)
    return packed
