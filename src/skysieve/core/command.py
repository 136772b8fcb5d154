"""Common parts of the command lines of all domains: options, lists of numbers, one-line errors, exit codes."""

from __future__ import annotations

import logging
import os
import re
import select
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from enum import Enum, StrEnum
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from zipfile import BadZipFile

import typer
from typer.core import TyperGroup

from .errors import EXTRAS, MemoryBudgetError, install_hint, one_line

try:  # typer has its own copy of click since 0.26
    from typer._click.globals import get_current_context
except ImportError:
    from click import get_current_context

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "CLUSTER", "COMPUTATION", "FAILED_SOME", "INTERRUPTED", "OUTPUT", "STDIO", "USER_ERROR", "CommandLine", "Dtype",
    "Messages", "check_output", "check_outputs", "check_picture", "choice", "counted", "drop_stdout", "flat_options",
    "needs", "nobody_reads", "option", "read_stdin", "report_errors", "sigterm_interrupts", "table_format",
    "terminal", "with_option", "write_stdout",
]  # fmt: skip

FAILED_SOME, USER_ERROR, INTERRUPTED = 1, 2, 130
"""Exit codes: some inputs could not be used; wrong arguments, or a limit of the machine; Ctrl-C or SIGTERM."""


class Dtype(StrEnum):
    """Floating-point type of the computation."""

    float64 = "float64"
    float32 = "float32"


def option(*names: str, help: str, panel: str | None = None, metavar: str | None = None, **more: Any) -> Any:
    """A typer option in the panel `panel` of the help screen; the help text states the default."""
    return typer.Option(*names, help=help, rich_help_panel=panel, metavar=metavar, show_default=False, **more)


def choice(*names: str, values: Iterable[str], help: str, panel: str) -> Any:
    """An option whose value is one of `values`."""
    known = tuple(values)

    def check(value: str) -> str:
        if value not in known:
            raise typer.BadParameter(f"{value!r}: expected one of {', '.join(known)}")
        return value

    return option(*names, help=help, panel=panel, metavar="|".join(known), parser=check, autocompletion=lambda: known)


_BOUNDS = {
    "greater_than_equal": ("at least", "ge"), "greater_than": ("above", "gt"), "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
}  # fmt: skip
"""Types of pydantic's errors: the bound in words, and the key of its value."""


class CommandLine(TyperGroup):
    """A group of commands whose errors of values name the value as it was typed, and what was expected."""

    def invoke(self, ctx: Any) -> Any:
        """Read the arguments of a command and run it."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = _in_our_words(error)
            raise


def _in_our_words(error: typer.BadParameter) -> str:
    """The message of an error that typer found in a value; as it is if the value is named already.

    Recent versions of typer read values by pydantic, whose messages do not have the value.
    """
    listed = getattr(error.__cause__, "errors", None)
    if listed is None:
        return error.message
    first = listed()[0]
    kind, names = first["type"], re.search(r"is not one of ('.*')", first["msg"])
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        expected = f"a number {'of ' if words.startswith('at') else ''}{words} {first['ctx'][key]:g}"
    elif kind.startswith("int_"):
        expected = "a whole number"
    elif kind.startswith("float_"):
        expected = "a number"
    elif names is not None:
        expected = "one of " + ", ".join(re.findall(r"'([^']*)'", names[1]))
    else:
        return error.message
    return f"{str(first['input'])!r}: expected {expected}"


COMPUTATION, OUTPUT = "Computation", "Output"
"""Panels of the help screens that every command has."""
STDIO = Path("-")
"""The path that means standard input or standard output."""

DeviceOption = Annotated[
    str,
    option(
        "--device",
        help="Where to compute: auto, cpu, cuda, cuda:1 or cuda:all. The default is auto.",
        panel=COMPUTATION,
        metavar="DEVICE",
    ),
]
ThreadsOption = Annotated[
    int | None,
    option(
        "--threads",
        help="Number of CPU threads. The default is one for each core.",
        panel=COMPUTATION,
        metavar="N",
        min=1,
        max=4096,
    ),
]
MemoryOption = Annotated[
    str | None,
    option(
        "--memory",
        help="Limit of the working memory, such as 2GiB or 50%. The default is a share of the free memory.",
        panel=COMPUTATION,
        metavar="SIZE",
    ),
]
RUN = "Running"
"""Panel of the help screens of services."""
ADDRESS = "[HOST:]PORT"
MetricsOption = Annotated[
    str | None,
    option(
        "--metrics",
        help="Serve metrics for Prometheus at /metrics of this address; PORT alone means 127.0.0.1. By default no "
        "metrics are served.",
        panel=RUN,
        metavar=ADDRESS,
    ),
]
OverwriteOption = Annotated[
    bool,
    option("--overwrite", help="Replace existing output files. By default an existing file is an error.", panel=OUTPUT),
]
CLUSTER = "Cluster"
ClusterOption = Annotated[
    str | None,
    option(
        "--cluster",
        help="Divide the work into partitions, for local[:N] (workers on this machine), dask:ADDRESS (a scheduler), "
        "slurm[:N] (an array of N tasks), htcondor[:N] (a submit description is written, not submitted) or serial "
        "(this process). By default the work is not divided.",
        panel=CLUSTER,
        metavar="LAUNCHER",
    ),
]
ResumeOption = Annotated[
    bool,
    option(
        "--resume",
        help="Store finished parts beside the output, and continue an interrupted run from them. By default a run "
        "starts from the beginning.",
        panel=OUTPUT,
    ),
]
FormatOption = Annotated[
    str | None,
    option(
        "--format",
        help="Format of the output, such as csv or json. The default is the ending of the file's name, and csv for a "
        "table on standard output ('-').",
        panel=OUTPUT,
        metavar="FORMAT",
    ),
]
JsonOption = Annotated[bool, option("--json", help="Print JSON instead of a table.", panel=OUTPUT)]
QuietOption = Annotated[
    bool,
    option(
        "-q", "--quiet", help="Print errors only. By default the names of written files are printed too.", panel=OUTPUT
    ),
]
VerboseOption = Annotated[
    bool,
    option(
        "-v",
        "--verbose",
        help="Also print the method, the device, the memory and the time of the computation.",
        panel=OUTPUT,
    ),
]
ProgressOption = Annotated[
    bool | None,
    option(
        "--progress/--no-progress",
        help="Show a progress bar. The default is to show it on a terminal.",
        panel=OUTPUT,
    ),
]
DryRunOption = Annotated[
    bool,
    option(
        "--dry-run",
        help="Print the predicted time and memory of the computation, and the bytes moved (its input and results), "
        "without computing anything.",
        panel=COMPUTATION,
    ),
]


def show_prediction(facts: Mapping[str, Any], what: str) -> None:
    """Print the predicted cost of a job, as ``--dry-run`` does; values that cannot be predicted are not printed.

    Parameters
    ----------
    facts : mapping
        ``method``, ``device``, ``bytes``, ``moved``, ``seconds``, ``processor_seconds``, ``threads`` and ``missing``,
        the work for which no rate is known.
    what : str
        The job in a few words.
    """
    from .errors import format_bytes
    from .machine.rates import ADVICE

    typer.echo(what)
    if facts["method"]:
        typer.echo(f"{'method':12}{facts['method']} on {facts['device']}")
    if facts["seconds"] is not None:
        typer.echo(f"{'time':12}{format_seconds(facts['seconds'])} on an idle machine")
    if facts["processor_seconds"] is not None:
        typer.echo(f"{'processor':12}{format_seconds(facts['processor_seconds'])} of all threads")
    if facts["bytes"]:
        typer.echo(f"{'memory':12}{format_bytes(facts['bytes'])}")
    if facts["moved"]:
        typer.echo(f"{'moved':12}{format_bytes(facts['moved'])}")
    if facts["seconds"] is None:
        typer.echo(f"{ADVICE} (no rate was measured for {', '.join(facts['missing']) or 'this work'})")


def format_seconds(seconds: float) -> str:
    """A time in a unit that fits.

    >>> format_seconds(0.0021), format_seconds(75), format_seconds(3030), format_seconds(7200), format_seconds(3e5)
    ('2.1 ms', '75 s', '50.5 min', '2 h', '3.47 d')
    """
    for least, size, unit in ((172800, 86400, "d"), (3600, 3600, "h"), (600, 60, "min"), (1, 1, "s")):
        if seconds >= least:
            return f"{seconds / size:.3g} {unit}"
    return f"{1e3 * seconds:.3g} ms"


def flat_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a command as JSON values, by their names in Python; groups of options are flattened.

    >>> flat_options({"files": [Path("a.csv")], "id_": None, "dtype": Dtype.float32})
    {'files': ['a.csv'], 'id': None, 'dtype': 'float32'}
    """
    out: dict[str, Any] = {}
    for name, value in options.items():
        group = is_dataclass(value) and not isinstance(value, type)
        out |= flat_options(asdict(value)) if group else {name.rstrip("_"): _plain(value)}
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return {str(name): _plain(one) for name, one in value.items()} if isinstance(value, Mapping) else value


class _Lines(logging.Handler):
    """Prints messages of a logger on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(f"skysieve: {record.getMessage()}", err=True)


class Messages:
    """Messages of a command: lines on standard error, and whether to draw a progress bar.

    Parameters
    ----------
    quiet, verbose : bool
        As the options ``--quiet`` and ``--verbose``; not both.
    progress : bool, optional
        As the option ``--progress``; by default a bar is drawn on a terminal.

    Raises
    ------
    ValueError
        Both `quiet` and `verbose` are True.
    """

    def __init__(self, quiet: bool = False, verbose: bool = False, progress: bool | None = None) -> None:
        if quiet and verbose:
            raise ValueError("--quiet and --verbose: expected at most one of them")
        self.quiet, self.verbose = quiet, verbose
        self.progress = not quiet and sys.stderr.isatty() if progress is None else progress
        if verbose:
            logging.basicConfig(format="%(name)s: %(message)s")
            logging.getLogger("skysieve").setLevel(logging.INFO)
        compiling = logging.getLogger("skysieve.compile")
        for handler in [h for h in compiling.handlers if isinstance(h, _Lines)]:
            compiling.removeHandler(handler)
        if not quiet:
            compiling.addHandler(_Lines())
        compiling.setLevel(logging.WARNING if quiet else logging.INFO)
        compiling.propagate = quiet

    def say(self, text: str) -> None:
        """Print a line, unless the command is quiet."""
        if not self.quiet:
            typer.echo(text, err=True)

    @contextmanager
    def notes(self, worded: Callable[[str], str] = str) -> Iterator[None]:
        """Print Python's warnings, as `worded` words them, as notes, a line each, unless the command is quiet."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            try:
                yield
            finally:
                for text in dict.fromkeys(str(warning.message) for warning in caught):
                    self.say(f"note: {worded(text)}")

    def detail(self, text: str) -> None:
        """Print a line if the command is verbose."""
        if self.verbose:
            self.say(text)

    def wrote(self, path: str | os.PathLike[str], what: str = "") -> None:
        """Say which file was written, and `what` is in it (such as ``"12 candidates"``)."""
        if Path(path) != STDIO:
            self.say(f"wrote {os.fspath(path)}" + (f": {what}" if what else ""))


def check_output(path: Path | None, overwrite: bool = False, folder: bool = False) -> None:
    """Refuse, before any work, an output that could not be written at its end.

    Parameters
    ----------
    path : pathlib.Path or None
        The file; None and ``-`` (standard output) pass.
    overwrite : bool
        Whether a file that exists may be replaced.
    folder : bool
        Whether `path` is a folder, which may exist or be made.

    Raises
    ------
    OSError
        The parent folder does not exist or cannot be written to, a folder was given for a file or a file for a folder,
        the file exists, or it is a device or a pipe.
    """
    from .files import is_special, new_outputs

    if path is None or (path == STDIO and not folder):
        return
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent}")
    if not os.access(path if path.is_dir() else path.absolute().parent, os.W_OK):
        raise PermissionError(f"{path}: no permission to write there")
    if folder:
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(f"{path}: is a file, expected the name of a folder")
    elif path.is_dir():
        raise IsADirectoryError(f"{path}: is a folder, expected the name of a file")
    elif is_special(path):
        raise OSError(f"{path}: is a device or a pipe, expected the name of a file, or - for standard output")
    elif not overwrite:
        if path.exists():
            raise FileExistsError(f"{path}: exists; use --overwrite to replace it, or another name")
        new_outputs.add(path.resolve())


def may_replace(output: Path | None, resume: bool, overwrite: bool) -> bool:
    """Whether a command may replace its output, which it writes at its end.

    A run with ``--resume`` may, if it continues the run that has written it, such as one with a file that could not be
    read.

    Raises
    ------
    ValueError
        There is no file beside which parts can be stored.
    """
    from .parts import MANIFEST, continues, has_written, parts_folder

    found = continues(output, resume)
    return overwrite or (found and output is not None and has_written(parts_folder(output) / MANIFEST, output))


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[Path] | None = ()) -> None:
    """Refuse, before any work, outputs that would replace one another or an input.

    Parameters
    ----------
    outputs : dict of pathlib.Path or None
        Files to write, by option; None and ``-`` pass.
    inputs : iterable of pathlib.Path, optional
        Files to read.

    Raises
    ------
    ValueError
        An output is an input, or has the name of another output.
    """
    read = {path.resolve() for path in inputs or () if path != STDIO}
    seen: dict[Path, str] = {}
    for name, path in outputs.items():
        if path is None or path == STDIO:
            continue
        place = path.resolve()
        if place in read:
            raise ValueError(f"{name} {path} is one of the files to read")
        if place in seen:
            raise ValueError(f"{name} {path}: {seen[place]} writes the same file")
        seen[place] = name


def check_picture(path: Path | None, overwrite: bool = False, name: str = "--plot") -> None:
    """Refuse, before any work, a picture of the option `name` that Matplotlib could not write; see `check_output`.

    Raises
    ------
    OSError, ValueError
        As `check_output`; or Matplotlib is not installed, or does not write pictures of that name.
    """
    check_output(path, overwrite)
    if path is None:
        return
    if find_spec("matplotlib") is None:
        raise ValueError(f"{name} needs matplotlib: {install_hint('matplotlib')}")
    from matplotlib.figure import Figure

    kinds = sorted(Figure().canvas.get_supported_filetypes())
    if path.suffix.lower().lstrip(".") not in kinds:
        raise ValueError(f"{name} {path}: expected a name that ends in {', '.join('.' + kind for kind in kinds)}")


def table_format(
    path: Path, wanted: str | None, formats: Mapping[str, Any] | Iterable[str], name: str = "--output"
) -> str:
    """The format of an output: the option ``--format``, or the ending of the file's name.

    Parameters
    ----------
    path : pathlib.Path
        The output; ``-`` is standard output, as csv unless `wanted` says otherwise.
    wanted : str or None
        The option.
    formats : mapping of str, as to TableFormat, or iterable of str
        Formats that the command writes, named by their endings without the dot.
    name : str
        The option that names the output.

    Raises
    ------
    ValueError
        The format is none of `formats`.
    ModuleNotFoundError
        It needs a package that is not installed.
    """
    from .table_files import TableFormat, needs_package

    known = list(formats)
    chosen = wanted or ("csv" if path == STDIO else path.suffix.lower().lstrip("."))
    if chosen not in known:
        given = f"--format {wanted}" if wanted else f"{name} {path}"
        ending = "" if wanted else " at the end of the name"
        if not wanted and name == "--output":
            ending += " (or use --format)"
        raise ValueError(f"{given}: expected one of {', '.join(known)}{ending}")
    kind = formats[chosen] if isinstance(formats, Mapping) else None
    if isinstance(kind, TableFormat):
        needs_package(kind)
    return chosen


def counted(number: int, what: str, several: str | None = None) -> str:
    """A number of things, with the plural `several` where it is not the singular with an "s".

    >>> counted(1, "candidate"), counted(1200, "candidate"), counted(2, "search", "searches")
    ('1 candidate', '1,200 candidates', '2 searches')
    """
    return f"{number:,} {what if number == 1 else several or what + 's'}"


def read_stdin() -> bytes:
    """All of standard input."""
    return sys.stdin.buffer.read()


def write_stdout(data: bytes) -> None:
    """Write to standard output, behind what was printed before."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from None


@contextmanager
def report_errors(interrupted: str = "interrupted", names: Mapping[str, str] | None = None) -> Iterator[None]:
    """Print an error as one line and exit with `USER_ERROR`; exit with `INTERRUPTED` after Ctrl-C or SIGTERM.

    Parameters
    ----------
    interrupted : str
        The message after an interrupt.
    names : mapping of str, optional
        Options of arguments that have another name, see `with_option`.

    Notes
    -----
    SIGTERM raises KeyboardInterrupt inside the block, see `sigterm_interrupts`.
    """
    try:
        with sigterm_interrupts():
            yield
    except typer.Exit:  # a RuntimeError
        raise
    except (ValueError, TypeError, OSError, EOFError, BadZipFile, MemoryError, RuntimeError, ImportError) as error:
        if isinstance(error, BrokenPipeError) and nobody_reads():
            raise typer.Exit(128 + signal.SIGPIPE) from None
        text = one_line(error)
        if isinstance(error, MemoryError) and not text:
            text = "not enough memory"
        if not isinstance(error, OSError):  # such a message names a file
            text = with_option(text, names)
        if isinstance(error, MemoryBudgetError) and "--memory" in _options():
            text += "; --memory sets the budget"
        if isinstance(error, (EOFError, BadZipFile)):
            text = f"a file is damaged or cut short: {text or 'it ends early'}"
        if isinstance(error, ModuleNotFoundError) and (package := (error.name or "").partition(".")[0]) in EXTRAS:
            text += f": {install_hint(package)}"
        typer.echo(f"skysieve: {text}", err=True)
        raise typer.Exit(USER_ERROR) from None
    except KeyboardInterrupt:
        typer.echo(f"skysieve: {interrupted}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def with_option(text: str, names: Mapping[str, str] | None = None) -> str:
    """Replace the arguments' names in a message by the options of the command that is running.

    Names before "=" are replaced: one with an underscore always, another one if the user gave its option, because
    values such as ``fmin`` may follow from another option.  Other names with an underscore are replaced if the message
    has names before "=", or if the user gave the option.  A flag has no value: ``positive=True`` becomes
    ``--positive``.  Numbers after an option are shown as the user typed them.  A message that begins with an option is
    about a part of its value, and is not changed.

    Parameters
    ----------
    text : str
    names : mapping of str, optional
        Options of arguments that have another name, such as ``{"n": "--pulses"}``.
    """
    options = {o[2:].replace("-", "_"): o for o in _options() if o.startswith("--")} | dict(names or {})
    if not options or text.startswith("--"):
        return text

    def value(found: re.Match[str]) -> str:
        option = options.get(found[1])
        if option is None or not ("_" in found[1] or given(option)):
            return found[0]
        typed = _as_typed(option)
        return typed if found[2] and getattr(_options()[option], "is_flag", False) else f"{typed} {found[2] or ''}"

    changed = re.sub(r"(?<![\w./-])([a-zA-Z]\w*)=(?!=)(True\b)?", value, text)
    about = re.match(r"[a-z]+_\w+(?=: )", text)  # "dm_max: the plan would have more DMs than ..."
    named = changed != text or about is not None

    def other(found: re.Match[str]) -> str:
        option = options.get(found[0])
        return _as_typed(option) if option is not None and (named or given(option)) else found[0]

    changed = re.sub(r"(?<![\w./-])[a-z]+_\w+(?![\w=/-]|\.\w)", other, changed)
    numbers = r"\[[^]]*\]|[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.]\w)"
    return re.sub(
        rf"(?<![\w-])(--?[a-zA-Z][\w-]*) ({numbers})", lambda found: _number_as_typed(*found.groups()), changed
    )


def _number_as_typed(option: str, shown: str) -> str:
    """An option and its numbers as the user typed them, such as ``--dec 5`` for ``--dec 5.0``."""
    words, names = sys.argv[1:], _options()[option].opts if option in _options() else []
    typed = [after for word, after in pairwise(words) if word in names]
    typed += [word.partition("=")[2] for word in words if word.partition("=")[0] in names and "=" in word]

    def values(text: str) -> list[float]:
        return [float(one) for one in text.strip("[]").split(",")]

    try:
        return next((f"{option} {text}" for text in typed if values(text) == values(shown)), f"{option} {shown}")
    except ValueError:  # no numbers
        return f"{option} {shown}"


def in_options(names: Mapping[str, str] | None = None) -> Callable[[Exception], str]:
    """A function for any thread that returns the text of an error in a line, see `with_option`."""
    context = get_current_context()

    def text(error: Exception) -> str:
        with context.scope(cleanup=False):  # each thread has its own stack of contexts
            return with_option(one_line(error), names)

    return text


def given(*options: str) -> list[str]:
    """Those of the options that the user gave to the command that is running."""
    context, known = get_current_context(silent=True), _options()
    return [
        option for option in options
        if context is not None and option in known
        and getattr(context.get_parameter_source(known[option].name), "name", "") == "COMMANDLINE"
    ]  # fmt: skip


def needs(what: str, have: object, *options: str) -> None:
    """Refuse options that the user gave although they have no effect.

    Parameters
    ----------
    what : str
        What the options need, such as ``"--cutouts"``.
    have : object
        Whether it is there.
    *options : str
        Such as ``"--most"``.

    Raises
    ------
    ValueError
        One of `options` was given, and `have` is false.
    """
    if not have and (found := given(*options)):
        raise ValueError(f"{_as_typed(found[0])} needs {what}")


def _options() -> dict[str, Any]:
    """The parameters of the command that is running, by each of their long and short names."""
    context = get_current_context(silent=True)
    return {} if context is None else {name: p for p in context.command.params for name in p.opts if name[0] == "-"}


def _as_typed(option: str) -> str:
    """The name of an option that the user typed, such as ``-t`` for ``--threshold``."""
    words = {word.partition("=")[0] for word in sys.argv[1:]}
    return next((name for name in _options()[option].opts if name in words), option)


def typed_as_folder(path: Path) -> bool:
    """Whether the user typed a path with a slash at its end, which `Path` drops."""
    words = [word.partition("=")[2] if word.startswith("--") else word for word in sys.argv[1:]]
    return any(word.endswith(("/", os.sep)) and Path(word) == path for word in words)


def terminal(**options: Any) -> Console:
    """A rich console that raises BrokenPipeError if the reader has ended; rich itself ends the process with code 1."""
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise

    return Terminal(highlight=False, emoji=False, **options)  # ":star:" in a name is no picture


def nobody_reads() -> bool:
    """Whether the reader of standard output has ended, as in ``| head``; if so, the rest of the output is discarded."""
    stdout = sys.__stdout__
    if stdout is None or sys.stdout is not stdout or not hasattr(select, "poll"):
        return False
    asked = select.poll()
    asked.register(stdout.fileno(), 0)
    if not any(state & select.POLLERR for _, state in asked.poll(0)):
        return False
    drop_stdout()
    return True


def drop_stdout() -> None:
    """Discard the buffered rest of standard output, which Python would otherwise try to write when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


@contextmanager
def compiled_code(device: str) -> Iterator[None]:
    """Let the parts of a run on a CPU wait for compiled code inside the block.

    The first answers of a process, which need no compiled code, differ from later ones in the last bits: a run that was
    interrupted and continued would differ from one that was not.
    """
    from .device import resolve

    if resolve(device)[0].kind != "cpu":
        yield
        return
    from .cpu import jit

    before = jit.FirstAnswers.allowed, jit.INTERPRETED_SECONDS
    jit.FirstAnswers.allowed, jit.INTERPRETED_SECONDS = False, 0.0
    try:
        yield
    finally:
        jit.FirstAnswers.allowed, jit.INTERPRETED_SECONDS = before


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """SIGTERM, which batch systems send, raises KeyboardInterrupt inside the block, as Ctrl-C does.

    Unfinished files are then removed.  A handler that is already installed is not replaced.  `files.new_outputs` is
    cleared at the end of the block.
    """
    from .files import new_outputs

    main = threading.current_thread() is threading.main_thread()
    install = main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if install:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        new_outputs.clear()
        if install:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
