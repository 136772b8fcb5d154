"""CSV tables that survive the process, and the lock of their folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skysieve.dedispersion.stream.records import CANDIDATE_COLUMNS, Column


class Table:
    """A CSV file to which lines are appended; each line is on the disk before `append` returns.

    Attributes
    ----------
    segments : dict
        For each beam, the highest segment number among the lines that the file already contained.

    Raises
    ------
    ValueError
        The file exists and is not a table with these columns.
    """

    def __init__(self, path: Path, columns: Sequence[Column] = CANDIDATE_COLUMNS) -> None:
        self.path, self.columns = path, columns
        self.segments: dict[int, int] = {}
        names = [c.name for c in columns]
        head = ",".join(names) + "\n"
        if path.exists() and path.stat().st_size:
            with open(path, "rb+") as file:
                body = file.read()
                if not body.startswith(head.encode()):
                    raise ValueError(f"{path} exists and is not a table of this version of skysieve")
                file.truncate(body.rfind(b"\n") + 1)  # remove an incomplete last line
            beam, segment = names.index("beam"), names.index("segment")
            for line in body[: body.rfind(b"\n")].split(b"\n")[1:]:
                cells = line.split(b",")
                if len(cells) == len(names) and cells[beam].isdigit() and cells[segment].isdigit():
                    number = int(cells[beam])
                    self.segments[number] = max(self.segments.get(number, 0), int(cells[segment]))
        else:
            with open(path, "w", encoding="ascii") as file:
                file.write(head)

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append rows, given as values by column name; on an OSError no row is appended."""
        data = "".join(f"{line_of(row, self.columns)}\n" for row in rows).encode()
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            size = os.fstat(handle).st_size
            done = 0
            try:
                while done < len(data):
                    done += os.write(handle, data[done:])
                os.fsync(handle)
            except OSError:
                if done > 0:
                    os.ftruncate(handle, size)
                raise
        finally:
            os.close(handle)


def line_of(row: dict[str, Any], columns: Sequence[Column] = CANDIDATE_COLUMNS) -> str:
    """A row as a line of the table, without its end."""
    return ",".join(c.cell(row[c.name]) for c in columns)


def lock_folder(folder: Path) -> int | None:
    """Lock a folder for one run, so that two runs do not mix their lines; None if the system has no such lock.

    Raises
    ------
    ValueError
        Another run holds the lock.
    """
    try:
        import fcntl
    except ModuleNotFoundError:
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ValueError(f"{folder}: another run writes to this folder") from None
    except OSError:  # network file systems may have no locks
        os.close(handle)
        return None
    return handle
