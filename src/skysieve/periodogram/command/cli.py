"""``skysieve period``: the periods of every object in light-curve files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skysieve import __version__
from skysieve.core.command import (
    COMPUTATION,
    INTERRUPTED,
    OUTPUT,
    USER_ERROR,
    DeviceOption,
    DryRunOption,
    Dtype,
    FormatOption,
    MemoryOption,
    OverwriteOption,
    ProgressOption,
    QuietOption,
    ThreadsOption,
    VerboseOption,
    option,
)
from skysieve.periodogram.analysis.phase_function import PHASE_FUNCTIONS
from skysieve.periodogram.contract import BAND_MODELS, METHODS
from skysieve.periodogram.lightcurves.units import TimeUnit
from skysieve.periodogram.numerics.normalization import NORMALIZATIONS

from .run import MAX_PLOTS, Outputs, PeriodRun, Treatment, UserError

if TYPE_CHECKING:
    from .survey import Request

AUTO = "auto"
OPEN_SAMPLES = 10
"""Frequencies in 1/T of an open range: with 5, daily aliases of nearly the height of a peak come out higher."""
COLUMNS, MOVING, GRID, SEARCH = "Columns of the files", "Moving objects", "Range of periods", "Search"


def choice(*names: str, values: Iterable[str], help: str, panel: str) -> Any:
    """An option whose value is one of `values`."""
    known = tuple(values)

    def check(value: str) -> str:
        if value not in known:
            raise typer.BadParameter(f"{value!r}: expected one of {', '.join(known)}")
        return value

    return option(
        *names, help=help, panel=panel, metavar=f"[{'|'.join(known)}]", parser=check, autocompletion=lambda: known
    )


def period(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Files of light curves: CSV, text, JSON, Parquet, FITS, ECSV or VOTable. - is standard input.",
        ),
    ],
    id_: Annotated[
        str | None,
        option(
            "--id",
            help="Column that names the objects. The default is to find it by its usual names.",
            panel=COLUMNS,
            metavar="COLUMN",
        ),
    ] = None,
    time_: Annotated[
        str | None,
        option(
            "--time",
            help="Column of times. The default is to find it by its usual names.",
            panel=COLUMNS,
            metavar="COLUMN",
        ),
    ] = None,
    mag: Annotated[
        str | None,
        option(
            "--mag",
            help="Column of magnitudes or fluxes. The default is to find it by its usual names.",
            panel=COLUMNS,
            metavar="COLUMN",
        ),
    ] = None,
    err: Annotated[
        str | None,
        option(
            "--err",
            help="Column of errors of the magnitudes or fluxes. The default is to find it by its usual names.",
            panel=COLUMNS,
            metavar="COLUMN",
        ),
    ] = None,
    no_err: Annotated[
        bool, option("--no-err", help="Ignore the errors. The default is to use them.", panel=COLUMNS)
    ] = False,
    band_column: Annotated[
        str | None,
        option(
            "--band-column",
            help="Column of bands. The default is to find it by its usual names.",
            panel=COLUMNS,
            metavar="COLUMN",
        ),
    ] = None,
    band: Annotated[
        str | None,
        option("--band", help="Use the rows of this band only. The default is all bands.", panel=COLUMNS, metavar="B"),
    ] = None,
    flag_column: Annotated[
        list[str] | None,
        option(
            "--flag-column",
            help="Column of quality flags; may be repeated. The default is to find them by their usual names.",
            panel=COLUMNS,
            metavar="COLUMN",
        ),
    ] = None,
    quality_mask: Annotated[
        str,
        option(
            "--quality-mask",
            help="Leave out rows whose flags have one of these bits, given as a number; none keeps all rows. The "
            "default is what the survey recommends.",
            panel=COLUMNS,
            metavar="BITS",
        ),
    ] = "default",
    jitter: Annotated[
        float | None,
        option(
            "--jitter",
            help="Scatter that is added to every error in quadrature. The default is none.",
            panel=COLUMNS,
            metavar="S",
        ),
    ] = None,
    time_unit: Annotated[
        TimeUnit,
        option("--time-unit", help="Unit of times whose file does not name one. The default is d.", panel=COLUMNS),
    ] = TimeUnit.d,
    r: Annotated[
        str | None,
        option(
            "--r",
            help="Column of distances from the Sun in au. The default is to correct none.",
            panel=MOVING,
            metavar="COLUMN",
        ),
    ] = None,
    delta: Annotated[
        str | None,
        option(
            "--delta",
            help="Column of distances from the observer in au. The default is to correct none.",
            panel=MOVING,
            metavar="COLUMN",
        ),
    ] = None,
    phase: Annotated[
        str | None,
        option(
            "--phase",
            help="Column of phase angles in degrees. The default is to correct none.",
            panel=MOVING,
            metavar="COLUMN",
        ),
    ] = None,
    phase_model: Annotated[
        str | None,
        choice(
            "--phase-model",
            values=PHASE_FUNCTIONS,
            help="Phase function that is fitted and removed. The default is hg1g2 with --phase, else none.",
            panel=MOVING,
        ),
    ] = None,
    asteroid: Annotated[
        bool,
        option(
            "--asteroid",
            help="Show rotation periods, twice those of the light curve, in hours. The default is periods of the "
            "light curve.",
            panel=MOVING,
        ),
    ] = False,
    min_period: Annotated[
        float | None,
        option(
            "--min-period",
            help="Shortest period, in the unit of the output. The default is one hour, or two steps of regular times.",
            panel=GRID,
            metavar="P",
        ),
    ] = None,
    max_period: Annotated[
        float | None,
        option(
            "--max-period",
            help="Longest period, in the unit of the output. The default is the time span of each object.",
            panel=GRID,
            metavar="P",
        ),
    ] = None,
    fmin: Annotated[
        float | None,
        option(
            "--fmin",
            help="Lowest frequency in cycles a day, in place of --max-period. The default is to use that.",
            panel=GRID,
            metavar="F",
        ),
    ] = None,
    fmax: Annotated[
        float | None,
        option(
            "--fmax",
            help="Highest frequency in cycles a day, in place of --min-period. The default is to use that.",
            panel=GRID,
            metavar="F",
        ),
    ] = None,
    nf: Annotated[
        int | None,
        option(
            "--nf",
            help="Number of frequencies, both ends included. The default follows from --samples-per-peak.",
            panel=GRID,
            metavar="N",
        ),
    ] = None,
    samples_per_peak: Annotated[
        float | None,
        option(
            "--samples-per-peak",
            help="Number of frequencies in 1/T, where T is the time span. The default is 5 if both ends of the range "
            "are given, else 10.",
            panel=GRID,
            metavar="N",
        ),
    ] = None,
    multiband: Annotated[
        str | None,
        choice(
            "--multiband",
            values=(*BAND_MODELS, "none"),
            help="Model of several bands: a mean for each (offsets), a series for each (separate), both (flexible), or "
            "one series for all rows (none). The default is offsets.",
            panel=SEARCH,
        ),
    ] = None,
    no_fit_mean: Annotated[
        bool,
        option(
            "--no-fit-mean",
            help="Do not fit a mean at each frequency. The default is to fit it.",
            panel=SEARCH,
        ),
    ] = False,
    nterms: Annotated[
        int | None,
        option(
            "--nterms",
            help="Number of Fourier terms. The default is 1, and 2 for several bands.",
            panel=SEARCH,
            metavar="N",
            min=1,
        ),
    ] = None,
    normalization: Annotated[
        str,
        choice(
            "--normalization",
            values=NORMALIZATIONS,
            help="Normalisation of the power. The default is standard.",
            panel=SEARCH,
        ),
    ] = "standard",
    peaks: Annotated[
        int,
        option(
            "--peaks",
            help="Number of peaks that are written for each object. The default is 5.",
            panel=SEARCH,
            metavar="N",
            min=1,
        ),
    ] = 5,
    method: Annotated[
        str,
        choice("--method", values=METHODS, help="Method of the computation. The default is auto.", panel=COMPUTATION),
    ] = "auto",
    dtype: Annotated[
        Dtype, option("--dtype", help="Type of floating-point numbers. The default is float64.", panel=COMPUTATION)
    ] = Dtype.float64,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    memory: MemoryOption = None,
    hours: Annotated[
        bool,
        option(
            "--hours",
            help="Use hours for periods, as --period-unit h does. The default is days, and hours with --asteroid.",
            panel=OUTPUT,
        ),
    ] = False,
    period_unit: Annotated[
        TimeUnit | None,
        option(
            "--period-unit",
            help="Unit of all periods, given and shown. The default is d, and h with --asteroid.",
            panel=OUTPUT,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        option(
            "-o",
            "--output",
            help="File for the table of periods; - is standard output. The default is to write none.",
            panel=OUTPUT,
            metavar="OUT",
        ),
    ] = None,
    format_: FormatOption = None,
    plot: Annotated[
        Path | None,
        option(
            "--plot",
            help=f"Picture of the periodogram and the folded light curve: a file such as star.png for one object, a "
            f"folder for many (the first {MAX_PLOTS}). The default is to draw none.",
            panel=OUTPUT,
            metavar="FILE-or-DIR",
        ),
    ] = None,
    plot_all: Annotated[
        bool,
        option("--plot-all", help=f"Draw every object. The default is to draw the first {MAX_PLOTS}.", panel=OUTPUT),
    ] = False,
    resume: Annotated[
        bool,
        option(
            "--resume",
            help="Keep finished parts in a folder beside OUT, and continue an interrupted run from them. The default "
            "is to begin anew.",
            panel=OUTPUT,
        ),
    ] = False,
    partition: Annotated[
        int | None,
        option(
            "--partition",
            help="Number of objects in a part of --resume. The default is 20000.",
            panel=OUTPUT,
            metavar="N",
            min=1,
        ),
    ] = None,
    dry_run: DryRunOption = False,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    progress: ProgressOption = None,
) -> None:
    """Find the periods of the objects in light-curve files.

    Columns are found by their usual names; files without a header by their number of columns
    (time mag, time mag err, id time mag, id time mag err). With no range of periods given, each
    object is searched from its own time span down to one hour, or two steps of regular times; the first line of
    the output shows the range. Rows of several bands are fitted by one series of two
    terms (one with --asteroid) with a mean for each band.

    Examples:

    - skysieve period star.csv --plot star.png
    - skysieve period survey.parquet --min-period 0.1 --max-period 100 -o periods.parquet
    - skysieve period asteroids.txt --asteroid --min-period 2 --max-period 300 -o spins.csv
    - skysieve period sources.parquet --asteroid --r rh --delta delta --phase alpha -o spins.parquet --resume
    - cat star.csv | skysieve period - -o - --format json
    """
    run: PeriodRun | None = None
    try:
        from .run import messages_for

        run = PeriodRun(messages_for(quiet, verbose, progress), len(files))

        from skysieve.periodogram.lightcurves.column_names import Wanted
        from skysieve.periodogram.multiband import DEFAULT_TERMS

        from .survey import Request

        unit = "h" if (hours or asteroid) and period_unit is None else (period_unit or TimeUnit.d).value
        if hours and unit != "h":
            raise UserError(f"--hours and --period-unit {unit} contradict each other")
        if err and no_err:
            raise UserError("--err and --no-err contradict each other")
        # A sinusoid finds half of a rotation; two terms would find either half or all of it, object by object.
        band_terms = DEFAULT_TERMS if nterms is None and multiband is None and not asteroid else None
        nterms = nterms or 1
        arguments = _grid_arguments(min_period, max_period, fmin, fmax, nf, Request({"nterms": nterms}, unit, asteroid))
        if samples_per_peak is None:
            samples_per_peak = OPEN_SAMPLES if AUTO in arguments.values() else 5
        arguments |= {
            "samples_per_peak": samples_per_peak, "fit_mean": not no_fit_mean, "normalization": normalization,
            "n_peaks": peaks, "method": method, "device": device, "dtype": dtype.value, "nterms": nterms,
        }  # fmt: skip
        model = _phase_model(r, delta, phase, phase_model)
        if jitter is not None and not 0 <= jitter < float("inf"):
            raise UserError(f"--jitter {jitter:g}: expected a number of at least 0")
        bands = _bands(multiband, not no_fit_mean, method, model)
        treatment = Treatment(time_unit.value, no_err, band, multiband, jitter, model)
        moving = asteroid or model is not None
        flags, bits = _flags(flag_column, quality_mask)
        wanted = Wanted(id_, time_, mag, err, band_column, r, delta, phase, moving, flags, bits)
        request = Request(arguments | {"threads": threads, "memory": memory}, unit, asteroid, bands, band_terms)
        outputs = Outputs(output, format_, plot, plot_all, resume, partition, overwrite)
        if dry_run:
            outputs = Outputs(output, format_, overwrite=overwrite or resume)
            partition = None
        asked = [arguments, asdict(treatment), asdict(wanted), partition, __version__]
        run.prepare(files, request, treatment, outputs, asked)
        code = run.predict(files, wanted) if dry_run else run.search_all(files, wanted)
    except UserError as e:
        if run is None:
            typer.echo(f"skysieve: {e}", err=True)
        else:
            run.complain(str(e))
            if run.found:
                run.complain(run.keep_finished("stopped"))
        code = USER_ERROR
    except KeyboardInterrupt:
        if run is None:
            typer.echo("skysieve: interrupted; nothing was written", err=True)
        else:
            run.complain(run.keep_finished())
        code = INTERRUPTED
    finally:
        if run is not None:
            run.close()
    raise typer.Exit(code)


def _grid_arguments(
    min_period: float | None,
    max_period: float | None,
    fmin: float | None,
    fmax: float | None,
    nf: int | None,
    request: Request,
) -> dict[str, Any]:
    """``fmin, fmax, nf`` in cycles a day from either way to give the range; an end left open is "auto"."""
    for name, value in (("--min-period", min_period), ("--max-period", max_period), ("--fmin", fmin), ("--fmax", fmax)):
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"{name} {value:g}: expected a positive number")
    by_period, by_frequency = (min_period, max_period) != (None, None), (fmin, fmax) != (None, None)
    if by_period and by_frequency:
        raise UserError("give the range as periods or as frequencies, not both")
    if min_period and max_period and min_period >= max_period:
        raise UserError(f"--min-period {min_period:g} is not below --max-period {max_period:g}")
    if fmin and fmax and fmin >= fmax:
        raise UserError(f"--fmin {fmin:g} is not below --fmax {fmax:g}")
    if by_period:
        scale = request.scale
        fmin = None if max_period is None else scale / max_period
        fmax = None if min_period is None else scale / min_period
    return {"fmin": AUTO if fmin is None else float(fmin), "fmax": AUTO if fmax is None else float(fmax), "nf": nf}


def _flags(columns: list[str] | None, mask: str) -> tuple[tuple[str, ...] | None, int | None]:
    """Columns of flags (None: find them) and their bits (None: what is known of the survey)."""
    if mask == "none":
        if columns:
            raise UserError(f"--flag-column {columns[0]} and --quality-mask none contradict each other")
        return (), None
    named = None if not columns else tuple(columns)
    if mask == "default":
        return named, None
    try:
        bits = int(mask, 0)
    except ValueError:
        bits = 0
    if not 0 < bits < 2**63:
        raise UserError(f"--quality-mask {mask}: expected default, none, or a positive whole number")
    return named, bits


def _phase_model(r: str | None, delta: str | None, phase: str | None, model: str | None) -> str | None:
    """The phase function to remove; None for objects that do not move."""
    if (r is None) != (delta is None):
        raise UserError("--r and --delta go together: both distances are needed")
    if r is None:
        if phase is not None or model is not None:
            raise UserError("--phase and --phase-model need the distances --r and --delta too")
        return None
    if model is None:
        return "hg1g2" if phase is not None else "none"
    if PHASE_FUNCTIONS[model].needs_phase and phase is None:
        raise UserError(f"--phase-model {model} needs the column of phase angles: --phase")
    return model


def _bands(asked: str | None, fit_mean: bool, method: str, phase_model: str | None) -> str:
    """The model of several bands: a mean for each, unless a phase function of each band has removed them already."""
    if asked is None:
        levelled = phase_model is not None and PHASE_FUNCTIONS[phase_model].needs_phase
        return "none" if levelled or not fit_mean or method == "finufft" else "offsets"
    if asked != "none" and not fit_mean:
        raise UserError(f"--multiband {asked} fits a mean for each band; it does not go with --no-fit-mean")
    if asked != "none" and method == "finufft":
        raise UserError(f"--multiband {asked} does not go with --method finufft, which has one band")
    return asked
