"""Memory budgets, and the memory that is available."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path

__all__ = ["available_host_memory", "parse_budget"]

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[_letter + "b"] = 1000**_power
    _UNITS[_letter + "ib"] = _UNITS[_letter] = 1024**_power
_PATTERN = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]*|%)\s*", re.IGNORECASE)
_CGROUP = Path("/sys/fs/cgroup")


def parse_budget(memory: str | float | None, available: int, default: float = 0.5) -> int:
    """Return the number of bytes that a job may use.

    Parameters
    ----------
    memory : str, number or None
        A share of `available` (``"80%"``), an amount (``"2 GiB"``, ``"500 MB"``, ``"4G"``), a number of bytes, or
        None for the share `default` of `available`.
    available : int
        Bytes of the device that are free now.
    default : float
        Share if `memory` is None.

    Returns
    -------
    int
        At least 1 and less than 2**63; more than `available` if `memory` says so.

    Raises
    ------
    ValueError
        `memory` is not positive or cannot be read.

    Examples
    --------
    >>> parse_budget("25%", 4000), parse_budget("2 kB", 4000), parse_budget(500e6, 4000), parse_budget(None, 4000)
    (1000, 2000, 500000000, 2000)
    """
    expected = "expected a share such as '80%', an amount such as '2 GiB', or a number of bytes"
    if memory is None:
        return max(1, int(default * available))
    if isinstance(memory, str):
        match = _PATTERN.fullmatch(memory)
        if match is None:
            raise ValueError(f"memory={memory!r}: {expected}")
        number, unit = float(match[1]), match[2].lower()
        if unit == "%":
            if not 0 < number <= 100:
                raise ValueError(f"memory={memory!r}: expected a share above 0% and at most 100%")
            return max(1, int(number / 100 * available))
        if unit not in _UNITS:
            raise ValueError(f"memory={memory!r}: unknown unit {match[2]!r}; {expected}")
        size = number * _UNITS[unit]
    else:
        size = float(memory)
    if not 1 <= size < 2**63:
        raise ValueError(f"memory={memory!r}: {expected}")
    return int(size)


def available_host_memory() -> int:
    """Return the bytes of main memory that this process can still use, limited by its container."""
    return min(_system_available(), _cgroup_available())


def _system_available() -> int:
    if sys.platform == "win32":
        return _windows_available()
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:  # macOS, BSD: the standard library gives the total only
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(fields["MemAvailable" if "MemAvailable" in fields else "MemFree"].split()[0]) * 1024


def _windows_available() -> int:
    class Status(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ulong), ("load", ctypes.c_ulong), ("bytes", ctypes.c_ulonglong * 7)]

    status = Status()
    status.length = ctypes.sizeof(Status)
    ctypes.CDLL("kernel32").GlobalMemoryStatusEx(ctypes.byref(status))
    return int(status.bytes[1])


def _cgroup_available() -> int:
    """Return the bytes that the control groups of this process leave (version 2: every level; version 1: its root)."""
    folders = [(_CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")]
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return sys.maxsize
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    level = _CGROUP / own.lstrip("/")
    while level.is_relative_to(_CGROUP):
        folders.append((level, "memory.max", "memory.current", "inactive_file"))
        level = level.parent
    return min(_cgroup_room(*folder) for folder in folders)


def _cgroup_room(folder: Path, limit: str, usage: str, reclaimable: str) -> int:
    """Return limit minus use; cached pages of files that can be dropped do not count as used."""
    try:
        top = (folder / limit).read_text(encoding="ascii").strip()
        if top == "max":
            return sys.maxsize
        used = int((folder / usage).read_text(encoding="ascii"))
        stat = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
    except OSError:
        return sys.maxsize
    return max(0, int(top) - used + int(stat.get(reclaimable, 0)))
