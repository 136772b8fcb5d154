"""The option ``--cluster`` of long commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer

from skysieve.core.command import FAILED_SOME, STDIO, USER_ERROR, Messages, counted, with_option
from skysieve.core.errors import DeviceLost
from skysieve.core.memory import parse_budget

from .description import OutputError, folder_of, job
from .folder import Outcome, check_place
from .launchers import launcher, run, start_ahead
from .slurm import check_submission, submit

__all__ = ["launch", "report"]

MOST_LINES = 20
"""Failed partitions, and left-out inputs, that are listed."""


def launch(
    command: str,
    cluster: str,
    options: Mapping[str, Any],
    messages: Messages,
    names: Mapping[str, str] | None = None,
) -> int:
    """Run a command with ``--cluster``; returns its exit code.

    Parameters
    ----------
    command : str
        See `skysieve.cluster.job`.
    cluster : str
        The option.
    options : mapping of str to object
        All options of the command; ``output``, ``resume``, ``overwrite``, ``threads`` and ``memory`` among them.
    messages : Messages
    names : mapping of str, optional
        Options of arguments that have another name, see `skysieve.core.command.with_option`.

    Raises
    ------
    ValueError, OSError
        As `skysieve.cluster.job`, `skysieve.cluster.run` and `skysieve.cluster.submit`.
    """
    name, rest = launcher(cluster)
    output = options["output"]
    if output is None or output == STDIO:
        raise ValueError("--cluster needs -o: the results of each partition are stored beside the output")
    check_place(Path(output), options["resume"], options["overwrite"])
    parse_budget(options["memory"], 1)
    if name in ("slurm", "htcondor"):
        check_submission(name, options.get("device") or "auto")
    if name == "local" and options.get("device") in ("auto", "cpu", None):
        start_ahead(command)  # it imports while this process divides the input
    made = job(command, output, **{key: value for key, value in options.items() if key != "output"})
    for line in made.notes:
        messages.say(f"note: {line}")
    messages.say(f"{command}: {counted(len(made.partitions), 'partition')}")
    shared = {key: options[key] for key in ("resume", "overwrite", "threads", "memory")}
    if name in ("slurm", "htcondor"):
        for line in submit(made, name, tasks=int(rest) if rest else None, **shared):
            messages.say(line)
        return 0
    try:
        outcome = run(
            made, cluster, progress=messages.progress, note=lambda text: messages.say(f"note: {text}"), **shared
        )
    except (OutputError, DeviceLost):
        done = len(list(folder_of(output).glob("part-*.parquet")))
        if done:
            _complain(f"{counted(done, 'partition')} of {len(made.partitions):,} done; --resume continues from them")
        raise
    return report(outcome, messages.say, names)


def report(outcome: Outcome, say: Callable[[str], None], names: Mapping[str, str] | None = None) -> int:
    """Print what was done and what failed; returns the exit code.  `names`: see `with_option`."""
    for line in outcome.faults[:MOST_LINES]:
        file, colon, reason = line.partition(": ") if line.startswith("/") else ("", "", line)
        _complain(f"{file}{colon}{with_option(reason, names)}")
    if outcome.n_faults > MOST_LINES:
        _complain(f"... and {counted(outcome.n_faults - MOST_LINES, 'further input')} left out; see the manifest")
    for number, why in list(outcome.failed.items())[:MOST_LINES]:
        _complain(f"partition {number}: {with_option(why, names)}")
    if outcome.failed:
        _complain(
            f"{len(outcome.failed):,} of {counted(outcome.partitions, 'partition')} failed; --resume computes them "
            f"again ({outcome.folder})"
        )
    if not outcome.tables:
        _complain("nothing was written")
        return USER_ERROR
    counts = ", ".join(
        counted(n, what.removesuffix("s"), what) if what.endswith("s") else f"{n:,} {what}"
        for what, n in outcome.counts.items()
    )
    say(f"wrote {outcome.output}: {counted(outcome.rows, outcome.row)}" + (f" ({counts})" if counts else ""))
    nothing = outcome.needed is not None and not outcome.counts.get(outcome.needed)
    if nothing:
        _complain(f"{outcome.output} has no {outcome.row} {outcome.needed}; its rows give the reasons")
    return FAILED_SOME if outcome.failed or outcome.n_faults or nothing else 0


def _complain(text: str) -> None:
    typer.echo(f"skysieve: {text}", err=True)
