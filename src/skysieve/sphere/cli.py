"""``skysieve smooth``: smooth HEALPix maps in FITS files."""

from __future__ import annotations

import math
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from skysieve.sphere.kernels import Kernel

USER_ERROR, INTERRUPTED = 2, 130
KERNEL, HOW, OUTPUT = "Kernel", "How", "Output"
UNITS = {"deg": math.pi / 180, "arcmin": math.pi / 10800, "arcsec": math.pi / 648000, "rad": 1.0}


class Method(StrEnum):
    """Mathematics."""

    auto = "auto"
    direct = "direct"
    ring = "ring"
    harmonic = "harmonic"


class Masked(StrEnum):
    """What bad pixels mean."""

    zero = "zero"
    normalize = "normalize"


class Flux(StrEnum):
    """Whether the sum over all pixels is kept."""

    none = "none"
    conserve = "conserve"


def angle(text: str) -> float:
    """Radians of ``"4.7arcmin"``, ``"1 deg"``, ``"30arcsec"``, ``"0.01rad"``.

    >>> round(angle("90 deg"), 6)
    1.570796
    """
    for unit, size in UNITS.items():
        number = text.strip().removesuffix(unit).strip()
        if number != text.strip():
            try:
                return float(number) * size
            except ValueError:
                break
    raise ValueError(f"{text!r}: expected an angle with its unit, such as 4.7arcmin, 1deg, 30arcsec or 0.01rad")


def _option(name: str, help: str, panel: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=help, rich_help_panel=panel, metavar=metavar, show_default=False)


def smooth(
    maps: Annotated[Path, typer.Argument(help="HEALPix map (FITS).", metavar="IN.fits", show_default=False)],
    out: Annotated[Path, typer.Option("-o", "--out", help="File to write.", metavar="OUT.fits", show_default=False)],
    fwhm: Annotated[str | None, _option("--fwhm", "Gaussian: full width at half maximum.", KERNEL, "ANGLE")] = None,
    bl: Annotated[
        Path | None, _option("--bl", "Window b_l: FITS (BEAMWINDOW) or a text column.", KERNEL, "FILE")
    ] = None,
    profile: Annotated[
        Path | None, _option("--profile", "Text: angle (rad) and kernel; scaled to unit integral.", KERNEL, "FILE")
    ] = None,
    tophat: Annotated[str | None, _option("--tophat", "Mean over a disc of this radius.", KERNEL, "ANGLE")] = None,
    fields: Annotated[
        str | None, _option("--fields", "Columns by name or number, as I,Q,U or 0; all by default.", HOW, "LIST")
    ] = None,
    method: Annotated[Method, typer.Option("--method", help="Mathematics.", rich_help_panel=HOW)] = Method.auto,
    eps: Annotated[float, typer.Option("--eps", help="Accuracy.", rich_help_panel=HOW)] = 1e-6,
    iterations: Annotated[
        int | None, _option("--iter", "healpy's way, with so many iterations (needs ducc0).", HOW, "N")
    ] = None,
    lmax: Annotated[int | None, _option("--lmax", "healpy's way, up to this degree.", HOW, "L")] = None,
    masked: Annotated[
        Masked, typer.Option("--masked", help="Bad pixels: 0, or not there.", rich_help_panel=HOW)
    ] = Masked.zero,
    flux: Annotated[Flux, typer.Option("--flux", help="Keep the sum over pixels.", rich_help_panel=HOW)] = Flux.none,
    threads: Annotated[int | None, _option("--threads", "CPU threads; all by default.", HOW, "N")] = None,
    plot: Annotated[Path | None, _option("--plot", "Before and after, as a picture.", OUTPUT, "FILE")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.fits.", rich_help_panel=OUTPUT)] = False,
) -> None:
    """Smooth a HEALPix map with a Gaussian, a beam window, a profile or a disc."""
    from skysieve.sphere.io import polarised, read_maps, smooth_file, write_maps

    try:
        if out.exists() and not overwrite:
            raise FileExistsError(f"{out} exists: --overwrite replaces it")
        kernel = read_kernel(fwhm, bl, profile, tophat)
        sky = read_maps(maps, None if fields is None else [f.strip() for f in fields.split(",")])
        start = time.perf_counter()
        found = smooth_file(
            sky, kernel=kernel, method=str(method), eps=eps, iter=iterations, lmax=lmax, masked=str(masked),
            flux=str(flux), threads=threads,
        )  # fmt: skip
        seconds = time.perf_counter() - start
        write_maps(out, found, overwrite=overwrite)
        if plot is not None:
            from skysieve.sphere.plot import before_after

            before_after(sky, found).savefig(plot)
    except (OSError, ValueError, TypeError, RuntimeError, ImportError) as error:
        typer.echo(f"skysieve: {error}", err=True)
        raise typer.Exit(USER_ERROR) from None
    except KeyboardInterrupt:
        typer.echo("skysieve: interrupted; nothing was written", err=True)
        raise typer.Exit(INTERRUPTED) from None
    order = "NESTED" if sky.nest else "RING"
    kind = "I, Q, U" if polarised(sky) else ", ".join(sky.names)
    typer.echo(f"{out}: {kind}, nside {sky.nside}, {order}; {kernel!r} in {seconds:.2f} s")


def read_kernel(fwhm: str | None, bl: Path | None, profile: Path | None, tophat: str | None) -> Kernel:
    """The one kernel that the options describe."""
    import numpy as np

    from skysieve.sphere.kernels import Gaussian, Window
    from skysieve.sphere.shapes import Profile, TopHat

    given = [
        n for n, v in (("--fwhm", fwhm), ("--bl", bl), ("--profile", profile), ("--tophat", tophat)) if v is not None
    ]
    if len(given) != 1:
        raise ValueError(f"expected one of --fwhm, --bl, --profile and --tophat, found {', '.join(given) or 'none'}")
    if fwhm is not None:
        return Gaussian(fwhm=angle(fwhm))
    if tophat is not None:
        return TopHat(angle(tophat))
    if bl is not None:
        if bl.suffix.lower() in (".fits", ".fit", ".gz"):
            return Window.from_fits(bl)
        table = np.loadtxt(bl, ndmin=2)
        return Window(table[:, -1] if table.shape[1] < 3 else table[:, 1])
    assert profile is not None
    table = np.loadtxt(profile, ndmin=2)
    if table.shape[1] < 2:
        raise ValueError(f"{profile}: expected two columns, angle (rad) and value")
    return Profile(table[:, 0], table[:, 1], normalize=True)
