"""The live page of a run, as the run sees it: a process of its own that reads the run's folder.

Receiving and searching never wait for it: it is told nothing, asked for nothing, and has a higher niceness.
"""

from __future__ import annotations

import importlib.util
import os
import select
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds for the process to begin."""
NEEDED = ("bokeh", "tornado", "jinja2")


def check_extra() -> None:
    """Refuse where the extra is not installed.

    Raises
    ------
    ModuleNotFoundError
        It names the line that installs it.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(f"the live page needs {', '.join(missing)}: pip install 'skysieve[web]'")


class PageProcess:
    """A process that serves the page of a folder; ends with `close`, or when this process does.

    Parameters
    ----------
    folder : path
        Of a run, made already.
    host, port : str, int
        The loopback unless told otherwise; port 0 takes a free one.
    say : callable
        Takes a line when it ends before its time.

    Attributes
    ----------
    port : int

    Raises
    ------
    ModuleNotFoundError
        Without the extra ``web``.
    OSError
        When the port is taken, or the process does not begin.
    """

    def __init__(
        self, folder: str | os.PathLike[str], host: str, port: int, say: Callable[[str], None] = lambda line: None
    ) -> None:
        check_extra()
        self.say = say
        self._closing = threading.Event()
        self._errors: deque[str] = deque(maxlen=20)
        self._process = subprocess.Popen(
            # -P: modules of the same names in the folder where the command was given are not for it
            [sys.executable, "-P", "-m", "skysieve.dedispersion.stream.web.server", os.fspath(folder), host, str(port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
            start_new_session=True,
        )  # fmt: skip  # in a session of its own: the terminal's Ctrl-C is not for it
        self._reading = threading.Thread(target=self._read_errors, name="page-errors", daemon=True)
        self._reading.start()
        word, _, rest = self._first_line().partition(" ")
        if word != "ready":
            self.close()
            raise OSError(rest or "the page's process did not begin: " + (" ".join(self._errors)[-500:] or "no word"))
        self.port = int(rest)
        self._watching = threading.Thread(target=self._watch, name="page", daemon=True)
        self._watching.start()

    def _first_line(self) -> str:
        """What the process says first; empty when it ends or takes too long."""
        assert self._process.stdout is not None
        until = time.monotonic() + PATIENCE
        while (left := until - time.monotonic()) > 0:
            if select.select([self._process.stdout], [], [], left)[0]:
                return self._process.stdout.readline().strip()
        return ""

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors.append(line.strip())

    def _watch(self) -> None:
        status = self._process.wait()
        if not self._closing.is_set():
            self._reading.join(1)
            self.say(f"the page's process ended (status {status}): {self._errors[-1] if self._errors else 'no word'}")

    @property
    def alive(self) -> bool:
        """Whether it serves."""
        return self._process.poll() is None

    def metric(self) -> tuple[str, str, float]:
        """Whether it serves, for Prometheus."""
        return "Whether the live page is served.", "gauge", float(self.alive)

    def close(self) -> None:
        """End it."""
        self._closing.set()
        p = self._process
        assert p.stdin is not None
        assert p.stdout is not None
        p.stdin.close()
        try:
            p.wait(3)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
        p.stdout.close()
        self._reading.join(1)

    def __enter__(self) -> PageProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
