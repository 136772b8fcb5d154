"""``skysieve period``: the periods of every object in light-curve files."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from skysieve.core.command import (
    COMPUTATION,
    INTERRUPTED,
    OUTPUT,
    USER_ERROR,
    ClusterOption,
    DeviceOption,
    DryRunOption,
    Dtype,
    FormatOption,
    MemoryOption,
    OverwriteOption,
    ProgressOption,
    QuietOption,
    ResumeOption,
    ThreadsOption,
    VerboseOption,
    choice,
    flat_options,
    needs,
    nobody_reads,
    option,
    sigterm_interrupts,
    with_option,
)
from skysieve.periodogram.analysis.phase_function import PHASE_FUNCTIONS
from skysieve.periodogram.contract import BAND_MODELS, METHODS
from skysieve.periodogram.lightcurves.units import TimeUnit
from skysieve.periodogram.numerics.normalization import NORMALIZATIONS

from .options import SAMPLES_HELP, SEARCH, TERMS_HELP, PeaksOption
from .run import MAX_PLOTS, Outputs, PeriodRun, UserError, WrittenElsewhere

COLUMNS, MOVING, GRID = "Columns of the files", "Moving objects", "Range of periods"


def period(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Files of light curves: CSV, text, JSON, Parquet, FITS, ECSV or VOTable; '-' is standard input.",
        ),
    ],
    id_: Annotated[
        str | None,
        option(
            "--id",
            help="Column of object identifiers. By default it is recognised by its name.",
            panel=COLUMNS,
            metavar="COLUMN",
        ),
    ] = None,
    time_: Annotated[
        str | None,
        option(
            "--time",
            help="Column of times. By default it is recognised by its name.",
            panel=COLUMNS,
            metavar="COLUMN",
        ),
    ] = None,
    mag: Annotated[
        str | None,
        option(
            "--mag",
            help="Column of magnitudes or fluxes. By default it is recognised by its name.",
            panel=COLUMNS,
            metavar="COLUMN",
        ),
    ] = None,
    err: Annotated[
        str | None,
        option(
            "--err",
            help="Column of errors of the magnitudes or fluxes. By default it is recognised by its name.",
            panel=COLUMNS,
            metavar="COLUMN",
        ),
    ] = None,
    no_err: Annotated[
        bool, option("--no-err", help="Ignore the errors. By default they are used.", panel=COLUMNS)
    ] = False,
    band_column: Annotated[
        str | None,
        option(
            "--band-column",
            help="Column of bands. By default it is recognised by its name.",
            panel=COLUMNS,
            metavar="COLUMN",
        ),
    ] = None,
    band: Annotated[
        str | None,
        option("--band", help="Use only the rows of this band. The default is all bands.", panel=COLUMNS, metavar="B"),
    ] = None,
    flag_column: Annotated[
        list[str] | None,
        option(
            "--flag-column",
            help="Column of quality flags; may be repeated. By default flags are recognised by their names.",
            panel=COLUMNS,
            metavar="COLUMN",
        ),
    ] = None,
    quality_mask: Annotated[
        str,
        option(
            "--quality-mask",
            help="Leave out rows whose flags have any of these bits set, given as a number; 'none' keeps all rows. The "
            "default is the mask that the survey recommends.",
            panel=COLUMNS,
            metavar="BITS",
        ),
    ] = "default",
    jitter: Annotated[
        float | None,
        option(
            "--jitter",
            help="Scatter to add to every error in quadrature. By default none is added.",
            panel=COLUMNS,
            metavar="S",
        ),
    ] = None,
    time_unit: Annotated[
        TimeUnit,
        option("--time-unit", help="Unit of times, if the file does not name it. The default is d.", panel=COLUMNS),
    ] = TimeUnit.d,
    r: Annotated[
        str | None,
        option(
            "--r",
            help="Column of distances from the Sun in au. By default no correction is made.",
            panel=MOVING,
            metavar="COLUMN",
        ),
    ] = None,
    delta: Annotated[
        str | None,
        option(
            "--delta",
            help="Column of distances from the observer in au. By default no correction is made.",
            panel=MOVING,
            metavar="COLUMN",
        ),
    ] = None,
    phase: Annotated[
        str | None,
        option(
            "--phase",
            help="Column of phase angles in degrees. By default no correction is made.",
            panel=MOVING,
            metavar="COLUMN",
        ),
    ] = None,
    phase_model: Annotated[
        str | None,
        choice(
            "--phase-model",
            values=PHASE_FUNCTIONS,
            help="Phase function to fit and remove. The default is hg1g2 with --phase, else none.",
            panel=MOVING,
        ),
    ] = None,
    asteroid: Annotated[
        bool,
        option(
            "--asteroid",
            help="Show rotation periods in hours, which are twice the periods of the light curve. By default the "
            "periods of the light curve are shown.",
            panel=MOVING,
        ),
    ] = False,
    min_period: Annotated[
        float | None,
        option(
            "--min-period",
            help="Shortest period, in the unit of the output. The default is one hour, or twice the sampling interval "
            "if the times are evenly spaced.",
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
            help="Lowest frequency in cycles per day, instead of --max-period.",
            panel=GRID,
            metavar="F",
        ),
    ] = None,
    fmax: Annotated[
        float | None,
        option(
            "--fmax",
            help="Highest frequency in cycles per day, instead of --min-period.",
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
            help=f"{SAMPLES_HELP} The default is 5 if both ends of the range are given, else 10.",
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
            "one series for all rows (none). The default is offsets, or none with --no-fit-mean, --method finufft or a "
            "phase function (--phase).",
            panel=SEARCH,
        ),
    ] = None,
    no_fit_mean: Annotated[
        bool,
        option(
            "--no-fit-mean",
            help="Do not fit a mean at each frequency. By default it is fitted.",
            panel=SEARCH,
        ),
    ] = False,
    nterms: Annotated[
        int | None,
        option(
            "--nterms",
            help=f"{TERMS_HELP}, unless --multiband or --asteroid is given.",
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
    peaks: PeaksOption = 5,
    method: Annotated[
        str,
        choice("--method", values=METHODS, help="Method of the computation. The default is auto.", panel=COMPUTATION),
    ] = "auto",
    dtype: Annotated[
        Dtype,
        option("--dtype", help="Floating-point type of the computation. The default is float64.", panel=COMPUTATION),
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
            help="File for the table of periods; '-' is standard output. By default no file is written.",
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
            f"folder for many (the first {MAX_PLOTS}). By default nothing is drawn.",
            panel=OUTPUT,
            metavar="FILE-or-DIR",
        ),
    ] = None,
    plot_all: Annotated[
        bool,
        option("--plot-all", help=f"Draw every object. By default the first {MAX_PLOTS} are drawn.", panel=OUTPUT),
    ] = False,
    resume: ResumeOption = False,
    partition: Annotated[
        int | None,
        option(
            "--partition",
            help="Number of objects in each part of --resume or --cluster. The default is 20000.",
            panel=OUTPUT,
            metavar="N",
            min=1,
        ),
    ] = None,
    cluster: ClusterOption = None,
    dry_run: DryRunOption = False,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    progress: ProgressOption = None,
) -> None:
    """Find the periods of the objects in light-curve files.

    Columns are found by their usual names; files without a header by their number of columns
    (time mag, time mag err, id time mag, id time mag err). With no range of periods given, each
    object is searched from its own time span down to one hour, or twice the sampling interval if the times are evenly
    spaced; the first line of the output shows the range. Rows of several bands are fitted by one series of two
    terms (one with --asteroid) with a mean for each band.

    Examples:

    - skysieve period star.csv --plot star.png
    - skysieve period survey.parquet --min-period 0.1 --max-period 100 -o periods.parquet
    - skysieve period asteroids.txt --asteroid --min-period 2 --max-period 300 -o spins.csv
    - skysieve period sources.parquet --asteroid --r rh --delta delta --phase alpha -o spins.parquet --resume
    - cat star.csv | skysieve period - -o - --format json
    """
    given = dict(locals())
    run: PeriodRun | None = None
    with sigterm_interrupts():
        try:
            from .run import messages_for

            run = PeriodRun(messages_for(quiet, verbose, progress), len(files))
            try:
                needs("-o", output, "--format")
                needs("--plot", plot, "--plot-all")
            except ValueError as e:
                raise UserError(str(e)) from None
            from .search_options import read_options

            chosen = read_options(flat_options(given))
            if cluster is not None:
                code = run.divide(cluster, given)
            else:
                outputs = Outputs(output, format_, plot, plot_all, resume, partition, overwrite)
                if dry_run:
                    outputs = Outputs(output, format_, overwrite=overwrite or resume)
                    partition = None
                run.prepare(files, chosen.request, chosen.treatment, outputs, chosen.facts(partition))
                code = run.predict(files, chosen.wanted) if dry_run else run.search_all(files, chosen.wanted)
        except UserError as e:
            if run is None:
                typer.echo(f"skysieve: {with_option(str(e))}", err=True)
            else:
                run.complain(str(e))
                if run.found and not isinstance(e, WrittenElsewhere):
                    run.complain(run.keep_finished("stopped"))
            code = USER_ERROR
        except BrokenPipeError:
            if not nobody_reads():
                raise
            code = 128 + signal.SIGPIPE
        except KeyboardInterrupt:
            if run is None:
                typer.echo("skysieve: interrupted; nothing was written", err=True)
            else:
                divided = "interrupted; --resume continues from the finished partitions"
                run.complain(run.keep_finished() if cluster is None else divided)
            code = INTERRUPTED
        finally:
            if run is not None:
                run.close()
    raise typer.Exit(code)
