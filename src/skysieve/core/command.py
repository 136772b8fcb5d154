"""What the command lines of all domains share: options, lists of numbers, errors in one line, exit codes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

import typer

from .errors import one_line

__all__ = ["FAILED_SOME", "INTERRUPTED", "USER_ERROR", "Dtype", "number_list", "option", "report_errors"]

FAILED_SOME, USER_ERROR, INTERRUPTED = 1, 2, 130
"""Exit codes: some inputs could not be used; wrong arguments, or a limit of the machine; Ctrl-C or SIGTERM."""
EXTRAS = {"matplotlib": "plot", "h5py": "hdf5", "pyarrow": "tables"}
"""Optional packages, and the extra of this package that installs each."""


class Dtype(StrEnum):
    """Floating-point type of the computation."""

    float64 = "float64"
    float32 = "float32"


def option(*names: str, help: str, panel: str | None = None, metavar: str | None = None, **more: Any) -> Any:
    """A typer option in the panel `panel` of the help screen; the help text states the default."""
    return typer.Option(*names, help=help, rich_help_panel=panel, metavar=metavar, show_default=False, **more)


@contextmanager
def report_errors(interrupted: str = "interrupted") -> Iterator[None]:
    """Print an error as one line and exit with `USER_ERROR`; exit with `INTERRUPTED` after Ctrl-C or SIGTERM.

    Parameters
    ----------
    interrupted : str
        The message after an interrupt.

    Notes
    -----
    SIGTERM raises KeyboardInterrupt inside the block, as Ctrl-C does, so that unfinished files are removed.  A handler
    that is installed already is kept.
    """
    main = threading.current_thread() is threading.main_thread()
    install = main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if install:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except (ValueError, TypeError, OSError, MemoryError, RuntimeError, ImportError) as error:
        text = one_line(error)
        if isinstance(error, ModuleNotFoundError) and (package := (error.name or "").partition(".")[0]) in EXTRAS:
            text += f": pip install 'skysieve[{EXTRAS[package]}]'"
        typer.echo(f"skysieve: {text}", err=True)
        raise typer.Exit(USER_ERROR) from None
    except KeyboardInterrupt:
        typer.echo(f"skysieve: {interrupted}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if install:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def number_list(text: str, name: str, end: int, what: str = "numbers") -> list[int]:
    """Read a list of whole numbers and ranges; both ends of a range are included.

    Parameters
    ----------
    text : str
    name : str
        The option, for the error.
    end : int
        All numbers must lie below.
    what : str
        What the numbers are, for the error.

    Raises
    ------
    ValueError
        `text` is not such a list, a range falls, or a number is not in 0 ... ``end - 1``.

    Examples
    --------
    >>> number_list("0,5:9", "--ignore", 64)
    [0, 5, 6, 7, 8, 9]
    """
    found: list[int] = []
    for part in text.split(","):
        first, colon, last = part.partition(":")
        try:
            low = int(first)
            high = int(last) if colon else low
        except ValueError:
            raise ValueError(f"{name} {text}: expected {what} such as 0,5:9") from None
        if not 0 <= low <= high < end:
            raise ValueError(f"{name} {text}: expected {what} from 0 to {end - 1}, and ranges that rise")
        found += range(low, high + 1)
    return found
