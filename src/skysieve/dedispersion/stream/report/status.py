"""What a run tells about itself while it goes: ``status.json`` in its folder, a new one every second."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skysieve.core.files import written

NAME = "status.json"
PERIOD = 1.0


class StatusFile:
    """Writes the state of a pipeline in a thread of its own, so that a slow disk holds up nothing else.

    Parameters
    ----------
    folder : path
        Must exist.
    read : callable
        Gives the state: `Pipeline.state`.
    about : dict
        What stays the same: names, the highest DM.
    streams : callable
        Gives how far each beam is searched: `Pipeline.streams`.
    say : callable
        Takes a line when the file cannot be written, and when it can again.

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
                self.say(f"{self.path}: {error.strerror}; tried again every second")
            self._refused = True
        else:
            if self._refused:
                self.say(f"{self.path}: written again")
            self._refused = False

    def metric(self) -> tuple[str, str, float]:
        """Times that the file could not be written, for Prometheus."""
        return "Times that the state could not be written.", "counter", float(self.errors)

    def close(self) -> None:
        """Tell that the run is over; waits for a disk that hangs for five seconds at most."""
        self._over.set()
        self._thread.join(5)
        if not self._thread.is_alive():
            self._write(False)

    def __enter__(self) -> StatusFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
