"""The command line: mounts the domains' commands; ``skysieve info``, ``skysieve demo``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from skysieve import __version__
from skysieve.core.command import FAILED_SOME, option, report_errors
from skysieve.dedispersion.command.cli import dedisp
from skysieve.dedispersion.stream.command.commands import emulate, stream, watch
from skysieve.fstat.command.cli import fstat
from skysieve.periodogram.command.cli import period
from skysieve.sphere.command.cli import smooth

COMMANDS: dict[str, Callable[..., None]] = {"period": period, "smooth": smooth}
"""Commands of the domains."""

GROUPS = {"dedisp": dedisp, "fstat": fstat}
"""Groups of commands: one typer application a domain, whose modules are imported when a command runs."""

DEMOS = {
    "periodogram": "skysieve.periodogram.command.demo:run",
    "fstat": "skysieve.fstat.command.demo:run",
    "dedispersion": "skysieve.dedispersion.command.demo:run",
    "sphere": "skysieve.sphere.command.demo:run",
}
"""Parts of the demo: ``run(out, console, device)`` returns what fell short, one line each."""

METHODS = {
    "periodogram": "skysieve.periodogram.contract:METHODS",
    "fstat": "skysieve.fstat.inputs.windows:METHODS",
    "dedispersion": "skysieve.dedispersion.contract:METHODS",
    "sphere": "skysieve.sphere.contract:METHODS",
}
"""Methods of each domain, for ``skysieve info``."""

PACKAGES = (
    "numpy", "scipy", "numba", "finufft", "astropy", "matplotlib", "pyarrow", "h5py", "ducc0", "bokeh", "cupy",
)  # fmt: skip

app = typer.Typer(
    name="skysieve",
    help="GPU-speed searches for astronomers. Start with: skysieve demo",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)
dedisp.command("stream")(stream)
dedisp.command("emulate")(emulate)
dedisp.command("watch")(watch)
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name)


def _load(place: str) -> object:
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"skysieve {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def info() -> None:
    """Versions, devices and methods: what to send with a bug report."""
    import platform

    from rich.console import Console
    from rich.table import Table

    from skysieve.core.device import cuda_problem, driver_version, resolve
    from skysieve.core.errors import format_bytes

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("skysieve", __version__)
    table.add_row("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in PACKAGES:
        table.add_row(package, _package_version(package))
    cpu = resolve("cpu")[0]
    table.add_row("cpu", f"{_cpu_name()}, {cpu.sm_count} cores usable, {format_bytes(cpu.free_memory)} of memory free")
    problem = cuda_problem()
    if problem is None:
        for gpu in resolve("cuda:all"):
            memory = f"{format_bytes(gpu.free_memory)} of {format_bytes(gpu.total_memory)} free"
            capability = ".".join(map(str, gpu.compute_capability))
            table.add_row(
                f"cuda:{gpu.index}", f"{gpu.name}, {memory}, compute capability {capability}, driver {driver_version()}"
            )
    else:
        table.add_row("gpu", f"none: {problem}")
    for domain, place in METHODS.items():
        methods = _load(place)
        assert isinstance(methods, tuple)
        table.add_row(f"{domain} methods", ", ".join(methods))
    Console(highlight=False).print(table)


def _package_version(package: str) -> str:
    """Version of an installed package, found without importing it."""
    from importlib import metadata
    from importlib.util import find_spec

    if find_spec(package) is None:
        return "not installed"
    names = metadata.packages_distributions().get(package, [package])
    try:
        return ", ".join(metadata.version(n) + (f" ({n})" if n != package else "") for n in dict.fromkeys(names))
    except metadata.PackageNotFoundError:
        return "of unknown version"


def _cpu_name() -> str:
    import platform

    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@app.command()
def demo(
    out: Annotated[Path, option("--out", metavar="DIR", help="Folder for the plots (demo-output).")] = Path(
        "demo-output"
    ),
    device: Annotated[
        str, option("--device", metavar="DEVICE", help="auto, cpu, cuda, cuda:1, cuda:all (auto).")
    ] = "auto",
) -> None:
    """Periods of a star and of asteroids, a gravitational wave, a radio transient, a smoothed sky; a minute at most."""
    from rich.console import Console

    console = Console(highlight=False)
    short: list[str] = []
    with report_errors(f"interrupted; the plots made so far are in {out}"):
        out.mkdir(parents=True, exist_ok=True)
        for place in DEMOS.values():
            run = _load(place)
            assert callable(run)
            short += run(out, console, device)
    for line in short:
        console.print(f"FAILED: {line}", style="bold red")
    if short:
        raise typer.Exit(FAILED_SOME)
    console.print(f"[bold green]All as expected.[/] Plots are in {out}{'' if out.is_absolute() else '/'}")


def main() -> None:
    """Entry point of the ``skysieve`` command."""
    try:
        app()
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
