"""The folder with the finished parts of a long run, from which an interrupted run continues.

Next to the output ``OUT`` is a folder ``OUT.parts`` with ``run.json``, which lists the options and the input files, and
a file for each finished part.  Before the output has its name, its size and time of change are added to ``run.json``:
a run that continues replaces no output of another command.  Every file is written under another name, flushed to the
disk and renamed: however the run ends, the files are complete.  A file ``lock`` names the process that works there; the
system releases the lock when that process ends, however it ends.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .files import before_naming, remove_leftovers, written

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "InUse", "Lock", "OtherRun", "PartsFolder", "continues", "files_of", "has_written", "parts_folder", "read_json",
    "states_with",
]  # fmt: skip

MANIFEST, LOCK = "run.json", "lock"
WRITTEN, ENDED = "written", "ended"
"""Keys of the manifest: states of the output that the run has written; the exit code of a run whose parts remain to
be removed."""
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""Errors of a file system that has no locks."""


def parts_folder(output: Path) -> Path:
    """The folder with the parts of an output."""
    return output.with_name(output.name + ".parts")


def continues(output: Path | None, resume: bool) -> bool:
    """Whether a run with ``--resume`` finds parts of an earlier one, whose outputs it may then replace.

    Raises
    ------
    ValueError
        There is no file beside which parts can be stored.
    """
    if resume and (output is None or output == Path("-")):
        raise ValueError("--resume needs -o: finished parts are stored beside the output")
    return resume and output is not None and parts_folder(output).exists()


class OtherRun(ValueError):
    """The parts that were found belong to a run with other options or other files; the message is one line."""


class InUse(ValueError):
    """Another process works on the same output; the message is one line."""


def fingerprint(path: Path) -> list[Any]:
    """Name, size and time of change of a file, by which a run recognises it."""
    state = path.stat()
    return [str(path.resolve()), state.st_size, state.st_mtime_ns]


def has_written(manifest: Path, output: Path) -> bool:
    """Whether the output that exists is, by its size and time of change, one that the run of a manifest has written."""
    found = read_json(manifest) if manifest.exists() and output.is_file() else None
    return isinstance(found, dict) and fingerprint(output)[1:] in found.get(WRITTEN, [])


def states_with(states: list[Any], output: Path, part: Path) -> list[Any]:
    """The states of an output that a run has written, when it has completed a file that will replace the output."""
    now = fingerprint(output)[1:] if output.is_file() else None
    return [*(state for state in states if state == now), fingerprint(part)[1:]]


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


class PartsFolder:
    """The finished parts of one run: files whose names begin with five digits.

    Parameters
    ----------
    output : Path
        The output of the run.
    run : dict
        The options and files as JSON values.  A run that continues must have the same ones.

    Raises
    ------
    OtherRun
        If the folder holds parts of another run.
    InUse
        If another process works there.
    """

    def __init__(self, output: Path, run: dict[str, Any]) -> None:
        self.output, self.folder = output, parts_folder(output)
        self.damaged: list[str] = []
        self._run = run
        self._written: list[Any] = []
        self._ended: int | None = None
        self.lock = Lock(self.folder / LOCK)
        try:
            self._check(run)
        except BaseException:
            self.lock.close()
            raise
        remove_leftovers(output.absolute().parent, output)
        before_naming[output.resolve()] = self._record

    def _check(self, run: dict[str, Any]) -> None:
        """Check that the folder is empty, or holds parts of the same run."""
        manifest = self.folder / MANIFEST
        if manifest.exists():
            found, wanted = read_json(manifest), json.loads(json.dumps(run))
            if not isinstance(found, dict):
                raise OtherRun(f"{manifest} is damaged; delete the folder to start anew")
            complete = has_written(manifest, self.output)
            states, ended = found.pop(WRITTEN, []), found.pop(ENDED, None)
            different = [key for key in sorted({*found, *wanted}) if found.get(key) != wanted.get(key)]
            if not different:
                self._written, self._ended = states, ended if complete else None
                return
            if complete or any(p.name[:5].isdigit() for p in self.folder.glob("*.npz")):
                raise OtherRun(
                    f"{self.folder} holds parts of a run with other {', '.join(different)}; "
                    "repeat that run's command, or delete the folder"
                )
            for path in self.folder.glob("*.json"):  # that run has finished no part
                path.unlink()
        self._save()

    def _save(self) -> None:
        values = self._run | {WRITTEN: self._written, ENDED: self._ended}
        with written(self.folder / MANIFEST) as part:
            part.write_text(json.dumps(values, indent=1, sort_keys=True), encoding="utf-8")

    def _record(self, part: Path) -> None:
        """Note the state of the complete output, before it has its name."""
        self._written = states_with(self._written, self.output, part)
        self._save()

    def close(self) -> None:
        """Release the lock of the folder."""
        before_naming.pop(self.output.resolve(), None)
        self.lock.close()

    def ended(self) -> int | None:
        """The exit code of a run that was killed when it had written its output and removed the parts, else None.

        The removal is completed.
        """
        if self._ended is not None:
            self.remove(self._ended)
        return self._ended

    def remove(self, code: int = 0) -> None:
        """Remove the parts of a run with an exit code, when its output is written.

        Files that this class did not write stay.
        """
        self._ended = code
        self._save()
        remove_leftovers(self.output.absolute().parent, self.output)
        for path in self.folder.iterdir():
            if path.name[:5].isdigit() or _unfinished(path.name):
                path.unlink()
        (self.folder / MANIFEST).unlink(missing_ok=True)  # last: no parts are ever without it, however the process ends
        self.close()
        with suppress(OSError):  # other files are there, perhaps the lock of a run that starts now
            self.folder.rmdir()


def _unfinished(name: str) -> bool:
    """A temporary file that a killed run left."""
    ours = name.startswith(".run-") or (name.startswith(".") and name[1:6].isdigit())
    return ours and name.endswith((".json", ".npz"))


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None


def files_of(paths: Sequence[Path]) -> list[list[Any]]:
    """Fingerprints of the files that can be read now."""
    return [fingerprint(p) if p.exists() else [str(p), None, None] for p in paths]
