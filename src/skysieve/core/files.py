"""Files: atomic writes, the selection of files by names and patterns, and the cache folder."""

from __future__ import annotations

import errno
import glob
import io
import itertools
import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from .arrays import to_arrow
from .errors import install_hint

__all__ = [
    "ROWS_TOGETHER",
    "before_naming",
    "cache_folder",
    "expand",
    "hdf5_file",
    "is_pattern",
    "is_special",
    "new_outputs",
    "parquet_rows",
    "parquet_schema",
    "remove_leftovers",
    "save_figure",
    "unused",
    "write_parquet",
    "written",
]

_PART = re.compile(r"\..+-[0-9a-f]{8}(\.\w+)?")
"""Names of unfinished files."""


ROWS_TOGETHER = 30_000
"""Fewest rows of a Parquet table that commands write together."""
SPECIAL = "this is a device or a pipe, which a file would replace; expected the name of a file"


def is_special(path: Path) -> bool:
    """Whether a path is a device, a pipe or a socket, also through a link."""
    return path.exists() and not path.is_file() and not path.is_dir()


new_outputs: set[Path] = set()
"""Outputs of this command that did not exist when it began, and that it may not replace."""

before_naming: dict[Path, Callable[[Path], None]] = {}
"""Functions by outputs of this command; each gets the complete file before it is renamed to the output."""


def unused(path: Path) -> Path:
    """`path`, or the first of ``name-2``, ``name-3`` ... that does not exist; it becomes one of `new_outputs`."""
    found = next(name for name in _numbered(path) if not name.exists())
    new_outputs.add(found.resolve())
    return found


def _numbered(path: Path) -> Iterator[Path]:
    return (path if k == 1 else path.with_name(f"{path.stem}-{k}{path.suffix}") for k in itertools.count(1))


def _named(part: Path, target: Path) -> bool:
    """Give a complete file the name `target`, unless a file has it; returns whether it did.

    A link is made in one step, so that of several processes one has the name.  File systems without links need two.
    """
    try:
        os.link(part, target)
    except OSError:
        if target.exists():
            return False
        part.replace(target)
    return True


@contextmanager
def written(path: str | os.PathLike[str], *, sync: bool = True) -> Iterator[Path]:
    """Write a file under another name in the same folder, and rename it to `path` when it is complete.

    Parameters
    ----------
    path : path
    sync : bool
        Wait until the file is on the disk before it is renamed; otherwise a power failure can leave an empty file.

    Raises
    ------
    OSError
        The folder does not exist, `path` is a folder, a device or a pipe, or the file cannot be written; the error
        names `path`, not the temporary file.
    FileExistsError
        Another process has written an output of `new_outputs` in the meantime.  The file was written under the first
        of ``name-2``, ``name-3`` ... that did not exist.

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
    if is_special(target):
        raise OSError(errno.EINVAL, SPECIAL, str(target))
    part = target.with_name(f".{target.stem}-{uuid4().hex[:8]}{target.suffix}")
    try:
        yield part
        if sync:
            with open(part, "rb+") as file:
                os.fsync(file.fileno())
        place = target.resolve()
        if place in before_naming:
            before_naming[place](part)
        if place not in new_outputs:
            part.replace(target)
        elif not _named(part, target):
            other = next(name for name in _numbered(target) if _named(part, name))
            why = f"another process has written it meanwhile; this result is in {other.name}"
            raise FileExistsError(errno.EEXIST, why, str(target))
        new_outputs.discard(place)
    except OSError as error:
        if error.filename not in (None, str(part), part):
            raise
        raise OSError(error.errno, error.strerror or str(error), str(target)) from error
    finally:
        part.unlink(missing_ok=True)


def remove_leftovers(folder: Path, output: Path | None = None) -> None:
    """Remove files that `written` left when its process was killed, a minute ago or longer.

    Parameters
    ----------
    folder : pathlib.Path
    output : pathlib.Path, optional
        Remove only those of this output.
    """
    ours = _PART
    if output is not None:
        ours = re.compile(rf"\.{re.escape(output.stem)}-[0-9a-f]{{8}}{re.escape(output.suffix)}")
    for part in folder.glob(".*") if folder.is_dir() else ():
        with suppress(FileNotFoundError):  # another process finished or removed it in the meantime
            if ours.fullmatch(part.name) and part.stat().st_mtime < time.time() - 60:
                part.unlink()


@contextmanager
def hdf5_file(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Make an HDF5 file in memory, and write it at the end; use it inside `written`.

    The HDF5 library does not survive a disk that fills while it writes: it ends the process when it closes the file.
    """
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"HDF5 files need h5py: {install_hint('h5py')}") from error

    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        yield file
    Path(path).write_bytes(content.getbuffer())


def save_figure(figure: Any, path: str | os.PathLike[str], dpi: float | None = None) -> None:
    """Write a Matplotlib figure; `dpi` is Matplotlib's own by default."""
    with written(path) as part:
        figure.savefig(part, dpi=dpi)


def write_parquet(
    columns: Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    units: Mapping[str, str] | None = None,
    facts: Mapping[str, str] | None = None,
) -> None:
    """Write columns of equal length as a Parquet table.

    Parameters
    ----------
    columns : mapping of str to array or Words
    path : path
        The file; use it inside `written`.
    units : mapping of str to str, optional
        Units of some of the columns; each is metadata of its column, under ``unit``.  `astropy.table.Table.read`
        finds them, too.
    facts : mapping of str to str, optional
        Metadata of the table.
    """
    parquet = _parquet()
    table, texts = _arrow_table(columns, units or {}, facts)
    parquet.write_table(table, path, use_dictionary=texts, write_page_checksum=True)


@contextmanager
def parquet_rows(path: str | os.PathLike[str]) -> Iterator[Callable[..., None]]:
    """Write a Parquet table some rows at a time, in a thread, to a file that appears when it is complete.

    Parameters
    ----------
    path : path

    Yields
    ------
    callable
        ``add(columns, units)`` takes the next rows; see `write_parquet`.

    Raises
    ------
    OSError
        As `written`; an error of the thread is raised by the next ``add``, or at the end.
    ValueError
        No rows were added: the columns of the table are not known.  No file appears.

    Examples
    --------
    >>> import tempfile, numpy
    >>> from pyarrow import parquet
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with parquet_rows(f"{folder}/a.parquet") as add:
    ...         add({"x": numpy.arange(2)}, {})
    ...         add({"x": numpy.arange(3)}, {})
    ...     parquet.read_table(f"{folder}/a.parquet").num_rows
    5
    """
    parquet = _parquet()
    writers: list[Any] = []
    waiting: deque[Future[None]] = deque()

    def write(columns: Mapping[str, Any], units: Mapping[str, str], part: Path) -> None:
        table, texts = _arrow_table(columns, units, None)
        if not writers:
            writers.append(parquet.ParquetWriter(part, table.schema, use_dictionary=texts))
        writers[0].write_table(table)

    with written(path) as part, ThreadPoolExecutor(1, "skysieve-write") as pool:

        def add(columns: Mapping[str, Any], units: Mapping[str, str]) -> None:
            while waiting and waiting[0].done():
                waiting.popleft().result()
            waiting.append(pool.submit(write, columns, units, part))

        try:
            yield add
            while waiting:
                waiting.popleft().result()
            if not writers:
                raise ValueError(f"{path}: no rows were added, so the columns of the table are not known")
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            for writer in writers:
                with suppress(OSError):  # on a full disk the footer fails too
                    writer.close()
            raise
        for writer in writers:
            writer.close()


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"writing .parquet needs pyarrow: {install_hint('pyarrow')}") from error
    return parquet


def _arrow_table(
    columns: Mapping[str, Any], units: Mapping[str, str], facts: Mapping[str, str] | None
) -> tuple[Any, list[str]]:
    """An Arrow table, and its columns of text.  Only these are stored with a dictionary: numbers seldom repeat."""
    import pyarrow

    arrays = [to_arrow(c) for c in columns.values()]
    fields = [
        pyarrow.field(name, array.type, metadata={"unit": units[name]} if name in units else None)
        for name, array in zip(columns, arrays, strict=True)
    ]
    texts = [field.name for field in fields if pyarrow.types.is_string(field.type)]
    return pyarrow.table(arrays, schema=parquet_schema(fields, facts)), texts


def parquet_schema(fields: Iterable[Any], facts: Mapping[str, str] | None = None) -> Any:
    """A schema of `pyarrow.Field` that repeats their units where `astropy.table.Table.read` looks for them.

    >>> import pyarrow
    >>> made = parquet_schema([pyarrow.field("x", "f8", metadata={"unit": "d"}), pyarrow.field("n", "i4")])
    >>> made.metadata
    {b'table_meta_yaml': b'{"datatype": [{"name": "x", "unit": "d"}, {"name": "n"}]}'}
    """
    import pyarrow

    fields = list(fields)
    units = {one.name: one.metadata[b"unit"].decode() for one in fields if b"unit" in (one.metadata or {})}
    columns = [{"name": one.name} | ({"unit": units[one.name]} if one.name in units else {}) for one in fields]
    text = {"table_meta_yaml": json.dumps({"datatype": columns}, ensure_ascii=False)} if units else {}
    return pyarrow.schema(fields, metadata={**(facts or {}), **text} or None)


def cache_folder() -> Path:
    """Return ``$SKYSIEVE_CACHE_DIR``; if it is not set, ``skysieve`` in the system's usual cache folder."""
    if own := os.environ.get("SKYSIEVE_CACHE_DIR"):
        return Path(own)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or _home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache")
    return base / "skysieve"


def _home() -> Path:
    """Return the user's home folder; if there is none, as in some containers, a path where no file can be written."""
    try:
        return Path.home()
    except RuntimeError:
        return Path(os.devnull)


def is_pattern(name: str | os.PathLike[str]) -> bool:
    """Whether a name is a pattern with ``*``, ``?`` or ``[`` and not a file."""
    return glob.has_magic(os.fspath(name)) and not Path(name).exists()


def expand(names: Iterable[str | os.PathLike[str]], endings: Collection[str]) -> list[Path]:
    """The files that the user's names, folders and patterns select, each once, also if it is named in two ways.

    Parameters
    ----------
    names : iterable of path
        Files; folders, of which all files with one of `endings` are taken except hidden ones; and patterns with
        ``*``, ``?``, ``[`` or ``**``.
    endings : collection of str
        Endings of file names, in lower case.

    Raises
    ------
    FileNotFoundError
        A folder holds no such file, or no file matches a pattern.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("b.dat", "a.DAT", "c.txt"):
    ...         _ = Path(folder, name).write_text("")
    ...     [path.name for path in expand([folder, f"{folder}/c*"], {".dat"})]
    ['a.DAT', 'b.dat', 'c.txt']
    """
    out: list[Path] = []
    for path in map(Path, names):
        if path.is_dir():
            seen = (one for one in path.iterdir() if not one.name.startswith("."))  # not files that are being written
            found = sorted(one for one in seen if one.suffix.lower() in endings and not one.is_dir())
        elif is_pattern(path):
            found = sorted(one for one in map(Path, glob.glob(os.fspath(path), recursive=True)) if not one.is_dir())
        else:
            found = [path]
        if not found:
            what = f"no file in it ends in {', '.join(sorted(endings))}" if path.is_dir() else "no file matches"
            raise FileNotFoundError(f"{path}: {what}")
        out += found
    found_once: dict[str, Path] = {}
    for path in out:
        found_once.setdefault(os.path.abspath(path), path)
    return list(found_once.values())
