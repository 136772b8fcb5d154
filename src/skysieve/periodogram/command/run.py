"""One run of ``skysieve period``: reads files, searches objects, writes tables and pictures."""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skysieve.core.command import (
    FAILED_SOME,
    STDIO,
    USER_ERROR,
    Messages,
    check_output,
    check_outputs,
    check_picture,
    compiled_code,
    counted,
    may_replace,
    table_format,
    terminal,
    with_option,
    write_stdout,
)
from skysieve.core.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import Console

    from skysieve.periodogram.lightcurves.io import LightCurves, Wanted
    from skysieve.periodogram.lightcurves.stream import CurveStream
    from skysieve.periodogram.survey import Found, Request

    from .resume import Parts

MAX_PLOTS = 50


class UserError(Exception):
    """An error of the user's, in one line."""


class WrittenElsewhere(UserError):
    """The table was written under another name, because another process wrote the output in the meantime."""


@dataclass(frozen=True)
class Treatment:
    """Changes to the rows of a file before the search."""

    time_unit: str = "d"
    no_err: bool = False
    band: str | None = None
    multiband: str | None = None
    """The option --multiband; None for the default."""
    jitter: float | None = None
    phase_model: str | None = None
    """Phase function of moving objects; None for objects that do not move."""


@dataclass(frozen=True)
class Outputs:
    """The outputs that the options of the command name."""

    table: Path | None = None
    format: str | None = None
    plot: Path | None = None
    plot_all: bool = False
    resume: bool = False
    partition: int | None = None
    overwrite: bool = False


class ConsoleMessages(Messages):
    """Messages that are printed above a progress bar."""

    def __init__(self, console: Console, log: Console, **options: Any) -> None:
        super().__init__(**options)
        self.console, self.log = console, log

    def say(self, text: str) -> None:
        """Print a line, unless the command is quiet."""
        if not self.quiet:
            self.log.print(text, markup=False)


def messages_for(quiet: bool, verbose: bool, progress: bool | None) -> ConsoleMessages:
    """Messages by the command's options; `UserError` if they contradict each other."""
    from rich.console import Console

    console, log = terminal(), Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)
    try:
        return ConsoleMessages(console, log, quiet=quiet, verbose=verbose, progress=progress)
    except ValueError as e:
        raise UserError(str(e)) from None


@dataclass
class PeriodRun:
    """One run of the command: the request, and the results so far."""

    messages: ConsoleMessages
    n_files: int
    found: list[tuple[str, Found]] = field(default_factory=list)
    bad_files: int = 0
    plotted: int = 0
    not_plotted: list[str] = field(default_factory=list)
    """Why pictures could not be written."""
    pictures: set[str] = field(default_factory=set)
    new_folder: Path | None = None
    """The folder of pictures, if this run made it."""
    noted: set[str] = field(default_factory=set)
    lost: int = 0
    flat: int = 0
    rows_noted: int = 0
    """Rows that notes say were left out."""
    parts: Parts | None = None
    rows: Callable[..., None] | None = None
    """Takes rows of a table that is written during the search."""
    n_written: int = 0
    """Number of the entries of ``found`` that were written to it."""
    flagged: Counter[str] = field(default_factory=Counter)

    def complain(self, text: str) -> None:
        """Print an error."""
        log = self.messages.log
        log.print(f"skysieve: {with_option(text)}", style="bold red" if log.is_terminal else None, markup=False)

    def say(self, text: str) -> None:
        """Print a line, unless the command is quiet."""
        self.messages.say(text)

    def prepare(self, files: list[Path], request: Request, treatment: Treatment, outputs: Outputs, run: Any) -> None:
        """Check what can be checked without data, so that a wrong name costs no work.

        ``run`` holds all options of the run as JSON values.
        """
        from .resume import CUT, InUse, OtherRun, Parts, files_of

        self.request, self.treatment = request, treatment
        self.output, self.plot = outputs.table, outputs.plot
        self.plot_limit = sys.maxsize if outputs.plot_all else MAX_PLOTS
        if files.count(STDIO) > 1:
            raise UserError("- is given twice: standard input can be read only once")
        try:
            check_outputs({"--output": self.output, "--plot": self.plot}, files)
            replaces = may_replace(self.output, outputs.resume, outputs.overwrite)
        except (OSError, ValueError) as e:
            raise UserError(one_line(e)) from None
        if self.output is not None:
            self._check_table(self.output, outputs.format, replaces)
        if self.plot is not None:
            self._check_plot(self.plot, outputs.overwrite)
        self._prepare_device(request.arguments["device"])
        self.partition = outputs.partition
        if outputs.resume:
            assert self.output is not None
            if STDIO in files:
                raise UserError("--resume needs files, not standard input")
            if self.plot is not None:
                raise UserError("--resume and --plot cannot be combined; draw the pictures in a separate run")
            try:
                self.parts = Parts(self.output, {"options": run, "files": files_of(files), "partitions": CUT})
            except (InUse, OtherRun) as e:
                raise UserError(str(e)) from None
            except OSError as e:
                raise UserError(f"{self.output}.parts: {e.strerror or e}") from None
            if self.parts.lock.note:
                self.say(f"note: {self.parts.lock.note}")
        elif outputs.partition is not None:
            raise UserError("--partition needs --resume or --cluster")

    def _prepare_device(self, name: str) -> None:
        """Load what a GPU needs in another thread; `UserError` if there is no device of that name."""
        from skysieve.core.device import begin, check_name
        from skysieve.core.errors import DeviceUnavailable

        begin(name, "skysieve.periodogram.cuda.engine")
        try:
            check_name(name)
        except ValueError as e:
            raise UserError(str(e)) from None
        except DeviceUnavailable as e:
            text = with_option(str(e))
            raise UserError(text if text.startswith("--device") else f"--device {name}: {text}") from None

    def _check_table(self, path: Path, wanted: str | None, overwrite: bool) -> None:
        from skysieve.core.table_files import FORMATS, check_format

        try:
            self.format = table_format(path, wanted, FORMATS)
            check_format(path, self.format)
            check_output(path, overwrite)
        except (OSError, ValueError, ImportError) as e:
            raise UserError(one_line(e)) from None

    def _check_plot(self, path: Path, overwrite: bool) -> None:
        """Whether pictures go to a file or into a folder, and whether they can be written there."""
        from .plot_files import is_picture, pictures_in

        try:
            if is_picture(path):
                check_picture(path, overwrite)
                if self.n_files > 1:
                    raise UserError(f"--plot {path}: expected a folder, because there are several files")
                return
            if path.suffix[1:].isalpha() and not path.is_dir():
                raise UserError(f"--plot {path}: expected a folder, or the name of a picture, such as {path.stem}.png")
            check_output(path, folder=True)
            if not overwrite and (before := pictures_in(path)):
                raise UserError(
                    f"--plot {path}: the folder holds pictures ({before[0].name}); use --overwrite to replace them"
                )
            if not path.is_dir():
                path.mkdir()
                self.new_folder = path
        except (OSError, ValueError, ImportError) as e:
            raise UserError(one_line(e)) from None

    def divide(self, cluster: str, options: dict[str, Any]) -> int:
        """Search partitions by ``--cluster``; returns the exit code."""
        from skysieve.cluster.command import launch

        if options["plot"] is not None:
            raise UserError("--cluster and --plot cannot be combined; draw the pictures in a separate run")
        if options["dry_run"]:
            raise UserError("--cluster and --dry-run cannot be combined")
        if options["output"] not in (None, STDIO) and options["output"].suffix:
            self._check_table(options["output"], options["format_"], overwrite=True)
        try:
            return launch("period", cluster, options, self.messages)
        except (ValueError, OSError, RuntimeError, ImportError) as e:
            raise UserError(one_line(e) or type(e).__name__) from e

    def close(self) -> None:
        """Release the lock of the output, and remove a new folder of pictures that is still empty."""
        if self.parts is not None:
            self.parts.close()
        if self.new_folder is not None and self.new_folder.is_dir() and not any(self.new_folder.iterdir()):
            self.new_folder.rmdir()

    def search_all(self, files: list[Path], wanted: Wanted) -> int:
        """Search the files one after another, and write the results; returns the exit code."""
        with ExitStack() as stack:
            return self._search_all(files, wanted, stack)

    def predict(self, files: list[Path], wanted: Wanted) -> int:
        """Print the predicted cost of the search of each file, and search nothing; returns the exit code.

        Files that a search reads in pieces are read up to the first piece, other files to the end.
        """
        from skysieve.core.command import show_prediction
        from skysieve.core.errors import SkysieveError
        from skysieve.periodogram.lightcurves.column_names import MissingColumn
        from skysieve.periodogram.lightcurves.io import BadFile, read_light_curves

        from .rates import clocks, prediction
        from .report import with_search_options

        for file in files:
            if file == STDIO:
                raise UserError("--dry-run needs files, not standard input")
            try:
                before = clocks()
                curves: LightCurves | CurveStream | None = self._streamed(file, wanted)
                if curves is None:
                    curves = self.treated(read_light_curves(file, wanted, band=self.treatment.band))
                else:  # the first time imports
                    before = clocks()
                    curves = self._streamed(file, wanted) or curves
                facts = prediction(curves, self.request, before.elapsed())
            except (BadFile, MissingColumn) as e:
                self._bad(f"{file}: {str(e).splitlines()[0]}")
                continue
            except (ValueError, SkysieveError) as e:
                self._bad(f"{file}: {with_search_options(str(e).splitlines()[0])}")
                continue
            except OSError as e:
                self._bad(f"{file}: {e.strerror or e}")
                continue
            show_prediction(facts, f"{file}: {_size_of(curves)}")
        return FAILED_SOME if self.bad_files else 0

    def _search_all(self, files: list[Path], wanted: Wanted, stack: ExitStack) -> int:
        """As `search_all`; a table that is written during the search is closed by ``stack``."""
        from skysieve.periodogram.contract import Status
        from skysieve.periodogram.lightcurves.column_names import MissingColumn
        from skysieve.periodogram.lightcurves.io import BadFile, read_light_curves, read_stream
        from skysieve.periodogram.survey import join

        from .report import reasons, show_periods, summary

        if self.parts is not None and (code := self.parts.ended()) is not None:
            self.say(f"{self.output} was complete before")
            return code
        started = time.monotonic()
        names = Counter(file.name for file in files)
        for number, file in enumerate(files):
            if file == STDIO:
                file = Path("stdin")
                read = partial(read_stream, sys.stdin.buffer)
            else:
                read = partial(read_light_curves, file)
            label = str(file) if names[file.name] > 1 else file.name
            if self.parts is not None and (done := self.parts.complete(number)):
                self.say(f"{file}: all {done} partitions were done before")
                for k in range(done):
                    self.found.append((label, self._loaded(number, k)))
                continue
            try:
                curves = self._streamed(file, wanted) or self.treated(read(wanted, band=self.treatment.band))
            except (BadFile, MissingColumn) as e:
                self._bad(f"{file}: {e}")
                continue
            except OSError as e:
                self._bad(f"{file}: {e.strerror or e}")
                continue
            if self.treatment.multiband not in (None, "none") and not len(curves.bands):
                self._bad(f"{file}: --multiband {self.treatment.multiband}: found no band column")
                continue
            self._search(number, file, label, curves, stack)
        if not self.found:
            return USER_ERROR
        self._join()
        seconds = time.monotonic() - started
        merged = join([f for _, f in self.found])
        if self.output is not None:  # before the table is printed, which may fail
            if self.rows is None:
                self._write(self.output)
            else:
                self._end_rows(self.output, stack)
            self.messages.wrote(self.output, counted(len(merged), "object"))
        none = bool((merged.status != Status.OK).all())
        code = FAILED_SOME if self.bad_files or self.not_plotted or none else 0
        if self.parts is not None and not self.bad_files:
            self.parts.remove(code)
        if not self.messages.quiet and self.output != STDIO:
            show_periods(self.messages.console, self.found, self.request)
        separate = self.request.multiband == "separate"
        # the notes on a single file have named these rows, unless parts of an earlier run or bands add others
        noted = self.n_files == 1 and int(merged.n_dropped.sum()) == self.rows_noted
        for line in summary(merged, seconds, len(self.found), self.flagged, separate, noted):
            self.say(line)
        if self.plot is not None and self.plotted:
            self.messages.wrote(self.plot, f"{self.plotted} picture{'s' if self.plotted != 1 else ''}")
        if self.not_plotted:
            more = len(self.not_plotted) - 1
            also = f" (and {counted(more, 'other picture')})" if more else ""
            self.complain(self.not_plotted[0] + also)
        if none:
            if len(merged) == 1:
                self.complain(f"the object has no period: {Status(int(merged.status[0])).text}")
            else:
                self.complain(f"none of {len(merged):,} objects has a period: {reasons(merged.status)}")
        return code

    def _streamed(self, file: Path, wanted: Wanted) -> CurveStream | None:
        """A large file that can be read while it is searched; None for others."""
        from skysieve.periodogram.lightcurves.stream import open_stream

        if file == Path("stdin"):
            return None
        curves = open_stream(file, wanted, band=self.treatment.band)
        if curves is not None:
            curves.treat = self.treated
        return curves

    def _bad(self, text: str) -> None:
        self.bad_files += 1
        self.complain(text)

    def treated(self, curves: LightCurves) -> LightCurves:
        """Convert the times to days, and add the jitter to the errors."""
        from dataclasses import replace

        import numpy as np

        from skysieve.periodogram.lightcurves.table_columns import notes_on_days
        from skysieve.periodogram.lightcurves.units import TimeUnit

        how = self.treatment
        if curves.time_unit and how.time_unit not in ("d", curves.time_unit):
            curves.notes.append(
                f"--time-unit is not used: the file itself says that its times are in {curves.time_unit}"
            )
        if not curves.time_unit and how.time_unit != "d":
            days = TimeUnit[how.time_unit].days
            curves = replace(curves, t=curves.t * days, time_resolution=curves.time_resolution * days)
        if not curves.time_unit and how.time_unit == "d":
            curves.notes.extend(f"{note}; --time-unit names another unit" for note in notes_on_days(curves.t))
        if how.no_err:
            curves = replace(curves, dy=None)
        if how.jitter:
            if curves.dy is None:
                dy = np.full(len(curves.t), how.jitter)
            else:  # a negative error marks a bad row, and is not changed
                dy = np.where(curves.dy < 0, curves.dy, np.hypot(curves.dy, how.jitter))
            curves = replace(curves, dy=dy)
        return curves

    def _about_bands(self, curves: LightCurves | CurveStream) -> list[str]:
        """A note for the user: how objects with rows of several bands are searched."""
        if not curves.several_bands:
            return []
        names = sorted(map(str, curves.bands))
        model = self.request.multiband
        some = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        how = "are searched as one series"
        if self.request.arguments.get("method") == "finufft":
            how += " (--method finufft has one band)"
        if model != "none":
            how = f"are searched together (--multiband {model}) with {counted(self.request.terms(True), 'term')}"
        return [f"rows of {len(names)} bands ({some}) {how}; --band keeps one"]

    def correction(self) -> Callable[[LightCurves], LightCurves] | None:
        """A function that corrects objects for their motion and counts lost rows; None if nothing moves."""
        from skysieve.periodogram.analysis.solar_system import reduce_part

        model = self.treatment.phase_model
        if model is None:
            return None

        def correct(curves: LightCurves) -> LightCurves:
            out, lost, flat = reduce_part(curves, model)
            self.lost, self.flat = self.lost + lost, self.flat + flat
            return out

        return correct

    def _search(self, number: int, file: Path, label: str, curves: LightCurves | CurveStream, stack: ExitStack) -> None:
        from skysieve.core.errors import MemoryBudgetError, SkysieveError
        from skysieve.core.files import parquet_rows
        from skysieve.periodogram.lightcurves.io import BadFile, LightCurves

        from .plot_files import is_picture
        from .report import with_search_options

        self.lost = self.flat = 0
        if self.plot is not None and is_picture(self.plot) and len(curves) > 1:
            raise UserError(f"--plot {self.plot}: expected a folder, because {file} has {len(curves):,} objects")
        to_parquet = self.output not in (None, STDIO) and self.format == "parquet"
        if self.output is not None and to_parquet and self.n_files == 1 and not isinstance(curves, LightCurves):
            try:
                self.rows = stack.enter_context(parquet_rows(self.output))
            except OSError as e:
                raise UserError(f"cannot write {self.output}: {e.strerror or e}") from None
        try:
            self._search_file(number, file, label, curves)
        except ValueError as e:
            about = f"{file}: " if isinstance(e, BadFile) or self.n_files > 1 else ""
            text = str(e).splitlines()[0]
            text = about + (text if isinstance(e, BadFile) else with_search_options(text))
            if self.n_files == 1:
                raise UserError(text) from e
            self._bad(text)  # the other files are searched all the same
        except SkysieveError as e:
            more = "; --memory sets the budget" if isinstance(e, MemoryBudgetError) else ""
            raise UserError(str(e).splitlines()[0] + more) from e
        except OSError as e:
            writes = self.parts is not None or self.rows is not None  # finished parts or rows, else the file is read
            place = e.filename or (self.output if writes else file)
            raise UserError(f"cannot {'write' if writes else 'read'} {place}: {e.strerror or e}") from e

    def _search_file(self, number: int, file: Path, label: str, curves: LightCurves | CurveStream) -> None:
        """Search the objects of a file, and report the progress."""
        from skysieve.core.files import ROWS_TOGETHER
        from skysieve.periodogram.analysis.solar_system import what_was_done
        from skysieve.periodogram.lightcurves.io import TWO_DATES, BadFile, LightCurves

        from .ranges import range_of
        from .report import left_out

        whole = isinstance(curves, LightCurves)
        # a run that continues reads the first piece for its notes, and later the unfinished parts
        looked = curves if isinstance(curves, LightCurves) or self.parts is None else curves.anew()
        with ExitStack() as stack:
            pieces = stack.enter_context(looked.pieces())
            first = next(pieces, None)
            if first is None:
                lines = [] if isinstance(looked, LightCurves) else [*looked.lost, *looked.notes_on_rows()]
                raise BadFile("; ".join(lines) or "has no rows")
            if self.parts is not None:
                stack.close()
            searched, notes = range_of(first, self.request, len(curves))
            self.say("; ".join(filter(None, (f"{file}: {_size_of(curves)}", searched, curves.taken))))
            rows = left_out(curves.missing(), curves.n_rows) if whole else []
            for line in [*curves.notes, *([] if whole else first.notes), *rows, *self._about_bands(curves), *notes]:
                self.say(f"note: {line}")
            before = len(self.found)
            for part in self._answers(number, file, curves, itertools.chain([first], pieces)):
                self.found.append((label, part))
                self._add_rows(ROWS_TOGETHER)
        if not isinstance(curves, LightCurves):
            if curves.n_other:
                self.say(f"note: {counted(curves.n_other, 'row')} of other bands than {self.treatment.band} left out")
            for line in left_out(curves.missing(), curves.n_read):
                self.say(f"note: {line}")
            for line in curves.notes_on_rows():
                self.say(f"note: {line}")
            for line in curves.lost:
                self._bad(f"{file}: {line}")
            refused = {why: n for why, n in curves.left_out.items() if why.startswith("flagged") or why == TWO_DATES}
            if refused and sum(refused.values()) + curves.missing().get("without a value", 0) == curves.n_read:
                del self.found[before:]
                advice = "" if TWO_DATES in refused else "; --quality-mask none keeps them"
                raise BadFile(f"has no row left: all are {', '.join(refused)}{advice}")
            self._add_rows(1)
        self.flagged.update(curves.left_out)
        self.rows_noted += sum(curves.missing().values()) + self.lost
        if self.treatment.phase_model is not None:
            for line in what_was_done(first, self.lost, self.flat):
                self.say(f"note: {line}")
        if self.plot is not None:
            self._plot(curves, self.plot)

    def _answers(
        self, number: int, file: Path, curves: LightCurves | CurveStream, pieces: Iterable[LightCurves]
    ) -> Iterator[Found]:
        """Answers for the objects of a file, a chunk or a partition at a time."""
        from skysieve.periodogram.lightcurves.io import LightCurves
        from skysieve.periodogram.survey import join, search

        from .report import progress_bar
        from .resume import PARTITION

        banded = self.request.banded(curves)  # a part with rows of one band has the model of the file
        if self.parts is None:
            with progress_bar(self.messages.log, file.name, len(curves), self.messages.progress) as progress:
                yield from search(
                    pieces, self.request, total=len(curves), banded=banded, rows=curves.n_rows, progress=progress,
                    note=self._note, detail=self._detail, prepare=self.correction(),
                )  # fmt: skip
            return
        edges = self.parts.cut(number, curves, self.partition or PARTITION)
        n = len(edges) - 1
        before = [k for k in range(n) if self.parts.load(number, k) is not None]
        if before:
            self.say(f"{file}: {len(before)} of {n} partitions were done before")
        if self.parts.damaged:
            self.say(f"note: {', '.join(self.parts.damaged)}: damaged, searched again")
            self.parts.damaged.clear()
        for k in range(n):
            found = self.parts.load(number, k)
            if found is None:
                part = curves.part(edges[k], edges[k + 1])
                label = f"{file.name}, {k + 1} of {n}"
                bar = progress_bar(self.messages.log, label, len(part), self.messages.progress)
                with bar as progress, part.pieces() as rows, compiled_code(self.request.arguments["device"]):
                    answers = list(
                        search(
                            rows, self.request, total=len(part), banded=banded, rows=curves.n_rows, progress=progress,
                            note=self._note, detail=self._detail, prepare=self.correction(),
                        )
                    )  # fmt: skip
                lost = False
                if not isinstance(part, LightCurves) and not isinstance(curves, LightCurves):
                    curves.count(part)
                    lost = bool(part.lost)
                if not answers:
                    continue
                found = join(answers)
                if not lost:  # a partition with rows that cannot be read is tried again
                    self.parts.save(number, k, found)
            yield found

    def _loaded(self, number: int, k: int) -> Found:
        assert self.parts is not None
        found = self.parts.load(number, k)
        assert found is not None
        return found

    @property
    def _detail(self) -> Callable[[str], None] | None:
        return self.messages.detail if self.messages.verbose else None

    def _note(self, text: str) -> None:
        """Print a note of the search, once for all partitions."""
        from skysieve.periodogram.survey import kind_of_note

        from .report import with_search_options

        kind = kind_of_note(text)
        if kind not in self.noted or self.parts is None:
            self.noted.add(kind)
            self.say(f"note: {with_search_options(text)}")

    def _join(self) -> None:
        """Join the answers of each file."""
        from skysieve.periodogram.survey import join

        files = groupby(self.found, key=lambda pair: pair[0])
        self.found = [(name, join([part for _, part in pairs])) for name, pairs in files]

    def _plot(self, curves: LightCurves | CurveStream, path: Path) -> None:
        """Draw objects of a file; a large one is read once more, as far as its pictures need it."""
        from skysieve.periodogram.lightcurves.io import LightCurves

        from .plot_files import plot_objects

        banded = self.request.banded(curves)
        source = curves if isinstance(curves, LightCurves) else curves.anew()
        with source.pieces() as pieces:
            for piece in pieces:
                limit = self.plot_limit - self.plotted - len(self.not_plotted)
                if limit <= 0:
                    break
                drawn, failed = plot_objects(
                    piece, self.request, path, limit, self.pictures, self.correction(), len(curves), banded
                )
                self.plotted += drawn
                self.not_plotted += failed

    def _add_rows(self, fewest: int) -> None:
        """Append new results, of at least ``fewest`` objects, to a table that is written during the search."""
        from skysieve.periodogram.survey import join

        if self.rows is None:
            return
        new = [f for _, f in self.found[self.n_written :]]
        if new and sum(map(len, new)) >= fewest:
            self.n_written = len(self.found)
            self.rows(*join(new).table(self.request, coded=True))

    def _end_rows(self, path: Path, stack: ExitStack) -> None:
        """Write the last rows of the table, and rename it."""
        try:
            stack.close()
        except FileExistsError as e:
            raise WrittenElsewhere(f"cannot write {path}: {e.strerror or e}") from None
        except OSError as e:
            raise UserError(f"cannot write {path}: {e.strerror or e}") from None

    def _write(self, path: Path) -> None:
        from skysieve.core.table_files import table_bytes, write_table

        columns, units = self._columns(self.format == "parquet" and path != STDIO)
        try:
            if path == STDIO:
                write_stdout(table_bytes(columns, self.format, units=units))
            else:
                write_table(columns, path, units=units, format=self.format)
        except BrokenPipeError:
            raise
        except FileExistsError as e:
            raise WrittenElsewhere(f"cannot write {path}: {e.strerror or e}") from None
        except OSError as e:
            raise UserError(f"cannot write {path}: {e.strerror or e}") from None

    def _columns(self, coded: bool = False) -> tuple[dict[str, Any], dict[str, str]]:
        """The table of all that was found, and its units; ``coded``: columns of few words are `Words`."""
        import numpy as np

        from skysieve.core.arrays import Words
        from skysieve.periodogram.survey import join

        lengths = [len(f) for _, f in self.found]
        names = np.array([name for name, _ in self.found])
        file = Words(np.repeat(np.arange(len(lengths)), lengths), names) if self.n_files > 1 else None
        return join([f for _, f in self.found]).table(self.request, file, coded)

    def keep_finished(self, why: str = "interrupted") -> str:
        """After Ctrl-C or an error, write the finished results; returns a message that says where.

        They are written next to the output, else into the folder of temporary files, else to standard output.  A run
        without an output shows them.
        """
        if self.parts is not None:
            return f"{why}; the same command continues from the finished partitions in {self.parts.folder}"
        done = sum(len(f) for _, f in self.found)
        if not done or (self.output is None and self.messages.quiet):
            return f"{why}; nothing was written"
        import tempfile

        from skysieve.core.files import unused
        from skysieve.core.table_files import table_bytes

        from .report import show_periods

        self._join()
        those = f"the periods of the {counted(done, 'object')} that were done"
        if self.output is None:
            show_periods(self.messages.console, self.found, self.request)
            return f"{why}; {those} are in the table above"
        if self.output != STDIO:
            for folder in (self.output.parent, Path(tempfile.gettempdir())):
                path = unused(folder / f"{self.output.stem}.partial{self.output.suffix}")
                try:
                    self._write(path)
                except UserError as e:
                    self.complain(str(e))
                else:
                    return f"{why}; {those} are in {path}"
        try:
            write_stdout(table_bytes(self._columns()[0], self.format if self.output == STDIO else "csv"))
        except OSError as e:
            return f"{why}; {those} are lost: they could not be written to standard output ({e.strerror or e})"
        return f"{why}; {those} are on standard output"


def _size_of(curves: LightCurves | CurveStream) -> str:
    """Numbers of objects and rows in words."""
    return f"{counted(len(curves), 'object')}, {counted(curves.n_rows, 'row')}"
