"""``skysieve dedisp search`` of several files, each on its own: choice of files, outputs, and resumption of a run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from skysieve.core.command import (
    FAILED_SOME,
    STDIO,
    USER_ERROR,
    Messages,
    check_output,
    counted,
    drop_stdout,
    may_replace,
    with_option,
)
from skysieve.core.errors import one_line
from skysieve.core.files import before_naming, expand, is_pattern, save_figure, written
from skysieve.core.parts import PartsFolder, continues, fingerprint, parts_folder, read_json
from skysieve.dedispersion.data.readers import FOLDER_SUFFIXES

from .at_once import FILE_ERRORS, Helpers, devices_for, most_helpers, results_of
from .options import DM_NAMES, Cleaning, Computation, DataOptions, DmOptions, Grouping, Searching, output_file

if TYPE_CHECKING:
    from skysieve.dedispersion.clean.masks import Mask
    from skysieve.dedispersion.data.filterbank import Filterbank
    from skysieve.dedispersion.single_pulse.candidates import Candidates

_DRAWING = Lock()
"""Held while a thread draws."""


def stands_for_files(path: Path) -> bool:
    """Whether a name is a folder, or a pattern and no file."""
    return path.is_dir() or is_pattern(path)


def filterbanks(names: Iterable[Path]) -> list[Path]:
    """The filterbank and PSRFITS files that the user's names, folders and patterns select; see `core.files.expand`."""
    return expand(names, FOLDER_SUFFIXES)


def labels(files: list[Path]) -> list[str]:
    """Short names that differ: paths below the folder that all files share.

    >>> labels([Path("n/a.fil"), Path("n/b/a.fil")])
    ['a.fil', 'b/a.fil']
    """
    whole = [Path(os.path.abspath(f)) for f in files]
    common = os.path.commonpath([f.parent for f in whole])
    return [f.relative_to(common).as_posix() for f in whole]


@dataclass
class Outputs:
    """The outputs of a search of several files.

    Attributes
    ----------
    table : Path or None
        One table with a column of files, or a folder for a table of each.
    form : str
        Format of the tables.
    folder : bool
        Whether `table` is a folder.
    plots, cutouts : Path or None
        Folders.
    most : int
        Cut-outs of each file.
    resume, overwrite : bool
    """

    table: Path | None
    form: str
    folder: bool
    plots: Path | None
    cutouts: Path | None
    most: int
    resume: bool
    overwrite: bool

    def check(self, names: list[str]) -> None:
        """Refuse, before any work, outputs that could not be written at the end."""
        resumes = continues(self.table, self.resume)
        check_output(self.table, may_replace(self.table, self.resume, self.overwrite), folder=self.folder)
        for name, folder in (("--plot", self.plots), ("--cutouts", self.cutouts)):
            check_output(folder, folder=True)
            if folder is not None and folder.suffix:
                raise ValueError(f"{name} {folder}: expected the name of a folder, because there are several files")
        if self.overwrite:
            return
        own = Made.in_folder(parts_folder(self.table)) if resumes and self.table is not None else None
        for name in names:
            for path in [self.table_of(name)] * self.folder if own is not None else self.of(name):
                if path.exists() and (own is None or fingerprint(path) not in own):
                    raise FileExistsError(f"{path}: exists; use --overwrite to replace it, or another name")

    def of(self, name: str, candidates: int = 1) -> list[Path]:
        """The outputs of one file alone that has a number of candidates."""
        return [
            *([self.table_of(name)] if self.folder else ()),
            *([] if self.plots is None else [self.plots / f"{name}.png"]),
            *([] if self.cutouts is None or not candidates else [self.cutouts / name]),
        ]

    def table_of(self, name: str) -> Path:
        """The table of one file."""
        assert self.table is not None
        return self.table / f"{name}.{self.form}"


@dataclass
class FileSearch:
    """The search of a file, as the options describe it; other processes get a copy.

    Attributes
    ----------
    dms, data, cleaning, searching, grouping, computation
        Groups of options.
    plan_file : Path or None
    requantise : bool
    steps : tuple of str or None
        See `skysieve.dedispersion.search`, ``clean``.
    messages : Messages
    """

    dms: DmOptions
    plan_file: Path | None
    data: DataOptions
    cleaning: Cleaning
    requantise: bool
    steps: Any
    searching: Searching
    grouping: Grouping
    computation: Computation
    messages: Messages

    def find(self, fb: Filterbank, device: str, bar: bool) -> tuple[Filterbank, Candidates, Mask | None]:
        """Search data on a device, with or without a progress bar.

        Returns
        -------
        Filterbank
            The data as they were searched.
        Candidates
        Mask or None
            All masked cells.
        """
        from skysieve.dedispersion.single_pulse.search import search

        made = self.dms.plan(fb, self.plan_file)
        self.messages.detail(made.summary())
        prepared, mask, every = self.cleaning.prepared(fb, self.messages, self.requantise)
        found = search(
            prepared, made, clean=self.steps, **self.searching.arguments, **vars(self.grouping), mask=mask,
            device=device, threads=self.computation.threads, memory=self.computation.memory,
            progress=self.messages.progress and bar,
        )  # fmt: skip
        return prepared, found, every


def search_each(files: list[Path], search: FileSearch, outputs: Outputs, asked: dict[str, Any]) -> int:
    """Search files, one after another or several at a time on GPUs; files that cannot be searched do not end the run.

    Parameters
    ----------
    files : list of Path
    search : FileSearch
        If several GPUs compute, each searches its own files.  If the user limits the memory, each GPU searches one file
        at a time.
    outputs : Outputs
    asked : dict
        The options that change candidates, as JSON holds them: a run that continues must have the same.

    Returns
    -------
    int
        The exit code.
    """
    names, messages = labels(files), search.messages
    outputs.check(names)
    with ExitStack() as stack:
        parts = None
        if outputs.resume:
            assert outputs.table is not None
            parts = PartsFolder(outputs.table, {"options": json.loads(json.dumps(asked, default=str))})
            stack.callback(parts.close)
            if parts.lock.note:
                messages.say(f"note: {parts.lock.note}")
            if (code := parts.ended()) is not None:
                messages.say(f"{outputs.table} was complete before")
                return code
        run = _Run(files, names, outputs, messages)
        left = run.resume(None if parts is None else parts.folder)
        limited = search.computation.memory is not None
        devices = devices_for(search.computation.device, [files[number] for number in left], limited)
        if devices[0].startswith("cuda"):
            messages.detail(f"{len(devices)} files at a time are searched on {', '.join(dict.fromkeys(devices))}")
        work = _Work(files, names, search, outputs, alone=len(devices) == 1)
        most = most_helpers(devices, search.computation.threads)
        helpers = Helpers(work, list(dict.fromkeys(devices)), most, messages.detail)
        stack.callback(helpers.close)
        results = stack.enter_context(closing(results_of(work, list(left), devices, helpers)))
        for (number, part), result in zip(left.items(), results, strict=True):
            run.take(number, part, result)
        if not run.found:
            return USER_ERROR
        run.write_table()
        if run.failed:
            messages.say(f"{run.failed} of {counted(len(files), 'file')} could not be searched, or drawn")
        elif parts is not None:
            parts.remove()
    return FAILED_SOME if run.failed else 0


@dataclass
class _Work:
    """A function that searches a file on a device and draws it.

    It returns the candidates, and the error if they could not be drawn.  ``alone``: files are searched one after
    another, with a progress bar.
    """

    files: list[Path]
    names: list[str]
    search: FileSearch
    outputs: Outputs
    alone: bool

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Continue in another process, which logs as this one does."""
        self.__dict__.update(state)
        messages = self.search.messages
        Messages(messages.quiet, messages.verbose, messages.progress)

    def __call__(self, number: int, device: str) -> tuple[Candidates, Exception | None]:
        not_drawn = None
        with self.search.data.open([self.files[number]]) as fb:
            clean, one, mask = self.search.find(fb, device, self.alone)
            try:
                with _DRAWING:
                    write_pictures(self.outputs, self.names[number], clean, one, mask)
            except FILE_ERRORS as error:  # the candidates are written all the same
                not_drawn = ValueError(one_line(error))
        return one if self.outputs.folder else without_events(one), not_drawn


class _Run:
    """The candidates of the files of a run, what is printed about them, and the tables.

    Attributes
    ----------
    found : dict of int to Candidates
        The candidates of each file that is finished, without events.
    failed : int
        Number of files that could not be searched, or drawn.
    """

    def __init__(self, files: list[Path], names: list[str], outputs: Outputs, messages: Messages) -> None:
        self.files, self.names, self.outputs, self.messages = files, names, outputs, messages
        self.found: dict[int, Candidates] = {}
        self.failed = 0
        self._shown = outputs.table != STDIO and not messages.quiet

    def resume(self, folder: Path | None) -> dict[int, Path | None]:
        """Take the files that an earlier run finished.

        Returns
        -------
        dict of int to Path or None
            The files that are left to search, and where the candidates of each are to be stored in ``folder``.
        """
        left: dict[int, Path | None] = {}
        for number, file in enumerate(self.files):
            try:
                part = None if folder is None else part_of(folder, file)
                before = None if part is None else finished(part)
            except FILE_ERRORS as error:
                self._report(number, error)
                continue
            outputs = [] if before is None else self.outputs.of(self.names[number], len(before))
            if part is not None and before is not None and Made(part).complete(outputs):
                self.found[number] = before
                self.messages.say(f"{self._where(number)}: was finished before, {counted(len(before), 'candidate')}")
            else:
                left[number] = part
        return left

    def take(self, number: int, part: Path | None, result: Callable[[], tuple[Candidates, Exception | None]]) -> None:
        """Take the result of a file: write its table, store its candidates in ``part``, and print them."""
        from skysieve.dedispersion.single_pulse.files import write_candidates

        try:
            one, not_drawn = result()
        except FILE_ERRORS as error:
            self._report(number, error)
            return
        if not_drawn is not None:
            self._report(number, not_drawn)
        if self.outputs.folder:
            target = self.outputs.table_of(self.names[number])
            target.parent.mkdir(parents=True, exist_ok=True)
            if part is not None:
                before_naming[target.resolve()] = partial(Made(part).add, target)
            try:
                write_candidates(one, target, self.outputs.form)
            finally:
                before_naming.pop(target.resolve(), None)
        self.found[number] = light = without_events(one)
        if part is not None and not_drawn is None:  # otherwise --resume searches it again, and draws it
            Made(part).set(self.outputs.of(self.names[number], len(light)))
            light.save(part)
        self._show(number, one)

    def write_table(self) -> None:
        """Write the table of all files, unless each has its own."""
        from skysieve.dedispersion.single_pulse.files import write_several

        table, found = self.outputs.table, self.found
        if table is None:
            return
        if not self.outputs.folder:
            with output_file(table, f".{self.outputs.form}") as path:
                write_several(
                    [(self.names[number], found[number]) for number in sorted(found)], path, self.outputs.form
                )
        self.messages.wrote(
            table, f"{counted(sum(map(len, found.values())), 'candidate')} of {counted(len(found), 'file')}"
        )

    def _show(self, number: int, one: Candidates) -> None:
        if self._shown:
            loudest = f", S/N {one.snr[0]:.2f} at DM {one.dm[0]:.3f}, {one.time[0]:.6f} s" if len(one) else ""
            try:
                typer.echo(f"{self._where(number)}: {counted(len(one), 'candidate')}{loudest}")
            except OSError:  # nobody reads it, or its disk is full: the table is written all the same
                if self.outputs.table is None:
                    raise
                self._shown = False
                drop_stdout()
        self.messages.detail(f"{one.seconds:.2f} s, {one.realtime:.3g} x real time")

    def _report(self, number: int, error: Exception) -> None:
        """Count and print an error of a file."""
        self.failed += 1
        text, file = with_option(one_line(error), DM_NAMES), str(self.files[number])
        typer.echo(f"skysieve: {text if file in text else f'{file}: {text}'}", err=True)

    def _where(self, number: int) -> str:
        return f"{number + 1}/{len(self.files)} {self.names[number]}"


def write_pictures(outputs: Outputs, name: str, clean: Filterbank, one: Candidates, mask: Mask | None) -> None:
    """The picture and the cut-outs of one file."""
    from skysieve.dedispersion.single_pulse.cutouts import write_cutouts

    if outputs.plots is not None:
        target = outputs.plots / f"{name}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        save_figure(one.plot(), target, dpi=120)
    if outputs.cutouts is not None and len(one):
        folder = outputs.cutouts / name
        folder.mkdir(parents=True, exist_ok=True)
        write_cutouts(clean, one, folder, most=outputs.most, mask=mask)


def part_of(folder: Path, file: Path) -> Path:
    """The path at which the candidates of a file are stored, from its name, size and modification time."""
    digest = hashlib.sha256(json.dumps(fingerprint(file)).encode()).digest()
    return folder / f"{int.from_bytes(digest[:8]):020d}.npz"


@dataclass
class Made:
    """The outputs of a file by their sizes and times of change, in a list beside its stored candidates.

    A run that continues thus neither takes outputs of another command for its own, nor replaces them.

    Attributes
    ----------
    part : Path
        See `part_of`.
    """

    part: Path

    @classmethod
    def in_folder(cls, folder: Path) -> list[Any]:
        """The outputs of all files of a run."""
        return [state for path in sorted(folder.glob("[0-9]*.json")) for state in cls(path).states()]

    def states(self) -> list[Any]:
        """The list; empty if it is missing or damaged."""
        path = self.part.with_suffix(".json")
        found = read_json(path) if path.exists() else None
        return found if isinstance(found, list) else []

    def complete(self, outputs: list[Path]) -> bool:
        """Whether outputs are those that were made with the stored candidates."""
        states = self.states()
        for path in outputs:
            place = path.resolve()
            made = [state for state in states if place in (Path(state[0]), *Path(state[0]).parents)]
            if not path.exists() or _states_of(path) != made:
                return False
        return True

    def add(self, output: Path, complete: Path) -> None:
        """Add an output before the complete file has its name."""
        self._save([*self.states(), [str(output.resolve()), *fingerprint(complete)[1:]]])

    def set(self, outputs: list[Path]) -> None:
        """List outputs, of which folders stand for their files."""
        self._save([state for path in outputs for state in _states_of(path)])

    def _save(self, states: list[Any]) -> None:
        with written(self.part.with_suffix(".json")) as file:
            file.write_text(json.dumps(states), encoding="utf-8")


def _states_of(path: Path) -> list[Any]:
    """The fingerprint of a file, or of each file of a folder."""
    return [fingerprint(file) for file in (sorted(path.rglob("*")) if path.is_dir() else [path]) if file.is_file()]


def finished(part: Path) -> Candidates | None:
    """The stored candidates of a finished file; None if it is not finished, or if the stored data are damaged."""
    from skysieve.dedispersion.single_pulse.candidates import Candidates

    if not part.exists():
        return None
    try:
        return Candidates.load(part)
    except (ValueError, EOFError):
        part.unlink()
        return None


def without_events(one: Candidates) -> Candidates:
    """The same candidates without their events, which only two formats of tables hold."""
    from dataclasses import fields

    events = replace(one.events, **{f.name: getattr(one.events, f.name)[:0] for f in fields(one.events)})
    return replace(one, events=events, group=np.empty(0, np.int64))
