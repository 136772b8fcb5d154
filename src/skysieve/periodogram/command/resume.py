"""Files of the finished parts of a long run, from which an interrupted run continues.

Next to the output ``OUT`` is a folder ``OUT.parts`` with ``run.json`` (what was asked, of which files), the
partitions of each file, and the answers of each finished one.  Every file is written under another name, flushed to
the disk and renamed: however the run ends, the files are complete.  A part that a disk has damaged all the same
is done again.  A file ``lock`` names the process that works there; the system releases the lock when that process
ends, however it ends.
"""

from __future__ import annotations

import errno
import io
import json
import os
import socket
import zipfile
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skysieve.core.files import written

from .survey import Found

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skysieve.periodogram.lightcurves.io import LightCurves

PARTITION, PARTITION_ROWS = 20_000, 4_000_000
"""Objects and rows of a partition: seconds to a minute of work."""
MANIFEST, LOCK = "run.json", "lock"
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""Errors of a file system that has no locks."""


def parts_folder(output: Path) -> Path:
    """Where the parts of an output are kept."""
    return output.with_name(output.name + ".parts")


class OtherRun(ValueError):
    """The parts that were found belong to a run with other options or other files; the message is one line."""


class InUse(ValueError):
    """Another process works on the same output; the message is one line."""


def fingerprint(path: Path) -> list[Any]:
    """Name, size and time of change of a file, by which a run recognises it."""
    state = path.stat()
    return [str(path.resolve()), state.st_size, state.st_mtime_ns]


class Lock:
    """A file that one process at a time may hold; its text names the holder.

    Raises
    ------
    InUse
        If another process holds it.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.note = path, ""
        self._handle: int | None = None
        while self._handle is None:
            path.parent.mkdir(exist_ok=True)
            try:
                handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            except FileNotFoundError:  # the run that ended now has removed the folder
                continue
            self._handle = self._taken(handle)
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def _taken(self, handle: int) -> int | None:
        """Lock the file; returns the handle, or None if the file has been removed in the meantime."""
        try:
            import fcntl
        except ModuleNotFoundError:
            self.note = "this system has no file locks: do not start a second run on the same output"
            return handle
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
            os.close(handle)
            folder = self.path.parent
            raise InUse(f"{folder} is in use by {holder}; wait until it ends, or give another output") from None
        except OSError as e:
            if e.errno not in NO_LOCKS:
                os.close(handle)
                raise
            self.note = f"{self.path.parent}: no file locks here: do not start a second run on the same output"
            return handle
        try:
            if os.path.samestat(os.fstat(handle), os.stat(self.path)):
                return handle
        except FileNotFoundError:
            pass
        os.close(handle)
        return None

    def close(self) -> None:
        """Release the lock."""
        if self._handle is not None:
            self.path.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = None


class Parts:
    """The partitions of one run.

    Parameters
    ----------
    output : Path
        Table that the run is to write.
    run : dict
        The options and files, as JSON holds them: a run that continues must have the same.

    Raises
    ------
    OtherRun
        If the folder holds parts of another run.
    InUse
        If another process works there.
    """

    def __init__(self, output: Path, run: dict[str, Any]) -> None:
        self.folder = parts_folder(output)
        self.damaged: list[str] = []
        self.lock = Lock(self.folder / LOCK)
        try:
            self._check(run)
        except BaseException:
            self.lock.close()
            raise

    def _check(self, run: dict[str, Any]) -> None:
        """Check that the folder is empty, or holds parts of the same run."""
        manifest = self.folder / MANIFEST
        text = json.dumps(run, indent=1, sort_keys=True)
        if manifest.exists():
            found, wanted = _json(manifest), json.loads(text)
            if not isinstance(found, dict):
                raise OtherRun(f"{manifest} is damaged; delete the folder to start anew")
            different = [key for key in sorted({*found, *wanted}) if found.get(key) != wanted.get(key)]
            if not different:
                return
            if any(p.name[:5].isdigit() for p in self.folder.glob("*.npz")):
                raise OtherRun(
                    f"{self.folder} holds parts of a run with other {', '.join(different)}; "
                    "repeat that run's command, or delete the folder"
                )
            for path in self.folder.glob("*.json"):  # that run has finished no part
                path.unlink()
        with written(manifest) as part:
            part.write_text(text, encoding="utf-8")

    def edges(self, file: int) -> list[int] | None:
        """Where the partitions of a file start (and the last ends), if the file was cut before."""
        path = self.folder / f"{file:05d}.json"
        edges = _json(path) if path.exists() else None
        if not isinstance(edges, list) or not all(isinstance(edge, int) for edge in edges):
            return None  # a damaged list is made again, and is the same
        return edges if edges[:1] == [0] and edges == sorted(set(edges)) else None

    def cut(self, file: int, curves: LightCurves, objects: int) -> list[int]:
        """Cut a file into partitions, or find where it was cut."""
        known = self.edges(file)
        if known is not None:
            return known
        edges = [0]
        while edges[-1] < len(curves):
            edges.append(curves.stop_after(edges[-1], objects, PARTITION_ROWS))
        with written(self.folder / f"{file:05d}.json") as part:
            part.write_text(json.dumps(edges), encoding="utf-8")
        return edges

    def complete(self, file: int) -> int:
        """Number of partitions of a file if all of them are done, else 0."""
        edges = self.edges(file)
        if edges is None:
            return 0
        n = len(edges) - 1
        return n if all(self.load(file, k) is not None for k in range(n)) else 0

    def _path(self, file: int, k: int) -> Path:
        return self.folder / f"{file:05d}-{k:06d}.npz"

    def load(self, file: int, k: int) -> Found | None:
        """Answers of a partition; None if it is not done, or damaged: then it is noted in ``damaged`` and removed."""
        path = self._path(file, k)
        if not path.exists():
            return None
        whole = io.BytesIO(path.read_bytes())  # here a damaged offset is a ValueError, not an error of the disk
        try:
            with np.load(whole, allow_pickle=False) as held:
                return Found(**{f.name: held[f.name] for f in fields(Found)})
        except (zipfile.BadZipFile, EOFError, KeyError, ValueError, RuntimeError):  # the last: bits of a member's flags
            path.unlink()
            self.damaged.append(path.name)
            return None

    def save(self, file: int, k: int, found: Found) -> None:
        """Write the answers of a partition."""
        arrays = {f.name: getattr(found, f.name) for f in fields(Found)}

        whole = io.BytesIO()  # the ZIP archive tries to write again when it is deleted
        np.savez(whole, **{n: a.astype(str) if a.dtype.kind == "O" else a for n, a in arrays.items()})
        with written(self._path(file, k)) as part:
            part.write_bytes(whole.getvalue())

    def close(self) -> None:
        """Release the lock of the folder."""
        self.lock.close()

    def remove(self) -> None:
        """Remove the parts, when the output is written.  Files that this class did not write stay."""
        for path in self.folder.iterdir():
            if path.name == MANIFEST or path.name[:5].isdigit() or _unfinished(path.name):
                path.unlink()
        self.close()
        with suppress(OSError):  # other files are there, perhaps the lock of a run that starts now
            self.folder.rmdir()


def _unfinished(name: str) -> bool:
    """A temporary file that a killed run left."""
    return name.startswith((".run-", ".0")) and name.endswith((".json", ".npz"))


def _json(path: Path) -> Any:
    """The content of a JSON file; None if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None


def files_of(paths: Sequence[Path]) -> list[list[Any]]:
    """Fingerprints of the files that can be read now."""
    return [fingerprint(p) if p.exists() else [str(p), None, None] for p in paths]
