"""``status.json``: the state of a run, rewritten every second in its folder."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skysieve.core.files import written
from skysieve.core.plan import Closing

NAME = "status.json"
PERIOD = 1.0


class StatusFile(Closing):
    """Writes the state of a pipeline, in its own thread, so that a slow disk delays nothing else.

    Parameters
    ----------
    folder : path
        It must exist.
    read : callable
        Returns the state: `Pipeline.state`.
    about : dict
        Entries that do not change during the run, such as names.
    say : callable
        Is called with a line when the file cannot be written, and when it can be written again.
    streams : callable
        Returns the position up to which each beam is searched: `Pipeline.streams`.

    Attributes
    ----------
    errors : int
        Failed writes.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> StatusFile(folder, lambda: {"beams": 1}, {"source": "Crab"}).close()
    >>> json.loads((Path(folder) / NAME).read_text())["running"]
    False
    """

    def __init__(
        self, folder: str | os.PathLike[str], read: Callable[[], dict[str, Any]], about: dict[str, Any],
        say: Callable[[str], None] = lambda line: None, streams: Callable[[], dict[str, Any]] = dict,
    ) -> None:  # fmt: skip
        self.path = Path(folder) / NAME
        self.read, self.say, self.streams = read, say, streams
        self.about = {"pid": os.getpid(), "began": time.time(), **about}
        self.errors = 0
        self._over = threading.Event()
        self._refused = False
        self._write(True)
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(PERIOD):
            self._write(True)

    def _write(self, running: bool) -> None:
        body = {
            "version": 1, "running": running, "now": time.time(), "about": self.about, "streams": self.streams(),
            "state": self.read(),
        }  # fmt: skip
        try:
            with written(self.path, sync=False) as part:
                part.write_text(json.dumps(body, allow_nan=False), encoding="utf-8")
        except OSError as error:
            self.errors += 1
            if not self._refused:
                self.say(f"{self.path}: {error.strerror}; trying again every second")
            self._refused = True
        else:
            if self._refused:
                self.say(f"{self.path}: written again")
            self._refused = False

    def close(self) -> None:
        """Write that the run has ended; this waits at most five seconds for a disk that hangs."""
        self._over.set()
        self._thread.join(5)
        if not self._thread.is_alive():
            self._write(False)
