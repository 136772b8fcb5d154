"""``python -m skysieve.cluster``, which the scripts of batch systems call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from skysieve.core.command import USER_ERROR
from skysieve.core.errors import one_line

from .command import report
from .description import Resources
from .slurm import finish, task

line = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
Folder = Annotated[Path, typer.Argument(help="Folder of the job, with manifest.json.")]


@contextmanager
def errors_in_a_line() -> Iterator[None]:
    """Print a mistake, such as a folder without a job, as one line."""
    try:
        yield
    except (ValueError, OSError) as error:
        typer.echo(f"skysieve: {one_line(error)}", err=True)
        raise typer.Exit(USER_ERROR) from None


@line.command("task")
def task_(folder: Folder, number: int, of: int, threads: int | None = None, memory: str | None = None) -> None:
    """Compute partitions NUMBER, NUMBER + OF ...; exit code 85 after SIGTERM, SIGUSR2 or SIGINT."""
    with errors_in_a_line():
        code = task(folder, number, of, Resources(threads, memory))
    raise typer.Exit(code)


@line.command("finish")
def finish_(folder: Folder) -> None:
    """Write the output from the partitions that are done."""
    with errors_in_a_line():
        outcome = finish(folder)
    raise typer.Exit(report(outcome, lambda text: typer.echo(text, err=True)))


if __name__ == "__main__":
    line()
