"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

__all__ = ["remove_leftovers", "replace_file", "written"]

_PART = re.compile(r"\..+-[0-9a-f]{8}(\.\w+)?")
"""Names of unfinished files."""


@contextmanager
def written(path: str | os.PathLike[str], *, sync: bool = True) -> Iterator[Path]:
    """Write a file under another name in the same folder, and rename it to `path` when it is complete.

    Parameters
    ----------
    path : path
    sync : bool
        Wait until the file is on the disk before it is renamed; else a power cut can leave an empty file.

    Raises
    ------
    OSError
        The folder does not exist, `path` is a folder, or the disk is full; the message names `path`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with written(f"{folder}/a.txt") as part:
    ...         _ = part.write_text("hello")
    ...     os.listdir(folder)
    ['a.txt']
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "the folder does not exist", str(target.parent))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "this is a folder, expected the name of a file", str(target))
    part = target.with_name(f".{target.stem}-{uuid4().hex[:8]}{target.suffix}")
    try:
        yield part
        if sync:
            with open(part, "rb+") as file:
                os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove files that `written` left when its process was killed, a minute ago or longer."""
    for part in folder.glob(".*") if folder.is_dir() else ():
        with suppress(FileNotFoundError):  # another process finished or removed it in the meantime
            if _PART.fullmatch(part.name) and part.stat().st_mtime < time.time() - 60:
                part.unlink()


def replace_file(target: Path, write: Callable[[Path], None]) -> None:
    """Write a file under another name in the same folder, then rename it: whole or not at all."""
    handle, name = tempfile.mkstemp(prefix=f".{target.stem}-", suffix=target.suffix, dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
