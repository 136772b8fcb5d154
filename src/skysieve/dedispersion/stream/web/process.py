"""Start the live page of a run: a separate process that reads the folder of the run.

Receiving and searching never wait for it: the run and the page exchange nothing but files, and the page has a lower
priority.
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

from skysieve.core.errors import install_hint
from skysieve.core.plan import Closing

PATIENCE = 60.0
"""Most seconds that the process may take to start."""
NEEDED = ("bokeh", "tornado", "jinja2")


def check_extra() -> None:
    """Check that the extra ``web`` is installed.

    Raises
    ------
    ModuleNotFoundError
        The message says how to install it.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(f"the live page needs {', '.join(missing)}: {install_hint('bokeh')}")


class PageProcess(Closing):
    """A process that serves the page of a folder; it ends with `close`, or when this process ends.

    Parameters
    ----------
    folder : path
        Folder of a run; it must exist.
    host, port : str, int
        Address of the page; port 0 takes a free one.
    say : callable
        Is called with a line if the process ends early.

    Attributes
    ----------
    port : int

    Raises
    ------
    ModuleNotFoundError
        The extra ``web`` is not installed.
    OSError
        The port is in use, or the process does not start.
    """

    def __init__(
        self, folder: str | os.PathLike[str], host: str, port: int, say: Callable[[str], None] = lambda line: None
    ) -> None:
        check_extra()
        self.say = say
        self._closing = threading.Event()
        self._errors: deque[str] = deque(maxlen=20)
        self._process = subprocess.Popen(
            # -P: do not import modules from the current folder
            [sys.executable, "-P", "-m", "skysieve.dedispersion.stream.web.server", os.fspath(folder), host, str(port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
            start_new_session=True,
        )  # fmt: skip  # in its own session, so that Ctrl-C at the terminal does not reach it
        self._reading = threading.Thread(target=self._read_errors, name="page-errors", daemon=True)
        self._reading.start()
        word, _, rest = self._first_line().partition(" ")
        if word != "ready":
            self.close()
            raise OSError(
                rest or "the process of the live page did not start: " + (" ".join(self._errors)[-500:] or "no message")
            )
        self.port = int(rest)
        self._watching = threading.Thread(target=self._watch, name="page", daemon=True)
        self._watching.start()

    def _first_line(self) -> str:
        """The first line of the process; empty if it ends or takes too long."""
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
            self.say(
                f"the process of the live page ended (status {status}): "
                f"{self._errors[-1] if self._errors else 'no message'}"
            )

    @property
    def alive(self) -> bool:
        """Whether the page is served."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process."""
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
