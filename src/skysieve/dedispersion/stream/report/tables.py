"""Tables of candidates that outlive the process, and the lock of their folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from skysieve.dedispersion.single_pulse.candidates import TEXT

COLUMNS = ("beam", "segment", *TEXT, "live", "beams", "flagged", "latency")
FORMATS = {**TEXT, "live": ".4f", "latency": ".3f"}


class Table:
    """A CSV file that lines are appended to, each on the disk before `append` returns.

    Attributes
    ----------
    segments : dict
        Highest number of a segment in the lines that were there, of each beam.

    Raises
    ------
    ValueError
        When the file is there and is another table.
    """

    def __init__(self, path: Path, names: tuple[str, ...] = COLUMNS) -> None:
        self.path, self.names = path, names
        self.segments: dict[int, int] = {}
        head = ",".join(names) + "\n"
        if path.exists() and path.stat().st_size:
            with open(path, "rb+") as file:
                body = file.read()
                if not body.startswith(head.encode()):
                    raise ValueError(f"{path} is there and is no table of candidates of this version")
                file.truncate(body.rfind(b"\n") + 1)  # a line that was cut off
            beam, segment = names.index("beam"), names.index("segment")
            for line in body[: body.rfind(b"\n")].split(b"\n")[1:]:
                cells = line.split(b",")
                if len(cells) == len(names) and cells[beam].isdigit() and cells[segment].isdigit():
                    number = int(cells[beam])
                    self.segments[number] = max(self.segments.get(number, 0), int(cells[segment]))
        else:
            with open(path, "w", encoding="ascii") as file:
                file.write(head)

    def append(self, lines: list[str]) -> None:
        """Lines, all of them or an OSError."""
        data = "".join(f"{line}\n" for line in lines).encode()
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            size = os.fstat(handle).st_size
            done = 0
            try:
                while done < len(data):
                    done += os.write(handle, data[done:])
                os.fsync(handle)
            except OSError:
                if done:
                    os.ftruncate(handle, size)
                raise
        finally:
            os.close(handle)


def line_of(columns: dict[str, Any], names: tuple[str, ...] = COLUMNS) -> str:
    """A candidate as a line of the table."""
    cells = []
    for name in names:
        value = columns[name]
        cells.append(format(value, FORMATS.get(name, ".9f")) if isinstance(value, float) else str(value))
    return ",".join(cells)


def claimed(folder: Path) -> int | None:
    """A lock on a folder, so that two runs do not cut each other's lines; None where the system has none.

    Raises
    ------
    ValueError
        When another run has it.
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
        raise ValueError(f"{folder}: another run writes there") from None
    except OSError:  # file systems of networks may have no locks
        os.close(handle)
        return None
    return handle
