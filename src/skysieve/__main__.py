"""``python -m skysieve`` and the command ``skysieve``: Ctrl-C ends it with code 130 and without a traceback."""

import atexit
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Any

INTERRUPTED = 130
MESSAGE = "skysieve: interrupted\n"
AGAIN = 0.01
"""Seconds after which an interrupt that Python dropped is raised again."""
FAILED = 1
"""Exit code that typer gives an interrupted command which does not handle it."""


def main() -> None:
    """Load and run the command."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # SIGINT is ignored in a background job
        _run()
        return
    signal.signal(signal.SIGINT, _leave)  # an exception in the middle of an import may be lost, or shown
    interrupted = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupted.append(number)
        raise KeyboardInterrupt

    report = sys.unraisablehook

    def unraisable(what: Any) -> None:
        """Raise an interrupt again if Python dropped it because it came during the clean-up of an object.

        Python would drop it once more in this function, so that a timer raises it.
        """
        if not issubclass(what.exc_type, KeyboardInterrupt):
            report(what)
        elif hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
        else:
            signal.raise_signal(signal.SIGINT)

    try:
        from .cli import main as run

        sys.unraisablehook = unraisable
        if hasattr(signal, "setitimer"):
            signal.signal(signal.SIGALRM, interrupt)
        signal.signal(signal.SIGINT, interrupt)
        run()
    except (KeyboardInterrupt, ImportError) as e:  # an interrupt during the import of a compiled module
        if isinstance(e, ImportError) and not interrupted:
            raise
        sys.stderr.write(MESSAGE)
        code: Any = INTERRUPTED
    except SystemExit as e:
        code = INTERRUPTED if interrupted and e.code == FAILED else e.code or 0
    else:
        code = 0
    signal.signal(signal.SIGINT, _leave)
    if interrupted and hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    if interrupted:
        _end(code)
    sys.exit(code)


def _end(code: Any) -> None:
    """End after Ctrl-C; if it interrupted code in ``exec``, Python's own exit would kill the process by the signal."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else FAILED)


def _run() -> None:
    from .cli import main as run

    run()


def _leave(number: int, frame: FrameType | None) -> None:
    """End the process at once."""
    sys.stderr.write(MESSAGE)
    sys.stderr.flush()
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
