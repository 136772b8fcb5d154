"""``skysieve smooth``: smooth HEALPix maps in FITS files."""

from __future__ import annotations

import math
import time
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skysieve.core.command import option, report_errors
from skysieve.core.files import save_figure

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from skysieve.sphere.kernels.base import Kernel

PIXEL_EPS = 1e-9
"""Where the window of a kernel ends that is multiplied by a pixel window."""
KERNEL, HOW, OUTPUT = "Kernel", "How", "Output"
UNITS = {"deg": math.pi / 180, "arcmin": math.pi / 10800, "arcsec": math.pi / 648000, "rad": 1.0}


class Method(StrEnum):
    """Mathematics."""

    auto = "auto"
    direct = "direct"
    ring = "ring"
    harmonic = "harmonic"


class Quadrature(StrEnum):
    """Weights of the sum over pixels."""

    band = "band"
    ring = "ring"
    none = "none"
    pixel = "pixel"
    healpy = "healpy"


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


def smooth(
    maps: Annotated[Path, typer.Argument(help="HEALPix map (FITS).", metavar="IN.fits", show_default=False)],
    target: Annotated[
        Path | None, typer.Argument(help="File to write.", metavar="[OUT.fits]", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, option("-o", "--out", help="File to write, instead of OUT.fits.", panel=OUTPUT, metavar="FILE")
    ] = None,
    fwhm: Annotated[
        str | None, option("--fwhm", help="Gaussian: full width at half maximum.", panel=KERNEL, metavar="ANGLE")
    ] = None,
    bl: Annotated[
        Path | None,
        option("--bl", help="Window b_l: FITS (BEAMWINDOW) or a text column.", panel=KERNEL, metavar="FILE"),
    ] = None,
    profile: Annotated[
        Path | None,
        option(
            "--profile", help="Text: angle (rad) and kernel; scaled to unit integral.", panel=KERNEL, metavar="FILE"
        ),
    ] = None,
    tophat: Annotated[
        str | None, option("--tophat", help="Mean over a disc of this radius.", panel=KERNEL, metavar="ANGLE")
    ] = None,
    fields: Annotated[
        str | None,
        option(
            "--fields",
            help="Columns by name or number, as I,Q,U or 0; by default all maps, not N_OBS, HITS, II_COV and the like.",
            panel=HOW,
            metavar="LIST",
        ),
    ] = None,
    hdu: Annotated[int, option("--hdu", help="Extension of the file (1).", panel=HOW)] = 1,
    device: Annotated[
        str, option("--device", help="auto, cpu, cuda, cuda:1, cuda:all (auto).", panel=HOW, metavar="DEVICE")
    ] = "auto",
    method: Annotated[Method, option("--method", help="Mathematics (auto).", panel=HOW)] = Method.auto,
    eps: Annotated[float, option("--eps", help="Accuracy (1e-6).", panel=HOW)] = 1e-6,
    iterations: Annotated[
        int | None,
        option("--iter", help="healpy's way, with so many iterations (needs ducc0).", panel=HOW, metavar="N"),
    ] = None,
    lmax: Annotated[
        int | None, option("--lmax", help="healpy's way, up to this degree.", panel=HOW, metavar="L")
    ] = None,
    quadrature: Annotated[
        Quadrature | None, option("--quadrature", help="Weights of the sum; band by default.", panel=HOW)
    ] = None,
    nside_out: Annotated[
        int | None, option("--nside-out", help="Resolution of the result (needs ducc0).", panel=HOW, metavar="N")
    ] = None,
    pixwin: Annotated[
        bool,
        option(
            "--pixwin",
            help="Also apply the pixel window; with --nside-out that of the new pixels over that of the old ones.",
            panel=HOW,
        ),
    ] = False,
    masked: Annotated[
        Masked,
        option("--masked", help="Bad pixels count as 0 (zero), or are left out of the mean (normalize).", panel=HOW),
    ] = Masked.zero,
    flux: Annotated[
        Flux, option("--flux", help="conserve keeps the sum over all pixels (none).", panel=HOW)
    ] = Flux.none,
    positive: Annotated[
        bool, option("--positive", help="No value of 0 or below, for the logarithm.", panel=HOW)
    ] = False,
    threads: Annotated[
        int | None, option("--threads", help="CPU threads; all by default.", panel=HOW, metavar="N")
    ] = None,
    plot: Annotated[
        Path | None, option("--plot", help="Before and after, as a picture.", panel=OUTPUT, metavar="FILE")
    ] = None,
    overwrite: Annotated[bool, option("--overwrite", help="Replace OUT.fits.", panel=OUTPUT)] = False,
) -> None:
    """Smooth a HEALPix map with a Gaussian, a beam window, a profile or a disc."""
    from dataclasses import replace

    from skysieve import __version__
    from skysieve.sphere.maps.io import polarised, read_maps, smooth_file, write_maps

    with report_errors("interrupted; nothing was written"):
        if (target is None) == (out is None):
            raise ValueError("expected one file to write: skysieve smooth IN.fits OUT.fits, or -o OUT.fits")
        out = out or target
        assert out is not None
        if out.exists() and not overwrite:
            raise FileExistsError(f"{out} exists: --overwrite replaces it")
        check_outputs(out, plot)
        kernel = read_kernel(fwhm, bl, profile, tophat)
        named = (("fwhm", fwhm), ("bl", bl), ("profile", profile), ("tophat", tophat))
        kernel_given = [f"{n} {v}" for n, v in named if v is not None]
        sky = read_maps(maps, None if fields is None else [f.strip() for f in fields.split(",")], hdu, False)
        if pixwin:
            kernel = with_pixels(kernel, sky.nside, nside_out, polarised(sky))
        start = time.perf_counter()
        found = smooth_file(
            sky, kernel=kernel, method=str(method), eps=eps, iter=iterations, lmax=lmax, masked=str(masked),
            flux=str(flux), threads=threads, nside_out=nside_out, device=device, positive=positive,
            quadrature=None if quadrature is None else str(quadrature),
        )  # fmt: skip
        seconds = time.perf_counter() - start
        steps = [f"kernel: {given}" for given in kernel_given] + [
            f"{name}: {value}"
            for name, value in (
                ("columns", ", ".join(found.names)), ("unchanged columns", ", ".join(found.unchanged)),
                ("pixel window", "applied" if pixwin else ""), ("iter", iterations), ("lmax", lmax),
                ("quadrature", quadrature), ("masked", masked), ("flux", flux),
                ("positive", "yes" if positive else ""), ("nside before", sky.nside if nside_out else ""),
            )
            if value not in (None, "", Masked.zero, Flux.none)
        ]  # fmt: skip
        made = f"smoothed by skysieve {__version__} smooth from {maps.name}"
        found = replace(found, history=(made, *steps))
        write_maps(out, found, overwrite=overwrite)
        if plot is not None:
            from skysieve.sphere.maps.plot import before_after

            save_figure(before_after(sky, found), plot)
    order = "NESTED" if sky.nest else "RING"
    kind = "I, Q, U" if polarised(sky) else ", ".join(sky.names)
    typer.echo(f"{out}: {kind}, nside {found.nside}, {order}; {kernel!r} in {seconds:.2f} s")
    if sky.unchanged:
        what = "not smoothed" if found.unchanged else "left out, as nside is another one"
        typer.echo(f"columns {', '.join(sky.unchanged)}: {what} (--fields smooths those that it names)")


def with_pixels(kernel: Kernel, nside: int, nside_out: int | None, polarised: bool) -> Kernel:
    """The kernel times the window of the pixels, or that of new pixels over that of the old ones."""
    from skysieve.sphere.grids.pixel_window import pixel_window
    from skysieve.sphere.kernels.base import Window

    if polarised:
        raise ValueError("--pixwin: the pixel window is that of I alone (--fields I); Q and U have another one")
    band = kernel.bandlimit(PIXEL_EPS)
    if not math.isfinite(band):
        raise ValueError(f"--pixwin: {kernel!r} has a window that does not end, expected one that does")
    top = int(band)
    if nside_out is None:
        return Window(kernel.window(top) * pixel_window(nside, top))
    top = min(top, 3 * nside)
    return Window(kernel.window(top) * pixel_window(nside_out, top) / pixel_window(nside, top))


def check_outputs(out: Path, plot: Path | None) -> None:
    """Refuse, before any work, what could not be written at its end."""
    for path in (out, plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise FileNotFoundError(f"{path}: there is no folder {path.parent}")
        if path is not None and path.is_dir():
            raise IsADirectoryError(f"{path}: is a folder, expected a file's name")
    if plot is not None:
        if find_spec("matplotlib") is None:
            raise ValueError("--plot needs matplotlib: pip install 'skysieve[plot]'")
        from matplotlib.figure import Figure

        kinds = sorted(Figure().canvas.get_supported_filetypes())
        if plot.suffix.lower().lstrip(".") not in kinds:
            raise ValueError(f"--plot {plot}: expected a picture's name, which ends in {', '.join(kinds)}")


def read_kernel(fwhm: str | None, bl: Path | None, profile: Path | None, tophat: str | None) -> Kernel:
    """The one kernel that the options describe."""
    from skysieve.sphere.kernels.base import Gaussian, Window
    from skysieve.sphere.kernels.shapes import Profile, TopHat

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
        table = read_table(bl)
        if table.shape[1] > 2:
            raise ValueError(f"{bl}: has {table.shape[1]} columns, expected b_l alone, or l and b_l")
        if table.shape[1] == 2 and table[:, 0].tolist() != list(range(len(table))):
            raise ValueError(f"{bl}: expected l = 0, 1, 2, ... in the first of two columns")
        return Window(table[:, -1])
    assert profile is not None
    table = read_table(profile)
    if table.shape[1] != 2:
        raise ValueError(f"{profile}: expected two columns, angle (rad) and value")
    return Profile(table[:, 0], table[:, 1], normalize=True)


def read_table(path: Path) -> NDArray[np.float64]:
    """Numbers of a text file; ``#`` begins a comment."""
    import numpy as np

    rows = [r for r in (line.partition("#")[0].split() for line in path.read_text().splitlines()) if r]
    if not rows or any(len(r) != len(rows[0]) for r in rows):
        raise ValueError(f"{path}: expected a table of numbers, as many in each line")
    try:
        return np.array([[float(v) for v in r] for r in rows])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
