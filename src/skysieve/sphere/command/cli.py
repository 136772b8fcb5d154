"""``skysieve smooth``: smooth HEALPix maps in FITS files."""

from __future__ import annotations

import inspect
import math
import re
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skysieve.core.checks import DTYPES
from skysieve.core.command import (
    COMPUTATION,
    OUTPUT,
    STDIO,
    ClusterOption,
    DeviceOption,
    DryRunOption,
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
    flat_options,
    needs,
    option,
    read_stdin,
    report_errors,
    typed_as_folder,
    write_stdout,
)
from skysieve.core.files import save_figure
from skysieve.sphere.contract import METHOD_HELP
from skysieve.sphere.kernels.shapes import KERNELS
from skysieve.sphere.maps.smoothing import FLUX, MASKED, QUADRATURES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from skysieve.sphere.kernels.base import Kernel
    from skysieve.sphere.maps.io import SkyMaps

PIXEL_EPS = 1e-9
"""Accuracy with which a kernel's window is cut before it is multiplied by a pixel window."""
NAMES = {"nside": "--nside-out"}
"""Options of arguments that have another name."""
KERNEL, MAPS = "Kernel (one of them)", "Maps"


def explained(help: str, choices: Mapping[str, str]) -> str:
    """A help text that explains each choice."""
    return f"{help} {'; '.join(f'{name}: {meaning}' for name, meaning in choices.items())}."


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
    parameters = [*fixed[:1], *kernels, *fixed[1:]]  # kernels come first in the help
    # pyrefly: ignore[missing-attribute]  # `inspect` reads it
    command.__signature__ = signature.replace(parameters=parameters)
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


@with_kernels
def smooth(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="HEALPix maps (FITS), or - for standard input; then, without -o, the file to write, or - for standard "
            "output.",
            metavar="IN.fits... [OUT.fits]",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        option(
            "-o",
            "--output",
            help="File to write, instead of OUT.fits; or a folder, in which the smoothed maps keep the names of their "
            "files. It is a folder if there are several files of maps, or if it exists or ends in a slash.",
            panel=OUTPUT,
            metavar="FILE-or-DIR",
        ),
    ] = None,
    cluster: ClusterOption = None,
    resume: ResumeOption = False,
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
    masked: Annotated[
        str,
        choice(
            "--masked",
            values=MASKED,
            help=explained("How bad pixels are treated. The default is zero.", MASKED),
            panel=MAPS,
        ),
    ] = "zero",
    flux: Annotated[
        str,
        choice(
            "--flux",
            values=FLUX,
            help=explained("What the smoothing preserves. The default is none.", FLUX),
            panel=MAPS,
        ),
    ] = "none",
    positive: Annotated[
        bool,
        option(
            "--positive",
            help="Make every value of the result positive, so that its logarithm is finite. Off by default.",
            panel=MAPS,
        ),
    ] = False,
    nside_out: Annotated[
        int | None,
        option(
            "--nside-out",
            help="Nside of the result (needs ducc0). The default is the nside of the maps.",
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
        str,
        choice(
            "--method",
            values=METHOD_HELP,
            help=explained("Method of the computation. The default is auto.", METHOD_HELP),
            panel=COMPUTATION,
        ),
    ] = "auto",
    quadrature: Annotated[
        str | None,
        choice(
            "--quadrature",
            values=QUADRATURES,
            help=explained(
                "Weights of the pixels. The default is band, but ring with --flux conserve, --positive, --nside-out "
                "and --masked normalize.",
                QUADRATURES,
            ),
            panel=COMPUTATION,
        ),
    ] = None,
    eps: Annotated[
        float,
        option(
            "--eps",
            help="Error from truncating the kernel, relative to the rms of the result for white noise. The default is "
            "1e-6.",
            panel=COMPUTATION,
        ),
    ] = 1e-6,
    dtype: Annotated[
        str | None,
        choice(
            "--dtype",
            values=DTYPES,
            help="Floating-point type of the computation and of the result. The default is the type of the maps.",
            panel=COMPUTATION,
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

    Examples:

    - skysieve smooth planck.fits smooth.fits --fields I,Q,U --fwhm 30arcmin --plot before-after.png
    - skysieve smooth simulations/*.fits -o smoothed --fwhm 5arcmin --cluster local:4
    """
    given = {name: value for name, value in locals().items() if name != "kernels"} | kernels
    code = 0
    with report_errors():  # a name may be too long for the file system
        folder = output is not None and output != STDIO and (output.is_dir() or typed_as_folder(output))
    divided = cluster is not None or (output is not None and (len(files) > 1 or (folder and not dry_run)))
    interrupted = "interrupted; nothing was written" if not divided else "interrupted; --resume continues"
    shape = next((f"--{name}" for name, text in kernels_of(kernels).items() if text is not None), None)
    names = NAMES if shape is None else NAMES | {"kernel": shape}
    with report_errors(interrupted, names):
        messages = Messages(quiet, verbose, progress)
        if output is None and len(files) != 2 and not divided and not (dry_run and len(files) == 1):
            names_given = f"; found {', '.join(map(str, files))}" if len(files) > 2 else ""
            raise ValueError(
                "expected one file to write: skysieve smooth IN.fits OUT.fits, or -o OUT.fits; for several files of "
                f"maps -o FOLDER{names_given}"
            )
        harmonics = (iterations, lmax) != (None, None) or "harmonic" in method or quadrature == "healpy"
        needs("a sum over pixels, without --iter, --lmax, --method harmonic and --quadrature healpy", not harmonics,
              "--eps")  # fmt: skip
        options = flat_options(given)
        read_kernel(kernels_of(options))
        if divided:
            from skysieve.cluster.command import launch
            from skysieve.cluster.folder import continues

            if plot is not None:
                raise ValueError("--plot needs a single file of maps and a single file to write, without --cluster")
            if dry_run:
                raise ValueError("--dry-run needs a single file of maps, without --cluster")
            if output is None or output == STDIO:
                raise ValueError("-o: expected a folder for the smoothed maps, with --cluster or several files of maps")
            if output.suffix and not folder:
                raise ValueError(f"-o {output}: expected one file to write for one file of maps, for several a folder")
            for file in files if output.is_dir() and not continues(output, resume) else ():
                check_output(output / file.name, overwrite)
            code = launch("smooth", cluster or "serial", given, messages, names)
        else:
            if resume:
                raise ValueError("--resume needs --cluster or several files of maps: its parts are whole files")
            target = output or files[-1]
            if output is None and len(files) == 2 and typed_as_folder(target):
                raise ValueError(f"{target}/: expected the name of a file to write; -o {target}/ writes into a folder")
            if not dry_run:
                read = [Path(options[name]) for name in ("bl", "profile") if options.get(name) is not None]
                check_outputs({"--output": target, "--plot": plot}, read)
                check_output(target, overwrite)
                check_picture(plot, overwrite)
            smooth_one(files[0], target, options, messages, overwrite, plot)
    raise typer.Exit(code)


def smooth_one(
    source: Path,
    output: Path,
    options: Mapping[str, Any],
    messages: Messages,
    overwrite: bool,
    plot: Path | None = None,
    alone: AbstractContextManager[Any] | None = None,
) -> SkyMaps:
    """Smooth the maps of a file by the options, and write them; hold the lock `alone` while they are smoothed."""
    from dataclasses import replace

    from skysieve.core.device import begin

    begin(options["device"], "skysieve.sphere.cuda.engine", before=["astropy.io.fits"])
    from skysieve.sphere.maps.io import fits_bytes, read_maps, write_maps
    from skysieve.sphere.maps.smoothing import smooth_maps

    kernel = read_kernel(kernels_of(options))
    columns = None if options["fields"] is None else [f.strip() for f in options["fields"].split(",")]
    began = time.process_time()
    sky = read_maps(read_stdin() if source == STDIO else source, columns, options["hdu"], auxiliary=False)
    read = time.process_time() - began
    if options["pixwin"]:
        kernel = with_pixels(kernel, sky.nside, options["nside_out"], sky.polarised, _kernel_option(options))
    if options.get("dry_run"):
        _predict(source, sky, kernel, options, read)
        return sky
    start = time.perf_counter()
    same = ("method", "eps", "lmax", "masked", "flux", "threads", "memory", "nside_out", "device", "positive", "dtype",
            "quadrature")  # fmt: skip

    def worded(text: str) -> str:
        return _as_typed(text, kernel, source, options)

    with alone or nullcontext(), messages.notes(worded):
        try:
            found = smooth_maps(
                sky, kernel=kernel, iter=options["iterations"], progress=messages.progress,
                **{name: options[name] for name in same},
            )  # fmt: skip
        except (ValueError, TypeError) as error:
            raise ValueError(worded(str(error))) from error
    seconds = time.perf_counter() - start
    found = replace(found, history=_history(source, sky, found, options))
    if output == STDIO:
        write_stdout(fits_bytes(found))
    else:
        write_maps(output, found, overwrite=overwrite)
    order = "NESTED" if sky.nest else "RING"
    kind = "I, Q, U" if sky.polarised else ", ".join(sky.names)
    messages.wrote(output, f"{kind}, nside {found.nside}, {order}; {_kernel_option(options)} in {seconds:.2f} s")
    if sky.unchanged:
        what = "not smoothed" if found.unchanged else "left out, because nside changes"
        messages.say(f"columns {', '.join(sky.unchanged)}: {what} (--fields smooths the columns that it names)")
    if plot is not None:
        from skysieve.sphere.maps.plot import before_after

        save_figure(before_after(sky, found), plot)
        messages.wrote(plot, "the maps before and after")
    return found


def _kernel_option(options: Mapping[str, Any]) -> str:
    """The kernel as the user typed it, such as ``--fwhm 3deg``."""
    return next(f"--{name} {value}" for name, value in kernels_of(options).items() if value is not None)


def _as_typed(text: str, kernel: Kernel, source: Path, options: Mapping[str, Any]) -> str:
    """A message of `smooth_maps` in the words of the command, with the kernel and the file as the user typed them."""
    for name in (f"kernel={kernel!r}", f"{kernel!r}"):
        text = text.replace(name, _kernel_option(options))
    text = text.replace("map_in", "standard input" if source == STDIO else f"{source}")
    text = text.replace("quadrature='healpy' (--quadrature healpy)", "--quadrature healpy")
    text = text.replace("(or pol=False)", "(--fields I)").replace(", mmax, weights", "")
    text = text.replace(", without these arguments", ", without these options")
    return re.sub(r"(?<![\w-])(iter|lmax)(?=[,:]| or )", r"--\1", text)


def _predict(source: Path, sky: SkyMaps, kernel: Kernel, options: Mapping[str, Any], read: float) -> None:
    """Print the predicted cost of smoothing ``sky``, which took ``read`` seconds of processor time to read."""
    from skysieve.core.command import show_prediction

    from .rates import prediction

    other = options["masked"] != "zero" or options["flux"] != "none" or options["positive"]
    other = other or options["quadrature"] == "healpy"
    other = other or (options["nside_out"], options["iterations"], options["lmax"]) != (None, None, None)
    how = ("method", "eps", "quadrature", "dtype", "device", "memory", "threads")
    simple = not other and options["method"] != "harmonic"
    facts = prediction(sky, kernel, simple, read, **{name: options[name] for name in how})
    show_prediction(facts, f"{source}: {len(sky.maps)} map{'s' * (len(sky.maps) > 1)} of nside {sky.nside}")


def _history(source: Path, sky: SkyMaps, found: SkyMaps, options: Mapping[str, Any]) -> tuple[str, ...]:
    """HISTORY cards of the smoothed maps: version, kernel, columns, and options that differ from their defaults."""
    from skysieve import __version__

    name = "standard input" if source == STDIO else source.name
    facts = (
        ("columns", ", ".join(found.names)), ("unchanged columns", ", ".join(found.unchanged)),
        ("pixel window", "applied" if options["pixwin"] else ""), ("iter", options["iterations"]),
        ("lmax", options["lmax"]), ("quadrature", options["quadrature"]),
        ("masked", options["masked"] if options["masked"] != "zero" else ""),
        ("flux", options["flux"] if options["flux"] != "none" else ""),
        ("positive", "yes" if options["positive"] else ""),
        ("nside before", sky.nside if options["nside_out"] else ""),
    )  # fmt: skip
    return (
        f"smoothed by skysieve {__version__} smooth from {name}",
        *(f"kernel: {option} {value}" for option, value in kernels_of(options).items() if value is not None),
        *(f"{fact}: {value}" for fact, value in facts if value not in (None, "")),
    )


def kernels_of(options: Mapping[str, Any]) -> dict[str, str | None]:
    """The options of `KERNELS`, by their names on the command line."""
    return {name: options[name.replace("-", "_")] for name in KERNELS}


def read_kernel(given: dict[str, str | None]) -> Kernel:
    """Read the kernel from the options of `KERNELS`, of which one must be given."""
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        names = [f"--{name}" for name in given]
        found = ", ".join(f"--{name}" for name in named) or "none"
        raise ValueError(f"expected one of {', '.join(names[:-1])} and {names[-1]}, found {found}")
    text = given[named[0]]
    assert text is not None
    try:
        return KERNELS[named[0]].read(text)
    except UnicodeDecodeError:
        raise ValueError(f"--{named[0]} {text}: expected a text file") from None
    except ValueError as error:  # "radius='2deg': ..." names the argument of the kernel
        value = f"{re.escape(repr(text))}|{re.escape(text)}"
        raise ValueError(re.sub(rf"^\w+=(?=({value}):)", f"--{named[0]} ", str(error))) from None


def with_pixels(kernel: Kernel, nside: int, nside_out: int | None, polarised: bool, typed: str) -> Kernel:
    """The kernel times the pixel window, or times the pixel window at the new nside divided by that at the old one.

    Errors name the kernel as the user `typed` it.
    """
    from skysieve.sphere.grids.pixel_window import pixel_window
    from skysieve.sphere.kernels.shapes import Window

    if polarised:
        raise ValueError("--pixwin: the pixel window is that of I alone (--fields I); Q and U have another one")
    band = kernel.bandlimit(PIXEL_EPS)
    if not math.isfinite(band):
        raise ValueError(f"--pixwin: {typed} is not band-limited, expected a kernel that is")
    top = int(band)
    if nside_out is None:
        return Window(kernel.window(top) * pixel_window(nside, top))
    top = min(top, 3 * nside)
    return Window(kernel.window(top) * pixel_window(nside_out, top) / pixel_window(nside, top))
