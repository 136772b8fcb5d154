"""``skysieve smooth``: smooth HEALPix maps in FITS files."""

from __future__ import annotations

import inspect
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skysieve.core.checks import DTYPES
from skysieve.core.command import (
    COMPUTATION,
    OUTPUT,
    STDIO,
    DeviceOption,
    DryRunOption,
    MemoryOption,
    Messages,
    OverwriteOption,
    ProgressOption,
    QuietOption,
    ThreadsOption,
    VerboseOption,
    check_output,
    check_picture,
    option,
    read_stdin,
    report_errors,
    write_stdout,
)
from skysieve.core.files import save_figure
from skysieve.sphere.contract import METHOD_HELP
from skysieve.sphere.kernels.shapes import KERNELS
from skysieve.sphere.maps.smoothing import FLUX, MASKED, QUADRATURES

if TYPE_CHECKING:
    from collections.abc import Callable

    from skysieve.sphere.kernels.base import Kernel

PIXEL_EPS = 1e-9
"""Accuracy with which a kernel's window is cut before it is multiplied by a pixel window."""
KERNEL, MAPS = "Kernel (one of them)", "Maps"


def choice(name: str, choices: dict[str, str] | tuple[str, ...], help: str, panel: str) -> Any:
    """An option with some choices; for a dict the help lists what each of them means."""
    if isinstance(choices, dict):
        help += " " + "; ".join(f"{c}: {meaning}" for c, meaning in choices.items()) + "."

    def read(text: str) -> str:
        if text not in choices:
            raise typer.BadParameter(f"{text!r}: expected one of {', '.join(choices)}")
        return text

    return option(name, help=help, panel=panel, metavar="|".join(choices), parser=read)


def with_kernels(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes ``**kernels`` one option for each entry of `KERNELS`."""
    signature = inspect.signature(command, eval_str=True)
    fixed = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    kernels = [
        inspect.Parameter(
            name.replace("-", "_"),
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[str | None, option(f"--{name}", help=entry.help, panel=KERNEL, metavar=entry.metavar)],
        )
        for name, entry in KERNELS.items()
    ]
    fixed = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in fixed]
    parameters = [*fixed[:2], *kernels, *fixed[2:]]  # kernels stand first in the help
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


@with_kernels
def smooth(
    maps: Annotated[
        Path, typer.Argument(help="HEALPix maps (FITS); - is standard input.", metavar="IN.fits", show_default=False)
    ],
    target: Annotated[
        Path | None,
        typer.Argument(help="File to write; - is standard output.", metavar="[OUT.fits]", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        option("-o", "--output", help="File to write, instead of OUT.fits.", panel=OUTPUT, metavar="FILE"),
    ] = None,
    fields: Annotated[
        str | None,
        option(
            "--fields",
            help="Smooth these columns, given by name or number, such as I,Q,U or 0. The default is all maps, but not "
            "columns such as N_OBS, HITS and II_COV.",
            panel=MAPS,
            metavar="LIST",
        ),
    ] = None,
    hdu: Annotated[
        int, option("--hdu", help="Extension of the file that holds the maps. The default is 1.", panel=MAPS)
    ] = 1,
    masked: Annotated[str, choice("--masked", MASKED, "Bad pixels. The default is zero.", MAPS)] = "zero",
    flux: Annotated[str, choice("--flux", FLUX, "What is preserved. The default is none.", MAPS)] = "none",
    positive: Annotated[
        bool,
        option(
            "--positive",
            help="Leave no value of 0 or below, so that the logarithm is finite. Off by default.",
            panel=MAPS,
        ),
    ] = False,
    nside_out: Annotated[
        int | None,
        option(
            "--nside-out",
            help="Resolution of the result (needs ducc0). The default is that of the maps.",
            panel=MAPS,
            metavar="N",
        ),
    ] = None,
    pixwin: Annotated[
        bool,
        option(
            "--pixwin",
            help="Also apply the pixel window; with --nside-out the window of the new pixels divided by that of the "
            "old ones. Off by default.",
            panel=MAPS,
        ),
    ] = False,
    method: Annotated[
        str, choice("--method", METHOD_HELP, "How to compute. The default is auto.", COMPUTATION)
    ] = "auto",
    quadrature: Annotated[
        str | None,
        choice(
            "--quadrature",
            QUADRATURES,
            "Weights of the pixels. The default is band, but ring with --flux conserve, --positive, --nside-out and "
            "--masked normalize.",
            COMPUTATION,
        ),
    ] = None,
    eps: Annotated[
        float,
        option(
            "--eps",
            help="Error of cutting the kernel, relative to the rms of the result for white noise. The default is 1e-6.",
            panel=COMPUTATION,
        ),
    ] = 1e-6,
    dtype: Annotated[
        str | None,
        choice(
            "--dtype", DTYPES, "Type of the arithmetic and of the result. The default is that of the maps.", COMPUTATION
        ),
    ] = None,
    iterations: Annotated[
        int | None,
        option(
            "--iter",
            help="Use harmonic transforms with this number of healpy's iterations (needs ducc0). By default pixels "
            "are summed.",
            panel=COMPUTATION,
            metavar="N",
        ),
    ] = None,
    lmax: Annotated[
        int | None,
        option(
            "--lmax",
            help="Use harmonic transforms up to this degree (needs ducc0). By default pixels are summed.",
            panel=COMPUTATION,
            metavar="L",
        ),
    ] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    memory: MemoryOption = None,
    plot: Annotated[
        Path | None,
        option(
            "--plot",
            help="Draw the maps before and after smoothing, such as before-after.png. By default nothing is drawn.",
            panel=OUTPUT,
            metavar="FILE",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    progress: ProgressOption = None,
    **kernels: str | None,
) -> None:
    """Smooth HEALPix maps with a Gaussian beam, another beam, a disc or a wavelet.

    The output keeps the order, units and cards of the input, its other columns and its other HDUs.

    Example: skysieve smooth planck.fits smooth.fits --fields I,Q,U --fwhm 30arcmin --plot before-after.png
    """
    from dataclasses import replace

    from skysieve import __version__
    from skysieve.sphere.maps.io import fits_bytes, read_maps, write_maps
    from skysieve.sphere.maps.smoothing import smooth_maps

    with report_errors("interrupted; nothing was written"):
        messages = Messages(quiet, verbose, progress)
        if (target is None) == (output is None):
            raise ValueError("expected one file to write: skysieve smooth IN.fits OUT.fits, or -o OUT.fits")
        output = output or target
        assert output is not None
        check_output(output, overwrite)
        check_picture(plot, overwrite)
        given = {name: kernels[name.replace("-", "_")] for name in KERNELS}
        kernel = read_kernel(given)
        columns = None if fields is None else [f.strip() for f in fields.split(",")]
        began = time.process_time()
        sky = read_maps(read_stdin() if maps == STDIO else maps, columns, hdu, auxiliary=False)
        read = time.process_time() - began
        if pixwin:
            kernel = with_pixels(kernel, sky.nside, nside_out, sky.polarised)
        if dry_run:
            from skysieve.core.command import show_prediction

            from .rates import prediction

            other = masked != "zero" or flux != "none" or positive or nside_out is not None or quadrature == "healpy"
            simple = not other and (iterations, lmax) == (None, None) and method != "harmonic"
            facts = prediction(
                sky, kernel, simple, read, method=method, eps=eps, quadrature=quadrature, dtype=dtype, device=device,
                memory=memory, threads=threads,
            )  # fmt: skip
            show_prediction(facts, f"{maps}: {len(sky.maps)} map{'s' * (len(sky.maps) > 1)} of nside {sky.nside}")
            return
        start = time.perf_counter()
        found = smooth_maps(
            sky, kernel=kernel, method=method, eps=eps, iter=iterations, lmax=lmax, masked=masked, flux=flux,
            threads=threads, memory=memory, nside_out=nside_out, device=device, positive=positive, dtype=dtype,
            quadrature=quadrature, progress=messages.progress,
        )  # fmt: skip
        seconds = time.perf_counter() - start
        steps = [f"kernel: {name} {value}" for name, value in given.items() if value is not None] + [
            f"{name}: {value}"
            for name, value in (
                ("columns", ", ".join(found.names)), ("unchanged columns", ", ".join(found.unchanged)),
                ("pixel window", "applied" if pixwin else ""), ("iter", iterations), ("lmax", lmax),
                ("quadrature", quadrature), ("masked", masked if masked != "zero" else ""),
                ("flux", flux if flux != "none" else ""), ("positive", "yes" if positive else ""),
                ("nside before", sky.nside if nside_out else ""),
            )
            if value not in (None, "")
        ]  # fmt: skip
        name = "standard input" if maps == STDIO else maps.name
        made = f"smoothed by skysieve {__version__} smooth from {name}"
        found = replace(found, history=(made, *steps))
        if output == STDIO:
            write_stdout(fits_bytes(found))
        else:
            write_maps(output, found, overwrite=overwrite)
        order = "NESTED" if sky.nest else "RING"
        kind = "I, Q, U" if sky.polarised else ", ".join(sky.names)
        messages.wrote(output, f"{kind}, nside {found.nside}, {order}; {kernel!r} in {seconds:.2f} s")
        if sky.unchanged:
            what = "not smoothed" if found.unchanged else "left out, because nside changes"
            messages.say(f"columns {', '.join(sky.unchanged)}: {what} (--fields smooths the columns that it names)")
        if plot is not None:
            from skysieve.sphere.maps.plot import before_after

            save_figure(before_after(sky, found), plot)
            messages.wrote(plot, "the maps before and after")


def read_kernel(given: dict[str, str | None]) -> Kernel:
    """Read the kernel from the options of `KERNELS`, of which one must be given."""
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        names = [f"--{name}" for name in given]
        found = ", ".join(f"--{name}" for name in named) or "none"
        raise ValueError(f"expected one of {', '.join(names[:-1])} and {names[-1]}, found {found}")
    text = given[named[0]]
    assert text is not None
    return KERNELS[named[0]].read(text)


def with_pixels(kernel: Kernel, nside: int, nside_out: int | None, polarised: bool) -> Kernel:
    """The kernel times the pixel window, or times the window of new pixels divided by that of the old ones."""
    from skysieve.sphere.grids.pixel_window import pixel_window
    from skysieve.sphere.kernels.shapes import Window

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
