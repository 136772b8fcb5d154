"""Figures measured on this machine, kept in the user's cache folder.  The first measurement counts.

A process keeps what it used first, whatever happens to the files: what it chooses must not change from one call to
the next.  Each name has a file of its own.  It is written under a temporary name and then linked to its place; the
link fails where another process was first, and that one's figures are taken.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

__all__ = ["Figures", "cache_folder", "figures", "path_of"]

logger = logging.getLogger("skysieve")

Figures = dict[str, float]

_lock = threading.Lock()
_used: dict[str, Figures] = {}


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/skysieve`` or the system's like."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or _home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache")
    return base / "skysieve"


def _home() -> Path:
    """The user's folder; for a user of a container who has none, a place where nothing can be kept."""
    try:
        return Path.home()
    except RuntimeError:
        return Path(os.devnull)


def path_of(name: str) -> Path:
    """The file of a name."""
    return cache_folder() / f"{re.sub(r'[^A-Za-z0-9.]+', '-', name)}.json"


def figures(name: str, measure: Callable[[], Figures | None], defaults: Figures) -> Figures:
    """The figures of ``name``: those this process used before, those kept, or else measured and kept.

    Parameters
    ----------
    name : str
        What is measured, on which device, and a version.
    measure : callable
        Returns the figures, under the names that ``defaults`` has; None where they cannot be believed.  Then the
        defaults are used and nothing is kept.
    defaults : dict of str to float

    Notes
    -----
    A cache folder that cannot be read or written costs a measurement a process, nothing else.
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


def _read(path: Path, like: Figures) -> Figures | None:
    """What is kept; None where there is nothing, or nothing whole."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        found = {key: float(known[key]) for key in like}
    except (OSError, ValueError, TypeError, KeyError) as error:
        logger.debug("no figures in %s: %s", path, error)
        return None
    return found if len(known) == len(like) else None


def _keep(path: Path, measured: Figures, like: Figures) -> Figures:
    """Keep what was measured unless another process was first; what is kept in the end."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            temporary = Path(folder) / path.name
            temporary.write_text(json.dumps(measured, indent=1), encoding="utf-8")
            try:
                os.link(temporary, path)
            except OSError:  # another process was first, or there are no links here
                kept = _read(path, like)
                if kept is not None:
                    return kept
                temporary.replace(path)  # over what a crash has left, if anything
    except OSError as error:
        logger.info("figures cannot be kept in %s: %s", path, error)
        return measured
    return _read(path, like) or measured
