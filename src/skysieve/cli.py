"""The command line: mounts the domains' commands; ``skysieve info``, ``demo`` and ``warm-up``."""

from __future__ import annotations

import errno
import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from skysieve import __version__
from skysieve.core.command import (
    COMPUTATION,
    FAILED_SOME,
    OUTPUT,
    USER_ERROR,
    CommandLine,
    DeviceOption,
    JsonOption,
    OverwriteOption,
    QuietOption,
    check_output,
    drop_stdout,
    needs,
    option,
    report_errors,
    terminal,
)

COMMANDS = {
    "period": "skysieve.periodogram.command.cli:period",
    "smooth": "skysieve.sphere.command.cli:smooth",
    "alerts": "skysieve.alerts.command:alerts",
}
"""Commands of the domains.  The module of a command is imported when it runs, or for the help on all commands."""

GROUPS = {
    "dedisp": ["skysieve.dedispersion.command.cli:dedisp"],
    "fstat": ["skysieve.fstat.command.cli:fstat"],
}
"""Groups of commands: the typer application of a domain, then commands that are defined elsewhere."""
GROUPS["dedisp"] += [f"skysieve.dedispersion.stream.command.commands:{name}" for name in ("stream", "emulate", "watch")]

DEMOS = {
    "periodogram": "skysieve.periodogram.command.demo:run",
    "fstat": "skysieve.fstat.command.demo:run",
    "dedispersion": "skysieve.dedispersion.command.demo:run",
    "sphere": "skysieve.sphere.command.demo:run",
}
"""Parts of the demo: ``run(folder, console, device)`` returns a line for each result that is not as expected."""

METHODS = {
    "periodogram": "skysieve.periodogram.contract:METHODS",
    "fstat": "skysieve.fstat.inputs.windows:METHODS",
    "dedispersion": "skysieve.dedispersion.contract:METHODS",
    "sphere": "skysieve.sphere.contract:METHODS",
}
"""Methods of each domain, for ``skysieve info``."""

PACKAGES = (
    "numpy", "scipy", "numba", "finufft", "astropy", "matplotlib", "pyarrow", "h5py", "ducc0", "bokeh", "cupy",
    "confluent_kafka",
)  # fmt: skip


def _load(place: str) -> Any:
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"skysieve {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def info(
    json: JsonOption = False,
    measure: Annotated[
        bool,
        option(
            "--measure",
            help="Measure the rates of this machine, from which --dry-run predicts times, and store them in the cache "
            "folder. This takes 10 to 20 seconds for each device, after compilation.",
            panel=COMPUTATION,
        ),
    ] = False,
    device: DeviceOption = "auto",
) -> None:
    """Print versions, devices and methods: what to send with a bug report.

    Examples:

    - skysieve info
    - skysieve info --json > info.json
    - skysieve info --measure
    """
    with report_errors():
        needs("--measure", measure, "--device")
    if measure:
        with report_errors("interrupted; the rates that were measured so far are stored"):
            from skysieve.core.files import cache_folder
            from skysieve.first_use import measure_rates

            failed = 0
            for domain, name, seconds, error in measure_rates(device, lambda text: typer.echo(text, err=True)):
                failed += bool(error)
                said = f"measured in {seconds:.1f} s" if not error else f"cannot be measured: {error}"
                typer.echo(f"{domain}: rates of {name} {said}", err=True)
            typer.echo(f"rates are stored in {cache_folder()}", err=True)
            if failed:
                raise typer.Exit(FAILED_SOME)
    facts = _facts()
    if json:
        from json import dumps

        typer.echo(dumps(facts, indent=1))
        return
    from rich.table import Table

    from skysieve.core.errors import format_bytes

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("skysieve", facts["skysieve"])
    table.add_row("python", f"{facts['python']} on {facts['platform']}")
    for package, version in facts["packages"].items():
        table.add_row(package, version or "not installed")
    cpu, *gpus = facts["devices"]
    memory = f"{format_bytes(cpu['free_memory'])} of memory free"
    table.add_row("cpu", f"{cpu['model']}, {cpu['cores']} cores usable, {memory}")
    for gpu in gpus:
        memory = f"{format_bytes(gpu['free_memory'])} of {format_bytes(gpu['total_memory'])} free"
        capability = f"compute capability {gpu['compute_capability']}, driver {gpu['driver']}"
        table.add_row(gpu["name"], f"{gpu['model']}, {memory}, {capability}")
    if not gpus:
        table.add_row("gpu", f"none: {facts['gpu_problem']}")
    for domain, methods in facts["methods"].items():
        table.add_row(f"{domain} methods", ", ".join(methods))
    terminal(markup=False).print(table)


def _facts() -> dict[str, Any]:
    """The output of ``skysieve info`` as JSON values; memory is in bytes."""
    import platform

    from skysieve.core.device import cuda_problem, driver_version, resolve
    from skysieve.core.machine.rates import processor

    cpu, problem = resolve("cpu")[0], cuda_problem()
    devices: list[dict[str, Any]] = [
        {"name": "cpu", "model": processor(), "cores": cpu.sm_count, "free_memory": cpu.free_memory}
    ]
    for gpu in resolve("cuda:all") if problem is None else ():
        devices.append(
            {
                "name": f"cuda:{gpu.index}",
                "model": gpu.name,
                "free_memory": gpu.free_memory,
                "total_memory": gpu.total_memory,
                "compute_capability": ".".join(map(str, gpu.compute_capability)),
                "driver": driver_version(),
            }
        )
    return {
        "skysieve": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": _package_versions(),
        "devices": devices,
        "gpu_problem": None if problem is None else str(problem),
        "methods": {domain: list(_load(place)) for domain, place in METHODS.items()},
    }


def _package_versions() -> dict[str, str | None]:
    """Versions of `PACKAGES`, found without importing them; None for those that are not installed."""
    from importlib import metadata
    from importlib.util import find_spec

    distributions = metadata.packages_distributions()  # reads the files of every installed package: once
    found: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for package in filter(find_spec, PACKAGES):
        names = dict.fromkeys(distributions.get(package, [package]))
        try:
            found[package] = ", ".join(metadata.version(n) + (f" ({n})" if n != package else "") for n in names)
        except metadata.PackageNotFoundError:
            found[package] = "of unknown version"
    return found


def demo(
    output: Annotated[
        Path,
        option(
            "-o",
            "--output",
            metavar="DIR",
            help="Folder for the plots. The default is demo-output.",
            panel=OUTPUT,
        ),
    ] = Path("demo-output"),
    device: DeviceOption = "auto",
    overwrite: OverwriteOption = False,
) -> None:
    """Run the four searches on real and simulated data, for a minute at most.

    They find the periods of a star and of asteroids, a gravitational wave and a radio transient, and smooth a sky.
    The command fails if one of them does not find what is known to be there.

    Examples:

    - skysieve demo
    - skysieve demo -o plots --device cuda --overwrite
    """
    from skysieve.core.device import resolve

    console = terminal()
    short: list[str] = []
    with report_errors(f"interrupted; the plots made so far are in {output}"):
        check_output(output, folder=True)
        if not overwrite and (before := sorted(output.glob("*.png"))):
            raise FileExistsError(f"{before[0]}: exists; use --overwrite to replace it, or another folder")
        resolve(device)
        output.mkdir(exist_ok=True)
        for place in DEMOS.values():
            short += _load(place)(output, console, device)
    for line in short:
        console.print(f"FAILED: {line}", style="bold red", markup=False)
    if short:
        raise typer.Exit(FAILED_SOME)
    console.print("All as expected.", style="bold green", end=" ")
    console.print(f"Plots are in {output}{'' if output.is_absolute() else '/'}", markup=False)


def warm_up(
    only: Annotated[
        list[str] | None,
        option(
            "--only",
            help="Compile only this domain: periodogram, sphere, dedispersion, fstat or alerts. May be repeated. The "
            "default is all.",
            panel=COMPUTATION,
            metavar="DOMAIN",
        ),
    ] = None,
    device: Annotated[
        str,
        option(
            "--device",
            help="Devices to compile for: auto, cpu, cuda, cuda:1 or cuda:all. The default is auto: the CPU, and a GPU "
            "if there is one.",
            panel=COMPUTATION,
            metavar="DEVICE",
        ),
    ] = "auto",
    threads: Annotated[
        int | None,
        option(
            "--threads",
            help="Number of processes that compile at the same time. The default is one for each core.",
            panel=COMPUTATION,
            metavar="N",
            min=1,
        ),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Compile the code of typical searches ahead of their first use, for container images and clusters.

    The code is for the kind of processor and of GPU of this machine. It is stored in the folder that the environment
    variable SKYSIEVE_CACHE_DIR names. GPU code is stored in CUPY_CACHE_DIR. If one search fails, the others still run;
    the exit code is then 1.

    Examples:

    - skysieve warm-up
    - SKYSIEVE_CACHE_DIR=/opt/skysieve skysieve warm-up --device cpu --only fstat
    """
    from skysieve.first_use import code_folders, warm_each

    failed: list[str] = []
    devices: dict[str, None] = {}
    with report_errors("interrupted; the code that is compiled so far is stored", {"domains": "--only"}):
        for one in warm_each(only or None, device, threads):
            devices[one.device] = None
            if one.error:
                failed.append(one.name)
                typer.echo(f"skysieve: {one.name} on {one.device} failed: {one.error}", err=True)
            elif not quiet:
                typer.echo(f"{one.name:36} {one.device:8} {one.seconds:6.1f} s")
        if not quiet:
            for kind, folder in code_folders(devices).items():
                typer.echo(f"{kind} code is stored in {folder}")
    if failed:
        raise typer.Exit(FAILED_SOME)


def application(only: str | None = None) -> typer.Typer:
    """The command line.

    Parameters
    ----------
    only : str, optional
        The only command or group to load.  All are loaded by default, or if there is none of this name.
    """
    line = typer.Typer(
        name="skysieve",
        cls=CommandLine,
        help="Searches of large astronomical data on GPUs or CPUs. Start with: skysieve demo",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    line.callback()(_root)
    known = {*COMMANDS, *GROUPS, "info", "demo", "warm-up"}
    wanted = {only} if only in known | {"--version"} else known
    for name, place in COMMANDS.items():
        if name in wanted:
            line.command(name)(_load(place))
    line.command("info")(info)
    line.command("demo")(demo)
    line.command("warm-up")(warm_up)
    for name, (group, *commands) in GROUPS.items():
        if name in wanted:
            loaded = _load(group)
            have = {command.name for command in loaded.registered_commands}
            for place in commands:
                command = place.rpartition(":")[2]
                if command not in have:
                    loaded.command(command)(_load(place))
            line.add_typer(loaded, name=name)
    return line


def __getattr__(name: str) -> typer.Typer:
    """``app``, the command line with all commands, is made when it is first used."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["app"] = made = application()
    return made


def main() -> None:
    """Entry point of the ``skysieve`` command."""
    try:
        application(sys.argv[1] if len(sys.argv) > 1 else None)()
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        sys.stderr.write(f"skysieve: standard output: {error.strerror}\n")
        drop_stdout()
        sys.exit(USER_ERROR)
