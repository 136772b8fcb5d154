"""Alert packets: from bytes to the objects and the rows of their light curves."""

from __future__ import annotations

import bz2
import importlib.util
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.errors import install_hint

from .schemas import Program, SchemaError, compile_schema
from .surveys import ROW

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "CODECS",
    "MAGIC",
    "SYNC",
    "BadPacket",
    "Decoder",
    "EndsEarly",
    "Header",
    "Packets",
    "read_header",
    "read_long",
]

MAGIC = b"Obj\x01"
"""The first bytes of an object container file."""
SYNC = 16
"""Bytes of the marker behind each block of a file."""


class BadPacket(ValueError):
    """Bytes that are no packet of a survey."""


def _snappy(data: bytes) -> bytes:
    """Decompress Avro's snappy block: compressed bytes, which begin with the size of the records, and their CRC-32."""
    import pyarrow

    packed, size, shift = data[:-4], 0, 0
    for byte in packed[:5]:
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if size > 64 * len(packed):  # three bytes encode a copy of 64 bytes at most
        raise BadPacket(f"its {len(packed)} bytes cannot hold {size} uncompressed bytes")
    records: bytes = pyarrow.decompress(packed, size, "snappy", asbytes=True)
    if zlib.crc32(records).to_bytes(4, "big") != data[-4:]:
        raise BadPacket("its checksum is wrong")
    return records


def _zstandard(data: bytes) -> bytes:
    import pyarrow

    with pyarrow.input_stream(pyarrow.BufferReader(data), compression="zstd") as stream:
        records: bytes = stream.read()
    return records


CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": lambda data: zlib.decompress(data, -15),
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
    "snappy": _snappy,
    "zstandard": _zstandard,
}
"""Functions that decompress the blocks of a file, by the name of the codec."""
BY_PYARROW = ("snappy", "zstandard")


class EndsEarly(ValueError):
    """Bytes that end too early."""


@dataclass
class Packets:
    """Packets that were read from one block or one message.

    Attributes
    ----------
    objects : list of int, str or None
        The object of each packet; None for packets without one, such as those of asteroids.
    counts : list of int
        Number of rows of each packet.
    rows : array of `surveys.ROW`
        Rows of the packets, one after another.
    left_out : int
        Rows without a value, an error or a band.
    bad : list of (str, bytes)
        Data that could not be read: the reason, and the bytes.
    """

    objects: list[Any] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    rows: NDArray[Any] = field(default_factory=lambda: np.empty(0, ROW))
    left_out: int = 0
    bad: list[tuple[str, bytes]] = field(default_factory=list)


@dataclass(frozen=True)
class Header:
    """The header of a container file: how its packets are read, the codec's name, the marker, the header's length."""

    program: Program
    codec: str
    sync: bytes
    size: int


class Decoder:
    """Reads packets; schemas are translated once.

    Parameters
    ----------
    schemas : mapping of int to dict, optional
        Schemas of Confluent's wire format by their numbers, as JSON holds them.

    Raises
    ------
    SchemaError
        One of these is not the schema of an alert.
    """

    def __init__(self, schemas: Mapping[int, Any] | None = None) -> None:
        from .cpu_avro import ERRORS, FULL, read_record

        self._read, self._errors, self._full = read_record, ERRORS, FULL
        self._programs: dict[bytes, Program] = {}
        self._numbered: dict[int, Program] = {}
        for number, schema in (schemas or {}).items():
            try:
                self._numbered[number] = compile_schema(schema)
            except SchemaError as error:
                raise SchemaError(f"--schema {number}: {error}") from None
        self._found = np.zeros(3, np.int64)
        self._room(4096)

    def _room(self, rows: int) -> None:
        self._whole, self._real = np.empty((rows, 4), np.int64), np.empty((rows, 3))
        self._kinds = np.empty(rows, np.uint8)

    def program(self, schema: bytes) -> Program:
        """The translation of a schema in JSON.

        Raises
        ------
        SchemaError
            It is not the schema of an alert.
        """
        known = self._programs.get(schema)
        if known is None:
            try:
                read = json.loads(schema)
            except (ValueError, RecursionError) as error:
                raise SchemaError(f"the schema is not JSON: {error}") from None
            known = self._programs[schema] = compile_schema(read)
        return known

    def message(self, data: bytes) -> Packets:
        """The packets of one message of Kafka: a container file, or a record in Confluent's wire format.

        Bytes that cannot be read are in ``bad``, as a whole; nothing is raised.
        """
        try:
            if data[:4] == MAGIC:
                return self._container(data)
            if data[:1] != b"\0" or len(data) < 5:
                raise BadPacket("is neither an Avro container file nor in Confluent's wire format")
            number = int.from_bytes(data[1:5], "big")
            if number not in self._numbered:
                raise BadPacket(f"has the schema number {number}, for which no file was given (--schema {number}=FILE)")
            made = self.block(self._numbered[number], data, 1, 5)
        except ValueError as error:
            return Packets(bad=[(str(error), data)])
        return Packets(bad=[(made.bad[0][0], data)]) if made.bad else made

    def _container(self, data: bytes) -> Packets:
        """All blocks of a container in memory."""
        header = read_header(data, self)
        made = [self.block(header.program, block, count) for count, block in _blocks(data, header)]
        if bad := [reason for one in made for reason, _ in one.bad]:
            raise BadPacket(bad[0])
        if len(made) == 1:
            return made[0]
        rows = np.concatenate([one.rows for one in made]) if made else np.empty(0, ROW)
        objects, counts = [o for one in made for o in one.objects], [n for one in made for n in one.counts]
        return Packets(objects, counts, rows, sum(one.left_out for one in made))

    def block(self, program: Program, data: bytes, count: int, at: int = 0) -> Packets:
        """Read `count` records that follow one another from `at` to the end of `data`.

        Records after a damaged one cannot be found: the rest of the block is added to ``bad``.
        """
        raw = np.frombuffer(data, np.uint8)
        objects: list[Any] = []
        ends: list[int] = []
        bad: list[tuple[str, bytes]] = []
        row, found = 0, self._found
        while len(objects) < count:
            start = at
            after, new, error = self._read(
                raw, at, len(raw), program.nodes, program.children, self._whole, self._real, self._kinds, row, found
            )
            if error == self._full and len(self._whole) < len(raw) + 4096:
                whole, real, kinds = self._whole, self._real, self._kinds
                self._room(4 * len(whole))
                self._whole[:row], self._real[:row], self._kinds[:row] = whole[:row], real[:row], kinds[:row]
                continue
            if error:
                bad.append((f"the record {self._errors[error]}", data[start:]))
                break
            objects.append(None if found[0] == 0 else int(found[1]) if found[0] == 1 else self._word(data, found))
            ends.append(new)
            at, row = after, new
        if not bad and at != len(raw):
            bad.append((f"{len(raw) - at} bytes follow the last record", data[at:]))
        rows = program.survey.rows(self._whole[:row], self._real[:row], self._kinds[:row])
        usable = rows["kind"] != 255
        counts = np.diff(np.concatenate([[0], np.cumsum(usable)])[[0, *ends]]).tolist()
        return Packets(objects, counts, rows[usable], int(row - usable.sum()), bad)

    @staticmethod
    def _word(data: bytes, found: NDArray[np.int64]) -> str:
        return data[found[1] : found[1] + found[2]].decode("utf-8", "backslashreplace")


def read_long(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Read an Avro ``long``, a whole number of variable length; return it and the position after it.

    Raises
    ------
    BadPacket
        It is longer than ten bytes.
    EndsEarly
        The bytes end in the middle of it.

    Examples
    --------
    >>> read_long(bytes([0x80, 0x01]), 0)
    (64, 2)
    """
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise EndsEarly("ends in the middle of a value")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at
    raise BadPacket("holds a whole number of more than ten bytes")


def _text(data: bytes | memoryview, at: int) -> tuple[bytes, int]:
    size, at = read_long(data, at)
    if size < 0:
        raise BadPacket("holds a negative length")
    if at + size > len(data):
        raise EndsEarly("ends in the middle of a value")
    return bytes(data[at : at + size]), at + size


def read_header(data: bytes | memoryview, decoder: Decoder) -> Header:
    """Read the header of a container file from its first bytes.

    Raises
    ------
    BadPacket
        It is not such a file, or has a codec that is not known.
    SchemaError
        Its schema is not that of an alert.
    EndsEarly
        The bytes end before the header does.
    """
    if data[:4] != MAGIC:
        raise BadPacket("is not an Avro container file")
    at, facts = 4, dict[bytes, bytes]()
    while True:
        count, at = read_long(data, at)
        if count == 0:
            break
        if count < 0:
            count, at = -count, read_long(data, at)[1]
        if count > len(data):
            raise BadPacket("has a damaged header")
        for _ in range(count):
            key, at = _text(data, at)
            facts[key], at = _text(data, at)
    if at + SYNC > len(data):
        raise EndsEarly("ends in the middle of its header")
    codec = facts.get(b"avro.codec", b"null").decode("utf-8", "backslashreplace")
    if codec not in CODECS:
        raise BadPacket(f"is compressed with {codec!r}: expected one of {', '.join(CODECS)}")
    if codec in BY_PYARROW and importlib.util.find_spec("pyarrow") is None:
        raise BadPacket(f"is compressed with {codec!r}, which needs pyarrow: {install_hint('pyarrow')}")
    if b"avro.schema" not in facts:
        raise BadPacket("has no schema in its header")
    return Header(decoder.program(facts[b"avro.schema"]), codec, bytes(data[at : at + SYNC]), at + SYNC)


def unpacked(codec: str, data: bytes) -> bytes:
    """The records of a block.

    Raises
    ------
    BadPacket
        The block is damaged.
    """
    try:
        return CODECS[codec](data)
    except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
        raise BadPacket(f"a block compressed with {codec!r} is damaged: {error}") from None


def _blocks(data: bytes, header: Header) -> Iterator[tuple[int, bytes]]:
    """The number of records and the unpacked records of each block."""
    at = header.size
    while at < len(data):
        count, at = read_long(data, at)
        size, at = read_long(data, at)
        end = at + size
        if count < 0 or size < 0 or data[end : end + SYNC] != header.sync:
            raise BadPacket("has a block that does not end with the file's marker")
        yield count, unpacked(header.codec, data[at:end])
        at = end + SYNC
