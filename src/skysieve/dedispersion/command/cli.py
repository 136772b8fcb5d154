"""``skysieve dedisp``: from filterbank files to candidates and their pictures."""

from __future__ import annotations

import importlib
import json
import math
from contextlib import ExitStack, suppress
from dataclasses import asdict
from math import isfinite, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from skysieve.core.checks import one_of
from skysieve.core.command import (
    FAILED_SOME,
    OUTPUT,
    STDIO,
    USER_ERROR,
    ClusterOption,
    DryRunOption,
    FormatOption,
    JsonOption,
    MemoryOption,
    Messages,
    OverwriteOption,
    QuietOption,
    ResumeOption,
    check_output,
    check_outputs,
    check_picture,
    counted,
    may_replace,
    needs,
    option,
    report_errors,
    table_format,
    with_option,
)
from skysieve.core.errors import one_line
from skysieve.core.files import save_figure, written
from skysieve.core.table_files import json_text
from skysieve.dedispersion.data.readers import FILE_FORMATS, FOLDER_SUFFIXES
from skysieve.dedispersion.search_options import DATA, CleanOption, IgnoreOption, channel_numbers

from .options import (
    DM_NAMES,
    PULSE,
    Cleaning,
    Computation,
    DataOptions,
    DmOptions,
    Files,
    FilOutput,
    Grouping,
    Injected,
    MethodOption,
    PlanFile,
    Receiver,
    Reports,
    Requantise,
    Scatter,
    Searching,
    SeriesOption,
    grouped,
    output_file,
    refuse_huge,
    speed,
)

if TYPE_CHECKING:
    from skysieve.dedispersion.data.filterbank import Filterbank
    from skysieve.dedispersion.dm_plan.plan import DMPlan
    from skysieve.dedispersion.single_pulse.candidates import Candidates

dedisp = typer.Typer(
    help="Dispersed radio pulses: de-dispersion and single-pulse search of files and of live streams.\n\n"
    "Example: skysieve dedisp search a.fil --dm-max 500 -o a.csv --plot a.png",
    no_args_is_help=True,
)

PlotFile = Annotated[Path | None, option("--plot", help="Picture to write, such as a.png. By default nothing is drawn.",
                                         panel=OUTPUT, metavar="FILE")]  # fmt: skip
SearchPlot = Annotated[
    Path | None,
    option(
        "--plot",
        help="Picture to write, such as a.png; with --each a folder. By default nothing is drawn.",
        panel=OUTPUT,
        metavar="FILE-or-DIR",
    ),
]


@dedisp.command()
@grouped
def info(
    files: Files,
    data: DataOptions,
    as_json: JsonOption = False,
) -> None:
    """Show what files hold: channels, sampling, time, source.

    Example: skysieve dedisp info a.fil
    """
    with report_errors(), data.open(files) as fb:
        if as_json:
            typer.echo(json_text(facts_of(fb)))
            return
        o = fb.observation
        rows = [
            ("source", o.source or "unnamed"), ("telescope", o.telescope or "unknown"),
            ("RA, Dec", "unknown" if math.isnan(o.ra + o.dec) else f"{o.ra:.6f}, {o.dec:.6f} deg"),
            ("start", f"MJD {o.tstart:.12f}"),
            ("channels", f"{o.nchan}{'' if o.regular else ' (unevenly spaced)'}"),
            ("frequencies", f"{o.freqs[-1]:.6f} to {o.freqs[0]:.6f} MHz (centres)"),
            ("channel width", f"{abs(o.foff):.6g} MHz"), ("sampling", f"{o.tsamp * 1e6:.6g} us"),
            ("samples", f"{fb.nsamp} ({fb.duration:.6g} s)"), ("bits", f"{o.nbits} ({fb.dtype.name})"),
        ]  # fmt: skip
        if len(fb.gaps):
            missing = int((fb.gaps[:, 1] - fb.gaps[:, 0]).sum())
            rows.append(("gaps", f"{len(fb.gaps)}, of {missing * o.tsamp:.6g} s in all"))
        if o.dm is not None:
            rows.append(("DM", f"{o.dm:g} (de-dispersed)"))
        for name, value in rows:
            typer.echo(f"{name:14s} {value}")


def facts_of(fb: Filterbank) -> dict[str, Any]:
    """The facts of ``info --json``: frequencies in MHz, angles in degrees, times in seconds or MJD, None if unknown."""
    o = fb.observation
    numbers = {
        "ra": o.ra, "dec": o.dec, "tstart": o.tstart, "lowest_frequency": float(o.freqs[-1]),
        "highest_frequency": o.top, "channel_width": abs(o.foff), "tsamp": o.tsamp, "duration": fb.duration, "dm": o.dm,
    }  # fmt: skip
    known = {name: value if value is not None and isfinite(value) else None for name, value in numbers.items()}
    return {
        "source": o.source, "telescope": o.telescope, "channels": o.nchan, "samples": fb.nsamp, "bits": o.nbits,
        "dtype": fb.dtype.name, "evenly_spaced": o.regular, **known, "gaps": fb.gaps.tolist(),
    }  # fmt: skip


@dedisp.command()
@grouped
def plan(
    files: Files,
    *,
    dms: DmOptions,
    data: DataOptions,
    output: Annotated[
        Path | None,
        option(
            "-o", "--output", help="File for the plan: .json (for --plan), .csv or .ecsv; '-' is standard output. By "
                                   "default no file is written.",
            panel=OUTPUT, metavar="OUT",
        ),
    ] = None,
    form: FormatOption = None,
    plot: PlotFile = None,
    overwrite: OverwriteOption = False,
    reports: Reports,
) -> None:  # fmt: skip
    """Choose the DMs, time binnings and subbands of a search.

    Example: skysieve dedisp plan a.fil --dm-max 500 --rule presto --nsub 32 -o a.json --plot a.png
    """
    from skysieve.core.errors import format_bytes
    from skysieve.dedispersion.dm_plan.plan import PLAN_FORMATS

    with report_errors(names=DM_NAMES):
        messages = reports.messages()
        needs("-o", output, "--format")
        dms.check()
        chosen = "" if output is None else table_format(output, form, PLAN_FORMATS)
        check_outputs({"--output": output, "--plot": plot}, files)
        check_output(output, overwrite)
        check_picture(plot, overwrite)
        with data.open(files) as fb:
            made, nsamp = dms.plan(fb), fb.nsamp
        if output is not None:
            write_plan(made, output, chosen)
            messages.wrote(output, counted(made.ndm, "DM"))
        if plot is not None:
            save_figure(made.plot(), plot, dpi=120)
            messages.wrote(plot)
        if output != STDIO:
            series = format_bytes(made.memory(nsamp)["output"])
            typer.echo(made.summary())
            typer.echo(f"{made.adds(nsamp) / 1e9:.4g} G additions by brute force; all series: {series}")


def write_plan(made: DMPlan, path: Path, form: str) -> None:
    """Write a plan in one of `PLAN_FORMATS`."""
    with output_file(path, f".{form}") as file:
        if form == "json":
            made.save(file)
        else:
            with written(file) as part:
                made.to_table().write(part, format="ascii.csv" if form == "csv" else "ascii.ecsv", overwrite=True)


@dedisp.command()
@grouped
def dedisperse(
    files: Files,
    *,
    dms: DmOptions,
    plan_file: PlanFile = None,
    data: DataOptions,
    cleaning: Cleaning,
    requantise: Requantise = False,
    method: MethodOption = "auto",
    computation: Computation,
    output: Annotated[
        Path,
        option("-o", "--output", help="Start of the names: STEM_DM60.00.dat and so on.", panel=OUTPUT, metavar="STEM"),
    ],
    form: SeriesOption = "dat",
    overwrite: OverwriteOption = False,
    reports: Reports,
) -> None:
    """De-disperse files into a time series for each DM.

    Example: skysieve dedisp dedisperse a.fil --lodm 10 --dmstep 0.5 --numdms 40 -o a
    """
    from skysieve.core.device import resolve
    from skysieve.core.memory import available_host_memory, parse_budget
    from skysieve.core.parts import LOCK, Lock, parts_folder
    from skysieve.dedispersion import api
    from skysieve.dedispersion.result import name_digits, series_path

    with report_errors(names=DM_NAMES), ExitStack() as stack:
        messages = reports.messages()
        if output == STDIO or not output.name:
            raise ValueError(
                f"--output {output}: expected the start of file names, such as out/night: a file is written for each DM"
            )
        dms.check(plan_file)
        cleaning.check()
        with data.open(files) as fb:
            made = dms.plan(fb, plan_file)
            messages.detail(made.summary())
            if len(set(made.dms.tolist())) < made.ndm:
                raise ValueError("the plan has the same DM in two stages, and their files would have the same name")
            if (delay := made.maxshift()) >= fb.nsamp:  # known before series of lower DMs are written
                raise ValueError(
                    f"dms: the delay of DM {made.dms.max():g} across the band is {delay} samples, but the data have "
                    f"only {fb.nsamp}; expected lower DMs or longer data"
                )
            digits, base = name_digits(made.dms + (fb.observation.dm or 0.0)), fb.observation.dm or 0.0
            check_output(series_path(output, base + float(made.dms[0]), digits, form), overwrite=True)
            folder = parts_folder(output)  # for the lock: two processes would mix their .dat and .inf
            lock = Lock(folder / LOCK)
            stack.callback(remove_empty, folder)
            stack.callback(lock.close)
            for dm in made.dms:
                path = series_path(output, dm + base, digits, form)
                for one in (path, path.with_suffix(".inf")) if form == "dat" else (path,):
                    check_outputs({"--output": one}, files)
                    check_output(one, overwrite)
            filtered, mask, _ = cleaning.prepared(fb, messages, requantise)
            budget = parse_budget(computation.memory, available_host_memory())
            gpu = resolve(computation.device)[0].kind == "cuda"
            for part in made.split(fb.nsamp, budget // 2):
                [result] = api.dedisperse(
                    filtered, part, method=method, mask=mask, device=computation.device, threads=computation.threads,
                    memory=computation.memory if gpu else budget // 2, progress=messages.progress,
                )  # fmt: skip
                paths = result.write(output, format=form, digits=digits)
                messages.say(speed(result.rate, result.realtime, result.method, result.device, result.seconds))
                last = f" to {paths[-1].name}" if len(paths) > 1 else ""
                messages.wrote(f"{paths[0]}{last}", f"{len(paths)} series")


def remove_empty(folder: Path) -> None:
    """Remove a folder, unless another process has put a file there in the meantime."""
    with suppress(OSError):
        folder.rmdir()


@dedisp.command()
@grouped
def search(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|DIR|PATTERN...",
            help=f"The data: {', '.join(f.name for f in FILE_FORMATS)}. Several files are joined by their times, "
            "unless --each is given; '-' reads one from standard input. The files of a folder "
            f"({', '.join(FOLDER_SUFFIXES)}) and of a quoted pattern are searched one by one, as with --each.",
            show_default=False,
        ),
    ],
    *,
    each: Annotated[
        bool, option("--each", help="Search each file on its own. A damaged file is reported, and the others are "
                                    "searched.", panel=DATA)
    ] = False,
    dms: DmOptions,
    plan_file: PlanFile = None,
    data: DataOptions,
    cleaning: Cleaning,
    clean: CleanOption = None,
    save_mask: Annotated[
        Path | None,
        option("--save-mask", help="File for the mask of the removed samples, in the format of PRESTO's rfifind "
                                   "(.mask). By default no file is written.", panel=OUTPUT, metavar="FILE"),
    ] = None,
    requantise: Requantise = False,
    searching: Searching,
    grouping: Grouping,
    computation: Computation,
    dry_run: DryRunOption = False,
    output: Annotated[
        Path | None,
        option(
            "-o", "--output",
            help="File for the candidates: .csv, .ecsv, .json, .parquet, .singlepulse (PRESTO) or .cand (Heimdall); "
            "'-' is standard output. With --each the table has a column of file names; a name without an ending is a "
            "folder, for a table of each file. By default no file is written.",
            panel=OUTPUT, metavar="OUT",
        ),
    ] = None,
    form: FormatOption = None,
    plot: SearchPlot = None,
    cutouts: Annotated[
        Path | None,
        option("--cutouts", help="Folder for pictures and HDF5 files of the loudest candidates. By default none are "
                                 "written.", panel=OUTPUT, metavar="DIR"),
    ] = None,
    most: Annotated[
        int, option("--most", help="Number of candidates for --cutouts. The default is 10.",
                                   panel=OUTPUT, metavar="N", min=1)
    ] = 10,
    cluster: ClusterOption = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    reports: Reports,
) -> None:  # fmt: skip
    """Search files for dispersed single pulses: from data to candidates and pictures.

    With --cluster every file is searched separately, and the table has a column of file names.

    Examples:

    - skysieve dedisp search a.fil --dm-max 500 -o a.csv --plot a.png --cutouts a-pulses
    - skysieve dedisp search night/*.fil --dm-max 500 -o night.parquet --cluster local:4
    - skysieve dedisp search night "older/*.fil" --dm-max 500 -o night.csv --resume
    """
    given = dict(locals())
    with report_errors():
        needs("--cutouts", cutouts, "--most")
        needs("-o", output, "--format")
        dms.check(plan_file)
        searching.check()
        grouping.check()
        cleaning.check()
    if cluster is not None:
        divide(cluster, given)
    from skysieve.core.device import begin
    from skysieve.dedispersion.clean.blocks.cleaner import LEAST_CHANNELS, can_clean
    from skysieve.dedispersion.clean.blocks.steps import parse_steps
    from skysieve.dedispersion.clean.rfi import write_rfifind
    from skysieve.dedispersion.data.sigproc import BadFile
    from skysieve.dedispersion.single_pulse.cutouts import write_cutouts
    from skysieve.dedispersion.single_pulse.files import TABLE_FORMATS, write_candidates
    from skysieve.dedispersion.single_pulse.grouping import compile_beside

    from .several import FileSearch, Outputs, filterbanks, search_each, stands_for_files

    with report_errors():  # a name may be too long for the file system
        several = each or any(map(stands_for_files, files))
    interrupted = "interrupted"
    if resume:
        interrupted += "; the same command continues after the files that are done"
    elif several:
        interrupted += "; a run that begins with --resume can be continued"
    with report_errors(interrupted, DM_NAMES), ExitStack() as stack:
        messages = reports.messages()
        steps = parse_steps(clean)
        if save_mask is not None and steps == ():
            raise ValueError("--save-mask: nothing is removed with --clean none")

        one = FileSearch(dms, plan_file, data, cleaning, requantise, steps, searching, grouping, computation, messages)
        started = begin(computation.device, "skysieve.dedispersion.cuda.engine")

        def load_numba() -> None:
            if started is not None:
                compile_beside(None)  # loads numba meanwhile

        if several:
            for name, used in (("--dry-run", dry_run), ("--save-mask", save_mask is not None)):
                if used:
                    raise ValueError(
                        f"{name}: expected files that are searched as one, not --each, a folder or a pattern"
                    )
            if STDIO in files or plan_file == STDIO:
                raise ValueError(
                    "'-': standard input can be read only once; expected names of files with --each, a folder or a "
                    "pattern"
                )
            listed = filterbanks(files)
            folder, chosen = tables_of_several(output, form)
            if cutouts is not None:
                importlib.import_module("h5py")
            asked = {
                "dms": asdict(dms), "plan": None if plan_file is None else plan_file.read_text(encoding="utf-8"),
                "data": asdict(data), "cleaning": asdict(cleaning), "requantise": requantise, "clean": steps,
                **searching.arguments, "grouping": asdict(grouping), "format": chosen,
            }  # fmt: skip
            load_numba()
            outputs = Outputs(output, chosen, folder, plot, cutouts, most, resume, overwrite)
            if code := search_each(listed, one, outputs, asked):
                raise typer.Exit(code)
            return
        if resume:
            raise ValueError("--resume needs --each, a folder or a pattern: its parts are whole files")
        chosen = "" if output is None else table_format(output, form, TABLE_FORMATS)
        read = [*files, *(path for path in (plan_file,) if path is not None)]
        check_outputs({"--output": output, "--save-mask": save_mask, "--plot": plot, "--cutouts": cutouts}, read)
        check_output(output, overwrite)
        check_output(save_mask, overwrite)
        check_picture(plot, overwrite)
        check_cutouts(cutouts, overwrite)
        try:
            fb = stack.enter_context(data.open(files))
        except BadFile as error:
            hint = "; --each searches every file by itself" if len(files) > 1 else ""
            raise ValueError(f"{error}{hint}") from None
        if save_mask is not None and not can_clean(fb.observation):
            raise ValueError(
                f"--save-mask: data of fewer than {LEAST_CHANNELS} channels, and de-dispersed data, are not cleaned, "
                "so there is no mask to save"
            )
        load_numba()
        if dry_run:
            made = dms.plan(fb, plan_file)
            messages.detail(made.summary())
            predict(fb, made, computation, cleaning.given() or requantise, clean=steps, **searching.arguments)
            return
        searched, found, every = one.find(fb, computation.device, True)
        messages.say(speed(found.rate, found.realtime, found.method, found.device, found.seconds))
        if output is not None:
            with output_file(output, f".{chosen}") as file:
                write_candidates(found, file, chosen)
            messages.wrote(output, counted(len(found), "candidate"))
        if save_mask is not None and found.removed is not None:
            write_rfifind(found.removed.mask, save_mask, fb)
            messages.wrote(save_mask)
        try:
            if plot is not None:
                save_figure(found.plot(), plot, dpi=120)
                messages.wrote(plot)
            if cutouts is not None:
                paths = write_cutouts(searched, found, cutouts, most=most, mask=every, memory=computation.memory)
                messages.wrote(cutouts, counted(len(paths), "file"))
        finally:  # candidates are shown even if pictures cannot be written
            if output == STDIO:
                for line in found.remarks():
                    messages.say(line)
            elif not messages.quiet:
                show(found)


def tables_of_several(output: Path | None, form: str | None) -> tuple[bool, str]:
    """Whether the output of a search of several files is a folder, with a table of each, and the format of the tables.

    The format is empty without an output.
    """
    from skysieve.dedispersion.single_pulse.files import SEVERAL, TABLE_FORMATS

    if output is None:
        return False, ""
    if output != STDIO and (output.is_dir() or not output.suffix):
        return True, table_format(STDIO, form, TABLE_FORMATS)
    chosen = table_format(output, form, TABLE_FORMATS)
    if chosen not in SEVERAL:
        raise ValueError(f"--output {output}: {chosen} has no column for files; expected the name of a folder")
    return False, chosen


def divide(cluster: str, given: dict[str, Any]) -> NoReturn:
    """Search files one by one by ``--cluster``."""
    from skysieve.cluster.command import launch

    code, reports = 0, given["reports"]
    with report_errors("interrupted; --resume continues from the finished files"):
        if any(given[name] is not None for name in ("plot", "cutouts", "save_mask")):
            raise ValueError("--cluster cannot be combined with any of --plot, --cutouts and --save-mask")
        if given["dry_run"]:
            raise ValueError("--cluster and --dry-run cannot be combined")
        computation = given.pop("computation")
        shared = {"threads": computation.threads, "memory": computation.memory, "device": computation.device}
        code = launch("dedisp search", cluster, given | shared, reports.messages(), DM_NAMES)
    raise typer.Exit(code)


def predict(fb: Filterbank, made: DMPlan, computation: Computation, filtered: bool, **how: Any) -> None:
    """Print the predicted cost of a search, for ``--dry-run``; masks and filters (``filtered``) are not predicted."""
    from skysieve.core.command import show_prediction
    from skysieve.core.machine.rates import missing
    from skysieve.dedispersion.single_pulse.search import SearchPlan

    with SearchPlan(
        fb, made, device=computation.device, threads=computation.threads, memory=computation.memory, **how
    ) as plan:
        facts = plan.describe()
        unknown = missing("dedispersion", plan.device, facts["work"])
    what = f"{fb.nsamp:,} samples of {fb.nchan} channels, {facts['dms']:,} DMs"
    show_prediction(
        {**facts, "missing": unknown}, what + (" (without the time of masks and filters)" if filtered else "")
    )


def show(found: Candidates, most: int = 10) -> None:
    """Print the loudest candidates as a table."""
    typer.echo(
        f"{counted(len(found), 'candidate')} ({counted(len(found.events), 'event')} above {found.threshold:g} sigma)"
    )
    if len(found):
        typer.echo(
            f"{'S/N':>8} {'DM':>10} {'time, s':>12} {'width, ms':>10} {'members':>8}  MJD at the top of the band"
        )
    for i in range(min(most, len(found))):
        typer.echo(
            f"{found.snr[i]:8.2f} {found.dm[i]:10.3f} {found.time[i]:12.6f} {found.width[i] * 1e3:10.4g} "
            f"{found.members[i]:8d}  {found.mjd_top[i]:.9f}"
        )
    for line in found.remarks():
        typer.echo(line)


def check_cutouts(folder: Path | None, overwrite: bool) -> None:
    """Refuse, before any work, a folder that has cut-outs already, and cut-outs whose packages are missing."""
    check_output(folder, folder=True)
    if folder is None:
        return
    for package in ("h5py", "matplotlib"):
        importlib.import_module(package)
    if not overwrite and any(folder.glob("cand_*")):
        raise FileExistsError(f"{folder}: has cut-outs; use --overwrite to replace them, or another folder")


@dedisp.command()
@grouped
def fake(
    output: FilOutput,
    dm: Annotated[
        float, option("--dm", help="DM of the pulses in pc/cm^3. The default is 75.", panel=PULSE, metavar="DM")
    ] = 75.0,
    period: Annotated[
        float | None, option("--period", help="Seconds between pulses. The default is 1.", panel=PULSE, metavar="S")
    ] = None,
    rate: Annotated[
        float | None,
        option("--rate", help="Pulses per second, at random times, instead of --period.", panel=PULSE, metavar="X"),
    ] = None,
    width: Annotated[
        float, option("--width", help="Width of a pulse in seconds. The default is 0.01.", panel=PULSE, metavar="S")
    ] = 1e-2,
    snr: Annotated[
        float | None,
        option("--snr", help="S/N of a pulse. By default its height is 0.25 sigma in each channel.", panel=PULSE,
               metavar="X"),
    ] = None,
    scatter: Scatter = 0.0,
    duration: Annotated[
        float, option("--duration", help="Length in seconds. The default is 10.", panel=DATA, metavar="S")
    ] = 10.0,
    nchan: Annotated[int, option("--nchan", help="Number of channels. The default is 1024.",
                                                 panel=DATA, metavar="N")] = 1024,
    fch1: Annotated[
        float, option("--fch1", help="Centre of the first channel in MHz. The default is 156.", panel=DATA, metavar="F")
    ] = 156.0,
    foff: Annotated[
        float,
        option("--foff", help="Step from channel to channel in MHz. The default is -0.005941.", panel=DATA,
               metavar="F"),
    ] = -5.941e-3,
    tsamp: Annotated[
        float, option("--tsamp", help="Sampling time in seconds. The default is 1.65e-4.", panel=DATA, metavar="S")
    ] = 165e-6,
    nbits: Annotated[int, option("--nbits", help="Bits per sample. The default is 8.", panel=DATA, metavar="N")] = 8,
    seed: Annotated[
        int, option("--seed", help="Seed of the random numbers. The default is 0.", panel=DATA, metavar="N", min=0)
    ] = 0,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
) -> None:  # fmt: skip
    """Simulate a file of noise and pulses; by default the test signal of Magro et al. (2011), Table 2.

    Example: skysieve dedisp fake -o rrat.fil --rate 0.5 --snr 20 --dm 60 --duration 30
    """
    from skysieve.dedispersion.data.simulate import fake as make

    with report_errors():
        if rate is not None and period is not None:
            raise ValueError("--rate cannot be combined with --period: pulses come either at random or evenly")
        refuse_huge({
            "--dm": dm, "--period": period, "--rate": rate, "--width": width, "--snr": snr, "--scatter": scatter,
            "--duration": duration, "--fch1": fch1, "--foff": foff, "--tsamp": tsamp,
        })  # fmt: skip
        check_output(output, overwrite)
        messages = Messages(quiet)
        with output_file(output, ".fil") as file, messages.notes():
            made = make(
                nchan=nchan, duration=duration, tsamp=tsamp, fch1=fch1, foff=foff, nbits=nbits, dm=dm,
                period=None if rate is not None else 1.0 if period is None else period, rate=rate, width=width, snr=snr,
                scatter=scatter, seed=seed, path=file,
            )  # fmt: skip
            made.close()
        messages.wrote(output, f"{made.nchan} channels x {made.nsamp} samples")


MaybeFiles = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[FILE...]",
        help="Data to which pulses are added. Without files, Gaussian noise of a receiver with --nchan, --fch1 and so "
        "on.",
        show_default=False,
    ),
]


@dedisp.command()
@grouped
def inject(
    output: FilOutput,
    files: MaybeFiles = None,
    *,
    dm: Annotated[float | None, option("--dm", help="DM of a single pulse in pc/cm^3.", panel=PULSE,
                                               metavar="DM")] = None,
    time: Annotated[
        float | None,
        option("--time", help="Time in seconds at which the pulse arrives at the top of the band.",
                              panel=PULSE, metavar="S"),
    ] = None,
    snr: Annotated[
        float | None, option("--snr", help="S/N of the single pulse.", panel=PULSE, metavar="X")
    ] = None,
    width: Annotated[
        float | None, option("--width", help="Width of the single pulse in seconds.", panel=PULSE, metavar="S")
    ] = None,
    scatter: Scatter = 0.0,
    injected: Injected,
    ignore: IgnoreOption = None,
    truth: Annotated[
        Path | None,
        option(
            "--truth", help="Table of the pulses of --grid: .csv or .ecsv. The default is the name of --output with "
                             "the ending .csv.",
            panel=OUTPUT, metavar="FILE",
        ),
    ] = None,
    receiver: Receiver,
    data: DataOptions,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
) -> None:  # fmt: skip
    """Add pulses of known S/N to files, or to noise: a single pulse, or the pulses of a grid, which a table lists.

    Examples:

    - skysieve dedisp inject a.fil --dm 100 --time 3.2 --snr 12 --width 0.004 -o b.fil
    - skysieve dedisp inject a.fil --grid "dm=100,300;width=0.002;snr=10,20" -o b.fil --truth b.csv
    """
    from skysieve.dedispersion.data.write import write_fil
    from skysieve.dedispersion.injections.inject import inject as make
    from skysieve.dedispersion.injections.inject import inject_grid, truth_table
    from skysieve.dedispersion.injections.interference import with_interference

    with report_errors(names={"ignore": "--ignore"}), ExitStack() as stack:
        check_outputs({"--output": output}, files)
        check_output(output, overwrite)
        needs("files", files, "--ifs", "--bit-order")
        refuse_huge({"--dm": dm, "--time": time, "--snr": snr, "--width": width, "--scatter": scatter})
        noise = receiver.noise(files)
        messages = Messages(quiet)
        if injected.grid is None:
            needs("--grid", injected.grid, "--pulses", "--interference", "--seed", "--truth")
            if dm is None or time is None or snr is None or width is None or not files:
                raise ValueError("no pulses are given; expected --grid, or files and --dm, --time, --snr and --width")
            with data.open(files) as fb, output_file(output, ".fil") as file:
                left_out = channel_numbers(ignore, fb.nchan)
                made = make(fb, dm=dm, time=time, snr=snr, width=width, scatter=scatter, ignore=left_out)
                write_fil(file, made)
            messages.wrote(output, f"a pulse of DM {dm:g} at {time:g} s")
            return
        if (dm, time, snr, width) != (None,) * 4 or scatter:
            raise ValueError(
                "--dm, --time, --snr, --width and --scatter describe one pulse, and cannot be combined with --grid"
            )
        if truth is None and output == STDIO:
            raise ValueError("--truth is needed with '-o -', for the table of the pulses")
        table = output.with_suffix(".csv") if truth is None else truth
        check_outputs({"--output": output, "--truth": table}, files)
        form = table_format(table, None, ("csv", "ecsv"), "--truth")
        check_output(table, overwrite)
        given = stack.enter_context(data.open(files)) if files else noise
        grid = injected.pulse_grid((50.0, 500.0))
        left_out = channel_numbers(ignore, given.nchan)
        made, truths = inject_grid(given, grid, n=injected.pulses, seed=injected.seed, ignore=left_out)
        if injected.kinds:
            made = with_interference(made, injected.kinds, seed=injected.seed)
        with output_file(output, ".fil") as file:
            write_fil(file, made)
        messages.wrote(output, f"{counted(len(truths), 'pulse')} in {made.duration:g} s")
        with output_file(table, f".{form}") as file, written(file) as part:
            truth_table(truths).write(part, format=f"ascii.{form}", overwrite=True)
        messages.wrote(table)


@dedisp.command()
@grouped
def completeness(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE|DIR|PATTERN...]",
            help="Data to which pulses are added: several files are joined by their times; files of a folder or of a "
                 "quoted pattern are used one by one. Without files, Gaussian noise of a receiver with --nchan, --fch1 "
                 "and so on.",
            show_default=False,
        ),
    ] = None,
    *,
    dms: DmOptions,
    data: DataOptions,
    cleaning: Cleaning,
    clean: CleanOption = None,
    injected: Injected,
    receiver: Receiver,
    by: Annotated[
        str,
        option(
            "--by", help="Quantity by which the recall is printed: snr, dm, effective_width, scatter, index or "
            "band_low. The default is snr.", panel=OUTPUT, metavar="NAME",
        ),
    ] = "snr",
    hours: Annotated[
        float,
        option(
            "--noise-hours",
            help="Measure the rate of false candidates in at least this many hours of data: noise without pulses is "
            "added after the last pulse; with '--pulses 0' there are no pulses. The default is 0.",
            panel=PULSE, metavar="H", min=0.0, max=1e6,
        ),
    ] = 0.0,
    searching: Searching,
    grouping: Grouping,
    computation: Computation,
    output: Annotated[
        Path | None,
        option("-o", "--output", help="Table of the pulses: .csv or .ecsv; '-' is standard output. By default no file "
                                      "is written.", panel=OUTPUT,
               metavar="OUT"),
    ] = None,
    form: FormatOption = None,
    plot: PlotFile = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    reports: Reports,
) -> None:  # fmt: skip
    """Measure which pulses a search finds: pulses of known S/N are added to data or noise and searched for.

    Examples:

    - skysieve dedisp completeness --dm-max 500 --pulses 400 -o pulses.csv --plot recall.png
    - skysieve dedisp completeness night --dm-max 500 --grid "snr=8,10,20;dm=100:400;width=0.001:0.03"
    - skysieve dedisp completeness --dm-max 3000 --max-width 0.4 --pulses 10000 -o recall.csv --resume
    """
    from skysieve.core.parts import PartsFolder, files_of
    from skysieve.dedispersion.clean.blocks.steps import parse_steps
    from skysieve.dedispersion.injections.campaign import completeness as campaign
    from skysieve.dedispersion.injections.grid import usual_dms
    from skysieve.dedispersion.injections.result import TRIALS, Completeness

    from .several import filterbanks, stands_for_files

    interrupted = (
        "interrupted; the same command continues after the segments that are done" if resume else "interrupted"
    )
    with report_errors(interrupted, DM_NAMES | {"n": "--pulses"}), ExitStack() as stack:
        messages = reports.messages()
        needs("-o", output, "--format")
        needs("files", files, "--ifs", "--bit-order")
        dms.check()
        searching.check()
        grouping.check()
        cleaning.check()
        chosen = "" if output is None else table_format(output, form, ("csv", "ecsv"))
        replaces = may_replace(output, resume, overwrite)
        check_outputs({"--output": output, "--plot": plot}, files)
        check_output(output, replaces)
        check_picture(plot, replaces)
        one_of("--by", by, TRIALS.names or ())
        steps = parse_steps(clean)
        made_noise = receiver.noise(files)
        kinds, count = injected.kinds, 1000 if injected.pulses is None else injected.pulses
        each = [[f] for f in filterbanks(files)] if files and any(map(stands_for_files, files)) else [files]
        shares = [count // len(each) + (i < count % len(each)) for i in range(len(each))]
        store = None
        if resume and output is not None:
            asked = {
                "files": files_of([f for group in each for f in group or ()]), "dms": asdict(dms), "data": asdict(data),
                "cleaning": asdict(cleaning), "pulses": asdict(injected), "receiver": asdict(receiver), "hours": hours,
                "clean": steps, **searching.arguments, "grouping": asdict(grouping),
            }  # fmt: skip
            store = PartsFolder(output, json.loads(json.dumps(asked, default=str)))
            stack.callback(store.close)
            if (ended := store.ended()) is not None:
                messages.say(f"{output} was complete before")
                raise typer.Exit(ended)
        parts, failed = [], 0
        for i, (group, share) in enumerate(zip(each, shares, strict=True)):
            try:
                with data.open(group) if group else made_noise.segment(injected.seed) as fb:
                    made = dms.plan(fb)
                    grid = injected.pulse_grid(usual_dms(float(made.dms[0]), float(made.dms[-1])))
                    if grid.time is not None:
                        raise ValueError("--grid: 'completeness' chooses the times itself; only 'inject' takes 'time'")
                    if share or hours or not count:
                        parts.append(campaign(
                            fb if group else made_noise, made, n=share, snr=grid.snr, dm=grid.dm, width=grid.width,
                            scatter=grid.scatter, index=grid.index, band=grid.band, interference=kinds,
                            prepare=None if not cleaning.given() else
                            lambda fb: cleaning.prepared(fb, Messages(quiet=True), False)[:2],
                            seed=injected.seed + 1_000_000_007 * i, hours=hours, clean=steps,
                            **searching.arguments, **vars(grouping),
                            parts=None if store is None else store.folder / f"{i:05d}",
                            device=computation.device, threads=computation.threads,
                            memory=computation.memory, progress=messages.progress,
                        ))  # fmt: skip
            except (OSError, ValueError, ArithmeticError) as error:
                if len(each) == 1 or not group:
                    raise
                failed += 1
                typer.echo(f"skysieve: {group[0]}: {with_option(one_line(error), DM_NAMES)}", err=True)
        if not parts:
            raise typer.Exit(USER_ERROR)
        found = Completeness.join(parts)
        messages.say(
            f"{counted(len(found), 'pulse')} in {found.seconds:.1f} s, of which {found.searching:.1f} s were the search"
        )
        if output is not None:
            with output_file(output, f".{chosen}") as file, written(file) as part:
                found.to_table().write(part, format=f"ascii.{chosen}", overwrite=True)
            messages.wrote(output, counted(len(found), "pulse"))
        if plot is not None:
            save_figure(found.plot(), plot, dpi=120)
            messages.wrote(plot)
        if store is not None and not failed:
            store.remove()
        if output != STDIO and not messages.quiet:
            typer.echo("\n".join(found.summary(by)))
        if failed:
            messages.say(
                f"{failed} of {counted(len(each), 'file')} could not be used: "
                f"{len(found)} of {counted(count, 'pulse')} were injected"
            )
            raise typer.Exit(FAILED_SOME)


@dedisp.command()
@grouped
def plot(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...|DIR",
            help="The data; or the output folder of 'dedisp stream', to draw the pictures that it lacks.",
            show_default=False,
        ),
    ],
    data: DataOptions,
    cleaning: Cleaning,
    output: Annotated[
        Path | None,
        option(
            "-o",
            "--output",
            help="Picture to write, such as a.png.",
            panel=OUTPUT,
            metavar="FILE",
        ),
    ] = None,
    dm: Annotated[float | None, option("--dm", help="DM of the pulse in pc/cm^3.", panel=PULSE, metavar="DM")] = None,
    time: Annotated[
        float | None,
        option(
            "--time",
            help="Time in seconds at which the pulse arrives at the top of the band.",
            panel=PULSE,
            metavar="S",
        ),
    ] = None,
    width: Annotated[
        float | None, option("--width", help="Width of the pulse in seconds.", panel=PULSE, metavar="S")
    ] = None,
    snr: Annotated[float, option("--snr", help="S/N of the pulse, for the label.", panel=PULSE, metavar="X")] = float(
        "nan"
    ),
    hdf5: Annotated[
        Path | None,
        option(
            "--hdf5", help="HDF5 file of the cut-out to write, for the classifier FETCH.", panel=OUTPUT, metavar="H5"
        ),
    ] = None,
    memory: MemoryOption = None,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw one pulse: profile, dynamic spectra, bow tie; or all candidates of a stream that have no picture yet.

    Examples:

    - skysieve dedisp plot a.fil --dm 100 --time 3.2 --width 0.004 -o pulse.png
    - skysieve dedisp plot night
    """
    from skysieve.dedispersion.single_pulse.cutouts import cutout

    with report_errors():
        messages = Messages(quiet)
        if len(files) == 1 and files[0].is_dir():
            given = (output, dm, time, width, hdf5, memory) != (None,) * 6
            if given or not isnan(snr) or cleaning.given() or data != DataOptions():
                raise ValueError(
                    f"{files[0]} is a folder, and the pulses are listed in its table: expected no other options"
                )
            draw_missing(files[0], messages)
            return
        if missing := [str(path) for path in files if path != STDIO and not path.exists()]:
            raise ValueError(f"{missing[0]}: there is no such file or folder")
        if output is None or dm is None or time is None or width is None:
            raise ValueError("--dm, --time and --width of the pulse are needed, and --output for its picture")
        refuse_huge({"--dm": dm, "--time": time, "--width": width, "--snr": snr})
        cleaning.check()
        check_outputs({"--output": output, "--hdf5": hdf5}, files)
        check_output(hdf5, overwrite)
        check_picture(output, overwrite, "--output")
        with data.open(files) as fb:
            filtered, _, mask = cleaning.prepared(fb, messages)
            one = cutout(filtered, dm=dm, time=time, width=width, snr=snr, mask=mask, memory=memory)
        save_figure(one.plot(), output, dpi=120)
        messages.wrote(output)
        if hdf5 is not None:
            one.write(hdf5)
            messages.wrote(hdf5)


def draw_missing(folder: Path, messages: Messages) -> None:
    """Draw the pictures that a stream has not drawn; if one fails, the others are still drawn."""
    from skysieve.core.files import remove_leftovers
    from skysieve.dedispersion.stream.report.drawing import draw, undrawn

    importlib.import_module("matplotlib")
    remove_leftovers(folder / "pulses")
    drawn = failed = 0
    for task in undrawn(folder):
        try:
            draw(task)
        except (OSError, ValueError, ArithmeticError, MemoryError) as error:
            failed += 1
            typer.echo(f"skysieve: {task.samples}: {error}", err=True)
        else:
            drawn += 1
    messages.wrote(folder / "pulses", f"{drawn} pictures")
    if failed:
        raise typer.Exit(USER_ERROR)
