"""A search for `tests.dedispersion.test_search_several`, which a process of `at_once.Helpers` imports."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

_searched: list[int] = []


def search(folder: Path, first: int, number: int, device: str) -> tuple[int, str]:
    """Print a note, and return the number and whether another process than pytest's, ``first``, searched it.

    The other process cannot search its second number, and is killed at its third.  Until then, pytest's process
    searches only the numbers 0 and 1, and those that the other process began.
    """
    begun = folder / f"begun-{number}"
    sys.stderr.write(f"note: {number}\n")
    if os.getpid() == first:
        until = time.monotonic() + 30
        while number >= 2 and not begun.exists() and not (folder / "killed").exists() and time.monotonic() < until:
            time.sleep(0.01)
        return number, "here"
    begun.touch()
    _searched.append(number)
    if len(_searched) == 2:
        raise ValueError("damaged")
    if len(_searched) == 3:
        (folder / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number, f"there on {device}"
