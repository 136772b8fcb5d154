"""``skysieve fstat``: transient F-statistic maps and searches of files of atoms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from skysieve.fstat.atoms import Atoms

USER_ERROR, INTERRUPTED = 2, 130

fstat = typer.Typer(
    help="Transient gravitational waves: maps of the F-statistic over start time and duration.", no_args_is_help=True
)


@contextmanager
def told() -> Iterator[None]:
    """Mistakes of the user's and limits of the machine as one line and exit status 2."""
    try:
        yield
    except (ValueError, TypeError, OSError, MemoryError, RuntimeError, ModuleNotFoundError) as error:
        typer.echo(f"skysieve: {error}", err=True)
        raise typer.Exit(USER_ERROR) from None
    except KeyboardInterrupt:
        typer.echo("skysieve: interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None


def read(path: Path, tatom: int, detectors: str | None) -> list[Atoms]:
    """Atoms of a file: ``.npz`` and ``.h5`` are ours, everything else is LALPulsar's text."""
    from skysieve.fstat import io

    if path.suffix.lower() in (".npz", *io.HDF5):
        return io.load_atoms(path)
    return io.read_atoms(path, tatom=tatom, detectors=detectors.split(",") if detectors else None)


File = Annotated[Path, typer.Argument(metavar="ATOMS", help="File of atoms: .npz, .h5, or LALPulsar's text.")]
Tatom = Annotated[int, typer.Option("--tatom", metavar="SECONDS", help="SFT length; text files do not say it.")]
Names = Annotated[
    str | None, typer.Option("--detectors", metavar="H1,L1", help="Detectors in a text file, in its order.")
]


@fstat.command()
def info(atoms: File, tatom: Tatom = 1800, detectors: Names = None) -> None:
    """What is in a file of atoms: detectors, times, gaps, the full grid."""
    with told():
        from rich.console import Console
        from rich.table import Table

        from skysieve.fstat.atoms import bin_atoms
        from skysieve.fstat.grid import Grid

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
    with told():
        from skysieve.fstat import io

        write: Any = io.write_atoms if target.suffix.lower() in (".dat", ".txt") else io.save_atoms
        write(target, read(source, tatom, detectors))
