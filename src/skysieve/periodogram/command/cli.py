"""``skysieve period``: the periods of every object in light-curve files."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skysieve import __version__
from skysieve.core.command import INTERRUPTED, USER_ERROR, Dtype, option
from skysieve.periodogram.lightcurves.units import TimeUnit

from .job import MAX_PLOTS, Job, Outputs, Treatment, UserError

if TYPE_CHECKING:
    from .survey import Request


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


class PhaseModel(StrEnum):
    """Phase functions of asteroids."""

    hg1g2 = "hg1g2"
    linear = "linear"
    none = "none"


class Multiband(StrEnum):
    """Models of light curves in several bands."""

    offsets = "offsets"
    separate = "separate"
    flexible = "flexible"
    none = "none"


AUTO = "auto"
OPEN_SAMPLES = 10
"""Frequencies in 1/T of an open range: with 5, daily aliases of nearly the height of a peak come out higher."""
COLUMNS, MOVING, GRID = "Columns of the files", "Moving objects", "Range of periods"
SEARCH, OUTPUT = "Search", "Output"


def period(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="CSV, text, Parquet, FITS, ECSV, VOTable.")],
    id_: Annotated[
        str | None, option("--id", help="Column that names the objects.", panel=COLUMNS, metavar="COLUMN")
    ] = None,
    time_: Annotated[str | None, option("--time", help="Column of times.", panel=COLUMNS, metavar="COLUMN")] = None,
    mag: Annotated[
        str | None, option("--mag", help="Column of magnitudes or fluxes.", panel=COLUMNS, metavar="COLUMN")
    ] = None,
    err: Annotated[str | None, option("--err", help="Column of their errors.", panel=COLUMNS, metavar="COLUMN")] = None,
    no_err: Annotated[bool, option("--no-err", help="Leave the errors unused.", panel=COLUMNS)] = False,
    band_column: Annotated[
        str | None, option("--band-column", help="Column of bands.", panel=COLUMNS, metavar="COLUMN")
    ] = None,
    band: Annotated[
        str | None, option("--band", help="Keep the rows of one band.", panel=COLUMNS, metavar="BAND")
    ] = None,
    multiband: Annotated[
        Multiband | None,
        option("--multiband", help="Several bands: a mean each (offsets), a series each, both, none.", panel=SEARCH),
    ] = None,
    flag_column: Annotated[
        list[str] | None,
        option(
            "--flag-column",
            help="Column of quality flags, in place of those found (may be repeated).",
            panel=COLUMNS,
            metavar="COLUMN",
        ),
    ] = None,
    quality_mask: Annotated[
        str,
        option(
            "--quality-mask",
            help="Bits of the flags that leave a row out, as a number; default, or none.",
            panel=COLUMNS,
            metavar="BITS",
        ),
    ] = "default",
    jitter: Annotated[
        float | None,
        option("--jitter", help="Scatter added to every error in quadrature.", panel=COLUMNS, metavar="S"),
    ] = None,
    time_unit: Annotated[
        TimeUnit, option("--time-unit", help="Unit of times that carry none (d).", panel=COLUMNS)
    ] = TimeUnit.d,
    r: Annotated[str | None, option("--r", help="Distance from the Sun, au.", panel=MOVING, metavar="COLUMN")] = None,
    delta: Annotated[
        str | None, option("--delta", help="Distance from the observer, au.", panel=MOVING, metavar="COLUMN")
    ] = None,
    phase: Annotated[
        str | None, option("--phase", help="Phase angle, degrees.", panel=MOVING, metavar="COLUMN")
    ] = None,
    phase_model: Annotated[
        PhaseModel | None,
        option("--phase-model", help="Phase function that is taken out (hg1g2 with --phase).", panel=MOVING),
    ] = None,
    asteroid: Annotated[
        bool, option("--asteroid", help="Rotation periods, twice the light curve's, in hours.", panel=MOVING)
    ] = False,
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
        float | None,
        option(
            "--samples-per-peak",
            help="Frequencies in 1/T, where --nf is not given (10; 5 if both ends of the range are given).",
            panel=GRID,
            metavar="N",
        ),
    ] = None,
    no_fit_mean: Annotated[
        bool, option("--no-fit-mean", help="Classical Lomb-Scargle: no floating mean.", panel=SEARCH)
    ] = False,
    nterms: Annotated[
        int | None,
        option("--nterms", help="Fourier terms (1; for several bands by default 2).", panel=SEARCH, metavar="N", min=1),
    ] = None,
    normalization: Annotated[
        Normalization, option("--normalization", help="Scale of the power (standard).", panel=SEARCH)
    ] = Normalization.standard,
    peaks: Annotated[
        int, option("--peaks", help="Best periods kept for each object (5).", panel=SEARCH, metavar="N", min=1)
    ] = 5,
    method: Annotated[Method, option("--method", help="How the sums are made (auto).", panel=SEARCH)] = Method.auto,
    device: Annotated[
        str, option("--device", help="auto, cpu, cuda, cuda:1, cuda:all (auto).", panel=SEARCH, metavar="DEVICE")
    ] = "auto",
    dtype: Annotated[Dtype, option("--dtype", help="Arithmetic (float64).", panel=SEARCH)] = Dtype.float64,
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
    resume: Annotated[
        bool, option("--resume", help="Keep finished parts beside OUT; go on where a run broke.", panel=OUTPUT)
    ] = False,
    partition: Annotated[
        int | None, option("--partition", help="Objects of a part (20000).", panel=OUTPUT, metavar="N", min=1)
    ] = None,
    quiet: Annotated[bool, option("-q", "--quiet", help="Print errors only.", panel=OUTPUT)] = False,
) -> None:
    """Find the periods of the objects in light-curve files.

    Columns are found by their usual names; files without a header by their number of columns
    (time mag, time mag err, id time mag, id time mag err). With no range of periods given, each
    object is searched from its own time span down to one hour, or two steps of regular times; the first line of
    the output tells the range. Rows of several bands are fitted by one series of two
    terms (one with --asteroid) with a mean for each band.

    Examples:

    - skysieve period star.csv
    - skysieve period survey.parquet --min-period 0.1 --max-period 100 -o periods.parquet
    - skysieve period asteroids.txt --asteroid --min-period 2 --max-period 300 -o spins.csv
    - skysieve period sources.parquet --asteroid --r rh --delta delta --phase alpha -o spins.parquet --resume
    """
    job: Job | None = None
    try:
        from rich.console import Console

        console, log = Console(highlight=False), Console(stderr=True, highlight=False, soft_wrap=True)
        job = Job(console, log, quiet, len(files))

        from skysieve.periodogram.lightcurves.column_names import Wanted
        from skysieve.periodogram.multiband import DEFAULT_TERMS

        from .survey import Request

        unit = "h" if (hours or asteroid) and period_unit is None else (period_unit or TimeUnit.d).value
        if hours and unit != "h":
            raise UserError(f"--hours and --period-unit {unit} contradict each other")
        if err and no_err:
            raise UserError("--err and --no-err contradict each other")
        # A sinusoid finds half of a rotation; with two terms the halves would be a choice of each object.
        band_terms = DEFAULT_TERMS if nterms is None and multiband is None and not asteroid else None
        nterms = nterms or 1
        arguments = _grid_arguments(min_period, max_period, fmin, fmax, nf, Request({"nterms": nterms}, unit, asteroid))
        if samples_per_peak is None:
            samples_per_peak = OPEN_SAMPLES if AUTO in arguments.values() else 5
        arguments |= {
            "samples_per_peak": samples_per_peak, "fit_mean": not no_fit_mean, "normalization": normalization.value,
            "n_peaks": peaks, "method": method.value, "device": device, "dtype": dtype.value, "nterms": nterms,
        }  # fmt: skip
        model = _phase_model(r, delta, phase, phase_model)
        if jitter is not None and not 0 <= jitter < float("inf"):
            raise UserError(f"--jitter {jitter:g}: a number of at least 0 is expected")
        bands = _bands(multiband, not no_fit_mean, method, model)
        chosen = None if multiband is None else multiband.value
        treatment = Treatment(time_unit.value, no_err, band, chosen, jitter, model)
        moving = asteroid or model is not None
        flags, bits = _flags(flag_column, quality_mask)
        wanted = Wanted(id_, time_, mag, err, band_column, r, delta, phase, moving, flags, bits)
        request = Request(arguments, unit, asteroid, bands, band_terms)
        asked = [arguments, asdict(treatment), asdict(wanted), partition, __version__]
        job.prepare(files, request, treatment, Outputs(output, plot, plot_all, resume, partition), asked)
        code = job.run(files, wanted)
    except UserError as e:
        assert job is not None
        job.complain(str(e))
        if job.found:
            job.complain(job.keep_finished("stopped"))
        code = USER_ERROR
    except KeyboardInterrupt:
        if job is None:
            typer.echo("skysieve: interrupted; nothing was written", err=True)
        else:
            job.complain(job.keep_finished())
        code = INTERRUPTED
    finally:
        if job is not None:
            job.close()
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
            raise UserError(f"{name} {value:g}: a positive number is expected")
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
        raise UserError(f"--quality-mask {mask}: default, none, or a positive whole number is expected")
    return named, bits


def _phase_model(r: str | None, delta: str | None, phase: str | None, model: PhaseModel | None) -> str | None:
    """The phase function to take out; None where nothing moves."""
    if (r is None) != (delta is None):
        raise UserError("--r and --delta go together: both distances are needed")
    if r is None:
        if phase is not None or model is not None:
            raise UserError("--phase and --phase-model need the distances --r and --delta too")
        return None
    if model is None:
        return "hg1g2" if phase is not None else "none"
    if model != PhaseModel.none and phase is None:
        raise UserError(f"--phase-model {model.value} needs the column of phase angles: --phase")
    return model.value


def _bands(asked: Multiband | None, fit_mean: bool, method: Method, phase_model: str | None) -> str:
    """The model for several bands: a mean for each, unless they are on one level already or means are forbidden."""
    if asked is None:
        levelled = phase_model not in (None, PhaseModel.none.value)
        return "none" if levelled or not fit_mean or method == Method.finufft else "offsets"
    if asked != Multiband.none and not fit_mean:
        raise UserError(f"--multiband {asked.value} fits a mean for each band; it does not go with --no-fit-mean")
    if asked != Multiband.none and method == Method.finufft:
        raise UserError(f"--multiband {asked.value} does not go with --method finufft, which has one band")
    return asked.value
