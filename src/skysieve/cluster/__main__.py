"""``python -m skysieve.cluster``, which the scripts of batch systems call."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skysieve.core.command import USER_ERROR

from .command import report
from .description import Resources
from .slurm import finish, task

line = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
Folder = Annotated[Path, typer.Argument(help="Folder of the job, with manifest.json.")]


@line.command("task")
def task_(folder: Folder, number: int, of: int, threads: int | None = None, memory: str | None = None) -> None:
    """Compute partitions NUMBER, NUMBER + OF ...; exit code 85 after SIGTERM, SIGUSR2 or SIGINT."""
    raise typer.Exit(task(folder, number, of, Resources(threads, memory)))


@line.command("finish")
def finish_(folder: Folder) -> None:
    """Write the output from the partitions that are done."""
    try:
        outcome = finish(folder)
    except (ValueError, OSError) as error:
        typer.echo(f"skysieve: {error}", err=True)
        raise typer.Exit(USER_ERROR) from None
    raise typer.Exit(report(outcome, lambda text: typer.echo(text, err=True)))


if __name__ == "__main__":
    line()
