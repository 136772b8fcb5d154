"""``skysieve fstat``: transient F-statistic maps and searches of files of atoms."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from skysieve.core.checks import one_of
from skysieve.core.command import (
    CLUSTER,
    COMPUTATION,
    FAILED_SOME,
    OUTPUT,
    STDIO,
    ClusterOption,
    DeviceOption,
    DryRunOption,
    Dtype,
    FormatOption,
    JsonOption,
    MemoryOption,
    Messages,
    OverwriteOption,
    ProgressOption,
    QuietOption,
    ResumeOption,
    ThreadsOption,
    VerboseOption,
    check_output,
    check_outputs,
    check_picture,
    choice,
    counted,
    flat_options,
    may_replace,
    needs,
    option,
    read_stdin,
    report_errors,
    table_format,
    terminal,
    write_stdout,
)
from skysieve.core.files import save_figure, written
from skysieve.core.table_files import json_text
from skysieve.fstat.inputs.window_kinds import EFOLD, KINDS, NAMED, WindowName

from . import sfts as sft_options

if TYPE_CHECKING:
    from rich.console import Console

    from skysieve.core.parts import PartsFolder
    from skysieve.fstat.contract import Compat
    from skysieve.fstat.demod.amplitudes import Amplitudes
    from skysieve.fstat.demod.bank import TemplateBank
    from skysieve.fstat.demod.demodulator import Demodulator
    from skysieve.fstat.inputs.atoms import Atoms
    from skysieve.fstat.inputs.grid import Grid
    from skysieve.fstat.inputs.simulate import Injection
    from skysieve.fstat.result.map import Style, TransientResult
    from skysieve.fstat.sfts.sfts import SFTs
    from skysieve.fstat.template_search.bsgl import BSGL
    from skysieve.fstat.template_search.result import SearchResult
    from skysieve.fstat.template_search.search import SearchPlan

DATA, INPUT, GRID, STATISTIC = "Data", "Input", "Grid", "Statistic"
"""Panels of the help screens."""
ROWS_PRINTED = 10
SHOWN = "h0", "cosi", "psi", "phi0"
"""Amplitudes that ``map --sfts`` prints."""
PRIOR = {"Fstar0": "--bsgl", "oLGX": "--olgx"}
"""Options of the arguments of `BSGL`."""
CHECKPOINT = "00000.npz"
"""Name of the checkpoint in the folder of a search with ``--resume``."""

fstat = typer.Typer(
    help="Search for transient gravitational waves: maps of the F-statistic over start time and duration.\n\n"
    "Example: skysieve fstat search --sfts 'sfts/*.sft' --ra 0.5 --dec 1.0 --freq 100.05 -o loudest.csv",
    no_args_is_help=True,
)

WINDOW_HELP = " ".join(f"{name}: {KINDS[name].help}" for name in NAMED)
Window = Annotated[
    str,
    choice(
        "-w",
        "--window",
        values=NAMED,
        help=f"Window of the signal. {WINDOW_HELP} The default is rect.",
        panel=STATISTIC,
    ),
]
File = Annotated[
    Path,
    typer.Argument(metavar="ATOMS", help="File of atoms: .npz, .h5, or LALPulsar's text; '-' is standard input."),
]
Tatom = Annotated[
    int | None,
    option(
        "--tatom",
        help="SFT length in seconds, which text files do not contain. The default is 1800, if the start times agree "
        "with it.",
        panel=INPUT,
        metavar="SECONDS",
    ),
]
Names = Annotated[
    str | None,
    option(
        "--detectors",
        help="Names of the detectors of a text file, in the order of the file. The default is D0,D1,...",
        panel=INPUT,
        metavar="H1,L1",
    ),
]
Detectors = Annotated[
    str | None,
    option(
        "--detectors",
        help="Names of the detectors of a text file, in the order of the file; with --sfts, the detectors to use. The "
        "default is D0,D1,... or all.",
        panel=INPUT,
        metavar="H1,L1",
    ),
]
T0 = Annotated[
    int | None,
    option("--t0", help="First start time. The default is the start of the data.", panel=GRID, metavar="GPS"),
]
T0Band = Annotated[
    int | None,
    option(
        "--t0-band",
        help="Range of start times. The default is all that fit the data.",
        panel=GRID,
        metavar="SECONDS",
        min=0,
    ),
]
Dt0 = Annotated[
    int | None,
    option("--dt0", help="Step of start times. The default is one SFT.", panel=GRID, metavar="SECONDS", min=1),
]
Tau = Annotated[
    int | None,
    option("--tau", help="Shortest duration. The default is two SFTs.", panel=GRID, metavar="SECONDS", min=1),
]
TauBand = Annotated[
    int | None,
    option(
        "--tau-band",
        help="Range of durations. The default is all that fit the data.",
        panel=GRID,
        metavar="SECONDS",
        min=0,
    ),
]
Dtau = Annotated[
    int | None,
    option("--dtau", help="Step of durations. The default is one SFT.", panel=GRID, metavar="SECONDS", min=1),
]
LogTau = Annotated[
    int | None,
    option(
        "--log-tau",
        help="Use N durations in logarithmic steps. By default the steps are equal (--dtau).",
        panel=GRID,
        metavar="N",
        min=1,
        max=1_000_000,
    ),
]
Lenient = Annotated[
    bool,
    option(
        "--not-strict", help="Leave out cells that hold fewer than two SFTs. By default they are an error.", panel=GRID
    ),
]
Efold = Annotated[
    float,
    option(
        "--efold", help="End of exponential windows in units of tau. The default is 3.", panel=STATISTIC, metavar="X"
    ),
]
Seed = Annotated[int, option("--seed", help="Seed of the random numbers. The default is 0.", panel=DATA, metavar="N",
                              min=0)]  # fmt: skip
AtomsFormat = Annotated[
    str | None,
    option(
        "--format",
        help="Format of the output: npz, hdf5 or text. The default follows from the file's name; text for '-'.",
        panel=OUTPUT,
        metavar="FORMAT",
    ),
]
MapFormat = Annotated[
    str | None,
    option(
        "--format",
        help="Format of the map: npz, csv, pyfstat or lalpulsar. The default follows from the file's name (.dat and "
        ".txt are pyfstat); csv for '-'.",
        panel=OUTPUT,
        metavar="FORMAT",
    ),
]


# ---------------------------------------------------------------- input and output


def read(path: Path, tatom: int | None, detectors: str | None, stdin: Callable[[], bytes] = read_stdin) -> list[Atoms]:
    """Atoms of a file of any format, or of standard input, which `stdin` returns."""
    from skysieve.fstat.inputs.files import read_any

    names = detectors.split(",") if detectors else None
    if path != STDIO:
        return read_any(path, tatom, names)
    data = stdin()
    ending = ".npz" if data.startswith(b"PK") else ".h5" if data.startswith(b"\x89HDF") else ".dat"
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / f"stdin{ending}"
        copy.write_bytes(data)
        try:
            return read_any(copy, tatom, names)
        except ValueError as error:
            raise ValueError(str(error).replace(str(copy), "standard input")) from error


def put(path: Path, write: Callable[[Path], Any], name: str) -> None:
    """Write a file by ``write(path)``, or write a temporary file `name` and copy it to standard output."""
    if path != STDIO:
        write(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / name
        write(copy)
        write_stdout(copy.read_bytes())


def atoms_writer(path: Path, wanted: str | None, name: str = "--output") -> Callable[[list[Atoms]], None]:
    """A function that writes atoms; raises at once if the format or the name is wrong."""
    from skysieve.fstat.inputs.files import FORMATS

    endings = {ending.removeprefix("."): name for name, f in FORMATS.items() for ending in f.endings}
    known = [*FORMATS, *(e for e in endings if e not in FORMATS)]
    chosen = table_format(path, wanted or ("text" if path == STDIO else None), known, name)
    found = FORMATS[endings.get(chosen, chosen)]

    def write(atoms: list[Atoms]) -> None:
        def write_file(target: Path) -> None:
            with written(target) as part:
                found.write(part, atoms)

        put(path, write_file, f"atoms{found.endings[0]}")

    return write


def summary_console(output: Path | None) -> Console:
    """The console for the summary of a command: standard error if the data go to standard output."""
    return terminal(markup=False, stderr=output == STDIO)


def make_grid(
    atoms: list[Atoms], t0: int | None, t0_band: int | None, dt0: int | None, tau: int | None, tau_band: int | None,
    dtau: int | None, log_tau: int | None,
) -> Grid:  # fmt: skip
    """The grid of the options; values that are not given follow from the data."""
    import numpy as np

    from skysieve.fstat.inputs.bins import bin_atoms
    from skysieve.fstat.inputs.grid import Grid

    bins = bin_atoms(atoms)
    width, end = bins.tatom, bins.t_end
    first = bins.t_start if t0 is None else t0
    shortest = 2 * width if tau is None else tau
    values = {"t0": first, "t0_band": t0_band, "dt0": dt0, "tau": shortest, "tau_band": tau_band, "dtau": dtau}
    values["t0_band"] = max(0, end - 2 * width - first) if t0_band is None else t0_band
    values["tau_band"] = max(0, end - bins.t_start - shortest) if tau_band is None else tau_band
    grid = Grid(**{name: width if value is None else value for name, value in values.items()})
    if log_tau is None:
        return grid
    taus = np.geomspace(shortest, shortest + grid.tau_band, log_tau) if log_tau > 1 else np.array([shortest])
    return Grid.from_lists(grid.t0s, np.unique((taus / width).round().astype(np.int64)) * width)


def describe(messages: Messages, facts: dict[str, Any]) -> None:
    """Say what a plan will do."""
    from skysieve.core.errors import format_bytes
    from skysieve.core.machine.rates import ADVICE

    messages.detail(
        f"{facts['method']} on {facts['device']}, {facts['dtype']}: {facts['cells']:,} cells, "
        f"{format_bytes(facts['bytes'])}"
        + (f", about {facts['seconds']:.3g} s" if facts["seconds"] is not None else f"; {ADVICE}")
    )


# ---------------------------------------------------------------- map


@fstat.command("map")
def map_(
    atoms: Annotated[
        list[Path] | None,
        typer.Argument(metavar="ATOMS", help="File of atoms: .npz, .h5, or LALPulsar's text; '-' is standard input."),
    ] = None,
    sfts: sft_options.Patterns = None, min_start: sft_options.MinStart = None, max_start: sft_options.MaxStart = None,
    ra: sft_options.Ra = None, dec: sft_options.Dec = None, tref: sft_options.Tref = None,
    ephemeris: sft_options.Ephemeris = "auto", noise: sft_options.AssumedNoise = None,
    freq: sft_options.TemplateFreq = None,
    f1dot: sft_options.TemplateF1 = 0.0, f2dot: sft_options.TemplateF2 = 0.0,
    window: Window = "rect",
    t0: T0 = None, t0_band: T0Band = None, dt0: Dt0 = None,
    tau: Tau = None, tau_band: TauBand = None, dtau: Dtau = None, log_tau: LogTau = None, lenient: Lenient = False,
    efold: Efold = 3,
    compat: Annotated[
        str | None,
        option(
            "--compat", help="Reproduce the results of LALPulsar bit for bit. The default is the exact statistic.",
            panel=STATISTIC, metavar="lalpulsar",
        ),
    ] = None,
    dtype: Annotated[
        Dtype, option("--dtype", help="Floating-point type of the computation. The default is float64.",
                                      panel=COMPUTATION)
    ] = Dtype.float64,
    device: Annotated[
        str, option("--device", help="Where to compute: auto, cpu, cuda or cuda:1. The default is auto.",
                                panel=COMPUTATION, metavar="DEVICE")
    ] = "auto",
    threads: ThreadsOption = None, memory: MemoryOption = None,
    output: Annotated[
        Path | None,
        option(
            "-o", "--output", help="File of the map: .npz with everything, or text; '-' is standard output. By default "
                                   "no file is written.",
            panel=OUTPUT, metavar="FILE",
        ),
    ] = None,
    format: MapFormat = None,
    keep: Annotated[
        Path | None,
        option("--atoms", help="With --sfts: file of the atoms, .npz or .h5. By default they are not written.",
                               panel=OUTPUT, metavar="FILE"),
    ] = None,
    plot: Annotated[
        Path | None,
        option("--plot", help="Picture of the map, such as map.png. By default nothing is drawn.",
                              panel=OUTPUT, metavar="FILE"),
    ] = None,
    overwrite: OverwriteOption = False, quiet: QuietOption = False, verbose: VerboseOption = False,
    progress: ProgressOption = None, tatom: Tatom = None, detectors: Detectors = None,
) -> None:  # fmt: skip
    """Compute 2F over start time and duration for one template, from its atoms or from SFTs.

    With SFTs, the amplitude, inclination, polarisation angle and phase of the largest 2F are printed too.

    Examples:

    - skysieve fstat map atoms.npz --window exp --plot map.png
    - skysieve fstat map CFS_Fstatatoms.dat --detectors H1,L1 --t0 1000000000 --t0-band 864000 --dt0 3600 -o map.npz
    - skysieve fstat map atoms.npz --log-tau 20 -o - --format csv
    - skysieve fstat map --sfts 'sfts/*.sft' --ra 0.5 --dec 1.0 --tref 1000000000 --freq 100.05 --plot map.png
    """
    with report_errors():
        messages = Messages(quiet, verbose, progress)
        if device == "cuda:all":
            raise ValueError(f"--device {device}: a map is computed on one device; expected auto, cpu, cuda or cuda:1")
        needs("-o", output, "--format")
        check_grid([window], efold, dtau, log_tau)
        save = None if output is None else map_writer(output, format)
        names = list(atoms or ())
        if not sfts and len(names) != 1:
            raise ValueError(f"{counted(len(names), 'file')} of atoms given: expected one, or --sfts")
        needs("--sfts", sfts, *sft_options.MAP_OPTIONS)
        write_atoms = None if keep is None else atoms_writer(keep, None, "--atoms")
        check_outputs({"--output": output, "--plot": plot, "--atoms": keep}, names)
        check_output(output, overwrite)
        check_output(keep, overwrite)
        check_picture(plot, overwrite)
        from skysieve.fstat.api import TransientPlan, device_for
        from skysieve.fstat.inputs.windows import resolve_window

        shape = resolve_window(window, efold)
        host, left_out, spins = None, list[str](), (freq or 0.0, f1dot, f2dot)
        if sfts:
            if tatom is not None:
                raise ValueError(f"--tatom {tatom}: is for files of atoms only; SFT files contain their length")
            host = sft_options.of_one_template(
                [*sfts, *map(str, names)], detectors, (min_start, max_start), ra, dec, tref, ephemeris, noise, freq,
                (f1dot, f2dot), left_out, dtype.value,
            )  # fmt: skip
            for text in left_out:
                typer.echo(f"skysieve: {text}", err=True)
            found = host.atoms(*spins)
        else:
            found = read(names[0], tatom, detectors)
        grid = None if shape.whole else make_grid(found, t0, t0_band, dt0, tau, tau_band, dtau, log_tau)
        with TransientPlan(
            grid, window=cast("WindowName", window), efold=efold, dtype=dtype.value, compat=cast("Compat", compat),
            device=device_for(device, found, grid, shape),
            keep_map=output is not None or plot is not None, strict=not lenient, memory=memory,
            threads=threads,
        ) as plan:  # fmt: skip
            if verbose:
                describe(messages, plan.describe(found))
            result = plan.execute(found, progress=messages.progress)
        if save is not None and output is not None:
            save(result)
            messages.wrote(output, "map of {} x {} cells".format(*result.grid.shape))
        if write_atoms is not None and keep is not None:
            write_atoms(found)
            messages.wrote(keep, _count(found))
        if plot is not None:
            save_figure(result.plot(), plot, dpi=150)
            messages.wrote(plot)
        if not quiet:
            _print_map(result, summary_console(output))
            if host is not None and result.index is not None:
                t0_ml, tau_ml = (None, None) if shape.whole else (result.t0_ml, result.tau_ml)
                amplitudes = host.amplitudes(
                    *spins, window=cast("WindowName", window), t0=t0_ml, tau=tau_ml, efold=efold
                )  # fmt: skip
                _print_amplitudes(host, amplitudes, summary_console(output))
    raise typer.Exit(FAILED_SOME if left_out else 0)


def _print_amplitudes(host: Demodulator, found: Amplitudes, console: Console) -> None:
    """Print the amplitudes of the cell of the largest 2F."""
    h0, cosi, psi, phi0 = (f"{name} {getattr(found, name):.4g} +- {found.errors[name]:.2g}" for name in SHOWN)
    console.print(f"{h0}, {cosi}")
    console.print(f"{psi}, {phi0} (at GPS {host.tref:.12g})")


def check_grid(windows: Sequence[str], efold: float, dtau: int | None, log_tau: int | None) -> None:
    """Refuse options of the grid, and of exponential windows, that no window uses, and two kinds of steps."""
    from skysieve.fstat.inputs.windows import resolve_window

    whole = all(resolve_window(cast("WindowName", name), efold).whole for name in windows)
    needs("a window other than none", not whole, "--t0", "--t0-band", "--dt0", "--tau", "--tau-band", "--dtau",
          "--log-tau", "--not-strict")  # fmt: skip
    needs(f"--window {' or '.join(EFOLD)}", any(name in EFOLD for name in windows), "--efold")
    if dtau is not None and log_tau is not None:
        raise ValueError(f"--dtau {dtau} cannot be combined with --log-tau {log_tau}: expected one of them")


def map_writer(path: Path, wanted: str | None) -> Callable[[TransientResult], None]:
    """A function that writes a map; raises at once if the format or the name is wrong."""
    from skysieve.fstat.result.map import STYLES

    styles = {ending.removeprefix("."): name for name, style in STYLES.items() for ending in style.endings}
    known = ["npz", *STYLES, *(e for e in styles if e not in STYLES)]
    chosen = table_format(path, wanted, known)
    if chosen == "npz":
        return lambda result: put(path, result.save, "map.npz")
    style = cast("Style", styles.get(chosen, chosen))
    return lambda result: put(path, lambda target: result.write_text(target, style), "map.txt")


def _print_map(result: TransientResult, console: Console) -> None:
    rows, columns = result.grid.shape
    cells = f"{counted(rows, 'start time')} x {counted(columns, 'duration')}"
    console.print(f"{result.window} window, {cells} on {result.device}")
    if result.index is None:
        console.print("no cell could be computed: each window holds fewer than two SFTs")
        return
    console.print(f"max 2F {result.max2F:.4f} at t0 GPS {result.t0_ml}, tau {result.tau_ml} s ({_days(result.tau_ml)})")
    console.print(f"ln B (signal against noise) {result.lnBtSG:.4f}")
    for name, before, after in (("t0", "GPS ", ""), ("tau", "", " s")):
        low, high = result.credible_interval(name)
        most = getattr(result, f"{name}_mp")
        console.print(
            f"{name}: most probable {before}{most:.0f}{after}, 90% credible interval {before}{low} to {high}{after}"
        )


def _days(seconds: int | None) -> str:
    return "" if seconds is None else f"{seconds / 86400:.3g} d"


# ---------------------------------------------------------------- search


@fstat.command()
def search(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="ATOMS...", help="Files of atoms, one for each template; folders; quoted patterns."),
    ] = None,
    files_from: Annotated[
        Path | None,
        option(
            "--files-from", help="Read more names of files of atoms from this file, one per line; '-' is standard "
                                 "input. The default is none.", panel=INPUT, metavar="FILE",
        ),
    ] = None,
    sfts: sft_options.Patterns = None, min_start: sft_options.MinStart = None, max_start: sft_options.MaxStart = None,
    ra: sft_options.Ra = None, dec: sft_options.Dec = None,
    tref: sft_options.Tref = None, ephemeris: sft_options.Ephemeris = "auto", noise: sft_options.AssumedNoise = None,
    freq: sft_options.Freq = None,
    freq_band: sft_options.FreqBand = 0.0, df: sft_options.Df = None, f1dot: sft_options.F1 = 0.0,
    f1dot_band: sft_options.F1Band = 0.0, df1dot: sft_options.Df1 = None, f2dot: sft_options.F2 = 0.0,
    f2dot_band: sft_options.F2Band = 0.0, df2dot: sft_options.Df2 = None, mismatch: sft_options.Mismatch = 0.1,
    templates: sft_options.TemplateList = None, inject: sft_options.Inject = None,
    window: Annotated[
        list[str] | None,
        choice(
            "-w", "--window", values=NAMED, panel=STATISTIC,
            help=f"Window of the signal; may be repeated. {WINDOW_HELP} The default is rect and exp.",
        ),
    ] = None,
    t0: T0 = None, t0_band: T0Band = None, dt0: Dt0 = None,
    tau: Tau = None, tau_band: TauBand = None, dtau: Dtau = None, log_tau: LogTau = None, lenient: Lenient = False,
    efold: Efold = 3,
    statistic: Annotated[
        str | None,
        option(
            "--statistic",
            help="Rank templates by max2F, lnBtSG or log10BSGL. The default is log10BSGL with --bsgl, else max2F.",
            panel=STATISTIC, metavar="NAME",
        ),
    ] = None,
    fstar0: Annotated[
        float | None,
        option(
            "--bsgl", help="Compute the line-robust statistic with this transition scale F*0, for two or more "
                           "detectors. By default it is not computed.",
            panel=STATISTIC, metavar="FSTAR0",
        ),
    ] = None,
    olgx: Annotated[
        str | None,
        option(
            "--olgx",
            help="Prior odds of a line in each detector, for --bsgl. The default is equal odds whose sum is 1.",
            panel=STATISTIC, metavar="0.5,0.5",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        option("--threshold", help="Smallest statistic to list. By default there is no limit.", panel=STATISTIC,
               metavar="X"),
    ] = None,
    topk: Annotated[
        int, option("--topk", help="Number of templates to list for each window. The default is 1000.", panel=STATISTIC,
                    metavar="N")
    ] = 1000,
    dtype: Annotated[
        Dtype, option("--dtype", help="Floating-point type of the computation. The default is float32.",
                                      panel=COMPUTATION)
    ] = Dtype.float32,
    device: DeviceOption = "auto", threads: ThreadsOption = None, memory: MemoryOption = None,
    dry_run: DryRunOption = False,
    cluster: ClusterOption = None, resume: ResumeOption = False,
    partition: Annotated[
        int | None,
        option(
            "--partition", help="With --cluster: templates of a partition. The default is a hundredth of all, 500 to "
            "100,000.", panel=CLUSTER, metavar="N", min=1,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        option(
            "-o", "--output",
            help="Table of the best templates: .parquet, .fits, .csv, .ecsv, .json, or .npz with everything; '-' is "
                 "standard output. By default no file is written.",
            panel=OUTPUT, metavar="FILE",
        ),
    ] = None,
    format: FormatOption = None,
    plot: Annotated[
        Path | None,
        option(
            "--plot", help="Picture of the loudness of all templates, such as search.png. By default nothing is drawn.",
                           panel=OUTPUT,
            metavar="FILE",
        ),
    ] = None,
    overwrite: OverwriteOption = False, quiet: QuietOption = False, verbose: VerboseOption = False,
    progress: ProgressOption = None, tatom: Tatom = None, detectors: Detectors = None,
) -> None:  # fmt: skip
    """Rank many templates by their loudest transient: from SFTs, or from one file of atoms each.

    The default grid follows from the data of the first template. A template whose file cannot be read, or that leaves
    the band of the SFTs, and an SFT that is damaged, are reported and left out; the exit code is then 1. Parameters in
    LALPulsar's names of files of atoms become columns.

    Examples:

    - skysieve fstat search --sfts 'sfts/*.sft' --ra 0.5 --dec 1.0 --freq 100.045 --freq-band 0.01 -o loudest.csv

    - skysieve fstat search atoms/*.dat --detectors H1,L1 -w exp --dt0 7200 --log-tau 40 -o loudest.fits
    - skysieve fstat search 'atoms/*.npz' --bsgl 15 --topk 20 -o - --format json
    - find atoms -name '*.dat' | skysieve fstat search --files-from - --detectors H1,L1 -o loudest.csv
    """
    given = dict(locals())
    code = 0
    with report_errors():
        needs("-o", output, "--format")
        needs("--cluster", cluster, "--partition")
        if statistic == "log10BSGL" and fstar0 is None:
            raise ValueError("--statistic log10BSGL needs --bsgl")
        check_grid(shapes_of(given), efold, dtau, log_tau)
        needs("--sfts", sfts, *sft_options.OPTIONS)
        needs("--freq, not --templates", templates is None or freq is not None, *sft_options.GRID_OPTIONS)
    if cluster is not None:
        with report_errors("interrupted; --resume continues from the finished partitions", PRIOR):
            from skysieve.cluster.command import launch

            if plot is not None or dry_run:
                raise ValueError("--cluster cannot be combined with --plot or --dry-run")
            code = launch("fstat search", cluster, given, Messages(quiet, verbose, progress), PRIOR)
        raise typer.Exit(code)
    interrupted = "interrupted; the same command continues after the finished templates" if resume else "interrupted"
    with report_errors(interrupted, PRIOR), ExitStack() as outer:
        messages = Messages(quiet, verbose, progress)
        from skysieve.fstat.template_search.result import FORMATS

        kind = None if output is None else table_format(output, format, FORMATS)
        replaces = may_replace(output, resume, overwrite)
        lists = [path for path in (files_from, templates) if path is not None]
        check_outputs({"--output": output, "--plot": plot}, [*(files or ()), *lists])
        check_output(output, replaces)
        check_picture(plot, replaces)
        options = flat_options(given)
        source = source_of(options)
        for text in source.left_out:
            typer.echo(f"skysieve: {text}", err=True)
        for text in source.notes:
            messages.say(f"note: {text}")
        if source.host is not None:
            messages.say("; ".join([counted(source.total, "template"), *map(_what_sfts, source.host.sfts)]))
        parts = None
        with ExitStack() as stack:
            plan = stack.enter_context(plan_of(options, source.grid(options), source.total))
            if dry_run:
                from .rates import show_search

                some = partial(_first, source.names, source.read)
                show_search(plan, source.first, source.host, source.bank, source.total, some, source.sft_bytes)
                return
            if verbose:
                describe(messages, plan.describe(source.first))
            batches = source.batches(stack, plan)
            if resume and output is not None:
                parts = outer.enter_context(closing(_parts(output, options, source)))
                if parts.lock.note:
                    messages.say(f"note: {parts.lock.note}")
                if (ended := parts.ended()) is not None:
                    messages.say(f"{output} was complete before")
                    raise typer.Exit(ended)
            result = plan.execute(
                batches, checkpoint=None if parts is None else parts.folder / CHECKPOINT, total=source.total,
                facts=source.facts(), progress=messages.progress,
            )  # fmt: skip
        for number, text in result.faults.items():
            name = f"template {number}" if sfts else str(source.names[number])
            typer.echo(f"skysieve: {text if name in text else f'{name}: {text}'}", err=True)
        code = FAILED_SOME if result.n_bad or source.left_out else 0
        if output is not None and kind is not None:
            put(output, lambda target: result.save(target, format=kind), f"table.{kind}")
            messages.wrote(output, counted(len(result.columns()["template"]), "row"))
        if plot is not None:
            save_figure(result.plot(), plot, dpi=150)
            messages.wrote(plot)
        if parts is not None:
            parts.remove(code)
        if not quiet:
            _print_search(result, summary_console(output))
    raise typer.Exit(code)


def _what_sfts(sfts: SFTs) -> str:
    """The SFTs of a detector in words."""
    low, high = sfts.frequencies[[0, -1]]
    count = counted(len(sfts), "SFT")
    return f"{sfts.detector}: {count} of {sfts.tsft:g} s from GPS {sfts.t[0]}, {low:.9g} to {high:.9g} Hz"


def _parts(output: Path, options: Mapping[str, Any], source: Source) -> PartsFolder:
    """The folder of the checkpoint of a search, which continues with the same options, files and data only."""
    from skysieve import __version__
    from skysieve.cluster.description import NO_MATTER
    from skysieve.core.parts import PartsFolder, files_of

    same = {name: value for name, value in options.items() if name not in (*NO_MATTER, "format", "plot")}
    run = {"options": [same, __version__], "files": files_of(source.names), "data": source.facts()}
    return PartsFolder(output, json.loads(json.dumps(run, default=str)))


@dataclass
class Source:
    """The input of a search: SFTs and a bank of templates, or files of atoms."""

    first: list[Atoms]
    """Atoms of the first template that has some."""
    total: int
    names: list[Path]
    """Files of atoms."""
    left_out: list[str]
    host: Demodulator | None = None
    bank: TemplateBank | None = None
    sft_bytes: int = 0
    """Size of all files of SFTs."""
    read_one: Callable[[Path], list[Atoms]] | None = None
    """Reads one of `names`; None for SFTs."""
    notes: Sequence[str] = ()
    """Lines for the user."""

    def read(self, path: Path) -> list[Atoms]:
        """Atoms of one of `names`.  Standard input is read once, and its bytes are cached."""
        assert self.read_one is not None
        return self.read_one(path)

    def grid(self, options: Mapping[str, Any]) -> Grid | None:
        """The grid of the options; None if all windows cover all data."""
        from skysieve.fstat.inputs.windows import resolve_window

        if all(resolve_window(cast("WindowName", name), options["efold"]).whole for name in shapes_of(options)):
            return None
        names = ("t0", "t0_band", "dt0", "tau", "tau_band", "dtau", "log_tau")
        return make_grid(self.first, *(options[name] for name in names))

    def facts(self) -> dict[str, Any]:
        """The values that identify the data, see `Demodulator.facts`."""
        return {} if self.host is None or self.bank is None else self.host.facts(self.bank)

    def batches(self, stack: ExitStack, plan: SearchPlan, end: int | None = None) -> Callable[[int], Iterator[Any]]:
        """A function ``batches(start)`` that yields the templates from number `start` on, up to `end`."""
        if self.host is not None and self.bank is not None:
            from skysieve.fstat.demod.demodulator import stream
            from skysieve.fstat.demod.search import demodulators

            return stream(stack.enter_context(demodulators(self.host, plan.devices)), self.bank, end)
        from skysieve.fstat.template_search.batch import read_files

        return lambda start: read_files(self.names[start:end], self.read)


def shapes_of(options: Mapping[str, Any]) -> list[str]:
    """Names of the windows of a search."""
    return list(options["window"] or ["rect", "exp"])


def source_of(options: Mapping[str, Any], at: Callable[[str], Path] = Path) -> Source:
    """Check the options of a search, and open its files; ``at(name)`` is the path of a file."""
    plan_of(options, None, 1).close()
    prior = prior_of(options)
    names = [Path(name) for name in options["files"] or []]
    opened = _source_of_sfts if options["sfts"] else _source_of_atoms
    return opened(options, names, prior, at)


def _source_of_sfts(
    options: Mapping[str, Any], names: list[Path], prior: BSGL | None, at: Callable[[str], Path]
) -> Source:
    """`source_of` with ``--sfts``; ``names`` are further patterns of SFT files."""
    from skysieve.fstat.demod.bank import long_sfts
    from skysieve.fstat.sfts.files import divided, files_of

    if options["tatom"] is not None:
        raise ValueError(f"--tatom {options['tatom']}: is for files of atoms only; SFT files contain their length")
    if options["files_from"] is not None:
        raise ValueError("--files-from lists files of atoms and cannot be combined with --sfts; expected --templates")
    axes = tuple(
        (options[name], options[f"{name}_band"], options[step])
        for name, step in (("freq", "df"), ("f1dot", "df1dot"), ("f2dot", "df2dot"))
    )
    left_out: list[str] = []
    listed = options["templates"] if options["templates"] is None else Path(options["templates"])
    patterns = [str(at(name)) for name in divided([*options["sfts"], *names])]
    host, bank = sft_options.opened(
        patterns, options["detectors"], (options["min_start"], options["max_start"]), options["ra"], options["dec"],
        options["tref"], options["ephemeris"], options["noise"], axes, options["mismatch"],
        listed if listed in (None, STDIO) else at(str(listed)), options["inject"] or (), left_out, options["dtype"],
        prior,
    )  # fmt: skip
    size = sum(path.stat().st_size for path in files_of(patterns))
    notes = [text] if (text := long_sfts(bank, host.tsft)) else []
    if options["tref"] is None:
        notes.append(f"frequencies refer to GPS {host.tref:.0f}, the middle of the data (--tref)")
    return Source(host.first(bank), len(bank), [], left_out, host, bank, size, notes=notes)


def _source_of_atoms(
    options: Mapping[str, Any], names: list[Path], prior: BSGL | None, at: Callable[[str], Path]
) -> Source:
    """`source_of` without ``--sfts``: ``names``, and those of ``--files-from``, are files of atoms."""
    from skysieve.fstat.inputs.files import atom_files

    if options["templates"] is not None or options["inject"]:
        raise ValueError("--templates and --inject need --sfts")
    listed = None if options["files_from"] is None else Path(options["files_from"])
    others: list[Path] = []
    names = atom_files([*names, *listed_names(listed)], others)
    if not names:
        raise ValueError("no files of atoms are given; expected their names, --files-from, or --sfts")
    if STDIO in names and listed == STDIO:
        raise ValueError("--files-from - and the file -: standard input can be read only once")
    if STDIO in names and options.get("resume"):
        raise ValueError("-: --resume needs files, since standard input cannot be read again")
    stdin = cache(read_stdin)

    def read_one(path: Path) -> list[Atoms]:
        place = path if path == STDIO else at(str(path))
        try:
            return read(place, options["tatom"], options["detectors"], stdin)
        except ValueError as error:
            raise ValueError(str(error).replace(str(place), str(path))) from error

    first = _first(names, read_one)
    if prior is not None:
        prior.odds([one.detector for one in first])
    notes = []
    if others:
        some = ", ".join(path.name for path in others[:3]) + (", ..." if len(others) > 3 else "")
        notes = [f"{counted(len(others), 'text file')} without atoms left alone: {some}"]
    return Source(first, len(names), names, [], read_one=read_one, notes=notes)


def prior_of(options: Mapping[str, Any]) -> BSGL | None:
    """The prior of the line-robust statistic."""
    from skysieve.fstat.template_search.bsgl import BSGL

    if options["fstar0"] is not None:
        try:
            odds = [float(v) for v in options["olgx"].split(",")] if options["olgx"] else None
        except ValueError:
            raise ValueError(f"--olgx {options['olgx']}: expected numbers, with a comma between") from None
        return BSGL(options["fstar0"], odds)
    if options["olgx"]:
        raise ValueError("--olgx needs --bsgl")
    return None


def plan_of(options: Mapping[str, Any], grid: Grid | None, total: int) -> SearchPlan:
    """The plan of a search of this many templates."""
    from skysieve.fstat.template_search.search import SearchPlan

    return SearchPlan(
        grid, windows=cast("list[WindowName]", shapes_of(options)), efold=options["efold"], topk=options["topk"],
        threshold=options["threshold"], bsgl=prior_of(options), dtype=options["dtype"], statistic=options["statistic"],
        device=options["device"], strict=not options["lenient"], band_width=max(1, total // 200),
        memory=options["memory"], threads=options["threads"],
    )  # fmt: skip


def _shown(name: str, value: Any) -> str:
    if name in ("f0", "f1dot", "f2dot"):
        return f"{value:.10g}"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def listed_names(path: Path | None) -> list[str]:
    """The lines of a file, or of standard input, without empty ones."""
    if path is None:
        return []
    text = (read_stdin() if path == STDIO else path.read_bytes()).decode(errors="surrogateescape")
    return [line for line in text.splitlines() if line.strip()]


def _first(files: list[Path], read_one: Callable[[Path], list[Atoms]]) -> list[Atoms]:
    """Atoms of the first file that can be read."""
    problem: Exception = ValueError("no files")
    for path in files:
        try:
            return read_one(path)
        except (ValueError, OSError) as error:
            problem = error
    raise problem


def _print_search(result: SearchResult, console: Console) -> None:
    from rich.table import Table

    from skysieve.fstat.demod.bank import NAMES
    from skysieve.fstat.template_search.columns import COLUMNS

    bad = f", {result.n_bad:,} of them left out" if result.n_bad else ""
    console.print(f"{counted(result.n_templates, 'template')}{bad}; ranked by {result.statistic}")
    for window in result.windows:
        columns = result.columns(window)
        expected = result.expected_loudest(window)
        if result.exceeds_noise(window):
            console.print(
                f"{window}: the templates are too loud to tell what noise alone would give, as in a narrow search "
                "around a signal"
            )
        if expected is not None:
            console.print(
                f"{window}: in noise alone the loudest would have 2F = {expected[0]:.1f} +- {expected[1]:.1f}"
            )
        given = [name for name in ("file", *NAMES) if name in columns and len(set(columns[name])) > 1]
        names = [*given, *(c.name for c in COLUMNS if c.shown and c.name in columns)]
        table = Table(box=None, pad_edge=False, header_style="bold", title=f"{window} window", title_justify="left")
        for name in names:
            table.add_column(name, justify="left" if name == "file" else "right")
        for i in range(min(ROWS_PRINTED, len(columns["template"]))):
            values = [columns[name][i] for name in names]
            table.add_row(*(_shown(name, value) for name, value in zip(names, values, strict=True)))
        console.print(table)


# ---------------------------------------------------------------- files of atoms


@fstat.command()
def synth(
    output: Annotated[
        Path, typer.Argument(metavar="OUT", help="File to write: .npz, .h5, or .dat and .txt for text; '-' is standard "
                                                 "output.")
    ],
    days: Annotated[
        float, option("--days", help="Length of the data. The default is 10.", panel=DATA, metavar="DAYS")
    ] = 10,
    start: Annotated[
        int,
        option("--start", metavar="GPS", help="Start time of the first SFT. The default is 1000000000.", panel=DATA),
    ] = 1_000_000_000,
    detectors: Annotated[
        str,
        option(
            "--detectors", metavar="H1,L1", help="Detectors, of H1, L1, V1, G1, K1 and I1. The default is H1,L1.",
            panel=DATA,
        ),
    ] = "H1,L1",
    tatom: Annotated[
        int, option("--tatom", metavar="SECONDS", help="SFT length in seconds. The default is 1800.", panel=DATA)
    ] = 1800,
    ra: Annotated[
        float, option("--ra", metavar="RADIANS", help="Right ascension. The default is 0.5.", panel=DATA)
    ] = 0.5,
    dec: Annotated[
        float, option("--dec", metavar="RADIANS", help="Declination. The default is 1.", panel=DATA)
    ] = 1.0,
    gap: Annotated[
        list[str] | None,
        option(
            "--gap", metavar="FROM,TO", panel=DATA,
            help="Range of GPS seconds without data; may be repeated. The default is no gap.",
        ),
    ] = None,
    duty: Annotated[
        float,
        option("--duty", metavar="P", help="Fraction of the SFTs to keep, at random. The default is 1.", panel=DATA),
    ] = 1.0,
    inject: Annotated[
        list[str] | None,
        option(
            "--inject", metavar="T0,TAU,SNR[,WINDOW]",
            help="Add a signal, with the window rect or exp; may be repeated. By default the data are noise.",
            panel=DATA,
        ),
    ] = None,
    seed: Seed = 0, format: AtomsFormat = None, overwrite: OverwriteOption = False, quiet: QuietOption = False,
) -> None:  # fmt: skip
    """Make atoms of a matched template in Gaussian noise, with signals.

    Example: skysieve fstat synth a.npz --days 30 --inject 1000432000,259200,15,exp --gap 1001000000,1001100000
    """
    with report_errors(names={"detector": "--detectors"}):
        from skysieve.fstat.inputs.simulate import synth_atoms

        span = sft_options.seconds_of(days)
        sft_options.check_finite({"--ra": ra, "--dec": dec})
        save = atoms_writer(output, format)
        check_output(output, overwrite)
        holes = [_numbers(text, "--gap", 2) for text in gap or ()]
        for first, last in holes:
            if last <= first:
                raise ValueError(f"--gap {first},{last}: expected the end after the beginning")
        made = synth_atoms(
            start, span, detectors=detectors.split(","), tatom=tatom, ra=ra, dec=dec,
            inject=[_injection(text) for text in inject or ()], gaps=[(a, b) for a, b in holes], duty=duty, seed=seed,
        )  # fmt: skip
        save(made)
        Messages(quiet).wrote(output, _count(made))


def _count(atoms: list[Atoms]) -> str:
    return ", ".join(f"{counted(len(a), 'SFT')} of {a.detector}" for a in atoms)


def _numbers(text: str, name: str, count: int) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if len(found) != count:
        raise ValueError(f"{name} {text}: expected {count} whole numbers of seconds, with a comma between")
    return found


def _injection(text: str) -> Injection:
    from skysieve.fstat.inputs.simulate import Injection

    parts = text.split(",")
    try:
        if len(parts) not in (3, 4):
            raise ValueError
        t0, tau, snr = int(parts[0]), int(parts[1]), float(parts[2])
    except ValueError:
        raise ValueError(
            f"--inject {text}: expected t0,tau,snr or t0,tau,snr,window, with t0 and tau in whole seconds"
        ) from None
    try:
        window = one_of("window", parts[3] if len(parts) == 4 else "rect", NAMED)
        return Injection(t0, tau, snr, cast("WindowName", window))
    except (TypeError, ValueError) as error:
        raise ValueError(f"--inject {text}: {error}") from error


@fstat.command()
def info(
    atoms: File,
    as_json: JsonOption = False,
    tatom: Tatom = None, detectors: Names = None,
) -> None:  # fmt: skip
    """Show what is in a file of atoms: detectors, times, gaps, the full grid.

    Example: skysieve fstat info atoms.npz --json
    """
    with report_errors():
        from skysieve.fstat.inputs.bins import bin_atoms
        from skysieve.fstat.inputs.grid import Grid

        found = read(atoms, tatom, detectors)
        bins = bin_atoms(found)
        facts: dict[str, Any] = {"detectors": [_facts(a) for a in found], "tatom": bins.tatom, "bins": bins.n}
        facts |= {"bins_with_data": int(bins.occupied.sum())}
        facts["full_grid"] = list(Grid.full(found).shape) if bins.n >= 2 else None
        if as_json:
            typer.echo(json_text(facts))
        else:
            _print_info(facts)


def _facts(a: Atoms) -> dict[str, Any]:
    """The lines that ``info`` prints about one detector."""
    start, stop = int(a.t[0]), int(a.t[-1]) + a.tatom
    duty = len(a) * a.tatom / (stop - start)
    return {"detector": a.detector, "sfts": len(a), "start": start, "stop": stop, "duty": duty}


def _print_info(facts: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("detector", "SFTs", "from (GPS)", "to (GPS)", "days", "duty"):
        table.add_column(name, justify="left" if name == "detector" else "right")
    for d in facts["detectors"]:
        days = (d["stop"] - d["start"]) / 86400
        table.add_row(
            d["detector"], f"{d['sfts']:,}", str(d["start"]), str(d["stop"]), f"{days:.2f}", f"{d['duty']:.1%}"
        )
    console = terminal(markup=False)
    console.print(table)
    console.print(
        f"SFTs of {facts['tatom']} s in {facts['bins']:,} bins, {facts['bins_with_data']:,} of them with data"
    )
    if facts["full_grid"]:
        rows, columns = facts["full_grid"]
        console.print(f"full grid: {counted(rows, 'start time')} x {counted(columns, 'duration')}")


@fstat.command()
def convert(
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="File of atoms: .npz, .h5, or LALPulsar's text; '-' is standard input.")
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="File to write: .npz, .h5, or .dat and .txt for text; '-' is standard output."
        ),
    ],
    format: AtomsFormat = None,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
    tatom: Tatom = None,
    detectors: Names = None,
) -> None:
    """Convert a file of atoms into another format; text rounds to 6 decimals.

    Example: skysieve fstat convert CFS_Fstatatoms.dat atoms.npz --detectors H1,L1
    """
    with report_errors():
        save = atoms_writer(target, format)
        check_outputs({"OUT": target}, [source])
        check_output(target, overwrite)
        atoms = read(source, tatom, detectors)
        save(atoms)
        Messages(quiet).wrote(target, _count(atoms))


fstat.command()(sft_options.simulate)
