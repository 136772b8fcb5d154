"""``skysieve fstat``: transient F-statistic maps and searches of files of atoms."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skysieve.core.command import FAILED_SOME, Dtype, option, report_errors
from skysieve.core.files import save_figure

if TYPE_CHECKING:
    from skysieve.fstat.inputs.atoms import Atoms
    from skysieve.fstat.inputs.grid import Grid
    from skysieve.fstat.inputs.simulate import Injection
    from skysieve.fstat.result.map import TransientResult
    from skysieve.fstat.template_search.batch import AtomsBatch
    from skysieve.fstat.template_search.result import SearchResult

TEXTS = (".dat", ".txt")
TOGETHER = 64
"""Files of one set of times that are searched as one batch."""
GRID, SEARCH, OUTPUT = "Grid", "Statistic", "Output"


class Shape(StrEnum):
    """Windows of a signal."""

    rect = "rect"
    exp = "exp"
    none = "none"


class Style(StrEnum):
    """Texts of a map."""

    pyfstat = "pyfstat"
    lalpulsar = "lalpulsar"


class Compat(StrEnum):
    """Programs whose numbers can be had."""

    lalpulsar = "lalpulsar"


fstat = typer.Typer(
    help="Transient gravitational waves: maps of the F-statistic over start time and duration.", no_args_is_help=True
)


def read(path: Path, tatom: int, detectors: str | None) -> list[Atoms]:
    """Atoms of a file: ``.npz`` and ``.h5`` are ours, everything else is LALPulsar's text."""
    from skysieve.fstat.inputs import files as io

    if path.suffix.lower() in (".npz", *io.HDF5):
        return io.load_atoms(path)
    return io.read_atoms(path, tatom=tatom, detectors=detectors.split(",") if detectors else None)


File = Annotated[Path, typer.Argument(metavar="ATOMS", help="File of atoms: .npz, .h5, or LALPulsar's text.")]
Tatom = Annotated[int, option("--tatom", metavar="SECONDS", help="SFT length (1800); text files do not say it.")]
Names = Annotated[str | None, option("--detectors", metavar="H1,L1", help="Detectors in a text file, in its order.")]
T0 = Annotated[int | None, option("--t0", metavar="GPS", help="First start time (start of the data).", panel=GRID)]
T0Band = Annotated[
    int | None, option("--t0-band", metavar="SECONDS", help="Range of start times (all that fit).", panel=GRID)
]
Dt0 = Annotated[int | None, option("--dt0", metavar="SECONDS", help="Step of start times (one SFT).", panel=GRID)]
Tau = Annotated[int | None, option("--tau", metavar="SECONDS", help="Shortest duration (two SFTs).", panel=GRID)]
TauBand = Annotated[
    int | None, option("--tau-band", metavar="SECONDS", help="Range of durations (all that fit).", panel=GRID)
]
Dtau = Annotated[int | None, option("--dtau", metavar="SECONDS", help="Step of durations (one SFT).", panel=GRID)]
LogTau = Annotated[
    int | None, option("--log-tau", metavar="N", help="N durations in logarithmic steps instead.", panel=GRID)
]
Lenient = Annotated[
    bool, option("--not-strict", help="Leave out cells of fewer than two SFTs instead of refusing.", panel=GRID)
]
Efold = Annotated[float, option("--efold", help="Where exponential windows end, in tau (3).", panel=SEARCH)]
Where = Annotated[
    str, option("--device", help="auto, cpu, cuda, cuda:1, cuda:all (auto).", panel=SEARCH, metavar="DEVICE")
]
Quiet = Annotated[bool, option("-q", "--quiet", help="Print errors only.", panel=OUTPUT)]


def make_grid(
    atoms: list[Atoms], t0: int | None, t0_band: int | None, dt0: int | None, tau: int | None, tau_band: int | None,
    dtau: int | None, log_tau: int | None,
) -> Grid:  # fmt: skip
    """The grid that the options mean; what is not given follows from the data."""
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
    if log_tau < 1:
        raise ValueError(f"--log-tau {log_tau}: expected at least 1")
    taus = np.geomspace(shortest, shortest + grid.tau_band, log_tau) if log_tau > 1 else np.array([shortest])
    return Grid.from_lists(grid.t0s, np.unique((taus / width).round().astype(np.int64)) * width)


@fstat.command("map")
def map_(
    atoms: File,
    window: Annotated[Shape, option("-w", "--window", help="rect, exp or none (rect).", panel=SEARCH)] = Shape.rect,
    t0: T0 = None, t0_band: T0Band = None, dt0: Dt0 = None,
    tau: Tau = None, tau_band: TauBand = None, dtau: Dtau = None, log_tau: LogTau = None, lenient: Lenient = False,
    efold: Efold = 3,
    dtype: Annotated[Dtype, option("--dtype", help="Arithmetic (float64).", panel=SEARCH)] = Dtype.float64,
    compat: Annotated[
        Compat | None, option("--compat", help="lalpulsar: its very numbers.", panel=SEARCH, metavar="NAME")
    ] = None,
    device: Where = "auto",
    output: Annotated[
        Path | None, option("-o", "--output", help="Map: .npz, or .dat or .txt for text.", panel=OUTPUT, metavar="OUT")
    ] = None,
    style: Annotated[Style, option("--style", help="Text of pyfstat or lalpulsar.", panel=OUTPUT)] = Style.pyfstat,
    plot: Annotated[Path | None, option("--plot", help="Picture of the map.", panel=OUTPUT, metavar="PNG")] = None,
    quiet: Quiet = False, tatom: Tatom = 1800, detectors: Names = None,
) -> None:  # fmt: skip
    """2F over start time and duration of one template.

    Examples:

    - skysieve fstat map atoms.npz --window exp --plot map.png
    - skysieve fstat map CFS_Fstatatoms.dat --detectors H1,L1 --t0 1000000000 --t0-band 864000 --dt0 3600 -o map.npz
    """
    with report_errors():
        from skysieve.fstat.api import transient_map

        _check_outputs(output, (".npz", ".dat", ".txt"))
        found = read(atoms, tatom, detectors)
        grid = None
        if window is not Shape.none:
            grid = make_grid(found, t0, t0_band, dt0, tau, tau_band, dtau, log_tau)
        keep = output is not None or plot is not None
        result = transient_map(
            found, grid, window=window.value, efold=efold, dtype=dtype.value, compat=compat and compat.value,
            device=device, keep_map=keep, strict=not lenient, progress=_bar(quiet),
        )  # fmt: skip
        if output is not None:
            result.save(output) if output.suffix.lower() == ".npz" else result.write_text(output, style.value)
        if plot is not None:
            save_figure(result.plot(), plot, dpi=150)
        if not quiet:
            _print_map(result)


def _print_map(result: TransientResult) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    rows, columns = result.grid.shape
    console.print(f"{result.window} window, {rows:,} start times x {columns:,} durations on {result.device}")
    if result.index is None:
        console.print("no cell could be computed: each window holds fewer than two SFTs")
        return
    console.print(f"max 2F {result.max2F:.4f} at t0 {result.t0_ml}, tau {result.tau_ml} s ({_days(result.tau_ml)})")
    console.print(f"ln B (signal against noise) {result.lnBtSG:.4f}")
    for name in ("t0", "tau"):
        low, high = result.credible_interval(name)
        console.print(f"{name}: most probable {getattr(result, f'{name}_mp'):.0f}, 90% of it in {low} to {high}")


def _days(seconds: int | None) -> str:
    return "" if seconds is None else f"{seconds / 86400:.3g} d"


@fstat.command()
def search(
    files: Annotated[list[Path], typer.Argument(metavar="ATOMS...", help="Files of atoms, one a template.")],
    window: Annotated[
        list[Shape] | None, option("-w", "--window", help="Windows (rect and exp); may be repeated.", panel=SEARCH)
    ] = None,
    t0: T0 = None, t0_band: T0Band = None, dt0: Dt0 = None,
    tau: Tau = None, tau_band: TauBand = None, dtau: Dtau = None, log_tau: LogTau = None, lenient: Lenient = False,
    efold: Efold = 3,
    fstar0: Annotated[
        float | None, option("--bsgl", metavar="FSTAR0", help="Rank by the line-robust statistic.", panel=SEARCH)
    ] = None,
    olgx: Annotated[
        str | None, option("--olgx", metavar="0.5,0.5", help="Its odds of a line in each detector.", panel=SEARCH)
    ] = None,
    threshold: Annotated[float | None, option("--threshold", help="Smallest statistic to list.", panel=SEARCH)] = None,
    topk: Annotated[int, option("--topk", help="Templates to list a window (1000).", panel=SEARCH)] = 1000,
    dtype: Annotated[Dtype, option("--dtype", help="Arithmetic (float32).", panel=SEARCH)] = Dtype.float32,
    device: Where = "auto",
    checkpoint: Annotated[
        Path | None, option("--checkpoint", help="File from which to go on after a stop.", panel=OUTPUT, metavar="NPZ")
    ] = None,
    output: Annotated[
        Path | None, option("-o", "--output", help="Table: .parquet .fits .csv .ecsv", panel=OUTPUT, metavar="OUT")
    ] = None,
    plot: Annotated[
        Path | None, option("--plot", help="Picture of the loudness of all templates.", panel=OUTPUT, metavar="PNG")
    ] = None,
    quiet: Quiet = False, tatom: Tatom = 1800, detectors: Names = None,
) -> None:  # fmt: skip
    """Rank many templates, one file of atoms each, by their loudest transient.

    A file that cannot be read is told and left out. The grid is that of the first file.

    Example: skysieve fstat search atoms/*.dat --detectors H1,L1 -w exp --dt0 7200 --log-tau 40 -o loudest.fits
    """
    code = 0
    with report_errors():
        from skysieve.fstat.template_search.bsgl import BSGL
        from skysieve.fstat.template_search.result import check_path
        from skysieve.fstat.template_search.search import search as run

        if output is not None:
            check_path(output)
        prior = None
        if fstar0 is not None:
            prior = BSGL(fstar0, [float(v) for v in olgx.split(",")] if olgx else None)
        elif olgx:
            raise ValueError("--olgx needs --bsgl")
        shapes = [w.value for w in window or (Shape.rect, Shape.exp)]
        first = _first(files, tatom, detectors)
        grid = None
        if set(shapes) != {"none"}:
            grid = make_grid(first, t0, t0_band, dt0, tau, tau_band, dtau, log_tau)
        result = run(
            lambda start: _batches(files, start, tatom, detectors), grid, windows=shapes, efold=efold, topk=topk,
            threshold=threshold, bsgl=prior, dtype=dtype.value, device=device, strict=not lenient,
            band_width=max(1, len(files) // 200), checkpoint=checkpoint, total=len(files), progress=_bar(quiet),
        )  # fmt: skip
        for number, text in result.faults.items():
            name = str(files[number])
            typer.echo(f"skysieve: {text if text.startswith(name) else f'{name}: {text}'}", err=True)
        code = FAILED_SOME if result.n_bad else 0
        if output is not None:
            result.save(output)
        if plot is not None:
            save_figure(result.plot(), plot, dpi=150)
        if not quiet:
            _print_search(result)
    raise typer.Exit(code)


def _first(files: list[Path], tatom: int, detectors: str | None) -> list[Atoms]:
    """The first file that can be read."""
    problem: Exception = ValueError("no files")
    for path in files:
        try:
            return read(path, tatom, detectors)
        except (ValueError, OSError) as error:
            problem = error
    raise problem


def _batches(
    files: list[Path], start: int, tatom: int, detectors: str | None
) -> Iterator[list[AtomsBatch] | Exception]:
    """Files from number `start` on: neighbours of the same times as a batch, the error of one that cannot be read."""
    from skysieve.fstat.template_search.batch import AtomsBatch, alike

    def batch() -> list[AtomsBatch]:
        return [AtomsBatch.stack(list(one), {"file": names}) for one in zip(*waiting, strict=True)]

    waiting: list[list[Atoms]] = []
    names: list[str] = []
    for path in files[start:]:
        found: list[Atoms] | Exception
        try:
            found = read(path, tatom, detectors)
        except (ValueError, OSError) as error:
            found = error
        if waiting and (isinstance(found, Exception) or len(waiting) == TOGETHER or not alike(waiting[0], found)):
            yield batch()
            waiting, names = [], []
        if isinstance(found, Exception):
            yield found
        else:
            waiting.append(found)
            names.append(str(path))
    if waiting:
        yield batch()


def _print_search(result: SearchResult) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    bad = f", {result.n_bad:,} of them left out" if result.n_bad else ""
    console.print(f"{result.n_templates:,} templates{bad}; ranked by {result.statistic}")
    for window in result.windows:
        columns = result.columns(window)
        names = ["file", "max2F", "t0_ml", "tau_ml", "lnBtSG", *(["log10BSGL"] if "log10BSGL" in columns else [])]
        table = Table(box=None, pad_edge=False, header_style="bold", title=f"{window} window", title_justify="left")
        for name in names:
            table.add_column(name, justify="left" if name == "file" else "right")
        for i in range(min(10, len(columns["template"]))):
            values = [columns[name][i] for name in names]
            table.add_row(*(f"{v:.4f}" if isinstance(v, float) else str(v) for v in values))
        console.print(table)


@fstat.command()
def synth(
    output: Annotated[Path, typer.Argument(metavar="OUT", help=".npz, .h5, or .dat and .txt for text.")],
    days: Annotated[float, option("--days", help="Length of the data (10).")] = 10,
    start: Annotated[int, option("--start", metavar="GPS", help="First SFT (1000000000).")] = 1_000_000_000,
    detectors: Annotated[str, option("--detectors", metavar="H1,L1", help="H1 L1 V1 G1 K1 I1 (H1,L1).")] = "H1,L1",
    tatom: Annotated[int, option("--tatom", metavar="SECONDS", help="SFT length (1800).")] = 1800,
    ra: Annotated[float, option("--ra", metavar="RADIANS", help="Right ascension (0.5).")] = 0.5,
    dec: Annotated[float, option("--dec", metavar="RADIANS", help="Declination (1).")] = 1.0,
    gap: Annotated[
        list[str] | None, option("--gap", metavar="FROM,TO", help="GPS seconds without data; may be repeated.")
    ] = None,
    duty: Annotated[float, option("--duty", help="Share of the SFTs that is kept (1).")] = 1.0,
    inject: Annotated[
        list[str] | None,
        option("--inject", metavar="T0,TAU,SNR[,WINDOW]", help="A signal, rect or exp; may be repeated."),
    ] = None,
    seed: Annotated[int, option("--seed", help="The same seed gives the same atoms (0).")] = 0,
) -> None:
    """Make atoms of a matched template in Gaussian noise, with signals.

    Example: skysieve fstat synth a.npz --days 30 --inject 1000432000,259200,15,exp --gap 1001000000,1001100000
    """
    with report_errors():
        from skysieve.fstat.inputs.simulate import synth_atoms

        holes = [_numbers(text, "--gap", 2) for text in gap or ()]
        made = synth_atoms(
            start, round(days * 86400), detectors=detectors.split(","), tatom=tatom, ra=ra, dec=dec,
            inject=[_injection(text) for text in inject or ()], gaps=[(a, b) for a, b in holes], duty=duty, seed=seed,
        )  # fmt: skip
        write(output, made)


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
            raise ValueError(f"{len(parts)} values")
        t0, tau, snr = int(parts[0]), int(parts[1]), float(parts[2])
    except ValueError as error:
        raise ValueError(f"--inject {text}: expected t0,tau,snr or t0,tau,snr,window ({error})") from error
    return Injection(t0, tau, snr, parts[3] if len(parts) == 4 else "rect")


def write(path: Path, atoms: list[Atoms]) -> None:
    """Atoms to a file, by its ending."""
    from skysieve.fstat.inputs import files as io

    if path.suffix.lower() in TEXTS:
        io.write_atoms(path, atoms)
    else:
        io.save_atoms(path, atoms)


def _check_outputs(path: Path | None, endings: tuple[str, ...]) -> None:
    """Refuse a name that cannot be written to, before the work."""
    if path is None:
        return
    if path.suffix.lower() not in endings:
        raise ValueError(f"--output {path}: expected a name that ends in one of {', '.join(endings)}")
    if not path.parent.is_dir():
        raise ValueError(f"--output {path}: there is no folder {path.parent}")


def _bar(quiet: bool) -> bool:
    """Whether to draw a bar: not into a file, and not when quiet."""
    return not quiet and sys.stdout.isatty()


@fstat.command()
def info(atoms: File, tatom: Tatom = 1800, detectors: Names = None) -> None:
    """What is in a file of atoms: detectors, times, gaps, the full grid."""
    with report_errors():
        from rich.console import Console
        from rich.table import Table

        from skysieve.fstat.inputs.bins import bin_atoms
        from skysieve.fstat.inputs.grid import Grid

        found = read(atoms, tatom, detectors)
        bins = bin_atoms(found)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("detector", "SFTs", "from (GPS)", "to (GPS)", "days", "duty"):
            table.add_column(name, justify="left" if name == "detector" else "right")
        for a in found:
            span = int(a.t[-1]) + a.tatom - int(a.t[0])
            duty = len(a) * a.tatom / span
            table.add_row(a.detector, f"{len(a):,}", str(a.t[0]), str(a.t[-1] + a.tatom), f"{span / 86400:.2f}",
                          f"{duty:.1%}")  # fmt: skip
        console = Console(highlight=False)
        console.print(table)
        console.print(f"SFTs of {bins.tatom} s in {bins.n:,} bins, {bins.occupied.sum():,} of them with data")
        if bins.n >= 2:
            grid = Grid.full(found)
            console.print(f"full grid: {grid.shape[0]:,} start times x {grid.shape[1]:,} durations")


@fstat.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="File of atoms: .npz, .h5, or LALPulsar's text.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help=".npz, .h5, or .dat and .txt for text.")],
    tatom: Tatom = 1800,
    detectors: Names = None,
) -> None:
    """Turn a file of atoms into another format; text rounds to 6 decimals."""
    with report_errors():
        write(target, read(source, tatom, detectors))
