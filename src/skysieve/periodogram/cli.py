"""``skysieve period``: the periods of every object in light-curve files."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from skysieve.periodogram.io import LightCurves, Wanted
    from skysieve.periodogram.search import Found, Request

MAX_PLOTS = 50
FAILED_SOME, USER_ERROR, INTERRUPTED = 1, 2, 130


class Normalization(StrEnum):
    """Normalisations of the power."""

    standard = "standard"
    model = "model"
    log = "log"
    psd = "psd"
    scargle = "scargle"


class Method(StrEnum):
    """Ways to compute it."""

    auto = "auto"
    direct = "direct"
    nufft = "nufft"
    finufft = "finufft"


class Dtype(StrEnum):
    """Arithmetic."""

    float64 = "float64"
    float32 = "float32"


class TimeUnit(StrEnum):
    """Units of time."""

    d = "d"
    h = "h"
    min = "min"
    s = "s"
    yr = "yr"


class UserError(Exception):
    """A mistake of the user's, in one line."""


COLUMNS, GRID, SEARCH, OUTPUT = "Columns of the files", "Range of periods", "Search", "Output"


def option(*names: str, help: str, panel: str, metavar: str | None = None, **more: Any) -> Any:
    """A typer option in one of the help's panels."""
    return typer.Option(*names, help=help, rich_help_panel=panel, metavar=metavar, show_default=False, **more)


def period(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="CSV, text, Parquet, FITS or ECSV tables.")],
    id_: Annotated[
        str | None, option("--id", help="Column that names the objects.", panel=COLUMNS, metavar="COLUMN")
    ] = None,
    time_: Annotated[str | None, option("--time", help="Column of times.", panel=COLUMNS, metavar="COLUMN")] = None,
    mag: Annotated[
        str | None, option("--mag", help="Column of magnitudes or fluxes.", panel=COLUMNS, metavar="COLUMN")
    ] = None,
    err: Annotated[str | None, option("--err", help="Column of their errors.", panel=COLUMNS, metavar="COLUMN")] = None,
    no_err: Annotated[bool, option("--no-err", help="Leave the errors unused.", panel=COLUMNS)] = False,
    band: Annotated[
        str | None, option("--band", help="Keep the rows of one band.", panel=COLUMNS, metavar="BAND")
    ] = None,
    time_unit: Annotated[
        TimeUnit, option("--time-unit", help="Unit of times that carry none (d).", panel=COLUMNS)
    ] = TimeUnit.d,
    min_period: Annotated[
        float | None, option("--min-period", help="Shortest, in the unit shown.", panel=GRID, metavar="P")
    ] = None,
    max_period: Annotated[
        float | None, option("--max-period", help="Longest, in the unit shown.", panel=GRID, metavar="P")
    ] = None,
    fmin: Annotated[
        float | None, option("--fmin", help="Lowest frequency, cycles a day.", panel=GRID, metavar="F")
    ] = None,
    fmax: Annotated[
        float | None, option("--fmax", help="Highest frequency, cycles a day.", panel=GRID, metavar="F")
    ] = None,
    nf: Annotated[
        int | None, option("--nf", help="Number of frequencies, both ends included.", panel=GRID, metavar="N")
    ] = None,
    samples_per_peak: Annotated[
        float,
        option("--samples-per-peak", help="Frequencies in 1/T, where --nf is not given (5).", panel=GRID, metavar="N"),
    ] = 5,
    no_fit_mean: Annotated[
        bool, option("--no-fit-mean", help="Classical Lomb-Scargle: no floating mean.", panel=SEARCH)
    ] = False,
    normalization: Annotated[
        Normalization, option("--normalization", help="Scale of the power (standard).", panel=SEARCH)
    ] = Normalization.standard,
    peaks: Annotated[
        int, option("--peaks", help="Best periods kept for each object (5).", panel=SEARCH, metavar="N", min=1)
    ] = 5,
    method: Annotated[Method, option("--method", help="How the sums are made (auto).", panel=SEARCH)] = Method.auto,
    device: Annotated[
        str, option("--device", help="auto, cpu, cuda, cuda:1 (auto).", panel=SEARCH, metavar="DEVICE")
    ] = "auto",
    dtype: Annotated[Dtype, option("--dtype", help="Arithmetic (float64).", panel=SEARCH)] = Dtype.float64,
    asteroid: Annotated[
        bool, option("--asteroid", help="Rotation periods, twice the light curve's, in hours.", panel=OUTPUT)
    ] = False,
    hours: Annotated[
        bool, option("--hours", help="Periods in hours; the same as --period-unit h.", panel=OUTPUT)
    ] = False,
    period_unit: Annotated[
        TimeUnit | None, option("--period-unit", help="Unit of the periods, given and shown (d).", panel=OUTPUT)
    ] = None,
    output: Annotated[
        Path | None,
        option("-o", "--output", help="Table of periods: .csv .parquet .fits .ecsv", panel=OUTPUT, metavar="OUT"),
    ] = None,
    plot: Annotated[
        Path | None,
        option("--plot", help=f"Folder for a PNG of each object (first {MAX_PLOTS}).", panel=OUTPUT, metavar="DIR"),
    ] = None,
    plot_all: Annotated[bool, option("--plot-all", help="A PNG of every object.", panel=OUTPUT)] = False,
    quiet: Annotated[bool, option("-q", "--quiet", help="Print errors only.", panel=OUTPUT)] = False,
) -> None:
    """Find the periods of the objects in light-curve files.

    Columns are found by their usual names; files without a header by their number of columns
    (time mag, time mag err, id time mag, id time mag err). With no range of periods given, each
    object is searched from its own time span.

    Examples:

    - skysieve period star.csv
    - skysieve period survey.parquet --min-period 0.1 --max-period 100 -o periods.parquet
    - skysieve period asteroids.txt --asteroid --min-period 2 --max-period 300 -o spins.csv
    """
    from rich.console import Console

    from skysieve.periodogram.colnames import Wanted

    console, log = Console(highlight=False), Console(stderr=True, highlight=False, soft_wrap=True)
    job = Job(console, log, quiet, len(files))
    try:
        unit = "h" if (hours or asteroid) and period_unit is None else (period_unit or TimeUnit.d).value
        if hours and unit != "h":
            raise UserError(f"--hours and --period-unit {unit} contradict each other")
        if err and no_err:
            raise UserError("--err and --no-err contradict each other")
        arguments = _grid_arguments(min_period, max_period, fmin, fmax, nf, unit, asteroid)
        arguments |= {
            "samples_per_peak": samples_per_peak, "fit_mean": not no_fit_mean, "normalization": normalization.value,
            "n_peaks": peaks, "method": method.value, "device": device, "dtype": dtype.value,
        }  # fmt: skip
        job.prepare(files, arguments, unit, asteroid, time_unit.value, no_err, band, output, plot, plot_all)
        code = job.run(files, Wanted(id=id_, time=time_, mag=mag, err=err))
    except UserError as e:
        job.complain(str(e))
        code = USER_ERROR
    except KeyboardInterrupt:
        job.complain(job.keep_finished())
        code = INTERRUPTED
    raise typer.Exit(code)


def _grid_arguments(
    min_period: float | None,
    max_period: float | None,
    fmin: float | None,
    fmax: float | None,
    nf: int | None,
    unit: str,
    asteroid: bool,
) -> dict[str, Any]:
    """``fmin, fmax, nf`` in cycles a day from either way to give the range."""
    from skysieve.periodogram.search import Request

    for name, value in (("--min-period", min_period), ("--max-period", max_period), ("--fmin", fmin), ("--fmax", fmax)):
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"{name} {value:g}: a positive number is expected")
    by_period, by_frequency = (min_period, max_period) != (None, None), (fmin, fmax) != (None, None)
    if by_period and by_frequency:
        raise UserError("give the range as periods or as frequencies, not both")
    if min_period and max_period and min_period >= max_period:
        raise UserError(f"--min-period {min_period:g} is not below --max-period {max_period:g}")
    if fmin and fmax and fmin >= fmax:
        raise UserError(f"--fmin {fmin:g} is not below --fmax {fmax:g}")
    if by_period:
        scale = Request(unit=unit, asteroid=asteroid).scale
        fmin = None if max_period is None else scale / max_period
        fmax = None if min_period is None else scale / min_period
    return {"fmin": fmin, "fmax": fmax, "nf": nf}


@dataclass
class Job:
    """One run of the command: what is asked, what has been found so far."""

    console: Console
    log: Console
    quiet: bool
    n_files: int
    found: list[tuple[str, Found]] = field(default_factory=list)
    bad_files: int = 0
    plotted: int = 0
    pictures: set[str] = field(default_factory=set)
    total: int = 0

    def complain(self, text: str) -> None:
        self.log.print(f"skysieve: {text}", style="bold red" if self.log.is_terminal else None, markup=False)

    def say(self, text: str) -> None:
        if not self.quiet:
            self.log.print(text, markup=False)

    def prepare(
        self,
        files: list[Path],
        arguments: dict[str, Any],
        unit: str,
        asteroid: bool,
        time_unit: str,
        no_err: bool,
        band: str | None,
        output: Path | None,
        plot: Path | None,
        plot_all: bool,
    ) -> None:
        """Checks that need no data, so that an hour of work is not lost to a wrong name."""
        from skysieve.periodogram.io import BadFile, check_output
        from skysieve.periodogram.search import Request

        self.request: Request = Request(arguments, unit, asteroid)
        self.time_unit, self.no_err, self.band = time_unit, no_err, band
        self.output, self.plot, self.plot_limit = output, plot, sys.maxsize if plot_all else MAX_PLOTS
        if output is not None:
            if any(output.resolve() == f.resolve() for f in files):
                raise UserError(f"{output} is one of the files to read")
            try:
                check_output(output)
            except BadFile as e:
                raise UserError(f"{output}: {e}") from None
        if plot is not None:
            from importlib.util import find_spec

            if find_spec("matplotlib") is None:
                raise UserError("--plot needs matplotlib: pip install 'skysieve[plot]'")
            try:
                plot.mkdir(parents=True, exist_ok=True)
            except OSError as e:
                raise UserError(f"--plot {plot}: {e.strerror}") from None

    def run(self, files: list[Path], wanted: Wanted) -> int:
        """Every file in turn; returns the exit code."""
        from skysieve.periodogram.colnames import MissingColumn
        from skysieve.periodogram.io import BadFile, read_light_curves
        from skysieve.periodogram.report import show_periods, summary
        from skysieve.periodogram.search import join

        started = time.monotonic()
        names = Counter(file.name for file in files)
        for file in files:
            label = str(file) if names[file.name] > 1 else file.name
            try:
                curves = self._days(read_light_curves(file, wanted, band=self.band))
            except (BadFile, MissingColumn) as e:
                self._bad(f"{file}: {e}")
                continue
            except OSError as e:
                self._bad(f"{file}: {e.strerror or e}")
                continue
            self._search(file, label, curves)
        if not self.found:
            return USER_ERROR
        seconds = time.monotonic() - started
        merged = join([f for _, f in self.found])
        if not self.quiet:
            show_periods(self.console, self.found, self.request)
            for line in summary(merged, seconds, len(self.found)):
                self.say(line)
        if self.output is not None:
            self._write(self.output)
            self.say(f"wrote {self.output}")
        if self.plot is not None:
            self.say(f"wrote {self.plotted} plot{'s' if self.plotted != 1 else ''} into {self.plot}")
        return FAILED_SOME if self.bad_files else 0

    def _bad(self, text: str) -> None:
        self.bad_files += 1
        self.complain(text)

    def _days(self, curves: LightCurves) -> LightCurves:
        from dataclasses import replace

        from skysieve.periodogram.search import HOURS, UNIT_HOURS

        if self.time_unit != "d":
            curves = replace(curves, t=curves.t * (UNIT_HOURS[self.time_unit] / HOURS))
        return replace(curves, dy=None) if self.no_err else curves

    def _search(self, file: Path, label: str, curves: LightCurves) -> None:
        from skysieve.core.errors import SkysieveError
        from skysieve.periodogram.report import progress_bar
        from skysieve.periodogram.search import search

        self.say(
            f"{file}: {len(curves):,} object{'s' if len(curves) != 1 else ''}, {len(curves.t):,} rows; {curves.taken}"
        )
        for line in curves.notes:
            self.say(f"note: {line}")
        self.total = len(curves)
        try:
            with progress_bar(self.log, file.name, len(curves), self.quiet) as progress:
                for part in search(curves, self.request, progress=progress, note=lambda s: self.say(f"note: {s}")):
                    self._keep(label, part)
            if self.plot is not None:
                self._plot(curves, self.plot)
        except ValueError as e:
            if self.n_files == 1:
                raise UserError(str(e).splitlines()[0]) from e
            self._bad(f"{file}: {str(e).splitlines()[0]}")  # the other files keep what they have
        except SkysieveError as e:
            raise UserError(str(e).splitlines()[0]) from e

    def _keep(self, name: str, part: Found) -> None:
        from skysieve.periodogram.search import join

        if self.found and self.found[-1][0] == name:
            self.found[-1] = (name, join([self.found[-1][1], part]))
        else:
            self.found.append((name, part))

    def _plot(self, curves: LightCurves, folder: Path) -> None:
        from skysieve.periodogram.plotfiles import plot_objects

        self.plotted += plot_objects(curves, self.request, folder, self.plot_limit - self.plotted, self.pictures)

    def _write(self, path: Path) -> None:
        import numpy as np

        from skysieve.periodogram.io import write_table

        tables = [f.table(self.request, name if self.n_files > 1 else None) for name, f in self.found]
        columns = {k: np.concatenate([t[k] for t in tables]) for k in tables[0]}
        try:
            write_table(columns, path, units=self.found[0][1].units(self.request))
        except OSError as e:
            raise UserError(f"{path}: {e.strerror or e}") from None

    def keep_finished(self) -> str:
        """After Ctrl-C: write what is done beside the wanted output, and say so."""
        done = sum(len(f) for _, f in self.found)
        if not done or self.output is None:
            return "interrupted; nothing was written"
        part = self.output.with_name(f"{self.output.stem}.partial{self.output.suffix}")
        try:
            self._write(part)
        except UserError as e:
            return f"interrupted; nothing was written ({e})"
        return f"interrupted; the periods of the {done:,} objects that were done are in {part}"
