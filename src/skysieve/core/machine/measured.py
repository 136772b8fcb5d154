"""Figures that are measured on this machine and stored in the user's cache folder; the first measurement counts.

A process goes on using the figures that it used first, even if the file changes: its choices must not change from one
call to the next.  Each name has its own file.  A file is written under a temporary name and then linked to its place;
if another process has been faster, the link fails and that process's figures are used.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from skysieve.core.files import cache_folder

__all__ = ["Figures", "figures", "in_memory", "path_of", "store", "stored"]

logger = logging.getLogger("skysieve")

Figures = dict[str, float]

_lock = threading.Lock()
_used: dict[str, Figures] = {}
_unsaved: dict[str, Figures] | None = None
"""The figures that were stored in the context `in_memory`; None outside it."""


@contextmanager
def in_memory() -> Iterator[None]:
    """Context in which `store` writes no file, and `stored` returns the figures that `store` was given."""
    global _unsaved
    _unsaved = {}
    try:
        yield
    finally:
        _unsaved = None


def path_of(name: str) -> Path:
    """Return the file that stores the figures of `name`."""
    return cache_folder() / f"{re.sub(r'[^A-Za-z0-9.]+', '-', name)}.json"


def figures(name: str, measure: Callable[[], Figures | None], defaults: Figures) -> Figures:
    """Return the figures of `name`: those that this process used before, those stored, or those of a new measurement.

    Parameters
    ----------
    name : str
        What is measured, on which device, and a version.
    measure : callable
        Returns the figures, with the keys of `defaults`; None if they cannot be trusted.  Then the defaults are used
        and nothing is stored.
    defaults : dict of str to float

    Notes
    -----
    If the cache folder cannot be read or written, each process measures again.
    """
    with _lock:
        found = _used.get(name)
        if found is None:
            path = path_of(name)
            found = _read(path, defaults)
            if found is None:
                measured = measure()
                found = _keep(path, measured, defaults) if measured else _read(path, defaults) or dict(defaults)
            _used[name] = found
        return dict(found)


def stored(name: str) -> Figures | None:
    """Return the figures of `name` that are stored; None if there are none, or the file is damaged."""
    if _unsaved is not None and name in _unsaved:
        return dict(_unsaved[name])
    try:
        known = json.loads(path_of(name).read_text(encoding="utf-8"))
        return {str(key): float(value) for key, value in known.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        logger.debug("no figures of %s: %s", name, error)
        return None


def store(name: str, measured: Figures) -> None:
    """Store the figures of `name` in place of older ones; `OSError` if that is not possible."""
    if _unsaved is not None:
        _unsaved[name] = dict(measured)
        return
    path = path_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        temporary = Path(folder) / path.name
        temporary.write_text(json.dumps(measured, indent=1), encoding="utf-8")
        temporary.replace(path)


def _read(path: Path, like: Figures) -> Figures | None:
    """Return the stored figures; None if there is no file, or if it lacks some of them."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        found = {key: float(known[key]) for key in like}
    except (OSError, ValueError, TypeError, KeyError) as error:
        logger.debug("no figures in %s: %s", path, error)
        return None
    return found if len(known) == len(like) else None


def _keep(path: Path, measured: Figures, like: Figures) -> Figures:
    """Store the figures unless another process was faster; return those that are stored."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            temporary = Path(folder) / path.name
            temporary.write_text(json.dumps(measured, indent=1), encoding="utf-8")
            try:
                os.link(temporary, path)
            except OSError:  # another process was faster, or the file system has no links
                stored = _read(path, like)
                if stored is not None:
                    return stored
                temporary.replace(path)  # a crash may have left a broken file
    except OSError as error:
        logger.info("figures cannot be stored in %s: %s", path, error)
        return measured
    return _read(path, like) or measured
