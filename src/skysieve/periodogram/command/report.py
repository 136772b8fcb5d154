"""Output of ``skysieve period`` on the terminal: a progress bar, a table of periods, a summary, words of errors."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from skysieve.core.command import counted, given, with_option
from skysieve.periodogram.contract import Status
from skysieve.periodogram.survey import METHOD_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray
    from rich.console import Console
    from rich.progress import ProgressColumn, Task

    from skysieve.periodogram.survey import Found, Request

MAX_ROWS = 20
WIDE = 200
"""Width of the table in files and pipes, whose rows are not folded."""
PLAIN_EVERY = 10.0
"""Seconds between two lines of progress without a terminal."""
ARGUMENTS = {
    "fmin": ("--max-period", "--fmin"), "fmax": ("--min-period", "--fmax"), "nf": ("--nf",),
    "samples_per_peak": ("--samples-per-peak",), "nterms": ("--nterms",), "n_peaks": ("--peaks",),
}  # fmt: skip
"""Options that set arguments of a search; the first one is named unless the user gave another."""


def clock(seconds: float) -> str:
    """A time in seconds as text.

    >>> clock(0.0123), clock(7.25), clock(95), clock(7384)
    ('12 ms', '7.2 s', '1 min 35 s', '2 h 3 min')
    """
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def objects_per_second(rate: float) -> str:
    """A rate as text.

    >>> objects_per_second(0.43), objects_per_second(1234.5)
    ('0.43 objects/s', '1,234 objects/s')
    """
    return f"{rate:,.0f} objects/s" if rate >= 10 else f"{rate:.2g} objects/s"


@contextmanager
def progress_bar(
    console: Console, label: str, total: int, wanted: bool = True
) -> Iterator[Callable[[int, int], None] | None]:
    """A ``progress(done, total)`` callback, or None unless it is wanted.

    On a terminal it draws a bar with the rate and the time left; elsewhere it prints a line now and then.
    """
    if not wanted:
        yield None
    elif console.is_terminal:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = [
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} objects"),
            _rate_column(),
            TimeRemainingColumn(),
            TextColumn("left"),
        ]
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(label, total=total)
            yield lambda done, _total: bar.update(task, completed=done)
    else:
        yield _plain(console, label)


def _rate_column() -> ProgressColumn:
    from rich.progress import ProgressColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(objects_per_second(speed) if speed else "")

    return Rate()


def _plain(console: Console, label: str) -> Callable[[int, int], None]:
    started = time.monotonic()
    next_line = started + PLAIN_EVERY

    def report(done: int, total: int) -> None:
        nonlocal next_line
        now = time.monotonic()
        if now < next_line or done == 0:
            return
        next_line = now + PLAIN_EVERY
        rate = done / (now - started)
        console.print(
            f"{label}: {done:,} of {total:,} objects, {objects_per_second(rate)}, {clock((total - done) / rate)} left",
            highlight=False,
            soft_wrap=True,
        )

    return report


def show_periods(console: Console, found: list[tuple[str, Found]], request: Request) -> None:
    """The best period of each object (first 20), or every peak where there is one object."""
    from rich.markup import escape
    from rich.table import Table

    several = len(found) > 1
    total = sum(len(f) for _, f in found)
    heading = f"{'rotation period' if request.asteroid else 'period'} [{request.unit}]"
    one = total == 1
    table = Table(box=None, pad_edge=False, header_style="bold")
    if several:
        table.add_column("file", overflow="fold")
    table.add_column("peak" if one else "id", overflow="fold")
    twice = [f"doubled [{request.unit}]", "delta chi2"] if request.both_readings else []
    for name in (heading, "+/-", *twice, "frequency [1/d]", "power", "FAP"):
        table.add_column(escape(name), justify="right", no_wrap=True)
    table.add_column("alias", overflow="fold")
    if not one:
        table.add_column("points", justify="right")
        table.add_column("note")
    shown = 0
    for file, f in found:
        for i in range(min(len(f), MAX_ROWS - shown)):
            peaks = range(f.frequency.shape[1]) if one else (0,)
            for k in peaks:
                nu = f.frequency[i, k]
                if one and not np.isfinite(nu):
                    continue
                cells = [""] * (6 + len(twice))
                if np.isfinite(nu):
                    chance = f"{f.fap[i, k]:.1e}" if np.isfinite(f.fap[i, k]) else "-"
                    period = request.scale / nu
                    both = [f"{2 * period:.7g}", f"{f.delta_chi2[i]:.4g}" if k == 0 else ""] if twice else []
                    alias = str(f.alias_text[i, k]) if one else f.ambiguity(i)
                    error = period * f.frequency_error[i, k] / nu
                    spread = f"{error:.1e}" if np.isfinite(error) else "-"
                    cells = [f"{period:.7g}", spread, *both, f"{nu:.8g}", f"{f.power[i, k]:.5f}", chance, escape(alias)]
                row = [str(k + 1) if one else escape(str(f.ids[i])), *cells]
                if not one:
                    row += [f"{f.n_used[i]:,}", "" if f.status[i] == Status.OK else Status(int(f.status[i])).text]
                table.add_row(*([escape(file), *row] if several else row))
            shown += 1
    if one and not table.row_count:
        return
    if not console.is_terminal:
        console.width = max(console.width, WIDE)
    console.print(table, soft_wrap=not console.is_terminal)
    if total > shown:
        console.print(f"... and {total - shown:,} more", highlight=False)


def left_out(missing: Mapping[str, int], n_rows: int) -> list[str]:
    """A line on the rows of a file that are not searched, and why (see `LightCurves.missing`)."""
    if not missing:
        return []
    listed = ", ".join(f"{n:,} {why}" for why, n in missing.items())
    advice = "; --quality-mask none keeps flagged rows" if any(why.startswith("flagged") for why in missing) else ""
    return [f"{sum(missing.values()):,} of {counted(n_rows, 'row')} left out: {listed}{advice}"]


def summary(
    found: Found,
    seconds: float,
    n_files: int,
    marked: Mapping[str, int] | None = None,
    separate: bool = False,
    noted: bool = False,
) -> list[str]:
    """Lines on the number of objects and points, the time and the methods; then on what was left out.

    ``separate``: bands of too few rows are left out.  ``noted``: notes have said which rows were left out.  If no
    object has a period, `PeriodRun` says so.
    """
    n, points = len(found), int(found.n_used.sum())
    bad = found.status[found.status != Status.OK]
    counts = np.bincount(found.method_number, minlength=len(METHOD_NAMES))
    searched = [k for k in np.argsort(-counts, kind="stable") if counts[k] and METHOD_NAMES[k] not in ("auto", "none")]
    used = " and ".join(METHOD_NAMES[searched]) or "none"
    files = f" of {n_files} files" if n_files > 1 else ""
    what = f"{counted(n, 'object')}{files}, {counted(points, 'point')}"
    rate = f" ({objects_per_second(n / seconds)})" if n > 1 else ""
    lines = [f"{what}, in {clock(seconds)}{rate}; method: {used}"]
    dropped = int(found.n_dropped.sum())
    flagged = {why: n for why, n in (marked or {}).items() if n}
    missing = dropped - sum(flagged.values())
    rows = f"{dropped:,} row{' was' if dropped == 1 else 's were'} left out: "
    listed = [f"{n:,} {why}" for why, n in flagged.items()]
    if missing > 0:
        listed.append(f"{missing:,} with missing or infinite values" + " or in a band of too few rows" * separate)
    if dropped and listed and not noted:
        lines.append(rows + ", ".join(listed))
    if 0 < len(bad) < n:
        lines.append(f"{len(bad):,} of {n:,} without a period: {reasons(bad)}")
    return lines


def reasons(status: NDArray[np.integer]) -> str:
    """Numbers of objects without a period and why they have none, the most frequent reason first."""
    return ", ".join(f"{c:,} ({Status(k).text})" for k, c in Counter(status.tolist()).most_common())


def with_search_options(text: str) -> str:
    """The text of an error of a search, with the names of `ARGUMENTS` replaced by options.

    Values such as ``fmin=0.1`` are those of the search, and not changed unless the user gave the option.

    >>> with_search_options("lower the highest frequency (fmax), nf or samples_per_peak")
    'lower the highest frequency (--min-period), --nf or --samples-per-peak'
    """

    def option(found: re.Match[str]) -> str:
        options = ARGUMENTS[found[0]]
        return next(iter(given(*options)), options[0])

    names = "|".join(ARGUMENTS)
    return re.sub(rf"(?<![\w./'\"-])({names})(?![\w=/'\"-]|\.\w)", option, with_option(text))
