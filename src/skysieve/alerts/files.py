"""Packets from files: Avro object containers, and archives of them as ZTF publishes for each night."""

from __future__ import annotations

import io
import os
import re
import tarfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from .intake import Unit
from .packets import MAGIC, SYNC, BadPacket, Decoder, EndsEarly, Header, Packets, read_header, read_long, unpacked

if TYPE_CHECKING:
    from .store import Place

__all__ = ["FileSource"]

HEADER_BYTES = 2**16, 2**24
"""Bytes at the start of a file in which the header is looked for: at first, and if the header is longer."""
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
CUT_OFF = "ends before the end of the archive; what is complete was read"
PIECE = 2**20
READ = re.compile(r"CRC ([0-9a-f]{8}) of (\d+) bytes(?:, all of (\d+) bytes of (\d+) ns)?")
"""The mark of an archive: the checksum of its beginning, up to which it was read; if it was read to its end, also its
size and time of change."""


class FileSource:
    """Reads container files, archives of them, and the files of folders.

    Parameters
    ----------
    paths : sequence of path
        Files, or folders, of which all ``*.avro`` files and archives are read, also in subfolders.
    decoder : Decoder
    say : callable
        Gets a line on each file that cannot be read.
    watch : bool
        Look for new and longer files until the end of the process.  An archive is unpacked from its beginning: one that
        grows is read again when its size has doubled, or has not changed for as long as reading it took.

    Attributes
    ----------
    failed : dict of str to str
        Files that cannot be read, or not to their end, and why.

    Raises
    ------
    FileNotFoundError
        One of the paths does not exist.
    """

    def __init__(
        self, paths: Sequence[Path], decoder: Decoder, say: Callable[[str], None], *, watch: bool = False
    ) -> None:
        for path in paths:
            if not path.exists():
                raise FileNotFoundError(2, "No such file or directory", str(path))
        self._paths, self._decoder, self._say, self._watch = list(paths), decoder, say, watch
        self.failed: dict[str, str] = {}
        self._costs: dict[Path, tuple[int, float]] = {}
        self._grown: dict[Path, tuple[int, int, float]] = {}

    @property
    def fault(self) -> str:
        """See `intake.Source`: a file that cannot be read is no fault of the whole."""
        return ""

    def counts(self) -> dict[str, float]:
        """See `intake.Source`."""
        return {"files_failed": len(self.failed)}

    def _files(self) -> Iterator[Path]:
        for path in self._paths:
            if path.is_dir():
                inside = (p for p in path.rglob("*") if p.suffix == ".avro" or p.name.endswith(ARCHIVES))
                found = sorted(p for p in inside if not p.name.startswith("."))
                if not found and not self._watch:
                    self._say(f"{path}: holds no files with names that end with .avro, {', '.join(ARCHIVES)}")
                yield from found
            else:
                yield path

    def units(self, places: Callable[[], Mapping[Place, tuple[int, str]]], stop: threading.Event) -> Iterator[Unit]:
        """See `intake.Source`."""
        done = dict(places())
        seen: dict[Path, tuple[int, int]] = {}
        while True:
            new, started, listed = False, time.monotonic(), set[Path]()
            for path in self._files():
                listed.add(path)
                if stop.is_set():
                    return
                try:
                    about = path.stat()
                    if seen.get(path) == (about.st_size, about.st_mtime_ns) or self._waits(path, about):
                        continue
                    new = True
                    seen[path] = about.st_size, about.st_mtime_ns
                    for unit in self._of(path, about, done):
                        done[unit.place] = unit.following, unit.mark
                        yield unit
                    self.failed.pop(str(path), None)
                except (OSError, ValueError, tarfile.TarError) as error:
                    if not isinstance(error, FileNotFoundError) or path in self._paths:
                        self._fail(path, error)
            if not self._watch:
                return
            for gone in seen.keys() - listed:  # someone has moved or deleted it
                del seen[gone]
                self.failed.pop(str(gone), None)
            if not new:  # looking for files takes a fifth of a core at most
                stop.wait(max(0.2, 4 * (time.monotonic() - started)))

    def _fail(self, path: Path, error: Exception) -> None:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        growing = self._watch and isinstance(error, EndsEarly)  # someone may be writing it
        if self.failed.get(str(path)) != reason and not growing:
            self._say(f"{path}: {reason}")
        self.failed[str(path)] = reason

    def _waits(self, path: Path, about: os.stat_result) -> bool:
        """Whether an archive that was read before, and has changed since, is to be read later."""
        if path not in self._costs:
            return False
        size, seconds = self._costs[path]
        now, last = time.monotonic(), self._grown.get(path)
        if last is None or last[:2] != (about.st_size, about.st_mtime_ns):
            last = self._grown[path] = about.st_size, about.st_mtime_ns, now
        return about.st_size < 2 * size and now - last[2] < seconds

    def _of(self, path: Path, about: os.stat_result, done: Mapping[Place, tuple[int, str]]) -> Iterator[Unit]:
        place = os.fsencode(path.resolve()).decode("utf-8", "backslashreplace"), 0
        known = done.get(place, (0, ""))
        if path.name.endswith(ARCHIVES):
            started = time.thread_time()
            try:
                yield from self._archive(path, about, place, known)
            finally:
                self._costs[path] = about.st_size, time.thread_time() - started
            return
        with path.open("rb") as file:
            header = self._header(file)
            mark = header.sync.hex()
            at = known[0] if known[1] == mark else header.size
            size = os.fstat(file.fileno()).st_size
            while at < size:
                unit = self._block(file, at, header, place)
                yield unit
                at = unit.following

    def _header(self, file: BinaryIO) -> Header:
        for size in HEADER_BYTES:
            file.seek(0)
            start = file.read(size)
            if not start:
                raise BadPacket("is empty")
            try:
                return read_header(start, self._decoder)
            except EndsEarly:
                if len(start) < size:
                    raise
        raise BadPacket(f"has a header of more than {HEADER_BYTES[-1]} bytes")

    def _block(self, file: BinaryIO, at: int, header: Header, place: Place) -> Unit:
        """The block at a position of a file; damaged bytes up to the next marker count as one block."""
        mark, whole = header.sync.hex(), _whole_block(file, at, header.sync)
        if whole is None:
            found = _find(file, at, header.sync)
            if found < 0:
                size = os.fstat(file.fileno()).st_size
                raise EndsEarly(f"ends in the middle of a block, at byte {at} of {size}; what is complete was read")
            whole = _whole_block(file, at, header.sync)  # the file may have grown since it was found incomplete
            if whole is None:
                file.seek(at)
                bad = Packets(bad=[("a damaged block", file.read(found - at))])
                return Unit(place, at, found + SYNC, mark, bad, time.time())
        count, data, following = whole
        try:
            packets = self._decoder.block(header.program, unpacked(header.codec, data), count)
        except BadPacket as error:
            packets = Packets(bad=[(str(error), data)])
        return Unit(place, at, following, mark, packets, time.time())

    def _archive(self, path: Path, about: os.stat_result, place: Place, known: tuple[int, str]) -> Iterator[Unit]:
        before = READ.fullmatch(known[1])
        if before and before[3] and (int(before[3]), int(before[4])) == (about.st_size, about.st_mtime_ns):
            return
        with path.open("rb") as file:
            same = before is not None and _checksum(file, int(before[2])) == int(before[1], 16)
            skip = known[0] if same else 0
            file.seek(0)
            head, number = _Head(file), 0
            try:
                with tarfile.open(fileobj=head, mode="r|*", tarinfo=_Member) as archive:
                    for member in archive:
                        number += 1
                        name = member.name.rpartition("/")[2]
                        if number <= skip or not member.isfile() or not name.endswith(".avro") or name.startswith("."):
                            head.mark(archive.offset)
                            continue
                        content = archive.extractfile(member)
                        data = b"" if content is None else content.read()
                        packets = self._decoder.message(data) if data[:4] == MAGIC else None
                        if packets is None:
                            packets = Packets(bad=[(f"{member.name} is not an Avro container file", data)])
                        yield Unit(place, number - 1, number, head.mark(archive.offset), packets, time.time())
                    end = f"{head.mark(archive.offset)}, all of {about.st_size} bytes of {about.st_mtime_ns} ns"
            except tarfile.ReadError as error:
                if str(error) != "unexpected end of data":
                    raise
                raise EndsEarly(CUT_OFF) from None
            yield Unit(place, number, number, end, Packets(), time.time())


class _Head(io.RawIOBase):
    """A file that is read once, with the checksum of its beginning.

    Parameters
    ----------
    file : binary file
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file, self._waiting = file, b""
        self._size = self._end = self._crc = 0

    def read(self, size: int = -1) -> bytes:
        """Read bytes."""
        data = self._file.read(size)
        self._waiting += data
        self._add()
        return data

    def mark(self, end: int) -> str:
        """The mark of the bytes before `end` that were read; bytes behind it may change when an archive grows."""
        self._end = end
        self._add()
        return f"CRC {self._crc:08x} of {self._size} bytes"

    def _add(self) -> None:
        n = max(0, min(self._end - self._size, len(self._waiting)))
        self._crc = zlib.crc32(self._waiting[:n], self._crc)
        self._size, self._waiting = self._size + n, self._waiting[n:]


def _checksum(file: BinaryIO, size: int) -> int:
    """The checksum of the first bytes of a file, or of all if there are fewer."""
    crc = 0
    while size > 0 and (piece := file.read(min(size, PIECE))):
        crc = zlib.crc32(piece, crc)
        size -= len(piece)
    return crc


class _Member(tarfile.TarInfo):
    """A member of an archive.  `tarfile` would end without an error at a header that is damaged or cut off."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header."""
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) < tarfile.BLOCKSIZE:
                raise EndsEarly(CUT_OFF) from None
            if any(buf):
                raise BadPacket(f"holds a damaged header ({error}); what follows it cannot be read") from None
            raise  # zeros, which mark the end


def _whole_block(file: BinaryIO, at: int, mark: bytes) -> tuple[int, bytes, int] | None:
    """The number of records, the bytes and the end of the block at a position; None if the marker does not follow."""
    file.seek(at)
    start = file.read(20)
    try:
        count, used = read_long(start, 0)
        length, used = read_long(start, used)
    except ValueError:
        return None
    end = at + used + length
    if count < 0 or length < 0 or end > os.fstat(file.fileno()).st_size - SYNC:
        return None
    file.seek(at + used)
    data = file.read(length + SYNC)
    return (count, data[:length], end + SYNC) if data[length:] == mark else None


def _find(file: BinaryIO, at: int, mark: bytes) -> int:
    """The place of a marker in a file from `at` on; -1 if there is none."""
    file.seek(at)
    before = b""
    while piece := file.read(PIECE):
        found = (before + piece).find(mark)
        if found >= 0:
            return at - len(before) + found
        at += len(piece)
        before = (before + piece)[-(SYNC - 1) :]
    return -1
